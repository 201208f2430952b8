//! Which pages of a process are in memory, without fetching any: `/proc/PID/pagemap`.
use crate::sys::page_size;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The state of a page (Documentation/admin-guide/mm/pagemap.rst of the kernel).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageState {
    /// Reading it fetches nothing.
    Present,
    /// The kernel fetches it from swap.
    Swapped,
    /// It was never touched, belongs to a file that has to be asked for it, or is not mapped.
    Absent,
}

/// The states of a process's pages.
#[derive(Debug)]
pub(super) struct PageMap {
    file: File,
}

impl PageMap {
    /// # Errors
    /// EACCES or EPERM without the right to trace the process, ENOENT if there is none.
    pub(super) fn open(pid: i32) -> io::Result<PageMap> {
        Ok(PageMap { file: File::open(format!("/proc/{pid}/pagemap"))? })
    }

    /// The pages that these bytes touch, in order.
    ///
    /// # Errors
    /// The addresses are none of a program's.
    pub(super) fn states(&self, address: u64, bytes: usize) -> io::Result<Vec<PageState>> {
        const PRESENT: u64 = 1 << 63;
        const SWAPPED: u64 = 1 << 62;
        let page = page_size() as u64;
        let first = address / page;
        let last = address.saturating_add((bytes as u64).saturating_sub(1)) / page;
        let mut words = vec![0; 8 * (last - first + 1) as usize];
        self.file.read_exact_at(&mut words, first.wrapping_mul(8))?;
        let state = |word: &[u8; 8]| match u64::from_ne_bytes(*word) {
            word if word & PRESENT != 0 => PageState::Present,
            word if word & SWAPPED != 0 => PageState::Swapped,
            _ => PageState::Absent,
        };
        Ok(words.as_chunks().0.iter().map(state).collect())
    }
}
