//! The lock that a thread waits for, and who has it, by what the lock itself notes.
use super::Activity;
use super::rows::ThreadRow;
use crate::locks::Names;
use crate::wall::State;

/// What a lock's word has beside the number of a thread.
const TID_MASK: u32 = 0x3fff_ffff;
/// Operations of futexes whose word is the number of the thread that has the lock, without flags.
const OWNED: [u32; 4] = [6, 8, 11, 13];
const OPERATIONS: u32 = 0x7f;
/// The system call `futex`: of x86-64, and of aarch64.
const FUTEX: [i64; 2] = [202, 98];

/// A lock that a thread waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwaitedLock {
    /// Where it is; `None` where the thread waits at a word of its own.
    pub address: Option<u64>,
    /// The variable that it is.
    pub variable: Option<String>,
    /// Who has it.
    pub holder: LockHolder,
}

/// Who has a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockHolder {
    /// The thread that the lock notes.
    Thread(i32),
    /// It does not note that, or notes a thread that is not there.
    Unknown,
}

fn is_futex(row: &ThreadRow) -> bool {
    FUTEX.contains(&row.call)
}

fn any(user: &[String], part: &str) -> bool {
    user.iter().any(|name| name.contains(part))
}

/// The lock that a thread waits for, if it waits for one. `user`: the names of its functions;
/// `thread_of`: a thread of its process by its own number.
pub(super) fn awaited(
    row: &ThreadRow,
    activity: Activity,
    user: &[String],
    thread_of: &dyn Fn(i32) -> Option<i32>,
    names: &mut Names<'_>,
) -> Option<AwaitedLock> {
    if !row.monitor.is_empty() {
        let holder = thread_of(row.holder).map_or(LockHolder::Unknown, LockHolder::Thread);
        return Some(AwaitedLock { address: None, variable: Some(row.monitor.clone()), holder });
    }
    let waits = matches!(activity, Activity::Waiting(State::Lock) | Activity::Uninterruptible(State::Lock));
    if !waits {
        return None;
    }
    let is_own = is_futex(row);
    let is_pthread = any(user, "pthread_mutex") || any(user, "mtx_lock");
    let [word, _, behind] = row.words;
    let owned = OWNED.contains(&(row.arguments[1] as u32 & OPERATIONS));
    // glibc's mutex has its owner's number eight bytes on; musl's word is that number.
    let noted = match (is_own, owned, is_pthread) {
        (true, true, _) => Some(word & TID_MASK),
        (true, _, true) if word <= 2 => Some(behind),
        (true, _, true) => Some(word & TID_MASK),
        _ => None,
    };
    let holder = noted.filter(|&tid| tid != 0).and_then(|tid| thread_of(tid as i32));
    let address = is_own.then_some(row.arguments[0]);
    let named = address.and_then(|address| names.of(row.maps, address));
    Some(AwaitedLock {
        address,
        variable: named.map(|(found, _)| found.to_string()),
        holder: holder.map_or(LockHolder::Unknown, LockHolder::Thread),
    })
}

/// The thread whose end a thread waits for: the C library waits at its number.
pub(super) fn joined(
    row: &ThreadRow,
    user: &[String],
    thread_of: &dyn Fn(i32) -> Option<i32>,
) -> Option<i32> {
    let joins = is_futex(row)
        && (any(user, "pthread_join") || any(user, "pthread_clockjoin") || any(user, "pthread_timedjoin"));
    joins.then(|| thread_of((row.words[0] & TID_MASK) as i32)).flatten()
}
