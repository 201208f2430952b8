//! Which first instructions of functions may stay where they are, with the site behind them.
//!
//! | instruction | the stack pointer at the site |
//! |---|---|
//! | `push` of a register or a number | 8 bytes lower |
//! | `sub rsp, n`, `lea rsp, [rsp - n]` | n bytes lower |
//! | another one that changes nothing that the probe looks at, and cannot fault | as at the begin |
//!
//! A stub raises the stack pointer again while it looks at the hit: what a push has written lies in
//! the red zone then, which stubs leave alone. So there is none of these in code without one, as
//! Go's.
use iced_x86::{
    FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register, UsedMemory,
};
use kymo_core::probe::MOST_STAYING_BYTES;
use kymo_core::probe::value::reads_memory;
use kymo_core::probe::wire::{Fetch, FetchKind, ProbeAction};

/// What a probe looks at where a call begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryState {
    /// Registers: a bit for each, by the processor's numbers.
    pub registers: u16,
    /// Whether it looks at memory, too.
    pub memory: bool,
    /// Whether the code has a red zone, so that its stub may raise the stack pointer.
    pub has_red_zone: bool,
}

impl EntryState {
    /// Everything, in code with a red zone.
    pub const ALL: EntryState = EntryState { registers: u16::MAX, memory: true, has_red_zone: true };
    /// Nothing, in code with a red zone.
    pub const NOTHING: EntryState = EntryState { registers: 0, memory: false, has_red_zone: true };

    /// What an action looks at.
    pub fn of(action: &ProbeAction) -> EntryState {
        let tests = action.entry_condition.iter().flatten().map(|test| &test.operand);
        let operands = tests.chain(action.fetches.iter().map(|fetch| &fetch.operand));
        let is_text = |fetch: &Fetch| fetch.kind != FetchKind::Number;
        EntryState {
            registers: operands.fold(0, |all, operand| all | 1 << (operand.register & 15)),
            memory: reads_memory(&action.entry_condition)
                || action.fetches.iter().any(|fetch| !fetch.operand.steps.is_empty() || is_text(fetch)),
            has_red_zone: true,
        }
    }

    /// The first two arguments.
    pub(crate) fn two_arguments() -> EntryState {
        EntryState { registers: 1 << 7 | 1 << 6, ..EntryState::NOTHING }
    }
}

/// The bytes by which the instruction lowers the stack pointer, if it may stay before a site.
/// `looks_at`: `None`: only a mark may.
pub(super) fn may_stay(first: &Instruction, looks_at: Option<EntryState>) -> Option<i32> {
    if first.mnemonic() == Mnemonic::Endbr64 {
        return Some(0);
    }
    let looks_at = looks_at?;
    if first.is_invalid() || first.len() > MOST_STAYING_BYTES || first.flow_control() != FlowControl::Next {
        return None;
    }
    let lowered = lowered(first).filter(|lowered| *lowered == 0 || looks_at.has_red_zone)?;
    let is_written =
        |access: OpAccess| !matches!(access, OpAccess::Read | OpAccess::CondRead | OpAccess::None);
    let mut factory = InstructionInfoFactory::new();
    let info = factory.info(first);
    let is_seen = |register: Register| {
        let whole = register.full_register();
        let number = whole.is_gpr64().then(|| whole.number());
        number.is_some_and(|number| whole != Register::RSP && looks_at.registers >> number & 1 == 1)
    };
    let registers = info.used_registers().iter().filter(|used| is_written(used.access()));
    let changes_a_register = registers.map(|used| used.register()).any(is_seen);
    let writes_memory = info.used_memory().iter().any(|used| is_written(used.access()));
    // A call that faults there is to be counted, too. In Go's code r14 is the goroutine.
    let is_there = |base: Register| match base {
        Register::RSP | Register::RIP | Register::None => true,
        Register::R14 => !looks_at.has_red_zone,
        _ => false,
    };
    let is_plain = |used: &UsedMemory| is_there(used.base()) && used.index() == Register::None;
    let may_fault = !info.used_memory().iter().all(is_plain);
    let is_push = lowered == 8 && first.mnemonic() == Mnemonic::Push;
    // Where there is no red zone, a stub overwrites what lies below the stack pointer.
    let changes_memory = writes_memory && !is_push && (looks_at.memory || !looks_at.has_red_zone);
    (!changes_a_register && !changes_memory && !may_fault).then_some(lowered)
}

/// By how much it lowers the stack pointer; `None` where that is not known, or it raises it.
fn lowered(first: &Instruction) -> Option<i32> {
    let lowered = match first.mnemonic() {
        Mnemonic::Push => first.stack_pointer_increment().checked_neg()?,
        Mnemonic::Sub if first.op0_register() == Register::RSP && first.op1_kind() != OpKind::Register => {
            i32::try_from(first.immediate(1) as i64).ok()?
        }
        Mnemonic::Lea if first.op0_register() == Register::RSP => {
            let is_plain = first.memory_base() == Register::RSP && first.memory_index() == Register::None;
            let distance = first.memory_displacement64() as i64;
            is_plain.then(|| i32::try_from(-distance).ok())??
        }
        _ => {
            let mut factory = InstructionInfoFactory::new();
            let info = factory.info(first);
            let writes = |access: OpAccess| !matches!(access, OpAccess::Read | OpAccess::CondRead);
            let is_rsp = |register: Register| register.full_register() == Register::RSP;
            let mut used = info.used_registers().iter();
            if used.any(|used| is_rsp(used.register()) && writes(used.access())) {
                return None;
            }
            0
        }
    };
    // A push of two bytes, or an add in disguise: nobody begins with these.
    (lowered == 0 || (8..1 << 20).contains(&lowered)).then_some(lowered)
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};

    fn decoded(bytes: &[u8]) -> Instruction {
        Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE).decode()
    }

    /// Checks how far the stack pointer is lowered by instructions that may stay, and which may
    /// not: branches, those that change what is looked at, and those that may fault.
    #[test]
    fn instructions_that_may_stay() {
        let (all, none) = (EntryState::ALL, EntryState::NOTHING);
        let (rdi, memory) = (EntryState { registers: 1 << 7, ..none }, EntryState { memory: true, ..none });
        let go = EntryState { has_red_zone: false, ..none };
        let cases: [(&str, &[u8], EntryState, Option<i32>); 27] = [
            ("push rbp", &[0x55], all, Some(8)),
            ("push r12", &[0x41, 0x54], all, Some(8)),
            ("push 7", &[0x6a, 7], all, Some(8)),
            ("push bx", &[0x66, 0x53], none, None),
            ("pop rax", &[0x58], none, None),
            ("sub rsp, 24", &[0x48, 0x83, 0xec, 24], all, Some(24)),
            ("sub rsp, -128", &[0x48, 0x83, 0xec, 0x80], none, None),
            ("lea rsp, [rsp - 40]", &[0x48, 0x8d, 0x64, 0x24, 0xd8], all, Some(40)),
            ("mov rsp, rdi", &[0x48, 0x89, 0xfc], none, None),
            ("endbr64", &[0xf3, 0x0f, 0x1e, 0xfa], all, Some(0)),
            ("test rdi, rdi", &[0x48, 0x85, 0xff], all, Some(0)),
            ("mov rax, rdi", &[0x48, 0x89, 0xf8], rdi, Some(0)),
            ("mov rax, rdi", &[0x48, 0x89, 0xf8], all, None),
            ("mov edi, esi", &[0x89, 0xf7], rdi, None),
            ("mov edi, esi", &[0x89, 0xf7], none, Some(0)),
            ("mov [rdi], rsi", &[0x48, 0x89, 0x37], none, None),
            ("mov eax, [rdi]", &[0x8b, 0x07], none, None),
            ("mov [rsp - 8], rsi", &[0x48, 0x89, 0x74, 0x24, 0xf8], rdi, Some(0)),
            ("mov [rsp - 8], rsi", &[0x48, 0x89, 0x74, 0x24, 0xf8], memory, None),
            ("mov [rsp - 8], rsi", &[0x48, 0x89, 0x74, 0x24, 0xf8], go, None),
            ("mov eax, [rsp + rdi * 8]", &[0x8b, 0x04, 0xfc], none, None),
            ("mov rax, [rdi * 8 + 64]", &[0x48, 0x8b, 0x04, 0xfd, 64, 0, 0, 0], none, None),
            ("mov eax, 1", &[0xb8, 1, 0, 0, 0], none, Some(0)),
            ("je", &[0x74, 2], none, None),
            ("ret", &[0xc3], none, None),
            ("push rbp", &[0x55], go, None),
            ("cmp rsp, [r14 + 16]", &[0x49, 0x3b, 0x66, 0x10], go, Some(0)),
        ];
        for (text, bytes, looks_at, lowered) in cases {
            assert_eq!(may_stay(&decoded(bytes), Some(looks_at)), lowered, "{text} {looks_at:?}");
        }
    }
}
