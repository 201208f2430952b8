//! The counts of a recording of `perf stat record` or `kymo stat record`.
use crate::text::shown;
use kymo_data::{ReadError, Recording, StatConfig, StatCount, StatRecord, abi};
use rustc_hash::FxHashMap;
use std::io::{self, Write};

/// As many CPUs as a kernel can have (x86's `MAXSMP`). A damaged file may name others.
const MOST_CPUS: i32 = 8192;

/// Everything such a recording says.
#[derive(Debug, Default)]
pub struct CountRecording {
    /// How was counted.
    pub config: StatConfig,
    /// The threads that counts name by index; -1: all.
    pub threads: Vec<(i32, Vec<u8>)>,
    /// Unit and factor of events, by the event's index.
    pub units: FxHashMap<usize, EventUnit>,
    /// What was counted, in order of time.
    pub rounds: Vec<CountRound>,
}

/// What an event's counts are printed in.
#[derive(Debug, Clone, PartialEq)]
pub struct EventUnit {
    /// `msec`, for example; empty: just numbers.
    pub name: String,
    /// What counts are multiplied by.
    pub scale: f64,
}

impl Default for EventUnit {
    fn default() -> EventUnit {
        EventUnit { name: String::new(), scale: 1.0 }
    }
}

/// The counts up to a time; of intervals, since the round before.
#[derive(Debug, Default)]
pub struct CountRound {
    /// When, ns since counting began.
    pub time_ns: u64,
    /// Whether it is the end, not an interval.
    pub last: bool,
    /// Each event's index and its count.
    pub counts: Vec<(usize, StatCount)>,
}

/// Whether a recording has counts in place of samples: its events sample nothing.
pub fn is_count_recording(recording: &Recording) -> bool {
    recording.events.list.iter().all(|event| {
        event.attr.sample_period == 0 && event.attr.sample_type & !abi::PERF_SAMPLE_IDENTIFIER == 0
    })
}

/// Leaves what came after an earlier count.
fn subtract(count: &mut StatCount, before: Option<StatCount>) {
    if let Some(before) = before {
        count.value = count.value.saturating_sub(before.value);
        count.enabled_ns = count.enabled_ns.saturating_sub(before.enabled_ns);
        count.running_ns = count.running_ns.saturating_sub(before.running_ns);
    }
}

impl CountRecording {
    /// Reads all counts. Those of events that the recording does not have are left out.
    ///
    /// # Errors
    /// When the recording cannot be read at all.
    pub fn read(recording: &Recording) -> Result<CountRecording, ReadError> {
        let mut all = CountRecording::default();
        let mut open = Vec::new();
        // Records have what was counted since the start.
        let mut before = FxHashMap::default();
        let mut records = recording.records();
        while let Some(record) = records.next_record()? {
            let by_id = |id| recording.events.by_id(id);
            match StatRecord::parse(&record) {
                Some(StatRecord::Config(config)) => all.config = config,
                Some(StatRecord::Threads(threads)) => all.threads = threads,
                Some(StatRecord::Count(count)) if count.cpu < MOST_CPUS => {
                    open.extend(by_id(count.id).map(|event| (event, count)))
                }
                Some(StatRecord::Round { time_ns, last }) => {
                    let mut counts = std::mem::take(&mut open);
                    if all.config.interval_ms != 0 {
                        counts.iter_mut().for_each(|(event, count)| {
                            let key = (*event, count.cpu, count.thread);
                            let so_far = *count;
                            subtract(count, before.insert(key, so_far));
                        });
                    }
                    all.rounds.push(CountRound { time_ns, last, counts });
                }
                Some(StatRecord::Scale { id, scale }) if scale.is_finite() => {
                    by_id(id).into_iter().for_each(|event| all.units.entry(event).or_default().scale = scale);
                }
                Some(StatRecord::Unit { id, unit }) => {
                    let unit = shown(&String::from_utf8_lossy(&unit)).into_owned();
                    by_id(id)
                        .into_iter()
                        .for_each(|event| all.units.entry(event).or_default().name.clone_from(&unit));
                }
                _ => {}
            }
        }
        Ok(all)
    }

    /// The thread that a count is of; -1: all.
    pub fn thread(&self, count: &StatCount) -> i32 {
        self.threads.get(count.thread as usize).map_or(-1, |thread| thread.0)
    }

    /// Writes each count on a line, as `perf script` does.
    ///
    /// # Errors
    /// What the writer says.
    pub fn write_lines(&self, recording: &Recording, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "CPU   THREAD             VAL             ENA             RUN            TIME EVENT")?;
        for round in &self.rounds {
            for (event, count) in &round.counts {
                let StatCount { cpu, value, enabled_ns, running_ns, .. } = count;
                let (thread, time, name) =
                    (self.thread(count), round.time_ns, &recording.events.list[*event].name);
                writeln!(
                    out,
                    "{cpu:>3} {thread:>8} {value:>15} {enabled_ns:>15} {running_ns:>15} {time:>15} {}",
                    shown(name)
                )?;
            }
        }
        Ok(())
    }
}
