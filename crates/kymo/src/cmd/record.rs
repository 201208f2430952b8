//! `kymo record`: run a command, or watch what runs already, and write a perf.data file.

use std::ffi::OsString;
use std::fmt::Display;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{anyhow, bail};
use clap::Args;
use kymo_perf::explain;
use kymo_perf::machine::Machine;
use kymo_perf::selector::{self, Selected};
use kymo_perf::sys;
use kymo_perf::{caps, evlist};
use kymo_record::{
    Answer, CallGraph, ControlSpec, Delay, LastSnapshot, Limits, Options, Output, Overload, Rate,
    RecordError, RecordingClock, RecordingPlan, Scope, Session, SwitchRule, TargetSpec,
};

use super::probe::engines;
use super::switching::{Snapshot, limits, parse_snapshot, parse_switch};
use kymo_cli::exit;
use kymo_probe::engine::Choice;
use kymo_probe::kernel_events::{self, KernelProbes};
use kymo_probe::memory_events::{self, RecordingTarget};
use kymo_probe::program_events::{self, ProgramOptions, ProgramProbes};

mod end;

use end::finish;
use kymo_cli::parse::{
    Cpus, parse_call_graph, parse_clock, parse_cpus, parse_events, parse_frequency, parse_overload,
    parse_ring, parse_scope, parse_size, parse_user,
};
use kymo_cli::signals::{self, Signals};

/// Samples per second when nothing is said: not a round number, so that it does not march in step with timers.
const DEFAULT_FREQUENCY: u64 = 999;

/// Record a command, or what runs already, into a perf.data file.
#[derive(Debug, Default, Args)]
#[command(
    after_help = "Examples:\n  kymo record -- ./program arg       a program and its children\n  kymo record -p 1234                a process that runs, until it ends or Ctrl-C\n  kymo record -a -- sleep 10         the whole machine for ten seconds\n  kymo record --call-graph dwarf -- ./program-without-frame-pointers"
)]
pub(crate) struct RecordArgs {
    /// What to sample, in perf's words: cycles, page-faults:u, sched:sched_switch, mem:0x1000/8:w, mem:VARIABLE:w (any place of kymo watch), probe:FUNCTION (any probe of kymo probe), {a,b}, cpu/event=0x3c/; may be given several times [default: cycles, or cpu-clock where there is no hardware counter]
    #[arg(short, long = "event", value_name = "EVENT")]
    pub(super) events: Vec<String>,
    /// Sample so many times per second, or `max` [default: 999]
    #[arg(short = 'F', long = "freq", value_name = "HZ", value_parser = parse_frequency, conflicts_with = "period_count")]
    pub(super) frequency: Option<u64>,
    /// Sample every so many events instead
    #[arg(short = 'c', long = "count", value_name = "EVENTS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) period_count: Option<u64>,
    /// Record call chains (this is the default)
    #[arg(short = 'g')]
    pub(super) chains: bool,
    /// How to record call chains: `fp` along frame pointers, `dwarf[,BYTES]` by unwind tables, from a copy of so much of the stack, or `auto`, by unwind tables from copies as large as the load permits, where events sample by time, and along frame pointers elsewhere [default: auto]
    #[arg(long, value_name = "MODE", value_parser = parse_call_graph)]
    pub(super) call_graph: Option<CallGraph>,
    /// Keep the copies of stacks, for the report to unwind, instead of unwinding them while recording
    #[arg(long)]
    pub(super) raw_stacks: bool,
    /// Record no call chains
    #[arg(long, conflicts_with_all = ["chains", "call_graph"])]
    pub(super) no_call_graph: bool,
    /// Size of each ring buffer: a number of pages, or bytes with B, K, M or G; rounded up to a power of two (where a program writes all events itself: of its rings)
    #[arg(short = 'm', long = "mmap-pages", value_name = "SIZE", value_parser = parse_ring)]
    pub(super) ring_pages: Option<usize>,
    /// Where to write; a recording that is there becomes FILE.old, anything else is left alone; - is standard output (what the command prints goes to standard error then)
    #[arg(short, long, value_name = "FILE", default_value = "perf.data")]
    pub(super) output: PathBuf,
    /// Record these processes
    #[arg(short, long = "pid", value_name = "PID", value_delimiter = ',')]
    pub(super) pids: Vec<i32>,
    /// Record these threads (and not what they start)
    #[arg(short, long = "tid", value_name = "TID", value_delimiter = ',')]
    pub(super) tids: Vec<i32>,
    /// Record everything on this machine
    #[arg(short, long = "all-cpus")]
    pub(super) all: bool,
    /// Record everything on these CPUs: 0-2,5
    #[arg(short = 'C', long = "cpu", value_name = "CPUS", value_parser = parse_cpus)]
    pub(super) cpus: Option<Cpus>,
    /// Record all processes of this user (name or number)
    #[arg(short, long = "uid", value_name = "USER", value_parser = parse_user)]
    pub(super) user: Option<u32>,
    /// Record data addresses too, and mappings of data
    #[arg(short, long)]
    pub(super) data: bool,
    /// Record context switches too
    #[arg(long)]
    pub(super) switch_events: bool,
    /// Begin to sample so many milliseconds after the start; -1: not at all
    #[arg(short = 'D', long, value_name = "MS", allow_negative_numbers = true)]
    pub(super) delay: Option<i64>,
    /// Read commands from a descriptor or fifo while recording, one per line: `enable [EVENT]`, `disable [EVENT]`, `ping`, `stop`, `snapshot`, `evlist [-v|-g|-F]`; write "ack" to the second one for each. With `-D -1` recording begins with `enable`
    #[arg(long, value_name = "fd:CTL[,ACK]|fifo:PATH[,PATH]", value_parser = ControlSpec::parse)]
    pub(super) control: Option<ControlSpec>,
    /// One ring buffer per thread instead of one per CPU; children are not followed
    #[arg(long)]
    pub(super) per_thread: bool,
    /// How to bind events to what is recorded: cgroup, filtered, inherit or thread-cpu [default: the cheapest that is permitted; --dry-run lists them]
    #[arg(long, value_name = "SCOPE", value_parser = parse_scope)]
    pub(super) scope: Option<Scope>,
    /// Open events with so many workers; 1: one after the other [default: by their number]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(super) jobs: Option<u16>,
    /// Do not follow children
    #[arg(short = 'i', long)]
    pub(super) no_inherit: bool,
    /// The clock of times: mono, raw, boot, real, tai
    #[arg(short = 'k', long, value_name = "CLOCK", value_parser = parse_clock)]
    pub(super) clockid: Option<RecordingClock>,
    /// End the recording when its file has this size: bytes, or with B, K, M, G
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(super) max_size: Option<u64>,
    /// Go on in another file on SIGUSR2, and when one has this size (with B, K, M, G) or age (with s, m, h, d); each is named FILE.TIME when it is done, and is a recording by itself
    #[arg(long, value_name = "signal|SIZE|TIME", num_args = 0..=1, require_equals = true, default_missing_value = "signal", value_parser = parse_switch)]
    pub(super) switch_output: Option<SwitchRule>,
    /// Keep the latest so many of those files, or snapshots
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) switch_max_files: Option<u32>,
    /// Be a flight recorder: rings keep the newest samples and overwrite the oldest, and nothing is written until SIGUSR2 (or the command snapshot of --control, or --switch-output=TIME), which makes a file FILE.TIME of what the rings hold; at the end it goes to FILE. -m says how much that is; the event terms overwrite and no-overwrite say it for single events
    #[arg(long, conflicts_with = "max_size")]
    pub(super) overwrite: bool,
    /// As --overwrite, without a file at the end; =e: with one, as another snapshot
    #[arg(short = 'S', long, value_name = "e", num_args = 0..=1, require_equals = true, default_missing_value = "", value_parser = parse_snapshot, conflicts_with = "max_size")]
    pub(super) snapshot: Option<Snapshot>,
    /// Compress the recording with zstd [level 1 to 22, default 1]
    #[arg(short = 'z', long = "compression-level", value_name = "LEVEL", num_args = 0..=1, require_equals = true, default_missing_value = "1", value_parser = clap::value_parser!(i32).range(1..=22))]
    pub(super) compress: Option<i32>,
    /// Record the raw bytes of all events (tracepoints always have them)
    #[arg(short = 'R', long)]
    pub(super) raw_samples: bool,
    /// Accepted as in perf; kymo keeps no cache of build IDs
    #[arg(short = 'N', long)]
    pub(super) no_buildid_cache: bool,
    /// Do not store the build IDs of programs and libraries
    #[arg(short = 'B', long)]
    pub(super) no_buildid: bool,
    /// Accepted as in perf; samples always have a time
    #[arg(short = 'T', long)]
    pub(super) timestamp: bool,
    /// Count per thread
    #[arg(short, long)]
    pub(super) stat: bool,
    /// Record the period of each sample, also where it is fixed
    #[arg(short = 'P', long)]
    pub(super) period: bool,
    /// Record the CPU of each sample, also where it is not needed
    #[arg(long)]
    pub(super) sample_cpu: bool,
    /// Take no samples, only count
    #[arg(short, long)]
    pub(super) no_samples: bool,
    /// End with an error if anything was lost, or with a percentage, if more of the samples than that were
    #[arg(long, value_name = "PERCENT", num_args = 0..=1, require_equals = true, value_parser = super::filter::percent)]
    pub(super) fail_on_loss: Option<Option<f64>>,
    /// What gives way when samples come faster than they can be kept: slow (the target, kymo runs before it), drop (samples are lost and counted, kymo takes no priority) or pause (the target stands still while kymo catches up; the recording shows when) [default: slow]
    #[arg(long, value_name = "WHAT", value_parser = parse_overload)]
    pub(super) overload: Option<Overload>,
    /// Rings and buffers together take at most so much memory: bytes, or with K, M, G [default: the rings and at most 128M of buffers, or two for each CPU where that is more]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(super) max_memory: Option<u64>,
    /// Who writes the events of probe:FUNCTION: kernel, inproc (the program itself, patched by kymo; of one process with -p, without call chains) or auto (whoever is fastest)
    #[arg(long, value_parser = engines(), value_name = "ENGINE", default_value = "kernel")]
    pub(super) engine: Choice,
    /// Of `kymo probe -o` only: hits of which this holds
    #[arg(skip)]
    pub(super) probe_condition: Option<String>,
    /// Of `kymo probe -o` only: one of so many hits
    #[arg(skip)]
    pub(super) probe_every: u32,
    /// Print nothing but errors
    #[arg(short, long)]
    pub(super) quiet: bool,
    /// Print what was decided
    #[arg(short, long)]
    pub(super) verbose: bool,
    /// Print what would be recorded, and end
    #[arg(long)]
    pub(super) dry_run: bool,
    /// The command to record, with its arguments
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,
}

/// Runs the verb.
pub(crate) fn run(args: RecordArgs) -> anyhow::Result<ExitCode> {
    let misused = |sentence: &dyn Display| Ok(exit::misused("record", sentence));
    if args.command.is_empty()
        && args.pids.is_empty()
        && args.tids.is_empty()
        && args.user.is_none()
        && args.cpus.is_none()
        && !args.all
    {
        return misused(
            &"nothing to record: name a command, or use -p, -t, -u, -C or -a; see `kymo record --help`",
        );
    }
    let output = Output::parse(&args.output);
    let many = [("--switch-output", args.switch_output.is_some()), ("--snapshot", args.snapshot.is_some())];
    if let Some((option, _)) = many.iter().find(|(_, given)| *given)
        && !output.is_file()
    {
        return misused(&format!("{option} needs files: name one with -o FILE"));
    }
    // Before a process is touched for a recording that has no place.
    if !args.dry_run {
        output.check()?;
    }
    let max_files = args.switch_max_files.map(|count| count as usize);
    let unwinding = matches!(args.call_graph, Some(CallGraph::Dwarf { .. }));
    let words = Words { quiet: args.quiet, verbose: args.verbose, unwinding };
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
    let (switch, max_bytes, snapshot) = (args.switch_output, args.max_size, args.snapshot);
    let mut options = options(args, selected);
    if let Some(found) = &guests {
        options.user_rings = true;
        options.clock = found.clock.or(options.clock);
        if found.alone {
            // The size that was asked for is that of the program's rings. In the kernel's are names and mappings only, and of those none should be lost.
            options.ring_pages = None;
        }
    }
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
    signals::survive_file_limits()?;
    let switches = limits.switch.is_some().then(signals::user_requests).transpose()?;
    let requests = plan.open.events.clone();
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
    let summary = match started {
        Ok(summary) => summary,
        Err(RecordError::Command { command, source }) => {
            eprintln!("kymo record: failed to execute {command}: {source}{}", explain::exec_advice(&source));
            return Ok(ExitCode::from(exit::NOT_STARTED));
        }
        Err(error @ (RecordError::Open(_) | RecordError::Ring(_) | RecordError::System { .. })) => {
            return Err(explained(error, &requests, descriptors, rings));
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
    finish(summary, (&output, &name), &words, fail_on_loss, signals.last().unwrap_or(0))
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
    let named = memory_events::find(&args.events, &whom, &say)?;
    let texts = named.as_ref().map_or(&args.events, |named| &named.texts);
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
    Ok(select(probes.as_ref().map_or(texts, |probes| &probes.texts), words).map(|mut selected| {
        named.iter().for_each(|named| named.rename(selected.iter_mut()));
        probes.iter().for_each(|probes| probes.rename(selected.iter_mut()));
        ResolvedEvents { selected, guests, probes }
    }))
}

/// What the system refused, with what helps.
fn explained(
    error: RecordError,
    requests: &[evlist::Request],
    descriptors: u64,
    rings: usize,
) -> anyhow::Error {
    match error {
        RecordError::Open(error) => anyhow!("{}", explain::explain_list(&error, requests, Some(descriptors))),
        RecordError::Ring(error) if !error.redirect => {
            let errno = error.source.raw_os_error().unwrap_or(0);
            let bytes = (error.pages * sys::page_size()) as u64;
            anyhow!("{}", explain::explain_map(errno, &error.event, bytes, rings as u64, &caps::probe()))
        }
        RecordError::System { action, source } => {
            anyhow!("failed to {action}: {source}{}", explain::limit_advice(&source))
        }
        error => anyhow!("{error}"),
    }
}

/// What the recording is called in the last words: of several files each has its time behind the name.
fn name_of(output: &Output, plan: &RecordingPlan, limits: Limits) -> String {
    let plain = plan.keeps_newest() && plan.options.last_snapshot == LastSnapshot::Plain;
    match output {
        Output::File(path) if limits.switch.is_some() && !plain => format!("{}.<time>", path.display()),
        Output::File(path) => path.display().to_string(),
        Output::Stdout => "-".to_owned(),
        Output::Descriptor(number) => format!("/dev/fd/{number}"),
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
        let Some(wanted) = switches else { return session };
        session.on_switch(wanted.into(), move |file, coverage| {
            if !self.quiet {
                // Scripts look for this line of perf's.
                eprintln!("[ kymo record: Dump {} ]", file.display());
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
        () if args.per_thread || args.no_samples || args.period_count.is_some() || args.data => {
            Err("its events are one sample for each hit of any thread")
        }
        () => Ok(()),
    }
}

/// The events that were asked for, or the default one.
fn select(texts: &[String], words: &Words) -> Result<Vec<Selected>, String> {
    let machine = Machine::here();
    if texts.is_empty() {
        let (event, note) = selector::default_event(&machine);
        if let Some(note) = note {
            words.say(&note);
        }
        return Ok(vec![event]);
    }
    parse_events(texts, &machine)
}

fn options(args: RecordArgs, events: Vec<Selected>) -> Options {
    let rate = match (args.frequency, args.period_count) {
        (Some(hz), _) => Rate::Frequency(hz),
        (_, Some(events)) => Rate::Period(events),
        _ => Rate::Default(DEFAULT_FREQUENCY),
    };
    let call_graph =
        if args.no_call_graph { CallGraph::None } else { args.call_graph.unwrap_or(CallGraph::Auto) };
    let delay = args
        .delay
        .filter(|&ms| ms != 0)
        .map(|ms| u64::try_from(ms).map_or(Delay::Disabled, |ms| Delay::After(Duration::from_millis(ms))));
    Options {
        events,
        rate,
        call_graph,
        targets: TargetSpec {
            command: args.command,
            pids: args.pids,
            tids: args.tids,
            uid: args.user,
            all: args.all,
            cpus: args.cpus.map_or_else(Vec::new, |cpus| cpus.0),
            per_thread: args.per_thread,
        },
        scope: args.scope,
        jobs: args.jobs.map(usize::from),
        inherit: args.no_inherit.then_some(false),
        ring_pages: args.ring_pages,
        data: args.data,
        switch_events: args.switch_events,
        overwrite: args.overwrite || args.snapshot.is_some(),
        last_snapshot: match (args.snapshot, args.switch_output) {
            (Some(Snapshot { at_end: false }), _) => LastSnapshot::Not,
            (None, None) => LastSnapshot::Plain,
            _ => LastSnapshot::Dated,
        },
        raw: args.raw_samples,
        sample_cpu: args.sample_cpu,
        period: args.period,
        counts: args.stat,
        raw_stacks: args.raw_stacks,
        no_samples: args.no_samples,
        delay,
        clock: args.clockid,
        compress: args.compress,
        overload: args.overload.unwrap_or_default(),
        max_memory_bytes: args.max_memory,
        build_ids: !args.no_buildid,
        user_rings: false,
        output: Output::parse(&args.output),
        cmdline: std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect(),
        version: format!("kymo {}", env!("CARGO_PKG_VERSION")),
    }
}
