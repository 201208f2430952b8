//! Whether this process is the child of the one that began to count.
#![allow(unsafe_code)]
#[cfg(target_arch = "x86_64")]
use std::sync::atomic::AtomicU32;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

/// A page with a 1 in the parent, which the kernel clears for a child. Null until the first use;
/// dangling where that failed.
static PAGE: AtomicPtr<AtomicU8> = AtomicPtr::new(std::ptr::null_mut());

/// Whether this is a forked child. What was counted belongs to the parent; here other threads'
/// locks may be taken for good, so nothing may be touched.
#[inline]
pub(crate) fn is_child() -> bool {
    // Acquire: pairs with the Release in prepare(), after which the page holds its 1.
    let mut page = PAGE.load(Ordering::Acquire);
    if page.is_null() {
        page = prepare();
    }
    if page == std::ptr::dangling_mut() {
        return false;
    }
    // SAFETY: prepare() mapped it, and nobody unmaps it.
    let mark = unsafe { &*page };
    // Relaxed: written once before it was published, and by the kernel in a new process.
    mark.load(Ordering::Relaxed) == 0
}

/// The process that this memory is of.
#[cfg(target_arch = "x86_64")]
static OWN: AtomicU32 = AtomicU32::new(0);

/// To be called before [`is_guest`] is asked, by the process itself.
#[cfg(target_arch = "x86_64")]
pub(crate) fn know_own() {
    // Relaxed: who asks comes later, or is told that it is none.
    OWN.store(std::process::id(), Ordering::Relaxed);
}

/// Whether this is a child of `vfork`, in the memory of its parent: what it writes there is the
/// parent's.
#[cfg(target_arch = "x86_64")]
pub(crate) fn is_guest() -> bool {
    // Relaxed: written once, and long before.
    let own = OWN.load(Ordering::Relaxed);
    own != 0 && own != super::raw::process() && !is_child()
}

#[cold]
fn prepare() -> *mut AtomicU8 {
    let page = map().unwrap_or(std::ptr::dangling_mut());
    // Release: pairs with the Acquire above. Who comes second takes the first one's page; a page
    // too many is a page.
    match PAGE.compare_exchange(std::ptr::null_mut(), page, Ordering::Release, Ordering::Acquire) {
        Ok(_) => page,
        Err(first) => first,
    }
}

fn map() -> Option<*mut AtomicU8> {
    const BYTES: usize = 4096;
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new private mapping, wherever the kernel likes.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, protection, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the mapping above.
    if unsafe { libc::madvise(page, BYTES, libc::MADV_WIPEONFORK) } != 0 {
        return None;
    }
    let page: *mut AtomicU8 = page.cast();
    // SAFETY: mapped, zeroed, and nobody else knows it yet.
    unsafe { &*page }.store(1, Ordering::Relaxed);
    Some(page)
}
