//! The way from a stub into a function of this crate and back, with all registers and flags as they
//! were.
//!
//! The functions take two numbers, from rax and rcx, and their result comes back in rcx. They are
//! compiled for the plain x86-64, so of the vector registers they change the lower halves at most;
//! they do not use floating point.
use super::context::Emitted;
use iced_x86::IcedError;
use iced_x86::code_asm::{
    AsmRegister64, AsmRegisterXmm, CodeAssembler, al, r8, r9, r10, r11, rax, rbp, rcx, rdi, rdx, rsi, rsp,
    xmm0, xmm1, xmm2, xmm3, xmm4, xmm5, xmm6, xmm7, xmm8, xmm9, xmm10, xmm11, xmm12, xmm13, xmm14, xmm15,
    xmmword_ptr,
};

const KEPT: [AsmRegister64; 8] = [rbp, rdi, rsi, rdx, r8, r9, r10, r11];
const VECTORS: [AsmRegisterXmm; 16] =
    [xmm0, xmm1, xmm2, xmm3, xmm4, xmm5, xmm6, xmm7, xmm8, xmm9, xmm10, xmm11, xmm12, xmm13, xmm14, xmm15];

/// The code that calls the function at `function`; a stub calls it with its stack pointer below
/// what must not be overwritten.
pub(crate) fn generate(function: u64) -> Result<Vec<u8>, IcedError> {
    let mut a = CodeAssembler::new(64)?;
    a.pushfq()?;
    for register in KEPT {
        a.push(register)?;
    }
    a.mov(rdi, rax)?;
    a.cld()?;
    call(&mut a, function)?;
    for register in KEPT.into_iter().rev() {
        a.pop(register)?;
    }
    a.popfq()?;
    a.ret()?;
    // Nothing here depends on where it lies.
    a.assemble(0)
}

/// As [`generate`], for stubs at a function's entry and return only. There the direction flag is
/// clear, and the others can be kept without `popfq`, which takes longer than all the rest.
pub(crate) fn generate_at_calls(function: u64) -> Result<Vec<u8>, IcedError> {
    let mut a = CodeAssembler::new(64)?;
    for register in KEPT {
        a.push(register)?;
    }
    a.mov(rdi, rax)?;
    a.lahf()?;
    a.seto(al)?;
    a.push(rax)?;
    call(&mut a, function)?;
    a.pop(rax)?;
    a.add(al, 127)?;
    a.sahf()?;
    for register in KEPT.into_iter().rev() {
        a.pop(register)?;
    }
    a.ret()?;
    a.assemble(0)
}

/// Calls the function with rdi and rcx, on an aligned stack; its result is in rcx then. The
/// direction flag is clear.
fn call(a: &mut CodeAssembler, function: u64) -> Emitted {
    a.mov(rbp, rsp)?;
    a.sub(rsp, 16 * VECTORS.len() as i32)?;
    a.and(rsp, -16)?;
    for (at, register) in VECTORS.into_iter().enumerate() {
        a.movaps(xmmword_ptr(rsp + 16 * at as i32), register)?;
    }
    a.mov(rsi, rcx)?;
    a.mov(rax, function)?;
    a.call(rax)?;
    a.mov(rcx, rax)?;
    for (at, register) in VECTORS.into_iter().enumerate() {
        a.movaps(register, xmmword_ptr(rsp + 16 * at as i32))?;
    }
    a.mov(rsp, rbp)
}
