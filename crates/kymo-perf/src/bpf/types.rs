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
    /// `task_struct.sched_info.run_delay`: ns that it was ready and waited for a CPU.
    Waited,
    /// `signal_struct.live.counter`: how many threads of the process have not begun to exit.
    Live,
}

impl Member {
    /// Its offset in the structs as described below: what the kernel expects to find in the
    /// instruction that it patches.
    pub(super) fn described_offset(self) -> i32 {
        match self {
            Member::Id | Member::Live => 0,
            Member::Signal => 8,
            Member::Voluntary => 16,
            Member::Involuntary => 24,
            Member::CpuTime => 32,
            Member::Waited => 40,
        }
    }

    /// (type, string of member numbers): the 0 in front is the struct itself.
    fn asked(self) -> (u32, u32) {
        match self {
            Member::Id => (TASK_TYPE, PATH_0),
            Member::Signal => (TASK_TYPE, PATH_1),
            Member::Voluntary => (TASK_TYPE, PATH_2),
            Member::Involuntary => (TASK_TYPE, PATH_3),
            Member::CpuTime => (TASK_TYPE, PATH_4_0),
            Member::Waited => (TASK_TYPE, PATH_5_0),
            Member::Live => (SIGNAL_TYPE, PATH_0_0),
        }
    }
}

/// The strings, each with its zero; a type names its string by byte position.
const STRINGS: &[u8] =
    b"\0int\0task_struct\0pid\0signal\0signal_struct\0live\0counter\0follow\x000:0\x000:1\x000:0:0\x000:2\x000:3\0long\0nvcsw\0nivcsw\0se\0sched_entity\0sum_exec_runtime\0sched_info\0run_delay\x000:4:0\x000:5:0\0";
const INT: u32 = 1;
const TASK_STRUCT: u32 = 5;
const PID: u32 = 17;
const SIGNAL: u32 = 21;
const SIGNAL_STRUCT: u32 = 28;
const LIVE: u32 = 42;
const COUNTER: u32 = 47;
const FOLLOW: u32 = 55;
const PATH_0: u32 = 62;
const PATH_1: u32 = 66;
const PATH_0_0: u32 = 70;
const PATH_2: u32 = 76;
const PATH_3: u32 = 80;
const LONG: u32 = 84;
const NVCSW: u32 = 89;
const NIVCSW: u32 = 95;
const SE: u32 = 102;
const SCHED_ENTITY: u32 = 105;
const SUM_EXEC_RUNTIME: u32 = 118;
const SCHED_INFO: u32 = 135;
const RUN_DELAY: u32 = 146;
const PATH_4_0: u32 = 156;
const PATH_5_0: u32 = 162;

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
const TYPES: [u32; 62] = [
    INT, KIND_INT, 4, SIGNED_32_BITS,                       // int
    TASK_STRUCT, KIND_STRUCT | 6, 48,                       // struct task_struct {
        PID, INT_TYPE, 0,                                   //     int pid;
        SIGNAL, POINTER_TYPE, 64,                           //     struct signal_struct *signal; (at bit 64)
        NVCSW, LONG_TYPE, 128,                              //     unsigned long nvcsw;
        NIVCSW, LONG_TYPE, 192,                             //     unsigned long nivcsw;
        SE, ENTITY_TYPE, 256,                               //     struct sched_entity se;
        SCHED_INFO, INFO_TYPE, 320,                         //     struct sched_info sched_info;
    0, KIND_POINTER, SIGNAL_TYPE,                           // };
    SIGNAL_STRUCT, KIND_STRUCT | 1, 4,                      // struct signal_struct {
        LIVE, ATOMIC_TYPE, 0,                               //     struct { int counter; } live;
    0, KIND_STRUCT | 1, 4,                                  // };
        COUNTER, INT_TYPE, 0,
    0, KIND_PROTO, INT_TYPE,                                // int follow()
    FOLLOW, KIND_FUNCTION, PROTO_TYPE,
    LONG, KIND_INT, 8, UNSIGNED_64_BITS,                    // unsigned long
    SCHED_ENTITY, KIND_STRUCT | 1, 8,                       // struct sched_entity {
        SUM_EXEC_RUNTIME, LONG_TYPE, 0,                     //     unsigned long sum_exec_runtime; };
    SCHED_INFO, KIND_STRUCT | 1, 8,                         // struct sched_info {
        RUN_DELAY, LONG_TYPE, 0,                            //     unsigned long run_delay; };
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

    /// For a program whose instructions of these numbers want the offsets of members as their
    /// immediates.
    pub(super) fn wanted(&self, wanted: &[(usize, Member)]) -> Types<'_> {
        let relocation = |&(at, member): &(usize, Member)| {
            let (kind, path) = member.asked();
            [8 * at as u32, kind, path, BYTE_OFFSET]
        };
        Types {
            btf: self.0.as_fd(),
            functions: vec![[0, FUNCTION_TYPE]],
            relocations: wanted.iter().map(relocation).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the positions of names are those of the strings, which the kernel would take
    /// silently if they were other names.
    #[test]
    fn names() {
        let names = [
            (INT, "int"),
            (TASK_STRUCT, "task_struct"),
            (PID, "pid"),
            (SIGNAL, "signal"),
            (SIGNAL_STRUCT, "signal_struct"),
            (LIVE, "live"),
            (COUNTER, "counter"),
            (FOLLOW, "follow"),
            (PATH_0, "0:0"),
            (PATH_1, "0:1"),
            (PATH_0_0, "0:0:0"),
            (PATH_2, "0:2"),
            (PATH_3, "0:3"),
            (LONG, "long"),
            (NVCSW, "nvcsw"),
            (NIVCSW, "nivcsw"),
            (SE, "se"),
            (SCHED_ENTITY, "sched_entity"),
            (SUM_EXEC_RUNTIME, "sum_exec_runtime"),
            (SCHED_INFO, "sched_info"),
            (RUN_DELAY, "run_delay"),
            (PATH_4_0, "0:4:0"),
            (PATH_5_0, "0:5:0"),
        ];
        for (at, name) in names {
            let found = STRINGS[at as usize..].split(|&b| b == 0).next().unwrap();
            assert_eq!(found, name.as_bytes());
        }
    }
}
