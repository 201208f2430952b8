//! The engine against its model and against the truth, and the corner cases by name.
mod corners;
mod misuse;
mod property;
mod truth;

use super::{Attr, Child, CpuId, Engine, EventId, Pmu, Source, Task};
use std::sync::atomic::{AtomicU64, Ordering};

/// Sources from this one on need a slot.
const HARDWARE: u32 = 4;
const SOURCES: usize = 8;

/// Counters that do what the test says, and check that they are used as they may be.
#[derive(Debug)]
pub(super) struct Script {
    cpus: Vec<ScriptCpu>,
    slots: usize,
    /// How often the engine asked for anything.
    asked: AtomicU64,
}

#[derive(Debug)]
struct ScriptCpu {
    now_ns: AtomicU64,
    /// What each counter shows; started or not, it runs.
    shows: [AtomicU64; SOURCES],
    /// How many events count with it.
    started: [AtomicU64; SOURCES],
    /// What all events together must have counted, and the time that they ran.
    delivered: [AtomicU64; SOURCES],
    delivered_ns: [AtomicU64; SOURCES],
}

impl Script {
    pub(super) fn new(cpus: usize, slots: usize) -> Script {
        let cpu = |cpu| ScriptCpu {
            // The clocks of CPUs do not agree, and counters wrap.
            now_ns: AtomicU64::new(1_000_000 * cpu),
            shows: [const { AtomicU64::new(u64::MAX - 100) }; SOURCES],
            started: Default::default(),
            delivered: Default::default(),
            delivered_ns: Default::default(),
        };
        Script { cpus: (0..cpus as u64).map(cpu).collect(), slots, asked: AtomicU64::new(0) }
    }

    /// Lets a CPU work: time passes, and each counter goes on by its share.
    pub(super) fn work(&self, cpu: CpuId, ns: u64) {
        let cpu = &self.cpus[cpu.0 as usize];
        cpu.now_ns.fetch_add(ns, Ordering::Relaxed);
        for source in 0..SOURCES {
            let units = units(Source(source as u32), ns);
            let started = cpu.started[source].load(Ordering::Relaxed);
            cpu.shows[source].fetch_add(units, Ordering::Relaxed);
            cpu.delivered[source].fetch_add(units * started, Ordering::Relaxed);
            cpu.delivered_ns[source].fetch_add(ns * started, Ordering::Relaxed);
        }
    }

    fn slots_used(&self, cpu: CpuId) -> usize {
        let started = &self.cpus[cpu.0 as usize].started;
        started[HARDWARE as usize..].iter().map(|n| n.load(Ordering::Relaxed) as usize).sum()
    }

    fn delivered(&self, source: Source) -> (u64, u64) {
        let sum = |of: fn(&ScriptCpu) -> &[AtomicU64; SOURCES]| {
            self.cpus.iter().map(|cpu| of(cpu)[source.0 as usize].load(Ordering::Relaxed)).sum()
        };
        (sum(|cpu| &cpu.delivered), sum(|cpu| &cpu.delivered_ns))
    }
}

/// What a source counts during so much work: different for each, so that mixed-up counters show.
pub(super) fn units(source: Source, ns: u64) -> u64 {
    ns * u64::from(source.0 + 1) + 1
}

impl Pmu for Script {
    fn now_ns(&self, cpu: CpuId) -> u64 {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.cpus[cpu.0 as usize].now_ns.load(Ordering::Relaxed)
    }

    fn read(&self, cpu: CpuId, source: Source) -> u64 {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let cpu = &self.cpus[cpu.0 as usize];
        assert!(
            cpu.started[source.0 as usize].load(Ordering::Relaxed) > 0,
            "{source:?} was read and is not started"
        );
        cpu.shows[source.0 as usize].load(Ordering::Relaxed)
    }

    fn start(&self, cpu: CpuId, source: Source) -> u64 {
        self.cpus[cpu.0 as usize].started[source.0 as usize].fetch_add(1, Ordering::Relaxed);
        assert!(self.slots_used(cpu) <= self.slots, "more counters than {cpu} has");
        self.read(cpu, source)
    }

    fn stop(&self, cpu: CpuId, source: Source) -> u64 {
        let shows = self.read(cpu, source);
        self.cpus[cpu.0 as usize].started[source.0 as usize].fetch_sub(1, Ordering::Relaxed);
        shows
    }

    fn needs_slot(&self, source: Source) -> bool {
        source.0 >= HARDWARE
    }

    fn slots(&self, _: CpuId) -> usize {
        self.slots
    }
}

/// An engine with a script, for tests by hand.
fn engine(cpus: usize, slots: usize) -> Engine<Script> {
    Engine::new(Script::new(cpus, slots), cpus)
}

const CPU: CpuId = CpuId(0);

fn family(source: u32) -> Attr {
    Attr::family(Source(source))
}

fn per_task(source: u32) -> Attr {
    Attr { inherit_stat: true, ..family(source) }
}

/// A task with one group of these events.
fn counted(engine: &Engine<Script>, group: &[Attr]) -> (Task<Script>, Vec<EventId>) {
    let mut task = engine.task();
    let events = engine.open(&mut task, group).expect("a sound group");
    (task, events)
}

fn fork(engine: &Engine<Script>, parent: &mut Task<Script>) -> Task<Script> {
    engine.fork(parent, Child::Thread).expect("the parent lives")
}

fn value(engine: &Engine<Script>, event: EventId) -> u64 {
    engine.read(event).expect("the event is open").value
}

/// What one piece of work counts with a source.
fn one(source: u32, ns: u64) -> u64 {
    units(Source(source), ns)
}
