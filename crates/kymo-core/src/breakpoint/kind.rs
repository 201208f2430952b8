//! What an access must be to hit a breakpoint, and which registers can watch for it.
use super::Error;
use std::fmt;

/// The accesses that hit a breakpoint, as bits: 1 read, 2 write, 4 execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kind(u8);

impl Kind {
    /// Reads of data.
    #[doc(alias = "HW_BREAKPOINT_R")]
    pub const READ: Kind = Kind(1);
    /// Writes of data.
    #[doc(alias = "HW_BREAKPOINT_W")]
    pub const WRITE: Kind = Kind(2);
    /// Reads and writes of data.
    #[doc(alias = "HW_BREAKPOINT_RW")]
    pub const READ_WRITE: Kind = Kind(3);
    /// The execution of an instruction.
    #[doc(alias = "HW_BREAKPOINT_X")]
    pub const EXECUTE: Kind = Kind(4);

    /// The kind with these bits, as in `bp_type` of the kernel's attributes.
    ///
    /// # Errors
    /// [`Error::BadKind`] for no access at all, for all three at once, and for bits that mean
    /// nothing.
    pub fn from_bits(bits: u32) -> Result<Kind, Error> {
        match bits {
            1..=6 => Ok(Kind(bits as u8)),
            _ => Err(Error::BadKind { bits }),
        }
    }

    /// The bits.
    pub fn bits(self) -> u32 {
        u32::from(self.0)
    }

    /// The registers that it needs. (Execution together with an access of data is a matter of data;
    /// no known hardware does it.)
    pub fn pool(self) -> Pool {
        if self.0 & Kind::READ_WRITE.0 == 0 { Pool::Instructions } else { Pool::Data }
    }
}

impl fmt::Display for Kind {
    /// `r`, `w`, `rw`, `x`, as in `mem:ADDRESS:rw`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (bit, letter) in [(Kind::READ, "r"), (Kind::WRITE, "w"), (Kind::EXECUTE, "x")] {
            if self.0 & bit.0 != 0 {
                f.write_str(letter)?;
            }
        }
        Ok(())
    }
}

/// Registers that are for the same kinds of breakpoints. Hardware has one pool for both
/// ([`Slots::Shared`](super::Slots::Shared)) or two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pool {
    /// For reads and writes.
    Data,
    /// For execution.
    Instructions,
}
