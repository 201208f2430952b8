//! What a module's `.eh_frame` says of functions: where their code lies, and how deep their frames
//! are.

use gimli::{BaseAddresses, CfaRule, EhFrame, LittleEndian, UnwindContext, UnwindSection};

use crate::elf::ElfFile;

/// Unwind tables of a module, by address.
#[derive(Debug, Default)]
pub(super) struct UnwindTables {
    bytes: Vec<u8>,
    svma: u64,
    /// First address, first one behind it, offset of the description.
    ranges: Vec<(u64, u64, usize)>,
}

impl UnwindTables {
    pub(super) fn of(elf: &ElfFile) -> UnwindTables {
        let section = elf.section(b".eh_frame");
        let Some((bytes, svma)) = section.and_then(|s| Some((elf.read_section(s)?, s.addr))) else {
            return UnwindTables::default();
        };
        let mut tables = UnwindTables { bytes, svma, ranges: Vec::new() };
        let mut ranges = Vec::new();
        let bases = tables.bases();
        let section = EhFrame::new(&tables.bytes, LittleEndian);
        let mut entries = section.entries(&bases);
        while let Ok(Some(entry)) = entries.next() {
            if let gimli::CieOrFde::Fde(partial) = entry
                && let Ok(fde) = partial.parse(EhFrame::cie_from_offset)
            {
                let (start, len) = (fde.initial_address(), fde.len());
                ranges.push((start, start.saturating_add(len), fde.offset()));
            }
        }
        ranges.sort_unstable();
        tables.ranges = ranges;
        tables
    }

    fn bases(&self) -> BaseAddresses {
        BaseAddresses::default().set_eh_frame(self.svma)
    }

    /// The range of code that is described together with this address.
    pub(super) fn around(&self, svma: u64) -> Option<(u64, u64, usize)> {
        let after = self.ranges.partition_point(|(start, ..)| *start <= svma);
        self.ranges.get(after.checked_sub(1)?).copied().filter(|(_, end, _)| svma < *end)
    }

    /// How far the stack pointer is below where the frame began, at this instruction: 0 at the
    /// function's entry; `None` if that is not known.
    pub(super) fn depth(&self, svma: u64) -> Option<i64> {
        let (_, _, offset) = self.around(svma)?;
        let bases = self.bases();
        let section = EhFrame::new(&self.bytes, LittleEndian);
        let fde =
            section.fde_from_offset(&bases, gimli::EhFrameOffset(offset), EhFrame::cie_from_offset).ok()?;
        let mut context = UnwindContext::new();
        let row = fde.unwind_info_for_address(&section, &bases, &mut context, svma).ok()?;
        match row.cfa() {
            // Number 7 is the stack pointer.
            CfaRule::RegisterAndOffset { register: gimli::Register(7), offset } => Some(offset - 8),
            // By another register, which the function has put there: its frame is in place.
            CfaRule::RegisterAndOffset { .. } => Some(8),
            CfaRule::Expression(_) => None,
        }
    }
}
