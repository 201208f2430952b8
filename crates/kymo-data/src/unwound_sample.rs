//! A sample with registers and stack bytes becomes one with a call chain, in place.
//!
//! ```text
//!  before  header | fixed fields | chain: n, kernel's part               | raw .. | registers | stack .... | weight ..
//!  after   header | fixed fields | chain: n + 1 + frames, kernel's, USER, frames | raw .. | weight ..
//! ```
use crate::{Attr, StackParts, abi};

const HEADER_BYTES: usize = 8;

impl Attr {
    /// The event as its samples are once their stacks are unwound: with call chains, without
    /// registers and stacks. `None` if they do not have all three. The size of the stacks stays:
    /// see [`has_unwound_chains`](Attr::has_unwound_chains).
    pub fn unwound(&self) -> Option<Attr> {
        const STACK: u64 = abi::PERF_SAMPLE_REGS_USER | abi::PERF_SAMPLE_STACK_USER;
        const ALL: u64 = abi::PERF_SAMPLE_CALLCHAIN | STACK;
        if self.sample_type & ALL != ALL {
            return None;
        }
        let mut attr = self.clone();
        attr.sample_type &= !STACK;
        attr.sample_regs_user = 0;
        // The chains have a user's part now.
        attr.set(abi::ATTR_FLAG_EXCLUDE_CALLCHAIN_USER, false);
        Some(attr)
    }

    /// Whether the user's part of call chains was unwound from copies of stacks, so that addresses
    /// of callers lie in the calls. The kernel's are return addresses.
    pub fn has_unwound_chains(&self) -> bool {
        self.sample_stack_user != 0 && self.sample_type & abi::PERF_SAMPLE_STACK_USER == 0
    }
}

impl StackParts {
    /// How many frames the sample has room for in the place of its registers and its stack.
    pub fn room(&self) -> usize {
        ((self.stack_user.end - self.regs_user.start) / 8).saturating_sub(1)
    }

    /// Writes the sample of `size` bytes that begins at `from` anew at `to`, which is not behind
    /// it, and returns its new size. `frames`: the user's frames, at most [`room`](Self::room);
    /// `None` if there is no user's part.
    ///
    /// # Panics
    /// When the parts are not those of this sample, or there are more frames than room.
    pub fn unwind(
        &self,
        bytes: &mut [u8],
        from: usize,
        size: usize,
        to: usize,
        frames: Option<&[u64]>,
    ) -> usize {
        let at = |offset: usize| from + HEADER_BYTES + offset;
        let (chain_end, dropped, end) = (at(self.callchain.end), at(self.regs_user.start), from + size);
        let behind = at(self.stack_user.end);
        let head = chain_end - from;
        let added = frames.map_or(0, |frames| 8 * (1 + frames.len()));
        // Each piece moves down or into the place of what is dropped, so none covers another that is
        // still to be moved.
        bytes.copy_within(from..chain_end, to);
        let between = to + head + added;
        bytes.copy_within(chain_end..dropped, between);
        let rest = between + (dropped - chain_end);
        bytes.copy_within(behind..end, rest);
        let new_size = rest + (end - behind) - to;
        let mut put = |at: usize, word: u64| bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        if let Some(frames) = frames {
            put(to + head, abi::PERF_CONTEXT_USER);
            for (index, &frame) in frames.iter().enumerate() {
                put(to + head + 8 * (1 + index), frame);
            }
        }
        let chain_words = (self.callchain.len() + added) / 8 - 1;
        put(to + HEADER_BYTES + self.callchain.start, chain_words as u64);
        bytes[to + 6..to + 8].copy_from_slice(&(new_size as u16).to_le_bytes());
        new_size
    }
}

#[cfg(test)]
mod tests {
    use crate::{Attr, SampleLayout, abi};
    use proptest::prelude::*;

    fn attr(more: u64) -> Attr {
        let mut attr = Attr {
            sample_type: abi::PERF_SAMPLE_IP
                | abi::PERF_SAMPLE_TID
                | abi::PERF_SAMPLE_TIME
                | abi::PERF_SAMPLE_CALLCHAIN
                | abi::PERF_SAMPLE_REGS_USER
                | abi::PERF_SAMPLE_STACK_USER
                | more,
            sample_regs_user: 0b1011,
            sample_stack_user: 64,
            ..Attr::default()
        };
        attr.set(abi::ATTR_FLAG_EXCLUDE_CALLCHAIN_USER, true);
        attr
    }

    #[derive(Clone, Debug)]
    struct Made {
        words: Vec<u64>,
        kernel: Vec<u64>,
        raw: Vec<u8>,
        stack: Vec<u64>,
        weight: u64,
        frames: Vec<u64>,
        gap: usize,
    }

    fn made() -> impl Strategy<Value = Made> {
        let words = |most| prop::collection::vec(any::<u64>(), 0..most);
        let raw = prop::collection::vec(any::<u8>(), 0..5usize).prop_map(|words| words.repeat(8));
        (words(8), words(6), raw, words(40), any::<u64>(), words(60), 0..5usize).prop_map(
            |(words, kernel, raw, stack, weight, frames, gap)| Made {
                words: [words, vec![0; 8]].concat(),
                kernel,
                raw: raw.into_iter().chain([0; 4]).collect(),
                stack,
                weight,
                frames,
                gap: 8 * gap,
            },
        )
    }

    fn sample(made: &Made, user: bool) -> Vec<u8> {
        let mut body: Vec<u8> = Vec::new();
        let put = |words: &[u64], body: &mut Vec<u8>| {
            body.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        };
        put(&made.words[..3], &mut body);
        put(&[made.kernel.len() as u64], &mut body);
        put(&made.kernel, &mut body);
        body.extend((made.raw.len() as u32).to_le_bytes());
        body.extend(&made.raw);
        if user {
            put(&[2, 11, 22, 33, 8 * made.stack.len() as u64], &mut body);
            put(&made.stack, &mut body);
            if !made.stack.is_empty() {
                put(&[8 * made.stack.len() as u64], &mut body);
            }
        } else {
            put(&[0, 0], &mut body);
        }
        put(&[made.weight], &mut body);
        let header = u64::from(abi::PERF_RECORD_SAMPLE) | (8 + body.len() as u64) << 48;
        [header.to_le_bytes().to_vec(), body].concat()
    }

    proptest! {
        /// Checks that every field of a reduced sample is as it was, that the chain is the kernel's
        /// part and the frames, and that bytes around it stay as they are, wherever it moves.
        #[test]
        fn nothing_else_changes(made in made(), user in any::<bool>()) {
            let before = attr(abi::PERF_SAMPLE_RAW | abi::PERF_SAMPLE_WEIGHT);
            let after = before.unwound().unwrap();
            let record = sample(&made, user);
            let mut bytes = vec![0xaa; made.gap];
            bytes.extend(&record);
            bytes.extend([0xbb; 16]);
            let parts = SampleLayout::new(&before).stack_parts(&record[8..]).unwrap();
            let frames = &made.frames[..made.frames.len().min(parts.room())];
            let frames = user.then_some(frames);
            let size = parts.unwind(&mut bytes, made.gap, record.len(), 0, frames);
            prop_assert!(size <= record.len());
            prop_assert_eq!(u16::from_le_bytes(bytes[6..8].try_into().unwrap()) as usize, size);
            prop_assert_eq!(&bytes[made.gap + record.len()..], &[0xbb; 16]);
            let old = SampleLayout::new(&before).parse(0, &record[8..]).unwrap();
            let new = SampleLayout::new(&after).parse(0, &bytes[8..size]).unwrap();
            let mut chain = made.kernel.clone();
            if let Some(frames) = frames {
                chain.push(-512_i64 as u64);
                chain.extend(frames);
            }
            prop_assert_eq!(new.callchain.unwrap().iter().collect::<Vec<_>>(), chain);
            prop_assert_eq!((new.ip, new.pid, new.tid, new.time), (old.ip, old.pid, old.tid, old.time));
            prop_assert_eq!((new.raw, new.weight), (old.raw, old.weight));
            prop_assert_eq!((new.user_regs, new.user_stack), (None, None));
        }
    }

    /// Checks that events without stacks stay as they are, and what becomes of the others.
    #[test]
    fn events() {
        let mut without = attr(0);
        without.sample_type &= !abi::PERF_SAMPLE_STACK_USER;
        assert_eq!(without.unwound(), None);
        let after = attr(abi::PERF_SAMPLE_CPU).unwound().unwrap();
        let left = abi::PERF_SAMPLE_IP | abi::PERF_SAMPLE_TID | abi::PERF_SAMPLE_TIME | abi::PERF_SAMPLE_CPU;
        assert_eq!(after.sample_type, left | abi::PERF_SAMPLE_CALLCHAIN);
        assert!(!after.has(abi::ATTR_FLAG_EXCLUDE_CALLCHAIN_USER));
        assert_eq!((after.sample_regs_user, after.sample_stack_user), (0, 64));
        assert!(after.has_unwound_chains() && !attr(abi::PERF_SAMPLE_CPU).has_unwound_chains());
    }
}
