//! [`FollowedBitmap`]: the set of processes that were ever followed.
//!
//! Records about processes (names, mappings, forks) are written by the kernel for all of the
//! machine, and what reads them is behind: when a record arrives its process may have ended, and
//! who is followed *now* says nothing about it. So a bit that is set once and never cleared is kept
//! for each process id, in memory that the programs write and we read.
use super::sys::{self, MapFd, SharedWords};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The most that the kernel takes as `pid_max`.
const PID_MAX_LIMIT: u32 = 1 << 22;

/// Which bit of which word stands for a process.
fn place(id: u32) -> (usize, u64) {
    ((id / u64::BITS) as usize, 1 << (id % u64::BITS))
}

/// The processes that were ever followed, as a set of bits in memory that is shared with the
/// kernel.
///
/// Whoever reads a record of a followed process finds its bit set, however late, with two
/// exceptions (see [`FollowedBitmap::contains`]).
#[derive(Clone, Debug)]
pub struct FollowedBitmap(Arc<SharedWords>);

impl FollowedBitmap {
    /// Whether a process of this id has been followed since the start. No system call and no lock.
    /// An id that was used again is still in; so is every id beyond the largest that could be given
    /// out when following began. The kernel's own (0 and less) are never in.
    ///
    /// FORK and NAMESPACES records about a child that is being made may be read a moment before it
    /// is in; its maker is in then.
    pub fn contains(&self, pid: i32) -> bool {
        let Some(id) = u32::try_from(pid).ok().filter(|&id| id != 0) else { return false };
        let (word, bit) = place(id);
        // Relaxed: the bit was set before the record was, and whoever handed us the record has
        // ordered that.
        self.0.words().get(word).is_none_or(|word| word.load(Ordering::Relaxed) & bit != 0)
    }
}

/// The bits, from our side.
#[derive(Debug)]
pub(super) struct SharedBitmap {
    /// Until the programs are loaded; the mapping keeps the memory.
    map: Option<MapFd>,
    bits: FollowedBitmap,
}

impl SharedBitmap {
    /// A bit for every id that can be given out.
    ///
    /// # Errors
    /// EINVAL before Linux 5.5, and what else the kernel says.
    pub(super) fn new() -> io::Result<SharedBitmap> {
        let (map, shared) = sys::create_shared(words(pid_max()), sys::name("kymo_ever"))?;
        Ok(SharedBitmap { map: Some(map), bits: FollowedBitmap(Arc::new(shared)) })
    }

    /// For programs that are being loaded; none later.
    pub(super) fn number(&self) -> Option<i32> {
        self.map.as_ref().map(MapFd::number)
    }

    /// All programs are loaded.
    pub(super) fn loaded(&mut self) {
        self.map = None;
    }

    /// Sets the bits of these processes.
    pub(super) fn enter(&self, ids: impl IntoIterator<Item = u32>) {
        for (word, bit) in ids.into_iter().map(place) {
            if let Some(word) = self.bits.0.words().get(word) {
                // Relaxed: the system call that enters the process comes behind it.
                word.fetch_or(bit, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn bits(&self) -> FollowedBitmap {
        self.bits.clone()
    }
}

/// So many words have room for all ids below `pid_max`.
fn words(pid_max: u32) -> u32 {
    pid_max.clamp(1, PID_MAX_LIMIT).div_ceil(u64::BITS)
}

/// One more than the largest id that can be given out now.
fn pid_max() -> u32 {
    let text = crate::pmu::text(Path::new("/proc/sys/kernel/pid_max"));
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(PID_MAX_LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the size for the usual limits: 512 KiB at most.
    #[test]
    fn sizes() {
        assert_eq!(words(32_768), 512);
        assert_eq!(words(PID_MAX_LIMIT) * 8, 512 << 10);
        assert_eq!(words(u32::MAX), words(PID_MAX_LIMIT));
        assert_eq!(words(301), 5);
        assert_eq!((place(1), place(63), place(64)), ((0, 2), (0, 1 << 63), (1, 1)));
    }

    /// Checks that what is entered is in and nothing else, that ids beyond the end count as in, and
    /// the kernel's as not in.
    #[test]
    fn bits() {
        let ever = match SharedBitmap::new() {
            Ok(ever) => ever,
            Err(error) => return kymo_testing::skip("bits", error),
        };
        ever.enter([1, 64, 300, u32::MAX]);
        let bits = ever.bits();
        let found: Vec<i32> = (-2..1000).filter(|&pid| bits.contains(pid)).collect();
        assert_eq!(found, [1, 64, 300]);
        assert!(bits.contains(i32::MAX));
        assert!(!bits.contains(i32::MIN));
        drop(ever);
        assert!(bits.contains(64), "the memory outlives the map's descriptor");
    }
}
