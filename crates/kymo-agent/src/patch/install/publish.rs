//! Writing sites while the program runs: the order of writes and waits that no thread can trip
//! over.
use super::memory::OwnMemory;
use crate::patch::os;
use crate::patch::runtime::trap::TRAP;
use crate::patch::site::{JUMP_BYTES, Site};
use std::io;

const JUMP: u8 = 0xe9;

#[derive(Debug)]
pub(crate) struct SiteChange<'a> {
    pub(crate) site: &'a Site,
    pub(crate) enter: u64,
}

/// `jmp rel32` from one address to another. The arena is within reach, so the distance's upper half
/// is its sign.
pub(crate) fn jump(from: u64, to: u64) -> [u8; JUMP_BYTES] {
    let distance = (to.wrapping_sub(from + JUMP_BYTES as u64) as u32).to_le_bytes();
    [JUMP, distance[0], distance[1], distance[2], distance[3]]
}

/// First step of an attach: traps at the begins of all instructions that the jumps replace. When
/// this returns, every core sees them.
pub(crate) fn set_traps(memory: &OwnMemory, changes: &[SiteChange<'_>]) -> io::Result<()> {
    for SiteChange { site, .. } in changes {
        memory.write(site.address, &[TRAP])?;
        for &interior in &site.interiors {
            memory.write(site.address + u64::from(interior), &[TRAP])?;
        }
    }
    os::sync_cores()
}

/// Second step, when nobody stands inside: the jumps, their first bytes last.
pub(crate) fn set_jumps(memory: &OwnMemory, changes: &[SiteChange<'_>]) -> io::Result<()> {
    for change in changes {
        let at = change.site.address;
        memory.write(at + 1, &jump(at, change.enter)[1..])?;
    }
    os::sync_cores()?;
    for change in changes {
        memory.write(change.site.address, &[JUMP])?;
    }
    os::sync_cores()
}

/// Instead of the second step, or as a detach: the bytes that were there.
///
/// From a jump: a trap in its place, then the tail, then the first byte. From traps: the first
/// bytes of instructions are put back one by one, and each is an instruction again at once.
pub(crate) fn restore(memory: &OwnMemory, sites: &[&Site]) -> io::Result<()> {
    for site in sites {
        memory.write(site.address, &[TRAP])?;
    }
    os::sync_cores()?;
    for site in sites {
        memory.write(site.address + 1, &site.original[1..])?;
    }
    os::sync_cores()?;
    for site in sites {
        memory.write(site.address, &site.original[..1])?;
    }
    os::sync_cores()
}
