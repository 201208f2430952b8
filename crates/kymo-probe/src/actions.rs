//! What the agent in a program is to do at hits, in its own words, each thing said once.
use crate::arguments;
use kymo_core::probe::wire::{self, ProbeAction};
use kymo_perf::inject::{Client, ProtocolError};
use kymo_symbols::place::call::Fetch;
use std::collections::HashMap;

/// A value of an event, as the agent knows it; `None` if it does not: bits, and values in vector registers.
pub(crate) fn fetch(of: &Fetch) -> Option<wire::Fetch> {
    of.register.general()?;
    let operand = Some(arguments::operand(of)).filter(wire::is_supported)?;
    let kind = match &of.text {
        None => wire::FetchKind::Number,
        Some(text) => {
            let most = text.most.unwrap_or(u32::MAX).min(u32::from(wire::MOST_STRING_BYTES));
            wire::FetchKind::String { offset: text.offset, most: most as u8 }
        }
    };
    Some(wire::Fetch { operand, kind })
}

/// All things to do of one conversation, with their numbers.
#[derive(Debug, Default)]
pub(crate) struct ActionTable(HashMap<ProbeAction, u16>);

impl ActionTable {
    /// The number of a thing to do; `None` when the agent does not take it, or there are too many.
    pub(crate) fn number(&mut self, how: ProbeAction) -> Option<u16> {
        if !how.is_supported() {
            return None;
        }
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
    use kymo_core::probe::value::{Characters, Compare, Operand, Test};

    /// Checks that what is the same has one number, that nothing has none, and that what the agent does not take has none either.
    #[test]
    fn said_once() {
        let mut actions = ActionTable::default();
        assert_eq!(actions.number(ProbeAction::default()), Some(0));
        let operand = Operand { steps: vec![8], bytes: 4, signed: true, ..Operand::register(6) };
        let test = Test::number(operand.clone(), Compare::GreaterEqual, 7);
        let on = |lists| ProbeAction { entry_condition: lists, every: 2, ..ProbeAction::default() };
        let action = on(vec![vec![test.clone()]]);
        assert_eq!(actions.number(action.clone()), Some(1));
        assert_eq!(actions.number(ProbeAction { every: 3, ..action.clone() }), Some(2));
        assert_eq!(actions.number(action), Some(1));
        let characters = Some(Characters { offset: 0, bytes: b"x".to_vec(), ended: true });
        let bits = Operand { bits: Some((1, 2)), ..operand.clone() };
        let far = Operand { steps: vec![0; 9], ..operand };
        for unsupported in [
            vec![vec![test.clone()]; 9],
            vec![vec![test.clone(); 9]],
            vec![vec![Test { characters, ..test.clone() }]],
            vec![vec![Test { operand: bits, ..test.clone() }]],
            vec![vec![Test { operand: far, ..test }]],
        ] {
            assert_eq!(actions.number(on(unsupported)), None, "not what the agent takes");
        }
    }
}
