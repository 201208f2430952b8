//! What limits the records that programs write: a budget of each CPU, in its scratch.
use super::insn::{Assembler, Compare, Label, R1, R2, R3, R5, R8, R9};

/// So much of the budget is there at most: that of a second.
const MOST_BUDGET: i32 = 1_000_000_000;

/// Where a scratch has its budget, and what a record costs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// The time that records may still take, ns.
    pub(super) left: i16,
    /// When it was counted last.
    pub(super) counted: i16,
    /// One record in so many ns at most, on average.
    pub(super) interval_ns: i32,
    /// Waits from so many ns on may use as much again.
    pub(super) very_long_ns: u64,
}

impl Assembler {
    /// Takes a record's part of the budget of the scratch at R9, or goes on to `none`: one of a
    /// wait of R5 ns, at R8. R1 to R3 are lost
    pub(super) fn spend_budget(&mut self, budget: Budget, none: Label) {
        let (within, take) = (self.label(), self.label());
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
        self.mov_imm(R3, budget.interval_ns);
        self.jump_on(Compare::SignedGreaterEqual, R2, R3, take);
        self.mov_imm64(R3, budget.very_long_ns);
        self.jump_on(Compare::Less, R5, R3, none);
        self.mov_imm(R3, -MOST_BUDGET);
        self.jump_on(Compare::SignedLess, R2, R3, none);
        self.place(take);
        self.add_imm(R2, -budget.interval_ns);
        self.store64(R9, budget.left, R2);
    }
}
