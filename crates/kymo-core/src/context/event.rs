//! Events: what they count and how they are inherited, and counts.
use super::CpuId;
use std::fmt;

/// What a [`Pmu`](super::Pmu) counts: a number whose meaning only the `Pmu` knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Source(pub u32);

/// One opened event: what [`open`](super::Engine::open) gave and [`close`](super::Engine::close)
/// takes back. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId(pub(super) u64);

impl EventId {
    /// The number, for a table or another language.
    pub fn number(self) -> u64 {
        self.0
    }

    /// The event of this number, which may be unknown: whatever it is given to says so.
    pub fn from_number(number: u64) -> EventId {
        EventId(number)
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "event {}", self.0)
    }
}

/// Which new tasks get a child of this event when their parent forks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Inherit {
    /// None: the event counts its own task only.
    #[default]
    No,
    /// Those of [`Child::Thread`](super::Child::Thread).
    Threads,
    /// All.
    All,
}

/// How an event is to count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attr {
    /// What to count.
    pub source: Source,
    /// For the leader of a group: it must always have its counters; when it cannot get them it goes
    /// into an error state, and reading it fails until it is enabled again. Otherwise (flexible)
    /// groups take turns.
    pub pinned: bool,
    /// For the leader of a group: while the group counts, no other group has hardware counters on
    /// that CPU.
    pub exclusive: bool,
    /// Which children are counted too. The whole group must agree.
    pub inherit: Inherit,
    /// Keep a right number for each task ([`read_tasks`](super::Engine::read_tasks)), not only for
    /// the family. It costs a read of the counter at every switch.
    pub inherit_stat: bool,
    /// Opened without counting, until [`enable`](super::Engine::enable) or an exec.
    pub disabled: bool,
    /// An exec of a task that has it enables it, once.
    pub enable_on_exec: bool,
    /// An exec of a task that has it takes it away from that task.
    pub remove_on_exec: bool,
    /// Count only while the task is on this CPU. Time enabled goes on elsewhere. The whole group
    /// must agree.
    pub cpu: Option<CpuId>,
    /// What comes of this event belongs to the very task (a signal, say), so contexts that have it
    /// are never exchanged.
    pub bound: bool,
}

impl Attr {
    /// Counts `source` from now on, in one task, flexible.
    pub fn new(source: Source) -> Attr {
        Attr { source, ..Attr::default() }
    }

    /// Counts `source` in a task and everything that it forks: what counting a program or a group
    /// of tasks wants.
    pub fn family(source: Source) -> Attr {
        Attr { inherit: Inherit::All, ..Attr::new(source) }
    }
}

/// A count and the time that it stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// What the counter counted while it ran.
    pub value: u64,
    /// Nanoseconds during which it should have counted: the event was enabled and a task that has
    /// it was on a CPU.
    pub enabled_ns: u64,
    /// Nanoseconds during which it had a counter. Less than `enabled_ns` where events took turns.
    pub running_ns: u64,
}

impl Count {
    /// Whether it ever ran. The kernel may have counted before it tells of any time, at the begin
    /// of what it counts.
    pub fn was_counted(&self) -> bool {
        self.running_ns > 0 || self.value > 0
    }

    /// The count as if it had run all the time that it was enabled; `None` if it never ran ("not
    /// counted").
    pub fn scaled(&self) -> Option<u64> {
        match self.running_ns {
            0 => self.was_counted().then_some(self.value),
            running if running < self.enabled_ns => {
                Some((self.value as f64 * self.enabled_ns as f64 / running as f64) as u64)
            }
            _ => Some(self.value),
        }
    }

    /// For which share of the time it had a counter, from 0 to 1; 1 if it was never enabled.
    pub fn share(&self) -> f64 {
        if self.enabled_ns == 0 { 1.0 } else { self.running_ns as f64 / self.enabled_ns as f64 }
    }

    /// What came to it since an earlier reading.
    #[must_use]
    pub fn since(&self, earlier: &Count) -> Count {
        Count {
            value: self.value.saturating_sub(earlier.value),
            enabled_ns: self.enabled_ns.saturating_sub(earlier.enabled_ns),
            running_ns: self.running_ns.saturating_sub(earlier.running_ns),
        }
    }

    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Count) -> Count {
        Count {
            value: self.value.wrapping_add(other.value),
            enabled_ns: self.enabled_ns.wrapping_add(other.enabled_ns),
            running_ns: self.running_ns.wrapping_add(other.running_ns),
        }
    }
}
