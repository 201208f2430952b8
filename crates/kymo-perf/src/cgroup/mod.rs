//! A cgroup for one observed command. Events of it (`PERF_FLAG_PID_CGROUP`, one per event and CPU)
//! count the command and all its descendants, and cost nothing when a thread is created.
//!
//! *You give it* nothing, then the waiting command's process id; *it gives you* the directory that
//! `perf_event_open` takes in place of a process, and at the end it cleans up.
//!
//! ```text
//!  our cgroup  <-----------------------------+  5 remove: who is left (a daemon) moves back, then rmdir
//!  `-- kymo-PID-N   1 create                 |
//!        ^  ^---- 2 events on every CPU      |
//!        '------- 3 add(pid), 4 start -------+
//! ```
//!
//! It is a child of our own cgroup, so that the limits of ours hold on. No controller is switched
//! on in it.
//!
//! # Invariants
//! - I1: Nothing but directories named `kymo-PID-N` is made or removed in our cgroup, by name
//!   relative to an open directory, never through a link.
//! - I2: A cgroup with a process in it is not removed, and no process is killed.
//! - I3: What a killed kymo leaves behind, the next one removes: the living hold a lock on their
//!   directory.
mod error;
mod find;
mod leave;
mod list;
mod memory;
#[cfg(test)]
mod tests;

use crate::sys::{EventTarget, Kernel, Perf, attr_zeroed, online_cpus};
pub use error::CgroupError;
pub(crate) use find::unescaped;
use find::{Membership, Mount, directory_flags};
pub use list::{ListedCgroup, all};
pub use memory::memory_limit;
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, flock, mkdirat, openat, unlinkat};
use rustix::io::Errno;
use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Names that are tried when other kymos of the same number (in other PID namespaces) have taken
/// some.
const NAMES: u32 = 1000;

/// A cgroup that this process has made for a command. Dropping it does as [`OwnCgroup::remove`],
/// with a warning instead of an error.
#[derive(Debug)]
pub struct OwnCgroup {
    parent: Parent,
    directory: Arc<OwnedFd>,
    name: String,
    path: PathBuf,
    left: bool,
}

/// What became of the cgroup's processes at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// Processes that the command had left running and that are in our own cgroup now.
    pub moved: usize,
}

/// Our own cgroup.
#[derive(Debug)]
struct Parent {
    directory: OwnedFd,
    path: PathBuf,
}

impl Parent {
    fn find() -> Result<Parent, CgroupError> {
        let (own, mounts) = hierarchy()?;
        // Gone in kernels without old hierarchies, which says nothing.
        if find::text("/proc/cgroups").is_ok_and(|text| disabled(&text)) {
            return Err(CgroupError::NoController);
        }
        if mounts.is_empty() {
            return Err(CgroupError::NotMounted);
        }
        let mut error = None;
        for mount in &mounts {
            let Some(names) = find::below(&mount.root, &own.path) else { continue };
            let path = find::shown(&mount.point, &names);
            match find::open(mount, &names) {
                Ok(directory) => return Ok(Parent { directory, path }),
                Err(source) => {
                    error.get_or_insert(CgroupError::new("open our own cgroup", path, source));
                }
            }
        }
        let own = String::from_utf8_lossy(&own.path).into_owned();
        Err(error.unwrap_or(CgroupError::NotVisible(own)))
    }
}

/// This process's cgroup in the hierarchy for events, and where that is mounted.
fn hierarchy() -> Result<(Membership, Vec<Mount>), CgroupError> {
    let text = |path| find::text(path).map_err(|_| CgroupError::NotMounted);
    let own = find::membership(&text("/proc/self/cgroup")?).ok_or(CgroupError::NotMounted)?;
    let mounts = find::mounts(&text("/proc/self/mountinfo")?, own.kind);
    Ok((own, mounts))
}

/// Whether `/proc/cgroups` says that the controller `perf_event` is switched off.
fn disabled(text: &[u8]) -> bool {
    let lines = text.split(|&byte| byte == b'\n');
    let mut fields = lines.map(|line| line.split(|&byte| byte == b'\t'));
    fields.any(|mut fields| fields.next() == Some(b"perf_event") && fields.next_back() == Some(b"0"))
}

/// Opens a cgroup that exists: by its path below the place where the hierarchy for events is
/// mounted, as perf names it, or by a path in the file system. Where it is, and its directory for
/// events.
///
/// # Errors
/// That there is no such cgroup, or no hierarchy.
pub fn existing(name: &str) -> Result<(PathBuf, Arc<OwnedFd>), CgroupError> {
    let (_, mounts) = hierarchy()?;
    let first = mounts.first().ok_or(CgroupError::NotMounted)?;
    let below = mounts.iter().map(|mount| mount.point.join(name.trim_start_matches('/')));
    let given =
        Some(PathBuf::from(name)).filter(|path| mounts.iter().any(|mount| path.starts_with(&mount.point)));
    let mut refusal = None;
    for path in given.into_iter().chain(below) {
        match openat(CWD, &path, directory_flags(), Mode::empty()) {
            Ok(directory) => return Ok((path, Arc::new(directory))),
            Err(source) => _ = refusal.get_or_insert((path, source)),
        }
    }
    let (path, source) = refusal.unwrap_or((first.point.join(name), Errno::NOENT));
    Err(CgroupError::System { what: "open the cgroup", path, source: source.into() })
}

impl OwnCgroup {
    /// Makes an empty cgroup `kymo-PID-N` in the cgroup of this process. What killed kymos left
    /// there is removed first.
    ///
    /// # Errors
    /// Why there cannot be one, in words: [`CgroupError`].
    pub fn create() -> Result<OwnCgroup, CgroupError> {
        OwnCgroup::create_in(Parent::find()?)
    }

    fn create_in(parent: Parent) -> Result<OwnCgroup, CgroupError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        leave::remove_stale(parent.directory.as_fd());
        // The top has no such file, nor has an old hierarchy.
        if let Ok(kind) = read_file(parent.directory.as_fd(), c"cgroup.type")
            && kind.trim() != "domain"
        {
            return Err(CgroupError::Threaded { path: parent.path, kind: kind.trim().to_owned() });
        }
        for _ in 0..NAMES {
            let name = format!("kymo-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            match mkdirat(&parent.directory, &name, Mode::from_raw_mode(0o755)) {
                Err(Errno::EXIST) => continue,
                Err(error) => return Err(CgroupError::new("make a cgroup", parent.path, error.into())),
                Ok(()) => {}
            }
            let path = parent.path.join(&name);
            let opened = openat(&parent.directory, &name, directory_flags(), Mode::empty());
            return match opened {
                Ok(directory) => {
                    // Tells other kymos that the owner lives (I3); without it they go by the
                    // process id.
                    let _ = flock(&directory, FlockOperation::NonBlockingLockShared);
                    Ok(OwnCgroup { parent, directory: Arc::new(directory), name, path, left: false })
                }
                Err(error) => {
                    let _ = unlinkat(&parent.directory, &name, AtFlags::REMOVEDIR);
                    Err(CgroupError::new("open the cgroup", path, error.into()))
                }
            };
        }
        Err(CgroupError::new("make a cgroup", parent.path, Errno::EXIST.into()))
    }

    /// The open directory, as `perf_event_open` takes it; events that are open on it do not need it
    /// any more.
    pub fn fd(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.directory)
    }

    /// Whether the kernel opens events of it, by trying.
    ///
    /// # Errors
    /// As [`takes_events`].
    pub fn takes_events(&self, kernel: &dyn Kernel) -> Result<(), CgroupError> {
        takes_events(kernel, &self.path, self.directory.as_fd())
    }

    /// Where it is in the file system, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Moves a process into it, with all its threads: the command, while it waits to be executed.
    ///
    /// # Errors
    /// If there is no such process, or this user may not move it.
    pub fn add(&self, pid: i32) -> Result<(), CgroupError> {
        // 0 means the writer to the kernel.
        let result = match pid {
            1.. => write_file(self.directory.as_fd(), c"cgroup.procs", &pid.to_string()),
            _ => Err(Errno::SRCH.into()),
        };
        result
            .map_err(|source| CgroupError::new("move the command into the cgroup", self.path.clone(), source))
    }

    /// Switches the kernel's accounting of waiting in it (`cpu.pressure` and its like) off or on
    /// again; it costs 1 % of a context switch. Whether that is how it is now: kernels before 6.1
    /// keep it on.
    pub fn account_pressure(&self, on: bool) -> bool {
        write_file(self.directory.as_fd(), c"cgroup.pressure", if on { "1" } else { "0" }).is_ok() || on
    }

    /// The processes that are in it, without those in cgroups that the command made.
    pub fn processes(&self) -> Vec<i32> {
        leave::processes(self.directory.as_fd())
    }

    /// Stops every process in it, now and to come, and waits until they stand still, but no longer
    /// than `at_most`. Says whether they do; if not, they will soon.
    ///
    /// # Errors
    /// If the kernel cannot: before Linux 5.2, and in an old hierarchy.
    pub fn freeze(&self, at_most: Duration) -> Result<bool, CgroupError> {
        self.set_freeze("1")?;
        Ok(leave::wait_for(self.directory.as_fd(), c"cgroup.events", "frozen 1", at_most))
    }

    /// Lets them run again; no matter if they were not stopped.
    ///
    /// # Errors
    /// As [`OwnCgroup::freeze`].
    pub fn thaw(&self) -> Result<(), CgroupError> {
        self.set_freeze("0")
    }

    fn set_freeze(&self, value: &str) -> Result<(), CgroupError> {
        let what = if value == "1" { "stop the processes of" } else { "resume the processes of" };
        write_file(self.directory.as_fd(), c"cgroup.freeze", value).map_err(|source| CgroupError::System {
            what,
            path: self.path.clone(),
            source,
        })
    }

    /// Removes it. Processes that the command has left running, in cgroups that it made, too, go
    /// back to our own cgroup; they are neither killed nor left frozen.
    ///
    /// # Errors
    /// [`CgroupError::Stays`] if processes cannot be moved out; they run on in it.
    pub fn remove(mut self) -> Result<Leaving, CgroupError> {
        self.leave()
    }

    fn leave(&mut self) -> Result<Leaving, CgroupError> {
        if std::mem::replace(&mut self.left, true) {
            return Ok(Leaving { moved: 0 });
        }
        match leave::leave(self.parent.directory.as_fd(), &self.directory, &self.name) {
            Ok(moved) => Ok(Leaving { moved }),
            Err(reason) => Err(CgroupError::Stays { path: self.path.clone(), reason }),
        }
    }
}

impl Drop for OwnCgroup {
    fn drop(&mut self) {
        if let Err(error) = self.leave() {
            tracing::warn!("{error}");
        }
    }
}

/// Whether the kernel opens events of the cgroup with this directory, by trying. Where no program
/// (as systemd does) has switched a controller on, cgroups lack the part that events are bound to,
/// and every event of them is refused with ENOENT, as an event that does not exist is.
///
/// # Errors
/// [`CgroupError::NoEvents`]. Other refusals are left to the events themselves.
pub fn takes_events(kernel: &dyn Kernel, path: &Path, directory: BorrowedFd<'_>) -> Result<(), CgroupError> {
    let mut attr = attr_zeroed();
    (attr.type_, attr.config) = (Perf::SOFTWARE, Perf::SW_DUMMY);
    attr.set_disabled(1);
    let cpu = online_cpus().first().map_or(0, |&cpu| cpu as i32);
    let place = EventTarget { cgroup: Some(directory), ..EventTarget::cpu(cpu) };
    match kernel.open(&attr, &place) {
        Ok(event) => kernel.close(vec![event]),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
            let mount = hierarchy().ok().and_then(|(_, mounts)| Some(mounts.first()?.point.clone()));
            let mount = mount.unwrap_or_else(|| PathBuf::from("/sys/fs/cgroup"));
            return Err(CgroupError::NoEvents { path: path.to_owned(), mount });
        }
        Err(_) => {}
    }
    Ok(())
}

/// Whether a command could have a cgroup with events here, by making one and removing it again.
///
/// # Errors
/// Why not.
pub fn try_one(kernel: &dyn Kernel) -> Result<(), CgroupError> {
    let cgroup = OwnCgroup::create()?;
    let takes = cgroup.takes_events(kernel);
    cgroup.remove().map(drop).and(takes)
}

/// Whether cgroups could be made here, without making one: for reports of what this machine
/// permits.
///
/// # Errors
/// Why not.
pub fn available() -> Result<PathBuf, CgroupError> {
    let parent = Parent::find()?;
    let access = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    let permitted = rustix::fs::accessat(&parent.directory, c".", access, AtFlags::EACCESS);
    permitted.map_err(|error| CgroupError::new("make a cgroup", parent.path.clone(), error.into()))?;
    Ok(parent.path)
}

/// Reads one of the kernel's files in a cgroup, at most 1 MiB of it.
fn read_file(directory: BorrowedFd<'_>, name: &CStr) -> io::Result<String> {
    let file = openat(directory, name, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = String::new();
    File::from(file).take(1 << 20).read_to_string(&mut text)?;
    Ok(text)
}

fn write_file(directory: BorrowedFd<'_>, name: &CStr, value: &str) -> io::Result<()> {
    let file = openat(directory, name, OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::retry_on_intr(|| rustix::io::write(&file, value.as_bytes()))?;
    Ok(())
}
