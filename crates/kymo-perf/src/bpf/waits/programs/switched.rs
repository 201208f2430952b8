//! The program behind each context switch.
use super::super::record::at;
use super::{INDEX, LOST, PENDING, TID, WaitMaps};
use crate::bpf::insn::{Assembler, BpfHelper, Compare, FP, R0, R1, R2, R3, R4, R6, R7, R9};
use crate::bpf::program::Program;
use crate::bpf::python::PythonMaps;

/// Where the registers of a thread in user space have the call and its arguments: (from, bytes,
/// where they go in a record).
#[cfg(target_arch = "x86_64")]
const CALL_REGISTERS: [(i32, i32, i16); 1] = [(104, 24, at::ARGUMENT_1)];
#[cfg(not(target_arch = "x86_64"))]
const CALL_REGISTERS: [(i32, i32, i16); 2] = [(8, 8, at::ARGUMENT_1), (272, 16, at::ARGUMENT_0)];

/// Runs behind each switch (`sched_exit_tp`, Linux 6.16), in the thread that has the CPU now:
/// writes the record that `switch` has prepared, with what the thread's stack says. `python`:
/// counts its process for those that look for Python.
pub(in super::super) fn switched(maps: WaitMaps, python: Option<PythonMaps>) -> Program {
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
