//! Events that observed programs write themselves, into rings that are drained with the kernel's: probes inside of them.
//!
//! A program's ring wakes nobody: drains look at such rings by the clock. What did not fit into them the programs count; it is part of the account
//! of losses as what the kernel dropped.
use crate::drain::Source;
use kymo_data::{Attr, EventSpec, abi};
use kymo_perf::ring::Ring;
use std::fmt;

/// One event that programs write.
#[derive(Clone, Debug)]
pub struct GuestEvent {
    /// As the user named it.
    pub name: String,
    /// Where tracepoints have the name of their system.
    pub system: String,
    /// As tracefs would describe it: `name:`, `ID:`, `format:`.
    pub format: String,
    /// The number in its description.
    pub kind: u64,
    /// The number in each of its records, which no event of the kernel's has.
    pub id: u64,
}

/// Turns what writes the events on and off.
pub trait Conduct {
    /// Lets the events begin.
    ///
    /// # Errors
    /// In words.
    fn begin(&mut self) -> Result<(), String>;

    /// Lets them end. How many of each event were lost, and in words what else the user should know.
    fn end(&mut self) -> (Vec<u64>, Option<String>);
}

/// Events of programs, and all that belongs to them.
pub struct Guests {
    /// The events.
    pub events: Vec<GuestEvent>,
    /// For each CPU, the rings that are written there.
    pub rings: Vec<Ring>,
    /// Who turns them on and off.
    pub conduct: Box<dyn Conduct + Send>,
}

impl fmt::Debug for Guests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guests").field("events", &self.events).finish_non_exhaustive()
    }
}

/// What a sample of theirs holds.
pub(crate) const SAMPLE_TYPE: u64 = abi::PERF_SAMPLE_IDENTIFIER
    | abi::PERF_SAMPLE_IP
    | abi::PERF_SAMPLE_TID
    | abi::PERF_SAMPLE_TIME
    | abi::PERF_SAMPLE_CPU
    | abi::PERF_SAMPLE_PERIOD
    | abi::PERF_SAMPLE_RAW;

impl GuestEvent {
    /// As the recording has it: a tracepoint of each of which there is a sample.
    pub(crate) fn spec(&self) -> EventSpec {
        let attr = Attr {
            kind: abi::PERF_TYPE_TRACEPOINT,
            config: self.kind,
            sample_period: 1,
            sample_type: SAMPLE_TYPE,
            read_format: abi::PERF_FORMAT_ID | abi::PERF_FORMAT_LOST,
            flags: abi::ATTR_FLAG_DISABLED | abi::ATTR_FLAG_SAMPLE_ID_ALL,
            ..Attr::default()
        };
        EventSpec { attr, ids: vec![self.id], name: self.name.clone() }
    }
}

/// Adds the guests' rings to those that each CPU's drain empties. `ids`: of their events, ascending. `first`: how many rings there are before them.
pub(crate) fn join<'a>(
    groups: &mut [(Option<u32>, Vec<Source<'a>>)],
    rings: &'a [Ring],
    ids: &'a [u64],
    first: usize,
) {
    let Some(count) = groups.len().checked_sub(1) else { return };
    for (cpu, ring) in rings.iter().enumerate() {
        let own = groups.iter().position(|(of, _)| of.is_some_and(|of| of as usize == cpu));
        // Of a CPU that nobody drains, any other can.
        let group = &mut groups[own.unwrap_or(cpu.min(count))];
        group.1.push(Source { index: first + cpu, ring, fds: Vec::new(), guests: Some(ids) });
    }
}

/// Moves those records to the front that a program may write: samples of code in user space, of its own events (`ids`, ascending), as long as they say. Returns their
/// length. What else the program wrote must not get into the recording, where it would be taken for the kernel's word.
pub(crate) fn retain_own(records: &mut [u8], ids: &[u64]) -> usize {
    let (mut kept, mut at) = (0, 0);
    while let Some(size) = records.get(at + 6..at + 8) {
        let size = usize::from(u16::from_le_bytes([size[0], size[1]]));
        let Some(record) = records.get(at..at + size).filter(|_| size >= 8 && size.is_multiple_of(8)) else {
            break;
        };
        if is_own(record, ids) {
            if kept != at {
                records.copy_within(at..at + size, kept);
            }
            kept += size;
        }
        at += size;
    }
    kept
}

/// Where a sample of [`SAMPLE_TYPE`] has the length of its raw data, and the data.
const RAW_LENGTH_AT: usize = 56;
const RAW_AT: usize = 60;

fn is_own(record: &[u8], ids: &[u64]) -> bool {
    let word = |at: usize| Some(u32::from_le_bytes(record.get(at..at + 4)?.try_into().ok()?));
    let id = record.get(8..16).and_then(|id| Some(u64::from_le_bytes(id.try_into().ok()?)));
    word(0) == Some(abi::PERF_RECORD_SAMPLE)
        && record.get(4..6) == Some(&abi::PERF_RECORD_MISC_USER.to_le_bytes())
        && id.is_some_and(|id| ids.binary_search(&id).is_ok())
        && word(RAW_LENGTH_AT).is_some_and(|bytes| bytes as usize <= record.len() - RAW_AT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u32, misc: u16, id: u64, raw_bytes: u32) -> Vec<u8> {
        let mut out = vec![0xee; RAW_AT + 12];
        let size = out.len() as u16;
        out[..4].copy_from_slice(&kind.to_le_bytes());
        out[4..6].copy_from_slice(&misc.to_le_bytes());
        out[6..8].copy_from_slice(&size.to_le_bytes());
        out[8..16].copy_from_slice(&id.to_le_bytes());
        out[RAW_LENGTH_AT..RAW_AT].copy_from_slice(&raw_bytes.to_le_bytes());
        out
    }

    /// Checks that of what a program wrote only samples of its own events stay: no mapping, no name, no sample of another event or of the kernel's code, none
    /// that says more data than it has, and nothing behind a size that cannot be.
    #[test]
    fn nothing_but_own_samples() {
        const USER: u16 = abi::PERF_RECORD_MISC_USER;
        let own = [record(abi::PERF_RECORD_SAMPLE, USER, 7, 12), record(abi::PERF_RECORD_SAMPLE, USER, 9, 4)];
        let mut foreign = vec![
            record(abi::PERF_RECORD_MMAP2, USER, 7, 12),
            record(abi::PERF_RECORD_COMM, USER, 7, 12),
            record(abi::PERF_RECORD_LOST, USER, 7, 12),
            record(abi::PERF_RECORD_SAMPLE, USER, 8, 12),
            record(abi::PERF_RECORD_SAMPLE, 1, 7, 12),
            record(abi::PERF_RECORD_SAMPLE, USER, 7, 13),
            record(abi::PERF_RECORD_SAMPLE, USER, 7, u32::MAX),
        ];
        let mut short = record(abi::PERF_RECORD_SAMPLE, USER, 7, 0);
        short.truncate(56);
        short[6] = 56;
        foreign.push(short);
        let mut tiny = 9_u64.to_le_bytes().to_vec();
        tiny[6] = 8;
        foreign.push(tiny);
        let mut cut = record(abi::PERF_RECORD_SAMPLE, USER, 7, 12);
        cut.truncate(40);
        let mut records =
            [&own[0], &foreign.concat(), &own[1], &cut].into_iter().flatten().copied().collect::<Vec<u8>>();
        let kept = retain_own(&mut records, &[7, 9]);
        assert_eq!(records[..kept], own.concat());
        let mut zero = vec![0; 64];
        assert_eq!(retain_own(&mut zero, &[0]), 0);
    }
}
