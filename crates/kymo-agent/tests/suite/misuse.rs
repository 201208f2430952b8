//! Wrong use is an error in words, and no number is wrong for it.
use crate::work::{burn, finish, poll, yields};
use kymo_agent::task::{
    Counter, Error, Group, Instrument, THREADS, Task, count, enter_thread, first_problem, switch,
};
use std::pin::pin;
use std::sync::mpsc;
use std::time::Duration;

fn group(name: &'static str) -> (Group, Task) {
    let group = Group::builder(name).per_task().count(Counter::Own(0)).build().expect("a group");
    let task = group.task("t").expect("a task");
    (group, task)
}

fn counted(group: &Group) -> Option<u64> {
    group.read().expect("readable").get(Counter::Own(0))
}

/// Checks that a task that has ended does not end again, nor run.
#[test]
fn a_task_ends_once() {
    let (group, mut task) = group("ends once");
    task.scope(|| count(0, 3)).expect("it runs");
    task.end().expect("once");
    let ended = Error::Ended { task: task.number() };
    assert_eq!(task.end(), Err(ended.clone()));
    assert_eq!(task.scope(|| count(0, 5)), Err(ended.clone()));
    assert_eq!(switch(None, Some(&mut task)), Err(ended.clone()));
    assert_eq!(switch(Some(&mut task), None), Err(ended));
    assert_eq!(counted(&group), Some(3));
    assert_eq!(task.read().expect("readable").get(Counter::Own(0)), Some(3), "its own number stays");
}

/// Checks that a future whose task has ended goes on, and that its polls are told as not counted.
#[test]
fn a_future_without_its_task_goes_on_uncounted() {
    let (group, mut task) = group("uncounted");
    task.end().expect("once");
    let watch = task.watch();
    finish(async { yields(3).await }.instrument(task));
    let reading = watch.read().expect("readable");
    assert_eq!((reading.polls, reading.uncounted), (0, 4));
    assert!(first_problem().is_some());
    assert_eq!(counted(&group), Some(0));
}

/// Checks that a thread cannot take off what another runs, nor end it, nor run it as well.
#[test]
fn a_switch_from_the_wrong_thread_is_refused() {
    let (group, mut task) = group("wrong thread");
    let (mut bystander, number) = (group.task("bystander").expect("a task"), task.number());
    switch(None, Some(&mut task)).expect("the thread hands over");
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            assert_eq!(switch(Some(&mut task), None), Err(Error::NotRunningHere { task: number }));
            assert_eq!(
                switch(Some(&mut task), Some(&mut bystander)),
                Err(Error::NotRunningHere { task: number })
            );
            let refusals = [switch(None, Some(&mut task)), task.scope(|| ()), task.end().map(drop)];
            for refused in refusals {
                let Err(Error::AlreadyRunning { task, thread }) = refused else { panic!("{refused:?}") };
                assert_eq!(task, number);
                assert_ne!(thread, 0, "it tells which thread");
            }
        });
        other.join().expect("no panic");
    });
    count(0, 9);
    switch(Some(&mut task), None).expect("where it runs");
    assert_eq!(counted(&group), Some(9));
}

/// Checks that a switch that is said to come from the thread itself, or from a task at rest, is
/// refused while another task runs.
#[test]
fn a_switch_must_name_what_runs() {
    let (group, mut a) = group("names");
    let (mut b, number) = (group.task("b").expect("a task"), a.number());
    switch(None, Some(&mut a)).expect("the thread hands over");
    assert_eq!(switch(None, Some(&mut b)), Err(Error::RunsAnother { task: number }));
    assert_eq!(switch(None, None), Err(Error::RunsAnother { task: number }));
    assert_eq!(switch(Some(&mut b), None), Err(Error::NotRunningHere { task: b.number() }));
    switch(Some(&mut a), Some(&mut b)).expect("a hands over");
    switch(Some(&mut b), None).expect("b hands back");
    assert_eq!(switch(None, None), Ok(()));
}

/// Checks that dropping what runs is told, once, on the thread that runs it, that it counts up to
/// there, and that the thread goes on.
#[test]
fn a_task_dropped_while_it_runs_is_told() {
    let (group, mut task) = group("dropped");
    let (mut other, number) = (group.task("other").expect("a task"), task.number());
    switch(None, Some(&mut task)).expect("the thread hands over");
    count(0, 1);
    drop(task);
    count(0, 2);
    assert_eq!(switch(None, Some(&mut other)), Err(Error::DroppedWhileRunning { task: number }));
    count(0, 4);
    switch(None, Some(&mut other)).expect("said once");
    count(0, 8);
    switch(Some(&mut other), None).expect("it goes on");
    assert_eq!(counted(&group), Some(1 + 2 + 8));
    assert_eq!(group.population(), (2, 1));
}

/// Checks that a future polled on a thread with such a leftover is counted all the same.
#[test]
fn a_leftover_does_not_cost_the_next_poll() {
    let (group, mut task) = group("leftover");
    switch(None, Some(&mut task)).expect("the thread hands over");
    drop(task);
    let next = group.task("next").expect("a task");
    let watch = next.watch();
    finish(async { count(0, 5) }.instrument(next));
    assert_eq!(watch.read().expect("readable").get(Counter::Own(0)), Some(5));
    assert_eq!(watch.read().expect("readable").uncounted, 0);
}

/// Checks that a thread that ends takes the task along that it runs: counted until then, an error
/// afterwards.
#[test]
fn a_thread_that_ends_ends_its_task() {
    let (group, mut task) = group("thread ends");
    let number = task.number();
    std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            switch(None, Some(&mut task)).expect("the thread hands over");
            count(0, 6);
            burn(Duration::from_millis(3));
        });
        run.join().expect("no panic");
    });
    let gone = Error::ThreadEnded { task: number };
    assert_eq!(switch(None, Some(&mut task)), Err(gone.clone()));
    assert_eq!(switch(Some(&mut task), None), Err(gone.clone()));
    assert_eq!(task.end(), Err(gone));
    let reading = task.read().expect("readable");
    assert_eq!(reading.get(Counter::Own(0)), Some(6));
    assert!(reading.cpu_time() >= Some(Duration::from_millis(3)));
    assert_eq!(group.population(), (1, 0));
}

/// Checks that many threads, one after the other, find a slot: more than there are slots at a time.
#[test]
fn seats_are_used_again() {
    let (group, mut task) = group("slots");
    for _ in 0..THREADS + 10 {
        std::thread::scope(|scope| scope.spawn(|| task.scope(|| count(0, 1))).join())
            .expect("no panic")
            .expect("a slot");
    }
    assert_eq!(counted(&group), Some(THREADS as u64 + 10));
}

/// Checks that names of counters that nobody has are refused in words.
#[test]
fn unknown_counters_are_refused() {
    let refused = Group::builder("unknown").count(Counter::Own(200)).build().expect_err("there are 16");
    assert_eq!(refused, Error::UnknownCounter("own:200".into()));
    let refused = "cycels".parse::<Counter>().expect_err("no such name");
    assert!(refused.to_string().contains("there is no counter \"cycels\""), "{refused}");
    assert!(refused.to_string().contains("cycles"), "{refused}");
}

/// Runs a test in a process of its own, where this gives true.
pub(crate) fn alone(test: &str) -> bool {
    const ALONE: &str = "KYMO_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let run = std::process::Command::new(std::env::current_exe().expect("this program"))
        .args([test, "--exact", "--test-threads=1", "--nocapture"])
        .env(ALONE, "1")
        .output()
        .expect("it starts");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    assert!(String::from_utf8_lossy(&run.stdout).contains("1 passed"), "the test has another name");
    false
}

/// Checks that what runs on a thread too many is not counted, and said to be not counted, and that
/// a slot that is left can be taken.
#[test]
fn a_thread_too_many_is_told() {
    // It takes all slots.
    if !alone("misuse::a_thread_too_many_is_told") {
        return;
    }
    let (group, task) = group("too many");
    let (taken, end) = (std::sync::Barrier::new(THREADS + 1), std::sync::Barrier::new(THREADS + 1));
    let watch = task.watch();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            let sit = || {
                enter_thread().expect("a slot");
                taken.wait();
                end.wait();
            };
            std::thread::Builder::new().stack_size(64 << 10).spawn_scoped(scope, sit).expect("a thread");
        }
        taken.wait();
        let refused = enter_thread();
        finish(async { count(0, 1) }.instrument(task));
        // Before anything is asserted: whoever waits here must not wait for ever.
        end.wait();
        assert_eq!(refused, Err(Error::TooManyThreads));
    });
    assert_eq!(watch.read().expect("readable").uncounted, 1);
    assert_eq!(group.read().expect("readable").uncounted, 1);
    assert_eq!(counted(&group), Some(0));
    assert_eq!(first_problem(), Some(Error::TooManyThreads));
    let mut next = group.task("next").expect("a task");
    next.scope(|| count(0, 1)).expect("there are slots again");
    assert_eq!(counted(&group), Some(1));
}

/// Checks that the child of a fork runs its tasks uncounted, refuses to answer, and leaves the
/// parent's numbers alone.
#[test]
fn a_forked_child_counts_nothing() {
    // A child of a process with many threads may not even allocate.
    if !alone("misuse::a_forked_child_counts_nothing") {
        return;
    }
    let (group, mut task) = group("forks");
    let mut future = pin!(
        async {
            count(0, 1);
            crate::process::in_child(|| {
                count(0, 10);
                // The turn that was going on at the fork, and a new one.
                let refused = group.task("in the child").err();
                if refused != Some(Error::Forked) || group.read() != Err(Error::Forked) {
                    return 2;
                }
                let done = task.scope(|| ());
                if done != Err(Error::Forked) || first_problem() != Some(Error::Forked) {
                    return 3;
                }
                0
            });
            count(0, 100);
        }
        .instrument(group.task("around the fork").expect("a task"))
    );
    assert!(poll(future.as_mut()).is_ready());
    assert_eq!(counted(&group), Some(101));
}

/// Checks that a task may be handed to another thread between its turns while the first one lives
/// on.
#[test]
fn a_task_at_rest_travels() {
    let (group, mut task) = group("travels");
    let (send, receive) = mpsc::channel::<Task>();
    let (back, returned) = mpsc::channel::<Task>();
    let worker = std::thread::spawn(move || {
        for mut task in receive {
            task.scope(|| count(0, 1)).expect("it runs");
            back.send(task).expect("the other side waits");
        }
    });
    for _ in 0..100 {
        task.scope(|| count(0, 1)).expect("it runs");
        send.send(task).expect("the other side waits");
        task = returned.recv().expect("it comes back");
    }
    drop(send);
    worker.join().expect("no panic");
    assert_eq!(counted(&group), Some(200));
    assert_eq!(task.read().expect("readable").migrations, 199);
}
