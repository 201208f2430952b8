//! Parses a selector by recursive descent.

use super::error::{Span, SyntaxError};
use super::syntax::{Access, EventGroup, EventSelector, Head, ModifierFault, Modifiers, Term, TermValue};
use super::{cache, names};
use crate::suggest::nearest;
use std::sync::Arc;

/// Texts longer than this are refused; no command line comes near.
const INPUT_LIMIT_BYTES: usize = 1 << 20;

const MODIFIER_HELP: &str = "modifiers are u (user), k (kernel), h (hypervisor), H (host), G (guest), I (not idle), p pp ppp P \
     (precise), S (read group), D (pinned), W (weak), e (exclusive)";

/// Reads a list of events and groups as `perf record -e` takes it. Knows nothing about the machine.
///
/// # Errors
/// [`SyntaxError`] with the place of the first fault.
pub fn parse(input: &str) -> Result<Vec<EventGroup>, SyntaxError> {
    let mut parser = Parser { text: input, at: 0, input: Arc::from(input) };
    if input.len() > INPUT_LIMIT_BYTES {
        let message =
            format!("the event list is {} bytes long; at most {INPUT_LIMIT_BYTES} are read", input.len());
        return Err(SyntaxError { input: String::new(), span: 0..0, message, hint: None });
    }
    parser.groups()
}

/// Reads a list of terms, such as a PMU's ready-made event has.
pub(crate) fn parse_terms(input: &str) -> Result<Vec<Term>, SyntaxError> {
    let mut parser = Parser { text: input, at: 0, input: Arc::from(input) };
    let terms = parser.terms(&[])?;
    match parser.peek() {
        None => Ok(terms),
        Some(_) => Err(parser.unexpected("a comma or the end")),
    }
}

struct Parser<'a> {
    text: &'a str,
    /// Byte offset of the next character.
    at: usize,
    input: Arc<str>,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn bump(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn eat(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        if found {
            self.at += wanted.len_utf8();
        }
        found
    }

    fn spaces(&mut self) {
        while self.peek().is_some_and(char::is_whitespace) {
            self.bump();
        }
    }

    fn take(&mut self, wanted: impl Fn(char) -> bool) -> &'a str {
        let start = self.at;
        while self.peek().is_some_and(&wanted) {
            self.bump();
        }
        &self.text[start..self.at]
    }

    fn error(&self, span: Span, message: impl Into<String>) -> SyntaxError {
        SyntaxError { input: self.text.to_owned(), span, message: message.into(), hint: None }
    }

    fn error_with(&self, span: Span, message: impl Into<String>, hint: impl Into<String>) -> SyntaxError {
        SyntaxError { hint: Some(hint.into()), ..self.error(span, message) }
    }

    /// The fault "something else was expected at this character".
    fn unexpected(&self, wanted: &str) -> SyntaxError {
        match self.peek() {
            Some(c) => self.error(self.at..self.at + c.len_utf8(), format!("expected {wanted}, found `{c}`")),
            None => self.error(self.at..self.at, format!("expected {wanted}, found the end")),
        }
    }

    fn groups(&mut self) -> Result<Vec<EventGroup>, SyntaxError> {
        let mut groups = Vec::new();
        loop {
            self.spaces();
            groups.push(self.group()?);
            self.spaces();
            if self.eat(',') {
                continue;
            }
            match self.peek() {
                None => return Ok(groups),
                Some('}') => return Err(self.error(self.at..self.at + 1, "this `}` closes no group")),
                Some(_) => return Err(self.unexpected("a comma or the end")),
            }
        }
    }

    fn group(&mut self) -> Result<EventGroup, SyntaxError> {
        let start = self.at;
        let name = self.take(name_char);
        if self.peek() != Some('{') {
            self.at = start;
            let event = self.event()?;
            return Ok(EventGroup {
                input: Arc::clone(&self.input),
                name: None,
                braced: false,
                span: event.span.clone(),
                events: vec![event],
                modifiers: Modifiers::default(),
            });
        }
        let opening = self.at;
        self.bump();
        let mut events = Vec::new();
        loop {
            self.spaces();
            if self.peek() == Some('{') {
                return Err(self.error(self.at..self.at + 1, "a group cannot hold another group"));
            }
            events.push(self.event()?);
            self.spaces();
            if self.eat(',') {
                continue;
            }
            if self.eat('}') {
                break;
            }
            return Err(match self.peek() {
                None => {
                    self.error_with(opening..opening + 1, "this group is not closed", "add `}` at its end")
                }
                Some(_) => self.unexpected("a comma or `}`"),
            });
        }
        let modifiers = if self.eat(':') { self.modifiers()? } else { Modifiers::default() };
        Ok(EventGroup {
            input: Arc::clone(&self.input),
            name: (!name.is_empty()).then(|| name.to_owned()),
            braced: true,
            events,
            modifiers,
            span: start..self.at,
        })
    }

    fn event(&mut self) -> Result<EventSelector, SyntaxError> {
        let start = self.at;
        let (head, colon_used) = self.head()?;
        let head_end = self.at;
        // A colon behind a name was looked at to tell `cycles:u` from `sched:sched_switch`; it is
        // not taken yet.
        let terms = if !colon_used && self.eat('/') { Some(self.slashed(head_end)?) } else { None };
        let modifiers = match (&terms, self.peek()) {
            (_, Some(':')) => {
                self.bump();
                self.modifiers()?
            }
            (Some(_), Some(c)) if c.is_ascii_alphabetic() => self.modifiers()?,
            _ => Modifiers::default(),
        };
        Ok(EventSelector {
            head,
            terms,
            modifiers,
            text: self.text[start..self.at].to_owned(),
            span: start..self.at,
            head_span: start..head_end,
        })
    }

    /// Reads what the event names. The flag says that a colon follows, so no slash can.
    fn head(&mut self) -> Result<(Head, bool), SyntaxError> {
        let start = self.at;
        let word = self.take(name_char);
        if word.is_empty() {
            return Err(match self.peek() {
                Some('/') => self.error(self.at..self.at + 1, "a PMU's name is missing before the slash"),
                _ => self.unexpected("an event's name"),
            });
        }
        if word == "mem" && self.peek() == Some(':') {
            self.bump();
            return Ok((self.breakpoint()?, false));
        }
        let behind = self.text[self.at..].strip_prefix(':');
        let second = behind.map(|behind| &behind[..behind.find(|c| !name_char(c)).unwrap_or(behind.len())]);
        if let (Some(kind), Some(config)) = (number(word), second) {
            let span = self.at + 1..self.at + 1 + config.len();
            let kind = u32::try_from(kind)
                .map_err(|_| self.error(start..self.at, format!("`{word}` is not a PMU type number")))?;
            let config = number(config)
                .ok_or_else(|| self.error(span.clone(), format!("`{config}` is not an event number")))?;
            self.at = span.end;
            return Ok((Head::Numeric { kind, config }, false));
        }
        // `cycles:u` is an event with a modifier, `sched:sched_switch` a tracepoint,
        // `9p:9p_client_req` too.
        let is_modifiers = second.is_some_and(|second| second.is_empty() || second.chars().all(is_modifier));
        let is_known = names::find(word).is_some() || cache::parse(word).is_some();
        if let Some(config) = raw(word) {
            // `rad:some_event` is no event number with wrong modifiers.
            let is_word = word.bytes().all(|b| b.is_ascii_alphabetic());
            if second.is_none() || is_modifiers || !is_word {
                return Ok((Head::Raw(config), second.is_some()));
            }
        }
        match second {
            Some(second) if !is_known && !is_modifiers => {
                self.at += 1 + second.len();
                Ok((Head::Tracepoint { system: word.to_owned(), event: second.to_owned() }, false))
            }
            _ => Ok((Head::Name(word.to_owned()), second.is_some())),
        }
    }

    /// Reads behind `mem:`.
    fn breakpoint(&mut self) -> Result<Head, SyntaxError> {
        let addr = self.number("an address such as 0x601040")?;
        let mut len = None;
        // Both a length and terms begin with a slash; a length is digits up to the next separator.
        if let Some(behind) = self.text[self.at..].strip_prefix('/')
            && behind.starts_with(|c: char| c.is_ascii_digit())
        {
            self.bump();
            let start = self.at;
            let value = self.number("a length in bytes")?;
            if !matches!(value, 1..=8) {
                return Err(self.error_with(
                    start..self.at,
                    format!("a watchpoint cannot be {value} bytes long"),
                    "use 1, 2, 4 or 8",
                ));
            }
            len = Some(value);
        }
        let mut access = None;
        if let Some(behind) = self.text[self.at..].strip_prefix(':')
            && behind.starts_with(['r', 'w', 'x'])
        {
            self.bump();
            access = Some(self.access()?);
        }
        Ok(Head::Breakpoint { addr, len, access })
    }

    fn access(&mut self) -> Result<Access, SyntaxError> {
        let mut access = Access::default();
        let start = self.at;
        while let Some(c) = self.peek().filter(|c| name_char(*c)) {
            let flag = match c {
                'r' => &mut access.read,
                'w' => &mut access.write,
                'x' => &mut access.execute,
                _ => {
                    let message = format!("`{c}` is not a kind of access");
                    let hint = "use r (read), w (write), x (execute); modifiers follow after another colon";
                    return Err(self.error_with(self.at..self.at + c.len_utf8(), message, hint));
                }
            };
            if std::mem::replace(flag, true) {
                return Err(self.error(self.at..self.at + 1, format!("`{c}` is given twice")));
            }
            self.bump();
        }
        if access.execute && (access.read || access.write) {
            let message = "a breakpoint stops either at execution or at reads and writes, not at both";
            return Err(self.error_with(
                start..self.at,
                message,
                "use two events, one with `:x` and one with `:rw`",
            ));
        }
        Ok(access)
    }

    fn number(&mut self, what: &str) -> Result<u64, SyntaxError> {
        let start = self.at;
        let word = self.take(name_char);
        if word.is_empty() {
            return Err(self.unexpected(what));
        }
        number(word).ok_or_else(|| self.error(start..self.at, format!("`{word}` is not {what}")))
    }

    fn modifiers(&mut self) -> Result<Modifiers, SyntaxError> {
        let mut modifiers = Modifiers::default();
        let start = self.at;
        while let Some(c) = self.peek().filter(|c| name_char(*c) || *c == ':' || *c == '/') {
            let span = self.at..self.at + c.len_utf8();
            match modifiers.set(c) {
                Ok(()) => self.bump(),
                Err(ModifierFault::Repeated) if c == 'p' => {
                    return Err(self.error(span, "at most three `p` can be given"));
                }
                Err(ModifierFault::Repeated) => {
                    return Err(self.error(span, format!("the modifier `{c}` is given twice")));
                }
                Err(ModifierFault::Unknown) if c == '/' => {
                    return Err(self.error_with(
                        span,
                        "terms must come before the modifiers",
                        "write `event/terms/modifiers`",
                    ));
                }
                Err(ModifierFault::Unknown) => {
                    return Err(self.error_with(span, format!("`{c}` is not a modifier"), MODIFIER_HELP));
                }
            };
        }
        if self.at == start {
            return Err(SyntaxError { hint: Some(MODIFIER_HELP.into()), ..self.unexpected("a modifier") });
        }
        Ok(modifiers)
    }

    /// Reads terms up to the closing slash; the opening one is behind us, at `opening`.
    fn slashed(&mut self, opening: usize) -> Result<Vec<Term>, SyntaxError> {
        let terms = self.terms(&['/'])?;
        if self.eat('/') {
            return Ok(terms);
        }
        Err(match self.peek() {
            None => self.error_with(opening..opening + 1, "the terms are not closed", "add `/` at their end"),
            Some(_) => self.unexpected("a comma or `/`"),
        })
    }

    fn terms(&mut self, closing: &[char]) -> Result<Vec<Term>, SyntaxError> {
        let mut terms = Vec::new();
        self.spaces();
        if self.peek().is_none_or(|c| closing.contains(&c)) {
            return Ok(terms);
        }
        loop {
            self.spaces();
            terms.push(self.term()?);
            self.spaces();
            if !self.eat(',') {
                return Ok(terms);
            }
        }
    }

    fn term(&mut self) -> Result<Term, SyntaxError> {
        let start = self.at;
        if self.peek() == Some('@') {
            return Err(self.error(
                start..start + 1,
                "driver configuration terms (`@...`) are for AUX tracing, which kymo does not record",
            ));
        }
        let name = self.take(name_char);
        if name.is_empty() {
            return Err(self.unexpected("a term"));
        }
        let span = start..self.at;
        if !self.eat('=') {
            return Ok(Term { name: name.to_owned(), value: None, span, value_span: self.at..self.at });
        }
        let from = self.at;
        let value = if self.eat('\'') {
            let quoted = self.take(|c| c != '\'' && !c.is_control());
            if !self.eat('\'') {
                return Err(self.error(from..from + 1, "this quote is not closed"));
            }
            TermValue::Quoted(quoted.to_owned())
        } else {
            let word = self.take(|c| name_char(c) || c == ':');
            if word.is_empty() {
                return Err(self.unexpected(&format!("a value for `{name}`")));
            }
            match number(word) {
                // A name stays as typed, `007` too.
                _ if name == "name" => TermValue::Word(word.to_owned()),
                Some(value) => TermValue::Number(value),
                None if word.starts_with(|c: char| c.is_ascii_digit()) => {
                    return Err(
                        self.error(from..self.at, format!("`{word}` is not a number that fits 64 bits"))
                    );
                }
                None => TermValue::Word(word.to_owned()),
            }
        };
        Ok(Term { name: name.to_owned(), value: Some(value), span, value_span: from..self.at })
    }
}

/// Characters of names, terms, globs and numbers: everything that is no separator of the grammar.
fn name_char(c: char) -> bool {
    !matches!(c, ',' | '{' | '}' | '/' | ':' | '=' | '\'' | '"' | '@')
        && !c.is_whitespace()
        && !c.is_control()
}

pub(crate) fn is_modifier(c: char) -> bool {
    "ukhIGHpPSDWeb".contains(c)
}

/// A decimal number, or a hexadecimal one with `0x`.
fn number(word: &str) -> Option<u64> {
    match word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
        Some(digits) if digits.bytes().all(|b| b.is_ascii_hexdigit()) => u64::from_str_radix(digits, 16).ok(),
        Some(_) => None,
        None if word.bytes().all(|b| b.is_ascii_digit()) => word.parse().ok(),
        None => None,
    }
}

/// `rNNN`, hexadecimal, with or without `0x`.
fn raw(word: &str) -> Option<u64> {
    let digits = word.strip_prefix('r')?;
    let digits = digits.strip_prefix("0x").unwrap_or(digits);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u64::from_str_radix(digits, 16).ok()
}

/// The known name nearest to `name`, as a hint.
pub(crate) fn did_you_mean<'a>(name: &str, more: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let candidates: Vec<String> = names::spellings()
        .map(str::to_owned)
        .chain(cache::all().map(|(name, _)| name))
        .chain(more.into_iter().map(str::to_owned))
        .collect();
    nearest(name, candidates.iter().map(String::as_str)).map(|near| format!("did you mean `{near}`?"))
}
