//! The tasks that the calling thread runs, and its switches between them.
//!
//! ```text
//!   thread:  running: [body of the executor]        task A: [body of A]       task B: [body of B]
//!   A is polled:
//!   thread:  running: [body of A]                   A's turn: [body of the executor]
//!   B is polled inside:
//!   thread:  running: [body of B]                   A's turn: [executor]      B's turn: [body of A]
//! ```
//!
//! - T1: the engine's task that is on a CPU is the one in `running` of that CPU's thread.
//! - T2: a body is in one place: with its owner, with its thread, or with the turn that put it
//!   aside.
use super::counters::{Counters, engine};
use super::group::body::{Body, Life, Stats};
use super::group::{Group, Inner};
use super::{Error, hardware, thread_slot};
use crate::sys;
use crate::sys::lock;
use kymo_core::context::{CpuId, Engine};
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// The group of what threads do between tasks.
const THREADS_NAME: &str = "(threads)";

pub(super) struct TaskThread {
    slot: u32,
    /// Seats are used again, this is not.
    number: u64,
    engine: &'static Engine<Counters>,
    /// `None` only while the thread ends.
    running: Option<Body>,
    /// The thread's own, while [`switch`](TaskThread::switch) has put a task in its place.
    idle: Option<Body>,
    /// Whether it belongs to a group that takes whole threads.
    taken: bool,
}

thread_local! {
    static THREAD: RefCell<Option<TaskThread>> = const { RefCell::new(None) };
}

#[inline]
pub(super) fn here<R>(what: impl FnOnce(&mut TaskThread) -> Result<R, Error>) -> Result<R, Error> {
    Error::if_forked()?;
    let done = THREAD.try_with(|place| {
        let mut place = place.try_borrow_mut().map_err(|_| Error::NotNow)?;
        let thread = match &mut *place {
            Some(thread) => thread,
            none => none.insert(TaskThread::sit_down()?),
        };
        thread.check_dropped()?;
        what(thread)
    });
    done.unwrap_or(Err(Error::NotNow))
}

/// The first thing that went wrong where there was nobody to tell.
static PROBLEM: Mutex<Option<Error>> = Mutex::new(None);

/// Remembers a refusal that nobody could be told.
#[cold]
pub(super) fn note(error: Error) {
    // A child may find the lock taken for good; and its problems are its own.
    if error != Error::Forked {
        lock(&PROBLEM).get_or_insert(error);
    }
}

/// The first reason why something ran without being counted
/// ([`Reading::uncounted`](super::Reading::uncounted) says how often), if that happened.
pub fn first_problem() -> Option<Error> {
    if sys::fork::is_child() {
        return Some(Error::Forked);
    }
    lock(&PROBLEM).clone()
}

/// Begins to count what the calling thread does outside of tasks, if that has not begun: for a
/// thread of an executor, when it starts. Without it, that begins with the first task that the
/// thread runs.
///
/// # Errors
/// If there are too many threads, or the process was forked from one that counts.
pub fn enter_thread() -> Result<(), Error> {
    here(|_| Ok(()))
}

impl TaskThread {
    fn sit_down() -> Result<TaskThread, Error> {
        static GROUP: OnceLock<Group> = OnceLock::new();
        let group = match GROUP.get() {
            Some(group) => group,
            None => {
                let group = Group::builder(THREADS_NAME).per_task().build()?;
                GROUP.get_or_init(|| group)
            }
        };
        let slot = thread_slot::take().ok_or(Error::TooManyThreads)?;
        // Relaxed: a number, it publishes nothing.
        static LAST: AtomicU64 = AtomicU64::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        let sit = || {
            let mut body = group.inner.body(thread_name().into(), true)?;
            engine().enter(CpuId(slot), &mut body.run)?;
            body.stats.arrives(slot, number);
            Ok(body)
        };
        match sit() {
            Ok(body) => Ok(TaskThread {
                slot,
                number,
                engine: engine(),
                running: Some(body),
                idle: None,
                taken: false,
            }),
            Err(error) => {
                thread_slot::give_back();
                Err(error)
            }
        }
    }

    pub(super) fn runs(&self, stats: &Arc<Stats>) -> bool {
        self.running.as_ref().is_some_and(|body| body.is(stats))
    }

    fn runs_number(&self) -> u64 {
        self.running.as_ref().map_or(0, |body| body.stats.number)
    }

    /// Runs what is in `next`, and leaves there what ran.
    #[inline]
    pub(super) fn exchange(&mut self, next: &mut Option<Body>) -> Result<(), Error> {
        if let (Some(from), Some(to)) = (&mut self.running, &mut *next) {
            let (engine, cpu) = (self.engine, CpuId(self.slot));
            thread_slot::at_one_moment(|| engine.switch(cpu, &mut from.run, &mut to.run))?;
            from.stats.departs();
            to.stats.arrives(self.slot, self.number);
            std::mem::swap(from, to);
        }
        Ok(())
    }

    /// The first task of a group that takes whole threads takes this one.
    #[inline]
    pub(super) fn give_to(&mut self, group: &Arc<Inner>) -> Result<(), Error> {
        if self.taken || !group.takes_threads() || !self.runs_itself() {
            return Ok(());
        }
        let mut body = Some(group.body(thread_name().into(), true)?);
        self.exchange(&mut body)?;
        self.taken = true;
        Ok(())
    }

    /// Hands over from one task to another; `None` is the thread itself.
    pub(super) fn switch(
        &mut self,
        from: Option<(&Arc<Stats>, &mut Option<Body>)>,
        to: Option<(&Arc<Stats>, &mut Option<Body>)>,
    ) -> Result<(), Error> {
        match &from {
            Some((stats, _)) if !self.runs(stats) => {
                return Err(match stats.life() {
                    Life::Lives => Error::NotRunningHere { task: stats.number },
                    _ => stats.why_absent(),
                });
            }
            None if !self.runs_itself() => {
                return Err(Error::RunsAnother { task: self.runs_number() });
            }
            _ => {}
        }
        let mut next = match to {
            Some((stats, body)) => {
                if body.is_none() {
                    return Err(stats.why_absent());
                }
                if from.is_none() {
                    self.give_to(&stats.group)?;
                }
                self.exchange(body)?;
                body.take()
            }
            None => {
                let mut idle = self.idle.take();
                if idle.is_none() {
                    // From the thread itself to itself, or inside of a scope: there is nothing to
                    // put in its place.
                    return if from.is_none() {
                        Ok(())
                    } else {
                        Err(Error::RunsAnother { task: self.runs_number() })
                    };
                }
                let done = self.exchange(&mut idle);
                if done.is_err() {
                    self.idle = idle;
                    return done;
                }
                idle
            }
        };
        *from.map_or(&mut self.idle, |(_, body)| body) = next.take();
        Ok(())
    }

    /// Whether the thread's own body runs, rather than a task's.
    fn runs_itself(&self) -> bool {
        self.running.as_ref().is_some_and(|body| body.stats.is_thread)
    }

    /// Ends a task that runs here and whose owner is gone, and says so.
    #[inline]
    fn check_dropped(&mut self) -> Result<(), Error> {
        match &self.running {
            Some(body) if body.stats.life() == Life::Dropped => self.end_dropped(),
            _ => Ok(()),
        }
    }

    #[cold]
    fn end_dropped(&mut self) -> Result<(), Error> {
        let task = self.runs_number();
        let mut idle = self.idle.take();
        self.exchange(&mut idle)?;
        drop(idle);
        Err(Error::DroppedWhileRunning { task })
    }
}

impl Drop for TaskThread {
    fn drop(&mut self) {
        // Body's drop does nothing in a forked child, either.
        if sys::fork::is_child() {
            return;
        }
        if let Some(body) = &mut self.running {
            if !body.stats.is_thread {
                body.stats.set_life(Life::Stranded);
            }
            let _ = self.engine.leave(CpuId(self.slot), &mut body.run);
        }
        self.running = None;
        self.idle = None;
        hardware::close(self.slot);
        thread_slot::give_back();
        sys::rseq::unmark();
    }
}

fn thread_name() -> String {
    let tid = sys::clock::own_tid();
    match std::thread::current().name() {
        Some(name) => format!("{name} (thread {tid})"),
        None => format!("thread {tid}"),
    }
}
