//! The capabilities of this process here, found by trying.
//!
//! [`probe`] reads /proc and tries a few harmless opens, each closed at once. What to say about the
//! facts is decided in [`explain`](crate::explain). Everything that can be wrong is an `Option`: a
//! file that cannot be read is not a zero.

use crate::cgroup::unescaped;
use crate::machine::Machine;
use crate::pmu::text;
use crate::selector::EventAttr;
use crate::sys::{EventTarget, Kernel, OnlineCpus, Real, perf_event_attr};
use crate::tracefs::TracefsError;
use perf_event_open_sys::bindings;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A capability that kymo has a use for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capability {
    /// Lock more memory than the limit says.
    IpcLock,
    /// Look into any process.
    SysPtrace,
    /// Nearly everything; stands in for `Perfmon` and `Bpf`.
    SysAdmin,
    /// Real-time scheduling.
    SysNice,
    /// Exceed resource limits.
    SysResource,
    /// Read kernel addresses and logs.
    Syslog,
    /// Use events without the limits of `perf_event_paranoid`.
    Perfmon,
    /// Load BPF programs.
    Bpf,
}

impl Capability {
    /// All of them, in the kernel's order.
    pub const ALL: [Self; 8] = [
        Self::IpcLock,
        Self::SysPtrace,
        Self::SysAdmin,
        Self::SysNice,
        Self::SysResource,
        Self::Syslog,
        Self::Perfmon,
        Self::Bpf,
    ];

    /// The kernel's name.
    pub fn name(self) -> &'static str {
        self.number_and_name().1
    }

    pub(crate) fn bit(self) -> u64 {
        1 << self.number_and_name().0
    }

    fn number_and_name(self) -> (u32, &'static str) {
        match self {
            Self::IpcLock => (14, "CAP_IPC_LOCK"),
            Self::SysPtrace => (19, "CAP_SYS_PTRACE"),
            Self::SysAdmin => (21, "CAP_SYS_ADMIN"),
            Self::SysNice => (23, "CAP_SYS_NICE"),
            Self::SysResource => (24, "CAP_SYS_RESOURCE"),
            Self::Syslog => (34, "CAP_SYSLOG"),
            Self::Perfmon => (38, "CAP_PERFMON"),
            Self::Bpf => (39, "CAP_BPF"),
        }
    }
}

/// What one trial open came to: `Err` carries the errno.
pub(crate) type Trial = Result<(), i32>;

/// Harmless opens, each closed at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trials {
    /// A software event on this thread, user mode only: the least that can be asked.
    pub own_user: Trial,
    /// The same with the kernel counted too.
    pub own_kernel: Trial,
    /// Every task on the first CPU.
    pub all_cpus: Trial,
    /// `cycles:u` on this thread.
    pub hardware: Trial,
    /// A watchpoint in user memory on this thread.
    pub breakpoint: Trial,
    /// A raw tracepoint on this thread; `None` if no tracepoint could be looked up.
    pub tracepoint: Option<Trial>,
}

/// Whether tracepoints can be looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TracefsState {
    /// Yes, here.
    Readable(PathBuf),
    /// No, and why.
    Refused(TracefsError),
}

/// What this process may do here.
#[derive(Debug, Clone, PartialEq)]
pub struct Caps {
    /// The effective user id.
    pub euid: u32,
    /// The effective capabilities, as bits by the kernel's numbers.
    pub effective: u64,
    /// The process is in a user namespace other than the first. Its capabilities do not count for
    /// events then.
    pub user_namespace: bool,
    /// `NoNewPrivs`: setuid programs and file capabilities have no effect.
    pub no_new_privileges: bool,
    /// A seccomp filter is active, which may refuse system calls.
    pub seccomp: bool,
    /// The container's kind, if it looks like one (`docker`, `podman`, `lxc`, `kubernetes`,
    /// `systemd-nspawn`).
    pub container: Option<String>,
    /// `kernel.perf_event_paranoid`; `None` if the kernel has no perf events.
    pub paranoid: Option<i32>,
    /// `kernel.kptr_restrict`.
    pub kptr_restrict: Option<i32>,
    /// `kernel.perf_event_mlock_kb`: KiB of ring memory that each user has for free on each CPU.
    pub mlock_kib: Option<u64>,
    /// `kernel.perf_event_max_sample_rate`: highest frequency, per second.
    pub max_sample_rate: Option<u64>,
    /// `kernel.perf_event_max_stack`: most frames of a call chain.
    pub max_stack: Option<u32>,
    /// `kernel.yama.ptrace_scope`; `None` without Yama.
    pub ptrace_scope: Option<i32>,
    /// `kernel.unprivileged_bpf_disabled`.
    pub unprivileged_bpf_disabled: Option<i32>,
    /// The soft limit of open descriptors; `None`: unlimited.
    pub nofile_soft: Option<u64>,
    /// Its hard limit.
    pub nofile_hard: Option<u64>,
    /// The soft limit of locked memory in bytes; `None`: unlimited.
    pub memlock_bytes: Option<u64>,
    /// The highest real-time priority that this process may take by its limits (0: none).
    pub rtprio: u64,
    /// The CPUs that are online.
    pub cpus: OnlineCpus,
    /// The PMUs of the CPU cores; empty where there are no hardware counters.
    pub core_pmus: Vec<String>,
    /// Whether tracepoints can be looked up.
    pub tracefs: TracefsState,
    /// Where cgroup v2 is mounted, and whether this process may make groups in it.
    pub cgroup2: Option<(PathBuf, bool)>,
    /// Whether /proc/kallsyms shows real addresses.
    pub kallsyms: bool,
    /// Whether the kernel lets a program write its own code through /proc/self/mem; yes if that is
    /// not known.
    pub own_code: bool,
    /// The running program, for hints about file capabilities.
    pub program: Option<PathBuf>,
    /// What a few opens came to.
    pub trials: Trials,
}

impl Caps {
    /// Whether the capability is effective, and counts outside the process's user namespace.
    pub fn has(&self, capability: Capability) -> bool {
        !self.user_namespace && self.effective & capability.bit() != 0
    }

    /// Whether `perf_event_paranoid` does not apply to this process.
    pub fn perfmon(&self) -> bool {
        self.has(Capability::Perfmon) || self.has(Capability::SysAdmin)
    }

    /// Whether BPF programs for events may be loaded.
    pub fn bpf(&self) -> bool {
        self.perfmon() && (self.has(Capability::Bpf) || self.has(Capability::SysAdmin))
    }

    /// Whether a thread may be given real-time priority.
    pub(crate) fn real_time(&self) -> bool {
        self.has(Capability::SysNice) || self.rtprio > 0
    }

    /// Bytes of ring memory that may be mapped in all; `None`: no limit.
    pub(crate) fn ring_bytes(&self) -> Option<u64> {
        if self.has(Capability::IpcLock) || self.paranoid == Some(-1) {
            return None;
        }
        let free =
            self.mlock_kib.unwrap_or(516).saturating_mul(1024).saturating_mul(self.cpus.cpus.len() as u64);
        Some(free.saturating_add(self.memlock_bytes?))
    }
}

/// Finds out what this process may do on this machine. Takes well under a millisecond and changes
/// nothing.
pub fn probe() -> Caps {
    probe_at(&Machine::here(), &Real)
}

/// The same for any machine and kernel. Paths that are not below the machine's roots are looked for
/// beside its `proc`.
pub(crate) fn probe_at(machine: &Machine, kernel: &dyn Kernel) -> Caps {
    let proc = machine.proc();
    let status = text(&proc.join("self/status")).unwrap_or_default();
    let limits = text(&proc.join("self/limits")).unwrap_or_default();
    let setting = |name: &str| text(&proc.join("sys/kernel").join(name));
    let signed = |name: &str| setting(name)?.trim().parse::<i32>().ok();
    let unsigned = |name: &str| setting(name)?.trim().parse::<u64>().ok();
    let tracefs = match machine.tracefs().events() {
        Ok(path) => TracefsState::Readable(path),
        Err(error) => TracefsState::Refused(error),
    };
    let (nofile_soft, nofile_hard) = limit(&limits, "Max open files").unwrap_or((Some(1024), Some(1024)));
    Caps {
        euid: field(&status, "Uid:", 1).and_then(|id| id.parse().ok()).unwrap_or(u32::MAX),
        effective: field(&status, "CapEff:", 0)
            .and_then(|bits| u64::from_str_radix(bits, 16).ok())
            .unwrap_or(0),
        user_namespace: text(&proc.join("self/uid_map")).is_some_and(|map| !is_first_namespace(&map)),
        no_new_privileges: field(&status, "NoNewPrivs:", 0) == Some("1"),
        seccomp: field(&status, "Seccomp:", 0).is_some_and(|mode| mode != "0"),
        container: container(proc),
        paranoid: signed("perf_event_paranoid"),
        kptr_restrict: signed("kptr_restrict"),
        mlock_kib: unsigned("perf_event_mlock_kb"),
        max_sample_rate: unsigned("perf_event_max_sample_rate"),
        max_stack: unsigned("perf_event_max_stack").and_then(|frames| u32::try_from(frames).ok()),
        ptrace_scope: signed("yama/ptrace_scope"),
        unprivileged_bpf_disabled: signed("unprivileged_bpf_disabled"),
        nofile_soft,
        nofile_hard,
        memlock_bytes: limit(&limits, "Max locked memory").map_or(Some(0), |(soft, _)| soft),
        rtprio: limit(&limits, "Max realtime priority").and_then(|(soft, _)| soft).unwrap_or(0),
        cpus: OnlineCpus::at(machine, kernel),
        core_pmus: machine.core_pmus().map(|pmu| pmu.name.clone()).collect(),
        tracefs,
        cgroup2: cgroup2(proc),
        kallsyms: kallsyms(proc),
        own_code: own_code(proc),
        program: fs::read_link(proc.join("self/exe")).ok(),
        trials: trials(machine, kernel),
    }
}

/// Whether a filter of system calls is active in this process.
pub(crate) fn is_filtered() -> bool {
    let status = text(Path::new("/proc/self/status")).unwrap_or_default();
    field(&status, "Seccomp:", 0).is_some_and(|mode| mode != "0")
}

/// The n-th word behind a label of /proc/self/status.
fn field<'a>(status: &'a str, label: &str, index: usize) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(label))?.split_whitespace().nth(index)
}

/// The soft and hard limit of a row of /proc/self/limits; `None` inside: unlimited.
fn limit(limits: &str, label: &str) -> Option<(Option<u64>, Option<u64>)> {
    let row = limits.lines().find_map(|line| line.strip_prefix(label))?;
    let mut words = row.split_whitespace();
    let mut next = || -> Option<Option<u64>> {
        match words.next()? {
            "unlimited" => Some(None),
            number => number.parse().ok().map(Some),
        }
    };
    Some((next()?, next()?))
}

/// Whether the id map is the identity over all ids, as only the first namespace has it.
pub(crate) fn is_first_namespace(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

fn container(proc: &Path) -> Option<String> {
    let beside = |path: &str| proc.parent().map(|root| root.join(path)).is_some_and(|path| path.exists());
    if beside("run/.containerenv") {
        return Some("podman".into());
    }
    if beside(".dockerenv") {
        return Some("docker".into());
    }
    if let Some(kind) = proc.parent().and_then(|root| text(&root.join("run/systemd/container"))) {
        return Some(kind.trim().to_owned());
    }
    let groups = text(&proc.join("self/cgroup"))?;
    let marks = [("kubepods", "kubernetes"), ("docker", "docker"), ("libpod", "podman"), ("/lxc", "lxc")];
    marks.iter().find(|(mark, _)| groups.contains(mark)).map(|(_, kind)| (*kind).to_owned())
}

fn cgroup2(proc: &Path) -> Option<(PathBuf, bool)> {
    let mounts = text(&proc.join("self/mounts"))?;
    let path = mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (point, kind) = (words.next()?, words.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(OsString::from_vec(unescaped(point.as_bytes()))))
    })?;
    let writable = rustix::fs::access(&path, rustix::fs::Access::WRITE_OK).is_ok();
    Some((path, writable))
}

/// Whether a byte of this program's code can be written as it is.
fn own_code(proc: &Path) -> bool {
    let Ok(memory) = File::options().read(true).write(true).open(proc.join("self/mem")) else { return true };
    let here = own_code as fn(&Path) -> bool as usize as u64;
    let mut byte = [0];
    let is_read = memory.read_at(&mut byte, here).is_ok_and(|count| count == 1);
    let refused = |error: std::io::Error| error.raw_os_error() == Some(libc::EIO);
    !(is_read && memory.write_at(&byte, here).is_err_and(refused))
}

/// Whether the first lines of kallsyms hold an address other than zero.
fn kallsyms(proc: &Path) -> bool {
    text(&proc.join("kallsyms")).is_some_and(|text| {
        text.lines()
            .take(64)
            .filter_map(|line| line.split(' ').next())
            .any(|address| u64::from_str_radix(address, 16).is_ok_and(|address| address != 0))
    })
}

fn trials(machine: &Machine, kernel: &dyn Kernel) -> Trials {
    let software = |exclude_kernel| EventAttr {
        kind: bindings::PERF_TYPE_SOFTWARE,
        config: u64::from(bindings::PERF_COUNT_SW_TASK_CLOCK),
        exclude_kernel,
        exclude_hv: true,
        ..EventAttr::default()
    };
    let hardware = EventAttr { kind: bindings::PERF_TYPE_HARDWARE, config: 0, ..software(true) };
    let breakpoint = EventAttr {
        kind: bindings::PERF_TYPE_BREAKPOINT,
        config: 0,
        config1: 0x1000,
        config2: 4,
        bp_type: bindings::HW_BREAKPOINT_W,
        ..software(true)
    };
    let attempt = |attr: perf_event_attr, task: i32, cpu: i32| -> Trial {
        let mut attr = attr;
        attr.set_disabled(1);
        kernel
            .open(&attr, &EventTarget::new(task, cpu))
            .map(|event| kernel.close(vec![event]))
            .map_err(|error| error.raw_os_error().unwrap_or(0))
    };
    let tracepoint = machine.tracefs().find("sched", "sched_switch").ok().map(|point| {
        let attr =
            EventAttr { kind: bindings::PERF_TYPE_TRACEPOINT, config: point.id, ..EventAttr::default() };
        let mut raw = attr.to_raw();
        raw.sample_type = u64::from(bindings::PERF_SAMPLE_RAW);
        attempt(raw, 0, -1)
    });
    Trials {
        own_user: attempt(software(true).to_raw(), 0, -1),
        own_kernel: attempt(software(false).to_raw(), 0, -1),
        all_cpus: attempt(software(false).to_raw(), -1, 0),
        hardware: attempt(hardware.to_raw(), 0, -1),
        breakpoint: attempt(breakpoint.to_raw(), 0, -1),
        tracepoint,
    }
}

#[cfg(test)]
mod tests;
