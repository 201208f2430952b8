//! How long event lists would take on machines of other sizes: what each call costs is measured
//! here, then the same engines open, map, switch and close lists on a simulated kernel that charges
//! these costs. Prints markdown for docs/internals/design/0002-event-lists.md.
use kymo_perf::evlist::{self, EvlistPlan, OpenEngine, Request, Targets};
use kymo_perf::ring::Keeps;
use kymo_perf::sys::simulated::{Costs, Simulated};
use kymo_perf::sys::{EventTarget, Kernel, Perf, Real, attr_zeroed, perf_event_attr, pin_to};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Instant;

const SAMPLES: usize = 300;

fn attr() -> perf_event_attr {
    let mut attr = attr_zeroed();
    (attr.type_, attr.config) = (Perf::SOFTWARE, Perf::SW_DUMMY);
    attr.read_format = Perf::FORMAT_ID;
    attr.set_disabled(1);
    attr
}

fn median(mut times: Vec<u64>) -> u64 {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or(0)
}

/// The result, and nanoseconds.
fn timed<T>(act: impl FnOnce() -> T) -> (T, u64) {
    let start = Instant::now();
    let result = act();
    (result, start.elapsed().as_nanos() as u64)
}

/// Medians of: first open, second open, redirect, enable, disable, close.
type Calls = [u64; 6];

fn calls(places: &[EventTarget<'_>]) -> Calls {
    let attr = attr();
    let mut times: [Vec<u64>; 6] = Default::default();
    for place in places {
        let (first, took) = timed(|| Real.open(&attr, place));
        let first = first.expect("events of tasks and CPUs can be opened here");
        times[0].push(took);
        let ring = Real.map(&first, 1, Keeps::Oldest).expect("a ring of one page");
        let (second, took) = timed(|| Real.open(&attr, place).expect("a second event"));
        times[1].push(took);
        times[2].push(timed(|| Real.set_output(&second, &first).expect("the same CPU and task")).1);
        times[3].push(timed(|| Real.switch(&second, true).expect("it is open")).1);
        times[4].push(timed(|| Real.switch(&second, false).expect("it is open")).1);
        times[5].push(timed(|| Real.close(vec![second])).1);
        drop(ring);
        Real.close(vec![first]);
    }
    times.map(median)
}

/// Runs `body` with threads that last ran on this CPU.
fn asleep_on<T>(cpu: u32, count: usize, body: impl FnOnce(&[i32]) -> T) -> T {
    let (tids, done) = (Mutex::new(Vec::new()), Barrier::new(count + 1));
    std::thread::scope(|scope| {
        for _ in 0..count {
            let thread = std::thread::Builder::new().stack_size(32 << 10);
            let sleep = || {
                let _ = pin_to(cpu);
                tids.lock().unwrap().push(rustix::thread::gettid().as_raw_nonzero().get());
                done.wait();
                done.wait();
            };
            thread.spawn_scoped(scope, sleep).expect("a thread");
        }
        done.wait();
        let list = tids.lock().unwrap().clone();
        let result = body(&list);
        done.wait();
        result
    })
}

/// Costs of CPU-wide events and of events of tasks.
fn measure() -> (Costs, Costs) {
    let far = kymo_perf::sys::online_cpus().last().copied().unwrap_or(0);
    let _ = pin_to(0);
    let at = |cpu: u32| calls(&vec![EventTarget::cpu(cpu as i32); SAMPLES]);
    let (near_cpu, far_cpu) = (at(0), at(far));
    let of = |tasks: &[i32]| calls(&tasks.iter().map(|&task| EventTarget::new(task, 0)).collect::<Vec<_>>());
    let near_task = asleep_on(0, SAMPLES, of);
    let (far_task, look_ns) = asleep_on(far, SAMPLES, |tasks| {
        let far = of(tasks);
        (far, timed(|| Real.last_cpus(tasks)).1 / tasks.len() as u64)
    });
    let bind_ns = median((0..SAMPLES as u32).map(|i| timed(|| Real.bind(i % 2 * far)).1).collect());
    println!(
        "| call, median of {SAMPLES}, ns | CPU-wide, own CPU | CPU-wide, other CPU | task, own CPU | task, other CPU |"
    );
    println!("|---|---|---|---|---|");
    let names = ["open, first", "open, second", "redirect", "enable", "disable", "close"];
    for (index, name) in names.iter().enumerate() {
        let row = [near_cpu, far_cpu, near_task, far_task].map(|calls| calls[index].to_string());
        println!("| {name} | {} |", row.join(" | "));
    }
    println!(
        "\nLooking where a task ran last: {look_ns} ns; moving a thread to another CPU: {bind_ns} ns.\n"
    );
    let costs = |near: Calls, far: Calls| {
        let more = |call: usize| far[call].saturating_sub(near[call]);
        Costs {
            open_ns: near[1],
            first_ns: near[0].saturating_sub(near[1]),
            switch_ns: (near[3] + near[4]) / 2,
            output_ns: near[2],
            close_ns: near[5],
            look_ns,
            bind_ns,
            remote_ns: (more(0) + more(3) + more(4)) / 3,
            remote_close_ns: more(5),
        }
    };
    (costs(near_cpu, far_cpu), costs(near_task, far_task))
}

/// An event that is switched by itself, and one list-wide tracker, so that nothing is switched by
/// prctl.
fn events(count: usize) -> Vec<Request> {
    let mut events: Vec<Request> =
        (0..count).map(|index| Request::new(format!("event{index}"), attr())).collect();
    events[0].immediate = count > 1;
    events
}

fn run(name: &str, costs: Costs, cpus: u32, plan: EvlistPlan, engine: OpenEngine) {
    let tasks = plan.targets.tasks.len();
    let needed = plan.events.len() * plan.targets.cpus.len() * tasks;
    let kernel = Arc::new(Simulated::new(costs, cpus, tasks, needed));
    let real = Instant::now();
    let mut list = evlist::open(Arc::<Simulated>::clone(&kernel), plan, engine).expect("nothing is refused");
    let mut row = vec![kernel.take_ns()];
    let rings = list.map_rings(1, true).expect("small rings");
    row.push(kernel.take_ns());
    list.enable(true).and_then(|()| list.enable(false)).expect("nothing is refused");
    row.push(kernel.take_ns());
    list.disable().expect("nothing is refused");
    row.push(kernel.take_ns());
    drop(rings);
    let (descriptors, workers) = (list.descriptors(), list.workers());
    list.close();
    assert_eq!(kernel.live(), 0);
    row.push(kernel.take_ns());
    row.push(row.iter().sum());
    let times = row.iter().map(|&ns| format!("{:.1}", ns as f64 / 1e6)).collect::<Vec<_>>().join(" | ");
    let workers = if workers == 0 { "-".to_owned() } else { workers.to_string() };
    println!("| {name} | {workers} | {descriptors} | {times} |");
    eprintln!("{name}: {:.1} s of real time", real.elapsed().as_secs_f64());
}

/// What the table leaves out: threads to start and to wake.
fn crew(workers: u32) {
    let plan = || {
        let all: Vec<u32> = (0..workers).collect();
        EvlistPlan { events: events(1), targets: Targets::system(&all) }
    };
    let open = || {
        let kernel = Arc::new(Simulated::new(Costs::default(), workers, 1, workers as usize));
        let engine = OpenEngine::Parallel { workers: Some(workers as usize) };
        evlist::open(kernel, plan(), engine).expect("nothing is refused")
    };
    let starts: Vec<u64> = (0..5).map(|_| timed(open).1).collect();
    let list = open();
    let wakes: Vec<u64> = (0..5).map(|_| timed(|| list.enable(false)).1).collect();
    println!(
        "{workers} workers here: {} us to start, {} us per phase.",
        median(starts) / 1000,
        median(wakes) / 1000
    );
}

fn main() {
    let (cpu_costs, task_costs) = measure();
    println!(
        "| list | workers | descriptors | open ms | redirect ms | enable ms | disable ms | close ms | all ms |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for (cpus, threads) in [(2u32, 2_000), (64, 2_000), (512, 10_000)] {
        let all: Vec<u32> = (0..cpus).collect();
        let tasks: Vec<i32> = (1..=threads).collect();
        let plan =
            |count: usize, targets: &Targets| EvlistPlan { events: events(count), targets: targets.clone() };
        let parallel = |workers| OpenEngine::Parallel { workers: Some(workers) };
        let threaded = Targets::tasks(tasks, &all);
        let name = format!("{threads} threads x {cpus} CPUs");
        run(&name, task_costs, cpus, plan(1, &threaded), OpenEngine::Serial);
        for workers in
            [16, 64, 512].into_iter().map(|w| w.min(cpus as usize)).collect::<std::collections::BTreeSet<_>>()
        {
            run(&name, task_costs, cpus, plan(1, &threaded), parallel(workers));
        }
        let system = Targets::system(&all);
        for count in [1, 100] {
            let name = format!("{count} per CPU, {cpus} CPUs");
            run(&name, cpu_costs, cpus, plan(count, &system), OpenEngine::Serial);
            run(&name, cpu_costs, cpus, plan(count, &system), parallel(cpus as usize));
        }
    }
    println!();
    [2, 16, 64, 512].into_iter().for_each(crew);
}
