//! The processes and threads whose end ends the counting.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Processes as files that become readable when the last of their threads has ended; threads by their ids.
pub(super) struct Watched(Vec<(i32, Option<OwnedFd>)>);

impl Watched {
    pub(super) fn new(ids: impl Iterator<Item = i32>) -> Watched {
        let each = ids.map(|id| {
            let fd = Pid::from_raw(id).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
            (id, fd)
        });
        Watched(each.collect())
    }

    /// What to poll.
    pub(super) fn alive(&self) -> Vec<BorrowedFd<'_>> {
        let alive = self.0.iter().filter(|one| !is_gone(one));
        alive.filter_map(|(_, fd)| fd.as_ref().map(AsFd::as_fd)).collect()
    }

    /// Whether one of them cannot be polled.
    pub(super) fn needs_looks(&self) -> bool {
        self.0.iter().any(|(_, fd)| fd.is_none())
    }

    /// Whether all have ended.
    pub(super) fn gone(&self) -> bool {
        !self.0.is_empty() && self.0.iter().all(is_gone)
    }
}

/// Whether it has ended, waited for by its parent or not. A process whose first thread has ended may go on.
fn is_gone((id, fd): &(i32, Option<OwnedFd>)) -> bool {
    if let Some(fd) = fd {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        return poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0);
    }
    let Ok(stat) = std::fs::read(format!("/proc/{id}/stat")) else { return true };
    let state = stat.iter().rposition(|&byte| byte == b')').and_then(|at| stat.get(at + 2).copied());
    matches!(state, Some(b'Z' | b'X') | None)
}
