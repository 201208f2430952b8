//! The one door for system calls on events: a real kernel and a scripted one behind the same trait.
//!
//! Everything above this module speaks to a [`Kernel`]; with [`Fake`] every fallback can be tested on a machine that has
//! no PMU, no privilege and no shortage of descriptors.
mod attr;
pub mod fake;
mod inherited;
mod real;
mod thread;

pub use attr::{Perf, attr_bytes, attr_zeroed};
pub use fake::Fake;
pub use inherited::inherited;
pub use perf_event_open_sys::bindings;
pub use perf_event_open_sys::bindings::perf_event_attr;
pub use real::{Real, is_root_like, online_cpus, page_size};
pub use thread::{pin_to, run_first};

use crate::ring::Ring;
use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Any task (`pid` argument) or any CPU (`cpu` argument).
pub const ANY: i32 = -1;

/// The system calls that events need. Descriptors are always owned; closing is dropping.
pub trait Kernel: Send + Sync + fmt::Debug {
    /// Opens one event for `task` (or [`ANY`]) on `cpu` (or [`ANY`]); `cloexec` is off only for kernels that do not know it.
    ///
    /// # Errors
    /// What `perf_event_open(2)` says.
    fn open(
        &self,
        attr: &perf_event_attr,
        task: i32,
        cpu: i32,
        group: Option<BorrowedFd<'_>>,
        cloexec: bool,
    ) -> io::Result<OwnedFd>;

    /// Enables the event (a leader enables its group).
    ///
    /// # Errors
    /// What `ioctl(2)` says.
    fn enable(&self, event: BorrowedFd<'_>) -> io::Result<()>;

    /// Disables the event.
    ///
    /// # Errors
    /// What `ioctl(2)` says.
    fn disable(&self, event: BorrowedFd<'_>) -> io::Result<()>;

    /// Lets `event` write into the ring of `output`.
    ///
    /// # Errors
    /// EINVAL if they differ in CPU, task or clock.
    fn set_output(&self, event: BorrowedFd<'_>, output: BorrowedFd<'_>) -> io::Result<()>;

    /// Attaches a tracepoint filter.
    ///
    /// # Errors
    /// EINVAL for an expression that the kernel does not understand.
    fn set_filter(&self, event: BorrowedFd<'_>, filter: &str) -> io::Result<()>;

    /// The kernel's id of the event, as samples carry it.
    ///
    /// # Errors
    /// What `ioctl(2)` says.
    fn id(&self, event: BorrowedFd<'_>) -> io::Result<u64>;

    /// Reads the event's counter words (`read_format` says which they are).
    ///
    /// # Errors
    /// What `read(2)` says; ENOSPC if `words` is too small.
    fn read(&self, event: BorrowedFd<'_>, words: &mut [u64]) -> io::Result<usize>;

    /// Maps the event's ring of `data_pages` pages (a power of two).
    ///
    /// # Errors
    /// EPERM beyond `perf_event_mlock_kb` and RLIMIT_MEMLOCK, EINVAL for an inheritable event on any CPU.
    fn map(&self, event: BorrowedFd<'_>, data_pages: usize) -> io::Result<Ring>;

    /// Raises the limit of open descriptors: first to the hard limit, then (with privilege) beyond. The new limit, or `None` if it cannot
    /// be raised.
    fn raise_descriptors(&self) -> Option<u64>;
}
