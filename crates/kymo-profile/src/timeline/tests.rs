//! Timeline against model, and the named cases.
use super::model::{self, Map};
use super::*;
use proptest::prelude::*;

pub(super) fn map(pid: i32, tid: i32, start: u64, end: u64, pgoff: u64, path: &str) -> SideEvent {
    SideEvent::Map {
        pid,
        tid,
        kernel: false,
        start,
        end,
        pgoff,
        prot: 5,
        path: path.as_bytes().to_vec(),
        file_id: (0, 0, 0),
        build_id: Vec::new(),
    }
}

fn comm(pid: i32, tid: i32, name: &str) -> SideEvent {
    SideEvent::Comm { pid, tid, exec: false, name: name.as_bytes().to_vec() }
}

pub(super) fn fork(parent: (i32, i32), child: (i32, i32)) -> SideEvent {
    SideEvent::Fork {
        pid: child.0,
        tid: child.1,
        parent_pid: parent.0,
        parent_tid: parent.1,
        synthesized: false,
    }
}

fn in_order(events: Vec<SideEvent>) -> Vec<(Moment, SideEvent)> {
    events
        .into_iter()
        .enumerate()
        .map(|(i, e)| (Moment { time_ns: 10 * (i as u64 + 1), position: 100 + i as u64 }, e))
        .collect()
}

fn look(timeline: &Timeline, pid: i32, tid: i32, moment: Moment) -> (String, Vec<Map>) {
    let view = timeline.thread(pid, tid, moment);
    assert!(view.span.holds(moment), "an answer holds at its own moment");
    let maps = timeline.maps(view.maps);
    let list = maps
        .iter(&timeline.mappings)
        .map(|m| (m.start, m.end, m.pgoff, timeline.modules.get(m.module).path.clone()))
        .collect();
    (timeline.comm(view.comm).into_owned(), list)
}

fn at(time_ns: u64) -> Moment {
    Moment { time_ns, position: 1 << 40 }
}

/// Checks that a thread id that is used again means the new thread from its birth on, and the old one before.
#[test]
fn pid_reuse() {
    let events = in_order(vec![
        comm(7, 7, "old"),
        map(7, 7, 0x1000, 0x2000, 0, "/bin/old"),
        fork((1, 1), (7, 7)),
        comm(7, 7, "new"),
    ]);
    let timeline = TimelineBuilder::build(events, true);
    assert_eq!(look(&timeline, 7, 7, at(25)).0, "old");
    assert_eq!(look(&timeline, 7, 7, at(25)).1.len(), 1);
    assert_eq!(look(&timeline, 7, 7, at(45)), ("new".to_string(), vec![]));
}

/// Checks that a forked process has its parent's mappings, and that later ones are its own.
#[test]
fn fork_copies_mappings() {
    let events = in_order(vec![
        map(1, 1, 0x1000, 0x2000, 0, "/bin/sh"),
        fork((1, 1), (2, 2)),
        map(2, 2, 0x5000, 0x6000, 0, "/lib/a"),
    ]);
    let timeline = TimelineBuilder::build(events, true);
    assert_eq!(look(&timeline, 2, 2, at(100)).1.len(), 2);
    assert_eq!(look(&timeline, 1, 1, at(100)).1.len(), 1);
    assert_eq!(look(&timeline, 2, 2, at(25)).1.len(), 1);
}

/// Checks that records without a time come first whatever their place, and that those of one time keep file order.
#[test]
fn synthesized_records_come_first() {
    let late = Moment { time_ns: 0, position: 1 << 30 };
    let early = Moment { time_ns: 5, position: 1 };
    let timeline =
        TimelineBuilder::build(vec![(early, comm(3, 3, "second")), (late, comm(3, 3, "first"))], true);
    assert_eq!(look(&timeline, 3, 3, Moment { time_ns: 4, position: 9 }).0, "first");
    assert_eq!(look(&timeline, 3, 3, Moment { time_ns: 6, position: 9 }).0, "second");
}

/// Checks that a recording without timestamps is read in file order, mapping by mapping.
#[test]
fn without_times_the_file_order_counts() {
    let moment = |position| Moment { time_ns: 0, position };
    let events = vec![
        (moment(10), map(1, 1, 0x1000, 0x2000, 0, "/a")),
        (moment(30), map(1, 1, 0x1000, 0x2000, 0, "/b")),
    ];
    let timeline = TimelineBuilder::build(events, false);
    assert_eq!(look(&timeline, 1, 1, moment(20)).1[0].3, b"/a");
    assert_eq!(look(&timeline, 1, 1, moment(40)).1[0].3, b"/b");
}

/// Checks that many mappings (several chunks) are all found, and that one over all of them cuts them out.
#[test]
fn many_mappings() {
    let mut events: Vec<SideEvent> =
        (0..1000u64).map(|i| map(1, 1, i * 0x1000, (i + 1) * 0x1000, 0, "/a")).collect();
    events.push(map(1, 1, 0x800, 999 * 0x1000 + 0x800, 0, "/big"));
    let timeline = TimelineBuilder::build(in_order(events), true);
    let view = timeline.thread(1, 1, at(10_000));
    for i in 0..1000u64 {
        let found = timeline.maps(view.maps).find(&timeline.mappings, i * 0x1000 + 5).unwrap();
        assert!(found.start <= i * 0x1000 + 5);
    }
    let (_, maps) = look(&timeline, 1, 1, at(1 << 40));
    let names: Vec<_> = maps.iter().map(|m| (m.0, m.2, m.3.as_slice())).collect();
    assert_eq!(
        names,
        [(0, 0, &b"/a"[..]), (0x800, 0, b"/big"), (999 * 0x1000 + 0x800, 0x800, b"/a")],
        "only the two uncovered ends of /a remain"
    );
}

/// Checks the names that tables show for the kinds of modules.
#[test]
fn short_names() {
    let mut modules = Modules::default();
    let mut name = |path: &str, kind| {
        let id = modules.intern(path.as_bytes(), kind, (0, 0, 0), &[]);
        modules.get(id).short_name.clone()
    };
    assert_eq!(name("/usr/lib/libc.so.6", ModuleKind::File), "libc.so.6");
    assert_eq!(name("/lib/modules/6.1/kernel/fs/x-y.ko.xz", ModuleKind::KernelModule), "[x_y]");
    assert_eq!(name("//anon", ModuleKind::Jit { pid: 12 }), "[JIT] tid 12");
    assert_eq!(name("//anon", ModuleKind::Memory), "anon");
    assert_eq!(name("[vdso]", ModuleKind::Vdso), "[vdso]");
    assert_eq!(name("[kernel.kallsyms]", ModuleKind::Kernel), "[kernel.kallsyms]");
}

/// Checks that a thread which the recorder listed before its process keeps its name and has the process's mappings.
#[test]
fn a_thread_listed_before_its_process() {
    let moment = |position| Moment { time_ns: 0, position };
    let listed = |parent, child| match fork(parent, child) {
        SideEvent::Fork { pid, tid, parent_pid, parent_tid, .. } => {
            SideEvent::Fork { pid, tid, parent_pid, parent_tid, synthesized: true }
        }
        other => other,
    };
    let events = vec![
        (moment(1), listed((50, 50), (50, 7))),
        (moment(2), comm(50, 7, "worker")),
        (moment(3), listed((1, 1), (50, 50))),
        (moment(4), comm(50, 50, "main")),
        (moment(5), map(50, 50, 0x1000, 0x2000, 0, "/bin/main")),
    ];
    let timeline = TimelineBuilder::build(events, true);
    assert_eq!(look(&timeline, 50, 7, at(9)).0, "worker");
    assert_eq!(look(&timeline, 50, 7, at(9)).1.len(), 1);
    assert_eq!(look(&timeline, 50, 50, at(9)).0, "main");
}

/// Checks that a task on its way out, whose ids the kernel no longer knows, is shown as perf shows it.
#[test]
fn a_task_without_ids() {
    let timeline = TimelineBuilder::build(Vec::new(), true);
    assert_eq!(look(&timeline, -1, -1, at(1)).0, ":-1");
    assert_eq!(look(&timeline, 12, 34, at(1)).0, ":34");
    assert_eq!(look(&timeline, 0, 0, at(1)).0, "swapper");
}

/// Threads 10..13 are of process 10, 20..23 of process 20, and so on.
pub(super) fn event() -> impl Strategy<Value = SideEvent> {
    let tid = || (1..4i32, 0..4i32).prop_map(|(p, t)| (p * 10, p * 10 + t));
    prop_oneof![
        (tid(), 0..5u8).prop_map(|((p, t), n)| comm(p, t, &format!("name{n}"))),
        (tid(), 0..40u64, 1..20u64, 0..3u64, 0..4u8).prop_map(|((p, t), start, len, off, n)| map(
            p,
            t,
            start * 16,
            (start + len) * 16,
            off * 16,
            &format!("/lib/{n}")
        )),
        (tid(), any::<bool>(), 0..2i32).prop_map(|((pid, tid), process, k)| {
            // A new thread comes from its own process, a new process from any other.
            let other = (pid / 10 + k) % 3 + 1;
            let child = if process { (other * 10, other * 10) } else { (pid, pid + 1 + (tid % 10 + k) % 3) };
            fork((pid, tid), child)
        }),
    ]
}

proptest! {
    /// Checks that the timeline answers every question as a replay up to that moment does (I1, I2, I4).
    #[test]
    fn timeline_answers_as_a_replay(
        events in proptest::collection::vec((event(), 0..3u64), 0..60),
        questions in proptest::collection::vec((1..4i32, 0..4i32, 0..130u64), 1..20),
        seed in any::<u64>(),
    ) {
        let mut time = 1;
        let events: Vec<(Moment, SideEvent)> = events
            .into_iter()
            .enumerate()
            .map(|(i, (event, step))| {
                // Every record has a time of its own: those of one time may share a version.
                time += step + 1;
                (Moment { time_ns: time, position: i as u64 }, event)
            })
            .collect();
        let mut shuffled = events.clone();
        let len = shuffled.len().max(1) as u64;
        for i in 0..shuffled.len() {
            shuffled.swap(i, (seed.rotate_left(i as u32) % len) as usize);
        }
        let timeline = TimelineBuilder::build(shuffled, true);
        for (process, thread, time) in questions {
            let (pid, tid) = (process * 10, process * 10 + thread);
            let moment = Moment { time_ns: time, position: 1 << 40 };
            let (comm, maps) = model::at(&events, pid, tid, moment);
            let comm = comm.map_or(format!(":{tid}"), |c| String::from_utf8(c).unwrap());
            prop_assert_eq!(look(&timeline, pid, tid, moment), (comm, maps), "thread {} at {}", tid, time);
        }
    }
}
