//! A BPF ring buffer with one reader (Linux 5.8).
//!
//! ```text
//!   page 0, writable here: word 0 = read until there | page 1: word 0 = written until there | records, twice in a row, so that none is cut
//!   record: | length u32, the highest bits: still being written, given up | u32 | bytes, up to the next eighth |
//! ```
//! # Safety
//! As in the parent module. The kernel's side of the ring is believed for nothing that is not
//! checked: positions and lengths are held against the size.
use super::{CreateAttr, MAP_CREATE, SharedWords, bpf_open};
use rustix::mm::ProtFlags;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

const TYPE_RING: u32 = 27;
const BUSY: u64 = 1 << 31;
const GIVEN_UP: u64 = 1 << 30;

/// The ring.
#[derive(Debug)]
pub(in crate::bpf) struct Ring {
    fd: OwnedFd,
    /// The page with the position of what was read.
    read: SharedWords,
    /// The page with the position of what was written, and the data twice behind it.
    written: SharedWords,
    /// Words of a page, and of the data.
    page: usize,
    size: usize,
}

impl Ring {
    /// Makes one whose data has so many bytes: a power of two, and whole pages.
    pub(in crate::bpf) fn make(bytes: usize, name: [u8; 16]) -> io::Result<Ring> {
        let mut attr =
            CreateAttr { kind: TYPE_RING, max_entries: bytes as u32, name, ..CreateAttr::default() };
        // SAFETY: no addresses in it.
        let fd = unsafe { bpf_open(MAP_CREATE, &mut attr) }?;
        let page = rustix::param::page_size();
        let read = SharedWords::map(&fd, ProtFlags::READ | ProtFlags::WRITE, 0, page / 8)?;
        // Readable only, and never written through.
        let written = SharedWords::map(&fd, ProtFlags::READ, page as u64, (page + 2 * bytes) / 8)?;
        Ok(Ring { fd, read, written, page: page / 8, size: bytes / 8 })
    }

    pub(in crate::bpf) fn number(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub(in crate::bpf) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Tells each record that is complete, as words, and gives their place back; how many.
    pub(in crate::bpf) fn read(&self, tell: &mut dyn FnMut(&[AtomicU64])) -> usize {
        let words = self.written.words();
        let Some((position, data)) = words.first().zip(words.get(self.page..)) else { return 0 };
        let Some(done) = self.read.words().first() else { return 0 };
        let mut told = 0;
        // Relaxed: only we write it.
        let mut at = done.load(Ordering::Relaxed);
        // Acquire: pairs with the kernel's release of the position, behind the record's head.
        let end = position.load(Ordering::Acquire);
        while at < end {
            let from = usize::try_from(at / 8).unwrap_or(0) & (self.size - 1);
            let Some(head) = data.get(from) else { break };
            // Acquire: pairs with the kernel's release when the record is complete.
            let head = head.load(Ordering::Acquire) & u64::from(u32::MAX);
            if head & BUSY != 0 {
                break;
            }
            let bytes = (head & !(BUSY | GIVEN_UP)) as usize;
            let length = bytes.div_ceil(8);
            if head & GIVEN_UP == 0
                && length <= self.size
                && let Some(record) = data.get(from + 1..from + 1 + length)
            {
                tell(record);
                told += 1;
            }
            at += 8 * (length as u64 + 1);
            // Release: we are done with the record's bytes; pairs with the kernel's acquire.
            done.store(at, Ordering::Release);
        }
        told
    }
}
