//! Division, idle waits and paths of rows that are made by hand, and of any rows.
use super::*;
use crate::chains::Chains;
use crate::timeline::{CommId, ModuleKind, Modules, TimelineBuilder};
use proptest::prelude::*;

mod short_waits;

/// The functions of the stacks: stack 0 is at a lock, 1 at a condition, 2 sleeps, 3 is a thread
/// that wakes another, 4 a timer's interrupt, 5 is in an event loop.
const STACKS: [&[(&str, Level)]; 6] = [
    &[("futex_wait", Level::Kernel), ("pthread_mutex_lock", Level::User)],
    &[("futex_wait", Level::Kernel), ("pthread_cond_wait", Level::User)],
    &[("do_nanosleep", Level::Kernel), ("sleep", Level::User)],
    &[("try_to_wake_up", Level::Kernel), ("futex_wake", Level::Kernel)],
    &[("hrtimer_wakeup", Level::Kernel), ("asm_sysvec_apic_timer_interrupt", Level::Kernel)],
    &[("ep_poll", Level::Kernel), ("epoll_wait", Level::User)],
];
const LOCK: ChainId = 0;
const CONDITION: ChainId = 1;
const SLEEP: ChainId = 2;
const WAKES: ChainId = 3;
const TIMER: ChainId = 4;
const POLLS: ChainId = 5;

pub(crate) fn wall(waits: Vec<WaitRow>, wakeups: Vec<WakeupRow>) -> Wall {
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
    WakeupRow { time_ns, waker, chain, woken, blocked_ns: 0, task_state: 1, call: None }
}

/// A waits for B, which waits for C, which sleeps; D is in a pool.
pub(crate) fn chain() -> Wall {
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
        // Before that there was no such thread, as far as its rows tell: who waited for it did.
        (3, State::Condition, 5, 10),
        (1, State::Condition, 1, 5),
    ];
    assert_eq!(found, expected);
    assert_eq!(wall.end(0), End::Interrupt("a timer"));
    let longest = wall.critical_parts(steps)[0];
    assert_eq!((longest.tid, longest.state, longest.time_ns), (4, State::Timer, 90));
}

/// Checks what the files of a wait tell, which are looked at when the recording ends: a server's
/// first thread is idle as long as only timers ended its waits, and a client's event loop is not.
#[test]
fn files_tell_for_whom_a_thread_waits() {
    const EPOLL: i64 = 232;
    let loops = |thread, (begun, woken), waker| WaitRow {
        syscall: EPOLL,
        short_waits: 1,
        short_blocked_ns: 5,
        short_call: Some(EPOLL),
        ..wait(thread, POLLS, begun, woken, 0, waker)
    };
    let end = |thread, begun, for_work| WaitRow { is_end: true, for_work, ..loops(thread, (begun, 400), 0) };
    let all_idle = |for_work| {
        let wall = wall(
            vec![
                loops((1, 1), (10, 100), 1),
                loops((1, 2), (10, 100), 9),
                loops((1, 1), (110, 200), 9),
                loops((1, 2), (110, 200), 9),
                end((1, 1), 210, for_work),
                end((1, 2), 210, for_work),
            ],
            vec![wakeup(100, (7, 9), TIMER, 2), wakeup(200, (7, 9), TIMER, 1), wakeup(200, (7, 9), TIMER, 2)],
        );
        let of = |tid: i32| {
            let rows = (0..6).filter(|at| wall.waits[*at].thread.1 == tid);
            rows.map(|at| (wall.is_idle(at), wall.is_short_idle(at, 0))).collect::<Vec<_>>()
        };
        [of(1), of(2)]
    };
    let (yes, own, no) = ((true, true), (true, false), (false, false));
    assert_eq!(all_idle(None), [[no, no, no], [yes, yes, yes]], "nobody looked");
    assert_eq!(all_idle(Some(true)), [[no, own, own], [yes, yes, yes]], "clients");
    assert_eq!(all_idle(Some(false)), [[no, no, no], [no, no, no]], "a server's answer");
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

/// Checks a wait whose switch back the kernel has left out: its time is in the sums of the thread's
/// next row, the wake-up tells where and how long it was, so that a path goes on behind it, and all
/// time is what it was.
#[test]
fn a_wait_without_its_switch_is_that_of_its_wakeup() {
    let here = BlockedCall { syscall: 202, argument: 0, operation: 128, place: 9 };
    let known = WaitRow { place: Some(9), syscall: 202, ..wait((1, 3), CONDITION, 5, 10, 0, 4) };
    let next = WaitRow {
        run_ns: 5,
        short_blocked_ns: 95,
        short_mixed_ns: 95,
        short_waits: 3,
        short_longest_ns: Some(90),
        ..wait((1, 3), LOCK, 110, 120, 0, 5)
    };
    let sleeps = wait((1, 4), SLEEP, 10, 100, 0, 4);
    let woken = WakeupRow { blocked_ns: 90, call: Some(here), ..wakeup(101, (1, 4), WAKES, 3) };
    let sums = |wall: &Wall| {
        let thread = wall.threads().into_iter().find(|thread| thread.thread.1 == 3).expect("a thread");
        (thread.total_ns(), thread.waits)
    };
    let without = wall(vec![known, sleeps, next], vec![wakeup(101, (1, 4), WAKES, 3)]);
    let with = wall(vec![known, sleeps, next], vec![woken]);
    assert_eq!((with.waits.len(), sums(&with)), (without.waits.len() + 1, sums(&without)));
    let at = with.waits.iter().position(|row| row.blocked_ns == 90 && row.thread.1 == 3).expect("a row");
    assert_eq!((with.state(at), with.waits[at].chain), (State::Condition, CONDITION));
    let rest = with.waits[at + 1];
    assert_eq!((rest.short_longest_ns, rest.short_waits, rest.short_mixed_ns), (None, 2, 5));
    let asleep = |wall: &Wall| -> u64 {
        let steps = wall.critical_path(3, 0, 110).into_iter();
        steps.filter(|step| step.state == State::Timer).map(|step| step.end_ns - step.begin_ns).sum()
    };
    assert_eq!([asleep(&without), asleep(&with)], [0, 90], "{:?}", with.critical_path(3, 0, 110));
    // A wake-up that says more than the sums have is none of theirs.
    let woken = WakeupRow { blocked_ns: 91, ..woken };
    assert_eq!(wall(vec![known, sleeps, next], vec![woken]).waits.len(), without.waits.len());
}

/// Checks that a path does not go through a thread before that was made, but through the one that
/// waited for it.
#[test]
fn paths_end_where_threads_begin() {
    // Thread 2 lives from 60 on, sleeps, and ends the wait of thread 1, which slept before.
    let slept = WaitRow { run_ns: 10, ..wait((1, 1), SLEEP, 10, 50, 0, 0) };
    let waited = WaitRow { run_ns: 15, ..wait((1, 1), CONDITION, 65, 200, 0, 2) };
    let child = WaitRow { run_ns: 10, ..wait((1, 2), SLEEP, 70, 190, 0, 0) };
    let ended =
        WaitRow { is_end: true, run_ns: 10, ..WaitRow::nothing(200, (1, 2), CommId::unnamed(2), WAKES) };
    let wall = wall(vec![slept, waited, child, ended], Vec::new());
    let steps: Vec<_> = wall.critical_path(1, 0, 200);
    let of = |step: &PathStep| (step.tid, step.begin_ns, step.end_ns);
    let covered: u64 = steps.iter().map(|step| step.end_ns - step.begin_ns).sum();
    assert_eq!(covered, 200, "{steps:?}");
    assert!(steps.iter().all(|step| step.tid != 2 || step.begin_ns >= 60), "{steps:?}");
    assert_eq!(of(steps.last().expect("a step")).0, 1, "{steps:?}");
}

/// Checks that the time of a thread that had no row is not put where it ended, and that of a wait
/// in which the recording ends not where the thread has waited before, elsewhere.
#[test]
fn ends_have_no_place_of_their_own() {
    let end = |tid, chain| WaitRow {
        is_end: true,
        short_blocked_ns: 100,
        short_waits: 10,
        task_state: 0x80,
        ..WaitRow::nothing(1000, (1, tid), CommId::unnamed(tid), chain)
    };
    let still = WaitRow { is_end: true, syscall: 202, ..wait((1, 3), LOCK, 500, 1000, 0, 0) };
    let rows = vec![wait((1, 2), SLEEP, 0, 50, 0, 0), wait((1, 3), SLEEP, 0, 60, 0, 0)];
    let ends = vec![end(1, WAKES), end(2, WAKES), still];
    let wall = wall([rows, ends].concat(), Vec::new());
    let of = |tid| {
        let threads = wall.threads();
        let thread = threads.iter().find(|thread| thread.thread.1 == tid).expect("it is there").clone();
        [State::Timer, State::Lock, State::Other, State::Unknown].map(|state| thread.in_state(state))
    };
    assert_eq!(of(1), [0, 0, 0, 100]);
    assert_eq!(of(2), [150, 0, 0, 0]);
    assert_eq!(of(3), [60, 500, 0, 0]);
    let at = |state| wall.places().into_iter().filter(|place| place.state == state).collect::<Vec<_>>();
    assert!(at(State::Unknown).iter().all(|place| wall.site_name(place.site).contains("unknown")));
    assert_eq!(wall.site_name(at(State::Timer)[0].site).split(' ').next(), Some("sleep"));
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

pub(crate) fn any_rows() -> impl Strategy<Value = (Vec<WaitRow>, Vec<WakeupRow>)> {
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

/// Checks that the spans of each thread sum to its time, state by state, and that those of a range
/// of time are those that end in it.
fn spans_sum_to_the_threads(wall: &Wall) -> Result<(), TestCaseError> {
    let columns = wall.columns();
    let mut sums: std::collections::BTreeMap<(i32, i32), ThreadTime> = Default::default();
    for row in (0..columns.len()).map(|row| columns.row(row)) {
        let thread = columns.threads.get(row.thread);
        let state = SpanState::of_number(row.state).expect("a span has a state");
        let sum = sums.entry((thread.pid, thread.tid)).or_default();
        sum.thread = (thread.pid, thread.tid);
        sum.add(state.state, row.period);
        if state.is_idle() {
            sum.idle_ns = sum.idle_ns.saturating_add(row.period);
        }
        prop_assert!(row.span_ns <= row.time_ns, "{:?}", row);
        if let Some(waker) = row.waker {
            prop_assert!((waker as usize) < columns.threads.len(), "{:?}", row);
        }
    }
    let of = |thread: &ThreadTime| (thread.thread, thread.times, thread.idle_ns);
    let expected: Vec<_> = wall.threads().iter().filter(|thread| thread.total_ns() > 0).map(of).collect();
    prop_assert_eq!(sums.values().map(of).collect::<Vec<_>>(), expected);
    let (from, to) = (columns.len() as u64 * 7, 700);
    let within = columns.time().iter().filter(|time| (from..=to).contains(*time)).count();
    prop_assert_eq!(columns.rows_in(from..=to).len(), within);
    Ok(())
}

/// Checks one thread that runs alone and eight that run at once: of the time that passed the first
/// has what it took, and so have the eight together. Who waits for them has none of it.
#[test]
fn a_thread_alone_and_eight_at_once() {
    let run =
        |tid, end, ns| WaitRow { run_ns: ns, ..WaitRow::nothing(end, (1, tid), CommId::unnamed(tid), LOCK) };
    let joins = wait((1, 1), CONDITION, 900, 1000, 0, 2);
    let mut waits = vec![run(1, 900, 900)];
    waits.extend((2..10).map(|tid| run(tid, 1000, 100)));
    waits.push(joins);
    let mut wall = wall(waits, Vec::new());
    let of = |wall: &Wall| {
        let threads = wall.threads();
        let (first, others): (Vec<_>, Vec<_>) = threads.iter().partition(|thread| thread.thread.1 == 1);
        [first, others].map(|list| list.iter().map(|thread| thread.in_state(State::Running)).sum::<u64>())
    };
    assert_eq!(of(&wall), [900, 800]);
    wall.weigh_by_latency();
    // Parts of a nanosecond are rounded for each thread.
    assert_eq!(of(&wall), [900, 8 * 13]);
    assert_eq!(wall.threads()[0].total_ns(), 900);
}

/// Checks that a call whose return is missing does not hide the calls after it, which returned: as
/// it was observed before its return was, or its return was lost.
#[test]
fn calls_after_one_whose_return_is_missing() {
    let hit = |(time_ns, returns)| calls::CallHit { thread: (1, 1), time_ns, position: 0, returns };
    // The second of them calls itself.
    let times = [(10, false), (20, false), (25, true), (30, false), (32, false), (34, true), (40, true)];
    let calls = Calls::of("f", times.map(hit).to_vec());
    let of = |begin_ns, end_ns| Call { thread: (1, 1), begin_ns, end_ns };
    assert_eq!((&calls.calls[..], calls.unfinished), (&[of(20, 25), of(30, 40)][..], 1));
}

/// Checks that calls are paired with their returns, the outermost of one that calls itself, and
/// what their threads did meanwhile and what decided it, also of a wait that is in a call partly.
#[test]
fn calls_and_what_they_wait_for() {
    let mut wall = chain();
    let hit = |thread, time_ns, returns| calls::CallHit { thread, time_ns, position: 0, returns };
    let hits = vec![
        hit((1, 1), 0, true),
        hit((1, 1), 21, false),
        hit((1, 1), 30, false),
        hit((1, 1), 40, true),
        hit((1, 1), 130, true),
        hit((1, 3), 105, false),
        hit((1, 3), 115, true),
        hit((1, 3), 120, false),
    ];
    let calls = Calls::of("f", hits);
    let of = |thread, begin_ns, end_ns| Call { thread, begin_ns, end_ns };
    assert_eq!(calls.calls, [of((1, 1), 21, 130), of((1, 3), 105, 115)]);
    assert_eq!((calls.unfinished, calls.threads(), calls.total_ns()), (1, 2, 119));
    assert_eq!(calls.percentiles([1, 50, 99, 100]), [10, 10, 109, 109]);
    let times = wall.time_of_calls(&calls);
    let states = [State::Running, State::Runnable, State::Condition].map(|state| times.in_state(state));
    assert_eq!((states, times.total_ns()), ([9 + 2, 1 + 3, 99 + 5], 119));
    let (parts, count) = wall.path_of_calls(&calls);
    assert_eq!(count, 2);
    assert_eq!(parts.iter().map(|part| part.time_ns).sum::<u64>(), 119);
    // The sleep of the last in the chain, as far as it lies within a call.
    assert_eq!((parts[0].tid, parts[0].state, parts[0].time_ns), (4, State::Timer, 79));
    wall.calls = Some(calls);
    let mut text = Vec::new();
    write_wall(&mut text, &wall, &TextOptions::default()).expect("written");
    let text = String::from_utf8(text).expect("text");
    assert!(text.starts_with("# 2 calls of f in 2 threads: 119 ns"), "{text}");
}

/// Checks which events are of calls of a function.
#[test]
fn events_of_calls() {
    let of = |event| calls::says_of_calls(event, "handle");
    let events =
        ["probe:srv:handle", "probe:srv:handle%return", "probe:handle", "probe:srv:rehandle", "handle"];
    assert_eq!(events.map(of), [Some(false), Some(true), Some(false), None, None]);
    assert_eq!(calls::says_of_calls("probe:a.so:ns::f%return", "a.so:ns::f"), Some(true));
}

/// Checks the picture of all time: each state has its time in the tree and, spread over the moments
/// of its waits, in the timeline; running time is where the thread's samples are; and waits know
/// what ended them, but for idle ones.
#[test]
fn tree_timeline_and_arrows() {
    let mut wall = chain();
    let sample = |time_ns, chain| rows::RunSample {
        thread: (1, 3),
        time_ns,
        comm: CommId::unnamed(3),
        chain,
        period: 1,
        cpu: u32::MAX,
    };
    // Before its wait it runs, in two places.
    wall.waits[1].run_ns = 4;
    wall.runs = vec![sample(3, LOCK), sample(5, SLEEP), sample(90, LOCK)];
    let mut export = crate::export::ExportProfile::default();
    wall.fill(&mut export, (0, 200));
    let event = &export.events[0];
    let (nodes, entries) = (&event.stacks.nodes, &event.timeline.entries);
    for (at, node) in nodes.iter().enumerate() {
        let of_node = entries.iter().filter(|entry| entry.node as usize == at);
        assert_eq!(of_node.map(|entry| entry.period).sum::<u64>(), node.self_period);
    }
    assert_eq!(event.total_period, wall.threads().iter().map(ThreadTime::total_ns).sum::<u64>());
    let of_state = |state: &str| -> u64 {
        let is = |node: &&crate::export::Node| export.functions[node.function as usize].name == state;
        nodes.iter().filter(is).map(|node| node.self_period).sum()
    };
    let states = ["running", "runnable", "timer", "condition", "idle: condition"].map(of_state);
    assert_eq!(states, [4, 2 + 3 + 1, 90, 105 + 119, 199]);
    let running = nodes.iter().filter(|node| export.functions[node.function as usize].name == "running");
    assert_eq!(running.map(|node| node.self_period).collect::<Vec<_>>(), [2, 2]);
    let tid = |at: u32| export.threads[at as usize].tid;
    let links: Vec<_> =
        event.links.iter().map(|link| (tid(link.thread), link.waker.map(tid), link.state)).collect();
    assert_eq!(links, [(1, Some(3), "condition"), (3, Some(4), "condition"), (4, None, "timer")]);
    assert_eq!((event.links[0].begin_ns, event.links[0].end_ns, &event.links[2].by[..]), (1, 120, "a timer"));
    wall.weigh_by_latency();
    let mut export = crate::export::ExportProfile::default();
    wall.fill(&mut export, (0, 200));
    assert!(export.events[0].timeline.entries.is_empty() && export.events[0].links.is_empty());
}

/// What each part of each row has of the time that passed, by looking at every moment.
fn latency_of_moments(wall: &Wall) -> Vec<[f64; 5]> {
    let mut found = vec![[0.0; 5]; wall.waits.len()];
    for now in 0..1300_u64 {
        let mut classes: [Vec<(usize, usize, f64)>; 5] = Default::default();
        for (index, row) in wall.waits.iter().enumerate() {
            let before = row.run_ns + row.short_blocked_ns + row.short_runnable_ns;
            let (woken, begun) =
                (row.time_ns - row.runnable_ns, row.time_ns - row.runnable_ns - row.blocked_ns);
            let waits = match wall.end(index) {
                _ if wall.is_idle(index) => 4,
                End::Thread(..) => 3,
                _ => 2,
            };
            let short = if wall.is_idle(index) { 4 } else { 2 };
            if (begun - before..begun).contains(&now) {
                let part = |time: u64| time as f64 / before as f64;
                classes[0].push((index, 0, part(row.run_ns)));
                classes[short].push((index, 3, part(row.short_blocked_ns)));
                classes[1].push((index, 4, part(row.short_runnable_ns)));
            } else if (begun..woken).contains(&now) {
                classes[waits].push((index, 1, 1.0));
            } else if (woken..row.time_ns).contains(&now) {
                classes[1].push((index, 2, 1.0));
            }
        }
        let mut rest = 1.0_f64;
        for class in classes {
            let threads: f64 = class.iter().map(|(.., threads)| threads).sum();
            let taken = threads.min(rest);
            for (row, part, of_thread) in class.into_iter().filter(|(.., threads)| *threads > 0.0) {
                found[row][part] += of_thread / threads * taken;
            }
            rest -= taken;
        }
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Checks the division of the time that passed against one of every moment.
    #[test]
    fn latency_is_that_of_every_moment((mut waits, wakeups) in any_rows(), runs in proptest::collection::vec((0..100u64, 0..30u64, 0..30u64), 60)) {
        for (row, (run, blocked, ready)) in waits.iter_mut().zip(runs) {
            // Nothing begins before the first moment.
            let room = row.time_ns - row.runnable_ns - row.blocked_ns;
            row.run_ns = run.min(room);
            row.short_blocked_ns = blocked.min(room - row.run_ns);
            row.short_runnable_ns = ready.min(room - row.run_ns - row.short_blocked_ns);
        }
        let mut wall = wall(waits, wakeups);
        let expected = latency_of_moments(&wall);
        wall.weigh_by_latency();
        for (row, expected) in expected.into_iter().enumerate() {
            for ((_, found), expected) in wall.parts(row).into_iter().zip(expected) {
                prop_assert!((found as f64 - expected).abs() < 0.51, "{} is not {}", found, expected);
            }
        }
    }

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
        // So does the division of calls that cover all of it, and the picture.
        let hit = |time_ns, returns| calls::CallHit { thread: (1, tid), time_ns, position: 0, returns };
        let calls = Calls::of("f", vec![hit(10, false), hit(1400, true)]);
        prop_assert_eq!(wall.time_of_calls(&calls).total_ns(), 1390);
        prop_assert_eq!(wall.path_of_calls(&calls).0.iter().map(|part| part.time_ns).sum::<u64>(), 1390);
        spans_sum_to_the_threads(&wall)?;
        let mut export = crate::export::ExportProfile::default();
        wall.fill(&mut export, (0, 1500));
        prop_assert_eq!(export.events[0].total_period, all);
        prop_assert_eq!(export.events[0].timeline.entries.iter().map(|entry| entry.period).sum::<u64>(), all);
        let places: u64 = wall.places().iter().map(|place| place.time_ns).sum();
        let ran: u64 = wall.threads().iter().map(|thread| thread.in_state(State::Running)).sum();
        prop_assert_eq!(places + ran, all);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Checks that rows with any numbers, such as a damaged recording has, do no harm: nothing
    /// overflows, loops, or is as large as a number says.
    #[test]
    fn any_numbers_do_no_harm(
        rows in proptest::collection::vec((any::<[u64; 8]>(), 1..4i32, 0..5i32, any::<bool>(), 0..65u32), 0..20),
        hits in proptest::collection::vec((any::<u64>(), 1..4i32, any::<bool>()), 0..10),
    ) {
        let row = |(numbers, tid, waker, is_end, shift): ([u64; 8], i32, i32, bool, u32)| {
            let numbers = numbers.map(|number| number.checked_shr(shift).unwrap_or(0));
            let [time_ns, blocked_ns, runnable_ns, run_ns, short_blocked_ns, rest @ ..] = numbers;
            let [short_runnable_ns, short_waits, short_preemptions] = rest;
            let other = PlaceWaits { blocked_ns: run_ns, waits: blocked_ns, runnable_ns: time_ns, ..Default::default() };
            WaitRow {
                other_places: [other, PlaceWaits { call: Some(waker.into()), ..other }],
                task_state: shift,
                waker,
                blocked_ns,
                runnable_ns,
                run_ns,
                short_blocked_ns,
                short_runnable_ns,
                short_waits,
                short_preemptions,
                is_end,
                for_work: [None, Some(true), Some(false)][shift as usize % 3],
                ..WaitRow::nothing(time_ns, (1, tid), CommId::unnamed(tid), tid as ChainId)
            }
        };
        let mut waits: Vec<WaitRow> = rows.into_iter().map(row).collect();
        waits.sort_by_key(|row| row.time_ns);
        let (first, last) = (0, waits.last().map_or(0, |row| row.time_ns));
        let wakeups = waits.iter().map(|row| wakeup(row.time_ns, (1, 2), WAKES, row.thread.1)).collect();
        let mut wall = wall(waits, wakeups);
        let hit = |(time_ns, tid, returns)| calls::CallHit { thread: (1, tid), time_ns, position: 0, returns };
        wall.calls = Some(Calls::of("f", hits.into_iter().map(hit).collect()));
        let mut export = crate::export::ExportProfile::default();
        wall.fill(&mut export, (first, last));
        prop_assert!(export.events[0].timeline.entries.len() < 20 * 3000 * 64);
        spans_sum_to_the_threads(&wall)?;
        for _ in 0..2 {
            for calls in [wall.calls.take(), None] {
                wall.calls = calls;
                write_wall(&mut std::io::sink(), &wall, &TextOptions::default()).expect("a sink");
                write_wall_json(&mut std::io::sink(), &wall, &TextOptions::default()).expect("a sink");
            }
            wall.weigh_by_latency();
        }
    }
}
