//! Whether this process restricts its own system calls (seccomp) since probes are in it.
//!
//! A filter can end the program for a call that it does not list, and nobody can ask a filter what
//! it lists. So what runs in the program's own threads makes no system call from then on: a thread
//! without a shadow stack gets none, and memory behind pointers counts as unreadable.
use std::sync::atomic::{AtomicBool, Ordering};

static RESTRICTED: AtomicBool = AtomicBool::new(false);

/// To be called before the filter is there. Whether it was the first one.
pub(crate) fn begin() -> bool {
    // Relaxed: a thread that does not see it yet makes its call before the filter, or is none of
    // those that the filter is for: they were started by, or are, the thread that stored it.
    !RESTRICTED.swap(true, Ordering::Relaxed)
}

/// A new tracer has entered, which it does only where there is no filter.
pub(crate) fn forget() {
    // Relaxed: no probe of the new tracer is armed yet.
    RESTRICTED.store(false, Ordering::Relaxed);
}

/// Whether system calls may be forbidden.
#[inline]
pub(crate) fn is_on() -> bool {
    RESTRICTED.load(Ordering::Relaxed)
}
