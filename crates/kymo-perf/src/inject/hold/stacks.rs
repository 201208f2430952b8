//! The stacks of held threads: what signals have interrupted there.
use super::{PatchSites, PcRelation};
use crate::inject::target::TargetProcess;
use crate::proc::Mappings;

/// Of all stacks together, and of one, looked at for what signals have interrupted.
const ALL_STACKS_BYTES: usize = 64 << 20;
const LEAST_STACK_BYTES: usize = 16 << 10;
const MOST_STACK_BYTES: usize = 1 << 20;
/// Stacks of one thread: handlers may run on another one than what they have interrupted.
const STACKS: usize = 8;
/// Stacks whose copies are kept at once.
const STACKS_AT_ONCE: usize = 64;
/// How much of each stack is looked at, where there are so many threads.
fn most_bytes(threads: usize) -> usize {
    (ALL_STACKS_BYTES / threads.max(1)).clamp(LEAST_STACK_BYTES, MOST_STACK_BYTES)
}

/// Where stacks end: the process's mappings, before anybody was stopped.
#[derive(Debug)]
pub(super) struct Stacks(Vec<(u64, u64)>);

impl Stacks {
    pub(super) fn of(target: &TargetProcess) -> Stacks {
        let maps = target.maps().unwrap_or_default();
        let writable = Mappings::new(&maps).filter(|mapping| mapping.prot & 2 != 0);
        Stacks(writable.map(|mapping| (mapping.start, mapping.end)).collect())
    }

    /// From a stack pointer on, as far as it is one mapping, `most` at most. A mapping that is
    /// newer is read as far as it reaches.
    fn bytes(&self, pointer: u64, most: usize) -> usize {
        let at = self.0.partition_point(|(start, _)| *start <= pointer);
        let end = at.checked_sub(1).map(|at| self.0[at].1).filter(|end| *end > pointer);
        end.map_or(LEAST_STACK_BYTES, |end| usize::try_from(end - pointer).unwrap_or(most)).min(most)
    }

    /// Looks for what signals have interrupted on the stacks of threads that have these stack
    /// pointers, and moves it where it stands inside of a site. What only looks like that is memory
    /// that nobody reads, or holds what the program itself has copied from there.
    ///
    /// All threads stand still meanwhile, so many stacks are read at once.
    pub(super) fn look(&self, target: &TargetProcess, pointers: Vec<u64>, places: &PatchSites) {
        let most = most_bytes(pointers.len());
        let mut seen: Vec<Vec<u64>> = pointers.iter().map(|pointer| vec![*pointer]).collect();
        // A stack for each thread that has one more: its number, and the pointer.
        let mut next: Vec<(usize, u64)> = pointers.into_iter().enumerate().collect();
        while !next.is_empty() {
            let now = std::mem::take(&mut next);
            for some in now.chunks(STACKS_AT_ONCE) {
                let ranges: Vec<(u64, usize)> =
                    some.iter().map(|&(_, pointer)| (pointer, self.bytes(pointer, most))).collect();
                for (&(thread, pointer), stack) in some.iter().zip(target.read_each(&ranges)) {
                    let scanned = pointer..pointer.saturating_add(stack.len() as u64);
                    for frame in frames(&stack, &places.restorers) {
                        move_out(target, pointer, &frame, places);
                        let seen = &mut seen[thread];
                        let is_new = !scanned.contains(&frame.rsp) && !seen.contains(&frame.rsp);
                        if is_new && seen.len() < STACKS {
                            seen.push(frame.rsp);
                            next.push((thread, frame.rsp));
                        }
                    }
                }
            }
        }
    }
}

/// Moves what a signal has interrupted inside of a site, by its frame on the stack that was read
/// from this pointer on.
fn move_out(target: &TargetProcess, pointer: u64, frame: &SignalFrame, places: &PatchSites) {
    if let PcRelation::Moves(to) = places.stand(frame.rip)
        && !places.kept.contains(&frame.rip)
    {
        _ = target.write(pointer + frame.at as u64 + FRAME_RIP, &to.to_le_bytes());
    }
}

/// What the kernel leaves on a stack when it runs a handler: the address where that returns to, and
/// the interrupted registers behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SignalFrame {
    /// From the beginning of what was looked at.
    at: usize,
    rip: u64,
    rsp: u64,
}

const FRAME_RSP: u64 = 8 + 160;
const FRAME_RIP: u64 = 8 + 168;
const FRAME_SEGMENTS: usize = 8 + 184;

fn frames<'a>(stack: &'a [u8], restorers: &'a [u64]) -> impl Iterator<Item = SignalFrame> + 'a {
    let word = |at: usize| {
        let bytes = stack.get(at..at + 8)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    };
    (0..stack.len().saturating_sub(FRAME_SEGMENTS)).step_by(8).filter_map(move |at| {
        if !restorers.contains(&word(at)?) {
            return None;
        }
        // User code of 64 bits.
        let plausible = word(at + FRAME_SEGMENTS)? & 0xffff == 0x33;
        let (rip, rsp) = (word(at + FRAME_RIP as usize)?, word(at + FRAME_RSP as usize)?);
        plausible.then_some(SignalFrame { at, rip, rsp })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that what a handler has interrupted is found on a stack, as the kernel lays it out,
    /// and that other words are not taken for it.
    #[test]
    fn interrupted() {
        let mut stack = vec![0u8; 4096];
        let mut put = |at: usize, word: u64| stack[at..at + 8].copy_from_slice(&word.to_le_bytes());
        put(64, 0x7000);
        put(64 + FRAME_RSP as usize, 0x1234);
        put(64 + FRAME_RIP as usize, 0x5678);
        put(64 + FRAME_SEGMENTS, 0x2b_0000_0000_0033);
        put(1024, 0x7000);
        put(4088, 0x7000);
        let found: Vec<SignalFrame> = frames(&stack, &[0x6000, 0x7000]).collect();
        assert_eq!(found, [SignalFrame { at: 64, rip: 0x5678, rsp: 0x1234 }]);
        assert_eq!(frames(&stack[..100], &[0x7000]).count(), 0);
        assert_eq!(frames(&[], &[0x7000]).count(), 0);
    }
}
