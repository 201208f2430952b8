//! Ranges of memory to watch, and the registers that they take.
use kymo_core::breakpoint::Kind;
use std::fmt;

/// The most bytes that one register covers.
const REGISTER_BYTES: u64 = 8;

/// The most registers that one range may take: beyond that each would be armed for so short a time
/// that it finds nothing.
const MOST_REGISTERS: usize = 64;

/// Addresses from here on are the kernel's.
const KERNEL_FROM: u64 = 1 << 63;

/// Some bytes of a process, and the accesses that are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first byte.
    pub address: u64,
    /// How many bytes.
    pub bytes: u64,
    /// Which accesses.
    pub kind: Kind,
}

/// Why a range cannot be watched by any hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RangeError {
    /// There is nothing to watch, or so much that it takes more registers than can take turns.
    #[error("{} bytes cannot be watched: a place has at least one, and at most {} ({MOST_REGISTERS} registers of {REGISTER_BYTES} bytes)", .0, MOST_REGISTERS as u64 * REGISTER_BYTES)]
    Length(u64),
    /// It runs over the end of the addresses.
    #[error("{bytes} bytes from {address:#x} reach beyond the last address")]
    Beyond {
        /// The address.
        address: u64,
        /// The length.
        bytes: u64,
    },
}

/// The longest length that an address is aligned to.
fn fitting(address: u64) -> u64 {
    1 << address.trailing_zeros().min(3)
}

/// What one register is set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchedPiece {
    /// The first byte.
    pub address: u64,
    /// 1, 2, 4 or 8.
    pub bytes: u64,
    /// Which accesses.
    pub kind: Kind,
}

impl Range {
    /// Whether it is the kernel's memory.
    pub fn is_kernel(&self) -> bool {
        self.address >= KERNEL_FROM
    }

    /// The registers that it takes, in the order of addresses.
    ///
    /// # Errors
    /// [`RangeError`].
    pub(crate) fn pieces(&self) -> Result<Vec<WatchedPiece>, RangeError> {
        let Range { address, bytes, kind } = *self;
        if kind == Kind::EXECUTE {
            // The kernel wants this length for instructions, whatever their own.
            return Ok(vec![WatchedPiece { address, bytes: instruction_bytes(), kind }]);
        }
        let end = address.checked_add(bytes).ok_or(RangeError::Beyond { address, bytes })?;
        if bytes == 0 || bytes > MOST_REGISTERS as u64 * REGISTER_BYTES {
            return Err(RangeError::Length(bytes));
        }
        let mut pieces = Vec::new();
        let mut at = address;
        while at < end {
            let mut bytes = fitting(at);
            while at + bytes > end {
                bytes /= 2;
            }
            pieces.push(WatchedPiece { address: at, bytes, kind });
            at += bytes;
        }
        Ok(pieces)
    }
}

fn instruction_bytes() -> u64 {
    if cfg!(target_arch = "aarch64") { 4 } else { size_of::<usize>() as u64 }
}

impl WatchedPiece {
    /// The first byte behind it.
    pub fn end(&self) -> u64 {
        self.address.saturating_add(self.bytes)
    }

    /// Whether it covers all of another one, for the same accesses or more.
    pub(crate) fn covers(&self, other: &WatchedPiece) -> bool {
        self.address <= other.address
            && other.end() <= self.end()
            && self.kind.pool() == other.kind.pool()
            && self.kind.bits() & other.kind.bits() == other.kind.bits()
    }

    /// The one register that covers exactly these two, if there is one: neighbours that together
    /// are aligned.
    pub(crate) fn joined(&self, other: &WatchedPiece) -> Option<WatchedPiece> {
        let (low, high) = if self.address <= other.address { (self, other) } else { (other, self) };
        let bytes = low.bytes + high.bytes;
        let fits = low.end() == high.address
            && bytes <= REGISTER_BYTES
            && bytes.is_power_of_two()
            && low.address.is_multiple_of(bytes);
        let data = low.kind != Kind::EXECUTE && high.kind != Kind::EXECUTE;
        let kind = Kind::from_bits(low.kind.bits() | high.kind.bits()).ok()?;
        (fits && data).then_some(WatchedPiece { address: low.address, bytes, kind })
    }
}

impl fmt::Display for WatchedPiece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}:{}:{}", self.address, self.bytes, self.kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pieces(address: u64, bytes: u64) -> Result<Vec<(u64, u64)>, RangeError> {
        let range = Range { address, bytes, kind: Kind::WRITE };
        Ok(range.pieces()?.iter().map(|piece| (piece.address, piece.bytes)).collect())
    }

    /// Checks what one register covers, what takes several, and what is too much.
    #[test]
    fn lengths() {
        assert_eq!(pieces(0x1008, 8), Ok(vec![(0x1008, 8)]));
        assert_eq!(pieces(0x1000, 16), Ok(vec![(0x1000, 8), (0x1008, 8)]));
        assert_eq!(pieces(0x1006, 13), Ok(vec![(0x1006, 2), (0x1008, 8), (0x1010, 2), (0x1012, 1)]));
        assert_eq!(pieces(0x1003, 4), Ok(vec![(0x1003, 1), (0x1004, 2), (0x1006, 1)]));
        for bad in [0, 513] {
            assert_eq!(pieces(0x1000, bad), Err(RangeError::Length(bad)));
        }
        assert_eq!(pieces(u64::MAX - 3, 8), Err(RangeError::Beyond { address: u64::MAX - 3, bytes: 8 }));
    }

    /// Checks that only neighbours that one aligned register covers are joined, and never with a
    /// break at an instruction.
    #[test]
    fn joining() {
        let piece = |address, bytes, kind| WatchedPiece { address, bytes, kind };
        let low = piece(0x1000, 4, Kind::WRITE);
        let joined = low.joined(&piece(0x1004, 4, Kind::READ_WRITE));
        assert_eq!(joined, Some(piece(0x1000, 8, Kind::READ_WRITE)));
        assert_eq!(piece(0x1004, 4, Kind::WRITE).joined(&piece(0x1008, 4, Kind::WRITE)), None, "not aligned");
        assert_eq!(low.joined(&piece(0x1005, 1, Kind::WRITE)), None, "a hole");
        assert_eq!(low.joined(&piece(0x1004, 4, Kind::EXECUTE)), None);
        assert_eq!(piece(0x1000, 8, Kind::WRITE).joined(&piece(0x1008, 8, Kind::WRITE)), None, "too long");
        assert!(piece(0x1000, 8, Kind::READ_WRITE).covers(&low));
        assert!(!low.covers(&piece(0x1000, 4, Kind::READ_WRITE)));
    }

    proptest! {
        /// Checks that pieces cover the range exactly, each aligned as a register must be.
        #[test]
        fn exact(address in 0x1000u64..0x2000, bytes in 1u64..512) {
            let pieces = Range { address, bytes, kind: Kind::WRITE }.pieces().unwrap();
            let mut at = address;
            for piece in pieces {
                prop_assert_eq!(piece.address, at);
                prop_assert!([1, 2, 4, 8].contains(&piece.bytes) && at.is_multiple_of(piece.bytes));
                at = piece.end();
            }
            prop_assert_eq!(at, address + bytes);
        }
    }
}
