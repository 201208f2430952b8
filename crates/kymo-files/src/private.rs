//! A folder whose files this user alone can change, for files that kymo makes and reads again.
use crate::folder::{Folder, Identity};
use crate::fresh::Fresh;
use crate::read::{READ, regular};
use crate::refused;
use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, Stat, Timespec, Timestamps, fstat, futimens, mkdirat,
};
use rustix::fs::{UTIME_NOW, UTIME_OMIT, openat, statat, unlinkat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// Read and write for the owner, nothing for others.
const OWN: Mode = Mode::RUSR.union(Mode::WUSR);

/// A folder of this user's own. Every step starts from its descriptor, and no link in it is
/// followed.
#[derive(Debug)]
pub struct PrivateFolder {
    folder: Arc<Folder>,
}

/// A file of a private folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrivateFile {
    /// What it is called.
    pub name: OsString,
    /// Its length.
    pub bytes: u64,
    /// When it was changed or [used](PrivateFolder::read) last, in seconds since 1970.
    pub used_s: i64,
    identity: Identity,
}

impl PrivateFolder {
    /// The folder `base/below[0]/below[1]/...`. What of it is missing is made, with mode 0700.
    /// `base` is made only where its parent belongs to this user.
    ///
    /// # Errors
    /// What the system says; a sentence where one of the folders is a link, is another user's (root
    /// takes no folder of an ordinary user either), or where others may write into it.
    pub fn open(base: &Path, below: &[&str]) -> io::Result<PrivateFolder> {
        if !base.is_absolute() {
            return Err(refused(format!("{} is no absolute path", base.display())));
        }
        let mut folder = match Folder::of(&base.join("x")) {
            Ok((folder, _)) => folder,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let (parent, name) = Folder::of(base)?;
                child(&parent, &name, &base.display().to_string())?
            }
            Err(error) => return Err(error),
        };
        for name in below {
            folder = child(&folder, OsStr::new(name), name)?;
        }
        Ok(PrivateFolder { folder: Arc::new(folder) })
    }

    /// The bytes of a file that has at most `most` of them. It counts as used now.
    ///
    /// # Errors
    /// What the system says; a sentence for what is no regular file, too long, or could be changed
    /// by others.
    pub fn read(&self, name: &OsStr, most: u64) -> io::Result<Vec<u8>> {
        /// A file that was used a moment ago is not marked again.
        const MARKED_FOR_S: i64 = 3600;
        let file = regular(openat(&*self.folder, name, READ | OFlags::NOFOLLOW, Mode::empty())?)?;
        let stat = fstat(&file)?;
        judge(&stat)?;
        let bytes = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
        if bytes > most {
            return Err(refused(format!("it has {bytes} bytes, more than {most}")));
        }
        let mut content = Vec::with_capacity(usize::try_from(bytes).unwrap_or(0));
        (&file).take(most).read_to_end(&mut content)?;
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec;
        if now.abs_diff(stat.st_mtime) > MARKED_FOR_S.unsigned_abs() {
            // One that cannot be marked is removed sooner: no harm.
            _ = mark_used(&file);
        }
        Ok(content)
    }

    /// Puts a file of these bytes in the place of the one with this name, whole or not at all.
    ///
    /// # Errors
    /// What the system says.
    pub fn replace(&self, name: &OsStr, bytes: &[u8]) -> io::Result<()> {
        let mut fresh = Fresh::create(Arc::clone(&self.folder), name, OWN)?;
        fresh.file().write_all(bytes)?;
        fresh.replace(name)
    }

    /// Puts a file of these bytes under a name that none has, whole or not at all; false: a file
    /// has it, and stays.
    ///
    /// # Errors
    /// What the system says.
    pub fn create(&self, name: &OsStr, bytes: &[u8]) -> io::Result<bool> {
        let mut fresh = Fresh::create(Arc::clone(&self.folder), name, OWN)?;
        fresh.file().write_all(bytes)?;
        match fresh.link(name) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes the file of a name, if there is one.
    ///
    /// # Errors
    /// What the system says.
    pub fn remove_name(&self, name: &OsStr) -> io::Result<()> {
        match unlinkat(&*self.folder, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// This user's regular files in it, `most` at most.
    ///
    /// # Errors
    /// What the system says.
    pub fn files(&self, most: usize) -> io::Result<Vec<PrivateFile>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let list = Dir::new(openat(&*self.folder, ".", flags, Mode::empty())?)?;
        let about = |name: &OsStr| {
            let stat = statat(&*self.folder, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
            judge(&stat).ok()?;
            is_regular(&stat).then(|| PrivateFile {
                name: name.to_owned(),
                bytes: u64::try_from(stat.st_size).unwrap_or(0),
                used_s: stat.st_mtime,
                identity: Identity::from(&stat),
            })
        };
        let names = list.flatten().map(|entry| entry.file_name().to_owned());
        Ok(names.filter_map(|name| about(OsStr::from_bytes(name.to_bytes()))).take(most).collect())
    }

    /// Removes a file, unless another one has its name now.
    ///
    /// # Errors
    /// What the system says.
    pub fn remove(&self, file: &PrivateFile) -> io::Result<()> {
        self.folder.remove(&file.name, file.identity)
    }
}

/// The folder of this name, made if there is none.
fn child(parent: &Folder, name: &OsStr, shown: &str) -> io::Result<Folder> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || openat(parent, name, flags, Mode::empty());
    let opened = match open() {
        Err(Errno::NOENT) => {
            // Nothing is left in the folders of others, by root neither.
            if fstat(parent)?.st_uid != rustix::process::geteuid().as_raw() {
                return Err(refused(format!("the folder that {shown} would be made in is another user's")));
            }
            match mkdirat(parent, name, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => open()?,
                Err(error) => return Err(error.into()),
            }
        }
        opened => opened?,
    };
    judge(&fstat(&opened)?).map_err(|error| refused(format!("{shown}: {error}")))?;
    Ok(Folder::from_path_fd(opened))
}

fn is_regular(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

/// Whether this user alone can change a file or folder.
fn judge(stat: &Stat) -> io::Result<()> {
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(refused(format!("it belongs to user {}", stat.st_uid)));
    }
    if stat.st_mode & 0o022 != 0 {
        return Err(refused("others may write to it"));
    }
    Ok(())
}

fn mark_used(file: &File) -> io::Result<()> {
    let time = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
    let times = Timestamps { last_access: time(UTIME_OMIT), last_modification: time(UTIME_NOW) };
    Ok(futimens(file, &times)?)
}
