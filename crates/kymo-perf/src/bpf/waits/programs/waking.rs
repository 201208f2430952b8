//! The program at each wake-up.
use super::super::record::{WaitKind, at};
use super::{BLOCKED, BLOCKED_NS, INDEX, LOST, NOW_NS, TID, TaskAccess, Thresholds, WaitMaps, entry};
use crate::bpf::insn::{Assembler, BpfHelper, Compare, FP, R0, R1, R2, R5, R6, R7, R8, R9};
use crate::bpf::program::Program;

/// Runs when a thread is woken, in whoever wakes it: remembers when, and who; of a long wait it
/// writes a record with the waker's stack, which tells the call of the thread that waited, too: the
/// kernel may leave out the switch to that.
pub(in super::super) fn waking(maps: WaitMaps, thresholds: Thresholds) -> Program {
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
    match maps.tasks {
        TaskAccess::Loads => a.store_call(0, &mut wanted),
        TaskAccess::Copies => {
            a.store64_imm(R9, at::SYSCALL, -1);
            a.store64_imm(R9, at::PLACE, 0);
        }
    }
    a.write_record(maps);
    a.jump_if(R0, 0, end);
    a.add_one(maps.counts, LOST, INDEX);
    a.show(end);
    Program { wanted, ..a.finish().into() }
}
