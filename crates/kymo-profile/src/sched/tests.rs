//! The replay against the model, and single rules by hand.
use super::event::*;
use super::model;
use super::replay::{Replay, Step, ThreadState};
use proptest::prelude::*;

const MS: u64 = 1_000_000;

pub(super) fn event(time_ns: u64, cpu: u32, kind: SchedEventKind) -> SchedEvent {
    SchedEvent { time_ns, cpu: Some(cpu), current: None, kind }
}

pub(super) fn switch(time_ns: u64, cpu: u32, prev: i32, letter: char, next: i32) -> SchedEvent {
    let state = OutState { letter, preempted: false };
    let name = TaskName::default();
    let prev = Some(SwitchedOut { tid: prev, name, state, priority: 120 });
    let next = Some(SwitchedIn { tid: next, pid: None, name, priority: 120 });
    event(time_ns, cpu, SchedEventKind::Switch { prev, next })
}

pub(super) fn wake(time_ns: u64, cpu: u32, tid: i32) -> SchedEvent {
    let (step, name) = (WakeupStep::Waking, TaskName::default());
    let kind = SchedEventKind::Wakeup { step, tid, name, target_cpu: Some(cpu), in_interrupt: false };
    event(time_ns, cpu, kind)
}

pub(super) fn name(tid: i32, text: &str) -> SchedEvent {
    let ids = TaskIds { pid: tid, tid };
    SchedEvent {
        cpu: None,
        ..event(0, 0, SchedEventKind::Name { ids, name: TaskName::new(text.as_bytes()) })
    }
}

/// The run times and delays that the replay's steps add up to.
fn replayed(events: &[SchedEvent], tid: i32) -> model::ModelTimes {
    let mut replay = Replay::default();
    let mut times = model::ModelTimes::default();
    for event in events {
        let Step::Switched { out, into } = replay.apply(event) else { continue };
        if let Some(out) = out.filter(|out| replay.thread(out.thread).tid == tid)
            && let Some(from) = out.from_ns
        {
            times.run_ns += event.time_ns - from;
        }
        if let Some(into) = into.filter(|into| replay.thread(into.thread).tid == tid)
            && let Some(ready) = into.wait.ready_ns
        {
            times.delay_ns += event.time_ns - ready;
            times.delays += 1;
        }
    }
    times
}

fn any_event() -> impl Strategy<Value = SchedEvent> {
    let (cpu, tid, letter) = (0..2_u32, 0..4_i32, prop::sample::select(vec!['R', 'S', 'D', '?']));
    prop_oneof![
        6 => (cpu.clone(), tid.clone(), letter, tid.clone())
            .prop_map(|(cpu, prev, letter, next)| switch(0, cpu, prev, letter, next)),
        3 => (cpu.clone(), 1..4_i32).prop_map(|(cpu, tid)| wake(0, cpu, tid)),
        1 => cpu.prop_map(|cpu| event(0, cpu, SchedEventKind::Lost { records: 1 })),
    ]
}

proptest! {
    /// Checks run times and delays of any events, also impossible ones, against the model.
    #[test]
    fn replay_is_the_model(
        events in prop::collection::vec((any_event(), 0..3_u64), 0..60)
    ) {
        let mut now = 1;
        let events: Vec<SchedEvent> = events
            .into_iter()
            .map(|(event, later)| {
                now += later;
                SchedEvent { time_ns: now, ..event }
            })
            .collect();
        for tid in 1..4 {
            prop_assert_eq!(replayed(&events, tid), model::times(&events, tid));
        }
    }

    /// Checks that events in no order of time do no harm, and that no time is negative.
    #[test]
    fn any_order_does_no_harm(
        events in prop::collection::vec((any_event(), any::<u64>()), 0..60)
    ) {
        let mut replay = Replay::default();
        for (event, time_ns) in events {
            if let Step::Switched { out, into } = replay.apply(&SchedEvent { time_ns, ..event }) {
                prop_assert!(out.and_then(|out| out.from_ns).is_none_or(|from| from <= time_ns));
                prop_assert!(into.and_then(|into| into.wait.ready_ns).is_none_or(|ready| ready <= time_ns));
            }
        }
    }
}

/// Checks the states of a thread through a wake-up, a preemption and a sleep.
#[test]
fn states() {
    let mut replay = Replay::default();
    let events = [
        (wake(MS, 0, 7), ThreadState::Runnable { since_ns: MS }),
        (wake(2 * MS, 0, 7), ThreadState::Runnable { since_ns: MS }),
        (switch(3 * MS, 0, 0, 'R', 7), ThreadState::Running { cpu: Some(0), since_ns: Some(3 * MS) }),
        (wake(4 * MS, 0, 7), ThreadState::Running { cpu: Some(0), since_ns: Some(3 * MS) }),
        (switch(5 * MS, 0, 7, 'R', 8), ThreadState::Runnable { since_ns: 5 * MS }),
        (switch(6 * MS, 0, 8, 'S', 7), ThreadState::Running { cpu: Some(0), since_ns: Some(6 * MS) }),
        (switch(7 * MS, 0, 7, 'D', 0), ThreadState::Blocked { since_ns: 7 * MS }),
    ];
    for (event, state) in events {
        replay.apply(&event);
        let thread = replay.threads().iter().find(|thread| thread.tid == 7).unwrap();
        assert_eq!(thread.state, state, "{event:?}");
    }
}

/// Checks that a number which the kernel uses again is another thread, that a fork which is told
/// twice is one, and that a child has its parent's name until it gets one.
#[test]
fn numbers_are_used_again() {
    let mut replay = Replay::default();
    let fork = |time, pid| event(time, 0, SchedEventKind::Fork { tid: 9, pid, parent_tid: 5 });
    replay.apply(&name(5, "parent"));
    replay.apply(&fork(1, Some(9)));
    replay.apply(&fork(2, None));
    assert_eq!(replay.threads().iter().filter(|thread| thread.tid == 9).count(), 1);
    replay.apply(&switch(3, 0, 0, 'R', 9));
    replay.apply(&name(9, "first"));
    replay.apply(&switch(4, 0, 9, 'Z', 0));
    replay.apply(&fork(5, Some(9)));
    let names: Vec<String> = replay.threads().iter().filter(|t| t.tid == 9).map(|t| t.shown_name()).collect();
    assert_eq!(names, ["first", "parent"]);
}

/// Checks that a thread which gets a CPU while it runs has no delay: that it left a CPU is missing.
/// A recorder that ends on one CPU after the other makes such recordings.
#[test]
fn a_missing_switch_is_no_delay() {
    let events = [wake(1, 0, 7), switch(2, 0, 0, 'R', 7), switch(9, 1, 0, 'R', 7), switch(11, 1, 7, 'S', 0)];
    assert_eq!(replayed(&events, 7), model::ModelTimes { run_ns: 2, delay_ns: 1, delays: 1 });
}

/// Checks that what ran on while records were lost has no run time, and that the switch after it is
/// counted as one that does not fit only where another thread had run.
#[test]
fn losses_are_not_counted() {
    let lost = event(3, 0, SchedEventKind::Lost { records: 5 });
    let events = [switch(1, 0, 0, 'R', 7), lost, switch(9, 0, 7, 'S', 0), switch(11, 0, 7, 'S', 0)];
    assert_eq!(replayed(&events, 7).run_ns, 0);
    let mut replay = Replay::default();
    events.iter().for_each(|event| _ = replay.apply(event));
    assert_eq!(replay.mismatched_switches, 1);
}

/// Checks that names are cut to the kernel's length and end at a zero, whatever bytes they have.
#[test]
fn names() {
    assert_eq!(TaskName::new(b"a\0b").to_string(), "a");
    assert_eq!(TaskName::new(&[b'x'; 40]).as_bytes().len(), 15);
    assert!(TaskName::new(b"\0").is_empty());
    assert_eq!(format!("{:5}|", TaskName::new(b"ab")), "ab   |");
    assert_eq!(TaskName::new(b"\xff").to_string(), "\u{fffd}");
}
