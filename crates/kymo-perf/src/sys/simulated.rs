//! A kernel that only charges for calls: it estimates how long opening a list takes on a machine of
//! another size.
//!
//! Each call costs what [`Costs`] says, and more if it has to reach another CPU than the one that
//! the calling thread is bound to. Costs add up per thread, so that the time of a phase is that of
//! its slowest thread. What it does not know are the locks that threads of one process share inside
//! the kernel; see docs/internals/design/0002-event-lists.md.
use super::{ANY, Binding, Descriptor, EventTarget, Kernel, perf_event_attr};
use crate::ring::{Keeps, Ring};
use rustix::fs::MemfdFlags;
use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// What calls cost, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Costs {
    /// Opening an event.
    pub open_ns: u64,
    /// What the first event of a task costs beyond that.
    pub first_ns: u64,
    /// Enabling or disabling one.
    pub switch_ns: u64,
    /// Letting one write into another's ring.
    pub output_ns: u64,
    /// Closing one.
    pub close_ns: u64,
    /// Looking where a task ran last.
    pub look_ns: u64,
    /// Moving the calling thread to a CPU.
    pub bind_ns: u64,
    /// What opening the first event of a task or CPU, enabling and disabling cost beyond that if
    /// the kernel has to reach another CPU.
    pub remote_ns: u64,
    /// What closing costs beyond that then.
    pub remote_close_ns: u64,
}

/// The kernel.
#[derive(Debug)]
pub struct Simulated {
    /// Tells kernels apart, for what threads remember.
    id: u64,
    costs: Costs,
    cpus: u32,
    next: AtomicI32,
    live: AtomicI32,
    /// The CPU that must be reached to switch an event, by number.
    homes: Vec<AtomicU32>,
    /// Tasks, and behind them CPUs, that have an event.
    known: Vec<AtomicBool>,
    tasks: usize,
    threads: Mutex<Vec<Arc<AtomicU64>>>,
}

thread_local! {
    static ME: RefCell<Option<SimulatedThread>> = const { RefCell::new(None) };
}

/// A thread, as a kernel knows it.
#[derive(Debug)]
struct SimulatedThread {
    kernel: u64,
    spent_ns: Arc<AtomicU64>,
    place: Option<u32>,
    /// The homes of the events that it opened.
    own: Vec<u32>,
}

impl Simulated {
    /// A machine of so many CPUs, for lists of at most `descriptors`, with tasks numbered from 1 to
    /// `tasks`, spread evenly.
    pub fn new(costs: Costs, cpus: u32, tasks: usize, descriptors: usize) -> Simulated {
        static IDS: AtomicU64 = AtomicU64::new(0);
        Simulated {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            costs,
            cpus,
            next: AtomicI32::new(0),
            live: AtomicI32::new(0),
            homes: (0..descriptors).map(|_| AtomicU32::new(0)).collect(),
            known: (0..=tasks + 1 + cpus as usize).map(|_| AtomicBool::new(false)).collect(),
            tasks,
            threads: Mutex::default(),
        }
    }

    /// What the slowest thread has been charged since the last call, in nanoseconds.
    pub fn take_ns(&self) -> u64 {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        // Relaxed, here and below: callers wait for their workers, which orders everything.
        threads.iter().map(|spent| spent.swap(0, Ordering::Relaxed)).max().unwrap_or(0)
    }

    /// How many descriptors are open.
    pub fn live(&self) -> i32 {
        self.live.load(Ordering::Relaxed)
    }

    /// Does something with what this kernel knows of the calling thread.
    fn me<T>(&self, act: impl FnOnce(&mut SimulatedThread) -> T) -> T {
        ME.with_borrow_mut(|me| {
            if me.as_ref().is_none_or(|me| me.kernel != self.id) {
                *me = None;
            }
            act(me.get_or_insert_with(|| {
                let spent_ns = Arc::new(AtomicU64::new(0));
                self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&spent_ns));
                SimulatedThread { kernel: self.id, spent_ns, place: None, own: Vec::new() }
            }))
        })
    }

    fn charge(&self, cost_ns: u64) {
        self.me(|me| me.spent_ns.fetch_add(cost_ns, Ordering::Relaxed));
    }

    fn home(&self, task: i32) -> u32 {
        task.unsigned_abs() % self.cpus.max(1)
    }

    /// A thread that is bound nowhere happens to be on CPU 0.
    fn remote(&self, home: u32, cost_ns: u64) -> u64 {
        self.me(|me| if me.place.unwrap_or(0) == home { 0 } else { cost_ns })
    }
}

impl Kernel for Simulated {
    fn open(&self, _attr: &perf_event_attr, place: &EventTarget<'_>) -> io::Result<Descriptor> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let Some(slot) = self.homes.get(number as usize) else {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        };
        let (home, context) = if place.task == ANY {
            (place.cpu.unsigned_abs(), self.tasks + 1 + place.cpu.unsigned_abs() as usize)
        } else {
            (self.home(place.task), place.task as usize)
        };
        let mut cost = self.costs.open_ns;
        if !self.known[context].swap(true, Ordering::Relaxed) {
            cost += self.costs.first_ns + self.remote(home, self.costs.remote_ns);
        }
        self.me(|me| me.own.push(home));
        slot.store(home, Ordering::Relaxed);
        self.charge(cost);
        self.live.fetch_add(1, Ordering::Relaxed);
        Ok(Descriptor::new(number))
    }

    fn close(&self, events: Vec<Descriptor>) {
        self.live.fetch_sub(events.len() as i32, Ordering::Relaxed);
        for event in events {
            let home = self.homes[event.number() as usize].load(Ordering::Relaxed);
            self.charge(self.costs.close_ns + self.remote(home, self.costs.remote_close_ns));
        }
    }

    fn replace(&self, _old: &Descriptor, new: Descriptor) -> io::Result<()> {
        self.close(vec![new]);
        Ok(())
    }

    fn switch(&self, event: &Descriptor, _on: bool) -> io::Result<()> {
        let home = self.homes[event.number() as usize].load(Ordering::Relaxed);
        self.charge(self.costs.switch_ns + self.remote(home, self.costs.remote_ns));
        Ok(())
    }

    fn switch_own(&self, _on: bool) -> io::Result<()> {
        self.me(|me| {
            let far = me.own.iter().filter(|&&home| home != me.place.unwrap_or(0)).count() as u64;
            let cost_ns = self.costs.switch_ns * me.own.len() as u64 + self.costs.remote_ns * far;
            me.spent_ns.fetch_add(cost_ns, Ordering::Relaxed);
        });
        Ok(())
    }

    fn set_output(&self, _event: &Descriptor, _output: &Descriptor) -> io::Result<()> {
        self.charge(self.costs.output_ns);
        Ok(())
    }

    fn set_filter(&self, _event: &Descriptor, _filter: &str) -> io::Result<()> {
        Ok(())
    }

    fn set_bpf(&self, _event: &Descriptor, _program: BorrowedFd<'_>) -> io::Result<()> {
        Ok(())
    }

    fn id(&self, event: &Descriptor) -> io::Result<u64> {
        Ok(1 + event.number() as u64)
    }

    fn read(&self, _event: &Descriptor, words: &mut [u64]) -> io::Result<usize> {
        words.fill(0);
        Ok(words.len())
    }

    fn pause_output(&self, _event: &Descriptor, _paused: bool) -> io::Result<()> {
        Ok(())
    }

    fn map(&self, _event: &Descriptor, data_pages: usize, keeps: Keeps) -> io::Result<Ring> {
        let file = rustix::fs::memfd_create("kymo-simulated-ring", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, ((1 + data_pages) * super::page_size()) as u64)?;
        Ring::map_as(file.as_fd(), data_pages, keeps)
    }

    fn poll_fd<'a>(&self, _event: &'a Descriptor) -> Option<BorrowedFd<'a>> {
        None
    }

    fn descriptor_limit(&self) -> Option<u64> {
        None
    }

    fn raise_descriptors(&self, _wanted: u64) -> Option<u64> {
        None
    }

    fn last_cpus(&self, tasks: &[i32]) -> Vec<Option<u32>> {
        self.charge(self.costs.look_ns * tasks.len() as u64);
        tasks.iter().map(|&task| Some(self.home(task))).collect()
    }

    fn bind(&self, cpu: u32) -> io::Result<Binding> {
        self.charge(self.costs.bind_ns);
        self.me(|me| me.place = Some(cpu));
        Ok(Binding::of(&[]))
    }

    fn unbind(&self, _before: &Binding) {
        self.charge(self.costs.bind_ns);
        self.me(|me| me.place = None);
    }
}
