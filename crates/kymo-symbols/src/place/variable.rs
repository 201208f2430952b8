//! Variables by name: which one is meant, and where it is.

use gimli::{AttributeValue, Operation};
use hashbrown::HashMap;

use super::debug::{Die, Entry, Reader, Slice, is_flag, shown};
use super::near;
use super::scan::{self, Match};
use super::symbol::{ends_with_path, relaxed};
use crate::demangle;

/// Where a variable is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Location {
    /// As linked.
    Svma(u64),
    /// One per thread.
    ThreadLocal,
    /// In a register or on the stack while its function runs.
    Local,
    /// Nowhere; the words say why, with what to do.
    Nowhere(&'static str),
    /// Declared here, defined elsewhere.
    Elsewhere,
}

/// A variable of the wanted name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Variable {
    pub(super) die: Die,
    /// In full: `ns::Class::member`, `main::counter`.
    pub(super) path: String,
    pub(super) location: Location,
    /// Whether other files can mean it.
    pub(super) is_external: bool,
    /// The innermost function around it.
    pub(super) function: Option<String>,
    rank: Rank,
}

impl Variable {
    /// Whether the name that was written is the whole path.
    pub(super) fn is_whole(&self) -> bool {
        self.rank == Rank::Whole
    }
}

/// How well a path fits what was written; the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Whole,
    End,
    /// All segments are there, with others between them.
    Within,
}

/// The variables that `path` can mean, all of the best rank: those with an address if any has one.
pub(super) fn find(reader: &Reader<'_>, file: Option<&str>, path: &str) -> Vec<Variable> {
    let name = near::last_segment(path);
    let tags = [gimli::DW_TAG_variable, gimli::DW_TAG_member];
    let hits = scan::named(reader, name, &tags);
    let around: HashMap<Die, &Vec<Die>> = hits.iter().map(|hit| (hit.die, &hit.around)).collect();
    let mut found: Vec<Variable> = hits
        .iter()
        .filter_map(|hit| variable(reader, hit, &around, path))
        .filter(|variable| file.is_none_or(|file| is_of_file(reader, variable.die, file)))
        .collect();
    let has_place =
        |variable: &Variable| matches!(variable.location, Location::Svma(_) | Location::ThreadLocal);
    if found.iter().any(has_place) {
        found.retain(has_place);
    }
    if let Some(best) = found.iter().map(|variable| variable.rank).min() {
        found.retain(|variable| variable.rank == best);
    }
    // One variable may be told by several units.
    found.sort_by_key(|variable| (variable.die, variable.path.len()));
    let mut distinct: Vec<Variable> = Vec::new();
    for variable in found {
        let same = |known: &Variable| match (&known.location, &variable.location) {
            (Location::Svma(a), Location::Svma(b)) => a == b,
            (a, b) => a == b && known.path == variable.path,
        };
        if !distinct.iter().any(same) {
            distinct.push(variable);
        }
    }
    distinct
}

/// Whether `path` is a `thread_local!` of Rust, which is a scope with variables of other names in it.
pub(super) fn is_rust_thread_local(reader: &Reader<'_>, path: &str) -> bool {
    let hits = scan::named(reader, "__RUST_STD_INTERNAL_VAL", &[gimli::DW_TAG_variable]);
    hits.iter().any(|hit| {
        let names: Vec<String> =
            hit.around.iter().filter_map(|&scope| reader.name(scope)).map(shown).collect();
        let end = names.iter().position(|name| name.starts_with('{')).unwrap_or(names.len());
        rank(&names[..end].join("::"), path).is_some_and(|rank| rank != Rank::Within)
    })
}

fn variable(
    reader: &Reader<'_>,
    hit: &Match,
    known: &HashMap<Die, &Vec<Die>>,
    wanted: &str,
) -> Option<Variable> {
    let entry = reader.entry(hit.die).ok()?;
    let around = match reader.completes(hit.die.unit, &entry) {
        // A definition stands outside of the class or function that it belongs to.
        Some(declaration) => match known.get(&declaration) {
            Some(around) => around.to_vec(),
            None => reader.around(declaration),
        },
        None => hit.around.clone(),
    };
    let (mut segments, mut function) = (Vec::new(), None);
    for &scope in &around {
        scope_names(reader, scope, &mut segments, &mut function);
    }
    segments.push(shown(reader.name(hit.die)?));
    let mut path = segments.join("::");
    let mut rank = rank(&path, wanted);
    if rank != Some(Rank::Whole)
        && let Some(linked) = reader.linkage_name(hit.die)
    {
        let linked = shown(linked);
        let readable = demangle::readable(&linked);
        let other = self::rank(&relaxed(&readable), wanted).or((linked == wanted).then_some(Rank::Whole));
        if other.is_some() && (rank.is_none() || other < rank) {
            rank = other;
            path = readable.into_owned();
        }
    }
    let is_external = reader.attr(hit.die, gimli::DW_AT_external).is_some();
    let location = location(reader, hit.die, &entry);
    Some(Variable { die: hit.die, path, location, is_external, function, rank: rank? })
}

/// The segments that a scope adds to a path.
fn scope_names(reader: &Reader<'_>, scope: Die, segments: &mut Vec<String>, function: &mut Option<String>) {
    let Ok(entry) = reader.entry(scope) else { return };
    let is_function = matches!(entry.tag(), gimli::DW_TAG_subprogram | gimli::DW_TAG_inlined_subroutine);
    let names_path = matches!(
        entry.tag(),
        gimli::DW_TAG_namespace
            | gimli::DW_TAG_structure_type
            | gimli::DW_TAG_class_type
            | gimli::DW_TAG_union_type
            | gimli::DW_TAG_enumeration_type
            | gimli::DW_TAG_module
    );
    if is_function {
        // A method's own body stands outside of its class.
        if let Some(declaration) = reader.completes(scope.unit, &entry)
            && segments.is_empty()
        {
            for outer in reader.around(declaration) {
                if let Ok(entry) = reader.entry(outer)
                    && entry.tag() != gimli::DW_TAG_subprogram
                {
                    scope_names(reader, outer, segments, &mut None);
                }
            }
        }
        let name = reader.name(scope).map(shown).unwrap_or_else(|| "{function}".to_owned());
        segments.push(name);
        *function = Some(segments.join("::"));
    } else if names_path {
        let name = reader.name(scope).map(shown);
        segments.push(name.unwrap_or_else(|| match entry.tag() {
            gimli::DW_TAG_namespace => "(anonymous namespace)".to_owned(),
            _ => "{unnamed}".to_owned(),
        }));
    }
}

fn rank(path: &str, wanted: &str) -> Option<Rank> {
    if path == wanted {
        return Some(Rank::Whole);
    }
    if ends_with_path(path, wanted) {
        return Some(Rank::End);
    }
    let (have, want) = (segments(path), segments(wanted));
    if have.last().map(|name| plain(name)) != want.last().map(|name| plain(name)) {
        return None;
    }
    let mut left = want.iter().peekable();
    for name in &have {
        if left.peek().is_some_and(|wanted| *wanted == name || plain(name) == **wanted) {
            left.next();
        }
    }
    left.peek().is_none().then_some(Rank::Within)
}

/// A segment without generic arguments and parameters.
fn plain(segment: &str) -> &str {
    segment.split(['<', '(']).next().filter(|name| !name.is_empty()).unwrap_or(segment)
}

/// The parts between `::`, where brackets hold together what they enclose.
fn segments(path: &str) -> Vec<&str> {
    let mut rest = path;
    let mut parts = Vec::new();
    loop {
        let last = near::last_segment(rest);
        parts.push(last);
        match rest.len().checked_sub(last.len() + 2) {
            Some(end) => rest = &rest[..end],
            None => break,
        }
    }
    parts.reverse();
    parts
}

/// Whether a variable is of a file: declared in it, or in the unit that was made of it.
fn is_of_file(reader: &Reader<'_>, die: Die, file: &str) -> bool {
    let ends =
        |path: &str| path.strip_suffix(file).is_some_and(|before| before.is_empty() || before.ends_with('/'));
    reader.declared(die).0.is_some_and(|path| ends(&path))
        || reader.unit_name(die.unit).is_some_and(|path| ends(&path))
}

fn location<'d>(reader: &Reader<'d>, die: Die, entry: &Entry<'d>) -> Location {
    let Some(value) = entry.attr_value(gimli::DW_AT_location) else {
        if is_flag(entry, gimli::DW_AT_declaration) || entry.tag() == gimli::DW_TAG_member {
            return Location::Elsewhere;
        }
        if entry.attr(gimli::DW_AT_const_value).is_some() {
            return Location::Nowhere("the compiler made it a constant; build with -O0 or make it volatile");
        }
        return Location::Nowhere("the compiler left it out; build with -O0 or use it");
    };
    let AttributeValue::Exprloc(expression) = value else { return Location::Local };
    of_expression(reader, die, expression)
}

fn of_expression<'d>(reader: &Reader<'d>, die: Die, expression: gimli::Expression<Slice<'d>>) -> Location {
    const PIECES: Location = Location::Nowhere(
        "the optimizer split it into pieces; build without optimization, or watch a piece by symbol and offset",
    );
    let Ok(unit) = reader.unit(die.unit) else { return PIECES };
    let mut operations = expression.operations(unit.encoding());
    let mut at: Option<u64> = None;
    let mut is_empty = true;
    for _ in 0..16 {
        let operation = match operations.next() {
            Ok(Some(operation)) => operation,
            Ok(None) => break,
            Err(_) => return PIECES,
        };
        is_empty = false;
        at = match (operation, at) {
            (Operation::Address { address }, None) => Some(address),
            (Operation::AddressIndex { index }, None) => match reader.dwarf.address(&unit, index) {
                Ok(address) => Some(address),
                Err(_) => return PIECES,
            },
            (Operation::PlusConstant { value }, Some(at)) => Some(at.wrapping_add(value)),
            (Operation::TLS, _) => return Location::ThreadLocal,
            // The offset in the thread's block.
            (Operation::UnsignedConstant { .. } | Operation::SignedConstant { .. }, None) => None,
            (Operation::ConstantIndex { .. }, None) => None,
            (Operation::StackValue | Operation::ImplicitValue { .. }, _) => {
                return Location::Nowhere("the compiler keeps its value, not the variable; build with -O0");
            }
            (Operation::Piece { .. }, _) => return PIECES,
            _ => return Location::Local,
        };
    }
    match at {
        _ if is_empty => Location::Nowhere("the compiler left it out; build with -O0 or use it"),
        Some(0) => Location::Nowhere("the linker left it out, since nothing uses it"),
        Some(svma) => Location::Svma(svma),
        None => PIECES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks how paths fit what people write of them.
    #[test]
    fn paths_fit_from_the_end() {
        for (path, wanted, expected) in [
            ("a::b::C", "a::b::C", Some(Rank::Whole)),
            ("a::b::C", "b::C", Some(Rank::End)),
            ("a::b::C", "C", Some(Rank::End)),
            ("a::b::C", "a::C", Some(Rank::Within)),
            ("a::f<u32>::C", "f::C", Some(Rank::Within)),
            ("a::Box<x::y>::c", "Box::c", Some(Rank::Within)),
            ("a::b::C", "c::C", None),
            ("a::b::CC", "C", None),
            ("ns::f(int)::c", "f::c", Some(Rank::Within)),
        ] {
            assert_eq!(rank(path, wanted), expected, "{path} {wanted}");
        }
        assert_eq!(segments("a::<b::c as d>::{e}::f"), ["a", "<b::c as d>", "{e}", "f"]);
    }
}
