//! Counting: one run after the other, interval after interval.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use kymo_cli::signals::Signals;
use kymo_perf::count::aggregate::{Rows, Topology, since};
use kymo_perf::count::kernel_stats::KernelStats;
use kymo_perf::hotplug::{CpuFollower, CpuGap, CpuWatch};
use kymo_perf::machine::Machine;
use kymo_perf::sys::{self, PriorityBoost, Real};
use kymo_perf::workload::{Usage, Workload};
use kymo_record::{ControlChannel, ControlCommand};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::bind::{Open, Whose};
use super::counting::{Counting, End, Run};
use super::events::Event;
use super::output::Output;
use super::tools::Times;
use super::watched::Watched;
use super::{StatArgs, say};

/// Runs everything and prints it.
pub(super) fn all(
    args: &StatArgs,
    events: &[Event],
    output: &mut Output,
    mut channel: Option<ControlChannel>,
) -> anyhow::Result<End> {
    let tasks: Vec<i32> = args.pids.iter().chain(&args.tids).copied().collect();
    let online = sys::OnlineCpus::here(&tasks);
    online.warning().iter().for_each(|warning| say(warning));
    let online = online.cpus;
    let cpus = match &args.cpus {
        Some(cpus) => {
            if let Some(cpu) = cpus.0.iter().find(|cpu| !online.contains(cpu)) {
                let online: Vec<String> = online.iter().map(u32::to_string).collect();
                bail!(
                    "No supported events found: CPU {cpu} is not online; give -C some of {}",
                    online.join(",")
                );
            }
            cpus.0.clone()
        }
        None => online,
    };
    let signals = Signals::catch()?;
    let numbers: Vec<i32> = cpus.iter().map(|&cpu| cpu as i32).collect();
    let machine = Machine::here();
    let topology = Topology::read(&machine, &numbers);
    let topology = args.per_cache.map_or(topology.clone(), |level| topology.with_caches(&machine, level));
    let names = RefCell::new(events.iter().map(|event| event.selected.name.clone()).collect());
    let counting = Counting { args, events, kernel: Arc::new(Real), cpus, topology, signals, names };
    output.unit_width = events.iter().map(|event| event.unit().len()).max().unwrap_or(0).max(4);
    let mut runs = Vec::new();
    while args.repeat == 0 || (runs.len() as u32) < args.repeat {
        if let Some(command) = &args.pre {
            aside("--pre", command)?;
        }
        let run = counting.once(output, channel.as_mut())?;
        if let End::NotStarted { .. } = run.end {
            return Ok(run.end);
        }
        if let Some(command) = &args.post {
            aside("--post", command)?;
        }
        // The signal of a terminal ends the command, too: that run ends by the command, and is the last one all the same.
        let stop = matches!(run.end, End::Signal(_)) || counting.signals.last().is_some();
        runs.push(run);
        if stop {
            break;
        }
    }
    if args.interval.is_some() && args.summary && !args.no_csv_summary {
        output.begin_summary();
    }
    if args.interval.is_none() || args.summary {
        counting.print(&runs, output)?;
    }
    Ok(runs.pop().map_or(End::Done, |run| run.end))
}

/// Runs a shell command beside the counting.
fn aside(option: &str, command: &std::ffi::OsStr) -> anyhow::Result<()> {
    let status = Command::new("sh").arg("-c").arg(command).status();
    let status = status.with_context(|| format!("failed to run sh for {option}"))?;
    if !status.success() {
        bail!("{option} {}: {status}", command.display());
    }
    Ok(())
}

impl Counting<'_> {
    /// One run.
    fn once(&self, output: &mut Output, channel: Option<&mut ControlChannel>) -> anyhow::Result<Run> {
        let args = self.args;
        if args.sync {
            rustix::fs::sync();
        }
        let mut workload = match args.command.is_empty() {
            true => None,
            false => Some(Workload::prepare_marking(&args.command).context("failed to start the command")?),
        };
        if let (Some(workload), Some(file)) = (&mut workload, &output.recording)
            && file.is_on_stdout()
        {
            workload.send_stdout_to_stderr();
        }
        // After the command was forked: it has nothing of this.
        let _preferred = PriorityBoost::begin();
        let mut open = self.open(workload.as_ref().map(Workload::pid))?;
        if args.verbose > 0 {
            self.tell(&open);
        }
        let delay = args.delay.unwrap_or(0);
        let by_exec = open.free.is_none() && open.parts.iter().all(|part| part.counters.starts_by_itself());
        // What is counted while events are enabled and disabled one after the other belongs to the time that is told: a
        // command counts until it ends, all else until its events are disabled.
        let ends_by_itself = matches!(open.accounts, Whose::Cgroup(_) | Whose::Nobody) && !args.in_cgroups();
        let before = open.accounts.read();
        let mut begin = Instant::now();
        if delay == 0 && !by_exec {
            open.enable()?;
        }
        if ends_by_itself {
            begin = Instant::now();
        }
        if let Some(workload) = &mut workload
            && let Err(source) = workload.start()
        {
            let command = args.command[0].to_string_lossy().into_owned();
            let end = End::NotStarted { command, source };
            return Ok(Run { rows: Vec::new(), elapsed_ns: 0, usage: None, accounts: before, end });
        }
        open.begun();
        if delay != 0 {
            say("Events disabled");
        }
        let pending = u64::try_from(delay).ok().filter(|&ms| ms > 0).map(Duration::from_millis);
        let mut progress = Progress {
            begin,
            pending,
            intervals: Intervals { accounts: before, ..Intervals::default() },
            cpus: open.belongs_to_cpus().then(|| CpuFollower::begin(&self.cpus, args.cpus.is_some())),
            gaps: Vec::new(),
        };
        let end = self.until_end(&mut open, &mut workload, &mut progress, channel, output)?;
        let elapsed = progress.begin.elapsed();
        progress.end_cpus(&open);
        open.disable()?;
        let elapsed = if ends_by_itself { elapsed } else { progress.begin.elapsed() };
        if let Some(accounted) = open.free.as_ref().and_then(|free| free.accounted.as_ref()) {
            accounted.settle(&self.cpus);
        }
        if args.interval.is_some() && progress.pending.is_none() {
            self.tick(&open, &mut progress.intervals, elapsed, output)?;
        }
        let mut rows = open.rows(self.events.len(), args.by(), &self.topology)?;
        // A command that only says how long to count is not what is counted.
        let usage = workload.as_ref().and_then(Workload::usage).filter(|_| ends_by_itself);
        let accounts = with_usage(open.accounts.read().since(&before), usage.as_ref());
        Times::new(elapsed.as_nanos() as u64, usage.as_ref(), &accounts).fill(self.events, &mut rows);
        let unseen = self.unseen(&rows, usage.as_ref(), &accounts, matches!(end, End::Command(_)));
        unseen.iter().for_each(|difference| say(difference));
        if let Some(Err(error)) =
            open.cgroup.map(|cgroup| (drop(open.parts), drop(open.free), cgroup.remove()).2)
        {
            say(&error.to_string());
        }
        let elapsed_ns = elapsed.as_nanos() as u64;
        if let Some(mut file) = output.recording.take() {
            if args.interval.is_none() {
                file.append(self, &rows, elapsed_ns, true)?;
            }
            file.finish()?;
        }
        Ok(Run { rows, elapsed_ns, usage, accounts, end })
    }

    /// Lets a run go on to its end, and does what comes meanwhile: delay, intervals, commands.
    fn until_end(
        &self,
        open: &mut Open,
        workload: &mut Option<Workload>,
        progress: &mut Progress,
        mut channel: Option<&mut ControlChannel>,
        output: &mut Output,
    ) -> anyhow::Result<End> {
        let args = self.args;
        let watched = Watched::new(args.pids.iter().chain(&args.tids).copied());
        let started = progress.begin;
        let timeout = args.timeout.map(|ms| started + Duration::from_millis(ms));
        let mut next = args.interval().map(|interval| started + interval);
        loop {
            let enable = progress.pending.map(|delay| started + delay);
            let soonest = [enable, next, timeout].into_iter().flatten().min();
            let at_most = soonest.map(|at| at.saturating_duration_since(Instant::now()));
            self.wait(workload.as_ref(), &watched, channel.as_deref(), progress.cpus.as_ref(), at_most)?;
            progress.follow_cpus(open);
            let now = Instant::now();
            let mut ended_by = None;
            if let Some(channel) = channel.as_deref_mut()
                && obey(channel, open)?
            {
                ended_by = Some(End::Done);
            }
            if enable.is_some_and(|at| now >= at) {
                (progress.pending, progress.begin) = (None, Instant::now());
                open.enable()?;
                say("Events enabled");
            }
            if next.is_some_and(|next| now >= next) && progress.pending.is_none() {
                self.tick(open, &mut progress.intervals, progress.begin.elapsed(), output)?;
                next = args.interval().map(|interval| now + interval);
                if args.interval_count.is_some_and(|count| progress.intervals.printed >= count) {
                    ended_by = Some(End::Done);
                }
            }
            let exit = workload.as_mut().map(Workload::try_wait).transpose().context("failed to wait")?;
            if let Some(exit) = exit.flatten() {
                return Ok(ended_by.unwrap_or(End::Command(exit)));
            }
            let gone = workload.is_none() && watched.gone();
            if gone || timeout.is_some_and(|at| now >= at) {
                ended_by = Some(End::Done);
            }
            if let Some(signal) = self.signals.last() {
                ended_by = Some(End::Signal(signal));
            }
            if let Some(by) = ended_by {
                let interrupted = matches!(by, End::Signal(signal) if signal == kymo_cli::signals::SIGINT);
                if let Some(workload) = workload {
                    end_command(workload, interrupted)?;
                }
                return Ok(by);
            }
        }
    }

    /// Waits until something happens, or so long.
    fn wait(
        &self,
        workload: Option<&Workload>,
        watched: &Watched,
        channel: Option<&ControlChannel>,
        cpus: Option<&CpuFollower>,
        at_most: Option<Duration>,
    ) -> anyhow::Result<()> {
        let mut fds: Vec<BorrowedFd<'_>> = vec![self.signals.as_fd()];
        fds.extend(workload.map(Workload::ended_fd));
        if workload.is_none() {
            fds.extend(watched.alive());
        }
        fds.extend(channel.and_then(ControlChannel::poll_fd));
        fds.extend(cpus.and_then(CpuFollower::fd));
        let mut polled: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        // Threads cannot be polled on all kernels: they are looked after now and then.
        let often = (workload.is_none() && watched.needs_looks()).then_some(Duration::from_millis(100));
        let often = often.into_iter().chain(cpus.map(|_| CpuWatch::INTERVAL));
        let at_most = at_most.into_iter().chain(often).min();
        let at_most = at_most.map(Timespec::try_from).transpose().context("failed to wait")?;
        match poll(&mut polled, at_most.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("failed to wait"),
        }
        self.signals.clear();
        Ok(())
    }

    /// Prints what came since the last interval.
    fn tick(
        &self,
        open: &Open,
        state: &mut Intervals,
        at: Duration,
        output: &mut Output,
    ) -> anyhow::Result<()> {
        let rows = open.rows(self.events.len(), self.args.by(), &self.topology)?;
        let time_ns = at.as_nanos() as u64;
        if let Some(file) = &mut output.recording {
            file.append(self, &rows, time_ns, false)?;
        }
        let mut fresh = since(&rows, &state.rows);
        let elapsed = time_ns.saturating_sub(state.time_ns) as f64;
        let accounts = open.accounts.read();
        let now = accounts.since(&state.accounts);
        Times::new(elapsed as u64, None, &now).fill(self.events, &mut fresh);
        state.accounts = accounts;
        let runs = [Run {
            rows: fresh,
            elapsed_ns: elapsed as u64,
            usage: None,
            accounts: KernelStats::default(),
            end: End::Done,
        }];
        let lines = self.lines(&runs, Some(time_ns));
        (state.rows, state.time_ns, state.printed) = (rows, time_ns, state.printed + 1);
        output.lines(&lines)
    }
}

/// What wait4 tells of the command where its cgroup does not.
fn with_usage(accounts: KernelStats, usage: Option<&Usage>) -> KernelStats {
    let Some(usage) = usage else { return accounts };
    KernelStats {
        peak_bytes: accounts.peak_bytes.or(Some(usage.peak_bytes)),
        minor_faults: accounts.minor_faults.or(Some(usage.minor_faults)),
        major_faults: accounts.major_faults.or(Some(usage.major_faults)),
        voluntary_switches: accounts.voluntary_switches.or(Some(usage.voluntary_switches)),
        involuntary_switches: accounts.involuntary_switches.or(Some(usage.involuntary_switches)),
        read_bytes: accounts.read_bytes.or(Some(usage.read_bytes)),
        written_bytes: accounts.written_bytes.or(Some(usage.written_bytes)),
        ..accounts
    }
}

/// What changes while a run goes on.
struct Progress {
    /// When counting began: at the start, or when the delay was over.
    begin: Instant,
    /// So long after the start the events are to be enabled.
    pending: Option<Duration>,
    intervals: Intervals,
    /// Where the events are those of CPUs.
    cpus: Option<CpuFollower>,
    /// Times in which a CPU was not counted.
    gaps: Vec<CpuGap>,
}

impl Progress {
    /// Goes on counting on CPUs that have come back.
    fn follow_cpus(&mut self, open: &Open) {
        let begin = self.begin;
        let Some(cpus) = &mut self.cpus else { return };
        let gaps = cpus.follow(&mut || begin.elapsed().as_nanos() as u64, &mut |cpu| open.reopen(cpu));
        self.gaps.extend(gaps);
    }

    /// Tells which CPUs were not counted for a time.
    fn end_cpus(&mut self, open: &Open) {
        self.follow_cpus(open);
        let begin = self.begin;
        let mut now_ns = || begin.elapsed().as_nanos() as u64;
        self.gaps.extend(self.cpus.take().map(|cpus| cpus.finish(&mut now_ns)).unwrap_or_default());
        self.gaps.iter().for_each(|gap| say(&gap.to_string()));
    }
}

/// What was printed so far.
#[derive(Default)]
struct Intervals {
    rows: Rows,
    /// The kernel's accounts at the last one.
    accounts: KernelStats,
    time_ns: u64,
    printed: u64,
}

/// Does what came over the control channel. Whether counting is to end.
fn obey(channel: &mut ControlChannel, open: &mut Open) -> anyhow::Result<bool> {
    let mut stop = false;
    for command in channel.take() {
        match command {
            ControlCommand::Enable(None) => {
                open.enable()?;
                say("Events enabled");
            }
            ControlCommand::Disable(None) => {
                open.disable()?;
                say("Events disabled");
            }
            ControlCommand::Enable(Some(name)) => switch(open, &name, true)?,
            ControlCommand::Disable(Some(name)) => switch(open, &name, false)?,
            ControlCommand::Ping => {}
            ControlCommand::Stop => stop = true,
            _ => say("ignored: a command that is for recordings"),
        }
        channel.ack();
    }
    Ok(stop)
}

fn switch(open: &Open, name: &str, on: bool) -> anyhow::Result<()> {
    let counts = open.parts.iter().map(|part| part.counters.switch(name, on));
    let found = counts.sum::<io::Result<usize>>().with_context(|| format!("failed to switch {name}"))?;
    if found == 0 {
        say(&format!("ignored: there is no event {name}"));
    }
    Ok(())
}

/// How long a command that got the terminal's interrupt may take to end by itself.
const INTERRUPT_GRACE: Duration = Duration::from_secs(1);
/// How long a command may take to end after SIGTERM, before SIGKILL.
const TERM_GRACE: Duration = Duration::from_secs(5);

/// Ends the command: with SIGTERM, and with SIGKILL where that has no effect. `interrupted`: the
/// terminal has sent its interrupt to the command, too, which first gets time to end by itself.
fn end_command(workload: &mut Workload, interrupted: bool) -> anyhow::Result<()> {
    if interrupted && ends_within(workload, INTERRUPT_GRACE)? {
        return Ok(());
    }
    if workload.try_wait().context("failed to wait for the command")?.is_none() {
        workload.signal(kymo_cli::signals::SIGTERM);
    }
    if !ends_within(workload, TERM_GRACE)? {
        say(&format!(
            "the command (process {}) did not end within {} seconds after SIGTERM; it gets SIGKILL",
            workload.pid(),
            TERM_GRACE.as_secs()
        ));
        workload.signal(rustix::process::Signal::KILL.as_raw());
        workload.wait().context("failed to wait for the command")?;
    }
    Ok(())
}

/// Waits for the command's end, at most for `grace`. Whether it has ended.
fn ends_within(workload: &mut Workload, grace: Duration) -> anyhow::Result<bool> {
    let until = Instant::now() + grace;
    while workload.try_wait().context("failed to wait for the command")?.is_none() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        let fd = workload.ended_fd();
        let time = Timespec::try_from(left).context("failed to wait for the command")?;
        // An error of poll, such as a signal, only makes the loop look again.
        let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&time));
    }
    Ok(true)
}
