//! Room for maps and programs before Linux 5.11, which charges their memory to what a user may
//! lock.
//!
//! The limit (RLIMIT_MEMLOCK) is often 64 KiB, and counts when something is made; what is made
//! keeps its room. So it is raised for the one call that was refused, and is the old one
//! afterwards: a command that kymo runs inherits no other limit than the one that kymo was started
//! with.
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;
use std::sync::{Mutex, PoisonError};

/// Limits belong to the whole process: one thread at a time changes them.
static CHANGING: Mutex<()> = Mutex::new(());

/// Makes a call, and once more with a higher limit if it was refused for want of permission.
pub(super) fn with_room<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let refused = match call() {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => error,
        result => return result,
    };
    let _changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(before) = raise() else { return Err(refused) };
    let result = call();
    if let Err(error) = setrlimit(Resource::Memlock, before) {
        tracing::warn!(%error, "the limit of locked memory stays raised");
    }
    result
}

/// Raises the limit as far as is permitted; what it was before, or `None` if it stays.
fn raise() -> Option<Rlimit> {
    let before = getrlimit(Resource::Memlock);
    before.current?;
    let none = Rlimit { current: None, maximum: None };
    let most = Rlimit { current: before.maximum, ..before };
    let raised = setrlimit(Resource::Memlock, none).is_ok()
        || before.current != before.maximum && setrlimit(Resource::Memlock, most).is_ok();
    raised.then_some(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a call which is refused is made once more under a higher limit, if this process
    /// may raise it, and that the limit is the old one after that, whatever came of it: programs
    /// that kymo runs inherit it.
    #[test]
    fn the_limit_is_the_old_one_afterwards() {
        let before = getrlimit(Resource::Memlock);
        for ends_well in [true, false] {
            let mut limits = Vec::new();
            let result = with_room(|| {
                limits.push(getrlimit(Resource::Memlock).current);
                match ends_well && limits.len() > 1 {
                    true => Ok(()),
                    false => Err(io::Error::from_raw_os_error(libc::EPERM)),
                }
            });
            assert_eq!(result.is_ok(), ends_well && limits.len() > 1);
            assert!(limits.len() < 2 || limits[1] != limits[0], "{limits:?}");
            let after = getrlimit(Resource::Memlock);
            assert_eq!((after.current, after.maximum), (before.current, before.maximum));
        }
        let mut calls = 0;
        let refused = with_room(|| -> io::Result<()> {
            calls += 1;
            Err(io::Error::from_raw_os_error(libc::EINVAL))
        });
        assert_eq!((calls, refused.unwrap_err().raw_os_error()), (1, Some(libc::EINVAL)));
    }
}
