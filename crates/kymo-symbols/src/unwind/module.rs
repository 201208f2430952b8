//! The store of modules: one entry per file, shared by all processes and threads.

use std::ffi::OsStr;
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::SystemTime;

use hashbrown::HashMap;

use super::debug_files::{self, FunctionStarts, StartPlace};
use super::elf::{self, ElfParts, Image};
use super::frames::Frames;
use crate::arch::Arch;
use crate::budget::{Budget, Charge, open_regular};
use crate::file_state::FileState;
use crate::locate;
use crate::options::{Note, SymbolOptions};

pub use crate::file_state::FileId;

/// What is known of a module's file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MappedFile<'a> {
    /// The path as mapped in the target.
    pub path: &'a [u8],
    /// The build id, empty when not known.
    pub build_id: &'a [u8],
    /// Device and inode, all 0 when not known: two files of one path are two modules.
    pub file_id: FileId,
    /// Who had it mapped where when it was first seen: a process that may still run, for whoever has to find its files.
    pub seen: Option<Seen>,
}

/// A mapping of a running process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The process.
    pub pid: i32,
    /// First address (AVMA).
    pub start: u64,
    /// First address behind it (AVMA).
    pub end: u64,
}

/// Opens the file of a module.
pub type Opener = dyn Fn(&MappedFile<'_>) -> io::Result<Image> + Send + Sync;

/// How many bytes of unwind data a store keeps unless told otherwise.
const DEFAULT_BUDGET_BYTES: u64 = 384 << 20;

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
    /// The instruction set of the recorded machine: files for another one are not what was mapped.
    arch: Option<Arch>,
    budget_bytes: u64,
    /// The account of what files may cost.
    budget: Budget,
    /// Where debug files lie.
    options: SymbolOptions,
    /// Whether code without tables is looked at.
    reads_code: bool,
    kept_bytes: AtomicU64,
    problems: Mutex<Vec<ModuleProblem>>,
}

/// All modules seen so far. Cheap to ask, safe to share between threads; nothing is read before a frame needs it.
pub struct UnwindModules {
    shared: Arc<Shared>,
    known: RwLock<HashMap<Key, Arc<Module>, foldhash::fast::RandomState>>,
}

type Key = (Box<[u8]>, Box<[u8]>, FileId);

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
        UnwindModules::of_recording(&SymbolOptions::default(), None)
    }

    /// A store for a recording: files lie below the folder that stands for the recorded machine's
    /// root, if there is one. `recorded_until`: when it was written; files without a build id that
    /// changed later are not what was mapped.
    pub fn of_recording(options: &SymbolOptions, recorded_until: Option<SystemTime>) -> UnwindModules {
        let own = options.clone();
        let open = move |file: &MappedFile<'_>| {
            let is_known = file.build_id.iter().any(|&byte| byte != 0);
            let refused = |why: Option<Note>| match why.filter(|_| !is_known) {
                Some(why) => Err(io::Error::other(why.0)),
                None => Ok(()),
            };
            if file.path == b"[vdso]" {
                return refused(own.kernel_refusal()).and_then(|()| own_vdso());
            }
            let path = locate::below_root(&own, Path::new(OsStr::from_bytes(file.path)));
            refused(own.file_refusal(&path, FileState { file_id: file.file_id, recorded_until }))?;
            open_regular(&path).map(|(file, _)| Image::File(file))
        };
        let mut modules = UnwindModules::with_opener(Box::new(open), DEFAULT_BUDGET_BYTES);
        // No module shares it yet.
        if let Some(shared) = Arc::get_mut(&mut modules.shared) {
            shared.options = options.clone();
        }
        modules
    }

    /// The same of a machine of this instruction set.
    ///
    /// Files for another one are refused: they lie here under the path of what was recorded there.
    #[must_use]
    pub fn of_arch(mut self, arch: Arch) -> UnwindModules {
        // No module shares it before the first was asked for.
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.arch = Some(arch);
        }
        self
    }

    /// A store with another way to find files (a `--symfs` directory, a build-id cache, bytes in memory).
    /// When more than `budget_bytes` of unwind data have been kept, further modules are treated as having none.
    pub fn with_opener(open: Box<Opener>, budget_bytes: u64) -> UnwindModules {
        let shared = Shared {
            open,
            arch: Arch::NATIVE,
            budget_bytes,
            budget: Budget::default(),
            options: SymbolOptions::default(),
            reads_code: true,
            kept_bytes: AtomicU64::new(0),
            problems: Mutex::default(),
        };
        UnwindModules { shared: Arc::new(shared), known: RwLock::default() }
    }

    /// A store whose code without tables is not looked at: the model follows frame pointers there.
    #[cfg(test)]
    pub(super) fn without_code(mut self) -> UnwindModules {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.reads_code = false;
        }
        self
    }

    /// The module of a mapped file, by the path in the mapping and the build id (empty when not known).
    /// `None` for names that stand for memory without a file (`//anon`, `[heap]`, `anon_inode:...`).
    pub fn module(&self, path: &[u8], build_id: &[u8]) -> Option<Arc<Module>> {
        self.module_of(&MappedFile { path, build_id, ..MappedFile::default() })
    }

    /// As [`module`](UnwindModules::module), for a file of which more is known.
    pub fn module_of(&self, file: &MappedFile<'_>) -> Option<Arc<Module>> {
        if !names_a_file(file.path) {
            return None;
        }
        if let Some(module) = self.known.read().unwrap_or_else(PoisonError::into_inner).get(&LookUp(file)) {
            return Some(Arc::clone(module));
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        // Ids start at 1: the unwinder's cache uses 0 for an empty place.
        let id = known.len() as u32 + 1;
        let fresh = || {
            Arc::new(Module {
                id,
                path: file.path.into(),
                build_id: file.build_id.into(),
                file_id: file.file_id,
                seen: file.seen,
                shared: Arc::clone(&self.shared),
                frames: OnceLock::new(),
                code: OnceLock::new(),
            })
        };
        let key = (file.path.into(), file.build_id.into(), file.file_id);
        Some(Arc::clone(known.entry(key).or_insert_with(fresh)))
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
struct LookUp<'a>(&'a MappedFile<'a>);

impl Hash for LookUp<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // As the tuple of the key.
        (self.0.path, self.0.build_id, self.0.file_id).hash(state);
    }
}

impl hashbrown::Equivalent<Key> for LookUp<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        *self.0.path == *key.0 && *self.0.build_id == *key.1 && self.0.file_id == key.2
    }
}

/// One mapped file.
pub struct Module {
    id: u32,
    path: Box<[u8]>,
    build_id: Box<[u8]>,
    file_id: FileId,
    seen: Option<Seen>,
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

    /// Reads the unwind data now, for whoever cannot wait for files later.
    pub fn read_now(&self) {
        _ = self.frames();
    }

    fn file(&self) -> MappedFile<'_> {
        MappedFile { path: &self.path, build_id: &self.build_id, file_id: self.file_id, seen: self.seen }
    }

    fn load(&self) -> Result<Frames, String> {
        let image = (self.shared.open)(&self.file()).map_err(|e| e.to_string())?;
        let parts = ElfParts::read(&image, &self.shared.budget)?;
        if let Some(arch) = self.shared.arch.filter(|arch| *arch != parts.arch) {
            let (found, wanted) = (parts.arch.name(), arch.name());
            return Err(format!("the file here is for {found}, the recorded machine is {wanted}"));
        }
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
        if parts.build_id.is_none() && self.build_id.iter().any(|&byte| byte != 0) {
            let recorded = hex(&self.build_id);
            return Err(format!("the file here has no build id, the recorded one had {recorded}"));
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
        Frames::new(parts, &self.shared.budget)
    }

    /// The file, opened anew.
    #[cfg(test)]
    pub(super) fn image(&self) -> io::Result<Image> {
        (self.shared.open)(&self.file())
    }

    /// The account of what files may cost.
    pub(super) fn budget(&self) -> &Budget {
        &self.shared.budget
    }

    /// The `.debug_frame` of this file if it is compressed, or of its debug file.
    pub(super) fn remote_debug_frame(&self, build_id: Option<&[u8]>) -> Option<(Vec<u8>, Option<Charge>)> {
        let image = (self.shared.open)(&self.file()).ok()?;
        let path = Path::new(OsStr::from_bytes(&self.path));
        debug_files::debug_frame(&image, path, build_id, &self.shared.options)
    }

    /// Where this file's functions begin.
    pub(super) fn function_starts(&self, place: StartPlace) -> FunctionStarts {
        let path = Path::new(OsStr::from_bytes(&self.path));
        let starts = |image| debug_files::function_starts(image, path, &self.shared.options, place);
        self.code_image().and_then(starts).unwrap_or_default()
    }

    /// At most `len` bytes of machine code; fewer where the file ends.
    pub(super) fn code_bytes(&self, file_offset: u64, len: u64) -> Option<Vec<u8>> {
        if !self.shared.reads_code {
            return None;
        }
        let image = self.code_image()?;
        image.read(file_offset, len.min(image.len().ok()?.checked_sub(file_offset)?))
    }

    /// Some bytes of machine code, to recognise signal trampolines, calls and jump stubs.
    pub(super) fn code_at<const N: usize>(&self, file_offset: u64) -> Option<[u8; N]> {
        self.code_image()?.read(file_offset, N as u64)?.try_into().ok()
    }

    fn code_image(&self) -> Option<&Image> {
        let image = self.code.get_or_init(|| {
            let image = (self.shared.open)(&self.file()).ok()?;
            let is_same = |arch| elf::arch(&image).is_none_or(|found| found == arch);
            self.shared.arch.is_none_or(is_same).then_some(image)
        });
        image.as_ref()
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

/// The vdso of this process: the kernel gives every process of one boot the same one.
///
/// # Errors
/// When this process has none, or /proc cannot be read.
pub fn own_vdso() -> io::Result<Image> {
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
