//! Which registers are set in which turn, planned with the ledger of slots before anything is
//! opened.
use super::range::{Range, RangeError, WatchedPiece};
use kymo_core::breakpoint::{Config, Ledger, Reservation, Slots, Target, TaskId};
use std::fmt;

/// The slots of this machine, as far as they are known before anything is opened.
#[derive(Clone, Copy, Debug)]
pub struct BreakpointSlots {
    /// All CPUs that there can be.
    pub cpus: usize,
    /// What each has.
    pub slots: Slots,
    /// How many of them others hold, on the CPU where it is tightest.
    pub taken: usize,
    /// Whether registers are set for whoever runs on a CPU, or for single tasks.
    pub by_cpu: bool,
}

impl BreakpointSlots {
    /// The slots of this architecture.
    pub fn slots_here() -> Slots {
        if cfg!(target_arch = "x86_64") {
            Slots::Shared(4)
        } else {
            Slots::Separate { data: 4, instructions: 6 }
        }
    }
}

/// What one register is set to, and for whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Register {
    /// What it covers.
    pub piece: WatchedPiece,
    /// The ranges that it serves, by their place in the list that was asked for.
    pub ranges: Vec<usize>,
}

/// Registers, and the turns in which they are armed: those of one turn together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// All registers that are needed.
    pub registers: Vec<Register>,
    /// Numbers of registers, turn by turn. One turn: all are armed all the time.
    pub turns: Vec<Vec<usize>>,
    /// Whether neighbours share a register because there were too few.
    pub merged: bool,
}

/// Why there is no schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// A range that no hardware can watch.
    #[error("{source}")]
    Range {
        /// Which one, from 0 on.
        index: usize,
        /// Why.
        source: RangeError,
    },
    /// More registers than slots, and they may not take turns.
    #[error("{needed} registers are needed and each CPU has {free} free{}: watch fewer bytes, or let them take turns", Taken(*.slots, *.free))]
    TooMany {
        /// How many registers.
        needed: usize,
        /// How many each CPU has.
        slots: usize,
        /// How many of them nobody else holds.
        free: usize,
    },
    /// Not one slot is free of so many.
    #[error("all {0} breakpoint registers of a CPU are held by others")]
    NoneFree(usize),
    /// The hardware has none.
    #[error("this hardware has no breakpoint registers")]
    NoHardware,
}

/// ` (4 in all)`, where some are taken.
struct Taken(usize, usize);

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == self.1 { Ok(()) } else { write!(f, " of {}", self.0) }
    }
}

impl Schedule {
    /// Plans registers for these ranges. Neighbours share a register only where there are too few
    /// for each to have its own, because then it is not always known which of them an access was
    /// to. `turns`: what does not fit takes turns; otherwise it is an error.
    ///
    /// # Errors
    /// [`ScheduleError`].
    pub fn plan(ranges: &[Range], machine: &BreakpointSlots, turns: bool) -> Result<Schedule, ScheduleError> {
        let mut registers = own_registers(ranges)?;
        let slots = match machine.slots {
            Slots::Shared(slots) => slots,
            Slots::Separate { data, .. } => data,
        };
        if slots == 0 {
            return Err(ScheduleError::NoHardware);
        }
        let free = slots.saturating_sub(machine.taken);
        if free == 0 {
            return Err(ScheduleError::NoneFree(slots));
        }
        let mut planned = divide(&registers, machine);
        let mut merged = false;
        if planned.len() > 1 {
            merged = merge(&mut registers);
            planned = divide(&registers, machine);
        }
        if planned.len() > 1 && !turns {
            return Err(ScheduleError::TooMany { needed: registers.len(), slots, free });
        }
        Ok(Schedule { registers, turns: planned, merged })
    }
}

/// A register for each piece; what is covered by another needs none of its own.
fn own_registers(ranges: &[Range]) -> Result<Vec<Register>, ScheduleError> {
    let mut registers: Vec<Register> = Vec::new();
    for (index, range) in ranges.iter().enumerate() {
        let pieces = range.pieces().map_err(|source| ScheduleError::Range { index, source })?;
        for piece in pieces {
            if let Some(known) = registers.iter_mut().find(|known| known.piece.covers(&piece)) {
                known.ranges.push(index);
                continue;
            }
            // Those that this one makes superfluous.
            let mut served = vec![index];
            registers.retain(|known| {
                let covered = piece.covers(&known.piece);
                if covered {
                    served.extend(&known.ranges);
                }
                !covered
            });
            registers.push(Register { piece, ranges: served });
        }
    }
    for register in &mut registers {
        register.ranges.sort_unstable();
        register.ranges.dedup();
    }
    Ok(registers)
}

/// Lets neighbours share registers; whether any did.
fn merge(registers: &mut Vec<Register>) -> bool {
    let before = registers.len();
    'again: loop {
        for one in 0..registers.len() {
            for other in one + 1..registers.len() {
                let Some(piece) = registers[one].piece.joined(&registers[other].piece) else { continue };
                let gone = registers.remove(other);
                registers[one].piece = piece;
                registers[one].ranges.extend(gone.ranges);
                registers[one].ranges.sort_unstable();
                registers[one].ranges.dedup();
                continue 'again;
            }
        }
        return registers.len() < before;
    }
}

/// Turns of as many registers as the ledger grants together.
fn divide(registers: &[Register], machine: &BreakpointSlots) -> Vec<Vec<usize>> {
    let cpus = machine.cpus.max(1);
    let Ok(ledger) = Ledger::new(Config { cpus, slots: machine.slots }) else {
        return vec![(0..registers.len()).collect()];
    };
    let Some(kind) = registers.first().map(|register| register.piece.kind) else { return Vec::new() };
    // What others hold, wherever it is: nobody tells more.
    let _others: Vec<Reservation> =
        (0..machine.taken).filter_map(|_| ledger.reserve(Target::AllCpus, kind).ok()).collect();
    // All watched tasks hold the same, so one stands for each of them.
    let task = ledger.task(TaskId(0));
    let target = if machine.by_cpu { Target::AllCpus } else { Target::Task(&task) };
    let mut turns: Vec<Vec<usize>> = Vec::new();
    let mut held: Vec<Reservation> = Vec::new();
    let mut turn = Vec::new();
    for (index, register) in registers.iter().enumerate() {
        let mut granted = ledger.reserve(target, register.piece.kind);
        if granted.is_err() && !turn.is_empty() {
            turns.push(std::mem::take(&mut turn));
            held.clear();
            granted = ledger.reserve(target, register.piece.kind);
        }
        held.extend(granted);
        turn.push(index);
    }
    turns.push(turn);
    turns
}

#[cfg(test)]
mod tests {
    use super::*;
    use kymo_core::breakpoint::Kind;

    const FOUR: BreakpointSlots =
        BreakpointSlots { cpus: 2, slots: Slots::Shared(4), taken: 0, by_cpu: true };

    fn ranges(places: &[(u64, u64)]) -> Vec<Range> {
        places.iter().map(|&(address, bytes)| Range { address, bytes, kind: Kind::WRITE }).collect()
    }

    /// Checks that four neighbours keep a register each, and that five share because there are only
    /// four.
    #[test]
    fn neighbours_share_where_they_must() {
        let four = ranges(&[(0x1000, 4), (0x1004, 4), (0x1008, 4), (0x100c, 4)]);
        let plan = Schedule::plan(&four, &FOUR, false).unwrap();
        assert_eq!((plan.registers.len(), plan.turns.len(), plan.merged), (4, 1, false));
        let five = ranges(&[(0x1000, 4), (0x1004, 4), (0x1008, 4), (0x100c, 4), (0x2000, 8)]);
        let plan = Schedule::plan(&five, &FOUR, false).unwrap();
        assert_eq!((plan.registers.len(), plan.turns.len(), plan.merged), (3, 1, true));
        assert_eq!(plan.registers[0].ranges, [0, 1]);
    }

    /// Checks that what does not fit takes turns of at most four, each register in exactly one, or
    /// is refused.
    #[test]
    fn turns() {
        let six = ranges(&[(0x1000, 8), (0x2000, 8), (0x3000, 8), (0x4000, 8), (0x5000, 8), (0x6000, 8)]);
        let plan = Schedule::plan(&six, &FOUR, true).unwrap();
        assert_eq!(plan.turns, [vec![0, 1, 2, 3], vec![4, 5]]);
        let error = Schedule::plan(&six, &FOUR, false).unwrap_err();
        assert_eq!(error, ScheduleError::TooMany { needed: 6, slots: 4, free: 4 });
        let crowded = BreakpointSlots { taken: 3, ..FOUR };
        assert_eq!(Schedule::plan(&six, &crowded, true).unwrap().turns.len(), 6);
        let error = Schedule::plan(&six[..2], &crowded, false).unwrap_err();
        assert!(error.to_string().contains("2 registers are needed and each CPU has 1 free of 4"), "{error}");
        assert_eq!(
            Schedule::plan(&six, &BreakpointSlots { taken: 4, ..FOUR }, true),
            Err(ScheduleError::NoneFree(4))
        );
        let none = BreakpointSlots { slots: Slots::Shared(0), ..FOUR };
        assert_eq!(Schedule::plan(&six, &none, true), Err(ScheduleError::NoHardware));
    }

    /// Checks that what is watched twice, or as a part of something else, takes one register.
    #[test]
    fn covered() {
        let plan = Schedule::plan(&ranges(&[(0x1000, 4), (0x1000, 8), (0x1000, 4)]), &FOUR, false).unwrap();
        assert_eq!(plan.registers.len(), 1);
        assert_eq!((plan.registers[0].piece.bytes, &plan.registers[0].ranges[..]), (8, &[0, 1, 2][..]));
    }

    /// Checks that a wrong range is named by its place.
    #[test]
    fn wrong_ranges() {
        let error = Schedule::plan(&ranges(&[(0x1000, 4), (0x1001, 0)]), &FOUR, true).unwrap_err();
        assert!(matches!(error, ScheduleError::Range { index: 1, .. }));
    }
}
