//! Writes recordings as files that are valid at every moment.
//!
//! ```text
//!  header | ids | attrs | early payloads | start table
//!  | cover | table | records ... | cover | table | payloads
//!                                        ^ published end
//! ```
//!
//! [`FileWriter::publish`] brings the header up to date, so that a recorder that is killed leaves a
//! file that ends at the last publication. A reader looks for the table of features where the data
//! ends. Features that are known when the recording starts (the formats of tracepoints, without
//! which perf opens nothing) are given to [`FileWriter::create_with_features`]: their payloads lie
//! before the data, and each publication writes a small table of them after the records.
//!
//! Before each table lies a cover: a FINISHED_ROUND record without a body, which means nothing at
//! the end of the data. The first one is there from the beginning: perf opens no file without a
//! record. The next publication first makes it a record that readers pass over, with the table in
//! its body, and then changes the header. Between the two the last record reaches beyond the end of
//! the data; perf and kymo pass over it there, too. So the header has features at every moment, and
//! who reads the file meanwhile finds them whole: what a table says is never written over.
//!
//! Invariants:
//! - I1: `data_offset..contiguous` of the file holds whole records, apart from one table behind
//!   `cover`.
//! - I2: the header never tells of bytes that are not written.
//! - I3: the table after the data that the header tells of is whole.

use crate::abi::{PERF_RECORD_HEADER_EVENT_TYPE, SMALLEST_EVENT_TYPE_RECORD};
use crate::attr::{Attr, size_written};
use crate::build;
use crate::features::{EventDesc, Features, GroupDesc};
use crate::header::{FILE_HEADER_BYTES, MAGIC, PIPE_HEADER_BYTES};
use crate::record::{RECORD_HEADER_BYTES, RecordHeader};
use crate::source::WriteAt;
use crate::start_table::{self, FeatureSection, RecorderState};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Where the header has the size of the data.
const DATA_SIZE_AT: u64 = 48;
/// A record without a body.
const COVER_BYTES: u64 = RECORD_HEADER_BYTES as u64;
/// perf maps the file up to the end of the data. It takes a last record that reaches beyond that
/// only where a page and the record are no more than what is mapped (`fetch_mmaped_event` in its
/// `util/session.c`). With larger pages it refuses the smallest files in that state.
const PAGE_BYTES: usize = 4096;

/// An event to be recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSpec {
    /// Its settings.
    pub attr: Attr,
    /// Its ids, one per descriptor. Needed when there are several events.
    pub ids: Vec<u64>,
    /// Its name as the user wrote it.
    pub name: String,
}

impl EventSpec {
    /// As an entry of [`Features::event_desc`].
    pub fn desc(&self) -> EventDesc {
        EventDesc { attr: self.attr.clone(), name: self.name.clone(), ids: self.ids.clone() }
    }
}

/// Describes groups for [`Features::groups`]: one entry per leader that has members, from each
/// event's leader index.
pub fn groups(leaders: &[usize]) -> Vec<GroupDesc> {
    let mut out: Vec<GroupDesc> = Vec::new();
    for (index, &leader) in leaders.iter().enumerate() {
        match out.last_mut() {
            Some(group) if group.leader as usize == leader => group.members += 1,
            _ => out.push(GroupDesc { name: "{anon_group}".to_owned(), leader: index as u32, members: 1 }),
        }
    }
    out.retain(|group| group.members > 1);
    out
}

/// Writes a recording in file form. All methods take `&self`: several threads may append at once.
pub struct FileWriter<W: WriteAt> {
    out: W,
    data_offset: u64,
    attrs_offset: u64,
    attrs_size: u64,
    /// How long each of the attrs is.
    attr_bytes: u32,
    state: Mutex<WriteState>,
}

#[derive(Default)]
struct WriteState {
    /// Next byte that nobody reserved.
    next: u64,
    /// Up to here everything is written.
    contiguous: u64,
    /// Written pieces behind a hole: start and end.
    islands: BTreeMap<u64, u64>,
    /// Data end that the header tells.
    published: u64,
    /// Where the cover of the published table lies; it has to grow over the table before data after
    /// it is published.
    cover: Option<u64>,
    /// A cover and table that were given a place, but records before them are not written yet.
    pending: Option<u64>,
    /// Features whose payloads lie before the data: bit, offset, size.
    early: Vec<FeatureSection>,
}

/// A piece of the file that was reserved with [`FileWriter::reserve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "bytes that are reserved and not completed hold back all later publications"]
pub struct Reserved {
    /// Where to write.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
}

impl<W: WriteAt> FileWriter<W> {
    /// Starts a recording without features that are known beforehand: writes the header and the
    /// events.
    ///
    /// # Errors
    /// What the operating system says to a write.
    pub fn create(out: W, events: &[EventSpec]) -> io::Result<FileWriter<W>> {
        FileWriter::create_with_features(out, events, &Features::default())
    }

    /// As [`create`](FileWriter::create); `early` features are readable from the first publication on.
    ///
    /// # Errors
    /// What the operating system says to a write.
    pub fn create_with_features(out: W, events: &[EventSpec], early: &Features) -> io::Result<FileWriter<W>> {
        let mut bytes = vec![0u8; FILE_HEADER_BYTES as usize];
        let mut id_sections = Vec::new();
        for event in events {
            id_sections.push((bytes.len() as u64, 8 * event.ids.len() as u64));
            bytes.extend(event.ids.iter().flat_map(|id| id.to_le_bytes()));
        }
        let attrs_offset = bytes.len() as u64;
        let attr_bytes = size_written(events.iter().map(|event| &event.attr));
        for (event, (offset, size)) in events.iter().zip(id_sections) {
            bytes.extend_from_slice(&event.attr.to_bytes_of(attr_bytes));
            bytes.extend_from_slice(&offset.to_le_bytes());
            bytes.extend_from_slice(&size.to_le_bytes());
        }
        let attrs_size = bytes.len() as u64 - attrs_offset;
        let mut sections = Vec::new();
        for bit in early.bits() {
            let payload = early.section(bit).unwrap_or_default();
            sections.push((bit, bytes.len() as u64, payload.len() as u64));
            bytes.extend_from_slice(&payload);
            bytes.resize(bytes.len().next_multiple_of(8), 0);
        }
        let start_table = start_table::bytes(&sections);
        let mut state = WriteState { early: sections, ..WriteState::default() };
        let end = state.end_of_records();
        if !end.is_empty() {
            let least = PAGE_BYTES + end.len();
            bytes.resize(bytes.len().max(least.saturating_sub(start_table.len())), 0);
        }
        bytes.extend_from_slice(&start_table);
        let data_offset = bytes.len() as u64;
        bytes.extend_from_slice(&end);
        state.contiguous = bytes.len() as u64;
        state.next = state.contiguous;
        state.published = data_offset;
        if !end.is_empty() {
            state.cover = Some(data_offset);
            state.published += COVER_BYTES;
        }
        let (size, bits) = (state.published - data_offset, state.early_bits());
        let writer =
            FileWriter { out, data_offset, attrs_offset, attrs_size, attr_bytes, state: Mutex::new(state) };
        if let Some(start) = bytes.get_mut(..FILE_HEADER_BYTES as usize) {
            start.copy_from_slice(&writer.header(size, &bits));
        }
        writer.out.write_all_at(&bytes, 0)?;
        Ok(writer)
    }

    /// How many bytes the file has so far, reserved ones included.
    pub fn file_bytes(&self) -> u64 {
        self.lock().next
    }

    /// Up to here the file is whole: everything before was written.
    pub fn contiguous(&self) -> u64 {
        self.lock().contiguous
    }

    /// Up to here the header tells of records.
    pub fn published(&self) -> u64 {
        self.lock().published
    }

    /// How many bytes a publication needs after the records.
    pub fn table_bytes(&self) -> usize {
        self.lock().end_of_records().len()
    }

    /// What the records go to.
    pub fn get_ref(&self) -> &W {
        &self.out
    }

    fn lock(&self) -> MutexGuard<'_, WriteState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn header(&self, data_size: u64, bits: &[u32]) -> Vec<u8> {
        let mut words = [0u64; 13];
        let fields = [
            u64::from_le_bytes(*MAGIC),
            FILE_HEADER_BYTES,
            u64::from(self.attr_bytes) + 16,
            self.attrs_offset,
            self.attrs_size,
            self.data_offset,
            data_size,
        ];
        for (word, field) in words.iter_mut().zip(fields) {
            *word = field;
        }
        for bit in bits {
            // The bits start at word 9, after the two words of event types.
            if let Some(word) = words.get_mut(9 + *bit as usize / 64) {
                *word |= 1 << (bit % 64);
            }
        }
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Reserves room for `len` bytes of whole records, to be written at [`Reserved::offset`] with
    /// [`get_ref`](FileWriter::get_ref) and then told with [`complete`](FileWriter::complete).
    pub fn reserve(&self, len: u64) -> Reserved {
        let mut state = self.lock();
        let offset = state.next;
        state.next += len;
        Reserved { offset, len }
    }

    /// Tells that a reserved piece was written.
    ///
    /// # Errors
    /// A publication that waited for this piece is done now, and may fail.
    pub fn complete(&self, piece: Reserved) -> io::Result<()> {
        let mut state = self.lock();
        state.islands.insert(piece.offset, piece.offset + piece.len);
        state.advance();
        if state.pending.is_some_and(|table| table == state.contiguous) {
            self.publish_table(&mut state)?;
        }
        Ok(())
    }

    /// Ends the records here, at the end of a record after the last publication: what comes after is
    /// lost, and nothing is published any more but by [`finish`](FileWriter::finish).
    pub fn give_up_after(&self, end: u64) {
        let mut state = self.lock();
        if end >= state.published {
            state.contiguous = state.contiguous.min(end);
        }
    }

    /// Appends whole records.
    ///
    /// # Errors
    /// What the operating system says. The piece then is a hole: nothing that is appended later is
    /// published, and [`finish`](FileWriter::finish) ends the file before it.
    pub fn append(&self, records: &[u8]) -> io::Result<()> {
        let piece = self.reserve(records.len() as u64);
        self.out.write_all_at(records, piece.offset)?;
        self.complete(piece)
    }

    /// Makes all records readable that are written without a hole before them.
    ///
    /// With early features, the publication covers what was reserved before this call, and takes
    /// effect as soon as that is complete; without, it covers at once what is complete.
    ///
    /// # Errors
    /// What the operating system says. The file is readable up to the previous publication.
    pub fn publish(&self) -> io::Result<()> {
        let mut state = self.lock();
        if state.early.is_empty() {
            let end = state.contiguous;
            if end > state.published {
                // Only the size: 8 bytes, so no reader ever sees half of a change.
                self.out.write_all_at(&(end - self.data_offset).to_le_bytes(), DATA_SIZE_AT)?;
                state.published = end;
            }
            return Ok(());
        }
        let end_bytes = state.end_of_records().len() as u64;
        let after_table = state.cover.map_or(self.data_offset, |cover| cover + end_bytes);
        if state.pending.is_some() || state.next == after_table {
            return Ok(());
        }
        let place = state.next;
        state.next += end_bytes;
        state.pending = Some(place);
        if place == state.contiguous {
            self.publish_table(&mut state)?;
        }
        Ok(())
    }

    /// Publishes with the table at `state.pending`, where all records end.
    fn publish_table(&self, state: &mut WriteState) -> io::Result<()> {
        let Some(cover) = state.pending else { return Ok(()) };
        let end = state.end_of_records();
        self.out.write_all_at(&end, cover)?;
        self.cover_table(state)?;
        let published = cover + COVER_BYTES;
        self.out.write_all_at(&self.header(published - self.data_offset, &state.early_bits()), 0)?;
        state.cover = Some(cover);
        state.pending = None;
        state.published = published;
        state.islands.insert(cover, cover + end.len() as u64);
        state.advance();
        Ok(())
    }

    /// Makes the published table the body of a record that readers pass over. What it says stays.
    fn cover_table(&self, state: &mut WriteState) -> io::Result<()> {
        let Some(cover) = state.cover else { return Ok(()) };
        // The type that perf gave up: every version of it passes over such records.
        let size = state.end_of_records().len() as u16;
        let record = RecordHeader { kind: PERF_RECORD_HEADER_EVENT_TYPE, misc: 0, size };
        self.out.write_all_at(&record.to_bytes(), cover)?;
        state.cover = None;
        Ok(())
    }

    /// Ends the recording: publishes everything and writes the features. Early features that
    /// `features` has too are replaced; the others stay.
    ///
    /// Returns the number of bytes that are lost because a write before them had failed; usually 0.
    ///
    /// # Errors
    /// What the operating system says. The file stays readable up to the previous publication.
    pub fn finish(&self, features: &Features) -> io::Result<u64> {
        let mut state = self.lock();
        let end = state.contiguous;
        let mut sections = state.early.clone();
        let bits = features.bits();
        sections.retain(|entry| !bits.contains(&entry.0));
        let mut offset = end + 16 * (sections.len() + bits.len()) as u64;
        let mut payloads = Vec::new();
        for bit in bits {
            let payload = features.section(bit).unwrap_or_default();
            sections.push((bit, offset, payload.len() as u64));
            offset += payload.len() as u64;
            payloads.extend_from_slice(&payload);
        }
        sections.sort_unstable();
        let mut tail = table_of(&sections);
        tail.append(&mut payloads);
        self.out.write_all_at(&tail, end)?;
        self.cover_table(&mut state)?;
        let bits: Vec<u32> = sections.iter().map(|entry| entry.0).collect();
        self.out.write_all_at(&self.header(end - self.data_offset, &bits), 0)?;
        state.published = end;
        let pending = if state.pending.is_some() { state.end_of_records().len() as u64 } else { 0 };
        let lost = (state.next - end).saturating_sub(pending);
        drop(state);
        let ended = if lost == 0 { RecorderState::Finished } else { RecorderState::Incomplete };
        // All that matters is in its place. Where this fails, readers say that the recorder did not
        // finish.
        let _ = self.write_state(ended);
        Ok(lost)
    }

    /// Notes in the file that the recording lacks what came last, for those who read it later.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn mark_incomplete(&self) -> io::Result<()> {
        self.write_state(RecorderState::Incomplete)
    }

    fn write_state(&self, state: RecorderState) -> io::Result<()> {
        self.out.write_all_at(&state.to_bytes(), start_table::state_at(self.data_offset))
    }
}

impl WriteState {
    fn early_bits(&self) -> Vec<u32> {
        self.early.iter().map(|entry| entry.0).collect()
    }

    /// A cover and the table of early features, with as many bytes as the record that they become;
    /// nothing where there are no early features.
    fn end_of_records(&self) -> Vec<u8> {
        if self.early.is_empty() {
            return Vec::new();
        }
        let mut end = build::finished_round();
        end.extend_from_slice(&table_of(&self.early));
        end.resize(end.len().max(SMALLEST_EVENT_TYPE_RECORD), 0);
        end
    }

    /// Moves the end of what is whole over pieces that now touch it.
    fn advance(&mut self) {
        while let Some(entry) = self.islands.first_entry()
            && *entry.key() == self.contiguous
        {
            self.contiguous = entry.remove();
        }
    }
}

fn table_of(sections: &[FeatureSection]) -> Vec<u8> {
    sections
        .iter()
        .flat_map(|(_, offset, size)| [offset.to_le_bytes(), size.to_le_bytes()])
        .flatten()
        .collect()
}

/// Writes a recording in pipe form, for `-o -`.
pub struct PipeWriter<W: io::Write> {
    out: W,
}

impl<W: io::Write> PipeWriter<W> {
    /// Starts a pipe recording: header, events with their names, features, formats of tracepoints.
    ///
    /// Build IDs among the features are written too; more can follow later with
    /// [`build::build_id_entry`] of type HEADER_BUILD_ID.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn create(out: W, events: &[EventSpec], features: &Features) -> io::Result<PipeWriter<W>> {
        use crate::abi::{HEADER_BUILD_ID, HEADER_TRACING_DATA, PERF_RECORD_HEADER_BUILD_ID};
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&PIPE_HEADER_BYTES.to_le_bytes());
        for event in events {
            bytes.extend_from_slice(&build::header_attr(&event.attr, &event.ids));
        }
        for bit in features.bits() {
            if matches!(bit, HEADER_TRACING_DATA | HEADER_BUILD_ID) {
                continue;
            }
            let record = features.section(bit).and_then(|section| build::header_feature(bit, &section));
            bytes.extend(record.unwrap_or_default());
        }
        if let Some(blob) = &features.tracing_data {
            bytes.extend_from_slice(&build::tracing_data(blob));
        }
        for event in events {
            if let Some(&id) = event.ids.first() {
                bytes.extend_from_slice(&build::event_name(id, &event.name));
            }
        }
        for id in &features.build_ids {
            bytes.extend_from_slice(&build::build_id_entry(PERF_RECORD_HEADER_BUILD_ID, id));
        }
        bytes.extend_from_slice(&RecorderState::Recording.record());
        let mut writer = PipeWriter { out };
        writer.append(&bytes)?;
        Ok(writer)
    }

    /// Writes whole records.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn append(&mut self, records: &[u8]) -> io::Result<()> {
        self.out.write_all(records)
    }

    /// Says that the recording is complete, flushes, and gives back what was written to. Without
    /// this, readers say that the end is missing.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn finish(mut self) -> io::Result<W> {
        self.append(&RecorderState::Finished.record())?;
        self.out.flush()?;
        Ok(self.out)
    }
}
