//! The recording's facts (`report --header`) and its records by type (`report --stats`).

use std::io::{self, Write};
use std::path::Path;

use kymo_data::{Recording, abi};
use kymo_profile::loss::{LossTimeline, text};
use kymo_profile::profile::Profile;
use kymo_profile::text::shown;

/// Writes who recorded what, where and when, and what was lost.
pub(crate) fn write(
    out: &mut dyn Write,
    recording: &Recording,
    input: &Path,
    loss: &LossTimeline,
) -> io::Result<()> {
    let features = &recording.features;
    writeln!(out, "# ========")?;
    writeln!(out, "# file : {}", shown(&input.display().to_string()))?;
    let mut fact = |name: &str, value: Option<String>| match value {
        Some(value) if !value.is_empty() => writeln!(out, "# {name} : {}", shown(&value)),
        _ => Ok(()),
    };
    fact("hostname", features.hostname.clone())?;
    fact("os release", features.os_release.clone())?;
    fact("recorder version", features.version.clone())?;
    fact("arch", features.arch.clone())?;
    fact("nrcpus online", features.nr_cpus.map(|n| n.online.to_string()))?;
    fact("nrcpus avail", features.nr_cpus.map(|n| n.available.to_string()))?;
    fact("cpudesc", features.cpu_desc.clone())?;
    fact("cpuid", features.cpuid.clone())?;
    fact("total memory", features.total_mem_kb.map(|kb| format!("{kb} kB")))?;
    fact("cmdline", Some(features.cmdline.join(" ")))?;
    for event in &recording.events.list {
        let attr = &event.attr;
        let rate = if attr.flags & abi::ATTR_FLAG_FREQ != 0 { "Hz" } else { "period" };
        writeln!(
            out,
            "# event : {} (type {}, config {:#x}, {} {rate}, {} ids)",
            shown(&event.name),
            attr.kind,
            attr.config,
            attr.sample_period,
            event.ids.len()
        )?;
    }
    if let Some((first, last)) = features.sample_time {
        writeln!(out, "# time of first sample : {:.6}", first as f64 / 1e9)?;
        writeln!(out, "# time of last sample : {:.6}", last as f64 / 1e9)?;
        writeln!(out, "# sample duration : {:.3} ms", last.saturating_sub(first) as f64 / 1e6)?;
    }
    for (name, value) in text::facts(loss) {
        writeln!(out, "# {name} : {value}")?;
    }
    writeln!(out, "# ========\n#")
}

/// Writes how many records of each type there are, in perf's form.
pub(crate) fn write_stats(out: &mut dyn Write, recording: &Recording, profile: &Profile) -> io::Result<()> {
    let by_type = &profile.loaded.counts.by_type;
    let total: u64 = by_type.values().sum();
    writeln!(out, "\nAggregated stats:")?;
    writeln!(out, "{:>20} events: {total:>10}", "TOTAL")?;
    for (&kind, &count) in by_type {
        let share = 100.0 * count as f64 / total.max(1) as f64;
        writeln!(out, "{:>20} events: {count:>10}  ({share:4.1}%)", abi::record_name(kind))?;
    }
    for (index, event) in recording.events.list.iter().enumerate() {
        let samples = profile.loaded.totals[index].samples;
        if samples > 0 {
            writeln!(out, "{} stats:", shown(&event.name))?;
            writeln!(out, "{:>20} events: {samples:>10}", "SAMPLE")?;
        }
    }
    Ok(())
}
