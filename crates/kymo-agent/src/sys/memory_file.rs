//! Files in memory, and the end of the process.
#![allow(unsafe_code)]
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::FromRawFd;
#[cfg(target_arch = "x86_64")]
use std::os::fd::{AsRawFd, OwnedFd};

/// A file without a place on a disk, which others find by its name in `/proc/PID/fd`. Only its
/// owner may open it.
pub(crate) fn create(name: &CStr) -> io::Result<File> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // A system call, because the C library has a function for it only since glibc 2.27.
    // SAFETY: a C string and flags.
    let fd = unsafe { libc::syscall(libc::SYS_memfd_create, name.as_ptr(), flags) } as i32;
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else has.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    Ok(file)
}

/// Whether a file that another process has made is memory of at least this length which stays so:
/// nobody who maps it is killed when it gets shorter.
#[cfg(target_arch = "x86_64")]
pub(crate) fn check(file: &File, bytes: u64) -> io::Result<()> {
    // SAFETY: a descriptor of ours and a number. Of files that are no memory it fails.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
        return Err(io::Error::other("the tracer's file is not memory that keeps its length"));
    }
    if file.metadata()?.len() < bytes {
        return Err(io::Error::other("the tracer's file is too short"));
    }
    Ok(())
}

/// The same file by a number that no program counts on; as it is where there is none.
#[cfg(target_arch = "x86_64")]
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

/// Has `what` called when the process ends by itself.
pub(crate) fn at_exit(what: extern "C" fn()) -> bool {
    // SAFETY: a function that lives as long as this code, which is never unloaded while it counts.
    unsafe { libc::atexit(what) == 0 }
}
