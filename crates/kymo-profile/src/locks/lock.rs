//! The rows of the table of locks.
use crate::functions::FunctionId;
use crate::futex_kind::LockKind;
use kymo_core::latency::Latencies;
use kymo_symbols::place::DataAt;

/// A lock that threads waited for, or another reason to wait.
#[derive(Clone, Debug)]
pub struct LockRow {
    /// What it is.
    pub kind: LockKind,
    /// The process; 0 if several share it.
    pub pid: i32,
    /// Where it is, if it is known by its address.
    pub address: Option<u64>,
    /// The variable that it is in, and the file that has that.
    pub variable: Option<(DataAt, String)>,
    /// How many waits, how long together, the longest, and how many of which length.
    pub waits: Latencies,
    /// Whether that is exact, or from samples.
    pub exact: bool,
    /// Waits that ended because their time was over.
    pub timeouts: u64,
    /// Threads that were seen to wait.
    pub threads: usize,
    /// Threads that waited at the same time, at most; 0: not known.
    pub most_waiting: u64,
    /// Threads that waited still at the end.
    pub waiting: u64,
    /// Where threads waited, the most time first.
    pub waiters: Vec<LockPlace>,
    /// Where those were that ended the waits, the most time first: a lock's holders.
    pub holders: Vec<LockPlace>,
    /// How long it was held, if that was observed and it was.
    pub holds: Option<Holds>,
}

/// Waits for a lock by a place: where threads waited, or where their waits were ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockPlace {
    /// Functions of the program, innermost first.
    pub place: Vec<FunctionId>,
    /// How long threads waited, ns.
    pub time_ns: u64,
    /// How many waits.
    pub waits: u64,
    /// How many threads were there.
    pub threads: usize,
    /// The name of the thread that was there longest.
    pub thread: String,
}

/// How long a lock was held.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holds {
    /// How many holds, how long together, the longest, and how many of which length.
    pub holds: Latencies,
    /// Of those, how many were for reading, which several threads do at a time.
    pub shared: u64,
    /// Where the lock was taken, the longest holds first.
    pub places: Vec<HoldPlace>,
}

/// Holds that were taken at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldPlace {
    /// The function that took the lock.
    pub place: Vec<FunctionId>,
    /// How many holds.
    pub holds: u64,
    /// How long together, ns.
    pub total_ns: u64,
    /// The longest, ns.
    pub max_ns: u64,
}
