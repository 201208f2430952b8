//! A file that gets its name only when it is complete.
use crate::caller;
use crate::folder::{Folder, Identity};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, fstat, linkat, openat, renameat, statat, unlinkat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// What name the file has.
#[derive(Debug)]
enum Name {
    /// None: it disappears when it is closed (`O_TMPFILE`).
    None,
    /// A hidden one, where the file system has no nameless files.
    Hidden(OsString),
    /// Its own.
    Given(OsString),
}

/// A new file in a folder; without [`Fresh::link`] or [`Fresh::replace`] it leaves nothing behind.
#[derive(Debug)]
pub struct Fresh {
    folder: Arc<Folder>,
    file: File,
    name: Name,
}

/// A name that nothing has: the pid, and a number of our own.
fn hidden(near: &OsStr) -> OsString {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Relaxed: only a number that differs from the others.
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut name = OsString::from(".");
    name.push(near);
    name.push(format!(".kymo-{}-{number}", std::process::id()));
    name
}

impl Fresh {
    /// Makes a file that is to be called `near`, with this mode (less the umask). Under sudo it is
    /// the caller's, in a folder of theirs.
    ///
    /// # Errors
    /// What `open(2)` says.
    pub fn create(folder: Arc<Folder>, near: &OsStr, mode: Mode) -> io::Result<Fresh> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        // A nameless file gets its name through /proc.
        if rustix::fs::access("/proc/self/fd", rustix::fs::Access::EXISTS).is_ok()
            && let Ok(file) = openat(&*folder, ".", flags | OFlags::TMPFILE, mode)
        {
            caller::give(&file, &*folder);
            return Ok(Fresh { folder, file: File::from(file), name: Name::None });
        }
        for _ in 0..100 {
            let name = hidden(near);
            match openat(&*folder, &name, flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW, mode) {
                Ok(file) => {
                    caller::give(&file, &*folder);
                    return Ok(Fresh { folder, file: File::from(file), name: Name::Hidden(name) });
                }
                // Left by a process of our number that was killed, or planted.
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(Errno::EXIST.into())
    }

    /// What to write to.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The folder that it is in.
    pub fn folder(&self) -> &Arc<Folder> {
        &self.folder
    }

    /// Whether it has a name of its own.
    pub fn is_named(&self) -> bool {
        matches!(self.name, Name::Given(_))
    }

    /// Which file it is.
    ///
    /// # Errors
    /// What `fstat(2)` says.
    pub fn identity(&self) -> io::Result<Identity> {
        Ok(Identity::from(&fstat(&self.file)?))
    }

    /// Gives it this name, which nothing may have.
    ///
    /// # Errors
    /// `AlreadyExists`; what the system says.
    pub fn link(&mut self, name: &OsStr) -> io::Result<()> {
        match &self.name {
            Name::None => {
                let own = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                linkat(CWD, own, &*self.folder, name, AtFlags::SYMLINK_FOLLOW)?;
            }
            Name::Hidden(old) => self.folder.rename_to_free(old, name)?,
            Name::Given(old) => {
                // Whoever may change the folder may have put another file there.
                if statat(&*self.folder, old, AtFlags::SYMLINK_NOFOLLOW).map(|stat| Identity::from(&stat))
                    != Ok(Identity::from(&fstat(&self.file)?))
                {
                    return Err(io::Error::new(
                        io::ErrorKind::NotFound,
                        "another process has moved or removed the file that was being written",
                    ));
                }
                self.folder.rename_to_free(old, name)?;
            }
        }
        self.name = Name::Given(name.to_owned());
        Ok(())
    }

    /// Gives it this name, in the place of whatever file or link has it.
    ///
    /// # Errors
    /// What the system says.
    pub fn replace(&mut self, name: &OsStr) -> io::Result<()> {
        if matches!(self.name, Name::None) {
            let between = hidden(name);
            self.link(&between)?;
            self.name = Name::Hidden(between);
        }
        if let Name::Hidden(old) | Name::Given(old) = &self.name {
            renameat(&*self.folder, old, &*self.folder, name)?;
        }
        self.name = Name::Given(name.to_owned());
        Ok(())
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        if let Name::Hidden(name) = &self.name {
            let _ = unlinkat(&*self.folder, name, AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    fn folder(path: &Path) -> Arc<Folder> {
        Arc::new(Folder::of(&path.join("x")).unwrap().0)
    }

    /// Checks that a file without a name leaves nothing, that a name which exists is not taken, and
    /// that one can be replaced whole.
    #[test]
    fn names() {
        let top = tempfile::tempdir().unwrap();
        let make = || Fresh::create(folder(top.path()), OsStr::new("x"), Mode::RUSR | Mode::WUSR).unwrap();
        drop(make());
        assert_eq!(fs::read_dir(top.path()).unwrap().count(), 0);
        let mut first = make();
        write!(first.file(), "first").unwrap();
        first.link(OsStr::new("x")).unwrap();
        assert_eq!(fs::metadata(top.path().join("x")).unwrap().permissions().mode() & 0o777, 0o600);
        let mut second = make();
        write!(second.file(), "second").unwrap();
        assert_eq!(second.link(OsStr::new("x")).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(top.path().join("x")).unwrap(), b"first");
        second.replace(OsStr::new("x")).unwrap();
        assert_eq!(fs::read(top.path().join("x")).unwrap(), b"second");
        second.link(OsStr::new("y")).unwrap();
        let names: Vec<_> = fs::read_dir(top.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["y"]);
    }

    /// Checks that a file which somebody has exchanged under its name is not taken for ours.
    #[test]
    fn an_exchanged_file_is_not_renamed() {
        let top = tempfile::tempdir().unwrap();
        let mut file = Fresh::create(folder(top.path()), OsStr::new("x"), Mode::RUSR).unwrap();
        file.link(OsStr::new("x")).unwrap();
        fs::rename(top.path().join("x"), top.path().join("moved")).unwrap();
        fs::write(top.path().join("x"), "another's").unwrap();
        assert!(file.link(OsStr::new("y")).is_err());
        assert_eq!(fs::read(top.path().join("x")).unwrap(), b"another's");
    }

    /// Checks the same way through a file system's names, as where it has no nameless files.
    #[test]
    fn a_hidden_name() {
        let top = tempfile::tempdir().unwrap();
        let name = hidden(OsStr::new("x"));
        let file = File::create(top.path().join(&name)).unwrap();
        let mut fresh = Fresh { folder: folder(top.path()), file, name: Name::Hidden(name.clone()) };
        fs::write(top.path().join("x"), "old").unwrap();
        assert_eq!(fresh.link(OsStr::new("x")).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        fresh.link(OsStr::new("y")).unwrap();
        assert!(top.path().join("y").exists() && !top.path().join(&name).exists());
        let again = File::create(top.path().join(&name)).unwrap();
        drop(Fresh { folder: folder(top.path()), file: again, name: Name::Hidden(name.clone()) });
        assert!(!top.path().join(&name).exists());
    }
}
