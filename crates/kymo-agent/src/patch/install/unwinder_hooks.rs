//! Interposes the functions by which unwinders look up unwind information, so that they find that
//! of stubs.
//!
//! | unwinder | asks |
//! |---|---|
//! | libgcc_s, for C, C++ and Rust | `_Unwind_Find_FDE`, by a word of its own table |
//! | a copy of libgcc in a program or library (`-static-libgcc`), from GCC 12 on | `_dl_find_object` of the C library |
//! | an older copy, LLVM's unwinder, others | `dl_iterate_phdr`, which lists modules: stubs are one without a file |
//!
//! The words by which modules find these functions are exchanged (`got_hooks.rs`), in the agent's
//! own module not. They stay so, like stubs, for return addresses on stacks lead into these. No
//! lock is taken, so that a forked child can throw what it likes.
//!
//! # Safety
//! What is unsafe here are structures of the callers, as the functions' contracts say, and calls of
//! the functions whose places are taken.
#![allow(unsafe_code)]
use super::got_hooks::{self, PatchOutcome};
use crate::patch::codegen::unwind;
use crate::patch::layout::ShadowRegion;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Ranges of stubs that can be described.
const RANGES: usize = 1024;
static LIST: [OnceLock<Range>; RANGES] = [const { OnceLock::new() }; RANGES];
/// The C library's `_dl_find_object`; 0 where it has none.
static FIND_OBJECT: AtomicU64 = AtomicU64::new(0);

/// One range of stubs, and what describes it.
struct Range {
    begin: u64,
    end: u64,
    /// The description of the range itself (FDE), and what follows it.
    description: &'static [u8],
    /// What a module's `PT_GNU_EH_FRAME` has, leading to the whole section.
    header: &'static [u8],
    /// Two program headers, as of a module.
    segments: [libc::Elf64_Phdr; 2],
}

fn ranges() -> impl Iterator<Item = &'static Range> {
    LIST.iter().map_while(OnceLock::get)
}

fn range_of(address: u64) -> Option<&'static Range> {
    ranges().find(|range| (range.begin..range.end).contains(&address))
}

/// What libgcc_s wants to know besides the description.
#[repr(C)]
struct Bases {
    text: u64,
    data: u64,
    function: u64,
}

unsafe extern "C" {
    /// Of the unwinder that C, C++ and Rust share (libgcc_s).
    fn __register_frame(begin: *const u8);
    /// What it finds descriptions with.
    fn _Unwind_Find_FDE(address: u64, bases: *mut Bases) -> *const u8;
}

/// Takes the place of `_Unwind_Find_FDE`.
unsafe extern "C" fn find_description(address: u64, bases: *mut Bases) -> *const u8 {
    if let Some(range) = range_of(address) {
        // SAFETY: the unwinder's own structure.
        unsafe { bases.write(Bases { text: 0, data: 0, function: range.begin }) };
        return range.description.as_ptr();
    }
    // SAFETY: as we were called.
    unsafe { _Unwind_Find_FDE(address, bases) }
}

/// `struct dl_find_object` of x86-64.
#[repr(C)]
struct Object {
    flags: u64,
    begin: u64,
    end: u64,
    link_map: u64,
    header: u64,
    reserved: [u64; 7],
}

type FindObject = unsafe extern "C" fn(u64, *mut Object) -> c_int;

/// Takes the place of `_dl_find_object`.
unsafe extern "C" fn find_object(address: u64, object: *mut Object) -> c_int {
    if let Some(range) = range_of(address) {
        let Range { begin, end, .. } = *range;
        let header = range.header.as_ptr() as u64;
        let found = Object { flags: 0, begin, end, link_map: 0, header, reserved: [0; 7] };
        // SAFETY: the caller's own structure.
        unsafe { object.write(found) };
        return 0;
    }
    // SAFETY: only in place where the C library's is known, of this type.
    let real: FindObject = unsafe { std::mem::transmute(FIND_OBJECT.load(Ordering::Relaxed) as *const ()) };
    // SAFETY: as we were called.
    unsafe { real(address, object) }
}

/// What `dl_iterate_phdr` calls. It may throw.
type PhdrCallback = unsafe extern "C-unwind" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> c_int;

unsafe extern "C-unwind" {
    fn dl_iterate_phdr(look: PhdrCallback, data: *mut c_void) -> c_int;
}

/// Who asked, and what the loader has counted: callers that remember what they saw compare these
/// numbers.
struct PhdrCaller {
    look: PhdrCallback,
    data: *mut c_void,
    loads: (u64, u64),
}

/// Shows a module to who asked.
unsafe extern "C-unwind" fn pass(info: *mut libc::dl_phdr_info, bytes: usize, asker: *mut c_void) -> c_int {
    // SAFETY: from modules(), which waits for us.
    let asker = unsafe { &mut *asker.cast::<PhdrCaller>() };
    // SAFETY: the loader's structure.
    let module = unsafe { &*info };
    asker.loads = (module.dlpi_adds, module.dlpi_subs);
    // SAFETY: as the asker wanted it.
    unsafe { (asker.look)(info, bytes, asker.data) }
}

/// Takes the place of `dl_iterate_phdr`: behind all modules come the ranges.
unsafe extern "C-unwind" fn modules(look: PhdrCallback, data: *mut c_void) -> c_int {
    let mut asker = PhdrCaller { look, data, loads: (0, 0) };
    // SAFETY: a function of the right type and an asker of ours.
    let mut done = unsafe { dl_iterate_phdr(pass, (&raw mut asker).cast()) };
    for range in ranges() {
        if done != 0 {
            break;
        }
        let mut info = libc::dl_phdr_info {
            dlpi_addr: 0,
            dlpi_name: c"[kymo]".as_ptr(),
            dlpi_phdr: range.segments.as_ptr(),
            dlpi_phnum: 2,
            dlpi_adds: asker.loads.0,
            dlpi_subs: asker.loads.1,
            dlpi_tls_modid: 0,
            dlpi_tls_data: std::ptr::null_mut(),
        };
        // SAFETY: a whole structure, and the asker's own data.
        done = unsafe { look(&raw mut info, size_of::<libc::dl_phdr_info>(), data) };
    }
    done
}

fn instead_of(name: &[u8]) -> Option<u64> {
    match name {
        b"_Unwind_Find_FDE" => Some(find_description as *const () as u64),
        b"_dl_find_object" if FIND_OBJECT.load(Ordering::Relaxed) != 0 => {
            Some(find_object as *const () as u64)
        }
        b"dl_iterate_phdr" => Some(modules as *const () as u64),
        _ => None,
    }
}

/// Has all unwinders ask here; how many words of libgcc_s's kind lead here now, and whether some
/// are still to come.
fn take_places() -> (usize, bool) {
    let first = find_description as *const () as u64;
    let (mut asked, mut waits) = (0, false);
    got_hooks::each_word(instead_of, &mut |word| {
        let done = if word.leads_to() == word.function {
            PatchOutcome::Done
        } else {
            got_hooks::exchange(word, word.function)
        };
        waits |= done == PatchOutcome::NotYet;
        asked += usize::from(done == PatchOutcome::Done && word.function == first);
    });
    (asked, waits)
}

/// Whether libgcc_s asks here.
fn is_asked() -> bool {
    static ASKED: OnceLock<bool> = OnceLock::new();
    *ASKED.get_or_init(|| {
        // SAFETY: a C string; the default search.
        let real = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr()) };
        FIND_OBJECT.store(real.expose_provenance() as u64, Ordering::Relaxed);
        take_places().0 > 0
    })
}

/// Looks for unwinders in modules that have been loaded since the last time, if there are stubs
/// that they must know.
pub(crate) fn look_again() {
    static LOADED: AtomicU64 = AtomicU64::new(0);
    let loaded = got_hooks::loaded();
    // Relaxed: only called under the patcher's lock.
    if ranges().next().is_some() && LOADED.swap(loaded, Ordering::Relaxed) != loaded && take_places().1 {
        LOADED.store(0, Ordering::Relaxed);
    }
}

/// Describes the stubs in `begin..end` to the process's unwinders, for good.
///
/// Not by `__register_frame`, if that can be avoided: with one such registration libgcc_s takes a
/// lock at each throw, and a child that is forked meanwhile finds that lock taken for good.
pub(crate) fn describe(begin: u64, end: u64, region: ShadowRegion) {
    let section: &'static [u8] = Vec::leak(unwind::section(begin, end, region));
    let asked = is_asked();
    // The description of the range is behind the one of all, which begins with its length.
    let first = u32::from_le_bytes([section[0], section[1], section[2], section[3]]) as usize + 4;
    let header: &'static [u8] = Vec::leak(header(section));
    let segments = segments(begin, end, header);
    let range = Range { begin, end, description: &section[first..], header, segments };
    // Only called under the patcher's lock, so the first free place stays free until it is taken.
    let free = LIST.iter().find(|place| place.get().is_none());
    if free.is_some_and(|place| place.set(range).is_ok()) && asked {
        return;
    }
    // SAFETY: a whole section that ends with a zero length and lives for good.
    unsafe { __register_frame(section.as_ptr()) };
}

/// `.eh_frame_hdr`, without a table: version 1, an absolute address of the section, no count.
fn header(section: &'static [u8]) -> Vec<u8> {
    const OMITTED: u8 = 0xff;
    let mut header = vec![1, 0, OMITTED, OMITTED];
    header.extend((section.as_ptr() as u64).to_le_bytes());
    header
}

/// The program headers of a module that has nothing but these stubs.
fn segments(begin: u64, end: u64, header: &'static [u8]) -> [libc::Elf64_Phdr; 2] {
    let segment = |kind, flags, begin, bytes| libc::Elf64_Phdr {
        p_type: kind,
        p_flags: flags,
        p_offset: 0,
        p_vaddr: begin,
        p_paddr: begin,
        p_filesz: bytes,
        p_memsz: bytes,
        p_align: 1,
    };
    let at = header.as_ptr() as u64;
    [
        segment(libc::PT_LOAD, libc::PF_R | libc::PF_X, begin, end - begin),
        segment(libc::PT_GNU_EH_FRAME, libc::PF_R, at, header.len() as u64),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a range is found by its addresses only, and that who lists modules sees it as
    /// one, behind those that there are.
    #[test]
    fn stubs_are_a_module() {
        unsafe extern "C-unwind" fn look(
            info: *mut libc::dl_phdr_info,
            _: usize,
            seen: *mut c_void,
        ) -> c_int {
            // SAFETY: from modules(), or the loader.
            let info = unsafe { &*info };
            // SAFETY: of the test, which waits.
            let seen = unsafe { &mut *seen.cast::<Vec<(u64, u16)>>() };
            seen.push((info.dlpi_adds, info.dlpi_phnum));
            0
        }
        let (begin, end) = (0x7000_0000_0000, 0x7000_0000_1000);
        describe(begin, end, ShadowRegion { begin, stale: begin, count_at: begin });
        let range = range_of(begin).expect("described");
        assert!(range_of(begin - 1).is_none() && range_of(end).is_none());
        let mut object = Object { flags: 9, begin: 0, end: 0, link_map: 9, header: 0, reserved: [9; 7] };
        // SAFETY: a structure of ours.
        assert_eq!(unsafe { find_object(end - 1, &raw mut object) }, 0);
        assert_eq!((object.begin, object.end, object.header), (begin, end, range.header.as_ptr() as u64));
        let mut all: Vec<(u64, u16)> = Vec::new();
        let mut own = all.clone();
        // SAFETY: a function of the right type and a list of ours.
        unsafe { dl_iterate_phdr(look, (&raw mut own).cast()) };
        // SAFETY: likewise.
        unsafe { modules(look, (&raw mut all).cast()) };
        assert!(all.len() > own.len() && all[..own.len()] == own[..], "{all:?} {own:?}");
        assert_eq!(all[own.len()], (own[0].0, 2));
    }
}
