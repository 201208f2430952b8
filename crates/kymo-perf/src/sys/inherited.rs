//! Descriptors that this process inherited, named by their numbers.
//!
//! # Safety
//! A number from a command line may name anything: it is never adopted, only duplicated, so whoever
//! else uses it keeps it.
#![allow(unsafe_code, reason = "duplicates a descriptor that is known by its number only")]
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// An own copy of descriptor `number`, closed on exec. Call it before anything else is opened: a
/// number that the parent did not pass may name a file of ours a moment later.
///
/// # Errors
/// EBADF if there is no such descriptor, EMFILE if no more may be opened.
pub fn inherited(number: i32) -> io::Result<OwnedFd> {
    // SAFETY: no pointer argument; a number that is not open gives EBADF.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us; nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

#[cfg(test)]
mod tests {
    use super::inherited;
    use std::os::fd::AsRawFd;

    /// Checks that the copy is another descriptor of the same file, and that a number without a
    /// file is refused.
    #[test]
    fn copies_and_refusals() {
        let file = tempfile::tempfile().unwrap();
        let copy = inherited(file.as_raw_fd()).unwrap();
        assert_ne!(copy.as_raw_fd(), file.as_raw_fd());
        rustix::io::write(&copy, b"x").unwrap();
        assert_eq!(file.metadata().unwrap().len(), 1);
        for number in [-1, i32::MAX] {
            assert_eq!(inherited(number).unwrap_err().raw_os_error(), Some(libc::EBADF));
        }
    }
}
