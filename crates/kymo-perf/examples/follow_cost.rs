//! What following in the kernel costs: setting up, tearing down, making threads, and each sample.
//! Needs privilege.
//!
//! `cargo run --release -p kymo-perf --example follow_cost [ROUNDS]`
//!
//! Everything is measured in turns (one of each kind, then again), and medians are printed, so that
//! a machine that slows down does so for all kinds.
use kymo_perf::bpf::{Attachment, Follow, FollowOptions, Follower};
use kymo_perf::ring::{Keeps, Ring};
use kymo_perf::sys::{Descriptor, EventTarget, Kernel, Perf, Real, attr_zeroed, online_cpus};
use std::time::Instant;

/// Threads made and joined per measurement.
const THREADS: u32 = 300;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rounds = std::env::args().nth(1).map_or(Ok(11), |text| text.parse())?;
    Follower::available()?;
    set_up(rounds)?;
    threads(3 * rounds)?;
    samples()
}

/// (lower quartile, median)
fn quartiles(mut values: Vec<f64>) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 4], values[values.len() / 2])
}

/// Set-up and tear-down for a number of targets, by both attachments.
fn set_up(rounds: usize) -> Result<(), Box<dyn std::error::Error>> {
    // Ids that no task has: entering them costs the same.
    let ids: Vec<i32> = (1 << 23..).take(10_000).collect();
    let me = [std::process::id() as i32];
    let kinds: [(&str, Follow<'_>); 5] = [
        ("1 process, any number of threads", Follow::Processes(&me)),
        ("2,000 processes", Follow::Processes(&ids[..2_000])),
        ("1 thread", Follow::Threads { ids: &ids[..1], children: true }),
        ("2,000 threads", Follow::Threads { ids: &ids[..2_000], children: true }),
        ("10,000 threads", Follow::Threads { ids: &ids, children: true }),
    ];
    println!("set-up and tear-down, ms (median of {rounds})");
    println!("{:<34} {:>9} {:>9} {:>11} {:>11}", "", "raw start", "raw drop", "event start", "event drop");
    for (name, who) in kinds {
        let mut times = [const { Vec::new() }; 4];
        for _ in 0..rounds {
            for (column, attachment) in [(0, Attachment::Raw), (2, Attachment::Tracepoint)] {
                let options = FollowOptions { attachment: Some(attachment), ..FollowOptions::default() };
                let start = Instant::now();
                let follower = Follower::start_with(who, &options)?;
                times[column].push(start.elapsed().as_secs_f64() * 1e3);
                let start = Instant::now();
                drop(follower);
                times[column + 1].push(start.elapsed().as_secs_f64() * 1e3);
            }
        }
        let [a, b, c, d] = times.map(|times| quartiles(times).1);
        println!("{name:<34} {a:>9.2} {b:>9.2} {c:>11.2} {d:>11.2}");
    }
    Ok(())
}

/// cpu-clock at 1,000 Hz.
fn clock(inherit: bool) -> kymo_perf::sys::perf_event_attr {
    let mut attr = attr_zeroed();
    (attr.type_, attr.config) = (Perf::SOFTWARE, Perf::SW_CPU_CLOCK);
    attr.__bindgen_anon_1.sample_period = 1_000_000;
    attr.sample_type = Perf::SAMPLE_IP | Perf::SAMPLE_TID;
    attr.set_disabled(1);
    attr.set_inherit(inherit.into());
    attr
}

/// Enabled events on every CPU, with rings that nobody reads.
fn open(
    task: i32,
    follower: Option<&Follower>,
) -> Result<Vec<(Descriptor, Ring)>, Box<dyn std::error::Error>> {
    let attr = clock(task > 0);
    let mut events = Vec::new();
    for cpu in online_cpus() {
        let event = Real.open(&attr, &EventTarget::new(task, cpu as i32))?;
        if let Some(follower) = follower {
            Real.set_bpf(&event, follower.program().expect("not bound yet"))?;
        }
        let ring = Real.map(&event, 8, Keeps::Oldest)?;
        Real.switch(&event, true)?;
        events.push((event, ring));
    }
    Ok(events)
}

fn close(events: Vec<(Descriptor, Ring)>) {
    Real.close(events.into_iter().map(|(event, _)| event).collect());
}

/// Nanoseconds of CPU time that all threads of this process have had, ended ones too.
fn cpu_ns() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Microseconds of CPU time per thread made and joined: unlike wall time, not lengthened by what
/// else runs on the machine.
fn spawn() -> f64 {
    let start = cpu_ns();
    for _ in 0..THREADS {
        std::thread::spawn(|| {}).join().expect("an empty thread ends well");
    }
    (cpu_ns() - start) / 1e3 / f64::from(THREADS)
}

fn threads(rounds: usize) -> Result<(), Box<dyn std::error::Error>> {
    let me = std::process::id() as i32;
    let names = [
        "bare",
        "bare again (the noise)",
        "followed as a stranger",
        "followed process, no events",
        "followed process, cpu-clock on every CPU",
        "followed threads, cpu-clock on every CPU",
        "the same by tracepoint events",
        "inherited cpu-clock on every CPU",
    ];
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); names.len()];
    for _ in 0..rounds {
        for (kind, times) in times.iter_mut().enumerate() {
            let attachment = if kind == 6 { Attachment::Tracepoint } else { Attachment::Raw };
            let who = match kind {
                2 => Some(Follow::Processes(&[1])),
                3 | 4 => Some(Follow::Processes(&[me])),
                5 | 6 => Some(Follow::Threads { ids: &[me], children: true }),
                _ => None,
            };
            let options = FollowOptions { attachment: Some(attachment), ..FollowOptions::default() };
            let follower = who.map(|who| Follower::start_with(who, &options)).transpose()?;
            let events = match kind {
                4..=6 => open(-1, follower.as_ref())?,
                7 => open(me, None)?,
                _ => Vec::new(),
            };
            times.push(spawn());
            close(events);
        }
    }
    println!("\nmaking and joining a thread, µs of CPU time ({rounds} x {THREADS}): lower quartile, median");
    let times: Vec<_> = times.into_iter().map(quartiles).collect();
    for (name, (low, middle)) in names.iter().zip(&times) {
        let (low_ratio, ratio) = (low / times[0].0, middle / times[0].1);
        println!("{name:<42} {low:>7.2} {low_ratio:>6.3}x {middle:>9.2} {ratio:>6.3}x");
    }
    Ok(())
}

/// The kernel's own account of the time in the program, where it may be switched on.
fn samples() -> Result<(), Box<dyn std::error::Error>> {
    const SWITCH: &str = "/proc/sys/kernel/bpf_stats_enabled";
    let before = std::fs::read_to_string(SWITCH)?;
    std::fs::write(SWITCH, "1")?;
    let measured = (|| {
        for (name, pid) in [("kept", std::process::id() as i32), ("dropped", 1)] {
            let follower = Follower::start(Follow::Processes(&[pid]))?;
            let mut attr = clock(false);
            attr.__bindgen_anon_1.sample_period = 50_000;
            let event = Real.open(&attr, &EventTarget::new(0, -1))?;
            Real.set_bpf(&event, follower.program().expect("not bound yet"))?;
            Real.switch(&event, true)?;
            let start = Instant::now();
            while start.elapsed().as_millis() < 500 {}
            Real.close(vec![event]);
            let number = std::os::fd::AsRawFd::as_raw_fd(&follower.program().expect("not bound yet"));
            let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}"))?;
            let field = |name: &str| {
                let value = info.lines().find_map(|line| line.strip_prefix(name))?.trim();
                value.parse::<f64>().ok()
            };
            if let (Some(ns), Some(runs)) = (field("run_time_ns:"), field("run_cnt:")) {
                println!(
                    "the program for a sample that is {name}: {:.0} ns ({runs} runs, with the clock's cost)",
                    ns / runs
                );
            }
        }
        Ok(())
    })();
    std::fs::write(SWITCH, before.trim())?;
    measured
}
