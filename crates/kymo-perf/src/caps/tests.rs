//! What is permitted, as read from made-up machines.

use super::*;
use crate::machine::made_up as machine;
use crate::sys::Fake;

const STATUS: &str =
    "Name:\tkymo\nUid:\t1000\t1001\t1000\t1000\nCapEff:\t0000004000000000\nNoNewPrivs:\t1\nSeccomp:\t2\n";
const LIMITS: &str = "\
Limit                     Soft Limit           Hard Limit           Units     \n\
Max open files            1024                 524288               files     \n\
Max locked memory         8388608              unlimited            bytes     \n\
Max realtime priority     5                    5                    \n";

/// Checks every fact that comes from files, on a machine where each has a value of its own.
#[test]
fn reads_a_described_machine() {
    let (dir, machine) = machine(&[
        ("proc/self/status", STATUS),
        ("proc/self/limits", LIMITS),
        ("proc/self/uid_map", "         0          0 4294967295\n"),
        ("proc/self/mounts", "cgroup2 /a\\040b cgroup2 rw 0 0\n"),
        ("proc/self/cgroup", "0::/kubepods/pod1\n"),
        ("proc/kallsyms", "0000000000000000 A zero\nffffffff81000000 T _text\n"),
        ("proc/sys/kernel/perf_event_paranoid", "-1\n"),
        ("proc/sys/kernel/kptr_restrict", "1\n"),
        ("proc/sys/kernel/perf_event_mlock_kb", "516\n"),
        ("proc/sys/kernel/perf_event_max_sample_rate", "50000\n"),
        ("proc/sys/kernel/perf_event_max_stack", "127\n"),
        ("proc/sys/kernel/yama/ptrace_scope", "1\n"),
        ("proc/sys/kernel/unprivileged_bpf_disabled", "2\n"),
        ("sys/devices/system/cpu/online", "0-3\n"),
        ("sys/devices/system/cpu/possible", "0-3\n"),
        ("proc/stat", "cpu 8\ncpu0 1\ncpu1 1\ncpu2 1\ncpu3 1\nintr 1\n"),
        ("sys/bus/event_source/devices/cpu/type", "4\n"),
        ("sys/kernel/tracing/events/sched/sched_switch/id", "372\n"),
    ]);
    let kernel = Fake::new();
    let caps = probe_at(&machine, &kernel);
    assert_eq!(caps.euid, 1001);
    assert!(caps.has(Capability::Perfmon) && caps.perfmon());
    assert!(!caps.has(Capability::SysAdmin) && !caps.bpf());
    assert!(caps.no_new_privileges && caps.seccomp && !caps.user_namespace && caps.kallsyms);
    assert_eq!(caps.container.as_deref(), Some("kubernetes"));
    assert_eq!((caps.paranoid, caps.kptr_restrict, caps.ptrace_scope), (Some(-1), Some(1), Some(1)));
    assert_eq!((caps.mlock_kib, caps.max_sample_rate, caps.max_stack), (Some(516), Some(50_000), Some(127)));
    assert_eq!((caps.nofile_soft, caps.nofile_hard), (Some(1024), Some(524_288)));
    assert_eq!((caps.memlock_bytes, caps.rtprio, caps.cpus.cpus.len()), (Some(8 << 20), 5, 4));
    assert!(caps.real_time());
    assert_eq!(caps.core_pmus, ["cpu"]);
    assert_eq!(caps.tracefs, TracefsState::Readable(dir.path().join("sys/kernel/tracing/events")));
    assert_eq!(caps.cgroup2.as_ref().map(|(path, _)| path.as_path()), Some(Path::new("/a b")));
    assert_eq!(caps.ring_bytes(), None);
    assert_eq!(caps.trials.tracepoint, Some(Ok(())));
    assert_eq!(kernel.opened().len(), 6);
    assert!(kernel.opened().iter().all(|opened| opened.attr.disabled() == 1));
}

/// Checks that an empty machine gives unknowns rather than zeros or a panic.
#[test]
fn reads_an_empty_machine() {
    let (_dir, machine) = machine(&[]);
    let kernel = Fake::new().rule(|_| Some(libc::ENOSYS));
    let caps = probe_at(&machine, &kernel);
    assert_eq!((caps.paranoid, caps.mlock_kib, caps.max_stack), (None, None, None));
    assert!(!caps.perfmon() && !caps.kallsyms && caps.core_pmus.is_empty());
    assert!(matches!(caps.tracefs, TracefsState::Refused(TracefsError::NotMounted(_))));
    assert_eq!(caps.trials.own_user, Err(libc::ENOSYS));
    assert_eq!(caps.trials.tracepoint, None);
    assert!(caps.trials.own_user.is_err());
}

/// Checks that capabilities inside a user namespace do not count.
#[test]
fn capabilities_in_a_user_namespace() {
    let (_dir, machine) = machine(&[
        ("proc/self/status", "Uid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\n"),
        ("proc/self/uid_map", "         0       1000          1\n"),
    ]);
    let caps = probe_at(&machine, &Fake::new());
    assert!(caps.user_namespace);
    assert!(!caps.has(Capability::SysAdmin) && !caps.perfmon());
}

/// Checks how much ring memory an ordinary user has: the free part of each CPU and the lock limit.
#[test]
fn ring_memory_of_an_ordinary_user() {
    let (_dir, machine) = machine(&[
        ("proc/self/status", "Uid:\t1\t1\t1\t1\nCapEff:\t0\n"),
        ("proc/self/limits", LIMITS),
        ("proc/sys/kernel/perf_event_mlock_kb", "516"),
        ("proc/sys/kernel/perf_event_paranoid", "2"),
        ("sys/devices/system/cpu/online", "0-1"),
    ]);
    let caps = probe_at(&machine, &Fake::new().unprivileged());
    assert_eq!(caps.ring_bytes(), Some(2 * 516 * 1024 + (8 << 20)));
    assert_eq!(caps.trials.own_user, Ok(()));
    assert_eq!(caps.trials.own_kernel, Err(libc::EACCES));
    assert_eq!(caps.trials.all_cpus, Err(libc::EACCES));
}

/// Checks octal escapes of mount points, whole and damaged.
#[test]
fn mount_escapes() {
    assert_eq!(unescaped(b"/a\\040b\\134c"), b"/a b\\c");
    assert_eq!(unescaped(b"\\"), b"\\");
    assert_eq!(unescaped(b"\\9x\\04"), b"\\9x\\04");
}

/// Checks the real machine: what the kernel answers agrees with the privileges that were read.
#[test]
fn reads_this_machine() {
    let caps = probe();
    assert_eq!(caps.euid, rustix::process::geteuid().as_raw());
    assert!(!caps.cpus.cpus.is_empty() && caps.program.is_some());
    if caps.perfmon() && caps.trials.own_user.is_ok() {
        assert_eq!((caps.trials.own_kernel, caps.trials.all_cpus), (Ok(()), Ok(())));
    }
    if caps.core_pmus.is_empty() {
        assert!(caps.trials.hardware.is_err());
    }
}
