//! Opening a recording by the name a person gives: a file, a directory of `perf record --threads`, or `-` for stdin.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use kymo_data::{ReadAt, Recording};

/// The default name of a recording, as perf's.
pub(crate) const DEFAULT: &str = "perf.data";

/// Opens a recording.
pub(crate) fn recording(name: &Path) -> anyhow::Result<Recording> {
    let shown = name.display();
    if name == Path::new("-") {
        let file = spool(&mut io::stdin().lock())?;
        return Recording::open(Arc::new(file), Vec::new()).context("failed to read the recording on stdin");
    }
    let meta = match std::fs::metadata(name) {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound && name == Path::new(DEFAULT) => {
            bail!(
                "there is no {DEFAULT} here: record one with `kymo record -- COMMAND`, or name one with `-i FILE`"
            )
        }
        Err(error) => return Err(error).with_context(|| format!("failed to open {shown}")),
    };
    let (main, parts) = if meta.is_dir() { directory(name)? } else { (name.to_path_buf(), Vec::new()) };
    let open = |path: &Path| File::open(path).with_context(|| format!("failed to open {}", path.display()));
    let main: Arc<dyn ReadAt> = Arc::new(open(&main)?);
    let mut opened: Vec<(String, Arc<dyn ReadAt>)> = Vec::new();
    for part in parts {
        opened.push((part.display().to_string(), Arc::new(open(&part)?)));
    }
    Recording::open(main, opened).with_context(|| format!("failed to read {shown}"))
}

/// The files of a directory recording: `data`, and `data.N` in order of N.
fn directory(name: &Path) -> anyhow::Result<(PathBuf, Vec<PathBuf>)> {
    let main = name.join("data");
    if !main.is_file() {
        bail!(
            "{} is a directory without a file named `data`: a recording of `perf record --threads` has one; name a recording with `-i FILE`",
            name.display()
        );
    }
    let mut parts: Vec<(u64, PathBuf)> = Vec::new();
    for entry in std::fs::read_dir(name).with_context(|| format!("failed to list {}", name.display()))? {
        let path = entry?.path();
        let number = path.file_name().and_then(|n| n.to_str()).and_then(|n| n.strip_prefix("data."));
        if let Some(number) = number.and_then(|n| n.parse().ok()) {
            parts.push((number, path));
        }
    }
    parts.sort();
    Ok((main, parts.into_iter().map(|p| p.1).collect()))
}

/// A pipe's bytes in an unnamed temporary file, because reading takes two passes.
fn spool(from: &mut dyn Read) -> anyhow::Result<File> {
    let mut file =
        tempfile::tempfile().context("failed to make a temporary file for the recording on stdin")?;
    io::copy(from, &mut file).context("failed to copy the recording on stdin to a temporary file")?;
    Ok(file)
}
