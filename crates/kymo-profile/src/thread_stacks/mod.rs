//! The stacks of all threads at one moment: what each does or waits for, who has the lock that it
//! waits for, and threads that wait for each other.
//!
//! *You give it* a recording of `kymo stacks`; *it gives you* [`ThreadStacks`]: a [`StackGroup`]
//! for threads with equal stacks, and each [`Deadlock`].
//!
//! ```text
//!  thread-stack samples -> rows --> states (wall::state) --> groups --> text, JSON
//!                                   locks, who has them ---> deadlocks
//! ```
//!
//! # Invariants
//! - **T1** A holder is named only if the lock itself notes it and that thread is there.
//! - **T2** A deadlock is told only of threads that had no CPU from before the first stack was read
//!   until after the last: what they wait for is true at one moment.
mod deadlock;
mod frame;
mod json;
mod lock;
mod rows;
#[cfg(test)]
mod tests;
mod text;

pub use deadlock::Deadlock;
pub use frame::StackFrame;
pub use json::write_stacks_json;
pub use lock::{AwaitedLock, LockHolder};
pub use rows::StackExtent;
pub use text::write_stacks;

use crate::load::{LoadOptions, collect_sideband};
use crate::locks::Names;
use crate::resolve::Resolver;
use crate::wall::{State, state_of_waiting_thread};
use frame::FrameNames;
use kymo_data::{ReadError, ReadSummary, Recording};
use kymo_symbols::SymbolStore;
use rows::{DUMPED, GOROUTINE, ThreadRow};
use rustc_hash::FxHashMap;

/// A thread at that moment.
#[derive(Clone, Debug)]
pub struct ThreadNow {
    /// Its process.
    pub pid: i32,
    /// Its number; of a goroutine that is on no thread, that of its process.
    pub tid: i32,
    /// The goroutine that is on it, or that it is.
    pub goroutine: Option<u64>,
    /// Its name.
    pub name: String,
    /// What it does.
    pub activity: Activity,
    /// How long it has had no CPU, in ns, if that is known.
    pub off_cpu_ns: Option<u64>,
    /// The file, peer or process that it waits for; empty if that is not known.
    pub object: String,
    /// The lock that it waits for.
    pub lock: Option<AwaitedLock>,
    /// The thread whose end it waits for.
    pub joins: Option<i32>,
    /// It had no CPU while stacks were read.
    pub is_steady: bool,
    /// It is of a core file.
    pub is_dumped: bool,
}

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activity {
    /// It runs, or is ready to.
    Running,
    /// It waits in the kernel where no signal reaches it (state `D`), for this.
    Uninterruptible(State),
    /// It waits for this.
    Waiting(State),
    /// A signal or a debugger has stopped it.
    Stopped,
    /// It has ended, and its parent has not asked for its result.
    Zombie,
    /// It has ended.
    Ended,
    /// A goroutine that waits, on no thread.
    Goroutine,
    /// It ran when its program was dumped; `object` says whether a signal ended it.
    Dumped,
}

/// Threads of a process with equal stacks.
#[derive(Clone, Debug)]
pub struct StackGroup {
    /// They, by number.
    pub threads: Vec<ThreadNow>,
    /// The functions of their stack, innermost first.
    pub frames: Vec<StackFrame>,
    /// The kernel's functions, innermost first.
    pub kernel: Vec<String>,
    /// How much of the stack there is.
    pub extent: StackExtent,
    /// Why there is none.
    pub reason: String,
}

/// The process, what its threads do, what goroutines wait for, and the stack.
type GroupKey = (i32, Activity, String, Vec<StackFrame>);

/// All stacks of a recording.
#[derive(Debug)]
pub struct ThreadStacks {
    /// Processes: number and name.
    pub processes: Vec<(i32, String)>,
    /// By process; the most threads first.
    pub groups: Vec<StackGroup>,
    /// Threads that wait for each other.
    pub deadlocks: Vec<Deadlock>,
    /// What the reader saw (problems of the file).
    pub summary: ReadSummary,
}

impl ThreadStacks {
    /// Reads a recording; `None` if it has no stacks of threads.
    ///
    /// # Errors
    /// When the file cannot be read at all.
    pub fn open(
        recording: &Recording,
        options: &LoadOptions,
        store: &SymbolStore,
    ) -> Result<Option<ThreadStacks>, ReadError> {
        if !rows::has_stacks(recording) {
            return Ok(None);
        }
        let (timeline, ..) = collect_sideband(recording, options.workers, store.options(), &|_, _| ())?;
        let (rows, summary) = rows::read(recording, &timeline, options)?;
        let mut frames_of = FrameNames::new(&timeline, Resolver::new(&timeline, store));
        let mut names = Names::new(&timeline, store);
        let is_arm = recording.features.arch.as_deref() == Some("aarch64");
        let threads: FxHashMap<(i32, i32), i32> = rows
            .threads
            .iter()
            .map(|row| ((row.pid, row.own_tid), row.tid))
            .filter(|(own, _)| own.1 != 0)
            .collect();
        let mut groups: FxHashMap<GroupKey, StackGroup> = FxHashMap::default();
        for row in &rows.threads {
            let mut frames = frames_of.of(&rows.chains, row.chain);
            frame::put_managed(&mut frames, &row.managed);
            let user: Vec<String> = frames.iter().map(|frame| frame.function.clone()).collect();
            let activity = activity(row, is_arm, &user);
            let thread_of = |own_tid: i32| threads.get(&(row.pid, own_tid)).copied();
            let lock = lock::awaited(row, activity, &user, &thread_of, &mut names);
            let joins = lock::joined(row, &user, &thread_of);
            // Goroutines with one stack may wait for different things.
            let reason = if activity == Activity::Goroutine { row.object.clone() } else { String::new() };
            let thread = ThreadNow {
                pid: row.pid,
                tid: row.tid,
                goroutine: row.goroutine,
                name: timeline.comm(row.comm).into_owned(),
                activity,
                off_cpu_ns: row.off_cpu_ns,
                object: row.object.clone(),
                lock,
                joins,
                // A machine tells of its monitors as they are at one moment.
                is_steady: row.is_steady || !row.monitor.is_empty(),
                is_dumped: row.state == DUMPED,
            };
            let group =
                groups.entry((row.pid, activity, reason, frames.clone())).or_insert_with(|| StackGroup {
                    threads: Vec::new(),
                    frames,
                    kernel: row.kernel.clone(),
                    extent: row.extent,
                    reason: row.reason.clone(),
                });
            group.threads.push(thread);
        }
        let mut groups: Vec<StackGroup> = groups.into_values().collect();
        groups
            .iter_mut()
            .for_each(|group| group.threads.sort_by_key(|thread| (thread.tid, thread.goroutine)));
        let order = |group: &StackGroup| {
            let first = group.threads.first()?;
            let is_goroutine = first.activity == Activity::Goroutine;
            Some((
                first.pid,
                is_goroutine,
                std::cmp::Reverse(group.threads.len()),
                first.tid,
                first.goroutine,
            ))
        };
        groups.sort_by_key(order);
        let deadlocks = deadlock::find(&groups);
        let mut processes: Vec<i32> = rows.threads.iter().map(|row| row.pid).collect();
        processes.dedup();
        let name = |pid: i32| {
            let first = rows.threads.iter().find(|row| row.pid == pid && row.tid == pid);
            (pid, first.map_or_else(String::new, |row| timeline.comm(row.comm).into_owned()))
        };
        let processes = processes.into_iter().map(name).collect();
        Ok(Some(ThreadStacks { processes, groups, deadlocks, summary }))
    }

    /// A thread, by number.
    pub fn thread(&self, tid: i32) -> Option<&ThreadNow> {
        let mut threads = self.groups.iter().flat_map(|group| &group.threads);
        threads.find(|thread| thread.tid == tid && thread.activity != Activity::Goroutine)
    }
}

/// What a thread does. `user`: the names of its functions, innermost first.
fn activity(row: &ThreadRow, is_arm: bool, user: &[String]) -> Activity {
    let state = || {
        let (kernel, user) = (row.kernel.iter().map(String::as_str), user.iter().map(String::as_str));
        let call = (row.call, row.arguments[1] as u32, is_arm);
        // Any caller tells more than the innermost function alone.
        state_of_waiting_thread(call, user.clone().nth(1).is_some(), kernel, user)
    };
    match row.state {
        'R' => Activity::Running,
        'D' => Activity::Uninterruptible(state()),
        'T' | 't' => Activity::Stopped,
        'Z' => Activity::Zombie,
        'X' => Activity::Ended,
        GOROUTINE => Activity::Goroutine,
        DUMPED if row.call < 0 => Activity::Dumped,
        _ => Activity::Waiting(state()),
    }
}
