//! Watching memory: a handler is called at every access, in the thread that did it, before its next
//! instruction.
//!
//! *You give* an address, a length, what to watch for, and a handler. *It gives* a [`Guard`]; until
//! that is dropped, each access by any thread, those included that do not exist yet, calls the
//! handler with who, where, and the value before and after. It is what race detectors and heap
//! checkers are made of: nothing is slower but the accesses themselves.
//!
//! ```
//! use kymo_agent::watch::{Kind, watch};
//! use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
//!
//! static FLAG: AtomicU32 = AtomicU32::new(1);
//! static CLEARED_BY: AtomicU64 = AtomicU64::new(0);
//!
//! let on_hit = |hit: &kymo_agent::watch::Hit| {
//!     if hit.new == Some(0) {
//!         CLEARED_BY.store(hit.thread as u64, Relaxed);
//!     }
//! };
//! let guard = match watch(&raw const FLAG as usize, 4, Kind::WRITE, on_hit) {
//!     Ok(guard) => guard,
//!     // No breakpoints here, or not permitted: the error says it in a sentence.
//!     Err(error) => return eprintln!("{error}"),
//! };
//! std::thread::spawn(|| FLAG.store(0, Relaxed)).join().unwrap();
//! assert_ne!(CLEARED_BY.load(Relaxed), 0);
//! assert_eq!(guard.hits(), 1);
//! ```
//!
//! # How it works
//! The processor compares addresses; four of them on x86-64. A perf event in every thread holds one
//! of its registers and sends SIGTRAP to the thread that hits it (`sigtrap`), at once; new threads
//! inherit it. What a slot is aimed at is changed in place, for all threads by one call.
//!
//! ```text
//!   watch()    ledger: a slot left? -> pool: which -> slot.rs: what the handler reads -> kernel: aim every thread's event
//!   access     SIGTRAP -> trap.rs -> slot.rs: still watched? -> your handler, in the thread that did it
//!   drop       slot.rs: nobody begins -> kernel: aim at nothing -> wait for handlers -> ledger
//! ```
//!
//! # Guarantees
//! - **W1** Every access in user code by every thread is told once, unless that thread blocks
//!   SIGTRAP ([`Hit::synchronous`]) or was made at the very moment at which the watch started. What
//!   the kernel writes for a program (`read`) is not seen.
//! - **W2** No handler runs for a watch after its guard was dropped. Dropped in a handler, those
//!   that run in other threads end later.
//! - **W3** A watch too many is refused before the kernel is asked, and a refusal leaves nothing
//!   armed.
//! - **W4** A SIGTRAP that is not ours reaches whoever handled SIGTRAP before, as if we were not
//!   there.
//! - **W5** A process that is forked or executed is not watched. A forked child cannot watch; the
//!   parent's watches go on.
//!
//! # Your responsibilities
//! A handler interrupts anything, a thread that is allocating or holds a lock included. It may only
//! do what is async-signal-safe: atomics, memory that is there, plain system calls. No allocation,
//! no lock, no printing, no panic (a panic ends the process). What it accesses itself is not told.
//! It runs on the thread's own stack and needs some 4 KB there.
//!
//! An instruction that hits watches of different bytes is told to one of them: the kernel sends one
//! signal. Watches of the same bytes are all told.
//!
//! # Non-goals
//! Memory of other processes: that is `kymo watch`.
mod error;
mod events;
mod hit;
mod nesting;
mod pool;
mod slot;
mod threads;
mod trap;

pub use error::Error;
pub use hit::Hit;
pub use kymo_core::breakpoint::Kind;

use crate::sys::{clock, fork};
use nesting::INSIDE;
use slot::{Callback, Range};

/// Calls `handler` at each access to `len` bytes (1, 2, 4 or 8) at `address`, a multiple of `len`,
/// by any thread of this process.
///
/// From any thread, many at a time; not in a handler. The first watch, and the first with one slot
/// more than ever before, opens an event in each thread that exists (some microseconds each); after
/// that a watch is one system call, which takes longer with more threads. For [`Kind::EXECUTE`] the
/// address is that of an instruction, and `len` is not looked at.
///
/// The handler must be async-signal-safe, see the [module](self#your-responsibilities).
///
/// # Errors
/// A sentence that says what is wrong and what to do: no slot left, a range that no slot holds, no
/// permission, a forked child. Nothing is armed then.
pub fn watch<H>(address: usize, len: usize, kind: Kind, handler: H) -> Result<Guard, Error>
where
    H: Fn(&Hit) + Send + Sync + 'static,
{
    let range = range(address, len, kind)?;
    pool::start(range, Box::new(Callback(Box::new(handler)))).map(Guard)
}

/// What a slot can hold.
fn range(address: usize, len: usize, kind: Kind) -> Result<Range, Error> {
    let reads_alone = kind == Kind::READ && cfg!(target_arch = "x86_64");
    let data_and_code = kind.bits() > Kind::EXECUTE.bits();
    if reads_alone || data_and_code {
        return Err(Error::Unsupported { kind });
    }
    // What x86 wants, whatever the instruction; arm wants 4.
    let len = match kind {
        Kind::EXECUTE if cfg!(target_arch = "x86_64") => 8,
        Kind::EXECUTE => 4,
        _ => len,
    };
    if !matches!(len, 1 | 2 | 4 | 8) {
        return Err(Error::BadLen { len });
    }
    if kind != Kind::EXECUTE && !address.is_multiple_of(len) {
        return Err(Error::Unaligned { address, len });
    }
    // The upper half is the kernel's; the last bytes of the lower one belong to nobody.
    if address == 0 || address > isize::MAX as usize - len {
        return Err(Error::NotOurs { address });
    }
    Ok(Range { address: address as u64, len_bytes: len, kind })
}

/// Whether the calling thread runs a handler of a watch.
pub(crate) fn in_handler() -> bool {
    INSIDE.has(clock::own_tid())
}

/// Closes the slots that no watch uses now, so that debuggers and profilers can have them; how
/// many. The next watches open them again. If none is in use, the next one also counts anew how
/// many there are: what others held may be free.
pub fn release_slots() -> usize {
    pool::release()
}

/// A watch, until it is dropped.
///
/// Dropping it waits until no handler of it runs, so do not hold then what a handler waits for. In
/// a handler it does not wait.
#[derive(Debug)]
#[must_use = "a guard that is dropped ends its watch"]
pub struct Guard(u64);

impl Guard {
    /// How often it was hit so far.
    pub fn hits(&self) -> u64 {
        Guard::hits_of(self.0)
    }

    fn hits_of(number: u64) -> u64 {
        slot::slot_of(number).and_then(|slot| slot::slot(slot).hits(number)).unwrap_or(0)
    }

    /// Ends the watch, waits for its handlers, and says how often it was hit. As dropping it.
    pub fn stop(self) -> u64 {
        let number = self.into_number();
        if in_handler() {
            events::stop_in_handler(number);
            return Guard::hits_of(number);
        }
        // A watch that a handler stopped may have been cleared by somebody else.
        pool::finish(number).unwrap_or_else(|| Guard::hits_of(number))
    }

    /// The number of the watch, for those who cannot keep a guard ([`stop`]). The watch goes on.
    pub fn into_number(self) -> u64 {
        std::mem::ManuallyDrop::new(self).0
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Nobody else has this watch; that a handler ended it before is no mistake.
        let _ = stop(self.0);
    }
}

/// Ends the watch of this number as dropping its guard would.
///
/// # Errors
/// [`Error::Unknown`] if it was ended before; [`Error::Forked`].
pub fn stop(number: u64) -> Result<(), Error> {
    if fork::is_child() {
        return Err(Error::Forked);
    }
    let stopped = if INSIDE.has(clock::own_tid()) {
        events::stop_in_handler(number)
    } else {
        pool::finish(number).is_some()
    };
    if stopped { Ok(()) } else { Err(Error::Unknown { number }) }
}
