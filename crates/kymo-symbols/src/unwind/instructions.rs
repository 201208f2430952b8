//! Which bytes are calls, jump stubs and the ends of threads, by instruction set.

use crate::arch::Arch;

/// The longest call instruction that is recognised.
pub(super) const LONGEST_CALL: usize = 7;
/// As many bytes as tell a jump stub.
pub(super) const STUB_BYTES: usize = 8;

/// What lies before an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// No call.
    Other,
    /// A call through a register or memory.
    Indirect,
    /// A call to a jump stub.
    Stub,
    /// A `nop`: where Go's runtime lets the first function of a goroutine return to
    /// (`runtime.goexit`).
    Nop,
    /// A call to the address that is so far away, in bytes from the address behind the call.
    Direct(i32),
}

/// The call instruction that these bytes end with. Its bytes may by chance be those of other
/// instructions.
pub(super) fn call(arch: Arch, code: &[u8; LONGEST_CALL]) -> Before {
    match arch {
        Arch::X86_64 => call_x86_64(code),
        Arch::Aarch64 => call_aarch64(u32::from_le_bytes([code[3], code[4], code[5], code[6]])),
    }
}

/// Arm's manual, "Branches, Exception Generating and System instructions".
fn call_aarch64(word: u32) -> Before {
    /// `bl`: 26 bits of distance, in instructions.
    const BL: (u32, u32) = (0xfc00_0000, 0x9400_0000);
    /// `blr`, and the forms that authenticate the address (`blraa`, `blraaz`, ...).
    const BLR: [(u32, u32); 2] = [(0xffff_fc1f, 0xd63f_0000), (0xfeff_f800, 0xd63f_0800)];
    const NOP: u32 = 0xd503_201f;
    let is = |(mask, bits): (u32, u32)| word & mask == bits;
    match word {
        NOP => Before::Nop,
        // The distance is from the call itself.
        _ if is(BL) => Before::Direct(((word << 6) as i32 >> 4) - 4),
        _ if BLR.into_iter().any(is) => Before::Indirect,
        _ => Before::Other,
    }
}

fn call_x86_64(code: &[u8; LONGEST_CALL]) -> Before {
    if code[2] == 0xe8 {
        return Before::Direct(i32::from_le_bytes([code[3], code[4], code[5], code[6]]));
    }
    // FF /2: the byte behind it says what follows; see the Intel manual, volume 2, tables 2-2 and
    // 2-3.
    let is_indirect = |length: usize| {
        let [opcode, mode, ..] = code[LONGEST_CALL - length..] else { return false };
        let has_index = mode >> 6 != 3 && mode & 7 == 4;
        let displacement = match mode >> 6 {
            0 if mode & 7 == 5 => 4,
            0 if has_index && length == 7 => 4,
            1 => 1,
            2 => 4,
            _ => 0,
        };
        opcode == 0xff && mode >> 3 & 7 == 2 && length == 2 + usize::from(has_index) + displacement
    };
    match code[LONGEST_CALL - 1] {
        _ if [2, 3, 4, 6, 7].into_iter().any(is_indirect) => Before::Indirect,
        0x90 => Before::Nop,
        _ => Before::Other,
    }
}

/// Whether a jump through memory begins here, as in a procedure linkage table.
pub(super) fn is_stub(arch: Arch, code: &[u8; STUB_BYTES]) -> bool {
    const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    /// `bti c`
    const BTI_C: u32 = 0xd503_245f;
    match arch {
        Arch::X86_64 => {
            let rest = code.strip_prefix(&ENDBR64).unwrap_or(code);
            // `bnd jmp`, then `jmp *offset(%rip)`.
            let rest = rest.strip_prefix(&[0xf2]).unwrap_or(rest);
            rest.starts_with(&[0xff, 0x25])
        }
        Arch::Aarch64 => {
            let word = |at: usize| u32::from_le_bytes([code[at], code[at + 1], code[at + 2], code[at + 3]]);
            let first = if word(0) == BTI_C { word(4) } else { word(0) };
            // adrp x16: the page of the word that is jumped through.
            first & 0x9f00_001f == 0x9000_0010
        }
    }
}

/// As many bytes as tell the end of a thread.
pub(super) const THREAD_END_BYTES: usize = 12;

/// Whether a thread ends in these instructions, behind the call of its first function: by the
/// system call `exit`, or at `hlt`.
pub(super) fn ends_thread(arch: Arch, code: &[u8]) -> bool {
    const HLT: u8 = 0xf4;
    arch == Arch::X86_64 && code.first() == Some(&HLT) || exits_thread(arch, code)
}

/// Whether the system call `exit` is among these instructions.
fn exits_thread(arch: Arch, code: &[u8]) -> bool {
    /// mov $60 (exit), %eax; syscall. Before it, the exit status is put into edi.
    const X86_64: [u8; 7] = [0xb8, 60, 0, 0, 0, 0x0f, 0x05];
    /// mov x8, #93 (exit); svc #0
    const AARCH64: [u8; 8] = [0xa8, 0x0b, 0x80, 0xd2, 0x01, 0, 0, 0xd4];
    /// mov $60, %al; syscall: musl's, which has cleared the rest of the register.
    const X86_64_MUSL: [u8; 4] = [0xb0, 60, 0x0f, 0x05];
    let has = |exit: &[u8]| code.windows(exit.len()).any(|window| window == exit);
    match arch {
        Arch::X86_64 => has(&X86_64) || has(&X86_64_MUSL),
        Arch::Aarch64 => has(&AARCH64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks which instructions are taken for calls: all forms of `call` in 64-bit code, by their
    /// bytes as an assembler makes them, and none of their neighbours.
    #[test]
    fn calls_are_recognised() {
        let padded = |bytes: &[u8]| {
            let mut code = [0x90; LONGEST_CALL];
            code[LONGEST_CALL - bytes.len()..].copy_from_slice(bytes);
            call(Arch::X86_64, &code)
        };
        assert_eq!(padded(&[0xe8, 0xf0, 0xff, 0xff, 0xff]), Before::Direct(-16), "call rel32");
        let indirect: [(&str, &[u8]); 9] = [
            ("call *%rax", &[0xff, 0xd0]),
            ("call *%r12", &[0x41, 0xff, 0xd4]),
            ("call *(%rbx)", &[0xff, 0x13]),
            ("call *8(%rax)", &[0xff, 0x50, 0x08]),
            ("call *0x18(%rsp)", &[0xff, 0x54, 0x24, 0x18]),
            ("call *(%rax,%rcx,8)", &[0xff, 0x14, 0xc8]),
            ("call *0x1234(%rax)", &[0xff, 0x90, 0x34, 0x12, 0, 0]),
            ("call *0x10(%rip)", &[0xff, 0x15, 0x10, 0, 0, 0]),
            ("call *0x1234(%rsp)", &[0xff, 0x94, 0x24, 0x34, 0x12, 0, 0]),
        ];
        for (text, bytes) in indirect {
            assert_eq!(padded(bytes), Before::Indirect, "{text}");
        }
        let others: [(&str, &[u8]); 5] = [
            ("jmp *%rax", &[0xff, 0xe0]),
            ("push 8(%rax)", &[0xff, 0x70, 0x08]),
            ("jmp *%rcx", &[0xff, 0xe1]),
            ("jmp rel32", &[0xe9, 0, 0, 0, 0]),
            ("mov %rsp,%rbp", &[0x48, 0x89, 0xe5]),
        ];
        for (text, bytes) in others {
            assert_eq!(padded(bytes), Before::Other, "{text}");
        }
        assert_eq!(padded(&[0x90]), Before::Nop);
    }

    /// Checks the same of aarch64, and the distance of a direct call from the address behind it.
    #[test]
    fn calls_of_aarch64_are_recognised() {
        assert_eq!(call_aarch64(0x9400_0004), Before::Direct(12), "bl .+16");
        assert_eq!(call_aarch64(0x97ff_fffc), Before::Direct(-20), "bl .-16");
        assert_eq!(call_aarch64(0xd63f_0060), Before::Indirect, "blr x3");
        assert_eq!(call_aarch64(0xd73f_0861), Before::Indirect, "blraa x3, x1");
        assert_eq!(call_aarch64(0xd63f_087f), Before::Indirect, "blraaz x3");
        assert_eq!(call_aarch64(0xd503_201f), Before::Nop);
        for other in [0x1400_0004, 0xd65f_03c0, 0xd61f_0060, 0xa9bf_7bfd] {
            assert_eq!(call_aarch64(other), Before::Other, "{other:#x}");
        }
    }

    /// Checks jump stubs and ends of threads of both instruction sets, and that neither takes the
    /// other's.
    #[test]
    fn stubs_and_ends() {
        let arm: [u8; 8] = [0x90, 0x00, 0x00, 0x90, 0x11, 0x02, 0x40, 0xf9];
        let marked: [u8; 8] = [0x5f, 0x24, 0x03, 0xd5, 0x90, 0x00, 0x00, 0x90];
        let x86: [u8; 8] = [0xff, 0x25, 0x10, 0, 0, 0, 0x90, 0x90];
        assert!(is_stub(Arch::Aarch64, &arm) && is_stub(Arch::Aarch64, &marked));
        assert!(is_stub(Arch::X86_64, &x86));
        assert!(!is_stub(Arch::X86_64, &arm) && !is_stub(Arch::Aarch64, &x86));
        let exit = [0xa8, 0x0b, 0x80, 0xd2, 0x01, 0, 0, 0xd4];
        assert!(exits_thread(Arch::Aarch64, &exit) && !exits_thread(Arch::X86_64, &exit));
    }
}
