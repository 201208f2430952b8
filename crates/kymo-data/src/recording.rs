//! A recording, opened: its events, what it tells about the machine, and its records in parallel or in order.

use crate::abi::*;
use crate::attr::Attr;
use crate::chunk::{Chunk, Records};
use crate::event::{Event, Events};
use crate::features::Features;
use crate::header::{self, Form};
use crate::problem::{OpenError, Problem, ReadError};
use crate::record::{RawRecord, Record};
use crate::source::{ReadAt, read_full, read_section};
use crate::stream::{Place, Stream, StreamReader};
use crate::words::{u32_at, until_nul};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

/// An opened recording.
///
/// Opening reads the header and the descriptions of events, and for a pipe recording walks over all record headers
/// once, because descriptions may come anywhere. Records are read by [`read_parallel`](Recording::read_parallel)
/// or [`records`](Recording::records), as often as wanted.
pub struct Recording {
    /// The events.
    pub events: Events,
    /// What the recording tells about the machine and itself.
    pub features: Features,
    /// Damage that was found while opening. Damage among the records is reported by the reading.
    pub problems: Vec<Problem>,
    /// Whether it has the pipe form.
    pub is_pipe: bool,
    streams: Vec<Stream>,
    indexes: Vec<OnceLock<Index>>,
}

/// The chunks of a stream without compression, remembered from its first complete reading.
struct Index {
    places: Vec<Place>,
    problems: Vec<Problem>,
}

/// What one reading went over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadSummary {
    /// Records delivered.
    pub records: u64,
    /// Bytes delivered, after unpacking.
    pub bytes: u64,
    /// Damage that was found: cut-off ends, unknown record types (once per type), broken compression.
    pub problems: Vec<Problem>,
}

/// Longest tracing data that is taken out of a pipe.
const TRACING_DATA_MAX: u64 = 256 << 20;
const THREADS_MAX: usize = 1024;

impl std::fmt::Debug for Recording {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recording")
            .field("events", &self.events)
            .field("problems", &self.problems)
            .field("is_pipe", &self.is_pipe)
            .finish_non_exhaustive()
    }
}

impl Recording {
    /// Opens a recording: `main` is the file (or `data` of a `perf record --threads` directory), `parts` are the
    /// directory's `data.N` with their names, in the order in which they shall count as streams 1, 2, ...
    ///
    /// # Errors
    /// When it is no recording or its description of events cannot be read; see [`OpenError`].
    pub fn open(
        main: Arc<dyn ReadAt>,
        parts: Vec<(String, Arc<dyn ReadAt>)>,
    ) -> Result<Recording, OpenError> {
        let form = header::read(&*main)?;
        let mut streams = Vec::with_capacity(parts.len() + 1);
        let data = match &form {
            Form::File { data, .. } | Form::Pipe { data } => data.clone(),
        };
        streams.push(Stream { source: main, name: "the recording".to_owned(), number: 0, range: data });
        for (number, (name, source)) in (1..).zip(parts) {
            let len = source.len().map_err(|source| OpenError::Io { offset: 0, source })?;
            streams.push(Stream { source, name, number, range: 0..len });
        }
        let indexes: Vec<OnceLock<Index>> = streams.iter().map(|_| OnceLock::new()).collect();
        match form {
            Form::File { events, features, problems, .. } => Ok(Recording {
                events: Events::new(events),
                features: *features,
                problems,
                is_pipe: false,
                streams,
                indexes,
            }),
            Form::Pipe { .. } => {
                let mut description = PipeDescription::default();
                if let Some(stream) = streams.first() {
                    let index = description.read(stream)?;
                    if let (Some(index), Some(slot)) = (index, indexes.first()) {
                        // Nobody else can have set it: it was made above.
                        let _ = slot.set(index);
                    }
                }
                if description.events.is_empty() {
                    return Err(OpenError::NoEvents {
                        why: "no HEADER_ATTR record is in the pipe recording",
                    });
                }
                header::apply_features(&mut description.events, &description.features);
                let mut events = Events::new(description.events);
                apply_updates(&mut events, &description.updates);
                Ok(Recording {
                    events,
                    features: description.features,
                    problems: description.problems,
                    is_pipe: true,
                    streams,
                    indexes,
                })
            }
        }
    }

    /// Bytes of records in all files of the recording, as stored.
    pub fn data_bytes(&self) -> u64 {
        self.streams.iter().map(|stream| stream.range.end.saturating_sub(stream.range.start)).sum()
    }

    /// Number of streams: 1, and one more per part of a directory.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// Reads all records with `threads` threads (0: as many as there are CPUs). Each thread makes its own state
    /// with `make` and hands it every chunk that it gets to `each`; the states come back in no particular order.
    ///
    /// Chunks of one stream are cut in order but processed in any. `progress` hears the bytes done and in all, from
    /// any of the threads. A cut or damaged recording is delivered as far as it goes; the summary says what was wrong.
    ///
    /// # Errors
    /// When the operating system cannot read.
    pub fn read_parallel<S: Send>(
        &self,
        threads: usize,
        make: impl Fn() -> S + Sync,
        each: impl Fn(&mut S, &Chunk) + Sync,
        progress: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<(Vec<S>, ReadSummary), ReadError> {
        let threads = match threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            some => some.min(THREADS_MAX),
        };
        let pass = Pass::new(self, progress);
        let work = || {
            let mut state = make();
            pass.work(|chunk| each(&mut state, chunk));
            state
        };
        let states = if threads == 1 {
            vec![work()]
        } else {
            std::thread::scope(|scope| {
                let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
                let joined = workers
                    .into_iter()
                    .map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
                joined.collect()
            })
        };
        pass.finish().map(|summary| (states, summary))
    }

    /// The records one by one, stream after stream: for scripts and tests.
    pub fn records(&self) -> RecordReader<'_> {
        RecordReader {
            streams: self.streams.iter(),
            reader: None,
            chunk: Chunk::default(),
            at: 0,
            problems: Vec::new(),
        }
    }
}

/// One reading of all records, shared by its threads.
struct Pass<'a> {
    recording: &'a Recording,
    progress: &'a (dyn Fn(u64, u64) + Sync),
    /// Chunks whose places are known, from every stream that was read before: no order, no lock.
    known: Vec<(usize, Place)>,
    next_known: AtomicUsize,
    /// Streams that have to be read in order, each by one thread at a time.
    readers: Vec<(AtomicBool, Mutex<StreamReader>)>,
    first_reader: AtomicUsize,
    done_bytes: AtomicU64,
    total_bytes: u64,
    bytes: AtomicU64,
    records: AtomicU64,
    stop: AtomicBool,
    error: Mutex<Option<ReadError>>,
    problems: Mutex<Vec<Problem>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a> Pass<'a> {
    fn new(recording: &'a Recording, progress: &'a (dyn Fn(u64, u64) + Sync)) -> Pass<'a> {
        let mut known = Vec::new();
        let mut readers = Vec::new();
        let mut problems = Vec::new();
        for (stream, index) in recording.streams.iter().zip(&recording.indexes) {
            match index.get() {
                Some(index) => {
                    known.extend(index.places.iter().map(|&place| (stream.number, place)));
                    problems.extend_from_slice(&index.problems);
                }
                None => readers.push((AtomicBool::new(false), Mutex::new(StreamReader::new(stream)))),
            }
        }
        Pass {
            recording,
            progress,
            known,
            next_known: AtomicUsize::new(0),
            readers,
            first_reader: AtomicUsize::new(0),
            done_bytes: AtomicU64::new(0),
            total_bytes: recording.data_bytes(),
            bytes: AtomicU64::new(0),
            records: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            error: Mutex::new(None),
            problems: Mutex::new(problems),
        }
    }

    fn fail(&self, stream: usize, offset: u64, source: io::Error) {
        // Relaxed: only a hint to stop early; the error itself is behind the mutex.
        self.stop.store(true, Ordering::Relaxed);
        let stream = self.recording.streams.get(stream).map_or_else(String::new, |s| s.name.clone());
        lock(&self.error).get_or_insert(ReadError::Io { stream, offset, source });
    }

    fn account(&self, chunk: &Chunk, stored_bytes: u64) {
        // Relaxed: counters that are read for display, and for good after all threads were joined.
        self.bytes.fetch_add(chunk.used as u64, Ordering::Relaxed);
        let done = self.done_bytes.fetch_add(stored_bytes, Ordering::Relaxed) + stored_bytes;
        (self.progress)(done, self.total_bytes);
    }

    fn work(&self, mut each: impl FnMut(&Chunk)) {
        let mut chunk = Chunk::default();
        // Streams in order first: they are the ones that cannot be shared out later.
        while !self.stop.load(Ordering::Relaxed) {
            let Some(stored_bytes) = self.next_in_order(&mut chunk) else { break };
            if chunk.used > 0 {
                each(&chunk);
            }
            self.account(&chunk, stored_bytes);
        }
        while !self.stop.load(Ordering::Relaxed) {
            // Relaxed: the counter only hands out numbers; the list does not change.
            let next = self.next_known.fetch_add(1, Ordering::Relaxed);
            let Some(&(stream, place)) = self.known.get(next) else { break };
            if let Err(error) = self.read_known(&mut chunk, stream, place) {
                self.fail(stream, place.offset, error);
                break;
            }
            each(&chunk);
            self.account(&chunk, place.len as u64);
        }
    }

    /// The next chunk of any stream that is not finished; `None` when all are. Returns how many stored bytes it took.
    fn next_in_order(&self, chunk: &mut Chunk) -> Option<u64> {
        let count = self.readers.len();
        if count == 0 {
            return None;
        }
        // Threads start at different streams and then stay where they are while there is something to read.
        let first = if chunk.buffer.is_empty() {
            self.first_reader.fetch_add(1, Ordering::Relaxed)
        } else {
            self.first_reader_of(chunk.stream)
        };
        for wait in [false, true] {
            for turn in 0..count {
                let (finished, reader) = self.readers.get((first + turn) % count)?;
                // Acquire: pairs with the Release below.
                if finished.load(Ordering::Acquire) {
                    continue;
                }
                let mut reader = match reader.try_lock() {
                    Ok(reader) => reader,
                    Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                    Err(TryLockError::WouldBlock) if wait => lock(reader),
                    Err(TryLockError::WouldBlock) => continue,
                };
                let before = reader.offset();
                match reader.next_chunk(chunk) {
                    Ok(true) => return Some(reader.offset() - before),
                    // Release: pairs with the Acquire above, though the mutex alone would do.
                    Ok(false) => finished.store(true, Ordering::Release),
                    Err(error) => {
                        finished.store(true, Ordering::Release);
                        self.fail(chunk.stream, before, error);
                        return None;
                    }
                }
            }
        }
        None
    }

    fn first_reader_of(&self, stream: usize) -> usize {
        // With all streams in order (the usual first reading) a stream's number is its place in the list.
        stream.min(self.readers.len().saturating_sub(1))
    }

    fn read_known(&self, chunk: &mut Chunk, stream: usize, place: Place) -> io::Result<()> {
        let Some(source) = self.recording.streams.get(stream) else { return Ok(()) };
        let room = chunk.make_room(place.len);
        let got = read_full(&*source.source, room, place.offset)?;
        chunk.used = got;
        chunk.stream = stream;
        chunk.position = (stream as u64) << 48 | place.offset;
        self.records.fetch_add(place.records, Ordering::Relaxed);
        if got < place.len {
            let what = "the file became shorter while it was read";
            lock(&self.problems).push(Problem::new(chunk.position, None, what));
        }
        Ok(())
    }

    fn finish(self) -> Result<ReadSummary, ReadError> {
        if let Some(error) = lock(&self.error).take() {
            return Err(error);
        }
        let mut problems = std::mem::take(&mut *lock(&self.problems));
        let mut records = self.records.into_inner();
        for (_, reader) in self.readers {
            let reader = reader.into_inner().unwrap_or_else(PoisonError::into_inner);
            records += reader.records;
            problems.extend_from_slice(&reader.problems);
            let number = reader.number();
            if let Some(index) = Index::of(reader)
                && let Some(slot) = self.recording.indexes.get(number)
            {
                // Another reading may have been faster; both found the same.
                let _ = slot.set(index);
            }
        }
        problems.sort_by_key(|problem| problem.position);
        Ok(ReadSummary { records, bytes: self.bytes.into_inner(), problems })
    }
}

impl Index {
    /// What a finished reader found, unless the stream is compressed.
    fn of(reader: StreamReader) -> Option<Index> {
        let usable = reader.finished && !reader.is_packed();
        usable.then_some(Index { places: reader.places, problems: reader.problems })
    }
}

/// Reads records one by one; see [`Recording::records`].
pub struct RecordReader<'a> {
    streams: std::slice::Iter<'a, Stream>,
    reader: Option<StreamReader>,
    chunk: Chunk,
    at: usize,
    problems: Vec<Problem>,
}

impl RecordReader<'_> {
    /// The next record, `None` at the end.
    ///
    /// # Errors
    /// When the operating system cannot read.
    pub fn next_record(&mut self) -> Result<Option<RawRecord<'_>>, ReadError> {
        while self.at >= self.chunk.used {
            self.at = 0;
            self.chunk.used = 0;
            let Some(reader) = &mut self.reader else {
                match self.streams.next() {
                    Some(stream) => self.reader = Some(StreamReader::new(stream)),
                    None => return Ok(None),
                }
                continue;
            };
            let offset = reader.offset();
            match reader.next_chunk(&mut self.chunk) {
                Ok(true) => {}
                Ok(false) => {
                    self.problems.append(&mut reader.problems);
                    self.reader = None;
                }
                Err(source) => {
                    return Err(ReadError::Io { stream: reader.name().to_owned(), offset, source });
                }
            }
        }
        let rest = self.chunk.bytes().get(self.at..).unwrap_or(&[]);
        match Records::new(rest, self.chunk.position + self.at as u64).next() {
            Some(Ok(record)) => {
                self.at += usize::from(record.header.size);
                Ok(Some(record))
            }
            // The reader only lets whole records through.
            _ => Ok(None),
        }
    }

    /// Damage that was found in the streams that are finished.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

/// What a pipe recording says about itself, collected from its records.
#[derive(Default)]
struct PipeDescription {
    events: Vec<Event>,
    features: Features,
    problems: Vec<Problem>,
    updates: Vec<(u64, u64, Vec<u8>)>,
}

impl PipeDescription {
    fn read(&mut self, stream: &Stream) -> Result<Option<Index>, OpenError> {
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

fn apply_updates(events: &mut Events, updates: &[(u64, u64, Vec<u8>)]) {
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
