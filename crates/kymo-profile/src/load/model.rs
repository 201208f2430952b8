//! The obvious way to read a recording, and what readers did before: one thread, one queue of all
//! records, one current state of the machine.
//!
//! Every record is copied into a queue that is ordered by moment, then fed one by one: a side-band
//! record changes the machine, a sample is looked up in the machine as it is *now*, resolved frame
//! by frame, and counted by itself. perf empties its queue at every FINISHED_ROUND; where rounds
//! are honest, the order is the same as here, where it is emptied once.
//!
//! It is the oracle of the property tests and the baseline of `examples/report_speed.rs`. It shares
//! with the engine the parsing of records, the names of modules, and symbol tables; it has no
//! timeline, no versions, no distinct stacks.
use super::{LoadOptions, LostAt, RecordCounts};
use crate::timeline::{Mapping, ModuleId, ModuleKind, Modules, Moment, image_end, user_kind};
use kymo_data::{MappedFile, RawRecord, ReadError, Record, RecordHeader, Recording, Sample, abi};
use kymo_symbols::Arch;
use kymo_symbols::unwind::{AddressSpace, Convention, MAX_FRAMES, UnwindModules, Unwinder, UserRegs};
use std::collections::HashMap;

mod tables;

pub use tables::{Names, OwnAndTotal, Tables};

/// An address of a sample, and what was mapped there at that moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Frame {
    /// CPU mode, as in `PERF_RECORD_MISC_CPUMODE`.
    pub mode: u8,
    /// The address.
    pub ip: u64,
    /// The mapping that covered it.
    pub mapping: Option<Mapping>,
    /// Where it is looked up: of a return address the byte before it, which is one of the call's.
    pub lookup: u64,
    /// The mapping that covered that.
    pub lookup_mapping: Option<Mapping>,
}

/// One sample (or one member's part of a group's sample), looked up.
#[derive(Debug)]
pub struct Seen<'a> {
    /// Index of the event.
    pub event: usize,
    /// The thread's name, for [`Machine::comm`] when all is read: the first name of a thread holds
    /// for its past, too.
    pub comm: usize,
    /// Process.
    pub pid: i32,
    /// Thread.
    pub tid: i32,
    /// CPU, `u32::MAX` if not recorded.
    pub cpu: u32,
    /// Time, 0 if not recorded.
    pub time_ns: u64,
    /// Period.
    pub period: u64,
    /// Where the sample was taken.
    pub leaf: Frame,
    /// The call chain, innermost first.
    pub frames: &'a [Frame],
}

/// Reads all samples in order of time and hands each to `each`.
///
/// # Errors
/// When the recording cannot be read at all.
pub fn replay(
    recording: &Recording,
    options: &LoadOptions,
    max_stack: usize,
    mut each: impl FnMut(&Machine, &Seen<'_>),
) -> Result<Machine, ReadError> {
    let mut machine = Machine::new();
    let queue = Queue::fill(recording)?;
    let mut samples = Samples {
        recording,
        options,
        max_stack,
        last_read: HashMap::new(),
        frames: Vec::new(),
        unwinder: Unwinder::new(Convention::Perf),
        modules: UnwindModules::new(),
    };
    for entry in &queue.entries {
        let record = queue.record(entry);
        *machine.counts.by_type.entry(record.header.kind).or_default() += 1;
        if record.header.kind == abi::PERF_RECORD_SAMPLE {
            samples.sample(&mut machine, &record, &mut each);
        } else {
            machine.apply(recording, &record, queue.timed);
        }
    }
    Ok(machine)
}

/// All records of a recording, copied, in order of their moments.
struct Queue {
    timed: bool,
    bodies: Vec<u8>,
    entries: Vec<Entry>,
}

struct Entry {
    moment: Moment,
    header: RecordHeader,
    position: u64,
    body: usize,
}

impl Queue {
    fn fill(recording: &Recording) -> Result<Queue, ReadError> {
        let events = &recording.events;
        let timed = events
            .list
            .iter()
            .all(|e| e.attr.sample_id_all() && e.attr.sample_type & abi::PERF_SAMPLE_TIME != 0);
        let mut queue = Queue { timed, bodies: Vec::new(), entries: Vec::new() };
        let mut records = recording.records();
        while let Some(record) = records.next_record()? {
            let time = if record.header.kind == abi::PERF_RECORD_SAMPLE {
                events.event_of(&record).and_then(|e| {
                    let layout = &events.list[e].layout;
                    layout.parse(record.header.misc, record.body).ok()?.time
                })
            } else if timed {
                events.sample_id(&record).time
            } else {
                None
            };
            queue.entries.push(Entry {
                moment: Moment::new(time, record.position),
                header: record.header,
                position: record.position,
                body: queue.bodies.len(),
            });
            queue.bodies.extend_from_slice(record.body);
        }
        queue.entries.sort_by_key(|entry| entry.moment);
        Ok(queue)
    }

    fn record(&self, entry: &Entry) -> RawRecord<'_> {
        let len = usize::from(entry.header.size) - kymo_data::RECORD_HEADER_BYTES;
        let body = &self.bodies[entry.body..entry.body + len];
        RawRecord { header: entry.header, body, position: entry.position }
    }
}

#[derive(Clone, Copy, Debug)]
struct Thread {
    pid: i32,
    comm: usize,
    space: usize,
}

/// Mappings by address, never overlapping.
#[derive(Clone, Debug, Default)]
struct Space {
    maps: Vec<Mapping>,
    /// The same for the unwinder, made when a stack needs it.
    unwind: Option<AddressSpace>,
}

impl Space {
    fn find(&self, address: u64) -> Option<Mapping> {
        let at = self.maps.partition_point(|m| m.start <= address).checked_sub(1)?;
        Some(self.maps[at]).filter(|m| address < m.end)
    }

    fn insert(&mut self, new: Mapping) {
        if new.start >= new.end {
            return;
        }
        self.unwind = None;
        let first = self.maps.partition_point(|m| m.end <= new.start);
        let last = self.maps.partition_point(|m| m.start < new.end);
        let mut pieces = Vec::new();
        if first < last && self.maps[first].start < new.start {
            pieces.push(Mapping { end: new.start, ..self.maps[first] });
        }
        pieces.push(new);
        if first < last && self.maps[last - 1].end > new.end {
            let cut = self.maps[last - 1];
            pieces.push(Mapping { start: new.end, pgoff: cut.pgoff + (new.end - cut.start), ..cut });
        }
        self.maps.splice(first..last, pieces);
    }
}

/// The machine as the records so far tell it.
#[derive(Debug, Default)]
pub struct Machine {
    threads: HashMap<i32, Thread>,
    spaces: Vec<Space>,
    kernel: Space,
    /// Every name that a thread had, with the thread's id for those that never got one.
    comms: Vec<(i32, Option<Vec<u8>>)>,
    /// All modules so far.
    pub modules: Modules,
    /// Name and recorded address of the kernel's reference symbol.
    reference: Option<(String, u64)>,
    /// What the records told besides.
    pub counts: RecordCounts,
}

impl Machine {
    fn new() -> Machine {
        let mut machine = Machine::default();
        machine.find_or_new(0, 0);
        machine.rename(0, b"swapper");
        machine
    }

    /// The text of a [`Seen::comm`]. Only after the last record: names may still come.
    pub fn comm(&self, comm: usize) -> String {
        match &self.comms[comm] {
            (_, Some(name)) => String::from_utf8_lossy(name).into_owned(),
            (tid, None) => format!(":{tid}"),
        }
    }

    fn find_or_new(&mut self, pid: i32, tid: i32) -> Thread {
        if let Some(thread) = self.threads.get(&tid) {
            return *thread;
        }
        let space = if pid == tid || pid == -1 {
            self.spaces.push(Space::default());
            self.spaces.len() - 1
        } else {
            self.find_or_new(pid, pid).space
        };
        self.comms.push((tid, None));
        let thread = Thread { pid, comm: self.comms.len() - 1, space };
        self.threads.insert(tid, thread);
        thread
    }

    fn rename(&mut self, tid: i32, name: &[u8]) {
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        if self.comms[thread.comm].1.is_some() {
            thread.comm = self.comms.len();
            self.comms.push((tid, None));
        }
        self.comms[thread.comm].1 = Some(name.to_vec());
    }

    fn apply(&mut self, recording: &Recording, record: &RawRecord<'_>, timed: bool) {
        let parsed = match record.parse() {
            Ok(parsed) => parsed,
            Err(error) => return self.counts.short.add(error),
        };
        match parsed {
            Record::Comm(comm) => {
                self.find_or_new(comm.pid, comm.tid);
                self.rename(comm.tid, comm.name);
            }
            // Tasks that were there before are listed in any order, a thread perhaps before its
            // process.
            Record::Fork(task)
                if task.synthesized && self.threads.get(&task.tid).is_some_and(|t| t.pid == task.pid) => {}
            Record::Fork(task) => {
                let parent = self.find_or_new(task.ppid, task.ptid);
                if self.threads.remove(&task.tid).is_some() && task.pid == task.tid {
                    // The threads of an earlier process of this id are gone with it.
                    self.threads.retain(|_, thread| thread.pid != task.pid);
                }
                let child = self.find_or_new(task.pid, task.tid);
                self.comms[child.comm].1 = self.comms[parent.comm].1.clone();
                if task.pid != task.ppid && !task.synthesized {
                    self.spaces[child.space] = self.spaces[parent.space].clone();
                }
            }
            Record::Mmap(map) => self.map(&map),
            Record::Ksymbol(symbol) if !symbol.unregister => {
                let module = self.modules.intern(symbol.name, ModuleKind::Ksymbol, (0, 0, symbol.addr), &[]);
                let end = symbol.addr.saturating_add(u64::from(symbol.len));
                self.kernel.insert(Mapping {
                    start: symbol.addr,
                    end,
                    pgoff: 0,
                    module,
                    pid: 0,
                    identity: true,
                    executable: true,
                });
            }
            Record::Lost { lost, .. } => {
                self.counts.lost_records += lost;
                self.counts.lost_chunks += 1;
                let id = recording.events.sample_id(record);
                if timed && let Some(time_ns) = id.time {
                    self.counts.lost_at.push(LostAt { time_ns, cpu: id.cpu.unwrap_or(u32::MAX), lost });
                    self.counts.lost_at.sort();
                }
            }
            Record::LostSamples { lost } => self.counts.lost_samples += lost,
            Record::Throttle(_) => self.counts.throttled += 1,
            _ => {}
        }
    }

    fn map(&mut self, map: &kymo_data::Mapping<'_>) {
        let mode = map.misc & abi::PERF_RECORD_MISC_CPUMODE_MASK;
        if matches!(mode, abi::PERF_RECORD_MISC_GUEST_KERNEL | abi::PERF_RECORD_MISC_GUEST_USER) {
            return;
        }
        let (file_id, build_id) = match map.file {
            MappedFile::Inode { maj, min, ino, .. } => ((maj, min, ino), &[][..]),
            MappedFile::BuildId(id) => ((0, 0, 0), id),
            MappedFile::Unknown => ((0, 0, 0), &[][..]),
        };
        let mut new = Mapping {
            start: map.addr,
            end: map.addr.saturating_add(map.len),
            pgoff: map.pgoff,
            module: ModuleId(0),
            pid: 0,
            identity: true,
            executable: true,
        };
        if mode == abi::PERF_RECORD_MISC_KERNEL {
            const KERNEL: &[u8] = b"[kernel.kallsyms]";
            let (path, kind) = match map.filename.strip_prefix(KERNEL) {
                Some(symbol) => {
                    let symbol = String::from_utf8_lossy(symbol).into_owned();
                    self.reference = (map.pgoff != 0 && !symbol.is_empty()).then_some((symbol, map.pgoff));
                    (KERNEL, ModuleKind::Kernel)
                }
                None => (map.filename, ModuleKind::KernelModule),
            };
            new.module = self.modules.intern(path, kind, file_id, build_id);
            self.kernel.insert(new);
        } else {
            new.pid = map.pid;
            new.executable = map.prot & 4 != 0;
            let kind = user_kind(map.filename, map.pid, new.executable);
            new.module = self.modules.intern(map.filename, kind, file_id, build_id);
            new.identity = matches!(kind, ModuleKind::Jit { .. } | ModuleKind::Memory);
            let space = self.find_or_new(map.pid, map.tid).space;
            self.spaces[space].insert(new);
        }
    }

    /// The kernel's text reaches up to the next mapping.
    fn kernel_mapping(&self, ip: u64) -> Option<Mapping> {
        let is_text = |m: &Mapping| self.modules.get(m.module).kind == ModuleKind::Kernel;
        self.kernel.find(ip).or_else(|| {
            let below = self.kernel.maps.iter().rfind(|m| m.start <= ip).copied();
            below.filter(|m| is_text(m) && ip < image_end(m.start))
        })
    }

    fn frame(&self, space: usize, mode: u8, ip: u64, is_return: bool) -> Frame {
        let unmapped = |module| {
            let (identity, executable) = (true, true);
            Mapping { start: 0, end: u64::MAX, pgoff: 0, module, identity, executable, pid: 0 }
        };
        let find = |ip| match mode {
            1 => self.kernel_mapping(ip),
            _ => ModuleId::for_mode(mode).map(unmapped).or_else(|| self.spaces[space].find(ip)),
        };
        let (mapping, before) = (find(ip), ip - u64::from(is_return && ip > 0));
        // Where nothing is mapped before an address, no call lies there.
        let lookup = if find(before).is_none() && mapping.is_some() { ip } else { before };
        Frame { mode, ip, mapping, lookup, lookup_mapping: find(lookup) }
    }
}

/// What the counting of samples needs besides the machine.
struct Samples<'a> {
    recording: &'a Recording,
    options: &'a LoadOptions,
    max_stack: usize,
    /// Each counter's value at its last sample.
    last_read: HashMap<u64, u64>,
    frames: Vec<Frame>,
    unwinder: Unwinder,
    modules: UnwindModules,
}

impl Samples<'_> {
    fn sample(
        &mut self,
        machine: &mut Machine,
        record: &RawRecord<'_>,
        each: &mut impl FnMut(&Machine, &Seen<'_>),
    ) {
        let events = &self.recording.events;
        let Some(event) = events.event_of(record) else {
            machine.counts.unknown_ids += 1;
            return;
        };
        let of = &events.list[event];
        let Ok(sample) = of.layout.parse(record.header.misc, record.body) else { return };
        let mut parts = Vec::new();
        match sample.read {
            Some(read) if of.attr.sample_type & abi::PERF_SAMPLE_READ != 0 => {
                for counter in read.counters() {
                    let Some(id) = counter.id.or(sample.id) else {
                        machine.counts.unknown_ids += 1;
                        continue;
                    };
                    let before = self.last_read.insert(id, counter.value).unwrap_or(0);
                    match events.by_id(id) {
                        Some(_) if counter.value == before => {}
                        Some(member) => parts.push((member, counter.value.wrapping_sub(before))),
                        None => machine.counts.unknown_ids += 1,
                    }
                }
            }
            _ => parts.push((event, sample.period.unwrap_or(of.attr.sample_period))),
        }
        if !parts.is_empty() && self.wanted(&sample) {
            let mode = (record.header.misc & abi::PERF_RECORD_MISC_CPUMODE_MASK) as u8;
            self.look_up(machine, &sample, mode, &parts, each);
        }
    }

    fn wanted(&self, sample: &Sample<'_>) -> bool {
        let options = self.options;
        let pid = sample.pid.unwrap_or(-1);
        let tid = sample.tid.unwrap_or(pid);
        let time = sample.time.unwrap_or(0);
        options.pids.as_ref().is_none_or(|pids| pids.contains(&pid))
            && options.tids.as_ref().is_none_or(|tids| tids.contains(&tid))
            && options.cpus.as_ref().is_none_or(|cpus| sample.cpu.is_some_and(|cpu| cpus.contains(&cpu)))
            && options.time.as_ref().is_none_or(|spans| spans.contains(time))
    }

    fn look_up(
        &mut self,
        machine: &mut Machine,
        sample: &Sample<'_>,
        mode: u8,
        parts: &[(usize, u64)],
        each: &mut impl FnMut(&Machine, &Seen<'_>),
    ) {
        let pid = sample.pid.unwrap_or(-1);
        let tid = sample.tid.unwrap_or(pid);
        let thread = machine.find_or_new(pid, tid);
        let leaf = machine.frame(thread.space, mode, sample.ip.unwrap_or(0), false);
        let mut words: Vec<u64> = Vec::new();
        let attr = parts.first().map(|part| &self.recording.events.list[part.0].attr);
        let mut is_unwound = attr.is_some_and(|attr| attr.has_unwound_chains());
        if self.options.callchains {
            words.extend(sample.callchain.iter().flat_map(|chain| chain.iter()));
            if let Some(stack) = sample.user_stack.filter(|stack| !stack.is_empty()) {
                self.unwind(machine, thread.space, sample, stack, &mut words);
                is_unwound = true;
            }
        }
        self.frames.clear();
        // Until a marker says otherwise, addresses are the program's.
        let mut mode = 2;
        let mut is_caller = false;
        for word in words {
            if word > u64::MAX - 4095 {
                is_caller = false;
                mode = match (u64::MAX - word + 1) as u32 {
                    32 => 3,
                    128 => 1,
                    512 | 640 => 2,
                    2048 | 2176 => 4,
                    2560 => 5,
                    // Nobody knows this marker: the chain is damaged, nothing of it is believed.
                    _ => {
                        self.frames.clear();
                        break;
                    }
                };
            } else if self.frames.len() < self.max_stack {
                let is_return = is_caller && (matches!(mode, 1 | 4) || !is_unwound);
                self.frames.push(machine.frame(thread.space, mode, word, is_return));
                is_caller = true;
            }
        }
        for &(event, period) in parts {
            let seen = Seen {
                event,
                comm: thread.comm,
                pid,
                tid,
                cpu: sample.cpu.unwrap_or(u32::MAX),
                time_ns: sample.time.unwrap_or(0),
                period,
                leaf,
                frames: &self.frames,
            };
            each(machine, &seen);
        }
    }

    fn unwind(
        &mut self,
        machine: &mut Machine,
        space: usize,
        sample: &Sample<'_>,
        stack: &[u8],
        words: &mut Vec<u64>,
    ) {
        let Some(regs) =
            sample.user_regs.and_then(|r| UserRegs::from_perf(Arch::X86_64, r.abi, r.mask, r.values.iter()))
        else {
            return;
        };
        let (modules, own) = (&machine.modules, &mut machine.spaces[space]);
        let maps = &own.maps;
        let space = own.unwind.get_or_insert_with(|| {
            let mut space = AddressSpace::new();
            for map in maps.iter().filter(|map| map.executable) {
                let module = modules.get(map.module);
                let file = matches!(module.kind, ModuleKind::File | ModuleKind::Vdso);
                let table = self.recording.features.build_ids.iter().find(|id| id.filename == module.path);
                let build_id = match table {
                    Some(known) if module.build_id.is_empty() => &known.id,
                    _ => &module.build_id,
                };
                let module = file.then(|| self.modules.module(&module.path, build_id)).flatten();
                space.map(map.start, map.end, map.pgoff, module);
            }
            space
        });
        words.push(-512_i64 as u64);
        self.unwinder.unwind(space, &regs, stack, MAX_FRAMES, words);
    }
}
