//! Entries of a name, without reading all debug information.
//!
//! A name is stored once, and entries refer to it by its offset. So the sections are searched as bytes for the name and
//! for its offset, at memory speed, and only units in which one of them occurs are parsed; a false occurrence costs one
//! unit's parsing and nothing else.
//!
//! ```text
//!  .debug_str   ... counter\0 ...     at 0x1c45
//!  .debug_info  | unit | unit 45 1c 00 00 | unit | ...      this one is parsed
//! ```

use crate::pool;
use gimli::{AttributeValue, DwTag, Section, UnitOffset};
use hashbrown::HashSet;
use memchr::memmem;

use super::debug::{Die, Head, Part, Reader, Slice};

/// A name whose text ends this many others is looked for in all units.
const MOST_OFFSETS: usize = 16;
/// Entries of one name that are looked at; a name that more have is ambiguous long before.
const MOST_MATCHES: usize = 4096;
/// Local variables of the name that are kept of a unit, for a sentence about them.
const MOST_LOCALS: usize = 16;
/// Declarations that are looked up from other units.
const MOST_ABROAD: usize = 32;

/// An entry with the wanted name, or one that completes such an entry.
#[derive(Debug)]
pub(super) struct Match {
    pub(super) die: Die,
    /// The entries around it, the outermost first, without the unit itself.
    pub(super) around: Vec<Die>,
    /// Whether it says itself where it is.
    has_place: bool,
}

/// All entries with one of `tags` whose name is `name`, and the variables that complete them elsewhere.
pub(super) fn named(reader: &Reader<'_>, name: &str, tags: &[DwTag]) -> Vec<Match> {
    let wanted = EntryMatch::new(reader, name.as_bytes(), tags);
    let numbers = wanted.units(reader);
    let mut found = scan(reader, &numbers, &wanted);
    // Definitions in other units, as link-time optimization makes them, refer by offset in the section.
    let mut abroad = EntryMatch { targets: HashSet::new(), ..EntryMatch::nothing() };
    let elsewhere = |hit: &&Match| !hit.has_place && hit.die.unit < reader.own_infos();
    for hit in found.iter().filter(elsewhere).take(MOST_ABROAD) {
        if let Some(extent) = reader.extent(hit.die.unit as usize) {
            abroad.targets.insert(extent.start.saturating_add(hit.die.offset));
        }
    }
    if tags.contains(&gimli::DW_TAG_variable) && !abroad.targets.is_empty() {
        let info = reader.dwarf.debug_info.reader().slice();
        let needles: Vec<[u8; 4]> =
            abroad.targets.iter().filter_map(|&at| u32::try_from(at).ok()).map(u32::to_le_bytes).collect();
        let mut numbers = UnitSet::new(reader);
        needles.iter().for_each(|needle| numbers.holding(reader, info, needle));
        found.extend(scan(reader, &numbers.list(), &abroad));
    }
    found.sort_by_key(|hit| hit.die);
    found.dedup_by_key(|hit| hit.die);
    found
}

struct EntryMatch<'a> {
    name: &'a [u8],
    /// Offsets of the name in `.debug_str`, of the module and of the shared file.
    strings: [HashSet<usize>; 2],
    tags: &'a [DwTag],
    /// Offsets in `.debug_info` of entries that variables of other units complete.
    targets: HashSet<usize>,
}

impl<'a> EntryMatch<'a> {
    fn nothing() -> EntryMatch<'a> {
        EntryMatch {
            name: &[],
            strings: [HashSet::new(), HashSet::new()],
            tags: &[],
            targets: HashSet::new(),
        }
    }

    fn new(reader: &Reader<'_>, name: &'a [u8], tags: &'a [DwTag]) -> EntryMatch<'a> {
        let offsets =
            |dwarf: &gimli::Dwarf<Slice<'_>>| positions(dwarf.debug_str.reader().slice(), &ended(name));
        let shared = reader.dwarf.sup().map(offsets).unwrap_or_default();
        EntryMatch { name, strings: [offsets(&reader.dwarf), shared], tags, targets: HashSet::new() }
    }

    fn names(&self, part: Part, value: AttributeValue<Slice<'_>>) -> bool {
        let own = usize::from(part == Part::Shared);
        match value {
            AttributeValue::String(text) => text.slice() == self.name,
            AttributeValue::DebugStrRef(offset) => self.strings[own].contains(&offset.0),
            AttributeValue::DebugStrRefSup(offset) => self.strings[1].contains(&offset.0),
            _ => false,
        }
    }

    /// The units that can hold a match.
    fn units(&self, reader: &Reader<'_>) -> Vec<u32> {
        let mut set = UnitSet::new(reader);
        let info = reader.dwarf.debug_info.reader().slice();
        set.holding(reader, info, &ended(self.name));
        let strings = self.strings[0].len() + self.strings[1].len();
        if strings > MOST_OFFSETS {
            set.all();
        } else {
            for &offset in self.strings.iter().flatten() {
                if let Ok(offset) = u32::try_from(offset) {
                    set.holding(reader, info, &offset.to_le_bytes());
                    set.indexing(reader, offset);
                }
            }
        }
        // Types in sections of their own, and those of the shared file, are few.
        set.beyond_info(reader);
        set.list()
    }
}

fn ended(name: &[u8]) -> Vec<u8> {
    let mut text = name.to_vec();
    text.push(0);
    text
}

fn positions(bytes: &[u8], text: &[u8]) -> HashSet<usize> {
    memmem::find_iter(bytes, text).take(1 << 16).collect()
}

struct UnitSet {
    chosen: Vec<bool>,
}

impl UnitSet {
    fn new(reader: &Reader<'_>) -> UnitSet {
        UnitSet { chosen: vec![false; reader.heads.len()] }
    }

    fn all(&mut self) {
        self.chosen.fill(true);
    }

    fn list(&self) -> Vec<u32> {
        (0..).zip(&self.chosen).filter(|(_, chosen)| **chosen).map(|(number, _)| number).collect()
    }

    /// Adds the units of `.debug_info` whose bytes hold `needle`.
    fn holding(&mut self, reader: &Reader<'_>, info: &[u8], needle: &[u8]) {
        let finder = memmem::Finder::new(needle);
        for number in 0..reader.own_infos() as usize {
            if !self.chosen[number]
                && let Some(extent) = reader.extent(number)
                && let Some(bytes) = info.get(extent.start..extent.end.min(info.len()))
            {
                self.chosen[number] = finder.find(bytes).is_some();
            }
        }
    }

    /// Adds the units that know strings by number and could mean the one at `offset`.
    fn indexing(&mut self, reader: &Reader<'_>, offset: u32) {
        let table = reader.dwarf.debug_str_offsets.reader().slice();
        if memmem::find(table, &offset.to_le_bytes()).is_none() {
            return;
        }
        for (number, head) in reader.heads.iter().enumerate() {
            self.chosen[number] |= head.header.version() >= 5;
        }
    }

    fn beyond_info(&mut self, reader: &Reader<'_>) {
        self.chosen[reader.own_infos() as usize..].fill(true);
    }
}

fn scan(reader: &Reader<'_>, numbers: &[u32], wanted: &EntryMatch<'_>) -> Vec<Match> {
    let (dwarf, heads) = (&reader.dwarf, &reader.heads);
    let one = |&number: &u32| {
        let mut found = Vec::new();
        if let Some(head) = heads.get(number as usize) {
            // What a damaged unit told before its damage stays.
            let _ = scan_unit(dwarf, number, head, wanted, &mut found);
        }
        found
    };
    let mut found: Vec<Match> = match numbers.len() {
        // Starting the pool costs more than a few units.
        0..=4 => numbers.iter().flat_map(one).collect(),
        _ => pool::map(numbers, one).into_iter().flatten().collect(),
    };
    found.truncate(MOST_MATCHES);
    found
}

fn scan_unit(
    dwarf: &gimli::Dwarf<Slice<'_>>,
    number: u32,
    head: &Head<'_>,
    wanted: &EntryMatch<'_>,
    found: &mut Vec<Match>,
) -> gimli::Result<()> {
    let part = head.part;
    let sections = match (part, dwarf.sup()) {
        (Part::Shared, Some(shared)) => shared,
        _ => dwarf,
    };
    let abbreviations = head.header.abbreviations(&sections.debug_abbrev)?;
    let mut entries = head.header.entries_raw(&abbreviations, None)?;
    let mut open: Vec<(isize, usize)> = Vec::new();
    // Names found in this unit, for the entries that complete them.
    let mut here: HashSet<usize> = HashSet::new();
    let (mut string_base, mut locals) = (None, 0);
    while !entries.is_empty() && found.len() < MOST_MATCHES {
        let (offset, depth) = (entries.next_offset().0, entries.next_depth());
        let Some(abbreviation) = entries.read_abbreviation()? else { continue };
        while open.last().is_some_and(|&(known, _)| known >= depth) {
            open.pop();
        }
        let tag = abbreviation.tag();
        let is_root = depth == 0;
        let is_variable = tag == gimli::DW_TAG_variable;
        if is_root || is_variable || wanted.tags.contains(&tag) {
            let (mut is_named, mut has_name, mut target) = (false, false, None);
            let (mut is_local, mut is_external, mut has_place) = (false, false, false);
            for spec in abbreviation.attributes() {
                let attribute = entries.read_attribute(*spec)?;
                match (attribute.name(), attribute.raw_value()) {
                    (gimli::DW_AT_name, AttributeValue::DebugStrOffsetsIndex(index)) => {
                        has_name = true;
                        let base = string_base.unwrap_or_else(|| {
                            let encoding = head.header.encoding();
                            gimli::DebugStrOffsetsBase::default_for_encoding_and_file(
                                encoding,
                                gimli::DwarfFileType::Main,
                            )
                        });
                        let format = head.header.format();
                        if let Ok(at) = sections.debug_str_offsets.get_str_offset(format, base, index) {
                            is_named |= wanted.names(part, AttributeValue::DebugStrRef(at));
                        }
                    }
                    (gimli::DW_AT_name, value) => {
                        has_name = true;
                        is_named |= wanted.names(part, value);
                    }
                    (gimli::DW_AT_str_offsets_base, AttributeValue::DebugStrOffsetsBase(base)) if is_root => {
                        string_base = Some(base);
                    }
                    (gimli::DW_AT_str_offsets_base, AttributeValue::SecOffset(base)) if is_root => {
                        string_base = Some(gimli::DebugStrOffsetsBase(base));
                    }
                    (gimli::DW_AT_location, value) => {
                        has_place = true;
                        is_local = !is_static(&value);
                    }
                    (gimli::DW_AT_external, AttributeValue::Flag(flag)) => is_external = flag,
                    (gimli::DW_AT_specification | gimli::DW_AT_abstract_origin, value) => {
                        target = Some(value)
                    }
                    _ => {}
                }
            }
            let start = head.header.offset().0;
            let target = match target {
                Some(AttributeValue::UnitRef(UnitOffset(at))) => Some(at.saturating_add(start)),
                Some(AttributeValue::DebugInfoRef(at)) => Some(at.0),
                _ => None,
            };
            let is_known = |at: usize| {
                wanted.targets.contains(&at) || at.checked_sub(start).is_some_and(|at| here.contains(&at))
            };
            let completes = is_variable && !has_name && target.is_some_and(is_known);
            // A field is no variable; a static member is marked.
            let is_named =
                is_named && wanted.tags.contains(&tag) && (tag != gimli::DW_TAG_member || is_external);
            locals += usize::from(is_named && is_local);
            if !is_root && ((is_named && !(is_local && locals > MOST_LOCALS)) || (completes && !is_local)) {
                here.insert(offset);
                let around = open.iter().skip(1).map(|&(_, offset)| Die { unit: number, offset }).collect();
                found.push(Match { die: Die { unit: number, offset }, around, has_place });
            }
        } else {
            entries.skip_attributes(abbreviation.attributes())?;
        }
        if abbreviation.has_children() {
            open.push((depth, offset));
        }
    }
    Ok(())
}

/// Whether a location can be an address or a place in a thread's block, by its first operation.
fn is_static(location: &AttributeValue<Slice<'_>>) -> bool {
    let (AttributeValue::Exprloc(gimli::Expression(bytes)) | AttributeValue::Block(bytes)) = location else {
        return false;
    };
    let first = bytes.slice().first().map(|&byte| gimli::DwOp(byte));
    matches!(
        first,
        None | Some(
            gimli::DW_OP_addr
                | gimli::DW_OP_addrx
                | gimli::DW_OP_GNU_addr_index
                | gimli::DW_OP_constx
                | gimli::DW_OP_GNU_const_index
                | gimli::DW_OP_const4u
                | gimli::DW_OP_const8u
                | gimli::DW_OP_constu
        )
    )
}
