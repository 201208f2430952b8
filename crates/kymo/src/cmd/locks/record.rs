//! Makes the recording that `kymo locks` reads: a temporary one, unless it is to be kept.

use std::os::fd::{AsFd, AsRawFd};
use std::process::ExitCode;
use std::sync::{Arc, mpsc};

use anyhow::{Context, anyhow, bail};
use kymo_cli::signals::Signals;
use kymo_cli::terminal::is_read_by_a_person;
use kymo_cli::{exit, open};
use kymo_data::Recording;
use kymo_perf::explain;
use kymo_perf::workload::Exit;
use kymo_probe::holds::HoldProbes;
use kymo_profile::build_ids::Which;
use kymo_record::{FutexOptions, Options, Output, RecordError, RecordingPlan, Session, Summary, TargetSpec};

use crate::cmd::kept_files;

use super::live::LiveTable;
use super::{LocksArgs, name_of};

/// A recording that was made.
pub(super) struct MadeRecording {
    pub(super) recording: Recording,
    pub(super) name: String,
    /// How the command ended.
    pub(super) exit: Option<Exit>,
}

/// Records until the command or the processes end, a signal comes, or the time is over. An inner
/// error is the status where there is no recording.
pub(super) fn run(args: &LocksArgs) -> anyhow::Result<Result<MadeRecording, ExitCode>> {
    let name = name_of(args.output.as_deref());
    let temporary = open::temporary()?;
    let output = match &args.output {
        Some(path) => match Output::parse(path) {
            file @ Output::File(_) => file,
            _ => {
                let words =
                    "-o wants a file: the locks are printed on standard output, and would be mixed with it";
                return Ok(Err(exit::misused("locks", words)));
            }
        },
        None => Output::Descriptor(temporary.as_raw_fd()),
    };
    output.check()?;
    let mut holds = holds(args)?;
    holds.iter_mut().flat_map(HoldProbes::words).for_each(|word| say(args, &word));
    let mut options = options(args, output);
    options.environment = holds.as_ref().map(HoldProbes::environment).unwrap_or_default();
    let plan = RecordingPlan::resolve(options).map_err(|error| anyhow!("{error}"))?;
    plan.notes.iter().for_each(|note| say(args, note));
    let signals = Signals::catch_once()?;
    signals.end_when_silent("locks", &name)?;
    let requests = plan.open.events.clone();
    let descriptors = plan.descriptors();
    let until = signals.as_fd();
    let done = Session::start_with(plan, None, Some(until)).and_then(|session| {
        let notes = session.notes().iter().filter(|note| note.is_notable());
        notes.for_each(|note| say(args, &note.to_string()));
        session.plan().late_notes.iter().for_each(|note| say(args, note));
        let session = match holds {
            None => session,
            Some(mut holds) => {
                if let Some(pid) = session.command_pid() {
                    let action = "wait for programs to start";
                    holds.begin(pid).map_err(|source| RecordError::System { action, source })?;
                }
                session.with_holds(Box::new(holds))
            }
        };
        let live = temporary.try_clone().ok().filter(|_| is_live(args));
        let live = live.map(|file| LiveTable { args, file, described: session.described() });
        std::thread::scope(|scope| {
            // When it is dropped, the table ends.
            let (_running, stop) = mpsc::channel();
            if let Some(live) = &live {
                scope.spawn(move || live.run(args.interval, &stop));
            }
            session.run(Some(until))
        })
    });
    let summary = match done {
        Ok(summary) => summary,
        Err(RecordError::Command { command, source }) => {
            eprintln!("kymo locks: {}", explain::not_executed(&command, &source));
            return Ok(Err(ExitCode::from(exit::NOT_STARTED)));
        }
        Err(RecordError::Open(error)) => {
            bail!("{}", explain::explain_list(&error, &requests, Some(descriptors)))
        }
        Err(error) if signals.last().is_some() => {
            say(args, &error.to_string());
            return Ok(Err(exit::by_signal(signals.last().unwrap_or(0))));
        }
        Err(error) => bail!("{error}"),
    };
    if let Some(error) = &summary.write_error {
        bail!("failed to write {name} {error}; {}", error.advice());
    }
    report(args, &summary);
    if args.output.is_some() {
        kept_files::keep(&summary.files, Which::Hit, "", &|text| say(args, text));
    }
    let recording = match &args.output {
        Some(path) => open::own_recording(path)?,
        None => Recording::open(Arc::new(temporary), Vec::new()).context("failed to read the recording")?,
    };
    Ok(Ok(MadeRecording { recording, name, exit: summary.exit }))
}

fn say(args: &LocksArgs, text: &str) {
    if !args.quiet {
        eprintln!("kymo locks: {text}");
    }
}

/// Whether the table is drawn while it is made: a person looks at a process that writes elsewhere.
fn is_live(args: &LocksArgs) -> bool {
    let observed_only = args.command.is_empty() && args.output.is_none();
    observed_only && !args.json && !args.quiet && is_read_by_a_person()
}

/// What times holds, if that is asked for: in the processes at once, in a command when it begins.
fn holds(args: &LocksArgs) -> anyhow::Result<Option<HoldProbes>> {
    if !args.holds {
        return Ok(None);
    }
    if args.all {
        return Err(exit::usage(anyhow!(
            "--holds enters programs, so it wants processes with -p or a command, not -a"
        )));
    }
    let children = !args.no_children;
    let found = match args.pids.is_empty() {
        true => HoldProbes::of_command(&args.command, children),
        false => HoldProbes::of_processes(&args.pids, children),
    };
    found.map(Some).map_err(|reason| {
        anyhow!("holds of locks cannot be timed: {reason}; without --holds waits for locks are shown")
    })
}

/// What was lost, and what else the user should know.
fn report(args: &LocksArgs, summary: &Summary) {
    summary.remarks.iter().for_each(|remark| say(args, remark));
    if !summary.account.is_clean() {
        say(args, &format!("{}: the sums are complete, stacks are missing", summary.account));
    }
    if summary.unfollowed > 0 {
        let count = summary.unfollowed;
        say(args, &format!("{count} threads or processes were not followed, their waits are missing"));
    }
}

/// What is to be recorded: no samples, but what the kernel's programs write.
fn options(args: &LocksArgs, output: Output) -> Options {
    let targets = TargetSpec {
        command: args.command.clone(),
        children: !args.no_children,
        pids: args.pids.clone(),
        all: args.all,
        ..TargetSpec::default()
    };
    Options {
        holds: args.holds,
        // The table shows what is in the file.
        unbuffered: is_live(args),
        duration: args.duration,
        locks: Some(FutexOptions { records_per_second: args.stacks, tracepoints: args.tracepoints }),
        ring_pages: args.ring_pages,
        python: false,
        cmdline: std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect(),
        version: format!("kymo {}", env!("CARGO_PKG_VERSION")),
        ..Options::new(Vec::new(), targets, output)
    }
}
