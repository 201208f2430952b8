//! The few BTF types from which the kernel computes field offsets for our programs.
//!
//! A raw tracepoint hands a program the address of a task; where in a task its id stands differs
//! between kernels. Reading the kernel's own type information (several MB) would cost milliseconds.
//! Instead we describe structs with the few members that we want and ask for their offsets in the
//! real ones (Linux 5.17): the kernel looks them up while loading and patches the instructions.
use super::sys::{self, Types};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// A member of a struct of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Member {
    /// `task_struct.pid`: the thread's id.
    Id,
    /// `task_struct.signal`: the address of what the threads of a process share.
    Signal,
    /// `task_struct.nvcsw`: how often it has left its CPU because it waited.
    Voluntary,
    /// `task_struct.nivcsw`: how often because another was to run.
    Involuntary,
    /// `task_struct.se.sum_exec_runtime`: ns on CPUs, up to when the scheduler last looked.
    CpuTime,
    /// `task_struct.se.prev_sum_exec_runtime`: what that was when it was last given a CPU.
    CpuTimeBefore,
    /// `task_struct.sched_info.run_delay`: ns that it was ready and waited for a CPU.
    Waited,
    /// `task_struct.sched_info.last_arrival`: when it was last given a CPU, by the scheduler's
    /// clock.
    LastArrival,
    /// `task_struct.thread.fsbase`: what the register FS is based on, which is the thread's own id in
    /// the C library (x86-64).
    FsBase,
    /// `task_struct.throttled`: its cgroup has no quota left (Linux 6.18).
    Throttled,
    /// `task_struct.se.cfs_rq`: the address of the queue that it waits in.
    Queue,
    /// `cfs_rq.throttle_count`: how many of the cgroups around that queue have no quota left.
    QueueThrottled,
    /// `signal_struct.live.counter`: how many threads of the process have not begun to exit.
    Live,
}

impl Member {
    /// Its offset in the structs as described below: what the kernel expects to find in the
    /// instruction that it patches.
    pub(super) fn described_offset(self) -> i32 {
        match self {
            Member::Id | Member::Live | Member::QueueThrottled => 0,
            Member::Signal => 8,
            Member::Voluntary => 16,
            Member::Involuntary => 24,
            Member::CpuTime => 32,
            Member::Queue => 40,
            Member::CpuTimeBefore => 48,
            Member::Waited => 56,
            Member::LastArrival => 64,
            Member::FsBase => 72,
            Member::Throttled => 80,
        }
    }

    /// (type, string of member numbers): the 0 in front is the struct itself.
    fn asked(self) -> (u32, u32) {
        match self {
            Member::Id => (TASK_TYPE, const { at("0:0") }),
            Member::Signal => (TASK_TYPE, const { at("0:1") }),
            Member::Voluntary => (TASK_TYPE, const { at("0:2") }),
            Member::Involuntary => (TASK_TYPE, const { at("0:3") }),
            Member::CpuTime => (TASK_TYPE, const { at("0:4:0") }),
            Member::CpuTimeBefore => (TASK_TYPE, const { at("0:4:2") }),
            Member::Waited => (TASK_TYPE, const { at("0:5:0") }),
            Member::LastArrival => (TASK_TYPE, const { at("0:5:1") }),
            Member::FsBase => (TASK_TYPE, const { at("0:6:0") }),
            Member::Throttled => (TASK_TYPE, const { at("0:7") }),
            Member::Queue => (TASK_TYPE, const { at("0:4:1") }),
            Member::QueueThrottled => (QUEUE_TYPE, const { at("0:0") }),
            Member::Live => (SIGNAL_TYPE, const { at("0:0:0") }),
        }
    }
}

/// The strings, each with its zero; a type names its string by byte position.
const STRINGS: &[u8] =
    b"\0int\0task_struct\0pid\0signal\0signal_struct\0live\0counter\0follow\x000:0\x000:1\x000:0:0\x000:2\x000:3\0long\0nvcsw\0nivcsw\0se\0sched_entity\0sum_exec_runtime\0sched_info\0run_delay\x000:4:0\x000:5:0\0thread\0thread_struct\0fsbase\x000:6:0\0throttled\x000:7\0cfs_rq\x000:4:1\0throttle_count\0prev_sum_exec_runtime\x000:4:2\0last_arrival\x000:5:1\0";

/// Where a string begins; one that is none of [`STRINGS`] does not compile.
const fn at(name: &str) -> u32 {
    let mut begin = 1;
    let mut end = 1;
    while STRINGS[end] != 0 || !is(STRINGS, begin, end, name.as_bytes()) {
        end += 1;
        if STRINGS[end - 1] == 0 {
            begin = end;
        }
    }
    begin as u32
}

/// Whether `all[begin..end]` is `name`.
const fn is(all: &[u8], begin: usize, end: usize, name: &[u8]) -> bool {
    let mut number = 0;
    while number < name.len() && begin + number < end && all[begin + number] == name[number] {
        number += 1;
    }
    number == name.len() && begin + number == end
}

/// Type numbers, counted from 1 in the order below.
const INT_TYPE: u32 = 1;
const TASK_TYPE: u32 = 2;
const POINTER_TYPE: u32 = 3;
const SIGNAL_TYPE: u32 = 4;
const ATOMIC_TYPE: u32 = 5;
const PROTO_TYPE: u32 = 6;
const FUNCTION_TYPE: u32 = 7;
const LONG_TYPE: u32 = 8;
const ENTITY_TYPE: u32 = 9;
const INFO_TYPE: u32 = 10;
const THREAD_TYPE: u32 = 11;
const QUEUE_TYPE: u32 = 12;
const QUEUE_POINTER_TYPE: u32 = 13;

/// Kinds of types, in the upper byte of a type's second word; the lower half is how many members
/// follow.
const KIND_INT: u32 = 1 << 24;
const KIND_POINTER: u32 = 2 << 24;
const KIND_STRUCT: u32 = 4 << 24;
const KIND_FUNCTION: u32 = 12 << 24;
const KIND_PROTO: u32 = 13 << 24;

const SIGNED_32_BITS: u32 = 1 << 24 | 32;
const UNSIGNED_64_BITS: u32 = 64;
/// What a relocation asks for: the member's byte offset.
const BYTE_OFFSET: u32 = 0;

#[rustfmt::skip]
const TYPES: [u32; 92] = [
    at("int"), KIND_INT, 4, SIGNED_32_BITS,             // int
    at("task_struct"), KIND_STRUCT | 8, 88,             // struct task_struct {
        at("pid"), INT_TYPE, 0,                         //     int pid;
        at("signal"), POINTER_TYPE, 64,                 //     struct signal_struct *signal; (at bit 64)
        at("nvcsw"), LONG_TYPE, 128,                    //     unsigned long nvcsw;
        at("nivcsw"), LONG_TYPE, 192,                   //     unsigned long nivcsw;
        at("se"), ENTITY_TYPE, 256,                     //     struct sched_entity se;
        at("sched_info"), INFO_TYPE, 448,               //     struct sched_info sched_info;
        at("thread"), THREAD_TYPE, 576,                 //     struct thread_struct thread;
        at("throttled"), LONG_TYPE, 640,                //     unsigned long throttled; (the kernel narrows loads)
    0, KIND_POINTER, SIGNAL_TYPE,                       // };
    at("signal_struct"), KIND_STRUCT | 1, 4,            // struct signal_struct {
        at("live"), ATOMIC_TYPE, 0,                     //     struct { int counter; } live;
    0, KIND_STRUCT | 1, 4,                              // };
        at("counter"), INT_TYPE, 0,
    0, KIND_PROTO, INT_TYPE,                            // int follow()
    at("follow"), KIND_FUNCTION, PROTO_TYPE,
    at("long"), KIND_INT, 8, UNSIGNED_64_BITS,          // unsigned long
    at("sched_entity"), KIND_STRUCT | 3, 24,            // struct sched_entity {
        at("sum_exec_runtime"), LONG_TYPE, 0,           //     unsigned long sum_exec_runtime;
        at("cfs_rq"), QUEUE_POINTER_TYPE, 64,           //     struct cfs_rq *cfs_rq;
        at("prev_sum_exec_runtime"), LONG_TYPE, 128,    //     unsigned long prev_sum_exec_runtime; };
    at("sched_info"), KIND_STRUCT | 2, 16,              // struct sched_info {
        at("run_delay"), LONG_TYPE, 0,                  //     unsigned long run_delay;
        at("last_arrival"), LONG_TYPE, 64,              //     unsigned long last_arrival; };
    at("thread_struct"), KIND_STRUCT | 1, 8,            // struct thread_struct {
        at("fsbase"), LONG_TYPE, 0,                     //     unsigned long fsbase; };
    at("cfs_rq"), KIND_STRUCT | 1, 4,                   // struct cfs_rq {
        at("throttle_count"), INT_TYPE, 0,              //     int throttle_count; };
    0, KIND_POINTER, QUEUE_TYPE,
];

/// The header's magic number, version 1, no flags; the header's length in bytes.
const MAGIC: u32 = 0x0001_eb9f;
const HEADER_BYTES: u32 = 24;

fn bytes() -> Vec<u8> {
    let types_bytes = size_of_val(&TYPES) as u32;
    let header = [MAGIC, HEADER_BYTES, 0, types_bytes, types_bytes, STRINGS.len() as u32];
    let mut out: Vec<u8> = header.iter().chain(&TYPES).flat_map(|word| word.to_ne_bytes()).collect();
    out.extend_from_slice(STRINGS);
    out
}

/// The types, loaded into the kernel.
#[derive(Debug)]
pub(super) struct TaskTypes(OwnedFd);

impl TaskTypes {
    pub(super) fn load() -> io::Result<TaskTypes> {
        Ok(TaskTypes(sys::load_btf(&bytes())?))
    }

    /// For a program whose instructions of these numbers want the offsets of members.
    /// `functions`: the first instructions of those that follow the first.
    pub(super) fn wanted(&self, wanted: &[(usize, Member)], functions: &[usize]) -> Types<'_> {
        let relocation = |&(at, member): &(usize, Member)| {
            let (kind, path) = member.asked();
            [8 * at as u32, kind, path, BYTE_OFFSET]
        };
        Types {
            btf: self.0.as_fd(),
            functions: [0].iter().chain(functions).map(|&at| [at as u32, FUNCTION_TYPE]).collect(),
            relocations: wanted.iter().map(relocation).collect(),
        }
    }
}
