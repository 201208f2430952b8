//! The debug information of a module: entries, references between them, names.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;

use gimli::{AttributeValue, DwAt, EndianSlice, LittleEndian, UnitOffset, UnitType};
use hashbrown::HashMap;

use crate::budget::Charge;
use crate::elf::ElfFile;
use crate::inline;

/// Bytes of a section, borrowed from [`DebugInfo`].
pub(super) type Slice<'d> = EndianSlice<'d, LittleEndian>;
pub(super) type Entry<'d> = gimli::DebuggingInformationEntry<Slice<'d>>;
pub(super) type Unit<'d> = gimli::Unit<Slice<'d>>;

/// References that are followed from one entry to the one it completes.
const LONGEST_CHAIN: usize = 8;
/// Searches for definitions of declared types, each of all units.
const MOST_SEARCHES: usize = 64;
/// Parsed units that are kept; beyond them all are parsed anew when they are asked for.
const MOST_UNITS: usize = 16 << 10;
/// Names are cut here when they are shown.
const LONGEST_NAME: usize = 4096;

/// The sections, read and decompressed once.
#[derive(Debug)]
pub(super) struct DebugInfo {
    _room: Vec<Charge>,
    sections: gimli::DwarfSections<Vec<u8>>,
    /// What several debug files share (`.gnu_debugaltlink`).
    shared: Option<gimli::DwarfSections<Vec<u8>>>,
}

impl DebugInfo {
    /// `lists`: with those of ranges and locations, which only questions about functions need.
    pub(super) fn read(elf: &ElfFile, lists: bool) -> DebugInfo {
        let shared = inline::supplementary(elf).ok().flatten();
        let mut room = Vec::new();
        let sections = sections_of(elf, lists, &mut room);
        let shared = shared.as_ref().map(|elf| sections_of(elf, lists, &mut room));
        DebugInfo { _room: room, sections, shared }
    }

    pub(super) fn reader(&self) -> Reader<'_> {
        Reader::new(self.sections.borrow_with_sup(self.shared.as_ref(), |section| {
            EndianSlice::new(section.as_slice(), LittleEndian)
        }))
    }
}

fn sections_of(elf: &ElfFile, lists: bool, room: &mut Vec<Charge>) -> gimli::DwarfSections<Vec<u8>> {
    use gimli::SectionId as Id;
    let load = |id: Id| -> Result<Vec<u8>, std::convert::Infallible> {
        let needed = matches!(
            id,
            Id::DebugInfo
                | Id::DebugAbbrev
                | Id::DebugStr
                | Id::DebugLineStr
                | Id::DebugStrOffsets
                | Id::DebugAddr
                | Id::DebugTypes
                | Id::DebugLine
        ) || lists
            && matches!(id, Id::DebugRanges | Id::DebugRngLists | Id::DebugLoc | Id::DebugLocLists);
        let bytes = needed.then(|| inline::section_bytes(elf, id.name().as_bytes())).flatten();
        let (bytes, charge) = bytes.unwrap_or_default();
        room.extend(charge);
        Ok(bytes)
    };
    match gimli::DwarfSections::load(load) {
        Ok(sections) => sections,
        Err(never) => match never {},
    }
}

/// Which sections a unit lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Own,
    Shared,
}

/// The head of a unit, and where it lies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head<'d> {
    pub(super) part: Part,
    pub(super) header: gimli::UnitHeader<Slice<'d>>,
}

/// An entry: the number of its unit and where it is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Die {
    pub(super) unit: u32,
    pub(super) offset: usize,
}

impl Die {
    pub(super) fn at(self) -> UnitOffset {
        UnitOffset(self.offset)
    }
}

/// Answers questions about entries. Units are parsed when one of their entries is asked for.
pub(super) struct Reader<'d> {
    pub(super) dwarf: gimli::Dwarf<Slice<'d>>,
    /// Those of `.debug_info` by offset, then of `.debug_types`, then shared ones.
    pub(super) heads: Vec<Head<'d>>,
    own_infos: usize,
    shared_from: usize,
    units: RefCell<HashMap<u32, Rc<Unit<'d>>>>,
    signatures: RefCell<Option<HashMap<u64, Die>>>,
    /// Types that are only declared, with their definitions; each costs a search.
    definitions: RefCell<HashMap<Die, Option<Die>>>,
}

impl<'d> Reader<'d> {
    fn new(dwarf: gimli::Dwarf<Slice<'d>>) -> Reader<'d> {
        let mut heads = Vec::new();
        // A damaged header ends the list; what came before stays.
        let (mut infos, mut types) = (dwarf.units(), dwarf.type_units());
        let head = |part, header| Head { part, header };
        heads.extend(std::iter::from_fn(|| infos.next().ok()?).map(|header| head(Part::Own, header)));
        let own_infos = heads.len();
        heads.extend(std::iter::from_fn(|| types.next().ok()?).map(|header| head(Part::Own, header)));
        let shared_from = heads.len();
        if let Some(shared) = dwarf.sup() {
            let mut infos = shared.units();
            heads.extend(std::iter::from_fn(|| infos.next().ok()?).map(|header| head(Part::Shared, header)));
        }
        Reader {
            dwarf,
            heads,
            own_infos,
            shared_from,
            units: RefCell::default(),
            signatures: RefCell::default(),
            definitions: RefCell::default(),
        }
    }

    /// How many of the units are in `.debug_info`, from the first one on.
    pub(super) fn own_infos(&self) -> u32 {
        self.own_infos as u32
    }

    /// The sections that a unit's references and strings mean.
    pub(super) fn dwarf_of(&self, part: Part) -> &gimli::Dwarf<Slice<'d>> {
        match (part, self.dwarf.sup()) {
            (Part::Shared, Some(shared)) => shared,
            _ => &self.dwarf,
        }
    }

    pub(super) fn unit(&self, number: u32) -> gimli::Result<Rc<Unit<'d>>> {
        if let Some(unit) = self.units.borrow().get(&number) {
            return Ok(Rc::clone(unit));
        }
        let head = self.heads.get(number as usize).ok_or(gimli::Error::NoEntryAtGivenOffset(0))?;
        let unit = Rc::new(self.dwarf_of(head.part).unit(head.header)?);
        let mut units = self.units.borrow_mut();
        // A unit of twelve bytes is kept as two thousand.
        if units.len() >= MOST_UNITS {
            units.clear();
        }
        units.insert(number, Rc::clone(&unit));
        Ok(unit)
    }

    fn part(&self, unit: u32) -> Part {
        self.heads.get(unit as usize).map_or(Part::Own, |head| head.part)
    }

    pub(super) fn entry(&self, die: Die) -> gimli::Result<Entry<'d>> {
        self.unit(die.unit)?.entry(die.at())
    }

    /// Tells the direct children of an entry, until `tell` says stop with a false.
    pub(super) fn children(
        &self,
        die: Die,
        mut tell: impl FnMut(Die, &Entry<'d>) -> bool,
    ) -> gimli::Result<()> {
        let unit = self.unit(die.unit)?;
        let mut tree = unit.entries_tree(Some(die.at()))?;
        let mut children = tree.root()?.children();
        while let Some(child) = children.next()? {
            let entry = child.entry();
            if !tell(Die { unit: die.unit, offset: entry.offset().0 }, entry) {
                break;
            }
        }
        Ok(())
    }

    /// The entry that an attribute refers to.
    pub(super) fn refers(&self, from: u32, value: AttributeValue<Slice<'d>>) -> Option<Die> {
        match value {
            AttributeValue::UnitRef(offset) => Some(Die { unit: from, offset: offset.0 }),
            AttributeValue::DebugInfoRef(offset) => self.in_info(self.part(from), offset),
            AttributeValue::DebugInfoRefSup(offset) => self.in_info(Part::Shared, offset),
            AttributeValue::DebugTypesRef(signature) => self.of_signature(signature.0),
            _ => None,
        }
    }

    /// The entry that an attribute of `entry` refers to.
    pub(super) fn link(&self, from: u32, entry: &Entry<'d>, name: DwAt) -> Option<Die> {
        self.refers(from, entry.attr_value(name)?)
    }

    fn in_info(&self, part: Part, offset: gimli::DebugInfoOffset) -> Option<Die> {
        let (first, heads) = match part {
            Part::Own => (0, &self.heads[..self.own_infos]),
            Part::Shared => (self.shared_from, &self.heads[self.shared_from..]),
        };
        let start = |head: &Head<'d>| head.header.debug_info_offset().map_or(usize::MAX, |offset| offset.0);
        let number = heads.partition_point(|head| start(head) <= offset.0).checked_sub(1)?;
        let inside = offset.to_unit_offset(&heads[number].header)?;
        Some(Die { unit: u32::try_from(first + number).ok()?, offset: inside.0 })
    }

    fn of_signature(&self, signature: u64) -> Option<Die> {
        let mut known = self.signatures.borrow_mut();
        let known = known.get_or_insert_with(|| {
            let mut map = HashMap::new();
            for (number, head) in self.heads.iter().enumerate() {
                if let UnitType::Type { type_signature, type_offset } = head.header.type_() {
                    let die = Die { unit: number as u32, offset: type_offset.0 };
                    map.entry(type_signature.0).or_insert(die);
                }
            }
            map
        });
        known.get(&signature).copied()
    }

    /// A text attribute of an entry itself.
    pub(super) fn text(&self, unit: u32, entry: &Entry<'d>, name: DwAt) -> Option<&'d [u8]> {
        let value = entry.attr_value(name)?;
        let parsed = self.unit(unit).ok()?;
        let text = self.dwarf_of(self.part(unit)).attr_string(&parsed, value).ok()?;
        Some(text.slice())
    }

    /// What `find` finds at an entry or at what it completes.
    fn along<T>(&self, die: Die, find: impl Fn(Die, &Entry<'d>) -> Option<T>) -> Option<T> {
        let mut die = die;
        for _ in 0..LONGEST_CHAIN {
            let entry = self.entry(die).ok()?;
            if let Some(found) = find(die, &entry) {
                return Some(found);
            }
            die = self.completes(die.unit, &entry)?;
        }
        None
    }

    /// A text attribute of an entry or of what it completes.
    fn text_of_chain(&self, die: Die, name: DwAt) -> Option<&'d [u8]> {
        self.along(die, |die, entry| self.text(die.unit, entry, name))
    }

    /// The entry that this one completes: its declaration or abstract form.
    pub(super) fn completes(&self, unit: u32, entry: &Entry<'d>) -> Option<Die> {
        self.link(unit, entry, gimli::DW_AT_specification)
            .or_else(|| self.link(unit, entry, gimli::DW_AT_abstract_origin))
    }

    /// The name of an entry or of what it completes.
    pub(super) fn name(&self, die: Die) -> Option<&'d [u8]> {
        self.text_of_chain(die, gimli::DW_AT_name)
    }

    /// The name that the linker knows.
    pub(super) fn linkage_name(&self, die: Die) -> Option<&'d [u8]> {
        self.text_of_chain(die, gimli::DW_AT_linkage_name)
            .or_else(|| self.text_of_chain(die, gimli::DW_AT_MIPS_linkage_name))
    }

    /// An attribute of an entry or of what it completes, with the entry that has it.
    pub(super) fn attr(&self, die: Die, name: DwAt) -> Option<(Die, AttributeValue<Slice<'d>>)> {
        self.along(die, |die, entry| Some((die, entry.attr_value(name)?)))
    }

    /// The name of a unit's source file.
    pub(super) fn unit_name(&self, unit: u32) -> Option<String> {
        let parsed = self.unit(unit).ok()?;
        parsed.name.map(|name| shown(name.slice()))
    }

    /// Where an entry is declared: file and line.
    pub(super) fn declared(&self, die: Die) -> (Option<String>, Option<u64>) {
        let line = self.attr(die, gimli::DW_AT_decl_line).and_then(|(_, value)| value.udata_value());
        let file = self.attr(die, gimli::DW_AT_decl_file).and_then(|(die, value)| {
            let index = match value {
                AttributeValue::FileIndex(index) => index,
                other => other.udata_value()?,
            };
            self.file_name(die.unit, index)
        });
        (file, line)
    }

    fn file_name(&self, number: u32, index: u64) -> Option<String> {
        let unit = self.unit(number).ok()?;
        let dwarf = self.dwarf_of(self.part(number));
        let program = unit.line_program.as_ref()?;
        let file = program.header().file(index)?;
        let name = dwarf.attr_string(&unit, file.path_name()).ok()?;
        let name = PathBuf::from(shown(name.slice()));
        let folder =
            file.directory(program.header()).and_then(|folder| dwarf.attr_string(&unit, folder).ok());
        let path = match folder {
            // Folder 0 is the one of the compilation, which nobody wrote.
            Some(folder) if !name.is_absolute() && file.directory_index() != 0 => {
                PathBuf::from(shown(folder.slice())).join(name)
            }
            _ => name,
        };
        Some(path.to_string_lossy().into_owned())
    }

    /// The entries around one, the outermost first, without the unit itself. Reads the unit up to the entry.
    pub(super) fn around(&self, die: Die) -> Vec<Die> {
        let Ok(unit) = self.unit(die.unit) else { return Vec::new() };
        let Ok(mut entries) = unit.entries_raw(None) else { return Vec::new() };
        let mut open: Vec<(isize, usize)> = Vec::new();
        while !entries.is_empty() {
            let (offset, depth) = (entries.next_offset().0, entries.next_depth());
            if offset >= die.offset {
                break;
            }
            let Ok(abbreviation) = entries.read_abbreviation() else { break };
            let Some(abbreviation) = abbreviation else { continue };
            while open.last().is_some_and(|&(known, _)| known >= depth) {
                open.pop();
            }
            if abbreviation.has_children() {
                open.push((depth, offset));
            }
            if entries.skip_attributes(abbreviation.attributes()).is_err() {
                break;
            }
        }
        let depth = entries.next_depth();
        open.iter()
            .skip(1)
            .filter(|&&(known, _)| known < depth)
            .map(|&(_, offset)| Die { unit: die.unit, offset })
            .collect()
    }

    /// The definition of a type that is only declared here, which `search` looks for.
    pub(super) fn defined(&self, die: Die, search: impl FnOnce() -> Option<Die>) -> Option<Die> {
        if let Some(known) = self.definitions.borrow().get(&die) {
            return *known;
        }
        if self.definitions.borrow().len() >= MOST_SEARCHES {
            return None;
        }
        // Known as unknown while it is looked for, so that declarations cannot send each other in circles.
        self.definitions.borrow_mut().insert(die, None);
        let found = search();
        self.definitions.borrow_mut().insert(die, found);
        found
    }

    pub(super) fn language(&self, unit: u32) -> Option<gimli::DwLang> {
        let unit = self.unit(unit).ok()?;
        match unit.entry(unit.header.root_offset()).ok()?.attr_value(gimli::DW_AT_language)? {
            AttributeValue::Language(language) => Some(language),
            _ => None,
        }
    }

    /// Whether a unit was written in C, where types are spelled with their keyword.
    pub(super) fn is_c(&self, unit: u32) -> bool {
        matches!(
            self.language(unit),
            Some(
                gimli::DW_LANG_C
                    | gimli::DW_LANG_C89
                    | gimli::DW_LANG_C99
                    | gimli::DW_LANG_C11
                    | gimli::DW_LANG_C17
            )
        )
    }

    /// Whether the types are in files of their own.
    pub(super) fn is_split(&self) -> bool {
        self.heads.iter().enumerate().take(64).any(|(number, head)| {
            matches!(head.header.type_(), UnitType::Skeleton(_))
                || self.unit(number as u32).is_ok_and(|unit| unit.dwo_id.is_some())
        })
    }

    /// Where a unit starts and ends in its section.
    pub(super) fn extent(&self, number: usize) -> Option<std::ops::Range<usize>> {
        let header = &self.heads.get(number)?.header;
        let start = header.offset().0;
        Some(start..start.saturating_add(header.length_including_self()))
    }
}

/// An attribute that is a number without sign.
pub(super) fn number(entry: &Entry<'_>, name: DwAt) -> Option<u64> {
    entry.attr_value(name)?.udata_value()
}

/// Whether an attribute is a flag that is set.
pub(super) fn is_flag(entry: &Entry<'_>, name: DwAt) -> bool {
    matches!(entry.attr_value(name), Some(AttributeValue::Flag(true)))
}

/// Whether a member lies in no object of its class.
pub(super) fn is_static(entry: &Entry<'_>) -> bool {
    entry.attr(gimli::DW_AT_external).is_some() || entry.attr(gimli::DW_AT_declaration).is_some()
}

/// Text of a file, cut and made readable.
pub(super) fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(LONGEST_NAME)]).into_owned()
}
