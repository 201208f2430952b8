//! Appends whole records to a recording, several pieces at once, and tracks which have landed.
use super::port::Port;
use super::retry::{RetryBudget, Retrying, Truncate, at};
use kymo_data::{Features, FileWriter, RecordCursor, Reserved, WholeRecord, abi, whole_records_bytes};
use kymo_perf::uring::{Answer, UringWrite};
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;

/// So much is written at once.
const PIECE_BYTES: usize = 128 << 10;
/// Buffers that are kept to be used again.
const SPARES: usize = 16;

/// A recording that is being written.
pub(crate) struct Landing<W: Truncate> {
    writer: FileWriter<Retrying<W>>,
    /// `None`: each piece is written before the next.
    port: Option<Box<dyn Port>>,
    /// Whole records that wait for company, and the samples among them.
    staged: (Vec<u8>, u64),
    /// What is on its way through the port, by its offset.
    flights: HashMap<u64, Flight>,
    /// The samples of pieces that the file cannot tell of yet, in the order of their offsets.
    unsettled: VecDeque<Unsettled>,
    spares: Vec<Vec<u8>>,
    /// The first failure that was final. Nothing is appended after it.
    failed: Option<io::Error>,
    /// Bytes and samples that came after the failure, or with it.
    refused: (u64, u64),
}

struct Flight {
    piece: Reserved,
    patience: RetryBudget,
}

#[derive(Clone, Copy)]
struct Unsettled {
    end: u64,
    bytes: u64,
    samples: u64,
}

/// What became of a recording.
#[derive(Debug)]
pub(crate) struct Finished {
    /// Size of the file up to the end of its records, in bytes.
    pub(crate) bytes: u64,
    /// The first failure that was final, if there was any.
    pub(crate) error: Option<io::Error>,
    /// Bytes that were appended and are not in the recording.
    pub(crate) lost_bytes: u64,
    /// Samples that were appended and are not in the recording.
    pub(crate) lost_samples: u64,
}

impl Landing<File> {
    /// Another handle of the file.
    pub(crate) fn another_handle(&self) -> io::Result<File> {
        self.writer.get_ref().0.try_clone()
    }
}

impl<W: Truncate> Landing<W> {
    /// Takes over a recording that has just begun.
    pub(crate) fn new(writer: FileWriter<Retrying<W>>, port: Option<Box<dyn Port>>) -> Landing<W> {
        Landing {
            writer,
            port,
            staged: (Vec::new(), 0),
            flights: HashMap::new(),
            unsettled: VecDeque::new(),
            spares: Vec::new(),
            failed: None,
            refused: (0, 0),
        }
    }

    /// How large the file is with everything that was appended.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.writer.file_bytes() + self.staged.0.len() as u64
    }

    /// Appends whole records with so many samples among them. Where they are compressed, this is
    /// the least that can be lost.
    ///
    /// # Errors
    /// A failure that is final, perhaps of something that was appended before. [`Landing::finish`]
    /// tells it again.
    pub(crate) fn append(&mut self, records: &[u8], samples: u64) -> io::Result<()> {
        // All of them are, or none is.
        let compressed = RecordCursor::new(records).next().is_some_and(|first| is_compressed(&first));
        let (mut rest, mut left) = (records, samples);
        let mut result = self.check();
        while result.is_ok() && !rest.is_empty() {
            let whole =
                if compressed { rest.len() } else { whole_records_bytes(rest, PIECE_BYTES.min(rest.len())) };
            let (piece, after) = rest.split_at(if whole == 0 { rest.len() } else { whole });
            let count = if after.is_empty() { left } else { count_samples(piece).min(left) };
            left -= count;
            rest = after;
            result = if self.port.is_some() { self.stage(piece, count) } else { self.write(piece, count) };
        }
        self.refused.0 += rest.len() as u64;
        self.refused.1 += left;
        result
    }

    /// Makes what has landed readable for whoever opens the file now. `all`: waits for everything
    /// that was appended before.
    ///
    /// # Errors
    /// As [`Landing::append`].
    pub(crate) fn publish(&mut self, all: bool) -> io::Result<()> {
        self.check()?;
        self.launch()?;
        if all {
            self.wait()?;
        } else {
            self.look()?;
        }
        self.check()?;
        // With early features this covers what is on its way too, once it has landed.
        self.writer.publish().map_err(|error| self.fail(error))
    }

    /// Completes the recording with all that has landed; where there is no room for all features,
    /// with fewer.
    pub(crate) fn finish(mut self, features: &Features) -> Finished {
        // The first failure is kept in `failed`.
        let _ = self.launch().and_then(|()| self.wait());
        if let Err(late) = self.writer.finish(features) {
            self.failed.get_or_insert(late);
            self.finish_without_room(features);
        }
        let published = self.writer.published();
        let beyond = self.unsettled.iter().filter(|piece| piece.end > published);
        let (bytes, samples) = beyond.fold((0, 0), |sum, piece| (sum.0 + piece.bytes, sum.1 + piece.samples));
        let lost_bytes = bytes + self.staged.0.len() as u64 + self.refused.0;
        // After a failure the recording has ended early, even if each record before it is there.
        if (lost_bytes > 0 || self.failed.is_some())
            && let Err(late) = self.writer.mark_incomplete()
        {
            self.failed.get_or_insert(late);
        }
        Finished {
            bytes: published,
            error: self.failed.take(),
            lost_bytes,
            lost_samples: samples + self.staged.1 + self.refused.1,
        }
    }

    /// Completes a recording whose features do not fit behind the records.
    fn finish_without_room(&mut self, features: &Features) {
        let fewer = Features { build_ids: Vec::new(), ..features.clone() };
        // The table of early features needs no new room where `keep_part` left some.
        let mut result = self.writer.finish(&Features::default());
        if result.is_err() && self.make_room() {
            result = self.writer.finish(&Features::default());
        }
        let end = self.writer.contiguous();
        // Whatever lies after it takes room that the features need.
        let _ = self.writer.get_ref().0.cut(end + self.writer.table_bytes() as u64);
        for features in [features, &fewer] {
            let more = self.writer.finish(features);
            if more.is_ok() {
                return;
            }
            // It may have written a part over the table.
            result = self.writer.finish(&Features::default());
        }
        if let Err(late) = result {
            self.failed.get_or_insert(late);
        }
    }

    /// What the first failure left for those who come later.
    fn check(&self) -> io::Result<()> {
        match &self.failed {
            Some(error) => Err(error.kind().into()),
            None => Ok(()),
        }
    }

    /// Remembers the failure, and gives one like it to be told.
    fn fail(&mut self, error: io::Error) -> io::Error {
        let like = io::Error::from(error.kind());
        self.failed.get_or_insert(error);
        like
    }

    /// Remembers a piece whose samples are in the file only when it has landed and everything
    /// before it, too.
    fn unsettled(&mut self, piece: Reserved, samples: u64) {
        let settled = self.writer.published();
        while self.unsettled.front().is_some_and(|first| first.end <= settled) {
            self.unsettled.pop_front();
        }
        self.unsettled.push_back(Unsettled { end: piece.offset + piece.len, bytes: piece.len, samples });
    }

    /// One piece, at once.
    fn write(&mut self, records: &[u8], samples: u64) -> io::Result<()> {
        let piece = self.writer.reserve(records.len() as u64);
        self.unsettled(piece, samples);
        let (done, result) = self.writer.get_ref().write_as_far(records, piece.offset);
        match result {
            Ok(()) => self.writer.complete(piece).map_err(|error| self.fail(error)),
            Err(error) => {
                self.keep_part(piece, records, done);
                Err(self.fail(error))
            }
        }
    }

    /// Of a piece that failed, the whole records that landed before stay, but for what the table of
    /// features needs: there is no other room for it, and without it they could not be published.
    fn keep_part(&mut self, piece: Reserved, records: &[u8], done: usize) {
        if has_compressed(records) {
            return;
        }
        let whole = whole_records_bytes(records, done.saturating_sub(self.writer.table_bytes()));
        let kept = Reserved { offset: piece.offset, len: whole as u64 };
        let end = piece.offset + piece.len;
        let samples = count_samples(&records[..whole]);
        if let Some(index) = self.unsettled.iter().position(|piece| piece.end == end)
            && whole > 0
        {
            // If this fails it is a publication that failed; the part is in its place all the same.
            let _ = self.writer.complete(kept);
            self.unsettled[index].samples -= samples;
            self.unsettled[index].bytes -= kept.len;
            self.unsettled.insert(index, Unsettled { end: kept.offset + kept.len, bytes: kept.len, samples });
        }
    }

    /// Gives up the last records, as many as the table of features needs room. Returns whether that was
    /// possible.
    fn make_room(&mut self) -> bool {
        let end = self.writer.contiguous();
        let Some(last) = self.unsettled.iter().position(|piece| piece.end == end) else { return false };
        let (first, lost) = self.last_pieces(last, self.writer.table_bytes() as u64);
        let begin = end - lost.bytes;
        let mut records = vec![0; lost.bytes as usize];
        if self.writer.get_ref().0.read_back(&mut records, begin).is_err() {
            return false;
        }
        let room = records.len().saturating_sub(self.writer.table_bytes());
        let whole = if has_compressed(&records) { 0 } else { whole_records_bytes(&records, room) };
        let samples = count_samples(&records[..whole]);
        let kept = Unsettled { end: begin + whole as u64, bytes: whole as u64, samples };
        self.writer.give_up_after(kept.end);
        let lost = Unsettled {
            bytes: lost.bytes - kept.bytes,
            samples: lost.samples.saturating_sub(kept.samples),
            ..lost
        };
        self.unsettled.drain(first..=last);
        self.unsettled.insert(first, lost);
        self.unsettled.insert(first, kept);
        true
    }

    /// The pieces up to `last` that have so many bytes together, if there are as many behind what
    /// was published: where they begin in `unsettled`, and all of them as one.
    fn last_pieces(&self, last: usize, bytes: u64) -> (usize, Unsettled) {
        let (mut first, mut all) = (last, self.unsettled[last]);
        while all.bytes < bytes
            && let Some(before) = first.checked_sub(1)
            && self.unsettled[before].end == all.end - all.bytes
            && self.unsettled[before].end > self.writer.published()
        {
            first = before;
            all.bytes += self.unsettled[before].bytes;
            all.samples += self.unsettled[before].samples;
        }
        (first, all)
    }

    /// Collects records until they are worth a request.
    fn stage(&mut self, records: &[u8], samples: u64) -> io::Result<()> {
        self.staged.0.extend_from_slice(records);
        self.staged.1 += samples;
        if self.staged.0.len() >= PIECE_BYTES / 2 { self.launch() } else { Ok(()) }
    }

    /// Sends what was collected on its way.
    fn launch(&mut self) -> io::Result<()> {
        self.look()?;
        self.check()?;
        if self.staged.0.is_empty() {
            return Ok(());
        }
        let spare = self.spares.pop().unwrap_or_default();
        let (bytes, samples) = std::mem::replace(&mut self.staged, (spare, 0));
        let piece = self.writer.reserve(bytes.len() as u64);
        self.unsettled(piece, samples);
        self.flights.insert(piece.offset, Flight { piece, patience: RetryBudget::default() });
        self.send(UringWrite { bytes, done: 0, offset: piece.offset })
    }

    /// Sends a piece on its way as soon as there is room for it.
    fn send(&mut self, mut piece: UringWrite) -> io::Result<()> {
        while let Some(port) = &mut self.port {
            match port.submit(piece) {
                Ok(()) => return Ok(()),
                Err(back) => piece = back,
            }
            let answer = match port.next() {
                Ok(Some(answer)) => answer,
                Ok(None) => return Err(self.fail(io::Error::other("a write was refused without a reason"))),
                Err(error) => return Err(self.fail(error)),
            };
            // A failure of that piece is kept; this one may still land.
            let _ = self.answered(answer);
        }
        Ok(())
    }

    /// Takes the answers that are there.
    fn look(&mut self) -> io::Result<()> {
        while let Some(answer) = self.port.as_mut().and_then(|port| port.try_next()) {
            self.answered(answer)?;
        }
        Ok(())
    }

    /// Waits for all answers, also after a failure: later pieces may be what closes a gap.
    fn wait(&mut self) -> io::Result<()> {
        let mut first = Ok(());
        while let Some(port) = &mut self.port {
            let result = match port.next() {
                Ok(Some(answer)) => self.answered(answer),
                Ok(None) => break,
                Err(error) => return Err(self.fail(error)),
            };
            first = first.and(result);
        }
        first
    }

    fn answered(&mut self, answer: Answer) -> io::Result<()> {
        let Answer { mut piece, result } = answer;
        let Some(flight) = self.flights.get_mut(&piece.offset) else { return Ok(()) };
        let place = piece.offset + piece.done as u64;
        let error = match result {
            Ok(0) if piece.done < piece.bytes.len() => at(place, io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                piece.done += count;
                flight.patience.progress();
                if piece.done < piece.bytes.len() {
                    return self.send(piece);
                }
                let landed = flight.piece;
                self.flights.remove(&piece.offset);
                if self.spares.len() < SPARES {
                    piece.bytes.clear();
                    self.spares.push(piece.bytes);
                }
                return self.writer.complete(landed).map_err(|error| self.fail(error));
            }
            Err(error) if flight.patience.bears(&error) => return self.send(piece),
            Err(error) => at(place, error),
        };
        if let Some(flight) = self.flights.remove(&piece.offset) {
            self.keep_part(flight.piece, &piece.bytes, piece.done);
        }
        Err(self.fail(error))
    }
}

/// Whether compressed records are among these: how many samples are in a part of them is not known.
/// Markers, which are not compressed, may come first.
fn has_compressed(records: &[u8]) -> bool {
    RecordCursor::new(records).any(|record| is_compressed(&record))
}

fn is_compressed(record: &WholeRecord<'_>) -> bool {
    record.header.kind == abi::PERF_RECORD_COMPRESSED
}

/// How many of these whole records are samples.
pub(crate) fn count_samples(records: &[u8]) -> u64 {
    let samples = RecordCursor::new(records).filter(|record| record.header.kind == abi::PERF_RECORD_SAMPLE);
    samples.count() as u64
}
