//! A watch from start to end.

use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use kymo_cli::signals::Signals;
use kymo_perf::event_clock::monotonic_ns;
use kymo_perf::sys::{self, Kernel, Real};
use kymo_perf::watch::{Schedule, Scope, Watcher};
use kymo_symbols::place::{self as expression, Request};
use rustix::process::Signal;
use serde_json::json;

use super::lines::{Form, Lines};
use super::{WatchArgs, say};
use kymo_cli::exit;
use kymo_probe::watch::condition::Condition;
use kymo_probe::watch::ledger::{Hit, Ledger};
use kymo_probe::watch::names::Names;
use kymo_probe::watch::place;
use kymo_probe::watch::recording::Recording;
use kymo_probe::watch::rounds::{Event, Rounds, WatchRecord};
use kymo_probe::watch::target::{self, Target};

/// How long to sleep while nothing asks to be read.
const NAP: Duration = Duration::from_millis(20);
/// The same while the target stands still until its hit was judged.
const SHORT_NAP: Duration = Duration::from_millis(1);

/// Why a watch ended.
pub(super) enum End {
    /// Who was watched.
    Target,
    /// A signal to us.
    Signal,
    /// The time, or the number of accesses, or nobody reads any more.
    Enough,
    /// This instruction of a process never succeeds while its memory is watched.
    Exclusive(i32, u64),
    /// The target was stopped at this access.
    Stopped(Box<Hit>),
}

/// Everything that was asked for, read.
fn requests(args: &WatchArgs) -> Result<(Vec<Request>, Option<Condition>), String> {
    let requests = args.places.iter().map(|text| expression::parse(text).map_err(|error| error.to_string()));
    let requests = requests.collect::<Result<Vec<_>, _>>()?;
    let condition = args.condition.as_deref().map(Condition::parse).transpose();
    Ok((requests, condition.map_err(|error| format!("--if: {error}"))?))
}

/// Runs the verb.
pub(super) fn run(args: WatchArgs) -> anyhow::Result<ExitCode> {
    let (requests, condition) = match requests(&args) {
        Ok(read) => read,
        Err(error) => {
            say(&error);
            return Ok(ExitCode::from(exit::USAGE));
        }
    };
    let signals = Signals::catch()?;
    if let Some(path) = &args.output {
        signals.end_when_silent("watch", &path.display().to_string())?;
    }
    let target = if args.command.is_empty() {
        target::running(&args.pids)?
    } else {
        match target::command(&args.command)? {
            Ok(target) => target,
            Err(refused) => {
                say(&kymo_perf::explain::not_executed(&refused.command, &refused.source));
                return Ok(ExitCode::from(exit::NOT_STARTED));
            }
        }
    };
    let kernel: Arc<dyn Kernel> = Arc::new(Real);
    let armed = place::resolve(target.pids()[0], &requests, &mut |warning| say(warning))
        .map_err(anyhow::Error::from)
        .and_then(|places| Watch::arm(&args, &kernel, &places, condition.as_ref(), &target.pids()));
    match armed {
        Ok(watch) => watch.run(target, &signals),
        Err(error) => {
            target.abort();
            Err(error)
        }
    }
}

/// What rings hold goes two ways.
pub(super) struct Intake {
    pub(super) rounds: Rounds,
    pub(super) recording: Option<Recording>,
}

impl Intake {
    fn records(&mut self, bytes: &[u8]) {
        if let Some(recording) = &mut self.recording {
            recording.records(bytes);
        }
        self.rounds.records(bytes);
    }

    /// Takes in what is there, now that it is watched.
    pub(super) fn look(&mut self, ledger: &Ledger) {
        let found = ledger.look();
        let now_ns = monotonic_ns();
        found.into_iter().for_each(|found| self.rounds.add(now_ns, found));
    }
}

/// A watch that is armed.
pub(super) struct Watch<'a> {
    pub(super) args: &'a WatchArgs,
    pub(super) watcher: Watcher,
    pub(super) schedule: Schedule,
    pub(super) intake: Intake,
    pub(super) ledger: Ledger,
    pub(super) armed_in: Duration,
    /// Why threads are reached one by one, where nobody asked for it.
    pub(super) note: Option<String>,
    /// Hits that reached us.
    pub(super) read: u64,
    /// Turns in which nothing could be armed.
    pub(super) left_out: u64,
}

impl Watch<'_> {
    fn run(mut self, mut target: Target, signals: &Signals) -> anyhow::Result<ExitCode> {
        self.tell();
        let pids = target.pids();
        // Before it runs: a short program is gone when its first access is looked up.
        let mut names = Names::default();
        pids.into_iter().for_each(|pid| names.look(pid));
        let names = Box::new(move || names);
        let terminal = std::io::stdout().is_terminal();
        let args = self.args;
        let form =
            Form { json: args.json, bounded: terminal && !args.verbose && !args.json, none: args.quiet };
        if args.json {
            // A reader that is gone is seen at the first hit.
            let _ = writeln!(std::io::stdout(), "{}", self.header());
        }
        let mut lines = Lines::start(form, self.ledger.places().to_vec(), names)
            .context("failed to start the thread that prints")?;
        // Hits come from every CPU at once; whoever reads them must not wait for those who make them.
        // Where that is not permitted it works as well, and may lose more.
        let _ = sys::run_first();
        target.release();
        let end = self.until_end(&mut target, signals, &mut lines);
        let (intake, schedule) = (&mut self.intake, &self.schedule);
        self.watcher.disarm(schedule, &mut |_, bytes| intake.records(bytes));
        self.watcher.drain(&mut |_, bytes| intake.records(bytes));
        let mut end = end;
        for event in self.intake.rounds.finish() {
            if let Some(found) = self.take(event, &mut lines, true)
                && matches!(end, End::Target | End::Signal)
            {
                end = found;
            }
        }
        let (names, dropped) = lines.finish();
        self.finish(end, target, signals, names, dropped)
    }

    /// What was decided, for those who want to know.
    fn tell(&self) {
        let turns = self.schedule.turns.len();
        if turns > 1 {
            say(&format!(
                "{} registers are needed: they take {turns} turns of {} ms each, so accesses in between are missed",
                self.schedule.registers.len(),
                self.args.rotate
            ));
        }
        if let Some(why) = self.note.as_ref().filter(|_| !self.args.quiet) {
            say(&format!(
                "each thread is watched by itself, and new values are read after the access, not at it: {why}"
            ));
        }
        if self.args.verbose {
            let scope = match self.watcher.scope() {
                Scope::Filtered => "on every CPU, filtered in the kernel",
                Scope::Tasks => "for each thread, inherited",
            };
            say(&format!(
                "armed {} register{} {scope}, with {} descriptors, in {:.1} ms{}",
                self.schedule.turns[0].len(),
                if self.schedule.turns[0].len() == 1 { "" } else { "s" },
                self.watcher.descriptors(),
                self.armed_in.as_secs_f64() * 1e3,
                if self.schedule.merged { "; neighbours share registers" } else { "" }
            ));
            for register in &self.schedule.registers {
                say(&format!("register {}", register.piece));
            }
        }
    }

    fn header(&self) -> serde_json::Value {
        json!({
            "type": "header",
            "format": "kymo-watch",
            "version": 1,
            "scope": if self.watcher.scope() == Scope::Filtered { "filtered" } else { "tasks" },
            "armed_ns": self.armed_in.as_nanos() as u64,
            "registers": self.schedule.registers.len(),
            "turns": self.schedule.turns.len(),
            "places": self.ledger.places().iter().map(|place| place.expression.clone()).collect::<Vec<_>>(),
        })
    }

    fn until_end(&mut self, target: &mut Target, signals: &Signals, lines: &mut Lines) -> End {
        let begun = Instant::now();
        let slice = Duration::from_millis(self.args.rotate);
        let (mut turn, mut turned) = (0, begun);
        let nap = if self.args.stop { SHORT_NAP } else { NAP };
        loop {
            let mut most = nap;
            if self.schedule.turns.len() > 1 {
                most = most.min(slice.saturating_sub(turned.elapsed()));
            }
            if let Some(duration) = self.args.duration {
                most = most.min(duration.saturating_sub(begun.elapsed()));
            }
            {
                let mut also = target.ends();
                also.push(signals.as_fd());
                self.watcher.wait(&also, most);
            }
            self.watcher.follow_cpus();
            if self.schedule.turns.len() > 1 && turned.elapsed() >= slice {
                turn = (turn + 1) % self.schedule.turns.len();
                let intake = &mut self.intake;
                self.watcher.disarm(&self.schedule, &mut |_, bytes| intake.records(bytes));
                // What happens until the next one is armed is not known.
                intake.rounds.add(monotonic_ns(), WatchRecord::Gap);
                let armed = self.watcher.arm(&self.schedule, turn, &mut |_, bytes| intake.records(bytes));
                self.left_out += u64::from(armed.is_err());
                intake.look(&self.ledger);
                turned = Instant::now();
            }
            // Asked before the rings are read: what an ended target did is in them.
            let over = target.has_ended();
            let intake = &mut self.intake;
            self.watcher.drain(&mut |_, bytes| intake.records(bytes));
            if let Some(recording) = &mut self.intake.recording {
                recording.round();
            }
            let events = self.intake.rounds.flush();
            let mut judged = false;
            for event in events {
                judged |= matches!(event.1, WatchRecord::Hit(_));
                if let Some(end) = self.take(event, lines, false) {
                    if let End::Stopped(hit) = &end {
                        // It may have been let go for an access of another thread, or nobody stopped it in the kernel.
                        target::signal(hit.pid, Signal::STOP);
                    }
                    return end;
                }
            }
            if let Some((pid, ip)) = self.ledger.exclusive {
                return End::Exclusive(pid, ip);
            }
            if judged && self.args.stop {
                // None of them was the one.
                target.signal(Signal::CONT);
            }
            if over {
                return End::Target;
            }
            if signals.last().is_some() {
                return End::Signal;
            }
            if lines.is_broken() || self.args.duration.is_some_and(|duration| begun.elapsed() >= duration) {
                return End::Enough;
            }
        }
    }

    /// Counts and shows what happened; why that ends the watch, if it does. `late`: it has ended already.
    fn take(&mut self, (time_ns, happened): Event, lines: &mut Lines, late: bool) -> Option<End> {
        match happened {
            WatchRecord::Hit(_) => self.read += 1,
            WatchRecord::Child { pid, parent } => lines.child(pid, parent),
            _ => {}
        }
        if self.args.count.is_some_and(|count| self.ledger.counted >= count) {
            return None;
        }
        let hit = self.ledger.take(time_ns, happened)?;
        let stopped = (self.args.stop && !late).then(|| Box::new(hit.clone()));
        lines.hit(hit);
        if self.args.count.is_some_and(|count| self.ledger.counted < count) {
            return None;
        }
        match stopped {
            Some(hit) => Some(End::Stopped(hit)),
            None => self.args.count.map(|_| End::Enough),
        }
    }
}
