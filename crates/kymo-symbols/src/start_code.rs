//! Names the code that a program of glibc begins with, `_start`, in files that were stripped.
//!
//! Every call chain of the main thread ends there, so it would be the outermost frame of every
//! stripped program without a name. Linkers put it in from `crt1.o`; it is told by its first
//! instructions at the entry point of the file.
use super::elf::{EM_X86_64, ElfFile};
use super::table::{Binding, TableBuilder};

const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
/// xor %ebp,%ebp; mov %rdx,%r9; pop %rsi: the frame pointer and the arguments, by the System V ABI
/// ("Process Initialization").
const BEGIN: [u8; 6] = [0x31, 0xed, 0x49, 0x89, 0xd1, 0x5e];
/// It ends with this, which is not reached.
const HLT: u8 = 0xf4;
/// More than it has in any release.
const MOST_BYTES: u64 = 64;

/// Adds the symbol to those of a loaded file, unless it is there.
pub(super) fn add(builder: &mut TableBuilder, runtime: &ElfFile) -> Option<()> {
    let offset = runtime.code_offset(runtime.entry).filter(|_| runtime.machine == EM_X86_64)?;
    let code = runtime.read(offset, MOST_BYTES)?;
    let begin = code.strip_prefix(&ENDBR64).unwrap_or(&code);
    if !begin.starts_with(&BEGIN) || builder.address_of("_start").is_some() {
        return None;
    }
    let size = 1 + code.iter().position(|&byte| byte == HLT)?;
    let name = builder.add_names(b"_start")?;
    builder.insert(offset, size as u64, name, Binding::Global, 0);
    Some(())
}
