//! Debug information that was split off (`-gsplit-dwarf`): the functions of a unit are in a file of
//! their own (`.dwo`), or with those of other units in a package (`.dwp`).
//!
//! ```text
//!  program: skeleton unit -- id, folder, name --> PROGRAM.dwp, else FOLDER/NAME: unit with that id
//!           addresses, lines                      functions, names
//! ```
//!
//! The paths are those of the compiler, and untrusted: they are opened as those of source files.
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use gimli::{DwoId, Reader as _};
use hashbrown::HashMap;

use super::sections::{Reader, empty_section, split_section};
use super::texts::Texts;
use super::units::{ParsedUnit, Units};
use crate::budget::{self, Charge};
use crate::disassembly::refusal_of_root;
use crate::elf::ElfFile;
use crate::locate::below_root;
use crate::options::SymbolOptions;

/// Units of one file that are looked through for the one that is wanted; compilers write one.
const MOST_UNITS: usize = 1 << 12;

/// The unit that has the functions of a skeleton.
pub(super) struct SplitUnit {
    pub(super) units: Units,
    pub(super) unit: Arc<ParsedUnit>,
    /// Places of entries are those of this file.
    pub(super) texts: Texts,
    _room: Vec<Charge>,
}

type SplitSlot = Arc<OnceLock<Option<Arc<SplitUnit>>>>;

/// Where a module's split debug information is looked for, and what was not found.
pub(super) struct SplitFiles {
    elf: Arc<ElfFile>,
    /// The packages that there may be.
    packages: Vec<PathBuf>,
    options: SymbolOptions,
    package: OnceLock<Option<Package>>,
    /// By the offsets of their skeletons.
    units: Mutex<HashMap<usize, SplitSlot>>,
    missing: Mutex<Missing>,
    /// A unit was read from another file.
    is_used: AtomicBool,
}

struct Package {
    sections: gimli::DwarfPackage<Reader>,
    _room: Vec<Charge>,
}

/// Files that were asked for and cannot be had.
#[derive(Default)]
struct Missing {
    count: usize,
    /// The first one, and why.
    first: String,
}

impl SplitFiles {
    /// `mapped`: the file that was mapped, if its debug information is in another one.
    pub(super) fn new(elf: &Arc<ElfFile>, mapped: Option<&Path>, options: &SymbolOptions) -> SplitFiles {
        let package = |path: &Path| {
            let mut name = path.as_os_str().to_owned();
            name.push(".dwp");
            PathBuf::from(name)
        };
        let mut packages = vec![package(&elf.path)];
        // Tools make it beside the program, or beside what a link to the program leads to.
        let real = |path: &Path| path.canonicalize().ok().map(|path| package(&path));
        packages.extend(real(&elf.path));
        packages.extend(mapped.map(package));
        packages.extend(mapped.and_then(real));
        packages.dedup();
        let elf = Arc::clone(elf);
        SplitFiles {
            elf,
            packages,
            options: options.clone(),
            package: OnceLock::new(),
            units: Mutex::default(),
            missing: Mutex::default(),
            is_used: AtomicBool::new(false),
        }
    }

    /// The unit that was split off the one at an offset; nothing if none was, or it cannot be had.
    pub(super) fn unit(
        &self,
        units: &Units,
        (offset, skeleton): (usize, &ParsedUnit),
    ) -> Option<Arc<SplitUnit>> {
        let id = skeleton.unit.dwo_id?;
        let slot = {
            let mut slots = self.units.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(slots.entry(offset).or_default())
        };
        slot.get_or_init(|| self.read(units, skeleton, id).map(Arc::new)).clone()
    }

    fn read(&self, units: &Units, skeleton: &ParsedUnit, id: DwoId) -> Option<SplitUnit> {
        let of_package = || {
            let package = self.package.get_or_init(|| self.read_package()).as_ref()?;
            let dwarf = package.sections.find_cu(id, units.dwarf()).ok()??;
            self.unit_of((dwarf, Vec::new()), skeleton, id)
        };
        if let Some(found) = of_package() {
            return Some(found);
        }
        match self.read_file(units, skeleton, id) {
            Ok(found) => Some(found),
            // What clang leaves in the program has the inlined functions, too.
            Err(_) if skeleton.functions(units).is_some_and(|functions| !functions.is_empty()) => None,
            Err(why) => {
                let mut missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
                missing.count += 1;
                if missing.first.is_empty() {
                    missing.first = why;
                }
                None
            }
        }
    }

    /// Whether a unit was read from another file.
    pub(super) fn was_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// What is not known because files cannot be had: a sentence.
    pub(super) fn note(&self) -> Option<String> {
        let missing = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        let files = match missing.count {
            0 => return None,
            1 => "a .dwo file with its debug information cannot be read".to_owned(),
            count => format!("{count} .dwo files with its debug information cannot be read"),
        };
        let package = self.packages.first().map_or_else(String::new, |path| path.display().to_string());
        let program = self.elf.path.display();
        Some(format!(
            "inlined functions of {program} are not known: {files}, and there is no {package} \
             ({}{}); keep these files where it was built, or pack them with dwp",
            if missing.count > 1 { "the first: " } else { "" },
            missing.first
        ))
    }

    fn read_package(&self) -> Option<Package> {
        let elf = self.packages.iter().find_map(|path| self.open(path).ok())?;
        let mut room = Vec::new();
        let load = |id| Ok::<_, gimli::Error>(split_section(&elf, id, &mut room));
        let sections = gimli::DwarfPackage::load(load, empty_section()).ok()?;
        Some(Package { sections, _room: room })
    }

    /// # Errors
    /// Which file cannot be read, and why.
    fn read_file(&self, units: &Units, skeleton: &ParsedUnit, id: DwoId) -> Result<SplitUnit, String> {
        let unit = skeleton.with(units.dwarf());
        let text = |value| unit.attr_string(value).ok()?.to_string_lossy().ok().map(|text| text.into_owned());
        let name = unit.dwo_name().ok().flatten().and_then(text).ok_or("it names no file")?;
        let folder =
            unit.comp_dir.as_ref().and_then(|folder| Some(folder.to_string_lossy().ok()?.into_owned()));
        let compiled = Path::new(folder.as_deref().unwrap_or("")).join(&name);
        let own = self.elf.path.parent().zip(compiled.file_name()).map(|(folder, name)| folder.join(name));
        let first = below_root(&self.options, &compiled);
        let mut why = None;
        for path in [Some(&first), own.as_ref()].into_iter().flatten() {
            let opened = self.open(path).and_then(|elf| {
                let (mut dwarf, room) = self.sections(&elf);
                dwarf.make_dwo(units.dwarf());
                let found = self.unit_of((dwarf, room), skeleton, id);
                found.ok_or_else(|| format!("{} is of another build", path.display()))
            });
            match opened {
                Ok(found) => return Ok(found),
                Err(error) => _ = why.get_or_insert(error),
            }
        }
        Err(why.unwrap_or(name))
    }

    fn sections(&self, elf: &Arc<ElfFile>) -> (gimli::Dwarf<Reader>, Vec<Charge>) {
        let mut room = Vec::new();
        let load = |id| Ok::<_, std::convert::Infallible>(split_section(elf, id, &mut room));
        match gimli::Dwarf::load(load) {
            Ok(dwarf) => (dwarf, room),
            Err(never) => match never {},
        }
    }

    /// # Errors
    /// Which file cannot be read, and why.
    fn open(&self, path: &Path) -> Result<Arc<ElfFile>, String> {
        let said = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
        let (file, _) = budget::open_regular(path).map_err(|error| said(&error))?;
        if let Some(why) = refusal_of_root(&file, self.elf.is_root_owned()) {
            return Err(said(&why));
        }
        ElfFile::open(path, &self.elf.budget).map(Arc::new).map_err(|error| error.to_string())
    }

    /// The unit with an id, ready for questions.
    fn unit_of(
        &self,
        (dwarf, room): (gimli::Dwarf<Reader>, Vec<Charge>),
        skeleton: &ParsedUnit,
        id: DwoId,
    ) -> Option<SplitUnit> {
        let mut headers = dwarf.units();
        for _ in 0..MOST_UNITS {
            let header = headers.next().ok()??;
            let offset = header.debug_info_offset()?.0;
            let mut unit = dwarf.unit(header).ok()?;
            if unit.dwo_id != Some(id) {
                continue;
            }
            self.is_used.store(true, Ordering::Relaxed);
            unit.copy_relocated_attributes(&skeleton.unit);
            let units = Units::new(Arc::new(dwarf));
            let unit = units.insert(offset, unit);
            return Some(SplitUnit { units, unit, texts: Texts::new(self.options.demangle), _room: room });
        }
        None
    }
}
