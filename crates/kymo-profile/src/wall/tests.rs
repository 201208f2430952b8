//! Division, idle waits and paths of rows that are made by hand, and of any rows.
use super::rows::WakeupRow;
use super::*;
use crate::chains::Chains;
use crate::timeline::{CommId, ModuleKind, Modules, TimelineBuilder};
use proptest::prelude::*;

/// The functions of the stacks: stack 0 is at a lock, 1 at a condition, 2 sleeps, 3 is a thread
/// that wakes another, 4 a timer's interrupt.
const STACKS: [&[(&str, Level)]; 5] = [
    &[("futex_wait", Level::Kernel), ("pthread_mutex_lock", Level::User)],
    &[("futex_wait", Level::Kernel), ("pthread_cond_wait", Level::User)],
    &[("do_nanosleep", Level::Kernel), ("sleep", Level::User)],
    &[("try_to_wake_up", Level::Kernel), ("futex_wake", Level::Kernel)],
    &[("hrtimer_wakeup", Level::Kernel), ("asm_sysvec_apic_timer_interrupt", Level::Kernel)],
];
const LOCK: ChainId = 0;
const CONDITION: ChainId = 1;
const SLEEP: ChainId = 2;
const WAKES: ChainId = 3;
const TIMER: ChainId = 4;

fn wall(waits: Vec<WaitRow>, wakeups: Vec<WakeupRow>) -> Wall {
    let (mut functions, mut modules, mut stacks) = (Functions::default(), Modules::default(), Vec::new());
    let module = modules.intern(b"/bin/app", ModuleKind::File, Default::default(), &[]);
    for (number, frames) in STACKS.iter().enumerate() {
        let ids = frames.iter().enumerate().map(|(at, (name, level))| {
            let start = 0x100 * number as u64 + 0x10 * at as u64;
            functions.symbol(module, *level, start, start + 8, name)
        });
        let ids: Vec<FunctionId> = ids.collect();
        stacks.push((ids[0], ids));
    }
    let mut timeline = TimelineBuilder::build(Vec::new(), true);
    timeline.modules = modules;
    let rows = Rows { chains: Chains::default(), waits, wakeups, ..Rows::default() };
    Wall::of(rows, timeline, functions, Stacks::of(stacks), ReadSummary::default(), false)
}

/// A thread that was blocked from `begun` to `woken`, and ran `ready` ns later.
fn wait(thread: (i32, i32), chain: ChainId, begun: u64, woken: u64, ready: u64, waker: i32) -> WaitRow {
    WaitRow {
        task_state: 1,
        waker,
        blocked_ns: woken - begun,
        runnable_ns: ready,
        ..WaitRow::nothing(woken + ready, thread, CommId::unnamed(thread.1), chain)
    }
}

fn wakeup(time_ns: u64, waker: (i32, i32), chain: ChainId, woken: i32) -> WakeupRow {
    WakeupRow { time_ns, waker, chain, woken }
}

/// A waits for B, which waits for C, which sleeps; D is in a pool.
fn chain() -> Wall {
    let waits = vec![
        wait((1, 4), SLEEP, 10, 100, 2, 9),
        wait((1, 3), CONDITION, 5, 110, 3, 4),
        wait((1, 1), CONDITION, 1, 120, 1, 3),
        wait((1, 5), CONDITION, 1, 200, 0, 0),
    ];
    let wakeups =
        vec![wakeup(100, (7, 9), TIMER, 4), wakeup(110, (1, 4), WAKES, 3), wakeup(120, (1, 3), WAKES, 1)];
    wall(waits, wakeups)
}

/// Checks that the path goes back over both wake-ups to the sleep, that whoever the timer's
/// interrupt came in has no part in it, and that its steps cover all the time.
#[test]
fn path_over_two_wakeups() {
    let wall = chain();
    let steps = wall.critical_path(1, 1, 121);
    let of = |step: &PathStep| (step.tid, step.state, step.begin_ns, step.end_ns);
    let found: Vec<_> = steps.iter().map(of).collect();
    let expected = [
        (1, State::Runnable, 120, 121),
        (3, State::Running, 113, 120),
        (3, State::Runnable, 110, 113),
        (4, State::Running, 102, 110),
        (4, State::Runnable, 100, 102),
        (4, State::Timer, 10, 100),
        (4, State::Running, 1, 10),
    ];
    assert_eq!(found, expected);
    assert_eq!(wall.end(0), End::Interrupt("a timer"));
    let longest = wall.critical_parts(&steps)[0];
    assert_eq!((longest.tid, longest.state, longest.time_ns), (4, State::Timer, 90));
}

/// Checks that only the thread for which nobody waited is idle.
#[test]
fn only_who_was_not_waited_for_is_idle() {
    let wall = chain();
    let idle: Vec<bool> = (0..4).map(|at| wall.is_idle(at)).collect();
    assert_eq!(idle, [false, false, false, true]);
    let places = wall.places();
    assert!(places.last().is_some_and(|place| place.idle && place.threads == 1), "{places:?}");
}

/// Checks that short waits count for what the thread waited for last, and that all parts sum.
#[test]
fn short_waits_are_of_the_last_state() {
    let first = WaitRow { run_ns: 7, ..wait((1, 1), LOCK, 0, 50, 5, 0) };
    let preempted = WaitRow {
        runnable_ns: 40,
        run_ns: 3,
        short_blocked_ns: 11,
        short_runnable_ns: 2,
        short_waits: 4,
        ..WaitRow::nothing(200, (1, 1), CommId::unnamed(1), WAKES)
    };
    let wall = wall(vec![first, preempted], Vec::new());
    let threads = wall.threads();
    let [thread] = &threads[..] else { panic!("{threads:?}") };
    let times = [State::Running, State::Runnable, State::Lock].map(|state| thread.in_state(state));
    assert_eq!(times, [10, 47, 61]);
    assert_eq!((thread.total_ns(), thread.waits, thread.preemptions), (118, 5, 1));
}

/// Checks that in a recording of switches a thread's time ends when another comes on its CPU, where
/// no record tells that it left, and not where it has moved.
#[test]
fn switches_away_that_no_record_tells() {
    let switch = |position: u64, tid, cpu, time_ns, is_out| {
        let comm = CommId::unnamed(tid);
        rows::Switch::new((time_ns, position), (1, tid), comm, Some(cpu), (is_out, false))
    };
    let mut rows = Rows {
        switches: vec![
            switch(0, 7, 0, 10, false),
            switch(1, 8, 0, 30, false),
            switch(2, 7, 1, 50, false),
            switch(3, 8, 1, 60, false),
            switch(4, 7, 0, 75, false),
            switch(5, 7, 0, 80, true),
            switch(6, 7, 0, 95, false),
        ],
        ..Rows::default()
    };
    rows.replay_switches(&LoadOptions::default());
    let times = rows.waits.iter().filter(|row| row.thread.1 == 7);
    let times: Vec<_> = times.map(|row| (row.time_ns, row.run_ns, row.blocked_ns)).collect();
    assert_eq!(times, [(50, 20, 20), (75, 10, 15), (95, 5, 15)]);
}

fn any_rows() -> impl Strategy<Value = (Vec<WaitRow>, Vec<WakeupRow>)> {
    let row = (1..6i32, 0..3u32, 0..1000u64, 0..200u64, 0..50u64, 0..7i32, any::<bool>());
    proptest::collection::vec(row, 0..60).prop_map(|rows| {
        let mut waits = Vec::new();
        let mut wakeups = Vec::new();
        for (tid, chain, begun, blocked, ready, waker, is_told) in rows {
            let row = wait((1, tid), chain, begun, begun + blocked, ready, waker);
            if is_told {
                wakeups.push(wakeup(
                    begun + blocked,
                    (1, waker),
                    if waker == 6 { TIMER } else { WAKES },
                    tid,
                ));
            }
            waits.push(row);
        }
        waits.sort_by_key(|row| row.time_ns);
        wakeups.sort_by_key(|row| row.time_ns);
        (waits, wakeups)
    })
}

proptest! {
    /// Checks that of any rows, also such as no kernel writes, the path ends, goes backwards and
    /// has no gaps, and that the sums of threads are those of the rows.
    #[test]
    fn any_rows_are_divided((waits, wakeups) in any_rows(), tid in 1..6i32) {
        let all: u64 = waits.iter().map(WaitRow::total_ns).sum();
        let wall = wall(waits, wakeups);
        prop_assert_eq!(wall.threads().iter().map(ThreadTime::total_ns).sum::<u64>(), all);
        let steps = wall.critical_path(tid, 0, 1500);
        let mut now = 1500;
        for step in &steps {
            prop_assert_eq!(step.end_ns, now, "{:?}", steps);
            prop_assert!(step.begin_ns < step.end_ns);
            now = step.begin_ns;
        }
        prop_assert_eq!(now, 0, "{:?}", steps);
        let places: u64 = wall.places().iter().map(|place| place.time_ns).sum();
        let ran: u64 = wall.threads().iter().map(|thread| thread.in_state(State::Running)).sum();
        prop_assert_eq!(places + ran, all);
    }
}
