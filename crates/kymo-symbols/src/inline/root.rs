//! The addresses of a unit, read from its root alone: without the abbreviations of all its entries
//! and without the names of its files.
use std::sync::Arc;

use gimli::{AttributeValue, DebugAbbrev, Reader as _, Section as _, UnitHeader, UnitRef};

use super::ranges::Ranges;
use super::section::{PagedSection, SectionReader};
use super::sections::Reader;
use crate::metered::Metered;

/// Attributes of a root; compilers write 20.
const MOST_ATTRIBUTES: usize = 256;

/// The ranges that the root of a unit has.
pub(super) fn ranges(dwarf: &gimli::Dwarf<Reader>, header: UnitHeader<Reader>) -> Option<Vec<gimli::Range>> {
    let unit = match first_abbreviation(dwarf, &header) {
        Some(abbreviations) => bare_unit(dwarf, header, abbreviations)?,
        None => dwarf.unit(header).ok()?,
    };
    let unit = UnitRef::new(dwarf, &unit);
    let mut entries = unit.entries_raw(None).ok()?;
    let root = entries.read_abbreviation().ok()??;
    let mut found = Ranges::default();
    for &attribute in root.attributes() {
        found.add(unit, &entries.read_attribute(attribute).ok()?).ok()?;
    }
    let mut ranges = Vec::new();
    found.each(unit, |range| ranges.push(range)).ok()?;
    Some(ranges)
}

/// The abbreviation of the root, if it is the first one, as compilers write it.
fn first_abbreviation(
    dwarf: &gimli::Dwarf<Reader>,
    header: &UnitHeader<Reader>,
) -> Option<gimli::Abbreviations> {
    let mut start = dwarf.debug_abbrev.reader().clone();
    start.skip(header.debug_abbrev_offset().0).ok()?;
    let mut rest = start.clone();
    let code = rest.read_uleb128().ok()?;
    let mut root = header.range_from(header.root_offset()..).ok()?;
    if root.read_uleb128().ok()? != code {
        return None;
    }
    rest.read_uleb128().ok()?;
    rest.skip(1).ok()?;
    for _ in 0..MOST_ATTRIBUTES {
        let (name, form) = (rest.read_uleb128().ok()?, rest.read_uleb128().ok()?);
        if form == u64::from(gimli::DW_FORM_implicit_const.0) {
            rest.read_sleb128().ok()?;
        }
        if (name, form) == (0, 0) {
            let length = rest.offset_from(&start);
            start.truncate(length).ok()?;
            // A zero ends the table.
            let table = [&*start.to_slice().ok()?, &[0]].concat();
            let table = Metered(SectionReader::new(PagedSection::of_bytes(table)));
            return DebugAbbrev::from(table).abbreviations(gimli::DebugAbbrevOffset(0)).ok();
        }
    }
    None
}

/// A unit with what the ranges of its root need.
fn bare_unit(
    dwarf: &gimli::Dwarf<Reader>,
    header: UnitHeader<Reader>,
    abbreviations: gimli::Abbreviations,
) -> Option<gimli::Unit<Reader>> {
    let mut unit = gimli::Unit {
        header,
        abbreviations: Arc::new(abbreviations),
        name: None,
        comp_dir: None,
        low_pc: 0,
        str_offsets_base: gimli::DebugStrOffsetsBase(0),
        addr_base: gimli::DebugAddrBase(0),
        loclists_base: gimli::DebugLocListsBase(0),
        rnglists_base: gimli::DebugRngListsBase(0),
        line_program: None,
        dwo_id: None,
    };
    let mut low = None;
    {
        let mut entries = unit.header.entries_raw(&unit.abbreviations, None).ok()?;
        let root = entries.read_abbreviation().ok()??;
        for &attribute in root.attributes() {
            let attribute = entries.read_attribute(attribute).ok()?;
            match (attribute.name(), attribute.value()) {
                (gimli::DW_AT_low_pc, value) => low = Some(value),
                (_, AttributeValue::DebugAddrBase(base)) => unit.addr_base = base,
                (_, AttributeValue::DebugRngListsBase(base)) => unit.rnglists_base = base,
                _ => {}
            }
        }
    }
    // The base of the addresses may come after what counts from it.
    unit.low_pc = match low {
        Some(AttributeValue::Addr(address)) => address,
        Some(AttributeValue::DebugAddrIndex(index)) => dwarf.address(&unit, index).ok()?,
        _ => 0,
    };
    Some(unit)
}
