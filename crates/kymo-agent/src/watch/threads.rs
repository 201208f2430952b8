//! A slot of the processor for every thread of this process: those that exist, and by inheritance
//! those to come.
//!
//! A thread that is made meanwhile may have inherited the slot or not: it depends on whether its
//! maker had it at that instant. It would have it twice if it were given it blindly. So a thread
//! that appears is asked how many slots it has left: one with the slot has as many as the calling
//! thread, which certainly has it; one without has one more.
use super::error::Error;
use super::slot::SLOTS;
use crate::sys::clock;
use crate::sys::watchpoint::{Watchpoint, free_slots, raise_descriptors};
use std::collections::HashSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, Ordering};

fn list() -> Result<Vec<i32>, Error> {
    let failed =
        |source| Error::System { what: "list the threads of this process in /proc/self/task", source };
    let mut threads = Vec::new();
    for entry in std::fs::read_dir("/proc/self/task").map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        threads.extend(name.to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    Ok(threads)
}

/// What threads did since this was last asked, as far as that can be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Others {
    /// There is no thread but this one.
    None,
    /// The same as the last time.
    Same,
    /// Some have come or gone.
    Changed,
}

pub(super) fn others() -> Others {
    static LAST: AtomicU64 = AtomicU64::new(0);
    /// The folder itself, its parent's entry, and one for each thread.
    const ALONE: u64 = 3;
    if std::fs::metadata("/proc/self/task").is_ok_and(|folder| folder.nlink() == ALONE) {
        return Others::None;
    }
    let threads = list().unwrap_or_default();
    let mix =
        |sum: u64, thread: &i32| sum.wrapping_add((*thread as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let now = threads.iter().fold(0, mix);
    // Relaxed: a guess about the next one.
    let last = LAST.swap(now, Ordering::Relaxed);
    match threads.len() {
        1 => Others::None,
        _ if last == now => Others::Same,
        _ => Others::Changed,
    }
}

/// Looks at an unchanged list of threads, a nap apart, before it is believed.
const QUIET_LOOKS: usize = 8;
/// The same where threads came meanwhile.
const QUIET_LOOKS_AFTER_NEW: usize = 40;

/// Takes one more slot of every thread. One caller at a time, or new threads are misjudged.
pub(super) fn cover() -> Result<Vec<Watchpoint>, Error> {
    let own = clock::own_tid();
    let mut events = vec![open(own)?.ok_or(Error::Held { thread: own })?];
    let mut known = HashSet::from([own]);
    let mut first = true;
    // A thread that is being made has copied its maker's events, perhaps before there was this one,
    // and appears in the list a moment later: while there are others, the end of the list is
    // believed only when it has stood for a while, and longer where threads come.
    let (mut quiet, mut wanted) = (0, QUIET_LOOKS);
    loop {
        let unknown: Vec<i32> = list()?.into_iter().filter(|thread| !known.contains(thread)).collect();
        if unknown.is_empty() {
            quiet += 1;
            if quiet > wanted || known.len() == 1 {
                return Ok(events);
            }
            clock::nap();
            continue;
        }
        (quiet, wanted) = (0, if first { QUIET_LOOKS } else { QUIET_LOOKS_AFTER_NEW });
        for thread in unknown {
            known.insert(thread);
            if first || !has_it(thread, own)? {
                events.extend(open(thread)?);
            }
        }
        first = false;
    }
}

/// Whether a thread has as few slots left as this one. One that has ended needs none.
fn has_it(thread: i32, own: i32) -> Result<bool, Error> {
    let asked = |thread| match free_slots(thread, SLOTS) {
        Ok(free) => Ok(Some(free)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(source) => Err(failed(source)),
    };
    let (theirs, ours) = (asked(thread)?, asked(own)?);
    Ok(theirs.zip(ours).is_none_or(|(theirs, ours)| theirs <= ours))
}

/// Takes a slot of one thread; `None` if it has ended.
fn open(thread: i32) -> Result<Option<Watchpoint>, Error> {
    match Watchpoint::open(thread) {
        Err(error) if error.raw_os_error() == Some(libc::EMFILE) && raise_descriptors() => open(thread),
        Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => Err(Error::Held { thread }),
        Err(error) if is_gone(&error) => Ok(None),
        Err(source) => Err(failed(source)),
        Ok(event) => Ok(Some(event)),
    }
}

fn is_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ESRCH)
}

pub(super) fn failed(source: io::Error) -> Error {
    Error::System { what: "set a watchpoint", source }
}
