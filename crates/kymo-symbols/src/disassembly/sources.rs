//! Source files, as debug information names them.
use std::fs::{File, Metadata};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use hashbrown::HashMap;

use crate::budget;
use crate::debuginfod::{BuildFile, Debuginfod};

/// Longer source files are not read.
pub const MOST_SOURCE_BYTES: u64 = 16 << 20;
/// Bytes of all source files that are held at once.
const MOST_HELD_BYTES: u64 = 64 << 20;

/// Where source files are looked for.
#[derive(Clone, Debug, Default)]
pub struct SourceOptions {
    /// A directory that stands for `/` of the recorded machine.
    pub symfs: Option<PathBuf>,
    /// What is put before the paths of source files.
    pub prefix: Option<PathBuf>,
    /// So many leading folders of these paths are left out before that.
    pub prefix_strip: usize,
}

/// A source file that was read.
#[derive(Debug)]
pub struct SourceFile {
    /// Where it lies.
    pub path: PathBuf,
    /// When it was changed last, if the file system says.
    pub modified: Option<SystemTime>,
    text: String,
    /// Where each line begins in the text.
    starts: Vec<u32>,
}

impl SourceFile {
    /// A line, counted from 1, without its end.
    #[must_use]
    pub fn line(&self, number: u32) -> Option<&str> {
        let at = number.checked_sub(1)? as usize;
        let start = *self.starts.get(at)? as usize;
        let rest = self.text.get(start..)?;
        Some(rest.split('\n').next().unwrap_or(rest).trim_end_matches('\r'))
    }

    /// All of it; bytes that are no text are replaced.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// `is_trusted`: root's own program names it, or a server had it for all users.
    fn read(path: PathBuf, room: u64, is_trusted: bool) -> io::Result<SourceFile> {
        let (mut file, metadata) = budget::open_regular(&path)?;
        if let Some(why) = refusal_of_root(&file, is_trusted) {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        let most = MOST_SOURCE_BYTES.min(room);
        let (bytes, is_all) = budget::read_stored(&mut file, most)?;
        if !is_all {
            let why = format!("it has holes, or more than the {most} bytes that are read of source files");
            return Err(io::Error::other(why));
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let ends = memchr::memchr_iter(b'\n', text.as_bytes());
        let starts = std::iter::once(0).chain(ends.map(|end| end as u32 + 1)).collect();
        let modified = Metadata::modified(&metadata).ok();
        Ok(SourceFile { path, modified, text, starts })
    }
}

/// Why root does not read a file that debug information names; `None`: it does. `is_trusted`: only
/// root could write the debug information, or a server had the file for all users.
///
/// Debug information is untrusted: it could name a file of secrets, whose lines would be shown, or
/// put into a page that is passed on. So the file must be open to all users, or to the caller of
/// sudo.
pub(crate) fn refusal_of_root(file: &File, is_trusted: bool) -> Option<&'static str> {
    let is_secret = || !kymo_files::is_readable_by_others(file).unwrap_or(false);
    (!is_trusted && rustix::process::geteuid().is_root() && is_secret()).then_some(
        "the file or a folder above it is closed to other users, \
         and as root kymo reads no such file because a program of another user names it",
    )
}

/// Source files by the names that debug information has for them, each read once.
#[derive(Debug, Default)]
pub struct SourceFiles {
    options: SourceOptions,
    /// By name, and whether it was root's own program that named it.
    files: HashMap<(Arc<str>, bool), Result<Arc<SourceFile>, String>>,
    held: u64,
    /// The build whose files are asked for, and what fetches those that are not here.
    build: Option<(Arc<Debuginfod>, Arc<[u8]>)>,
    is_named_by_root: bool,
}

impl SourceFiles {
    /// None yet.
    #[must_use]
    pub fn new(options: SourceOptions) -> SourceFiles {
        SourceFiles { options, ..SourceFiles::default() }
    }

    /// The module whose debug information names the files that are asked for from now on. Files
    /// that are not here are fetched by its build id. `is_root_owned`: only root can write the
    /// module's file, which may then name files that are closed to others.
    pub fn begin_module(
        &mut self,
        fetcher: Option<&Arc<Debuginfod>>,
        build_id: Option<&[u8]>,
        is_root_owned: bool,
    ) {
        self.build = fetcher.zip(build_id).map(|(fetcher, id)| (Arc::clone(fetcher), id.into()));
        self.is_named_by_root = is_root_owned;
    }

    fn fetched(&self, name: &str) -> Option<PathBuf> {
        let (fetcher, build_id) = self.build.as_ref()?;
        let path = Path::new(name);
        let found = path.is_absolute().then(|| fetcher.fetch(BuildFile::Source(path), build_id, path));
        found?.ok().flatten()
    }

    /// A file by its name in the debug information.
    ///
    /// # Errors
    /// Why it cannot be shown, a sentence.
    pub fn get(&mut self, name: &Arc<str>) -> Result<Arc<SourceFile>, String> {
        let key = (Arc::clone(name), self.is_named_by_root);
        if let Some(known) = self.files.get(&key) {
            return known.clone();
        }
        let path = self.options.path_of(name);
        let room = MOST_HELD_BYTES - self.held.min(MOST_HELD_BYTES);
        let local = SourceFile::read(path.clone(), room, self.is_named_by_root);
        let read = local.or_else(|error| match self.fetched(name) {
            Some(fetched) => SourceFile::read(fetched, room, true),
            None => Err(error),
        });
        let read = match read {
            Ok(file) => {
                self.held += file.text.len() as u64 + 4 * file.starts.len() as u64;
                Ok(Arc::new(file))
            }
            Err(error) => Err(format!("the source file {} cannot be read: {error}", path.display())),
        };
        self.files.insert(key, read.clone());
        read
    }
}

impl SourceOptions {
    /// Where a source file lies here. Without a prefix that is where it was compiled.
    fn path_of(&self, name: &str) -> PathBuf {
        let path = Path::new(name);
        let Some(prefix) = &self.prefix else {
            return match &self.symfs {
                Some(root) if path.is_absolute() => {
                    let parts = path.components().filter(|part| matches!(part, Component::Normal(_)));
                    root.join(parts.collect::<PathBuf>())
                }
                _ => path.to_owned(),
            };
        };
        // As objdump does: only absolute paths are changed.
        if !path.is_absolute() {
            return path.to_owned();
        }
        let parts = path.components().filter(|part| !matches!(part, Component::RootDir));
        prefix.join(parts.skip(self.prefix_strip).collect::<PathBuf>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    /// Checks how names of debug information become paths here.
    #[test]
    fn paths() {
        let at = |symfs: Option<&str>, prefix: Option<&str>, prefix_strip, name| {
            let options =
                SourceOptions { symfs: symfs.map(Into::into), prefix: prefix.map(Into::into), prefix_strip };
            options.path_of(name).display().to_string()
        };
        assert_eq!(at(None, None, 0, "/a/b/c.c"), "/a/b/c.c");
        assert_eq!(at(Some("/root"), None, 0, "/a/../b/c.c"), "/root/a/b/c.c");
        assert_eq!(at(None, Some("/p"), 0, "/a/b/c.c"), "/p/a/b/c.c");
        assert_eq!(at(None, Some("/p"), 2, "/a/b/c.c"), "/p/c.c");
        assert_eq!(at(None, Some("/p"), 2, "b/c.c"), "b/c.c");
        assert_eq!(at(None, Some("/p"), 9, "/a/b/c.c"), "/p/");
    }

    /// Checks lines with both kinds of ends, that a file is read once, and what is said of files
    /// that cannot be shown: absent, a folder, one that others than root may not read, one with more
    /// bytes than are read.
    #[test]
    fn files() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("our own");
        let path = folder.path().join("a.c");
        std::fs::write(&path, "one\r\ntwo\n\nfour").expect("a file");
        let mut files = SourceFiles::default();
        let name: Arc<str> = path.display().to_string().into();
        let file = files.get(&name).expect("it is there");
        assert_eq!(
            [0, 1, 2, 3, 4, 5].map(|n| file.line(n)),
            [None, Some("one"), Some("two"), Some(""), Some("four"), None]
        );
        std::fs::remove_file(&path).expect("removed");
        assert!(files.get(&name).is_ok(), "it was read before");
        let mut why =
            |name: &Path| files.get(&name.display().to_string().into()).expect_err("it is no source file");
        assert!(why(&folder.path().join("b.c")).contains("b.c cannot be read: No such file"));
        assert!(why(folder.path()).contains("cannot be read"));
        let large = folder.path().join("large.c");
        let file = std::fs::File::create(&large).expect("a file");
        file.set_len(MOST_SOURCE_BYTES + 1).expect("holes cost nothing");
        assert!(why(&large).contains("it has holes, or more than"));
    }

    /// Checks that root reads neither a closed file nor an open one below a closed folder because a
    /// program names it, unless only root can write that program.
    #[test]
    fn sources_below_closed_folders() {
        let folder = tempfile::tempdir().expect("a folder");
        let mode = |path: &Path, mode| {
            std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("our own");
        };
        mode(folder.path(), 0o755);
        let closed = folder.path().join("closed");
        std::fs::create_dir(&closed).expect("a folder");
        let below: Arc<str> = closed.join("notes.c").display().to_string().into();
        let secret: Arc<str> = folder.path().join("secret.c").display().to_string().into();
        for name in [&below, &secret] {
            std::fs::write(&**name, "a secret").expect("a file");
        }
        mode(&closed, 0o700);
        mode(Path::new(&*secret), 0o600);
        let is_root = rustix::process::geteuid().is_root();
        for name in [&below, &secret] {
            let mut files = SourceFiles::default();
            match files.get(name) {
                Err(why) => assert!(is_root && why.contains("closed to other users"), "{why}"),
                Ok(_) => assert!(!is_root, "root reads {name}, which a program names"),
            }
            files.begin_module(None, None, true);
            assert!(files.get(name).is_ok(), "root's own program names {name}");
            files.begin_module(None, None, false);
            assert_eq!(files.get(name).is_err(), is_root, "and another one does not have it by that");
        }
    }
}
