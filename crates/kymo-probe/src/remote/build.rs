//! Makes the stubs of a module's functions, and maps them into the process.
use super::plan::{PlannedFunction, PlannedModule};
use crate::modules::CodeMapping;
use kymo_agent::patch::{
    CALL_TABLE_BYTES, CallCounts, CallTable, Clock, Convention, FreestandingSpec, HitCounter,
    MOST_TIMED_SITES, RoutineAddresses, freestanding_stub, places_near, routines,
};
use kymo_core::latency::{Latencies, SLOTS, USED};
use kymo_perf::inject::{RegionCounts, RegionSizes, RemoteRegion, RemoteTarget, SitePatch};
use std::collections::HashMap;

use crate::engine::Reading;

/// More memory than a stub takes; what is not used takes none.
const STUB_BYTES: u64 = 384;
const ROUTINE_BYTES: u64 = 2048;
const ALIGN: usize = 16;
/// A count has a cache line of its own: hits, calls without a slot.
const LINE_WORDS: u32 = 8;
/// The table of calls begins behind the page with the word that children find wiped.
const TABLE_AT: u64 = 4096;
/// Moved instructions reach their module from within this distance.
const MOST_SPAN_BYTES: u64 = 256 << 20;

/// What is to be counted.
#[derive(Clone, Copy)]
pub(super) struct Measure {
    pub(super) timed: bool,
    /// Forked children count, too.
    pub(super) children: bool,
}

/// The stubs of one module's functions in a process.
pub(super) struct Stubs {
    pub(super) region: RemoteRegion,
    /// The numbers of the sites, in the order of their counters.
    pub(super) numbers: Vec<usize>,
    timed: bool,
}

/// A module's stubs, what is to be written so that they are used, and what cannot.
pub(super) struct Built {
    pub(super) stubs: Stubs,
    pub(super) patches: Vec<SitePatch>,
    pub(super) refused: HashMap<usize, String>,
}

/// Where the words of `count` sites' histograms begin.
fn histograms(count: u32) -> u32 {
    (count * LINE_WORDS).next_multiple_of(SLOTS)
}

/// Maps memory for a module's functions, and writes their stubs into it.
///
/// # Errors
/// Why none of them can be served, in words.
pub(super) fn build(
    target: &mut dyn RemoteTarget,
    mapped: &[CodeMapping],
    module: &PlannedModule,
    measure: Measure,
) -> Result<Built, String> {
    let functions = &module.functions;
    let count = u32::try_from(functions.len()).unwrap_or(u32::MAX);
    if count > MOST_TIMED_SITES {
        return Err("there are more probes than stubs can have".to_owned());
    }
    if module.span.end - module.span.start > MOST_SPAN_BYTES {
        return Err("its module is too large for jumps to reach all of it".to_owned());
    }
    let patches: usize = functions.iter().map(|function| function.patches().count()).sum();
    let histogram_words = if measure.timed { count * SLOTS } else { 0 };
    let table_bytes = if measure.timed { CALL_TABLE_BYTES } else { 0 };
    let needs_private = measure.timed || !measure.children;
    let sizes = RegionSizes {
        code_bytes: ROUTINE_BYTES + patches as u64 * STUB_BYTES,
        words: histograms(count) + histogram_words,
        private_bytes: if needs_private { TABLE_AT + table_bytes } else { 0 },
    };
    let ranges: Vec<(u64, u64)> = mapped.iter().map(|mapping| (mapping.start, mapping.end)).collect();
    let places = places_near(&ranges, module.span.start, sizes.bytes());
    let region = target.map(&places, sizes).map_err(|refusal| refusal.to_string())?;
    let mut writer = StubWriter::new(&region, count, measure)?;
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
    let stubs = Stubs { region, numbers, timed: measure.timed };
    Ok(Built { stubs, patches: built, refused })
}

/// Stubs as they lie in a region.
struct StubWriter<'a> {
    region: &'a RemoteRegion,
    code: Vec<u8>,
    c: Option<RoutineAddresses>,
    go: Option<RoutineAddresses>,
    while_set: Option<u64>,
}

impl<'a> StubWriter<'a> {
    fn new(region: &'a RemoteRegion, count: u32, measure: Measure) -> Result<StubWriter<'a>, String> {
        let while_set = (!measure.children).then(|| region.private());
        let mut writer = StubWriter { region, code: Vec::new(), c: None, go: None, while_set };
        if measure.timed {
            let table = CallTable {
                table: region.private() + TABLE_AT,
                counts: CallCounts::Shared {
                    histograms: region.word(histograms(count)),
                    missed: (region.word(1), LINE_WORDS as i32 * 8),
                },
                tick: Clock::measured().tick,
            };
            writer.c = Some(writer.routines(Convention::C, &table)?);
            writer.go = Some(writer.routines(Convention::Go, &table)?);
        }
        Ok(writer)
    }

    fn routines(&mut self, convention: Convention, table: &CallTable) -> Result<RoutineAddresses, String> {
        let made = routines(convention, table, self.next());
        let (code, addresses) = made.map_err(|error| error.to_string())?;
        self.code.extend(code);
        Ok(addresses)
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
        for (place, patch) in function.patches().enumerate() {
            let is_entry = place == 0;
            let spec = FreestandingSpec {
                convention: function.convention,
                hits: is_entry.then(|| HitCounter::Word(self.region.word(index * LINE_WORDS))),
                hits_behind: function.counts_behind,
                condition: &function.condition,
                while_set: self.while_set,
                timed: routines.map(|routines| (index, routines)),
                exits: &function.exits,
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
            self.code.extend(stub.code);
            patches.push(SitePatch {
                at: patch.address,
                from: patch.original(),
                to,
                moves: stub.moves,
                group: function.number as u32,
                is_interruptible: function.convention == Convention::Go
                    && (function.is_interruptible || !is_entry),
            });
        }
        Ok(patches)
    }
}

impl Stubs {
    /// What they have counted until now, for the sites by their numbers.
    pub(super) fn read(&self, show: &mut dyn FnMut(usize, Reading)) {
        let counts = self.region.counts();
        let count = self.numbers.len() as u32;
        for (index, &number) in self.numbers.iter().enumerate() {
            let line = index as u32 * LINE_WORDS;
            let mut reading =
                Reading { hits: counts.word(line), missed: counts.word(line + 1), ..Reading::default() };
            if self.timed {
                reading.latencies = latencies(&counts, histograms(count) + index as u32 * SLOTS);
            }
            show(number, reading);
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
