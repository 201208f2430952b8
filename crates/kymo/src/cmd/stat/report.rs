//! `kymo stat report`: the counts of a recording, as `kymo stat` prints them.
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use kymo_cli::{exit, open};
use kymo_data::{Recording, StatAggregation};
use kymo_perf::count::Count;
use kymo_perf::count::aggregate::{By, CountPlace, CountRow, Rows};
use kymo_perf::selector::EventAttr;
use kymo_profile::stat::{CountRecording, CountRound, EventUnit, is_count_recording};
use kymo_profile::text::shown;

use super::footer::footer;
use super::line::{Counted, Form, Line, lines};
use super::output::Output;
use super::repeat::Series;

/// Print the counts of a recording of `kymo stat record` or `perf stat record`.
#[derive(Debug, Args)]
pub(crate) struct StatReportArgs {
    /// The recording; `-` for standard input
    #[arg(short, long, value_name = "FILE", default_value = "perf.data")]
    input: PathBuf,
    /// Do not sum over CPUs
    #[arg(short = 'A', long, conflicts_with = "per_thread")]
    no_aggr: bool,
    /// Sum for each thread
    #[arg(long)]
    per_thread: bool,
    /// Print perf's CSV fields, with this separator
    #[arg(short = 'x', long = "field-separator", value_name = "SEP")]
    separator: Option<String>,
    /// Print one JSON object per line, with perf's keys
    #[arg(short = 'j', long = "json-output", visible_alias = "json", conflicts_with = "separator")]
    json: bool,
}

/// Prints the counts on standard output.
pub(super) fn run(args: &StatReportArgs) -> anyhow::Result<ExitCode> {
    let recording = open::recording(&args.input)?;
    if !is_count_recording(&recording) {
        bail!("{} has samples, not counts: `kymo report` reads it", args.input.display());
    }
    let counts = CountRecording::read(&recording)
        .with_context(|| format!("failed to read {}", args.input.display()))?;
    if counts.rounds.is_empty() {
        bail!("{} has no counts: the recorder ended before it wrote any", args.input.display());
    }
    let view = View::new(args, &recording, &counts);
    let mut output = view.output(args);
    let mut time_ns = 0;
    for round in &counts.rounds {
        let rows = view.rows(round);
        let elapsed_ns = round.time_ns.saturating_sub(time_ns);
        match round.last {
            true => view.whole(&rows, round.time_ns, &args.input, &mut output)?,
            false => output.lines(&view.lines(&rows, elapsed_ns, Some(round.time_ns)))?,
        }
        time_ns = round.time_ns;
    }
    Ok(exit::of_reading(&recording, &[]))
}

/// What is printed of a recording, and how.
struct View<'a> {
    recording: &'a Recording,
    counts: &'a CountRecording,
    by: By,
    attrs: Vec<EventAttr>,
    units: Vec<EventUnit>,
}

impl<'a> View<'a> {
    fn new(args: &StatReportArgs, recording: &'a Recording, counts: &'a CountRecording) -> View<'a> {
        let by = match counts.config.aggregation {
            _ if args.per_thread => By::Thread,
            _ if args.no_aggr => By::Cpu,
            StatAggregation::Cpu => By::Cpu,
            _ => By::All,
        };
        let events = &recording.events.list;
        let attrs = events.iter().map(|event| EventAttr {
            kind: event.attr.kind,
            config: event.attr.config,
            exclude_user: event.attr.has(kymo_data::abi::ATTR_FLAG_EXCLUDE_USER),
            exclude_kernel: event.attr.has(kymo_data::abi::ATTR_FLAG_EXCLUDE_KERNEL),
            ..EventAttr::default()
        });
        let units = (0..events.len()).map(|event| counts.units.get(&event).cloned().unwrap_or_default());
        View { recording, counts, by, attrs: attrs.collect(), units: units.collect() }
    }

    fn output(&self, args: &StatReportArgs) -> Output {
        let form = match &args.separator {
            Some(separator) => Form::Csv(separator.clone()),
            None if args.json => Form::Json,
            None => Form::Table,
        };
        let mut output = Output::new(Box::new(io::stdout()), form, self.by);
        output.unit_width = self.units.iter().map(|unit| unit.name.len()).max().unwrap_or(0).max(4);
        output
    }

    /// The sums of a round.
    fn rows(&self, round: &CountRound) -> Rows {
        let mut rows: Rows = vec![None; self.attrs.len()];
        for (event, count) in &round.counts {
            let place = match self.by {
                By::Cpu => CountPlace::Cpu(count.cpu),
                By::Thread => CountPlace::Thread(self.counts.thread(count)),
                _ => CountPlace::All,
            };
            let of_count =
                Count { value: count.value, enabled_ns: count.enabled_ns, running_ns: count.running_ns };
            let of_event = rows[*event].get_or_insert_default();
            match of_event.iter_mut().find(|row| row.place == place) {
                Some(row) => {
                    row.count = row.count.plus(of_count);
                    row.cpus += 1;
                }
                None => of_event.push(CountRow { place, cpus: 1, count: of_count }),
            }
        }
        rows
    }

    fn lines(&self, rows: &Rows, elapsed_ns: u64, time_ns: Option<u64>) -> Vec<Line> {
        let events = self.recording.events.list.iter().zip(&self.attrs).zip(&self.units);
        let counted = events.map(|((event, attr), unit)| Counted {
            attr,
            name: &event.name,
            unit: &unit.name,
            scale: unit.scale,
            cgroup: None,
            metric: None,
        });
        let mut lines = lines(counted, &[(rows, elapsed_ns)], self.by, None, time_ns, true);
        for line in &mut lines {
            if let CountPlace::Thread(tid) = line.place {
                // The thread of this number that runs now may be another one.
                let thread = self.counts.threads.iter().find(|thread| thread.0 == tid);
                line.comm =
                    thread.map(|thread| String::from_utf8_lossy(&thread.1).into_owned()).unwrap_or_default();
            }
        }
        lines
    }

    /// The counts at the end, with perf's title and footer around the table.
    fn whole(&self, rows: &Rows, time_ns: u64, input: &Path, output: &mut Output) -> anyhow::Result<()> {
        let lines = self.lines(rows, time_ns, None);
        if output.form != Form::Table {
            return output.lines(&lines);
        }
        let subject = match self.recording.features.cmdline.as_slice() {
            _ if input == Path::new("-") => "pipe".to_owned(),
            [] => input.display().to_string(),
            words => words.join(" "),
        };
        output.text(&format!("\n Performance counter stats for '{}':\n\n", shown(&subject)))?;
        output.lines(&lines)?;
        let mut elapsed = Series::default();
        elapsed.push(time_ns as f64 / 1e9);
        output.text(&format!("\n{}\n", footer(&elapsed, false, false, None)))
    }
}
