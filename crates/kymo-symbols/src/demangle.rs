//! Readable names, spelled as perf spells them.
//!
//! perf asks the GNU demangler for names without parameters; the crates used here spell a handful of things
//! differently (`(unsigned int)1` for `1u`, `{vtable(X)}` for `vtable for X`). The difference would split one
//! function into two rows when a report is held against perf's, so the common ones are brought in line here. The
//! oracle of the tests is `c++filt -p -i`, the same code as perf's: all names of libstdc++ and of GCC's C++ compiler
//! agree; of 735,000 names of a whole machine about one in eighty is spelled differently still, mostly in how templates
//! of templates are written. A demangler of our own would agree on those, and is not worth its 1,900 lines.

use std::borrow::Cow;
use std::fmt;

/// A readable name is at most so many times as long as the mangled one, or [`SHORT`] bytes; what would be longer
/// keeps its mangled name. Hostile names grow exponentially, real ones about tenfold.
const MOST_GROWTH: usize = 32;
const SHORT: usize = 4 << 10;
/// Longest readable name.
const LONGEST: usize = 64 << 10;
/// Pieces of text that a name is made of: some hostile names are made of endless empty ones.
const MOST_PIECES: usize = 1 << 18;
/// perf builds PLT names in a buffer of this size, with the ending zero.
const LONGEST_PLT: usize = 1023;

/// Whether a name that starts with these bytes could be mangled.
pub(crate) fn is_candidate(name: &[u8]) -> bool {
    const PREFIXES: [&[u8]; 4] = [b"_Z", b"_R", b"caml", b"_GLOBAL_"];
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// The name as perf shows it; the same name if it is not mangled.
pub fn readable(raw: &str) -> Cow<'_, str> {
    if !is_candidate(raw.as_bytes()) {
        return Cow::Borrowed(raw);
    }
    if let Some(function) = raw.strip_suffix("@plt") {
        return match demangle(function) {
            Some(mut name) => {
                name.push_str("@plt");
                let end = (0..=name.len().min(LONGEST_PLT)).rev().find(|&i| name.is_char_boundary(i));
                name.truncate(end.unwrap_or(0));
                Cow::Owned(name)
            }
            None => Cow::Borrowed(raw),
        };
    }
    demangle(raw).map_or(Cow::Borrowed(raw), Cow::Owned)
}

fn demangle(raw: &str) -> Option<String> {
    if raw.starts_with("caml") {
        return ocaml(raw);
    }
    rust(raw).or_else(|| cplusplus(raw))
}

/// Text that refuses to grow beyond what suits its mangled name.
struct Bounded {
    text: String,
    most: usize,
    pieces: usize,
}

impl Bounded {
    fn new(mangled: &str) -> Bounded {
        let most = mangled.len().saturating_mul(MOST_GROWTH).clamp(SHORT, LONGEST);
        Bounded { text: String::new(), most, pieces: 0 }
    }
}

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.pieces += 1;
        if self.text.len() + text.len() > self.most || self.pieces > MOST_PIECES {
            return Err(fmt::Error);
        }
        self.text.push_str(text);
        Ok(())
    }
}

fn rust(raw: &str) -> Option<String> {
    let mangled = if raw.starts_with("_R") {
        // Suffixes of the compiler (`.llvm.123`, `.cold`) are not shown.
        raw.split('.').next()?
    } else {
        let body = raw.strip_prefix("_ZN")?;
        // A legacy name ends with a path segment that is a hash: 17h, 16 digits, E.
        let hash = body.rfind("17h")?;
        let end = hash + 3 + 16;
        let digits = body.get(hash + 3..end)?;
        let after = body.get(end..)?;
        let is_hash = digits.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'));
        if !is_hash || !(after == "E" || after.starts_with("E.")) {
            return None;
        }
        &raw[..3 + end + 1]
    };
    let name = rustc_demangle::try_demangle(mangled).ok()?;
    let mut out = Bounded::new(mangled);
    fmt::write(&mut out, format_args!("{name:#}")).ok()?;
    Some(out.text)
}

fn cplusplus(raw: &str) -> Option<String> {
    if let Some(rest) = raw.strip_prefix("_GLOBAL_") {
        return global_keyed(rest);
    }
    let body = raw.strip_prefix("_Z")?;
    for (prefix, words) in [("GTt", "transaction clone for "), ("GTn", "non-transaction clone for ")] {
        if let Some(inner) = body.strip_prefix(prefix) {
            return Some(format!("{words}{}", itanium(&format!("_Z{inner}"), true)?));
        }
    }
    if let Some(rest) = body.strip_prefix('T') {
        let (words, target) = match rest.as_bytes().first()? {
            b'h' => ("non-virtual thunk to ", past_offset(rest)?),
            b'v' => ("virtual thunk to ", past_offset(rest)?),
            b'c' => ("covariant return thunk to ", past_offset(past_offset(&rest[1..])?)?),
            _ => return itanium(raw, false),
        };
        return Some(format!("{words}{}", itanium(&format!("_Z{target}"), true)?));
    }
    itanium(raw, false)
}

/// What follows a thunk's offset: `h <number> _` or `v <number> _ <number> _`.
fn past_offset(text: &str) -> Option<&str> {
    let numbers = match text.as_bytes().first()? {
        b'h' => 1,
        b'v' => 2,
        _ => return None,
    };
    text[1..].splitn(numbers + 1, '_').nth(numbers)
}

/// `_GLOBAL__I_name`, the constructors and destructors that old compilers made per file.
fn global_keyed(rest: &str) -> Option<String> {
    let bytes = rest.as_bytes();
    if !matches!(bytes.first()?, b'.' | b'_' | b'$') || *bytes.get(2)? != b'_' {
        return None;
    }
    let what = match bytes[1] {
        b'I' => "constructors",
        b'D' => "destructors",
        _ => return None,
    };
    let of = &rest[3..];
    let of = if of.starts_with("_Z") { itanium(of, true)? } else { of.to_owned() };
    Some(format!("global {what} keyed to {of}"))
}

fn itanium(mangled: &str, params: bool) -> Option<String> {
    let (symbol, _suffix) = cpp_demangle::BorrowedSymbol::with_tail(mangled.as_bytes()).ok()?;
    let mut options = cpp_demangle::DemangleOptions::new();
    if !params {
        options = options.no_params().no_return_type();
    }
    let mut out = Bounded::new(mangled);
    symbol.structured_demangle(&mut out, &options).ok()?;
    Some(respell(out.text, mangled, params))
}

/// Brings a name in line with the GNU demangler's spelling.
fn respell(mut name: String, mangled: &str, params: bool) -> String {
    for (open, words) in [("{vtable(", "vtable for "), ("{vtt(", "VTT for ")] {
        if let Some(of) = name.strip_prefix(open).and_then(|rest| rest.strip_suffix(")}")) {
            name = format!("{words}{of}");
        }
    }
    if !params {
        // The reference qualifier of a member function belongs to the parameters.
        let ends = name.trim_end_matches('&').len();
        if ends < name.len() && name[..ends].ends_with(' ') {
            name.truncate(ends - 1);
        }
        // So do the qualifiers of a member of a local class (a lambda's `operator() const`).
        while mangled.starts_with("_ZZ") && (name.ends_with(" const") || name.ends_with(" volatile")) {
            name.truncate(name.rfind(' ').unwrap_or(0));
        }
    }
    for (cast, suffix) in [
        ("(unsigned int)", "u"),
        ("(unsigned long long)", "ull"),
        ("(unsigned long)", "ul"),
        ("(long long)", "ll"),
        ("(long)", "l"),
    ] {
        if name.contains(cast) {
            name = literals(&name, cast, suffix);
        }
    }
    if mangled.contains("Dn") {
        name = name.replace("std::nullptr_t", "decltype(nullptr)");
    }
    for (code, short) in [("Si", "istream"), ("So", "ostream"), ("Sd", "iostream")] {
        if mangled.contains(code) {
            name = stream_names(&name, short);
        }
    }
    if mangled.contains("Ss") {
        let full = "std::basic_string<char, std::char_traits<char>, std::allocator<char> >";
        name = name.replace("std::string::string", &format!("{full}::basic_string"));
        name = name.replace("std::string::~string", &format!("{full}::~basic_string"));
    }
    while let Some(at) = name.find(", >") {
        // An empty pack at the end of a list leaves no comma.
        name.replace_range(at..at + 2, if name[..at].ends_with('>') { " " } else { "" });
    }
    if mangled.contains("adL_Z") {
        name = function_addresses(&name);
    }
    name
}

/// `(unsigned int)1` becomes `1u`.
fn literals(name: &str, cast: &str, suffix: &str) -> String {
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(at) = rest.find(cast) {
        out.push_str(&rest[..at]);
        let value = &rest[at + cast.len()..];
        let sign = usize::from(value.starts_with('-'));
        let digits = value[sign..].bytes().take_while(u8::is_ascii_digit).count();
        if digits == 0 {
            out.push_str(cast);
            rest = value;
        } else {
            out.push_str(&value[..sign + digits]);
            out.push_str(suffix);
            rest = &value[sign + digits..];
        }
    }
    out + rest
}

/// The standard streams go by their short names, except in their own constructors and destructors.
fn stream_names(name: &str, short: &str) -> String {
    let full = format!("std::basic_{short}<char, std::char_traits<char> >");
    let name = name.replace(&format!("std::{short}::{short}"), &format!("{full}::basic_{short}"));
    let name = name.replace(&format!("std::{short}::~{short}"), &format!("{full}::~basic_{short}"));
    let mut out = String::with_capacity(name.len());
    let mut rest = name.as_str();
    while let Some(at) = rest.find(&full) {
        out.push_str(&rest[..at]);
        rest = &rest[at + full.len()..];
        let member = rest.strip_prefix("::").unwrap_or("");
        let member = member.strip_prefix('~').unwrap_or(member);
        if member.starts_with(&format!("basic_{short}")) {
            out.push_str(&full);
        } else {
            out.push_str("std::");
            out.push_str(short);
        }
    }
    out + rest
}

/// The address of a function as a template argument: `&f(int)` becomes `&(f(int))`, `&a::f(int)` becomes `&a::f`.
fn function_addresses(name: &str) -> String {
    let mut out = String::with_capacity(name.len() + 2);
    let mut rest = name;
    while let Some(at) = rest.find('&') {
        let starts_argument = rest[..at].ends_with(['<', ' ']);
        out.push_str(&rest[..=at]);
        rest = &rest[at + 1..];
        if !starts_argument || !rest.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_' || c == '(') {
            continue;
        }
        let (open, end) = parameters_and_end(rest);
        let Some(open) = open else { continue };
        let (function, plain) = (&rest[..end], &rest[..open]);
        let is_template = plain.ends_with('>') && !plain.contains("operator");
        let is_qualified = !function.ends_with(')');
        if is_template || is_qualified || !plain.contains("::") {
            out.push('(');
            out.push_str(function);
            out.push(')');
        } else {
            out.push_str(plain);
        }
        rest = &rest[end..];
    }
    out + rest
}

/// Where the parameters of the function start that a template argument begins with, and where the argument ends.
fn parameters_and_end(text: &str) -> (Option<usize>, usize) {
    /// What looks like a parameter list, and is a part of a name.
    const NAMES: [&str; 1] = ["(anonymous namespace)"];
    let bytes = text.as_bytes();
    let (mut depth, mut open, mut at) = (0usize, None, 0);
    while at < bytes.len() {
        let rest = &text.as_bytes()[at..];
        if let Some(name) = NAMES.iter().find(|name| rest.starts_with(name.as_bytes())) {
            at += name.len();
            continue;
        }
        let starts_word = at == 0 || !(bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_');
        if starts_word && let Some(sign) = rest.strip_prefix(b"operator") {
            at += "operator".len() + operator_sign(sign);
            continue;
        }
        match bytes[at] {
            b'(' if depth == 0 => {
                open.get_or_insert(at);
                depth += 1;
            }
            b'<' | b'(' | b'{' | b'[' => depth += 1,
            b'>' | b',' if depth == 0 => return (open, at),
            b'>' | b')' | b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += 1;
    }
    (open, text.len())
}

/// How many bytes of this text are the sign of an operator: `()`, `<<=`, `->*`.
fn operator_sign(text: &[u8]) -> usize {
    if text.starts_with(b"()") || text.starts_with(b"[]") {
        return 2;
    }
    text.iter().take(3).take_while(|c| b"<>=!+-*/%^&|~,".contains(c)).count()
}

/// OCaml: `camlStdlib__List__map_154` is `Stdlib.List.map_154`.
fn ocaml(raw: &str) -> Option<String> {
    let body = raw.strip_prefix("caml")?;
    if !body.starts_with(|c: char| c.is_ascii_uppercase()) {
        return None;
    }
    let mut out: Vec<u8> = Vec::with_capacity(body.len());
    let mut rest = body.as_bytes();
    while let Some((&c, tail)) = rest.split_first() {
        if rest.starts_with(b"__") {
            out.push(b'.');
            rest = &rest[2..];
        } else if let (b'$', Some(code)) = (c, hex_pair(tail)) {
            out.push(code);
            rest = &rest[3..];
        } else {
            out.push(c);
            rest = tail;
        }
    }
    Some(String::from_utf8_lossy(&out).into_owned())
}

fn hex_pair(bytes: &[u8]) -> Option<u8> {
    let digit = |c: &u8| (*c as char).to_digit(16);
    Some((digit(bytes.first()?)? * 16 + digit(bytes.get(1)?)?) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Checks that names come out as perf 6.1 prints them (captured from perf and from `c++filt -p -i`).
    #[test]
    fn spells_as_perf() {
        for (raw, shown) in [
            ("main", "main"),
            ("_ZN12_GLOBAL__N_13Foo4spinIlEET_S2_", "(anonymous namespace)::Foo::spin<long>"),
            ("_ZZ4mainENKUliE_clEi", "main::{lambda(int)#1}::operator()"),
            ("_ZZ4mainENKUliE_clEi@plt", "main::{lambda(int)#1}::operator()@plt"),
            ("_Z1fILj1EEvv", "f<1u>"),
            ("_ZTV10dom_walker", "vtable for dom_walker"),
            (
                "_ZNSsC1Ev",
                "std::basic_string<char, std::char_traits<char>, std::allocator<char> >::basic_string",
            ),
            ("_ZNSi3getEv", "std::istream::get"),
            ("_ZN4core3fmt5write17h0123456789abcdefE", "core::fmt::write"),
            ("_ZN4core3fmt5write17h0123456789abcdefE.llvm.42", "core::fmt::write"),
            ("camlStdlib__Array__map_154", "Stdlib.Array.map_154"),
            ("camlFoo__Bar$21baz", "Foo.Bar!baz"),
            ("_Zzz", "_Zzz"),
            ("_ZN4node4wrapIXadL_Z5plainiEEEEii", "node::wrap<&(plain(int))>"),
            ("_ZN4node1QIXadL_ZNS_1P1qEiEELin4EE3runEi", "node::Q<&node::P::q, -4>::run"),
            ("_ZN4node3memIXadL_ZNS_1PclEiEEEEiRS1_i", "node::mem<&node::P::operator()>"),
            ("_ZN4node4memcIXadL_ZNKS_1PltEiEEEEiRS1_i", "node::memc<&(node::P::operator<(int) const)>"),
        ] {
            assert_eq!(readable(raw), shown, "{raw}");
        }
    }

    /// Checks that the address of a function of an anonymous namespace keeps its name as a template argument: without
    /// its end, distinct functions were one row.
    #[test]
    fn functions_of_anonymous_namespaces_keep_their_names_as_arguments() {
        for (raw, shown) in [
            ("4wrapIXadL_ZNS_12_GLOBAL__N_11fEiEEEEii", "wrap<&node::(anonymous namespace)::f>"),
            ("4wrapIXadL_ZNS_12_GLOBAL__N_11gEiEEEEii", "wrap<&node::(anonymous namespace)::g>"),
            ("4wrapIXadL_ZNS_12_GLOBAL__N_11S1mEiEEEEii", "wrap<&node::(anonymous namespace)::S::m>"),
            ("5wrap2IiXadL_ZNS_12_GLOBAL__N_11fEiEEEEii", "wrap2<int, &node::(anonymous namespace)::f>"),
            ("1QIXadL_ZNS_12_GLOBAL__N_11fEiEELi3EE3runEi", "Q<&node::(anonymous namespace)::f, 3>::run"),
            (
                "4memsIXadL_ZNKS_12_GLOBAL__N_11S1nEiEEEEiRS2_i",
                "mems<&(node::(anonymous namespace)::S::n(int) const)>",
            ),
            (
                "4wrapIXadL_ZNS_12_GLOBAL__N_11hIiEEiT_EEEEii",
                "wrap<&(node::(anonymous namespace)::h<int>(int))>",
            ),
        ] {
            let (raw, shown) = (format!("_ZN4node{raw}"), format!("node::{shown}"));
            assert_eq!(readable(&raw), shown, "{raw}");
        }
    }

    proptest! {
        /// Checks that no name makes the demangler panic or run away.
        #[test]
        fn survives_any_name(name in "(_Z|_R|_ZN|caml|_GLOBAL_)[A-Za-z0-9_$.@]{0,60}") {
            prop_assert!(readable(&name).len() <= LONGEST * 8);
        }
    }
}
