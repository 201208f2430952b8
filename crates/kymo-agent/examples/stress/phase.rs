//! One phase: steady probes, passing probes, two threads that act; then the comparison.
use super::chance::Chance;
use super::work::Work;
use kymo_agent::patch::{Clock, Consumers, PatchError, Probe, Rings, attach, detach, leave, returns_missed};
use kymo_core::ring::Reader;
use std::collections::HashMap;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

const WORKERS: usize = 2;

/// What was done, for people.
#[derive(Debug, Default)]
struct Tally {
    phases: u64,
    acts: u64,
    attached: u64,
    put_off: u64,
    hits: u64,
    returns: u64,
    events: u64,
    missed: u64,
    unloaded: u64,
    vfork_calls: u64,
    vfork_lost: i64,
}

pub(crate) struct Run {
    chance: Chance,
    work: Work,
    plug: PathBuf,
    rings: &'static Rings,
    tally: Tally,
    descriptors: usize,
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("descriptors").count()
}

extern "C-unwind" fn panics(n: c_int) -> c_int {
    if n % 2 == 1 {
        // Without the hook's words.
        resume_unwind(Box::new(n));
    }
    n + 1
}

/// Probes of one attach, and what they read when last looked at.
struct Group {
    functions: Vec<usize>,
    probes: Vec<Probe>,
    seen: Vec<u64>,
}

impl Group {
    /// Asserts that counts only grow.
    fn look(&mut self, inexact: usize) {
        for ((probe, seen), function) in self.probes.iter().zip(&mut self.seen).zip(&self.functions) {
            let now = probe.hits();
            assert!(now >= *seen || *function == inexact, "{now} hits after {seen}");
            *seen = now;
        }
    }
}

impl Run {
    pub(crate) fn new(seed: u64, library: &Path, plug: &Path) -> Run {
        let rings = Rings::create(1 << 20, Clock::measured()).expect("rings");
        let work = Work::load(library);
        // What the first attach opens for good is opened.
        let first = attach(&[work.functions[0].site.clone()], Consumers::Count).expect("attached");
        detach(&first).expect("detached");
        Run {
            chance: Chance::new(seed),
            work,
            plug: plug.to_owned(),
            rings,
            tally: Tally::default(),
            descriptors: descriptors(),
        }
    }

    pub(crate) fn told(&self) -> String {
        format!("{:?}", self.tally)
    }

    /// A child of vfork would write an event into the ring of a CPU that another thread is on.
    fn consumers(&mut self, function: usize) -> Consumers {
        match self.chance.below(if function == self.work.inexact { 3 } else { 4 }) {
            0 => Consumers::Count,
            1 => Consumers::CountReturns,
            2 => Consumers::Latency,
            _ => Consumers::Record(self.rings.record(function as u64 + 1)),
        }
    }

    /// Attaches, later if a thread blocks traps at the moment.
    fn put(&mut self, functions: Vec<usize>, consumers: Consumers) -> Group {
        let sites: Vec<_> = functions.iter().map(|&at| self.work.functions[at].site.clone()).collect();
        let probes = loop {
            match attach(&sites, consumers) {
                Ok(probes) => break probes,
                Err(PatchError::BlocksTraps { .. } | PatchError::Silent { .. }) => self.tally.put_off += 1,
                Err(error) => panic!("{error}"),
            }
            assert!(self.tally.put_off < 100 + self.tally.attached / 10, "threads block traps too often");
        };
        self.tally.attached += probes.len() as u64;
        let seen = vec![0; probes.len()];
        Group { functions, probes, seen }
    }

    fn take(&mut self, group: &Group) {
        loop {
            match detach(&group.probes) {
                Ok(()) => return,
                Err(PatchError::BlocksTraps { .. }) => self.tally.put_off += 1,
                Err(error) => panic!("{error}"),
            }
            assert!(self.tally.put_off < 100 + self.tally.attached / 10, "threads block traps too often");
        }
    }

    /// Takes all events out of the rings; how many of each function.
    fn drain(&mut self) -> HashMap<u64, u64> {
        let mut events = HashMap::new();
        for cpu in 0..self.rings.cpus() {
            let mut reader = Reader::new(self.rings.area(cpu));
            let span = reader.begin().expect("a sane ring");
            let mut bytes = vec![0; span.len_bytes()];
            span.copy_to(&mut bytes);
            assert_eq!(span.whole_records_bytes(bytes.len()), bytes.len(), "only whole records");
            reader.release(span, bytes.len());
            let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight"));
            let mut at = 0;
            while at < bytes.len() {
                *events.entry(word(at + 8)).or_default() += 1;
                at += (word(at) >> 48) as usize;
            }
        }
        events
    }

    pub(crate) fn phase(&mut self) {
        self.drain();
        let all = self.work.functions.len();
        let mut steady = Vec::new();
        let mut free = Vec::new();
        let share = 1 + self.chance.below(4);
        for function in 0..all {
            if self.chance.below(4) < share {
                let consumers = self.consumers(function);
                steady.push((self.put(vec![function], consumers), consumers));
            } else {
                free.push(function);
            }
        }
        let before: Vec<(u64, u64)> = self.work.functions.iter().map(|function| function.counts()).collect();
        let missed = returns_missed();
        let deep = self.chance.once_in(2);
        let storm_ns = [0, 100_000, 300_000, 1_000_000][self.chance.below(4)];
        let lasts = Duration::from_millis(50 + self.chance.below(400) as u64);
        let seeds = [self.chance.next(), self.chance.next()];
        let (stop, tids) = (AtomicBool::new(false), [const { AtomicI32::new(0) }; WORKERS]);
        let mut passing = Vec::new();
        std::thread::scope(|scope| {
            // The controller keeps `self`; workers see the library only.
            let work: &Work = &self.work;
            // SAFETY: shared for as long as the scope lasts; `self.work` is not changed meanwhile.
            let work: &Work = unsafe { &*std::ptr::from_ref(work) };
            let workers: Vec<_> = (0..WORKERS)
                .map(|own| {
                    let (stop, tids) = (&stop, &tids);
                    scope.spawn(move || worker(work, own, tids, stop, seeds[own], deep, storm_ns))
                })
                .collect();
            let end = Instant::now() + lasts;
            while Instant::now() < end {
                self.come_and_go(&mut passing, &mut free);
                for (group, _) in &mut steady {
                    group.look(self.work.inexact);
                }
                if self.chance.once_in(3) {
                    std::thread::sleep(Duration::from_micros(self.chance.below(2000) as u64));
                }
            }
            stop.store(true, Ordering::Relaxed);
            for worker in workers {
                self.tally.acts += worker.join().unwrap_or_else(|panic| resume_unwind(panic));
            }
        });
        let missed = returns_missed() - missed;
        self.compare(&steady, &before, missed);
        for (group, _) in &steady {
            self.take(group);
        }
        for group in &passing {
            self.take(group);
        }
        self.work.assert_untouched();
        if self.chance.once_in(4) {
            leave();
        }
        if self.chance.once_in(8) {
            self.plug();
        }
        assert_eq!(descriptors(), self.descriptors, "descriptors are left open");
        self.tally.phases += 1;
    }

    fn come_and_go(&mut self, passing: &mut Vec<Group>, free: &mut Vec<usize>) {
        let comes = !free.is_empty() && (passing.is_empty() || (passing.len() < 6 && self.chance.once_in(2)));
        if comes {
            let first = free[self.chance.below(free.len())];
            let consumers = self.consumers(first);
            let mut functions = vec![first];
            free.retain(|function| *function != first);
            while !free.is_empty() && self.chance.once_in(2) {
                let next = self.chance.below(free.len());
                if free[next] != self.work.inexact {
                    functions.push(free.swap_remove(next));
                }
            }
            let group = self.put(functions, consumers);
            passing.push(group);
        } else if !passing.is_empty() {
            let mut group = passing.swap_remove(self.chance.below(passing.len()));
            group.look(self.work.inexact);
            self.take(&group);
            free.extend(group.functions);
        }
    }

    /// Hits are calls, returns are returns but for those that were too deep, events are hits but
    /// for those that were lost.
    fn compare(&mut self, steady: &[(Group, Consumers)], before: &[(u64, u64)], missed: u64) {
        let events = self.drain();
        let mut short = 0;
        for (group, consumers) in steady {
            let (at, probe) = (group.functions[0], &group.probes[0]);
            let function = &self.work.functions[at];
            let (began, ended) = function.counts();
            let (began, ended) = (began - before[at].0, ended - before[at].1);
            if at == self.work.inexact {
                self.tally.vfork_calls += began;
                self.tally.vfork_lost += began as i64 - probe.hits() as i64;
                continue;
            }
            assert_eq!(probe.hits(), began, "hits and calls of {}, {consumers:?}", function.name);
            self.tally.hits += began;
            if let Some(returns) = probe.returns() {
                assert!(
                    returns <= ended,
                    "{returns} returns, {ended} ended, of {}, {consumers:?}",
                    function.name
                );
                short += ended - returns;
                self.tally.returns += returns;
            }
            if let Some(lost) = probe.lost() {
                // The id is the function's, also of passing probes that record at the first of
                // theirs.
                let seen = events.get(&(at as u64 + 1)).copied().unwrap_or(0);
                assert_eq!(seen + lost, began, "events and calls of {}", function.name);
                self.tally.events += seen;
            }
        }
        assert!(short <= missed, "{short} returns were not seen, {missed} were too deep");
        self.tally.missed += missed;
    }

    /// A library that is unloaded with its probes.
    fn plug(&mut self) {
        let plug = Work::load(&self.plug);
        let sites: Vec<_> = plug.functions.iter().map(|function| function.site.clone()).collect();
        let consumers = self.consumers(0);
        let probes = attach(&sites, consumers).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(plug.act(0, 1, 0), 0);
        let (began, _) = plug.functions[0].counts();
        assert_eq!(probes[0].hits(), began);
        let first = self.chance.once_in(2);
        if first {
            detach(&probes).unwrap_or_else(|error| panic!("{error}"));
            plug.assert_untouched();
        }
        plug.unload();
        if !first {
            let gone = detach(&probes);
            assert!(matches!(gone, Err(PatchError::Changed { .. })), "{gone:?}");
        }
        self.tally.unloaded += 1;
    }
}

/// Acts until it is told to stop; how often it did.
fn worker(
    work: &Work,
    own: usize,
    tids: &[AtomicI32],
    stop: &AtomicBool,
    seed: u64,
    deep: bool,
    storm_ns: i64,
) -> u64 {
    let mut chance = Chance::new(seed);
    // SAFETY: no arguments, no failure.
    let tid = unsafe { libc::gettid() };
    assert_eq!(work.begin(), 0);
    tids[own].store(tid, Ordering::Relaxed);
    let mut timer = 0;
    if storm_ns > 0 {
        assert_eq!(work.clock(&mut timer, tid, storm_ns), 0);
    }
    // To find the act that goes wrong.
    let only = std::env::var("KYMO_STRESS_ACTS").ok();
    let only: Option<Vec<usize>> =
        only.map(|list| list.split(',').filter_map(|act| act.parse().ok()).collect());
    let mut acts = 0;
    while !stop.load(Ordering::Relaxed) {
        let (act, n) = (chance.below(work.acts() + 1), chance.below(1000) as c_int);
        if only.as_ref().is_some_and(|only| !only.contains(&act)) {
            continue;
        }
        acts += 1;
        if act == work.acts() {
            for n in n..n + 4 {
                let result = catch_unwind(AssertUnwindSafe(|| work.calls_back(panics, n)));
                assert_eq!(result.ok(), (n % 2 == 0).then_some(n + 1));
            }
        } else if act != work.deep || deep {
            let other = tids[1 - own].load(Ordering::Relaxed);
            let line = work.act(act, n, other);
            assert_eq!(line, 0, "stress.cc, act {act} with {n}");
        }
    }
    if storm_ns > 0 {
        assert_eq!(work.clock(&mut timer, tid, 0), 0);
    }
    // Whoever signals this thread from now on finds none.
    tids[own].store(0, Ordering::Relaxed);
    work.end();
    acts
}
