//! Both engines on the kernel that runs.
use crate::evlist::{Evlist, EvlistPlan, OpenEngine, Request, Targets, open};
use crate::sys::{ANY, Binding, EventTarget, Kernel, Perf, Real, attr_zeroed, online_cpus};
use kymo_testing::{skip, with_waiting_threads};
use std::sync::Arc;

fn dummy(name: &str) -> Request {
    let mut attr = attr_zeroed();
    (attr.type_, attr.config) = (Perf::SOFTWARE, Perf::SW_DUMMY);
    attr.read_format = Perf::FORMAT_ID | Perf::FORMAT_TOTAL_TIME_ENABLED;
    attr.set_disabled(1);
    attr.set_exclude_kernel(1);
    Request::new(name, attr)
}

fn permitted(test: &str) -> Option<()> {
    let opened = Real.open(&dummy("dummy").attr, &EventTarget::new(0, ANY));
    let refused = |error: &_| skip(test, format!("perf events are not permitted here: {error}"));
    opened.inspect_err(refused).ok().map(|event| Real.close(vec![event]))
}

/// How long each descriptor's event has been enabled; more than nothing if it was.
fn enabled(list: &Evlist) -> Vec<u64> {
    let events = (0..list.events.len()).flat_map(|event| list.units.event(&list.shape, event));
    let mut words = [0; 3];
    events.map(|(_, fd)| Real.read(fd, &mut words).map(|_| words[1]).unwrap()).collect()
}

/// Checks that both engines give the same table for 64 threads of this process, that every event
/// goes on and off, and that this thread may run where it could before.
#[test]
fn both_engines() {
    let Some(()) = permitted("evlist::tests::real::both_engines") else { return };
    let before = Binding::current().ok();
    with_waiting_threads(64, |tids| {
        for count in [1, 10] {
            let events: Vec<Request> = (0..count).map(|index| dummy(&format!("dummy{index}"))).collect();
            let plan = EvlistPlan { events, targets: Targets::tasks(tids.clone(), &online_cpus()) };
            let mut shapes = Vec::new();
            for engine in [
                OpenEngine::Serial,
                OpenEngine::Parallel { workers: None },
                OpenEngine::Parallel { workers: Some(3) },
            ] {
                let mut list = open(Arc::new(Real), plan.clone(), engine).unwrap();
                let rings = list.map_rings(1, true).unwrap();
                assert_eq!(rings.len(), online_cpus().len());
                list.enable(false).unwrap();
                list.disable().unwrap();
                let ids = list.ids().unwrap();
                assert!(ids.iter().flatten().all(|&id| id != 0));
                let sizes: Vec<usize> = ids.iter().map(Vec::len).collect();
                shapes.push((list.tasks.clone(), sizes, list.descriptors(), list.notes.clone()));
                drop(rings);
                list.close();
            }
            assert!(shapes.iter().all(|shape| *shape == shapes[0]), "{shapes:?}");
        }
    });
    assert_eq!(Binding::current().ok(), before);
}

/// Checks that switching all events of the opening thread reaches the list's events and no others:
/// one that this thread has opened stays off.
#[test]
fn own_events_only() {
    let Some(()) = permitted("evlist::tests::real::own_events_only") else { return };
    // This thread's: it runs while they are enabled.
    let me = rustix::thread::gettid().as_raw_nonzero().get();
    let plan = EvlistPlan { events: vec![dummy("other")], targets: Targets::per_thread(vec![me]) };
    let other = open(Arc::new(Real), plan, OpenEngine::Serial).unwrap();
    with_waiting_threads(64, |mut tids| {
        tids[0] = me;
        let plan = EvlistPlan { events: vec![dummy("dummy")], targets: Targets::per_thread(tids) };
        let list = open(Arc::new(Real), plan, OpenEngine::Parallel { workers: Some(2) }).unwrap();
        assert_eq!(list.workers(), 2);
        list.enable(false).unwrap();
        let column = list.tasks.iter().position(|&task| task == me).unwrap();
        let mut now = enabled(&list)[column];
        // Time passes while this thread runs.
        while now == 0 {
            now = enabled(&list)[column];
        }
        assert_eq!(enabled(&other), [0]);
        list.disable().unwrap();
        let stopped = enabled(&list);
        assert!(stopped[column] > 0);
        assert_eq!(enabled(&list), stopped, "all are off");
    });
}
