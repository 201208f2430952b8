//! The output: a new file that only its owner may read, with the old one kept beside it, or a pipe.
//!
//! The file gets its name when the recording has begun ([`Naming::publish`]): a failure before
//! that leaves the old recording in place. A file under its final name always opens, even if the
//! recorder was killed right then.
use crate::channel::timespec;
use crate::disk::{Stream, UnderWay};
use crate::previous;
use kymo_files::{Folder, Fresh, Identity, kind_name, passed_descriptor};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{
    AtFlags, CWD, FileType, MemfdFlags, Mode, OFlags, Stat, fstat, memfd_create, openat, statat,
};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How often a named pipe is tried again that nothing reads yet.
const READER_POLL: Duration = Duration::from_millis(20);

/// Where a recording goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// A file; an existing recording becomes `PATH.old`. Or a named pipe, in the pipe form.
    File(PathBuf),
    /// Standard output, in the pipe form.
    Stdout,
    /// A descriptor that was passed to this process, in the pipe form.
    Descriptor(i32),
    /// Memory: each file that is complete is handed over
    /// ([`LiveRecorder`](crate::LiveRecorder)). It has no name anywhere, and is gone with the
    /// process.
    Memory,
}

impl Output {
    /// `-` and `/dev/stdout` are standard output, `/dev/fd/N` is that descriptor.
    pub fn parse(path: &Path) -> Output {
        match passed_descriptor(path) {
            _ if path.as_os_str() == "-" => Output::Stdout,
            Some(1) => Output::Stdout,
            Some(number) => Output::Descriptor(number),
            None => Output::File(path.to_owned()),
        }
    }

    /// Whether it is a file, and not a stream or a device: only those can be several.
    pub fn is_file(&self) -> bool {
        let Output::File(path) = self else { return false };
        !statat(CWD, path, AtFlags::empty()).is_ok_and(|stat| is_special(&stat))
    }

    /// Whether a recording can go there, as far as a look tells: so that nothing is begun, and no
    /// process is touched, for nothing.
    ///
    /// # Errors
    /// [`OutputError`] with the reason.
    pub fn check(&self) -> Result<(), OutputError> {
        match self {
            Output::File(path) => {
                let (folder, name) = Folder::of(path).map_err(failed("create", path))?;
                match status(&folder, &name).map_err(failed("look at", path))? {
                    Some(stat) if is_special(&stat) => judge_special(&stat).map_err(failed("write to", path)),
                    _ => previous::judge(&folder, &name).map_err(in_the_way(path)),
                }
            }
            Output::Stdout | Output::Descriptor(_) => self.check_stream(),
            Output::Memory => Ok(()),
        }
    }

    /// Words on standard error must not get into the recording, and a terminal is no place for one.
    fn check_stream(&self) -> Result<(), OutputError> {
        let fail = |why: &str| failed("write to", &self.path())(refused(why));
        let fd = self.descriptor().map_err(failed("write to", &self.path()))?;
        if matches!(self, Output::Descriptor(2)) {
            return Err(fail("the words of kymo go to standard error"));
        }
        if rustix::termios::isatty(&fd) {
            return Err(fail("it is a terminal; name a file, or pipe it to a program"));
        }
        if is_same_stream(fd.as_fd(), io::stderr().as_fd()) {
            return Err(fail(
                "standard error goes to the same place, and its words would damage the recording; use 2>FILE",
            ));
        }
        Ok(())
    }

    /// What to call it in messages.
    pub(crate) fn path(&self) -> PathBuf {
        match self {
            Output::File(path) => path.clone(),
            Output::Stdout => "standard output".into(),
            Output::Descriptor(number) => format!("descriptor {number}").into(),
            Output::Memory => "memory".into(),
        }
    }

    /// A copy of the descriptor that it stands for.
    fn descriptor(&self) -> io::Result<OwnedFd> {
        match self {
            Output::Descriptor(number) if *number > 2 => kymo_perf::sys::inherited(*number),
            Output::Descriptor(0) => io::stdin().as_fd().try_clone_to_owned(),
            Output::Descriptor(_) => io::stderr().as_fd().try_clone_to_owned(),
            _ => io::stdout().as_fd().try_clone_to_owned(),
        }
    }
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path().display())
    }
}

/// The output could not be made ready.
#[derive(Debug, thiserror::Error)]
#[error("failed to {action} {}: {why}; `-o FILE` writes elsewhere", path.display())]
pub struct OutputError {
    /// What was tried.
    pub action: &'static str,
    /// On which path.
    pub path: PathBuf,
    /// Why not. It is in the sentence, so it is no source of the error.
    pub why: io::Error,
}

fn failed(action: &'static str, path: &Path) -> impl Fn(io::Error) -> OutputError {
    move |why| OutputError { action, path: path.to_owned(), why }
}

fn in_the_way(path: &Path) -> impl Fn((OsString, io::Error)) -> OutputError {
    move |(name, source)| {
        let sentence = format!("{source} (kymo moves and removes nothing but recordings)");
        OutputError { action: "replace", path: path.with_file_name(name), why: refused(&sentence) }
    }
}

fn refused(sentence: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, sentence)
}

/// An output that is ready to be written.
#[derive(Debug)]
pub(crate) enum Opened {
    /// A file with a header that can be brought up to date, and its way to its name; a device has
    /// its name already.
    File(File, Option<Naming>),
    /// A stream.
    Pipe(Stream),
}

/// A file on the way to its name.
#[derive(Debug)]
pub(crate) struct Naming {
    fresh: Fresh,
    name: OsString,
    path: PathBuf,
}

/// What the thread that begins the recording and the one that writes it share.
pub(crate) type SharedNaming = Arc<Mutex<Naming>>;

impl Naming {
    /// Gives the file its name, if it has none yet: an earlier recording of that name becomes
    /// `PATH.old`.
    ///
    /// # Errors
    /// [`OutputError`] that names what is in the way.
    pub(crate) fn publish(&mut self) -> Result<(), OutputError> {
        if self.fresh.is_named() {
            return Ok(());
        }
        let _call = UnderWay::begin();
        previous::make_room(self.fresh.folder(), &self.name).map_err(in_the_way(&self.path))?;
        self.fresh.link(&self.name).map_err(failed("create", &self.path))
    }

    /// Gives the file another name in the same folder, which nothing may have.
    pub(crate) fn rename(&mut self, name: &OsStr) -> io::Result<()> {
        self.fresh.link(name)
    }

    /// The folder that it is in.
    pub(crate) fn folder(&self) -> &Arc<Folder> {
        self.fresh.folder()
    }

    /// Which file it is.
    pub(crate) fn identity(&self) -> io::Result<Identity> {
        self.fresh.identity()
    }
}

/// Gives the file its name; see [`Naming::publish`].
pub(crate) fn publish(naming: &SharedNaming) -> Result<(), OutputError> {
    naming.lock().unwrap_or_else(PoisonError::into_inner).publish()
}

/// Makes the output ready. A named pipe waits for a reader, until `until` can be read.
pub(crate) fn open(output: &Output, until: Option<BorrowedFd<'_>>) -> Result<Opened, OutputError> {
    let _call = UnderWay::begin();
    match output {
        Output::File(path) => open_file(path, until),
        Output::Stdout | Output::Descriptor(_) => {
            output.check_stream()?;
            let fd = output.descriptor().map_err(failed("write to", &output.path()))?;
            Ok(Opened::Pipe(Stream::passed(fd, until)))
        }
        Output::Memory => {
            let file = memfd_create(c"kymo-snapshot", MemfdFlags::CLOEXEC);
            let file = file.map_err(|errno| failed("create a file in", &output.path())(errno.into()))?;
            Ok(Opened::File(File::from(file), None))
        }
    }
}

fn open_file(path: &Path, until: Option<BorrowedFd<'_>>) -> Result<Opened, OutputError> {
    let (folder, name) = Folder::of(path).map_err(failed("create", path))?;
    if let Some(stat) = status(&folder, &name).map_err(failed("look at", path))?
        && is_special(&stat)
    {
        return open_special(&folder, &name, &stat, until).map_err(failed("write to", path));
    }
    previous::judge(&folder, &name).map_err(in_the_way(path))?;
    let fresh = Fresh::create(Arc::new(folder), &name, Mode::RUSR | Mode::WUSR);
    let fresh = fresh.map_err(failed("create", path))?;
    let file = fresh.file().try_clone().map_err(failed("write to", path))?;
    Ok(Opened::File(file, Some(Naming { fresh, name, path: path.to_owned() })))
}

fn status(folder: &Folder, name: &OsStr) -> io::Result<Option<Stat>> {
    match statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether it is written to as it is, instead of being replaced.
fn is_special(stat: &Stat) -> bool {
    let kind = FileType::from_raw_mode(stat.st_mode);
    matches!(kind, FileType::Fifo | FileType::Socket | FileType::CharacterDevice | FileType::BlockDevice)
}

/// Whether a pipe or device may get a recording: our own or root's pipes, and the devices of
/// `mem(4)` that keep nothing.
fn judge_special(stat: &Stat) -> io::Result<()> {
    let kind = FileType::from_raw_mode(stat.st_mode);
    let own = stat.st_uid == 0 || stat.st_uid == rustix::process::geteuid().as_raw();
    let device = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    match kind {
        FileType::Fifo if own => Ok(()),
        FileType::Fifo => Err(refused(&format!(
            "it is a named pipe of user {}, who would read the recording; if that is wanted, use -o - >PIPE",
            stat.st_uid
        ))),
        // null, zero, full
        FileType::CharacterDevice if matches!(device, (1, 3 | 5 | 7)) => Ok(()),
        _ => Err(refused(&format!(
            "it is {}; a recording goes to a file, a pipe or /dev/null",
            kind_name(kind)
        ))),
    }
}

fn open_special(
    folder: &Folder,
    name: &OsStr,
    stat: &Stat,
    until: Option<BorrowedFd<'_>>,
) -> io::Result<Opened> {
    judge_special(stat)?;
    let common = OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::NONBLOCK;
    if FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice {
        let device = openat(folder, name, common | OFlags::RDWR, Mode::empty())?;
        judge_special(&fstat(&device)?)?;
        return Ok(Opened::File(File::from(device), None));
    }
    loop {
        match openat(folder, name, common | OFlags::WRONLY, Mode::empty()) {
            Ok(pipe) => {
                // What it was when it was looked at, it need not be any more.
                let stat = fstat(&pipe)?;
                judge_special(&stat)?;
                return Ok(Opened::Pipe(Stream::new(File::from(pipe), until)));
            }
            Err(Errno::NXIO) => wait_for_reader(until)?,
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Waits a moment; an error if the recording was told to end meanwhile.
fn wait_for_reader(until: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut fds: Vec<PollFd<'_>> =
        until.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    match poll(&mut fds, Some(&timespec(READER_POLL))) {
        Ok(0) | Err(Errno::INTR) => Ok(()),
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::Interrupted,
            "no process had opened the pipe for reading when the recording was stopped; nothing was recorded",
        )),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether two descriptors lead to the same file, pipe or socket, so that what is written to both
/// is mixed. Devices mix nothing.
fn is_same_stream(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> bool {
    let (Ok(one), Ok(other)) = (fstat(one), fstat(other)) else { return false };
    let kind = FileType::from_raw_mode(one.st_mode);
    matches!(kind, FileType::RegularFile | FileType::Fifo | FileType::Socket)
        && (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

/// Whether what the command writes to its standard output would get into the recording.
pub(crate) fn is_on_stdout(output: &Output) -> bool {
    let stdout = io::stdout();
    match output {
        Output::Stdout => true,
        Output::Memory => false,
        Output::Descriptor(_) => {
            output.descriptor().is_ok_and(|fd| is_same_stream(fd.as_fd(), stdout.as_fd()))
        }
        Output::File(path) => {
            let (Ok(one), Ok(other)) = (statat(CWD, path, AtFlags::empty()), fstat(&stdout)) else {
                return false;
            };
            is_special(&one) && (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn open(path: &Path) -> Naming {
        match open_file(path, None).unwrap() {
            Opened::File(_, Some(naming)) => naming,
            other => panic!("{other:?}"),
        }
    }

    /// Checks that a file that was not named leaves nothing behind, and an older recording alone.
    #[test]
    fn a_file_without_a_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("perf.data");
        fs::write(&path, "PERFILE2 earlier").unwrap();
        drop(open(&path));
        assert_eq!(fs::read(&path).unwrap(), b"PERFILE2 earlier");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    /// Checks mode 0600, that an old recording is kept as .old, and that an empty file is replaced.
    #[test]
    fn old_recording_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let (path, old) = (directory.path().join("perf.data"), directory.path().join("perf.data.old"));
        fs::write(&path, "").unwrap();
        open(&path).publish().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(&path, "PERFILE2 first").unwrap();
        open(&path).publish().unwrap();
        assert_eq!(fs::read(&old).unwrap(), b"PERFILE2 first");
    }

    /// Checks that an error names the action and the path, and that what is no recording is refused
    /// before anything is opened.
    #[test]
    fn errors() {
        let error = open_file("/no/such/directory/perf.data".as_ref(), None).unwrap_err();
        assert_eq!(
            error.to_string(),
            "failed to create /no/such/directory/perf.data: No such file or directory (os error 2); `-o FILE` writes elsewhere"
        );
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("letter");
        fs::write(&path, "Dear Sir").unwrap();
        let error = Output::File(path.clone()).check().unwrap_err().to_string();
        assert!(error.contains("no recording") && error.contains("nothing but recordings"), "{error}");
        assert!(open_file(&path, None).is_err());
        for device in ["/dev/mem", "/dev/tty", "/dev/loop0"] {
            if Path::new(device).exists() {
                assert!(Output::File(device.into()).check().is_err(), "{device}");
            }
        }
        Output::File("/dev/null".into()).check().unwrap();
    }

    /// Checks which paths are standard output and other descriptors.
    #[test]
    fn standard_output_by_any_name() {
        for name in ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
            assert_eq!(Output::parse(Path::new(name)), Output::Stdout, "{name}");
        }
        assert_eq!(Output::parse(Path::new("/dev/fd/63")), Output::Descriptor(63));
        assert_eq!(Output::parse(Path::new("./-")), Output::File("./-".into()));
    }
}
