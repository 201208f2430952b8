//! Callers of Java frames: how HotSpot's compiled code, interpreter and stubs lay out frames is read
//! from the running machine, once for each block of its code cache.
//!
//! HotSpot's compiled code has neither unwind data nor a frame pointer, and its frames are full of
//! return addresses of earlier calls. A search on the stack would find those. What is not known
//! here ends the chain.
//!
//! - `machine`: reads the code cache. `code_blob`: what a block says about frames.
mod code_blob;
mod machine;

use super::generated_bytes::GeneratedBytes;
use super::side_reader::SideReader;
use code_blob::CodeBlob;
use kymo_symbols::Budget;
use kymo_symbols::unwind::{AddressSpace, CodeRules, GeneratedCode, GeneratedFrame};
use machine::{JavaMachine, MappedLibrary};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The library that is a machine.
const LIBRARY: &str = "/libjvm.so";
/// How long a block is believed to be the same: machines drop code and put other code there.
const FRESH: Duration = Duration::from_secs(10);
/// Instructions that are kept of all blocks.
const MOST_BYTES: usize = 32 << 20;
/// Addresses without a block that are remembered, of one machine.
const MOST_UNKNOWN: usize = 1 << 12;
/// Machines that are known at once.
const MOST_MACHINES: usize = 64;

/// How long it takes until something is asked for again that could not be read, or led to no code:
/// the machine may still be starting, or has other code there now.
const RETRY: Duration = Duration::from_millis(20);

/// A machine, and an address of its code; `None`: its tables will be needed.
#[derive(Debug)]
struct BlobQuestion {
    library: MappedLibrary,
    address: Option<u64>,
}

#[derive(Debug)]
struct BlobAnswer {
    pid: i32,
    address: Option<u64>,
    blob: Option<CodeBlob>,
}

/// What is known of a process's code.
#[derive(Debug)]
struct KnownMachine {
    /// `None`: the process is no such machine.
    library: Option<MappedLibrary>,
    /// By the first address.
    blobs: BTreeMap<u64, (CodeBlob, Instant)>,
    unknown: FxHashMap<u64, Instant>,
}

/// The code of all Java virtual machines that are observed.
#[derive(Debug)]
pub(super) struct JavaFrames {
    reader: SideReader<BlobQuestion, BlobAnswer>,
    machines: FxHashMap<i32, KnownMachine>,
    kept_bytes: usize,
}

/// The generated code of one process.
pub(super) struct ProcessCode<'a> {
    pub(super) frames: &'a mut JavaFrames,
    /// Bytes of code that is not Java's.
    pub(super) bytes: &'a mut GeneratedBytes,
    pub(super) pid: i32,
    pub(super) space: &'a AddressSpace,
}

impl Default for JavaFrames {
    fn default() -> JavaFrames {
        JavaFrames { reader: SideReader::new("java frames"), machines: FxHashMap::default(), kept_bytes: 0 }
    }
}

impl JavaFrames {
    /// The process is new, or has another program now.
    pub(super) fn forget(&mut self, pid: i32) {
        self.machines.remove(&pid);
    }

    /// Has the tables of a machine read, before its code is met.
    pub(super) fn mapped(&mut self, pid: i32, (start, end): (u64, u64), offset: u64, path: &[u8]) {
        if path.ends_with(LIBRARY.as_bytes()) {
            let path = String::from_utf8_lossy(path).into_owned();
            let library = MappedLibrary { pid, start, end, offset, path };
            self.reader.ask_ahead(BlobQuestion { library, address: None }, read_blobs);
        }
    }

    fn keep(&mut self, answer: BlobAnswer) {
        if self.kept_bytes > MOST_BYTES {
            self.machines.values_mut().for_each(|machine| machine.blobs.clear());
            self.kept_bytes = 0;
        }
        let Some(machine) = self.machines.get_mut(&answer.pid) else { return };
        match (answer.blob, answer.address) {
            (Some(blob), _) => {
                self.kept_bytes += blob.instructions.len() + size_of::<CodeBlob>();
                // Blocks that lay there before are gone.
                let range = blob.range.clone();
                machine.blobs.retain(|&start, (old, _)| start >= range.end || old.range.end <= range.start);
                machine.blobs.insert(range.start, (blob, Instant::now()));
            }
            (None, Some(address)) => {
                if machine.unknown.len() >= MOST_UNKNOWN {
                    machine.unknown.clear();
                }
                machine.unknown.insert(address, Instant::now());
            }
            (None, None) => {}
        }
    }
}

impl KnownMachine {
    fn of(pid: i32, space: &AddressSpace) -> KnownMachine {
        let library = space.mappings().iter().find_map(|mapping| {
            let path = mapping.module.as_ref()?.name();
            let library =
                MappedLibrary { pid, start: mapping.start, end: mapping.end, offset: mapping.pgoff, path };
            library.path.ends_with(LIBRARY).then_some(library)
        });
        KnownMachine { library, blobs: BTreeMap::new(), unknown: FxHashMap::default() }
    }

    fn blob(&self, address: u64) -> Option<&CodeBlob> {
        let (_, (blob, read)) = self.blobs.range(..=address).next_back()?;
        (address < blob.range.end && read.elapsed() < FRESH).then_some(blob)
    }
}

impl GeneratedCode for ProcessCode<'_> {
    fn frame_at(&mut self, address: u64, is_innermost: bool) -> Option<GeneratedFrame> {
        let ProcessCode { frames, pid, space, .. } = self;
        if frames.machines.len() >= MOST_MACHINES && !frames.machines.contains_key(pid) {
            frames.machines.clear();
            frames.kept_bytes = 0;
        }
        let machine = frames.machines.entry(*pid).or_insert_with(|| KnownMachine::of(*pid, space));
        let library = machine.library.as_ref()?;
        if let Some(blob) = machine.blob(address) {
            return Some(blob.frame_at(address, is_innermost));
        }
        let library = library.clone();
        if let Some(answer) = frames.reader.late_answer() {
            frames.keep(answer);
        }
        let is_unknown = |machine: &KnownMachine| {
            machine.unknown.get(&address).is_some_and(|since| since.elapsed() < RETRY)
        };
        if !frames.machines.get(pid).is_some_and(is_unknown)
            && let Some(answer) =
                frames.reader.ask(BlobQuestion { library, address: Some(address) }, read_blobs)
        {
            frames.keep(answer);
        }
        let blob = frames.machines.get(pid).and_then(|machine| machine.blob(address));
        Some(blob.map_or(GeneratedFrame::Unknown, |blob| blob.frame_at(address, is_innermost)))
    }

    fn frame_at_again(&mut self, address: u64, is_innermost: bool) -> Option<GeneratedFrame> {
        let machine = self.frames.machines.get_mut(&self.pid)?;
        let (&start, (blob, read)) = machine.blobs.range(..=address).next_back()?;
        if address >= blob.range.end || read.elapsed() < RETRY {
            return None;
        }
        machine.blobs.remove(&start);
        self.frame_at(address, is_innermost)
    }

    fn bytes_at(&mut self, address: u64, most: u64) -> Option<Vec<u8>> {
        self.bytes.bytes_at(self.pid, address, most)
    }

    fn rules(&mut self) -> Option<&mut CodeRules> {
        Some(self.bytes.rules(self.pid))
    }
}

/// What the thread does that reads: it knows the machines that it was asked about.
fn read_blobs() -> impl FnMut(BlobQuestion) -> BlobAnswer + Send + 'static {
    let budget = Budget::new();
    let mut machines: FxHashMap<i32, (Option<JavaMachine>, Instant)> = FxHashMap::default();
    move |BlobQuestion { library, address }| {
        let pid = library.pid;
        if machines.len() >= MOST_MACHINES && !machines.contains_key(&pid) {
            machines.clear();
        }
        let is_known = machines.get(&pid).is_some_and(|(machine, opened)| match machine {
            Some(machine) => machine.library == library,
            None => opened.elapsed() < RETRY,
        });
        if !is_known {
            machines.insert(pid, (JavaMachine::open(&library, &budget), Instant::now()));
        }
        let machine = machines.get_mut(&pid).and_then(|(machine, _)| machine.as_mut());
        let blob = machine.zip(address).and_then(|(machine, address)| machine.blob_at(address));
        BlobAnswer { pid, address, blob }
    }
}
