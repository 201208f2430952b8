//! The table of callers: counts by return address and site, which hits fill without a lock.
//!
//! ```text
//!   | address << 16 | site, calls | ... |   calls of each site whose caller has no place
//! ```
//! An entry is within a few of where the bits of its key say. A site whose callers find no place
//! there has them counted together: its sum is right.
use super::{Convention, FreestandingError, MOST_TIMED_SITES, SPREAD, finish, keep};
use crate::patch::codegen::context::Emitted;
use iced_x86::IcedError;
use iced_x86::code_asm::{CodeAssembler, dword_ptr, eax, qword_ptr, r8d, rax, rcx, rdi, rdx, rsp};
use std::collections::HashSet;

/// So many entries are looked at for one caller.
const TRIES: u32 = 16;
const ENTRY_BYTES: u64 = 16;
const SITE_BITS: u32 = 16;
const _: () = assert!(MOST_TIMED_SITES <= 1 << SITE_BITS);

/// Calls from one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallerCount {
    /// The site's number.
    pub site: u32,
    /// What the calls return to; 0: those of all callers without a place.
    pub address: u64,
    /// Calls.
    pub calls: u64,
}

/// Where callers are counted: memory of [`CallerTable::word_count`], zero at first.
#[derive(Clone, Copy, Debug)]
pub struct CallerTable {
    /// Its address.
    pub table: u64,
    /// It has so many entries, as a power of two: 1 to 24.
    pub bits: u32,
    /// As of [`CallCounts::PerCpu`](super::CallCounts): a thread without counters counts nothing.
    pub per_cpu: Option<(u64, i32)>,
}

impl CallerTable {
    /// How many words such a table has.
    pub fn word_count(bits: u32) -> u64 {
        CallerTable::others(bits) + u64::from(MOST_TIMED_SITES)
    }

    /// The word of the first site's calls that have no place.
    fn others(bits: u32) -> u64 {
        ((1 << bits) + u64::from(TRIES)) * (ENTRY_BYTES / 8)
    }

    /// The words that count callers of these sites.
    pub fn counts_of(bits: u32, sites: &HashSet<u32>, word: impl Fn(u64) -> u64) -> Vec<u64> {
        let others = CallerTable::others(bits);
        let site = |key: u64| (key & ((1 << SITE_BITS) - 1)) as u32;
        let known = (0..others / 2).map(|entry| (word(entry * 2), entry * 2 + 1));
        let known = known.filter(|(key, _)| *key != 0 && sites.contains(&site(*key)));
        known.map(|(_, at)| at).chain(sites.iter().map(|&site| others + u64::from(site))).collect()
    }

    /// What a table says by its words, for the sites whose numbers are below `sites`.
    pub fn read(bits: u32, sites: u32, word: impl Fn(u64) -> u64) -> Vec<CallerCount> {
        let entries = CallerTable::others(bits) / 2;
        let known = (0..entries).filter_map(|entry| {
            let (key, calls) = (word(entry * 2), word(entry * 2 + 1));
            let site = (key & ((1 << SITE_BITS) - 1)) as u32;
            Some(CallerCount { site, address: key >> SITE_BITS, calls }).filter(|_| calls > 0)
        });
        let others = (0..sites.min(MOST_TIMED_SITES)).filter_map(|site| {
            let calls = word(CallerTable::others(bits) + u64::from(site));
            Some(CallerCount { site, address: 0, calls }).filter(|_| calls > 0)
        });
        known.chain(others).collect()
    }
}

/// The routine that counts who called, to lie at `at`. To be called with the site's number in ecx
/// where its function begins.
///
/// # Errors
/// Where it cannot be assembled.
pub fn callers_routine(
    convention: Convention,
    table: CallerTable,
    at: u64,
) -> Result<Vec<u8>, FreestandingError> {
    let made = || -> Result<Vec<u8>, IcedError> {
        let mut a = CodeAssembler::new(64)?;
        count_caller(&mut a, convention, table)?;
        a.assemble(at)
    };
    made().map_err(|_| FreestandingError::OutOfReach(table.table))
}

fn count_caller(a: &mut CodeAssembler, convention: Convention, table: CallerTable) -> Emitted {
    let (mut again, mut next, mut found) = (a.create_label(), a.create_label(), a.create_label());
    let (mut other, mut out) = (a.create_label(), a.create_label());
    keep(a)?;
    if let Some((counters, rseq)) = table.per_cpu {
        a.mov(eax, dword_ptr(i64::from(rseq)).fs())?;
        a.mov(rdx, counters)?;
        a.cmp(qword_ptr(rdx + rax * 8), 0)?;
        a.je(out)?;
    }
    a.mov(rdi, qword_ptr(rsp + convention.frame_at()))?;
    a.mov(rax, rdi)?;
    a.shr(rax, 64 - SITE_BITS as i32)?;
    a.jne(other)?;
    a.shl(rdi, SITE_BITS as i32)?;
    a.or(rdi, rcx)?;
    a.mov(rax, SPREAD)?;
    a.mov(rdx, rdi)?;
    a.imul_2(rdx, rax)?;
    a.shr(rdx, 64 - table.bits as i32)?;
    a.shl(rdx, ENTRY_BYTES.trailing_zeros() as i32)?;
    a.mov(rax, table.table)?;
    a.add(rdx, rax)?;
    a.mov(r8d, TRIES)?;
    a.set_label(&mut again)?;
    a.mov(rax, qword_ptr(rdx))?;
    a.cmp(rax, rdi)?;
    a.je(found)?;
    a.test(rax, rax)?;
    a.jne(next)?;
    a.xor(eax, eax)?;
    a.lock().cmpxchg(qword_ptr(rdx), rdi)?;
    a.je(found)?;
    // Another thread has just put it there.
    a.cmp(rax, rdi)?;
    a.je(found)?;
    a.set_label(&mut next)?;
    a.add(rdx, ENTRY_BYTES as i32)?;
    a.dec(r8d)?;
    a.jne(again)?;
    a.set_label(&mut other)?;
    a.mov(rax, table.table + CallerTable::others(table.bits) * 8)?;
    a.lock().inc(qword_ptr(rax + rcx * 8))?;
    a.jmp(out)?;
    a.set_label(&mut found)?;
    a.lock().inc(qword_ptr(rdx + 8))?;
    a.set_label(&mut out)?;
    finish(a)
}
