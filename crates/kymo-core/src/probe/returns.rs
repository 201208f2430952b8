//! The calls of one thread whose returns are awaited.
use super::instance::{Cookies, Frame, Instance};
use super::key::Key;
use std::fmt;

/// How many returns of one thread are awaited at once. Those of calls beyond it are not traced.
pub const DEPTH: usize = 64;

/// What to do with the return address of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hijack {
    /// Put the trampoline's address into the slot.
    Write,
    /// It is there already (a tail call, or several probes at one entry).
    Chained,
}

/// Why the return of a call is not traced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Untraced {
    /// [`DEPTH`] returns are awaited.
    TooDeep,
    /// The slot holds the trampoline's address, but nobody put it there for a call of this thread at this place: a stack that was
    /// copied or moved. Where it would return to is not known.
    Unknown,
}

/// What was awaited.
#[derive(Debug)]
pub(super) struct Popped {
    pub(super) key: Key,
    pub(super) return_address: u64,
    pub(super) chained: bool,
    pub(super) cookies: Cookies,
}

/// The awaited returns of a thread, oldest first. 8 KiB, allocates nothing.
///
/// The thread's own: a signal handler that interrupts a call of one of its methods must not call another one.
#[derive(Clone)]
pub struct Returns {
    trampoline: u64,
    len: usize,
    of: [Instance; DEPTH],
}

impl Returns {
    /// None awaited. `trampoline` is the address that is put into slots.
    pub const fn new(trampoline: u64) -> Returns {
        Returns { trampoline, len: 0, of: [Instance::NONE; DEPTH] }
    }

    /// How many returns are awaited.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no return is awaited.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The awaited returns, oldest first.
    pub fn instances(&self) -> &[Instance] {
        &self.of[..self.len]
    }

    /// What was in a slot before the trampoline's address: for who walks the stack.
    pub fn original(&self, slot: u64) -> Option<u64> {
        self.instances()
            .iter()
            .rev()
            .find(|instance| instance.slot == slot)
            .map(|instance| instance.return_address)
    }

    /// Forgets all: after every slot was given its address back.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Awaits the return of a call. Calls that were left by longjmp or an exception are forgotten first.
    #[inline]
    pub(super) fn push(&mut self, key: Key, frame: Frame, cookies: &Cookies) -> Result<Hijack, Untraced> {
        let hijacked = frame.return_address == self.trampoline;
        if self.len > 0 {
            self.forget_dead(&frame, hijacked);
        }
        let (chained, return_address) = if hijacked {
            (true, self.original(frame.slot).ok_or(Untraced::Unknown)?)
        } else {
            (false, frame.return_address)
        };
        let place = self.of.get_mut(self.len).ok_or(Untraced::TooDeep)?;
        (place.key, place.slot, place.return_address) = (key, frame.slot, return_address);
        (place.stack, place.chained) = (frame.stack, chained);
        place.cookies.copy(cookies);
        self.len += 1;
        Ok(if chained { Hijack::Chained } else { Hijack::Write })
    }

    /// Takes the newest awaited return out whose slot is `slot`, and forgets the calls that it went past. The one with
    /// `is_chained() == false` is the last of the slot.
    #[inline]
    pub(super) fn pop(&mut self, slot: u64) -> Option<Popped> {
        let at = self.instances().iter().rposition(|instance| instance.slot == slot)?;
        let instance = &self.of[at];
        let mut popped = Popped {
            key: instance.key,
            return_address: instance.return_address,
            chained: instance.chained,
            cookies: Cookies::default(),
        };
        popped.cookies.copy(&instance.cookies);
        if at + 1 == self.len {
            self.len = at;
        } else {
            self.close_up(at);
        }
        Some(popped)
    }

    /// Takes one out of the middle. What is above it and on the same stack, below its slot, was left without a return. On other stacks it
    /// goes on.
    #[cold]
    fn close_up(&mut self, at: usize) {
        let (slot, stack) = (self.of[at].slot, self.of[at].stack);
        let mut kept = at;
        for above in at + 1..self.len {
            let instance = self.of[above];
            if !(stack.is_some() && instance.stack == stack && instance.slot < slot) {
                self.of[kept] = instance;
                kept += 1;
            }
        }
        self.len = kept;
    }

    /// A call at `frame` shows that these are gone: on the same stack, those whose slot lies deeper than the call's, or is the call's
    /// but holds somebody else's return address; on any stack the latter.
    #[inline]
    fn forget_dead(&mut self, frame: &Frame, hijacked: bool) {
        let is_dead = |instance: &Instance| {
            (instance.slot == frame.slot && !hijacked)
                || (instance.slot < frame.slot && frame.stack.is_some() && instance.stack == frame.stack)
        };
        // The usual case: the caller is the newest, alive and of the same stack; then all older ones of this stack are alive, too.
        let newest = &self.of[self.len - 1];
        if !(frame.stack.is_some() && newest.stack == frame.stack && newest.slot > frame.slot) {
            self.forget_all_dead(is_dead);
        }
    }

    #[cold]
    fn forget_all_dead(&mut self, is_dead: impl Fn(&Instance) -> bool) {
        let mut kept = 0;
        for at in 0..self.len {
            if !is_dead(&self.of[at]) {
                if kept != at {
                    self.of[kept] = self.of[at];
                }
                kept += 1;
            }
        }
        self.len = kept;
    }
}

impl fmt::Debug for Returns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Returns").field("instances", &self.instances()).finish_non_exhaustive()
    }
}
