//! What stacks are read from: a process that is there, or a core file.
use crate::core_file::{CoreFile, CoreMapping};
use crate::mapped_files;
use crate::process_modules::modules_of_processes;
use crate::waiting_stacks::StackReader;
use kymo_symbols::unwind::{AddressSpace, Convention, MAX_FRAMES, Stop, UnwindModules, Unwinder, UserRegs};
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// So much of a file's begin must be the one in the dump.
const FIRST_PAGE: usize = 4096;

/// Memory of a process, and its code.
pub(super) trait ProcessImage {
    /// Reads memory: how much of it came.
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> usize;

    /// Frames, innermost first, by registers and the stack from the stack pointer on; `true`: they
    /// reach the function that the thread has begun in. `None`: there is none.
    fn unwind(&mut self, regs: &UserRegs, stack: &[u8]) -> Option<(Vec<u64>, bool)>;

    /// A word of memory.
    fn word(&mut self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        (self.read(address, &mut bytes) == bytes.len()).then_some(u64::from_le_bytes(bytes))
    }
}

/// A process that is there.
pub(super) struct LiveProcess<'a> {
    pub(super) pid: i32,
    pub(super) reader: &'a mut StackReader,
}

impl ProcessImage for LiveProcess<'_> {
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> usize {
        self.reader.read(self.pid, address, bytes).unwrap_or(0)
    }

    fn unwind(&mut self, regs: &UserRegs, stack: &[u8]) -> Option<(Vec<u64>, bool)> {
        self.reader.unwind(self.pid, regs, stack)
    }
}

/// The process of a core file. What the dump left out, because a file has it, is read from that
/// file if it is the one that was mapped.
pub(super) struct DumpedProcess<'a> {
    core: &'a CoreFile,
    space: AddressSpace,
    unwinder: Unwinder,
    /// By path; `None`: not there, or another one.
    files: HashMap<Vec<u8>, Option<File>>,
}

impl<'a> DumpedProcess<'a> {
    pub(super) fn new(core: &'a CoreFile) -> DumpedProcess<'a> {
        let space = space_of(core, &modules_of_processes(|| false));
        DumpedProcess { core, space, unwinder: Unwinder::new(Convention::Lookup), files: HashMap::new() }
    }

    fn read_file(&mut self, address: u64, bytes: &mut [u8]) -> Option<usize> {
        let mapping = self.core.mapping_at(address)?;
        let file = match self.files.get(&mapping.path) {
            Some(known) => known,
            None => {
                let opened = opened(self.core, mapping);
                self.files.entry(mapping.path.clone()).or_insert(opened)
            }
        };
        let within = address - mapping.start;
        let most = usize::try_from(mapping.end - address).ok()?.min(bytes.len());
        file.as_ref()?.read_at(&mut bytes[..most], mapping.offset.checked_add(within)?).ok()
    }

    /// The same, and why the walk ended.
    pub(super) fn walk(&mut self, regs: &UserRegs, stack: &[u8]) -> (Vec<u64>, Stop) {
        let mut frames = Vec::new();
        let stop = self.unwinder.unwind(&self.space, regs, stack, MAX_FRAMES, &mut frames);
        (frames, stop)
    }
}

impl ProcessImage for DumpedProcess<'_> {
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> usize {
        match self.core.read(address, bytes) {
            0 => self.read_file(address, bytes).unwrap_or(0),
            read => read,
        }
    }

    fn unwind(&mut self, regs: &UserRegs, stack: &[u8]) -> Option<(Vec<u64>, bool)> {
        let (frames, stop) = self.walk(regs, stack);
        (!frames.is_empty()).then_some((frames, stop == Stop::Root))
    }
}

fn space_of(core: &CoreFile, modules: &UnwindModules) -> AddressSpace {
    let mut space = AddressSpace::new();
    for mapping in core.mappings.iter().filter(|mapping| mapping.executable) {
        space.map(mapping.start, mapping.end, mapping.offset, modules.module_of(&mapping.file()));
    }
    space
}

/// The file of a mapping: by its build id, and one without by its first page, which the kernel
/// dumps.
fn opened(core: &CoreFile, mapping: &CoreMapping) -> Option<File> {
    let file = mapped_files::open(&mapping.file()).ok()?.file;
    if mapping.build_id.is_empty() {
        let is_first = |other: &&CoreMapping| other.path == mapping.path && other.offset == 0;
        let first = core.mappings.iter().find(is_first)?;
        let (mut dumped, mut there) = ([0; FIRST_PAGE], [0; FIRST_PAGE]);
        let bytes = core.read(first.start, &mut dumped);
        if bytes < FIRST_PAGE || file.read_at(&mut there, 0).ok()? < bytes || dumped != there {
            return None;
        }
    }
    Some(file)
}
