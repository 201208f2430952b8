//! One module's unwind data: from an address in the file to the rule for that address.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use gimli::{
    BaseAddresses, CieOrFde, DebugFrame, EhFrame, EhFrameHdr, FrameDescriptionEntry, LittleEndian,
    UnwindContext, UnwindOffset, UnwindSection,
};

use super::debug_files::{FunctionStarts, StartPlace};
use super::elf::{ElfParts, Section};
use super::instructions::{THREAD_END_BYTES, ends_thread};
use super::machine_code::{self, CallerPlace, MachineCode};
use super::module::Module;
use super::rule::{FrameRule, Rule};
use crate::arch::Arch;
use crate::budget::{Budget, Charge};

type Slice<'a> = gimli::EndianSlice<'a, LittleEndian>;
type Fde<'a> = FrameDescriptionEntry<Slice<'a>>;

/// A frame description of a real function is a few hundred bytes; what claims to be larger is not followed, because
/// every address in it would cost a walk over all of it.
const MAX_FDE_BYTES: usize = 256 << 10;

/// What is added to each of them by the common entry; real ones have 24 bytes.
const MAX_CIE_BYTES: usize = 4 << 10;

/// Descriptions up to here may be walked as often as addresses in them are asked for.
const SMALL_FDE_BYTES: usize = 4 << 10;

/// Bytes of larger ones that are walked, of one module.
const MOST_WALKED_BYTES: u64 = 1 << 30;

/// Bytes of common entries that are parsed to index a section; real ones are some 24 bytes each.
const MOST_CIE_BYTES: usize = 512 << 20;

/// mov $15 (rt_sigreturn), %rax; syscall: all of a signal trampoline.
const X86_64_SIGRETURN: &[u8] = &[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
/// mov x8, #139 (rt_sigreturn); svc #0
const AARCH64_SIGRETURN: &[u8] = &[0x68, 0x11, 0x80, 0xd2, 0x01, 0, 0, 0xd4];

/// Where the frame descriptions start, by the first address they cover: for sections without a lookup table.
type Index = Vec<(u64, usize)>;

/// The unwind data of one module.
#[derive(Debug)]
pub(super) struct Frames {
    parts: ElfParts,
    bases: BaseAddresses,
    /// Only when `.eh_frame` has no usable `.eh_frame_hdr`.
    eh_index: Index,
    /// What the index of `.eh_frame` takes.
    room: Vec<Charge>,
    debug_frame: Option<DebugTable>,
    /// The `.debug_frame` that takes work to get at: compressed, or in another file. Read when no
    /// other table covers an address.
    remote_debug_frame: OnceLock<Option<DebugTable>>,
    /// First addresses of functions, read when the machine code of one is looked at.
    starts: OnceLock<FunctionStarts>,
    /// Bytes of large descriptions that were walked.
    walked_bytes: AtomicU64,
}

/// A `.debug_frame`.
#[derive(Debug)]
struct DebugTable {
    arch: Arch,
    bytes: Vec<u8>,
    index: Index,
    /// What the index takes, and the section if it was unpacked.
    _room: Vec<Charge>,
}

impl DebugTable {
    fn new(arch: Arch, bytes: Vec<u8>, held: Option<Charge>, budget: &Budget) -> Result<DebugTable, String> {
        let mut table = DebugTable { arch, bytes, index: Index::new(), _room: held.into_iter().collect() };
        let (index, room) =
            index_within(&table.section(), &BaseAddresses::default(), table.bytes.len(), budget)?;
        table._room.push(room);
        table.index = index;
        Ok(table)
    }

    fn section(&self) -> DebugFrame<Slice<'_>> {
        let mut frame = DebugFrame::new(&self.bytes, LittleEndian);
        frame.set_address_size(8);
        frame.set_vendor(vendor(self.arch));
        frame
    }
}

impl Frames {
    /// # Errors
    /// There is no room for an index of frame descriptions.
    pub(super) fn new(mut parts: ElfParts, budget: &Budget) -> Result<Frames, String> {
        let svma = |section: &Option<Section>| section.as_ref().map_or(0, |s| s.svma);
        let bases = BaseAddresses::default()
            .set_eh_frame(svma(&parts.eh_frame))
            .set_eh_frame_hdr(svma(&parts.eh_frame_hdr))
            .set_text(parts.text_svma)
            .set_got(parts.got_svma);
        let debug_frame = match parts.debug_frame.take() {
            Some(section) => Some(DebugTable::new(parts.arch, section.bytes, None, budget)?),
            None => None,
        };
        let mut frames = Frames {
            parts,
            bases,
            eh_index: Index::new(),
            room: Vec::new(),
            debug_frame,
            remote_debug_frame: OnceLock::new(),
            starts: OnceLock::new(),
            walked_bytes: AtomicU64::new(0),
        };
        if frames.has_no_table()
            && let Some(section) = frames.eh_frame()
        {
            let bytes = frames.parts.eh_frame.as_ref().map_or(0, |section| section.bytes.len());
            let (index, room) = index_within(&section, &frames.bases, bytes, budget)?;
            frames.room.push(room);
            frames.eh_index = index;
        }
        Ok(frames)
    }

    /// Whether a description may be walked once more.
    fn may_walk(&self, fde: &Fde<'_>) -> bool {
        let bytes = fde.entry_len();
        if bytes > MAX_FDE_BYTES || fde.cie().entry_len() > MAX_CIE_BYTES {
            return false;
        }
        // Counts, and publishes nothing.
        bytes <= SMALL_FDE_BYTES
            || self.walked_bytes.fetch_add(bytes as u64, Ordering::Relaxed) < MOST_WALKED_BYTES
    }

    /// The rule for the instruction at this offset of the module's file. `is_caller`: the
    /// instruction is a call, and the offset that of its last byte.
    pub(super) fn rule_at(
        &self,
        module: &Module,
        file_offset: u64,
        is_caller: bool,
        context: &mut UnwindContext<usize>,
    ) -> FrameRule {
        let Some(svma) = self.parts.svma_of(file_offset) else { return Rule::FramePointer.into() };
        if let Some(section) = self.eh_frame()
            && let Some(fde) = self.eh_fde(&section, svma)
        {
            return self.rule_of(&section, &fde, svma, context);
        }
        if let Some(table) = &self.debug_frame
            && let Some(rule) = self.rule_in(table, (module, is_caller), svma, context)
        {
            return rule;
        }
        if self.parts.stubs.iter().any(|range| range.contains(&svma)) {
            return Rule::just_called(self.parts.arch).into();
        }
        if self.is_sigreturn(module, file_offset) {
            return FrameRule {
                rule: Rule::signal_trampoline(self.parts.arch),
                signal: true,
                by_code: false,
            };
        }
        let remote = self.remote_debug_frame.get_or_init(|| self.read_remote(module));
        if let Some(table) = remote
            && let Some(rule) = self.rule_in(table, (module, is_caller), svma, context)
        {
            return rule;
        }
        match self.rule_by_code(module, svma, is_caller) {
            Some(rule) => FrameRule { rule, signal: false, by_code: true },
            None => Rule::FramePointer.into(),
        }
    }

    /// The rule that a `.debug_frame` has.
    fn rule_in(
        &self,
        table: &DebugTable,
        (module, is_caller): (&Module, bool),
        svma: u64,
        context: &mut UnwindContext<usize>,
    ) -> Option<FrameRule> {
        let section = table.section();
        let fde = indexed_fde(&section, &self.bases, &table.index, svma)?;
        if self.has_no_caller(module, &fde, svma, is_caller) {
            return Some(Rule::Root.into());
        }
        Some(self.rule_of(&section, &fde, svma, context))
    }

    fn read_remote(&self, module: &Module) -> Option<DebugTable> {
        if self.debug_frame.is_some() {
            return None;
        }
        let (bytes, held) = module.remote_debug_frame(self.parts.build_id.as_deref())?;
        DebugTable::new(self.parts.arch, bytes, held, module.budget()).ok()
    }

    /// What the machine code says.
    fn rule_by_code(&self, module: &Module, svma: u64, is_caller: bool) -> Option<Rule> {
        let starts = self.starts.get_or_init(|| module.function_starts(StartPlace::Linked));
        self.with_code(module, svma, &starts.addresses, |code| {
            let ends = is_caller && self.ends_thread(svma + 1, code);
            if ends || machine_code::begins_program(self.parts.entry, svma, code) {
                return Some(Rule::Root);
            }
            machine_code::caller_place(svma + u64::from(is_caller), is_caller, code)?.rule()
        })
    }

    /// Whether a frame of Go's assembly has no caller on its stack, though the tables give it one:
    /// the first one of a thread, and one that has switched to another stack.
    fn has_no_caller(&self, module: &Module, fde: &Fde<'_>, svma: u64, is_caller: bool) -> bool {
        /// Those functions are short.
        const MOST_BYTES: u64 = 1024;
        if !self.parts.is_go || fde.len() > MOST_BYTES {
            return false;
        }
        let address = svma + u64::from(is_caller);
        let has_none = self.with_code(module, svma, &[fde.initial_address()], |code| {
            let ends = is_caller && self.ends_thread(address, code);
            let place = || machine_code::caller_place(address, is_caller, code);
            Some(ends || place() == Some(CallerPlace::OtherStack))
        });
        has_none == Some(true)
    }

    /// Whether the code at this address, where a function would return to, ends a thread; by a call
    /// of a breakpoint, too, as in the start of Go's main thread.
    fn ends_thread(&self, address: u64, code: &MachineCode<'_>) -> bool {
        let Some(bytes) = (code.read)(address, THREAD_END_BYTES as u64) else { return false };
        let stops = match *bytes {
            [0xe8, a, b, c, d, ..] => {
                let distance = i64::from(i32::from_le_bytes([a, b, c, d]));
                let target = address.wrapping_add(5).wrapping_add_signed(distance);
                let called = code.range.contains(&target).then(|| (code.read)(target, 2)).flatten();
                called.is_some_and(|called| matches!(*called, [0xcc, ..] | [0xcd, 3]))
            }
            _ => false,
        };
        stops || ends_thread(self.parts.arch, &bytes)
    }

    /// Looks at the code around an address, if it is of x86-64.
    fn with_code<R>(
        &self,
        module: &Module,
        svma: u64,
        starts: &[u64],
        look: impl FnOnce(&MachineCode<'_>) -> Option<R>,
    ) -> Option<R> {
        let segment = self.parts.code_of(svma).filter(|_| self.parts.arch == Arch::X86_64)?;
        let read = |address: u64, bytes| {
            module.code_bytes(segment.offset.wrapping_add(address.wrapping_sub(segment.svma)), bytes)
        };
        let range = segment.svma..segment.svma.saturating_add(segment.file_bytes);
        look(&MachineCode { range, bits: 64, starts, read: &read })
    }

    /// Whether an address is in a signal trampoline, or just behind it: a sample in the kernel's
    /// work of rt_sigreturn is behind the last instruction, a return address has been put one byte
    /// back from the first.
    fn is_sigreturn(&self, module: &Module, file_offset: u64) -> bool {
        let code = match self.parts.arch {
            Arch::X86_64 => X86_64_SIGRETURN,
            Arch::Aarch64 => AARCH64_SIGRETURN,
        };
        let start = file_offset.saturating_sub(code.len() as u64);
        let found = module.code_at::<19>(start);
        found.is_some_and(|found| found.windows(code.len()).any(|window| window == code))
    }

    fn eh_frame(&self) -> Option<EhFrame<Slice<'_>>> {
        let section = self.parts.eh_frame.as_ref()?;
        let mut frame = EhFrame::new(&section.bytes, LittleEndian);
        frame.set_address_size(8);
        frame.set_vendor(vendor(self.parts.arch));
        Some(frame)
    }

    fn has_no_table(&self) -> bool {
        let Some(header) = &self.parts.eh_frame_hdr else { return true };
        let parsed = EhFrameHdr::new(&header.bytes, LittleEndian).parse(&self.bases, 8);
        !parsed.is_ok_and(|parsed| parsed.table().is_some())
    }

    fn eh_fde<'a>(&self, section: &EhFrame<Slice<'a>>, svma: u64) -> Option<Fde<'a>> {
        if !self.eh_index.is_empty() {
            return indexed_fde(section, &self.bases, &self.eh_index, svma);
        }
        let header = self.parts.eh_frame_hdr.as_ref()?;
        let parsed = EhFrameHdr::new(&header.bytes, LittleEndian).parse(&self.bases, 8).ok()?;
        let table = parsed.table()?;
        let address = table.lookup(svma, &self.bases).ok()?.direct().ok()?;
        let offset = address.checked_sub(self.parts.eh_frame.as_ref()?.svma)?;
        let offset = usize::try_from(offset).ok()?;
        let fde = section.fde_from_offset(&self.bases, offset.into(), EhFrame::cie_from_offset).ok()?;
        fde.contains(svma).then_some(fde)
    }

    fn rule_of<'a, S>(
        &self,
        section: &S,
        fde: &Fde<'a>,
        svma: u64,
        context: &mut UnwindContext<usize>,
    ) -> FrameRule
    where
        S: UnwindSection<Slice<'a>>,
    {
        let signal = fde.is_signal_trampoline();
        let rule = if !self.may_walk(fde) {
            Rule::Bad
        } else {
            match fde.unwind_info_for_address(section, &self.bases, context, svma) {
                Ok(row) => Rule::from_row(self.parts.arch, row, section),
                Err(_) => Rule::Bad,
            }
        };
        FrameRule { rule, signal, by_code: false }
    }
}

/// Whose numbers of call frame instructions the tables use.
fn vendor(arch: Arch) -> gimli::Vendor {
    match arch {
        Arch::X86_64 => gimli::Vendor::Default,
        Arch::Aarch64 => gimli::Vendor::AArch64,
    }
}

/// The index of a section and the room that it takes.
fn index_within<'a, S>(
    section: &S,
    bases: &BaseAddresses,
    bytes: usize,
    budget: &Budget,
) -> Result<(Index, Charge), String>
where
    S: UnwindSection<Slice<'a>>,
{
    let no_room = || "an index of its frame descriptions takes more than a file of its size may".to_owned();
    // The smallest description is twelve bytes long; while it grows, a list is there twice.
    let most = budget.reserve((bytes as u64).saturating_mul(3)).ok_or_else(no_room)?;
    let mut index = index(section, bases);
    index.shrink_to_fit();
    drop(most);
    let room = budget.reserve(size_of_val(&*index) as u64).ok_or_else(no_room)?;
    Ok((index, room))
}

/// Goes over all entries of a section; stops at the first damaged one and keeps what came before.
fn index<'a, S>(section: &S, bases: &BaseAddresses) -> Index
where
    S: UnwindSection<Slice<'a>>,
{
    let mut index = Index::new();
    let mut cie = None;
    // Entries that do not share their common entry with a neighbour cost its parsing each.
    let mut left = MOST_CIE_BYTES;
    let mut entries = section.entries(bases);
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else { continue };
        let wanted = partial.cie_offset();
        // Neighbours mostly share their common entry: parsing it once per run keeps this linear.
        let fde = partial.parse(|section, bases, offset| match &cie {
            Some((at, known)) if *at == UnwindOffset::into(offset) => Ok(Clone::clone(known)),
            _ => {
                let parsed = section.cie_from_offset(bases, offset)?;
                left = left.saturating_sub(parsed.entry_len());
                Ok(parsed)
            }
        });
        if left == 0 {
            break;
        }
        let Ok(fde) = fde else { continue };
        cie = Some((UnwindOffset::into(wanted), fde.cie().clone()));
        index.push((fde.initial_address(), fde.offset()));
    }
    index.sort_unstable();
    index
}

fn indexed_fde<'a, S>(section: &S, bases: &BaseAddresses, index: &Index, svma: u64) -> Option<Fde<'a>>
where
    S: UnwindSection<Slice<'a>>,
{
    let behind = index.partition_point(|&(start, _)| start <= svma);
    let &(_, offset) = index.get(behind.checked_sub(1)?)?;
    let fde = section.fde_from_offset(bases, S::Offset::from(offset), S::cie_from_offset).ok()?;
    fde.contains(svma).then_some(fde)
}
