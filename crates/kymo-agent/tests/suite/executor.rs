//! Under a real executor.
use crate::process::own_thread;
use crate::work::{burn, thread_cpu, within, yields};
use kymo_agent::task::{Counter, Group, Instrument};
use std::sync::Mutex;
use std::time::Duration;

/// Checks that the CPU time of all tasks, and of the threads outside of them, is the CPU time of
/// the executor's threads within 2 %, as the kernel tells it, and that no task has more than its
/// share.
#[test]
fn the_sum_over_tasks_is_the_threads_cpu_time() {
    static THREADS: Mutex<Vec<i32>> = Mutex::new(Vec::new());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(3)
        .thread_name("summed")
        .on_thread_start(|| {
            kymo_agent::task::enter_thread().expect("a slot");
            THREADS.lock().expect("no panic").push(own_thread());
        })
        .build()
        .expect("a runtime");
    let group = Group::builder("summed").per_task().build().expect("a group");
    let watches: Vec<_> = (0..300)
        .map(|number| {
            let task = group.task(format!("task {number}")).expect("a task");
            let watch = task.watch();
            let work = async move {
                for _ in 0..5 {
                    burn(Duration::from_micros(number));
                    tokio::task::yield_now().await;
                }
                yields(1).await;
            };
            (watch, runtime.spawn(work.instrument(task)))
        })
        .collect();
    let mut total = Duration::ZERO;
    runtime.block_on(async {
        for (number, (watch, work)) in watches.into_iter().enumerate() {
            work.await.expect("no panic");
            let reading = watch.read().expect("readable");
            let own = reading.cpu_time().expect("counted");
            let asked = Duration::from_micros(5 * number as u64);
            // What interrupts and a hypervisor take from a thread is seen within a millisecond, at
            // the cost of who runs then.
            assert!(
                own + Duration::from_millis(1) >= asked,
                "task {number} used {own:?} of at least {asked:?}"
            );
            assert_eq!((reading.polls, reading.uncounted), (7, 0));
            total += own;
        }
    });
    assert_eq!(group.read().expect("readable").cpu_time(), Some(total), "the group is the sum of its tasks");

    // The executor's threads rest now; what they did outside of tasks is theirs.
    let others = Group::all().into_iter().find(|group| group.name() == "(threads)").expect("threads");
    let of_threads: Duration = {
        let ours = |task: &kymo_agent::task::TaskReading| task.name.starts_with("summed ");
        let tasks = others.tasks().expect("readable");
        assert_eq!(tasks.iter().filter(|task| ours(task)).count(), 3);
        tasks.iter().filter(|task| ours(task)).filter_map(|task| task.reading.cpu_time()).sum()
    };
    let threads: Duration = THREADS.lock().expect("no panic").iter().map(|&thread| thread_cpu(thread)).sum();
    let sum = total + of_threads;
    assert!(
        within(2.0, sum, threads),
        "{total:?} in tasks, {of_threads:?} between, {threads:?} by the kernel"
    );
}

/// Checks the same for a group that takes whole threads, whose sum is all of it, without a number
/// per task.
#[test]
fn a_group_of_whole_threads_is_their_cpu_time() {
    static THREADS: Mutex<Vec<i32>> = Mutex::new(Vec::new());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .on_thread_start(|| {
            THREADS.lock().expect("no panic").push(own_thread());
        })
        .build()
        .expect("a runtime");
    let group = Group::builder("whole").whole_threads().build().expect("a group");
    let work: Vec<_> = (0..200)
        .map(|_| {
            let work = async {
                burn(Duration::from_micros(500));
                tokio::task::yield_now().await;
            };
            runtime.spawn(work.instrument(group.task("works").expect("a task")))
        })
        .collect();
    runtime.block_on(async {
        for work in work {
            work.await.expect("no panic");
        }
    });
    let threads: Duration = THREADS.lock().expect("no panic").iter().map(|&thread| thread_cpu(thread)).sum();
    let sum =
        group.read().expect("readable").get(Counter::CpuTime).map(Duration::from_nanos).expect("counted");
    assert!(within(2.0, sum, threads), "{sum:?} counted, {threads:?} by the kernel");
}
