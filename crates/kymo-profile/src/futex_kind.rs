//! What a futex is that threads wait for, by their stacks: the one answer for `kymo locks` and for
//! wall time.
use serde::Serialize;

/// What threads wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LockKind {
    /// A lock, which the futex is part of.
    Lock,
    /// A lock of a runtime or library whose threads wait at futexes of their own: it is known by
    /// the place where it is taken.
    Place,
    /// A condition, a semaphore, a barrier, or until another thread lets this one go on: that is no
    /// contention.
    Condition,
    /// The end of another thread.
    Join,
    /// No stack says what for.
    Unknown,
}

impl LockKind {
    /// Whether threads wait since another one has what they want.
    pub fn is_contention(self) -> bool {
        matches!(self, LockKind::Lock | LockKind::Place)
    }
}

/// Functions of C libraries and runtimes that wait on a condition, a semaphore or a barrier.
const CONDITIONS: [&str; 23] = [
    "pthread_cond_",
    "__pthread_cond_",
    "___pthread_cond_",
    "cnd_",
    "std::condition_variable",
    "std::sys::sync::condvar",
    "std::sys::sync::thread_parking",
    "std::sys::pal::unix::thread_parking",
    "std::thread::park",
    "parking_lot::condvar",
    "sem_",
    "Unsafe_Park",
    "Parker::park",
    "ObjectMonitor::wait",
    "Monitor::wait",
    "runtime.stopm",
    "runtime.notesleep",
    "runtime.notetsleep",
    "__new_sem_",
    "PosixSemaphore::wait",
    "uv_sem_wait",
    "uv__sem_wait",
    "std::__atomic_futex_unsigned_base",
];

/// Waits of barriers, and of libraries with conditions of their own: they come before locks, which
/// the same functions have inside.
const CONDITIONS_WITH_LOCKS: [&str; 6] = [
    "pthread_barrier_wait",
    "__pthread_barrier_wait",
    "g_cond_wait",
    "QWaitCondition",
    "absl::CondVar",
    "absl::Mutex::Await",
];

/// Functions that wait for a lock, and for nothing else.
const LOCKS: [&str; 21] = [
    "pthread_mutex_",
    "__pthread_mutex_",
    "___pthread_mutex_",
    "__lll_lock_wait",
    "pthread_rwlock_",
    "__pthread_rwlock_",
    "___pthread_rwlock_",
    "mtx_",
    "std::sys::sync::mutex",
    "std::sys::sync::rwlock",
    "std::sys::unix::locks",
    "std::mutex::",
    "std::timed_mutex::",
    "std::recursive_mutex::",
    "std::shared_mutex::",
    "std::__shared_mutex_pthread::",
    "uv_mutex_lock",
    "uv_rwlock_",
    "SpinLock::",
    "srw_mutex_impl",
    "ssux_lock_impl",
];

/// Functions in which programs and runtimes wait for locks of their own, whatever the kernel is
/// asked: a thread may wait at a futex of its own.
const OWN_LOCKS: [&str; 16] = [
    // Python's global lock, at which its threads wait on a condition.
    "take_gil",
    "ProcSleep",
    "LWLockAcquire",
    "ObjectMonitor::enter",
    "ObjectSynchronizer::enter",
    "Monitor::lock",
    "sync.(*Mutex).",
    "sync.(*RWMutex).",
    "runtime.lock",
    "lock_wait_",
    "absl::Mutex::",
    "absl::lts_",
    "parking_lot::raw_mutex",
    "parking_lot::raw_rwlock",
    "<parking_lot::raw_mutex",
    "<parking_lot::raw_rwlock",
];

/// The end of another thread.
const JOINS: [&str; 4] = ["pthread_join", "__pthread_clockjoin", "__pthread_timedjoin", "thrd_join"];

/// Functions that take a lock for a program in Python, which is a semaphore to the C library.
const PYTHON_LOCKS: [&str; 6] = [
    "lock_PyThread_acquire_lock",
    "rlock_acquire",
    "_thread_lock_acquire",
    "_thread_RLock_acquire",
    "_thread_lock___enter__",
    "_thread_RLock___enter__",
];
/// Functions of Python's library that take such a lock to wait until another thread has something
/// for them, or has ended.
const PYTHON_CONDITIONS: [&str; 2] = ["Condition.wait", "Barrier.wait"];
const PYTHON_JOINS: [&str; 3] = ["Thread._wait_for_tstate_lock", "Thread.join", "ThreadHandle_join"];
/// What takes all of them, and queues in C, too. It stays where those have no names: Debian's
/// Python is stripped.
const PYTHON_LOCK_OR_QUEUE: &str = "PyThread_acquire_lock_timed";
/// The function of a pool's thread (`concurrent.futures`) that takes work from such a queue.
const PYTHON_POOL: &str = "_worker";
/// Its own functions in C, and those without names, between the two.
const PYTHON_IN_C: [&str; 4] = ["Py", "_Py", "0x", "["];
/// It stays in a stack whose functions of Python are not known: then locks and conditions look
/// alike, and most are conditions.
const PYTHON_LOOP: &str = "_PyEval_EvalFrameDefault";

/// The same in Java; waits for their conditions are none.
const JAVA_LOCKS: [&str; 3] = ["ReentrantLock", "ReentrantReadWriteLock", "StampedLock"];
const JAVA_CONDITION: &str = "ConditionObject";

/// Functions of locks, also those that a compiler puts into programs: what calls them is the
/// program's.
const OF_LOCKS: [&str; 30] = [
    "std::sys::",
    "<std::sys::",
    "std::sync::",
    "<std::sync::",
    "core::ptr::drop_in_place",
    "parking_lot::",
    "<parking_lot::",
    "parking_lot_core::",
    "lock_api::",
    "<lock_api::",
    "absl::",
    "std::mutex::",
    "std::timed_mutex::",
    "std::recursive_mutex::",
    "std::shared_mutex::",
    "std::__shared_mutex_pthread::",
    "std::__glibcxx_rwlock_",
    "std::lock_guard",
    "std::unique_lock",
    "std::scoped_lock",
    "std::shared_lock",
    "__gthread_",
    "runtime.futex",
    "runtime.sema",
    "runtime.lock",
    "runtime.unlock",
    "monitorenter",
    "monitorexit",
    "PGSemaphore",
    "LWLock",
];

/// Whether a function is that of a lock.
pub(crate) fn is_of_lock(name: &str) -> bool {
    OF_LOCKS.iter().any(|begin| name.starts_with(begin))
}

/// Functions of the C library in which all waits for futexes are alike.
const WAITING_CALLS: [&str; 4] = ["__futex_abstimed_wait", "futex_wait", "syscall", "__internal_syscall"];

/// In the operation of a call: the kernel hands the lock over to the waiter with the highest
/// priority.
const LOCK_PI: [u32; 2] = [6, 13];
const OPERATIONS: u32 = 0x7f;

/// The same: only threads of one process use the futex.
const PRIVATE: u32 = 0x80;

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum WaitEnd {
    /// A thread was seen to wake others there.
    Woken,
    /// None was.
    Otherwise,
    /// It had not ended: of its stack only the innermost function is known.
    Unfinished,
    /// Whether a thread woke others there was not observed.
    Unobserved,
}

/// Whether one of these functions is that of a lock that a program or runtime has made itself.
pub(crate) fn has_own_lock<'a>(mut user: impl Iterator<Item = &'a str>) -> bool {
    user.any(|name| begins(name, &OWN_LOCKS))
}

fn begins(name: &str, list: &[&str]) -> bool {
    list.iter().any(|begin| name.starts_with(begin))
}

/// What a wait is for. `user`: the functions of its stack, innermost first.
pub(crate) fn kind_of_wait<'a>(
    operation: u32,
    end: WaitEnd,
    user: impl Iterator<Item = &'a str> + Clone,
) -> LockKind {
    if LOCK_PI.contains(&(operation & OPERATIONS)) {
        return LockKind::Lock;
    }
    if end == WaitEnd::Unfinished {
        let is_lock = user.clone().any(|name| name.starts_with("__lll_lock_wait"));
        return if is_lock { LockKind::Lock } else { LockKind::Unknown };
    }
    // Without a caller any wait looks so.
    if user.clone().all(|name| begins(name, &WAITING_CALLS)) {
        return LockKind::Unknown;
    }
    let is_in = |list: &[&str]| user.clone().any(|name| begins(name, list));
    let has = |word: &str| user.clone().any(|name| name.contains(word));
    match () {
        () if is_in(&CONDITIONS_WITH_LOCKS) => LockKind::Condition,
        () if is_in(&OWN_LOCKS) => LockKind::Place,
        () if JAVA_LOCKS.iter().any(|lock| has(lock)) && !has(JAVA_CONDITION) => LockKind::Place,
        () if is_in(&JOINS) => LockKind::Join,
        () if is_in(&PYTHON_LOCKS) && is_in(&PYTHON_JOINS) => LockKind::Join,
        () if is_in(&PYTHON_LOCKS) && !has(PYTHON_LOOP) && !is_in(&PYTHON_CONDITIONS) => LockKind::Place,
        () if has(PYTHON_LOCK_OR_QUEUE) && !has(PYTHON_LOOP) && !is_in(&PYTHON_LOCKS) => {
            kind_in_python_without_names(user)
        }
        () if is_in(&CONDITIONS) => LockKind::Condition,
        () if is_in(&LOCKS) => LockKind::Lock,
        () => match end {
            // The kernel itself says that a thread has ended, where others can hear it, too.
            WaitEnd::Otherwise if operation & PRIVATE == 0 => LockKind::Join,
            WaitEnd::Unobserved => LockKind::Unknown,
            _ => LockKind::Lock,
        },
    }
}

/// The kind of a wait in a Python whose functions in C have no names.
fn kind_in_python_without_names<'a>(user: impl Iterator<Item = &'a str> + Clone) -> LockKind {
    let is_in = |list: &[&str]| user.clone().any(|name| begins(name, list));
    let mut callers = user.clone().skip_while(|name| !name.starts_with(PYTHON_LOCK_OR_QUEUE));
    match () {
        () if is_in(&PYTHON_JOINS) => LockKind::Join,
        () if is_in(&PYTHON_CONDITIONS) => LockKind::Condition,
        () if callers.find(|name| !begins(name, &PYTHON_IN_C)) == Some(PYTHON_POOL) => LockKind::Condition,
        () => LockKind::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(user: &[&str]) -> LockKind {
        kind_of_wait(128, WaitEnd::Woken, user.iter().copied())
    }

    /// Checks stacks as they were recorded: locks of C, Rust, Java and PostgreSQL, and waits that
    /// are none.
    #[test]
    fn stacks() {
        assert_eq!(of(&["__lll_lock_wait", "pthread_mutex_lock", "work"]), LockKind::Lock);
        assert_eq!(of(&["syscall", "std::sys::sync::mutex::futex::Mutex::lock_contended"]), LockKind::Lock);
        assert_eq!(of(&["__futex_abstimed_wait_common", "pthread_rwlock_wrlock"]), LockKind::Lock);
        assert_eq!(of(&["__futex_abstimed_wait_common", "pthread_cond_wait", "take"]), LockKind::Condition);
        assert_eq!(of(&["__futex_abstimed_wait_common", "sem_wait", "take"]), LockKind::Condition);
        assert_eq!(of(&["pthread_barrier_wait", "phase"]), LockKind::Condition);
        assert_eq!(of(&["__futex_abstimed_wait_common", "__pthread_clockjoin_ex"]), LockKind::Join);
        let semaphore = ["__new_sem_wait_slow", "PGSemaphoreLock", "LWLockAcquire", "XLogInsertRecord"];
        assert_eq!(of(&semaphore), LockKind::Place);
        assert_eq!(of(&["syscall", "parking_lot::raw_mutex::RawMutex::lock_slow", "run"]), LockKind::Place);
        let monitor = ["pthread_cond_wait", "PlatformEvent::park", "ObjectMonitor::enter", "Worker.run"];
        assert_eq!(of(&monitor), LockKind::Place);
        assert_eq!(of(&["pthread_cond_wait", "ObjectMonitor::wait"]), LockKind::Condition);
        assert_eq!(
            of(&["Parker::park", "Unsafe_Park", "java.util.concurrent.locks.ReentrantLock.lock"]),
            LockKind::Place
        );
        let waits = ["Parker::park", "AbstractQueuedSynchronizer$ConditionObject.await", "ReentrantLock.x"];
        assert_eq!(of(&waits), LockKind::Condition);
        assert_eq!(of(&["runtime.futex", "runtime.notesleep", "runtime.stopm"]), LockKind::Condition);
        let of_python = |callers: &[&str]| {
            let inner = ["sem_wait", "PyThread_acquire_lock_timed", "lock_PyThread_acquire_lock"];
            of(&[&inner[..], callers].concat())
        };
        assert_eq!(of_python(&["wants_lock", "Thread.run"]), LockKind::Place);
        assert_eq!(of_python(&["Condition.wait", "Queue.get", "takes"]), LockKind::Condition);
        assert_eq!(of_python(&["Thread._wait_for_tstate_lock", "Thread.join", "main"]), LockKind::Join);
        assert_eq!(of_python(&["_PyEval_EvalFrameDefault"]), LockKind::Condition, "no names");
        let of_stripped = |callers: &[&str]| {
            let inner =
                ["__new_sem_wait_slow64", "PyThread_acquire_lock_timed", "0x1899ae", "_PyObject_Call"];
            of(&[&inner[..], callers].concat())
        };
        assert_eq!(of_stripped(&["wants_lock", "Thread.run"]), LockKind::Unknown, "a lock, or a queue");
        assert_eq!(of_stripped(&["Condition.wait", "Queue.get", "takes"]), LockKind::Condition);
        assert_eq!(of_stripped(&["Thread._wait_for_tstate_lock", "Thread.join"]), LockKind::Join);
        assert_eq!(of_stripped(&["_worker", "Thread.run"]), LockKind::Condition, "an idle pool");
        assert_eq!(of_stripped(&["task", "_WorkItem.run", "_worker", "Thread.run"]), LockKind::Unknown);
        assert_eq!(of(&["pthread_cond_timedwait", "take_gil", "computes"]), LockKind::Place);
        assert_eq!(of(&[]), LockKind::Unknown);
        assert_eq!(
            of(&["__futex_abstimed_wait_common64", "__futex_abstimed_wait_common"]),
            LockKind::Unknown
        );
        assert_eq!(kind_of_wait(128, WaitEnd::Unfinished, ["__lll_lock_wait"].into_iter()), LockKind::Lock);
        assert_eq!(
            kind_of_wait(128, WaitEnd::Unfinished, ["__futex_abstimed_wait_common64"].into_iter()),
            LockKind::Unknown
        );
        // A C library without names of its inner functions: the end of a thread, and a lock.
        let joins = |operation, end| kind_of_wait(operation, end, ["main"].into_iter());
        assert_eq!(joins(265, WaitEnd::Otherwise), LockKind::Join);
        assert_eq!(joins(265, WaitEnd::Woken), LockKind::Lock);
        assert_eq!(joins(128, WaitEnd::Otherwise), LockKind::Lock);
        assert_eq!(joins(128, WaitEnd::Unobserved), LockKind::Unknown);
        assert_eq!(kind_of_wait(134, WaitEnd::Unfinished, std::iter::empty()), LockKind::Lock);
    }
}
