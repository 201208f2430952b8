//! What unwinders are told about stubs that stand in return addresses, so that exceptions and panics pass.
//!
//! An unwinder that comes from a probed function finds the stub as its caller. The stub's description says: my caller is
//! the real one, with the stack and the registers as they are, and its address is in the shadow stacks:
//!
//! ```text
//!   CFA     = rsp + 1                   one more than the caller's: unwinders tell frames apart by this number
//!   rsp     = CFA - 1
//!   return  = in the last entry, of all shadow stacks, whose key is ~(rsp)  a loop in the DWARF expression
//!   others  = unchanged
//! ```
//!
//! The loop reads the entries of all shadow stacks, from the last to the first, until it finds the one: some microseconds for each thread
//! that calls such functions, paid only when an exception passes, and read without the help of a thread-local variable, which DWARF has
//! none of. The last one counts because entries of frames that an exception has left may lie below, with the same key. Behind a tail
//! call from one such function to another several entries in a row have the key: then the first of these knows the real caller.
use super::shadow::{DEPTH, ENTRY_BYTES, STACK_BYTES};

const STACK_POINTER: u8 = 7;
const RETURN_ADDRESS: u8 = 16;

/// DWARF's numbers of what is used below.
mod op {
    pub(super) const ADDR: u8 = 0x03;
    pub(super) const DEREF: u8 = 0x06;
    pub(super) const CONST1U: u8 = 0x08;
    pub(super) const CONST2U: u8 = 0x0a;
    pub(super) const DUP: u8 = 0x12;
    pub(super) const DROP: u8 = 0x13;
    pub(super) const PICK: u8 = 0x15;
    pub(super) const MINUS: u8 = 0x1c;
    pub(super) const NOT: u8 = 0x20;
    pub(super) const PLUS: u8 = 0x22;
    pub(super) const SHL: u8 = 0x24;
    pub(super) const BRA: u8 = 0x28;
    pub(super) const EQ: u8 = 0x29;
    pub(super) const GT: u8 = 0x2b;
    pub(super) const LT: u8 = 0x2d;
    pub(super) const NE: u8 = 0x2e;
    pub(super) const SKIP: u8 = 0x2f;
    pub(super) const LIT0: u8 = 0x30;
    pub(super) const DEREF_SIZE: u8 = 0x94;
}

/// The expression that leaves the address of the entry's origin: it begins with the CFA on the stack.
fn origin(region: u64, count_at: u64) -> Vec<u8> {
    let mut code = Vec::new();
    let word = |code: &mut Vec<u8>, value: u64| {
        code.push(op::ADDR);
        code.extend(value.to_le_bytes());
    };
    // A branch whose distance is filled in later; the place of that distance.
    let branch = |code: &mut Vec<u8>, kind: u8| {
        code.extend([kind, 0, 0]);
        code.len() - 2
    };
    let land = |code: &mut Vec<u8>, from: usize, to: usize| {
        let distance = (to as i64 - (from as i64 + 2)) as i16;
        code[from..from + 2].copy_from_slice(&distance.to_le_bytes());
    };
    // key = ~(CFA - 1); one more below it, for libgcc's `pick` does not reach the last.
    code.extend([op::DUP, op::LIT0 + 1, op::MINUS, op::NOT]);
    // at = region + (count << 12), behind the last
    word(&mut code, count_at);
    code.extend([op::DEREF_SIZE, 4, op::LIT0 + 12, op::SHL]);
    word(&mut code, region);
    code.push(op::PLUS);
    // key stack -> the stack before
    let next_stack = code.len();
    code.push(op::CONST2U);
    code.extend((STACK_BYTES as u16).to_le_bytes());
    code.extend([op::MINUS, op::DUP]);
    word(&mut code, region);
    code.push(op::LT);
    let none = branch(&mut code, op::BRA);
    // All entries of each, however many are free: what signals' handlers leave by exceptions can lie above free ones.
    code.extend([op::DUP, op::CONST2U]);
    code.extend(((DEPTH as u16 + 1) * ENTRY_BYTES as u16).to_le_bytes());
    code.push(op::PLUS);
    // key stack at -> the one before
    let again = code.len();
    code.extend([op::CONST1U, ENTRY_BYTES as u8, op::MINUS]);
    // key stack at [at] key
    code.extend([op::DUP, op::DEREF, op::PICK, 3, op::EQ]);
    let found = branch(&mut code, op::BRA);
    code.extend([op::DUP, op::PICK, 2, op::GT]);
    let more = branch(&mut code, op::BRA);
    land(&mut code, more, again);
    code.push(op::DROP);
    let loops = branch(&mut code, op::SKIP);
    land(&mut code, loops, next_stack);
    let here = code.len();
    land(&mut code, found, here);
    // The one before, as long as it has the key: a shadow stack's bottom never has.
    let chain = code.len();
    code.extend([op::DUP, op::CONST1U, ENTRY_BYTES as u8, op::MINUS, op::DEREF, op::PICK, 3, op::NE]);
    let first = branch(&mut code, op::BRA);
    code.extend([op::CONST1U, ENTRY_BYTES as u8, op::MINUS]);
    let loops = branch(&mut code, op::SKIP);
    land(&mut code, loops, chain);
    let found = first;
    // Found: key at -> at + 8. Not found: the entry behind the region's begin has origin 0, which ends the stack.
    let here = code.len();
    land(&mut code, found, here);
    code.extend([op::LIT0 + 8, op::PLUS]);
    let done = branch(&mut code, op::SKIP);
    let here = code.len();
    land(&mut code, none, here);
    code.push(op::DROP);
    word(&mut code, region + 8);
    let here = code.len();
    land(&mut code, done, here);
    code
}

fn unsigned(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// A section `.eh_frame` with one description, for all code in `begin..end`.
pub(super) fn section(begin: u64, end: u64, region: u64, count_at: u64) -> Vec<u8> {
    const NOP: u8 = 0;
    let padded = |mut body: Vec<u8>| {
        while body.len() % 8 != 4 {
            body.push(NOP);
        }
        let mut record = (body.len() as u32).to_le_bytes().to_vec();
        record.extend(body);
        record
    };
    // CIE: id 0, version 1, no augmentation but an (absolute) pointer encoding, alignments 1 and -1.
    let mut cie = vec![0, 0, 0, 0, 1];
    cie.extend(b"zR\0");
    cie.extend([1, 0x7f, RETURN_ADDRESS, 1, 0]);
    // DW_CFA_def_cfa, DW_CFA_val_offset (1 * -1), DW_CFA_expression
    cie.extend([0x0c, STACK_POINTER, 1, 0x14, STACK_POINTER, 1, 0x10, RETURN_ADDRESS]);
    let expression = origin(region, count_at);
    unsigned(&mut cie, expression.len() as u64);
    cie.extend(expression);
    let mut all = padded(cie);
    // FDE: the distance back to the CIE from here, the range, no augmentation data.
    let mut fde = (all.len() as u32 + 4).to_le_bytes().to_vec();
    fde.extend(begin.to_le_bytes());
    fde.extend((end - begin).to_le_bytes());
    fde.push(0);
    all.extend(padded(fde));
    all.extend([0; 4]);
    all
}

#[cfg(test)]
mod tests {
    // The interpreter reads memory at addresses that are numbers.
    #![allow(unsafe_code)]
    use super::*;
    use crate::patch::shadow::FREE;

    /// Checks the loop on a region with a known key, by an interpreter of these few operations.
    #[test]
    fn the_expression_finds_the_entry() {
        let mut region = vec![FREE; 2 * 512];
        let count = 2_u32;
        let slot_behind = 0x7ffc_0000_1238_u64;
        // Entry 3 of the second stack, and one of another call below it.
        region[512 + 4] = !slot_behind - 64;
        region[512 + 3 * 4] = !slot_behind;
        let (base, count_at) = (region.as_ptr() as u64, &raw const count as u64);
        let code = origin(base, count_at);
        assert_eq!(run(&code, slot_behind + 1), base + 4096 + 3 * 32 + 8);
        assert_eq!(run(&code, slot_behind + 9), base + 8);
        // With handlers of signals below it that have interrupted stubs.
        region[512..512 + 3 * 4].fill(FREE);
        assert_eq!(run(&code, slot_behind + 1), base + 4096 + 3 * 32 + 8);
        // One that an exception left behind, and a chain of tail calls above it.
        region[512 + 5 * 4] = !slot_behind;
        region[512 + 6 * 4] = !slot_behind;
        assert_eq!(run(&code, slot_behind + 1), base + 4096 + 5 * 32 + 8);
    }

    fn run(code: &[u8], cfa: u64) -> u64 {
        let (mut stack, mut at) = (vec![cfa], 0);
        while at < code.len() {
            let byte = code[at];
            at += 1;
            let mut pop = || stack.pop().expect("not empty");
            match byte {
                op::ADDR => {
                    let value = u64::from_le_bytes(code[at..at + 8].try_into().expect("eight"));
                    stack.push(value);
                    at += 8;
                }
                op::DEREF | op::DEREF_SIZE => {
                    let address = pop();
                    // SAFETY: words of the test's own variables.
                    let four = unsafe { (address as *const u32).read() };
                    let value = if byte == op::DEREF {
                        // SAFETY: likewise.
                        unsafe { (address as *const u64).read() }
                    } else {
                        at += 1;
                        u64::from(four)
                    };
                    stack.push(value);
                }
                op::CONST1U => {
                    stack.push(u64::from(code[at]));
                    at += 1;
                }
                op::CONST2U => {
                    stack.push(u64::from(u16::from_le_bytes([code[at], code[at + 1]])));
                    at += 2;
                }
                op::DUP => stack.push(*stack.last().expect("one")),
                op::DROP => drop(pop()),
                op::PICK => {
                    stack.push(stack[stack.len() - 1 - usize::from(code[at])]);
                    at += 1;
                }
                op::NOT => {
                    let value = !pop();
                    stack.push(value);
                }
                op::MINUS | op::PLUS | op::SHL | op::EQ | op::NE | op::LT | op::GT => {
                    let (b, a) = (pop(), pop());
                    stack.push(match byte {
                        op::MINUS => a.wrapping_sub(b),
                        op::PLUS => a.wrapping_add(b),
                        op::SHL => a << b,
                        op::EQ => u64::from(a == b),
                        op::NE => u64::from(a != b),
                        op::GT => u64::from(a as i64 > b as i64),
                        _ => u64::from((a as i64) < b as i64),
                    });
                }
                op::BRA | op::SKIP => {
                    let distance = i16::from_le_bytes([code[at], code[at + 1]]);
                    at += 2;
                    if byte == op::SKIP || pop() != 0 {
                        at = at.strict_add_signed(distance as isize);
                    }
                }
                literal => stack.push(u64::from(literal - op::LIT0)),
            }
        }
        stack.pop().expect("a result")
    }
}
