//! Each refusal of the kernel, and the sentence that it becomes.

use super::*;
use crate::caps::{TracefsState, Trials};
use crate::selector::{EventAttr, Sampling};
use crate::sys::OnlineCpus;

/// An ordinary user on an ordinary distribution, at the given level of `perf_event_paranoid`.
fn user(paranoid: i32) -> Caps {
    let closed = if paranoid > 2 { Err(libc::EACCES) } else { Ok(()) };
    let kernel = if paranoid > 1 { Err(libc::EACCES) } else { Ok(()) };
    Caps {
        euid: 1000,
        effective: 0,
        user_namespace: false,
        no_new_privileges: false,
        seccomp: false,
        container: None,
        paranoid: Some(paranoid),
        kptr_restrict: Some(1),
        mlock_kib: Some(516),
        max_sample_rate: Some(100_000),
        max_stack: Some(127),
        ptrace_scope: Some(1),
        unprivileged_bpf_disabled: Some(2),
        nofile_soft: Some(1024),
        nofile_hard: Some(4096),
        memlock_bytes: Some(8 << 20),
        rtprio: 0,
        cpus: OnlineCpus { cpus: vec![0, 1, 2, 3], ..OnlineCpus::default() },
        core_pmus: vec!["cpu".into()],
        tracefs: TracefsState::Readable("/sys/kernel/tracing/events".into()),
        cgroup2: None,
        kallsyms: false,
        own_code: true,
        program: Some("/usr/bin/kymo".into()),
        trials: Trials {
            own_user: closed,
            own_kernel: kernel,
            all_cpus: Err(libc::EACCES),
            hardware: closed,
            breakpoint: closed,
            tracepoint: None,
        },
    }
}

fn root() -> Caps {
    let ok = Trials {
        own_user: Ok(()),
        own_kernel: Ok(()),
        all_cpus: Ok(()),
        hardware: Ok(()),
        breakpoint: Ok(()),
        tracepoint: Some(Ok(())),
    };
    Caps { euid: 0, effective: u64::MAX, trials: ok, ..user(2) }
}

fn cycles() -> EventAttr {
    EventAttr { kind: bindings::PERF_TYPE_HARDWARE, ..EventAttr::default() }
}

fn watch(addr: u64, len: u64, bp_type: u32) -> EventAttr {
    EventAttr {
        kind: bindings::PERF_TYPE_BREAKPOINT,
        config1: addr,
        config2: len,
        bp_type,
        sampling: Sampling::Natural(1),
        ..EventAttr::default()
    }
}

/// Explains a refusal of `attr` for this process itself.
fn own(errno: i32, event: &str, attr: EventAttr, caps: &Caps) -> Explanation {
    explain_open(errno, &Attempt::new(event, &attr.to_raw(), 0, ANY), caps)
}

#[track_caller]
fn says(explanation: &Explanation, sentence: &str, hint: &str) {
    assert!(explanation.sentence.contains(sentence), "no {sentence:?} in {explanation:?}");
    assert!(explanation.hint.as_deref().unwrap_or("").contains(hint), "no {hint:?} in {explanation:?}");
}

/// Checks that at level 2 the kernel side is what is refused, and that both ways out are named.
#[test]
fn paranoid_2_refuses_the_kernel() {
    let told = own(libc::EACCES, "cycles", cycles(), &user(2));
    says(&told, "cannot open `cycles`: observing the kernel is not permitted", "`cycles:u`");
    says(&told, "perf_event_paranoid is 2", "setcap cap_perfmon");
    assert_eq!(told.command.as_deref(), Some("sudo sysctl kernel.perf_event_paranoid=1"));
}

/// Checks that levels 3 (Debian) and 4 (Ubuntu) are told as what they are: no events at all.
#[test]
fn paranoid_3_and_4_refuse_everything() {
    for level in [3, 4] {
        let attr = EventAttr { exclude_kernel: true, ..cycles() };
        let told = own(libc::EACCES, "cycles:u", attr, &user(level));
        says(
            &told,
            &format!("no ordinary user open events (kernel.perf_event_paranoid is {level})"),
            "run kymo as root",
        );
        assert_eq!(told.command.as_deref(), Some("sudo sysctl kernel.perf_event_paranoid=2"));
        let told = own(libc::EACCES, "cycles", cycles(), &user(level));
        assert_eq!(told.command.as_deref(), Some("sudo sysctl kernel.perf_event_paranoid=1"));
    }
}

/// Checks that all-CPU recording names level 0, also at level 1 where own kernel samples work.
#[test]
fn all_cpus_need_level_0() {
    for level in [1, 2] {
        let told =
            explain_open(libc::EACCES, &Attempt::new("cpu-clock", &cycles().to_raw(), ANY, 3), &user(level));
        says(&told, "cannot open `cpu-clock` for all tasks on CPU 3: observing all tasks", "");
        assert_eq!(told.command.as_deref(), Some("sudo sysctl kernel.perf_event_paranoid=0"));
    }
}

/// Checks that a tracepoint's raw data names level -1.
#[test]
fn raw_tracepoints_need_level_minus_1() {
    let mut raw =
        EventAttr { kind: bindings::PERF_TYPE_TRACEPOINT, config: 7, ..EventAttr::default() }.to_raw();
    raw.sample_type = u64::from(bindings::PERF_SAMPLE_RAW);
    let told = explain_open(libc::EPERM, &Attempt::new("sched:sched_switch", &raw, 0, ANY), &user(1));
    says(&told, "a tracepoint's data is not shown to ordinary users", "");
    assert_eq!(told.command.as_deref(), Some("sudo sysctl kernel.perf_event_paranoid=-1"));
}

/// Checks that another user's task is named with both users, and is not blamed on the paranoid
/// level.
#[test]
fn foreign_task() {
    let raw = EventAttr { exclude_kernel: true, ..cycles() }.to_raw();
    let attempt = Attempt { task_owner: Some(0), ..Attempt::new("cycles:u", &raw, 77, 1) };
    let told = explain_open(libc::EACCES, &attempt, &user(2));
    says(
        &told,
        "cannot open `cycles:u` for task 77 on CPU 1: task 77 belongs to user 0, and kymo runs as user 1000",
        "run kymo as that user or as root",
    );
    let own = Attempt { task_owner: Some(1000), ..attempt };
    says(&explain_open(libc::EACCES, &own, &user(2)), "setuid program", "");
}

/// Checks that another user's task is the reason that is told, also where the kernel side is
/// refused as well.
#[test]
fn foreign_task_with_its_kernel_side() {
    let raw = cycles().to_raw();
    let attempt = Attempt { task_owner: Some(0), ..Attempt::new("cycles", &raw, 77, 1) };
    says(&explain_open(libc::EACCES, &attempt, &user(2)), "belongs to user 0", "setcap");
}

/// Checks that an event of the kernel alone is not offered for user space.
#[test]
fn kernel_only_events() {
    let told = own(libc::EACCES, "cycles:k", EventAttr { exclude_user: true, ..cycles() }, &user(2));
    assert!(told.hint.unwrap().starts_with("run `sudo sysctl kernel.perf_event_paranoid=1`"));
}

/// Checks that a container's filter is told apart from the paranoid level, by EPERM and by ENOSYS.
#[test]
fn containers() {
    let mut caps = Caps { euid: 0, seccomp: true, container: Some("docker".into()), ..user(2) };
    caps.trials.own_user = Err(libc::EPERM);
    says(&own(libc::EPERM, "cycles", cycles(), &caps), "seccomp filter", "docker run --cap-add PERFMON");
    says(&own(libc::ENOSYS, "cycles", cycles(), &caps), "seccomp filter", "docker run --cap-add PERFMON");
    let caps = Caps { container: Some("kubernetes".into()), ..caps };
    says(&own(libc::EPERM, "cycles", cycles(), &caps), "seccomp filter", "securityContext");
    let caps = Caps { paranoid: None, ..user(2) };
    says(&own(libc::ENOSYS, "cycles", cycles(), &caps), "CONFIG_PERF_EVENTS", "boot a kernel");
}

/// Checks that root in a user namespace is not told to become root.
#[test]
fn root_in_a_user_namespace() {
    let caps = Caps { euid: 0, effective: u64::MAX, user_namespace: true, ..user(2) };
    let told = own(libc::EACCES, "cycles", cycles(), &caps);
    says(&told, "observing the kernel", "an ordinary user outside");
    assert_eq!(told.command, None);
}

/// Checks that without privileges to gain (`NoNewPrivs`), file capabilities are not recommended.
#[test]
fn no_new_privileges() {
    let told = own(libc::EACCES, "cycles", cycles(), &Caps { no_new_privileges: true, ..user(2) });
    assert!(!told.hint.unwrap().contains("setcap"));
}

/// Checks that a privileged user who is refused hears of security modules, not of sysctls.
#[test]
fn refused_in_spite_of_privilege() {
    let mut caps = root();
    caps.trials.own_user = Err(libc::EACCES);
    says(&own(libc::EACCES, "cycles", cycles(), &caps), "security module", "journalctl");
}

/// Checks ENOENT: no PMU, an event that the PMU lacks, a vanished tracepoint, an unknown PMU.
#[test]
fn absent_events() {
    let no_pmu = Caps { core_pmus: Vec::new(), ..root() };
    says(&own(libc::ENOENT, "cycles", cycles(), &no_pmu), "no hardware counters", "cpu-clock");
    says(&own(libc::ENOENT, "bus-cycles", cycles(), &root()), "this CPU has no such counter", "kymo list");
    let point = EventAttr { kind: bindings::PERF_TYPE_TRACEPOINT, ..cycles() };
    says(&own(libc::ENOENT, "a:b", point, &root()), "no longer has this tracepoint", "");
    let unknown = EventAttr { kind: 9, ..cycles() };
    says(&own(libc::ENOENT, "9:1", unknown, &root()), "no PMU of type 9", "kymo list");
}

/// Checks ENODEV and ENXIO: an absent CPU and an absent device.
#[test]
fn absent_devices() {
    let raw = cycles().to_raw();
    let told = explain_open(libc::ENODEV, &Attempt::new("cycles", &raw, ANY, 9), &root());
    says(&told, "CPU 9 is not online", "-C");
    says(&own(libc::ENXIO, "cycles", cycles(), &root()), "not there", "kymo list");
}

/// Checks each reason of EINVAL that can be inferred from what was asked.
#[test]
fn invalid_settings() {
    let caps = root();
    let fast = EventAttr { sampling: Sampling::Frequency(200_000), ..cycles() };
    let told = own(libc::EINVAL, "cycles", fast, &caps);
    says(&told, "200000 samples per second are more than the kernel permits (100000)", "-F max");
    assert_eq!(told.command.as_deref(), Some("sudo sysctl kernel.perf_event_max_sample_rate=200000"));
    let long = EventAttr { sampling: Sampling::Period(1 << 63), ..cycles() };
    says(&own(libc::EINVAL, "cycles", long, &caps), "does not fit 63 bits", "-c");
    let precise = EventAttr { precise_ip: 2, ..cycles() };
    says(&own(libc::EINVAL, "cycles:pp", precise, &caps), "precision level 2", "`P`");
    let msr = EventAttr { kind: 12, ..cycles() };
    says(&own(libc::EINVAL, "msr/tsc/", msr, &caps), "cannot follow a task", "-a");
    let raw = cycles().to_raw();
    let at = |raw, task, cpu| explain_open(libc::EINVAL, &Attempt::new("cs", raw, task, cpu), &caps);
    says(&at(&raw, ANY, ANY), "neither a task nor a CPU", "-a");
    let member = Attempt { in_group: true, ..Attempt::new("cs", &raw, 0, 0) };
    says(&explain_open(libc::EINVAL, &member, &caps), "in one group with its leader", ":W");
    says(&own(libc::EINVAL, "cycles", cycles(), &caps), "combination of settings", "dmesg");
    let mut stack = raw;
    stack.sample_stack_user = 65_535;
    says(&at(&stack, 0, 0), "stack copy of 65535 bytes", "65528");
    let mut group = raw;
    group.set_inherit(1);
    group.read_format = u64::from(bindings::PERF_FORMAT_GROUP);
    says(&at(&group, 0, 0), "inherited", "--no-inherit");
}

/// Checks that chains deeper than the sysctl are named with both numbers, by EOVERFLOW (what Linux
/// says) and EINVAL.
#[test]
fn deep_callchains() {
    let mut raw = cycles().to_raw();
    raw.sample_max_stack = 500;
    for errno in [libc::EOVERFLOW, libc::EINVAL] {
        let told = explain_open(errno, &Attempt::new("cycles", &raw, 0, ANY), &root());
        says(&told, "500 frames are deeper than the kernel permits (127)", "--max-stack 127");
    }
}

/// Checks what is wrong with a watchpoint: length, alignment, read-only, code length, kernel
/// address.
#[test]
fn watchpoints() {
    let (r, w, x) = (bindings::HW_BREAKPOINT_R, bindings::HW_BREAKPOINT_W, bindings::HW_BREAKPOINT_X);
    let told = |attr| own(libc::EINVAL, "mem", attr, &root());
    says(&told(watch(0x1000, 3, w)), "cannot be 3 bytes long", "1, 2, 4 or 8");
    says(&told(watch(0x1001, 4, w)), "0x1001 is not a multiple", "mem:0x1000/4");
    says(&told(watch(0x1000, 4, r)), "reads alone", ":rw");
    says(&told(watch(0x1000, 1, x)), "must be 8 bytes long", "leave out");
    let kernel = EventAttr { exclude_kernel: true, ..watch(u64::MAX - 7, 8, w) };
    says(&told(kernel), "address is in the kernel", ":u");
    // A zero length must not divide by zero.
    says(&told(watch(0x1000, 0, w)), "cannot be 0 bytes long", "");
    says(&own(libc::ENOSPC, "mem", watch(0x1000, 4, w), &root()), "all debug registers are in use", "fewer");
}

/// Checks that the number of descriptors needed is said, and that the command fits the hard limit.
#[test]
fn descriptors() {
    let raw = cycles().to_raw();
    let attempt = Attempt { descriptors: Some(2000), ..Attempt::new("cycles", &raw, 5, 1) };
    let told = explain_open(libc::EMFILE, &attempt, &user(2));
    says(&told, "limit of open files (RLIMIT_NOFILE) is 1024, and 2000 are needed", "fewer events");
    says(&told, "cannot open", "`--scope filtered` or `-a`, which need one per event and CPU");
    assert_eq!(told.command.as_deref(), Some("ulimit -n 2064"));
    let attempt = Attempt { descriptors: Some(90_000), ..attempt };
    let told = explain_open(libc::EMFILE, &attempt, &user(2));
    assert_eq!(told.command.as_deref(), Some("sudo prlimit --pid $$ --nofile=90064"));
    let attempt = Attempt { descriptors: Some(5_120_000), ..attempt };
    let command = explain_open(libc::EMFILE, &attempt, &user(2)).command.unwrap();
    assert!(command.starts_with("sudo sysctl fs.nr_open=5120064 && sudo prlimit"), "{command}");
    says(&explain_open(libc::ENFILE, &attempt, &root()), "whole system", "fs.file-max");
}

/// Checks the remaining numbers, each with its own sentence.
#[test]
fn other_numbers() {
    let raw = cycles().to_raw();
    let at = |errno, raw, task| explain_open(errno, &Attempt::new("cs", raw, task, ANY), &root());
    says(&at(libc::ESRCH, &raw, 4242), "no task 4242", "ps -eLf");
    let precise = EventAttr { precise_ip: 1, ..cycles() };
    let sampled = EventAttr { sampling: Sampling::Frequency(999), ..cycles() };
    for (errno, attr, sentence, hint) in [
        (libc::EBUSY, cycles(), "holds the counter", "nmi_watchdog=0"),
        (libc::ENOSPC, cycles(), "counters are all taken", "fewer"),
        (libc::ENOMEM, cycles(), "no memory", "-m"),
        (libc::E2BIG, cycles(), "older", "config3"),
        (libc::EOPNOTSUPP, precise, "no precise sampling", "`P`"),
        (libc::EOPNOTSUPP, sampled, "no interrupt", "cpu-clock"),
        (libc::EIO, cycles(), "Input/output error", ""),
    ] {
        says(&own(errno, "cycles", attr, &root()), sentence, hint);
    }
    let mut branches = raw;
    branches.sample_type = u64::from(bindings::PERF_SAMPLE_BRANCH_STACK);
    says(&at(libc::EOPNOTSUPP, &branches, 0), "branch stacks", "-b");
}

/// Checks that a refused ring names both limits, a size that would fit, and the sysctl that permits
/// the asked one.
#[test]
fn rings() {
    let told = explain_map(libc::EPERM, "cycles", 16 << 20, 4, &user(2));
    says(&told, "kernel.perf_event_mlock_kb is 516 per CPU", "-m 2048K");
    says(&told, "`ulimit -l` is 8192 KiB", "CAP_IPC_LOCK");
    assert_eq!(told.command.as_deref(), Some("sudo sysctl kernel.perf_event_mlock_kb=16388"));
    says(&explain_map(libc::ENOMEM, "cycles", 1 << 30, 64, &root()), "no memory for 64", "-m");
    says(&explain_map(libc::EINVAL, "cycles", 5000, 1, &root()), "does not accept", "power of two");
    let unlimited = Caps { memlock_bytes: None, ..user(2) };
    says(&explain_map(libc::EPERM, "cycles", 1 << 20, 0, &unlimited), "`ulimit -l` is unlimited", "mlock_kb");
}

/// Checks every errno there may be, for every kind of event and user: none panics, and each
/// sentence names the event.
#[test]
fn every_number_has_a_sentence() {
    for caps in [user(-1), user(2), user(4), root()] {
        for kind in 0..8 {
            for errno in 0..140 {
                let attr = EventAttr { kind, ..watch(3, 4, 2) };
                for (task, cpu) in [(0, ANY), (ANY, 0), (ANY, ANY), (5, 1)] {
                    let told =
                        explain_open(errno, &Attempt::new("some:event", &attr.to_raw(), task, cpu), &caps);
                    assert!(told.sentence.contains("`some:event`"), "{told:?}");
                    assert!(!told.sentence.ends_with(['.', ' ', ':']), "{told:?}");
                    assert!(told.command.is_none_or(|command| told.hint.unwrap().contains(&command)));
                }
            }
        }
    }
}

/// Checks how `u` is appended to names that end in modifiers, in a slash, or in a tracepoint's
/// name.
#[test]
fn user_only_names() {
    let cases = [
        ("cycles", "cycles:u"),
        ("cycles:pp", "cycles:ppu"),
        ("cpu/event=1/", "cpu/event=1/u"),
        ("sched:sched_switch", "sched:sched_switch:u"),
        ("cpu-clock:u", "cpu-clock:u"),
        ("cpu-clock:uP", "cpu-clock:uP"),
        ("cpu/event=1/u", "cpu/event=1/u"),
        ("cpu/event=1/p", "cpu/event=1/pu"),
    ];
    for (name, expected) in cases {
        assert_eq!(user_only_name(name), expected);
    }
}
