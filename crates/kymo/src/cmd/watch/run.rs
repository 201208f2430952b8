//! A watch from start to end.

use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use kymo_data::Attr;
use kymo_perf::sys::{self, Kernel, Real};
use kymo_perf::watch::{Machine, Memory, Options, Range, SAMPLE_TYPE, Schedule, Scope, Watcher};
use kymo_perf::workload::Exit;
use kymo_profile::place::{self as expression, Request};
use rustix::process::Signal;
use serde_json::json;

use super::condition::Condition;
use super::ledger::{Hit, Ledger};
use super::lines::{Form, Lines, site_words};
use super::names::Names;
use super::place::{self, Place};
use super::rounds::{Event, Happened, Rounds};
use super::target::{self, Target};
use super::{WatchArgs, errors, say, table};
use crate::exit;

/// How long to sleep while nothing asks to be read.
const NAP: Duration = Duration::from_millis(20);
/// The same while the target stands still until its hit was judged.
const SHORT_NAP: Duration = Duration::from_millis(1);
/// The command could not be started, as perf tells it.
const NOT_STARTED: u8 = 255;

/// Why a watch ended.
enum End {
    /// Who was watched.
    Target,
    /// A signal to us.
    Signal,
    /// The time, or the number of accesses, or nobody reads any more.
    Enough,
    /// The target was stopped at this access.
    Stopped(Box<Hit>),
}

/// Signals that end a watch.
struct Signals {
    told: UnixStream,
    which: Arc<AtomicUsize>,
}

impl Signals {
    fn catch() -> anyhow::Result<Signals> {
        let (told, teller) = UnixStream::pair().context("failed to make a socket pair")?;
        let which = Arc::new(AtomicUsize::new(0));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP]
        {
            // The number before the wake-up: who wakes must see which signal it was.
            signal_hook::flag::register_usize(signal, Arc::clone(&which), signal as usize)
                .and_then(|_| signal_hook::low_level::pipe::register(signal, teller.try_clone()?))
                .context("failed to catch signals")?;
        }
        Ok(Signals { told, which })
    }

    fn came(&self) -> bool {
        // Relaxed: the signal handler ran in a thread of this process, or will be seen in the next round.
        self.which.load(Ordering::Relaxed) != 0
    }
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
    let target = if args.command.is_empty() {
        target::running(&args.pids)?
    } else {
        match target::command(&args.command)? {
            Ok(target) => target,
            Err(refused) => {
                let advice = crate::cmd::record::advice(&refused.source);
                say(&format!("failed to execute {}: {}{advice}", refused.command, refused.source));
                return Ok(ExitCode::from(NOT_STARTED));
            }
        }
    };
    let kernel: Arc<dyn Kernel> = Arc::new(Real);
    let armed = place::resolve(target.pids()[0], &requests, &mut |warning| say(warning))
        .map_err(anyhow::Error::from)
        .and_then(|places| Watch::arm(&args, kernel, places, condition, &target.pids()));
    match armed {
        Ok(watch) => watch.run(target, &signals),
        Err(error) => {
            target.abort();
            Err(error)
        }
    }
}

/// A watch that is armed.
struct Watch<'a> {
    args: &'a WatchArgs,
    watcher: Watcher,
    schedule: Schedule,
    rounds: Rounds,
    ledger: Ledger,
    armed_in: Duration,
    /// Hits that reached us.
    read: u64,
    /// Turns in which nothing could be armed.
    left_out: u64,
}

impl<'a> Watch<'a> {
    /// Plans with the ledger of slots, reads what is there, and arms.
    fn arm(
        args: &'a WatchArgs,
        kernel: Arc<dyn Kernel>,
        places: Vec<Place>,
        condition: Option<Condition>,
        pids: &[i32],
    ) -> anyhow::Result<Watch<'a>> {
        let begun = Instant::now();
        let options = Options {
            pids: pids.to_vec(),
            scope: args.scope,
            callchains: args.call_graph,
            stop: args.stop,
            with_kernel: args.kernel,
            ring_bytes: None,
        };
        let refused = |error| errors::refused(&error, &places, pids);
        let ranges: Vec<Range> = places.iter().map(|place| place.range).collect();
        // Before anything is opened: what cannot be planned is refused at once.
        let planned = |taken, by_cpu| {
            let machine =
                Machine { cpus: sys::online_cpus().len(), slots: Machine::slots_here(), taken, by_cpu };
            Schedule::plan(&ranges, &machine, !args.no_rotate)
        };
        planned(0, true).map_err(|error| errors::no_plan(&error, &places, false))?;
        let mut watcher = Watcher::open(kernel, options).map_err(refused)?;
        let attr = attr(args);
        let mut taken = 0;
        loop {
            let by_cpu = watcher.scope() == Scope::Filtered;
            let schedule =
                planned(taken, by_cpu).map_err(|error| errors::no_plan(&error, &places, taken > 0))?;
            let mut ledger = Ledger::new(places.clone(), &schedule, condition.clone());
            for &pid in pids {
                if let Ok(memory) = Memory::open(pid) {
                    ledger.look(pid, &memory);
                }
            }
            let mut rounds = Rounds::new(&attr, watcher.ever());
            match watcher.arm(&schedule, 0, &mut |_, bytes| rounds.records(bytes)) {
                Ok(()) => {
                    let armed_in = begun.elapsed();
                    return Ok(Watch {
                        args,
                        watcher,
                        schedule,
                        rounds,
                        ledger,
                        armed_in,
                        read: 0,
                        left_out: 0,
                    });
                }
                // Somebody else holds registers: plan with fewer.
                Err(error) if error.no_slot() => taken += 1,
                Err(error) => return Err(errors::refused(&error, &places, pids)),
            }
        }
    }

    fn run(mut self, mut target: Target, signals: &Signals) -> anyhow::Result<ExitCode> {
        self.tell();
        let pids = target.pids();
        let names = Box::new(move || {
            let mut names = Names::new();
            pids.into_iter().for_each(|pid| names.look(pid));
            names
        });
        let terminal = std::io::stdout().is_terminal();
        let args = self.args;
        let form =
            Form { json: args.json, bounded: terminal && !args.verbose && !args.json, none: args.quiet };
        if args.json {
            // A reader that is gone is seen at the first hit.
            let _ = writeln!(std::io::stdout(), "{}", self.header());
        }
        let mut lines = Lines::start(form, self.ledger.places().to_vec(), names);
        // Hits come from every CPU at once; whoever reads them must not wait for those who make them.
        // Where that is not permitted it works as well, and may lose more.
        let _ = sys::run_early();
        target.release();
        let end = self.until_end(&mut target, signals, &mut lines);
        let (rounds, schedule) = (&mut self.rounds, &self.schedule);
        self.watcher.disarm(schedule, &mut |_, bytes| rounds.records(bytes));
        self.watcher.drain(&mut |_, bytes| rounds.records(bytes));
        let mut end = end;
        for event in self.rounds.finish() {
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
        if self.watcher.scope() == Scope::Tasks && self.args.scope.is_none() && !self.args.quiet {
            let why = self.watcher.fallback().unwrap_or("that was asked for");
            say(&format!("new values are read after the access, not at it: {why}"));
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
                also.push(signals.told.as_fd());
                self.watcher.wait(&also, most);
            }
            if self.schedule.turns.len() > 1 && turned.elapsed() >= slice {
                turn = (turn + 1) % self.schedule.turns.len();
                let rounds = &mut self.rounds;
                let armed = self.watcher.arm(&self.schedule, turn, &mut |_, bytes| rounds.records(bytes));
                self.left_out += u64::from(armed.is_err());
                turned = Instant::now();
            }
            // Asked before the rings are read: what an ended target did is in them.
            let over = target.has_ended();
            let rounds = &mut self.rounds;
            self.watcher.drain(&mut |_, bytes| rounds.records(bytes));
            let events = self.rounds.flush();
            let mut judged = false;
            for event in events {
                judged |= matches!(event.1, Happened::Hit(_));
                if let Some(end) = self.take(event, lines, false) {
                    if let End::Stopped(hit) = &end {
                        // It may have been let go for an access of another thread, or nobody stopped it in the kernel.
                        target::signal(hit.pid, Signal::STOP);
                    }
                    return end;
                }
            }
            if judged && self.args.stop {
                // None of them was the one.
                target.signal(Signal::CONT);
            }
            if over {
                return End::Target;
            }
            if signals.came() {
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
            Happened::Hit(_) => self.read += 1,
            Happened::Child { pid, parent } => lines.child(pid, parent),
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

    fn finish(
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
            None => self.watcher.lost().max(self.rounds.lost),
        };
        let totals = table::Totals {
            hits: self.read,
            lost,
            strangers: self.watcher.counts().map_or(0, |counts| counts.strangers),
            elapsed_ns: self.watcher.coverage(&self.schedule).first().map_or(0, |armed| armed.all_ns),
        };
        let text = if self.args.json {
            format!("{}\n", table::summary(&self.ledger, &mut names, coverage.as_deref(), &totals))
        } else {
            table::text(&self.ledger, &mut names, coverage.as_deref())
        };
        let written = std::io::stdout().write_all(text.as_bytes());
        self.account(&totals, dropped);
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
            End::Target => target.end(false),
            End::Signal | End::Enough => target.end(true),
        };
        drop(self.watcher);
        written.or_else(
            |error| if error.kind() == std::io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) },
        )?;
        Ok(match exit {
            Some(Exit::Code(code)) => ExitCode::from(code as u8),
            Some(Exit::Signal(signal)) => ExitCode::from(128u8.wrapping_add(signal as u8)),
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
    fn account(&mut self, totals: &table::Totals, dropped: u64) {
        if self.args.quiet && totals.lost == 0 {
            return;
        }
        let threads: std::collections::BTreeSet<i32> =
            self.ledger.rows().iter().flat_map(|row| row.threads.keys().copied()).collect();
        let mut words = format!(
            "{} hit{} by {} thread{}",
            self.ledger.counted,
            if self.ledger.counted == 1 { "" } else { "s" },
            threads.len(),
            if threads.len() == 1 { "" } else { "s" }
        );
        if self.ledger.unmet > 0 {
            words.push_str(&format!(" of {} (the others did not meet the condition)", totals.hits));
        }
        match totals.lost {
            0 => words.push_str(", none lost"),
            lost => words.push_str(&format!(", {lost} LOST: the rings were full")),
        }
        eprintln!("[ kymo watch: {words} ]");
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
        also(self.rounds.damaged, "records could not be read");
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

/// The target stands still. A command of ours that would be without us is not left: the system would end it.
fn stay(target: Target, signals: &Signals) -> Option<Exit> {
    if matches!(target, Target::Running { .. }) {
        return None;
    }
    say("Ctrl-C ends the command");
    let mut target = target;
    while !target.has_ended() {
        let mut fds = [rustix::event::PollFd::new(&signals.told, rustix::event::PollFlags::IN)];
        let time = rustix::event::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        if rustix::event::poll(&mut fds, Some(&time)).unwrap_or(0) > 0 {
            target.signal(Signal::KILL);
        }
    }
    target.end(false)
}

/// What samples and records are laid out by.
fn attr(args: &WatchArgs) -> Attr {
    let chain = if args.call_graph { kymo_data::abi::PERF_SAMPLE_CALLCHAIN } else { 0 };
    Attr {
        sample_type: SAMPLE_TYPE | chain,
        flags: kymo_data::abi::ATTR_FLAG_SAMPLE_ID_ALL,
        ..Attr::default()
    }
}
