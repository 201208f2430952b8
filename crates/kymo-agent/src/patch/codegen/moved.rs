//! Relocated instructions: the displaced ones, which do in the stub what they did at the site.
use super::context::Emitted;
use crate::patch::site::{Site, is_call};
use iced_x86::code_asm::{CodeAssembler, CodeLabel, qword_ptr, rsp};
use iced_x86::{Code, FlowControl, IcedError, Instruction, MemoryOperand, OpKind, Register};

/// The stack pointer as where the function begins: what the instruction before the site has pushed
/// is in the red zone then.
pub(crate) fn raise_stack(a: &mut CodeAssembler, site: &Site) -> Emitted {
    if site.lowered == 0 { Ok(()) } else { a.lea(rsp, rsp + site.lowered) }
}

/// The stack pointer as at the site.
pub(crate) fn lower_stack(a: &mut CodeAssembler, site: &Site) -> Emitted {
    if site.lowered == 0 { Ok(()) } else { a.lea(rsp, rsp - site.lowered) }
}

/// Writes them without the way back. `enter` is the stub's begin; `before` may write something
/// before each of them, which a thread that is moved to an instruction's label executes, too. Each
/// one's label, and whether the flow ends with them.
pub(crate) fn each(
    a: &mut CodeAssembler,
    site: &Site,
    enter: u64,
    before: &mut dyn FnMut(&mut CodeAssembler, &Instruction) -> Emitted,
) -> Result<(Vec<CodeLabel>, bool), IcedError> {
    let mut moved = Vec::new();
    let mut ends = false;
    for instruction in &site.displaced {
        let mut label = a.create_label();
        a.set_label(&mut label)?;
        // A place of its own: the instruction may become several.
        a.zero_bytes()?;
        moved.push(label);
        before(a, instruction)?;
        if is_call(instruction) {
            call(a, instruction)?;
            ends = true;
            continue;
        }
        let mut instruction = *instruction;
        // Without a place of its own in the program: what refers to the function's begin (or
        // compares with it) means the function, not this copy.
        instruction.set_ip(0);
        if instruction.op0_kind() == OpKind::NearBranch64 && instruction.near_branch64() == site.address {
            // A loop to the site is a hit each time.
            instruction.set_near_branch64(enter);
        }
        a.add_instruction(instruction)?;
        ends = matches!(
            instruction.flow_control(),
            FlowControl::Return | FlowControl::UnconditionalBranch | FlowControl::IndirectBranch
        );
    }
    Ok((moved, ends))
}

/// A call that pushes the address in the function, not one in the stub.
fn call(a: &mut CodeAssembler, instruction: &Instruction) -> Emitted {
    let mut back = a.create_label();
    a.push(qword_ptr(back))?;
    match instruction.op0_kind() {
        OpKind::NearBranch64 => a.jmp(instruction.near_branch64())?,
        OpKind::Register => {
            a.add_instruction(Instruction::with1(Code::Jmp_rm64, instruction.op0_register())?)?;
        }
        _ => {
            // The push has moved the stack pointer.
            let moved = if instruction.memory_base() == Register::RSP { 8 } else { 0 };
            let operand = MemoryOperand::new(
                instruction.memory_base(),
                instruction.memory_index(),
                instruction.memory_index_scale(),
                (instruction.memory_displacement64() as i64).wrapping_add(moved),
                // As short as it fits.
                if instruction.memory_base() == Register::None { 8 } else { 1 },
                false,
                instruction.segment_prefix(),
            );
            a.add_instruction(Instruction::with1(Code::Jmp_rm64, operand)?)?;
        }
    }
    a.set_label(&mut back)?;
    a.dq(&[instruction.next_ip()])
}
