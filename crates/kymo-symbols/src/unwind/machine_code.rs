//! The rule for code without unwind tables, from the instructions that follow an address.
//!
//! A function returns with the stack pointer at its return address, and with the callee-saved
//! registers as its caller had them. So the instructions from an address to a `ret` say where both
//! lie now, whatever the function has done before:
//!
//! ```text
//!   mov ..            <- sampled here      rsp
//!   add $0x60,%rsp                         rsp + 0x60
//!   pop %rbx                               rbx lies at rsp + 0x60
//!   ret                                    the return address lies at rsp + 0x68
//! ```
//!
//! Branches are followed both ways. All returns that are reached must agree. A path ends without a
//! result at an indirect jump, at an instruction that is not followed, and at the end of the code.
//! A call may be one that never returns, after which another function begins: a path ends where a
//! symbol says so, and one that goes on at padding counts only if no other path came to a return.
//!
//! Where no return is reached, and symbols say where the function begins, the instructions from
//! there to the address are followed: they say how much lies on the stack since the call. They also
//! say where a function has switched to another stack, as `mcall` of Go's runtime does: it has no
//! caller there.
//!
//! x86-64, and 32-bit code of it.

use std::ops::Range;

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, InstructionInfoOptions,
    Mnemonic, OpAccess, OpKind, Register,
};

use super::expression::Expression;
use super::rule::{CfaSource, Exotic, Plain, Rule, SAME, Source};
use crate::arch::{Arch, MOST_SAVED, RBP, RSP};

/// Instructions that are looked at for one address.
const MOST_INSTRUCTIONS: usize = 2000;
/// After so many returns that agree no more are looked for.
const ENOUGH_RETURNS: usize = 3;
/// Paths that wait to be followed.
const MOST_PATHS: usize = 256;
/// Words that are followed through the stack.
const MOST_STORED: usize = 256;
/// Code is read in windows of so many bytes.
const WINDOW_BYTES: u64 = 4096;
/// The longest instruction, in bytes.
const LONGEST_INSTRUCTION: u64 = 15;
/// Registers with DWARF's numbers below are followed.
const FOLLOWED: usize = 16;

/// DWARF's numbers of the registers that a call may change.
const CALLER_SAVED: [usize; 9] = [0, 1, 2, 4, 5, 8, 9, 10, 11];

/// How far behind its function's first address an instruction may lie.
const MOST_FUNCTION_BYTES: u64 = 64 << 10;

/// Bytes of a file's code. `None`: they are not there.
pub(super) type ReadCode<'a> = dyn Fn(u64, u64) -> Option<Vec<u8>> + 'a;

/// Code of a file.
pub(super) struct MachineCode<'a> {
    /// Its addresses.
    pub(super) range: Range<u64>,
    /// 64 or 32.
    pub(super) bits: u32,
    /// First addresses of functions, ascending, as far as they are known.
    pub(super) starts: &'a [u64],
    pub(super) read: &'a ReadCode<'a>,
}

impl MachineCode<'_> {
    fn is_start(&self, address: u64) -> bool {
        self.starts.binary_search(&address).is_ok()
    }

    /// The first address of the function that an address is in.
    fn start_of(&self, address: u64) -> Option<u64> {
        let behind = self.starts.partition_point(|&start| start <= address);
        let start = *self.starts.get(behind.checked_sub(1)?)?;
        (self.range.contains(&start) && address - start < MOST_FUNCTION_BYTES).then_some(start)
    }

    /// Bytes of a word of the stack.
    fn word(&self) -> i64 {
        i64::from(self.bits / 8)
    }
}

/// Where a frame's return address and its caller's registers lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CallerPlace {
    /// The function has switched to another stack: it has no caller on this one.
    OtherStack,
    /// Where the return address lies, what the stack pointer is after the return, and the
    /// callee-saved registers that are not as the caller had them.
    Return { slot: RegisterValue, sp: RegisterValue, saved: Vec<(u8, RegisterValue)> },
}

/// What a register holds, in terms of the registers at the address that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RegisterValue {
    /// The value of this register plus so much.
    Register(u8, i64),
    /// The word at this register plus so much, plus so much.
    Word(u8, i64, i64),
    /// It was read from memory that is no part of the frame.
    Foreign,
    Unknown,
}

impl RegisterValue {
    fn plus(self, bytes: i64) -> RegisterValue {
        match self {
            RegisterValue::Register(base, offset) => {
                RegisterValue::Register(base, offset.wrapping_add(bytes))
            }
            RegisterValue::Word(base, offset, more) => {
                RegisterValue::Word(base, offset, more.wrapping_add(bytes))
            }
            RegisterValue::Foreign | RegisterValue::Unknown => self,
        }
    }
}

/// The registers and the words of the stack on one path.
#[derive(Clone, Debug)]
struct PathState {
    registers: [RegisterValue; FOLLOWED],
    /// Words that the path itself has stored, by base register and offset.
    stored: Vec<((u8, i64), RegisterValue)>,
    /// How many bytes a return takes off the stack.
    returned_over: i64,
}

/// A path that is still to be followed.
#[derive(Debug)]
struct Path {
    address: u64,
    state: PathState,
}

/// Where the caller of the code at `address` is found. `is_caller`: a call that has not returned
/// lies before it, so that only callee-saved registers are known.
pub(super) fn caller_place(address: u64, is_caller: bool, code: &MachineCode<'_>) -> Option<CallerPlace> {
    // A call that never returns may be its function's last instruction.
    let entered = code.start_of(address.wrapping_sub(is_caller.into())).and_then(|start| {
        let mut follower = Follower::new(code, start, PathState::new(false));
        follower.target = Some(address);
        follower.first_state()
    });
    if entered.as_ref().is_some_and(|state| state.registers[RSP] == RegisterValue::Foreign) {
        return Some(CallerPlace::OtherStack);
    }
    let goes_on = !(is_caller && code.is_start(address));
    let returned =
        goes_on.then(|| Follower::new(code, address, PathState::new(is_caller)).first_state()).flatten();
    returned.and_then(|state| state.at_return()).or_else(|| entered?.since_entry(code.word()))
}

impl CallerPlace {
    /// The rule of 64-bit code that leads there.
    pub(super) fn rule(&self) -> Option<Rule> {
        match self {
            CallerPlace::OtherStack => Some(Rule::Root),
            CallerPlace::Return { slot, sp, saved } => rule_of_return(*slot, *sp, saved),
        }
    }
}

/// Whether this address is in the first instructions of the program, up to its first call: their
/// function has no caller, whatever lies on the stack.
pub(super) fn begins_program(entry: u64, address: u64, code: &MachineCode<'_>) -> bool {
    /// The C library's `_start` is some 40 bytes long.
    const MOST_START_BYTES: u64 = 64;
    if !code.range.contains(&entry) || address.wrapping_sub(entry) >= MOST_START_BYTES {
        return false;
    }
    let mut windows = Windows::new(code);
    let mut at = entry;
    while at <= address {
        let Some(instruction) = windows.instruction(at) else { return false };
        at = instruction.next_ip();
        match instruction.flow_control() {
            FlowControl::Next => {}
            FlowControl::Call | FlowControl::IndirectCall => return address < at,
            _ => return false,
        }
    }
    true
}

/// Bytes of code, read in windows.
struct Windows<'a> {
    code: &'a MachineCode<'a>,
    start: u64,
    bytes: Vec<u8>,
}

impl<'a> Windows<'a> {
    fn new(code: &'a MachineCode<'a>) -> Windows<'a> {
        Windows { code, start: 0, bytes: Vec::new() }
    }

    /// The instruction at an address.
    fn instruction(&mut self, address: u64) -> Option<Instruction> {
        let MachineCode { range, bits, read, .. } = self.code;
        if !range.contains(&address) {
            return None;
        }
        let end = range.end.min(address.saturating_add(LONGEST_INSTRUCTION));
        if address < self.start || end > self.start + self.bytes.len() as u64 {
            let window_end = range.end.min(address.saturating_add(WINDOW_BYTES));
            self.bytes = read(address, window_end - address)?;
            self.start = address;
        }
        let bytes = self.bytes.get((address - self.start) as usize..)?;
        let mut decoder = Decoder::with_ip(*bits, bytes, address, DecoderOptions::NONE);
        Some(decoder.decode()).filter(|instruction| !instruction.is_invalid())
    }
}

/// Follows the paths from an address.
struct Follower<'a> {
    windows: Windows<'a>,
    infos: InstructionInfoFactory,
    left: usize,
    seen: rustc_hash::FxHashSet<u64>,
    paths: Vec<Path>,
    /// Paths after a call that perhaps never returns.
    doubtful: Vec<Path>,
    /// Where paths lead to; to returns unless given.
    target: Option<u64>,
}

impl<'a> Follower<'a> {
    fn new(code: &'a MachineCode<'a>, address: u64, state: PathState) -> Follower<'a> {
        Follower {
            windows: Windows::new(code),
            infos: InstructionInfoFactory::new(),
            left: MOST_INSTRUCTIONS,
            seen: rustc_hash::FxHashSet::default(),
            paths: vec![Path { address, state }],
            doubtful: Vec::new(),
            target: None,
        }
    }

    /// The state where the paths lead to, if they agree.
    fn first_state(&mut self) -> Option<PathState> {
        let mut found: Option<PathState> = None;
        let mut times = 0;
        loop {
            let path = match self.paths.pop() {
                Some(path) => path,
                None if found.is_some() => break,
                None => self.doubtful.pop()?,
            };
            let Some(state) = self.follow(path) else { continue };
            match &found {
                Some(known) if known.registers[RSP] != state.registers[RSP] => return None,
                Some(_) => {}
                None => found = Some(state),
            }
            times += 1;
            if times == ENOUGH_RETURNS || self.left == 0 || self.target.is_some() {
                break;
            }
        }
        found
    }

    /// Follows a path to its end: the state there.
    fn follow(&mut self, path: Path) -> Option<PathState> {
        let Path { mut address, mut state } = path;
        let code = self.windows.code;
        let word = code.word();
        let mut after_call = false;
        while self.seen.insert(address) {
            if self.target == Some(address) {
                return Some(state);
            }
            self.left = self.left.checked_sub(1)?;
            let instruction = self.windows.instruction(address)?;
            if std::mem::take(&mut after_call) {
                if code.is_start(address) {
                    return None;
                }
                if begins_other_code(&instruction) {
                    self.doubtful.push(Path { address: instruction.next_ip(), state });
                    return None;
                }
            }
            match instruction.flow_control() {
                FlowControl::Return => {
                    state.returned_over = word + returned_arguments(&instruction);
                    return Some(state).filter(|_| self.target.is_none());
                }
                FlowControl::UnconditionalBranch => address = instruction.near_branch_target(),
                FlowControl::ConditionalBranch => {
                    if self.paths.len() < MOST_PATHS {
                        let state = state.clone();
                        self.paths.push(Path { address: instruction.near_branch_target(), state });
                    }
                    address = instruction.next_ip();
                }
                FlowControl::Next if instruction.mnemonic() != Mnemonic::Hlt => {
                    state.step(&instruction, word, &mut self.infos);
                    address = instruction.next_ip();
                }
                FlowControl::Interrupt if instruction.mnemonic() == Mnemonic::Int => {
                    state.registers[0] = RegisterValue::Unknown;
                    address = instruction.next_ip();
                }
                FlowControl::Call | FlowControl::IndirectCall => {
                    CALLER_SAVED.iter().for_each(|&number| state.registers[number] = RegisterValue::Unknown);
                    after_call = true;
                    address = instruction.next_ip();
                }
                _ => return None,
            }
        }
        None
    }
}

/// Bytes of arguments that a `ret` takes off the stack, too.
fn returned_arguments(instruction: &Instruction) -> i64 {
    match instruction.op_count() {
        1 => instruction.immediate(0) as i64,
        _ => 0,
    }
}

/// Whether an instruction after a call is padding, or the first of a function: the call may be the
/// last instruction of its function.
fn begins_other_code(instruction: &Instruction) -> bool {
    matches!(instruction.mnemonic(), Mnemonic::Nop | Mnemonic::Int3 | Mnemonic::Ud2 | Mnemonic::Endbr64)
        || instruction.mnemonic() == Mnemonic::Xchg && instruction.len() <= 2
}

/// Whether a register is as wide as a word.
fn is_whole(register: Register, word: i64) -> bool {
    if word == 8 { register.is_gpr64() } else { register.is_gpr32() }
}

fn callee_saved() -> impl Iterator<Item = u8> {
    Arch::X86_64.callee_saved().iter().copied()
}

/// DWARF's number of a general register of x86-64; 32-bit code has the first eight.
fn number(register: Register) -> Option<usize> {
    /// In the order of the instruction set.
    const DWARF: [u8; FOLLOWED] = [0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15];
    let is_general = register.is_gpr();
    is_general.then(|| DWARF[register.full_register().number() & 15].into())
}

impl PathState {
    /// `is_caller`: a call has been made whose registers are not known.
    fn new(is_caller: bool) -> PathState {
        let mut registers = std::array::from_fn(|number| RegisterValue::Register(number as u8, 0));
        if is_caller {
            CALLER_SAVED.iter().for_each(|&number| registers[number] = RegisterValue::Unknown);
        }
        PathState { registers, stored: Vec::new(), returned_over: 0 }
    }

    /// The caller's registers, from the state at a `ret`.
    fn at_return(&self) -> Option<CallerPlace> {
        let saved = callee_saved().map(|register| (register, self.registers[usize::from(register)]));
        let changed = saved.filter(|&(register, value)| value != RegisterValue::Register(register, 0));
        let sp = self.registers[RSP];
        let slot = match (sp, self.word(sp)) {
            // Some functions move it, over arguments that they drop.
            (RegisterValue::Register(..), RegisterValue::Word(base, offset, 0)) => {
                RegisterValue::Register(base, offset)
            }
            (RegisterValue::Word(..), _) => sp,
            _ => return None,
        };
        let sp = sp.plus(self.returned_over);
        Some(CallerPlace::Return { slot, sp, saved: changed.collect() })
    }

    /// The same from a state in terms of the registers at the function's first instruction.
    fn since_entry(&self, word: i64) -> Option<CallerPlace> {
        // Of both, where it is now, and how far that is from where the stack pointer was.
        let (base, moved) = [RSP, RBP].into_iter().find_map(|base| match self.registers[base] {
            RegisterValue::Register(from, moved) if usize::from(from) == RSP => Some((base as u8, moved)),
            _ => None,
        })?;
        let saved = callee_saved().filter_map(|register| {
            let own = RegisterValue::Register(register, 0);
            if self.registers[usize::from(register)] == own {
                return None;
            }
            let slot = self.stored.iter().find_map(|&((from, at), value)| {
                (usize::from(from) == RSP && value == own).then_some(at.wrapping_sub(moved))
            });
            Some((register, slot.map_or(RegisterValue::Unknown, |at| RegisterValue::Word(base, at, 0))))
        });
        let slot = RegisterValue::Register(base, moved.wrapping_neg());
        Some(CallerPlace::Return { slot, sp: slot.plus(word), saved: saved.collect() })
    }

    /// Carries out an instruction that is no jump.
    fn step(&mut self, instruction: &Instruction, word: i64, infos: &mut InstructionInfoFactory) {
        let register = |at| match instruction.op_kind(at) {
            OpKind::Register if is_whole(instruction.op_register(at), word) => {
                number(instruction.op_register(at))
            }
            _ => None,
        };
        let sp = self.registers[RSP];
        match instruction.mnemonic() {
            Mnemonic::Push if i64::from(instruction.stack_pointer_increment()) == -word => {
                let value = register(0).map_or(RegisterValue::Unknown, |from| self.registers[from]);
                self.registers[RSP] = sp.plus(-word);
                self.store(sp.plus(-word), value);
            }
            Mnemonic::Pop
                if i64::from(instruction.stack_pointer_increment()) == word && register(0).is_some() =>
            {
                let value = self.word(sp);
                self.registers[RSP] = sp.plus(word);
                self.set(register(0), value);
            }
            Mnemonic::Leave => {
                let frame = self.registers[RBP];
                self.registers[RBP] = self.word(frame);
                self.registers[RSP] = frame.plus(word);
            }
            Mnemonic::Mov if register(0).is_some() && register(1).is_some() => {
                let value = register(1).map_or(RegisterValue::Unknown, |from| self.registers[from]);
                self.set(register(0), value);
            }
            Mnemonic::Mov if register(0).is_some() && instruction.op1_kind() == OpKind::Memory => {
                // What was put onto the stack before it was aligned comes from there.
                let is_frame = matches!(number(instruction.memory_base()), Some(RSP | RBP));
                let value = match self.word(self.place(instruction, word)) {
                    _ if register(0) == Some(RSP) && !is_frame => RegisterValue::Foreign,
                    value => value,
                };
                self.set(register(0), value);
            }
            Mnemonic::Lea if register(0).is_some() => {
                let value = self.place(instruction, word);
                self.set(register(0), value);
            }
            Mnemonic::Add | Mnemonic::Sub if register(0).is_some() && is_immediate(instruction) => {
                let bytes = instruction.immediate(1) as i64;
                let bytes = if word == 4 { i64::from(bytes as i32) } else { bytes };
                let bytes =
                    if instruction.mnemonic() == Mnemonic::Sub { bytes.wrapping_neg() } else { bytes };
                let value =
                    register(0).map_or(RegisterValue::Unknown, |from| self.registers[from].plus(bytes));
                self.set(register(0), value);
            }
            _ => self.forget(instruction, word, infos),
        }
    }

    /// Any other instruction: what it writes is not known after it.
    fn forget(&mut self, instruction: &Instruction, word: i64, infos: &mut InstructionInfoFactory) {
        if instruction.op_count() > 0 && instruction.op0_kind() == OpKind::Memory {
            let value = match instruction.mnemonic() {
                Mnemonic::Mov if instruction.op1_kind() == OpKind::Register => {
                    number(instruction.op1_register())
                        .filter(|_| is_whole(instruction.op1_register(), word))
                        .map_or(RegisterValue::Unknown, |from| self.registers[from])
                }
                _ => RegisterValue::Unknown,
            };
            let writes = !matches!(instruction.mnemonic(), Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Bt);
            if writes {
                self.store(self.place(instruction, word), value);
            }
        }
        let sp = self.registers[RSP].plus(instruction.stack_pointer_increment().into());
        let moves = instruction.stack_pointer_increment() != 0;
        let info = infos.info_options(instruction, InstructionInfoOptions::NO_MEMORY_USAGE);
        for used in info.used_registers() {
            let is_written = !matches!(used.access(), OpAccess::None | OpAccess::Read | OpAccess::CondRead);
            if is_written && let Some(number) = number(used.register()) {
                self.registers[number] = RegisterValue::Unknown;
            }
        }
        if moves {
            self.registers[RSP] = sp;
        }
    }

    fn set(&mut self, register: Option<usize>, value: RegisterValue) {
        if let Some(number) = register {
            self.registers[number] = value;
        }
    }

    /// The address of an instruction's operand in memory.
    fn place(&self, instruction: &Instruction, word: i64) -> RegisterValue {
        let base = instruction.memory_base();
        let is_plain = instruction.memory_index() == Register::None
            && is_whole(base, word)
            && instruction.segment_prefix() == Register::None;
        match number(base).filter(|_| is_plain) {
            Some(base) => {
                let displacement = instruction.memory_displacement64() as i64;
                // 32-bit code has its displacements in 32 bits.
                self.registers[base].plus(if word == 4 { displacement as i32 as i64 } else { displacement })
            }
            None => RegisterValue::Unknown,
        }
    }

    /// The word at an address.
    fn word(&self, place: RegisterValue) -> RegisterValue {
        let RegisterValue::Register(base, offset) = place else { return RegisterValue::Unknown };
        let known = self.stored.iter().rev().find(|(at, _)| *at == (base, offset));
        known.map_or(RegisterValue::Word(base, offset, 0), |(_, value)| *value)
    }

    fn store(&mut self, place: RegisterValue, value: RegisterValue) {
        let RegisterValue::Register(base, offset) = place else { return };
        if self.stored.len() >= MOST_STORED {
            // What is stored from here on would be missed: the path has no result.
            self.registers[RSP] = RegisterValue::Unknown;
        }
        self.stored.push(((base, offset), value));
    }
}

fn is_immediate(instruction: &Instruction) -> bool {
    !matches!(instruction.op1_kind(), OpKind::Register | OpKind::Memory)
}

/// The rule that leads to the caller, whose return address lies in `slot` and whose stack pointer
/// is `sp` after the return.
fn rule_of_return(slot: RegisterValue, sp: RegisterValue, saved: &[(u8, RegisterValue)]) -> Option<Rule> {
    if let RegisterValue::Register(base, offset) = slot
        && sp == slot.plus(8)
        && let Some(plain) = plain(base, offset, saved)
    {
        return Some(Rule::Plain(plain));
    }
    let expression = |value| match value {
        RegisterValue::Register(base, offset) => Some(Expression::register_plus(base, offset)),
        RegisterValue::Word(base, offset, more) => {
            Some(Expression::register_plus(base, offset).dereferenced().plus(more))
        }
        RegisterValue::Foreign | RegisterValue::Unknown => None,
    };
    let source = |value| expression(value).map_or(Source::Lost, Source::Expression);
    Some(Rule::Exotic(Box::new(Exotic {
        cfa: CfaSource::Expression(expression(sp)?),
        return_address: Source::AtExpression(expression(slot)?),
        registers: saved.iter().map(|&(register, value)| (register.into(), source(value))).collect(),
    })))
}

/// The same in the common form: registers are saved at fixed distances from the return address.
fn plain(base: u8, offset: i64, saved: &[(u8, RegisterValue)]) -> Option<Plain> {
    let cfa_offset = i32::try_from(offset.checked_add(8)?).ok()?;
    let mut rule = Plain { cfa_register: base, cfa_offset, return_address: -1, saved: [SAME; MOST_SAVED] };
    for &(register, value) in saved {
        let RegisterValue::Word(from, at, 0) = value else { return None };
        let distance = at.checked_sub(offset).filter(|distance| from == base && distance % 8 == 0)?;
        let place = Arch::X86_64.callee_saved().iter().position(|&r| r == register)?;
        rule.saved[place] = i8::try_from(distance / 8).ok().filter(|&words| words != SAME)?;
    }
    Some(rule)
}
