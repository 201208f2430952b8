//! The arguments of `kymo annotate` as typed.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use kymo_cli::open;
use kymo_cli::perf_options::PerfOptions;
use kymo_profile::query::annotate::{AnnotationStyle, CostColumn, PercentBase};
use kymo_symbols::disassembly::Syntax;

use super::perf_options::AnnotateOptions;
use crate::cmd::filter::{self, FilterArgs};
use crate::cmd::report::SymbolArgs;

/// Show which instructions and source lines of a function the time went to.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  kymo annotate price_of           the function, and parts that the compiler split off of it\n  kymo annotate -l -d shop         all functions of a module, the hottest first\n  kymo annotate -M intel --asm-raw --no-source 'parse_*'"
)]
pub(crate) struct AnnotateArgs {
    /// The function, with * for any characters [default: all functions, the hottest first]
    #[arg(value_name = "SYMBOL", conflicts_with = "symbol")]
    pub(super) function: Option<String>,

    /// The recording: a file, a directory of `perf record --threads`, or - for stdin
    #[arg(short, long, value_name = "FILE", default_value = open::DEFAULT)]
    pub(super) input: PathBuf,

    /// The function, as an option
    #[arg(short, long, value_name = "SYMBOL")]
    pub(super) symbol: Option<String>,

    /// Only functions of these modules
    #[arg(short, long, value_name = "NAMES", value_delimiter = ',')]
    pub(super) dsos: Vec<String>,

    #[command(flatten)]
    pub(super) filter: FilterArgs,

    /// Print text (the default; accepted for scripts written for perf)
    #[arg(long)]
    pub(super) stdio: bool,

    /// Colours: always, never, or auto (on a terminal)
    #[arg(long, value_name = "MODE", num_args = 0..=1, default_value = "auto", default_missing_value = "always")]
    pub(super) stdio_color: ColorMode,

    /// Show the places of source lines, and first the hottest lines
    #[arg(short = 'l', long)]
    pub(super) print_line: bool,

    /// Show paths whole
    #[arg(short = 'P', long)]
    pub(super) full_paths: bool,

    /// Show numbers of samples instead of percentages
    #[arg(short = 'n', long)]
    pub(super) show_nr_samples: bool,

    /// Show sums of periods instead of percentages
    #[arg(long, conflicts_with = "show_nr_samples")]
    pub(super) show_total_period: bool,

    /// What percentages are of: local-period and local-hits are of the function, global-period and
    /// global-hits of all samples
    #[arg(long, value_name = "TYPE", value_parser = percent_base, default_value = "local-period")]
    pub(super) percent_type: PercentBase,

    /// Leave out functions below this percentage of all samples
    #[arg(long, value_name = "PERCENT", value_parser = filter::percent, default_value_t = 0.0)]
    pub(super) percent_limit: f64,

    /// How instructions are written: att or intel
    #[arg(short = 'M', long, visible_alias = "objdump-style", value_name = "STYLE", value_parser = syntax, default_value = "att")]
    pub(super) disassembler_style: Syntax,

    /// Show the bytes of instructions
    #[arg(long)]
    pub(super) asm_raw: bool,

    /// Show source lines (the default)
    #[arg(long, overrides_with = "no_source")]
    pub(super) source: bool,

    /// Show instructions only
    #[arg(long, overrides_with = "source")]
    pub(super) no_source: bool,

    /// A folder that is put before the paths of source files, which are absolute in the debug
    /// information
    #[arg(long, value_name = "DIR")]
    pub(super) prefix: Option<PathBuf>,

    /// So many leading folders of these paths are left out before that
    #[arg(long, value_name = "N", requires = "prefix", default_value_t = 0)]
    pub(super) prefix_strip: usize,

    /// Leave out functions whose code cannot be shown
    #[arg(long)]
    pub(super) skip_missing: bool,

    #[command(flatten)]
    pub(super) symbols_from: SymbolArgs,

    /// Threads that read the recording; 0 is one per CPU
    #[arg(short = 'j', long, value_name = "N", default_value_t = 0)]
    pub(super) jobs: usize,

    /// No notes and no progress
    #[arg(short, long)]
    pub(super) quiet: bool,

    #[command(flatten)]
    pub(super) perf: PerfOptions<AnnotateOptions>,
}

/// When colours are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ColorMode {
    /// On a terminal.
    Auto,
    /// Everywhere.
    Always,
    /// Nowhere.
    Never,
}

impl AnnotateArgs {
    /// The function that was asked for.
    pub(super) fn wanted(&self) -> Option<&str> {
        self.function.as_deref().or(self.symbol.as_deref())
    }

    pub(super) fn style(&self) -> AnnotationStyle {
        AnnotationStyle {
            column: match (self.show_nr_samples, self.show_total_period) {
                (true, _) => CostColumn::Samples,
                (_, true) => CostColumn::Period,
                _ => CostColumn::Percent,
            },
            percent: self.percent_type,
            full_paths: self.full_paths,
            raw_bytes: self.asm_raw,
            source: !self.no_source,
            line_numbers: self.print_line,
            colored: match self.stdio_color {
                ColorMode::Auto => kymo_cli::terminal::look().color,
                ColorMode::Always => true,
                ColorMode::Never => false,
            },
        }
    }
}

fn percent_base(word: &str) -> Result<PercentBase, String> {
    let all = [
        PercentBase::LocalPeriod,
        PercentBase::LocalHits,
        PercentBase::GlobalPeriod,
        PercentBase::GlobalHits,
    ];
    let found = all.into_iter().find(|base| base.name().replace(' ', "-") == word);
    // perf takes the words in any order.
    let turned = word.split_once('-').map(|(first, second)| format!("{second} {first}"));
    let found = found.or_else(|| all.into_iter().find(|base| Some(base.name()) == turned.as_deref()));
    found.ok_or_else(|| "the types are local-period, local-hits, global-period and global-hits".into())
}

/// `-M` of objdump has more words, which choose widths and suffixes.
fn syntax(words: &str) -> Result<Syntax, String> {
    let mut syntax = Syntax::Att;
    for word in words.split(',') {
        syntax = match word.trim() {
            "att" | "att-mnemonic" => Syntax::Att,
            "intel" | "intel-mnemonic" => Syntax::Intel,
            _ => return Err("the styles are att and intel".into()),
        };
    }
    Ok(syntax)
}
