//! Sets of mappings in versions that share what did not change.
use super::ModuleId;
use std::sync::Arc;

/// A piece of an address space that shows a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// First address, as in the process (AVMA).
    pub start: u64,
    /// One past the last address.
    pub end: u64,
    /// Offset of `start` in the module's file, bytes.
    pub pgoff: u64,
    /// What is mapped.
    pub module: ModuleId,
    /// The process that mapped it, whose perf map names generated code; 0 for the kernel's.
    pub pid: i32,
    /// Addresses are looked up as they are, not as file offsets (generated code, the kernel).
    pub identity: bool,
    /// Code may run here.
    pub executable: bool,
}

impl Mapping {
    /// An address of the process in the module's own terms: a file offset, or itself where the mapping is an identity.
    pub fn module_address(&self, address: u64) -> u64 {
        if self.identity { address } else { address.wrapping_sub(self.start).wrapping_add(self.pgoff) }
    }

    /// The part of the mapping from `from` on.
    fn tail(&self, from: u64) -> Mapping {
        Mapping { start: from, pgoff: self.pgoff.wrapping_add(from - self.start), ..*self }
    }
}

/// All mappings of a recording, by index; sets hold indices.
#[derive(Debug, Default)]
pub struct Mappings {
    list: Vec<Mapping>,
}

impl Mappings {
    /// Adds a mapping and gives its index.
    pub fn add(&mut self, mapping: Mapping) -> u32 {
        self.list.push(mapping);
        (self.list.len() - 1) as u32
    }

    /// The mapping of an index given by this table.
    pub fn get(&self, index: u32) -> &Mapping {
        &self.list[index as usize]
    }
}

/// Chunks are split beyond this length: a new version copies one chunk and the list of chunks.
const CHUNK: usize = 64;

/// The mappings of one address space at one time, sorted by start, never overlapping (I4). Cloning is cheap.
#[derive(Debug, Clone, Default)]
pub struct MapSet {
    chunks: Vec<Arc<Vec<u32>>>,
}

impl MapSet {
    /// The mapping that covers `address`.
    pub fn find<'a>(&self, mappings: &'a Mappings, address: u64) -> Option<&'a Mapping> {
        let chunk = self.chunks.partition_point(|c| mappings.get(c[0]).start <= address).checked_sub(1)?;
        let chunk = &self.chunks[chunk];
        let slot = chunk.partition_point(|&m| mappings.get(m).start <= address).checked_sub(1)?;
        let mapping = mappings.get(chunk[slot]);
        (address < mapping.end).then_some(mapping)
    }

    /// All mappings in order of their addresses.
    pub fn iter<'a>(&'a self, mappings: &'a Mappings) -> impl Iterator<Item = &'a Mapping> + 'a {
        self.chunks.iter().flat_map(|c| c.iter()).map(|&m| mappings.get(m))
    }

    /// How many mappings.
    pub fn len(&self) -> usize {
        self.chunks.iter().map(|c| c.len()).sum()
    }

    /// No mapping at all.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Adds a mapping; what it covers of older ones is cut away, their uncovered ends stay.
    pub fn insert(&mut self, mappings: &mut Mappings, new: Mapping) {
        if new.start >= new.end {
            return;
        }
        let mut remains = Vec::new();
        self.remove_overlapping(mappings, new.start, new.end, &mut remains);
        for old in remains {
            if old.start < new.start {
                let head = mappings.add(Mapping { end: new.start, ..old });
                self.insert_index(mappings, head);
            }
            if old.end > new.end {
                let tail = mappings.add(old.tail(new.end));
                self.insert_index(mappings, tail);
            }
        }
        let index = mappings.add(new);
        self.insert_index(mappings, index);
    }

    fn remove_overlapping(&mut self, mappings: &Mappings, start: u64, end: u64, removed: &mut Vec<Mapping>) {
        // The first chunk that can overlap is the last that begins at or before `start`.
        let mut at = self.chunks.partition_point(|c| mappings.get(c[0]).start <= start).saturating_sub(1);
        while at < self.chunks.len() {
            let chunk = &self.chunks[at];
            if mappings.get(chunk[0]).start >= end {
                break;
            }
            let overlaps = |&m: &u32| {
                let mapping = mappings.get(m);
                mapping.start < end && start < mapping.end
            };
            if chunk.iter().any(overlaps) {
                removed.extend(chunk.iter().filter(|m| overlaps(m)).map(|&m| *mappings.get(m)));
                Arc::make_mut(&mut self.chunks[at]).retain(|m| !overlaps(m));
                if self.chunks[at].is_empty() {
                    self.chunks.remove(at);
                    continue;
                }
            }
            at += 1;
        }
    }

    fn insert_index(&mut self, mappings: &Mappings, index: u32) {
        let start = mappings.get(index).start;
        if self.chunks.is_empty() {
            self.chunks.push(Arc::new(vec![index]));
            return;
        }
        let at = self.chunks.partition_point(|c| mappings.get(c[0]).start <= start).saturating_sub(1);
        let chunk = Arc::make_mut(&mut self.chunks[at]);
        let slot = chunk.partition_point(|&m| mappings.get(m).start <= start);
        chunk.insert(slot, index);
        if chunk.len() > 2 * CHUNK {
            let upper = chunk.split_off(CHUNK);
            self.chunks.insert(at + 1, Arc::new(upper));
        }
    }
}
