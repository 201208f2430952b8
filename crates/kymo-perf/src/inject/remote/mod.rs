//! Probes a program from outside: its code is written by this process, and nothing runs in it but
//! the stubs that this process has made.
//!
//! *You give* a process that runs ([`RemoteProcess`]), or a command that is about to be started
//! ([`CommandTracer`]); *it gives* memory in that process near its code ([`RemoteRegion`]), and
//! writes the sites that you have planned ([`SitePatch`]) while all threads stand still.
//!
//! ```text
//!   this process                                      the target
//!   memory file with the stubs     --- passed --->    mapped: read, execute   \
//!   memory file with the counters  --- passed --->    mapped: shared, written  > within 2 GiB
//!                                                     mapped: private          /  of the code
//!   hold all threads; search memory for interrupted places; write five bytes per site; let go
//! ```
//! A thread of the target maps the memory for us: its first one, wherever it stands
//! (`hijacked_thread.rs`), or the only one of a command, before its first instruction.
//!
//! # Invariants
//! - **R1** A site is written in one step, and only over the bytes that were planned. Sites of one
//!   function are all written or none.
//! - **R2** While a site is written no thread stands inside of it, and no word of the writable
//!   memory that was searched is an address inside of it: no signal's frame, no stopped goroutine.
//!   Where memory is too large to be searched, sites where threads may have been interrupted are
//!   refused ([`SitePatch::is_interruptible`]).
//! - **R3** Stubs and counters stay mapped as long as a thread may be in them: a region is taken
//!   away after its sites were restored and no thread and no searched word was in it.
//! - **R4** If this process is killed at whatever moment, threads go on, each site is whole or as
//!   it was, and stubs stay. The next kymo finds that their owner is gone, by a lock on the file,
//!   and restores the sites ([`RemoteTarget::owner_at`]), and takes the stubs away
//!   ([`RemoteTarget::unmap_leftovers`]).
//! - **R5** What the target says is not believed: shared memory is made here and keeps its length.
mod command;
mod leftover_regions;
mod region;
mod restorer;
mod scan;
mod thread_layout;
mod write;

pub use command::{CommandStop, CommandTracer};
pub use region::{RegionCounts, RegionSizes, RemoteRegion, RingSizes, StubOwner};
pub use restorer::{Restorer, provide_restorer, restore_probes};
pub use thread_layout::ThreadLayout;
pub use write::{PatchOutcome, SitePatch};

use super::agent;
use super::hijacked_thread::HijackedThread;
use super::refusal::EnterError;
use super::seccomp;
use super::target::TargetProcess;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;

/// A process whose code can be written from outside.
pub trait RemoteTarget {
    /// The process.
    fn pid(&self) -> i32;

    /// Reads its memory, as far as there is some: how many bytes.
    fn read(&self, address: u64, bytes: &mut [u8]) -> usize;

    /// The text of its list of mappings.
    ///
    /// # Errors
    /// What the kernel says.
    fn maps(&self) -> io::Result<Vec<u8>>;

    /// Maps memory at the first of these places that is free.
    ///
    /// # Errors
    /// Why that cannot be.
    fn map(&mut self, places: &[u64], sizes: RegionSizes) -> Result<RemoteRegion, EnterError>;

    /// Writes sites while all threads stand still.
    ///
    /// # Errors
    /// Why they do not; then nothing was written.
    fn write(&mut self, patches: &[SitePatch]) -> Result<PatchOutcome, String>;

    /// Whose stubs there are at an address.
    ///
    /// # Errors
    /// That it cannot be known.
    fn owner_at(&self, address: u64) -> Result<StubOwner, String>;

    /// Starts what takes sites away if this process is killed, before they are written: see
    /// [`Restorer`]. `restore`: what takes them away. `None`: then they are left to the next kymo.
    fn restorer(&self, restore: &[SitePatch], regions: &[&RemoteRegion]) -> Option<Restorer> {
        Restorer::start(self.pid(), restore, regions)
    }

    /// Takes memory of kymos that are gone away, to which nothing leads any more: how many regions.
    fn unmap_leftovers(&mut self) -> usize {
        0
    }
}

/// A process that runs, and cannot load the agent.
#[derive(Debug)]
pub struct RemoteProcess {
    target: TargetProcess,
    process: OwnedFd,
}

impl RemoteProcess {
    /// Looks at a process, and does nothing to it.
    ///
    /// # Errors
    /// Why it cannot be entered.
    pub fn look(pid: i32) -> Result<RemoteProcess, EnterError> {
        if !cfg!(target_arch = "x86_64") {
            return Err(EnterError::Machine);
        }
        RemoteProcess::of(TargetProcess::look(pid)?)
    }

    /// A process that the calling thread traces at the moment.
    fn of_traced(pid: i32) -> Result<RemoteProcess, EnterError> {
        RemoteProcess::of(TargetProcess::look_traced(pid)?)
    }

    fn of(target: TargetProcess) -> Result<RemoteProcess, EnterError> {
        let process = Pid::from_raw(target.pid).ok_or(EnterError::Gone)?;
        let process = pidfd_open(process, PidfdFlags::empty()).map_err(|_| EnterError::Gone)?;
        Ok(RemoteProcess { target, process })
    }

    /// Whether the agent can be loaded into it. If it cannot for a reason that does not concern
    /// stubs, this is the way.
    ///
    /// # Errors
    /// Why it cannot be entered.
    pub fn can_load_agent(&self) -> Result<bool, EnterError> {
        agent::can_load(&self.target)
    }

    /// Where its threads keep what stubs read. All are held for that.
    ///
    /// # Errors
    /// Why it is not known, in words.
    pub fn thread_layout(&self) -> Result<ThreadLayout, String> {
        let found = on_a_thread(|| Ok(ThreadLayout::find(&self.target, &self.process)));
        found.map_err(|error| error.to_string())?
    }

    /// Restores sites, and takes the memory with their stubs away if no thread can be in it any
    /// more. What cannot be restored goes on counting, for nobody.
    ///
    /// # Errors
    /// Why the threads could not be held; then nothing was done.
    pub fn leave(&mut self, patches: &[SitePatch], regions: &[&RemoteRegion]) -> Result<(), String> {
        let code: Vec<_> = regions.iter().map(|region| region.code_range()).collect();
        let all: Vec<_> = regions.iter().map(|region| region.range()).collect();
        self.take_away(patches, &code, &all)
    }

    /// The same of regions by their code and all of their memory. Whoever uses another part of one
    /// is in its code, or in that of another one: all go, or none.
    fn take_away(
        &self,
        patches: &[SitePatch],
        code: &[Range<u64>],
        all: &[Range<u64>],
    ) -> Result<(), String> {
        let (target, process) = (&self.target, &self.process);
        let left = on_a_thread(|| Ok(write::all_held(target, process, patches, code)));
        let written = left.map_err(|error| error.to_string())??;
        // A thread that has restricted its system calls since cannot be asked to unmap the memory:
        // it stays, and no code leads there.
        let is_left = !written.left.is_empty() && written.left.iter().all(|left| *left);
        if !is_left || seccomp::is_filtered(target.pid) {
            return Ok(());
        }
        let unmapped = on_a_thread(|| {
            let mut thread = HijackedThread::take_first(target)?;
            let parts: Vec<_> = all.iter().map(|part| (part.start, part.end - part.start)).collect();
            region::unmap(&mut thread, &parts);
            thread.give_back(true)
        });
        unmapped.map_err(|error| error.to_string())
    }
}

/// Runs what traces on a thread of its own: when it ends, the kernel lets go whatever did not stop
/// in time to be let go.
fn on_a_thread<T: Send>(work: impl FnOnce() -> Result<T, EnterError> + Send) -> Result<T, EnterError> {
    let failed = |error| EnterError::Failed { step: "entering it", error };
    let done = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, work);
        thread.map(std::thread::ScopedJoinHandle::join)
    });
    done.map_err(failed)?.unwrap_or_else(|_| Err(failed(io::Error::other("a thread of kymo died"))))
}

impl RemoteTarget for RemoteProcess {
    fn pid(&self) -> i32 {
        self.target.pid
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> usize {
        self.target.read_some(address, bytes)
    }

    fn maps(&self) -> io::Result<Vec<u8>> {
        self.target.maps()
    }

    fn map(&mut self, places: &[u64], sizes: RegionSizes) -> Result<RemoteRegion, EnterError> {
        let target = &self.target;
        on_a_thread(|| {
            let prepared = region::Prepared::new(sizes)?;
            let door = super::connection::Door::open(target.pid)?;
            let mut thread = HijackedThread::take_first(target)?;
            let mapped = prepared.map(door, &mut thread, target.pid, places);
            thread.give_back(true)?;
            mapped
        })
    }

    fn write(&mut self, patches: &[SitePatch]) -> Result<PatchOutcome, String> {
        let (target, process) = (&self.target, &self.process);
        on_a_thread(|| Ok(write::all_held(target, process, patches, &[])))
            .map_err(|error| error.to_string())?
    }

    fn owner_at(&self, address: u64) -> Result<StubOwner, String> {
        StubOwner::at(&self.target, address)
    }

    fn unmap_leftovers(&mut self) -> usize {
        leftover_regions::unmap(&self.target, &self.process)
    }
}
