//! What hits add up to: values as they were last seen, and who made how many accesses to what.
use super::condition::{AccessFacts, Condition};
use super::place::{Part, Place, parts};
use super::rounds::{Access, WatchRecord};
use kymo_perf::proc::{self, ProcessMemory};
use kymo_perf::watch::{Schedule, TRAPS_BEFORE_ACCESS};
use kymo_symbols::place::is_exclusive;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeSet;

/// So many different (place, instruction, thread) are told apart; more are counted without their thread.
const THREADS_TOLD_APART: usize = 1 << 18;

/// One access, with what it did.
#[derive(Clone, Debug)]
pub struct Hit {
    /// Of the recording's clock.
    pub time_ns: u64,
    /// The process.
    pub pid: i32,
    /// The thread.
    pub tid: i32,
    /// Where it ran.
    pub cpu: u32,
    /// Where the thread goes on.
    pub ip: u64,
    /// What was accessed.
    pub part: Part,
    /// Whether another place that shares the register may be meant.
    pub unsure: bool,
    /// The value before; `None`: not known.
    pub old: Option<u64>,
    /// The value after; `None`: not readable.
    pub new: Option<u64>,
    /// Whether the value was read some time after the access.
    pub read_after: bool,
    /// The thread's name; empty if it is not known.
    pub comm: Vec<u8>,
    /// Where the callers go on, innermost first.
    pub chain: Option<Box<[u64]>>,
}

/// All hits of one instruction on one place.
#[derive(Clone, Debug)]
pub struct Row {
    /// The place, by its number.
    pub place: usize,
    /// Where threads go on after the instruction.
    pub ip: u64,
    /// A process in which it was, to look the instruction up.
    pub pid: i32,
    /// Accesses.
    pub hits: u64,
    /// The first access: what, and the value after it.
    pub first: (Part, Option<u64>),
    /// The last access, likewise.
    pub last: (Part, Option<u64>),
    /// Threads with their names and hits.
    pub threads: FxHashMap<i32, (Vec<u8>, u64)>,
}

/// Judges and counts hits.
#[derive(Default)]
pub struct Ledger {
    places: Vec<Place>,
    /// By the register's address: which parts of places it covers.
    by_address: FxHashMap<u64, Vec<Part>>,
    condition: Option<Condition>,
    /// Words of the condition that were read as values, by place.
    words: FxHashMap<(usize, String), Option<i128>>,
    /// The last word seen around an address, by process: none of its accesses since then are
    /// missing.
    values: FxHashMap<(i32, u64), [u8; 8]>,
    /// Those that are watched.
    processes: BTreeSet<i32>,
    /// Memory of processes, where values are read afterwards.
    memories: FxHashMap<i32, Option<ProcessMemory>>,
    /// Names of threads, where hits come without.
    comms: FxHashMap<i32, Vec<u8>>,
    /// Processes that have executed another program: their addresses mean something else now.
    gone: FxHashSet<i32>,
    rows: FxHashMap<(usize, u64), Row>,
    told_apart: usize,
    /// Those that made accesses.
    instructions: FxHashSet<u64>,
    /// One that never succeeds while its memory is watched, with its process: the watch must end.
    pub exclusive: Option<(i32, u64)>,
    /// Hits that met the condition.
    pub counted: u64,
    /// Hits that did not.
    pub unmet: u64,
    /// Hits behind an exec.
    pub after_exec: u64,
    /// Hits whose value was read some time after.
    pub read_after: u64,
}

impl Ledger {
    /// For these places in these registers.
    pub fn new(places: Vec<Place>, schedule: &Schedule, condition: Option<Condition>) -> Ledger {
        let registers = schedule.registers.iter();
        let by_address =
            registers.map(|register| (register.piece.address, parts(register, &places))).collect();
        let mut words = FxHashMap::default();
        for word in condition.iter().flat_map(Condition::words) {
            for (index, place) in places.iter().enumerate() {
                words.insert((index, word.to_owned()), place.parse_value(word));
            }
        }
        Ledger { places, by_address, condition, words, ..Ledger::default() }
    }

    /// The places.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// A process that is watched from the begin.
    pub fn add_process(&mut self, pid: i32) {
        self.processes.insert(pid);
    }

    /// Reads what is there, of all processes. It belongs behind what happened until it was read.
    pub fn look(&self) -> Vec<WatchRecord> {
        let mut found = Vec::new();
        for &pid in &self.processes {
            let Ok(memory) = ProcessMemory::open(pid) else { continue };
            for address in self.watched_words() {
                let word = memory.word(address);
                found.extend(word.map(|word| WatchRecord::Found { pid, address, word }));
            }
        }
        found
    }

    /// The addresses of the words in which registers are.
    fn watched_words(&self) -> BTreeSet<u64> {
        self.by_address.keys().map(|address| address & !7).collect()
    }

    /// Takes in what happened; a hit that counts comes back with its values.
    pub fn take(&mut self, time_ns: u64, happened: WatchRecord) -> Option<Hit> {
        match happened {
            WatchRecord::Hit(access) => return self.hit(time_ns, access),
            WatchRecord::Child { pid, parent } => {
                // What the child has is a copy of what its maker had.
                self.processes.insert(pid);
                for word in self.watched_words() {
                    if let Some(&value) = self.values.get(&(parent, word)) {
                        self.values.insert((pid, word), value);
                    }
                }
                if let Some(name) = self.comms.get(&parent).cloned() {
                    self.comms.insert(pid, name);
                }
                self.gone.remove(&pid);
                if self.gone.contains(&parent) {
                    self.gone.insert(pid);
                }
            }
            WatchRecord::Found { pid, address, word } => {
                _ = self.values.entry((pid, address)).or_insert(word)
            }
            WatchRecord::Gap => self.values.clear(),
            WatchRecord::Exec { pid } => {
                self.processes.remove(&pid);
                self.gone.insert(pid);
                self.memories.remove(&pid);
            }
            WatchRecord::Thread { tid, parent } => {
                if let Some(name) = self.comms.get(&parent).cloned() {
                    self.comms.insert(tid, name);
                }
            }
            WatchRecord::Named { tid, name } => drop(self.comms.insert(tid, name)),
            WatchRecord::Exit { pid, tid } => {
                self.comms.remove(&tid);
                if pid == tid {
                    self.processes.remove(&pid);
                    self.memories.remove(&pid);
                }
            }
        }
        None
    }

    fn hit(&mut self, time_ns: u64, access: Access) -> Option<Hit> {
        let Access { pid, tid, cpu, ip, address, told, next, chain } = access;
        if self.gone.contains(&pid) {
            self.after_exec += 1;
            return None;
        }
        let (at_hit, comm) = match told {
            Some((word, readable, comm)) => (readable.then_some(word), comm.to_vec()),
            None => (None, self.comm(pid, tid)),
        };
        let is_new = told.is_some() && !TRAPS_BEFORE_ACCESS;
        let word = match next {
            _ if is_new => at_hit,
            Some(next) => Some(next),
            None => self.read(pid, address),
        };
        let read_after = !is_new && next.is_none() && word.is_some();
        self.read_after += u64::from(read_after);
        let before = match word {
            Some(word) => self.values.insert((pid, address & !7), word),
            None => self.values.get(&(pid, address & !7)).copied(),
        };
        let before = if TRAPS_BEFORE_ACCESS { at_hit.or(before) } else { before };
        if TRAPS_BEFORE_ACCESS && self.instructions.insert(ip) && self.repeats(pid, ip) {
            self.exclusive = Some((pid, ip));
        }
        let parts = self.by_address.get(&address)?;
        let changed = |part: &&Part| match (before, word) {
            (Some(before), Some(word)) => part.value(before) != part.value(word),
            _ => false,
        };
        let part = *parts.iter().find(changed).or_else(|| parts.first())?;
        let unsure = parts.len() > 1 && !parts.iter().any(|part| changed(&part));
        let place = &self.places[part.place];
        let value = |word: Option<[u8; 8]>| word.filter(|_| !place.is_code()).map(|word| part.value(word));
        let (old, new) = (value(before), value(word));
        if let Some(condition) = &self.condition {
            let number = |value: Option<u64>| value.and_then(|value| place.number(&part, value));
            let known = AccessFacts { new: number(new), old: number(old), tid, pid };
            let words = &self.words;
            let meant = |word: &str| words.get(&(part.place, word.to_owned())).copied().flatten();
            if !condition.holds(&known, &meant) {
                self.unmet += 1;
                return None;
            }
        }
        self.counted += 1;
        let comm: Vec<u8> = comm.into_iter().take_while(|&byte| byte != 0).collect();
        let hit = Hit { time_ns, pid, tid, cpu, ip, part, unsure, old, new, read_after, comm, chain };
        self.count(&hit);
        Some(hit)
    }

    fn count(&mut self, hit: &Hit) {
        let row = self.rows.entry((hit.part.place, hit.ip)).or_insert_with(|| Row {
            place: hit.part.place,
            ip: hit.ip,
            pid: hit.pid,
            hits: 0,
            first: (hit.part, hit.new),
            last: (hit.part, hit.new),
            threads: FxHashMap::default(),
        });
        row.hits += 1;
        row.last = (hit.part, hit.new);
        if let Some(thread) = row.threads.get_mut(&hit.tid) {
            thread.1 += 1;
        } else if self.told_apart < THREADS_TOLD_APART {
            self.told_apart += 1;
            row.threads.insert(hit.tid, (hit.comm.clone(), 1));
        }
    }

    fn comm(&mut self, pid: i32, tid: i32) -> Vec<u8> {
        // One that was there before is asked for once.
        self.comms.entry(tid).or_insert_with(|| proc::comm(pid, tid).unwrap_or_default()).clone()
    }

    /// Whether an instruction can never succeed while its memory is watched.
    fn repeats(&mut self, pid: i32, ip: u64) -> bool {
        let Some(word) = self.read(pid, ip) else { return false };
        let at = (ip & 4) as usize;
        word[at..at + 4].try_into().is_ok_and(|bytes| is_exclusive(u32::from_le_bytes(bytes)))
    }

    fn read(&mut self, pid: i32, address: u64) -> Option<[u8; 8]> {
        let memory = self.memories.entry(pid).or_insert_with(|| ProcessMemory::open(pid).ok());
        memory.as_ref()?.word(address)
    }

    /// All rows, those with most hits first, place by place.
    pub fn rows(&self) -> Vec<&Row> {
        let mut rows: Vec<&Row> = self.rows.values().collect();
        rows.sort_by_key(|row| (row.place, std::cmp::Reverse(row.hits), row.ip));
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kymo_core::breakpoint::{Kind, Slots};
    use kymo_perf::watch::{BreakpointSlots, Range};

    fn ledger(ranges: &[(u64, u64)], slots: usize, condition: Option<&str>) -> Ledger {
        let place = |&(address, bytes): &(u64, u64)| Place {
            expression: format!("{address:#x}"),
            range: Range { address, bytes, kind: Kind::WRITE },
            type_name: None,
            value: kymo_symbols::place::ValueKind::Bytes,
        };
        let places: Vec<Place> = ranges.iter().map(place).collect();
        let machine = BreakpointSlots { cpus: 1, slots: Slots::Shared(slots), taken: 0, by_cpu: true };
        let ranges: Vec<Range> = places.iter().map(|place| place.range).collect();
        let schedule = Schedule::plan(&ranges, &machine, true).unwrap();
        Ledger::new(places, &schedule, condition.map(|text| Condition::parse(text).unwrap()))
    }

    fn access(pid: i32, address: u64, word: u64) -> WatchRecord {
        let told = Some((word.to_le_bytes(), true, *b"thread\0\0\0\0\0\0\0\0\0\0"));
        WatchRecord::Hit(Access { pid, tid: pid, cpu: 0, ip: 0x400, address, told, next: None, chain: None })
    }

    /// Checks that the old value is the last one seen in the same process, and that a child begins with its maker's.
    #[test]
    fn values_by_process() {
        let mut ledger = ledger(&[(0x1004, 4)], 4, None);
        let hit = ledger.take(1, access(7, 0x1004, 5 << 32)).unwrap();
        assert_eq!((hit.old, hit.new), (None, Some(5)));
        assert!(ledger.take(2, WatchRecord::Child { pid: 8, parent: 7 }).is_none());
        let hit = ledger.take(3, access(7, 0x1004, 6 << 32)).unwrap();
        assert_eq!((hit.old, hit.new), (Some(5), Some(6)));
        let hit = ledger.take(4, access(8, 0x1004, 9 << 32)).unwrap();
        assert_eq!((hit.old, hit.new, &hit.comm[..]), (Some(5), Some(9), &b"thread"[..]));
        let rows = ledger.rows();
        assert_eq!((rows.len(), rows[0].hits, rows[0].threads.len()), (1, 3, 2));
        assert_eq!((rows[0].first.1, rows[0].last.1), (Some(5), Some(9)));
    }

    /// The first write was shown with the value from before the watch, though writes in between
    /// were not watched: what was read while it is watched is known, and behind a gap nothing is.
    #[test]
    fn values_behind_a_gap_are_not_known() {
        let mut ledger = ledger(&[(0x1000, 8)], 4, None);
        let found = |word: u64| WatchRecord::Found { pid: 7, address: 0x1000, word: word.to_le_bytes() };
        let old = |ledger: &mut Ledger, word| ledger.take(1, access(7, 0x1000, word)).unwrap().old;
        assert_eq!(old(&mut ledger, 5), None);
        ledger.take(1, found(4));
        assert_eq!(old(&mut ledger, 6), Some(5), "read before the write of 5, told behind it");
        ledger.take(1, WatchRecord::Gap);
        assert_eq!(old(&mut ledger, 7), None);
        ledger.take(1, WatchRecord::Gap);
        ledger.take(1, found(9));
        assert_eq!(old(&mut ledger, 10), Some(9));
    }

    /// Checks that of two places in one register the one that changed is told, and that it is said where neither did.
    #[test]
    fn shared_registers() {
        let mut ledger = ledger(&[(0x1000, 4), (0x1004, 4)], 1, None);
        ledger.take(1, access(7, 0x1000, 0));
        let hit = ledger.take(2, access(7, 0x1000, 3 << 32)).unwrap();
        assert_eq!((hit.part.place, hit.old, hit.new, hit.unsure), (1, Some(0), Some(3), false));
        let hit = ledger.take(3, access(7, 0x1000, 3 << 32)).unwrap();
        assert!(hit.unsure);
    }

    /// Checks that hits which do not meet the condition only change the value, and that what is behind an exec does not count.
    #[test]
    fn conditions_and_execs() {
        let mut ledger = ledger(&[(0x1000, 8)], 4, Some("new == 0 && old == 2"));
        for word in [1, 2, 0, 1, 0] {
            ledger.take(1, access(7, 0x1000, word));
        }
        assert_eq!((ledger.counted, ledger.unmet), (1, 4));
        ledger.take(2, WatchRecord::Exec { pid: 7 });
        assert!(ledger.take(3, access(7, 0x1000, 0)).is_none());
        assert_eq!(ledger.after_exec, 1);
    }
}
