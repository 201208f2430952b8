//! What a pipe recording says about itself: descriptions come as records, anywhere among the
//! others.

use crate::abi::*;
use crate::attr::Attr;
use crate::chunk::Chunk;
use crate::event::{Event, EventSet};
use crate::features::Features;
use crate::index::Index;
use crate::problem::{OpenError, Problem};
use crate::record::{RawRecord, Record};
use crate::source::read_section;
use crate::start_table::RecorderState;
use crate::stream::{Stream, StreamReader};
use crate::words::{u32_at, until_nul};

/// Longest tracing data that is taken out of a pipe.
const TRACING_DATA_MAX: u64 = 256 << 20;

/// What to say where the recorder's last word is missing.
pub(crate) const WITHOUT_END: &str = "the recorder did not finish (it was killed, or it is still recording), or what it wrote was cut; \
                           read up to here, what came later is missing";

/// What a pipe recording says about itself, collected from its records.
#[derive(Default)]
pub(crate) struct PipeDescription {
    pub(crate) events: Vec<Event>,
    pub(crate) features: Features,
    pub(crate) problems: Vec<Problem>,
    pub(crate) updates: Vec<(u64, u64, Vec<u8>)>,
    /// How far the recorder came, as far as it says so.
    state: Option<RecorderState>,
}

impl PipeDescription {
    pub(crate) fn read(&mut self, stream: &Stream) -> Result<Option<Index>, OpenError> {
        let mut reader = StreamReader::without_unpacking(stream);
        let mut chunk = Chunk::default();
        loop {
            let offset = reader.offset();
            match reader.next_chunk(&mut chunk) {
                Ok(true) => {}
                Ok(false) => break,
                Err(source) => return Err(OpenError::Io { offset, source }),
            }
            for record in chunk.records().flatten() {
                if record.header.kind >= PERF_RECORD_HEADER_ATTR {
                    self.take(stream, &record)?;
                }
            }
        }
        if self.state == Some(RecorderState::Recording) {
            self.problems.push(Problem::new(reader.offset(), None, WITHOUT_END));
        }
        // Compressed records were passed over, so the places say nothing then.
        Ok(if reader.passed_compressed() { None } else { Index::of(reader) })
    }

    fn take(&mut self, stream: &Stream, record: &RawRecord<'_>) -> Result<(), OpenError> {
        match record.header.kind {
            PERF_RECORD_HEADER_ATTR
            | PERF_RECORD_HEADER_FEATURE
            | PERF_RECORD_HEADER_BUILD_ID
            | PERF_RECORD_EVENT_UPDATE => {}
            PERF_RECORD_HEADER_TRACING_DATA => {
                let offset = record.position + u64::from(record.header.size);
                let size = u64::from(u32_at(record.body, 0).unwrap_or(0));
                if size <= TRACING_DATA_MAX && offset.saturating_add(size) <= stream.range.end {
                    let bytes = read_section(&*stream.source, offset, size)
                        .map_err(|source| OpenError::Io { offset, source })?;
                    self.features.tracing_data = Some(bytes);
                }
                return Ok(());
            }
            PERF_RECORD_HEADER_EVENT_TYPE => {
                self.state = RecorderState::parse(record).or(self.state);
                return Ok(());
            }
            _ => return Ok(()),
        }
        match record.parse() {
            Ok(Record::HeaderAttr { attr, ids }) => match Attr::parse(attr) {
                Some(attr) => {
                    let index = self.events.len();
                    self.events.push(Event::new(attr, ids.iter().collect(), index));
                }
                None => {
                    let size = attr.len() as u64;
                    return Err(OpenError::AttrSize { offset: record.position + 8, size });
                }
            },
            // perf marks the end of the features with an empty one beyond the last that it knows.
            Ok(Record::Feature { bit, data }) if bit > u64::from(HEADER_PMU_CAPS) && data.is_empty() => {}
            Ok(Record::Feature { bit, data }) => {
                let understood =
                    u32::try_from(bit).is_ok_and(|bit| bit < 256 && self.features.set_section(bit, data));
                if !understood {
                    let what = format!("feature {bit} is damaged; it is not used");
                    self.problems.push(Problem::new(record.position, Some(record.header.kind), what));
                }
            }
            Ok(Record::BuildId(id)) => self.features.build_ids.push(id),
            Ok(Record::EventUpdate { what, id, data }) => self.updates.push((what, id, data.to_vec())),
            Ok(_) => {}
            Err(error) => {
                let what = format!("{error}; it is not used");
                self.problems.push(Problem::new(record.position, Some(record.header.kind), what));
            }
        }
        Ok(())
    }
}

/// Names, units and scales that were told later than the events.
pub(crate) fn apply_updates(events: &mut EventSet, updates: &[(u64, u64, Vec<u8>)]) {
    const UNIT: u64 = 0;
    const SCALE: u64 = 1;
    const NAME: u64 = 2;
    for (what, id, data) in updates {
        let text = || String::from_utf8_lossy(until_nul(data)).into_owned();
        let Some(event) = events.by_id(*id).and_then(|index| events.list.get_mut(index)) else { continue };
        match *what {
            UNIT => event.unit = Some(text()),
            SCALE => event.scale = data.first_chunk::<8>().map(|bytes| f64::from_le_bytes(*bytes)),
            NAME => event.name = text(),
            _ => {}
        }
    }
}
