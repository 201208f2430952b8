//! Code of files in anonymous memory: programs copy their code there, to the addresses at which it
//! was, to have it in large pages.
//!
//! The kernel then says that code without a file is there. While the process lives its bytes can be
//! compared with the file that is mapped right before or behind. Where they are the same the
//! recording gets a mapping of that file, from the same moment on: names, unwind tables and perf
//! find what they find for a file.
//!
//! Another thread looks ([`SideReader`]). Samples that are unwound before it answers have the chain
//! of code without a file.
use super::side_reader::SideReader;
use kymo_perf::proc::{Mappings, ProcessMemory};
use kymo_profile::timeline::{Moment, SideEvent};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

/// Mappings of one process that are looked at: compilers map many.
const MOST_OF_PROCESS: u32 = 16;
/// Processes that are remembered, and mappings that wait.
const MOST_PROCESSES: usize = 4096;
const MOST_WAITING: usize = 64;
/// Pages that are compared, spread over the mapping.
const PAGES: u64 = 64;
const PAGE_BYTES: u64 = 4096;
/// The longest list of mappings that is read.
const MOST_MAPS_BYTES: u64 = 4 << 20;

/// A mapping of code without a file.
#[derive(Clone, Copy, Debug)]
struct TextQuestion {
    moment: Moment,
    pid: i32,
    tid: i32,
    start: u64,
}

/// A mapping that holds what a file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MovedText {
    pub(super) moment: Moment,
    pub(super) pid: i32,
    pub(super) tid: i32,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) pgoff: u64,
    pub(super) path: Vec<u8>,
    pub(super) file_id: (u32, u32, u64),
}

impl MovedText {
    /// The mapping of the file that it is as good as.
    pub(super) fn event(&self) -> SideEvent {
        SideEvent::Map {
            pid: self.pid,
            tid: self.tid,
            kernel: false,
            start: self.start,
            end: self.end,
            pgoff: self.pgoff,
            prot: 5,
            path: self.path.clone(),
            file_id: self.file_id,
            build_id: Vec::new(),
        }
    }
}

/// Looks for code of files in anonymous memory.
#[derive(Debug)]
pub(super) struct MovedTexts {
    reader: SideReader<TextQuestion, Option<MovedText>>,
    asked: FxHashMap<i32, u32>,
    waiting: VecDeque<TextQuestion>,
    is_asked: bool,
}

impl Default for MovedTexts {
    fn default() -> MovedTexts {
        MovedTexts {
            reader: SideReader::new("moved text"),
            asked: FxHashMap::default(),
            waiting: VecDeque::new(),
            is_asked: false,
        }
    }
}

impl MovedTexts {
    /// Code was mapped.
    pub(super) fn mapped(&mut self, moment: Moment, event: &SideEvent) {
        let SideEvent::Map { pid, tid, start, path, .. } = event else { return };
        if !matches!(path.as_slice(), b"" | b"//anon" | b"/anon_hugepage") {
            return;
        }
        if self.asked.len() >= MOST_PROCESSES && !self.asked.contains_key(pid) {
            self.asked.clear();
        }
        let asked = self.asked.entry(*pid).or_default();
        *asked += 1;
        if *asked <= MOST_OF_PROCESS && self.waiting.len() < MOST_WAITING {
            self.waiting.push_back(TextQuestion { moment, pid: *pid, tid: *tid, start: *start });
        }
    }

    /// A process executes another program, or is new.
    pub(super) fn forget(&mut self, pid: i32) {
        self.asked.remove(&pid);
    }

    /// A text that was found, if there is an answer by now.
    pub(super) fn next(&mut self) -> Option<MovedText> {
        loop {
            if !self.is_asked {
                self.reader.ask_ahead(self.waiting.pop_front()?, || |question| look(&question));
                self.is_asked = true;
            }
            let answer = self.reader.late_answer()?;
            self.is_asked = false;
            if answer.is_some() {
                return answer;
            }
        }
    }
}

/// The file whose bytes are in a mapping without one: one that is mapped beside it, so that this
/// part of it would be there.
fn look(question: &TextQuestion) -> Option<MovedText> {
    let TextQuestion { moment, pid, tid, .. } = *question;
    let mut maps = Vec::new();
    let file = std::fs::File::open(format!("/proc/{pid}/maps")).ok()?;
    file.take(MOST_MAPS_BYTES).read_to_end(&mut maps).ok()?;
    let all: Vec<_> = Mappings::new(&maps).collect();
    let at = all.iter().position(|one| one.start <= question.start && question.start < one.end)?;
    let own = &all[at];
    if own.inode != 0 || own.prot & 4 == 0 {
        return None;
    }
    let is_file = |offset: u64, other: usize| {
        let beside = all.get(other).filter(|one| one.inode != 0 && one.path.starts_with(b"/"))?;
        Some((offset, beside))
    };
    let before = at.checked_sub(1).and_then(|other| {
        let beside = all.get(other).filter(|one| one.end == own.start)?;
        is_file(beside.offset.checked_add(beside.end - beside.start)?, other)
    });
    let behind = || {
        let beside = all.get(at + 1).filter(|one| one.start == own.end)?;
        is_file(beside.offset.checked_sub(own.end - own.start)?, at + 1)
    };
    [before, behind()].into_iter().flatten().find_map(|(offset, beside)| {
        let path = beside.path.strip_suffix(b" (deleted)").unwrap_or(beside.path);
        let inside = PathBuf::from(format!("/proc/{pid}/root"))
            .join(OsStr::from_bytes(path.strip_prefix(b"/").unwrap_or(path)));
        let file = kymo_files::open_regular(&inside).ok()?;
        let is_same = file.metadata().ok()?.ino() == beside.inode
            && holds_bytes_of(pid, (own.start, own.end), &file, offset)?;
        is_same.then(|| MovedText {
            // Right after the mapping that it corrects.
            moment: Moment { time_ns: moment.time_ns + 1, ..moment },
            pid,
            tid,
            start: own.start,
            end: own.end,
            pgoff: offset,
            path: path.to_vec(),
            file_id: (beside.major, beside.minor, beside.inode),
        })
    })
}

/// Whether pages of a process, spread over these addresses, are those of a file from this offset
/// on.
fn holds_bytes_of(pid: i32, (start, end): (u64, u64), file: &std::fs::File, offset: u64) -> Option<bool> {
    let memory = ProcessMemory::open(pid).ok()?;
    let pages = (end - start) / PAGE_BYTES;
    let (mut own, mut stored) = (vec![0; PAGE_BYTES as usize], vec![0; PAGE_BYTES as usize]);
    let mut compared = 0;
    for page in (0..pages.min(PAGES)).map(|number| number * pages / pages.min(PAGES)) {
        let at = page * PAGE_BYTES;
        let count = file.read_at(&mut stored, offset.checked_add(at)?).ok()?;
        let is_there = memory.read_resident(pid, start + at, &mut own).is_ok_and(|read| read == own.len());
        // Pages that are not in memory have no bytes yet.
        if !is_there || count == 0 || own.iter().all(|&byte| byte == own[0]) {
            continue;
        }
        if own[..count] != stored[..count] {
            return Some(false);
        }
        compared += 1;
    }
    Some(compared > 0)
}
