//! Python's frames at waits: a program behind each switch tells them just before the record of a
//! wait is written, in the thread that waited.
//!
//! ```text
//!  sched_exit_tp -> 1. this gate: is a record to be written, of a process of Python? -> walker
//!                -> 2. the waits' own program: writes the record, with the native stack
//! ```
//! The programs of a tracepoint run in the order in which they were attached. The scratch is not
//! that of the walker at samples, whose interrupt may come while this one walks.
use super::programs::{self, PythonMaps, SCRATCH_BYTES};
use crate::bpf::attach::{attach_raw_program, load};
use crate::bpf::error::BpfError;
use crate::bpf::insn::{Assembler, FP, R0, R1, R6};
use crate::bpf::program::Program;
use crate::bpf::sys::sized_map::{SizedMap, SizedMapKind};
use crate::bpf::sys::{self, ProgramKind};
use crate::bpf::types::TaskTypes;
use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;

/// On the stack of the gate.
const INDEX: i16 = -20;

/// Where the gate sees that a record is to be written.
#[derive(Clone, Copy, Debug)]
pub(in crate::bpf) struct PendingRecord {
    /// The map that has a value for each CPU.
    pub(in crate::bpf) map: i32,
    /// Where in that value a word is set if there is one.
    pub(in crate::bpf) flag: i16,
}

/// The maps of the walker at waits.
#[derive(Debug)]
pub(super) struct WaitWalk {
    scratch: SizedMap,
    programs: SizedMap,
    /// Once a process was entered.
    walker: OnceLock<OwnedFd>,
}

impl WaitWalk {
    /// # Errors
    /// [`BpfError::Map`]: what the kernel refused.
    pub(super) fn new() -> Result<WaitWalk, BpfError> {
        let map = |what, kind, sizes| {
            let made = SizedMap::new(kind, sizes, 1, sys::name("kymo_py_waits"));
            made.map_err(|cause| BpfError::Map { what, entries: 1, cause })
        };
        Ok(WaitWalk {
            scratch: map("frames at waits", SizedMapKind::PerCpuArray, (4, SCRATCH_BYTES))?,
            programs: map("programs at waits", SizedMapKind::Programs, (4, 4))?,
            walker: OnceLock::new(),
        })
    }

    fn maps(&self, maps: PythonMaps) -> PythonMaps {
        PythonMaps { scratch: self.scratch.number(), programs: self.programs.number(), ..maps }
    }

    /// Attaches the gate at this tracepoint; the link.
    ///
    /// # Errors
    /// [`BpfError`]: what the kernel refused.
    pub(super) fn attach(
        &self,
        maps: PythonMaps,
        point: &CStr,
        pending: PendingRecord,
    ) -> Result<OwnedFd, BpfError> {
        let gate = gate(self.maps(maps), pending);
        attach_raw_program("kymo_py_wait", point, &gate, None).map(|(link, _)| link)
    }

    /// Loads the walker: a process was entered.
    ///
    /// # Errors
    /// [`BpfError`]: what the kernel refused.
    pub(super) fn load(&self, maps: PythonMaps, types: &TaskTypes) -> Result<(), BpfError> {
        if self.walker.get().is_some() {
            return Ok(());
        }
        let program = programs::walker(self.maps(maps));
        let walker = load(ProgramKind::RawTracepoint, "kymo_py_waits", &program, Some(types))?;
        let set = self.programs.set_program(0, walker.as_fd());
        set.map_err(|cause| BpfError::Enter { targets: 1, cause })?;
        let _ = self.walker.set(walker);
        Ok(())
    }
}

/// Runs behind each switch, in the thread that has the CPU now.
fn gate(maps: PythonMaps, pending: PendingRecord) -> Program {
    let mut a = Assembler::new();
    let end = a.label();
    a.mov(R6, R1); // R6 = the context
    a.store32_imm(FP, INDEX, 0);
    a.look_up(pending.map, INDEX, end);
    a.load64(R1, R0, pending.flag);
    a.jump_if(R1, 0, end);
    a.enter_walker(maps);
    a.show(end);
    a.finish().into()
}
