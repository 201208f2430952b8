//! The text of queries: `top 20 by self where thread=1234 and time=1.5..2.5 and module=libc.so.6`.
//!
//! ```text
//! query     = verb [ "where" condition { "and" condition } ]
//! verb      = "top" [ N ] [ "functions" | "modules" | "threads" | "processes" | "cpus" | "states" ]
//!                   [ "by" ( "self" | "total" ) ]
//!           | ( "tree" | "inverted" ) [ P "%" ]
//!           | ( "callers" | "callees" ) [ "of" ] NAME [ P "%" ]
//!           | "annotate" NAME
//!           | "timeline" [ N ] [ "by" ( "thread" | "cpu" | "state" ) ]
//!           | "heatmap" [ N ]
//!           | "waits" [ N ]  |  "events"
//! condition = field ( "=" | "!=" ) value { "," value }
//! field     = "time" | "thread" | "process" | "cpu" | "state" | "event" | "module" | "function"
//! ```
//! A value with spaces, commas or equal signs stands in double quotes.
use super::filter::{Condition, Filter, FilterField, FilterValue};
use super::{GroupBy, LaneKey, Query, QueryError, Verb, Weight};
use crate::load::TimeSpans;
use kymo_data::Recording;

/// Rows of a table, where a query does not say how many.
const ROWS: usize = 20;
/// Tiles of a timeline.
const TILES: u32 = 60;
const MOST_TILES: u32 = 4096;
/// Parts into which a heat map divides a second.
const HEAT_ROWS: u32 = 50;
const MOST_HEAT_ROWS: u32 = 1000;
/// Nodes of a tree with less are left out, percent.
const LEAST_PERCENT: f64 = 1.0;

const VERBS: &str = "top, tree, inverted, callers, callees, annotate, timeline, heatmap, waits and events";

/// A piece of a query.
#[derive(Clone, Debug, PartialEq)]
struct Token {
    text: String,
    /// Which character it begins with, from 1 on.
    at: usize,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Word,
    Quoted,
    Sign,
}

fn wrong<T>(at: usize, what: impl Into<String>) -> Result<T, QueryError> {
    Err(QueryError::Syntax { at, what: what.into() })
}

fn tokens(text: &str) -> Result<Vec<Token>, QueryError> {
    let mut tokens: Vec<Token> = Vec::new();
    let mut chars = text.chars().zip(1..).peekable();
    while let Some((char, at)) = chars.next() {
        let mut token = Token { text: char.to_string(), at, kind: Kind::Word };
        match char {
            char if char.is_whitespace() => continue,
            '"' => {
                token.text.clear();
                token.kind = Kind::Quoted;
                loop {
                    match chars.next() {
                        Some(('"', _)) => break,
                        Some((char, _)) => token.text.push(char),
                        None => return wrong(at, "a quote begins here and does not end"),
                    }
                }
            }
            '=' | ',' => token.kind = Kind::Sign,
            '!' if chars.next_if(|(next, _)| *next == '=').is_some() => {
                token.text.push('=');
                token.kind = Kind::Sign;
            }
            _ => {
                let is_of_word = |char: &char| !(char.is_whitespace() || "=,\"".contains(*char));
                while let Some((char, _)) = chars.next_if(|(char, _)| is_of_word(char)) {
                    // `!=` ends a word, a `!` alone is of it.
                    if char == '!' && chars.peek().is_some_and(|(next, _)| *next == '=') {
                        chars.next();
                        tokens.push(token.clone());
                        let at = token.at + token.text.chars().count();
                        token = Token { text: "!=".into(), at, kind: Kind::Sign };
                        break;
                    }
                    token.text.push(char);
                }
            }
        }
        tokens.push(token);
    }
    Ok(tokens)
}

/// Reads a query. Times that are parts of the recording ask it for its first and last moment.
///
/// # Errors
/// When the text is no query: what is wrong, where, and what may stand there.
pub fn parse(text: &str, recording: &Recording) -> Result<Query, QueryError> {
    let end = text.chars().count() + 1;
    let mut words = TokenReader { tokens: tokens(text)?, next: 0, end, recording };
    let verb = words.verb()?;
    let mut filter = Filter::default();
    match words.word() {
        None => {}
        Some(token) if token.text == "where" => loop {
            filter.conditions.push(words.condition()?);
            match words.word() {
                None => break,
                Some(token) if token.text == "and" => {}
                Some(Token { text, at, .. }) => {
                    return wrong(at, format!("'{text}' follows a condition: expected 'and', or the end"));
                }
            }
        },
        Some(Token { text, at, .. }) => {
            return wrong(
                at,
                format!("'{text}' is not understood after the verb: expected 'where', or the end"),
            );
        }
    }
    one_event(&filter)?;
    Ok(Query { verb, filter })
}

/// A query is about one event.
fn one_event(filter: &Filter) -> Result<(), QueryError> {
    let events = filter.conditions.iter().filter(|condition| condition.field == FilterField::Event);
    let mut values = events.flat_map(|condition| &condition.values);
    match (values.next(), values.next()) {
        (_, Some(second)) => wrong(
            second.at,
            format!(
                "'{}' is a second event, and periods of two events cannot be added: ask twice",
                second.text
            ),
        ),
        _ => Ok(()),
    }
}

struct TokenReader<'a> {
    tokens: Vec<Token>,
    next: usize,
    /// One past the last character.
    end: usize,
    recording: &'a Recording,
}

impl TokenReader<'_> {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.next)
    }

    fn word(&mut self) -> Option<Token> {
        let token = self.peek().cloned();
        self.next += 1;
        token
    }

    /// Takes the next word if it is this one.
    fn takes(&mut self, text: &str) -> bool {
        let is = self.peek().is_some_and(|token| token.kind == Kind::Word && token.text == text);
        self.next += usize::from(is);
        is
    }

    /// Takes the next word if it is a number.
    fn number(&mut self, most: u32) -> Result<Option<u32>, QueryError> {
        let Some(token) = self.peek() else { return Ok(None) };
        if !token.text.bytes().all(|byte| byte.is_ascii_digit()) || token.kind != Kind::Word {
            return Ok(None);
        }
        match token.text.parse() {
            Ok(number) if (1..=most).contains(&number) => {
                self.next += 1;
                Ok(Some(number))
            }
            _ => wrong(token.at, format!("'{}' is out of range: expected 1 to {most}", token.text)),
        }
    }

    /// Takes the next word if it is a share, such as `0.5%`.
    fn percent(&mut self) -> Result<f64, QueryError> {
        let Some(Token { text, at, .. }) = self.peek() else { return Ok(LEAST_PERCENT) };
        let Some(number) = text.strip_suffix('%') else { return Ok(LEAST_PERCENT) };
        match number.parse() {
            Ok(number) if (0.0..=100.0).contains(&number) => {
                self.next += 1;
                Ok(number)
            }
            _ => wrong(*at, format!("'{text}' is no share: expected 0% to 100%")),
        }
    }

    /// The word after `by`, if there is one.
    fn by<T: Copy>(&mut self, list: &[(&str, T)], default: T) -> Result<T, QueryError> {
        if !self.takes("by") {
            return Ok(default);
        }
        let names: Vec<&str> = list.iter().map(|(name, _)| *name).collect();
        let (text, at) = self.word().map_or((String::new(), self.end), |token| (token.text, token.at));
        match list.iter().find(|(name, _)| *name == text) {
            Some((_, value)) => Ok(*value),
            None => wrong(at, format!("'{text}' follows 'by': expected {}", names.join(" or "))),
        }
    }

    fn verb(&mut self) -> Result<Verb, QueryError> {
        let Some(Token { text, at, .. }) = self.word() else {
            return wrong(1, format!("the query is empty: the verbs are {VERBS}"));
        };
        Ok(match &text[..] {
            "top" => self.top()?,
            "tree" | "inverted" => {
                let inverted = text == "inverted" || self.takes("inverted");
                Verb::Tree { inverted, least_percent: self.percent()? }
            }
            "callers" | "callees" => {
                self.takes("of");
                let name = self.word().filter(|token| token.kind != Kind::Sign);
                let Some(Token { text: name, at, .. }) = name else {
                    return wrong(self.end, format!("the name of a function is missing: {text} of NAME"));
                };
                let function = FilterValue { text: name, at };
                let least_percent = self.percent()?;
                match &text[..] {
                    "callers" => Verb::Callers { function, least_percent },
                    _ => Verb::Callees { function, least_percent },
                }
            }
            "annotate" => {
                let name = self.word().filter(|token| token.kind != Kind::Sign);
                let Some(Token { text: name, at, .. }) = name else {
                    return wrong(self.end, "the name of a function is missing: annotate NAME");
                };
                Verb::Annotate { function: FilterValue { text: name, at } }
            }
            "timeline" => {
                let tiles = self.number(MOST_TILES)?.unwrap_or(TILES);
                let lanes = [("thread", LaneKey::Thread), ("cpu", LaneKey::Cpu), ("state", LaneKey::State)];
                Verb::Timeline { lanes: self.by(&lanes, LaneKey::All)?, tiles }
            }
            "heatmap" => Verb::HeatMap { rows: self.number(MOST_HEAT_ROWS)?.unwrap_or(HEAT_ROWS) },
            "waits" => Verb::Waits { count: self.number(u32::MAX)?.map_or(ROWS, |count| count as usize) },
            "events" => Verb::Events,
            _ => return wrong(at, format!("'{text}' is no verb: the verbs are {VERBS}")),
        })
    }

    fn top(&mut self) -> Result<Verb, QueryError> {
        let mut count = self.number(u32::MAX)?;
        let groups = [
            ("functions", GroupBy::Functions),
            ("modules", GroupBy::Modules),
            ("threads", GroupBy::Threads),
            ("processes", GroupBy::Processes),
            ("cpus", GroupBy::Cpus),
            ("states", GroupBy::States),
        ];
        let group = groups.iter().find(|(word, _)| self.takes(word)).map_or(GroupBy::Functions, |(_, g)| *g);
        let by = self.by(&[("self", Weight::Own), ("total", Weight::Total)], Weight::Own)?;
        if count.is_none() {
            count = self.number(u32::MAX)?;
        }
        Ok(Verb::Top { group, count: count.map_or(ROWS, |count| count as usize), by })
    }

    fn condition(&mut self) -> Result<Condition, QueryError> {
        let names = || FilterField::ALL.map(|(name, _)| name).join(", ");
        let Some(Token { text, at, .. }) = self.word() else {
            return wrong(self.end, format!("a condition is missing: the fields are {}", names()));
        };
        let Some((_, field)) = FilterField::ALL.into_iter().find(|(name, _)| *name == text) else {
            return wrong(at, format!("'{text}' is no field: the fields are {}", names()));
        };
        let sign = self.word();
        let negated = match &sign {
            Some(token) if token.kind == Kind::Sign && token.text == "=" => false,
            Some(token) if token.kind == Kind::Sign && token.text == "!=" => true,
            _ => {
                let at = sign.map_or(self.end, |token| token.at);
                return wrong(at, format!("expected = or != after {text}"));
            }
        };
        let mut condition = Condition { field, negated, values: Vec::new(), spans: Vec::new() };
        loop {
            let value = self.word().filter(|token| token.kind != Kind::Sign);
            let Some(Token { text: value, at, .. }) = value else {
                return wrong(self.end, format!("a value of {text} is missing"));
            };
            if field == FilterField::Time {
                let span = TimeSpans::parse_range(&value, self.recording);
                condition.spans.push(span.or_else(|error| wrong(at, error.to_string()))?);
            }
            if field == FilterField::Event && negated {
                return wrong(at, "a query is about one event: write event=NAME");
            }
            condition.values.push(FilterValue { text: value, at });
            if !self.peek().is_some_and(|token| token.kind == Kind::Sign && token.text == ",") {
                return Ok(condition);
            }
            self.next += 1;
        }
    }
}
