//! Reads from a running HotSpot virtual machine which block of its code cache holds an address, and
//! how large that block's frames are: by the tables that it has for debuggers.
use super::code_blob::{BlobKind, CodeBlob};
use kymo_perf::proc::ProcessMemory;
use kymo_symbols::{Budget, HotspotLibrary};
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

/// Bytes of an entry of the table of fields: three names, whether it is static, offset, address.
const FIELD_BYTES: usize = 48;
/// Bytes of an entry of the table of types: two names, three numbers, size.
const TYPE_BYTES: usize = 40;
/// Entries that are read; JDK 17 has 1,500 fields.
const MOST_ENTRIES: usize = 1 << 14;
/// Entries read at once.
const BATCH: usize = 64;
/// Parts of the code cache; HotSpot has at most three.
const MOST_HEAPS: u64 = 16;
/// How far before an address its block may begin, in segments (of 128 bytes by default).
const MOST_SEGMENTS: u64 = 1 << 14;
/// Bytes of a `CodeBlob` that are read.
const BLOB_BYTES: usize = 256;
/// Of longer blocks the instructions are not kept.
const MOST_CODE_BYTES: u64 = 1 << 16;
/// The types whose fields matter.
const TYPES: [&[u8]; 7] = [
    b"CodeCache",
    b"CodeHeap",
    b"VirtualSpace",
    b"GrowableArrayBase",
    b"GenericGrowableArray",
    b"GrowableArray<int>",
    b"CodeBlob",
];

/// Where the library of a machine is mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MappedLibrary {
    pub(super) pid: i32,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) offset: u64,
    pub(super) path: String,
}

/// A part of the code cache.
#[derive(Debug)]
struct CodeHeap {
    low: u64,
    high: u64,
    /// A byte for each segment: how far it is to the start of its block.
    segment_map: u64,
    log2_segment_bytes: u32,
}

/// A running machine.
#[derive(Debug)]
pub(super) struct JavaMachine {
    pub(super) library: MappedLibrary,
    pid: i32,
    memory: ProcessMemory,
    names: HotspotLibrary,
    bias: u64,
    /// Offsets of fields, and addresses of static ones, by `Type::field`.
    fields: HashMap<Vec<u8>, u64>,
    header_bytes: u64,
    heaps: Vec<CodeHeap>,
}

impl JavaMachine {
    /// Reads the tables of a machine.
    pub(super) fn open(library: &MappedLibrary, budget: &Budget) -> Option<JavaMachine> {
        let MappedLibrary { pid, start, end, offset, path } = library;
        // Through the mapping: it is that file, whatever its path means here.
        let files = [
            PathBuf::from(format!("/proc/{pid}/map_files/{start:x}-{end:x}")),
            PathBuf::from(format!("/proc/{pid}/root{path}")),
        ];
        let names = files.iter().find_map(|file| HotspotLibrary::open(file, budget))?;
        let bias = names.load_bias(*start, *offset)?;
        let memory = ProcessMemory::open(*pid).ok()?;
        let mut machine = JavaMachine {
            library: library.clone(),
            pid: *pid,
            memory,
            names,
            bias,
            fields: HashMap::new(),
            header_bytes: 0,
            heaps: Vec::new(),
        };
        machine.read_fields()?;
        machine.header_bytes = machine.type_bytes(b"HeapBlock")?;
        Some(machine)
    }

    /// The block that holds an address; `None`: none does, or it cannot be read.
    pub(super) fn blob_at(&mut self, address: u64) -> Option<CodeBlob> {
        // They are made after the library was mapped.
        if self.heaps.is_empty() {
            self.read_heaps()?;
        }
        let heap = self.heaps.iter().find(|heap| (heap.low..heap.high).contains(&address))?;
        let segment = (address - heap.low) >> heap.log2_segment_bytes;
        let first = segment.saturating_sub(MOST_SEGMENTS);
        let map = self.read(heap.segment_map.wrapping_add(first), (segment - first + 1) as usize)?;
        let mut at = map.len() - 1;
        loop {
            match map[at] {
                0 => break,
                // Free.
                0xff => return None,
                back => at = at.checked_sub(usize::from(back))?,
            }
        }
        let block = heap.low + ((first + at as u64) << heap.log2_segment_bytes);
        self.blob(block.wrapping_add(self.header_bytes)).filter(|blob| blob.range.contains(&address))
    }

    fn blob(&self, start: u64) -> Option<CodeBlob> {
        let bytes = self.read(start, BLOB_BYTES)?;
        let number = |field: &[u8]| {
            let at = usize::try_from(self.field(field)?).ok()?;
            let bytes = bytes.get(at..at.checked_add(4)?)?;
            Some(i32::from_le_bytes(bytes.try_into().ok()?))
        };
        let word = |field: &[u8]| {
            let at = usize::try_from(self.field(field)?).ok()?;
            let bytes = bytes.get(at..at.checked_add(8)?)?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        let bytes_in_all = u64::try_from(number(b"CodeBlob::_size")?).ok()?;
        let range = start..start.checked_add(bytes_in_all)?;
        let code = match word(b"CodeBlob::_code_begin") {
            Some(code) => code,
            None => start.checked_add(u64::try_from(number(b"CodeBlob::_code_offset")?).ok()?)?,
        };
        if !range.contains(&code) {
            return None;
        }
        // From JDK 23 on it has two bytes.
        let complete = number(b"CodeBlob::_frame_complete_offset")?;
        let complete =
            if self.field(b"CodeBlob::_code_begin").is_some() { complete } else { (complete as i16).into() };
        let frame_words = u32::try_from(number(b"CodeBlob::_frame_size")?).ok()?;
        let name = self.text(word(b"CodeBlob::_name")?);
        let code_bytes = (range.end - code).min(MOST_CODE_BYTES);
        let instructions = self.read(code, code_bytes as usize).unwrap_or_default();
        Some(CodeBlob {
            kind: BlobKind::of(&name, frame_words),
            complete_from: u64::try_from(complete).ok().map(|complete| code.saturating_add(complete)),
            range,
            code,
            instructions,
        })
    }

    /// Bytes of the machine's memory, if all are there.
    fn read(&self, address: u64, bytes: usize) -> Option<Vec<u8>> {
        let mut read = vec![0; bytes];
        let count = self.memory.read_resident(self.pid, address, &mut read).ok()?;
        (count == bytes).then_some(read)
    }

    fn word(&self, address: u64) -> Option<u64> {
        self.read(address, 8).and_then(|bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?)))
    }

    fn number(&self, address: u64) -> Option<u32> {
        self.read(address, 4).and_then(|bytes| Some(u32::from_le_bytes(bytes.try_into().ok()?)))
    }

    /// A name: a constant of the library, which need not be in memory, or made by the machine.
    fn text(&self, address: u64) -> Vec<u8> {
        let constant = self.names.string(address.wrapping_sub(self.bias));
        constant.or_else(|| self.read(address, 32)).unwrap_or_default()
    }

    fn field(&self, name: &[u8]) -> Option<u64> {
        self.fields.get(name).copied()
    }

    /// Hands out the entries of a table until one has no name, or `each` is content.
    fn entries<T>(&self, pointer: u64, size: usize, mut each: impl FnMut(&[u64]) -> Option<T>) -> Option<T> {
        let table = self.word(pointer.wrapping_add(self.bias))?;
        for batch in 0..MOST_ENTRIES / BATCH {
            let bytes = self.read(table.wrapping_add((batch * BATCH * size) as u64), BATCH * size)?;
            let words: Vec<u64> =
                bytes.as_chunks::<8>().0.iter().map(|&bytes| u64::from_le_bytes(bytes)).collect();
            for entry in words.chunks_exact(size / 8) {
                if entry[0] == 0 {
                    return None;
                }
                if let Some(found) = each(entry) {
                    return Some(found);
                }
            }
        }
        None
    }

    fn read_fields(&mut self) -> Option<()> {
        let mut fields = HashMap::new();
        // The names of types are the same constants in all entries.
        let mut types = BTreeMap::new();
        self.entries(self.names.fields, FIELD_BYTES, |entry| {
            let wanted = types.entry(entry[0]).or_insert_with(|| {
                let name = self.text(entry[0]);
                TYPES.contains(&name.as_slice()).then_some(name)
            });
            if let Some(owner) = wanted {
                let name = [owner, &b"::"[..], &self.text(entry[1])].concat();
                let is_static = entry[3] as u32 != 0;
                fields.insert(name, if is_static { entry[5] } else { entry[4] });
            }
            None::<()>
        });
        self.fields = fields;
        (!self.fields.is_empty()).then_some(())
    }

    fn type_bytes(&self, wanted: &[u8]) -> Option<u64> {
        self.entries(self.names.types, TYPE_BYTES, |entry| {
            (self.text(entry[0]) == wanted).then_some(entry[4])
        })
    }

    fn read_heaps(&mut self) -> Option<()> {
        let heaps = match self.field(b"CodeCache::_heaps") {
            Some(list) => {
                let list = self.word(list)?;
                let length = self.field(b"GrowableArrayBase::_len");
                let length = length.or_else(|| self.field(b"GenericGrowableArray::_len"))?;
                let count = u64::from(self.number(list.wrapping_add(length))?).min(MOST_HEAPS);
                let data = self.word(list.wrapping_add(self.field(b"GrowableArray<int>::_data")?))?;
                (0..count).filter_map(|at| self.word(data.wrapping_add(8 * at))).collect()
            }
            // Up to JDK 8.
            None => vec![self.word(self.field(b"CodeCache::_heap")?)?],
        };
        self.heaps = heaps.into_iter().filter_map(|heap| self.heap(heap)).collect();
        (!self.heaps.is_empty()).then_some(())
    }

    fn heap(&self, heap: u64) -> Option<CodeHeap> {
        let there = |offset: u64| heap.wrapping_add(offset);
        let memory = there(self.field(b"CodeHeap::_memory")?);
        let map = there(self.field(b"CodeHeap::_segmap")?);
        let low = self.word(memory.wrapping_add(self.field(b"VirtualSpace::_low_boundary")?))?;
        let high = self.word(memory.wrapping_add(self.field(b"VirtualSpace::_high_boundary")?))?;
        let segment_map = self.word(map.wrapping_add(self.field(b"VirtualSpace::_low")?))?;
        let log2_segment_bytes = self.number(there(self.field(b"CodeHeap::_log2_segment_size")?))?;
        (low < high && (3..32).contains(&log2_segment_bytes)).then_some(CodeHeap {
            low,
            high,
            segment_map,
            log2_segment_bytes,
        })
    }
}
