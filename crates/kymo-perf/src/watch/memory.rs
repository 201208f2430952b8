//! Another process's memory, read from outside.
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The memory of a process as it is now. It stays that of the process that had the id when it was opened: after an exec it reads nothing.
#[derive(Debug)]
pub struct Memory(File);

impl Memory {
    /// Opens it for reading.
    ///
    /// # Errors
    /// EACCES or EPERM without the right to trace the process, ENOENT if there is none.
    pub fn open(pid: i32) -> io::Result<Memory> {
        File::open(format!("/proc/{pid}/mem")).map(Memory)
    }

    /// Reads the bytes from `address` on. Does not trap where they are watched.
    ///
    /// # Errors
    /// EIO if nothing is mapped there.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(bytes, address)
    }

    /// The 8 aligned bytes around an address.
    pub fn word(&self, address: u64) -> Option<[u8; 8]> {
        let mut word = [0; 8];
        self.read(address & !7, &mut word).ok()?;
        Some(word)
    }
}

#[cfg(test)]
mod tests {
    use super::Memory;

    /// Checks that this process's own memory is read, and that no address gives no word.
    #[test]
    fn own_memory() {
        let value = Box::new(0x1122_3344_5566_7788u64);
        let memory = Memory::open(std::process::id() as i32).unwrap();
        let address = std::ptr::from_ref(&*value).addr() as u64;
        assert_eq!(memory.word(address + 3).map(u64::from_ne_bytes), Some(*value));
        assert_eq!(memory.word(8), None);
    }
}
