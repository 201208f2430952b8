//! `--if`: what is typed, and what it means at each site.
//!
//! ```text
//!  arg1 > 4096 && arg2 != 0 || ret < 0      arg1..arg6: integer arguments    $rdi: a register    ret: what the function returns
//!  size > 4096 && req->method == 2          parameters by name, where there is debug information
//!  name == "abc"                            texts, with == and !=
//! ```
//! Registers are 64 bits wide; `arg1:s32` is the lower half with a sign, which is an `int`. What has a name has its type.
//! `&&` binds before `||`. Tests of what is known at the entry and of what is known at the return stand in different parts of an `&&`.
use crate::arguments::{self, is_result, register, split_kind};
use kymo_core::probe::value::{Characters, Compare, Condition, Test};
use kymo_perf::bpf::uprobe::MOST_CHARACTERS;
use kymo_symbols::place::ValueKind;
use kymo_symbols::place::call::{self, CallError, Fetch, Routine};
use kymo_symbols::sites::{Site, SiteKind};

/// Lists of tests that one condition may become.
const MOST_LISTS: usize = 64;

/// One comparison, as typed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    /// With its kind (`:u8`), if it has one.
    expression: String,
    compare: Compare,
    value: Typing,
}

/// What it is compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Typing {
    /// A number, a character, the name of a number.
    Word(String),
    /// What stands between double quotes.
    Text(String),
}

/// A condition as typed: any of the lists, all of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Typed(Vec<Vec<Part>>);

/// Reads what was typed.
pub fn parse(text: &str) -> Result<Typed, String> {
    let any = split(text, "||").into_iter().map(|all| split(all, "&&").into_iter().map(part).collect());
    Ok(Typed(any.collect::<Result<_, String>>()?))
}

/// The parts between separators that do not stand in quotes.
fn split<'a>(text: &'a str, separator: &str) -> Vec<&'a str> {
    let (mut parts, mut from) = (Vec::new(), 0);
    for at in outside_quotes(text) {
        if at >= from && text[at..].starts_with(separator) {
            parts.push(&text[from..at]);
            from = at + separator.len();
        }
    }
    parts.push(&text[from..]);
    parts
}

/// Where characters begin that stand in no quotes.
fn outside_quotes(text: &str) -> impl Iterator<Item = usize> + '_ {
    let (mut quote, mut escaped) = (None, false);
    text.char_indices().filter_map(move |(at, c)| {
        match (quote, c) {
            (Some(_), _) if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(open), c) if open == c => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, _) => return Some(at),
        }
        None
    })
}

/// Comparisons as they are typed.
pub(crate) const OPERATORS: [(&str, Compare); 6] = [
    ("==", Compare::Equal),
    ("!=", Compare::NotEqual),
    ("<=", Compare::LessEqual),
    (">=", Compare::GreaterEqual),
    ("<", Compare::Less),
    (">", Compare::Greater),
];

fn part(text: &str) -> Result<Part, String> {
    let text = text.trim();
    let wrong =
        || format!("`{text}` is no comparison: write for example 'size > 4096', 'arg1 == 3' or 'ret < 0'");
    let found = outside_quotes(text).find_map(|at| {
        let is_arrow = text[..at].ends_with('-') && text[at..].starts_with('>');
        let operator = OPERATORS.iter().find(|(sign, _)| text[at..].starts_with(sign));
        operator.filter(|_| !is_arrow).map(|&(sign, compare)| (at, sign, compare))
    });
    let (at, sign, compare) = found.ok_or_else(wrong)?;
    let (expression, value) = (text[..at].trim(), text[at + sign.len()..].trim());
    if expression.is_empty() || value.is_empty() {
        return Err(wrong());
    }
    call::check(split_kind(expression).0).map_err(|error| format!("{}: {error}", wrong()))?;
    let value = match value.strip_prefix('"') {
        None => Typing::Word(value.to_owned()),
        Some(rest) => {
            Typing::Text(unescaped(rest).ok_or_else(|| format!("the quote in `{text}` is not closed"))?)
        }
    };
    Ok(Part { expression: expression.to_owned(), compare, value })
}

/// A text up to its closing quote, which must be the end.
fn unescaped(rest: &str) -> Option<String> {
    let (mut text, mut letters) = (String::new(), rest.chars());
    loop {
        match letters.next()? {
            '"' => return letters.next().is_none().then_some(text),
            '\\' => match letters.next()? {
                'n' => text.push('\n'),
                't' => text.push('\t'),
                other => text.push(other),
            },
            other => text.push(other),
        }
    }
}

impl Typed {
    /// What it means at each site: for hits, and for returns.
    pub fn at(&self, sites: &[Site]) -> Result<Vec<(Condition, Condition)>, String> {
        if self.asks_names() {
            let all = arguments::each(sites, |_, site, routine| self.of(site, &routine));
            return all.into_iter().collect();
        }
        let none = Err(CallError::Machine);
        sites.iter().map(|site| self.of(site, &none)).collect()
    }

    /// What it means at a site, whose function is `routine`: for hits, and for returns.
    fn of(
        &self,
        site: &Site,
        routine: &Result<&Routine<'_>, CallError>,
    ) -> Result<(Condition, Condition), String> {
        let (mut entry, mut end): (Condition, Condition) = (Vec::new(), Vec::new());
        for all in &self.0 {
            let (at_end, at_entry): (Vec<&Part>, Vec<&Part>) =
                all.iter().partition(|part| is_result(&part.expression));
            if !at_end.is_empty() && site.kind != SiteKind::Function {
                return Err(format!("--if: `{}` is no function, so it returns nothing", site.name));
            }
            // Of `a || ret < 0` nothing is known at the entry that would rule a hit out.
            if self.0.len() > 1 && !at_end.is_empty() {
                return Err("--if: `ret` cannot stand in an `||`".to_owned());
            }
            if !at_entry.is_empty() {
                entry.extend(tests(&at_entry, site, routine)?);
            }
            if !at_end.is_empty() {
                end.extend(tests(&at_end, site, routine)?);
            }
        }
        if entry.len().max(end.len()) > MOST_LISTS {
            return Err("--if: it has too many parts".to_owned());
        }
        Ok((entry, end))
    }

    /// Whether it asks for what a function returns.
    pub fn asks_returns(&self) -> bool {
        self.0.iter().flatten().any(|part| is_result(&part.expression))
    }

    /// Whether debug information has to be asked.
    fn asks_names(&self) -> bool {
        self.0.iter().flatten().any(|part| {
            let (expression, kind) = split_kind(&part.expression);
            register(expression).is_none() && !(expression == "ret" && kind.is_some())
        })
    }
}

/// All of these tests, as lists of which any must hold.
fn tests(
    parts: &[&Part],
    site: &Site,
    routine: &Result<&Routine<'_>, CallError>,
) -> Result<Condition, String> {
    let mut lists: Condition = vec![Vec::new()];
    for part in parts {
        let any = arguments::check_numbered(site, routine, &part.expression)
            .and_then(|()| part.tests(&site.kind, routine))
            .map_err(|why| format!("--if at {}: {why}", site.name))?;
        let with = |list: &Vec<Test>| -> Vec<Vec<Test>> {
            any.iter().map(|more| list.iter().chain(more).cloned().collect()).collect()
        };
        lists = lists.iter().flat_map(with).take(MOST_LISTS + 1).collect();
    }
    Ok(lists)
}

impl Part {
    /// Lists of which any must hold.
    fn tests(&self, kind: &SiteKind, routine: &Result<&Routine<'_>, CallError>) -> Result<Condition, String> {
        let fetch = arguments::value(kind, routine, &self.expression)?;
        match (&self.value, &fetch.text) {
            (Typing::Text(text), Some(_)) => self.text(&fetch, text.as_bytes()),
            (Typing::Text(_), None) => Err(format!(
                "`{}` is {}, which is no text; `:string` makes a pointer one",
                self.expression, fetch.type_name
            )),
            (Typing::Word(word), Some(text)) if text.offset != 0 => Err(format!(
                "`{}` is a text, which is compared with \"...\", not with {word}",
                self.expression
            )),
            (Typing::Word(word), _) => self.number(&fetch, word),
        }
    }

    fn number(&self, fetch: &Fetch, word: &str) -> Result<Condition, String> {
        if fetch.kind == ValueKind::Float {
            return Err(format!(
                "`{}` is a floating-point number, and those are not compared",
                self.expression
            ));
        }
        let no_number = || {
            let names = match &fetch.kind {
                ValueKind::Enum { names, .. } => {
                    let names: Vec<&str> = names.iter().take(12).map(|(name, _)| name.as_str()).collect();
                    format!("; {} has the names {}", fetch.type_name, names.join(", "))
                }
                _ => String::new(),
            };
            format!("`{word}` is no number{names}")
        };
        let number = fetch.kind.parse(word).ok_or_else(no_number)?;
        let mut operand = arguments::operand(fetch);
        // Compared with a number below 0, or as what a function returns, registers have signs.
        let is_register = fetch.type_name == arguments::REGISTER && split_kind(&self.expression).1.is_none();
        operand.signed |= is_register && (number < 0 || is_result(&self.expression));
        let width = operand.bits.map_or(u32::from(operand.bytes) * 8, |(_, width)| u32::from(width));
        let mut value = number as u64;
        if number < 0 && !operand.signed && width < 64 {
            value &= (1 << width) - 1;
        }
        Ok(vec![vec![Test::number(operand, self.compare, value)]])
    }

    fn text(&self, fetch: &Fetch, bytes: &[u8]) -> Result<Condition, String> {
        if !matches!(self.compare, Compare::Equal | Compare::NotEqual) {
            return Err(format!("texts are compared with == and != only, `{}` too", self.expression));
        }
        if bytes.len() > MOST_CHARACTERS {
            return Err(format!("texts of up to {MOST_CHARACTERS} bytes are compared"));
        }
        let Some(text) = &fetch.text else { return Ok(Vec::new()) };
        let characters =
            Characters { offset: text.offset, bytes: bytes.to_vec(), ended: text.length.is_none() };
        let own = Test {
            operand: arguments::operand(fetch),
            compare: self.compare,
            value: 0,
            characters: Some(characters),
        };
        let Some(length) = &text.length else { return Ok(vec![vec![own]]) };
        let length = |compare| Test::number(arguments::operand(length), compare, bytes.len() as u64);
        Ok(match self.compare {
            _ if bytes.is_empty() => vec![vec![length(self.compare)]],
            Compare::NotEqual => vec![vec![length(Compare::NotEqual)], vec![length(Compare::Equal), own]],
            _ => vec![vec![length(Compare::Equal), own]],
        })
    }
}

#[cfg(test)]
mod tests_of_this {
    use super::*;

    /// Checks precedence, quotes, arrows, kinds, and the sentences about what is wrong.
    #[test]
    fn typed() {
        let parsed = parse(r#"arg1>=0x10 && req->next->len != -1||name=="a && \"b" && ret:s32 < 0"#).unwrap();
        let shape: Vec<Vec<(&str, Compare, &Typing)>> = parsed
            .0
            .iter()
            .map(|all| all.iter().map(|p| (p.expression.as_str(), p.compare, &p.value)).collect())
            .collect();
        let word = |text: &str| Typing::Word(text.to_owned());
        let expected = [
            vec![
                ("arg1", Compare::GreaterEqual, word("0x10")),
                ("req->next->len", Compare::NotEqual, word("-1")),
            ],
            vec![
                ("name", Compare::Equal, Typing::Text("a && \"b".to_owned())),
                ("ret:s32", Compare::Less, word("0")),
            ],
        ];
        let expected: Vec<Vec<(&str, Compare, &Typing)>> =
            expected.iter().map(|all| all.iter().map(|(e, c, v)| (*e, *c, v)).collect()).collect();
        assert_eq!(shape, expected);
        assert!(parsed.asks_names() && parsed.asks_returns());
        assert!(!parse("arg1 > 3 && $rsi == 1 && ret:s32 < 0").unwrap().asks_names());
        for wrong in [
            "",
            "arg1:s7 > 1",
            "arg1:x31 > 1",
            "arg1",
            "arg1 > ",
            "> 4",
            "a b > 1",
            "arg1 > 1 &&",
            "a->b",
            "n == \"x",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    fn uprobe_register(name: &str) -> u8 {
        kymo_core::probe::value::register::named(name).unwrap()
    }

    /// Checks tests of registers and of a marker's arguments: signs, widths, and numbers that none can be.
    #[test]
    fn numbers_of_registers() {
        let none: Result<&Routine<'_>, CallError> = Err(CallError::Machine);
        let at = |kind: &SiteKind, text: &str| {
            parse(text).unwrap().0[0][0].tests(kind, &none).map(|lists| lists[0][0].clone())
        };
        let test = |text: &str| at(&SiteKind::Function, text);
        let found = test("arg1 > 3").unwrap();
        assert_eq!((found.value, found.operand.bytes, found.operand.signed), (3, 8, false));
        let found = test("$rsi != -1").unwrap();
        assert_eq!((found.value, found.operand.signed), (u64::MAX, true));
        let found = test("ret:s32 < 0").unwrap();
        assert_eq!((found.operand.bytes, found.operand.signed), (4, true));
        let found = test("arg2:u8 == -1").unwrap();
        assert_eq!((found.value, found.operand.bytes), (255, 1));
        assert!(test("ret < 0").unwrap().operand.signed);
        let found = test("arg1:string == \"abc\"").unwrap();
        assert_eq!(found.characters.map(|c| (c.bytes, c.ended)), Some((b"abc".to_vec(), true)));
        for wrong in ["arg1 == \"abc\"", "arg1 > four", "size > 3", "arg1:string < \"a\""] {
            assert!(test(wrong).is_err(), "{wrong}");
        }
        // A marker's arguments are where it says.
        let marker = SiteKind::Marker { arguments: "-4@%ebx 8@-16(%rbp) 8@$7".to_owned() };
        let found = at(&marker, "arg1 < -3").unwrap().operand;
        assert_eq!((found.register, found.bytes, found.signed), (uprobe_register("rbx"), 4, true));
        let found = at(&marker, "arg2 > 3").unwrap().operand;
        assert_eq!((found.register, found.steps), (uprobe_register("rbp"), vec![-16]));
        assert_eq!(at(&marker, "$rdi > 3").unwrap().operand.register, uprobe_register("rdi"));
        for (wrong, word) in [
            ("arg3 > 1", "always 7"),
            ("arg4 > 1", "arg1 to arg3"),
            ("ret > 1", "nothing"),
            ("x > 1", "nothing"),
        ] {
            let why = at(&marker, wrong).unwrap_err();
            assert!(why.contains(word), "{why}");
        }
    }
}
