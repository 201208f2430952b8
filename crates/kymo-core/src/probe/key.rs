//! Keys of probes: module and offset.
use std::fmt;

/// A module (a program or a library, as a file), by a number that the caller gives and never gives
/// to another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModuleId(pub u64);

/// Where a probe is: a place in a module, whatever address the module is at and however often it is
/// mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The file.
    pub module: ModuleId,
    /// The offset of the instruction in the file, in bytes.
    pub offset: u64,
}

impl Key {
    /// 64 bits of which the upper ones depend on all of the key.
    #[inline]
    pub(super) fn hash(self) -> u64 {
        // Multiplication by an odd constant with mixed bits; keys are offsets of functions, not
        // somebody's attack.
        (self.offset ^ self.module.0.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "module {} + {:#x}", self.module.0, self.offset)
    }
}

/// What is asked for: a probe, and the semaphore that says to its program that somebody listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Target {
    /// The place.
    pub key: Key,
    /// The offset, in the module, of a 16-bit count that is one higher for each armed probe that
    /// names it (USDT).
    pub semaphore: Option<u64>,
}

impl From<Key> for Target {
    fn from(key: Key) -> Target {
        Target { key, semaphore: None }
    }
}
