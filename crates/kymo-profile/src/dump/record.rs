//! Records other than samples, each as a line of perf's text.
use crate::text::shown;
use kymo_data::{MappedFile, Mapping, RawRecord, Record, abi};
use kymo_symbols::build_id_cache::hex;

/// Namespaces in the order of a NAMESPACES record.
const NAMESPACES: [&str; 7] = ["net", "uts", "ipc", "pid", "user", "mnt", "cgroup"];

/// `PERF_RECORD_COMM exec: sh:7/7`: the type, and what the record says.
pub fn record_line(record: &RawRecord<'_>) -> String {
    let kind = record.header.kind;
    let rest = match record.parse() {
        Ok(Record::Comm(comm)) => {
            let exec = if comm.exec { " exec" } else { "" };
            format!("{exec}: {}:{}/{}", text(comm.name), comm.pid, comm.tid)
        }
        Ok(Record::Fork(task) | Record::Exit(task)) => {
            format!("({}:{}):({}:{})", task.pid, task.tid, task.ppid, task.ptid)
        }
        Ok(Record::Mmap(map)) => mapping(kind, &map),
        Ok(Record::Ksymbol(symbol)) => format!(
            " addr {:x} len {} type {} flags {:#x} name {}",
            symbol.addr,
            symbol.len,
            symbol.ksym_type,
            u16::from(symbol.unregister),
            text(symbol.name)
        ),
        Ok(Record::Cgroup { id, path }) => format!(" cgroup: {id} {}", text(path)),
        _ => other(record),
    };
    format!("PERF_RECORD_{}{rest}", abi::record_name(kind))
}

fn text(bytes: &[u8]) -> String {
    shown(&String::from_utf8_lossy(bytes)).into_owned()
}

/// As C prints it: zero has no prefix.
fn prefixed(value: u64) -> String {
    if value == 0 { "0".to_owned() } else { format!("{value:#x}") }
}

fn mapping(kind: u32, map: &Mapping<'_>) -> String {
    let (start, len, offset) = (prefixed(map.addr), prefixed(map.len), prefixed(map.pgoff));
    let place = format!(" {}/{}: [{start}({len}) @ {offset}", map.pid, map.tid);
    let name = text(map.filename);
    if kind == abi::PERF_RECORD_MMAP {
        let letter = if map.misc & abi::PERF_RECORD_MISC_MMAP_DATA != 0 { 'r' } else { 'x' };
        return format!("{place}]: {letter} {name}");
    }
    let file = match map.file {
        MappedFile::BuildId(id) => format!("<{}>", hex(id)),
        MappedFile::Inode { maj, min, ino, ino_generation } => {
            format!("{maj:02x}:{min:02x} {ino} {ino_generation}")
        }
        MappedFile::Unknown => String::new(),
    };
    let letter = |bit: u32, letter| if map.prot & bit != 0 { letter } else { '-' };
    let letters: String = [letter(1, 'r'), letter(2, 'w'), letter(4, 'x')].into_iter().collect();
    // MAP_SHARED.
    let shared = if map.flags & 1 != 0 { 's' } else { 'p' };
    format!("{place} {file}]: {letters}{shared} {name}")
}

/// Types that the readers of recordings do not need.
fn other(record: &RawRecord<'_>) -> String {
    let word = |at: usize| {
        let bytes = record.body.get(at..).and_then(|rest| rest.first_chunk::<4>());
        bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
    };
    let wide = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    let out = record.header.misc & abi::PERF_RECORD_MISC_SWITCH_OUT != 0;
    let preempted = record.header.misc & abi::PERF_RECORD_MISC_SWITCH_OUT_PREEMPT != 0;
    let direction = match (out, preempted) {
        (true, true) => " OUT preempt",
        (true, false) => " OUT        ",
        (false, _) => " IN         ",
    };
    match record.header.kind {
        abi::PERF_RECORD_SWITCH => direction.to_owned(),
        abi::PERF_RECORD_SWITCH_CPU_WIDE => {
            let which = if out { "next" } else { "prev" };
            let (pid, tid) = (word(0).cast_signed(), word(4).cast_signed());
            format!("{direction}  {which} pid/tid: {pid:5}/{tid:<5}")
        }
        abi::PERF_RECORD_BPF_EVENT => {
            let (kind, flags) = (word(0) & 0xffff, word(0) >> 16);
            format!(" type {kind}, flags {flags}, id {}", word(4))
        }
        abi::PERF_RECORD_NAMESPACES => {
            let count = wide(8).min(NAMESPACES.len() as u64) as usize;
            let each = (0..count).map(|at| {
                let (device, inode) = (wide(16 + 16 * at), wide(24 + 16 * at));
                let between = if at > 0 && at % 4 == 0 { "\n\t\t " } else { "" };
                format!("{between}{at}/{}: {device}/{inode:#x}", NAMESPACES[at])
            });
            let list: Vec<String> = each.collect();
            let (pid, tid) = (word(0).cast_signed(), word(4).cast_signed());
            format!(" {pid}/{tid} - nr_namespaces: {count}\n\t\t[{}]", list.join(", "))
        }
        _ => String::new(),
    }
}
