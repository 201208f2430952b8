//! The arguments of `kymo diff` as typed.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use kymo_cli::parse::parse_frequency;
use kymo_profile::diff::{CostWeight, DiffOptions, Subject};

use crate::cmd::filter::percent;
use crate::cmd::report::SymbolArgs;

/// Compare two builds by several recordings of each: what costs more, and how certain that is.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status:\n  0  no regression    1  a regression    3  undecided\n  2  no answer: recordings cannot be made, read or compared\n\nExamples:\n  kymo diff --run './old input' --run './new input' -n 10\n  kymo diff old-*.data -- new-*.data\n  kymo diff --per probe:handle_request old-*.data -- new-*.data\n  kymo diff --tui old-*.data -- new-*.data\n  kymo diff                           perf.data.old and perf.data"
)]
pub(crate) struct DiffArgs {
    /// The recordings of the old side; of two files without -- the second is the new side
    #[arg(value_name = "OLD")]
    pub(super) old: Vec<PathBuf>,
    /// The recordings of the new side
    #[arg(value_name = "NEW", last = true)]
    pub(super) new: Vec<PathBuf>,

    /// Record this shell command: the first time for the old side, the second time for the new side
    #[arg(long = "run", value_name = "COMMAND", conflicts_with_all = ["old", "new"])]
    pub(super) commands: Vec<String>,
    /// Record so many runs of each side, in random order
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) runs: u32,
    /// Before the recordings, run each command so many times without recording it
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) warmup: u32,
    /// Keep the recordings in this folder, as old-01.data, new-01.data and so on
    #[arg(short, long, value_name = "DIR", requires = "commands")]
    pub(super) output: Option<PathBuf>,
    /// Sample so many times per second, or `max`
    #[arg(short = 'F', long = "freq", value_name = "HZ", value_parser = parse_frequency, default_value_t = 3999)]
    pub(super) frequency: u64,
    /// Show on standard error what the commands print
    #[arg(long)]
    pub(super) show_output: bool,

    /// The event whose periods are the cost [default: the one with most samples]
    #[arg(short, long, value_name = "EVENT")]
    pub(super) event: Option<String>,
    /// What has rows
    #[arg(long, value_name = "WHAT", default_value = "functions")]
    pub(super) by: RowSubject,
    /// Compare what a run costs (the default with several runs a side)
    #[arg(long, conflicts_with_all = ["share", "per"])]
    pub(super) absolute: bool,
    /// Compare shares of a run's whole cost (the default where a side has one run)
    #[arg(long, conflicts_with = "per")]
    pub(super) share: bool,
    /// Compare costs per unit of work, as this event counts it: `probe:handle_request`
    #[arg(long, value_name = "EVENT")]
    pub(super) per: Option<String>,

    /// A change of this part of the whole cost matters, percent
    #[arg(long, value_name = "PERCENT", value_parser = percent, default_value = "1")]
    pub(super) smallest_effect: f64,
    /// So does a change of this part of a function's own cost, percent
    #[arg(long, value_name = "PERCENT", value_parser = percent, default_value = "3")]
    pub(super) smallest_change: f64,
    /// What has less of the whole cost on both sides is not tested, percent
    #[arg(long, value_name = "PERCENT", value_parser = percent, default_value = "0.5")]
    pub(super) min_share: f64,
    /// How often intervals hold the truth, percent
    #[arg(long, value_name = "PERCENT", value_parser = certainty, default_value = "95")]
    pub(super) confidence: f64,
    /// How many of the reported differences may be none, percent
    #[arg(long, value_name = "PERCENT", value_parser = certainty, default_value = "5")]
    pub(super) false_discoveries: f64,
    /// Refuse recordings that lost more of their samples, percent
    #[arg(long, value_name = "PERCENT", value_parser = percent, default_value = "1")]
    pub(super) max_loss: f64,
    /// The seed of the order of runs, of their environments and of the bootstrap
    #[arg(long, value_name = "N")]
    pub(super) seed: Option<u64>,

    /// Show the comparison in the terminal, with the call trees of both sides: ? shows the keys
    #[arg(long)]
    pub(super) tui: bool,
    /// JSON
    #[arg(long, conflicts_with = "md")]
    pub(super) json: bool,
    /// Markdown, for a comment on a change
    #[arg(long)]
    pub(super) md: bool,
    /// Also write JUnit's XML: a regression is a failure, what is undecided is skipped
    #[arg(long, value_name = "FILE")]
    pub(super) junit: Option<PathBuf>,
    /// Also write two flame graphs, coloured by what changed: FILE with the new side's widths, and
    /// with .old before its suffix the old side's
    #[arg(long, value_name = "FILE")]
    pub(super) flamegraph: Option<PathBuf>,
    /// Also write a page with the flame graphs, the call trees and the functions of both sides
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
    /// Show so many rows at most
    #[arg(long, value_name = "N", default_value_t = 30)]
    pub(super) top: usize,
    /// Show rows without a difference, too
    #[arg(long)]
    pub(super) all: bool,

    /// Worker threads; as many as CPUs are usual
    #[arg(short, long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub(super) jobs: usize,
    #[command(flatten)]
    pub(super) symbols: SymbolArgs,
    /// Say only what is wrong
    #[arg(short, long)]
    pub(super) quiet: bool,
}

/// What has rows, as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum RowSubject {
    /// Functions, by the cost in themselves
    Functions,
    /// Functions, by the cost in them and in what they called
    Inclusive,
    /// Call paths
    Paths,
    /// Source lines
    Lines,
    /// Modules
    Modules,
}

/// A percentage that is neither 0 nor 100.
fn certainty(text: &str) -> Result<f64, String> {
    percent(text)
        .ok()
        .filter(|part| *part > 0.0 && *part < 100.0)
        .ok_or_else(|| "write a number above 0 and below 100".into())
}

impl DiffArgs {
    /// What is compared, of sides of so many runs.
    pub(super) fn options(&self, runs: (usize, usize), seed: u64) -> DiffOptions {
        let weight = match () {
            () if self.per.is_some() => CostWeight::PerWork,
            () if self.share => CostWeight::Share,
            () if self.absolute || runs.0.min(runs.1) > 1 => CostWeight::Absolute,
            // How long a single run took says nothing of how long the next one takes.
            () => CostWeight::Share,
        };
        let part = |percent: f64| percent / 100.0;
        DiffOptions {
            subject: match self.by {
                RowSubject::Functions => Subject::Functions,
                RowSubject::Inclusive => Subject::Inclusive,
                RowSubject::Paths => Subject::Paths,
                RowSubject::Lines => Subject::Lines,
                RowSubject::Modules => Subject::Modules,
            },
            weight,
            confidence: part(self.confidence),
            discovery_rate: part(self.false_discoveries),
            smallest_of_total: part(self.smallest_effect),
            smallest_of_itself: part(self.smallest_change),
            least_share: part(self.min_share),
            most_loss: part(self.max_loss),
            seed,
        }
    }
}
