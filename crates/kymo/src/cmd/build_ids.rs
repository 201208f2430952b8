//! `kymo buildid-list`, `buildid-cache` and `archive`: the files of recordings by build id, and copies of them.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, bail};
use clap::Args;
use kymo_cli::{exit, open};
use kymo_perf::proc;
use kymo_profile::build_ids::{self, FileBuildIds, ModuleBuildId, Which};
use kymo_profile::text::shown;
use kymo_symbols::SymbolOptions;
use kymo_symbols::build_id_cache::{self, BuildIdCache, CacheEntry, CacheError, hex};

use super::filter::InputArgs;

/// List the files of a recording with their build ids
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    input: InputArgs,

    /// Only files that a sample or a caller is in
    #[arg(short = 'H', long)]
    with_hits: bool,

    /// Show the build id of the running kernel instead
    #[arg(short = 'k', long)]
    kernel: bool,

    /// Accepted for scripts written for perf: kymo reads recordings of every owner
    #[arg(short, long)]
    force: bool,
}

/// Keep copies of executables by build id, so that recordings can be read when the files have changed
#[derive(Debug, Args)]
pub(crate) struct CacheArgs {
    /// Copy these files into the cache
    #[arg(short, long, value_name = "FILES", value_delimiter = ',')]
    add: Vec<PathBuf>,

    /// Remove the copies of these files as they are now
    #[arg(short, long, value_name = "FILES", value_delimiter = ',')]
    remove: Vec<PathBuf>,

    /// Remove all copies that were made under these paths
    #[arg(short, long, value_name = "FILES", value_delimiter = ',')]
    purge: Vec<PathBuf>,

    /// Remove all copies
    #[arg(short = 'P', long)]
    purge_all: bool,

    /// Copy these files again
    #[arg(short, long, value_name = "FILES", value_delimiter = ',')]
    update: Vec<PathBuf>,

    /// List the files of this recording that are not in the cache
    #[arg(short = 'M', long, value_name = "RECORDING")]
    missing: Option<PathBuf>,

    /// List the cache
    #[arg(short, long)]
    list: bool,

    /// Say what is done with each file
    #[arg(short, long)]
    verbose: bool,

    /// Accepted for scripts written for perf
    #[arg(short, long)]
    force: bool,
}

/// Pack the files that a recording's samples are in, to read the recording on another machine
#[derive(Debug, Args)]
pub(crate) struct ArchiveArgs {
    #[command(flatten)]
    input: InputArgs,
}

/// As perf: the build id, or as many spaces, and the path.
fn write_modules(out: &mut dyn Write, modules: &[ModuleBuildId]) -> io::Result<()> {
    modules.iter().try_for_each(|module| {
        let path = String::from_utf8_lossy(&module.path).into_owned();
        writeln!(out, "{:40} {}", hex(&module.id), shown(&path))
    })
}

/// Prints build ids.
pub(crate) fn list(args: ListArgs) -> anyhow::Result<ExitCode> {
    let mut out = io::stdout().lock();
    if args.kernel {
        let id = proc::kernel_build_id();
        let id = id.context("/sys/kernel/notes has no build id: this kernel was built without one")?;
        writeln!(out, "{}", hex(&id))?;
        return Ok(ExitCode::SUCCESS);
    }
    let input = args.input.path();
    let options = SymbolOptions::default();
    if let Ok(id) = build_id_cache::build_id_of(input, &options) {
        writeln!(out, "{id}")?;
        return Ok(ExitCode::SUCCESS);
    }
    let recording = open::recording(input)?;
    let which = if args.with_hits { Which::Hit } else { Which::Listed };
    let modules = build_ids::modules(&recording, which, &FileBuildIds::default(), &options)
        .with_context(|| format!("failed to read {}", input.display()))?;
    write_modules(&mut out, &modules)?;
    Ok(exit::of_reading(&recording, &[]))
}

/// Changes or lists the cache.
pub(crate) fn cache(args: CacheArgs) -> anyhow::Result<ExitCode> {
    let options = SymbolOptions::default();
    let cache = BuildIdCache::of(&options)?;
    let said = |done: &str, id: &str, file: &Path| {
        if args.verbose {
            eprintln!("{done} {id} {}: Ok", file.display());
        }
    };
    let nothing = args.add.is_empty() && args.remove.is_empty() && args.purge.is_empty();
    if nothing && args.update.is_empty() && args.missing.is_none() && !args.list && !args.purge_all {
        return Ok(exit::misused(
            "buildid-cache",
            "name what to do: -a FILE, -r FILE, -p FILE, -P, -u FILE, -M RECORDING or -l",
        ));
    }
    let mut failed = false;
    let mut check = |done: anyhow::Result<()>| {
        if let Err(error) = done {
            failed = true;
            kymo_cli::terminal::say(&exit::with_causes(&error));
        }
    };
    for file in &args.update {
        check((|| {
            let id = build_id_cache::build_id_of(file, &options)?;
            cache.remove(&id)?;
            said("Updating", &cache.add(file, &options)?, file);
            Ok(())
        })());
    }
    for file in &args.add {
        check((|| {
            said("Adding", &cache.add(file, &options)?, file);
            Ok(())
        })());
    }
    for file in &args.remove {
        check((|| {
            let id = build_id_cache::build_id_of(file, &options)?;
            if !cache.remove(&id)? {
                bail!("{} is not in the cache", file.display());
            }
            said("Removing", &id, file);
            Ok(())
        })());
    }
    for file in &args.purge {
        check(purge(&cache, &|path| Path::new(path) == real_path(file)).map(|()| said("Purging", "", file)));
    }
    if args.purge_all {
        check(purge(&cache, &|_| true));
    }
    let mut out = io::BufWriter::new(io::stdout().lock());
    let mut code = ExitCode::SUCCESS;
    if let Some(input) = &args.missing {
        let recording = open::recording(input)?;
        let modules = build_ids::modules(&recording, Which::Listed, &FileBuildIds::default(), &options)?;
        let missing = modules.into_iter().filter(|module| cache.places(&hex(&module.id)).is_none());
        write_modules(&mut out, &missing.collect::<Vec<_>>())?;
        code = exit::of_reading(&recording, &[]);
    }
    if args.list {
        for CacheEntry { build_id, path } in cache.entries()? {
            writeln!(out, "{build_id} {}", shown(&path))?;
        }
    }
    out.flush()?;
    Ok(if failed { ExitCode::FAILURE } else { code })
}

fn real_path(file: &Path) -> PathBuf {
    std::fs::canonicalize(file).unwrap_or_else(|_| file.to_owned())
}

fn purge(cache: &BuildIdCache, wanted: &dyn Fn(&str) -> bool) -> anyhow::Result<()> {
    for entry in cache.entries()?.iter().filter(|entry| wanted(&entry.path)) {
        cache.remove(&entry.build_id)?;
    }
    Ok(())
}

/// Writes `RECORDING.tar.bz2`, which is unpacked into the cache of the other machine.
pub(crate) fn archive(args: ArchiveArgs) -> anyhow::Result<ExitCode> {
    let input = args.input.path();
    let recording = open::recording(input)?;
    let options = SymbolOptions::default();
    let cache = BuildIdCache::of(&options)?;
    let modules = build_ids::modules(&recording, Which::Hit, &FileBuildIds::default(), &options)
        .with_context(|| format!("failed to read {}", input.display()))?;
    let mut names = Vec::new();
    for module in modules.iter().filter(|module| !module.id.is_empty()) {
        let id = hex(&module.id);
        let path = PathBuf::from(String::from_utf8_lossy(&module.path).into_owned());
        // A file that has changed since, or is gone, is left out.
        match cache.keep(&path, &id, &options) {
            Ok(_) | Err(CacheError::NoBuildId(_)) => {}
            Err(CacheError::Io(_, error)) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
        match cache.places(&id) {
            Some((folder, link)) => names.extend([folder, link]),
            None => eprintln!(
                "kymo: {} is left out: the file with build id {id} is neither in the cache nor in its place",
                shown(&path.to_string_lossy())
            ),
        }
    }
    if names.is_empty() {
        bail!("{}: none of the files that its samples are in can be packed", input.display());
    }
    let mut target = input.as_os_str().to_owned();
    target.push(".tar.bz2");
    let target = PathBuf::from(target);
    pack(cache.root(), &names, &target)?;
    let mut out = io::stdout().lock();
    writeln!(out, "Now please run:\n\n$ tar xvf {} -C ~/.debug\n", target.display())?;
    writeln!(out, "wherever you need to run 'kymo report' or 'perf report' on.")?;
    Ok(exit::of_reading(&recording, &[]))
}

/// Packs names below a folder. tar writes into a pipe: what it is given as a name, it would follow as a link.
fn pack(root: &Path, names: &[PathBuf], target: &Path) -> anyhow::Result<()> {
    let mut tar = Command::new("tar");
    tar.args(["cjf", "-", "-C"]).arg(root).arg("--").args(names);
    let mut child = tar
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("failed to run tar, which packs the files: install tar and bzip2")?;
    let mut export = open::export(target)?;
    let copied = child.stdout.take().map(|mut from| io::copy(&mut from, &mut export));
    let status = child.wait().context("failed to wait for tar")?;
    copied.transpose().with_context(|| format!("failed to write {}", target.display()))?;
    if !status.success() {
        bail!("tar ended with {status}; it needs bzip2 to pack");
    }
    export.finish().with_context(|| format!("failed to write {}", target.display()))
}
