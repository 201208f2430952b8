//! `kymo inject`: a copy of a recording with build ids, or with call chains.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use kymo_cli::{exit, open};
use kymo_data::Recording;
use kymo_perf::proc;
use kymo_profile::build_ids::{self, FileBuildIds, Which};
use kymo_profile::inject::{self, Injection};
use kymo_profile::machine::{recorded_machine, symbol_options};
use kymo_record::write_whole;
use kymo_symbols::{RecordedMachine, SymbolOptions};

/// Copy a recording, with build ids of the files that its samples are in, or with call chains
#[derive(Debug, Args)]
pub(crate) struct InjectArgs {
    /// The recording: a file, a directory of `perf record --threads`, or - for stdin
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    input: PathBuf,

    /// Where the copy goes; - is stdout, in pipe form
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: PathBuf,

    /// Add the build ids of files that samples are in
    #[arg(short, long)]
    build_ids: bool,

    /// Add the build ids of all files that were mapped
    #[arg(long)]
    buildid_all: bool,

    /// Put build ids into the records of mappings, of files that samples are in
    #[arg(short = 'B', long)]
    mmap2_buildids: bool,

    /// Put build ids into the records of all mappings
    #[arg(long)]
    mmap2_buildid_all: bool,

    /// Put call chains in the place of copies of stacks (--call-graph dwarf of perf, --raw-stacks)
    #[arg(long)]
    convert_callchain: bool,

    /// Accepted for scripts written for perf: `kymo report` reads dumps of JIT compilers by itself
    #[arg(short, long)]
    jit: bool,

    /// Accepted for scripts written for perf
    #[arg(short, long)]
    force: bool,

    /// Say how many build ids were added
    #[arg(short, long)]
    verbose: bool,
}

/// Copies the recording.
pub(crate) fn run(args: InjectArgs) -> anyhow::Result<ExitCode> {
    let recording = open::recording(&args.input)?;
    let options = symbol_options(&recording, SymbolOptions::default());
    let from = FileBuildIds { read_files: true, kernel: kernel_build_id(&recording) };
    let modules = |hit: bool, all: bool| -> anyhow::Result<Vec<build_ids::ModuleBuildId>> {
        let which = match (hit, all) {
            (_, true) => Which::All,
            (true, false) => Which::Hit,
            (false, false) => return Ok(Vec::new()),
        };
        let mut found = build_ids::modules(&recording, which, &from, &options)
            .with_context(|| format!("failed to read {}", args.input.display()))?;
        found.retain(|module| !module.id.is_empty());
        Ok(found)
    };
    let injection = Injection {
        table: modules(args.build_ids, args.buildid_all)?,
        mappings: modules(args.mmap2_buildids, args.mmap2_buildid_all)?,
        unwind: args.convert_callchain,
    };
    if args.verbose {
        eprintln!("kymo: build ids of {} files", injection.table.len().max(injection.mappings.len()));
    }
    if args.output == Path::new("-") {
        let out = io::stdout();
        if rustix::termios::isatty(out.as_fd()) {
            bail!(
                "the copy of a recording is no text: name a file with `-o FILE`, or pipe it to another command"
            );
        }
        inject::inject_pipe(&recording, &injection, io::BufWriter::new(out.lock()))?;
    } else {
        write_whole(&args.output, |file| anyhow::Ok(inject::inject(&recording, &injection, file)?))
            .with_context(|| format!("failed to write {}", args.output.display()))?;
    }
    Ok(exit::of_reading(&recording, &[]))
}

/// The running kernel's build id, if the recording is of this kernel.
fn kernel_build_id(recording: &Recording) -> Option<Vec<u8>> {
    let same = recorded_machine(recording) == RecordedMachine::This;
    same.then(proc::kernel_build_id).flatten()
}
