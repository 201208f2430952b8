//! Unwind information (`.eh_frame`) for stubs that stand in return addresses, so that exceptions
//! and panics pass.
//!
//! An unwinder that comes from a probed function finds the stub as its caller. The stub's
//! description says: my caller is the real one, with the stack and the registers as they are, and
//! its address is in the shadow stacks:
//!
//! ```text
//!   CFA     = rsp + 1                   one more than the caller's: unwinders tell frames apart by this number
//!   rsp     = CFA - 1
//!   return  = in the last entry, of all shadow stacks, whose key is ~(rsp)  a loop in the DWARF expression
//!   others  = unchanged
//! ```
//!
//! The loop reads the entries of all shadow stacks, from the last to the first: of those first
//! whose threads began near the slot, some microseconds for each frame of such a function; then of
//! all, and what was set aside of them (`stale_frames.rs`), some microseconds for each thread that
//! calls such functions. That is paid only when an exception passes, and read without the help of a
//! thread-local variable, which DWARF has none of. The last one counts because entries of frames
//! that an exception has left may lie below, with the same key. Behind a tail call from one such
//! function to another several entries in a row have the key: then the first of these knows the
//! real caller.
//!
//! Of each shadow stack it reads all entries: what a signal's handler drops that has interrupted a
//! stub is free below that stub's own entry.
use crate::patch::layout::{DEPTH, ENTRY_BYTES, NEAR_AT, STACK_BYTES, STALE_ENTRIES, ShadowRegion};

const STACK_POINTER: u8 = 7;
const RETURN_ADDRESS: u8 = 16;
/// What is nearer than half of 2 to so many is looked for first: some MiB, as stacks are apart.
const NEAR_BITS: u8 = 23;

/// DWARF's numbers of what is used below.
mod op {
    pub(crate) const ADDR: u8 = 0x03;
    pub(crate) const DEREF: u8 = 0x06;
    pub(crate) const CONST1U: u8 = 0x08;
    pub(crate) const CONST2U: u8 = 0x0a;
    pub(crate) const DUP: u8 = 0x12;
    pub(crate) const DROP: u8 = 0x13;
    pub(crate) const PICK: u8 = 0x15;
    pub(crate) const MINUS: u8 = 0x1c;
    pub(crate) const NOT: u8 = 0x20;
    pub(crate) const PLUS: u8 = 0x22;
    pub(crate) const SHL: u8 = 0x24;
    pub(crate) const SHR: u8 = 0x25;
    pub(crate) const BRA: u8 = 0x28;
    pub(crate) const EQ: u8 = 0x29;
    pub(crate) const GT: u8 = 0x2b;
    pub(crate) const LT: u8 = 0x2d;
    pub(crate) const NE: u8 = 0x2e;
    pub(crate) const SKIP: u8 = 0x2f;
    pub(crate) const LIT0: u8 = 0x30;
    pub(crate) const DEREF_SIZE: u8 = 0x94;
}

#[derive(Default)]
struct Code(Vec<u8>);

impl Code {
    fn op<const N: usize>(&mut self, bytes: [u8; N]) {
        self.0.extend(bytes);
    }

    fn word(&mut self, value: u64) {
        self.0.push(op::ADDR);
        self.0.extend(value.to_le_bytes());
    }

    fn short(&mut self, value: u16) {
        self.0.push(op::CONST2U);
        self.0.extend(value.to_le_bytes());
    }

    fn here(&self) -> usize {
        self.0.len()
    }

    /// A branch whose distance is filled in later; the place of that distance.
    fn branch(&mut self, kind: u8) -> usize {
        self.0.extend([kind, 0, 0]);
        self.0.len() - 2
    }

    fn land(&mut self, from: usize, to: usize) {
        let distance = (to as i64 - (from as i64 + 2)) as i16;
        self.0[from..from + 2].copy_from_slice(&distance.to_le_bytes());
    }

    /// Looks for the key in `entries` entries of each page of a region, from the last page to the
    /// first; the place of a branch that is taken with the entry's address on the stack. Behind it
    /// the stack is what it was.
    fn scan(&mut self, (region, entries): (u64, u16), count_at: u64, near: bool) -> usize {
        // at = region + (count << 12), behind the last
        self.word(count_at);
        self.op([op::DEREF_SIZE, 4, op::LIT0 + 12, op::SHL]);
        self.word(region);
        self.op([op::PLUS]);
        // key page -> the page before
        let next_page = self.here();
        self.short(STACK_BYTES as u16);
        self.op([op::MINUS, op::DUP]);
        self.word(region);
        self.op([op::LT]);
        let none = self.branch(op::BRA);
        if near {
            // Within so many bytes of the first call that the thread made.
            self.op([op::DUP]);
            self.short(NEAR_AT);
            self.op([
                op::PLUS,
                op::DEREF,
                op::PICK,
                2,
                op::PLUS,
                op::LIT0 + 1,
                op::LIT0 + NEAR_BITS - 1,
                op::SHL,
            ]);
            self.op([op::PLUS, op::LIT0 + NEAR_BITS, op::SHR]);
            let far = self.branch(op::BRA);
            self.land(far, next_page);
        }
        // All entries of each, however many are free: what a handler drops that has interrupted a
        // stub is free below that stub's entry.
        self.op([op::DUP]);
        self.short((entries + 1) * ENTRY_BYTES as u16);
        self.op([op::PLUS]);
        // key page at -> the one before
        let again = self.here();
        self.op([op::CONST1U, ENTRY_BYTES as u8, op::MINUS]);
        // key page at [at] key
        self.op([op::DUP, op::DEREF, op::PICK, 3, op::EQ]);
        let found = self.branch(op::BRA);
        self.op([op::DUP, op::PICK, 2, op::GT]);
        let more = self.branch(op::BRA);
        self.land(more, again);
        self.op([op::DROP]);
        let loops = self.branch(op::SKIP);
        self.land(loops, next_page);
        let here = self.here();
        self.land(none, here);
        self.op([op::DROP]);
        found
    }
}

/// The expression from the CFA, on the stack, to the address of the entry's origin.
fn origin(region: ShadowRegion) -> Vec<u8> {
    let mut code = Code::default();
    // key = ~(CFA - 1); one more below it, for libgcc's `pick` does not reach the last.
    code.op([op::DUP, op::LIT0 + 1, op::MINUS, op::NOT]);
    let found = [
        code.scan((region.begin, DEPTH as u16), region.count_at, true),
        code.scan((region.begin, DEPTH as u16), region.count_at, false),
        code.scan((region.stale, STALE_ENTRIES as u16), region.count_at, false),
    ];
    // Not found: the entry behind the region's begin has origin 0, which ends the stack.
    code.word(region.begin + 8);
    let done = code.branch(op::SKIP);
    // The one before, as long as it has the key: a page's first never has.
    let chain = code.here();
    found.into_iter().for_each(|from| code.land(from, chain));
    code.op([op::DUP, op::CONST1U, ENTRY_BYTES as u8, op::MINUS, op::DEREF, op::PICK, 3, op::NE]);
    let first = code.branch(op::BRA);
    code.op([op::CONST1U, ENTRY_BYTES as u8, op::MINUS]);
    let loops = code.branch(op::SKIP);
    code.land(loops, chain);
    // Found: key page at -> at + 8.
    let here = code.here();
    code.land(first, here);
    code.op([op::LIT0 + 8, op::PLUS]);
    let here = code.here();
    code.land(done, here);
    code.0
}

fn unsigned(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// A section `.eh_frame` with one description, for all code in `begin..end`.
pub(crate) fn section(begin: u64, end: u64, region: ShadowRegion) -> Vec<u8> {
    const NOP: u8 = 0;
    let padded = |mut body: Vec<u8>| {
        while body.len() % 8 != 4 {
            body.push(NOP);
        }
        let mut record = (body.len() as u32).to_le_bytes().to_vec();
        record.extend(body);
        record
    };
    // CIE: id 0, version 1, no augmentation but an (absolute) pointer encoding, alignments 1 and
    // -1.
    let mut cie = vec![0, 0, 0, 0, 1];
    cie.extend(b"zR\0");
    cie.extend([1, 0x7f, RETURN_ADDRESS, 1, 0]);
    // DW_CFA_def_cfa, DW_CFA_val_offset (1 * -1), DW_CFA_expression
    cie.extend([0x0c, STACK_POINTER, 1, 0x14, STACK_POINTER, 1, 0x10, RETURN_ADDRESS]);
    let expression = origin(region);
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
    // The interpreter asks for memory at addresses that are numbers.
    #![allow(unsafe_code)]
    use super::*;
    use crate::patch::layout::FREE;
    use gimli::EvaluationResult;

    /// Checks the loop on a region with a known key, by an interpreter of expressions.
    #[test]
    fn the_expression_finds_the_entry() {
        let mut region = vec![FREE; 2 * 512];
        let count = 2_u32;
        let slot_behind = 0x7ffc_0000_1238_u64;
        // Entry 3 of the second stack, and one of another call below it.
        region[512 + 4] = !slot_behind - 64;
        region[512 + 3 * 4] = !slot_behind;
        let mut aside = vec![FREE; 2 * 512];
        let (base, count_at) = (region.as_ptr() as u64, &raw const count as u64);
        let code = origin(ShadowRegion { begin: base, stale: aside.as_ptr() as u64, count_at });
        assert_eq!(run(&code, slot_behind + 1), base + 4096 + 3 * 32 + 8);
        assert_eq!(run(&code, slot_behind + 9), base + 8);
        // With handlers of signals below it that have interrupted stubs.
        region[512..512 + 3 * 4].fill(FREE);
        assert_eq!(run(&code, slot_behind + 1), base + 4096 + 3 * 32 + 8);
        // One that an exception left behind, and a chain of tail calls above it.
        region[512 + 5 * 4] = !slot_behind;
        region[512 + 6 * 4] = !slot_behind;
        assert_eq!(run(&code, slot_behind + 1), base + 4096 + 5 * 32 + 8);
        // The first stack's thread began near: what it has counts, though another one comes later.
        region[usize::from(NEAR_AT) / 8] = slot_behind + 5000;
        region[7 * 4] = !slot_behind;
        assert_eq!(run(&code, slot_behind + 1), base + 7 * 32 + 8);
        region[usize::from(NEAR_AT) / 8] = slot_behind - (3 << 20);
        assert_eq!(run(&code, slot_behind + 1), base + 7 * 32 + 8);
        region[usize::from(NEAR_AT) / 8] = slot_behind - (5 << 20);
        assert_eq!(run(&code, slot_behind + 1), base + 4096 + 5 * 32 + 8);
        // What was set stale: only if it is nowhere else.
        aside[126 * 4] = !slot_behind;
        assert_eq!(run(&code, slot_behind + 1), base + 4096 + 5 * 32 + 8);
        region.fill(FREE);
        let aside_at = aside.as_ptr() as u64;
        assert_eq!(run(&code, slot_behind + 1), aside_at + 126 * 32 + 8);
        aside[125 * 4] = !slot_behind;
        assert_eq!(run(&code, slot_behind + 1), aside_at + 125 * 32 + 8);
    }

    /// What the expression leaves, by gimli.
    fn run(code: &[u8], cfa: u64) -> u64 {
        let encoding = gimli::Encoding { format: gimli::Format::Dwarf32, version: 4, address_size: 8 };
        let expression = gimli::Expression(gimli::EndianSlice::new(code, gimli::LittleEndian));
        let mut evaluation = expression.evaluation(encoding);
        evaluation.set_initial_value(cfa);
        let mut asks = evaluation.evaluate().expect("an expression");
        loop {
            asks = match asks {
                EvaluationResult::Complete => break,
                EvaluationResult::RequiresRelocatedAddress(address) => {
                    evaluation.resume_with_relocated_address(address)
                }
                EvaluationResult::RequiresMemory { address, size, .. } => {
                    let value = match size {
                        // SAFETY: words of the test's own variables.
                        4 => u64::from(unsafe { (address as *const u32).read() }),
                        // SAFETY: likewise.
                        _ => unsafe { (address as *const u64).read() },
                    };
                    evaluation.resume_with_memory(gimli::Value::Generic(value))
                }
                other => panic!("{other:?}"),
            }
            .expect("an expression");
        }
        match evaluation.as_result()[0].location {
            gimli::Location::Address { address } => address,
            ref other => panic!("{other:?}"),
        }
    }
}
