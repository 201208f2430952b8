//! A recording that is written by something else than a recorder, whole or not at all.
use crate::previous;
use kymo_files::{Folder, Fresh};
use rustix::fs::Mode;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Writes a recording that gets its name when it is whole. Only its owner may read it. It takes the
/// place of nothing, of an empty file or of a recording: no other file of the user is replaced.
///
/// # Errors
/// Those of `write`, those of the system, and a sentence about what is in the way.
pub fn write_whole<E: From<io::Error>>(
    path: &Path,
    write: impl FnOnce(&File) -> Result<(), E>,
) -> Result<(), E> {
    let (folder, name) = Folder::of(path)?;
    // Before the work, and again before the name is taken.
    previous::judge_file(&folder, &name)?;
    let folder = Arc::new(folder);
    let mut fresh = Fresh::create(Arc::clone(&folder), &name, Mode::RUSR | Mode::WUSR)?;
    write(fresh.file())?;
    previous::judge_file(&folder, &name)?;
    fresh.replace(&name)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    /// Checks that a file of the user stays as it is, and that recordings and empty files are
    /// replaced.
    #[test]
    fn no_other_file_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |path: &Path, text: &str| {
            write_whole::<io::Error>(path, |mut file: &File| file.write_all(text.as_bytes()))
        };
        let path = folder.path().join("notes.txt");
        std::fs::write(&path, "of the user").expect("a file");
        assert!(write(&path, "PERFILE2").is_err());
        assert_eq!(std::fs::read_to_string(&path).expect("it is there"), "of the user");
        for before in [None, Some(""), Some("PERFILE2 and more")] {
            let path = folder.path().join("perf.data");
            _ = std::fs::remove_file(&path);
            if let Some(before) = before {
                std::fs::write(&path, before).expect("a file");
            }
            write(&path, "PERFILE2 new").expect("it may be replaced");
            assert_eq!(std::fs::read_to_string(&path).expect("it is there"), "PERFILE2 new");
        }
        assert!(write(folder.path(), "PERFILE2").is_err(), "a directory stays");
    }
}
