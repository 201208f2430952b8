//! The program at each context switch.
use super::super::record::{RECORD_BYTES, WaitKind, at};
use super::{
    BLOCKED, BLOCKED_NS, ENDED, GONE, HELD, INDEX, LOST, NOW_NS, OTHER, PENDING, READY, RUNNABLE_NS, RUNNING,
    THROTTLED, TID, TaskAccess, Thresholds, ThrottleSource, UNSEEN, VALUE, WaitMaps, entry,
};
use crate::bpf::insn::{Assembler, Compare, FP, Label, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9};
use crate::bpf::program::Program;
use crate::bpf::types::Member;

/// Runs at each switch, in the thread that leaves its CPU: ends the time of that one on the CPU,
/// and the wait of the next.
///
/// `directly`: records are written here, as samples of the thread that leaves, where the kernel has
/// no tracepoint behind the switch.
pub(in super::super) fn switch(maps: WaitMaps, thresholds: Thresholds, directly: bool) -> Program {
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
        let (waits, told, preempted) = (self.label(), self.label(), self.label());
        let (ran, runs) = (self.label(), self.label());
        self.load64(R1, R7, entry::STATE);
        self.jump_if(R1, HELD, next);
        self.jump_if(R1, GONE, next); // of another thread, which had this id
        self.jump_if(R1, RUNNING, ran);
        self.add_one(maps.counts, UNSEEN, INDEX);
        self.load64(R1, R7, entry::STATE);
        self.jump_unless(R1, BLOCKED, ran);
        self.end_unseen_wait();
        self.jump(runs);
        self.place(ran);
        self.load64(R2, R7, entry::SINCE);
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
    /// R8: its wait is added to those that are not told yet. R2 = when it was woken
    fn end_unseen_wait(&mut self) {
        let (never, woken) = (self.label(), self.label());
        self.load64(R2, R7, entry::SINCE);
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
        for (to, from) in [(at::PID, entry::PID), (at::TASK_STATE, entry::TASK_STATE)] {
            self.load64(R1, R7, from);
            self.store32(R9, to, R1);
        }
        self.store32_imm(R9, at::WAKER, 0);
        // What the record before has there is another thread's.
        for word in (at::BLOCKED..RECORD_BYTES as i16 & !7).step_by(8) {
            self.store64_imm(R9, word, if word == at::SYSCALL { -1 } else { 0 });
        }
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
            self.count_at_place(wanted);
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
            if maps.tasks == TaskAccess::Loads {
                self.store_call(2, wanted);
            }
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
