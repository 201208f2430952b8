//! Which recordings may be read, and their names.
use kymo_files::FolderRoot;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Component, Path, PathBuf};

/// Recordings below the folder that are listed at most.
const MOST_LISTED: usize = 200;
/// Entries of folders that are looked at for a list.
const MOST_ENTRIES: usize = 20_000;
/// Folders below the folder are looked into down to this depth.
const MOST_DEPTH: usize = 6;

/// The recordings that a client may ask about.
#[derive(Debug)]
pub struct AllowedRecordings {
    /// As the command line names them.
    named: Vec<PathBuf>,
    root: Option<(PathBuf, FolderRoot)>,
}

/// A recording that may be read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum AllowedFile {
    /// One that the command line names.
    Named(PathBuf),
    /// One below the folder, by its path from there.
    Below(PathBuf),
}

/// A list of recordings.
#[derive(Debug, Default)]
pub(crate) struct RecordingList {
    pub(crate) names: Vec<String>,
    /// There may be more: the search was cut.
    pub(crate) is_cut: bool,
}

impl AllowedRecordings {
    /// `named`: files that the user named. `root`: a folder, all of whose recordings may be read.
    ///
    /// # Errors
    /// When the folder cannot be opened.
    pub fn new(named: Vec<PathBuf>, root: Option<PathBuf>) -> io::Result<AllowedRecordings> {
        let root = root.map(|path| FolderRoot::open(&path).map(|folder| (path, folder))).transpose()?;
        Ok(AllowedRecordings { named, root })
    }

    /// The recording that a client means.
    ///
    /// # Errors
    /// A sentence; the same for files that are there and files that are not.
    pub(crate) fn find(&self, name: Option<&str>) -> Result<AllowedFile, String> {
        let Some(name) = name else {
            return match (&self.named[..], &self.root) {
                ([only], None) => Ok(AllowedFile::Named(only.clone())),
                _ => Err("which recording? give `file`; list_recordings tells what there is".into()),
            };
        };
        let path = Path::new(name);
        if self.named.iter().any(|named| named == path) {
            return Ok(AllowedFile::Named(path.to_owned()));
        }
        if let Some((root, _)) = &self.root {
            let below = path.strip_prefix(root).unwrap_or(path);
            let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
            if below.components().all(is_plain) && below.components().next().is_some() {
                return Ok(AllowedFile::Below(below.to_owned()));
            }
        }
        Err(format!(
            "'{name}' is not among the recordings of this server: list_recordings tells what there is"
        ))
    }

    /// Where a recording lies.
    pub(crate) fn path(&self, file: &AllowedFile) -> PathBuf {
        match (file, &self.root) {
            (AllowedFile::Below(below), Some((root, _))) => root.join(below),
            (AllowedFile::Named(path) | AllowedFile::Below(path), _) => path.clone(),
        }
    }

    /// Opens a recording below the folder.
    ///
    /// # Errors
    /// One sentence for all that is no recording there, so that nothing is told of other files.
    pub(crate) fn open_below(&self, below: &Path) -> Result<File, String> {
        let refusal = || format!("there is no recording {} below the folder", below.display());
        let (_, folder) = self.root.as_ref().ok_or_else(refusal)?;
        let file = folder.open_regular(below).map_err(|_| refusal())?;
        if is_recording(&file) { Ok(file) } else { Err(refusal()) }
    }

    /// The recordings: those that are named, and those below the folder.
    pub(crate) fn list(&self) -> RecordingList {
        let names = self.named.iter().map(|path| path.display().to_string()).collect();
        let mut list = RecordingList { names, is_cut: false };
        let Some((root, folder)) = &self.root else { return list };
        let mut entries = 0;
        let mut pending = vec![(PathBuf::new(), 0)];
        while let Some((below, depth)) = pending.pop() {
            let Ok(found) = std::fs::read_dir(root.join(&below)) else { continue };
            let mut found: Vec<_> = found.flatten().take(MOST_ENTRIES - entries).collect();
            entries += found.len();
            found.sort_by_key(std::fs::DirEntry::file_name);
            for entry in found {
                let path = below.join(entry.file_name());
                // Of the entry itself: a symbolic link is neither.
                let Ok(kind) = entry.file_type() else { continue };
                if kind.is_dir() && depth < MOST_DEPTH {
                    pending.push((path, depth + 1));
                } else if kind.is_file() && folder.open_regular(&path).is_ok_and(|file| is_recording(&file)) {
                    list.names.push(path.display().to_string());
                }
            }
            if entries >= MOST_ENTRIES || list.names.len() > MOST_LISTED {
                list.is_cut = true;
                list.names.truncate(MOST_LISTED);
                break;
            }
        }
        list
    }
}

/// Whether a file begins as a recording does.
fn is_recording(file: &File) -> bool {
    let mut start = [0; 8];
    file.read_exact_at(&mut start, 0).is_ok() && kymo_data::is_recording(&start)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks which names lead to a recording, and that of all others the same is said, whether
    /// they are there or not.
    #[test]
    fn names() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("root/sub")).expect("a folder");
        std::fs::write(at("root/sub/one.data"), b"PERFILE2 and more").expect("a file");
        std::fs::write(at("root/text"), b"no recording at all").expect("a file");
        std::fs::write(at("outside.data"), b"PERFILE2 and more").expect("a file");
        std::os::unix::fs::symlink("../outside.data", at("root/link.data")).expect("a link");
        let allowed = AllowedRecordings::new(vec![at("named.data")], Some(at("root"))).expect("a folder");
        let named = at("named.data").display().to_string();
        assert_eq!(allowed.find(Some(&named)), Ok(AllowedFile::Named(at("named.data"))));
        let inside = at("root/sub/one.data").display().to_string();
        for name in ["sub/one.data", &inside] {
            let found = allowed.find(Some(name)).expect(name);
            assert_eq!(found, AllowedFile::Below("sub/one.data".into()));
            assert_eq!(allowed.path(&found), at("root/sub/one.data"));
        }
        assert!(allowed.open_below(Path::new("sub/one.data")).is_ok());
        for name in ["text", "link.data", "none", "sub"] {
            let why = allowed.open_below(Path::new(name)).expect_err(name);
            assert_eq!(why, format!("there is no recording {name} below the folder"));
        }
        let outside = at("outside.data").display().to_string();
        for name in [&outside, "../outside.data", "sub/../../outside.data", "/etc/passwd", "/none", "", "/"] {
            let why = allowed.find(Some(name)).expect_err(name);
            assert!(why.starts_with(&format!("'{name}' is not among the recordings")), "{why}");
        }
        assert!(allowed.find(None).is_err());
        assert_eq!(allowed.list().names, [&named, "sub/one.data"]);
        let only = AllowedRecordings::new(vec!["a.data".into()], None).expect("no folder");
        assert_eq!(only.find(None), Ok(AllowedFile::Named("a.data".into())));
        assert!(only.find(Some("b.data")).is_err());
    }
}
