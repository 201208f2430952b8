//! Empties a cgroup with its children, and removes cgroups that killed recorders left.
use super::find::directory_flags;
use super::{read_file, write_file};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, Dir, FlockOperation, Mode, OFlags, flock, fstat, openat, statat, unlinkat};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Processes that fork while they are moved need another round.
const ROUNDS: u32 = 40;
/// Who still forks after these is frozen for the rest.
const CALM_ROUNDS: u32 = 8;
/// Cgroups in cgroups that are followed.
const DEPTH: usize = 32;
/// Names that are looked at in one directory.
const NAMES: usize = 1 << 16;
/// How long tasks may take until they are frozen: on a busy machine each needs a CPU for it.
const FREEZING: Duration = Duration::from_secs(1);
/// How long tasks that are about to end are waited for.
const ENDING: Duration = Duration::from_millis(100);

/// Moves every process of `directory` (named `name` in `parent`) and below to `parent`, then
/// removes it with all cgroups in it. Returns how many moves it took. On an error the cgroup is
/// there and not frozen.
pub(super) fn leave(parent: BorrowedFd<'_>, directory: &OwnedFd, name: &str) -> Result<usize, String> {
    let mut moved = 0;
    let mut reason = String::from("processes in it fork faster than they can be moved");
    let mut frozen = false;
    for round in 0..ROUNDS {
        if round == CALM_ROUNDS && !frozen {
            freeze(directory);
            frozen = true;
        }
        let now = match empty(parent, directory.as_fd(), DEPTH) {
            Ok(now) => now,
            Err(error) => {
                reason = error;
                break;
            }
        };
        moved += now;
        match remove(parent, directory.as_fd(), name) {
            Ok(()) => return Ok(moved),
            Err(Errno::BUSY) if now > 0 => {}
            // No process that could be moved, yet populated: tasks on their way out, one that had
            // forked and ended before it was moved, or ones that we are not shown.
            Err(Errno::BUSY) if wait_for(directory.as_fd(), c"cgroup.events", "populated 0", ENDING) => {}
            Err(Errno::BUSY) if frozen => {
                reason =
                    String::from("it has processes that cannot be seen from here (another PID namespace?)");
                break;
            }
            Err(Errno::BUSY) => {
                freeze(directory);
                frozen = true;
            }
            Err(error) => {
                reason = io::Error::from(error).to_string();
                break;
            }
        }
    }
    let _ = write_file(directory.as_fd(), c"cgroup.freeze", "0");
    Err(reason)
}

/// Keeps those who fork from doing so while they are moved, and waits until they stand still. An
/// old hierarchy cannot, and stays at rounds.
fn freeze(directory: &OwnedFd) {
    if write_file(directory.as_fd(), c"cgroup.freeze", "1").is_ok() {
        let _ = wait_for(directory.as_fd(), c"cgroup.events", "frozen 1", FREEZING);
    }
}

/// Removes the empty cgroup `name`, if it is (still) the one that is open as `directory`.
fn remove(parent: BorrowedFd<'_>, directory: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
    let (ours, there) = (
        fstat(directory)?,
        match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(()),
            there => there?,
        },
    );
    if (ours.st_dev, ours.st_ino) != (there.st_dev, there.st_ino) {
        return Ok(());
    }
    match unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Err(Errno::NOENT) => Ok(()),
        result => result,
    }
}

/// One round: moves the processes to `into`, then removes the cgroups below, as far as they are
/// empty. Returns the number of moves.
fn empty(into: BorrowedFd<'_>, directory: BorrowedFd<'_>, depth: usize) -> Result<usize, String> {
    let mut moved = 0;
    for pid in processes(directory) {
        match write_file(into, c"cgroup.procs", &pid.to_string()) {
            Ok(()) => moved += 1,
            // It has ended.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            Err(error) => {
                return Err(format!("process {pid}, which is in it, cannot be moved out ({error})"));
            }
        }
    }
    if depth == 0 {
        return Ok(moved);
    }
    for name in directories(directory) {
        if let Ok(below) = openat(directory, &name, directory_flags(), Mode::empty()) {
            moved += empty(into, below.as_fd(), depth - 1)?;
            // One that is not empty yet waits for the next round.
            let _ = unlinkat(directory, &name, AtFlags::REMOVEDIR);
        }
    }
    Ok(moved)
}

/// The processes in a cgroup, without those below it. Never 0, which is how the kernel writes one
/// of another PID namespace, and which would move the writer.
pub(super) fn processes(directory: BorrowedFd<'_>) -> Vec<i32> {
    // A threaded cgroup answers EOPNOTSUPP; its processes are listed above it.
    let text = read_file(directory, c"cgroup.procs").unwrap_or_default();
    // A number that the limit on the text has cut is another one's.
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().filter_map(|line| line.parse().ok()).filter(|&pid| pid > 0).collect()
}

fn directories(directory: BorrowedFd<'_>) -> Vec<CString> {
    let Ok(entries) = Dir::read_from(directory) else { return Vec::new() };
    let entries = entries.take(NAMES).flatten().filter(|entry| entry.file_type().is_dir());
    let names = entries.map(|entry| entry.file_name().to_owned());
    names.filter(|name| !matches!(name.as_bytes(), b"." | b"..")).collect()
}

/// Waits until a line of a cgroup's file is `line`; the kernel announces changes of these files.
/// False if that takes too long.
pub(super) fn wait_for(directory: BorrowedFd<'_>, file: &CStr, line: &str, at_most: Duration) -> bool {
    let end = Instant::now() + at_most;
    let Ok(file) = openat(directory, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
        return false;
    };
    loop {
        let mut text = [0; 512];
        let read = rustix::io::retry_on_intr(|| rustix::io::pread(&file, &mut text, 0)).unwrap_or(0);
        if text[..read].split(|&byte| byte == b'\n').any(|found| found == line.as_bytes()) {
            return true;
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        let _ = poll(&mut [PollFd::new(&file, PollFlags::PRI)], Some(&timeout));
    }
}

/// The process id in a name of exactly our form, `kymo-PID-N`.
pub(super) fn owner(name: &[u8]) -> Option<i32> {
    let (pid, number) = std::str::from_utf8(name).ok()?.strip_prefix("kymo-")?.split_once('-')?;
    let (pid, number): (i32, u32) = (pid.parse().ok()?, number.parse().ok()?);
    // Rejects signs and leading zeros, which we do not write.
    (pid > 0 && format!("kymo-{pid}-{number}").as_bytes() == name).then_some(pid)
}

/// Removes the empty cgroups that dead kymos left in `parent`; a cgroup with processes is only
/// thawed, as nobody is left to do it. Returns how many were removed.
pub(super) fn remove_stale(parent: BorrowedFd<'_>) -> usize {
    let mut removed = 0;
    for name in directories(parent) {
        let Some(pid) = owner(name.as_bytes()).and_then(Pid::from_raw) else { continue };
        // Any other answer means that somebody is there.
        if test_kill_process(pid) != Err(Errno::SRCH) {
            continue;
        }
        let Ok(directory) = openat(parent, &name, directory_flags(), Mode::empty()) else { continue };
        // The living hold it, in other PID namespaces, too, where their number says nothing.
        if flock(&directory, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue;
        }
        if unlinkat(parent, &name, AtFlags::REMOVEDIR).is_ok() {
            removed += 1;
        } else if read_file(directory.as_fd(), c"cgroup.freeze").is_ok_and(|text| text.trim() == "1") {
            let _ = write_file(directory.as_fd(), c"cgroup.freeze", "0");
        }
    }
    removed
}
