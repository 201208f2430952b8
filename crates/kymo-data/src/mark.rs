//! What kymo writes among the records that perf has no record for
//! (docs/reference/formats/marks.md).
//!
//! A mark is a record of type `HEADER_EVENT_TYPE`, which perf stopped writing in 2011 and steps
//! over ever since, whatever is in it, as long as it has 80 bytes: perf 7 warns of shorter ones. An
//! unknown type would make perf give up on the file. Marks of earlier versions of kymo are shorter,
//! and read all the same.

mod function;

pub use function::InterpretedFunction;

use crate::abi::{PERF_RECORD_HEADER_EVENT_TYPE, SMALLEST_EVENT_TYPE_RECORD};
use crate::build;
use crate::record::RawRecord;
use crate::words::{Words, u32_at, u64_at};

/// What a mark's body begins with.
const MAGIC: &[u8; 8] = b"kymomark";

const PAUSE: u32 = 1;
const UNWOUND: u32 = 2;
/// Names of generated code, which [`CodeNames`](crate::CodeNames) reads and writes.
pub(crate) const NAMES: u32 = 3;
const CLOCK: u32 = 4;
const FUNCTION: u32 = 5;
const CPU_GAP: u32 = 6;
/// Build ids of files, which [`FileBuildId`](crate::FileBuildId) reads and writes.
pub(crate) const FILE_BUILD_ID: u32 = 7;
/// How far the recorder of a pipe recording came, which
/// [`RecorderState`](crate::start_table::RecorderState) reads and writes.
pub(crate) const RECORDER_STATE: u32 = 8;

/// Whether a record is a mark of kymo, of a kind that copies of the recording have, too: not how
/// far its own recorder came.
pub fn is_lasting_mark(record: &RawRecord<'_>) -> bool {
    let is_mark =
        record.header.kind == PERF_RECORD_HEADER_EVENT_TYPE && record.body.get(..8) == Some(&MAGIC[..]);
    is_mark && body_of_kind(record, RECORDER_STATE).is_none()
}

/// The body of a mark of this kind, from the magic on.
pub(crate) fn body_of_kind<'a>(record: &RawRecord<'a>, kind: u32) -> Option<&'a [u8]> {
    let body = record.body;
    let fits = record.header.kind == PERF_RECORD_HEADER_EVENT_TYPE
        && body.get(..8)? == MAGIC
        && u32_at(body, 8)? == kind;
    fits.then_some(body)
}

/// The whole record of a mark of this kind: what comes after the kind is given.
pub(crate) fn record_of_kind(kind: u32, fields: &[u8]) -> Vec<u8> {
    let mut body = MAGIC.to_vec();
    body.extend_from_slice(&kind.to_le_bytes());
    body.extend_from_slice(fields);
    body.resize(body.len().max(SMALLEST_EVENT_TYPE_RECORD - 8), 0);
    build::record(PERF_RECORD_HEADER_EVENT_TYPE, 0, &body)
}

/// What walking the stacks of user programs came to, from one mark to the next: the numbers of all
/// marks add up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnwindCounts {
    /// Stacks walked.
    pub stacks: u64,
    /// Frames found in them.
    pub frames: u64,
    /// Frames whose caller was found by the frame pointer or by a search, for want of unwind data.
    pub guessed_frames: u64,
    /// Samples of user tasks without one byte of stack: nothing to walk.
    pub without_stack: u64,
    /// Buffers of samples that were walked before all mappings were known.
    pub early_buffers: u64,
    /// Stacks by the cause that ended the walk, in the order that docs/reference/formats/marks.md
    /// states; the first is the outermost frame.
    pub ended: [u64; UnwindCounts::CAUSES],
}

impl UnwindCounts {
    /// How many causes can end a walk.
    pub const CAUSES: usize = 9;
    /// The size of the record that holds them.
    pub const RECORD_BYTES: usize = 24 + 8 * UnwindCounts::WORDS;
    const WORDS: usize = 5 + UnwindCounts::CAUSES;

    /// Stacks whose outermost frame was not reached.
    pub fn cut_short(&self) -> u64 {
        self.stacks.saturating_sub(self.ended[0])
    }

    /// The whole record of these counts as a [`Mark::Unwound`]; made without asking for memory.
    pub fn record(&self) -> [u8; UnwindCounts::RECORD_BYTES] {
        let mut record = [0; UnwindCounts::RECORD_BYTES];
        let header = u64::from(PERF_RECORD_HEADER_EVENT_TYPE) | (UnwindCounts::RECORD_BYTES as u64) << 48;
        let first = [header, u64::from_le_bytes(*MAGIC), u64::from(UNWOUND)];
        let words = first.into_iter().chain(self.words());
        for (place, word) in record.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        record
    }

    /// Adds another mark's counts. Counts that a damaged file makes too large stay at the most.
    pub fn add(&mut self, other: &UnwindCounts) {
        *self = self.by(other, u64::saturating_add);
    }

    /// What was counted since the counts were `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &UnwindCounts) -> UnwindCounts {
        self.by(earlier, u64::saturating_sub)
    }

    fn by(&self, other: &UnwindCounts, op: impl Fn(u64, u64) -> u64) -> UnwindCounts {
        let (mine, theirs) = (self.words(), other.words());
        UnwindCounts::from_words(|at| op(mine[at], theirs[at]))
    }

    fn words(&self) -> [u64; UnwindCounts::WORDS] {
        let mut words = [0; UnwindCounts::WORDS];
        let first = [self.stacks, self.frames, self.guessed_frames, self.without_stack, self.early_buffers];
        words[..5].copy_from_slice(&first);
        words[5..].copy_from_slice(&self.ended);
        words
    }

    fn from_words(word: impl Fn(usize) -> u64) -> UnwindCounts {
        UnwindCounts {
            stacks: word(0),
            frames: word(1),
            guessed_frames: word(2),
            without_stack: word(3),
            early_buffers: word(4),
            ended: std::array::from_fn(|cause| word(5 + cause)),
        }
    }
}

/// A fact about the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mark {
    /// The recorder held its target so that it would not lose records.
    Pause {
        /// When it was stopped, ns of the recording's clock.
        start_ns: u64,
        /// When it went on, ns.
        end_ns: u64,
    },
    /// How user stacks were walked while recording, since the mark before.
    Unwound(UnwindCounts),
    /// A CPU was not observed, although it was there for a part of the time: it went offline and
    /// came back, or came online and could not be observed.
    CpuGap {
        /// Its number.
        cpu: u32,
        /// When it went, or came, ns of the recording's clock; 0 if that could not be told.
        start_ns: u64,
        /// When it was observed again, or all was over, ns.
        end_ns: u64,
    },
    /// One moment in two clocks. Compilers write times of the second one.
    Clock {
        /// ns of the recording's clock.
        recording_ns: u64,
        /// ns of `CLOCK_MONOTONIC`.
        monotonic_ns: u64,
    },
}

impl Mark {
    /// The mark in a record; `None` for all other records, and for marks of a later kymo.
    pub fn parse(record: &RawRecord<'_>) -> Option<Mark> {
        let body = record.body;
        if record.header.kind != PERF_RECORD_HEADER_EVENT_TYPE || body.get(..8)? != MAGIC {
            return None;
        }
        match u32_at(body, 8)? {
            PAUSE => Some(Mark::Pause { start_ns: u64_at(body, 16)?, end_ns: u64_at(body, 24)? }),
            UNWOUND => {
                // Counters that a later kymo adds stand behind those that are known here.
                let words = Words::new(body.get(16..)?);
                let known = words.len() >= UnwindCounts::WORDS;
                known.then(|| Mark::Unwound(UnwindCounts::from_words(|at| words.get(at).unwrap_or(0))))
            }
            CPU_GAP => Some(Mark::CpuGap {
                cpu: u32::try_from(u64_at(body, 16)?).ok()?,
                start_ns: u64_at(body, 24)?,
                end_ns: u64_at(body, 32)?,
            }),
            CLOCK => {
                let (recording_ns, monotonic_ns) = (u64_at(body, 16)?, u64_at(body, 24)?);
                Some(Mark::Clock { recording_ns, monotonic_ns })
            }
            _ => None,
        }
    }

    /// The whole record of this mark.
    pub fn record(&self) -> Vec<u8> {
        let (kind, words) = match self {
            Mark::Pause { start_ns, end_ns } => (PAUSE, vec![*start_ns, *end_ns]),
            Mark::CpuGap { cpu, start_ns, end_ns } => (CPU_GAP, vec![u64::from(*cpu), *start_ns, *end_ns]),
            Mark::Clock { recording_ns, monotonic_ns } => (CLOCK, vec![*recording_ns, *monotonic_ns]),
            Mark::Unwound(counts) => return counts.record().to_vec(),
        };
        let mut fields = vec![0; 4];
        fields.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        record_of_kind(kind, &fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::Records;

    fn parse(bytes: &[u8]) -> Option<Mark> {
        match Records::new(bytes, 0).next() {
            Some(Ok(record)) => Mark::parse(&record),
            other => panic!("not a record: {other:?}"),
        }
    }

    /// Checks that a mark is read back, and that cut, foreign and unknown ones are none.
    #[test]
    fn round_trip_and_damage() {
        let counts =
            UnwindCounts { ended: [1, 2, 3, 4, 5, 6, 7, 8, 9], ..UnwindCounts::from_words(|at| 1 << at) };
        let clock = Mark::Clock { recording_ns: 1 << 50, monotonic_ns: 7 };
        let gap = Mark::CpuGap { cpu: 7, start_ns: 5, end_ns: 1 << 40 };
        for mark in [Mark::Pause { start_ns: 5, end_ns: 1 << 40 }, clock, gap, Mark::Unwound(counts)] {
            let bytes = mark.record();
            assert_eq!(parse(&bytes), Some(mark));
            for at in [0, 8, 16] {
                let mut other = bytes.clone();
                other[at] ^= 0x40;
                assert_eq!(parse(&other), None, "byte {at}");
            }
            // Without the words that the kind needs; a pause ends with zeros that it does not.
            let needed = match mark {
                Mark::Unwound(_) => bytes.len(),
                Mark::CpuGap { .. } => 48,
                _ => 40,
            };
            for len in (8..bytes.len()).step_by(8) {
                let mut cut = bytes[..len].to_vec();
                cut[6..8].copy_from_slice(&(len as u16).to_le_bytes());
                assert_eq!(parse(&cut), (len >= needed).then_some(mark), "{len} bytes");
            }
        }
    }

    /// Checks that no mark is shorter than the record whose type it has: perf 7 warned at each mark
    /// of 40 bytes.
    #[test]
    fn perf_7_does_not_warn_of_marks() {
        let counts = UnwindCounts::default();
        let clock = Mark::Clock { recording_ns: 1, monotonic_ns: 2 };
        let gap = Mark::CpuGap { cpu: 1, start_ns: 1, end_ns: 2 };
        for mark in [Mark::Pause { start_ns: 1, end_ns: 2 }, clock, gap, Mark::Unwound(counts)] {
            assert!(mark.record().len() >= SMALLEST_EVENT_TYPE_RECORD, "{mark:?}");
        }
    }

    /// Checks that counts add up to what they were parts of, that none overflows, and that a later
    /// kymo's counters are passed over.
    #[test]
    fn counts() {
        let early = UnwindCounts::from_words(|at| at as u64);
        let late = UnwindCounts::from_words(|at| 3 * at as u64 + 1);
        let mut sum = early;
        sum.add(&late.since(&early));
        assert_eq!(sum, late);
        sum.add(&UnwindCounts::from_words(|_| u64::MAX));
        assert_eq!((sum.frames, sum.ended[8]), (u64::MAX, u64::MAX));
        assert_eq!(UnwindCounts { stacks: 5, ended: [7; 9], ..early }.cut_short(), 0);
        let mut longer = Mark::Unwound(late).record();
        longer.extend([0xff; 16]);
        longer[6] += 16;
        assert_eq!(parse(&longer), Some(Mark::Unwound(late)));
    }
}
