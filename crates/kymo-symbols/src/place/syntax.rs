//! The grammar of a watch expression.
//!
//! ```text
//!  request := [file ':'] expr [':' length | '/' length] [':' access]
//!  expr    := unary { ('+' | '-') bytes }
//!  unary   := '*' unary | postfix
//!  postfix := primary { '.' field | '->' field | '[' number ']' }
//!  primary := '(' expr ')' | number | 'any symbol, quoted' | path
//!  path    := segment { '::' segment }       with <...>, {...} and (anonymous namespace) as part of segments
//! ```
//!
//! `/length` is the spelling of `mem:` events. A single colon divides, a double one is part of a path.

use thiserror::Error;

use super::request::{Access, Expr, Request};

/// No expression is longer; demangled names of templates come near.
const LONGEST: usize = 64 << 10;
/// Stars, parentheses and steps of one expression.
const DEEPEST: usize = 200;

/// What is wrong with the text of an expression, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("cannot read the expression '{text}': {why}")]
pub struct SyntaxError {
    text: String,
    why: String,
}

impl SyntaxError {
    fn new(text: &str, why: impl Into<String>) -> SyntaxError {
        SyntaxError { text: text.chars().take(200).collect(), why: why.into() }
    }
}

/// Reads `EXPR[:len][:r|w|rw|x]`.
///
/// EXPR is an address (`0x404040`), a symbol (`counter`, `symbol+0x10`), a variable with fields and elements
/// (`queue.head`, `table[3].name`, `list->next`), what a pointer points at (`*cursor`, `*(node).next`), or one of these of
/// one source file (`pool.c:counter`). Paths are Rust's and C++'s: `crate::module::STATIC`, `ns::Class::member`.
///
/// # Errors
/// The text does not follow the grammar; the error says where and what would.
pub fn parse(text: &str) -> Result<Request, SyntaxError> {
    let mut rest = text.trim();
    let (mut len_bytes, mut access, mut only_reads) = (None, None, false);
    let mut file = None;
    while let Some(at) = last_single_colon(rest) {
        let (before, word) = (&rest[..at], rest[at + 1..].trim());
        if before.trim().is_empty() {
            return Err(SyntaxError::new(
                text,
                "there is nothing before the colon; write EXPR:length:access",
            ));
        }
        if let (Some(found), None, None) = (access_of(word), access, len_bytes) {
            access = Some(found);
            only_reads = word == "r";
        } else if let (Some(bytes), None) = (number(word), len_bytes) {
            len_bytes = Some(bytes);
        } else {
            if !before.contains(['.', '/']) {
                let why = "after the colon is neither a length (1, 2, 4 or 8) nor an access (r, w, rw or x)";
                return Err(SyntaxError::new(text, format!("'{word}' {why}")));
            }
            // A source file, whose own name may have colons.
            file = Some(before.trim().to_owned());
            rest = rest[at + 1..].trim();
            break;
        }
        rest = before.trim_end();
    }
    if len_bytes.is_none()
        && let Some((before, word)) = rest.rsplit_once('/')
        && let Some(bytes) = number(word.trim())
    {
        len_bytes = Some(bytes);
        rest = before.trim_end();
    }
    let expression = match &file {
        Some(file) => format!("{file}:{rest}"),
        None => rest.to_owned(),
    };
    let tree = whole(text, rest, file)?;
    Ok(Request { expression, tree, len_bytes, access, only_reads })
}

/// Reads an expression alone.
///
/// # Errors
/// As [`parse`].
pub(super) fn expression(text: &str) -> Result<Expr, SyntaxError> {
    whole(text, text, None)
}

/// Reads all of `rest`, the expression in `text`; `file` picks among its variables.
fn whole(text: &str, rest: &str, file: Option<String>) -> Result<Expr, SyntaxError> {
    if text.len() > LONGEST {
        return Err(SyntaxError::new(text, format!("it is longer than {LONGEST} bytes")));
    }
    let mut parser = Parser { text: rest, at: 0, steps: 0, file };
    let tree = parser.expr().and_then(|tree| match (parser.peek(), &parser.file) {
        (Some(c), _) => Err(format!("'{c}' does not belong here")),
        (None, Some(path)) => Err(format!("the file {path} picks among variables, and none follows")),
        (None, None) => Ok(tree),
    });
    tree.map_err(|why| SyntaxError::new(text, why))
}

fn access_of(word: &str) -> Option<Access> {
    match word {
        "w" => Some(Access::Write),
        "r" | "rw" | "wr" => Some(Access::ReadWrite),
        "x" => Some(Access::Execute),
        _ => None,
    }
}

/// Decimal, or hexadecimal after `0x`.
pub(super) fn number(word: &str) -> Option<u64> {
    let digits = |text: &str, radix| {
        (!text.is_empty() && text.bytes().all(|c| char::from(c).is_digit(radix)))
            .then(|| u64::from_str_radix(text, radix).ok())
            .flatten()
    };
    match word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
        Some(hex) => digits(hex, 16),
        None => digits(word, 10),
    }
}

/// The last colon that is no half of `::` and not inside quotes or brackets.
fn last_single_colon(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let (mut depth, mut quoted, mut found, mut at) = (0i32, false, None, 0);
    while at < bytes.len() {
        match bytes[at] {
            b'\'' => quoted = !quoted,
            _ if quoted => {}
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth -= 1,
            b':' if bytes.get(at + 1) == Some(&b':') => at += 1,
            b':' if depth == 0 => found = Some(at),
            _ => {}
        }
        at += 1;
    }
    found
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    steps: usize,
    /// The file that picks among names; given to the first name.
    file: Option<String>,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn peek(&mut self) -> Option<char> {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
        self.rest().chars().next()
    }

    fn eat(&mut self, token: &str) -> bool {
        self.peek();
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    fn step(&mut self) -> Result<(), String> {
        self.steps += 1;
        if self.steps > DEEPEST { Err(format!("it has more than {DEEPEST} steps")) } else { Ok(()) }
    }

    fn expr(&mut self) -> Result<Expr, String> {
        let mut tree = self.unary()?;
        loop {
            let negative = match self.peek() {
                Some('+') => false,
                Some('-') => true,
                _ => return Ok(tree),
            };
            self.step()?;
            self.at += 1;
            self.peek();
            let word = self.word();
            let bytes = number(word).and_then(|n| i64::try_from(n).ok());
            let bytes =
                bytes.ok_or("after + or - comes a number of bytes, for example counter+8 or counter+0x10")?;
            tree = Expr::Offset(Box::new(tree), if negative { -bytes } else { bytes });
        }
    }

    fn unary(&mut self) -> Result<Expr, String> {
        match self.peek() {
            Some('*') => {
                self.step()?;
                self.at += 1;
                let inner = self.unary()?;
                if matches!(inner, Expr::Offset(..)) {
                    return Err("an offset inside *( ) is unclear; write pointer[n] for the n-th element, *pointer+n for n bytes".to_owned());
                }
                Ok(Expr::Follow(Box::new(inner)))
            }
            Some('&') => Err("leave the & out; an expression means its place, not its value".to_owned()),
            _ => self.postfix(),
        }
    }

    fn postfix(&mut self) -> Result<Expr, String> {
        let mut tree = self.primary()?;
        loop {
            let arrow = match self.peek() {
                Some('.') => false,
                Some('-') if self.rest().starts_with("->") => true,
                Some('[') => {
                    self.step()?;
                    self.at += 1;
                    tree = Expr::Index(Box::new(tree), self.index()?);
                    continue;
                }
                _ => return Ok(tree),
            };
            self.step()?;
            self.at += if arrow { 2 } else { 1 };
            self.peek();
            let name = self.field();
            if name.is_empty() {
                return Err("a field's name has to follow, for example queue.head or tuple.0".to_owned());
            }
            let (inner, name) = (Box::new(tree), name.to_owned());
            tree = if arrow { Expr::Arrow(inner, name) } else { Expr::Field(inner, name) };
        }
    }

    fn index(&mut self) -> Result<i64, String> {
        let negative = self.eat("-");
        self.peek();
        let index = number(self.word()).and_then(|n| i64::try_from(n).ok());
        let index = index.ok_or("an index is a number, for example table[3]")?;
        if !self.eat("]") {
            return Err("the index is not closed; write table[3]".to_owned());
        }
        Ok(if negative { -index } else { index })
    }

    fn primary(&mut self) -> Result<Expr, String> {
        match self.peek() {
            None => Err("a symbol, a variable or an address has to stand here".to_owned()),
            Some('(') if !self.rest().starts_with("(anonymous namespace)") => {
                self.step()?;
                let inside = closing(self.rest()).map(|end| self.rest()[1..end].trim_end());
                if inside.is_some_and(|inside| inside.len() > 1 && inside.ends_with('*')) {
                    return Err(
                        "there are no casts; write the address and the length, for example 0x404040:4"
                            .to_owned(),
                    );
                }
                self.at += 1;
                let tree = self.expr()?;
                if !self.eat(")") {
                    return Err("a parenthesis is not closed".to_owned());
                }
                Ok(tree)
            }
            Some('\'') => {
                let body = &self.rest()[1..];
                let Some(end) = body.find('\'') else {
                    return Err("the quote is not closed".to_owned());
                };
                self.at += end + 2;
                let path = body[..end].trim();
                if path.is_empty() {
                    return Err("there is no name between the quotes".to_owned());
                }
                // gdb's 'file.c'::name.
                if self.rest().starts_with("::") {
                    self.step()?;
                    self.at += 2;
                    self.file = Some(path.to_owned());
                    return self.primary();
                }
                Ok(self.name(path))
            }
            Some(c) if c.is_ascii_digit() => {
                let word = self.word();
                match number(word) {
                    Some(address) if self.file.is_none() => Ok(Expr::Address(address)),
                    Some(_) => Err("a file picks among variables, not among addresses".to_owned()),
                    None => Err(format!("'{word}' is no address; write it as 0x404040")),
                }
            }
            Some(c) => match self.path() {
                "" => Err(format!("'{c}' cannot start a name; put unusual symbols in single quotes")),
                path => Ok(self.name(path)),
            },
        }
    }

    fn name(&mut self, path: &str) -> Expr {
        Expr::Name { file: self.file.take(), path: path.to_owned() }
    }

    /// Letters and digits, consumed.
    fn word(&mut self) -> &'a str {
        self.take(|c| c.is_alphanumeric())
    }

    fn field(&mut self) -> &'a str {
        self.take(is_name)
    }

    fn take(&mut self, belongs: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c| !belongs(c)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    /// Segments with `::` between them, consumed; empty if none starts here.
    fn path(&mut self) -> &'a str {
        let rest = self.rest();
        let mut end = 0;
        loop {
            let tail = &rest[end..];
            if tail.starts_with("::") {
                end += 2;
                continue;
            }
            let Some(c) = tail.chars().next() else { break };
            let at_segment_start = end == 0 || rest[..end].ends_with("::");
            match c {
                c if is_name(c) => end += c.len_utf8(),
                // Part of names of functions: `~Pool`, and the compiler's `name@plt`.
                '~' | '@' if at_segment_start == (c == '~') => end += 1,
                '<' | '{' => match closing(tail) {
                    Some(length) => end += length + 1,
                    None => break,
                },
                '(' if at_segment_start && tail.starts_with("(anonymous namespace)") => {
                    end += "(anonymous namespace)".len();
                }
                _ => break,
            }
        }
        self.at += end;
        &rest[..end]
    }
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '$'
}

/// Where the bracket that starts `text` is closed. The `>` of `->` closes nothing.
fn closing(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut depth = 0usize;
    for (at, &byte) in bytes.iter().enumerate() {
        match byte {
            b'<' | b'(' | b'{' | b'[' => depth += 1,
            b'>' if at > 0 && bytes[at - 1] == b'-' => {}
            b'>' | b')' | b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Checks expression, length and access of what people write.
    #[test]
    fn lengths_and_accesses_are_taken_off_the_end() {
        use Access::{Execute, ReadWrite, Write};
        for (text, expression, len, access) in [
            ("counter", "counter", None, None),
            ("counter:8", "counter", Some(8), None),
            ("counter:w", "counter", None, Some(Write)),
            ("counter:4:rw", "counter", Some(4), Some(ReadWrite)),
            (" counter : 4 : r ", "counter", Some(4), Some(ReadWrite)),
            ("main:x", "main", None, Some(Execute)),
            ("0x404040/8:w", "0x404040", Some(8), Some(Write)),
            ("symbol+0x10:2", "symbol+0x10", Some(2), None),
            ("ns::Class::member:8:w", "ns::Class::member", Some(8), Some(Write)),
            ("ns::w", "ns::w", None, None),
            ("pool.c:counter:8", "pool.c:counter", Some(8), None),
            ("src/pool.c:x:rw", "src/pool.c:x", None, Some(ReadWrite)),
            ("a->b[3].c:w", "a->b[3].c", None, Some(Write)),
            ("'operator new(unsigned long)':x", "'operator new(unsigned long)'", None, Some(Execute)),
            ("krate::{impl#0}::f::COUNT:8", "krate::{impl#0}::f::COUNT", Some(8), None),
            ("Box<ns::A>::count:8", "Box<ns::A>::count", Some(8), None),
            ("(anonymous namespace)::x:w", "(anonymous namespace)::x", None, Some(Write)),
        ] {
            let request = parse(text).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(
                (request.expression.as_str(), request.len_bytes, request.access),
                (expression, len, access),
                "{text}"
            );
        }
    }

    /// Checks that each mistake gets a sentence that says what to write.
    #[test]
    fn mistakes_are_told_with_what_to_write() {
        for (text, words) in [
            ("", "has to stand here"),
            (":8", "nothing before the colon"),
            (
                "counter:q",
                "'q' after the colon is neither a length (1, 2, 4 or 8) nor an access (r, w, rw or x)",
            ),
            ("counter:8:8", "neither a length"),
            ("a..b", "a field's name"),
            ("a->", "a field's name"),
            ("a[", "an index is a number"),
            ("a[x]", "an index is a number"),
            ("a[3", "not closed"),
            ("(a", "not closed"),
            ("a b", "'b' does not belong here"),
            ("*", "has to stand here"),
            ("&a", "leave the & out"),
            ("*(int*)0x404040", "no casts"),
            ("*(p+8)", "unclear"),
            ("a+b", "a number of bytes"),
            ("12ab", "no address"),
            ("'abc", "quote is not closed"),
            ("pool.c:(0x1234)", "not among addresses"),
        ] {
            let error = parse(text).map(|request| format!("{request:?}")).expect_err(text).to_string();
            assert!(error.contains(words) && error.contains(text), "{text}: {error}");
        }
        for deep in ["*".repeat(100_000), "(".repeat(60_000), format!("a{}", "[1]".repeat(20_000))] {
            assert!(parse(&deep).is_err());
        }
    }

    proptest! {
        /// Checks that no text makes the parser panic, and that what it took apart is the text.
        #[test]
        fn any_text_is_survived(text in "[a-z0-9.:>*()<{}'&+/ \\[\\]-]{0,40}") {
            if let Ok(request) = parse(&text) {
                prop_assert!(!request.expression.is_empty());
            }
        }
    }
}
