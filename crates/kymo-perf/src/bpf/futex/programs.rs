//! The BPF programs at calls of `futex`. Each is written here as it runs.
use super::record::{BUCKETS, FutexKind, RECORD_BYTES, at};
use crate::bpf::budget::{Budget, Threshold};
use crate::bpf::insn::{Assembler, BpfHelper, Compare, FP, Label, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9};
use crate::bpf::latency::LatencyAt;
use crate::bpf::program::{FollowKey, NOW, Program, THIS_CPU};

/// What the entry of a futex has, in bytes.
pub(super) mod entry {
    use super::BUCKETS;
    /// Ended waits.
    pub(in super::super) const WAITS: i16 = 0;
    pub(in super::super) const TOTAL: i16 = 8;
    pub(in super::super) const LONGEST: i16 = 16;
    pub(in super::super) const TIMEOUTS: i16 = 24;
    /// Threads that were woken.
    pub(in super::super) const WAKES: i16 = 32;
    /// Threads that wait now, and at most.
    pub(in super::super) const WAITING: i16 = 40;
    pub(in super::super) const MOST_WAITING: i16 = 48;
    /// What no record has told: waits, their time, wake-ups.
    pub(in super::super) const UNTOLD_WAITS: i16 = 56;
    pub(in super::super) const UNTOLD_NS: i16 = 64;
    pub(in super::super) const UNTOLD_WAKES: i16 = 72;
    /// The last thread that woke another.
    pub(in super::super) const WAKER: i16 = 80;
    pub(in super::super) const OPERATION: i16 = 88;
    /// So much without a record is told by one, ns; 0: there is no such threshold.
    pub(in super::super) const THRESHOLD: i16 = 96;
    pub(in super::super) const FIRST_BUCKET: i16 = 104;
    pub(in super::super) const WORDS: usize = FIRST_BUCKET as usize / 8 + BUCKETS;
}

/// Words of what is known of a thread that waits: process, address, since when, operation.
pub(super) const WAITER_WORDS: usize = 4;

/// In COUNTS: futexes that had no place, threads that had none, records that had none.
pub(super) const MISSED_FUTEXES: u32 = 0;
pub(super) const MISSED_WAITS: u32 = 1;
pub(super) const LOST: u32 = 2;

/// Behind the record in the scratch: its budget.
const BUDGET: i16 = 72;
const COUNTED: i16 = 80;
pub(super) const SCRATCH_BYTES: usize = 88;

/// Operations, without their flags.
const WAIT: i32 = 0;
const WAKE: i32 = 1;
const REQUEUE: i32 = 3;
const COMPARE_REQUEUE: i32 = 4;
const WAKE_OP: i32 = 5;
const LOCK_PI: i32 = 6;
const UNLOCK_PI: i32 = 7;
const WAIT_BITSET: i32 = 9;
const WAKE_BITSET: i32 = 10;
const WAIT_REQUEUE_PI: i32 = 11;
const COMPARE_REQUEUE_PI: i32 = 12;
const LOCK_PI2: i32 = 13;
const OPERATIONS: i32 = 0x7f;
/// A flag: only threads of one process use the futex.
pub(super) const PRIVATE: i32 = 0x80;

/// `BPF_NOEXIST`.
const NO_EXISTING: i32 = 1;
/// The call found that there was nothing to wait for.
const EAGAIN: i32 = -11;
const ETIMEDOUT: i32 = -110;
/// The ring is full.
const ENOSPC: i32 = -28;

/// Where the caller's registers have the second and the first argument.
#[cfg(target_arch = "x86_64")]
const ARGUMENT_REGISTERS: [i32; 2] = [104, 112];
#[cfg(not(target_arch = "x86_64"))]
const ARGUMENT_REGISTERS: [i32; 2] = [8, 272];
/// On the stack of the programs.
const TID: i16 = -8;
const WHO: i16 = -12;
const INDEX: i16 = -16;
/// Two words: process and address.
const KEY: i16 = -32;
const OPERATION: i16 = -40;
const NOW_NS: i16 = -48;
const WAIT_NS: i16 = -56;
const RESULT: i16 = -64;
/// The process, and the address that the call names.
const PID: i16 = -72;
const ADDRESS: i16 = -80;
const COUNT: i16 = -88;
/// [`WAITER_WORDS`].
const VALUE: i16 = -120;

/// The descriptors of the maps, and who is followed.
#[derive(Clone, Copy, Debug)]
pub(super) struct FutexMaps {
    /// (process, address) -> entry.
    pub(super) futexes: i32,
    /// An entry of zeros.
    pub(super) zeros: i32,
    /// Thread id -> what it waits for.
    pub(super) waiters: i32,
    /// The record that is prepared; each program has its own.
    pub(super) scratch: i32,
    pub(super) wake_scratch: i32,
    /// The event of each CPU that takes the records.
    pub(super) events: i32,
    pub(super) counts: i32,
    /// Who is followed; `None`: everyone.
    pub(super) followed: Option<(i32, FollowKey)>,
}

/// Where the programs run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FutexPoint {
    /// At the kernel's function of this call.
    Function(u32),
    /// At the tracepoints of this call.
    Tracepoint,
}

/// Which waits and wake-ups get records.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Each CPU writes one record in so many ns at most, on average.
    pub(super) interval_ns: i32,
    /// When records are many, a lock's waits without one must have come to so many ns, or more.
    pub(super) together_ns: u64,
}

impl Assembler {
    /// on to `end` unless this is a call of a thread that is followed. R6 = the context, R7 = the
    /// registers of the caller; *TID, *PID, *ADDRESS and *OPERATION are set
    fn futex_call(&mut self, maps: FutexMaps, point: FutexPoint, end: Label) {
        self.mov(R6, R1);
        self.call(BpfHelper::CurrentPidTgid);
        self.mov(R1, R0);
        self.truncate32(R1);
        self.store64(FP, TID, R1);
        self.shift_right_imm(R0, 32);
        self.store64(FP, PID, R0);
        if let Some((followed, key)) = maps.followed {
            self.store32(FP, WHO, if key == FollowKey::Process { R0 } else { R1 });
            self.look_up(followed, WHO, end);
            self.load64(R0, R0, 0);
            self.jump_unless(R0, NOW as i32, end);
        }
        match point {
            FutexPoint::Function(_) => self.load64(R7, R6, 0),
            FutexPoint::Tracepoint => {
                self.call(BpfHelper::CurrentTaskTyped);
                self.mov(R1, R0);
                self.call(BpfHelper::TaskRegisters);
                self.mov(R7, R0);
            }
        }
        for (register, to) in ARGUMENT_REGISTERS.into_iter().zip([OPERATION, ADDRESS]) {
            self.read_register(register, 8, to);
        }
        // The operation is an int: what is above it in the register is nothing.
        self.load64(R1, FP, OPERATION);
        self.truncate32(R1);
        self.store64(FP, OPERATION, R1);
    }

    /// *RESULT = R1 = what the call returns
    fn futex_result(&mut self, point: FutexPoint) {
        self.load64(R1, R6, if point == FutexPoint::Tracepoint { 16 } else { 8 });
        // An int.
        self.shift_left_imm(R1, 32);
        self.shift_right_signed_imm(R1, 32);
        self.store64(FP, RESULT, R1);
    }

    /// the end of the program
    fn end_at(mut self, point: FutexPoint, end: Label) -> Program {
        match point {
            // Functions are not to be changed.
            FutexPoint::Function(function) => {
                self.place(end);
                self.mov_imm(R0, 0);
                self.exit();
                Program { kernel_type: function, ..self.finish().into() }
            }
            FutexPoint::Tracepoint => {
                self.show(end);
                self.finish().into()
            }
        }
    }

    /// *to = the register of the caller at this offset; R7 = its registers
    fn read_register(&mut self, register: i32, bytes: i32, to: i16) {
        self.mov(R3, R7);
        self.add_imm(R3, register);
        self.stack_address(R1, to);
        self.mov_imm(R2, bytes);
        self.call(BpfHelper::ReadKernel);
    }

    /// *KEY = the futex: its process, 0 if processes share it, and its address
    fn futex_key(&mut self) {
        let shared = self.label();
        self.mov_imm(R1, 0);
        self.load64(R2, FP, OPERATION);
        self.and_imm(R2, PRIVATE);
        self.jump_if(R2, 0, shared);
        self.load64(R1, FP, PID);
        self.place(shared);
        self.store64(FP, KEY, R1);
        self.load64(R1, FP, ADDRESS);
        self.store64(FP, KEY + 8, R1);
    }

    /// on to one of the labels by the operation, or to `end`
    fn by_operation(&mut self, cases: &[(i32, Label)], end: Label) {
        self.load64(R1, FP, OPERATION);
        self.and_imm(R1, OPERATIONS);
        for (operation, label) in cases {
            self.jump_if(R1, *operation, *label);
        }
        self.jump(end);
    }

    /// R9 = the entry of *KEY, which is made if there is none, or on to `missed`
    fn futex_entry(&mut self, maps: FutexMaps, missed: Label) {
        let (new, found) = (self.label(), self.label());
        self.look_up(maps.futexes, KEY, new);
        self.jump(found);
        self.place(new);
        self.store32_imm(FP, INDEX, 0);
        self.look_up(maps.zeros, INDEX, missed); // never absent: the verifier wants it asked
        self.mov(R3, R0);
        self.load_map(R1, maps.futexes);
        self.stack_address(R2, KEY);
        // Another CPU may have made it since: it is not to be written over.
        self.mov_imm(R4, NO_EXISTING);
        self.call(BpfHelper::MapUpdate);
        self.look_up(maps.futexes, KEY, missed);
        self.place(found);
        self.mov(R9, R0);
    }

    /// *NOW_NS = R8 = the time
    fn futex_now(&mut self) {
        self.call(BpfHelper::Now);
        self.mov(R8, R0);
        self.store64(FP, NOW_NS, R8);
    }

    /// `R9[word] += 1`; R1 is lost
    fn count_at(&mut self, word: i16) {
        self.mov_imm(R1, 1);
        self.atomic_add64(R9, word, R1);
    }
}

/// The operations that wait, each with the same label.
fn waiting(label: Label) -> [(i32, Label); 5] {
    [WAIT, WAIT_BITSET, LOCK_PI, LOCK_PI2, WAIT_REQUEUE_PI].map(|operation| (operation, label))
}

/// Runs when `futex` is called: a thread that may wait is entered.
pub(super) fn enter(maps: FutexMaps, point: FutexPoint) -> Program {
    let mut a = Assembler::new();
    let (waits, missed, end) = (a.label(), a.label(), a.label());
    a.futex_call(maps, point, end);
    a.by_operation(&waiting(waits), end);
    a.place(waits);
    a.futex_key();
    a.futex_entry(maps, missed);
    a.load64(R1, FP, OPERATION);
    a.store64(R9, entry::OPERATION, R1);
    a.count_at(entry::WAITING);
    a.load64(R8, R9, entry::WAITING);
    a.raise(entry::MOST_WAITING);
    for (at, from) in [(0, KEY), (8, KEY + 8), (24, OPERATION)] {
        a.load64(R1, FP, from);
        a.store64(FP, VALUE + at, R1);
    }
    // Last, so that what this costs is no part of the wait.
    a.futex_now();
    a.store64(FP, VALUE + 16, R8);
    a.set(maps.waiters, TID, VALUE, 0);
    a.jump_if(R0, 0, end);
    a.mov_imm(R1, -1);
    a.atomic_add64(R9, entry::WAITING, R1);
    a.add_one(maps.counts, MISSED_WAITS, INDEX);
    a.jump(end);
    a.place(missed);
    a.add_one(maps.counts, MISSED_FUTEXES, INDEX);
    a.end_at(point, end)
}

/// Runs when `futex` returns from a wait.
///
/// Another program looks at wake-ups: a thread that is woken may come on the CPU while the one that
/// woke it is in the program, which does not run twice at a time on a CPU.
pub(super) fn waited(maps: FutexMaps, point: FutexPoint, limits: Limits) -> Program {
    let mut a = Assembler::new();
    let (waited, end) = (a.label(), a.label());
    a.futex_call(maps, point, end);
    a.by_operation(&waiting(waited), end);
    a.place(waited);
    a.futex_result(point);
    a.look_up(maps.waiters, TID, end); // began before the tracer did
    a.mov(R7, R0);
    a.futex_now();
    a.load64(R1, R7, 16);
    a.sub(R8, R1);
    a.store64(FP, WAIT_NS, R8);
    for (at, to) in [(0, KEY), (8, KEY + 8)] {
        a.load64(R1, R7, at);
        a.store64(FP, to, R1);
    }
    a.remove(maps.waiters, TID);
    a.look_up(maps.futexes, KEY, end); // it was forgotten when the recording began
    a.mov(R9, R0);
    a.mov_imm(R1, -1);
    a.atomic_add64(R9, entry::WAITING, R1);
    a.wait_ended(maps, limits, end);
    a.write_futex_record(maps, entry::UNTOLD_WAITS, end);
    a.end_at(point, end)
}

/// Runs when `futex` returns and has woken others.
pub(super) fn woke(maps: FutexMaps, point: FutexPoint, limits: Limits) -> Program {
    let mut a = Assembler::new();
    let (woke, unlocked, wake, end) = (a.label(), a.label(), a.label(), a.label());
    a.futex_call(maps, point, end);
    let wakes = [WAKE, WAKE_BITSET, WAKE_OP, REQUEUE, COMPARE_REQUEUE, COMPARE_REQUEUE_PI];
    let mut cases = wakes.map(|operation| (operation, woke)).to_vec();
    cases.push((UNLOCK_PI, unlocked));
    a.by_operation(&cases, end);
    a.place(unlocked);
    // Nothing but its success says that somebody was woken.
    a.futex_result(point);
    a.jump_unless(R1, 0, end);
    a.store64_imm(FP, COUNT, 1);
    a.jump(wake);
    a.place(woke);
    a.futex_result(point);
    a.mov_imm(R2, 0);
    a.jump_on(Compare::SignedLessEqual, R1, R2, end);
    a.store64(FP, COUNT, R1);
    a.place(wake);
    a.futex_key();
    a.look_up(maps.futexes, KEY, end); // nobody was seen to wait there
    a.mov(R9, R0);
    a.woke_others(maps, limits, end);
    a.write_futex_record(maps, entry::UNTOLD_WAKES, end);
    a.end_at(point, end)
}

impl Assembler {
    /// Adds the wait of R8 ns that has ended to the entry at R9; goes on with a record at R7 if it
    /// is to be told.
    fn wait_ended(&mut self, maps: FutexMaps, limits: Limits, end: Label) {
        let in_time = self.label();
        self.load64(R1, FP, RESULT);
        self.jump_if(R1, EAGAIN, end);
        self.jump_unless(R1, ETIMEDOUT, in_time);
        self.count_at(entry::TIMEOUTS);
        self.place(in_time);
        self.count_at(entry::WAITS);
        self.count_at(entry::UNTOLD_WAITS);
        self.atomic_add64(R9, entry::UNTOLD_NS, R8);
        self.add_latency(LatencyAt {
            total: entry::TOTAL,
            longest: entry::LONGEST,
            first_bucket: entry::FIRST_BUCKET,
            buckets: BUCKETS as u32,
        });
        self.begin_futex_record(maps, limits, FutexKind::Wait, end);
        for (word, to) in [(entry::UNTOLD_WAITS, at::COUNT), (entry::UNTOLD_NS, at::TOLD)] {
            self.mov_imm(R1, 0);
            self.exchange64(R9, word, R1);
            self.store64(R7, to, R1);
        }
        self.load64(R1, FP, WAIT_NS);
        self.store64(R7, at::WAIT, R1);
        self.load64(R1, R9, entry::WAKER);
        self.store32(R7, at::WAKER, R1);
    }

    /// Adds *COUNT threads that were woken to the entry at R9; goes on with a record at R7 if that
    /// is to be told.
    fn woke_others(&mut self, maps: FutexMaps, limits: Limits, end: Label) {
        self.load64(R1, FP, COUNT);
        self.atomic_add64(R9, entry::WAKES, R1);
        self.load64(R1, FP, TID);
        self.store64(R9, entry::WAKER, R1);
        self.count_at(entry::UNTOLD_WAKES);
        self.futex_now();
        self.store64_imm(FP, WAIT_NS, 0);
        self.begin_futex_record(maps, limits, FutexKind::Wake, end);
        self.mov_imm(R1, 0);
        self.exchange64(R9, entry::UNTOLD_WAKES, R1);
        self.store64(R7, at::COUNT, R1);
        self.store64_imm(R7, at::WAIT, 0);
        self.store64_imm(R7, at::TOLD, 0);
        self.store32_imm(R7, at::WAKER, 0);
    }

    /// R7 = a record of what both kinds have, of the futex whose entry is at R9; on to `end` if the
    /// budget is spent
    fn begin_futex_record(&mut self, maps: FutexMaps, limits: Limits, kind: FutexKind, end: Label) {
        self.store32_imm(FP, INDEX, 0);
        self.look_up(maps.scratch, INDEX, end); // never absent: the verifier wants it asked
        self.load64(R5, R9, entry::UNTOLD_NS);
        self.mov(R7, R9);
        self.mov(R9, R0);
        self.load64(R8, FP, NOW_NS);
        let budget = Budget {
            left: BUDGET,
            counted: COUNTED,
            interval_ns: limits.interval_ns,
            together_ns: limits.together_ns,
        };
        let threshold = Threshold { of: R7, at: entry::THRESHOLD, sets: kind == FutexKind::Wait };
        self.spend_budget(budget, threshold, end);
        self.mov(R1, R9);
        self.mov(R9, R7);
        self.mov(R7, R1);
        self.store32_imm(R7, at::KIND, kind as i32);
        for (from, to) in [(OPERATION, at::OPERATION), (TID, at::TID), (KEY, at::PID)] {
            self.load64(R1, FP, from);
            self.store32(R7, to, R1);
        }
        for (from, to) in [(KEY + 8, at::ADDRESS), (RESULT, at::RESULT)] {
            self.load64(R1, FP, from);
            self.store64(R7, to, R1);
        }
    }

    /// Writes the record at R7 as a sample of the running thread; what it has told is told again
    /// by the next one if there is no room. `untold`: the word of the entry at R9 that counts it.
    fn write_futex_record(&mut self, maps: FutexMaps, untold: i16, end: Label) {
        self.mov(R1, R6);
        self.load_map(R2, maps.events);
        self.mov_imm64(R3, THIS_CPU);
        self.mov(R4, R7);
        self.mov_imm(R5, RECORD_BYTES as i32);
        self.call(BpfHelper::EventOutput);
        self.jump_if(R0, 0, end);
        self.load64(R1, R7, at::COUNT);
        self.atomic_add64(R9, untold, R1);
        // 0 of wake-ups.
        self.load64(R1, R7, at::TOLD);
        self.atomic_add64(R9, entry::UNTOLD_NS, R1);
        // Else the event is not on: the recording begins or ends.
        self.jump_unless(R0, ENOSPC, end);
        self.add_one(maps.counts, LOST, INDEX);
    }
}
