//! `kymo script`: samples one by one.

use std::ffi::OsString;
use std::io::{self, BufWriter, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

use anyhow::{Context, bail};
use clap::Args;
use kymo_data::{Recording, abi};
use kymo_profile::load::LoadOptions;
use kymo_profile::script::{FieldRule, PythonScript, ScriptOptions, TimeBase, TimeFormat};
use kymo_profile::stat::is_count_recording;
use kymo_symbols::SymbolStore;

use super::filter::{self, FilterArgs};
use super::report::SymbolArgs;
use kymo_cli::{damage, exit, open, terminal};

/// Print the samples one by one, in order of time, as `perf script` does.
#[derive(Debug, Args)]
pub(crate) struct ScriptArgs {
    /// The recording: a file, a directory of `perf record --threads`, or - for stdin
    #[arg(short, long, value_name = "FILE", default_value = open::DEFAULT)]
    input: PathBuf,

    /// The recording, as a plain argument; with -s, what the script gets as its arguments
    #[arg(value_name = "FILE", trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,

    /// Run this Python script on the samples. It has perf's interface: functions `process_event`,
    /// `trace_begin`, `trace_end`, and one per tracepoint
    #[arg(short, long, value_name = "FILE.py")]
    script: Option<String>,

    /// What to print: comm, pid, tid, cpu, misc, time, period, event, trace, addr, ip, sym, symoff,
    /// dso, srcline, phys_addr, cgroup, iregs, uregs. With + or - before each: besides or without the usual ones.
    /// After hw:, sw:, trace: or raw: for events of that kind only
    #[arg(short = 'F', long, value_name = "FIELDS", allow_hyphen_values = true)]
    fields: Vec<String>,

    /// Only threads of these names
    #[arg(short = 'c', long, value_name = "NAMES", value_delimiter = ',')]
    comms: Vec<String>,

    /// Only samples in these functions
    #[arg(short = 'S', long, value_name = "NAMES", value_delimiter = ',')]
    symbols: Vec<String>,

    /// Only samples in these modules
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    dsos: Vec<String>,

    /// Show the recording's facts before the samples
    #[arg(long)]
    header: bool,

    /// Show the recording's facts and nothing else
    #[arg(long)]
    header_only: bool,

    /// Show more of the recording's facts: CPUs, nodes, caches
    #[arg(short = 'I', long)]
    show_info: bool,

    /// Show times in nanoseconds
    #[arg(long)]
    ns: bool,

    /// Show times since the first sample
    #[arg(long, conflicts_with = "deltatime")]
    reltime: bool,

    /// Show times since the sample before
    #[arg(long)]
    deltatime: bool,

    #[command(flatten)]
    records: RecordArgs,

    /// Leave out call chains
    #[arg(short = 'G', long)]
    hide_call_graph: bool,

    /// Do not show functions that the compiler inlined
    #[arg(long)]
    no_inline: bool,

    /// Show no more than this many frames of a call chain
    #[arg(long, value_name = "N", default_value_t = 127)]
    max_stack: usize,

    #[command(flatten)]
    filter: FilterArgs,

    #[command(flatten)]
    symbols_from: SymbolArgs,
}

/// Records other than samples.
#[derive(Debug, Args)]
struct RecordArgs {
    /// Print names, starts and ends of tasks, too
    #[arg(long)]
    show_task_events: bool,

    /// Print mappings, too
    #[arg(long)]
    show_mmap_events: bool,

    /// Print switches of tasks, too
    #[arg(long)]
    show_switch_events: bool,

    /// Print namespaces of tasks, too
    #[arg(long)]
    show_namespace_events: bool,

    /// Print what was lost, too
    #[arg(long)]
    show_lost_events: bool,

    /// Print the ends of rounds, too
    #[arg(long)]
    show_round_events: bool,

    /// Print BPF programs and symbols, too
    #[arg(long)]
    show_bpf_events: bool,

    /// Print names of cgroups, too
    #[arg(long)]
    show_cgroup_events: bool,

    /// Print changes of the kernel's code, too
    #[arg(long)]
    show_text_poke_events: bool,
}

impl RecordArgs {
    fn kinds(&self) -> Vec<u32> {
        use abi::*;
        let all: [(bool, &[u32]); 9] = [
            (self.show_task_events, &[PERF_RECORD_COMM, PERF_RECORD_FORK, PERF_RECORD_EXIT]),
            (self.show_mmap_events, &[PERF_RECORD_MMAP, PERF_RECORD_MMAP2]),
            (self.show_switch_events, &[PERF_RECORD_SWITCH, PERF_RECORD_SWITCH_CPU_WIDE]),
            (self.show_namespace_events, &[PERF_RECORD_NAMESPACES]),
            (self.show_lost_events, &[PERF_RECORD_LOST, PERF_RECORD_LOST_SAMPLES]),
            (self.show_round_events, &[PERF_RECORD_FINISHED_ROUND]),
            (self.show_bpf_events, &[PERF_RECORD_KSYMBOL, PERF_RECORD_BPF_EVENT]),
            (self.show_cgroup_events, &[PERF_RECORD_CGROUP]),
            (self.show_text_poke_events, &[PERF_RECORD_TEXT_POKE]),
        ];
        all.iter().filter(|(shown, _)| *shown).flat_map(|(_, kinds)| kinds.iter().copied()).collect()
    }
}

/// Prints the samples of a recording.
pub(crate) fn run(args: ScriptArgs) -> anyhow::Result<ExitCode> {
    let script = python_script(&args).map_err(exit::usage)?;
    let input = &match (&script, &args.words[..]) {
        (None, [file]) => PathBuf::from(file),
        _ => args.input.clone(),
    };
    let recording = open::recording(input)?;
    let options = options(&args, &recording).map_err(exit::usage)?;
    damage::tell(&recording.problems);
    let store = args.symbols_from.store(&recording);
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    if let Some(script) = script.filter(|_| !args.header_only) {
        return run_script(&recording, &options, &store, &script);
    }
    if args.header || args.header_only {
        let loss = super::loss::scan(&recording, input, 0, true)?;
        super::header::write(&mut out, &recording, input, &loss, args.show_info)?;
        if args.header_only {
            out.flush()?;
            return Ok(exit::of_reading(&recording, &loss.problems));
        }
    }
    let printed = kymo_profile::script::write(&recording, &options, &store, &mut out)
        .with_context(|| format!("failed to print {}", input.display()))?;
    out.flush().context("failed to write the samples")?;
    kymo_profile::unwind_samples::not_unwound(&recording).iter().for_each(|why| terminal::say(why));
    damage::tell(&printed.problems);
    if printed.samples == 0 && !is_count_recording(&recording) {
        let ScriptOptions { cpus, pids, tids, time, .. } = options;
        let load = LoadOptions { cpus, pids, tids, time, ..LoadOptions::default() };
        terminal::say(&filter::why_empty(&recording, &load));
    }
    Ok(exit::of_reading(&recording, &printed.problems))
}

/// The script of `-s` with its arguments.
fn python_script(args: &ScriptArgs) -> anyhow::Result<Option<PythonScript>> {
    let Some(name) = &args.script else {
        // What clap does not know is among the words, because those behind a script are its own.
        let is_option = |word: &&OsString| word.len() > 1 && word.as_encoded_bytes().starts_with(b"-");
        if let Some(option) = args.words.iter().find(is_option) {
            bail!("unexpected argument '{}'; see `kymo script --help`", option.display());
        }
        if let [_, more, ..] = &args.words[..] {
            bail!("unexpected argument '{}': one recording is printed", more.display());
        }
        return Ok(None);
    };
    // As perf: the language may stand before the file, or is told by the file's name.
    let (language, file) = match name.split_once(':') {
        Some((language, file)) => (language, file),
        None => (name.rsplit_once('.').map_or("", |(_, ending)| ending), &name[..]),
    };
    match language.to_lowercase().as_str() {
        "py" | "python" => {}
        "pl" | "perl" => bail!("-s {name}: kymo runs scripts in Python; `perf script -s` runs Perl"),
        _ => bail!("-s {name}: kymo runs scripts in Python, whose names end in .py"),
    }
    let path = PathBuf::from(file);
    if let Err(error) = std::fs::metadata(&path) {
        bail!("failed to read the script {file}: {error}");
    }
    Ok(Some(PythonScript { path, arguments: args.words.clone() }))
}

fn run_script(
    recording: &Recording,
    options: &ScriptOptions,
    store: &SymbolStore,
    script: &PythonScript,
) -> anyhow::Result<ExitCode> {
    // Ctrl-C ends the events: the script then prints what it has.
    let interrupted = kymo_cli::signals::interrupted()?;
    let stopped = || interrupted.load(Ordering::Relaxed);
    let run = kymo_profile::script::run_python(recording, options, store, script, &stopped)
        .with_context(|| format!("failed to run {}", script.path.display()))?;
    damage::tell(&run.problems);
    match (run.status.code(), run.status.signal()) {
        (Some(0), _) => Ok(exit::of_reading(recording, &run.problems)),
        (Some(code), _) => Ok(ExitCode::from(code as u8)),
        (None, signal) => bail!("{} was killed by signal {}", script.path.display(), signal.unwrap_or(0)),
    }
}

fn options(args: &ScriptArgs, recording: &Recording) -> anyhow::Result<ScriptOptions> {
    let fields = args.fields.iter().map(|text| text.parse()).collect::<Result<Vec<FieldRule>, _>>()?;
    let LoadOptions { cpus, pids, tids, time, .. } = args.filter.load(recording)?;
    let list = |words: &[String]| (!words.is_empty()).then(|| words.to_vec());
    let since = match (args.reltime, args.deltatime) {
        (true, _) => TimeBase::First,
        (_, true) => TimeBase::Previous,
        _ => TimeBase::Clock,
    };
    Ok(ScriptOptions {
        comms: list(&args.comms),
        symbols: list(&args.symbols),
        dsos: list(&args.dsos),
        records: args.records.kinds(),
        times: TimeFormat { nanoseconds: args.ns, since },
        fields,
        callchains: !args.hide_call_graph,
        inline: !args.no_inline,
        max_stack: args.max_stack,
        cpus,
        pids,
        tids,
        time,
    })
}
