//! Writes recordings as files that are valid at every moment.
//!
//! ```text
//!  header | ids | attrs | early payloads | start table | table | records ... | table | payloads
//!                                                                              ^ published end
//! ```
//!
//! The header's data size is brought up to date by [`FileWriter::publish`], so that a recorder that
//! is killed leaves a file that ends at the last publication. A reader looks for the table of
//! features where the data ends. Features that are known when the recording starts (the formats of
//! tracepoints, without which perf opens nothing) are given to
//! [`FileWriter::create_with_features`]: their payloads lie before the data, and each publication
//! writes a small table of them after the records. The next one turns the old table into a record
//! that readers pass over. In that moment the header has no features: kymo then takes those of the
//! [start table](crate::start_table), which also says whether the recorder came to its end.
//!
//! perf opens no file without a single record: a recorder publishes one before it gives the file
//! its name.
//!
//! Invariants:
//! - I1: `data_offset..contiguous` of the file holds whole records, apart from one table at
//!   `table`.
//! - I2: the header never tells of bytes that are not written.
//! - I3: the header has feature bits only while the table after the data that it tells of is whole.

use crate::abi::{PERF_RECORD_HEADER_EVENT_TYPE, SMALLEST_EVENT_TYPE_RECORD};
use crate::attr::{Attr, size_written};
use crate::build;
use crate::features::{EventDesc, Features, GroupDesc};
use crate::header::{FILE_HEADER_BYTES, MAGIC, PIPE_HEADER_BYTES};
use crate::record::RecordHeader;
use crate::source::WriteAt;
use crate::start_table::{self, FeatureSection, RecorderState};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Where the header has the size of the data.
const DATA_SIZE_AT: u64 = 48;

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
    /// Where the table of the published state lies; it has to become a record before data after it
    /// is published.
    table: Option<u64>,
    /// A table that was given a place, but records before it are not written yet.
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
        bytes.extend_from_slice(&start_table::bytes(&sections));
        let data_offset = bytes.len() as u64;
        let bits: Vec<u32> = sections.iter().map(|entry| entry.0).collect();
        let mut state = WriteState {
            next: data_offset,
            contiguous: data_offset,
            published: data_offset,
            early: sections,
            ..WriteState::default()
        };
        let table = state.table();
        if !table.is_empty() {
            state.table = Some(data_offset);
            state.next += table.len() as u64;
            state.contiguous = state.next;
            bytes.extend_from_slice(&table);
        }
        let writer =
            FileWriter { out, data_offset, attrs_offset, attrs_size, attr_bytes, state: Mutex::new(state) };
        if let Some(start) = bytes.get_mut(..FILE_HEADER_BYTES as usize) {
            start.copy_from_slice(&writer.header(0, &bits));
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
        self.lock().table().len()
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
        let table_bytes = state.table().len() as u64;
        let after_table = state.table.map_or(self.data_offset, |table| table + table_bytes);
        if state.pending.is_some() || state.next == after_table {
            return Ok(());
        }
        let table = state.next;
        state.next += table_bytes;
        state.pending = Some(table);
        if table == state.contiguous {
            self.publish_table(&mut state)?;
        }
        Ok(())
    }

    /// Publishes with the table at `state.pending`, where all records end.
    fn publish_table(&self, state: &mut WriteState) -> io::Result<()> {
        let Some(at) = state.pending else { return Ok(()) };
        let bits: Vec<u32> = state.early.iter().map(|entry| entry.0).collect();
        let table = state.table();
        self.out.write_all_at(&table, at)?;
        self.retire_table(state)?;
        self.out.write_all_at(&self.header(at - self.data_offset, &bits), 0)?;
        state.table = Some(at);
        state.pending = None;
        state.published = at;
        state.islands.insert(at, at + table.len() as u64);
        state.advance();
        Ok(())
    }

    /// Turns the published table into a record that readers pass over. For that moment the header
    /// has no features.
    fn retire_table(&self, state: &mut WriteState) -> io::Result<()> {
        let Some(table) = state.table else { return Ok(()) };
        self.out.write_all_at(&self.header(state.published - self.data_offset, &[]), 0)?;
        // The type that perf gave up: every version of it passes over such records.
        let size = state.table().len() as u16;
        let mut record =
            RecordHeader { kind: PERF_RECORD_HEADER_EVENT_TYPE, misc: 0, size }.to_bytes().to_vec();
        record.resize(usize::from(size), 0);
        self.out.write_all_at(&record, table)?;
        state.table = None;
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
        self.retire_table(&mut state)?;
        let bits: Vec<u32> = sections.iter().map(|entry| entry.0).collect();
        self.out.write_all_at(&self.header(end - self.data_offset, &bits), 0)?;
        state.published = end;
        let pending = if state.pending.is_some() { state.table().len() as u64 } else { 0 };
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
    /// The table of early features, with as many bytes as the record that it becomes.
    fn table(&self) -> Vec<u8> {
        let mut table = table_of(&self.early);
        if !table.is_empty() {
            table.resize(table.len().max(SMALLEST_EVENT_TYPE_RECORD), 0);
        }
        table
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
