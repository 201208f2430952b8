//! Counts of a command in its own cgroup without any cost at a context switch: some are read from
//! the kernel's own accounting, rare events are counted by a BPF program at each hit
//! ([`CgroupCounter`]).
//!
//! | event | where it is read | beside perf's number |
//! |---|---|---|
//! | `task-clock`, `cpu-clock` | `cpu.stat` of the cgroup, less what the child used before its exec | with the end of each exit, which perf's events miss; without time stolen by interrupts or a hypervisor where the scheduler leaves it out |
//! | `context-switches` | what each thread has when it exits, and the living | the same: without the last switch of a thread, by which it ends |
//! | `cpu-migrations`, `page-faults`, `minor-faults`, `major-faults`, alignment and emulation faults | a program at each hit | the same |
//! | tracepoints of the kernel, without filter | a program at each hit | the same |
//!
//! On a busy machine a switch cost 1.05 times as much with an event for `cpu-clock`, and 0.97 times
//! as much without (the noise is 5 %); `sched:sched_switch`, which is hit at each of them, 1.11 and
//! 1.03 (bench/runs/2026-11-25-stat-sources.txt).
//!
//! Nothing else can be had so. What is asked of user or kernel mode alone can be, where the event
//! knows the mode: faults.
use super::kernel_stats::KernelStats;
use super::{Cell, Count};
use crate::bpf::{BpfError, CgroupCounter};
use crate::cgroup::OwnCgroup;
use crate::evlist::{self, Evlist, OpenEngine, OpenError, ReopenError, Request, Targets};
use crate::sys::{ANY, Kernel, Perf, bindings};
use crate::tracefs::Tracefs;
use rustix::thread::CpuSet;
use std::ffi::CString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How an event's count is had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CountSource {
    CpuTime,
    Switches,
    /// By the program of this number.
    Hits(usize),
}

/// What an event is, if it can be had without events at switches.
#[derive(Clone, Debug, PartialEq, Eq)]
enum CountKind {
    CpuTime,
    Switches,
    Seldom,
    /// A tracepoint of this name.
    Tracepoint(CString),
}

/// The tracepoint that the event is, as programs are attached to it. System calls have none of
/// their own, and probes are no tracepoints of the kernel.
fn tracepoint(event: &Request, tracefs: &Tracefs) -> Option<CString> {
    let (system, name) = event.name.split_once(':')?;
    if event.attr.type_ != Perf::TRACEPOINT || event.filter.is_some() || OTHER_SYSTEMS.contains(&system) {
        return None;
    }
    let found = tracefs.find(system, name).ok()?;
    (found.id == event.attr.config).then(|| CString::new(name).ok()).flatten()
}

/// Systems of tracepoints that programs cannot be attached to directly.
const OTHER_SYSTEMS: [&str; 5] = ["syscalls", "ftrace", "kprobes", "uprobes", "synthetic"];

fn kind(event: &Request, tracefs: &Tracefs) -> Option<CountKind> {
    let attr = &event.attr;
    let all_modes = attr.exclude_user() == 0 && attr.exclude_kernel() == 0;
    if attr.pinned() == 1 || attr.exclusive() == 1 {
        return None;
    }
    if attr.type_ != Perf::SOFTWARE {
        return tracepoint(event, tracefs).filter(|_| all_modes).map(CountKind::Tracepoint);
    }
    const SWITCHES: u64 = bindings::PERF_COUNT_SW_CONTEXT_SWITCHES as u64;
    const SELDOM: [u64; 6] = [
        bindings::PERF_COUNT_SW_CPU_MIGRATIONS as u64,
        bindings::PERF_COUNT_SW_PAGE_FAULTS as u64,
        bindings::PERF_COUNT_SW_PAGE_FAULTS_MIN as u64,
        bindings::PERF_COUNT_SW_PAGE_FAULTS_MAJ as u64,
        bindings::PERF_COUNT_SW_ALIGNMENT_FAULTS as u64,
        bindings::PERF_COUNT_SW_EMULATION_FAULTS as u64,
    ];
    match attr.config {
        // Of tasks, both count the time that they run.
        Perf::SW_TASK_CLOCK | Perf::SW_CPU_CLOCK if all_modes => Some(CountKind::CpuTime),
        SWITCHES if all_modes => Some(CountKind::Switches),
        config if SELDOM.contains(&config) => Some(CountKind::Seldom),
        _ => None,
    }
}

/// Which of the events can be had so: those that stand alone and are of the kinds above, as many as
/// there are programs for.
pub fn which(events: &[Request]) -> Vec<bool> {
    which_at(events, &Tracefs::here())
}

pub(super) fn which_at(events: &[Request], tracefs: &Tracefs) -> Vec<bool> {
    let mut programs = 0;
    let mut can = Vec::with_capacity(events.len());
    for (index, event) in events.iter().enumerate() {
        let alone = event.leader.is_none() && !events.iter().any(|other| other.leader == Some(index));
        let possible = match alone.then(|| kind(event, tracefs)).flatten() {
            Some(CountKind::Seldom | CountKind::Tracepoint(_)) => {
                programs += 1;
                programs <= CgroupCounter::EVENTS
            }
            Some(_) => true,
            None => false,
        };
        can.push(possible);
    }
    can
}

/// Why it is not possible here.
#[derive(Debug, thiserror::Error)]
pub enum CgroupCountersError {
    /// A program or map was refused, or the cgroup is of another kind.
    #[error("{0}")]
    Bpf(#[from] BpfError),
    /// An event on CPUs was refused.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// A program could not be given to its event.
    #[error("failed to give a program to an event: {0}")]
    Bind(io::Error),
    /// `cpu.stat` does not tell CPU time.
    #[error("{} has no CPU time", .0.join("cpu.stat").display())]
    NoCpuTime(PathBuf),
}

/// Counts of one command.
#[derive(Debug)]
pub struct CgroupCounters {
    sources: Vec<CountSource>,
    kernel: Arc<dyn Kernel>,
    seldom: Option<Evlist>,
    tally: CgroupCounter,
    child: i32,
    /// The CPU time that the child had when counting began, if it had not executed the command by
    /// then.
    child_ns: Option<u64>,
    cgroup: PathBuf,
    /// CPU time of the cgroup when counting began.
    not_ours_ns: u64,
    /// The largest sums so far: a thread that is about to exit is in neither of the two for a
    /// moment.
    latest: Mutex<Vec<u64>>,
}

impl CgroupCounters {
    /// Opens what is needed for these events, each of which must be one that [`which`] says yes to.
    ///
    /// # Errors
    /// Why it is not possible here; then events are to be used.
    pub fn open(
        kernel: &Arc<dyn Kernel>,
        events: &[Request],
        cgroup: &OwnCgroup,
        child: i32,
        cpus: &[u32],
    ) -> Result<CgroupCounters, CgroupCountersError> {
        let (mut seldom, mut numbers, mut hits) = (Vec::new(), Vec::new(), Vec::new());
        let tracefs = Tracefs::here();
        let sources: Vec<CountSource> = events
            .iter()
            .map(|event| match kind(event, &tracefs) {
                Some(CountKind::CpuTime) => CountSource::CpuTime,
                Some(CountKind::Switches) => CountSource::Switches,
                Some(CountKind::Tracepoint(name)) => {
                    hits.push(Some(name));
                    CountSource::Hits(hits.len() - 1)
                }
                _ => {
                    seldom.push(every_hit(event));
                    numbers.push(hits.len());
                    hits.push(None);
                    CountSource::Hits(hits.len() - 1)
                }
            })
            .collect();
        if KernelStats::of_cgroup(cgroup.path()).cpu_ns.is_none() {
            return Err(CgroupCountersError::NoCpuTime(cgroup.path().to_owned()));
        }
        let mut tally = CgroupCounter::start(cgroup.path(), child, &hits)?;
        let list = if seldom.is_empty() {
            None
        } else {
            let plan = evlist::EvlistPlan { events: seldom, targets: Targets::system(cpus) };
            let list = evlist::open(Arc::clone(kernel), plan, OpenEngine::Auto)?;
            for (index, &number) in numbers.iter().enumerate() {
                let Some(program) = tally.program(number) else { continue };
                let mut at = 0;
                let chosen = |_: &evlist::OpenEvent| {
                    at += 1;
                    at - 1 == index
                };
                list.set_bpf(program, chosen).map_err(CgroupCountersError::Bind)?;
            }
            Some(list)
        };
        tally.bound();
        Ok(CgroupCounters {
            latest: Mutex::new(vec![0; sources.len()]),
            sources,
            kernel: Arc::clone(kernel),
            seldom: list,
            tally,
            child,
            child_ns: None,
            cgroup: cgroup.path().to_owned(),
            not_ours_ns: 0,
        })
    }

    /// How many event descriptors are open.
    pub fn descriptors(&self) -> usize {
        self.seldom.as_ref().map_or(0, Evlist::descriptors)
    }

    /// Everything on: while the child still waits, or later.
    ///
    /// # Errors
    /// What the kernel refused.
    pub fn enable(&mut self) -> io::Result<()> {
        if self.tally.read().begun {
            self.not_ours_ns = self.cpu_time_ns();
        } else {
            // Of one moment: between two looks at the child it did not run.
            let mut child_ns = crate::proc::ran(self.child, self.child);
            for _ in 0..TRIES {
                self.not_ours_ns = self.cpu_time_ns();
                let after = crate::proc::ran(self.child, self.child);
                if std::mem::replace(&mut child_ns, after) == after {
                    break;
                }
                std::thread::yield_now();
            }
            self.child_ns = Some(child_ns.unwrap_or(0));
        }
        self.seldom.as_ref().map_or(Ok(()), |list| list.enable(false))
    }

    /// To be called when the child has executed the command. Blocks while the child is within the
    /// exec.
    ///
    /// # Errors
    /// EIO if the kernel's programs did not see the exec, so that nothing was counted.
    pub fn begun(&self) -> io::Result<()> {
        // An exec closes the descriptor by which we know of it a little before it comes to the
        // program.
        const PAUSE: Duration = Duration::from_micros(50);
        const MOST: Duration = Duration::from_secs(1);
        let asked = Instant::now();
        while !self.tally.read().begun {
            if asked.elapsed() >= MOST {
                return Err(io::Error::from_raw_os_error(libc::EIO));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Goes on counting on a CPU that went offline and came back. Whether that had ended the
    /// counting of some events there: what the kernel accounts goes on by itself.
    ///
    /// # Errors
    /// [`ReopenError`]: nothing more is counted at hits on that CPU.
    pub fn reopen(&self, cpu: i32) -> Result<bool, ReopenError> {
        self.seldom.as_ref().map_or(Ok(false), |list| list.reopen(cpu, &mut |_| {}))
    }

    fn cpu_time_ns(&self) -> u64 {
        KernelStats::of_cgroup(&self.cgroup).cpu_ns.unwrap_or(0)
    }

    /// Makes the kernel account what has ended on these CPUs but has not left them yet: a thread's
    /// last slice is accounted when another runs, so this thread runs there for a moment. Only
    /// where this process may run anyway, and on machines with very many CPUs only on the first
    /// ones.
    pub fn settle(&self, cpus: &[u32]) {
        const MOST: usize = 64;
        if !self.sources.contains(&CountSource::CpuTime) {
            return;
        }
        let Ok(permitted) = rustix::thread::sched_getaffinity(None) else { return };
        let mut first = None;
        for &cpu in cpus
            .iter()
            .filter(|&&cpu| (cpu as usize) < CpuSet::MAX_CPU && permitted.is_set(cpu as usize))
            .take(MOST)
        {
            let before = self.kernel.bind(cpu).ok();
            first = first.or(before);
        }
        if let Some(before) = first {
            self.kernel.unbind(&before);
        }
    }

    /// The counts of all events, each as one cell of the time that the command ran.
    pub fn read(&self) -> Vec<Vec<Cell>> {
        let (counted, living) = self.switches();
        let waiting_ns = self.child_ns.map_or(0, |child_ns| counted.before_exec_ns.saturating_sub(child_ns));
        let cpu_ns = self.cpu_time_ns().saturating_sub(self.not_ours_ns + waiting_ns);
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let value = |source: &CountSource| match source {
            CountSource::CpuTime => cpu_ns,
            CountSource::Switches => (counted.switches + living).saturating_sub(counted.base),
            CountSource::Hits(number) => counted.hits.get(*number).copied().unwrap_or(0),
        };
        let sources = self.sources.iter().zip(latest.iter_mut());
        let cells = sources.map(|(source, latest)| {
            *latest = value(source).max(*latest);
            let count = Count { value: *latest, enabled_ns: cpu_ns, running_ns: cpu_ns };
            vec![Cell { cpu: ANY, task: ANY, count }]
        });
        cells.collect()
    }

    /// What the kernel's programs have, and the switches of the threads that live: of one moment,
    /// unless threads exit all the time.
    fn switches(&self) -> (crate::bpf::CgroupCounts, u64) {
        let mut counted = self.tally.read();
        if !self.sources.contains(&CountSource::Switches) {
            return (counted, 0);
        }
        let mut living = 0;
        for _ in 0..TRIES {
            living = living_switches(&self.cgroup, DEPTH);
            let after = self.tally.read();
            let same = after.exits == counted.exits;
            counted = after;
            if same {
                break;
            }
        }
        (counted, living)
    }
}

/// Looks at two numbers that should be of one moment.
const TRIES: usize = 8;
/// Cgroups in cgroups that are followed.
const DEPTH: usize = 16;

/// Switches of the threads in a cgroup and below that have not begun to exit.
fn living_switches(directory: &Path, depth: usize) -> u64 {
    let threads = std::fs::read_to_string(directory.join("cgroup.threads")).unwrap_or_default();
    let own: u64 = threads.lines().filter_map(|tid| switches_of(tid.parse().ok()?)).sum();
    if depth == 0 {
        return own;
    }
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let below = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    own + below.map(|entry| living_switches(&entry.path(), depth - 1)).sum::<u64>()
}

/// Switches of a thread; `None` if it is on its way out, and so counted by the program at the exit.
fn switches_of(tid: i32) -> Option<u64> {
    /// Among the flags of a task: it exits.
    const EXITING: u64 = 4;
    let status = crate::proc::text(format!("/proc/{tid}/status")).ok()?;
    let stat = crate::proc::text(format!("/proc/{tid}/stat")).ok()?;
    let flags: u64 = stat.rsplit_once(')')?.1.split_whitespace().nth(6)?.parse().ok()?;
    let of = |key| super::kernel_stats::value(&status, key);
    (flags & EXITING == 0).then_some(of("voluntary_ctxt_switches")? + of("nonvoluntary_ctxt_switches")?)
}

/// The event as one that calls a program at each hit.
fn every_hit(event: &Request) -> Request {
    let mut event = event.clone();
    event.attr.set_freq(0);
    event.attr.__bindgen_anon_1.sample_period = 1;
    event.attr.sample_type = 0;
    event.attr.read_format = 0;
    event.attr.set_inherit(0);
    event.attr.set_disabled(1);
    event.attr.set_enable_on_exec(0);
    event
}
