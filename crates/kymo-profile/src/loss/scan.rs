//! From a recording to its losses: one pass on all CPUs, and what is left to do in order.
//!
//! ```text
//!  chunk 7 of the file      CPU 0: rec LOST rec | CPU 1: LOST rec rec LOST rec
//!                                  |              |          |    interval known here: into bins and list
//!                                  |              '- *open*: its record before is in an earlier chunk
//!  piece (7, CPU 1)         first LOST at t, last time u            |
//!  all pieces, in order     .. (6, CPU 1) last time s  ->  (7, CPU 1) interval s..t, last time u  ..
//! ```
//!
//! A chunk has at most one open LOST per ring: every later one has the open one before it.
use super::bins::{self, Bins, Cell};
use super::stretch::{length_ns, union};
use super::{EventLoss, LossTimeline, MOST_CPUS, MOST_INTERVALS, Ring, RingLoss, Stretch};
use kymo_data::{Event, EventSet, Mark, RawRecord, ReadError, Record, Recording, UnwindCounts, abi};
use rustc_hash::FxHashMap;

/// ID_INDEX records are looked for among so many records at the start; perf writes them among the first.
const LOOK_FOR_IDS: usize = 1 << 16;
const MOST_IDS: usize = 1 << 20;

/// Reads a recording's losses with so many threads (0: one per CPU).
///
/// `progress` hears the bytes done and in all.
///
/// # Errors
/// When the file cannot be read at all. Damage inside it is not an error: see [`LossTimeline::problems`].
pub fn scan(
    recording: &Recording,
    workers: usize,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<LossTimeline, ReadError> {
    let context = Context::new(recording)?;
    let (tallies, summary) = recording.read_parallel(
        workers,
        || Tally::new(&context),
        |tally, chunk| {
            for record in chunk.records().flatten() {
                tally.take(&context, &record, chunk.stream());
            }
            tally.end_chunk(chunk.stream(), chunk.position());
        },
        progress,
    )?;
    let mut all = Tally::new(&context);
    for tally in tallies {
        all.absorb(tally);
    }
    let mut timeline = all.finish(&context);
    timeline.problems = summary.problems;
    Ok(timeline)
}

/// Where a sample of one event has what is needed of it: offsets in its body.
struct Places {
    time: Option<usize>,
    cpu: Option<usize>,
    id: Option<usize>,
}

impl Places {
    fn new(event: &Event) -> Places {
        let bits = event.attr.sample_type;
        // The fields before CPU in the order in which they lie, 8 bytes each.
        let order = [
            abi::PERF_SAMPLE_IDENTIFIER,
            abi::PERF_SAMPLE_IP,
            abi::PERF_SAMPLE_TID,
            abi::PERF_SAMPLE_TIME,
            abi::PERF_SAMPLE_ADDR,
            abi::PERF_SAMPLE_ID,
            abi::PERF_SAMPLE_STREAM_ID,
            abi::PERF_SAMPLE_CPU,
        ];
        let place = |bit: u64| {
            let before = order.iter().take_while(|&&o| o != bit).filter(|&&o| bits & o != 0).count();
            (bits & bit != 0).then_some(8 * before)
        };
        Places {
            time: place(abi::PERF_SAMPLE_TIME),
            cpu: place(abi::PERF_SAMPLE_CPU),
            id: place(abi::PERF_SAMPLE_IDENTIFIER).or(place(abi::PERF_SAMPLE_ID)),
        }
    }
}

fn word(body: &[u8], at: Option<usize>) -> Option<u64> {
    body.get(at?..)?.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes))
}

struct Context<'a> {
    events: &'a EventSet,
    places: Vec<Places>,
    cpu_of_id: FxHashMap<u64, u32>,
}

impl<'a> Context<'a> {
    fn new(recording: &'a Recording) -> Result<Context<'a>, ReadError> {
        let events = &recording.events;
        let places = events.list.iter().map(Places::new).collect();
        let mut cpu_of_id = FxHashMap::default();
        let mut records = recording.records();
        for _ in 0..LOOK_FOR_IDS {
            let Some(record) = records.next_record()? else { break };
            if record.header.kind == abi::PERF_RECORD_SAMPLE {
                break;
            }
            let Ok(Record::IdIndex { nr, entries }) = record.parse() else { continue };
            let nr = usize::try_from(nr).unwrap_or(usize::MAX).min(entries.len() / 4);
            for entry in 0..nr {
                let (id, cpu) = (entries.get(4 * entry), entries.get(4 * entry + 2));
                if let (Some(id), Some(cpu)) = (id, cpu)
                    && cpu < u64::from(MOST_CPUS)
                    && cpu_of_id.len() < MOST_IDS
                {
                    cpu_of_id.insert(id, cpu as u32);
                }
            }
        }
        Ok(Context { events, places, cpu_of_id })
    }

    fn ring(&self, cpu: Option<u32>, id: Option<u64>, stream: usize) -> Ring {
        let known = |cpu: &u32| *cpu < MOST_CPUS;
        let of_id = || id.and_then(|id| self.cpu_of_id.get(&id).copied());
        match cpu.filter(known).or_else(of_id) {
            Some(cpu) => Ring::Cpu(cpu),
            None if stream > 0 => Ring::Part(stream as u32),
            None => Ring::Unknown,
        }
    }
}

/// One ring's share of what one worker saw.
#[derive(Default)]
struct RingTally {
    samples: u64,
    bytes: u64,
    lost_records: u64,
    lost_chunks: u64,
    lost_samples: u64,
    throttles: u64,
    bins: Bins,
    /// In this chunk: the LOST that has no record before it, and the last time.
    open: Option<u64>,
    last: Option<u64>,
}

/// What a chunk knows of one ring and its neighbours need.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Piece {
    stream: usize,
    position: u64,
    ring: Ring,
    open: Option<u64>,
    last: u64,
}

/// A THROTTLE (`on`) or UNTHROTTLE record.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Switch {
    stream: usize,
    position: u64,
    ring: Ring,
    id: u64,
    time_ns: u64,
    on: bool,
}

/// A list that is given up for good when it grows too long; how long it would be decides, whoever counted.
struct Capped<T> {
    list: Vec<T>,
    count: u64,
}

impl<T> Default for Capped<T> {
    fn default() -> Capped<T> {
        Capped { list: Vec::new(), count: 0 }
    }
}

impl<T> Capped<T> {
    fn push(&mut self, item: T) {
        self.absorb(Capped { list: vec![item], count: 1 });
    }

    fn absorb(&mut self, mut other: Capped<T>) {
        self.count += other.count;
        if self.is_full() {
            self.list = Vec::new();
        } else {
            self.list.append(&mut other.list);
        }
    }

    fn is_full(&self) -> bool {
        self.count > MOST_INTERVALS as u64
    }
}

#[derive(Default)]
struct Tally {
    slots: FxHashMap<Ring, usize>,
    rings: Vec<(Ring, RingTally)>,
    /// The ring of the record before: nearly always this one's, too.
    recent: usize,
    touched: Vec<usize>,
    events: Vec<EventLoss>,
    span: Option<(u64, u64)>,
    shift: u32,
    lost: Capped<(Ring, Stretch)>,
    pieces: Vec<Piece>,
    switches: Capped<Switch>,
    pauses: Capped<Stretch>,
    cpu_gaps: Capped<(Ring, Stretch)>,
    unwound: Option<UnwindCounts>,
    unplaced_lost_samples: u64,
    unknown_ids: u64,
}

impl Tally {
    fn new(context: &Context<'_>) -> Tally {
        Tally { events: vec![EventLoss::default(); context.events.list.len()], ..Tally::default() }
    }

    fn slot(&mut self, ring: Ring) -> usize {
        if self.rings.get(self.recent).is_some_and(|(r, _)| *r == ring) {
            return self.recent;
        }
        let rings = &mut self.rings;
        let mut grown = false;
        self.recent = *self.slots.entry(ring).or_insert_with(|| {
            rings.push((ring, RingTally::default()));
            grown = true;
            rings.len() - 1
        });
        if grown {
            self.fit();
        }
        self.recent
    }

    /// Makes bins as wide as the span and the number of rings ask for.
    fn fit(&mut self) {
        let Some(span) = self.span else { return };
        let shift = bins::shift_for(span, self.rings.len(), self.shift);
        self.coarsen(shift);
    }

    fn coarsen(&mut self, shift: u32) {
        for (_, ring) in &mut self.rings {
            ring.bins.coarsen(shift - self.shift);
        }
        self.shift = shift;
    }

    fn see(&mut self, time_ns: u64) {
        let (first, last) = self.span.unwrap_or((time_ns, time_ns));
        if self.span.is_none() || time_ns < first || time_ns > last {
            self.span = Some((first.min(time_ns), last.max(time_ns)));
            self.fit();
        }
    }

    #[inline]
    fn take(&mut self, context: &Context<'_>, record: &RawRecord<'_>, stream: usize) {
        match record.header.kind {
            abi::PERF_RECORD_SAMPLE => self.sample(context, record, stream),
            abi::PERF_RECORD_HEADER_EVENT_TYPE => match Mark::parse(record) {
                Some(Mark::Pause { start_ns, end_ns }) => {
                    self.pauses.push(Stretch { start_ns, end_ns });
                }
                Some(Mark::CpuGap { cpu, start_ns, end_ns }) if cpu < MOST_CPUS => {
                    self.cpu_gaps.push((Ring::Cpu(cpu), Stretch { start_ns, end_ns }));
                }
                Some(Mark::Unwound(counts)) => self.unwound.get_or_insert_default().add(&counts),
                _ => {}
            },
            _ if record.is_user_type() => {}
            _ => self.other(context, record, stream),
        }
    }

    fn sample(&mut self, context: &Context<'_>, record: &RawRecord<'_>, stream: usize) {
        let Some(event) = context.events.event_of(record) else {
            self.unknown_ids += 1;
            return;
        };
        let (Some(kept), Some(places)) = (self.events.get_mut(event), context.places.get(event)) else {
            return;
        };
        kept.samples += 1;
        let cpu = word(record.body, places.cpu).map(|word| word as u32);
        let ring = context.ring(cpu, word(record.body, places.id), stream);
        let slot = self.slot(ring);
        self.rings[slot].1.samples += 1;
        self.place(slot, word(record.body, places.time), 1, record.header.size);
    }

    /// Counts a record at its time, if it has one. Returns that time.
    fn place(&mut self, slot: usize, time: Option<u64>, samples: u64, bytes: u16) -> Option<u64> {
        let time_ns = real_time(time)?;
        self.see(time_ns);
        let ring = &mut self.rings[slot].1;
        ring.bytes += u64::from(bytes);
        *ring.bins.at(time_ns >> self.shift) += Cell { samples, bytes: u64::from(bytes), ..Cell::default() };
        if ring.last.replace(time_ns).is_none() {
            self.touched.push(slot);
        }
        Some(time_ns)
    }

    fn other(&mut self, context: &Context<'_>, record: &RawRecord<'_>, stream: usize) {
        let id = context.events.sample_id(record);
        let event = context.events.event_of(record);
        match record.header.kind {
            abi::PERF_RECORD_LOST_SAMPLES => {
                let Ok(Record::LostSamples { lost }) = record.parse() else { return };
                if let Some(event) = event.and_then(|e| self.events.get_mut(e)) {
                    event.lost_samples = event.lost_samples.saturating_add(lost);
                }
                // perf leaves the CPU and the thread 0 here; kymo writes which CPU, and thread -1.
                let cpu = id.cpu.filter(|_| id.tid.is_none_or(|tid| tid != 0));
                match context.ring(cpu, id.id, 0) {
                    Ring::Unknown => {
                        self.unplaced_lost_samples = self.unplaced_lost_samples.saturating_add(lost)
                    }
                    ring => {
                        let slot = self.slot(ring);
                        let ring = &mut self.rings[slot].1;
                        ring.lost_samples = ring.lost_samples.saturating_add(lost);
                    }
                }
            }
            abi::PERF_RECORD_LOST => {
                let Ok(Record::Lost { id: writer, lost }) = record.parse() else { return };
                let slot = self.slot(context.ring(id.cpu, id.id.or(Some(writer)), stream));
                let ring = &mut self.rings[slot].1;
                ring.lost_records = ring.lost_records.saturating_add(lost);
                ring.lost_chunks += 1;
                let before = ring.last;
                let Some(end_ns) = self.place(slot, id.time, 0, record.header.size) else { return };
                match before {
                    Some(start_ns) => self.lose(slot, Stretch { start_ns, end_ns }),
                    None => self.rings[slot].1.open = Some(end_ns),
                }
            }
            abi::PERF_RECORD_THROTTLE | abi::PERF_RECORD_UNTHROTTLE => {
                let (on, throttle) = match record.parse() {
                    Ok(Record::Throttle(throttle)) => (true, throttle),
                    Ok(Record::Unthrottle(throttle)) => (false, throttle),
                    _ => return,
                };
                let ring = context.ring(id.cpu, id.id.or(Some(throttle.id)), stream);
                let slot = self.slot(ring);
                if on {
                    self.rings[slot].1.throttles += 1;
                    if let Some(event) = event.and_then(|e| self.events.get_mut(e)) {
                        event.throttles += 1;
                    }
                }
                self.place(slot, id.time, 0, record.header.size);
                if let Some(time_ns) = real_time(Some(throttle.time)) {
                    let (position, id) = (record.position, throttle.id);
                    self.switches.push(Switch { stream, position, ring, id, time_ns, on });
                }
            }
            _ => {
                let Some(time_ns) = real_time(id.time) else { return };
                let slot = self.slot(context.ring(id.cpu, id.id, stream));
                self.place(slot, Some(time_ns), 0, record.header.size);
            }
        }
    }

    fn lose(&mut self, slot: usize, stretch: Stretch) {
        let shift = self.shift;
        let (ring, tally) = &mut self.rings[slot];
        tally.bins.spread(stretch, shift, |cell, ns| cell.lost_ns = cell.lost_ns.saturating_add(ns));
        self.lost.push((*ring, stretch));
    }

    fn end_chunk(&mut self, stream: usize, position: u64) {
        for slot in std::mem::take(&mut self.touched) {
            let (ring, tally) = &mut self.rings[slot];
            let open = tally.open.take();
            if let Some(last) = tally.last.take() {
                self.pieces.push(Piece { stream, position, ring: *ring, open, last });
            }
        }
    }

    fn absorb(&mut self, mut other: Tally) {
        if let Some((first, last)) = other.span {
            self.see(first);
            self.see(last);
        }
        for (ring, _) in &other.rings {
            self.slot(*ring);
        }
        // Now wide enough for both: the other's span and rings are part of this one's.
        self.fit();
        other.coarsen(self.shift);
        for (ring, tally) in other.rings {
            let slot = self.slot(ring);
            let mine = &mut self.rings[slot].1;
            mine.samples += tally.samples;
            mine.bytes += tally.bytes;
            mine.lost_records = mine.lost_records.saturating_add(tally.lost_records);
            mine.lost_chunks += tally.lost_chunks;
            mine.lost_samples = mine.lost_samples.saturating_add(tally.lost_samples);
            mine.throttles += tally.throttles;
            mine.bins.absorb(tally.bins);
        }
        for (mine, event) in self.events.iter_mut().zip(other.events) {
            mine.samples += event.samples;
            mine.lost_samples = mine.lost_samples.saturating_add(event.lost_samples);
            mine.throttles += event.throttles;
        }
        self.lost.absorb(other.lost);
        self.pieces.append(&mut other.pieces);
        self.switches.absorb(other.switches);
        self.pauses.absorb(other.pauses);
        self.cpu_gaps.absorb(other.cpu_gaps);
        if let Some(counts) = other.unwound {
            self.unwound.get_or_insert_default().add(&counts);
        }
        self.unplaced_lost_samples = self.unplaced_lost_samples.saturating_add(other.unplaced_lost_samples);
        self.unknown_ids += other.unknown_ids;
    }

    /// Closes the intervals that began in an earlier chunk, and those that nothing ended.
    fn close(&mut self) {
        let Some((first, end)) = self.span else { return };
        let mut pieces = std::mem::take(&mut self.pieces);
        pieces.sort_unstable();
        let mut last: FxHashMap<(usize, Ring), u64> = FxHashMap::default();
        for piece in pieces {
            let before = last.insert((piece.stream, piece.ring), piece.last);
            if let Some(end_ns) = piece.open {
                let start_ns = before.unwrap_or(first.min(end_ns));
                let slot = self.slot(piece.ring);
                self.lose(slot, Stretch { start_ns, end_ns });
            }
        }
        let mut latest: FxHashMap<Ring, u64> = FxHashMap::default();
        for ((_, ring), time_ns) in last {
            let latest = latest.entry(ring).or_default();
            *latest = time_ns.max(*latest);
        }
        for slot in 0..self.rings.len() {
            let (ring, tally) = &self.rings[slot];
            if tally.lost_samples > tally.lost_records {
                let start_ns = latest.get(ring).copied().unwrap_or(first);
                self.lose(slot, Stretch { start_ns, end_ns: end });
            }
        }
    }

    fn throttled(&mut self) -> FxHashMap<Ring, Vec<Stretch>> {
        let mut switches = std::mem::take(&mut self.switches.list);
        switches.sort_unstable();
        let mut since: FxHashMap<(Ring, u64), u64> = FxHashMap::default();
        let mut stretches: FxHashMap<Ring, Vec<Stretch>> = FxHashMap::default();
        for switch in switches {
            let key = (switch.ring, switch.id);
            if switch.on {
                since.entry(key).or_insert(switch.time_ns);
            } else if let Some(start_ns) = since.remove(&key) {
                stretches.entry(switch.ring).or_default().push(Stretch { start_ns, end_ns: switch.time_ns });
            }
        }
        let end_ns = self.span.map_or(0, |s| s.1);
        for ((ring, _), start_ns) in since {
            stretches.entry(ring).or_default().push(Stretch { start_ns, end_ns });
        }
        stretches
    }

    fn finish(mut self, context: &Context<'_>) -> LossTimeline {
        self.close();
        let mut throttled = self.throttled();
        let estimated = self.lost.is_full();
        let span = self.span.unwrap_or((0, 0));
        let shift = self.shift;
        let (first_bin, last_bin) = (span.0 >> shift, span.1 >> shift);
        let width = 1u64 << shift;
        let mut lost: FxHashMap<Ring, Vec<Stretch>> = FxHashMap::default();
        for (ring, stretch) in std::mem::take(&mut self.lost.list) {
            lost.entry(ring).or_default().push(stretch);
        }
        self.rings.sort_unstable_by_key(|(ring, _)| *ring);
        let mut cpu_gaps = std::mem::take(&mut self.cpu_gaps.list);
        cpu_gaps.sort_unstable_by_key(|(ring, stretch)| (stretch.start_ns, stretch.end_ns, *ring));
        let mut timeline = LossTimeline {
            span: self.span,
            bin_ns: width,
            first_bin,
            estimated,
            pauses: union(clipped(self.pauses.list, span)),
            cpu_gaps,
            unwound: self.unwound,
            unplaced_lost_samples: self.unplaced_lost_samples,
            unknown_ids: self.unknown_ids,
            events: self.events,
            ..LossTimeline::default()
        };
        for (event, known) in timeline.events.iter_mut().zip(&context.events.list) {
            event.name.clone_from(&known.name);
        }
        let mut all_lost = Vec::new();
        for (ring, mut tally) in self.rings {
            let lost = union(lost.remove(&ring).unwrap_or_default());
            let throttled = union(clipped(throttled.remove(&ring).unwrap_or_default(), span));
            if self.span.is_some() {
                // Both ends, so that all rings have the same bins.
                tally.bins.at(first_bin);
                tally.bins.at(last_bin);
            }
            if !estimated {
                tally.bins.cells.iter_mut().for_each(|cell| cell.lost_ns = 0);
                for &stretch in &lost {
                    tally.bins.spread(stretch, shift, |cell, ns| cell.lost_ns += ns);
                }
            }
            for &stretch in &throttled {
                tally.bins.spread(stretch, shift, |cell, ns| cell.throttled_ns += ns);
            }
            let mut cells = tally.bins.cells;
            // Only an estimate can be more: intervals overlap where time goes backwards.
            cells.iter_mut().for_each(|cell| cell.lost_ns = cell.lost_ns.min(width));
            let elapsed = span.1 - span.0;
            let of_cells = cells.iter().fold(0u64, |sum, c| sum.saturating_add(c.lost_ns)).min(elapsed);
            timeline.rings.push(RingLoss {
                ring,
                samples: tally.samples,
                bytes: tally.bytes,
                lost_records: tally.lost_records,
                lost_chunks: tally.lost_chunks,
                lost_samples: tally.lost_samples,
                lost_ns: if estimated { of_cells } else { length_ns(&lost) },
                throttles: tally.throttles,
                throttled_ns: length_ns(&throttled),
                cells,
            });
            all_lost.extend_from_slice(&lost);
            timeline.lost.extend(lost.into_iter().map(|s| (ring, s)));
            timeline.throttled.extend(throttled.into_iter().map(|s| (ring, s)));
        }
        timeline.any(union(all_lost), shift);
        timeline
    }
}

impl LossTimeline {
    fn any(&mut self, lost: Vec<Stretch>, shift: u32) {
        let count = self.rings.first().map_or(0, |r| r.cells.len());
        let mut cells = vec![0u64; count];
        if self.estimated {
            for ring in &self.rings {
                for (sum, cell) in cells.iter_mut().zip(&ring.cells) {
                    *sum = sum.saturating_add(cell.lost_ns).min(self.bin_ns);
                }
            }
            let sum = cells.iter().fold(0u64, |sum, &ns| sum.saturating_add(ns));
            self.any_lost_ns = sum.min(self.elapsed_ns());
        } else {
            for &stretch in &lost {
                for (number, ns) in bins::parts(stretch, shift) {
                    if let Some(cell) = cells.get_mut((number - self.first_bin) as usize) {
                        *cell += ns;
                    }
                }
            }
            self.any_lost_ns = length_ns(&lost);
        }
        self.any_cells = cells;
    }
}

/// The parts of stretches that lie in the recording.
fn clipped(mut list: Vec<Stretch>, span: (u64, u64)) -> Vec<Stretch> {
    for stretch in &mut list {
        stretch.start_ns = stretch.start_ns.max(span.0);
        stretch.end_ns = stretch.end_ns.min(span.1);
    }
    list
}

/// The time of a record that the kernel wrote; recorders fill in 0 or all ones.
pub(super) fn real_time(time: Option<u64>) -> Option<u64> {
    time.filter(|&t| t != 0 && t != u64::MAX)
}
