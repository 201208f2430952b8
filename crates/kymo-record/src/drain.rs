//! Empties rings before they overflow: one thread per CPU, pinned there, at real-time priority
//! where permitted.
//!
//! While a drain runs, its CPU produces no samples, so a drain that wakes up in time loses none. It
//! copies records out, hands them over, and never waits for the disk. If no buffer is free, it
//! leaves the records in the ring.
//!
//! A drain never waits for a thread of lower priority, which could not run on this CPU meanwhile.
//! It takes no lock, allocates nothing once it runs, and shares only lock-free structures
//! (`kymo_core::handover`).
use crate::channel::{Sender, timespec};
use crate::ring_scan::{DrainRequest, ScanInterval};
use crate::shared::{DrainShared, Message};
use crate::user_rings::{Retained, UserRing};
use kymo_core::ring::slots::Publisher;
use kymo_core::ring::{Corrupt, Reader, Span};
use kymo_perf::event_clock::monotonic_ns;
use kymo_perf::ring::Ring;
use kymo_perf::sys::{self, counter};
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long a drain sleeps at most while records come.
const NAP: Duration = Duration::from_millis(250);
/// How long it sleeps at most on a CPU where nothing happens.
const LONG_NAP: Duration = Duration::from_millis(1000);
/// How long it sleeps at most while records come by rings that wake nobody, and when none come.
const BLIND_NAP: Duration = Duration::from_millis(1);
const BLIND_LONG_NAP: Duration = Duration::from_millis(16);
/// How long it waits for a free buffer before it looks at the other rings and the stop sign again.
const BUFFER_WAIT: Duration = Duration::from_millis(20);
/// How long it waits for room in its queue.
const ROOM_WAIT: Duration = Duration::from_millis(2);
/// What every drain polls beside its rings: the notifiers of the pool, of the end, and of requests.
const OWN_FDS: usize = 3;

/// One ring to drain and the descriptors that write into it (to be polled: the first that is
/// alive).
#[derive(Debug)]
pub(crate) struct RingSource<'a> {
    /// Its index among all rings.
    pub(crate) index: usize,
    /// The memory.
    pub(crate) ring: &'a Ring,
    /// The descriptors.
    pub(crate) fds: Vec<BorrowedFd<'a>>,
    /// If it is an observed program that writes there: what is known of it.
    pub(crate) user_ring: Option<UserRing<'a>>,
}

struct RingState<'a> {
    index: usize,
    reader: Reader<'a>,
    /// Of a ring with slots.
    publisher: Option<Publisher<'a>>,
    user_ring: Option<UserRing<'a>>,
    /// How much is still taken from it, once the recording is to end: its program may write for
    /// ever.
    left_bytes: Option<usize>,
    fds: Vec<BorrowedFd<'a>>,
    /// The descriptor that is polled; those before it have hung up.
    alive: usize,
    /// The round in which the writer was told last that the ring is empty.
    told: Option<u64>,
    /// Somebody waits to hear of it, also if it is empty.
    asked: bool,
    starved: bool,
}

impl<'a> RingState<'a> {
    /// What is in the ring now.
    fn begin(&mut self) -> Result<Span<'a>, Corrupt> {
        if let Some(publisher) = &mut self.publisher {
            publisher.turn(self.reader.position(), monotonic_ns());
        }
        self.reader.begin()
    }
}

/// Empties the sources until the stop sign, then once more. `cpu`: where to run.
pub(crate) fn run(
    cpu: Option<u32>,
    sources: Vec<RingSource<'_>>,
    shared: &DrainShared,
    request: &DrainRequest,
    out: Sender<Message>,
    ready: impl FnOnce(),
) {
    // For who looks at the threads; without a name it works as well.
    let _ = rustix::thread::set_name(c"drain");
    if let Some(cpu) = cpu {
        // Both make it better; neither is needed for it to work.
        if let Err(error) = sys::pin_to(cpu) {
            tracing::debug!(cpu, %error, "drain is not pinned");
        }
        if shared.first
            && let Err(error) = sys::run_first()
        {
            tracing::debug!(cpu, %error, "drain runs at ordinary priority");
        }
    }
    let states = sources.into_iter().map(|source| RingState {
        index: source.index,
        reader: Reader::new(source.ring.area()),
        publisher: source.ring.slots().map(Publisher::new),
        user_ring: source.user_ring,
        left_bytes: None,
        fds: source.fds,
        alive: 0,
        told: None,
        asked: false,
        starved: false,
    });
    let states: Vec<_> = states.collect();
    let polled = Vec::with_capacity(OWN_FDS + states.len());
    let blind = states.iter().any(|state| state.fds.is_empty());
    let naps = if blind { (BLIND_NAP, BLIND_LONG_NAP) } else { (NAP, LONG_NAP) };
    let returned = shared.returned_cpus.load(Ordering::Acquire);
    let mut drain =
        Drain { cpu, returned, states, shared, request, out, spare: None, naps, nap: naps.0, polled };
    drain.poll_all();
    ready();
    drain.run();
}

/// What a look at a ring came to.
#[derive(PartialEq, Eq)]
enum ScanResult {
    Nothing,
    Some,
    /// So much that there may be more by now.
    Much,
}

struct Drain<'a> {
    cpu: Option<u32>,
    /// How many CPUs had come back when that was looked after last.
    returned: u64,
    states: Vec<RingState<'a>>,
    shared: &'a DrainShared,
    request: &'a DrainRequest,
    out: Sender<Message>,
    spare: Option<Vec<u8>>,
    /// While records come, and when none come.
    naps: (Duration, Duration),
    nap: Duration,
    /// What wakes it: three notifiers, then the rings with a live descriptor.
    polled: Vec<PollFd<'a>>,
}

impl<'a> Drain<'a> {
    fn run(&mut self) {
        loop {
            // Acquire: pairs with the Release of whoever turned the events off; the last records
            // are in the rings.
            let stopping = self.shared.stop.load(Ordering::Acquire);
            if self.request.take() {
                // Of a ring for which there is no buffer now somebody still hears when there is
                // one.
                self.states.iter_mut().for_each(|state| state.asked = true);
            }
            self.follow_cpus();
            let (some, much) = self.scan_all(stopping);
            if some {
                // Relaxed: a statistic.
                self.shared.wakeups.fetch_add(1, Ordering::Relaxed);
            }
            if stopping && (!some || self.out.is_abandoned()) {
                break;
            }
            if !much && !stopping {
                let (least, most) = self.naps;
                self.nap = if some { least } else { (self.nap * 2).min(most) };
                self.sleep();
            }
        }
        if let Some(buffer) = self.spare.take() {
            self.shared.pool.give(buffer);
        }
    }

    /// After a CPU has come back: the kernel has moved the threads of that CPU to others, and the
    /// descriptors of its rings are those of new events.
    fn follow_cpus(&mut self) {
        // Acquire: pairs with the Release of whoever has opened the events.
        let returned = self.shared.returned_cpus.load(Ordering::Acquire);
        if std::mem::replace(&mut self.returned, returned) == returned {
            return;
        }
        if let Some(cpu) = self.cpu
            && let Err(error) = sys::pin_to(cpu)
        {
            tracing::debug!(cpu, %error, "drain is not pinned");
        }
        self.states.iter_mut().for_each(|state| state.alive = 0);
        self.poll_all();
    }

    /// Looks at each ring; whether there was something, and whether there may be more by now.
    fn scan_all(&mut self, stopping: bool) -> (bool, bool) {
        let (mut some, mut much) = (false, false);
        for at in 0..self.states.len() {
            let state = &mut self.states[at];
            if stopping && state.user_ring.is_some() {
                // What was there when the events went off is no more than the ring holds.
                let left = *state.left_bytes.get_or_insert(state.reader.size_bytes());
                if left == 0 {
                    continue;
                }
            }
            let before = state.reader.position();
            let found = self.scan(at);
            let state = &mut self.states[at];
            if let Some(left) = &mut state.left_bytes {
                let taken = state.reader.position().wrapping_sub(before);
                *left = left.saturating_sub(usize::try_from(taken).unwrap_or(usize::MAX));
            }
            some |= found != ScanResult::Nothing;
            much |= found == ScanResult::Much;
        }
        (some, much)
    }

    fn scan(&mut self, at: usize) -> ScanResult {
        self.spare = self.spare.take().or_else(|| self.shared.pool.take());
        // Without room the buffer stays: one that is dropped is missing in the pool for ever.
        let Some(mut buffer) = self.spare.take_if(|_| self.out.has_room()) else {
            self.states[at].starved = true;
            if let Some(request) = &self.shared.throttle_request {
                request.set();
            }
            self.starve();
            return ScanResult::Much;
        };
        let state = &mut self.states[at];
        // Of the processor: what is not in the ring yet has not been written before.
        let counted = state.user_ring.as_ref().map_or(0, |_| counter::ticks());
        // The round first, then the ring's head (`round`), between the ticks (`scan`).
        let before = self.shared.clock.tick();
        let round = self.shared.round.now();
        let span = state.begin();
        let scan = ScanInterval { before, after: self.shared.clock.tick() };
        let span = match span {
            Ok(span) => span,
            Err(corrupt) => {
                tracing::warn!(%corrupt, "skipped");
                let skipped = corrupt.head.wrapping_sub(corrupt.tail).min(corrupt.size_bytes as u64);
                self.shared.corrupt_in(state.user_ring.is_some()).fetch_add(skipped, Ordering::Relaxed);
                state.reader.skip();
                self.spare = Some(buffer);
                return ScanResult::Nothing;
            }
        };
        let available = span.len_bytes();
        if available == 0 {
            self.spare = Some(buffer);
            if let Some(user_ring) = &mut state.user_ring {
                user_ring.emptied(counted);
            }
            if (state.asked || state.told != Some(round))
                && self.out.send(Message::Empty { ring: state.index, round, scan }).is_ok()
            {
                state.told = Some(round);
                state.asked = false;
            }
            return ScanResult::Nothing;
        }
        let len = if available <= buffer.len() { available } else { span.whole_records_bytes(buffer.len()) };
        if len == 0 {
            // No record begins with an honest size there.
            tracing::warn!(ring = state.index, bytes = available, "skipped what is no record");
            self.shared.corrupt_in(state.user_ring.is_some()).fetch_add(available as u64, Ordering::Relaxed);
            state.reader.skip();
            self.spare = Some(buffer);
            return ScanResult::Some;
        }
        let copied = match &self.shared.stack_trim {
            Some(trim) if state.user_ring.is_none() => trim.copy(&span, &mut buffer[..len]),
            _ => {
                span.copy_to(&mut buffer[..len]);
                len
            }
        };
        state.reader.release(span, len);
        let emptied = len == available;
        let much = available >= self.shared.pool.buffer_bytes() / 2 || !emptied;
        // In the copy, which the program cannot change any more.
        let copy = &mut buffer[..copied];
        if state.user_ring.is_none() {
            self.shared.aliases.translate(copy);
        }
        let whole = Retained { kept_bytes: copied, corrupt_bytes: 0 };
        let retained = state.user_ring.as_mut().map_or(whole, |user_ring| user_ring.retain_own(copy));
        let Retained { kept_bytes: kept, corrupt_bytes } = retained;
        if emptied && let Some(user_ring) = &mut state.user_ring {
            user_ring.emptied(counted);
        }
        // Relaxed: a statistic.
        self.shared.corrupt_in(state.user_ring.is_some()).fetch_add(corrupt_bytes as u64, Ordering::Relaxed);
        if kept == 0 {
            self.spare = Some(buffer);
            if emptied && self.out.send(Message::Empty { ring: state.index, round, scan }).is_ok() {
                state.told = Some(round);
                state.asked = false;
            }
            return if much { ScanResult::Much } else { ScanResult::Some };
        }
        let starved = std::mem::take(&mut state.starved);
        if emptied {
            state.asked = false;
        }
        let message = Message::Full { ring: state.index, buffer, len: kept, round, scan, emptied, starved };
        if let Some(request) = &self.shared.throttle_request
            && self.shared.pool.is_short()
        {
            request.set();
        }
        // There was room, and only this thread fills it.
        let _ = self.out.send(message);
        if much { ScanResult::Much } else { ScanResult::Some }
    }

    /// Waits for a buffer that comes back, but not long: the other rings and the stop sign want to
    /// be looked at.
    fn starve(&mut self) {
        self.shared.pool.begin_to_wait();
        self.spare = self.spare.take().or_else(|| self.shared.pool.take());
        // With a buffer it is room in the queue that is missing: that comes without a notification.
        let most = if self.spare.is_some() { ROOM_WAIT } else { BUFFER_WAIT };
        let stopping = self.shared.stop.load(Ordering::Relaxed);
        let notifiers = if stopping { 1 } else { 2 };
        if self.spare.is_none() || !self.out.has_room() {
            // The pool's notifier, and the end's until it was seen.
            let _ = poll(&mut self.polled[..notifiers], Some(&timespec(most)));
        }
        self.shared.pool.waited();
    }

    /// Until a ring asks for it, the stop sign, or the end of the nap.
    fn sleep(&mut self) {
        // Without the pool's notifier: it wakes other drains.
        if poll(&mut self.polled[1..], Some(&timespec(self.nap))).unwrap_or(0) == 0 {
            return;
        }
        if self.polled[OWN_FDS - 1].revents().contains(PollFlags::IN) {
            self.request.woken();
        }
        let gone = |fd: &PollFd<'_>| fd.revents().intersects(PollFlags::HUP | PollFlags::ERR);
        let mut rings = self.polled[OWN_FDS..].iter();
        let mut any = false;
        for state in self.states.iter_mut().filter(|state| state.alive < state.fds.len()) {
            if rings.next().is_some_and(gone) {
                // Its task is gone; others may still write into the ring.
                state.alive += 1;
                any = true;
            }
        }
        if any {
            self.poll_all();
        }
    }

    /// Polls, of each ring, the first descriptor that is alive.
    fn poll_all(&mut self) {
        self.polled.clear();
        let shared: &'a DrainShared = self.shared;
        let (stop, request): (_, &'a DrainRequest) = (&shared.stop_notifier, self.request);
        let own = [shared.pool.notifier().fd(), stop.fd(), request.fd()];
        self.polled.extend(own.map(|fd| PollFd::new(fd, PollFlags::IN)));
        let alive = self.states.iter().filter_map(|state| state.fds.get(state.alive));
        self.polled.extend(alive.map(|&fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::channel;
    use crate::options::Overload;
    use crate::pool::BufferPool;
    use kymo_core::handover::Next;
    use kymo_core::ring::Writer;
    use kymo_perf::inject::ProgramClock;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::os::fd::AsFd;

    const DATA_BYTES: usize = 4096;
    const RECORD_BYTES: usize = 128;

    /// Checks that of a ring into which a program goes on writing no more is taken than what can
    /// have been there when the recording was to end.
    #[test]
    fn a_program_that_never_stops() {
        let file = memfd_create("ring", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, (kymo_perf::sys::page_size() + DATA_BYTES) as u64).unwrap();
        let ring = Ring::map(file.as_fd(), DATA_BYTES / kymo_perf::sys::page_size()).unwrap();
        let pool = BufferPool::new(8, 2 * DATA_BYTES, 8, 1).unwrap();
        let shared = DrainShared::new(pool, Overload::Drop, None).unwrap();
        shared.stop.store(true, Ordering::Relaxed);
        let request = DrainRequest::new().unwrap();
        let (mut senders, mut messages) = channel([16]).unwrap();
        let state = RingState {
            index: 0,
            reader: Reader::new(ring.area()),
            publisher: None,
            user_ring: Some(UserRing::new(
                &[(7, 60_007)],
                std::process::id().cast_signed(),
                ProgramClock::plain(0),
            )),
            left_bytes: None,
            fds: Vec::new(),
            alive: 0,
            told: None,
            asked: false,
            starved: false,
        };
        let naps = (BLIND_NAP, BLIND_LONG_NAP);
        let mut drain = Drain {
            cpu: None,
            returned: 0,
            states: vec![state],
            shared: &shared,
            request: &request,
            out: senders.remove(0),
            spare: None,
            naps,
            nap: naps.0,
            polled: Vec::with_capacity(OWN_FDS + 1),
        };
        drain.poll_all();
        let mut record = [0; RECORD_BYTES];
        record[0] = 9;
        record[4] = 2;
        record[6] = RECORD_BYTES as u8;
        record[8] = 7;
        record[28..32].copy_from_slice(&std::process::id().to_le_bytes());
        record[56] = 8;
        record[60..64].copy_from_slice(&60_007_u32.to_le_bytes());
        let mut writer = Writer::new(ring.area());
        let (mut taken, mut looks) = (0, 0);
        loop {
            for _ in 0..16 {
                let _ = writer.push(&record, 7, &[]);
            }
            let (some, _) = drain.scan_all(true);
            while let Next::Item(message) = messages.take() {
                if let Message::Full { len, buffer, .. } = message {
                    taken += len;
                    shared.pool.give(buffer);
                }
            }
            if !some {
                break;
            }
            looks += 1;
            assert!(looks < 100, "it never ends");
        }
        assert_eq!((taken, shared.corrupt_bytes.load(Ordering::Relaxed)), (DATA_BYTES, 0));
    }
}
