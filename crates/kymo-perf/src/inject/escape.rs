//! The way home of a borrowed thread whose borrower is killed: it puts itself back.
//!
//! ```text
//!   lent stack, upwards
//!     what a call returns to       --> the gate: "syscall; ret"          the borrower stops it here, before the call is made
//!     what the gate returns to     --> the restorer: rt_sigreturn
//!     what the kernel reads then       all registers, vectors, the mask of signals: as a signal's handler finds them above itself
//! ```
//! With nobody to stop it, the gate's system call fails, for its number is an address or a small negative number (a call that may return another one must not
//! be borrowed for), and the thread returns from a signal that never came.
use super::target::Target;
use crate::proc::Mappings;
use crate::sys::ptrace::{Registers, Saved};
use std::io;

/// `syscall; ret`.
const GATE: [u8; 3] = [0x0f, 0x05, 0xc3];
/// `mov rax, 15; syscall`, as C libraries end handlers.
const RESTORER: [u8; 9] = [0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05];
/// Of one mapping looked through.
const MOST_CODE_BYTES: u64 = 16 << 20;
/// `struct ucontext` of the kernel, and the `siginfo` behind it.
const CONTEXT_BYTES: usize = 304;
const INFO_BYTES: usize = 128;

/// Where a thread finds its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ways {
    pub(super) gate: u64,
    pub(super) restorer: u64,
}

impl Ways {
    /// Looks for them in the code of the C library.
    pub(super) fn of(target: &Target) -> Option<Ways> {
        let maps = target.maps().ok()?;
        let is_libc = |path: &[u8]| {
            let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
            name.starts_with(b"libc.so") || name.starts_with(b"libc-")
        };
        let code = Mappings::new(&maps).filter(|mapping| mapping.prot & 4 != 0 && is_libc(mapping.path));
        code.into_iter().find_map(|mapping| {
            let mut bytes = vec![0; mapping.end.checked_sub(mapping.start)?.min(MOST_CODE_BYTES) as usize];
            let read = target.read_some(mapping.start, &mut bytes);
            let find = |what: &[u8]| {
                let at = bytes[..read].windows(what.len()).position(|part| part == what)?;
                Some(mapping.start + at as u64)
            };
            Some(Ways { gate: find(&GATE)?, restorer: find(&RESTORER)? })
        })
    }
}

/// What the kernel is to read at `at` for a thread to be as it was: `rt_sigreturn` with the stack pointer there.
pub(super) fn frame(saved: &Saved, at: u64) -> Vec<u8> {
    let registers = restarted(*saved.registers());
    let vectors_at = (at + (CONTEXT_BYTES + INFO_BYTES) as u64).next_multiple_of(64);
    let mut bytes = vec![0; (vectors_at - at) as usize];
    let mut put = |at: usize, word: u64| bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    /// Vectors are there; the segment of the stack is, and is to be restored.
    const FLAGS: u64 = 1 | 2 | 4;
    /// Flags of an alternate stack that no kernel takes, so that the thread's own stays.
    const NO_STACK: u64 = 0x55;
    put(0, FLAGS);
    put(24, NO_STACK);
    let r = &registers;
    let words = [
        r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rdi, r.rsi, r.rbp, r.rbx, r.rdx, r.rax,
        r.rcx, r.rsp, r.rip, r.eflags,
    ];
    for (number, word) in words.into_iter().enumerate() {
        put(40 + 8 * number, word);
    }
    put(184, r.cs & 0xffff | (r.ss & 0xffff) << 48);
    put(224, vectors_at);
    put(296, saved.signals());
    bytes.extend(vectors(saved.vectors()));
    bytes
}

/// The vector registers as in a signal's frame: with words for the kernel about how many there are.
fn vectors(kept: &[u8]) -> Vec<u8> {
    const SOFTWARE_AT: usize = 464;
    const USED_AT: usize = 512;
    const BEGIN: u32 = 0x4650_5853;
    const END: u32 = 0x4650_5845;
    /// Tiles, which a thread must ask for, lie behind all others.
    const TILES: u64 = 1 << 18;
    const BYTES_WITHOUT_TILES: usize = 2816;
    let word = |at: usize| {
        let bytes = kept.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_le_bytes)
    };
    let (all, used) = (word(SOFTWARE_AT), word(USED_AT));
    let most = if used & TILES == 0 { BYTES_WITHOUT_TILES } else { kept.len() };
    let mut bytes = kept[..kept.len().min(most)].to_vec();
    let count = bytes.len() as u32;
    if bytes.len() < USED_AT + 64 {
        // The oldest form, which says nothing about itself.
        return bytes;
    }
    let features = if used & TILES == 0 { all & !TILES } else { all };
    bytes[SOFTWARE_AT..USED_AT].fill(0);
    bytes[SOFTWARE_AT..SOFTWARE_AT + 4].copy_from_slice(&BEGIN.to_le_bytes());
    bytes[SOFTWARE_AT + 4..SOFTWARE_AT + 8].copy_from_slice(&(count + 4).to_le_bytes());
    bytes[SOFTWARE_AT + 8..SOFTWARE_AT + 16].copy_from_slice(&features.to_le_bytes());
    bytes[SOFTWARE_AT + 16..SOFTWARE_AT + 20].copy_from_slice(&count.to_le_bytes());
    bytes.extend(END.to_le_bytes());
    bytes
}

/// Registers with which a system call is made again that the kernel would repeat by itself when the thread goes on.
fn restarted(mut registers: Registers) -> Registers {
    const RESTART_BLOCK: i64 = -516;
    let in_call = registers.orig_rax as i64 >= 0;
    match registers.rax as i64 {
        -514..=-512 if in_call => registers.rax = registers.orig_rax,
        RESTART_BLOCK if in_call => registers.rax = libc::SYS_restart_syscall as u64,
        _ => return registers,
    }
    registers.rip = registers.rip.wrapping_sub(2);
    registers
}

/// Writes the way home at the upper end of a lent stack; where a call's stack pointer is to be, with the gate's address for it to return to.
pub(super) fn prepare(
    target: &Target,
    saved: &Saved,
    ways: Ways,
    stack: std::ops::Range<u64>,
) -> io::Result<u64> {
    /// More than any processor keeps of a thread.
    const MOST_FRAME_BYTES: u64 = 20 << 10;
    // As after a call instruction: 8 below a multiple of 16.
    let pointer = (stack.end - MOST_FRAME_BYTES) / 64 * 64 - 8;
    let mut bytes = Vec::from(ways.gate.to_le_bytes());
    bytes.extend(ways.restorer.to_le_bytes());
    bytes.extend(frame(saved, pointer + 16));
    if pointer < stack.start || pointer + bytes.len() as u64 > stack.end {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    target.write(pointer, &bytes)?;
    Ok(pointer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::ptrace::no_registers;

    /// Checks that calls which the kernel repeats are repeated, each in its way, and others are not.
    #[test]
    fn repeated_calls() {
        let after = |orig: i64, result: i64| {
            let mut registers = no_registers();
            (registers.orig_rax, registers.rax, registers.rip) = (orig as u64, result as u64, 0x1000);
            let registers = restarted(registers);
            (registers.rax as i64, registers.rip)
        };
        for repeated in [-512, -513, -514] {
            assert_eq!(after(libc::SYS_read, repeated), (libc::SYS_read, 0xffe));
        }
        assert_eq!(after(libc::SYS_poll, -516), (libc::SYS_restart_syscall, 0xffe));
        assert_eq!(after(libc::SYS_poll, -4), (-4, 0x1000));
        assert_eq!(after(-1, -512), (-512, 0x1000));
    }
}
