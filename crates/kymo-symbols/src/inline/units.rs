//! The units of debug information: which one has the code of an address, each parsed once for all
//! threads.
//!
//! ```text
//!  address --.debug_aranges------------------> unit --parsed when first asked--> functions, lines
//!      '---- the roots of units that it lacks --^
//! ```
//!
//! # Invariants
//! - **U1** An answer is that of the obvious reader, which reads the roots of all units first
//!   (`model.rs`).
//! - **U2** Threads share what was parsed. Nothing that waits for another thread is held while a
//!   name is looked up, so units that refer to each other cannot wait in a circle.
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use gimli::{DebugInfoOffset, UnitRef, UnitType};
use hashbrown::{HashMap, HashSet};

use super::function::Functions;
use super::line_table::LineTable;
use super::root;
use super::sections::Reader;

/// A unit, and what was parsed of it.
pub(super) struct ParsedUnit {
    pub(super) unit: gimli::Unit<Reader>,
    functions: OnceLock<Option<Functions>>,
    lines: OnceLock<Option<LineTable>>,
}

/// Addresses of a unit.
#[derive(Clone, Copy, Debug)]
struct UnitRange {
    begin: u64,
    end: u64,
    unit: usize,
}

/// Ranges of units in the order in which they are looked through.
#[derive(Debug, Default)]
struct UnitRanges {
    by_end: Vec<UnitRange>,
    /// For each, the least begin of it and of all after it.
    least: Vec<u64>,
}

impl UnitRanges {
    fn new(mut by_end: Vec<UnitRange>) -> UnitRanges {
        by_end.sort_unstable_by_key(|range| (range.end, range.unit));
        let mut least = vec![u64::MAX; by_end.len()];
        let mut below = u64::MAX;
        for (range, least) in by_end.iter().zip(&mut least).rev() {
            below = below.min(range.begin);
            *least = below;
        }
        UnitRanges { by_end, least }
    }

    /// The units that may have an address.
    fn find(&self, address: u64) -> impl Iterator<Item = usize> {
        let from = self.by_end.partition_point(|range| range.end <= address);
        let ranges = self.by_end.iter().zip(&self.least).skip(from);
        ranges
            .take_while(move |(_, least)| **least <= address)
            .filter(move |(range, _)| range.begin <= address)
            .map(|(range, _)| range.unit)
    }
}

type UnitSlot = Arc<OnceLock<Option<Arc<ParsedUnit>>>>;

/// The units of a file.
pub(super) struct Units {
    dwarf: Arc<gimli::Dwarf<Reader>>,
    listed: OnceLock<UnitRanges>,
    unlisted: OnceLock<UnitRanges>,
    /// Where units begin, ascending.
    offsets: OnceLock<Vec<usize>>,
    slots: Mutex<HashMap<usize, UnitSlot>>,
    /// Those of the file that several debug files share.
    shared: Option<Box<Units>>,
}

impl Units {
    pub(super) fn new(dwarf: Arc<gimli::Dwarf<Reader>>) -> Units {
        let shared = dwarf.sup.clone().map(|shared| Box::new(Units::new(shared)));
        Units {
            dwarf,
            listed: OnceLock::new(),
            unlisted: OnceLock::new(),
            offsets: OnceLock::new(),
            slots: Mutex::default(),
            shared,
        }
    }

    pub(super) fn dwarf(&self) -> &gimli::Dwarf<Reader> {
        &self.dwarf
    }

    /// Units of the shared file.
    pub(super) fn shared(&self) -> Option<&Units> {
        self.shared.as_deref()
    }

    /// The units that `.debug_aranges` has for an address.
    pub(super) fn listed(&self, address: u64) -> impl Iterator<Item = usize> {
        self.listed.get_or_init(|| UnitRanges::new(self.read_list())).find(address)
    }

    /// The units that have an address and are not in that list.
    pub(super) fn unlisted(&self, address: u64) -> impl Iterator<Item = usize> {
        self.unlisted.get_or_init(|| UnitRanges::new(self.scan())).find(address)
    }

    fn read_list(&self) -> Vec<UnitRange> {
        let mut ranges = Vec::new();
        let mut headers = self.dwarf.debug_aranges.headers();
        while let Ok(Some(header)) = headers.next() {
            ranges.extend(list_of(&header));
        }
        ranges
    }

    /// Reads the roots of the units that the list leaves out.
    fn scan(&self) -> Vec<UnitRange> {
        let mut listed = HashSet::new();
        let mut headers = self.dwarf.debug_aranges.headers();
        while let Ok(Some(header)) = headers.next() {
            if list_of(&header).next().is_some() {
                listed.insert(header.debug_info_offset().0);
            }
        }
        let mut ranges = Vec::new();
        for &offset in self.offsets().iter().filter(|offset| !listed.contains(*offset)) {
            let Ok(header) = self.dwarf.debug_info.header_from_offset(DebugInfoOffset(offset)) else {
                continue;
            };
            use UnitType::{Partial, SplitType, Type};
            // Units that others refer to have no code.
            if matches!(header.type_(), Type { .. } | SplitType { .. } | Partial) {
                continue;
            }
            let range = |range: gimli::Range| UnitRange { begin: range.begin, end: range.end, unit: offset };
            let before = ranges.len();
            ranges.extend(root::ranges(&self.dwarf, header).unwrap_or_default().into_iter().map(range));
            if ranges.len() == before
                && let Some(unit) = self.at(offset)
                && let Some(lines) = unit.lines()
            {
                ranges.extend(lines.ranges().map(range));
            }
        }
        ranges
    }

    fn offsets(&self) -> &[usize] {
        self.offsets.get_or_init(|| {
            let mut offsets = Vec::new();
            let mut headers = self.dwarf.units();
            while let Ok(Some(header)) = headers.next() {
                offsets.extend(header.debug_info_offset().map(|offset| offset.0));
            }
            offsets
        })
    }

    /// The unit that begins at an offset.
    pub(super) fn at(&self, offset: usize) -> Option<Arc<ParsedUnit>> {
        let slot = {
            let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(slots.entry(offset).or_default())
        };
        let parse = || {
            let header = self.dwarf.debug_info.header_from_offset(DebugInfoOffset(offset)).ok()?;
            Some(Arc::new(ParsedUnit::new(self.dwarf.unit(header).ok()?)))
        };
        slot.get_or_init(parse).clone()
    }

    /// Puts a unit at an offset, which was not asked for before.
    pub(super) fn insert(&self, offset: usize, unit: gimli::Unit<Reader>) -> Arc<ParsedUnit> {
        let unit = Arc::new(ParsedUnit::new(unit));
        let slot = Arc::new(OnceLock::from(Some(Arc::clone(&unit))));
        self.slots.lock().unwrap_or_else(PoisonError::into_inner).insert(offset, slot);
        unit
    }

    /// The unit that an entry lies in.
    pub(super) fn around(&self, entry: usize) -> Option<Arc<ParsedUnit>> {
        let offsets = self.offsets();
        let after = offsets.partition_point(|&offset| offset < entry);
        self.at(*offsets.get(after.checked_sub(1)?)?)
    }
}

/// The ranges in one part of `.debug_aranges`.
fn list_of(header: &gimli::ArangeHeader<Reader>) -> impl Iterator<Item = UnitRange> {
    let (mut entries, unit) = (header.entries(), header.debug_info_offset().0);
    // An address that overflows is passed over; after any other error nothing comes.
    let next = std::iter::from_fn(move || entries.next().transpose());
    next.filter_map(Result::ok).filter(|entry| entry.length() != 0).map(move |entry| UnitRange {
        begin: entry.range().begin,
        end: entry.range().end,
        unit,
    })
}

impl ParsedUnit {
    fn new(unit: gimli::Unit<Reader>) -> ParsedUnit {
        ParsedUnit { unit, functions: OnceLock::new(), lines: OnceLock::new() }
    }

    pub(super) fn with<'a>(&'a self, dwarf: &'a gimli::Dwarf<Reader>) -> UnitRef<'a, Reader> {
        UnitRef::new(dwarf, &self.unit)
    }

    /// The functions of the unit; nothing if they are damaged.
    pub(super) fn functions(&self, units: &Units) -> Option<&Functions> {
        self.functions.get_or_init(|| Functions::parse(self.with(units.dwarf())).ok()).as_ref()
    }

    /// The source lines of the unit.
    pub(super) fn lines(&self) -> Option<&LineTable> {
        let program = self.unit.line_program.as_ref()?;
        self.lines.get_or_init(|| LineTable::parse(program.clone()).ok()).as_ref()
    }
}
