//! Counts of lost samples and records, by cause.
use crate::stack_choice::MOST_STACK_BYTES;
use kymo_data::UnwindCounts;
use kymo_symbols::unwind::{Stop, UnwindStats};
use std::fmt;

/// Records that did not make it into the recording, by cause. All zero is the normal case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LossAccount {
    /// Samples that are in the recording.
    pub samples: u64,
    /// Records that the kernel dropped because a ring was full although its drain was at work: the
    /// ring is too small or the drain came too late.
    pub ring_full: u64,
    /// Records that the kernel dropped while the drain had no free buffer: the writer or the disk
    /// is too slow.
    pub queue_full: u64,
    /// Records that the kernel dropped at the very end, which no record in a ring tells of.
    pub at_the_end: u64,
    /// Samples that came while a flight recorder read their ring, within what a snapshot covers.
    pub while_read: u64,
    /// Records about tasks and mappings that a flight recorder lost outside of its snapshots: names
    /// may be missing.
    pub tasks: u64,
    /// Bytes that were skipped because a ring's counters made no sense.
    pub corrupt_bytes: u64,
    /// Samples that were drained but could not be written.
    pub unwritten: u64,
    /// Bytes that were drained but could not be written.
    pub unwritten_bytes: u64,
    /// How often the kernel throttled an event because samples came too fast. The samples in
    /// between do not exist.
    pub throttled: u64,
    /// How often a CPU was there without being observed: it went offline and came back, or came
    /// online late. How many samples that cost is not known.
    pub cpu_gaps: u64,
    /// What the observed programs themselves say of the events that they write.
    pub claimed: Claimed,
}

/// Losses that nobody but an observed program knows of: any numbers, if it likes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claimed {
    /// Events that it says did not fit into its rings.
    pub lost: u64,
    /// Bytes that were skipped because what it wrote there made no sense.
    pub corrupt_bytes: u64,
    /// The recording has no other events.
    pub alone: bool,
}

impl Claimed {
    /// What counts as lost: nothing, where a program could so make data look lost that it has
    /// nothing to do with.
    fn of_all_data(&self) -> Claimed {
        if self.alone { *self } else { Claimed::default() }
    }
}

impl LossAccount {
    /// Records lost, whatever the cause.
    pub fn lost(&self) -> u64 {
        let known = self.ring_full + self.queue_full + self.at_the_end + self.while_read + self.unwritten;
        known.saturating_add(self.claimed.of_all_data().lost)
    }

    /// Bytes whose samples nobody counted, in damaged rings.
    pub fn damaged_bytes(&self) -> u64 {
        self.corrupt_bytes.saturating_add(self.claimed.of_all_data().corrupt_bytes)
    }

    /// Whether nothing was lost in any way.
    pub fn is_clean(&self) -> bool {
        let Claimed { lost, corrupt_bytes, .. } = self.claimed.of_all_data();
        let claimed = Claimed { lost, corrupt_bytes, alone: false };
        LossAccount { samples: 0, claimed, ..*self } == LossAccount::default()
    }
}

impl fmt::Display for LossAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.lost().saturating_add(self.samples);
        write!(f, "lost {} samples", self.lost())?;
        if self.lost() > 0 {
            write!(f, " of {total} ({:.2} %)", self.lost() as f64 * 100.0 / total as f64)?;
        }
        let causes = [
            (self.ring_full, "ring full"),
            (self.queue_full, "writer too slow"),
            (self.at_the_end, "at the end"),
            (self.while_read, "while a snapshot was taken"),
            (self.tasks, "records about tasks and mappings"),
            (self.unwritten, "not written"),
            (self.corrupt_bytes, "bytes in damaged rings"),
            (self.unwritten_bytes, "bytes not written"),
            (self.throttled, "times throttled"),
            (self.cpu_gaps, "times a CPU was not observed"),
        ];
        let mut separator = ": ";
        for (count, cause) in causes.into_iter().filter(|&(count, _)| count > 0) {
            write!(f, "{separator}{count} {cause}")?;
            separator = ", ";
        }
        let Claimed { lost, corrupt_bytes, .. } = self.claimed;
        if lost > 0 {
            write!(f, "{separator}{lost} events of its own that the observed program says did not fit")?;
            separator = ", ";
        }
        if corrupt_bytes > 0 {
            write!(
                f,
                "{separator}{corrupt_bytes} bytes of the observed program that are no events of its own"
            )?;
        }
        Ok(())
    }
}

/// What unwinding while recording came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unwound {
    /// Walks and why they ended.
    pub stats: UnwindStats,
    /// Samples of user tasks without one byte of stack: the task was just starting or ending, or
    /// its stack pointer was in a page that was never touched, and no page beyond it had come.
    pub without_stack: u64,
    /// Buffers that were unwound before all mappings were known, because a CPU's ring could not be
    /// read for too long.
    pub early_buffers: u64,
    /// How much of a stack a sample copied at most.
    pub copied_bytes: u32,
}

impl Unwound {
    /// What to do about stacks that were cut, where it is more than one in fifty.
    pub fn advice(&self) -> Option<String> {
        if self.stats.stopped(Stop::StackEnd) * 50 <= self.stats.samples {
            return None;
        }
        Some(if self.copied_bytes < MOST_STACK_BYTES {
            format!("stacks are deeper than their copies: --call-graph dwarf,{MOST_STACK_BYTES} copies more")
        } else {
            "stacks are deeper than a sample can copy, and what lies beyond could not be read in time; \
             frame pointers (--call-graph fp) have no such limit, in programs built with them"
                .into()
        })
    }

    /// The same as the recording's own record of it ([`kymo_data::Mark::Unwound`]).
    pub fn counts(&self) -> UnwindCounts {
        UnwindCounts {
            stacks: self.stats.samples,
            frames: self.stats.frames,
            guessed_frames: self.stats.guessed_frames,
            ended: self.stats.stops,
            without_stack: self.without_stack,
            early_buffers: self.early_buffers,
        }
    }

    /// Stacks whose outermost frame was not reached; what was reached is in the recording.
    pub fn cut_short(&self) -> u64 {
        self.stats.samples - self.stats.stopped(Stop::Root)
    }
}

impl fmt::Display for Unwound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let frames = self.stats.frames as f64 / self.stats.samples.max(1) as f64;
        write!(f, "unwound {} stacks, {frames:.1} frames each", self.stats.samples)?;
        let cut_short = self.cut_short();
        if cut_short > 0 {
            write!(f, "; {cut_short} cut short")?;
        }
        let causes = Stop::ALL.iter().filter(|&&stop| stop != Stop::Root);
        let mut separator = ": ";
        for (count, cause) in causes.map(|&stop| (self.stats.stopped(stop), stop.label())) {
            if count > 0 {
                write!(f, "{separator}{count} {cause}")?;
                separator = ", ";
            }
        }
        for (count, what) in [
            (self.without_stack, "samples had no stack"),
            (self.early_buffers, "buffers were unwound before all mappings were known"),
        ] {
            if count > 0 {
                write!(f, "; {count} {what}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Claimed, LossAccount, Unwound};

    /// Checks the line about unwinding where there is nothing to say, and where there is.
    #[test]
    fn unwound() {
        assert_eq!(Unwound::default().to_string(), "unwound 0 stacks, 0.0 frames each");
        let some = Unwound { without_stack: 2, early_buffers: 1, ..Unwound::default() };
        let text = "unwound 0 stacks, 0.0 frames each; 2 samples had no stack; 1 buffers were unwound before all mappings were known";
        assert_eq!(some.to_string(), text);
    }

    /// Checks the one line that ends every run, with and without losses.
    #[test]
    fn line() {
        let clean = LossAccount { samples: 10, ..LossAccount::default() };
        assert_eq!(clean.to_string(), "lost 0 samples");
        assert!(clean.is_clean());
        let lossy =
            LossAccount { samples: 90, ring_full: 7, queue_full: 3, throttled: 2, ..LossAccount::default() };
        assert_eq!(
            lossy.to_string(),
            "lost 10 samples of 100 (10.00 %): 7 ring full, 3 writer too slow, 2 times throttled"
        );
        assert!(!lossy.is_clean());
        let gap = LossAccount { samples: 10, cpu_gaps: 1, ..LossAccount::default() };
        assert_eq!(gap.to_string(), "lost 0 samples: 1 times a CPU was not observed");
        assert!(!gap.is_clean());
    }

    /// Checks that losses which an observed program claims are named as its word, and do not make
    /// other data look lost, whatever number it says; where there is no other data they count.
    #[test]
    fn losses_that_programs_claim() {
        let account = |alone| {
            let claimed = Claimed { lost: u64::MAX, corrupt_bytes: 8, alone };
            LossAccount { samples: 10, ring_full: 1, claimed, ..LossAccount::default() }
        };
        let other = account(false);
        assert_eq!((other.lost(), other.damaged_bytes()), (1, 0));
        assert!(LossAccount { ring_full: 0, ..other }.is_clean());
        let line = other.to_string();
        assert!(line.starts_with("lost 1 samples of 11 (9.09 %): 1 ring full, "), "{line}");
        let word = "18446744073709551615 events of its own that the observed program says did not fit";
        assert!(line.contains(word), "{line}");
        let alone = account(true);
        assert_eq!((alone.lost(), alone.damaged_bytes()), (u64::MAX, 8));
        assert!(!LossAccount { ring_full: 0, ..alone }.is_clean());
    }
}
