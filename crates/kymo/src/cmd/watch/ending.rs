//! The end of a watch: the table, the account, and what becomes of the target.

use std::io::Write;
use std::process::ExitCode;

use kymo_cli::exit;
use kymo_cli::signals::Signals;
use kymo_perf::hotplug::CpuGap;
use kymo_perf::workload::Exit;
use kymo_profile::build_ids::Which;
use rustix::process::Signal;

use crate::cmd::kept_files;

use super::lines::site_words;
use super::run::{End, Watch};
use super::{say, table};
use kymo_probe::watch::names::Names;
use kymo_probe::watch::target::Target;

impl Watch<'_> {
    pub(super) fn finish(
        mut self,
        end: End,
        target: Target,
        signals: &Signals,
        mut names: Names,
        dropped: u64,
    ) -> anyhow::Result<ExitCode> {
        let coverage = self.coverage();
        let lost = match self.watcher.counts() {
            // What the kernel's program saw and did not reach us.
            Some(counts) => (counts.seen + counts.lost).saturating_sub(self.read),
            None => self.watcher.lost().max(self.intake.rounds.lost),
        };
        let gaps = self.watcher.cpu_gaps();
        let totals = table::Totals {
            cpu_gaps: gaps.len() as u64,
            hits: self.read,
            lost,
            strangers: self.watcher.counts().map_or(0, |counts| counts.strangers),
            elapsed_ns: self.watcher.coverage(&self.schedule).first().map_or(0, |armed| armed.all_ns),
        };
        let recorded = self.intake.recording.take().map(|recording| {
            let path = self.args.output.as_deref().unwrap_or(std::path::Path::new("perf.data"));
            (path, recording.finish(path))
        });
        let text = if self.args.json {
            format!("{}\n", table::summary(&self.ledger, &mut names, coverage.as_deref(), &totals))
        } else {
            table::text(&self.ledger, &mut names, coverage.as_deref())
        };
        let written = std::io::stdout().write_all(text.as_bytes());
        self.account(&totals, &gaps, dropped);
        let recorded = match recorded {
            Some((path, Ok(bytes))) => {
                let megabytes = bytes as f64 / (1024.0 * 1024.0);
                eprintln!(
                    "[ kymo watch: wrote {megabytes:.3} MB {} ({} samples) ]",
                    path.display(),
                    self.read
                );
                kept_files::keep(&[path.to_owned()], Which::Hit, "", &say);
                Ok(())
            }
            Some((_, Err(error))) => Err(error),
            None => Ok(()),
        };
        let gave_up = matches!(end, End::Exclusive(..));
        let was_ended = matches!(end, End::Signal | End::Enough);
        let exit = match end {
            End::Stopped(hit) => {
                let site = names.access(hit.pid, hit.ip, false);
                say(&format!(
                    "process {} stands still behind the access by thread {} in {}\n  look at it: gdb -p {}\n  let it go on: kill -CONT {}",
                    hit.pid,
                    hit.tid,
                    site_words(&site),
                    hit.pid,
                    hit.pid
                ));
                stay(target, signals)
            }
            End::Exclusive(pid, ip) => {
                say(&format!(
                    "the watch has ended, and the program goes on: {} accesses the memory by an exclusive load and store (ldxr, stxr), which never succeed while it is watched",
                    site_words(&names.access(pid, ip, false))
                ));
                stay(target, signals)
            }
            End::Target => target.end(false),
            End::Signal | End::Enough => target.end(true),
        };
        drop(self.watcher);
        written.or_else(
            |error| if error.kind() == std::io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) },
        )?;
        recorded?;
        Ok(match exit {
            _ if gave_up => ExitCode::FAILURE,
            // kymo itself ended the command: the watch did what was asked for.
            Some(Exit::Signal(_)) if was_ended => ExitCode::SUCCESS,
            Some(exit) => exit::as_command(exit),
            None => ExitCode::SUCCESS,
        })
    }

    /// By place, where registers took turns.
    fn coverage(&self) -> Option<Vec<f64>> {
        if self.schedule.turns.len() < 2 {
            return None;
        }
        let armed = self.watcher.coverage(&self.schedule);
        let share = |place: usize| {
            let registers = self.schedule.registers.iter().enumerate();
            let own = registers.filter(|(_, register)| register.ranges.contains(&place));
            let armed: Vec<_> = own.filter_map(|(index, _)| armed.get(index).copied()).collect();
            table::share(&armed)
        };
        Some((0..self.ledger.places().len()).map(share).collect())
    }

    /// The last words.
    fn account(&mut self, totals: &table::Totals, gaps: &[CpuGap], dropped: u64) {
        if self.args.quiet && totals.lost == 0 && gaps.is_empty() {
            return;
        }
        let threads: std::collections::BTreeSet<i32> =
            self.ledger.rows().iter().flat_map(|row| row.threads.keys().copied()).collect();
        let mut words = summary_words(
            self.ledger.counted,
            threads.len(),
            Some(totals.hits).filter(|_| self.ledger.unmet > 0),
        );
        match totals.lost {
            0 if !gaps.is_empty() => words.push_str(", none lost on the CPUs that were watched"),
            0 => words.push_str(", none lost"),
            lost => words.push_str(&format!(", {lost} LOST: the rings were full")),
        }
        eprintln!("[ kymo watch: {words} ]");
        gaps.iter().for_each(|gap| say(&gap.to_string()));
        let also = |count: u64, what: &str| {
            if count > 0 {
                say(&format!("{count} {what}"));
            }
        };
        also(
            self.ledger.after_exec,
            "hits were behind an exec, where the addresses mean something else: not shown",
        );
        also(
            dropped,
            "lines were left out because they could not be written fast enough; the table has all hits",
        );
        also(self.left_out, "turns were left out, because registers were held by others then");
        also(self.intake.rounds.damaged, "records could not be read");
        also(
            self.watcher.unfollowed(),
            "processes or threads could not be followed: their accesses are missing",
        );
        if totals.strangers > 1000 {
            also(
                totals.strangers,
                "accesses by other processes at the same addresses of theirs were slowed down and left out; --scope tasks leaves them alone",
            );
        }
    }
}

/// How many hits were counted, by how many threads; of `all` where a condition left some out.
fn summary_words(counted: u64, threads: usize, all: Option<u64>) -> String {
    let by = format!("by {threads} thread{}", if threads == 1 { "" } else { "s" });
    match all {
        Some(all) => format!("{counted} of {all} hits met the condition, {by}"),
        None => format!("{counted} hit{} {by}", if counted == 1 { "" } else { "s" }),
    }
}

/// The target stands still. A command of ours that would be without us is not left: the system would end it.
fn stay(target: Target, signals: &Signals) -> Option<Exit> {
    if matches!(target, Target::Running { .. }) {
        return None;
    }
    say("Ctrl-C ends the command");
    let mut target = target;
    while !target.has_ended() {
        let mut fds = [rustix::event::PollFd::new(signals, rustix::event::PollFlags::IN)];
        let time = rustix::event::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        if rustix::event::poll(&mut fds, Some(&time)).unwrap_or(0) > 0 {
            target.signal(Signal::KILL);
        }
    }
    target.end(false)
}
