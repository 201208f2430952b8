//! Which words on a stack are return addresses: those behind a call instruction of a file's code.
//!
//! A step without tables is believed only if it comes to such an address. The callers of generated
//! code that keeps no frame pointer are searched for: calls that have ended leave such addresses on
//! the stack, so what is found is a guess, and is given as one.

use rustc_hash::FxHashMap;

use super::instructions::{self, Before, LONGEST_CALL, THREAD_END_BYTES};
use super::regs::UserRegs;
use super::space::{AddressSpace, Mapping};
use super::stack::Stack;
use crate::arch::Arch;

/// How much of the stack is searched.
const MOST_STACK_BYTES: u64 = 8 << 10;
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

    /// Steps to the caller of a frame of generated code, if a return address is found behind this
    /// address of the stack: where it lies. `regs` stay as they are if not.
    pub(super) fn search(
        &mut self,
        space: &AddressSpace,
        regs: &mut UserRegs,
        stack: Stack<'_>,
        behind: Option<u64>,
    ) -> Option<u64> {
        let start = regs.sp().checked_next_multiple_of(8)?;
        let end = start.checked_add(MOST_STACK_BYTES)?;
        let mut slot = behind.map_or(start, |slot| slot + 8);
        while slot < end {
            self.words_left = self.words_left.checked_sub(1)?;
            let word = stack.word(slot)?;
            // No jump stub leads to generated code. It may have been jumped to from the function
            // that was called, as from the interpreter of PHP.
            if let Some(mapping) = space.find(word)
                && matches!(
                    self.before(regs.arch, space, mapping, word),
                    Before::Indirect | Before::Direct(_)
                )
            {
                regs.ip = word;
                regs.set_sp(slot.wrapping_add(8));
                return Some(slot);
            }
            slot += 8;
        }
        None
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
pub(super) fn starts_thread(arch: Arch, space: &AddressSpace, address: u64) -> bool {
    let Some(code) = code_at::<THREAD_END_BYTES>(space, address) else { return false };
    let stops = arch == Arch::X86_64
        && match code {
            [0xe8, a, b, c, d, ..] => {
                let target =
                    address.wrapping_add(5).wrapping_add_signed(i32::from_le_bytes([a, b, c, d]).into());
                matches!(code_at(space, target), Some([0xcc, _] | [0xcd, 3]))
            }
            _ => false,
        };
    stops || instructions::ends_thread(arch, &code)
}

/// Whether a call instruction of a file lies before this address.
pub(super) fn follows_call(arch: Arch, space: &AddressSpace, address: u64) -> bool {
    let code = code_at(space, address.wrapping_sub(LONGEST_CALL as u64));
    code.is_some_and(|code| instructions::call(arch, &code) != Before::Other)
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
    const GENERATED: u64 = 0x50_1000;

    /// Checks that the search for the caller of generated code takes addresses behind calls, direct
    /// and indirect, and goes on behind one that it has found before.
    #[test]
    fn callers_of_generated_code_are_behind_calls() {
        let mut code = vec![0x33; 0x80];
        code[0x0e..0x10].copy_from_slice(&[0xff, 0xd0]);
        code[0x1b..0x20].copy_from_slice(&[0xe8, 0x20, 0, 0, 0]);
        let (indirect, direct) = (PROGRAM + 0x10, PROGRAM + 0x20);
        let modules = store_of(small_elf(&code));
        let mut space = AddressSpace::new();
        space.map(PROGRAM, PROGRAM + 0x80, 0x1000, modules.module(b"/program", b""));
        space.map(GENERATED, GENERATED + 0x80, 0, None);
        let bytes = stack_of(&[7, PROGRAM + 0x30, indirect, 8, direct]);
        let stack = Stack { start: STACK_AT, bytes: &bytes };
        let mut sites = CallSites::default();
        sites.begin();
        let mut found = Vec::new();
        let mut behind = None;
        loop {
            let mut regs = UserRegs::new(GENERATED + 0x44, STACK_AT, STACK_AT);
            let Some(slot) = sites.search(&space, &mut regs, stack, behind) else { break };
            found.push((slot, regs.ip));
            behind = Some(slot);
        }
        assert_eq!(found, [(STACK_AT + 16, indirect), (STACK_AT + 32, direct)]);
    }
}
