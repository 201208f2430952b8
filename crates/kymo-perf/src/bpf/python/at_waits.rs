//! Python's frames at waits: a program behind each switch tells them just before the record of a
//! wait is written, in the thread that waited.
//!
//! ```text
//!  sched_exit_tp -> 1. this gate: is a record to be written, of a process of Python? -> walker
//!                -> 2. the waits' own program: writes the record, with the native stack
//! ```
//! There is no gate until a process of Python was entered: it would run at each switch of the
//! machine. The programs of a tracepoint run in the order in which they were attached; so the
//! other one is moved behind the gate then. The scratch is not that of the walker at samples, whose
//! interrupt may come while this one walks.
use super::programs::{self, PythonMaps, SCRATCH_BYTES};
use crate::bpf::attach::{MovableProgram, attach_raw_program, load};
use crate::bpf::error::BpfError;
use crate::bpf::insn::{Assembler, FP, R0, R1, R6};
use crate::bpf::program::Program;
use crate::bpf::sys::sized_map::{SizedMap, SizedMapKind};
use crate::bpf::sys::{self, ProgramKind};
use crate::bpf::types::TaskTypes;
use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{OnceLock, Weak};

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

/// The walker at waits.
#[derive(Debug)]
pub(super) struct WaitWalk {
    // First, so that the gate is detached before the maps go.
    entered: OnceLock<Entered>,
    scratch: SizedMap,
    programs: SizedMap,
    point: &'static CStr,
    pending: PendingRecord,
    /// What writes the record; nothing after the end of that.
    writer: Weak<MovableProgram>,
}

/// What there is once a process was entered.
#[derive(Debug)]
struct Entered {
    _gate: OwnedFd,
    _walker: OwnedFd,
}

impl WaitWalk {
    /// `writer`: the program at this tracepoint that writes the record which is pending there.
    ///
    /// # Errors
    /// [`BpfError::Map`]: what the kernel refused.
    pub(super) fn new(
        point: &'static CStr,
        pending: PendingRecord,
        writer: Weak<MovableProgram>,
    ) -> Result<WaitWalk, BpfError> {
        let map = |what, kind, sizes| {
            let made = SizedMap::new(kind, sizes, 1, sys::name("kymo_py_waits"));
            made.map_err(|cause| BpfError::Map { what, entries: 1, cause })
        };
        Ok(WaitWalk {
            entered: OnceLock::new(),
            scratch: map("frames at waits", SizedMapKind::PerCpuArray, (4, SCRATCH_BYTES))?,
            programs: map("programs at waits", SizedMapKind::Programs, (4, 4))?,
            point,
            pending,
            writer,
        })
    }

    /// Attaches the gate and loads the walker: a process is about to be entered.
    ///
    /// # Errors
    /// [`BpfError`]: what the kernel refused.
    pub(super) fn enter(&self, maps: PythonMaps, types: &TaskTypes) -> Result<(), BpfError> {
        if self.entered.get().is_some() {
            return Ok(());
        }
        let maps = PythonMaps { scratch: self.scratch.number(), programs: self.programs.number(), ..maps };
        let walker = load(ProgramKind::RawTracepoint, "kymo_py_waits", &programs::walker(maps), Some(types))?;
        let entered = |cause| BpfError::Enter { targets: 1, cause };
        self.programs.set_program(0, walker.as_fd()).map_err(entered)?;
        let (gate, _) = attach_raw_program("kymo_py_wait", self.point, &gate(maps, self.pending), None)?;
        if let Some(writer) = self.writer.upgrade() {
            writer.move_behind().map_err(entered)?;
        }
        let _ = self.entered.set(Entered { _gate: gate, _walker: walker });
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
    a.enter_known(maps);
    a.show(end);
    a.finish().into()
}
