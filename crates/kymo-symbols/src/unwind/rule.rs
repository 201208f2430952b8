//! How to get from one frame to its caller, in a form that is cheap to keep and to carry out.
//!
//! Nearly all frames follow one pattern: the CFA is a register plus an offset, the return address
//! and the callee-saved registers lie at fixed places below it. Those become a [`Plain`] rule of 20
//! bytes that a cache holds by value. On aarch64 a leaf function's return address is in a register
//! instead. What is left (signal trampolines, jump stubs, realigned stacks) becomes an [`Exotic`]
//! rule.

use gimli::{CfaRule, EndianSlice, LittleEndian, RegisterRule, UnwindSection, UnwindTableRow};

use super::expression::Expression;
use crate::arch::{Arch, LR, MOST_SAVED, RSP, SP};

/// In [`Plain::saved`]: the register still has its value.
pub(super) const SAME: i8 = i8::MIN;

/// In [`Plain::return_address`]: it is in the link register (aarch64).
pub(super) const IN_LR: i16 = i16::MIN;

/// The common kind of rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plain {
    /// DWARF number of the register that the CFA is counted from.
    pub(super) cfa_register: u8,
    /// Bytes from there to the CFA.
    pub(super) cfa_offset: i32,
    /// Where the return address lies, in words from the CFA, or [`IN_LR`].
    pub(super) return_address: i16,
    /// Where the registers of [`Arch::callee_saved`] lie, or [`SAME`]: in words from the return
    /// address, or from the CFA where that is in a register. Compilers save them side by side.
    pub(super) saved: [i8; MOST_SAVED],
}

/// What to do with a frame.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Rule {
    Plain(Plain),
    Exotic(Box<Exotic>),
    /// The unwind data says that this function has no caller.
    Root,
    /// No unwind data covers the address, and its machine code says nothing: follow the frame
    /// pointer.
    FramePointer,
    /// The unwind data for the address is damaged or uses what is not supported.
    Bad,
}

/// A rule together with the kind of frame it is for.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FrameRule {
    pub(super) rule: Rule,
    /// The frame is a signal trampoline: its caller was interrupted, it did not call.
    pub(super) signal: bool,
    /// No table covers the address: the rule is what the machine code says (`machine_code`).
    pub(super) by_code: bool,
}

impl From<Rule> for FrameRule {
    fn from(rule: Rule) -> FrameRule {
        FrameRule { rule, signal: false, by_code: false }
    }
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Source {
    /// It lies at the CFA plus this many bytes.
    AtCfa(i64),
    /// It is the CFA plus this many bytes.
    Cfa(i64),
    /// It is in another register.
    Register(u16),
    /// It lies at the address that the expression computes.
    AtExpression(Expression),
    /// It is what the expression computes.
    Expression(Expression),
    /// It is lost.
    Lost,
}

/// Where the CFA comes from.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum CfaSource {
    Register(u16, i64),
    Expression(Expression),
}

/// Any rule that is not [`Plain`].
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Exotic {
    pub(super) cfa: CfaSource,
    pub(super) return_address: Source,
    /// Registers that do not keep their value.
    pub(super) registers: Vec<(u16, Source)>,
}

type Slice<'a> = EndianSlice<'a, LittleEndian>;

impl Rule {
    /// The rule that a row of the unwind table stands for.
    pub(super) fn from_row<'a, S>(arch: Arch, row: &UnwindTableRow<usize>, section: &S) -> Rule
    where
        S: UnwindSection<Slice<'a>>,
    {
        // What perf's unwinder takes for the outermost frame: no return address, or a lost frame pointer.
        let is_root = match arch {
            Arch::X86_64 => {
                matches!(row.register(gimli::X86_64::RA), None | Some(RegisterRule::Undefined))
                    || row.register(gimli::X86_64::RBP) == Some(RegisterRule::Undefined)
            }
            // Without a rule it is still in the link register.
            Arch::Aarch64 => row.register(gimli::AArch64::X30) == Some(RegisterRule::Undefined),
        };
        if is_root {
            return Rule::Root;
        }
        match plain(arch, row) {
            Some(rule) => Rule::Plain(rule),
            None => exotic(arch, row, section).map_or(Rule::Bad, |rule| Rule::Exotic(Box::new(rule))),
        }
    }

    /// The rule of a jump stub, or of any function before its first instruction.
    pub(super) fn just_called(arch: Arch) -> Rule {
        let saved = [SAME; MOST_SAVED];
        Rule::Plain(match arch {
            Arch::X86_64 => Plain { cfa_register: RSP as u8, cfa_offset: 8, return_address: -1, saved },
            Arch::Aarch64 => Plain { cfa_register: SP as u8, cfa_offset: 0, return_address: IN_LR, saved },
        })
    }

    /// The rule of a signal trampoline, from the kernel's layout of the frame that it builds: the
    /// registers are restored from there.
    pub(super) fn signal_trampoline(arch: Arch) -> Rule {
        /// DWARF numbers in the order of `struct sigcontext`; the stack and the instruction pointer
        /// follow.
        const X86_64_ORDER: [u16; 15] = [8, 9, 10, 11, 12, 13, 14, 15, 5, 4, 6, 3, 1, 0, 2];
        /// x86_64: the stack pointer points to a `ucontext`. Bytes from there to the first of them.
        const X86_64_FIRST: i64 = 40;
        /// aarch64: the stack pointer points to a `siginfo` of 128 bytes, then come a `ucontext`
        /// whose `sigcontext` begins after 176 bytes, a fault address, x0 to x30, sp and pc.
        const AARCH64_FIRST: i64 = 128 + 176 + 8;
        let (order, first): (Vec<u16>, i64) = match arch {
            Arch::X86_64 => (X86_64_ORDER.to_vec(), X86_64_FIRST),
            Arch::Aarch64 => ((0..=LR as u16).collect(), AARCH64_FIRST),
        };
        let at = |place: usize| Expression::register_plus(arch.sp() as u8, first + 8 * place as i64);
        Rule::Exotic(Box::new(Exotic {
            cfa: CfaSource::Expression(at(order.len()).dereferenced()),
            return_address: Source::AtExpression(at(order.len() + 1)),
            registers: order
                .iter()
                .zip(0..)
                .map(|(&r, place)| (r, Source::AtExpression(at(place))))
                .collect(),
        }))
    }
}

fn plain(arch: Arch, row: &UnwindTableRow<usize>) -> Option<Plain> {
    let CfaRule::RegisterAndOffset { register, offset } = row.cfa() else { return None };
    let words = |offset: i64| i16::try_from(offset / 8).ok().filter(|_| offset % 8 == 0);
    let return_address = match row.register(gimli::Register(arch.return_column() as u16)) {
        Some(RegisterRule::Offset(offset)) => words(offset).filter(|&words| words != IN_LR)?,
        None | Some(RegisterRule::SameValue) if arch == Arch::Aarch64 => IN_LR,
        _ => return None,
    };
    let mut rule = Plain {
        cfa_register: u8::try_from(register.0).ok().filter(|&r| usize::from(r) < arch.registers())?,
        cfa_offset: i32::try_from(*offset).ok()?,
        return_address,
        saved: [SAME; MOST_SAVED],
    };
    let from = if return_address == IN_LR { 0 } else { return_address };
    for (register, register_rule) in row.registers() {
        let number = usize::from(register.0);
        match register_rule {
            _ if arch.is_passed_over(number) || number == arch.return_column() => {}
            RegisterRule::SameValue => {}
            RegisterRule::Offset(offset) => {
                let place = arch.callee_saved().iter().position(|&r| usize::from(r) == number)?;
                let words = i8::try_from(words(*offset)?.checked_sub(from)?).ok();
                rule.saved[place] = words.filter(|&words| words != SAME)?;
            }
            _ => return None,
        }
    }
    Some(rule)
}

fn exotic<'a, S>(arch: Arch, row: &UnwindTableRow<usize>, section: &S) -> Option<Exotic>
where
    S: UnwindSection<Slice<'a>>,
{
    let bytes = |e: &gimli::UnwindExpression<usize>| {
        e.get(section).ok().and_then(|expression| Expression::new(expression.0.slice()))
    };
    let cfa = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => CfaSource::Register(register.0, *offset),
        CfaRule::Expression(expression) => CfaSource::Expression(bytes(expression)?),
    };
    let column = arch.return_column();
    // Without a rule aarch64's is where a call has put it.
    let mut return_address = (arch == Arch::Aarch64).then_some(Source::Register(LR as u16));
    let mut registers = Vec::new();
    for (register, rule) in row.registers() {
        let number = usize::from(register.0);
        if arch.is_passed_over(number) {
            continue;
        }
        let source = match rule {
            RegisterRule::SameValue if number != column || arch == Arch::Aarch64 => continue,
            RegisterRule::Undefined => Source::Lost,
            RegisterRule::Offset(offset) => Source::AtCfa(*offset),
            RegisterRule::ValOffset(offset) => Source::Cfa(*offset),
            RegisterRule::Register(other) => Source::Register(other.0),
            RegisterRule::Expression(expression) => Source::AtExpression(bytes(expression)?),
            RegisterRule::ValExpression(expression) => Source::Expression(bytes(expression)?),
            _ => return None,
        };
        if number == column {
            return_address = Some(source);
        } else {
            registers.push((register.0, source));
        }
    }
    Some(Exotic { cfa, return_address: return_address?, registers })
}
