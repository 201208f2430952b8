//! Ten thousand tasks on tokio: who used the CPU, and what it costs to know.
//!
//! `cargo run --release --example tokio [TASKS [SECONDS_TO_STAY]]`; while it stays,
//! `kymo stat --tasks -p PID` shows its tasks.
use kymo_agent::task::{Counter, Group, Instrument, Task, enter_thread, publish};
use std::hint::black_box;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: kymo_agent::alloc::Counting<std::alloc::System> =
    kymo_agent::alloc::Counting(std::alloc::System);

/// How often each task waits for its next turn.
const TURNS: usize = 10;

async fn work(number: usize) -> usize {
    let mut found = Vec::new();
    for turn in 0..TURNS {
        for candidate in 0..4000 + 400 * (number % 10) {
            if black_box(candidate * candidate + turn) % 97 == 0 {
                found.push(candidate);
            }
        }
        tokio::task::yield_now().await;
    }
    found.len()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let tasks: usize = arguments.next().map_or(Ok(10_000), |tasks| tasks.parse())?;
    let stays: u64 = arguments.next().map_or(Ok(0), |seconds| seconds.parse())?;
    publish()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("worker")
        .on_thread_start(|| {
            // Refused on the 1025th thread only.
            let _ = enter_thread();
        })
        .build()?;
    let group = Group::builder("ten thousand").per_task().count(Counter::Allocations).build()?;

    let started = Instant::now();
    let mut running = Vec::new();
    let mut watches = Vec::new();
    for number in 0..tasks {
        let task = group.task(format!("task {number}"))?;
        watches.push(task.watch());
        running.push(runtime.spawn(work(number).instrument(task)));
    }
    runtime.block_on(async {
        let mut found = 0;
        for task in running {
            found += task.await?;
        }
        black_box(found);
        Ok::<(), Box<dyn std::error::Error>>(())
    })?;
    let elapsed = started.elapsed();
    // The executor's threads rest now.
    std::thread::sleep(Duration::from_millis(20));

    let mut each = Vec::new();
    for watch in &watches {
        let reading = watch.read()?;
        each.push((reading.cpu_time().unwrap_or_default(), watch.number(), reading));
    }
    each.sort_by_key(|(cpu, ..)| std::cmp::Reverse(*cpu));
    let of_tasks: Duration = each.iter().map(|(cpu, ..)| *cpu).sum();
    let (mut between, mut kernel) = (Duration::ZERO, Duration::ZERO);
    for thread in
        Group::all().iter().find(|group| group.name() == "(threads)").map_or(Ok(Vec::new()), Group::tasks)?
    {
        if thread.name.starts_with("worker") {
            between += thread.reading.cpu_time().unwrap_or_default();
            kernel += kernels_cpu_time(&thread.name)?;
        }
    }
    let polls = group.read()?.polls;
    println!("{tasks} tasks, {polls} polls in {elapsed:.0?} on 2 threads");
    println!("CPU time of the tasks             {of_tasks:>12.3?}");
    println!("CPU time of the threads otherwise {between:>12.3?}");
    let (sum, percent) =
        (of_tasks + between, |a: Duration, b: Duration| 100.0 * (a.as_secs_f64() / b.as_secs_f64() - 1.0));
    println!("sum                               {sum:>12.3?}");
    println!("the threads', as the kernel says  {kernel:>12.3?}  ({:+.2} %)", percent(sum, kernel));
    println!("\nThe dearest tasks:");
    for (cpu, number, reading) in each.iter().take(3) {
        println!(
            "  number {number}: {cpu:.1?}, {} polls, {} allocations",
            reading.polls,
            reading.get(Counter::Allocations).unwrap_or(0)
        );
    }
    println!("\nWhat a poll costs (of a future that does nothing):");
    costs()?;
    if stays > 0 {
        println!("\nstays for {stays} s as process {}", std::process::id());
        let pool = runtime.block_on(async {
            let keep = |number: usize| {
                let end = Instant::now() + Duration::from_secs(stays);
                async move {
                    while Instant::now() < end {
                        black_box(work(number).await);
                    }
                }
            };
            let tasks = (0..20).map(|number| {
                Ok(tokio::spawn(keep(number).instrument(group.task(format!("stays {number}"))?)))
            });
            tasks.collect::<Result<Vec<_>, kymo_agent::task::Error>>()
        })?;
        runtime.block_on(async {
            for task in pool {
                let _ = task.await;
            }
        });
    }
    Ok(())
}

/// The number of a thread is the last word of its name here.
fn kernels_cpu_time(name: &str) -> Result<Duration, Box<dyn std::error::Error>> {
    let number = name.trim_end_matches(')').rsplit(' ').next().unwrap_or_default();
    let text = std::fs::read_to_string(format!("/proc/self/task/{number}/schedstat"))?;
    Ok(Duration::from_nanos(text.split(' ').next().unwrap_or_default().parse()?))
}

/// Nanoseconds of a call of `what`: the least of several rounds, for the machine may be busy.
fn each(mut what: impl FnMut()) -> f64 {
    const CALLS: u32 = 20_000;
    let round = |_| {
        let started = Instant::now();
        (0..CALLS).for_each(|_| what());
        started.elapsed().as_nanos() as f64 / f64::from(CALLS)
    };
    (0..15).map(round).fold(f64::INFINITY, f64::min)
}

/// Polls a future that never is ready.
fn poll(task: Option<Task>) -> f64 {
    let mut context = Context::from_waker(Waker::noop());
    let mut nothing = pin!(std::future::pending::<()>());
    match task {
        None => each(|| {
            let _ = black_box(nothing.as_mut().poll(&mut context));
        }),
        Some(task) => {
            let mut nothing = pin!(nothing.instrument(task));
            each(|| {
                let _ = black_box(nothing.as_mut().poll(&mut context));
            })
        }
    }
}

fn costs() -> Result<(), Box<dyn std::error::Error>> {
    // Each on a thread of its own: a thread belongs to the first group that takes whole threads.
    let on_a_thread = |group: Group| -> Result<f64, Box<dyn std::error::Error>> {
        let task = group.task("nothing")?;
        std::thread::spawn(|| poll(Some(task))).join().map_err(|_| "panicked".into())
    };
    let many = |mut builder: kymo_agent::task::GroupBuilder| {
        for counter in (0..14).map(Counter::Own) {
            builder = builder.count(counter);
        }
        builder.count(Counter::Allocations)
    };
    let rows = [
        ("bare", poll(None)),
        (
            "group that takes whole threads, CPU time",
            on_a_thread(Group::builder("a").whole_threads().build()?)?,
        ),
        ("  the same, 16 counters", on_a_thread(many(Group::builder("b").whole_threads()).build()?)?),
        ("group, CPU time", on_a_thread(Group::builder("c").build()?)?),
        ("  the same, 16 counters", on_a_thread(many(Group::builder("d")).build()?)?),
        ("per task, CPU time", on_a_thread(Group::builder("e").per_task().build()?)?),
        (
            "per task and whole threads, CPU time",
            on_a_thread(Group::builder("f").per_task().whole_threads().build()?)?,
        ),
        ("two looks at the thread's CPU clock, which per-task CPU time needs otherwise", {
            each(|| {
                black_box(cpu_clock());
                black_box(cpu_clock());
            })
        }),
    ];
    for (what, ns) in rows {
        println!("  {ns:>8.1} ns  {what}");
    }
    Ok(())
}

#[allow(unsafe_code)]
fn cpu_clock() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes a timespec, which is ours.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_nsec
}
