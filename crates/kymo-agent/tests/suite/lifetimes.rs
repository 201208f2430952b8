//! What an agent costs a program over time: nothing while it waits, and no more after many visits
//! than after a few.
use super::inject::{Program, Running, soon};

/// What the kernel keeps for a process.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Clone, Copy)]
struct Size {
    mappings: usize,
    descriptors: usize,
    threads: usize,
    kib: u64,
}

fn entries(pid: i32, of: &str) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/{of}")).expect("a folder of /proc").count()
}

fn size(running: &Running<'_>) -> Size {
    let pid = running.pid();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
    let kib =
        status.lines().find_map(|line| line.strip_prefix("VmSize:")?.trim().split(' ').next()?.parse().ok());
    Size {
        mappings: maps.lines().count(),
        descriptors: entries(pid, "fd"),
        threads: entries(pid, "task"),
        kib: kib.expect("a size"),
    }
}

/// Checks that a program which is entered, probed and left 100 times is no larger afterwards than
/// after the first times, has no thread and no descriptor of ours, and the bytes of the file.
#[test]
fn a_hundred_visits() {
    let Some(program) = Program::of("lifetimes::a_hundred_visits", &[]) else { return };
    let mut running = program.start(&[]);
    let plain = running.call(1000);
    let (threads, descriptors) = (entries(running.pid(), "task"), entries(running.pid(), "fd"));
    let mut after_some = None;
    for visit in 0..100 {
        let client = running.enter();
        running.arm(&client, 1);
        assert_eq!(running.call(1000), plain);
        assert_eq!(client.counts()[0].hits, 1000);
        if visit % 2 == 0 {
            client.leave().expect("it leaves");
        } else {
            drop(client);
        }
        soon("the end of the agent's thread", || running.threads_of_ours() == 0);
        assert_eq!(running.text(), program.original);
        // The C library keeps some stacks of threads that have ended.
        if visit == 9 {
            after_some = Some(size(&running));
        }
    }
    let (before, after) = (after_some.expect("ten visits"), size(&running));
    assert_eq!((after.threads, after.descriptors), (threads, before.descriptors));
    // The file of the counters stays open.
    assert!(after.descriptors <= descriptors + 1, "{after:?}, {descriptors} descriptors before");
    // Memory that the agent's allocations took may be kept, and reused: not a mapping for each
    // visit.
    assert!(after.mappings <= before.mappings + 2 && after.kib <= before.kib + 4096, "{before:?} {after:?}");
    assert_eq!(running.call(1000), plain);
}

/// What the agent's thread has done: its number, times that it ran, CPU time, and the call that it
/// waits in.
fn history(running: &Running<'_>) -> (String, Vec<String>, String, String) {
    let pid = running.pid();
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("tasks");
    let of = |tid: &str, file: &str| {
        std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/{file}")).unwrap_or_default()
    };
    let tids = tasks.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let tid =
        tids.into_iter().find(|tid| of(tid, "comm").trim() == "kymo-agent").expect("the agent's thread");
    let status = of(&tid, "status");
    let switches = status.lines().filter(|line| line.contains("ctxt_switches")).map(str::to_owned).collect();
    let stat = of(&tid, "stat");
    let stat: Vec<&str> = stat.rsplit(") ").next().expect("numbers").split(' ').collect();
    // State, and CPU time in and outside of the kernel.
    (tid.clone(), switches, format!("{} {} {}", stat[0], stat[11], stat[12]), of(&tid, "syscall"))
}

/// Checks that the agent in a program that works does nothing while nobody asks it: its one thread
/// waits in one system call that it does not leave, with and without a probe that is hit.
#[test]
fn an_idle_agent_sleeps() {
    let Some(program) = Program::of("lifetimes::an_idle_agent_sleeps", &[]) else { return };
    let mut running = program.start(&["allocate"]);
    let client = running.enter();
    for armed in [false, true] {
        if armed {
            running.arm(&client, 1);
        }
        assert_eq!(running.threads_of_ours(), 1);
        let asleep = |now: &(String, Vec<String>, String, String)| {
            now.2.starts_with('S') && !now.3.starts_with("running")
        };
        soon("the agent's rest", || asleep(&history(&running)));
        let before = history(&running);
        for _ in 0..20 {
            running.call(2_000_000);
        }
        assert_eq!(history(&running), before, "the agent woke up, with a probe: {armed}");
    }
    client.leave().expect("it leaves");
}
