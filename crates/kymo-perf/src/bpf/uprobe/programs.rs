//! The BPF programs at function entries and exits.
use super::super::insn::{Assembler, BpfHelper, FP, Label, R0, R1, R2, R3, R6, R7, R8, R9};
use super::super::latency::LatencyAt;
use super::super::program::{NOW, Program};
use super::condition::{jump, saved, saved_at};
use super::layout::BUCKETS;
use super::layout::{
    ADDRESS, CHARACTERS, CHARACTERS_BYTES, COOKIE, FIRST_BUCKET, HITS, INDEX, KEY, LATENCY, LONGEST, MISSED,
    RETURNS, TOTAL, VALUE, WHO,
};
use super::values::Value;
use super::{CallKey, ExitWhen};
use kymo_core::probe::value::{Characters, Compare, Condition, Operand, Test};

/// `BPF_NOEXIST`.
const NO_EXISTING: i32 = 1;

/// What the programs have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Maps {
    /// The counts.
    pub(super) table: i32,
    /// Lines of a site, as a power of two.
    pub(super) bank_bits: i32,
    /// When calls began; without it returns are not looked at.
    pub(super) started: Option<i32>,
    /// How often which caller.
    pub(super) callers: Option<i32>,
    /// Who is looked at; without it whoever hits.
    pub(super) followed: Option<i32>,
    /// Where records go.
    pub(super) ring: Option<i32>,
    /// The programs may wait for memory to be brought in.
    pub(super) waits: bool,
    /// How a call is known from its entry to its exit.
    pub(super) frame: CallKey,
}

/// What the link tells at a hit: the site's number, and for an exit that may be a jump inside of
/// its function, how many bytes of the function are before and behind it.
pub(super) fn cookie(site: usize, bounds: (u32, u32)) -> u64 {
    site as u64 | u64::from(bounds.0) << SITE_BITS | u64::from(bounds.1) << (SITE_BITS + BOUND_BITS)
}

/// So many bits of a cookie are the site's number, and each of the bounds.
const SITE_BITS: i32 = 24;
const BOUND_BITS: i32 = 20;
/// The largest of each.
pub(super) const MOST_SITES: usize = 1 << SITE_BITS;
pub(super) const MOST_BOUND: u32 = (1 << BOUND_BITS) - 1;

impl Assembler {
    /// on to `out` unless the running process is followed; its id is in *WHO. R6 stays
    fn only_followed(&mut self, followed: Option<i32>, out: Label) {
        self.call(BpfHelper::CurrentPidTgid);
        self.shift_right_imm(R0, 32);
        self.store32(FP, WHO, R0);
        if let Some(followed) = followed {
            self.look_up(followed, WHO, out);
            self.load64(R0, R0, 0);
            self.jump_unless(R0, NOW as i32, out);
        }
    }

    /// R7 = the site
    pub(super) fn site(&mut self) {
        self.mov(R1, R6);
        self.call(BpfHelper::AttachCookie);
        self.store64(FP, COOKIE, R0);
        self.and_imm(R0, MOST_SITES as i32 - 1);
        self.mov(R7, R0);
    }

    /// R9 = the line of the site at R7 on this CPU, or on to `out`
    fn line(&mut self, maps: Maps, out: Label) {
        self.call(BpfHelper::CpuNumber);
        self.and_imm(R0, (1 << maps.bank_bits) - 1);
        self.mov(R1, R7);
        self.shift_left_imm(R1, maps.bank_bits);
        self.add(R1, R0);
        self.store32(FP, INDEX, R1);
        self.look_up(maps.table, INDEX, out); // never: sites are numbered by us
        self.mov(R9, R0);
    }

    /// *KEY = this address (in R1), the site and the process
    fn key(&mut self) {
        self.store64(FP, KEY, R1);
        self.store32(FP, KEY + 8, R7);
        self.load32(R1, FP, WHO);
        self.store32(FP, KEY + 12, R1);
        self.store64_imm(FP, KEY + 16, 0);
    }

    /// *KEY = the call at hand, whose frame begins `popped` bytes below the stack pointer; on to
    /// `unread` if that cannot be told. R6, R7 and *WHO stay
    fn call_key(&mut self, frame: CallKey, popped: i32, unread: Label) {
        match frame {
            CallKey::StackPointer => {
                self.load64(R1, R6, saved::STACK);
                self.add_imm(R1, -popped);
                self.key();
            }
            CallKey::Goroutine => {
                // The second word of what the register points to is the stack's upper end.
                self.load64(R3, R6, saved::GOROUTINE);
                self.add_imm(R3, 8);
                self.store64_imm(FP, VALUE, 0);
                self.stack_address(R1, VALUE);
                self.mov_imm(R2, 8);
                self.read_user();
                self.jump_unless(R0, 0, unread);
                self.load64(R1, FP, VALUE);
                self.load64(R2, R6, saved::STACK);
                self.sub(R1, R2);
                self.key();
                self.load64(R1, R6, saved::GOROUTINE);
                self.store64(FP, KEY + 16, R1);
            }
        }
    }

    /// R0 = when the call began that ends now; on to `out` if it began before we did, or was not
    /// looked at.
    fn find_call(&mut self, started: i32, has_returned: bool, frame: CallKey, out: Label) {
        /// Of 32-bit programs, whose return addresses have four bytes. Where that takes the place
        /// of a hidden argument along (`ret 4`), it is as of 64 bits.
        const NARROW_SEGMENT: i32 = 0x23;
        const NARROW_POPS: i32 = 4;
        let found = self.label();
        if has_returned && saved::RETURN_POPS > NARROW_POPS {
            let wide = self.label();
            self.load64(R1, R6, saved::SEGMENT);
            self.jump_unless(R1, NARROW_SEGMENT, wide);
            self.call_key(frame, NARROW_POPS, wide);
            self.look_up(started, KEY, wide);
            self.jump(found);
            self.place(wide);
        }
        self.call_key(frame, if has_returned { saved::RETURN_POPS } else { 0 }, out);
        self.look_up(started, KEY, out);
        self.place(found);
    }

    /// Forgets the call at hand, of which nothing is to be noted: else its exit would be taken for
    /// that of an earlier one which was left otherwise.
    fn forget_call(&mut self, started: i32, frame: CallKey) {
        let unread = self.label();
        self.call_key(frame, 0, unread);
        self.remove(started, KEY);
        self.place(unread);
    }

    /// on to `out` unless this is an exit now; R6 is the context, *COOKIE is told
    fn only_exit(&mut self, when: &ExitWhen, out: Label) {
        match when {
            ExitWhen::Returned | ExitWhen::Always => {}
            ExitWhen::Flags(number) => {
                self.load64(R1, R6, saved::FLAGS);
                let (taken, other) = (self.label(), self.label());
                let (holds, fails) = if number & 1 == 0 { (taken, other) } else { (other, taken) };
                let has = |a: &mut Assembler, bit: i32, to: Label| {
                    a.mov(R2, R1);
                    a.and_imm(R2, 1 << bit);
                    a.jump_unless(R2, 0, to);
                };
                const CARRY: i32 = 0;
                const PARITY: i32 = 2;
                const ZERO: i32 = 6;
                const SIGN: i32 = 7;
                const OVERFLOW: i32 = 11;
                match number >> 1 {
                    0 => has(self, OVERFLOW, holds),
                    1 => has(self, CARRY, holds),
                    2 => has(self, ZERO, holds),
                    3 => {
                        has(self, CARRY, holds);
                        has(self, ZERO, holds);
                    }
                    4 => has(self, SIGN, holds),
                    5 => has(self, PARITY, holds),
                    less => {
                        if less == 7 {
                            has(self, ZERO, holds);
                        }
                        // The sign differs from the overflow.
                        self.mov(R2, R1);
                        self.shift_right_imm(R2, SIGN);
                        self.shift_right_imm(R1, OVERFLOW);
                        self.and_imm(R2, 1);
                        self.and_imm(R1, 1);
                        self.sub(R2, R1);
                        self.jump_unless(R2, 0, holds);
                    }
                }
                self.jump(fails);
                self.place(other);
                self.jump(out);
                self.place(taken);
            }
            ExitWhen::Leaves(target) => {
                self.operand(target, out);
                // R1 = the target's distance from the function's first byte, R3 = the function's
                // length
                self.load64(R2, R6, saved::INSTRUCTION);
                self.sub(R1, R2);
                self.load64(R2, FP, COOKIE);
                self.mov(R3, R2);
                self.shift_right_imm(R2, SITE_BITS);
                self.and_imm(R2, MOST_BOUND as i32);
                self.shift_right_imm(R3, SITE_BITS + BOUND_BITS);
                self.add(R1, R2);
                self.add(R3, R2);
                self.jump_on(super::super::insn::Compare::Less, R1, R3, out);
            }
        }
    }

    /// `line[word] += R1`
    fn add_to_line(&mut self, word: i16) {
        self.atomic_add64(R9, 8 * word, R1);
    }

    /// `line[word] += 1`; R1 is lost
    pub(super) fn count(&mut self, word: i16) {
        self.mov_imm(R1, 1);
        self.add_to_line(word);
    }

    /// R0 = 0 if memory of the process at R3 was read to R1, R2 bytes
    pub(super) fn read_user(&mut self) {
        self.call(if self.waits { BpfHelper::CopyUser } else { BpfHelper::ReadUser });
    }

    /// R0 = bytes, with its zero, of the text at R3, which is cut to so many bytes, or negative;
    /// `to` makes the place R1
    pub(super) fn read_text(&mut self, to: impl Fn(&mut Assembler), bytes: i32) {
        self.store64(FP, ADDRESS, R3);
        to(self);
        self.mov_imm(R2, bytes);
        self.call(BpfHelper::ReadUserText);
        if !self.waits {
            return;
        }
        let (absent, read) = (self.label(), self.label());
        self.jump_if_negative(R0, absent);
        self.jump(read);
        self.place(absent);
        // A byte of each page that it can lie in brings that page in.
        for distance in [0, bytes - 1] {
            self.stack_address(R1, VALUE);
            self.mov_imm(R2, 1);
            self.load64(R3, FP, ADDRESS);
            self.add_imm(R3, distance);
            self.call(BpfHelper::CopyUser);
        }
        to(self);
        self.mov_imm(R2, bytes);
        self.load64(R3, FP, ADDRESS);
        self.call(BpfHelper::ReadUserText);
        self.place(read);
    }

    /// R1 = a number at this hit, or on to `unread`; R6 is the context
    pub(super) fn operand(&mut self, operand: &Operand, unread: Label) {
        self.load64(R1, R6, saved_at(operand.register));
        for (number, step) in operand.steps.iter().enumerate() {
            let last = number + 1 == operand.steps.len();
            let bytes = if last { i32::from(operand.bytes) } else { 8 };
            self.mov(R3, R1);
            self.add_imm(R3, *step);
            self.store64_imm(FP, VALUE, 0);
            self.stack_address(R1, VALUE);
            self.mov_imm(R2, bytes);
            self.read_user();
            self.jump_unless(R0, 0, unread);
            self.load64(R1, FP, VALUE);
        }
        let whole = (0, 8 * operand.bytes.clamp(1, 8));
        let (first, width) = operand.bits.unwrap_or(whole);
        let spare = 64 - i32::from(width.clamp(1, 64));
        let above = (spare - i32::from(first.min(63))).max(0);
        if spare > 0 {
            if above > 0 {
                self.shift_left_imm(R1, above);
            }
            if operand.signed {
                self.shift_right_signed_imm(R1, spare);
            } else {
                self.shift_right_imm(R1, spare);
            }
        }
    }

    /// on to `out` unless the condition holds; R6 is the context
    fn only_if(&mut self, condition: &Condition, out: Label) {
        if condition.is_empty() {
            return;
        }
        let holds = self.label();
        for tests in condition {
            let next = self.label();
            for test in tests {
                if let Some(characters) = &test.characters {
                    self.only_characters(test, characters, next);
                    continue;
                }
                let passed = self.label();
                self.operand(&test.operand, next);
                self.mov_imm64(R2, test.value);
                self.jump_on(jump(test), R1, R2, passed);
                self.jump(next);
                self.place(passed);
            }
            self.jump(holds);
            self.place(next);
        }
        self.jump(out);
        self.place(holds);
    }

    /// on to `out` unless the characters are (or, of `!=`, are not) those; R6 is the context
    fn only_characters(&mut self, test: &Test, characters: &Characters, out: Label) {
        let mut wanted = characters.bytes.clone();
        wanted.truncate(super::condition::MOST_CHARACTERS);
        wanted.extend(characters.ended.then_some(0));
        let bytes = wanted.len();
        self.operand(&test.operand, out);
        self.mov(R3, R1);
        self.add_imm(R3, characters.offset);
        for word in 0..CHARACTERS_BYTES / 8 {
            self.store64_imm(FP, CHARACTERS + 8 * word, 0);
        }
        if characters.ended {
            // One more than the text, so that a longer one differs.
            let length = (bytes + 1).min(CHARACTERS_BYTES as usize) as i32;
            self.read_text(|a| a.stack_address(R1, CHARACTERS), length);
            self.jump_if_negative(R0, out);
        } else {
            self.stack_address(R1, CHARACTERS);
            self.mov_imm(R2, bytes as i32);
            self.read_user();
            self.jump_unless(R0, 0, out);
        }
        let (differs, passed) = (self.label(), self.label());
        for (number, eight) in wanted.chunks(8).enumerate() {
            let mut word = [0u8; 8];
            word[..eight.len()].copy_from_slice(eight);
            self.load64(R1, FP, CHARACTERS + 8 * number as i16);
            // What lies behind the last character that counts.
            let spare = 64 - 8 * eight.len() as i32;
            if spare > 0 {
                self.shift_left_imm(R1, spare);
            }
            self.mov_imm64(R2, u64::from_le_bytes(word) << spare);
            self.jump_on(super::super::insn::Compare::NotEqual, R1, R2, differs);
        }
        if test.compare == Compare::NotEqual {
            self.jump(out);
            self.place(differs);
        } else {
            self.jump(passed);
            self.place(differs);
            self.jump(out);
        }
        self.place(passed);
    }

    fn end(&mut self, out: Label) {
        self.place(out);
        self.mov_imm(R0, 0);
        self.exit();
    }
}

/// Runs at a function's first instruction, a line, a marker. `every`: only each so-many-th hit (on
/// each CPU) is looked at further than to count it.
pub(super) fn entry(maps: Maps, condition: &Condition, every: u32, values: &[Value]) -> Program {
    let mut a = Assembler::new();
    a.waits = maps.waits;
    let (out, skipped) = (a.label(), a.label());
    a.mov(R6, R1);
    a.only_followed(maps.followed, out);
    a.site();
    a.only_if(condition, skipped);
    a.line(maps, out);
    a.count(HITS);
    if every > 1 {
        a.load64(R1, R9, 8 * HITS);
        a.remainder_imm(R1, every as i32);
        a.jump_unless(R1, 0, skipped);
    }
    if let Some(callers) = maps.callers {
        let (unread, new, done) = (a.label(), a.label(), a.label());
        if saved::RETURN_POPS > 0 {
            a.load64(R3, R6, saved::STACK);
            a.stack_address(R1, VALUE);
            a.mov_imm(R2, 8);
            a.call(BpfHelper::ReadUser);
            a.jump_unless(R0, 0, unread);
            a.load64(R1, FP, VALUE);
        } else {
            // The link register.
            a.load64(R1, R6, 240);
        }
        a.key();
        a.look_up(callers, KEY, new);
        a.add_one_at_r0();
        a.jump(done);
        a.place(new);
        a.store64_imm(FP, VALUE, 1);
        // Another CPU may have made the entry since: it is not to be written over.
        a.set(callers, KEY, VALUE, NO_EXISTING);
        a.jump_if(R0, 0, done);
        a.look_up(callers, KEY, done);
        a.add_one_at_r0();
        a.place(unread);
        a.place(done);
    }
    if let Some(ring) = maps.ring {
        a.store64_imm(FP, LATENCY, -1);
        a.record(ring, values, false);
    }
    if let Some(started) = maps.started {
        let (known, unread) = (a.label(), a.label());
        a.call_key(maps.frame, 0, unread);
        // Last, so that what the probe itself costs is not the function's.
        a.call(BpfHelper::Now);
        a.store64(FP, VALUE, R0);
        a.set(started, KEY, VALUE, 0);
        a.jump_if(R0, 0, known);
        a.place(unread);
        a.count(MISSED);
        a.place(known);
        if !condition.is_empty() || every > 1 {
            a.jump(out);
            a.place(skipped);
            a.forget_call(started, maps.frame);
        }
    } else {
        a.place(skipped);
    }
    a.end(out);
    a.finish().into()
}

/// Runs when a function returns, or at an instruction where calls of it end.
pub(super) fn exit(maps: Maps, when: &ExitWhen, condition: &Condition, values: &[Value]) -> Program {
    let mut a = Assembler::new();
    a.waits = maps.waits;
    let out = a.label();
    a.mov(R6, R1);
    let Some(started) = maps.started else {
        a.only_followed(maps.followed, out);
        a.site();
        a.only_if(condition, out);
        a.line(maps, out);
        a.count(RETURNS);
        a.end(out);
        return a.finish().into();
    };
    a.call(BpfHelper::Now);
    a.mov(R8, R0);
    a.only_followed(maps.followed, out);
    a.site();
    a.only_exit(when, out);
    a.find_call(started, matches!(when, ExitWhen::Returned), maps.frame, out);
    a.load64(R9, R0, 0);
    a.sub(R8, R9); // R8 = ns
    a.remove(started, KEY);
    a.only_if(condition, out);
    a.line(maps, out);
    a.count(RETURNS);
    if let Some(ring) = maps.ring {
        a.store64(FP, LATENCY, R8);
        a.record(ring, values, true);
        a.load64(R8, FP, LATENCY);
    }
    a.add_latency(LatencyAt {
        total: 8 * TOTAL,
        longest: 8 * LONGEST,
        first_bucket: 8 * FIRST_BUCKET,
        buckets: BUCKETS,
    });
    a.end(out);
    a.finish().into()
}
