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
//! Registers keep their values: a caller whose rule needs one that the code has changed ends the
//! walk or is missed.

use rustc_hash::FxHashMap;

use super::regs::{RSP, UserRegs};
use super::space::{AddressSpace, Mapping};
use super::stack::Stack;

/// How much of the stack is searched. Assembly rarely has larger frames.
const MOST_STACK_BYTES: u64 = 8 << 10;
/// How many words are looked at for one sample, whatever a hostile program has on its stack.
const MOST_WORDS: usize = 4 << 10;
/// How far a function's start may lie before an instruction of it.
const MOST_CODE_BYTES: u64 = 16 << 10;
/// Addresses that are remembered, before everything is forgotten.
const MOST_KNOWN: usize = 1 << 16;
/// The longest call instruction that is recognised.
const LONGEST_CALL: usize = 7;

/// What lies before an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    /// No call.
    Other,
    /// A call through a register or memory.
    Indirect,
    /// A call to a jump stub.
    Stub,
    /// A `nop`: where Go's runtime lets the first function of a goroutine return to
    /// (`runtime.goexit`).
    Nop,
    /// A call to the address that is so far away, in bytes from the address behind the call.
    Direct(i32),
}

/// The call instructions seen so far, by module and file offset of the address behind them.
#[derive(Debug, Default)]
pub(super) struct CallSites {
    /// How many words of this sample's stack may still be looked at.
    words_left: usize,
    known: FxHashMap<(u32, u64), Before>,
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
        regs.set(RSP, Some(slot.wrapping_add(8)));
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
        let end = start.checked_add(MOST_STACK_BYTES)?;
        for slot in (behind.map_or(start, |slot| slot + 8)..end).step_by(8) {
            self.words_left = self.words_left.checked_sub(1)?;
            let word = stack.word(slot)?;
            let Some(mapping) = space.find(word) else { continue };
            let leads_here = match self.before(space, mapping, word) {
                Before::Other | Before::Nop => false,
                // No jump stub leads to it. It may have been jumped to from the function that was
                // called, as from the interpreter of PHP.
                Before::Stub if is_generated => false,
                Before::Direct(_) if is_generated => true,
                Before::Indirect | Before::Stub => true,
                Before::Direct(distance) => {
                    let target = word.wrapping_add_signed(distance.into());
                    regs.ip.wrapping_sub(target) < MOST_CODE_BYTES
                }
            };
            if leads_here {
                return Some((slot, word));
            }
        }
        None
    }

    /// Whether a function whose frame pointer was followed may return to this address. Generated
    /// code cannot be read: there it may.
    pub(super) fn may_return_to(&mut self, space: &AddressSpace, address: u64) -> bool {
        let Some(mapping) = space.find(address) else { return false };
        mapping.module.is_none() || self.before(space, mapping, address) != Before::Other
    }

    /// Whether the function that returns to this address is a thread's first: what follows is the
    /// system call `exit` (as in `clone` of C libraries and of Go's runtime), `hlt` (as in
    /// `_start`), or the call of a function that is a breakpoint (as in the start of Go's main
    /// thread).
    pub(super) fn is_thread_start(space: &AddressSpace, address: u64) -> bool {
        /// mov $60 (exit), %eax; syscall. Before it, the exit status is put into edi.
        const EXIT: [u8; 7] = [0xb8, 60, 0, 0, 0, 0x0f, 0x05];
        let Some(code) = code_at::<12>(space, address) else { return false };
        match code {
            [0xf4, ..] => true,
            [0xe8, a, b, c, d, ..] => {
                let target =
                    address.wrapping_add(5).wrapping_add_signed(i32::from_le_bytes([a, b, c, d]).into());
                matches!(code_at(space, target), Some([0xcc, _] | [0xcd, 3]))
            }
            _ => code.windows(EXIT.len()).any(|window| window == EXIT),
        }
    }

    fn before(&mut self, space: &AddressSpace, mapping: &Mapping, address: u64) -> Before {
        let Some(module) = &mapping.module else { return Before::Other };
        let key = (module.id(), mapping.file_offset(address));
        if let Some(&known) = self.known.get(&key) {
            return known;
        }
        if self.known.len() >= MOST_KNOWN {
            self.known.clear();
        }
        let code = key.1.checked_sub(LONGEST_CALL as u64).and_then(|start| module.code_at(start));
        let before = code.map_or(Before::Other, |code| match call(&code) {
            Before::Direct(distance) if is_stub(space, address.wrapping_add_signed(distance.into())) => {
                Before::Stub
            }
            other => other,
        });
        self.known.insert(key, before);
        before
    }
}

/// The call instruction that these bytes end with. Its bytes may by chance be those of other
/// instructions.
fn call(code: &[u8; LONGEST_CALL]) -> Before {
    if code[2] == 0xe8 {
        return Before::Direct(i32::from_le_bytes([code[3], code[4], code[5], code[6]]));
    }
    // FF /2: the byte behind it says what follows; see the Intel manual, volume 2, tables 2-2 and
    // 2-3.
    let is_indirect = |length: usize| {
        let [opcode, mode, ..] = code[LONGEST_CALL - length..] else { return false };
        let has_index = mode >> 6 != 3 && mode & 7 == 4;
        let displacement = match mode >> 6 {
            0 if mode & 7 == 5 => 4,
            0 if has_index && length == 7 => 4,
            1 => 1,
            2 => 4,
            _ => 0,
        };
        opcode == 0xff && mode >> 3 & 7 == 2 && length == 2 + usize::from(has_index) + displacement
    };
    match code[LONGEST_CALL - 1] {
        _ if [2, 3, 4, 6, 7].into_iter().any(is_indirect) => Before::Indirect,
        0x90 => Before::Nop,
        _ => Before::Other,
    }
}

/// Whether a jump through memory lies here, as in a procedure linkage table.
fn is_stub(space: &AddressSpace, address: u64) -> bool {
    const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    let Some(code) = code_at::<7>(space, address) else { return false };
    let rest = code.strip_prefix(&ENDBR64).unwrap_or(&code);
    // `bnd jmp`, then `jmp *offset(%rip)`.
    let rest = rest.strip_prefix(&[0xf2]).unwrap_or(rest);
    rest.starts_with(&[0xff, 0x25])
}

fn code_at<const N: usize>(space: &AddressSpace, address: u64) -> Option<[u8; N]> {
    let mapping = space.find(address)?;
    mapping.module.as_ref()?.code_at(mapping.file_offset(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks which instructions are taken for calls: all forms of `call` in 64-bit code, by their
    /// bytes as an assembler makes them, and none of their neighbours.
    #[test]
    fn calls_are_recognised() {
        let padded = |bytes: &[u8]| {
            let mut code = [0x90; LONGEST_CALL];
            code[LONGEST_CALL - bytes.len()..].copy_from_slice(bytes);
            call(&code)
        };
        assert_eq!(padded(&[0xe8, 0xf0, 0xff, 0xff, 0xff]), Before::Direct(-16), "call rel32");
        let indirect: [(&str, &[u8]); 9] = [
            ("call *%rax", &[0xff, 0xd0]),
            ("call *%r12", &[0x41, 0xff, 0xd4]),
            ("call *(%rbx)", &[0xff, 0x13]),
            ("call *8(%rax)", &[0xff, 0x50, 0x08]),
            ("call *0x18(%rsp)", &[0xff, 0x54, 0x24, 0x18]),
            ("call *(%rax,%rcx,8)", &[0xff, 0x14, 0xc8]),
            ("call *0x1234(%rax)", &[0xff, 0x90, 0x34, 0x12, 0, 0]),
            ("call *0x10(%rip)", &[0xff, 0x15, 0x10, 0, 0, 0]),
            ("call *0x1234(%rsp)", &[0xff, 0x94, 0x24, 0x34, 0x12, 0, 0]),
        ];
        for (text, bytes) in indirect {
            assert_eq!(padded(bytes), Before::Indirect, "{text}");
        }
        let others: [(&str, &[u8]); 5] = [
            ("jmp *%rax", &[0xff, 0xe0]),
            ("push 8(%rax)", &[0xff, 0x70, 0x08]),
            ("jmp *%rcx", &[0xff, 0xe1]),
            ("jmp rel32", &[0xe9, 0, 0, 0, 0]),
            ("mov %rsp,%rbp", &[0x48, 0x89, 0xe5]),
        ];
        for (text, bytes) in others {
            assert_eq!(padded(bytes), Before::Other, "{text}");
        }
        assert_eq!(padded(&[0x90]), Before::Nop);
    }
}
