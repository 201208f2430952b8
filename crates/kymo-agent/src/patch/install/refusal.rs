//! Why a function cannot be patched, each with its sentence.
use std::fmt;

/// What stands against patching a function; the kernel's uprobe can serve it instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields say what they are")]
pub enum Refusal {
    /// The symbol has no bytes.
    Empty,
    /// The function's bytes end before its symbol says so, or are not mapped: the first one that is
    /// not there.
    NotThere { at: u64 },
    /// It ends, after so many bytes, before a jump ends, and what follows is not padding.
    TooShort { bytes: u64 },
    /// Bytes that are no instruction.
    Undecodable { at: u64 },
    /// A branch of the program leads there, into the bytes that the jump would take.
    JumpInto { to: u64 },
    /// A call whose return would come back into the jump's bytes.
    CallInside { at: u64 },
    /// An instruction that does something else from another place.
    Unmovable { at: u64 },
    /// A breakpoint that is there already, a debugger's or the kernel's.
    TrapInside { at: u64 },
    /// No instruction begins at the address.
    NotAnInstruction { at: u64 },
    /// The function jumps to addresses that it computes, which may be inside the bytes that the
    /// jump would take.
    ComputedJumps { function: u64 },
    /// The bytes that the jump would take go beyond an end of the function's flow; what follows may
    /// be come to by unknown ways.
    FlowEnds { at: u64 },
    /// The site is not the function's entry, and its return is wanted.
    NotTheEntry { at: u64 },
    /// A call may end there by a jump to another function, and what it returns is wanted.
    EndsByJump { at: u64 },
    /// No room for a stub within 2 GiB of the site and of the data that its instructions use.
    OutOfReach { at: u64 },
}

impl Refusal {
    /// One word for tables and JSON.
    pub fn word(&self) -> &'static str {
        match self {
            Refusal::Empty => "empty",
            Refusal::NotThere { .. } => "not-there",
            Refusal::TooShort { .. } => "too-short",
            Refusal::Undecodable { .. } => "undecodable",
            Refusal::JumpInto { .. } => "jump-into",
            Refusal::CallInside { .. } => "call-inside",
            Refusal::Unmovable { .. } => "unmovable",
            Refusal::TrapInside { .. } => "trap-inside",
            Refusal::NotAnInstruction { .. } => "not-an-instruction",
            Refusal::ComputedJumps { .. } => "computed-jumps",
            Refusal::FlowEnds { .. } => "flow-ends",
            Refusal::NotTheEntry { .. } => "not-the-entry",
            Refusal::EndsByJump { .. } => "ends-by-jump",
            Refusal::OutOfReach { .. } => "out-of-reach",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Empty => write!(f, "its symbol has no bytes"),
            Refusal::NotThere { at } => write!(f, "its bytes end at {at:#x}, before its symbol says so"),
            Refusal::TooShort { bytes } => {
                write!(f, "it has {bytes} bytes and no padding behind them, a jump needs five")
            }
            Refusal::Undecodable { at } => write!(f, "the bytes at {at:#x} are no instruction"),
            Refusal::JumpInto { to } => {
                write!(f, "the program jumps to {to:#x}, into the five bytes that would be replaced")
            }
            Refusal::CallInside { at } => {
                write!(f, "the call at {at:#x} would return into the five bytes that would be replaced")
            }
            Refusal::Unmovable { at } => {
                write!(f, "the instruction at {at:#x} does not work from another place")
            }
            Refusal::TrapInside { at } => {
                write!(
                    f,
                    "there is a breakpoint at {at:#x} already; end the debugger or the kernel's probe there"
                )
            }
            Refusal::NotAnInstruction { at } => write!(f, "no instruction begins at {at:#x}"),
            Refusal::ComputedJumps { function } => {
                write!(
                    f,
                    "the function at {function:#x} jumps to addresses that it computes, perhaps into the five bytes that would be replaced"
                )
            }
            Refusal::FlowEnds { at } => {
                write!(
                    f,
                    "the bytes that would be replaced go beyond the instruction at {at:#x}, which does not go on behind itself"
                )
            }
            Refusal::NotTheEntry { at } => {
                write!(f, "{at:#x} is not the function's entry; its return can be looked at only from there")
            }
            Refusal::EndsByJump { at } => {
                write!(
                    f,
                    "it may end by a jump to another function (at {at:#x}), and a condition of what it returns cannot be seen there"
                )
            }
            Refusal::OutOfReach { at } => {
                write!(f, "there is no free memory within 2 GiB of {at:#x} for the probe's code")
            }
        }
    }
}

impl std::error::Error for Refusal {}
