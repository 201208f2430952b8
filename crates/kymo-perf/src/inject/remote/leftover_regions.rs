//! Memory that killed kymos have left in a process.
//!
//! Stubs of a killed kymo stay where they are, for threads may be in them (R4). Each region takes a
//! place near the code, of which there are some hundred. So the next kymo takes away those that
//! nobody needs: whose owner is gone, to which no jump of code leads, and in which no thread is.
use super::super::hijacked_thread::HijackedThread;
use super::super::target::TargetProcess;
use super::super::{EnterError, seccomp};
use super::region::{self, LeftRegion, StubOwner};
use super::{on_a_thread, write};
use crate::proc::Mappings;
use std::ops::Range;
use std::os::fd::OwnedFd;

const EXECUTE: u32 = 4;
const PIECE_BYTES: usize = 1 << 20;
/// More code than any program has. What a program maps by itself may seem to have no end.
const MOST_CODE_BYTES: u64 = 1 << 30;
/// A jump, and from its end on how far.
const JUMP: u8 = 0xe9;
const JUMP_BYTES: usize = 5;

/// Stubs begin at multiples of this.
const STUB_ALIGN: u64 = 16;

/// Takes regions of kymos that are gone away: how many. What cannot be taken away stays.
pub(super) fn unmap(target: &TargetProcess, process: &OwnedFd) -> usize {
    let mut regions = regions(target);
    if !regions.is_empty() {
        leave_out_needed(target, &mut regions);
    }
    // A thread that has restricted its system calls cannot be asked for one.
    if regions.is_empty() || seccomp::is_filtered(target.pid) {
        return 0;
    }
    let code: Vec<Range<u64>> = regions.iter().map(|region| region.code.clone()).collect();
    let held = on_a_thread(|| Ok(write::all_held(target, process, &[], &code)));
    let Ok(Ok(outcome)) = held else { return 0 };
    // Whoever uses another part of a region is in its code; or, of its rings, in that of another
    // one: those go if all can.
    let all_left = outcome.left.len() == regions.len() && outcome.left.iter().all(|left| *left);
    let goes = |(region, left): &(LeftRegion, bool)| *left && (all_left || !region.has_rings);
    let gone = regions.into_iter().zip(outcome.left).filter(goes);
    let ranges: Vec<Range<u64>> = gone.map(|(region, _)| region.all).collect();
    if ranges.is_empty() {
        return 0;
    }
    let unmapped = on_a_thread(|| -> Result<(), EnterError> {
        let mut thread = HijackedThread::take_first(target)?;
        let parts: Vec<(u64, u64)> = ranges.iter().map(|part| (part.start, part.end - part.start)).collect();
        region::unmap(&mut thread, &parts);
        thread.give_back(true)
    });
    if unmapped.is_ok() { ranges.len() } else { 0 }
}

/// Regions whose owner is gone, ascending.
fn regions(target: &TargetProcess) -> Vec<LeftRegion> {
    let Ok(maps) = target.maps() else { return Vec::new() };
    let stubs =
        Mappings::new(&maps).filter(|mapping| mapping.prot & EXECUTE != 0 && region::is_stubs(mapping.path));
    let is_gone = |start: &u64| StubOwner::at(target, *start) == Ok(StubOwner::Gone);
    let starts: Vec<u64> = stubs.map(|mapping| mapping.start).filter(is_gone).collect();
    starts.into_iter().filter_map(|start| region::left_at(target, &maps, start)).collect()
}

/// Leaves those out to which a jump of the process's code leads. What only looks like one costs no
/// more than that its region stays.
fn leave_out_needed(target: &TargetProcess, regions: &mut Vec<LeftRegion>) {
    let Ok(maps) = target.maps() else { return regions.clear() };
    let is_code = |path: &[u8]| !path.is_empty() && !region::is_stubs(path);
    let code = Mappings::new(&maps).filter(|mapping| mapping.prot & EXECUTE != 0 && is_code(mapping.path));
    let all_bytes = code.clone().fold(0_u64, |all, mapping| all.saturating_add(mapping.end - mapping.start));
    if all_bytes > MOST_CODE_BYTES {
        return regions.clear();
    }
    let mut bytes = vec![0; PIECE_BYTES + JUMP_BYTES - 1];
    for mapping in code {
        let mut at = mapping.start;
        while at < mapping.end && !regions.is_empty() {
            let most = ((mapping.end - at) as usize).min(bytes.len());
            let read = target.read_some(at, &mut bytes[..most]);
            // Of code that cannot be read nothing is known, but for what the kernel maps itself.
            if read < most && mapping.inode != 0 {
                return regions.clear();
            }
            for to in jumps(&bytes[..read], at).filter(|to| to.is_multiple_of(STUB_ALIGN)) {
                regions.retain(|region| !region.code.contains(&to));
            }
            at += PIECE_BYTES as u64;
        }
    }
}

/// Where the jumps in these bytes lead, which lie at `base`; and what only looks like jumps.
fn jumps(bytes: &[u8], base: u64) -> impl Iterator<Item = u64> + '_ {
    memchr::memchr_iter(JUMP, bytes).filter_map(move |at| {
        let distance = bytes.get(at + 1..at + JUMP_BYTES)?;
        let distance = i32::from_le_bytes(distance.try_into().ok()?);
        Some((base + (at + JUMP_BYTES) as u64).wrapping_add_signed(i64::from(distance)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that jumps are found wherever they begin, backwards too, and none that is cut.
    #[test]
    fn jumps_in_code() {
        let mut bytes = vec![0x90; 64];
        bytes[3..8].copy_from_slice(&[0xe9, 8, 0, 0, 0]);
        bytes[20..25].copy_from_slice(&[0xe9, 0xff, 0xff, 0xff, 0xff]);
        bytes[61] = 0xe9;
        assert_eq!(jumps(&bytes, 0x1000).collect::<Vec<_>>(), [0x1010, 0x1018]);
    }
}
