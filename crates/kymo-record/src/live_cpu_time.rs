//! CPU time of a live recording: what its samples stand for, against what the kernel accounts.
//!
//! The rings keep the newest samples only, so both are added up from snapshot to snapshot. A part
//! of the time ends where a snapshot was taken, and is counted in the next one: rings are read one
//! after the other, so that a snapshot lacks the last samples of some.
use crate::cpu_accounts::Account;
use crate::cpu_time::CpuTime;
use crate::series::LiveSnapshot;
use std::ops::RangeInclusive;

/// Adds up both accounts of a live recording.
#[derive(Debug, Default)]
pub struct LiveCpuTime {
    /// When the last two snapshots were taken, the newest first, and what was accounted until then.
    last: [Option<(u64, Account)>; 2],
    /// When the part that was counted last ended.
    counted_until_ns: u64,
    /// Stretches of time without a gap between them.
    stretches: u64,
    used_ns: u64,
    samples: u64,
    sampled_ns: u64,
}

impl LiveCpuTime {
    /// Takes in a snapshot. `sampled`: how many samples of a clock it has in a span, and for how
    /// much they stand, ns; `None`: it does not have all of them.
    pub fn add(
        &mut self,
        snapshot: (u64, Option<Account>),
        sampled: impl FnOnce(RangeInclusive<u64>) -> Option<(u64, u64)>,
    ) {
        if let [Some((to_ns, after)), Some((from_ns, before))] = self.last
            && let Some(used_ns) = after.used_ns.checked_sub(before.used_ns)
            && let Some((samples, sampled_ns)) = sampled(from_ns + 1..=to_ns)
        {
            self.stretches += u64::from(self.counted_until_ns != from_ns);
            self.counted_until_ns = to_ns;
            self.used_ns += used_ns;
            self.samples += samples;
            self.sampled_ns = self.sampled_ns.saturating_add(sampled_ns);
        }
        let (taken_ns, accounted) = snapshot;
        self.last = [accounted.map(|account| (taken_ns, account)), self.last[0]];
    }

    /// Both accounts; `None` if nothing could be compared.
    pub fn cpu_time(&self) -> Option<CpuTime> {
        let (_, account) = self.last.iter().flatten().next().filter(|_| self.stretches > 0)?;
        let error_ns = account.error_ns.saturating_mul(self.stretches);
        let account = Account { used_ns: self.used_ns, error_ns, ..*account };
        // Without a sample any period leaves nothing to explain what is missing.
        let period_ns = self.sampled_ns / self.samples.max(1);
        Some(CpuTime::sampled(account, self.sampled_ns, self.samples, period_ns))
    }
}

impl LiveSnapshot {
    /// When it was taken, and what was accounted until then.
    pub fn accounted_until(&self) -> (u64, Option<Account>) {
        (self.taken_ns, self.accounted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu_accounts::Accounted;

    const SECOND: u64 = 1_000_000_000;

    /// Both accounts of snapshots a second apart, of so many samples of a millisecond each.
    fn compared(samples: &[Option<u64>], used_ns: u64) -> Option<CpuTime> {
        let mut time = LiveCpuTime::default();
        for (number, samples) in (1..).zip(samples) {
            let account = Account {
                whose: Accounted::Cpus,
                used_ns: number * used_ns,
                error_ns: 30_000_000,
                runs: None,
            };
            time.add((number * SECOND, Some(account)), |span| {
                assert_eq!(span, (number - 2) * SECOND + 1..=(number - 1) * SECOND);
                samples.map(|samples| (samples, samples * 1_000_000))
            });
        }
        time.cpu_time()
    }

    /// Checks that the time between the first snapshot and the last but one is compared, that parts
    /// whose samples are not all there are left out on both sides, and that a CPU that is not
    /// observed is missed.
    #[test]
    fn parts_of_the_time() {
        assert_eq!(compared(&[Some(1000), Some(1000)], SECOND), None);
        let whole = compared(&[None, None, Some(1000), Some(990), Some(1010)], SECOND).unwrap();
        assert_eq!((whole.used_ns, whole.seen_ns), (3 * SECOND, 3 * SECOND));
        assert_eq!(whole.difference("x"), None);
        let parts = compared(&[None, None, Some(1000), None, Some(1000)], SECOND).unwrap();
        assert_eq!((parts.used_ns, parts.seen_ns), (2 * SECOND, 2 * SECOND));
        let together = compared(&[None, None, Some(1000), Some(1000)], SECOND).unwrap();
        assert_eq!(parts.error_ns - together.error_ns, 30_000_000);
        let half = compared(&[None, None, Some(1000), Some(1000)], 2 * SECOND).unwrap();
        let words = half.difference("the samples stand for").unwrap();
        assert!(words.contains("2.00 s of CPU time") && words.contains("50 % is missing"), "{words}");
    }
}
