//! What the kernel accounts anyway, printed behind the events.

use kymo_perf::count::aggregate::CountPlace;
use kymo_perf::count::kernel_stats::{KernelStats, Pressure};

use super::line::{Line, Value};

const MIB: f64 = 1024.0 * 1024.0;

/// The lines of the table.
pub(super) fn table(accounts: &KernelStats) -> String {
    let mut out = String::new();
    let mut say = |number: String, unit: &str, words: String| {
        out += format!("{number:>18} {unit:4} {words}").trim_end();
        out.push('\n');
    };
    if let Some(peak) = accounts.peak_bytes {
        say(format!("{:.2}", peak as f64 / MIB), "MiB", "peak resident memory".into());
    }
    let mut pair = |numbers: (Option<u64>, Option<u64>), what: (&str, &str)| {
        if let (Some(first), Some(second)) = numbers {
            say(first.to_string(), "", format!("{}, {second} {}", what.0, what.1));
        }
    };
    pair((accounts.minor_faults, accounts.major_faults), ("minor faults", "major"));
    pair((accounts.voluntary_switches, accounts.involuntary_switches), ("voluntary switches", "involuntary"));
    if let (Some(read), Some(written)) = (accounts.read_bytes, accounts.written_bytes) {
        let mib = |bytes: u64| format!("{:.2}", bytes as f64 / MIB);
        say(mib(read), "MiB", format!("read from block devices, {} MiB written", mib(written)));
    }
    let waits = [
        (accounts.cpu_pressure, "for a CPU"),
        (accounts.io_pressure, "for I/O"),
        (accounts.memory_pressure, "for memory"),
    ];
    for (pressure, what) in waits {
        if let Some(Pressure { some_ns, full_ns }) = pressure {
            let msec = |ns: u64| format!("{:.2}", ns as f64 / 1e6);
            let words = format!("a task waited {what}, {} msec all did", msec(full_ns));
            say(msec(some_ns), "msec", words);
        }
    }
    out
}

/// The lines of CSV and JSON: counts like others, without a time on the hardware.
pub(super) fn lines(accounts: &KernelStats, time_ns: Option<u64>, noise: Option<f64>) -> Vec<Line> {
    let number = |value: Option<u64>| value.map(|value| value as f64);
    let msec = |pressure: Option<Pressure>, full: bool| {
        pressure.map(|p| if full { p.full_ns } else { p.some_ns } as f64 / 1e6)
    };
    let all = [
        ("peak-rss", "bytes", number(accounts.peak_bytes)),
        ("accounted-user-time", "msec", number(accounts.user_ns).map(|ns| ns / 1e6)),
        ("accounted-system-time", "msec", number(accounts.system_ns).map(|ns| ns / 1e6)),
        ("accounted-cpu-time", "msec", number(accounts.cpu_ns).map(|ns| ns / 1e6)),
        ("accounted-minor-faults", "", number(accounts.minor_faults)),
        ("accounted-major-faults", "", number(accounts.major_faults)),
        ("voluntary-switches", "", number(accounts.voluntary_switches)),
        ("involuntary-switches", "", number(accounts.involuntary_switches)),
        ("block-read", "bytes", number(accounts.read_bytes)),
        ("block-written", "bytes", number(accounts.written_bytes)),
        ("cpu-pressure-some", "msec", msec(accounts.cpu_pressure, false)),
        ("io-pressure-some", "msec", msec(accounts.io_pressure, false)),
        ("io-pressure-full", "msec", msec(accounts.io_pressure, true)),
        ("memory-pressure-some", "msec", msec(accounts.memory_pressure, false)),
        ("memory-pressure-full", "msec", msec(accounts.memory_pressure, true)),
    ];
    let line = |(event, unit, value): (&str, &str, Option<f64>)| {
        Some(Line {
            time_ns,
            place: CountPlace::All,
            comm: String::new(),
            cpus: 0,
            event: event.to_owned(),
            unit: unit.to_owned(),
            value: Value::Number(value?),
            fraction: unit == "msec",
            running_ns: 0.0,
            enabled_ns: 0.0,
            noise,
            metric: None,
            cgroup: None,
        })
    };
    all.into_iter().filter_map(line).collect()
}
