//! Records of hits: numbers and texts from registers and memory, in a BPF ring buffer.
//!
//! ```text
//!   | site u32, 1 at a return u32 | ns | process u32, thread u32 | latency ns or all bits | values that were read, a bit each | comm 16 bytes | values |
//!   number: one word        text: a word with its length, nine words of characters
//! ```
use super::super::insn::{Assembler, BpfHelper, FP, R0, R1, R2, R3, R8};
use super::UprobeSite;
use super::layout::{LATENCY, LOST, MASK};
use kymo_core::probe::value::Operand;
use std::sync::atomic::{AtomicU64, Ordering};

/// Values of one record.
pub const MOST_VALUES: usize = 24;
/// Characters of a text that are told.
pub(crate) const TEXT_BYTES: usize = 64;
/// Bytes that are read of a text, so that it is known whether there are more: whole words.
const TEXT_READ: usize = 72;
const TEXT_WORDS: usize = 1 + TEXT_READ / 8;
const HEAD_WORDS: usize = 7;

/// What is to be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number.
    Number(Operand),
    /// Characters in memory.
    Text {
        /// Their address.
        address: Operand,
        /// Added to it.
        offset: i32,
        /// How many there are; `None`: a zero ends them.
        length: Option<Operand>,
        /// No more than so many belong to it.
        most: Option<u32>,
    },
}

impl Value {
    fn words(&self) -> usize {
        if matches!(self, Value::Number(_)) { 1 } else { TEXT_WORDS }
    }
}

/// A value of a hit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CapturedValue {
    /// A number, with its sign in all bits.
    Number(u64),
    /// The first 64 characters.
    Text {
        /// Any bytes.
        bytes: Vec<u8>,
        /// There are more.
        cut: bool,
    },
    /// The memory could not be read; of a text that a zero ends, its address.
    Unreadable(Option<u64>),
}

/// A hit or a return.
#[derive(Clone, Debug)]
pub struct UprobeRecord<'a> {
    /// Number of the place.
    pub place: usize,
    /// It is a return.
    pub returned: bool,
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// The process, as the kernel numbers it.
    pub pid: i32,
    /// The thread.
    pub tid: i32,
    /// Since the entry, at a return.
    pub latency_ns: Option<u64>,
    /// The thread's name, up to a zero.
    pub comm: [u8; 16],
    readable: u64,
    texts: &'a [ValueShape],
    words: &'a [AtomicU64],
}

/// What a value's words are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueShape {
    Number,
    /// Ended by a zero, and no longer than so much.
    Text(u64),
    /// Its length is told.
    Counted,
}

/// Which values of a place are texts.
pub(super) fn shape(place: &UprobeSite) -> [Vec<ValueShape>; 2] {
    let one = |value: &Value| match value {
        Value::Number(_) => ValueShape::Number,
        Value::Text { length: Some(_), .. } => ValueShape::Counted,
        Value::Text { most, .. } => ValueShape::Text(most.map_or(u64::MAX, u64::from)),
    };
    let of = |values: &Option<Vec<Value>>| -> Vec<ValueShape> {
        values.iter().flatten().take(MOST_VALUES).map(one).collect()
    };
    [of(&place.values), of(&place.return_values)]
}

impl<'a> UprobeRecord<'a> {
    /// Takes a record of a ring apart; `None` if it is none of a known place.
    pub(super) fn of(
        words: &'a [AtomicU64],
        shape: impl Fn(usize, bool) -> Option<&'a [ValueShape]>,
    ) -> Option<UprobeRecord<'a>> {
        // Relaxed: the ring's reader has acquired the record.
        let word = |at: usize| words.get(at).map(|word| word.load(Ordering::Relaxed));
        let (site, who) = (word(0)?, word(2)?);
        let (place, returned) = ((site & u64::from(u32::MAX)) as usize, site >> 32 != 0);
        let mut comm = [0u8; 16];
        comm[..8].copy_from_slice(&word(5)?.to_ne_bytes());
        comm[8..].copy_from_slice(&word(6)?.to_ne_bytes());
        Some(UprobeRecord {
            place,
            returned,
            time_ns: word(1)?,
            pid: (who >> 32) as i32,
            tid: who as i32,
            latency_ns: word(3).filter(|ns| *ns != u64::MAX),
            comm,
            readable: word(4)?,
            texts: shape(place, returned)?,
            words: words.get(HEAD_WORDS..)?,
        })
    }

    /// The values, in the order in which they were asked for.
    pub fn values(&self) -> Vec<CapturedValue> {
        let mut rest = self.words;
        let mut found = Vec::with_capacity(self.texts.len());
        for (number, shape) in self.texts.iter().enumerate() {
            let count = if *shape == ValueShape::Number { 1 } else { TEXT_WORDS };
            let Some((own, others)) = rest.split_at_checked(count) else { break };
            rest = others;
            let first = own[0].load(Ordering::Relaxed);
            found.push(match (self.readable >> number & 1 == 1, shape) {
                (false, ValueShape::Text(_)) => {
                    CapturedValue::Unreadable(Some(first).filter(|address| *address != u64::MAX))
                }
                (false, _) => CapturedValue::Unreadable(None),
                (true, ValueShape::Number) => CapturedValue::Number(first),
                (true, ValueShape::Text(_) | ValueShape::Counted) => {
                    let all = own[1..].iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
                    let most = if let ValueShape::Text(most) = shape { *most } else { u64::MAX };
                    let length = usize::try_from(first.min(most)).unwrap_or(usize::MAX);
                    CapturedValue::Text {
                        bytes: all.take(length.min(TEXT_BYTES)).collect(),
                        cut: length > TEXT_BYTES,
                    }
                }
            });
        }
        found
    }
}

impl Assembler {
    /// Tells the values; R6 is the context, R7 the site, R9 the line. *LATENCY is what it says. R8
    /// is lost.
    pub(super) fn record(&mut self, ring: i32, values: &[Value], returned: bool) {
        let values = &values[..values.len().min(MOST_VALUES)];
        let words = HEAD_WORDS + values.iter().map(Value::words).sum::<usize>();
        let (full, done) = (self.label(), self.label());
        self.load_map(R1, ring);
        self.mov_imm(R2, 8 * words as i32);
        self.mov_imm(R3, 0);
        self.call(BpfHelper::RingReserve);
        self.jump_if(R0, 0, full);
        self.mov(R8, R0);
        // The site's number fills its word; a return is told apart by the half above.
        self.store32(R8, 0, super::super::insn::R7);
        self.store32_imm(R8, 4, i32::from(returned));
        self.call(BpfHelper::Now);
        self.store64(R8, 8, R0);
        self.call(BpfHelper::CurrentPidTgid);
        self.store64(R8, 16, R0);
        self.load64(R1, FP, LATENCY);
        self.store64(R8, 24, R1);
        self.mov(R1, R8);
        self.add_imm(R1, 40);
        self.mov_imm(R2, 16);
        self.call(BpfHelper::CurrentComm);
        self.store64_imm(FP, MASK, 0);
        let mut at = 8 * HEAD_WORDS as i16;
        for (number, value) in values.iter().enumerate() {
            let next = self.label();
            match value {
                Value::Number(operand) => {
                    self.store64_imm(R8, at, 0);
                    self.operand(operand, next);
                    self.store64(R8, at, R1);
                }
                Value::Text { address, offset, length, .. } => {
                    // No address is known yet.
                    self.store64_imm(R8, at, -1);
                    if let Some(length) = length {
                        self.operand(length, next);
                        self.store64(R8, at, R1);
                    }
                    self.operand(address, next);
                    self.mov(R3, R1);
                    self.add_imm(R3, *offset);
                    if length.is_none() {
                        // Until its length takes the place.
                        self.store64(R8, at, R3);
                    }
                    let to = |a: &mut Assembler| {
                        a.mov(R1, R8);
                        a.add_imm(R1, i32::from(at) + 8);
                    };
                    if length.is_some() {
                        to(self);
                        let short = self.label();
                        self.load64(R2, R8, at);
                        self.jump_if_below(R2, TEXT_READ as i32, short);
                        self.mov_imm(R2, TEXT_READ as i32);
                        self.place(short);
                        self.read_user();
                        self.jump_unless(R0, 0, next);
                    } else {
                        self.read_text(to, TEXT_READ as i32);
                        self.jump_if_negative(R0, next);
                        // Without the zero.
                        self.add_imm(R0, -1);
                        self.store64(R8, at, R0);
                    }
                }
            }
            self.load64(R1, FP, MASK);
            self.add_imm(R1, 1 << number);
            self.store64(FP, MASK, R1);
            self.place(next);
            at += 8 * value.words() as i16;
        }
        self.load64(R1, FP, MASK);
        self.store64(R8, 32, R1);
        self.mov(R1, R8);
        self.mov_imm(R2, 0);
        self.call(BpfHelper::RingSubmit);
        self.jump(done);
        self.place(full);
        self.count(LOST);
        self.place(done);
    }
}
