//! The part of a stub that lets some hits pass: comparisons of registers, and one in N.
//!
//! ```text
//!   rsp -= frame; the registers that are used, and the flags, are kept in it
//!   for each list:   for each test:  rax = register, as wide as asked;  compare;  on to the next list unless it holds
//!   hits += 1                        this CPU's, which leaves in rax the how-manieth it is
//!   on unless it is the Nth
//! ```
use super::context::{CodegenContext, Emitted};
use super::count::Counter;
use crate::patch::layout::REGISTER_COUNT;
use iced_x86::code_asm::{
    AsmRegister64, CodeAssembler, CodeLabel, al, ax, eax, ecx, edx, qword_ptr, r8, r9, r10, r11, r12, r13,
    r14, r15, rax, rbp, rbx, rcx, rdi, rdx, rsi, rsp,
};
use kymo_core::probe::value::{Compare, Condition, Operand};

/// By their numbers.
pub(crate) const REGISTERS: [AsmRegister64; REGISTER_COUNT] =
    [rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15];

/// The red zone and the kept registers, a multiple of 16.
pub(crate) const FRAME: i32 = 192;
const KEPT: [AsmRegister64; 6] = [rax, rcx, rdx, rsi, rdi, r8];
const FLAGS_AT: i32 = 48;

/// Keeps registers and flags: from here on they can be used.
pub(crate) fn open(a: &mut CodeAssembler) -> Emitted {
    a.lea(rsp, rsp - FRAME)?;
    for (at, register) in KEPT.into_iter().enumerate() {
        a.mov(qword_ptr(rsp + 8 * at as i32), register)?;
    }
    a.lahf()?;
    a.seto(al)?;
    a.mov(qword_ptr(rsp + FLAGS_AT), rax)
}

/// Everything as it was.
pub(crate) fn close(a: &mut CodeAssembler) -> Emitted {
    a.mov(rax, qword_ptr(rsp + FLAGS_AT))?;
    a.add(al, 127)?;
    a.sahf()?;
    for (at, register) in KEPT.into_iter().enumerate() {
        a.mov(register, qword_ptr(rsp + 8 * at as i32))?;
    }
    a.lea(rsp, rsp + FRAME)
}

/// A register as the program has it. After a return (`returned`) its address is off the stack.
fn load(a: &mut CodeAssembler, number: u8, returned: bool) -> Emitted {
    let register = REGISTERS[usize::from(number) % REGISTERS.len()];
    if register == rsp {
        return a.lea(rax, rsp + (FRAME + if returned { 8 } else { 0 }));
    }
    match KEPT.iter().position(|kept| *kept == register) {
        Some(at) => a.mov(rax, qword_ptr(rsp + 8 * at as i32)),
        None => a.mov(rax, register),
    }
}

/// Leaves in rax an operand that is a register, extended to 64 bits.
pub(crate) fn operand(a: &mut CodeAssembler, operand: &Operand, returned: bool) -> Emitted {
    load(a, operand.register, returned)?;
    extend(a, operand)
}

/// Extends rax.
pub(crate) fn extend(a: &mut CodeAssembler, operand: &Operand) -> Emitted {
    match (operand.bytes, operand.signed) {
        (1, false) => a.movzx(eax, al),
        (1, true) => a.movsx(rax, al),
        (2, false) => a.movzx(eax, ax),
        (2, true) => a.movsx(rax, ax),
        (4, false) => a.mov(eax, eax),
        (4, true) => a.movsxd(rax, eax),
        _ => Ok(()),
    }
}

/// On to `out` unless the condition, of registers, holds. Uses rax and rcx.
pub(crate) fn only_if(
    a: &mut CodeAssembler,
    condition: &Condition,
    returned: bool,
    out: CodeLabel,
) -> Emitted {
    only_if_of(a, condition, out, |a, at| operand(a, at, returned))
}

/// As [`only_if`], where `load` leaves operands in rax.
pub(crate) fn only_if_of(
    a: &mut CodeAssembler,
    condition: &Condition,
    out: CodeLabel,
    load: impl Fn(&mut CodeAssembler, &Operand) -> Emitted,
) -> Emitted {
    if condition.is_empty() {
        return Ok(());
    }
    let mut holds = a.create_label();
    for (number, tests) in condition.iter().enumerate() {
        let last = number + 1 == condition.len();
        let mut next = a.create_label();
        let on = if last { out } else { next };
        for test in tests {
            load(a, &test.operand)?;
            a.mov(rcx, test.value)?;
            a.cmp(rax, rcx)?;
            match (test.compare, test.operand.signed) {
                (Compare::Equal, _) => a.jne(on)?,
                (Compare::NotEqual, _) => a.je(on)?,
                (Compare::Less, false) => a.jae(on)?,
                (Compare::LessEqual, false) => a.ja(on)?,
                (Compare::Greater, false) => a.jbe(on)?,
                (Compare::GreaterEqual, false) => a.jb(on)?,
                (Compare::Less, true) => a.jge(on)?,
                (Compare::LessEqual, true) => a.jg(on)?,
                (Compare::Greater, true) => a.jle(on)?,
                (Compare::GreaterEqual, true) => a.jl(on)?,
            }
        }
        if !last {
            a.jmp(holds)?;
            a.set_label(&mut next)?;
            a.zero_bytes()?;
        }
    }
    a.set_label(&mut holds)?;
    a.zero_bytes()
}

/// On to `out` unless rax is a multiple of `every`. Uses rcx and rdx.
pub(crate) fn only_each(a: &mut CodeAssembler, every: u32, out: CodeLabel) -> Emitted {
    if every <= 1 {
        return Ok(());
    }
    if every.is_power_of_two() {
        a.test(eax, every - 1)?;
    } else {
        a.mov(ecx, every)?;
        a.xor(edx, edx)?;
        a.div(rcx)?;
        a.test(rdx, rdx)?;
    }
    a.jnz(out)
}

/// A gate before a stub that looks at the return: counts the hits that meet the condition, and on
/// to `out`, with everything as it was, for those that are not to be looked at.
pub(crate) fn before(
    a: &mut CodeAssembler,
    (condition, every): (&Condition, u32),
    (counter, slot): (&mut Counter, u32),
    context: &CodegenContext,
    out: CodeLabel,
) -> Emitted {
    let (mut shut, mut passed) = (a.create_label(), a.create_label());
    open(a)?;
    only_if(a, condition, false, shut)?;
    counter.raise(a, context, slot)?;
    only_each(a, every, shut)?;
    a.jmp(passed)?;
    a.set_label(&mut shut)?;
    close(a)?;
    a.jmp(out)?;
    a.set_label(&mut passed)?;
    close(a)
}
