//! Reading: open once, without waiting, then ask the descriptor what it is.
use crate::refused;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, fcntl_setfl, fstat, openat, statat};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

/// `NONBLOCK`: a named pipe without a writer opens at once, and a lease of another process refuses
/// instead of delaying. `NOCTTY`: a terminal does not become ours.
pub(crate) const READ: OFlags =
    OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// What a path given by a person turned out to be.
#[derive(Debug)]
pub enum Input {
    /// A regular file.
    File(File),
    /// A pipe, terminal or socket: can be read once, from start to end.
    Stream(File),
    /// A directory; names are looked up from this descriptor.
    Folder(OwnedFd),
}

/// What a file type is called.
pub fn kind_name(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "a file",
        FileType::Directory => "a directory",
        FileType::Symlink => "a symbolic link",
        FileType::Fifo => "a named pipe",
        FileType::Socket => "a socket",
        FileType::CharacterDevice => "a character device",
        FileType::BlockDevice => "a block device",
        FileType::Unknown => "no file",
    }
}

/// Opens a regular file to read. Never waits, whatever the path is at that moment.
///
/// # Errors
/// What `open(2)` says; `InvalidInput` with a sentence for everything that is no regular file.
pub fn open_regular(path: impl AsRef<Path>) -> io::Result<File> {
    open_as(path.as_ref(), OFlags::empty(), AtFlags::empty())
}

/// The same, and no symbolic link: for folders that everybody can write to.
///
/// # Errors
/// As [`open_regular`].
pub fn open_no_link(path: impl AsRef<Path>) -> io::Result<File> {
    open_as(path.as_ref(), OFlags::NOFOLLOW, AtFlags::SYMLINK_NOFOLLOW)
}

fn open_as(path: &Path, flags: OFlags, look: AtFlags) -> io::Result<File> {
    // Asked before opening, too: to open a tape is an action of its own.
    judge(&statat(CWD, path, look)?)?;
    regular(openat(CWD, path, READ | flags, Mode::empty())?)
}

fn judge(stat: &Stat) -> io::Result<()> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(()),
        kind => Err(refused(format!("it is {}, not a regular file", kind_name(kind)))),
    }
}

/// The same for a name in a directory that is open.
///
/// # Errors
/// As [`open_regular`].
pub(crate) fn regular(file: OwnedFd) -> io::Result<File> {
    judge(&fstat(&file)?)?;
    Ok(File::from(file))
}

/// Opens what a person named to be read: a file, a pipe or a directory. Reading a pipe waits for
/// its writer; a named pipe that nothing has open for writing is at its end.
///
/// # Errors
/// What `open(2)` says; `InvalidInput` with a sentence for a block device.
pub fn open_input(path: &Path) -> io::Result<Input> {
    let file = openat(CWD, path, READ, Mode::empty())?;
    match FileType::from_raw_mode(fstat(&file)?.st_mode) {
        FileType::RegularFile => Ok(Input::File(File::from(file))),
        FileType::Directory => Ok(Input::Folder(file)),
        FileType::BlockDevice => Err(refused("it is a block device, not a file")),
        _ => {
            // From now on reading waits. A descriptor that was passed to us is a description of our
            // own by now.
            fcntl_setfl(&file, OFlags::empty())?;
            Ok(Input::Stream(File::from(file)))
        }
    }
}

impl Input {
    /// Opens a regular file in a directory that was opened before.
    ///
    /// # Errors
    /// As [`open_regular`]; a symbolic link is refused.
    pub fn regular_in(folder: &OwnedFd, name: impl AsRef<Path>) -> io::Result<File> {
        regular(openat(folder, name.as_ref(), READ | OFlags::NOFOLLOW, Mode::empty())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::mknodat;
    use std::fs;
    use std::io::Read;

    /// Checks that a file is read, and that a directory, a device and a named pipe without a writer
    /// are refused at once, in words.
    #[test]
    fn only_regular_files() {
        let folder = tempfile::tempdir().unwrap();
        let (file, pipe) = (folder.path().join("file"), folder.path().join("pipe"));
        fs::write(&file, "seven b").unwrap();
        assert_eq!(io::read_to_string(open_regular(&file).unwrap()).unwrap(), "seven b");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
        for (path, kind) in [
            (pipe.as_path(), "a named pipe"),
            (folder.path(), "a directory"),
            (Path::new("/dev/null"), "a char"),
        ] {
            let error = open_regular(path).unwrap_err().to_string();
            assert!(error.contains(kind), "{error}");
        }
        assert_eq!(open_regular(folder.path().join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    /// Checks what a person may name as an input, and that a named pipe without a writer is at its
    /// end.
    #[test]
    fn inputs() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
        let Input::Stream(mut stream) = open_input(&pipe).unwrap() else { panic!("a pipe") };
        let mut bytes = Vec::new();
        assert_eq!(stream.read_to_end(&mut bytes).unwrap(), 0);
        assert!(matches!(open_input(folder.path()).unwrap(), Input::Folder(_)));
        fs::write(folder.path().join("data"), "x").unwrap();
        std::os::unix::fs::symlink("data", folder.path().join("data.1")).unwrap();
        let Input::Folder(open) = open_input(folder.path()).unwrap() else { panic!("a folder") };
        assert!(Input::regular_in(&open, "data").is_ok() && Input::regular_in(&open, "data.1").is_err());
    }
}
