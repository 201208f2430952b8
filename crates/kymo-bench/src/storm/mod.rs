//! `kymo bench record storm`: how many samples a second this machine can record without losing one, by the size of a sample.
//!
//! ```text
//!  for each size of stack, kept raw or reduced:
//!     load alone -> load recorded -> its file: kept, lost        (step)
//!        ^                              |
//!        '------- next rate  <----------'                        (search)
//! ```
//!
//! The load and the recorder are processes of this very program: what is measured is `kymo record` as anybody runs it, and a recorder that
//! does not end can be killed (`child`). What was lost is what the recording's file says, not what the recorder says about itself, and
//! the kernel's own count of the load's context switches must not be more than both together.

mod child;
pub(super) mod load;
mod search;
mod step;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::thread::{CpuSet, sched_getaffinity};
use serde_json::{Value, json};

use self::search::{Pace, Search};
use self::step::{Kind, Runner, Step};
use super::SCHEMA_VERSION;
use kymo_cli::parse::{Cpus, parse_cpus};

const NAME: &str = "record/storm";

/// Rates that are tried for each kind of record, at most.
const MOST_TRIES: u32 = 5;
/// A try is this part of the time that a kind of record has: bare and recorded, so often as there are tries, and what starting takes.
const TRIES_IN_A_KIND: f64 = 8.0;
/// Samples per second and CPU that no load has reached, for the room on the disk.
const NEVER_REACHED: f64 = 250_000.0;

/// Find how many samples a second can be recorded without losing one
#[derive(Debug, Args)]
#[command(
    after_help = "The load: on each CPU two threads that wake each other, every context switch a sample. It runs bare and recorded in turns, first as fast\nas it can; where something is lost, at lower rates. `us/op` is the time of an operation (two switches) while recorded and bare."
)]
pub(crate) struct StormArgs {
    /// Sizes of the stack in each sample, with K for KiB; 0: no stack
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_value = "0,1K,8K,32K", value_parser = stack_size)]
    size: Vec<u32>,
    /// What becomes of the stacks
    #[arg(long, value_name = "WHAT", value_delimiter = ',', default_value = "reduced,raw")]
    stacks: Vec<Stacks>,
    /// Only this rate, in samples per second and CPU
    #[arg(long, value_name = "HZ", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    rate: Option<u64>,
    /// Only these CPUs: 0-2,5
    #[arg(short = 'C', long = "cpu", visible_alias = "cpus", value_name = "CPUS", value_parser = parse_cpus)]
    cpus: Option<Cpus>,
    /// So long in all, about
    #[arg(long, value_name = "SECONDS", default_value = "25", value_parser = seconds)]
    seconds: f64,
    /// Where the recordings go, each removed before the next [default: a new folder in $TMPDIR]
    #[arg(long, value_name = "DIR")]
    work: Option<PathBuf>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// What becomes of the stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Stacks {
    /// Unwound while recording
    Reduced,
    /// Kept, for the report to unwind
    Raw,
}

fn stack_size(text: &str) -> Result<u32, String> {
    const LIMIT: u32 = 65_528;
    let (digits, unit) = text.strip_suffix(['K', 'k']).map_or((text, 1), |digits| (digits, 1024));
    let bytes = digits.parse::<u32>().ok().and_then(|number| number.checked_mul(unit));
    let bytes = bytes.filter(|bytes| bytes % 8 == 0 && *bytes <= LIMIT);
    bytes.ok_or_else(|| format!("expected a multiple of 8 bytes up to {LIMIT}, or KiB with K"))
}

/// A length of time in seconds: more than none, and not so much that it is none.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|seconds| *seconds >= 0.01 && *seconds <= 86_400.0);
    number.ok_or_else(|| "expected seconds, from 0.01 to 86400".into())
}

/// Runs the benchmark.
pub(crate) fn run(args: StormArgs) -> anyhow::Result<ExitCode> {
    let interrupted = kymo_cli::signals::interrupted()?;
    let folder = match &args.work {
        None => tempfile::tempdir().context("failed to make a temporary folder")?,
        Some(work) => tempfile::tempdir_in(work)
            .with_context(|| format!("failed to make a folder in {}", work.display()))?,
    };
    let cpus = match &args.cpus {
        Some(Cpus(cpus)) => cpus.clone(),
        None => permitted()?,
    };
    let kinds = kinds(&args);
    let share = args.seconds / kinds.len().max(1) as f64;
    let runner = Runner {
        kymo: std::env::current_exe().context("failed to find this program")?,
        cpus,
        folder: folder.path(),
        length: Duration::from_secs_f64((share / TRIES_IN_A_KIND).clamp(0.02, 5.0)),
        interrupted: &interrupted,
    };
    let mut storm = Storm {
        out: std::io::stdout().lock(),
        args: &args,
        runner,
        bar: bar(args.seconds),
        found: Vec::new(),
    };
    let done = storm.run(&kinds);
    storm.bar.finish_and_clear();
    done?;
    storm.conclude()?;
    Ok(ExitCode::SUCCESS)
}

/// The CPUs on which this process may run.
fn permitted() -> anyhow::Result<Vec<u32>> {
    let set = sched_getaffinity(None)
        .context("failed to read on which CPUs this process may run; name them with --cpu")?;
    Ok((0..CpuSet::MAX_CPU as u32).filter(|&cpu| set.is_set(cpu as usize)).collect())
}

/// What is recorded, in the order of the table.
fn kinds(args: &StormArgs) -> Vec<Kind> {
    let mut kinds = Vec::new();
    for &stack_bytes in &args.size {
        let raws = args.stacks.iter().map(|&stacks| stacks == Stacks::Raw);
        // Where there are no stacks, nothing can become of them.
        let raws = raws.take(if stack_bytes == 0 { 1 } else { usize::MAX });
        for raw in raws {
            let kind = Kind { stack_bytes, raw: raw && stack_bytes > 0 };
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
    }
    kinds
}

/// On a terminal only.
fn bar(seconds: f64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new((seconds * 1e3) as u64);
    // SANITY: the template is a constant and parses.
    let style = ProgressStyle::with_template("{spinner} {bar:40} {msg}").expect("a valid template");
    bar.set_style(style);
    bar
}

/// What was found for one kind of record.
struct Finding {
    kind: Kind,
    /// Bytes that the kernel writes into the ring for each sample.
    ring_bytes: f64,
    steps: Vec<Step>,
    /// Why there is nothing, or less than there could be.
    short: Option<String>,
}

impl Finding {
    /// The try with the most samples of those that lost nothing.
    fn ceiling(&self) -> Option<&Step> {
        let clean = self.steps.iter().filter(|step| step.lost == 0);
        clean.max_by(|a, b| a.kept_rate().total_cmp(&b.kept_rate()))
    }

    /// Whether more might be recorded, if the load could only make more.
    fn by_load(&self) -> bool {
        self.steps.iter().any(|step| step.pace == Pace::Free && step.lost == 0)
    }

    fn mb_per_cpu(&self, step: &Step) -> f64 {
        step.kept_rate() * self.ring_bytes / 1e6
    }
}

struct Storm<'a, W: Write> {
    out: W,
    args: &'a StormArgs,
    runner: Runner<'a>,
    bar: ProgressBar,
    found: Vec<Finding>,
}

impl<W: Write> Storm<'_, W> {
    fn run(&mut self, kinds: &[Kind]) -> anyhow::Result<()> {
        let (begin, total) = (Instant::now(), Duration::from_secs_f64(self.args.seconds));
        if !self.args.json {
            self.head()?;
        }
        for (number, &kind) in kinds.iter().enumerate() {
            // What one does not use, the next ones have.
            let until = total.mul_f64((number + 1) as f64 / kinds.len() as f64);
            let mut found = Finding { kind, ring_bytes: 0.0, steps: Vec::new(), short: self.no_room(kind)? };
            if found.short.is_none() {
                found.ring_bytes = self.runner.ring_bytes(kind)?;
                let mut search = Search::new(MOST_TRIES, self.args.rate);
                while let Some(pace) = search.next() {
                    if !found.steps.is_empty() && begin.elapsed() >= until {
                        found.short = Some("its time was up".into());
                        break;
                    }
                    self.bar.set_position(begin.elapsed().as_millis() as u64);
                    self.bar.set_message(format!("{} KiB {}", kind.stack_bytes >> 10, kind.kept()));
                    let step = self.runner.step(kind, pace)?;
                    search.learn(pace, step.produced_rate() as u64, step.lost > 0);
                    found.steps.push(step);
                    if !self.args.json {
                        self.row(&found)?;
                    }
                }
            }
            self.found.push(found);
        }
        Ok(())
    }

    /// Why the recordings of this kind do not fit on the disk.
    fn no_room(&self, kind: Kind) -> anyhow::Result<Option<String>> {
        let bytes = if kind.raw { f64::from(kind.stack_bytes) + 512.0 } else { 512.0 };
        let rate = self.args.rate.map_or(NEVER_REACHED, |rate| rate as f64);
        let need = rate * self.runner.cpus.len() as f64 * self.runner.length.as_secs_f64() * bytes;
        let folder = self.runner.folder;
        let disk =
            rustix::fs::statvfs(folder).with_context(|| format!("failed to look at {}", folder.display()))?;
        let free = disk.f_bavail as f64 * disk.f_frsize as f64;
        Ok((free < need).then(|| {
            format!(
                "a recording may need {:.1} GB, {} has {:.1} GB free: --work DIR, fewer --cpus, or less --seconds",
                need / 1e9,
                folder.display(),
                free / 1e9
            )
        }))
    }

    fn head(&mut self) -> std::io::Result<()> {
        writeln!(self.out, "# Running '{NAME}' benchmark:")?;
        let (cpus, length) = (self.runner.cpus.len(), self.runner.length.as_secs_f64());
        writeln!(
            self.out,
            "# {cpus} CPUs, two threads on each that wake each other; every switch is a sample; {length:.2} s bare and {length:.2} s recorded in turns"
        )?;
        writeln!(
            self.out,
            "\n{:>7} {:>8} {:>11} {:>13} {:>9} {:>11} {:>8} {:>8} {:>6}",
            "stack", "kept", "asked/s/CPU", "samples/s/CPU", "lost", "MB/s/CPU", "us/op", "bare", "slower"
        )?;
        self.out.flush()
    }

    /// The last try as a line.
    fn row(&mut self, found: &Finding) -> std::io::Result<()> {
        let Some(step) = found.steps.last() else { return Ok(()) };
        let asked = match step.pace {
            Pace::Free => "most".to_owned(),
            Pace::PerCpu(rate) => rate.to_string(),
        };
        let line = format!(
            "{:>7} {:>8} {asked:>11} {:>13.0} {:>9} {:>11.1} {:>8.2} {:>8.2} {:>5.2}x",
            size(step.kind),
            step.kind.kept(),
            step.kept_rate(),
            step.lost,
            found.mb_per_cpu(step),
            step.recorded.operation_us(),
            step.bare.operation_us(),
            step.slowdown()
        );
        let out = &mut self.out;
        self.bar.suspend(|| writeln!(out, "{line}").and_then(|()| out.flush()))
    }

    /// The result, and whether an account was wrong.
    fn conclude(&mut self) -> anyhow::Result<()> {
        if self.args.json {
            let json = self.as_json();
            serde_json::to_writer_pretty(&mut self.out, &json)?;
            writeln!(self.out)?;
        } else {
            writeln!(self.out, "\n  Highest rate without loss, per CPU:")?;
            for found in &self.found {
                writeln!(
                    self.out,
                    "    {:>7} {:>8}: {}",
                    size(found.kind),
                    found.kind.kept(),
                    verdict(found)
                )?;
            }
        }
        let silent: u64 = self.found.iter().flat_map(|found| &found.steps).map(Step::unaccounted).sum();
        if silent > 0 {
            bail!(
                "{silent} context switches of the load are neither recorded nor counted as lost: an account is wrong"
            );
        }
        Ok(())
    }

    fn as_json(&self) -> Value {
        let kinds: Vec<Value> = self.found.iter().map(kind_json).collect();
        json!({
            "schema": "kymo-bench",
            "schema_version": SCHEMA_VERSION,
            "benchmark": NAME,
            "cpus": self.runner.cpus,
            "seconds_each": self.runner.length.as_secs_f64(),
            "kinds": kinds,
        })
    }
}

fn size(kind: Kind) -> String {
    match kind.stack_bytes {
        0 => "-".into(),
        bytes if bytes % 1024 == 0 => format!("{} KiB", bytes >> 10),
        bytes => format!("{bytes} B"),
    }
}

/// The result for one kind of record in words.
fn verdict(found: &Finding) -> String {
    let mut words = match found.ceiling() {
        None if found.steps.is_empty() => "not measured".to_owned(),
        None => "every rate that was tried lost something".to_owned(),
        Some(step) => format!(
            "{:.0} samples/s, {:.1} MB/s, the target {:.2} times slower{}",
            step.kept_rate(),
            found.mb_per_cpu(step),
            step.slowdown(),
            if found.by_load() { " (as fast as the load can)" } else { "" }
        ),
    };
    if let Some(short) = &found.short {
        words = format!("{words}; {short}");
    }
    words
}

fn kind_json(found: &Finding) -> Value {
    let step = |step: &Step| {
        json!({
            "asked_per_s": match step.pace {
                Pace::Free => None,
                Pace::PerCpu(rate) => Some(rate),
            },
            "samples": step.samples,
            "lost": step.lost,
            "unaccounted": step.unaccounted(),
            "elapsed_ns": step.recorded.elapsed_ns,
            "operations": step.recorded.operations,
            "samples_per_s": step.kept_rate(),
            "mb_per_s": found.mb_per_cpu(step),
            "operation_us": step.recorded.operation_us(),
            "bare_operation_us": step.bare.operation_us(),
            "slowdown": step.slowdown(),
            "file_bytes": step.file_bytes,
        })
    };
    json!({
        "stack_bytes": found.kind.stack_bytes,
        "raw_stacks": found.kind.raw,
        "ring_bytes_per_sample": found.ring_bytes,
        "ceiling": found.ceiling().map(step),
        "ceiling_is_the_load": found.by_load(),
        "steps": found.steps.iter().map(step).collect::<Vec<_>>(),
        "short": found.short,
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{Kind, StormArgs, kinds, seconds, stack_size};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        storm: StormArgs,
    }

    fn of(words: &[&str]) -> Vec<(u32, bool)> {
        let line = Line::try_parse_from([&["storm"], words].concat()).expect("they are understood");
        kinds(&line.storm).into_iter().map(|Kind { stack_bytes, raw }| (stack_bytes, raw)).collect()
    }

    /// Checks which kinds of records are tried: both for each stack, one where there is none, none twice.
    #[test]
    fn what_is_tried() {
        let all = [
            (0, false),
            (1024, false),
            (1024, true),
            (8192, false),
            (8192, true),
            (32768, false),
            (32768, true),
        ];
        assert_eq!(of(&[]), all);
        assert_eq!(of(&["--size", "0,16,16,0", "--stacks", "raw"]), [(0, false), (16, true)]);
    }

    /// Checks sizes and times that are and are not taken.
    #[test]
    fn sizes_and_times() {
        assert_eq!((stack_size("8K"), stack_size("65528")), (Ok(8192), Ok(65528)));
        for wrong in ["64K", "12", "-8", "8M", "", "5000000K"] {
            assert!(stack_size(wrong).is_err(), "{wrong}");
        }
        assert_eq!(seconds("0.5"), Ok(0.5));
        for wrong in ["0", "-1", "nan", "inf", "1e9", "x"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
