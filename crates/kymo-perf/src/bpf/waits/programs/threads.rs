//! The programs at the begin of a thread, and at its exec.
use super::{GONE, HELD, INDEX, MISSED, OTHER, READY, RUNNING, TID, VALUE, WaitMaps, entry};
use crate::bpf::insn::{Assembler, BpfHelper, Compare, FP, R0, R1, R2, R6, R7, R8};
use crate::bpf::program::{CLONE_THREAD, FollowKey, NOW, Program};

/// Runs in the maker when a task has been made and has not run yet: a new thread is ready.
pub(in super::super) fn newtask(maps: WaitMaps) -> Program {
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
pub(in super::super) fn exec(maps: WaitMaps) -> Program {
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
