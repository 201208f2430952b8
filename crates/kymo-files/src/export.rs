//! Writes results whole or not at all.
use crate::caller;
use crate::folder::{Folder, passed_descriptor};
use crate::fresh::Fresh;
use crate::read::{READ, kind_name};
use crate::{is_trusted, refused};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Stat, fchmod, fcntl_setfl, fstat, openat, readlinkat, statat,
};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::Arc;

/// Read and write for all; the umask takes from that.
const MODE: Mode = Mode::from_raw_mode(0o666);

/// An output that a person named. A file gets its name when it is complete ([`Export::finish`]);
/// one that had the name stays until then.
#[derive(Debug)]
pub struct Export {
    place: ExportTarget,
}

#[derive(Debug)]
enum ExportTarget {
    /// A new file, and the name that it is to have.
    Fresh(Fresh, OsString),
    /// A device, a pipe, or a file that can be written but not replaced.
    Open(File),
}

impl Export {
    /// Prepares a file at this path: one that exists is replaced as a whole, unless `keep` says why
    /// it must not be. Our own and root's symbolic links, pipes and devices are used as they are;
    /// `-` is standard output.
    ///
    /// # Errors
    /// What the system says; a sentence for what belongs to another user and could lead elsewhere.
    pub fn create(path: &Path, keep: impl Fn(&File) -> Option<&'static str>) -> io::Result<Export> {
        let passed = if path == Path::new("-") { Some(1) } else { passed_descriptor(path) };
        if let Some(number) = passed {
            return descriptor(number);
        }
        let (folder, name, stat) = destination(path)?;
        if stat.is_some_and(|stat| FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile) {
            return open(&folder, &name, OFlags::empty());
        }
        if stat.is_some()
            && let Ok(old) = openat(&*folder, &name, LOOK, Mode::empty()).map(File::from)
            && let Some(why) = keep(&old)
        {
            return Err(refused(why));
        }
        match Fresh::create(Arc::clone(&folder), &name, MODE) {
            Ok(fresh) => {
                // Who could not read the old one cannot read the new one.
                if let Some(stat) = stat.filter(is_trusted) {
                    fchmod(fresh.file(), Mode::from_raw_mode(stat.st_mode & 0o777))?;
                }
                Ok(Export { place: ExportTarget::Fresh(fresh, name) })
            }
            // The folder cannot be changed, but the file in it may be ours.
            Err(error) if stat.is_some() && is_refusal(&error) => open(&folder, &name, OFlags::TRUNC),
            Err(error) => Err(error),
        }
    }

    /// The same, with its name from the start: for a file that is looked at while it grows.
    ///
    /// # Errors
    /// As [`Export::create`].
    pub fn begin(path: &Path, keep: impl Fn(&File) -> Option<&'static str>) -> io::Result<Export> {
        let mut export = Export::create(path, keep)?;
        if let ExportTarget::Fresh(fresh, name) = &mut export.place {
            fresh.replace(name)?;
        }
        Ok(export)
    }

    /// Opens a file at this path to write behind what is in it; makes it if there is none.
    ///
    /// # Errors
    /// As [`Export::create`].
    pub fn append(path: &Path) -> io::Result<Export> {
        if let Some(number) = passed_descriptor(path) {
            return descriptor(number);
        }
        let (folder, name, stat) = destination(path)?;
        if stat.is_some() {
            return open(&folder, &name, OFlags::APPEND);
        }
        let export = open(&folder, &name, OFlags::CREATE | OFlags::EXCL | OFlags::APPEND)?;
        caller::give(export.file(), &*folder);
        Ok(export)
    }

    /// Gives the file its name, now that everything is in it.
    ///
    /// # Errors
    /// What the system says.
    pub fn finish(mut self) -> io::Result<()> {
        self.flush()?;
        match self.place {
            ExportTarget::Fresh(mut fresh, name) if !fresh.is_named() => fresh.replace(&name),
            _ => Ok(()),
        }
    }

    fn file(&self) -> &File {
        match &self.place {
            ExportTarget::Fresh(fresh, _) => fresh.file(),
            ExportTarget::Open(file) => file,
        }
    }
}

impl Write for Export {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file().flush()
    }
}

/// To look at a file whose name does not lead elsewhere.
const LOOK: OFlags = READ.union(OFlags::NOFOLLOW);

fn is_refusal(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::ACCESS | Errno::PERM | Errno::ROFS))
}

/// A copy of one of our own descriptors.
fn descriptor(number: i32) -> io::Result<Export> {
    let copy = match number {
        1 => io::stdout().as_fd().try_clone_to_owned()?,
        2 => io::stderr().as_fd().try_clone_to_owned()?,
        _ => {
            let path = format!("/proc/self/fd/{number}");
            let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CLOEXEC;
            openat(rustix::fs::CWD, path, flags, Mode::empty())?
        }
    };
    Ok(Export { place: ExportTarget::Open(File::from(copy)) })
}

/// Where a path leads, through links that are ours or root's, and what is there.
fn destination(path: &Path) -> io::Result<(Arc<Folder>, OsString, Option<Stat>)> {
    let (mut folder, mut name) = Folder::of(path)?;
    for _ in 0..40 {
        let stat = match statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok((Arc::new(folder), name, None)),
            Err(errno) => return Err(errno.into()),
        };
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            return Ok((Arc::new(folder), name, Some(stat)));
        }
        if !is_trusted(&stat) {
            return Err(refused(format!(
                "it is a symbolic link of user {}, which is not followed",
                stat.st_uid
            )));
        }
        let text = OsString::from_vec(readlinkat(&folder, &name, Vec::new())?.into_bytes());
        (folder, name) = folder.of_link(&text)?;
    }
    Err(Errno::LOOP.into())
}

/// Opens what is there to write, without waiting, and judges the descriptor.
fn open(folder: &Folder, name: &OsStr, flags: OFlags) -> io::Result<Export> {
    let cut = flags.contains(OFlags::TRUNC);
    let flags = flags.difference(OFlags::TRUNC) | OFlags::WRONLY;
    let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
    let fd = openat(folder, name, flags, MODE).map_err(|errno| match errno {
        Errno::NXIO => refused("it is a named pipe that nothing reads, or a socket"),
        Errno::LOOP => refused("it became a symbolic link meanwhile, which is not followed"),
        errno => errno.into(),
    })?;
    let stat = fstat(&fd)?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    match kind {
        FileType::BlockDevice => return Err(refused("it is a block device, which is never written to")),
        // What the caller of sudo may write themselves takes nothing from root.
        FileType::RegularFile if caller::owns(&stat) && stat.st_nlink == 1 => {}
        _ if !is_trusted(&stat) => {
            let (kind, user) = (kind_name(kind), stat.st_uid);
            return Err(refused(format!("it is {kind} of user {user}, which is not written to")));
        }
        FileType::RegularFile if stat.st_nlink > 1 => {
            return Err(refused("the file has several names, so it could be anyone's"));
        }
        _ => {}
    }
    let file = File::from(fd);
    if cut {
        file.set_len(0)?;
    }
    // Writing waits for whoever reads a pipe.
    fcntl_setfl(&file, flags.intersection(OFlags::APPEND))?;
    Ok(Export { place: ExportTarget::Open(file) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, mknodat};
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn write(path: &Path, text: &str) -> io::Result<()> {
        let mut export = Export::create(path, |_| None)?;
        export.write_all(text.as_bytes())?;
        export.finish()
    }

    /// Checks that a file is there whole or not at all, that its mode stays, and that our own link
    /// leads to it.
    #[test]
    fn whole_or_not_at_all() {
        let top = tempfile::tempdir().unwrap();
        let (path, link) = (top.path().join("out.svg"), top.path().join("link"));
        write(&path, "one").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let mut unfinished = Export::create(&path, |_| None).unwrap();
        unfinished.write_all(b"half").unwrap();
        drop(unfinished);
        assert_eq!(fs::read(&path).unwrap(), b"one");
        symlink("out.svg", &link).unwrap();
        write(&link, "two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_dir(top.path()).unwrap().count(), 2);
        let kept = Export::create(&path, |_| Some("it is precious")).unwrap_err();
        assert_eq!(kept.to_string(), "it is precious");
    }

    /// Checks that behind what is there is written, and that a pipe without a reader is refused
    /// instead of waited for.
    #[test]
    fn appended() {
        let top = tempfile::tempdir().unwrap();
        let path = top.path().join("log");
        for text in ["one", "two"] {
            let mut export = Export::append(&path).unwrap();
            export.write_all(text.as_bytes()).unwrap();
            export.finish().unwrap();
        }
        assert_eq!(fs::read(&path).unwrap(), b"onetwo");
        let pipe = top.path().join("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert!(write(&pipe, "x").unwrap_err().to_string().contains("nothing reads"));
        fs::hard_link(&path, top.path().join("second")).unwrap();
        assert!(Export::append(&path).unwrap_err().to_string().contains("several names"));
        write(Path::new("/dev/null"), "x").unwrap();
    }

    /// Checks that neither links, pipes nor files of another user are written to or through.
    #[test]
    fn what_another_user_has_planted() {
        if !rustix::process::geteuid().is_root() {
            return kymo_testing::skip("export::what_another_user_has_planted", "needs root");
        }
        let top = tempfile::tempdir().unwrap();
        let (victim, link, pipe) =
            (top.path().join("victim"), top.path().join("link"), top.path().join("pipe"));
        fs::write(&victim, "root's").unwrap();
        symlink(&victim, &link).unwrap();
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
        let _reader = fs::File::options().read(true).write(true).open(&pipe).unwrap();
        for path in [&link, &pipe] {
            std::os::unix::fs::lchown(path, Some(65_534), Some(65_534)).unwrap();
            for result in [write(path, "x"), Export::append(path).map(drop)] {
                let error = result.unwrap_err().to_string();
                assert!(error.contains("of user 65534"), "{error}");
            }
        }
        assert_eq!(fs::read(&victim).unwrap(), b"root's");
    }
}
