//! Reads the samples of a plain perf.data file with registers and stacks, each with its process's mappings.
use kymo_data::abi::*;
use kymo_data::{Attr, RawRecord, Record, RecordHeader, SampleLayout};
use kymo_symbols::Arch;
use kymo_symbols::unwind::{AddressSpace, UnwindModules, UserRegs};
use std::collections::HashMap;
use std::path::Path;

/// One sample, ready to be unwound.
pub(crate) struct RecordedSample {
    /// Thread, and time in nanoseconds: what a sample is known by in other tools' output.
    pub(crate) key: (i32, u64),
    pub(crate) space: AddressSpace,
    pub(crate) regs: UserRegs,
    pub(crate) stack: Vec<u8>,
}

/// The samples with user registers, in order of time. Only what one `perf record` of one event writes is understood.
pub(crate) fn samples(path: &Path, modules: &UnwindModules) -> Vec<RecordedSample> {
    let file = std::fs::read(path).expect("the recording");
    let word = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().expect("8 bytes"));
    assert_eq!(&file[..8], b"PERFILE2");
    let (attr_bytes, attrs_at) = (word(16) as usize, word(24) as usize);
    let attr = Attr::parse(&file[attrs_at..attrs_at + attr_bytes - 16]).expect("the event's attributes");
    let layout = SampleLayout::new(&attr);
    let (mut at, end) = (word(40) as usize, (word(40) + word(48)) as usize);
    let mut records = Vec::new();
    while let Some(header) = RecordHeader::parse(&file[at..end]) {
        let next = at + usize::from(header.size);
        let record = RawRecord { header, body: &file[at + 8..next], position: at as u64 };
        let time = match header.kind {
            PERF_RECORD_SAMPLE => layout.parse_record(&record).ok().and_then(|s| s.time),
            _ if header.kind < 64 => layout.sample_id(record.body).time,
            _ => None,
        };
        records.push((time.unwrap_or(0), record));
        at = next;
    }
    records.sort_by_key(|(time, _)| *time);
    let mut spaces: HashMap<i32, AddressSpace> = HashMap::new();
    let mut out = Vec::new();
    for (time_ns, record) in records {
        if record.header.kind == PERF_RECORD_SAMPLE {
            let sample = layout.parse_record(&record).expect("a sample");
            let (Some(regs), Some(stack)) = (sample.user_regs, sample.user_stack) else { continue };
            let Some(regs) = UserRegs::from_perf(Arch::X86_64, regs.abi, regs.mask, regs.values.iter())
            else {
                continue;
            };
            let space = spaces.entry(sample.pid.unwrap_or(0)).or_default().clone();
            let stack = stack.to_vec();
            out.push(RecordedSample { key: (sample.tid.unwrap_or(0), time_ns), space, regs, stack });
            continue;
        }
        match record.parse() {
            Ok(Record::Mmap(m)) if m.pid >= 0 => {
                let space = spaces.entry(m.pid).or_default();
                let end = m.addr.saturating_add(m.len);
                if m.prot & 4 != 0 {
                    space.map(m.addr, end, m.pgoff, modules.module(m.filename, b""));
                } else {
                    space.unmap(m.addr, end);
                }
            }
            Ok(Record::Comm(comm)) if comm.exec => drop(spaces.remove(&comm.pid)),
            Ok(Record::Fork(fork)) if fork.pid != fork.ppid => {
                let parent = spaces.get(&fork.ppid).cloned().unwrap_or_default();
                spaces.insert(fork.pid, parent);
            }
            _ => {}
        }
    }
    out
}
