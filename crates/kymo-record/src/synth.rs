//! Synthesizes records of what existed before the recording: the kernel, its modules, tasks, names
//! and mappings.
use crate::mapped_files::{self, RecordedFile};
use kymo_data::abi::{PERF_RECORD_MISC_KERNEL, PERF_RECORD_MISC_USER};
use kymo_data::build::{self, MapSpec};
use kymo_data::{Attr, SampleId};
use kymo_perf::proc::{self, KernelModule, KernelText, Mappings, MapsEntry};
use kymo_symbols::unwind::Seen;
use std::collections::{HashMap, HashSet};

/// Makes sure that there is a record: perf opens no file without one. FINISHED_INIT says nothing
/// that a reader needs, and perf before 5.19 gives up at it, so it is written only if there is no
/// other.
pub(crate) fn never_empty(records: &mut Vec<u8>) {
    if records.is_empty() {
        records.extend(build::finished_init());
    }
}

/// The kernel's process id in records.
const KERNEL_PID: i32 = -1;
/// Up to so many processes one thread reads faster than several.
const SERIAL_LIMIT: usize = 64;

/// The kernel's text and its modules.
pub(crate) fn kernel(attr: &Attr, text: Option<KernelText>, modules: &[KernelModule]) -> Vec<u8> {
    let none = SampleId::default();
    let mut out = Vec::new();
    let common = MapSpec { pid: KERNEL_PID, misc: PERF_RECORD_MISC_KERNEL, ..MapSpec::default() };
    if let Some(text) = text {
        let name = format!("[kernel.kallsyms]{}", text.reference_name);
        let (addr, len, pgoff) = (text.start, text.end - text.start, text.reference);
        out.extend(build::mmap(
            attr,
            &none,
            &MapSpec { addr, len, pgoff, filename: name.as_bytes(), ..common },
        ));
    }
    for module in modules {
        let name = module_file(module);
        let (addr, len) = (module.start, module.size_bytes);
        out.extend(build::mmap(attr, &none, &MapSpec { addr, len, filename: name.as_bytes(), ..common }));
    }
    out
}

/// What a module is called in records and build IDs.
pub(crate) fn module_file(module: &KernelModule) -> String {
    module.path.clone().unwrap_or_else(|| format!("[{}]", module.name))
}

/// The name of a task whose mappings do not matter, such as a command before its exec.
pub(crate) fn name_only(attr: &Attr, pid: i32) -> Vec<u8> {
    let name = proc::comm(pid, pid).unwrap_or_default();
    build::comm(attr, &SampleId::default(), pid, pid, &name, false)
}

/// What was made up for processes.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    /// The records.
    pub(crate) records: Vec<u8>,
    /// Files that are mapped as code.
    pub(crate) files: HashSet<RecordedFile>,
    /// Build ids of files that were opened, by path and identity.
    build_ids: HashMap<RecordedFile, Option<Vec<u8>>>,
}

impl Tasks {
    /// The file of a mapping; with its build id, which is read from the file that this process has
    /// mapped. That file is held from now on.
    fn file_of(&mut self, pid: i32, map: &MapsEntry<'_>, reads: bool) -> Option<RecordedFile> {
        if !map.path.starts_with(b"/") {
            return None;
        }
        let file_id = (map.major, map.minor, map.inode);
        let mut file = RecordedFile { path: map.path.to_vec(), file_id, ..RecordedFile::default() };
        if !reads {
            return Some(file);
        }
        let seen = Seen { pid, start: map.start, end: map.end };
        let known = self.build_ids.get(&file).cloned();
        let build_id = known.unwrap_or_else(|| {
            let found = mapped_files::hold(&file, seen);
            self.build_ids.insert(file.clone(), found.clone());
            found
        });
        if let Some(build_id) = build_id {
            file = RecordedFile { build_id, file_id: (0, 0, 0), ..file };
        }
        Some(file)
    }

    fn append(&mut self, other: Tasks) {
        self.records.extend(other.records);
        self.files.extend(other.files);
    }
}

/// What is listed of each task beside its name and parent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TaskSynthesis {
    /// Mappings of code.
    pub(crate) mappings: bool,
    /// Mappings of data too.
    pub(crate) data: bool,
    /// Namespaces.
    pub(crate) namespaces: bool,
    /// Build ids of files that are mapped as code.
    pub(crate) build_ids: bool,
}

/// The paths of all cgroups that are there.
pub(crate) fn cgroups(attr: &Attr) -> Vec<u8> {
    let none = SampleId::default();
    let all = kymo_perf::cgroup::all();
    all.iter().flat_map(|cgroup| build::cgroup(attr, &none, cgroup.id, &cgroup.path)).collect()
}

/// Names and forks of these processes and all their threads, and what else is wanted, read in
/// parallel if there are many.
pub(crate) fn tasks(attr: &Attr, pids: &[i32], wanted: TaskSynthesis) -> Tasks {
    let mut all = Tasks::default();
    let threads =
        std::thread::available_parallelism().map_or(1, usize::from).min(pids.len() / SERIAL_LIMIT + 1);
    let parts: Vec<Tasks> = std::thread::scope(|scope| {
        let share = pids.len().div_ceil(threads).max(1);
        let part = |pids: &[i32]| {
            let mut part = Tasks::default();
            pids.iter().for_each(|&pid| process(attr, pid, wanted, &mut part));
            part
        };
        let mut chunks = pids.chunks(share);
        let first = chunks.next();
        // A share for which there is no thread is read here.
        let mut own = Vec::new();
        let mut others = Vec::new();
        for pids in chunks {
            match std::thread::Builder::new().spawn_scoped(scope, move || part(pids)) {
                Ok(thread) => others.push(thread),
                Err(_) => own.push(pids),
            }
        }
        let own: Vec<Tasks> = first.into_iter().chain(own).map(part).collect();
        own.into_iter().chain(others.into_iter().filter_map(|other| other.join().ok())).collect()
    });
    parts.into_iter().for_each(|part| all.append(part));
    all
}

fn process(attr: &Attr, pid: i32, wanted: TaskSynthesis, out: &mut Tasks) {
    let none = SampleId::default();
    // It may end at any moment: then whatever was read so far stays.
    let Ok(threads) = proc::tasks(pid) else { return };
    for tid in leader_first(pid, threads) {
        let Some(name) = proc::comm(pid, tid) else { continue };
        let parent = if tid == pid { proc::parent(pid).unwrap_or(0) } else { pid };
        out.records.extend(build::fork(attr, &none, pid, parent, tid, parent));
        out.records.extend(build::comm(attr, &none, pid, tid, &name, false));
        if wanted.namespaces {
            let namespaces = proc::namespaces(pid, tid);
            out.records.extend(build::namespaces(attr, &none, pid, tid, &namespaces));
        }
        if tid == pid && wanted.mappings {
            mappings(attr, pid, wanted, out);
        }
    }
}

/// Readers take a leader's FORK for a new process that has no threads yet. Ids wrap around, so a
/// thread's may be less than its leader's.
fn leader_first(pid: i32, mut threads: Vec<i32>) -> Vec<i32> {
    threads.sort_by_key(|&tid| tid != pid);
    threads
}

fn mappings(attr: &Attr, pid: i32, synthesis: TaskSynthesis, out: &mut Tasks) {
    const EXEC: u32 = 4;
    const READ: u32 = 1;
    for map in Mappings::new(&proc::maps(pid)) {
        let code = map.prot & EXEC != 0;
        let wanted = code || synthesis.data && map.prot & READ != 0;
        if !wanted {
            continue;
        }
        let misc = if code { PERF_RECORD_MISC_USER } else { PERF_RECORD_MISC_USER | MISC_MMAP_DATA };
        let file = code.then(|| out.file_of(pid, &map, synthesis.build_ids)).flatten();
        let spec = MapSpec {
            build_id: file.as_ref().map(|file| &file.build_id[..]).filter(|id| !id.is_empty()),
            pid,
            tid: pid,
            addr: map.start,
            len: map.end - map.start,
            pgoff: map.offset,
            maj: map.major,
            min: map.minor,
            ino: map.inode,
            prot: map.prot,
            flags: map.flags,
            misc,
            filename: map.path,
            ..MapSpec::default()
        };
        out.records.extend(build::mmap2(attr, &SampleId::default(), &spec));
        out.files.extend(file);
    }
}

/// A mapping of data, not of code.
const MISC_MMAP_DATA: u16 = 1 << 13;

#[cfg(test)]
mod tests {
    use super::{TaskSynthesis, leader_first};
    use kymo_data::Attr;

    fn tasks(attr: &Attr, pids: &[i32], data: bool) -> super::Tasks {
        super::tasks(attr, pids, TaskSynthesis { mappings: true, data, namespaces: false, build_ids: false })
    }

    /// Checks that this process's program is among its mappings and that a process that does not
    /// exist gives nothing.
    #[test]
    fn this_process() {
        let attr = Attr { sample_type: 0, ..Attr::default() };
        let found = tasks(&attr, &[std::process::id() as i32], false);
        let exe = std::env::current_exe().unwrap();
        assert!(found.files.iter().any(|file| file.path == exe.as_os_str().as_encoded_bytes()));
        assert!(found.records.len() > 100);
        assert!(tasks(&attr, &[i32::MAX], true).records.is_empty());
    }

    /// Checks that a process comes before its threads also where thread ids have wrapped around.
    #[test]
    fn a_leader_comes_before_its_threads() {
        assert_eq!(leader_first(900, vec![12, 40, 900, 901]), [900, 12, 40, 901]);
    }

    /// Checks that many processes read in parallel come in the same order with the same records as
    /// one by one.
    #[test]
    fn parallel_is_serial() {
        let attr = Attr::default();
        let pid = std::process::id() as i32;
        let one = tasks(&attr, &[pid], false).records.len();
        // The test's own threads come and go, so only whole lists of nothing else can be compared.
        let none = vec![i32::MAX; 500];
        assert!(tasks(&attr, &none, false).records.is_empty());
        assert!(one > 0);
    }
}
