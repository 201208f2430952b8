//! The running kernel, behind the trait `Kernel`.
//!
//! # Safety
//! Raw system calls: the risk is a wrong argument type or a descriptor of the wrong owner. A
//! [`Descriptor`] is made by `open` alone and consumed by `close`, so while one can be borrowed its
//! number is open and ours.
#![allow(unsafe_code, reason = "raw system calls")]
use super::{Binding, Descriptor, EventTarget, Kernel, in_vfork_child, perf_event_attr};
use crate::ring::{Keeps, Ring};
use perf_event_open_sys::{bindings, ioctls};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether any event of this process was a uprobe. Relaxed: who closes an event has got its
/// descriptor from who opened it.
static UPROBES_OPENED: AtomicBool = AtomicBool::new(false);

/// The kernel that runs this program.
#[derive(Clone, Copy, Debug, Default)]
pub struct Real;

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn borrow(event: &Descriptor) -> BorrowedFd<'_> {
    // SAFETY: open as long as the Descriptor can be borrowed (module comment).
    unsafe { BorrowedFd::borrow_raw(event.number()) }
}

impl Kernel for Real {
    fn open(&self, attr: &perf_event_attr, place: &EventTarget<'_>) -> io::Result<Descriptor> {
        let mut attr = *attr;
        let mut flags = if place.cloexec { bindings::PERF_FLAG_FD_CLOEXEC } else { 0 };
        let mut task = place.task;
        if let Some(cgroup) = place.cgroup {
            flags |= bindings::PERF_FLAG_PID_CGROUP;
            task = cgroup.as_raw_fd();
        }
        let group = place.group.map_or(-1, Descriptor::number);
        let cpu = place.cpu;
        let mut opened = Err(io::ErrorKind::Other.into());
        let mut open = || {
            // SAFETY: attr is initialised and as long as its size field says (sys::attr); the
            // kernel only reads it (and writes size on E2BIG).
            let fd =
                unsafe { perf_event_open_sys::perf_event_open(&mut attr, task, cpu, group, flags.into()) };
            opened = check(fd).map(|()| Descriptor::new(fd));
        };
        UPROBES_OPENED.fetch_or(place.to_its_end, Ordering::Relaxed);
        // To the child, 0 would be itself.
        if place.to_its_end && task != 0 {
            in_vfork_child(open)
        } else {
            open()
        }
        opened
    }

    fn close(&self, mut events: Vec<Descriptor>) {
        events.sort_unstable();
        if UPROBES_OPENED.load(Ordering::Relaxed) {
            in_vfork_child(|| close_sorted(&events));
        } else {
            close_sorted(&events);
        }
    }

    fn replace(&self, old: &Descriptor, new: Descriptor) -> io::Result<()> {
        // SAFETY: both numbers are open and ours (module comment), and the Descriptor of the
        // replaced one goes on to own what its number stands for.
        let result = check(unsafe { libc::dup3(new.number(), old.number(), libc::O_CLOEXEC) });
        self.close(vec![new]);
        result
    }

    fn switch(&self, event: &Descriptor, on: bool) -> io::Result<()> {
        let switch = if on { ioctls::ENABLE } else { ioctls::DISABLE };
        // SAFETY: no pointer argument.
        check(unsafe { switch(event.number(), 0) })
    }

    fn switch_own(&self, on: bool) -> io::Result<()> {
        let switch = if on { libc::PR_TASK_PERF_EVENTS_ENABLE } else { libc::PR_TASK_PERF_EVENTS_DISABLE };
        // SAFETY: no pointer argument.
        check(unsafe { libc::prctl(switch, 0, 0, 0, 0) })
    }

    fn set_output(&self, event: &Descriptor, output: &Descriptor) -> io::Result<()> {
        // SAFETY: the argument is a descriptor number, not a pointer.
        check(unsafe { ioctls::SET_OUTPUT(event.number(), output.number()) })
    }

    fn set_filter(&self, event: &Descriptor, filter: &str) -> io::Result<()> {
        let filter = CString::new(filter)?;
        // SAFETY: a zero-terminated string that outlives the call; the kernel only reads it.
        check(unsafe { ioctls::SET_FILTER(event.number(), filter.as_ptr().cast_mut()) })
    }

    fn set_bpf(&self, event: &Descriptor, program: BorrowedFd<'_>) -> io::Result<()> {
        // SAFETY: the argument is a descriptor number, not a pointer.
        check(unsafe { ioctls::SET_BPF(event.number(), program.as_raw_fd() as u32) })
    }

    fn id(&self, event: &Descriptor) -> io::Result<u64> {
        let mut id = 0u64;
        // SAFETY: the kernel writes one u64 through the pointer.
        check(unsafe { ioctls::ID(event.number(), &mut id) })?;
        Ok(id)
    }

    fn read(&self, event: &Descriptor, words: &mut [u64]) -> io::Result<usize> {
        let mut bytes = vec![0u8; words.len() * 8];
        let read = rustix::io::read(borrow(event), &mut bytes)?;
        for (word, raw) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_ne_bytes(*raw);
        }
        Ok(read / 8)
    }

    fn map(&self, event: &Descriptor, data_pages: usize, keeps: Keeps) -> io::Result<Ring> {
        Ring::map_as(borrow(event), data_pages, keeps)
    }

    fn pause_output(&self, event: &Descriptor, paused: bool) -> io::Result<()> {
        // SAFETY: the ioctl takes a number and no memory.
        check(unsafe { ioctls::PAUSE_OUTPUT(event.number(), u32::from(paused)) })
    }

    fn poll_fd<'a>(&self, event: &'a Descriptor) -> Option<BorrowedFd<'a>> {
        Some(borrow(event))
    }

    fn descriptor_limit(&self) -> Option<u64> {
        getrlimit(Resource::Nofile).current
    }

    fn raise_descriptors(&self, wanted: u64) -> Option<u64> {
        let now = getrlimit(Resource::Nofile);
        let (soft, hard) = (now.current?, now.maximum);
        let mut tries = Vec::new();
        if hard.is_none_or(|hard| soft < hard) {
            // Beyond the hard limit only if it is too low: that takes privilege, and children
            // inherit it.
            tries.extend(hard.filter(|&hard| hard < wanted).map(|_| wanted));
            tries.push(hard.unwrap_or(wanted));
        } else if let Some(hard) = hard {
            tries.extend([wanted.max(hard + 1000), hard + 1000]);
        }
        tries.into_iter().filter(|&to| to > soft).find(|&to| {
            let maximum = hard.map(|hard| hard.max(to));
            setrlimit(Resource::Nofile, Rlimit { current: Some(to), maximum }).is_ok()
        })
    }

    fn reserve_descriptors(&self, more: usize) {
        reserve_descriptors(more);
    }

    fn last_cpus(&self, tasks: &[i32]) -> Vec<Option<u32>> {
        // Tasks of one process come together; a path below its directory is half as long to walk.
        let mut process: Option<OwnedFd> = None;
        let below =
            |process: &Option<OwnedFd>, task: i32| last_cpu(process.as_ref()?, &format!("{task}/stat"));
        let each = tasks.iter().map(|&task| {
            below(&process, task).or_else(|| {
                process = open_at(CWD, &format!("/proc/{}/task", crate::proc::process_of(task)?)).ok();
                below(&process, task)
            })
        });
        each.collect()
    }

    fn bind(&self, cpu: u32) -> io::Result<Binding> {
        let before = Binding::current()?;
        super::pin_to(cpu)?;
        Ok(before)
    }

    fn permitted_cpus(&self, task: i32) -> Vec<u32> {
        super::thread::permitted_cpus(task).0
    }

    fn unbind(&self, before: &Binding) {
        if let Err(error) = before.apply() {
            tracing::debug!(%error, "a thread stays bound to one CPU");
        }
    }
}

/// Closes events, in ascending order of their numbers. System calls, and nothing else.
fn close_sorted(events: &[Descriptor]) {
    for run in events.chunk_by(|a, b| a.number() + 1 == b.number()) {
        if let [one] = run {
            // SAFETY: ours, and nobody can use it any more: we own the Descriptor.
            let result = unsafe { libc::close(one.number()) };
            debug_assert_eq!(result, 0);
            continue;
        }
        let (first, last) = (run[0].number() as libc::c_uint, run[run.len() - 1].number() as libc::c_uint);
        // SAFETY: every number from first to last is one of the Descriptors of this run, which we
        // own: nobody else's is hit.
        let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        if result < 0 {
            // Before Linux 5.9.
            for event in run {
                // SAFETY: as above; close_range closes nothing when it fails.
                unsafe { libc::close(event.number()) };
            }
        }
    }
}

fn open_at(directory: impl AsFd, path: &str) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(directory, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// The CPU in a task's `stat`.
fn last_cpu(directory: &OwnedFd, path: &str) -> Option<u32> {
    let mut buffer = [0u8; 1024];
    let read = rustix::io::read(open_at(directory, path).ok()?, &mut buffer).ok()?;
    // The name, in brackets, may hold anything; the CPU is the 39th field of all, the 37th behind
    // it.
    let name_ends = buffer[..read].iter().rposition(|&byte| byte == b')')?;
    let text = std::str::from_utf8(&buffer[name_ends + 1..read]).ok()?;
    text.split_ascii_whitespace().nth(36)?.parse().ok()
}

/// Makes room in this process's table of descriptors for this many more. The table doubles as it
/// fills, and each time that happens while threads share it, the kernel waits until all CPUs have
/// passed a quiet state: so do it early, and once.
pub fn reserve_descriptors(more: usize) {
    let Ok(probe) = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) else { return };
    // The lowest free number is a fair guess of how many are in use.
    let last = (probe.as_raw_fd() as usize).saturating_add(more);
    let limit =
        getrlimit(Resource::Nofile).current.map_or(usize::MAX, |limit| limit.saturating_sub(1) as usize);
    if let Ok(last) = i32::try_from(last.min(limit)) {
        // Dropped at once: the table stays as large as it has become.
        drop(rustix::io::fcntl_dupfd_cloexec(&probe, last));
    }
}

/// The machine's page size in bytes: asked, not assumed.
pub fn page_size() -> usize {
    rustix::param::page_size()
}
