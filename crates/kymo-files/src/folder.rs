//! The folder of an output, reached without the symbolic links of strangers.
use crate::{is_trusted, refused};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, Stat, fstat, fstatfs, linkat, mkdirat, openat,
    readlinkat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

/// Which file it is, whatever it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    device: u64,
    inode: u64,
}

impl From<&Stat> for Identity {
    fn from(stat: &Stat) -> Identity {
        Identity { device: stat.st_dev, inode: stat.st_ino }
    }
}

/// So many symbolic links are followed, as by the kernel.
const MOST_LINKS: u32 = 40;
/// The links of `/proc` are the kernel's, whoever owns the process.
const PROC_SUPER_MAGIC: i64 = 0x9fa0;

/// A folder that stays the same one, whatever becomes of its path.
#[derive(Debug)]
pub struct Folder {
    fd: OwnedFd,
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Which descriptor of this process a path stands for: `/dev/stdout`, `/dev/fd/N`,
/// `/proc/self/fd/N`.
pub fn passed_descriptor(path: &Path) -> Option<i32> {
    let text = path.to_str()?;
    let own = format!("/proc/{}/fd/", std::process::id());
    let folders = ["/dev/fd/", "/proc/self/fd/", "/proc/thread-self/fd/", &own];
    match text {
        "/dev/stdin" => Some(0),
        "/dev/stdout" => Some(1),
        "/dev/stderr" => Some(2),
        _ => {
            let number = folders.iter().find_map(|folder| text.strip_prefix(folder))?;
            number.parse().ok().filter(|&number| number >= 0)
        }
    }
}

impl Folder {
    /// The folder that a path's last name is in, and that name.
    ///
    /// # Errors
    /// What the system says about a part of the path; a sentence for a link of another user, and
    /// for a path without a name.
    pub fn of(path: &Path) -> io::Result<(Folder, OsString)> {
        let name = match path.components().next_back() {
            Some(Component::Normal(name)) if !path.as_os_str().as_bytes().ends_with(b"/") => name,
            _ => return Err(refused("the path ends without the name of a file")),
        };
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        Ok((Folder::walk(None, parent, WalkRules::default())?, name.to_owned()))
    }

    /// A folder that no user but this one and root can change or replace: neither the folder nor
    /// one above it belongs to another user or can be written by others. Sticky folders such as
    /// `/tmp` may be above it.
    ///
    /// # Errors
    /// What the system says; a sentence that names the folder or link that another user could
    /// change.
    pub fn exclusive(path: &Path) -> io::Result<Folder> {
        Folder::walk(None, path, WalkRules { is_exclusive: true, mode: None })
    }

    /// A folder that is made where it is missing, with those above it, as by `mkdir -p`.
    ///
    /// # Errors
    /// As [`Folder::of`].
    pub fn make(path: &Path) -> io::Result<Folder> {
        let mode = Some(Mode::from_raw_mode(0o777));
        Folder::walk(None, path, WalkRules { is_exclusive: false, mode })
    }

    /// A folder that was opened as a path (`O_PATH`).
    pub(crate) fn from_path_fd(fd: OwnedFd) -> Folder {
        Folder { fd }
    }

    /// The folder and name that a symbolic link in this folder stands for.
    ///
    /// # Errors
    /// As [`Folder::of`].
    pub(crate) fn of_link(&self, text: &OsStr) -> io::Result<(Folder, OsString)> {
        let path = Path::new(text);
        let Some(Component::Normal(name)) = path.components().next_back() else {
            return Err(refused("the symbolic link ends without the name of a file"));
        };
        let parent = path.parent().unwrap_or(Path::new(""));
        Ok((Folder::walk(Some(self.as_fd()), parent, WalkRules::default())?, name.to_owned()))
    }

    /// Renames in this folder, to a name that nothing may have.
    ///
    /// # Errors
    /// `AlreadyExists`; what the system says.
    pub fn rename_to_free(&self, old: &OsStr, new: &OsStr) -> io::Result<()> {
        match renameat_with(self, old, self, new, RenameFlags::NOREPLACE) {
            // A file system without this flag.
            Err(Errno::INVAL | Errno::NOSYS) => {
                linkat(self, old, self, new, AtFlags::empty())?;
                unlinkat(self, old, AtFlags::empty())?;
                Ok(())
            }
            result => Ok(result?),
        }
    }

    /// Removes a file of this folder, if it is this one still.
    ///
    /// # Errors
    /// What the system says.
    pub fn remove(&self, name: &OsStr, file: Identity) -> io::Result<()> {
        let stat = statat(self, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if Identity::from(&stat) == file {
            unlinkat(self, name, AtFlags::empty())?;
        }
        Ok(())
    }

    /// Goes from folder to folder and looks at each link before it is followed.
    fn walk(from: Option<BorrowedFd<'_>>, path: &Path, rules: WalkRules) -> io::Result<Folder> {
        let folder = |at: BorrowedFd<'_>, name: &OsStr| {
            openat(at, name, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        };
        let root = || folder(CWD, OsStr::new("/"));
        let mut at = if path.is_absolute() { root()? } else { folder(from.unwrap_or(CWD), OsStr::new("."))? };
        let mut ahead: Vec<OsString> = names(path);
        let mut links = 0;
        let mut passed = PathBuf::from(if path.is_absolute() { "/" } else { "" });
        while let Some(name) = ahead.pop() {
            passed.push(&name);
            if name == ".." {
                at = folder(at.as_fd(), &name)?;
                continue;
            }
            let next = rules.open(&at, &name)?;
            let stat = fstat(&next)?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => {
                    rules.judge(&stat, &passed)?;
                    at = next;
                }
                FileType::Symlink if fstatfs(&next)?.f_type == PROC_SUPER_MAGIC => {
                    at = folder(at.as_fd(), &name)?;
                }
                FileType::Symlink => {
                    if !is_trusted(&stat) {
                        return Err(refused(format!(
                            "{} on the way is a symbolic link of user {}, which is not followed",
                            passed.display(),
                            stat.st_uid
                        )));
                    }
                    links += 1;
                    if links > MOST_LINKS {
                        return Err(Errno::LOOP.into());
                    }
                    let text = OsString::from_vec(readlinkat(&next, "", Vec::new())?.into_bytes());
                    if Path::new(&text).is_absolute() {
                        at = root()?;
                    }
                    ahead.extend(names(Path::new(&text)));
                }
                _ => return Err(Errno::NOTDIR.into()),
            }
        }
        Ok(Folder { fd: at })
    }
}

/// What a walk makes and what it refuses, besides links of other users.
#[derive(Clone, Copy, Default)]
struct WalkRules {
    /// No folder on the way can be changed by another user.
    is_exclusive: bool,
    /// Folders that are missing are made with this mode.
    mode: Option<Mode>,
}

impl WalkRules {
    /// What has this name; a link is opened itself.
    fn open(self, at: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match (openat(at, name, flags, Mode::empty()), self.mode) {
            (Err(Errno::NOENT), Some(mode)) => {
                match mkdirat(at, name, mode) {
                    // Another process was faster.
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
                Ok(openat(at, name, flags, Mode::empty())?)
            }
            (opened, _) => Ok(opened?),
        }
    }

    fn judge(self, folder: &Stat, path: &Path) -> io::Result<()> {
        const OTHERS_WRITE: u32 = 0o022;
        const STICKY: u32 = 0o1000;
        if !self.is_exclusive {
            return Ok(());
        }
        if !is_trusted(folder) {
            let shown = path.display();
            return Err(refused(format!("the folder {shown} belongs to user {}", folder.st_uid)));
        }
        if folder.st_mode & OTHERS_WRITE != 0 && folder.st_mode & STICKY == 0 {
            return Err(refused(format!("other users may write into the folder {}", path.display())));
        }
        Ok(())
    }
}

/// The names of a path, the last one first.
fn names(path: &Path) -> Vec<OsString> {
    let names = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        _ => None,
    });
    let mut names: Vec<OsString> = names.collect();
    names.reverse();
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, lchown, symlink};

    fn same(folder: &Folder, path: &Path) -> bool {
        let (a, b) = (fstat(folder).unwrap(), rustix::fs::stat(path).unwrap());
        (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino)
    }

    /// Checks that a path leads where the kernel's own look-up leads, through our own links, and
    /// that endless links end.
    #[test]
    fn ways() {
        let top = tempfile::tempdir().unwrap();
        let inner = top.path().join("a/b");
        std::fs::create_dir_all(&inner).unwrap();
        symlink("a/b", top.path().join("link")).unwrap();
        symlink(&inner, top.path().join("absolute")).unwrap();
        symlink("round", top.path().join("round")).unwrap();
        for way in ["a/b/x", "a/./b/../b/x", "link/x", "absolute/x"] {
            let (folder, name) = Folder::of(&top.path().join(way)).unwrap();
            assert!(name == "x" && same(&folder, &inner), "{way}");
        }
        assert!(same(&Folder::of(Path::new("x")).unwrap().0, Path::new(".")));
        let error = Folder::of(&top.path().join("round/x")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::LOOP.raw_os_error()));
        for nameless in ["", "/", "a/..", "a/b/"] {
            assert!(Folder::of(&top.path().join(nameless)).is_err() || nameless.is_empty(), "{nameless}");
        }
        assert!(Folder::of(&top.path().join("none/x")).is_err_and(|e| e.kind() == io::ErrorKind::NotFound));
    }

    /// Checks that a link of another user is refused with that user's number, and followed if it is
    /// root's.
    #[test]
    fn a_link_of_another_user() {
        if !rustix::process::geteuid().is_root() {
            return kymo_testing::skip("folder::a_link_of_another_user", "needs root");
        }
        let top = tempfile::tempdir().unwrap();
        symlink("/etc", top.path().join("link")).unwrap();
        let path = top.path().join("link/x");
        assert!(Folder::of(&path).is_ok());
        lchown(top.path().join("link"), Some(65_534), Some(65_534)).unwrap();
        let error = Folder::of(&path).unwrap_err().to_string();
        assert!(error.contains("symbolic link of user 65534"), "{error}");
    }

    /// Checks that a path is refused as exclusive where another user owns a folder of it or could
    /// write into one, and a link to it that lies in such a folder; and that `/tmp` is no obstacle.
    #[test]
    fn exclusive_folders() {
        if !rustix::process::geteuid().is_root() {
            return kymo_testing::skip("folder::exclusive_folders", "needs root");
        }
        let top = tempfile::tempdir().unwrap();
        let (home, cache) = (top.path().join("home"), top.path().join("home/cache"));
        std::fs::create_dir_all(&cache).unwrap();
        assert!(same(&Folder::exclusive(&cache).unwrap(), &cache));
        let why = || Folder::exclusive(&cache).unwrap_err().to_string();
        std::fs::set_permissions(&home, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(why().contains("other users may write into the folder"), "{}", why());
        std::fs::set_permissions(&home, std::fs::Permissions::from_mode(0o755)).unwrap();
        lchown(&home, Some(65_534), None).unwrap();
        assert!(why().contains("home belongs to user 65534"), "{}", why());
        // The link is root's, and leads to root's folder: whose folder it lies in decides.
        symlink(top.path(), home.join("link")).unwrap();
        assert!(Folder::exclusive(&home.join("link")).is_err());
    }

    /// Checks that missing folders are made, and none through a link of another user.
    #[test]
    fn folders_that_are_made() {
        let top = tempfile::tempdir().unwrap();
        let wanted = top.path().join("a/b/c");
        assert!(same(&Folder::make(&wanted).unwrap(), &wanted) && wanted.is_dir());
        assert!(Folder::make(&wanted).is_ok(), "it is there");
        if !rustix::process::geteuid().is_root() {
            return kymo_testing::skip("folder::folders_that_are_made", "a link of another user needs root");
        }
        let victim = tempfile::tempdir().unwrap();
        symlink(victim.path(), top.path().join("link")).unwrap();
        lchown(top.path().join("link"), Some(65_534), None).unwrap();
        let error = Folder::make(&top.path().join("link/x/y")).unwrap_err().to_string();
        assert!(error.contains("symbolic link of user 65534"), "{error}");
        assert!(!victim.path().join("x").exists());
    }

    /// Checks which paths stand for descriptors that were passed to us.
    #[test]
    fn descriptors() {
        let own = format!("/proc/{}/fd/4", std::process::id());
        let cases = [("/dev/stdout", Some(1)), ("/dev/fd/63", Some(63)), (own.as_str(), Some(4))];
        let none = [("/dev/fd/x", None), ("/dev/fd/-1", None), ("perf.data", None), ("/proc/1/fd/1", None)];
        for (path, number) in cases.into_iter().chain(none) {
            assert_eq!(passed_descriptor(Path::new(path)), number, "{path}");
        }
    }
}
