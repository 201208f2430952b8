//! Which instruction caused the trap of a data watchpoint.
//!
//! x86 traps after the access: the instruction pointer is at the next instruction that would run. The one before it
//! cannot be found by stepping back, since instructions have no fixed length; so the function is decoded from its start.
//!
//! ```text
//!   start ─▶ push ─▶ mov ─▶ addl $1,counter ─▶ ret
//!                           ▲ the answer       ▲ trap: ip
//! ```
//!
//! What is before the trap in the code need not be what ran before it. It is believed only when it can run into the
//! trap's instruction and touches memory in the watched way:
//! - `rep movs` and its like trap between two rounds with the pointer still at themselves;
//! - a `call` runs into its target, so behind a call stands the return, and what accessed is the callee's `ret`;
//! - behind a `jmp` or `ret` something jumped here: a jump through memory somewhere else.

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Formatter, GasFormatter, Instruction, InstructionInfoFactory,
    OpAccess,
};

use super::request::Access;

/// Functions are not decoded further than this; compilers' largest are a hundredth of it.
const MOST_CODE_BYTES: usize = 16 << 20;

/// An instruction that accesses memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessSite {
    /// Where it is (AVMA).
    pub avma: u64,
    /// Its length in bytes, 1 to 15.
    pub len_bytes: usize,
    /// It in AT&T syntax, as `perf annotate` writes it.
    pub text: String,
    /// Whether it may load.
    pub reads: bool,
    /// Whether it may store.
    pub writes: bool,
}

/// The instruction whose access trapped at `trap_ip`, if the code can tell; see [`access_site`].
pub fn accessing_instruction(code: &[u8], code_avma: u64, trap_ip: u64) -> Option<u64> {
    access_site(code, code_avma, trap_ip, Access::ReadWrite).map(|site| site.avma)
}

/// The instruction whose access trapped at `trap_ip`.
///
/// `code` is x86-64 code that starts at `code_avma` with the first instruction of the function around `trap_ip`; it should
/// reach some 16 bytes beyond the trap, for `rep` instructions. `access` is what the watchpoint watches: an instruction that
/// only loads caused no trap of [`Access::Write`].
///
/// `None` where the code cannot tell: the trap is at the function's first instruction, behind a call, jump or return, the
/// code is no code, or two instructions could have done it. For [`Access::Execute`] the answer is the trap's own
/// instruction: those trap before.
pub fn access_site(code: &[u8], code_avma: u64, trap_ip: u64, access: Access) -> Option<AccessSite> {
    let offset = usize::try_from(trap_ip.checked_sub(code_avma)?).ok()?;
    if offset > code.len() || offset > MOST_CODE_BYTES {
        return None;
    }
    let mut decoder = Decoder::with_ip(64, code, code_avma, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    let mut before: Option<Instruction> = None;
    while decoder.position() < offset {
        decoder.decode_out(&mut instruction);
        if instruction.is_invalid() {
            return None;
        }
        before = Some(instruction);
    }
    if decoder.position() != offset {
        // The trap is inside of what was decoded: this was data, or the function starts elsewhere.
        return None;
    }
    let mut infos = InstructionInfoFactory::new();
    let at_trap = (offset < code.len()).then(|| decoder.decode()).filter(|at| !at.is_invalid());
    if access == Access::Execute {
        return at_trap.map(|at| site(&at, &mut infos));
    }
    let fits = |site: &AccessSite| site.writes || (access == Access::ReadWrite && site.reads);
    let ran_before = before
        .filter(|before| matches!(before.flow_control(), FlowControl::Next | FlowControl::ConditionalBranch))
        .map(|before| site(&before, &mut infos))
        .filter(fits);
    let repeats = |at: &Instruction| {
        at.is_string_instruction() && (at.has_rep_prefix() || at.has_repe_prefix() || at.has_repne_prefix())
    };
    let repeated = at_trap.filter(repeats).map(|at| site(&at, &mut infos)).filter(fits);
    match (ran_before, repeated) {
        (Some(one), None) | (None, Some(one)) => Some(one),
        (None, None) | (Some(_), Some(_)) => None,
    }
}

fn site(instruction: &Instruction, infos: &mut InstructionInfoFactory) -> AccessSite {
    let (mut reads, mut writes) = (false, false);
    for memory in infos.info(instruction).used_memory() {
        let (read, write) = match memory.access() {
            OpAccess::Read | OpAccess::CondRead => (true, false),
            OpAccess::Write | OpAccess::CondWrite => (false, true),
            OpAccess::ReadWrite | OpAccess::ReadCondWrite => (true, true),
            _ => (false, false),
        };
        reads |= read;
        writes |= write;
    }
    let mut text = String::new();
    GasFormatter::new().format(instruction, &mut text);
    AccessSite { avma: instruction.ip(), len_bytes: instruction.len(), text, reads, writes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const START: u64 = 0x40_1000;

    fn found(code: &[u8], trap: u64, access: Access) -> Option<(u64, String)> {
        access_site(code, START, START + trap, access).map(|site| (site.avma - START, site.text))
    }

    /// Checks plain stores and loads of different lengths, and that a load is no culprit of a write.
    #[test]
    fn the_instruction_before_the_trap_is_found() {
        // push %rbp; mov %rsp,%rbp; addl $1,0x2ee3(%rip); mov (%rdi),%eax; ret
        let code = [0x55, 0x48, 0x89, 0xe5, 0x83, 0x05, 0xe3, 0x2e, 0, 0, 1, 0x8b, 0x07, 0xc3, 0x90, 0x90];
        assert_eq!(found(&code, 11, Access::Write).map(|f| f.0), Some(4));
        assert!(found(&code, 11, Access::Write).is_some_and(|f| f.1.starts_with("addl")));
        assert_eq!(found(&code, 13, Access::ReadWrite).map(|f| f.0), Some(11));
        assert_eq!(found(&code, 13, Access::Write), None);
        assert_eq!(found(&code, 1, Access::Write).map(|f| f.0), Some(0));
        // Between registers; at the start; inside of an instruction; beyond the code.
        for trap in [4, 0, 6, 17, u64::MAX] {
            assert_eq!(found(&code, trap.min(1 << 40), Access::ReadWrite), None, "{trap}");
        }
        assert_eq!(accessing_instruction(&code, START, START + 11), Some(START + 4));
        assert_eq!(accessing_instruction(&code, START, START - 1), None);
        assert_eq!(found(&code, 4, Access::Execute).map(|f| f.0), Some(4));
    }

    /// Checks string instructions: between rounds the pointer is at the instruction itself, after the last behind it.
    #[test]
    fn repeated_strings_trap_at_themselves() {
        // xor %eax,%eax; rep stosb; nop
        let code = [0x31, 0xc0, 0xf3, 0xaa, 0x90];
        assert_eq!(found(&code, 2, Access::Write).map(|f| f.0), Some(2));
        assert_eq!(found(&code, 4, Access::Write).map(|f| f.0), Some(2));
        // mov %rax,(%rsi); rep movsb: either could be it.
        let code = [0x48, 0x89, 0x06, 0xf3, 0xa4, 0x90];
        assert_eq!(found(&code, 3, Access::Write), None);
        // mov (%rsi),%rax; rep movsb: only one of them writes.
        let code = [0x48, 0x8b, 0x06, 0xf3, 0xa4, 0x90];
        assert_eq!(found(&code, 3, Access::Write).map(|f| f.0), Some(3));
    }

    /// Checks that behind calls, jumps and returns nothing is claimed.
    #[test]
    fn behind_a_branch_the_code_cannot_tell() {
        for code in [
            &[0xe8, 0, 0, 0, 0, 0x90][..],   // call
            &[0xff, 0x15, 0, 0, 0, 0, 0x90], // call *0(%rip)
            &[0xeb, 0x10, 0x90],             // jmp
            &[0xc3, 0x90],                   // ret
            &[0x0f, 0x05, 0x90],             // syscall
            &[0x74, 0x10, 0x90],             // je
            &[0x06, 0x90],                   // no instruction
        ] {
            let trap = code.len() as u64 - 1;
            assert_eq!(found(code, trap, Access::ReadWrite), None, "{code:x?}");
        }
    }

    proptest! {
        /// Checks that no code makes it panic, and that an answer ends at the trap or is at it.
        #[test]
        fn any_code_is_survived(code in proptest::collection::vec(any::<u8>(), 0..80), trap in 0u64..90) {
            if let Some(site) = access_site(&code, START, START + trap, Access::ReadWrite) {
                let end = site.avma + site.len_bytes as u64;
                prop_assert!(end == START + trap || site.avma == START + trap);
            }
        }
    }
}
