//! Counting on a kernel that follows a script, and sums on machines that are made of files.
use super::aggregate::{By, CountPlace, Topology, rows};
use super::cgroup_counters::{which, which_at};
use super::kernel_stats::{KernelStats, Pressure};
use super::{Binding, Cell, Count, EventCounters};
use crate::evlist::{Request, Targets};
use crate::machine::Machine;
use crate::sys::{ANY, Fake, Kernel, Perf, attr_zeroed, perf_event_attr};
use crate::tracefs::{Tracefs, TracepointFilter};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

fn attr(kind: u32, config: u64) -> perf_event_attr {
    let mut attr = attr_zeroed();
    (attr.type_, attr.config) = (kind, config);
    attr
}

fn software(config: u64) -> Request {
    Request::new(format!("software {config}"), attr(Perf::SOFTWARE, config))
}

fn hardware(config: u64) -> Request {
    Request::new(format!("hardware {config}"), attr(Perf::HARDWARE, config))
}

fn member(event: Request, leader: usize) -> Request {
    Request { leader: Some(leader), ..event }
}

const FOLLOW: Binding = Binding::Tasks { inherit: true, on_exec: false };

fn open(fake: Fake, events: Vec<Request>, targets: Targets, binding: Binding) -> (Arc<Fake>, EventCounters) {
    let fake = Arc::new(fake);
    let kernel: Arc<dyn Kernel> = Arc::<Fake>::clone(&fake);
    let counters = EventCounters::open(&kernel, events, targets, binding).expect("everything opens");
    (fake, counters)
}

/// Checks that a count is scaled by its share of the time, that what never was on the hardware has
/// no value, and that sums scale as one.
#[test]
fn scaling() {
    let whole = Count { value: 7, enabled_ns: 10, running_ns: 10 };
    let third = Count { value: 10, enabled_ns: 300, running_ns: 100 };
    let never = Count { value: 0, enabled_ns: 50, running_ns: 0 };
    assert_eq!((whole.scaled(), whole.share()), (Some(7), 1.0));
    assert_eq!((third.scaled(), third.share()), (Some(30), 1.0 / 3.0));
    assert_eq!((never.scaled(), never.share()), (None, 0.0));
    // Sums of intervals lacked what was counted in one without time.
    let before_time = Count { value: 17, ..Count::default() };
    assert_eq!((before_time.scaled(), before_time.share()), (Some(17), 1.0));
    assert_eq!(Count::default().share(), 1.0);
    assert_eq!(third.plus(never).scaled(), Some(35));
    assert_eq!(third.since(&whole), Count { value: 3, enabled_ns: 290, running_ns: 90 });
    assert_eq!(whole.since(&third), Count::default());
}

/// Checks that events which the machine does not have are told from those that count nothing, and
/// that members go with an absent leader.
#[test]
fn absent_events() {
    let events = vec![software(3), hardware(0), member(software(2), 1), software(4), member(software(2), 3)];
    let fake = Fake::new().without_pmu().counts(|_| [5, 9, 9]);
    let (fake, counters) = open(fake, events, Targets::per_thread(vec![10, 11]), FOLLOW);
    let reading = counters.read().expect("readable");
    let values: Vec<Option<usize>> = reading.iter().map(|cells| cells.as_ref().map(Vec::len)).collect();
    assert_eq!(values, [Some(2), None, None, Some(2), Some(2)]);
    assert_eq!((counters.has(0), counters.has(1), counters.has(2)), (true, false, false));
    drop(counters);
    assert!(fake.live().is_empty() && fake.mistakes().is_empty(), "{:?}", fake.mistakes());
    let (_, nothing) =
        open(Fake::new().without_pmu(), vec![hardware(0)], Targets::per_thread(vec![10]), FOLLOW);
    assert_eq!(nothing.read().expect("nothing to read"), [None]);
}

/// Checks that an event which exists but may not be counted is an error, not "not supported".
#[test]
fn refusals() {
    let kernel: Arc<dyn Kernel> = Arc::new(Fake::new().unprivileged());
    let opened = EventCounters::open(&kernel, vec![software(3)], Targets::system(&[0]), Binding::Cpus);
    assert_eq!(opened.expect_err("refused").source.raw_os_error(), Some(libc::EACCES));
}

/// Checks that an ordinary user on a machine without hardware counters has software events of user
/// mode, named so, and no hardware events.
#[test]
fn ordinary_users() {
    let denied = |call: crate::sys::fake::Call<'_>| (call.attr.exclude_kernel() == 0).then_some(libc::EACCES);
    let fake = Fake::new().rule(denied).without_pmu();
    let events = vec![software(2), hardware(0), hardware(1)];
    let (_, counters) = open(fake, events, Targets::per_thread(vec![10]), FOLLOW);
    assert_eq!([counters.has(0), counters.has(1), counters.has(2)], [true, false, false]);
    assert_eq!(counters.request(0).map(|request| request.name.as_str()), Some("software 2:u"));
}

/// Checks that a group's counts come from its leader, each to its own event, CPU and task.
#[test]
fn groups() {
    let events = vec![software(1), software(3), member(software(4), 1), member(software(2), 1)];
    let counts = |event: &crate::sys::fake::Opened| [event.attr.config * 100 + event.cpu as u64, 8, 8];
    let fake = Fake::new().counts(counts);
    let (fake, counters) = open(fake, events, Targets::system(&[0, 1]), Binding::Cpus);
    let reading = counters.read().expect("readable");
    let values: Vec<Vec<u64>> =
        reading.iter().flatten().map(|cells| cells.iter().map(|cell| cell.count.value).collect()).collect();
    assert_eq!(values, [[100, 101], [300, 301], [400, 401], [200, 201]]);
    let grouped = |opened: &crate::sys::fake::Opened| opened.attr.read_format & Perf::FORMAT_GROUP != 0;
    assert!(fake.opened().iter().all(|opened| grouped(opened) == (opened.attr.config == 3)));
}

/// Checks that a pinned event which finds no place on the hardware is not counted, with its group,
/// and spoils nothing else.
#[test]
fn pinned_events() {
    let mut pinned = hardware(0);
    pinned.attr.set_pinned(1);
    let events = vec![pinned, member(hardware(1), 0), software(2)];
    let counts = |event: &crate::sys::fake::Opened| {
        if event.attr.type_ == Perf::SOFTWARE { [3, 9, 9] } else { [0, 9, 0] }
    };
    let fake = Fake::new().counts(counts);
    let (_, counters) = open(fake, events, Targets::system(&[0, 1]), Binding::Cpus);
    let reading = counters.read().expect("readable");
    let scaled: Vec<Option<u64>> = reading
        .iter()
        .flatten()
        .map(|cells| cells.iter().map(|cell| cell.count).fold(Count::default(), Count::plus).scaled())
        .collect();
    assert_eq!(scaled, [None, None, Some(6)]);
}

/// Checks that nothing samples, that followed events are inherited and begin at the exec when they
/// shall, and that a leader alone does.
#[test]
fn attrs() {
    let mut sampling = software(3);
    sampling.attr.__bindgen_anon_1.sample_period = 1;
    let events = vec![sampling, member(software(2), 0)];
    let binding = Binding::Tasks { inherit: true, on_exec: true };
    let (fake, counters) = open(Fake::new(), events, Targets::per_thread(vec![10]), binding);
    assert!(counters.starts_by_itself());
    // What was opened to find out whether it exists comes first.
    let opened = fake.opened().split_off(2);
    let told: Vec<_> = opened
        .iter()
        .map(|o| (o.task, o.attr.inherit(), o.attr.enable_on_exec(), o.attr.disabled(), o.group.is_some()))
        .collect();
    assert_eq!(told, [(10, 1, 1, 1, false), (10, 1, 0, 0, true)]);
}

/// Checks that what the child did before its exec is taken off in proportion where the two sets of
/// events had to share the counters: no event runs longer than it is enabled, and the events of one
/// group stay equal.
#[test]
fn before_the_exec_with_too_few_counters() {
    let after = |cells: &[Count], before: Count| {
        let mut cells: Vec<Cell> = cells.iter().map(|&count| Cell { cpu: 0, task: ANY, count }).collect();
        super::take_off(&mut cells, before);
        cells.into_iter().map(|cell| cell.count).collect::<Vec<_>>()
    };
    let count = |value, enabled_ns, running_ns| Count { value, enabled_ns, running_ns };
    let whole = count(1000, 500, 500);
    assert_eq!(after(&[whole], count(100, 50, 50)), [count(900, 450, 450)]);
    assert_eq!(after(&[whole], count(40, 50, 20)), [count(900, 450, 450)], "on the hardware for 40 %");
    assert_eq!(after(&[whole], count(0, 50, 0)), [count(900, 450, 450)], "never there");
    assert_eq!(after(&[whole], count(0, 0, 0)), [whole], "the child did not run");
    let half = count(500, 500, 250);
    assert_eq!(after(&[half], count(100, 50, 50)), [count(450, 450, 225)], "the cgroup's took turns");
    // It ran on two CPUs, and on a third one the event was never on the hardware.
    let cells = [count(0, 20, 0), count(60, 30, 30), count(1000, 500, 500)];
    assert_eq!(after(&cells, count(100, 50, 50)), [count(0, 0, 0), count(0, 0, 0), count(960, 500, 500)]);
}

/// Checks that what the waiting child did before its exec is taken off, from whichever CPUs have
/// it, and no further than to 0.
#[test]
fn before_the_exec() {
    let counts = |event: &crate::sys::fake::Opened| match (event.attr.remove_on_exec(), event.cpu) {
        (1, _) => [7, 70, 70],
        (_, 0) => [5, 50, 50],
        _ => [10, 100, 100],
    };
    let directory: Arc<OwnedFd> = Arc::new(fs::File::open("/").expect("a directory").into());
    let targets = Targets::cgroup(directory, &[0, 1]);
    let binding = Binding::Cgroup { child: Some(99) };
    let (fake, counters) = open(Fake::new().counts(counts), vec![software(2)], targets, binding);
    assert!(counters.knows_before_exec());
    counters.enable().expect("enabled");
    assert_eq!(fake.on().len(), 3);
    let reading = counters.read().expect("readable");
    let cells: Vec<u64> = reading[0].as_ref().expect("there").iter().map(|cell| cell.count.value).collect();
    assert_eq!(cells, [0, 8]);
    // An old kernel does not know it: then the little that it is stays.
    let old = Fake::new().rule(|call| (call.attr.remove_on_exec() == 1).then_some(libc::EINVAL));
    let directory: Arc<OwnedFd> = Arc::new(fs::File::open("/").expect("a directory").into());
    let (_, counters) = open(old, vec![software(2)], Targets::cgroup(directory, &[0]), binding);
    assert!(!counters.knows_before_exec());
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("a folder")).expect("made");
    fs::write(path, text).expect("written");
}

/// Checks sums by core, die, socket and node on a machine of two sockets with two threads a core,
/// and on one that tells nothing.
#[test]
fn places() {
    let folder = tempfile::tempdir().expect("a folder");
    for cpu in 0..8 {
        let topology = folder.path().join(format!("sys/devices/system/cpu/cpu{cpu}/topology"));
        write(&topology.join("physical_package_id"), &format!("{}\n", cpu / 4));
        write(&topology.join("die_id"), "0\n");
        write(&topology.join("core_id"), &format!("{}\n", cpu % 4 / 2));
    }
    write(&folder.path().join("sys/devices/system/node/node0/cpulist"), "0-3\n");
    write(&folder.path().join("sys/devices/system/node/node1/cpulist"), "4-7\n");
    let machine = Machine::at(folder.path());
    let cpus: Vec<i32> = (0..8).collect();
    let topology = Topology::read(&machine, &cpus);
    let count = |value| Count { value, enabled_ns: 1, running_ns: 1 };
    let cells: Vec<Cell> = cpus.iter().map(|&cpu| Cell { cpu, task: ANY, count: count(1 << cpu) }).collect();
    let sums = |by| {
        let rows = rows(&cells, by, &topology).into_iter();
        rows.map(|row| (row.place, row.cpus, row.count.value)).collect::<Vec<_>>()
    };
    assert_eq!(sums(By::All), [(CountPlace::All, 8, 255)]);
    assert_eq!(sums(By::Cpu)[7], (CountPlace::Cpu(7), 1, 128));
    assert_eq!(
        sums(By::Core),
        [
            (CountPlace::Core(0, 0, 0), 2, 3),
            (CountPlace::Core(0, 0, 1), 2, 12),
            (CountPlace::Core(1, 0, 0), 2, 48),
            (CountPlace::Core(1, 0, 1), 2, 192)
        ]
    );
    assert_eq!(sums(By::Die), [(CountPlace::Die(0, 0), 4, 15), (CountPlace::Die(1, 0), 4, 240)]);
    assert_eq!(sums(By::Socket), [(CountPlace::Socket(0), 4, 15), (CountPlace::Socket(1), 4, 240)]);
    assert_eq!(sums(By::Node), [(CountPlace::Node(0), 4, 15), (CountPlace::Node(1), 4, 240)]);
    let bare = Topology::read(&Machine::at(&folder.path().join("none")), &cpus);
    assert_eq!(rows(&cells, By::Socket, &bare).len(), 1);
    let threads = [Cell { cpu: ANY, task: 5, count: count(2) }, Cell { cpu: ANY, task: 6, count: count(3) }];
    let by_thread = rows(&threads, By::Thread, &bare);
    assert_eq!(
        by_thread.iter().map(|row| row.place.clone()).collect::<Vec<_>>(),
        [CountPlace::Thread(5), CountPlace::Thread(6)]
    );
}

/// Checks what is read of a cgroup's and a process's files, and that damaged or hostile ones give
/// nothing instead of nonsense.
#[test]
fn accounts() {
    let folder = tempfile::tempdir().expect("a folder");
    let cgroup = folder.path().join("cgroup");
    write(&cgroup.join("cpu.stat"), "usage_usec 30\nuser_usec 20\nsystem_usec 10\nnice_usec 0\n");
    write(&cgroup.join("memory.stat"), "anon 5\npgfault 9\npgmajfault 2\n");
    write(&cgroup.join("io.stat"), "8:0 rbytes=100 wbytes=7 rios=1\n8:16 rbytes=11 wbytes=0\n");
    write(&cgroup.join("cpu.pressure"), "some avg10=0.00 total=12\nfull avg10=0.00 total=3\n");
    let now = KernelStats::of_cgroup(&cgroup);
    assert_eq!((now.cpu_ns, now.user_ns, now.system_ns), (Some(30_000), Some(20_000), Some(10_000)));
    assert_eq!((now.minor_faults, now.major_faults), (Some(7), Some(2)));
    assert_eq!((now.read_bytes, now.written_bytes, now.peak_bytes), (Some(111), Some(7), None));
    assert_eq!(now.cpu_pressure, Some(Pressure { some_ns: 12_000, full_ns: 3000 }));
    let earlier = KernelStats { cpu_ns: Some(10_000), ..KernelStats::default() };
    assert_eq!(now.since(&earlier).cpu_ns, Some(20_000));

    let process = folder.path().join("proc/42");
    write(&process.join("status"), "Name:\tVmHWM:\t9 kB\nVmHWM:\t    8 kB\n");
    write(&process.join("stat"), "42 (a) b) R 1 2 3 4 5 6 100 0 200 0 3 4 0 0 20\n");
    write(&process.join("io"), "rchar: 1\nread_bytes: 4096\nwrite_bytes: x\n");
    write(&process.join("task/42/status"), "voluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t6\n");
    let of = KernelStats::of_process(&folder.path().join("proc"), 42);
    assert_eq!((of.peak_bytes, of.minor_faults, of.major_faults), (Some(8192), Some(100), Some(200)));
    assert_eq!((of.user_ns, of.system_ns), (Some(30_000_000), Some(40_000_000)));
    assert_eq!((of.read_bytes, of.written_bytes), (Some(4096), None));
    assert_eq!((of.voluntary_switches, of.involuntary_switches), (Some(5), Some(6)));
    assert_eq!(KernelStats::of_process(&folder.path().join("proc"), 43), KernelStats::default());
    write(&process.join("stat"), "42 (no end");
    assert_eq!(KernelStats::of_process(&folder.path().join("proc"), 42).minor_faults, None);
}

/// Checks which events are read where the kernel accounts them anyway: software events that stand
/// alone, and clocks and switches in all modes only.
#[test]
fn what_costs_nothing() {
    let user_only = |mut event: Request| {
        event.attr.set_exclude_kernel(1);
        event
    };
    let events = vec![
        software(Perf::SW_TASK_CLOCK),
        software(3),
        user_only(software(3)),
        user_only(software(2)),
        hardware(0),
        software(Perf::SW_CPU_CLOCK),
        software(2),
        member(software(4), 6),
        software(4),
    ];
    assert_eq!(which(&events), [true, true, false, true, false, true, false, false, true]);
    // Tracepoints are counted by a program at each hit, unless they have a filter or are no
    // tracepoints of the kernel's own.
    let folder = tempfile::tempdir().unwrap();
    for (name, id) in [("sched/sched_switch", "314\n"), ("syscalls/sys_enter_read", "700\n")] {
        write(&folder.path().join("events").join(name).join("id"), id);
    }
    let tracefs = Tracefs::at(folder.path().to_owned());
    let tracepoint = |name: &str, id: u64| {
        let mut event = Request::new(name, software(id).attr);
        event.attr.type_ = Perf::TRACEPOINT;
        event
    };
    let mut filtered = tracepoint("sched:sched_switch", 314);
    let filter =
        TracepointFilter { text: String::new(), tracepoint: tracefs.find("sched", "sched_switch").unwrap() };
    filtered.filter = Some(filter);
    let tracepoints = [
        tracepoint("sched:sched_switch", 314),
        tracepoint("another name", 314),
        tracepoint("sched:sched_switch", 315),
        user_only(tracepoint("sched:sched_switch", 314)),
        tracepoint("syscalls:sys_enter_read", 700),
        filtered,
    ];
    assert_eq!(which_at(&tracepoints, &tracefs), [true, false, false, false, false, false]);
    let many = which(&vec![software(2); 10]);
    assert_eq!(many.iter().filter(|&&can| can).count(), crate::bpf::CgroupCounter::EVENTS);
}
