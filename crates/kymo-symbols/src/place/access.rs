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
//! trap's instruction and touches memory:
//! - `rep movs` and its like trap between two rounds with the pointer still at themselves;
//! - a `call` runs into its target, so behind a call stands the return, and what accessed is the callee's `ret`;
//! - behind a `jmp` or `ret` something jumped here: a jump through memory somewhere else.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpAccess};

/// Functions are not decoded further than this; compilers' largest are a hundredth of it.
const MOST_CODE_BYTES: usize = 16 << 20;

/// Where the instruction is whose access trapped at `trap_ip`.
///
/// `code` is x86-64 code that starts at `code_avma` with the first instruction of the function
/// around `trap_ip`; it should reach some 16 bytes beyond the trap, for `rep` instructions.
///
/// `None` where the code cannot tell: the trap is at the function's first instruction, behind a
/// call, jump or return, the code is no code, or two instructions could have done it.
pub fn accessing_instruction(code: &[u8], code_avma: u64, trap_ip: u64) -> Option<u64> {
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
    let runs_on =
        |at: &Instruction| matches!(at.flow_control(), FlowControl::Next | FlowControl::ConditionalBranch);
    let ran_before = before.filter(runs_on).filter(|at| touches_memory(at, &mut infos));
    let repeats = |at: &Instruction| {
        at.is_string_instruction() && (at.has_rep_prefix() || at.has_repe_prefix() || at.has_repne_prefix())
    };
    let at_trap = (offset < code.len()).then(|| decoder.decode()).filter(|at| !at.is_invalid());
    let repeated = at_trap.filter(repeats).filter(|at| touches_memory(at, &mut infos));
    ran_before.xor(repeated).map(|at| at.ip())
}

/// Whether an instruction of aarch64 is one of an exclusive pair (`ldxr`, `stxr` and variants).
///
/// The trap at a watchpoint ends the pair's claim on its memory, so the store fails and the program
/// tries again, for as long as the memory is watched.
pub fn is_exclusive(instruction: u32) -> bool {
    let exclusive_or_pair = instruction & 0x3f80_0000 == 0x0800_0000;
    // Compare and swap of a pair (`casp`) has the same numbers, and succeeds.
    let compares = instruction & 0x8020_0000 == 0x0020_0000;
    exclusive_or_pair && !compares
}

fn touches_memory(instruction: &Instruction, infos: &mut InstructionInfoFactory) -> bool {
    let touches = |access| !matches!(access, OpAccess::None | OpAccess::NoMemAccess);
    infos.info(instruction).used_memory().iter().any(|memory| touches(memory.access()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const START: u64 = 0x40_1000;

    fn found(code: &[u8], trap: u64) -> Option<u64> {
        accessing_instruction(code, START, START + trap).map(|avma| avma - START)
    }

    /// Checks exclusive loads and stores of different lengths, and others with similar numbers.
    #[test]
    fn exclusive_instructions() {
        // ldxr x0, [x1]; stxr w2, x0, [x1]; ldaxrb w0, [x1]; stlxrh w2, w0, [x1];
        // stxp w2, x0, x3, [x1]
        for code in [0xc85f_7c20, 0xc802_7c20, 0x085f_fc20, 0x4802_fc20, 0xc822_0c20] {
            assert!(is_exclusive(code), "{code:x}");
        }
        // ldar x0, [x1]; stlr x0, [x1]; casp x0, x1, x2, x3, [x4]; cas x0, x1, [x2];
        // ldadd x0, x1, [x2]; str x0, [x1]
        for code in [0xc8df_fc20, 0xc89f_fc20, 0x4820_7c82, 0xc8a0_7c41, 0xf820_0041, 0xf900_0020] {
            assert!(!is_exclusive(code), "{code:x}");
        }
    }

    /// Checks stores and loads of different lengths, and traps that no instruction before them
    /// explains.
    #[test]
    fn the_instruction_before_the_trap_is_found() {
        // push %rbp; mov %rsp,%rbp; addl $1,0x2ee3(%rip); mov (%rdi),%eax; ret
        let code = [0x55, 0x48, 0x89, 0xe5, 0x83, 0x05, 0xe3, 0x2e, 0, 0, 1, 0x8b, 0x07, 0xc3, 0x90, 0x90];
        for (trap, expected) in [(11, Some(4)), (13, Some(11)), (1, Some(0))] {
            assert_eq!(found(&code, trap), expected, "{trap}");
        }
        // Between registers; at the start; inside of an instruction; beyond the code.
        for trap in [4, 0, 6, 17, 1 << 40] {
            assert_eq!(found(&code, trap), None, "{trap}");
        }
        assert_eq!(accessing_instruction(&code, START, START - 1), None);
    }

    /// Checks string instructions: between rounds the pointer is at the instruction itself, after the last behind it.
    #[test]
    fn repeated_strings_trap_at_themselves() {
        // xor %eax,%eax; rep stosb; nop
        let code = [0x31, 0xc0, 0xf3, 0xaa, 0x90];
        assert_eq!((found(&code, 2), found(&code, 4)), (Some(2), Some(2)));
        // mov %rax,(%rsi); rep movsb: either could be it.
        assert_eq!(found(&[0x48, 0x89, 0x06, 0xf3, 0xa4, 0x90], 3), None);
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
            assert_eq!(found(code, trap), None, "{code:x?}");
        }
    }

    proptest! {
        /// Checks that no code makes it panic, and that an answer ends at the trap or is at it.
        #[test]
        fn any_code_is_survived(code in proptest::collection::vec(any::<u8>(), 0..80), trap in 0u64..90) {
            if let Some(avma) = accessing_instruction(&code, START, START + trap) {
                let rest = &code[(avma - START) as usize..];
                let end = Decoder::with_ip(64, rest, avma, DecoderOptions::NONE).decode().next_ip();
                prop_assert!(end == START + trap || avma == START + trap);
            }
        }
    }
}
