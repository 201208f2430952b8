//! Errors of a selector: a sentence, the place in the text, and a suggestion.

use std::ops::Range;

/// A range of bytes in the selector's text, on character boundaries.
pub(crate) type Span = Range<usize>;

/// The text is not a selector. Its `Display` shows the text with a caret line under the fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", pointed(message, input, span, hint.as_deref()))]
pub struct SyntaxError {
    /// The whole text.
    pub input: String,
    /// The part that is wrong; empty at a place where something is missing.
    pub span: Span,
    /// What is wrong, one sentence without the place.
    pub message: String,
    /// What to write instead, one sentence.
    pub hint: Option<String>,
}

/// Why a well-formed selector does not fit this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResolveErrorKind {
    /// No PMU, tracepoint or event of that name.
    Unknown,
    /// The name exists, but tracefs is not mounted.
    TracefsNotMounted,
    /// tracefs is mounted, but this user may not read it.
    TracefsUnreadable,
    /// A term is unknown, lacks a value, or its value does not fit.
    BadTerm,
    /// perf knows the name, but it cannot be recorded.
    NotRecordable,
    /// A file of sysfs or tracefs could not be read or understood.
    BrokenSystemFile,
}

/// The text is a selector, but this machine cannot serve it. Its `Display` shows the text with a
/// caret line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", pointed(message, input, span, hint.as_deref()))]
pub struct ResolveError {
    /// What kind of failure, for a program to act on.
    pub kind: ResolveErrorKind,
    /// The whole text.
    pub input: String,
    /// The part that cannot be served.
    pub span: Span,
    /// What is wrong, one sentence without the place.
    pub message: String,
    /// What to do: a near name, or the command that helps.
    pub hint: Option<String>,
}

/// How many characters of the text to show around the fault.
const WINDOW: usize = 96;

fn pointed(message: &str, input: &str, span: &Span, hint: Option<&str>) -> String {
    let mut text = message.to_owned();
    if !input.is_empty() {
        // One column per character: tabs and other controls would move the caret, so they are shown
        // as spaces.
        let before = input.get(..span.start).unwrap_or(input).chars().count();
        let marked = input.get(span.clone()).unwrap_or("").chars().count().max(1);
        let skip = if before + marked > WINDOW { before.saturating_sub(WINDOW / 2) } else { 0 };
        let shown: String =
            input.chars().skip(skip).take(WINDOW).map(|c| if c.is_control() { ' ' } else { c }).collect();
        let lead = if skip > 0 { ".." } else { "" };
        let tail = if input.chars().count() > skip + WINDOW { ".." } else { "" };
        text += &format!("\n  {lead}{}{tail}", shown.trim_end());
        let column = before - skip + lead.len();
        let width = marked.min((WINDOW + lead.len()).saturating_sub(column)).max(1);
        text += &format!("\n  {:column$}{}", "", "^".repeat(width));
    }
    text + &hint.map_or(String::new(), |hint| format!("\n  {hint}"))
}
