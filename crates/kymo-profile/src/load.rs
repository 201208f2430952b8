//! Reading a recording into a profile, in two parallel passes.
//!
//! 1. **Side-band.** Every record that tells who was what is collected, sorted by its moment and
//!    replayed into the [`Timeline`]. Samples are skipped over.
//! 2. **Samples.** Each worker counts samples by what tells them apart: distinct raw stack, event,
//!    thread name, and whatever else was asked for. Every sample finds its thread's state by its
//!    own moment, so chunks are read in any order, by any number of workers.
//!
//! Distinct stacks are then merged and resolved once each. Memory grows with what is distinct; the
//! exceptions are stated at [`LoadOptions::samples`] and for groups that read their members'
//! counters, where a period is the difference to the read before and so needs all reads in order.
use crate::chains::{ChainId, Chains};
use crate::timeline::{CommId, Moment, SideEvent, ThreadView, Timeline, TimelineBuilder};
use crate::unwind_samples::{StackUnwinder, ThreadUnwinder};
use kymo_data::{Event, RawRecord, ReadSummary, Record, Recording, Sample, abi};
use kymo_symbols::SymbolOptions;
use kymo_symbols::unwind::UnwindStats;
use rustc_hash::{FxHashMap, FxHashSet};
use std::time::Duration;

mod cgroups;
mod extra;
mod instants;
#[cfg(any(test, feature = "model"))]
pub mod model;
mod parallelism;
mod reads;
mod short;
mod sideband;
mod spans;
#[cfg(test)]
pub(crate) mod tests;

pub use cgroups::{CgroupNames, Cgroups};
pub use extra::{Extra, ExtraId, Extras};
pub use instants::Instant;
use instants::Instants;
use parallelism::LATENCY_SCALE;
pub use parallelism::Parallelism;
pub(crate) use reads::ReadPeriods;
pub use short::ShortRecords;
pub(crate) use sideband::collect as collect_sideband;
pub use spans::{TimeSpans, TimeSpansError};

/// What tells samples apart, beyond event, thread name and stack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dims {
    /// Process id.
    pub pid: bool,
    /// Thread id (and process id).
    pub tid: bool,
    /// CPU.
    pub cpu: bool,
    /// Time in steps of so many ns; 0 does not tell times apart.
    pub time_quantum_ns: u64,
    /// The raw bytes of a tracepoint.
    pub raw: bool,
    /// Cgroup.
    pub cgroup: bool,
    /// How many threads ran; of recordings with context switches.
    pub parallelism: bool,
}

/// Which samples are read, and how closely they are told apart.
#[derive(Debug, Clone, Default)]
pub struct LoadOptions {
    /// What tells samples apart.
    pub dims: Dims,
    /// Call chains are read; without them only the sampled address counts.
    pub callchains: bool,
    /// Only samples of these CPUs.
    pub cpus: Option<FxHashSet<u32>>,
    /// Only samples of these processes.
    pub pids: Option<FxHashSet<i32>>,
    /// Only samples of these threads.
    pub tids: Option<FxHashSet<i32>>,
    /// Only samples of cgroups of these names, and of what is in them: paths, units, containers or pods.
    pub cgroups: Option<Vec<String>>,
    /// Only samples of these spans of time.
    pub time: Option<TimeSpans>,
    /// Only samples at which so many threads ran; of recordings with context switches.
    pub parallelism: Option<FxHashSet<u32>>,
    /// Each period is divided by how many threads ran, too; of recordings with context switches.
    pub latency: bool,
    /// Keep up to this many single samples with their times, for timelines: 32 bytes each. Beyond
    /// it every second one is dropped, as often as needed.
    pub samples: usize,
    /// Worker threads; 0 means one per CPU.
    pub workers: usize,
}

impl LoadOptions {
    /// Whether a moment of a thread is not wanted, by its process, its number or its time.
    pub(crate) fn excludes(&self, pid: i32, tid: i32, time_ns: u64) -> bool {
        let is_out =
            |set: &Option<FxHashSet<i32>>, id: i32| set.as_ref().is_some_and(|set| !set.contains(&id));
        self.time.as_ref().is_some_and(|spans| !spans.contains(time_ns))
            || is_out(&self.pids, pid)
            || is_out(&self.tids, tid)
    }
}

/// Counts of one group of samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Samples.
    pub samples: u64,
    /// Sum of their periods, in the event's unit.
    pub period: u64,
    /// Sum of their periods, each divided by how many threads ran: what it added to the time that
    /// the whole took. In 256ths of the event's unit; 0 unless asked for.
    pub latency: u64,
}

impl std::ops::AddAssign for Count {
    fn add_assign(&mut self, other: Count) {
        self.samples = self.samples.saturating_add(other.samples);
        self.period = self.period.saturating_add(other.period);
        self.latency = self.latency.saturating_add(other.latency);
    }
}

/// What the samples of a group share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupKey {
    /// Index of the event.
    pub event: u32,
    /// Name of the thread.
    pub comm: CommId,
    /// Process, 0 unless asked for.
    pub pid: i32,
    /// Thread, 0 unless asked for.
    pub tid: i32,
    /// CPU, 0 unless asked for.
    pub cpu: u32,
    /// What else was asked for, 0 unless something was.
    pub extra: ExtraId,
    /// Raw stack.
    pub chain: ChainId,
}

/// Losses and other facts that the records tell.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordCounts {
    /// Records by type, for `--stats`.
    pub by_type: std::collections::BTreeMap<u32, u64>,
    /// Records that the kernel dropped because a ring was full (LOST).
    pub lost_records: u64,
    /// LOST records.
    pub lost_chunks: u64,
    /// LOST records that say when they were written, by time.
    pub lost_at: Vec<LostAt>,
    /// Samples lost as the kernel counted them per event (LOST_SAMPLES). What
    /// [`lost_records`](Self::lost_records) says is counted in here again.
    pub lost_samples: u64,
    /// Times the kernel throttled an event.
    pub throttled: u64,
    /// Samples whose id no event has.
    pub unknown_ids: u64,
    /// The cgroups that records tell of.
    pub cgroups: Cgroups,
    /// Records that are too short for their type, by type.
    pub short: ShortRecords,
}

/// Where a ring lost records: after the CPU's record before, until this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LostAt {
    /// When the kernel could tell it, ns of the recording's clock.
    pub time_ns: u64,
    /// Whose ring it was, `u32::MAX` if not recorded.
    pub cpu: u32,
    /// Records lost.
    pub lost: u64,
}

/// How long the parts of reading took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoadTimes {
    /// The first pass, and replaying what it found.
    pub sideband: Duration,
    /// The second pass.
    pub samples: Duration,
    /// Putting the workers' counts together.
    pub merge: Duration,
}

/// A recording as counts.
#[derive(Debug)]
pub struct Loaded {
    /// Who was what, when.
    pub timeline: Timeline,
    /// Distinct raw stacks.
    pub chains: Chains,
    /// What [`GroupKey::extra`] stands for.
    pub extras: Extras,
    /// Samples by what they share, in a fixed order.
    pub groups: Vec<(GroupKey, Count)>,
    /// Totals by event.
    pub totals: Vec<Count>,
    /// Single samples in order of time, if asked for.
    pub instants: Vec<Instant>,
    /// One in how many samples is in `instants`.
    pub instant_stride: u64,
    /// Samples by thread: process, thread, count.
    pub threads: Vec<(i32, i32, Count)>,
    /// Samples taken while one thread ran. All samples, unless [`LoadOptions`] need the number of
    /// threads that ran.
    pub single_threaded: u64,
    /// First and last time of a sample, ns.
    pub time_range: Option<(u64, u64)>,
    /// What the records tell besides.
    pub counts: RecordCounts,
    /// What the reader saw (problems of the file).
    pub summary: ReadSummary,
    /// How stack unwinding ended, where the recording holds stacks.
    pub unwind: UnwindStats,
    /// How long it took.
    pub times: LoadTimes,
}

/// Tells how far a pass is: pass (0 or 1), bytes done, bytes in all.
pub type Progress<'a> = &'a (dyn Fn(u32, u64, u64) + Sync);

/// Reads a recording.
///
/// # Errors
/// When the file cannot be read at all. Damage inside it is not an error: see [`Loaded::summary`].
pub fn load(
    recording: &Recording,
    options: &LoadOptions,
    progress: Progress<'_>,
) -> Result<Loaded, kymo_data::ReadError> {
    load_beside(recording, options, &SymbolOptions::default(), progress, &|_| {})
}

/// The same; `symbols` says how names of generated code are read, and `beside` runs during the
/// second pass on a thread of its own, for what needs the timeline only.
pub(crate) fn load_beside(
    recording: &Recording,
    options: &LoadOptions,
    symbols: &SymbolOptions,
    progress: Progress<'_>,
    beside: &(dyn Fn(&Timeline) + Sync),
) -> Result<Loaded, kymo_data::ReadError> {
    let workers = match options.workers {
        0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
        n => n,
    };
    let start = std::time::Instant::now();
    let (timeline, counts, reads) =
        sideband::collect(recording, workers, symbols, &|done, all| progress(0, done, all))?;
    let unwinding = options.callchains && StackUnwinder::is_needed(recording);
    let unwinder = unwinding.then(|| StackUnwinder::new(&timeline, recording, symbols));

    let sideband = start.elapsed();
    let cgroups = options.cgroups.as_ref().map(|names| counts.cgroups.named(names));
    let unwinder = unwinder.as_ref();
    let counts_threads = options.latency || options.dims.parallelism || options.parallelism.is_some();
    let parallelism = counts_threads.then(|| Parallelism::read(recording, workers)).transpose()?;
    let parallelism = parallelism.as_ref();
    let context =
        Context { recording, timeline: &timeline, options, cgroups, reads: &reads, parallelism, unwinder };
    let (workers, summary) = std::thread::scope(|scope| {
        // Without another thread it comes before, instead of beside.
        if std::thread::Builder::new().spawn_scoped(scope, || beside(&timeline)).is_err() {
            beside(&timeline);
        }
        recording.read_parallel(
            workers,
            || Worker::new(&context),
            |worker, chunk| {
                for record in chunk.records().flatten() {
                    if record.header.kind == abi::PERF_RECORD_SAMPLE {
                        worker.sample(&context, &record);
                    }
                }
            },
            &|done, all| progress(1, done, all),
        )
    })?;
    let samples = start.elapsed() - sideband;
    let (mut merged, mut unwind) = (Tally::new(options.samples), UnwindStats::default());
    for worker in workers {
        merged.absorb(worker.tally);
        worker.unwinder.iter().for_each(|unwinder| unwind.merge(unwinder.stats()));
    }
    let mut summary = summary;
    summary.problems.splice(0..0, counts.short.problems());
    let mut loaded = merged.finish(recording.events.list.len(), timeline, counts, summary);
    loaded.unwind = unwind;
    let merge = start.elapsed() - sideband - samples;
    loaded.times = LoadTimes { sideband, samples, merge };
    Ok(loaded)
}

/// What all workers of the second pass share.
struct Context<'a> {
    recording: &'a Recording,
    timeline: &'a Timeline,
    options: &'a LoadOptions,
    /// The cgroups whose samples are wanted, if not all are.
    cgroups: Option<FxHashSet<u64>>,
    reads: &'a ReadPeriods,
    parallelism: Option<&'a Parallelism>,
    unwinder: Option<&'a StackUnwinder<'a>>,
}

/// The counts of one worker, or of all.
struct Tally {
    chains: Chains,
    extras: Extras,
    groups: FxHashMap<GroupKey, Count>,
    threads: FxHashMap<(i32, i32), Count>,
    instants: Instants,
    time_range: Option<(u64, u64)>,
    unknown_ids: u64,
    single_threaded: u64,
}

/// One worker.
struct Worker<'a> {
    tally: Tally,
    /// Each thread's latest state, with the span that it holds for.
    views: FxHashMap<i32, (i32, ThreadView)>,
    unwinder: Option<ThreadUnwinder<'a>>,
    /// A call chain put together from the kernel's part and unwound frames.
    scratch: Vec<u8>,
}

impl<'a> Worker<'a> {
    fn new(context: &Context<'a>) -> Worker<'a> {
        Worker {
            tally: Tally::new(context.options.samples),
            views: FxHashMap::default(),
            unwinder: context.unwinder.map(StackUnwinder::thread),
            scratch: Vec::new(),
        }
    }

    fn sample(&mut self, context: &Context<'a>, record: &RawRecord<'_>) {
        let events = &context.recording.events;
        let Some(event) = events.event_of(record) else {
            self.tally.unknown_ids += 1;
            return;
        };
        let mut sample = Sample::default();
        let layout = &events.list[event].layout;
        if layout.parse_into(record.header.misc, record.body, &mut sample).is_err() {
            return;
        }
        match sample.read {
            Some(read) if counts_by_reading(&events.list[event]) => {
                for counter in read.counters() {
                    let id = counter.id.or(sample.id);
                    let Some(member) = id.and_then(|id| events.by_id(id)) else {
                        self.tally.unknown_ids += 1;
                        continue;
                    };
                    let period = context.reads.period(record.position, id.unwrap_or(0));
                    // A member that did not move since the last read has no sample of its own.
                    if period != 0 {
                        self.count(context, record, &sample, member, period);
                    }
                }
            }
            _ => {
                let period = sample.period.unwrap_or(events.list[event].attr.sample_period);
                self.count(context, record, &sample, event, period);
            }
        }
    }

    fn count(
        &mut self,
        context: &Context<'a>,
        record: &RawRecord<'_>,
        sample: &Sample<'_>,
        event: usize,
        period: u64,
    ) {
        let options = context.options;
        let pid = sample.pid.unwrap_or(-1);
        let tid = sample.tid.unwrap_or(pid);
        let time_ns = sample.time.unwrap_or(0);
        if options.excludes(pid, tid, time_ns)
            || context.cgroups.as_ref().is_some_and(|s| sample.cgroup.is_none_or(|id| !s.contains(&id)))
            || options.cpus.as_ref().is_some_and(|s| sample.cpu.is_none_or(|c| !s.contains(&c)))
        {
            return;
        }
        let parallelism = context.parallelism.map_or(1, |parallelism| parallelism.at(time_ns));
        if options.parallelism.as_ref().is_some_and(|wanted| !wanted.contains(&parallelism)) {
            return;
        }
        let view = self.view(context.timeline, pid, tid, Moment::new(sample.time, record.position));
        let mode = (record.header.misc & abi::PERF_RECORD_MISC_CPUMODE_MASK) as u8;
        let ip = sample.ip.unwrap_or(0);
        let tally = &mut self.tally;
        tally.single_threaded += u64::from(parallelism == 1);
        let chain = match &mut self.unwinder {
            Some(unwinder) if unwinder.changes(sample) => {
                unwinder.whole_chain(sample, view.maps, &mut self.scratch);
                tally.chains.intern(view.maps, mode, ip, &self.scratch)
            }
            _ => {
                let words = match sample.callchain {
                    Some(words) if options.callchains => words.as_bytes(),
                    _ => &[],
                };
                tally.chains.intern(view.maps, mode, ip, words)
            }
        };
        let dims = options.dims;
        let extra = if dims.time_quantum_ns != 0 || dims.raw || dims.cgroup || dims.parallelism {
            let quantum = dims.time_quantum_ns;
            let raw = if dims.raw { sample.raw.unwrap_or_default() } else { &[] };
            tally.extras.intern(Extra {
                time_ns: time_ns.checked_div(quantum).unwrap_or(0) * quantum,
                event: if raw.is_empty() { 0 } else { event as u32 },
                raw: raw.into(),
                cgroup: sample.cgroup.filter(|_| dims.cgroup).unwrap_or(0),
                parallelism: if dims.parallelism { parallelism } else { 0 },
            })
        } else {
            0
        };
        let key = GroupKey {
            event: event as u32,
            comm: view.comm,
            pid: if dims.pid || dims.tid { pid } else { 0 },
            tid: if dims.tid { tid } else { 0 },
            cpu: if dims.cpu { sample.cpu.unwrap_or(u32::MAX) } else { 0 },
            extra,
            chain,
        };
        let latency = match options.latency {
            true => period.saturating_mul(LATENCY_SCALE) / u64::from(parallelism),
            false => 0,
        };
        let count = Count { samples: 1, period, latency };
        *tally.groups.entry(key).or_default() += count;
        if options.samples > 0 {
            *tally.threads.entry((pid, tid)).or_default() += count;
            tally.instants.add(Instant {
                time_ns,
                event: event as u32,
                tid,
                comm: view.comm,
                cpu: sample.cpu.unwrap_or(u32::MAX),
                chain,
                period,
            });
        }
        if let Some(time) = sample.time {
            let (first, last) = tally.time_range.unwrap_or((time, time));
            tally.time_range = Some((first.min(time), last.max(time)));
        }
    }

    #[inline]
    fn view(&mut self, timeline: &Timeline, pid: i32, tid: i32, moment: Moment) -> ThreadView {
        if let Some((known, view)) = self.views.get(&tid)
            && *known == pid
            && view.span.holds(moment)
        {
            return *view;
        }
        let view = timeline.thread(pid, tid, moment);
        self.views.insert(tid, (pid, view));
        view
    }
}

impl Tally {
    fn new(samples: usize) -> Tally {
        Tally {
            chains: Chains::default(),
            extras: Extras::default(),
            groups: FxHashMap::default(),
            threads: FxHashMap::default(),
            instants: Instants::new(samples),
            time_range: None,
            unknown_ids: 0,
            single_threaded: 0,
        }
    }

    fn absorb(&mut self, tally: Tally) {
        let ids = self.chains.absorb(&tally.chains);
        let extras = self.extras.absorb(&tally.extras);
        for (key, count) in tally.groups {
            let extra = extras[key.extra as usize];
            *self.groups.entry(GroupKey { chain: ids[key.chain as usize], extra, ..key }).or_default() +=
                count;
        }
        for (thread, count) in tally.threads {
            *self.threads.entry(thread).or_default() += count;
        }
        self.instants.absorb(tally.instants, |chain| ids[chain as usize]);
        self.time_range = match (self.time_range, tally.time_range) {
            (Some(a), Some(b)) => Some((a.0.min(b.0), a.1.max(b.1))),
            (a, b) => a.or(b),
        };
        self.unknown_ids += tally.unknown_ids;
        self.single_threaded += tally.single_threaded;
    }

    /// All but how stacks were unwound, and how long it took.
    fn finish(
        self,
        events: usize,
        timeline: Timeline,
        mut counts: RecordCounts,
        summary: ReadSummary,
    ) -> Loaded {
        let mut groups: Vec<(GroupKey, Count)> = self.groups.into_iter().collect();
        // A hash table's order must not reach the output. Chain ids depend on which worker was
        // first, so the order here is by what the chains are.
        groups.sort_unstable_by(|(a, _), (b, _)| {
            (a.event, a.comm, a.pid, a.tid, a.cpu).cmp(&(b.event, b.comm, b.pid, b.tid, b.cpu)).then_with(
                || {
                    let (x, y) = (self.chains.get(a.chain), self.chains.get(b.chain));
                    let extras = self.extras.get(a.extra).cmp(self.extras.get(b.extra));
                    extras
                        .then_with(|| (x.maps, x.mode, x.ip).cmp(&(y.maps, y.mode, y.ip)))
                        .then_with(|| self.chains.bytes(x).cmp(self.chains.bytes(y)))
                },
            )
        });
        let mut totals = vec![Count::default(); events];
        for (key, count) in &groups {
            totals[key.event as usize] += *count;
        }
        let instant_stride = self.instants.stride;
        let mut instants = self.instants.kept;
        instants.sort_unstable_by_key(|i| (i.time_ns, i.tid, i.event, i.chain));
        let mut threads: Vec<_> = self.threads.into_iter().map(|((p, t), c)| (p, t, c)).collect();
        threads.sort_unstable_by_key(|t| (std::cmp::Reverse(t.2.samples), t.0, t.1));
        counts.unknown_ids += self.unknown_ids;
        Loaded {
            timeline,
            chains: self.chains,
            extras: self.extras,
            groups,
            totals,
            instants,
            instant_stride,
            threads,
            single_threaded: self.single_threaded,
            time_range: self.time_range,
            counts,
            summary,
            unwind: UnwindStats::default(),
            times: LoadTimes::default(),
        }
    }
}

/// Whether an event's samples carry counter values whose differences are the periods.
pub(crate) fn counts_by_reading(event: &Event) -> bool {
    event.attr.sample_type & abi::PERF_SAMPLE_READ != 0
}
