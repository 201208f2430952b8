//! The recording's facts (`report --header`) and its records by type (`report --stats`).

use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use kymo_data::{Recording, abi};
use kymo_profile::dump;
use kymo_profile::loss::{LossTimeline, text};
use kymo_profile::profile::Profile;
use kymo_profile::text::shown;

/// Writes who recorded what, where and when, and what was lost.
pub(crate) fn write(
    out: &mut dyn Write,
    recording: &Recording,
    input: &Path,
    loss: &LossTimeline,
    full: bool,
) -> io::Result<()> {
    writeln!(out, "# ========")?;
    dump::write_header(out, recording, captured(input), full)?;
    for (name, value) in text::facts(loss) {
        writeln!(out, "# {name} : {value}")?;
    }
    writeln!(out, "# ========\n#")
}

/// When the file, or the pipe on stdin, was last written, as perf 7 says it.
pub(super) fn captured(input: &Path) -> Option<SystemTime> {
    let input = if input == Path::new("-") { Path::new("/dev/stdin") } else { input };
    let changed = std::fs::metadata(input).ok()?.mtime();
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(changed.try_into().ok()?))
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
