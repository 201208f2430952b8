//! Whether a file is the one that was mapped, where no build id tells.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::machine::RecordedMachine;
use super::mapped_files::{MappedCode, MappedFiles};
use super::options::{Note, SymbolOptions};

/// Device (major, minor) and inode: two files of one name are two modules.
pub type FileId = (u32, u32, u64);

/// A mapped file of which a recording has no build id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FileState {
    /// Device and inode, all 0 where the recording does not have them.
    pub file_id: FileId,
    /// When the recording was written, if that is known: a file that changed later was not mapped.
    pub recorded_until: Option<SystemTime>,
}

impl SymbolOptions {
    /// Why the running kernel gives no names to a recording without its kernel's build id.
    pub(crate) fn kernel_refusal(&self) -> Option<Note> {
        self.machine.kernel_refusal().map(Note)
    }

    /// Why no file of this machine is one of the recording's, unless a build id proves it.
    pub(crate) fn foreign_files(&self) -> Option<Note> {
        // With `--symfs` the user vouches for them.
        self.machine.files_refusal().filter(|_| self.symfs.is_none()).map(Note)
    }

    /// The file of a module that a recorder of this process holds, where its path leads to another
    /// one.
    pub(crate) fn held_file(
        &self,
        path: &Path,
        build_id: Option<&[u8]>,
        mapped: FileState,
    ) -> Option<Arc<MappedCode>> {
        // Another root is another machine's.
        let is_own_root = self.symfs.is_none();
        is_own_root.then(|| MappedFiles::of_process().elsewhere(path, build_id, mapped.file_id)).flatten()
    }

    /// Why the file at `own` is not used for a mapped file of which the recording has no build id:
    /// it is another machine's, or it was replaced or rewritten since.
    ///
    /// With `--symfs` the user vouches for the files.
    pub(crate) fn file_refusal(&self, own: &Path, mapped: FileState) -> Option<Note> {
        if self.symfs.is_some() {
            return None;
        }
        let there = std::fs::metadata(own).ok();
        if let Some(why) = self.foreign_files() {
            // Device and inode are those of one file of one machine.
            let may_be_this = matches!(
                self.machine,
                RecordedMachine::Unknown | RecordedMachine::OtherKernel { same_host: true, .. }
            );
            let is_same = || there.as_ref().is_some_and(|there| same_file(there, mapped.file_id));
            if !(may_be_this && is_same()) {
                return Some(why);
            }
        }
        let there = there?;
        let until = mapped.recorded_until?;
        let is_same = same_file(&there, mapped.file_id);
        let why = match (is_same, mapped.file_id.2) {
            // File systems in layers give a file another inode, but not a later time.
            (false, inode) if inode != 0 && changed(&there) > until => {
                "it was replaced after the recording (another inode, and newer)"
            }
            (false, inode) if inode != 0 && !shows_other_inodes(own) => {
                "it is not the file that was mapped (another inode) in the recording"
            }
            (true, _) | (false, 0) if modified(&there) > until => "it was written after the recording",
            _ => return None,
        };
        Some(Note(format!(
            "{}: {why}, which has no build id of it; its symbols are not used (--symfs / uses it all the same)",
            own.display()
        )))
    }
}

/// Whether a file of this file system may have another device or inode in mappings than in `stat`:
/// those in layers, in user space, and with subvolumes. Source: `linux/magic.h`.
fn shows_other_inodes(path: &Path) -> bool {
    const MAGICS: [u64; 7] = [
        0x794c_7630, // OVERLAYFS_SUPER_MAGIC
        0x9123_683e, // BTRFS_SUPER_MAGIC
        0x6573_5546, // FUSE_SUPER_MAGIC
        0x0102_1997, // V9FS_MAGIC
        0xf15f,      // ECRYPTFS_SUPER_MAGIC
        0x6175_6673, // aufs
        0xca45_1a4e, // BCACHEFS_STATFS_MAGIC
    ];
    rustix::fs::statfs(path).map_or(true, |system| MAGICS.contains(&(system.f_type as u64 & 0xffff_ffff)))
}

fn same_file(there: &Metadata, (major, minor, inode): FileId) -> bool {
    let device = there.dev();
    inode != 0
        && there.ino() == inode
        && (rustix::fs::major(device), rustix::fs::minor(device)) == (major, minor)
}

fn modified(file: &Metadata) -> SystemTime {
    time(file.mtime(), file.mtime_nsec())
}

/// A file that was moved here keeps the time of its content.
fn changed(file: &Metadata) -> SystemTime {
    modified(file).max(time(file.ctime(), file.ctime_nsec()))
}

fn time(seconds: i64, nanoseconds: i64) -> SystemTime {
    let since = Duration::new(seconds.try_into().unwrap_or(0), nanoseconds.try_into().unwrap_or(0));
    SystemTime::UNIX_EPOCH + since
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a file is refused that was written or put in its place after the recording, or
    /// was always another one, that one of a layered file system (another inode, older) serves, and
    /// that --symfs vouches for any.
    #[test]
    fn files_that_changed_since() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("prog");
        std::fs::write(&path, "code").expect("written");
        let there = std::fs::metadata(&path).expect("there");
        let device = there.dev();
        let own = (rustix::fs::major(device), rustix::fs::minor(device), there.ino());
        let other = (own.0, own.1, own.2 + 1);
        let (before, after) = (there.modified().expect("a time"), Duration::from_secs(3600));
        let options = SymbolOptions::default();
        let refused = |options: &SymbolOptions, file_id, recorded_until| {
            let mapped = FileState { file_id, recorded_until: Some(recorded_until) };
            options.file_refusal(&path, mapped).map(|note| note.0)
        };
        assert_eq!(refused(&options, own, before), None, "written before");
        let older = refused(&options, other, before + after);
        assert_eq!(older.is_none(), shows_other_inodes(&path), "another file, or a file system in layers");
        let rewritten = refused(&options, own, before - after).expect("written after");
        assert!(rewritten.contains("written after the recording"), "{rewritten}");
        let replaced = refused(&options, other, before - after).expect("replaced");
        assert!(replaced.contains("replaced after the recording"), "{replaced}");
        // The time of the content is old, that of the directory entry is not.
        let file = std::fs::File::options().write(true).open(&path).expect("ours");
        file.set_modified(before - 2 * after).expect("ours");
        assert!(refused(&options, other, before - after).is_some());
        let vouched = SymbolOptions { symfs: Some("/".into()), ..SymbolOptions::default() };
        assert_eq!(refused(&vouched, other, before - after), None);
    }

    /// Checks that a recording without facts of its machine, or of another kernel of this host,
    /// gets names of the very file that was mapped, and of no other; and one of another host none.
    #[test]
    fn a_machine_in_doubt_needs_the_inode() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let there = file.as_file().metadata().expect("there");
        let (device, recorded_until) = (there.dev(), None);
        let own = (rustix::fs::major(device), rustix::fs::minor(device), there.ino());
        let other_kernel = |same_host| RecordedMachine::OtherKernel {
            shown: "desk, Linux 6.0".to_owned(),
            release: Some("6.0".to_owned()),
            same_host,
        };
        let machines =
            [(RecordedMachine::Unknown, true), (other_kernel(true), true), (other_kernel(false), false)];
        for (machine, serves) in machines {
            let options = SymbolOptions { machine, ..SymbolOptions::default() };
            let refusal = |file_id| options.file_refusal(file.path(), FileState { file_id, recorded_until });
            assert_eq!(refusal(own).is_none(), serves, "{options:?}");
            assert!(refusal((0, 0, 0)).is_some());
            assert!(refusal((own.0, own.1, own.2 + 1)).is_some());
        }
    }
}
