//! The table of tasks as another process sees it: a file in memory that the program writes when it
//! is asked.
//!
//! ```text
//!   /proc/PID/fd/N -> /memfd:kymo-tasks (deleted)
//!   0     header: magic, version, process, where to ask
//!   64    place 0: number of the frame, offset, bytes, checksum
//!   96    place 1: the same
//!   4096  frames, in turn in the two places
//! ```
//!
//! - F1: a frame is written where the reader does not look: the older of two places, whose number
//!   is cleared first and set last.
//! - F2: a reader that was overtaken sees another number afterwards, or a wrong checksum, and looks
//!   again.
//! - F3: whoever reads trusts nothing: sizes are bounded by [`MAX_FRAME_BYTES`], every text and
//!   number is checked, nothing is allocated by a claim. A frame that is wrong is refused with the
//!   byte where it goes wrong.
//!
//! To ask for a new frame one writes a byte into the pipe whose descriptor the header names. All
//! numbers are little-endian.
mod read;
#[cfg(test)]
mod tests;
mod write;

pub use read::{Frame, GroupRow, Header, Place, Refused, TaskRow, checked, frame, header};
pub use write::{encode, header_bytes, place_bytes};

/// The name of the file, as `memfd_create` gets it.
pub const NAME: &str = "kymo-tasks";
/// How the link in `/proc/PID/fd` begins.
pub const LINK: &str = "/memfd:kymo-tasks";
/// The first eight bytes.
pub const MAGIC: u64 = u64::from_le_bytes(*b"kymotask");
/// What this module reads and writes.
pub const VERSION: u32 = 1;
/// The header and both places.
pub const HEADER_BYTES: usize = 128;
/// Where the places begin, and how long each is.
pub const PLACES_AT: u64 = 64;
/// How long a place is.
pub const PLACE_BYTES: u64 = 32;
/// Where frames may begin.
pub const FRAMES_AT: u64 = 4096;
/// What a reader accepts at most: hundreds of thousands of tasks.
pub const MAX_FRAME_BYTES: u64 = 64 << 20;
/// Names are cut here, at a character.
pub const MAX_NAME_BYTES: usize = 255;
/// How many counters a group has at most.
pub const MAX_COUNTERS: usize = 64;

/// FNV-1a over words: it notices a frame that changed while it was read, not a liar's.
pub fn checksum(bytes: &[u8]) -> u64 {
    let mut sum = 0xcbf2_9ce4_8422_2325_u64;
    for word in bytes.chunks(8) {
        let mut padded = [0; 8];
        padded[..word.len()].copy_from_slice(word);
        sum = (sum ^ u64::from_le_bytes(padded)).wrapping_mul(0x0100_0000_01b3);
    }
    sum
}
