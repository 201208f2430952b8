//! Where code is read from: this process, or the bytes of a file that is only looked at.
use crate::sys::memory_file;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

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
#[derive(Debug)]
pub struct OwnMemory(File);

impl OwnMemory {
    /// Opens it. The descriptor belongs to this process for good: after a fork it still means the
    /// parent, so it is opened for each use.
    ///
    /// # Errors
    /// Where /proc is missing or does not permit it.
    pub fn open() -> io::Result<OwnMemory> {
        let file = File::options().read(true).write(true).open("/proc/self/mem")?;
        // Away from the numbers that a program closes and gives anew, as for a daemon's or a
        // child's standard streams.
        Ok(OwnMemory(memory_file::out_of_the_way(file.into()).into()))
    }

    /// The file's number, for who may use nothing of a library.
    pub(crate) fn number(&self) -> i32 {
        std::os::fd::AsRawFd::as_raw_fd(&self.0)
    }

    /// Writes whatever the page's protection; a private page becomes this process's own copy.
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, address)
    }
}

impl Memory for OwnMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        let mut done = 0;
        while done < into.len() {
            match self.0.read_at(&mut into[done..], address.wrapping_add(done as u64)) {
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
