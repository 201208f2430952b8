//! What a recording tells about where and how it was made, as `perf report --header` prints it.
use super::attr::settings;
use crate::text::shown;
use kymo_data::{ClockData, Features, Recording, abi};
use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

/// Names of the features by bit, as perf has them; bits beyond are of newer perfs.
const FEATURES: [&str; 35] = [
    "",
    "TRACING_DATA",
    "BUILD_ID",
    "HOSTNAME",
    "OSRELEASE",
    "VERSION",
    "ARCH",
    "NRCPUS",
    "CPUDESC",
    "CPUID",
    "TOTAL_MEM",
    "CMDLINE",
    "EVENT_DESC",
    "CPU_TOPOLOGY",
    "NUMA_TOPOLOGY",
    "BRANCH_STACK",
    "PMU_MAPPINGS",
    "GROUP_DESC",
    "AUXTRACE",
    "STAT",
    "CACHE",
    "SAMPLE_TIME",
    "MEM_TOPOLOGY",
    "CLOCKID",
    "DIR_FORMAT",
    "BPF_PROG_INFO",
    "BPF_BTF",
    "COMPRESSED",
    "CPU_PMU_CAPS",
    "CLOCK_DATA",
    "HYBRID_TOPOLOGY",
    "PMU_CAPS",
    "CPU_DOMAIN_INFO",
    "E_MACHINE",
    "CLN_SIZE",
];

/// Writes the facts without the lines that frame them; `full` adds the machine's CPUs, nodes and
/// caches.
///
/// # Errors
/// Those of the writer.
pub fn write_header(
    out: &mut dyn Write,
    recording: &Recording,
    captured: Option<SystemTime>,
    full: bool,
) -> io::Result<()> {
    if let Some(captured) = captured {
        writeln!(out, "# captured on    : {}", date(captured))?;
    }
    writeln!(out, "# header version : 1")?;
    let data = if recording.is_pipe { 0..0 } else { recording.data_range() };
    writeln!(out, "# data offset    : {}", data.start)?;
    writeln!(out, "# data size      : {}", data.end - data.start)?;
    writeln!(out, "# feat offset    : {}", data.end)?;
    machine(out, &recording.features)?;
    for event in &recording.events.list {
        write!(out, "# event : name = {}, , ", shown(&event.name))?;
        if !event.ids.is_empty() {
            let ids: Vec<String> = event.ids.iter().map(u64::to_string).collect();
            write!(out, "id = {{ {} }}, ", ids.join(", "))?;
        }
        let all = settings(recording, &event.attr, &event.name);
        let all: Vec<String> = all.iter().map(|(name, value)| format!("{name} = {value}")).collect();
        writeln!(out, "{}", all.join(", "))?;
    }
    topology(out, &recording.features, full)?;
    rest(out, &recording.features, full)?;
    if !recording.is_pipe {
        let present = recording.features.bits();
        let missing = (1..FEATURES.len()).filter(|bit| !present.contains(&(*bit as u32)));
        let missing: Vec<&str> =
            missing.map(|bit| FEATURES[bit]).filter(|name| *name != "PMU_CAPS").collect();
        writeln!(out, "# missing features: {} ", missing.join(" "))?;
    }
    Ok(())
}

fn machine(out: &mut dyn Write, features: &Features) -> io::Result<()> {
    let mut fact = |name: &str, value: Option<String>| match value {
        Some(value) if !value.is_empty() => writeln!(out, "# {name} : {}", shown(&value)),
        _ => Ok(()),
    };
    fact("hostname", features.hostname.clone())?;
    fact("os release", features.os_release.clone())?;
    fact("perf version", features.version.clone())?;
    fact("arch", features.arch.clone())?;
    fact("nrcpus online", features.nr_cpus.map(|n| n.online.to_string()))?;
    fact("nrcpus avail", features.nr_cpus.map(|n| n.available.to_string()))?;
    fact("cpudesc", features.cpu_desc.clone())?;
    fact("cpuid", features.cpuid.clone())?;
    fact("total memory", features.total_mem_kb.map(|kb| format!("{kb} kB")))?;
    let words: String = features.cmdline.iter().map(|word| format!("{word} ")).collect();
    fact("cmdline", Some(words))
}

fn topology(out: &mut dyn Write, features: &Features, full: bool) -> io::Result<()> {
    if let Some(topology) = &features.cpu_topology {
        if full {
            let mut lists = |name: &str, lists: &[String]| {
                lists.iter().try_for_each(|list| writeln!(out, "# sibling {name} : {}", shown(list)))
            };
            lists("sockets", &topology.core_siblings)?;
            lists("dies   ", &topology.die_siblings)?;
            lists("threads", &topology.thread_siblings)?;
            for (cpu, place) in topology.cpus.iter().enumerate() {
                let die = place.die.map_or(String::new(), |die| format!("Die ID {die}, "));
                writeln!(out, "# CPU {cpu}: Core ID {}, {die}Socket ID {}", place.core, place.socket)?;
            }
        } else {
            writeln!(out, "# CPU_TOPOLOGY info available, use -I to display")?;
        }
    }
    if !features.numa.is_empty() {
        if !full {
            return writeln!(out, "# NUMA_TOPOLOGY info available, use -I to display");
        }
        for node in &features.numa {
            let (number, total, free) = (node.node, node.total_kb, node.free_kb);
            writeln!(out, "# node{number} meminfo  : total = {total} kB, free = {free} kB")?;
            writeln!(out, "# node{number} cpu list : {}", shown(&node.cpus))?;
        }
    }
    Ok(())
}

fn rest(out: &mut dyn Write, features: &Features, full: bool) -> io::Result<()> {
    if features.branch_stack {
        writeln!(out, "# contains samples with branch stack")?;
    }
    if !features.pmu_mappings.is_empty() {
        let all = features.pmu_mappings.iter().map(|(kind, name)| format!("{} = {kind}", shown(name)));
        writeln!(out, "# pmu mappings: {}", all.collect::<Vec<_>>().join(", "))?;
    }
    for group in &features.groups {
        let name = if group.name == "{anon_group}" { "" } else { &group.name };
        let members = features.event_desc.iter().skip(group.leader as usize).take(group.members as usize);
        let members: Vec<_> = members.map(|event| shown(&event.name)).collect();
        writeln!(out, "# group: {}{{{}}}", shown(name), members.join(","))?;
    }
    if features.stat {
        writeln!(out, "# contains stat data")?;
    }
    if !features.caches.is_empty() {
        if full {
            writeln!(out, "# CPU cache info:")?;
            for cache in &features.caches {
                let (kind, size, cpus) = (shown(&cache.kind), shown(&cache.size), shown(&cache.cpus));
                writeln!(out, "#  L{} {kind:<15} {size:>8} [{cpus}]", cache.level)?;
            }
        } else {
            writeln!(out, "# CACHE info available, use -I to display")?;
        }
    }
    if let Some((first, last)) = features.sample_time {
        let seconds = |ns: u64| format!("{}.{:06}", ns / 1_000_000_000, ns % 1_000_000_000 / 1000);
        writeln!(out, "# time of first sample : {}", seconds(first))?;
        writeln!(out, "# time of last sample : {}", seconds(last))?;
        writeln!(out, "# sample duration : {:10.3} ms", last.saturating_sub(first) as f64 / 1e6)?;
    }
    if features.other.iter().any(|(bit, _)| *bit == abi::HEADER_MEM_TOPOLOGY) && !full {
        writeln!(out, "# MEM_TOPOLOGY info available, use -I to display")?;
    }
    if let Some(resolution) = features.clockid_resolution_ns.filter(|ns| *ns > 0) {
        writeln!(out, "# clockid frequency: {} MHz", 1000 / resolution)?;
    }
    if let Some(version) = features.dir_format {
        writeln!(out, "# directory data version : {version}")?;
    }
    if let Some(compressed) = features.compressed {
        let kind = if compressed.kind == 1 { "Zstd" } else { "Unknown" };
        writeln!(out, "# compressed : {kind}, level = {}, ratio = {}", compressed.level, compressed.ratio)?;
    }
    features.clock_data.map_or(Ok(()), |clock| reference_time(out, &clock))
}

/// One moment on the wall clock (UTC) and on the recording's.
fn reference_time(out: &mut dyn Write, clock: &ClockData) -> io::Result<()> {
    let name = match clock.clockid {
        0 => "realtime",
        1 => "monotonic",
        2 => "process_cputime",
        3 => "thread_cputime",
        4 => "monotonic_raw",
        7 => "boottime",
        11 => "tai",
        _ => "(not found)",
    };
    let (wall, own) = (clock.wall_clock_ns, clock.clockid_time_ns);
    let (seconds, us) = (wall / 1_000_000_000, wall % 1_000_000_000 / 1000);
    let (year, month, day) = civil(seconds / 86_400);
    let second = seconds % 86_400;
    writeln!(out, "# clockid: {name} ({})", clock.clockid)?;
    writeln!(
        out,
        "# reference time: {year}-{month:02}-{day:02} {:02}:{:02}:{:02}.{us:06} = {seconds}.{us:06} (TOD) = {}.{:09} ({name})",
        second / 3600,
        second / 60 % 60,
        second % 60,
        own / 1_000_000_000,
        own % 1_000_000_000
    )
}

/// `Mon Nov 23 10:27:35 2026`, UTC.
fn date(time: SystemTime) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    format!(
        "{} {} {day:2} {:02}:{:02}:{:02} {year}",
        DAYS[(days % 7) as usize],
        MONTHS[month as usize - 1],
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

/// Year, month and day of a count of days since 1970. Years are counted from March, so that a leap
/// day comes last.
pub(crate) fn civil(days: u64) -> (u64, u64, u64) {
    // Days since 0000-03-01, in eras of 400 years.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march = (5 * of_year + 2) / 153;
    let (day, month) = (of_year - (153 * march + 2) / 5 + 1, if march < 10 { march + 3 } else { march - 9 });
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Checks dates at the edges of months, years and leap years.
    #[test]
    fn dates() {
        let at = |seconds| date(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "Thu Jan  1 00:00:00 1970");
        assert_eq!(at(951_782_400), "Tue Feb 29 00:00:00 2000");
        assert_eq!(at(1_709_251_199), "Thu Feb 29 23:59:59 2024");
        assert_eq!(at(1_795_430_855), "Mon Nov 23 10:47:35 2026");
    }
}
