//! The features that were known when recording began, listed directly before the records.
//!
//! ```text
//!  ... attrs | early payloads | entries ... | state | count | "KYMOERLY" | records ...
//!                               bit, offset, size (u64 each)              ^ data_offset
//! ```
//!
//! perf looks for features only after the data, and passes over this. The list stays where it is,
//! so a reader has names and formats also where the table after the data is missing: the file was
//! cut, or is of a kymo that took the table away for a moment. The state says whether the recorder
//! came to its end.

use crate::mark;
use crate::record::RawRecord;
use crate::source::{ReadAt, read_section};
use crate::words::u64_at;
use std::io;

const MAGIC: &[u8; 8] = b"KYMOERLY";
const ENTRY_BYTES: usize = 24;
const TRAILER_BYTES: usize = 24;
/// There are no more feature bits.
const ENTRIES_MAX: u64 = 256;

/// A feature's bit, and where its payload lies: offset and size.
pub(crate) type FeatureSection = (u32, u64, u64);

/// How far the recorder came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecorderState {
    /// It is recording, or it was killed.
    Recording,
    /// Everything that was appended is in the file.
    Finished,
    /// It could not write everything, and ended.
    Incomplete,
}

impl RecorderState {
    pub(crate) fn to_bytes(self) -> [u8; 8] {
        let number: u64 = match self {
            RecorderState::Recording => 0,
            RecorderState::Finished => 1,
            RecorderState::Incomplete => 2,
        };
        number.to_le_bytes()
    }

    fn from_number(number: u64) -> Option<RecorderState> {
        [RecorderState::Recording, RecorderState::Finished, RecorderState::Incomplete]
            .into_iter()
            .find(|state| u64::from_le_bytes(state.to_bytes()) == number)
    }

    /// The mark of a pipe recording, which has no place that could be written again.
    pub(crate) fn record(self) -> Vec<u8> {
        let mut fields = vec![0; 4];
        fields.extend(self.to_bytes());
        mark::record_of_kind(mark::RECORDER_STATE, &fields)
    }

    /// What such a mark says; `None` for all other records.
    pub(crate) fn parse(record: &RawRecord<'_>) -> Option<RecorderState> {
        RecorderState::from_number(u64_at(mark::body_of_kind(record, mark::RECORDER_STATE)?, 16)?)
    }

    /// What a reader should know, if the recording ends before its recorder meant it to.
    pub(crate) fn problem(self) -> Option<&'static str> {
        match self {
            RecorderState::Recording => Some(
                "the recorder did not finish: it was killed, or it is still recording; read up to here, \
                 what came later is missing",
            ),
            RecorderState::Incomplete => Some(
                "the recorder could not write what came after this (disk full, file size limit or \
                 a failed write): it is missing",
            ),
            RecorderState::Finished => None,
        }
    }
}

/// The list as a reader finds it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StartTable {
    pub(crate) state: RecorderState,
    /// In ascending order of their bits.
    pub(crate) sections: Vec<FeatureSection>,
}

/// The list as a recorder writes it when it begins.
pub(crate) fn bytes(sections: &[FeatureSection]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(ENTRY_BYTES * sections.len() + TRAILER_BYTES);
    for &(bit, offset, size) in sections {
        for word in [u64::from(bit), offset, size] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
    }
    bytes.extend_from_slice(&RecorderState::Recording.to_bytes());
    bytes.extend_from_slice(&(sections.len() as u64).to_le_bytes());
    bytes.extend_from_slice(MAGIC);
    bytes
}

/// Where the state is, of a list that ends at `data_offset`.
pub(crate) fn state_at(data_offset: u64) -> u64 {
    data_offset.saturating_sub(TRAILER_BYTES as u64)
}

/// Reads the list that ends at `data_offset`; `None` if there is none.
pub(crate) fn read(source: &dyn ReadAt, data_offset: u64) -> io::Result<Option<StartTable>> {
    let Some(trailer_at) = data_offset.checked_sub(TRAILER_BYTES as u64) else { return Ok(None) };
    let trailer = read_section(source, trailer_at, TRAILER_BYTES as u64)?;
    if trailer.get(16..) != Some(MAGIC) {
        return Ok(None);
    }
    let state = u64_at(&trailer, 0).and_then(RecorderState::from_number);
    let count = u64_at(&trailer, 8).filter(|count| *count <= ENTRIES_MAX);
    let (Some(state), Some(count)) = (state, count) else { return Ok(None) };
    let size = ENTRY_BYTES as u64 * count;
    let Some(at) = trailer_at.checked_sub(size) else { return Ok(None) };
    let entries = read_section(source, at, size)?;
    let word = |entry: &[u8], at| u64_at(entry, at).unwrap_or(0);
    let sections = entries.chunks_exact(ENTRY_BYTES).filter_map(|entry| {
        let bit = u32::try_from(word(entry, 0)).ok().filter(|bit| (1..256).contains(bit))?;
        Some((bit, word(entry, 8), word(entry, 16)))
    });
    let mut sections: Vec<FeatureSection> = sections.collect();
    sections.sort_unstable();
    sections.dedup_by_key(|section| section.0);
    Ok(Some(StartTable { state, sections }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a list is read as it was written, and that other bytes are no list.
    #[test]
    fn written_and_read() {
        let sections = vec![(3, 104, 8), (12, 112, 40)];
        let mut file = vec![7; 200];
        file.extend(bytes(&sections));
        let end = file.len() as u64;
        let expected = StartTable { state: RecorderState::Recording, sections };
        assert_eq!(read(&file, end).unwrap(), Some(expected));
        let at = state_at(end) as usize;
        file[at..at + 8].copy_from_slice(&RecorderState::Incomplete.to_bytes());
        assert_eq!(read(&file, end).unwrap().unwrap().state, RecorderState::Incomplete);
        file[at + 8] = 200;
        assert_eq!(read(&file, end).unwrap(), None, "more entries than there are bytes");
        assert_eq!(read(&file, 100).unwrap(), None);
        assert_eq!(read(&file, 3).unwrap(), None);
    }
}
