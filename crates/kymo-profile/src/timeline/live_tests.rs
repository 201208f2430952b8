//! Live spaces against the timeline, which is held against the model.
use super::tests::{event, fork, map};
use super::{LiveSpaces, Moment, SideEvent, Timeline, TimelineBuilder};
use kymo_symbols::unwind::{Image, UnwindModules};
use proptest::prelude::*;

type Code = Vec<(u64, u64, u64, String)>;

fn modules() -> UnwindModules {
    UnwindModules::with_opener(Box::new(|_| Ok(Image::Bytes(Vec::new().into()))), 1)
}

fn expected(timeline: &Timeline, pid: i32, tid: i32, moment: Moment) -> Code {
    let maps = timeline.maps(timeline.thread(pid, tid, moment).maps);
    let code = maps.iter(&timeline.mappings).filter(|m| m.executable);
    let name = |module| String::from_utf8_lossy(&timeline.modules.get(module).path).into_owned();
    code.map(|m| (m.start, m.end, m.pgoff, name(m.module))).collect()
}

fn found(live: &mut LiveSpaces, pid: i32, tid: i32, moment: Moment) -> Code {
    let mappings = live.space(pid, tid, moment).mappings().iter();
    let name = |m: &kymo_symbols::unwind::Mapping| m.module.as_ref().map(|m| m.name()).unwrap_or_default();
    mappings.map(|m| (m.start, m.end, m.pgoff, name(m))).collect()
}

fn at(time_ns: u64) -> Moment {
    Moment { time_ns, position: u64::MAX }
}

/// Every third mapping is of data.
fn some_data(index: usize, event: SideEvent) -> SideEvent {
    match event {
        SideEvent::Map { pid, tid, kernel, start, end, pgoff, path, file_id, build_id, .. } => {
            let prot = if index.is_multiple_of(3) { 1 } else { 5 };
            SideEvent::Map { pid, tid, kernel, start, end, pgoff, prot, path, file_id, build_id }
        }
        other => other,
    }
}

proptest! {
    /// Checks that after any prefix of the events, pruned at any floor, questions about moments between the floor and the
    /// next event are answered as the timeline of all events answers them.
    #[test]
    fn live_is_the_timeline(
        events in proptest::collection::vec((event(), 0..3u64), 0..60),
        questions in proptest::collection::vec((1..4i32, 0..4i32, 0..60usize, 0..20u64, any::<bool>()), 1..20),
    ) {
        let mut time = 0;
        let events: Vec<(Moment, SideEvent)> = events
            .into_iter()
            .enumerate()
            .map(|(i, (event, step))| {
                time += 1 + step;
                (Moment { time_ns: time, position: i as u64 }, some_data(i, event))
            })
            .collect();
        let timeline = TimelineBuilder::build(events.clone(), true);
        let (modules, mut live, mut floor) = (modules(), LiveSpaces::new(), 0);
        for (index, (moment, event)) in events.iter().enumerate() {
            live.apply(*moment, event, &modules);
            let next = events.get(index + 1).map_or(u64::MAX, |next| next.0.time_ns);
            for (process, thread, _, back, prune) in questions.iter().filter(|q| q.2 == index) {
                let (pid, tid) = (process * 10, process * 10 + thread);
                for time_ns in [moment.time_ns.saturating_sub(*back).max(floor), next - 1] {
                    prop_assert_eq!(found(&mut live, pid, tid, at(time_ns)), expected(&timeline, pid, tid, at(time_ns)));
                }
                if *prune {
                    floor = floor.max(moment.time_ns.saturating_sub(*back));
                    live.forget(floor);
                }
            }
        }
    }
}

/// Checks that what is kept does not grow with the number of processes that came and went.
#[test]
fn processes_that_ended_are_forgotten() {
    let (modules, mut live) = (modules(), LiveSpaces::new());
    let mut most = 0;
    for i in 0..20_000u64 {
        let (pid, moment) = (1000 + (i % 5000) as i32, Moment { time_ns: i * 1_000_000, position: i });
        live.apply(moment, &fork((1, 1), (pid, pid)), &modules);
        live.apply(moment, &map(pid, pid, 0x1000, 0x2000, 0, "/bin/true"), &modules);
        live.ended(moment, pid);
        live.prune(moment.time_ns);
        most = most.max(live.len());
    }
    assert!(most < 15_000, "{most} entries: a second's worth of processes is 2000 entries");
    assert!(!live.is_empty());
}

/// Checks that a process whose first thread has ended keeps its mappings for those that run on and for new ones.
#[test]
fn threads_outlive_the_first() {
    let (modules, mut live) = (modules(), LiveSpaces::new());
    let moment = |seconds: u64| Moment { time_ns: seconds * 1_000_000_000, position: seconds };
    live.apply(moment(1), &map(50, 50, 0x1000, 0x2000, 0, "/bin/a"), &modules);
    live.apply(moment(2), &fork((50, 50), (50, 51)), &modules);
    live.ended(moment(3), 50);
    live.forget(9_000_000_000);
    live.apply(moment(10), &fork((50, 51), (50, 52)), &modules);
    for tid in [51, 52] {
        assert_eq!(live.space(50, tid, moment(11)).mappings().len(), 1, "thread {tid}");
    }
    live.ended(moment(12), 51);
    live.ended(moment(12), 52);
    live.forget(20_000_000_000);
    assert!(live.is_empty());
}
