//! Files in memory, pipes, and the end of the process.
#![allow(unsafe_code)]
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A file without a place on a disk, which others find by its name in `/proc/PID/fd`. Only its owner may open it.
pub(crate) fn create(name: &CStr) -> io::Result<File> {
    // SAFETY: a C string and flags.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else has.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    Ok(file)
}

/// Makes the file keep its length for good.
pub(crate) fn seal(file: &File) -> io::Result<()> {
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: a descriptor of ours and a number.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The same file by a number that no program counts on; as it is where there is none.
pub(crate) fn out_of_the_way(file: OwnedFd) -> OwnedFd {
    // The usual limit is 1024.
    for lowest in [900, 200] {
        // SAFETY: a descriptor of ours and a number.
        let fd = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, lowest) };
        if fd >= 0 {
            // SAFETY: a new descriptor that nobody else has.
            return unsafe { OwnedFd::from_raw_fd(fd) };
        }
    }
    file
}

/// The length that a file of this process may have, in bytes.
pub(crate) fn longest() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes our own structure.
    if unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } != 0 {
        return u64::MAX;
    }
    limit.rlim_cur
}

/// Both ends of a pipe, the reading one first.
pub(crate) fn pipe() -> io::Result<(File, File)> {
    let mut ends = [-1; 2];
    // SAFETY: writes two descriptors into our array.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else has.
    let reading = unsafe { File::from_raw_fd(ends[0]) };
    // SAFETY: likewise.
    let writing = unsafe { File::from_raw_fd(ends[1]) };
    Ok((reading, writing))
}

/// Has `what` called when the process ends by itself.
pub(crate) fn at_exit(what: extern "C" fn()) -> bool {
    // SAFETY: a function that lives as long as this code, which is never unloaded while it counts.
    unsafe { libc::atexit(what) == 0 }
}
