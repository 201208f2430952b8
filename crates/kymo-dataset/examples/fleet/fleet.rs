//! Repetitions of recordings over hosts, days and minutes.
use crate::arguments::Arguments;
use crate::program::Program;
use kymo_dataset::{DatasetFolder, DatasetWriter, HostRow, ids};
use std::collections::BTreeMap;

pub(crate) const MINUTES_A_DAY: u32 = 24 * 60;
const NS_A_DAY: i64 = 86_400_000_000_000;

/// By host and day and recording: how many repetitions begin in a minute of the day.
type Plan = BTreeMap<(u32, u32), BTreeMap<usize, BTreeMap<u32, u64>>>;

/// Writes the dataset; what was made, as a sentence.
pub(crate) fn make(arguments: &Arguments) -> Result<String, String> {
    let programs = Program::read_all(&arguments.recordings)?;
    let dataset = DatasetFolder::open_or_create(&arguments.out).map_err(|error| error.to_string())?;
    let once: u64 = programs.iter().map(|program| program.samples).sum();
    let repetitions = arguments.samples.checked_div(once).ok_or("the recordings have no samples")?.max(1);
    let (mut bytes, mut rows_of_hosts) = (0_u64, 0_u64);
    for ((host, day), recordings) in plan(arguments, programs.len(), repetitions) {
        let midnight_ns = arguments.start_ns() + i64::from(day) * NS_A_DAY;
        let host = HostRow {
            host: format!("host-{host:04}"),
            kernel: programs[0].kernel.clone(),
            arch: programs[0].arch.clone(),
            cpus: 16,
            rate_hz: 19.0,
            kymo_version: env!("CARGO_PKG_VERSION").to_owned(),
            first_seen_ns: arguments.start_ns(),
        };
        let mut writer = DatasetWriter::new(host, midnight_ns, 0);
        for (recording, begun) in recordings {
            programs[recording].add(&mut writer, midnight_ns, &begun)?;
        }
        for file in writer.finish().map_err(|error| error.to_string())? {
            bytes += file.bytes.len() as u64;
            dataset.put(&file).map_err(|error| error.to_string())?;
        }
        rows_of_hosts += 1;
    }
    let samples = once * repetitions;
    Ok(format!(
        "{samples} samples: each recording {repetitions} times, over {rows_of_hosts} days of hosts; \
         {bytes} bytes, {:.2} a sample",
        bytes as f64 / samples as f64
    ))
}

/// Where each repetition of each recording begins.
fn plan(arguments: &Arguments, recordings: usize, repetitions: u64) -> Plan {
    let mut plan = Plan::new();
    for recording in 0..recordings {
        let is_new = recording >= arguments.from_the_first_day;
        let first_day = if is_new { arguments.days / 2 } else { 0 };
        let days = u64::from(arguments.days - first_day);
        for repetition in 0..repetitions {
            // Any hash does; this one is at hand, and gives the same plan each time.
            let chosen = ids::host(&format!("{recording} {repetition}")).unsigned_abs();
            let host = (chosen % u64::from(arguments.hosts)) as u32;
            let chosen = chosen / u64::from(arguments.hosts);
            let day = first_day + (chosen % days) as u32;
            let minute = (chosen / days % u64::from(MINUTES_A_DAY)) as u32;
            let begun = plan.entry((host, day)).or_default().entry(recording).or_default();
            *begun.entry(minute).or_default() += 1;
        }
    }
    plan
}
