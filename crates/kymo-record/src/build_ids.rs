//! The table of build IDs in a recording's header.
//!
//! The table knows files by their paths. Where several files were mapped from one path, it cannot
//! say which is meant: then each file's device and inode tell, in a record of its own.
use crate::mapped_files::{self, RecordedFile};
use crate::synth;
use kymo_data::abi::{PERF_RECORD_MISC_KERNEL, PERF_RECORD_MISC_USER};
use kymo_data::{BuildId, FileBuildId};
use kymo_perf::proc::{self, KernelModule};
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// The build IDs of a recording's files.
#[derive(Debug, Default)]
pub(crate) struct FileBuildIds {
    /// Paths with the ID that holds for every mapping of them.
    by_path: Vec<(Vec<u8>, Vec<u8>)>,
    /// Files that share their path with others.
    by_file: Vec<FileBuildId>,
}

impl FileBuildIds {
    /// Those of files that were mapped as code; none unless they are wanted.
    pub(crate) fn of(files: &HashSet<RecordedFile>, wanted: bool) -> FileBuildIds {
        match wanted {
            true => FileBuildIds::read(files, |file| mapped_files::open(&file.mapped(None)).ok()?.build_id),
            false => FileBuildIds::default(),
        }
    }

    /// `read`: the ID of a file whose records have none.
    fn read(files: &HashSet<RecordedFile>, read: impl Fn(&RecordedFile) -> Option<Vec<u8>>) -> FileBuildIds {
        let mut by_path: BTreeMap<&[u8], BTreeSet<&RecordedFile>> = BTreeMap::new();
        files.iter().for_each(|file| _ = by_path.entry(&file.path).or_default().insert(file));
        let mut all = FileBuildIds::default();
        for (path, files) in by_path {
            let id = |file: &RecordedFile| match file.build_id.is_empty() {
                false => Some(file.build_id.clone()),
                true => read(file),
            };
            let read: Vec<_> = files.iter().map(|file| (*file, id(file))).collect();
            let ids: BTreeSet<&Option<Vec<u8>>> = read.iter().map(|(_, id)| id).collect();
            let are_told = files.iter().all(|file| !file.build_id.is_empty());
            if ids.len() == 1 || are_told {
                all.by_path.extend(ids.into_iter().flatten().map(|id| (path.to_vec(), id.clone())));
                continue;
            }
            let untold = read.into_iter().filter(|(file, _)| file.build_id.is_empty());
            all.by_file.extend(untold.filter_map(|(file, id)| {
                Some(FileBuildId { path: path.to_vec(), file_id: file.file_id, id: id? })
            }));
        }
        all
    }

    /// Records for the recording, of what the table cannot say.
    pub(crate) fn records(&self) -> Vec<u8> {
        self.by_file.iter().filter_map(FileBuildId::record).flatten().collect()
    }

    /// The table of the header, with the kernel and its modules.
    pub(crate) fn table(self, modules: &[KernelModule]) -> Vec<BuildId> {
        let kernel = kernel_build_id();
        let modules = modules.iter().filter_map(|module| {
            let id = proc::module_build_id(&module.name)?;
            Some(entry(PERF_RECORD_MISC_KERNEL, id, synth::module_file(module).into_bytes()))
        });
        let files = self.by_path.into_iter().map(|(path, id)| entry(PERF_RECORD_MISC_USER, id, path));
        kernel.into_iter().chain(modules).chain(files).collect()
    }
}

fn entry(misc: u16, id: Vec<u8>, filename: Vec<u8>) -> BuildId {
    BuildId { misc, pid: -1, id, filename }
}

/// The entry of the kernel that runs.
pub(crate) fn kernel_build_id() -> Option<BuildId> {
    proc::kernel_build_id().map(|id| entry(PERF_RECORD_MISC_KERNEL, id, b"[kernel.kallsyms]".to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a path has a build ID in the table if that is right for every mapping of the
    /// path: readers take it for all mappings whose records have none.
    #[test]
    fn a_path_that_means_several_files() {
        let file = |id: u8, inode: u64| RecordedFile {
            path: b"/srv/prog".to_vec(),
            build_id: if id == 0 { Vec::new() } else { vec![id; 20] },
            file_id: (0, 0, inode),
        };
        let of = |files: &[RecordedFile]| {
            let read = |file: &RecordedFile| (file.file_id.2 < 9).then(|| vec![file.file_id.2 as u8; 20]);
            let all = FileBuildIds::read(&files.iter().cloned().collect(), read);
            let by_path: Vec<u8> = all.by_path.iter().map(|(_, id)| id[0]).collect();
            let by_file: Vec<_> = all.by_file.iter().map(|file| (file.file_id.2, file.id[0])).collect();
            (by_path, by_file)
        };
        let by_path = |ids: &[u8]| (ids.to_vec(), Vec::new());
        assert_eq!(of(&[file(5, 0)]), by_path(&[5]));
        assert_eq!(of(&[file(0, 5)]), by_path(&[5]));
        assert_eq!(of(&[file(5, 0), file(0, 5)]), by_path(&[5]), "the same file");
        assert_eq!(of(&[file(5, 0), file(6, 0)]), by_path(&[5, 6]), "each mapping has its own");
        assert_eq!(of(&[file(0, 5), file(0, 6)]), (Vec::new(), vec![(5, 5), (6, 6)]));
        assert_eq!(of(&[file(5, 0), file(0, 6)]), (Vec::new(), vec![(6, 6)]));
        assert_eq!(of(&[file(0, 5), file(0, 9)]), (Vec::new(), vec![(5, 5)]), "one is not known");
        assert_eq!(of(&[file(0, 9)]), by_path(&[]));
    }
}
