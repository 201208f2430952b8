//! Which rows count: conditions that must all hold.
use super::dataset::Dataset;
use super::{QueryError, WALL_TIME};
use crate::columns::RowField;
use crate::wall::{SpanState, State};

/// Names that a sentence lists at most.
const MOST_NAMES: usize = 8;

/// Names are alike that begin with so many equal characters.
const LEAST_COMMON: usize = 4;

/// What a condition is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterField {
    /// When, as `kymo report --time` says it.
    Time,
    /// A thread, by number or name.
    Thread,
    /// A process, by number.
    Process,
    /// A CPU.
    Cpu,
    /// What a thread did, or waited for.
    State,
    /// The event.
    Event,
    /// The module in which the sample was taken, or the thread waited.
    Module,
    /// A function on the stack.
    Function,
}

impl FilterField {
    /// All of them, with their words.
    pub const ALL: [(&'static str, FilterField); 8] = [
        ("time", FilterField::Time),
        ("thread", FilterField::Thread),
        ("process", FilterField::Process),
        ("cpu", FilterField::Cpu),
        ("state", FilterField::State),
        ("event", FilterField::Event),
        ("module", FilterField::Module),
        ("function", FilterField::Function),
    ];
}

/// A value of a condition, as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterValue {
    /// The text without quotes.
    pub text: String,
    /// Which character of the query it begins with, from 1 on; 0 where no text was written.
    pub at: usize,
}

/// Holds for rows whose field has one of the values, or none of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// What it is about.
    pub field: FilterField,
    /// It holds where no value fits.
    pub negated: bool,
    /// One of them must fit.
    pub values: Vec<FilterValue>,
    /// The spans of time, both ends included; of [`FilterField::Time`].
    pub spans: Vec<(u64, u64)>,
}

/// Conditions that must all hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// In the order in which they were written.
    pub conditions: Vec<Condition>,
}

/// What a row must have in a column.
pub(super) enum Test {
    /// By the number in the column.
    Table(RowField, Vec<bool>),
    /// The number is in the list, or is not.
    List(RowField, Vec<u64>, bool),
    /// By the stack; of spans for each way to show a stack ([`class`]).
    Stack([Vec<bool>; CLASSES]),
}

/// Stacks are shown in so many ways.
pub(super) const CLASSES: usize = 3;

/// The way in which the stack of a row is shown, by the state of the row.
#[inline]
pub(super) fn class(state: u8) -> usize {
    match SpanState::of_number(state) {
        None => 0,
        Some(SpanState { state: State::Running, .. }) => 0,
        Some(SpanState { of_idle, .. }) => 1 + usize::from(of_idle),
    }
}

/// A state of each class, to ask for its stacks.
const STATES: [SpanState; CLASSES] = [
    SpanState { state: State::Running, of_idle: false },
    SpanState { state: State::Other, of_idle: false },
    SpanState { state: State::Other, of_idle: true },
];

/// Whether a name fits: the same, or with `*` for any characters.
pub(super) fn fits(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or("");
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let mut last = None;
    for part in parts {
        // What is before the last part is at its first place.
        if let Some(part) = last.replace(part) {
            let Some(at) = rest.find(part) else { return false };
            rest = &rest[at + part.len()..];
        }
    }
    last.map_or(rest.is_empty(), |last| rest.ends_with(last))
}

impl Dataset {
    /// The test of a condition; `None` for one of time or of the event.
    pub(super) fn test(&self, condition: &Condition) -> Result<Option<Test>, QueryError> {
        let negated = condition.negated;
        Ok(Some(match condition.field {
            FilterField::Time | FilterField::Event => return Ok(None),
            FilterField::Thread => {
                let threads: Vec<(String, String)> = (self.columns.threads.iter())
                    .map(|thread| (thread.tid.to_string(), self.comm(thread.comm).into_owned()))
                    .collect();
                let fit = |value: &str, (tid, name): &(String, String)| value == tid || fits(value, name);
                let table =
                    table("thread", condition, &threads, fit, |(tid, name)| format!("{name} ({tid})"))?;
                Test::Table(RowField::Thread, table)
            }
            FilterField::Process => {
                let numbers: Vec<String> =
                    self.columns.threads.iter().map(|thread| thread.pid.to_string()).collect();
                let fit = |value: &str, pid: &String| value == pid;
                Test::Table(RowField::Thread, table("process", condition, &numbers, fit, Clone::clone)?)
            }
            FilterField::Cpu => Test::List(RowField::Cpu, cpus(condition)?, negated),
            FilterField::State => {
                let states: Vec<Option<SpanState>> =
                    (0..=SpanState::COUNT as u8).map(SpanState::of_number).collect();
                let fit = |value: &str, state: &Option<SpanState>| {
                    state.is_some_and(|state| match value {
                        "idle" => state.is_idle(),
                        value => state.state.name().replace(' ', "-") == value || state.state.name() == value,
                    })
                };
                let name = |state: &Option<SpanState>| {
                    let own = state.filter(|state| !state.of_idle || state.state == State::Condition);
                    own.map_or(String::new(), |state| {
                        if state.of_idle { "idle".into() } else { state.state.name().replace(' ', "-") }
                    })
                };
                Test::Table(RowField::State, table("state", condition, &states, fit, name)?)
            }
            FilterField::Module => {
                let name = |at: u32| self.names[at as usize].module.clone();
                let wanted =
                    self.wanted("module", condition, &name, &|path| path.get(..1).unwrap_or(path))?;
                Test::Stack(wanted)
            }
            FilterField::Function => {
                let name = |at: u32| self.names[at as usize].name.clone();
                Test::Stack(self.wanted("function", condition, &name, &|path| path)?)
            }
        }))
    }

    /// The stacks that have a name which fits among those that `part` leaves of them.
    fn wanted(
        &self,
        what: &str,
        condition: &Condition,
        name: &dyn Fn(u32) -> String,
        part: &dyn Fn(&[u32]) -> &[u32],
    ) -> Result<[Vec<bool>; CLASSES], QueryError> {
        let names: Vec<String> = (0..self.names.len() as u32).map(name).collect();
        let plain = Condition { negated: false, ..condition.clone() };
        let fitting = table(what, &plain, &names, |value, name| fits(value, name), Clone::clone)?;
        let classes = if self.is_of_spans() { CLASSES } else { 1 };
        let mut path = Vec::new();
        let mut wanted: [Vec<bool>; CLASSES] = Default::default();
        for (class, wanted) in wanted.iter_mut().enumerate().take(classes) {
            for stack in 0..self.stack_count() {
                self.path(stack as u32, STATES[class].number(), &mut path);
                let found = part(&path).iter().any(|name| fitting[*name as usize]);
                wanted.push(found != condition.negated);
            }
        }
        Ok(wanted)
    }

    /// The event that a filter names, or the first that has samples. `None`: all rows are of one.
    pub(super) fn event(&self, filter: &Filter) -> Result<(Option<u32>, usize), QueryError> {
        let named = filter.conditions.iter().find(|condition| condition.field == FilterField::Event);
        let has_rows = |at: &usize| self.events[*at].samples.is_some_and(|samples| samples > 0);
        let place = |is: &dyn Fn(&str) -> bool| self.events.iter().position(|event| is(&event.name));
        let found = match named.and_then(|condition| condition.values.first()) {
            None => (0..self.events.len()).find(has_rows),
            Some(value) => {
                // `cycles` also names `cycles:u`, where no event is called exactly so.
                let at = place(&|name| name == value.text);
                let at = at.or_else(|| place(&|name| name.split(':').next() == Some(&value.text)));
                Some(at.ok_or_else(|| {
                    let names: Vec<String> = self.events().into_iter().map(|event| event.name).collect();
                    unknown("event", value, names.iter().map(String::as_str))
                })?)
            }
        };
        let at = found.unwrap_or(0);
        Ok(if self.is_of_spans() { (None, 0) } else { (Some(at as u32), at) })
    }
}

fn cpus(condition: &Condition) -> Result<Vec<u64>, QueryError> {
    let mut list = Vec::new();
    for value in &condition.values {
        let (first, last) = value.text.split_once('-').unwrap_or((&value.text, &value.text));
        match (first.parse::<u32>(), last.parse::<u32>()) {
            (Ok(first), Ok(last)) if first <= last && last < 1 << 16 => {
                list.extend((first..=last).map(u64::from));
            }
            _ => {
                let what = format!("'{}' is no CPU: write numbers or ranges, as in cpu=0,4-7", value.text);
                return Err(QueryError::Syntax { at: value.at, what });
            }
        }
    }
    Ok(list)
}

/// Which of the things fit a condition. A value that fits none is an error, unless it is to fit
/// none.
fn table<T>(
    what: &str,
    condition: &Condition,
    things: &[T],
    fit: impl Fn(&str, &T) -> bool,
    name: impl Fn(&T) -> String,
) -> Result<Vec<bool>, QueryError> {
    let mut table = vec![condition.negated; things.len()];
    for value in &condition.values {
        let mut found = false;
        for (place, _) in table.iter_mut().zip(things).filter(|(_, thing)| fit(&value.text, thing)) {
            (*place, found) = (!condition.negated, true);
        }
        if !found {
            let names: Vec<String> = things.iter().map(&name).filter(|name| !name.is_empty()).collect();
            return Err(unknown(what, value, names.iter().map(String::as_str)));
        }
    }
    Ok(table)
}

/// That there is no such thing, and what there is.
pub(super) fn unknown<'a>(
    what: &str,
    value: &FilterValue,
    names: impl Iterator<Item = &'a str>,
) -> QueryError {
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    names.dedup();
    if what == "event" && value.text == WALL_TIME {
        let what = "the recording does not tell where threads waited: record with `kymo record --wall`";
        return QueryError::NotRecorded(what.into());
    }
    let near = near(&names, value.text.trim_matches('*'));
    let (begin, listed) = match (near.is_empty(), names.is_empty()) {
        (_, true) => return QueryError::Unknown(format!("the recording has no {what} at all")),
        (false, _) => ("like it are", near),
        (true, _) => ("there are", names),
    };
    let count = if listed.len() <= 2 * MOST_NAMES { listed.len() } else { MOST_NAMES };
    let more = listed.len() - count;
    let tail = if more > 0 { format!(" and {more} more") } else { String::new() };
    let quoted = crate::text::shown(&value.text).into_owned();
    let list = crate::text::shown(&listed[..count].join(", ")).into_owned();
    let place = match value.at {
        0 => String::new(),
        at => format!(", which stands at character {at} of the query"),
    };
    QueryError::Unknown(format!("no {what} is called '{quoted}'{place}: {begin} {list}{tail}"))
}

/// The names that have the word in them; else those that begin as it does for the longest.
fn near<'a>(names: &[&'a str], word: &str) -> Vec<&'a str> {
    let lower = word.to_lowercase();
    let has = |name: &&&str| !word.is_empty() && name.to_lowercase().contains(&lower);
    let with_word: Vec<&str> = names.iter().filter(has).copied().collect();
    if !with_word.is_empty() {
        return with_word;
    }
    let common = |name: &&str| name.chars().zip(word.chars()).take_while(|(a, b)| a == b).count();
    let most = names.iter().map(common).max().unwrap_or(0);
    let begins = |name: &&&str| most >= LEAST_COMMON && common(name) == most;
    names.iter().filter(begins).copied().collect()
}
