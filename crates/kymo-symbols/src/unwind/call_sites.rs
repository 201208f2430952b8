//! Searches the stack for the caller of code that has neither unwind data nor a frame pointer.
//!
//! Hand-written assembly, as in codecs and cryptography, often has no unwind data and uses `rbp`
//! for its own values. Its return address still lies on the stack, above whatever the function put
//! there. A word is taken for it if it is the address behind a call instruction of a file's code,
//! and that call can have led to the code in question:
//!
//! - an indirect call can lead anywhere;
//! - a direct call must lead to a jump stub (the PLT), or to a place at most [`MOST_CODE_BYTES`]
//!   before the code.
//!
//! An indirect call, or one of a jump stub, in another file than the code's counts only if no direct
//! call of the code lies close behind it: calls that have ended leave such addresses in frames that
//! are not filled.
//!
//! Registers keep their values: a caller whose rule needs one that the code has changed ends the
//! walk or is missed.

use rustc_hash::FxHashMap;

use super::instructions::{self, Before, LONGEST_CALL};
use super::regs::UserRegs;
use super::space::{AddressSpace, Mapping};
use super::stack::Stack;
use crate::arch::Arch;

/// How much of the stack is searched. Assembly rarely has larger frames.
const MOST_STACK_BYTES: u64 = 8 << 10;
/// How far behind a call from another file one from the code's own file is looked for.
const MOST_STALE_BYTES: u64 = 2 << 10;
/// How many words are looked at for one sample, whatever a hostile program has on its stack.
const MOST_WORDS: usize = 4 << 10;
/// How far a function's start may lie before an instruction of it.
const MOST_CODE_BYTES: u64 = 16 << 10;
/// Addresses that are remembered, before everything is forgotten.
const MOST_KNOWN: usize = 1 << 16;

/// The call instructions seen so far, by module and file offset of the address behind them.
#[derive(Debug, Default)]
pub(super) struct CallSites {
    /// How many words of this sample's stack may still be looked at.
    words_left: usize,
    known: FxHashMap<(u32, u64), Before>,
    /// Whether they return to a thread's first function, by the same keys.
    thread_starts: FxHashMap<(u32, u64), bool>,
}

impl CallSites {
    /// Another sample: as many words may be looked at again.
    pub(super) fn begin(&mut self) {
        self.words_left = MOST_WORDS;
    }

    /// Steps to the caller of a frame, if its return address is found behind this address of the
    /// stack: where it lies. `regs` stay as they are if not. `is_generated`: the frame is one of
    /// generated code.
    pub(super) fn search(
        &mut self,
        space: &AddressSpace,
        regs: &mut UserRegs,
        stack: Stack<'_>,
        behind: Option<u64>,
        is_generated: bool,
    ) -> Option<u64> {
        let (slot, address) = self.return_address(space, regs, stack, behind, is_generated)?;
        regs.ip = address;
        regs.set_sp(slot.wrapping_add(8));
        Some(slot)
    }

    /// Where on the stack a frame's return address lies, and the address.
    fn return_address(
        &mut self,
        space: &AddressSpace,
        regs: &UserRegs,
        stack: Stack<'_>,
        behind: Option<u64>,
        is_generated: bool,
    ) -> Option<(u64, u64)> {
        let start = regs.sp().checked_next_multiple_of(8)?;
        let mut end = start.checked_add(MOST_STACK_BYTES)?;
        let module = |mapping: &Mapping| mapping.module.as_ref().map(|module| module.id());
        let here = space.find(regs.ip).and_then(module);
        let mut elsewhere = None;
        let mut slot = behind.map_or(start, |slot| slot + 8);
        while slot < end {
            let Some(left) = self.words_left.checked_sub(1) else { break };
            self.words_left = left;
            let Some(word) = stack.word(slot) else { break };
            let found = (slot, word);
            slot += 8;
            let Some(mapping) = space.find(word) else { continue };
            match self.before(regs.arch, space, mapping, word) {
                Before::Other | Before::Nop => {}
                // No jump stub leads to it. It may have been jumped to from the function that was
                // called, as from the interpreter of PHP.
                Before::Stub if is_generated => {}
                Before::Direct(_) if is_generated => return Some(found),
                Before::Indirect | Before::Stub if is_generated || module(mapping) == here => {
                    return elsewhere.or(Some(found));
                }
                // An earlier call may have left it: the dynamic linker's, for example.
                Before::Indirect | Before::Stub if elsewhere.is_none() => {
                    elsewhere = Some(found);
                    end = end.min(slot.saturating_add(MOST_STALE_BYTES));
                }
                Before::Indirect | Before::Stub => {}
                Before::Direct(distance) => {
                    let target = word.wrapping_add_signed(distance.into());
                    if regs.ip.wrapping_sub(target) < MOST_CODE_BYTES {
                        return Some(found);
                    }
                }
            }
        }
        elsewhere
    }

    /// Whether a function whose frame pointer was followed may return to this address. Generated
    /// code cannot be read: there it may.
    pub(super) fn may_return_to(&mut self, arch: Arch, space: &AddressSpace, address: u64) -> bool {
        let Some(mapping) = space.find(address) else { return false };
        mapping.module.is_none() || self.before(arch, space, mapping, address) != Before::Other
    }

    /// Whether the function that returns to this address is a thread's first: what follows is the
    /// system call `exit` (as in `clone` of C libraries and of Go's runtime), `hlt` (as in
    /// `_start`), or the call of a function that is a breakpoint (as in the start of Go's main
    /// thread).
    pub(super) fn is_thread_start(&mut self, arch: Arch, space: &AddressSpace, address: u64) -> bool {
        let Some(mapping) = space.find(address) else { return false };
        let Some(module) = &mapping.module else { return false };
        let key = (module.id(), mapping.file_offset(address));
        if let Some(&known) = self.thread_starts.get(&key) {
            return known;
        }
        if self.thread_starts.len() >= MOST_KNOWN {
            self.thread_starts.clear();
        }
        let starts = starts_thread(arch, space, address);
        self.thread_starts.insert(key, starts);
        starts
    }

    /// Whether the link register of the innermost frame holds the address that this frame returns
    /// to: a call of the frame's function, as far as can be seen, lies before it. Once the function
    /// has called another, the register holds an address in the function itself. `None`: the code
    /// cannot be read.
    pub(super) fn is_link(space: &AddressSpace, regs: &UserRegs, link: u64) -> Option<bool> {
        let Some(mapping) = space.find(link) else { return Some(false) };
        let start = mapping.file_offset(link).wrapping_sub(LONGEST_CALL as u64);
        let code = mapping.module.as_ref()?.code_at(start)?;
        Some(match instructions::call(regs.arch, &code) {
            Before::Indirect | Before::Stub => true,
            Before::Direct(distance) => {
                let target = link.wrapping_add_signed(distance.into());
                is_stub(regs.arch, space, target) || regs.ip.wrapping_sub(target) < MOST_CODE_BYTES
            }
            Before::Nop | Before::Other => false,
        })
    }

    fn before(&mut self, arch: Arch, space: &AddressSpace, mapping: &Mapping, address: u64) -> Before {
        let Some(module) = &mapping.module else { return Before::Other };
        let key = (module.id(), mapping.file_offset(address));
        if let Some(&known) = self.known.get(&key) {
            return known;
        }
        if self.known.len() >= MOST_KNOWN {
            self.known.clear();
        }
        let code = key.1.checked_sub(LONGEST_CALL as u64).and_then(|start| module.code_at(start));
        let before = code.map_or(Before::Other, |code| match instructions::call(arch, &code) {
            Before::Direct(distance)
                if is_stub(arch, space, address.wrapping_add_signed(distance.into())) =>
            {
                Before::Stub
            }
            other => other,
        });
        self.known.insert(key, before);
        before
    }
}

/// Whether the code at this address ends a thread.
fn starts_thread(arch: Arch, space: &AddressSpace, address: u64) -> bool {
    let Some(code) = code_at::<12>(space, address) else { return false };
    let stops = arch == Arch::X86_64
        && match code {
            [0xf4, ..] => true,
            [0xe8, a, b, c, d, ..] => {
                let target =
                    address.wrapping_add(5).wrapping_add_signed(i32::from_le_bytes([a, b, c, d]).into());
                matches!(code_at(space, target), Some([0xcc, _] | [0xcd, 3]))
            }
            _ => false,
        };
    stops || instructions::exits_thread(arch, &code)
}

/// Whether a jump stub lies here.
fn is_stub(arch: Arch, space: &AddressSpace, address: u64) -> bool {
    code_at(space, address).is_some_and(|code| instructions::is_stub(arch, &code))
}

fn code_at<const N: usize>(space: &AddressSpace, address: u64) -> Option<[u8; N]> {
    let mapping = space.find(address)?;
    mapping.module.as_ref()?.code_at(mapping.file_offset(address))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{STACK_AT, small_elf, stack_of, store_of};
    use super::*;

    const PROGRAM: u64 = 0x40_1000;
    const LIBRARY: u64 = 0x7f00_1000;
    /// Behind an indirect call, and behind a direct call of the code at 0x40.
    const INDIRECT: u64 = 0x10;
    const DIRECT: u64 = 0x20;

    /// The return address that is found for code at 0x44 of the program.
    fn caller(words: &[u64]) -> Option<u64> {
        let mut code = vec![0x33; 0x80];
        code[0x0e..0x10].copy_from_slice(&[0xff, 0xd0]);
        code[0x1b..0x20].copy_from_slice(&[0xe8, 0x20, 0, 0, 0]);
        let modules = store_of(small_elf(&code));
        let mut space = AddressSpace::new();
        space.map(PROGRAM, PROGRAM + 0x80, 0x1000, modules.module(b"/program", b""));
        space.map(LIBRARY, LIBRARY + 0x80, 0x1000, modules.module(b"/library", b""));
        let regs = UserRegs::new(PROGRAM + 0x44, STACK_AT, STACK_AT);
        let bytes = stack_of(words);
        let mut sites = CallSites::default();
        sites.begin();
        let stack = Stack { start: STACK_AT, bytes: &bytes };
        sites.return_address(&space, &regs, stack, None, false).map(|(_, address)| address)
    }

    /// Checks that an address behind a call in another file, which an ended call may have left, yields to a direct call
    /// of the code close behind it, and to nothing else.
    #[test]
    fn a_stale_address_of_another_file_is_no_caller() {
        let (own, other) = (PROGRAM + DIRECT, LIBRARY + INDIRECT);
        assert_eq!(caller(&[7, other, 8, own]), Some(own));
        assert_eq!(caller(&[7, other, 8]), Some(other));
        assert_eq!(caller(&[7, other, PROGRAM + INDIRECT, own]), Some(other));
        assert_eq!(caller(&[7, PROGRAM + INDIRECT, other, own]), Some(PROGRAM + INDIRECT));
        let far: Vec<u64> = [other].into_iter().chain([0; 300]).chain([own]).collect();
        assert_eq!(caller(&far), Some(other));
        // A direct call of other code is none of this.
        assert_eq!(caller(&[LIBRARY + DIRECT]), None);
    }
}
