//! `kymo diff`: two sets of recordings, or two commands that it records, compared with statistics.

mod args;
mod record_runs;

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, anyhow};
use kymo_cli::terminal::{ReadProgress, say};
use kymo_cli::{exit, open};
use kymo_profile::diff::{self, Comparison, FlameSide, OverallVerdict, RunOptions, RunSums, SharedStacks};
use kymo_profile::machine::recorded_machine;
use kymo_symbols::{RecordedMachine, SymbolStore};

use crate::cmd::browse;

pub(crate) use args::DiffArgs;
use args::RowSubject;

/// The seed where none is given and nothing is random but the bootstrap.
const SEED: u64 = 1;

/// Compares.
pub(crate) fn run(args: DiffArgs) -> anyhow::Result<ExitCode> {
    exit::or_no_answer(compare(&args))
}

/// Whether the answer is shown in the browser: there is no text for a pager then.
pub(crate) fn opens_browser(args: &DiffArgs) -> bool {
    args.tui
}

fn compare(args: &DiffArgs) -> anyhow::Result<ExitCode> {
    let text_option = [(args.json, "--json"), (args.md, "--md")].into_iter().find(|(given, _)| *given);
    let refusal = || browse::refusal(text_option.map(|(_, name)| name), "the comparison");
    // Before anything is recorded.
    if let Some(sentence) = args.tui.then(refusal).flatten() {
        return Err(exit::usage(anyhow!("{sentence}")));
    }
    let recorded = match args.commands.len() {
        0 => None,
        2 => Some(record_runs::run(args)?),
        _ => {
            let words = "--run is needed twice: the old command, then the new one";
            return Ok(exit::misused("diff", words));
        }
    };
    let (old, new) = match &recorded {
        Some(recorded) => (recorded.old.clone(), recorded.new.clone()),
        None => sides(args)?,
    };
    let mut reader = Reader { args, stacks: SharedStacks::new(), store: None };
    let ((old_runs, twice), (new_runs, also_twice)) = (reader.side(&old)?, reader.side(&new)?);
    let options = args.options((old_runs.len(), new_runs.len()), args.seed.unwrap_or(SEED));
    let mut notes: Vec<String> =
        old_runs.iter().chain(&new_runs).flat_map(|run| run.facts.notes.iter().cloned()).collect();
    notes.extend(twice.into_iter().chain(also_twice));
    notes.sort();
    notes.dedup();
    let compared = diff::compare(reader.stacks, &old_runs, &new_runs, &options);
    // The browser shows them, if there is anything to browse.
    if !args.quiet && (!args.tui || compared.is_err()) {
        notes.iter().for_each(|note| say(note));
    }
    let compared = compared.map_err(|refusal| anyhow!("these recordings cannot be compared: {refusal}"))?;
    let status = match compared.verdict {
        OverallVerdict::NoRegression => ExitCode::SUCCESS,
        OverallVerdict::Regression => ExitCode::from(exit::REGRESSION),
        OverallVerdict::Undecided => ExitCode::from(exit::UNDECIDED),
    };
    write_files(args, &compared)?;
    if args.tui {
        notes.extend(compared.notes.iter().cloned());
        let notes = if args.quiet { Vec::new() } else { notes };
        return browse::comparison::run(&compared, notes, status);
    }
    print(args, &compared)?;
    Ok(status)
}

/// The files of both sides, as named.
fn sides(args: &DiffArgs) -> anyhow::Result<(Vec<PathBuf>, Vec<PathBuf>)> {
    let default = |name: &str| vec![PathBuf::from(name)];
    let is_option = |file: &&PathBuf| file.as_os_str().as_encoded_bytes().starts_with(b"-") && !file.exists();
    if let Some(option) = args.new.iter().find(is_option) {
        let option = option.display();
        return Err(exit::usage(anyhow!(
            "{option} stands among the recordings of the new side: write options before --"
        )));
    }
    match (&args.old[..], &args.new[..]) {
        ([], []) => Ok((default("perf.data.old"), default(open::DEFAULT))),
        ([old, new], []) => Ok((vec![old.clone()], vec![new.clone()])),
        ([], _) => Err(exit::usage(anyhow!("the old side has no recordings: kymo diff OLD... -- NEW..."))),
        ([_], []) => Err(exit::usage(anyhow!("the new side has no recordings: kymo diff OLD... -- NEW..."))),
        (_, []) => Err(exit::usage(anyhow!(
            "which of the recordings are of the new side is not said: kymo diff OLD... -- NEW..."
        ))),
        (old, new) => Ok((old.to_vec(), new.to_vec())),
    }
}

/// Reads recordings into shared trees.
struct Reader<'a> {
    args: &'a DiffArgs,
    stacks: SharedStacks,
    /// The symbols of one machine: modules that several recordings share are read once.
    store: Option<((Option<String>, RecordedMachine), SymbolStore)>,
}

impl Reader<'_> {
    /// The runs of a side, each once, and what is said of those that were named again.
    fn side(&mut self, files: &[PathBuf]) -> anyhow::Result<(Vec<RunSums>, Vec<String>)> {
        let mut options = RunOptions {
            event: self.args.event.clone(),
            work: self.args.per.clone(),
            lines: self.args.by == RowSubject::Lines,
            blocks: files.len() == 1,
            workers: self.args.jobs,
        };
        let runs = files.iter().map(|file| self.run(file, &options)).collect::<anyhow::Result<_>>()?;
        let (runs, notes) = diff::distinct_runs(runs);
        if runs.len() > 1 || options.blocks {
            return Ok((runs, notes));
        }
        // The only run of a side is cut into blocks of time.
        options.blocks = true;
        let first = files.first().map(|file| self.run(file, &options)).transpose()?;
        Ok((first.into_iter().collect(), notes))
    }

    fn run(&mut self, file: &Path, options: &RunOptions) -> anyhow::Result<RunSums> {
        let recording = open::recording(file)?;
        let machine = (recording.features.arch.clone(), recorded_machine(&recording));
        let store = match self.store.take().filter(|(of, _)| *of == machine) {
            Some(store) => store,
            None => (machine, self.args.symbols.store(&recording)),
        };
        let progress = ReadProgress::new(self.args.quiet);
        let name = file.display().to_string();
        let run =
            RunSums::read(&recording, &name, options, &mut self.stacks, &store.1, &|pass, done, all| {
                progress.at(pass, done, all);
            });
        progress.finish();
        self.store = Some(store);
        run.with_context(|| format!("failed to compare {name}"))
    }
}

/// Writes the files that were asked for.
fn write_files(args: &DiffArgs, compared: &Comparison) -> anyhow::Result<()> {
    if let Some(path) = &args.junit {
        write_file(path, |out| diff::write_junit(out, compared))?;
    }
    if let Some(path) = &args.flamegraph {
        write_file(path, |out| diff::write_flamegraph(out, compared, FlameSide::New))?;
        write_file(&old_picture(path), |out| diff::write_flamegraph(out, compared, FlameSide::Old))?;
    }
    if let Some(path) = &args.html {
        write_file(path, |out| diff::write_page(out, compared))?;
    }
    Ok(())
}

/// Prints the comparison.
fn print(args: &DiffArgs, compared: &Comparison) -> anyhow::Result<()> {
    if !args.quiet && !args.md {
        compared.notes.iter().for_each(|note| say(note));
    }
    let mut out = BufWriter::new(io::stdout().lock());
    match () {
        () if args.json => diff::write_json(&mut out, compared),
        () if args.md => diff::write_markdown(&mut out, compared, args.top, args.all),
        () => diff::write_text(&mut out, compared, args.top, args.all),
    }
    .and_then(|()| out.flush())
    .context("failed to write the comparison")
}

/// `diff.svg`: `diff.old.svg`.
fn old_picture(path: &Path) -> PathBuf {
    let suffix = path.extension().unwrap_or_default();
    let mut suffix_of_old = std::ffi::OsString::from("old");
    if !suffix.is_empty() {
        suffix_of_old.push(".");
        suffix_of_old.push(suffix);
    }
    path.with_extension(suffix_of_old)
}

fn write_file(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> anyhow::Result<()> {
    let mut file = BufWriter::new(open::export(path)?);
    write(&mut file).with_context(|| format!("failed to write {}", path.display()))?;
    open::finish(file, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the name of the second picture.
    #[test]
    fn the_old_picture_has_a_name_of_its_own() {
        for (new, old) in
            [("diff.svg", "diff.old.svg"), ("a.b/diff", "a.b/diff.old"), ("x.y.svg", "x.y.old.svg")]
        {
            assert_eq!(old_picture(Path::new(new)), Path::new(old));
        }
    }
}
