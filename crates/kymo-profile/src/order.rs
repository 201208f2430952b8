//! Records in order of time.
use crate::timeline::Moment;
use kymo_data::{Problem, RawRecord, ReadError, RecordHeader, Recording, abi};
use std::collections::BTreeMap;

/// Calls `each` with all records that are `wanted`, in order of time; those without a time come
/// when they are read.
///
/// # Errors
/// When the recording cannot be read at all, and those of `each`.
pub(crate) fn in_order<E: From<ReadError>>(
    recording: &Recording,
    wanted: impl Fn(u32) -> bool,
    mut each: impl FnMut(&RawRecord<'_>) -> Result<(), E>,
) -> Result<Vec<Problem>, E> {
    let events = &recording.events;
    // By moment, and those of one moment as they came.
    let mut waiting: BTreeMap<(Moment, u64), (RecordHeader, Vec<u8>)> = BTreeMap::new();
    let (mut newest, mut safe, mut count) = (Moment::START, Moment::START, 0_u64);
    let mut records = recording.records();
    while let Some(record) = records.next_record()? {
        let kind = record.header.kind;
        if kind == abi::PERF_RECORD_FINISHED_ROUND {
            while let Some(next) = waiting.first_entry()
                && next.key().0.time_ns <= safe.time_ns
            {
                let position = next.key().0.position;
                let (header, body) = next.remove();
                each(&RawRecord { header, body: &body, position })?;
            }
            safe = newest;
        }
        if !wanted(kind) {
            continue;
        }
        let time = if kind == abi::PERF_RECORD_SAMPLE {
            let Some(event) = events.event_of(&record) else { continue };
            let layout = &events.list[event].layout;
            let Ok(sample) = layout.parse(record.header.misc, record.body) else { continue };
            sample.time
        } else {
            // What the recorder made up has no time.
            events.sample_id(&record).time.filter(|time| *time != 0)
        };
        if time.is_none() {
            each(&record)?;
            continue;
        }
        let moment = Moment::new(time, record.position);
        newest = newest.max(moment);
        waiting.insert((moment, count), (record.header, record.body.to_vec()));
        count += 1;
    }
    for ((moment, _), (header, body)) in waiting {
        each(&RawRecord { header, body: &body, position: moment.position })?;
    }
    Ok(records.problems().to_vec())
}
