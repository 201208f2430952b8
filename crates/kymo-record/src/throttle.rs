//! `--overload=pause`: the target is paused while the recorder catches up, and the recording says
//! when.
//!
//! ```text
//!  drain: few buffers are free -> ThrottleRequest -> throttle: pauses the target, waits until most buffers
//!                                                    are free, resumes it, writes a mark of the interval
//! ```
//!
//! A launched command is frozen as a cgroup: all its descendants stop with it, and none sees a
//! signal. Where there is no cgroup, and for processes that ran already, SIGSTOP and SIGCONT go to
//! each of them and their descendants; a shell may print a remark about that. If the recorder is
//! killed during a pause, SIGCONT (or, for a cgroup, the next start of kymo) resumes the target.
use crate::RecordingClock;
use crate::channel::{Notifier, Sender, timespec};
use crate::machine;
use crate::plan::RecordingPlan;
use crate::shared::{DrainShared, Message, ThrottleRequest};
use kymo_data::Mark;
use kymo_perf::cgroup::OwnCgroup;
use kymo_perf::{proc, sys};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long a cgroup may take to stand still before it is taken for paused.
const FREEZE_TIMEOUT: Duration = Duration::from_millis(200);
/// Between two checks whether the queue is empty again.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Rounds of stopping processes that were started meanwhile.
const ROUNDS: usize = 16;

/// What stands still.
#[derive(Debug)]
pub(crate) enum ThrottleTarget<'a> {
    Cgroup(&'a OwnCgroup),
    /// These processes and their descendants.
    Processes(Vec<i32>),
}

/// The pauses of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pauses {
    /// How many.
    pub count: u64,
    /// How long they were in all, ns.
    pub total_ns: u64,
}

impl fmt::Display for Pauses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Pauses { count, total_ns } = self;
        let times = if *count == 1 { "once" } else { "times" };
        let ms = *total_ns as f64 / 1e6;
        match count {
            1 => write!(f, "paused the target {times}, for {ms:.1} ms"),
            _ => write!(f, "paused the target {count} {times}, for {ms:.1} ms in all"),
        }
    }
}

/// The thread that stops the target.
#[derive(Debug)]
pub(crate) struct Throttle<'a> {
    held: ThrottleTarget<'a>,
    clock: RecordingClock,
    marks: Sender<Message>,
    /// Processes that were stopped before: they stop at once the next time, and only then others
    /// are looked for.
    known: BTreeSet<i32>,
}

impl<'a> Throttle<'a> {
    /// `cgroup`: the one that the command is in, if there is one. `command`: the command's process.
    pub(crate) fn new(
        plan: &RecordingPlan,
        cgroup: Option<&'a OwnCgroup>,
        command: Option<i32>,
        marks: Sender<Message>,
    ) -> Throttle<'a> {
        let held = match cgroup {
            Some(cgroup) => ThrottleTarget::Cgroup(cgroup),
            None => {
                let of_tasks = plan.observed.tasks.iter().filter_map(|&task| proc::process_of(task));
                ThrottleTarget::Processes(command.into_iter().chain(of_tasks).collect())
            }
        };
        // The plan has one where there may be pauses.
        let clock = plan.options.clock.unwrap_or(RecordingClock::Monotonic);
        Throttle { held, clock, marks, known: BTreeSet::new() }
    }

    /// Pauses the target at each request, until the recording ends.
    pub(crate) fn run(mut self, request: &ThrottleRequest, shared: &DrainShared) -> Pauses {
        // It must come to run while the target keeps all CPUs busy.
        if let Err(error) = sys::run_early() {
            tracing::debug!(%error, "the throttle runs at ordinary priority");
        }
        let mut pauses = Pauses::default();
        let wait = |notifier: Option<&Notifier>, most: Option<Duration>| {
            let fds = [Some(&shared.stop_notifier), notifier];
            let mut fds: Vec<_> =
                fds.into_iter().flatten().map(|notifier| PollFd::new(notifier.fd(), PollFlags::IN)).collect();
            let _ = poll(&mut fds, most.map(timespec).as_ref());
        };
        // Acquire: pairs with the Release of whoever ends the recording.
        while !shared.stop.load(Ordering::Acquire) {
            wait(Some(request.notifier()), None);
            request.notifier().clear();
            if !request.is_pending() {
                continue;
            }
            let start_ns = machine::now_ns(self.clock);
            self.pause();
            while !shared.pool.has_recovered() && !shared.stop.load(Ordering::Acquire) {
                wait(None, Some(POLL_INTERVAL));
            }
            request.reset();
            // The target runs only after this: what it does then is later.
            let end_ns = machine::now_ns(self.clock);
            self.resume();
            pauses.count += 1;
            pauses.total_ns += end_ns.saturating_sub(start_ns);
            self.marks.send_blocking(Message::Note(Mark::Pause { start_ns, end_ns }.record()));
        }
        pauses
    }

    fn pause(&mut self) {
        match &self.held {
            ThrottleTarget::Cgroup(cgroup) => {
                if let Err(error) = cgroup.freeze(FREEZE_TIMEOUT) {
                    tracing::warn!(%error, "the target is not paused");
                }
            }
            ThrottleTarget::Processes(processes) => {
                self.known.extend(processes);
                self.known.iter().for_each(|&pid| signal(pid, Signal::STOP));
                // What a process has started before it was stopped is found in the next round; a
                // look at all of /proc takes milliseconds.
                for round in 0..ROUNDS {
                    let all = family(processes, &parents());
                    let new: Vec<i32> = all.difference(&self.known).copied().collect();
                    new.iter().for_each(|&pid| signal(pid, Signal::STOP));
                    if round == 0 {
                        // Numbers of processes that are gone may be given to others.
                        self.known = all;
                    } else {
                        self.known.extend(&new);
                    }
                    if new.is_empty() {
                        break;
                    }
                }
            }
        }
    }

    fn resume(&mut self) {
        match &self.held {
            ThrottleTarget::Cgroup(cgroup) => {
                if let Err(error) = cgroup.thaw() {
                    tracing::error!(%error, "the target is still paused");
                }
            }
            ThrottleTarget::Processes(_) => {
                self.known.iter().for_each(|&pid| signal(pid, Signal::CONT));
            }
        }
    }
}

fn signal(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        // It may be gone.
        let _ = kill_process(pid, signal);
    }
}

/// The parent of every process.
fn parents() -> BTreeMap<i32, i32> {
    let all = proc::processes().unwrap_or_default();
    all.into_iter().filter_map(|pid| Some((pid, proc::parent(pid)?))).collect()
}

/// These processes and all that descend from them, but never this process.
fn family(roots: &[i32], parents: &BTreeMap<i32, i32>) -> BTreeSet<i32> {
    let own = rustix::process::getpid().as_raw_pid();
    let mut all: BTreeSet<i32> = roots.iter().copied().filter(|&pid| pid != own).collect();
    loop {
        let before = all.len();
        let more = parents.iter().filter(|&(&pid, parent)| pid != own && all.contains(parent));
        let more: Vec<i32> = more.map(|(&pid, _)| pid).collect();
        all.extend(more);
        if all.len() == before {
            return all;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::family;
    use std::collections::{BTreeMap, BTreeSet};

    /// Checks that descendants of every generation belong to the family, strangers and this process
    /// do not.
    #[test]
    fn families() {
        let own = std::process::id() as i32;
        let parents = BTreeMap::from([(10, 1), (11, 10), (12, 11), (5, 12), (20, 1), (own, 12)]);
        assert_eq!(family(&[10], &parents), BTreeSet::from([5, 10, 11, 12]));
        assert_eq!(family(&[20, own], &parents), BTreeSet::from([20]));
    }
}
