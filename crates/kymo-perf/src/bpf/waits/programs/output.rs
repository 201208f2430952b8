//! The records that the programs write, and what keeps them few.
use super::super::record::{RECORD_BYTES, WaitKind, at};
use super::{BUDGET, COUNTED, PLACE_WORDS, PLACES, TID, Thresholds, WaitMaps, entry};
use crate::bpf::budget::{Budget, Threshold};
use crate::bpf::insn::{Assembler, BpfHelper, FP, Label, R1, R2, R3, R4, R5, R6, R7, R9};
use crate::bpf::program::THIS_CPU;

/// Where the words of places are in a record and in an entry.
fn place_offsets() -> impl Iterator<Item = (i16, i16)> {
    (0..(PLACE_WORDS * PLACES) as i16).map(|word| (at::SHORT_PLACES + 8 * word, entry::PLACES + 8 * word))
}

impl Assembler {
    /// The record at R9: kind, thread, and what the entry at R7 has not told yet, which is told
    /// now.
    pub(super) fn begin_record(&mut self, kind: WaitKind) {
        self.store32_imm(R9, at::KIND, kind as i32);
        for (to, from) in
            [(at::TASK_STATE, entry::TASK_STATE), (at::PID, entry::PID), (at::WAKER, entry::WAKER)]
        {
            self.load64(R1, R7, from);
            self.store32(R9, to, R1);
        }
        self.load64(R1, FP, TID);
        self.store32(R9, at::TID, R1);
        let told = [
            (at::RUN, entry::RUN),
            (at::SHORT_BLOCKED, entry::BLOCKED),
            (at::SHORT_RUNNABLE, entry::RUNNABLE),
            (at::SHORT_WAITS, entry::WAITS),
            (at::SHORT_PREEMPTIONS, entry::PREEMPTIONS),
            (at::SHORT_LONGEST, entry::LONGEST),
        ];
        for (to, from) in told.into_iter().chain(place_offsets()) {
            self.load64(R1, R7, from);
            self.store64(R9, to, R1);
            self.store64_imm(R7, from, 0);
        }
        self.store64_imm(R9, at::BLOCKED, 0);
        self.store64_imm(R9, at::RUNNABLE, 0);
        self.store64_imm(R9, at::SYSCALL, -1);
        self.store64_imm(R9, at::PLACE, 0);
    }

    /// R0 = 0 if the record at R9 was written as a sample of the running thread; R6 is the context
    pub(super) fn write_record(&mut self, maps: WaitMaps) {
        self.mov(R1, R6);
        self.load_map(R2, maps.events);
        self.mov_imm64(R3, THIS_CPU);
        self.mov(R4, R9);
        self.mov_imm(R5, RECORD_BYTES as i32);
        self.call(BpfHelper::EventOutput);
    }

    /// Takes a record's part of the budget of the scratch at R9, or goes on to `none`: one that
    /// tells R5 ns of waiting, at R8, of the thread of the entry at R7. `sets`: whether it tells all
    /// that is untold.
    pub(super) fn spend(&mut self, thresholds: Thresholds, sets: bool, none: Label) {
        let budget = Budget {
            left: BUDGET,
            counted: COUNTED,
            interval_ns: thresholds.interval_ns,
            together_ns: thresholds.together_ns,
        };
        let threshold = Threshold { of: R7, at: entry::THRESHOLD, sets };
        self.spend_budget(budget, threshold, none);
    }

    /// The entry at R7 tells again what the record at R9 has not: sums stay right without it, and
    /// the record's wait counts at its place.
    pub(super) fn take_back(&mut self) {
        let (preempted, end) = (self.label(), self.label());
        self.take_back_times();
        self.load32(R2, R9, at::TASK_STATE);
        self.shift_left_imm(R2, 33); // throttled or not
        self.jump_if(R2, 0, preempted);
        self.count_word(R7, entry::WAITS);
        self.load64(R2, R9, at::SYSCALL);
        self.add_imm(R2, 1);
        self.load64(R4, R9, at::PLACE);
        self.load64(R3, R9, at::BLOCKED);
        self.load64(R5, R9, at::RUNNABLE);
        self.add_to_place();
        self.jump(end);
        self.place(preempted);
        self.count_word(R7, entry::PREEMPTIONS);
        self.place(end);
    }

    /// The same of times and counts alone, without the record's own wait.
    pub(super) fn take_back_times(&mut self) {
        let untold = [
            (entry::RUN, at::RUN),
            (entry::BLOCKED, at::BLOCKED),
            (entry::BLOCKED, at::SHORT_BLOCKED),
            (entry::RUNNABLE, at::RUNNABLE),
            (entry::RUNNABLE, at::SHORT_RUNNABLE),
            (entry::WAITS, at::SHORT_WAITS),
            (entry::PREEMPTIONS, at::SHORT_PREEMPTIONS),
        ];
        for (to, from) in untold {
            self.load64(R2, R9, from);
            self.add_word(R7, to, R2);
        }
        for from in [at::BLOCKED, at::SHORT_LONGEST] {
            self.load64(R2, R9, from);
            self.wait_as_long(R2);
        }
        // It has none since the record was begun.
        for (from, to) in place_offsets() {
            self.load64(R1, R9, from);
            self.store64(R7, to, R1);
        }
    }
}
