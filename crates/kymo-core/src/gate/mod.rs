//! A lock for what is read by everybody all the time and changed by somebody now and then.
//!
//! *You give* a value; *it gives* any number of readers `&T` at once, each for one addition and one subtraction on a cache line that
//! no other reader needs, or one writer `&mut T`, who waits for all of them.
//!
//! ```text
//!   lane 0 [  .  2 readers ]   lane 1 [  .  0 readers ]  ...     a reader adds one to its thread's lane: done
//!
//!   a writer:  takes the turn, sets the bar of each lane          [ bar  2 readers ]   [ bar  0 readers ]
//!              waits until every lane is a bar and nothing else   [ bar  0 readers ]   [ bar  0 readers ]
//!              works, lifts the bars, gives the turn back
//!   a reader that finds a bar: takes its one back, waits for the turn, adds its one, gives the turn back
//! ```
//!
//! A bar and the count of its lane are one word. So who comes first, the reader or the bar, is decided by one instruction on one
//! word, and there is no second flag that both sides would have to look at in the right order.
//!
//! *Use it* where writers are rare: a write touches every lane, and readers wait meanwhile. Where they are not, a plain `RwLock` is
//! smaller and as fast.
//!
//! # Invariants
//! - **G1** While a [`WriteGuard`] lives there is no other guard. Any number of [`ReadGuard`]s live together.
//! - **G2** What a writer did happens before what later guards see; what readers did (to atomics in the value) happens before what a
//!   later writer sees.
//! - **G3** A writer waits for the readers that were there when it set the bars, and for the attempt of those that find one: it is not
//!   starved by readers, however many keep coming.
//! - **G4** Without a writer a reader does two read-modify-writes on its lane and waits for nobody. It allocates nothing.
//! - **G5** A bar is set only by who has the turn, who lifts it before the turn ends. Thus no lane has a bar while someone else has
//!   the turn.
//!
//! # Not promised
//! An order among those that wait for the turn. A second read by a thread that reads already: it can meet a writer who waits for the
//! first one, for ever. A panic while writing is not remembered: the value must be sound at every point where that can happen.
//!
//! | store | load | why this order suffices |
//! |---|---|---|
//! | leave, Release | wait of a writer, Acquire | all that follows on a lane are read-modify-writes, so the last value carries every reader's work |
//! | bar lifted, Release | enter, Acquire | likewise: who enters later sees what the writer did |
//! | bar set, Relaxed | enter | one word: the reader sees the bar or is in its count. The turn orders writers among themselves |
//!
//! # Example
//! ```
//! use kymo_core::gate::Gate;
//!
//! let routes = Gate::new(vec!["a"]);
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
mod sync;
#[cfg(all(test, not(loom)))]
mod tests;

pub use engine::{Gate, ReadGuard, WriteGuard};
pub(crate) use sync::lane;
#[cfg(all(test, loom))]
pub(crate) use sync::stand_in_lane;
