//! A sharded reader-writer lock (the kernel's "big-reader lock"): reads are frequent, writes are
//! rare.
//!
//! *You give* a value; *it gives* any number of readers `&T` at once, each for one addition and one
//! subtraction on a cache line that no other reader needs, or one writer `&mut T`, which waits for
//! all readers. The [breakpoint ledger](crate::breakpoint) uses all of it: tasks read, CPUs write.
//!
//! ```text
//!   shard 0 [ .  2 readers ]   shard 1 [ .  0 readers ]  ...     a reader adds one to its thread's shard: done
//!
//!   a writer:  locks the writer mutex, sets the writer bit of each shard     [ W  2 readers ]  [ W  0 readers ]
//!              waits until every shard is a writer bit and nothing else      [ W  0 readers ]  [ W  0 readers ]
//!              works, clears the writer bits, unlocks the writer mutex
//!   a reader that finds a writer bit: subtracts its one, locks the writer mutex, adds its one, unlocks
//! ```
//!
//! The writer bit and the reader count of a shard are one word. One instruction on one word
//! therefore decides whether the reader or the writer came first; no second flag needs an order.
//!
//! *Use it* where writers are rare: a write touches every shard, and readers wait meanwhile.
//! Elsewhere a plain `RwLock` is smaller and as fast.
//!
//! # Invariants
//! - **G1** While a [`WriteGuard`] lives there is no other guard. Any number of [`ReadGuard`]s live
//!   together.
//! - **G2** A writer's work happens before what later guards see. Readers' work (on atomics in the
//!   value) happens before what a later writer sees.
//! - **G3** A writer waits for the readers that it found when it set the writer bits, and for the
//!   attempt of each reader that finds one. Readers cannot starve it, however many keep coming.
//! - **G4** Without a writer a reader does two read-modify-writes on its shard and waits for
//!   nothing. It allocates nothing.
//! - **G5** Only the holder of the writer mutex sets a writer bit, and clears it before it unlocks.
//!   No shard has a writer bit while another thread holds the mutex.
//!
//! # Not promised
//! An order among threads that wait for the writer mutex. A second read by a thread that reads
//! already: it can deadlock with a writer that waits for the first read. A panic while writing does
//! not poison the lock: the value must be sound at every point where that can happen.
//!
//! | store | load | why this order suffices |
//! |---|---|---|
//! | leave, Release | wait of a writer, Acquire | all that follows on a shard are read-modify-writes, so the last value carries every reader's work |
//! | writer bit cleared, Release | enter, Acquire | likewise: a later reader sees the writer's work |
//! | writer bit set, Relaxed | enter | one word: the reader sees the bit or is in its count. The writer mutex orders writers |
//!
//! # Example
//! ```
//! use kymo_core::big_reader_lock::BigReaderLock;
//!
//! let routes = BigReaderLock::new(vec!["a"]);
//! std::thread::scope(|scope| {
//!     scope.spawn(|| assert_eq!(routes.read()[0], "a"));
//!     scope.spawn(|| routes.write().push("b"));
//! });
//! assert_eq!(*routes.read(), ["a", "b"]);
//! ```
mod engine;
#[cfg(all(test, loom))]
mod loom;
#[cfg(any(test, feature = "model"))]
pub mod model;
mod shard;
#[cfg(all(test, not(loom)))]
mod tests;

pub use engine::{BigReaderLock, ReadGuard, WriteGuard};
pub(crate) use shard::shard;
#[cfg(all(test, loom))]
pub(crate) use shard::stand_in_shard;
