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
pub(super) fn name_of(units: &Units, near: UnitRef<'_, Reader>, entry: EntryPlace) -> Option<Reader> {
    find_along(units, near, entry, |found| found.name.take())
}

/// Line and column where the function of an entry is declared, which may be told by the entry that
/// it refers to.
pub(super) fn declared_at(units: &Units, near: UnitRef<'_, Reader>, entry: EntryPlace) -> Option<(u64, u64)> {
    let (mut line, mut column) = (None, None);
    find_along(units, near, entry, |found| {
        (line, column) = (line.or(found.line), column.or(found.column));
        line.zip(column)
    })
}

/// The first answer of an entry and of those that it refers to, one after the other.
fn find_along<T>(
    units: &Units,
    near: UnitRef<'_, Reader>,
    mut entry: EntryPlace,
    mut answer: impl FnMut(&mut Entry) -> Option<T>,
) -> Option<T> {
    for _ in 0..MOST_REFERENCES {
        let (is_shared, place) = entry;
        let file = if is_shared { units.shared()? } else { units };
        let offset = gimli::DebugInfoOffset(place);
        let inside = offset.to_unit_offset(&near.header).filter(|_| !is_shared);
        let mut found = match inside {
            Some(offset) => Entry::read(near, is_shared, offset)?,
            None => {
                let unit = file.around(place)?;
                let offset = offset.to_unit_offset(&unit.unit.header)?;
                Entry::read(unit.with(file.dwarf()), is_shared, offset)?
            }
        };
        if let Some(answer) = answer(&mut found) {
            return Some(answer);
        }
        entry = found.next?;
    }
    None
}

/// What an entry says of its function.
#[derive(Default)]
struct Entry {
    /// The linker's name before all others.
    name: Option<Reader>,
    line: Option<u64>,
    column: Option<u64>,
    /// The entry that it refers to.
    next: Option<EntryPlace>,
}

impl Entry {
    fn read(unit: UnitRef<'_, Reader>, is_shared: bool, offset: UnitOffset) -> Option<Entry> {
        let mut entries = unit.entries_raw(Some(offset)).ok()?;
        let abbreviation = entries.read_abbreviation().ok()??;
        let (mut found, mut plain) = (Entry::default(), None);
        for &attribute in abbreviation.attributes() {
            let attribute = entries.read_attribute(attribute).ok()?;
            let text = || unit.attr_string(attribute.value()).ok();
            match attribute.name() {
                gimli::DW_AT_linkage_name | gimli::DW_AT_MIPS_linkage_name => {
                    found.name = text().or(found.name)
                }
                gimli::DW_AT_name => plain = text().or(plain),
                gimli::DW_AT_decl_line => found.line = attribute.udata_value(),
                gimli::DW_AT_decl_column => found.column = attribute.udata_value(),
                gimli::DW_AT_abstract_origin | gimli::DW_AT_specification => {
                    found.next = referred(unit, is_shared, attribute.value());
                }
                _ => {}
            }
        }
        found.name = found.name.or(plain);
        Some(found)
    }
}
