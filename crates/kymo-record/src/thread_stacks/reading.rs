//! Reads the stacks of threads, and what runtimes have beside them, within a time.
use super::goroutines::{self, GoProgram, Goroutine};
use super::image::LiveProcess;
use super::record::ThreadRecord;
use super::running::RunningThreads;
use super::stack::{ThreadStack, waiting_stack};
use crate::python::{PythonReader, PythonStacks};
use crate::waiting_stacks::StackReader;
use kymo_data::{Event, EventSet, EventSpec};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// So long stacks are read.
pub(super) const MOST_TIME: Duration = Duration::from_secs(10);

/// All that was read in time.
#[derive(Debug, Default)]
pub(super) struct ReadStacks {
    /// By thread.
    pub(super) stacks: HashMap<i32, ThreadStack>,
    /// With their processes.
    pub(super) goroutines: Vec<(i32, Goroutine)>,
    /// What the user should know.
    pub(super) remarks: Vec<String>,
}

/// What comes from the thread that reads.
enum Message {
    Stack(i32, ThreadStack),
    Goroutines(i32, Vec<Goroutine>),
    Remark(String),
}

impl ReadStacks {
    /// Reads in a thread of its own, which nobody joins: a file system may keep it waiting for
    /// ever.
    pub(super) fn read(threads: &[(i32, i32)], facts: &[ThreadRecord], spec: &EventSpec) -> ReadStacks {
        let (mut found, until) = (ReadStacks::default(), Instant::now() + MOST_TIME);
        let (send, receive) = mpsc::channel();
        let wanted: Vec<(i32, i32, char)> =
            threads.iter().zip(facts).map(|(&(pid, tid), fact)| (pid, tid, fact.state)).collect();
        let events = EventSet::new(vec![Event::new(spec.attr.clone(), spec.ids.clone(), 0)]);
        // Who listens is gone when it took too long.
        let read = move || _ = send_all(&wanted, &events, &send);
        if let Err(error) = Builder::new().name("thread stacks".into()).spawn(read) {
            found.remarks.push(format!("no stacks are read: no thread could be made for it: {error}"));
            return found;
        }
        let late = loop {
            match receive.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Message::Stack(tid, stack)) => _ = found.stacks.insert(tid, stack),
                Ok(Message::Goroutines(pid, goroutines)) => {
                    found.goroutines.extend(goroutines.into_iter().map(|goroutine| (pid, goroutine)));
                }
                Ok(Message::Remark(remark)) => found.remarks.push(remark),
                Err(RecvTimeoutError::Disconnected) => break false,
                Err(RecvTimeoutError::Timeout) => break true,
            }
        };
        if late {
            let (missing, seconds) = (threads.len() - found.stacks.len(), MOST_TIME.as_secs());
            found.remarks.push(match missing {
                0 => format!("not all goroutines were read within {seconds} s"),
                missing => format!("{missing} stacks were not read within {seconds} s"),
            });
        }
        found
    }
}

/// Reads all of it, and sends it as it comes; `None`: nobody listens any more.
fn send_all(wanted: &[(i32, i32, char)], events: &EventSet, send: &Sender<Message>) -> Option<()> {
    let threads: Vec<(i32, i32)> = wanted.iter().map(|&(pid, tid, _)| (pid, tid)).collect();
    let mut reader = StackReader::of(&threads);
    let is_running = |state: char| state == 'R';
    let running: Vec<i32> =
        wanted.iter().filter(|(.., state)| is_running(*state)).map(|(_, tid, _)| *tid).collect();
    let mut running = RunningThreads::sample(&running);
    let mut python = PythonReader::new(PythonStacks::new(Arc::default(), events), 0);
    for &(pid, tid, state) in wanted {
        let mut stack = match is_running(state) {
            true => running.stack_of(&mut reader, pid, tid),
            false => waiting_stack(&mut reader, pid, tid),
        };
        let remark = stack.stack.put_python(&mut python, &mut reader, (pid, tid));
        send.send(Message::Stack(tid, stack)).ok()?;
        remark.into_iter().try_for_each(|remark| send.send(Message::Remark(remark)).ok())?;
    }
    let mut processes: Vec<i32> = threads.into_iter().map(|(pid, _)| pid).collect();
    processes.dedup();
    for pid in processes {
        let found = GoProgram::find_in_process(pid).and_then(|program| match program {
            Some(program) => goroutines::read(&program, &mut LiveProcess { pid, reader: &mut reader }),
            None => Ok(Default::default()),
        });
        let remark = match found {
            Ok((goroutines, left_out)) => {
                send.send(Message::Goroutines(pid, goroutines)).ok()?;
                (left_out > 0).then(|| format!("{left_out} more goroutines of process {pid} were not read"))
            }
            Err(why) => Some(format!("goroutines of process {pid} are not seen, only its threads: {why}")),
        };
        remark.into_iter().try_for_each(|remark| send.send(Message::Remark(remark)).ok())?;
    }
    Some(())
}
