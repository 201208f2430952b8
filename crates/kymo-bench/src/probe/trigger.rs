//! Probes in functions that do nothing, hit as fast as can be: what a hit costs, by who serves it, beside the bare call in the same run.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Barrier, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::{Args, ValueEnum};
use kymo_agent::patch::{
    self, Clock, Consumers, FilteredProbe, Function, Measure, OwnMemory, Rings, Surroundings,
};
use kymo_agent::trigger::Trigger;
use kymo_core::probe::value::{Compare, Operand, Test};
use kymo_core::probe::wire::ProbeAction;
use kymo_core::ring::Reader;
use kymo_perf::bpf::uprobe::{ReturnAction, UprobeOptions, UprobeScope, UprobeSite, Uprobes};
use kymo_perf::proc::{self, Mappings};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::{Value, json};

use crate::SCHEMA_VERSION;
use crate::needed;
use crate::stats::{Stats, median};
use kymo_cli::terminal;

const NAME: &str = "probe/trigger";
/// Calls between two looks at the flag that ends a round.
const BATCH: u64 = 1000;
/// Of each CPU's ring: some tens of milliseconds of events.
const RING_BYTES: u32 = 64 << 20;
/// How often rings are emptied.
const DRAIN: Duration = Duration::from_millis(1);

/// Hit probes of functions that begin with a nop, a push or a ret, by every engine
#[derive(Debug, Args)]
#[command(
    after_help = "Each line is an engine and a function; all threads hit the same one. Rounds of the engines and of the bare call alternate. +- is the standard\nerror of the mean; ns/hit is the median time of one thread, and behind it what is over the bare call.\n\nuprobe and uretprobe are the kernel's, as in its own bench; inproc engines patch the program.\n\nExample: kymo bench probe trigger -p 1,2,4 --engine uprobe,inproc-count"
)]
pub(crate) struct TriggerArgs {
    /// Threads, each on a CPU of its own as far as there are enough
    #[arg(short = 'p', long = "threads", value_name = "N,...", value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u32).range(1..=4096))]
    threads: Vec<u32>,
    /// Who serves [default: all that work here]
    #[arg(long = "engine", value_enum, value_name = "ENGINE,...", value_delimiter = ',')]
    engines: Vec<Engine>,
    /// What the functions begin with: nop, push, ret, nop5 [default: nop, push, ret]
    #[arg(long = "function", value_name = "NAME,...", value_delimiter = ',', value_parser = function)]
    functions: Vec<Trigger>,
    /// Milliseconds of a round
    #[arg(long, value_name = "MS", default_value = "100", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    round_ms: u64,
    /// Rounds of each
    #[arg(short, long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

fn function(name: &str) -> Result<Trigger, String> {
    let found = Trigger::ALL.into_iter().find(|trigger| trigger.name() == name);
    found.ok_or_else(|| "expected nop, push, ret or nop5".into())
}

/// Who serves the probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Engine {
    /// The kernel counts entries
    Uprobe,
    /// The kernel counts entries and returns
    Uretprobe,
    /// The kernel times calls
    UprobeLatency,
    /// The patched program counts entries
    InprocCount,
    /// The patched program counts entries and returns
    InprocRet,
    /// The patched program times calls
    InprocLatency,
    /// The patched program writes an event with a time into the ring of its CPU
    InprocRecord,
    /// The same with the registers of arguments
    InprocRecordArgs,
    /// The patched program counts entries that meet a condition, as all do here
    InprocIf,
    /// The patched program tells callers apart, by its handler
    InprocCallers,
}

impl Engine {
    const ALL: [Engine; 10] = [
        Engine::Uprobe,
        Engine::Uretprobe,
        Engine::UprobeLatency,
        Engine::InprocCount,
        Engine::InprocRet,
        Engine::InprocLatency,
        Engine::InprocRecord,
        Engine::InprocRecordArgs,
        Engine::InprocIf,
        Engine::InprocCallers,
    ];

    fn name(self) -> &'static str {
        match self {
            Engine::Uprobe => "uprobe",
            Engine::Uretprobe => "uretprobe",
            Engine::UprobeLatency => "uprobe-latency",
            Engine::InprocCount => "inproc-count",
            Engine::InprocRet => "inproc-ret",
            Engine::InprocLatency => "inproc-latency",
            Engine::InprocRecord => "inproc-record",
            Engine::InprocRecordArgs => "inproc-record-args",
            Engine::InprocIf => "inproc-if",
            Engine::InprocCallers => "inproc-callers",
        }
    }

    fn attach(self, trigger: Trigger) -> anyhow::Result<Attached> {
        let consumers = match self {
            Engine::Uprobe => return kernel(trigger, ReturnAction::Ignore),
            Engine::Uretprobe => return kernel(trigger, ReturnAction::Count),
            Engine::UprobeLatency => return kernel(trigger, ReturnAction::Time),
            Engine::InprocCount => Consumers::Count,
            Engine::InprocRet => Consumers::CountReturns,
            Engine::InprocLatency => Consumers::Latency,
            Engine::InprocRecord => Consumers::Record(rings()?.record(1)),
            Engine::InprocRecordArgs => Consumers::Record(rings()?.record(1).with_arguments()),
            Engine::InprocIf => {
                /// The stack pointer, which is not 0.
                const REGISTER: u8 = 4;
                let operand = Operand::register(REGISTER);
                let holds = Test::number(operand, Compare::NotEqual, 0);
                Consumers::Filtered(FilteredProbe::new(
                    Measure::Count,
                    ProbeAction { entry_condition: vec![vec![holds]], ..ProbeAction::default() },
                ))
            }
            Engine::InprocCallers => Consumers::Filtered(FilteredProbe::new(
                Measure::Count,
                ProbeAction { callers: true, ..ProbeAction::default() },
            )),
        };
        let memory = OwnMemory::open().context("failed to open /proc/self/mem")?;
        let start = trigger.address();
        let function = Function { start, bytes: trigger.length_bytes(), next: start + 64 };
        let site = patch::plan(&memory, &function, &Surroundings::default());
        let site = site.map_err(|refusal| anyhow::anyhow!("the site is refused: {refusal}"))?;
        Ok(Attached::Inproc(patch::attach(&[site], consumers)?))
    }
}

/// Where events go. Made once, because threads may write into them for good.
fn rings() -> anyhow::Result<&'static Rings> {
    static RINGS: OnceLock<&'static Rings> = OnceLock::new();
    if let Some(rings) = RINGS.get() {
        return Ok(rings);
    }
    // As recordings have them.
    let rings = Rings::create(RING_BYTES, Clock::TICKS).context("failed to make rings")?;
    Ok(RINGS.get_or_init(|| rings))
}

/// A probe that is attached.
enum Attached {
    Kernel(Uprobes),
    Inproc(Vec<patch::Probe>),
}

fn kernel(trigger: Trigger, returns: ReturnAction) -> anyhow::Result<Attached> {
    let (address, pid) = (trigger.address(), std::process::id() as i32);
    let maps = proc::maps(pid);
    let own = Mappings::new(&maps).find(|mapping| mapping.start <= address && address < mapping.end);
    let own = own.context("this program's own code is not mapped")?;
    let place = UprobeSite {
        path: std::env::current_exe().context("failed to find this program's own file")?,
        offset: address - own.start + own.offset,
        semaphore: None,
        returns,
        callers: false,
        condition: Vec::new(),
        return_condition: Vec::new(),
        values: None,
        return_values: None,
    };
    Ok(Attached::Kernel(Uprobes::attach(
        &[place],
        &UprobeScope::Processes(&[pid]),
        &UprobeOptions::default(),
    )?))
}

impl Attached {
    fn hits(&self) -> u64 {
        match self {
            Attached::Kernel(probes) => probes.read()[0].hits,
            Attached::Inproc(probes) => probes[0].hits(),
        }
    }

    /// Whether it writes events.
    fn records(&self) -> bool {
        matches!(self, Attached::Inproc(probes) if probes[0].lost().is_some())
    }

    /// Events that found no room in their ring.
    fn lost(&self) -> u64 {
        match self {
            Attached::Kernel(_) => 0,
            Attached::Inproc(probes) => probes[0].lost().unwrap_or(0),
        }
    }

    /// Makes room in the rings, if there are any to this probe.
    fn drain(&self) {
        let Attached::Inproc(probes) = self else { return };
        if let (Some(_), Ok(rings)) = (probes[0].lost(), rings()) {
            (0..rings.cpus()).for_each(|cpu| Reader::new(rings.area(cpu)).skip());
        }
    }

    fn detach(self) -> anyhow::Result<()> {
        match self {
            Attached::Kernel(probes) => drop(probes),
            Attached::Inproc(probes) => patch::detach(&probes)?,
        }
        Ok(())
    }
}

/// Lets threads hit until the time is over: of each, its hits and how long it hit.
fn round(
    trigger: Trigger,
    threads: u32,
    cpus: &[usize],
    time: Duration,
    attached: Option<&Attached>,
) -> Vec<(u64, Duration)> {
    let (stop, next, start) =
        (AtomicBool::new(false), AtomicUsize::new(0), Barrier::new(threads as usize + 1));
    let hit = || {
        // Relaxed: any number that nobody else has.
        let me = next.fetch_add(1, Ordering::Relaxed);
        let mut set = CpuSet::new();
        set.set(cpus[me % cpus.len()]);
        // Where it cannot be pinned it runs where it runs.
        _ = sched_setaffinity(None, &set);
        start.wait();
        let (since, mut batches) = (Instant::now(), 0);
        loop {
            trigger.call(BATCH);
            batches += 1;
            // Relaxed: late by a batch is no harm.
            if stop.load(Ordering::Relaxed) {
                break;
            }
        }
        (batches * BATCH, since.elapsed())
    };
    std::thread::scope(|scope| {
        let all: Vec<_> =
            (0..threads).map(|_| needed(std::thread::Builder::new().spawn_scoped(scope, hit))).collect();
        start.wait();
        let until = Instant::now() + time;
        while Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            std::thread::sleep(if attached.is_some() { left.min(DRAIN) } else { left });
            attached.iter().for_each(|attached| attached.drain());
        }
        stop.store(true, Ordering::Relaxed);
        all.into_iter().map(|thread| thread.join().expect("threads only call")).collect()
    })
}

/// What the rounds of one engine showed.
#[derive(Default)]
struct Line {
    millions: Stats,
    ns: Vec<f64>,
    /// Events that found no room in their ring.
    lost: u64,
    /// Why it is not measured.
    refused: Option<String>,
}

impl Line {
    fn add(&mut self, round: &[(u64, Duration)]) {
        let rates = round.iter().map(|(hits, time)| *hits as f64 / time.as_secs_f64());
        self.millions.add(rates.sum::<f64>() / 1e6);
        self.ns.extend(round.iter().map(|(hits, time)| time.as_nanos() as f64 / *hits as f64));
    }

    fn json(&self, bare_ns: f64) -> Value {
        let ns = median(&self.ns);
        json!({
            "millions_per_s": self.millions.mean(),
            "error": self.millions.error(),
            "ns_per_hit": ns,
            "over_bare_ns": ns - bare_ns,
            "lost": self.lost,
        })
    }
}

/// Runs the benchmark.
pub(crate) fn run(args: &TriggerArgs) -> anyhow::Result<ExitCode> {
    let cpus = sched_getaffinity(None).context("failed to ask for the CPUs of this thread")?;
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| cpus.is_set(*cpu)).collect();
    let asked = !args.engines.is_empty();
    let engines = if asked { args.engines.clone() } else { Engine::ALL.to_vec() };
    let functions =
        if args.functions.is_empty() { Trigger::ALL[..3].to_vec() } else { args.functions.clone() };
    let mut out = io::stdout().lock();
    if !args.json {
        writeln!(out, "# Running '{NAME}' benchmark:")?;
    }
    let mut results = Vec::new();
    for &trigger in &functions {
        for &threads in &args.threads {
            let (bare, lines) = measure(args, trigger, threads, &engines, &cpus)?;
            for (engine, line) in engines.iter().zip(&lines) {
                if let Some(refused) = &line.refused {
                    let sentence = format!("{} of {}: {refused}", engine.name(), trigger.name());
                    if asked {
                        bail!("{sentence}");
                    }
                    terminal::say(&format!("left out: {sentence}"));
                }
            }
            let measured = || engines.iter().zip(&lines).filter(|(_, line)| line.refused.is_none());
            let bare_ns = median(&bare.ns);
            if !args.json {
                write(&mut out, &format!("bare-{}", trigger.name()), threads, &bare, None)?;
                for (engine, line) in measured() {
                    write(
                        &mut out,
                        &format!("{}-{}", engine.name(), trigger.name()),
                        threads,
                        line,
                        Some(bare_ns),
                    )?;
                }
                out.flush()?;
            }
            let each: serde_json::Map<String, Value> =
                measured().map(|(engine, line)| (engine.name().to_owned(), line.json(bare_ns))).collect();
            results.push(json!({
                "function": trigger.name(),
                "threads": threads,
                "bare": bare.json(bare_ns),
                "engines": each,
            }));
        }
    }
    if args.json {
        let document = json!({
            "schema": "kymo-bench",
            "schema_version": SCHEMA_VERSION,
            "benchmark": NAME,
            "cpus": cpus.len(),
            "rounds": args.rounds,
            "round_ms": args.round_ms,
            "results": results,
        });
        serde_json::to_writer_pretty(&mut out, &document)?;
        writeln!(out)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Rounds of the bare call and of each engine by turns.
fn measure(
    args: &TriggerArgs,
    trigger: Trigger,
    threads: u32,
    engines: &[Engine],
    cpus: &[usize],
) -> anyhow::Result<(Line, Vec<Line>)> {
    let time = Duration::from_millis(args.round_ms);
    let mut bare = Line::default();
    let mut lines: Vec<Line> = engines.iter().map(|_| Line::default()).collect();
    for _ in 0..args.rounds {
        bare.add(&round(trigger, threads, cpus, time, None));
        for (engine, line) in engines.iter().zip(&mut lines).filter(|(_, line)| line.refused.is_none()) {
            let attached = match engine.attach(trigger) {
                Ok(attached) => attached,
                Err(error) => {
                    line.refused = Some(format!("{error:#}"));
                    continue;
                }
            };
            let before = attached.hits();
            let hits =
                round(trigger, threads, cpus, time, Some(&attached).filter(|attached| attached.records()));
            let (made, counted) = (hits.iter().map(|(hits, _)| hits).sum::<u64>(), attached.hits() - before);
            line.lost += attached.lost();
            attached.drain();
            attached.detach()?;
            ensure!(made == counted, "{} counted {counted} of {made} hits", engine.name());
            line.add(&hits);
        }
    }
    Ok((bare, lines))
}

fn write(out: &mut dyn Write, name: &str, threads: u32, line: &Line, bare_ns: Option<f64>) -> io::Result<()> {
    let (mean, error, ns) = (line.millions.mean(), line.millions.error(), median(&line.ns));
    let each = mean / f64::from(threads);
    let over = bare_ns.map_or_else(String::new, |bare| format!(" {:>+9.2} over bare", ns - bare));
    let lost = if line.lost > 0 { format!(", {} events lost", line.lost) } else { String::new() };
    writeln!(
        out,
        "{name:<23} ({threads:>2} cpus): {mean:>8.3} ± {error:.3}M/s ({each:>8.3}M/s/cpu) {ns:>9.2} ns/hit{over}{lost}"
    )
}
