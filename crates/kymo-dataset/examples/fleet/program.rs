//! A recording as the daemon would see it: counts by minute, process, event and stack.
use kymo_data::Recording;
use kymo_dataset::{
    BuildRow, DatasetWriter, EventNumber, EventRow, FrameKind, FrameRow, LocationNumber, LocationRow,
    ProcessNumber, ProcessRow, SampleValue, StackNumber, rows::ON_CPU,
};
use kymo_profile::export::{ExportSamples, FunctionKind};
use kymo_profile::load::LoadOptions;
use kymo_profile::profile::Profile;
use kymo_profile::resolve::ResolveOptions;
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
pub(crate) struct Program {
    pub(crate) kernel: String,
    pub(crate) arch: String,
    pub(crate) samples: u64,
    builds: Vec<BuildRow>,
    locations: Vec<OwnedLocation>,
    stacks: Vec<Vec<u32>>,
    processes: Vec<(i32, String)>,
    /// Names and units.
    events: Vec<(String, &'static str)>,
    minutes: BTreeMap<u32, BTreeMap<Key, Counts>>,
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
        Ok(Program::of(&ExportSamples::of_profile(&recording, &profile, &store, "fleet")))
    }

    fn of(samples: &ExportSamples<'_>) -> Program {
        let facts = &samples.profile;
        let mappings = &samples.locations.mappings;
        let build = |build_id: &[u8]| build_id.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let known = mappings.iter().filter(|mapping| !mapping.build_id.is_empty());
        let mut program = Program {
            kernel: facts.kernel.clone(),
            arch: facts.arch.clone(),
            samples: 0,
            builds: known
                .map(|mapping| BuildRow {
                    build_id: build(&mapping.build_id),
                    path: mapping.path.clone(),
                    module: mapping.short_name.clone(),
                    arch: facts.arch.clone(),
                    first_seen_ns: 0,
                    code_bias: None,
                })
                .collect(),
            locations: Vec::new(),
            stacks: Vec::new(),
            processes: Vec::new(),
            events: facts
                .events
                .iter()
                .map(|e| (e.name.clone(), if e.unit() == "ns" { "ns" } else { "" }))
                .collect(),
            minutes: BTreeMap::new(),
        };
        for location in &samples.locations.list {
            let mapping = location.mapping.map(|at| &mappings[at as usize]);
            let lines = samples.locations.lines(location).iter().map(|line| samples.function(line.function));
            let functions: Vec<_> = lines.collect();
            let build_id = mapping.map(|mapping| build(&mapping.build_id)).filter(|id| !id.is_empty());
            program.locations.push(OwnedLocation {
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
        let stacks = 0..samples.locations.stack_count();
        program.stacks = stacks.map(|stack| samples.locations.stack(stack).to_vec()).collect();
        program.count(samples);
        program
    }

    fn count(&mut self, samples: &ExportSamples<'_>) {
        let mut numbers: BTreeMap<(i32, String), u32> = BTreeMap::new();
        for track in samples.tracks() {
            let pid = samples.thread(track.thread).pid;
            for row in samples.rows_of(track) {
                let next = numbers.len() as u32;
                let process = *numbers.entry((pid, samples.comm(&row).to_owned())).or_insert(next);
                let minute = self.minutes.entry((row.begin_ns / NS_A_MINUTE) as u32).or_default();
                let (value, count) = minute.entry((process, row.event, row.stack)).or_default();
                *value += row.period;
                *count += row.samples;
                self.samples += row.samples;
            }
        }
        let mut processes: Vec<_> = numbers.into_iter().map(|(process, number)| (number, process)).collect();
        processes.sort();
        self.processes = processes.into_iter().map(|(_, process)| process).collect();
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
            self.processes.iter().map(|at| writer.process(&process_row(at))).collect();
        let event = |(event, value_unit): &(String, &'static str)| {
            writer.event(&EventRow { event, value_unit, state: ON_CPU })
        };
        let events: Vec<EventNumber> = self.events.iter().map(event).collect();
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

fn process_row((pid, command): &(i32, String)) -> ProcessRow<'_> {
    ProcessRow { pid: *pid, command, ..ProcessRow::default() }
}
