//! The files that processes have mapped as code: found, identified, and held while they last.
//!
//! ```text
//!  records of mappings --FileTap--> [FileWatch] --> thread: opens files, reads build ids
//!                                                      | MappedFiles (kymo-symbols)
//!  build ids of the recording, unwinder, names  <------'
//! ```
//! A path is the mapping process's word. In a container or a chroot it means another file, an
//! update puts another file there, and a deleted file or a memfd has none. What decides is the
//! build id that the kernel read from the mapping, else device and inode.
//!
//! # Invariants
//! - **M1** A file is taken only if its build id is the mapping's, or where the mapping tells none,
//!   its device and inode are.
//! - **M2** No stage of the recording waits for a file to be opened: a thread of its own does that.
//! - **M3** What is remembered is bounded, whatever processes map.

mod holder;
mod names;
mod opener;

pub(crate) use holder::{FileTap, FileWatch, hold};
pub(crate) use names::GoneFiles;
pub(crate) use opener::open;

use kymo_data::{abi, holds_build_id};
use kymo_symbols::MappedFiles;
use kymo_symbols::unwind::{FileId, MappedFile, Seen};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A file as records of mappings tell of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RecordedFile {
    /// The path in the mapping process.
    pub(crate) path: Vec<u8>,
    /// The build id; empty if the record has none.
    pub(crate) build_id: Vec<u8>,
    /// Device and inode; 0 if the record has a build id instead.
    pub(crate) file_id: FileId,
}

impl RecordedFile {
    /// The file of an MMAP2 record that maps code, and where; `None` for data, and for memory
    /// without a file.
    pub(crate) fn of_record(record: &[u8]) -> Option<(RecordedFile, Seen)> {
        const IDENTITY_AT: usize = 40;
        const PROT_AT: usize = 64;
        const NAME_AT: usize = 72;
        let u32_at = |at: usize| Some(u32::from_le_bytes(record.get(at..at + 4)?.try_into().ok()?));
        let u64_at = |at: usize| Some(u64::from_le_bytes(record.get(at..at + 8)?.try_into().ok()?));
        let name = record.get(NAME_AT..).filter(|_| record[PROT_AT] & 4 != 0)?;
        let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        let path = &name[..end];
        if !path.starts_with(b"/") || path.starts_with(b"//") {
            return None;
        }
        let misc = u16::from_le_bytes([record[4], record[5]]);
        let identity = &record[IDENTITY_AT..PROT_AT];
        let mut file = RecordedFile { path: path.to_vec(), ..RecordedFile::default() };
        if misc & abi::PERF_RECORD_MISC_MMAP_BUILD_ID != 0 && holds_build_id(identity) {
            file.build_id = identity[4..4 + usize::from(identity[0])].to_vec();
        } else {
            file.file_id = (u32_at(IDENTITY_AT)?, u32_at(IDENTITY_AT + 4)?, u64_at(IDENTITY_AT + 8)?);
        }
        let start = u64_at(16)?;
        let seen = Seen { pid: u32_at(8)?.cast_signed(), start, end: start.saturating_add(u64_at(24)?) };
        Some((file, seen))
    }

    /// Whether it is known to be a program or library.
    pub(crate) fn is_elf(&self) -> bool {
        let path = Path::new(OsStr::from_bytes(&self.path));
        let held = MappedFiles::of_process().of_mapping(path, &self.build_id, self.file_id);
        held.is_some_and(|file| file.is_elf)
    }

    /// The same for the opener. `seen`: who had it mapped where.
    pub(crate) fn mapped(&self, seen: Option<Seen>) -> MappedFile<'_> {
        MappedFile { path: &self.path, build_id: &self.build_id, file_id: self.file_id, seen }
    }
}
