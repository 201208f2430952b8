//! The agent's library, embedded in this binary; never searched in the file system.
//!
//! A process that is entered gets it as a sealed file in memory. A command that is started loads it
//! by a path, because the dynamic linkers of all that it executes must find it: then it is unpacked
//! for as long as kymo runs, into a folder in which nobody but root and the own user can put
//! anything, now or when kymo has ended: what is left of the command looks for that path as long as
//! it lives.
use super::refusal::EnterError;
use rustix::fs::{
    Access, AtFlags, CWD, FlockOperation, Gid, MemfdFlags, Mode, OFlags, SealFlags, StatVfsMountFlags, Uid,
    accessat, fchmod, fcntl_add_seals, flock, fstat, fstatvfs, memfd_create, mkdirat, openat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::borrow::Cow;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

const NAME: &str = "libkymo_agent.so";
/// The name of the memory file, and so of its mapping.
const MEMORY_NAME: &str = "kymo-agent";
/// Folders that only root writes to. `/run` forbids to execute on many systems.
const OF_ROOT: [&str; 4] = ["/run", "/var/cache", "/var/lib", "/root"];
const PREFIX: &str = "kymo-agent-";

/// The library's content.
#[derive(Debug, Clone)]
pub struct Library(Cow<'static, [u8]>);

/// The library in a file, as long as this lives.
#[derive(Debug)]
pub struct Unpacked {
    path: PathBuf,
    /// The folder that it has for itself, locked: others see by that that it is used.
    folder: OwnedFd,
    /// Where that is, and its name there.
    place: OwnedFd,
    name: String,
}

impl Library {
    /// That is part of this program.
    pub const fn embedded(content: &'static [u8]) -> Library {
        Library(Cow::Borrowed(content))
    }

    /// From a file that the caller trusts as it trusts itself; for tests.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read(path: &Path) -> io::Result<Library> {
        std::fs::read(path).map(|content| Library(Cow::Owned(content)))
    }

    /// In a file in memory that nobody can change, this process included: many programs of many
    /// users are given the same.
    pub(super) fn memory(&self) -> Result<OwnedFd, EnterError> {
        if !self.0.starts_with(b"\x7fELF") {
            return Err(EnterError::NoAgent);
        }
        let made = || -> io::Result<OwnedFd> {
            let file = memfd_create(MEMORY_NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
            let mut file = File::from(file);
            file.write_all(&self.0)?;
            // Programs of other users open it.
            fchmod(&file, Mode::from_raw_mode(0o555))?;
            // Nobody has mapped it yet, so no future writes are no writes. F_SEAL_WRITE would fail
            // with EBUSY while the kernel happens to move one of its pages (memfd_wait_for_pins).
            let seals = SealFlags::FUTURE_WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
            fcntl_add_seals(&file, seals)?;
            Ok(file.into())
        };
        made().map_err(EnterError::failed("putting the agent into memory"))
    }

    /// In a file that every program of a command can load.
    ///
    /// # Errors
    /// [`EnterError::Nowhere`] where there is no folder that is safe for that.
    pub fn unpack(&self) -> Result<Unpacked, EnterError> {
        if !self.0.starts_with(b"\x7fELF") {
            return Err(EnterError::NoAgent);
        }
        let user = geteuid();
        let mut tried = Vec::new();
        for place in places(user, |name| std::env::var_os(name)) {
            match self.unpack_below(&place, user) {
                Ok(unpacked) => return Ok(unpacked),
                Err(error) => tried.push(format!("{}: {error}", place.display())),
            }
        }
        Err(EnterError::Nowhere(tried))
    }

    fn unpack_below(&self, place: &Path, user: Uid) -> io::Result<Unpacked> {
        let (parent, path) = own_folder(place, user)?;
        sweep(&parent, user);
        let name = format!("{PREFIX}{}", super::random()?);
        mkdirat(&parent, &name, Mode::from_raw_mode(0o755))?;
        let made = || -> io::Result<OwnedFd> {
            let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let folder = openat(&parent, &name, flags, Mode::empty())?;
            flock(&folder, FlockOperation::NonBlockingLockExclusive)?;
            // Whatever the umask is: the command may change its user.
            fchmod(&folder, Mode::from_raw_mode(0o755))?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mut file = File::from(openat(&folder, NAME, flags, Mode::from_raw_mode(0o555))?);
            fchmod(&file, Mode::from_raw_mode(0o555))?;
            file.write_all(&self.0)?;
            Ok(folder)
        };
        match made() {
            Ok(folder) => {
                let path = path.join(&name).join(NAME);
                Ok(Unpacked { path, folder, place: parent, name })
            }
            Err(error) => {
                remove(&parent, &name);
                Err(error)
            }
        }
    }
}

impl Unpacked {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Unpacked {
    fn drop(&mut self) {
        _ = unlinkat(&self.folder, NAME, AtFlags::empty());
        remove(&self.place, &self.name);
    }
}

/// Where it may be, the best first.
fn places(user: Uid, variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    if user.is_root() {
        // Root's variables are often those of the user who became root.
        return OF_ROOT.map(PathBuf::from).to_vec();
    }
    let named = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = named("HOME");
    let below = |name: &str| home.as_ref().map(|home| home.join(name));
    let all = [named("XDG_RUNTIME_DIR"), named("XDG_CACHE_HOME"), below(".cache"), home.clone()];
    let usual = format!("/run/user/{}", user.as_raw());
    // LD_PRELOAD is a list: no separator may be in a path.
    let is_listable =
        |path: &PathBuf| !path.as_os_str().as_bytes().iter().any(|byte| b": \t\n".contains(byte));
    let all = all.into_iter().flatten().chain([PathBuf::from(usual)]);
    all.filter(is_listable).collect()
}

/// Opens a folder of this user or of root in which, and on the way to which, nobody else can
/// exchange anything; from which programs can be executed. With its path without links.
fn own_folder(place: &Path, user: Uid) -> io::Result<(OwnedFd, PathBuf)> {
    let path = place.canonicalize()?;
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut folder = openat(CWD, "/", flags, Mode::empty())?;
    is_safe(&folder, user, true)?;
    let names: Vec<_> = path.components().filter(|part| matches!(part, Component::Normal(_))).collect();
    for (number, name) in names.iter().enumerate() {
        folder = openat(&folder, name.as_os_str(), flags, Mode::empty())?;
        is_safe(&folder, user, number + 1 < names.len())?;
    }
    if fstatvfs(&folder)?.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        return Err(io::Error::other("nothing can be executed there (noexec)"));
    }
    accessat(&folder, ".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)?;
    Ok((folder, path))
}

/// Whether nobody but root and this user can exchange what is in the folder. `sticky`: others may
/// make files of their own there.
fn is_safe(folder: impl AsFd, user: Uid, sticky: bool) -> io::Result<()> {
    let about = fstat(folder)?;
    let (owner, mode) = (Uid::from_raw(about.st_uid), about.st_mode);
    let of_roots_group = Gid::from_raw(about.st_gid).is_root();
    let others_write = mode & 0o002 != 0 || (mode & 0o020 != 0 && !of_roots_group);
    let is_sticky = mode & 0o1000 != 0;
    if !owner.is_root() && owner != user {
        return Err(io::Error::other(format!("a folder on the way belongs to user {}", owner.as_raw())));
    }
    if others_write && !(sticky && is_sticky) {
        return Err(io::Error::other("others may write to a folder on the way"));
    }
    Ok(())
}

/// Removes what a kymo left that was killed.
fn sweep(parent: &OwnedFd, user: Uid) {
    const MOST: usize = 64;
    let Ok(entries) = rustix::fs::Dir::read_from(parent) else { return };
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let named = entries.flatten().filter_map(|entry| {
        let name = entry.file_name().to_str().ok()?;
        name.starts_with(PREFIX).then(|| name.to_owned())
    });
    for name in named.take(MOST) {
        let Ok(folder) = openat(parent, &name, flags, Mode::empty()) else { continue };
        let ours = fstat(&folder).is_ok_and(|about| Uid::from_raw(about.st_uid) == user);
        if ours && flock(&folder, FlockOperation::NonBlockingLockExclusive).is_ok() {
            _ = unlinkat(&folder, NAME, AtFlags::empty());
            remove(parent, &name);
        }
    }
}

fn remove(parent: &OwnedFd, name: &str) {
    match unlinkat(parent, name, AtFlags::REMOVEDIR) {
        // Somebody else's files in it are not ours to remove.
        Ok(()) | Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOENT) => {}
        Err(error) => tracing::debug!("{name} is left in place: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{chownat, fcntl_get_seals};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};

    const LIBRARY: Library = Library::embedded(b"\x7fELF and the rest");

    /// Checks that the memory which programs are given has the library, and that nobody can change
    /// it, neither by this descriptor nor by opening it anew.
    #[test]
    fn sealed() {
        let file = File::from(LIBRARY.memory().unwrap());
        let mut read = [0; 16];
        file.read_exact_at(&mut read, 0).unwrap();
        assert_eq!(&read, b"\x7fELF and the res");
        assert!(file.write_all_at(b"x", 0).is_err() && file.set_len(1).is_err());
        let anew = format!("/proc/self/fd/{}", file.as_raw_fd());
        // Root may open it: the seal is what refuses.
        let anew = File::options().write(true).open(anew);
        assert!(anew.is_err() || anew.is_ok_and(|file| file.write_all_at(b"x", 0).is_err()));
        assert!(fcntl_get_seals(&file).unwrap().contains(SealFlags::FUTURE_WRITE | SealFlags::SEAL));
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o555);
        assert!(
            matches!(Library::embedded(b"").memory(), Err(EnterError::NoAgent)),
            "as `cargo check` has it"
        );
    }

    /// Checks that a file beside the program, in its folder, or named by the environment is never
    /// the library: anyone can put one into /tmp.
    #[test]
    fn no_library_of_others() {
        let of = |uid, name: &str, value: &str| {
            let (name, value) = (name.to_owned(), value.to_owned());
            places(Uid::from_raw(uid), move |asked| (asked == name).then(|| value.clone().into()))
        };
        for variable in ["KYMO_AGENT", "HOME", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "TMPDIR"] {
            assert_eq!(of(0, variable, "/tmp/x"), OF_ROOT.map(PathBuf::from), "{variable}");
        }
        assert!(of(1000, "KYMO_AGENT", "/tmp/x").iter().all(|place| !place.starts_with("/tmp")));
        assert_eq!(of(1000, "HOME", "/home/a")[0], Path::new("/home/a/.cache"));
        for odd in ["relative", "/home/a b", "/home/a:b"] {
            assert!(of(1000, "HOME", odd).iter().all(|place| place.starts_with("/run/user")), "{odd}");
        }
    }

    /// Checks that the library is unpacked where only its user can change it, readable for all, and
    /// gone afterwards; and that what a killed kymo
    /// left is removed by the next one while what is in use stays.
    #[test]
    fn unpacked() {
        let (base, user) = (tempfile::tempdir().unwrap(), geteuid());
        let unpacked = LIBRARY.unpack_below(base.path(), user).unwrap();
        let path = unpacked.path().to_owned();
        assert_eq!(std::fs::read(&path).unwrap(), *LIBRARY.0);
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o555);
        assert_eq!(path.parent().unwrap().metadata().unwrap().mode() & 0o777, 0o755);
        let left = base.path().join(format!("{PREFIX}left"));
        std::fs::create_dir(&left).unwrap();
        std::fs::write(left.join(NAME), "left").unwrap();
        let other = LIBRARY.unpack_below(base.path(), user).unwrap();
        assert!(path.exists() && other.path().exists() && !left.exists());
        drop(unpacked);
        assert!(!path.exists() && other.path().exists());
        drop(other);
        assert_eq!(std::fs::read_dir(base.path()).unwrap().count(), 0);
    }

    /// Checks that a folder to which others may write, or that is somebody else's, is refused, and
    /// one on the way to which that is so; a sticky folder is good enough on the way only.
    #[test]
    fn folders_of_others() {
        let (base, user) = (tempfile::tempdir().unwrap(), geteuid());
        let (outer, inner) = (base.path().join("outer"), base.path().join("outer/inner"));
        std::fs::create_dir_all(&inner).unwrap();
        let mode = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode));
        let is_good = || own_folder(&inner, user).is_ok();
        assert!(is_good());
        for (outer_mode, inner_mode, good) in
            [(0o777, 0o755, false), (0o1777, 0o755, true), (0o755, 0o777, false), (0o755, 0o1777, false)]
        {
            mode(&outer, outer_mode).unwrap();
            mode(&inner, inner_mode).unwrap();
            assert_eq!(is_good(), good, "{outer_mode:o} {inner_mode:o}");
        }
        mode(&outer, 0o755).unwrap();
        mode(&inner, 0o755).unwrap();
        if !user.is_root() {
            return kymo_testing::skip(
                "inject::library::folders_of_others",
                "needs root to give a folder away",
            );
        }
        chownat(CWD, &outer, Some(Uid::from_raw(12345)), None, AtFlags::empty()).unwrap();
        assert!(!is_good());
    }
}
