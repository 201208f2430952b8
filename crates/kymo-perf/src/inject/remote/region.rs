//! Memory in the target, near its code: stubs, counters that both see, and what is the target's
//! alone.
use super::super::connection::{Door, close, give};
use super::super::counters::{DirtyPages, SharedCounters};
use super::super::hijacked_thread::HijackedThread;
use super::super::memory;
use super::super::refusal::EnterError;
use super::super::rings;
use super::super::target::TargetProcess;
use crate::proc::{Mappings, MapsEntry};
use crate::ring::Ring;
use crate::sys::possible_cpus;
use rustix::fs::{FlockOperation, flock, fstat, major, minor};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// As the target's list of mappings names the memory with stubs.
const STUBS: &str = "kymo-stubs";
/// As it names the words that both see.
const WORDS: &str = "kymo-counters";
const PAGE_BYTES: u64 = 4096;
/// All rings together: jumps have to reach what lies beside them.
const MOST_RING_BYTES: usize = 512 << 20;
/// The data of a ring, at least.
const LEAST_RING_BYTES: usize = 64 << 10;
/// Before the sizes of a region: `kymoregn`.
const SIZES_MARK: u64 = u64::from_le_bytes(*b"kymoregn");
/// `MAP_FIXED_NOREPLACE`.
const FIXED: u64 = 0x10_0000;

/// How much memory is needed.
#[derive(Clone, Copy, Debug)]
pub struct RegionSizes {
    /// For stubs.
    pub code_bytes: u64,
    /// Words that both processes see.
    pub words: u32,
    /// Of the target alone, and wiped in forked children: the first byte is 1, all others are 0.
    pub private_bytes: u64,
    /// For events.
    pub rings: Option<RingSizes>,
}

/// Rings for events, one for each CPU.
#[derive(Clone, Copy, Debug)]
pub struct RingSizes {
    /// CPUs.
    pub cpus: u32,
    /// The data of each, a power of two of at least 4096 bytes, at most 1 GiB.
    pub data_bytes: u32,
    /// Of each record, a power of two, 16 to 4096, where many threads write a ring at once
    /// ([`kymo_core::ring::slots`]); `None`: there is one writer at a time.
    pub slot_bytes: Option<u32>,
}

impl RingSizes {
    /// For all CPUs that this machine can have, with about so many bytes of data each.
    #[must_use]
    pub fn new(data_bytes: usize, slot_bytes: Option<u32>) -> RingSizes {
        let cpus = possible_cpus().max(1);
        let most = (MOST_RING_BYTES / cpus as usize).max(LEAST_RING_BYTES);
        let data_bytes = 1 << data_bytes.clamp(LEAST_RING_BYTES, most).ilog2();
        RingSizes { cpus, data_bytes, slot_bytes }
    }

    /// From one ring's page to the next one's.
    #[must_use]
    pub fn stride_bytes(&self) -> u64 {
        PAGE_BYTES + u64::from(self.data_bytes)
    }

    fn bytes(&self) -> u64 {
        self.stride_bytes() * u64::from(self.cpus)
    }
}

impl RegionSizes {
    /// All of it, in whole pages.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.code() + self.shared() + self.private() + self.rings()
    }

    fn code(&self) -> u64 {
        self.code_bytes.next_multiple_of(PAGE_BYTES)
    }

    fn shared(&self) -> u64 {
        (u64::from(self.words) * 8).next_multiple_of(PAGE_BYTES)
    }

    fn private(&self) -> u64 {
        self.private_bytes.next_multiple_of(PAGE_BYTES)
    }

    fn rings(&self) -> u64 {
        self.rings.map_or(0, |rings| rings.bytes())
    }

    /// As they are written behind the code: a mark, and the bytes of the four parts.
    fn written(&self) -> [[u8; 8]; 5] {
        [SIZES_MARK, self.code(), self.shared(), self.private(), self.rings()].map(u64::to_le_bytes)
    }
}

/// Memory that a process has mapped for stubs.
#[derive(Debug)]
pub struct RemoteRegion {
    base: u64,
    sizes: RegionSizes,
    code: File,
    /// Locked as long as this process lives, by a description that nobody else has.
    owner: File,
    counters: SharedCounters,
    rings: Vec<Ring>,
}

/// The memory before it is mapped.
pub(super) struct Prepared {
    sizes: RegionSizes,
    code: OwnedFd,
    owner: File,
    counters: SharedCounters,
    /// The file of the rings, and the rings.
    rings: Option<(OwnedFd, Vec<Ring>)>,
}

impl Prepared {
    pub(super) fn new(sizes: RegionSizes) -> Result<Prepared, EnterError> {
        let failed = EnterError::failed("making memory to be shared with it");
        // What is behind the code is not mapped: it says how much there is (`left_at`).
        let code = memory::create(STUBS, sizes.code() + PAGE_BYTES).map_err(&failed)?;
        let code = File::from(code);
        code.write_all_at(sizes.written().as_flattened(), sizes.code()).map_err(&failed)?;
        let code = OwnedFd::from(code);
        let path = format!("/proc/self/fd/{}", code.as_raw_fd());
        let owner = File::open(path).map_err(&failed)?;
        flock(&owner, FlockOperation::NonBlockingLockExclusive).map_err(|error| failed(error.into()))?;
        let counters = SharedCounters::create(1, 1, sizes.words.next_multiple_of(512)).map_err(&failed)?;
        let ring_files = |rings: RingSizes| {
            let RingSizes { cpus, data_bytes, slot_bytes } = rings;
            let slot_bytes = slot_bytes.map(|bytes| bytes as usize);
            let (file, made_bytes, rings) = rings::create(cpus, data_bytes, slot_bytes)?;
            let is_whole = made_bytes == data_bytes;
            is_whole.then_some((file, rings)).ok_or_else(|| io::ErrorKind::InvalidInput.into())
        };
        let rings = sizes.rings.map(ring_files).transpose().map_err(failed)?;
        Ok(Prepared { sizes, code, owner, counters, rings })
    }

    /// Has a borrowed thread map it at the first place that is free.
    pub(super) fn map(
        self,
        door: Door,
        thread: &mut HijackedThread<'_>,
        pid: i32,
        places: &[u64],
    ) -> Result<RemoteRegion, EnterError> {
        let (ours, its) = door.connect(thread, pid)?;
        let mut mapped = || -> Result<u64, EnterError> {
            let code = give(thread, (&ours, its), &self.code)?;
            let shared = give(thread, (&ours, its), self.counters.parts().0);
            let base = shared.and_then(|shared| {
                let rings = self.rings.as_ref().map(|(file, _)| give(thread, (&ours, its), file));
                let base = rings.transpose().and_then(|rings| {
                    let files = Files { code, shared, rings: rings.unwrap_or(u64::MAX) };
                    let base = self.map_at_one_of(thread, files, places);
                    rings.into_iter().for_each(|rings| close(thread, rings));
                    base
                });
                close(thread, shared);
                base
            });
            close(thread, code);
            base
        };
        let base = mapped();
        close(thread, its);
        let Prepared { sizes, code, owner, counters, rings } = self;
        let rings = rings.map(|(_, rings)| rings).unwrap_or_default();
        let region = RemoteRegion { base: base?, sizes, code: code.into(), owner, counters, rings };
        if sizes.private() > 0 {
            thread.write(region.private(), &[1])?;
        }
        Ok(region)
    }

    fn map_at_one_of(
        &self,
        thread: &mut HijackedThread<'_>,
        files: Files,
        places: &[u64],
    ) -> Result<u64, EnterError> {
        for &base in places {
            match self.map_at(thread, files, base) {
                Ok(()) => return Ok(base),
                // Another thread of it was faster.
                Err(EnterError::Failed { error, .. }) if error.raw_os_error() == Some(libc::EEXIST) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Err(EnterError::Failed {
            step: "mapping memory near its code",
            error: io::ErrorKind::AddrNotAvailable.into(),
        })
    }

    fn map_at(&self, thread: &mut HijackedThread<'_>, files: Files, base: u64) -> Result<(), EnterError> {
        const READ: u64 = libc::PROT_READ as u64;
        const WRITE: u64 = libc::PROT_WRITE as u64;
        const EXECUTE: u64 = libc::PROT_EXEC as u64;
        const SHARED: u64 = libc::MAP_SHARED as u64;
        const PRIVATE: u64 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as u64;
        let sizes = self.sizes;
        let shared = base + sizes.code();
        let private = shared + sizes.shared();
        let parts = [
            (base, sizes.code(), READ | EXECUTE, SHARED, files.code),
            (shared, sizes.shared(), READ | WRITE, SHARED, files.shared),
            (private, sizes.private(), READ | WRITE, PRIVATE, u64::MAX),
            (private + sizes.private(), sizes.rings(), READ | WRITE, SHARED, files.rings),
        ];
        let mut done: Vec<(u64, u64)> = Vec::new();
        for (at, bytes, prot, flags, file) in parts.into_iter().filter(|part| part.1 > 0) {
            let args = [at, bytes, prot, flags | FIXED, file, 0];
            let step = "mapping memory near its code";
            let mapped = thread.system_call(step, libc::SYS_mmap, args).and_then(|got| {
                match got == at {
                    true => Ok(()),
                    // A kernel before 4.17 puts it elsewhere.
                    false => {
                        done.push((got, bytes));
                        Err(EnterError::Failed { step, error: io::ErrorKind::Unsupported.into() })
                    }
                }
            });
            if let Err(refusal) = mapped {
                unmap(thread, &done);
                return Err(refusal);
            }
            done.push((at, bytes));
        }
        if sizes.private() > 0 {
            const WIPE: u64 = 18;
            let args = [private, sizes.private(), WIPE, 0, 0, 0];
            if let Err(refusal) =
                thread.system_call("asking for memory that a fork wipes", libc::SYS_madvise, args)
            {
                unmap(thread, &done);
                return Err(refusal);
            }
        }
        Ok(())
    }
}

/// The target's descriptors of the files that it maps.
#[derive(Clone, Copy)]
struct Files {
    code: u64,
    shared: u64,
    rings: u64,
}

/// Whether a list of mappings calls memory with stubs so.
pub(super) fn is_stubs(path: &[u8]) -> bool {
    path.starts_with(format!("/memfd:{STUBS}").as_bytes())
}

/// A region that a kymo has left.
pub(super) struct LeftRegion {
    /// Its stubs.
    pub(super) code: Range<u64>,
    /// All of it.
    pub(super) all: Range<u64>,
    /// Stubs of other regions may use its rings.
    pub(super) has_rings: bool,
}

/// The region whose code begins at `start`, if it is there as its kymo has mapped it.
pub(super) fn left_at(target: &TargetProcess, maps: &[u8], start: u64) -> Option<LeftRegion> {
    let code = Mappings::new(maps).find(|mapping| mapping.start == start && is_stubs(mapping.path))?;
    let path = format!("/proc/{}/map_files/{:x}-{:x}", target.pid, code.start, code.end);
    let mut said = [[0; 8]; 5];
    File::open(path).ok()?.read_exact_at(said.as_flattened_mut(), code.end - code.start).ok()?;
    let [mark, code_bytes, shared_bytes, private_bytes, ring_bytes] = said.map(u64::from_le_bytes);
    if mark != SIZES_MARK || code_bytes != code.end - code.start {
        return None;
    }
    let words = code.end..code.end.checked_add(shared_bytes)?;
    let private = words.end..words.end.checked_add(private_bytes)?;
    let rings = private.end..private.end.checked_add(ring_bytes)?;
    let is_mapped = |range: &Range<u64>, is_its: &dyn Fn(&[u8], u64) -> bool| {
        let its = |mapping: &MapsEntry<'_>| is_its(mapping.path, mapping.inode);
        range.is_empty()
            || Mappings::new(maps)
                .any(|mapping| mapping.start <= range.start && mapping.end >= range.end && its(&mapping))
    };
    let is_words = |path: &[u8], _| path.starts_with(format!("/memfd:{WORDS}").as_bytes());
    let is_private = |path: &[u8], inode| path.is_empty() && inode == 0;
    let is_rings = |path: &[u8], _| path.starts_with(format!("/memfd:{}", rings::NAME).as_bytes());
    let is_whole =
        is_mapped(&words, &is_words) && is_mapped(&private, &is_private) && is_mapped(&rings, &is_rings);
    let (code, all) = (code.start..code.end, code.start..rings.end);
    is_whole.then_some(LeftRegion { code, all, has_rings: ring_bytes > 0 })
}

pub(super) fn unmap(thread: &mut HijackedThread<'_>, parts: &[(u64, u64)]) {
    for (at, bytes) in parts {
        _ = thread.system_call("unmapping", libc::SYS_munmap, [*at, *bytes, 0, 0, 0, 0]);
    }
}

impl RemoteRegion {
    /// Where stubs are to lie.
    #[must_use]
    pub fn code(&self) -> u64 {
        self.base
    }

    /// The address of a word that both see.
    #[must_use]
    pub fn word(&self, number: u32) -> u64 {
        self.base + self.sizes.code() + 8 * u64::from(number)
    }

    /// Where the target's own memory begins.
    #[must_use]
    pub fn private(&self) -> u64 {
        self.base + self.sizes.code() + self.sizes.shared()
    }

    /// Where the first CPU's ring begins, if there are rings.
    #[must_use]
    pub fn rings_at(&self) -> u64 {
        self.private() + self.sizes.private()
    }

    /// The rings, one for each CPU, to be read here; empty if it was called before.
    pub fn take_rings(&mut self) -> Vec<Ring> {
        std::mem::take(&mut self.rings)
    }

    /// What says that its owner lives, as long as it is open somewhere.
    pub(super) fn owner(&self) -> BorrowedFd<'_> {
        self.owner.as_fd()
    }

    /// The addresses of its stubs.
    pub(super) fn code_range(&self) -> Range<u64> {
        self.base..self.base + self.sizes.code()
    }

    /// All addresses of it.
    #[must_use]
    pub fn range(&self) -> std::ops::Range<u64> {
        self.base..self.base + self.sizes.bytes()
    }

    /// Writes stubs, before any site leads to them.
    ///
    /// # Errors
    /// That it has no room for them.
    pub fn write_code(&self, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() as u64 > self.sizes.code() {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.code.write_all_at(bytes, 0)
    }

    /// What the words that both see are now.
    #[must_use]
    pub fn counts(&self) -> RegionCounts<'_> {
        RegionCounts { counters: &self.counters, written: self.counters.written(self.sizes.words) }
    }
}

/// Words that are read together.
pub struct RegionCounts<'a> {
    counters: &'a SharedCounters,
    written: DirtyPages,
}

impl RegionCounts<'_> {
    /// One of them.
    #[must_use]
    pub fn word(&self, number: u32) -> u64 {
        self.counters.sum(number, &self.written)
    }
}

/// The device that files in memory are on, as lists of mappings name it.
fn memory_device() -> Result<(u32, u32), String> {
    let device = memory::create(STUBS, PAGE_BYTES).and_then(|file| Ok(fstat(&file)?.st_dev));
    let device = device.map_err(|error| format!("memory files cannot be told from others: {error}"))?;
    Ok((major(device), minor(device)))
}

/// Whose stubs there are at an address of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StubOwner {
    /// There are none.
    Nobody,
    /// A kymo that is gone.
    Gone,
    /// One that lives, or its restorer.
    Lives,
}

impl StubOwner {
    /// Looks whose they are; an error if that cannot be known.
    pub(super) fn at(target: &TargetProcess, address: u64) -> Result<StubOwner, String> {
        let maps = target.maps().map_err(|error| error.to_string())?;
        let mut mappings = Mappings::new(&maps);
        let Some(mapping) = mappings.find(|mapping| (mapping.start..mapping.end).contains(&address)) else {
            return Ok(StubOwner::Nobody);
        };
        // A file of that path in a file system that the program serves itself need not ever open.
        if !is_stubs(mapping.path) || (mapping.major, mapping.minor) != memory_device()? {
            return Ok(StubOwner::Nobody);
        }
        let path = format!("/proc/{}/map_files/{:x}-{:x}", target.pid, mapping.start, mapping.end);
        let file = File::open(path).map_err(|error| {
            format!(
                "a kymo has patched it, and whether that one lives cannot be known: {error}; run kymo as root"
            )
        })?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(StubOwner::Gone),
            Err(_) => Ok(StubOwner::Lives),
        }
    }
}
