//! What a worker of the second pass does with a sample: it looks up who was sampled, and makes a
//! row.
use super::tally::Tally;
use super::{LoadOptions, Parallelism, ReadPeriods, counts_by_reading};
use crate::chains::RawChain;
use crate::columns::{Row, Thread, ThreadId};
use crate::extra::Extra;
use crate::timeline::{Moment, ThreadView, Timeline};
use crate::unwind_samples::{StackUnwinder, ThreadUnwinder, recorded_chain};
use crate::wall::is_of_waits;
use kymo_data::{Chunk, RawRecord, Recording, Sample, abi};
use rustc_hash::{FxHashMap, FxHashSet};

/// What all workers of the second pass share.
pub(super) struct Context<'a> {
    pub(super) recording: &'a Recording,
    pub(super) timeline: &'a Timeline,
    pub(super) options: &'a LoadOptions,
    /// The cgroups whose samples are wanted, if not all are.
    pub(super) cgroups: Option<FxHashSet<u64>>,
    pub(super) reads: &'a ReadPeriods,
    pub(super) parallelism: Option<&'a Parallelism>,
    pub(super) unwinder: Option<&'a StackUnwinder<'a>>,
}

/// One worker.
pub(super) struct Worker<'a> {
    pub(super) tally: Tally,
    /// Each thread's latest state, with the span that it holds for.
    views: FxHashMap<i32, (i32, ThreadView, ThreadId)>,
    pub(super) unwinder: Option<ThreadUnwinder<'a>>,
    /// A call chain put together from the kernel's part and unwound frames.
    scratch: Vec<u8>,
}

impl<'a> Worker<'a> {
    pub(super) fn new(context: &Context<'a>) -> Worker<'a> {
        Worker {
            tally: Tally::new(context.recording, context.options),
            views: FxHashMap::default(),
            unwinder: context.unwinder.map(StackUnwinder::thread),
            scratch: Vec::new(),
        }
    }

    pub(super) fn chunk(&mut self, context: &Context<'a>, chunk: &Chunk) {
        self.tally.begin_chunk(chunk.position());
        for record in chunk.records().flatten() {
            if record.header.kind == abi::PERF_RECORD_SAMPLE {
                self.sample(context, &record);
            }
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
        let pid = sample.pid.unwrap_or(-1);
        let tid = sample.tid.unwrap_or(pid);
        let time_ns = sample.time.unwrap_or(0);
        if !is_wanted(context, sample, pid, tid, time_ns) {
            return;
        }
        let options = context.options;
        let parallelism = context.parallelism.map_or(1, |parallelism| parallelism.at(time_ns));
        if options.parallelism.as_ref().is_some_and(|wanted| !wanted.contains(&parallelism)) {
            return;
        }
        let (maps, thread) = self.view(context.timeline, pid, tid, Moment::new(sample.time, record.position));
        let mode = (record.header.misc & abi::PERF_RECORD_MISC_CPUMODE_MASK) as u8;
        let ip = sample.ip.unwrap_or(0);
        let tally = &mut self.tally;
        let has_stack = options.callchains
            && !(options.without_wait_stacks && is_of_waits(&context.recording.events.list[event].name));
        let attr = &context.recording.events.list[event].attr;
        let chain = match &mut self.unwinder {
            _ if !has_stack => RawChain::default(),
            Some(unwinder) => unwinder.chain(attr, sample, maps, &mut self.scratch),
            None => recorded_chain(attr, sample),
        };
        let stack = tally.chains.intern(maps, mode, ip, chain);
        let row = Row {
            time_ns,
            thread,
            cpu: sample.cpu.unwrap_or(u32::MAX),
            event: event as u32,
            stack,
            period,
            weight: sample.weight,
            state: 0,
            waker: None,
            span_ns: 0,
            parallelism,
            extra: self.extra(options, sample, event, parallelism),
        };
        self.tally.add(&row, sample.time);
    }

    /// What was asked of the sample beyond thread, CPU and stack.
    #[inline]
    fn extra(&mut self, options: &LoadOptions, sample: &Sample<'_>, event: usize, parallelism: u32) -> u32 {
        let dims = options.dims;
        let quantum = dims.time_quantum_ns;
        if quantum == 0 && !dims.raw && !dims.cgroup && !dims.parallelism {
            return 0;
        }
        let raw = sample.raw.filter(|raw| dims.raw && !raw.is_empty());
        self.tally.extras.intern(Extra {
            time_ns: sample.time.unwrap_or(0).checked_div(quantum).unwrap_or(0) * quantum,
            event: raw.map_or(0, |_| event as u32),
            raw: raw.map(Box::from),
            cgroup: sample.cgroup.filter(|_| dims.cgroup).unwrap_or(0),
            parallelism: if dims.parallelism { parallelism } else { 0 },
        })
    }

    /// The version of the thread's address space at a moment, and the thread under its name then.
    #[inline]
    fn view(&mut self, timeline: &Timeline, pid: i32, tid: i32, moment: Moment) -> (u32, ThreadId) {
        if let Some((known, view, thread)) = self.views.get(&tid)
            && *known == pid
            && view.span.holds(moment)
        {
            return (view.maps, *thread);
        }
        let view = timeline.thread(pid, tid, moment);
        let thread = self.tally.threads.intern(Thread { pid, tid, comm: view.comm });
        self.views.insert(tid, (pid, view, thread));
        (view.maps, thread)
    }
}

/// Whether the options let a sample through.
#[inline]
fn is_wanted(context: &Context<'_>, sample: &Sample<'_>, pid: i32, tid: i32, time_ns: u64) -> bool {
    let options = context.options;
    !(options.excludes(pid, tid, time_ns)
        || context.cgroups.as_ref().is_some_and(|s| sample.cgroup.is_none_or(|id| !s.contains(&id)))
        || options.cpus.as_ref().is_some_and(|s| sample.cpu.is_none_or(|c| !s.contains(&c))))
}
