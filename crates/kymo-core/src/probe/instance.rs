//! A call whose return is awaited.
use super::key::Key;

/// How many consumers of one call can have a cookie. The return handler of a further one does not run for that call.
pub const COOKIES: usize = 4;

/// The number of a registration: never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConsumerId(pub(super) u64);

/// What entry handlers left for their return handlers.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cookies {
    len: u8,
    of: [(u64, u64); COOKIES],
}

impl Cookies {
    /// Whether there was room.
    pub(super) fn put(&mut self, id: ConsumerId, cookie: u64) -> bool {
        let Some(place) = self.of.get_mut(usize::from(self.len)) else { return false };
        *place = (id.0, cookie);
        self.len += 1;
        true
    }

    /// Takes over what another one has. Done at each call: all of it or nothing is fewer instructions than as much as there is.
    #[inline]
    pub(super) fn copy(&mut self, other: &Cookies) {
        self.len = other.len;
        if other.len > 0 {
            self.of = other.of;
        }
    }

    pub(super) fn get(&self, id: ConsumerId) -> Option<u64> {
        self.of[..usize::from(self.len)].iter().find(|(of, _)| *of == id.0).map(|(_, cookie)| *cookie)
    }
}

/// A stack, by any number that its addresses have in common (its lowest address, say).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StackId(pub u64);

/// The frame of a call as its first instruction finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// The address of the word that holds the return address: the stack pointer at the first instruction on x86-64.
    pub slot: u64,
    /// What is in that word.
    pub return_address: u64,
    /// The stack that the slot is on, if the caller knows for certain. On unknown stacks nothing is ever concluded from the order of
    /// addresses.
    pub stack: Option<StackId>,
}

/// One awaited return of one probe.
#[derive(Debug, Clone, Copy)]
pub struct Instance {
    pub(super) key: Key,
    pub(super) slot: u64,
    pub(super) return_address: u64,
    pub(super) stack: Option<StackId>,
    pub(super) chained: bool,
    pub(super) cookies: Cookies,
}

impl Instance {
    /// The probe that was hit.
    pub fn key(&self) -> Key {
        self.key
    }

    /// Where the return address was on the stack.
    pub fn slot(&self) -> u64 {
        self.slot
    }

    /// Where control resumes: what was in the slot before any probe.
    pub fn return_address(&self) -> u64 {
        self.return_address
    }

    /// Whether an older instance has the same slot and completes with this one.
    pub fn is_chained(&self) -> bool {
        self.chained
    }

    pub(super) const NONE: Instance = Instance {
        key: Key { module: super::key::ModuleId(0), offset: 0 },
        slot: 0,
        return_address: 0,
        stack: None,
        chained: false,
        cookies: Cookies { len: 0, of: [(0, 0); COOKIES] },
    };
}
