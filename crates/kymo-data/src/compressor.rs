//! Compresses records into COMPRESSED records.

use crate::abi::PERF_RECORD_COMPRESSED;
use crate::features::CompressedInfo;
use crate::record::{RECORD_HEADER_BYTES, RecordHeader};
use std::io;
use zstd::stream::raw::{Encoder, InBuffer, Operation, OutBuffer};

/// Largest record that is written; the size field has 16 bits, and perf keeps a little distance,
/// too.
const RECORD_MAX: usize = 65_520;
/// perf unpacks each COMPRESSED record into a buffer as large as `mmap_len` says, so no more goes
/// into one flush.
const PIECE_BYTES: usize = 512 << 10;

/// A zstd stream of records. One per stream of the recording: readers unpack them in the order of
/// writing.
pub struct Compressor {
    encoder: Encoder<'static>,
    level: u32,
    bytes_in: u64,
    bytes_out: u64,
}

impl Compressor {
    /// Starts a stream with a compression level from 1 (fast) to 22 (small); others are brought
    /// into that range.
    ///
    /// # Errors
    /// When zstd cannot be set up (out of memory).
    pub fn new(level: u32) -> io::Result<Compressor> {
        let level = level.clamp(1, 22);
        Ok(Compressor { encoder: Encoder::new(level.cast_signed())?, level, bytes_in: 0, bytes_out: 0 })
    }

    /// Starts another stream with the same level.
    ///
    /// # Errors
    /// As [`Compressor::new`].
    pub fn again(&self) -> io::Result<Compressor> {
        Compressor::new(self.level)
    }

    /// Appends to `out` the COMPRESSED records that hold `records`. Everything given can be
    /// unpacked from what was written so far: nothing stays behind.
    ///
    /// # Errors
    /// When zstd fails (out of memory).
    pub fn compress(&mut self, records: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        let before = out.len();
        for piece in records.chunks(PIECE_BYTES) {
            let mut input = InBuffer::around(piece);
            loop {
                let more = self.one_record(&mut input, piece.len(), out)?;
                if !more {
                    break;
                }
            }
        }
        self.bytes_in += records.len() as u64;
        self.bytes_out += (out.len() - before) as u64;
        Ok(())
    }

    /// Fills one record; returns whether there is more to write.
    fn one_record(&mut self, input: &mut InBuffer<'_>, len: usize, out: &mut Vec<u8>) -> io::Result<bool> {
        let start = out.len();
        out.resize(start + RECORD_MAX, 0);
        let room = out.get_mut(start + RECORD_HEADER_BYTES..).unwrap_or_default();
        let mut output = OutBuffer::around(room);
        while input.pos() < len && output.pos() < output.capacity() {
            self.encoder.run(input, &mut output)?;
        }
        let left = if output.pos() < output.capacity() { self.encoder.flush(&mut output)? } else { 1 };
        let size = RECORD_HEADER_BYTES + output.pos();
        out.truncate(start + size);
        let header = RecordHeader { kind: PERF_RECORD_COMPRESSED, misc: 0, size: size as u16 };
        if let Some(place) = out.get_mut(start..).and_then(|record| record.first_chunk_mut::<8>()) {
            *place = header.to_bytes();
        }
        if size == RECORD_HEADER_BYTES {
            out.truncate(start);
        }
        Ok(left > 0 || input.pos() < len)
    }

    /// Bytes given so far.
    pub fn bytes_in(&self) -> u64 {
        self.bytes_in
    }

    /// What [`Features::compressed`](crate::Features::compressed) has to say about this stream.
    pub fn info(&self) -> CompressedInfo {
        let ratio = self.bytes_in.checked_div(self.bytes_out).unwrap_or(0);
        CompressedInfo {
            version: 0,
            kind: 1,
            level: self.level,
            ratio: u32::try_from(ratio).unwrap_or(u32::MAX).max(1),
            mmap_len: PIECE_BYTES as u32,
        }
    }
}
