//! Statistics that the kernel keeps anyway: CPU time, memory, faults, switches, I/O and pressure of
//! a process or a cgroup.
use crate::proc;
use std::fs;
use std::path::Path;

/// A text of /proc or of a cgroup is at most this long.
const TEXT_BYTES: usize = 64 << 10;

fn text(path: &Path) -> Option<String> {
    proc::text(path).ok().filter(|text| text.len() <= TEXT_BYTES)
}

/// Voluntary and involuntary switches of the living threads in a `task` folder; a process's own
/// status has those of its first thread only. Each thread is read once, because programs with
/// thousands of them are waited for meanwhile.
fn switches_of_threads(folder: &Path) -> Option<(u64, u64)> {
    let threads = fs::read_dir(folder).ok()?.flatten();
    let each = threads.filter_map(|thread| {
        let status = text(&thread.path().join("status"))?;
        Some((value(&status, "voluntary_ctxt_switches")?, value(&status, "nonvoluntary_ctxt_switches")?))
    });
    Some(each.fold((0, 0), |(a, b), (c, d): (u64, u64)| (a.saturating_add(c), b.saturating_add(d))))
}

/// The number behind a key of a text such as `cpu.stat` or `/proc/PID/io`: `key value` or
/// `key: value unit`.
pub(super) fn value(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let rest = line.strip_prefix(key)?;
        rest.starts_with([' ', ':', '\t'])
            .then(|| rest.trim_start_matches(':').split_whitespace().next()?.parse().ok())?
    })
}

/// For how long some tasks, or all, had to wait, in ns since the cgroup or machine began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressure {
    /// At least one task waited.
    pub some_ns: u64,
    /// All tasks waited.
    pub full_ns: u64,
}

impl Pressure {
    fn parse(text: &str) -> Option<Pressure> {
        let total = |kind: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(kind))?;
            let total = line.split_whitespace().find_map(|word| word.strip_prefix("total="))?;
            Some(total.parse::<u64>().ok()?.saturating_mul(1000))
        };
        Some(Pressure { some_ns: total("some ")?, full_ns: total("full ").unwrap_or(0) })
    }

    fn since(self, earlier: Pressure) -> Pressure {
        Pressure {
            some_ns: self.some_ns.saturating_sub(earlier.some_ns),
            full_ns: self.full_ns.saturating_sub(earlier.full_ns),
        }
    }
}

/// Accounts, as far as they are kept here: of a cgroup, of processes, or of the machine. Sums since
/// the beginning, except for sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelStats {
    /// CPU time in user mode.
    pub user_ns: Option<u64>,
    /// CPU time in the kernel.
    pub system_ns: Option<u64>,
    /// CPU time as the scheduler measures it, finer than the two above.
    pub cpu_ns: Option<u64>,
    /// The most memory resident so far.
    pub peak_bytes: Option<u64>,
    /// Page faults without I/O.
    pub minor_faults: Option<u64>,
    /// Page faults with I/O.
    pub major_faults: Option<u64>,
    /// Switches of tasks that waited.
    pub voluntary_switches: Option<u64>,
    /// Switches of tasks that could have gone on.
    pub involuntary_switches: Option<u64>,
    /// Read from block devices.
    pub read_bytes: Option<u64>,
    /// Written to block devices, or on its way there.
    pub written_bytes: Option<u64>,
    /// Waiting for a CPU.
    pub cpu_pressure: Option<Pressure>,
    /// Waiting for I/O.
    pub io_pressure: Option<Pressure>,
    /// Waiting for memory.
    pub memory_pressure: Option<Pressure>,
}

impl KernelStats {
    /// The accounts of a cgroup of the unified hierarchy, with all that is below it and all that
    /// has ended in it.
    pub fn of_cgroup(directory: &Path) -> KernelStats {
        let read = |name: &str| text(&directory.join(name));
        let us = |text: &Option<String>, key| value(text.as_deref()?, key).map(|us| us.saturating_mul(1000));
        let cpu = read("cpu.stat");
        let memory = read("memory.stat");
        let memory_value = |key| value(memory.as_deref()?, key);
        let faults = (memory_value("pgfault"), memory_value("pgmajfault"));
        let io = read("io.stat");
        let io_sum = |key: &str| {
            let text = io.as_deref()?;
            let numbers = text
                .split_whitespace()
                .filter_map(|word| word.strip_prefix(key)?.strip_prefix('=')?.parse::<u64>().ok());
            Some(numbers.fold(0, u64::saturating_add))
        };
        let pressure = |name: &str| Pressure::parse(&read(name)?);
        KernelStats {
            user_ns: us(&cpu, "user_usec"),
            system_ns: us(&cpu, "system_usec"),
            cpu_ns: us(&cpu, "usage_usec"),
            peak_bytes: read("memory.peak").and_then(|text| text.trim().parse().ok()),
            minor_faults: faults.0.zip(faults.1).map(|(all, major)| all.saturating_sub(major)),
            major_faults: faults.1,
            read_bytes: io_sum("rbytes"),
            written_bytes: io_sum("wbytes"),
            cpu_pressure: pressure("cpu.pressure"),
            io_pressure: pressure("io.pressure"),
            memory_pressure: pressure("memory.pressure"),
            ..KernelStats::default()
        }
    }

    /// The accounts of a process, with threads that have ended; what is not readable is left out.
    pub fn of_process(proc: &Path, pid: i32) -> KernelStats {
        let folder = proc.join(pid.to_string());
        let (status, io) = (text(&folder.join("status")), text(&folder.join("io")));
        let io_value = |key| value(io.as_deref()?, key);
        let stat = text(&folder.join("stat"));
        // The name may hold anything: what counts comes after the last parenthesis, from the third
        // field on.
        let stat: Option<Vec<u64>> = stat.and_then(|stat| {
            let (_, rest) = stat.rsplit_once(')')?;
            Some(rest.split_whitespace().skip(1).map(|field| field.parse().unwrap_or(0)).collect())
        });
        let field = |number: usize| stat.as_ref()?.get(number - 4).copied();
        // Clock ticks of 10 ms: USER_HZ is 100 on every architecture that we run on.
        let ticks = |number| field(number).map(|ticks: u64| ticks.saturating_mul(10_000_000));
        let switches = switches_of_threads(&folder.join("task"));
        KernelStats {
            user_ns: ticks(14),
            system_ns: ticks(15),
            peak_bytes: status
                .as_deref()
                .and_then(|text| value(text, "VmHWM"))
                .map(|kib| kib.saturating_mul(1024)),
            minor_faults: field(10),
            major_faults: field(12),
            voluntary_switches: switches.map(|(voluntary, _)| voluntary),
            involuntary_switches: switches.map(|(_, involuntary)| involuntary),
            read_bytes: io_value("read_bytes"),
            written_bytes: io_value("write_bytes"),
            ..KernelStats::default()
        }
    }

    /// The machine's pressure, for counting on CPUs.
    pub fn of_machine(proc: &Path) -> KernelStats {
        let pressure = |name: &str| Pressure::parse(&text(&proc.join("pressure").join(name))?);
        KernelStats {
            cpu_pressure: pressure("cpu"),
            io_pressure: pressure("io"),
            memory_pressure: pressure("memory"),
            ..KernelStats::default()
        }
    }

    /// What came to it since an earlier reading; sizes stay as they are.
    pub fn since(&self, earlier: &KernelStats) -> KernelStats {
        let less = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then.unwrap_or(0)));
        let pressure =
            |now: Option<Pressure>, then: Option<Pressure>| Some(now?.since(then.unwrap_or_default()));
        KernelStats { peak_bytes: self.peak_bytes, ..self.with(earlier, less, pressure) }
    }

    /// Sums over processes; of peaks, which need not be of one moment, the sum is the most that it
    /// can have been.
    pub fn plus(&self, other: &KernelStats) -> KernelStats {
        let sum = |a: Option<u64>, b: Option<u64>| match (a, b) {
            (Some(a), Some(b)) => Some(a.saturating_add(b)),
            (a, b) => a.or(b),
        };
        self.with(other, sum, Option::or)
    }

    /// Each account together with the same of another.
    fn with(
        &self,
        other: &KernelStats,
        both: impl Fn(Option<u64>, Option<u64>) -> Option<u64>,
        pressure: impl Fn(Option<Pressure>, Option<Pressure>) -> Option<Pressure>,
    ) -> KernelStats {
        KernelStats {
            user_ns: both(self.user_ns, other.user_ns),
            system_ns: both(self.system_ns, other.system_ns),
            cpu_ns: both(self.cpu_ns, other.cpu_ns),
            peak_bytes: both(self.peak_bytes, other.peak_bytes),
            minor_faults: both(self.minor_faults, other.minor_faults),
            major_faults: both(self.major_faults, other.major_faults),
            voluntary_switches: both(self.voluntary_switches, other.voluntary_switches),
            involuntary_switches: both(self.involuntary_switches, other.involuntary_switches),
            read_bytes: both(self.read_bytes, other.read_bytes),
            written_bytes: both(self.written_bytes, other.written_bytes),
            cpu_pressure: pressure(self.cpu_pressure, other.cpu_pressure),
            io_pressure: pressure(self.io_pressure, other.io_pressure),
            memory_pressure: pressure(self.memory_pressure, other.memory_pressure),
        }
    }
}
