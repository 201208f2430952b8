//! Counts are right.
use crate::work::{Stop, burn, finish, own_cpu, poll, within, yields};
use kymo_agent::task::{Counter, Error, Group, Hardware, Instrument, count, switch};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::time::Duration;

const A_WHILE: Duration = Duration::from_millis(5);

/// Checks that CPU time is counted while a task runs and not before, after, or while its thread
/// sleeps.
#[test]
fn cpu_time_is_that_of_the_turns() {
    let group = Group::builder("cpu time").per_task().build().expect("a group");
    let mut task = group.task("worker").expect("a task");
    burn(A_WHILE);
    let before = own_cpu();
    task.scope(|| {
        burn(A_WHILE);
        std::thread::sleep(Duration::from_millis(30));
        burn(A_WHILE);
    })
    .expect("it runs");
    let spent = own_cpu() - before;
    burn(A_WHILE);
    let counted = task.read().expect("readable").cpu_time().expect("counted");
    assert!(within(5.0, counted, spent), "{counted:?} counted, {spent:?} spent");
    assert_eq!(group.read().expect("readable").cpu_time(), Some(counted));
}

/// Checks that a task that rests and comes back on another thread is one task with one sum, and
/// that the change is counted.
#[test]
fn a_task_changes_threads() {
    let group = Group::builder("moving").per_task().build().expect("a group");
    let mut task = group.task("mover").expect("a task");
    let turn = |task: &mut kymo_agent::task::Task| {
        let before = own_cpu();
        task.scope(|| burn(A_WHILE)).expect("it runs");
        own_cpu() - before
    };
    let mut spent = turn(&mut task);
    for _ in 0..3 {
        spent += std::thread::scope(|scope| scope.spawn(|| turn(&mut task)).join()).expect("no panic");
    }
    let reading = task.end().expect("it rests");
    assert!(within(5.0, reading.cpu_time().expect("counted"), spent), "{reading:?}, {spent:?} spent");
    assert_eq!((reading.switches, reading.migrations, reading.polls), (4, 3, 0));
}

/// Checks that polls are counted, and that a future's numbers can be seen while it lives and after
/// it ended.
#[test]
fn a_future_is_a_task() {
    let group = Group::builder("future").per_task().build().expect("a group");
    let task = group.task("three polls").expect("a task");
    let watch = task.watch();
    {
        let mut future = pin!(yields(2).instrument(task));
        assert!(poll(future.as_mut()).is_pending());
        assert_eq!(watch.read().expect("readable").polls, 1);
        assert!(poll(future.as_mut()).is_pending());
        assert!(poll(future.as_mut()).is_ready());
        assert!(!watch.has_ended());
        assert_eq!(group.population(), (1, 1));
    }
    assert!(watch.has_ended());
    assert_eq!(watch.read().expect("readable").polls, 3);
    assert_eq!(group.read().expect("readable").polls, 3);
    assert_eq!(group.population(), (1, 0));
}

/// Checks that with polls inside of polls each task gets what it did itself, and that a group of
/// one kind and one of the other agree.
#[test]
fn polls_nest() {
    let outer = Group::builder("outer").per_task().build().expect("a group");
    let inner = Group::builder("inner").per_task().build().expect("a group");
    let nested = inner.task("inner").expect("a task");
    let sibling = outer.task("sibling").expect("a task");
    let future = async {
        burn(A_WHILE);
        async { burn(4 * A_WHILE) }.instrument(nested).await;
        async { burn(2 * A_WHILE) }.instrument(sibling).await;
        burn(A_WHILE);
    };
    let task = outer.task("outer").expect("a task");
    let watch = task.watch();
    finish(future.instrument(task));
    let own = watch.read().expect("readable").cpu_time().expect("counted");
    let nested = inner.read().expect("readable").cpu_time().expect("counted");
    let both = outer.read().expect("readable").cpu_time().expect("counted");
    assert!(within(10.0, own, 2 * A_WHILE), "{own:?}");
    assert!(within(10.0, nested, 4 * A_WHILE), "{nested:?}");
    assert!(within(10.0, both, 4 * A_WHILE), "{both:?}");
}

/// Checks that a panic ends a task's turn, and the one around it too, and that both can go on.
#[test]
fn a_panic_ends_the_turn() {
    let group = Group::builder("panics").per_task().build().expect("a group");
    let (mut outer, mut inner) = (group.task("outer").expect("a task"), group.task("inner").expect("a task"));
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        outer.scope(|| inner.scope(|| std::panic::resume_unwind(Box::new("on purpose"))))
    }));
    assert!(panicked.is_err());
    burn(A_WHILE);
    assert!(outer.read().expect("readable").cpu_time() < Some(A_WHILE));
    assert_eq!(inner.scope(|| 7), Ok(7));
    assert_eq!(outer.scope(|| 8), Ok(8));
    assert_eq!(
        group.read().expect("readable").switches,
        5,
        "two turns, one of them back to the outer, and two"
    );
}

/// Checks that fibers hand over to one another and to the thread, each counting its own.
#[test]
fn fibers_hand_over() {
    let group = Group::builder("fibers").per_task().count(Counter::Own(5)).build().expect("a group");
    let (mut a, mut b) = (group.task("a").expect("a task"), group.task("b").expect("a task"));
    switch(None, Some(&mut a)).expect("the thread hands over");
    count(5, 1);
    switch(Some(&mut a), Some(&mut b)).expect("a hands over");
    count(5, 10);
    switch(Some(&mut b), Some(&mut a)).expect("b hands over");
    count(5, 100);
    switch(Some(&mut a), None).expect("a hands back");
    count(5, 1000);
    assert_eq!(a.watch().count(Counter::Own(5)), Ok(101));
    assert_eq!(b.watch().count(Counter::Own(5)), Ok(10));
    assert_eq!(group.read().expect("readable").get(Counter::Own(5)), Some(111));
}

/// Checks that a group that takes whole threads counts what is between its tasks, and any other
/// group does not.
#[test]
fn whole_threads_count_what_is_between_tasks() {
    std::thread::spawn(|| {
        let whole = Group::builder("whole").whole_threads().count(Counter::Own(6)).build().expect("a group");
        let apart = Group::builder("apart").count(Counter::Own(6)).build().expect("a group");
        let (mut one, mut other) = (whole.task("one").expect("a task"), apart.task("other").expect("a task"));
        one.scope(|| count(6, 1)).expect("it runs");
        count(6, 10);
        other.scope(|| count(6, 100)).expect("it runs");
        count(6, 1000);
        one.scope(|| count(6, 10_000)).expect("it runs");
        assert_eq!(whole.read().expect("readable").get(Counter::Own(6)), Some(11_011));
        assert_eq!(apart.read().expect("readable").get(Counter::Own(6)), Some(100));
    })
    .join()
    .expect("no panic");
}

/// Checks that allocations and their bytes are those of the task, also where several threads
/// allocate.
#[test]
fn allocations_are_those_of_the_task() {
    let builder = Group::builder("allocations").count(Counter::Allocations).count(Counter::AllocatedBytes);
    let group = builder.per_task().build().expect("a group");
    let mut tasks: Vec<_> = (0..4).map(|_| group.task("allocates").expect("a task")).collect();
    std::thread::scope(|scope| {
        for (task, times) in tasks.iter_mut().zip([1u64, 10, 100, 1000]) {
            scope.spawn(move || {
                drop(Vec::<u8>::with_capacity(77));
                let done = task.scope(|| {
                    (0..times).for_each(|_| drop(std::hint::black_box(Vec::<u8>::with_capacity(100))))
                });
                done.expect("it runs");
            });
        }
    });
    for (task, times) in tasks.iter().zip([1, 10, 100, 1000]) {
        let reading = task.read().expect("readable");
        assert_eq!(reading.get(Counter::Allocations), Some(times));
        assert_eq!(reading.get(Counter::AllocatedBytes), Some(100 * times));
    }
    assert_eq!(group.read().expect("readable").get(Counter::Allocations), Some(1111));
}

/// Checks that a group that keeps sums says that single numbers are unknown, rather than giving
/// one.
#[test]
fn sums_only_means_no_number_of_a_task() {
    let group = Group::new("sums").expect("a group");
    let mut task = group.task("one").expect("a task");
    task.scope(|| burn(A_WHILE)).expect("it runs");
    assert_eq!(task.read().expect("readable").cpu_time(), None);
    let refused = task.watch().count(Counter::CpuTime).expect_err("sums only");
    assert_eq!(refused, Error::NotPerTask { group: "sums".into() });
    assert!(group.read().expect("readable").cpu_time() >= Some(A_WHILE));
    assert_eq!(task.end().expect("it rests").cpu_time(), None);
}

/// Checks that another thread reads a running task's CPU time while it grows, never smaller than
/// before.
#[test]
fn a_running_task_is_read_from_outside() {
    let group = Group::builder("watched").per_task().build().expect("a group");
    let mut task = group.task("spins").expect("a task");
    let watch = task.watch();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| {
            let turns = || {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    std::hint::black_box(0);
                }
            };
            task.scope(turns).expect("it runs");
        });
        let mut last = Duration::ZERO;
        while last < 3 * A_WHILE {
            let now = watch.read().expect("readable").cpu_time().expect("counted");
            assert!(now >= last, "{now:?} after {last:?}");
            last = now;
        }
    });
    assert!(task.end().expect("it rests").cpu_time() >= Some(3 * A_WHILE));
}

/// Checks that a counter of the processor counts, or the group says why it cannot.
#[test]
fn hardware_counts_or_says_why_not() {
    let counter = Counter::Hardware(Hardware::Instructions);
    match Group::builder("hardware").count(counter).per_task().build() {
        Ok(group) => {
            let mut task = group.task("computes").expect("a task");
            task.scope(|| burn(A_WHILE)).expect("it runs");
            let instructions = task.watch().count(counter).expect("counted");
            assert!(instructions > 100_000, "{instructions}");
        }
        Err(error) => {
            let text = error.to_string();
            assert!(text.starts_with("instructions cannot be counted: "), "{text}");
            kymo_testing::skip("counts::hardware_counts_or_says_why_not (counting)", text);
        }
    }
}

/// Checks that a table holds what groups counted that are gone, by name, beside those that live,
/// and that it is the sum of all.
#[test]
fn a_published_table_keeps_what_is_gone() {
    use kymo_agent::table;
    use std::os::unix::fs::FileExt as _;
    kymo_agent::task::publish().expect("memory for a table");
    kymo_agent::task::publish().expect("once more changes nothing");
    for _ in 0..3 {
        let group = Group::builder("gone soon").count(Counter::Own(7)).build().expect("a group");
        group.task("t").expect("a task").scope(|| count(7, 5)).expect("it runs");
    }
    let lives = Group::builder("gone soon").count(Counter::Own(7)).build().expect("a group");

    // As another process would.
    let fds = std::fs::read_dir("/proc/self/fd").expect("a /proc");
    let is_table = |fd: &std::path::PathBuf| {
        std::fs::read_link(fd).is_ok_and(|link| link.to_string_lossy().starts_with(table::LINK))
    };
    let tables: Vec<_> = fds.flatten().map(|fd| fd.path()).filter(is_table).collect();
    let [path] = &tables[..] else { panic!("{tables:?}") };
    let file = std::fs::File::open(path).expect("readable");
    let header = || {
        let mut bytes = [0; table::HEADER_BYTES];
        file.read_exact_at(&mut bytes, 0).expect("a header");
        table::header(&bytes).expect("a header")
    };
    assert_eq!(header().pid, std::process::id());
    // More answers than there are places.
    for _ in 0..5 {
        let before = header().newest.map_or(0, |place| place.number);
        std::fs::write(format!("/proc/self/fd/{}", header().request_fd), "?").expect("somebody listens");
        let newest = || header().newest.filter(|place| place.number > before);
        let place = std::iter::repeat_with(newest).find_map(|place| place).expect("an answer");
        let mut bytes = vec![0; place.bytes as usize];
        file.read_exact_at(&mut bytes, place.offset).expect("a frame");
        assert!(table::checked(&place, &bytes));
        let frame = table::frame(&bytes).expect("a frame");
        let rows: Vec<_> = frame.groups.iter().filter(|group| group.name == "gone soon").collect();
        let [living, gone] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!((living.number, gone.number, gone.spawned), (lives.number(), 0, 3));
        let own = gone.counters.iter().position(|counter| counter == "own:7").expect("counted");
        assert_eq!((living.counts[own], gone.counts[own]), (Some(0), Some(15)));
    }
}

/// Checks that a poll allocates nothing for being counted, in groups of all kinds.
#[test]
fn a_poll_allocates_nothing() {
    let builders = [
        Group::builder("plain"),
        Group::builder("per task").per_task(),
        Group::builder("whole").whole_threads(),
        Group::builder("both").whole_threads().per_task(),
    ];
    for builder in builders {
        let group = builder.count(Counter::Allocations).count(Counter::Own(1)).build().expect("a group");
        std::thread::scope(|scope| {
            let polls = || {
                let mut future = pin!(yields(1000).instrument(group.task("polled").expect("a task")));
                assert!(poll(future.as_mut()).is_pending(), "the first poll gives the thread its slot");
                let before = crate::process::allocations();
                for _ in 0..500 {
                    assert!(poll(future.as_mut()).is_pending());
                }
                assert_eq!(crate::process::allocations(), before, "{group:?}");
            };
            scope.spawn(polls);
        });
    }
}

/// Checks against a sum that is kept by other means: tasks that run, move, nest, end and are born
/// on several threads, while somebody reads, lose and gain nothing, and no reading is smaller than
/// one before or larger than the truth.
#[test]
fn threads_that_share_tasks_lose_nothing() {
    use kymo_agent::task::Task;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU64, Ordering};
    const TURNS: u64 = 1500;
    let groups = [
        Group::builder("shared sums").count(Counter::Own(2)).build().expect("a group"),
        Group::builder("shared tasks").count(Counter::Own(2)).per_task().build().expect("a group"),
        Group::builder("shared more")
            .count(Counter::Own(2))
            .count(Counter::Own(3))
            .per_task()
            .build()
            .expect("a group"),
    ];
    let truth: [AtomicU64; 3] = Default::default();
    let queue: Mutex<Vec<(usize, Task)>> = Mutex::default();
    let running = AtomicU64::new(4);
    /// Also when a thread panics, or the reader would read for ever.
    struct Over<'a>(&'a AtomicU64);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (groups, truth, queue, running) = (&groups, &truth, &queue, &running);
            scope.spawn(move || {
                let _over = Over(running);
                // A generator of its own for each thread: the sums do not depend on what it gives.
                let mut state = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(thread + 1);
                let mut next = |below: u64| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    state % below
                };
                let work = |of: usize, by: u64| {
                    truth[of].fetch_add(by, Ordering::SeqCst);
                    count(2, by);
                };
                for _ in 0..TURNS {
                    let taken = queue.lock().expect("no panic").pop();
                    let (of, mut task) = taken.unwrap_or_else(|| {
                        let of = next(3) as usize;
                        (of, groups[of].task("shared").expect("a task"))
                    });
                    let inner = next(3) as usize;
                    let (a, b, c) = (next(5), next(5), next(5));
                    let turn = || {
                        work(of, a);
                        let mut nested = groups[inner].task("nested").expect("a task");
                        nested.scope(|| work(inner, b)).expect("it runs");
                        work(of, c);
                    };
                    task.scope(turn).expect("it runs");
                    match next(4) {
                        0 => drop(task),
                        1 => assert!(task.end().is_ok()),
                        _ => queue.lock().expect("no panic").push((of, task)),
                    }
                }
            });
        }
        let mut last = [0; 3];
        while running.load(Ordering::SeqCst) > 0 {
            for (of, group) in groups.iter().enumerate() {
                let now = group.read().expect("readable").get(Counter::Own(2)).expect("counted");
                let most = truth[of].load(Ordering::SeqCst);
                assert!(last[of] <= now && now <= most, "{} after {}, of {most}", now, last[of]);
                last[of] = now;
                group.tasks().expect("readable");
            }
        }
    });
    for (of, group) in groups.iter().enumerate() {
        let reading = group.read().expect("readable");
        assert_eq!(reading.get(Counter::Own(2)), Some(truth[of].load(Ordering::SeqCst)), "{group:?}");
        let living: u64 = group
            .tasks()
            .expect("readable")
            .iter()
            .filter_map(|task| task.reading.get(Counter::Own(2)))
            .sum();
        assert!(living <= truth[of].load(Ordering::SeqCst));
    }
}
