//! What a person types to name sites.

use std::fmt;

use crate::place::call::{self, Part};

/// Where to put probes, as typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeSelector {
    /// The whole text, for messages.
    pub text: String,
    /// Which modules: a file name, a part of it, a path, or a glob; `None`: the program itself (for markers: any module).
    pub module: Option<String>,
    /// Which places in them.
    pub place: Place,
    /// The return is meant, not the entry (`%return` at the end, as in perf).
    pub returns: bool,
    /// Expressions over what the function takes and returns, in parentheses behind its name: `parse(req->uri, len)`.
    pub arguments: Option<Vec<Part>>,
}

/// Places in a module.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of most fields say what they are")]
pub enum Place {
    /// Functions by name, where `*` stands for anything and `?` for one character; then so many bytes into them.
    Function { glob: String, offset: u64 },
    /// The first instruction of a source line, in each function that has code of it.
    Line {
        /// The end of the file's path, in whole names.
        file: String,
        /// Counted from 1.
        line: u32,
    },
    /// An offset in the file.
    Offset(u64),
    /// Markers compiled into the program (USDT), by globs.
    Marker { provider: String, name: String },
}

/// The text names no site.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is no probe: {why}; write FUNCTION, LIB.so:FUNCTION*, FILE.c:LINE, LIB.so:0xOFFSET or usdt:PROVIDER:NAME"
)]
pub struct SelectorError {
    /// As typed.
    pub text: String,
    /// What is wrong with it.
    pub why: &'static str,
}

/// Longer texts are no names.
const LONGEST: usize = 4096;

impl ProbeSelector {
    /// Reads what was typed. Knows nothing of any program.
    ///
    /// # Errors
    /// [`SelectorError`] says what is missing.
    pub fn parse(text: &str) -> Result<ProbeSelector, SelectorError> {
        let wrong = |why| SelectorError { text: text.chars().take(200).collect(), why };
        if text.len() > LONGEST {
            return Err(wrong("it is too long"));
        }
        let (body, returns) = match text.strip_suffix("%return") {
            Some(body) => (body, true),
            None => (text, false),
        };
        let (body, arguments) = match call::arguments(body) {
            Some((body, parts)) => (body, Some(parts)),
            None => (body, None),
        };
        let made = |module: Option<&str>, place| ProbeSelector {
            text: text.to_owned(),
            module: module.map(str::to_owned),
            place,
            returns,
            arguments: arguments.clone(),
        };
        if let Some(marker) = body.strip_prefix("usdt:") {
            let parts: Vec<&str> = marker.split(':').collect();
            let (module, provider, name) = match parts[..] {
                [provider, name] => (None, provider, name),
                [module, provider, name] => (Some(module), provider, name),
                _ => return Err(wrong("a marker has a provider and a name")),
            };
            if provider.is_empty() || name.is_empty() || module == Some("") {
                return Err(wrong("a part of it is empty"));
            }
            let place = Place::Marker { provider: provider.to_owned(), name: name.to_owned() };
            return Ok(made(module, place));
        }
        let (module, rest) = match single_colon(body) {
            Some(at) => (Some(&body[..at]), &body[at + 1..]),
            None => (None, body),
        };
        if rest.is_empty() || module == Some("") {
            return Err(wrong("a part of it is empty"));
        }
        // FILE:LINE, or MODULE:FILE:LINE
        let line = match rest.rsplit_once(':') {
            Some((file, line)) if is_number(line) && !file.is_empty() => Some((module, file, line)),
            None if is_number(rest) => module.map(|file| (None, file, rest)),
            _ => None,
        };
        if let Some((module, file, line)) = line {
            let line = line.parse().map_err(|_| wrong("the line's number is too large"))?;
            return Ok(made(module, Place::Line { file: file.to_owned(), line }));
        }
        if let Some(digits) = rest.strip_prefix("0x") {
            let offset = u64::from_str_radix(digits, 16).map_err(|_| wrong("the offset is no number"))?;
            return Ok(made(module, Place::Offset(offset)));
        }
        let (name, offset) = match rest.rsplit_once('+') {
            // `operator+` is a name; only a number behind the sign makes it an offset.
            Some((name, digits)) if !name.is_empty() => match number(digits) {
                Some(offset) => (name, offset),
                None => (rest, 0),
            },
            _ => (rest, 0),
        };
        if returns && offset != 0 {
            return Err(wrong("only whole functions return"));
        }
        Ok(made(module, Place::Function { glob: name.to_owned(), offset }))
    }
}

impl fmt::Display for ProbeSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The first colon that is not part of a `::`.
fn single_colon(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let alone = |&at: &usize| {
        bytes[at] == b':' && bytes.get(at + 1) != Some(&b':') && (at == 0 || bytes[at - 1] != b':')
    };
    (0..bytes.len()).find(alone)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None if is_number(text) => text.parse().ok(),
        None => None,
    }
}

/// Whether a text matches a glob of `*` and `?`. Brackets stand for themselves: `operator[]` is a name.
#[must_use]
pub fn glob(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    // Where the last `*` stood, and how much of the text it has swallowed: the only place worth going back to.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(&c) if c == text[t] || c == b'?' => {
                p += 1;
                t += 1;
            }
            _ => match star {
                Some((at, swallowed)) => {
                    star = Some((at, swallowed + 1));
                    (p, t) = (at + 1, swallowed + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}
