//! Finds processes that generate code, among the mappings on their way to the file.

use super::{CodeSource, CodeWatch};
use crate::mapped_files::RecordedFile;
use kymo_data::{RecordCursor, abi};
use kymo_perf::hotspot::Hotspot;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// More are not watched: a machine with so many has other worries.
const MOST_PROCESSES: usize = 4096;

/// Pieces of memory that are remembered of a process.
const MOST_RANGES: usize = 4096;

/// Looks at MMAP2 records, and counts samples.
#[derive(Debug)]
pub(crate) struct CodeTap {
    watch: Arc<CodeWatch>,
    told: HashSet<(i32, CodeSource)>,
    memory: HashMap<i32, CodeMemory>,
}

/// Where a process's generated code is.
#[derive(Debug, Default)]
struct CodeMemory {
    /// First addresses, and one past the last.
    ranges: BTreeMap<u64, u64>,
    samples: u64,
    /// Files without a path that it is in; `None`: memory without a file.
    files: BTreeSet<Option<RecordedFile>>,
}

impl CodeMemory {
    /// Whether a compiler may have made it: programs and libraries lie in memfds, too.
    fn is_generated(&self) -> bool {
        self.files.iter().any(|file| !file.as_ref().is_some_and(RecordedFile::is_elf))
    }
}

impl CodeTap {
    pub(crate) fn new(watch: &Arc<CodeWatch>) -> CodeTap {
        CodeTap { watch: Arc::clone(watch), told: HashSet::new(), memory: HashMap::new() }
    }

    /// Looks at all mappings among these records.
    pub(crate) fn records(&mut self, bytes: &[u8]) {
        for record in RecordCursor::new(bytes) {
            if record.header.kind == abi::PERF_RECORD_MMAP2 {
                self.mapping(record.bytes);
            }
        }
    }

    /// Looks at an MMAP2 record.
    pub(crate) fn mapping(&mut self, record: &[u8]) {
        const PROT_AT: usize = 64;
        const NAME_AT: usize = 72;
        let executable = record.get(PROT_AT).is_some_and(|prot| prot & 4 != 0);
        let Some(name) = record.get(NAME_AT..).filter(|_| executable) else { return };
        let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        let source = match &name[..end] {
            name if Hotspot::is_library(name) => CodeSource::Hotspot,
            b"//anon" | b"" => CodeSource::Memory,
            name if is_dump(name) => CodeSource::Dump,
            name if is_memory(name) && !has_build_id(record) => CodeSource::Memory,
            _ => return self.file(record),
        };
        let pid = pid_of(record);
        if source == CodeSource::Memory
            && (self.memory.contains_key(&pid) || self.memory.len() < MOST_PROCESSES)
        {
            let (start, end) = range_of(record);
            let memory = self.memory.entry(pid).or_default();
            if memory.ranges.len() < MOST_RANGES {
                let known = memory.ranges.entry(start).or_insert(end);
                *known = end.max(*known);
                memory.files.insert(RecordedFile::of_record(record).map(|(file, _)| file));
            }
        }
        if pid > 0 && self.told.len() < MOST_PROCESSES && self.told.insert((pid, source)) {
            self.watch.add(pid, source);
        }
    }

    /// A file is mapped, or what lies here turned out to be a file's code: nothing was generated.
    fn file(&mut self, record: &[u8]) {
        if let Some(memory) = self.memory.get_mut(&pid_of(record)) {
            let (start, end) = range_of(record);
            memory.ranges.retain(|&first, _| first < start || first >= end);
        }
    }

    /// Counts a sample of a process that makes code.
    #[inline]
    pub(crate) fn sample(&mut self, pid: i32, address: u64) {
        if self.memory.is_empty() {
            return;
        }
        if let Some(memory) = self.memory.get_mut(&pid)
            && memory.ranges.range(..=address).next_back().is_some_and(|(_, &end)| address < end)
        {
            memory.samples += 1;
        }
    }

    /// How many samples lie in generated code of a process.
    pub(crate) fn samples_of(&self, pid: i32) -> u64 {
        let memory = self.memory.get(&pid).filter(|memory| memory.is_generated());
        memory.map_or(0, |memory| memory.samples)
    }
}

/// Whether a mapping's name stands for memory that a compiler may have filled.
fn is_memory(name: &[u8]) -> bool {
    let shared = [&b"/dev/zero"[..], b"/memfd:", b"/SYSV", b"[anon:", b"[anon_shmem:"];
    shared.iter().any(|prefix| name.starts_with(prefix))
        || name.starts_with(b"/dev/shm/") && name.ends_with(b" (deleted)")
}

/// Whether the file of a mapping is a program or library: no compiler gives its code a build id.
fn has_build_id(record: &[u8]) -> bool {
    RecordedFile::of_record(record).is_some_and(|(file, _)| !file.build_id.is_empty())
}

/// The process of an MMAP2 record.
fn pid_of(record: &[u8]) -> i32 {
    i32::from_le_bytes([record[8], record[9], record[10], record[11]])
}

/// The addresses of an MMAP2 record.
fn range_of(record: &[u8]) -> (u64, u64) {
    let number = |at: usize| u64::from_le_bytes(record[at..at + 8].try_into().unwrap_or_default());
    (number(16), number(16).saturating_add(number(24)))
}

/// Whether a process says by this mapping that it writes a jitdump.
fn is_dump(path: &[u8]) -> bool {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    name.starts_with(b"jit-") && name.ends_with(b".dump")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(pid: i32, prot: u8, name: &[u8]) -> Vec<u8> {
        let mut record = vec![0; 72];
        record[0] = abi::PERF_RECORD_MMAP2 as u8;
        record[8..12].copy_from_slice(&pid.to_le_bytes());
        record[64] = prot;
        record.extend_from_slice(name);
        record.resize(record.len().next_multiple_of(8) + 8, 0);
        let size = record.len() as u16;
        record[6..8].copy_from_slice(&size.to_le_bytes());
        record
    }

    fn with_build_id(mut record: Vec<u8>) -> Vec<u8> {
        record[4..6].copy_from_slice(&abi::PERF_RECORD_MISC_MMAP_BUILD_ID.to_le_bytes());
        record[40] = 20;
        record[44..64].fill(7);
        record
    }

    /// Checks which mappings say that a process generates code, and that each is told once.
    #[test]
    fn mappings() {
        let watch = Arc::new(CodeWatch::default());
        let mut tap = CodeTap::new(&watch);
        let all = [
            mapping(1, 5, b"/usr/lib/jvm/java-17/lib/server/libjvm.so"),
            mapping(1, 5, b"/usr/lib/jvm/java-17/lib/server/libjvm.so"),
            mapping(2, 3, b"//anon"),
            mapping(3, 7, b"//anon"),
            mapping(4, 5, b"/usr/bin/cat"),
            mapping(5, 5, b"/dev/zero (deleted)"),
            mapping(-1, 5, b"//anon"),
            mapping(6, 5, b"[anon: ruby yjit]"),
            mapping(7, 5, b"/memfd:doublemapper (deleted)"),
            mapping(8, 5, b"/dev/shm/jit (deleted)"),
            mapping(9, 5, b"/dev/shm/library.so"),
            with_build_id(mapping(10, 5, b"/memfd:program (deleted)")),
        ];
        tap.records(&all.concat());
        watch.end();
        let memory = |pid| (pid, CodeSource::Memory);
        let wanted = [(1, CodeSource::Hotspot), memory(3), memory(5), memory(6), memory(7), memory(8)];
        assert_eq!(watch.wait(None).0, wanted);
    }
    /// Checks that samples count as in generated code until it turns out that a file's code is
    /// there.
    #[test]
    fn code_of_a_file_is_not_generated() {
        let mut tap = CodeTap::new(&Arc::new(CodeWatch::default()));
        let at = |mut record: Vec<u8>| {
            record[16..24].copy_from_slice(&0x5000_u64.to_le_bytes());
            record[24..32].copy_from_slice(&0x1000_u64.to_le_bytes());
            record
        };
        tap.records(&at(mapping(3, 5, b"//anon")));
        tap.sample(3, 0x5100);
        assert_eq!(tap.samples_of(3), 1);
        tap.records(&at(mapping(3, 5, b"/usr/bin/program")));
        tap.sample(3, 0x5100);
        assert_eq!(tap.samples_of(3), 1);
    }
}
