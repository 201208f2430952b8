//! Counts latencies in programs, as [`kymo_core::latency`] lays them out.
use super::insn::{Assembler, Compare, R0, R1, R2, R3, R4, R8, R9};
use kymo_core::latency::{PER_DOUBLING, USED};

/// Where a value of a map has its latencies, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct LatencyAt {
    pub(super) total: i16,
    pub(super) longest: i16,
    /// The first of so many buckets: the last one has all that are longer.
    pub(super) first_bucket: i16,
    pub(super) buckets: u32,
}

impl Assembler {
    /// Takes R8 ns into the value at R9; R0 to R4 are lost
    pub(super) fn add_latency(&mut self, at: LatencyAt) {
        self.atomic_add64(R9, at.total, R8);
        self.raise(at.longest);
        // R1 = the bucket, from the first that can be used on: as kymo_core::latency::bucket().
        self.mov(R1, R8);
        self.add_imm(R1, PER_DOUBLING as i32);
        // R2 = the highest bit's number, R3 = what is left to look at
        self.mov_imm(R2, 0);
        self.mov(R3, R1);
        for bits in [32, 16, 8, 4, 2, 1] {
            let below = self.label();
            self.mov(R4, R3);
            self.shift_right_imm(R4, bits);
            self.jump_if(R4, 0, below);
            self.mov(R3, R4);
            self.add_imm(R2, bits);
            self.place(below);
        }
        self.add_imm(R2, -(PER_DOUBLING.ilog2() as i32));
        self.and_imm(R2, 63); // as it is; the verifier wants to know
        self.shift_right(R1, R2);
        self.shift_left_imm(R2, PER_DOUBLING.ilog2() as i32);
        self.add(R1, R2);
        self.add_imm(R1, -(USED.start as i32));
        let fits = self.label();
        self.jump_if_below(R1, at.buckets as i32, fits);
        self.mov_imm(R1, at.buckets as i32 - 1);
        self.place(fits);
        self.shift_left_imm(R1, 3);
        self.mov(R2, R9);
        self.add(R2, R1);
        self.mov_imm(R1, 1);
        self.atomic_add64(R2, at.first_bucket, R1);
    }

    /// The word of the value at R9 becomes R8 if that is more; R0 and R1 are lost
    pub(super) fn raise(&mut self, word: i16) {
        let less = self.label();
        // As often as others might come between.
        for _ in 0..4 {
            let more = self.label();
            self.load64(R0, R9, word);
            self.jump_on(Compare::Less, R0, R8, more);
            self.jump(less);
            self.place(more);
            self.mov(R1, R0);
            self.compare_exchange64(R9, word, R8);
            self.jump_if_same(R0, R1, less);
        }
        self.place(less);
    }
}
