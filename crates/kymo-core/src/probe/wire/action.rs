//! Probe actions: which hits count, and what is recorded of them.
use super::pack::{Malformed, Packer, Unpacker};
use crate::probe::value::{Compare, Condition, Operand, Test};

/// The most lists of a condition, and the most tests of each list.
pub const MOST_TESTS: usize = 8;
/// The most steps from a register to a number in memory.
pub const MOST_STEPS: usize = 8;
/// The most values of an event.
pub const MOST_FETCHES: usize = 12;
/// The longest text of an event, in bytes, without the zero behind it.
pub const MOST_STRING_BYTES: u8 = 200;

/// What of an operand an event holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FetchKind {
    /// The number, extended to 64 bits. 0 where memory cannot be read.
    Number,
    /// The text so many bytes behind where it points to, up to a zero byte or `most` bytes. Empty
    /// where memory cannot be read.
    String {
        /// Added to the number to get the text's address.
        offset: i32,
        /// How much of it, without the zero behind it.
        most: u8,
    },
}

/// One value of an event.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Fetch {
    /// Where it is found.
    pub operand: Operand,
    /// What of it.
    pub kind: FetchKind,
}

/// An event's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EventId {
    /// The number of each record's event.
    pub id: u64,
    /// The number that raw data begins with.
    pub kind: u16,
}

/// What a probe does besides counting.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct ProbeAction {
    /// Which hits count.
    pub entry_condition: Condition,
    /// Which returns count.
    pub return_condition: Condition,
    /// Only each so-many-th hit of a CPU is looked at further than to count it; 0 and 1: all.
    pub every: u32,
    /// Callers are told apart.
    pub callers: bool,
    /// The event that is written at an entry, for probes that record.
    pub event: Option<EventId>,
    /// Its values.
    pub fetches: Vec<Fetch>,
    /// The event that is written at a return.
    pub return_event: Option<EventId>,
    /// Its values.
    pub return_fetches: Vec<Fetch>,
}

/// Whether an agent takes an operand: all its bits, and not too many steps.
pub fn is_supported(operand: &Operand) -> bool {
    operand.steps.len() <= MOST_STEPS && operand.bits.is_none()
}

impl ProbeAction {
    /// Whether an agent takes it: conditions of numbers alone, none too long, and of operands that
    /// it takes.
    pub fn is_supported(&self) -> bool {
        let condition = |of: &Condition| {
            of.len() <= MOST_TESTS
                && of.iter().all(|tests| tests.len() <= MOST_TESTS)
                && of.iter().flatten().all(|test| is_supported(&test.operand) && test.characters.is_none())
        };
        let fetches =
            |of: &[Fetch]| of.len() <= MOST_FETCHES && of.iter().all(|fetch| is_supported(&fetch.operand));
        condition(&self.entry_condition)
            && condition(&self.return_condition)
            && fetches(&self.fetches)
            && fetches(&self.return_fetches)
    }
}

fn operand(packer: Packer, operand: &Operand) -> Packer {
    let packer = packer.u8(operand.register).u8(operand.bytes).u8(u8::from(operand.signed));
    packer.list(&operand.steps, |packer, step| packer.u32(*step as u32))
}

fn condition(packer: Packer, lists: &Condition) -> Packer {
    packer.list(lists, |packer, tests| {
        packer.list(tests, |packer, test| {
            let number = Compare::ALL.iter().position(|compare| *compare == test.compare);
            operand(packer, &test.operand).u8(number.unwrap_or(0) as u8).u64(test.value)
        })
    })
}

fn bounded<T>(list: Vec<T>, most: usize) -> Result<Vec<T>, Malformed> {
    if list.len() <= most { Ok(list) } else { Err(Malformed { expected: "a list of bounded length" }) }
}

fn operand_of(rest: &mut Unpacker<'_>) -> Result<Operand, Malformed> {
    let (register, bytes, signed) = (rest.u8()?, rest.u8()?, rest.flag()?);
    let steps = bounded(rest.list(|step| Ok(step.u32()? as i32))?, MOST_STEPS)?;
    if register > 15 || !matches!(bytes, 1 | 2 | 4 | 8) {
        return Err(Malformed { expected: "a register and a length" });
    }
    Ok(Operand { register, steps, bytes, signed, bits: None })
}

fn condition_of(rest: &mut Unpacker<'_>) -> Result<Condition, Malformed> {
    let test = |rest: &mut Unpacker<'_>| {
        let operand = operand_of(rest)?;
        let compare = Compare::ALL.get(usize::from(rest.u8()?)).copied();
        let compare = compare.ok_or(Malformed { expected: "a comparison" })?;
        Ok(Test::number(operand, compare, rest.u64()?))
    };
    bounded(rest.list(|tests| bounded(tests.list(test)?, MOST_TESTS))?, MOST_TESTS)
}

fn event(packer: Packer, event: Option<EventId>, fetches: &[Fetch]) -> Packer {
    let packer = match event {
        None => packer.u8(0),
        Some(EventId { id, kind }) => packer.u8(1).u64(id).u16(kind),
    };
    packer.list(fetches, |packer, fetch| {
        let packer = operand(packer, &fetch.operand);
        match fetch.kind {
            FetchKind::Number => packer.u8(0),
            FetchKind::String { offset, most } => packer.u8(1).u32(offset as u32).u8(most),
        }
    })
}

fn event_of(rest: &mut Unpacker<'_>) -> Result<(Option<EventId>, Vec<Fetch>), Malformed> {
    let event = if rest.flag()? { Some(EventId { id: rest.u64()?, kind: rest.u16()? }) } else { None };
    let fetch = |rest: &mut Unpacker<'_>| {
        let operand = operand_of(rest)?;
        let kind = if rest.flag()? {
            FetchKind::String { offset: rest.u32()? as i32, most: rest.u8()?.min(MOST_STRING_BYTES) }
        } else {
            FetchKind::Number
        };
        Ok(Fetch { operand, kind })
    };
    Ok((event, bounded(rest.list(fetch)?, MOST_FETCHES)?))
}

impl ProbeAction {
    pub(super) fn pack(&self, packer: Packer) -> Packer {
        let packer = condition(condition(packer, &self.entry_condition), &self.return_condition);
        let packer = packer.u32(self.every).u8(u8::from(self.callers));
        event(event(packer, self.event, &self.fetches), self.return_event, &self.return_fetches)
    }

    pub(super) fn of(rest: &mut Unpacker<'_>) -> Result<ProbeAction, Malformed> {
        let (entry_condition, return_condition) = (condition_of(rest)?, condition_of(rest)?);
        let (every, callers) = (rest.u32()?, rest.flag()?);
        let ((event, fetches), (return_event, return_fetches)) = (event_of(rest)?, event_of(rest)?);
        Ok(ProbeAction {
            entry_condition,
            return_condition,
            every,
            callers,
            event,
            fetches,
            return_event,
            return_fetches,
        })
    }
}

/// Where an event's values are in its raw data, which is as the kernel's own events of programs
/// have it.
///
/// ```text
///   0 kind u16 | 2 zeros u16 | 4 thread u32 | 8 the place u64 | for returns: 16 whereto u64 | the values, one behind the other | texts
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Where each value begins: a number of 8 bytes, or a word of 4 that says where the text is.
    pub at: Vec<u32>,
    /// Where the texts begin.
    pub fixed_bytes: u32,
    /// The most that the raw data has, with the longest texts.
    pub most_bytes: u32,
}

impl ProbeAction {
    /// The layout of its event at an entry, or (`returns`) at a return.
    pub fn layout(&self, returns: bool) -> Layout {
        Layout::of(if returns { &self.return_fetches } else { &self.fetches }, returns)
    }
}

impl Layout {
    /// The layout of an event with these values. `returns`: of a function's return.
    pub fn of(fetches: &[Fetch], returns: bool) -> Layout {
        let mut at = Vec::new();
        let mut next: u32 = if returns { 24 } else { 16 };
        let mut texts = 0;
        for fetch in fetches {
            at.push(next);
            match fetch.kind {
                FetchKind::Number => next += 8,
                FetchKind::String { most, .. } => {
                    next += 4;
                    texts += u32::from(most) + 1;
                }
            }
        }
        Layout { at, fixed_bytes: next, most_bytes: next + texts }
    }
}
