//! A hardware counter of one thread, which the thread reads without a system call.
#![allow(unsafe_code)]
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, compiler_fence};

/// The beginning of `struct perf_event_mmap_page` of linux/perf_event.h: what the kernel tells a
/// thread about its counter.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct Page {
    version: AtomicU32,
    compat_version: AtomicU32,
    /// Changes with every change of the rest.
    pub(crate) lock: AtomicU32,
    /// Which counter, from 1; 0: none now.
    pub(crate) index: AtomicU32,
    /// What is to be added to the counter, signed.
    pub(crate) offset: AtomicU64,
    time_enabled: AtomicU64,
    time_running: AtomicU64,
    pub(crate) capabilities: AtomicU64,
    /// How many bits the counter has.
    pub(crate) width_bits: AtomicU16,
}

/// In the page's capabilities: user code may read the counter.
pub(crate) const CAN_READ: u64 = 1 << 2;

/// What the counter shows, read without a system call; `None` if it must be asked of the kernel
/// now: it has no counter, or reading is not permitted, or the page does not come to rest.
pub(crate) fn read_here(page: &Page, counter: impl Fn(u32) -> u64) -> Option<u64> {
    // The kernel changes the page on this very thread, so two tries mostly suffice; the bound is
    // for a page gone wrong.
    for _ in 0..64 {
        // Relaxed, and fences for the compiler only: the writer is the kernel on this thread's own
        // CPU.
        let lock = page.lock.load(Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        let index = page.index.load(Ordering::Relaxed);
        let mut value = page.offset.load(Ordering::Relaxed);
        let may = page.capabilities.load(Ordering::Relaxed) & CAN_READ != 0;
        if index == 0 || !may {
            return None;
        }
        let width = u32::from(page.width_bits.load(Ordering::Relaxed)).clamp(1, 64);
        // The counter is a signed number of that many bits.
        let shown = counter(index - 1) as i64;
        value = value.wrapping_add((shown << (64 - width) >> (64 - width)) as u64);
        compiler_fence(Ordering::SeqCst);
        if page.lock.load(Ordering::Relaxed) == lock {
            return Some(value);
        }
    }
    None
}

/// `struct perf_event_attr` up to and with `sig_data` (Linux 5.13). An older kernel takes it if
/// what it does not know is 0.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct EventAttr {
    pub(super) kind: u32,
    pub(super) size_bytes: u32,
    pub(super) config: u64,
    pub(super) period: u64,
    pub(super) sample_type: u64,
    pub(super) read_format: u64,
    pub(super) flags: u64,
    pub(super) wakeup: u32,
    pub(super) access: u32,
    pub(super) address: u64,
    pub(super) len_bytes: u64,
    /// Branches, registers, stacks, clocks, AUX: not used.
    pub(super) unused: [u64; 6],
    pub(super) signal_data: u64,
}

const ATTR_BYTES: u32 = 128;
const _: () = assert!(size_of::<EventAttr>() == ATTR_BYTES as usize);

impl EventAttr {
    /// One that says its size, and nothing else.
    pub(super) fn sized() -> EventAttr {
        EventAttr { size_bytes: ATTR_BYTES, ..EventAttr::default() }
    }
}

pub(super) const EXCLUDE_KERNEL: u64 = 1 << 5;
pub(super) const EXCLUDE_HV: u64 = 1 << 6;

/// Opens an event of a thread of this process (0: the calling one) on any CPU, in no group.
pub(super) fn open(thread: i32, attr: &EventAttr) -> io::Result<OwnedFd> {
    const CLOSE_ON_EXEC: libc::c_ulong = 1 << 3;
    // SAFETY: the attribute says its own size.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, attr, thread, -1, -1, CLOSE_ON_EXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// An open counter of the thread that opened it.
#[derive(Debug)]
pub(crate) struct Counter {
    file: File,
    page: Option<NonNull<Page>>,
}

const PAGE_BYTES: usize = 4096;

impl Counter {
    /// Opens a counter of `PERF_TYPE_HARDWARE` for the calling thread's user code, which never
    /// shares its place with others.
    pub(crate) fn open(config: u64) -> io::Result<Counter> {
        const PINNED: u64 = 1 << 2;
        let attr = EventAttr { config, flags: PINNED | EXCLUDE_KERNEL | EXCLUDE_HV, ..EventAttr::sized() };
        let file = File::from(open(0, &attr)?);
        // SAFETY: a new mapping, for reading only.
        let page = unsafe {
            let (access, file) = (libc::PROT_READ, file.as_raw_fd());
            libc::mmap(std::ptr::null_mut(), PAGE_BYTES, access, libc::MAP_SHARED, file, 0)
        };
        let page = if page == libc::MAP_FAILED { None } else { NonNull::new(page.cast()) };
        Ok(Counter { file, page })
    }

    /// What it shows, for the thread whose counter it is.
    pub(crate) fn read_own(&self) -> io::Result<u64> {
        if let Some(page) = self.page {
            // SAFETY: mapped by open(), unmapped by drop().
            let page = unsafe { page.as_ref() };
            if let Some(value) = read_here(page, processor_counter) {
                return Ok(value);
            }
        }
        self.read_any()
    }

    /// What it shows, for any thread: a system call.
    pub(crate) fn read_any(&self) -> io::Result<u64> {
        let mut value = [0; 8];
        // Nothing to read: it is pinned, and lost its counter to another pinned one.
        (&self.file).read_exact(&mut value)?;
        Ok(u64::from_ne_bytes(value))
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        if let Some(page) = self.page {
            // SAFETY: the mapping of open(), to which no reference is left.
            unsafe { libc::munmap(page.as_ptr().cast(), PAGE_BYTES) };
        }
    }
}

// SAFETY: the page is only read; what another thread would get from it is refused by reading
// through the descriptor.
unsafe impl Send for Counter {}
// SAFETY: likewise.
unsafe impl Sync for Counter {}

#[cfg(target_arch = "x86_64")]
fn processor_counter(index: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: the page says that this counter is there and may be read; if that changed just now,
    // the kernel emulates nothing and the lock of the page differs afterwards.
    unsafe {
        std::arch::asm!("rdpmc", in("ecx") index, out("eax") low, out("edx") high, options(nomem, nostack, preserves_flags));
    }
    u64::from(high) << 32 | u64::from(low)
}

#[cfg(not(target_arch = "x86_64"))]
fn processor_counter(_: u32) -> u64 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(index: u32, offset: i64, width: u16, may: bool) -> Page {
        let page = Page::default();
        page.index.store(index, Ordering::Relaxed);
        page.offset.store(offset as u64, Ordering::Relaxed);
        page.width_bits.store(width, Ordering::Relaxed);
        page.capabilities.store(if may { CAN_READ } else { 0 }, Ordering::Relaxed);
        page
    }

    /// Checks that the layout is the kernel's.
    #[test]
    fn the_page_is_laid_out_as_the_kernel_does() {
        assert_eq!(std::mem::offset_of!(Page, lock), 8);
        assert_eq!(std::mem::offset_of!(Page, index), 12);
        assert_eq!(std::mem::offset_of!(Page, offset), 16);
        assert_eq!(std::mem::offset_of!(Page, capabilities), 40);
        assert_eq!(std::mem::offset_of!(Page, width_bits), 48);
    }

    /// Checks that the offset is added, that the index counts from one, and that a counter of 48
    /// bits is a signed number; that without a counter or permission the kernel is to be asked; and
    /// that any width that a page may claim is survived.
    #[test]
    fn a_counter_is_offset_and_signed() {
        let counter = |index| if index == 2 { 0xffff_ffff_fff0 } else { 7 };
        assert_eq!(read_here(&page(3, 1000, 48, true), counter), Some(984));
        assert_eq!(read_here(&page(1, 1000, 48, true), counter), Some(1007));
        assert_eq!(read_here(&page(1, -3, 64, true), counter), Some(4));
        assert_eq!(read_here(&page(0, 1000, 48, true), |_| unreachable!()), None);
        assert_eq!(read_here(&page(1, 1000, 48, false), |_| unreachable!()), None);
        for width in [0, 1, 63, 64, 65, u16::MAX] {
            assert!(read_here(&page(1, 0, width, true), |_| u64::MAX).is_some(), "{width}");
        }
    }

    /// Checks that a counter that moved while it was read is read again, and that a page that never
    /// rests does not hang.
    #[test]
    fn a_page_that_changes_is_read_again() {
        let moving = page(1, 100, 48, true);
        let first = std::cell::Cell::new(true);
        let counter = |_| {
            if first.replace(false) {
                moving.lock.fetch_add(1, Ordering::Relaxed);
                moving.offset.store(500, Ordering::Relaxed);
            }
            1
        };
        assert_eq!(read_here(&moving, counter), Some(501));

        let restless = page(1, 100, 48, true);
        let counter = |_| u64::from(restless.lock.fetch_add(1, Ordering::Relaxed));
        assert_eq!(read_here(&restless, counter), None);
    }

    /// Checks that opening a hardware counter either counts or says why not.
    #[test]
    fn a_real_counter_counts_or_says_why_not() {
        match Counter::open(1) {
            Ok(counter) => {
                let before = counter.read_own().expect("readable");
                assert!(counter.read_own().expect("readable") > before);
            }
            Err(error) => kymo_testing::skip("sys::perf_event::a_real_counter_counts_or_says_why_not", error),
        }
    }
}
