//! `kymo completions` and `kymo man`: completions, manual pages, and the book's pages of options.
//! All of them are generated from the definitions of the options.

use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;

use kymo_cli::open;
use kymo_cli::perf_options::{self, PerfOption, PerfOptionTable as _};

use super::annotate::AnnotateOptions;
use super::record::RecordOptions;
use super::report::ReportOptions;
use super::stat::StatOptions;

/// Print a completion script for a shell.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell.
    shell: clap_complete::Shell,
}

/// Write the manual pages into a directory.
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Directory to write kymo.1, kymo-record.1, ... into
    directory: PathBuf,
    /// Write one page of markdown for each verb instead, as the book has them
    #[arg(long)]
    markdown: bool,
}

/// Prints a completion script.
pub(crate) fn completions(args: CompletionsArgs, mut command: clap::Command) -> anyhow::Result<ExitCode> {
    // clap panics on a closed pipe when it writes itself; a buffer lets us treat that as success.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "kymo", &mut script);
    std::io::Write::write_all(&mut std::io::stdout().lock(), &script)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes manual pages.
pub(crate) fn man(args: ManArgs, command: clap::Command) -> anyhow::Result<ExitCode> {
    kymo_files::Folder::make(&args.directory)
        .with_context(|| format!("failed to make the directory {}", args.directory.display()))?;
    let mut command = command.disable_help_subcommand(true);
    // So that each verb's page is called after kymo and the verb.
    command.build();
    if args.markdown {
        book(&command, &args.directory)?
    } else {
        page(&command, &args.directory)?
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the page of a command, and those of the commands below it.
fn page(command: &clap::Command, directory: &Path) -> anyhow::Result<()> {
    let manual = clap_mangen::Man::new(command.clone());
    let path = directory.join(manual.get_filename());
    let mut text = Vec::new();
    manual.render(&mut text)?;
    write(&path, &text)?;
    command
        .get_subcommands()
        .filter(|below| !below.is_hide_set())
        .try_for_each(|below| page(below, directory))
}

fn write(path: &Path, text: &[u8]) -> anyhow::Result<()> {
    let write = |mut file: kymo_files::Export| file.write_all(text).and_then(|()| file.finish());
    write(open::export(path)?).with_context(|| format!("failed to write {}", path.display()))
}

/// Writes a page of markdown for each verb; what is below a verb is in its page.
fn book(command: &clap::Command, directory: &Path) -> anyhow::Result<()> {
    command.get_subcommands().filter(|verb| !verb.is_hide_set()).try_for_each(|verb| {
        let mut text =
            "<!-- `kymo man --markdown` wrote this page: change the option in the code. -->\n\n".to_owned();
        section(verb, 1, &mut text);
        if let Some(options) = perf_options(verb.get_name()) {
            _ = write!(text, "\n## Options of perf\n\n{}", perf_options::page(&options));
        }
        write(&directory.join(format!("{}.md", verb.get_name())), text.as_bytes())
    })
}

/// The options of perf's verb of this name that kymo takes without effect, or refuses.
fn perf_options(verb: &str) -> Option<Vec<PerfOption>> {
    match verb {
        "annotate" => Some(AnnotateOptions::OPTIONS.to_vec()),
        "report" => Some(ReportOptions::OPTIONS.to_vec()),
        "record" => Some(RecordOptions::OPTIONS.to_vec()),
        "stat" => Some(StatOptions::OPTIONS.to_vec()),
        "sched" => Some(super::sched::perf_options_page()),
        _ => None,
    }
}

/// Adds the section of a command, and those of the commands below it.
fn section(command: &clap::Command, level: usize, text: &mut String) {
    let heading = "#".repeat(level);
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let usage = command.clone().render_usage().to_string();
    let about = command.get_about().map(|about| cell(&about.to_string()));
    // Writing into a String cannot fail.
    _ = writeln!(text, "{heading} {name}\n\n{}.\n\n```\n{usage}\n```", about.unwrap_or_default());
    let (arguments, options): (Vec<_>, Vec<_>) =
        command.get_arguments().filter(|arg| is_shown(arg)).partition(|arg| arg.is_positional());
    table("argument", &arguments, text);
    table("option", &options, text);
    if let Some(examples) = command.get_after_help() {
        _ = writeln!(text, "\n```\n{}\n```", examples.to_string().trim_end());
    }
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        text.push('\n');
        section(below, level + 1, text);
    }
}

/// Every command has `-h` and `-V`.
fn is_shown(argument: &clap::Arg) -> bool {
    !argument.is_hide_set() && !matches!(argument.get_id().as_str(), "help" | "version")
}

/// Adds a table with a row for each argument.
fn table(title: &str, arguments: &[&clap::Arg], text: &mut String) {
    if arguments.is_empty() {
        return;
    }
    _ = writeln!(text, "\n| {title} | what it does |\n|---|---|");
    for argument in arguments {
        let short = argument.get_short().filter(|_| argument.get_long().is_some());
        let short = short.map(|short| format!("-{short}, ")).unwrap_or_default();
        let name = format!("{short}{argument}").replace('|', "\\|");
        _ = writeln!(text, "| `{name}` | {} |", help(argument));
    }
}

/// The help of an argument with its possible values and its default.
fn help(argument: &clap::Arg) -> String {
    let help = argument.get_long_help().or(argument.get_help()).map(ToString::to_string);
    let mut help = cell(&help.unwrap_or_default());
    if !argument.get_action().takes_values() {
        return help;
    }
    for value in argument.get_possible_values().iter().filter(|value| !value.is_hide_set()) {
        let about = value.get_help().map(|help| format!(" ({})", cell(&help.to_string())));
        _ = write!(help, "; `{}`{}", value.get_name(), about.unwrap_or_default());
    }
    if let [default] = argument.get_default_values() {
        _ = write!(help, " (default: `{}`)", cell(&default.to_string_lossy()));
    }
    help
}

/// A text in one line for a cell of a table. Outside of backticks, what markdown would interpret is
/// escaped.
fn cell(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
    let escape = |part: &str| part.replace('<', "&lt;").replace('*', "\\*").replace('[', "\\[");
    let parts = line.split('`').enumerate();
    parts
        .map(|(at, part)| if at % 2 == 0 { escape(part) } else { part.to_owned() })
        .collect::<Vec<_>>()
        .join("`")
}
