//! One step: the registers of a frame's caller, by the frame's rule.

use super::expression::{Expression, ExpressionError};
use super::regs::UserRegs;
use super::rule::{CfaSource, Exotic, IN_LR, Plain, SAME, Source};
use super::stack::Stack;
use super::stats::Stop;
use crate::arch::{Arch, LR};

/// The caller of a frame with a plain rule.
#[inline]
pub(super) fn step_plain_x86_64(
    rule: &Plain,
    regs: &mut UserRegs,
    stack: Stack<'_>,
    first: bool,
) -> Result<(), Stop> {
    let base = regs.get(usize::from(rule.cfa_register)).ok_or(Stop::RegisterUnknown)?;
    let cfa = base.wrapping_add_signed(i64::from(rule.cfa_offset));
    let place = cfa.wrapping_add_signed(i64::from(rule.return_address) * 8);
    regs.ip = stack.word(place).ok_or_else(|| stack.why_unreadable(place))?;
    for (&register, &words) in Arch::X86_64.callee_saved().iter().zip(&rule.saved) {
        let at = place.wrapping_add_signed(i64::from(words) * 8);
        if words != SAME && !(first && just_popped(at, stack)) {
            regs.set(register.into(), stack.word(at));
        }
    }
    regs.set_sp(cfa);
    Ok(())
}

/// The same; the return address of a leaf function is in the link register.
#[inline]
pub(super) fn step_plain_aarch64(rule: &Plain, regs: &mut UserRegs, stack: Stack<'_>) -> Result<(), Stop> {
    let base = regs.get(usize::from(rule.cfa_register)).ok_or(Stop::RegisterUnknown)?;
    let cfa = base.wrapping_add_signed(i64::from(rule.cfa_offset));
    let from = match rule.return_address {
        IN_LR => {
            regs.ip = regs.get(LR).ok_or(Stop::RegisterUnknown)?;
            cfa
        }
        words => {
            let place = cfa.wrapping_add_signed(i64::from(words) * 8);
            regs.ip = stack.word(place).ok_or_else(|| stack.why_unreadable(place))?;
            regs.set(LR, Some(regs.ip));
            place
        }
    };
    for (&register, &words) in Arch::Aarch64.callee_saved().iter().zip(&rule.saved) {
        if words != SAME {
            regs.set(register.into(), stack.word(from.wrapping_add_signed(i64::from(words) * 8)));
        }
    }
    regs.set_sp(cfa);
    Ok(())
}

/// In the innermost frame a saved copy below the stack pointer has just been popped: the register
/// has its value again, and the copy is not part of the recording.
fn just_popped(address: u64, stack: Stack<'_>) -> bool {
    /// The most that an epilogue pops, and some.
    const POPPED_BYTES: u64 = 256;
    address < stack.start && stack.start - address <= POPPED_BYTES
}

/// The caller of a frame with any other rule.
pub(super) fn step_exotic(rule: &Exotic, regs: &mut UserRegs, stack: Stack<'_>) -> Result<(), Stop> {
    let old = *regs;
    let read = |address| stack.word(address);
    let evaluate = |expression: &Expression, initial| {
        expression.evaluate(initial, &old, read).map_err(|error| match error {
            ExpressionError::Bad => Stop::BadUnwindInfo,
            ExpressionError::RegisterUnknown => Stop::RegisterUnknown,
            ExpressionError::Unreadable(address) => stack.why_unreadable(address),
        })
    };
    let cfa = match &rule.cfa {
        CfaSource::Register(register, offset) => {
            let base = old.get(usize::from(*register)).ok_or(Stop::RegisterUnknown)?;
            base.wrapping_add_signed(*offset)
        }
        CfaSource::Expression(expression) => evaluate(expression, None)?,
    };
    let at = |address| stack.word(address).ok_or_else(|| stack.why_unreadable(address));
    let value = |source: &Source| match source {
        Source::AtCfa(offset) => at(cfa.wrapping_add_signed(*offset)),
        Source::Cfa(offset) => Ok(cfa.wrapping_add_signed(*offset)),
        Source::Register(register) => old.get(usize::from(*register)).ok_or(Stop::RegisterUnknown),
        Source::AtExpression(expression) => at(evaluate(expression, Some(cfa))?),
        Source::Expression(expression) => evaluate(expression, Some(cfa)),
        Source::Lost => Err(Stop::RegisterUnknown),
    };
    regs.ip = value(&rule.return_address)?;
    if old.arch == Arch::Aarch64 {
        regs.set(LR, Some(regs.ip));
    }
    for (register, source) in &rule.registers {
        regs.set(usize::from(*register), value(source).ok());
    }
    regs.set_sp(cfa);
    Ok(())
}
