//! A checklist of what works on this machine, each with the command that permits more.
//!
//! The facts are [`Caps`]; this module turns them into a list that people read from top to bottom,
//! most needed first.

use crate::bpf::BpfError;
use crate::bpf::PythonWalker;
use crate::bpf::uprobe::Uprobes;
use crate::caps::{Capability, Caps, TracefsState, Trial};
use crate::cgroup::{self, CgroupError};
use crate::explain::{Attempt, Explanation, explain_open, setcap_command};
use crate::selector::EventAttr;
use crate::sys::{ANY, Real};
use perf_event_open_sys::bindings;

/// Ring memory per CPU that recording should have: 512 KiB and the head page, perf's and kymo's
/// default.
const RING_WANTED_BYTES: u64 = 516 << 10;
/// Descriptors that suffice for a few events on a large machine.
const DESCRIPTORS_WANTED: u64 = 4096;

/// One line of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// A stable word for programs.
    pub id: &'static str,
    /// What works or does not, in the reader's words.
    pub name: &'static str,
    /// Whether it works.
    pub ok: bool,
    /// How well it works, or why it does not; may be empty.
    pub detail: String,
    /// What to do if it does not work.
    pub hint: Option<String>,
    /// The one command that permits it.
    pub command: Option<String>,
}

impl Check {
    fn yes(id: &'static str, name: &'static str, detail: impl Into<String>) -> Self {
        Self { id, name, ok: true, detail: detail.into(), hint: None, command: None }
    }

    fn no(id: &'static str, name: &'static str, detail: impl Into<String>) -> Self {
        Self { ok: false, ..Self::yes(id, name, detail) }
    }

    fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    fn command(self, command: impl Into<String>) -> Self {
        Self { command: Some(command.into()), ..self }
    }

    /// A file capability would help, if this process can be given one.
    fn privilege(self, caps: &Caps) -> Self {
        match (&caps.container, caps.user_namespace || caps.no_new_privileges) {
            (Some(_), _) if caps.euid == 0 => self.hint("start the container with that capability"),
            (_, true) => self.hint("it needs a privilege of the host, outside this namespace or sandbox"),
            _ => self.command(setcap_command(caps)),
        }
    }

    /// A refused open, in the words of [`explain_open`].
    fn refused(id: &'static str, name: &'static str, explanation: &Explanation) -> Self {
        let reason = explanation.sentence.split_once(": ").map_or("", |(_, reason)| reason);
        let hint = explanation.hint.clone().filter(|_| explanation.command.is_none());
        Self { command: explanation.command.clone(), hint, ..Self::no(id, name, reason) }
    }
}

/// What is known only once it was tried. Nothing stays of a try.
pub trait Attempts {
    /// Makes a cgroup with events.
    fn cgroup(&self) -> Result<(), CgroupError>;
    /// Loads a program that counts at uprobes.
    fn kernel_probes(&self) -> Result<(), BpfError>;
    /// Loads the programs that walk Python's frames.
    fn python(&self) -> Result<(), BpfError>;
}

/// The machine that this runs on.
#[derive(Debug)]
pub struct ThisMachine;

impl Attempts for ThisMachine {
    fn cgroup(&self) -> Result<(), CgroupError> {
        cgroup::try_one(&Real)
    }

    fn kernel_probes(&self) -> Result<(), BpfError> {
        Uprobes::try_one()
    }

    fn python(&self) -> Result<(), BpfError> {
        PythonWalker::new()?.program().map(drop)
    }
}

/// The list for these facts, most needed first.
pub fn checklist(caps: &Caps, attempts: &dyn Attempts) -> Vec<Check> {
    let clock = EventAttr { kind: bindings::PERF_TYPE_SOFTWARE, ..EventAttr::default() };
    let user = EventAttr { exclude_kernel: true, ..clock };
    let trials = &caps.trials;
    let mut checks = vec![
        tried(caps, "own", "sample your own programs", trials.own_user, "cpu-clock:u", user, 0, ANY),
        tried(caps, "kernel", "see the kernel in samples", trials.own_kernel, "cpu-clock", clock, 0, ANY),
        privileged(
            caps,
            "other-users",
            "attach to other users' programs",
            caps.perfmon() || caps.has(Capability::SysPtrace),
            "it needs CAP_PERFMON or CAP_SYS_PTRACE",
        ),
        tried(caps, "all-cpus", "record all CPUs (-a)", trials.all_cpus, "cpu-clock", clock, ANY, 0),
        hardware(caps),
        tracepoints(caps),
        watchpoints(caps),
        own_code(caps),
        kernel_symbols(caps),
        ring_memory(caps),
        descriptors(caps),
        of_cgroup(caps, || attempts.cgroup()),
        privileged(
            caps,
            "bpf-filter",
            "filtering samples in the kernel (BPF)",
            caps.bpf(),
            "it needs CAP_BPF and CAP_PERFMON",
        ),
        program(caps, "kernel-probes", "probes in the kernel (--engine kernel)", || attempts.kernel_probes()),
        program(caps, "python", "names of Python's functions", || attempts.python()),
        privileged(
            caps,
            "real-time",
            "draining rings at real-time priority",
            caps.real_time(),
            "it needs CAP_SYS_NICE",
        ),
    ];
    // Where the list of CPUs is as it should be, nobody has to know how it was made.
    checks.extend(cpus(caps));
    checks
}

/// How the CPUs are known, where sysfs hides some, or shows others.
fn cpus(caps: &Caps) -> Option<Check> {
    let (id, name) = ("cpus", "see all CPUs");
    let listing = caps.cpus.listing.as_ref()?;
    Some(match &caps.cpus.doubt {
        None => Check::yes(id, name, format!("{listing}; the kernel was asked for each")),
        Some(doubt) => {
            Check::no(id, name, doubt.clone()).hint("run kymo outside of this sandbox, or mount sysfs in it")
        }
    })
}

fn tried(
    caps: &Caps,
    id: &'static str,
    name: &'static str,
    trial: Trial,
    event: &str,
    attr: EventAttr,
    task: i32,
    cpu: i32,
) -> Check {
    let Err(errno) = trial else { return Check::yes(id, name, "") };
    let mut raw = attr.to_raw();
    if attr.kind == bindings::PERF_TYPE_TRACEPOINT {
        raw.sample_type = u64::from(bindings::PERF_SAMPLE_RAW);
    }
    Check::refused(id, name, &explain_open(errno, &Attempt::new(event, &raw, task, cpu), caps))
}

/// What needs nothing but a privilege.
fn privileged(caps: &Caps, id: &'static str, name: &'static str, may: bool, why: &str) -> Check {
    if may { Check::yes(id, name, "") } else { Check::no(id, name, why).privilege(caps) }
}

/// What this process may load, and the kernel may not take.
fn program(
    caps: &Caps,
    id: &'static str,
    name: &'static str,
    attempt: impl FnOnce() -> Result<(), BpfError>,
) -> Check {
    if !caps.bpf() {
        return privileged(caps, id, name, false, "it needs CAP_BPF and CAP_PERFMON");
    }
    match attempt() {
        Ok(()) => Check::yes(id, name, ""),
        Err(error) => Check::no(id, name, error.to_string()).hint("no setting of this machine helps"),
    }
}

fn hardware(caps: &Caps) -> Check {
    let (id, name) = ("hardware", "hardware counters");
    match caps.trials.hardware {
        Ok(()) if caps.core_pmus.is_empty() => Check::yes(id, name, "PMU present"),
        Ok(()) => Check::yes(id, name, format!("PMU {}", caps.core_pmus.join(", "))),
        Err(libc::ENOENT) if caps.core_pmus.is_empty() => Check::no(
            id,
            name,
            "none on this machine, as is common in virtual machines; cpu-clock takes the place of cycles",
        )
        .hint("only the host can give a virtual machine counters (with QEMU: `-cpu host,pmu=on`)"),
        refused => {
            let kind = bindings::PERF_TYPE_HARDWARE;
            let attr = EventAttr { kind, exclude_kernel: true, ..EventAttr::default() };
            tried(caps, id, name, refused, "cycles:u", attr, 0, ANY)
        }
    }
}

fn tracepoints(caps: &Caps) -> Check {
    let (id, name) = ("tracepoints", "tracepoints");
    if let TracefsState::Refused(error) = &caps.tracefs {
        let check = Check::no(id, name, error.to_string());
        let hint = error.hint().unwrap_or_default();
        // The hint's last command is the one that is not "run as root".
        return match hint.rsplit('`').nth(1) {
            Some(command) => check.command(command),
            None => check,
        };
    }
    let attr = EventAttr { kind: bindings::PERF_TYPE_TRACEPOINT, ..EventAttr::default() };
    tried(caps, id, name, caps.trials.tracepoint.unwrap_or(Ok(())), "sched:sched_switch", attr, 0, ANY)
}

fn watchpoints(caps: &Caps) -> Check {
    let attr = EventAttr {
        kind: bindings::PERF_TYPE_BREAKPOINT,
        config1: 0x1000,
        config2: 4,
        bp_type: bindings::HW_BREAKPOINT_W,
        exclude_kernel: true,
        ..EventAttr::default()
    };
    tried(caps, "watchpoints", "watchpoints on memory", caps.trials.breakpoint, "mem:0x1000", attr, 0, ANY)
}

/// Who writes the code of programs that are probed from inside.
fn own_code(caps: &Caps) -> Check {
    let (id, name) = ("own-code", "probes inside programs (--engine inproc)");
    if !cfg!(target_arch = "x86_64") {
        return Check::no(id, name, "x86-64 programs only");
    }
    let by_kymo = "kymo writes the code and must be able to trace the program, as this kernel does not let programs write their own (proc_mem.force_override)";
    Check::yes(id, name, if caps.own_code { "" } else { by_kymo })
}

fn kernel_symbols(caps: &Caps) -> Check {
    let (id, name) = ("kernel-symbols", "names of kernel functions");
    if caps.kallsyms {
        return Check::yes(id, name, "");
    }
    let why = match (caps.kptr_restrict, caps.paranoid) {
        (Some(0), Some(level @ 2..)) => {
            format!(
                "/proc/kallsyms shows no addresses to ordinary users (kernel.perf_event_paranoid is {level})"
            )
        }
        (Some(level), _) => format!("/proc/kallsyms shows no addresses (kernel.kptr_restrict is {level})"),
        (None, _) => "/proc/kallsyms shows no addresses".to_owned(),
    };
    let check = Check::no(id, name, why);
    match caps.kptr_restrict {
        _ if caps.user_namespace => check.hint("it needs a privilege of the host"),
        // At 1, CAP_SYSLOG sees them; at 2 nobody does.
        Some(1..) => check.command("sudo sysctl kernel.kptr_restrict=0"),
        _ if caps.paranoid.is_some_and(|level| level > 1) => {
            check.command("sudo sysctl kernel.perf_event_paranoid=1")
        }
        _ => check.privilege(caps),
    }
}

fn ring_memory(caps: &Caps) -> Check {
    let (id, name) = ("ring-memory", "memory for rings");
    let Some(all) = caps.ring_bytes() else { return Check::yes(id, name, "not limited") };
    let cpus = caps.cpus.cpus.len();
    let per_cpu = all / cpus.max(1) as u64;
    let detail = format!("{} KiB for each of {cpus} CPUs", per_cpu >> 10);
    if per_cpu >= RING_WANTED_BYTES {
        return Check::yes(id, name, detail);
    }
    Check::no(id, name, format!("only {detail}; 516 KiB are wanted"))
        .command(format!("sudo sysctl kernel.perf_event_mlock_kb={}", RING_WANTED_BYTES >> 10))
}

fn descriptors(caps: &Caps) -> Check {
    let (id, name) = ("descriptors", "open files");
    match caps.nofile_hard {
        None => Check::yes(id, name, "not limited"),
        // kymo raises the soft limit itself, so the hard one counts.
        Some(hard) if hard >= DESCRIPTORS_WANTED => Check::yes(id, name, format!("up to {hard}")),
        Some(hard) if caps.has(Capability::SysResource) => {
            Check::yes(id, name, format!("{hard}, and may be raised"))
        }
        Some(hard) => Check::no(
            id,
            name,
            format!("at most {hard}; each event takes one for every CPU, or for every task and CPU"),
        )
        .command("sudo prlimit --pid $$ --nofile=65536"),
    }
}

fn of_cgroup(caps: &Caps, try_one: impl FnOnce() -> Result<(), CgroupError>) -> Check {
    let (id, name) = ("cgroup", "a cgroup for the recorded program");
    match &caps.cgroup2 {
        Some((path, true)) => match try_one() {
            Err(CgroupError::NoEvents { mount, .. }) => {
                let reason =
                    "this kernel opens no events of cgroups before controllers were switched on for them";
                let command = format!("echo +pids | sudo tee {}/cgroup.subtree_control", mount.display());
                Check::no(id, name, reason).command(command)
            }
            Err(error) => Check::no(id, name, error.to_string()),
            Ok(()) => Check::yes(id, name, path.display().to_string()),
        },
        Some((path, false)) => Check::no(
            id,
            name,
            format!("this user may not make groups in {}", path.display()),
        )
        .hint(
            "without it, events are inherited by new threads, which costs more per thread; run kymo as root, \
                 or inside `systemd-run --user --scope -p Delegate=yes`",
        ),
        None => Check::no(id, name, "cgroup v2 is not mounted")
            .command("sudo mount -t cgroup2 none /sys/fs/cgroup"),
    }
}

#[cfg(test)]
mod tests;
