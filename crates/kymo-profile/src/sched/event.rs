//! What the scheduler did, as typed values: switches, wake-ups, migrations, tasks that begin and
//! end.
use std::fmt;

/// The name of a task, at most 15 bytes, as the kernel keeps it.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskName([u8; TaskName::BYTES]);

impl TaskName {
    /// The kernel's `TASK_COMM_LEN`.
    const BYTES: usize = 16;

    /// The bytes up to the first zero, cut to the kernel's length.
    pub fn new(text: &[u8]) -> TaskName {
        let mut bytes = [0; TaskName::BYTES];
        let kept = text.iter().take(TaskName::BYTES - 1).take_while(|byte| **byte != 0);
        bytes.iter_mut().zip(kept).for_each(|(to, from)| *to = *from);
        TaskName(bytes)
    }

    /// The bytes of the name.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.split(|byte| *byte == 0).next().unwrap_or(&[])
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.as_bytes().is_empty()
    }
}

impl fmt::Display for TaskName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&String::from_utf8_lossy(self.as_bytes()))
    }
}

impl fmt::Debug for TaskName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(self.as_bytes()))
    }
}

/// In which state a task left its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OutState {
    /// The kernel's letter: `R` runnable, `S` sleeping, `D` in an uninterruptible wait, and so on;
    /// `?` where the recording does not tell.
    pub letter: char,
    /// The kernel took the CPU away in the middle of its own or the task's code (`R+`).
    pub preempted: bool,
}

impl OutState {
    /// Whether it waits for a CPU, and for nothing else.
    pub fn is_runnable(self) -> bool {
        self.letter == 'R'
    }
}

/// One thing that the scheduler did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedEvent {
    /// When, in ns of the recording's clock; 0 for what was so before the recording.
    pub time_ns: u64,
    /// The CPU that did it, if the recording tells.
    pub cpu: Option<u32>,
    /// The task that ran there then, if the recording tells.
    pub current: Option<TaskIds>,
    /// What it was.
    pub kind: SchedEventKind,
}

/// The numbers of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskIds {
    /// Its process.
    pub pid: i32,
    /// The thread.
    pub tid: i32,
}

/// What the scheduler did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedEventKind {
    /// A CPU went from one task to another. A recording of single tasks tells one side only.
    Switch {
        /// The task that ran until now.
        prev: Option<SwitchedOut>,
        /// The task that runs from now on.
        next: Option<SwitchedIn>,
    },
    /// A task was woken up.
    Wakeup {
        /// Which of the kernel's events it was.
        step: WakeupStep,
        /// The task that was woken up.
        tid: i32,
        /// Its name.
        name: TaskName,
        /// The CPU on which it shall run.
        target_cpu: Option<u32>,
        /// Whether an interrupt woke it up, not the task that ran.
        in_interrupt: bool,
    },
    /// A task was moved to another CPU.
    Migrate {
        /// The task.
        tid: i32,
        /// From this CPU.
        from_cpu: u32,
        /// To this one.
        to_cpu: u32,
    },
    /// A task began.
    Fork {
        /// The task.
        tid: i32,
        /// Its process, if the event tells.
        pid: Option<i32>,
        /// The thread that made it.
        parent_tid: i32,
    },
    /// A task ended; its last switch follows.
    Exit {
        /// The task.
        tid: i32,
    },
    /// The kernel added this to a task's run time.
    Runtime {
        /// The task.
        tid: i32,
        /// Nanoseconds on a CPU since the kernel's last event of this kind.
        runtime_ns: u64,
    },
    /// A task has this name from now on.
    Name {
        /// The task.
        ids: TaskIds,
        /// The name.
        name: TaskName,
    },
    /// The recorder lost records of this CPU.
    Lost {
        /// How many.
        records: u64,
    },
}

/// The side of a switch that leaves the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchedOut {
    /// The task; 0 is the CPU's idle task.
    pub tid: i32,
    /// Its name, if the event has it.
    pub name: TaskName,
    /// In which state.
    pub state: OutState,
    /// Its priority as the kernel counts, 0 to 139; -1 where the event has none.
    pub priority: i32,
}

/// The side of a switch that gets the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchedIn {
    /// The task; 0 is the CPU's idle task.
    pub tid: i32,
    /// Its process, if the event tells.
    pub pid: Option<i32>,
    /// Its name, if the event has it.
    pub name: TaskName,
    /// Its priority as the kernel counts, 0 to 139; -1 where the event has none.
    pub priority: i32,
}

/// Which event of a wake-up it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeupStep {
    /// `sched_waking`: the waker begins; it runs on the waker's CPU.
    Waking,
    /// `sched_wakeup`: the task is on a run queue; perhaps on another CPU than the waker's.
    Enqueued,
    /// `sched_wakeup_new`: a new task is on a run queue.
    New,
}
