//! Where calls of a function end: its `ret`s, and its jumps to other functions.
//!
//! A probe at each of these sees a call end without a return address being touched, so that
//! programs which walk, copy or switch their stacks notice nothing.
//! A call is known by where its frame begins: the stack pointer is the same at the entry, at each
//! `ret` and at each jump to another function. In Go, whose stacks move, it is
//! known by the goroutine and the distance from its stack's upper end, which stays the same when a
//! stack is copied.
//!
//! ```text
//!  f:   push rbx        <- entry       rsp = F
//!       ...
//!       jmp  rax                       rsp < F by the unwind table: a jump inside (a switch), not looked at
//!       pop  rbx
//!       ret             <- exit        rsp = F
//!  1:   pop  rbx
//!       jmp  g          <- exit        rsp = F: a tail call; g's time is its own
//!  f.cold: ...                         f's, too: its exits are f's, jumps between the two are none
//! ```
//!
//! # Invariants
//! - **E1** Every exit is the first byte of an instruction. A function whose bytes do not decode to
//!   its end, with all its branches leading to instructions,
//!   or that has data among its code, is refused.
//! - **E2** An instruction that may be an exit or not is one with a condition: the flags (`je
//!   other`), or where a computed jump leads.
//! - **E3** A call that is left otherwise (`longjmp`, an exception, a panic) has no exit; what was
//!   noted of it is overwritten by the next call at the same place,
//!   never matched with another call's exit.

use iced_x86::{
    Code, ConditionCode, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register,
};

use super::find::{Site, SiteKind};
use super::module::ProbeModule;
use super::runtime::Runtime;

/// Larger functions are not looked at.
const LARGEST_BYTES: u64 = (1 << 20) - 1;
/// More exits than this are not worth it.
const MOST_EXITS: usize = 2000;
/// Longer tables of jumps are not looked at.
const MOST_CASES: u64 = 4096;
/// Into the structure that register r14 has the address of in Go: where the stack ends.
const GO_GUARD: [u64; 2] = [0x10, 0x18];
const GO_REGISTER: Register = Register::R14;

/// How a call is known from its entry to its exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallIdentity {
    /// By the stack pointer.
    StackPointer,
    /// By the goroutine, and the stack pointer's distance from its stack's upper end.
    Goroutine,
}

/// When an exit is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExitWhen {
    /// Always.
    Always,
    /// If a conditional jump is taken, by the processor's number of its condition (0 to 15).
    Flags(u8),
    /// If a computed jump leads out of the function.
    Leaves {
        /// The register with the target, or with an address near that of the target.
        register: &'static str,
        /// The target is in memory, so many bytes from the register.
        displacement: Option<i32>,
        /// How many bytes of the function are before this instruction, and from it on.
        before_bytes: u32,
        /// The same from it on.
        after_bytes: u32,
    },
}

/// A place where calls end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Where in the file.
    pub offset: u64,
    /// When.
    pub when: ExitWhen,
    /// Whether it returns, so that the result is known.
    pub returns: bool,
}

/// Where calls of a function begin and end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallSites {
    /// Where in the file a call has begun, once for each call: in Go, behind the check of the
    /// stack, after which a function begins anew.
    pub entry: u64,
    /// How its calls are known.
    pub identity: CallIdentity,
    /// Where they end.
    pub exits: Vec<Exit>,
}

/// A stretch of a function's code: as linked, and in the file.
struct Part {
    svma: u64,
    offset: u64,
    instructions: Vec<Instruction>,
    end: u64,
}

impl Part {
    fn read(module: &ProbeModule, svma: u64, bytes: u64) -> Result<Part, String> {
        let offset = module.elf().code_offset(svma).ok_or("it is not in the code of its file")?;
        let code = module.loaded(svma, bytes);
        if code.len() as u64 != bytes {
            return Err("its end is not in the file".to_owned());
        }
        let mut instructions = Vec::new();
        let mut decoder = Decoder::with_ip(64, &code, svma, DecoderOptions::NONE);
        while decoder.can_decode() {
            let instruction = decoder.decode();
            if instruction.is_invalid() || is_data(&instruction) {
                return Err(format!("there is no instruction at +{:#x}", instruction.ip() - svma));
            }
            instructions.push(instruction);
        }
        Ok(Part { svma, offset, instructions, end: svma + bytes })
    }

    fn holds(&self, svma: u64) -> bool {
        (self.svma..self.end).contains(&svma)
    }

    fn begins_instruction(&self, svma: u64) -> bool {
        self.instructions.binary_search_by_key(&svma, Instruction::ip).is_ok()
    }
}

/// Instructions that no program has: what decodes to one is data.
fn is_data(instruction: &Instruction) -> bool {
    matches!(
        instruction.mnemonic(),
        Mnemonic::In
            | Mnemonic::Out
            | Mnemonic::Insb
            | Mnemonic::Insd
            | Mnemonic::Outsb
            | Mnemonic::Outsd
            | Mnemonic::Iret
            | Mnemonic::Iretd
            | Mnemonic::Iretq
            | Mnemonic::Cli
            | Mnemonic::Sti
            | Mnemonic::Retf
            | Mnemonic::Lgdt
            | Mnemonic::Lidt
            | Mnemonic::Wbinvd
    )
}

impl Site {
    /// Where calls of this function begin and end.
    ///
    /// # Errors
    /// Why that cannot be known, in words.
    pub fn call_sites(&self) -> Result<CallSites, String> {
        let name = self.symbol.as_deref().unwrap_or_default();
        let module = &*self.module;
        if self.kind != SiteKind::Function {
            return Err("it is not a function's entry".to_owned());
        }
        if !module.is_native() || !module.is_64() || cfg!(not(target_arch = "x86_64")) {
            return Err("exits are looked for in x86-64 programs only".to_owned());
        }
        if self.length_bytes == 0 {
            return Err("its symbol has no size".to_owned());
        }
        if self.length_bytes > LARGEST_BYTES {
            return Err("it is too large".to_owned());
        }
        if name == "_start" || name.contains(".cold") {
            return Err("it is not entered by calls".to_owned());
        }
        if module.runtime() == Some(Runtime::OCaml5) && name.starts_with("caml") {
            return Err("it may run on a fiber, whose stack is copied as it grows".to_owned());
        }
        let go = module.go_functions().at(self.svma);
        if module.runtime() == Some(Runtime::Go) && module.go_functions().is_empty() {
            return Err("the program's table of Go functions (.gopclntab) cannot be read".to_owned());
        }
        let mut function = self.shape(go.is_some())?;
        if let Some(go) = go {
            if go.is_assembly() || !go.returns() {
                return Err("it is Go assembly, which need not keep to Go's conventions".to_owned());
            }
            return function.of_go();
        }
        if module.unwind_tables().around(self.svma).is_none() {
            return Err("it has no unwind table (.eh_frame)".to_owned());
        }
        function.take_cold_parts()?;
        let exits = function.exits()?;
        Ok(CallSites { entry: self.offset, identity: CallIdentity::StackPointer, exits })
    }
}

impl Site {
    /// Where in the file an engine that leaves instructions where they are counts a hit, once for
    /// each call: a Go function begins anew when its stack has grown.
    #[must_use]
    pub fn counted_offset(&self) -> u64 {
        let is_go = self.kind == SiteKind::Function
            && self.length_bytes <= LARGEST_BYTES
            && self.module.runtime() == Some(Runtime::Go)
            && self.module.go_functions().at(self.svma).is_some_and(|function| !function.is_assembly());
        let entry = is_go.then(|| self.shape(true).and_then(|shape| shape.go_entry()));
        entry.and_then(Result::ok).unwrap_or(self.offset)
    }

    /// Where, as linked, a Go function's body begins behind the check of its stack; none if it has
    /// no check.
    ///
    /// # Errors
    /// Why that cannot be told, in words.
    pub fn go_body(&self) -> Result<Option<u64>, String> {
        if self.length_bytes == 0 || self.length_bytes > LARGEST_BYTES {
            return Err("its size is not known, or too large".to_owned());
        }
        let entry = self.shape(true)?.go_entry()?;
        Ok(Some(entry - self.offset).filter(|check| *check > 0).map(|check| self.svma + check))
    }

    fn shape(&self, go: bool) -> Result<CallShape<'_>, String> {
        let module = &*self.module;
        let name = self.symbol.as_deref().unwrap_or_default();
        let parts = vec![Part::read(module, self.svma, self.length_bytes)?];
        Ok(CallShape { module, name, parts, go, offset: self.offset })
    }
}

struct CallShape<'a> {
    module: &'a ProbeModule,
    name: &'a str,
    parts: Vec<Part>,
    go: bool,
    offset: u64,
}

impl CallShape<'_> {
    fn holds(&self, svma: u64) -> bool {
        self.parts.iter().any(|part| part.holds(svma))
    }

    /// Where a call of a Go function has begun: behind the check of its stack, from which it begins
    /// anew when that has grown.
    fn go_entry(&self) -> Result<u64, String> {
        let part = &self.parts[0];
        let again = part.instructions.iter().any(|instruction| {
            instruction.op0_kind() == OpKind::NearBranch64
                && instruction.flow_control() == FlowControl::UnconditionalBranch
                && instruction.near_branch64() == part.svma
        });
        if !again {
            return Ok(self.offset);
        }
        let at = go_body(&part.instructions).ok_or("its check of the stack is not known to kymo")?;
        Ok(at - part.svma + part.offset)
    }

    fn of_go(&self) -> Result<CallSites, String> {
        let entry = self.go_entry()?;
        if entry == self.offset && self.name.ends_with(".abi0") {
            return Err("it is called by Go's old convention, without the goroutine in a register".to_owned());
        }
        let exits = self.exits()?;
        Ok(CallSites { entry, identity: CallIdentity::Goroutine, exits })
    }

    /// Parts that a compiler has put elsewhere: jumps lead there, by a name of their own or with
    /// the frame in place.
    fn take_cold_parts(&mut self) -> Result<(), String> {
        let mut next = 0;
        while next < self.parts.len() {
            let out: Vec<(u64, u64)> = self.parts[next]
                .instructions
                .iter()
                .filter_map(|instruction| Some((instruction.ip(), jump_target(instruction)?)))
                .filter(|(_, to)| !self.holds(*to))
                .collect();
            for (at, to) in out {
                if self.holds(to) {
                    continue;
                }
                let named =
                    self.module.elf().code_offset(to).and_then(|offset| self.module.function_at(offset));
                let is_cold = named.is_some_and(|function| {
                    function.raw_name.strip_prefix(self.name).is_some_and(|rest| rest.starts_with(".cold"))
                });
                let inside = self.module.unwind_tables().depth(at).is_none_or(|depth| depth != 0);
                if !is_cold && !inside {
                    continue;
                }
                let (start, end) = match named.filter(|_| is_cold) {
                    Some(function) => (function.svma, function.svma + function.size_bytes),
                    None => match self.module.unwind_tables().around(to) {
                        Some((start, end, _)) => (start, end),
                        None => {
                            return Err(format!("a jump of it leads to {to:#x}, which no table describes"));
                        }
                    },
                };
                if end <= start || end - start > LARGEST_BYTES {
                    return Err("a part of it is too large".to_owned());
                }
                self.parts.push(Part::read(self.module, start, end - start)?);
            }
            next += 1;
            if self.parts.len() > 64 {
                return Err("it has too many parts".to_owned());
            }
        }
        Ok(())
    }

    fn exits(&self) -> Result<Vec<Exit>, String> {
        self.has_no_data()?;
        let mut exits = Vec::new();
        for part in &self.parts {
            for instruction in &part.instructions {
                if let Some((when, returns)) = self.exit(part, instruction)? {
                    let offset = instruction.ip() - part.svma + part.offset;
                    exits.push(Exit { offset, when, returns });
                }
            }
        }
        if exits.len() > MOST_EXITS {
            return Err(format!("it has {} exits", exits.len()));
        }
        if exits.is_empty() {
            return Err("it never returns".to_owned());
        }
        Ok(exits)
    }

    /// Whether branches lead to instructions and no instruction takes data from among the code
    /// (E1).
    fn has_no_data(&self) -> Result<(), String> {
        for instruction in self.parts.iter().flat_map(|part| &part.instructions) {
            let to = match instruction.op0_kind() {
                OpKind::NearBranch64 => Some(instruction.near_branch64()),
                _ => None,
            };
            if let Some(to) = to
                && let Some(part) = self.parts.iter().find(|part| part.holds(to))
                && !part.begins_instruction(to)
            {
                return Err(format!("a branch at {:#x} leads into an instruction", instruction.ip()));
            }
            let reads = instruction.is_ip_rel_memory_operand() && instruction.mnemonic() != Mnemonic::Nop;
            // Its own address (or a label of it) is taken by `lea`; else bytes of it are read.
            if reads
                && instruction.mnemonic() != Mnemonic::Lea
                && self.holds(instruction.ip_rel_memory_address())
            {
                return Err("there is data among its code".to_owned());
            }
        }
        Ok(())
    }

    /// Whether a call ends here.
    fn exit(&self, part: &Part, instruction: &Instruction) -> Result<Option<(ExitWhen, bool)>, String> {
        match instruction.flow_control() {
            FlowControl::Return => Ok(Some((ExitWhen::Always, true))),
            FlowControl::UnconditionalBranch => {
                let leaves = jump_target(instruction).is_none_or(|to| !self.holds(to));
                Ok(leaves.then_some((ExitWhen::Always, false)))
            }
            FlowControl::ConditionalBranch => {
                if jump_target(instruction).is_none_or(|to| self.holds(to)) {
                    return Ok(None);
                }
                let number = condition_number(instruction.condition_code())
                    .ok_or("it ends with a jump whose condition kymo does not know")?;
                Ok(Some((ExitWhen::Flags(number), false)))
            }
            FlowControl::IndirectBranch => self.computed(part, instruction),
            _ => Ok(None),
        }
    }

    /// Whether a call ends at a computed jump.
    fn computed(&self, part: &Part, instruction: &Instruction) -> Result<Option<(ExitWhen, bool)>, String> {
        if instruction.is_ip_rel_memory_operand() {
            // Through a table of addresses of functions, as to another module.
            return Ok(Some((ExitWhen::Always, false)));
        }
        let indexed =
            instruction.op0_kind() == OpKind::Memory && instruction.memory_index() != Register::None;
        if self.go && indexed {
            return Ok(None);
        }
        if !self.go && self.module.unwind_tables().depth(instruction.ip()).is_some_and(|depth| depth != 0) {
            return Ok(None);
        }
        let unclear = || "whether it ends at a computed jump cannot be told".to_owned();
        if indexed || self.table_leads_elsewhere(part) {
            return Err(unclear());
        }
        let (register, displacement) = match instruction.op0_kind() {
            OpKind::Register => (instruction.op0_register(), None),
            OpKind::Memory if instruction.segment_prefix() == Register::None => {
                let displacement =
                    i32::try_from(instruction.memory_displacement64() as i64).map_err(|_| unclear())?;
                (instruction.memory_base(), Some(displacement))
            }
            _ => return Err(unclear()),
        };
        let register = register_name(register).ok_or_else(unclear)?;
        let bytes = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        let (before_bytes, after_bytes) =
            (bytes(instruction.ip() - part.svma), bytes(part.end - instruction.ip()));
        Ok(Some((ExitWhen::Leaves { register, displacement, before_bytes, after_bytes }, false)))
    }
}

impl CallShape<'_> {
    /// Whether a table of the function's jumps, which is a row of 4-byte distances from its own
    /// begin, leads from this part to another one.
    fn table_leads_elsewhere(&self, part: &Part) -> bool {
        if self.parts.len() == 1 {
            return false;
        }
        let taken = part.instructions.iter().filter(|instruction| {
            instruction.mnemonic() == Mnemonic::Lea && instruction.is_ip_rel_memory_operand()
        });
        taken.map(Instruction::ip_rel_memory_address).any(|table| {
            let bytes = self.module.loaded(table, 4 * MOST_CASES);
            let targets = bytes.chunks_exact(4).map(|entry| {
                let distance = i32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]);
                table.wrapping_add_signed(i64::from(distance))
            });
            targets.take_while(|to| self.holds(*to)).any(|to| !part.holds(to))
        })
    }
}

fn jump_target(instruction: &Instruction) -> Option<u64> {
    let jumps = matches!(
        instruction.flow_control(),
        FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch
    );
    (jumps && instruction.op0_kind() == OpKind::NearBranch64).then(|| instruction.near_branch64())
}

/// The processor's own number of a condition; `None` for those that are not of the flags (`jrcxz`,
/// `loop`).
fn condition_number(condition: ConditionCode) -> Option<u8> {
    // They are in the processor's order, behind "none".
    (condition as u8).checked_sub(1)
}

fn register_name(register: Register) -> Option<&'static str> {
    const NAMES: [&str; 16] = [
        "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
        "r14", "r15",
    ];
    NAMES.get(register.number()).copied().filter(|_| register.is_gpr64())
}

/// Where a Go function goes on when its stack is large enough: behind `cmp rsp, [r14 + 0x10]; jbe`.
fn go_body(instructions: &[Instruction]) -> Option<u64> {
    const LONGEST_CHECK: usize = 8;
    let compares = |instruction: &Instruction| {
        instruction.code() == Code::Cmp_r64_rm64
            && instruction.memory_base() == GO_REGISTER
            && GO_GUARD.contains(&instruction.memory_displacement64())
    };
    let pairs = instructions.iter().zip(&instructions[1..]).take(LONGEST_CHECK);
    let mut jumps = pairs.filter(|(first, _)| compares(first)).map(|(_, second)| second);
    let jump = jumps.next()?;
    (jump.condition_code() == ConditionCode::be).then(|| jump.next_ip())
}
