//! Lists of expressions: as typed in parentheses, and all that a function takes.

use super::super::field;
use super::super::request::Expr;
use super::super::syntax;
use super::super::types::Shape;
use super::error::CallError;
use super::fetch::{Fetch, Spot};
use super::routine::Routine;

/// Fields of one record that are shown with it.
const MOST_FIELDS: usize = 16;
/// Expressions of one list.
const MOST_PARTS: usize = 32;

/// One expression of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// What it is to be called; as it is written, unless `name=` stands before it.
    pub name: String,
    /// The expression.
    pub expression: String,
}

/// Takes `func(a, b->c, n=*count)` apart: the function, and the list. Nothing if the text ends with no list: `operator()` and `(anonymous namespace)` are names.
pub fn arguments(text: &str) -> Option<(&str, Vec<Part>)> {
    let body = text.trim_end().strip_suffix(')')?;
    let bytes = body.as_bytes();
    let (mut depth, mut open) = (0usize, None);
    for (at, &byte) in bytes.iter().enumerate().rev() {
        match byte {
            b')' => depth += 1,
            b'(' if depth == 0 => {
                open = Some(at);
                break;
            }
            b'(' => depth -= 1,
            _ => {}
        }
    }
    let open = open?;
    let (name, inside) = (body[..open].trim_end(), &body[open + 1..]);
    if name.is_empty()
        || name.ends_with("operator")
        || name.ends_with("::")
        || inside.trim() == "anonymous namespace"
    {
        return None;
    }
    let mut parts = Vec::new();
    let (mut depth, mut from) = (0i32, 0);
    for (at, byte) in inside.bytes().chain([b',']).enumerate() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth -= 1,
            b',' if depth <= 0 || at == inside.len() => {
                parts.push(part(inside[from..at].trim()));
                from = (at + 1).min(inside.len());
            }
            _ => {}
        }
    }
    if parts.len() == 1 && parts[0].expression.is_empty() {
        parts.clear();
    }
    parts.truncate(MOST_PARTS);
    Some((name, parts))
}

fn part(text: &str) -> Part {
    match text.split_once('=') {
        Some((name, expression)) => {
            Part { name: name.trim().to_owned(), expression: expression.trim().to_owned() }
        }
        None => Part { name: text.to_owned(), expression: text.to_owned() },
    }
}

/// A value, or the fields of a record.
fn whole(routine: &Routine<'_>, spot: &Spot, name: &str) -> Result<Vec<Fetch>, CallError> {
    let error = match routine.finish(spot, name) {
        Ok(fetch) => return Ok(vec![fetch]),
        Err(error) => error,
    };
    let is_record = spot.kind.shape(&routine.reader) == Shape::Record;
    let (CallError::Large { .. }, Some(die), true) = (&error, spot.kind.die, is_record) else {
        return Err(error);
    };
    let mut found = Vec::new();
    // `*p` has the fields `p->x`.
    let plain = name.strip_prefix('*').filter(|rest| !rest.contains(['(', '.', '[', '-', '>', '*']));
    let before = plain.map_or_else(|| format!("{name}."), |pointer| format!("{pointer}->"));
    for field in field::names(&routine.reader, die).into_iter().take(MOST_FIELDS) {
        let full = format!("{before}{field}");
        let Ok(Some(inner)) = routine.field_of(spot, name, &field) else { continue };
        found.extend(routine.finish(&inner, &full).ok());
    }
    if found.is_empty() { Err(error) } else { Ok(found) }
}

impl Routine<'_> {
    /// As [`fetch`](Routine::fetch); a record becomes its fields, each by its name.
    ///
    /// # Errors
    /// As [`fetch`](Routine::fetch).
    pub fn fetch_all(&self, text: &str) -> Result<Vec<Fetch>, CallError> {
        whole(self, &self.spot(&syntax::expression(text)?)?, text)
    }

    /// What `--args` shows of a call: every parameter that can be read, records by their fields;
    /// and those that cannot, with the reason.
    pub fn everything(&self) -> Vec<Result<Fetch, CallError>> {
        let mut found = Vec::new();
        for name in self.names() {
            let tree = Expr::Name { file: None, path: name.clone() };
            match self.spot(&tree).and_then(|spot| whole(self, &spot, &name)) {
                Ok(fetches) => found.extend(fetches.into_iter().map(Ok)),
                Err(error) => found.push(Err(error)),
            }
            if found.len() >= MOST_PARTS {
                break;
            }
        }
        found.truncate(MOST_PARTS);
        found
    }
}
