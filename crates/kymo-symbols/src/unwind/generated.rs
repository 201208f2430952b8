//! Frames of generated code, which has no unwind data: the caller of this crate may know how its
//! compiler lays them out.

use super::regs::UserRegs;
use super::stack::Stack;
use super::stats::Stop;
use crate::arch::{Arch, LR};

/// How far above the stack pointer a frame pointer may point to be believed, in bytes; libunwind's
/// limit.
const MAX_GUESSED_FRAME_BYTES: u64 = 0x4000;

/// Where generated code has put what leads to its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GeneratedFrame {
    /// At fixed distances from the stack pointer, in bytes.
    ByStackPointer {
        /// The return address.
        return_address: u32,
        /// The caller's frame pointer; `None`: still in its register.
        frame_pointer: Option<u32>,
    },
    /// Behind the frame pointer: the caller's frame pointer, then the return address.
    ByFramePointer {
        /// The word before them is the caller's stack pointer, as in HotSpot's interpreter: the
        /// arguments of a call may lie in between.
        has_stack_pointer: bool,
    },
    /// It is known to the runtime, but not here: guessing would give wrong callers.
    Unknown,
}

/// Knows how a process's generated code lays out frames.
pub trait GeneratedCode {
    /// The frame of the function at this address; `is_innermost`: it runs there, so that its frame
    /// may be incomplete. `None`: no runtime is known that made this code.
    fn frame_at(&mut self, address: u64, is_innermost: bool) -> Option<GeneratedFrame>;

    /// The same frame, which has led to no code: other code may lie there by now than when it was
    /// last looked at. `None`: that cannot be.
    fn frame_at_again(&mut self, _address: u64, _is_innermost: bool) -> Option<GeneratedFrame> {
        None
    }
}

/// Nothing is known of generated code.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnknownCode;

impl GeneratedCode for UnknownCode {
    fn frame_at(&mut self, _: u64, _: bool) -> Option<GeneratedFrame> {
        None
    }
}

impl GeneratedFrame {
    /// The same frame after its function has pushed so many words, as HotSpot's comparison of
    /// strings does in the middle of a method; `None`: pushes do not move what leads to the caller.
    pub(super) fn after_pushes(self, words: u32) -> Option<GeneratedFrame> {
        let GeneratedFrame::ByStackPointer { return_address, frame_pointer } = self else { return None };
        let moved = |offset: u32| offset.checked_add(words * 8);
        let frame_pointer = match frame_pointer {
            Some(offset) => Some(moved(offset)?),
            None => None,
        };
        Some(GeneratedFrame::ByStackPointer { return_address: moved(return_address)?, frame_pointer })
    }

    /// Steps to the caller.
    pub(super) fn step(self, regs: &mut UserRegs, stack: Stack<'_>) -> Result<(), Stop> {
        let word = |address| stack.word(address).ok_or_else(|| stack.why_unreadable(address));
        match self {
            GeneratedFrame::ByStackPointer { return_address, frame_pointer } => {
                let at = |bytes: u32| regs.sp().wrapping_add(u64::from(bytes));
                let ip = word(at(return_address))?;
                let caller = match frame_pointer {
                    Some(bytes) => Some(word(at(bytes))?),
                    None => regs.get(regs.arch.fp()),
                };
                let sp = at(return_address).wrapping_add(8);
                regs.forget_all();
                regs.ip = ip;
                regs.set(regs.arch.fp(), caller);
                regs.set_sp(sp);
                Ok(())
            }
            GeneratedFrame::ByFramePointer { has_stack_pointer } => {
                let frame = regs.get(regs.arch.fp()).ok_or(Stop::RegisterUnknown)?;
                step_frame_pointer(regs, stack)?;
                if has_stack_pointer {
                    let sp = word(frame.wrapping_sub(8))?;
                    if sp.wrapping_sub(frame) > MAX_GUESSED_FRAME_BYTES {
                        return Err(Stop::NoUnwindInfo);
                    }
                    regs.set_sp(sp);
                }
                Ok(())
            }
            GeneratedFrame::Unknown => Err(Stop::NoUnwindInfo),
        }
    }
}

/// The caller of a frame that no unwind data covers, if it keeps a frame pointer. It points to the
/// caller's frame pointer and the return address. The caller's stack pointer is just above; on
/// aarch64 it may be higher, as the two lie at the bottom of many frames.
pub(super) fn step_frame_pointer(regs: &mut UserRegs, stack: Stack<'_>) -> Result<(), Stop> {
    let fp = regs.arch.fp();
    let frame = regs.get(fp).ok_or(Stop::RegisterUnknown)?;
    if frame == 0 {
        return Err(Stop::Root);
    }
    let distance = frame.wrapping_sub(regs.sp());
    if distance > MAX_GUESSED_FRAME_BYTES || frame % 8 != 0 {
        return Err(Stop::NoUnwindInfo);
    }
    let word = |address| stack.word(address).ok_or_else(|| stack.why_unreadable(address));
    let saved = word(frame)?;
    let ip = word(frame.wrapping_add(8))?;
    regs.forget_all();
    regs.ip = ip;
    regs.set(fp, Some(saved));
    regs.set_sp(frame.wrapping_add(16));
    if regs.arch == Arch::Aarch64 {
        regs.set(LR, Some(ip));
    }
    Ok(())
}
