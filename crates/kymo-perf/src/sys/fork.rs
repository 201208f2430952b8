//! Forks a copy of this process that does one thing and exits.
//!
//! # Safety
//! fork: in the child only the calling thread lives on, so a lock that another thread held stays
//! locked. Refused while there are other threads; the child never returns into its parent's code.
#![allow(unsafe_code, reason = "fork, and the end of the child")]
use crate::workload::Exit;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, set_parent_process_death_signal, waitpid};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A child that [`fork`] made; it is killed when this is dropped before it was waited for.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    ended: bool,
}

/// Runs `body` in a copy of this process, which ends with the code that it returns (101 if it
/// panics). The copy shares open files, and dies with its parent; nothing of the parent's runs at
/// its end: no destructor, no exit handler, no flush.
///
/// # Errors
/// EBUSY while this process has other threads; what `fork(2)` says (EAGAIN: too many processes).
pub fn fork(body: impl FnOnce() -> u8) -> io::Result<Child> {
    if std::fs::read_dir("/proc/self/task")?.nth(1).is_some() {
        return Err(io::Error::from_raw_os_error(libc::EBUSY));
    }
    let parent = rustix::process::getpid();
    // SAFETY: this thread is the only one, so the child has all of the process and no lock is held
    // by somebody who is not in it.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let died = set_parent_process_death_signal(Some(Signal::KILL));
        // Gone before that was asked for.
        let orphan = rustix::process::getppid() != Some(parent);
        let code =
            if died.is_err() || orphan { 101 } else { catch_unwind(AssertUnwindSafe(body)).unwrap_or(101) };
        // SAFETY: ends this process; has no precondition.
        unsafe { libc::_exit(code.into()) };
    }
    let pid = Pid::from_raw(pid.max(0)).ok_or_else(io::Error::last_os_error)?;
    Ok(Child { pid, ended: false })
}

impl Child {
    /// Waits for the child's end.
    ///
    /// # Errors
    /// ECHILD if someone else has reaped it.
    pub fn wait(mut self) -> io::Result<Exit> {
        self.reap()
    }

    fn reap(&mut self) -> io::Result<Exit> {
        // Whatever waitpid says, there is nothing left to kill.
        self.ended = true;
        let found = rustix::io::retry_on_intr(|| waitpid(Some(self.pid), WaitOptions::empty()))?;
        let status = found.map(|(_, status)| status);
        let code = status.and_then(|status| status.exit_status()).map(Exit::Code);
        code.or(status.and_then(|status| status.terminating_signal()).map(Exit::Signal))
            .ok_or_else(|| io::Error::from_raw_os_error(libc::ECHILD))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.ended {
            let _ = kill_process(self.pid, Signal::KILL);
            let _ = self.reap();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::fork;

    /// Checks that a process with several threads, as every test is, is not copied.
    #[test]
    fn threads_refuse() {
        let other = std::thread::spawn(std::thread::park);
        let error = fork(|| 0).expect_err("there are two threads");
        assert_eq!(error.raw_os_error(), Some(libc::EBUSY));
        other.thread().unpark();
        other.join().expect("it only waits");
    }
}
