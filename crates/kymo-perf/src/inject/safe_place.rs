//! Whether a stopped thread may load a library: it must hold no lock of the allocator, of the
//! dynamic linker, or of the C library's list of stacks.
//!
//! What it holds is seen by the functions that it is in. With an unwinder these are its real
//! callers, and where that one cannot go on, and without one, each word of the stack that lies
//! above counts as a return address. A thread that waits in a system call is as good as any other:
//! what calls the wait decides. Calls that change mappings are made under such locks.
use super::symbols::{ExportedFunction, Symbols};
use super::target::TargetProcess;
use super::unwind::{Unwind, UnwoundStack};
use crate::proc::Mappings;
use crate::sys::ptrace::{Registers, Traced};
use std::io;

/// Of a stack that is walked by an unwinder.
const MOST_STACK_BYTES: usize = 256 << 10;
/// Of a stack whose words are searched.
const MOST_SEARCHED_BYTES: usize = 4 << 10;

/// Functions that hold locks which loading a library and starting a thread need, too.
const UNSAFE: [&str; 29] = [
    "malloc",
    "free",
    "calloc",
    "realloc",
    "reallocarray",
    "memalign",
    "aligned_alloc",
    "posix_memalign",
    "valloc",
    "pvalloc",
    "malloc_trim",
    "malloc_info",
    "malloc_stats",
    "mallinfo",
    "mallinfo2",
    // The same of C++, where an allocator has them without `malloc` below.
    "_Znwm",
    "_Znam",
    "_ZdlPv",
    "_ZdaPv",
    "_ZdlPvm",
    "_ZdaPvm",
    "dlopen",
    "dlclose",
    "dlsym",
    "dl_iterate_phdr",
    "__cxa_atexit",
    "fork",
    "_Fork",
    "pthread_create",
];

/// Functions that hold the lock of the C library's stacks, which starting a thread needs, too: but
/// for while they wait for a thread to end.
const UNSAFE_UNLESS_WAITING: [&str; 5] =
    ["pthread_join", "pthread_tryjoin_np", "pthread_timedjoin_np", "pthread_clockjoin_np", "pthread_detach"];

/// System calls that allocators and the C library make under their locks: a thread that ends unmaps
/// stacks, for example, in functions without exported names.
const UNSAFE_CALLS: [(libc::c_long, &str); 6] = [
    (libc::SYS_mmap, "mmap"),
    (libc::SYS_mprotect, "mprotect"),
    (libc::SYS_munmap, "munmap"),
    (libc::SYS_brk, "brk"),
    (libc::SYS_mremap, "mremap"),
    (libc::SYS_madvise, "madvise"),
];

/// Where the locks may be held.
#[derive(Debug, Default)]
pub(super) struct UnsafePlaces {
    functions: Vec<(ExportedFunction, &'static str)>,
    /// Where they are held by a thread that does not wait.
    unless_waiting: Vec<(ExportedFunction, &'static str)>,
    /// The dynamic linker's code, with its name.
    linker: Vec<(ExportedFunction, String)>,
}

impl UnsafePlaces {
    /// Those of a process as it is now.
    pub(super) fn of(target: &TargetProcess) -> UnsafePlaces {
        let mut places = UnsafePlaces::default();
        for (base, _) in target.modules().unwrap_or_default() {
            let Ok(symbols) = Symbols::of(target, base) else { continue };
            places.functions.extend(named(symbols.functions(UNSAFE).ok(), UNSAFE));
            let found = symbols.functions(UNSAFE_UNLESS_WAITING).ok();
            places.unless_waiting.extend(named(found, UNSAFE_UNLESS_WAITING));
        }
        let maps = target.maps().unwrap_or_default();
        for mapping in Mappings::new(&maps).filter(|mapping| mapping.prot & 4 != 0) {
            let name = mapping.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
            if name.starts_with(b"ld-linux") || name.starts_with(b"ld-2.") || name == b"ld.so" {
                let code = ExportedFunction { start: mapping.start, end: mapping.end };
                places.linker.push((code, String::from_utf8_lossy(name).into_owned()));
            }
        }
        places
    }

    /// The function with a lock that this address is in, as `function+offset`. `exact`: the address
    /// is one of the thread's real callers, not a word that looks like one. `waits`: the thread is
    /// in a call of `futex`.
    fn at(&self, address: u64, exact: bool, waits: bool) -> Option<String> {
        let within = |function: &ExportedFunction| (function.start..function.end).contains(&address);
        let offset =
            |name: &str, function: &ExportedFunction| format!("{name}+{:#x}", address - function.start);
        let unless_waiting = self.unless_waiting.iter().filter(|_| !waits);
        let function = self.functions.iter().chain(unless_waiting).find(|(function, _)| within(function));
        let linker = || self.linker.iter().find(|(code, _)| exact && within(code));
        function
            .map(|(function, name)| offset(name, function))
            .or_else(|| linker().map(|(code, name)| offset(name, code)))
    }
}

/// Why a stopped thread must not be borrowed where it stands, in words; `None` if it may be.
pub(super) fn unsafe_reason(
    target: &TargetProcess,
    thread: &Traced,
    registers: &Registers,
    places: &UnsafePlaces,
    unwinder: Option<&mut (dyn Unwind + '_)>,
) -> Option<String> {
    // A 32-bit moment of a 64-bit process.
    if registers.cs != 0x33 {
        return Some("in 32-bit code".to_owned());
    }
    if in_restartable_sequence(target, thread, registers.rip) {
        return Some(format!("in a restartable sequence (rseq) at {:#x}", registers.rip));
    }
    let call = (registers.orig_rax as i64 >= 0).then_some(registers.orig_rax as libc::c_long);
    if let Some((_, name)) = UNSAFE_CALLS.iter().find(|(number, _)| call == Some(*number)) {
        return Some(format!("in {name}, which allocators and the C library call under their locks"));
    }
    let waits = call == Some(libc::SYS_futex);
    let mut stack = vec![0; if unwinder.is_some() { MOST_STACK_BYTES } else { MOST_SEARCHED_BYTES }];
    let read = target.read_some(registers.rsp, &mut stack);
    stack.truncate(read);
    let walk = match unwinder {
        Some(unwinder) => unwinder.walk(registers, &stack),
        None => UnwoundStack { addresses: vec![registers.rip], complete: false },
    };
    if let Some(place) = walk.addresses.iter().find_map(|at| places.at(*at, true, waits)) {
        return Some(format!("in {place}, which may hold a lock of the allocator or the dynamic linker"));
    }
    if walk.complete {
        return None;
    }
    let from = reached(&walk.addresses, &stack);
    let rest = &stack[from..stack.len().min(from + MOST_SEARCHED_BYTES)];
    let place = words(rest).find_map(|at| places.at(at, false, waits))?;
    Some(format!(
        "perhaps in {place}, which may hold a lock of the allocator or the dynamic linker: its stack cannot be walked to the end"
    ))
}

/// The functions that were found, with their names.
fn named<const N: usize>(
    found: Option<[Option<ExportedFunction>; N]>,
    names: [&'static str; N],
) -> impl Iterator<Item = (ExportedFunction, &'static str)> {
    found.into_iter().flatten().zip(names).filter_map(|(function, name)| Some((function?, name)))
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word))
}

/// How many bytes of the stack the frames with these return addresses take at least. A word that is
/// on the stack twice is taken where it is lower: then more is searched than must be.
fn reached(addresses: &[u64], stack: &[u8]) -> usize {
    let mut at = 0;
    for address in addresses.iter().skip(1) {
        match words(&stack[at * 8..]).position(|word| word == *address) {
            Some(found) => at += found + 1,
            None => break,
        }
    }
    at * 8
}

/// Whether the thread is in a sequence of instructions that the kernel begins anew when it was
/// interrupted (rseq). The kernel would forget that it is, once it has run elsewhere.
fn in_restartable_sequence(target: &TargetProcess, thread: &Traced, rip: u64) -> bool {
    const SEQUENCE_AT: u64 = 8;
    let sequence = || -> io::Result<bool> {
        let Some((area, _)) = thread.restartable_sequences()? else { return Ok(false) };
        let mut pointer = [0; 8];
        target.read(area + SEQUENCE_AT, &mut pointer)?;
        let pointer = u64::from_le_bytes(pointer);
        if pointer == 0 {
            return Ok(false);
        }
        // Version and flags, the first address, how many bytes.
        let mut descriptor = [0; 24];
        target.read(pointer, &mut descriptor)?;
        let mut ends = words(&descriptor[8..]);
        let (start, bytes) = (ends.next().unwrap_or(0), ends.next().unwrap_or(0));
        Ok(rip.wrapping_sub(start) < bytes)
    };
    // Before Linux 5.13 nobody can tell, and nearly nothing uses them.
    sequence().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places() -> UnsafePlaces {
        let function = |start, end| ExportedFunction { start, end };
        UnsafePlaces {
            functions: vec![(function(0x1000, 0x1100), "malloc"), (function(0x2000, 0x2100), "fork")],
            unless_waiting: vec![(function(0x3000, 0x3100), "pthread_join")],
            linker: vec![(function(0x9000, 0xa000), "ld-linux-x86-64.so.2".to_owned())],
        }
    }

    /// Checks that places are named with their offsets, and that a word counts less than a caller:
    /// programs keep addresses of the dynamic linker on their stacks.
    #[test]
    fn named_places() {
        let places = places();
        assert_eq!(places.at(0x1042, true, false).as_deref(), Some("malloc+0x42"));
        assert_eq!(places.at(0x2000, false, false).as_deref(), Some("fork+0x0"));
        assert_eq!(places.at(0x1100, true, false), None);
        assert_eq!(places.at(0x9010, true, false).as_deref(), Some("ld-linux-x86-64.so.2+0x10"));
        assert_eq!(places.at(0x9010, false, false), None);
    }

    /// Checks that a thread which waits for another to end may be borrowed, and that one may not
    /// which frees the stack of the other: a killed kymo left a program in its own lock so.
    #[test]
    fn stacks_of_threads_that_ended() {
        let places = places();
        assert_eq!(places.at(0x3010, true, true), None);
        assert_eq!(places.at(0x3010, true, false).as_deref(), Some("pthread_join+0x10"));
        assert_eq!(places.at(0x3010, false, false).as_deref(), Some("pthread_join+0x10"));
        assert_eq!(places.at(0x2000, false, true).as_deref(), Some("fork+0x0"), "a fork waits, too");
    }

    /// Checks how much of a stack known callers take, so that only what lies above them is
    /// searched.
    #[test]
    fn frames_that_are_known() {
        let stack: Vec<u8> =
            [7_u64, 0x500, 8, 0x600, 0x500, 9].iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(reached(&[1], &stack), 0);
        assert_eq!(reached(&[1, 0x500], &stack), 16);
        assert_eq!(reached(&[1, 0x500, 0x600, 0x500], &stack), 40);
        assert_eq!(reached(&[1, 0x700, 0x600], &stack), 0);
        assert_eq!(reached(&[1, 0x500], &[]), 0);
    }
}
