//! The obvious way: replay every record before the moment, thread by thread, into plain lists.
//!
//! This is what readers do that have no timeline (all of them keep one current state and feed it every record in
//! order). It is the oracle of the property tests.
use super::{Moment, SideEvent};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// A mapping by name: start, end, pgoff, path.
pub(super) type Map = (u64, u64, u64, Vec<u8>);

#[derive(Clone)]
struct Thread {
    pid: i32,
    /// Shared with whoever asked before the name came: the first name holds for the past, too.
    comm: Rc<RefCell<Option<Vec<u8>>>>,
    space: Rc<RefCell<Vec<Map>>>,
}

#[derive(Default)]
struct Machine {
    threads: HashMap<i32, Thread>,
}

impl Machine {
    fn find_or_new(&mut self, pid: i32, tid: i32) -> Thread {
        if let Some(thread) = self.threads.get(&tid) {
            return thread.clone();
        }
        let space = if pid == tid { Rc::default() } else { self.find_or_new(pid, pid).space };
        let thread = Thread { pid, comm: Rc::default(), space };
        self.threads.insert(tid, thread.clone());
        thread
    }

    fn apply(&mut self, event: &SideEvent) {
        match event {
            SideEvent::Comm { pid, tid, name, .. } => {
                let thread = self.find_or_new(*pid, *tid);
                if thread.comm.borrow().is_none() {
                    *thread.comm.borrow_mut() = Some(name.clone());
                } else {
                    let comm = Rc::new(RefCell::new(Some(name.clone())));
                    self.threads.insert(*tid, Thread { comm, ..thread });
                }
            }
            SideEvent::Fork { pid, tid, parent_pid, parent_tid, synthesized } => {
                let parent = self.find_or_new(*parent_pid, *parent_tid);
                self.threads.remove(tid);
                if pid == tid {
                    // All threads of an earlier life of this process id are gone.
                    self.threads.retain(|_, t| t.pid != *pid);
                }
                let thread = self.find_or_new(*pid, *tid);
                *thread.comm.borrow_mut() = parent.comm.borrow().clone();
                if pid != parent_pid && !synthesized {
                    *thread.space.borrow_mut() = parent.space.borrow().clone();
                }
            }
            SideEvent::Map { pid, tid, start, end, pgoff, path, .. } => {
                let space = self.find_or_new(*pid, *tid).space;
                let mut maps = Vec::new();
                for (s, e, off, p) in space.borrow().iter() {
                    if *e <= *start || *end <= *s {
                        maps.push((*s, *e, *off, p.clone()));
                        continue;
                    }
                    if *s < *start {
                        maps.push((*s, *start, *off, p.clone()));
                    }
                    if *end < *e {
                        maps.push((*end, *e, *off + (*end - *s), p.clone()));
                    }
                }
                maps.push((*start, *end, *pgoff, path.clone()));
                maps.sort();
                *space.borrow_mut() = maps;
            }
            SideEvent::Ksymbol { .. } | SideEvent::CodeChange { .. } => {}
        }
    }
}

/// The name and mappings of a thread at a moment.
pub(super) fn at(
    events: &[(Moment, SideEvent)],
    pid: i32,
    tid: i32,
    moment: Moment,
) -> (Option<Vec<u8>>, Vec<Map>) {
    let mut machine = Machine::default();
    let before = events.partition_point(|e| e.0 <= moment);
    for (_, event) in &events[..before] {
        machine.apply(event);
    }
    let thread = machine.find_or_new(pid, tid);
    let maps = thread.space.borrow().clone();
    for (_, event) in &events[before..] {
        machine.apply(event);
    }
    let comm = thread.comm.borrow().clone();
    (comm, maps)
}
