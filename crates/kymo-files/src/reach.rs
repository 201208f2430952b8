//! Who else could open a file: by its mode bits and those of every folder above it.
use crate::caller;
use rustix::fs::{CWD, Stat, fstat, readlinkat, stat};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

/// Bits of the mode for all other users, and for the owner.
const READ: u32 = 0o4;
const SEARCH: u32 = 0o1;
const OWNER: u32 = 6;

/// Whether every user could open this file by its path, or the user who called sudo, as the owner
/// of what is closed to others. A file below a closed folder is closed, whatever its own mode says.
///
/// Groups and access control lists are not looked at: what only they permit counts as closed. So
/// does a file without a path: one that was removed, or lies outside of this mount namespace.
///
/// # Errors
/// When /proc cannot be read, or a folder above the file has gone meanwhile.
pub fn is_readable_by_others(file: &File) -> io::Result<bool> {
    is_readable_by(file, caller::uid())
}

fn is_readable_by(file: &File, user: Option<u32>) -> io::Result<bool> {
    // The file that is open, not a path that may lead elsewhere by now.
    let name = readlinkat(CWD, format!("/proc/self/fd/{}", file.as_raw_fd()), Vec::new())?;
    let path = PathBuf::from(std::ffi::OsString::from_vec(name.into_bytes()));
    let (opened, named) = (fstat(file)?, stat(&path));
    let is_the_same = named.is_ok_and(|named| (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino));
    if !path.is_absolute() || !is_the_same {
        return Ok(false);
    }
    let permits = |stat: &Stat, bit: u32| {
        let is_owner = user.is_some_and(|user| user == stat.st_uid);
        stat.st_mode & bit != 0 || (is_owner && stat.st_mode & (bit << OWNER) != 0)
    };
    let folders = path.ancestors().skip(1).map(|folder: &Path| Ok(permits(&stat(folder)?, SEARCH)));
    let are_open = folders.collect::<io::Result<Vec<bool>>>()?.into_iter().all(|is_open| is_open);
    Ok(are_open && permits(&opened, READ))
}

#[cfg(test)]
mod tests {
    use super::is_readable_by;
    use std::fs::{self, File, Permissions};
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    /// Checks that a folder that is closed to others closes what lies below it, but not to its
    /// owner, that the file's own mode counts, and that a removed file is closed.
    #[test]
    fn files_below_closed_folders() {
        let base = tempfile::tempdir().expect("a folder");
        let mode = |path: &std::path::Path, mode| {
            fs::set_permissions(path, Permissions::from_mode(mode)).expect("our own");
        };
        mode(base.path(), 0o755);
        let folder = base.path().join("folder");
        fs::create_dir(&folder).expect("a folder");
        let path = folder.join("notes");
        fs::write(&path, "secret").expect("a file");
        let owner = fs::metadata(&path).expect("it is there").uid();
        let file = File::open(&path).expect("our own");
        for (of_folder, of_file, others, own) in [
            (0o755, 0o644, true, true),
            (0o700, 0o644, false, true),
            (0o755, 0o600, false, true),
            (0o711, 0o644, true, true),
            (0o750, 0o644, false, true),
        ] {
            mode(&folder, of_folder);
            mode(&path, of_file);
            let case = format!("{of_folder:o} {of_file:o}");
            assert_eq!(is_readable_by(&file, None).expect("it has a path"), others, "{case}");
            assert_eq!(is_readable_by(&file, Some(owner)).expect("it has a path"), own, "{case}");
            assert_eq!(is_readable_by(&file, Some(owner + 1)).expect("it has a path"), others, "{case}");
        }
        mode(&folder, 0o755);
        mode(&path, 0o644);
        fs::remove_file(&path).expect("our own");
        assert!(!is_readable_by(&file, Some(owner)).expect("it had a path"));
    }
}
