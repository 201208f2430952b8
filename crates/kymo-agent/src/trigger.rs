//! Functions to be hit, that begin as the kernel's own bench of probes has them begin, and the loop
//! that hits them.
//!
//! # Safety
//! The functions have no arguments and keep all registers; the loop calls nothing else.
#![allow(unsafe_code)]
use std::arch::global_asm;

global_asm!(
    ".pushsection .text.kymo_trigger, \"ax\", @progbits",
    ".globl kymo_trigger_nop, kymo_trigger_nop5, kymo_trigger_push, kymo_trigger_ret, kymo_trigger_loop",
    ".hidden kymo_trigger_nop, kymo_trigger_nop5, kymo_trigger_push, kymo_trigger_ret, kymo_trigger_loop",
    ".p2align 6, 0xcc",
    "kymo_trigger_nop: nop",
    "ret",
    ".p2align 6, 0xcc",
    "kymo_trigger_nop5: .byte 0x0f, 0x1f, 0x44, 0x00, 0x00",
    "ret",
    ".p2align 6, 0xcc",
    "kymo_trigger_push: push rbp",
    "mov rbp, rsp",
    "pop rbp",
    "ret",
    ".p2align 6, 0xcc",
    "kymo_trigger_ret: ret",
    ".p2align 6, 0xcc",
    // rdi: a function, rsi: how often it is called
    "kymo_trigger_loop: push rbx",
    "push r12",
    "push r13",
    "mov rbx, rdi",
    "mov r12, rsi",
    ".p2align 4",
    "2: call rbx",
    "dec r12",
    "jnz 2b",
    "pop r13",
    "pop r12",
    "pop rbx",
    "ret",
    ".p2align 6, 0xcc",
    ".popsection",
);

unsafe extern "C" {
    fn kymo_trigger_nop();
    fn kymo_trigger_nop5();
    fn kymo_trigger_push();
    fn kymo_trigger_ret();
    fn kymo_trigger_loop(function: unsafe extern "C" fn(), count: u64);
}

/// A function to be hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trigger {
    /// Begins with a `nop` of one byte, which the kernel emulates.
    Nop,
    /// Begins with a `nop` of five bytes, which the kernel replaces by a call (Linux 6.18).
    Nop5,
    /// Begins with `push %rbp`, which the kernel emulates.
    Push,
    /// Is a `ret` alone, over which the kernel steps.
    Ret,
}

impl Trigger {
    /// All, in the order of the kernel's bench.
    pub const ALL: [Trigger; 4] = [Trigger::Nop, Trigger::Push, Trigger::Ret, Trigger::Nop5];

    /// What it begins with.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Trigger::Nop => "nop",
            Trigger::Nop5 => "nop5",
            Trigger::Push => "push",
            Trigger::Ret => "ret",
        }
    }

    /// Its length in bytes; padding follows up to 64.
    #[must_use]
    pub fn length_bytes(self) -> u64 {
        match self {
            Trigger::Nop => 2,
            Trigger::Nop5 | Trigger::Push => 6,
            Trigger::Ret => 1,
        }
    }

    fn function(self) -> unsafe extern "C" fn() {
        match self {
            Trigger::Nop => kymo_trigger_nop,
            Trigger::Nop5 => kymo_trigger_nop5,
            Trigger::Push => kymo_trigger_push,
            Trigger::Ret => kymo_trigger_ret,
        }
    }

    /// Where it is in this process.
    #[must_use]
    pub fn address(self) -> u64 {
        self.function() as *const () as u64
    }

    /// Calls it so often, at least once.
    pub fn call(self, times: u64) {
        // SAFETY: functions without arguments, above; the loop ends when its count, which is not 0,
        // has come down to it.
        unsafe { kymo_trigger_loop(self.function(), times.max(1)) };
    }
}

#[cfg(test)]
mod tests {
    use super::Trigger;

    /// Checks that each function begins as it says and comes back.
    #[test]
    fn begins_as_said() {
        let memory = std::fs::File::open("/proc/self/mem").unwrap();
        let begins: [(Trigger, &[u8]); 4] = [
            (Trigger::Nop, &[0x90, 0xc3]),
            (Trigger::Nop5, &[0x0f, 0x1f, 0x44, 0, 0, 0xc3]),
            (Trigger::Push, &[0x55, 0x48, 0x89, 0xe5, 0x5d, 0xc3]),
            (Trigger::Ret, &[0xc3]),
        ];
        for (trigger, code) in begins {
            assert_eq!(trigger.length_bytes(), code.len() as u64);
            let mut found = vec![0; code.len()];
            std::os::unix::fs::FileExt::read_exact_at(&memory, &mut found, trigger.address()).unwrap();
            assert_eq!(found, code, "{trigger:?}");
            trigger.call(0);
            trigger.call(1000);
        }
    }
}
