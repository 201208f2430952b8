//! What the kernel knows of threads, without stopping them: the registers that they had in user
//! space when they entered the kernel, where in the kernel they are, and since when they have no
//! CPU.
//!
//! `/proc/TID/syscall` has the stack pointer and the place only. What a walk through the stack
//! needs besides, the registers that a called function must keep, is where the kernel has put it at
//! the entry: a program that runs for each task, when its file is read, copies it from there.
use super::attach::load;
use super::error::BpfError;
use super::insn::{Assembler, BpfHelper, FP, R0, R1, R2, R3, R4, R6, R7};
use super::kernel_btf::KernelBtf;
use super::program::Program;
use super::sys::{self, ProgramKind};
use super::types::{Member, TaskTypes};
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;

/// What such a program is for, by its name in the kernel.
const TASKS: &std::ffi::CStr = c"bpf_iter_task";
/// Words of the kernel's `struct pt_regs`, as far as it is the same in all kernels.
#[cfg(target_arch = "x86_64")]
const WORDS: usize = 21;
#[cfg(not(target_arch = "x86_64"))]
const WORDS: usize = 34;
/// What is read of a task, in the order of the record.
const MEMBERS: [(Member, i32); 4] =
    [(Member::Id, 4), (Member::LastArrival, 8), (Member::CpuTime, 8), (Member::CpuTimeBefore, 8)];
const HEAD_WORDS: usize = MEMBERS.len() + 1;
/// Functions of the kernel that are read of a task, from the innermost one.
const KERNEL_FRAMES: usize = 16;
/// A record: those members, the register FS, the registers, and the stack in the kernel.
const RECORD_BYTES: usize = 8 * (HEAD_WORDS + WORDS + KERNEL_FRAMES);
/// On the stack of the program.
const RECORD: i16 = -(RECORD_BYTES as i16);
const FS_BASE: i16 = RECORD + 8 * MEMBERS.len() as i16;
const REGISTERS: i16 = RECORD + 8 * HEAD_WORDS as i16;
const KERNEL_STACK: i16 = REGISTERS + 8 * WORDS as i16;

/// The registers of a thread in user space, in the order of the kernel's `struct pt_regs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskRegisters(pub [u64; WORDS]);

/// What the kernel knows of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskState {
    /// In user space, at its last entry into the kernel.
    pub registers: TaskRegisters,
    /// Return addresses in the kernel, innermost first, behind them zeros; of no meaning for one
    /// that has a CPU.
    pub kernel: [u64; KERNEL_FRAMES],
    /// The thread's own id in the C library (`pthread_self`); 0 on other processors than x86-64.
    pub thread_pointer: u64,
    /// Since when it has no CPU, in ns before the call, to about 10 ms; of no meaning for one that
    /// has.
    pub off_cpu_ns: u64,
}

/// The states of all threads that `wanted` says are wanted, by thread id in the first pid
/// namespace. It takes about a microsecond for each thread of the machine, and stops none.
///
/// # Errors
/// [`BpfError`]: what the kernel refused. It needs type information, and Linux 5.15.
pub fn states_of_tasks(wanted: impl Fn(i32) -> bool) -> Result<HashMap<i32, TaskState>, BpfError> {
    let types = TaskTypes::load().map_err(BpfError::Types)?;
    let attach =
        |cause| BpfError::Attach { program: NAME, point: TASKS.to_string_lossy().into_owned(), cause };
    let number = KernelBtf::read().and_then(|kernel| kernel.function(TASKS));
    let number = number.ok_or_else(|| attach(std::io::ErrorKind::Unsupported.into()))?;
    let program = Program { kernel_type: number, ..program() };
    let loaded = load(ProgramKind::TaskIterator, NAME, &program, Some(&types))?;
    let file = sys::open_iterator(loaded.as_fd()).map_err(attach)?;
    let mut bytes = Vec::new();
    File::from(file).read_to_end(&mut bytes).map_err(attach)?;
    Ok(parse(&bytes, rustix::thread::gettid().as_raw_pid(), wanted))
}

const NAME: &str = "kymo_tasks";

/// A task's record: its id, when it left its CPU if it has, and the rest.
struct TaskRecord {
    tid: i32,
    /// By the scheduler's clock.
    left_ns: u64,
    state: TaskState,
}

/// `own`: the thread that has read, which has had a CPU up to then.
fn parse(bytes: &[u8], own: i32, wanted: impl Fn(i32) -> bool) -> HashMap<i32, TaskState> {
    let (records, _) = bytes.as_chunks::<RECORD_BYTES>();
    let parse = |record: &[u8; RECORD_BYTES]| {
        let (words, _) = record.as_chunks();
        let mut words = words.iter().map(|word| u64::from_ne_bytes(*word));
        let [tid, arrival, ran, before, thread_pointer] = std::array::from_fn(|_| words.next().unwrap_or(0));
        let registers = TaskRegisters(std::array::from_fn(|_| words.next().unwrap_or(0)));
        let kernel = std::array::from_fn(|_| words.next().unwrap_or(0));
        let left_ns = arrival.saturating_add(ran.saturating_sub(before));
        let state = TaskState { registers, kernel, thread_pointer, off_cpu_ns: 0 };
        TaskRecord { tid: tid as i32, left_ns, state }
    };
    let records: Vec<TaskRecord> = records.iter().map(parse).collect();
    let now = records.iter().find(|record| record.tid == own).map_or(0, |record| record.left_ns);
    let state = |record: TaskRecord| {
        let off_cpu_ns = now.saturating_sub(record.left_ns);
        (record.tid, TaskState { off_cpu_ns, ..record.state })
    };
    records.into_iter().filter(|record| wanted(record.tid)).map(state).collect()
}

/// Runs for each task: writes a record.
fn program() -> Program {
    let (mut a, mut wanted) = (Assembler::new(), Vec::new());
    let end = a.label();
    a.mov(R6, R1); // R6 = the context: what is read, and the task
    a.load64(R7, R6, 8);
    a.jump_if(R7, 0, end); // behind the last one
    for ((member, bytes), at) in MEMBERS.into_iter().zip((RECORD..).step_by(8)) {
        a.load_member((R1, R7), bytes, member, &mut wanted);
        a.store64(FP, at, R1);
    }
    a.mov_imm(R1, 0);
    if cfg!(target_arch = "x86_64") {
        a.load_member((R1, R7), 8, Member::FsBase, &mut wanted);
    }
    a.store64(FP, FS_BASE, R1);
    a.mov(R1, R7);
    a.call(BpfHelper::TaskRegisters);
    a.mov(R3, R0);
    a.stack_address(R1, REGISTERS);
    a.mov_imm(R2, 8 * WORDS as i32);
    a.call(BpfHelper::ReadKernel);
    a.jump_unless(R0, 0, end);
    a.mov_imm(R1, 0);
    for frame in 0..KERNEL_FRAMES as i16 {
        a.store64(FP, KERNEL_STACK + 8 * frame, R1);
    }
    a.mov(R1, R7);
    a.stack_address(R2, KERNEL_STACK);
    a.mov_imm(R3, 8 * KERNEL_FRAMES as i32);
    a.mov_imm(R4, 0);
    a.call(BpfHelper::TaskStack); // none: zeros stay
    a.load64(R1, R6, 0);
    a.load64(R1, R1, 0); // the file
    a.stack_address(R2, RECORD);
    a.mov_imm(R3, RECORD_BYTES as i32);
    a.call(BpfHelper::FileWrite);
    a.place(end);
    a.mov_imm(R0, 0);
    a.exit();
    Program { wanted, ..a.finish().into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc;
    use kymo_testing::skip;
    use std::process::{Command, Stdio};

    /// Checks that the place of a process that waits is the one that /proc has, among its
    /// registers.
    #[test]
    fn registers_of_a_process_that_waits() {
        const TEST: &str = "bpf::task_states::registers_of_a_process_that_waits";
        let mut cat = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let tid = cat.id() as i32;
        let call = loop {
            match proc::waiting_call(tid, tid).filter(|call| call.number == libc::SYS_read) {
                Some(call) if proc::state(tid, tid) == Some('S') => break call,
                _ => std::thread::yield_now(),
            }
        };
        std::thread::sleep(std::time::Duration::from_millis(300));
        let found = states_of_tasks(|of| of == tid);
        drop(cat.stdin.take());
        cat.wait().unwrap();
        match found {
            Ok(found) => {
                let TaskState { registers: TaskRegisters(words), kernel, off_cpu_ns, .. } = found[&tid];
                // Addresses of the kernel, of a few functions at least.
                assert!(kernel[..5].iter().all(|&address| address >= 1 << 63), "{kernel:x?}");
                // It has waited since before the pause.
                assert!(off_cpu_ns > 250_000_000, "{off_cpu_ns}");
                assert!(words.contains(&call.pc) && words.contains(&call.sp), "{call:x?} {words:x?}");
                assert_eq!(found.len(), 1);
            }
            Err(error) => skip(TEST, error.to_string()),
        }
    }
}
