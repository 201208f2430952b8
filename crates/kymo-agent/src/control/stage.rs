//! How far this process is with its tracer: one conversation at a time (C1).
//!
//! ```text
//!  NONE --begin--> UNDER_WAY --leave--> LEAVING --end--> NONE
//! ```
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};

/// The process and its stage: a process that was forked meanwhile has no thread that talks.
static STAGE: AtomicU64 = AtomicU64::new(NONE);
const NONE: u64 = 0;
const UNDER_WAY: u64 = 1;
/// The tracer is gone, and what it did is being undone.
const LEAVING: u64 = 2;

/// A conversation begins.
///
/// # Errors
/// EBUSY while another one is under way, EINPROGRESS while what it did is being undone.
pub(super) fn begin() -> Result<(), c_int> {
    let is_free = |stage: u64| stage == NONE || stage & !3 != with_process_id(0);
    // Acquire, with the Release in `end`: what the conversation before left is seen by this one.
    let begun = STAGE.fetch_update(Ordering::Acquire, Ordering::Relaxed, |stage| {
        is_free(stage).then(|| with_process_id(UNDER_WAY))
    });
    let is_leaving = |stage: u64| stage == with_process_id(LEAVING);
    begun.map(drop).map_err(|stage| if is_leaving(stage) { libc::EINPROGRESS } else { libc::EBUSY })
}

/// Its tracer is gone; what it did is undone from here on. Nothing where no conversation is under
/// way, as in tests of sessions.
pub(super) fn leave() {
    // Relaxed: nothing else is told by it.
    let [before, after] = [UNDER_WAY, LEAVING].map(with_process_id);
    _ = STAGE.compare_exchange(before, after, Ordering::Relaxed, Ordering::Relaxed);
}

fn with_process_id(stage: u64) -> u64 {
    u64::from(std::process::id()) << 2 | stage
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
        // As in a process that was forked during a conversation.
        STAGE.store(u64::from(std::process::id() + 1) << 2 | UNDER_WAY, Ordering::Relaxed);
        assert_eq!(begin(), Ok(()));
        end();
    }
}
