//! Reads what lies beyond the copy of a stack from the process itself.
//!
//! The kernel copies a limited part, and ends a copy early at a page that is not in memory, such as
//! the untouched part of a large array. The outer frames lie beyond. They change rarely, so that
//! they are mostly still there when the sample arrives here, some milliseconds later; what was read
//! is used only if the walk through it reaches the thread's start.
//!
//! Only pages that are in memory are read: others could come from a file system that never answers,
//! and would keep a lock of the process meanwhile. Still another thread reads, by
//! [`ProcessMemory`], and the reducer waits [`MOST_WAITING`] for it. It waits a [`SHARE`]th of its
//! time at most. What was read serves the thread's samples of the next [`FRESH`], and the frames
//! that were found are known for longer (`outer_frames`).
use kymo_perf::proc::ProcessMemory;
use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// How long the reducer waits for bytes.
const MOST_WAITING: Duration = Duration::from_millis(1);
/// One part in so many of the reducer's time is spent on waiting.
const SHARE: u32 = 20;
/// So much of it can be saved up: samples come in batches.
const MOST_SAVED: Duration = Duration::from_millis(20);
/// How long bytes are used.
const FRESH: Duration = Duration::from_millis(200);
/// So many bytes of a thread are kept.
const MOST_KEPT_BYTES: usize = 1 << 20;
/// So many threads' bytes are kept.
const MOST_THREADS: usize = 64;

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

/// The thread that reads, once there is something to read.
#[derive(Debug, Default)]
pub(super) struct OuterMemory {
    reader: Option<Reader>,
    /// How long it may wait now, as of this moment.
    saved: Duration,
    as_of: Option<Instant>,
    /// What was read last, by thread.
    kept: HashMap<i32, KeptBytes>,
}

#[derive(Debug)]
struct KeptBytes {
    address: u64,
    bytes: Vec<u8>,
    read: Instant,
}

#[derive(Debug)]
struct Reader {
    questions: Sender<Question>,
    answers: Receiver<Answer>,
    /// A question was not answered in time: until it is, nothing more is asked.
    waits: bool,
}

impl OuterMemory {
    /// Appends to a thread's stack, which ends at this address, bytes that lie beyond; at most
    /// `most` are read at once. `false`: they are not to be had now.
    pub(super) fn append(&mut self, pid: i32, tid: i32, end: u64, most: usize, stack: &mut Vec<u8>) -> bool {
        if let Some(answer) = self.reader.as_mut().and_then(Reader::late_answer) {
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
        let now = Instant::now();
        let passed = self.as_of.replace(now).map_or(MOST_SAVED, |as_of| (now - as_of) / SHARE);
        self.saved = MOST_SAVED.min(self.saved + passed);
        if self.saved < MOST_WAITING {
            return;
        }
        if self.reader.is_none() {
            self.reader = Reader::start();
        }
        let answer = self.reader.as_mut().and_then(|reader| reader.ask(question));
        self.saved = self.saved.saturating_sub(now.elapsed());
        if let Some(answer) = answer {
            self.keep(answer);
        }
    }

    fn keep(&mut self, answer: Answer) {
        let Answer { question: Question { tid, address, .. }, bytes } = answer;
        if let Some(kept) = self.kept.get_mut(&tid)
            && kept.read.elapsed() < FRESH
            && kept.address.wrapping_add(kept.bytes.len() as u64) == address
            && kept.bytes.len() < MOST_KEPT_BYTES
        {
            kept.bytes.extend_from_slice(&bytes);
            return;
        }
        if self.kept.len() >= MOST_THREADS {
            self.kept.retain(|_, kept| kept.read.elapsed() < FRESH);
        }
        if self.kept.len() < MOST_THREADS || self.kept.contains_key(&tid) {
            self.kept.insert(tid, KeptBytes { address, bytes, read: Instant::now() });
        }
    }
}

impl Reader {
    /// Its thread ends when this is dropped; nobody waits for it.
    fn start() -> Option<Reader> {
        let (questions, asked) = channel::<Question>();
        let (answer, answers) = channel();
        let read = move || {
            for question in asked {
                if answer.send(Answer { question, bytes: bytes_of(question) }).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("stack reader".into()).spawn(read).ok()?;
        Some(Reader { questions, answers, waits: false })
    }

    /// The answer to an earlier question, if it has come.
    fn late_answer(&mut self) -> Option<Answer> {
        let answer = self.waits.then(|| self.answers.try_recv().ok()).flatten()?;
        self.waits = false;
        Some(answer)
    }

    fn ask(&mut self, question: Question) -> Option<Answer> {
        if self.waits {
            return None;
        }
        self.questions.send(question).ok()?;
        let answer = self.answers.recv_timeout(MOST_WAITING);
        self.waits = answer.is_err();
        answer.ok()
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
    use super::*;

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
            std::thread::sleep(MOST_WAITING);
            read(&mut memory, 1, address)
        });
        assert_eq!(first, Some([&[7], &bytes[..]].concat()));
        memory.saved = Duration::ZERO;
        assert_eq!(read(&mut memory, 1, address + 98), Some(vec![7, 98, 99]), "kept bytes");
        assert_eq!(read(&mut memory, 2, address), None, "no time left");
        memory.saved = MOST_SAVED;
        let absent = [&[7][..], &[0x5a; 100]].concat();
        assert_eq!(read(&mut memory, 1, 8), Some(absent), "not mapped: no address of a program");
    }
}
