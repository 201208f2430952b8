//! Records of several rings, in the order of their times.
//!
//! Each ring is in order by itself. A record is let go when every ring has been looked at since the newest record of the look before was
//! written: what comes later is newer then.
use kymo_data::abi::{
    PERF_RECORD_COMM, PERF_RECORD_EXIT, PERF_RECORD_FORK, PERF_RECORD_LOST, PERF_RECORD_MISC_COMM_EXEC,
    PERF_RECORD_SAMPLE,
};
use kymo_data::{Attr, RecordCursor, RecordHeader, SampleLayout};
use kymo_perf::bpf::{FollowedBitmap, WatchSample};
use kymo_perf::watch::TRAPS_BEFORE_ACCESS;
use rustc_hash::FxHashMap;

/// The longest name of a thread.
const COMM_BYTES: usize = 15;

/// What happened, as one record tells it.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "processes and threads, by their numbers")]
pub enum WatchRecord {
    /// An access.
    Hit(Access),
    /// A process was made by another one.
    Child { pid: i32, parent: i32 },
    /// A thread was made by another one, whose name it has.
    Thread { tid: i32, parent: i32 },
    /// A thread has another name.
    Named { tid: i32, name: Vec<u8> },
    /// A process executes another program.
    Exec { pid: i32 },
    /// A thread ended; it may have been the last one of its process.
    Exit { pid: i32, tid: i32 },
    /// What 8 bytes at an address were while they were watched already.
    Found { pid: i32, address: u64, word: [u8; 8] },
    /// Accesses before this may be missing: they were lost, or were not watched.
    Gap,
}

/// One access, as the kernel tells it.
#[derive(Clone, Debug)]
pub struct Access {
    /// The process.
    pub pid: i32,
    /// The thread.
    pub tid: i32,
    /// Where it ran.
    pub cpu: u32,
    /// Where the thread goes on: behind the instruction that made the access, or at it
    /// ([`kymo_perf::watch::TRAPS_BEFORE_ACCESS`]).
    pub ip: u64,
    /// Where the register begins.
    pub address: u64,
    /// The aligned 8 bytes around the address and the thread's name, where the kernel read them at the hit.
    pub told: Option<([u8; 8], bool, [u8; 16])>,
    /// The same bytes at the next access to them, where these are the bytes before the access.
    pub next: Option<[u8; 8]>,
    /// Where the callers go on, innermost first.
    pub chain: Option<Box<[u64]>>,
}

/// A moment, and what happened then.
pub type Event = (u64, WatchRecord);

/// Puts rings into one order.
pub struct Rounds {
    layout: SampleLayout,
    ever: Option<FollowedBitmap>,
    waiting: Vec<Event>,
    /// The newest time of the look before, and of the one that goes on.
    before_ns: u64,
    now_ns: u64,
    /// Records that told of losses.
    pub lost: u64,
    /// Samples that could not be read.
    pub damaged: u64,
}

fn i32_at(body: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_le_bytes(body.get(at..at + 4)?.try_into().ok()?))
}

impl Rounds {
    /// For records of this event; `ever`: the processes that records may be about.
    pub fn new(attr: &Attr, ever: Option<FollowedBitmap>) -> Rounds {
        Rounds {
            layout: SampleLayout::new(attr),
            ever,
            waiting: Vec::new(),
            before_ns: 0,
            now_ns: 0,
            lost: 0,
            damaged: 0,
        }
    }

    /// Takes in what no ring tells. `time_ns`: now, by CLOCK_MONOTONIC.
    pub fn add(&mut self, time_ns: u64, happened: WatchRecord) {
        self.now_ns = self.now_ns.max(time_ns);
        self.waiting.push((time_ns, happened));
    }

    /// Takes in what was in a ring.
    pub fn records(&mut self, bytes: &[u8]) {
        let mut cursor = RecordCursor::new(bytes);
        for record in cursor.by_ref() {
            if let Some((time_ns, happened)) = self.record(record.header, record.body()) {
                self.add(time_ns, happened);
            }
        }
        self.damaged += u64::from(RecordHeader::parse(cursor.rest()).is_some());
    }

    fn record(&mut self, header: RecordHeader, body: &[u8]) -> Option<Event> {
        if header.kind == PERF_RECORD_SAMPLE {
            let Ok(sample) = self.layout.parse(header.misc, body) else {
                self.damaged += 1;
                return None;
            };
            let told = sample.raw.and_then(WatchSample::parse);
            let access = Access {
                pid: sample.pid?,
                tid: sample.tid?,
                cpu: sample.cpu.unwrap_or(0),
                ip: sample.ip?,
                address: told.map_or(sample.addr.unwrap_or(0), |told| told.address),
                next: None,
                told: told.map(|told| (told.word.unwrap_or_default(), told.word.is_some(), told.comm)),
                chain: sample.callchain.map(|words| words.iter().filter(|ip| !is_mark(*ip)).collect()),
            };
            return Some((sample.time.unwrap_or(0), WatchRecord::Hit(access)));
        }
        if header.kind == PERF_RECORD_LOST {
            let count = body.get(8..16).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes);
            self.lost += count;
            return Some((self.layout.sample_id(body).time.unwrap_or(0), WatchRecord::Gap));
        }
        let pid = i32_at(body, 0)?;
        let happened = match header.kind {
            PERF_RECORD_COMM if header.misc & PERF_RECORD_MISC_COMM_EXEC != 0 => WatchRecord::Exec { pid },
            PERF_RECORD_COMM => {
                let name = body.get(8..)?.iter().take_while(|&&byte| byte != 0);
                WatchRecord::Named { tid: i32_at(body, 4)?, name: name.take(COMM_BYTES).copied().collect() }
            }
            PERF_RECORD_FORK => match i32_at(body, 4)? {
                parent if parent == pid => {
                    WatchRecord::Thread { tid: i32_at(body, 8)?, parent: i32_at(body, 12)? }
                }
                parent => WatchRecord::Child { pid, parent },
            },
            PERF_RECORD_EXIT => WatchRecord::Exit { pid, tid: i32_at(body, 8)? },
            _ => return None,
        };
        let about = match happened {
            WatchRecord::Child { parent, .. } => parent,
            _ => pid,
        };
        if self.ever.as_ref().is_some_and(|ever| !ever.contains(about)) {
            return None;
        }
        Some((self.layout.sample_id(body).time.unwrap_or(0), happened))
    }

    /// All rings were looked at: gives what is certainly in order now.
    pub fn flush(&mut self) -> Vec<Event> {
        let horizon = self.before_ns;
        self.before_ns = self.now_ns;
        self.take(horizon)
    }

    /// Nothing comes any more: gives all.
    pub fn finish(&mut self) -> Vec<Event> {
        self.take(u64::MAX)
    }

    fn take(&mut self, horizon: u64) -> Vec<Event> {
        if self.waiting.is_empty() {
            return Vec::new();
        }
        // Mostly a few runs that are in order already, which this sort makes use of.
        self.waiting.sort_by_key(|event| event.0);
        let ready = self.waiting.partition_point(|event| event.0 <= horizon);
        let later = self.waiting.split_off(ready);
        let mut events = std::mem::replace(&mut self.waiting, later);
        if TRAPS_BEFORE_ACCESS {
            tell_next(&mut events);
        }
        events
    }

    /// How many wait.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

/// Tells each access what the next one to the same bytes found: that is what this one left.
fn tell_next(events: &mut [Event]) {
    let mut found = FxHashMap::default();
    for (_, happened) in events.iter_mut().rev() {
        match happened {
            WatchRecord::Hit(access) => {
                let at = (access.pid, access.address & !7);
                access.next = found.get(&at).copied();
                match access.told {
                    Some((word, true, _)) => found.insert(at, word),
                    _ => found.remove(&at),
                };
            }
            // Behind it the addresses mean something else, or an access in between is not known.
            WatchRecord::Exec { .. } | WatchRecord::Gap => found.clear(),
            _ => {}
        }
    }
}

/// The kernel's marks between parts of a chain are the highest numbers.
fn is_mark(word: u64) -> bool {
    word >= u64::MAX - 4095
}

#[cfg(test)]
mod tests {
    use super::*;
    use kymo_data::build;

    fn fork(attr: &Attr, time: u64, pid: i32) -> Vec<u8> {
        let id = kymo_data::SampleId { time: Some(time), ..Default::default() };
        build::fork(attr, &id, pid, 1, pid, 1)
    }

    /// Checks that what one ring tells late stands before what another told early, and that nothing is let go too soon.
    #[test]
    fn order_of_two_rings() {
        let attr = Attr {
            sample_type: kymo_perf::watch::SAMPLE_TYPE,
            flags: kymo_data::abi::ATTR_FLAG_SAMPLE_ID_ALL,
            ..Attr::default()
        };
        let mut rounds = Rounds::new(&attr, None);
        let pids = |events: Vec<Event>| -> Vec<i32> {
            let pid = |event: Event| match event.1 {
                WatchRecord::Child { pid, .. } => pid,
                other => panic!("{other:?}"),
            };
            events.into_iter().map(pid).collect()
        };
        rounds.records(&[fork(&attr, 10, 100), fork(&attr, 30, 300)].concat());
        assert_eq!(pids(rounds.flush()), Vec::<i32>::new());
        rounds.records(&fork(&attr, 20, 200));
        rounds.records(&fork(&attr, 40, 400));
        assert_eq!(pids(rounds.flush()), [100, 200, 300]);
        assert_eq!((pids(rounds.finish()), rounds.waiting()), (vec![400], 0));
    }

    /// Checks that an access is told the bytes that the next one to them found, in the same process
    /// and up to an exec.
    #[test]
    fn bytes_at_the_next_access() {
        let hit = |pid, address, word: u64| {
            let told = Some((word.to_le_bytes(), true, [0; 16]));
            (
                0,
                WatchRecord::Hit(Access {
                    pid,
                    tid: pid,
                    cpu: 0,
                    ip: 0,
                    address,
                    told,
                    next: None,
                    chain: None,
                }),
            )
        };
        let mut events = vec![
            hit(1, 8, 1),
            hit(2, 8, 5),
            hit(1, 12, 2),
            hit(1, 16, 9),
            (0, WatchRecord::Exec { pid: 1 }),
            hit(1, 8, 7),
        ];
        tell_next(&mut events);
        let next = |event: &Event| match &event.1 {
            WatchRecord::Hit(access) => access.next.map(u64::from_le_bytes),
            _ => None,
        };
        assert_eq!(events.iter().map(next).collect::<Vec<_>>(), [Some(2), None, None, None, None, None]);
    }

    /// Checks that damage ends the look at a ring and is counted, and that strangers' records are left out.
    #[test]
    fn damaged_records() {
        let attr = Attr { sample_type: kymo_perf::watch::SAMPLE_TYPE, ..Attr::default() };
        let mut rounds = Rounds::new(&attr, None);
        rounds.records(&[9, 0, 0, 0, 0, 0, 200, 0]);
        rounds.records(&[9, 0, 0, 0, 0, 0, 16, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        rounds.records(&[1, 2, 3]);
        assert_eq!((rounds.damaged, rounds.waiting()), (2, 0));
    }
}
