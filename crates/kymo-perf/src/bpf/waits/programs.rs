//! The BPF programs that divide the time of threads. Each is written here as it runs.
use super::record::{RECORD_BYTES, WaitKind, at};
use crate::bpf::budget::{Budget, Threshold};
use crate::bpf::insn::{
    Assembler, BpfHelper, Compare, FP, Label, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, Reg,
};
use crate::bpf::program::{CLONE_THREAD, FollowKey, NOW, Program, THIS_CPU};
use crate::bpf::python::PythonMaps;
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
    /// The system call in which most of the waits were that no record has told yet, plus one; 0:
    /// outside of any, or that is not known. And their time in it, ns, at least.
    pub(in super::super) const CALL: i16 = 112;
    pub(in super::super) const CALL_NS: i16 = 120;
    /// Where that call was made, as records have it.
    pub(in super::super) const PLACE: i16 = 128;
    pub(in super::super) const WORDS: usize = 17;
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

/// In COUNTS: threads that had no place, and records that had none.
pub(super) const MISSED: u32 = 0;
pub(super) const LOST: u32 = 1;

/// Behind the record in the scratch of `switch`: it waits for the thread's own context.
pub(super) const PENDING: i16 = 160;
/// The time that records may still take of this CPU, ns, and when it was counted last.
const BUDGET: i16 = 168;
const COUNTED: i16 = 176;
pub(super) const SCRATCH_BYTES: usize = 184;

/// On the stack of the programs.
const TID: i16 = -8;
const NOW_NS: i16 = -16;
const BLOCKED_NS: i16 = -24;
const RUNNABLE_NS: i16 = -32;
const INDEX: i16 = -36;
const OTHER: i16 = -48;
const VALUE: i16 = -48 - 8 * entry::WORDS as i16;

/// Where the registers of a thread in user space have the call and its arguments: (from, bytes,
/// where they go in a record).
#[cfg(target_arch = "x86_64")]
const CALL_REGISTERS: [(i32, i32, i16); 1] = [(104, 24, at::ARGUMENT_1)];
#[cfg(not(target_arch = "x86_64"))]
const CALL_REGISTERS: [(i32, i32, i16); 2] = [(8, 8, at::ARGUMENT_1), (272, 16, at::ARGUMENT_0)];

/// Where they have the number of the call.
const CALL_REGISTER: i16 = if cfg!(target_arch = "x86_64") { 120 } else { 280 };

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

    /// The record at R9: kind, thread, and what the entry at R7 has not told yet, which is told
    /// now.
    fn begin_record(&mut self, kind: WaitKind) {
        self.store32_imm(R9, at::KIND, kind as i32);
        for (to, from) in
            [(at::TASK_STATE, entry::TASK_STATE), (at::PID, entry::PID), (at::WAKER, entry::WAKER)]
        {
            self.load64(R1, R7, from);
            self.store32(R9, to, R1);
        }
        self.load64(R1, FP, TID);
        self.store32(R9, at::TID, R1);
        let told = [
            (at::RUN, entry::RUN),
            (at::SHORT_BLOCKED, entry::BLOCKED),
            (at::SHORT_RUNNABLE, entry::RUNNABLE),
            (at::SHORT_WAITS, entry::WAITS),
            (at::SHORT_PREEMPTIONS, entry::PREEMPTIONS),
            (at::SHORT_LONGEST, entry::LONGEST),
            (at::SHORT_CALL, entry::CALL),
            (at::SHORT_CALL_NS, entry::CALL_NS),
            (at::SHORT_PLACE, entry::PLACE),
        ];
        for (to, from) in told {
            self.load64(R1, R7, from);
            self.store64(R9, to, R1);
            self.store64_imm(R7, from, 0);
        }
        self.store64_imm(R9, at::BLOCKED, 0);
        self.store64_imm(R9, at::RUNNABLE, 0);
        self.store64_imm(R9, at::SYSCALL, -1);
        self.store64_imm(R9, at::PLACE, 0);
    }

    /// R0 = 0 if the record at R9 was written as a sample of the running thread; R6 is the context
    fn write_record(&mut self, maps: WaitMaps) {
        self.mov(R1, R6);
        self.load_map(R2, maps.events);
        self.mov_imm64(R3, THIS_CPU);
        self.mov(R4, R9);
        self.mov_imm(R5, RECORD_BYTES as i32);
        self.call(BpfHelper::EventOutput);
    }

    /// Takes a record's part of the budget of the scratch at R9, or goes on to `none`: one that
    /// tells R5 ns of waiting, at R8, of the thread of the entry at R7. `sets`: whether it tells all that is untold.
    fn spend(&mut self, thresholds: Thresholds, sets: bool, none: Label) {
        let budget = Budget {
            left: BUDGET,
            counted: COUNTED,
            interval_ns: thresholds.interval_ns,
            together_ns: thresholds.together_ns,
        };
        let threshold = Threshold { of: R7, at: entry::THRESHOLD, sets };
        self.spend_budget(budget, threshold, none);
    }

    /// The entry at R7 tells again what the record at R9 has not: sums stay right without it, and
    /// have the place of the record's wait, or that of the short ones, whichever was longer.
    fn take_back(&mut self) {
        let (preempted, of_short, has_place) = (self.label(), self.label(), self.label());
        self.load64(R2, R9, at::BLOCKED);
        self.load64(R3, R9, at::SHORT_CALL_NS);
        self.jump_on(Compare::Less, R2, R3, of_short);
        self.load64(R1, R9, at::SYSCALL);
        self.add_imm(R1, 1);
        self.store64(R7, entry::CALL, R1);
        self.store64(R7, entry::CALL_NS, R2);
        self.load64(R1, R9, at::PLACE);
        self.jump(has_place);
        self.place(of_short);
        self.load64(R1, R9, at::SHORT_CALL);
        self.store64(R7, entry::CALL, R1);
        self.store64(R7, entry::CALL_NS, R3);
        self.load64(R1, R9, at::SHORT_PLACE);
        self.place(has_place);
        self.store64(R7, entry::PLACE, R1);
        self.take_back_times();
        self.load32(R2, R9, at::TASK_STATE);
        self.shift_left_imm(R2, 33); // throttled or not
        self.mov_imm(R3, 1);
        self.jump_if(R2, 0, preempted);
        self.add_word(R7, entry::WAITS, R3);
        self.mov_imm(R3, 0);
        self.place(preempted);
        self.add_word(R7, entry::PREEMPTIONS, R3);
    }

    /// The same of times and counts alone, without the record's own wait.
    fn take_back_times(&mut self) {
        let untold = [
            (entry::RUN, at::RUN),
            (entry::BLOCKED, at::BLOCKED),
            (entry::BLOCKED, at::SHORT_BLOCKED),
            (entry::RUNNABLE, at::RUNNABLE),
            (entry::RUNNABLE, at::SHORT_RUNNABLE),
            (entry::WAITS, at::SHORT_WAITS),
            (entry::PREEMPTIONS, at::SHORT_PREEMPTIONS),
        ];
        for (to, from) in untold {
            self.load64(R2, R9, from);
            self.add_word(R7, to, R2);
        }
        for from in [at::BLOCKED, at::SHORT_LONGEST] {
            self.load64(R2, R9, from);
            self.wait_as_long(R2);
        }
    }
}

/// Runs at each switch, in the thread that leaves its CPU: ends the time of that one on the CPU,
/// and the wait of the next.
///
/// `directly`: records are written here, as samples of the thread that leaves, where the kernel has
/// no tracepoint behind the switch.
pub(super) fn switch(maps: WaitMaps, thresholds: Thresholds, directly: bool) -> Program {
    let (mut a, mut wanted) = (Assembler::new(), Vec::new());
    let (next, end) = (a.label(), a.label());
    a.mov(R6, R1); // R6 = the context
    a.now();
    match maps.tasks {
        TaskAccess::Loads => a.thread_of(1, maps.tasks, end, &mut wanted),
        TaskAccess::Copies => a.running_thread(),
    }
    a.thread_entry(maps, next);
    a.leave(maps, thresholds, directly, next, &mut wanted);
    a.place(next);
    a.thread_of(2, maps.tasks, end, &mut wanted);
    a.thread_entry(maps, end);
    a.come_back((maps, thresholds, directly), end, &mut wanted);
    a.show(end);
    Program { wanted, ..a.finish().into() }
}

impl Assembler {
    /// The thread of the entry at R7 leaves its CPU at R8; its last record is written if it ends.
    fn leave(
        &mut self,
        maps: WaitMaps,
        thresholds: Thresholds,
        directly: bool,
        next: Label,
        wanted: &mut Vec<(usize, Member)>,
    ) {
        let (waits, told, preempted, runs) = (self.label(), self.label(), self.label(), self.label());
        self.load64(R1, R7, entry::STATE);
        self.jump_if(R1, HELD, next);
        self.jump_if(R1, GONE, next); // of another thread, which had this id
        self.load64(R2, R7, entry::SINCE);
        self.jump_unless(R1, BLOCKED, runs);
        self.end_unseen_wait();
        self.place(runs);
        self.mov(R3, R8);
        self.sub(R3, R2);
        self.add_word(R7, entry::RUN, R3);
        self.store64(R7, entry::SINCE, R8);
        self.store64_imm(R7, entry::WOKEN, 0);
        self.store64_imm(R7, entry::WAKER, 0);
        self.store64_imm(R7, entry::STATE, READY);
        self.store64_imm(R7, entry::TASK_STATE, 0);
        self.load64(R1, R6, 0);
        self.and_imm(R1, 0xff);
        self.jump_unless(R1, 0, preempted); // whatever it was about to do
        self.load64(R2, R6, 24);
        self.truncate32(R2);
        self.jump_if(R2, 0, preempted);
        self.store64(R7, entry::TASK_STATE, R2);
        self.store64_imm(R7, entry::STATE, BLOCKED);
        self.and_imm(R2, ENDED);
        self.jump_unless(R2, 0, waits);
        if directly {
            self.write_stack(maps, thresholds, next);
        }
        self.jump(next);
        self.place(preempted);
        self.mark_throttled((thresholds.throttle, maps.tasks), next, wanted);
        self.jump(next);
        self.place(waits);
        self.scratch(maps.switch_scratch, next);
        self.begin_record(WaitKind::End);
        self.write_record(maps);
        self.jump_if(R0, 0, told);
        self.add_one(maps.counts, LOST, INDEX);
        self.take_back_times();
        self.store64_imm(R7, entry::STATE, GONE);
        self.jump(next);
        self.place(told);
        self.remove(maps.threads, TID);
    }

    /// The kernel has left out the switch to the thread of the entry at R7, which leaves its CPU at
    /// R8 and was blocked from R2 on: its wait is added to those that are not told yet. R2 = when
    /// it was woken
    fn end_unseen_wait(&mut self) {
        let (never, woken) = (self.label(), self.label());
        self.load64(R4, R7, entry::WOKEN);
        self.jump_on(Compare::Less, R4, R2, never);
        self.jump(woken);
        self.place(never);
        self.mov(R4, R8);
        self.place(woken);
        self.mov(R3, R4);
        self.sub(R3, R2);
        self.add_word(R7, entry::BLOCKED, R3);
        self.wait_as_long(R3);
        self.count_word(R7, entry::WAITS);
        self.mov(R2, R4);
    }

    /// Writes the stack of the thread of the entry at R7, which leaves its CPU at R8 and will wait
    /// as long as the last time.
    fn write_stack(&mut self, maps: WaitMaps, thresholds: Thresholds, end: Label) {
        self.load64(R1, R7, entry::LONG);
        self.jump_if(R1, 0, end);
        self.scratch(maps.switch_scratch, end);
        // How long it will wait is not known: its time without a record will have doubled, say.
        self.mov_imm(R5, 0);
        self.add_untold(R5);
        self.add_untold(R5);
        self.spend(thresholds, false, end);
        self.store32_imm(R9, at::KIND, WaitKind::Stack as i32);
        self.load64(R1, FP, TID);
        self.store32(R9, at::TID, R1);
        self.load64(R1, R7, entry::PID);
        self.store32(R9, at::PID, R1);
        self.write_record(maps);
        self.jump_if(R0, 0, end);
        self.add_one(maps.counts, LOST, INDEX);
    }

    /// The state of the entry at R7, whose task is the tracepoint's second argument, says if that
    /// has no quota left.
    fn mark_throttled(
        &mut self,
        (from, tasks): (ThrottleSource, TaskAccess),
        end: Label,
        wanted: &mut Vec<(usize, Member)>,
    ) {
        self.load64(R3, R6, 8);
        match (from, tasks) {
            (ThrottleSource::None, _) => return,
            (ThrottleSource::Task, TaskAccess::Loads) => {
                self.load_member((R1, R3), 8, Member::Throttled, wanted);
            }
            (ThrottleSource::Queue, TaskAccess::Loads) => {
                self.load_member((R3, R3), 8, Member::Queue, wanted);
                self.load_member((R1, R3), 4, Member::QueueThrottled, wanted);
            }
            (ThrottleSource::Task, TaskAccess::Copies) => {
                self.store64_imm(FP, VALUE, 0);
                self.read_member(VALUE, 1, Member::Throttled, end, wanted);
                self.load64(R1, FP, VALUE);
            }
            (ThrottleSource::Queue, TaskAccess::Copies) => {
                self.read_member(OTHER, 8, Member::Queue, end, wanted);
                self.load64(R3, FP, OTHER);
                self.store64_imm(FP, VALUE, 0);
                self.read_member(VALUE, 4, Member::QueueThrottled, end, wanted);
                self.load64(R1, FP, VALUE);
            }
        }
        self.jump_if(R1, 0, end);
        self.store64_imm(R7, entry::TASK_STATE, THROTTLED);
    }

    /// The thread of the entry at R7 has a CPU again: its wait is told, or added to those that are
    /// not told yet.
    fn come_back(
        &mut self,
        (maps, thresholds, directly): (WaitMaps, Thresholds, bool),
        end: Label,
        wanted: &mut Vec<(usize, Member)>,
    ) {
        let (ready, known, later) = (self.label(), self.label(), self.label());
        let (tell, was_ready, rest) = (self.label(), self.label(), self.label());
        self.load64(R8, FP, NOW_NS);
        self.load64(R2, R7, entry::SINCE);
        self.load64(R3, R7, entry::STATE);
        self.jump_if(R3, HELD, end);
        self.jump_if(R3, GONE, end); // of another thread, which had this id
        self.store64(R7, entry::SINCE, R8);
        self.store64_imm(R7, entry::STATE, RUNNING);
        self.mov(R9, R8);
        self.sub(R9, R2); // R9 = off the CPU
        self.store64_imm(FP, BLOCKED_NS, 0);
        self.jump_unless(R3, BLOCKED, ready);
        self.load64(R4, R7, entry::WOKEN);
        self.mov(R5, R9);
        self.jump_on(Compare::Less, R4, R2, known); // nobody was seen to wake it
        self.mov(R5, R4);
        self.sub(R5, R2);
        self.place(known);
        self.store64(FP, BLOCKED_NS, R5);
        self.store64_imm(R7, entry::LONG, 1);
        self.mov_imm64(R1, thresholds.long_ns);
        self.jump_on(Compare::GreaterEqual, R9, R1, ready);
        self.store64_imm(R7, entry::LONG, 0);
        self.place(ready);
        self.load64(R5, FP, BLOCKED_NS);
        self.mov(R4, R9);
        self.sub(R4, R5);
        self.store64(FP, RUNNABLE_NS, R4);
        self.store64(FP, OTHER, R9);
        self.mov_imm64(R1, thresholds.long_ns);
        self.jump_on(Compare::GreaterEqual, R9, R1, tell);
        self.load64(R1, R7, entry::BLOCKED);
        self.load64(R2, R7, entry::RUNNABLE);
        self.add(R1, R2);
        self.add(R1, R9);
        self.mov_imm64(R2, thresholds.together_ns);
        self.jump_on(Compare::GreaterEqual, R1, R2, tell);
        self.place(later);
        self.load64(R2, FP, BLOCKED_NS);
        self.add_word(R7, entry::BLOCKED, R2);
        self.wait_as_long(R2);
        self.load64(R2, FP, RUNNABLE_NS);
        self.add_word(R7, entry::RUNNABLE, R2);
        self.load64(R2, R7, entry::TASK_STATE);
        self.shift_left_imm(R2, 33); // throttled or not
        self.jump_if(R2, 0, was_ready);
        if maps.tasks == TaskAccess::Loads {
            self.note_call(wanted);
        }
        self.count_word(R7, entry::WAITS);
        self.jump(end);
        self.place(was_ready);
        self.count_word(R7, entry::PREEMPTIONS);
        self.jump(end);
        self.place(tell);
        self.scratch(maps.switch_scratch, end);
        self.load64(R5, FP, OTHER);
        self.add_untold(R5);
        self.spend(thresholds, true, later);
        self.begin_record(WaitKind::Wait);
        for (to, from) in [(at::BLOCKED, BLOCKED_NS), (at::RUNNABLE, RUNNABLE_NS)] {
            self.load64(R1, FP, from);
            self.store64(R9, to, R1);
        }
        if directly {
            self.write_record(maps);
            self.jump_if(R0, 0, rest);
            self.add_one(maps.counts, LOST, INDEX);
            self.take_back();
        } else {
            self.store64_imm(R9, PENDING, 1);
        }
        self.place(rest);
    }
}

impl Assembler {
    /// The entry at R7 has the call of most waits that are not told yet: that of the next thread,
    /// the tracepoint's third argument, whose wait is over now.
    fn note_call(&mut self, wanted: &mut Vec<(usize, Member)>) {
        let (first, same, known) = (self.label(), self.label(), self.label());
        self.load64(R1, R6, 16);
        self.call(BpfHelper::TaskRegisters);
        self.load64(R3, R6, 16);
        self.load_place(wanted);
        self.add_imm(R2, 1);
        self.load64(R3, FP, BLOCKED_NS);
        self.load64(R1, R7, entry::WAITS);
        self.jump_if(R1, 0, first);
        self.load64(R1, R7, entry::CALL);
        self.jump_if_same(R1, R2, same);
        self.load64(R1, R7, entry::CALL_NS);
        self.jump_on(Compare::GreaterEqual, R1, R3, known);
        self.place(first);
        self.store64(R7, entry::CALL, R2);
        self.store64(R7, entry::CALL_NS, R3);
        self.store64(R7, entry::PLACE, R4);
        self.jump(known);
        self.place(same);
        self.add_word(R7, entry::CALL_NS, R3);
        self.place(known);
    }

    /// R2 = the call that the task at R3 is in, by its registers at R0. R4 = the number of the
    /// place in which it is, 0 where that is not known. R1 is lost. The kernel knows the types of
    /// both, so that no helper has to copy them.
    #[cfg(target_arch = "x86_64")]
    fn load_place(&mut self, wanted: &mut Vec<(usize, Member)>) {
        let register = |number: i16| CALL_REGISTER + 8 * number;
        // Where the thread's own memory is; it is saved while another thread runs.
        self.load_member((R4, R3), 8, Member::FsBase, wanted);
        self.load64(R1, R0, register(4)); // the stack pointer
        self.sub(R4, R1);
        self.shift_left_imm(R4, 40);
        self.load64(R1, R0, register(1)); // the address of the call
        self.add(R4, R1);
        self.load64(R2, R0, register(0));
        self.mov(R1, R2);
        self.shift_left_imm(R1, 30);
        self.add(R4, R1);
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn load_place(&mut self, _wanted: &mut Vec<(usize, Member)>) {
        self.load32(R2, R0, CALL_REGISTER);
        self.shift_left_imm(R2, 32);
        self.shift_right_signed_imm(R2, 32);
        self.mov_imm(R4, 0);
    }
}

/// Runs behind each switch (`sched_exit_tp`, Linux 6.16), in the thread that has the CPU now:
/// writes the record that `switch` has prepared, with what the thread's stack says. `python`: counts
/// its process for those that look for Python.
pub(super) fn switched(maps: WaitMaps, python: Option<PythonMaps>) -> Program {
    let (mut a, mut wanted) = (Assembler::new(), Vec::new());
    let end = a.label();
    a.mov(R6, R1); // R6 = the context
    a.scratch(maps.switch_scratch, end);
    a.load64(R1, R9, PENDING);
    a.jump_if(R1, 0, end);
    a.store64_imm(R9, PENDING, 0);
    if let Some(python) = python {
        a.count_unknown(python);
    }
    a.running_thread();
    a.load64(R0, FP, TID);
    a.load32(R1, R9, at::TID);
    a.jump_on(Compare::NotEqual, R0, R1, end); // never: nothing comes between
    a.call(BpfHelper::CurrentTaskTyped);
    a.mov(R1, R0);
    a.call(BpfHelper::TaskRegisters);
    a.mov(R7, R0);
    for (from, bytes, to) in CALL_REGISTERS {
        a.mov(R3, R7);
        a.add_imm(R3, from);
        a.mov(R1, R9);
        a.add_imm(R1, to.into());
        a.mov_imm(R2, bytes);
        a.call(BpfHelper::ReadKernel);
    }
    if cfg!(not(target_arch = "x86_64")) {
        // Its number has 32 bits there.
        a.load64(R1, R9, at::SYSCALL);
        a.shift_left_imm(R1, 32);
        a.shift_right_signed_imm(R1, 32);
        a.store64(R9, at::SYSCALL, R1);
    }
    a.call(BpfHelper::CurrentTaskTyped);
    a.mov(R3, R0);
    a.mov(R0, R7);
    a.load_place(&mut wanted);
    a.store64(R9, at::PLACE, R4);
    a.write_record(maps);
    a.jump_if(R0, 0, end);
    a.add_one(maps.counts, LOST, INDEX);
    a.thread_entry(maps, end);
    a.take_back();
    a.show(end);
    Program { wanted, ..a.finish().into() }
}

/// Runs when a thread is woken, in whoever wakes it: remembers when, and who; of a long wait it
/// writes a record with the waker's stack.
pub(super) fn waking(maps: WaitMaps, thresholds: Thresholds) -> Program {
    let (mut a, mut wanted) = (Assembler::new(), Vec::new());
    let end = a.label();
    a.mov(R6, R1); // R6 = the context
    a.thread_of(0, maps.tasks, end, &mut wanted);
    a.thread_entry(maps, end);
    a.load64(R1, R7, entry::STATE);
    a.jump_unless(R1, BLOCKED, end);
    a.load64(R1, R7, entry::WOKEN);
    a.jump_unless(R1, 0, end);
    a.now();
    a.store64(R7, entry::WOKEN, R8);
    a.call(BpfHelper::CurrentPidTgid);
    a.truncate32(R0);
    a.store64(R7, entry::WAKER, R0);
    a.load64(R2, R7, entry::SINCE);
    a.sub(R8, R2);
    a.mov_imm64(R1, thresholds.long_ns);
    a.jump_on(Compare::Less, R8, R1, end);
    a.store64(FP, BLOCKED_NS, R8);
    a.scratch(maps.waking_scratch, end);
    a.load64(R5, FP, BLOCKED_NS);
    a.add_untold(R5);
    a.load64(R8, FP, NOW_NS);
    a.spend(thresholds, false, end);
    a.load64(R8, FP, BLOCKED_NS);
    a.store32_imm(R9, at::KIND, WaitKind::Wakeup as i32);
    for (to, from) in [(at::TASK_STATE, entry::TASK_STATE), (at::PID, entry::PID), (at::WAKER, entry::WAKER)]
    {
        a.load64(R1, R7, from);
        a.store32(R9, to, R1);
    }
    a.load64(R1, FP, TID);
    a.store32(R9, at::TID, R1);
    a.store64(R9, at::BLOCKED, R8);
    a.write_record(maps);
    a.jump_if(R0, 0, end);
    a.add_one(maps.counts, LOST, INDEX);
    a.show(end);
    Program { wanted, ..a.finish().into() }
}

/// Runs in the maker when a task has been made and has not run yet: a new thread is ready.
pub(super) fn newtask(maps: WaitMaps) -> Program {
    let (mut a, mut wanted) = (Assembler::new(), Vec::new());
    let (process, known, end) = (a.label(), a.label(), a.label());
    a.mov(R6, R1); // R6 = the context
    a.thread_of(0, maps.tasks, end, &mut wanted);
    a.load64(R7, FP, TID); // R7 = its process: itself, or its maker's
    a.load64(R1, R6, 8);
    a.and_imm(R1, CLONE_THREAD);
    a.jump_if(R1, 0, process);
    a.call(BpfHelper::CurrentPidTgid);
    a.mov(R7, R0);
    a.shift_right_imm(R7, 32);
    a.place(process);
    if let Some((followed, key)) = maps.followed {
        match key {
            FollowKey::Process => a.store64(FP, OTHER, R7),
            FollowKey::Thread => {
                a.load64(R1, FP, TID);
                a.store64(FP, OTHER, R1);
            }
        }
        a.look_up(followed, OTHER, end);
        a.load64(R1, R0, 0);
        a.jump_unless(R1, NOW as i32, end);
    }
    a.now();
    for word in 0..entry::WORDS as i16 {
        a.store64_imm(FP, VALUE + 8 * word, 0);
    }
    a.store64(FP, VALUE + entry::SINCE, R8);
    a.store64_imm(FP, VALUE + entry::STATE, READY);
    a.store64_imm(FP, VALUE + entry::LONG, 1);
    a.store64(FP, VALUE + entry::PID, R7);
    a.set(maps.threads, TID, VALUE, 0);
    a.jump_if(R0, 0, known);
    a.add_one(maps.counts, MISSED, INDEX);
    a.place(known);
    a.show(end);
    Program { wanted, ..a.finish().into() }
}

impl Assembler {
    /// The entry on the stack has what no record has told of the thread *TID that has ended.
    fn add_gone(&mut self, maps: WaitMaps) {
        let (none, longer) = (self.label(), self.label());
        self.look_up(maps.threads, TID, none);
        self.load64(R1, R0, entry::STATE);
        self.jump_unless(R1, GONE, none);
        for word in [entry::RUN, entry::BLOCKED, entry::RUNNABLE, entry::WAITS, entry::PREEMPTIONS] {
            self.load64(R1, R0, word);
            self.load64(R2, FP, VALUE + word);
            self.add(R1, R2);
            self.store64(FP, VALUE + word, R1);
        }
        self.load64(R1, R0, entry::LONGEST);
        self.load64(R2, FP, VALUE + entry::LONGEST);
        self.jump_on(Compare::GreaterEqual, R2, R1, longer);
        self.store64(FP, VALUE + entry::LONGEST, R1);
        self.place(longer);
        self.place(none);
    }
}

/// Runs in a thread that has executed a program, `old` being its id before: one that was held for
/// it begins; one that is not the first of its process has taken over the first one's id.
pub(super) fn exec(maps: WaitMaps) -> Program {
    let mut a = Assembler::new();
    let (same, end) = (a.label(), a.label());
    a.mov(R6, R1); // R6 = the context
    a.running_thread();
    a.load64(R1, R6, 8);
    a.truncate32(R1);
    a.store64(FP, OTHER, R1);
    a.look_up(maps.threads, OTHER, end);
    a.mov(R7, R0);
    a.load64(R1, FP, OTHER);
    a.load64(R2, FP, TID);
    a.jump_if_same(R1, R2, same);
    for word in 0..entry::WORDS as i16 {
        a.load64(R1, R7, 8 * word);
        a.store64(FP, VALUE + 8 * word, R1);
    }
    // First, so that there is a place.
    a.remove(maps.threads, OTHER);
    a.add_gone(maps);
    a.set(maps.threads, TID, VALUE, 0);
    a.jump_if(R0, 0, end);
    a.add_one(maps.counts, MISSED, INDEX);
    a.jump(end);
    a.place(same);
    a.load64(R1, R7, entry::STATE);
    a.jump_unless(R1, HELD, end);
    a.now();
    a.store64(R7, entry::SINCE, R8);
    a.store64_imm(R7, entry::STATE, RUNNING);
    a.show(end);
    a.finish().into()
}
