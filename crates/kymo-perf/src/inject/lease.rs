//! A pipe whose writing end only the tracing thread holds: its closing tells the agent at once that
//! the threads of its process run again.
//!
//! When a process is killed its threads end one by one, and its descriptors last as long as the
//! last of them. The kernel lets the held threads go when the thread that traces them ends. So that
//! thread has a table of descriptors of its own, from which the pipe goes before the kernel comes
//! to what the thread has traced.
use super::connection::send_with;
use crate::sys::ptrace::own_descriptors;
use kymo_core::probe::wire::Command;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use std::os::fd::{AsFd, OwnedFd};

/// The thread that made it traces until it ends or drops this.
#[derive(Debug)]
pub(super) struct Lease {
    reading: OwnedFd,
    _writing: OwnedFd,
}

impl Lease {
    /// Gives the calling thread descriptors of its own, and makes the pipe. What other threads open
    /// or close from then on this one does not see, nor they what it does: it should end soon.
    ///
    /// # Errors
    /// What the kernel says.
    pub(super) fn new() -> Result<Lease, Errno> {
        own_descriptors()?;
        let (reading, writing) = pipe_with(PipeFlags::CLOEXEC)?;
        Ok(Lease { reading, _writing: writing })
    }

    /// Says to the agent that its threads are held, and by whom.
    ///
    /// # Errors
    /// What the kernel says; it does not wait.
    pub(super) fn say_held(&self, socket: &OwnedFd) -> Result<(), Errno> {
        send_with(socket, &Command::Held.encode(), self.reading.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::os::fd::AsRawFd;
    use std::sync::mpsc::channel;

    /// Checks that the pipe ends with the thread that made it, while the process and its other
    /// threads live.
    #[test]
    fn ends_with_its_thread() {
        let (tell, told) = channel();
        let (end, ends) = channel::<()>();
        let holder = std::thread::spawn(move || {
            let lease = match Lease::new() {
                Ok(lease) => lease,
                Err(error) => return drop(tell.send(Err(error))),
            };
            // Its number means nothing to other threads.
            let tid = rustix::thread::gettid().as_raw_nonzero();
            tell.send(Ok(format!("/proc/self/task/{tid}/fd/{}", lease.reading.as_raw_fd())))
                .expect("they listen");
            _ = ends.recv();
            // As a thread that is killed.
            std::mem::forget(lease);
        });
        let path = match told.recv().unwrap() {
            Ok(path) => path,
            Err(error) => return kymo_testing::skip("inject::lease::ends_with_its_thread", error),
        };
        let reading = std::fs::File::open(path).unwrap();
        let hung_up = |seconds| {
            let mut ends = [PollFd::new(&reading, PollFlags::IN)];
            poll(&mut ends, Some(&Timespec { tv_sec: seconds, tv_nsec: 0 })) != Ok(0)
        };
        assert!(!hung_up(0));
        drop(end);
        holder.join().unwrap();
        // The kernel tells of a thread's end before it closes what the thread had.
        assert!(hung_up(20));
    }
}
