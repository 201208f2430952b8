//! Finds the files that running processes have mapped: by path, in the process's own root, or
//! through the mapping itself.
use crate::options::Options;
use kymo_symbols::unwind::{Image, MappedFile, UnwindModules, own_vdso};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The modules of the processes that run here. `most_bytes`: what their unwind data may take.
pub(super) fn modules(most_bytes: u64) -> UnwindModules {
    UnwindModules::with_opener(Box::new(open), most_bytes)
}

/// The same, until `closed`: then nothing more is opened.
pub(crate) fn modules_of_processes(closed: impl Fn() -> bool + Send + Sync + 'static) -> UnwindModules {
    let open = move |file: &MappedFile<'_>| match closed() {
        true => Err(io::Error::other("files are not opened any more")),
        false => open(file),
    };
    UnwindModules::with_opener(Box::new(open), Options::UNWIND_BYTES)
}

fn open(file: &MappedFile<'_>) -> io::Result<Image> {
    if file.path == b"[vdso]" {
        return own_vdso();
    }
    let path = Path::new(OsStr::from_bytes(file.path));
    let inode = file.file_id.2;
    let mut places = vec![path.to_owned()];
    if let Some(seen) = file.seen {
        // A container's path means something in its root only; a file that was replaced or deleted
        // is still behind its mapping.
        let process = PathBuf::from(format!("/proc/{}", seen.pid));
        places.push(process.join("root").join(path.strip_prefix("/").unwrap_or(path)));
        places.push(process.join("map_files").join(format!("{:x}-{:x}", seen.start, seen.end)));
    }
    let mut first = None;
    for place in &places {
        match regular(place) {
            Ok((opened, found)) if inode == 0 || found == inode => return Ok(Image::File(opened)),
            other => {
                first.get_or_insert(other);
            }
        }
    }
    // File systems in layers show other inodes in mappings than in files: better that file than
    // none. Where the mapping told a build id, the reader holds the file against it.
    match first {
        Some(result) => result.map(|(opened, _)| Image::File(opened)),
        None => Err(io::ErrorKind::NotFound.into()),
    }
}

/// Opens a regular file and tells its inode. A mapped device is not a module, and opening one may
/// have effects.
fn regular(path: &Path) -> io::Result<(File, u64)> {
    let file = kymo_files::open_regular(path)?;
    let inode = file.metadata()?.ino();
    Ok((file, inode))
}

#[cfg(test)]
mod tests {
    use super::open;
    use kymo_symbols::unwind::{MappedFile, Seen};
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::MetadataExt;

    /// Checks that this program is found by its path, that another file of that path is not taken
    /// for it while its mapping is there, and that what is no file is refused.
    #[test]
    fn where_files_are_found() {
        let exe = std::env::current_exe().unwrap();
        let inode = std::fs::metadata(&exe).unwrap().ino();
        let path = exe.as_os_str().as_bytes();
        let own = MappedFile { path, file_id: (0, 0, inode), ..MappedFile::default() };
        assert!(open(&own).is_ok());
        let pid = std::process::id() as i32;
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|line| line.as_bytes().ends_with(path)).unwrap();
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let number = |text| u64::from_str_radix(text, 16).unwrap();
        let seen = Some(Seen { pid, start: number(start), end: number(end) });
        let deleted = b"/no/such/file (deleted)";
        let gone = MappedFile { path: deleted, file_id: (0, 0, inode), seen, ..MappedFile::default() };
        let link = format!("/proc/self/map_files/{start}-{end}");
        match std::fs::metadata(link) {
            Ok(_) => assert!(open(&gone).is_ok()),
            Err(error) => {
                kymo_testing::skip("reduce::files::where_files_are_found", format!("map_files: {error}"))
            }
        }
        assert!(open(&MappedFile { path: deleted, ..MappedFile::default() }).is_err());
        assert!(open(&MappedFile { path: b"/dev/null", ..MappedFile::default() }).is_err());
        assert!(open(&MappedFile { path: b"[vdso]", ..MappedFile::default() }).is_ok());
    }
}
