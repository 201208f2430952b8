//! One count, ready to be printed in any form.

use kymo_perf::count::aggregate::{By, CountPlace, CountRow, name_of};
use kymo_perf::count::named_metrics::NamedMetric;
use kymo_perf::selector::EventAttr;

use super::derived::{Basis, Metric};
use super::repeat::Series;

/// What stands where the number does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value {
    /// The machine does not have the event.
    NotSupported,
    /// It was never on the hardware.
    NotCounted,
    /// So often, or so much of the unit.
    Number(f64),
}

/// The form of what is printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// perf's table.
    Table,
    /// perf's fields with this separator.
    Csv(String),
    /// perf's JSON lines.
    Json,
}

/// One line of output: an event at a place.
#[derive(Clone, Debug)]
pub(super) struct Line {
    /// Since the start, in ns, if there are intervals.
    pub(super) time_ns: Option<u64>,
    /// Where it was counted.
    pub(super) place: CountPlace,
    /// The thread's name, if it is one.
    pub(super) comm: String,
    /// Over how many CPUs it is a sum.
    pub(super) cpus: usize,
    /// The event's name.
    pub(super) event: String,
    /// `msec`, `Joules`, or nothing.
    pub(super) unit: String,
    /// The number.
    pub(super) value: Value,
    /// Whether the number has a fraction: it was multiplied by something.
    pub(super) fraction: bool,
    /// Mean time on the hardware.
    pub(super) running_ns: f64,
    /// Mean time enabled.
    pub(super) enabled_ns: f64,
    /// Standard error of the mean, in percent of it, if there are repetitions.
    pub(super) noise: Option<f64>,
    /// Rates and ratios.
    pub(super) metric: Option<Metric>,
    /// The cgroup that it was counted in.
    pub(super) cgroup: Option<String>,
}

impl Line {
    /// For which percentage of the time it was on the hardware.
    pub(super) fn percent_running(&self) -> f64 {
        if self.enabled_ns > 0.0 { 100.0 * self.running_ns / self.enabled_ns } else { 100.0 }
    }

    /// The number, or the words in its place, as in the table and in CSV.
    pub(super) fn number(&self) -> String {
        match self.value {
            Value::NotSupported => "<not supported>".to_owned(),
            Value::NotCounted => "<not counted>".to_owned(),
            Value::Number(value) if self.fraction => format!("{value:.2}"),
            Value::Number(value) => format!("{value:.0}"),
        }
    }

    /// The thread as perf writes it: name and id.
    pub(super) fn named(mut self) -> Line {
        if let CountPlace::Thread(task) = self.place {
            self.comm = name_of(task);
        }
        self
    }
}

/// An event as far as lines are concerned.
pub(super) struct Counted<'a> {
    pub(super) attr: &'a EventAttr,
    pub(super) name: &'a str,
    pub(super) unit: &'a str,
    /// By what its count is multiplied to be in that unit.
    pub(super) scale: f64,
    pub(super) cgroup: Option<&'a str>,
    /// What is printed behind the count in place of what follows from the event.
    pub(super) metric: Option<&'static NamedMetric>,
}

/// The rows of one run by event, and its time in ns.
type RunRows<'a> = (&'a [Option<Vec<CountRow>>], u64);

/// The lines about some runs, in perf's order: by event, and for cores and what is larger, by place.
pub(super) fn lines<'a>(
    events: impl Iterator<Item = Counted<'a>>,
    runs: &[RunRows<'_>],
    by: By,
    repeated: Option<()>,
    time_ns: Option<u64>,
    scaled: bool,
) -> Vec<Line> {
    let count_of = if scaled { scaled_count } else { raw_count };
    let events: Vec<Counted<'a>> = events.collect();
    let mean = |values: &mut dyn Iterator<Item = f64>| {
        let values: Vec<f64> = values.collect();
        if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
    };
    let elapsed_ns = mean(&mut runs.iter().map(|run| run.1 as f64));
    // What the machine lacks has a line at each place, too.
    let mut places: Vec<(CountPlace, usize)> = Vec::new();
    for row in runs.iter().flat_map(|run| run.0.iter().flatten().flatten()) {
        if !places.iter().any(|(place, _)| *place == row.place) {
            places.push((row.place.clone(), row.cpus));
        }
    }
    if places.is_empty() && by == By::All {
        places.push((CountPlace::All, 0));
    }
    places.sort();
    let series = |event: usize, place: &CountPlace| -> Option<Vec<CountRow>> {
        let of_run = |run: &RunRows<'_>| {
            let rows = run.0.get(event)?.as_ref()?;
            rows.iter().find(|row| row.place == *place).cloned()
        };
        runs.iter().map(of_run).collect()
    };
    let mut found: Vec<(usize, usize, Line)> = Vec::new();
    for (at, (place, cpus)) in places.iter().enumerate() {
        let counts: Vec<Option<Vec<CountRow>>> =
            (0..events.len()).map(|event| series(event, place)).collect();
        // Rates are within a cgroup.
        let mut bases: Vec<(Option<&str>, Basis)> = Vec::new();
        for (event, rows) in events.iter().zip(&counts) {
            let Some(rows) = rows else { continue };
            let basis = match bases.iter_mut().find(|basis| basis.0 == event.cgroup) {
                Some((_, basis)) => basis,
                None => {
                    bases.push((event.cgroup, Basis::default()));
                    &mut bases.last_mut().expect("just pushed").1
                }
            };
            basis.add(event.attr, mean(&mut rows.iter().filter_map(count_of)));
        }
        for (index, (event, rows)) in events.iter().zip(&counts).enumerate() {
            let running = |row: &CountRow| row.count.running_ns as f64;
            let rows_or_none = rows.as_deref().unwrap_or_default();
            let scaled: Vec<f64> = rows_or_none.iter().filter_map(count_of).collect();
            let raw = mean(&mut scaled.iter().copied());
            let value = match rows {
                None => Value::NotSupported,
                Some(_) if scaled.is_empty() => Value::NotCounted,
                Some(_) => Value::Number(raw * event.scale),
            };
            let basis = bases.iter().find(|basis| basis.0 == event.cgroup);
            let metric = basis.and_then(|(_, basis)| match event.metric {
                Some(named) => basis.named(named, raw, elapsed_ns),
                None => basis.metric(event.attr, raw, elapsed_ns),
            });
            let noise = repeated.map(|()| Series(scaled).noise());
            let line = Line {
                time_ns,
                place: place.clone(),
                comm: String::new(),
                cpus: rows_or_none.first().map_or(*cpus, |row| row.cpus),
                event: event.name.to_owned(),
                unit: event.unit.to_owned(),
                value,
                fraction: event.scale != 1.0,
                running_ns: mean(&mut rows_or_none.iter().map(running)),
                enabled_ns: mean(&mut rows_or_none.iter().map(|row| row.count.enabled_ns as f64)),
                noise,
                metric: metric.filter(|_| matches!(value, Value::Number(_))),
                cgroup: event.cgroup.map(str::to_owned),
            };
            found.push((at, index, line.named()));
        }
    }
    if matches!(by, By::All | By::Cpu | By::Thread) {
        found.sort_by_key(|&(place, event, _)| (event, place));
    }
    if by == By::Thread {
        let size = |line: &Line| if let Value::Number(value) = line.value { value } else { -1.0 };
        found.sort_by(|a, b| a.1.cmp(&b.1).then(size(&b.2).total_cmp(&size(&a.2))));
    }
    found.into_iter().map(|(_, _, line)| line).collect()
}

/// The count for the whole time; `None` if it was never on the hardware.
fn scaled_count(row: &CountRow) -> Option<f64> {
    row.count.scaled().map(|count| count as f64)
}

/// The count of the time on the hardware; `None` if it was never there.
fn raw_count(row: &CountRow) -> Option<f64> {
    row.count.was_counted().then_some(row.count.value as f64)
}
