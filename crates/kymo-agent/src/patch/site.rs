//! A site: the bytes of a function that a jump replaces, and the instructions that these bytes
//! were.
use iced_x86::{FlowControl, Instruction};

/// The bytes of `jmp rel32`.
pub(crate) const JUMP_BYTES: usize = 5;

/// Where and how a function is to be patched: the result of [`plan`](super::plan).
#[derive(Clone, Debug)]
pub struct Site {
    /// The first byte that is replaced: of the function's first instruction, or of the one behind
    /// it, which stays then ([`plan`](super::plan)).
    pub address: u64,
    /// What events tell as their place: the function's begin, or the address of a place inside.
    pub(crate) place: u64,
    /// The bytes by which the instruction that stays has moved the stack pointer down.
    pub(crate) lowered: i32,
    /// Whether this is where the function begins: returns can be looked at only from there.
    pub(crate) entry: bool,
    pub(crate) original: [u8; JUMP_BYTES],
    /// The instructions that move into the stub, as they were decoded.
    pub(crate) displaced: Vec<Instruction>,
    /// Distances from `address`, 1 to 4, at which instructions begin that the jump overwrites.
    /// Threads may stand there.
    pub(crate) interiors: Vec<u8>,
}

impl Site {
    /// Whether the jump replaces one instruction only, so that no thread can stand inside its
    /// bytes.
    pub fn is_single_instruction(&self) -> bool {
        self.interiors.is_empty()
    }

    /// The bytes that a jump replaces.
    pub fn original(&self) -> [u8; JUMP_BYTES] {
        self.original
    }

    /// The first byte behind what is displaced, and behind the jump.
    pub fn end(&self) -> u64 {
        self.resume().max(self.address + JUMP_BYTES as u64)
    }

    /// Where instructions begin that the jump overwrites, but for the first one.
    pub fn interiors(&self) -> impl Iterator<Item = u64> {
        self.interiors.iter().map(|at| self.address + u64::from(*at))
    }

    /// The jump that takes the place of the original bytes; `None` where it does not reach `to`.
    pub fn jump(&self, to: u64) -> Option<[u8; JUMP_BYTES]> {
        let distance = to.wrapping_sub(self.address).wrapping_sub(JUMP_BYTES as u64) as i64;
        let distance = i32::try_from(distance).ok()?.to_le_bytes();
        Some([0xe9, distance[0], distance[1], distance[2], distance[3]])
    }

    /// Where the program goes on after the displaced instructions.
    pub(crate) fn resume(&self) -> u64 {
        self.displaced.last().map_or(self.address, Instruction::next_ip)
    }
}

pub(crate) fn is_call(instruction: &Instruction) -> bool {
    matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall)
}
