//! Reads the rows of a recording of locks: waits, wake-ups and sums.
use crate::chains::{ChainId, Chains};
use crate::load::LoadOptions;
use crate::timeline::{CommId, Moment, Timeline};
use crate::unwind_samples::recorded_chain;
use kymo_core::holds::HoldKind;
use kymo_core::latency::{Latencies, SLOTS, USED};
use kymo_data::tracing_data::{self, Field, Format, Value};
use kymo_data::{RawRecord, ReadError, ReadSummary, Recording, Sample, abi};

/// What kymo calls the event of threads that have waited for a futex.
pub(crate) const WAIT: &str = "lock-wait";
/// The event of those that have woken others.
const WAKE: &str = "lock-wake";
/// The event of the sums.
const SUMS: &str = "lock-sums";

/// The event of how long locks were held.
pub(crate) const HOLDS: &str = "lock-holds";

/// The kind of a wait that had not ended.
const UNFINISHED: u64 = 3;

/// A futex: its process (0: several share it) and its address.
pub(super) type FutexKey = (i32, u64);

/// A thread that has waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WaitRow {
    pub(super) time_ns: u64,
    pub(super) futex: FutexKey,
    /// Process and thread.
    pub(super) thread: (i32, i32),
    pub(super) comm: CommId,
    pub(super) chain: ChainId,
    /// The version of the address space.
    pub(super) maps: u32,
    /// This wait, ns.
    pub(super) wait_ns: u64,
    /// With those that have no row, ns, and how many all are.
    pub(super) told_ns: u64,
    pub(super) count: u64,
    /// The thread that woke another last, 0: none.
    pub(super) waker: i32,
    pub(super) operation: u32,
    pub(super) unfinished: bool,
}

/// A thread that has woken others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WakeRow {
    pub(super) time_ns: u64,
    pub(super) futex: FutexKey,
    pub(super) thread: (i32, i32),
    pub(super) comm: CommId,
    pub(super) chain: ChainId,
    pub(super) count: u64,
}

/// What came together at a futex.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SumRow {
    pub(super) futex: FutexKey,
    pub(super) waits: Latencies,
    pub(super) timeouts: u64,
    pub(super) wakes: u64,
    pub(super) waiting: u64,
    pub(super) most_waiting: u64,
}

/// Holds of a lock that were taken at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HoldRow {
    pub(super) kind: HoldKind,
    /// The process and the lock's address.
    pub(super) lock: FutexKey,
    /// The place.
    pub(super) chain: ChainId,
    pub(super) maps: u32,
    pub(super) holds: Latencies,
}

/// All rows of a recording.
#[derive(Debug, Default)]
pub(super) struct LockRows {
    pub(super) chains: Chains,
    /// In order of time.
    pub(super) waits: Vec<WaitRow>,
    /// In order of futex and time.
    pub(super) wakes: Vec<WakeRow>,
    pub(super) sums: Vec<SumRow>,
    /// Holds were timed.
    pub(super) has_holds: bool,
    /// In order of lock and kind.
    pub(super) holds: Vec<HoldRow>,
    /// Samples that cannot be read.
    pub(super) damaged: u64,
}

const RECORD: [&str; 7] = ["kind", "operation", "pid", "address", "wait_ns", "told_ns", "count"];
const SUM: [&str; 9] =
    ["pid", "address", "waits", "total_ns", "max_ns", "timeouts", "wakes", "waiting", "most_waiting"];

const HOLD: [&str; 6] = ["pid", "kind", "address", "holds", "total_ns", "max_ns"];

/// NamedFields of an event, by the recording's own description.
struct NamedFields<const N: usize>([Field; N]);

impl<const N: usize> NamedFields<N> {
    fn of(format: &Format, names: [&str; N]) -> Option<NamedFields<N>> {
        let found: Option<Vec<Field>> = names.iter().map(|name| format.field(name).cloned()).collect();
        Some(NamedFields(found?.try_into().ok()?))
    }

    /// The numbers, in the order of the names.
    fn read(&self, raw: &[u8]) -> Option<[u64; N]> {
        let mut numbers = [0; N];
        for (number, field) in numbers.iter_mut().zip(&self.0) {
            *number = match field.value(raw)? {
                Value::Unsigned(value) => value,
                Value::Signed(value) => value.cast_unsigned(),
                Value::Text(_) | Value::Bytes(_) => return None,
            };
        }
        Some(numbers)
    }
}

/// Which event of a recording is which.
struct LockEvents {
    wait: (usize, NamedFields<7>, Field),
    wake: Option<usize>,
    sums: Option<(usize, NamedFields<9>, Field)>,
    holds: Option<(usize, NamedFields<6>, Field)>,
}

impl LockEvents {
    fn of(recording: &Recording) -> Option<LockEvents> {
        let data = tracing_data::parse(recording.features.tracing_data.as_deref()?).ok()?;
        let at = |name: &str| recording.events.list.iter().position(|event| event.name == name);
        let format = |at: usize| data.format(recording.events.list[at].attr.config);
        let wait = at(WAIT)?;
        let sums = at(SUMS).and_then(|at| {
            let format = format(at)?;
            Some((at, NamedFields::of(format, SUM)?, format.field("buckets")?.clone()))
        });
        let holds = at(HOLDS).and_then(|at| {
            let format = format(at)?;
            Some((at, NamedFields::of(format, HOLD)?, format.field("buckets")?.clone()))
        });
        let waker = format(wait)?.field("waker")?.clone();
        Some(LockEvents {
            wait: (wait, NamedFields::of(format(wait)?, RECORD)?, waker),
            wake: at(WAKE),
            sums,
            holds,
        })
    }
}

/// Whether a recording tells of locks.
pub(super) fn has_locks(recording: &Recording) -> bool {
    LockEvents::of(recording).is_some()
}

/// Reads the rows.
pub(super) fn read(
    recording: &Recording,
    timeline: &Timeline,
    options: &LoadOptions,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<(LockRows, ReadSummary), ReadError> {
    let Some(events) = LockEvents::of(recording) else { return Ok(Default::default()) };
    let each = |rows: &mut LockRows, chunk: &kymo_data::Chunk| {
        let samples =
            chunk.records().flatten().filter(|record| record.header.kind == abi::PERF_RECORD_SAMPLE);
        samples.for_each(|record| rows.sample(recording, timeline, &events, &record));
    };
    let (parts, summary) = recording.read_parallel(options.workers, LockRows::default, each, progress)?;
    let mut rows = LockRows { has_holds: events.holds.is_some(), ..LockRows::default() };
    parts.into_iter().for_each(|part| rows.absorb(part));
    rows.waits.sort_unstable_by_key(|row| (row.time_ns, row.futex, row.thread, row.told_ns));
    rows.wakes.sort_unstable_by_key(|row| (row.futex, row.time_ns, row.thread));
    rows.sums.sort_by_key(|row| row.futex);
    rows.holds.sort_by_key(|row| (row.lock, row.kind, row.chain));
    Ok((rows, summary))
}

impl LockRows {
    fn sample(
        &mut self,
        recording: &Recording,
        timeline: &Timeline,
        events: &LockEvents,
        record: &RawRecord<'_>,
    ) {
        let Some(event) = recording.events.event_of(record) else { return };
        let is_sums = events.sums.as_ref().is_some_and(|(at, ..)| *at == event);
        let is_holds = events.holds.as_ref().is_some_and(|(at, ..)| *at == event);
        if event != events.wait.0 && Some(event) != events.wake && !is_sums && !is_holds {
            return;
        }
        let (attr, layout) = (&recording.events.list[event].attr, &recording.events.list[event].layout);
        let mut sample = Sample::default();
        let parsed = layout.parse_into(record.header.misc, record.body, &mut sample);
        let Some(raw) = sample.raw.filter(|_| parsed.is_ok()) else {
            self.damaged += 1;
            return;
        };
        if is_sums {
            match events.sums.as_ref().and_then(|(_, fields, buckets)| sums(fields, buckets, raw)) {
                Some(sums) => self.sums.push(sums),
                None => self.damaged += 1,
            }
            return;
        }
        if is_holds {
            let holds = events.holds.as_ref().and_then(|(_, fields, buckets)| holds(fields, buckets, raw));
            let Some((kind, lock, holds)) = holds else {
                self.damaged += 1;
                return;
            };
            // The place is as the program was at the end.
            let view = timeline.thread(lock.0, lock.0, Moment::new(sample.time, record.position));
            let mode = (record.header.misc & abi::PERF_RECORD_MISC_CPUMODE_MASK) as u8;
            let words = recorded_chain(attr, &sample);
            let chain = self.chains.intern(view.maps, mode, sample.ip.unwrap_or(0), words);
            self.holds.push(HoldRow { kind, lock, chain, maps: view.maps, holds });
            return;
        }
        let (Some(numbers), Some(waker)) = (events.wait.1.read(raw), events.wait.2.value(raw)) else {
            self.damaged += 1;
            return;
        };
        let waker = if let Value::Signed(waker) = waker { waker as i32 } else { 0 };
        let [kind, operation, futex_pid, address, wait_ns, told_ns, count] = numbers;
        let pid = sample.pid.unwrap_or(-1);
        let thread = (pid, sample.tid.unwrap_or(pid));
        let view = timeline.thread(thread.0, thread.1, Moment::new(sample.time, record.position));
        let mode = (record.header.misc & abi::PERF_RECORD_MISC_CPUMODE_MASK) as u8;
        let words = recorded_chain(attr, &sample);
        let chain = self.chains.intern(view.maps, mode, sample.ip.unwrap_or(0), words);
        let (futex, time_ns, comm) = ((futex_pid as i32, address), sample.time.unwrap_or(0), view.comm);
        if Some(event) == events.wake {
            self.wakes.push(WakeRow { time_ns, futex, thread, comm, chain, count });
            return;
        }
        self.waits.push(WaitRow {
            time_ns,
            futex,
            thread,
            comm,
            chain,
            maps: view.maps,
            wait_ns,
            told_ns,
            count,
            waker,
            operation: operation as u32,
            unfinished: kind == UNFINISHED,
        });
    }

    fn absorb(&mut self, other: LockRows) {
        let ids = self.chains.absorb(&other.chains);
        let ours = |chain: ChainId| ids[chain as usize];
        self.waits.extend(other.waits.into_iter().map(|row| WaitRow { chain: ours(row.chain), ..row }));
        self.wakes.extend(other.wakes.into_iter().map(|row| WakeRow { chain: ours(row.chain), ..row }));
        self.sums.extend(other.sums);
        self.holds.extend(other.holds.into_iter().map(|row| HoldRow { chain: ours(row.chain), ..row }));
        self.damaged += other.damaged;
    }
}

fn sums(fields: &NamedFields<9>, buckets: &Field, raw: &[u8]) -> Option<SumRow> {
    let [pid, address, count, total_ns, max_ns, timeouts, wakes, waiting, most_waiting] = fields.read(raw)?;
    let buckets = counts(buckets, raw)?;
    Some(SumRow {
        futex: (pid as i32, address),
        waits: Latencies { count, total_ns, max_ns, buckets },
        timeouts,
        wakes,
        waiting,
        most_waiting,
    })
}

/// What was held, the lock, and for how long.
fn holds(fields: &NamedFields<6>, buckets: &Field, raw: &[u8]) -> Option<(HoldKind, FutexKey, Latencies)> {
    let [pid, kind, address, count, total_ns, max_ns] = fields.read(raw)?;
    let buckets = counts(buckets, raw)?;
    let holds = Latencies { count, total_ns, max_ns, buckets };
    Some((HoldKind::of(kind)?, (pid as i32, address), holds))
}

/// Counts by length.
fn counts(buckets: &Field, raw: &[u8]) -> Option<Vec<u64>> {
    let Value::Bytes(bytes) = buckets.value(raw)? else { return None };
    let mut counts = vec![0; SLOTS as usize];
    let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    counts[USED.start as usize..USED.end as usize].iter_mut().zip(words).for_each(|(to, word)| *to = word);
    Some(counts)
}
