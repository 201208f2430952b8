//! The first pass: side-band records into a timeline.
use super::*;
use crate::generated_code::{CodeRecords, GeneratedCode};
use crate::timeline::Scripts;
use kymo_data::{EventSet, FileBuildId, InterpretedFunction, ReadError};

struct Side {
    events: Vec<(Moment, SideEvent)>,
    counts: RecordCounts,
    reads: Vec<reads::Read>,
    code: CodeRecords,
    functions: Vec<InterpretedFunction>,
    build_ids: Vec<FileBuildId>,
    /// Records by type below the first user type, which are nearly all.
    low: [u64; 64],
}

impl Side {
    fn new() -> Side {
        Side {
            events: Vec::new(),
            counts: RecordCounts::default(),
            reads: Vec::new(),
            code: CodeRecords::default(),
            functions: Vec::new(),
            build_ids: Vec::new(),
            low: [0; 64],
        }
    }
}

/// Collects side-band records on all workers and replays them.
pub(crate) fn collect(
    recording: &Recording,
    workers: usize,
    symbols: &SymbolOptions,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<(Timeline, RecordCounts, ReadPeriods), ReadError> {
    let events = &recording.events;
    let need_reads = events.list.iter().any(counts_by_reading);
    // Without trailers there are no times to sort by: the file's order is the order.
    let timed = events.list.iter().all(|e| {
        e.attr.sample_type & abi::PERF_SAMPLE_TIME != 0 && e.attr.flags & abi::ATTR_FLAG_SAMPLE_ID_ALL != 0
    });
    let (sides, _) = recording.read_parallel(
        workers,
        Side::new,
        |side, chunk| {
            for record in chunk.records().flatten() {
                match record.header.kind {
                    abi::PERF_RECORD_SAMPLE => {
                        side.low[abi::PERF_RECORD_SAMPLE as usize] += 1;
                        if need_reads {
                            side.read_counters(events, &record);
                        }
                    }
                    _ => side.take(events, &record, timed),
                }
            }
        },
        progress,
    )?;
    let mut all = Side::new();
    for side in sides {
        all.events.extend(side.events);
        all.reads.extend(side.reads);
        all.code.absorb(side.code);
        all.functions.extend(side.functions);
        all.build_ids.extend(side.build_ids);
        for (kind, count) in side.low.into_iter().enumerate().filter(|(_, c)| *c > 0) {
            *all.counts.by_type.entry(kind as u32).or_default() += count;
        }
        for (kind, count) in side.counts.by_type {
            *all.counts.by_type.entry(kind).or_default() += count;
        }
        all.counts.lost_records += side.counts.lost_records;
        all.counts.lost_chunks += side.counts.lost_chunks;
        all.counts.lost_at.extend(side.counts.lost_at);
        all.counts.lost_samples += side.counts.lost_samples;
        all.counts.cgroups.absorb(side.counts.cgroups);
        all.counts.short.absorb(side.counts.short);
        all.counts.throttled += side.counts.throttled;
    }
    all.counts.lost_at.sort_unstable();
    let code = match timed {
        true => all.code.finish(events, &mut all.events, symbols),
        false => GeneratedCode::default(),
    };
    let mut timeline = TimelineBuilder::build(all.events, timed);
    timeline.code = code;
    timeline.scripts = Scripts::new(all.functions, &mut timeline.modules);
    timeline.modules.set_build_ids_of_files(&all.build_ids);
    for build_id in &recording.features.build_ids {
        timeline.modules.set_build_id(&build_id.filename, &build_id.id);
    }
    if let Some(build_id) = recording.features.kernel_build_id() {
        timeline.modules.set_kernel_build_id(build_id);
    }
    timeline.recorded_until = recording.modified();
    Ok((timeline, all.counts, ReadPeriods::new(all.reads)))
}

impl Side {
    fn read_counters(&mut self, events: &EventSet, record: &RawRecord<'_>) {
        let Some(event) = events.event_of(record).map(|e| &events.list[e]) else { return };
        if !counts_by_reading(event) {
            return;
        }
        let Ok(sample) = event.layout.parse(record.header.misc, record.body) else { return };
        let Some(read) = sample.read else { return };
        let moment = Moment::new(sample.time, record.position);
        let inherited = event.attr.flags & abi::ATTR_FLAG_INHERIT != 0;
        let tid = sample.tid.filter(|_| inherited).unwrap_or(0);
        for counter in read.counters() {
            if let Some(id) = counter.id.or(sample.id) {
                self.reads.push(reads::Read { moment, id, tid, value: counter.value });
            }
        }
    }

    fn take(&mut self, events: &EventSet, record: &RawRecord<'_>, timed: bool) {
        match self.low.get_mut(record.header.kind as usize) {
            Some(count) => *count += 1,
            None => {
                self.code.take(record);
                *self.counts.by_type.entry(record.header.kind).or_default() += 1;
                self.functions.extend(InterpretedFunction::parse(record));
                self.build_ids.extend(FileBuildId::parse(record));
                return;
            }
        }
        let parsed = match record.parse() {
            Ok(parsed) => parsed,
            Err(error) => return self.counts.short.add(error),
        };
        if let Some(event) = SideEvent::of(&parsed) {
            let time = if timed { events.sample_id(record).time } else { None };
            self.events.push((Moment::new(time, record.position), event));
            return;
        }
        match parsed {
            Record::Lost { lost, .. } => {
                self.counts.lost_records += lost;
                self.counts.lost_chunks += 1;
                let id = events.sample_id(record);
                if timed && let Some(time_ns) = id.time {
                    self.counts.lost_at.push(LostAt { time_ns, cpu: id.cpu.unwrap_or(u32::MAX), lost });
                }
            }
            Record::LostSamples { lost } => self.counts.lost_samples += lost,
            Record::Cgroup { id, path } => self.counts.cgroups.add(id, path),
            Record::Throttle(_) => self.counts.throttled += 1,
            _ => {}
        }
    }
}
