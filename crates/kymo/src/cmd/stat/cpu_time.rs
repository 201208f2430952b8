//! The counted CPU time, held against what the kernel accounts.

use kymo_perf::count::aggregate::CountRow;
use kymo_perf::count::kernel_stats::KernelStats;
use kymo_perf::workload::Usage;
use kymo_record::{Account, CpuTime};

use super::counting::Counting;
use super::events::Event;

impl Counting<'_> {
    /// What to say where task-clock or cpu-clock counted another time than the kernel accounts to
    /// the command, or to the processes. `ended`: the command did, by itself.
    pub(super) fn unseen(
        &self,
        rows: &[Option<Vec<CountRow>>],
        usage: Option<&Usage>,
        accounts: &KernelStats,
        ended: bool,
    ) -> Option<String> {
        let args = self.args;
        if args.delay.unwrap_or(0) != 0 || args.control.is_some() || args.no_inherit || args.per_thread {
            return None;
        }
        let at = self.events.iter().position(is_whole_clock)?;
        let counted_ns = rows.get(at)?.as_ref()?.iter().map(|row| row.count.value).sum();
        let account = match usage {
            Some(usage) => Some(usage).filter(|_| ended).map(Account::of_command),
            None if args.pids.is_empty() || !args.tids.is_empty() => None,
            None => Account::of_processes(accounts, args.pids.len()),
        }?;
        let time = CpuTime::counted(account, counted_ns);
        time.difference(&format!("{} counted", self.names.borrow()[at]))
    }
}

/// Whether an event counts all CPU time of what is observed.
fn is_whole_clock(event: &Event) -> bool {
    let attr = &event.selected.attr;
    event.is_clock() && !attr.exclude_user && !attr.exclude_kernel && event.cgroup.is_none()
}
