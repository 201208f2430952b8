//! `kymo version` and `kymo check`: what this kymo can do, in the words of perf's features.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use kymo_cli::exit;

/// Print the version
#[derive(Debug, Args)]
pub(crate) struct VersionArgs {
    /// Print what kymo was built with, too, by the names that perf has for it
    #[arg(long)]
    build_options: bool,
}

/// Check whether a feature is built in, by the names that perf has for them
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    #[command(subcommand)]
    subject: CheckSubject,
}

#[derive(Debug, Subcommand)]
enum CheckSubject {
    /// Features, such as dwarf or zstd
    Feature(FeatureArgs),
}

#[derive(Debug, Args)]
struct FeatureArgs {
    /// The features
    #[arg(value_name = "NAMES", value_delimiter = ',', required = true)]
    names: Vec<String>,

    /// Say nothing: the exit code is 0 if all are there, else 1
    #[arg(short, long)]
    quiet: bool,
}

/// perf's names of features: whether kymo has what they stand for, and with what.
const FEATURES: [(&str, bool, &str); 24] = [
    ("aio", false, "kymo writes with io_uring"),
    ("bpf", true, "the kernel's BPF, without libbpf"),
    ("bpf_skeletons", true, "programs that kymo assembles itself"),
    ("debuginfod", false, "not asked"),
    ("dwarf", true, "gimli"),
    ("dwarf_getlocations", true, "gimli"),
    ("dwarf-unwind", true, "kymo's own unwinder"),
    ("auxtrace", false, "no decoders of hardware traces"),
    ("libbfd", false, "not needed"),
    ("babeltrace2-ctf-writer", false, "no CTF"),
    ("libcapstone", false, "no disassembler"),
    ("libelf", true, "object"),
    ("libLLVM", false, "no disassembler"),
    ("libnuma", false, "not needed"),
    ("libopencsd", false, "no decoders of hardware traces"),
    ("libperl", false, "no Perl scripts"),
    ("libpfm4", false, "events by the kernel's names"),
    ("libpython", false, "no Python scripts inside of kymo"),
    ("libslang", false, "no terminal browser"),
    ("libtraceevent", true, "kymo's own parser"),
    ("libunwind", false, "kymo's own unwinder"),
    ("lzma", false, "not needed"),
    ("zlib", true, "flate2, for compressed debug information"),
    ("zstd", true, "zstd"),
];

fn write_feature(out: &mut dyn Write, (name, built_in, with): (&str, bool, &str)) -> io::Result<()> {
    let state = if built_in { "on " } else { "OFF" };
    writeln!(out, "{name:>22}: [ {state} ]  # {with}")
}

/// Prints the version.
pub(crate) fn version(args: VersionArgs) -> anyhow::Result<ExitCode> {
    let mut out = io::stdout().lock();
    writeln!(out, "kymo version {}", env!("CARGO_PKG_VERSION"))?;
    if args.build_options {
        FEATURES.into_iter().try_for_each(|feature| write_feature(&mut out, feature))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints whether features are there.
pub(crate) fn check(args: CheckArgs) -> anyhow::Result<ExitCode> {
    let CheckSubject::Feature(FeatureArgs { names, quiet }) = args.subject;
    let mut out = io::stdout().lock();
    let mut all = true;
    for name in &names {
        let Some(feature) = FEATURES.iter().find(|(known, ..)| known.eq_ignore_ascii_case(name)) else {
            return Err(exit::usage(anyhow::anyhow!(
                "unknown feature '{name}': `kymo version --build-options` lists them"
            )));
        };
        all &= feature.1;
        if !quiet {
            write_feature(&mut out, *feature)?;
        }
    }
    Ok(if all { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
