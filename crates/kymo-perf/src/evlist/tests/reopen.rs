//! CPUs that go offline and come back, with scripted kernels: the fake kernel knows no such CPUs,
//! so what is opened anew is counted beside what was there.
use super::{hardware, open, plan, rows, software};
use crate::evlist::{Evlist, EvlistPlan, IdAlias, OpenEngine, ReopenError, Request, Targets};
use crate::sys::fake::Opened;
use crate::sys::{Fake, Perf};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A tracker and two groups of two, on all tasks of four CPUs.
fn events() -> Vec<Request> {
    let tracker = Request { immediate: true, ..software("dummy:u") };
    let member = |name: &str, leader| Request { leader: Some(leader), ..software(name) };
    let mut events =
        vec![tracker, hardware("cycles"), member("page-faults", 1), software("cs"), member("migrations", 3)];
    for event in events.iter_mut().filter(|event| event.leader.is_none()) {
        event.attr.set_disabled(1);
    }
    events
}

fn system(kernel: &Arc<Fake>, events: Vec<Request>, engine: OpenEngine) -> Evlist {
    let plan = EvlistPlan { events, targets: Targets::system(&[0, 1, 2, 3]) };
    crate::evlist::open(Arc::<Fake>::clone(kernel), plan, engine).unwrap()
}

/// Checks that the events of a CPU that came back have the places of the old ones: the same
/// numbers, rings, programs and groups, enabled as those of other CPUs, with the ids told before
/// that; on both engines, and each time.
#[test]
fn a_cpu_that_goes_away_and_comes_back() {
    for engine in [OpenEngine::Serial, OpenEngine::Parallel { workers: Some(4) }] {
        let kernel = Arc::new(Fake::new());
        let mut list = system(&kernel, events(), engine);
        let rings = list.map_rings(1, false).unwrap();
        let program = rustix::fs::memfd_create("program", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        list.set_bpf(program.as_fd(), |event| !event.request.immediate).unwrap();
        list.enable(true).unwrap();
        list.enable(false).unwrap();
        let before: Vec<_> = (0..5).map(|event| rows(&list, event)).collect();
        let (live, opened) = (kernel.live(), kernel.opened().len());
        let (programs, redirected) = (kernel.programs().len(), kernel.redirected().len());
        for time in 1..=2 {
            let enabled = kernel.enabled().len();
            let mut aliases = Vec::new();
            let ids = &mut |ids: &[IdAlias]| {
                assert_eq!(kernel.enabled().len(), enabled, "nothing samples yet");
                aliases.extend_from_slice(ids);
            };
            assert!(list.reopen(2, ids).unwrap());
            let after: Vec<_> = (0..5).map(|event| rows(&list, event)).collect();
            assert_eq!((&before, &live), (&after, &kernel.live()));
            let fresh = kernel.opened().split_off(opened + 5 * (time - 1));
            assert!(fresh.len() == 5 && fresh.iter().all(|event| event.cpu == 2), "{fresh:?}");
            let of_cpu = |event: usize| before[event][2][0];
            let groups: Vec<_> = fresh.iter().map(|event| event.group).collect();
            assert_eq!(groups, [None, None, Some(of_cpu(1)), None, Some(of_cpu(3))]);
            assert_eq!(kernel.programs().len() - programs, 4 * time);
            // All write into the ring of the tracker, the first event of the CPU.
            let outputs = kernel.redirected().split_off(redirected + 5 * (time - 1));
            assert!(outputs.iter().all(|(_, output)| *output == of_cpu(0)), "{outputs:?}");
            let firsts: Vec<u64> = aliases.iter().map(|alias| alias.first).collect();
            let ids = [0, 1, 2, 3, 4].map(|event| 1000 + of_cpu(event) as u64);
            assert!(aliases.len() == 5 && ids.iter().all(|id| firsts.contains(id)), "{aliases:?}");
            assert_eq!(kernel.enabled().split_off(enabled), [of_cpu(0), of_cpu(1), of_cpu(3)]);
        }
        list.disable().unwrap();
        assert_eq!(kernel.on().iter().filter(|number| before[1].concat().contains(number)).count(), 0);
        drop(rings);
        drop(list);
        assert_eq!((kernel.live(), kernel.mistakes()), (vec![], vec![]));
    }
}

/// Checks that events which are off stay off, and that those switched by name are as elsewhere.
#[test]
fn what_is_off_stays_off() {
    let kernel = Arc::new(Fake::new());
    let list = system(&kernel, events(), OpenEngine::Serial);
    list.enable(false).unwrap();
    list.pause().unwrap();
    list.switch("cs", true).unwrap();
    let enabled = kernel.enabled().len();
    assert!(list.reopen(1, &mut |_| {}).unwrap());
    assert_eq!(kernel.enabled().split_off(enabled), [rows(&list, 3)[1][0]]);
}

/// Checks that a refusal leaves nothing open beside the old events, that a CPU which was not there
/// at the start is refused, and that events of tasks go on by themselves.
#[test]
fn what_cannot_be_taken_up() {
    let refuse = Arc::new(AtomicBool::new(false));
    let rule = Arc::clone(&refuse);
    let kernel = Arc::new(Fake::new().rule(move |call| {
        (rule.load(Ordering::Relaxed) && call.attr.config == 2 && call.grouped).then_some(libc::ENODEV)
    }));
    let list = system(&kernel, events(), OpenEngine::Serial);
    let live = kernel.live();
    refuse.store(true, Ordering::Relaxed);
    let refused = list.reopen(0, &mut |_| panic!("nothing is replaced"));
    assert!(matches!(refused, Err(ReopenError::Kernel(_))), "{refused:?}");
    assert!(matches!(list.reopen(4, &mut |_| {}), Err(ReopenError::NotThere)));
    assert_eq!((kernel.live(), kernel.mistakes()), (live, vec![]));
    let kernel = Arc::new(Fake::new());
    let list = open(&kernel, plan(events(), &[10, 11], &[0, 1])).unwrap();
    let opened = kernel.opened().len();
    assert!(!list.reopen(1, &mut |_| {}).unwrap());
    assert!(matches!(list.reopen(7, &mut |_| {}), Err(ReopenError::NotThere)));
    assert_eq!(kernel.opened().len(), opened);
    let mut group_read = events();
    group_read[1].attr.sample_type = Perf::SAMPLE_READ;
    let list = system(&kernel, group_read, OpenEngine::Serial);
    assert!(matches!(list.reopen(1, &mut |_| {}), Err(ReopenError::GroupRead)));
}

/// Checks that counts go on from what the events before had, and that a group which the kernel
/// dissolved with its CPU is read member by member.
#[test]
fn counts_go_on() {
    let formats = Perf::FORMAT_TOTAL_TIME_ENABLED | Perf::FORMAT_TOTAL_TIME_RUNNING;
    let counting = |mut request: Request, group: bool| {
        request.attr.read_format = formats | if group { Perf::FORMAT_GROUP | Perf::FORMAT_ID } else { 0 };
        request
    };
    let member = Request { leader: Some(0), ..software("b") };
    let events = vec![counting(software("a"), true), counting(member, false)];
    let counts = |event: &Opened| [10 + 10 * event.cpu as u64, 100, 50];
    let kernel = Arc::new(Fake::new().counts(counts));
    let list = system(&kernel, events, OpenEngine::Serial);
    let of_cpu = |cpu: i32| -> Vec<[u64; 3]> {
        let reads = list.read().unwrap().into_iter().filter(|read| read.cpu == cpu);
        reads.map(|read| [read.value, read.enabled_ns, read.running_ns]).collect()
    };
    assert_eq!(of_cpu(3), [[40, 100, 50]; 2]);
    kernel.dissolve_groups(3);
    assert_eq!(of_cpu(3), [[40, 100, 50]; 2]);
    for times in 2..=3 {
        assert!(list.reopen(3, &mut |_| {}).unwrap());
        assert_eq!(of_cpu(3), [[40 * times, 100 * times, 50 * times]; 2]);
    }
    assert_eq!(of_cpu(1), [[20, 100, 50]; 2]);
}
