//! Recordings of a made-up machine: tasks are born, renamed, exec, map and die, and are sampled meanwhile.
//!
//! The machine is truthful (a record says what happened, ids are used again only after their task died), because what
//! readers make of contradictions is not what is tested here. Everything else is as bad as in real files: CPUs write
//! at different times, so records lie out of order; ids come again at once; tasks exist that no record tells of.
use kymo_data::abi::*;
use kymo_data::{Attr, Compressor, EventSpec, Features, FileWriter, Recording, SampleId, WriteAt, build};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

/// How a recording is made.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    /// 1 to 3.
    pub(crate) events: usize,
    /// Records have times.
    pub(crate) time: bool,
    /// Records that are not samples have a trailer.
    pub(crate) all: bool,
    pub(crate) cpu: bool,
    pub(crate) period: bool,
    pub(crate) chains: bool,
    /// Samples carry the values of all counters.
    pub(crate) read: bool,
    /// Bytes of raw data in every sample, to make a file of many chunks.
    pub(crate) fat: usize,
    /// One stream for each CPU, as `perf record --threads` writes it.
    pub(crate) directory: bool,
}

impl Shape {
    /// A small file whose records say when they were made and whom they are of.
    pub(crate) fn of_events(events: usize) -> Shape {
        Shape {
            events,
            time: true,
            all: true,
            cpu: true,
            period: true,
            chains: false,
            read: false,
            fat: 0,
            directory: false,
        }
    }
}

pub(crate) fn shape() -> impl Strategy<Value = Shape> {
    (1..4usize, any::<[bool; 5]>(), 0..8u8, 0..4u8).prop_map(|(events, flags, rare, place)| {
        let [cpu, period, chains, read, _] = flags;
        Shape {
            events,
            // Samples with a time among records without one would contradict those that follow: they all come last.
            time: rare > 1,
            all: rare != 1,
            cpu,
            period,
            chains,
            read,
            fat: 0,
            directory: place == 0 && rare > 1,
        }
    })
}

/// What a number decides.
struct Dice(u64);

impl Dice {
    fn up_to(&mut self, n: u64) -> u64 {
        let value = self.0 % n;
        self.0 = (self.0 / n).rotate_left(29) ^ 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(value + n);
        value
    }
}

struct Task {
    pid: i32,
}

struct Machine {
    shape: Shape,
    attr: Attr,
    time: u64,
    tasks: BTreeMap<i32, Task>,
    /// For each CPU its records that are not in the file yet, with their times.
    rings: Vec<Vec<(u64, Vec<u8>)>>,
    last_round: u64,
    counters: [u64; 3],
    file: Vec<u8>,
    parts: Vec<Vec<u8>>,
}

pub(crate) const KERNEL: u64 = 0xffff_ffff_8100_0000;
pub(crate) const KERNEL_MODULE: u64 = 0xffff_ffff_c000_0000;
const BPF: u64 = 0xffff_ffff_c001_0000;
const CPUS: usize = 3;
const NAMES: [&[u8]; 5] = [b"sh", b"cc1", b"a b", b"kworker/0:1", b"\xff\xfe"];
const PATHS: [&[u8]; 6] =
    [b"/bin/sh", b"/lib/libc.so.6", b"//anon", b"[heap]", b"/opt/x/libc.so.6", b"[vdso]"];

fn attr(shape: &Shape, index: usize) -> Attr {
    let mut bits = PERF_SAMPLE_IDENTIFIER | PERF_SAMPLE_IP | PERF_SAMPLE_TID;
    for (on, bit) in [
        (shape.time, PERF_SAMPLE_TIME),
        (shape.cpu, PERF_SAMPLE_CPU),
        (shape.period, PERF_SAMPLE_PERIOD),
        (shape.read, PERF_SAMPLE_READ),
        (shape.chains, PERF_SAMPLE_CALLCHAIN),
        (shape.fat > 0, PERF_SAMPLE_RAW),
    ] {
        if on {
            bits |= bit;
        }
    }
    let mut attr = Attr {
        kind: PERF_TYPE_SOFTWARE,
        config: index as u64,
        sample_type: bits,
        sample_period: 1000 + index as u64,
        read_format: if shape.read { PERF_FORMAT_GROUP | PERF_FORMAT_ID } else { 0 },
        ..Attr::default()
    };
    attr.set(ATTR_FLAG_SAMPLE_ID_ALL, shape.all);
    attr
}

/// The id of an event's descriptor.
fn id_of(event: usize) -> u64 {
    10 + event as u64
}

/// Makes a recording; every number is one thing that happens.
pub(crate) fn recording(shape: &Shape, choices: &[u64]) -> Recording {
    damaged(shape, choices, &[]).expect("what was written opens")
}

/// The same with other bytes in some places of the main file, if it still opens.
pub(crate) fn damaged(shape: &Shape, choices: &[u64], damage: &[(usize, u8)]) -> Option<Recording> {
    let (mut file, parts) = bytes(shape, choices);
    for (place, byte) in damage {
        let place = place % file.len();
        file[place] = *byte;
    }
    let parts = parts
        .into_iter()
        .enumerate()
        .map(|(n, part)| (format!("data.{n}"), Arc::new(part) as Arc<dyn kymo_data::ReadAt>))
        .collect();
    Recording::open(Arc::new(file), parts).ok()
}

fn bytes(shape: &Shape, choices: &[u64]) -> (Vec<u8>, Vec<Vec<u8>>) {
    let mut machine = Machine {
        attr: attr(shape, 0),
        shape: shape.clone(),
        time: 1_000,
        tasks: BTreeMap::new(),
        rings: vec![Vec::new(); CPUS],
        last_round: 0,
        counters: [0; 3],
        file: Vec::new(),
        parts: Vec::new(),
    };
    machine.start();
    for &choice in choices {
        machine.step(Dice(choice));
    }
    machine.round(&mut Dice(0));
    machine.round(&mut Dice(0));
    if shape.directory {
        machine.parts = vec![Vec::new(); CPUS];
        for (cpu, ring) in std::mem::take(&mut machine.rings).into_iter().enumerate() {
            machine.parts[cpu].extend(ring.into_iter().flat_map(|r| r.1));
        }
    }
    let specs: Vec<EventSpec> = (0..shape.events)
        .map(|e| EventSpec { attr: attr(shape, e), ids: vec![id_of(e)], name: format!("event{e}") })
        .collect();
    (file(&specs, &machine.file), machine.parts)
}

/// A file with these records.
fn file(events: &[EventSpec], records: &[u8]) -> Vec<u8> {
    let writer = FileWriter::create(Memory::default(), events).expect("memory takes everything");
    writer.append(records).expect("memory takes everything");
    writer.finish(&Features::default()).expect("memory takes everything");
    writer.get_ref().0.lock().expect("no one else").clone()
}

/// A packed recording of so many samples that tell nothing: it has far fewer bytes than samples.
pub(crate) fn packed(samples: usize) -> Recording {
    let attr = Attr { kind: PERF_TYPE_SOFTWARE, sample_period: 1, ..Attr::default() };
    let event = EventSpec { attr, ids: vec![], name: "nothing".to_owned() };
    let mut records = Vec::new();
    let all = build::record(PERF_RECORD_SAMPLE, 2, &[]).repeat(samples);
    let mut compressor = Compressor::new(1).expect("zstd works");
    compressor.compress(&all, &mut records).expect("zstd works");
    Recording::open(Arc::new(file(&[event], &records)), Vec::new()).expect("what was written opens")
}

#[derive(Default)]
struct Memory(Mutex<Vec<u8>>);

impl WriteAt for Memory {
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        let mut bytes = self.0.lock().expect("no one else");
        let at = offset as usize;
        let end = bytes.len().max(at + buf.len());
        bytes.resize(end, 0);
        bytes[at..at + buf.len()].copy_from_slice(buf);
        Ok(buf.len())
    }
}

impl Machine {
    /// What ran before the recording began: records without a time.
    fn start(&mut self) {
        let attr = self.attr.clone();
        let none = SampleId::default();
        let kernel = |addr, len, pgoff, filename| build::MapSpec {
            pid: -1,
            addr,
            len,
            pgoff,
            filename,
            misc: PERF_RECORD_MISC_KERNEL,
            ..build::MapSpec::default()
        };
        let text = build::mmap(&attr, &none, &kernel(KERNEL, 0x1_0000, KERNEL, b"[kernel.kallsyms]_text"));
        let module =
            build::mmap(&attr, &none, &kernel(KERNEL_MODULE, 0x4000, 0, b"/lib/modules/6/kernel/a-b.ko"));
        let bpf = build::ksymbol(&attr, &none, BPF, 0x100, 1, b"bpf_prog_1234_f");
        let mut start = [text, module, bpf].concat();
        // 100 and 110 are told; thread 111 and process 120 are not.
        for (tid, pid) in [(100, 100), (101, 100), (110, 110), (111, 110), (120, 120)] {
            self.tasks.insert(tid, Task { pid });
            if matches!(tid, 111 | 120) {
                continue;
            }
            start.extend(build::comm(&attr, &none, pid, tid, NAMES[tid as usize % 3], false));
            start.extend(build::fork(&attr, &none, pid, 1, tid, 1));
        }
        for (pid, page) in [(100, 4), (110, 8), (100, 30)] {
            start.extend(self.mapping(&none, pid, pid, page, 3, PATHS[page as usize % 3], 5));
        }
        self.file.extend(start);
    }

    fn mapping(
        &self,
        id: &SampleId,
        pid: i32,
        tid: i32,
        page: u64,
        pages: u64,
        path: &[u8],
        prot: u32,
    ) -> Vec<u8> {
        let spec = build::MapSpec {
            pid,
            tid,
            addr: page * 0x1000,
            len: pages * 0x1000,
            pgoff: if path.starts_with(b"/") { (page % 5) * 0x1000 } else { 0 },
            maj: 8,
            ino: path.len() as u64,
            prot,
            misc: PERF_RECORD_MISC_USER,
            filename: path,
            ..build::MapSpec::default()
        };
        build::mmap2(&self.attr, id, &spec)
    }

    fn step(&mut self, mut dice: Dice) {
        let what = dice.up_to(20);
        let tids: Vec<i32> = self.tasks.keys().copied().collect();
        let tid = tids[dice.up_to(tids.len() as u64) as usize];
        let pid = self.tasks[&tid].pid;
        let cpu = dice.up_to(CPUS as u64) as usize;
        self.time += 1 + dice.up_to(3);
        let id = SampleId {
            pid: Some(pid),
            tid: Some(tid),
            time: Some(self.time),
            id: Some(id_of(0)),
            stream_id: None,
            cpu: Some(cpu as u32),
        };
        let attr = self.attr.clone();
        match what {
            0 | 1 => {
                let free: Vec<i32> = (100..124).filter(|id| !self.tasks.contains_key(id)).collect();
                if free.is_empty() {
                    return;
                }
                let child = free[dice.up_to(free.len() as u64) as usize];
                let child_pid = if what == 0 { child } else { pid };
                self.tasks.insert(child, Task { pid: child_pid });
                let mut fork = build::fork(&attr, &id, child_pid, pid, child, tid);
                // A birth that the kernel told, not the recorder.
                fork[4..6].copy_from_slice(&0u16.to_le_bytes());
                self.put(cpu, fork);
            }
            2 if tids.len() > 3 => {
                let alive = tids.len();
                let gone: Vec<i32> = tids
                    .into_iter()
                    .filter(|t| *t == tid || pid == tid && self.tasks[t].pid == pid)
                    .collect();
                if gone.len() == alive {
                    return;
                }
                for task in gone {
                    self.tasks.remove(&task);
                    let exit = build::exit(&attr, &id, pid, pid, task, task);
                    self.put(cpu, exit);
                }
            }
            3 => {
                // The thread that execs becomes the process's only one, under the process's id.
                self.tasks.retain(|t, task| task.pid != pid || *t == pid);
                self.tasks.insert(pid, Task { pid });
                let name = NAMES[dice.up_to(5) as usize];
                self.put(cpu, build::comm(&attr, &id, pid, pid, name, true));
                self.time += 1;
                let id = SampleId { time: Some(self.time), ..id };
                let map = self.mapping(&id, pid, pid, dice.up_to(40), 4, PATHS[dice.up_to(6) as usize], 5);
                self.put(cpu, map);
            }
            4 => self.put(cpu, build::comm(&attr, &id, pid, tid, NAMES[dice.up_to(5) as usize], false)),
            5 | 6 => {
                let prot = if dice.up_to(4) == 0 { 3 } else { 5 };
                let (page, pages) = (dice.up_to(64), dice.up_to(8));
                let map = self.mapping(&id, pid, tid, page, pages, PATHS[dice.up_to(6) as usize], prot);
                self.put(cpu, map);
            }
            7 => self.round(&mut dice),
            8 => {
                let lost = dice.up_to(9);
                let record = match dice.up_to(2) {
                    0 => build::lost(&attr, &id, lost),
                    _ => build::lost_samples(&attr, &id, lost),
                };
                self.put(cpu, record);
            }
            _ => {
                let task = if dice.up_to(20) == 0 { (-1, -1) } else { (pid, tid) };
                let task = if dice.up_to(20) == 0 { (0, 0) } else { task };
                let sample = self.sample(task, cpu, &mut dice);
                self.put(cpu, sample);
            }
        }
    }

    fn put(&mut self, cpu: usize, record: Vec<u8>) {
        if self.shape.time && self.shape.all {
            self.rings[cpu].push((self.time, record));
        } else {
            // Without times the file's order is all there is, and it is the true one.
            self.file.extend(record);
        }
    }

    /// Every ring is read once; what came while others were read stays for the next round.
    fn round(&mut self, dice: &mut Dice) {
        if self.shape.directory {
            return;
        }
        for ring in &mut self.rings {
            let late = if dice.0 == 0 { 0 } else { dice.up_to(3) as usize };
            let fresh = ring.iter().filter(|r| r.0 > self.last_round).count();
            let keep = ring.split_off(ring.len() - late.min(fresh));
            self.file.extend(std::mem::replace(ring, keep).into_iter().flat_map(|r| r.1));
        }
        self.last_round = self.time;
        self.file.extend(build::finished_round());
    }

    fn address(&self, kernel: bool, dice: &mut Dice) -> u64 {
        let near = dice.up_to(40) * 0x40;
        match (kernel, dice.up_to(8)) {
            (true, 0) => KERNEL_MODULE + near * 8,
            (true, 1) => BPF + near,
            (true, _) => KERNEL + near * 32,
            (false, _) => dice.up_to(70) * 0x1000 + near,
        }
    }

    fn sample(&mut self, (pid, tid): (i32, i32), cpu: usize, dice: &mut Dice) -> Vec<u8> {
        let shape = self.shape.clone();
        let event = dice.up_to(shape.events as u64) as usize;
        let mode = [2, 2, 2, 1, 1, 3, 4, 5][dice.up_to(8) as usize];
        let bits = attr(&shape, event).sample_type;
        let id = if shape.events > 1 && dice.up_to(30) == 0 { 999 } else { id_of(event) };
        let mut body = Vec::new();
        let mut put = |bit: u64, word: u64| {
            if bits & bit != 0 {
                body.extend_from_slice(&word.to_le_bytes());
            }
        };
        put(PERF_SAMPLE_IDENTIFIER, id);
        put(PERF_SAMPLE_IP, self.address(mode == 1 || mode == 4, dice));
        put(PERF_SAMPLE_TID, u64::from(pid as u32) | u64::from(tid as u32) << 32);
        put(PERF_SAMPLE_TIME, self.time);
        put(PERF_SAMPLE_CPU, cpu as u64);
        put(PERF_SAMPLE_PERIOD, dice.up_to(5) * 100);
        if shape.read {
            put(PERF_SAMPLE_READ, shape.events as u64);
            for event in 0..shape.events {
                self.counters[event] += dice.up_to(3);
                put(PERF_SAMPLE_READ, self.counters[event]);
                put(PERF_SAMPLE_READ, id_of(event));
            }
        }
        if shape.chains {
            let chain = self.chain(dice);
            put(PERF_SAMPLE_CALLCHAIN, chain.len() as u64);
            chain.into_iter().for_each(|word| put(PERF_SAMPLE_CALLCHAIN, word));
        }
        if shape.fat > 0 {
            let raw = vec![0xa5; shape.fat.next_multiple_of(8) + 4];
            body.extend_from_slice(&(raw.len() as u32).to_le_bytes());
            body.extend_from_slice(&raw);
        }
        build::record(PERF_RECORD_SAMPLE, mode as u16, &body)
    }

    /// Few distinct chains, so that some are met again.
    fn chain(&self, dice: &mut Dice) -> Vec<u64> {
        let mut dice = Dice(dice.up_to(30).wrapping_mul(0x1234_5678_9abc_def1));
        let mut words = Vec::new();
        if dice.up_to(3) == 0 {
            words.push(-128_i64 as u64);
            words.extend((0..dice.up_to(4)).map(|_| self.address(true, &mut dice)));
        }
        match dice.up_to(6) {
            0 => {}
            // A marker that nobody knows.
            1 => words.push(-1000_i64 as u64),
            _ => words.push(-512_i64 as u64),
        }
        words.extend((0..dice.up_to(9)).map(|_| self.address(false, &mut dice)));
        words
    }
}
