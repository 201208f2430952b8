//! Memory in the target, near its code: stubs, counters that both see, and what is the target's
//! alone.
use super::super::connection::{Door, close, give};
use super::super::counters::{DirtyPages, SharedCounters};
use super::super::hijacked_thread::HijackedThread;
use super::super::memory;
use super::super::refusal::EnterError;
use super::super::target::TargetProcess;
use crate::proc::Mappings;
use rustix::fs::{FlockOperation, flock, fstat, major, minor};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// As the target's list of mappings names the memory with stubs.
const STUBS: &str = "kymo-stubs";
const PAGE_BYTES: u64 = 4096;
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
}

impl RegionSizes {
    /// All of it, in whole pages.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.code() + self.shared() + self.private()
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
}

/// Memory that a process has mapped for stubs.
#[derive(Debug)]
pub struct RemoteRegion {
    base: u64,
    sizes: RegionSizes,
    code: File,
    /// Locked as long as this process lives, by a description that nobody else has.
    _owner: File,
    counters: SharedCounters,
}

/// The memory before it is mapped.
pub(super) struct Prepared {
    sizes: RegionSizes,
    code: OwnedFd,
    owner: File,
    counters: SharedCounters,
}

impl Prepared {
    pub(super) fn new(sizes: RegionSizes) -> Result<Prepared, EnterError> {
        let failed = EnterError::failed("making memory to be shared with it");
        let code = memory::create(STUBS, sizes.code().max(PAGE_BYTES)).map_err(&failed)?;
        let path = format!("/proc/self/fd/{}", code.as_raw_fd());
        let owner = File::open(path).map_err(&failed)?;
        flock(&owner, FlockOperation::NonBlockingLockExclusive).map_err(|error| failed(error.into()))?;
        let counters = SharedCounters::create(1, 1, sizes.words.next_multiple_of(512)).map_err(&failed)?;
        Ok(Prepared { sizes, code, owner, counters })
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
                let base = self.map_at_one_of(thread, code, shared, places);
                close(thread, shared);
                base
            });
            close(thread, code);
            base
        };
        let base = mapped();
        close(thread, its);
        let Prepared { sizes, code, owner, counters } = self;
        let region = RemoteRegion { base: base?, sizes, code: code.into(), _owner: owner, counters };
        if sizes.private() > 0 {
            thread.write(region.private(), &[1])?;
        }
        Ok(region)
    }

    fn map_at_one_of(
        &self,
        thread: &mut HijackedThread<'_>,
        code: u64,
        shared: u64,
        places: &[u64],
    ) -> Result<u64, EnterError> {
        for &base in places {
            match self.map_at(thread, code, shared, base) {
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

    fn map_at(
        &self,
        thread: &mut HijackedThread<'_>,
        code: u64,
        shared: u64,
        base: u64,
    ) -> Result<(), EnterError> {
        const READ: u64 = libc::PROT_READ as u64;
        const WRITE: u64 = libc::PROT_WRITE as u64;
        const EXECUTE: u64 = libc::PROT_EXEC as u64;
        const SHARED: u64 = libc::MAP_SHARED as u64;
        const PRIVATE: u64 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as u64;
        let sizes = self.sizes;
        let parts = [
            (base, sizes.code(), READ | EXECUTE, SHARED, code),
            (base + sizes.code(), sizes.shared(), READ | WRITE, SHARED, shared),
            (base + sizes.code() + sizes.shared(), sizes.private(), READ | WRITE, PRIVATE, u64::MAX),
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
            let args = [base + sizes.code() + sizes.shared(), sizes.private(), WIPE, 0, 0, 0];
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

fn unmap(thread: &mut HijackedThread<'_>, parts: &[(u64, u64)]) {
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

    pub(super) fn unmap(&self, thread: &mut HijackedThread<'_>) {
        unmap(thread, &[(self.base, self.sizes.bytes())]);
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

/// Whose stubs there are in a process.
pub(super) struct Owner;

impl Owner {
    /// Whether an address lies in stubs whose owner is gone; an error if that one lives, or if it
    /// cannot be known.
    pub(super) fn is_gone(target: &TargetProcess, address: u64) -> Result<bool, String> {
        let maps = target.maps().map_err(|error| error.to_string())?;
        let mut mappings = Mappings::new(&maps);
        let is_stubs = |path: &[u8]| path.starts_with(format!("/memfd:{STUBS}").as_bytes());
        let Some(mapping) = mappings.find(|mapping| (mapping.start..mapping.end).contains(&address)) else {
            return Ok(false);
        };
        // A file of that path in a file system that the program serves itself need not ever open.
        if !is_stubs(mapping.path) || (mapping.major, mapping.minor) != memory_device()? {
            return Ok(false);
        }
        let path = format!("/proc/{}/map_files/{:x}-{:x}", target.pid, mapping.start, mapping.end);
        let file = File::open(path).map_err(|error| {
            format!(
                "a kymo has patched it, and whether that one lives cannot be known: {error}; run kymo as root"
            )
        })?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(_) => Err("another kymo has patched it; end that one first".to_owned()),
        }
    }
}
