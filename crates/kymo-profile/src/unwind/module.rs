//! The store of modules: one entry per file, shared by all processes and threads.

use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use hashbrown::HashMap;

use super::elf::{ElfParts, Image};
use super::frames::Frames;

/// Opens the file of a module: path as mapped in the target, build id (empty when not known).
pub type Opener = dyn Fn(&[u8], &[u8]) -> io::Result<Image> + Send + Sync;

/// How many bytes of unwind data a store keeps unless told otherwise.
const DEFAULT_BUDGET_BYTES: u64 = 2 << 30;

/// A module whose unwind data cannot be used, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleProblem {
    /// The path as the recording gives it.
    pub path: String,
    /// The cause, in words.
    pub why: String,
}

/// What all modules of a store share.
struct Shared {
    open: Box<Opener>,
    budget_bytes: u64,
    kept_bytes: AtomicU64,
    problems: Mutex<Vec<ModuleProblem>>,
}

/// All modules seen so far. Cheap to ask, safe to share between threads; nothing is read before a frame needs it.
pub struct UnwindModules {
    shared: Arc<Shared>,
    known: RwLock<HashMap<Key, Arc<Module>, foldhash::fast::RandomState>>,
}

type Key = (Box<[u8]>, Box<[u8]>);

impl Default for UnwindModules {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for UnwindModules {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UnwindModules").field("kept_bytes", &self.kept_bytes()).finish_non_exhaustive()
    }
}

impl UnwindModules {
    /// A store that opens the paths of the recording on this machine, and its own vdso for `[vdso]`.
    pub fn new() -> UnwindModules {
        UnwindModules::with_opener(Box::new(open_here), DEFAULT_BUDGET_BYTES)
    }

    /// A store with another way to find files (a `--symfs` directory, a build-id cache, bytes in memory).
    /// When more than `budget_bytes` of unwind data have been kept, further modules are treated as having none.
    pub fn with_opener(open: Box<Opener>, budget_bytes: u64) -> UnwindModules {
        let shared = Shared { open, budget_bytes, kept_bytes: AtomicU64::new(0), problems: Mutex::default() };
        UnwindModules { shared: Arc::new(shared), known: RwLock::default() }
    }

    /// The module of a mapped file, by the path in the mapping and the build id (empty when not known).
    /// `None` for names that stand for memory without a file (`//anon`, `[heap]`, `anon_inode:...`).
    pub fn module(&self, path: &[u8], build_id: &[u8]) -> Option<Arc<Module>> {
        if !names_a_file(path) {
            return None;
        }
        let wanted = LookUp { path, build_id };
        if let Some(module) = self.known.read().unwrap_or_else(PoisonError::into_inner).get(&wanted) {
            return Some(Arc::clone(module));
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        // Ids start at 1: the unwinder's cache uses 0 for an empty place.
        let id = known.len() as u32 + 1;
        let fresh = || {
            Arc::new(Module {
                id,
                path: path.into(),
                build_id: build_id.into(),
                shared: Arc::clone(&self.shared),
                frames: OnceLock::new(),
                code: OnceLock::new(),
            })
        };
        Some(Arc::clone(known.entry((path.into(), build_id.into())).or_insert_with(fresh)))
    }

    /// How many bytes of unwind data are kept.
    pub fn kept_bytes(&self) -> u64 {
        self.shared.kept_bytes.load(Ordering::Relaxed)
    }

    /// The modules that a walk came to and could not use, in the order they were met.
    pub fn problems(&self) -> Vec<ModuleProblem> {
        self.shared.problems.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A key that borrows.
#[derive(Hash)]
struct LookUp<'a> {
    path: &'a [u8],
    build_id: &'a [u8],
}

impl hashbrown::Equivalent<Key> for LookUp<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        *self.path == *key.0 && *self.build_id == *key.1
    }
}

/// One mapped file.
pub struct Module {
    id: u32,
    path: Box<[u8]>,
    build_id: Box<[u8]>,
    shared: Arc<Shared>,
    frames: OnceLock<Option<Frames>>,
    code: OnceLock<Option<Image>>,
}

impl std::fmt::Debug for Module {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Module({}, {})", self.id, self.name())
    }
}

impl Module {
    /// A number that no other module of the same store has; never 0.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The path as the recording gives it, for messages.
    pub fn name(&self) -> String {
        String::from_utf8_lossy(&self.path).into_owned()
    }

    /// The unwind data, read on first use. `None` when the file cannot be used; the reason is in
    /// [`UnwindModules::problems`].
    pub(super) fn frames(&self) -> Option<&Frames> {
        self.frames
            .get_or_init(|| {
                self.load()
                    .map_err(|why| {
                        let problem = ModuleProblem { path: self.name(), why };
                        self.shared.problems.lock().unwrap_or_else(PoisonError::into_inner).push(problem);
                    })
                    .ok()
            })
            .as_ref()
    }

    fn load(&self) -> Result<Frames, String> {
        let image = (self.shared.open)(&self.path, &self.build_id).map_err(|e| e.to_string())?;
        let parts = ElfParts::read(&image)?;
        if let Some(found) = &parts.build_id
            && !self.build_id.is_empty()
            && !same_build(&self.build_id, found)
        {
            return Err(format!(
                "the file changed since: its build id is {}, the recording's {}",
                hex(found),
                hex(&self.build_id)
            ));
        }
        let bytes = parts.kept_bytes();
        let before = self.shared.kept_bytes.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) > self.shared.budget_bytes {
            self.shared.kept_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return Err(format!(
                "its {bytes} bytes of unwind data do not fit into the {} bytes kept for all modules",
                self.shared.budget_bytes
            ));
        }
        Ok(Frames::new(parts))
    }

    /// The file, opened anew.
    #[cfg(test)]
    pub(super) fn image(&self) -> io::Result<Image> {
        (self.shared.open)(&self.path, &self.build_id)
    }

    /// Some bytes of machine code, to recognise a signal trampoline where no unwind data covers it.
    pub(super) fn code_at(&self, file_offset: u64) -> Option<[u8; 19]> {
        let image = self.code.get_or_init(|| (self.shared.open)(&self.path, &self.build_id).ok()).as_ref()?;
        image.read(file_offset, 19)?.try_into().ok()
    }
}

/// Build ids of recordings are padded with zeros to 20 bytes by some writers.
fn same_build(recorded: &[u8], found: &[u8]) -> bool {
    let len = recorded.len().min(found.len());
    let (recorded_rest, found_rest) = (&recorded[len..], &found[len..]);
    recorded[..len] == found[..len] && recorded_rest.iter().chain(found_rest).all(|&b| b == 0)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Whether a mapping's name is the path of a file (or the vdso), not a label of the kernel or of perf.
fn names_a_file(path: &[u8]) -> bool {
    let labels: [&[u8]; 5] = [b"//", b"anon_inode:", b"/anon_hugepage", b"/SYSV", b"/dev/zero"];
    match path.first() {
        None => false,
        Some(b'[') => path == b"[vdso]",
        Some(_) => !labels.iter().any(|label| path.starts_with(label)),
    }
}

fn open_here(path: &[u8], _build_id: &[u8]) -> io::Result<Image> {
    if path == b"[vdso]" {
        return own_vdso();
    }
    let path = Path::new(std::ffi::OsStr::from_bytes(path));
    // A mapped device is not a module, and opening one may have effects.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    File::open(path).map(Image::File)
}

/// The vdso of this process: the kernel gives every process of one boot the same one.
fn own_vdso() -> io::Result<Image> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let range = maps
        .lines()
        .find(|line| line.ends_with("[vdso]"))
        .and_then(|line| line.split(' ').next()?.split_once('-'))
        .and_then(|(start, end)| {
            Some(u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?)
        })
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "this process has no [vdso]"))?;
    let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap_or(0).min(1 << 20)];
    File::open("/proc/self/mem")?.read_exact_at(&mut bytes, range.start)?;
    Ok(Image::Bytes(bytes.into()))
}
