//! The one door for system calls on events: a real and a scripted kernel behind the same trait.
//!
//! Everything above this module speaks to a [`Kernel`]; with [`Fake`] every fallback can be tested
//! on a machine that has no PMU, no privilege and no shortage of descriptors.
mod attr;
mod bare_thread;
mod clock;
pub mod counter;
mod descriptor;
pub mod fake;
mod fork;
mod inherited;
pub mod memory;
mod online;
#[cfg(not(target_arch = "x86_64"))]
mod other_registers;
pub mod ptrace;
mod real;
mod signal_mask;
pub mod simulated;
pub mod socket;
mod thread;
mod vfork;

pub(crate) use attr::exclude_hidden_frames;
pub use attr::{Perf, attr_bytes, attr_zeroed};
pub use bare_thread::BareThread;
pub use clock::{date, timestamp};
pub use descriptor::{Descriptor, EventTarget};
pub use fake::Fake;
pub use fork::{Child, fork};
pub use inherited::inherited;
pub(crate) use online::possible_cpus;
pub use online::{OnlineCpus, online_cpus};
pub use perf_event_open_sys::bindings;
pub use perf_event_open_sys::bindings::perf_event_attr;
pub use real::{Real, page_size, reserve_descriptors};
pub use signal_mask::BlockedSignals;
pub use thread::{
    Binding, PriorityBoost, belongs_to_other_process, fix_addresses, move_thread, pin_to, run_early,
    run_first,
};
pub(crate) use thread::{cpu_number_bound, with_priority};

pub(crate) use vfork::in_vfork_child;

use crate::ring::{Keeps, Ring};
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

/// Any task (`pid` argument) or any CPU (`cpu` argument).
pub const ANY: i32 = -1;

/// The system calls that events need. A [`Descriptor`] goes back to the kernel that handed it out,
/// to be closed.
pub trait Kernel: Send + Sync + fmt::Debug {
    /// Opens one event.
    ///
    /// # Errors
    /// What `perf_event_open(2)` says.
    fn open(&self, attr: &perf_event_attr, place: &EventTarget<'_>) -> io::Result<Descriptor>;

    /// Closes events, in ascending order of their numbers.
    fn close(&self, events: Vec<Descriptor>);

    /// Lets the number of `old` stand for `new`, and closes the event that it stood for. A ring
    /// that is mapped of that event stays, with the events that write into it.
    ///
    /// # Errors
    /// What `dup3(2)` says; `new` is closed then, too.
    fn replace(&self, old: &Descriptor, new: Descriptor) -> io::Result<()>;

    /// Enables or disables the event (a leader enables its group).
    ///
    /// # Errors
    /// What `ioctl(2)` says.
    fn switch(&self, event: &Descriptor, on: bool) -> io::Result<()>;

    /// Enables or disables every event that the calling thread opened and that is still open,
    /// members of groups too: a member that was disabled so must be enabled the same way again, not
    /// through its leader.
    ///
    /// # Errors
    /// What `prctl(2)` says.
    fn switch_own(&self, on: bool) -> io::Result<()>;

    /// Lets `event` write into the ring of `output`.
    ///
    /// # Errors
    /// EINVAL if they differ in CPU, task or clock.
    fn set_output(&self, event: &Descriptor, output: &Descriptor) -> io::Result<()>;

    /// Attaches a tracepoint filter.
    ///
    /// # Errors
    /// EINVAL for an expression that the kernel does not understand.
    fn set_filter(&self, event: &Descriptor, filter: &str) -> io::Result<()>;

    /// Attaches a BPF program: it sees every sample, and one for which it returns 0 is not
    /// recorded.
    ///
    /// # Errors
    /// EEXIST if there is one already, EINVAL for a program of another type, EPERM without the
    /// privilege.
    fn set_bpf(&self, event: &Descriptor, program: BorrowedFd<'_>) -> io::Result<()>;

    /// The kernel's id of the event, as samples carry it.
    ///
    /// # Errors
    /// What `ioctl(2)` says.
    fn id(&self, event: &Descriptor) -> io::Result<u64>;

    /// Reads the event's counter words (`read_format` says which they are).
    ///
    /// # Errors
    /// What `read(2)` says; ENOSPC if `words` is too small.
    fn read(&self, event: &Descriptor, words: &mut [u64]) -> io::Result<usize>;

    /// Maps the event's ring of `data_pages` pages (a power of two); `keeps` must be what the
    /// event's `write_backward` says.
    ///
    /// # Errors
    /// EPERM beyond `perf_event_mlock_kb` and RLIMIT_MEMLOCK, EINVAL for an inheritable event on
    /// any CPU.
    fn map(&self, event: &Descriptor, data_pages: usize, keeps: Keeps) -> io::Result<Ring>;

    /// Lets the ring that the event writes to refuse all records, or take them again. What is
    /// refused counts as lost.
    ///
    /// # Errors
    /// EINVAL for an event without a ring.
    fn pause_output(&self, event: &Descriptor, paused: bool) -> io::Result<()>;

    /// The event as something to poll; `None` where there is no file behind it.
    fn poll_fd<'a>(&self, event: &'a Descriptor) -> Option<BorrowedFd<'a>>;

    /// How many descriptors this process may have open; `None`: any number.
    fn descriptor_limit(&self) -> Option<u64>;

    /// Raises that limit: first to the hard limit, then (with privilege) to `wanted` or somewhat
    /// beyond the hard limit. The new limit, or `None` if it cannot be raised.
    fn raise_descriptors(&self, wanted: u64) -> Option<u64>;

    /// Makes room for this many more descriptors at once, because a table that grows while threads
    /// share it waits for all CPUs each time. Only makes things faster.
    fn reserve_descriptors(&self, _more: usize) {}

    /// The CPU on which each task ran last; `None` for one that is gone.
    fn last_cpus(&self, tasks: &[i32]) -> Vec<Option<u32>>;

    /// Binds the calling thread to one CPU; what it was bound to before, to be given to
    /// [`Kernel::unbind`].
    ///
    /// # Errors
    /// EINVAL if the CPU is offline, not permitted, or beyond the 1024th.
    fn bind(&self, cpu: u32) -> io::Result<Binding>;

    /// The CPUs on which the scheduler may run this task (0: the calling thread), ascending; empty
    /// if that is not known. Each of them is online.
    fn permitted_cpus(&self, _task: i32) -> Vec<u32> {
        Vec::new()
    }

    /// Lets the calling thread run again where it could before.
    fn unbind(&self, before: &Binding);
}
