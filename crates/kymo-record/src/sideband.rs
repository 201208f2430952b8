//! Live tasks with their names and mappings: the records that a file which begins in the middle of
//! a recording must start with.
//!
//! This state is folded from the records on their way to the file, not read from /proc: it includes
//! programs that have ended and whose samples are still to come. Records
//! of several rings are not in order of time, so each thing remembers its time, and what is older
//! than what is known changes nothing.
use crate::mapped_files::RecordedFile;
use crate::synth;
use kymo_data::{
    Attr, FileBuildId, InterpretedFunction, RawRecord, RecordCursor, RecordHeader, SampleId, abi, build,
};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;

/// The kernel's process id in records.
const KERNEL_PID: i32 = -1;
/// A name that came with an exec.
const MISC_COMM_EXEC: u16 = 1 << 13;
/// A task that has ended is told of for so many more rounds: samples of it may be under way in
/// other rings.
const GRACE_ROUNDS: u64 = 2;
/// Kernel symbols, programs of BPF and the like, at most.
const OTHERS_LIMIT: usize = 1 << 16;

/// What is known about tasks at the point that the recording has reached.
#[derive(Debug)]
pub(crate) struct Sideband {
    attr: Attr,
    /// Bytes behind each record's own fields, and where in them is the time.
    trailer: usize,
    time_at: Option<usize>,
    kernel: Vec<Vec<u8>>,
    processes: BTreeMap<i32, Process>,
    /// Records that add up: symbols of the kernel, programs of BPF, cgroups, functions of
    /// interpreters, build ids of files.
    others: VecDeque<Vec<u8>>,
    ended: VecDeque<(u64, i32, i32)>,
    round: u64,
    serial: u64,
}

/// Mappings by start and serial number.
type MapsByStart = BTreeMap<(u64, u64), Map>;

#[derive(Clone, Debug, Default)]
struct Process {
    parent: i32,
    /// Shared with the parent until one of them changes them: most children call exec at once.
    maps: Arc<MapsByStart>,
    threads: BTreeMap<i32, SidebandThread>,
    /// The time of the last exec: mappings from before do not exist any more.
    exec_ns: u64,
}

#[derive(Clone, Debug)]
struct Map {
    end: u64,
    time_ns: u64,
    /// That of the process which mapped it.
    record: Arc<[u8]>,
}

#[derive(Clone, Debug, Default)]
struct SidebandThread {
    /// Since when, and the record of the thread that took the name.
    comm: Option<(u64, Arc<[u8]>)>,
    ended: bool,
}

/// How long the part behind each record's own fields is, and where in it is the time, in bytes.
fn trailer_bytes(attr: &Attr) -> (usize, Option<usize>) {
    use abi::*;
    let count = |bits: &[u64]| 8 * bits.iter().filter(|&&bit| attr.sample_type & bit != 0).count();
    if !attr.sample_id_all() {
        return (0, None);
    }
    let all = [
        PERF_SAMPLE_TID,
        PERF_SAMPLE_TIME,
        PERF_SAMPLE_ID,
        PERF_SAMPLE_STREAM_ID,
        PERF_SAMPLE_CPU,
        PERF_SAMPLE_IDENTIFIER,
    ];
    let time = (attr.sample_type & PERF_SAMPLE_TIME != 0).then(|| count(&[PERF_SAMPLE_TID]));
    (count(&all), time)
}

fn i32_at(record: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_le_bytes(record.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(record: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(record.get(at..at + 8)?.try_into().ok()?))
}

impl Sideband {
    /// For records of this event's kind.
    pub(crate) fn new(attr: Attr) -> Sideband {
        let (trailer, time_at) = trailer_bytes(&attr);
        Sideband {
            attr,
            trailer,
            time_at,
            kernel: Vec::new(),
            processes: BTreeMap::new(),
            others: VecDeque::new(),
            ended: VecDeque::new(),
            round: 0,
            serial: 0,
        }
    }

    /// Takes in whole records.
    pub(crate) fn records(&mut self, bytes: &[u8]) {
        for record in RecordCursor::new(bytes) {
            if record.header.kind != abi::PERF_RECORD_SAMPLE {
                // A record that is too short for its fields is skipped.
                let _ = self.record(record.header, record.bytes);
            }
        }
    }

    /// A round has ended.
    pub(crate) fn round(&mut self) {
        self.round += 1;
        while let Some(&(round, pid, tid)) = self.ended.front()
            && round + GRACE_ROUNDS <= self.round
        {
            self.ended.pop_front();
            let Some(process) = self.processes.get_mut(&pid) else { continue };
            if process.threads.get(&tid).is_some_and(|thread| thread.ended) {
                process.threads.remove(&tid);
            }
            if process.threads.is_empty() {
                self.processes.remove(&pid);
            }
        }
    }

    fn other(&mut self, record: Vec<u8>) {
        if self.others.len() == OTHERS_LIMIT {
            self.others.pop_front();
        }
        self.others.push_back(record);
    }

    fn record(&mut self, header: RecordHeader, record: &[u8]) -> Option<()> {
        let own = record.len().checked_sub(self.trailer)?;
        let time = self.time_at.and_then(|at| u64_at(record, own + at)).unwrap_or(0);
        // Time 0: readers take it at once, as what was there before.
        let quiet = || {
            let mut copy = record.to_vec();
            copy[own..].fill(0);
            copy
        };
        let shared = || {
            let mut copy: Arc<[u8]> = record.into();
            if let Some(copy) = Arc::get_mut(&mut copy) {
                copy[own..].fill(0);
            }
            copy
        };
        let (first, second) = (i32_at(record, 8)?, i32_at(record, 12)?);
        match header.kind {
            abi::PERF_RECORD_MMAP | abi::PERF_RECORD_MMAP2 if first == KERNEL_PID => {
                let place = record.get(16..32)?;
                self.kernel.retain(|known| known.get(16..32) != Some(place));
                self.kernel.push(quiet());
            }
            abi::PERF_RECORD_MMAP | abi::PERF_RECORD_MMAP2 => {
                let start = u64_at(record, 16)?;
                let end = start.saturating_add(u64_at(record, 24)?);
                let process = self.processes.entry(first).or_default();
                if time < process.exec_ns {
                    return None;
                }
                let covered =
                    |key: &(u64, u64), map: &Map| key.0 >= start && map.end <= end && map.time_ns <= time;
                let maps = Arc::make_mut(&mut process.maps);
                let gone: Vec<(u64, u64)> = maps
                    .range((start, 0)..(end, 0))
                    .filter(|(key, map)| covered(key, map))
                    .map(|(key, _)| *key)
                    .collect();
                for key in gone {
                    maps.remove(&key);
                }
                self.serial += 1;
                maps.insert((start, self.serial), Map { end, time_ns: time, record: shared() });
                process.threads.entry(first).or_default();
            }
            abi::PERF_RECORD_COMM => {
                let process = self.processes.entry(first).or_default();
                if header.misc & MISC_COMM_EXEC != 0 && time >= process.exec_ns {
                    process.exec_ns = time;
                    retain(&mut process.maps, |map| map.time_ns >= time && time > 0);
                }
                let thread = process.threads.entry(second).or_default();
                if thread.comm.as_ref().is_none_or(|(known, _)| *known <= time) {
                    thread.comm = Some((time, shared()));
                }
            }
            abi::PERF_RECORD_FORK => {
                let (tid, maker) = (i32_at(record, 16)?, i32_at(record, 20)?);
                self.fork(first, second, tid, maker, u64_at(record, 24).unwrap_or(0).min(time.max(1)));
            }
            abi::PERF_RECORD_EXIT => {
                let tid = i32_at(record, 16)?;
                if let Some(thread) = self.processes.get_mut(&first).and_then(|p| p.threads.get_mut(&tid)) {
                    thread.ended = true;
                    self.ended.push_back((self.round, first, tid));
                }
            }
            // It has no time, and no ids behind it.
            abi::PERF_RECORD_HEADER_EVENT_TYPE => {
                let raw = RawRecord { header, body: record.get(8..)?, position: 0 };
                if InterpretedFunction::parse(&raw).is_some() || FileBuildId::parse(&raw).is_some() {
                    self.other(record.to_vec());
                }
            }
            abi::PERF_RECORD_KSYMBOL | abi::PERF_RECORD_BPF_EVENT | abi::PERF_RECORD_CGROUP => {
                self.other(quiet());
            }
            _ => {}
        }
        Some(())
    }

    fn fork(&mut self, pid: i32, parent: i32, tid: i32, maker: i32, time: u64) {
        let of = self.processes.get(&parent);
        let comm = of.and_then(|process| process.threads.get(&maker)?.comm.clone());
        let maps = of.filter(|_| pid != parent).map(|process| Arc::clone(&process.maps)).unwrap_or_default();
        let process = self.processes.entry(pid).or_default();
        if pid != parent {
            // Whatever is older belonged to another process with this id.
            retain(&mut process.maps, |map| map.time_ns >= time);
            process.threads.retain(|_, thread| thread.comm.as_ref().is_some_and(|(known, _)| *known >= time));
            process.parent = parent;
            if process.exec_ns < time {
                process.exec_ns = 0;
                if process.maps.is_empty() {
                    process.maps = maps;
                } else {
                    let copied = maps.iter().map(|(key, map)| (*key, map.clone()));
                    Arc::make_mut(&mut process.maps).extend(copied);
                }
            }
        }
        let thread = process.threads.entry(tid).or_default();
        thread.ended = false;
        if thread.comm.as_ref().is_none_or(|(known, _)| *known < time) {
            thread.comm = comm.map(|(_, record)| (time, record));
        }
    }

    /// The files that are mapped as code.
    pub(crate) fn files(&self) -> HashSet<RecordedFile> {
        let maps = self.processes.values().flat_map(|process| process.maps.values());
        maps.filter_map(|map| RecordedFile::of_record(&map.record)).map(|(file, _)| file).collect()
    }

    /// Records that tell all of it, as of before everything that follows.
    pub(crate) fn told(&self) -> Vec<u8> {
        let none = SampleId::default();
        let mut out: Vec<u8> = self.kernel.concat();
        self.others.iter().for_each(|record| out.extend_from_slice(record));
        for (&pid, process) in &self.processes {
            // The leader's fork makes a process without threads, so it comes first.
            let leader = process.threads.get_key_value(&pid).into_iter();
            let others = process.threads.iter().filter(|&(&tid, _)| tid != pid);
            let mut mapped = false;
            for (&tid, thread) in leader.chain(others) {
                let maker = if tid == pid { process.parent } else { pid };
                out.extend(build::fork(&self.attr, &none, pid, maker, tid, maker));
                if let Some((_, comm)) = &thread.comm {
                    append(&mut out, comm, pid, tid);
                }
                if !mapped {
                    mapped = true;
                    let mut maps: Vec<(&(u64, u64), &Map)> = process.maps.iter().collect();
                    // What was mapped later lies above what it covers.
                    maps.sort_unstable_by_key(|(key, _)| key.1);
                    maps.into_iter().for_each(|(_, map)| append(&mut out, &map.record, pid, pid));
                }
            }
        }
        synth::never_empty(&mut out);
        out
    }
}

/// Drops what is not wanted any more, without a copy of mappings that none of is.
fn retain(maps: &mut Arc<MapsByStart>, is_wanted: impl Fn(&Map) -> bool) {
    if !maps.values().any(&is_wanted) {
        *maps = Arc::default();
    } else if !maps.values().all(&is_wanted) {
        Arc::make_mut(maps).retain(|_, map| is_wanted(map));
    }
}

/// Appends a record that begins with a process and a thread, as one of this thread.
fn append(out: &mut Vec<u8>, record: &[u8], pid: i32, tid: i32) {
    let at = out.len();
    out.extend_from_slice(record);
    if let Some(ids) = out.get_mut(at + 8..at + 16) {
        ids[..4].copy_from_slice(&pid.to_le_bytes());
        ids[4..].copy_from_slice(&tid.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::Sideband;
    use kymo_data::build::{self, MapSpec};
    use kymo_data::{Attr, FileBuildId, Mark, RecordCursor, SampleId, WholeRecord, abi};

    fn attr() -> Attr {
        let sample_type = abi::PERF_SAMPLE_TID | abi::PERF_SAMPLE_TIME | abi::PERF_SAMPLE_IDENTIFIER;
        Attr { sample_type, flags: abi::ATTR_FLAG_SAMPLE_ID_ALL, ..Attr::default() }
    }

    fn at(time: u64) -> SampleId {
        SampleId { time: Some(time), id: Some(7), ..SampleId::default() }
    }

    fn map(pid: i32, start: u64, len: u64, name: &str, time: u64) -> Vec<u8> {
        let filename = name.as_bytes();
        build::mmap2(
            &attr(),
            &at(time),
            &MapSpec { pid, tid: pid, addr: start, len, filename, ..MapSpec::default() },
        )
    }

    fn comm(pid: i32, tid: i32, name: &str, exec: bool, time: u64) -> Vec<u8> {
        build::comm(&attr(), &at(time), pid, tid, name.as_bytes(), exec)
    }

    fn fork(pid: i32, ppid: i32, tid: i32, ptid: i32, time: u64) -> Vec<u8> {
        let mut record = build::fork(&attr(), &at(time), pid, ppid, tid, ptid);
        record[24..32].copy_from_slice(&time.to_le_bytes());
        record
    }

    fn exit(pid: i32, tid: i32, time: u64) -> Vec<u8> {
        build::exit(&attr(), &at(time), pid, pid, tid, tid)
    }

    /// What is told, in words: all of it must have time 0.
    fn words(sideband: &Sideband) -> Vec<String> {
        let (told, mut out) = (sideband.told(), Vec::new());
        for WholeRecord { header, bytes: record, .. } in RecordCursor::new(&told) {
            let number = |at: usize| i32::from_le_bytes(record[at..at + 4].try_into().unwrap());
            let text = |at: usize| {
                String::from_utf8_lossy(record[at..].split(|&byte| byte == 0).next().unwrap()).into_owned()
            };
            match header.kind {
                abi::PERF_RECORD_FORK => out.push(format!("fork {} {}", number(8), number(16))),
                abi::PERF_RECORD_COMM => out.push(format!("comm {} {}", number(12), text(16))),
                abi::PERF_RECORD_MMAP2 => out.push(format!("map {} {}", number(8), text(72))),
                _ => {}
            }
            if header.kind < 64 {
                assert!(record[record.len() - 24..].iter().all(|&byte| byte == 0), "as of before");
            }
        }
        out
    }

    /// Checks that the build ids of files are told again, and other marks are not.
    #[test]
    fn build_ids_of_files() {
        let mut sideband = Sideband::new(attr());
        let known = FileBuildId { path: b"/p".to_vec(), file_id: (8, 1, 2), id: vec![7; 20] };
        let record = known.record().unwrap();
        sideband.records(&record);
        sideband.records(&Mark::Clock { recording_ns: 1, monotonic_ns: 2 }.record());
        assert_eq!(sideband.told(), record);
    }

    /// Checks names, inherited and covered mappings, exec, and that who has ended is told of for a
    /// while and then no more.
    #[test]
    fn tasks_come_and_go() {
        let mut sideband = Sideband::new(attr());
        for record in [
            fork(10, 1, 10, 1, 1),
            comm(10, 10, "sh", true, 2),
            map(10, 0x1000, 0x1000, "/bin/sh", 3),
            map(10, 0x5000, 0x1000, "/lib/old", 4),
            map(10, 0x4000, 0x3000, "/lib/new", 5),
            fork(11, 10, 11, 10, 6),
            fork(12, 10, 12, 10, 6),
            comm(12, 12, "ls", true, 8),
            map(12, 0x1000, 0x1000, "/bin/ls", 9),
            fork(12, 12, 13, 12, 10),
        ] {
            sideband.records(&record);
        }
        let all = [
            "fork 10 10",
            "comm 10 sh",
            "map 10 /bin/sh",
            "map 10 /lib/new",
            "fork 11 11",
            "comm 11 sh",
            "map 11 /bin/sh",
            "map 11 /lib/new",
            "fork 12 12",
            "comm 12 ls",
            "map 12 /bin/ls",
            "fork 12 13",
            "comm 13 ls",
        ];
        assert_eq!(words(&sideband), all);
        sideband.records(&exit(11, 11, 20));
        sideband.round();
        assert_eq!(words(&sideband), all);
        sideband.round();
        assert!(!words(&sideband).iter().any(|line| line.contains("11")), "{:?}", words(&sideband));
    }

    /// Checks that records which arrive late, from another ring, change nothing that is newer.
    #[test]
    fn the_order_of_rings_does_not_matter() {
        let mut sideband = Sideband::new(attr());
        for record in [
            comm(5, 5, "make", false, 1),
            map(5, 0x1000, 0x1000, "/bin/make", 1),
            comm(6, 6, "cc", true, 30),
            map(6, 0x9000, 0x1000, "/bin/cc", 31),
            // From the ring of the CPU on which the parent ran.
            fork(6, 5, 6, 5, 20),
            comm(6, 6, "sh", true, 25),
            map(6, 0x1000, 0x1000, "/bin/sh", 26),
        ] {
            sideband.records(&record);
        }
        let cc: Vec<_> = words(&sideband).into_iter().filter(|line| line.contains(" 6 ")).collect();
        assert_eq!(cc, ["fork 6 6", "comm 6 cc", "map 6 /bin/cc"]);
    }

    /// Checks that damaged records are passed over.
    #[test]
    fn damage() {
        let mut sideband = Sideband::new(attr());
        let whole = map(6, 0x1000, 0x1000, "/bin/sh", 26);
        for cut in 8..whole.len() {
            let mut record = whole[..cut].to_vec();
            record[6..8].copy_from_slice(&(cut as u16).to_le_bytes());
            sideband.records(&record);
        }
        sideband.records(&[1, 2, 3]);
        sideband.records(&[10, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
        sideband.told();
    }
}
