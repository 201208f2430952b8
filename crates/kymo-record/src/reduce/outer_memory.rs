//! Reads what lies beyond the copy of a stack from the process itself.
//!
//! The kernel copies a limited part, and ends a copy early at a page that is not in memory, such as
//! the untouched part of a large array. The outer frames lie beyond. They change rarely, so that
//! they are mostly still there when the sample arrives here, some milliseconds later; what was read
//! is used only if the walk through it reaches the thread's start.
//!
//! Only pages that are in memory are read: others could come from a file system that never answers,
//! and would keep a lock of the process meanwhile. Still another thread reads, by
//! [`ProcessMemory`] (`side_reader`). What was read serves the thread's samples of the next [`FRESH`], and the frames
//! that were found are known for longer (`outer_frames`).
use super::side_reader::SideReader;
use kymo_perf::proc::ProcessMemory;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long bytes are used.
const FRESH: Duration = Duration::from_millis(200);
/// So many bytes of a thread are kept.
const MOST_KEPT_BYTES: usize = 1 << 20;
/// So many bytes of all threads are kept.
const MOST_BYTES: usize = 8 << 20;

/// What to read for which thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Question {
    pid: i32,
    tid: i32,
    address: u64,
    bytes: usize,
}

#[derive(Debug)]
struct Answer {
    question: Question,
    bytes: Vec<u8>,
}

/// What was read of stacks, and the thread that reads.
#[derive(Debug)]
pub(super) struct OuterMemory {
    reader: SideReader<Question, Answer>,
    /// What was read last, by thread.
    kept: HashMap<i32, KeptBytes>,
}

impl Default for OuterMemory {
    fn default() -> OuterMemory {
        OuterMemory { reader: SideReader::new("stack reader"), kept: HashMap::new() }
    }
}

#[derive(Debug)]
struct KeptBytes {
    address: u64,
    bytes: Vec<u8>,
    read: Instant,
}

impl OuterMemory {
    /// Appends to a thread's stack, which ends at this address, bytes that lie beyond; at most
    /// `most` are read at once. `false`: they are not to be had now.
    pub(super) fn append(&mut self, pid: i32, tid: i32, end: u64, most: usize, stack: &mut Vec<u8>) -> bool {
        if self.kept_beyond(tid, end).is_none()
            && let Some(answer) = self.reader.late_answer()
        {
            self.keep(answer);
        }
        if self.kept_beyond(tid, end).is_none() {
            self.read(Question { pid, tid, address: end, bytes: most });
        }
        let Some(beyond) = self.kept_beyond(tid, end) else { return false };
        stack.extend_from_slice(beyond);
        true
    }

    /// The bytes of a thread that are known from this address on.
    fn kept_beyond(&self, tid: i32, end: u64) -> Option<&[u8]> {
        let kept = self.kept.get(&tid).filter(|kept| kept.read.elapsed() < FRESH)?;
        let known = usize::try_from(end.wrapping_sub(kept.address)).ok()?;
        kept.bytes.get(known..).filter(|beyond| !beyond.is_empty())
    }

    fn read(&mut self, question: Question) {
        let read = || |question| Answer { question, bytes: bytes_of(question) };
        if let Some(answer) = self.reader.ask(question, read) {
            self.keep(answer);
        }
    }

    fn keep(&mut self, answer: Answer) {
        let Answer { question: Question { tid, address, .. }, bytes } = answer;
        self.kept.retain(|_, kept| kept.read.elapsed() < FRESH);
        let kept_bytes: usize = self.kept.values().map(|kept| kept.bytes.len()).sum();
        if kept_bytes + bytes.len() > MOST_BYTES {
            self.kept.clear();
        }
        match self.kept.get_mut(&tid) {
            Some(kept)
                if kept.address.wrapping_add(kept.bytes.len() as u64) == address
                    && kept.bytes.len() < MOST_KEPT_BYTES =>
            {
                kept.bytes.extend_from_slice(&bytes);
            }
            _ => {
                self.kept.insert(tid, KeptBytes { address, bytes, read: Instant::now() });
            }
        }
    }
}

/// The bytes that are in memory. Opened anew each time: another program may run in the process by now.
fn bytes_of(question: Question) -> Vec<u8> {
    let mut bytes = vec![0; question.bytes];
    let read = ProcessMemory::open(question.pid)
        .and_then(|memory| memory.read_resident(question.pid, question.address, &mut bytes))
        .unwrap_or(0);
    bytes.truncate(read);
    bytes
}

#[cfg(test)]
mod tests {
    use super::super::side_reader::{LEAST_WAITING, MOST_SAVED};
    use super::*;

    /// Checks that bytes of threads that ended do not stay, and that those of many are bounded,
    /// also where a thread's grow.
    #[test]
    fn bytes_of_ended_threads_are_dropped() {
        const BYTES: usize = 128 << 10;
        let mut memory = OuterMemory::default();
        let kept = |memory: &OuterMemory| memory.kept.values().map(|kept| kept.bytes.len()).sum::<usize>();
        for part in 0..8 {
            for tid in 0..20 {
                let question = Question { pid: 1, tid, address: 4096 + part * BYTES as u64, bytes: BYTES };
                memory.keep(Answer { question, bytes: vec![1; BYTES] });
                assert!(kept(&memory) <= MOST_BYTES, "{}", kept(&memory));
            }
        }
        std::thread::sleep(FRESH);
        memory.keep(Answer {
            question: Question { pid: 1, tid: 7, address: 8, bytes: 100 },
            bytes: vec![1; 100],
        });
        assert_eq!(kept(&memory), 100);
    }

    /// Checks that memory of this process is read, once while it is fresh, and no more when the
    /// time for it is used up; and that what is not mapped gives no address.
    #[test]
    fn memory_is_read_now_and_then() {
        let mut memory = OuterMemory::default();
        let bytes: Vec<u8> = (0..100).collect();
        let (pid, address) = (std::process::id() as i32, bytes.as_ptr() as u64);
        let read = |memory: &mut OuterMemory, tid, address| {
            let mut stack = vec![7];
            memory.append(pid, tid, address, 100, &mut stack).then_some(stack)
        };
        // The helper process is started by the first question, which may take longer than the
        // reducer waits.
        let first = (0..1000).find_map(|_| {
            std::thread::sleep(LEAST_WAITING);
            read(&mut memory, 1, address)
        });
        assert_eq!(first, Some([&[7], &bytes[..]].concat()));
        memory.reader.saved = Duration::ZERO;
        assert_eq!(read(&mut memory, 1, address + 98), Some(vec![7, 98, 99]), "kept bytes");
        assert_eq!(read(&mut memory, 2, address), None, "no time left");
        let absent = [&[7][..], &[0x5a; 100]].concat();
        let found = (0..1000).find_map(|_| {
            memory.reader.saved = MOST_SAVED;
            std::thread::sleep(LEAST_WAITING);
            read(&mut memory, 1, 8)
        });
        assert_eq!(found, Some(absent), "not mapped: no address of a program");
    }
}
