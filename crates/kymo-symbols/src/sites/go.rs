//! What a Go program's own table of functions (`.gopclntab`) says of each: whether it is assembly,
//! the first frame of a stack, or sets the stack pointer.
//!
//! ```text
//!  header:  u32 magic, 0, 0, u8 quantum, u8 pointer size, functions, files, text start, 5 offsets (names, units, files, programs, functions)
//!  functions: (u32 begin from text start, u32 offset of its description) each;  description: .., u8 id, u8 flags, ..
//! ```

use std::collections::HashMap;

use super::runtime::go_table;
use crate::elf::{ElfFile, Fields};

/// Written in assembly.
const ASSEMBLY: u8 = 4;
/// Sets the stack pointer otherwise than by pushing and popping.
const SETS_STACK: u8 = 2;
/// Where a stack begins: nothing returns from it.
const TOP_FRAME: u8 = 1;
/// Of Go 1.18, and of 1.20 and later.
const MAGICS: [(u32, usize); 2] = [(0xffff_fff0, 36), (0xffff_fff1, 40)];
const MOST_FUNCTIONS: u64 = 1 << 24;

/// The functions that Go's compiler and assembler made, by their addresses as linked.
#[derive(Debug, Default)]
pub(super) struct GoFunctions(HashMap<u64, u8>);

/// What is known of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GoFunction(u8);

impl GoFunction {
    pub(super) fn is_assembly(self) -> bool {
        self.0 & ASSEMBLY != 0
    }

    /// Whether calls of it return with the stack pointer that they began with.
    pub(super) fn returns(self) -> bool {
        self.0 & (SETS_STACK | TOP_FRAME) == 0
    }
}

impl GoFunctions {
    /// `text`: where Go's code begins, if a symbol says so.
    pub(super) fn of(elf: &ElfFile, text: Option<u64>) -> GoFunctions {
        GoFunctions::read(elf, text).unwrap_or_default()
    }

    fn read(elf: &ElfFile, text: Option<u64>) -> Option<GoFunctions> {
        let section = go_table(elf)?;
        let bytes = elf.read_section(section)?;
        let table = Fields(&bytes);
        let &(_, id_at) = MAGICS.iter().find(|(magic, _)| *magic == table.u32(0))?;
        if bytes.get(7) != Some(&8) {
            return None;
        }
        let count = table.u64(8).min(MOST_FUNCTIONS);
        let start = text
            .or_else(|| Some(table.u64(24)).filter(|start| *start != 0))
            .or_else(|| elf.section(b".text").map(|section| section.addr))?;
        let functions = usize::try_from(table.u64(64)).ok()?;
        let entries = bytes.get(functions..)?;
        let mut found = HashMap::new();
        for entry in entries.chunks_exact(8).take(count as usize) {
            let entry = Fields(entry);
            let flags = entries.get(entry.u32(4) as usize + id_at + 1);
            found.insert(start.wrapping_add(u64::from(entry.u32(0))), *flags?);
        }
        Some(GoFunctions(found))
    }

    pub(super) fn at(&self, svma: u64) -> Option<GoFunction> {
        self.0.get(&svma).copied().map(GoFunction)
    }

    /// Whether the table could not be read.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
