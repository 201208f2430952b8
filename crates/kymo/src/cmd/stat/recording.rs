//! `kymo stat record`: the counts go into a perf.data file, too.
use std::path::PathBuf;

use anyhow::Context;
use kymo_data::{
    Attr, EventSpec, StatAggregation, StatConfig, StatCount, abi, cpu_map, event_unit, stat_config,
    stat_count, stat_round, thread_map,
};
use kymo_perf::count::aggregate::{By, CountPlace, CountRow, name_of};
use kymo_perf::sys;
use kymo_record::{CountWriter, Output};

use super::StatArgs;
use super::counting::Counting;

/// Why the counts of these arguments cannot be recorded.
pub(super) fn refusal(args: &StatArgs) -> Option<&'static str> {
    match args.by() {
        _ if args.repeat != 1 => Some("-r repeats a command, and a recording has one run"),
        _ if args.in_cgroups() => Some("counts of cgroups are not recorded: -x, or -j with -o keep them"),
        By::All | By::Cpu | By::Thread => None,
        _ => Some("a recording has sums of all, of CPUs (-A) or of threads (--per-thread)"),
    }
}

/// Where the counts go.
pub(super) struct CountFile {
    path: PathBuf,
    /// `None` before the first counts.
    writer: Option<CountWriter>,
    /// Threads that have an index.
    threads: Vec<i32>,
}

impl CountFile {
    /// A file of this name, which is made when the first counts are there.
    pub(super) fn new(path: PathBuf) -> anyhow::Result<CountFile> {
        Output::parse(&path).check()?;
        Ok(CountFile { path, writer: None, threads: Vec::new() })
    }

    /// Whether the recording is what standard output gets.
    pub(super) fn is_on_stdout(&self) -> bool {
        !Output::parse(&self.path).is_file()
    }

    /// Writes the counts so far.
    pub(super) fn append(
        &mut self,
        counting: &Counting<'_>,
        rows: &[Option<Vec<CountRow>>],
        time_ns: u64,
        last: bool,
    ) -> anyhow::Result<()> {
        let mut records = Vec::new();
        if self.writer.is_none() {
            let writer = CountWriter::create(&self.path, &specs(counting), &cmdline(), &version())?;
            self.writer = Some(writer);
            self.threads = threads(rows);
            records = head(counting, &self.threads);
        }
        for (event, rows) in rows.iter().enumerate() {
            for row in rows.iter().flatten() {
                let Some((cpu, thread)) = self.place(&row.place) else { continue };
                let count = StatCount {
                    id: id(event),
                    cpu,
                    thread,
                    value: row.count.value,
                    enabled_ns: row.count.enabled_ns,
                    running_ns: row.count.running_ns,
                };
                records.extend(stat_count(&count));
            }
        }
        records.extend(stat_round(time_ns, last));
        let mut writer = self.writer.as_mut().into_iter();
        writer.try_for_each(|writer| writer.append(&records)).with_context(|| self.failed())
    }

    /// Completes the file.
    pub(super) fn finish(self) -> anyhow::Result<()> {
        let failed = self.failed();
        self.writer.map_or(Ok(()), CountWriter::finish).context(failed)
    }

    fn failed(&self) -> String {
        format!("failed to write the counts to {}", self.path.display())
    }

    /// CPU and index of the thread. A thread that came after the first counts has no index.
    fn place(&self, place: &CountPlace) -> Option<(i32, u32)> {
        match place {
            CountPlace::Cpu(cpu) => Some((*cpu, 0)),
            CountPlace::Thread(tid) => {
                let at = self.threads.iter().position(|known| known == tid)?;
                Some((-1, at as u32))
            }
            _ => Some((-1, 0)),
        }
    }
}

fn id(event: usize) -> u64 {
    event as u64 + 1
}

fn specs(counting: &Counting<'_>) -> Vec<EventSpec> {
    let names = counting.names.borrow();
    let events = counting.events.iter().zip(names.iter()).enumerate();
    let spec = |(at, (event, name)): (usize, (&super::events::Event, &String))| {
        // The kernel's struct is always long enough.
        let attr = Attr::parse(&sys::attr_bytes(&event.selected.attr.to_raw())).unwrap_or_default();
        let attr =
            Attr { sample_type: abi::PERF_SAMPLE_IDENTIFIER, sample_period: 0, read_format: 3, ..attr };
        EventSpec { attr, ids: vec![id(at)], name: name.clone() }
    };
    events.map(spec).collect()
}

/// What comes before the counts.
fn head(counting: &Counting<'_>, threads: &[i32]) -> Vec<u8> {
    let mut records = Vec::new();
    for (at, event) in counting.events.iter().enumerate() {
        if event.scale() != 1.0 || !event.unit().is_empty() {
            records.extend(event_unit(id(at), event.unit(), event.scale()));
        }
    }
    let named = |tid: &i32| (*tid, if *tid < 0 { Vec::new() } else { name_of(*tid).into_bytes() });
    records.extend(thread_map(&threads.iter().map(named).collect::<Vec<_>>()));
    let by_cpu = counting.args.by() == By::Cpu;
    let cpus = if by_cpu { counting.cpus.iter().map(|&cpu| cpu as i32).collect() } else { vec![-1] };
    records.extend(cpu_map(&cpus));
    let aggregation = if by_cpu { StatAggregation::Cpu } else { StatAggregation::All };
    let interval_ms = counting.args.interval.unwrap_or(0);
    records.extend(stat_config(StatConfig { aggregation, interval_ms }));
    records
}

/// The threads that have rows; -1 where counts are of all.
fn threads(rows: &[Option<Vec<CountRow>>]) -> Vec<i32> {
    let mut all: Vec<i32> = Vec::new();
    for row in rows.iter().flatten().flatten() {
        let tid = if let CountPlace::Thread(tid) = row.place { tid } else { -1 };
        if !all.contains(&tid) {
            all.push(tid);
        }
    }
    if all.is_empty() { vec![-1] } else { all }
}

fn cmdline() -> Vec<String> {
    std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect()
}

fn version() -> String {
    format!("kymo {}", env!("CARGO_PKG_VERSION"))
}
