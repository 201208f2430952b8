//! What each thread did at every moment: it ran, waited for a CPU, or waited for something else.
//!
//! ```text
//!            switched in                switched out, S or D
//!  Runnable ------------> Running --------------------------> Blocked
//!     ^  ^                   |                                   |
//!     |  '---- preempted ----'                                   |
//!     '------------------------ woken up ------------------------'
//! ```
use super::event::{OutState, SchedEvent, SchedEventKind, SwitchedIn, SwitchedOut, TaskName};
use rustc_hash::FxHashMap;

/// A thread of a replay: an index into [`Replay::threads`]. A number that the kernel gives to a new
/// task is another thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ThreadIndex(u32);

impl ThreadIndex {
    /// As an index.
    pub fn at(self) -> usize {
        self.0 as usize
    }
}

/// What a thread does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ThreadState {
    /// Nothing was seen of it yet.
    #[default]
    Unknown,
    /// It runs.
    Running {
        /// The CPU, if the recording tells.
        cpu: Option<u32>,
        /// Since when; not known where it ran before the recording, or records were lost.
        since_ns: Option<u64>,
    },
    /// It waits for a CPU.
    Runnable {
        /// Since it was woken up, or lost its CPU.
        since_ns: u64,
    },
    /// It waits for something else.
    Blocked {
        /// Since when.
        since_ns: u64,
    },
}

/// A thread, and how it came to its state.
#[derive(Clone, Debug)]
pub struct ReplayThread {
    /// Its number; 0 for the idle tasks, of which each CPU has one.
    pub tid: i32,
    /// Its process, once known.
    pub pid: Option<i32>,
    /// The thread that made it, once known.
    pub parent_tid: Option<i32>,
    /// Its name now: that of the newest COMM record, else that of the scheduler's events.
    pub name: TaskName,
    /// A COMM record, or its parent's, has given it the name.
    pub is_named: bool,
    /// It has got a name since [`Replay::take_renamed`] was called.
    renamed: bool,
    /// What it does now.
    pub state: ThreadState,
    /// Its priority when it last got a CPU, as the kernel counts; -1 until then.
    pub priority: i32,
    /// How it waits, or got the CPU on which it runs.
    wait: Wait,
}

impl ReplayThread {
    fn new(tid: i32) -> ReplayThread {
        ReplayThread {
            tid,
            pid: None,
            parent_tid: None,
            name: TaskName::default(),
            is_named: false,
            renamed: false,
            state: ThreadState::Unknown,
            priority: -1,
            wait: Wait::default(),
        }
    }

    /// Whether it is the idle task of a CPU.
    pub fn is_idle(&self) -> bool {
        self.tid == 0
    }

    /// Its name for people: `:7` for a thread 7 without one.
    pub fn shown_name(&self) -> String {
        if self.name.is_empty() { format!(":{}", self.tid) } else { self.name.to_string() }
    }
}

/// What was before a thread got a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wait {
    /// When it left a CPU before, and in which state.
    pub off: Option<(u64, OutState)>,
    /// When it became runnable; not known where its wake-up was not recorded.
    pub ready_ns: Option<u64>,
    /// When it was last moved to another CPU, after it had left its own.
    pub migrated_ns: Option<u64>,
}

/// A thread that has left a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stint {
    /// The thread.
    pub thread: ThreadIndex,
    /// When it got the CPU, if that was recorded.
    pub from_ns: Option<u64>,
    /// The state in which it left.
    pub state: OutState,
    /// Its priority when it got the CPU; -1 where the recording does not tell.
    pub priority_in: i32,
    /// Its priority when it left; -1 where the recording does not tell.
    pub priority: i32,
    /// How it had got the CPU.
    pub wait: Wait,
}

/// A thread that has got a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The thread.
    pub thread: ThreadIndex,
    /// Nothing had been seen of it before.
    pub is_first: bool,
    /// How it got the CPU.
    pub wait: Wait,
}

/// What an event changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A switch.
    Switched {
        /// The thread that ran.
        out: Option<Stint>,
        /// The thread that runs now.
        into: Option<Arrival>,
    },
    /// A wake-up.
    Woken {
        /// The thread that was woken up.
        thread: ThreadIndex,
        /// The thread that ran on the waker's CPU.
        waker: Option<ThreadIndex>,
        /// It waited before: any further wake-up of it changes nothing.
        was_waiting: bool,
    },
    /// A thread was moved.
    Migrated {
        /// The thread.
        thread: ThreadIndex,
        /// The thread that ran on the CPU that moved it.
        mover: Option<ThreadIndex>,
    },
    /// The kernel's account of a thread's run time.
    Accounted {
        /// The thread.
        thread: ThreadIndex,
    },
    /// Nothing that has a time.
    Other,
}

/// The states of all threads, event by event.
#[derive(Debug, Default)]
pub struct Replay {
    threads: Vec<ReplayThread>,
    live: FxHashMap<i32, ThreadIndex>,
    cpus: Vec<CpuState>,
    /// Switches away from another thread than the one that had got the CPU: events are missing.
    pub mismatched_switches: u64,
}

#[derive(Clone, Debug, Default)]
struct CpuState {
    idle: Option<ThreadIndex>,
    /// What has run since the last switch, and since when, if no records were lost since.
    current: Option<(ThreadIndex, Option<u64>)>,
}

impl Replay {
    /// All threads that were seen.
    pub fn threads(&self) -> &[ReplayThread] {
        &self.threads
    }

    /// A thread.
    pub fn thread(&self, index: ThreadIndex) -> &ReplayThread {
        &self.threads[index.at()]
    }

    /// The idle thread of a CPU, if the CPU was ever idle.
    pub fn idle_thread(&self, cpu: u32) -> Option<ThreadIndex> {
        self.cpus.get(cpu as usize)?.idle
    }

    /// One more than the highest CPU that was seen.
    pub fn cpu_count(&self) -> usize {
        self.cpus.len()
    }

    /// The thread that runs on a CPU, if a switch has told.
    pub fn current(&self, cpu: u32) -> Option<ThreadIndex> {
        Some(self.cpus.get(cpu as usize)?.current?.0)
    }

    /// Whether a thread has got a name since this was last asked.
    pub fn take_renamed(&mut self, index: ThreadIndex) -> bool {
        std::mem::take(&mut self.threads[index.at()].renamed)
    }

    /// The next event. Events come in order of time; an older one changes no times.
    pub fn apply(&mut self, event: &SchedEvent) -> Step {
        self.learn_process(event);
        match event.kind {
            SchedEventKind::Switch { prev, next } => self.switch(event, prev, next),
            SchedEventKind::Wakeup { tid, name, .. } => {
                let waker = self.doer(event);
                let thread = self.find_or_new(tid, event.cpu);
                self.name_unnamed(thread, name);
                Step::Woken { thread, waker, was_waiting: self.wake(thread, event.time_ns) }
            }
            SchedEventKind::Migrate { tid, .. } => {
                let mover = self.doer(event);
                let thread = self.find_or_new(tid, event.cpu);
                self.threads[thread.at()].wait.migrated_ns = Some(event.time_ns);
                Step::Migrated { thread, mover }
            }
            SchedEventKind::Runtime { tid, .. } => {
                Step::Accounted { thread: self.find_or_new(tid, event.cpu) }
            }
            SchedEventKind::Fork { tid, pid, parent_tid } => {
                self.fork(tid, pid, parent_tid);
                Step::Other
            }
            SchedEventKind::Name { ids, name } => {
                let thread = self.find_or_new(ids.tid, event.cpu);
                let thread = &mut self.threads[thread.at()];
                (thread.name, thread.is_named, thread.renamed) = (name, true, true);
                thread.pid = Some(ids.pid);
                Step::Other
            }
            SchedEventKind::Lost { .. } => {
                self.forget_times(event.cpu);
                Step::Other
            }
            SchedEventKind::Exit { .. } => Step::Other,
        }
    }

    fn switch(&mut self, event: &SchedEvent, prev: Option<SwitchedOut>, next: Option<SwitchedIn>) -> Step {
        let (now, cpu) = (event.time_ns, event.cpu);
        let out = prev.map(|prev| {
            let thread = self.find_or_new(prev.tid, cpu);
            self.name_unnamed(thread, prev.name);
            let from_ns = self.ran_since(cpu, thread).filter(|from| *from <= now);
            let of = &mut self.threads[thread.at()];
            let wait = std::mem::take(&mut of.wait);
            of.wait.off = Some((now, prev.state));
            of.wait.ready_ns = prev.state.is_runnable().then_some(now);
            of.state = match prev.state.is_runnable() {
                true => ThreadState::Runnable { since_ns: now },
                false => ThreadState::Blocked { since_ns: now },
            };
            let (priority_in, priority) = (of.priority, prev.priority);
            Stint { thread, from_ns, state: prev.state, priority_in, priority, wait }
        });
        let into = next.map(|next| {
            let thread = self.find_or_new(next.tid, cpu);
            self.name_unnamed(thread, next.name);
            let of = &mut self.threads[thread.at()];
            of.pid = of.pid.or(next.pid);
            let is_first = of.state == ThreadState::Unknown;
            if matches!(of.state, ThreadState::Running { .. }) {
                // It runs already: that it left a CPU was not recorded, nor since when it has
                // waited.
                of.wait = Wait::default();
            }
            // What lies after now is of events out of order.
            of.wait.ready_ns = of.wait.ready_ns.filter(|ready| *ready <= now);
            of.wait.off = of.wait.off.filter(|(off, _)| *off <= now);
            of.state = ThreadState::Running { cpu, since_ns: Some(now) };
            of.priority = next.priority;
            Arrival { thread, is_first, wait: of.wait }
        });
        if let Some(cpu) = cpu {
            self.cpu(cpu).current = into.map(|into| (into.thread, Some(now)));
        }
        Step::Switched { out, into }
    }

    /// Since when the thread that leaves the CPU has run there.
    fn ran_since(&mut self, cpu: Option<u32>, thread: ThreadIndex) -> Option<u64> {
        let Some(cpu) = cpu else {
            // The switches of single tasks, without CPUs.
            return match self.threads[thread.at()].state {
                ThreadState::Running { since_ns, .. } => since_ns,
                _ => None,
            };
        };
        let (current, since) = self.cpu(cpu).current?;
        if current != thread {
            self.mismatched_switches += 1;
            return None;
        }
        since
    }

    /// A wake-up: whether it made the thread runnable.
    fn wake(&mut self, thread: ThreadIndex, now: u64) -> bool {
        let thread = &mut self.threads[thread.at()];
        let waits = match thread.state {
            ThreadState::Unknown => true,
            ThreadState::Blocked { since_ns } => since_ns <= now,
            // It runs still, or was woken up before.
            ThreadState::Running { .. } | ThreadState::Runnable { .. } => false,
        };
        if waits {
            thread.state = ThreadState::Runnable { since_ns: now };
            thread.wait.ready_ns = Some(now);
        }
        waits
    }

    /// A new task, which has its parent's name. The recording may tell it twice, by a record and by
    /// a sample; a number that had done something is a new thread.
    fn fork(&mut self, tid: i32, pid: Option<i32>, parent_tid: i32) {
        let parent = self.live.get(&parent_tid).map(|index| self.thread(*index));
        let name = parent.filter(|parent| parent.is_named).map(|parent| parent.name);
        let known = self.live.get(&tid).copied();
        let unused = known.filter(|known| self.thread(*known).state == ThreadState::Unknown);
        let child = match unused {
            Some(child) => child,
            None if tid == 0 => return,
            None => {
                let child = self.add(tid);
                self.live.insert(tid, child);
                child
            }
        };
        let child = &mut self.threads[child.at()];
        child.pid = pid.or(child.pid);
        child.parent_tid = Some(parent_tid);
        if let Some(name) = name.filter(|_| !child.is_named) {
            (child.name, child.is_named) = (name, true);
        }
    }

    /// Records of a CPU were lost, or of all: what runs there has not run all the time.
    fn forget_times(&mut self, cpu: Option<u32>) {
        let forget = |state: &mut CpuState| {
            if let Some((_, since)) = &mut state.current {
                *since = None;
            }
        };
        match cpu {
            Some(cpu) => forget(self.cpu(cpu)),
            None => self.cpus.iter_mut().for_each(forget),
        }
    }

    /// The thread that ran where the event was recorded. One that has ended has no numbers any
    /// more: then it is what the last switch has told.
    fn doer(&mut self, event: &SchedEvent) -> Option<ThreadIndex> {
        match event.current {
            Some(ids) => Some(self.find_or_new(ids.tid, event.cpu)),
            None => self.current(event.cpu?),
        }
    }

    /// The task that ran when the event was recorded: its process.
    fn learn_process(&mut self, event: &SchedEvent) {
        let Some(ids) = event.current.filter(|ids| ids.tid > 0) else { return };
        let thread = self.find_or_new(ids.tid, event.cpu);
        let thread = &mut self.threads[thread.at()];
        thread.pid = thread.pid.or(Some(ids.pid));
    }

    /// Gives a name of the scheduler's events to a thread that no COMM record has named.
    fn name_unnamed(&mut self, thread: ThreadIndex, name: TaskName) {
        let thread = &mut self.threads[thread.at()];
        if !thread.is_named && !name.is_empty() {
            thread.name = name;
        }
    }

    /// The live thread of this number; the idle task is that of the CPU.
    fn find_or_new(&mut self, tid: i32, cpu: Option<u32>) -> ThreadIndex {
        if tid == 0
            && let Some(cpu) = cpu
        {
            if let Some(idle) = self.cpu(cpu).idle {
                return idle;
            }
            let idle = self.add(0);
            self.threads[idle.at()].pid = Some(0);
            self.cpu(cpu).idle = Some(idle);
            return idle;
        }
        if let Some(found) = self.live.get(&tid) {
            return *found;
        }
        let new = self.add(tid);
        self.live.insert(tid, new);
        new
    }

    fn add(&mut self, tid: i32) -> ThreadIndex {
        self.threads.push(ReplayThread::new(tid));
        ThreadIndex((self.threads.len() - 1) as u32)
    }

    fn cpu(&mut self, cpu: u32) -> &mut CpuState {
        let at = cpu as usize;
        if at >= self.cpus.len() {
            self.cpus.resize(at + 1, CpuState::default());
        }
        &mut self.cpus[at]
    }
}
