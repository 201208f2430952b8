//! Frames of generated code, which has no unwind data: the caller of this crate may know how its
//! compiler lays them out.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use rustc_hash::FxHashMap;

use super::instructions::{self, Before, LONGEST_CALL};
use super::machine_code::{self, MachineCode};
use super::regs::UserRegs;
use super::rule::Rule;
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

    /// Bytes of generated code from this address on, at most so many, for code whose runtime is not
    /// known: what lay there at the sample, as far as can be told. `None`: they cannot be had now.
    fn bytes_at(&mut self, _address: u64, _most: u64) -> Option<Vec<u8>> {
        None
    }

    /// Where rules are kept that follow from such bytes, as long as these are believed.
    fn rules(&mut self) -> Option<&mut CodeRules> {
        None
    }
}

/// Addresses whose rules are remembered, before everything is forgotten.
const MOST_RULES: usize = 1 << 14;

/// What the machine code of one process's generated code says about frames.
#[derive(Debug, Default)]
pub struct CodeRules {
    /// By address, and whether it is that of a caller. `None`: the code does not say it.
    known: FxHashMap<(u64, bool), Option<Rule>>,
}

impl CodeRules {
    /// Other bytes may lie there by now.
    pub fn clear(&mut self) {
        self.known.clear();
    }
}

/// The rule that the machine code of an address says, as it is for files without tables. `range`:
/// the mapping that the address is in.
pub(super) fn rule_by_code(
    code: &mut dyn GeneratedCode,
    range: Range<u64>,
    (address, is_caller): (u64, bool),
) -> Option<Rule> {
    let key = (address, is_caller);
    if let Some(known) = code.rules()?.known.get(&key) {
        return known.clone();
    }
    let is_complete = Cell::new(true);
    let source = RefCell::new(code);
    let read = |address, most| {
        let bytes = source.borrow_mut().bytes_at(address, most);
        is_complete.set(is_complete.get() && bytes.is_some());
        bytes
    };
    let place = {
        let code = MachineCode { range, bits: 64, starts: &[], read: &read };
        machine_code::caller_place(address, is_caller, &code)
    };
    let rule = place.and_then(|place| place.rule());
    // Bytes that could not be had now may be there at the next sample.
    if (rule.is_some() || is_complete.get())
        && let Some(rules) = source.into_inner().rules()
    {
        if rules.known.len() >= MOST_RULES {
            rules.clear();
        }
        rules.known.insert(key, rule.clone());
    }
    rule
}

/// Whether a call instruction of generated code lies before this address.
pub(super) fn follows_call(code: &mut dyn GeneratedCode, arch: Arch, address: u64) -> bool {
    let Some(start) = address.checked_sub(LONGEST_CALL as u64) else { return false };
    let bytes = code.bytes_at(start, LONGEST_CALL as u64);
    let call = bytes.as_deref().and_then(|bytes| bytes.first_chunk());
    call.is_some_and(|call| matches!(instructions::call(arch, call), Before::Direct(_) | Before::Indirect))
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

#[cfg(test)]
mod tests {
    use super::super::tests::{STACK_AT, small_elf, stack_of, store_of};
    use super::super::{AddressSpace, Convention, MAX_FRAMES, Unwinder};
    use super::*;

    const PROGRAM: u64 = 0x40_1000;
    const GENERATED: u64 = 0x50_1000;

    /// Code that can be read, or cannot.
    struct Readable {
        bytes: Vec<u8>,
        rules: CodeRules,
    }

    impl GeneratedCode for Readable {
        fn frame_at(&mut self, _: u64, _: bool) -> Option<GeneratedFrame> {
            None
        }

        fn bytes_at(&mut self, address: u64, most: u64) -> Option<Vec<u8>> {
            let rest = self.bytes.get(address.checked_sub(GENERATED)? as usize..)?;
            (!rest.is_empty()).then(|| rest[..rest.len().min(most as usize)].to_vec())
        }

        fn rules(&mut self) -> Option<&mut CodeRules> {
            Some(&mut self.rules)
        }
    }

    /// Checks that callers of generated code without frame pointers follow from its instructions,
    /// where these can be read, lead to addresses behind calls, and the walk comes to the thread's
    /// start; and that the frame is the last one where they do not.
    #[test]
    fn callers_by_machine_code() {
        let mut program = vec![0x33; 0x80];
        // call *%rax; hlt
        program[0x10..0x13].copy_from_slice(&[0xff, 0xd0, 0xf4]);
        let mut bytes = vec![0xcc; 0x80];
        // call *%rax; add $0x18,%rsp; ret
        bytes[0x10..0x17].copy_from_slice(&[0xff, 0xd0, 0x48, 0x83, 0xc4, 0x18, 0xc3]);
        // add $8,%rsp; ret
        bytes[0x20..0x25].copy_from_slice(&[0x48, 0x83, 0xc4, 8, 0xc3]);
        let modules = store_of(small_elf(&program));
        let mut space = AddressSpace::new();
        space.map(PROGRAM, PROGRAM + 0x80, 0x1000, modules.module(b"/program", b""));
        space.map(GENERATED, GENERATED + 0x80, 0, None);
        let walked = |bytes: &[u8], words: &[u64]| {
            let mut unwinder = Unwinder::new(Convention::Perf).searching_callers();
            let regs = UserRegs::new(GENERATED + 0x20, STACK_AT, 1);
            let mut code = Readable { bytes: bytes.to_vec(), rules: CodeRules::default() };
            let mut walk = || {
                let mut frames = Vec::new();
                let stack = stack_of(words);
                let stop =
                    unwinder.unwind_generated(&space, &regs, &stack, MAX_FRAMES, &mut code, &mut frames);
                (frames, stop, unwinder.guessed_callers().count())
            };
            let first = walk();
            assert_eq!(walk(), first, "by the rules that are kept");
            first
        };
        let (inner, outer) = (GENERATED + 0x12, PROGRAM + 0x12);
        let whole = vec![GENERATED + 0x20, inner - 1, outer - 1];
        assert_eq!(walked(&bytes, &[7, inner, 1, 2, 3, outer]), (whole, Stop::Root, 0));
        let alone = (vec![GENERATED + 0x20], Stop::NoUnwindInfo, 0);
        assert_eq!(walked(&bytes, &[7, inner + 4, 1, 2, 3, outer + 9, 0]).0, alone.0, "behind no call");
        let stale = [7, inner, 1, 2, 3, outer + 9, 4, 5];
        assert_eq!(walked(&bytes, &stale), alone, "no thread's start");
        let (frames, _, guessed) = walked(&[], &[7, inner, 1, 2, 3, outer]);
        assert_eq!((frames.last(), guessed), (Some(&(outer - 1)), 1), "searched for");
    }
}
