//! Emptying rings ahead of their producers: one thread per CPU, pinned there, before all ordinary threads where permitted.
//!
//! While it runs its CPU produces nothing, so however fast samples come, a drain that is on time loses none. It copies out, hands
//! over, and never waits for the disk; if no buffer is free it leaves the records in the ring.
use crate::look::{Look, Poke, Ticks};
use crate::pool::Pool;
use crate::round::RoundNumber;
use crossbeam_channel::Sender;
use kymo_core::ring::Reader;
use kymo_perf::ring::Ring;
use kymo_perf::sys;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How long a drain sleeps at most while records come.
const NAP: Duration = Duration::from_millis(250);
/// How long it sleeps at most on a CPU where nothing happens.
const LONG_NAP: Duration = Duration::from_millis(1000);
/// How long it waits for a free buffer before it looks at the other rings and the stop sign again.
const BUFFER_WAIT: Duration = Duration::from_millis(20);

/// From a drain to the writer, or to whoever reduces what is written.
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
        /// When that was.
        look: Look,
        /// Whether this is all that was in the ring then.
        emptied: bool,
        /// Whether the drain had to wait for a buffer since the last message.
        starved: bool,
    },
    /// Records that were made up; markers may follow from now on.
    Synthesized(Vec<u8>),
    /// A ring was found empty.
    Empty {
        /// The ring's index.
        ring: usize,
        /// The round that ran when the ring's head was read.
        round: u64,
        /// When that was.
        look: Look,
    },
}

/// What the drains share with the rest of the session.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Buffers.
    pub(crate) pool: Pool,
    /// The running round.
    pub(crate) round: RoundNumber,
    /// The order of looks at rings.
    pub(crate) ticks: Ticks,
    /// The events are off: empty the rings and end.
    pub(crate) stop: AtomicBool,
    /// Becomes readable with `stop`.
    pub(crate) stop_fd: OwnedFd,
    /// Bytes skipped in rings with impossible counters.
    pub(crate) corrupt_bytes: AtomicU64,
    /// How often a drain woke up and found records.
    pub(crate) wakeups: AtomicU64,
}

/// One ring to drain and the descriptors that write into it (to be polled: the first that is alive).
#[derive(Debug)]
pub(crate) struct Source<'a> {
    /// Its index among all rings.
    pub(crate) index: usize,
    /// The memory.
    pub(crate) ring: &'a Ring,
    /// The descriptors.
    pub(crate) fds: Vec<BorrowedFd<'a>>,
}

struct State<'a> {
    index: usize,
    reader: Reader<'a>,
    fds: Vec<BorrowedFd<'a>>,
    /// The descriptor that is polled; those before it have hung up.
    alive: usize,
    /// The round in which the writer was told last that the ring is empty.
    told: Option<u64>,
    starved: bool,
}

/// Empties the sources until the stop sign, then once more. `cpu`: where to run.
pub(crate) fn run(
    cpu: Option<u32>,
    sources: Vec<Source<'_>>,
    shared: &Shared,
    poke: &Poke,
    out: &Sender<Message>,
    ready: impl FnOnce(),
) {
    if let Some(cpu) = cpu {
        // Both make it better; neither is needed for it to work.
        if let Err(error) = sys::pin_to(cpu) {
            tracing::debug!(cpu, %error, "drain is not pinned");
        }
        if let Err(error) = sys::run_first() {
            tracing::debug!(cpu, %error, "drain runs at ordinary priority");
        }
    }
    let states = sources.into_iter().map(|source| State {
        index: source.index,
        reader: Reader::new(source.ring.area()),
        fds: source.fds,
        alive: 0,
        told: None,
        starved: false,
    });
    let mut drain =
        Drain { states: states.collect(), shared, poke, out, spare: None, nap: NAP, asked: false };
    ready();
    drain.run();
}

/// What a look at a ring came to.
#[derive(PartialEq, Eq)]
enum Found {
    Nothing,
    Some,
    /// So much that there may be more by now.
    Much,
}

struct Drain<'a> {
    states: Vec<State<'a>>,
    shared: &'a Shared,
    poke: &'a Poke,
    out: &'a Sender<Message>,
    spare: Option<Vec<u8>>,
    nap: Duration,
    /// Somebody waits to hear also of rings that are empty.
    asked: bool,
}

impl Drain<'_> {
    fn run(&mut self) {
        loop {
            // Acquire: pairs with the Release of whoever turned the events off; the last records are in the rings.
            let stopping = self.shared.stop.load(Ordering::Acquire);
            self.asked = self.poke.take();
            let (mut some, mut much) = (false, false);
            for at in 0..self.states.len() {
                let found = self.look(at);
                some |= found != Found::Nothing;
                much |= found == Found::Much;
            }
            if some {
                // Relaxed: a statistic.
                self.shared.wakeups.fetch_add(1, Ordering::Relaxed);
            }
            if stopping && !some {
                break;
            }
            if !much && !stopping {
                self.nap = if some { NAP } else { (self.nap * 2).min(LONG_NAP) };
                self.sleep();
            }
        }
        if let Some(buffer) = self.spare.take() {
            self.shared.pool.give(buffer);
        }
    }

    fn look(&mut self, at: usize) -> Found {
        let state = &mut self.states[at];
        if self.spare.is_none() {
            self.spare = self.shared.pool.take();
        }
        if self.spare.is_none() {
            state.starved = true;
            self.spare = self.shared.pool.wait(BUFFER_WAIT);
        }
        let Some(mut buffer) = self.spare.take() else { return Found::Much };
        // The round first, then the ring's head: see `round`. The ticks stand around it: see `look`.
        let before = self.shared.ticks.tick();
        let round = self.shared.round.now();
        let span = state.reader.begin();
        let look = Look { before, after: self.shared.ticks.tick() };
        let span = match span {
            Ok(span) => span,
            Err(corrupt) => {
                tracing::warn!(%corrupt, "skipped");
                let skipped = corrupt.head.wrapping_sub(corrupt.tail).min(corrupt.size_bytes as u64);
                self.shared.corrupt_bytes.fetch_add(skipped, Ordering::Relaxed);
                state.reader.skip();
                self.spare = Some(buffer);
                return Found::Nothing;
            }
        };
        let available = span.len_bytes();
        if available == 0 {
            self.spare = Some(buffer);
            if (self.asked || state.told != Some(round))
                && self.out.try_send(Message::Empty { ring: state.index, round, look }).is_ok()
            {
                state.told = Some(round);
            }
            return Found::Nothing;
        }
        let len = if available <= buffer.len() { available } else { span.whole_records_bytes(buffer.len()) };
        span.copy_to(&mut buffer[..len]);
        state.reader.release(span, len);
        let starved = std::mem::take(&mut state.starved);
        let emptied = len == available;
        let much = available >= self.shared.pool.buffer_bytes() / 2 || !emptied;
        let message = Message::Full { ring: state.index, buffer, len, round, look, emptied, starved };
        // The channel has a place for every buffer, so this does not wait; it fails only after the writer's panic.
        let _ = self.out.send(message);
        if much { Found::Much } else { Found::Some }
    }

    /// Until a ring asks for it, the stop sign, or the end of the nap.
    fn sleep(&mut self) {
        let timeout =
            Timespec { tv_sec: self.nap.as_secs() as i64, tv_nsec: i64::from(self.nap.subsec_nanos()) };
        let mut fds = vec![
            PollFd::new(&self.shared.stop_fd, PollFlags::IN),
            PollFd::new(self.poke.fd(), PollFlags::IN),
        ];
        let mut owners = Vec::new();
        for (at, state) in self.states.iter().enumerate() {
            if let Some(fd) = state.fds.get(state.alive) {
                fds.push(PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN));
                owners.push(at);
            }
        }
        if poll(&mut fds, Some(&timeout)).unwrap_or(0) == 0 {
            return;
        }
        if fds[1].revents().contains(PollFlags::IN) {
            self.poke.woken();
        }
        let gone: Vec<bool> =
            fds[2..].iter().map(|fd| fd.revents().intersects(PollFlags::HUP | PollFlags::ERR)).collect();
        for (at, _) in owners.into_iter().zip(gone).filter(|&(_, gone)| gone) {
            // Its task is gone; others may still write into the ring.
            self.states[at].alive += 1;
        }
    }
}
