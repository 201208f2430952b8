//! The parallel engine against the serial one, for random lists, random faults and random numbers
//! of workers.
use crate::evlist::fallback::Fallbacks;
use crate::evlist::{Evlist, EvlistPlan, Note, OpenEngine, OpenError, Request, Targets, open};
use crate::sys::fake::Call;
use crate::sys::{ANY, Fake, Perf, attr_bytes, attr_zeroed};
use proptest::prelude::*;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// A refusal that depends on the slot alone, so that it does not matter who asks when.
#[derive(Clone, Debug)]
enum Fault {
    /// These tasks are gone.
    Gone(Vec<i32>),
    /// This task is not ours: the kernel side is refused, or everything.
    Foreign {
        task: i32,
        user_too: bool,
        errno: i32,
    },
    /// An ordinary user.
    Unprivileged,
    /// The kernel does not know loss counts, or the clock.
    NoReadLost,
    NoClock,
    /// No PMU.
    NoPmu,
    /// This event takes no more than this precision on this CPU and above.
    Precision {
        config: u64,
        most: u64,
        from_cpu: i32,
        errno: i32,
    },
    /// On this CPU and above nothing joins a group.
    NoGroups {
        from_cpu: i32,
        errno: i32,
    },
    /// This event is refused in one place.
    Never {
        config: u64,
        cpu: i32,
        errno: i32,
    },
    /// Interrupted some times in each place.
    Interrupted {
        times: u32,
    },
}

/// How often each place (event, CPU, task) is still to be interrupted.
type Interruptions = Mutex<HashMap<(u64, i32, i32), u32>>;

impl Fault {
    fn refuses(&self, call: Call<'_>, interruptions: &Interruptions) -> Option<i32> {
        let attr = call.attr;
        let (refused, errno) = match *self {
            Fault::Gone(ref tasks) => (tasks.contains(&call.task), libc::ESRCH),
            Fault::Foreign { task, user_too, errno } => {
                (call.task == task && (user_too || attr.exclude_kernel() == 0), errno)
            }
            Fault::Unprivileged => (call.task == ANY || attr.exclude_kernel() == 0, libc::EACCES),
            Fault::NoReadLost => (attr.read_format & Perf::FORMAT_LOST != 0, libc::EINVAL),
            Fault::NoClock => (attr.use_clockid() == 1, libc::EINVAL),
            Fault::NoPmu => (attr.type_ == Perf::HARDWARE, libc::ENOENT),
            Fault::Precision { config, most, from_cpu, errno } => {
                (attr.config == config && call.cpu >= from_cpu && attr.precise_ip() > most, errno)
            }
            Fault::NoGroups { from_cpu, errno } => (call.grouped && call.cpu >= from_cpu, errno),
            Fault::Never { config, cpu, errno } => (attr.config == config && call.cpu == cpu, errno),
            Fault::Interrupted { times } => {
                let mut left = interruptions.lock().unwrap();
                let left = left.entry((attr.config, call.cpu, call.task)).or_insert(times);
                let before = *left;
                *left = before.saturating_sub(1);
                (before > 0, libc::EINTR)
            }
        };
        refused.then_some(errno)
    }
}

#[derive(Clone, Debug)]
struct Case {
    plan: EvlistPlan,
    faults: Vec<Fault>,
    limit: Option<(usize, u32)>,
    homes: Vec<Option<u32>>,
    workers: usize,
}

impl Case {
    fn kernel(&self) -> Arc<Fake> {
        let homes = self.homes.clone();
        let mut fake =
            Fake::new().virtual_descriptors().homes(move |task| homes[task as usize % homes.len()]);
        if let Some((limit, raises)) = self.limit {
            fake = fake.descriptors(limit).raises_allowed(raises);
        }
        Arc::new(self.faults.iter().cloned().fold(fake, |fake, fault| {
            let interruptions = Interruptions::default();
            fake.rule(move |call| fault.refuses(call, &interruptions))
        }))
    }

    fn open(&self, kernel: &Arc<Fake>, engine: OpenEngine) -> Result<Evlist, OpenError> {
        open(Arc::<Fake>::clone(kernel), self.plan.clone(), engine)
    }
}

prop_compose! {
    fn request(index: usize)(
        kind in 0..4u32,
        group in 0..4u32,
        weak: bool,
        precise_max: bool,
        covers in prop::option::weighted(0.3, prop::collection::vec(0..4u32, 0..4)),
        clock: bool,
        immediate in prop::bool::weighted(0.1),
    ) -> (Request, bool) {
        let mut attr = attr_zeroed();
        attr.type_ = [Perf::SOFTWARE, Perf::SOFTWARE, Perf::HARDWARE, Perf::TRACEPOINT][kind as usize];
        attr.config = if kind == 2 { index as u64 % 3 } else { 2 + index as u64 };
        attr.read_format = Perf::FORMAT_ID | Perf::FORMAT_LOST;
        attr.set_disabled(1);
        attr.set_use_clockid(clock.into());
        let mut request = Request::new(format!("event{index}"), attr);
        if precise_max && kind == 2 {
            request.attr.set_precise_ip(3);
            request.precise_max = true;
        }
        request.weak = weak;
        request.immediate = immediate;
        request.cpus = covers.map(|mut cpus| { cpus.sort_unstable(); cpus.dedup(); cpus });
        (request, group == 0)
    }
}

/// A list with some groups; every member starts with its leader.
fn events() -> impl Strategy<Value = Vec<Request>> {
    let some = (0..7usize).map(request).collect::<Vec<_>>();
    let many = (0..12usize).map(batched).collect::<Vec<_>>();
    prop_oneof![3 => (some, 1..=7usize).prop_map(|(all, count)| group(all, count)), 1 => many]
}

/// An event that is batched with its like.
fn batched(index: usize) -> impl Strategy<Value = Request> {
    request(index).prop_map(move |(mut request, _)| {
        request.attr.type_ = Perf::SOFTWARE;
        request.attr.config = 2 + index as u64;
        request.attr.set_use_clockid(0);
        (request.precise_max, request.weak, request.cpus) = (false, false, None);
        request.attr.set_precise_ip(0);
        request
    })
}

fn group(all: Vec<(Request, bool)>, count: usize) -> Vec<Request> {
    let mut events: Vec<Request> = Vec::new();
    let mut leader = None;
    for (mut request, single) in all.into_iter().take(count) {
        match leader {
            Some(leader) if !single => {
                request.leader = Some(leader);
                request.attr.set_disabled(0);
                request.immediate = events[leader].immediate;
            }
            _ => leader = Some(events.len()),
        }
        events.push(request);
    }
    events
}

fn targets() -> impl Strategy<Value = Targets> {
    let cpus = (1..5u32).prop_map(|count| (0..count).collect::<Vec<u32>>());
    let tasks = |most| (1..most).prop_map(|count| (10..10 + count).collect::<Vec<i32>>());
    prop_oneof![
        2 => cpus.clone().prop_map(|cpus| Targets::system(&cpus)),
        5 => (tasks(12), cpus.clone(), any::<bool>()).prop_map(|(tasks, cpus, ignore)| {
            let mut targets = Targets::tasks(tasks, &cpus);
            targets.ignore_missing = ignore;
            targets
        }),
        2 => tasks(12).prop_map(Targets::per_thread),
    ]
}

fn fault() -> impl Strategy<Value = Fault> {
    let errno = || prop::sample::select(vec![libc::EINVAL, libc::EOPNOTSUPP, libc::ENOENT, libc::EIO]);
    let config = || 0..10u64;
    prop_oneof![
        3 => prop::collection::vec(10..22i32, 1..4).prop_map(Fault::Gone),
        1 => (10..22i32, prop::bool::weighted(0.3), prop::sample::select(vec![libc::EACCES, libc::EPERM]))
            .prop_map(|(task, user_too, errno)| Fault::Foreign { task, user_too, errno }),
        1 => Just(Fault::Unprivileged),
        1 => Just(Fault::NoReadLost),
        1 => Just(Fault::NoClock),
        1 => Just(Fault::NoPmu),
        2 => (config(), 0..3u64, 0..4i32, errno())
            .prop_map(|(config, most, from_cpu, errno)| Fault::Precision { config, most, from_cpu, errno }),
        2 => (0..4i32, prop::sample::select(vec![libc::EINVAL, libc::EBADF, libc::ENOSPC]))
            .prop_map(|(from_cpu, errno)| Fault::NoGroups { from_cpu, errno }),
        1 => (config(), 0..4i32, errno()).prop_map(|(config, cpu, errno)| Fault::Never { config, cpu, errno }),
        1 => (1..3u32).prop_map(|times| Fault::Interrupted { times }),
    ]
}

prop_compose! {
    fn case()(
        events in events(),
        targets in targets(),
        faults in prop::collection::vec(fault(), 0..4),
        limit in prop::option::weighted(0.4, (1..120usize, 0..3u32)),
        homes in prop::collection::vec(prop::option::weighted(0.8, 0..4u32), 1..6),
        workers in 1..6usize,
    ) -> Case {
        Case { plan: EvlistPlan { events, targets }, faults, limit, homes, workers }
    }
}

/// Checks what must hold of any open list: shapes, groups, and that everything that is open belongs
/// to it.
fn check_list(list: &Evlist, kernel: &Fake) {
    let opened: HashMap<i32, _> = kernel.opened().into_iter().map(|o| (o.fd, o)).collect();
    let mut all = BTreeSet::new();
    for (index, event) in list.events.iter().enumerate() {
        let slots: Vec<_> = list.units.event(&list.shape, index).collect();
        assert_eq!(slots.len(), event.cpus.len() * list.tasks.len(), "event {index}");
        for (slot, fd) in slots {
            assert!(all.insert(fd.number()), "a number twice");
            let call = &opened[&fd.number()];
            assert_eq!((call.cpu, call.task), (event.cpus[slot.row], list.tasks[slot.column]));
            let leader = list.shape.leader(index).map(|leader| {
                let row = list.events[leader].cpus.binary_search(&call.cpu).unwrap();
                let slot = crate::evlist::shape::EventSlot { event: leader, row, ..slot };
                list.units.get(&list.shape, slot).unwrap().number()
            });
            assert_eq!(call.group, leader, "the group of event {index}");
            let mut attr = event.request.attr;
            if list.shape.batches[index].is_some() {
                attr.set_disabled(0);
            }
            assert_eq!(attr_bytes(&call.attr), attr_bytes(&attr), "the attr of event {index}");
        }
    }
    assert_eq!(kernel.live(), all.into_iter().collect::<Vec<_>>(), "leaked, or closed too early");
    assert_eq!(kernel.mistakes(), [""; 0]);
}

/// Switches a list on and off, twice each, and closes it.
fn check_use(list: Evlist, kernel: &Fake) {
    let leads: BTreeSet<i32> = (0..list.events.len())
        .filter(|&event| list.shape.leads(event))
        .flat_map(|event| list.units.event(&list.shape, event).map(|(_, fd)| fd.number()))
        .collect();
    let on = || kernel.on().into_iter().filter(|number| leads.contains(number)).count();
    for _ in 0..2 {
        list.enable(true).unwrap();
        list.enable(false).unwrap();
        assert_eq!(on(), leads.len());
    }
    for _ in 0..2 {
        list.disable().unwrap();
        assert_eq!(on(), 0);
    }
    let before = kernel.disabled().len();
    list.disable().unwrap();
    let order: Vec<i32> = kernel.disabled().split_off(before);
    let immediate: BTreeSet<i32> = (0..list.events.len())
        .filter(|&event| list.events[event].request.immediate)
        .flat_map(|event| list.units.event(&list.shape, event).map(|(_, fd)| fd.number()))
        .collect();
    let first = order.iter().position(|number| immediate.contains(number)).unwrap_or(order.len());
    assert!(order[first..].iter().all(|number| immediate.contains(number)), "trackers go off last");
    drop(list);
    check_closed(kernel);
}

/// Checks that nothing is open, nothing was closed twice, and every worker that moved went back.
fn check_closed(kernel: &Fake) {
    assert_eq!(kernel.live(), [0; 0]);
    assert_eq!(kernel.mistakes(), [""; 0]);
    let me = std::thread::current().id();
    for (thread, places) in kernel.bindings() {
        assert_ne!(thread, me, "the calling thread is not moved");
        let distinct: BTreeSet<_> = places.iter().flatten().collect();
        assert!(distinct.len() <= 1 || places.last() == Some(&None), "moved and stayed: {places:?}");
    }
}

fn notes(list: &Evlist) -> BTreeSet<String> {
    list.notes.iter().map(Note::to_string).collect()
}

fn told(error: &OpenError) -> (String, usize, Option<i32>, Option<i32>, Option<i32>, String) {
    let errno = error.source.raw_os_error();
    (error.event.clone(), error.index, error.task, error.cpu, errno, error.to_string())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    /// Checks that for faults that depend on the slot the parallel engine gives what the serial one
    /// gives: shape, attrs, tasks, notes, or the error; and that neither leaks nor closes twice
    /// (E1, E2, E4, E5).
    #[test]
    fn parallel_is_serial(case in case()) {
        let (serial_kernel, parallel_kernel) = (case.kernel(), case.kernel());
        let serial = case.open(&serial_kernel, OpenEngine::Serial);
        let parallel = case.open(&parallel_kernel, OpenEngine::Parallel { workers: Some(case.workers) });
        match (serial, parallel) {
            (Ok(serial), Ok(parallel)) => {
                prop_assert_eq!(&serial.tasks, &parallel.tasks);
                prop_assert_eq!(notes(&serial), notes(&parallel));
                for (a, b) in serial.events.iter().zip(&parallel.events) {
                    prop_assert_eq!(&a.request.name, &b.request.name);
                    prop_assert_eq!(&a.cpus, &b.cpus);
                    prop_assert_eq!(a.request.leader, b.request.leader);
                    prop_assert_eq!(attr_bytes(&a.request.attr), attr_bytes(&b.request.attr));
                }
                prop_assert_eq!(&serial.shape.batches, &parallel.shape.batches);
                for (list, kernel) in [(serial, &serial_kernel), (parallel, &parallel_kernel)] {
                    check_list(&list, kernel);
                    check_use(list, kernel);
                }
            }
            (Err(serial), Err(parallel)) => {
                // Where descriptors are short and another call fails, too, it matters which comes
                // first.
                let is_short =
                    |error: &OpenError| error.source.raw_os_error() == Some(libc::EMFILE);
                if is_short(&serial) == is_short(&parallel) {
                    prop_assert_eq!(told(&serial), told(&parallel));
                } else {
                    prop_assert!(case.limit.is_some(), "{serial:?} {parallel:?}");
                }
                check_closed(&serial_kernel);
                check_closed(&parallel_kernel);
            }
            // The kernel looks for a descriptor before it looks for the thread: where all fit but those of threads
            // that are gone, it matters which is asked for first.
            (serial, parallel) => prop_assert!(
                case.limit.is_some() && case.faults.iter().any(|fault| matches!(fault, Fault::Gone(_))),
                "serial: {:?}\nparallel: {:?}",
                serial,
                parallel
            ),
        }
    }

    /// Checks that threads which exit between calls, whichever calls those are, leave a list
    /// without holes and nothing behind.
    #[test]
    fn exits_between_calls(case in case(), exits in prop::collection::vec((10..22i32, 0..200usize), 1..6)) {
        for engine in [OpenEngine::Serial, OpenEngine::Parallel { workers: Some(case.workers) }] {
            let mut case = case.clone();
            (case.faults, case.limit) = (Vec::new(), None);
            let exits = exits.clone();
            let kernel = Arc::new(Fake::new().virtual_descriptors().rule(move |call| {
                let gone = exits.iter().any(|&(task, at)| task == call.task && call.index >= at);
                gone.then_some(libc::ESRCH)
            }));
            match case.open(&kernel, engine) {
                Ok(list) => {
                    check_list(&list, &kernel);
                    check_use(list, &kernel);
                }
                Err(error) => {
                    // EINVAL: a leader whose PMU does not cover the CPU.
                    let errno = error.source.raw_os_error();
                    prop_assert!(matches!(errno, Some(libc::ESRCH | libc::EINVAL)), "{}", error);
                    check_closed(&kernel);
                }
            }
        }
    }
}

/// Checks that a member whose leader is on another CPU is what both engines name, where descriptors
/// run out at the same place: the kernel is not even asked for the member.
#[test]
fn no_leader_where_descriptors_run_out() {
    let mut leader = Request::new("event0", attr_zeroed());
    leader.attr.type_ = Perf::SOFTWARE;
    let member = Request { name: "event1".into(), leader: Some(0), ..leader.clone() };
    leader.cpus = Some(vec![1]);
    let plan = EvlistPlan { events: vec![leader, member], targets: Targets::system(&[0, 1]) };
    let case = Case { plan, faults: Vec::new(), limit: Some((1, 0)), homes: vec![None], workers: 1 };
    let said = [OpenEngine::Serial, OpenEngine::Parallel { workers: Some(1) }].map(|engine| {
        let kernel = case.kernel();
        told(&case.open(&kernel, engine).expect_err("there is no leader"))
    });
    assert_eq!((said[0].4, &said[0]), (Some(libc::EINVAL), &said[1]));
}

fn tasks_gone_late(engine: OpenEngine) -> (Arc<Fake>, Evlist) {
    let mut request = Request::new("a", attr_zeroed());
    request.attr.type_ = Perf::SOFTWARE;
    let events = vec![Request { name: "b".into(), ..request.clone() }, request];
    let opens = AtomicU32::new(0);
    // Task 12 is there for the first event and gone when the second one comes.
    let kernel = Arc::new(Fake::new().virtual_descriptors().homes(|_| Some(0)).rule(move |call| {
        (call.task == 12 && opens.fetch_add(1, Ordering::Relaxed) >= 2).then_some(libc::ESRCH)
    }));
    let plan = EvlistPlan { events, targets: Targets::tasks(vec![11, 12, 13], &[0, 1]) };
    let list = open(Arc::<Fake>::clone(&kernel), plan, engine).unwrap();
    (kernel, list)
}

/// Checks that a thread which vanishes after some of its events are open leaves none of them open,
/// and that no number is closed twice, neither then nor at the end: perf 6.1 forgets the
/// descriptors of the removed column, and keeps a copy of the last one.
#[test]
fn a_vanished_thread_is_closed_once() {
    for engine in [OpenEngine::Serial, OpenEngine::Parallel { workers: Some(2) }] {
        let (kernel, list) = tasks_gone_late(engine);
        assert_eq!((&list.tasks[..], list.descriptors()), (&[11, 13][..], 8));
        check_list(&list, &kernel);
        list.close();
        check_closed(&kernel);
    }
}

/// Checks that saved places behind a removed column move up: the task after the vanished one is
/// opened once, in every unit.
#[test]
fn places_move_up() {
    for workers in 1..5 {
        let (kernel, list) = tasks_gone_late(OpenEngine::Parallel { workers: Some(workers) });
        let of_13 = kernel.opened().iter().filter(|opened| opened.task == 13).count();
        assert_eq!(of_13, 4);
        drop(list);
    }
}

/// Checks that an event which a fallback moves to a PMU of more CPUs gets them all, from any number
/// of workers.
#[test]
fn a_clock_covers_more_cpus() {
    let mut attr = attr_zeroed();
    (attr.type_, attr.config) = (Perf::HARDWARE, Perf::HW_CPU_CYCLES);
    let request = Request { cpus: Some(vec![2]), ..Request::new("cycles", attr) };
    for workers in 1..5 {
        let kernel = Arc::new(Fake::new().virtual_descriptors().without_pmu());
        let plan = EvlistPlan { events: vec![request.clone()], targets: Targets::system(&[0, 1, 2, 3]) };
        let engine = OpenEngine::Parallel { workers: Some(workers) };
        let list = open(Arc::<Fake>::clone(&kernel), plan, engine).unwrap();
        assert_eq!(list.descriptors(), 4);
        check_list(&list, &kernel);
    }
}

/// Checks that workers are started where tasks ran on other CPUs, not where all of them ran here.
#[test]
fn workers_where_they_pay() {
    let request = Request::new("a", attr_zeroed());
    let plan = EvlistPlan { events: vec![request], targets: Targets::tasks((1..2000).collect(), &[0, 1]) };
    let shape = Fallbacks::new(&Fake::new(), plan).shape;
    for (fake, pays) in [
        (Fake::new().homes(|task| Some(task as u32 / 50 % 2)), true),
        (Fake::new().homes(|_| Some(0)), false),
        (Fake::new(), false),
    ] {
        assert_eq!(crate::evlist::parallel::pays(&fake, &shape, 2, 0), pays);
    }
}

/// Checks that members of a batch start with their leader, that one call per CPU switches them all,
/// and that a kernel which takes no groups gets single events, with the attrs that were asked for
/// either way.
#[test]
fn batches() {
    let mut attr = attr_zeroed();
    (attr.type_, attr.config) = (Perf::SOFTWARE, Perf::SW_DUMMY);
    attr.set_disabled(1);
    let events: Vec<Request> = (0..20).map(|index| Request::new(format!("dummy{index}"), attr)).collect();
    for refuses in [false, true] {
        let fake = Fake::new().virtual_descriptors();
        let fake = fake.rule(move |call| (refuses && call.grouped && call.cpu == 1).then_some(libc::EINVAL));
        let kernel = Arc::new(fake);
        let plan = EvlistPlan { events: events.clone(), targets: Targets::system(&[0, 1]) };
        let list = open(Arc::<Fake>::clone(&kernel), plan, OpenEngine::Auto).unwrap();
        check_list(&list, &kernel);
        assert!(list.notes.is_empty());
        assert!(list.events.iter().all(|event| event.request.attr.disabled() == 1));
        list.enable(false).unwrap();
        assert_eq!(kernel.enabled().len(), if refuses { 40 } else { 2 });
        let members = kernel.opened().iter().filter(|o| o.group.is_some() && o.attr.disabled() == 0).count();
        assert!(if refuses { members <= 20 } else { members == 38 }, "{members}");
    }
    let mut alone = events;
    alone.iter_mut().for_each(|request| request.alone = true);
    let kernel = Arc::new(Fake::new().virtual_descriptors());
    let plan = EvlistPlan { events: alone, targets: Targets::system(&[0]) };
    let list = open(Arc::<Fake>::clone(&kernel), plan, OpenEngine::Serial).unwrap();
    assert_eq!(list.switch("dummy7", true).unwrap(), 1);
    assert_eq!(kernel.on().len(), 1);
}
