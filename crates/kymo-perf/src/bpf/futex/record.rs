//! What the programs write of futexes, and what they have added up: the raw bytes of samples of
//! `bpf-output`, laid out as those of tracepoints.
//!
//! The first eight bytes are those of all tracepoints; the recorder puts the number of the
//! description there.
use kymo_core::latency::{Latencies, PER_DOUBLING, SLOTS, USED};

/// How the programs lay out a record, in bytes.
pub(super) mod at {
    /// Its [`super::FutexKind`].
    pub(in super::super) const KIND: i16 = 8;
    /// The operation of the call, with its flags.
    pub(in super::super) const OPERATION: i16 = 12;
    pub(in super::super) const TID: i16 = 16;
    pub(in super::super) const PID: i16 = 20;
    pub(in super::super) const ADDRESS: i16 = 24;
    pub(in super::super) const WAIT: i16 = 32;
    pub(in super::super) const TOLD: i16 = 40;
    pub(in super::super) const COUNT: i16 = 48;
    pub(in super::super) const RESULT: i16 = 56;
    pub(in super::super) const WAKER: i16 = 64;
}

/// Bytes of a record: with the word that says so, a multiple of 8.
pub(super) const RECORD_BYTES: usize = 68;

/// Buckets of the lengths of waits: those of 2^41 ns (36 minutes) and more are one.
pub(super) const BUCKETS: usize = PER_DOUBLING as usize * 39;
/// Words of the sums before their buckets, with the word that all tracepoints begin with.
const SUM_WORDS: usize = 14;
/// Bytes of the sums of a futex, as a record.
const SUM_BYTES: usize = 8 * (SUM_WORDS + BUCKETS) + 4;

/// What a record tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FutexKind {
    /// A wait has ended: the sample is that of the thread that waited.
    Wait = 1,
    /// A thread has woken others: the sample is that of the thread that did.
    Wake = 2,
    /// A wait that had not ended when the tracer did.
    Unfinished = 3,
}

/// A wait for a futex, or a wake-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FutexRecord {
    /// What it tells.
    pub kind: FutexKind,
    /// The operation of the system call, with its flags.
    pub operation: u32,
    /// The thread that called.
    pub tid: i32,
    /// Its process; 0 for a futex that processes share.
    pub pid: i32,
    /// Where the futex is.
    pub address: u64,
    /// How long this wait took, ns; 0 of a wake-up.
    pub wait_ns: u64,
    /// The same with the waits for this futex that have no record, since the one before, ns.
    pub told_ns: u64,
    /// How many waits, or wake-ups, it stands for.
    pub count: u64,
    /// What the call returned.
    pub result: i64,
    /// Of a wait: the last thread that woke another at this futex, 0: none did.
    pub waker: i32,
}

/// What came together at a futex.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FutexSums {
    /// The process; 0 for a futex that processes share.
    pub pid: i32,
    /// Where the futex is.
    pub address: u64,
    /// The operation of the last wait, with its flags.
    pub operation: u32,
    /// The waits: how many, how long together, the longest, and how many of which length.
    pub waits: Latencies,
    /// Waits that ended because their time was over.
    pub timeouts: u64,
    /// Threads that were woken.
    pub wakes: u64,
    /// Threads that waited still at the end.
    pub waiting: u64,
    /// Threads that waited at the same time, at most.
    pub most_waiting: u64,
    /// Waits that no record has told, and their time, ns.
    pub untold: (u64, u64),
}

impl FutexRecord {
    /// The fields as tracefs would describe them, behind the lines that name an event.
    pub const FORMAT: &'static str = concat!(
        "format:\n",
        "\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n",
        "\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n",
        "\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n",
        "\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n",
        "\tfield:unsigned int kind;\toffset:8;\tsize:4;\tsigned:0;\n",
        "\tfield:unsigned int operation;\toffset:12;\tsize:4;\tsigned:0;\n",
        "\tfield:int tid;\toffset:16;\tsize:4;\tsigned:1;\n",
        "\tfield:int pid;\toffset:20;\tsize:4;\tsigned:1;\n",
        "\tfield:u64 address;\toffset:24;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 wait_ns;\toffset:32;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 told_ns;\toffset:40;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 count;\toffset:48;\tsize:8;\tsigned:0;\n",
        "\tfield:s64 result;\toffset:56;\tsize:8;\tsigned:1;\n",
        "\tfield:int waker;\toffset:64;\tsize:4;\tsigned:1;\n\n",
        "print fmt: \"kind=%u address=%llx wait=%llu told=%llu count=%llu operation=%u result=%lld waker=%d\", ",
        "REC->kind, REC->address, REC->wait_ns, REC->told_ns, REC->count, REC->operation, REC->result, ",
        "REC->waker\n",
    );

    /// `None`: the bytes are no record of a futex.
    pub fn parse(raw: &[u8]) -> Option<FutexRecord> {
        let int = |at: i16| Some(u32::from_ne_bytes(*raw.get(at as usize..)?.first_chunk()?));
        let long = |at: i16| Some(u64::from_ne_bytes(*raw.get(at as usize..)?.first_chunk()?));
        let kind = match int(at::KIND)? {
            1 => FutexKind::Wait,
            2 => FutexKind::Wake,
            3 => FutexKind::Unfinished,
            _ => return None,
        };
        Some(FutexRecord {
            kind,
            operation: int(at::OPERATION)?,
            tid: int(at::TID)?.cast_signed(),
            pid: int(at::PID)?.cast_signed(),
            address: long(at::ADDRESS)?,
            wait_ns: long(at::WAIT)?,
            told_ns: long(at::TOLD)?,
            count: long(at::COUNT)?,
            result: long(at::RESULT)?.cast_signed(),
            waker: int(at::WAKER)?.cast_signed(),
        })
    }

    /// The bytes as the programs would write them.
    pub fn to_raw(&self) -> Vec<u8> {
        let mut raw = vec![0; RECORD_BYTES];
        let mut put = |at: i16, bytes: &[u8]| raw[at as usize..][..bytes.len()].copy_from_slice(bytes);
        put(at::KIND, &(self.kind as u32).to_ne_bytes());
        put(at::OPERATION, &self.operation.to_ne_bytes());
        put(at::TID, &self.tid.to_ne_bytes());
        put(at::PID, &self.pid.to_ne_bytes());
        put(at::ADDRESS, &self.address.to_ne_bytes());
        put(at::WAIT, &self.wait_ns.to_ne_bytes());
        put(at::TOLD, &self.told_ns.to_ne_bytes());
        put(at::COUNT, &self.count.to_ne_bytes());
        put(at::RESULT, &self.result.to_ne_bytes());
        put(at::WAKER, &self.waker.to_ne_bytes());
        raw
    }
}

impl FutexSums {
    /// The fields of the record of the sums, behind the lines that name an event. `buckets` has the
    /// waits by their length, as [`kymo_core::latency`] divides it, from its first bucket on.
    pub const FORMAT: &'static str = concat!(
        "format:\n",
        "\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n",
        "\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n",
        "\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n",
        "\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n",
        "\tfield:u64 pid;\toffset:8;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 address;\toffset:16;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 operation;\toffset:24;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 waits;\toffset:32;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 total_ns;\toffset:40;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 max_ns;\toffset:48;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 timeouts;\toffset:56;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 wakes;\toffset:64;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 waiting;\toffset:72;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 most_waiting;\toffset:80;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 untold;\toffset:88;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 untold_ns;\toffset:96;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 reserved;\toffset:104;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 buckets[312];\toffset:112;\tsize:2496;\tsigned:0;\n\n",
        "print fmt: \"pid=%llu address=%llx waits=%llu total=%llu max=%llu timeouts=%llu wakes=%llu\", ",
        "REC->pid, REC->address, REC->waits, REC->total_ns, REC->max_ns, REC->timeouts, REC->wakes\n",
    );

    /// `None`: the bytes are no sums.
    pub fn parse(raw: &[u8]) -> Option<FutexSums> {
        let raw = raw.get(..8 * (SUM_WORDS + BUCKETS))?;
        let word = |at: usize| Some(u64::from_ne_bytes(*raw.get(8 * at..)?.first_chunk()?));
        let mut buckets = vec![0; SLOTS as usize];
        let used = &mut buckets[USED.start as usize..][..BUCKETS];
        used.iter_mut().enumerate().for_each(|(at, bucket)| *bucket = word(SUM_WORDS + at).unwrap_or(0));
        Some(FutexSums {
            pid: word(1)? as i32,
            address: word(2)?,
            operation: word(3)? as u32,
            waits: Latencies { count: word(4)?, total_ns: word(5)?, max_ns: word(6)?, buckets },
            timeouts: word(7)?,
            wakes: word(8)?,
            waiting: word(9)?,
            most_waiting: word(10)?,
            untold: (word(11)?, word(12)?),
        })
    }

    /// The bytes of its record.
    pub fn to_raw(&self) -> Vec<u8> {
        let words = [
            0,
            u64::from(self.pid.cast_unsigned()),
            self.address,
            self.operation.into(),
            self.waits.count,
            self.waits.total_ns,
            self.waits.max_ns,
            self.timeouts,
            self.wakes,
            self.waiting,
            self.most_waiting,
            self.untold.0,
            self.untold.1,
            0,
        ];
        let bucket = |at: usize| self.waits.buckets.get(USED.start as usize + at).copied().unwrap_or(0);
        let mut raw: Vec<u8> =
            words.into_iter().chain((0..BUCKETS).map(bucket)).flat_map(u64::to_ne_bytes).collect();
        raw.resize(SUM_BYTES, 0);
        raw
    }
}
