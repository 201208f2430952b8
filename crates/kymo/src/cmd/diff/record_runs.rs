//! `kymo diff --run`: records two commands again and again, in random order and in environments of
//! random size.
//!
//! The machine changes over time, and the layout of memory changes with the environment: both must
//! hit the two sides alike. Each recording is made by a `kymo record` of its own, as a user would.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};
use kymo_cli::signals;
use kymo_data::Recording;
use kymo_perf::machine::Machine;
use kymo_perf::selector;
use kymo_profile::diff::SplitMix64;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::DiffArgs;

/// The variable that moves the stack of the programs, and how long it is at most.
const PADDING: &str = "KYMO_DIFF_PADDING";
const MOST_PADDING: usize = 4096;
/// How often it is looked whether a run has ended.
const INTERVAL: Duration = Duration::from_millis(20);

/// Recordings that were made.
pub(super) struct RecordedRuns {
    pub(super) old: Vec<PathBuf>,
    pub(super) new: Vec<PathBuf>,
    /// Deletes them at the end, unless they are to be kept.
    _folder: Option<TempDir>,
}

/// Records the two commands.
pub(super) fn run(args: &DiffArgs) -> anyhow::Result<RecordedRuns> {
    let temporary = match &args.output {
        None => Some(tempfile::tempdir().context("failed to make a temporary folder; -o DIR names one")?),
        Some(folder) => {
            kymo_files::Folder::make(folder)
                .with_context(|| format!("failed to make {}", folder.display()))?;
            None
        }
    };
    let folder = match (&args.output, &temporary) {
        (Some(folder), _) => folder.clone(),
        (None, Some(temporary)) => temporary.path().to_owned(),
        (None, None) => PathBuf::from("."),
    };
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seed = args.seed.unwrap_or(since_epoch.as_nanos() as u64);
    let mut recorder = Recorder {
        args,
        program: std::env::current_exe().context("failed to find kymo's own program")?,
        interrupted: signals::interrupted()?,
        random: SplitMix64::new(seed),
    };
    for command in (0..args.warmup).flat_map(|_| &args.commands) {
        recorder.warm_up(command)?;
    }
    let (mut old, mut new) = (Vec::new(), Vec::new());
    for number in 1..=args.runs {
        if !args.quiet {
            kymo_cli::eprintln!("kymo diff: run {number} of {} of each side", args.runs);
        }
        let file = |side: &str| folder.join(format!("{side}-{number:02}.data"));
        // In each pair by chance: a machine that becomes slower meets both sides.
        let mut sides = [("old", 0, &mut old), ("new", 1, &mut new)];
        if recorder.random.below(2) == 1 {
            sides.reverse();
        }
        for (side, command, files) in sides {
            let file = file(side);
            recorder.record(&args.commands[command], side, number, &file)?;
            files.push(file);
        }
    }
    Ok(RecordedRuns { old, new, _folder: temporary })
}

struct Recorder<'a> {
    args: &'a DiffArgs,
    program: PathBuf,
    interrupted: Arc<AtomicBool>,
    random: SplitMix64,
}

impl Recorder<'_> {
    fn warm_up(&mut self, command: &str) -> anyhow::Result<()> {
        let words = words(command);
        let mut program = Command::new(words[0]);
        program.args(&words[1..]);
        let status = self.finish(program, command)?;
        accept(status, command, "a run before the recordings")
    }

    fn record(&mut self, command: &str, side: &str, number: u32, file: &Path) -> anyhow::Result<()> {
        let mut recorder = Command::new(&self.program);
        recorder.args(["record", "-q", "-o"]).arg(file).args(["-F", &rate(self.args.frequency)]);
        for event in events(self.args) {
            recorder.args(["-e", &event]);
        }
        recorder.arg("--").args(words(command));
        let status = self.finish(recorder, command)?;
        let run = format!("run {number} of the {side} side");
        if !status.success() && recorder_failed(status, file) {
            bail!(
                "{run} could not be recorded, which is not the fault of {command}: kymo record ended with {status}, for the reason above; -o DIR records into another folder than {}",
                file.parent().unwrap_or(Path::new(".")).display()
            );
        }
        accept(status, command, &run)
    }

    /// Runs a command to its end, in an environment of random size.
    fn finish(&mut self, mut command: Command, shown: &str) -> anyhow::Result<ExitStatus> {
        let padding = "x".repeat(self.random.below(MOST_PADDING));
        let output = match self.args.show_output {
            true => Stdio::from(stderr()?),
            false => Stdio::null(),
        };
        command.env(PADDING, padding).stdin(Stdio::null()).stdout(output);
        let mut child = command.spawn().with_context(|| format!("failed to run {shown}"))?;
        let mut was_told = false;
        loop {
            if let Some(status) = child.try_wait().context("failed to wait for a run")? {
                if self.interrupted.load(Ordering::Relaxed) {
                    bail!("interrupted: the recordings are not complete");
                }
                return Ok(status);
            }
            if self.interrupted.load(Ordering::Relaxed) && !was_told {
                end(&child);
                was_told = true;
            }
            std::thread::sleep(INTERVAL);
        }
    }
}

/// The words of a command. A path with plain words needs no shell: it is started by itself, so that
/// probes of `--per` find their functions in it.
fn words(command: &str) -> Vec<&str> {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || " _./:,@%+=-".contains(char);
    let words: Vec<&str> = command.split_whitespace().collect();
    match words.first() {
        Some(program) if program.contains('/') && !program.contains('=') && command.chars().all(is_plain) => {
            words
        }
        _ => vec!["sh", "-c", command],
    }
}

/// Our standard error, for a child to write to.
fn stderr() -> anyhow::Result<File> {
    let copy = rustix::io::fcntl_dupfd_cloexec(std::io::stderr(), 3);
    Ok(File::from(copy.context("failed to share standard error")?))
}

/// Interrupts a run; its recording ends.
fn end(child: &Child) {
    if let Some(pid) = Pid::from_raw(child.id() as i32) {
        // It may have ended meanwhile.
        let _ = kill_process(pid, Signal::INT);
    }
}

/// Whether it was the recorder that failed, and not its command: then there is no whole recording.
fn recorder_failed(status: ExitStatus, file: &Path) -> bool {
    let Ok(file) = File::open(file) else {
        return status.code() != Some(i32::from(kymo_cli::exit::NOT_STARTED));
    };
    match Recording::open(Arc::new(file), Vec::new()) {
        Ok(recording) => recording.problems.iter().any(|problem| problem.is_damage),
        Err(_) => true,
    }
}

fn accept(status: ExitStatus, command: &str, what: &str) -> anyhow::Result<()> {
    if status.success() {
        return Ok(());
    }
    bail!(
        "{what} ended with {status}, so its cost is not that of the whole work: {command}; --show-output shows what it prints"
    )
}

fn rate(hz: u64) -> String {
    if hz == u64::MAX { "max".to_owned() } else { hz.to_string() }
}

/// The events to record: the cost, and what counts the work.
fn events(args: &DiffArgs) -> Vec<String> {
    let work = || args.per.iter().cloned();
    match &args.event {
        Some(event) => [event.clone()].into_iter().chain(work()).collect(),
        None if args.per.is_none() => Vec::new(),
        None => [selector::default_event(&Machine::here()).0.name].into_iter().chain(work()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that only a path with plain words does without a shell.
    #[test]
    fn plain_paths_need_no_shell() {
        assert_eq!(words("./old/rows 100"), ["./old/rows", "100"]);
        for command in
            ["rows 100", "./rows >out", "A=./x ./rows", "cd /tmp && ./rows", "./rows 'a b'", "exit 3", ""]
        {
            assert_eq!(words(command), ["sh", "-c", command]);
        }
    }
}
