//! What limits the records that programs write: a budget of each CPU, in its scratch.
//!
//! Time that has no record yet is added up, and told by the next record of its thread or lock, for
//! whose stack it then counts. So a record must be written as a sample is taken: of a wait with a
//! chance in proportion to its length. If whoever comes first took what is left of the budget, waits
//! would count by their number, and short ones would get the time of long ones. So when the budget
//! shrinks, a record is written only where the time without one comes to a threshold, and sets the
//! next: it doubles with each 2^[`STEP_SHIFT`] ns that are missing. So thresholds find the value at
//! which as much is spent as comes; a wait that is longer has its record.
use super::insn::{Assembler, Compare, Label, R1, R2, R3, R4, R5, R8, R9, Reg};

/// So much of the budget is there at most: that of a second.
const MOST_BUDGET: i32 = 1_000_000_000;
/// As long as so much is left there is no threshold.
const AMPLE: i32 = 500_000_000;
/// 2^25 ns less double the threshold, 14 times at most.
const STEP_SHIFT: i32 = 25;

/// Where a scratch has its budget, and what a record costs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// The time that records may still take, ns.
    pub(super) left: i16,
    /// When it was counted last.
    pub(super) counted: i16,
    /// One record in so many ns at most, on average.
    pub(super) interval_ns: i32,
    /// The threshold at the beginning, ns.
    pub(super) together_ns: u64,
}

/// Where the threshold of a thread or lock is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Threshold {
    /// The entry, and where in it.
    pub(super) of: Reg,
    pub(super) at: i16,
    /// Whether this record sets it, as one that tells the time without a record.
    pub(super) sets: bool,
}

impl Assembler {
    /// Takes a record's part of the budget of the scratch at R9, or goes on to `none`: one that
    /// tells R5 ns of waiting, at R8. R1 to R4 are lost
    pub(super) fn spend_budget(&mut self, budget: Budget, threshold: Threshold, none: Label) {
        let (within, ample, near) = (self.label(), self.label(), self.label());
        self.load64(R1, R9, budget.counted);
        self.store64(R9, budget.counted, R8);
        self.load64(R2, R9, budget.left);
        self.add(R2, R8);
        self.sub(R2, R1);
        self.mov_imm(R3, MOST_BUDGET);
        self.jump_on(Compare::SignedLess, R2, R3, within);
        self.mov(R2, R3);
        self.place(within);
        self.store64(R9, budget.left, R2);
        self.load64(R4, threshold.of, threshold.at);
        self.mov_imm(R3, AMPLE);
        self.jump_on(Compare::SignedGreaterEqual, R2, R3, ample);
        self.jump_on(Compare::Less, R5, R4, none);
        self.sub(R3, R2);
        self.shift_right_imm(R3, STEP_SHIFT);
        self.mov_imm64(R1, budget.together_ns);
        self.shift_left(R1, R3);
        // Twice the last one at most: many threads come at once.
        self.add(R4, R4);
        self.jump_on(Compare::Less, R1, R4, near);
        self.mov(R1, R4);
        self.mov_imm64(R3, budget.together_ns);
        self.jump_on(Compare::GreaterEqual, R1, R3, near);
        self.mov(R1, R3);
        self.jump(near);
        self.place(ample);
        self.mov_imm(R1, 0);
        self.place(near);
        if threshold.sets {
            self.store64(threshold.of, threshold.at, R1);
        }
        self.mov_imm(R3, budget.interval_ns);
        self.jump_on(Compare::SignedLess, R2, R3, none);
        self.add_imm(R2, -budget.interval_ns);
        self.store64(R9, budget.left, R2);
    }
}
