//! `kymo top`: the newest samples of what runs, in the browser of `kymo report`, or printed at each
//! refresh.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use anyhow::{anyhow, bail};
use kymo_cli::{exit, screen};
use kymo_perf::explain;
use kymo_profile::live::{LiveData, LiveError, LiveOptions, LiveReader, SnapshotInput};
use kymo_profile::query::Weight;
use kymo_profile::resolve::ResolveOptions;
use kymo_record::{LiveCpuTime, LiveRecorder, LiveSnapshot, RecordError, RecordingPlan, Session, Summary};

use super::record;

mod args;
mod on_screen;
mod printed;

pub(crate) use args::TopArgs;

/// Runs the verb.
pub(crate) fn run(args: TopArgs, no_pager: bool) -> anyhow::Result<ExitCode> {
    let on_screen = opens_screen(&args, no_pager);
    if args.events.texts.iter().any(|text| text.contains("probe:")) {
        let words = "probe:FUNCTION is an event of `kymo record`; `kymo probe` has a live table of calls";
        return Ok(exit::misused("top", words));
    }
    let events = match record::select(&args.events, &args.events.texts, &|note| args.say(note)) {
        Ok(events) => events,
        Err(error) => return Ok(exit::misused("top", error)),
    };
    let options = args.options(events, on_screen);
    let plan = RecordingPlan::resolve(options).map_err(|error| anyhow!("{error}"))?;
    plan.notes.iter().for_each(|note| args.say(note));
    let (requests, descriptors) = (plan.open.events.clone(), plan.descriptors());
    let rings = plan.open.targets.cpus.len();
    let session = match Session::start(plan) {
        Ok(session) => session,
        Err(error @ (RecordError::Open(_) | RecordError::Ring(_) | RecordError::System { .. })) => {
            return Err(anyhow!("{}", error.explained(&requests, descriptors, rings)));
        }
        Err(error) => return ended_early(error),
    };
    let notes = session.notes().iter().filter(|note| note.is_notable());
    notes.for_each(|note| args.say(&note.to_string()));
    session.plan().late_notes.iter().for_each(|note| args.say(note));
    let live = Live::start(&args, session)?;
    if on_screen { on_screen::run(&args, live) } else { printed::run(&args, live) }
}

/// Whether it opens the browser: at a terminal, unless an option is about text.
fn opens_screen(args: &TopArgs, no_pager: bool) -> bool {
    let wants_text = args.stdio || args.json || args.iterations.is_some();
    !wants_text && !no_pager && screen::is_possible()
}

impl TopArgs {
    fn say(&self, text: &str) {
        if !self.quiet {
            eprintln!("kymo top: {text}");
        }
    }

    /// What functions are sorted by.
    fn weight(&self) -> Weight {
        if self.chains { Weight::Total } else { Weight::Own }
    }
}

/// A recording that runs, and what reads its snapshots.
struct Live {
    recorder: LiveRecorder,
    snapshots: Receiver<LiveSnapshot>,
    reader: Reader,
}

/// Reads snapshots, and holds their samples against the CPU time that the kernel accounts.
struct Reader {
    reader: LiveReader,
    cpu_time: LiveCpuTime,
}

impl Reader {
    fn read(&mut self, snapshot: LiveSnapshot) -> Result<LiveData, LiveError> {
        let accounted = snapshot.accounted_until();
        let data = self.reader.read(SnapshotInput {
            taken_ns: snapshot.taken_ns,
            complete_since_ns: snapshot.coverage.overwritten_until_ns(),
            source: Arc::new(snapshot.file),
        })?;
        self.cpu_time.add(accounted, |span| data.clock_samples(span));
        Ok(data)
    }

    /// What to say where both differ.
    fn unseen(&self) -> Option<String> {
        self.cpu_time.cpu_time()?.difference("the samples stand for")
    }
}

impl Live {
    fn start(args: &TopArgs, session: Session) -> anyhow::Result<Live> {
        let began = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let began_ns = began.tv_sec.cast_unsigned() * 1_000_000_000 + began.tv_nsec.cast_unsigned();
        let options = LiveOptions {
            window: args.window,
            callchains: args.chains,
            resolve: ResolveOptions { inline: args.inline, ..ResolveOptions::default() },
        };
        // A refresh does not wait for the network, and a screen has no place for words about it.
        let symbols = args.symbols.clone().without_downloads();
        let reader = LiveReader::new(options, began_ns, move |recording| symbols.store(recording));
        let (recorder, snapshots) = LiveRecorder::start(session).map_err(|error| anyhow!("{error}"))?;
        let reader = Reader { reader, cpu_time: LiveCpuTime::default() };
        Ok(Live { recorder, snapshots, reader })
    }
}

/// What is said of a recording that did not begin, and the status.
fn ended_early(error: RecordError) -> anyhow::Result<ExitCode> {
    match error {
        RecordError::Command { command, source } => {
            eprintln!("kymo top: {}", explain::not_executed(&command, &source));
            Ok(ExitCode::from(exit::NOT_STARTED))
        }
        error => bail!("{error}"),
    }
}

/// The end of the recording. `unseen`: what is to be said of CPU time without samples. `status`:
/// that of the verb, if it does not depend on the command.
fn finish(
    args: &TopArgs,
    summary: Result<Summary, RecordError>,
    unseen: Option<String>,
    status: Option<ExitCode>,
) -> anyhow::Result<ExitCode> {
    let summary = match summary {
        Ok(summary) => summary,
        Err(error) => return ended_early(error),
    };
    if let Some(error) = &summary.write_error {
        bail!("failed to keep a snapshot in memory {error}; a smaller --window or -m takes less");
    }
    if summary.unfollowed > 0 {
        let count = summary.unfollowed;
        args.say(&format!("{count} threads or processes were not followed, their samples are missing"));
    }
    summary.remarks.iter().chain(&unseen).for_each(|remark| args.say(remark));
    // To end as a command that a signal ended is to die by it.
    let of_command = || summary.exit.map_or(ExitCode::SUCCESS, exit::as_command);
    Ok(status.unwrap_or_else(of_command))
}
