//! Conducting a recording: the events on, the command begun, then waiting for the end.
use crate::channel::timespec;
use crate::control::{self, ControlChannel, Execution};
use crate::options::Delay;
use crate::output::{self, SharedNaming};
use crate::plan::Plan;
use crate::series::SwitchRequest;
use crate::session::{RecordError, system};
use crate::user_rings::UserEventControl;
use kymo_perf::evlist::Evlist;
use kymo_perf::proc;
use kymo_perf::workload::Workload;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
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
    pub(crate) plan: &'a Plan,
    pub(crate) events: &'a Evlist,
    /// Who turns the events of programs on.
    pub(crate) user_rings: Option<&'a mut Box<dyn UserEventControl + Send>>,
    pub(crate) workload: Option<&'a mut Workload>,
    /// The file's way to its name, once everything has begun.
    pub(crate) naming: Option<SharedNaming>,
    pub(crate) channel: Option<ControlChannel>,
    /// Becomes readable when another file is wanted.
    pub(crate) requests: Option<OwnedFd>,
    /// Whom to ask for it; `None`: there is one file only.
    pub(crate) ask: Option<Arc<SwitchRequest>>,
}

impl RunLoop<'_> {
    /// Until the command or what is observed ends, `until` or `failed` becomes readable, or the control channel says so.
    pub(crate) fn run(
        &mut self,
        until: Option<BorrowedFd<'_>>,
        failed: BorrowedFd<'_>,
    ) -> Result<Ended, RecordError> {
        let delay = self.plan.options.delay;
        let on_exec = self.plan.starts_on_exec() && delay.is_none();
        if !on_exec && delay.is_none() {
            self.events.enable(false).map_err(system("enable events"))?;
        }
        // Behind the kernel's, as they end before them: what the kernel has to tell of the time of a program's event is there.
        if let Some(user_rings) = &mut self.user_rings {
            let failed = |why| system("begin the events of the program")(io::Error::other(why));
            user_rings.begin().map_err(failed)?;
        }
        if let Some(workload) = &mut self.workload {
            workload.start().map_err(|source| RecordError::Command {
                command: self
                    .plan
                    .command
                    .first()
                    .map(|name| name.to_string_lossy().into_owned())
                    .unwrap_or_default(),
                source,
            })?;
        }
        if let Some(Err(error)) = self.naming.as_ref().map(output::publish) {
            if let Some(workload) = &self.workload {
                workload.signal(SIGTERM);
            }
            return Err(error.into());
        }
        let mut enable_at = match delay {
            Some(Delay::After(delay)) => Some(Instant::now() + delay),
            Some(Delay::Disabled) | None => None,
        };
        let mut observed: Vec<OwnedFd> = self.plan.until.iter().filter_map(|&task| ended_fd(task)).collect();
        let waits_for_observed = !self.plan.until.is_empty();
        // The question for a file that was commanded and is not done yet: further commands wait.
        let mut owing: Option<u64> = None;
        loop {
            if waits_for_observed && observed.is_empty() {
                return Ok(Ended::ByItself);
            }
            let mut fds = vec![PollFd::from_borrowed_fd(failed, PollFlags::IN)];
            fds.extend(until.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
            let told = fds.len();
            let command = self.workload.as_ref().map(|workload| workload.ended_fd());
            fds.extend(command.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
            let others = fds.len();
            fds.extend(observed.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
            let listening = enable_at.is_none() && owing.is_none();
            let commands = self.channel.as_ref().filter(|_| listening).and_then(ControlChannel::poll_fd);
            fds.extend(commands.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
            let answered = fds.len();
            let answer = self.ask.as_ref().map(|ask| ask.done_notifier());
            fds.extend(answer.map(|notifier| PollFd::new(notifier.fd(), PollFlags::IN)));
            let asking = fds.len();
            fds.extend(self.requests.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
            let left = enable_at.map(|at| at.saturating_duration_since(Instant::now()));
            let timeout = left.map(timespec);
            match poll(&mut fds, timeout.as_ref()) {
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => return Err(system("wait")(errno.into())),
                Ok(_) => {}
            }
            let fired: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(fds);
            if fired[..told].contains(&true) {
                return Ok(Ended::ByUs);
            }
            if fired[told..others].contains(&true) {
                return Ok(Ended::ByItself);
            }
            let mut index = others;
            observed.retain(|_| {
                index += 1;
                !fired[index - 1]
            });
            if fired[answered..asking].contains(&true)
                && let Some(ask) = &self.ask
            {
                ask.done_notifier().clear();
                if owing.take_if(|number| ask.is_answered(*number)).is_some()
                    && let Some(channel) = &mut self.channel
                {
                    channel.ack();
                }
            }
            if fired.get(asking) == Some(&true)
                && let Some(fd) = &self.requests
            {
                let mut many = [0; 64];
                if matches!(rustix::io::read(fd, &mut many), Ok(0) | Err(_)) {
                    self.requests = None;
                } else if let Some(ask) = &self.ask {
                    ask.ask();
                }
            }
            if enable_at.is_some_and(|at| at <= Instant::now()) {
                enable_at = None;
                self.events.enable(false).map_err(system("enable events"))?;
            }
            if enable_at.is_none()
                && owing.is_none()
                && let Some(channel) = &mut self.channel
            {
                match control::execute(channel, self.events, self.ask.is_some()) {
                    Execution::All => {}
                    Execution::Stop => return Ok(Ended::ByUs),
                    Execution::UpToSnapshot => owing = self.ask.as_ref().map(|ask| ask.ask()),
                }
            }
        }
    }
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
