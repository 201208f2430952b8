//! Running out of memory: a sentence and exit status 1, not an abort of the standard library.
#![allow(unsafe_code)]
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Whether this thread's caller of the allocator can do without.
    static MAY_FAIL: Cell<bool> = const { Cell::new(false) };
}

/// The system's allocator, for `#[global_allocator]` of a program. Where it has no memory, the
/// process says so on stderr and ends with status 1. The kernel then takes back events, rings and
/// BPF programs, as after SIGKILL.
#[derive(Debug)]
pub struct Allocator;

/// Runs `reserve`, in which an allocation may fail: for `try_reserve` of sizes that a user chose.
pub fn may_fail<T>(reserve: impl FnOnce() -> T) -> T {
    let before = MAY_FAIL.replace(true);
    let result = reserve();
    MAY_FAIL.set(before);
    result
}

// SAFETY: handed on to the system's allocator as it came; a null pointer goes back to callers that
// asked for it, and otherwise the process ends.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are the ones that are needed.
        checked(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        checked(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: as above.
        checked(unsafe { System.realloc(memory, layout, bytes) }, bytes)
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Prepares a process whose address space is limited (`ulimit -v`), before it starts threads;
/// others are left as they are. One that cannot have so much memory more ends with the same
/// sentence: where a thread starts with less, the C library or Rust's end the process in their own
/// words, by a signal. And all threads allocate from one arena, as each further one reserves
/// 64 MiB.
pub fn require_headroom(bytes: usize) {
    let limit = rustix::process::getrlimit(rustix::process::Resource::As).current;
    if limit.is_none() {
        return;
    }
    #[cfg(target_env = "gnu")]
    // SAFETY: sets a number of the allocator; nobody else allocates yet.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1)
    };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping, wherever there is room.
    let room = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
    if room == libc::MAP_FAILED {
        end(bytes);
    }
    // SAFETY: the mapping of above, which nobody has seen.
    unsafe { libc::munmap(room, bytes) };
}

/// Prepares the allocator of a program that runs for months, before it starts threads: all threads
/// allocate from one arena, so that what one frees serves the others. Blocks of 1 MiB and more are
/// mappings of their own, which go back to the system when they are freed; smaller ones are used
/// again. With [`return_free_memory`] from time to time, memory stays what is used. Does nothing
/// with C libraries other than glibc.
pub fn keep_heap_small() {
    #[cfg(target_env = "gnu")]
    for (parameter, value) in
        [(libc::M_ARENA_MAX, 1), (libc::M_MMAP_THRESHOLD, 1 << 20), (libc::M_TRIM_THRESHOLD, 4 << 20)]
    {
        // SAFETY: sets a number of the allocator.
        unsafe { libc::mallopt(parameter, value) };
    }
}

/// Gives memory that the allocator holds and nobody uses back to the system. Other threads that
/// allocate wait meanwhile. Does nothing with C libraries other than glibc.
pub fn return_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: has no preconditions (`man 3 malloc_trim`).
    unsafe {
        libc::malloc_trim(0)
    };
}

fn checked(memory: *mut u8, bytes: usize) -> *mut u8 {
    if memory.is_null() && !MAY_FAIL.get() {
        end(bytes);
    }
    memory
}

/// Says it without allocating, and ends the process without running anything else of it.
#[cold]
fn end(bytes: usize) -> ! {
    let mut digits = [0; 20];
    for part in [
        &b"kymo: out of memory: "[..],
        decimal(bytes, &mut digits),
        b" bytes were refused; see `ulimit -v`, the cgroup's memory limit and `free`\n",
    ] {
        // SAFETY: bytes of ours; where stderr is gone nothing is said.
        unsafe { libc::write(2, part.as_ptr().cast(), part.len()) };
    }
    // SAFETY: ends the process.
    unsafe { libc::_exit(1) }
}

fn decimal(mut number: usize, digits: &mut [u8; 20]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[at..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the numbers that the sentence names.
    #[test]
    fn numbers() {
        for (number, text) in
            [(0, "0"), (7, "7"), (1_048_576, "1048576"), (usize::MAX, "18446744073709551615")]
        {
            assert_eq!(decimal(number, &mut [0; 20]), text.as_bytes());
        }
    }

    /// Checks that who can do without memory gets a null pointer, and nobody else's allocation may
    /// fail afterwards.
    #[test]
    fn those_who_can_do_without() {
        let layout = Layout::from_size_align(1 << 60, 8).expect("a layout");
        // SAFETY: the layout is not empty; the result is only looked at.
        assert!(may_fail(|| unsafe { Allocator.alloc(layout) }).is_null());
        assert!(!MAY_FAIL.get());
    }
}
