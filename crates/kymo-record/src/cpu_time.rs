//! CPU time that the kernel accounts to the observed programs, against what was sampled or counted.
//!
//! A recording that misses a CPU, or whose samples come too seldom, looks complete by itself: no
//! record says that something is missing. But the kernel accounts the CPU time of every process, by
//! `wait4(2)` for a command and in `/proc/PID/stat` for others. Samples of a clock stand for a
//! period of CPU time each, so both sums must be the same.
use crate::plan::RecordingPlan;
use crate::targets::TargetKind;
use kymo_data::{Attr, EventSpec, abi};
use kymo_perf::count::kernel_stats::KernelStats;
use kymo_perf::workload::Usage;
use std::path::Path;

/// The kernel accounts to a process that existed before in clock ticks of 10 ms.
const TICK_NS: u64 = 10_000_000;
/// What a command uses before its exec and after its last sample, at most, and what the accounts of
/// its children are rounded by.
const EDGES_NS: u64 = 10_000_000;
/// The part of CPU time by which both may differ.
const TOLERANCE: u64 = 50;
/// The part by which more may be seen: what interrupts and the host of a virtual machine take is in
/// the events' time, and in the accounts of some kernels only.
const EXCESS: u64 = 10;
/// The config of cpu-clock.
const CPU_CLOCK: u64 = 0;

/// CPU time of what was observed, by two accounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuTime {
    /// What the kernel accounts to it, ns.
    pub used_ns: u64,
    /// For how much samples stand, or what was counted, ns.
    pub seen_ns: u64,
    /// By how much they may differ for known reasons, ns.
    pub error_ns: u64,
    /// Whether `used_ns` is all that could have been seen: processes may have been observed that
    /// are not accounted there.
    pub complete: bool,
}

impl CpuTime {
    /// Of a command that was counted from its exec to its end.
    pub fn of_command(usage: &Usage, seen_ns: u64) -> CpuTime {
        let used_ns = usage.user_ns.saturating_add(usage.system_ns);
        CpuTime { used_ns, seen_ns, error_ns: EDGES_NS, complete: true }
    }

    /// Of this many processes, between two readings of their accounts.
    pub fn of_processes(accounts: &KernelStats, processes: usize, seen_ns: u64) -> Option<CpuTime> {
        let used_ns = accounts.user_ns?.saturating_add(accounts.system_ns?);
        let error_ns = EDGES_NS + 2 * TICK_NS * processes as u64;
        Some(CpuTime { used_ns, seen_ns, error_ns, complete: false })
    }

    /// With the statistical error of so many samples: three standard deviations.
    #[must_use]
    fn sampled(self, samples: u64, period_ns: u64) -> CpuTime {
        let deviations = 3.0 * ((samples.max(self.used_ns / period_ns.max(1)) + 1) as f64).sqrt();
        CpuTime { error_ns: self.error_ns + (deviations * period_ns as f64) as u64, ..self }
    }

    /// What to say where both differ by more than the error and its tolerance. `what`: that which
    /// was seen, as the subject of a sentence.
    pub fn difference(&self, what: &str) -> Option<String> {
        let error_ns = self.error_ns.saturating_add(self.used_ns / TOLERANCE);
        let seconds = |ns: u64| ns as f64 / 1e9;
        let (used, seen) = (seconds(self.used_ns), seconds(self.seen_ns));
        if self.seen_ns.saturating_add(error_ns) < self.used_ns {
            let missing = (self.used_ns - self.seen_ns) as f64 * 100.0 / self.used_ns as f64;
            return Some(format!(
                "{what} {seen:.2} s of CPU time, but the kernel accounts {used:.2} s to what was observed: {missing:.0} % is missing. \
                 `kymo doctor` shows which CPUs are observed"
            ));
        }
        let most_ns = self.used_ns.saturating_add(self.error_ns).saturating_add(self.used_ns / EXCESS);
        (self.complete && most_ns < self.seen_ns).then(|| {
            format!(
                "{what} {seen:.2} s of CPU time, but the kernel accounts {used:.2} s to the command and the children that it waited for: \
                 the rest is of processes for which it did not wait, or of interrupts and the host"
            )
        })
    }
}

/// Whether samples of a clock must stand for all CPU time that the kernel accounts: a command or
/// whole processes are sampled, with all that they start, for as long as they are observed.
pub(crate) fn is_comparable(plan: &RecordingPlan) -> bool {
    let options = &plan.options;
    let whole = match plan.observed.kind {
        TargetKind::Command => plan.observe_command,
        TargetKind::Tasks => options.targets.tids.is_empty() && !plan.observed.processes.is_empty(),
        TargetKind::Cpus => false,
    };
    whole && plan.follow && !plan.keeps_newest() && options.delay.is_none() && !options.no_samples
}

/// Adds up the CPU time for which the samples of a clock stand.
#[derive(Debug)]
pub(crate) struct ClockSamples {
    /// The ids of the event; empty: every sample is its own.
    ids: Vec<u64>,
    /// Where a sample has its period, in bytes from the record's start.
    period_at: Option<usize>,
    /// The period of samples that do not have theirs.
    period_ns: u64,
    samples: u64,
    sampled_ns: u64,
}

impl ClockSamples {
    /// Of the first event that samples CPU time of tasks, in user mode and in the kernel.
    pub(crate) fn of(specs: &[EventSpec]) -> Option<ClockSamples> {
        let is_clock = |attr: &Attr| {
            let excludes = abi::ATTR_FLAG_EXCLUDE_USER | abi::ATTR_FLAG_EXCLUDE_KERNEL;
            attr.kind == abi::PERF_TYPE_SOFTWARE
                && [CPU_CLOCK, abi::PERF_COUNT_SW_TASK_CLOCK].contains(&attr.config)
                && attr.flags & excludes == 0
                && attr.sample_period > 0
        };
        let spec = specs.iter().find(|spec| is_clock(&spec.attr))?;
        let sample_type = spec.attr.sample_type;
        let has_id = sample_type & abi::PERF_SAMPLE_IDENTIFIER != 0;
        if specs.len() > 1 && !has_id {
            return None;
        }
        let before = [
            abi::PERF_SAMPLE_IDENTIFIER,
            abi::PERF_SAMPLE_IP,
            abi::PERF_SAMPLE_TID,
            abi::PERF_SAMPLE_TIME,
            abi::PERF_SAMPLE_ADDR,
            abi::PERF_SAMPLE_ID,
            abi::PERF_SAMPLE_STREAM_ID,
            abi::PERF_SAMPLE_CPU,
        ];
        let words = before.iter().filter(|&&bit| sample_type & bit != 0).count();
        let period_ns = spec.attr.freq().map_or(spec.attr.sample_period, |hz| 1_000_000_000 / hz.max(1));
        Some(ClockSamples {
            ids: if has_id { spec.ids.clone() } else { Vec::new() },
            period_at: (sample_type & abi::PERF_SAMPLE_PERIOD != 0).then_some(8 + 8 * words),
            period_ns,
            samples: 0,
            sampled_ns: 0,
        })
    }

    /// Takes a sample into account.
    pub(crate) fn sample(&mut self, record: &[u8]) {
        let word = |at: usize| Some(u64::from_le_bytes(record.get(at..at + 8)?.try_into().ok()?));
        if !self.ids.is_empty() && !word(8).is_some_and(|id| self.ids.contains(&id)) {
            return;
        }
        let period_ns = self.period_at.and_then(word).unwrap_or(self.period_ns);
        self.samples += 1;
        self.sampled_ns = self.sampled_ns.saturating_add(period_ns);
    }

    /// Held against what the kernel accounts. `lost`: samples that are known to be missing.
    pub(crate) fn against(&self, accounted: &Accounted, lost: u64) -> Option<CpuTime> {
        let seen_ns = self.sampled_ns.saturating_add(lost.saturating_mul(self.period_ns));
        let time = match accounted {
            Accounted::Command(usage) => CpuTime::of_command(usage, seen_ns),
            Accounted::Processes(accounts, processes) => {
                CpuTime::of_processes(accounts, *processes, seen_ns)?
            }
        };
        Some(time.sampled(self.samples, self.period_ns))
    }
}

/// What the kernel accounts to what was observed.
pub(crate) enum Accounted {
    /// To a command, from its start to its end.
    Command(Usage),
    /// To this many processes while they were observed.
    Processes(KernelStats, usize),
}

/// Reads the accounts of processes when they begin to be observed, and at the end.
pub(crate) struct ProcessAccounts {
    processes: Vec<i32>,
    before: KernelStats,
}

impl ProcessAccounts {
    /// To be called when the events are on.
    pub(crate) fn begin(processes: &[i32]) -> ProcessAccounts {
        ProcessAccounts { processes: processes.to_vec(), before: accounts(processes) }
    }

    /// What was added since; to be called before the events are off.
    pub(crate) fn end(&self) -> Accounted {
        Accounted::Processes(accounts(&self.processes).since(&self.before), self.processes.len())
    }
}

fn accounts(processes: &[i32]) -> KernelStats {
    let each = processes.iter().map(|&pid| KernelStats::of_process(Path::new("/proc"), pid));
    each.fold(KernelStats::default(), |sum, one| sum.plus(&one))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn usage(ns: u64) -> Usage {
        Usage { user_ns: ns / 4 * 3, system_ns: ns / 4, ..Usage::default() }
    }

    fn spec(sample_type: u64, ids: &[u64]) -> EventSpec {
        let mut attr = Attr { kind: abi::PERF_TYPE_SOFTWARE, config: CPU_CLOCK, ..Attr::default() };
        (attr.sample_period, attr.sample_type) = (1000, sample_type);
        attr.set(abi::ATTR_FLAG_FREQ, true);
        EventSpec { attr, ids: ids.to_vec(), name: "cpu-clock".into() }
    }

    /// Checks that a second of which every sample came is not remarked on, and that one of which
    /// half is missing is, with both numbers.
    #[test]
    fn missing_cpu_time_is_said() {
        let of = |samples: u64, used_ns: u64, lost: u64| {
            let mut clock = ClockSamples::of(&[spec(abi::PERF_SAMPLE_TID, &[])]).unwrap();
            (0..samples).for_each(|_| clock.sample(&[0; 16]));
            clock
                .against(&Accounted::Command(usage(used_ns)), lost)
                .unwrap()
                .difference("the samples stand for")
        };
        assert_eq!(of(1000, SECOND, 0), None);
        assert_eq!(of(930, SECOND, 0), None);
        assert_eq!(of(500, SECOND, 500), None);
        let half = of(500, SECOND, 0).unwrap();
        assert!(half.contains("stand for 0.50 s") && half.contains("accounts 1.00 s"), "{half}");
        assert!(half.contains("50 % is missing"), "{half}");
        assert!(of(2000, SECOND, 0).unwrap().contains("did not wait"));
        assert_eq!(of(0, 20_000_000, 0), None);
        assert!(of(0, SECOND / 2, 0).unwrap().contains("100 % is missing"));
    }

    /// Checks that only samples of the clock count, with their own period where they have one, and
    /// that there is no clock among events that are none, or exclude the kernel.
    #[test]
    fn samples_of_the_clock_alone() {
        let bits = abi::PERF_SAMPLE_IDENTIFIER | abi::PERF_SAMPLE_TID | abi::PERF_SAMPLE_PERIOD;
        let mut other = spec(bits, &[9]);
        other.attr.config = abi::PERF_COUNT_SW_DUMMY;
        let mut clock = ClockSamples::of(&[other.clone(), spec(bits, &[4, 5])]).unwrap();
        for (id, period) in [(4, 100), (9, 1000), (5, 20)] {
            let words = [0_u64, id, 77, period];
            clock.sample(&words.map(u64::to_le_bytes).concat());
        }
        assert_eq!((clock.samples, clock.sampled_ns), (2, 120));
        assert!(ClockSamples::of(&[other]).is_none());
        let mut user = spec(bits, &[1]);
        user.attr.set(abi::ATTR_FLAG_EXCLUDE_KERNEL, true);
        assert!(ClockSamples::of(&[user]).is_none());
    }

    /// Checks that processes whose accounts are coarse are remarked on when much is missing, never
    /// when more was seen: what they started is not in their accounts.
    #[test]
    fn processes_that_existed() {
        let accounts = KernelStats { user_ns: Some(SECOND), system_ns: Some(0), ..KernelStats::default() };
        let of = |seen_ns| CpuTime::of_processes(&accounts, 2, seen_ns).unwrap().difference("it counted");
        assert!(of(SECOND / 2).is_some());
        assert_eq!((of(SECOND - 60_000_000), of(3 * SECOND)), (None, None));
        assert_eq!(CpuTime::of_processes(&KernelStats::default(), 1, 0), None);
    }
}
