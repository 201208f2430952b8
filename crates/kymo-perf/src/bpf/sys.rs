//! The system call `bpf(2)`, and the two calls on tracepoint events that attach a program.
//!
//! # Safety
//! The kernel reads and writes through addresses in the attributes. The risks: a buffer that is
//! shorter than the map's keys and values say, and an attribute shorter than its announced size. So
//! every map of this module has `u32` keys and `u64` values, fixed where it is made ([`MapFd`]
//! cannot be made otherwise; values of an array of events are shorter), and every attribute is a
//! struct whose size is what is announced. Memory shared with programs ([`SharedWords`]) is as long
//! as the map that was made together with it, and is seen only as atomics.
#![allow(unsafe_code, reason = "the system call bpf(2)")]
pub(super) mod ring;
pub(super) mod sized_map;
pub(super) mod uprobe;

use super::memlock;
use crate::sys::{Perf, attr_zeroed, bindings};
use perf_event_open_sys::ioctls;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::AtomicU64;

/// One instruction as the kernel reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Instruction {
    pub(super) code: u8,
    /// Destination in the lower four bits, source in the upper.
    pub(super) registers: u8,
    pub(super) offset: i16,
    pub(super) imm: i32,
}

/// A map of u32 keys to u64 values.
#[derive(Debug)]
pub(super) struct MapFd(OwnedFd);

impl MapFd {
    pub(super) fn number(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// What kind of map.
#[derive(Clone, Copy, Debug)]
pub(super) enum MapKind {
    /// Any keys; memory grows with what is in it.
    Hash,
    /// Any keys; all memory is taken when it is made.
    FullHash,
    /// Keys 0 to the size; all there from the start, zero.
    Array,
    /// The same in memory that can be mapped (Linux 5.5).
    SharedArray,
    /// Keys 0 to the size; values are descriptors of events.
    Events,
}

/// What kind of program, by the number of the ABI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProgramKind {
    /// At an event of the uprobe PMU.
    Uprobe = 2,
    Tracepoint = 5,
    PerfEvent = 7,
    RawTracepoint = 17,
    /// At many places of a file.
    UprobeMulti = 0x100 | 2,
    /// The same, and it may wait for memory to be brought in (Linux 6.6).
    UprobeMultiWaiting = 0x200 | 2,
    /// At a raw tracepoint whose arguments have types (Linux 5.5).
    TypedTracepoint = 26,
    /// When a function of the kernel is called.
    FunctionEntry = 0x100 | 26,
    /// When it returns.
    FunctionExit = 0x200 | 26,
    /// For each task, when somebody reads (Linux 5.8).
    TaskIterator = 0x300 | 26,
}

impl ProgramKind {
    /// The number without what distinguishes kinds of the same number.
    fn number(self) -> u32 {
        self as u32 & 0xff
    }

    /// What it will be attached to, where loading must know.
    fn attach(self) -> u32 {
        match self {
            ProgramKind::UprobeMulti | ProgramKind::UprobeMultiWaiting => uprobe::UPROBE_MULTI,
            ProgramKind::TypedTracepoint => TYPED_TRACEPOINT,
            ProgramKind::FunctionEntry => FUNCTION_ENTRY,
            ProgramKind::FunctionExit => FUNCTION_EXIT,
            ProgramKind::TaskIterator => ITERATOR,
            _ => 0,
        }
    }

    fn flags(self) -> u32 {
        if self == ProgramKind::UprobeMultiWaiting { SLEEPABLE } else { 0 }
    }
}

/// Kinds of attachment.
const TYPED_TRACEPOINT: u32 = 23;
const FUNCTION_ENTRY: u32 = 24;
const FUNCTION_EXIT: u32 = 25;
const ITERATOR: u32 = 28;
/// A flag of programs.
const SLEEPABLE: u32 = 1 << 4;

const MAP_CREATE: libc::c_long = 0;
const MAP_LOOKUP_ELEM: libc::c_long = 1;
const MAP_UPDATE_ELEM: libc::c_long = 2;
const MAP_DELETE_ELEM: libc::c_long = 3;
const MAP_GET_NEXT_KEY: libc::c_long = 4;
const PROG_LOAD: libc::c_long = 5;
const RAW_TRACEPOINT_OPEN: libc::c_long = 17;
const BTF_LOAD: libc::c_long = 18;
const MAP_UPDATE_BATCH: libc::c_long = 26;
const LINK_CREATE: libc::c_long = 28;
const ITERATOR_CREATE: libc::c_long = 33;

const TYPE_HASH: u32 = 1;
const TYPE_ARRAY: u32 = 2;
const TYPE_EVENTS: u32 = 4;
const NO_PREALLOC: u32 = 1;
const MAPPABLE: u32 = 1 << 10;

#[repr(C)]
#[derive(Default)]
struct CreateAttr {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    max_entries: u32,
    flags: u32,
    inner_map: u32,
    numa_node: u32,
    name: [u8; 16],
}

#[repr(C)]
#[derive(Default)]
struct ElementAttr {
    map: u32,
    pad: u32,
    key: u64,
    value_or_next: u64,
    flags: u64,
}

#[repr(C)]
#[derive(Default)]
struct BatchAttr {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map: u32,
    element_flags: u64,
    flags: u64,
}

#[repr(C)]
#[derive(Default)]
struct LoadAttr {
    kind: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    ifindex: u32,
    expected_attach: u32,
    btf: u32,
    func_info_bytes: u32,
    func_info: u64,
    func_info_count: u32,
    line_info_bytes: u32,
    line_info: u64,
    line_info_count: u32,
    attach_btf_id: u32,
    attach_program: u32,
    core_relo_count: u32,
    fd_array: u64,
    core_relos: u64,
    core_relo_bytes: u32,
    log_true_bytes: u32,
}

/// What a program that has none of it must not announce: a kernel before 5.17 refuses bytes that it
/// does not know only if they are not zero, so the whole struct can always be passed.
#[repr(C)]
#[derive(Default)]
struct RawTracepointAttr {
    name: u64,
    program: u32,
    pad: u32,
    cookie: u64,
}

#[repr(C)]
#[derive(Default)]
struct BtfAttr {
    btf: u64,
    log: u64,
    btf_bytes: u32,
    log_bytes: u32,
    log_level: u32,
    log_true_bytes: u32,
}

/// # Safety
/// `T` must be the kernel's attribute of `command` without implicit padding, and every address in
/// it valid for what the command reads and writes there.
unsafe fn bpf<T>(command: libc::c_long, attr: &mut T) -> io::Result<libc::c_long> {
    // SAFETY: the attribute is initialised and as long as announced; the addresses in it are the
    // caller's promise.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attr), size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// # Safety
/// As [`bpf`], for commands that return a new descriptor.
unsafe fn bpf_open<T>(command: libc::c_long, attr: &mut T) -> io::Result<OwnedFd> {
    let fd = memlock::with_room(|| {
        // SAFETY: the caller's promise.
        unsafe { bpf(command, attr) }
    })?;
    // SAFETY: the kernel has just made this descriptor for us (close-on-exec, as all of bpf(2)).
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Makes a map of u32 keys to u64 values.
pub(super) fn create_map(kind: MapKind, entries: u32, name: [u8; 16]) -> io::Result<MapFd> {
    let (kind, flags, value_bytes) = match kind {
        MapKind::Hash => (TYPE_HASH, NO_PREALLOC, 8),
        MapKind::FullHash => (TYPE_HASH, 0, 8),
        MapKind::Array => (TYPE_ARRAY, 0, 8),
        MapKind::SharedArray => (TYPE_ARRAY, MAPPABLE, 8),
        // The kernel reads the lower half of a value.
        MapKind::Events => (TYPE_EVENTS, 0, 4),
    };
    let mut attr = CreateAttr {
        kind,
        key_bytes: 4,
        value_bytes,
        max_entries: entries,
        flags,
        name,
        ..CreateAttr::default()
    };
    // SAFETY: no addresses in it.
    unsafe { bpf_open(MAP_CREATE, &mut attr) }.map(MapFd)
}

/// The values of an array, in memory that is shared with the programs and stays when the map's
/// descriptor is closed. Unmapped on drop.
#[derive(Debug)]
pub(super) struct SharedWords {
    base: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the mapping belongs to no thread, and everything in it is reached through atomics.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Maps so many words of a map's memory from this byte on. They must be there.
    fn map(map: &OwnedFd, prot: ProtFlags, from: u64, words: usize) -> io::Result<SharedWords> {
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing.
        let base = unsafe { mmap(null_mut(), 8 * words, prot, MapFlags::SHARED, map, from) }?;
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        Ok(SharedWords { base, words })
    }

    /// The values by key.
    pub(super) fn words(&self) -> &[AtomicU64] {
        // SAFETY: mapped until drop and so long (map); any bit pattern is a u64.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: our own mapping; all views borrowed self and are gone.
        let result = unsafe { munmap(self.base.as_ptr().cast(), 8 * self.words) };
        debug_assert!(result.is_ok());
    }
}

/// Makes an array whose values are mapped here, all 0.
pub(super) fn create_shared(entries: u32, name: [u8; 16]) -> io::Result<(MapFd, SharedWords)> {
    let map = create_map(MapKind::SharedArray, entries, name)?;
    // Values of 8 bytes stand one behind the other, from a page's start on.
    let words = SharedWords::map(&map.0, ProtFlags::READ | ProtFlags::WRITE, 0, entries as usize)?;
    Ok((map, words))
}

/// The value of a key.
pub(super) fn lookup(map: &MapFd, key: u32) -> io::Result<u64> {
    let mut value = 0u64;
    let mut attr = ElementAttr {
        map: map.number() as u32,
        key: std::ptr::from_ref(&key).expose_provenance() as u64,
        value_or_next: std::ptr::from_mut(&mut value).expose_provenance() as u64,
        ..ElementAttr::default()
    };
    // SAFETY: key and value are as long as the map's (MapFd).
    unsafe { bpf(MAP_LOOKUP_ELEM, &mut attr) }?;
    Ok(value)
}

/// Sets the value of a key, new or not.
pub(super) fn update(map: &MapFd, key: u32, value: u64) -> io::Result<()> {
    let mut attr = ElementAttr {
        map: map.number() as u32,
        key: std::ptr::from_ref(&key).expose_provenance() as u64,
        value_or_next: std::ptr::from_ref(&value).expose_provenance() as u64,
        ..ElementAttr::default()
    };
    // SAFETY: key and value are at least as long as the map's (MapFd).
    unsafe { bpf(MAP_UPDATE_ELEM, &mut attr) }?;
    Ok(())
}

/// The key behind `key` in the map's own order, the first one if `key` is `None` or gone; ENOENT at
/// the end.
pub(super) fn next_key(map: &MapFd, key: Option<u32>) -> io::Result<u32> {
    let mut next = 0u32;
    let mut attr = ElementAttr {
        map: map.number() as u32,
        key: key.as_ref().map_or(0, |key| std::ptr::from_ref(key).expose_provenance() as u64),
        value_or_next: std::ptr::from_mut(&mut next).expose_provenance() as u64,
        ..ElementAttr::default()
    };
    // SAFETY: both keys are as long as the map's (MapFd); address 0 asks for the first.
    unsafe { bpf(MAP_GET_NEXT_KEY, &mut attr) }?;
    Ok(next)
}

/// Sets the values of many keys in one call (Linux 5.6). On error, how many were set before it, if
/// the kernel says.
pub(super) fn update_batch(map: &MapFd, keys: &[u32], values: &[u64]) -> Result<(), (u32, io::Error)> {
    assert_eq!(keys.len(), values.len(), "a value for each key");
    let mut attr = BatchAttr {
        keys: keys.as_ptr().expose_provenance() as u64,
        values: values.as_ptr().expose_provenance() as u64,
        count: u32::try_from(keys.len()).unwrap_or(u32::MAX),
        map: map.number() as u32,
        ..BatchAttr::default()
    };
    let asked = attr.count;
    // SAFETY: the arrays hold `count` keys and values of the map's sizes (MapFd).
    let result = unsafe { bpf(MAP_UPDATE_BATCH, &mut attr) };
    // A kernel that refused the call as a whole leaves the count as it was.
    result.map(drop).map_err(|error| (if attr.count < asked { attr.count } else { 0 }, error))
}

/// Types and relocations that let the kernel find the offset of a member (see [`super::types`]).
#[derive(Debug)]
pub(super) struct Types<'a> {
    pub(super) btf: BorrowedFd<'a>,
    /// For each function: (first instruction, type).
    pub(super) functions: Vec<[u32; 2]>,
    /// For each use of an offset: (byte position of the instruction, type, string of member
    /// numbers, what is asked).
    pub(super) relocations: Vec<[u32; 4]>,
}

/// Loads a program; `kernel_type`: what of the kernel it runs at, or 0. With a log buffer, the
/// verifier's words are written there, ended by a zero.
pub(super) fn load_program(
    (kind, kernel_type): (ProgramKind, u32),
    code: &[Instruction],
    name: [u8; 16],
    license: &CStr,
    types: Option<&Types<'_>>,
    log: &mut [u8],
) -> io::Result<OwnedFd> {
    let mut attr = LoadAttr {
        kind: kind.number(),
        expected_attach: kind.attach(),
        flags: kind.flags(),
        attach_btf_id: kernel_type,
        instruction_count: code.len() as u32,
        instructions: code.as_ptr().expose_provenance() as u64,
        license: license.as_ptr().expose_provenance() as u64,
        name,
        ..LoadAttr::default()
    };
    if !log.is_empty() {
        attr.log_level = 1;
        attr.log_bytes = log.len() as u32;
        attr.log = log.as_mut_ptr().expose_provenance() as u64;
    }
    if let Some(types) = types {
        attr.btf = types.btf.as_raw_fd() as u32;
        attr.func_info_bytes = 8;
        attr.func_info = types.functions.as_ptr().expose_provenance() as u64;
        attr.func_info_count = types.functions.len() as u32;
        attr.core_relo_bytes = 16;
        attr.core_relos = types.relocations.as_ptr().expose_provenance() as u64;
        attr.core_relo_count = types.relocations.len() as u32;
    }
    // SAFETY: each address is that of a slice or string that outlives the call, with its length
    // beside it; the kernel writes only to the log.
    unsafe { bpf_open(PROG_LOAD, &mut attr) }
}

/// Loads type information.
pub(super) fn load_btf(btf: &[u8]) -> io::Result<OwnedFd> {
    let mut attr = BtfAttr {
        btf: btf.as_ptr().expose_provenance() as u64,
        btf_bytes: btf.len() as u32,
        ..BtfAttr::default()
    };
    // SAFETY: the slice outlives the call, with its length beside it; no log is asked for.
    unsafe { bpf_open(BTF_LOAD, &mut attr) }
}

/// Attaches a raw-tracepoint program; closing the descriptor detaches it. Without a name, one that
/// was loaded for a function or for a typed tracepoint.
pub(super) fn open_raw_tracepoint(name: Option<&CStr>, program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut attr = RawTracepointAttr {
        name: name.map_or(0, |name| name.as_ptr().expose_provenance() as u64),
        program: program.as_raw_fd() as u32,
        ..RawTracepointAttr::default()
    };
    // SAFETY: the name is ended by a zero and outlives the call.
    unsafe { bpf_open(RAW_TRACEPOINT_OPEN, &mut attr) }
}

#[repr(C)]
#[derive(Default)]
struct IteratorLinkAttr {
    program: u32,
    target: u32,
    attach: u32,
    flags: u32,
    parameters: u64,
    parameters_bytes: u32,
    pad: u32,
}

#[repr(C)]
#[derive(Default)]
struct IteratorAttr {
    link: u32,
    flags: u32,
}

/// A file whose reading runs an iterator's program for each object, and has what that writes.
pub(super) fn open_iterator(program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let program = program.as_raw_fd() as u32;
    let mut link = IteratorLinkAttr { program, attach: ITERATOR, ..IteratorLinkAttr::default() };
    // SAFETY: no addresses in it: the iterator has no parameters.
    let link = unsafe { bpf_open(LINK_CREATE, &mut link) }?;
    let mut attr = IteratorAttr { link: link.as_raw_fd() as u32, flags: 0 };
    // SAFETY: no addresses in it.
    unsafe { bpf_open(ITERATOR_CREATE, &mut attr) }
}

/// Lets an event's samples (or a tracepoint's hits) pass through a program.
pub(super) fn set_program(event: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: the argument is a descriptor number, not an address.
    let result = unsafe { ioctls::SET_BPF(event.as_fd().as_raw_fd(), program.as_raw_fd() as u32) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Opens a tracepoint's event, never enabled: only a place to attach a program to, which then runs
/// on all CPUs.
pub(super) fn open_tracepoint(id: u64, cpu: i32) -> io::Result<OwnedFd> {
    let mut attr = attr_zeroed();
    (attr.type_, attr.config) = (Perf::TRACEPOINT, id);
    attr.set_disabled(1);
    let cloexec = bindings::PERF_FLAG_FD_CLOEXEC.into();
    // SAFETY: attr is initialised and as long as its size field says.
    let fd = unsafe { perf_event_open_sys::perf_event_open(&mut attr, -1, cpu, -1, cloexec) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// A name as the kernel wants it: up to 15 bytes and a zero.
pub(super) fn name(text: &str) -> [u8; 16] {
    let mut out = [0; 16];
    let length = text.len().min(15);
    out[..length].copy_from_slice(&text.as_bytes()[..length]);
    out
}
