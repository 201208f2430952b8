//! What event lists cost here: each phase of both engines, for CPU-wide lists and for a process of
//! many sleeping threads.
//!
//! `evlist_speed [THREADS [EVENTS [ROUNDS [WORKERS]]]]`; THREADS 0: CPU-wide. Median/least of
//! alternating rounds, in microseconds.
use kymo_perf::evlist::{self, EvlistPlan, OpenEngine, Request, Targets};
use kymo_perf::sys::{Kernel as _, Perf, Real, attr_zeroed, online_cpus};
use std::sync::Arc;
use std::time::Instant;

fn dummy(index: usize) -> Request {
    let mut attr = attr_zeroed();
    (attr.type_, attr.config) = (Perf::SOFTWARE, Perf::SW_DUMMY);
    attr.sample_type = Perf::SAMPLE_IP | Perf::SAMPLE_TID | Perf::SAMPLE_TIME | Perf::SAMPLE_ID;
    attr.read_format = Perf::FORMAT_ID;
    attr.set_sample_id_all(1);
    attr.set_disabled(1);
    attr.set_inherit(1);
    Request::new(format!("dummy{index}"), attr)
}

fn once(plan: &EvlistPlan, engine: OpenEngine) -> Vec<f64> {
    let mut times = Vec::new();
    let mut at = Instant::now();
    let start = at;
    let mut lap = |times: &mut Vec<f64>| {
        let now = Instant::now();
        times.push((now - at).as_secs_f64() * 1e6);
        at = now;
    };
    let mut list = evlist::open(Arc::new(Real), plan.clone(), engine).unwrap_or_else(|error| {
        eprintln!("{error}");
        std::process::exit(1)
    });
    lap(&mut times);
    let rings = list.map_rings(128, true).unwrap();
    lap(&mut times);
    list.enable(true).unwrap();
    list.enable(false).unwrap();
    lap(&mut times);
    list.disable().unwrap();
    lap(&mut times);
    drop(rings);
    lap(&mut times);
    list.close();
    lap(&mut times);
    times.push(start.elapsed().as_secs_f64() * 1e6);
    times
}

fn main() {
    let arguments: Vec<usize> = std::env::args().skip(1).map(|a| a.parse().unwrap()).collect();
    let get = |index, default| arguments.get(index).copied().unwrap_or(default);
    let (threads, events, rounds, workers) = (get(0, 300), get(1, 1), get(2, 20), get(3, 0));
    kymo_perf::sys::reserve_descriptors(threads * events * online_cpus().len() + 1000);
    kymo_testing::with_waiting_threads(threads, |tasks| {
        let cpus = online_cpus();
        let targets = if threads == 0 { Targets::system(&cpus) } else { Targets::tasks(tasks, &cpus) };
        let plan = EvlistPlan { events: (0..events).map(dummy).collect(), targets };
        let count = Some(workers).filter(|&count| count > 0);
        let engines = [
            ("serial", OpenEngine::Serial),
            ("parallel", OpenEngine::Parallel { workers: count }),
            ("auto", OpenEngine::Auto),
        ];
        let mut all: Vec<Vec<Vec<f64>>> = vec![Vec::new(); engines.len()];
        for _ in 0..rounds {
            for (times, (_, engine)) in all.iter_mut().zip(engines) {
                times.push(once(&plan, engine));
            }
        }
        let start = Instant::now();
        let homes = Real.last_cpus(&plan.targets.tasks);
        let look_us = start.elapsed().as_secs_f64() * 1e6 / homes.len() as f64;
        println!("looking where a task ran last: {look_us:.1} us");
        println!("threads {threads}, events {events}, CPUs {}", cpus.len());
        for ((name, _), times) in engines.iter().zip(all) {
            let phases = ["open", "map", "enable", "disable", "munmap", "close", "all"];
            let medians = phases.iter().enumerate().map(|(phase, name)| {
                let mut phase: Vec<f64> = times.iter().map(|round| round[phase]).collect();
                phase.sort_by(f64::total_cmp);
                format!("{name} {:.0}/{:.0}", phase[phase.len() / 2], phase[0])
            });
            println!("{name:9} {}", medians.collect::<Vec<_>>().join("  "));
        }
    });
}
