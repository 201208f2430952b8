//! The bytes of generated code, read from the process that runs it.
//!
//! Compilers such as LLVM's write code that has neither unwind data nor a frame pointer, and that
//! no file holds. Its instructions say where the caller is (`kymo_symbols::unwind`), as those of
//! files without tables do. They are read some milliseconds after the sample: other code may lie
//! there by then. So what was read is read again after a short time, and forgotten when other code
//! is mapped there; and callers that follow from it count only if the walk comes to the thread's
//! start.
//!
//! Only pages that are in memory are read, and by another thread ([`SideReader`]), as stacks are
//! (`outer_memory`). Samples that are unwound before it answers have the chain of code that cannot
//! be read.
use super::side_reader::SideReader;
use kymo_perf::proc::ProcessMemory;
use kymo_symbols::unwind::CodeRules;
use rustc_hash::FxHashMap;
use std::time::{Duration, Instant};

/// How long pages and what follows from them are believed, until they are read again.
const FRESH: Duration = Duration::from_secs(1);
/// How long it takes until pages are asked for again that could not be read.
const RETRY: Duration = Duration::from_millis(20);
const PAGE_BYTES: u64 = 4096;
/// Pages that are read at once: functions go on in the next ones.
const PAGES_AT_ONCE: u64 = 4;
/// Pages that are kept, of all processes.
const MOST_PAGES: usize = 4096;
/// Processes that are known at once.
const MOST_PROCESSES: usize = 1024;
/// The longest instruction, in bytes: where a page ends, it may go on in the next one.
const LONGEST_INSTRUCTION: u64 = 15;

/// Pages of a process from this one on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PageQuestion {
    pid: i32,
    page: u64,
    /// How often code had been forgotten when it was asked.
    generation: u64,
}

#[derive(Debug)]
struct PageAnswer {
    question: PageQuestion,
    /// As many as could be read.
    bytes: Vec<u8>,
}

/// What is known of a process's code.
#[derive(Debug)]
struct KnownCode {
    /// By address.
    pages: FxHashMap<u64, KnownPage>,
    rules: CodeRules,
    /// Since when the rules are kept.
    since: Instant,
}

#[derive(Debug)]
struct KnownPage {
    read: Instant,
    /// `None`: it could not be read.
    bytes: Option<Box<[u8]>>,
}

impl Default for KnownCode {
    fn default() -> KnownCode {
        KnownCode { pages: FxHashMap::default(), rules: CodeRules::default(), since: Instant::now() }
    }
}

/// Code of all processes that are observed.
#[derive(Debug)]
pub(super) struct GeneratedBytes {
    reader: SideReader<PageQuestion, PageAnswer>,
    processes: FxHashMap<i32, KnownCode>,
    kept_pages: usize,
    /// How often code was forgotten: an answer to an earlier question may be about that.
    generation: u64,
}

impl Default for GeneratedBytes {
    fn default() -> GeneratedBytes {
        GeneratedBytes {
            reader: SideReader::new("code reader"),
            processes: FxHashMap::default(),
            kept_pages: 0,
            generation: 0,
        }
    }
}

impl GeneratedBytes {
    /// The process is new, or has other code now.
    pub(super) fn forget(&mut self, pid: i32) {
        self.generation += 1;
        if let Some(known) = self.processes.remove(&pid) {
            self.kept_pages -= known.pages.len();
        }
    }

    /// Bytes from this address on, at least those of its page, but for what lies behind `most`.
    pub(super) fn bytes_at(&mut self, pid: i32, address: u64, most: u64) -> Option<Vec<u8>> {
        let page = address - address % PAGE_BYTES;
        let from = (address - page) as usize;
        let mut bytes = self.page(pid, page)?[from..].to_vec();
        if (bytes.len() as u64) < most.min(LONGEST_INSTRUCTION)
            && let Some(next) = self.page(pid, page.checked_add(PAGE_BYTES)?)
        {
            bytes.extend_from_slice(next);
        }
        bytes.truncate(usize::try_from(most).unwrap_or(usize::MAX));
        Some(bytes)
    }

    /// What the code of a process says.
    pub(super) fn rules(&mut self, pid: i32) -> &mut CodeRules {
        let known = self.known(pid);
        if known.since.elapsed() >= FRESH {
            known.rules.clear();
            known.since = Instant::now();
        }
        &mut known.rules
    }

    fn known(&mut self, pid: i32) -> &mut KnownCode {
        let is_full = self.processes.len() >= MOST_PROCESSES && !self.processes.contains_key(&pid);
        if is_full || self.kept_pages >= MOST_PAGES {
            self.processes.clear();
            self.kept_pages = 0;
        }
        self.processes.entry(pid).or_default()
    }

    fn page(&mut self, pid: i32, page: u64) -> Option<&[u8]> {
        if let Some(answer) = self.reader.late_answer() {
            self.keep(answer);
        }
        let question = PageQuestion { pid, page, generation: self.generation };
        let age = self.known(pid).pages.get(&page).map(|page| (page.read.elapsed(), page.bytes.is_some()));
        match age {
            // The old bytes do until the new ones come.
            Some((age, true)) if age >= FRESH => self.reader.ask_ahead(question, || read_pages),
            Some((_, true)) => {}
            Some((age, false)) if age < RETRY => {}
            _ => {
                if let Some(answer) = self.reader.ask(question, || read_pages) {
                    self.keep(answer);
                }
            }
        }
        self.processes.get(&pid)?.pages.get(&page)?.bytes.as_deref()
    }

    fn keep(&mut self, answer: PageAnswer) {
        let PageAnswer { question: PageQuestion { pid, page, generation }, bytes } = answer;
        if generation != self.generation {
            return;
        }
        let known = self.known(pid);
        let (before, read) = (known.pages.len(), Instant::now());
        // It is asked for again later; the bytes of a process that has ended stay as they were.
        known.pages.entry(page).or_insert(KnownPage { read, bytes: None }).read = read;
        for (number, bytes) in bytes.as_chunks::<{ PAGE_BYTES as usize }>().0.iter().enumerate() {
            // What is not in memory, or was never written, is all one byte.
            if bytes.iter().any(|&byte| byte != bytes[0]) {
                let bytes = Some(Box::from(&bytes[..]));
                known.pages.insert(page + number as u64 * PAGE_BYTES, KnownPage { read, bytes });
            }
        }
        self.kept_pages += known.pages.len() - before;
    }
}

/// Opened anew each time: another program may run in the process by now.
fn read_pages(question: PageQuestion) -> PageAnswer {
    let PageQuestion { pid, page, .. } = question;
    let mut bytes = vec![0; (PAGES_AT_ONCE * PAGE_BYTES) as usize];
    let read = ProcessMemory::open(pid).and_then(|memory| memory.read_resident(pid, page, &mut bytes));
    bytes.truncate(read.unwrap_or(0));
    PageAnswer { question, bytes }
}

#[cfg(test)]
mod tests {
    use super::super::side_reader::LEAST_WAITING;
    use super::*;

    /// Checks that memory of this process is read, also across the end of a page, that what is not
    /// mapped has no bytes, and that a process which is forgotten has none that are kept.
    #[test]
    fn pages_of_a_process() {
        let bytes: Vec<u8> = (0..5 * PAGE_BYTES).map(|at| at as u8 ^ (at >> 8) as u8).collect();
        let (pid, start) = (std::process::id() as i32, bytes.as_ptr() as u64);
        let mut code = GeneratedBytes::default();
        let mut read = |address, most| {
            // The first questions may take longer than the reducer waits.
            (0..1000).find_map(|_| {
                std::thread::sleep(LEAST_WAITING);
                code.bytes_at(pid, address, most)
            })
        };
        let end = start.next_multiple_of(PAGE_BYTES) + PAGE_BYTES;
        let at = (end - start) as usize;
        assert_eq!(read(end - 3, 8).as_deref(), Some(&bytes[at - 3..at + 5]));
        assert_eq!(read(end - 40, 4096).as_deref(), Some(&bytes[at - 40..at]));
        assert_eq!(code.bytes_at(pid, 8, 8), None, "not mapped");
        assert!(code.kept_pages > 0);
        code.forget(pid);
        assert_eq!(code.kept_pages, 0);
    }

    /// Checks that pages of many processes are bounded.
    #[test]
    fn kept_pages_are_bounded() {
        let mut code = GeneratedBytes::default();
        let pages: Vec<u8> = (0..PAGES_AT_ONCE * PAGE_BYTES).map(|at| at as u8).collect();
        for pid in 1..3000 {
            let question = PageQuestion { pid, page: 4096, generation: code.generation };
            code.keep(PageAnswer { question, bytes: pages.clone() });
            assert!(code.kept_pages <= MOST_PAGES + PAGES_AT_ONCE as usize, "{}", code.kept_pages);
            assert!(code.processes.len() <= MOST_PROCESSES);
        }
    }
}
