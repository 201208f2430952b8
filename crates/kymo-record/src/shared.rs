//! What drains share with the other threads of the recorder: messages, buffers, requests.
use crate::channel::Notifier;
use crate::id_aliases::IdAliases;
use crate::options::Overload;
use crate::pool::BufferPool;
use crate::ring_scan::{LogicalClock, ScanInterval};
use crate::round::RoundNumber;
use crate::stack_trim::StackTrim;
use kymo_data::EventSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// From a drain to the writer, or to the reducer before it.
#[derive(Debug)]
pub(crate) enum Message {
    /// Records.
    Full {
        /// The ring's index.
        ring: usize,
        /// The buffer that holds them.
        buffer: Vec<u8>,
        /// How many bytes of it.
        len: usize,
        /// The round that ran when the ring's head was read.
        round: u64,
        /// The scan that found them.
        scan: ScanInterval,
        /// Whether this is all that was in the ring then.
        emptied: bool,
        /// Whether the drain had to wait for a buffer since the last message.
        starved: bool,
    },
    /// A record about the recording itself: it belongs to no ring and no round.
    Note(Vec<u8>),
    /// Synthesized records of what existed before; round markers may follow from now on.
    Synthesized(Vec<u8>),
    /// A ring was found empty.
    Empty {
        /// The ring's index.
        ring: usize,
        /// The round that ran when the ring's head was read.
        round: u64,
        /// The scan that found nothing.
        scan: ScanInterval,
    },
}

/// Asks the throttle to pause the target. Drains set it.
#[derive(Debug)]
pub(crate) struct ThrottleRequest {
    pending: AtomicBool,
    notifier: Notifier,
}

impl ThrottleRequest {
    pub(crate) fn new() -> io::Result<ThrottleRequest> {
        Ok(ThrottleRequest { pending: AtomicBool::new(false), notifier: Notifier::new()? })
    }

    /// Asks for a pause. Cheap while a request is pending; never waits.
    pub(crate) fn set(&self) {
        // Relaxed: the woken thread looks at the pool, which has its own orderings.
        if !self.pending.load(Ordering::Relaxed) && !self.pending.swap(true, Ordering::Relaxed) {
            self.notifier.notify();
        }
    }

    /// Whether a request is pending.
    pub(crate) fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Relaxed)
    }

    /// The pause is over: the next request counts again.
    pub(crate) fn reset(&self) {
        self.pending.store(false, Ordering::Relaxed);
    }

    /// Readable when a request has come.
    pub(crate) fn notifier(&self) -> &Notifier {
        &self.notifier
    }
}

/// What the drains share with the rest of the session.
#[derive(Debug)]
pub(crate) struct DrainShared {
    /// Buffers.
    pub(crate) pool: BufferPool,
    /// The running round.
    pub(crate) round: RoundNumber,
    /// The order of scans of rings.
    pub(crate) clock: LogicalClock,
    /// The events are off: empty the rings and end.
    pub(crate) stop: AtomicBool,
    /// Readable once `stop` is set.
    pub(crate) stop_notifier: Notifier,
    /// Set when buffers run short, where the target may be paused for that.
    pub(crate) throttle_request: Option<ThrottleRequest>,
    /// Whether drains run at real-time priority, where permitted.
    pub(crate) first: bool,
    /// Leaves out what is not filled of stack copies, where there are any.
    pub(crate) stack_trim: Option<StackTrim>,
    /// Bytes skipped in rings with impossible counters.
    pub(crate) corrupt_bytes: AtomicU64,
    /// The same in rings that observed programs write, with records there that are none of their
    /// events.
    pub(crate) claimed_corrupt_bytes: AtomicU64,
    /// The ids of events that were opened anew.
    pub(crate) aliases: IdAliases,
    /// How often a CPU came back: its drain then polls the new events, and moves there again.
    pub(crate) returned_cpus: AtomicU64,
    /// How often a drain woke up and found records.
    pub(crate) wakeups: AtomicU64,
}

impl DrainShared {
    /// For a recording that has not begun. `with_stacks`: the events, if their samples have copies
    /// of stacks.
    ///
    /// # Errors
    /// No eventfd could be made.
    pub(crate) fn new(
        pool: BufferPool,
        overload: Overload,
        with_stacks: Option<Arc<EventSet>>,
    ) -> io::Result<DrainShared> {
        let throttle_request = (overload == Overload::Pause).then(ThrottleRequest::new).transpose()?;
        Ok(DrainShared {
            pool,
            round: RoundNumber::default(),
            clock: LogicalClock::default(),
            stop: AtomicBool::new(false),
            stop_notifier: Notifier::new()?,
            throttle_request,
            first: overload != Overload::Drop,
            stack_trim: with_stacks.map(StackTrim::new),
            corrupt_bytes: AtomicU64::new(0),
            claimed_corrupt_bytes: AtomicU64::new(0),
            aliases: IdAliases::default(),
            returned_cpus: AtomicU64::new(0),
            wakeups: AtomicU64::new(0),
        })
    }

    /// Makes every drain empty its rings once more and end.
    pub(crate) fn stop(&self) {
        // Release: pairs with the drains' Acquire.
        self.stop.store(true, Ordering::Release);
        self.stop_notifier.notify();
    }

    /// The counter of corrupt bytes: what a program wrote is counted apart from the kernel's rings.
    pub(crate) fn corrupt_in(&self, is_user_ring: bool) -> &AtomicU64 {
        if is_user_ring { &self.claimed_corrupt_bytes } else { &self.corrupt_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::ThrottleRequest;

    /// Checks that a request which is set many times notifies once.
    #[test]
    fn notifies_once() {
        let request = ThrottleRequest::new().unwrap();
        (0..3).for_each(|_| request.set());
        let mut count = [0; 8];
        rustix::io::read(request.notifier().fd(), &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 1);
    }
}
