//! The start of a recording: file header and event descriptions.
//!
//! ```text
//!  byte 0        8           16              24           40          56               72        104
//!  +-------------+-----------+---------------+------------+-----------+----------------+---------+
//!  | "PERFILE2"  | size: 104 | attr_size + 16| attrs      | data      | event_types    | feature |
//!  |             |           |               | off, size  | off, size | 0, 0           | bits    |
//!  +-------------+-----------+---------------+------------+-----------+----------------+---------+
//!  | ids of event 0 | ids of event 1 | ...   (u64 each)                                          |
//!  | attr 0 (64 to 144 bytes), its ids section (off, size) | attr 1 ...                          |
//!  | early payloads and a list of them (kymo; see start_table)                                  |
//!  | data: records, one after the other                                                          |
//!  | one section (off, size) per feature bit, ascending | payloads of the features               |
//!  +---------------------------------------------------------------------------------------------+
//!
//!  pipe: "PERFILE2", size: 16, then records; HEADER_ATTR, HEADER_FEATURE ... are among them
//! ```

use crate::attr::Attr;
use crate::event::Event;
use crate::features::{EventDesc, Features};
use crate::problem::{OpenError, Problem, looks_like};
use crate::source::{ReadAt, read_full, read_section};
use crate::start_table::{self, FeatureSection};
use crate::words::{Words, u32_at, u64_at};
use std::collections::HashMap;
use std::ops::Range;

pub(crate) const MAGIC: &[u8; 8] = b"PERFILE2";
pub(crate) const FILE_HEADER_BYTES: u64 = 104;
pub(crate) const PIPE_HEADER_BYTES: u64 = 16;
/// An attr of 64 bytes and its section of ids.
const ATTR_ENTRY_MIN: u64 = 64 + 16;

/// What the start of the file says.
pub(crate) enum FileForm {
    /// Events and features are in sections.
    File {
        events: Vec<Event>,
        features: Box<Features>,
        data: Range<u64>,
        problems: Vec<Problem>,
        /// The header tells of no records although some are there.
        is_unfinished: bool,
    },
    /// Everything is in records from byte 16 on.
    Pipe { data: Range<u64> },
}

/// Whether a file that starts with these bytes is a recording: of this machine's byte order or the
/// other, of version 2 or 1.
pub fn is_recording(start: &[u8]) -> bool {
    [MAGIC, b"2ELIFREP", b"PERFFILE", b"ELIFFREP"].iter().any(|magic| start.starts_with(*magic))
}

fn io_at(offset: u64) -> impl FnOnce(std::io::Error) -> OpenError {
    move |source| OpenError::Io { offset, source }
}

/// Reads the header of `source`.
pub(crate) fn read(source: &dyn ReadAt) -> Result<FileForm, OpenError> {
    let len = source.len().map_err(io_at(0))?;
    let mut start = [0; FILE_HEADER_BYTES as usize];
    let got = read_full(source, &mut start, 0).map_err(io_at(0))?;
    let start = start.get(..got).unwrap_or(&[]);
    if start.is_empty() {
        return Err(OpenError::Empty);
    }
    match start.first_chunk::<8>() {
        Some(magic) if magic == MAGIC => {}
        Some(b"2ELIFREP") => return Err(OpenError::BigEndian),
        Some(b"PERFFILE" | b"ELIFFREP") => return Err(OpenError::Version1),
        // Even the magic is cut off.
        None if MAGIC.starts_with(start) => {
            return Err(OpenError::TruncatedHeader { len, need: PIPE_HEADER_BYTES });
        }
        _ => return Err(OpenError::NotPerfData { looks_like: looks_like(start) }),
    }
    match u64_at(start, 8) {
        None => Err(OpenError::TruncatedHeader { len, need: PIPE_HEADER_BYTES }),
        Some(PIPE_HEADER_BYTES) => Ok(FileForm::Pipe { data: PIPE_HEADER_BYTES..len }),
        Some(size) if size.swap_bytes() == FILE_HEADER_BYTES || size.swap_bytes() == PIPE_HEADER_BYTES => {
            Err(OpenError::BigEndian)
        }
        // A longer header may come one day; what we know of it stays where it is.
        Some(size) if !(FILE_HEADER_BYTES..4096).contains(&size) => Err(OpenError::HeaderSize { size }),
        Some(_) if (got as u64) < FILE_HEADER_BYTES => {
            Err(OpenError::TruncatedHeader { len, need: FILE_HEADER_BYTES })
        }
        Some(_) => read_file_form(source, start, len),
    }
}

fn section(name: &'static str, offset: u64, size: u64, len: u64) -> Result<Range<u64>, OpenError> {
    match offset.checked_add(size) {
        Some(end) if end <= len => Ok(offset..end),
        _ => Err(OpenError::SectionBeyondEnd { section: name, offset, size, len }),
    }
}

fn read_file_form(source: &dyn ReadAt, header: &[u8], len: u64) -> Result<FileForm, OpenError> {
    let word = |at| u64_at(header, at).unwrap_or(0);
    let mut problems = Vec::new();
    let mut events = read_events(source, word(16), word(24), word(32), len)?;
    let (data_offset, data_size) = (word(40), word(48));
    if data_offset > len {
        return Err(OpenError::SectionBeyondEnd {
            section: "data",
            offset: data_offset,
            size: data_size,
            len,
        });
    }
    let bits: Vec<u32> =
        (0..256).filter(|bit| word(72 + bit / 64 * 8) >> (bit % 64) & 1 == 1).map(|bit| bit as u32).collect();
    let mut reader = FeatureReader::new(source, len);
    let mut is_unfinished = false;
    let data = match data_offset.checked_add(data_size) {
        Some(end) if end <= len => {
            // A recorder sets the size last. perf sets the feature bits first, so they prove
            // nothing.
            let unfinished = data_size == 0 && !is_feature_table(source, end, &bits, len);
            if unfinished && len > data_offset {
                let what = "the header says that there are no records: the recorder did not finish; \
                            read up to the end of the file";
                is_unfinished = true;
                problems.push(Problem::note(48, None, what));
                data_offset..len
            } else {
                reader.table(end, &bits)?;
                data_offset..end
            }
        }
        _ => {
            let what = format!(
                "the header says that {data_size} bytes of records start at byte {data_offset:#x}, but the file ends \
                 at byte {len:#x}: it is cut off; read up to there, without what the recorder tells at the end"
            );
            problems.push(Problem::new(48, None, what));
            data_offset..len
        }
    };
    if let Some(start) = start_table::read(source, data_offset).map_err(io_at(data_offset))? {
        reader.missing(&start.sections)?;
        let end = start.state.problem().map(|what| Problem::new(data.end, None, what));
        problems.extend(end);
    }
    let features = reader.features;
    problems.append(&mut reader.problems);
    apply_features(&mut events, &features);
    Ok(FileForm::File { events, features, data, problems, is_unfinished })
}

fn read_events(
    source: &dyn ReadAt,
    attr_size: u64,
    offset: u64,
    size: u64,
    len: u64,
) -> Result<Vec<Event>, OpenError> {
    let range = section("attrs", offset, size, len)?;
    if !(ATTR_ENTRY_MIN..=4096).contains(&attr_size) {
        return Err(OpenError::AttrSize { offset: 16, size: attr_size.saturating_sub(16) });
    }
    let bytes = read_section(source, range.start, size).map_err(io_at(offset))?;
    let mut events = Vec::new();
    // All ids together cannot be more than the file; sections that overlap are no way around that.
    let mut budget = len;
    for (index, entry) in bytes.chunks_exact(attr_size as usize).enumerate() {
        let at = offset + index as u64 * attr_size;
        let attr_bytes = entry.get(..entry.len() - 16).unwrap_or(&[]);
        let own_size = u32_at(attr_bytes, 4).unwrap_or(0);
        if own_size != 0 && own_size < crate::attr::ATTR_SIZE_VER0 {
            return Err(OpenError::AttrSize { offset: at + 4, size: own_size.into() });
        }
        let known = match own_size {
            0 => attr_bytes,
            _ => attr_bytes.get(..own_size as usize).unwrap_or(attr_bytes),
        };
        let Some(attr) = Attr::parse(known) else {
            return Err(OpenError::AttrSize { offset: at + 4, size: own_size.into() });
        };
        let ids_offset = u64_at(entry, entry.len() - 16).unwrap_or(0);
        let ids_size = u64_at(entry, entry.len() - 8).unwrap_or(0);
        let ids = section("ids", ids_offset, ids_size, len)?;
        budget = budget.checked_sub(ids_size).ok_or(OpenError::SectionBeyondEnd {
            section: "ids",
            offset: ids_offset,
            size: ids_size,
            len,
        })?;
        let ids = read_section(source, ids.start, ids_size).map_err(io_at(ids_offset))?;
        events.push(Event::new(attr, Words::new(&ids).iter().collect(), index));
    }
    if events.is_empty() {
        return Err(OpenError::NoEvents { why: "the attrs section at byte 24 of the header is empty" });
    }
    Ok(events)
}

/// Whether sections of features, and not records, start at `offset`.
fn is_feature_table(source: &dyn ReadAt, offset: u64, bits: &[u32], len: u64) -> bool {
    let mut first = [0; 16];
    if bits.is_empty() || !matches!(read_full(source, &mut first, offset), Ok(16)) {
        return false;
    }
    let start = u64_at(&first, 0).unwrap_or(0);
    let end = start.checked_add(u64_at(&first, 8).unwrap_or(0));
    // Read as an offset, a record header is beyond any file: its size is in the highest bits. What
    // kymo knew from the start lies before the data, what was added at the end behind it.
    start >= FILE_HEADER_BYTES && end.is_some_and(|end| end <= len)
}

/// Reads sections of features.
struct FeatureReader<'a> {
    source: &'a dyn ReadAt,
    len: u64,
    /// All sections together cannot be more than the file.
    budget: u64,
    /// Bits whose sections were read.
    bits: Vec<u32>,
    features: Box<Features>,
    problems: Vec<Problem>,
}

impl<'a> FeatureReader<'a> {
    fn new(source: &'a dyn ReadAt, len: u64) -> FeatureReader<'a> {
        FeatureReader {
            source,
            len,
            budget: len,
            bits: Vec::new(),
            features: Box::default(),
            problems: Vec::new(),
        }
    }

    /// Reads the sections of the table after the data.
    fn table(&mut self, table: u64, bits: &[u32]) -> Result<(), OpenError> {
        for (index, &bit) in bits.iter().enumerate() {
            let at = table + 16 * index as u64;
            let mut entry = [0; 16];
            if read_full(self.source, &mut entry, at).map_err(io_at(at))? < entry.len() {
                let what = format!(
                    "the table of features ends before feature {bit}: the file is cut off; \
                     what the recorder tells about the machine is missing"
                );
                self.problems.push(Problem::new(at, None, what));
                break;
            }
            let (offset, size) = (u64_at(&entry, 0).unwrap_or(0), u64_at(&entry, 8).unwrap_or(0));
            self.section(at, (bit, offset, size))?;
        }
        Ok(())
    }

    /// Reads the sections that the table after the data did not have.
    fn missing(&mut self, sections: &[FeatureSection]) -> Result<(), OpenError> {
        for &(bit, offset, size) in sections {
            if !self.bits.contains(&bit) {
                self.section(offset, (bit, offset, size))?;
            }
        }
        Ok(())
    }

    /// Reads one section. `at`: the place to name where it is damaged.
    fn section(&mut self, at: u64, (bit, offset, size): FeatureSection) -> Result<(), OpenError> {
        if section("feature", offset, size, self.len).is_err() || size > self.budget {
            let what = format!(
                "feature {bit} should have {size} bytes at byte {offset:#x}, beyond the end of the file; it is missing"
            );
            self.problems.push(Problem::new(at, None, what));
            return Ok(());
        }
        self.budget -= size;
        let bytes = read_section(self.source, offset, size).map_err(io_at(offset))?;
        if !self.features.set_section(bit, &bytes) {
            let what = format!("feature {bit} ({size} bytes) is damaged; it is not used");
            self.problems.push(Problem::new(offset, None, what));
        }
        self.bits.push(bit);
        Ok(())
    }
}

/// Gives events the names and groups that the features tell.
pub(crate) fn apply_features(events: &mut [Event], features: &Features) {
    let tracepoints = features.tracing_data.as_deref().and_then(|blob| crate::tracing_data::parse(blob).ok());
    let descs = &features.event_desc;
    let by_ids: HashMap<&[u64], &EventDesc> =
        descs.iter().filter(|desc| !desc.ids.is_empty()).map(|desc| (desc.ids.as_slice(), desc)).collect();
    for (index, event) in events.iter_mut().enumerate() {
        // Without ids the order has to do: perf writes both lists in the same one.
        let by_place = || {
            let same = |desc: &&EventDesc| {
                desc.attr.kind == event.attr.kind && desc.attr.config == event.attr.config
            };
            descs.get(index).filter(same)
        };
        let desc = by_ids.get(event.ids.as_slice()).copied().or_else(by_place);
        if let Some(desc) = desc.filter(|desc| !desc.name.is_empty()) {
            event.name.clone_from(&desc.name);
        } else if event.attr.kind == crate::abi::PERF_TYPE_TRACEPOINT
            && let Some(format) = tracepoints.as_ref().and_then(|data| data.format(event.attr.config))
        {
            event.name = format!("{}:{}", format.system, format.name);
        }
    }
    for (event, facts) in events.iter_mut().zip(features.imported.iter().flat_map(|facts| &facts.events)) {
        event.unit = Some(facts.unit.clone());
    }
    // Groups do not overlap, so together they have no more members than there are events.
    let mut budget = events.len();
    for group in &features.groups {
        let (first, members) = (group.leader as usize, group.members as usize);
        if members > budget || first >= events.len() {
            break;
        }
        budget -= members;
        for (index, event) in events.iter_mut().enumerate().skip(first).take(members) {
            event.leader = first;
            if index == first && group.name != "{anon_group}" {
                event.group_name = Some(group.name.clone());
            }
        }
    }
}
