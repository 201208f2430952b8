//! Stacks of 32-bit tasks: along their frame pointers, as the kernel walks them.
//!
//! No unwind data is read for them: their registers and stacks have another shape. Tasks of 32-bit
//! ARM have no frame pointer that all compilers agree on: they have the sampled address only.

use super::regs::UserRegs;
use super::stack::Stack;
use super::stats::Stop;
use crate::arch::{Arch, RBP};

/// Appends the frames of a 32-bit task to `out`, at most `full` of them in all. Return addresses
/// are lowered by `back`.
pub(super) fn walk(regs: &UserRegs, stack: Stack<'_>, back: u64, full: usize, out: &mut Vec<u64>) -> Stop {
    let word = |address: u64| {
        let at = usize::try_from(address.checked_sub(stack.start)?).ok()?;
        Some(u32::from_le_bytes(*stack.bytes.get(at..)?.first_chunk()?))
    };
    let mut frame = regs.get(RBP).unwrap_or(0) & u64::from(u32::MAX);
    let mut address = regs.ip;
    if regs.arch != Arch::X86_64 {
        out.push(address);
        return Stop::NoUnwindInfo;
    }
    loop {
        if out.len() >= full {
            return Stop::Limit;
        }
        out.push(address);
        if frame == 0 {
            return Stop::Root;
        }
        let (Some(outer), Some(caller)) = (word(frame), word(frame.wrapping_add(4))) else {
            return Stop::NoUnwindInfo;
        };
        // Above the first frame lies the number of arguments.
        if caller < 4096 {
            return Stop::Root;
        }
        // Callers lie above: what points down is no frame.
        if outer != 0 && u64::from(outer) <= frame {
            return Stop::NoUnwindInfo;
        }
        address = u64::from(caller).wrapping_sub(back);
        frame = outer.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks a stack of two frames, one that is cut off, and frames that point down.
    #[test]
    fn along_frame_pointers() {
        let walked = |words: &[u32], bp| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let regs = UserRegs::new(0x100, 0xf000, bp);
            let mut out = Vec::new();
            let stop = walk(&regs, Stack { start: 0xf000, bytes: &bytes }, 1, 127, &mut out);
            (out, stop)
        };
        let whole = [0, 0xf00c, 0x2000, 0xf014, 0x3000, 0, 1];
        assert_eq!(walked(&whole, 0xf004), (vec![0x100, 0x1fff, 0x2fff], Stop::Root));
        assert_eq!(walked(&whole[..3], 0xf004), (vec![0x100, 0x1fff], Stop::NoUnwindInfo));
        assert_eq!(walked(&[0xf000, 0x2000], 0xf000), (vec![0x100], Stop::NoUnwindInfo));
        assert_eq!(walked(&[], 0), (vec![0x100], Stop::Root));
    }
}
