//! Records made up by a recorder: what already ran before, rounds, losses, build IDs.
//!
//! Every builder returns one whole record, padded to 8 bytes (but for entries of tables, as in
//! perf). Kernel record types end with the [`SampleId`] trailer that the event's attr asks for, so
//! give them the attr of the event that the reader will take them for: the first.

use crate::abi::*;
use crate::attr::Attr;
use crate::record::{BuildId, RecordHeader};
use crate::sample::SampleId;

/// The longest name that a record can carry; longer ones are cut.
const NAME_MAX: usize = 65_536 / 2;

/// Puts a header before `body`, padded to 8 bytes. A body that cannot fit is cut at 65,528 bytes in
/// all.
pub fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
    let mut out = vec![0; 8];
    out.extend_from_slice(body);
    out.resize(out.len().next_multiple_of(8).min(65_528), 0);
    set_header(&mut out, kind, misc);
    out
}

fn set_header(record: &mut [u8], kind: u32, misc: u16) {
    let size = record.len() as u16;
    if let Some(start) = record.first_chunk_mut::<8>() {
        *start = RecordHeader { kind, misc, size }.to_bytes();
    }
}

/// The trailer that `attr` asks for; fields that are `None` become 0, as in perf's synthesized
/// records.
pub fn sample_id(attr: &Attr, id: &SampleId) -> Vec<u8> {
    let mut out = Vec::new();
    if !attr.sample_id_all() {
        return out;
    }
    let mut put = |bit: u64, word: u64| {
        if attr.sample_type & bit != 0 {
            out.extend_from_slice(&word.to_le_bytes());
        }
    };
    let task =
        u64::from(id.pid.unwrap_or(0).cast_unsigned()) | u64::from(id.tid.unwrap_or(0).cast_unsigned()) << 32;
    put(PERF_SAMPLE_TID, task);
    put(PERF_SAMPLE_TIME, id.time.unwrap_or(0));
    put(PERF_SAMPLE_ID, id.id.unwrap_or(0));
    put(PERF_SAMPLE_STREAM_ID, id.stream_id.unwrap_or(0));
    put(PERF_SAMPLE_CPU, u64::from(id.cpu.unwrap_or(0)));
    put(PERF_SAMPLE_IDENTIFIER, id.id.unwrap_or(0));
    out
}

struct Body(Vec<u8>);

impl Body {
    /// Little-endian integers.
    fn words<const N: usize>(mut self, words: impl IntoIterator<Item = [u8; N]>) -> Body {
        self.0.extend(words.into_iter().flatten());
        self
    }
    fn i32s(self, values: &[i32]) -> Body {
        self.words(values.iter().map(|value| value.to_le_bytes()))
    }
    fn u32s(self, values: &[u32]) -> Body {
        self.words(values.iter().map(|value| value.to_le_bytes()))
    }
    fn u64s(self, values: &[u64]) -> Body {
        self.words(values.iter().map(|value| value.to_le_bytes()))
    }
    fn bytes(mut self, bytes: &[u8]) -> Body {
        self.0.extend_from_slice(bytes);
        self
    }
    /// A zero-terminated name, padded so that what follows is aligned.
    fn name(mut self, name: &[u8]) -> Body {
        let name = name.get(..NAME_MAX).unwrap_or(name);
        self.0.extend_from_slice(name);
        self.0.resize((self.0.len() + 1).next_multiple_of(8), 0);
        self
    }
    fn finish(self, kind: u32, misc: u16, attr: &Attr, id: &SampleId) -> Vec<u8> {
        let body = self.bytes(&sample_id(attr, id)).0;
        record(kind, misc, &body)
    }
}

/// COMM: the task's name. `exec` says that an exec caused it.
pub fn comm(attr: &Attr, id: &SampleId, pid: i32, tid: i32, name: &[u8], exec: bool) -> Vec<u8> {
    let misc = if exec { PERF_RECORD_MISC_COMM_EXEC } else { 0 };
    Body(Vec::new()).i32s(&[pid, tid]).name(name).finish(PERF_RECORD_COMM, misc, attr, id)
}

/// FORK of a task that existed before: it inherits no mappings from its parent.
pub fn fork(attr: &Attr, id: &SampleId, pid: i32, ppid: i32, tid: i32, ptid: i32) -> Vec<u8> {
    let body = Body(Vec::new()).i32s(&[pid, ppid, tid, ptid]).u64s(&[id.time.unwrap_or(0)]);
    body.finish(PERF_RECORD_FORK, PERF_RECORD_MISC_FORK_EXEC, attr, id)
}

/// EXIT of a task.
pub fn exit(attr: &Attr, id: &SampleId, pid: i32, ppid: i32, tid: i32, ptid: i32) -> Vec<u8> {
    let body = Body(Vec::new()).i32s(&[pid, ppid, tid, ptid]).u64s(&[id.time.unwrap_or(0)]);
    body.finish(PERF_RECORD_EXIT, 0, attr, id)
}

/// A mapping for [`mmap2`] and [`mmap`].
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "the fields are those of `Mapping` and `MappedFile`")]
pub struct MapSpec<'a> {
    /// Process; -1 for the kernel.
    pub pid: i32,
    pub tid: i32,
    pub addr: u64,
    pub len: u64,
    pub pgoff: u64,
    pub maj: u32,
    pub min: u32,
    pub ino: u64,
    pub ino_generation: u64,
    /// The build ID (up to 20 bytes) instead of device and inode.
    pub build_id: Option<&'a [u8]>,
    pub prot: u32,
    pub flags: u32,
    /// `PERF_RECORD_MISC_USER` or `..._KERNEL`, and further bits.
    pub misc: u16,
    /// Path; an empty one becomes `//anon`.
    pub filename: &'a [u8],
}

/// MMAP2.
pub fn mmap2(attr: &Attr, id: &SampleId, map: &MapSpec<'_>) -> Vec<u8> {
    let mut misc = map.misc & !PERF_RECORD_MISC_MMAP_BUILD_ID;
    let body = Body(Vec::new()).i32s(&[map.pid, map.tid]).u64s(&[map.addr, map.len, map.pgoff]);
    let body = match map.build_id {
        Some(build_id) => {
            misc |= PERF_RECORD_MISC_MMAP_BUILD_ID;
            let build_id = build_id.get(..20).unwrap_or(build_id);
            let mut field = vec![build_id.len() as u8, 0, 0, 0];
            field.extend_from_slice(build_id);
            field.resize(24, 0);
            body.bytes(&field)
        }
        None => body.u32s(&[map.maj, map.min]).u64s(&[map.ino, map.ino_generation]),
    };
    let name = if map.filename.is_empty() { b"//anon" } else { map.filename };
    body.u32s(&[map.prot, map.flags]).name(name).finish(PERF_RECORD_MMAP2, misc, attr, id)
}

/// MMAP: the old form, which perf uses for the kernel and its modules.
pub fn mmap(attr: &Attr, id: &SampleId, map: &MapSpec<'_>) -> Vec<u8> {
    let name = if map.filename.is_empty() { b"//anon" } else { map.filename };
    let body = Body(Vec::new()).i32s(&[map.pid, map.tid]).u64s(&[map.addr, map.len, map.pgoff]);
    body.name(name).finish(PERF_RECORD_MMAP, map.misc, attr, id)
}

/// LOST: so many records did not fit into a ring.
pub fn lost(attr: &Attr, id: &SampleId, lost: u64) -> Vec<u8> {
    Body(Vec::new()).u64s(&[id.id.unwrap_or(0), lost]).finish(PERF_RECORD_LOST, 0, attr, id)
}

/// LOST_SAMPLES: the event `id.id` lost so many samples.
pub fn lost_samples(attr: &Attr, id: &SampleId, lost: u64) -> Vec<u8> {
    Body(Vec::new()).u64s(&[lost]).finish(PERF_RECORD_LOST_SAMPLES, 0, attr, id)
}

/// KSYMBOL: a BPF program or trampoline that already is in the kernel.
pub fn ksymbol(attr: &Attr, id: &SampleId, addr: u64, len: u32, ksym_type: u16, name: &[u8]) -> Vec<u8> {
    let body = Body(Vec::new()).u64s(&[addr]).u32s(&[len, u32::from(ksym_type)]).name(name);
    body.finish(PERF_RECORD_KSYMBOL, 0, attr, id)
}

/// NAMESPACES of a task: device and inode of each, in the kernel's order.
pub fn namespaces(attr: &Attr, id: &SampleId, pid: i32, tid: i32, namespaces: &[(u64, u64)]) -> Vec<u8> {
    let body = Body(Vec::new()).i32s(&[pid, tid]).u64s(&[namespaces.len() as u64]);
    let body = namespaces.iter().fold(body, |body, &(device, inode)| body.u64s(&[device, inode]));
    body.finish(PERF_RECORD_NAMESPACES, 0, attr, id)
}

/// CGROUP: the path of a cgroup's id.
pub fn cgroup(attr: &Attr, id: &SampleId, cgroup: u64, path: &[u8]) -> Vec<u8> {
    Body(Vec::new()).u64s(&[cgroup]).name(path).finish(PERF_RECORD_CGROUP, 0, attr, id)
}

/// FINISHED_ROUND: all rings were read once more.
pub fn finished_round() -> Vec<u8> {
    record(PERF_RECORD_FINISHED_ROUND, 0, &[])
}

/// FINISHED_INIT: what is made up ends here.
pub fn finished_init() -> Vec<u8> {
    record(PERF_RECORD_FINISHED_INIT, 0, &[])
}

/// HEADER_ATTR: an event of a pipe recording. The attr has its longest form: perf up to 6.5 takes
/// the ids from where its own form would end, which is that one for 5.13 and later.
pub fn header_attr(attr: &Attr, ids: &[u64]) -> Vec<u8> {
    record(PERF_RECORD_HEADER_ATTR, 0, &Body(attr.to_bytes()).u64s(ids).0)
}

/// HEADER_FEATURE: a feature section of a pipe recording. `None` when it does not fit into a
/// record.
pub(crate) fn header_feature(bit: u32, section: &[u8]) -> Option<Vec<u8>> {
    if section.len() > 65_000 {
        return None;
    }
    // Without padding, as in perf: the section's length follows from the record's.
    let mut out = Body(vec![0; 8]).u64s(&[bit.into()]).bytes(section).0;
    set_header(&mut out, PERF_RECORD_HEADER_FEATURE, 0);
    Some(out)
}

/// EVENT_UPDATE with the name of the event that has `id`.
pub fn event_name(id: u64, name: &str) -> Vec<u8> {
    const NAME: u64 = 2;
    record(PERF_RECORD_EVENT_UPDATE, 0, &Body(Vec::new()).u64s(&[NAME, id]).name(name.as_bytes()).0)
}

/// HEADER_TRACING_DATA of a pipe recording with the tracing data behind it.
pub fn tracing_data(blob: &[u8]) -> Vec<u8> {
    let size = (blob.len() as u32).next_multiple_of(8);
    // The record proper has 16 bytes; the blob behind it is not part of its size.
    let mut out = vec![0; 8];
    out.extend_from_slice(&u64::from(size).to_le_bytes());
    set_header(&mut out, PERF_RECORD_HEADER_TRACING_DATA, 0);
    out.extend_from_slice(blob);
    out.resize(16 + size as usize, 0);
    out
}

/// A build ID as a record (for pipes: [`PERF_RECORD_HEADER_BUILD_ID`]) or an entry of the feature
/// section (type 0).
pub fn build_id_entry(kind: u32, id: &BuildId) -> Vec<u8> {
    let bytes = id.id.get(..20).unwrap_or(&id.id);
    let mut field = bytes.to_vec();
    field.resize(20, 0);
    field.extend_from_slice(&[bytes.len() as u8, 0, 0, 0]);
    let misc = id.misc | PERF_RECORD_MISC_BUILD_ID_SIZE;
    // perf pads the name of these entries to 64 bytes, and nothing else: their size is no multiple
    // of 8.
    let mut name = id.filename.get(..NAME_MAX).unwrap_or(&id.filename).to_vec();
    name.resize((name.len() + 1).next_multiple_of(64), 0);
    let mut out = Body(vec![0; 8]).i32s(&[id.pid]).bytes(&field).bytes(&name).0;
    if kind == PERF_RECORD_HEADER_BUILD_ID {
        // perf 7.2 ends at a record of another size.
        out.resize(out.len().next_multiple_of(8), 0);
    }
    set_header(&mut out, kind, misc);
    out
}
