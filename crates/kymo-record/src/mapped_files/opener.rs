//! Opens the file behind a mapping: by path, in the process's own root, or through the mapping.
use kymo_files::open_regular;
use kymo_perf::proc::build_id_of_notes;
use kymo_symbols::MappedFiles;
use kymo_symbols::unwind::{FileId, MappedFile};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// No sane note segment is larger.
const NOTES_LIMIT: u64 = 1 << 16;
/// File systems whose files have other devices, and perhaps inodes, in mappings than `stat(2)`
/// tells: overlay, btrfs, bcachefs, ZFS, aufs. Source: `linux/magic.h`.
const LAYERED: [i64; 5] = [0x794c_7630, 0x9123_683e, 0xca45_1a4e, 0x2fc1_2fc1, 0x6175_6673];

/// The file that was mapped.
#[derive(Debug)]
pub(crate) struct OpenedCode {
    /// Its descriptor.
    pub(crate) file: File,
    /// Its build id, if it has one.
    pub(crate) build_id: Option<Vec<u8>>,
    /// Whether it is an ELF file.
    pub(crate) is_elf: bool,
}

/// Opens the file that was mapped.
///
/// # Errors
/// The first reason why it was not found: where another file lies at the path, that.
pub(crate) fn open(mapped: &MappedFile<'_>) -> io::Result<OpenedCode> {
    let path = Path::new(OsStr::from_bytes(mapped.path));
    if let Some(held) = MappedFiles::of_process().of_mapping(path, mapped.build_id, mapped.file_id) {
        let (build_id, is_elf) = (held.build_id.clone(), held.is_elf);
        return Ok(OpenedCode { file: held.file().try_clone()?, build_id, is_elf });
    }
    let mut first = None;
    for place in places(path, mapped) {
        match open_if_mapped(&place, mapped) {
            Ok(opened) => return Ok(opened),
            Err(error) => _ = first.get_or_insert(error),
        }
    }
    Err(first.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
}

/// A path that may lead to the file.
struct Place {
    path: PathBuf,
    /// It leads through the mapping itself.
    is_mapping: bool,
}

fn places(path: &Path, mapped: &MappedFile<'_>) -> Vec<Place> {
    let place = |path: PathBuf| Place { path, is_mapping: false };
    let mut places = vec![place(path.to_owned())];
    if let Some(seen) = mapped.seen {
        let process = PathBuf::from(format!("/proc/{}", seen.pid));
        places.push(place(process.join("root").join(path.strip_prefix("/").unwrap_or(path))));
        let range = format!("{:x}-{:x}", seen.start, seen.end);
        places.push(Place { path: process.join("map_files").join(range), is_mapping: true });
        // Not everybody may open mappings of others.
        places.push(place(process.join("exe")));
    }
    places
}

fn open_if_mapped(place: &Place, mapped: &MappedFile<'_>) -> io::Result<OpenedCode> {
    // A mapped device is not a module, and opening one may have effects.
    let file = open_regular(&place.path)?;
    let (build_id, is_elf) = build_id(&file);
    let is_it = match mapped.build_id {
        [] => is_same_inode(&file, mapped.file_id, place.is_mapping)?,
        // Some writers fill ids up with zeros.
        recorded => build_id.as_deref().is_some_and(|own| {
            recorded.starts_with(own) && recorded[own.len()..].iter().all(|&byte| byte == 0)
        }),
    };
    match is_it {
        true => Ok(OpenedCode { file, build_id, is_elf }),
        false => Err(io::Error::other("another file lies there than the one that was mapped")),
    }
}

/// Whether this is the file with the device and inode of a mapping.
fn is_same_inode(file: &File, (major, minor, inode): FileId, is_mapping: bool) -> io::Result<bool> {
    if (major, minor, inode) == (0, 0, 0) {
        return Ok(true);
    }
    let found = file.metadata()?;
    let device = (rustix::fs::major(found.dev()), rustix::fs::minor(found.dev()));
    if device == (major, minor) && found.ino() == inode {
        return Ok(true);
    }
    let is_layered = LAYERED.contains(&(rustix::fs::fstatfs(file)?.f_type as i64));
    Ok(is_layered && (is_mapping || found.ino() == inode))
}

/// The GNU build ID of a file, `None` if it has none or cannot be read, and whether it is a
/// (little-endian) ELF file: two small reads.
pub(super) fn build_id(file: &File) -> (Option<Vec<u8>>, bool) {
    // The header and, in all but odd files, the program headers right behind it.
    let mut start = vec![0; 4096];
    let read = file.read_at(&mut start, 0).unwrap_or(0);
    start.truncate(read);
    match start.starts_with(b"\x7fELF") && start.get(5) == Some(&1) {
        true => (in_notes(file, &start), true),
        false => (None, false),
    }
}

/// The build ID in the notes of a file that begins so.
fn in_notes(file: &File, start: &[u8]) -> Option<Vec<u8>> {
    let wide = *start.get(4)? == 2;
    let word = |at: usize, bytes: usize| -> Option<u64> {
        let mut value = [0; 8];
        value[..bytes].copy_from_slice(start.get(at..at.checked_add(bytes)?)?);
        Some(u64::from_le_bytes(value))
    };
    let (headers_at, size, count) = if wide {
        (word(32, 8)?, word(54, 2)?, word(56, 2)?)
    } else {
        (word(28, 4)?, word(42, 2)?, word(44, 2)?)
    };
    let headers_at = usize::try_from(headers_at).ok()?;
    for index in 0..count as usize {
        let at = headers_at.checked_add(index * size as usize)?;
        const NOTE: u64 = 4;
        if word(at, 4)? != NOTE {
            continue;
        }
        let (offset, len) =
            if wide { (word(at + 8, 8)?, word(at + 32, 8)?) } else { (word(at + 4, 4)?, word(at + 16, 4)?) };
        let mut notes = vec![0; len.min(NOTES_LIMIT) as usize];
        let read = file.read_at(&mut notes, offset).unwrap_or(0);
        if let Some(id) = build_id_of_notes(&notes[..read]) {
            return Some(id);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use kymo_symbols::unwind::Seen;

    fn file_id(path: &Path) -> FileId {
        let found = std::fs::metadata(path).unwrap();
        (rustix::fs::major(found.dev()), rustix::fs::minor(found.dev()), found.ino())
    }

    /// Checks that this program is found by its path, that another file of that path is not taken
    /// for it, also while its mapping is there, and that what is no file is refused.
    #[test]
    fn where_files_are_found() {
        let exe = std::env::current_exe().unwrap();
        let path = exe.as_os_str().as_bytes();
        let own = MappedFile { path, file_id: file_id(&exe), ..MappedFile::default() };
        let build_id = open(&own).unwrap().build_id;
        let (major, minor, inode) = own.file_id;
        for other in [(major, minor, inode + 1), (major + 1, minor, inode)] {
            assert!(open(&MappedFile { file_id: other, ..own }).is_err(), "{other:?}");
        }
        let wrong = MappedFile { build_id: &[7; 20], file_id: (0, 0, 0), ..own };
        assert!(open(&wrong).is_err());
        if let Some(build_id) = &build_id {
            assert!(open(&MappedFile { build_id, ..wrong }).is_ok());
        }
        let pid = std::process::id() as i32;
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|line| line.as_bytes().ends_with(path)).unwrap();
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let number = |text| u64::from_str_radix(text, 16).unwrap();
        let seen = Some(Seen { pid, start: number(start), end: number(end) });
        let deleted = b"/no/such/file (deleted)";
        let gone = MappedFile { path: deleted, seen, ..own };
        // Through the mapping, or as the program of the process.
        assert!(open(&gone).is_ok());
        assert!(open(&MappedFile { seen: None, ..gone }).is_err());
        assert!(open(&MappedFile { path: b"/dev/null", ..MappedFile::default() }).is_err());
    }

    /// Checks that a pipe that nobody writes to is no file to wait for.
    #[test]
    fn pipes() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR, 0).unwrap();
        let path = pipe.as_os_str().as_bytes();
        assert!(open(&MappedFile { path, ..MappedFile::default() }).is_err());
    }

    /// Checks a real library against what `file`-like tools see in it: 20 bytes, and nothing for a
    /// text file and a cut ELF file.
    #[test]
    fn build_ids() {
        let of = |path: &Path| build_id(&File::open(path).unwrap());
        let text = std::fs::read("/proc/self/maps").unwrap();
        let libc = kymo_perf::proc::Mappings::new(&text)
            .find(|map| String::from_utf8_lossy(map.path).contains("libc.so"))
            .map(|map| String::from_utf8_lossy(map.path).into_owned());
        if let Some(libc) = libc {
            assert_eq!(of(Path::new(&libc)).0.map(|id| id.len()), Some(20));
            let cut = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(cut.path(), &std::fs::read(libc).unwrap()[..100]).unwrap();
            assert_eq!(of(cut.path()), (None, true));
        }
        assert_eq!(of(Path::new("/proc/self/maps")), (None, false));
    }
}
