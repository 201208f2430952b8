//! What the agent in a program is to do at hits, in its own words, each thing said once.

use std::collections::HashMap;

use kymo_core::probe::wire::{self, ProbeAction};
use kymo_perf::bpf::uprobe::{Condition, Operand, Register, Test};
use kymo_perf::inject::{Client, ProtocolError};

/// An operand as the agent knows it; `None` if it is of another machine, or too long.
pub(crate) fn operand(of: &Operand) -> Option<wire::Operand> {
    let register = of.register.number()?;
    let steps = of.steps.clone();
    (steps.len() <= wire::MOST_STEPS && of.bits.is_none()).then_some(wire::Operand {
        register,
        steps,
        bytes: of.bytes,
        signed: of.signed,
    })
}

/// A value of an event, as the agent knows it; `None` if it does not: bits, and values in vector registers.
pub(crate) fn fetch(of: &kymo_symbols::place::call::Fetch) -> Option<wire::Fetch> {
    let register = Register::named(of.register.general()?)?.number()?;
    if of.bits.is_some() || of.steps.len() > wire::MOST_STEPS {
        return None;
    }
    let operand =
        wire::Operand { register, steps: of.steps.clone(), bytes: of.len_bytes, signed: of.is_signed() };
    let kind = match &of.text {
        None => wire::FetchKind::Number,
        Some(text) => {
            let most = text.most.unwrap_or(u32::MAX).min(u32::from(wire::MOST_STRING_BYTES));
            wire::FetchKind::String { offset: text.offset, most: most as u8 }
        }
    };
    Some(wire::Fetch { operand, kind })
}

fn test(of: &Test) -> Option<wire::Test> {
    if of.characters.is_some() {
        return None;
    }
    Some(wire::Test { operand: operand(&of.operand)?, compare: of.compare, value: of.value })
}

/// A condition as the agent knows it; `None` if it is longer than it takes.
pub(crate) fn condition(of: &Condition) -> Option<wire::Condition> {
    if of.len() > wire::MOST_TESTS || of.iter().any(|tests| tests.len() > wire::MOST_TESTS) {
        return None;
    }
    of.iter().map(|tests| tests.iter().map(test).collect()).collect()
}

/// All things to do of one conversation, with their numbers.
#[derive(Debug, Default)]
pub(crate) struct ActionTable(HashMap<ProbeAction, u16>);

impl ActionTable {
    /// The number of a thing to do; `None` when there are too many.
    pub(crate) fn number(&mut self, how: ProbeAction) -> Option<u16> {
        if how == ProbeAction::default() {
            return Some(0);
        }
        let next = u16::try_from(self.0.len() + 1).ok()?;
        Some(*self.0.entry(how).or_insert(next))
    }

    /// Tells the agent what the numbers mean.
    pub(crate) fn tell(&self, client: &Client) -> Result<(), ProtocolError> {
        self.0.iter().try_for_each(|(how, number)| client.define_action(*number, how.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that what is the same has one number, that nothing has none, and that operands keep their registers, widths and steps.
    #[test]
    fn said_once() {
        let mut actions = ActionTable::default();
        assert_eq!(actions.number(ProbeAction::default()), Some(0));
        let Some(register) = Register::argument(1).filter(|register| register.number().is_some()) else {
            // Of a machine that the agent does not patch.
            return;
        };
        let operand = Operand { register, steps: vec![8], bytes: 4, signed: true, bits: None };
        let tests =
            vec![vec![Test { operand, compare: wire::Compare::GreaterEqual, value: 7, characters: None }]];
        let entry = condition(&tests).expect("short enough");
        assert_eq!((entry[0][0].operand.register, &entry[0][0].operand.steps[..]), (6, &[8][..]));
        let how = ProbeAction { entry_condition: entry, every: 2, ..ProbeAction::default() };
        assert_eq!(actions.number(how.clone()), Some(1));
        assert_eq!(actions.number(ProbeAction { every: 3, ..how.clone() }), Some(2));
        assert_eq!(actions.number(how), Some(1));
        assert_eq!(condition(&vec![tests[0].clone(); 9]), None, "more than the agent takes");
    }
}
