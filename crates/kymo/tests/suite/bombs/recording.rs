//! Recordings written by hand: mappings of files, and samples with call chains in them.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The process of all samples.
pub(super) const PID: i32 = 4_190_011;

/// Where the file with this number is mapped.
fn base(number: usize) -> u64 {
    0x10_0000_0000 + ((number as u64) << 32)
}

pub(super) fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
    let size = u16::try_from(8 + body.len()).expect("a small record");
    [&kind.to_le_bytes()[..], &misc.to_le_bytes(), &size.to_le_bytes(), body].concat()
}

/// Maps these files, each with one sample at each of these offsets, which is its call chain, too.
pub(super) fn records(files: &[&Path], offsets: &[u64]) -> Vec<u8> {
    let ids = [PID.to_le_bytes(), PID.to_le_bytes()].concat();
    let comm = record(3, 2, &[&ids[..], b"bomb\0\0\0\0"].concat());
    let mut records = comm;
    for (number, file) in files.iter().enumerate() {
        let mut body = ids.clone();
        for word in [base(number), 1 << 31, 0] {
            body.extend(word.to_le_bytes());
        }
        body.extend(file.as_os_str().as_bytes());
        body.resize((body.len() + 8) & !7, 0);
        records.extend(record(1, 2, &body));
        for &offset in offsets {
            records.extend(sample(base(number) + offset));
        }
    }
    records
}

pub(super) fn sample(address: u64) -> Vec<u8> {
    let mut body = address.to_le_bytes().to_vec();
    body.extend([PID.to_le_bytes(), PID.to_le_bytes()].concat());
    // A marker of user mode, and the address.
    for word in [2, -512i64 as u64, address] {
        body.extend(word.to_le_bytes());
    }
    record(9, 2, &body)
}

/// Writes a file with one event, cpu-clock, whose samples have an address, a thread and a call chain.
pub(super) fn write(path: &Path, records: &[u8]) {
    const HEADER: u64 = 104;
    const ATTR: u64 = 128 + 16;
    let mut file = b"PERFILE2".to_vec();
    for word in [HEADER, ATTR, HEADER, ATTR, HEADER + ATTR, records.len() as u64, 0, 0, 0, 0, 0, 0] {
        file.extend(word.to_le_bytes());
    }
    let mut attr = vec![0; ATTR as usize];
    attr[0] = 1;
    attr[4] = 128;
    attr[16] = 1;
    // PERF_SAMPLE_IP, _TID and _CALLCHAIN.
    attr[24] = 0b10_0011;
    file.extend(attr);
    file.extend(records);
    std::fs::write(path, file).expect("a recording");
}
