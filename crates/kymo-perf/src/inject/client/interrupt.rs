//! The user's wish that attaching ends.
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

/// Readable when the user wants us to end.
pub(super) static INTERRUPT: OnceLock<OwnedFd> = OnceLock::new();

/// From now on no agent is waited for any more, nor the kernel for more probes, while probes are
/// put in place, once this is readable: a signal of the user's. Once in a process.
pub fn interrupt_by(readable: OwnedFd) {
    _ = INTERRUPT.set(readable);
}

/// Whether the user has signalled that we are to end, since [`interrupt_by`].
pub(crate) fn is_interrupted() -> bool {
    INTERRUPT.get().is_some_and(|signals| {
        let mut signals = [PollFd::new(signals, PollFlags::IN)];
        matches!(poll(&mut signals, Some(&rustix::event::Timespec::default())), Ok(1..))
    })
}
