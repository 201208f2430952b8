//! Return slots: the words of stacks that hold return addresses, or stubs in their place.
//!
//! # Safety
//! System calls with numbers and addresses of locals.
#![allow(unsafe_code)]
use super::page::{END, process_id};
use crate::patch::layout::FREE;
use crate::sys::raw::call;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Ranges of code that stubs may be in.
const RANGES: usize = 1024;
static RANGE_COUNT: AtomicU32 = AtomicU32::new(0);
static RANGE_LIST: [[AtomicU64; 2]; RANGES] = [const { [AtomicU64::new(0), AtomicU64::new(0)] }; RANGES];

/// Tells what is code of stubs, so that a return slot which still holds it is known.
pub(crate) fn add_range(begin: u64, end: u64) -> bool {
    // Relaxed: only called under the patcher's lock.
    let at = RANGE_COUNT.load(Ordering::Relaxed) as usize;
    let Some(range) = RANGE_LIST.get(at) else { return false };
    range[0].store(begin, Ordering::Relaxed);
    range[1].store(end, Ordering::Relaxed);
    // Release: pairs with the Acquire in is_stub().
    RANGE_COUNT.store(at as u32 + 1, Ordering::Release);
    true
}

pub(crate) fn is_stub(address: u64) -> bool {
    // Acquire: pairs with the Release in add_range().
    let count = RANGE_COUNT.load(Ordering::Acquire) as usize;
    let mut at = 0;
    while at < count && at < RANGES {
        let range = &RANGE_LIST[at];
        // Relaxed: written before the count.
        if address >= range[0].load(Ordering::Relaxed) && address < range[1].load(Ordering::Relaxed) {
            return true;
        }
        at += 1;
    }
    false
}

/// The return slot of an entry with such a key, which is neither free nor a hole.
pub(crate) fn slot_of(key: u64) -> u64 {
    let program_handler = if is_claim(key) { key } else { !key };
    program_handler.wrapping_sub(8)
}

/// Whether it is the key of an entry that is being filled, or never was: its call was left by a
/// signal's handler in the midst of the stub.
pub(crate) fn is_claim(key: u64) -> bool {
    key != FREE && key < END
}

/// Whether a return slot, of any stack, still holds a stub. One that cannot be looked at (a filter
/// of system calls) is taken for one that does.
pub(crate) fn holds_stub(address: u64) -> bool {
    let mut word = 0_u64;
    let local = [&raw mut word as u64, 8];
    let remote = [address, 8];
    let (local, remote) = (local.as_ptr() as u64, remote.as_ptr() as u64);
    // SAFETY: the kernel writes into our own variable; what it cannot read is no fault.
    let got = unsafe { call(libc::SYS_process_vm_readv, [process_id(), local, 1, remote, 1, 0]) };
    // SAFETY: our own variable, which the kernel may have written.
    let word = unsafe { (&raw const word).read_volatile() };
    match got {
        8 => is_stub(word),
        error => error < 0 && error != -i64::from(libc::EFAULT),
    }
}

/// Where the mapping begins that holds an address; the address itself where that is not known. A
/// thread's own data lie at the end of its stack.
pub(crate) fn mapping_begin(held: u64) -> u64 {
    const PATH: &[u8] = b"/proc/self/maps\0";
    const CWD: u64 = libc::AT_FDCWD as u64;
    const PIECE: usize = 512;
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as u64;
    // SAFETY: a path that ends with a zero.
    let file = unsafe { call(libc::SYS_openat, [CWD, PATH.as_ptr() as u64, flags, 0, 0, 0]) };
    if file < 0 {
        return held;
    }
    // The two numbers at a line's begin; then the rest of the line. Not in an array, and below not
    // filled: that would be a call of the C library's memset (without optimisation), which may be
    // probed and come here again, and changes vector registers.
    let (mut first, mut second, mut which) = (0_u64, 0_u64, 0);
    let mut text = MaybeUninit::<[u8; PIECE]>::uninit();
    let mut begin = None;
    while begin.is_none() {
        let into = text.as_mut_ptr() as u64;
        // SAFETY: room of ours, so many bytes.
        let got = unsafe { call(libc::SYS_read, [file as u64, into, PIECE as u64, 0, 0, 0]) };
        if got <= 0 {
            break;
        }
        let mut at = 0;
        while at < got as usize && at < PIECE && begin.is_none() {
            let byte = text.as_ptr().cast::<u8>().wrapping_add(at);
            // SAFETY: the kernel has written `got` bytes.
            let byte = unsafe { byte.read_volatile() };
            at += 1;
            let digit = match byte {
                b'0'..=b'9' => u64::from(byte - b'0'),
                b'a'..=b'f' => u64::from(byte - b'a') + 10,
                b'\n' => {
                    (first, second, which) = (0, 0, 0);
                    continue;
                }
                _ => {
                    which += 1;
                    if which == 2 && first <= held && held < second {
                        begin = Some(first);
                    }
                    continue;
                }
            };
            match which {
                0 => first = first << 4 | digit,
                1 => second = second << 4 | digit,
                _ => {}
            }
        }
    }
    // SAFETY: our own descriptor.
    unsafe { call(libc::SYS_close, [file as u64, 0, 0, 0, 0, 0]) };
    match begin {
        Some(begin) => begin,
        None => held,
    }
}
