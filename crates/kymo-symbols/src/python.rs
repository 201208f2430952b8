//! What a file that holds CPython tells about its interpreter: where the runtime's state begins,
//! where frames are run, and, from 3.13 on, the offsets that it publishes for debuggers.
use std::ops::Range;
use std::path::Path;

use super::budget::Budget;
use super::elf::{ElfFile, Fields};
use super::elf_symbols::{SymbolEntries, tables};

/// The symbol of the runtime's state.
const RUNTIME: &[u8] = b"_PyRuntime";
/// The function that runs frames; compilers split parts off it.
const EVALUATE: &[u8] = b"_PyEval_EvalFrameDefault";
const CODE_TYPE: &[u8] = b"PyCode_Type";
/// From 3.11 on: the version as the constant `PY_VERSION_HEX`.
const VERSION: &[u8] = b"Py_Version";
/// What the runtime's state begins with from 3.13 on.
const COOKIE: &[u8; 8] = b"xdebugpy";
/// So much of the state is read: the offsets of 3.14 take 700 bytes.
const STATE_BYTES: u64 = 1024;

/// A file with CPython in it. Addresses are as linked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PythonRuntime {
    /// Major and minor version.
    pub version: (u8, u8),
    /// The runtime's state (`_PyRuntime`).
    pub runtime: u64,
    /// The code that runs frames.
    pub evaluate: Vec<Range<u64>>,
    /// The type of code objects (`PyCode_Type`).
    pub code_type: u64,
    /// The words of the state that follow the cookie, if it has one: the version as
    /// `PY_VERSION_HEX`, whether threads run freely, and offsets.
    pub offsets: Vec<u64>,
    /// Where the bytes of a place in the file were linked: for the start of a mapping.
    segments: Vec<(Range<u64>, u64)>,
}

impl PythonRuntime {
    /// Reads a file; `None`: it has no CPython in it, or no symbols of it. `name`: what it was
    /// mapped as, which tells the version of those before 3.11.
    pub fn find(path: &Path, name: &Path, budget: &Budget) -> Option<PythonRuntime> {
        let elf = ElfFile::open(path, budget).ok()?;
        let (mut runtime, mut code_type, mut version, mut evaluate) = (None, None, None, Vec::new());
        for entries in tables(&elf).filter_map(|table| SymbolEntries::read(&elf, table)) {
            for symbol in entries.iter().filter(|symbol| symbol.is_named_and_defined()) {
                let name = entries.name(symbol);
                match name {
                    RUNTIME => runtime = Some(symbol.value),
                    CODE_TYPE => code_type = Some(symbol.value),
                    VERSION => version = Some(symbol.value),
                    _ => {
                        let part = name.strip_prefix(EVALUATE);
                        let range = symbol.value..symbol.value.saturating_add(symbol.size);
                        if part.is_some_and(|part| matches!(part.first(), None | Some(b'.')))
                            && !evaluate.contains(&range)
                        {
                            evaluate.push(range);
                        }
                    }
                }
            }
        }
        let runtime = runtime?;
        let read = |address: u64, bytes: u64| {
            let segment = elf.segment_of(address)?;
            let into = address - segment.vaddr;
            // Memory behind the file's bytes is zero.
            let bytes = bytes.min(segment.size_in_file.checked_sub(into)?);
            elf.read(segment.offset.checked_add(into)?, bytes)
        };
        let state = read(runtime, STATE_BYTES).unwrap_or_default();
        let offsets = match state.strip_prefix(COOKIE) {
            Some(words) => words.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect(),
            None => Vec::new(),
        };
        let number =
            version.and_then(|address| read(address, 4)).map(|bytes| u64::from(Fields(&bytes).u32(0)));
        let number = number.or(offsets.first().copied());
        let version = number.map(|hex| ((hex >> 24) as u8, (hex >> 16) as u8)).or_else(|| named(name))?;
        let segments = elf.segments.iter().map(|segment| {
            (segment.offset..segment.offset.saturating_add(segment.size_in_file), segment.vaddr)
        });
        let segments = segments.collect();
        Some(PythonRuntime { version, runtime, evaluate, code_type: code_type?, offsets, segments })
    }

    /// What is added to linked addresses where the file is mapped at `start` from this offset on.
    #[must_use]
    pub fn load_bias(&self, start: u64, offset: u64) -> Option<u64> {
        let (range, linked) = self.segments.iter().find(|(range, _)| range.contains(&offset))?;
        Some(start.wrapping_sub(linked.wrapping_add(offset - range.start)))
    }
}

/// The version in a file's name: `python3.8`, `libpython3.10.so.1.0`.
fn named(path: &Path) -> Option<(u8, u8)> {
    let name = path.file_name()?.to_str()?;
    let (_, number) = name.split_once("python")?;
    let (major, rest) = number.split_once('.')?;
    let minor = rest.split(|letter: char| !letter.is_ascii_digit()).next()?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks which names tell a version.
    #[test]
    fn names() {
        let version = |name: &str| named(Path::new(name));
        assert_eq!(version("/usr/bin/python3.8"), Some((3, 8)));
        assert_eq!(version("/usr/lib/libpython3.10.so.1.0"), Some((3, 10)));
        assert_eq!(version("/usr/lib/libpython3.9d.so"), Some((3, 9)));
        for name in ["/usr/bin/python3", "/usr/bin/node", "/usr/lib/python3.9/", "pythonx.y", ""] {
            assert!(version(name).is_none_or(|version| version == (3, 9)), "{name}");
        }
    }

    /// Checks that the system's interpreter, or its library, tells its version and where it runs
    /// frames; and that a program without Python tells nothing.
    #[test]
    fn files() {
        let budget = Budget::new();
        let find = |path: &Path| PythonRuntime::find(path, path, &budget);
        assert_eq!(find(&std::env::current_exe().unwrap()), None);
        assert_eq!(find(Path::new("/dev/null")), None);
        let Ok(python) = Path::new("/usr/bin/python3").canonicalize() else {
            return kymo_testing::skip("python::files", "no /usr/bin/python3 here");
        };
        let Some(runtime) = find(&python) else {
            return kymo_testing::skip("python::files", "/usr/bin/python3 has its runtime in a library");
        };
        assert_eq!(Some(runtime.version), named(&python));
        assert!(runtime.evaluate.iter().any(|range| range.end - range.start > 1000), "{runtime:?}");
        // The first bytes of the file are linked where the first segment is.
        assert!(runtime.load_bias(0x5000_0000, 0).is_some() && runtime.load_bias(0, u64::MAX).is_none());
    }
}
