//! Whether this thread ran without a break: asked of the kernel without asking the kernel.
//!
//! The C library registers an area for restartable sequences with the kernel, one for each thread.
//! A thread stores there which sequence it is in; when the kernel takes the CPU away from a thread
//! that is *not* inside that sequence, it clears the field (linux/rseq.h says so). So a field that
//! names a sequence where no code ever is works as a flag: it stays as long as the thread keeps its
//! CPU, and is gone after the first switch, migration or signal.
//!
//! A program that uses the field itself overwrites the flag, which reads as "there was a break" and
//! costs one system call.
#![allow(unsafe_code)]
use std::cell::Cell;
use std::sync::OnceLock;
#[cfg(target_arch = "x86_64")]
use std::sync::atomic::AtomicU32;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

/// What the kernel expects in the four bytes before an abort address, as the C library registered
/// it.
#[cfg(target_arch = "x86_64")]
const SIGNATURE: u32 = 0x5305_3053;
#[cfg(target_arch = "aarch64")]
const SIGNATURE: u32 = 0xd428_bc00;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const SIGNATURE: u32 = 0;

/// `struct rseq_cs` of linux/rseq.h.
#[repr(C, align(32))]
struct Sequence {
    version: u32,
    flags: u32,
    start: *const u32,
    length_bytes: u64,
    abort: *const u32,
}

// SAFETY: never written; the addresses in it are of statics and are only compared, by the kernel.
unsafe impl Sync for Sequence {}

/// The signature, where one would continue after it, and a place where no code is.
static PLACES: [u32; 4] = [SIGNATURE, 0, 0, 0];

/// A sequence of one byte of data: no thread is ever in it.
static NOWHERE: Sequence =
    Sequence { version: 0, flags: 0, start: &PLACES[2], length_bytes: 1, abort: &PLACES[1] };

thread_local! {
    /// This thread's `rseq_cs`. Null: not looked for yet. Dangling: there is none.
    static FIELD: Cell<*const AtomicU64> = const { Cell::new(std::ptr::null()) };
}

fn no_field() -> *const AtomicU64 {
    std::ptr::dangling()
}

fn field() -> Option<&'static AtomicU64> {
    let mut field = FIELD.get();
    if field.is_null() {
        field = if works() { find().unwrap_or(no_field()) } else { no_field() };
        FIELD.set(field);
    }
    if field == no_field() {
        return None;
    }
    // SAFETY: find() gave the address of this thread's field; it lives as long as the thread, and
    // the reference does not leave it.
    Some(unsafe { &*field })
}

/// Begins to watch for a break. `false` if that cannot be seen here.
#[inline]
pub(crate) fn mark() -> bool {
    let Some(field) = field() else { return false };
    // Relaxed: the kernel reads and clears it on this very thread.
    field.store(flag(), Ordering::Relaxed);
    compiler_fence(Ordering::SeqCst);
    true
}

/// Whether the thread kept its CPU since [`mark`]. `None` if that cannot be seen here.
#[inline]
pub(crate) fn undisturbed() -> Option<bool> {
    compiler_fence(Ordering::SeqCst);
    // Relaxed: as above.
    field().map(|field| field.load(Ordering::Relaxed) == flag())
}

/// Ends watching, before the thread ends or this code goes away.
pub(crate) fn unmark() {
    if let Some(field) = field() {
        // Relaxed: as above. If it is not our flag, it is somebody else's sequence.
        let _ = field.compare_exchange(flag(), 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

fn flag() -> u64 {
    &raw const NOWHERE as u64
}

/// Where this thread's field is, if the C library has registered an area.
fn find() -> Option<*const AtomicU64> {
    /// Of `struct rseq`: the field begins after two numbers of CPUs.
    const FIELD_AT: usize = 8;
    if SIGNATURE == 0 {
        return None;
    }
    Some(thread_pointer().wrapping_offset(offset()?).wrapping_add(FIELD_AT).cast())
}

/// What C libraries register: the first form of the structure, or as much as the kernel knows.
#[cfg(target_arch = "x86_64")]
const FIRST_BYTES: u64 = 32;

/// The calling thread's area, which the kernel does not know any more.
#[cfg(target_arch = "x86_64")]
#[derive(Debug)]
#[must_use]
pub(crate) struct LeftArea {
    area: *const u8,
    bytes: u64,
}

/// Takes the calling thread out of restartable sequences, and lets it find the number of a CPU that
/// does not exist in its place: what counts by CPU finds no counter there. For code of ours, which
/// calls functions that are probed as any other. `None`: it was in none.
#[cfg(target_arch = "x86_64")]
pub(crate) fn leave_for(cpu: u32) -> Option<LeftArea> {
    const UNREGISTER: u64 = 1;
    const AT_RSEQ_FEATURE_SIZE: u64 = 27;
    const AT_RSEQ_ALIGN: u64 = 28;
    let area = thread_pointer().wrapping_offset(offset()?);
    // SAFETY: two numbers that the kernel gave to this process.
    let known = [AT_RSEQ_FEATURE_SIZE, AT_RSEQ_ALIGN].map(|what| unsafe { libc::getauxval(what) });
    let rounded = known[0].next_multiple_of(known[1].max(FIRST_BYTES));
    let bytes = [FIRST_BYTES, known[0], rounded].into_iter().find(|&bytes| {
        // SAFETY: the area of this thread; the kernel compares all numbers with what was
        // registered.
        unsafe { libc::syscall(libc::SYS_rseq, area, bytes, UNREGISTER, SIGNATURE) == 0 }
    })?;
    // SAFETY: the first word of this thread's area, which the kernel does not touch any more.
    unsafe { area.cast::<AtomicU32>().cast_mut().as_ref() }.inspect(|number| {
        // Relaxed: read by this thread.
        number.store(cpu, Ordering::Relaxed);
    });
    Some(LeftArea { area, bytes })
}

#[cfg(target_arch = "x86_64")]
impl LeftArea {
    /// Takes the thread, which has to be the same, into restartable sequences again.
    pub(crate) fn join(self) {
        let args = [self.area as u64, self.bytes, 0, u64::from(SIGNATURE), 0, 0];
        // SAFETY: the area that the C library had registered for this thread; it lives as long as
        // the thread. By no function of the C library: that would be counted.
        if unsafe { super::raw::call(libc::SYS_rseq, args) } == 0 {
            return;
        }
        // As threads are that were never in: what counts takes the first CPU for theirs.
        // SAFETY: as in leave_for(); the kernel does not touch it.
        unsafe { self.area.cast::<AtomicU32>().cast_mut().as_ref() }.inspect(|number| {
            // Relaxed: read by this thread.
            number.store(0, Ordering::Relaxed);
        });
    }
}

/// From the thread pointer to a thread's `struct rseq`, if the C library has registered one.
pub(crate) fn offset() -> Option<isize> {
    /// Two numbers of CPUs and the field.
    const NEEDED_BYTES: u32 = 16;
    let size: *const u32 = symbol(c"__rseq_size")?.cast();
    let offset: *const isize = symbol(c"__rseq_offset")?.cast();
    // SAFETY: the C library's `const unsigned int __rseq_size`.
    let size = unsafe { *size };
    // SAFETY: the C library's `const ptrdiff_t __rseq_offset`.
    let offset = unsafe { *offset };
    (size >= NEEDED_BYTES).then_some(offset)
}

fn symbol(name: &std::ffi::CStr) -> Option<*mut libc::c_void> {
    // SAFETY: the name is a C string; a symbol that is not there is null.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!address.is_null()).then_some(address)
}

#[cfg(target_arch = "x86_64")]
fn thread_pointer() -> *const u8 {
    let pointer;
    // SAFETY: the ABI keeps the thread pointer in its own first word.
    unsafe { std::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly, preserves_flags)) };
    pointer
}

#[cfg(target_arch = "aarch64")]
fn thread_pointer() -> *const u8 {
    let pointer;
    // SAFETY: reads a register that user code may read.
    unsafe {
        std::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nomem, nostack, preserves_flags))
    };
    pointer
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn thread_pointer() -> *const u8 {
    std::ptr::null()
}

/// Whether this kernel clears the field for a thread that sleeps in a system call, too: some only
/// do so for threads that were interrupted. Tried once, by sleeping three times for an instant.
fn works() -> bool {
    static WORKS: OnceLock<bool> = OnceLock::new();
    *WORKS.get_or_init(|| {
        let Some(field) = find() else { return false };
        // SAFETY: this thread's field, as in field().
        let field = unsafe { &*field };
        let clears = |_| {
            // Relaxed: the kernel reads and clears it on this very thread.
            field.store(flag(), Ordering::Relaxed);
            super::clock::nap();
            field.swap(0, Ordering::Relaxed) == 0
        };
        (0..3).all(clears)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a system call that does not wait leaves the flag, and that sleeping takes it
    /// away.
    #[test]
    fn the_flag_goes_with_the_cpu() {
        if !mark() {
            kymo_testing::skip("sys::rseq::the_flag_goes_with_the_cpu", "no restartable sequences here");
            return;
        }
        // A busy machine may take the CPU at any moment, but not every time.
        let stays = (0..1000).any(|_| {
            mark();
            super::super::clock::own_tid();
            undisturbed() == Some(true)
        });
        assert!(stays);
        mark();
        super::super::clock::nap();
        assert_eq!(undisturbed(), Some(false));
        unmark();
    }

    /// Checks that the end of watching leaves alone what somebody else put into the field.
    #[test]
    fn the_flag_of_another_stays() {
        if !mark() {
            kymo_testing::skip("sys::rseq::the_flag_of_another_stays", "no restartable sequences here");
            return;
        }
        unmark();
        assert_eq!(undisturbed(), Some(false));
    }

    /// Checks that a thread which has left finds the number that was said, and that of a CPU once it
    /// has joined again.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn left_and_joined() {
        const NOWHERE: u32 = 70_000;
        let Some(offset) = offset() else {
            kymo_testing::skip("sys::rseq::left_and_joined", "no restartable sequences here");
            return;
        };
        let body = move || {
            // SAFETY: the first word of this thread's area, as long as a word.
            let number = || unsafe { thread_pointer().wrapping_offset(offset).cast::<u32>().read_volatile() };
            let left = leave_for(NOWHERE).expect("the C library had registered it");
            assert_eq!(number(), NOWHERE);
            left.join();
            assert!(number() < NOWHERE);
            assert!(leave_for(NOWHERE).is_some(), "it is registered again");
        };
        std::thread::spawn(body).join().unwrap();
    }
}
