//! The BPF programs that divide the time of threads. Each is written here as it runs: `switch` and
//! `switched` at a context switch, `waking` at a wake-up, and the begin and end of `threads`.
mod output;
mod place;
mod switch;
mod switched;
mod threads;
mod waking;

#[cfg(test)]
pub(super) use place::CALL_REGISTER;
pub(super) use switch::switch;
pub(super) use switched::switched;
pub(super) use threads::{exec, newtask};
pub(super) use waking::waking;

use super::record::{PLACE_WORDS, PLACES};
use crate::bpf::insn::{Assembler, BpfHelper, Compare, FP, Label, R0, R1, R3, R6, R7, R8, R9, Reg};
use crate::bpf::program::FollowKey;
use crate::bpf::types::Member;

/// What a thread's entry has, in bytes.
pub(super) mod entry {
    /// When its state began, ns of CLOCK_MONOTONIC.
    pub(in super::super) const SINCE: i16 = 0;
    /// RUNNING, READY, BLOCKED or HELD.
    pub(in super::super) const STATE: i16 = 8;
    /// When it was woken, 0: not yet.
    pub(in super::super) const WOKEN: i16 = 16;
    pub(in super::super) const WAKER: i16 = 24;
    /// Bits of the kernel's `TASK_*` when it left its CPU.
    pub(in super::super) const TASK_STATE: i16 = 32;
    pub(in super::super) const PID: i16 = 40;
    /// What no record has told yet.
    pub(in super::super) const RUN: i16 = 48;
    pub(in super::super) const BLOCKED: i16 = 56;
    pub(in super::super) const RUNNABLE: i16 = 64;
    pub(in super::super) const WAITS: i16 = 72;
    pub(in super::super) const PREEMPTIONS: i16 = 80;
    /// Whether it was long until the thread had a CPU again when it was blocked last, however short
    /// it was preempted since; 1 before the first wait.
    pub(in super::super) const LONG: i16 = 88;
    /// So much without a record is told by one, ns; 0: there is no such threshold.
    pub(in super::super) const THRESHOLD: i16 = 96;
    /// The longest wait that no record has told yet, ns, until the thread was woken.
    pub(in super::super) const LONGEST: i16 = 104;
    /// The waits of so many places that no record has told yet, as records have them.
    pub(in super::super) const PLACES: i16 = 112;
    pub(in super::super) const WORDS: usize = 14 + super::PLACE_WORDS * super::PLACES;
}

/// It has a CPU.
pub(super) const RUNNING: i32 = 0;
/// It waits for a CPU only: it is new, or was preempted.
pub(super) const READY: i32 = 1;
/// It waits to be woken.
pub(super) const BLOCKED: i32 = 2;
/// It waits for its exec, before which nothing counts.
pub(super) const HELD: i32 = 3;
/// It has ended, and its last record found no room: [`super::WaitTracer::end`] gives it.
pub(super) const GONE: i32 = 4;

/// Bits of a task's state that mean that it never runs again: `EXIT_DEAD`, `EXIT_ZOMBIE` and
/// `TASK_DEAD`.
const ENDED: i32 = 0x10 | 0x20 | 0x80;

/// In a task's state: its cgroup had no quota left.
const THROTTLED: i32 = 1 << 31;

/// In COUNTS: threads that had no place, records that had none, and switches to threads that the
/// kernel has left out.
pub(super) const MISSED: u32 = 0;
pub(super) const LOST: u32 = 1;
pub(super) const UNSEEN: u32 = 2;
pub(super) const COUNTS: u32 = 3;

/// Behind the record in the scratch of `switch`: it waits for the thread's own context.
pub(super) const PENDING: i16 = 280;
/// The time that records may still take of this CPU, ns, and when it was counted last.
const BUDGET: i16 = 288;
const COUNTED: i16 = 296;
pub(super) const SCRATCH_BYTES: usize = 304;

/// On the stack of the programs.
const TID: i16 = -8;
const NOW_NS: i16 = -16;
const BLOCKED_NS: i16 = -24;
const RUNNABLE_NS: i16 = -32;
const INDEX: i16 = -36;
const OTHER: i16 = -48;
const VALUE: i16 = -48 - 8 * entry::WORDS as i16;

/// The descriptors of the maps, and who is followed.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitMaps {
    /// Thread id -> entry.
    pub(super) threads: i32,
    /// The record that `switch` prepares, and that of `waking`.
    pub(super) switch_scratch: i32,
    pub(super) waking_scratch: i32,
    /// The event of each CPU that takes the records.
    pub(super) events: i32,
    pub(super) counts: i32,
    /// Who is followed; `None`: everyone.
    pub(super) followed: Option<(i32, FollowKey)>,
    /// How tasks are read.
    pub(super) tasks: TaskAccess,
}

/// How a program reads the tasks that a tracepoint gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TaskAccess {
    /// By loads: the kernel knows the types of a typed tracepoint's arguments.
    Loads,
    /// By a helper that copies.
    Copies,
}

/// Where to see that a task's cgroup has no quota left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ThrottleSource {
    /// In the task (Linux 6.18).
    Task,
    /// In the queue that it is in.
    Queue,
    /// Nowhere: this kernel knows no quotas.
    None,
}

/// Which waits get records of their own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Thresholds {
    /// Waits from so many ns on.
    pub(super) long_ns: u64,
    /// Shorter ones get one together when they have come to so many ns.
    pub(super) together_ns: u64,
    /// Each CPU writes one record in so many ns at most, on average.
    pub(super) interval_ns: i32,
    pub(super) throttle: ThrottleSource,
}

impl Assembler {
    /// `base[offset] += reg`; R1 is lost
    fn add_word(&mut self, base: Reg, offset: i16, reg: Reg) {
        self.load64(R1, base, offset);
        self.add(R1, reg);
        self.store64(base, offset, R1);
    }

    /// `base[offset] += 1`; R1 is lost
    fn count_word(&mut self, base: Reg, offset: i16) {
        self.load64(R1, base, offset);
        self.add_imm(R1, 1);
        self.store64(base, offset, R1);
    }

    /// The longest wait of the entry at R7 is at least `reg`; R1 is lost
    fn wait_as_long(&mut self, reg: Reg) {
        let longer = self.label();
        self.load64(R1, R7, entry::LONGEST);
        self.jump_on(Compare::GreaterEqual, R1, reg, longer);
        self.store64(R7, entry::LONGEST, reg);
        self.place(longer);
    }

    /// *NOW_NS = R8 = the time
    fn now(&mut self) {
        self.call(BpfHelper::Now);
        self.mov(R8, R0);
        self.store64(FP, NOW_NS, R8);
    }

    /// *TID = the running thread, 0 on an idle CPU
    fn running_thread(&mut self) {
        self.call(BpfHelper::CurrentPidTgid);
        self.truncate32(R0);
        self.store64(FP, TID, R0);
    }

    /// *TID = the id of the task in this argument of the tracepoint, or on to `unread`
    fn thread_of(
        &mut self,
        argument: i16,
        tasks: TaskAccess,
        unread: Label,
        wanted: &mut Vec<(usize, Member)>,
    ) {
        self.load64(R3, R6, 8 * argument);
        match tasks {
            TaskAccess::Loads => {
                self.load_member((R1, R3), 4, Member::Id, wanted);
                self.store64(FP, TID, R1);
            }
            TaskAccess::Copies => {
                self.store64_imm(FP, TID, 0);
                self.read_member(TID, 4, Member::Id, unread, wanted); // never: the task is there
            }
        }
    }

    /// R7 = the entry of *TID, or on to `stranger`
    fn thread_entry(&mut self, maps: WaitMaps, stranger: Label) {
        self.load64(R1, FP, TID);
        self.jump_if(R1, 0, stranger); // an idle CPU: no look-up is needed for that
        self.look_up(maps.threads, TID, stranger);
        self.mov(R7, R0);
    }

    /// R9 = the scratch
    fn scratch(&mut self, map: i32, end: Label) {
        self.store32_imm(FP, INDEX, 0);
        self.look_up(map, INDEX, end); // never absent: the verifier wants it asked
        self.mov(R9, R0);
    }

    /// sum += what the entry at R7 has waited without a record; R1 is lost
    fn add_untold(&mut self, sum: Reg) {
        for word in [entry::BLOCKED, entry::RUNNABLE] {
            self.load64(R1, R7, word);
            self.add(sum, R1);
        }
    }
}
