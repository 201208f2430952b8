//! Writes sites while all threads stand still.
use super::super::code_writes::{CodeEdit, CodeWriter};
use super::super::hold::{HeldThreads, PatchSites};
use super::super::sigreturn::restorers;
use super::super::target::TargetProcess;
use super::scan::scan;
use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

pub(super) const SITE_BYTES: u64 = 5;
/// Why a function is not written, besides what its planning says.
const CHANGED: &str = "its code is not what it was when it was planned: another tool patches it";
const INTERRUPTED: &str = "memory has an address inside of it, where a thread may have been interrupted";
const TOO_LARGE: &str =
    "the program's memory could not be searched in time for a thread that was interrupted inside of it";

/// A site that is to be written.
#[derive(Clone, Debug)]
pub struct SitePatch {
    /// Its first byte.
    pub at: u64,
    /// What is there.
    pub from: [u8; SITE_BYTES as usize],
    /// What is to be there.
    pub to: [u8; SITE_BYTES as usize],
    /// Where a thread goes on that stands inside: pairs.
    pub moves: Vec<[u64; 2]>,
    /// The function that it belongs to: all of its sites are written, or none.
    pub group: u32,
    /// Whether something besides signals may have kept an address inside of it.
    pub is_interruptible: bool,
}

/// What became of sites.
#[derive(Debug)]
pub struct PatchOutcome {
    /// Functions that were not written, with the reasons.
    pub refused: BTreeMap<u32, &'static str>,
    /// How long the threads stood still.
    pub stopped: Duration,
    /// How it was written.
    pub writer: CodeWriter,
    /// For each piece of code that is to be left, whether no thread was in it, nor can come back to
    /// it; empty where sites that lead there were not restored.
    pub left: Vec<bool>,
}

/// Holds all threads, and writes. `leaves`: code of stubs, to which no site leads then.
pub(super) fn all_held(
    target: &TargetProcess,
    process: &OwnedFd,
    patches: &[SitePatch],
    leaves: &[Range<u64>],
) -> Result<PatchOutcome, String> {
    let moves = patches.iter().flat_map(|patch| patch.moves.iter().copied()).collect();
    let edits = patches.iter().map(edit).collect();
    let restorers = restorers(target);
    // A handler that has read where it interrupted its thread may write that down anywhere, as Go's
    // does before it stops a goroutine. The word in its frame is what the search finds.
    let kept = patches.iter().filter(|patch| patch.is_interruptible);
    let kept = kept.flat_map(|patch| patch.moves.iter().map(|pair| pair[0])).collect();
    let places = PatchSites::to_write(edits, moves, restorers.clone(), kept);
    let tried = HeldThreads::all(target, process, &places);
    let mut held = tried.held?;
    let mut written = held_already(target, &held, patches, &restorers);
    if written.refused.is_empty() && !leaves.is_empty() {
        written.left = left(target, &held, leaves);
    }
    written.stopped = tried.stopped + held.release();
    Ok(written)
}

/// For each of these ranges, whether no thread is in it, and no word that was searched is an
/// address in it.
fn left(target: &TargetProcess, held: &HeldThreads, leaves: &[Range<u64>]) -> Vec<bool> {
    let mut free: Vec<Range<u64>> = leaves.iter().filter(|range| !held.any_in(range)).cloned().collect();
    free.sort_unstable_by_key(|range| range.start);
    let scan = scan(target, &free);
    let is_found = |range: &Range<u64>| scan.found.range(range.clone()).next().is_some();
    leaves.iter().map(|range| scan.complete && free.contains(range) && !is_found(range)).collect()
}

fn edit(patch: &SitePatch) -> CodeEdit {
    CodeEdit::new(patch.at, patch.from, patch.to)
}

/// Writes while threads are held, of which none stands inside of a site. Only sites that have what
/// they are said to have are written, so what is put back over the others changes nothing.
/// Signals' frames on stacks were looked for by those who hold, by where handlers return to
/// (`restorers`); all of memory is searched where that is not enough.
pub(super) fn held_already(
    target: &TargetProcess,
    held: &HeldThreads,
    patches: &[SitePatch],
    restorers: &[u64],
) -> PatchOutcome {
    let begun = Instant::now();
    let mut refused = BTreeMap::new();
    if patches.iter().any(|patch| patch.is_interruptible) || restorers.is_empty() {
        search(target, patches, &mut refused);
    }
    let chosen: Vec<&SitePatch> =
        patches.iter().filter(|patch| !refused.contains_key(&patch.group)).collect();
    let writer = held.write_edits(target, chosen.iter().map(|patch| edit(patch)).collect());
    let mut now = CodeReader { target, at: 0, bytes: Vec::new() };
    for patch in &chosen {
        if now.site(patch.at) != Some(patch.to) {
            refused.insert(patch.group, CHANGED);
        }
    }
    // Of functions that have become so by half.
    let back = chosen.iter().filter(|patch| refused.contains_key(&patch.group));
    let back: Vec<CodeEdit> = back.map(|patch| CodeEdit::new(patch.at, patch.to, patch.from)).collect();
    if !back.is_empty() {
        held.write_edits(target, back);
    }
    PatchOutcome { refused, stopped: begun.elapsed(), writer, left: Vec::new() }
}

/// Reads sites of a process, neighbours together.
struct CodeReader<'a> {
    target: &'a TargetProcess,
    /// Where what was read last begins.
    at: u64,
    bytes: Vec<u8>,
}

impl CodeReader<'_> {
    /// The bytes of a site as they are now, but for those of an earlier reading.
    fn site(&mut self, at: u64) -> Option<[u8; SITE_BYTES as usize]> {
        const MOST_BYTES: usize = 64 << 10;
        let is_in = at >= self.at && at + SITE_BYTES <= self.at + self.bytes.len() as u64;
        if !is_in {
            self.at = at;
            self.bytes.resize(MOST_BYTES, 0);
            let read = self.target.read_some(at, &mut self.bytes);
            self.bytes.truncate(read);
        }
        let from = usize::try_from(at.checked_sub(self.at)?).ok()?;
        self.bytes.get(from..from + SITE_BYTES as usize)?.try_into().ok()
    }
}

/// Refuses functions of which memory has an address inside of a site.
fn search(target: &TargetProcess, patches: &[SitePatch], refused: &mut BTreeMap<u32, &'static str>) {
    let inside = |patch: &&SitePatch| !patch.moves.is_empty();
    let mut wanted: Vec<Range<u64>> =
        patches.iter().filter(inside).map(|patch| patch.at + 1..patch.at + SITE_BYTES).collect();
    wanted.sort_unstable_by_key(|range| range.start);
    let scan = scan(target, &wanted);
    for patch in patches.iter().filter(inside) {
        // Only where an instruction begins can a thread have been interrupted.
        if patch.moves.iter().any(|[from, _]| scan.found.contains(from)) {
            refused.insert(patch.group, INTERRUPTED);
        } else if !scan.complete && patch.is_interruptible {
            refused.insert(patch.group, TOO_LARGE);
        }
    }
}
