//! Where counts and time come from.
use super::{CpuId, Source};

/// The counters of each CPU, and its clock: what the engine knows of the world.
///
/// A counter is a number that only grows (and wraps at 2^64) while it is started; the engine keeps
/// differences. For what is counted anyway (the CPU time of a thread, its allocations)
/// [`read`](Pmu::read) is all there is to write.
///
/// Every method gets the CPU that is meant and may be called from any thread: whoever reads an
/// event reads it where it runs, and whoever disables one stops it there. Methods are called with
/// the engine's locks held: they must not call the engine, nor wait.
pub trait Pmu: Send + Sync {
    /// Nanoseconds of this CPU's clock. Times are differences on one CPU, so clocks of several CPUs
    /// need not agree; each must not go back, or times are wrong (and nothing worse happens).
    fn now_ns(&self, cpu: CpuId) -> u64;

    /// What the counter shows now. Only called between [`start`](Pmu::start) and
    /// [`stop`](Pmu::stop).
    fn read(&self, cpu: CpuId, source: Source) -> u64;

    /// Begins to count, and gives what the counter shows at that moment.
    fn start(&self, cpu: CpuId, source: Source) -> u64 {
        self.read(cpu, source)
    }

    /// Ends counting, and gives what the counter showed at that moment.
    fn stop(&self, cpu: CpuId, source: Source) -> u64 {
        self.read(cpu, source)
    }

    /// Whether this needs one of the [`slots`](Pmu::slots). What does not is software, and always
    /// fits. The same answer each time.
    fn needs_slot(&self, source: Source) -> bool {
        let _ = source;
        false
    }

    /// How many hardware counters a CPU has. The same number each time.
    fn slots(&self, cpu: CpuId) -> usize {
        let _ = cpu;
        0
    }
}

impl<P: Pmu + ?Sized> Pmu for std::sync::Arc<P> {
    fn now_ns(&self, cpu: CpuId) -> u64 {
        (**self).now_ns(cpu)
    }

    fn read(&self, cpu: CpuId, source: Source) -> u64 {
        (**self).read(cpu, source)
    }

    fn start(&self, cpu: CpuId, source: Source) -> u64 {
        (**self).start(cpu, source)
    }

    fn stop(&self, cpu: CpuId, source: Source) -> u64 {
        (**self).stop(cpu, source)
    }

    fn needs_slot(&self, source: Source) -> bool {
        (**self).needs_slot(source)
    }

    fn slots(&self, cpu: CpuId) -> usize {
        (**self).slots(cpu)
    }
}
