//! Short waits, which have no rows of their own: to whom and what their sums go.
use super::*;

/// Checks that short waits count for what the thread waited for last, and that all parts sum.
#[test]
fn last_state_has_short_waits() {
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

/// Checks that waits without rows of their own have their share of the path, and are no running
/// time: 5,000 short sleeps of a program that hardly runs.
#[test]
fn path_has_share_of_short_waits() {
    let first = WaitRow { run_ns: 5, ..wait((1, 1), SLEEP, 5, 10, 0, 0) };
    let later = WaitRow {
        run_ns: 20,
        short_blocked_ns: 160,
        short_runnable_ns: 20,
        short_waits: 40,
        short_longest_ns: Some(7),
        ..wait((1, 1), SLEEP, 210, 250, 0, 0)
    };
    let wall = wall(vec![first, later], Vec::new());
    let of = |step: &PathStep| (step.state, step.begin_ns, step.end_ns);
    let steps: Vec<_> = wall.critical_path(1, 0, 250).iter().map(of).collect();
    let expected = [
        (State::Timer, 210, 250),
        (State::Runnable, 190, 210),
        (State::Timer, 30, 190),
        (State::Running, 10, 30),
        (State::Timer, 5, 10),
        (State::Running, 0, 5),
    ];
    assert_eq!(steps, expected);
    // From the middle of that time on, each has half of its share.
    let half: Vec<_> = wall.critical_path(1, 0, 110).iter().map(of).take(3).collect();
    assert_eq!(half, [(State::Runnable, 100, 110), (State::Timer, 20, 100), (State::Running, 10, 20)]);
    let places = wall.places();
    let sleeps = places.iter().find(|place| place.state == State::Timer).expect("it sleeps");
    assert_eq!((sleeps.longest_ns, sleeps.waits), (40, 42), "a sum is no longest");
    assert_eq!(wall.longest_short_waits().into_iter().collect::<Vec<_>>(), [((1, 210, SLEEP), 7)]);
}

/// Checks that short waits which were all in one call count where the thread has waited in it, and
/// not as idle where its own wait is; and that a call alone tells what the waits of a thread were
/// for that had no row.
#[test]
fn call_has_short_waits() {
    let of_call = |row: WaitRow, syscall| WaitRow { syscall, ..row };
    let sleep = of_call(wait((1, 2), SLEEP, 0, 50, 0, 0), 230);
    let mixed = WaitRow {
        short_blocked_ns: 90,
        short_waits: 9,
        short_call: Some(230),
        ..of_call(wait((1, 2), CONDITION, 200, 300, 0, 0), 202)
    };
    let end = WaitRow {
        is_end: true,
        task_state: 0x80,
        short_blocked_ns: 70,
        short_waits: 7,
        short_call: Some(230),
        ..WaitRow::nothing(1000, (1, 3), CommId::unnamed(3), WAKES)
    };
    let wall = wall(vec![sleep, mixed, end], Vec::new());
    let of = |tid| wall.threads().into_iter().find(|thread| thread.thread.1 == tid).expect("it is there");
    let times = [State::Timer, State::Condition].map(|state| of(2).in_state(state));
    assert_eq!((times, of(2).idle_ns), ([140, 100], 100));
    assert_eq!(of(3).in_state(State::Timer), 70);
    let places = wall.places();
    let sleeps: Vec<_> = places.iter().filter(|place| place.state == State::Timer).collect();
    let found: Vec<_> = sleeps.iter().map(|place| (place.time_ns, wall.site_name(place.site))).collect();
    assert_eq!((found[0].0, &found[0].1[..5]), (140, "sleep"), "{found:?}");
    spans_sum_to_the_threads(&wall).expect("they do");
}

/// Checks a thread that waits shortly for a lock and on a condition in turns, in one call: each has
/// its own sum, number and longest, in the table, on the path and in the spans; nothing is an
/// estimate.
#[test]
fn short_waits_at_three_places_are_exact() {
    let [at_lock, at_condition, sleeps] = [(LOCK, 7), (CONDITION, 8), (SLEEP, 9)].map(|(chain, place)| {
        WaitRow { place: Some(place), syscall: 202, ..wait((1, 2), chain, 1, 10, 0, 0) }
    });
    let places =
        [(8, 400, 40, 30), (7, 500, 50, 20), (9, 60, 2, 31)].map(|(place, blocked_ns, waits, longest)| {
            let longest_ns = Some(longest);
            PlaceWaits {
                blocked_ns,
                waits,
                longest_ns,
                call: Some(202),
                place: Some(place),
                runnable_ns: place,
            }
        });
    let mut row = WaitRow {
        run_ns: 16,
        short_blocked_ns: 960,
        short_runnable_ns: 24,
        short_waits: 92,
        short_longest_ns: Some(31),
        ..wait((1, 1), LOCK, 2000, 2100, 0, 0)
    };
    row.divide_short_waits(places);
    assert_eq!((row.total_ns(), row.short_longest_ns, row.short_mixed_ns), (1100, Some(20), 0));
    let wall = wall(vec![at_lock, at_condition, sleeps, row], Vec::new());
    let times = |wall: &Wall| {
        let thread = wall.threads().into_iter().find(|thread| thread.thread.1 == 1).expect("a thread");
        assert_eq!(thread.waits, 93);
        [State::Lock, State::Condition, State::Timer, State::Running].map(|state| thread.in_state(state))
    };
    assert_eq!(times(&wall), [600, 400, 60, 16]);
    let found = |state| {
        let place = wall.places().into_iter().find(|place| place.state == state).expect("a place");
        (place.time_ns, place.waits, place.longest_ns)
    };
    // With those of the other thread, whose wait on the condition is idle.
    assert_eq!(found(State::Lock), (609, 52, 100));
    assert_eq!([found(State::Condition), found(State::Timer)], [(400, 40, 30), (69, 3, 31)]);
    let ready = |chain| {
        let site = wall.site_of(chain);
        let place =
            wall.places().into_iter().find(|place| (place.state, place.site) == (State::Runnable, site));
        place.expect("it was ready there").time_ns
    };
    assert_eq!([LOCK, CONDITION, SLEEP].map(ready), [7, 8, 9]);
    let on_path = |state| -> u64 {
        let steps = wall.critical_path(1, 1000, 2000).into_iter().filter(|step| step.state == state);
        steps.map(|step| step.end_ns - step.begin_ns).sum()
    };
    assert_eq!(
        [State::Lock, State::Condition, State::Timer, State::Runnable].map(on_path),
        [500, 400, 60, 24]
    );
    assert!(wall.notes().is_empty(), "{:?}", wall.notes());
    assert!(spans_sum_to_the_threads(&wall).is_ok());
}

/// Checks that the report says how much time may have the wrong state where short waits of several
/// calls were added up, and nothing where they were of one.
#[test]
fn short_waits_in_two_calls_are_estimates() {
    let row = |short_call, short_mixed_ns| WaitRow {
        syscall: 230,
        short_blocked_ns: 100,
        short_waits: 9,
        short_call,
        short_mixed_ns,
        ..wait((1, 2), SLEEP, 200, 300, 0, 0)
    };
    let notes = |rows| wall(rows, Vec::new()).notes().to_vec();
    assert_eq!(notes(vec![row(Some(230), 0)]), Vec::<String>::new());
    for (short_call, mixed, words) in
        [(Some(230), 8, ("8 ns of", "4.0 %")), (None, 60, ("100 ns of", "50.0 %"))]
    {
        let notes = notes(vec![row(short_call, mixed)]);
        assert!(notes.len() == 1 && notes[0].starts_with(words.0) && notes[0].contains(words.1), "{notes:?}");
    }
}

/// Checks that the short waits of a thread that had no row count where another thread of its
/// process waited at the same place, and not where one of another process did.
#[test]
fn place_has_short_waits() {
    let of_place = |row: WaitRow, place| WaitRow { syscall: 230, place: Some(place), ..row };
    let end = |thread, place| WaitRow {
        is_end: true,
        task_state: 0x80,
        short_blocked_ns: 70,
        short_waits: 7,
        short_call: Some(230),
        short_place: Some(place),
        ..WaitRow::nothing(1000, thread, CommId::unnamed(3), WAKES)
    };
    let sleep = of_place(wait((1, 2), SLEEP, 0, 50, 0, 0), 11);
    let wall = wall(vec![sleep, end((1, 3), 11), end((4, 4), 11)], Vec::new());
    let places = wall.places();
    let sleeps = places.iter().filter(|place| place.state == State::Timer);
    let found: Vec<_> = sleeps.map(|place| (place.time_ns, wall.site_name(place.site))).collect();
    assert_eq!((found.len(), found[0].0, &found[0].1[..5]), (2, 120, "sleep"), "{found:?}");
    spans_sum_to_the_threads(&wall).expect("they do");
}

/// Checks that the time around a wait which only its wake-up tells is divided as the sums say, on
/// both sides of it: none of it is running that was not.
#[test]
fn around_a_wait_without_its_switch() {
    let known = wait((1, 3), CONDITION, 5, 10, 0, 4);
    let next = WaitRow {
        run_ns: 20,
        short_blocked_ns: 180,
        short_waits: 10,
        short_longest_ns: Some(80),
        ..wait((1, 3), LOCK, 210, 220, 0, 5)
    };
    let woken = WakeupRow { blocked_ns: 80, ..wakeup(150, (1, 4), WAKES, 3) };
    let wall = wall(vec![known, next], vec![woken]);
    assert_eq!(wall.waits.len(), 3);
    let steps = wall.critical_path(3, 10, 210);
    let running = steps.iter().filter(|step| step.state == State::Running);
    let running: u64 = running.map(|step| step.end_ns - step.begin_ns).sum();
    assert_eq!(running, 20, "{steps:?}");
}

/// Checks that a wait without a stack has that of another one at its place in its process, which
/// says what it was for, and that one of no known place stays unknown.
#[test]
fn waits_without_stacks_have_those_of_their_place() {
    let futex = WaitRow { syscall: 202, operation: 128, ..wait((1, 3), CONDITION, 5, 10, 0, 4) };
    let none = wall(Vec::new(), Vec::new()).no_stack;
    let made = wall(
        vec![
            WaitRow { place: Some(9), ..futex },
            WaitRow { place: Some(9), time_ns: 20, chain: none, ..futex },
            WaitRow { place: Some(8), time_ns: 30, chain: none, ..futex },
            WaitRow { place: None, time_ns: 40, chain: none, syscall: 0, ..futex },
        ],
        Vec::new(),
    );
    let states: Vec<State> = (0..4).map(|at| made.state(at)).collect();
    assert_eq!(states, [State::Condition, State::Condition, State::Unknown, State::Unknown]);
    assert_eq!(made.waits[1].chain, CONDITION);
}
