//! Outputs that stopped answering.
//!
//! A write to a FUSE or network file system whose server is gone never returns, and no signal
//! interrupts it. The end of a recording must not wait for that: the writes of all files of this
//! process are counted while they are in flight, and [`watch`] reports when none of them has
//! completed for too long after the end was requested.
use crate::channel::timespec;
use rustix::event::{PollFd, PollFlags, poll};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// After so long without an answer the user is told.
const SAID_AFTER: Duration = Duration::from_secs(2);
/// After so long the process ends.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(200);
/// How often to look before the end was asked for.
const LOOK: Duration = Duration::from_secs(1);

/// Writes that are under way. Like the next two it only counts: nothing is published by it.
static UNDER_WAY: AtomicU64 = AtomicU64::new(0);
/// When the last answer came, or the first of the writes under way began: ms since [`START`].
static MOVED_MS: AtomicU64 = AtomicU64::new(0);
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

fn moved() {
    let now = u64::try_from(START.elapsed().as_millis()).unwrap_or(u64::MAX);
    MOVED_MS.store(now, Ordering::Relaxed);
}

/// A write begins.
pub(super) fn begins() {
    if UNDER_WAY.fetch_add(1, Ordering::Relaxed) == 0 {
        moved();
    }
}

/// One was answered, with an error too.
pub(super) fn answered() {
    moved();
    UNDER_WAY.fetch_sub(1, Ordering::Relaxed);
}

/// Another call to the output's file system, as long as it takes.
pub(crate) struct UnderWay(());

impl UnderWay {
    pub(crate) fn begin() -> UnderWay {
        begins();
        UnderWay(())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        answered();
    }
}

/// How long no write has been answered, if any is under way.
fn silent_for() -> Option<Duration> {
    let moved = Duration::from_millis(MOVED_MS.load(Ordering::Relaxed));
    (UNDER_WAY.load(Ordering::Relaxed) > 0).then(|| START.elapsed().saturating_sub(moved))
}

/// What is known of a silent output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// It is waited for that much longer.
    Waiting(Duration),
    /// It is given up: this process should end now.
    GivenUp {
        /// A signal that asks for the end and that no thread has taken yet; 0 if there is none.
        pending: i32,
    },
}

/// A signal that asks this process to end and waits for a thread to take it, or 0. The kernel gives
/// a signal to the first thread, and that one may be the one that waits for the file system.
fn pending_end() -> i32 {
    const ENDS: [i32; 3] = [1, 2, 15];
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
    let set = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0);
    ENDS.into_iter().find(|signal| set >> (signal - 1) & 1 == 1).unwrap_or(0)
}

/// Tells, from a thread of its own, of an output that is silent after the end was asked for,
/// because `until` can be read or a signal is pending: once that it is waited for, and once that it
/// is given up.
///
/// # Errors
/// No thread can be made.
pub fn watch(until: OwnedFd, mut tell: impl FnMut(Silence) + Send + 'static) -> io::Result<()> {
    let wait = move || {
        let (mut is_ending, mut said) = (false, false);
        loop {
            if is_ending {
                thread::sleep(PAUSE);
            } else {
                let mut fds = [PollFd::new(&until, PollFlags::IN)];
                match poll(&mut fds, Some(&timespec(LOOK))) {
                    Ok(0) | Err(rustix::io::Errno::INTR) => {}
                    Ok(_) => is_ending = true,
                    Err(_) => return,
                }
            }
            let Some(silent) = silent_for().filter(|time| *time >= SAID_AFTER) else { continue };
            let pending = pending_end();
            is_ending |= pending != 0;
            if is_ending && silent >= GIVEN_UP_AFTER {
                return tell(Silence::GivenUp { pending });
            }
            if is_ending && !said {
                said = true;
                tell(Silence::Waiting(GIVEN_UP_AFTER - silent));
            }
        }
    };
    thread::Builder::new().name("silence".into()).stack_size(64 << 10).spawn(wait).map(|_| ())
}
