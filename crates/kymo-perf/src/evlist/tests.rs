//! Lists against scripted kernels, and one against this one.
mod faults;
mod real;
mod reopen;

use super::{EventSlot, EvlistPlan, Feature, Note, OpenEngine, OpenError, Request, SIDE_RING_PAGES, Targets};
use crate::ring::Keeps;
use crate::sys::fake::Call;
use crate::sys::{Fake, Perf, attr_zeroed};
use std::sync::Arc;

fn hardware(name: &str) -> Request {
    let mut attr = attr_zeroed();
    attr.type_ = Perf::HARDWARE;
    attr.config = Perf::HW_CPU_CYCLES;
    attr.read_format = Perf::FORMAT_ID | Perf::FORMAT_LOST;
    Request::new(name, attr)
}

fn software(name: &str) -> Request {
    let mut request = hardware(name);
    request.attr.type_ = Perf::SOFTWARE;
    request.attr.config = 2;
    request
}

fn plan(events: Vec<Request>, tasks: &[i32], cpus: &[u32]) -> EvlistPlan {
    EvlistPlan { events, targets: Targets::tasks(tasks.to_vec(), cpus) }
}

fn open(kernel: &Arc<Fake>, plan: EvlistPlan) -> Result<super::Evlist, OpenError> {
    super::open(Arc::<Fake>::clone(kernel), plan, OpenEngine::Serial)
}

/// The numbers of an event's descriptors by CPU and task.
fn rows(list: &super::Evlist, event: usize) -> Vec<Vec<i32>> {
    let mut rows = vec![Vec::new(); list.events[event].cpus.len()];
    list.units.event(&list.shape, event).for_each(|(slot, fd)| rows[slot.row].push(fd.number()));
    rows
}

/// Checks that hardware counters, where there are some, are opened as asked, one descriptor per CPU
/// and task.
#[test]
fn hardware_present() {
    let kernel = Arc::new(Fake::new());
    let list = open(&kernel, plan(vec![hardware("cycles")], &[10, 11], &[0, 1, 2])).unwrap();
    assert_eq!(list.descriptors(), 6);
    assert!(list.notes.is_empty());
    assert_eq!(list.events[0].request.attr.type_, Perf::HARDWARE);
    let places: Vec<_> = kernel.opened().iter().map(|o| (o.cpu, o.task)).collect();
    assert_eq!(places, [(0, 10), (0, 11), (1, 10), (1, 11), (2, 10), (2, 11)]);
}

/// Checks that cycles become cpu-clock where there is no PMU, with modifiers that a clock can have,
/// and that this is noted.
#[test]
fn cycles_become_cpu_clock() {
    let mut precise = hardware("cycles:uP");
    precise.attr.set_precise_ip(3);
    precise.precise_max = true;
    let list = open(&Arc::new(Fake::new().without_pmu()), plan(vec![precise], &[10], &[0])).unwrap();
    assert_eq!(list.events[0].request.name, "cpu-clock:u");
    assert_eq!(list.events[0].request.attr.precise_ip(), 0);
    assert_eq!(list.notes, [Note::SoftwareClock { asked: "cycles:uP".into(), used: "cpu-clock:u".into() }]);
}

/// Checks that another hardware event does not become a clock: the error names event, task and CPU.
#[test]
fn missing_pmu_is_an_error_for_other_events() {
    let mut request = hardware("instructions");
    request.attr.config = 1;
    let error = open(&Arc::new(Fake::new().without_pmu()), plan(vec![request], &[10], &[3])).unwrap_err();
    assert_eq!((error.event.as_str(), error.task, error.cpu), ("instructions", Some(10), Some(3)));
    assert_eq!(error.source.raw_os_error(), Some(libc::ENOENT));
    let text = error.to_string();
    assert!(text.starts_with("failed to open instructions for task 10 on CPU 3: No such file"), "{text}");
}

/// Checks that precision is lowered step by step, on the slot that refuses it.
#[test]
fn precision_falls() {
    let mut request = hardware("cycles:P");
    request.attr.set_precise_ip(3);
    request.precise_max = true;
    let kernel = Arc::new(Fake::new().rule(|call| (call.attr.precise_ip() > 1).then_some(libc::EOPNOTSUPP)));
    let list = open(&kernel, plan(vec![request], &[10], &[0])).unwrap();
    assert_eq!(list.events[0].request.attr.precise_ip(), 1);
    assert_eq!(list.notes, [Note::Precision { event: "cycles:P".into(), to: 1 }]);
}

/// Checks that precision that the user fixed is not touched.
#[test]
fn fixed_precision_stays() {
    let mut request = hardware("cycles:pp");
    request.attr.set_precise_ip(2);
    let kernel = Arc::new(Fake::new().rule(|call| (call.attr.precise_ip() > 1).then_some(libc::EIO)));
    let error = open(&kernel, plan(vec![request], &[10], &[0])).unwrap_err();
    assert_eq!(error.source.raw_os_error(), Some(libc::EIO));
}

/// Checks that a vanished task's column goes from every event, finished or not, wherever it is
/// noticed (E1).
#[test]
fn vanished_task_leaves_no_column() {
    // Task 11 vanishes when the second event reaches CPU 1.
    let kernel =
        Arc::new(Fake::new().rule(|call| (call.task == 11 && call.index >= 8).then_some(libc::ESRCH)));
    let list = open(&kernel, plan(vec![software("a"), software("b")], &[10, 11, 12], &[0, 1])).unwrap();
    assert_eq!(list.tasks, [10, 12]);
    assert!((0..2).all(|event| rows(&list, event).iter().all(|row| row.len() == 2)), "{list:?}");
    let opened = kernel.opened();
    for (index, event) in list.events.iter().enumerate() {
        for (row, cpu) in rows(&list, index).iter().zip(&event.cpus) {
            for (fd, task) in row.iter().zip(&list.tasks) {
                // A closed number may have been given out again: the last one counts.
                let call = opened.iter().rfind(|o| o.fd == *fd).unwrap();
                assert_eq!((call.cpu, call.task), (*cpu, *task));
            }
        }
    }
    assert_eq!(list.notes, [Note::TaskGone(11)]);
}

/// Checks that the last task's disappearance is an error, and that a single named task is not
/// quietly ignored.
#[test]
fn all_tasks_gone() {
    let kernel = Arc::new(Fake::new().rule(|call| matches!(call.task, 10 | 11).then_some(libc::ESRCH)));
    let error = open(&kernel, plan(vec![software("a")], &[10, 11], &[0])).unwrap_err();
    assert_eq!(error.source.raw_os_error(), Some(libc::ESRCH));
    let mut fixed = plan(vec![software("a")], &[10, 12], &[0]);
    fixed.targets.ignore_missing = false;
    assert_eq!(open(&kernel, fixed).unwrap_err().task, Some(10));
}

/// Checks that EMFILE on the 7th open raises the limit and goes on at the same slot, and that a
/// limit which cannot be raised is the error.
#[test]
fn descriptor_limit() {
    let list = open(&Arc::new(Fake::new().descriptors(6)), plan(vec![software("a")], &[1, 2, 3, 4], &[0, 1]))
        .unwrap();
    assert_eq!(list.descriptors(), 8);
    assert_eq!(list.notes, [Note::Descriptors(12)]);
    let kernel = Arc::new(Fake::new().descriptors(6).raises_allowed(0));
    let error = open(&kernel, plan(vec![software("a")], &[1, 2, 3, 4], &[0, 1])).unwrap_err();
    let text = error.to_string();
    assert!(text.ends_with("; the list needs 8 descriptors, the limit is 6"), "{text}");
    assert_eq!(error.source.raw_os_error(), Some(libc::EMFILE));
}

/// Checks that without permission for the kernel side the user side is recorded, under a name that
/// says so.
#[test]
fn user_only() {
    let kernel = Arc::new(Fake::new().unprivileged());
    let mut chains = hardware("cycles/period=7/");
    chains.attr.sample_type = Perf::SAMPLE_CALLCHAIN;
    let events = vec![hardware("cycles"), hardware("cycles:P"), chains];
    let list = open(&kernel, plan(events, &[10], &[0])).unwrap();
    let names: Vec<_> = list.events.iter().map(|e| e.request.name.as_str()).collect();
    assert_eq!(names, ["cycles:u", "cycles:Pu", "cycles/period=7/u"]);
    let flags: Vec<_> = list.events.iter().map(|e| e.request.attr.exclude_callchain_kernel()).collect();
    assert_eq!(flags, [0, 0, 1]);
    let mut system = plan(vec![hardware("cycles")], &[10], &[0]);
    system.targets = Targets::system(&[0]);
    assert_eq!(open(&kernel, system).unwrap_err().source.raw_os_error(), Some(libc::EACCES));
}

/// Checks that an ordinary user's call chains of user space open under Linux 7.2, which refuses
/// those that do not exclude the kernel's frames: whether the event was asked for so or became so.
/// A chain of the kernel's side keeps its callers in user space.
#[test]
fn call_chains_of_user_space() {
    let chains = |name: &str, user_only: bool| {
        let mut request = software(name);
        request.attr.sample_type = Perf::SAMPLE_CALLCHAIN;
        request.attr.set_exclude_kernel(user_only.into());
        request
    };
    let kernel = Arc::new(Fake::new().unprivileged());
    let events = vec![chains("cpu-clock:u", true), chains("cpu-clock", false)];
    let list = open(&kernel, plan(events, &[10], &[0])).unwrap();
    for event in &list.events {
        assert_eq!(event.request.name, "cpu-clock:u");
        assert_eq!(event.request.attr.exclude_callchain_kernel(), 1);
    }
    let mut kernel_side = chains("cpu-clock:k", false);
    kernel_side.attr.set_exclude_user(1);
    let list = open(&Arc::new(Fake::new()), plan(vec![kernel_side], &[10], &[0])).unwrap();
    assert_eq!(list.events[0].request.attr.exclude_callchain_user(), 0);
}

/// Checks that a kernel without loss counts gets attrs without them, for every event, with one
/// note.
#[test]
fn old_kernel() {
    let lost = |call: Call<'_>| (call.attr.read_format & Perf::FORMAT_LOST != 0).then_some(libc::EINVAL);
    let kernel = Arc::new(Fake::new().rule(lost));
    let list = open(&kernel, plan(vec![software("a"), software("b")], &[10], &[0, 1])).unwrap();
    assert!(list.events.iter().all(|e| e.request.attr.read_format == Perf::FORMAT_ID));
    assert_eq!(list.notes, [Note::Missing(Feature::ReadLost)]);
}

/// Checks that an event that no kernel would take ends with EINVAL, after a bounded number of tries
/// (E3).
#[test]
fn refused_event_ends() {
    let kernel = Arc::new(Fake::new().rule(|call| (call.attr.config == 2).then_some(libc::EINVAL)));
    let error = open(&kernel, plan(vec![software("bad")], &[10], &[0])).unwrap_err();
    assert_eq!(error.source.raw_os_error(), Some(libc::EINVAL));
}

fn group(weak: bool) -> Vec<Request> {
    let mut events = vec![hardware("leader"), hardware("member"), hardware("last")];
    events[0].weak = weak;
    events[0].attr.set_disabled(1);
    events[1].leader = Some(0);
    events[2].leader = Some(0);
    events
}

/// Checks that a member's group descriptor is its leader's at the same CPU and task (E2).
#[test]
fn members_join_their_leader() {
    let kernel = Arc::new(Fake::new());
    let list = open(&kernel, plan(group(false), &[10, 11], &[0, 1])).unwrap();
    for call in kernel.opened().iter().filter(|o| o.group.is_some()) {
        let leader = kernel.opened().into_iter().find(|o| Some(o.fd) == call.group).unwrap();
        assert_eq!((leader.cpu, leader.task), (call.cpu, call.task));
    }
    assert_eq!(list.descriptors(), 12);
}

/// Checks that a weak group that does not fit is opened as single events, all of which start as the
/// leader would.
#[test]
fn weak_group_is_dissolved() {
    let refuse = |call: Call<'_>| (call.grouped && call.index > 4).then_some(libc::EINVAL);
    let list = open(&Arc::new(Fake::new().rule(refuse)), plan(group(true), &[10], &[0, 1])).unwrap();
    assert!(list.events.iter().all(|e| e.request.leader.is_none() && e.request.attr.disabled() == 1));
    assert_eq!(list.notes, [Note::GroupDissolved("leader".into())]);
    let strict = open(&Arc::new(Fake::new().rule(refuse)), plan(group(false), &[10], &[0, 1])).unwrap_err();
    assert_eq!(strict.event, "last");
}

/// Checks that an event whose PMU covers one CPU is opened there only.
#[test]
fn pmu_with_few_cpus() {
    let mut request = software("power");
    request.cpus = Some(vec![1]);
    let list = open(&Arc::new(Fake::new()), plan(vec![software("a"), request], &[-1], &[0, 1])).unwrap();
    assert_eq!(list.events[1].cpus, [1]);
    assert_eq!(list.descriptors(), 3);
}

/// Checks that one descriptor per CPU is mapped and that all others of that CPU write into its
/// ring.
#[test]
fn rings_are_shared_per_cpu() {
    let kernel = Arc::new(Fake::new());
    let mut list = open(&kernel, plan(vec![software("a"), software("b")], &[10, 11], &[0, 1])).unwrap();
    let rings = list.map_rings(4, false).unwrap();
    let owner = |row| EventSlot { event: 0, row, column: 0 };
    assert_eq!(rings.iter().map(|r| (r.cpu, r.owner)).collect::<Vec<_>>(), [(0, owner(0)), (1, owner(1))]);
    assert_eq!(kernel.redirected().len(), 6);
    let per_thread =
        EvlistPlan { events: vec![software("a"), software("b")], targets: Targets::per_thread(vec![7, 8]) };
    let mut list = open(&kernel, per_thread).unwrap();
    let rings = list.map_rings(4, false).unwrap();
    assert_eq!(rings.iter().map(|r| (r.cpu, r.task)).collect::<Vec<_>>(), [(-1, 7), (-1, 8)]);
}

/// Checks that a low memory lock limit makes rings smaller, or is an error where the size was
/// demanded.
#[test]
fn rings_shrink() {
    let kernel = Arc::new(Fake::new().map_limit_pages(8));
    let mut list = open(&kernel, plan(vec![software("a")], &[10], &[0])).unwrap();
    assert!(list.map_rings(128, false).is_err());
    let rings = list.map_rings(128, true).unwrap();
    assert_eq!(rings[0].ring.size_bytes(), 8 * crate::sys::page_size());
    assert_eq!(list.notes, [Note::SmallerRings { asked_pages: 128, pages: 8 }]);
}

/// Checks that only leaders are switched and that events which track mappings go off last.
#[test]
fn switching() {
    let kernel = Arc::new(Fake::new());
    let mut events = group(false);
    let mut tracker = software("dummy:u");
    tracker.immediate = true;
    events.insert(0, tracker);
    events[2].leader = Some(1);
    events[3].leader = Some(1);
    let list = open(&kernel, plan(events, &[10], &[0, 1])).unwrap();
    let fd = |event: usize, row: usize| rows(&list, event)[row][0];
    list.enable(false).unwrap();
    assert_eq!(kernel.enabled(), [fd(1, 0), fd(1, 1)]);
    list.disable().unwrap();
    assert_eq!(kernel.disabled(), [fd(1, 0), fd(1, 1), fd(0, 0), fd(0, 1)]);
}

/// Checks that events that keep the newest records share rings of their own, with the serial and
/// the parallel engine, that the rings beside them are small, and that only the others are polled.
#[test]
fn two_kinds_of_rings_per_cpu() {
    for engine in [OpenEngine::Serial, OpenEngine::Parallel { workers: Some(2) }] {
        let kernel = Arc::new(Fake::new());
        let mut newest = [software("a"), software("b")];
        newest.iter_mut().for_each(|request| request.attr.set_write_backward(1));
        let [a, b] = newest;
        let events = vec![a, software("c"), b, software("d")];
        let plan = plan(events, &[-1], &[0, 1]);
        let mut list = super::open(Arc::clone(&kernel) as Arc<dyn crate::sys::Kernel>, plan, engine).unwrap();
        let mut rings = list.map_rings(64, false).unwrap();
        rings.sort_by_key(|ring| (ring.cpu, ring.owner));
        let found: Vec<_> = (rings.iter())
            .map(|ring| {
                (
                    ring.cpu,
                    ring.owner.event,
                    ring.ring.keeps(),
                    ring.ring.size_bytes() / crate::sys::page_size(),
                )
            })
            .collect();
        let of = |cpu| [(cpu, 0, Keeps::Newest, 64), (cpu, 1, Keeps::Oldest, SIDE_RING_PAGES)];
        assert_eq!(found, [of(0), of(1)].concat(), "{engine:?}");
        assert_eq!(kernel.redirected().len(), 4, "{engine:?}");
        list.pause_output(&rings[0], true).unwrap();
    }
}

/// Checks that a tracker is opened on more CPUs than others, with small rings there.
#[test]
fn tracked_cpus_have_small_rings() {
    for engine in [OpenEngine::Serial, OpenEngine::Parallel { workers: Some(2) }] {
        let kernel = Arc::new(Fake::new());
        let tracker = Request { immediate: true, ..software("tracker") };
        let mut plan = plan(vec![software("a"), tracker], &[-1], &[1]);
        plan.targets.tracked_cpus = vec![0, 2];
        let mut list = super::open(Arc::clone(&kernel) as Arc<dyn crate::sys::Kernel>, plan, engine).unwrap();
        assert_eq!([&list.events[0].cpus[..], &list.events[1].cpus], [&[1][..], &[0, 1, 2]]);
        let mut rings = list.map_rings(64, false).unwrap();
        rings.sort_by_key(|ring| ring.cpu);
        let pages = |ring: &super::MappedRing| ring.ring.size_bytes() / crate::sys::page_size();
        let found: Vec<_> = rings.iter().map(|ring| (ring.cpu, ring.owner.event, pages(ring))).collect();
        assert_eq!(found, [(0, 1, SIDE_RING_PAGES), (1, 0, 64), (2, 1, SIDE_RING_PAGES)], "{engine:?}");
    }
}
