//! One reading of all records, shared by its threads.
//!
//! The first reading of a stream does not know where records start, so it goes by windows of 1 MiB:
//!
//! ```text
//!  worker   claims window i (a counter) -> reads it -> waits for turn i -> walks over its headers -> hands on the turn
//!                                                                                     |
//!                                              processes the records that start in it, nobody waits for that
//! ```
//!
//! Only the walk is in turn: some 30 us per MiB. Where the walk meets something that is more than
//! headers (compressed records, AUX data), the stream is read on in order: one thread at a time, 1
//! MiB under the stream's lock. Afterwards the cuts are known, and a second reading takes chunks by
//! a counter alone.
//!
//! Invariants:
//! - I1: turn i is taken after turn i - 1, so the walker knows where the first record of its window
//!   starts.
//! - I2: whoever claimed a window takes its turn or ends the stream: no one waits for ever.

use crate::chunk::{CHUNK_BYTES, Chunk};
use crate::index::Index;
use crate::problem::{Problem, ReadError};
use crate::source::read_full;
use crate::stream::{ChunkPlace, Stream, StreamReader, Walked};
use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

/// What one reading went over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadSummary {
    /// Records delivered.
    pub records: u64,
    /// Bytes delivered, after unpacking.
    pub bytes: u64,
    /// Damage that was found: cut-off ends, unknown record types (once per type), broken
    /// compression.
    pub problems: Vec<Problem>,
}

/// A stream that is read for the first time.
struct Unread {
    number: usize,
    range: Range<u64>,
    /// The next window that nobody claimed.
    next_window: AtomicU64,
    /// There is nothing left to claim or to read in order.
    finished: AtomicBool,
    turn: Mutex<Turn>,
    /// Who waits for turn i waits at `i % WAITING`, so that handing on a turn wakes few.
    waiting: [Condvar; WAITING],
}

struct Turn {
    /// Whose turn it is.
    window: u64,
    /// Windows are over; the rest is read in order.
    in_order: bool,
    reader: StreamReader,
}

const WAITING: usize = 32;

/// What a worker got from a stream.
enum Got {
    /// A chunk; this many stored bytes were taken for it.
    Chunk(u64),
    /// A window without records; there may be more.
    Nothing,
    /// The stream has no work for this worker any more.
    End,
}

/// One reading of all records.
pub(crate) struct Pass<'a> {
    streams: &'a [Stream],
    indexes: &'a [OnceLock<Index>],
    progress: &'a (dyn Fn(u64, u64) + Sync),
    /// Chunks whose places are known, from every stream that was read before: no order, no lock.
    known: Vec<(usize, ChunkPlace)>,
    next_known: AtomicUsize,
    unread: Vec<Unread>,
    next_worker: AtomicUsize,
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
    pub(crate) fn new(
        streams: &'a [Stream],
        indexes: &'a [OnceLock<Index>],
        progress: &'a (dyn Fn(u64, u64) + Sync),
    ) -> Pass<'a> {
        let mut known = Vec::new();
        let mut unread = Vec::new();
        let mut problems = Vec::new();
        for (stream, index) in streams.iter().zip(indexes) {
            match index.get() {
                Some(index) => {
                    known.extend(index.places.iter().map(|&place| (stream.number, place)));
                    problems.extend_from_slice(&index.problems);
                }
                None => unread.push(Unread {
                    number: stream.number,
                    range: stream.range.clone(),
                    next_window: AtomicU64::new(0),
                    finished: AtomicBool::new(false),
                    turn: Mutex::new(Turn { window: 0, in_order: false, reader: StreamReader::new(stream) }),
                    waiting: std::array::from_fn(|_| Condvar::new()),
                }),
            }
        }
        Pass {
            streams,
            indexes,
            progress,
            known,
            next_known: AtomicUsize::new(0),
            unread,
            next_worker: AtomicUsize::new(0),
            done_bytes: AtomicU64::new(0),
            total_bytes: streams.iter().map(Stream::data_bytes).sum(),
            bytes: AtomicU64::new(0),
            records: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            error: Mutex::new(None),
            problems: Mutex::new(problems),
        }
    }

    /// The same with one chunk in `one_in` of those whose places are known.
    pub(crate) fn sampled(mut self, one_in: NonZeroUsize) -> Pass<'a> {
        self.known = self.known.into_iter().skip(one_in.get() / 2).step_by(one_in.get()).collect();
        self
    }

    fn fail(&self, stream: usize, offset: u64, source: io::Error) {
        // Relaxed: only a hint to stop early; the error itself is behind the mutex.
        self.stop.store(true, Ordering::Relaxed);
        let stream = self.streams.get(stream).map_or_else(String::new, |s| s.name.clone());
        lock(&self.error).get_or_insert(ReadError::Io { stream, offset, source });
    }

    fn account(&self, chunk: &Chunk, stored_bytes: u64) {
        // Relaxed: counters that are read for display, and for good after all threads were joined.
        self.bytes.fetch_add(chunk.bytes().len() as u64, Ordering::Relaxed);
        let done = self.done_bytes.fetch_add(stored_bytes, Ordering::Relaxed) + stored_bytes;
        (self.progress)(done, self.total_bytes);
    }

    /// The whole work of one thread.
    pub(crate) fn work(&self, mut each: impl FnMut(&Chunk)) {
        let mut chunk = Chunk::default();
        // Relaxed: only spreads the workers over the streams.
        let mut stream = self.next_worker.fetch_add(1, Ordering::Relaxed);
        let mut ended = 0;
        // Unread streams first: they are the ones that cannot be shared out freely later.
        while ended < self.unread.len() && !self.stop.load(Ordering::Relaxed) {
            let Some(unread) = self.unread.get(stream % self.unread.len()) else { break };
            match self.next_unread(unread, &mut chunk) {
                Got::Chunk(stored_bytes) => {
                    each(&chunk);
                    self.account(&chunk, stored_bytes);
                    ended = 0;
                }
                Got::Nothing => ended = 0,
                Got::End => {
                    stream += 1;
                    ended += 1;
                }
            }
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

    fn next_unread(&self, unread: &Unread, chunk: &mut Chunk) -> Got {
        // Acquire: pairs with the Release in `close`.
        if unread.finished.load(Ordering::Acquire) {
            return Got::End;
        }
        // Relaxed: hands out numbers; what belongs to them is behind the mutex.
        let window = unread.next_window.fetch_add(1, Ordering::Relaxed);
        let start = window.checked_mul(CHUNK_BYTES as u64).and_then(|at| at.checked_add(unread.range.start));
        match start {
            Some(start) if start < unread.range.end => self.take_window(unread, window, start, chunk),
            // An empty stream has no window to end it.
            _ if unread.range.is_empty() => self.read_in_order(unread, lock(&unread.turn), chunk),
            _ => {
                let turn = lock(&unread.turn);
                if turn.in_order { self.read_in_order(unread, turn, chunk) } else { Got::End }
            }
        }
    }

    fn take_window(&self, unread: &Unread, window: u64, start: u64, chunk: &mut Chunk) -> Got {
        let left = usize::try_from(unread.range.end - start).unwrap_or(usize::MAX);
        // One header more, for the record that begins at the window's very end.
        let want = left.min(CHUNK_BYTES + crate::RECORD_HEADER_BYTES);
        let stream = unread.number;
        let read = match self.streams.get(stream) {
            Some(stream) => read_full(&*stream.source, chunk.make_room(want), start),
            None => Ok(0),
        };
        let mut turn = lock(&unread.turn);
        let slot = window as usize % WAITING;
        while turn.window != window && !turn.in_order && !turn.reader.finished {
            let Some(waiting) = unread.waiting.get(slot) else { break };
            turn = waiting.wait(turn).unwrap_or_else(PoisonError::into_inner);
        }
        if turn.reader.finished {
            return Got::End;
        }
        if turn.in_order {
            return self.read_in_order(unread, turn, chunk);
        }
        let got = match read {
            Ok(got) => got,
            Err(error) => {
                self.fail(stream, start, error);
                self.close(unread, &mut turn);
                return Got::End;
            }
        };
        let walked = turn.reader.walk_window(chunk, start, got);
        turn.window += 1;
        turn.in_order = walked.special;
        if turn.reader.finished || turn.in_order {
            if turn.reader.finished {
                self.close(unread, &mut turn);
            }
            unread.waiting.iter().for_each(Condvar::notify_all);
        } else if let Some(waiting) = unread.waiting.get(turn.window as usize % WAITING) {
            waiting.notify_all();
        }
        drop(turn);
        if let Err(error) = self.read_tail(chunk, stream, &walked) {
            self.fail(stream, walked.tail_offset, error);
            return Got::End;
        }
        if chunk.used > 0 { Got::Chunk(chunk.used as u64) } else { Got::Nothing }
    }

    /// Reads what the last record of a window has beyond the window.
    fn read_tail(&self, chunk: &mut Chunk, stream: usize, walked: &Walked) -> io::Result<()> {
        let Some(missing) = walked.tail_bytes else { return Ok(()) };
        let have = chunk.from + chunk.used - missing;
        let Some(source) = self.streams.get(stream) else { return Ok(()) };
        let room = chunk.make_room(have + missing).get_mut(have..).unwrap_or_default();
        let got = read_full(&*source.source, room, walked.tail_offset)?;
        if got < missing {
            chunk.used = walked.whole_bytes;
            let what = "the file became shorter while it was read";
            lock(&self.problems).push(Problem::new(chunk.position, None, what));
        }
        Ok(())
    }

    fn read_in_order(&self, unread: &Unread, mut turn: MutexGuard<'_, Turn>, chunk: &mut Chunk) -> Got {
        let before = turn.reader.offset();
        match turn.reader.next_chunk(chunk) {
            Ok(true) => Got::Chunk(turn.reader.offset() - before),
            Ok(false) => {
                self.close(unread, &mut turn);
                Got::End
            }
            Err(error) => {
                self.fail(chunk.stream, before, error);
                self.close(unread, &mut turn);
                Got::End
            }
        }
    }

    /// Ends a stream for everybody (I2).
    fn close(&self, unread: &Unread, turn: &mut Turn) {
        turn.reader.finished = true;
        // Release: pairs with the Acquire in `next_unread`, though the mutex alone would do.
        unread.finished.store(true, Ordering::Release);
        unread.waiting.iter().for_each(Condvar::notify_all);
    }

    fn read_known(&self, chunk: &mut Chunk, stream: usize, place: ChunkPlace) -> io::Result<()> {
        let Some(source) = self.streams.get(stream) else { return Ok(()) };
        let got = read_full(&*source.source, chunk.make_room(place.len), place.offset)?;
        chunk.from = 0;
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

    /// What the reading went over, after all threads are done. Remembers the cuts for the next one.
    pub(crate) fn finish(self) -> Result<ReadSummary, ReadError> {
        if let Some(error) = lock(&self.error).take() {
            return Err(error);
        }
        let mut problems = std::mem::take(&mut *lock(&self.problems));
        let mut records = self.records.into_inner();
        for unread in self.unread {
            let reader = unread.turn.into_inner().unwrap_or_else(PoisonError::into_inner).reader;
            records += reader.records;
            problems.extend_from_slice(&reader.problems);
            let number = reader.number();
            if let Some(index) = Index::of(reader)
                && let Some(slot) = self.indexes.get(number)
            {
                // Another reading may have been faster; both found the same.
                let _ = slot.set(index);
            }
        }
        problems.sort_by_key(|problem| problem.position);
        Ok(ReadSummary { records, bytes: self.bytes.into_inner(), problems })
    }
}
