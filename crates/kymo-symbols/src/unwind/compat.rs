//! Stacks of 32-bit tasks, by their machine code.
//!
//! No unwind tables are read for them: their registers and stacks have another shape. Of x86 the
//! instructions up to a function's return say where its caller is (`machine_code`). Where they say
//! nothing the chain ends: most 32-bit programs keep no frame pointer, and one that is followed
//! where none is kept skips callers. It is followed where there is no code to look at.
//!
//! Tasks of 32-bit ARM have the sampled address only.

use rustc_hash::FxHashMap;

use super::call_sites::{follows_call, starts_thread};
use super::debug_files::{FunctionStarts, StartPlace};
use super::machine_code::{self, CallerPlace, MachineCode, RegisterValue};
use super::regs::UserRegs;
use super::space::{AddressSpace, Mapping};
use super::stack::Stack;
use super::stats::Stop;
use crate::arch::{Arch, RBP, RSP};

/// Addresses whose callers' places are remembered, before everything is forgotten.
const MOST_KNOWN: usize = 1 << 14;

/// Walks stacks of 32-bit tasks.
#[derive(Debug, Default)]
pub(super) struct CompatWalker {
    /// By module and file offset; of callers behind their calls. `None`: the code does not say it.
    places: FxHashMap<(u32, u64, bool), Option<CallerPlace>>,
    /// Where functions begin, in their files, by module.
    starts: FxHashMap<u32, FunctionStarts>,
}

/// What a walk reads.
#[derive(Clone, Copy)]
pub(super) struct CompatMemory<'a> {
    pub(super) space: &'a AddressSpace,
    pub(super) stack: Stack<'a>,
}

impl CompatMemory<'_> {
    fn word(&self, address: u64) -> Option<u64> {
        let at = usize::try_from(low(address).checked_sub(self.stack.start)?).ok()?;
        let bytes = self.stack.bytes.get(at..)?.first_chunk()?;
        Some(u32::from_le_bytes(*bytes).into())
    }
}

/// An address of 32 bits.
fn low(address: u64) -> u64 {
    address & u64::from(u32::MAX)
}

impl CompatWalker {
    /// Appends the frames of a 32-bit task to `out`, at most `full` of them in all. Return
    /// addresses are lowered by `back`.
    pub(super) fn walk(
        &mut self,
        memory: CompatMemory<'_>,
        regs: &UserRegs,
        back: u64,
        full: usize,
        out: &mut Vec<u64>,
    ) -> Stop {
        let mut regs = *regs;
        let mut is_caller = false;
        loop {
            if out.len() >= full {
                return Stop::Limit;
            }
            let mapping = memory.space.find(regs.ip.wrapping_sub(is_caller.into()));
            if mapping.is_none() && is_caller {
                return Stop::NoMapping;
            }
            out.push(regs.ip.wrapping_sub(if is_caller { back } else { 0 }));
            let Some(mapping) = mapping else { return Stop::NoMapping };
            if regs.arch != Arch::X86_64 {
                return Stop::NoUnwindInfo;
            }
            if is_caller && starts_thread(regs.arch, memory.space, regs.ip) {
                return Stop::Root;
            }
            let stepped = match has_code(mapping) {
                true => match self.place(mapping, regs.ip, is_caller) {
                    Some(CallerPlace::OtherStack) => Err(Stop::Root),
                    Some(CallerPlace::Return { slot, sp, saved }) => {
                        step(memory, &mut regs, (*slot, *sp), saved)
                    }
                    None => Err(Stop::NoUnwindInfo),
                },
                false => step_frame_pointer(memory, &mut regs),
            };
            if let Err(stop) = stepped {
                return stop;
            }
            is_caller = true;
        }
    }

    fn place(&mut self, mapping: &Mapping, ip: u64, is_caller: bool) -> Option<&CallerPlace> {
        let module = mapping.module.as_ref()?;
        if self.places.len() >= MOST_KNOWN {
            self.places.clear();
        }
        let starts =
            self.starts.entry(module.id()).or_insert_with(|| module.function_starts(StartPlace::File));
        let offset = mapping.file_offset(ip);
        let place = || {
            let read = |offset, bytes| module.code_bytes(offset, bytes);
            let range = mapping.pgoff..mapping.pgoff.saturating_add(mapping.end - mapping.start);
            let code = MachineCode { range, bits: 32, starts: &starts.addresses, read: &read };
            machine_code::caller_place(offset, is_caller, &code)
        };
        let key = (module.id(), offset, is_caller);
        self.places.entry(key).or_insert_with(place).as_ref()
    }
}

/// Whether the code of a mapping can be looked at.
fn has_code(mapping: &Mapping) -> bool {
    mapping.module.as_ref().is_some_and(|module| module.code_at::<1>(mapping.pgoff).is_some())
}

/// Steps to the caller, if its return address is one.
fn step(
    memory: CompatMemory<'_>,
    regs: &mut UserRegs,
    (slot, sp): (RegisterValue, RegisterValue),
    saved: &[(u8, RegisterValue)],
) -> Result<(), Stop> {
    let old = *regs;
    let value = |value: RegisterValue| match value {
        RegisterValue::Register(base, offset) => {
            old.get(base.into()).map(|base| low(base.wrapping_add_signed(offset)))
        }
        RegisterValue::Word(base, offset, more) => {
            let word = memory.word(old.get(base.into())?.wrapping_add_signed(offset))?;
            Some(low(word.wrapping_add_signed(more)))
        }
        RegisterValue::Foreign | RegisterValue::Unknown => None,
    };
    let sp = value(sp).ok_or(Stop::RegisterUnknown)?;
    let slot = value(slot).ok_or(Stop::RegisterUnknown)?;
    let caller = memory.word(slot).ok_or_else(|| memory.stack.why_unreadable(slot))?;
    if !follows_call(old.arch, memory.space, caller) {
        return Err(Stop::NoUnwindInfo);
    }
    saved.iter().for_each(|&(register, source)| regs.set(register.into(), value(source)));
    regs.ip = caller;
    regs.set(RSP, Some(sp));
    Ok(())
}

/// Steps along the frame pointer, as the kernel does.
fn step_frame_pointer(memory: CompatMemory<'_>, regs: &mut UserRegs) -> Result<(), Stop> {
    let frame = low(regs.get(RBP).unwrap_or(0));
    if frame == 0 {
        return Err(Stop::Root);
    }
    let (Some(outer), Some(caller)) = (memory.word(frame), memory.word(frame + 4)) else {
        return Err(Stop::NoUnwindInfo);
    };
    // Above the first frame lies the number of arguments.
    if caller < 4096 {
        return Err(Stop::Root);
    }
    // Callers lie above: what points down is no frame.
    if outer != 0 && outer <= frame {
        regs.set(RBP, None);
        return Err(Stop::NoUnwindInfo);
    }
    regs.ip = caller;
    regs.set(RBP, Some(outer));
    regs.set(RSP, Some(frame + 8));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{small_elf, store_of};
    use super::*;

    const CODE: u64 = 0x1000;

    fn walked(code: &[u8], words: &[u32], (ip, sp, bp): (u64, u64, u64)) -> (Vec<u64>, Stop) {
        let modules = store_of(small_elf(code));
        let module = (!code.is_empty()).then(|| modules.module(b"/program", b"")).flatten();
        let mut space = AddressSpace::new();
        space.map(CODE, CODE + code.len().max(0x3000) as u64, 0x1000, module);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let memory = CompatMemory { space: &space, stack: Stack { start: 0xf000, bytes: &bytes } };
        let mut out = Vec::new();
        let stop = CompatWalker::default().walk(memory, &UserRegs::new(ip, sp, bp), 1, 127, &mut out);
        (out, stop)
    }

    /// Checks a stack of code that is not there, along its frame pointers: of two frames, one that
    /// is cut off, and frames that point down.
    #[test]
    fn along_frame_pointers() {
        let walked = |words: &[u32], bp| walked(&[], words, (0x1100, 0xf000, bp));
        let whole = [0, 0xf00c, 0x2000, 0xf014, 0x3000, 0, 1];
        assert_eq!(walked(&whole, 0xf004), (vec![0x1100, 0x1fff, 0x2fff], Stop::Root));
        assert_eq!(walked(&whole[..3], 0xf004), (vec![0x1100, 0x1fff], Stop::NoUnwindInfo));
        assert_eq!(walked(&[0xf000, 0x2000], 0xf000), (vec![0x1100], Stop::NoUnwindInfo));
        assert_eq!(walked(&[], 0), (vec![0x1100], Stop::Root));
    }

    /// Checks 32-bit functions without frame pointers: the caller is where the instructions up to
    /// the return say, a frame pointer that is another function's leads nowhere, and a word that
    /// is no return address ends the chain.
    #[test]
    fn by_the_machine_code_of_32_bits() {
        let mut code = vec![0xcc; 0x80];
        // At 0x10: add $8,%esp; pop %ebx; ret. At 0x20: call 0x10; pop %ebp; ret.
        // At 0x30: call; hlt.
        code[0x10..0x15].copy_from_slice(&[0x83, 0xc4, 8, 0x5b, 0xc3]);
        code[0x20..0x27].copy_from_slice(&[0xe8, 0xeb, 0xff, 0xff, 0xff, 0x5d, 0xc3]);
        code[0x30..0x36].copy_from_slice(&[0xe8, 0xeb, 0xff, 0xff, 0xff, 0xf4]);
        let (inner, outer) = (0x1025_u32, 0x1035_u32);
        let words = [1, 2, 3, inner, 0xf000, outer, 7];
        let regs = (0x1010, 0xf000, 0xf010);
        assert_eq!(walked(&code, &words, regs), (vec![0x1010, 0x1024, 0x1034], Stop::Root));
        let stale = [1, 2, 3, 0x1050, 0xf000, outer, 7];
        assert_eq!(walked(&code, &stale, regs), (vec![0x1010], Stop::NoUnwindInfo));
    }
}
