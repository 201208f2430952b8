//! Counting: one run after the other, interval after interval, and what is printed of it.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use kymo_perf::cgroup::{self, OwnCgroup};
use kymo_perf::count::accounted::{self, Accounted};
use kymo_perf::count::accounting::Accounts;
use kymo_perf::count::aggregate::{self, By, Place, Row, Topology};
use kymo_perf::count::{Binding, Cell, Count, Counters};
use kymo_perf::evlist::{Note, OpenError, Request, Targets};
use kymo_perf::explain::{self, Attempt};
use kymo_perf::machine::Machine;
use kymo_perf::sys::{self, Kernel, Real, attr_zeroed};
use kymo_perf::workload::{Exit, Usage, Workload};
use kymo_perf::{caps, proc};
use kymo_record::{Channel, ControlCommand};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::events::Event;
use super::line::Line;
use super::output::{Form, Output};
use super::repeat::Series;
use super::{StatArgs, accounts, say};

/// How it all ended.
pub(super) enum End {
    /// The command did.
    Command(Exit),
    /// A signal to us.
    Signal(i32),
    /// The command could not be executed.
    NotStarted { command: String, source: io::Error },
    /// What was counted ended, or its time was over.
    Done,
}

/// What one run gave.
struct Run {
    /// By event: rows, or `None` if the machine does not have it.
    rows: Vec<Option<Vec<Row>>>,
    elapsed_ns: u64,
    usage: Option<Usage>,
    accounts: Accounts,
    end: End,
}

/// What stays the same over all runs.
struct Counting<'a> {
    args: &'a StatArgs,
    events: &'a [Event],
    kernel: Arc<dyn Kernel>,
    cpus: Vec<u32>,
    topology: Topology,
    until: UnixStream,
    signalled: Arc<AtomicUsize>,
    /// The events' names, as they were opened: an ordinary user gets user mode only.
    names: RefCell<Vec<String>>,
}

/// Runs everything and prints it.
pub(super) fn all(
    args: &StatArgs,
    events: &[Event],
    output: &mut Output,
    mut channel: Option<Channel>,
) -> anyhow::Result<End> {
    let online = sys::online_cpus();
    let cpus = match &args.cpus {
        Some(cpus) => {
            if let Some(cpu) = cpus.0.iter().find(|cpu| !online.contains(cpu)) {
                bail!("CPU {cpu} is not online; there are {online:?}");
            }
            cpus.0.clone()
        }
        None => online,
    };
    let (until, told) = UnixStream::pair().context("failed to make a socket pair")?;
    until.set_nonblocking(true).context("failed to make a socket pair")?;
    let signalled = Arc::new(AtomicUsize::new(0));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register_usize(signal, Arc::clone(&signalled), signal as usize)
            .and_then(|_| signal_hook::low_level::pipe::register(signal, told.try_clone()?))
            .context("failed to catch signals")?;
    }
    let numbers: Vec<i32> = cpus.iter().map(|&cpu| cpu as i32).collect();
    let topology = Topology::read(&Machine::here(), &numbers);
    let names = RefCell::new(events.iter().map(|event| event.selected.name.clone()).collect());
    let counting = Counting { args, events, kernel: Arc::new(Real), cpus, topology, until, signalled, names };
    output.unit_width = events.iter().map(|event| unit(event).len()).max().unwrap_or(0).max(4);
    let mut runs = Vec::new();
    let mut last = End::Done;
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
        let stop = matches!(run.end, End::Signal(_));
        runs.push(run);
        if stop {
            break;
        }
    }
    if args.interval.is_none() || args.summary {
        counting.print(&runs, output)?;
    }
    if let Some(run) = runs.pop() {
        last = run.end;
    }
    Ok(last)
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

fn is_clock(event: &Event) -> bool {
    super::derived::Role::of(&event.selected.attr) == super::derived::Role::Clock
}

/// The unit that the event's counts are printed in.
fn unit(event: &Event) -> &str {
    match &event.selected.unit {
        _ if is_clock(event) => "msec",
        Some(unit) => &unit.name,
        None => "",
    }
}

/// By what a count is multiplied to be in that unit.
fn scale(event: &Event) -> f64 {
    if is_clock(event) { 1e-6 } else { event.selected.unit.as_ref().map_or(1.0, |unit| unit.scale) }
}

/// `chosen`: the events that are opened together, by index; a leader is among them.
fn request(event: &Event, index: usize, chosen: &[usize], single: bool) -> Request {
    let selected = &event.selected;
    let mut attr = selected.attr.to_raw();
    if attr.config3 == 0 {
        attr.size = attr_zeroed().size;
    }
    Request {
        leader: (selected.leader != index)
            .then(|| chosen.iter().position(|&other| other == selected.leader))
            .flatten(),
        weak: selected.weak,
        cpus: selected.cpus.clone(),
        precise_max: selected.precise_max,
        alone: single,
        ..Request::new(selected.name.clone(), attr)
    }
}

/// Events that are bound alike, and their counters.
struct Part {
    /// Their indices.
    events: Vec<usize>,
    counters: Counters,
}

/// Events that are counted without events at switches.
struct Free {
    /// Their indices.
    events: Vec<usize>,
    /// `None` if it failed: they are not counted then.
    accounted: Option<Accounted>,
}

/// The counters of a run.
struct Open {
    parts: Vec<Part>,
    /// Before the cgroup, which can go when it has.
    free: Option<Free>,
    cgroup: Option<OwnCgroup>,
    /// Whose accounts are read.
    accounts: Whose,
}

/// Whose accounts are read.
enum Whose {
    Cgroup(PathBuf),
    Processes(Vec<i32>),
    Machine,
    Nobody,
}

impl Whose {
    fn read(&self) -> Accounts {
        let proc = Path::new("/proc");
        match self {
            Whose::Cgroup(path) => Accounts::of_cgroup(path),
            Whose::Processes(pids) => {
                let each = pids.iter().map(|&pid| Accounts::of_process(proc, pid));
                each.fold(Accounts::default(), |sum, one| sum.plus(&one))
            }
            Whose::Machine => Accounts::of_machine(proc),
            Whose::Nobody => Accounts::default(),
        }
    }
}

impl Open {
    fn enable(&mut self) -> anyhow::Result<()> {
        let accounted = self.free.as_mut().and_then(|free| free.accounted.as_mut());
        let on = accounted.map_or(Ok(()), Accounted::enable);
        on.and_then(|()| self.parts.iter().try_for_each(|part| part.counters.enable()))
            .context("failed to enable the events")
    }

    /// The command has executed.
    fn begun(&mut self) {
        let Some(free) = &mut self.free else { return };
        if let Some(Err(error)) = free.accounted.as_mut().map(Accounted::begun) {
            say(&format!(
                "the kernel's programs did not see the command begin ({error}), so nothing is counted by them; count with --source perf"
            ));
            free.accounted = None;
        }
    }

    fn disable(&self) -> anyhow::Result<()> {
        self.parts.iter().try_for_each(|part| part.counters.disable()).context("failed to disable the events")
    }

    fn rows(&self, count: usize, by: By, topology: &Topology) -> anyhow::Result<Vec<Option<Vec<Row>>>> {
        let mut rows = vec![None; count];
        for part in &self.parts {
            let reading = part.counters.read().context("failed to read the counters")?;
            for (&event, cells) in part.events.iter().zip(reading) {
                rows[event] = cells.map(|cells| aggregate::rows(&cells, by, topology));
            }
        }
        if let Some(free) = &self.free {
            let cells = free.accounted.as_ref().map(Accounted::read).unwrap_or_default();
            let cells = cells.iter().map(Vec::as_slice).chain(std::iter::repeat(&[] as &[Cell]));
            for (&event, cells) in free.events.iter().zip(cells) {
                rows[event] = Some(aggregate::rows(cells, by, topology));
            }
        }
        Ok(rows)
    }
}

impl Counting<'_> {
    fn tasks(&self) -> anyhow::Result<Vec<i32>> {
        let mut tasks = Vec::new();
        for &pid in &self.args.pids {
            let found = proc::tasks(pid);
            tasks.extend(found.map_err(|_| {
                anyhow::anyhow!("there is no process {pid} (any more); `ps -p {pid}` would show it")
            })?);
        }
        for &tid in &self.args.tids {
            if proc::process_of(tid).is_none() {
                bail!("there is no thread {tid} (any more); `ps -Lp PID` lists the threads of a process");
            }
            tasks.push(tid);
        }
        tasks.sort_unstable();
        tasks.dedup();
        Ok(tasks)
    }

    /// Opens the counters of a run; `child` is the command that waits for its exec.
    fn open(&self, child: Option<i32>) -> anyhow::Result<Open> {
        let args = self.args;
        let follow = !args.no_inherit;
        let own_tasks = !args.pids.is_empty() || !args.tids.is_empty();
        if own_tasks {
            let binding = Binding::Tasks { inherit: follow, on_exec: false };
            let mut processes: Vec<i32> = args.pids.clone();
            processes.extend(args.tids.iter().filter_map(|&tid| proc::process_of(tid)));
            let parts = self.parts(&self.every(), |_| Ok((Targets::per_thread(self.tasks()?), binding)))?;
            return Ok(Open { parts, free: None, cgroup: None, accounts: Whose::Processes(processes) });
        }
        if args.in_cgroups() {
            let mut named = None;
            let parts = self.parts(&self.every(), |name| match name {
                Some(name) => {
                    let found = cgroup::existing(name);
                    let (path, directory) = found.map_err(|error| {
                        anyhow::anyhow!("{error}; a cgroup is named by its path below the place where the hierarchy is mounted")
                    })?;
                    named.get_or_insert(path);
                    Ok((Targets::cgroup(directory, &self.cpus), Binding::Cgroup { child: None }))
                }
                None => Ok((Targets::system(&self.cpus), Binding::Cpus)),
            })?;
            let one = args.cgroups.len() + args.for_each_cgroup.len() == 1;
            let accounts = named.filter(|_| one).map_or(Whose::Nobody, Whose::Cgroup);
            return Ok(Open { parts, free: None, cgroup: None, accounts });
        }
        if args.wide() {
            let everyone = || -> anyhow::Result<Vec<i32>> {
                let processes = proc::processes().context("failed to list /proc")?;
                Ok(processes.iter().flat_map(|&pid| proc::tasks(pid).unwrap_or_default()).collect())
            };
            let parts = self.parts(&self.every(), |_| {
                if args.per_thread {
                    let binding = Binding::Tasks { inherit: follow, on_exec: false };
                    return Ok((Targets::per_thread(everyone()?), binding));
                }
                Ok((Targets::system(&self.cpus), Binding::Cpus))
            })?;
            return Ok(Open { parts, free: None, cgroup: None, accounts: Whose::Machine });
        }
        let child = child.context("nothing to count in")?;
        self.of_command(child, follow)
    }

    /// A command: in a cgroup of its own where that is permitted, because then its threads and children cost nothing; else by inheritance.
    fn of_command(&self, child: i32, follow: bool) -> anyhow::Result<Open> {
        let args = self.args;
        let by_cpu = !matches!(args.by(), By::All);
        let asked = args.scope.as_deref();
        let mut why_not = "children are not to be followed".to_owned();
        if asked != Some("inherit") && follow && !self.events.is_empty() {
            match self.in_own_cgroup(child) {
                Ok(open) => return Ok(open),
                Err(error) => why_not = format!("{error:#}"),
            }
            if asked == Some("cgroup") {
                bail!("--scope cgroup is not possible here: {why_not}");
            }
            if args.verbose {
                say(&format!("not in a cgroup of its own: {why_not}"));
            }
        }
        if by_cpu {
            bail!("sums by CPU of a command need a cgroup of its own, on each CPU: {why_not}");
        }
        let on_exec = args.delay.unwrap_or(0) == 0;
        let binding = Binding::Tasks { inherit: follow, on_exec };
        let parts = self.parts(&self.every(), |_| Ok((Targets::per_thread(vec![child]), binding)))?;
        Ok(Open { parts, free: None, cgroup: None, accounts: Whose::Nobody })
    }

    fn in_own_cgroup(&self, child: i32) -> anyhow::Result<Open> {
        let cgroup = OwnCgroup::create()?;
        let delayed = self.args.delay.unwrap_or(0) != 0;
        let free = self.free(&cgroup, child);
        let rest: Vec<usize> = match &free {
            Some(free) => self.every().into_iter().filter(|event| !free.events.contains(event)).collect(),
            None => self.every(),
        };
        let binding = Binding::Cgroup { child: (!delayed).then_some(child) };
        let parts = self.parts(&rest, |_| Ok((Targets::cgroup(cgroup.fd(), &self.cpus), binding)))?;
        cgroup.add(child)?;
        let accounts = Whose::Cgroup(cgroup.path().to_owned());
        Ok(Open { parts, free, cgroup: Some(cgroup), accounts })
    }

    /// Counting that costs nothing at a switch, for those events that permit it, where the kernel does.
    fn free(&self, cgroup: &OwnCgroup, child: i32) -> Option<Free> {
        let args = self.args;
        let delayed = args.delay.unwrap_or(0) != 0;
        if args.source == "perf" || delayed || args.control.is_some() || !matches!(args.by(), By::All) {
            return None;
        }
        let every = self.every();
        let requests: Vec<Request> =
            every.iter().map(|&index| request(&self.events[index], index, &every, false)).collect();
        let can = accounted::which(&requests);
        let events: Vec<usize> = every.into_iter().filter(|&index| can[index]).collect();
        if events.is_empty() {
            return None;
        }
        let requests: Vec<Request> = events.iter().map(|&index| requests[index].clone()).collect();
        match Accounted::open(&self.kernel, &requests, cgroup, child, &self.cpus) {
            Ok(accounted) => Some(Free { events, accounted: Some(accounted) }),
            Err(error) => {
                if args.verbose {
                    say(&format!("counting all by events of the cgroup: {error}"));
                }
                None
            }
        }
    }

    /// The indices of all events.
    fn every(&self) -> Vec<usize> {
        (0..self.events.len()).collect()
    }

    /// Opens the chosen events, those of the same cgroup together; `bind` says where to those of a cgroup.
    fn parts(
        &self,
        chosen: &[usize],
        mut bind: impl FnMut(Option<&str>) -> anyhow::Result<(Targets, Binding)>,
    ) -> anyhow::Result<Vec<Part>> {
        let mut parts = Vec::new();
        for chosen in chosen.chunk_by(|&a, &b| self.events[a].cgroup == self.events[b].cgroup) {
            let name = self.events[chosen[0]].cgroup.as_deref();
            let single = self.args.control.is_some();
            let requests: Vec<Request> =
                chosen.iter().map(|&index| request(&self.events[index], index, chosen, single)).collect();
            let (targets, binding) = bind(name)?;
            let descriptors = requests.len() * targets.cpus.len() * targets.tasks.len();
            let opened = Counters::open(&self.kernel, requests.clone(), targets, binding);
            let counters = opened.map_err(|error| refused(&error, &requests, descriptors))?;
            for (at, &index) in chosen.iter().enumerate() {
                if let Some(request) = counters.request(at) {
                    self.names.borrow_mut()[index].clone_from(&request.name);
                }
            }
            // What the name says needs no words.
            let in_name = |note: &Note| matches!(note, Note::UserOnly { .. });
            let notable = |note: &&Note| note.is_notable() && !in_name(note);
            for note in counters.notes().iter().filter(|note| notable(note) || self.args.verbose) {
                say(&note.to_string());
            }
            parts.push(Part { events: chosen.to_vec(), counters });
        }
        Ok(parts)
    }

    fn signal(&self) -> Option<i32> {
        Some(self.signalled.load(Ordering::Relaxed) as i32).filter(|&signal| signal != 0)
    }

    /// One run.
    fn once(&self, output: &mut Output, mut channel: Option<&mut Channel>) -> anyhow::Result<Run> {
        let args = self.args;
        let mut workload = match args.command.is_empty() {
            true => None,
            false => Some(Workload::prepare(&args.command).context("failed to start the command")?),
        };
        let mut open = self.open(workload.as_ref().map(Workload::pid))?;
        if args.verbose {
            self.tell(&open);
        }
        let delay = args.delay.unwrap_or(0);
        let by_exec = open.free.is_none() && open.parts.iter().all(|part| part.counters.starts_by_itself());
        if delay == 0 && !by_exec {
            open.enable()?;
        }
        let before = open.accounts.read();
        let mut begin = Instant::now();
        if let Some(workload) = &mut workload
            && let Err(source) = workload.start()
        {
            let command = args.command[0].to_string_lossy().into_owned();
            let end = End::NotStarted { command, source };
            return Ok(Run { rows: Vec::new(), elapsed_ns: 0, usage: None, accounts: before, end });
        }
        open.begun();
        let mut pending = u64::try_from(delay).ok().filter(|&ms| ms > 0).map(Duration::from_millis);
        if delay != 0 {
            say("Events disabled");
        }
        let watched = self.watched();
        let timeout = args.timeout.map(Duration::from_millis);
        let interval = args.interval();
        let started = begin;
        let mut next = interval.map(|interval| started + interval);
        let mut state = Intervals::default();
        let mut end = None;
        let mut ended_by = None;
        while end.is_none() {
            let now = Instant::now();
            let deadlines =
                [pending.map(|delay| started + delay), next, timeout.map(|timeout| started + timeout)];
            let soonest = deadlines.iter().flatten().min().map(|at| at.saturating_duration_since(now));
            self.wait(workload.as_ref(), &watched, channel.as_deref(), soonest)?;
            let now = Instant::now();
            if let Some(channel) = channel.as_deref_mut()
                && obey(channel, &mut open)?
            {
                ended_by = Some(End::Done);
            }
            if pending.is_some_and(|delay| now >= started + delay) {
                open.enable()?;
                say("Events enabled");
                (pending, begin) = (None, Instant::now());
            }
            if next.is_some_and(|next| now >= next) && pending.is_none() {
                self.tick(&open, &mut state, begin.elapsed(), output)?;
                next = interval.map(|interval| now + interval);
                if args.interval_count.is_some_and(|count| state.printed >= count) {
                    ended_by = Some(End::Done);
                }
            }
            if let Some(exit) =
                workload.as_mut().map(Workload::try_wait).transpose().context("failed to wait")?.flatten()
            {
                end = Some(ended_by.take().unwrap_or(End::Command(exit)));
                break;
            }
            if workload.is_none() && watched.gone() {
                end = Some(End::Done);
            }
            if timeout.is_some_and(|timeout| now >= started + timeout) {
                ended_by = Some(End::Done);
            }
            if let Some(signal) = self.signal() {
                ended_by = Some(End::Signal(signal));
            }
            if let Some(by) = ended_by.take() {
                let asked_by_signal =
                    matches!(by, End::Signal(signal) if signal == signal_hook::consts::SIGINT);
                if let Some(workload) = &mut workload {
                    end_command(workload, asked_by_signal)?;
                }
                end = Some(by);
            }
        }
        let elapsed = begin.elapsed();
        open.disable()?;
        if let Some(accounted) = open.free.as_ref().and_then(|free| free.accounted.as_ref()) {
            accounted.settle(&self.cpus);
        }
        if interval.is_some() && pending.is_none() {
            self.tick(&open, &mut state, elapsed, output)?;
        }
        let rows = open.rows(self.events.len(), args.by(), &self.topology)?;
        // A command that only says how long to count is not what is counted.
        let counted = matches!(open.accounts, Whose::Cgroup(_) | Whose::Nobody) && !args.in_cgroups();
        let usage = workload.as_ref().and_then(Workload::usage).filter(|_| counted);
        let accounts = with_usage(open.accounts.read().since(&before), usage.as_ref());
        if let Some(Err(error)) =
            open.cgroup.map(|cgroup| (drop(open.parts), drop(open.free), cgroup.remove()).2)
        {
            say(&error.to_string());
        }
        let end = end.unwrap_or(End::Done);
        Ok(Run { rows, elapsed_ns: elapsed.as_nanos() as u64, usage, accounts, end })
    }

    /// What was decided.
    fn tell(&self, open: &Open) {
        match &open.cgroup {
            Some(cgroup) => {
                say(&format!("counting in the command's own cgroup {}, on each CPU", cgroup.path().display()))
            }
            None => say("counting by events of tasks or CPUs"),
        }
        let free = open.free.as_ref().and_then(|free| free.accounted.as_ref());
        let descriptors: usize = open.parts.iter().map(|part| part.counters.descriptors()).sum();
        say(&format!("{} event descriptors", descriptors + free.map_or(0, Accounted::descriptors)));
        if let Some(free) = &open.free {
            let names: Vec<&str> =
                free.events.iter().map(|&index| self.events[index].selected.name.as_str()).collect();
            say(&format!(
                "read from the kernel's accounts, at no cost per switch: {} (--source perf counts them by events)",
                names.join(", ")
            ));
        }
        let at_exec = open.cgroup.is_some() && self.args.delay.unwrap_or(0) == 0;
        for part in &open.parts {
            let some = (0..part.events.len()).any(|at| part.counters.has(at));
            if some && at_exec && !part.counters.knows_before_exec() {
                say(
                    "what the command's process did before its exec is counted, too: this kernel or these events do not tell it apart",
                );
            }
            let absent = part.events.iter().enumerate().filter(|(at, _)| !part.counters.has(*at));
            for (_, &index) in absent {
                say(&format!("{} is not supported here", self.events[index].selected.name));
            }
        }
    }

    /// The processes whose end ends the counting.
    fn watched(&self) -> Watched {
        let ids = self.args.pids.iter().chain(&self.args.tids).copied();
        let each = ids.map(|id| {
            let fd = Pid::from_raw(id).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
            (id, fd)
        });
        Watched(each.collect())
    }

    /// Waits until something happens, or so long.
    fn wait(
        &self,
        workload: Option<&Workload>,
        watched: &Watched,
        channel: Option<&Channel>,
        at_most: Option<Duration>,
    ) -> anyhow::Result<()> {
        let mut fds: Vec<BorrowedFd<'_>> = vec![self.until.as_fd()];
        fds.extend(workload.map(Workload::ended_fd));
        if workload.is_none() {
            fds.extend(watched.alive());
        }
        fds.extend(channel.and_then(Channel::poll_fd));
        let mut polled: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        // Threads cannot be polled on all kernels: they are looked after now and then.
        let often = (workload.is_none() && watched.needs_looks()).then_some(Duration::from_millis(100));
        let at_most = at_most.into_iter().chain(often).min();
        let at_most = at_most
            .map(|time| Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) });
        match poll(&mut polled, at_most.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("failed to wait"),
        }
        let mut bytes = [0; 64];
        // What woke us is in `signalled`.
        let _ = rustix::io::read(&self.until, &mut bytes);
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
        let fresh = state.since(&rows);
        let time_ns = at.as_nanos() as u64;
        let elapsed = time_ns.saturating_sub(state.time_ns) as f64;
        let runs = [Run {
            rows: fresh,
            elapsed_ns: elapsed as u64,
            usage: None,
            accounts: Accounts::default(),
            end: End::Done,
        }];
        let lines = self.lines(&runs, Some(time_ns));
        (state.rows, state.time_ns, state.printed) = (rows, time_ns, state.printed + 1);
        output.lines(&lines)
    }

    /// All lines about some runs, in perf's order.
    fn lines(&self, runs: &[Run], time_ns: Option<u64>) -> Vec<Line> {
        let names = self.names.borrow();
        super::line::lines(
            self.events.iter().zip(names.iter()).map(|(event, name)| super::line::Counted {
                attr: &event.selected.attr,
                name,
                unit: unit(event),
                scale: scale(event),
                cgroup: event.cgroup.as_deref(),
            }),
            &runs.iter().map(|run| (run.rows.as_slice(), run.elapsed_ns)).collect::<Vec<_>>(),
            self.args.by(),
            (self.args.repeat != 1 && time_ns.is_none()).then_some(()),
            time_ns,
        )
    }

    /// Prints the result.
    fn print(&self, runs: &[Run], output: &mut Output) -> anyhow::Result<()> {
        let lines = self.lines(runs, None);
        let sum = runs.iter().map(|run| run.accounts).reduce(|a, b| mean_later(&a, &b)).unwrap_or_default();
        if output.form != Form::Table {
            output.lines(&lines)?;
            if self.args.accounting {
                output.lines(&accounts::lines(&sum, None, (self.args.repeat != 1).then_some(0.0)))?;
            }
            return Ok(());
        }
        output.text(&format!(
            "\n Performance counter stats for {}{}:\n\n",
            self.subject(),
            self.times(runs.len())
        ))?;
        output.lines(&lines)?;
        let mut text = String::from("\n");
        let mut elapsed = Series::default();
        runs.iter().for_each(|run| elapsed.push(run.elapsed_ns as f64 / 1e9));
        text += &super::footer::footer(
            &elapsed,
            self.args.repeat != 1,
            self.args.table,
            runs.last().and_then(|run| run.usage),
        );
        if self.args.repeat != 1 {
            text += &self.spread(runs, &elapsed);
        }
        if !self.args.no_accounting {
            let accounted = accounts::table(&sum);
            if !accounted.is_empty() {
                text += &format!("{accounted}\n");
            }
        }
        text.push('\n');
        output.text(&text)
    }

    fn subject(&self) -> String {
        let args = self.args;
        let list = |ids: &[i32]| ids.iter().map(i32::to_string).collect::<Vec<_>>().join(",");
        if !args.pids.is_empty() {
            format!("process id '{}'", list(&args.pids))
        } else if !args.tids.is_empty() {
            format!("thread id '{}'", list(&args.tids))
        } else if let Some(cpus) = args.cpus.as_ref().filter(|_| !args.all) {
            let cpus: Vec<i32> = cpus.0.iter().map(|&cpu| cpu as i32).collect();
            format!("'CPU(s) {}'", list(&cpus))
        } else if args.wide() {
            "'system wide'".into()
        } else {
            let words: Vec<_> = args.command.iter().map(|word| word.to_string_lossy()).collect();
            format!("'{}'", words.join(" "))
        }
    }

    fn times(&self, runs: usize) -> String {
        if self.args.repeat == 1 { String::new() } else { format!(" ({runs} runs)") }
    }

    /// What the mean does not tell of several runs.
    fn spread(&self, runs: &[Run], elapsed: &Series) -> String {
        let mut series: Vec<(String, Series, usize)> = Vec::new();
        for (index, event) in self.events.iter().enumerate() {
            let of_run = |run: &Run| {
                let rows = run.rows.get(index)?.as_ref()?;
                let sum = rows.iter().fold(Count::default(), |sum, row| sum + row.count);
                Some(sum.scaled()? * scale(event))
            };
            let values: Option<Vec<f64>> = runs.iter().map(of_run).collect();
            if let Some(values) = values {
                let unit = unit(event);
                let name = if unit.is_empty() {
                    event.selected.name.clone()
                } else {
                    format!("{} ({unit})", event.selected.name)
                };
                series.push((name, Series(values), if scale(event) == 1.0 { 0 } else { 2 }));
            }
        }
        series.push(("elapsed (seconds)".into(), elapsed.clone(), 6));
        super::footer::spread(&series)
    }
}

/// Means of several runs would hide the largest peak: sizes are the largest, the rest is of the last run.
fn mean_later(earlier: &Accounts, later: &Accounts) -> Accounts {
    Accounts { peak_bytes: earlier.peak_bytes.max(later.peak_bytes), ..*later }
}

/// What wait4 tells of the command where its cgroup does not.
fn with_usage(accounts: Accounts, usage: Option<&Usage>) -> Accounts {
    let Some(usage) = usage else { return accounts };
    Accounts {
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

/// The processes whose end ends the counting.
struct Watched(Vec<(i32, Option<OwnedFd>)>);

impl Watched {
    fn alive(&self) -> Vec<BorrowedFd<'_>> {
        self.0.iter().filter_map(|(id, fd)| fd.as_ref().filter(|_| !is_gone(*id)).map(AsFd::as_fd)).collect()
    }

    fn needs_looks(&self) -> bool {
        self.0.iter().any(|(_, fd)| fd.is_none())
    }

    /// Whether all have ended.
    fn gone(&self) -> bool {
        !self.0.is_empty() && self.0.iter().all(|(id, _)| is_gone(*id))
    }
}

/// Whether a task has ended, waited for by its parent or not.
fn is_gone(id: i32) -> bool {
    let Ok(stat) = std::fs::read(format!("/proc/{id}/stat")) else { return true };
    let state = stat.iter().rposition(|&byte| byte == b')').and_then(|at| stat.get(at + 2).copied());
    matches!(state, Some(b'Z' | b'X') | None)
}

/// What was printed so far.
#[derive(Default)]
struct Intervals {
    rows: Vec<Option<Vec<Row>>>,
    time_ns: u64,
    printed: u64,
}

impl Intervals {
    fn since(&self, now: &[Option<Vec<Row>>]) -> Vec<Option<Vec<Row>>> {
        let before = |event: usize, place: &Place| {
            let rows = self.rows.get(event)?.as_ref()?;
            rows.iter().find(|row| row.place == *place).map(|row| row.count)
        };
        let fresh = |event: usize, row: &Row| Row {
            count: row.count.since(&before(event, &row.place).unwrap_or_default()),
            ..row.clone()
        };
        let rows = now.iter().enumerate();
        rows.map(|(event, rows)| Some(rows.as_ref()?.iter().map(|row| fresh(event, row)).collect())).collect()
    }
}

/// Does what came over the control channel. Whether counting is to end.
fn obey(channel: &mut Channel, open: &mut Open) -> anyhow::Result<bool> {
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

/// How long a command that has got our interrupt is waited for before it is ended.
const GRACE: Duration = Duration::from_secs(1);

/// Ends the command: at once, or where the terminal has interrupted it together with us, when it does not end by itself.
fn end_command(workload: &mut Workload, interrupted: bool) -> anyhow::Result<()> {
    if interrupted {
        let until = Instant::now() + GRACE;
        while workload.try_wait().context("failed to wait")?.is_none() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let fd = workload.ended_fd();
            let time = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&time));
        }
    }
    if workload.try_wait().context("failed to wait")?.is_none() {
        workload.signal(signal_hook::consts::SIGTERM);
        workload.wait().context("failed to wait for the command")?;
    }
    Ok(())
}

/// Why an event that exists cannot be counted.
fn refused(error: &OpenError, requests: &[Request], descriptors: usize) -> anyhow::Error {
    let errno = error.source.raw_os_error().unwrap_or(0);
    match Attempt::of(error, requests, Some(descriptors as u64)) {
        Some(attempt) => anyhow::anyhow!("{}", explain::explain_open(errno, &attempt, &caps::probe())),
        None => anyhow::anyhow!("{error}"),
    }
}
