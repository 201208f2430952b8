//! Whether and where a function can be probed: looks at all of its instructions.
use super::flow::{Flow, first_in};
use super::leading::{self, EntryState};
use super::memory::Memory;
use super::refusal::Refusal;
use crate::patch::site::{JUMP_BYTES, Site, is_call};
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

/// No x86-64 function is looked at beyond this: a symbol's size is a claim of a file.
const LONGEST_FUNCTION_BYTES: u64 = 4 << 20;

/// A function as its symbol describes it.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// Its first byte.
    pub start: u64,
    /// Its bytes, as the symbol says; 0 is refused.
    pub bytes: u64,
    /// Where the next function (or the end of the section) begins. What lies between is padding
    /// that a jump may use, if it looks like padding; `start + bytes` if nothing is known.
    pub next: u64,
}

/// What is known beyond the function itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Surroundings<'a> {
    /// Where branches elsewhere in the module lead, sorted: cold parts jump back into functions.
    pub targets: &'a [u64],
    /// What a probe looks at where it is; `None`: it is in the place of the first instruction.
    pub looks_at: Option<EntryState>,
}

/// Decides how `function` can be probed, without changing anything.
///
/// Tries the second instruction where the first may stay ([`leading`]), then the
/// first. An `endbr64` stays where indirect calls look for it. And where another tool puts a uprobe
/// at the function's begin, the kernel executes the instruction that the file has there, and goes
/// on behind it: at the jump, not in the middle of it.
///
/// # Errors
/// The [`Refusal`] says what stands against it; then the kernel's uprobe has to serve this
/// function.
pub fn plan(
    memory: &dyn Memory,
    function: &Function,
    surroundings: &Surroundings<'_>,
) -> Result<Site, Refusal> {
    Disassembly::of(memory, function, surroundings)?.beside_uprobes(0, 0)
}

/// Decides how the instruction at `address` inside `function` can be probed: a marker that the
/// program's author left, or a line.
///
/// # Errors
/// As [`plan`], and [`Refusal::NotAnInstruction`] where none begins at `address`. A function that
/// jumps to addresses which it computes is refused unless the jump replaces one instruction only,
/// for such a jump may lead anywhere but into an instruction.
pub fn plan_inside(
    memory: &dyn Memory,
    function: &Function,
    address: u64,
    surroundings: &Surroundings<'_>,
) -> Result<Site, Refusal> {
    if address == function.start {
        return plan(memory, function, surroundings);
    }
    let looked = Disassembly::of(memory, function, surroundings)?;
    let none = Refusal::NotAnInstruction { at: address };
    let offset = address.checked_sub(function.start).ok_or(none)?;
    let mut decoder = Decoder::with_ip(64, &looked.code, function.start, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    while decoder.can_decode() && decoder.ip() < address {
        decoder.decode_out(&mut instruction);
    }
    if decoder.ip() != address || !decoder.can_decode() {
        return Err(none);
    }
    let mut site = match looked.flow.computed {
        false => looked.beside_uprobes(offset as usize, 0)?,
        // One may lead behind the first instruction, or behind the second.
        true => Some(looked.at(offset as usize)?)
            .filter(Site::is_single_instruction)
            .ok_or(Refusal::ComputedJumps { function: function.start })?,
    };
    // What follows in the function is come to by ways that its instructions need not show: an
    // exception's handler.
    if let Some((_, before)) = site.displaced.split_last()
        && let Some(end) = before.iter().find(|instruction| is_end(instruction))
    {
        return Err(Refusal::FlowEnds { at: end.ip() });
    }
    site.entry = false;
    Ok(site)
}

/// Decides how the instructions from the function's first or second one to `end` can move together,
/// and those behind as far as a jump needs: the check of a stack, behind which a call has begun.
///
/// # Errors
/// As [`plan`].
pub fn plan_begin(
    memory: &dyn Memory,
    function: &Function,
    end: u64,
    surroundings: &Surroundings<'_>,
) -> Result<Site, Refusal> {
    let looked = Disassembly::of(memory, function, surroundings)?;
    let site = looked.beside_uprobes(0, end)?;
    let is_boundary = site.resume() == end || site.displaced.iter().any(|one| one.ip() == end);
    if is_boundary { Ok(site) } else { Err(Refusal::NotAnInstruction { at: end }) }
}

/// Decides how the instructions at which calls of `function` end can move, each with as few of
/// those before it as a jump needs.
///
/// # Errors
/// As [`plan_inside`], for the first one that cannot; the reason is that with the fewest
/// instructions before it.
pub(crate) fn plan_exits(
    memory: &dyn Memory,
    function: &Function,
    exits: &[u64],
    surroundings: &Surroundings<'_>,
) -> Result<Vec<Site>, Refusal> {
    /// The longest instruction, and four bytes.
    const MOST_BEFORE: u64 = 19;
    let looked = Disassembly::of(memory, function, surroundings)?;
    let starts = looked.instruction_starts();
    let plan = |exit: u64| -> Result<Site, Refusal> {
        let none = Refusal::NotAnInstruction { at: exit };
        let at = starts.binary_search(&exit).map_err(|_| none)?;
        let before = starts[..=at].iter().rev().take_while(|from| exit - **from <= MOST_BEFORE);
        let mut refusal = None;
        for from in before {
            match looked
                .through((from - function.start) as usize, exit + 1)
                .and_then(|site| looked.exit(site))
            {
                Ok(site) => return Ok(site),
                Err(why) => _ = refusal.get_or_insert(why),
            }
        }
        Err(refusal.unwrap_or(none))
    };
    exits.iter().map(|exit| plan(*exit)).collect()
}

/// A function's bytes, what follows them, and where its branches lead.
struct Disassembly<'a> {
    memory: &'a dyn Memory,
    function: &'a Function,
    surroundings: &'a Surroundings<'a>,
    code: Vec<u8>,
    padding: Vec<u8>,
    flow: Flow,
}

impl<'a> Disassembly<'a> {
    fn of(
        memory: &'a dyn Memory,
        function: &'a Function,
        surroundings: &'a Surroundings<'a>,
    ) -> Result<Disassembly<'a>, Refusal> {
        if function.bytes == 0 {
            return Err(Refusal::Empty);
        }
        let bytes = function.bytes.min(LONGEST_FUNCTION_BYTES);
        let end = function.start.checked_add(bytes).ok_or(Refusal::NotThere { at: function.start })?;
        let code = memory.bytes(function.start, bytes);
        if (code.len() as u64) < bytes {
            return Err(Refusal::NotThere { at: function.start + code.len() as u64 });
        }
        let padding = memory.bytes(end, function.next.saturating_sub(end).min(16));
        let flow = Flow::of(&code, function.start);
        Ok(Disassembly { memory, function, surroundings, code, padding, flow })
    }

    /// Where a known branch leads, if that is in `from..to`.
    fn target_in(&self, from: u64, to: u64) -> Option<u64> {
        first_in(&self.flow.targets, from, to).or_else(|| first_in(self.surroundings.targets, from, to))
    }

    /// Where instructions begin, ascending.
    fn instruction_starts(&self) -> Vec<u64> {
        let mut decoder = Decoder::with_ip(64, &self.code, self.function.start, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        let mut starts = Vec::new();
        while decoder.can_decode() {
            starts.push(decoder.ip());
            decoder.decode_out(&mut instruction);
        }
        starts
    }

    /// What else holds for a site where calls end: nothing that is displaced is executed after an
    /// end of the function's flow, and no computed jump leads into it.
    fn exit(&self, site: Site) -> Result<Site, Refusal> {
        let ends = site.displaced.iter().position(is_end).unwrap_or(site.displaced.len());
        let rest = site.displaced.get(ends + 1..).unwrap_or_default();
        if let Some(end) = site.displaced.get(ends)
            && rest.iter().any(|instruction| instruction.mnemonic() != Mnemonic::Nop)
        {
            return Err(Refusal::FlowEnds { at: end.ip() });
        }
        if self.flow.computed && !site.is_single_instruction() {
            return Err(Refusal::ComputedJumps { function: self.function.start });
        }
        Ok(Site { entry: false, ..site })
    }

    fn at(&self, offset: usize) -> Result<Site, Refusal> {
        self.through(offset, 0)
    }

    /// A site for hits of the instruction at `offset` that reaches as far as `end`: behind the
    /// instruction, where that may stay, or in its place.
    fn beside_uprobes(&self, offset: usize, end: u64) -> Result<Site, Refusal> {
        let address = self.function.start + offset as u64;
        let mut decoder = Decoder::with_ip(64, &self.code[offset..], address, DecoderOptions::NONE);
        let first = decoder.decode();
        let lowered = leading::may_stay(&first, self.surroundings.looks_at);
        let lowered = lowered.filter(|_| !self.is_led_to(first.next_ip()));
        let behind = lowered.and_then(|lowered| {
            let site = self.through(offset + first.len(), end).ok()?;
            Some(Site { place: address, lowered, ..site })
        });
        behind.map_or_else(|| self.through(offset, end), Ok)
    }

    /// Whether a known branch leads there, or it is not in the function: hits of the instruction
    /// before it cannot be counted there.
    fn is_led_to(&self, address: u64) -> bool {
        let whole = (self.function.start, self.function.start + self.code.len() as u64);
        let table = || self.flow.table_into(self.memory, whole, address, address + 1);
        address >= whole.1 || self.target_in(address, address + 1).or_else(table).is_some()
    }

    /// A site whose displaced instructions reach as far as `end`, at least.
    fn through(&self, offset: usize, end: u64) -> Result<Site, Refusal> {
        let address = self.function.start + offset as u64;
        let mut decoder = Decoder::with_ip(64, &self.code[offset..], address, DecoderOptions::NONE);
        let mut displaced: Vec<Instruction> = Vec::new();
        let mut covered = 0;
        while covered < JUMP_BYTES || decoder.ip() < end {
            if !decoder.can_decode() {
                let needed = JUMP_BYTES.saturating_sub(covered);
                self.rest_is_padding(displaced.last(), offset + covered, needed)?;
                break;
            }
            let instruction = decoder.decode();
            if instruction.is_invalid() {
                return Err(Refusal::Undecodable { at: instruction.ip() });
            }
            movable(&instruction)?;
            if let Some(call) = displaced.last().filter(|last| is_call(last)) {
                // It would come back into the middle of the jump.
                return Err(Refusal::CallInside { at: call.ip() });
            }
            covered += instruction.len();
            displaced.push(instruction);
        }
        let end = address + covered.max(JUMP_BYTES) as u64;
        let inside = (address + 1, end);
        let whole = (self.function.start, self.function.start + self.code.len() as u64);
        let table_into = || self.flow.table_into(self.memory, whole, inside.0, inside.1);
        if let Some(to) = self.target_in(inside.0, inside.1).or_else(table_into) {
            return Err(Refusal::JumpInto { to });
        }
        let interiors = displaced.iter().map(|instruction| (instruction.ip() - address) as u8);
        let interiors = interiors.filter(|at| (1..JUMP_BYTES as u8).contains(at)).collect();
        let mut original = [0; JUMP_BYTES];
        // rest_is_padding() saw that the padding has the bytes that the code lacks.
        let bytes = self.code[offset..].iter().chain(&self.padding);
        original.iter_mut().zip(bytes).for_each(|(to, byte)| *to = *byte);
        Ok(Site { address, place: address, lowered: 0, entry: true, original, displaced, interiors })
    }

    /// Whether `needed` bytes after the function's end are never executed, so that a jump may lie
    /// there.
    fn rest_is_padding(
        &self,
        last: Option<&Instruction>,
        begin: usize,
        needed: usize,
    ) -> Result<(), Refusal> {
        let too_short = Refusal::TooShort { bytes: JUMP_BYTES.saturating_sub(needed) as u64 };
        let ends = last.is_some_and(is_end);
        if !ends || begin != self.code.len() || self.padding.len() < needed {
            return Err(too_short);
        }
        let mut decoder = Decoder::with_ip(64, &self.padding, 0, DecoderOptions::NONE);
        let mut covered = 0;
        while covered < needed {
            let instruction = decoder.decode();
            // The last is `xchg ax, ax`: how assemblers fill two bytes.
            let fills = matches!(instruction.mnemonic(), Mnemonic::Nop | Mnemonic::Int3)
                || instruction.code() == Code::Nopw;
            if !fills {
                return Err(too_short);
            }
            covered += instruction.len();
        }
        Ok(())
    }
}

/// Whether nothing goes on behind it.
fn is_end(instruction: &Instruction) -> bool {
    matches!(
        instruction.flow_control(),
        FlowControl::Return
            | FlowControl::UnconditionalBranch
            | FlowControl::IndirectBranch
            | FlowControl::Exception
    )
}

/// Whether an instruction does the same from another place.
fn movable(instruction: &Instruction) -> Result<(), Refusal> {
    let at = instruction.ip();
    match instruction.flow_control() {
        FlowControl::Next
        | FlowControl::Return
        | FlowControl::Exception
        | FlowControl::UnconditionalBranch
        | FlowControl::ConditionalBranch
        | FlowControl::IndirectBranch => {}
        FlowControl::Call | FlowControl::IndirectCall => {
            // `syscall` and its kin are calls for the decoder: the kernel restarts them at their
            // own address.
            let of_program =
                matches!(instruction.op0_kind(), OpKind::NearBranch64 | OpKind::Memory | OpKind::Register);
            // The stub pushes the return address first, which `call rsp` would see.
            if !of_program || instruction.op0_register() == Register::RSP {
                return Err(Refusal::Unmovable { at });
            }
        }
        FlowControl::Interrupt if instruction.mnemonic() == Mnemonic::Int3 => {
            return Err(Refusal::TrapInside { at });
        }
        _ => return Err(Refusal::Unmovable { at }),
    }
    // A far jump or return leaves this kind of code.
    let far = matches!(instruction.op0_kind(), OpKind::FarBranch16 | OpKind::FarBranch32)
        || matches!(
            instruction.mnemonic(),
            Mnemonic::Retf
                | Mnemonic::Iret
                | Mnemonic::Iretd
                | Mnemonic::Iretq
                | Mnemonic::Syscall
                | Mnemonic::Sysenter
        );
    if far { Err(Refusal::Unmovable { at }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use kymo_core::probe::returns_oddly;

    /// Checks names with and without versions and leading lines, pieces of functions, and ordinary
    /// names that look like some of these.
    #[test]
    fn odd_names_are_known() {
        let odd = "_setjmp __sigsetjmp setjmp@@GLIBC_2.2.5 vfork swapcontext _start _ZN4kymo4deepEv.cold \
            main.cold.3 __x86_indirect_thunk_rax __x86_return_thunk _Unwind_RaiseException \
            uw_init_context_1 __unw_getcontext __restore_rt __fentry__ camlStdlib__List__map_123";
        for name in odd.split_whitespace() {
            assert!(returns_oddly(name), "{name}");
        }
        for name in "main start fork malloc __cxa_throw avx_sum x86_decode cold_start f.part.0".split(' ') {
            assert!(!returns_oddly(name), "{name}");
        }
    }
}
