//! The PMU of tasks (a thread slot for each CPU), and the one engine that counts with it.
use super::counter::{Counter, Hardware};
use super::error::Error;
use super::{THREADS, hardware, thread_slot};
use kymo_core::context::{CpuId, Engine, Pmu, Source};
use std::str::FromStr;
use std::sync::OnceLock;

pub(super) fn engine() -> &'static Engine<Counters> {
    static ENGINE: OnceLock<Engine<Counters>> = OnceLock::new();
    ENGINE.get_or_init(|| Engine::new(Counters, THREADS))
}

impl FromStr for Counter {
    type Err = Error;

    /// Reads the name that [`Display`](std::fmt::Display) writes.
    fn from_str(name: &str) -> Result<Counter, Error> {
        let named = [Counter::CpuTime, Counter::Allocations, Counter::AllocatedBytes]
            .into_iter()
            .chain(Hardware::ALL.map(Counter::Hardware))
            .find(|counter| counter.to_string() == name);
        let own = || name.strip_prefix("own:")?.parse().ok().map(Counter::Own);
        named.or_else(own).ok_or_else(|| Error::UnknownCounter(name.into()))
    }
}

const CPU_TIME: u32 = 0;
const ALLOCATIONS: u32 = 1;
const ALLOCATED_BYTES: u32 = 2;
const FIRST_HARDWARE: u32 = 16;
const FIRST_OWN: u32 = 32;

impl Counter {
    /// Whether nothing of it was missed on any thread.
    pub(super) fn is_whole(self) -> bool {
        !matches!(self, Counter::Hardware(counter) if hardware::has_failed(counter))
    }

    /// Its number in the engine.
    ///
    /// # Errors
    /// If it cannot be counted here.
    pub(super) fn source(self) -> Result<Source, Error> {
        Ok(Source(match self {
            Counter::CpuTime => CPU_TIME,
            Counter::Allocations => ALLOCATIONS,
            Counter::AllocatedBytes => ALLOCATED_BYTES,
            Counter::Hardware(counter) => {
                hardware::try_open(counter).map_err(|error| Error::unsupported(self, &error))?;
                FIRST_HARDWARE + counter as u32
            }
            Counter::Own(number) if usize::from(number) < thread_slot::OWN_COUNTERS => {
                FIRST_OWN + u32::from(number)
            }
            Counter::Own(_) => return Err(Error::UnknownCounter(self.to_string())),
        }))
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Counters;

impl Pmu for Counters {
    /// Of the thread, so that "enabled" is the CPU time during which an event should have counted.
    fn now_ns(&self, cpu: CpuId) -> u64 {
        thread_slot::cpu_ns(cpu.0)
    }

    fn read(&self, cpu: CpuId, source: Source) -> u64 {
        match source.0 {
            CPU_TIME => thread_slot::cpu_ns(cpu.0),
            ALLOCATIONS => thread_slot::allocations(cpu.0).0,
            ALLOCATED_BYTES => thread_slot::allocations(cpu.0).1,
            own @ FIRST_OWN.. => thread_slot::own(cpu.0, (own - FIRST_OWN) as usize),
            counter => match Hardware::ALL.get((counter.wrapping_sub(FIRST_HARDWARE)) as usize) {
                Some(&counter) => hardware::read(cpu.0, counter),
                None => 0,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that each counter's name is read back, and that a name that nobody has is refused
    /// with the names that are.
    #[test]
    fn names_are_read_back() {
        let all = [Counter::CpuTime, Counter::Allocations, Counter::AllocatedBytes, Counter::Own(3)];
        for counter in all.into_iter().chain(Hardware::ALL.map(Counter::Hardware)) {
            assert_eq!(counter.to_string().parse(), Ok(counter));
        }
        for name in ["cpu-tiem", "own:", "own:256", "own:-1", ""] {
            let error = name.parse::<Counter>().expect_err("nobody's name");
            assert!(error.to_string().contains("cpu-time"), "{error}");
        }
        assert!(Counter::Own(16).source().is_err());
    }
}
