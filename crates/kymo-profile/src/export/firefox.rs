//! A profile for the Firefox Profiler with all names in it, compressed by gzip: a track for each
//! thread and event, functions with inlined ones, files and lines, and waits as markers.
//!
//! `kymo view --firefox` shows addresses, and the profiler's page asks for names and code; here
//! nothing is asked. Both have the same [tables](crate::firefox).
use super::locations::{FrameLocation, MappedFile};
use super::model::{ExportProfile, FunctionKind, IntervalKind, Thread};
use super::samples::{ExportSamples, Track};
use crate::firefox::FirefoxModule;
use crate::firefox::frames::{FrameFacts, FrameSide, FrameSource};
use crate::firefox::model::{Document, Marker, Meta, SampleWeight, ThreadTables};
use flate2::Compression;
use flate2::write::GzEncoder;
use kymo_symbols::ModuleKey;
use rustc_hash::FxHashMap;
use std::borrow::Cow;
use std::io::{self, Write};

/// The profiler's numbers are exact up to this.
const MOST_EXACT: u64 = 1 << 53;

/// Writes a track for each thread and event. A sample counts one; a span of wall time has its
/// time, and a sum of an imported profile its value.
///
/// # Errors
/// Those of `out`.
pub fn firefox(samples: &ExportSamples<'_>, out: &mut dyn Write) -> io::Result<()> {
    let frames = NamedFrames::new(samples);
    let mut threads: Vec<ThreadTables> =
        samples.tracks().iter().map(|track| tables(samples, track, &frames)).collect();
    let name = |thread: &Thread| {
        Some(((thread.pid, thread.earlier_processes), samples.process_name(thread)?.to_owned()))
    };
    let names: FxHashMap<(i32, u32), String> = samples.profile.threads.iter().filter_map(name).collect();
    threads.iter_mut().for_each(|tables| tables.set_process_name(&names));
    if let Some(first) = threads.first_mut() {
        losses(&samples.profile).for_each(|marker| first.add_marker(marker));
    }
    let events: Vec<&str> = samples.profile.events.iter().map(|event| &*event.name).collect();
    let title = (samples.profile.heading(), &*events.join(", "));
    let meta = Meta::new(title, samples.profile.start_unix_ns, true);
    let mut gzip = GzEncoder::new(out, Compression::fast());
    let buffered = io::BufWriter::with_capacity(1 << 16, &mut gzip);
    serde_json::to_writer(buffered, &Document { meta, libs: &frames.modules, threads })?;
    gzip.finish()?.flush()
}

fn tables(samples: &ExportSamples<'_>, track: &Track, frames: &NamedFrames<'_>) -> ThreadTables {
    let thread = samples.thread(track.thread);
    let mut tables = ThreadTables::new(thread.pid, thread.tid, thread.earlier_processes);
    tables.set_name(&match samples.profile.events.len() {
        1 => thread.comm.clone(),
        _ => format!("{} ({})", thread.comm, samples.event(track.event).name),
    });
    let mut path = Vec::new();
    for row in samples.rows_of(track) {
        frames.of_stack(row.stack, &mut path);
        tables.add_sample((row.begin_ns, weight(samples, track, row.period)), (row.stack, &path), frames);
    }
    for link in samples.event(track.event).links.iter().filter(|link| link.thread == track.thread) {
        let (name, detail) = (link.state.to_owned(), format!("ended by {}", link.by));
        tables.add_marker(Marker { name, span_ns: (link.begin_ns, link.end_ns), detail });
    }
    tables
}

/// What a row stands for where that is not one sample.
fn weight(samples: &ExportSamples<'_>, track: &Track, period: u64) -> Option<SampleWeight> {
    let event = samples.event(track.event);
    match event.unit() {
        _ if !samples.is_of_spans() && !event.is_of_sums => None,
        "ns" => Some(SampleWeight::Time(period)),
        "bytes" => Some(SampleWeight::Bytes(period)),
        _ => Some(SampleWeight::Count(period)),
    }
}

/// Where records were lost, on the clock of the samples.
fn losses(profile: &ExportProfile) -> impl Iterator<Item = Marker> {
    profile.intervals.iter().map(|interval| {
        let name = match interval.kind {
            IntervalKind::Loss => "records lost",
            IntervalKind::Pause => "target stopped",
            IntervalKind::Throttle => "throttled",
        };
        let at = |ns: u64| ns.saturating_sub(profile.start_ns);
        let span_ns = (at(interval.start_ns), at(interval.end_ns));
        Marker { name: name.to_owned(), span_ns, detail: format!("{} records", interval.count) }
    })
}

/// The functions at all locations as frames.
struct NamedFrames<'a> {
    samples: &'a ExportSamples<'a>,
    modules: Vec<FirefoxModule>,
    /// By mapping its module.
    module_of: Vec<u32>,
    /// FrameLocation and line within it, of each frame.
    list: Vec<(u32, u32)>,
    /// Where the frames of each location begin in the list.
    begins: Vec<u32>,
}

impl<'a> NamedFrames<'a> {
    fn new(samples: &'a ExportSamples<'a>) -> NamedFrames<'a> {
        let (mut list, mut begins) = (Vec::new(), Vec::new());
        for (location, number) in samples.locations.list.iter().zip(0..) {
            begins.push(list.len() as u32);
            // Outermost first.
            let lines = samples.locations.lines(location).len() as u32;
            list.extend((0..lines).rev().map(|line| (number, line)));
        }
        begins.push(list.len() as u32);
        let (modules, module_of) = modules(&samples.locations.mappings);
        NamedFrames { samples, modules, module_of, list, begins }
    }

    /// The frames of a stack, outermost first.
    fn of_stack(&self, stack: u32, path: &mut Vec<u32>) {
        path.clear();
        for location in self.samples.locations.stack(stack).iter().rev() {
            path.extend(self.begins[*location as usize]..self.begins[*location as usize + 1]);
        }
    }

    /// Offset in the file; of what is no file, the offset in its mapping.
    fn address(&self, location: &FrameLocation) -> Option<u64> {
        let mapping = &self.samples.locations.mappings[location.mapping? as usize];
        let offset = if mapping.is_kernel { 0 } else { mapping.offset };
        let address = location.address.wrapping_sub(mapping.start).wrapping_add(offset);
        Some(address).filter(|address| *address < MOST_EXACT)
    }
}

/// Files, each once, and by mapping the number of its file.
fn modules(mappings: &[MappedFile]) -> (Vec<FirefoxModule>, Vec<u32>) {
    let mut modules = Vec::new();
    let mut numbers: FxHashMap<(&str, &[u8]), u32> = FxHashMap::default();
    let number = |mapping: &'_ MappedFile, modules: &mut Vec<FirefoxModule>| {
        let number = modules.len() as u32;
        let names = (mapping.short_name.clone(), mapping.path.clone());
        let build_id = Some(&mapping.build_id[..]).filter(|id| !id.is_empty());
        let key = (ModuleKey::Anonymous, 0);
        modules.push(FirefoxModule::new(names, build_id, u64::from(number), key));
        number
    };
    let of_mapping = mappings.iter().map(|mapping| {
        let identity = (&*mapping.path, &*mapping.build_id);
        *numbers.entry(identity).or_insert_with(|| number(mapping, &mut modules))
    });
    let of_mapping = of_mapping.collect();
    (modules, of_mapping)
}

impl FrameSource for NamedFrames<'_> {
    fn frame_facts(&self, frame: u32) -> FrameFacts<'_> {
        let (number, at) = self.list[frame as usize];
        let location = &self.samples.locations.list[number as usize];
        let lines = self.samples.locations.lines(location);
        let line = lines[at as usize];
        let function = self.samples.function(line.function);
        let is_kernel = location
            .mapping
            .is_some_and(|mapping| self.samples.locations.mappings[mapping as usize].is_kernel);
        let side = match function.kind {
            FunctionKind::State => FrameSide::State,
            FunctionKind::Kernel => FrameSide::Kernel,
            _ if is_kernel => FrameSide::Kernel,
            _ => FrameSide::Program,
        };
        FrameFacts {
            name: Cow::Borrowed(&function.name),
            function: Some(line.function),
            module: location.mapping.map(|mapping| self.module_of[mapping as usize]),
            address: self.address(location),
            side,
            inline_depth: lines.len() as u32 - 1 - at,
            file: self.samples.locations.file(line.function),
            line: Some(line.line).filter(|line| *line > 0),
        }
    }

    fn module_name(&self, module: u32) -> &str {
        &self.modules[module as usize].name
    }
}
