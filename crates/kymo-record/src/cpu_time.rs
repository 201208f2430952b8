//! CPU time that the kernel accounts to the observed programs, against what was sampled or counted.
//!
//! A recording that misses a CPU, or whose samples come too seldom, looks complete by itself: no
//! record says that something is missing. But the kernel accounts the CPU time of every process, by
//! `wait4(2)` for a command and in /proc for others (`cpu_accounts.rs`). Samples of a clock stand
//! for a period of CPU time each, so both sums must be the same.
use crate::cpu_accounts::{Account, Accounted};
use crate::options::Delay;
use crate::plan::RecordingPlan;
use crate::targets::TargetKind;
use kymo_data::{EventSpec, abi};

/// The part of CPU time by which both may differ, beside their errors.
const TOLERANCE: u64 = 50;

/// CPU time of what was observed, by two accounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuTime {
    /// What the kernel accounts to it, ns.
    pub used_ns: u64,
    /// For how much samples stand, or what was counted, ns.
    pub seen_ns: u64,
    /// By how much they may differ because accounts are rounded, and samples are few, ns.
    pub error_ns: u64,
    /// Whose time it is.
    pub whose: Accounted,
}

impl CpuTime {
    /// Counted without sampling.
    pub fn counted(account: Account, seen_ns: u64) -> CpuTime {
        let Account { whose, used_ns, error_ns, .. } = account;
        CpuTime { used_ns, seen_ns, error_ns, whose }
    }

    /// Of so many samples of a period.
    pub(crate) fn sampled(account: Account, seen_ns: u64, samples: u64, period_ns: u64) -> CpuTime {
        let counted = CpuTime::counted(account, seen_ns);
        let ideal = samples.max(account.used_ns / period_ns.max(1)).saturating_add(1);
        // A stretch of running gets the samples that fit into it, or one more: a variance of a
        // quarter at most. Of many short ones each has one at most. A process that ends is one more
        // stretch than its switches tell, for which its parent mostly has waited.
        let variance = account.runs.map_or(ideal, |runs| ideal.min(runs / 2 + 1));
        let deviations = 3.0 * (variance as f64).sqrt();
        CpuTime { error_ns: counted.error_ns + (deviations * period_ns as f64) as u64, ..counted }
    }

    /// What to say where both differ by more than the error and its tolerance. `what`: that which
    /// was seen, as the subject of a sentence.
    pub fn difference(&self, what: &str) -> Option<String> {
        let error_ns = self.error_ns.saturating_add(self.used_ns / TOLERANCE);
        if self.seen_ns.abs_diff(self.used_ns) <= error_ns {
            return None;
        }
        let seconds = |ns: u64| ns as f64 / 1e9;
        let (used, seen, error) = (seconds(self.used_ns), seconds(self.seen_ns), seconds(self.error_ns));
        let both = format!(
            "{what} {seen:.2} s of CPU time (± {error:.2} s), but the kernel accounts {used:.2} s to"
        );
        if self.seen_ns < self.used_ns {
            let missing = (self.used_ns - self.seen_ns) as f64 * 100.0 / self.used_ns as f64;
            return Some(format!(
                "{both} what was observed: {missing:.0} % is missing. `kymo doctor` shows which CPUs are observed"
            ));
        }
        let rest = match self.whose {
            // What they started meanwhile is in the samples alone.
            Accounted::Processes => return None,
            Accounted::Command => {
                "the command and the children that it waited for: the rest is of processes for which it did not wait, or \
                 of interrupts and the host"
            }
            Accounted::Threads => "the threads: the rest is of interrupts and the host",
            Accounted::Cpus => "all tasks in /proc/stat: a container may be shown its own part of that",
            Accounted::Cgroup => "the cgroup: the rest is of interrupts and the host",
        };
        Some(format!("{both} {rest}"))
    }
}

/// Whether samples of a clock must stand for all CPU time that the kernel accounts: all of what is
/// observed is sampled, with all that it starts, for as long as it is observed.
pub(crate) fn is_comparable(plan: &RecordingPlan) -> bool {
    is_comparable_in_parts(plan) && !plan.keeps_newest()
}

/// The same of the time between two snapshots, whose samples may be overwritten later.
pub(crate) fn is_comparable_in_parts(plan: &RecordingPlan) -> bool {
    let (options, observed) = (&plan.options, &plan.observed);
    let tids = &options.targets.tids;
    let whole = match observed.kind {
        TargetKind::Command => plan.observe_command && plan.follow,
        // Single threads have accounts of their own, and what they start has others.
        TargetKind::Tasks if observed.processes.is_empty() => !tids.is_empty() && !plan.follow,
        TargetKind::Tasks => tids.is_empty() && plan.follow,
        TargetKind::Cpus => true,
    };
    whole && options.delay != Some(Delay::Disabled) && !options.no_samples
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
    /// Where a sample has its process: those of the idle task are no CPU time of anybody.
    pid_at: Option<usize>,
    samples: u64,
    sampled_ns: u64,
}

impl ClockSamples {
    /// Of the first event that samples CPU time of tasks, in user mode and in the kernel.
    pub(crate) fn of(specs: &[EventSpec]) -> Option<ClockSamples> {
        let spec = specs.iter().find(|spec| spec.attr.samples_cpu_time())?;
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
        let before_pid = before[..2].iter().filter(|&&bit| sample_type & bit != 0).count();
        let words = before.iter().filter(|&&bit| sample_type & bit != 0).count();
        let period_ns = spec.attr.freq().map_or(spec.attr.sample_period, |hz| 1_000_000_000 / hz.max(1));
        Some(ClockSamples {
            ids: if has_id { spec.ids.clone() } else { Vec::new() },
            period_at: (sample_type & abi::PERF_SAMPLE_PERIOD != 0).then_some(8 + 8 * words),
            period_ns,
            pid_at: (sample_type & abi::PERF_SAMPLE_TID != 0).then_some(8 + 8 * before_pid),
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
        if self.pid_at.and_then(word) == Some(0) {
            return;
        }
        let period_ns = self.period_at.and_then(word).unwrap_or(self.period_ns);
        self.samples += 1;
        self.sampled_ns = self.sampled_ns.saturating_add(period_ns);
    }

    /// Held against what the kernel accounts. `lost`: samples that are known to be missing.
    pub(crate) fn against(&self, account: Account, lost: u64) -> CpuTime {
        let lost_ns = lost.saturating_mul(self.period_ns);
        let lost_ns = match account.whose {
            // Samples of idle CPUs, and records that are none, are lost, too: they explain what is
            // missing, and are no proof of more.
            Accounted::Cpus | Accounted::Cgroup => {
                lost_ns.min(account.used_ns.saturating_sub(self.sampled_ns))
            }
            _ => lost_ns,
        };
        let seen_ns = self.sampled_ns.saturating_add(lost_ns);
        CpuTime::sampled(account, seen_ns, self.samples, self.period_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kymo_data::Attr;
    use kymo_perf::count::kernel_stats::KernelStats;
    use kymo_perf::workload::Usage;

    const SECOND: u64 = 1_000_000_000;

    fn usage(ns: u64) -> Usage {
        Usage { user_ns: ns / 4 * 3, system_ns: ns / 4, ..Usage::default() }
    }

    fn spec(sample_type: u64, ids: &[u64]) -> EventSpec {
        let mut attr =
            Attr { kind: abi::PERF_TYPE_SOFTWARE, config: abi::PERF_COUNT_SW_CPU_CLOCK, ..Attr::default() };
        (attr.sample_period, attr.sample_type) = (1000, sample_type);
        attr.set(abi::ATTR_FLAG_FREQ, true);
        EventSpec { attr, ids: ids.to_vec(), name: "cpu-clock".into() }
    }

    fn of_command(used_ns: u64, switches: u64) -> Account {
        let usage = Usage { voluntary_switches: switches, ..usage(used_ns) };
        Account::of_command(&usage)
    }

    /// Checks that a second of which every sample came is not remarked on, and that one of which
    /// half is missing is, with both numbers and their interval.
    #[test]
    fn missing_cpu_time_is_said() {
        let of = |samples: u64, used_ns: u64, lost: u64| {
            let mut clock = ClockSamples::of(&[spec(abi::PERF_SAMPLE_TID, &[])]).unwrap();
            (0..samples).for_each(|_| clock.sample(&[1; 16]));
            clock.against(of_command(used_ns, 30), lost).difference("the samples stand for")
        };
        assert_eq!(of(1000, SECOND, 0), None);
        assert_eq!(of(980, SECOND, 0), None);
        assert_eq!(of(500, SECOND, 500), None);
        let half = of(500, SECOND, 0).unwrap();
        assert!(half.contains("stand for 0.50 s of CPU time (± 0.02 s)"), "{half}");
        assert!(half.contains("accounts 1.00 s") && half.contains("50 % is missing"), "{half}");
        assert!(of(950, SECOND, 0).unwrap().contains("5 % is missing"));
        assert!(of(1050, SECOND, 0).unwrap().contains("did not wait"));
        assert_eq!(of(0, 10_000_000, 0), None);
        assert!(of(0, SECOND / 2, 0).unwrap().contains("100 % is missing"));
    }

    /// Checks that samples lost on CPUs, which may be of idle time, are not taken for more CPU time
    /// than there was.
    #[test]
    fn lost_samples_of_cpus() {
        let clock = ClockSamples::of(&[spec(abi::PERF_SAMPLE_TID, &[])]).unwrap();
        let of = |whose, lost| clock.against(Account { whose, ..of_command(SECOND, 30) }, lost);
        assert_eq!(of(Accounted::Cpus, 300).seen_ns, 300_000_000);
        assert_eq!(of(Accounted::Cpus, 5000).difference("x"), None);
        assert!(of(Accounted::Command, 5000).difference("x").is_some());
    }

    /// Checks that the interval is that of the stretches of running where they are few, and of the
    /// samples where they are many or unknown, and that a difference of 2 % needs a large one.
    #[test]
    fn intervals_of_sampling() {
        let error = |runs| {
            let account = Account { runs, error_ns: 0, ..of_command(SECOND, 0) };
            CpuTime::sampled(account, SECOND, 1000, 1_000_000).error_ns
        };
        assert_eq!(error(Some(0)), 3_000_000);
        assert_eq!(error(Some(400)), (3e6 * 201_f64.sqrt()) as u64);
        assert_eq!(error(Some(1 << 40)), error(None));
        assert_eq!(error(None), (3e6 * 1001_f64.sqrt()) as u64);
    }

    /// Checks that samples of the idle task are not CPU time of anybody.
    #[test]
    fn idle_time() {
        let mut clock = ClockSamples::of(&[spec(abi::PERF_SAMPLE_IP | abi::PERF_SAMPLE_TID, &[])]).unwrap();
        for pid in [0_u64, 7, 0, 0] {
            clock.sample(&[0, 0xffff, pid | pid << 32].map(u64::to_le_bytes).concat());
        }
        assert_eq!(clock.samples, 1);
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
    /// when more was seen: what they started is not in their accounts. For all others more is as
    /// wrong as less.
    #[test]
    fn both_directions() {
        let accounts = KernelStats { user_ns: Some(SECOND), system_ns: Some(0), ..KernelStats::default() };
        let account = Account::of_processes(&accounts, 2).unwrap();
        let of =
            |whose, seen_ns| CpuTime::counted(Account { whose, ..account }, seen_ns).difference("it counted");
        assert!(of(Accounted::Processes, SECOND / 2).is_some());
        assert_eq!(of(Accounted::Processes, SECOND - 60_000_000), None);
        assert_eq!(of(Accounted::Processes, 3 * SECOND), None);
        for whose in [Accounted::Command, Accounted::Threads, Accounted::Cpus, Accounted::Cgroup] {
            for (difference, is_said) in [(60_000_000, false), (80_000_000, true)] {
                assert_eq!(of(whose, SECOND - difference).is_some(), is_said, "{whose:?}");
                assert_eq!(of(whose, SECOND + difference).is_some(), is_said, "{whose:?}");
            }
        }
        assert_eq!(Account::of_processes(&KernelStats::default(), 1), None);
    }
}
