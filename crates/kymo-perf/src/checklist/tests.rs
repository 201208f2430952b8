//! The list for people, on made-up machines.

use super::*;
use crate::caps::probe_at;
use crate::machine::made_up;
use crate::sys::Fake;
use std::cell::RefCell;
use std::io;

const USER: &str = "Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000\n";
const ROOT: &str = "Uid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\n";

/// A machine where everything works that is tried, but for cgroups with this refusal.
#[derive(Default)]
struct Tried {
    cgroup: RefCell<Option<CgroupError>>,
    is_old: bool,
}

impl Tried {
    fn program(&self) -> Result<(), BpfError> {
        let cause = io::Error::from_raw_os_error(libc::E2BIG);
        if self.is_old { Err(BpfError::Load { program: "p", log: String::new(), cause }) } else { Ok(()) }
    }
}

impl Attempts for Tried {
    fn cgroup(&self) -> Result<(), CgroupError> {
        self.cgroup.take().map_or(Ok(()), Err)
    }

    fn kernel_probes(&self) -> Result<(), BpfError> {
        self.program()
    }

    fn python(&self) -> Result<(), BpfError> {
        self.program()
    }
}

/// The facts of a machine with these files and this kernel.
fn caps(kernel: &Fake, files: &[(&str, &str)]) -> Caps {
    let (_dir, machine) = made_up(files);
    probe_at(&machine, kernel)
}

fn user(kernel: &Fake, level: &str) -> Caps {
    caps(
        kernel,
        &[
            ("proc/self/status", USER),
            ("proc/sys/kernel/perf_event_paranoid", level),
            ("proc/sys/kernel/kptr_restrict", "1"),
            ("proc/sys/kernel/perf_event_mlock_kb", "16"),
            (
                "proc/self/limits",
                "Max open files            1024                 1024                 files\n",
            ),
            ("sys/kernel/tracing/events/sched/sched_switch/id", "1"),
        ],
    )
}

fn find<'a>(checks: &'a [Check], id: &str) -> &'a Check {
    checks.iter().find(|check| check.id == id).unwrap()
}

/// Checks that root on a machine with everything sees no refusal but what the machine itself lacks.
#[test]
fn root_may_everything() {
    let files = [
        ("proc/self/status", ROOT),
        ("proc/kallsyms", "ffffffff81000000 T _text\n"),
        ("proc/self/mounts", "none /tmp cgroup2 rw 0 0\n"),
        ("sys/bus/event_source/devices/cpu/type", "4"),
        ("sys/kernel/tracing/events/sched/sched_switch/id", "1"),
    ];
    let checks = checklist(&caps(&Fake::new(), &files), &Tried::default());
    let refused: Vec<&Check> = checks.iter().filter(|check| !check.ok).collect();
    assert!(refused.is_empty(), "{refused:#?}");
    assert!(checks.iter().all(|check| check.command.is_none() && check.hint.is_none()));
}

/// Checks an ordinary user's list at level 2: what works, and the one command for each that does
/// not.
#[test]
fn ordinary_user() {
    let checks = checklist(&user(&Fake::new().unprivileged(), "2"), &Tried::default());
    let command = |id| find(&checks, id).command.as_deref();
    assert!(find(&checks, "own").ok && find(&checks, "watchpoints").ok);
    assert_eq!(command("kernel"), Some("sudo sysctl kernel.perf_event_paranoid=1"));
    assert_eq!(command("all-cpus"), Some("sudo sysctl kernel.perf_event_paranoid=0"));
    assert_eq!(command("tracepoints"), Some("sudo sysctl kernel.perf_event_paranoid=-1"));
    assert_eq!(command("kernel-symbols"), Some("sudo sysctl kernel.kptr_restrict=0"));
    assert_eq!(command("ring-memory"), Some("sudo sysctl kernel.perf_event_mlock_kb=516"));
    assert_eq!(command("descriptors"), Some("sudo prlimit --pid $$ --nofile=65536"));
    for id in ["other-users", "bpf-filter", "real-time"] {
        assert!(command(id).unwrap().starts_with("sudo setcap cap_perfmon,cap_bpf"), "{id}");
    }
}

/// Checks that at level 3, where nothing opens, the first line already carries the command.
#[test]
fn ordinary_user_at_level_3() {
    let checks = checklist(&user(&Fake::new().rule(|_| Some(libc::EACCES)), "3"), &Tried::default());
    assert!(checks[..2].iter().all(|check| !check.ok));
    assert!(checks[0].detail.contains("kernel.perf_event_paranoid is 3"));
    assert_eq!(checks[0].command.as_deref(), Some("sudo sysctl kernel.perf_event_paranoid=2"));
}

/// Checks a machine that lacks things: no PMU, no tracefs, no cgroup v2.
#[test]
fn poor_machine() {
    let checks =
        checklist(&caps(&Fake::new().without_pmu(), &[("proc/self/status", ROOT)]), &Tried::default());
    let hardware = find(&checks, "hardware");
    assert!(
        !hardware.ok && hardware.detail.contains("cpu-clock takes the place") && hardware.command.is_none()
    );
    assert!(
        find(&checks, "tracepoints").command.as_deref().unwrap().starts_with("sudo mount -t tracefs none ")
    );
    assert!(find(&checks, "cgroup").command.is_some());
}

/// Checks that each line has a name and an id of its own, and that a refusal says why.
#[test]
fn lines_are_whole() {
    for kernel in [Fake::new(), Fake::new().unprivileged(), Fake::new().rule(|_| Some(libc::ENOSYS))] {
        let checks = checklist(&user(&kernel, "2"), &Tried::default());
        let mut ids: Vec<&str> = checks.iter().map(|check| check.id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), checks.len());
        for check in checks.iter().filter(|check| !check.ok) {
            assert!(!check.detail.is_empty(), "{check:?}");
            assert!(check.command.is_some() || check.hint.is_some(), "{check:?}");
        }
    }
}

/// Checks that a kernel which opens no events of cgroups is told apart from one that does, although
/// groups can be made: without systemd nothing has switched a controller on.
#[test]
fn cgroups_without_events() {
    let files = [("proc/self/status", ROOT), ("proc/self/mounts", "none /tmp cgroup2 rw 0 0\n")];
    let refused = CgroupError::NoEvents { path: "/tmp/a".into(), mount: "/tmp".into() };
    let checks = checklist(
        &caps(&Fake::new(), &files),
        &Tried { cgroup: RefCell::new(Some(refused)), ..Tried::default() },
    );
    let check = find(&checks, "cgroup");
    assert!(!check.ok);
    assert_eq!(check.command.as_deref(), Some("echo +pids | sudo tee /tmp/cgroup.subtree_control"));
}

/// Checks that programs are not tried where none may be loaded, and that a kernel that does not take them is named.
#[test]
fn programs_of_a_later_kernel() {
    let old = Tried { is_old: true, ..Tried::default() };
    let checks = checklist(&caps(&Fake::new(), &[("proc/self/status", ROOT)]), &old);
    for id in ["kernel-probes", "python"] {
        let check = find(&checks, id);
        assert!(
            !check.ok && check.detail.contains("refuses the BPF program") && check.hint.is_some(),
            "{check:?}"
        );
        let of_user = checklist(&user(&Fake::new().unprivileged(), "2"), &old);
        assert!(find(&of_user, id).detail.contains("CAP_BPF"), "{of_user:?}");
    }
}
