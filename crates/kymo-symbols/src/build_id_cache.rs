//! The build-id cache: copies of executables and libraries by build id, laid out as perf's `~/.debug`.
//!
//! ```text
//!  ROOT/usr/bin/ls/15dfff.../elf         the copy
//!  ROOT/.build-id/15/dfff... -> ../../usr/bin/ls/15dfff...
//! ```
//!
//! The folder must belong to this user or to root, and no other user may write into it, nor, for
//! root, change a folder above it: then no link in it is another user's, and paths below it can be
//! followed.
use super::elf::ElfFile;
use super::locate;
use super::mapped_files::MappedCode;
use super::options::SymbolOptions;
use kymo_files::Folder;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, symlink};
use std::path::{Component, Path, PathBuf};

/// The folder of links, below the cache's folder.
const LINKS: &str = ".build-id";
/// Entries that are listed: more than any cache has.
const MOST_ENTRIES: usize = 1 << 20;

/// Why the cache was not read or changed.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// There is neither an option, nor `PERF_BUILDID_DIR`, nor `HOME`.
    #[error(
        "no folder for the build-id cache: HOME is not set, or is another user's; name one with `--buildid-dir DIR`"
    )]
    NoFolder,
    /// Another user could put a link or another folder in its place.
    #[error("the build-id cache {0} is not used: {1}")]
    Replaceable(PathBuf, io::Error),
    /// Another user could change the cache.
    #[error(
        "{0} belongs to user {1} or others may write into it: the build-id cache must be the caller's own folder"
    )]
    Untrusted(PathBuf, u32),
    /// Nothing to file it under.
    #[error("{0} has no build id: it is no ELF file, or was linked without --build-id")]
    NoBuildId(PathBuf),
    /// The system refused.
    #[error("{0}: {1}")]
    Io(PathBuf, io::Error),
}

/// A file in the cache.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct CacheEntry {
    /// Build id in hexadecimal digits.
    pub build_id: String,
    /// Where the file lay when it was added, or a name such as `[kernel.kallsyms]`.
    pub path: String,
}

/// The build-id cache of this user.
#[derive(Debug)]
pub struct BuildIdCache {
    root: PathBuf,
}

/// The build id of an ELF file, in hexadecimal digits.
///
/// # Errors
/// When the file cannot be read or has none.
pub fn build_id_of(path: &Path, options: &SymbolOptions) -> Result<String, CacheError> {
    build_id_bytes(path, options).map(|id| hex(&id))
}

/// The build id of an ELF file.
///
/// # Errors
/// As [`build_id_of`].
pub fn build_id_bytes(path: &Path, options: &SymbolOptions) -> Result<Vec<u8>, CacheError> {
    // What the system says about the file is told first: the ELF reader only says that it has no symbols.
    let exists = fs::metadata(path).map_err(|error| CacheError::Io(path.to_owned(), error));
    let file = exists.map(|_| ElfFile::open(path, &options.budget))?;
    file.ok().and_then(|file| file.build_id()).ok_or_else(|| CacheError::NoBuildId(path.to_owned()))
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl BuildIdCache {
    /// The cache that the options name. The folder need not be there.
    ///
    /// # Errors
    /// When there is no folder to take, or another user could change it.
    pub fn of(options: &SymbolOptions) -> Result<BuildIdCache, CacheError> {
        let root = locate::build_id_cache(options).ok_or(CacheError::NoFolder)?;
        match fs::metadata(&root) {
            Ok(meta) => {
                let own = meta.uid() == rustix::process::geteuid().as_raw() || meta.uid() == 0;
                if !own || meta.mode() & 0o022 != 0 {
                    return Err(CacheError::Untrusted(root, meta.uid()));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(CacheError::Io(root, error)),
        }
        let is_root = rustix::process::geteuid().is_root();
        let opened = match is_root {
            true => Folder::exclusive(&root),
            false => Folder::of(&root.join(LINKS)).map(|(folder, _)| folder),
        };
        if let Err(error) = opened
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(CacheError::Replaceable(root, error));
        }
        Ok(BuildIdCache { root })
    }

    /// The cache's folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Copies a file into the cache, under its real path; returns its build id. One that is there already stays.
    ///
    /// # Errors
    /// When the file has no build id, or the system refuses.
    pub fn add(&self, file: &Path, options: &SymbolOptions) -> Result<String, CacheError> {
        let id = build_id_of(file, options)?;
        let real = fs::canonicalize(file).map_err(|error| CacheError::Io(file.to_owned(), error))?;
        self.add_copy(&real, &real, &id)?;
        Ok(id)
    }

    /// Copies a file that is held open into the cache, under the path that it was mapped from;
    /// false if there is one of its build id already, or it has none.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn add_held(&self, file: &MappedCode) -> Result<bool, CacheError> {
        let Some(id) = file.build_id.as_deref().map(hex) else { return Ok(false) };
        if self.places(&id).is_some_and(|(folder, _)| self.root.join(folder).join("elf").exists()) {
            return Ok(false);
        }
        let path = file.path.to_string_lossy();
        let path = Path::new(path.strip_suffix(" (deleted)").unwrap_or(&path));
        self.add_copy(path, &file.held_path(), &id).map(|()| true)
    }

    /// Copies `source` into the cache as the file of a path and build id.
    fn add_copy(&self, path: &Path, source: &Path, id: &str) -> Result<(), CacheError> {
        let folder = self.below(path).join(id);
        let at = |error| CacheError::Io(folder.clone(), error);
        if !folder.join("elf").exists() {
            make_folders(&folder).map_err(at)?;
            copy(source, &folder).map_err(at)?;
        }
        let link = self.link(id);
        if let Some(parent) = link.parent() {
            make_folders(parent).map_err(at)?;
        }
        let target = Path::new("../..").join(relative(path)).join(id);
        match symlink(&target, &link) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            done => done.map_err(|error| CacheError::Io(link, error)),
        }
    }

    /// Makes sure that a file is in the cache; false if it is not, and has another build id.
    ///
    /// # Errors
    /// As [`BuildIdCache::add`].
    pub fn keep(&self, file: &Path, build_id: &str, options: &SymbolOptions) -> Result<bool, CacheError> {
        if self.places(build_id).is_some() {
            return Ok(true);
        }
        if build_id_of(file, options)? != build_id {
            return Ok(false);
        }
        self.add(file, options).map(|_| true)
    }

    /// Removes what is cached of a build id; false if nothing is.
    ///
    /// # Errors
    /// What the system says.
    pub fn remove(&self, build_id: &str) -> Result<bool, CacheError> {
        let link = self.link(build_id);
        let Ok(target) = fs::read_link(&link) else { return Ok(false) };
        let at = |error| CacheError::Io(link.clone(), error);
        if let Some(path) = path_of(&target) {
            match fs::remove_dir_all(self.below(&path).join(build_id)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                done => done.map_err(at)?,
            }
        }
        fs::remove_file(&link).map_err(at)?;
        Ok(true)
    }

    /// All entries, by path and build id.
    ///
    /// # Errors
    /// What the system says.
    pub fn entries(&self) -> Result<Vec<CacheEntry>, CacheError> {
        let at = |error| CacheError::Io(self.root.clone(), error);
        let mut entries = Vec::new();
        for first in names(&self.root.join(LINKS)).map_err(at)? {
            for rest in names(&self.root.join(LINKS).join(&first)).map_err(at)? {
                let build_id = format!("{first}{rest}");
                let target = fs::read_link(self.link(&build_id));
                if let Some(path) = target.ok().as_deref().and_then(path_of) {
                    entries.push(CacheEntry { build_id, path: path.to_string_lossy().into_owned() });
                }
                if entries.len() == MOST_ENTRIES {
                    return Ok(entries);
                }
            }
        }
        entries.sort_by(|a, b| (&a.path, &a.build_id).cmp(&(&b.path, &b.build_id)));
        Ok(entries)
    }

    /// The folder of a build id and its link, both below the cache's folder; `None` where nothing is cached.
    pub fn places(&self, build_id: &str) -> Option<(PathBuf, PathBuf)> {
        let link = self.link(build_id);
        let path = path_of(&fs::read_link(&link).ok()?)?;
        let folder = self.below(&path).join(build_id);
        let relative = |path: PathBuf| path.strip_prefix(&self.root).map(Path::to_owned).ok();
        folder.is_dir().then_some(())?;
        Some((relative(folder)?, relative(link)?))
    }

    fn below(&self, path: &Path) -> PathBuf {
        self.root.join(relative(path))
    }

    fn link(&self, build_id: &str) -> PathBuf {
        let (first, rest) = build_id.split_at_checked(2).unwrap_or((build_id, ""));
        self.root.join(LINKS).join(first).join(rest)
    }
}

/// A path below another folder: without its root, and without steps upwards.
fn relative(path: &Path) -> PathBuf {
    path.components().filter(|part| matches!(part, Component::Normal(_))).collect()
}

/// The path that a link of the cache stands for: `../../usr/bin/ls/ID` is of `/usr/bin/ls`.
fn path_of(target: &Path) -> Option<PathBuf> {
    let path = relative(target.parent()?);
    let bare = path.to_str().is_some_and(|text| text.starts_with('['));
    Some(if bare { path } else { Path::new("/").join(path) })
}

fn names(folder: &Path) -> io::Result<Vec<String>> {
    match fs::read_dir(folder) {
        Ok(list) => Ok(list
            .flatten()
            .take(MOST_ENTRIES)
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| name.bytes().all(|byte| byte.is_ascii_hexdigit()))
            .collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn make_folders(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().recursive(true).mode(0o755).create(folder)
}

/// Copies into `folder/elf`, which appears when it is whole. It may be executed where the file may be.
fn copy(file: &Path, folder: &Path) -> io::Result<()> {
    let mut from = kymo_files::open_regular(file)?;
    let mode = from.metadata()?.mode() & 0o755 | 0o400;
    let unfinished = folder.join(format!(".elf.{}", std::process::id()));
    let mut to = OpenOptions::new().write(true).create_new(true).mode(mode).open(&unfinished)?;
    let done = io::copy(&mut from, &mut to).and_then(|_| fs::rename(&unfinished, folder.join("elf")));
    if done.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(root: &Path) -> SymbolOptions {
        SymbolOptions { buildid_dir: Some(root.to_owned()), ..SymbolOptions::default() }
    }

    /// Checks that a file that is added is listed and found, and is gone after it was removed.
    #[test]
    fn adds_lists_removes() {
        let folder = tempfile::tempdir().expect("a folder");
        let options = options(&folder.path().join("cache"));
        let cache = BuildIdCache::of(&options).expect("our own folder");
        assert_eq!(cache.entries().expect("no folder is no entry"), []);
        let program = std::env::current_exe().expect("this program");
        let id = match cache.add(&program, &options) {
            Ok(id) => id,
            Err(CacheError::NoBuildId(_)) => {
                return kymo_testing::skip("symbols::adds_lists_removes", "linked without a build id");
            }
            Err(error) => panic!("{error}"),
        };
        assert_eq!(cache.add(&program, &options).expect("once more"), id);
        let entries = cache.entries().expect("a list");
        assert_eq!(entries.len(), 1);
        assert_eq!((&entries[0].build_id, &entries[0].path[..]), (&id, program.to_str().expect("text")));
        let (copied, _) = cache.places(&id).expect("it is there");
        let copied = cache.root().join(copied).join("elf");
        assert_eq!(fs::read(copied).expect("the copy"), fs::read(&program).expect("the file"));
        assert!(cache.remove(&id).expect("removed"));
        assert!(!cache.remove(&id).expect("nothing left"));
        assert_eq!(cache.entries().expect("a list"), []);
    }

    /// Checks that a folder that others may write into is refused, and that a file without a build id is named.
    #[test]
    fn refuses() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        let options = options(folder.path());
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("ours");
        let refused = BuildIdCache::of(&options).expect_err("others may write");
        assert!(matches!(refused, CacheError::Untrusted(..)), "{refused}");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("ours");
        let text = folder.path().join("text");
        fs::write(&text, "no program").expect("written");
        let refused = BuildIdCache::of(&options).expect("ours").add(&text, &options).expect_err("no ELF");
        assert!(refused.to_string().contains("has no build id"), "{refused}");
    }

    /// Checks that root's cache does not lie behind a link of another user, nor below a folder of
    /// another user, and that nothing is made there.
    #[test]
    fn no_cache_through_links_of_other_users() {
        if !rustix::process::geteuid().is_root() {
            return kymo_testing::skip("symbols::no_cache_through_links_of_other_users", "needs root");
        }
        let (home, victim) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let link = home.path().join(".debug");
        symlink(victim.path(), &link).expect("a link");
        std::os::unix::fs::lchown(&link, Some(65_534), None).expect("root may");
        let refused = BuildIdCache::of(&options(&link)).expect_err("a link of another user");
        assert!(refused.to_string().contains("symbolic link of user 65534"), "{refused}");
        std::os::unix::fs::chown(home.path(), Some(65_534), None).expect("root may");
        let refused = BuildIdCache::of(&options(&home.path().join("none"))).expect_err("its folder");
        assert!(refused.to_string().contains("belongs to user 65534"), "{refused}");
        assert_eq!(fs::read_dir(victim.path()).expect("ours").count(), 0);
    }

    /// Checks that a program that was deleted is found by its build id, and added once.
    #[test]
    fn a_deleted_program() {
        let folder = tempfile::tempdir().expect("a folder");
        let (cache, program) = (folder.path().join("cache"), folder.path().join("program"));
        fs::copy(std::env::current_exe().expect("this program"), &program).expect("copied");
        let Ok(id) = build_id_bytes(&program, &SymbolOptions::default()) else {
            return kymo_testing::skip("symbols::a_deleted_program", "linked without a build id");
        };
        let mapped_path = folder.path().join("program (deleted)");
        let file = fs::File::open(&program).expect("it is there");
        let held = MappedCode::new(&mapped_path, (0, 0, 7), (Some(id.clone()), true), file);
        let size = fs::metadata(&program).expect("it is there").len();
        fs::remove_file(&program).expect("deleted");
        let cache = BuildIdCache::of(&options(&cache)).expect("ours");
        assert!(cache.add_held(&held).expect("copied") && !cache.add_held(&held).expect("known"));
        let (copied, _) = cache.places(&hex(&id)).expect("it is there");
        let copy = cache.root().join(copied).join("elf");
        assert_eq!(fs::metadata(copy).expect("the copy").len(), size);
        assert_eq!(cache.entries().expect("a list")[0].path, program.to_string_lossy());
    }

    /// Checks that links lead to names inside of the cache, whatever they say.
    #[test]
    fn links_stay_inside() {
        assert_eq!(path_of(Path::new("../../usr/bin/ls/15df")), Some("/usr/bin/ls".into()));
        assert_eq!(path_of(Path::new("../../[kernel.kallsyms]/15df")), Some("[kernel.kallsyms]".into()));
        assert_eq!(relative(Path::new("/a/../../b")), Path::new("a/b"));
    }
}
