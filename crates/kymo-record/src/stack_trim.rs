//! Copies records out of a ring without what the kernel did not fill of the stack copies.
//!
//! The kernel makes room in the ring for the whole stack copy that the event asks for, and says
//! after it how much it has filled. Here a sample gets exactly as much room:
//!
//! ```text
//!  in the ring  header | fixed fields, chain, registers | size | stack ....  unused .......... | filled | weight ..
//!  in the copy  header | fixed fields, chain, registers | size | stack .... | filled | weight ..
//! ```
//! A sample in the copy is what the kernel would have written for an event that asks for less.
use kymo_core::ring::Span;
use kymo_data::{EventSet, RawRecord, RecordHeader, abi};
use std::sync::Arc;

const HEADER_BYTES: usize = 8;
const WORD_BYTES: usize = 8;
/// What lies before the stack is looked for so far. A sample that has more is copied as it is.
const BEFORE_STACK_BYTES: usize = 1024;
/// A smaller sample is copied as it is.
const LEAST_SAMPLE_BYTES: usize = 1024;

/// Copies spans of whole records, and trims their stack copies.
#[derive(Debug)]
pub(crate) struct StackTrim {
    events: Arc<EventSet>,
}

/// The pieces of a sample that are copied, in bytes of the span.
struct TrimmedSample {
    /// Where the word with the stack's size is.
    size_at: usize,
    /// How many bytes of the stack stay.
    kept: usize,
    /// What follows the stack: how many bytes of it are filled, and later fields.
    rest_at: usize,
}

impl StackTrim {
    /// `events`: as the kernel writes their samples.
    pub(crate) fn new(events: Arc<EventSet>) -> StackTrim {
        StackTrim { events }
    }

    /// Copies the first `out.len()` bytes of the span, whole records, to the start of `out`, and
    /// returns how many bytes of it they take. What is no record is copied as it is. Allocates
    /// nothing.
    ///
    /// # Panics
    /// If `out` is longer than the span or no multiple of 8 bytes long.
    pub(crate) fn copy(&self, span: &Span<'_>, out: &mut [u8]) -> usize {
        let end = out.len();
        let (mut from, mut to) = (0, 0);
        while from + HEADER_BYTES <= end {
            let word = span.word(from / WORD_BYTES).to_le_bytes();
            let Some(header) = RecordHeader::parse(&word) else { break };
            let size = usize::from(header.size);
            if size < HEADER_BYTES || !size.is_multiple_of(WORD_BYTES) || from + size > end {
                break;
            }
            let trimmed = (header.kind == abi::PERF_RECORD_SAMPLE && size >= LEAST_SAMPLE_BYTES)
                .then(|| self.look(span, header, from, &mut out[to..]))
                .flatten();
            to += match trimmed {
                Some(trimmed) => trimmed.copy(span, from, size, &mut out[to..]),
                None => {
                    span.copy_from(from / WORD_BYTES, &mut out[to..to + size]);
                    size
                }
            };
            from += size;
        }
        let rest = end - from;
        span.copy_from(from / WORD_BYTES, &mut out[to..to + rest]);
        to + rest
    }

    /// Copies the start of the sample at `from` to `out`, and says what belongs after it. `None`:
    /// there is nothing to leave out.
    fn look(
        &self,
        span: &Span<'_>,
        header: RecordHeader,
        from: usize,
        out: &mut [u8],
    ) -> Option<TrimmedSample> {
        let size = usize::from(header.size);
        let start = &mut out[..size.min(BEFORE_STACK_BYTES)];
        span.copy_from(from / WORD_BYTES, start);
        let body = &start[HEADER_BYTES..];
        let event = self.events.event_of(&RawRecord { header, body, position: 0 })?;
        let offset = HEADER_BYTES + self.events.list[event].layout.stack_offset(body)?;
        let (size_at, end) = (from + offset, from + size);
        // What a record says of itself is believed as far as it fits.
        let word = |at: usize| (at + WORD_BYTES <= end).then(|| span.word(at / WORD_BYTES));
        let room = usize::try_from(word(size_at)?).ok()?;
        let rest_at = (size_at + WORD_BYTES).checked_add(room)?;
        let filled = usize::try_from(word(rest_at)?).ok()?;
        let kept = filled.max(1).checked_next_multiple_of(WORD_BYTES)?;
        let aligned = offset.is_multiple_of(WORD_BYTES) && room.is_multiple_of(WORD_BYTES);
        (aligned && kept < room).then_some(TrimmedSample { size_at, kept, rest_at })
    }
}

impl TrimmedSample {
    /// Copies the sample of `size` bytes at `from` to `out`, which has its start already, and
    /// returns its size there.
    fn copy(&self, span: &Span<'_>, from: usize, size: usize, out: &mut [u8]) -> usize {
        let (stack, rest) = (self.size_at - from, from + size - self.rest_at);
        let stack_bytes = stack + WORD_BYTES;
        let behind = stack_bytes + self.kept;
        span.copy_from((self.size_at + WORD_BYTES) / WORD_BYTES, &mut out[stack_bytes..behind]);
        span.copy_from(self.rest_at / WORD_BYTES, &mut out[behind..behind + rest]);
        out[stack..stack_bytes].copy_from_slice(&(self.kept as u64).to_le_bytes());
        let new_size = behind + rest;
        out[6..HEADER_BYTES].copy_from_slice(&(new_size as u16).to_le_bytes());
        new_size
    }
}

#[cfg(test)]
mod tests {
    use super::StackTrim;
    use crate::opening::event_set;
    use kymo_core::ring::{Buffer, Reader, Writer};
    use kymo_data::{Attr, EventSpec, SampleLayout, abi};
    use proptest::prelude::*;
    use std::sync::Arc;

    const RING_BYTES: usize = 128 << 10;

    fn attr() -> Attr {
        Attr {
            sample_type: abi::PERF_SAMPLE_IP
                | abi::PERF_SAMPLE_TID
                | abi::PERF_SAMPLE_CALLCHAIN
                | abi::PERF_SAMPLE_REGS_USER
                | abi::PERF_SAMPLE_STACK_USER
                | abi::PERF_SAMPLE_WEIGHT,
            sample_regs_user: 0b11,
            sample_stack_user: 4096,
            ..Attr::default()
        }
    }

    /// A sample with this many frames of the kernel, and so much room for the stack, of which so
    /// much is filled; or another record.
    fn record(frames: usize, room: usize, filled: usize, fill: u8, is_sample: bool) -> Vec<u8> {
        let mut body = Vec::new();
        let mut put = |word: usize| body.extend((word as u64).to_le_bytes());
        (0..2).for_each(&mut put);
        put(frames);
        (0..frames).for_each(&mut put);
        [2, 11, 22, room].into_iter().for_each(&mut put);
        body.extend((0..room).map(|at| fill.wrapping_add((at / 7) as u8)));
        if room > 0 {
            body.extend((filled as u64).to_le_bytes());
        }
        body.extend(77_u64.to_le_bytes());
        let kind = if is_sample { abi::PERF_RECORD_SAMPLE } else { abi::PERF_RECORD_COMM };
        let header = u64::from(kind) | (8 + body.len() as u64) << 48;
        [header.to_le_bytes().to_vec(), body].concat()
    }

    fn records() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let sizes = (0..200_usize, 0..600_usize, 0..5000_usize, any::<u8>(), prop::bool::weighted(0.8));
        let one = sizes.prop_map(|(frames, room, filled, fill, is_sample)| {
            record(frames, 8 * room, filled, fill, is_sample)
        });
        prop::collection::vec(one, 1..12)
    }

    proptest! {
        /// Checks that every sample reads as it did, with the same bytes of the stack, that every
        /// other record is as it was, and that no unfilled part stays but of samples with very long
        /// chains; wherever in the ring they lie.
        #[test]
        fn samples_read_the_same(start in 0..1000_u64, records in records(), garbage in any::<bool>()) {
            let buffer = Buffer::new(RING_BYTES, 8 * start);
            let mut writer = Writer::new(buffer.area());
            for record in &records {
                writer.push(record, 1, &[]).unwrap();
            }
            let mut reader = Reader::new(buffer.area());
            let span = reader.begin().unwrap();
            let cut = if garbage { 8 } else { 0 };
            let mut out = vec![0; span.len_bytes() - cut];
            let trim = StackTrim::new(Arc::new(event_set(&[
                EventSpec { attr: attr(), ids: vec![1], name: "cpu-clock".into() },
            ])));
            let copied = trim.copy(&span, &mut out);
            let (layout, mut at) = (SampleLayout::new(&attr()), 0);
            let whole = if garbage { &records[..records.len() - 1] } else { &records[..] };
            for record in whole {
                let size = usize::from(u16::from_le_bytes([out[at + 6], out[at + 7]]));
                let copy = &out[at..at + size];
                at += size;
                if u32::from_le_bytes(record[..4].try_into().unwrap()) != abi::PERF_RECORD_SAMPLE {
                    prop_assert_eq!(copy, record);
                    continue;
                }
                let (old, new) =
                    (layout.parse(0, &record[8..]).unwrap(), layout.parse(0, &copy[8..]).unwrap());
                prop_assert_eq!(old, new);
                let parts = layout.stack_parts(&copy[8..]).unwrap();
                let filled = new.user_stack.unwrap().len();
                let room = parts.stack_user.len().saturating_sub(16);
                let (long, small) = (parts.stack_user.start > 1000, record.len() < 1024);
                prop_assert!(long || small || room <= filled.max(1).next_multiple_of(8), "{room} {filled}");
            }
            prop_assert!(garbage || at == copied);
            // What is cut off is no record: it is passed on.
            let rest = records.last().filter(|_| garbage).map_or(0, |last| last.len() - 8);
            prop_assert_eq!(copied - at, rest);
        }
    }
}
