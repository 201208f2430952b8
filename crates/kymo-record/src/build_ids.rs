//! Build IDs of files, read from their program headers with two small reads per file.
use crate::synth;
use kymo_data::BuildId;
use kymo_data::abi::{PERF_RECORD_MISC_KERNEL, PERF_RECORD_MISC_USER};
use kymo_files::open_regular;
use kymo_perf::proc::{self, KernelModule, build_id_of_notes};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// No sane note segment is larger.
const NOTES_LIMIT: u64 = 1 << 16;

/// The GNU build ID of an ELF file; `None` if it has none, cannot be read, or is no (little-endian)
/// ELF file.
pub(crate) fn of_file(path: &Path) -> Option<Vec<u8>> {
    // Whoever is recorded names it: a pipe in its place would be waited for.
    let file = open_regular(path).ok()?;
    // The header and, in all but odd files, the program headers right behind it.
    let mut start = vec![0; 4096];
    let read = file.read_at(&mut start, 0).ok()?;
    start.truncate(read);
    if start.get(..4)? != b"\x7fELF" || *start.get(5)? != 1 {
        return None;
    }
    let wide = *start.get(4)? == 2;
    let word = |at: usize, bytes: usize| -> Option<u64> {
        let mut value = [0; 8];
        value[..bytes].copy_from_slice(start.get(at..at + bytes)?);
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

/// The build IDs of the kernel, its modules and these files, as a header has them.
pub(crate) fn of_recording(modules: &[KernelModule], files: &HashSet<Vec<u8>>) -> Vec<BuildId> {
    let entry = |misc, id: Vec<u8>, filename: Vec<u8>| BuildId { misc, pid: -1, id, filename };
    let kernel =
        proc::kernel_build_id().map(|id| entry(PERF_RECORD_MISC_KERNEL, id, b"[kernel.kallsyms]".to_vec()));
    let modules = modules.iter().filter_map(|module| {
        let id = proc::module_build_id(&module.name)?;
        Some(entry(PERF_RECORD_MISC_KERNEL, id, synth::module_file(module).into_bytes()))
    });
    let mut files: Vec<&Vec<u8>> = files.iter().collect();
    files.sort_unstable();
    let files = files.into_iter().filter_map(|name| {
        let id = of_file(&PathBuf::from(OsStr::from_bytes(name)))?;
        Some(entry(PERF_RECORD_MISC_USER, id, name.clone()))
    });
    kernel.into_iter().chain(modules).chain(files).collect()
}

#[cfg(test)]
mod tests {
    use super::of_file;
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::path::Path;

    /// Checks that a pipe that nobody writes to is no file to wait for.
    #[test]
    fn pipes() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert_eq!(of_file(&pipe), None);
        assert_eq!(of_file(Path::new("/dev/zero")), None);
    }

    /// Checks a real library against what `file`-like tools see in it: 20 bytes, and nothing for a
    /// text file, a directory and a cut ELF file.
    #[test]
    fn files() {
        let text = std::fs::read("/proc/self/maps").unwrap();
        let libc = kymo_perf::proc::Mappings::new(&text)
            .find(|map| String::from_utf8_lossy(map.path).contains("libc.so"))
            .map(|map| String::from_utf8_lossy(map.path).into_owned());
        if let Some(libc) = libc {
            assert_eq!(of_file(Path::new(&libc)).map(|id| id.len()), Some(20));
            let cut = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(cut.path(), &std::fs::read(libc).unwrap()[..100]).unwrap();
            assert_eq!(of_file(cut.path()), None);
        }
        assert_eq!(of_file(Path::new("/proc/self/maps")), None);
        assert_eq!(of_file(Path::new("/")), None);
    }
}
