//! Files by the names that a person gives: recordings to read (a file, a directory of `perf record --threads`, a pipe, or `-` for
//! stdin), and results to write.

use std::fs::File;
use std::io::{self, BufWriter, Read};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use kymo_data::{OpenError, ReadAt, Recording};
use kymo_files::{Export, Input};
use rustix::fs::{Dir, FlockOperation, flock};

use crate::damage;

/// How often a recording that is being made is opened: its recorder may finish it between two reads,
/// which looks like damage.
const MOST_LIVE_TRIES: u32 = 20;
const LIVE_PAUSE: Duration = Duration::from_millis(10);

/// The default name of a recording, as perf's.
pub const DEFAULT: &str = "perf.data";

/// Opens a recording. Whatever the name leads to is opened once, and judged by its descriptor. What
/// is damaged is printed at once, for all verbs.
pub fn recording(name: &Path) -> anyhow::Result<Recording> {
    let recording = own_recording(name)?;
    damage::tell_damage(&recording.problems);
    Ok(recording)
}

/// Opens a recording that this process has made; what it lacks is said by its maker.
///
/// # Errors
/// As [`recording`].
pub fn own_recording(name: &Path) -> anyhow::Result<Recording> {
    let shown = name.display();
    if name == Path::new("-") {
        let file = spool(&mut io::stdin().lock(), "stdin")?;
        return Recording::open(Arc::new(file), Vec::new()).context("failed to read the recording on stdin");
    }
    let input = match kymo_files::open_input(name) {
        Ok(input) => input,
        Err(error) if error.kind() == io::ErrorKind::NotFound && name == Path::new(DEFAULT) => {
            bail!(
                "there is no {DEFAULT} here: record one with `kymo record -- COMMAND`, or name one with `-i FILE`"
            )
        }
        Err(error) => {
            let remedy = remedy(name, &error).map_or_else(String::new, |remedy| format!(" ({remedy})"));
            return Err(error).with_context(|| format!("failed to open {shown}{remedy}"));
        }
    };
    let (main, parts) = match input {
        Input::File(file) => (file, Vec::new()),
        Input::Stream(mut stream) => (spool(&mut stream, &shown.to_string())?, Vec::new()),
        Input::Folder(folder) => directory(name, &folder)?,
    };
    opened_recording(main, parts).with_context(|| format!("failed to read {shown}"))
}

/// The recording in a file that is open, and in the other files of its directory. While a kymo still
/// records into the file, it says so, and takes up to 0.2 s if the recorder finishes meanwhile.
///
/// # Errors
/// What is wrong with the file.
pub fn opened_recording(main: File, parts: Vec<(String, File)>) -> Result<Recording, OpenError> {
    let is_live = is_being_written(&main);
    let main: Arc<dyn ReadAt> = Arc::new(main);
    let parts: Vec<_> =
        parts.into_iter().map(|(name, file)| (name, Arc::new(file) as Arc<dyn ReadAt>)).collect();
    let mut tries = if is_live { MOST_LIVE_TRIES } else { 1 };
    loop {
        tries -= 1;
        match Recording::open(Arc::clone(&main), parts.clone()) {
            Err(_) if tries > 0 => {}
            Ok(mut recording) if is_live => {
                recording.note_still_recording();
                if tries == 0 || !recording.problems.iter().any(|problem| problem.is_damage) {
                    return Ok(recording);
                }
            }
            opened => return opened,
        }
        std::thread::sleep(LIVE_PAUSE);
    }
}

/// Whether a kymo records into the file: it holds a lock on it until it ends, however that is.
fn is_being_written(file: &File) -> bool {
    let locked = flock(file, FlockOperation::NonBlockingLockShared);
    if locked.is_ok() {
        let _ = flock(file, FlockOperation::Unlock);
    }
    locked == Err(rustix::io::Errno::WOULDBLOCK)
}

/// What to do where a recording may not be read: many are made by root.
fn remedy(name: &Path, error: &io::Error) -> Option<String> {
    use std::os::unix::fs::MetadataExt as _;
    let stat = std::fs::metadata(name).ok().filter(|_| error.kind() == io::ErrorKind::PermissionDenied)?;
    let own = stat.uid() == rustix::process::geteuid().as_raw();
    (!own).then(|| {
        let owner = if stat.uid() == 0 { "root".to_owned() } else { format!("user {}", stat.uid()) };
        format!("it belongs to {owner}: use sudo, or `sudo chown $USER {}`", name.display())
    })
}

/// The files of a directory recording: `data`, and `data.N` in order of N.
fn directory(name: &Path, folder: &OwnedFd) -> anyhow::Result<(File, Vec<(String, File)>)> {
    let open = |file: &str| {
        Input::regular_in(folder, file).with_context(|| format!("failed to open {}/{file}", name.display()))
    };
    let main = match Input::regular_in(folder, "data") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => bail!(
            "{} is a directory without a file named `data`: a recording of `perf record --threads` has one; name a recording with `-i FILE`",
            name.display()
        ),
        _ => open("data")?,
    };
    let mut numbers: Vec<(u64, String)> = Vec::new();
    let list = || format!("failed to list {}", name.display());
    for entry in Dir::read_from(folder).with_context(list)? {
        let entry = entry.with_context(list)?;
        let Ok(file) = entry.file_name().to_str() else { continue };
        if let Some(number) = file.strip_prefix("data.").and_then(|number| number.parse().ok()) {
            numbers.push((number, file.to_owned()));
        }
    }
    numbers.sort();
    let path = |file: &str| name.join(file).display().to_string();
    let parts = numbers.into_iter().map(|(_, file)| Ok((path(&file), open(&file)?)));
    Ok((main, parts.collect::<anyhow::Result<_>>()?))
}

/// A pipe's bytes in an unnamed temporary file, because reading takes two passes.
fn spool(from: &mut dyn Read, name: &str) -> anyhow::Result<File> {
    let mut file = tempfile::tempfile()
        .with_context(|| format!("failed to make a temporary file for the recording on {name}"))?;
    io::copy(from, &mut file)
        .with_context(|| format!("failed to copy the recording on {name} to a temporary file"))?;
    Ok(file)
}

/// An unnamed file for a recording that is read once; it is gone when it is closed.
///
/// # Errors
/// The folder for temporary files takes none.
pub fn temporary() -> anyhow::Result<File> {
    tempfile::tempfile().context("failed to make a temporary file for the recording; -o FILE names one")
}

/// Why a file must not be replaced by a result.
pub fn keep_recording(old: &File) -> Option<&'static str> {
    let mut start = [0; 8];
    let read = rustix::io::pread(old, &mut start, 0).ok()?;
    kymo_data::is_recording(&start[..read])
        .then_some("it is a recording, which is not overwritten with a result; name another file")
}

/// Begins a result that is to be in a file of its own; see [`Export`]. A recording is never replaced by one.
pub fn export(path: &Path) -> anyhow::Result<Export> {
    Export::create(path, keep_recording).with_context(|| format!("failed to create {}", path.display()))
}

/// Gives a result its name, now that all of it is there.
///
/// # Errors
/// What could not be written.
pub fn finish(file: BufWriter<Export>, path: &Path) -> anyhow::Result<()> {
    let whole = file.into_inner().map_err(|error| error.into_error());
    whole.and_then(Export::finish).with_context(|| format!("failed to write {}", path.display()))
}
