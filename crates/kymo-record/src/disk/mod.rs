//! Writing to the disk: several pieces in flight, short writes, retries, and a clear end.
//!
//! ```text
//!  records --> Landing: pieces of whole records --> Port (io_uring, several at once)  --> file
//!                 |                            \--> pwrite, one at a time            -->
//!                 +-- answers, in any order: short? the rest again. EINTR, EAGAIN, ENOSPC, EIO? again, so often. else: the end.
//!                 +-- header: tells only of what has landed without a gap
//! ```
//!
//! Invariants:
//! - D1: the header never tells of a byte that has not landed, in whatever order pieces land.
//! - D2: every sample that was appended is either in what the finished file tells of or in
//!   [`Finished::lost_samples`].
//! - D3: each piece is tried a bounded number of times; a disk that gives no answer at all is given
//!   up when the end was asked for (`silence.rs`).
mod landing;
mod port;
mod retry;
mod silence;
#[cfg(test)]
mod tests;

pub use retry::WriteError;
pub(crate) use silence::UnderWay;
pub use silence::{Silence, watch as watch_for_silence};

pub(crate) use landing::{Finished, Landing, count_samples};
pub(crate) use port::{Choice, open_port};
pub(crate) use retry::{Retrying, Stream};
