//! Searches a process's writable memory for addresses, while its threads stand still: of places
//! that signals have interrupted, and where goroutines were stopped.
//!
//! What only looks like such an address costs the site, which is left to the kernel: nothing is
//! changed here.
use super::super::target::TargetProcess;
use crate::proc::Mappings;
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Threads stand still meanwhile. CPU time, for memory is not larger on a busy machine.
const MOST_CPU_TIME: Duration = Duration::from_millis(300);
/// And so long at most, wherever this thread waits for a CPU.
const MOST_TIME: Duration = Duration::from_secs(3);
const PIECE_BYTES: usize = 1 << 20;
const WRITE: u32 = 2;
const PRIVATE: u32 = 2;

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// Those of the wanted addresses that are in memory.
    pub(super) found: BTreeSet<u64>,
    /// Whether all of the memory was searched.
    pub(super) complete: bool,
}

/// Searches for addresses in these ranges, ascending and apart.
pub(super) fn scan(target: &TargetProcess, wanted: &[Range<u64>]) -> Scan {
    scan_within(target, wanted, MOST_CPU_TIME, MOST_TIME)
}

/// The same in so much CPU time, and so much time.
fn scan_within(target: &TargetProcess, wanted: &[Range<u64>], cpu_time: Duration, time: Duration) -> Scan {
    let mut scan = Scan { complete: true, ..Scan::default() };
    let (Some(first), Some(last)) = (wanted.first(), wanted.last()) else { return scan };
    let all = first.start..last.end;
    let Ok(maps) = target.maps() else { return Scan::default() };
    let (begun, begun_cpu) = (Instant::now(), thread_cpu_time());
    let mut buffer = vec![0; PIECE_BYTES];
    let private =
        Mappings::new(&maps).filter(|mapping| mapping.prot & WRITE != 0 && mapping.flags & PRIVATE != 0);
    for mapping in private {
        let mut at = mapping.start;
        while at < mapping.end {
            if thread_cpu_time().saturating_sub(begun_cpu) >= cpu_time || begun.elapsed() >= time {
                scan.complete = false;
                return scan;
            }
            let piece = (mapping.end - at).min(PIECE_BYTES as u64) as usize;
            let read = target.read_resident(at, &mut buffer[..piece]).unwrap_or(0);
            // Memory of a device, or of a file that has become shorter.
            scan.complete &= read == piece;
            for word in buffer[..read].as_chunks().0 {
                let word = u64::from_le_bytes(*word);
                if all.contains(&word) && is_in(wanted, word) {
                    scan.found.insert(word);
                }
            }
            at += piece as u64;
        }
    }
    scan
}

/// What this thread has used until now.
fn thread_cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn is_in(ranges: &[Range<u64>], word: u64) -> bool {
    let before = ranges.partition_point(|range| range.start <= word);
    before.checked_sub(1).is_some_and(|before| ranges[before].contains(&word))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a word in this process's heap is found, and one that is nowhere is not.
    #[test]
    fn words_in_memory() {
        let target = TargetProcess::look(std::process::id() as i32).unwrap();
        let there = 0x1234_5670_0000_u64;
        let kept = std::hint::black_box(vec![there + 8]);
        // The memory of all tests of this process is searched: how long that takes nobody knows.
        let (ever, wanted) = (Duration::from_secs(600), there..there + 16);
        let wanted = std::slice::from_ref(&wanted);
        let scan = scan_within(&target, wanted, ever, ever);
        assert!(scan.found.contains(&kept[0]), "{kept:x?}");
        assert!(is_in(&[1..2, 5..9], 8) && !is_in(&[1..2, 5..9], 9) && !is_in(&[1..2, 5..9], 0));
        assert!(super::scan(&target, &[]).complete);
        assert!(!scan_within(&target, wanted, Duration::ZERO, ever).complete);
        assert!(!scan_within(&target, wanted, ever, Duration::ZERO).complete);
    }
}
