//! Unwinds user stacks while recording: samples with registers and copies of stacks become samples
//! with a call chain of some hundred bytes.
//!
//! *It gets* the drains' messages; *it gives* the writer the same messages, in the same order for
//! each ring, with the samples rewritten. What perf and kymo read is an ordinary recording of call
//! chains: its events' attrs say so (`Attr::unwound`).
//!
//! ```text
//!  drains --->  one inbox  ---> scan: names, forks, mappings, ends ---> Order (by moment)
//!                                 |                                       |  up to the last sample of what is due
//!                                 '-> buffers with samples -> Order ------+---> Worker: LiveSpaces, Unwinder
//!                                     (held until all rings were                  |  rewrites in place
//!                                      looked at after them)                      '---> writer
//! ```
//!
//! # Invariants
//! - I1: a sample is unwound after every record of a mapping, fork or exec that is older, in
//!   whichever ring it was (`order`).
//! - I2: messages of one ring leave in the order in which they came; none is lost or doubled; so
//!   the writer's rounds stay right.
//! - I3: no sample is dropped: one that cannot be unwound completely keeps what was got, and the
//!   cause is counted ([`Unwound`]).
//! - I4: drains never wait for this. What waits here is bounded by the pool: when most of it waits,
//!   what waits longest goes on with the mappings that are known, and is counted.
//! - I5: what is kept of tasks and mappings does not grow with the length of the recording
//!   (`LiveSpaces`), nor the files' unwind data beyond a fixed budget (`files`).
//! - I6: a sample whose rules are known, and whose stack was copied whole, costs no allocation.
//! - I7: the recording tells what unwinding came to ([`kymo_data::Mark::Unwound`]): the sum of its
//!   marks is what [`Reducer::run`] returns.
//!
//! # Stacks deeper than their copies
//! Their outer frames are those of the thread's last walk (`outer_frames`), or lie in pages that a
//! program in the kernel read at the sample (`stack_pages`), or in memory that is read from the
//! process (`outer_memory`). What can be wrong then, and how seldom, is in
//! docs/internals/design/0006-whole-stacks.md.
//!
//! # Generated code
//! Frames of Java are as the running machine says (`hotspot`). Of other generated code the machine
//! code is read from the process (`generated_bytes`), and followed as that of files without tables.
//! Where it says nothing the frame pointer is followed. Where that leads nowhere, a caller in a
//! file is searched for, and given as a guess if it leads to the thread's start (`guessed`). Code
//! of a file that a program has moved to anonymous memory is none of this (`moved_text`).
//!
//! # Why the chains are not as the kernel writes them
//! The kernel writes return addresses. A return address behind a call that never returns belongs to
//! the next function, and readers look addresses up as they are. The chains here have the addresses
//! that perf gives when it unwinds the stack's bytes itself, one byte into the call: every reader
//! then finds the function and line of the call, and a reduced recording shows what a raw one
//! shows.
//!
//! # Why a stack that comes again is walked again
//! Recognising it exactly means comparing the words that its last walk read: the same cache lines.
//! A walk of 8 frames is some 240 ns of the 2.6 us that a sample of 8 KiB costs here in all
//! (context switches of the whole machine, buffers cold in the cache); fetching the lines is most
//! of the rest.
//!
//! # One thread
//! The reducer is one thread: at that price 380,000 samples a second, three times what both CPUs of
//! the machine on which it was measured produce while they switch tasks as fast as they can. A
//! machine with hundreds of busy CPUs would need several:
//! docs/internals/design/0005-several-reducers.md says how.
mod generated_bytes;
mod guessed;
mod hotspot;
mod moved_text;
mod order;
mod outer_frames;
mod outer_memory;
mod side_reader;
mod stack_pages;
#[cfg(test)]
mod tests;
mod worker;

use crate::account::Unwound;
use crate::channel::{Next, Receiver, Sender};
use crate::mapped_files::FileTap;
use crate::pid_filter::PidFilter;
use crate::pool::BufferPool;
use crate::process_modules;
use crate::python::PythonStacks;
use crate::ring_scan::DrainRequest;
use crate::shared::Message;
use crate::waits::WaitSamples;
use kymo_data::{Attr, EventSet, RawRecord, Record, RecordCursor, UnwindCounts, abi, retain_records};
use kymo_perf::bpf::PythonWalker;
use kymo_perf::sys;
use kymo_profile::timeline::{Moment, SideEvent};
use order::{Order, Side, Times};
use rustix::process::setpriority_process;
use stack_pages::StackPages;
use std::sync::Arc;
use std::time::{Duration, Instant};
use worker::Worker;

/// So long samples wait for rings on which nothing happens before those are looked at.
const IDLE_RING_TIMEOUT: Duration = Duration::from_millis(100);
/// How long it rests when it has done all that was there.
const NAP: Duration = Duration::from_millis(1);
/// So many stacks are walked at least between two accounts of it in the recording.
const ACCOUNT_EVERY: u64 = 256;
/// Where real-time priority is not permitted: below the writer, above what is observed.
const NICE: i32 = -18;

/// The stage between drains and writer.
pub(crate) struct Reducer<'a> {
    events: Arc<EventSet>,
    /// Each drain's request, by ring.
    requests: Vec<&'a DrainRequest>,
    pool: &'a BufferPool,
    order: Order<Message>,
    /// How many large buffers are in it.
    large_held: usize,
    /// What the positions of records are counted on from.
    position: u64,
    worker: Worker,
    /// Has mapped files opened, before their processes end.
    mapped_files: Option<FileTap>,
    pid_filter: PidFilter,
    preferred: bool,
    /// What the recording has been told of unwinding.
    told: UnwindCounts,
    out: Sender<Message>,
}

impl<'a> Reducer<'a> {
    /// For events as the kernel writes their samples. `requests`: one for each ring, to its drain.
    /// `pool`: what buffers come from. `unwind_bytes`: what unwind data may take.
    pub(crate) fn new(
        events: Arc<EventSet>,
        requests: Vec<&'a DrainRequest>,
        pool: &'a BufferPool,
        unwind_bytes: u64,
        out: Sender<Message>,
    ) -> Self {
        let worker = Worker::new(Arc::clone(&events), Arc::new(process_modules::modules(unwind_bytes)));
        let order = Order::new(requests.len());
        let (pid_filter, told) = (PidFilter::default(), UnwindCounts::default());
        let (large_held, position, preferred) = (0, 1, true);
        Reducer {
            events,
            requests,
            pool,
            order,
            large_held,
            position,
            worker,
            mapped_files: None,
            pid_filter,
            preferred,
            told,
            out,
        }
    }

    /// Puts Python's functions into the chains, and has pages of cut stacks told. `event`: whose
    /// samples tell of both.
    pub(crate) fn with_python(
        mut self,
        event: usize,
        stacks: PythonStacks,
        walker: Arc<PythonWalker>,
    ) -> Self {
        let copied_bytes = self.events.list.iter().map(|event| event.attr.sample_stack_user).max();
        self.worker.stack_pages = Some(StackPages::new(walker, copied_bytes.unwrap_or(0)));
        self.worker.python = Some((event, stacks));
        self
    }

    /// Completes records of waits.
    pub(crate) fn with_waits(mut self, waits: WaitSamples) -> Self {
        self.worker.waits = Some(waits);
        self
    }

    /// Drops records of other processes before anything is remembered of them.
    pub(crate) fn without(mut self, pid_filter: PidFilter) -> Self {
        self.pid_filter = pid_filter;
        self
    }

    /// Has mapped files opened.
    pub(crate) fn with_mapped_files(mut self, tap: Option<FileTap>) -> Self {
        self.mapped_files = tap;
        self
    }

    /// Nothing that was there before the recording matters: samples need not wait until it is
    /// listed.
    pub(crate) fn without_existing(mut self) -> Self {
        self.order.begin();
        self
    }

    /// Only unwinding needs mappings of data: the recording has none of them.
    pub(crate) fn without_data_mappings(mut self) -> Self {
        self.worker.keeps_data_mappings = false;
        self
    }

    /// Takes no CPU from the target that it needs.
    pub(crate) fn normal_priority(mut self) -> Self {
        self.preferred = false;
        self
    }

    /// Reduces until all drains have ended.
    pub(crate) fn run(mut self, mut messages: Receiver<Message>) -> Unwound {
        // What is not reduced in time fills the pool. Nice values would do less: they count only
        // within a group of processes, and many systems make each session such a group.
        if self.preferred
            && sys::run_early().is_err()
            && let Err(error) = setpriority_process(None, NICE)
        {
            tracing::debug!(%error, "the reducer runs at ordinary priority");
        }
        let _ = rustix::thread::set_name(c"reducer");
        let most = self.pool.count();
        let (mut asked, mut busy) = (Instant::now(), false);
        loop {
            let mut next = messages.take();
            if matches!(next, Next::Empty) {
                // Whoever wakes for each message makes two context switches of it, which may be two
                // samples with their stacks.
                if std::mem::take(&mut busy) && !self.pool.is_short() {
                    std::thread::sleep(NAP);
                }
                next = messages.wait((self.order.held() > 0).then_some(IDLE_RING_TIMEOUT));
            }
            match next {
                Next::Item(message) => {
                    self.accept(message);
                    // What came meanwhile may be what others wait for.
                    busy = true;
                    for _ in 0..self.requests.len() {
                        let Next::Item(message) = messages.take() else { break };
                        self.accept(message);
                    }
                    self.pool.replenish();
                }
                Next::Empty => {}
                Next::Closed => break,
            }
            self.finish_due();
            // Enough waits, or long enough.
            if self.large_held > self.pool.made() / 8
                || self.order.held() > 0 && asked.elapsed() >= IDLE_RING_TIMEOUT
            {
                asked = Instant::now();
                self.order.lagging().for_each(|ring| self.requests[ring].ask());
            }
            while self.large_held > most * 3 / 4
                && let Some((_, message)) = self.order.take_early()
            {
                self.finish(message);
                self.finish_due();
            }
        }
        self.order.end();
        self.finish_due();
        let counts = self.counts();
        let account = self.account(&counts.counts());
        self.out.send_blocking(Message::Note(account.to_vec()));
        counts
    }

    fn finish_due(&mut self) {
        while let Some((_, message)) = self.order.take() {
            self.finish(message);
        }
    }

    fn counts(&self) -> Unwound {
        Unwound { early_buffers: self.order.early(), ..self.worker.counts() }
    }

    /// The record that tells of what was not told yet.
    fn account(&mut self, counts: &UnwindCounts) -> [u8; UnwindCounts::RECORD_BYTES] {
        let news = counts.since(&self.told);
        self.told = *counts;
        news.record()
    }

    /// Puts an account behind the first `len` bytes of a buffer if there is enough to tell and room
    /// for it; returns the new length.
    fn tell(&mut self, buffer: &mut [u8], len: usize) -> usize {
        let counts = self.counts().counts();
        // Stacks have left more room than this behind them; where they have not, the next buffer
        // will do.
        let Some(room) = buffer.get_mut(len..len + UnwindCounts::RECORD_BYTES) else { return len };
        if counts.stacks - self.told.stacks < ACCOUNT_EVERY {
            return len;
        }
        room.copy_from_slice(&self.account(&counts));
        len + UnwindCounts::RECORD_BYTES
    }

    fn accept(&mut self, mut message: Message) {
        match &mut message {
            Message::Note(_) => self.out.send_blocking(message),
            Message::Synthesized(records) => {
                self.scan(records);
                let (kept, _) = retain_records(records, |header, _| !self.worker.drops(header));
                records.truncate(kept);
                self.order.begin();
                // It goes first, as without this stage: markers may follow once the writer has it.
                self.out.send_blocking(message);
            }
            Message::Empty { ring, scan, .. } => {
                let (ring, scan) = (*ring, *scan);
                self.order.hold(ring, scan, None, message);
                self.order.emptied(ring, scan);
            }
            Message::Full { ring, buffer, len, scan, emptied, .. } => {
                let (ring, scan, emptied) = (*ring, *scan, *emptied);
                *len = self.pid_filter.remove(&mut buffer[..*len]);
                let times = self.scan(&buffer[..*len]);
                if times.is_none() {
                    // Nothing in it grows. It may stand behind samples that wait for other rings,
                    // whose drains need buffers.
                    *buffer = self.pool.compact(std::mem::take(buffer), *len);
                }
                self.large_held += usize::from(buffer.len() == self.pool.buffer_bytes());
                self.order.hold(ring, scan, times, message);
                if emptied {
                    self.order.emptied(ring, scan);
                }
            }
        }
    }

    /// Collects what samples are unwound by; tells the times of the samples.
    fn scan(&mut self, bytes: &[u8]) -> Option<Times> {
        let time_at = self.events.list.first().and_then(|event| time_offset(&event.attr));
        let mut times = None::<Times>;
        for found in RecordCursor::new(bytes) {
            let (header, body) = (found.header, found.body());
            let record = RawRecord { header, body, position: self.position };
            match header.kind {
                abi::PERF_RECORD_SAMPLE => {
                    let time = time_at.and_then(|at| body.get(at..at + 8)?.try_into().ok());
                    let time = time.map_or(0, u64::from_le_bytes);
                    let known = times.get_or_insert(Times { first_ns: time, last_ns: time });
                    known.first_ns = known.first_ns.min(time);
                    known.last_ns = known.last_ns.max(time);
                }
                abi::PERF_RECORD_MMAP2 => {
                    if let Some(mapped_files) = &mut self.mapped_files {
                        mapped_files.mapping(found.bytes);
                    }
                    self.side(&record);
                }
                abi::PERF_RECORD_MMAP
                | abi::PERF_RECORD_COMM
                | abi::PERF_RECORD_FORK
                | abi::PERF_RECORD_EXIT => self.side(&record),
                _ => {}
            }
            self.position += u64::from(header.size);
        }
        times
    }

    fn side(&mut self, record: &RawRecord<'_>) {
        let Ok(parsed) = record.parse() else { return };
        let side = match &parsed {
            Record::Exit(task) => Some(Side::Ended { tid: task.tid }),
            parsed => SideEvent::of(parsed).map(Side::Event),
        };
        if let Some(side) = side {
            self.order.event(Moment::new(self.events.sample_id(record).time, record.position), side);
        }
    }

    /// Reduces what is due and hands it on.
    fn finish(&mut self, mut message: Message) {
        while let Some((moment, side)) = self.order.due() {
            self.worker.side(moment, &side);
        }
        if let Message::Full { ring, buffer, len, .. } = &mut message {
            self.large_held -= usize::from(buffer.len() == self.pool.buffer_bytes());
            *len = self.worker.records(*ring, &mut buffer[..*len]);
            let mut notes = self.worker.take_notes();
            if let Some((_, stacks)) = &mut self.worker.python {
                notes.extend(stacks.take_records());
            }
            if !notes.is_empty() {
                self.out.send_blocking(Message::Note(notes));
            }
            *len = self.tell(buffer, *len);
            *buffer = self.pool.compact(std::mem::take(buffer), *len);
            self.worker.forget_before(self.order.floor_ns());
        }
        // There is a place for each buffer, but not for each message that a ring is empty.
        self.out.send_blocking(message);
        let corrections = self.worker.take_corrections();
        if !corrections.is_empty() {
            self.out.send_blocking(Message::Note(corrections));
        }
    }
}

/// Where a sample's body has its time: the same for all events of a recording.
fn time_offset(attr: &Attr) -> Option<usize> {
    let before = abi::PERF_SAMPLE_IDENTIFIER | abi::PERF_SAMPLE_IP | abi::PERF_SAMPLE_TID;
    let words = (attr.sample_type & before).count_ones() as usize;
    (attr.sample_type & abi::PERF_SAMPLE_TIME != 0).then_some(8 * words)
}
