//! One stream of records: finds where records end, and unpacks compressed ones.
//!
//! ```text
//!  file    | rec | rec | rec | COMPRESSED | COMPRESSED | rec | COMPRESSED |
//!                              \___ bytes of one zstd stream; records may cross ___/
//!  chunks  [ about 1 MiB of whole records ] [ ... ]
//! ```
//!
//! A stream without compressed records is cut by walking over record headers, nothing is copied
//! twice, and the cuts are remembered: a second reading needs no order. A compressed stream has to
//! be unpacked in order, each time.

use crate::abi::*;
use crate::chunk::{CHUNK_BYTES, Chunk};
use crate::cursor::{RecordCursor, WholeRecord};
use crate::problem::Problem;
use crate::record::{RECORD_HEADER_BYTES, RecordHeader};
use crate::source::{ReadAt, read_full};
use crate::words::{u32_at, u64_at};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use zstd::stream::raw::{Decoder, InBuffer, Operation, OutBuffer};

/// A byte range of a file that holds records.
#[derive(Clone)]
pub(crate) struct Stream {
    pub(crate) source: Arc<dyn ReadAt>,
    pub(crate) name: String,
    pub(crate) number: usize,
    pub(crate) range: Range<u64>,
}

impl Stream {
    pub(crate) fn data_bytes(&self) -> u64 {
        self.range.end.saturating_sub(self.range.start)
    }
}

/// Where one chunk of an uncompressed stream lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkPlace {
    pub(crate) offset: u64,
    pub(crate) len: usize,
    pub(crate) records: u64,
}

/// Records unpack to some 5 to 50 times their length. A stream that makes more than this of its
/// bytes, beyond the first [`FREE_BYTES`], is made to keep its reader busy.
const BEST_RATIO: u64 = 1000;
const FREE_BYTES: u64 = 64 << 20;

/// How many unknown record types are told apart before the rest is only counted.
const UNKNOWN_TYPES_MAX: usize = 32;
const STREAM_SHIFT: u32 = 48;

/// Reads a stream once, in order.
pub(crate) struct StreamReader {
    stream: Stream,
    /// Next byte of the file.
    offset: u64,
    /// Position of the next record that is delivered, without the stream's number.
    position: u64,
    packed: Option<Box<Packed>>,
    unpack: bool,
    passed_compressed: bool,
    pub(crate) finished: bool,
    pub(crate) records: u64,
    pub(crate) places: Vec<ChunkPlace>,
    pub(crate) problems: Vec<Problem>,
    unknown: BTreeMap<u32, (u64, u64)>,
}

/// State of a compressed stream.
struct Packed {
    decoder: Decoder<'static>,
    /// Bytes of the file, read ahead; `at` is the next one.
    input: Vec<u8>,
    at: usize,
    /// What is left of the current record's payload, within `input`.
    payload: Range<usize>,
    /// The decoder took its input but had no room for all that it made: more comes without further
    /// input.
    holds_output: bool,
    /// Unpacked bytes of a record whose end is not there yet.
    carry: Vec<u8>,
    /// Compressed bytes taken and bytes made of them, so far.
    taken_bytes: u64,
    made_bytes: u64,
}

/// What [`StreamReader::walk_window`] leaves to do.
#[derive(Default)]
pub(crate) struct Walked {
    /// Something follows that has to be read in order.
    pub(crate) special: bool,
    /// The last record has so many bytes beyond the window,
    pub(crate) tail_bytes: Option<usize>,
    /// from this file offset on,
    pub(crate) tail_offset: u64,
    /// and so many bytes of the chunk are without it.
    pub(crate) whole_bytes: usize,
}

/// What a walk over record headers ran into.
enum WalkEnd {
    /// The rest is no whole record.
    Incomplete,
    /// The record there needs special treatment; it is whole.
    Special(RecordHeader),
    /// Its size cannot be.
    Damaged(RecordHeader),
}

fn is_unknown(kind: u32) -> bool {
    kind == 0
        || (kind > PERF_RECORD_CALLCHAIN_DEFERRED && kind < PERF_RECORD_HEADER_ATTR)
        || kind > PERF_RECORD_SCHEDSTAT_DOMAIN
}

/// Types that the walk has to look at: payload that follows, and compressed bytes. One test in the
/// common case.
fn is_special(kind: u32) -> bool {
    kind >= PERF_RECORD_HEADER_TRACING_DATA
        && matches!(
            kind,
            PERF_RECORD_HEADER_TRACING_DATA
                | PERF_RECORD_AUXTRACE
                | PERF_RECORD_COMPRESSED
                | PERF_RECORD_COMPRESSED2
        )
}

/// How many bytes follow a record of this type without being part of its size.
fn payload_behind(header: RecordHeader, body: &[u8]) -> u64 {
    match header.kind {
        PERF_RECORD_AUXTRACE => u64_at(body, 0).unwrap_or(0),
        PERF_RECORD_HEADER_TRACING_DATA => u64::from(u32_at(body, 0).unwrap_or(0)).next_multiple_of(8),
        _ => 0,
    }
}

impl StreamReader {
    pub(crate) fn new(stream: &Stream) -> StreamReader {
        StreamReader {
            offset: stream.range.start,
            position: stream.range.start,
            stream: stream.clone(),
            packed: None,
            unpack: true,
            passed_compressed: false,
            finished: false,
            records: 0,
            places: Vec::new(),
            problems: Vec::new(),
            unknown: BTreeMap::new(),
        }
    }

    /// A reader that passes over compressed records: for what a pipe recording says about itself.
    pub(crate) fn without_unpacking(stream: &Stream) -> StreamReader {
        StreamReader { unpack: false, ..StreamReader::new(stream) }
    }

    /// Whether compressed records were met: then `places` do not describe the stream.
    pub(crate) fn is_packed(&self) -> bool {
        self.packed.is_some()
    }

    /// Whether compressed records were passed over.
    pub(crate) fn passed_compressed(&self) -> bool {
        self.passed_compressed
    }

    pub(crate) fn number(&self) -> usize {
        self.stream.number
    }

    pub(crate) fn name(&self) -> &str {
        &self.stream.name
    }

    /// The next byte of the file that will be read.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    fn tag(&self, position: u64) -> u64 {
        (self.stream.number as u64) << STREAM_SHIFT | position
    }

    fn problem(&mut self, position: u64, kind: Option<u32>, what: String) {
        let position = self.tag(position);
        self.problems.push(Problem::new(position, kind, what));
    }

    /// Fills `chunk` with the next whole records. `false`: there are no more.
    pub(crate) fn next_chunk(&mut self, chunk: &mut Chunk) -> io::Result<bool> {
        chunk.from = 0;
        chunk.used = 0;
        chunk.stream = self.stream.number;
        while !self.finished {
            chunk.position = self.tag(self.position);
            if self.packed.is_some() {
                self.next_packed(chunk)?;
            } else {
                self.next_plain(chunk)?;
            }
            if chunk.used > 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn next_plain(&mut self, chunk: &mut Chunk) -> io::Result<()> {
        let left = self.stream.range.end.saturating_sub(self.offset);
        let want = usize::try_from(left).unwrap_or(usize::MAX).min(CHUNK_BYTES);
        let room = chunk.make_room(want);
        let got = read_full(&*self.stream.source, room, self.offset)?;
        let bytes = chunk.buffer.get(..got).unwrap_or(&[]);
        let before = self.records;
        let (mut walked, stop) = self.walk(bytes, self.position);
        let mut behind = 0;
        match stop {
            WalkEnd::Special(header)
                if matches!(header.kind, PERF_RECORD_COMPRESSED | PERF_RECORD_COMPRESSED2) =>
            {
                if self.unpack {
                    self.packed = Some(Box::new(Packed {
                        decoder: Decoder::new()?,
                        input: Vec::new(),
                        at: 0,
                        payload: 0..0,
                        holds_output: false,
                        carry: Vec::new(),
                        taken_bytes: 0,
                        made_bytes: 0,
                    }));
                } else {
                    self.passed_compressed = true;
                    behind = u64::from(header.size);
                }
            }
            WalkEnd::Special(header) => {
                let size = usize::from(header.size);
                let body = bytes.get(walked + RECORD_HEADER_BYTES..walked + size).unwrap_or(&[]);
                behind = payload_behind(header, body);
                self.records += 1;
                walked += size;
            }
            WalkEnd::Damaged(header) => self.damaged(header, self.position + walked as u64),
            WalkEnd::Incomplete => {
                if got < want || got as u64 == left {
                    self.end(bytes.get(walked..).unwrap_or(&[]), self.position + walked as u64);
                }
            }
        }
        chunk.used = walked;
        if walked > 0 {
            let records = self.records - before;
            self.places.push(ChunkPlace { offset: self.offset, len: walked, records });
        }
        let advance = (walked as u64).saturating_add(behind);
        self.offset = self.offset.saturating_add(advance);
        self.position = self.position.saturating_add(advance);
        if behind > 0 && self.offset > self.stream.range.end {
            let missing = self.offset - self.stream.range.end;
            self.problem(
                self.position,
                None,
                format!("{missing} bytes of payload are missing: the file is cut off"),
            );
            self.finished = true;
        }
        Ok(())
    }

    /// Walks over the records that start in the window of which `got` bytes from file offset
    /// `start` are in `chunk`, and makes them the chunk. The window has one header more than
    /// `CHUNK_BYTES`, unless the stream ends before.
    pub(crate) fn walk_window(&mut self, chunk: &mut Chunk, start: u64, got: usize) -> Walked {
        let mut walked = Walked::default();
        chunk.stream = self.stream.number;
        chunk.position = self.tag(self.position);
        chunk.used = 0;
        // The record before may reach far into this window, or over it.
        let from = usize::try_from(self.offset - start).unwrap_or(usize::MAX);
        chunk.from = from.min(got);
        if from > got || (from == got && self.offset < self.stream.range.end) {
            if (got as u64) < (CHUNK_BYTES as u64).min(self.stream.range.end - start) {
                self.end(&[], self.position);
            }
            return walked;
        }
        let bytes = chunk.buffer.get(from..got).unwrap_or(&[]);
        let before = self.records;
        let (mut len, stop) = self.walk(bytes, self.position);
        let rest = bytes.get(len..).unwrap_or(&[]);
        let at = self.offset + len as u64;
        match stop {
            WalkEnd::Special(_) => walked.special = true,
            WalkEnd::Damaged(header) => self.damaged(header, at),
            // All of the window was walked over, up to the header that belongs to the next.
            WalkEnd::Incomplete if at >= start + CHUNK_BYTES as u64 => {}
            WalkEnd::Incomplete => match RecordHeader::parse(rest) {
                Some(header) if at + u64::from(header.size) <= self.stream.range.end => {
                    if is_special(header.kind) {
                        walked.special = true;
                    } else {
                        if is_unknown(header.kind) {
                            self.count_unknown(header.kind, at);
                        }
                        walked.whole_bytes = len;
                        walked.tail_offset = at + rest.len() as u64;
                        walked.tail_bytes = Some(usize::from(header.size) - rest.len());
                        self.records += 1;
                        len += usize::from(header.size);
                    }
                }
                _ => self.end(rest, at),
            },
        }
        chunk.used = len;
        if len > 0 {
            self.places.push(ChunkPlace { offset: self.offset, len, records: self.records - before });
        }
        self.offset += len as u64;
        self.position += len as u64;
        if self.offset == self.stream.range.end && !self.finished {
            self.close();
        }
        walked
    }

    /// Walks over whole records from the start of `bytes`; returns how many bytes they have and why
    /// it stopped.
    #[inline]
    fn walk(&mut self, bytes: &[u8], position: u64) -> (usize, WalkEnd) {
        let mut cursor = RecordCursor::new(bytes);
        for WholeRecord { header, offset, .. } in cursor.by_ref() {
            if is_special(header.kind) {
                return (offset, WalkEnd::Special(header));
            }
            if is_unknown(header.kind) {
                self.count_unknown(header.kind, position + offset as u64);
            }
            self.records += 1;
        }
        let end = match RecordHeader::parse(cursor.rest()) {
            Some(header) if usize::from(header.size) < RECORD_HEADER_BYTES => WalkEnd::Damaged(header),
            _ => WalkEnd::Incomplete,
        };
        (cursor.offset(), end)
    }

    #[cold]
    fn count_unknown(&mut self, kind: u32, position: u64) {
        let full = self.unknown.len() >= UNKNOWN_TYPES_MAX;
        match self.unknown.get_mut(&kind) {
            Some(entry) => entry.0 += 1,
            None if !full => {
                self.unknown.insert(kind, (1, position));
            }
            None => {}
        }
    }

    #[cold]
    fn damaged(&mut self, header: RecordHeader, position: u64) {
        let what = format!(
            "the record's size is {}, less than its own header of 8; the rest of {} cannot be read",
            header.size, self.stream.name
        );
        self.problem(position, Some(header.kind), what);
        self.close();
    }

    /// The stream's end, with bytes left that are no whole record.
    fn end(&mut self, rest: &[u8], position: u64) {
        match RecordHeader::parse(rest) {
            // The recorder was killed, or seen, while it published: see `writer`.
            Some(header) if header.kind == PERF_RECORD_HEADER_EVENT_TYPE && self.goes_on(header, rest) => {}
            Some(header) => {
                let missing = usize::from(header.size).saturating_sub(rest.len());
                let what = format!(
                    "the last record is cut off: {missing} of its {} bytes are missing; all before it was read",
                    header.size
                );
                self.problem(position, Some(header.kind), what);
            }
            None if rest.is_empty() => {}
            None => {
                let what = format!("{} bytes are left at the end, too few for a record; ignored", rest.len());
                self.problem(position, None, what);
            }
        }
        self.close();
    }

    /// Whether the file has all bytes of a record of which the stream has only the `rest`.
    fn goes_on(&self, header: RecordHeader, rest: &[u8]) -> bool {
        let missing = usize::from(header.size).saturating_sub(rest.len()) as u64;
        let end = self.stream.range.end.checked_add(missing);
        end.zip(self.stream.source.len().ok()).is_some_and(|(end, len)| end <= len)
    }

    fn close(&mut self) {
        self.finished = true;
        for (kind, (count, position)) in std::mem::take(&mut self.unknown) {
            let what = match (count, kind >= SIMPLEPERF_FIRST_RECORD) {
                (1, false) => {
                    "1 record of this type, which is unknown here (from a newer perf?), was passed over"
                        .to_owned()
                }
                (_, false) => format!(
                    "{count} records of this type, which is unknown here (from a newer perf?), were passed over"
                ),
                (1, true) => "1 record of simpleperf, which kymo does not read, was passed over".to_owned(),
                (_, true) => {
                    format!("{count} records of simpleperf, which kymo does not read, were passed over")
                }
            };
            let position = self.tag(position);
            self.problems.push(Problem::note(position, Some(kind), what));
        }
    }

    fn next_packed(&mut self, chunk: &mut Chunk) -> io::Result<()> {
        let Some(mut packed) = self.packed.take() else { return Ok(()) };
        let result = self.unpack_into(&mut packed, chunk);
        self.packed = Some(packed);
        result
    }

    /// `whole..filled` of the chunk's buffer always is the start of a record that is not complete
    /// yet.
    fn unpack_into(&mut self, packed: &mut Packed, chunk: &mut Chunk) -> io::Result<()> {
        let buffer = chunk.make_room(CHUNK_BYTES);
        let room = buffer.len();
        let mut whole = 0;
        let mut filled = packed.carry.len();
        if let Some(start) = buffer.get_mut(..filled) {
            start.copy_from_slice(&packed.carry);
        }
        packed.carry.clear();
        while !self.finished && filled < room {
            if packed.payload.is_empty() && !packed.holds_output {
                let Some((header, body)) = self.next_input(packed)? else {
                    if !self.finished {
                        let rest = buffer.get(whole..filled).unwrap_or(&[]);
                        self.end(rest, self.position + whole as u64);
                    }
                    break;
                };
                match header.kind {
                    PERF_RECORD_COMPRESSED => packed.payload = body,
                    PERF_RECORD_COMPRESSED2 => {
                        let bytes = packed.input.get(body.clone()).unwrap_or(&[]);
                        let size = u64_at(bytes, 0).unwrap_or(u64::MAX);
                        if size > bytes.len().saturating_sub(8) as u64 {
                            let what = "its data size is larger than the record; the rest cannot be unpacked";
                            self.problem(self.offset, Some(header.kind), what.to_owned());
                            self.close();
                            break;
                        }
                        packed.payload = body.start + 8..body.start + 8 + size as usize;
                    }
                    _ => {
                        let size = usize::from(header.size);
                        if filled + size > room {
                            break;
                        }
                        let record = body.start - RECORD_HEADER_BYTES..body.end;
                        buffer.copy_within(whole..filled, whole + size);
                        if let (Some(to), Some(from)) =
                            (buffer.get_mut(whole..whole + size), packed.input.get(record))
                        {
                            to.copy_from_slice(from);
                        }
                        if is_unknown(header.kind) {
                            self.count_unknown(header.kind, self.position + whole as u64);
                        }
                        whole += size;
                        filled += size;
                        self.records += 1;
                        let behind = payload_behind(header, packed.input.get(body).unwrap_or(&[]));
                        self.consume(packed, size);
                        self.skip(packed, behind);
                        continue;
                    }
                }
                self.consume(packed, usize::from(header.size));
                continue;
            }
            let mut input = InBuffer::around(packed.input.get(packed.payload.clone()).unwrap_or(&[]));
            let mut output = OutBuffer::around(buffer.get_mut(filled..).unwrap_or_default());
            let outcome = packed.decoder.run(&mut input, &mut output);
            let (taken, made) = (input.pos(), output.pos());
            let had_input = !packed.payload.is_empty();
            packed.holds_output = made == output.capacity();
            if let Err(error) = outcome {
                let what = format!("the compressed data is damaged ({error}); the rest cannot be read");
                self.problem(self.offset, Some(PERF_RECORD_COMPRESSED), what);
                self.close();
            }
            packed.payload.start += taken;
            filled += made;
            packed.taken_bytes += taken as u64;
            packed.made_bytes += made as u64;
            if packed.made_bytes > packed.taken_bytes.saturating_mul(BEST_RATIO) + FREE_BYTES
                && !self.finished
            {
                let what = format!(
                    "{} compressed bytes unpack to more than {BEST_RATIO} times as many; the rest was not read",
                    packed.taken_bytes
                );
                self.problem(self.offset, Some(PERF_RECORD_COMPRESSED), what);
                self.close();
            }
            if taken == 0 && made == 0 && had_input && !self.finished {
                let what = "the compressed data makes no progress; the rest cannot be read".to_owned();
                self.problem(self.offset, Some(PERF_RECORD_COMPRESSED), what);
                self.close();
            }
            let position = self.position + whole as u64;
            let (walked, stop) = self.walk_unpacked(buffer.get(whole..filled).unwrap_or(&[]), position);
            whole += walked;
            if let WalkEnd::Damaged(header) = stop {
                self.damaged(header, self.position + whole as u64);
            }
        }
        packed.carry.extend_from_slice(buffer.get(whole..filled).unwrap_or(&[]));
        chunk.used = whole;
        self.position = self.position.saturating_add(whole as u64);
        Ok(())
    }

    /// As `walk`, but nothing is special within unpacked bytes: a compressed record in them stays
    /// opaque.
    fn walk_unpacked(&mut self, bytes: &[u8], position: u64) -> (usize, WalkEnd) {
        let mut at = 0;
        loop {
            let (walked, stop) = self.walk(bytes.get(at..).unwrap_or(&[]), position + at as u64);
            at += walked;
            match stop {
                WalkEnd::Special(header) => {
                    self.records += 1;
                    at += usize::from(header.size);
                }
                stop => return (at, stop),
            }
        }
    }

    /// The next whole record of the file: its header and where its body lies in `packed.input`.
    fn next_input(&mut self, packed: &mut Packed) -> io::Result<Option<(RecordHeader, Range<usize>)>> {
        for refill in [true, false] {
            let rest = packed.input.get(packed.at..).unwrap_or(&[]);
            if let Some(header) = RecordHeader::parse(rest) {
                let size = usize::from(header.size);
                if size < RECORD_HEADER_BYTES {
                    self.damaged(header, self.offset);
                    return Ok(None);
                }
                if size <= rest.len() {
                    let start = packed.at + RECORD_HEADER_BYTES;
                    return Ok(Some((header, start..packed.at + size)));
                }
            }
            if refill {
                let left = self.stream.range.end.saturating_sub(self.offset);
                let want = usize::try_from(left).unwrap_or(usize::MAX).min(CHUNK_BYTES);
                packed.input.resize(want, 0);
                let got = read_full(&*self.stream.source, &mut packed.input, self.offset)?;
                packed.input.truncate(got);
                packed.at = 0;
            }
        }
        let rest = packed.input.get(packed.at..).unwrap_or(&[]).to_vec();
        if !rest.is_empty() {
            self.end(&rest, self.offset);
        }
        Ok(None)
    }

    fn consume(&mut self, packed: &mut Packed, bytes: usize) {
        packed.at += bytes;
        self.offset += bytes as u64;
    }

    /// Passes over payload behind a record, which may reach beyond what was read ahead.
    fn skip(&mut self, packed: &mut Packed, bytes: u64) {
        self.offset = self.offset.saturating_add(bytes);
        let at = (packed.at as u64).saturating_add(bytes);
        if at > packed.input.len() as u64 {
            packed.input.clear();
            packed.at = 0;
        } else {
            packed.at = at as usize;
        }
    }
}
