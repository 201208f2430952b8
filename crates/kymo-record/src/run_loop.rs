//! The main thread during a recording: it enables the events, starts the command, and waits for the
//! end.
use crate::channel::timespec;
use crate::control::{self, ControlChannel, Execution};
use crate::cpu_accounts::{Account, CpuAccounts};
use crate::cpu_time;
use crate::error::{RecordError, system};
use crate::options::Delay;
use crate::output::{self, SharedNaming};
use crate::plan::RecordingPlan;
use crate::series::SwitchRequest;
use crate::targets::TargetKind;
use crate::user_rings::UserEventControl;
use kymo_perf::evlist::Evlist;
use kymo_perf::proc;
use kymo_perf::workload::Workload;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

/// What ended the recording.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The command, or what was observed.
    ByItself,
    /// We were told to stop, or writing failed.
    ByUs,
}

/// Tells a command to end.
pub(crate) const SIGTERM: i32 = 15;

/// Turns the events on and waits for the end.
pub(crate) struct RunLoop<'a> {
    pub(crate) plan: &'a RecordingPlan,
    pub(crate) events: &'a Evlist,
    /// Starts and stops the events that programs write.
    pub(crate) user_events: Option<&'a mut Box<dyn UserEventControl + Send>>,
    pub(crate) workload: Option<&'a mut Workload>,
    /// The file's way to its name, once everything has begun.
    pub(crate) naming: Option<SharedNaming>,
    pub(crate) channel: Option<ControlChannel>,
    /// Becomes readable when another file is wanted.
    pub(crate) requests: Option<OwnedFd>,
    /// Asks the writer for it; `None`: there is one file only.
    pub(crate) switch_request: Option<Arc<SwitchRequest>>,
    /// Of what is observed, once the events are on; of a command only if that was later than its
    /// start.
    pub(crate) accounts: Option<CpuAccounts>,
}

impl RunLoop<'_> {
    /// Stops the events that programs write; how many of each were lost, and a remark for the user.
    pub(crate) fn end_user_events(&mut self) -> (Vec<u64>, Option<String>) {
        self.user_events.as_mut().map(|events| events.end()).unwrap_or_default()
    }

    /// What the kernel accounts to what is observed since the events are on; before they are off.
    pub(crate) fn accounted(&self) -> Option<Account> {
        self.accounts.as_ref().and_then(CpuAccounts::end)
    }

    fn begin_accounts(&mut self) {
        if cpu_time::is_comparable(self.plan) {
            let command = self.workload.as_ref().map(|workload| workload.pid());
            self.accounts = CpuAccounts::begin(self.plan, command);
        }
    }

    /// Until the command or what is observed ends, the duration is over, `until` or `failed`
    /// becomes readable, or the control channel says so.
    pub(crate) fn run(
        &mut self,
        until: Option<BorrowedFd<'_>>,
        failed: BorrowedFd<'_>,
    ) -> Result<Ended, RecordError> {
        self.begin()?;
        let enable_at = match self.plan.options.delay {
            Some(Delay::After(delay)) => Some(Instant::now() + delay),
            Some(Delay::Disabled) | None => None,
        };
        let begin = enable_at.unwrap_or_else(Instant::now);
        let mut state = LoopState {
            enable_at,
            // Later than a clock can tell is never.
            end_at: self.plan.options.duration.and_then(|duration| begin.checked_add(duration)),
            observed: self.plan.until.iter().filter_map(|&task| ended_fd(task)).collect(),
            pending_switch: None,
        };
        let waits_for_observed = !self.plan.until.is_empty();
        loop {
            if waits_for_observed && state.observed.is_empty() {
                return Ok(Ended::ByItself);
            }
            let stops = [Some(failed), until];
            let Some(woken) = self.wait(&state, stops)? else { continue };
            if woken.contains(&Wake::Stop) || state.end_at.is_some_and(|at| at <= Instant::now()) {
                return Ok(Ended::ByUs);
            }
            if woken.contains(&Wake::CommandEnded) {
                return Ok(Ended::ByItself);
            }
            let mut index = 0..;
            state.observed.retain(|_| !index.next().is_some_and(|at| woken.contains(&Wake::TaskEnded(at))));
            if woken.contains(&Wake::Switched) {
                self.switched(&mut state);
            }
            if woken.contains(&Wake::SwitchRequested) {
                self.forward_switch_request();
            }
            if state.enable_at.is_some_and(|at| at <= Instant::now()) {
                state.enable_at = None;
                self.events.enable(false).map_err(system("enable events"))?;
                self.begin_accounts();
            }
            if self.execute_commands(&mut state) {
                return Ok(Ended::ByUs);
            }
        }
    }

    /// Turns the events on, starts the command and names the file.
    fn begin(&mut self) -> Result<(), RecordError> {
        if self.plan.options.delay.is_none() && !self.plan.starts_on_exec() {
            self.events.enable(false).map_err(system("enable events"))?;
        }
        if self.plan.options.delay.is_none() && self.plan.observed.kind != TargetKind::Command {
            self.begin_accounts();
        }
        // After the kernel's events, as they end before those: the kernel's records cover all the
        // time of a program's event.
        if let Some(user_events) = &mut self.user_events {
            let failed = |why| system("begin the events of the program")(io::Error::other(why));
            user_events.begin().map_err(failed)?;
        }
        if let Some(workload) = &mut self.workload {
            workload.start().map_err(|source| {
                let name = self.plan.command.first();
                let command = name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
                RecordError::Command { command, source }
            })?;
        }
        if let Some(Err(error)) = self.naming.as_ref().map(output::publish) {
            if let Some(workload) = &self.workload {
                workload.signal(SIGTERM);
            }
            return Err(error.into());
        }
        Ok(())
    }

    /// Waits for anything to happen; `None` if a signal interrupted it.
    fn wait(
        &self,
        state: &LoopState,
        stops: [Option<BorrowedFd<'_>>; 2],
    ) -> Result<Option<Vec<Wake>>, RecordError> {
        let mut fds: Vec<(Wake, BorrowedFd<'_>)> = Vec::new();
        fds.extend(stops.into_iter().flatten().map(|fd| (Wake::Stop, fd)));
        let command = self.workload.as_ref().map(|workload| workload.ended_fd());
        fds.extend(command.map(|fd| (Wake::CommandEnded, fd)));
        let tasks = state.observed.iter().enumerate();
        fds.extend(tasks.map(|(index, fd)| (Wake::TaskEnded(index), fd.as_fd())));
        let channel = self.channel.as_ref().filter(|_| state.takes_commands());
        fds.extend(channel.and_then(ControlChannel::poll_fd).map(|fd| (Wake::Command, fd)));
        let request = self.switch_request.as_ref();
        fds.extend(request.map(|request| (Wake::Switched, request.done_notifier().fd().as_fd())));
        fds.extend(self.requests.as_ref().map(|fd| (Wake::SwitchRequested, fd.as_fd())));
        let next = state.enable_at.into_iter().chain(state.end_at).min();
        let left = next.map(|at| at.saturating_duration_since(Instant::now()));
        let mut polled: Vec<PollFd<'_>> =
            fds.iter().map(|(_, fd)| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        match poll(&mut polled, left.map(timespec).as_ref()) {
            Err(rustix::io::Errno::INTR) => return Ok(None),
            Err(errno) => return Err(system("wait")(errno.into())),
            Ok(_) => {}
        }
        let fired = fds.into_iter().zip(&polled).filter(|(_, polled)| !polled.revents().is_empty());
        Ok(Some(fired.map(|((wake, _), _)| wake).collect()))
    }

    /// Acknowledges the command that asked for a file which is complete now.
    fn switched(&mut self, state: &mut LoopState) {
        let Some(request) = &self.switch_request else { return };
        request.done_notifier().clear();
        if state.pending_switch.take_if(|number| request.is_answered(*number)).is_some()
            && let Some(channel) = &mut self.channel
        {
            channel.ack();
        }
    }

    /// Passes on what can be read from `requests`.
    fn forward_switch_request(&mut self) {
        let Some(fd) = &self.requests else { return };
        let mut many = [0; 64];
        if matches!(rustix::io::read(fd, &mut many), Ok(0) | Err(_)) {
            self.requests = None;
        } else if let Some(request) = &self.switch_request {
            request.ask();
        }
    }

    /// Executes the commands that wait in the channel, if it is time for any. Whether one of them
    /// ends the recording.
    fn execute_commands(&mut self, state: &mut LoopState) -> bool {
        let Some(channel) = self.channel.as_mut().filter(|_| state.takes_commands()) else { return false };
        match control::execute(channel, self.events, self.switch_request.is_some()) {
            Execution::All => {}
            Execution::Stop => return true,
            Execution::UpToSnapshot => {
                state.pending_switch = self.switch_request.as_ref().map(|request| request.ask());
            }
        }
        false
    }
}

/// What the loop waits for, beside what does not change.
struct LoopState {
    /// The end of the delay before events are enabled.
    enable_at: Option<Instant>,
    /// The end of the recording, if nothing ends it before.
    end_at: Option<Instant>,
    /// Of each observed task that has not ended.
    observed: Vec<OwnedFd>,
    /// The number of the request for a file that was commanded and is not complete yet: further
    /// commands wait.
    pending_switch: Option<u64>,
}

impl LoopState {
    fn takes_commands(&self) -> bool {
        self.enable_at.is_none() && self.pending_switch.is_none()
    }
}

/// Why the loop woke up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wake {
    /// The caller wants the end, or writing failed.
    Stop,
    CommandEnded,
    /// The observed task of this index.
    TaskEnded(usize),
    /// A command in the control channel.
    Command,
    /// Another file has begun.
    Switched,
    /// Another file is wanted.
    SwitchRequested,
}

/// A descriptor that becomes readable when the task ends; `None` if it is gone already.
fn ended_fd(task: i32) -> Option<OwnedFd> {
    // PIDFD_THREAD (Linux 6.9), which lets any thread be waited for.
    const THREAD: PidfdFlags = PidfdFlags::from_bits_retain(0x80);
    let pid = Pid::from_raw(task)?;
    let leader = proc::process_of(task)? == task;
    let own = pidfd_open(pid, if leader { PidfdFlags::empty() } else { THREAD });
    own.ok().or_else(|| pidfd_open(Pid::from_raw(proc::process_of(task)?)?, PidfdFlags::empty()).ok())
}
