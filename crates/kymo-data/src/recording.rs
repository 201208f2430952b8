//! A recording, opened: its events, what it tells about the machine, and its records in parallel or
//! in order.

use crate::chunk::{Chunk, Records};
use crate::event::EventSet;
use crate::features::Features;
use crate::header::{self, FileForm};
use crate::index::Index;
use crate::pass::{Pass, ReadSummary};
use crate::pipe::{self, PipeDescription, apply_updates};
use crate::problem::{OpenError, Problem, ReadError};
use crate::record::RawRecord;
use crate::source::ReadAt;
use crate::start_table::RecorderState;
use crate::stream::{Stream, StreamReader};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

/// An opened recording.
///
/// Opening reads the header and the descriptions of events, and for a pipe recording walks over all
/// record headers once, because descriptions may come anywhere. Records are read by
/// [`read_parallel`](Recording::read_parallel) or [`records`](Recording::records), as often as
/// wanted.
pub struct Recording {
    /// The events.
    pub events: EventSet,
    /// What the recording tells about the machine and itself.
    pub features: Features,
    /// Damage that was found while opening. Damage among the records is reported by the reading.
    pub problems: Vec<Problem>,
    /// Whether it has the pipe form.
    pub is_pipe: bool,
    /// Whether its recorder ended, or was killed, before the header told of records; its end may be
    /// half written.
    pub is_unfinished: bool,
    pub(crate) streams: Vec<Stream>,
    pub(crate) indexes: Vec<OnceLock<Index>>,
    /// Damage that readings of its records have found.
    found: Mutex<Vec<Problem>>,
}

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
    /// Opens a recording: `main` is the file (or `data` of a `perf record --threads` directory),
    /// `parts` are the directory's `data.N` with their names, in the order in which they shall
    /// count as streams 1, 2, ...
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
            FileForm::File { data, .. } | FileForm::Pipe { data } => data.clone(),
        };
        streams.push(Stream { source: main, name: "the recording".to_owned(), number: 0, range: data });
        for (number, (name, source)) in (1..).zip(parts) {
            let len = source.len().map_err(|source| OpenError::Io { offset: 0, source })?;
            streams.push(Stream { source, name, number, range: 0..len });
        }
        let indexes: Vec<OnceLock<Index>> = streams.iter().map(|_| OnceLock::new()).collect();
        match form {
            FileForm::File { events, features, problems, is_unfinished, .. } => Ok(Recording {
                events: EventSet::new(events),
                features: *features,
                problems,
                is_pipe: false,
                is_unfinished,
                streams,
                indexes,
                found: Mutex::default(),
            }),
            FileForm::Pipe { .. } => {
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
                let mut events = EventSet::new(description.events);
                apply_updates(&mut events, &description.updates);
                Ok(Recording {
                    events,
                    features: description.features,
                    problems: description.problems,
                    is_pipe: true,
                    is_unfinished: false,
                    streams,
                    indexes,
                    found: Mutex::default(),
                })
            }
        }
    }

    /// Whether something is known to be missing at its end.
    pub fn lacks_its_end(&self) -> bool {
        let states = [RecorderState::Recording, RecorderState::Incomplete].map(RecorderState::problem);
        let is_end = |what: &str| what == pipe::WITHOUT_END || states.contains(&Some(what));
        self.problems.iter().any(|problem| is_end(&problem.what))
    }

    /// The caller knows that the recorder still runs: the end of the recording is no damage.
    pub fn note_still_recording(&mut self) {
        let ended = RecorderState::Recording.problem();
        for problem in self.problems.iter_mut().filter(|problem| ended == Some(problem.what.as_str())) {
            *problem = Problem::note(problem.position, None, "it is still being recorded; read up to here");
        }
    }

    /// What readings of its records have found to be damaged so far, each once.
    pub fn found(&self) -> Vec<Problem> {
        let indexes = self.indexes.iter().filter_map(OnceLock::get);
        indexes.for_each(|index| self.note_found(&index.problems));
        self.found.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note_found(&self, problems: &[Problem]) {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        for problem in problems {
            if !found.contains(problem) {
                found.push(problem.clone());
            }
        }
    }

    /// Bytes of records in all files of the recording, as stored.
    pub fn data_bytes(&self) -> u64 {
        self.streams.iter().map(Stream::data_bytes).sum()
    }

    /// Where the records lie in the main file.
    pub fn data_range(&self) -> std::ops::Range<u64> {
        self.streams.first().map_or(0..0, |stream| stream.range.clone())
    }

    /// When the last byte of the recording was written, if that is known: no later than its end,
    /// unless it was copied or came through a pipe.
    pub fn modified(&self) -> Option<SystemTime> {
        self.streams.iter().filter_map(|stream| stream.source.modified()).max()
    }

    /// Number of streams: 1, and one more per part of a directory.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// Reads all records with `threads` threads (0: as many as there are CPUs). Each thread makes
    /// its own state with `make` and hands it every chunk that it gets to `each`; the states come
    /// back in no particular order.
    ///
    /// Chunks of one stream are cut in order but processed in any. `progress` hears the bytes done
    /// and in all, from any of the threads. A cut or damaged recording is delivered as far as it
    /// goes; the summary says what was wrong.
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
        let pass = Pass::new(&self.streams, &self.indexes, progress);
        let read = read_with(pass, threads, make, each)?;
        self.note_found(&read.1.problems);
        Ok(read)
    }

    /// Whether [`read_sampled`](Self::read_sampled) reads a part: the places of all chunks are
    /// known, since a first whole reading. They never are in compressed recordings.
    pub fn can_be_sampled(&self) -> bool {
        self.indexes.iter().all(|index| index.get().is_some())
    }

    /// Reads one chunk in `one_in`, evenly over the recording: an early look at all of it. Without
    /// [`can_be_sampled`](Self::can_be_sampled), and otherwise, as
    /// [`read_parallel`](Self::read_parallel).
    ///
    /// # Errors
    /// When the operating system cannot read.
    pub fn read_sampled<S: Send>(
        &self,
        one_in: NonZeroUsize,
        threads: usize,
        make: impl Fn() -> S + Sync,
        each: impl Fn(&mut S, &Chunk) + Sync,
    ) -> Result<(Vec<S>, ReadSummary), ReadError> {
        let pass = Pass::new(&self.streams, &self.indexes, &|_, _| {});
        let read = read_with(pass.sampled(one_in), threads, make, each)?;
        self.note_found(&read.1.problems);
        Ok(read)
    }

    /// The records one by one, stream after stream: for scripts and tests.
    pub fn records(&self) -> RecordReader<'_> {
        RecordReader {
            recording: self,
            streams: self.streams.iter(),
            reader: None,
            chunk: Chunk::default(),
            at: 0,
            problems: Vec::new(),
        }
    }
}

/// Runs a pass on so many threads (0: as many as there are CPUs).
fn read_with<S: Send>(
    pass: Pass<'_>,
    threads: usize,
    make: impl Fn() -> S + Sync,
    each: impl Fn(&mut S, &Chunk) + Sync,
) -> Result<(Vec<S>, ReadSummary), ReadError> {
    let threads = match threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        some => some.min(THREADS_MAX),
    };
    let work = || {
        let mut state = make();
        pass.work(|chunk| each(&mut state, chunk));
        state
    };
    let states = if threads == 1 {
        vec![work()]
    } else {
        std::thread::scope(|scope| {
            // As many as the system permits; this thread reads alone where it permits none.
            let start = |_| std::thread::Builder::new().spawn_scoped(scope, work).ok();
            let workers: Vec<_> = (0..threads).map_while(start).collect();
            let alone = workers.is_empty().then(work);
            let joined = workers
                .into_iter()
                .map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            joined.chain(alone).collect()
        })
    };
    pass.finish().map(|summary| (states, summary))
}

/// Reads records one by one; see [`Recording::records`].
pub struct RecordReader<'a> {
    recording: &'a Recording,
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
                    self.recording.note_found(&reader.problems);
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
