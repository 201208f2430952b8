//! The programs against the kernel's verifier and against the model, and records against damage.
use super::emulated::{Emulated, told};
use super::model::{DEAD, ModelTimes, SchedEvent, WaitModel};
use super::*;
use crate::bpf::follow::{Follow, FollowOptions};
use crate::bpf::insn::{Assembler, R1, R3};
use crate::bpf::python::tests::LAYOUT;
use crate::bpf::types::Member;
use kymo_testing::skip;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Checks that the kernel accepts all programs, with and without the tracepoint behind the switch,
/// and with and without types of the tracepoints' arguments; also where processes of Python are
/// looked for, and when one was entered.
#[test]
fn programs_load() {
    for (not_behind, typed) in [(false, true), (true, true), (false, false), (true, false)] {
        let options = WaitOptions { not_behind, ..WaitOptions::default() };
        let kernel = if typed { KernelBtf::read() } else { None };
        let python = PythonWalker::new().ok();
        match WaitTracer::start_with((None, python.as_ref()), &options, kernel) {
            Ok(tracer) => {
                assert!(!(not_behind && tracer.has_stacks()));
                let pid = std::process::id() as i32;
                python.iter().for_each(|python| python.enter(pid, &LAYOUT, 0x1234, 7).unwrap());
            }
            Err(error @ BpfError::Load { .. }) => panic!("{error}"),
            Err(error) => return skip("bpf::waits::programs_load", error.to_string()),
        }
    }
}

/// Checks that this kernel takes the programs with typed arguments: else the others would serve
/// silently.
#[test]
fn typed_programs_load() {
    let test = "bpf::waits::typed_programs_load";
    let Some(number) = KernelBtf::read().and_then(|kernel| kernel.tracepoint(c"sched_waking")) else {
        return skip(test, "this kernel shows no type information");
    };
    let Ok(types) = TaskTypes::load() else { return skip(test, "this kernel takes no types") };
    let mut program = Assembler::new();
    let (end, mut wanted) = (program.label(), Vec::new());
    program.load64(R3, R1, 0);
    program.load_member((R1, R3), 4, Member::Id, &mut wanted);
    program.show(end);
    let program = Program { wanted, kernel_type: number, ..program.finish().into() };
    let kind = ProgramKind::TypedTracepoint;
    attach_typed_program(kind, "kymo_trial", c"sched_waking", &program, Some(&types)).expect("it is taken");
}

/// Regression: threads that were made between the start and the recording had more time than it.
#[test]
fn time_before_the_recording() {
    const TEST: &str = "bpf::waits::time_before_the_recording";
    let own = std::process::id() as i32;
    let follower = match Follower::start_with(Follow::Processes(&[own]), &FollowOptions::default()) {
        Ok(follower) => follower,
        Err(error) => return skip(TEST, error.to_string()),
    };
    // No record before the end: that tells of each thread.
    let hour = Duration::from_secs(3600);
    let options = WaitOptions { long: hour, together: hour, ..WaitOptions::default() };
    let tracer = match WaitTracer::start(Some(&follower), None, &options) {
        Ok(tracer) => tracer,
        Err(error) => return skip(TEST, error.to_string()),
    };
    let (tells, told) = std::sync::mpsc::channel();
    let (ends, ended) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            tells.send(rustix::thread::gettid().as_raw_nonzero().get()).expect("it is heard");
            assert!(ended.recv().is_err(), "nothing is sent");
        });
        let tid = told.recv().expect("it runs");
        assert!(!tracer.enter(own, tid, ThreadState::Blocked), "its maker has entered it");
        std::thread::sleep(Duration::from_millis(20));
        let began = monotonic_ns();
        tracer.begin();
        assert!(tracer.enter(own, tid, ThreadState::Blocked), "it is forgotten");
        std::thread::sleep(Duration::from_millis(5));
        let (left, now) = tracer.end();
        let (record, until) = left.iter().find(|(record, _)| record.tid == tid).expect("its time");
        assert_eq!(*until, now);
        let whole = record.off_cpu_ns() + record.run_ns;
        assert!((5_000_000..=now - began).contains(&whole), "{whole} of {} ns", now - began);
        drop(ends);
    });
}

/// Checks that a record is read as it is written, and that other kinds and cut bytes are none.
#[test]
fn records() {
    let record = WaitRecord {
        kind: WaitKind::Wait,
        task_state: 2,
        tid: 7,
        pid: 6,
        waker: 5,
        files: WaitedFiles::Work,
        blocked_ns: 100,
        runnable_ns: 20,
        run_ns: 3,
        short: ShortWaits {
            blocked_ns: 1000,
            runnable_ns: 200,
            waits: 9,
            preemptions: 4,
            longest_ns: 400,
            places: [1, 2, 3].map(|number| PlaceWaits {
                call: 231,
                place: number,
                blocked_ns: 990,
                waits: 4,
                longest_ns: 500 + number,
                runnable_ns: 70 + number,
            }),
        },
        syscall: -1,
        arguments: [0x1234, 1],
        place: 16,
    };
    let mut raw = record.to_raw();
    assert_eq!((raw.len() + 4) % 8, 0);
    assert_eq!((WaitRecord::parse(&raw), record.off_cpu_ns()), (Some(record), 1320));
    assert_eq!(WaitRecord::parse(&raw[..271]), None);
    raw[record::at::KIND as usize] = 5;
    assert_eq!(WaitRecord::parse(&raw), None);
    let most = WaitRecord { blocked_ns: u64::MAX, ..record };
    assert_eq!(most.off_cpu_ns(), u64::MAX);
}

const CPUS: usize = 3;

/// A machine that does what a list of numbers says, as far as a kernel would.
struct Scheduler {
    now: u64,
    emulated: Emulated,
    model: WaitModel,
    /// What each CPU runs, 0: nothing; and whether the program behind its last switch is to run.
    cpus: [(i32, bool); CPUS],
    ready: Vec<i32>,
    blocked: Vec<i32>,
    /// The process of each thread.
    processes: BTreeMap<i32, i32>,
    next_tid: i32,
    knows_quotas: bool,
    /// Whether the programs can read the system calls of threads.
    reads_calls: bool,
    /// How long each thread was blocked in each call, as far as records have told, and how long in
    /// which call they have not.
    told_calls: BTreeMap<(i32, i64), u64>,
    elsewhere: BTreeMap<i32, u64>,
    /// What records have told of each thread.
    told: BTreeMap<i32, ModelTimes>,
    records: u64,
    lost: u64,
}

/// What comes next, how much later, and whether the ring is full then.
type Choice = (u8, u8, u8, u64, bool);

fn any_choice() -> impl Strategy<Value = Choice> {
    let later = prop_oneof![4 => 0..300_u64, 3 => 0..200_000_u64, 1 => 0..30_000_000_u64];
    (0..9_u8, any::<u8>(), any::<u8>(), later, prop::bool::weighted(0.2))
}

impl Scheduler {
    fn new(programs: (Thresholds, TaskAccess), directly: bool, most: usize) -> Scheduler {
        let mut scheduler = Scheduler {
            now: 1,
            emulated: Emulated::new(programs, directly, most, CPUS),
            model: WaitModel::new(most),
            cpus: [(0, false); CPUS],
            ready: vec![10, 12],
            blocked: vec![11],
            processes: BTreeMap::new(),
            next_tid: 20,
            knows_quotas: programs.0.throttle != ThrottleSource::None,
            reads_calls: programs.1 == TaskAccess::Loads,
            told_calls: BTreeMap::new(),
            elsewhere: BTreeMap::new(),
            told: BTreeMap::new(),
            records: 0,
            lost: 0,
        };
        let states = [ThreadState::Ready, ThreadState::Blocked, ThreadState::Held];
        for ((pid, tid), state) in [(10, 10), (10, 11), (12, 12)].into_iter().zip(states) {
            scheduler.processes.insert(tid, pid);
            scheduler.apply(0, SchedEvent::Enter { pid, tid, state });
        }
        scheduler
    }

    /// An event on a CPU, for the programs and the model.
    fn apply(&mut self, cpu: usize, event: SchedEvent) {
        self.behind(cpu);
        if let SchedEvent::Switch { next: tid, .. } | SchedEvent::Waking { tid, .. } = event {
            self.emulated.waits_since(self.model.since(tid));
        }
        self.emulated.apply(self.now, cpu, self.cpus[cpu].0, event);
        self.model.apply(self.now, event);
        if let SchedEvent::Switch { next, .. } = event {
            self.cpus[cpu] = (next, true);
        }
        self.check(event);
    }

    /// The program behind a switch runs before anything else happens on its CPU.
    fn behind(&mut self, cpu: usize) {
        if let (running, true) = self.cpus[cpu] {
            self.cpus[cpu].1 = false;
            let wait = self.model.last_wait(running);
            self.emulated.waits_since(wait.map_or(0, |(_, wait)| wait.begun_ns));
            self.emulated.behind(self.now, cpu, running);
            self.check(SchedEvent::New { pid: 0, tid: 0 });
        }
    }

    /// Each wait that is told is the last one of its thread.
    fn check(&mut self, event: SchedEvent) {
        for (record, is_lost) in self.emulated.take() {
            self.records += u64::from(record.kind != WaitKind::End);
            self.lost += u64::from(is_lost);
            if record.kind == WaitKind::Wait {
                let (pid, wait) = self.model.last_wait(record.tid).expect("a wait");
                let of = (record.task_state, record.waker, record.blocked_ns, record.runnable_ns);
                assert_eq!(of, (wait.task_state, wait.waker, wait.blocked_ns, wait.runnable_ns), "{event:?}");
                assert_eq!(record.pid, pid);
            }
            match record.kind {
                WaitKind::Wakeup => {
                    let told = (record.waker, record.blocked_ns);
                    assert_eq!(self.model.woken(record.tid), Some(told), "{event:?}");
                    let call = Emulated::call_at(self.model.since(record.tid));
                    assert!(record.syscall == call || record.syscall == -1, "{event:?}");
                }
                WaitKind::Stack => {
                    assert!(self.model.is_blocked(record.tid), "{event:?}");
                    let told = (record.blocked_ns, record.runnable_ns, record.run_ns, record.short);
                    assert_eq!(told, (0, 0, 0, ShortWaits::default()), "{event:?}");
                    assert_eq!((record.syscall, record.place, record.waker), (-1, 0, 0), "{event:?}");
                }
                WaitKind::Wait | WaitKind::End => {}
            }
            if is_lost && record.kind == WaitKind::End {
                self.model.gone.insert(record.tid);
            }
            if !is_lost && matches!(record.kind, WaitKind::Wait | WaitKind::End) {
                self.tell(&record);
            }
        }
    }

    /// A record has told of its thread.
    fn tell(&mut self, record: &WaitRecord) {
        *self.told.entry(record.tid).or_default() += told(record);
        let mut of_call = |call, blocked_ns| {
            *self.told_calls.entry((record.tid, call)).or_default() += blocked_ns;
        };
        if record.kind == WaitKind::Wait && record.blocked_ns > 0 {
            of_call(record.syscall, record.blocked_ns);
        }
        let ShortWaits { mut blocked_ns, mut waits, mut runnable_ns, .. } = record.short;
        for place in record.short.places.iter().filter(|place| place.waits > 0) {
            of_call(place.call.cast_signed() - 1, place.blocked_ns);
            blocked_ns -= place.blocked_ns;
            waits -= place.waits;
            runnable_ns -= place.runnable_ns;
            assert!(place.longest_ns <= record.short.longest_ns.min(place.blocked_ns));
        }
        let is_preempted = record.short.preemptions > 0;
        assert!(waits > 0 || blocked_ns == 0 && (runnable_ns == 0 || is_preempted), "{record:?}");
        *self.elsewhere.entry(record.tid).or_default() += blocked_ns;
    }

    fn step(&mut self, (what, one, other, later, is_full): Choice) {
        self.now += later;
        self.emulated.machine.is_full = is_full;
        let (cpu, other) = (usize::from(one) % CPUS, usize::from(other));
        let (running, _) = self.cpus[cpu];
        match what {
            0..4 => self.switch(cpu, usize::from(one) / CPUS, other),
            4..6 if !self.blocked.is_empty() => {
                let tid = self.blocked.swap_remove(other % self.blocked.len());
                self.ready.push(tid);
                self.apply(cpu, SchedEvent::Waking { waker: running, tid });
            }
            6 => {
                // One that waits no more, or is still on its way to wait: that changes nothing.
                let all: Vec<i32> = self.processes.keys().copied().collect();
                let tid = all.get(other % all.len().max(1)).filter(|tid| !self.blocked.contains(tid));
                if let Some(&tid) = tid {
                    self.apply(cpu, SchedEvent::Waking { waker: running, tid });
                }
            }
            7 if running != 0 => {
                let (tid, maker) = (self.next_tid, self.processes[&running]);
                let pid = if other % 2 == 0 { maker } else { tid };
                self.next_tid += 1;
                self.processes.insert(tid, pid);
                self.ready.push(tid);
                self.apply(cpu, SchedEvent::New { pid, tid });
            }
            8 if running != 0 => {
                let pid = self.processes[&running];
                let takes_over = !self.processes.contains_key(&pid);
                let tid = if takes_over { pid } else { running };
                self.behind(cpu);
                self.processes.remove(&running);
                self.processes.insert(tid, pid);
                self.apply_exec(cpu, running, tid);
            }
            _ => {}
        }
    }

    fn apply_exec(&mut self, cpu: usize, old: i32, tid: i32) {
        self.apply(cpu, SchedEvent::Exec { old, tid });
        self.cpus[cpu].0 = tid;
        // What was told of the thread by its old id.
        if let Some(times) = self.told.remove(&old) {
            *self.told.entry(tid).or_default() += times;
        }
        *self.elsewhere.entry(tid).or_default() += self.elsewhere.remove(&old).unwrap_or(0);
        let of_old = |(of, _): &(i32, i64)| *of == old && old != tid;
        let moved: Vec<_> = self.told_calls.extract_if(.., |key, _| of_old(key)).collect();
        for ((_, call), blocked_ns) in moved {
            *self.told_calls.entry((tid, call)).or_default() += blocked_ns;
        }
    }

    /// `choice`: who comes; `how`: why the other leaves.
    fn switch(&mut self, cpu: usize, choice: usize, how: usize) {
        let (prev, _) = self.cpus[cpu];
        let (task_state, preempted) = match how % 8 {
            _ if prev == 0 => (0, false),
            0..3 => (1, false),
            3 => (2, false),
            4 => (1, true),
            5 => (0, true),
            6 => (0, false),
            _ => (DEAD, false),
        };
        let next = match self.ready.len() {
            // Somebody was woken while he was still switching: nobody saw it.
            0 if choice.is_multiple_of(4) => self.blocked.pop().unwrap_or(0),
            0 => 0,
            count => self.ready.swap_remove(choice % count),
        };
        match task_state {
            _ if prev == 0 => {}
            DEAD => _ = self.processes.remove(&prev),
            1 | 2 if !preempted => self.blocked.push(prev),
            _ => self.ready.push(prev),
        }
        if prev == 0 && how % 8 == 7 {
            // As some kernels leave out switches of idle CPUs.
            self.behind(cpu);
            self.cpus[cpu] = (next, false);
        } else if (prev, next) != (0, 0) {
            let throttled = how.is_multiple_of(3) && self.knows_quotas;
            self.apply(cpu, SchedEvent::Switch { prev, task_state, preempted, throttled, next });
        }
    }

    /// Time is told in the call in which it was, or in none; all of it where no thread was in many
    /// calls between two records.
    fn compare_calls(&self) -> Result<(), TestCaseError> {
        for (key, blocked_ns) in self.model.blocked_at(Emulated::call_at) {
            let told = self.told_calls.get(&key).copied().unwrap_or(0);
            let is_whole = self.elsewhere.get(&key.0).is_none_or(|elsewhere| *elsewhere == 0);
            prop_assert!(
                told == blocked_ns || told < blocked_ns && !is_whole,
                "{key:?}: {told} of {blocked_ns}"
            );
        }
        Ok(())
    }

    /// All is told now: the sums of the records are those of the model.
    fn end(mut self, thresholds: &Thresholds) -> Result<(), TestCaseError> {
        (0..CPUS).for_each(|cpu| self.behind(cpu));
        for record in self.emulated.end(self.now) {
            self.tell(&record);
        }
        if self.reads_calls {
            self.compare_calls()?;
        }
        self.told.retain(|_, times| *times != ModelTimes::default());
        let mut times = self.model.times(self.now);
        times.retain(|_, times| *times != ModelTimes::default());
        prop_assert_eq!(&self.told, &times);
        prop_assert_eq!(self.emulated.missed(), self.model.missed);
        prop_assert_eq!(self.emulated.lost(), self.lost);
        // Each CPU has one budget for waits and one for wake-ups: at the beginning that of a
        // second.
        let most = (self.now + 1_000_000_000) / thresholds.interval_ns as u64 + 1;
        prop_assert!(self.records <= 2 * CPUS as u64 * most, "{} of {most} records", self.records);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Checks the programs, run without a kernel, against the model: the sums of each thread to the
    /// nanosecond, each wait that is told, and what is counted as lost and missed. Records find no
    /// room, threads find no place, and nothing may be written any more.
    #[test]
    fn programs_are_the_model(
        choices in prop::collection::vec(any_choice(), 0..120),
        directly in any::<bool>(),
        typed in any::<bool>(),
        most in prop_oneof![Just(4_usize), Just(1000)],
        rarely in any::<bool>(),
        throttle in prop::sample::select(
            vec![ThrottleSource::Task, ThrottleSource::Queue, ThrottleSource::None]
        ),
    ) {
        let thresholds = Thresholds {
            long_ns: 100_000,
            together_ns: 1_000_000,
            interval_ns: if rarely { 1_000_000_000 } else { 1000 },
            throttle,
        };
        let tasks = if typed { TaskAccess::Loads } else { TaskAccess::Copies };
        let mut scheduler = Scheduler::new((thresholds, tasks), directly, most);
        choices.into_iter().for_each(|choice| scheduler.step(choice));
        scheduler.end(&thresholds)?;
    }
}

/// Regression: when records were many, whichever wait came first had what was left of the budget,
/// so that the time of long waits was told by the records of short ones, which come as often.
///
/// Checks that the records of a thread's waits in two states, 5 ms and 0.3 ms in turn, tell the time
/// of each of them, whatever the times between.
#[test]
fn few_records_tell_the_time_of_each_state() {
    let thresholds = Thresholds {
        long_ns: 100_000,
        together_ns: 1_000_000,
        interval_ns: 4_000_000,
        throttle: ThrottleSource::None,
    };
    let mut emulated = Emulated::new((thresholds, TaskAccess::Loads), false, 100, 1);
    let threads = 20..60;
    for tid in threads.clone() {
        let enter = SchedEvent::Enter { pid: 20, tid, state: ThreadState::Ready };
        emulated.apply(0, 0, 0, enter);
    }
    // When each thread comes back, from which state; a xorshift decides what lies between.
    let (mut waits, mut random) = (std::collections::BinaryHeap::new(), 88_172_645_463_325_252_u64);
    threads.for_each(|tid| waits.push(std::cmp::Reverse((tid as u64 * 37_000, tid, 2))));
    let (mut told, mut records) = (BTreeMap::new(), 0);
    while let Some(std::cmp::Reverse((now, tid, state))) = waits.pop()
        && now < 4_000_000_000
    {
        emulated.apply(now, 0, 0, SchedEvent::Waking { waker: 0, tid });
        let switch = |prev, task_state, next| SchedEvent::Switch {
            prev,
            task_state,
            preempted: false,
            throttled: false,
            next,
        };
        emulated.apply(now, 0, 0, switch(0, 0, tid));
        emulated.behind(now, 0, tid);
        for (record, _) in emulated.take().iter().filter(|(record, _)| record.kind == WaitKind::Wait) {
            records += 1;
            // Each thread has found its threshold by then.
            if now > 1_000_000_000 {
                *told.entry(record.task_state).or_insert(0) += record.off_cpu_ns();
            }
        }
        let next = 3 - state;
        emulated.apply(now + 1000, 0, tid, switch(tid, next, 0));
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let length = if next == 1 { 5_000_000 } else { 300_000 };
        waits.push(std::cmp::Reverse((now + length / 2 + random % length, tid, next)));
    }
    let (long, short) = (told[&1], told[&2]);
    let share = long as f64 / (long + short) as f64;
    // 5 of 5.3; by number it would be a half.
    assert!((0.90..0.98).contains(&share), "{share} in {records} records");
    assert!((700..1300).contains(&records), "{records} records in 4 s, of 250 a second");
}
