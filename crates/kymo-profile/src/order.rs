//! Records in order of time.
//!
//! Order comes from rounds: a FINISHED_ROUND record says that every ring has been read since the
//! one before, so what is not newer than the newest record of the round before is complete.
use crate::timeline::Moment;
use kymo_data::{Problem, RawRecord, ReadError, RecordHeader, Recording, abi};

/// What waits until the rounds say that nothing older can come. It holds two rounds, and all of a
/// recording without rounds.
#[derive(Debug)]
pub(crate) struct Rounds<T> {
    waiting: Vec<(Moment, T)>,
    /// The newest moment of all, and of the rounds that are finished.
    newest: Moment,
    safe: Moment,
}

impl<T> Rounds<T> {
    pub(crate) fn new() -> Rounds<T> {
        Rounds { waiting: Vec::new(), newest: Moment::START, safe: Moment::START }
    }

    /// Adds one that is delivered when its time has come.
    pub(crate) fn push(&mut self, moment: Moment, item: T) {
        self.newest = self.newest.max(moment);
        self.waiting.push((moment, item));
    }

    /// A round is finished: delivers what is complete, in order; those of one moment as they came.
    pub(crate) fn finish_round<E>(
        &mut self,
        each: &mut impl FnMut(Moment, &T) -> Result<(), E>,
    ) -> Result<(), E> {
        let safe_ns = self.safe.time_ns;
        self.safe = self.newest;
        if self.waiting.iter().all(|(moment, _)| moment.time_ns > safe_ns) {
            return Ok(());
        }
        self.waiting.sort_by_key(|(moment, _)| *moment);
        let count = self.waiting.partition_point(|(moment, _)| moment.time_ns <= safe_ns);
        self.waiting.drain(..count).try_for_each(|(moment, item)| each(moment, &item))
    }

    /// Nothing more comes: delivers the rest.
    pub(crate) fn finish<E>(mut self, each: &mut impl FnMut(Moment, &T) -> Result<(), E>) -> Result<(), E> {
        self.waiting.sort_by_key(|(moment, _)| *moment);
        self.waiting.iter().try_for_each(|(moment, item)| each(*moment, item))
    }
}

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
    let mut rounds: Rounds<(RecordHeader, Vec<u8>)> = Rounds::new();
    let mut records = recording.records();
    while let Some(record) = records.next_record()? {
        let kind = record.header.kind;
        if kind == abi::PERF_RECORD_FINISHED_ROUND {
            rounds.finish_round(&mut |moment, (header, body)| {
                each(&RawRecord { header: *header, body, position: moment.position })
            })?;
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
        rounds.push(moment, (record.header, record.body.to_vec()));
    }
    rounds.finish(&mut |moment, (header, body)| {
        each(&RawRecord { header: *header, body, position: moment.position })
    })?;
    Ok(records.problems().to_vec())
}
