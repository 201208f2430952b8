//! The end of a recording: its last words, the hottest functions, and the status.

use std::io::{ErrorKind, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use kymo_cli::exit;
use kymo_cli::terminal::called_as;
use kymo_perf::cgroup;
use kymo_perf::workload::Exit;
use kymo_record::{CpuTime, LossAccount, Output, Summary};

use super::Words;

/// Recordings up to this size are looked at right away: reading one takes well under a second.
const FIRST_LOOK_BYTES: u64 = 1 << 30;
/// The same where no person may be waiting: what is read belongs to a script's time.
const UNWATCHED_LOOK_BYTES: u64 = 64 << 20;

/// Names of large programs take so much memory. Where a cgroup limits it to less, no first look
/// puts the end of the recording at risk.
const NAMES_BYTES: u64 = 256 << 20;

/// The five hottest functions and what led to them, and what threads did: often all that a person
/// wanted to know.
fn first_look(output: &Output, bytes: u64) {
    let Output::File(path) = output else { return };
    // Of several files none has the plain name.
    if !path.exists() {
        return;
    }
    let most = if std::io::stderr().is_terminal() { FIRST_LOOK_BYTES } else { UNWATCHED_LOOK_BYTES };
    if bytes > most {
        return;
    }
    if let Some(limit) = cgroup::memory_limit().filter(|limit| *limit < NAMES_BYTES) {
        let mib = limit >> 20;
        eprintln!(
            "  the hottest functions are not shown: the cgroup limits memory to {mib} MiB; see `kymo report` outside of it"
        );
        return;
    }
    match crate::cmd::report::first_look_lines(path, 5) {
        // Nothing ran, and waits were not recorded.
        Ok((lines, _)) if lines.is_empty() => {}
        Ok((lines, options)) => {
            for line in lines {
                eprintln!("  {line}");
            }
            let input = if path == std::path::Path::new(kymo_cli::open::DEFAULT) {
                String::new()
            } else {
                format!(" -i {}", path.display())
            };
            eprintln!("  more: kymo report{options}{input}");
        }
        Err(error) => {
            eprintln!("kymo record: cannot show the hottest functions: {}", exit::with_causes(&error))
        }
    }
}

/// For how long tasks were sampled by time, how often, and how that is repeated for waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct SampledTime {
    pub(super) elapsed: Duration,
    pub(super) hz: u64,
}

impl SampledTime {
    /// Shorter recordings are of the program's start.
    const LEAST: Duration = Duration::from_millis(500);

    /// What to do where the tasks waited most of the time. `accounted`: their CPU time as the
    /// kernel accounts it; without it, samples must do.
    fn advice(self, samples: u64, accounted: Option<CpuTime>) -> Option<String> {
        let (used, cpu) = match accounted {
            // Processes for which nobody waited are in the samples alone.
            Some(time) => ("it used", time.used_ns.max(time.seen_ns) as f64 / 1e9),
            None => ("its samples stand for", samples as f64 / self.hz.max(1) as f64),
        };
        let elapsed = self.elapsed.as_secs_f64();
        (self.elapsed >= Self::LEAST && cpu * 10.0 < elapsed).then(|| {
            format!(
                "{used} {cpu:.2} s of CPU time in {elapsed:.2} s: most of the time it waited. See what for, as root: `kymo record --wall` with the same command or -p, then `kymo report --wall`"
            )
        })
    }
}

/// The last words, and the status to end with. `signalled`: the signal that ended the recording, or 0.
pub(super) fn finish(
    summary: Summary,
    (output, name): (&Output, &str),
    words: &Words,
    sampled: Option<SampledTime>,
    fail_on_loss: Option<Option<f64>>,
    signalled: i32,
) -> anyhow::Result<ExitCode> {
    let Summary {
        bytes,
        wakeups,
        account,
        coverage,
        unwound,
        pauses,
        exit: ended,
        cpu_time,
        write_error,
        unfollowed,
        files: _,
        removed,
        remarks,
    } = summary;
    let unseen = cpu_time.and_then(|time| time.difference("the samples stand for"));
    if !words.quiet {
        // Scripts look for these lines of perf's.
        let kymo = called_as();
        eprintln!("[ {kymo} record: Woken up {wakeups} times to write data ]");
        let megabytes = |bytes: u64| bytes as f64 / (1024.0 * 1024.0);
        eprintln!(
            "[ {kymo} record: Captured and wrote {:.3} MB {name} ({} samples) ]",
            megabytes(bytes.saturating_sub(removed.bytes)),
            account.samples.saturating_sub(removed.samples)
        );
        if removed.files > 0 {
            eprintln!(
                "[ kymo record: --switch-max-files removed {} older files of {:.3} MB ({} samples) ]",
                removed.files,
                megabytes(removed.bytes),
                removed.samples
            );
        }
        if let Some(coverage) = coverage {
            eprintln!("[ kymo record: {coverage} ]");
        }
        if let Some(unwound) = unwound.filter(|unwound| {
            words.unwinding || words.verbose || unwound.cut_short() > unwound.stats.samples / 50
        }) {
            eprintln!("[ kymo record: {unwound} ]");
            if let Some(advice) = unwound.advice().filter(|_| !words.unwinding) {
                words.say(&advice);
            }
        }
        eprintln!("[ kymo record: {account} ]");
        if pauses.count > 0 {
            eprintln!("[ kymo record: {pauses} ]");
        }
        if unfollowed > 0 {
            words.say(&format!(
                "{unfollowed} threads or processes were not followed, their samples are missing: record with --scope inherit, or -a"
            ));
        }
        remarks.iter().chain(&unseen).for_each(|remark| words.say(remark));
        first_look(output, bytes);
        let all = account.samples.saturating_add(account.lost());
        if let Some(advice) = sampled.and_then(|sampled| sampled.advice(all, cpu_time)) {
            words.say(&advice);
        }
    } else {
        missing_alone(&account, unseen.as_deref());
    }
    if let Some(error) = write_error {
        if error.source.kind() == ErrorKind::BrokenPipe {
            // As any program whose reader has gone, but with a word about it.
            words.say("whoever read the recording has gone; it ended there");
            return Ok(exit::by_signal(kymo_cli::signals::SIGPIPE));
        }
        if error.source.kind() == ErrorKind::TimedOut && signalled != 0 {
            words.say(&format!("{name}: {}; the recording ended there", error.source));
            return Ok(exit::by_signal(signalled));
        }
        let advice = error.advice();
        bail!("failed to write {name} {error}; what came before is complete; {advice}");
    }
    match fail_on_loss {
        None => {}
        Some(None) if !account.is_clean() => bail!("{account}, and --fail-on-loss was given"),
        Some(Some(percent)) if lost_more_than(&account, percent) => {
            bail!("{account}, and --fail-on-loss={percent} was given")
        }
        Some(_) => {}
    }
    // As perf: the signal that ended the command goes first, then the one that ended us, then the command's status.
    Ok(match ended {
        Some(Exit::Signal(signal)) => exit::by_signal(signal),
        _ if signalled != 0 => exit::by_signal(signalled),
        Some(Exit::Code(code)) => ExitCode::from(code as u8),
        None => ExitCode::SUCCESS,
    })
}

/// What is said where nothing else is: that something is missing.
fn missing_alone(account: &LossAccount, unseen: Option<&str>) {
    if account.lost() > 0 || account.cpu_gaps > 0 {
        eprintln!("kymo record: {account}");
    }
    unseen.iter().for_each(|unseen| eprintln!("kymo record: {unseen}"));
}

/// Whether more than this percentage of the samples was lost, or data whose samples nobody counted.
fn lost_more_than(account: &LossAccount, percent: f64) -> bool {
    let all = account.samples.saturating_add(account.lost());
    account.lost() as f64 * 100.0 > percent * all as f64
        || account.damaged_bytes() > 0
        || account.unwritten_bytes > 0
        || account.cpu_gaps > 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use kymo_perf::workload::Usage;
    use kymo_record::Account;

    /// Checks that advice about waits needs half a second, less than a tenth of CPU time, and counts
    /// the time in seconds.
    #[test]
    fn programs_that_wait() {
        let sampled = |ms| SampledTime { elapsed: Duration::from_millis(ms), hz: 1000 };
        let advice = |ms, samples| sampled(ms).advice(samples, None);
        let words = advice(2000, 50).expect("a fortieth");
        assert!(words.starts_with("its samples stand for 0.05 s of CPU time in 2.00 s"), "{words}");
        let used = |ms: u64| {
            let usage = Usage { user_ns: ms * 1_000_000, ..Usage::default() };
            let time = CpuTime::counted(Account::of_command(&usage), 50_000_000);
            sampled(2000).advice(50, Some(time))
        };
        assert!(used(60).expect("it waits").starts_with("it used 0.06 s of CPU time in 2.00 s"));
        assert_eq!(used(1900), None);
        assert_eq!(advice(2000, 200), None);
        assert_eq!(advice(400, 1), None);
    }

    /// Checks that the accepted percentage is of all samples, that it itself is accepted, and that data whose samples
    /// nobody counted is not.
    #[test]
    fn accepted_losses() {
        let account = |samples, ring_full, unwritten_bytes| LossAccount {
            samples,
            ring_full,
            unwritten_bytes,
            ..LossAccount::default()
        };
        let cases = [
            (account(0, 0, 0), 0.0, false),
            (account(99, 1, 0), 1.0, false),
            (account(99, 1, 0), 0.9, true),
            (account(99, 1, 0), 0.0, true),
            (account(0, 5, 0), 100.0, false),
            (account(99, 0, 8), 100.0, true),
            (LossAccount { cpu_gaps: 1, ..account(99, 0, 0) }, 100.0, true),
        ];
        for (account, percent, too_much) in cases {
            assert_eq!(lost_more_than(&account, percent), too_much, "{account} with {percent} accepted");
        }
    }
}
