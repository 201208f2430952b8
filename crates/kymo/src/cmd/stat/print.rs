//! What is printed at the end, and the lines of intervals.

use kymo_perf::count::Count;
use kymo_perf::count::kernel_stats::KernelStats;

use super::accounts;
use super::counting::{Counting, Run};
use super::line::{Form, Line};
use super::output::Output;
use super::repeat::Series;

impl Counting<'_> {
    /// All lines about some runs, in perf's order.
    pub(super) fn lines(&self, runs: &[Run], time_ns: Option<u64>) -> Vec<Line> {
        let names = self.names.borrow();
        super::line::lines(
            self.events.iter().zip(names.iter()).map(|(event, name)| super::line::Counted {
                attr: &event.selected.attr,
                name,
                unit: event.unit(),
                scale: event.scale(),
                cgroup: event.cgroup.as_deref(),
                metric: event.metric,
            }),
            &runs.iter().map(|run| (run.rows.as_slice(), run.elapsed_ns)).collect::<Vec<_>>(),
            self.args.by(),
            (self.args.repeat != 1 && time_ns.is_none()).then_some(()),
            time_ns,
            !self.args.no_scale,
        )
    }

    /// Prints the result.
    pub(super) fn print(&self, runs: &[Run], output: &mut Output) -> anyhow::Result<()> {
        let lines = self.lines(runs, None);
        let sum = runs.iter().map(|run| run.accounts).reduce(|a, b| mean_later(&a, &b)).unwrap_or_default();
        if output.form != Form::Table {
            output.lines(&lines)?;
            if self.args.accounting {
                output.lines(&accounts::lines(&sum, None, (self.args.repeat != 1).then_some(0.0)))?;
            }
            return Ok(());
        }
        output.text(&format!(
            "\n Performance counter stats for {}{}:\n\n",
            self.subject(),
            self.times(runs.len())
        ))?;
        output.lines(&lines)?;
        let mut text = String::from("\n");
        let mut elapsed = Series::default();
        runs.iter().for_each(|run| elapsed.push(run.elapsed_ns as f64 / 1e9));
        text += &super::footer::footer(
            &elapsed,
            self.args.repeat != 1,
            self.args.table,
            runs.last().and_then(|run| run.usage),
        );
        if self.args.repeat != 1 {
            text += &self.spread(runs, &elapsed);
        }
        if !self.args.no_accounting {
            let accounted = accounts::table(&sum);
            if !accounted.is_empty() {
                text += &format!("{accounted}\n");
            }
        }
        text.push('\n');
        output.text(&text)
    }

    fn subject(&self) -> String {
        let args = self.args;
        let list = |ids: &[i32]| ids.iter().map(i32::to_string).collect::<Vec<_>>().join(",");
        if !args.pids.is_empty() {
            format!("process id '{}'", list(&args.pids))
        } else if !args.tids.is_empty() {
            format!("thread id '{}'", list(&args.tids))
        } else if let Some(cpus) = args.cpus.as_ref().filter(|_| !args.all) {
            let cpus: Vec<i32> = cpus.0.iter().map(|&cpu| cpu as i32).collect();
            format!("'CPU(s) {}'", list(&cpus))
        } else if args.wide() {
            "'system wide'".into()
        } else {
            let words: Vec<_> = args.command.iter().map(|word| word.to_string_lossy()).collect();
            format!("'{}'", words.join(" "))
        }
    }

    fn times(&self, runs: usize) -> String {
        if self.args.repeat == 1 { String::new() } else { format!(" ({runs} runs)") }
    }

    /// What the mean does not tell of several runs.
    fn spread(&self, runs: &[Run], elapsed: &Series) -> String {
        let mut series: Vec<(String, Series, usize)> = Vec::new();
        for (index, event) in self.events.iter().enumerate() {
            let of_run = |run: &Run| {
                let rows = run.rows.get(index)?.as_ref()?;
                let sum = rows.iter().fold(Count::default(), |sum, row| sum.plus(row.count));
                Some(sum.scaled()? as f64 * event.scale())
            };
            let values: Option<Vec<f64>> = runs.iter().map(of_run).collect();
            if let Some(values) = values {
                let unit = event.unit();
                let name = if unit.is_empty() {
                    event.selected.name.clone()
                } else {
                    format!("{} ({unit})", event.selected.name)
                };
                series.push((name, Series(values), if event.scale() == 1.0 { 0 } else { 2 }));
            }
        }
        series.push(("elapsed (seconds)".into(), elapsed.clone(), 6));
        super::footer::spread(&series)
    }
}

/// Means of several runs would hide the largest peak: sizes are the largest, the rest is of the last run.
fn mean_later(earlier: &KernelStats, later: &KernelStats) -> KernelStats {
    KernelStats { peak_bytes: earlier.peak_bytes.max(later.peak_bytes), ..*later }
}
