//! `--if`: which hits count. `new == 0 && old != new || tid == 1234`.
use crate::condition::OPERATORS;
use kymo_core::probe::value::Compare;
use std::fmt;

/// What a word of a condition can be about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    New,
    Old,
    Tid,
    Pid,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Operand {
    Name(Name),
    /// Read as a value of the place when it is used.
    Word(String),
}

/// A condition: alternatives of comparisons that must all hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition(Vec<Vec<(Operand, Compare, Operand)>>);

/// What is known of a hit; `None`: not readable.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AccessFacts {
    pub new: Option<i128>,
    pub old: Option<i128>,
    pub tid: i32,
    pub pid: i32,
}

/// Why a condition is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionError(String);

impl fmt::Display for ConditionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}; write comparisons of new, old, tid, pid and numbers, as in `new == 0 && old != 0 || tid == 1234`",
            self.0
        )
    }
}

impl Condition {
    /// Reads a condition.
    pub fn parse(text: &str) -> Result<Condition, ConditionError> {
        let one = |part: &str| {
            let found = OPERATORS
                .iter()
                .filter_map(|&(sign, comparison)| part.find(sign).map(|at| (at, sign, comparison)))
                .min_by_key(|&(at, sign, _)| (at, std::cmp::Reverse(sign.len())));
            let (at, sign, comparison) =
                found.ok_or_else(|| ConditionError(format!("`{}` compares nothing", part.trim())))?;
            let (left, right) = (operand(&part[..at], part)?, operand(&part[at + sign.len()..], part)?);
            Ok((left, comparison, right))
        };
        let all = |part: &str| part.split("&&").map(one).collect::<Result<Vec<_>, _>>();
        text.split("||").map(all).collect::<Result<_, _>>().map(Condition)
    }

    /// The words that must be values of a place: to be read with its type.
    pub fn words(&self) -> impl Iterator<Item = &str> {
        let operands = self.0.iter().flatten().flat_map(|(left, _, right)| [left, right]);
        operands.filter_map(|operand| match operand {
            Operand::Word(word) => Some(word.as_str()),
            Operand::Name(_) => None,
        })
    }

    /// Whether it holds; `value`: what a word means for this place. What is not known compares to nothing.
    pub(crate) fn holds(&self, known: &AccessFacts, value: &dyn Fn(&str) -> Option<i128>) -> bool {
        let number = |operand: &Operand| match operand {
            Operand::Name(Name::New) => known.new,
            Operand::Name(Name::Old) => known.old,
            Operand::Name(Name::Tid) => Some(known.tid.into()),
            Operand::Name(Name::Pid) => Some(known.pid.into()),
            Operand::Word(word) => value(word),
        };
        let holds = |(left, comparison, right): &(Operand, Compare, Operand)| {
            let (Some(left), Some(right)) = (number(left), number(right)) else { return false };
            match comparison {
                Compare::Equal => left == right,
                Compare::NotEqual => left != right,
                Compare::Less => left < right,
                Compare::LessEqual => left <= right,
                Compare::Greater => left > right,
                Compare::GreaterEqual => left >= right,
            }
        };
        self.0.iter().any(|all| all.iter().all(holds))
    }
}

fn operand(text: &str, of: &str) -> Result<Operand, ConditionError> {
    let word = text.trim();
    let plain = |c: char| c.is_alphanumeric() || "_:-'.".contains(c);
    match word {
        "new" => Ok(Operand::Name(Name::New)),
        "old" => Ok(Operand::Name(Name::Old)),
        "tid" => Ok(Operand::Name(Name::Tid)),
        "pid" => Ok(Operand::Name(Name::Pid)),
        "" => Err(ConditionError(format!("`{}` lacks one side", of.trim()))),
        word if word.chars().all(plain) || word.starts_with('\'') => Ok(Operand::Word(word.to_owned())),
        word => Err(ConditionError(format!("`{word}` is no value"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(text: &str, new: i128, old: i128) -> bool {
        let known = AccessFacts { new: Some(new), old: Some(old), tid: 7, pid: 5 };
        Condition::parse(text).unwrap().holds(&known, &|word| word.parse().ok())
    }

    /// Checks comparisons, that `&&` binds closer than `||`, and that spaces do not matter.
    #[test]
    fn conditions() {
        assert!(holds("new==0", 0, 5) && !holds("new==0", 1, 5));
        assert!(holds("new <= -1", -1, 0) && !holds("new< -1", -1, 0));
        assert!(holds("new != old", 1, 2) && !holds("new!=old", 2, 2));
        assert!(
            holds("tid==8 || new==1 && old==2", 1, 2)
                && !holds("(new)==1 && tid==8".trim_start_matches("(new)==1 && "), 1, 2)
        );
        assert!(holds("old>=2&&pid==5", 0, 2) && holds("3>new", 2, 0));
    }

    /// Checks that what is not known makes no comparison true, not even "not equal".
    #[test]
    fn unknown_values() {
        let condition = Condition::parse("old != 3").unwrap();
        assert!(!condition.holds(&AccessFacts::default(), &|word| word.parse().ok()));
        assert_eq!(
            Condition::parse("new == Idle && tid==3").unwrap().words().collect::<Vec<_>>(),
            ["Idle", "3"]
        );
    }

    /// Checks that wrong conditions are told with what is right.
    #[test]
    fn wrong_conditions() {
        for (text, words) in
            [("new", "compares nothing"), ("new ==", "lacks one side"), ("new == a b", "is no value")]
        {
            let error = Condition::parse(text).unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("new == 0 &&"), "{error}");
        }
    }
}
