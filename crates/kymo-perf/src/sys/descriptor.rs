//! An open event, and the target of an open: task, CPU, group.
use super::ANY;
use std::os::fd::{BorrowedFd, RawFd};

/// An open event of one [`super::Kernel`]: owned like an `OwnedFd`, but closed only by
/// [`super::Kernel::close`], so that thousands can be closed in one call and scripted kernels can
/// hand out numbers with no file behind them. Dropping it leaks it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Descriptor(RawFd);

impl Descriptor {
    /// Takes over a number that the kernel has just handed out.
    pub(crate) fn new(number: RawFd) -> Descriptor {
        Descriptor(number)
    }

    /// The descriptor's number.
    pub(crate) fn number(&self) -> i32 {
        self.0
    }
}

/// Where one event is opened.
#[derive(Clone, Copy, Debug)]
pub struct EventTarget<'a> {
    /// The thread, 0 for the calling one, or [`ANY`].
    pub task: i32,
    /// The CPU, or [`ANY`].
    pub cpu: i32,
    /// The leader of the group that it joins.
    pub group: Option<&'a Descriptor>,
    /// The directory of a cgroup: its tasks are observed, and `task` is ignored. Needs a CPU.
    pub cgroup: Option<BorrowedFd<'a>>,
    /// Whether it closes on exec; off only for kernels that do not know it.
    pub cloexec: bool,
    /// Whether the call is finished although this process is killed meanwhile: for uprobes, of
    /// which traps would stay in programs. The event has no owner then: it is not among those of
    /// [`super::Kernel::switch_own`].
    pub to_its_end: bool,
}

impl EventTarget<'_> {
    /// A task (or [`ANY`]) on a CPU (or [`ANY`]), in no group, closed on exec.
    pub fn new(task: i32, cpu: i32) -> EventTarget<'static> {
        EventTarget { task, cpu, group: None, cgroup: None, cloexec: true, to_its_end: false }
    }

    /// All tasks of one CPU.
    pub fn cpu(cpu: i32) -> EventTarget<'static> {
        EventTarget::new(ANY, cpu)
    }
}
