//! Handing things from threads that must never wait to threads that may: a bounded queue, an inbox
//! of many queues, and a pool of buffers for the way back.
//!
//! *You give* each producer an [`Outbox`], the one consumer the [`Inbox`], and both a [`Pool`];
//! *they give* you transfers in which no thread ever depends on another one being scheduled.
//! Sleeping and waking are the caller's: [`Outbox::send`] says when the consumer must be woken.
//! `kymo-record` uses all of it, between drains, reducer and writer.
//!
//! ```text
//!  producer 0 --[ queue ]--.   ready bits: 0 1 1 0 ...
//!  producer 1 --[ queue ]---+-----------------------> consumer (visits the queues whose bit is set)
//!  producer 2 --[ queue ]--'                             |
//!       ^                                                |
//!       '-------- Pool: a stack of free buffers <--------'
//! ```
//!
//! # Why not any bounded channel
//! Most array queues let a thread claim a place and fill it later; whoever meets the claimed place
//! spins until that is done. Where the claimer has a lower real-time priority and sits on the same
//! CPU, it is never run again, and the spinner spins for ever. That was seen here: two drains at
//! SCHED_FIFO 2 spun for a buffer that the reducer at SCHED_FIFO 1 was about to give back, and held
//! both CPUs of the machine. Here a place is claimed and filled by the same store (queue), or
//! claimed whole (pool).
//!
//! # Invariants
//! - I1: what is sent arrives once, whole, in the order in which its producer sent it; nothing is
//!   lost when either end is dropped first, except what nobody is left to receive.
//! - I2: [`Outbox::send`], [`Inbox::receive`] and the ends of a queue are wait-free: a number of
//!   steps that no other thread can raise.
//! - I3: [`Pool::take`] and [`Pool::give`] are lock-free: a step is repeated only if another thread
//!   has completed one meanwhile, and so never because one was interrupted in the middle.
//! - I4: nothing allocates after it was made.
//! - I5: a consumer that sleeps only after [`Inbox::may_sleep`] said yes is woken for everything
//!   that is sent from then on, if who sends wakes it as [`Outbox::send`] says.
//! - I6: a pool never holds more than its capacity, and each thing in it is given out once.
mod inbox;
#[cfg(all(test, loom))]
mod loom;
#[cfg(all(test, not(loom)))]
mod model;
mod pool;
mod queue;
mod slot;
#[cfg(all(test, not(loom)))]
mod tests;

pub use inbox::{Inbox, Next, Outbox, Wake, inbox};
pub use pool::Pool;
pub use queue::{Consumer, Producer, queue};
