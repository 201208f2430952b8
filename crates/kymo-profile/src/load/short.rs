//! Records whose bytes end before their fields do.
use kymo_data::{ParseError, Problem};
use std::collections::BTreeMap;

/// The first short record of each type, and how many there are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShortRecords(BTreeMap<u32, (ParseError, u64)>);

impl ShortRecords {
    pub(super) fn add(&mut self, error: ParseError) {
        self.merge(error, 1);
    }

    pub(super) fn absorb(&mut self, other: ShortRecords) {
        other.0.into_values().for_each(|(error, count)| self.merge(error, count));
    }

    fn merge(&mut self, error: ParseError, count: u64) {
        let (first, all) = self.0.entry(error.kind).or_insert((error, 0));
        if error.position < first.position {
            *first = error;
        }
        *all += count;
    }

    /// One problem for each type, in order of their places.
    pub(crate) fn problems(&self) -> Vec<Problem> {
        let mut problems: Vec<Problem> =
            self.0.values().map(|(error, count)| problem(error, *count)).collect();
        problems.sort_by_key(|problem| problem.position);
        problems
    }
}

fn problem(error: &ParseError, count: u64) -> Problem {
    let others = match count {
        1 => String::new(),
        _ => format!(", as {} others of this type do", count - 1),
    };
    Problem {
        position: error.position,
        kind: Some(error.kind),
        what: format!(
            "it ends before {} at byte {} of its body{others}: it is left out",
            error.expected, error.offset
        ),
        is_damage: true,
    }
}
