//! The functions of one unit, and what was inlined into each.
use std::cmp::Ordering;
use std::sync::OnceLock;

use gimli::{Attribute, AttributeValue, EntriesRaw, UnitOffset, UnitRef};

use super::ranges::Ranges;
use super::sections::Reader;
use super::texts::EntryPlace;

/// Code of a function, or of one that was inlined.
#[derive(Clone, Copy, Debug)]
struct CodeRange {
    begin: u64,
    end: u64,
    /// How many inlined functions are around it.
    depth: usize,
    /// A place in the list of functions.
    function: usize,
}

impl CodeRange {
    /// Where it lies relative to an address at a depth.
    fn side(&self, depth: usize, address: u64) -> Ordering {
        self.depth.cmp(&depth).then(match () {
            () if address < self.begin => Ordering::Greater,
            () if address >= self.end => Ordering::Less,
            () => Ordering::Equal,
        })
    }
}

/// The functions of a unit that have code.
pub(super) struct Functions {
    functions: Vec<(UnitOffset, OnceLock<Option<Function>>)>,
    /// By their begin.
    ranges: Vec<CodeRange>,
}

/// A function with what was inlined into it.
pub(super) struct Function {
    /// Where its name is.
    pub(super) name: NameSource,
    inlined: Vec<Inlined>,
    /// By depth, then by their begin.
    ranges: Vec<CodeRange>,
}

/// An inlined function.
pub(super) struct Inlined {
    /// Where its name is.
    pub(super) name: NameSource,
    /// The file of the call, a number in the table of its unit.
    pub(super) call_file: Option<u64>,
    /// The line of the call; 0 is none.
    pub(super) call_line: u32,
    /// The column of the call; 0 is none.
    pub(super) call_column: u32,
}

/// Where the name of a function is.
#[derive(Clone, Debug, Default)]
pub(super) enum NameSource {
    /// It has none.
    #[default]
    None,
    /// In the entry itself.
    Own(EntryPlace, Reader),
    /// In another entry.
    Other(EntryPlace),
}

impl Functions {
    pub(super) fn parse(unit: UnitRef<'_, Reader>) -> gimli::Result<Functions> {
        let (mut functions, mut ranges) = (Vec::new(), Vec::new());
        let mut entries = unit.entries_raw(None)?;
        while !entries.is_empty() {
            let offset = entries.next_offset();
            let Some(abbreviation) = entries.read_abbreviation()? else { continue };
            if abbreviation.tag() != gimli::DW_TAG_subprogram {
                entries.skip_attributes(abbreviation.attributes())?;
                continue;
            }
            let mut found = Ranges::default();
            for &attribute in abbreviation.attributes() {
                found.add(unit, &entries.read_attribute(attribute)?)?;
            }
            let function = functions.len();
            let before = ranges.len();
            found.each(unit, |gimli::Range { begin, end }| {
                ranges.push(CodeRange { begin, end, depth: 0, function });
            })?;
            if ranges.len() > before {
                functions.push((offset, OnceLock::new()));
            }
        }
        ranges.sort_unstable_by_key(|range| range.begin);
        Ok(Functions { functions, ranges })
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }

    /// The function at an address; an error if what is known of it is damaged.
    pub(super) fn find(&self, unit: UnitRef<'_, Reader>, address: u64) -> Option<Result<&Function, ()>> {
        let at = self.ranges.binary_search_by(|range| range.side(0, address)).ok()?;
        let (offset, function) = self.functions.get(self.ranges.get(at)?.function)?;
        let parsed = function.get_or_init(|| Function::parse(unit, *offset).ok());
        Some(parsed.as_ref().ok_or(()))
    }
}

impl Function {
    fn parse(unit: UnitRef<'_, Reader>, offset: UnitOffset) -> gimli::Result<Function> {
        let mut entries = unit.entries_raw(Some(offset))?;
        let top = entries.next_depth();
        let abbreviation = entries.read_abbreviation()?.ok_or(gimli::Error::Io)?;
        let mut name = NameSource::None;
        for &attribute in abbreviation.attributes() {
            let attribute = entries.read_attribute(attribute)?;
            name.add(unit, offset, &attribute);
        }
        let mut function = Function { name, inlined: Vec::new(), ranges: Vec::new() };
        // How deep the entries of the inlined functions lie that are around an entry.
        let mut around: Vec<isize> = Vec::new();
        while !entries.is_empty() {
            let (offset, depth) = (entries.next_offset(), entries.next_depth());
            if depth <= top {
                break;
            }
            while around.last().is_some_and(|&outer| depth <= outer) {
                around.pop();
            }
            let Some(abbreviation) = entries.read_abbreviation()? else { continue };
            match abbreviation.tag() {
                gimli::DW_TAG_subprogram => skip(&mut entries, abbreviation, depth)?,
                gimli::DW_TAG_inlined_subroutine => {
                    let attributes = abbreviation.attributes();
                    function.add_inlined(unit, &mut entries, attributes, offset, around.len())?;
                    around.push(depth);
                }
                _ => entries.skip_attributes(abbreviation.attributes())?,
            }
        }
        function.ranges.sort_unstable_by_key(|range| (range.depth, range.begin));
        Ok(function)
    }

    fn add_inlined(
        &mut self,
        unit: UnitRef<'_, Reader>,
        entries: &mut EntriesRaw<'_, Reader>,
        attributes: &[gimli::AttributeSpecification],
        offset: UnitOffset,
        depth: usize,
    ) -> gimli::Result<()> {
        let mut inlined = Inlined { name: NameSource::None, call_file: None, call_line: 0, call_column: 0 };
        let mut found = Ranges::default();
        for &attribute in attributes {
            let attribute = entries.read_attribute(attribute)?;
            found.add(unit, &attribute)?;
            inlined.name.add(unit, offset, &attribute);
            match attribute.name() {
                gimli::DW_AT_call_file => {
                    // Before version 5 number 0 says that there is none.
                    if let AttributeValue::FileIndex(file) = attribute.value()
                        && (file > 0 || unit.header.version() >= 5)
                    {
                        inlined.call_file = Some(file);
                    }
                }
                gimli::DW_AT_call_line => inlined.call_line = attribute.udata_value().unwrap_or(0) as u32,
                gimli::DW_AT_call_column => {
                    inlined.call_column = attribute.udata_value().unwrap_or(0) as u32;
                }
                _ => {}
            }
        }
        let function = self.inlined.len();
        self.inlined.push(inlined);
        let ranges = &mut self.ranges;
        found.each(unit, |gimli::Range { begin, end }| {
            ranges.push(CodeRange { begin, end, depth, function });
        })
    }

    /// The functions that were inlined at an address, the outermost first.
    pub(super) fn inlined_at(&self, address: u64) -> impl Iterator<Item = &Inlined> {
        let (mut ranges, mut depth) = (&*self.ranges, 0);
        std::iter::from_fn(move || {
            let at = ranges.binary_search_by(|range| range.side(depth, address)).ok()?;
            let function = ranges.get(at)?.function;
            ranges = ranges.get(at + 1..)?;
            depth += 1;
            self.inlined.get(function)
        })
    }
}

/// Passes over an entry and all below it.
fn skip(
    entries: &mut EntriesRaw<'_, Reader>,
    abbreviation: &gimli::Abbreviation,
    depth: isize,
) -> gimli::Result<()> {
    entries.skip_attributes(abbreviation.attributes())?;
    while entries.next_depth() > depth {
        if let Some(abbreviation) = entries.read_abbreviation()? {
            entries.skip_attributes(abbreviation.attributes())?;
        }
    }
    Ok(())
}

impl NameSource {
    /// Takes over an attribute: the linker's name before all others, otherwise the first one.
    fn add(&mut self, unit: UnitRef<'_, Reader>, offset: UnitOffset, attribute: &Attribute<Reader>) {
        let is_first = matches!(self, NameSource::None);
        match attribute.name() {
            gimli::DW_AT_abstract_origin | gimli::DW_AT_specification if is_first => {
                if let Some(other) = referred(unit, false, attribute.value()) {
                    *self = NameSource::Other(other);
                }
            }
            gimli::DW_AT_name if !is_first => {}
            gimli::DW_AT_linkage_name | gimli::DW_AT_MIPS_linkage_name | gimli::DW_AT_name => {
                if let Ok(name) = unit.attr_string(attribute.value()) {
                    let place = offset.to_debug_info_offset(&unit.header).map_or(0, |place| place.0);
                    *self = NameSource::Own((false, place), name);
                }
            }
            _ => {}
        }
    }
}

/// The entry that an attribute refers to.
pub(super) fn referred(
    unit: UnitRef<'_, Reader>,
    is_shared: bool,
    value: AttributeValue<Reader>,
) -> Option<EntryPlace> {
    match value {
        AttributeValue::UnitRef(offset) => Some((is_shared, offset.to_debug_info_offset(&unit.header)?.0)),
        AttributeValue::DebugInfoRef(offset) => Some((is_shared, offset.0)),
        AttributeValue::DebugInfoRefSup(offset) => Some((true, offset.0)),
        _ => None,
    }
}
