//! The general registers of a thread on machines where none is ever read.
//!
//! Programs are entered on x86-64 only: elsewhere that is refused before a thread is held
//! ([`crate::inject`]). What works on registers compiles there all the same, against this.

/// By the names of x86-64; never filled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// r15
    pub r15: u64,
    /// r14
    pub r14: u64,
    /// r13
    pub r13: u64,
    /// r12
    pub r12: u64,
    /// Frame pointer.
    pub rbp: u64,
    /// rbx
    pub rbx: u64,
    /// r11
    pub r11: u64,
    /// r10
    pub r10: u64,
    /// r9
    pub r9: u64,
    /// r8
    pub r8: u64,
    /// Result.
    pub rax: u64,
    /// rcx
    pub rcx: u64,
    /// rdx
    pub rdx: u64,
    /// rsi
    pub rsi: u64,
    /// rdi
    pub rdi: u64,
    /// Number of the system call.
    pub orig_rax: u64,
    /// Instruction pointer.
    pub rip: u64,
    /// Code segment.
    pub cs: u64,
    /// Stack segment.
    pub ss: u64,
    /// Flags.
    pub eflags: u64,
    /// Stack pointer.
    pub rsp: u64,
    /// Thread pointer.
    pub fs_base: u64,
}
