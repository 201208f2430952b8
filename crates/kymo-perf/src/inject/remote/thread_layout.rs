//! Where threads keep their own number, and their restartable sequences: measured, not looked up in
//! a table of C libraries.
//!
//! glibc and musl have the number in the structure that the thread pointer is the address of, Go's
//! runtime a little before the pointer. The distance is the one at which every thread of the
//! process has its number; where there is none, or more than one, it is not known. Of sequences the
//! kernel tells where they are (`PTRACE_GET_RSEQ_CONFIGURATION`, Linux 5.13).
use super::super::hold::{HeldThreads, PatchSites};
use super::super::target::TargetProcess;
use crate::sys::ptrace::Traced;
use std::os::fd::OwnedFd;

/// What is looked at before and behind the pointer, in bytes.
const BEFORE: u64 = 512;
const BEHIND: u64 = 2048;
/// Threads whose memory is looked at. Their libraries do not put it elsewhere for others.
const MOST_THREADS: usize = 256;
/// As glibc registers it (`RSEQ_SIG`), and as stubs have it.
const SIGNATURE: u32 = 0x5305_3053;

/// Distances from the thread pointer (`fs`), in bytes, the same for all threads of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadLayout {
    /// To the thread's number.
    pub number: i32,
    /// To its `struct rseq`; `None`: not all threads have one.
    pub rseq: Option<i32>,
}

impl ThreadLayout {
    /// Looks while all threads stand.
    ///
    /// # Errors
    /// Why the thread's number is not known, in words.
    pub(super) fn find(target: &TargetProcess, process: &OwnedFd) -> Result<ThreadLayout, String> {
        let mut held = HeldThreads::all(target, process, &PatchSites::default()).held?;
        let rseq = common(held.with_pointers().map(|(thread, pointer)| rseq_distance(thread, pointer)));
        let mut left: Option<Vec<i32>> = None;
        for (thread, pointer) in held.with_pointers().take(MOST_THREADS) {
            let found = number_distances(target, thread.tid(), pointer);
            left = Some(match left {
                Some(left) => left.into_iter().filter(|at| found.contains(at)).collect(),
                None => found,
            });
        }
        held.release();
        match left.unwrap_or_default()[..] {
            [number] => Ok(ThreadLayout { number, rseq }),
            [] => Err("where its threads keep their numbers is not found".to_owned()),
            _ => Err("its threads may keep their numbers in several places".to_owned()),
        }
    }
}

/// What all of them are, if they are the same.
fn common(mut all: impl Iterator<Item = Option<i32>>) -> Option<i32> {
    let first = all.next().flatten()?;
    all.all(|other| other == Some(first)).then_some(first)
}

fn rseq_distance(thread: &Traced, pointer: u64) -> Option<i32> {
    let (area, signature) = thread.restartable_sequences().ok().flatten()?;
    let distance = i32::try_from(area.wrapping_sub(pointer).cast_signed()).ok()?;
    (signature == SIGNATURE).then_some(distance)
}

/// The distances at which a thread's memory has its number.
fn number_distances(target: &TargetProcess, tid: i32, pointer: u64) -> Vec<i32> {
    let mut found = Vec::new();
    // What is behind it may be mapped where what is before it is not.
    for (from, bytes) in [(pointer.wrapping_sub(BEFORE), BEFORE), (pointer, BEHIND)] {
        let mut memory = vec![0; bytes as usize];
        let read = target.read_some(from, &mut memory);
        let words = memory[..read].as_chunks::<4>().0.iter().enumerate();
        let its = words.filter(|(_, word)| i32::from_le_bytes(**word) == tid);
        found.extend(its.map(|(number, _)| (from.wrapping_sub(pointer) as i32) + 4 * number as i32));
    }
    found
}
