//! Files below a folder that another process names: never one outside of it.
use crate::read::{READ, regular};
use crate::refused;
use rustix::fs::{CWD, Mode, OFlags, openat};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path};

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::DIRECTORY);

/// A folder whose files may be read, whoever names them.
#[derive(Debug)]
pub struct FolderRoot {
    folder: OwnedFd,
}

impl FolderRoot {
    /// Opens the folder. What its path leads to at this moment stays the root, whatever is put in
    /// its place.
    ///
    /// # Errors
    /// What `open(2)` says, also where it is no directory.
    pub fn open(path: &Path) -> io::Result<FolderRoot> {
        Ok(FolderRoot { folder: openat(CWD, path, FOLDER, Mode::empty())? })
    }

    /// Opens a regular file by its path from the root. Each folder on the way is opened by its
    /// name in the one before, and no symbolic link is followed: so the file lies below the root,
    /// also while others move folders.
    ///
    /// # Errors
    /// `InvalidInput` for a path that is absolute or has `..` in it, and for what is no regular
    /// file; else what `open(2)` says: `ELOOP` or `ENOTDIR` for a symbolic link.
    pub fn open_regular(&self, path: &Path) -> io::Result<File> {
        let mut names = Vec::new();
        for part in path.components() {
            match part {
                Component::Normal(name) => names.push(name),
                Component::CurDir => {}
                _ => return Err(refused("the path leads out of the folder")),
            }
        }
        let Some(file) = names.pop() else { return Err(refused("the path names no file")) };
        let mut folder: Option<OwnedFd> = None;
        for name in names {
            let from = folder.as_ref().unwrap_or(&self.folder);
            folder = Some(openat(from, name, FOLDER | OFlags::NOFOLLOW, Mode::empty())?);
        }
        let from = folder.as_ref().unwrap_or(&self.folder);
        regular(openat(from, file, READ | OFlags::NOFOLLOW, Mode::empty())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// Checks that files below the root are opened, and that nothing else is: by `..`, by an
    /// absolute path, by symbolic links to files and folders, and no folder or pipe.
    #[test]
    fn only_files_below_the_root() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("root/a/b")).unwrap();
        fs::write(at("outside"), "secret").unwrap();
        fs::write(at("root/a/b/file"), "text").unwrap();
        symlink("../outside", at("root/link")).unwrap();
        symlink("..", at("root/up")).unwrap();
        symlink("a", at("root/to-a")).unwrap();
        let root = FolderRoot::open(&at("root")).unwrap();
        let opens = |path: &str| root.open_regular(Path::new(path)).is_ok();
        assert!(opens("a/b/file") && opens("./a//b/./file"));
        let outside = at("outside");
        for path in [
            "",
            ".",
            "/",
            "..",
            "../outside",
            "a/../../outside",
            "a/../a/b/file",
            outside.to_str().unwrap(),
            "link",
            "up/outside",
            "to-a/b/file",
            "a/b",
            "a/b/file/x",
            "none",
        ] {
            assert!(!opens(path), "{path}");
        }
        // A folder that is moved away stays the root.
        fs::rename(at("root"), at("moved")).unwrap();
        fs::create_dir(at("root")).unwrap();
        assert!(opens("a/b/file"));
    }
}
