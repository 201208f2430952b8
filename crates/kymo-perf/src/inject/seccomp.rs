//! Programs that restrict their own system calls (seccomp): whether a thread does, and the agent's
//! thread in one that does.
//!
//! A filter can end the program for a call that it does not list. So no thread with one is
//! borrowed, and the agent's thread is not spoken to any more if a filter holds for it, which the
//! program has put on all of its threads.
use super::refusal::EnterError;
use crate::proc::{self, field};

/// As the agent names its thread.
const AGENT: &str = "kymo-agent";

/// How the status of a thread says that its system calls are restricted: 1 strict, 2 a filter.
pub(super) fn mode(status: &str) -> Option<i32> {
    field(status, "Seccomp").and_then(|mode| mode.parse().ok()).filter(|mode| *mode != 0)
}

fn thread_mode(tid: i32) -> Option<i32> {
    mode(&proc::text(format!("/proc/{tid}/status")).unwrap_or_default())
}

/// Whether the system calls of this thread are restricted.
pub(super) fn is_filtered(tid: i32) -> bool {
    thread_mode(tid).is_some()
}

/// Looks whether system calls of any thread of the process are restricted.
///
/// # Errors
/// [`EnterError::Seccomp`] if they are.
pub(super) fn check_threads(pid: i32) -> Result<(), EnterError> {
    let tasks = proc::tasks(pid).map_err(|_| EnterError::Gone)?;
    let found = tasks.into_iter().find_map(thread_mode);
    found.map_or(Ok(()), |mode| Err(EnterError::Seccomp(mode)))
}

/// The agent's thread of a process.
pub(super) fn agent_thread(pid: i32) -> Option<i32> {
    let is_agent = |tid: &i32| {
        let name = proc::text(format!("/proc/{pid}/task/{tid}/comm"));
        name.is_ok_and(|name| name.trim_end() == AGENT)
    };
    // It is one of the last threads that were made, as a rule.
    proc::tasks(pid).ok()?.into_iter().rev().find(is_agent)
}

/// The same of the status's bytes, or of their beginning. Calls no library and allocates nothing.
pub(super) fn is_restricted(status: &[u8]) -> bool {
    const FIELD: &[u8] = b"\nSeccomp:\t";
    let at = status.windows(FIELD.len()).position(|part| part == FIELD);
    at.and_then(|at| status.get(at + FIELD.len())).is_some_and(|mode| *mode != b'0')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that modes are known from the kernel's own text.
    #[test]
    fn modes() {
        assert_eq!(mode("Name:\tx\nSeccomp:\t0\nSeccomp_filters:\t0\n"), None);
        assert_eq!(mode("Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t1\n"), Some(2));
        assert_eq!(mode(""), None);
        assert!(is_restricted(b"Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t1\n"));
        for free in [&b"Name:\tx\nSeccomp:\t0\nSeccomp_filters:\t0\n"[..], b"Name:\tx\nSeccomp:\t", b""] {
            assert!(!is_restricted(free));
        }
        assert!(check_threads(std::process::id() as i32).is_ok() || is_filtered(std::process::id() as i32));
        assert_eq!(agent_thread(std::process::id() as i32), None);
    }
}
