//! Memory for stubs, near the code that jumps there.
//!
//! It is never writable where it is executed. It is written through `/proc/self/mem`, and where the
//! kernel does not write such pages ([`OwnMemory::is_forced`]), through a second mapping of the
//! same memory, which is writable, not executable, and there only while stubs are made.
use super::memory::{OwnMemory, mapped};
use super::unwinder_hooks;
use crate::patch::codegen::callout;
use crate::patch::codegen::context::CallTargets;
use crate::patch::mapping::{self, CodeAlias};
use crate::patch::runtime::shadow::{calls, claim, return_slot};
use crate::patch::runtime::{holds, slow_path};
use iced_x86::IcedError;
use std::io;

/// The bytes that one mapping has; a program has one for each 2 GiB in which code is probed, and
/// further ones as they fill.
const CHUNK_BYTES: u64 = 1 << 20;
/// Stubs begin at cache lines' halves: their sequence descriptor has to.
const ALIGN: u64 = 32;
/// How far jumps and moved instructions may reach: 2 GiB less what a module may take.
const REACH: u64 = (2 << 30) - (256 << 20);
/// Nothing is mapped lower: many systems forbid it, and null pointers point there.
const LOWEST: u64 = 1 << 20;
/// The end of user addresses with 4-level page tables.
const HIGHEST: u64 = 1 << 47;
/// Room that is left between a mapping and what may grow towards it: the heap, stacks.
const DISTANCE: u64 = 64 << 20;

/// All mappings for stubs. They stay: a thread may be in one, a stack may lead back to one.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    chunks: Vec<Chunk>,
}

#[derive(Debug)]
struct Chunk {
    base: u64,
    used: u64,
    end: u64,
    calls: CallTargets,
    /// Whether unwinders know it.
    described: bool,
    /// It can be mapped a second time, and has to be.
    is_twice: bool,
    /// Where it is at the moment.
    alias: Option<CodeAlias>,
}

fn near(a: u64, b: u64) -> bool {
    a.abs_diff(b) < REACH
}

impl Arena {
    /// `bytes` of code memory that code at `site` reaches, and that reaches the site's module.
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrNotAvailable`] where nothing is free near enough.
    pub(crate) fn take(&mut self, memory: &OwnMemory, site: u64, bytes: u64) -> io::Result<u64> {
        let bytes = bytes.next_multiple_of(ALIGN);
        let is_forced = memory.is_forced();
        let fits = |chunk: &&mut Chunk| {
            near(chunk.base, site) && chunk.end - chunk.used >= bytes && (is_forced || chunk.is_twice)
        };
        let chunk = match self.chunks.iter_mut().rev().find(fits) {
            Some(chunk) => chunk,
            None => {
                let size = (bytes + ALIGN * 64).next_multiple_of(CHUNK_BYTES);
                let mut chunk = map_near(site, size, !is_forced)?;
                chunk.furnish(memory)?;
                self.chunks.push(chunk);
                // SANITY: pushed above.
                self.chunks.last_mut().expect("just pushed")
            }
        };
        let at = chunk.used;
        chunk.used += bytes;
        Ok(at)
    }

    /// Keeps the first `bytes` of what [`Arena::take`] gave last; the rest, in which nothing was
    /// ever published, is for others.
    pub(crate) fn keep(&mut self, at: u64, bytes: u64) {
        if let Some(chunk) = self.chunk(at) {
            self.chunks[chunk].used = at + bytes.next_multiple_of(ALIGN);
        }
    }

    pub(crate) fn write(&mut self, memory: &OwnMemory, at: u64, code: &[u8]) -> io::Result<()> {
        debug_assert!(self.chunk(at).is_some() && self.chunk(at) == self.chunk(at + code.len() as u64 - 1));
        match self.chunk(at) {
            Some(chunk) => self.chunks[chunk].write(memory, at, code),
            None => Err(io::ErrorKind::AddrNotAvailable.into()),
        }
    }

    /// Ends the second mappings: from now on nothing of it is writable anywhere.
    pub(crate) fn seal(&mut self) {
        self.chunks.iter_mut().for_each(|chunk| chunk.alias = None);
    }

    /// The ways out of stubs that lie in the same chunk as `at`.
    pub(crate) fn calls(&self, at: u64) -> CallTargets {
        self.chunk(at).map_or_else(CallTargets::default, |chunk| self.chunks[chunk].calls)
    }

    /// Tells unwinders of a chunk, once; looking for an exception's handler is slower then.
    pub(crate) fn describe(&mut self, at: u64) -> io::Result<()> {
        let region = claim::region()?;
        if let Some(chunk) = self.chunk(at).map(|chunk| &mut self.chunks[chunk])
            && !chunk.described
        {
            if !return_slot::add_range(chunk.base, chunk.end) {
                return Err(io::Error::other("too many mappings for probes that look at returns"));
            }
            unwinder_hooks::describe(chunk.base, chunk.end, region);
            chunk.described = true;
        }
        Ok(())
    }

    fn chunk(&self, address: u64) -> Option<usize> {
        self.chunks.iter().position(|chunk| (chunk.base..chunk.end).contains(&address))
    }
}

impl Chunk {
    /// Writes what all stubs in it share.
    fn furnish(&mut self, memory: &OwnMemory) -> io::Result<()> {
        let (enter, leave) = (calls::enter as *const () as u64, calls::leave as *const () as u64);
        let adopt = calls::adopt as *const () as u64;
        let handle = slow_path::handle as *const () as u64;
        let acquired = holds::acquired as *const () as u64;
        let released = holds::released as *const () as u64;
        let mut put_code = |code: Result<Vec<u8>, IcedError>| {
            let code = code.map_err(io::Error::other)?;
            let at = self.used;
            self.write(memory, at, &code)?;
            self.used = (at + code.len() as u64).next_multiple_of(ALIGN);
            Ok::<u64, io::Error>(at)
        };
        let mut put = |function| put_code(callout::generate(function));
        let (enter, leave, adopt, handle) = (put(enter)?, put(leave)?, put(adopt)?, put(handle)?);
        let mut put = |function| put_code(callout::generate_at_calls(function));
        let (acquired, released) = (put(acquired)?, put(released)?);
        self.calls = CallTargets { enter, leave, adopt, handle, acquired, released };
        Ok(())
    }

    fn write(&mut self, memory: &OwnMemory, at: u64, code: &[u8]) -> io::Result<()> {
        if !self.is_twice {
            return memory.write(at, code);
        }
        let alias = match self.alias.take() {
            Some(alias) => alias,
            None => mapping::to_write(self.base, self.end - self.base)?,
        };
        let alias = self.alias.insert(alias);
        memory.write(alias.address() + (at - self.base), code)
    }
}

/// Maps a chunk in a gap near `site`, below it where possible: above programs the heap grows.
fn map_near(site: u64, bytes: u64, is_twice: bool) -> io::Result<Chunk> {
    for place in places_near(&mapped()?, site, bytes) {
        match mapping::code_at(place, bytes, is_twice) {
            Ok(()) => {
                let (calls, end) = (CallTargets::default(), place + bytes);
                let described = false;
                return Ok(Chunk { base: place, used: place, end, calls, described, is_twice, alias: None });
            }
            // Another thread was faster: the next one.
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AddrNotAvailable.into())
}

/// Where so many bytes may be mapped near `site` among these mappings, which are in order: the
/// best place first.
pub fn places_near(mapped: &[(u64, u64)], site: u64, bytes: u64) -> Vec<u64> {
    let mut places: Vec<u64> = gaps(mapped).filter_map(|gap| place(gap, site, bytes)).collect();
    places.sort_by_key(|&place| (place > site, place.abs_diff(site)));
    places.truncate(64);
    places
}

fn gaps(mapped: &[(u64, u64)]) -> impl Iterator<Item = (u64, u64)> {
    let ends = std::iter::once(LOWEST).chain(mapped.iter().map(|range| range.1));
    let begins = mapped.iter().map(|range| range.0).chain(std::iter::once(HIGHEST));
    ends.zip(begins).filter(|(end, begin)| end < begin && *begin <= HIGHEST)
}

/// Where in a gap a chunk is nearest to `site`, at whole chunks, leaving room to what grows.
fn place(gap: (u64, u64), site: u64, bytes: u64) -> Option<u64> {
    let roomy = gap.1 - gap.0 > 4 * DISTANCE;
    let spare = if roomy { DISTANCE } else { 0 };
    let low = (gap.0 + spare).next_multiple_of(CHUNK_BYTES);
    let high = (gap.1 - spare).checked_sub(bytes)? & !(CHUNK_BYTES - 1);
    let place = if high < site { high } else { low };
    (low <= high && near(place, site) && near(place + bytes, site)).then_some(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a chunk lies in a gap, near, below the code where that is possible, and away
    /// from what grows.
    #[test]
    fn chunks_lie_near() {
        let (low, code) = (0x5555_0000_0000_u64, 0x5555_5555_4000_u64);
        let mapped = [(low - 0x1000, low), (code, code + 0x10_0000), (0x7fff_0000_0000, 0x7fff_0010_0000)];
        let all: Vec<u64> = gaps(&mapped).filter_map(|gap| place(gap, code, CHUNK_BYTES)).collect();
        // In the gaps below the library, between it and the code, and above the code.
        assert_eq!(all.len(), 3, "{all:x?}");
        assert!(all[0] + CHUNK_BYTES + DISTANCE <= low - 0x1000, "{all:x?}");
        assert!(all[1] + CHUNK_BYTES + DISTANCE <= code && all[1] >= low + DISTANCE, "{all:x?}");
        assert!(all[2] >= code + 0x10_0000 + DISTANCE, "{all:x?}");
        assert_eq!(place((code, code + 0x1000), code, CHUNK_BYTES), None);
    }

    /// Checks that memory is handed out once, aligned, and again only what was not kept.
    #[test]
    fn memory_is_handed_out_once() {
        let mut arena = Arena::default();
        let memory = OwnMemory::open().expect("/proc");
        let site = chunks_lie_near as *const () as u64;
        let mut all: Vec<u64> = (0..100).map(|_| arena.take(&memory, site, 100).expect("memory")).collect();
        all.sort_unstable();
        assert!(all.windows(2).all(|two| two[1] - two[0] >= 128), "{all:x?}");
        assert!(all.iter().all(|&at| at % ALIGN == 0 && near(at, site) && arena.chunk(at).is_some()));
        let last = arena.take(&memory, site, 100).expect("memory");
        arena.keep(last, 33);
        assert_eq!(arena.take(&memory, site, 100).expect("memory"), last + 64);
        arena.keep(last + 64, 0);
        assert_eq!(arena.take(&memory, site, 100).expect("memory"), last + 64);
    }
}
