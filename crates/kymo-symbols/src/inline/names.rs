//! Names of functions, which are often in another entry.
use gimli::{UnitOffset, UnitRef};

use super::function::referred;
use super::sections::Reader;
use super::texts::EntryPlace;
use super::units::Units;

/// Entries that refer to each other for a name; damaged information must not make an endless chain.
const MOST_REFERENCES: usize = 16;

/// The name of the function of an entry, which may be that of the entry that it refers to. `near`:
/// a unit of the first file that most references lie in.
pub(super) fn name_of(units: &Units, near: UnitRef<'_, Reader>, mut entry: EntryPlace) -> Option<Reader> {
    for _ in 0..MOST_REFERENCES {
        let (is_shared, place) = entry;
        let file = if is_shared { units.shared()? } else { units };
        let offset = gimli::DebugInfoOffset(place);
        let inside = offset.to_unit_offset(&near.header).filter(|_| !is_shared);
        entry = match inside {
            Some(offset) => match name_in(near, is_shared, offset)? {
                NameOrNext::Name(name) => return Some(name),
                NameOrNext::Next(next) => next,
            },
            None => {
                let unit = file.around(place)?;
                let offset = offset.to_unit_offset(&unit.unit.header)?;
                match name_in(unit.with(file.dwarf()), is_shared, offset)? {
                    NameOrNext::Name(name) => return Some(name),
                    NameOrNext::Next(next) => next,
                }
            }
        };
    }
    None
}

enum NameOrNext {
    Name(Reader),
    Next(EntryPlace),
}

fn name_in(unit: UnitRef<'_, Reader>, is_shared: bool, offset: UnitOffset) -> Option<NameOrNext> {
    let mut entries = unit.entries_raw(Some(offset)).ok()?;
    let abbreviation = entries.read_abbreviation().ok()??;
    let (mut name, mut next) = (None, None);
    for &attribute in abbreviation.attributes() {
        let attribute = entries.read_attribute(attribute).ok()?;
        match attribute.name() {
            gimli::DW_AT_linkage_name | gimli::DW_AT_MIPS_linkage_name => {
                if let Ok(name) = unit.attr_string(attribute.value()) {
                    return Some(NameOrNext::Name(name));
                }
            }
            gimli::DW_AT_name => name = unit.attr_string(attribute.value()).ok().or(name),
            gimli::DW_AT_abstract_origin | gimli::DW_AT_specification => next = Some(attribute.value()),
            _ => {}
        }
    }
    match name {
        Some(name) => Some(NameOrNext::Name(name)),
        None => referred(unit, is_shared, next?).map(NameOrNext::Next),
    }
}
