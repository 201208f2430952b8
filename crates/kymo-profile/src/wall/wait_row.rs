//! What a recording tells of a thread's waits: a row of it, and a wake-up.
use crate::chains::ChainId;
use crate::timeline::CommId;

/// A thread that ran again, or ended: where its time went since its row before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitRow {
    /// When it ran again, ns.
    pub time_ns: u64,
    /// Its process and number.
    pub thread: (i32, i32),
    /// Its name then.
    pub comm: CommId,
    /// Where it waited.
    pub chain: ChainId,
    /// The CPU on which it ran again, `u32::MAX` if not recorded.
    pub cpu: u32,
    /// Why it left its CPU: bits of the kernel's `TASK_*`; 0 if it was preempted.
    pub task_state: u32,
    /// Who woke it, 0 if nobody was seen to.
    pub waker: i32,
    /// Its last wait until it was woken, ns.
    pub blocked_ns: u64,
    /// Ready from then on, ns.
    pub runnable_ns: u64,
    /// On a CPU since the row before, ns.
    pub run_ns: u64,
    /// Waits in between that have no rows of their own, ns, but those in `other_places`.
    pub short_blocked_ns: u64,
    /// The same, ready; and when it was preempted.
    pub short_runnable_ns: u64,
    /// How many those were.
    pub short_waits: u64,
    /// How often it was preempted in between.
    pub short_preemptions: u64,
    /// The thread or the recording ended.
    pub is_end: bool,
    /// Of a wait in which the recording ended: whether it is for work only (`true`), or one of its
    /// files is a connection to a server; `None`: neither is known.
    pub for_work: Option<bool>,
    /// The system call it was in, -1 outside of any.
    pub syscall: i64,
    /// The call's first argument.
    pub argument: u64,
    /// The low half of its second one, a futex's operation.
    pub operation: u32,
    /// The longest of the waits without rows of their own, until it was woken, ns; `None`: it was
    /// not recorded.
    pub short_longest_ns: Option<u64>,
    /// The system call in which most of them were; `None`: outside of any, or that is not known.
    pub short_call: Option<i64>,
    /// How much of their time was elsewhere, it is not known where, ns.
    pub short_mixed_ns: u64,
    /// Where in its program the thread waited, and where most of the others were: numbers that are
    /// the same for the same stack of a process. `None`: that is not known.
    pub place: Option<u64>,
    /// The same of the waits without rows of their own.
    pub short_place: Option<u64>,
    /// More such waits, at other places.
    pub other_places: [PlaceWaits; 2],
}

/// Waits without rows of their own at one place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlaceWaits {
    /// Until the thread was woken, ns.
    pub blocked_ns: u64,
    /// How many.
    pub waits: u64,
    /// The longest, ns; `None`: that was not recorded.
    pub longest_ns: Option<u64>,
    /// As [`WaitRow::short_call`].
    pub call: Option<i64>,
    /// As [`WaitRow::place`].
    pub place: Option<u64>,
    /// Ready behind them, until the thread had a CPU, ns.
    pub runnable_ns: u64,
}

impl WaitRow {
    /// All waits that have no rows of their own, by place.
    pub(super) fn short(&self) -> [PlaceWaits; 3] {
        let first = PlaceWaits {
            blocked_ns: self.short_blocked_ns,
            waits: self.short_waits,
            longest_ns: self.short_longest_ns,
            call: self.short_call,
            place: self.short_place,
            runnable_ns: self.short_runnable_ns,
        };
        let [second, third] = self.other_places;
        [first, second, third]
    }

    /// Gives their places to the short waits, of which the row has the sums until now.
    pub(super) fn divide_short_waits(&mut self, mut places: [PlaceWaits; 3]) {
        places.sort_unstable_by_key(|place| std::cmp::Reverse(place.blocked_ns));
        let [first, others @ ..] = places;
        let longest = places.iter().filter_map(|place| place.longest_ns).max();
        for other in &others {
            self.short_blocked_ns = self.short_blocked_ns.saturating_sub(other.blocked_ns);
            self.short_waits = self.short_waits.saturating_sub(other.waits);
            self.short_runnable_ns = self.short_runnable_ns.saturating_sub(other.runnable_ns);
        }
        // Whether the longest one was elsewhere.
        self.short_longest_ns = self.short_longest_ns.filter(|all| Some(*all) > longest).or(first.longest_ns);
        (self.short_call, self.short_place) = (first.call, first.place);
        self.short_mixed_ns = self.short_blocked_ns.saturating_sub(first.blocked_ns);
        self.other_places = others;
    }

    /// What no row of its own tells of waits, ns.
    pub(super) fn all_short_ns(&self) -> u64 {
        self.short().iter().fold(0, |sum, place| sum.saturating_add(place.blocked_ns))
    }

    /// The same, ready.
    pub(super) fn all_short_runnable_ns(&self) -> u64 {
        self.short().iter().fold(0, |sum, place| sum.saturating_add(place.runnable_ns))
    }

    /// A row that tells of no time.
    pub(super) fn nothing(time_ns: u64, thread: (i32, i32), comm: CommId, chain: ChainId) -> WaitRow {
        WaitRow {
            time_ns,
            thread,
            comm,
            chain,
            cpu: u32::MAX,
            task_state: 0,
            waker: 0,
            blocked_ns: 0,
            runnable_ns: 0,
            run_ns: 0,
            short_blocked_ns: 0,
            short_runnable_ns: 0,
            short_waits: 0,
            short_preemptions: 0,
            is_end: false,
            for_work: None,
            syscall: -1,
            argument: 0,
            operation: 0,
            short_longest_ns: None,
            short_call: None,
            short_mixed_ns: 0,
            place: None,
            short_place: None,
            other_places: Default::default(),
        }
    }

    /// Whether the thread only wanted a CPU.
    pub(super) fn is_preempted(&self) -> bool {
        self.task_state & !(1 << 31) == 0
    }

    /// All of it, ns.
    pub fn total_ns(&self) -> u64 {
        let parts = [self.blocked_ns, self.runnable_ns, self.all_short_ns(), self.all_short_runnable_ns()];
        parts.iter().fold(self.run_ns, |sum, part| sum.saturating_add(*part))
    }
}

/// A thread was woken that had waited long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WakeupRow {
    /// When, ns.
    pub time_ns: u64,
    /// The one that woke it, or in which the interrupt came that did.
    pub waker: (i32, i32),
    /// Where that one was.
    pub chain: ChainId,
    /// The one that was woken.
    pub woken: i32,
    /// How long that had been blocked, ns.
    pub blocked_ns: u64,
    /// Why it had left its CPU, as [`WaitRow::task_state`].
    pub task_state: u32,
    /// The call that it was in; `None`: the recording does not tell.
    pub call: Option<BlockedCall>,
}

/// The system call of a thread that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockedCall {
    /// As [`WaitRow::syscall`].
    pub syscall: i64,
    /// As [`WaitRow::argument`].
    pub argument: u64,
    /// As [`WaitRow::operation`].
    pub operation: u32,
    /// As [`WaitRow::place`].
    pub place: u64,
}
