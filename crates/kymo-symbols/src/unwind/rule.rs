//! How to get from one frame to its caller, in a form that is cheap to keep and to carry out.
//!
//! Nearly all frames follow one pattern: the CFA is a register plus an offset, the return address and the
//! callee-saved registers lie at fixed places below it. Those become a [`Plain`] rule of 20 bytes that a
//! cache holds by value. What is left (signal trampolines, jump stubs, realigned stacks) becomes an [`Exotic`] rule.

use gimli::{CfaRule, EndianSlice, LittleEndian, RegisterRule, UnwindSection, UnwindTableRow};

use super::expression::Expression;
use super::regs::{R12, RBP, RBX, REGISTERS, RETURN_ADDRESS, RSP};

/// The callee-saved registers of the x86_64 calling convention, except rsp.
pub(super) const CALLEE_SAVED: [usize; 6] = [RBX, RBP, R12, R12 + 1, R12 + 2, R12 + 3];

/// In [`Plain::saved`]: the register still has its value.
pub(super) const SAME: i16 = i16::MIN;

/// The common kind of rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plain {
    /// DWARF number of the register that the CFA is counted from.
    pub(super) cfa_register: u8,
    /// Bytes from there to the CFA.
    pub(super) cfa_offset: i32,
    /// Where the return address lies, in words from the CFA.
    pub(super) return_address: i16,
    /// Where the registers of [`CALLEE_SAVED`] lie, in words from the CFA, or [`SAME`].
    pub(super) saved: [i16; 6],
}

/// What to do with a frame.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Rule {
    Plain(Plain),
    Exotic(Box<Exotic>),
    /// The unwind data says that this function has no caller.
    Root,
    /// No unwind data covers the address: follow the frame pointer.
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
}

impl From<Rule> for FrameRule {
    fn from(rule: Rule) -> FrameRule {
        FrameRule { rule, signal: false }
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
    pub(super) fn from_row<'a, S>(row: &UnwindTableRow<usize>, section: &S) -> Rule
    where
        S: UnwindSection<Slice<'a>>,
    {
        // What perf's unwinder takes for the outermost frame: no return address, or a lost frame pointer.
        match (row.register(gimli::X86_64::RA), row.register(gimli::X86_64::RBP)) {
            (None | Some(RegisterRule::Undefined), _) | (_, Some(RegisterRule::Undefined)) => {
                return Rule::Root;
            }
            _ => {}
        }
        match plain(row) {
            Some(rule) => Rule::Plain(rule),
            None => exotic(row, section).map_or(Rule::Bad, |rule| Rule::Exotic(Box::new(rule))),
        }
    }

    /// The rule of a jump stub, or of any function before its first instruction.
    pub(super) fn just_called() -> Rule {
        Rule::Plain(Plain { cfa_register: RSP as u8, cfa_offset: 8, return_address: -1, saved: [SAME; 6] })
    }

    /// The rule of a signal trampoline, from the kernel's layout of the frame that it builds: the stack pointer
    /// points to a `ucontext`, whose registers are restored from there.
    pub(super) fn signal_trampoline() -> Rule {
        /// DWARF numbers in the order of `struct sigcontext`.
        const ORDER: [u16; 15] = [8, 9, 10, 11, 12, 13, 14, 15, 5, 4, 6, 3, 1, 0, 2];
        /// Bytes from the `ucontext` to the first of them.
        const FIRST: i64 = 40;
        let at = |place: i64| Expression::register_plus(RSP as u8, FIRST + 8 * place);
        Rule::Exotic(Box::new(Exotic {
            cfa: CfaSource::Expression(at(15).dereferenced()),
            return_address: Source::AtExpression(at(16)),
            registers: ORDER
                .iter()
                .zip(0..)
                .map(|(&r, place)| (r, Source::AtExpression(at(place))))
                .collect(),
        }))
    }
}

fn plain(row: &UnwindTableRow<usize>) -> Option<Plain> {
    let CfaRule::RegisterAndOffset { register, offset } = row.cfa() else { return None };
    let mut rule = Plain {
        cfa_register: u8::try_from(register.0).ok().filter(|&r| usize::from(r) < REGISTERS)?,
        cfa_offset: i32::try_from(*offset).ok()?,
        return_address: 0,
        saved: [SAME; 6],
    };
    let mut has_return_address = false;
    for (register, register_rule) in row.registers() {
        let number = usize::from(register.0);
        let place = CALLEE_SAVED.iter().position(|&r| r == number);
        match register_rule {
            // Wider registers are not followed, and the stack pointer of the caller is the CFA.
            _ if number > RETURN_ADDRESS || number == RSP => {}
            RegisterRule::SameValue if number != RETURN_ADDRESS => {}
            RegisterRule::Offset(offset) if offset % 8 == 0 => {
                let words = i16::try_from(offset / 8).ok().filter(|&words| words != SAME)?;
                if number == RETURN_ADDRESS {
                    rule.return_address = words;
                    has_return_address = true;
                } else {
                    rule.saved[place?] = words;
                }
            }
            _ => return None,
        }
    }
    has_return_address.then_some(rule)
}

fn exotic<'a, S>(row: &UnwindTableRow<usize>, section: &S) -> Option<Exotic>
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
    let mut return_address = None;
    let mut registers = Vec::new();
    for (register, rule) in row.registers() {
        let number = usize::from(register.0);
        if number > RETURN_ADDRESS || number == RSP {
            continue;
        }
        let source = match rule {
            RegisterRule::SameValue if number != RETURN_ADDRESS => continue,
            RegisterRule::Undefined => Source::Lost,
            RegisterRule::Offset(offset) => Source::AtCfa(*offset),
            RegisterRule::ValOffset(offset) => Source::Cfa(*offset),
            RegisterRule::Register(other) => Source::Register(other.0),
            RegisterRule::Expression(expression) => Source::AtExpression(bytes(expression)?),
            RegisterRule::ValExpression(expression) => Source::Expression(bytes(expression)?),
            _ => return None,
        };
        if number == RETURN_ADDRESS {
            return_address = Some(source);
        } else {
            registers.push((register.0, source));
        }
    }
    Some(Exotic { cfa, return_address: return_address?, registers })
}
