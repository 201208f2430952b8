//! `kymo annotate`: which instructions and source lines of a function the time went to.

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, bail};
use kymo_cli::terminal::{ReadProgress, say};
use kymo_cli::{damage, exit, open};
use kymo_data::Recording;
use kymo_profile::load::LoadOptions;
use kymo_profile::profile::Profile;
use kymo_profile::query::annotate::{
    AnnotationStyle, Annotator, HotFunction, PercentBase, write_annotation, write_heading, write_hot_lines,
};
use kymo_profile::query::{Condition, Dataset, Filter, FilterField, FilterValue};
use kymo_profile::resolve::ResolveOptions;
use kymo_profile::text::shown;
use kymo_symbols::SymbolStore;
use kymo_symbols::disassembly::{SourceFiles, SourceOptions};

use super::filter;

mod args;
mod perf_options;

pub(crate) use args::AnnotateArgs;
pub(crate) use perf_options::AnnotateOptions;

/// Notes that are said at most.
const MOST_NOTES: usize = 6;

/// Prints the functions of a recording with their instructions.
pub(crate) fn run(args: AnnotateArgs) -> anyhow::Result<ExitCode> {
    if let Some(refusal) = &args.perf.refusal {
        return Ok(exit::misused("annotate", refusal));
    }
    let recording = open::recording(&args.input)?;
    let load = LoadOptions {
        columns: true,
        workers: args.jobs,
        ..args.filter.load(&recording).map_err(exit::usage)?
    };
    let store = args.symbols_from.store(&recording);
    let data = read(&args, &recording, &load, &store)?;
    if !args.quiet {
        damage::tell(recording.problems.iter().chain(data.problems()));
    }
    let options = SourceOptions {
        symfs: store.options().symfs.clone(),
        prefix: args.prefix.clone(),
        prefix_strip: args.prefix_strip,
    };
    let mut sources = SourceFiles::new(options);
    let mut out = BufWriter::new(io::stdout().lock());
    let (mut functions, mut refused, mut notes) = (0, None, Vec::new());
    let never = AtomicBool::new(false);
    for event in data.events() {
        let value = FilterValue { text: event.name, at: 1 };
        let condition =
            Condition { field: FilterField::Event, negated: false, values: vec![value], spans: Vec::new() };
        let annotator = data.annotator(&Filter { conditions: vec![condition] }, &store, &never)?;
        let mut page = CodeListing {
            args: &args,
            annotator: &annotator,
            style: args.style(),
            sources: &mut sources,
            notes: &mut notes,
        };
        let found = page.functions();
        functions += found.len();
        for hot in &found {
            refused = refused.or(page.write(&mut out, hot)?);
        }
    }
    out.flush()?;
    if !args.quiet {
        say_notes(&notes);
    }
    match (functions, args.wanted(), refused) {
        (0, ..) => nothing(&args, &recording, &load, &data, &store),
        (_, Some(_), Some(why)) => bail!("{}", shown(&why)),
        _ => Ok(exit::of_reading(&recording, data.problems())),
    }
}

/// Says what the reader should know of the functions, each sentence once.
fn say_notes(notes: &[String]) {
    notes.iter().take(MOST_NOTES).for_each(|note| say(&shown(note)));
    if notes.len() > MOST_NOTES {
        say(&format!("and {} more such notes", notes.len() - MOST_NOTES));
    }
}

fn read(
    args: &AnnotateArgs,
    recording: &Recording,
    load: &LoadOptions,
    store: &SymbolStore,
) -> anyhow::Result<Dataset> {
    let progress = ReadProgress::new(args.quiet);
    // A function has the samples that were taken in it: no callers, and no functions inlined into
    // it.
    let resolve = ResolveOptions { inline: false, ..ResolveOptions::default() };
    let profile =
        Profile::open(recording, load, resolve, store, &|pass, done, all| progress.at(pass, done, all))
            .with_context(|| format!("failed to read {}", args.input.display()))?;
    progress.finish();
    Ok(Dataset::of_profile(recording, profile))
}

/// Says why there is no function to show.
fn nothing(
    args: &AnnotateArgs,
    recording: &Recording,
    load: &LoadOptions,
    data: &Dataset,
    store: &SymbolStore,
) -> anyhow::Result<ExitCode> {
    if data.columns().is_empty() {
        bail!("{}", filter::why_empty(recording, load));
    }
    let never = AtomicBool::new(false);
    let annotator = data.annotator(&Filter::default(), store, &never)?;
    // A program that has changed since has no names either.
    data.notes().iter().for_each(|note| say(note));
    match args.wanted() {
        Some(wanted) if args.dsos.is_empty() && args.percent_limit == 0.0 => {
            let error = anyhow::Error::new(annotator.no_function(wanted));
            Err(if data.notes().is_empty() { exit::usage(error) } else { error })
        }
        _ => bail!("no function with samples is left by SYMBOL, -d and --percent-limit"),
    }
}

/// The functions of one event.
struct CodeListing<'a> {
    args: &'a AnnotateArgs,
    annotator: &'a Annotator<'a>,
    style: AnnotationStyle,
    sources: &'a mut SourceFiles,
    notes: &'a mut Vec<String>,
}

impl CodeListing<'_> {
    /// Those that were asked for, the hottest first.
    fn functions(&self) -> Vec<HotFunction> {
        let mut found = self.annotator.matching(self.args.wanted().unwrap_or("*"));
        let (samples, period) = self.annotator.whole();
        found.retain(|hot| {
            let by_hits = matches!(self.style.percent, PercentBase::LocalHits | PercentBase::GlobalHits);
            let (part, whole) = if by_hits { (hot.samples(), samples) } else { (hot.period(), period) };
            100.0 * part as f64 / whole.max(1) as f64 >= self.args.percent_limit
        });
        if !self.args.dsos.is_empty() {
            found.retain(|hot| {
                let names = [self.annotator.module(hot).to_owned(), self.annotator.module_path(hot)];
                self.args.dsos.iter().any(|wanted| names.contains(wanted))
            });
        }
        found
    }

    /// Prints a function; why its code cannot be shown, if so.
    fn write(&mut self, out: &mut dyn Write, hot: &HotFunction) -> anyhow::Result<Option<String>> {
        let sources = self.style.source.then_some(&mut *self.sources);
        let function = self.annotator.annotate(hot, self.args.disassembler_style, sources);
        if function.refusal.is_some() && (self.args.skip_missing || self.args.wanted().is_some()) {
            return Ok(function.refusal);
        }
        let path = self.annotator.module_path(hot);
        let whole = self.annotator.whole();
        let style = &self.style;
        if style.line_numbers {
            write_hot_lines(out, &function, (&path, whole), style)?;
        }
        write_heading(out, &function, (self.annotator.event(), &path), style)?;
        write_annotation(out, &function, whole, style)?;
        for note in function.notes {
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
        Ok(function.refusal)
    }
}
