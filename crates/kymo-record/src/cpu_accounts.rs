//! The CPU time that the kernel accounts to what is observed, from when its events are on.
use crate::plan::RecordingPlan;
use crate::targets::TargetKind;
use kymo_perf::count::kernel_stats::KernelStats;
use kymo_perf::proc;
use kymo_perf::workload::Usage;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// The kernel accounts to what existed before in clock ticks of 10 ms.
const TICK_NS: u64 = 10_000_000;
/// What a command uses before its exec and after its last sample, at most, and what the accounts of
/// its children are rounded by.
const EDGES_NS: u64 = 10_000_000;

/// Who has the CPU time of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accounted {
    /// A command and the children that it waited for.
    Command,
    /// Processes; what they started meanwhile has accounts of its own.
    Processes,
    /// Single threads.
    Threads,
    /// All tasks of CPUs.
    Cpus,
    /// All tasks of a cgroup.
    Cgroup,
}

/// CPU time by the kernel's account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// Whose.
    pub(crate) whose: Accounted,
    /// How much, ns.
    pub(crate) used_ns: u64,
    /// By how much that is rounded, ns.
    pub(crate) error_ns: u64,
    /// How often those who used it began to run, if that is known.
    pub(crate) runs: Option<u64>,
}

impl Account {
    /// Of a command that was observed from its exec to its end.
    pub fn of_command(usage: &Usage) -> Account {
        Account {
            whose: Accounted::Command,
            used_ns: usage.user_ns.saturating_add(usage.system_ns),
            error_ns: EDGES_NS,
            runs: Some(usage.voluntary_switches.saturating_add(usage.involuntary_switches)),
        }
    }

    /// Of this many processes, between two readings of their accounts.
    pub fn of_processes(accounts: &KernelStats, processes: usize) -> Option<Account> {
        let used_ns = accounts.user_ns?.saturating_add(accounts.system_ns?);
        let error_ns = EDGES_NS + 2 * TICK_NS * processes as u64;
        Some(Account { whose: Accounted::Processes, used_ns, error_ns, runs: None })
    }
}

/// Reads the accounts of what is observed when its events are on, and at the end.
pub(crate) struct CpuAccounts {
    source: Source,
    before_ns: Option<u64>,
}

enum Source {
    Processes(Vec<i32>),
    Threads(Vec<i32>),
    Cpus(Vec<u32>),
    Cgroup(PathBuf),
    /// A command that ran before its events were on: its process.
    Command(i32),
}

impl CpuAccounts {
    /// To be called when the events are on. `command`: its process, if it has begun.
    pub(crate) fn begin(plan: &RecordingPlan, command: Option<i32>) -> Option<CpuAccounts> {
        let observed = &plan.observed;
        let source = match (observed.kind, &observed.cgroup) {
            (TargetKind::Command, _) => Source::Command(command?),
            (TargetKind::Tasks, _) if observed.processes.is_empty() => {
                Source::Threads(observed.tasks.clone())
            }
            (TargetKind::Tasks, _) => Source::Processes(observed.processes.clone()),
            (TargetKind::Cpus, None) => Source::Cpus(observed.cpus.clone()),
            (TargetKind::Cpus, Some(cgroup)) => {
                Source::Cgroup(format!("/proc/self/fd/{}", cgroup.as_raw_fd()).into())
            }
        };
        let before_ns = source.used_ns();
        Some(CpuAccounts { source, before_ns })
    }

    /// What was added since; to be called before the events are off. That of a command is known
    /// when it has ended.
    pub(crate) fn end(&self) -> Option<Account> {
        if matches!(self.source, Source::Command(_)) { None } else { self.so_far() }
    }

    /// What was added until now.
    pub(crate) fn so_far(&self) -> Option<Account> {
        let used_ns = self.source.used_ns()?.checked_sub(self.before_ns?)?;
        let (whose, rounded) = match &self.source {
            Source::Processes(pids) => (Accounted::Processes, pids.len()),
            Source::Threads(tids) => (Accounted::Threads, tids.len()),
            Source::Cpus(cpus) => (Accounted::Cpus, cpus.len()),
            Source::Cgroup(_) => (Accounted::Cgroup, 0),
            Source::Command(pid) => (Accounted::Command, 1 + proc::descendants(&[*pid]).len()),
        };
        let ticks = match whose {
            // Each tick is accounted to whoever runs then: an account by samples, too.
            Accounted::Cpus => 3 * (1 + used_ns / TICK_NS).isqrt(),
            _ => 0,
        };
        let error_ns = EDGES_NS + TICK_NS * (2 * rounded as u64 + ticks);
        Some(Account { whose, used_ns, error_ns, runs: None })
    }

    /// The account of a command without what it had used when its events came on.
    pub(crate) fn rest_of(&self, account: Account) -> Option<Account> {
        let before_ns = self.before_ns?;
        let error_ns = account.error_ns + 2 * TICK_NS;
        Some(Account { used_ns: account.used_ns.checked_sub(before_ns)?, error_ns, ..account })
    }
}

impl Source {
    /// Used since they began, ns; `None` if that of one of them cannot be read.
    fn used_ns(&self) -> Option<u64> {
        let sum = |each: &mut dyn Iterator<Item = Option<u64>>| each.sum::<Option<u64>>();
        match self {
            // What has ended is left out, at both times.
            Source::Processes(pids) => {
                let each = pids.iter().map(|&pid| KernelStats::of_process(Path::new("/proc"), pid));
                let all = each.fold(KernelStats::default(), |sum, one| sum.plus(&one));
                all.user_ns?.checked_add(all.system_ns?)
            }
            Source::Threads(tids) => sum(&mut tids.iter().map(|&tid| of_thread(tid))),
            Source::Cpus(cpus) => {
                let text = proc::text("/proc/stat").ok()?;
                sum(&mut cpus.iter().map(|cpu| of_cpu(&text, *cpu)))
            }
            Source::Cgroup(folder) => KernelStats::of_cgroup(folder).cpu_ns,
            Source::Command(pid) => {
                let all = proc::descendants(&[*pid]).into_iter().chain([*pid]);
                Some(all.filter_map(with_waited_for).sum())
            }
        }
    }
}

/// Of a thread, by the scheduler; that of one that runs is brought up to date at each tick.
fn of_thread(tid: i32) -> Option<u64> {
    proc::text(format!("/proc/{tid}/task/{tid}/schedstat")).ok()?.split_whitespace().next()?.parse().ok()
}

/// Of a CPU without its idle time, in a text of /proc/stat. A container may be shown a text in
/// which CPUs are missing.
fn of_cpu(text: &str, cpu: u32) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("cpu{cpu} ")))?;
    let fields: Vec<u64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq; the time of guests is in that of users.
    let busy = [0, 1, 2, 5, 6].iter().map(|&at| fields.get(at).copied()).sum::<Option<u64>>()?;
    busy.checked_mul(TICK_NS)
}

/// Of a process with the children that it waited for.
fn with_waited_for(pid: i32) -> Option<u64> {
    let stat = proc::text(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold anything. Behind it come the third field and the others.
    let (_, rest) = stat.rsplit_once(')')?;
    let ticks = rest.split_whitespace().skip(14 - 3).take(4).map(|field| field.parse::<u64>().ok());
    ticks.sum::<Option<u64>>()?.checked_mul(TICK_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that idle time is none, that the time of guests counts once, and that a CPU which the
    /// text does not have is not taken for an idle one.
    #[test]
    fn cpus_of_proc_stat() {
        let text = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 3 1000 1000 4 5 99 1 1\ncpu10 7 0 0 0 0 0 0 0 0 0\n";
        assert_eq!(of_cpu(text, 0), Some(15 * TICK_NS));
        assert_eq!(of_cpu(text, 10), Some(7 * TICK_NS));
        assert_eq!(of_cpu(text, 1), None);
        assert_eq!(Source::Cpus(vec![0, 99_999]).used_ns(), None);
    }

    /// Checks that the accounts of this process, its thread and the machine grow while it computes,
    /// and that those of a thread which does not exist are none.
    #[test]
    fn accounts_grow() {
        let pid = std::process::id() as i32;
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        let sources = [Source::Processes(vec![pid]), Source::Command(pid), Source::Threads(vec![tid])];
        let before = sources.each_ref().map(|source| source.used_ns().unwrap());
        let until = before[2] + 60_000_000;
        while of_thread(tid).unwrap() < until {
            std::hint::black_box((0..100_000_u64).sum::<u64>());
        }
        for (source, before) in sources.iter().zip(before) {
            let grown = source.used_ns().unwrap() - before;
            assert!(grown >= 40_000_000, "{grown}");
        }
        assert_eq!(Source::Threads(vec![tid, i32::MAX]).used_ns(), None);
    }
}
