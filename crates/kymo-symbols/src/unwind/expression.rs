//! The few DWARF operations that unwind tables use, carried out without allocating.
//!
//! Jumps only go where an operation starts or an error ends the evaluation; a step limit bounds loops. The
//! tests compare this with gimli's evaluator, which is the model.

use super::regs::UserRegs;

/// Longer expressions do not occur in unwind tables.
const MAX_BYTES: usize = 1024;
/// Operations carried out before an expression is taken for an endless loop.
const MAX_STEPS: usize = 2048;
/// Values on the stack.
const DEPTH: usize = 32;

/// A DWARF expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Expression(Box<[u8]>);

/// Why an expression has no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExpressionError {
    /// It is damaged or uses an operation that is not supported.
    Bad,
    /// It needs a register whose value is not known.
    RegisterUnknown,
    /// It needs memory that could not be read.
    Unreadable(u64),
}

impl Expression {
    /// Keeps the bytes of an expression; `None` when it is too long to be one.
    pub(super) fn new(bytes: &[u8]) -> Option<Expression> {
        (bytes.len() <= MAX_BYTES).then(|| Expression(bytes.into()))
    }

    /// The expression "register plus offset".
    pub(super) fn register_plus(register: u8, offset: i64) -> Expression {
        let mut bytes = vec![op::BREG0 + (register & 31)];
        push_sleb(&mut bytes, offset);
        Expression(bytes.into())
    }

    /// The expression "this one plus offset".
    pub(super) fn plus(&self, offset: i64) -> Expression {
        let mut bytes = self.0.to_vec();
        bytes.push(op::CONSTS);
        push_sleb(&mut bytes, offset);
        bytes.push(op::PLUS);
        Expression(bytes.into())
    }

    /// The expression that reads memory where this one points.
    pub(super) fn dereferenced(&self) -> Expression {
        let mut bytes = self.0.to_vec();
        bytes.push(op::DEREF);
        Expression(bytes.into())
    }

    /// The value, starting with `initial` on the stack if given; `read` reads a word of the target's memory.
    pub(super) fn evaluate(
        &self,
        initial: Option<u64>,
        regs: &UserRegs,
        read: impl Fn(u64) -> Option<u64>,
    ) -> Result<u64, ExpressionError> {
        let mut stack = Stack::default();
        if let Some(value) = initial {
            stack.push(value)?;
        }
        let mut code = Code { bytes: &self.0, at: 0 };
        for _ in 0..MAX_STEPS {
            if code.at >= code.bytes.len() {
                return stack.pop();
            }
            step(&mut code, &mut stack, regs, &read)?;
        }
        Err(ExpressionError::Bad)
    }
}

/// Appends a number in DWARF's signed LEB128.
fn push_sleb(bytes: &mut Vec<u8>, number: i64) {
    let mut rest = number;
    loop {
        let low = (rest & 0x7f) as u8;
        rest >>= 7;
        if (rest == 0 && low & 0x40 == 0) || (rest == -1 && low & 0x40 != 0) {
            bytes.push(low);
            return;
        }
        bytes.push(low | 0x80);
    }
}

fn step(
    code: &mut Code<'_>,
    stack: &mut Stack,
    regs: &UserRegs,
    read: &impl Fn(u64) -> Option<u64>,
) -> Result<(), ExpressionError> {
    use ExpressionError::{Bad, RegisterUnknown, Unreadable};
    let operation = code.u8()?;
    let value = match operation {
        op::ADDR | op::CONST8U | op::CONST8S => code.word(8)?,
        op::CONST1U => code.word(1)?,
        op::CONST2U => code.word(2)?,
        op::CONST4U => code.word(4)?,
        op::CONST1S => code.word(1)? as i8 as u64,
        op::CONST2S => code.word(2)? as i16 as u64,
        op::CONST4S => code.word(4)? as i32 as u64,
        op::CONSTU => code.uleb()?,
        op::CONSTS => code.sleb()? as u64,
        op::LIT0..=op::LIT31 => u64::from(operation - op::LIT0),
        op::BREG0..=op::BREG31 | op::BREGX => {
            let register = match operation {
                op::BREGX => usize::try_from(code.uleb()?).map_err(|_| Bad)?,
                _ => usize::from(operation - op::BREG0),
            };
            let offset = code.sleb()?;
            regs.get(register).ok_or(RegisterUnknown)?.wrapping_add_signed(offset)
        }
        op::DUP => stack.peek(0)?,
        op::OVER => stack.peek(1)?,
        op::PICK => {
            let depth = code.u8()?;
            stack.peek(usize::from(depth))?
        }
        op::DROP => {
            stack.pop()?;
            return Ok(());
        }
        op::SWAP => {
            let (b, a) = (stack.pop()?, stack.pop()?);
            stack.push(b)?;
            a
        }
        op::ROT => {
            let (c, b, a) = (stack.pop()?, stack.pop()?, stack.pop()?);
            stack.push(c)?;
            stack.push(a)?;
            b
        }
        op::DEREF => {
            let address = stack.pop()?;
            read(address).ok_or(Unreadable(address))?
        }
        op::DEREF_SIZE => {
            let size = code.u8()?;
            let address = stack.pop()?;
            let word = read(address).ok_or(Unreadable(address))?;
            match size {
                8 => word,
                1..=7 => word & ((1 << (8 * u32::from(size))) - 1),
                _ => return Err(Bad),
            }
        }
        op::ABS => (stack.pop()? as i64).wrapping_abs() as u64,
        op::NEG => (stack.pop()? as i64).wrapping_neg() as u64,
        op::NOT => !stack.pop()?,
        op::PLUS_UCONST => {
            let constant = code.uleb()?;
            stack.pop()?.wrapping_add(constant)
        }
        op::BRA | op::SKIP => {
            let distance = code.word(2)? as i16;
            if operation == op::SKIP || stack.pop()? != 0 {
                let target = code.at.checked_add_signed(isize::from(distance)).ok_or(Bad)?;
                if target > code.bytes.len() {
                    return Err(Bad);
                }
                code.at = target;
            }
            return Ok(());
        }
        op::NOP => return Ok(()),
        op::AND..=op::XOR | op::EQ..=op::NE => {
            let (b, a) = (stack.pop()?, stack.pop()?);
            binary(operation, a, b)?
        }
        _ => return Err(Bad),
    };
    stack.push(value)
}

fn binary(operation: u8, a: u64, b: u64) -> Result<u64, ExpressionError> {
    let (signed_a, signed_b) = (a as i64, b as i64);
    Ok(match operation {
        op::AND => a & b,
        op::OR => a | b,
        op::XOR => a ^ b,
        op::PLUS => a.wrapping_add(b),
        op::MINUS => a.wrapping_sub(b),
        op::MUL => a.wrapping_mul(b),
        op::DIV if b != 0 => signed_a.wrapping_div(signed_b) as u64,
        op::MOD if b != 0 => a % b,
        op::SHL => {
            if b < 64 {
                a << b
            } else {
                0
            }
        }
        op::SHR => {
            if b < 64 {
                a >> b
            } else {
                0
            }
        }
        op::SHRA => (signed_a >> b.min(63)) as u64,
        op::EQ => u64::from(a == b),
        op::NE => u64::from(a != b),
        op::GE => u64::from(signed_a >= signed_b),
        op::GT => u64::from(signed_a > signed_b),
        op::LE => u64::from(signed_a <= signed_b),
        op::LT => u64::from(signed_a < signed_b),
        _ => return Err(ExpressionError::Bad),
    })
}

/// A bounded stack of words.
#[derive(Default)]
struct Stack {
    values: [u64; DEPTH],
    len: usize,
}

impl Stack {
    fn push(&mut self, value: u64) -> Result<(), ExpressionError> {
        *self.values.get_mut(self.len).ok_or(ExpressionError::Bad)? = value;
        self.len += 1;
        Ok(())
    }

    fn pop(&mut self) -> Result<u64, ExpressionError> {
        let value = self.peek(0)?;
        self.len -= 1;
        Ok(value)
    }

    fn peek(&self, depth: usize) -> Result<u64, ExpressionError> {
        let at = self.len.checked_sub(depth + 1).ok_or(ExpressionError::Bad)?;
        Ok(self.values[at])
    }
}

/// The operations still to come.
struct Code<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Code<'_> {
    fn u8(&mut self) -> Result<u8, ExpressionError> {
        let byte = *self.bytes.get(self.at).ok_or(ExpressionError::Bad)?;
        self.at += 1;
        Ok(byte)
    }

    /// A little-endian number of up to eight bytes.
    fn word(&mut self, bytes: u32) -> Result<u64, ExpressionError> {
        (0..bytes).try_fold(0, |word, place| Ok(word | u64::from(self.u8()?) << (8 * place)))
    }

    fn uleb(&mut self) -> Result<u64, ExpressionError> {
        let mut value = 0_u64;
        for shift in (0..70).step_by(7) {
            let byte = self.u8()?;
            value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(ExpressionError::Bad)
    }

    fn sleb(&mut self) -> Result<i64, ExpressionError> {
        let mut value = 0_i64;
        for shift in (0..70_u32).step_by(7) {
            let byte = self.u8()?;
            value |= i64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte & 0x80 == 0 {
                let used = shift + 7;
                let negative = byte & 0x40 != 0 && used < 64;
                return Ok(if negative { value | (-1 << used) } else { value });
            }
        }
        Err(ExpressionError::Bad)
    }
}

/// Numbers of the operations (DWARF 5, section 7.7.1).
mod op {
    pub(super) const ADDR: u8 = 0x03;
    pub(super) const DEREF: u8 = 0x06;
    pub(super) const CONST1U: u8 = 0x08;
    pub(super) const CONST1S: u8 = 0x09;
    pub(super) const CONST2U: u8 = 0x0a;
    pub(super) const CONST2S: u8 = 0x0b;
    pub(super) const CONST4U: u8 = 0x0c;
    pub(super) const CONST4S: u8 = 0x0d;
    pub(super) const CONST8U: u8 = 0x0e;
    pub(super) const CONST8S: u8 = 0x0f;
    pub(super) const CONSTU: u8 = 0x10;
    pub(super) const CONSTS: u8 = 0x11;
    pub(super) const DUP: u8 = 0x12;
    pub(super) const DROP: u8 = 0x13;
    pub(super) const OVER: u8 = 0x14;
    pub(super) const PICK: u8 = 0x15;
    pub(super) const SWAP: u8 = 0x16;
    pub(super) const ROT: u8 = 0x17;
    pub(super) const ABS: u8 = 0x19;
    pub(super) const AND: u8 = 0x1a;
    pub(super) const DIV: u8 = 0x1b;
    pub(super) const MINUS: u8 = 0x1c;
    pub(super) const MOD: u8 = 0x1d;
    pub(super) const MUL: u8 = 0x1e;
    pub(super) const NEG: u8 = 0x1f;
    pub(super) const NOT: u8 = 0x20;
    pub(super) const OR: u8 = 0x21;
    pub(super) const PLUS: u8 = 0x22;
    pub(super) const PLUS_UCONST: u8 = 0x23;
    pub(super) const SHL: u8 = 0x24;
    pub(super) const SHR: u8 = 0x25;
    pub(super) const SHRA: u8 = 0x26;
    pub(super) const XOR: u8 = 0x27;
    pub(super) const BRA: u8 = 0x28;
    pub(super) const EQ: u8 = 0x29;
    pub(super) const GE: u8 = 0x2a;
    pub(super) const GT: u8 = 0x2b;
    pub(super) const LE: u8 = 0x2c;
    pub(super) const LT: u8 = 0x2d;
    pub(super) const NE: u8 = 0x2e;
    pub(super) const SKIP: u8 = 0x2f;
    pub(super) const LIT0: u8 = 0x30;
    pub(super) const LIT31: u8 = 0x4f;
    pub(super) const BREG0: u8 = 0x70;
    pub(super) const BREG31: u8 = 0x8f;
    pub(super) const BREGX: u8 = 0x92;
    pub(super) const DEREF_SIZE: u8 = 0x94;
    pub(super) const NOP: u8 = 0x96;
}
