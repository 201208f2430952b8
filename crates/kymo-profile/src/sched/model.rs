//! Run times and delays by the most obvious code: every switch searches all events before it.
use super::event::{SchedEvent, SchedEventKind};

/// What a thread has run and waited, in ns, and how many of its waits are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ModelTimes {
    pub(super) run_ns: u64,
    pub(super) delay_ns: u64,
    pub(super) delays: u64,
}

/// What an event is to a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThreadEvent {
    In,
    Out { runnable: bool },
    Woken,
}

/// What an event is to thread `tid`, with a switch from a thread to itself as two things.
fn seen(event: &SchedEvent, tid: i32) -> Vec<ThreadEvent> {
    match event.kind {
        SchedEventKind::Switch { prev, next } => {
            let out = prev.filter(|prev| prev.tid == tid);
            let out = out.map(|prev| ThreadEvent::Out { runnable: prev.state.is_runnable() });
            out.into_iter().chain(next.filter(|next| next.tid == tid).map(|_| ThreadEvent::In)).collect()
        }
        SchedEventKind::Wakeup { tid: woken, .. } if woken == tid => vec![ThreadEvent::Woken],
        _ => Vec::new(),
    }
}

/// The times of thread `tid`, which is no idle task, in events in order of time.
pub(super) fn times(events: &[SchedEvent], tid: i32) -> ModelTimes {
    let mut times = ModelTimes::default();
    for (at, event) in events.iter().enumerate() {
        let SchedEventKind::Switch { prev, .. } = event.kind else { continue };
        if prev.is_some_and(|prev| prev.tid == tid)
            && let Some(from) = ran_since(&events[..at], event.cpu, tid)
        {
            times.run_ns += event.time_ns - from;
        }
    }
    let history: Vec<(u64, ThreadEvent)> = events
        .iter()
        .flat_map(|event| seen(event, tid).into_iter().map(|seen| (event.time_ns, seen)))
        .collect();
    for (at, (now, seen)) in history.iter().enumerate() {
        if *seen == ThreadEvent::In
            && let Some(ready) = ready(&history[..at])
        {
            times.delay_ns += now - ready;
            times.delays += 1;
        }
    }
    times
}

/// Since when the thread runs on the CPU: the newest switch there, if it was to the thread and no
/// record was lost since.
fn ran_since(before: &[SchedEvent], cpu: Option<u32>, tid: i32) -> Option<u64> {
    let of_cpu = before.iter().rev().filter(|event| event.cpu == cpu);
    let mut relevant = of_cpu
        .filter(|event| matches!(event.kind, SchedEventKind::Switch { .. } | SchedEventKind::Lost { .. }));
    match relevant.next()? {
        SchedEvent { kind: SchedEventKind::Switch { next: Some(next), .. }, time_ns, .. }
            if next.tid == tid =>
        {
            Some(*time_ns)
        }
        _ => None,
    }
}

/// When the thread became runnable that now gets a CPU: when it lost one, or at its first wake-up
/// after it had left one or before anything was seen of it.
fn ready(before: &[(u64, ThreadEvent)]) -> Option<u64> {
    let left = before.iter().rposition(|(_, seen)| matches!(seen, ThreadEvent::In | ThreadEvent::Out { .. }));
    match left.map(|left| before[left]) {
        Some((_, ThreadEvent::In)) => None,
        Some((time, ThreadEvent::Out { runnable: true })) => Some(time),
        _ => before[left.map_or(0, |left| left + 1)..].first().map(|(time, _)| *time),
    }
}
