//! Where functions really return to, kept aside for each thread while a probe's stub stands in the
//! return address.
//!
//! ```text
//!   the thread's stack                    its shadow stack (4 KiB, in one region for all threads)
//!   |  ...            |                   |  sentinel: no room       |
//!   |  return address | = the stub        |  entry 2                 | <- top (a thread-local word)
//!   |  ...            |                   |  entry 1: where, whereto |
//!   |  return address | = the stub        |  bottom                  |
//! ```
//!
//! An entry is found by the address of the return slot ("where"), which is unique in the process:
//! so it does not matter which thread returns, or in which order. The order only makes it fast: a
//! stub looks at the top first. This is how each departure from calls and returns is survived:
//!
//! - **longjmp, exceptions**: entries of frames that are gone lie above the caller's. The next
//!   entry finds them on top, below its own stack pointer, and drops them: for good where their
//!   slots are overwritten, else on the same stack only, and not quite (`../stale_frames.rs`).
//! - **coroutines, signal stacks**: an entry on another stack whose slot still holds the stub is
//!   left where it is.
//! - **a coroutine that returns on another thread**: its entry is searched in all shadow stacks.
//! - **recursion deeper than 64**, or entries that pile up: the call is counted, its return is not
//!   looked at.
//! - **fork**: the child has a copy of both stacks. **Thread exit**: shadow stacks of dead threads
//!   are found and taken again, first of all by a thread that has the dead one's stack, for what
//!   was left of that one has the same slots; but for those in which a coroutine's call is still
//!   waited for.
//! - **signals**: an entry is filled first and becomes the top then. Of a handler that interrupts
//!   that, the calls use the same entry as long as it is free, and lie above it from its key on,
//!   which the stub stores first. One that interrupts a return finds the entry free, and the top
//!   goes below it in any case. What a handler that does not come back has interrupted lies on top
//!   or above it, with a key that tells its slot: it goes as what longjmps leave. One that drops
//!   what the interrupted stub took for its caller leaves a free entry below that stub's, until it
//!   returns: then it is on top, and dropped.
//!
//! `page.rs` has the stacks and their entries, `return_slot.rs` looks at the words that they are
//! about, `claim.rs` gives threads theirs, `calls.rs` has what stubs call at entries and returns.
//! These run anywhere, so they take no lock, allocate nothing and call no library.
pub(crate) mod calls;
pub(crate) mod claim;
pub(crate) mod page;
pub(crate) mod return_slot;
