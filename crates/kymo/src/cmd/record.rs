//! `kymo record`: run a command, or watch what runs already, and write a perf.data file.

use std::fmt::Display;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{anyhow, bail};
use kymo_cli::event_args::EventArgs;
use kymo_cli::exit;
use kymo_cli::signals::{self, Signals};
use kymo_cli::terminal::called_as;
use kymo_perf::explain;
use kymo_perf::machine::Machine;
use kymo_perf::selector::{self, Selected};
use kymo_perf::sys;
use kymo_probe::kernel_events::{self, KernelProbes};
use kymo_probe::memory_events::{self, RecordingTarget};
use kymo_probe::program_events::{self, ProgramOptions, ProgramProbes};
use kymo_profile::build_ids::Which;
use kymo_record::{
    Answer, CallGraph, ControlSpec, LastSnapshot, Limits, Options, Output, Rate, RecordError, RecordingClock,
    RecordingPlan, Session, SwitchRule,
};

use super::kept_files;
use super::switching::limits;

mod args;
mod end;
mod options;
mod perf_options;
mod values;

pub(crate) use args::RecordArgs;
use end::{SampledTime, finish};
use options::options;
pub(crate) use perf_options::RecordOptions;
/// Runs the verb.
pub(crate) fn run(mut args: RecordArgs) -> anyhow::Result<ExitCode> {
    let misused = |sentence: &dyn Display| Ok(exit::misused("record", sentence));
    let output = Output::parse(&args.output);
    if let Some(sentence) = misuse(&args, &output) {
        return misused(&sentence);
    }
    // Before a process is touched for a recording that has no place.
    if !args.dry_run {
        output.check()?;
    }
    let max_files = args.switch_max_files.map(|count| count as usize);
    let unwinding = matches!(args.call_graph, Some(CallGraph::Dwarf { .. }));
    let words = Words { quiet: args.quiet, verbose: args.verbose > 0, unwinding };
    if names_nothing(&args) {
        words.say("no command and no process is named: the whole machine is recorded (-a)");
        args.all = true;
    }
    let which = if args.buildid_all { Which::Listed } else { Which::Hit };
    let kept = (!args.no_buildid && !args.no_buildid_cache).then_some(which);
    // Before anything else is opened: a number that was not passed must not turn out to be a file of ours.
    let channel = match args.control.as_ref().map(ControlSpec::open).transpose() {
        Ok(channel) => channel.map(|channel| channel.on_answer(move |answer| words.answer(answer))),
        Err(error) => return misused(&error),
    };
    if args.delay == Some(-1) && channel.is_none() {
        words.say("-D -1 without --control: nothing will be sampled, because nothing can enable the events");
    }
    let ResolvedEvents { selected, guests, probes } = match events(&args, &words)? {
        Ok(events) => events,
        Err(error) => return misused(&error),
    };
    let (fail_on_loss, dry_run) = (args.fail_on_loss, args.dry_run);
    let by_time = samples_tasks_by_time(&args);
    let (switch, max_bytes, snapshot) = (args.switch_output, args.max_size, args.snapshot);
    // A file of several, of which there is one.
    let switch = switch.or(args.timestamp_filename.then(SwitchRule::default));
    let mut options = options(args, selected);
    guests.iter().for_each(|found| set_for_program(&mut options, found));
    let mut plan = RecordingPlan::resolve(options).map_err(|error| anyhow::anyhow!("{error}"))?;
    let limits = match limits(plan.keeps_newest(), snapshot.is_some(), switch, max_files, max_bytes) {
        Ok(limits) => limits,
        Err(wrong) => return misused(&wrong),
    };
    // Commands may switch events one by one.
    plan.open.events.iter_mut().for_each(|event| event.alone = channel.is_some());
    plan.notes.iter().for_each(|note| words.say(note));
    if dry_run {
        std::io::Write::write_fmt(&mut std::io::stdout().lock(), format_args!("{plan}"))?;
        return Ok(ExitCode::SUCCESS);
    }
    if words.verbose {
        eprint!("{plan}");
    }
    let signals = Signals::catch_once()?;
    let switches = limits.switch.is_some().then(signals::user_requests).transpose()?;
    let requests = plan.open.events.clone();
    let hz = rate_of(&plan).filter(|_| by_time);
    let began = Instant::now();
    let name = name_of(&output, &plan, limits);
    let rings = plan.open.targets.cpus.len();
    let descriptors = plan.descriptors();
    let guests = guests.map(|found| found.guests);
    let until = signals.as_fd();
    signals.end_when_silent("record", &name)?;
    let started = Session::start_with(plan, guests, Some(until)).and_then(|session| {
        let session = if let Some(channel) = channel { session.control(channel) } else { session };
        words.follow(session.limit(limits), switches).run(Some(until))
    });
    let elapsed = began.elapsed();
    let summary = match started {
        Ok(summary) => summary,
        Err(RecordError::Command { command, source }) => {
            eprintln!("kymo record: {}", explain::not_executed(&command, &source));
            return Ok(ExitCode::from(exit::NOT_STARTED));
        }
        Err(error @ (RecordError::Open(_) | RecordError::Ring(_) | RecordError::System { .. })) => {
            return Err(anyhow!("{}", error.explained(&requests, descriptors, rings)));
        }
        Err(error) if signals.last().is_some() => {
            words.say(&error.to_string());
            drop(probes);
            return Ok(exit::by_signal(signals.last().unwrap_or(0)));
        }
        Err(error) => bail!("{error}"),
    };
    // Nothing has them open any more, and what follows may end this process by a signal.
    drop(probes);
    if let Some(which) = kept.filter(|_| summary.write_error.is_none()) {
        kept_files::keep(&summary.files, which, " (-N: no copies)", &|text| words.say(text));
    }
    let sampled = hz.map(|hz| SampledTime { elapsed, hz });
    finish(summary, (&output, &name), &words, sampled, fail_on_loss, signals.last().unwrap_or(0))
}

/// Whether few samples mean that tasks waited: they are sampled by the default event, all the time.
fn samples_tasks_by_time(args: &RecordArgs) -> bool {
    let tasks_only = !args.all && args.cpus.is_none() && args.cgroups.is_empty();
    let is_default = args.events.texts.is_empty() && args.events.is_plain();
    tasks_only && is_default && !args.wall && args.delay.is_none() && args.control.is_none()
}

/// Samples per second of CPU time, unless they were chosen or only the newest are kept.
fn rate_of(plan: &RecordingPlan) -> Option<u64> {
    match plan.options.rate {
        Rate::Default(hz) if !plan.keeps_newest() => Some(hz),
        _ => None,
    }
}

/// Sets what events need that the program writes itself: of one process, which is entered for them.
fn set_for_program(options: &mut Options, found: &ProgramProbes) {
    options.user_rings = true;
    options.targets.children = false;
    options.clock = found.clock.or(options.clock);
    if found.alone {
        // The size that was asked for is that of the program's rings. In the kernel's are names and
        // mappings only, and of those none should be lost.
        options.ring_pages = None;
    }
}

/// Whether no command and nothing that runs is named.
fn names_nothing(args: &RecordArgs) -> bool {
    let tasks =
        !args.command.is_empty() || !args.pids.is_empty() || !args.tids.is_empty() || args.user.is_some();
    !tasks && args.cpus.is_none() && args.cgroups.is_empty() && !args.all
}

/// What is wrong with the arguments by themselves.
fn misuse(args: &RecordArgs, output: &Output) -> Option<String> {
    if let Some(refusal) = &args.perf.refusal {
        return Some(refusal.clone());
    }
    // Who types the verb alone wants to know what it takes.
    if names_nothing(args) && std::env::args_os().nth(2).is_none() {
        let sentence =
            "nothing to record: name a command, or use -p, -t, -u, -C, -G or -a; see `kymo record --help`";
        return Some(sentence.into());
    }
    if args.cgroups.iter().any(|name| Some(name) != args.cgroups.first()) {
        return Some(
            "-G takes one cgroup for all events; --all-cgroups records which cgroup each sample is of, for `kymo report -s cgroup`".into(),
        );
    }
    let many = [
        ("--timestamp-filename", args.timestamp_filename),
        ("--switch-output", args.switch_output.is_some()),
        ("--snapshot", args.snapshot.is_some()),
    ];
    let several = many.iter().find(|(_, given)| *given).filter(|_| !output.is_file());
    several.map(|(option, _)| format!("{option} needs files: name one with -o FILE"))
}

/// The events of a recording, and what makes some of them.
struct ResolvedEvents {
    selected: Vec<Selected>,
    /// Those that the program writes itself.
    guests: Option<ProgramProbes>,
    /// Tracepoints that are there as long as this is.
    probes: Option<KernelProbes>,
}

/// Resolves the events as typed; the inner error is one of their words.
fn events(args: &RecordArgs, words: &Words) -> anyhow::Result<Result<ResolvedEvents, String>> {
    let say = |sentence: &str| words.say(sentence);
    let whom = RecordingTarget { command: &args.command, pids: &args.pids, tids: &args.tids };
    let typed = with_requests(args, words);
    let named = memory_events::find(&typed, &whom, &say)?;
    let texts = named.as_ref().map_or(&typed, |named| &named.texts);
    let asked = ProgramOptions {
        engine: args.engine,
        condition: args.probe_condition.as_deref(),
        every: args.probe_every,
        options: program_events_fit(args),
        ring_bytes: args.ring_pages.map(|pages| pages * sys::page_size()),
        clock: args.clockid,
    };
    let guests = program_events::find(texts, &whom, &asked, &say)?;
    let texts = guests.as_ref().map_or(texts, |found| &found.texts);
    let probes = kernel_events::find(texts, &whom, &say)?;
    Ok(select(&args.events, probes.as_ref().map_or(texts, |probes| &probes.texts), &say).map(
        |mut selected| {
            named.iter().for_each(|named| named.rename(selected.iter_mut()));
            probes.iter().for_each(|probes| probes.rename(selected.iter_mut()));
            ResolvedEvents { selected, guests, probes }
        },
    ))
}

/// The events as typed, and those of the calls of the functions that handle requests.
fn with_requests(args: &RecordArgs, words: &Words) -> Vec<String> {
    let mut texts = args.events.texts.clone();
    if !args.requests.is_empty() && texts.is_empty() && args.events.is_plain() {
        let (event, note) = selector::default_event(&Machine::here());
        note.iter().for_each(|note| words.say(note));
        texts.push(event.name);
    }
    texts
        .extend(args.requests.iter().map(|function| format!("probe:'{function}',probe:'{function}%return'")));
    texts
}

/// What the recording is called in the last words: of several files each has its time behind the name.
fn name_of(output: &Output, plan: &RecordingPlan, limits: Limits) -> String {
    let plain = plan.keeps_newest() && plan.options.last_snapshot == LastSnapshot::Plain;
    match output {
        Output::File(path) if limits.switch.is_some() && !plain => format!("{}.<time>", path.display()),
        Output::File(path) => path.display().to_string(),
        Output::Stdout => "-".to_owned(),
        Output::Descriptor(number) => format!("/dev/fd/{number}"),
        Output::Memory => output.to_string(),
    }
}

/// What goes to stderr, and what does not.
#[derive(Clone, Copy)]
struct Words {
    quiet: bool,
    verbose: bool,
    /// It was asked how stacks are unwound: how that went is said, too.
    unwinding: bool,
}

impl Words {
    fn say(&self, text: &str) {
        if !self.quiet {
            eprintln!("kymo record: {text}");
        }
    }

    /// Says what a session has to say, now and whenever a file is done.
    fn follow(self, session: Session, switches: Option<UnixStream>) -> Session {
        let notes = session.notes().iter().filter(|note| note.is_notable() || self.verbose);
        notes.for_each(|note| self.say(&note.to_string()));
        session.plan().late_notes.iter().for_each(|note| self.say(note));
        let is_open_ended = session.plan().command.is_empty() && session.plan().options.duration.is_none();
        // Whoever looks at a terminal that says nothing does not know whether it began.
        if is_open_ended && std::io::stderr().is_terminal() {
            self.say("Ctrl-C ends the recording");
        }
        let Some(wanted) = switches else { return session };
        session.on_switch(wanted.into(), move |file, coverage| {
            if !self.quiet {
                // Scripts look for this line of perf's.
                eprintln!("[ {} record: Dump {} ]", called_as(), file.display());
                if let Some(coverage) = coverage {
                    eprintln!("[ kymo record: {coverage} ]");
                }
            }
        })
    }

    /// What the control channel says.
    fn answer(&self, answer: Answer<'_>) {
        match answer {
            Answer::Listing(line) => eprintln!("{line}"),
            Answer::Note(text) => self.say(text),
            _ => {}
        }
    }
}

/// Whether the program itself can write the events of such a recording; the error says why not.
fn program_events_fit(args: &RecordArgs) -> Result<(), &'static str> {
    match () {
        () if args.chains || args.call_graph.is_some_and(|mode| mode != CallGraph::None) => {
            Err("its events have no call chains")
        }
        () if args.clockid.is_some_and(|clock| clock != RecordingClock::MonotonicRaw) => {
            Err("it tells the time by the processor's counter, which is the clock raw (-k)")
        }
        () if args.overwrite || args.snapshot.is_some() => Err("a flight recorder's rings are the kernel's"),
        () if args.control.is_some() || args.delay.is_some_and(|ms| ms != 0) => {
            Err("its events cannot be switched on later")
        }
        () if !args.events.is_plain() => Err("its events have no --filter"),
        () if args.per_thread || args.no_samples || args.period_count.is_some() || args.data => {
            Err("its events are one sample for each hit of any thread")
        }
        () => Ok(()),
    }
}

/// The events that were asked for, or the default one.
pub(crate) fn select(
    args: &EventArgs,
    texts: &[String],
    say: &dyn Fn(&str),
) -> Result<Vec<Selected>, String> {
    let machine = Machine::here();
    if texts.is_empty() && args.is_plain() {
        let (event, note) = selector::default_event(&machine);
        if let Some(note) = note {
            say(&note);
        }
        return Ok(vec![event]);
    }
    let events = args.select(texts, &machine)?;
    match events.iter().find_map(|event| event.tool) {
        Some(tool) => {
            Err(format!("{tool} is measured by `kymo stat`, there is nothing to record; record task-clock"))
        }
        None => Ok(events),
    }
}
