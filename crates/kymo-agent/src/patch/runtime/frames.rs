//! Sigreturn frames on a thread's stack: where it was when signals came, and goes on when their
//! handlers return.
//!
//! ```text
//!   | the handler's frames    |  <- stack pointer
//!   | where the handler       |  an address that the C library, or the program, gave the kernel: a restorer
//!   |   returns to            |
//!   | ucontext: ... rip, cs   |  of the code that was interrupted, maybe between two instructions that a jump is about to replace
//! ```
//! Whoever stands there by its saved `rip` is moved as one that stands there itself: the word is
//! exchanged.
use std::sync::atomic::{AtomicU64, Ordering};

/// From where the restorer's address is kept.
const RIP_AT: u64 = 8 + 40 + 16 * 8;
const CS_AT: u64 = 8 + 40 + 18 * 8;
/// The code segment of 64-bit programs.
const USER_CODE: u64 = 0x33;
/// Little, for it lies on a signal's stack.
const PIECE_BYTES: usize = 256;
/// Places that handlers return to: one for each C library or runtime in the process.
const RESTORERS: usize = 8;

static LIST: [AtomicU64; RESTORERS] = [const { AtomicU64::new(0) }; RESTORERS];

/// Tells where handlers return to.
pub(crate) fn learn(restorers: &[u64]) {
    for (place, restorer) in LIST.iter().zip(restorers) {
        // Relaxed: the question that makes threads look comes later, by a signal.
        place.store(*restorer, Ordering::Relaxed);
    }
}

fn is_restorer(word: u64) -> bool {
    word != 0 && LIST.iter().any(|place| place.load(Ordering::Relaxed) == word)
}

/// Looks through a stack from its pointer on, and moves who stands, by what was saved, where `to`
/// knows another place; whether there was any. Takes no lock, allocates nothing, calls nothing but
/// the three, and stops where nothing can be read.
pub(crate) fn redirect(
    pointer: u64,
    most_bytes: u64,
    read: impl Fn(u64, &mut [u8]) -> usize,
    write: impl Fn(u64, u64),
    to: impl Fn(u64) -> Option<u64>,
) -> bool {
    let begin = pointer & !7;
    let (mut at, mut any) = (begin, false);
    let word = |at: u64| {
        let mut bytes = [0; 8];
        (read(at, &mut bytes) == bytes.len()).then_some(u64::from_le_bytes(bytes))
    };
    let mut piece = [0_u8; PIECE_BYTES];
    while at - begin < most_bytes {
        let got = read(at, &mut piece).min(PIECE_BYTES);
        let mut offset = 0;
        while offset + 8 <= got {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&piece[offset..offset + 8]);
            let here = at + offset as u64;
            if is_restorer(u64::from_le_bytes(bytes))
                && word(here + CS_AT).is_some_and(|code| code & 0xffff == USER_CODE)
                && let Some(place) = word(here + RIP_AT).and_then(&to)
            {
                write(here + RIP_AT, place);
                any = true;
            }
            offset += 8;
        }
        if got < PIECE_BYTES {
            break;
        }
        at += PIECE_BYTES as u64;
    }
    any
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// Checks that of frames at all places of a stack those are moved that stand where they must
    /// not, that others stay, and that the end of a stack ends the look.
    #[test]
    fn frames_are_found() {
        learn(&[0x7777]);
        for place in (0..5000).step_by(8) {
            let memory = RefCell::new(vec![0_u8; 6000]);
            let put =
                |at: usize, value: u64| memory.borrow_mut()[at..at + 8].copy_from_slice(&value.to_le_bytes());
            put(place, 0x7777);
            put(place + CS_AT as usize, USER_CODE | 0x2b << 48);
            put(place + RIP_AT as usize, 0x1002);
            let read = |at: u64, into: &mut [u8]| {
                let memory = memory.borrow();
                let there = &memory[(at as usize - 0x4000).min(memory.len())..];
                let count = there.len().min(into.len());
                into[..count].copy_from_slice(&there[..count]);
                count
            };
            let write = |at: u64, value: u64| put(at as usize - 0x4000, value);
            let to = |at: u64| (at == 0x1002).then_some(0x9000);
            assert!(redirect(0x4000, 1 << 20, read, write, to), "{place}");
            assert!(!redirect(0x4000, 1 << 20, read, write, to));
            put(place + RIP_AT as usize, 0x1003);
            assert!(!redirect(0x4000, 1 << 20, read, write, to));
        }
    }
}
