//! From what was asked to what will be opened: everything is decided here, and can be printed before anything happens.
use crate::attr::{self, Common};
use crate::output::Output;
use kymo_perf::evlist::{self, Targets};
use kymo_perf::proc;
use kymo_perf::selector::Selected;
use kymo_perf::sys::{self, Perf};
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io;
use std::time::Duration;

/// How often events sample, unless an event says it itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// So many samples per second, but the natural period for events that have one (1 for tracepoints and breakpoints).
    Default(u64),
    /// So many samples per second.
    Frequency(u64),
    /// A sample every so many events.
    Period(u64),
}

/// How call chains are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallGraph {
    /// Not at all.
    None,
    /// By the kernel, along frame pointers.
    FramePointers,
    /// As a copy of the user stack, to be unwound later.
    Dwarf {
        /// Size of the copy: a multiple of 8, at most 65,528.
        stack_bytes: u32,
    },
}

impl CallGraph {
    /// The usual size of a stack copy.
    pub const DEFAULT_STACK_BYTES: u32 = 8192;
}

/// The clock of the recording's times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// CLOCK_REALTIME.
    Realtime,
    /// CLOCK_MONOTONIC.
    Monotonic,
    /// CLOCK_MONOTONIC_RAW.
    MonotonicRaw,
    /// CLOCK_BOOTTIME.
    Boottime,
    /// CLOCK_TAI.
    Tai,
}

impl Clock {
    /// The kernel's number.
    pub fn id(self) -> i32 {
        match self {
            Clock::Realtime => 0,
            Clock::Monotonic => 1,
            Clock::MonotonicRaw => 4,
            Clock::Boottime => 7,
            Clock::Tai => 11,
        }
    }

    /// The clock of this name, as perf spells them.
    pub fn parse(name: &str) -> Option<Clock> {
        let name = name.to_ascii_lowercase();
        Some(match name.strip_prefix("clock_").unwrap_or(&name) {
            "realtime" | "real" => Clock::Realtime,
            "monotonic" | "mono" => Clock::Monotonic,
            "monotonic_raw" | "raw" => Clock::MonotonicRaw,
            "boottime" | "boot" => Clock::Boottime,
            "tai" => Clock::Tai,
            _ => return None,
        })
    }
}

/// When sampling begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delay {
    /// This long after the start.
    After(Duration),
    /// Not by itself.
    Disabled,
}

/// Whom to observe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetSpec {
    /// A command to start; the others decide what is observed if any is given.
    pub command: Vec<OsString>,
    /// Processes.
    pub pids: Vec<i32>,
    /// Threads.
    pub tids: Vec<i32>,
    /// All processes of this user.
    pub uid: Option<u32>,
    /// Everything.
    pub all: bool,
    /// Everything on these CPUs.
    pub cpus: Vec<u32>,
    /// One ring per thread instead of one per CPU.
    pub per_thread: bool,
}

/// What to record, as asked for.
#[derive(Clone, Debug)]
pub struct Options {
    /// The events.
    pub events: Vec<Selected>,
    /// How often they sample.
    pub rate: Rate,
    /// Call chains.
    pub call_graph: CallGraph,
    /// Whom to observe.
    pub targets: TargetSpec,
    /// Follow children; `None`: yes, except for single threads.
    pub inherit: Option<bool>,
    /// Data pages of each ring, a power of two; `None`: the kernel's allowance, and smaller if that is refused.
    pub ring_pages: Option<usize>,
    /// Data addresses in samples, and data mappings.
    pub data: bool,
    /// Context switch records.
    pub switch_events: bool,
    /// Raw bytes in samples of all events (tracepoints always have them).
    pub raw: bool,
    /// The CPU in samples, also where it is not needed.
    pub sample_cpu: bool,
    /// The period in samples, also where it is fixed.
    pub period: bool,
    /// Counts and times of each event in reads.
    pub counts: bool,
    /// Take no samples, only count.
    pub no_samples: bool,
    /// When sampling begins.
    pub delay: Option<Delay>,
    /// The clock of times; `None`: the kernel's own.
    pub clock: Option<Clock>,
    /// Compress records with zstd at this level.
    pub compress: Option<i32>,
    /// Store build IDs of mapped files.
    pub build_ids: bool,
    /// Where to.
    pub output: Output,
    /// The command line, for the recording's header.
    pub cmdline: Vec<String>,
    /// Who records, for the recording's header.
    pub version: String,
}

/// Everything resolved: what will be opened, for whom, into what.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The events and targets to open. The task of a command is not known yet: it stands as 0.
    pub open: evlist::Plan,
    /// The tracepoints among the events.
    pub tracepoints: Vec<kymo_perf::tracefs::Tracepoint>,
    /// The command to start.
    pub command: Vec<OsString>,
    /// The command is what is observed.
    pub observe_command: bool,
    /// Processes whose end ends the recording.
    pub until: Vec<i32>,
    /// Pages of each ring.
    pub ring_pages: usize,
    /// The size may shrink.
    pub ring_may_shrink: bool,
    /// As asked for.
    pub options: Options,
    /// Remarks on how it was resolved, for the user.
    pub notes: Vec<String>,
}

/// Why a plan cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// No such process or thread.
    #[error("there is no {what} {id}: it may have ended; `ps -eL` lists processes and threads")]
    NoTask {
        /// `process` or `thread`.
        what: &'static str,
        /// The id.
        id: i32,
    },
    /// The user owns no process.
    #[error("user {0} owns no process: start one first, or record everything with -a")]
    NoProcess(u32),
    /// A CPU that is not there.
    #[error("CPU {cpu} is not online; online are {online:?}")]
    NoCpu {
        /// The CPU.
        cpu: u32,
        /// Those that are.
        online: Vec<u32>,
    },
    /// /proc could not be read.
    #[error("failed to list the tasks in /proc: {0}")]
    Proc(#[from] io::Error),
    /// An event that cannot follow tasks.
    #[error("{0} counts for a whole socket or machine, not for a task: record it with -a or -C")]
    SystemWideOnly(String),
}

/// Whether tracking needs an event of its own: when everything is observed (so that nothing is missed while what runs already is listed), when sampling
/// is delayed, and when the first event is not opened everywhere.
pub fn tracking_event(options: &Options, system: bool) -> bool {
    system || options.delay.is_some() || options.events.first().is_some_and(|event| event.cpus.is_some())
}

impl Plan {
    /// Resolves the options on this machine as it is now.
    ///
    /// # Errors
    /// [`PlanError`] names what is not there.
    pub fn resolve(mut options: Options) -> Result<Plan, PlanError> {
        let mut notes = Vec::new();
        let spec = options.targets.clone();
        let (targets, until, system) = resolve_targets(&spec, &mut notes)?;
        if !system || !spec.pids.is_empty() {
            let only = options.events.iter().find(|event| event.system_wide_only && !system);
            if let Some(event) = only {
                return Err(PlanError::SystemWideOnly(event.name.clone()));
            }
        }
        options.rate = clamp(options.rate, &mut notes);
        let observe_command = targets.tasks == [0];
        let per_thread = targets.cpus == [sys::ANY];
        let inherit = options.inherit.unwrap_or(spec.tids.is_empty()) && !per_thread;
        let (ring_pages, ring_may_shrink) = match options.ring_pages {
            Some(pages) => (pages, false),
            None => (default_ring_pages(), true),
        };
        let with_tracker = tracking_event(&options, system);
        let common = Common {
            several: options.events.len() > 1 || with_tracker,
            on_exec: observe_command && options.delay.is_none(),
            system,
            inherit,
            rate: options.rate,
            watermark_bytes: watermark_bytes(ring_pages),
        };
        let mut events: Vec<_> = (options.events.iter().enumerate())
            .map(|(index, event)| attr::request(event, index, &options, &common, index == 0 && !with_tracker))
            .collect();
        if with_tracker {
            let tracker_common = Common { on_exec: observe_command, ..common };
            events.push(attr::tracker(&options, &tracker_common));
        }
        Ok(Plan {
            open: evlist::Plan { events, targets },
            tracepoints: options.events.iter().filter_map(|event| event.tracepoint.clone()).collect(),
            command: spec.command,
            observe_command,
            until,
            ring_pages,
            ring_may_shrink,
            options,
            notes,
        })
    }

    /// Whether CPUs are observed, not tasks.
    pub fn system(&self) -> bool {
        self.open.targets.tasks == [sys::ANY]
    }

    /// Uses smaller rings, and wakes the drains accordingly earlier.
    pub(crate) fn set_ring_pages(&mut self, pages: usize) {
        self.ring_pages = pages;
        for event in &mut self.open.events {
            event.attr.wakeup_watermark = watermark_bytes(pages);
        }
    }
}

/// A quarter of the ring: the drain comes early enough that three quarters are left for the burst meanwhile.
fn watermark_bytes(ring_pages: usize) -> u32 {
    u32::try_from(ring_pages * sys::page_size() / 4).unwrap_or(u32::MAX)
}

/// `kernel.perf_event_mlock_kb` minus the control page, rounded down to a power of two.
fn default_ring_pages() -> usize {
    let allowed = read_number("/proc/sys/kernel/perf_event_mlock_kb").unwrap_or(516) as usize * 1024;
    let pages = (allowed / sys::page_size()).saturating_sub(1).max(1);
    // The largest power of two that is not above it.
    1 << pages.ilog2()
}

fn read_number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn clamp(rate: Rate, notes: &mut Vec<String>) -> Rate {
    let Some(max) = read_number("/proc/sys/kernel/perf_event_max_sample_rate") else { return rate };
    match rate {
        // "max" is not worth a remark.
        Rate::Frequency(u64::MAX) => Rate::Frequency(max),
        Rate::Frequency(freq) | Rate::Default(freq) if freq > max => {
            notes.push(format!(
                "{freq} samples per second are more than kernel.perf_event_max_sample_rate permits: recording {max}"
            ));
            if matches!(rate, Rate::Default(_)) { Rate::Default(max) } else { Rate::Frequency(max) }
        }
        rate => rate,
    }
}

/// The targets, whose end to wait for, and whether CPUs are observed. Earlier forms win over later ones, with a remark.
fn resolve_targets(
    spec: &TargetSpec,
    notes: &mut Vec<String>,
) -> Result<(Targets, Vec<i32>, bool), PlanError> {
    let online = sys::online_cpus();
    for &cpu in &spec.cpus {
        if !online.contains(&cpu) {
            return Err(PlanError::NoCpu { cpu, online });
        }
    }
    let mut ignored =
        |what: &str, by: &str| notes.push(format!("{what} is ignored: {by} says whom to observe"));
    let named = !spec.pids.is_empty() || !spec.tids.is_empty();
    if named || spec.uid.is_some() {
        let by = if named { "-p or -t" } else { "-u" };
        if named && spec.uid.is_some() {
            ignored("-u", by);
        }
        if spec.all {
            ignored("-a", by);
        }
        if !spec.cpus.is_empty() {
            ignored("-C", by);
        }
        let (tasks, until) = match spec.uid {
            Some(uid) if !named => of_user(uid)?,
            _ => named_tasks(spec)?,
        };
        let mut targets =
            if spec.per_thread { Targets::per_thread(tasks) } else { Targets::tasks(tasks, &online) };
        targets.ignore_missing = spec.tids.is_empty();
        return Ok((targets, until, false));
    }
    let system = spec.all || !spec.cpus.is_empty() || spec.command.is_empty();
    if system {
        if spec.per_thread {
            ignored("--per-thread", "-a or -C");
        }
        let cpus = if spec.cpus.is_empty() { online } else { spec.cpus.clone() };
        return Ok((Targets::system(&cpus), Vec::new(), true));
    }
    let mut targets =
        if spec.per_thread { Targets::per_thread(vec![0]) } else { Targets::tasks(vec![0], &online) };
    targets.ignore_missing = false;
    Ok((targets, Vec::new(), false))
}

fn of_user(uid: u32) -> Result<(Vec<i32>, Vec<i32>), PlanError> {
    let mut processes = proc::processes_of_user(uid)?;
    // Observing the observer would feed itself.
    let own = std::process::id() as i32;
    processes.retain(|&pid| pid != own);
    let tasks: Vec<i32> = processes.iter().flat_map(|&pid| proc::tasks(pid).unwrap_or_default()).collect();
    if tasks.is_empty() { Err(PlanError::NoProcess(uid)) } else { Ok((tasks, processes)) }
}

fn named_tasks(spec: &TargetSpec) -> Result<(Vec<i32>, Vec<i32>), PlanError> {
    let mut tasks = Vec::new();
    for &pid in &spec.pids {
        tasks.extend(proc::tasks(pid).map_err(|_| PlanError::NoTask { what: "process", id: pid })?);
    }
    for &tid in &spec.tids {
        proc::process_of(tid).ok_or(PlanError::NoTask { what: "thread", id: tid })?;
        tasks.push(tid);
    }
    tasks.sort_unstable();
    tasks.dedup();
    Ok((tasks, spec.pids.iter().chain(&spec.tids).copied().collect()))
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let targets = &self.open.targets;
        writeln!(f, "events:")?;
        for event in &self.open.events {
            let attr = &event.attr;
            let rate = if attr.freq() == 1 { "per second" } else { "events per sample" };
            write!(f, "  {} ({} {rate})", event.name, attr.sample_period)?;
            writeln!(
                f,
                " type {} config {:#x} sample_type {:#x} read_format {:#x}{}{}{}{}",
                attr.type_,
                attr.config,
                attr.sample_type,
                attr.read_format,
                if attr.inherit() == 1 { " inherit" } else { "" },
                if attr.enable_on_exec() == 1 { " enable_on_exec" } else { "" },
                if attr.mmap2() == 1 { " tracking" } else { "" },
                if event.leader.is_some() { " member" } else { "" },
            )?;
            if attr.sample_type & Perf::SAMPLE_STACK_USER != 0 {
                writeln!(f, "    with {} bytes of user stack", attr.sample_stack_user)?;
            }
        }
        let scope = match (self.system(), targets.cpus == [sys::ANY]) {
            (true, _) => "CPUs",
            (false, true) => "threads, wherever they run",
            (false, false) => "threads on each CPU",
        };
        writeln!(f, "scope: {scope}")?;
        match (self.observe_command, self.system()) {
            (true, _) => writeln!(f, "tasks: the command and its children")?,
            (_, true) => writeln!(f, "tasks: all")?,
            _ => writeln!(f, "tasks: {} ({:?})", targets.tasks.len(), Shortened(&targets.tasks))?,
        }
        if targets.cpus != [sys::ANY] {
            writeln!(f, "cpus: {:?}", Shortened(&targets.cpus))?;
        }
        let rings = if targets.cpus == [sys::ANY] { targets.tasks.len() } else { targets.cpus.len() };
        writeln!(
            f,
            "rings: {rings} of {} KiB{}, {} descriptors",
            self.ring_pages * sys::page_size() / 1024,
            if self.ring_may_shrink { " (or less, if that is refused)" } else { "" },
            self.open.events.len() * targets.tasks.len() * targets.cpus.len()
        )?;
        writeln!(f, "output: {}", self.options.output)?;
        if let Some(level) = self.options.compress {
            writeln!(f, "compression: zstd level {level}")?;
        }
        if !self.command.is_empty() {
            let words: Vec<_> = self.command.iter().map(|word| word.to_string_lossy()).collect();
            writeln!(f, "command: {}", words.join(" "))?;
        }
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        Ok(())
    }
}

/// A list of numbers of which only the first few are shown.
struct Shortened<'a>(&'a [i32]);

impl fmt::Debug for Shortened<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, number) in self.0.iter().take(8).enumerate() {
            write!(f, "{}{number}", if i == 0 { "" } else { " " })?;
        }
        if self.0.len() > 8 { f.write_str(" ..") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Output;
    use kymo_perf::machine::Machine;
    use kymo_perf::selector;

    fn options(selector: &str, targets: TargetSpec) -> Options {
        let groups = selector::parse(selector).unwrap();
        Options {
            events: selector::resolve(&groups, &Machine::here()).unwrap(),
            rate: Rate::Default(999),
            call_graph: CallGraph::FramePointers,
            targets,
            inherit: None,
            ring_pages: None,
            data: false,
            switch_events: false,
            raw: false,
            sample_cpu: false,
            period: false,
            counts: false,
            no_samples: false,
            delay: None,
            clock: None,
            compress: None,
            build_ids: true,
            output: Output::Stdout,
            cmdline: Vec::new(),
            version: String::new(),
        }
    }

    fn command() -> TargetSpec {
        TargetSpec { command: vec!["true".into()], ..TargetSpec::default() }
    }

    fn own_pid() -> i32 {
        std::process::id() as i32
    }

    /// Checks a plain command: what perf 6.1 puts into the attr, and that the first event tracks.
    #[test]
    fn a_command() {
        let plan = Plan::resolve(options("cpu-clock", command())).unwrap();
        let [event] = &plan.open.events[..] else { panic!("{plan}") };
        let attr = &event.attr;
        let bits = Perf::SAMPLE_IP
            | Perf::SAMPLE_TID
            | Perf::SAMPLE_TIME
            | Perf::SAMPLE_CALLCHAIN
            | Perf::SAMPLE_PERIOD;
        assert_eq!(attr.sample_type, bits);
        assert_eq!(attr.read_format, Perf::FORMAT_ID | Perf::FORMAT_LOST);
        let set = [
            attr.disabled(),
            attr.inherit(),
            attr.mmap(),
            attr.mmap2(),
            attr.comm(),
            attr.comm_exec(),
            attr.task(),
            attr.freq(),
            attr.enable_on_exec(),
            attr.sample_id_all(),
        ];
        assert_eq!(set, [1; 10]);
        assert_eq!((attr.sample_period, attr.ksymbol(), attr.mmap_data()), (999, 0, 0));
        assert!(plan.observe_command && !plan.system());
    }

    /// Checks that the whole machine has the CPU in samples and a tracking event of its own, which samples nothing.
    #[test]
    fn the_machine() {
        let targets = TargetSpec { all: true, command: vec!["true".into()], ..TargetSpec::default() };
        let plan = Plan::resolve(options("cpu-clock", targets)).unwrap();
        let [event, tracker] = &plan.open.events[..] else { panic!("{plan}") };
        assert!(event.attr.sample_type & Perf::SAMPLE_CPU != 0);
        assert!(event.attr.sample_type & tracker.attr.sample_type & Perf::SAMPLE_IDENTIFIER != 0);
        assert_eq!((event.attr.mmap2(), tracker.attr.mmap2(), tracker.attr.ksymbol()), (0, 1, 1));
        assert!(tracker.immediate && plan.system() && !plan.observe_command);
        assert_eq!(event.attr.enable_on_exec(), 0);
    }

    /// Checks which target wins when several are named, and that each one that is ignored gets a remark.
    #[test]
    fn precedence() {
        let all = TargetSpec {
            pids: vec![own_pid()],
            uid: Some(0),
            all: true,
            cpus: vec![0],
            ..TargetSpec::default()
        };
        let plan = Plan::resolve(options("cpu-clock", all)).unwrap();
        assert!(plan.open.targets.tasks.contains(&own_pid()));
        assert_eq!(plan.notes.len(), 3, "{:?}", plan.notes);
        assert_eq!(plan.until, [own_pid()]);
        let cpus = TargetSpec { cpus: vec![0], per_thread: true, ..TargetSpec::default() };
        let plan = Plan::resolve(options("cpu-clock", cpus)).unwrap();
        assert_eq!((plan.open.targets.cpus.as_slice(), plan.notes.len()), (&[0][..], 1));
    }

    /// Checks that children are followed except from single threads, per-thread rings, and when told not to.
    #[test]
    fn inheritance() {
        let inherit = |targets: TargetSpec, change: Option<bool>| {
            let plan = Plan::resolve(Options { inherit: change, ..options("cpu-clock", targets) }).unwrap();
            plan.open.events[0].attr.inherit()
        };
        assert_eq!(inherit(command(), None), 1);
        assert_eq!(inherit(command(), Some(false)), 0);
        assert_eq!(inherit(TargetSpec { per_thread: true, ..command() }, None), 0);
        assert_eq!(inherit(TargetSpec { tids: vec![own_pid()], ..TargetSpec::default() }, None), 0);
        assert_eq!(inherit(TargetSpec { pids: vec![own_pid()], ..TargetSpec::default() }, None), 1);
    }

    /// Checks that a group with :S is read as one by its leader, and that its members neither sample nor start by themselves.
    #[test]
    fn group_read() {
        let plan = Plan::resolve(options("{cpu-clock,page-faults}:S", command())).unwrap();
        let [leader, member] = &plan.open.events[..] else { panic!("{plan}") };
        assert!(leader.attr.read_format & leader.attr.read_format & Perf::FORMAT_GROUP != 0);
        assert_eq!((leader.attr.sample_period, member.attr.sample_period), (999, 0));
        assert_eq!((leader.attr.disabled(), member.attr.disabled(), member.leader), (1, 0, Some(0)));
        assert_eq!(leader.attr.inherit(), 0);
    }

    /// Checks stack copies, data addresses, a fixed period and a clock.
    #[test]
    fn what_samples_carry() {
        let mut asked = options("cpu-clock", command());
        asked.call_graph = CallGraph::Dwarf { stack_bytes: 4096 };
        asked.data = true;
        asked.rate = Rate::Period(1000);
        asked.clock = Clock::parse("mono");
        let plan = Plan::resolve(asked).unwrap();
        let attr = &plan.open.events[0].attr;
        let bits = Perf::SAMPLE_REGS_USER | Perf::SAMPLE_STACK_USER | Perf::SAMPLE_ADDR;
        assert_eq!(attr.sample_type & (bits | Perf::SAMPLE_PERIOD), bits);
        assert_eq!((attr.sample_stack_user, attr.exclude_callchain_user(), attr.mmap_data()), (4096, 1, 1));
        assert_eq!((attr.freq(), attr.sample_period, attr.use_clockid(), attr.clockid), (0, 1000, 1, 1));
    }

    /// Checks that what is not there is named.
    #[test]
    fn errors() {
        let error = |targets| Plan::resolve(options("cpu-clock", targets)).unwrap_err().to_string();
        let (missing, next) = (i32::MAX, "it may have ended; `ps -eL` lists processes and threads");
        assert_eq!(
            error(TargetSpec { pids: vec![missing], ..TargetSpec::default() }),
            format!("there is no process {missing}: {next}")
        );
        assert_eq!(
            error(TargetSpec { tids: vec![missing], ..TargetSpec::default() }),
            format!("there is no thread {missing}: {next}")
        );
        assert!(
            error(TargetSpec { cpus: vec![60_000], ..TargetSpec::default() })
                .starts_with("CPU 60000 is not online")
        );
        assert!(
            error(TargetSpec { uid: Some(u32::MAX - 7), ..TargetSpec::default() })
                .contains("owns no process")
        );
    }

    /// Checks that a rate beyond the kernel's limit is brought down and said, except for "max".
    #[test]
    fn rates() {
        let Some(limit) = read_number("/proc/sys/kernel/perf_event_max_sample_rate") else { return };
        let mut notes = Vec::new();
        assert_eq!(clamp(Rate::Frequency(u64::MAX), &mut notes), Rate::Frequency(limit));
        assert!(notes.is_empty());
        assert_eq!(clamp(Rate::Frequency(limit + 1), &mut notes), Rate::Frequency(limit));
        assert_eq!(notes.len(), 1);
        assert_eq!(clamp(Rate::Period(7), &mut notes), Rate::Period(7));
    }
}
