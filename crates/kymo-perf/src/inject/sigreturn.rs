//! The sigreturn frame of a hijacked thread: if the tracer is killed, the thread restores itself.
//!
//! ```text
//!   a stack, upwards
//!     what a call returns to       --> a gadget: a system call, then "ret"   the borrower stops it here, before the call is made
//!     what the gadget returns to   --> the restorer: rt_sigreturn
//!     what the kernel reads then       all registers, vectors, the mask of signals: as a signal's handler finds them above itself
//! ```
//! With nobody to stop it, the gadget's system call does nothing, and the thread returns from a
//! signal that never came.
//!
//! The way is there twice. The first one is written into unused memory of the thread's own stack
//! (room.rs) while the thread still has its own registers; only then are they changed. The second
//! one is at the upper end of the lent stack. So at every moment the stack pointer that the thread
//! has points at a way home, or is its own.
//!
//! # Gadgets
//! `syscall; ret` makes the system call that the result of a function is the number of: an address,
//! or a small negative number, which is none. A function that may return 0 must return elsewhere:
//! to the end of `getpid` or one like it, which brings its own number ([`Gadgets::quiet`]). Where
//! an earlier agent has left its jumps in all of these, the first gadget has to do: then the agent
//! is there, and nothing is loaded.
use super::restart::restarted;
use super::target::TargetProcess;
use crate::proc::Mappings;
use crate::sys::ptrace::Saved;
use std::io;
use std::ops::Range;

/// `syscall; ret`.
const SYSCALL: [u8; 3] = [0x0f, 0x05, 0xc3];
/// `mov rax, 15; syscall`, as C libraries end handlers.
const RESTORER: [u8; 9] = [0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05];
/// Calls that do nothing and have no arguments, as the C library wraps them:
/// `mov eax, number; syscall; ret`.
const QUIET: [libc::c_long; 6] = [
    libc::SYS_getppid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getpid,
];
/// From the begin of a quiet gadget to the byte after its `syscall`.
pub(super) const QUIET_BYTES: u64 = 7;
/// Of one mapping looked through.
const MOST_CODE_BYTES: u64 = 16 << 20;
/// Where handlers return to: no program has more such places.
const MOST_RESTORERS: usize = 8;
/// `struct ucontext` of the kernel, and the `siginfo` behind it.
const CONTEXT_BYTES: usize = 304;
const INFO_BYTES: usize = 128;

/// Where a thread finds its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gadgets {
    pub(super) syscall: u64,
    pub(super) quiet: Option<u64>,
    restorer: u64,
    /// Where they are put by [`Gadgets::plant`], in place of zeros.
    planted: Option<u64>,
}

impl Gadgets {
    /// Looks for them in the code of the C library.
    pub(super) fn of(target: &TargetProcess) -> Option<Gadgets> {
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
            let quiet = QUIET.iter().find_map(|call| {
                let mut wrapper = vec![0xb8];
                wrapper.extend((*call as u32).to_le_bytes());
                wrapper.extend(SYSCALL);
                find(&wrapper)
            });
            Some(Gadgets { syscall: find(&SYSCALL)?, quiet, restorer: find(&RESTORER)?, planted: None })
        })
    }
}

impl Gadgets {
    /// With what a way home begins.
    pub(super) fn begin(&self) -> [u8; 16] {
        let mut begin = [0; 16];
        begin[..8].copy_from_slice(&self.syscall.to_le_bytes());
        begin[8..].copy_from_slice(&self.restorer.to_le_bytes());
        begin
    }

    /// The same in all of the process's code, for programs without a C library that can be found.
    /// Where something is missing, all of it has a place behind the end of code, where the last
    /// page has zeros that nothing executes, or what another kymo has put there:
    /// [`Gadgets::plant`] puts it there.
    pub(super) fn anywhere(target: &TargetProcess) -> Option<Gadgets> {
        let mut search = GadgetSearch::default();
        each_code(target, &mut |start, bytes| search.look(start, bytes));
        search.found()
    }

    /// Puts what is missing to its place. Only while the thread that needs it is held, as any kymo
    /// does: none takes away then what another one needs. It stays if this process is killed.
    ///
    /// # Errors
    /// What the kernel says.
    pub(super) fn plant(&self, target: &TargetProcess) -> io::Result<()> {
        self.planted.map_or(Ok(()), |tail| target.write(tail, &planted()))
    }

    /// Takes that away, while the thread that needed it is held.
    pub(super) fn remove(&self, target: &TargetProcess) {
        if let Some(tail) = self.planted {
            // What stays does nothing.
            _ = target.write(tail, &[0; TAIL_BYTES]);
        }
    }
}

/// What may be written behind the end of code.
const TAIL_BYTES: usize = 16;

/// What was found in code.
#[derive(Default)]
struct GadgetSearch {
    syscall: Option<u64>,
    restorer: Option<u64>,
    /// Where both may be put.
    free: Option<u64>,
}

impl GadgetSearch {
    /// Looks at a mapping's code. What another kymo has put behind its end may be taken away at any
    /// moment: it counts as free.
    fn look(&mut self, start: u64, bytes: &[u8]) {
        let (own, tail) = bytes.split_at(bytes.len().saturating_sub(TAIL_BYTES));
        let at_end = start + own.len() as u64;
        let is_free = own.ends_with(&[0; TAIL_BYTES]) && (tail == [0; TAIL_BYTES] || tail == planted());
        if is_free && at_end % 4096 == 4096 - TAIL_BYTES as u64 {
            self.free = self.free.or(Some(at_end));
        }
        let own = if tail == planted() { own } else { bytes };
        let place = |part: &[u8]| position(own, part).map(|at| start + at as u64);
        self.syscall = self.syscall.or_else(|| place(&SYSCALL));
        self.restorer = self.restorer.or_else(|| place(&RESTORER));
    }

    fn found(self) -> Option<Gadgets> {
        if let (Some(syscall), Some(restorer)) = (self.syscall, self.restorer) {
            return Some(Gadgets { syscall, quiet: None, restorer, planted: None });
        }
        let tail = self.free?;
        let syscall = tail + (TAIL_BYTES - SYSCALL.len()) as u64;
        Some(Gadgets { syscall, quiet: None, restorer: tail, planted: Some(tail) })
    }
}

/// What is put there: a restorer at the begin, a system call at the end.
fn planted() -> [u8; TAIL_BYTES] {
    let mut code = [0; TAIL_BYTES];
    code[..RESTORER.len()].copy_from_slice(&RESTORER);
    code[TAIL_BYTES - SYSCALL.len()..].copy_from_slice(&SYSCALL);
    code
}

/// Where handlers of signals return to in this process, as far as its code shows.
pub(super) fn restorers(target: &TargetProcess) -> Vec<u64> {
    let mut found = Vec::new();
    each_code(target, &mut |start, bytes| {
        let all = memchr::memmem::find_iter(bytes, &RESTORER);
        found.extend(all.map(|at| start + at as u64));
    });
    found.truncate(MOST_RESTORERS);
    found
}

fn position(bytes: &[u8], part: &[u8]) -> Option<usize> {
    memchr::memmem::find(bytes, part)
}

/// Shows the code that the process has mapped from files: addresses and bytes.
fn each_code(target: &TargetProcess, show: &mut dyn FnMut(u64, &[u8])) {
    let maps = target.maps().unwrap_or_default();
    // Not stubs that a killed kymo has left: they are shared memory, which cannot be written.
    let is_file = |path: &[u8]| path.starts_with(b"/") && !path.starts_with(b"/memfd:");
    let code = Mappings::new(&maps).filter(|mapping| mapping.prot & 4 != 0 && is_file(mapping.path));
    for mapping in code {
        let bytes = mapping.end.saturating_sub(mapping.start).min(MOST_CODE_BYTES);
        let mut bytes = vec![0; bytes as usize];
        let read = target.read_some(mapping.start, &mut bytes);
        show(mapping.start, &bytes[..read]);
    }
}

/// What the kernel is to read at `at` for a thread to be as it was: `rt_sigreturn` with the stack
/// pointer there.
fn frame(saved: &Saved, has_signals: bool, at: u64) -> Vec<u8> {
    let registers = restarted(*saved.registers(), has_signals);
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
    let [low, high] = [features as u32, (features >> 32) as u32];
    let words = [BEGIN, count + 4, low, high, count].map(u32::to_le_bytes);
    bytes[SOFTWARE_AT..SOFTWARE_AT + 20].copy_from_slice(words.as_flattened());
    bytes.extend(END.to_le_bytes());
    bytes
}

/// How many bytes the way home of a thread takes at most, wherever it is.
pub(super) fn bytes(saved: &Saved) -> u64 {
    // Two addresses, and what is left free so that vectors and stack pointer are at multiples of 64
    // and 16.
    frame(saved, false, 0).len() as u64 + 16 + 192
}

/// Writes the way home at the upper end of this memory. The address of the word that a function
/// called for us returns by; the stack pointer is 8 above it for a thread that stands at the
/// gadget.
pub(super) fn prepare(
    target: &TargetProcess,
    saved: &Saved,
    has_signals: bool,
    gadgets: Gadgets,
    memory: Range<u64>,
) -> io::Result<u64> {
    // As after a call instruction: 8 below a multiple of 16.
    let pointer = memory.end.saturating_sub(bytes(saved)).next_multiple_of(64) + 56;
    let mut way = Vec::from(gadgets.syscall.to_le_bytes());
    way.extend(gadgets.restorer.to_le_bytes());
    way.extend(frame(saved, has_signals, pointer + 16));
    if pointer < memory.start || pointer + way.len() as u64 > memory.end {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    target.write(pointer, &way)?;
    Ok(pointer)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found in a page of code that begins so and ends so.
    fn found(begin: &[u8], end: [u8; TAIL_BYTES]) -> Option<(u64, u64, Option<u64>)> {
        let mut page = vec![0; 4096];
        page[..begin.len()].copy_from_slice(begin);
        page[4096 - TAIL_BYTES..].copy_from_slice(&end);
        let mut search = GadgetSearch::default();
        search.look(0x40_0000, &page);
        search.found().map(|gadgets| (gadgets.syscall, gadgets.restorer, gadgets.planted))
    }

    /// Checks that what another kymo has put behind the end of code is not taken for the program's
    /// own: that one takes it away when it leaves, and a thread that executes it then would crash.
    #[test]
    fn another_kymos_gadgets_are_not_the_programs() {
        let tail = 0x40_0000 + 4096 - TAIL_BYTES as u64;
        let put = (tail + (TAIL_BYTES - SYSCALL.len()) as u64, tail, Some(tail));
        assert_eq!(found(&[0xc3], [0; TAIL_BYTES]), Some(put));
        assert_eq!(found(&[0xc3], planted()), Some(put));
        assert_eq!(found(&[&[0xc3], &SYSCALL[..]].concat(), planted()), Some(put));
        let own = [&SYSCALL[..], &RESTORER].concat();
        for end in [[0; TAIL_BYTES], planted(), [0x90; TAIL_BYTES]] {
            assert_eq!(found(&own, end), Some((0x40_0000, 0x40_0003, None)));
        }
        assert_eq!(found(&[0xc3], [0x90; TAIL_BYTES]), None, "nothing of the program is written over");
    }
}
