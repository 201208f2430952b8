//! How far this process is with its tracer: one conversation at a time (C1).
//!
//! ```text
//!  NONE --begin--> UNDER_WAY --leave--> LEAVING --end--> NONE
//! ```
use std::ffi::c_int;
use std::sync::atomic::{AtomicU8, Ordering};

static STAGE: AtomicU8 = AtomicU8::new(NONE);
const NONE: u8 = 0;
const UNDER_WAY: u8 = 1;
/// The tracer is gone, and what it did is being undone.
const LEAVING: u8 = 2;

/// A conversation begins.
///
/// # Errors
/// EBUSY while another one is under way, EINPROGRESS while what it did is being undone.
pub(super) fn begin() -> Result<(), c_int> {
    // Acquire, with the Release in `end`: what the conversation before left is seen by this one.
    let before = STAGE.compare_exchange(NONE, UNDER_WAY, Ordering::Acquire, Ordering::Relaxed);
    before.map(drop).map_err(|stage| if stage == LEAVING { libc::EINPROGRESS } else { libc::EBUSY })
}

/// Its tracer is gone; what it did is undone from here on. Nothing where no conversation is under
/// way, as in tests of sessions.
pub(super) fn leave() {
    // Relaxed: nothing else is told by it.
    _ = STAGE.compare_exchange(UNDER_WAY, LEAVING, Ordering::Relaxed, Ordering::Relaxed);
}

/// All is undone.
pub(super) fn end() {
    // Release, with the Acquire in `begin`.
    STAGE.store(NONE, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that who comes while another tracer is there is told so, and who comes while that one
    /// leaves is told to wait.
    #[test]
    fn one_conversation_at_a_time() {
        leave();
        assert_eq!(begin(), Ok(()));
        assert_eq!(begin(), Err(libc::EBUSY));
        leave();
        assert_eq!(begin(), Err(libc::EINPROGRESS));
        end();
        assert_eq!(begin(), Ok(()));
        end();
    }
}
