//! Where counts are printed, and in which form.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::Context;
use kymo_files::Export;
use kymo_perf::count::aggregate::By;
use kymo_perf::sys;

use kymo_cli::open;

use super::line::{Form, Line};
use super::recording::CountFile;
use super::{StatArgs, csv, json, table};

/// Where it goes.
pub(super) struct Output {
    sink: Box<dyn Write>,
    pub(super) form: Form,
    by: By,
    cgroups: bool,
    repeated: bool,
    lines_of_intervals: u64,
    /// No counts, only what follows from them.
    metric_only: bool,
    /// Before each interval.
    clear: bool,
    /// Before each line of a summary in CSV.
    summary: Option<String>,
    /// Columns of units: as wide as the widest.
    pub(super) unit_width: usize,
    /// A file that gets the counts, too.
    pub(super) recording: Option<CountFile>,
}

/// Clears a terminal, as perf does.
const CLEAR: &str = "\x1b[H\x1b[2J";
/// Lines of intervals between two headings.
const HEADING_EVERY: u64 = 25;

impl Output {
    /// Opens the file that is asked for, or stderr.
    pub(super) fn open(args: &StatArgs) -> anyhow::Result<Output> {
        let form = match &args.separator {
            // As perf: a backslash and a t are a tabulator.
            Some(separator) => {
                Form::Csv(if separator == "\\t" { "\t".to_owned() } else { separator.clone() })
            }
            None if args.json => Form::Json,
            None => Form::Table,
        };
        let mut output = Output {
            cgroups: args.in_cgroups(),
            repeated: args.repeat != 1,
            metric_only: args.metric_only,
            clear: args.interval_clear,
            ..Output::new(sink(args)?, form, args.by())
        };
        if args.output.is_some() && output.form != Form::Json {
            output.text(&format!("# started on {}\n\n", sys::date(std::time::SystemTime::now())))?;
        }
        Ok(output)
    }

    /// Counts in this form, summed so, go there.
    pub(super) fn new(sink: Box<dyn Write>, form: Form, by: By) -> Output {
        Output {
            sink,
            form,
            by,
            cgroups: false,
            repeated: false,
            lines_of_intervals: 0,
            metric_only: false,
            clear: false,
            summary: None,
            unit_width: 4,
            recording: None,
        }
    }

    /// Writes something as it is.
    pub(super) fn text(&mut self, text: &str) -> anyhow::Result<()> {
        self.sink
            .write_all(text.as_bytes())
            .and_then(|()| self.sink.flush())
            .context("failed to write the counts")
    }

    /// What follows is a summary of the intervals before it.
    pub(super) fn begin_summary(&mut self) {
        self.summary = Some(format!("{:>16}", "summary"));
        self.lines_of_intervals = 0;
    }

    /// Writes lines of counts.
    pub(super) fn lines(&mut self, lines: &[Line]) -> anyhow::Result<()> {
        let mut text = String::new();
        let timed = lines.iter().any(|line| line.time_ns.is_some());
        if self.metric_only {
            let heading = self.lines_of_intervals.is_multiple_of(HEADING_EVERY);
            self.lines_of_intervals += u64::from(timed);
            return self.text(&super::metrics::text(lines, &self.form, heading));
        }
        if self.form == Form::Table && timed && self.clear {
            text += CLEAR;
            self.lines_of_intervals = 0;
        }
        if self.form == Form::Table && timed {
            if self.lines_of_intervals.is_multiple_of(HEADING_EVERY) {
                text += &table::heading(self.by, self.cgroups);
                text.push('\n');
            }
            self.lines_of_intervals += 1;
        }
        for line in lines {
            if let (Form::Csv(separator), Some(summary)) = (&self.form, &self.summary) {
                text += &format!("{summary}{separator}");
            }
            text += &match &self.form {
                Form::Table => table::line(line, self.unit_width),
                Form::Csv(separator) => csv::line(line, separator, self.repeated && line.time_ns.is_none()),
                Form::Json => json::line(line),
            };
            text.push('\n');
        }
        self.text(&text)
    }
}

fn sink(args: &StatArgs) -> anyhow::Result<Box<dyn Write>> {
    if args.quiet {
        return Ok(Box::new(std::io::sink()));
    }
    if let Some(number) = args.log_fd {
        let fd = sys::inherited(number)
            .with_context(|| format!("--log-fd {number}: no such descriptor is open"))?;
        return Ok(Box::new(File::from(fd)));
    }
    let Some(path) = &args.output else { return Ok(Box::new(std::io::stderr())) };
    // As perf: the counts go where they go without -o.
    if path == Path::new("-") {
        return Ok(Box::new(std::io::stderr()));
    }
    let file = if args.append { Export::append(path) } else { Export::begin(path, open::keep_recording) };
    Ok(Box::new(file.with_context(|| {
        format!("failed to open {}; -o wants a file in a directory where you may write", path.display())
    })?))
}
