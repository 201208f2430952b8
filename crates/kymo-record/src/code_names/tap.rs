//! Finds processes that generate code, among the mappings on their way to the file.

use super::{CodeSource, CodeWatch};
use kymo_data::{RecordCursor, abi};
use kymo_perf::hotspot::Hotspot;
use std::collections::{BTreeMap, HashMap, HashSet};
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
            name if name.starts_with(b"/dev/zero") || name.starts_with(b"/memfd:") => CodeSource::Memory,
            _ => return,
        };
        let pid = i32::from_le_bytes([record[8], record[9], record[10], record[11]]);
        if source == CodeSource::Memory
            && (self.memory.contains_key(&pid) || self.memory.len() < MOST_PROCESSES)
        {
            let number = |at: usize| u64::from_le_bytes(record[at..at + 8].try_into().unwrap_or_default());
            let (start, end) = (number(16), number(16).saturating_add(number(24)));
            let memory = self.memory.entry(pid).or_default();
            if memory.ranges.len() < MOST_RANGES {
                let known = memory.ranges.entry(start).or_insert(end);
                *known = end.max(*known);
            }
        }
        if pid > 0 && self.told.len() < MOST_PROCESSES && self.told.insert((pid, source)) {
            self.watch.add(pid, source);
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
        self.memory.get(&pid).map_or(0, |memory| memory.samples)
    }
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
        ];
        tap.records(&all.concat());
        watch.end();
        let wanted = [(1, CodeSource::Hotspot), (3, CodeSource::Memory), (5, CodeSource::Memory)];
        assert_eq!(watch.wait(None).0, wanted);
    }
}
