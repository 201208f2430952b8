//! Reads and writes the memory of another process, with a deadline.
//!
//! A page of it may lie in a file system that the process itself serves (FUSE). The kernel then
//! makes the reader wait for an answer, and nothing ends that wait, not even SIGKILL. So a helper
//! process reads, and is given up when it takes too long.
//!
//! ```text
//!   kymo    job: the descriptor of /proc/PID/mem, address, length ---->  helper   pread
//!           <---- answer, within the deadline
//!           else: the helper is given up, this memory fails from now on
//! ```
//! Such a read also keeps a lock of that process: others that look at it then wait, too. So of
//! another user's process no page is asked for that would have to come from a file system of a
//! user: one that no list of mounts names any more counts as that.
//!
//! # Guarantees
//! - **M1** No call takes longer than [`DEADLINE`], not counting time in which the helper gets no
//!   CPU; all calls of a run that fail so take [`TOTAL_DEADLINE`] together and then [`LEAST`] each,
//!   however many processes do not answer.
//! - **M2** What was asked for and is answered late is never taken for the answer to another job.
//! - **M3** A helper that waits for ever keeps nothing of this process from its end.

use super::page_map::{PageMap, PageState};
use super::{Mappings, state};
use crate::sys::page_size;
use crate::sys::socket::helper;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, pread, pwrite};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recv, recvmsg, send, sendmsg,
};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Longer than a page takes to come from a slow disk or a network.
const DEADLINE: Duration = Duration::from_secs(3);
/// What all reads that are never answered may take together.
const TOTAL_DEADLINE: Duration = Duration::from_secs(12);
/// What each may take when that is used up.
const LEAST: Duration = Duration::from_millis(100);
/// How often a helper that does not answer is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// How long a helper may wait for a CPU.
const MOST_WAITING: Duration = Duration::from_secs(60);
/// Helpers that wait for another job.
const MOST_IDLE: usize = 2;
/// What stands for the bytes of pages that are not in memory.
const ABSENT_BYTE: u8 = 0x5a;
/// What one packet takes of memory.
const MOST_BYTES: usize = 64 << 10;
/// Ranges that one job reads.
const MOST_RANGES: usize = 128;
/// Before the bytes of a job: what to do, address, length. Before those of an answer: an error or
/// 0, length.
const HEAD_BYTES: usize = 24;

/// Milliseconds that were spent on reads that were not answered.
static SPENT_MS: AtomicU64 = AtomicU64::new(0);
static IDLE: Mutex<Vec<MemoryReader>> = Mutex::new(Vec::new());

/// The memory of a process. It stays that of the program that ran when it was opened: after an exec
/// it has none.
#[derive(Debug)]
pub struct ProcessMemory {
    file: File,
    /// Of a process of another user.
    foreign: Option<Foreign>,
    /// A read was not answered.
    is_mute: AtomicBool,
}

/// A copy of this process that reads and writes for others, one job at a time.
#[derive(Debug)]
struct MemoryReader {
    socket: OwnedFd,
    pid: i32,
}

impl MemoryReader {
    /// One that is free, or a new one.
    fn take() -> io::Result<MemoryReader> {
        if let Some(helper) = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            return Ok(helper);
        }
        let (socket, pid) = helper::start(vec![0; HEAD_BYTES + MOST_BYTES], serve)?;
        Ok(MemoryReader { socket, pid })
    }

    /// For the next job.
    fn give_back(self) {
        let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MOST_IDLE {
            idle.push(self);
        }
    }

    /// Sends a job with the descriptor that it is about.
    fn send(&self, file: BorrowedFd<'_>, head: &[u8; HEAD_BYTES], bytes: &[u8]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = [file];
        control.push(SendAncillaryMessage::ScmRights(&files));
        let parts = [IoSlice::new(head), IoSlice::new(bytes)];
        sendmsg(&self.socket, &parts, &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Its answer: how many bytes are in `bytes`. `None`: there was none within the time.
    fn answer(&self, bytes: &mut [u8], within: Duration) -> io::Result<Option<usize>> {
        let (begun, mut left) = (Instant::now(), within);
        loop {
            let looked = Instant::now();
            let pause = left.min(LOOK);
            let pause = Timespec { tv_sec: 0, tv_nsec: pause.as_nanos() as i64 };
            match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&pause)) {
                // A helper that waits for a CPU is not waiting for the page.
                Ok(0) if state(self.pid, self.pid) == Some('R') && begun.elapsed() < MOST_WAITING => {}
                Ok(0) => {
                    left = left.saturating_sub(looked.elapsed());
                    if left.is_zero() {
                        return Ok(None);
                    }
                }
                Ok(_) => break,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        let mut answer = vec![0; HEAD_BYTES + bytes.len()];
        let (_, received) = recv(&self.socket, &mut answer[..], RecvFlags::empty())?;
        let Some((head, read)) = answer[..received].split_first_chunk::<HEAD_BYTES>() else {
            return Err(io::Error::other("a helper process of kymo has ended"));
        };
        match word(head, 0) {
            0 => {
                let count = read.len().min(bytes.len());
                bytes[..count].copy_from_slice(&read[..count]);
                Ok(Some(usize::try_from(word(head, 1)).unwrap_or(0)))
            }
            error => Err(io::Error::from_raw_os_error(error as i32)),
        }
    }
}

fn word(head: &[u8; HEAD_BYTES], number: usize) -> u64 {
    u64::from_le_bytes(head.as_chunks().0[number])
}

fn head(words: [u64; 3]) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head.copy_from_slice(words.map(u64::to_le_bytes).as_flattened());
    head
}

const READ: u64 = 0;
const WRITE: u64 = 1;
/// The bytes of the job are pairs of address and length, the second word of its head says how many;
/// those of the answer are a word for each, how many bytes there were, and then these bytes.
const READ_EACH: u64 = 2;

/// Does the job [`READ_EACH`], whose pairs are in `bytes`: how many bytes the answer has.
fn transfer_each(file: impl AsFd, count: u64, bytes: &mut [u8]) -> usize {
    let mut ranges = [[0; 2]; MOST_RANGES];
    let count = (count as usize).min(MOST_RANGES);
    let pairs = bytes.as_chunks().0.as_chunks().0;
    for (range, pair) in ranges.iter_mut().zip(pairs.iter().take(count)) {
        *range = pair.map(u64::from_le_bytes);
    }
    let mut end = 8 * count;
    for (number, [address, length]) in ranges.into_iter().take(count).enumerate() {
        let most = (length as usize).min(bytes.len().saturating_sub(end));
        let part = bytes.get_mut(end..end + most).unwrap_or_default();
        let read = pread(&file, part, address).unwrap_or(0);
        bytes[8 * number..8 * number + 8].copy_from_slice(&(read as u64).to_le_bytes());
        end += read;
    }
    end
}

fn transfer(file: impl AsFd, access: u64, address: u64, bytes: &mut [u8]) -> Result<usize, Errno> {
    if access == READ { pread(file, bytes, address) } else { pwrite(file, bytes, address) }
}

/// What the helper does, until its socket is closed. System calls only: see [`helper`].
fn serve(socket: BorrowedFd<'_>, memory: &mut [u8]) {
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(socket, &mut [IoSliceMut::new(memory)], &mut control, RecvFlags::CMSG_CLOEXEC);
        let Ok(received) = received else { return };
        let file = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        let (Some(file), Some((job, bytes))) = (file, memory.split_first_chunk_mut::<HEAD_BYTES>()) else {
            return;
        };
        if received.bytes < HEAD_BYTES {
            return;
        }
        let length = (word(job, 2) as usize).min(MOST_BYTES).min(bytes.len());
        let (address, bytes) = (word(job, 1), &mut bytes[..length]);
        let done = match word(job, 0) {
            READ_EACH => Ok(transfer_each(&file, address, bytes)),
            access => transfer(&file, access, address, bytes),
        };
        let (error, count) = done.map_or_else(|errno| (errno.raw_os_error() as u64, 0), |count| (0, count));
        let sent = if word(job, 0) == WRITE { 0 } else { count };
        *job = head([error, count as u64, 0]);
        if send(socket, &memory[..HEAD_BYTES + sent], SendFlags::NOSIGNAL).is_err() {
            return;
        }
    }
}

/// How long the next read may take.
fn deadline() -> Duration {
    // Counts, and publishes nothing.
    let left = TOTAL_DEADLINE.saturating_sub(Duration::from_millis(SPENT_MS.load(Ordering::Relaxed)));
    left.min(DEADLINE).max(LEAST)
}

/// Why memory gave nothing: the page has to come from a server that is silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "its memory does not answer: a page of it is not there, and has to come from a file system that a user serves"
)]
pub(crate) struct Unanswered;

impl Unanswered {
    /// Whether this is why a call of [`ProcessMemory`] failed.
    pub(crate) fn is_why(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<Unanswered>())
    }
}

fn unanswered() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, Unanswered)
}

/// What tells where the pages of another user's process come from.
#[derive(Debug)]
struct Foreign {
    pid: i32,
    pages: PageMap,
    /// Devices of file systems that the kernel or root serves; read when they are asked for.
    devices: OnceLock<BTreeSet<(u32, u32)>>,
}

impl Foreign {
    /// Nothing for a process of our own user, who can do to us what it likes anyway.
    fn of(pid: i32) -> Option<Foreign> {
        let owner = std::fs::metadata(format!("/proc/{pid}")).ok()?.uid();
        let pages = PageMap::open(pid).ok()?;
        let is_foreign = owner != rustix::process::geteuid().as_raw();
        is_foreign.then(|| Foreign { pid, pages, devices: OnceLock::new() })
    }

    /// Whether no page of this range has to be fetched from a file system that a user serves.
    fn is_safe(&self, address: u64, bytes: usize) -> bool {
        let states = self.pages.states(address, bytes);
        if states.is_ok_and(|states| states.iter().all(|&state| state == PageState::Present)) {
            return true;
        }
        let end = address.saturating_add(bytes as u64);
        let maps = super::maps(self.pid);
        let mut touched = Mappings::new(&maps).filter(|mapping| mapping.start < end && address < mapping.end);
        touched.all(|mapping| {
            mapping.inode == 0
                || mapping.major != 0
                || self.devices().contains(&(mapping.major, mapping.minor))
        })
    }

    fn devices(&self) -> &BTreeSet<(u32, u32)> {
        self.devices.get_or_init(|| {
            let lists = ["/proc/self/mountinfo".to_owned(), format!("/proc/{}/mountinfo", self.pid)];
            let mut found: BTreeSet<(u32, u32)> =
                lists.iter().flat_map(|list| devices_in(&super::text(list).unwrap_or_default())).collect();
            // Memory that is shared without a file that others see.
            let shared =
                rustix::fs::memfd_create("kymo", rustix::fs::MemfdFlags::CLOEXEC).and_then(rustix::fs::fstat);
            found.extend(shared.map(|stat| (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev))));
            found
        })
    }
}

/// The devices in a list of mounts, but for those of file systems in user space.
fn devices_in(mounts: &str) -> Vec<(u32, u32)> {
    let device = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let (major, minor) = before.split(' ').nth(2)?.split_once(':')?;
        let kind = after.split(' ').next()?;
        let is_of_user = kind == "fuse" || kind.starts_with("fuse.");
        Some((major.parse().ok()?, minor.parse().ok()?)).filter(|_| !is_of_user)
    };
    mounts.lines().filter_map(device).collect()
}

impl ProcessMemory {
    /// Starts a helper for the first read. It is a copy of this process: made later, it has this
    /// process copy each page of its buffers at the next write, with all its CPUs interrupted.
    pub fn prepare() {
        // Without one, the first read asks again.
        if let Ok(helper) = MemoryReader::take() {
            helper.give_back();
        }
    }

    /// Opens it for reading.
    ///
    /// # Errors
    /// EACCES or EPERM without the right to trace the process, ENOENT if there is none.
    pub fn open(pid: i32) -> io::Result<ProcessMemory> {
        File::open(format!("/proc/{pid}/mem")).map(|file| ProcessMemory::of(pid, file))
    }

    /// The same, to write, too.
    ///
    /// # Errors
    /// As [`open`](ProcessMemory::open).
    pub(crate) fn open_to_write(pid: i32) -> io::Result<ProcessMemory> {
        let file = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
        Ok(ProcessMemory::of(pid, file))
    }

    /// The memory of one thread's process, of a thread that may have executed another program.
    ///
    /// # Errors
    /// As [`open`](ProcessMemory::open).
    pub(crate) fn of_thread(pid: i32, tid: i32) -> io::Result<ProcessMemory> {
        File::open(format!("/proc/{pid}/task/{tid}/mem")).map(|file| ProcessMemory::of(tid, file))
    }

    fn of(pid: i32, file: File) -> ProcessMemory {
        ProcessMemory { file, foreign: Foreign::of(pid), is_mute: AtomicBool::new(false) }
    }

    /// Reads all the bytes from `address` on.
    ///
    /// # Errors
    /// EIO if not all of them are mapped; `Unanswered` if they did not come.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> io::Result<()> {
        let read = self.read_some(address, bytes)?;
        if read == bytes.len() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// Reads as many bytes as there are: how many.
    ///
    /// # Errors
    /// As [`read`](ProcessMemory::read), if there are none.
    pub fn read_some(&self, address: u64, bytes: &mut [u8]) -> io::Result<usize> {
        let mut read = 0;
        for part in bytes.chunks_mut(MOST_BYTES) {
            match self.ask(READ, address.wrapping_add(read as u64), part) {
                Ok(count) => {
                    read += count.min(part.len());
                    if count < part.len() {
                        break;
                    }
                }
                Err(error) if read == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(read)
    }

    /// Reads each of these ranges as far as there is something, many of them by one question to the
    /// helper.
    pub fn read_each(&self, ranges: &[(u64, usize)]) -> Vec<Vec<u8>> {
        let mut all = Vec::with_capacity(ranges.len());
        while let Some(&(address, length)) = ranges.get(all.len()) {
            let mut room = MOST_BYTES;
            let fits = |(_, length): &&(u64, usize)| {
                let left = room.checked_sub(8 + length);
                room = left.unwrap_or(0);
                left.is_some()
            };
            let rest = &ranges[all.len()..];
            let together = rest.iter().take(MOST_RANGES).take_while(fits).count();
            // One that must not be asked for is no reason not to read the others.
            let are_safe =
                || rest[..together].iter().all(|(address, length)| self.is_safe(*address, *length));
            if together > 1 && are_safe() {
                all.extend(self.ask_each(&rest[..together]));
                continue;
            }
            let mut bytes = vec![0; length];
            let read = self.read_some(address, &mut bytes).unwrap_or(0);
            bytes.truncate(read);
            all.push(bytes);
        }
        all
    }

    /// Reads ranges that fit into one answer together, and of which each is safe.
    fn ask_each(&self, ranges: &[(u64, usize)]) -> Vec<Vec<u8>> {
        let nothing = || vec![Vec::new(); ranges.len()];
        // Relaxed: only saves the attempt.
        if self.is_mute.load(Ordering::Relaxed) {
            return nothing();
        }
        let data: usize = ranges.iter().map(|(_, length)| length).sum();
        let mut bytes = vec![0; (8 * ranges.len() + data).max(16 * ranges.len())];
        for (pair, (address, length)) in bytes.chunks_exact_mut(16).zip(ranges) {
            pair[..8].copy_from_slice(&address.to_le_bytes());
            pair[8..].copy_from_slice(&(*length as u64).to_le_bytes());
        }
        let count = match MemoryReader::take() {
            Ok(helper) => self.exchange(helper, READ_EACH, ranges.len() as u64, &mut bytes).unwrap_or(0),
            Err(_) => transfer_each(&self.file, ranges.len() as u64, &mut bytes),
        };
        let Some((counts, mut data)) = bytes[..count.min(bytes.len())].split_at_checked(8 * ranges.len())
        else {
            return nothing();
        };
        let each = counts.as_chunks().0.iter().map(|count| {
            let (own, rest) = data.split_at((u64::from_le_bytes(*count) as usize).min(data.len()));
            data = rest;
            own.to_vec()
        });
        each.collect()
    }

    /// Reads a stack, and fetches no page from a file: how many bytes. Pages that are not in memory,
    /// such as the untouched part of a large array, stay untouched; in their place is
    /// 0x5a, as an address that no program has.
    ///
    /// # Errors
    /// As [`read`](ProcessMemory::read), if there are none.
    pub fn read_resident(&self, pid: i32, address: u64, bytes: &mut [u8]) -> io::Result<usize> {
        let page = page_size();
        let states = PageMap::open(pid)?.states(address, bytes.len())?;
        let mut read = 0;
        for run in states.chunk_by(|one, next| (*one == PageState::Absent) == (*next == PageState::Absent)) {
            let offset = (address.wrapping_add(read as u64) % page as u64) as usize;
            let end = bytes.len().min(read + run.len() * page - offset);
            let part = &mut bytes[read..end];
            if run[0] == PageState::Absent {
                part.fill(ABSENT_BYTE);
                read = end;
                continue;
            }
            let count = match self.read_some(address.wrapping_add(read as u64), part) {
                Err(error) if read == 0 => return Err(error),
                count => count.unwrap_or(0),
            };
            read += count;
            if read < end {
                break;
            }
        }
        Ok(read)
    }

    /// Writes all the bytes, into pages that are read-only to the process, too.
    ///
    /// # Errors
    /// As [`read`](ProcessMemory::read).
    pub(crate) fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        let mut written = 0;
        for part in bytes.chunks(MOST_BYTES) {
            let count = self.ask(WRITE, address.wrapping_add(written as u64), &mut part.to_vec())?;
            if count < part.len() {
                return Err(io::ErrorKind::WriteZero.into());
            }
            written += count;
        }
        Ok(())
    }

    /// The 8 aligned bytes around an address.
    pub fn word(&self, address: u64) -> Option<[u8; 8]> {
        let mut word = [0; 8];
        self.read(address & !7, &mut word).ok()?;
        Some(word)
    }

    /// Has a helper read into the bytes, or write them: how many.
    fn ask(&self, access: u64, address: u64, bytes: &mut [u8]) -> io::Result<usize> {
        // Relaxed: only saves the attempt.
        if self.is_mute.load(Ordering::Relaxed) || !self.is_safe(address, bytes.len()) {
            return Err(unanswered());
        }
        let Ok(helper) = MemoryReader::take() else {
            // No process is left (a limit on tasks): without a deadline is better than not at all.
            return Ok(transfer(&self.file, access, address, bytes)?);
        };
        self.exchange(helper, access, address, bytes)
    }

    /// Whether no page of this range has to be fetched from a file system that a user serves.
    fn is_safe(&self, address: u64, bytes: usize) -> bool {
        self.foreign.as_ref().is_none_or(|foreign| foreign.is_safe(address, bytes))
    }

    /// Has the helper do a job on the bytes: how many its answer has.
    fn exchange(
        &self,
        helper: MemoryReader,
        access: u64,
        address: u64,
        bytes: &mut [u8],
    ) -> io::Result<usize> {
        let begun = Instant::now();
        let job = head([access, address, bytes.len() as u64]);
        helper.send(self.file.as_fd(), &job, if access == READ { &[] } else { bytes })?;
        let answer = helper.answer(bytes, deadline());
        match answer {
            Ok(None) => {
                let spent = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
                SPENT_MS.fetch_add(spent, Ordering::Relaxed);
                self.is_mute.store(true, Ordering::Relaxed);
                Err(unanswered())
            }
            Ok(Some(count)) => {
                helper.give_back();
                Ok(count)
            }
            Err(error) => {
                // A helper that has ended has no number of an error.
                if error.raw_os_error().is_some() {
                    helper.give_back();
                }
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU8;

    /// Checks that mounts are told apart by who serves them.
    #[test]
    fn mounts_of_users_are_not_trusted() {
        let mounts = "22 1 0:20 / /proc rw - proc proc rw\n30 1 0:33 / /home/u/m rw - fuse none rw\n\
            31 1 0:34 / /x rw shared:1 - fuse.sshfs a:/ rw\n32 1 8:1 / / rw - ext4 /dev/sda1 rw\nodd\n";
        assert_eq!(devices_in(mounts), [(0, 20), (8, 1)]);
    }

    /// Checks that many ranges are read together as each alone: those that fit into one answer and
    /// longer ones, those that are nowhere, and more than one job has.
    #[test]
    fn ranges_together() {
        let memory = ProcessMemory::open(std::process::id() as i32).unwrap();
        let words: Vec<u64> = (0..20_000).map(|number: u64| number.wrapping_mul(0x9e37_79b9)).collect();
        let at = |word: usize| std::ptr::from_ref(&words[word]).addr() as u64;
        let range = |number: usize| match number % 5 {
            0 => (at(number), 0),
            1 => (at(number), 8 * (number % 300)),
            2 => (8, 64),
            3 if number % 100 == 3 => (at(0), MOST_BYTES + 24),
            _ => (at(number) + 3, 41),
        };
        let ranges: Vec<(u64, usize)> = (0..600).map(range).collect();
        let all = memory.read_each(&ranges);
        assert_eq!(all.len(), ranges.len());
        for ((address, length), together) in ranges.into_iter().zip(all) {
            let mut alone = vec![0; length];
            let read = memory.read_some(address, &mut alone).unwrap_or(0);
            assert!(together == alone[..read], "{address:#x} {length}: {} {read}", together.len());
        }
        assert!(memory.read_each(&[]).is_empty());
    }

    /// Checks that this process's own memory is read whole, in part and not at all, by several
    /// threads at once, each its own, and that it is written.
    #[test]
    fn own_memory() {
        let memory = ProcessMemory::open_to_write(std::process::id() as i32).unwrap();
        let read = |number: u64| {
            let value = Box::new(0x1122_3344_5566_7700 + number);
            let address = std::ptr::from_ref(&*value).addr() as u64;
            for _ in 0..200 {
                assert_eq!(memory.word(address + 3).map(u64::from_ne_bytes), Some(*value));
            }
        };
        std::thread::scope(|scope| {
            for number in 0..8 {
                scope.spawn(move || read(number));
            }
        });
        assert_eq!(memory.word(8), None);
        assert!(memory.read_some(8, &mut [0]).is_err());
        let cell = AtomicU64::new(1);
        memory.write(cell.as_ptr().addr() as u64, &7u64.to_ne_bytes()).unwrap();
        assert_eq!(cell.load(Ordering::Relaxed), 7);
    }

    /// Checks that a page which was never touched stays so when the memory around it is read.
    #[test]
    fn untouched_pages_stay_untouched() {
        let page = page_size();
        let pid = std::process::id() as i32;
        // Zeros of a program take no page until they are written to.
        static ZEROS: [AtomicU8; 4 << 16] = [const { AtomicU8::new(0) }; 4 << 16];
        let start = ZEROS.as_ptr().addr() as u64;
        let address = start.next_multiple_of(page as u64);
        let first = (address - start) as usize;
        for at in [first + page - 1, first + 2 * page] {
            ZEROS[at].store(7, Ordering::Relaxed);
        }
        let mut bytes = vec![0; page + 2];
        let reader = ProcessMemory::open(pid).unwrap();
        let from = address + page as u64 - 1;
        assert_eq!(reader.read_resident(pid, from, &mut bytes).unwrap(), page + 2);
        assert_eq!((bytes[0], bytes[page + 1]), (7, 7));
        assert!(bytes[1..=page].iter().all(|&byte| byte == ABSENT_BYTE));
        let states = PageMap::open(pid).unwrap().states(from, page + 2).unwrap();
        assert_eq!(states, [PageState::Present, PageState::Absent, PageState::Present]);
    }
}
