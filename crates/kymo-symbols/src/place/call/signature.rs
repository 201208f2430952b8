//! What a function takes, as it is declared, and the language that it is written in.

use gimli::AttributeValue;
use hashbrown::HashMap;

use super::super::debug::{Die, Reader, shown};
use super::super::types::Type;

/// Parameters of one function that are looked at.
const MOST_PARAMETERS: usize = 256;

/// Languages, as far as their calling conventions differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Language {
    C,
    Cplusplus,
    Rust,
    Other,
}

/// A parameter as it is declared.
#[derive(Clone, Debug)]
pub(super) struct Declared {
    pub(super) name: String,
    pub(super) kind: Type,
    /// The entry that can say where it is.
    pub(super) die: Option<Die>,
    pub(super) is_artificial: bool,
}

/// The parameters of a function in the order of the declaration; of one that the compiler has made
/// of another one, those of the other.
pub(super) fn parameters(reader: &Reader<'_>, die: Die) -> Vec<Declared> {
    let own = listed(reader, die);
    let origin =
        reader.entry(die).ok().and_then(|entry| reader.link(die.unit, &entry, gimli::DW_AT_abstract_origin));
    let declared = |&die: &Die, place: Option<Die>| {
        let flag = reader.attr(die, gimli::DW_AT_artificial).map(|(_, value)| value);
        Declared {
            name: reader.name(die).map(shown).unwrap_or_default(),
            kind: Type::of(reader, die),
            die: place,
            is_artificial: matches!(flag, Some(AttributeValue::Flag(true))),
        }
    };
    let plain = || own.iter().map(|die| declared(die, Some(*die))).collect();
    let Some(origin) = origin else { return plain() };
    let of_origin = |die: Die| -> Option<Die> {
        let entry = reader.entry(die).ok()?;
        reader.link(die.unit, &entry, gimli::DW_AT_abstract_origin)
    };
    let places: HashMap<Die, Die> = own.iter().filter_map(|&die| Some((of_origin(die)?, die))).collect();
    let all = listed(reader, origin);
    if all.is_empty() || places.len() < own.len() {
        return plain();
    }
    let each = all.iter().map(|die| declared(die, places.get(die).copied()));
    // What a constructor is told by some of its variants only.
    each.filter(|parameter| parameter.die.is_some() || !parameter.is_artificial).collect()
}

/// The entries of the parameters below an entry; packs are looked into.
fn listed(reader: &Reader<'_>, die: Die) -> Vec<Die> {
    let (mut found, mut packs) = (Vec::new(), Vec::new());
    let _ = reader.children(die, |child, entry| {
        match entry.tag() {
            gimli::DW_TAG_formal_parameter => found.push(child),
            gimli::DW_TAG_GNU_formal_parameter_pack => packs.push((found.len(), child)),
            _ => {}
        }
        found.len() + packs.len() < MOST_PARAMETERS
    });
    for (at, pack) in packs.into_iter().rev() {
        let mut inner = Vec::new();
        let _ = reader.children(pack, |child, entry| {
            if entry.tag() == gimli::DW_TAG_formal_parameter {
                inner.push(child);
            }
            inner.len() < MOST_PARAMETERS
        });
        found.splice(at..at, inner);
    }
    found.truncate(MOST_PARAMETERS);
    found
}

pub(super) fn language(reader: &Reader<'_>, unit: u32) -> Language {
    let Some(language) = reader.language(unit) else { return Language::Other };
    match language {
        gimli::DW_LANG_C
        | gimli::DW_LANG_C89
        | gimli::DW_LANG_C99
        | gimli::DW_LANG_C11
        | gimli::DW_LANG_C17
        | gimli::DW_LANG_ObjC => Language::C,
        gimli::DW_LANG_C_plus_plus
        | gimli::DW_LANG_C_plus_plus_03
        | gimli::DW_LANG_C_plus_plus_11
        | gimli::DW_LANG_C_plus_plus_14
        | gimli::DW_LANG_C_plus_plus_17
        | gimli::DW_LANG_C_plus_plus_20
        | gimli::DW_LANG_ObjC_plus_plus => Language::Cplusplus,
        gimli::DW_LANG_Rust => Language::Rust,
        // C23, whatever number it has.
        gimli::DwLang(0x3e) => Language::C,
        _ => Language::Other,
    }
}
