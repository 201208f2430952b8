//! What may be moved in Go's code.
use super::FreestandingError;
use crate::patch::site::is_call;
use iced_x86::{FlowControl, Instruction, InstructionInfoFactory, Mnemonic, Register};

/// Whether an instruction of Go's code may be executed elsewhere (F3).
pub(super) fn may_move_in_go(instruction: &Instruction) -> Result<(), FreestandingError> {
    let faults = FreestandingError::Faults(instruction.ip());
    let divides = matches!(instruction.mnemonic(), Mnemonic::Div | Mnemonic::Idiv);
    if divides || matches!(instruction.flow_control(), FlowControl::Exception | FlowControl::Interrupt) {
        return Err(faults);
    }
    let stack_or_goroutine = |base: Register, index: Register| {
        matches!(base, Register::RSP | Register::R14 | Register::RIP) && index == Register::None
    };
    let mut factory = InstructionInfoFactory::new();
    let info = factory.info(instruction);
    let known = info.used_memory().iter().all(|memory| {
        let relative = instruction.is_ip_rel_memory_operand() && memory.base() == Register::None;
        memory.segment() == Register::FS || relative || stack_or_goroutine(memory.base(), memory.index())
    });
    // A call pushes, and takes its target from a register: where that is none, the fault is there.
    if known && !(is_call(instruction) && instruction.op0_kind() == iced_x86::OpKind::Memory) {
        Ok(())
    } else {
        Err(faults)
    }
}
