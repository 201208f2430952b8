//! What a drain costs for each chunk that it takes out of a ring, counted: allocations, by an
//! allocator that looks who asks, and calls of the kernel, by a tracepoint. The recording runs in a
//! process of its own, where no other test's drains are.
use crate::common::{options, raise, stop_sign};
use kymo_perf::machine::Machine;
use kymo_perf::selector;
use kymo_perf::sys::{Descriptor, EventTarget, Kernel, Real};
use kymo_record::{CallGraph, ControlSpec, Rate, RecordingPlan, Session, TargetSpec};
use kymo_testing::skip;
use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::io;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts what threads called "drain" ask for.
struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;
static BY_DRAINS: AtomicU64 = AtomicU64::new(0);

fn count() {
    let mut name = [0u8; 16];
    // SAFETY: the kernel writes at most 16 bytes there.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    if name.starts_with(b"drain") {
        BY_DRAINS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: everything is handed on to the system's allocator, with what it came with.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are the callee's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(old, layout, size) }
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(old, layout) }
    }
}

/// Touches so many fresh pages: each is a sample.
fn touch(pages: usize) {
    let bytes = pages * 4096;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let area = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            bytes,
            rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
            rustix::mm::MapFlags::PRIVATE,
        )
    };
    let area = area.expect("memory").cast::<u8>();
    // SAFETY: the whole range was mapped above. Huge pages would be one fault for many.
    let _ = unsafe { rustix::mm::madvise(area.cast(), bytes, rustix::mm::Advice::LinuxNoHugepage) };
    for page in 0..pages {
        // SAFETY: within the mapping.
        let at = unsafe { area.add(page * 4096) };
        // SAFETY: nobody else knows the mapping.
        unsafe { at.write_volatile(1) };
    }
    // SAFETY: the mapping from above; nothing points into it any more.
    let _ = unsafe { rustix::mm::munmap(area.cast(), bytes) };
}

/// The part that runs by itself: records the pages that this thread touches, and prints what it
/// cost.
#[test]
#[ignore = "part of costs_of_a_chunk"]
fn one_session() {
    let Some(pages) = std::env::var("KYMO_TEST_PAGES").ok().and_then(|pages| pages.parse().ok()) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let tid = rustix::thread::gettid().as_raw_nonzero().get();
    let targets = TargetSpec { tids: vec![tid], ..TargetSpec::default() };
    let mut options = options("page-faults:u", targets, &directory.path().join("perf.data"));
    options.rate = Rate::Period(1);
    options.call_graph = CallGraph::Dwarf { stack_bytes: 8192 };
    options.raw_stacks = true;
    let session = match RecordingPlan::resolve(options).map(Session::start) {
        Ok(Ok(session)) => session,
        Ok(Err(error)) => return println!("refused: {error}"),
        Err(error) => return println!("refused: {error}"),
    };
    // A ping is answered when the recording runs.
    let ((commands, mut ping), (mut pong, acks)) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
    let channel = ControlSpec::Descriptors { commands: commands.as_raw_fd(), acks: Some(acks.as_raw_fd()) };
    let session = session.control(channel.open().unwrap());
    ping.write_all(b"ping\n").unwrap();
    let stop = stop_sign();
    let (summary, calls) = std::thread::scope(|scope| {
        let running = scope.spawn(|| session.run(Some(stop.as_fd())).unwrap());
        pong.read_exact(&mut [0; 4]).unwrap();
        let counters = syscalls_of(&drains());
        touch(pages);
        raise(&stop);
        let summary = running.join().unwrap();
        (summary, counters.and_then(|counters| counters.iter().map(count_of).sum::<io::Result<u64>>()))
    });
    let calls = calls.map_or_else(|error| format!("unknown: {error}"), |calls| calls.to_string());
    let (allocations, chunks) = (BY_DRAINS.load(Ordering::Relaxed), summary.wakeups);
    println!("allocations {allocations} chunks {chunks} samples {} calls {calls}", summary.account.samples);
}

/// The threads of this process that drain.
fn drains() -> Vec<i32> {
    let tasks = fs::read_dir("/proc/self/task").expect("/proc is mounted");
    let tasks = tasks.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_drain = |tid: &i32| {
        fs::read(format!("/proc/self/task/{tid}/comm")).is_ok_and(|name| name.starts_with(b"drain"))
    };
    tasks.filter(is_drain).collect()
}

/// A counter of system calls for each of these threads.
fn syscalls_of(tids: &[i32]) -> io::Result<Vec<Descriptor>> {
    let event = selector::parse("raw_syscalls:sys_enter").map_err(io::Error::other)?;
    let event = selector::resolve(&event, &Machine::here()).map_err(io::Error::other)?;
    let attr = event[0].attr.to_raw();
    let place = |&task| EventTarget::new(task, -1);
    tids.iter().map(|task| Real.open(&attr, &place(task))).collect()
}

fn count_of(counter: &Descriptor) -> io::Result<u64> {
    let mut words = [0; 1];
    Real.read(counter, &mut words).map(|_| words[0])
}

/// What `one_session` printed, by its names.
fn session_of(pages: usize) -> Result<impl Fn(&str) -> Result<u64, String>, String> {
    let own = std::env::current_exe().expect("this test");
    let said = Command::new(own)
        .args(["costs::one_session", "--exact", "--ignored", "--nocapture"])
        .env("KYMO_TEST_PAGES", pages.to_string())
        .output()
        .expect("this test runs");
    let words = String::from_utf8_lossy(&said.stdout).into_owned();
    if let Some(at) = words.find("refused: ") {
        return Err(words[at..].lines().next().unwrap_or_default().to_owned());
    }
    assert!(said.status.success(), "{words}{}", String::from_utf8_lossy(&said.stderr));
    Ok(move |name: &str| {
        let after = words.split_once(name).unwrap_or_else(|| panic!("no {name} in: {words}")).1;
        let text = after.lines().next().unwrap_or_default().trim();
        let number = text.split(' ').next().unwrap_or_default();
        number.parse().map_err(|_| text.to_owned())
    })
}

/// Checks that a drain allocates nothing for what it drains, only at its start, and makes at most
/// three calls of the kernel each time it wakes up (to sleep, and to wake the next stage, and to
/// quiet its bell), whatever the number of samples.
#[test]
fn costs_of_a_chunk() {
    let test = "costs::costs_of_a_chunk";
    let sessions = session_of(500).and_then(|few| Ok((few, session_of(20_000)?)));
    let (few, many) = match sessions {
        Ok(sessions) => sessions,
        Err(reason) => return skip(test, reason),
    };
    let number = |value: Result<u64, String>| value.expect("a number");
    assert!(number(few("samples ")) >= 500 && number(many("samples ")) >= 10_000);
    assert!(number(many("chunks ")) > 4 * number(few("chunks ")));
    assert_eq!(number(many("allocations ")), number(few("allocations ")));
    match many("calls ") {
        // While it starts and stops it does some more.
        Ok(calls) => {
            assert!(calls <= 3 * number(many("chunks ")) + 50, "{calls} calls, {:?} chunks", many("chunks "))
        }
        Err(reason) => skip(&format!("{test} (calls)"), reason),
    }
}
