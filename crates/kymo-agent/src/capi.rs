//! The functions of `include/kymo.h`, which documents them.
//!
//! # Safety
//! Pointers are the caller's: texts end with a zero byte, and what is to be filled is as large as
//! its first field says.
#![allow(unsafe_code)]
#![expect(unreachable_pub, reason = "C reaches them")]
use crate::sys::lock;
use crate::task::{self, Counter, Error, Group, Reading, Task};
use crate::watch::{self, Hit, Kind};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// `struct kymo_reading`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kymo_reading {
    size_bytes: u64,
    cpu_ns: u64,
    polls: u64,
    switches: u64,
    migrations: u64,
    uncounted: u64,
    allocations: u64,
    allocated_bytes: u64,
}

const PER_TASK: u32 = 1;
const WHOLE_THREADS: u32 = 2;
const ALLOCATIONS: u32 = 4;

const UNKNOWN: u64 = u64::MAX;

type TaskCell = Arc<Mutex<Option<Task>>>;

/// Tasks by number, in parts so that threads that switch seldom meet.
static TASKS: [Mutex<Option<HashMap<u64, TaskCell>>>; PARTS] = [const { Mutex::new(None) }; PARTS];
const PARTS: usize = 64;
static GROUPS: Mutex<Option<HashMap<u64, Group>>> = Mutex::new(None);
/// The largest number of a task that was given out: what is smaller and not there has ended.
static LAST_TASK: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static LAST_ERROR: RefCell<(c_int, CString)> = RefCell::new((0, CString::default()));
}

/// What the header calls it.
fn code(error: &Error) -> c_int {
    match error {
        Error::Ended { .. } => -1,
        Error::Unknown { .. } => -2,
        Error::AlreadyRunning { .. } => -3,
        Error::NotRunningHere { .. } => -4,
        Error::RunsAnother { .. } => -5,
        Error::DroppedWhileRunning { .. } => -6,
        Error::ThreadEnded { .. } => -7,
        Error::Forked => -8,
        Error::TooManyThreads => -9,
        Error::NotNow => -10,
        Error::Unsupported { .. } => -11,
        Error::UnknownCounter(_) => -12,
        Error::NotPerTask { .. } => -13,
        _ => INTERNAL,
    }
}

const BAD_ARGUMENT: c_int = -14;
const INTERNAL: c_int = -15;

/// As for tasks, where the header has the same number for it.
fn watch_code(error: &watch::Error) -> c_int {
    match error {
        watch::Error::NoSlot { .. } | watch::Error::Held { .. } => -16,
        watch::Error::BadLen { .. } | watch::Error::Unaligned { .. } | watch::Error::NotOurs { .. } => {
            BAD_ARGUMENT
        }
        watch::Error::Unsupported { .. } => -11,
        watch::Error::Forked => -8,
        watch::Error::InHandler => -10,
        watch::Error::Unknown { .. } => -2,
        watch::Error::System { .. } => INTERNAL,
    }
}

impl From<watch::Error> for Refusal {
    fn from(error: watch::Error) -> Refusal {
        Refusal(watch_code(&error), error.to_string())
    }
}

struct Refusal(c_int, String);

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal(code(&error), error.to_string())
    }
}

fn bad<T>(words: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal(BAD_ARGUMENT, words.into()))
}

/// Calls `what`; a refusal is remembered for [`kymo_last_error`]. No panic leaves.
fn done<T>(failed: impl FnOnce(c_int) -> T, what: impl FnOnce() -> Result<T, Refusal>) -> T {
    let result = catch_unwind(AssertUnwindSafe(what)).unwrap_or_else(|_| {
        Err(Refusal(INTERNAL, "a mistake in kymo; nothing is known about the counts".into()))
    });
    result.unwrap_or_else(|Refusal(code, words)| {
        // Neither without a place to remember it (the end of a thread), nor with a zero byte
        // inside, is it worth more.
        let _ =
            LAST_ERROR.try_with(|last| *last.borrow_mut() = (code, CString::new(words).unwrap_or_default()));
        failed(code)
    })
}

fn status(what: impl FnOnce() -> Result<(), Refusal>) -> c_int {
    done(|code| code, || what().map(|()| 0))
}

fn number(what: impl FnOnce() -> Result<u64, Refusal>) -> u64 {
    done(|_| 0, what)
}

fn text(text: *const c_char) -> Result<String, Refusal> {
    if text.is_null() {
        return bad("the name is NULL; give a text, which may be empty");
    }
    // SAFETY: the caller's text, which ends with a zero byte.
    Ok(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

fn group(number: u64) -> Result<Group, Refusal> {
    Error::if_forked()?;
    let groups = lock(&GROUPS);
    let group = groups.as_ref().and_then(|groups| groups.get(&number)).cloned();
    group.ok_or_else(|| Error::Unknown { what: "group", number }.into())
}

fn part(number: u64) -> MutexGuard<'static, Option<HashMap<u64, TaskCell>>> {
    lock(&TASKS[number as usize % PARTS])
}

fn find(number: u64) -> Result<TaskCell, Refusal> {
    Error::if_forked()?;
    let found = part(number).as_ref().and_then(|tasks| tasks.get(&number).map(Arc::clone));
    // Relaxed: whoever has the number learnt it after it was given out.
    let given_out = number != 0 && number <= LAST_TASK.load(Ordering::Relaxed);
    found.ok_or_else(|| {
        let error =
            if given_out { Error::Ended { task: number } } else { Error::Unknown { what: "task", number } };
        error.into()
    })
}

/// Whoever holds a task is switching it just now.
fn try_lock(task: &TaskCell, number: u64) -> Result<MutexGuard<'_, Option<Task>>, Refusal> {
    match task.try_lock() {
        Ok(task) => Ok(task),
        Err(std::sync::TryLockError::Poisoned(task)) => Ok(task.into_inner()),
        Err(std::sync::TryLockError::WouldBlock) => {
            Err(Error::AlreadyRunning { task: number, thread: 0 }.into())
        }
    }
}

fn fill(out: *mut kymo_reading, reading: &Reading) -> Result<(), Refusal> {
    if out.is_null() {
        return bad("the reading is NULL; give a struct kymo_reading with its size in it");
    }
    // SAFETY: the first field of the caller's structure, which is there whatever its size.
    let size = unsafe { out.cast::<u64>().read() };
    if !(16..=4096).contains(&size) {
        return bad(format!("size_bytes of the reading is {size}; set it to sizeof(struct kymo_reading)"));
    }
    let get = |counter| reading.get(counter).unwrap_or(UNKNOWN);
    let filled = kymo_reading {
        size_bytes: size,
        cpu_ns: get(Counter::CpuTime),
        polls: reading.polls,
        switches: reading.switches,
        migrations: reading.migrations,
        uncounted: reading.uncounted,
        allocations: get(Counter::Allocations),
        allocated_bytes: get(Counter::AllocatedBytes),
    };
    let bytes = (size as usize).min(size_of::<kymo_reading>());
    // SAFETY: the caller's structure has as many bytes as it says, and ours as many as we take at
    // most.
    unsafe { std::ptr::copy_nonoverlapping((&raw const filled).cast::<u8>(), out.cast::<u8>(), bytes) };
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kymo_group_new(name: *const c_char, flags: u32) -> u64 {
    number(|| new_group(&text(name)?, flags, ""))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kymo_group_new_counting(
    name: *const c_char,
    flags: u32,
    counters: *const c_char,
) -> u64 {
    number(|| new_group(&text(name)?, flags, &text(counters)?))
}

fn new_group(name: &str, flags: u32, counters: &str) -> Result<u64, Refusal> {
    if flags & !(PER_TASK | WHOLE_THREADS | ALLOCATIONS) != 0 {
        return bad(format!("unknown flags {flags:#x}; there are KYMO_PER_TASK and those after it"));
    }
    let mut builder = Group::builder(name.to_owned());
    if flags & PER_TASK != 0 {
        builder = builder.per_task();
    }
    if flags & WHOLE_THREADS != 0 {
        builder = builder.whole_threads();
    }
    if flags & ALLOCATIONS != 0 {
        builder = builder.count(Counter::Allocations).count(Counter::AllocatedBytes);
    }
    for counter in counters.split(',').filter(|counter| !counter.is_empty()) {
        builder = builder.count(counter.parse()?);
    }
    let group = builder.build()?;
    let number = group.number();
    lock(&GROUPS).get_or_insert_default().insert(number, group);
    Ok(number)
}

fn get(reading: &Reading, counter: *const c_char, out: *mut u64) -> Result<(), Refusal> {
    let counter: Counter = text(counter)?.parse()?;
    if out.is_null() {
        return bad("there is no place for the value: NULL");
    }
    let value = reading.get(counter).unwrap_or(UNKNOWN);
    // SAFETY: the caller's number.
    unsafe { out.write(value) };
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kymo_group_get(number: u64, counter: *const c_char, out: *mut u64) -> c_int {
    status(|| get(&group(number)?.read()?, counter, out))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kymo_task_get(number: u64, counter: *const c_char, out: *mut u64) -> c_int {
    status(|| get(&read_task(number)?, counter, out))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kymo_count(counter: u32, by: u64) {
    if let Ok(counter) = u8::try_from(counter) {
        task::count(counter, by);
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kymo_group_free(number: u64) -> c_int {
    status(|| {
        group(number)?;
        let gone = lock(&GROUPS).as_mut().and_then(|groups| groups.remove(&number));
        gone.map(drop).ok_or_else(|| Error::Unknown { what: "group", number }.into())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kymo_group_read(number: u64, out: *mut kymo_reading) -> c_int {
    status(|| fill(out, &group(number)?.read()?))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kymo_task_spawn(number: u64, name: *const c_char) -> u64 {
    self::number(|| {
        let task = group(number)?.task(text(name)?)?;
        let number = task.number();
        part(number).get_or_insert_default().insert(number, Arc::new(Mutex::new(Some(task))));
        // Relaxed: see find().
        LAST_TASK.fetch_max(number, Ordering::Relaxed);
        Ok(number)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kymo_task_switch(from: u64, to: u64) -> c_int {
    status(|| {
        if from == to && from != 0 {
            return Err(Error::AlreadyRunning { task: to, thread: 0 }.into());
        }
        let find = |number| if number == 0 { Ok(None) } else { find(number).map(Some) };
        let (from_task, to_task) = (find(from)?, find(to)?);
        let mut from_guard = from_task.as_ref().map(|task| try_lock(task, from)).transpose()?;
        let mut to_guard = to_task.as_ref().map(|task| try_lock(task, to)).transpose()?;
        let from = from_guard.as_mut().and_then(|task| task.as_mut());
        let to = to_guard.as_mut().and_then(|task| task.as_mut());
        Ok(task::switch(from, to)?)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kymo_task_exit(number: u64, out: *mut kymo_reading) -> c_int {
    status(|| {
        let shared = find(number)?;
        let reading = {
            let mut task = try_lock(&shared, number)?;
            let task = task.as_mut().ok_or(Error::Ended { task: number })?;
            match task.end() {
                // It ended with its thread; this is where its number ends, too.
                Err(Error::ThreadEnded { .. }) => task.read()?,
                read => read?,
            }
        };
        if let Some(tasks) = part(number).as_mut() {
            tasks.remove(&number);
        }
        if out.is_null() { Ok(()) } else { fill(out, &reading) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kymo_task_read(number: u64, out: *mut kymo_reading) -> c_int {
    status(|| fill(out, &read_task(number)?))
}

fn read_task(number: u64) -> Result<Reading, Refusal> {
    let shared = find(number)?;
    // Held for an instant only, and not while reading, so that its thread can switch it meanwhile.
    let watch = try_lock(&shared, number)?.as_ref().map(Task::watch);
    Ok(watch.ok_or(Error::Ended { task: number })?.read()?)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kymo_thread_enter() -> c_int {
    status(|| Ok(task::enter_thread()?))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kymo_publish() -> c_int {
    status(|| {
        task::publish()
            .map_err(|error| Refusal(INTERNAL, format!("the table of tasks cannot be published: {error}")))
    })
}

/// `struct kymo_hit`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kymo_hit {
    size_bytes: u64,
    address: u64,
    instruction: u64,
    old_value: u64,
    new_value: u64,
    flags: u32,
    len_bytes: u32,
    kind: u32,
    thread: i32,
}

const OLD_KNOWN: u32 = 1;
const NEW_KNOWN: u32 = 2;
const SYNCHRONOUS: u32 = 4;

/// `kymo_hit_handler`, NULL permitted.
type Handler = Option<unsafe extern "C" fn(*const kymo_hit, *mut c_void)>;

/// The caller's argument, which goes back to his handler in any thread: he says that it may.
#[derive(Clone, Copy)]
struct Argument(*mut c_void);
// SAFETY: only handed back; the header says that the handler runs in all threads.
unsafe impl Send for Argument {}
// SAFETY: as above.
unsafe impl Sync for Argument {}

impl Argument {
    /// Not the field itself: a closure would take that alone, without its promise.
    fn get(self) -> *mut c_void {
        self.0
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kymo_watch_start(
    address: *const c_void,
    len_bytes: u64,
    kind: u32,
    handler: Handler,
    argument: *mut c_void,
) -> u64 {
    number(|| {
        let Some(handler) = handler else { return bad("there is no handler: NULL; give a function") };
        let kind = Kind::from_bits(kind)
            .or_else(|error| bad(format!("{error}; use KYMO_WRITE and those beside it")))?;
        let argument = Argument(argument);
        let on_hit = move |hit: &Hit| {
            let known = |value: Option<u64>, flag| if value.is_some() { flag } else { 0 };
            let told = kymo_hit {
                size_bytes: size_of::<kymo_hit>() as u64,
                address: hit.address as u64,
                instruction: hit.ip as u64,
                old_value: hit.old.unwrap_or(0),
                new_value: hit.new.unwrap_or(0),
                flags: known(hit.old, OLD_KNOWN)
                    | known(hit.new, NEW_KNOWN)
                    | if hit.synchronous { SYNCHRONOUS } else { 0 },
                len_bytes: hit.len as u32,
                kind: hit.kind.bits(),
                thread: hit.thread,
            };
            // SAFETY: the caller's function, for as long as the watch lasts, and his argument.
            unsafe { handler(&told, argument.get()) };
        };
        let guard =
            watch::watch(address.addr(), usize::try_from(len_bytes).unwrap_or(usize::MAX), kind, on_hit)?;
        Ok(guard.into_number())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kymo_watch_stop(number: u64) -> c_int {
    // In a handler neither words nor memory may be had.
    match watch::stop(number) {
        Ok(()) => 0,
        Err(error) if watch::in_handler() => watch_code(&error),
        Err(error) => status(|| Err(error.into())),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kymo_watch_release_slots() -> c_int {
    status(|| {
        watch::release_slots();
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn kymo_last_error() -> *const c_char {
    LAST_ERROR
        .try_with(|last| last.borrow().1.as_ptr())
        .unwrap_or(c"called at the very end of a thread".as_ptr())
}
