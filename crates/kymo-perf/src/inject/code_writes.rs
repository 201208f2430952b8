//! Writes code of a process for its agent, where the kernel does not let a process write its own.
//!
//! Linux from 6.12 on can forbid what the agent does elsewhere, writing pages through
//! `/proc/self/mem` that are not writable (`proc_mem.force_override`, and the options
//! `PROC_MEM_FORCE_PTRACE` and `PROC_MEM_NO_FORCE`). What is left then:
//!
//! | way | `always` | `ptrace` | `never` | why, or why not |
//! |---|---|---|---|---|
//! | the agent, `/proc/self/mem` | yes | no | no | pages are prepared before threads stop |
//! | the tracer, `/proc/PID/task/TID/mem` | yes | yes | no | five bytes, as the agent would |
//! | the tracer, `PTRACE_POKETEXT` | yes | yes | yes | eight bytes, three as they are |
//! | another mapping over the page | yes | yes | yes | not used: hides uprobes of the page |
//! | `mprotect`, in turns | yes | yes | yes | not used: may fail half-way (`PR_SET_MDWE`) |
//!
//! A process that is not dumpable (a daemon that has given up root) may not open `/proc/self/mem`:
//! the kernel gives the file to root.
//!
//! So the tracer writes, while it holds the threads, by the first of its two ways that the kernel
//! permits. No page is writable and executable at any time.
//!
//! # Guarantees
//! - A site is written in one step, and only over the bytes that the agent has named; neighbours in
//!   one page together, with what lies between them as it is. If this process is killed in between,
//!   each site is as before or whole, and the agent looks which.
//! - Nothing is written outside of the process's own private memory: the kernel refuses shared
//!   pages.
use super::target::TargetProcess;
use crate::sys::ptrace::Traced;
use kymo_core::probe::wire::EDIT_BYTES;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

const SITE_BYTES: usize = 5;
const WORD_BYTES: usize = 8;
const PAGE_BYTES: u64 = 4096;
/// Threads stand still meanwhile. What is not written by then stays as it is.
const MOST_TIME: Duration = Duration::from_secs(2);
/// Neighbours are read together, at most so many bytes.
const MOST_RUN_BYTES: u64 = 16 << 10;
/// What the kernel writes for a uprobe: `int3`.
const KERNEL_TRAP: u8 = 0xcc;

/// How the sites of a process were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeWriter {
    /// By the agent.
    Agent,
    /// By this process, through the memory file of a thread that it traces.
    TracedMemory,
    /// By this process, through ptrace.
    Ptrace,
}

impl CodeWriter {
    /// In words, for whom that is of interest.
    pub fn words(self) -> Option<&'static str> {
        match self {
            CodeWriter::Agent => None,
            CodeWriter::TracedMemory => {
                Some("written by kymo through /proc/PID/mem, as the program may not write its own code")
            }
            CodeWriter::Ptrace => Some(
                "written by kymo through ptrace, as this kernel lets nobody write code through /proc/PID/mem",
            ),
        }
    }
}

/// What the agent asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CodeEdit {
    at: u64,
    from: [u8; SITE_BYTES],
    to: [u8; SITE_BYTES],
}

impl CodeEdit {
    pub(super) fn new(at: u64, from: [u8; SITE_BYTES], to: [u8; SITE_BYTES]) -> CodeEdit {
        CodeEdit { at, from, to }
    }

    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Reads them as they lie in the process's memory.
    pub(super) fn list(bytes: &[u8]) -> Vec<CodeEdit> {
        let edit = |bytes: &[u8]| {
            let (at, rest) = bytes.split_first_chunk::<8>()?;
            let (from, rest) = rest.split_first_chunk::<SITE_BYTES>()?;
            let to = rest.first_chunk::<SITE_BYTES>()?;
            Some(CodeEdit { at: u64::from_le_bytes(*at), from: *from, to: *to })
        };
        let mut edits: Vec<CodeEdit> = bytes.chunks_exact(EDIT_BYTES as usize).filter_map(edit).collect();
        edits.sort_unstable_by_key(|edit| edit.at);
        edits
    }

    fn end(&self) -> u64 {
        self.at.saturating_add(SITE_BYTES as u64)
    }
}

/// Writes all that can be, by a thread that stands still; how.
pub(super) fn write(target: &TargetProcess, thread: &Traced, edits: &[CodeEdit]) -> CodeWriter {
    let until = Instant::now() + MOST_TIME;
    let path = format!("/proc/{}/task/{}/mem", target.pid, thread.tid());
    let mut writes = Writes { thread, file: File::options().write(true).open(path).ok() };
    let mut rest = edits;
    while let Some(first) = rest.first()
        && Instant::now() < until
    {
        let limit = first.at.saturating_add(MOST_RUN_BYTES);
        let count = rest.iter().take_while(|edit| edit.end() <= limit).count().max(1);
        let (run, others) = rest.split_at(count);
        rest = others;
        writes.run(target, run);
    }
    if writes.file.is_some() { CodeWriter::TracedMemory } else { CodeWriter::Ptrace }
}

struct Writes<'a> {
    thread: &'a Traced,
    /// Until the kernel has refused it.
    file: Option<File>,
}

impl Writes<'_> {
    /// Writes neighbours.
    fn run(&mut self, target: &TargetProcess, edits: &[CodeEdit]) {
        let begin = edits[0].at.saturating_sub(WORD_BYTES as u64);
        let end = edits.iter().map(CodeEdit::end).max().unwrap_or(begin);
        let end = end.saturating_add(WORD_BYTES as u64);
        let mut bytes = vec![0; (end - begin) as usize];
        // By helpers with a deadline: pages may be of a file system that does not answer, and then
        // nothing is written. Neighbours may not be mapped: what is there is read before the first
        // site, and as far as it goes behind.
        let got = match target.read_some(begin, &mut bytes) {
            0 => {
                let first = (edits[0].at - begin) as usize;
                match target.read_some(edits[0].at, &mut bytes[first..]) {
                    0 => 0,
                    got => first + got,
                }
            }
            got => got,
        };
        bytes.truncate(got);
        let page = |edit: &CodeEdit| (edit.at / PAGE_BYTES, crosses(edit.at, SITE_BYTES));
        for edits in edits.chunk_by(|one, next| page(one) == page(next)) {
            if !self.write_page(edits, begin, &mut bytes) {
                edits.iter().for_each(|edit| self.write_site(edit, begin, &mut bytes));
            }
        }
    }

    /// Writes the sites of one page by one call: whether they are written. Of a kill in between the
    /// kernel takes note between pages only. Not where a byte between sites may be a uprobe's trap:
    /// one that is written again when its uprobe has ended kills the program.
    fn write_page(&self, edits: &[CodeEdit], begin: u64, bytes: &mut [u8]) -> bool {
        let (Some(file), [first, .., last]) = (&self.file, edits) else { return false };
        let range = (first.at - begin) as usize..(last.end() - begin) as usize;
        let Some(there) = bytes.get_mut(range) else { return false };
        let mut new = there.to_vec();
        let mut between = 0;
        for edit in edits {
            let at = (edit.at - first.at) as usize;
            let is_apart = new.get(between..at).is_some_and(|beside| !beside.contains(&KERNEL_TRAP));
            if !is_apart || new[at..at + SITE_BYTES] != edit.from {
                return false;
            }
            new[at..at + SITE_BYTES].copy_from_slice(&edit.to);
            between = at + SITE_BYTES;
        }
        let is_written = file.write_at(&new, first.at).is_ok_and(|count| count == new.len());
        if is_written {
            there.copy_from_slice(&new);
        }
        is_written
    }

    /// Writes a site, if it has what it should have.
    fn write_site(&mut self, edit: &CodeEdit, begin: u64, bytes: &mut [u8]) {
        let at = (edit.at - begin) as usize;
        if bytes.get(at..at + SITE_BYTES) == Some(&edit.from) && self.one(edit, begin, bytes) {
            bytes[at..at + SITE_BYTES].copy_from_slice(&edit.to);
        }
    }

    /// Writes one site: whether it is written. `around` is what is there from `begin` on.
    fn one(&mut self, edit: &CodeEdit, begin: u64, around: &[u8]) -> bool {
        if let Some(file) = &self.file {
            if crosses(edit.at, SITE_BYTES) && file.write_at(&edit.from[4..], edit.at + 4).is_err() {
                // The second page is refused, so the first one stays as it is.
                return false;
            }
            match file.write_at(&edit.to, edit.at) {
                Ok(SITE_BYTES) => return true,
                Ok(_) => {
                    _ = file.write_at(&edit.from, edit.at);
                    return false;
                }
                Err(error) if error.raw_os_error() == Some(libc::EIO) => self.file = None,
                Err(_) => return false,
            }
        }
        self.poke(edit, begin, around)
    }

    /// The same by words of eight bytes. Three bytes beside the site are written as they are, so
    /// these must be no trap of a uprobe, which may end in between.
    fn poke(&self, edit: &CodeEdit, begin: u64, around: &[u8]) -> bool {
        // The site's bytes at the word's beginning, at its end.
        for before in [0, (WORD_BYTES - SITE_BYTES) as u64] {
            let Some(offset) = edit.at.checked_sub(before).and_then(|at| at.checked_sub(begin)) else {
                continue;
            };
            let offset = offset as usize;
            let Some(there) = around.get(offset..offset + WORD_BYTES) else { continue };
            let mut old = [0; WORD_BYTES];
            old.copy_from_slice(there);
            let mut new = old;
            new[before as usize..before as usize + SITE_BYTES].copy_from_slice(&edit.to);
            let beside =
                (0..WORD_BYTES).filter(|at| !(before as usize..before as usize + SITE_BYTES).contains(at));
            if beside.map(|at| old[at]).any(|byte| byte == KERNEL_TRAP) {
                continue;
            }
            let at = edit.at - before;
            if crosses(at, WORD_BYTES) {
                // One step writes two pages. Both are made the process's own before that, so that
                // the step has nothing to wait for.
                let second = (at | (PAGE_BYTES - 1)) + 1;
                let Some(word) = around.get((second - begin) as usize..).and_then(<[u8]>::first_chunk) else {
                    continue;
                };
                if self.thread.poke(second, *word).is_err() || self.thread.poke(at, old).is_err() {
                    continue;
                }
            }
            if self.thread.poke(at, new).is_ok() {
                return true;
            }
        }
        false
    }
}

/// Whether so many bytes from an address on lie in two pages.
fn crosses(at: u64, bytes: usize) -> bool {
    at % PAGE_BYTES + bytes as u64 > PAGE_BYTES
}
