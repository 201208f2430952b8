//! Events that kymo measures itself: `duration_time`, `user_time` and `system_time`.

use kymo_perf::count::Count;
use kymo_perf::count::aggregate::CountRow;
use kymo_perf::count::kernel_stats::KernelStats;
use kymo_perf::workload::Usage;

use super::events::Event;

/// What they are in a run, or in an interval.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    /// How long it was.
    pub(super) elapsed_ns: u64,
    /// CPU time in user mode, where it is known.
    pub(super) user_ns: Option<u64>,
    /// CPU time in the kernel.
    pub(super) system_ns: Option<u64>,
}

impl Times {
    /// Those of a run: of the command, or of what the kernel accounts for.
    pub(super) fn new(elapsed_ns: u64, usage: Option<&Usage>, accounts: &KernelStats) -> Times {
        Times {
            elapsed_ns,
            user_ns: usage.map(|usage| usage.user_ns).or(accounts.user_ns),
            system_ns: usage.map(|usage| usage.system_ns).or(accounts.system_ns),
        }
    }

    /// Puts them in the place of the counts of such events: at the first place, as perf does.
    pub(super) fn fill(&self, events: &[Event], rows: &mut [Option<Vec<CountRow>>]) {
        for (event, rows) in events.iter().zip(rows) {
            let value = match event.selected.tool {
                Some("duration_time") => Some(self.elapsed_ns),
                Some("user_time") => self.user_ns,
                Some("system_time") => self.system_ns,
                _ => continue,
            };
            let Some(first) = rows.as_mut().and_then(|rows| rows.first_mut()) else { continue };
            let value = value.unwrap_or(0);
            // As perf: a time is its own time on the hardware, so that none is not counted.
            first.count = Count { value, enabled_ns: value, running_ns: value };
        }
    }
}
