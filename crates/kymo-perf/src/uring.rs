//! Asynchronous writes to one file through io_uring, several at once.
//!
//! *You give it* buffers and where their bytes belong; *it gives back* each buffer with what became
//! of it, in any order. A buffer belongs to the kernel while it is on its way.
//!
//! Many containers and hardened machines forbid io_uring ([`Uring::open`] finds out by a first
//! round trip); an ordinary `pwrite(2)` is the way there.
//!
//! # Safety
//! The risk is memory that the kernel reads after it was freed or changed. So a buffer is owned by
//! its slot from before it is submitted until the kernel's answer was taken, and nobody else can
//! reach it; a [`Uring`] that goes away waits for all answers, and where even that fails the
//! buffers are leaked instead of freed.
#![allow(unsafe_code, reason = "hands buffers to the kernel")]
use io_uring::{IoUring, Probe, opcode, types};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// One write takes at most so much, as for `write(2)`.
const MOST_BYTES: usize = 0x7fff_f000;
/// What the answer to the first round trip carries.
const HELLO: u64 = u64::MAX;

/// Bytes and where they belong.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct UringWrite {
    /// The buffer.
    pub bytes: Vec<u8>,
    /// So many of its first bytes are written already.
    pub done: usize,
    /// Where in the file the first byte of the buffer belongs, in bytes.
    pub offset: u64,
}

/// The kernel's answer.
#[derive(Debug)]
pub struct Answer {
    /// The piece as it was submitted.
    pub piece: UringWrite,
    /// How many bytes after [`UringWrite::done`] were written, or why none.
    pub result: io::Result<usize>,
}

/// A file with writes on their way to it.
pub struct Uring {
    ring: IoUring,
    file: OwnedFd,
    slots: Vec<Option<UringWrite>>,
    in_flight: usize,
}

impl std::fmt::Debug for Uring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Uring").field("file", &self.file).field("in_flight", &self.in_flight).finish()
    }
}

impl Uring {
    /// Prepares for `depth` writes at once, after making sure that the kernel takes and answers
    /// requests.
    ///
    /// # Errors
    /// EPERM or EACCES where a policy forbids io_uring, ENOSYS where there is none, EOPNOTSUPP
    /// where it is too old to write.
    pub fn open(file: OwnedFd, depth: u32) -> io::Result<Uring> {
        let depth = depth.max(1);
        // The command is forked from this process and has no business with the ring.
        let mut ring: IoUring = IoUring::builder().dontfork().build(depth)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Write::CODE) {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        let hello = opcode::Nop::new().build().user_data(HELLO);
        // SAFETY: a request that does nothing refers to no memory.
        unsafe { ring.submission().push(&hello) }.map_err(io::Error::other)?;
        loop {
            match ring.submit_and_wait(1) {
                Ok(_) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let answer = ring.completion().next().map(|entry| entry.user_data());
        if answer != Some(HELLO) {
            return Err(io::Error::other("io_uring does not answer"));
        }
        let slots = (0..depth).map(|_| None).collect();
        Ok(Uring { ring, file, slots, in_flight: 0 })
    }

    /// Sends the piece's remaining bytes on their way. Gives the piece back if as many are on their
    /// way as may be.
    ///
    /// # Errors
    /// The piece.
    pub fn submit(&mut self, piece: UringWrite) -> Result<(), UringWrite> {
        let Some(slot) = self.slots.iter().position(Option::is_none) else { return Err(piece) };
        let piece = self.slots[slot].insert(piece);
        let rest = piece.bytes.get(piece.done..).unwrap_or(&[]);
        let len = rest.len().min(MOST_BYTES) as u32;
        let file = types::Fd(self.file.as_raw_fd());
        let write = opcode::Write::new(file, rest.as_ptr(), len)
            .offset(piece.offset + piece.done as u64)
            .build()
            .user_data(slot as u64);
        // SAFETY: the bytes are in the slot's buffer, which nothing touches until the answer was
        // taken (`take`) and which outlives the request (`drop`); moving the Vec does not move
        // them. The file is ours and open as long.
        let pushed = unsafe { self.ring.submission().push(&write) };
        if pushed.is_err() {
            return Err(self.slots[slot].take().unwrap_or_default());
        }
        self.in_flight += 1;
        // What the kernel does not take now (it may be interrupted or short of memory) goes with
        // the next request or wait.
        if let Err(error) = self.ring.submit() {
            tracing::debug!(%error, "io_uring takes the write later");
        }
        Ok(())
    }

    /// An answer that has come, without waiting for one.
    pub fn ready(&mut self) -> Option<Answer> {
        let entry = self.ring.completion().next()?;
        self.take(entry.user_data(), entry.result())
    }

    /// The next answer; `None` if nothing is on its way.
    ///
    /// # Errors
    /// What `io_uring_enter(2)` says, other than that it was interrupted or is busy.
    pub fn wait(&mut self) -> io::Result<Option<Answer>> {
        while self.in_flight > 0 {
            if let Some(answer) = self.ready() {
                return Ok(Some(answer));
            }
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error)
                    if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    fn take(&mut self, slot: u64, result: i32) -> Option<Answer> {
        let piece = self.slots.get_mut(usize::try_from(slot).ok()?)?.take()?;
        self.in_flight -= 1;
        let result = usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(result.wrapping_neg()));
        Some(Answer { piece, result })
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        while let Ok(Some(_)) = self.wait() {}
        if self.in_flight > 0 {
            std::mem::forget(std::mem::take(&mut self.slots));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Uring, UringWrite};
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    /// A ring on the file; `None`, said aloud, where the machine has none.
    fn ring(test: &str, file: &File, depth: u32) -> Option<Uring> {
        let copy = file.try_clone().expect("a descriptor").into();
        Uring::open(copy, depth)
            .inspect_err(|error| kymo_testing::skip(test, format!("io_uring: {error}")))
            .ok()
    }

    /// Checks that pieces land where they belong whatever the order of answers, that no more are on
    /// their way than agreed, that a piece continues where it was left, and that nothing is lost
    /// when the ring goes away at once.
    #[test]
    fn pieces_land() {
        let file = tempfile::tempfile().unwrap();
        let Some(mut ring) = ring("uring::tests::pieces_land", &file, 4) else { return };
        let piece = |at: u64| UringWrite { bytes: vec![at as u8; 5000], done: 0, offset: at * 5000 };
        (0..4).for_each(|at| ring.submit(piece(at)).unwrap());
        assert_eq!(ring.submit(piece(4)).unwrap_err(), piece(4));
        let mut seen = Vec::new();
        while let Some(answer) = ring.wait().unwrap() {
            assert_eq!(answer.result.unwrap(), 5000);
            seen.push(answer.piece.offset / 5000);
        }
        seen.sort_unstable();
        assert_eq!((seen, ring.in_flight), (vec![0, 1, 2, 3], 0));
        ring.submit(UringWrite { bytes: b"..end".to_vec(), done: 2, offset: 20_000 }).unwrap();
        drop(ring);
        let mut all = vec![0; 20_005];
        file.read_exact_at(&mut all, 0).unwrap();
        assert!(all[..20_000].chunks(5000).zip(0..).all(|(chunk, at)| chunk.iter().all(|&byte| byte == at)));
        assert_eq!(&all[20_000..], b"\0\0end");
    }

    /// Checks that the kernel's refusal comes back with the piece.
    #[test]
    fn refusals() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let Some(mut ring) = ring("uring::tests::refusals", &full, 1) else { return };
        ring.submit(UringWrite { bytes: vec![1; 8], done: 0, offset: 0 }).unwrap();
        let answer = ring.wait().unwrap().unwrap();
        assert_eq!(answer.result.unwrap_err().raw_os_error(), Some(libc::ENOSPC));
        assert_eq!(answer.piece.bytes, [1; 8]);
        assert!(ring.wait().unwrap().is_none());
    }
}
