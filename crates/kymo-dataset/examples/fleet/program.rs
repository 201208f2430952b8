//! A recording as the daemon would see it: counts by minute, process, event and stack. Of one of
//! wall time (`kymo record --wall`) the waits count, too.
use kymo_data::Recording;
use kymo_dataset::{
    BuildRow, DatasetWriter, EventNumber, EventRow, FrameKind, FrameRow, LocationNumber, LocationRow,
    ProcessNumber, ProcessRow, SampleValue, StackNumber, rows::ON_CPU,
};
use kymo_profile::export::{ExportSamples, FunctionKind, SampleRow};
use kymo_profile::load::LoadOptions;
use kymo_profile::profile::Profile;
use kymo_profile::resolve::ResolveOptions;
use kymo_profile::wall::{OFF_CPU, State, WaitDetail, Wall, is_of_waits, wait_detail};
use kymo_symbols::{SymbolOptions, SymbolStore};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const NS_A_MINUTE: u64 = 60_000_000_000;

/// Process and command, event, and stack.
type Key = (u32, u32, u32);

/// What was counted: the sum of the periods, and samples.
type Counts = (u64, u64);

/// A recording, added up by minute.
#[derive(Default)]
pub(crate) struct Program {
    pub(crate) kernel: String,
    pub(crate) arch: String,
    pub(crate) samples: u64,
    builds: Vec<BuildRow>,
    locations: Vec<OwnedLocation>,
    stacks: Vec<Vec<u32>>,
    processes: Numbered<(i32, String)>,
    events: Numbered<OwnedEvent>,
    minutes: BTreeMap<u32, BTreeMap<Key, Counts>>,
}

/// Distinct values, with numbers in the order in which they came.
struct Numbered<T> {
    numbers: BTreeMap<T, u32>,
    list: Vec<T>,
}

impl<T> Default for Numbered<T> {
    fn default() -> Numbered<T> {
        Numbered { numbers: BTreeMap::new(), list: Vec::new() }
    }
}

impl<T: Ord + Clone> Numbered<T> {
    fn number(&mut self, value: T) -> u32 {
        let next = self.list.len() as u32;
        *self.numbers.entry(value).or_insert_with_key(|value| {
            self.list.push(value.clone());
            next
        })
    }
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct OwnedEvent {
    event: String,
    value_unit: &'static str,
    state: String,
    waker: Option<String>,
}

struct OwnedLocation {
    module: String,
    build_id: Option<String>,
    address: i64,
    kind: FrameKind,
    functions: Vec<Option<String>>,
}

impl Program {
    /// Those of all files.
    pub(crate) fn read_all(paths: &[PathBuf]) -> Result<Vec<Program>, String> {
        paths.iter().map(|path| Program::read(path)).collect()
    }

    fn read(path: &Path) -> Result<Program, String> {
        let failed = |error: &dyn std::fmt::Display| format!("failed to read {}: {error}", path.display());
        let file = std::fs::File::open(path).map_err(|error| failed(&error))?;
        let recording = Recording::open(Arc::new(file), Vec::new()).map_err(|error| failed(&error))?;
        let store = SymbolStore::new(SymbolOptions::default());
        let load = LoadOptions { callchains: true, columns: true, ..LoadOptions::default() };
        let profile = Profile::open(&recording, &load, ResolveOptions::default(), &store, &|_, _, _| {});
        let profile = profile.map_err(|error| failed(&error))?;
        let samples = ExportSamples::of_profile(&recording, &profile, &store, "fleet");
        let facts = &samples.profile;
        let (kernel, arch) = (facts.kernel.clone(), facts.arch.clone());
        let mut program = Program { kernel, arch, ..Program::default() };
        let has_waits = wait_detail(&recording) == WaitDetail::All;
        program.add_rows(&samples, |row| !has_waits || !is_of_waits(&samples.event(row.event).name));
        if has_waits {
            let wall =
                Wall::open(&recording, (&load, None), ResolveOptions::default(), &store, &|_, _, _| {});
            let wall = wall.map_err(|error| failed(&error))?.ok_or_else(|| failed(&"there are no waits"))?;
            let spans = ExportSamples::of_wall_with_addresses(&recording, &wall, &store, "fleet");
            program.add_rows(&spans, |row| row.state.is_some_and(|state| state.state != State::Running));
        }
        Ok(program)
    }

    /// Adds the rows that are wanted, with their stacks.
    fn add_rows(&mut self, samples: &ExportSamples<'_>, is_wanted: impl Fn(&SampleRow) -> bool) {
        let mappings = &samples.locations.mappings;
        let build = |build_id: &[u8]| build_id.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let known = mappings.iter().filter(|mapping| !mapping.build_id.is_empty());
        self.builds.extend(known.map(|mapping| BuildRow {
            build_id: build(&mapping.build_id),
            path: mapping.path.clone(),
            module: mapping.short_name.clone(),
            arch: self.arch.clone(),
            first_seen_ns: 0,
            code_bias: None,
        }));
        let (locations, stacks) = (self.locations.len() as u32, self.stacks.len() as u32);
        for location in &samples.locations.list {
            let mapping = location.mapping.map(|at| &mappings[at as usize]);
            let lines = samples.locations.lines(location).iter().map(|line| samples.function(line.function));
            let functions: Vec<_> = lines.collect();
            let build_id = mapping.map(|mapping| build(&mapping.build_id)).filter(|id| !id.is_empty());
            self.locations.push(OwnedLocation {
                module: functions.last().map_or(String::new(), |function| function.module.clone()),
                build_id,
                address: location.file_address as i64,
                kind: if mapping.is_some_and(|m| m.is_kernel) { FrameKind::Kernel } else { FrameKind::User },
                functions: functions
                    .iter()
                    .map(|f| (f.kind != FunctionKind::Unknown).then(|| f.name.clone()))
                    .collect(),
            });
        }
        let stack = |stack| samples.locations.stack(stack).iter().map(|at| locations + at).collect();
        self.stacks.extend((0..samples.locations.stack_count()).map(stack));
        for track in samples.tracks() {
            for row in samples.rows_of(track).filter(&is_wanted) {
                let pid = samples.thread(track.thread).pid;
                let process = self.processes.number((pid, samples.comm(&row).to_owned()));
                let event = self.events.number(event_of(samples, &row));
                let minute = self.minutes.entry((row.begin_ns / NS_A_MINUTE) as u32).or_default();
                let (value, count) = minute.entry((process, event, stacks + row.stack)).or_default();
                let samples = if row.state.is_some() { row.waits.max(1) } else { row.samples };
                *value += row.period;
                *count += samples;
                self.samples += samples;
            }
        }
    }

    /// Adds the rows of a day: `begun` has, by minute of the day, how many repetitions begin there.
    /// One that goes on after midnight ends with the last minute of the day.
    pub(crate) fn add(
        &self,
        writer: &mut DatasetWriter,
        midnight_ns: i64,
        begun: &BTreeMap<u32, u64>,
    ) -> Result<(), String> {
        self.builds
            .iter()
            .for_each(|build| writer.build(BuildRow { first_seen_ns: midnight_ns, ..build.clone() }));
        let stacks = self.stacks_in(writer);
        let processes: Vec<ProcessNumber> =
            self.processes.list.iter().map(|at| writer.process(&process_row(at))).collect();
        let event = |of: &OwnedEvent| {
            let OwnedEvent { event, value_unit, state, waker } = of;
            writer.event(&EventRow { event, value_unit, state, waker: waker.as_deref() })
        };
        let events: Vec<EventNumber> = self.events.list.iter().map(event).collect();
        let mut minutes: BTreeMap<u32, BTreeMap<Key, Counts>> = BTreeMap::new();
        for (minute, times) in begun {
            for (offset, counts) in &self.minutes {
                let of_minute =
                    minutes.entry((minute + offset).min(super::fleet::MINUTES_A_DAY - 1)).or_default();
                for (key, (value, samples)) in counts {
                    let sums = of_minute.entry(*key).or_default();
                    *sums = (sums.0 + value * times, sums.1 + samples * times);
                }
            }
        }
        for (minute, counts) in minutes {
            let time_ns = midnight_ns + i64::from(minute) * NS_A_MINUTE as i64;
            for ((process, event, stack), (value, samples)) in counts {
                let (process, event) = (processes[process as usize], events[event as usize]);
                let value = SampleValue { time_ns, value: value as i64, samples: samples as i64 };
                let added = writer.sample(process, event, stacks[stack as usize], value);
                added.map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    fn stacks_in(&self, writer: &mut DatasetWriter) -> Vec<StackNumber> {
        let locations: Vec<LocationNumber> = (self.locations.iter())
            .map(|location| {
                let frames: Vec<FrameRow<'_>> = (location.functions.iter())
                    .map(|name| FrameRow { function: name.as_deref(), file: None, line: None })
                    .collect();
                writer.location(&LocationRow {
                    module: &location.module,
                    build_id: location.build_id.as_deref(),
                    address: location.address,
                    kind: location.kind,
                    frames: &frames,
                })
            })
            .collect();
        let stacks = self.stacks.iter().map(|stack| {
            let stack: Vec<LocationNumber> = stack.iter().map(|at| locations[*at as usize]).collect();
            writer.stack(&stack)
        });
        stacks.collect()
    }
}

fn event_of(samples: &ExportSamples<'_>, row: &SampleRow) -> OwnedEvent {
    let event = samples.event(row.event);
    OwnedEvent {
        event: if row.state.is_some() { OFF_CPU.to_owned() } else { event.name.clone() },
        value_unit: if event.unit() == "ns" { "ns" } else { "" },
        state: row.state.map_or_else(|| ON_CPU.to_owned(), |state| state.name()),
        waker: samples.waker(row).map(str::to_owned),
    }
}

fn process_row((pid, command): &(i32, String)) -> ProcessRow<'_> {
    ProcessRow { pid: *pid, command, ..ProcessRow::default() }
}
