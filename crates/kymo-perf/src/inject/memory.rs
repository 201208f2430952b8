//! Memory that is shared with the agent: files that this process makes, so that nothing about them
//! needs to be believed.
use rustix::fs::{MemfdFlags, Mode, SealFlags, fchmod, fcntl_add_seals, ftruncate, memfd_create};
use rustix::process::{Resource, getrlimit};
use std::io;
use std::os::fd::OwnedFd;

/// A file in memory that keeps its length: nobody who maps it is killed because it got shorter.
/// Only its owner and root may open it anew.
pub(super) fn create(name: &str, bytes: u64) -> io::Result<OwnedFd> {
    // The kernel sends a signal to who exceeds it, also for files in memory.
    if getrlimit(Resource::Fsize).current.is_some_and(|most| most < bytes) {
        return Err(io::Error::other("the limit on the size of files (ulimit -f) leaves no room for it"));
    }
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    fchmod(&file, Mode::from_raw_mode(0o600))?;
    ftruncate(&file, bytes)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}
