//! That no thread of the program blocks traps, and no program takes them from us: a trap that is
//! blocked or not handled ends the process.
//!
//! Threads block all signals for a while around things that must not be interrupted, and may run
//! into a site at that moment. So calls of `pthread_sigmask` and `sigprocmask` lead to functions
//! here, which do the same but never block the signal of traps ([`trap::SIGNAL`]). Calls of
//! `sigaction` and `signal` lead to functions that leave it out of what handlers block, and keep
//! the program's handler of it behind ours (`trap.rs`): that one gets what is not ours, and
//! programs that ask find it. For that, the words by which modules find these functions (their
//! global offset tables) are exchanged, each by one store; no code is changed, so nothing can go
//! wrong while a thread is there. Tables that the loader is about to make read-only, in another
//! thread's `dlopen`, are left for the next time, and it can unload no module meanwhile.
//!
//! Calls that go around the tables, inside the C library or by a system call, are not seen: who
//! blocks traps by these is found by [`threads::blocker`](crate::patch::install::threads::blocker)
//! and refused, if it does so for longer than moments.
//!
//! # Safety
//! What is unsafe here is reading the tables of loaded modules, whose structure the loader vouches
//! for, while it holds its lock, and words of them that are exchanged for functions of the same
//! type.
#![allow(unsafe_code)]
use super::traps;
use crate::patch::os;
use crate::patch::runtime::trap::{self, ProgramHandler};
use crate::sys::fork;
use crate::sys::lock;
use std::collections::HashMap;
use std::ffi::{CStr, c_int, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// A word of a table that was exchanged, and what it held.
struct PatchedEntry {
    word: u64,
    before: u64,
}

static EXCHANGED: Mutex<Vec<PatchedEntry>> = Mutex::new(Vec::new());
/// How many modules had been loaded when the tables were looked through last.
static LOADED: AtomicU64 = AtomicU64::new(0);

const SET_BYTES: usize = 8;

/// Does what both functions do; the kernel's answer.
fn change(how: c_int, set: *const u64, old: *mut u64) -> i64 {
    /// Traps, and the C library's own two signals, which it leaves out as well.
    const LEFT_OUT: u64 = trap::SIGNAL_BIT | 1 << 31 | 1 << 32;
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

/// `sigaction`, with the program's handler of traps behind ours, and no handler that blocks traps.
extern "C" fn sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    if signal != trap::SIGNAL {
        return other_action(signal, new, old);
    }
    trap::changing(|| {
        if !traps::is_in_front() {
            // SAFETY: as the caller gave it. The agent's own calls are not exchanged.
            return unsafe { libc::sigaction(signal, new, old) };
        }
        let before = trap::program_handler();
        // SAFETY: the caller's action, as the function's contract says.
        match unsafe { new.as_ref() } {
            None => {}
            // A child of vfork has handlers of its own, in its parent's memory. Ours stay until it
            // executes another program; what that finds is as if the child's were there: a handler
            // becomes the default.
            Some(new) if fork::is_guest() && new.sa_sigaction == libc::SIG_IGN => {
                // SAFETY: as the caller gave it.
                unsafe { libc::sigaction(signal, new, std::ptr::null_mut()) };
            }
            Some(_) if fork::is_guest() => {}
            Some(new) => trap::set_program_handler(ProgramHandler::of(new)),
        }
        if let (false, Some(before)) = (old.is_null(), before) {
            // SAFETY: the caller's place for it.
            unsafe { old.write(before.action()) };
        }
        0
    })
}

/// Of all other signals.
fn other_action(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    let mut changed;
    let mut given = new;
    if !new.is_null() {
        // SAFETY: the caller's action.
        changed = unsafe { new.read() };
        // SAFETY: a set of ours.
        unsafe { libc::sigdelset(&mut changed.sa_mask, trap::SIGNAL) };
        given = &raw const changed;
    }
    // SAFETY: as the caller gave it, but for the mask.
    unsafe { libc::sigaction(signal, given, old) }
}

extern "C" fn signal(signal: c_int, handler: usize) -> usize {
    if signal != trap::SIGNAL {
        // SAFETY: as the caller gave it.
        return unsafe { libc::signal(signal, handler) };
    }
    let action = ProgramHandler { handler, flags: libc::SA_RESTART, mask: 0 }.action();
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
pub(crate) fn loaded() -> u64 {
    let mut loaded = 0_u64;
    // SAFETY: a function of the right type and a word of ours.
    unsafe { libc::dl_iterate_phdr(Some(count), (&raw mut loaded).cast()) };
    loaded
}

/// Looks through the tables of all modules that have been loaded since the last time. Modules of a
/// kind that it does not understand are left alone.
pub(crate) fn guard() {
    fork::know_own();
    let loaded = loaded();
    // Relaxed: only called under the patcher's lock.
    if LOADED.swap(loaded, Ordering::Relaxed) == loaded {
        return;
    }
    let mut exchanged = lock(&EXCHANGED);
    let mut all = true;
    each_word(instead_of, &mut |word| {
        let before = word.leads_to();
        if before == word.function {
            return;
        }
        match exchange(word, word.function) {
            PatchOutcome::Done => exchanged.push(PatchedEntry { word: word.at, before }),
            PatchOutcome::NotYet => all = false,
            PatchOutcome::Failed => {}
        }
    });
    if !all {
        LOADED.store(0, Ordering::Relaxed);
    }
}

/// Who takes the place of a function of this name, if anybody does.
pub(crate) type Replacement = fn(&[u8]) -> Option<u64>;

/// A word by which a module finds a function.
#[derive(Debug)]
pub(crate) struct GotEntry {
    /// An aligned word of a loaded module, which cannot go while this is lent.
    at: u64,
    /// What is to take the function's place.
    pub(crate) function: u64,
    /// The loader makes it read-only when it has filled the module's tables.
    sealed: bool,
}

/// Calls `with` for the words of all modules but the agent by which they find functions that
/// `instead` knows, while the loader can take no module away.
pub(crate) fn each_word(instead: Replacement, with: &mut dyn FnMut(&GotEntry)) {
    let mut search = GotSearch { instead, with };
    // SAFETY: a function of the right type and a search of ours.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
}

struct GotSearch<'a> {
    instead: Replacement,
    with: &'a mut dyn FnMut(&GotEntry),
}

/// Puts all words back that still hold what [`guard`] put there.
pub(crate) fn release() {
    let mut exchanged = lock(&EXCHANGED);
    let mut before: HashMap<u64, u64> =
        exchanged.drain(..).map(|PatchedEntry { word, before }| (word, before)).collect();
    // Modules may be gone, and others where they were.
    each_word(instead_of, &mut |word| {
        if word.leads_to() == word.function
            && let Some(before) = before.remove(&word.at)
        {
            exchange(word, before);
        }
    });
    LOADED.store(0, Ordering::Relaxed);
}

unsafe extern "C" fn count(info: *mut libc::dl_phdr_info, _: usize, loaded: *mut c_void) -> c_int {
    // SAFETY: the loader's structure, whole in every C library that has restartable sequences.
    let info = unsafe { &*info };
    // SAFETY: the word of guard().
    unsafe { loaded.cast::<u64>().write(info.dlpi_adds) };
    1
}

impl GotEntry {
    /// Where the word is.
    pub(crate) fn address(&self) -> u64 {
        self.at
    }

    pub(crate) fn leads_to(&self) -> u64 {
        // SAFETY: as `at` says.
        unsafe { read(self.at) }
    }
}

/// A word of a module's tables.
///
/// # Safety
/// It is aligned, and the module stays loaded.
unsafe fn read(address: u64) -> u64 {
    // SAFETY: the caller's.
    unsafe { (address as *const u64).read() }
}

/// What became of a word that was to be exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PatchOutcome {
    Done,
    /// The loader is still filling this table, and makes it read-only at any moment.
    NotYet,
    Failed,
}

/// Stores a word of a table, which may be in a page that was made read-only after it was filled. To
/// be called by [`each_word`] only.
pub(crate) fn exchange(word: &GotEntry, value: u64) -> PatchOutcome {
    let page = (word.at & !4095) as *mut c_void;
    let writable = os::text("/proc/self/maps").is_ok_and(|maps| {
        maps.lines().any(|line| {
            let range = line.split_once(' ').and_then(|(range, rest)| Some((range.split_once('-')?, rest)));
            range.is_some_and(|((begin, end), rest)| {
                let number = |text| u64::from_str_radix(text, 16).unwrap_or(0);
                (number(begin)..number(end)).contains(&word.at) && rest.starts_with("rw")
            })
        })
    });
    if writable && word.sealed {
        // Another thread is in `dlopen`: it would make the page read-only before our store, or fill
        // it after we have made it read-only.
        return PatchOutcome::NotYet;
    }
    if !writable {
        // SAFETY: a page of data of a loaded module; nobody loses an access by this.
        if unsafe { libc::mprotect(page, 4096, libc::PROT_READ | libc::PROT_WRITE) } != 0 {
            return PatchOutcome::Failed;
        }
    }
    // SAFETY: an aligned word of a loaded module, which other threads read as one.
    let place = unsafe { &*(word.at as *const AtomicU64) };
    place.store(value, Ordering::Release);
    if !writable {
        // SAFETY: as it was before.
        unsafe { libc::mprotect(page, 4096, libc::PROT_READ) };
    }
    PatchOutcome::Done
}

/// Finds the words of one module that lead to the functions.
unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    const RELOCATION_BYTES: u64 = 24;
    const SYMBOL_BYTES: u64 = 24;
    const JUMP_SLOT: u64 = 7;
    const GLOBAL: u64 = 6;
    // SAFETY: the loader's structure.
    let info = unsafe { &*info };
    // SAFETY: the search of each_word(), which waits for us.
    let search = unsafe { &mut *search.cast::<GotSearch<'_>>() };
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
    // The loader makes whole pages read-only.
    let page = |address: u64| address & !4095;
    let sealed = headers.iter().find(|header| header.p_type == libc::PT_GNU_RELRO).map_or(0..0, |header| {
        let begin = info.dlpi_addr + header.p_vaddr;
        page(begin)..page(begin + header.p_memsz)
    });
    let (mut symbols, mut strings, mut tables) = (0, 0, [(0, 0), (0, 0)]);
    // The loader has made addresses of the offsets, but in modules without a file (the kernel's).
    let absolute = |value: u64| if value < info.dlpi_addr { value + info.dlpi_addr } else { value };
    for at in 0..dynamic.p_memsz / 16 {
        let entry = info.dlpi_addr + dynamic.p_vaddr + at * 16;
        // SAFETY: a word of the module's dynamic section.
        let tag = unsafe { read(entry) };
        // SAFETY: the next one.
        let value = unsafe { read(entry + 8) };
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
            // SAFETY: a word of the module's relocations.
            let kind = unsafe { read(relocation + 8) };
            if kind as u32 as u64 != JUMP_SLOT && kind as u32 as u64 != GLOBAL {
                continue;
            }
            let symbol = symbols + (kind >> 32) * SYMBOL_BYTES;
            // SAFETY: a word of the module's symbols.
            let name = strings + (unsafe { read(symbol) } & 0xffff_ffff);
            // SAFETY: a string of the module's table.
            let name = unsafe { CStr::from_ptr(name as *const _) };
            let Some(function) = (search.instead)(name.to_bytes()) else { continue };
            // SAFETY: as above.
            let at = info.dlpi_addr + unsafe { read(relocation) };
            (search.with)(&GotEntry { at, function, sealed: sealed.contains(&at) });
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a word is exchanged in a table that stays writable and in one that was made
    /// read-only, and is left while its table is still writable though the loader will make it
    /// read-only: then the loader is at work there.
    #[test]
    fn a_table_that_is_being_filled_is_left() {
        const WRITABLE: c_int = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a page of our own, wherever.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), 4096, WRITABLE, flags, -1, 0) };
        assert_ne!(page, libc::MAP_FAILED);
        let at = page as u64 + 8;
        let word = |sealed| GotEntry { at, function: 0, sealed };
        assert_eq!((exchange(&word(false), 3), word(false).leads_to()), (PatchOutcome::Done, 3));
        assert_eq!((exchange(&word(true), 4), word(true).leads_to()), (PatchOutcome::NotYet, 3));
        // SAFETY: our page.
        assert_eq!(unsafe { libc::mprotect(page, 4096, libc::PROT_READ) }, 0);
        assert_eq!((exchange(&word(true), 5), word(true).leads_to()), (PatchOutcome::Done, 5));
        let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
        let line = maps.lines().find(|line| line.starts_with(&format!("{:x}-", page as u64)));
        assert!(line.is_some_and(|line| line.contains(" r--p ")), "{line:?}");
    }
}
