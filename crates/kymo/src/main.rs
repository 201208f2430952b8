//! kymo: a profiler and tracer for Linux programs with thousands of threads.
//!
//! The binary is thin: one file per verb in `cmd/`, each with its arguments as typed and a `run`
//! that hands them to the libraries below. What all verbs share is in `kymo-cli`: exit codes,
//! signals, and that data goes to stdout and words to stderr.
#![forbid(unsafe_code)]
// It panics where stdout is gone: `writeln!` and an error instead.
#![deny(clippy::print_stdout)]

#[macro_use(eprintln, eprint)]
extern crate kymo_cli;

mod cmd;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory, Parser, Subcommand};
use kymo_cli::pager::Pager;
use kymo_cli::{exit, terminal};
use kymo_perf::inject;

/// Record where a Linux program spends its time, and read the result.
#[derive(Debug, Parser)]
#[command(name = "kymo", version, propagate_version = true, infer_long_args = true)]
#[command(
    after_help = "First steps:\n  kymo demo                    record a bundled program and look at it\n  kymo record -- ./program     record it into perf.data\n  kymo report                  see where the time went\n  kymo doctor                  what this machine permits, and how to permit more"
)]
struct Cli {
    /// The folder of copies by build id, instead of ~/.debug
    #[arg(long, value_name = "DIR")]
    buildid_dir: Option<PathBuf>,

    /// Resolve all symbols anew, and keep none for the next report
    #[arg(long)]
    no_symbol_cache: bool,

    /// Do not start a pager
    #[arg(long)]
    no_pager: bool,

    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Record(Box<cmd::record::RecordArgs>),
    Top(Box<cmd::top::TopArgs>),
    Stat(Box<cmd::stat::StatCommand>),
    Probe(Box<cmd::probe::ProbeArgs>),
    Report(Box<cmd::report::ReportArgs>),
    Annotate(Box<cmd::annotate::AnnotateArgs>),
    Query(Box<cmd::query::QueryArgs>),
    Diff(Box<cmd::diff::DiffArgs>),
    View(Box<cmd::view::ViewArgs>),
    Export(Box<cmd::export::ExportArgs>),
    Import(cmd::import::ImportArgs),
    Symbolize(cmd::symbolize::SymbolizeArgs),
    Compact(cmd::compact::CompactArgs),
    Mcp(Box<cmd::mcp::McpArgs>),
    Sql(cmd::external::SqlArgs),
    Daemon(cmd::external::DaemonArgs),
    List(cmd::list::ListArgs),
    Doctor(cmd::doctor::DoctorArgs),
    Demo(cmd::demo::DemoArgs),
    Script(Box<cmd::script::ScriptArgs>),
    Sched(cmd::sched::SchedCommand),
    Watch(Box<cmd::watch::WatchArgs>),
    Locks(Box<cmd::locks::LocksArgs>),
    Stacks(Box<cmd::stacks::StacksArgs>),
    Bench(kymo_bench::BenchArgs),
    Evlist(cmd::evlist::EvlistArgs),
    #[command(name = "buildid-list")]
    BuildIdList(cmd::build_ids::ListArgs),
    #[command(name = "buildid-cache")]
    BuildIdCache(cmd::build_ids::CacheArgs),
    Archive(cmd::build_ids::ArchiveArgs),
    Inject(cmd::inject::InjectArgs),
    Data(cmd::data::DataArgs),
    Kallsyms(cmd::kallsyms::KallsymsArgs),
    Check(cmd::version::CheckArgs),
    Version(cmd::version::VersionArgs),
    Completions(cmd::generate::CompletionsArgs),
    Man(cmd::generate::ManArgs),
}

/// The command line as clap knows it, for completions and manual pages.
fn command() -> clap::Command {
    Cli::command()
}

/// What the first threads of any verb need: their stacks, and what they allocate at once.
const HEADROOM_BYTES: usize = 64 << 20;

#[global_allocator]
static ALLOCATOR: kymo_perf::sys::memory::Allocator = kymo_perf::sys::memory::Allocator;

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|word| word == inject::RESTORER) {
        let done = inject::restore_probes().context("this verb is for kymo itself, which starts it");
        return exit::code(done.map(|()| ExitCode::SUCCESS));
    }
    inject::provide_restorer();
    let words = kymo_cli::attached::with_equal_signs(std::env::args_os(), &command());
    let cli = match Cli::try_parse_from(words) {
        Ok(cli) => cli,
        Err(error) => {
            // Words behind a verb are its own verbs.
            let first = std::env::args_os().skip(1).find(|word| !word.as_encoded_bytes().starts_with(b"-"));
            if let Some(verb) = unknown_verb(&error).filter(|verb| first.is_some_and(|word| *word == **verb))
                && let Some(instead) = cmd::instead::of(&verb)
            {
                eprintln!("kymo: there is no `kymo {verb}`: {instead}");
                return ExitCode::from(exit::USAGE);
            }
            if let Some(sentence) = no_number(&error) {
                eprint!("{sentence}");
                return ExitCode::from(exit::USAGE);
            }
            // A closed pipe under --help is no failure.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(exit::USAGE) } else { ExitCode::SUCCESS };
        }
    };
    kymo_perf::sys::memory::require_headroom(HEADROOM_BYTES);
    // A share for what is read of files; a recorder has shares for the rest.
    kymo_perf::cgroup::memory_limit().iter().for_each(|limit| kymo_symbols::Budget::bound_process(limit / 4));
    let Cli { buildid_dir, no_symbol_cache, no_pager, verb } = cli;
    if let Some(folder) = buildid_dir {
        kymo_symbols::name_build_id_cache(folder);
    }
    terminal::start_log();
    if !no_symbol_cache {
        use_symbol_cache();
    }
    let in_browser = match &verb {
        Verb::Report(args) => cmd::report::opens_browser(args, no_pager),
        Verb::Diff(args) => cmd::diff::opens_browser(args),
        _ => false,
    };
    let pager = if no_pager || in_browser || !verb.is_paged() { None } else { Pager::start() };
    if let Err(error) = kymo_cli::signals::survive_file_limits() {
        return exit::code(Err(error));
    }
    let done = match verb {
        Verb::Record(args) => cmd::record::run(*args),
        Verb::Top(args) => cmd::top::run(*args, no_pager),
        Verb::Stat(args) => cmd::stat::run(*args),
        Verb::Probe(args) => cmd::probe::run(*args),
        Verb::Annotate(args) => cmd::annotate::run(*args),
        Verb::Report(args) => cmd::report::run(*args, in_browser),
        Verb::Query(args) => cmd::query::run(*args),
        Verb::Diff(args) => cmd::diff::run(*args),
        Verb::View(args) => cmd::view::run(*args),
        Verb::Export(args) => cmd::export::run(*args),
        Verb::Import(args) => cmd::import::run(args),
        Verb::Symbolize(args) => cmd::symbolize::run(args),
        Verb::Compact(args) => cmd::compact::run(args),
        Verb::Mcp(args) => cmd::mcp::run(*args),
        Verb::Sql(args) => cmd::external::sql(args),
        Verb::Daemon(args) => cmd::external::daemon(args),
        Verb::List(args) => cmd::list::run(args),
        Verb::Doctor(args) => cmd::doctor::run(args),
        Verb::Demo(args) => cmd::demo::run(&args),
        Verb::Script(args) => cmd::script::run(*args),
        Verb::Sched(args) => cmd::sched::run(args),
        Verb::Watch(args) => cmd::watch::run(*args),
        Verb::Locks(args) => cmd::locks::run(*args),
        Verb::Stacks(args) => cmd::stacks::run(*args),
        Verb::Bench(args) => kymo_bench::run(args),
        Verb::Evlist(args) => cmd::evlist::run(args),
        Verb::BuildIdList(args) => cmd::build_ids::list(args),
        Verb::BuildIdCache(args) => cmd::build_ids::cache(args),
        Verb::Archive(args) => cmd::build_ids::archive(args),
        Verb::Inject(args) => cmd::inject::run(args),
        Verb::Data(args) => cmd::data::run(args),
        Verb::Kallsyms(args) => cmd::kallsyms::run(args),
        Verb::Check(args) => cmd::version::check(args),
        Verb::Version(args) => cmd::version::version(args),
        Verb::Completions(args) => cmd::generate::completions(args, command()),
        Verb::Man(args) => cmd::generate::man(args, command()),
    };
    let code = exit::code(done);
    pager.into_iter().for_each(Pager::finish);
    code
}

/// Symbols are kept for the next report, unless KYMO_SYMBOL_CACHE is `off`; it can be a size, too.
fn use_symbol_cache() {
    let value = std::env::var("KYMO_SYMBOL_CACHE").unwrap_or_default();
    let most_bytes = match &*value {
        "off" => return,
        "" => None,
        size => match kymo_cli::parse::parse_size(size) {
            Ok(bytes) => Some(bytes),
            Err(expected) => {
                eprintln!("kymo: KYMO_SYMBOL_CACHE is {size:?}, which has no effect: {expected}, or off");
                None
            }
        },
    };
    if let Some(cache) = kymo_symbols::SymbolCache::of_user(most_bytes) {
        kymo_symbols::use_symbol_cache(cache);
    }
}

/// What is wrong with a value that should be a number, in words; the standard library tells of digits in strings.
fn no_number(error: &clap::Error) -> Option<String> {
    const DIGIT: &str = "invalid digit found in string";
    let text = error.to_string();
    text.contains(DIGIT).then(|| text.replace(DIGIT, "expected a number"))
}

impl Verb {
    /// Whether it prints a text to be read.
    fn is_paged(&self) -> bool {
        matches!(
            self,
            Verb::Report(_)
                | Verb::Annotate(_)
                | Verb::Query(_)
                | Verb::Diff(_)
                | Verb::Script(_)
                | Verb::Sched(_)
                | Verb::List(_)
                | Verb::Evlist(_)
                | Verb::BuildIdList(_)
        )
    }
}

/// The word in the place of a verb that is none.
fn unknown_verb(error: &clap::Error) -> Option<String> {
    use clap::error::{ContextKind, ContextValue, ErrorKind};
    match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(verb)) if error.kind() == ErrorKind::InvalidSubcommand => {
            Some(verb.clone())
        }
        _ => None,
    }
}
