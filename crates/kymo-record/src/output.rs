//! Where the recording goes: a fresh file that only its owner may read, the old one kept beside it, or a pipe.
//!
//! The file gets its name when its header is in it: whoever finds it can open it, even if the recorder was killed right then.
use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, openat};
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Where a recording goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// A file; an existing one becomes `PATH.old`.
    File(PathBuf),
    /// Standard output, in the pipe form.
    Stdout,
}

impl Output {
    /// `-` is standard output.
    pub fn parse(path: &Path) -> Output {
        if path.as_os_str() == "-" { Output::Stdout } else { Output::File(path.to_owned()) }
    }
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Output::File(path) => write!(f, "{}", path.display()),
            Output::Stdout => f.write_str("standard output"),
        }
    }
}

/// The output could not be made ready.
#[derive(Debug, thiserror::Error)]
#[error("failed to {action} {path}: {source}; `-o FILE` writes elsewhere")]
pub struct OutputError {
    /// What was tried.
    pub action: &'static str,
    /// On which path.
    pub path: PathBuf,
    /// Why not.
    pub source: io::Error,
}

/// An output that is ready to be written.
#[derive(Debug)]
pub(crate) enum Opened {
    /// A file with a header that can be brought up to date.
    File(Fresh),
    /// A stream.
    Pipe(File),
}

/// A file that may have no name yet.
#[derive(Debug)]
pub(crate) struct Fresh {
    file: File,
    path: PathBuf,
    named: bool,
}

impl Fresh {
    /// What to write to.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// The error of something that was tried on this file.
    pub(crate) fn error(&self, action: &'static str, source: io::Error) -> OutputError {
        OutputError { action, path: self.path.clone(), source }
    }

    /// Gives the file its name, now that it can be opened; what had the name before becomes `PATH.old`.
    pub(crate) fn name(self) -> Result<File, OutputError> {
        if !self.named {
            keep_old(&self.path)?;
            let own = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            linkat(CWD, own, CWD, &self.path, AtFlags::SYMLINK_FOLLOW)
                .map_err(|errno| self.error("create", errno.into()))?;
        }
        Ok(self.file)
    }
}

/// Makes the output ready.
pub(crate) fn open(output: &Output) -> Result<Opened, OutputError> {
    match output {
        Output::File(path) => open_file(path),
        Output::Stdout => {
            let fail = |source| OutputError { action: "write to", path: "standard output".into(), source };
            let copy = io::stdout().as_fd().try_clone_to_owned().map_err(fail)?;
            Ok(Opened::Pipe(File::from(copy)))
        }
    }
}

fn open_file(path: &Path) -> Result<Opened, OutputError> {
    let fail = |action, source| OutputError { action, path: path.to_owned(), source };
    let mut options = OpenOptions::new();
    options.write(true).read(true).mode(0o600);
    if let Ok(meta) = fs::metadata(path) {
        let kind = meta.file_type();
        if kind.is_fifo() || kind.is_socket() {
            let pipe = OpenOptions::new().write(true).open(path);
            return pipe.map(Opened::Pipe).map_err(|source| fail("open", source));
        }
        if kind.is_char_device() || kind.is_block_device() {
            let file = options.open(path).map_err(|source| fail("open", source))?;
            return Ok(Opened::File(Fresh { file, path: path.to_owned(), named: true }));
        }
    }
    if let Some(file) = nameless(path) {
        return Ok(Opened::File(Fresh { file, path: path.to_owned(), named: false }));
    }
    keep_old(path)?;
    let file = options.create_new(true).open(path).map_err(|source| fail("create", source))?;
    Ok(Opened::File(Fresh { file, path: path.to_owned(), named: true }))
}

/// A file in the folder of `path` that can be given that name; `None` where the file system has none such, or the folder is not there.
fn nameless(path: &Path) -> Option<File> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // It is through /proc that it gets a name.
    fs::metadata("/proc/self/fd").ok()?;
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    openat(CWD, folder, flags, Mode::RUSR | Mode::WUSR).ok().map(File::from)
}

/// Makes room for a new recording: the one that is there becomes `PATH.old`.
fn keep_old(path: &Path) -> Result<(), OutputError> {
    let fail = |action, path: &Path, source| OutputError { action, path: path.to_owned(), source };
    let Ok(meta) = fs::symlink_metadata(path) else { return Ok(()) };
    if !meta.is_dir() && meta.len() == 0 {
        // An empty file may have another owner or mode.
        return fs::remove_file(path).map_err(|source| fail("replace", path, source));
    }
    let mut old = path.as_os_str().to_owned();
    old.push(".old");
    let old = PathBuf::from(old);
    // A directory stands in the way of a rename; a file does not.
    if old.is_dir() && !old.is_symlink() {
        fs::remove_dir_all(&old).map_err(|source| fail("remove", &old, source))?;
    }
    if meta.is_dir() && old.exists() {
        fs::remove_file(&old).map_err(|source| fail("remove", &old, source))?;
    }
    fs::rename(path, &old).map_err(|source| fail("keep as .old the recording", path, source))
}

#[cfg(test)]
mod tests {
    use super::{Opened, open_file};
    use std::fs::{self, File};
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    fn open(path: &Path) -> File {
        match open_file(path).unwrap() {
            Opened::File(fresh) => fresh.name().unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// Checks that a file that was not named leaves nothing behind, and an older recording alone.
    #[test]
    fn a_file_without_a_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("perf.data");
        fs::write(&path, "earlier").unwrap();
        let opened = open_file(&path).unwrap();
        assert!(matches!(&opened, Opened::File(fresh) if !fresh.named), "{opened:?}");
        drop(opened);
        assert_eq!(fs::read(&path).unwrap(), b"earlier");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    /// Checks mode 0600 and that an old recording, a file or a directory, is kept as .old, whatever stood there before.
    #[test]
    fn old_recording_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let (path, old) = (directory.path().join("perf.data"), directory.path().join("perf.data.old"));
        open(&path);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(&path, "first").unwrap();
        open(&path);
        assert_eq!(fs::read(&old).unwrap(), b"first");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        fs::write(path.join("data"), "dir").unwrap();
        open(&path);
        assert_eq!(fs::read(old.join("data")).unwrap(), b"dir");
        fs::write(&path, "second").unwrap();
        open(&path);
        assert_eq!(fs::read(&old).unwrap(), b"second");
    }

    /// Checks that an error names the action and the path.
    #[test]
    fn errors() {
        let error = open_file("/no/such/directory/perf.data".as_ref()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "failed to create /no/such/directory/perf.data: No such file or directory (os error 2); `-o FILE` writes elsewhere"
        );
    }
}
