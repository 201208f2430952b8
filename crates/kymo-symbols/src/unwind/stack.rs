//! The bytes of a stack.

use super::stats::Stop;

/// The recorded stack: bytes from the sampled stack pointer upwards.
#[derive(Clone, Copy)]
pub(super) struct Stack<'a> {
    pub(super) start: u64,
    pub(super) bytes: &'a [u8],
}

impl Stack<'_> {
    #[inline]
    pub(super) fn word(&self, address: u64) -> Option<u64> {
        let at = usize::try_from(address.wrapping_sub(self.start)).ok()?;
        let bytes = self.bytes.get(at..at.checked_add(8)?)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }

    /// Why a word could not be read: what lies above the recorded bytes, in the range of an
    /// ordinary stack, was cut off by the size of the recording.
    pub(super) fn why_unreadable(&self, address: u64) -> Stop {
        /// The usual limit of a stack (`ulimit -s`).
        const STACK_BYTES: u64 = 8 << 20;
        if address.wrapping_sub(self.start) < STACK_BYTES { Stop::StackEnd } else { Stop::Unreadable }
    }
}
