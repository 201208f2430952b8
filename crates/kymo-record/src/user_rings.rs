//! Rings that observed programs write themselves (probes inside of them), drained like the
//! kernel's.
//!
//! Such a ring wakes no drain: drains scan it periodically. The programs count the records that did
//! not fit, and the account of losses lists them like records that the kernel dropped.
//!
//! # Trust
//! A program can write anything into its rings. The drain overwrites each field that it knows from
//! another source: the process, the CPU, the period. A time is limited to the interval between the
//! scan that did not see the record and the one that did, in the recording's clock. A thread must
//! belong to the program, or have ended. Only what the program reports about itself (addresses and
//! values) is taken as it is.
use kymo_data::{Attr, EventSpec, abi, retain_records};
use kymo_perf::inject::ProgramClock;
use kymo_perf::ring::Ring;
use kymo_perf::sys::{belongs_to_other_process, counter};
use std::fmt;

/// One event that programs write.
#[derive(Clone, Debug)]
pub struct UserEvent {
    /// As the user named it.
    pub name: String,
    /// Where tracepoints have the name of their system.
    pub system: String,
    /// As tracefs would describe it: `name:`, `ID:`, `format:`.
    pub format: String,
    /// The number in its description.
    pub kind: u64,
    /// The number in each of its records, which no event of the kernel's has.
    pub id: u64,
}

/// Starts and stops the events that a program writes.
pub trait UserEventControl {
    /// Starts them.
    ///
    /// # Errors
    /// The reason, as a sentence.
    fn begin(&mut self) -> Result<(), String>;

    /// Stops them. Returns how many of each event were lost, and a remark for the user.
    fn end(&mut self) -> (Vec<u64>, Option<String>);
}

/// The events that programs write, their rings and their control.
pub struct UserRings {
    /// The events.
    pub events: Vec<UserEvent>,
    /// The process that writes them.
    pub pid: i32,
    /// For each CPU, the ring that is written there. In the place of times there are ticks of the
    /// processor's counter.
    pub rings: Vec<Ring>,
    /// Makes times of them.
    pub clock: ProgramClock,
    /// Starts and stops them.
    pub control: Box<dyn UserEventControl + Send>,
}

impl fmt::Debug for UserRings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserRings").field("events", &self.events).finish_non_exhaustive()
    }
}

/// What a sample of theirs holds.
pub(crate) const SAMPLE_TYPE: u64 = abi::PERF_SAMPLE_IDENTIFIER
    | abi::PERF_SAMPLE_IP
    | abi::PERF_SAMPLE_TID
    | abi::PERF_SAMPLE_TIME
    | abi::PERF_SAMPLE_CPU
    | abi::PERF_SAMPLE_PERIOD
    | abi::PERF_SAMPLE_RAW;

impl UserEvent {
    /// As the recording has it: a tracepoint of each of which there is a sample.
    pub(crate) fn spec(&self) -> EventSpec {
        let attr = Attr {
            kind: abi::PERF_TYPE_TRACEPOINT,
            config: self.kind,
            sample_period: 1,
            sample_type: SAMPLE_TYPE,
            read_format: abi::PERF_FORMAT_ID | abi::PERF_FORMAT_LOST,
            flags: abi::ATTR_FLAG_DISABLED | abi::ATTR_FLAG_SAMPLE_ID_ALL,
            ..Attr::default()
        };
        EventSpec { attr, ids: vec![self.id], name: self.name.clone() }
    }
}

/// An event's number in its records, and its number in tracefs' description.
type EventId = (u64, u32);

/// The numbers of these events, ascending.
fn event_ids(events: &[UserEvent]) -> Vec<EventId> {
    let number = |event: &UserEvent| Some((event.id, u32::try_from(event.kind).ok()?));
    let mut event_ids: Vec<EventId> = events.iter().filter_map(number).collect();
    event_ids.sort_unstable();
    event_ids
}

/// The rings of one program while they are drained; none by default.
#[derive(Default)]
pub(crate) struct DrainedUserRings {
    pub(crate) rings: Vec<Ring>,
    event_ids: Vec<EventId>,
    writer: Option<(i32, ProgramClock)>,
    /// Records that had been lost before the recording.
    lost_before: u64,
}

impl DrainedUserRings {
    pub(crate) fn new(rings: Vec<Ring>, events: &[UserEvent], pid: i32, clock: ProgramClock) -> Self {
        let lost_before = lost_in(&rings);
        DrainedUserRings { rings, event_ids: event_ids(events), writer: Some((pid, clock)), lost_before }
    }

    /// The reader's state of each CPU's ring.
    pub(crate) fn readers(&self) -> impl Iterator<Item = (u32, &Ring, UserRing<'_>)> {
        let (pid, clock) = self.writer.unzip();
        let state = pid.zip(clock).map(|(pid, clock)| UserRing::new(&self.event_ids, pid, clock));
        (0..)
            .zip(&self.rings)
            .filter_map(move |(cpu, ring)| Some((cpu, ring, UserRing { cpu, ..state.clone()? })))
    }

    /// How many records of each event were lost, by the event's index in the recording. `reported`:
    /// by the program itself. The rings know more where it has ended, and cannot tell which event
    /// it was.
    pub(crate) fn lost(&self, reported: Vec<u64>, first_event: usize) -> Vec<(usize, u64)> {
        let all_reported = reported.iter().fold(0_u64, |all, lost| all.saturating_add(*lost));
        let missing = lost_in(&self.rings).saturating_sub(self.lost_before).saturating_sub(all_reported);
        let mut lost: Vec<(usize, u64)> = (first_event..).zip(reported).collect();
        lost.extend((missing > 0).then_some((first_event, missing)));
        lost
    }
}

/// The sum of what the rings say, to which the program may have written anything.
fn lost_in(rings: &[Ring]) -> u64 {
    rings.iter().fold(0, |all, ring| all.saturating_add(ring.lost()))
}

/// What became of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Retained {
    /// At the front.
    pub(crate) kept_bytes: usize,
    /// What a program does not write.
    pub(crate) corrupt_bytes: usize,
}

/// Threads whose process is known, by the lowest bits of their numbers.
const THREADS: usize = 1024;

/// One such ring, with what is known of the program that writes it.
#[derive(Clone, Debug)]
pub(crate) struct UserRing<'a> {
    event_ids: &'a [EventId],
    pid: i32,
    cpu: u32,
    clock: ProgramClock,
    /// No record that is still to come was written before this tick.
    floor: u64,
    threads: Box<[i32]>,
}

impl<'a> UserRing<'a> {
    pub(crate) fn new(event_ids: &'a [EventId], pid: i32, clock: ProgramClock) -> UserRing<'a> {
        UserRing { event_ids, pid, cpu: 0, clock, floor: 0, threads: vec![0; THREADS].into() }
    }

    /// Nothing is left in the ring of before this tick.
    pub(crate) fn emptied(&mut self, ticks: u64) {
        self.floor = ticks;
        self.clock.keep_up();
    }

    /// Moves those records to the front that a program may write: samples of code in user space, of
    /// its own events and threads, as long as they say; and puts what is known otherwise into them,
    /// times among that. What else the program wrote must not get into the recording, where it
    /// would be taken for the kernel's word.
    ///
    /// To be called when the records were copied out.
    pub(crate) fn retain_own(&mut self, records: &mut [u8]) -> Retained {
        let now = counter::ticks();
        self.clock.keep_up();
        self.retain_until(records, now)
    }

    fn retain_until(&mut self, records: &mut [u8], now: u64) -> Retained {
        // Nothing that follows a size which the kernel would not write is a record of the program.
        let (mut aligned, mut abandoned_bytes) = (true, 0);
        let all_bytes = records.len();
        let (kept_bytes, _) = retain_records(records, |header, record| {
            aligned &= header.size.is_multiple_of(8);
            // Kind 0: the ring counts it as lost.
            abandoned_bytes += if aligned && header.kind == 0 { record.len() } else { 0 };
            aligned && self.complete(record, now).is_some()
        });
        Retained { kept_bytes, corrupt_bytes: all_bytes - kept_bytes - abandoned_bytes }
    }

    /// Puts what is known into a record; `None` if it is none of the program's.
    fn complete(&mut self, record: &mut [u8], now: u64) -> Option<()> {
        let word = |at: usize| Some(u32::from_le_bytes(record.get(at..at + 4)?.try_into().ok()?));
        let long = |at: usize| Some(u64::from(word(at)?) | u64::from(word(at + 4)?) << 32);
        let event = self.event_ids.binary_search_by_key(&long(ID_AT)?, |(id, _)| *id).ok()?;
        let raw_bytes = word(RAW_LENGTH_AT)? as usize;
        let is_sample =
            word(0)? == abi::PERF_RECORD_SAMPLE && record[4..6] == abi::PERF_RECORD_MISC_USER.to_le_bytes();
        // Each begins with its kind and the thread.
        let is_whole = (RAW_COMMON_BYTES..=record.len() - RAW_AT).contains(&raw_bytes);
        if !is_sample || !is_whole || word(RAW_AT)? != self.event_ids[event].1 {
            return None;
        }
        let tid = word(TID_AT)?.cast_signed();
        let time_ns = self.clock.time_ns(long(TIME_AT)?.max(self.floor).min(now));
        if !self.is_thread(tid) {
            return None;
        }
        let mut put = |at: usize, bytes: &[u8]| record[at..at + bytes.len()].copy_from_slice(bytes);
        put(PID_AT, &self.pid.to_le_bytes());
        put(TIME_AT, &time_ns.to_le_bytes());
        put(CPU_AT, &u64::from(self.cpu).to_le_bytes());
        put(PERIOD_AT, &1_u64.to_le_bytes());
        put(RAW_TID_AT, &tid.to_le_bytes());
        Some(())
    }

    /// Whether a thread is the program's. One that has ended meanwhile is.
    fn is_thread(&mut self, tid: i32) -> bool {
        let checked = &mut self.threads[tid as usize % THREADS];
        if *checked != tid || tid == 0 {
            if belongs_to_other_process(self.pid, tid) {
                return false;
            }
            *checked = tid;
        }
        true
    }
}

/// Where a sample of [`SAMPLE_TYPE`] has what.
const ID_AT: usize = 8;
const PID_AT: usize = 24;
const TID_AT: usize = 28;
const TIME_AT: usize = 32;
const CPU_AT: usize = 40;
const PERIOD_AT: usize = 48;
const RAW_LENGTH_AT: usize = 56;
const RAW_AT: usize = 60;
const RAW_TID_AT: usize = RAW_AT + 4;
/// What all raw data has: the kind, flags, the thread.
const RAW_COMMON_BYTES: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    const USER: u16 = abi::PERF_RECORD_MISC_USER;

    fn record(kind: u32, misc: u16, id: u64, raw_bytes: u32) -> Vec<u8> {
        let mut out = vec![0xee; RAW_AT + 12];
        let size = out.len() as u16;
        out[..4].copy_from_slice(&kind.to_le_bytes());
        out[4..6].copy_from_slice(&misc.to_le_bytes());
        out[6..8].copy_from_slice(&size.to_le_bytes());
        out[8..16].copy_from_slice(&id.to_le_bytes());
        out[RAW_LENGTH_AT..RAW_AT].copy_from_slice(&raw_bytes.to_le_bytes());
        put(&mut out, RAW_AT, 60_000 + id as u32);
        put(&mut out, TID_AT, std::process::id());
        out
    }

    fn put(record: &mut [u8], at: usize, value: u32) {
        record[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    fn get(record: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(record[at..at + 8].try_into().unwrap())
    }

    fn user_ring(pid: i32) -> UserRing<'static> {
        UserRing { cpu: 5, ..UserRing::new(&[(7, 60_007), (9, 60_009)], pid, ProgramClock::plain(1000)) }
    }

    fn own() -> UserRing<'static> {
        user_ring(std::process::id().cast_signed())
    }

    /// Checks that of what a program wrote only samples of its own events stay: no mapping, no
    /// name, no sample of another event or of the kernel's code, none that says more data than it
    /// has or another kind, and nothing behind a size that cannot be.
    #[test]
    fn nothing_but_own_samples() {
        let mine =
            [record(abi::PERF_RECORD_SAMPLE, USER, 7, 12), record(abi::PERF_RECORD_SAMPLE, USER, 9, 8)];
        let mut foreign = vec![
            record(abi::PERF_RECORD_MMAP2, USER, 7, 12),
            record(abi::PERF_RECORD_COMM, USER, 7, 12),
            record(abi::PERF_RECORD_LOST, USER, 7, 12),
            record(abi::PERF_RECORD_SAMPLE, USER, 8, 12),
            record(abi::PERF_RECORD_SAMPLE, 1, 7, 12),
            record(abi::PERF_RECORD_SAMPLE, USER, 7, 13),
            record(abi::PERF_RECORD_SAMPLE, USER, 7, 4),
            record(abi::PERF_RECORD_SAMPLE, USER, 7, u32::MAX),
        ];
        let mut other = record(abi::PERF_RECORD_SAMPLE, USER, 7, 12);
        put(&mut other, RAW_AT, 60_009);
        foreign.push(other);
        let mut short = record(abi::PERF_RECORD_SAMPLE, USER, 7, 0);
        short.truncate(56);
        short[6] = 56;
        foreign.push(short);
        let mut tiny = 9_u64.to_le_bytes().to_vec();
        tiny[6] = 8;
        foreign.push(tiny);
        let mut cut = record(abi::PERF_RECORD_SAMPLE, USER, 7, 12);
        cut.truncate(40);
        let mut records =
            [&mine[0], &foreign.concat(), &mine[1], &cut].into_iter().flatten().copied().collect::<Vec<u8>>();
        let kept = own().retain_own(&mut records).kept_bytes;
        let ids: Vec<u64> = records[..kept].chunks(RAW_AT + 12).map(|record| get(record, ID_AT)).collect();
        assert_eq!((kept, ids), (2 * (RAW_AT + 12), vec![7, 9]));
        let mut zero = vec![0; 64];
        assert_eq!(own().retain_own(&mut zero), Retained { kept_bytes: 0, corrupt_bytes: 64 });
    }

    /// Checks that a program cannot put its events into the past or the future, into another
    /// process, on another CPU, or make one count for many.
    #[test]
    fn what_is_known_otherwise() {
        let mut user_ring = own();
        user_ring.floor = 500;
        let mut all: Vec<u8> = Vec::new();
        for (ticks, pid) in [(0_u64, 1), (499, u32::MAX), (700, 0), (u64::MAX, std::process::id())] {
            let mut one = record(abi::PERF_RECORD_SAMPLE, USER, 7, 12);
            one[TIME_AT..TIME_AT + 8].copy_from_slice(&ticks.to_le_bytes());
            put(&mut one, PID_AT, pid);
            all.extend(one);
        }
        let kept = user_ring.retain_until(&mut all, 900).kept_bytes;
        assert_eq!(kept, all.len());
        let me = u64::from(std::process::id());
        let seen = all.chunks(RAW_AT + 12).map(|one| {
            assert_eq!((get(one, PID_AT), get(one, CPU_AT), get(one, PERIOD_AT)), (me | me << 32, 5, 1));
            assert_eq!(get(one, RAW_AT), 60_007 | me << 32);
            get(one, TIME_AT)
        });
        assert_eq!(seen.collect::<Vec<_>>(), [1500, 1500, 1700, 1900]);
    }

    /// Checks that a program's event is of a thread of its own: not of another process, and of no
    /// group of processes.
    #[test]
    fn threads_of_others() {
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let by = |user_ring: &mut UserRing<'_>, tid: u32| {
            let mut one = record(abi::PERF_RECORD_SAMPLE, USER, 7, 12);
            put(&mut one, TID_AT, tid);
            user_ring.retain_own(&mut one).kept_bytes > 0
        };
        let mut user_ring = user_ring(child.id().cast_signed());
        assert!(by(&mut user_ring, child.id()) && by(&mut user_ring, child.id()));
        for tid in [std::process::id(), 1, 0, u32::MAX, 1 << 31] {
            assert!(!by(&mut user_ring, tid), "{tid}");
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(by(&mut user_ring, child.id()), "it wrote this before it ended");
    }
}
