//! Modules: the files and other things whose code was mapped.
use kymo_data::{FileBuildId, abi};
use kymo_symbols::MappedFiles;
use kymo_symbols::unwind::FileId;
use rustc_hash::FxHashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::LazyLock;

/// Index of a module in [`Modules`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModuleId(pub u32);

impl ModuleId {
    /// The kernel of a guest: its mappings are not those of the host, and no record tells them.
    pub const GUEST_KERNEL: ModuleId = ModuleId(u32::MAX);
    /// The programs of a guest.
    pub const GUEST_USER: ModuleId = ModuleId(u32::MAX - 1);
    /// What runs below the kernel.
    pub const HYPERVISOR: ModuleId = ModuleId(u32::MAX - 2);

    /// What has the addresses of a CPU mode, where the mappings of this machine do not tell.
    pub fn for_mode(mode: u8) -> Option<ModuleId> {
        match u16::from(mode) {
            abi::PERF_RECORD_MISC_HYPERVISOR => Some(ModuleId::HYPERVISOR),
            abi::PERF_RECORD_MISC_GUEST_KERNEL => Some(ModuleId::GUEST_KERNEL),
            abi::PERF_RECORD_MISC_GUEST_USER => Some(ModuleId::GUEST_USER),
            _ => None,
        }
    }
}

/// The modules without mappings, by their ids from the last one downwards.
static UNMAPPED: LazyLock<[Module; 3]> = LazyLock::new(|| {
    ["[guest.kernel]", "[guest.user]", "[hypervisor]"].map(|name| Module {
        path: name.as_bytes().to_vec(),
        short_name: name.to_owned(),
        kind: ModuleKind::Memory,
        build_id: Vec::new(),
        file_id: FileId::default(),
    })
});

/// What kind of thing a module is, which decides where its symbols come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ModuleKind {
    /// A file on disk (executable or library).
    File,
    /// The kernel's own text.
    Kernel,
    /// A loadable kernel module.
    KernelModule,
    /// Kernel text that came at run time (BPF programs), known by one name.
    Ksymbol,
    /// The page of code that the kernel gives every process.
    Vdso,
    /// Memory without a file that code runs from: generated code of this process.
    Jit {
        /// Process whose `/tmp/perf-PID.map` names the code.
        pid: i32,
    },
    /// A source file of functions that an interpreter runs.
    Script,
    /// Stack, heap, shared memory: nothing to look symbols up in.
    Memory,
}

/// A module of the recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// Full path, or the name in brackets.
    pub path: Vec<u8>,
    /// What tables show: the file's base name, `[kernel.kallsyms]`, `[module]`, `[JIT] tid N`.
    pub short_name: String,
    /// What kind of thing it is.
    pub kind: ModuleKind,
    /// Build id as recorded, empty if not known.
    pub build_id: Vec<u8>,
    /// Device and inode of its file, all 0 if not known.
    pub file_id: FileId,
}

/// Two files of one path are two modules: device and inode tell them apart, or the build id.
type Key = (Vec<u8>, ModuleKind, FileId, Vec<u8>);

/// All modules of a recording, each once.
#[derive(Debug, Default)]
pub struct Modules {
    list: Vec<Module>,
    by_key: FxHashMap<Key, ModuleId>,
}

impl Modules {
    /// The module of this path, kind and file identity, made on first sight.
    pub fn intern(&mut self, path: &[u8], kind: ModuleKind, file_id: FileId, build_id: &[u8]) -> ModuleId {
        let next = ModuleId(self.list.len() as u32);
        let id = *self.by_key.entry((path.to_vec(), kind, file_id, build_id.to_vec())).or_insert(next);
        if id == next {
            let short_name = short_name(path, kind);
            let build_id = Vec::new();
            self.list.push(Module { path: path.to_vec(), short_name, kind, build_id, file_id });
        }
        if !build_id.is_empty() {
            self.list[id.0 as usize].build_id = build_id.to_vec();
        }
        id
    }

    /// The module of an id given by this table.
    pub fn get(&self, id: ModuleId) -> &Module {
        match UNMAPPED.get((u32::MAX - id.0) as usize) {
            Some(module) => module,
            None => &self.list[id.0 as usize],
        }
    }

    /// All modules with their ids.
    pub fn iter(&self) -> impl Iterator<Item = (ModuleId, &Module)> {
        self.list.iter().enumerate().map(|(i, m)| (ModuleId(i as u32), m))
    }

    /// Gives the kernel's text its build id, where no mapping and no entry under its name brought
    /// one.
    pub fn set_kernel_build_id(&mut self, build_id: &[u8]) {
        let kernel = self.list.iter_mut().filter(|module| module.kind == ModuleKind::Kernel);
        for module in kernel.filter(|module| module.build_id.is_empty()) {
            module.build_id = build_id.to_vec();
        }
    }

    /// Gives files their build ids by path, device and inode, where a mapping brought none: as the
    /// recording tells them, or as the recorder knows that runs in this process.
    pub(crate) fn set_build_ids_of_files(&mut self, known: &[FileBuildId]) {
        let known: FxHashMap<_, _> =
            known.iter().map(|file| ((&file.path[..], file.file_id), &file.id)).collect();
        for ((path, kind, file_id, _), id) in &self.by_key {
            let module = &mut self.list[id.0 as usize];
            if *kind != ModuleKind::File || *file_id == FileId::default() || !module.build_id.is_empty() {
                continue;
            }
            let held = || {
                let path = Path::new(OsStr::from_bytes(path));
                MappedFiles::of_process().of_mapping(path, &[], *file_id)?.build_id.clone()
            };
            let told = known.get(&(&path[..], *file_id)).map(|id| id.to_vec());
            module.build_id = told.or_else(held).unwrap_or_default();
        }
    }

    /// Gives every module of this path the build id from the recording's table, where a mapping brought none.
    pub fn set_build_id(&mut self, path: &[u8], build_id: &[u8]) {
        for module in &mut self.list {
            if module.build_id.is_empty() && module.path == path {
                module.build_id = build_id.to_vec();
            }
        }
    }
}

/// Sorts a user-space mapping's name into what it is, by the names that the kernel and perf give.
pub(crate) fn user_kind(path: &[u8], pid: i32, executable: bool) -> ModuleKind {
    let anonymous = path == b"//anon"
        || path.starts_with(b"/dev/zero")
        || path.starts_with(b"/anon_hugepage")
        || path.starts_with(b"[anon:")
        || path.starts_with(b"[anon_shmem:");
    // Memory with a name but no file: code in it can only have been generated.
    let nameless = anonymous || path.is_empty() || path.starts_with(b"/SYSV");
    let memory = path.starts_with(b"[stack") || path.starts_with(b"[heap");
    if path == b"[vdso]" {
        ModuleKind::Vdso
    } else if nameless || memory {
        if executable { ModuleKind::Jit { pid } } else { ModuleKind::Memory }
    } else if path.starts_with(b"[") {
        ModuleKind::Memory
    } else {
        ModuleKind::File
    }
}

/// Whether a mapping's name is that of a file in memory that has no path: a compiler may have made
/// the code in it.
pub(crate) fn is_memory_file(path: &[u8]) -> bool {
    path.starts_with(b"/memfd:") || path.starts_with(b"/dev/shm/") && path.ends_with(b" (deleted)")
}

fn short_name(path: &[u8], kind: ModuleKind) -> String {
    let text = String::from_utf8_lossy(path);
    match kind {
        ModuleKind::Jit { pid } => format!("[JIT] tid {pid}"),
        ModuleKind::Kernel => "[kernel.kallsyms]".to_string(),
        ModuleKind::KernelModule => kernel_module_name(&text),
        _ if text.starts_with('[') => text.into_owned(),
        _ => text.rsplit('/').next().unwrap_or(&text).to_string(),
    }
}

/// `/lib/modules/6.1/kernel/fs/xfs/xfs.ko.xz` and `[xfs]` are both `[xfs]`; dashes in file names are underscores in
/// the kernel's own naming.
fn kernel_module_name(text: &str) -> String {
    let base = text.rsplit('/').next().unwrap_or(text);
    if base.starts_with('[') {
        return base.to_string();
    }
    let stem = base.split(".ko").next().unwrap_or(base);
    format!("[{}]", stem.replace('-', "_"))
}
