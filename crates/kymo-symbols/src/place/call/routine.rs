//! Functions in the debug information: where they begin, what they take, what they return.

use std::cell::RefCell;
use std::rc::Rc;

use hashbrown::HashMap;

use super::super::debug::{Die, Reader, shown};
use super::super::module::ModuleFile;
use super::super::types::{Shape, Type};
use super::error::CallError;
use super::home::{self, Lost};
use super::register::Home;
use super::signature::{self, Declared, Language};
use crate::elf::EM_X86_64;

/// Functions of one unit that are looked at.
const MOST_FUNCTIONS: usize = 1 << 20;

/// The functions of a module, as its debug information knows them.
pub struct Routines<'m> {
    module: &'m ModuleFile,
    reader: Rc<Reader<'m>>,
    /// Where units have code: first address, behind the last, number. Sorted by the first.
    extents: Vec<(u64, u64, u32)>,
    /// Units of which that is not told.
    unplaced: Vec<u32>,
    /// The functions of a unit, by their first address.
    known: RefCell<HashMap<u32, Rc<UnitFunctions>>>,
}

/// What a unit knows of functions.
#[derive(Debug, Default)]
struct UnitFunctions {
    /// By their first address.
    by_address: HashMap<u64, Die>,
    /// There are types and parameters, not lines alone (`-g1`).
    is_full: bool,
}

impl std::fmt::Debug for Routines<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Routines").field("module", &self.module.name()).finish_non_exhaustive()
    }
}

/// A parameter of a function, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name; empty where the source gives none.
    pub name: String,
    /// Its type, as the program spells it.
    pub type_name: String,
    /// Where it is at the entry (`rdi`, `rdi:rsi`, `[rsp+8]`), or why that is not known.
    pub place: Result<String, String>,
    /// The compiler has added it: `this`.
    pub is_artificial: bool,
}

/// One function.
pub struct Routine<'m> {
    pub(super) reader: Rc<Reader<'m>>,
    pub(super) name: String,
    pub(super) language: Language,
    pub(super) takes: Vec<Taken>,
    /// What it returns; [`Type::VOID`] for nothing.
    pub(super) returned: Type,
    odd: Vec<String>,
}

/// A parameter, with where it is at the entry.
#[derive(Clone, Debug)]
pub(super) struct Taken {
    pub(super) name: String,
    pub(super) kind: Type,
    pub(super) is_artificial: bool,
    pub(super) home: Result<Home, Lost>,
}

impl<'m> Routines<'m> {
    /// The functions of a module; its debug information is read now if nobody has asked before.
    ///
    /// # Errors
    /// The module has none, or is for another machine.
    pub fn of(module: &'m ModuleFile) -> Result<Routines<'m>, CallError> {
        if module.own.machine != EM_X86_64 || !module.own.is_64 {
            return Err(CallError::Machine);
        }
        let none = || CallError::NoDebugInfo { module: module.short_name() };
        let reader = module.debug_info(true).ok_or_else(none)?.reader();
        let (mut extents, mut unplaced) = (Vec::new(), Vec::new());
        for number in 0..reader.own_infos() {
            let Ok(unit) = reader.unit(number) else { continue };
            let before = extents.len();
            if let Ok(mut ranges) = reader.dwarf.unit_ranges(&unit) {
                while let Ok(Some(range)) = ranges.next() {
                    // What the linker has dropped lies at 0.
                    if range.begin != 0 && range.begin < range.end {
                        extents.push((range.begin, range.end, number));
                    }
                }
            }
            if extents.len() == before {
                unplaced.push(number);
            }
        }
        extents.sort_unstable();
        Ok(Routines { module, reader: Rc::new(reader), extents, unplaced, known: RefCell::default() })
    }

    /// The function whose first instruction was linked at `svma`. `symbol` is its name as the linker knows it, which tells whether the compiler has changed it.
    ///
    /// # Errors
    /// The debug information does not know it.
    pub fn at(&self, svma: u64, symbol: &str) -> Result<Routine<'m>, CallError> {
        let unknown = || match self.reader.is_split() {
            true => CallError::Split { module: self.module.short_name() },
            false => CallError::NoFunction {
                module: self.module.short_name(),
                function: crate::demangle::readable(symbol).into_owned(),
            },
        };
        let die = self.find(svma).ok_or_else(unknown)?;
        if !self.functions(die.unit).is_full {
            return Err(CallError::LinesOnly {
                module: self.module.short_name(),
                function: crate::demangle::readable(symbol).into_owned(),
            });
        }
        Ok(Routine::read(&self.reader, die, svma, symbol))
    }

    /// Where functions begin, as linked, ascending; all units are read for it.
    pub fn beginnings(&self) -> Vec<u64> {
        let numbers = 0..self.reader.own_infos();
        let mut all: Vec<u64> = numbers
            .flat_map(|number| self.functions(number).by_address.keys().copied().collect::<Vec<_>>())
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    fn find(&self, svma: u64) -> Option<Die> {
        let after = self.extents.partition_point(|&(begin, ..)| begin <= svma);
        // Ranges of units may overlap; the nearest is the one that is meant.
        let near = self.extents[..after].iter().rev().take(64).filter(|&&(_, end, _)| svma < end);
        let units = near.map(|&(.., number)| number).chain(self.unplaced.iter().copied());
        units.into_iter().find_map(|number| self.functions(number).by_address.get(&svma).copied())
    }

    /// The functions of a unit that have code, by where it begins.
    fn functions(&self, number: u32) -> Rc<UnitFunctions> {
        if let Some(known) = self.known.borrow().get(&number) {
            return Rc::clone(known);
        }
        let mut found = UnitFunctions::default();
        if let Ok(unit) = self.reader.unit(number) {
            let dwarf = &self.reader.dwarf;
            let mut entries = unit.entries();
            while let Ok(Some(entry)) = entries.next_dfs() {
                let kinds =
                    [gimli::DW_TAG_base_type, gimli::DW_TAG_pointer_type, gimli::DW_TAG_formal_parameter];
                found.is_full |= kinds.contains(&entry.tag());
                if entry.tag() != gimli::DW_TAG_subprogram || found.by_address.len() > MOST_FUNCTIONS {
                    continue;
                }
                let die = Die { unit: number, offset: entry.offset().0 };
                let address = |name| dwarf.attr_address(&unit, entry.attr_value(name)?).ok().flatten();
                let first = address(gimli::DW_AT_low_pc).or_else(|| {
                    // A function in several parts: its first is the one that is called.
                    let ranges = dwarf.die_ranges(&unit, entry).ok()?.next();
                    address(gimli::DW_AT_entry_pc).or(ranges.ok()?.map(|range| range.begin))
                });
                if let Some(first) = first.filter(|&first| first != 0) {
                    found.by_address.entry(first).or_insert(die);
                }
            }
        }
        let found = Rc::new(found);
        self.known.borrow_mut().insert(number, Rc::clone(&found));
        found
    }
}

impl<'m> Routine<'m> {
    fn read(reader: &Rc<Reader<'m>>, die: Die, svma: u64, symbol: &str) -> Routine<'m> {
        let name = reader.name(die).map(shown).unwrap_or_else(|| symbol.to_owned());
        let language = signature::language(reader, die.unit);
        let returned = Type::of(reader, die);
        let parameters = signature::parameters(reader, die);
        let (homes, odd) =
            home::homes(reader, &home::Called { die, svma, symbol, language, returned }, &parameters);
        let taken = |(parameter, home): (&Declared, _)| Taken {
            name: parameter.name.clone(),
            kind: parameter.kind,
            is_artificial: parameter.is_artificial,
            home,
        };
        let takes = parameters.iter().zip(homes).map(taken).collect();
        Routine { reader: Rc::clone(reader), name, language, takes, returned, odd }
    }

    /// The function's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it takes, in order.
    pub fn parameters(&self) -> Vec<Parameter> {
        let one = |taken: &Taken| Parameter {
            name: taken.name.clone(),
            type_name: taken.kind.spelled(&self.reader),
            place: match &taken.home {
                Ok(home) => Ok(home.to_string()),
                Err(lost) => Err(lost.to_string()),
            },
            is_artificial: taken.is_artificial,
        };
        self.takes.iter().map(one).collect()
    }

    /// The type of what it returns; nothing for `void`.
    pub fn return_type(&self) -> Option<String> {
        (self.returned.shape(&self.reader) != Shape::Void).then(|| self.returned.spelled(&self.reader))
    }

    /// The parameters that the debug information places elsewhere than the calling convention would. There are none in functions that the compiler has left as they are; to
    /// test what we know of the convention.
    pub fn unconventional(&self) -> &[String] {
        &self.odd
    }

    /// The names of its parameters.
    pub fn names(&self) -> Vec<String> {
        self.takes.iter().map(|taken| taken.name.clone()).filter(|name| !name.is_empty()).collect()
    }
}
