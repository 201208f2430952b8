//! The same questions asked by a real ordinary user.
//!
//! The test program runs itself again as uid 65534 and lets that run look and try; a fake cannot
//! show that the kernel really answers so.

use kymo_perf::bpf::{Follow, Follower, Unavailable};
use kymo_perf::caps::{Caps, TracefsState, probe};
use kymo_perf::explain::{Attempt, explain_open};
use kymo_perf::machine::Machine;
use kymo_perf::selector::{ResolveErrorKind, parse, resolve};
use kymo_perf::sys::{ANY, EventTarget, Kernel, Real};
use kymo_testing::{copy_program, skip};
use std::process::Command;

const INNER: &str = "KYMO_TEST_UNPRIVILEGED";

/// Whether this run is the inner one; `None` if not, when that one was started as an ordinary user
/// and has passed.
fn inner(test: &str) -> Option<()> {
    if std::env::var_os(INNER).is_some() {
        return Some(());
    }
    // The test program may lie where only root can look, so the inner run gets a copy of it.
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("suite");
    copy_program(&std::env::current_exe().unwrap(), &program);
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(dir.path(), open).unwrap();
    let started = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
        .arg(&program)
        .args([test, "--exact", "--nocapture"])
        .current_dir("/")
        .env(INNER, "1")
        .env_remove("KYMO_SKIP_LOG")
        .output();
    match started {
        Err(error) => skip(test, format!("setpriv cannot be run: {error}")),
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned()
                + &String::from_utf8_lossy(&output.stderr);
            if text.contains("setpriv: ") {
                skip(test, text.trim());
            } else {
                assert!(output.status.success() && text.contains("1 passed"), "as uid 65534:\n{text}");
                // A skip inside must be seen outside.
                let skips = text.lines().filter_map(|line| line.split_once("SKIPPED ")?.1.split_once(": "));
                skips.for_each(|(test, reason)| skip(test, reason));
            }
        }
    }
    None
}

fn ordinary() -> Caps {
    let caps = probe();
    assert_eq!(caps.euid, 65534);
    assert_eq!(caps.effective, 0);
    assert!(!caps.perfmon() && !caps.bpf());
    caps
}

/// Checks that what the kernel answers an ordinary user agrees with `perf_event_paranoid`, and that
/// the words name it.
#[test]
fn paranoid_level_of_this_machine() {
    const TEST: &str = "unprivileged::paranoid_level_of_this_machine";
    let Some(()) = inner(TEST) else { return };
    let caps = ordinary();
    let Some(level) = caps.paranoid else { return skip(TEST, "this kernel has no perf events") };
    if caps.seccomp && caps.trials.own_user.is_err() {
        return skip(TEST, "a seccomp filter refuses perf_event_open");
    }
    assert_eq!(caps.trials.own_kernel.is_ok(), level < 2, "level {level}");
    assert_eq!(caps.trials.all_cpus.is_ok(), level < 1, "level {level}");
    let event = &resolve(&parse("cpu-clock").unwrap(), &Machine::here()).unwrap()[0];
    let raw = event.attr.to_raw();
    for (task, cpu, from) in [(0, ANY, 2), (ANY, 0, 1)] {
        if level < from {
            continue;
        }
        let error = Real.open(&raw, &EventTarget::new(task, cpu)).unwrap_err();
        let told =
            explain_open(error.raw_os_error().unwrap(), &Attempt::new(&event.name, &raw, task, cpu), &caps);
        assert!(told.sentence.contains(&format!("perf_event_paranoid is {level}")), "{told}");
        assert_eq!(told.command, Some(format!("sudo sysctl kernel.perf_event_paranoid={}", from - 1)));
    }
}

/// Checks that the first process, which is root's, is refused with both users named.
#[test]
fn a_task_of_root() {
    const TEST: &str = "unprivileged::a_task_of_root";
    let Some(()) = inner(TEST) else { return };
    let caps = ordinary();
    if caps.trials.own_user.is_err() {
        return skip(TEST, "an ordinary user cannot open any event here");
    }
    let event = &resolve(&parse("cpu-clock:u").unwrap(), &Machine::here()).unwrap()[0];
    let raw = event.attr.to_raw();
    let error = Real.open(&raw, &EventTarget::new(1, ANY)).unwrap_err();
    let attempt = Attempt { task_owner: Some(0), ..Attempt::new(&event.name, &raw, 1, ANY) };
    let told = explain_open(error.raw_os_error().unwrap(), &attempt, &caps);
    assert!(told.sentence.contains("task 1 belongs to user 0, and kymo runs as user 65534"), "{told}");
}

/// Checks that tracefs that only root may read is told as that, with what to run, and not as a
/// missing tracepoint.
#[test]
fn tracefs_of_root() {
    const TEST: &str = "unprivileged::tracefs_of_root";
    let Some(()) = inner(TEST) else { return };
    let caps = ordinary();
    match &caps.tracefs {
        TracefsState::Readable(path) => return skip(TEST, format!("everyone may read {}", path.display())),
        TracefsState::Refused(error) if error.to_string().contains("not mounted") => {
            return skip(TEST, error);
        }
        TracefsState::Refused(_) => {}
    }
    let error = resolve(&parse("sched:sched_switch").unwrap(), &Machine::here()).unwrap_err();
    assert_eq!(error.kind, ResolveErrorKind::TracefsUnreadable);
    assert!(error.to_string().contains("this user may not read /sys/kernel/tracing"), "{error}");
    assert!(
        error.to_string().contains("sudo mount -o remount,mode=750,gid=$(id -g) /sys/kernel/tracing"),
        "{error}"
    );
}

/// Checks that following in the kernel is refused with the capabilities that are missing, and
/// leaves nothing open.
#[test]
fn following_says_what_is_missing() {
    let Some(()) = inner("unprivileged::following_says_what_is_missing") else { return };
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    let reason = Follower::available().unwrap_err();
    if reason != Unavailable::PidNamespace {
        assert_eq!(reason.to_string(), "this process lacks CAP_BPF and CAP_PERFMON");
        assert!(reason.hint().unwrap().contains("setcap"));
    }
    let error = Follower::start(Follow::Processes(&[1])).unwrap_err();
    assert_eq!(error.to_string(), format!("tasks cannot be followed in the kernel: {reason}"));
    assert_eq!(open(), before);
}
