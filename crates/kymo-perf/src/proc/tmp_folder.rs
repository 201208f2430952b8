//! The folder /tmp as a process sees it: below its root, in its mount namespace.
//!
//! Anyone may write there, and a container's root may put links in the way that would lead out of
//! the container. So no link is followed, neither the folder itself nor a name in it, and
//! everything is asked of descriptors.

use super::{field, text};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RawDir, Stat, fchown, fstat, openat, statat, unlinkat,
};
use rustix::process::{Gid, Uid};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A process's identity where it runs: its own number there, and whose files it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InnerIdentity {
    /// Its number in its innermost PID namespace.
    pub pid: i32,
    /// Its effective user, as numbered here.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
}

impl InnerIdentity {
    /// As the kernel says; `None` if the process is gone.
    pub fn of(pid: i32) -> Option<InnerIdentity> {
        InnerIdentity::in_status(&text(format!("/proc/{pid}/status")).ok()?)
    }

    pub(crate) fn in_status(status: &str) -> Option<InnerIdentity> {
        let effective = |name| field(status, name)?.split_whitespace().nth(1)?.parse().ok();
        // Kernels without PID namespaces have no such line.
        let inner = field(status, "NSpid").or(field(status, "Tgid"))?;
        let pid = inner.split_whitespace().last()?.parse().ok()?;
        Some(InnerIdentity { pid, uid: effective("Uid")?, gid: effective("Gid")? })
    }
}

/// An open /tmp of a process. It stays that folder when the process ends.
#[derive(Debug)]
pub struct TmpFolder(OwnedFd);

impl TmpFolder {
    /// Opens it.
    ///
    /// # Errors
    /// What the kernel says: the process is gone, belongs to another user, or has no such folder.
    pub fn of(pid: i32) -> io::Result<TmpFolder> {
        let root = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, format!("/proc/{pid}/root"), root, Mode::empty())?;
        Ok(TmpFolder(openat(&root, "tmp", FOLDER, Mode::empty())?))
    }

    /// What is there under this name, a link as itself.
    ///
    /// # Errors
    /// As `fstatat(2)`.
    pub fn stat(&self, name: &str) -> io::Result<Stat> {
        Ok(statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Whether there is anything under this name. What cannot be asked counts as there.
    pub fn has(&self, name: &str) -> bool {
        self.stat(name).map_or_else(|error| error.kind() != io::ErrorKind::NotFound, |_| true)
    }

    /// Opens a regular file of this user or of root, without waiting.
    ///
    /// # Errors
    /// As `openat(2)`; `InvalidInput` for links and everything that is no regular file, and
    /// `PermissionDenied` for files of other users.
    pub fn open(&self, name: &str, owner: u32) -> io::Result<File> {
        open_in(&self.0, name, owner)
    }

    /// Opens a regular file in a folder of this one.
    ///
    /// # Errors
    /// As [`TmpFolder::open`].
    pub(crate) fn open_below(&self, folder: &OsStr, name: &str, owner: u32) -> io::Result<File> {
        open_in(&openat(&self.0, folder, FOLDER, Mode::empty())?, name, owner)
    }

    /// Opens what is there to be named by `/proc/self/fd`, whatever it is, but no link.
    pub(crate) fn reference(&self, name: &str) -> io::Result<OwnedFd> {
        Ok(openat(&self.0, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// Makes an empty file that belongs to the process's user.
    ///
    /// # Errors
    /// As `openat(2)`: also if anything is there under this name.
    pub(crate) fn create_empty(&self, name: &str, owner: InnerIdentity) -> io::Result<()> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = openat(&self.0, name, flags, Mode::RUSR | Mode::WUSR)?;
        if fstat(&file)?.st_uid != owner.uid {
            let owned = fchown(&file, Some(Uid::from_raw(owner.uid)), Some(Gid::from_raw(owner.gid)));
            if let Err(error) = owned {
                let _ = self.remove(name);
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Removes a name.
    ///
    /// # Errors
    /// As `unlinkat(2)`.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        Ok(unlinkat(&self.0, name, AtFlags::empty())?)
    }

    /// Removes a name if it still means this file.
    ///
    /// # Errors
    /// As `unlinkat(2)`; nothing is removed and nothing said if it means another file.
    pub fn remove_file(&self, name: &str, file: &File) -> io::Result<()> {
        let (there, ours) = (self.stat(name)?, fstat(file)?);
        if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino) { self.remove(name) } else { Ok(()) }
    }

    /// Names that begin with this, at most so many.
    pub(crate) fn names(&self, prefix: &[u8], most: usize) -> Vec<std::ffi::OsString> {
        /// Entries that are looked at: a folder may have millions.
        const MOST_ENTRIES: usize = 10_000;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(folder) = openat(&self.0, ".", flags, Mode::empty()) else { return Vec::new() };
        let mut buffer = [MaybeUninit::uninit(); 8192];
        let mut entries = RawDir::new(folder, &mut buffer);
        let mut names = Vec::new();
        for _ in 0..MOST_ENTRIES {
            let Some(Ok(entry)) = entries.next() else { break };
            let name = entry.file_name().to_bytes();
            if name.starts_with(prefix) && names.len() < most {
                names.push(OsStr::from_bytes(name).to_owned());
            }
        }
        names
    }
}

fn open_in(folder: &OwnedFd, name: &str, owner: u32) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let kind = |stat: &Stat| FileType::from_raw_mode(stat.st_mode);
    let other =
        |kind| io::Error::new(io::ErrorKind::InvalidInput, format!("it is {}", kymo_files::kind_name(kind)));
    // Asked before opening, too: to open a device is an action of its own.
    let stat = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if kind(&stat) != FileType::RegularFile {
        return Err(other(kind(&stat)));
    }
    let file = openat(folder, name, flags, Mode::empty())?;
    let stat = fstat(&file)?;
    match kind(&stat) {
        FileType::RegularFile if stat.st_uid == owner || stat.st_uid == 0 => Ok(File::from(file)),
        FileType::RegularFile => {
            let whose = format!("it belongs to user {}, and the process to user {owner}", stat.st_uid);
            Err(io::Error::new(io::ErrorKind::PermissionDenied, whose))
        }
        kind => Err(other(kind)),
    }
}

/// Reads a file from this offset on, at most so many bytes and none of a hole.
///
/// # Errors
/// As `read(2)`.
pub fn read_from(file: &mut File, offset: u64, most: u64) -> io::Result<Vec<u8>> {
    // What is not stored has no names: a file of a terabyte may have one block.
    let end = rustix::fs::seek(&*file, rustix::fs::SeekFrom::Hole(offset)).unwrap_or(u64::MAX);
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::new();
    file.take(end.saturating_sub(offset).min(most)).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn own() -> (TmpFolder, InnerIdentity) {
        let pid = std::process::id().cast_signed();
        (TmpFolder::of(pid).expect("a folder"), InnerIdentity::of(pid).expect("this process"))
    }

    /// Checks that links, pipes and files of others are refused, that nothing is made twice, and
    /// that only the file that was meant is removed.
    #[test]
    fn only_own_files() {
        let (tmp, me) = own();
        let name = format!("kymo-tmp-folder-{}", me.pid);
        tmp.create_empty(&name, me).expect("made");
        assert_eq!(tmp.create_empty(&name, me).expect_err("twice").kind(), io::ErrorKind::AlreadyExists);
        let mut file = tmp.open(&name, me.uid).expect("opened");
        let path = format!("/tmp/{name}");
        std::fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"0123456789").unwrap();
        assert_eq!(read_from(&mut file, 2, 3).unwrap(), b"234");
        if me.uid == 0 {
            std::os::unix::fs::chown(&path, Some(4711), None).unwrap();
            assert_eq!(tmp.open(&name, 0).expect_err("another's").kind(), io::ErrorKind::PermissionDenied);
        }
        let moved = format!("{path}.link");
        std::fs::rename(&path, &moved).unwrap();
        std::os::unix::fs::symlink(&moved, &path).unwrap();
        assert_eq!(tmp.open(&name, me.uid).expect_err("a link").kind(), io::ErrorKind::InvalidInput);
        tmp.remove_file(&name, &file).expect("another file");
        assert!(tmp.has(&name), "the link is not the file");
        tmp.remove(&name).expect("the link");
        tmp.remove_file(&format!("{name}.link"), &file).expect("the file");
        assert!(!tmp.has(&format!("{name}.link")));
        assert!(tmp.names(b"kymo-tmp-folder-nothing", 1).is_empty());
    }

    /// Checks the identity in a container's status, with a name that tries to be a line of it.
    #[test]
    fn identity() {
        let status =
            "Name:\tNSpid:\\n7\nTgid:\t900\nNSpid:\t900\t17\t3\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\n";
        assert_eq!(InnerIdentity::in_status(status), Some(InnerIdentity { pid: 3, uid: 2, gid: 6 }));
        assert_eq!(InnerIdentity::in_status("Uid:\t1\n"), None);
    }
}
