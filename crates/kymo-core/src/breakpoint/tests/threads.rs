//! Many threads at once: every answer must be one that some order of the requests explains, and no
//! CPU is ever promised too much.
use super::property::ask;
use super::rule::{Rule, Whom};
use super::*;
use proptest::prelude::*;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Steps of each thread where there is no order to be explained.
const STEPS: usize = if cfg!(miri) { 20 } else { 2_000 };

/// One request of a thread, to be made again and again.
#[derive(Clone, Debug)]
enum Op {
    Reserve(Whom, Kind),
    /// What this thread got last.
    Modify(Kind),
    Release,
}

/// What a thread did: between which two moments, and what was said.
#[derive(Clone, Debug)]
struct Done {
    begin: u64,
    end: u64,
    op: Op,
    said: Result<(), Error>,
}

/// Lets each thread do its program, all at once.
fn run(ledger: &Ledger, programs: &[Vec<Op>]) -> Vec<Vec<Done>> {
    let tasks: Vec<_> = (0..2).map(|task| ledger.task(TaskId(task))).collect();
    let (clock, start) = (AtomicU64::new(0), Barrier::new(programs.len()));
    let (tasks, clock, start) = (&tasks, &clock, &start);
    let tick = || clock.fetch_add(1, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let thread = |program: &'_ Vec<Op>| {
            let program = program.clone();
            scope.spawn(move || {
                let mut held = Vec::new();
                start.wait();
                let step = |op: Op| {
                    let begin = tick();
                    let said = match &op {
                        Op::Reserve(whom, kind) => {
                            ask(ledger, tasks, whom, *kind).map(|granted| held.push(granted))
                        }
                        Op::Modify(kind) => held.last_mut().map_or(Ok(()), |last| last.modify(*kind)),
                        Op::Release => {
                            drop(held.pop());
                            Ok(())
                        }
                    };
                    Done { begin, end: tick(), op, said }
                };
                let done: Vec<_> = program.into_iter().map(step).collect();
                // What is left is released after everybody is through: it is not in the history.
                start.wait();
                done
            })
        };
        let threads: Vec<_> = programs.iter().map(thread).collect();
        threads.into_iter().map(|thread| thread.join().expect("no thread panics")).collect()
    })
}

/// Whether some order explains all answers: one in which whatever ended before another began comes
/// first.
fn is_explained(rule: &Rule, history: &[Vec<Done>], next: &mut [usize], held: &mut [Vec<usize>]) -> bool {
    let pending = |thread: usize, next: &[usize]| history[thread].get(next[thread]);
    let first_end = (0..history.len()).filter_map(|thread| pending(thread, next)).map(|done| done.end).min();
    let Some(first_end) = first_end else {
        return true;
    };
    (0..history.len()).any(|thread| {
        let Some(done) = pending(thread, next).filter(|done| done.begin < first_end) else {
            return false;
        };
        let (mut rule, mut held) = (rule.clone(), held.to_vec());
        let said = match &done.op {
            Op::Reserve(whom, kind) => {
                let number = thread * 100 + next[thread];
                let said = rule.reserve(number, whom.clone(), *kind);
                if said.is_ok() {
                    held[thread].push(number);
                }
                said
            }
            Op::Modify(kind) => held[thread].last().map_or(Ok(()), |last| rule.modify(*last, *kind)),
            Op::Release => {
                held[thread].pop().map(|number| rule.release(number));
                Ok(())
            }
        };
        if said != done.said {
            return false;
        }
        next[thread] += 1;
        let explained = is_explained(&rule, history, next, &mut held);
        next[thread] -= 1;
        explained
    })
}

fn programs() -> impl Strategy<Value = Vec<Vec<Op>>> {
    let cpu = || (0..2u32).prop_map(CpuId);
    let whom = prop_oneof![
        3 => (0..2usize, prop::option::of(cpu())).prop_map(|(task, cpu)| Whom::Task(task, cpu)),
        1 => prop::collection::vec(cpu(), 1..3).prop_map(Whom::Cpus),
    ];
    let kind = || prop::sample::select(vec![Kind::WRITE, Kind::EXECUTE]);
    let op = prop_oneof![
        4 => (whom, kind()).prop_map(|(whom, kind)| Op::Reserve(whom, kind)),
        1 => kind().prop_map(Op::Modify),
        2 => Just(Op::Release),
    ];
    prop::collection::vec(prop::collection::vec(op, 1..5), 3)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Checks that what three threads are told at once is what the rule says to some order of their
    /// requests.
    #[test]
    fn some_order_explains_all(
        slots in prop_oneof![
            (1..3usize).prop_map(Slots::Shared),
            (1..3usize).prop_map(|slots| Slots::Separate { data: slots, instructions: 1 }),
        ],
        programs in programs(),
    ) {
        let config = Config { cpus: 2, slots };
        let ledger = ledger(config);
        let history = run(&ledger, &programs);
        let (mut next, mut held) = (vec![0; 3], vec![Vec::new(); 3]);
        prop_assert!(is_explained(&Rule::new(config), &history, &mut next, &mut held), "{history:#?}");
        prop_assert!(ledger.is_unused());
    }
}

/// Checks that a history which no order explains is told from one that has an order.
#[test]
fn a_wrong_history_is_noticed() {
    let config = Config { cpus: 2, slots: Slots::Shared(1) };
    let op = Op::Reserve(Whom::Task(0, None), Kind::WRITE);
    let at = |begin, said| vec![Done { begin, end: begin + 10, op: op.clone(), said }];
    let explained = |history: &[Vec<Done>]| {
        is_explained(&Rule::new(config), history, &mut [0, 0], &mut [Vec::new(), Vec::new()])
    };
    let mut rule = Rule::new(config);
    rule.reserve(0, Whom::Task(0, None), Kind::WRITE).expect("nothing is taken");
    let refused = rule.reserve(1, Whom::Task(0, None), Kind::WRITE);
    assert!(explained(&[at(0, refused), at(5, Ok(()))]), "they overlap: the second came first");
    assert!(!explained(&[at(0, refused), at(20, Ok(()))]), "nothing was taken yet");
    assert!(!explained(&[at(0, Ok(())), at(5, Ok(()))]), "both cannot have the only slot");
}

/// Checks that while four threads ask for their own tasks, for common tasks and for CPUs, no CPU is
/// ever promised more than it has (B1), and that all counts are 0 afterwards (B6).
#[test]
fn never_promised_twice() {
    for config in [X86, ARM] {
        let ledger = ledger(config);
        let common: Vec<_> = (0..2).map(|task| ledger.task(TaskId(task))).collect();
        let over = AtomicBool::new(false);
        let granted = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4u64)
                .map(|thread| {
                    let (ledger, common, granted) = (&ledger, &common, &granted);
                    scope.spawn(move || {
                        let mut random = thread + 1;
                        let mut next = |below: u64| {
                            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                            (random >> 33) % below
                        };
                        let mut held = Vec::new();
                        for _ in 0..STEPS {
                            let own = ledger.task(TaskId(10 + thread));
                            let task = if next(2) == 0 { &own } else { &common[next(2) as usize] };
                            let cpu = CpuId(next(3) as u32);
                            let target = match next(20) {
                                0 => Target::Cpu(cpu),
                                1 => Target::AllCpus,
                                2..8 => Target::TaskOn(task, cpu),
                                _ => Target::Task(task),
                            };
                            let kind = if next(3) == 0 { Kind::EXECUTE } else { Kind::WRITE };
                            held.extend(ledger.reserve(target, kind));
                            if let Some(last) = held.last_mut().filter(|_| next(5) == 0) {
                                _ = last.modify(Kind::EXECUTE);
                            }
                            if next(3) > 0 && !held.is_empty() {
                                held.swap_remove(next(held.len() as u64) as usize).release();
                                granted.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    })
                })
                .collect();
            scope.spawn(|| {
                while !over.load(Ordering::Acquire) {
                    for cpu in (0..3).map(CpuId) {
                        for pool in [Pool::Data, Pool::Instructions] {
                            let taken = ledger.taken(cpu, pool).expect("the CPU exists");
                            assert!(taken <= config.slots_for(pool), "{taken} of {cpu} are promised");
                        }
                    }
                    std::thread::yield_now();
                }
            });
            let ends: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
            over.store(true, Ordering::Release);
            assert!(ends.iter().all(Result::is_ok));
        });
        assert!(granted.into_inner() > STEPS as u64 / 2, "hardly anything was granted");
        assert!(ledger.is_unused());
    }
}
