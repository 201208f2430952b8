//! What is watched, in the words of who asked: found in the process, and how its bytes are shown.
use super::target;
use kymo_core::breakpoint::Kind;
use kymo_perf::proc::{self, Mappings, ProcessMemory};
use kymo_perf::watch::{Range, Register};
use kymo_symbols::SymbolOptions;
use kymo_symbols::place::{self, Access, Mapping, ModuleFile, Request, ResolveError, Target, ValueKind};
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A place that was asked for.
#[derive(Clone, Debug)]
pub struct Place {
    /// As it was written, without length and access.
    pub expression: String,
    /// Its bytes.
    pub range: Range,
    /// The type, where it is known.
    pub type_name: Option<String>,
    /// How its value is shown.
    pub value: ValueKind,
}

/// A part of a place that one register covers, or the whole place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The place, by its number.
    pub place: usize,
    /// Where in the place it begins.
    pub offset: u64,
    /// Where in the aligned word around the register it begins.
    pub in_word: usize,
    /// How many bytes, 1 to 8.
    pub bytes: usize,
}

impl Part {
    /// Its value in the word, in the lower bytes.
    pub fn value(&self, word: [u8; 8]) -> u64 {
        let mut value = [0; 8];
        value[..self.bytes].copy_from_slice(&word[self.in_word..self.in_word + self.bytes]);
        u64::from_le_bytes(value)
    }
}

/// The parts of places that a register covers.
pub fn parts(register: &Register, places: &[Place]) -> Vec<Part> {
    let piece = register.piece;
    let word = piece.address & !7;
    let part = |&place: &usize| {
        let range = places.get(place)?.range;
        let begin = range.address.max(piece.address);
        let end = range.address.saturating_add(range.bytes).min(piece.end()).min(word.saturating_add(8));
        let in_word = usize::try_from(begin.checked_sub(word)?).ok()?;
        let bytes = usize::try_from(end.checked_sub(begin)?).ok()?;
        (bytes > 0).then_some(Part { place, offset: begin - range.address, in_word, bytes })
    };
    register.ranges.iter().filter_map(part).collect()
}

impl Place {
    /// Whether it is instructions, which have no value.
    pub fn is_code(&self) -> bool {
        self.range.kind == Kind::EXECUTE
    }

    /// How values of a part are meant: those of the type if it is the whole place.
    fn kind_of(&self, part: &Part) -> &ValueKind {
        if part.offset == 0 && part.bytes as u64 == self.range.bytes {
            &self.value
        } else {
            &ValueKind::Bytes
        }
    }

    /// A value of a part of it as a number.
    pub fn number(&self, part: &Part, value: u64) -> Option<i128> {
        self.kind_of(part).number(&value.to_le_bytes()[..part.bytes])
    }

    /// A value of a part of it in words.
    pub fn show(&self, part: &Part, value: u64) -> String {
        match self.kind_of(part) {
            // Small numbers are often kept in what the language calls characters.
            ValueKind::Char if value < 0x20 => value.to_string(),
            kind => kind.show(&value.to_le_bytes()[..part.bytes]),
        }
    }

    /// What a word of a condition means.
    pub(crate) fn parse_value(&self, word: &str) -> Option<i128> {
        self.value.parse(word)
    }

    /// The name of a part of it.
    pub fn part_name(&self, part: &Part) -> String {
        match part.offset {
            0 => self.expression.clone(),
            offset => format!("{}+{offset:#x}", self.expression),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range { address, bytes, kind } = self.range;
        write!(f, "{} (", self.expression)?;
        if let Some(name) = &self.type_name {
            write!(f, "{name}, ")?;
        }
        write!(f, "{bytes} byte{} at {address:#x}, {kind})", if bytes == 1 { "" } else { "s" })
    }
}

/// Finds what was asked for in a process, as it is now. What the user should know about a place goes to `warn`.
pub fn find(
    pid: i32,
    requests: &[Request],
    warn: &mut dyn FnMut(&str),
) -> Result<Vec<place::Watch>, ResolveError> {
    let memory = ProcessMemory::open(pid);
    let read = |address: u64, bytes: &mut [u8]| match &memory {
        Ok(memory) => memory.read(address, bytes),
        Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
    };
    let modules = if requests.iter().all(Request::is_address) { Vec::new() } else { modules(pid)? };
    let target = Target { modules, memory: &read };
    let mut places = Vec::new();
    for request in requests {
        let found = place::resolve(request, &target)?;
        found.warnings.iter().for_each(|warning| warn(warning));
        places.push(found);
    }
    Ok(places)
}

/// Finds it in a command, as it is when it begins: it is executed for that, and ended before it does anything.
pub(crate) fn find_in_command(
    words: &[OsString],
    requests: &[Request],
    warn: &mut dyn FnMut(&str),
) -> anyhow::Result<Vec<place::Watch>> {
    let held = target::command(words)?.map_err(|refused| {
        anyhow::Error::msg(kymo_perf::explain::not_executed(&refused.command, &refused.source))
    })?;
    let found = find(held.pids()[0], requests, warn);
    held.abort();
    Ok(found?)
}

/// As [`find`], for watching.
pub fn resolve(
    pid: i32,
    requests: &[Request],
    warn: &mut dyn FnMut(&str),
) -> Result<Vec<Place>, ResolveError> {
    let mut places = Vec::new();
    for found in find(pid, requests, warn)? {
        let kind = match found.access {
            Access::Write => Kind::WRITE,
            Access::ReadWrite => Kind::READ_WRITE,
            Access::Execute => Kind::EXECUTE,
        };
        places.push(Place {
            expression: found.expression,
            range: Range { address: found.avma, bytes: found.len_bytes, kind },
            type_name: found.type_name,
            value: found.value,
        });
    }
    Ok(places)
}

/// The files that a process has mapped, where they lie. Those that cannot be read are left out, but not the program itself.
fn modules(pid: i32) -> Result<Vec<place::Module>, ResolveError> {
    let text = proc::maps(pid);
    let mapping = |map: proc::MapsEntry<'_>| Mapping {
        range: map.start..map.end,
        offset: map.offset,
        path: PathBuf::from(std::ffi::OsStr::from_bytes(map.path)),
    };
    let files = Mappings::new(&text).filter(|map| map.path.starts_with(b"/"));
    let mappings: Vec<Mapping> = files.map(mapping).collect();
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).ok();
    let options = SymbolOptions::default();
    let mut refused = None;
    let modules = place::modules_of(&mappings, program.as_deref(), |mapping| {
        let path = mapping.path.as_path();
        let is_program = Some(path) == program.as_deref();
        match ModuleFile::open(&readable(pid, path, is_program), path, &options) {
            Ok(file) => Some(Arc::new(file)),
            Err(error) => {
                if is_program {
                    refused = Some(error);
                }
                None
            }
        }
    });
    refused.map_or(Ok(modules), Err)
}

/// Where a file of a process can be read from here: it may be in another root, or deleted.
fn readable(pid: i32, path: &Path, is_program: bool) -> PathBuf {
    if is_program {
        return format!("/proc/{pid}/exe").into();
    }
    let mut inside = PathBuf::from(format!("/proc/{pid}/root")).into_os_string();
    inside.push(path);
    let inside = PathBuf::from(inside);
    if inside.exists() { inside } else { path.to_owned() }
}
