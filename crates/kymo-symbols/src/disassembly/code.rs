//! The bytes of a function: from the file that was recorded, or from the running kernel.
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::debuginfod::BuildFile;
use crate::elf::{ElfFile, Segment, same_build_id};
use crate::elf_symbols::is_thumb;
use crate::file_state::FileState;
use crate::locate::{self, Candidate};
use crate::store::{ModuleKey, SymbolStore};
use crate::user::open_if_it_fits;

use super::machine::CodeMachine;
use super::{MOST_CODE_BYTES, kcore};

const KCORE: &str = "/proc/kcore";

/// Why the code of a function is not shown: a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CodeError(pub String);

/// The code of a function.
#[derive(Clone, Debug)]
pub struct FunctionCode {
    /// Where it comes from.
    pub path: PathBuf,
    /// The address of its first byte: as the file was linked, or in memory.
    pub address: u64,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Whose instructions they are.
    pub(super) machine: CodeMachine,
    /// The recording has no build id of the file: nothing says whether it is the one that was
    /// recorded.
    pub is_unchecked: bool,
    /// Only root can write the file that it comes from.
    pub is_root_owned: bool,
    space: CodeSpace,
}

/// How addresses of code belong to those of its module.
#[derive(Clone, Debug)]
enum CodeSpace {
    /// The module counts in file offsets.
    File(Vec<Segment>),
    /// The module's addresses are those of the code plus this.
    Moved(u64),
}

impl FunctionCode {
    /// Generated code, which lies where it says.
    ///
    /// # Errors
    /// When it is longer than is disassembled, or for another machine.
    pub fn of_bytes(
        path: PathBuf,
        address: u64,
        bytes: &[u8],
        elf_machine: u16,
    ) -> Result<FunctionCode, CodeError> {
        bounded(&path, bytes.len() as u64)?;
        let machine = CodeMachine::of_elf(elf_machine, true, false).or_else(|why| refused(&path, &why))?;
        let space = CodeSpace::Moved(0);
        let bytes = bytes.to_vec();
        let (is_unchecked, is_root_owned) = (false, false);
        Ok(FunctionCode { path, address, bytes, machine, is_unchecked, is_root_owned, space })
    }

    /// Whose instructions they are, as `uname -m` names machines.
    #[must_use]
    pub fn machine_name(&self) -> &'static str {
        self.machine.name()
    }

    /// The address of the code for an address of its module, the other way than
    /// [`module_address`](FunctionCode::module_address).
    #[must_use]
    pub fn linked_address(&self, module_address: u64) -> Option<u64> {
        match &self.space {
            CodeSpace::File(segments) => {
                let inside =
                    |s: &&Segment| module_address >= s.offset && module_address - s.offset < s.size_in_file;
                let segment = segments.iter().find(inside)?;
                Some((module_address - segment.offset).wrapping_add(segment.vaddr))
            }
            CodeSpace::Moved(by) => Some(module_address.wrapping_sub(*by)),
        }
    }

    /// The address of its module for an address of the code, for its name.
    #[must_use]
    pub fn module_address(&self, address: u64) -> Option<u64> {
        match &self.space {
            CodeSpace::File(segments) => {
                let inside = |s: &&Segment| address >= s.vaddr && address - s.vaddr < s.size_in_file;
                let segment = segments.iter().find(inside)?;
                (address - segment.vaddr).checked_add(segment.offset)
            }
            CodeSpace::Moved(by) => Some(address.wrapping_add(*by)),
        }
    }
}

fn refused<T>(path: &Path, why: &str) -> Result<T, CodeError> {
    Err(CodeError(format!("{}: {why}; its code is not shown", path.display())))
}

fn bounded(path: &Path, size: u64) -> Result<(), CodeError> {
    match size {
        0 => refused(path, "the function has no bytes"),
        size if size > MOST_CODE_BYTES => refused(
            path,
            &format!("the function has {size} bytes, more than the {MOST_CODE_BYTES} that are disassembled"),
        ),
        _ => Ok(()),
    }
}

impl SymbolStore {
    /// The code of a module from one address to before another, both in the module's address space.
    ///
    /// # Errors
    /// Why it cannot be shown: the file is not there, is not the one that was recorded, or is for
    /// another machine.
    pub fn code(&self, key: &ModuleKey, start: u64, end: u64) -> Result<FunctionCode, CodeError> {
        let size = end.saturating_sub(start);
        match key {
            ModuleKey::Elf { path, build_id, mapped } => {
                if let Some(why) = self.file_refusal(key) {
                    return Err(CodeError(why.0));
                }
                self.code_of_file((path, *mapped), build_id.as_deref(), start, size)
            }
            ModuleKey::Vdso { .. } => {
                let symbols = self.get(key);
                let Some((elf, _)) = symbols.image() else {
                    return Err(CodeError(
                        "[vdso]: it is not the one of this kernel; its code is not shown".into(),
                    ));
                };
                of_elf(elf, (start, size), true)
            }
            ModuleKey::Kernel { build_id, reference } => {
                if let Some((elf, delta)) = self.get(key).image() {
                    // One that the user named is taken as it is for names, not for code.
                    let own = elf.build_id();
                    if let (Some(recorded), Some(own)) = (build_id, own)
                        && !same_build_id(recorded, &own)
                    {
                        return refused(
                            &elf.path,
                            "it is not the kernel that was recorded (its build id differs)",
                        );
                    }
                    return of_image(elf, delta, start, size);
                }
                let moved =
                    self.kernel_moved_by(build_id, reference.as_ref()).map_err(|note| CodeError(note.0))?;
                of_kcore(start, size, moved)
            }
            ModuleKey::KernelModule { build_id, .. } => {
                // Where a module lies is not told by a reference: it must be the same boot.
                let moved = self.kernel_moved_by(build_id, None).map_err(|note| CodeError(note.0))?;
                of_kcore(start, size, moved)
            }
            ModuleKey::PerfMap { pid } => Err(CodeError(format!(
                "generated code of process {pid}: a perf map has names, not code; a jitdump has both"
            ))),
            ModuleKey::Anonymous => Err(CodeError("memory without a file has no code to show".into())),
        }
    }

    fn code_of_file(
        &self,
        (path, mapped): (&Path, FileState),
        build_id: Option<&[u8]>,
        start: u64,
        size: u64,
    ) -> Result<FunctionCode, CodeError> {
        let options = self.options();
        let build_id = build_id.filter(|id| id.iter().any(|&byte| byte != 0));
        let own = locate::below_root(options, path);
        bounded(&own, size)?;
        let cached = build_id.and_then(|id| locate::in_build_id_cache(options, id, "elf"));
        let mut error = None;
        let held = options.held_file(path, build_id, mapped);
        let held_path = held.as_ref().map(|file| file.held_path());
        // What is fetched comes last: only where no file of this machine has the code.
        let fetched = std::iter::once_with(|| {
            let fetcher = options.debuginfod.as_ref()?;
            fetcher.fetch(BuildFile::Executable, build_id?, path).ok().flatten()
        });
        for path in held_path.into_iter().chain(std::iter::once(own)).chain(cached).chain(fetched.flatten()) {
            let candidate = Candidate { path, checksum: None };
            let opened = open_if_it_fits(&candidate, build_id, &options.budget);
            let found = match opened {
                Ok(elf) => match options.other_machine(elf.machine) {
                    None => of_elf(&elf, (start, size), build_id.is_some()),
                    Some(why) => refused(&candidate.path, &why),
                },
                Err(refusal) => match refusal.mismatch {
                    Some(why) => refused(&candidate.path, why),
                    None => Err(CodeError(format!("{}; its code is not shown", refusal.why))),
                },
            };
            match found {
                Ok(code) => return Ok(code),
                // What is wrong with the file itself says more than that no copy was kept.
                Err(why) => error = error.or(Some(why)),
            }
        }
        Err(error.unwrap_or_else(|| CodeError(format!("{}: there is no such file", path.display()))))
    }
}

/// Code at a file offset.
fn of_elf(elf: &ElfFile, (start, size): (u64, u64), is_checked: bool) -> Result<FunctionCode, CodeError> {
    bounded(&elf.path, size)?;
    let space = CodeSpace::File(elf.segments.clone());
    let address = elf.linked_address(start);
    let is_thumb = address.is_some_and(|address| is_thumb(elf, address));
    let machine = CodeMachine::of_elf(elf.machine, elf.is_64, is_thumb);
    let machine = machine.or_else(|why| refused(&elf.path, &why))?;
    // The last symbol of a section may reach into the gap after it.
    let section = address.and_then(|address| Some(elf.code_end(address)? - address));
    let size = section.map_or(size, |section| section.min(size));
    let Some((address, bytes)) = address.zip(elf.read(start, size)) else {
        return refused(&elf.path, &format!("it has no {size} bytes of code at offset {start:#x}"));
    };
    // A file with debug information alone has no bytes where the code was.
    if elf.code_offset(address).is_none() {
        return refused(&elf.path, &format!("it has no code at offset {start:#x}, only names"));
    }
    let (is_unchecked, is_root_owned) = (!is_checked, elf.is_root_owned());
    Ok(FunctionCode { path: elf.path.clone(), address, bytes, machine, is_unchecked, is_root_owned, space })
}

/// Code of a kernel image, which was loaded `delta` after where it was linked.
fn of_image(elf: &Arc<ElfFile>, delta: u64, start: u64, size: u64) -> Result<FunctionCode, CodeError> {
    bounded(&elf.path, size)?;
    let machine = CodeMachine::of_elf(elf.machine, elf.is_64, false);
    let machine = machine.or_else(|why| refused(&elf.path, &why))?;
    let address = start.wrapping_sub(delta);
    let Some(bytes) = elf.code_offset(address).and_then(|offset| elf.read(offset, size)) else {
        return refused(&elf.path, &format!("it has no code at {address:#x}"));
    };
    let space = CodeSpace::Moved(delta);
    let (is_unchecked, is_root_owned) = (false, elf.is_root_owned());
    Ok(FunctionCode { path: elf.path.clone(), address, bytes, machine, is_unchecked, is_root_owned, space })
}

/// Code of the running kernel, which lay `moved` further up when it was recorded.
fn of_kcore(start: u64, size: u64, moved: u64) -> Result<FunctionCode, CodeError> {
    let path = Path::new(KCORE);
    bounded(path, size)?;
    let Some(machine) = CodeMachine::NATIVE else {
        return refused(path, "only x86 and aarch64 are disassembled");
    };
    let address = start.wrapping_sub(moved);
    match kcore::read(path, address, size as usize) {
        Ok(bytes) => {
            let space = CodeSpace::Moved(moved);
            let (is_unchecked, is_root_owned) = (false, false);
            let path = path.to_owned();
            Ok(FunctionCode { path, address, bytes, machine, is_unchecked, is_root_owned, space })
        }
        Err(error) => Err(CodeError(format!(
            "the kernel's code cannot be read from {KCORE}: {error}; give its image with --vmlinux"
        ))),
    }
}
