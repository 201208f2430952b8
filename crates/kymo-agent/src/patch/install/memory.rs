//! Where code is read from: this process, or the bytes of a file that is only looked at.
use crate::sys::{memory_file, raw};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU8, Ordering};

/// Bytes by address. What is not there gives fewer bytes, never an error and never a fault.
pub trait Memory {
    /// Copies what is at `address` into `into`, and tells how many bytes that were.
    fn read(&self, address: u64, into: &mut [u8]) -> usize;

    /// Up to `bytes` bytes from `address` on; takes memory as they come, not as they are claimed.
    fn bytes(&self, address: u64, bytes: u64) -> Vec<u8> {
        const PIECE: usize = 64 << 10;
        let mut all = Vec::new();
        while (all.len() as u64) < bytes {
            let begin = all.len();
            let piece = PIECE.min((bytes - begin as u64) as usize);
            all.resize(begin + piece, 0);
            let got = self.read(address.wrapping_add(begin as u64), &mut all[begin..]);
            all.truncate(begin + got);
            if got < piece {
                break;
            }
        }
        all
    }
}

/// Bytes that lie at an address: a segment of a file, or a test's code.
impl Memory for (u64, &[u8]) {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        let (base, bytes) = *self;
        let Some(begin) = address.checked_sub(base).and_then(|offset| usize::try_from(offset).ok()) else {
            return 0;
        };
        let there = bytes.get(begin..).unwrap_or_default();
        let count = there.len().min(into.len());
        into[..count].copy_from_slice(&there[..count]);
        count
    }
}

/// The memory of this process, through a file: nothing faults, and pages that are not writable are
/// written, too, as a debugger would. So no page is ever made writable for a patch.
///
/// Some kernels write only pages that the process may write itself ([`OwnMemory::is_forced`]). The
/// file of a process that is not dumpable (a daemon that has given up root) belongs to root, and
/// the process may not open it. Then a system call reads memory and writes what is writable. In
/// both cases the one who holds the threads writes code.
#[derive(Debug)]
pub struct OwnMemory(Option<File>);

/// What [`OwnMemory::is_forced`] has found out.
static FORCED: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const YES: u8 = 1;
const NO: u8 = 2;

impl OwnMemory {
    /// Opens it. The descriptor belongs to this process for good: after a fork it still means the
    /// parent, so it is opened for each use.
    ///
    /// # Errors
    /// Where /proc is missing or does not permit it.
    pub fn open() -> io::Result<OwnMemory> {
        let file = match File::options().read(true).write(true).open("/proc/self/mem") {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(OwnMemory(None)),
            opened => opened?,
        };
        // Away from the numbers that a program closes and gives anew, as for a daemon's or a
        // child's standard streams.
        Ok(OwnMemory(Some(memory_file::out_of_the_way(file.into()).into())))
    }

    /// Whether the kernel writes pages here that are not writable. Linux from 6.12 on does not with
    /// `CONFIG_PROC_MEM_FORCE_PTRACE` or `CONFIG_PROC_MEM_NO_FORCE`, which the boot option
    /// `proc_mem.force_override` overrides.
    ///
    /// Found out by writing a byte of this library's code as it is. An answer that says nothing
    /// about that (a filter of system calls, no memory) counts as yes: the write that matters will
    /// fail with its own reason.
    pub fn is_forced(&self) -> bool {
        if self.0.is_none() {
            return false;
        }
        // Relaxed: a fact about the kernel, which each thread would find the same.
        match FORCED.load(Ordering::Relaxed) {
            UNKNOWN => {}
            known => return known == YES,
        }
        let here = OwnMemory::open as fn() -> io::Result<OwnMemory> as usize as u64;
        let mut byte = [0];
        let refused = self.read(here, &mut byte) == 1
            && self.write(here, &byte).is_err_and(|error| error.raw_os_error() == Some(libc::EIO));
        FORCED.store(if refused { NO } else { YES }, Ordering::Relaxed);
        !refused
    }

    /// The file's number, for callers that may use nothing of a library; none where it does not
    /// write code ([`OwnMemory::is_forced`]).
    pub(crate) fn writes_code(&self) -> Option<i32> {
        self.0.as_ref().filter(|_| self.is_forced()).map(File::as_raw_fd)
    }

    /// Writes whatever the page's protection, where [`OwnMemory::is_forced`]; a private page
    /// becomes this process's own copy.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        match &self.0 {
            Some(file) => file.write_all_at(bytes, address),
            None => raw::poke(address, bytes),
        }
    }
}

impl Memory for OwnMemory {
    /// Calls no library: also where threads stand still.
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        let Some(file) = &self.0 else { return raw::peek(address, into) };
        let mut done = 0;
        while done < into.len() {
            match raw::read_at(file.as_raw_fd(), &mut into[done..], address.wrapping_add(done as u64)) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        done
    }
}

/// The mapped ranges of this process, in order, without their names.
pub(crate) fn mapped() -> io::Result<Vec<(u64, u64)>> {
    let text = crate::patch::os::text("/proc/self/maps")?;
    let range = |line: &str| {
        let (begin, rest) = line.split_once('-')?;
        let (end, _) = rest.split_once(' ')?;
        Some((u64::from_str_radix(begin, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
    };
    Ok(text.lines().filter_map(range).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that reading beyond what is there gives what is there, of bytes and of this process.
    #[test]
    fn what_is_not_there_is_not_read() {
        let code = (0x1000, &[1u8, 2, 3][..]);
        assert_eq!(code.bytes(0x1001, 1 << 40), [2, 3]);
        assert!(code.bytes(0xfff, 4).is_empty() && code.bytes(0x2000, 4).is_empty());
        let own = OwnMemory::open().expect("/proc");
        assert!(own.bytes(0, 4).is_empty());
        let here = [7u8; 9];
        assert_eq!(own.bytes(here.as_ptr() as u64, 9), here);
    }
}
