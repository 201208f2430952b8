//! Why a cgroup could not be made.
use std::io;
use std::path::PathBuf;

/// Why a cgroup of one's own cannot be had, used or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CgroupError {
    /// `/proc/self/cgroup` or `/proc/self/mountinfo` is not there, or names no usable hierarchy.
    #[error(
        "no cgroup hierarchy for events is mounted here; `mount -t cgroup2 none /sys/fs/cgroup` mounts one, or record with another --scope"
    )]
    NotMounted,
    /// The kernel was started or built without events for cgroups.
    #[error(
        "this kernel does not count events by cgroup (perf_event is disabled in /proc/cgroups); record with another --scope"
    )]
    NoController,
    /// The kernel has no place for events in this cgroup yet.
    #[error(
        "this kernel refuses events of the cgroup {}: it makes none for cgroups below its first one before controllers were \
         switched on for them; `echo +pids | sudo tee {}/cgroup.subtree_control` does it once, or use another --scope",
        .path.display(), .mount.display()
    )]
    NoEvents {
        /// The cgroup.
        path: PathBuf,
        /// Where the hierarchy is mounted.
        mount: PathBuf,
    },
    /// Mounts exist, but none of them shows the cgroup that this process is in, which
    /// `/proc/self/cgroup` has as this.
    #[error(
        "this process is in the cgroup {0}, which no mount of the hierarchy shows (a container that sees only a part of it?); \
         record with another --scope"
    )]
    NotVisible(String),
    /// The hierarchy with our own cgroup is mounted for reading only, as most containers have it.
    #[error(
        "cannot make a cgroup in {}: it is mounted read-only; run outside of the container, or mount it writable, or record with \
         another --scope", .0.display()
    )]
    ReadOnly(PathBuf),
    /// This user may not make cgroups here.
    #[error(
        "cannot {what} in {}: permission denied; run as root, or in a cgroup that is delegated to you: \
         `systemd-run --user --scope -p Delegate=yes kymo ...`, or record with another --scope", path.display()
    )]
    NotPermitted {
        /// What was tried.
        what: &'static str,
        /// The cgroup.
        path: PathBuf,
    },
    /// Our own cgroup holds threads, not processes, and cgroups of processes cannot be made in it.
    #[error(
        "cannot make a cgroup for a command in {}: that is a threaded cgroup (cgroup.type: {kind}); start kymo from another cgroup, \
         or record with another --scope", path.display()
    )]
    Threaded {
        /// Our own cgroup.
        path: PathBuf,
        /// What `cgroup.type` says.
        kind: String,
    },
    /// A limit on the number or the depth of cgroups is reached, in our own cgroup or above it.
    #[error(
        "cannot make a cgroup in {}: a limit is reached (cgroup.max.descendants or cgroup.max.depth of it or of one above); raise \
         it, or record with another --scope", .0.display()
    )]
    Limit(PathBuf),
    /// Processes or cgroups are left in it and cannot be moved out.
    #[error(
        "the cgroup {} stays: {reason}; it can be removed with rmdir when it has no processes any more", path.display()
    )]
    Stays {
        /// The cgroup that was ours.
        path: PathBuf,
        /// What stands in the way.
        reason: String,
    },
    /// Anything else.
    #[error("cannot {what} {}: {source}", path.display())]
    System {
        /// What was tried.
        what: &'static str,
        /// On which cgroup or file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

impl CgroupError {
    /// The kernel's refusal as words; `path` is our own cgroup.
    pub(super) fn new(what: &'static str, path: PathBuf, source: io::Error) -> CgroupError {
        match source.raw_os_error() {
            Some(libc::EROFS) => CgroupError::ReadOnly(path),
            Some(libc::EACCES | libc::EPERM) => CgroupError::NotPermitted { what, path },
            Some(libc::EAGAIN) => CgroupError::Limit(path),
            _ => CgroupError::System { what, path, source },
        }
    }
}
