//! The outer frames of stacks that are deeper than their copies.
//!
//! The kernel copies a limited part of a stack. What lies beyond is known from earlier samples of
//! the same thread: the copy's outermost frame is looked for among the frames of the last complete
//! walk. A frame with the same stack pointer and the same address there is the same call, as long
//! as it has not returned, and what lies outside of a call does not change while it lasts.
//!
//! ```text
//!  last walk   leaf .. g  f  e  d  c  b  main  _start        stack pointer and address of each
//!  this walk   leaf ........ f'                              copy ends within f'
//!  joined      leaf ........ f' e  d  c  b  main  _start     if f' is f
//! ```
//!
//! # What can be wrong
//! Between two samples `f` may have returned, and another caller may have called the same function
//! from a frame of the same size, so that `f'` has the stack pointer and address of `f`. The frames
//! outside of it are then those of the earlier call. What is known is used for [`OLDEST_NS`] only,
//! so such an error does not last.
use std::collections::HashMap;

/// How long the frames of a walk are used, in ns.
const OLDEST_NS: u64 = 1_000_000_000;
/// So many threads' frames are kept, some 2 KiB each.
const MOST_THREADS: usize = 4096;

/// A walk to the outermost frame: of each frame the stack pointer and the address, innermost first.
#[derive(Debug, Default)]
struct KnownStack {
    time_ns: u64,
    frames: Vec<(u64, u64)>,
}

/// The last complete walk of each thread.
#[derive(Debug, Default)]
pub(super) struct OuterFrames {
    by_thread: HashMap<i32, KnownStack>,
}

impl OuterFrames {
    /// The stack of this thread was deeper than its copy: from now on its walks are kept.
    pub(super) fn begin(&mut self, tid: i32) {
        if self.by_thread.len() >= MOST_THREADS && !self.by_thread.contains_key(&tid) {
            self.by_thread.clear();
        }
        self.by_thread.entry(tid).or_default();
    }

    /// Keeps a walk that reached the outermost frame, of a thread whose stack was deeper than its
    /// copy.
    #[inline]
    pub(super) fn keep(&mut self, tid: i32, time_ns: u64, stack_pointers: &[u64], frames: &[u64]) {
        // Most programs have no such thread.
        if !self.by_thread.is_empty() {
            self.keep_walk(tid, time_ns, stack_pointers, frames);
        }
    }

    fn keep_walk(&mut self, tid: i32, time_ns: u64, stack_pointers: &[u64], frames: &[u64]) {
        let Some(known) = self.by_thread.get_mut(&tid) else { return };
        known.time_ns = time_ns;
        known.frames.clear();
        known.frames.extend(stack_pointers.iter().copied().zip(frames.iter().copied()));
    }

    /// Appends the frames outside of the last one to a walk that ran out of stack bytes; returns
    /// how many they are, 0 if they are not known. At most `most` frames are in `frames`
    /// afterwards.
    pub(super) fn append(
        &mut self,
        tid: i32,
        time_ns: u64,
        stack_pointers: &mut Vec<u64>,
        frames: &mut Vec<u64>,
        most: usize,
    ) -> usize {
        let (Some(&sp), Some(&address)) = (stack_pointers.last(), frames.last()) else { return 0 };
        let Some(known) = self.by_thread.get(&tid) else { return 0 };
        // Samples of one thread can come from two CPUs in the wrong order.
        if known.time_ns.abs_diff(time_ns) > OLDEST_NS {
            return 0;
        }
        let Some(at) = known.frames.iter().position(|&frame| frame == (sp, address)) else { return 0 };
        let outer = &known.frames[at + 1..];
        if outer.is_empty() || frames.len() + outer.len() > most {
            return 0;
        }
        let count = outer.len();
        stack_pointers.extend(outer.iter().map(|frame| frame.0));
        frames.extend(outer.iter().map(|frame| frame.1));
        self.keep(tid, time_ns, stack_pointers, frames);
        count
    }

    /// The thread has ended, or has another program now.
    pub(super) fn forget(&mut self, tid: i32) {
        self.by_thread.remove(&tid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a walk that was cut gets the outer frames of the last walk if its outermost
    /// frame is one of these, and only then: not of another thread, not with another address or
    /// stack pointer, not after a second, not beyond the limit; and that what was joined is what
    /// the next walk is joined to.
    #[test]
    fn the_outermost_frame_must_be_known() {
        let mut known = OuterFrames::default();
        known.keep(7, 999, &[20], &[2]);
        assert!(known.by_thread.is_empty(), "a shallow stack");
        known.begin(7);
        known.keep(7, 1000, &[10, 20, 30, 40], &[1, 2, 3, 4]);
        let mut walk = |tid, time_ns, sps: &[u64], frames: &[u64], most| {
            let (mut sps, mut frames) = (sps.to_vec(), frames.to_vec());
            let count = known.append(tid, time_ns, &mut sps, &mut frames, most);
            assert_eq!(sps.len(), frames.len());
            (count, frames)
        };
        for (what, tid, time_ns, sps, frames, most) in [
            ("another thread", 8, 1001, [5, 20], [9, 2], 127),
            ("another address", 7, 1001, [5, 20], [9, 3], 127),
            ("another stack pointer", 7, 1001, [5, 24], [9, 2], 127),
            ("too late", 7, 1001 + OLDEST_NS, [5, 20], [9, 2], 127),
            ("too deep", 7, 1001, [5, 20], [9, 2], 3),
            ("nothing outside", 7, 1001, [5, 40], [9, 4], 127),
        ] {
            assert_eq!(walk(tid, time_ns, &sps, &frames, most), (0, frames.to_vec()), "{what}");
        }
        assert_eq!(walk(7, 1001, &[5, 20], &[9, 2], 4), (2, vec![9, 2, 3, 4]));
        assert_eq!(walk(7, 1002, &[1, 5], &[8, 9], 127), (3, vec![8, 9, 2, 3, 4]), "joined to the joined");
        known.forget(7);
        assert_eq!(known.append(7, 1003, &mut vec![20], &mut vec![2], 127), 0);
    }
}
