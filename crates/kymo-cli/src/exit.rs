//! Exit codes, decided once.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | done; also when the reader of our output went away |
//! | 1 | failed; the sentence on stderr says what, why and what to do |
//! | 2 | the recording is cut off or damaged: what can be read is printed, stderr says what is missing; `diff`: there is no answer |
//! | 1, 3 | `diff`: a regression; undecided |
//! | 129 | the command line was not understood (as perf) |
//! | 255 | the program to record could not be started (as perf) |
//! | other | `record`, `stat`, `probe`, `watch`: the command's own status, or its signal |
//!
//! None of them depends on stderr: where it is closed or full, what would have been said there is missing (`stderr.rs`). Where
//! memory runs out the status is 1, at once.

use std::fmt::Display;
use std::io::ErrorKind;
use std::process::ExitCode;

use kymo_data::{Problem, Recording};
use kymo_perf::workload::{Exit, die_by};
use kymo_probe::error::UsageError;

use crate::{damage, terminal};

/// The command line was not understood.
pub const USAGE: u8 = 129;
/// The command to record, count or probe could not be started.
pub const NOT_STARTED: u8 = 255;
/// The recording is cut off or damaged.
const DAMAGED: u8 = 2;
/// `kymo diff`: the new side costs more.
pub const REGRESSION: u8 = 1;
/// `kymo diff`: there is no answer, because recordings cannot be made, read or compared.
pub const NO_ANSWER: u8 = 2;
/// `kymo diff`: the runs do not tell.
pub const UNDECIDED: u8 = 3;

/// The status of a report: what could be read is printed, and stderr tells what is damaged, here if
/// it was not said before. A recording that its recorder could not finish may end in the middle of
/// a record.
pub fn of_reading<'a>(recording: &Recording, more: impl IntoIterator<Item = &'a Problem>) -> ExitCode {
    let found = recording.found();
    let mut problems: Vec<&Problem> = recording.problems.iter().collect();
    if !recording.is_unfinished {
        problems.extend(&found);
        for problem in more {
            problems.push(problem);
        }
    }
    if damage::tell_damage(problems) { ExitCode::from(DAMAGED) } else { ExitCode::SUCCESS }
}

/// The outcome of a verb whose status 1 is an answer: what failed is said, and the status is
/// [`NO_ANSWER`]. A wrong command line keeps its own.
pub fn or_no_answer(done: anyhow::Result<ExitCode>) -> anyhow::Result<ExitCode> {
    match done {
        Err(error) if !is_broken_pipe(&error) && !error.is::<UsageError>() => {
            terminal::say(&with_causes(&error));
            Ok(ExitCode::from(NO_ANSWER))
        }
        done => done,
    }
}

/// Says what is wrong with a verb's command line; the status for that.
pub fn misused(verb: &str, sentence: impl Display) -> ExitCode {
    eprintln!("kymo {verb}: {sentence}");
    ExitCode::from(USAGE)
}

/// Ends as the command did: by its signal, or with its status.
pub fn as_command(exit: Exit) -> ExitCode {
    match exit {
        Exit::Code(code) => ExitCode::from(code as u8),
        Exit::Signal(signal) => by_signal(signal),
    }
}

/// Ends this process by the signal, or at least as a shell shows such an end.
pub fn by_signal(signal: i32) -> ExitCode {
    die_by(signal);
    ExitCode::from(128u8.wrapping_add(signal as u8))
}

/// Marks an error as one of the command line: clap took it, and it means nothing (a word that is no sort key, a CPU that is no number).
pub use kymo_probe::error::usage;

/// The exit code of a verb's outcome; an error is printed with its causes.
pub fn code(done: anyhow::Result<ExitCode>) -> ExitCode {
    crate::signals::wait_if_given_up();
    match done {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            terminal::say(&with_causes(&error));
            match () {
                () if error.is::<UsageError>() => ExitCode::from(USAGE),
                // What the verb wants is missing, as was said; the system refused nothing.
                () if damage::is_known() && !has_io_error(&error) => ExitCode::from(DAMAGED),
                () => ExitCode::FAILURE,
            }
        }
    }
}

/// An error with its causes behind it, but for those that it tells itself.
pub fn with_causes(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        match text.is_empty() {
            true => text = cause,
            false if text.ends_with(&cause) => {}
            false => text = format!("{text}: {cause}"),
        }
    }
    text
}

fn has_io_error(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.is::<std::io::Error>())
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == ErrorKind::BrokenPipe)
    })
}

#[cfg(test)]
mod tests {
    use super::with_causes;
    use anyhow::anyhow;
    use std::io::{Error, ErrorKind};

    /// "No such file or directory" was said twice where an error tells its cause itself.
    #[test]
    fn a_cause_is_said_once() {
        let cause = Error::from(ErrorKind::NotFound);
        let sentence = format!("failed to open: {cause}");
        let error = anyhow!(cause).context(sentence).context("core");
        assert_eq!(with_causes(&error), "core: failed to open: entity not found");
        let error = anyhow!(Error::from(ErrorKind::NotFound)).context("failed to open").context("core");
        assert_eq!(with_causes(&error), "core: failed to open: entity not found");
    }
}
