//! Memory of the agent that stubs, forked children and tracers share: address ranges that it
//! reserved for good, and the words in them.
//!
//! # Safety
//! A [`Mapping`] is the only owner of its addresses, and Rust code reaches them as atomics only,
//! which others may write at any time. So any memory may be put there. A range without memory
//! ([`Mapping::reserve`]) is never read or written by accident of another owner: an access ends the
//! process. [`Mapping::unmap`] gives addresses up, and says so.
#![allow(unsafe_code)]
use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::AtomicU64;

const WRITABLE: c_int = libc::PROT_READ | libc::PROT_WRITE;
const ANONYMOUS: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// An address range of this process that belongs to the agent for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    begin: u64,
    bytes: u64,
}

impl Mapping {
    /// Zeroed memory of which only what is used takes room.
    pub(crate) fn zeros(bytes: u64) -> io::Result<Mapping> {
        Mapping::anywhere(bytes, WRITABLE)
    }

    /// Addresses without memory.
    pub(crate) fn reserve(bytes: u64) -> io::Result<Mapping> {
        Mapping::anywhere(bytes, libc::PROT_NONE)
    }

    fn anywhere(bytes: u64, access: c_int) -> io::Result<Mapping> {
        // SAFETY: a new mapping, wherever the kernel likes.
        let at = unsafe { libc::mmap(ptr::null_mut(), bytes as usize, access, ANONYMOUS, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapping { begin: at as u64, bytes })
    }

    /// A range that is known by its numbers.
    ///
    /// # Safety
    /// It is a part of a mapping, and has not been unmapped since.
    pub(crate) unsafe fn assume(begin: u64, bytes: u64) -> Mapping {
        Mapping { begin, bytes }
    }

    /// Its first address, for code that is generated and for the kernel.
    pub(crate) fn address(self) -> u64 {
        self.begin
    }

    /// A part of it.
    ///
    /// # Panics
    /// If it is not inside.
    pub(crate) fn part(self, offset: u64, bytes: u64) -> Mapping {
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        assert!(inside, "a part of a mapping lies outside of it");
        Mapping { begin: self.begin + offset, bytes }
    }

    /// A word of it.
    ///
    /// # Panics
    /// If it is not inside, or not aligned.
    pub(crate) fn word(self, offset: u64) -> &'static AtomicU64 {
        let at = self.part(offset, 8).begin;
        assert!(at.is_multiple_of(8), "a word is not aligned");
        // SAFETY: inside a mapping that stays, aligned, and an atomic to all (see the module).
        unsafe { &*(at as *const AtomicU64) }
    }

    /// All words of it.
    pub(crate) fn words(self) -> &'static [AtomicU64] {
        assert!(self.begin.is_multiple_of(8), "a word is not aligned");
        // SAFETY: as in `word`.
        unsafe { std::slice::from_raw_parts(self.begin as *const AtomicU64, self.bytes as usize / 8) }
    }

    /// Whether a forked child finds its memory as it is at the fork, or zeroed.
    pub(crate) fn on_fork(self, kept: bool) -> io::Result<()> {
        let advice = if kept { libc::MADV_KEEPONFORK } else { libc::MADV_WIPEONFORK };
        // SAFETY: changes what a fork does with a mapping of ours; its content stays.
        let done = unsafe { libc::madvise(self.pointer(), self.bytes as usize, advice) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Puts a part of a file here, shared with whoever else maps it. A crash dump need not have it.
    pub(crate) fn share(self, file: &File, offset: u64) -> io::Result<()> {
        self.replace(Some((file, offset)), WRITABLE, libc::MAP_SHARED | libc::MAP_NORESERVE)?;
        // SAFETY: the mapping above. Where this fails, a dump has it.
        unsafe { libc::madvise(self.pointer(), self.bytes as usize, libc::MADV_DONTDUMP) };
        Ok(())
    }

    /// Puts a ring of a file here: its page, then its data twice, one after the other.
    pub(crate) fn share_ring(self, file: &File, offset: u64, page: u64, data: u64) -> io::Result<()> {
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        self.part(0, page + data).replace(Some((file, offset)), WRITABLE, flags)?;
        self.part(page + data, data).replace(Some((file, offset + page)), WRITABLE, flags)
    }

    /// Puts zeroes of this process alone here, and gives back what was here.
    pub(crate) fn zero(self) {
        // Where this fails the memory stays as it was, which harms nobody.
        _ = self.replace(None, WRITABLE, ANONYMOUS);
    }

    /// Maps `bytes` of a file, or zeroes without one, over this.
    fn replace(self, file: Option<(&File, u64)>, access: c_int, flags: c_int) -> io::Result<()> {
        if self.bytes == 0 {
            return Ok(());
        }
        let (number, offset) = file.map_or((-1, 0), |(file, offset)| (file.as_raw_fd(), offset));
        let flags = flags | libc::MAP_FIXED;
        // SAFETY: addresses of ours, where Rust code has nothing but atomics.
        let at =
            unsafe { libc::mmap(self.pointer(), self.bytes as usize, access, flags, number, offset as i64) };
        if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Gives the addresses up.
    ///
    /// # Safety
    /// No stub knows a word of them, and none is asked for before they are ours again.
    pub(crate) unsafe fn unmap(self) {
        if self.bytes > 0 {
            // SAFETY: the caller's.
            unsafe { libc::munmap(self.pointer(), self.bytes as usize) };
        }
    }

    /// Reserves the `bytes` at an address, if nothing is there.
    pub(crate) fn reserve_at(address: u64, bytes: u64) -> io::Result<Option<Mapping>> {
        let mapping = Mapping { begin: address, bytes };
        if bytes == 0 {
            return Ok(Some(mapping));
        }
        let flags = ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        match map_exactly(address, bytes, libc::PROT_NONE, flags) {
            Ok(()) => Ok(Some(mapping)),
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn pointer(self) -> *mut libc::c_void {
        ptr::without_provenance_mut(self.begin as usize)
    }
}

/// A second mapping of memory for code: writable, not executable, and gone when this is dropped.
#[derive(Debug)]
pub(crate) struct CodeAlias(Mapping);

impl CodeAlias {
    /// Its first address, for the kernel.
    pub(crate) fn address(&self) -> u64 {
        self.0.begin
    }
}

impl Drop for CodeAlias {
    fn drop(&mut self) {
        // SAFETY: addresses are given to the kernel only, and nobody keeps one.
        unsafe { self.0.unmap() };
    }
}

/// Memory for code at exactly `address`, readable and executable, never writable there. It stays
/// for good. `twice`: it can be mapped a second time ([`to_write`]); a forked child then shares it.
pub(crate) fn code_at(address: u64, bytes: u64, twice: bool) -> io::Result<()> {
    let sharing = if twice { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
    let flags = sharing | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    map_exactly(address, bytes, libc::PROT_READ | libc::PROT_EXEC, flags)
}

/// Maps memory of [`code_at`] a second time.
pub(crate) fn to_write(address: u64, bytes: u64) -> io::Result<CodeAlias> {
    let place = ptr::without_provenance_mut(address as usize);
    // SAFETY: an old size of 0 leaves the shared mapping where it is, and maps its memory once
    // more, wherever the kernel likes.
    let at = unsafe { libc::mremap(place, 0, bytes as usize, libc::MREMAP_MAYMOVE) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let alias = CodeAlias(Mapping { begin: at as u64, bytes });
    // SAFETY: the mapping above, which nobody knows yet.
    match unsafe { libc::mprotect(at, bytes as usize, WRITABLE) } {
        0 => Ok(alias),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Maps where nothing is; EEXIST if something is.
fn map_exactly(address: u64, bytes: u64, access: c_int, flags: c_int) -> io::Result<()> {
    debug_assert!(flags & libc::MAP_FIXED_NOREPLACE != 0);
    let place = ptr::without_provenance_mut(address as usize);
    // SAFETY: a mapping where none is: the kernel refuses to replace one.
    let at = unsafe { libc::mmap(place, bytes as usize, access, flags, -1, 0) };
    match at {
        libc::MAP_FAILED => Err(io::Error::last_os_error()),
        at if at == place => Ok(()),
        at => {
            // Kernels before 4.17 take the address as a hint.
            // SAFETY: the mapping that was just made and that nobody knows.
            unsafe { libc::munmap(at, bytes as usize) };
            Err(io::Error::from_raw_os_error(libc::EEXIST))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    /// Checks that code which is mapped twice is written in one place and found in the other, that
    /// neither can be written and executed, and that the code stays when the other one goes.
    #[test]
    fn code_that_is_mapped_twice() {
        // Free a moment ago, and nobody takes exactly this one.
        let free = Mapping::reserve(1 << 21).expect("addresses");
        // SAFETY: nobody knows it.
        unsafe { free.unmap() };
        let address = (free.address() + (1 << 20)) & !4095;
        code_at(address, 8192, true).expect("memory");
        let alias = to_write(address, 8192).expect("a second time");
        alias.0.word(4096).store(0x1234, Ordering::Relaxed);
        let protection = |at: u64| {
            let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
            let line = maps.lines().find(|line| line.starts_with(&format!("{at:x}-"))).map(str::to_owned);
            line.and_then(|line| line.split(' ').nth(1).map(str::to_owned))
        };
        assert_eq!(protection(address).as_deref(), Some("r-xs"));
        assert_eq!(protection(alias.address()).as_deref(), Some("rw-s"));
        drop(alias);
        // SAFETY: mapped above.
        let code = unsafe { Mapping::assume(address, 8192) };
        assert_eq!(code.word(4096).load(Ordering::Relaxed), 0x1234);
        assert!(to_write(1 << 20, 4096).is_err(), "nothing is there");
    }

    /// Checks that words are reached inside a mapping only, and that what is put over them is seen.
    #[test]
    fn only_inside() {
        let mapping = Mapping::zeros(8192).expect("memory");
        mapping.word(4096).store(7, Ordering::Relaxed);
        assert_eq!(mapping.part(4096, 4096).words()[0].load(Ordering::Relaxed), 7);
        mapping.part(4096, 4096).zero();
        assert_eq!(mapping.word(4096).load(Ordering::Relaxed), 0);
        for offset in [8192, 8185, u64::MAX, 4] {
            assert!(std::panic::catch_unwind(|| mapping.word(offset)).is_err(), "{offset}");
        }
        assert!(Mapping::reserve_at(mapping.address(), 4096).expect("asked").is_none(), "it is taken");
    }
}
