//! Makes the stubs of a module's functions, and maps them into the process.
use super::event_plan::EventPlan;
use super::plan::{PlannedFunction, PlannedModule};
use crate::modules::CodeMapping;
use kymo_agent::patch::{
    CALL_TABLE_BYTES, CallCounts, CallTable, CallerTable, Clock, Convention, EventRings, FreestandingSpec,
    HitCounter, RoutineAddresses, StubEvent, StubEvents, callers_routine, freestanding_stub, places_near,
    routines,
};
use kymo_core::latency::{Latencies, SLOTS, USED};
use kymo_core::probe::wire::{EventId, Fetch};
use kymo_perf::inject::{RegionCounts, RegionSizes, RemoteRegion, RemoteTarget, SitePatch};
use std::collections::HashMap;

use crate::engine::{ProbeRequest, Reading};

/// More memory than a stub takes; what is not used takes none.
const STUB_BYTES: u64 = 384;
/// The same of one that writes events.
const EVENT_STUB_BYTES: u64 = 1536;
const ROUTINE_BYTES: u64 = 2048;
/// Of a descriptor of restartable sequences, with which a stub may begin.
const ALIGN: usize = 32;
/// A count has a cache line of its own: hits, calls without a slot, and events of hits and of
/// returns without room.
const LINE_WORDS: u32 = 8;
const LOST_HITS: u32 = 2;
const LOST_RETURNS: u32 = 3;
/// Room for so many callers of each site; they share it.
const CALLERS_PER_SITE: u32 = 64;
/// The table of calls begins behind the page with the word that children find wiped.
const TABLE_AT: u64 = 4096;
/// Moved instructions reach their module from within this distance.
const MOST_SPAN_BYTES: u64 = 256 << 20;

/// What is to be counted.
#[derive(Clone, Copy)]
pub(super) struct Measure<'a> {
    pub(super) timed: bool,
    /// Callers are told apart.
    pub(super) callers: bool,
    /// One of so many calls is timed, and its caller told.
    pub(super) every: u32,
    /// Forked children count, too.
    pub(super) children: bool,
    /// What writes events, and where to; none: nothing is written.
    pub(super) events: Option<(&'a EventPlan, Option<EventRings>)>,
}

impl Measure<'_> {
    pub(super) fn of(request: &ProbeRequest, children: bool) -> Measure<'static> {
        let ProbeRequest { timed, callers, every, .. } = *request;
        Measure { timed, callers, every, children, events: None }
    }
}

/// The stubs of one module's functions in a process.
pub(super) struct Stubs {
    pub(super) region: RemoteRegion,
    /// The numbers of the sites, in the order of their counters.
    pub(super) numbers: Vec<usize>,
    layout: SharedLayout,
}

/// What is where among the words that a region shares with this process.
#[derive(Clone, Copy)]
struct SharedLayout {
    /// Sites. Each has a line: hits, calls without a slot.
    count: u32,
    /// Where the histograms begin; as `callers` if calls are not timed.
    histograms: u32,
    /// Where the table of callers begins; as `end` if these are not told apart.
    callers: u32,
    /// The table's entries, as a power of two.
    caller_bits: u32,
    end: u32,
}

impl SharedLayout {
    fn of(count: u32, measure: Measure<'_>) -> SharedLayout {
        let histograms = (count * LINE_WORDS).next_multiple_of(SLOTS);
        let callers = histograms + if measure.timed { count * SLOTS } else { 0 };
        let caller_bits = (count * CALLERS_PER_SITE).next_power_of_two().ilog2().clamp(12, 20);
        let end = callers + if measure.callers { CallerTable::word_count(caller_bits) as u32 } else { 0 };
        SharedLayout { count, histograms, callers, caller_bits, end }
    }
}

/// A module's stubs, what is to be written so that they are used, and what cannot.
pub(super) struct Built {
    pub(super) stubs: Stubs,
    pub(super) patches: Vec<SitePatch>,
    pub(super) refused: HashMap<usize, String>,
}

/// Maps memory for some of a module's functions, and writes their stubs into it: for
/// [`kymo_agent::patch::MOST_TIMED_SITES`] at most.
///
/// # Errors
/// Why none of them can be served, in words.
pub(super) fn build(
    target: &mut dyn RemoteTarget,
    mapped: &[CodeMapping],
    (module, functions): (&PlannedModule, &[PlannedFunction]),
    measure: Measure<'_>,
) -> Result<Built, String> {
    let count = functions.len() as u32;
    if module.span.end - module.span.start > MOST_SPAN_BYTES {
        return Err("its module is too large for jumps to reach all of it".to_owned());
    }
    let patches: usize = functions.iter().map(|function| function.call.sites().count()).sum();
    let layout = SharedLayout::of(count, measure);
    let table_bytes = if measure.timed { CALL_TABLE_BYTES } else { 0 };
    let needs_private = measure.timed || !measure.children;
    let stub_bytes = if measure.events.is_some() { EVENT_STUB_BYTES } else { STUB_BYTES };
    // The first region has the rings of all.
    let own_rings = measure.events.filter(|(_, rings)| rings.is_none()).map(|(plan, _)| plan.rings);
    let sizes = RegionSizes {
        code_bytes: ROUTINE_BYTES + patches as u64 * stub_bytes,
        words: layout.end,
        private_bytes: if needs_private { TABLE_AT + table_bytes } else { 0 },
        rings: own_rings,
    };
    let ranges: Vec<(u64, u64)> = mapped.iter().map(|mapping| (mapping.start, mapping.end)).collect();
    let places = places_near(&ranges, module.span.start, sizes.bytes());
    let region = target.map(&places, sizes).map_err(|refusal| refusal.to_string())?;
    let measure = match measure.events {
        Some((plan, None)) => Measure { events: Some((plan, Some(plan.rings_at(&region)))), ..measure },
        _ => measure,
    };
    let mut writer = StubWriter::new(&region, layout, measure)?;
    let mut built = Vec::new();
    let mut refused = HashMap::new();
    for (index, function) in functions.iter().enumerate() {
        match writer.function(function, index as u32) {
            Ok(patches) => built.extend(patches),
            Err(reason) => _ = refused.insert(function.number, reason),
        }
    }
    region.write_code(&writer.code).map_err(|error| format!("stubs cannot be written: {error}"))?;
    let numbers = functions.iter().map(|function| function.number).collect();
    let stubs = Stubs { region, numbers, layout };
    Ok(Built { stubs, patches: built, refused })
}

/// The routines of a convention, as far as they are needed.
#[derive(Clone, Copy, Default)]
struct Routines {
    timed: Option<RoutineAddresses>,
    callers: Option<u64>,
}

/// Stubs as they lie in a region.
struct StubWriter<'a> {
    region: &'a RemoteRegion,
    code: Vec<u8>,
    c: Routines,
    go: Routines,
    while_set: Option<u64>,
    every: u32,
    events: Option<(&'a EventPlan, EventRings)>,
}

impl<'a> StubWriter<'a> {
    fn new(
        region: &'a RemoteRegion,
        layout: SharedLayout,
        measure: Measure<'a>,
    ) -> Result<StubWriter<'a>, String> {
        let while_set = (!measure.children).then(|| region.private());
        let none = Routines::default();
        let events = measure.events.and_then(|(plan, rings)| Some((plan, rings?)));
        let (code, every) = (Vec::new(), measure.every);
        let mut writer = StubWriter { region, code, c: none, go: none, while_set, every, events };
        writer.c = writer.routines(Convention::C, layout, measure)?;
        writer.go = writer.routines(Convention::Go, layout, measure)?;
        Ok(writer)
    }

    fn routines(
        &mut self,
        convention: Convention,
        layout: SharedLayout,
        measure: Measure<'_>,
    ) -> Result<Routines, String> {
        let mut made = Routines::default();
        if measure.timed {
            let table = CallTable {
                table: self.region.private() + TABLE_AT,
                counts: CallCounts::Shared {
                    histograms: self.region.word(layout.histograms),
                    missed: (self.region.word(1), LINE_WORDS as i32 * 8),
                },
                tick: Clock::measured().tick,
            };
            let (code, addresses) =
                routines(convention, &table, self.next()).map_err(|error| error.to_string())?;
            self.code.extend(code);
            made.timed = Some(addresses);
        }
        if measure.callers {
            let (table, at) = (self.region.word(layout.callers), self.next());
            let table = CallerTable { table, bits: layout.caller_bits, per_cpu: None };
            self.code.extend(callers_routine(convention, table, at).map_err(|error| error.to_string())?);
            made.callers = Some(at);
        }
        Ok(made)
    }

    /// Where the next stub lies.
    fn next(&mut self) -> u64 {
        // A trap: nothing comes here.
        self.code.resize(self.code.len().next_multiple_of(ALIGN), 0xcc);
        self.region.code() + self.code.len() as u64
    }

    fn function(&mut self, function: &PlannedFunction, index: u32) -> Result<Vec<SitePatch>, String> {
        let routines = if function.convention == Convention::Go { self.go } else { self.c };
        let before = self.code.len();
        let mut patches = Vec::new();
        let action = self.events.and_then(|(plan, rings)| Some((plan.actions.get(&function.number)?, rings)));
        let event = |id: Option<EventId>, fetches: &'a [Fetch], lost: u32| {
            let lost = self.region.word(index * LINE_WORDS + lost);
            Some(StubEvent { id: id?, fetches, site: function.start, lost })
        };
        let events = action.map(|(action, rings)| StubEvents {
            rings,
            entry: event(action.event, &action.fetches, LOST_HITS),
            back: event(action.return_event, &action.return_fetches, LOST_RETURNS),
        });
        for (place, patch) in function.call.sites().enumerate() {
            let is_entry = place == 0;
            let spec = FreestandingSpec {
                convention: function.convention,
                number: index,
                hits: is_entry.then(|| HitCounter::Word(self.region.word(index * LINE_WORDS))),
                hits_at: function.counts_at,
                condition: &function.condition,
                return_condition: &function.return_condition,
                every: self.every,
                while_set: self.while_set,
                timed: routines.timed,
                callers: routines.callers,
                exits: &function.call.ends,
                events,
            };
            let at = self.next();
            let stub = freestanding_stub(patch, &spec, at);
            let made = stub.map_err(|error| error.to_string()).and_then(|stub| {
                let to = patch.jump(stub.enter).ok_or("its stub is out of reach")?;
                Ok((stub, to))
            });
            let (stub, to) = match made {
                Ok(made) => made,
                Err(reason) => {
                    self.code.truncate(before);
                    return Err(reason);
                }
            };
            self.code.extend(&stub.code);
            patches.push(SitePatch {
                at: patch.address,
                from: patch.original(),
                to,
                moves: stub.moves(patch),
                group: function.number as u32,
                is_interruptible: function.convention == Convention::Go
                    && (function.is_interruptible || !is_entry || function.moves_body()),
            });
        }
        Ok(patches)
    }
}

impl Stubs {
    /// What they have counted until now, for the sites by their numbers.
    pub(super) fn read(&self, show: &mut dyn FnMut(usize, Reading)) {
        let counts = self.region.counts();
        for (index, &number) in (0..).zip(&self.numbers) {
            let line = index * LINE_WORDS;
            let mut reading = Reading::default();
            // Times first: a call is counted before it is timed.
            if self.layout.histograms < self.layout.callers {
                reading.latencies = latencies(&counts, self.layout.histograms + index * SLOTS);
            }
            reading.missed = counts.word(line + 1);
            reading.hits = counts.word(line);
            show(number, reading);
        }
    }

    /// Events of hits and of returns that had no room until now, for the sites by their numbers.
    pub(super) fn lost_events(&self, show: &mut dyn FnMut(usize, [u64; 2])) {
        let counts = self.region.counts();
        for (index, &number) in (0..).zip(&self.numbers) {
            let word = |word| counts.word(index * LINE_WORDS + word);
            show(number, [word(LOST_HITS), word(LOST_RETURNS)]);
        }
    }

    /// Who called: the sites' numbers, what calls return to (0: calls of all callers that had no
    /// place), and the calls.
    pub(super) fn callers(&self, show: &mut dyn FnMut(usize, u64, u64)) {
        let SharedLayout { count, callers, caller_bits, end, .. } = self.layout;
        if callers == end {
            return;
        }
        let counts = self.region.counts();
        let word = |at: u64| counts.word(callers + at as u32);
        for caller in CallerTable::read(caller_bits, count, word) {
            if let Some(&number) = self.numbers.get(caller.site as usize) {
                show(number, caller.address, caller.calls);
            }
        }
    }
}

fn latencies(counts: &RegionCounts<'_>, first: u32) -> Latencies {
    let mut latencies = Latencies::default();
    for bucket in USED {
        latencies.add_bucket(bucket, counts.word(first + bucket));
    }
    latencies
}
