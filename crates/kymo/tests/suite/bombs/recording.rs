//! Recordings written by hand: mappings of files, and samples with call chains in them.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The process of all samples.
pub(super) const PID: i32 = 4_190_011;

/// Where the file with this number is mapped.
pub(super) fn base(number: usize) -> u64 {
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

/// A sample of the kernel.
pub(super) fn kernel_sample(address: u64) -> Vec<u8> {
    let mut body = address.to_le_bytes().to_vec();
    body.extend([PID.to_le_bytes(), PID.to_le_bytes()].concat());
    // A marker of kernel mode, and the address.
    for word in [2, -128i64 as u64, address] {
        body.extend(word.to_le_bytes());
    }
    record(9, 1, &body)
}

/// A mapping of memory without a file.
pub(super) fn anonymous(start: u64, bytes: u64) -> Vec<u8> {
    let mut body = [PID.to_le_bytes(), PID.to_le_bytes()].concat();
    for word in [start, bytes, 0] {
        body.extend(word.to_le_bytes());
    }
    body.extend(b"//anon\0\0");
    record(1, 2, &body)
}

/// All general registers of x86-64, by perf's numbers.
pub(super) const REGISTERS: u64 = 0xff_0fff;

/// A sample with registers and a stack.
pub(super) fn stack_sample(ip: u64, stack: &[u8]) -> Vec<u8> {
    const SP: usize = 7;
    const IP: usize = 8;
    let mut body = ip.to_le_bytes().to_vec();
    body.extend([PID.to_le_bytes(), PID.to_le_bytes()].concat());
    let mut registers = [0u64; 20];
    (registers[SP], registers[IP]) = (0x7fff_0000_0000, ip);
    // 64 bits.
    for word in [2].into_iter().chain(registers) {
        body.extend(word.to_le_bytes());
    }
    body.extend((stack.len() as u64).to_le_bytes());
    body.extend(stack);
    body.extend((stack.len() as u64).to_le_bytes());
    record(9, 2, &body)
}

/// PERF_SAMPLE_IP, _TID and _CALLCHAIN.
pub(super) const CALL_CHAINS: u64 = 0b10_0011;

/// What a feature section holds.
pub(super) enum Feature {
    Bytes(Vec<u8>),
    /// So many bytes of nothing.
    Hole(u64),
}

/// The name of this host, its kernel and its architecture, as feature sections.
fn facts() -> Vec<(u32, Feature)> {
    const HOSTNAME: u32 = 3;
    const OSRELEASE: u32 = 4;
    const ARCH: u32 = 6;
    let of_kernel = |name| std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).expect("proc");
    let text = |text: &str| {
        let bytes = [text.trim().as_bytes(), b"\0"].concat();
        let length = u32::try_from(bytes.len()).expect("a short text");
        Feature::Bytes([&length.to_le_bytes()[..], &bytes].concat())
    };
    vec![
        (HOSTNAME, text(&of_kernel("hostname"))),
        (OSRELEASE, text(&of_kernel("osrelease"))),
        (ARCH, text(std::env::consts::ARCH)),
    ]
}

/// Writes a file with one event, cpu-clock, whose samples have an address, a thread and a call chain.
pub(super) fn write(path: &Path, records: &[u8]) {
    write_with(path, records, CALL_CHAINS, 0, &[]);
}

/// The same with these samples, registers and feature sections.
pub(super) fn write_with(
    path: &Path,
    records: &[u8],
    sample_type: u64,
    registers: u64,
    features: &[(u32, Feature)],
) {
    const HEADER: u64 = 104;
    const ATTR: u64 = 128 + 16;
    let mut file = b"PERFILE2".to_vec();
    // This machine's: files of another one would not be read.
    let mut all = facts();
    all.retain(|(bit, _)| features.iter().all(|(own, _)| own != bit));
    let mut features: Vec<&(u32, Feature)> = all.iter().chain(features).collect();
    features.sort_by_key(|(bit, _)| *bit);
    let bits = features.iter().fold(0u64, |bits, (bit, _)| bits | 1 << bit);
    let data = [HEADER + ATTR, records.len() as u64, 0, 0];
    for word in [HEADER, ATTR, HEADER, ATTR].into_iter().chain(data).chain([bits, 0, 0, 0]) {
        file.extend(word.to_le_bytes());
    }
    let mut attr = vec![0; ATTR as usize];
    attr[0] = 1;
    attr[4] = 128;
    attr[16] = 1;
    attr[24..32].copy_from_slice(&sample_type.to_le_bytes());
    attr[80..88].copy_from_slice(&registers.to_le_bytes());
    file.extend(attr);
    file.extend(records);
    let mut at = file.len() as u64 + 16 * features.len() as u64;
    let mut payload: Vec<u8> = Vec::new();
    for (_, feature) in &features {
        let size = match feature {
            Feature::Bytes(bytes) => {
                payload.extend(bytes);
                bytes.len() as u64
            }
            Feature::Hole(size) => *size,
        };
        file.extend([at.to_le_bytes(), size.to_le_bytes()].concat());
        at += size;
    }
    file.extend(payload);
    std::fs::write(path, file).expect("a recording");
    let file = std::fs::File::options().write(true).open(path).expect("a recording");
    file.set_len(at).expect("its length");
}
