//! The file that already has the output's name: an earlier recording is kept as `NAME.old`,
//! anything else is left alone.
//!
//! # Invariants
//! - **P1** Only recordings are moved or removed: files that begin with perf.data's magic number,
//!   and directories that hold nothing but `data` and `data.N`, of which `data` is one. An empty
//!   file is replaced; there is nothing in it.
//! - **P2** What it is, is read through a descriptor, never through a name that could lead
//!   elsewhere by now.
use kymo_data::is_recording;
use kymo_files::{Folder, Identity, Input, kind_name};
use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, fstat, openat, readlinkat, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

/// What stands where a recording is to go.
#[derive(Debug)]
pub(crate) enum Previous {
    Nothing,
    /// A file of no bytes.
    Empty,
    /// A recording that is a file.
    File(Identity),
    /// A recording that is a directory, and its files.
    Directory(Identity, OwnedFd, Vec<OsString>),
}

fn refused(sentence: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, sentence.into())
}

/// Looks at what has this name.
///
/// # Errors
/// A sentence that says why it is no recording.
pub(crate) fn look(folder: &Folder, name: &OsStr) -> io::Result<Previous> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
    let file = match openat(folder, name, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(Previous::Nothing),
        Err(Errno::LOOP) => return Err(link(folder, name)),
        Err(Errno::NXIO | Errno::NODEV) => {
            return Err(refused("it is a socket or a device, not a recording"));
        }
        Err(errno) => {
            let why = io::Error::from(errno);
            return Err(refused(format!("it cannot be read to see whether it is a recording: {why}")));
        }
    };
    let stat = fstat(&file)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile if stat.st_size == 0 => Ok(Previous::Empty),
        FileType::RegularFile if begins_as_recording(&file) => Ok(Previous::File(Identity::from(&stat))),
        FileType::RegularFile => {
            Err(refused("it is a file, but no recording (it does not begin with PERFILE2)"))
        }
        FileType::Directory => {
            let files = files_of_recording(&file)?;
            Ok(Previous::Directory(Identity::from(&stat), file, files))
        }
        kind => Err(refused(format!("it is {}, not a recording", kind_name(kind)))),
    }
}

fn link(folder: &Folder, name: &OsStr) -> io::Error {
    let to = readlinkat(folder, name, Vec::new()).unwrap_or_default();
    refused(format!(
        "it is a symbolic link to {}; name that file itself",
        OsStr::from_bytes(to.as_bytes()).display()
    ))
}

fn begins_as_recording(file: impl AsFd) -> bool {
    let mut start = [0; 8];
    rustix::io::pread(file, &mut start, 0).is_ok_and(|read| is_recording(&start[..read]))
}

/// The names in a directory that `perf record --threads` wrote.
fn files_of_recording(directory: &OwnedFd) -> io::Result<Vec<OsString>> {
    let (mut names, mut main) = (Vec::new(), false);
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name == b"." || name == b".." {
            continue;
        }
        let name = OsStr::from_bytes(&name).to_owned();
        let number = name.as_bytes().strip_prefix(b"data.");
        let is_data = name == "data";
        let fits = is_data || number.is_some_and(|n| !n.is_empty() && n.iter().all(u8::is_ascii_digit));
        let file = Input::regular_in(directory, &name).ok().filter(|_| fits);
        let Some(file) = file else {
            return Err(refused(format!(
                "it is a directory, but no recording: {} in it is none of a recording's files",
                name.display()
            )));
        };
        main |= is_data && begins_as_recording(&file);
        names.push(name);
    }
    if main {
        Ok(names)
    } else {
        Err(refused("it is a directory, but no recording: there is no `data` in it that is one"))
    }
}

/// Whether `name` and what is in the place of `NAME.old` may be touched. Changes nothing.
///
/// # Errors
/// The name that is in the way, and a sentence why.
pub(crate) fn judge(folder: &Folder, name: &OsStr) -> Result<(), (OsString, io::Error)> {
    match look(folder, name).map_err(|why| (name.to_owned(), why))? {
        Previous::Nothing | Previous::Empty => Ok(()),
        Previous::File(_) | Previous::Directory(..) => {
            let old = old_name(name);
            look(folder, &old).map(drop).map_err(|why| (old, why))
        }
    }
}

/// Whether a file may take the place of what has this name: nothing, an empty file, or a recording
/// that is a file. Changes nothing.
///
/// # Errors
/// A sentence why not.
pub(crate) fn judge_file(folder: &Folder, name: &OsStr) -> io::Result<()> {
    match look(folder, name)? {
        Previous::Nothing | Previous::Empty | Previous::File(_) => Ok(()),
        Previous::Directory(..) => Err(refused("it is a directory")),
    }
}

/// Makes room for a new recording: the one that has the name becomes `NAME.old`, and takes the
/// place of the one that was called so.
///
/// # Errors
/// The name that is in the way, and a sentence why.
pub(crate) fn make_room(folder: &Folder, name: &OsStr) -> Result<(), (OsString, io::Error)> {
    let at = |name: &OsStr| {
        let name = name.to_owned();
        move |why: io::Error| (name, why)
    };
    let (identity, is_file) = match look(folder, name).map_err(at(name))? {
        Previous::Nothing => return Ok(()),
        // It may have another owner or mode than ours will have.
        Previous::Empty => {
            return unlinkat(folder, name, AtFlags::empty()).map_err(|errno| at(name)(errno.into()));
        }
        Previous::File(identity) => (identity, true),
        Previous::Directory(identity, ..) => (identity, false),
    };
    let old = old_name(name);
    let previous = look(folder, &old).map_err(at(&old))?;
    if is_file && matches!(previous, Previous::Empty | Previous::File(_)) {
        // In one step, so that there is an old recording at every moment.
        renameat(folder, name, folder, &old).map_err(|errno| at(name)(errno.into()))?;
    } else {
        remove(folder, &old, previous).map_err(at(&old))?;
        folder.rename_to_free(name, &old).map_err(at(name))?;
    }
    // Whoever may change the folder may have exchanged it since it was looked at: then it goes
    // back.
    let stat = statat(folder, &old, AtFlags::SYMLINK_NOFOLLOW).map_err(|errno| at(&old)(errno.into()))?;
    if Identity::from(&stat) != identity {
        let _ = folder.rename_to_free(&old, name);
        return Err(at(name)(refused("it was exchanged for something else meanwhile")));
    }
    Ok(())
}

/// Removes a recording, and nothing that has come to its place.
fn remove(folder: &Folder, name: &OsStr, previous: Previous) -> io::Result<()> {
    match previous {
        Previous::Nothing => Ok(()),
        Previous::Empty | Previous::File(_) => Ok(unlinkat(folder, name, AtFlags::empty())?),
        Previous::Directory(_, directory, files) => {
            // Names in the directory that was looked at, wherever it is called so now; and a
            // directory is removed only if it is empty.
            for file in files {
                unlinkat(&directory, file, AtFlags::empty())?;
            }
            Ok(unlinkat(folder, name, AtFlags::REMOVEDIR)?)
        }
    }
}

fn old_name(name: &OsStr) -> OsString {
    let mut old = name.to_owned();
    old.push(".old");
    old
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    fn folder(path: &Path) -> Folder {
        Folder::of(&path.join("x")).unwrap().0
    }

    fn room(path: &Path) -> Result<(), String> {
        let result = make_room(&folder(path), OsStr::new("x"));
        result.map_err(|(name, why)| format!("{}: {why}", name.display()))
    }

    fn recording(path: &Path, rest: &str) {
        fs::write(path, format!("PERFILE2{rest}")).unwrap();
    }

    /// Checks that recordings, files and directories in all four combinations, become `x.old` in
    /// the place of the one before.
    #[test]
    fn an_old_recording_is_kept() {
        for (first, second) in [(false, false), (false, true), (true, false), (true, true)] {
            let top = tempfile::tempdir().unwrap();
            let (path, old) = (top.path().join("x"), top.path().join("x.old"));
            for (is_directory, rest) in [(first, "first"), (second, "second")] {
                if is_directory {
                    fs::create_dir(&path).unwrap();
                    recording(&path.join("data"), rest);
                    fs::write(path.join("data.0"), rest).unwrap();
                } else {
                    recording(&path, rest);
                }
                room(top.path()).unwrap();
                let file = if is_directory { old.join("data") } else { old.clone() };
                assert_eq!(fs::read(file).unwrap(), format!("PERFILE2{rest}").as_bytes());
                assert!(!path.exists());
            }
        }
    }

    /// Checks that nothing but a recording is moved or removed, in the place of the new one and in
    /// that of the old one, and that the reason is said.
    #[test]
    fn what_is_no_recording_is_left_alone() {
        type Make = fn(&Path);
        let cases: [(&str, Make); 6] = [
            ("no recording (it does not", |path| fs::write(path, "a letter").unwrap()),
            ("thesis.tex in it is none", |path| {
                fs::create_dir(path).unwrap();
                recording(&path.join("data"), "");
                fs::write(path.join("thesis.tex"), "years").unwrap();
            }),
            ("there is no `data`", |path| fs::create_dir(path).unwrap()),
            ("data.1 in it is none", |path| {
                fs::create_dir_all(path.join("data.1")).unwrap();
                recording(&path.join("data"), "");
            }),
            ("symbolic link to elsewhere", |path| std::os::unix::fs::symlink("elsewhere", path).unwrap()),
            ("a named pipe", |path| {
                rustix::fs::mknodat(rustix::fs::CWD, path, FileType::Fifo, Mode::RWXU, 0).unwrap();
            }),
        ];
        for (reason, make) in cases {
            for name in ["x", "x.old"] {
                let top = tempfile::tempdir().unwrap();
                let path = top.path().join(name);
                make(&path);
                if name == "x.old" {
                    recording(&top.path().join("x"), "mine");
                }
                let before = tree(top.path());
                let said = room(top.path()).unwrap_err();
                assert!(said.starts_with(&format!("{name}: ")) && said.contains(reason), "{said}");
                assert!(judge(&folder(top.path()), OsStr::new("x")).is_err());
                assert_eq!(tree(top.path()), before, "{reason}");
            }
        }
    }

    /// All names below a folder, with what their files hold.
    fn tree(path: &Path) -> Vec<(String, Vec<u8>)> {
        let mut all = Vec::new();
        for entry in fs::read_dir(path).unwrap() {
            let path = entry.unwrap().path();
            let kind = fs::symlink_metadata(&path).unwrap();
            all.push((
                path.display().to_string(),
                if kind.is_file() { fs::read(&path).unwrap() } else { vec![] },
            ));
            if kind.is_dir() {
                all.extend(tree(&path));
            }
        }
        all.sort();
        all
    }
}
