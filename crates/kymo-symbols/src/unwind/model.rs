//! The most obvious correct unwinder: no cache, no rules of its own, every frame straight from gimli's tables.

use std::collections::BTreeMap;

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, EhFrame, EndianSlice, Evaluation, EvaluationResult, Expression,
    LittleEndian, Location, RegisterRule, UnwindContext, UnwindSection, Value,
};

use super::elf::ElfParts;
use super::regs::UserRegs;
use super::stats::Stop;
use crate::arch::Arch;

type Slice<'a> = EndianSlice<'a, LittleEndian>;
type Result<T> = std::result::Result<T, Stop>;

/// One module, mapped so that its addresses are what the file says.
pub(super) struct Model {
    frame: Vec<u8>,
    bases: BaseAddresses,
    /// Start -> (end, offset of the description).
    functions: BTreeMap<u64, (u64, usize)>,
}

impl Model {
    pub(super) fn new(parts: &ElfParts) -> Model {
        let section = parts.eh_frame.as_ref().expect("a module with .eh_frame");
        let bases = BaseAddresses::default()
            .set_eh_frame(section.svma)
            .set_text(parts.text_svma)
            .set_got(parts.got_svma);
        let frame = section.bytes.clone();
        let eh_frame = EhFrame::new(&frame, LittleEndian);
        let mut functions = BTreeMap::new();
        let mut entries = eh_frame.entries(&bases);
        while let Ok(Some(entry)) = entries.next() {
            if let CieOrFde::Fde(partial) = entry
                && let Ok(fde) = partial.parse(EhFrame::cie_from_offset)
            {
                functions.insert(fde.initial_address(), (fde.end_address(), fde.offset()));
            }
        }
        Model { frame, bases, functions }
    }

    /// Where functions start and end.
    pub(super) fn functions(&self) -> Vec<(u64, u64)> {
        self.functions.iter().map(|(&start, &(end, _))| (start, end)).collect()
    }

    /// Return addresses as in [`Convention::Return`](super::Convention::Return). `mapped` says which addresses belong
    /// to the module.
    pub(super) fn unwind(
        &self,
        mapped: &std::ops::Range<u64>,
        regs: &UserRegs,
        stack: &[u8],
        max_frames: usize,
    ) -> (Vec<u64>, Stop) {
        let start = regs.sp();
        let word = |address: u64| -> Result<u64> {
            let at = address.wrapping_sub(start);
            let bytes = (at <= stack.len() as u64).then(|| stack.get(at as usize..at as usize + 8)).flatten();
            let far = if at < 8 << 20 { Stop::StackEnd } else { Stop::Unreadable };
            bytes.map(|b| u64::from_le_bytes(b.try_into().expect("8 bytes"))).ok_or(far)
        };
        let mut regs = *regs;
        let mask = regs.arch.address_mask(mapped.end.max(start));
        let mut frames = Vec::new();
        let mut called = false;
        loop {
            if frames.len() == max_frames {
                return (frames, Stop::Limit);
            }
            let lookup = regs.ip.wrapping_sub(u64::from(called));
            let is_mapped = mapped.contains(&lookup);
            if is_mapped || frames.is_empty() {
                frames.push(regs.ip);
            }
            if !is_mapped {
                return (frames, Stop::NoMapping);
            }
            let (signal, caller) = self.caller(lookup, &regs, &word, frames.len() == 1);
            let caller = caller.map(|mut caller| {
                caller.ip &= mask;
                caller
            });
            match caller {
                Err(stop) => return (frames, stop),
                Ok(caller) if caller.ip == 0 => return (frames, Stop::Root),
                Ok(caller) if caller.ip == regs.ip && caller.sp() == regs.sp() => {
                    return (frames, Stop::Loop);
                }
                Ok(caller) => regs = caller,
            }
            called = !signal;
        }
    }

    /// Whether the frame is a signal trampoline, and the registers of its caller.
    fn caller(
        &self,
        lookup: u64,
        regs: &UserRegs,
        word: &impl Fn(u64) -> Result<u64>,
        innermost: bool,
    ) -> (bool, Result<UserRegs>) {
        let mut section = EhFrame::new(&self.frame, LittleEndian);
        if regs.arch == Arch::Aarch64 {
            section.set_vendor(gimli::Vendor::AArch64);
        }
        let fde = self.functions.range(..=lookup).next_back().filter(|(_, (end, _))| lookup < *end).and_then(
            |(_, (_, at))| section.fde_from_offset(&self.bases, (*at).into(), EhFrame::cie_from_offset).ok(),
        );
        let Some(fde) = fde else { return (false, follow_frame_pointer(regs, word)) };
        let mut context = UnwindContext::new();
        let caller = match fde.unwind_info_for_address(&section, &self.bases, &mut context, lookup) {
            Ok(row) => follow_row(&section, row, fde.cie().encoding(), regs, word, innermost),
            Err(_) => Err(Stop::BadUnwindInfo),
        };
        (fde.is_signal_trampoline(), caller)
    }
}

fn follow_row(
    section: &EhFrame<Slice<'_>>,
    row: &gimli::UnwindTableRow<usize>,
    encoding: gimli::Encoding,
    regs: &UserRegs,
    word: &impl Fn(u64) -> Result<u64>,
    innermost: bool,
) -> Result<UserRegs> {
    let arch = regs.arch;
    let column = gimli::Register(arch.return_column() as u16);
    let is_root = match (arch, row.register(column)) {
        (_, Some(RegisterRule::Undefined)) | (Arch::X86_64, None) => true,
        (Arch::X86_64, _) => row.register(gimli::X86_64::RBP) == Some(RegisterRule::Undefined),
        (Arch::Aarch64, _) => false,
    };
    if is_root {
        return Err(Stop::Root);
    }
    let known = |number: u16| regs.get(usize::from(number)).ok_or(Stop::RegisterUnknown);
    let evaluate = |e: &gimli::UnwindExpression<usize>, initial| {
        let expression = e.get(section).map_err(|_| Stop::BadUnwindInfo)?;
        evaluate(expression, encoding, initial, regs, word)
    };
    let cfa = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => known(register.0)?.wrapping_add_signed(*offset),
        CfaRule::Expression(e) => evaluate(e, None)?,
    };
    let value = |rule: &RegisterRule<usize>| match rule {
        RegisterRule::Offset(offset) => word(cfa.wrapping_add_signed(*offset)),
        RegisterRule::ValOffset(offset) => Ok(cfa.wrapping_add_signed(*offset)),
        RegisterRule::Register(other) => known(other.0),
        RegisterRule::Expression(e) => word(evaluate(e, Some(cfa))?),
        RegisterRule::ValExpression(e) => evaluate(e, Some(cfa)),
        _ => Err(Stop::RegisterUnknown),
    };
    let mut caller = *regs;
    for (register, rule) in row.registers() {
        let number = usize::from(register.0);
        let popped = |offset: &i64| {
            let below = regs.sp().wrapping_sub(cfa.wrapping_add_signed(*offset));
            arch == Arch::X86_64 && innermost && (1..=256).contains(&below)
        };
        match rule {
            _ if number >= arch.registers() || number == arch.sp() || *register == column => {}
            RegisterRule::SameValue => {}
            RegisterRule::Offset(offset) if popped(offset) => {}
            rule => caller.set(number, value(rule).ok()),
        }
    }
    let return_address = match row.register(column) {
        None | Some(RegisterRule::SameValue) if arch == Arch::Aarch64 => known(column.0)?,
        rule => value(&rule.ok_or(Stop::Root)?)?,
    };
    caller.ip = return_address;
    if arch == Arch::Aarch64 {
        caller.set(arch.return_column(), Some(return_address));
    }
    caller.set_sp(cfa);
    Ok(caller)
}

fn follow_frame_pointer(regs: &UserRegs, word: &impl Fn(u64) -> Result<u64>) -> Result<UserRegs> {
    let frame = regs.get(regs.arch.fp()).ok_or(Stop::RegisterUnknown)?;
    if frame == 0 {
        return Err(Stop::Root);
    }
    if frame < regs.sp() || frame - regs.sp() > 0x4000 || frame % 8 != 0 {
        return Err(Stop::NoUnwindInfo);
    }
    let mut caller = *regs;
    caller.forget_all();
    let saved = word(frame)?;
    caller.ip = word(frame + 8)?;
    caller.set_sp(frame + 16);
    caller.set(regs.arch.fp(), Some(saved));
    if regs.arch == Arch::Aarch64 {
        caller.set(regs.arch.return_column(), Some(caller.ip));
    }
    Ok(caller)
}

fn evaluate(
    expression: Expression<Slice<'_>>,
    encoding: gimli::Encoding,
    initial: Option<u64>,
    regs: &UserRegs,
    word: &impl Fn(u64) -> Result<u64>,
) -> Result<u64> {
    let mut evaluation = Evaluation::new(expression.0, encoding);
    evaluation.set_max_iterations(2048);
    if let Some(value) = initial {
        evaluation.set_initial_value(value);
    }
    let bad = |_| Stop::BadUnwindInfo;
    let mut step = evaluation.evaluate().map_err(bad)?;
    loop {
        step = match step {
            EvaluationResult::Complete => break,
            EvaluationResult::RequiresRegister { register, .. } => {
                let value = regs.get(usize::from(register.0)).ok_or(Stop::RegisterUnknown)?;
                evaluation.resume_with_register(Value::Generic(value)).map_err(bad)?
            }
            EvaluationResult::RequiresMemory { address, size, .. } => {
                let value = word(address)?;
                let value = if size < 8 { value & ((1 << (8 * size)) - 1) } else { value };
                evaluation.resume_with_memory(Value::Generic(value)).map_err(bad)?
            }
            EvaluationResult::RequiresRelocatedAddress(address) => {
                evaluation.resume_with_relocated_address(address).map_err(bad)?
            }
            _ => return Err(Stop::BadUnwindInfo),
        };
    }
    match evaluation.as_result().last().map(|piece| piece.location) {
        Some(Location::Address { address }) => Ok(address),
        _ => Err(Stop::BadUnwindInfo),
    }
}

/// The value of a stand-alone expression.
pub(super) fn value_of(
    bytes: &[u8],
    initial: u64,
    regs: &UserRegs,
    word: &impl Fn(u64) -> Result<u64>,
) -> Result<u64> {
    let encoding = gimli::Encoding { address_size: 8, format: gimli::Format::Dwarf32, version: 1 };
    evaluate(Expression(EndianSlice::new(bytes, LittleEndian)), encoding, Some(initial), regs, word)
}
