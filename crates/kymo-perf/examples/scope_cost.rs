//! What it costs a program to be observed, by the scope of the events: creating threads and
//! processes, and switching between them, with events that are inherited, bound to a cgroup, open
//! on whole CPUs and filtered there, or not; and what the cgroup itself costs.
//!
//! `cargo run --release -p kymo-perf --example scope_cost [ROUNDS]`. One worker process does the
//! same work in every configuration; the configurations alternate in every round, so that what else
//! runs on the machine hits all alike. Root, no other recording.
use kymo_perf::bpf::{Follow, Follower};
use kymo_perf::cgroup::OwnCgroup;
use kymo_perf::sys::{Descriptor, EventTarget, Kernel as _, Perf, Real, attr_zeroed, online_cpus};
use kymo_perf::workload::Workload;
use rustix::thread::CpuSet;
use std::ffi::OsString;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

type Failure = Box<dyn std::error::Error>;

/// How the worker is observed.
#[derive(Clone, Copy)]
enum Scope {
    Bare,
    /// On the worker's task, per CPU, inherited by what it creates.
    Inherit,
    /// On the worker's cgroup, per CPU.
    Cgroup,
    /// On the CPUs, with programs in the kernel that drop the samples of others.
    Filtered,
    /// On the CPUs, whoever runs.
    Wide,
}

const CLOCK: u64 = Perf::SW_CPU_CLOCK;
const DUMMY: u64 = Perf::SW_DUMMY;

/// Name, scope, event, how many of it.
const CONFIGURATIONS: [(&str, Scope, u64, usize); 14] = [
    ("bare", Scope::Bare, CLOCK, 0),
    ("inherit, dummy", Scope::Inherit, DUMMY, 1),
    ("inherit, 1 cpu-clock", Scope::Inherit, CLOCK, 1),
    ("inherit, 4 cpu-clock", Scope::Inherit, CLOCK, 4),
    ("cgroup, dummy", Scope::Cgroup, DUMMY, 1),
    ("cgroup, 1 cpu-clock", Scope::Cgroup, CLOCK, 1),
    ("cgroup, 4 cpu-clock", Scope::Cgroup, CLOCK, 4),
    ("filtered, dummy", Scope::Filtered, DUMMY, 1),
    ("filtered, 1 cpu-clock", Scope::Filtered, CLOCK, 1),
    ("filtered, 4 cpu-clock", Scope::Filtered, CLOCK, 4),
    ("CPU-wide, dummy", Scope::Wide, DUMMY, 1),
    ("CPU-wide, 1 cpu-clock", Scope::Wide, CLOCK, 1),
    ("CPU-wide, 4 cpu-clock", Scope::Wide, CLOCK, 4),
    ("bare again", Scope::Bare, CLOCK, 0),
];

/// What the worker is told, and how it is called in the table.
const WORK: [(&str, &str); 5] = [
    ("threads 150", "thread create+join"),
    ("forks 60", "fork+exit+wait"),
    ("pinned 1500", "pipe, one CPU"),
    ("free 1000", "pipe, free"),
    ("echo 1000", "pipe to an outsider"),
];

fn main() -> Result<(), Failure> {
    match std::env::args().nth(1).as_deref() {
        Some("worker") => worker(),
        rounds => survey(rounds.map_or(Ok(40), str::parse)?),
    }
}

fn survey(rounds: usize) -> Result<(), Failure> {
    let cpus = online_cpus();
    let cgroup = OwnCgroup::create()?;
    let mut worker = Command::new(std::env::current_exe()?)
        .arg("worker")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let pid = worker.id() as i32;
    cgroup.add(pid)?;
    let (Some(mut to), Some(from)) = (worker.stdin.take(), worker.stdout.take()) else {
        return Err("no pipe to the worker".into());
    };
    let mut from = BufReader::new(from);
    // Warms caches and the allocator of stacks.
    for (work, _) in WORK.iter().filter(|(work, _)| !work.starts_with("echo")) {
        ask(&mut to, &mut from, work)?;
    }
    let mut seen = vec![[const { Vec::new() }; WORK.len() + 2]; CONFIGURATIONS.len()];
    for round in 0..rounds {
        for step in 0..CONFIGURATIONS.len() {
            // Another first one in every round.
            let index = (step + round) % CONFIGURATIONS.len();
            let (_, scope, event, count) = CONFIGURATIONS[index];
            let begin = Instant::now();
            let events = open(scope, event, count, pid, cgroup.fd().as_fd(), &cpus)?;
            let follower = match scope {
                Scope::Filtered => Some(Follower::start(Follow::Processes(&[pid]))?),
                _ => None,
            };
            if let Some(follower) = &follower {
                events
                    .iter()
                    .try_for_each(|event| Real.set_bpf(event, follower.program().expect("not bound yet")))?;
            }
            seen[index][WORK.len()].push(begin.elapsed().as_nanos() as u64);
            for (column, (work, _)) in WORK.iter().enumerate() {
                let time = match work.split_once(' ') {
                    Some(("echo", count)) => echo(&mut to, &mut from, pid, count.parse()?)?,
                    _ => ask(&mut to, &mut from, work)?,
                };
                seen[index][column].push(time);
            }
            let begin = Instant::now();
            Real.close(events);
            drop(follower);
            seen[index][WORK.len() + 1].push(begin.elapsed().as_nanos() as u64);
        }
    }
    drop(to);
    worker.wait()?;
    print(&mut seen, cpus.len(), rounds);
    cgroups(rounds.max(20))
}

fn print(seen: &mut [[Vec<u64>; WORK.len() + 2]], cpus: usize, rounds: usize) {
    println!("# {cpus} CPUs, {rounds} rounds; ns per operation, and the ratio to bare");
    for (name, share) in [("medians", 0.5), ("the fastest tenth ends at", 0.1)] {
        println!("\n# {name}");
        table(seen, share);
    }
}

fn table(seen: &mut [[Vec<u64>; WORK.len() + 2]], share: f64) {
    print!("{:24}", "");
    WORK.iter().for_each(|(_, name)| print!("{name:>26}"));
    println!("{:>12}{:>12}", "open us", "close us");
    let medians: Vec<[u64; WORK.len() + 2]> =
        seen.iter_mut().map(|row| row.each_mut().map(|values| quantile(values, share))).collect();
    for (row, (name, ..)) in medians.iter().zip(CONFIGURATIONS) {
        print!("{name:24}");
        for (column, value) in row[..WORK.len()].iter().enumerate() {
            print!("{value:>17} ({:>4.2}x)", *value as f64 / medians[0][column] as f64);
        }
        println!("{:>12}{:>12}", row[WORK.len()] / 1000, row[WORK.len() + 1] / 1000);
    }
}

/// The cgroup's own cost, with a command that waits in it and is never executed.
fn cgroups(rounds: usize) -> Result<(), Failure> {
    let mut times: [Vec<u64>; 3] = Default::default();
    for _ in 0..rounds {
        let command = Workload::prepare(&[OsString::from("true")])?;
        let begin = Instant::now();
        let cgroup = OwnCgroup::create()?;
        times[0].push(begin.elapsed().as_nanos() as u64);
        let begin = Instant::now();
        cgroup.add(command.pid())?;
        times[1].push(begin.elapsed().as_nanos() as u64);
        drop(command);
        let begin = Instant::now();
        cgroup.remove()?;
        times[2].push(begin.elapsed().as_nanos() as u64);
    }
    let [create, add, remove] = times.each_mut().map(|values| (quantile(values, 0.5), quantile(values, 0.9)));
    println!("\n# the cgroup, us: median (90th percentile)");
    for (name, (median, tail)) in [("create", create), ("add", add), ("remove", remove)] {
        println!("{name:24}{:>8.1} ({:.1})", median as f64 / 1e3, tail as f64 / 1e3);
    }
    Ok(())
}

fn quantile(values: &mut [u64], share: f64) -> u64 {
    values.sort_unstable();
    values[(values.len() as f64 * share) as usize]
}

fn ask(to: &mut ChildStdin, from: &mut BufReader<ChildStdout>, work: &str) -> Result<u64, Failure> {
    writeln!(to, "{work}")?;
    let mut answer = String::new();
    from.read_line(&mut answer)?;
    Ok(answer.trim().parse()?)
}

/// The worker hands lines to and fro with this process, which is not observed: two switches each
/// time between who is and who is not.
fn echo(
    to: &mut ChildStdin,
    from: &mut BufReader<ChildStdout>,
    pid: i32,
    count: u32,
) -> Result<u64, Failure> {
    let all = rustix::thread::sched_getaffinity(None)?;
    let one = first_of(&all);
    for task in [None, rustix::process::Pid::from_raw(pid)] {
        rustix::thread::sched_setaffinity(task, &one)?;
    }
    writeln!(to, "echo {count}")?;
    let mut answer = String::new();
    let begin = Instant::now();
    for _ in 0..count {
        to.write_all(b"x\n")?;
        answer.clear();
        from.read_line(&mut answer)?;
    }
    let time = begin.elapsed().as_nanos() as u64 / u64::from(count);
    for task in [None, rustix::process::Pid::from_raw(pid)] {
        rustix::thread::sched_setaffinity(task, &all)?;
    }
    from.read_line(&mut answer)?;
    Ok(time)
}

fn first_of(cpus: &CpuSet) -> CpuSet {
    let mut one = CpuSet::new();
    one.set((0..CpuSet::MAX_CPU).find(|&cpu| cpus.is_set(cpu)).unwrap_or(0));
    one
}

/// Opens `count` events on every CPU, running.
fn open(
    scope: Scope,
    event: u64,
    count: usize,
    pid: i32,
    cgroup: BorrowedFd<'_>,
    cpus: &[u32],
) -> io::Result<Vec<Descriptor>> {
    let mut attr = attr_zeroed();
    attr.type_ = Perf::SOFTWARE;
    attr.config = event;
    attr.sample_type = Perf::SAMPLE_IP | Perf::SAMPLE_TID | Perf::SAMPLE_TIME;
    attr.set_inherit(matches!(scope, Scope::Inherit).into());
    if event == CLOCK {
        attr.set_freq(1);
        attr.__bindgen_anon_1.sample_freq = 997;
    }
    let place = |cpu: u32| match scope {
        Scope::Inherit => EventTarget::new(pid, cpu as i32),
        Scope::Cgroup => EventTarget { cgroup: Some(cgroup), ..EventTarget::cpu(cpu as i32) },
        Scope::Bare | Scope::Wide | Scope::Filtered => EventTarget::cpu(cpu as i32),
    };
    let places = (0..count).flat_map(|_| cpus).map(|&cpu| place(cpu));
    places.map(|place| Real.open(&attr, &place)).collect()
}

fn worker() -> Result<(), Failure> {
    let mut lines = io::stdin().lines();
    while let Some(line) = lines.next() {
        let line = line?;
        let (kind, count) = line.split_once(' ').ok_or("KIND COUNT")?;
        let count: u32 = count.parse()?;
        let nanoseconds = match kind {
            "threads" => threads(count),
            "forks" => forks(count),
            "echo" => {
                for _ in 0..count {
                    println!("{}", lines.next().ok_or("a line")??);
                }
                0
            }
            "pinned" => ping_pong(count, true)?,
            _ => ping_pong(count, false)?,
        };
        println!("{}", nanoseconds / u64::from(count));
    }
    Ok(())
}

fn threads(count: u32) -> u64 {
    let begin = Instant::now();
    for _ in 0..count {
        let _ = std::thread::spawn(|| {}).join();
    }
    begin.elapsed().as_nanos() as u64
}

fn forks(count: u32) -> u64 {
    let begin = Instant::now();
    for _ in 0..count {
        // SAFETY: the child only exits.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: ends this process at once.
            unsafe { libc::_exit(0) };
        }
        // SAFETY: our own child, no status wanted.
        unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
    }
    begin.elapsed().as_nanos() as u64
}

/// Two threads hand a byte to and fro: two switches each time.
fn ping_pong(count: u32, pinned: bool) -> io::Result<u64> {
    let before = rustix::thread::sched_getaffinity(None)?;
    if pinned {
        rustix::thread::sched_setaffinity(None, &first_of(&before))?;
    }
    let (mut from_there, mut to_here) = io::pipe()?;
    let (mut from_here, mut to_there) = io::pipe()?;
    // A new thread runs where its creator may.
    let there = std::thread::spawn(move || {
        let mut byte = [0];
        while from_here.read_exact(&mut byte).is_ok() && to_here.write_all(&byte).is_ok() {}
    });
    let mut byte = [0];
    to_there.write_all(&byte)?;
    from_there.read_exact(&mut byte)?;
    let begin = Instant::now();
    for _ in 0..count {
        to_there.write_all(&byte)?;
        from_there.read_exact(&mut byte)?;
    }
    let time = begin.elapsed().as_nanos() as u64;
    drop(to_there);
    let _ = there.join();
    rustix::thread::sched_setaffinity(None, &before)?;
    Ok(time)
}
