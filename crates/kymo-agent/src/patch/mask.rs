//! That no thread of the program blocks traps, and no program takes them from us: a trap that is blocked or not handled ends the process.
//!
//! Threads block all signals for a while around things that must not be interrupted, and may run into a site at that moment. So calls of
//! `pthread_sigmask` and `sigprocmask` lead to functions here, which leave SIGTRAP out of what is blocked and do the rest as they are told.
//! And calls of `sigaction` and `signal` lead to functions that leave SIGTRAP out of what handlers block, and keep a handler of SIGTRAP behind
//! ours (`trap.rs`): it gets what is not ours, and who asks finds it.
//! For that, the words by which modules find these functions (their global offset tables) are exchanged, each by one store; no code is
//! changed, so nothing can go wrong while a thread is there.
//!
//! Calls that go around the tables, inside the C library or by a system call, are not seen: who blocks traps by these is found by
//! [`threads::blocker`](super::threads::blocker) and refused, if it does so for longer than moments.
//!
//! # Safety
//! What is unsafe here is reading the tables of loaded modules, whose structure the loader vouches for, while it holds its lock, and words of
//! them that are exchanged for functions of the same type.
#![allow(unsafe_code)]
use super::trap::{self, Behind};
use std::ffi::{CStr, c_int, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// A word of a table that was exchanged, and what it held.
struct Exchanged {
    word: u64,
    before: u64,
}

static EXCHANGED: Mutex<Vec<Exchanged>> = Mutex::new(Vec::new());
/// How many modules had been loaded when the tables were looked through last.
static LOADED: AtomicU64 = AtomicU64::new(0);

/// The kernel's set of signals.
const SET_BYTES: usize = 8;

/// Does what both functions do; the kernel's answer.
fn change(how: c_int, set: *const u64, old: *mut u64) -> i64 {
    /// SIGTRAP, and the C library's own two signals, which it leaves out as well.
    const LEFT_OUT: u64 = 1 << (libc::SIGTRAP - 1) | 1 << 31 | 1 << 32;
    let mut changed = 0;
    let mut given = set;
    if !set.is_null() && how != libc::SIG_UNBLOCK {
        // SAFETY: the caller's set, as the function's contract says.
        changed = unsafe { set.read_unaligned() } & !LEFT_OUT;
        given = &raw const changed;
    }
    // SAFETY: as the caller gave it, but for the set, which is ours.
    let done = unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, given, old, SET_BYTES) };
    std::hint::black_box(changed);
    done
}

extern "C" fn pthread_sigmask(how: c_int, set: *const u64, old: *mut u64) -> c_int {
    // SAFETY: no arguments, no failure.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: this thread's word.
    let errno = unsafe { &mut *errno };
    let before = *errno;
    if change(how, set, old) == 0 {
        return 0;
    }
    std::mem::replace(errno, before)
}

extern "C" fn sigprocmask(how: c_int, set: *const u64, old: *mut u64) -> c_int {
    change(how, set, old) as c_int
}

/// What `sigaction` does, with the program's handler of SIGTRAP behind ours, and no handler that blocks traps.
extern "C" fn sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    if signal != libc::SIGTRAP {
        return other_action(signal, new, old);
    }
    // SeqCst: pairs with passing(): who passes by us is seen there, or sees that traps come to us.
    PASSING.fetch_add(1, Ordering::SeqCst);
    let done = if trap::is_in_front() {
        let before = trap::behind();
        if !new.is_null() {
            // SAFETY: the caller's action, as the function's contract says.
            trap::put_behind(Behind::of(unsafe { &*new }));
        }
        if let (false, Some(before)) = (old.is_null(), before) {
            // SAFETY: the caller's place for it.
            unsafe { old.write(before.action()) };
        }
        0
    } else {
        // SAFETY: as the caller gave it. The agent's own calls are not exchanged.
        unsafe { libc::sigaction(signal, new, old) }
    };
    PASSING.fetch_sub(1, Ordering::SeqCst);
    done
}

/// Threads that are changing the handler of SIGTRAP.
static PASSING: AtomicU64 = AtomicU64::new(0);

/// Whether a thread is changing the handler of SIGTRAP, and may not have seen that traps come to us.
pub(super) fn is_passing() -> bool {
    // SeqCst: see sigaction().
    PASSING.load(Ordering::SeqCst) > 0
}

/// Of all other signals.
fn other_action(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    let mut changed;
    let mut given = new;
    if !new.is_null() {
        // SAFETY: the caller's action.
        changed = unsafe { new.read() };
        // SAFETY: a set of ours.
        unsafe { libc::sigdelset(&mut changed.sa_mask, libc::SIGTRAP) };
        given = &raw const changed;
    }
    // SAFETY: as the caller gave it, but for the mask.
    unsafe { libc::sigaction(signal, given, old) }
}

extern "C" fn signal(signal: c_int, handler: usize) -> usize {
    if signal != libc::SIGTRAP {
        // SAFETY: as the caller gave it.
        return unsafe { libc::signal(signal, handler) };
    }
    let action = Behind { handler, flags: libc::SA_RESTART, mask: 0 }.action();
    // SAFETY: all zeros are a valid action.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    if sigaction(signal, &action, &mut before) == 0 { before.sa_sigaction } else { libc::SIG_ERR }
}

/// The functions that take the places of others.
fn instead_of(name: &[u8]) -> Option<u64> {
    match name {
        b"pthread_sigmask" => Some(pthread_sigmask as *const () as u64),
        b"sigprocmask" => Some(sigprocmask as *const () as u64),
        b"sigaction" | b"__sigaction" => Some(sigaction as *const () as u64),
        b"signal" | b"bsd_signal" => Some(signal as *const () as u64),
        _ => None,
    }
}

/// How many modules the loader has loaded, ever.
pub(super) fn loaded() -> u64 {
    let mut loaded = 0_u64;
    // SAFETY: a function of the right type and a word of ours.
    unsafe { libc::dl_iterate_phdr(Some(count), (&raw mut loaded).cast()) };
    loaded
}

/// Looks through the tables of all modules that have been loaded since the last time. Modules of a kind that it does not understand
/// are left alone.
pub(super) fn guard() {
    let loaded = loaded();
    // Relaxed: only called under the patcher's lock.
    if LOADED.swap(loaded, Ordering::Relaxed) == loaded {
        return;
    }
    let found = words_of(instead_of);
    let mut exchanged = EXCHANGED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    for (word, function) in found {
        let before = read(word);
        if before != function && exchange(word, function) {
            exchanged.push(Exchanged { word, before });
        }
    }
}

/// Who takes the place of a function of this name, if anybody does.
pub(super) type Instead = fn(&[u8]) -> Option<u64>;

/// The words of all modules but the agent by which they find functions that `instead` knows, and what is to take their places.
pub(super) fn words_of(instead: Instead) -> Vec<(u64, u64)> {
    let mut search = Search { instead, found: Vec::new() };
    // SAFETY: a function of the right type and a search of ours.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    search.found
}

/// What [`look`] looks for, and what it found.
struct Search {
    instead: Instead,
    found: Vec<(u64, u64)>,
}

/// Puts all words back that still hold what [`guard`] put there.
pub(super) fn release() {
    let mut exchanged = EXCHANGED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let names: [&[u8]; 4] = [b"pthread_sigmask", b"sigprocmask", b"sigaction", b"signal"];
    let ours = names.map(instead_of);
    let memory = super::OwnMemory::open();
    for Exchanged { word, before } in exchanged.drain(..) {
        // Its module may be gone.
        let mut bytes = [0; 8];
        let there = memory.as_ref().is_ok_and(|memory| super::Memory::read(memory, word, &mut bytes) == 8);
        if there && ours.contains(&Some(u64::from_le_bytes(bytes))) {
            exchange(word, before);
        }
    }
    LOADED.store(0, Ordering::Relaxed);
}

unsafe extern "C" fn count(info: *mut libc::dl_phdr_info, _: usize, loaded: *mut c_void) -> c_int {
    // SAFETY: the loader's structure, whole in every C library that has restartable sequences.
    let info = unsafe { &*info };
    // SAFETY: the word of guard().
    unsafe { loaded.cast::<u64>().write(info.dlpi_adds) };
    1
}

pub(super) fn read(address: u64) -> u64 {
    // SAFETY: an aligned word of a loaded module.
    unsafe { (address as *const u64).read() }
}

/// Stores a word of a table, which may be in a page that was made read-only after it was filled.
pub(super) fn exchange(word: u64, value: u64) -> bool {
    let page = (word & !4095) as *mut c_void;
    let writable = std::fs::read_to_string("/proc/self/maps").is_ok_and(|maps| {
        maps.lines().any(|line| {
            let range = line.split_once(' ').and_then(|(range, rest)| Some((range.split_once('-')?, rest)));
            range.is_some_and(|((begin, end), rest)| {
                let number = |text| u64::from_str_radix(text, 16).unwrap_or(0);
                (number(begin)..number(end)).contains(&word) && rest.starts_with("rw")
            })
        })
    });
    if !writable {
        // SAFETY: a page of data of a loaded module; nobody loses an access by this.
        if unsafe { libc::mprotect(page, 4096, libc::PROT_READ | libc::PROT_WRITE) } != 0 {
            return false;
        }
    }
    // SAFETY: an aligned word of a loaded module, which other threads read as one.
    let place = unsafe { &*(word as *const AtomicU64) };
    place.store(value, Ordering::Release);
    if !writable {
        // SAFETY: as it was before.
        unsafe { libc::mprotect(page, 4096, libc::PROT_READ) };
    }
    true
}

/// Finds the words of one module that lead to the functions.
unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    const RELOCATION_BYTES: u64 = 24;
    const SYMBOL_BYTES: u64 = 24;
    const JUMP_SLOT: u64 = 7;
    const GLOBAL: u64 = 6;
    // SAFETY: the loader's structure.
    let info = unsafe { &*info };
    // SAFETY: the search of words_of(), which waits for us.
    let search = unsafe { &mut *search.cast::<Search>() };
    // SAFETY: as the loader says.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let own = look as *const () as u64;
    let holds = |header: &libc::Elf64_Phdr| {
        let begin = info.dlpi_addr + header.p_vaddr;
        header.p_type == libc::PT_LOAD && (begin..begin + header.p_memsz).contains(&own)
    };
    let Some(dynamic) = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC) else { return 0 };
    if headers.iter().any(holds) {
        // The agent itself must be able to block traps behind its own handlers.
        return 0;
    }
    let (mut symbols, mut strings, mut tables) = (0, 0, [(0, 0), (0, 0)]);
    // The loader has made addresses of the offsets, but in modules without a file (the kernel's).
    let absolute = |value: u64| if value < info.dlpi_addr { value + info.dlpi_addr } else { value };
    for at in 0..dynamic.p_memsz / 16 {
        let entry = info.dlpi_addr + dynamic.p_vaddr + at * 16;
        let (tag, value) = (read(entry), read(entry + 8));
        match tag {
            0 => break,
            5 => strings = absolute(value),
            6 => symbols = absolute(value),
            // DT_JMPREL, DT_PLTRELSZ, DT_RELA, DT_RELASZ
            23 => tables[0].0 = absolute(value),
            2 => tables[0].1 = value,
            7 => tables[1].0 = absolute(value),
            8 => tables[1].1 = value,
            _ => {}
        }
    }
    if symbols == 0 || strings == 0 {
        return 0;
    }
    for (table, bytes) in tables {
        for at in 0..if table == 0 { 0 } else { bytes / RELOCATION_BYTES } {
            let relocation = table + at * RELOCATION_BYTES;
            let kind = read(relocation + 8);
            if kind as u32 as u64 != JUMP_SLOT && kind as u32 as u64 != GLOBAL {
                continue;
            }
            let symbol = symbols + (kind >> 32) * SYMBOL_BYTES;
            let name = strings + (read(symbol) & 0xffff_ffff);
            // SAFETY: a string of the module's table.
            let name = unsafe { CStr::from_ptr(name as *const _) };
            let Some(function) = (search.instead)(name.to_bytes()) else { continue };
            search.found.push((info.dlpi_addr + read(relocation), function));
        }
    }
    0
}
