//! What the programs write of waits: the raw bytes of a sample of `bpf-output`.
//!
//! They are laid out as a tracepoint's, so that every reader of recordings can print them by
//! [`WaitRecord::FORMAT`]. The first eight bytes are those of all tracepoints; the recorder puts
//! the number of the description there.

/// How the programs lay out a record, in bytes.
pub(super) mod at {
    /// Its [`super::WaitKind`].
    pub(in super::super) const KIND: i16 = 8;
    /// Why the thread left its CPU: bits of the kernel's `TASK_*`, 0 if it was preempted.
    pub(in super::super) const TASK_STATE: i16 = 12;
    pub(in super::super) const TID: i16 = 16;
    pub(in super::super) const PID: i16 = 20;
    pub(in super::super) const WAKER: i16 = 24;
    /// Its [`super::WaitedFiles`], which the recorder puts there.
    pub(in super::super) const FILES: i16 = 28;
    pub(in super::super) const BLOCKED: i16 = 32;
    pub(in super::super) const RUNNABLE: i16 = 40;
    pub(in super::super) const RUN: i16 = 48;
    pub(in super::super) const SHORT_BLOCKED: i16 = 56;
    pub(in super::super) const SHORT_RUNNABLE: i16 = 64;
    pub(in super::super) const SHORT_WAITS: i16 = 72;
    pub(in super::super) const SHORT_PREEMPTIONS: i16 = 80;
    /// In the order of the registers of x86-64, which are read at once.
    pub(in super::super) const ARGUMENT_1: i16 = 88;
    pub(in super::super) const ARGUMENT_0: i16 = 96;
    pub(in super::super) const SYSCALL: i16 = 104;
    pub(in super::super) const SHORT_LONGEST: i16 = 112;
    pub(in super::super) const PLACE: i16 = 120;
    /// The first of the places of short waits: its call, where that is, and the sums.
    pub(in super::super) const SHORT_PLACES: i16 = 128;
    pub(in super::super) const PLACE_CALL: i16 = 0;
    pub(in super::super) const PLACE_NUMBER: i16 = 8;
    pub(in super::super) const PLACE_BLOCKED: i16 = 16;
    pub(in super::super) const PLACE_WAITS: i16 = 24;
    pub(in super::super) const PLACE_LONGEST: i16 = 32;
    pub(in super::super) const PLACE_RUNNABLE: i16 = 40;
    pub(in super::super) const PLACE_BYTES: i16 = 48;
}

/// So many places of short waits have sums of their own.
pub(super) const PLACES: usize = 3;
/// Words of a place.
pub(super) const PLACE_WORDS: usize = at::PLACE_BYTES as usize / 8;

/// Bytes of a record: with the word that says so, a multiple of 8.
pub(super) const RECORD_BYTES: usize = 276;

/// Where the words of a place are in a record, in bytes.
fn at_place(number: usize) -> impl Iterator<Item = i16> {
    (0..PLACE_WORDS as i16).map(move |word| at::SHORT_PLACES + at::PLACE_BYTES * number as i16 + 8 * word)
}

/// What a record tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitKind {
    /// A thread runs again: its last wait, and those before it that were too short for a record of
    /// their own.
    Wait = 1,
    /// A thread has ended, or the recording has: what was not told yet.
    End = 2,
    /// A thread is woken that has waited long: the sample is that of the one that wakes it.
    Wakeup = 3,
    /// A thread leaves its CPU, whose wait before was long: the stack of a wait that is told later
    /// (before Linux 6.16).
    Stack = 4,
}

/// What a thread waits for that waits for files or signals, as was seen when the recording ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaitedFiles {
    /// Nobody looked, or there are others among the files.
    #[default]
    Unknown = 0,
    /// For work: each socket among the files listens, or was accepted; no request of the io_uring
    /// is in flight; the signals are those that others send.
    Work = 1,
    /// Perhaps for an answer: one of the sockets has a peer, and nothing listens on its port.
    Answers = 2,
}

impl WaitedFiles {
    /// As records hold it.
    pub fn from_number(number: u32) -> WaitedFiles {
        match number {
            1 => WaitedFiles::Work,
            2 => WaitedFiles::Answers,
            _ => WaitedFiles::Unknown,
        }
    }
}

/// Where a thread's time went since its last record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitRecord {
    /// What it tells.
    pub kind: WaitKind,
    /// Why the thread left its CPU: bits of the kernel's `TASK_*`, 0 if it was preempted.
    pub task_state: u32,
    /// The thread that waited.
    pub tid: i32,
    /// Its process.
    pub pid: i32,
    /// The thread that woke it, or in which the interrupt came that did; 0: nobody did.
    pub waker: i32,
    /// What a thread waits for that still does.
    pub files: WaitedFiles,
    /// The last wait until the thread was woken, ns.
    pub blocked_ns: u64,
    /// Ready from then on, until it had a CPU, ns.
    pub runnable_ns: u64,
    /// On a CPU since the last record, ns.
    pub run_ns: u64,
    /// The waits before the last one.
    pub short: ShortWaits,
    /// The system call that the thread was in, -1 outside of any.
    pub syscall: i64,
    /// The call's first two arguments.
    pub arguments: [u64; 2],
    /// Where in the program the thread waited, as a number: equal ones have equal stacks, within a
    /// process. 0: that is not known.
    pub place: u64,
}

/// Waits that were too short for records of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShortWaits {
    /// Until the thread was woken, ns.
    pub blocked_ns: u64,
    /// Ready, until it had a CPU, ns.
    pub runnable_ns: u64,
    /// How many.
    pub waits: u64,
    /// How often the thread was preempted.
    pub preemptions: u64,
    /// The longest of them, until the thread was woken, ns.
    pub longest_ns: u64,
    /// Those at the first places where the thread waited: exact sums, of which some or all may be
    /// empty. What is not in them was elsewhere, or it is not known where.
    pub places: [PlaceWaits; PLACES],
}

/// Short waits at one place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlaceWaits {
    /// The system call, plus one; 0: outside of any, or that is not known.
    pub call: u64,
    /// Where it was made, as [`WaitRecord::place`].
    pub place: u64,
    /// Until the thread was woken, ns.
    pub blocked_ns: u64,
    /// How many.
    pub waits: u64,
    /// The longest of them, ns.
    pub longest_ns: u64,
    /// Ready, until it had a CPU, ns.
    pub runnable_ns: u64,
}

impl PlaceWaits {
    /// From the words of a record, or of a thread's entry.
    pub(super) fn of(words: [u64; PLACE_WORDS]) -> PlaceWaits {
        let [call, place, blocked_ns, waits, longest_ns, runnable_ns] = words;
        PlaceWaits { call, place, blocked_ns, waits, longest_ns, runnable_ns }
    }

    fn to_words(self) -> [u64; PLACE_WORDS] {
        [self.call, self.place, self.blocked_ns, self.waits, self.longest_ns, self.runnable_ns]
    }
}

impl WaitRecord {
    /// The fields as tracefs would describe them, behind the lines that name an event.
    pub const FORMAT: &'static str = concat!(
        "format:\n",
        "\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n",
        "\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n",
        "\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n",
        "\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n",
        "\tfield:unsigned int kind;\toffset:8;\tsize:4;\tsigned:0;\n",
        "\tfield:unsigned int task_state;\toffset:12;\tsize:4;\tsigned:0;\n",
        "\tfield:int tid;\toffset:16;\tsize:4;\tsigned:1;\n",
        "\tfield:int pid;\toffset:20;\tsize:4;\tsigned:1;\n",
        "\tfield:int waker;\toffset:24;\tsize:4;\tsigned:1;\n",
        "\tfield:unsigned int files;\toffset:28;\tsize:4;\tsigned:0;\n",
        "\tfield:u64 blocked_ns;\toffset:32;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 runnable_ns;\toffset:40;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 run_ns;\toffset:48;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 short_blocked_ns;\toffset:56;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 short_runnable_ns;\toffset:64;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 short_waits;\toffset:72;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 short_preemptions;\toffset:80;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 argument_1;\toffset:88;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 argument_0;\toffset:96;\tsize:8;\tsigned:0;\n",
        "\tfield:s64 syscall;\toffset:104;\tsize:8;\tsigned:1;\n",
        "\tfield:u64 short_longest_ns;\toffset:112;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 place;\toffset:120;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 call_0;\toffset:128;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 place_0;\toffset:136;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 blocked_ns_0;\toffset:144;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 waits_0;\toffset:152;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 longest_ns_0;\toffset:160;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 runnable_ns_0;\toffset:168;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 call_1;\toffset:176;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 place_1;\toffset:184;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 blocked_ns_1;\toffset:192;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 waits_1;\toffset:200;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 longest_ns_1;\toffset:208;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 runnable_ns_1;\toffset:216;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 call_2;\toffset:224;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 place_2;\toffset:232;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 blocked_ns_2;\toffset:240;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 waits_2;\toffset:248;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 longest_ns_2;\toffset:256;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 runnable_ns_2;\toffset:264;\tsize:8;\tsigned:0;\n\n",
        "print fmt: \"kind=%u tid=%d state=%x blocked=%llu runnable=%llu run=%llu ",
        "short: blocked=%llu runnable=%llu waits=%llu preemptions=%llu longest=%llu waker=%d syscall=%lld\", ",
        "REC->kind, REC->tid, REC->task_state, REC->blocked_ns, REC->runnable_ns, REC->run_ns, ",
        "REC->short_blocked_ns, REC->short_runnable_ns, REC->short_waits, REC->short_preemptions, ",
        "REC->short_longest_ns, ",
        "REC->waker, REC->syscall\n",
    );

    /// `None`: the bytes are no record of waits.
    pub fn parse(raw: &[u8]) -> Option<WaitRecord> {
        let int = |at: i16| Some(u32::from_ne_bytes(*raw.get(at as usize..)?.first_chunk()?));
        let long = |at: i16| Some(u64::from_ne_bytes(*raw.get(at as usize..)?.first_chunk()?));
        let mut places = [PlaceWaits::default(); PLACES];
        for (number, place) in places.iter_mut().enumerate() {
            let mut words = [0; PLACE_WORDS];
            for (word, at) in words.iter_mut().zip(at_place(number)) {
                *word = long(at)?;
            }
            *place = PlaceWaits::of(words);
        }
        let kind = match int(at::KIND)? {
            1 => WaitKind::Wait,
            2 => WaitKind::End,
            3 => WaitKind::Wakeup,
            4 => WaitKind::Stack,
            _ => return None,
        };
        Some(WaitRecord {
            kind,
            task_state: int(at::TASK_STATE)?,
            tid: int(at::TID)?.cast_signed(),
            pid: int(at::PID)?.cast_signed(),
            waker: int(at::WAKER)?.cast_signed(),
            files: WaitedFiles::from_number(int(at::FILES)?),
            blocked_ns: long(at::BLOCKED)?,
            runnable_ns: long(at::RUNNABLE)?,
            run_ns: long(at::RUN)?,
            short: ShortWaits {
                blocked_ns: long(at::SHORT_BLOCKED)?,
                runnable_ns: long(at::SHORT_RUNNABLE)?,
                waits: long(at::SHORT_WAITS)?,
                preemptions: long(at::SHORT_PREEMPTIONS)?,
                longest_ns: long(at::SHORT_LONGEST)?,
                places,
            },
            syscall: long(at::SYSCALL)?.cast_signed(),
            arguments: [long(at::ARGUMENT_0)?, long(at::ARGUMENT_1)?],
            place: long(at::PLACE)?,
        })
    }

    /// The bytes as the programs would write them.
    pub fn to_raw(&self) -> Vec<u8> {
        let mut raw = vec![0; RECORD_BYTES];
        let mut put = |at: i16, bytes: &[u8]| raw[at as usize..][..bytes.len()].copy_from_slice(bytes);
        put(at::KIND, &(self.kind as u32).to_ne_bytes());
        put(at::TASK_STATE, &self.task_state.to_ne_bytes());
        put(at::TID, &self.tid.to_ne_bytes());
        put(at::PID, &self.pid.to_ne_bytes());
        put(at::WAKER, &self.waker.to_ne_bytes());
        put(at::FILES, &(self.files as u32).to_ne_bytes());
        let words = [
            (at::BLOCKED, self.blocked_ns),
            (at::RUNNABLE, self.runnable_ns),
            (at::RUN, self.run_ns),
            (at::SHORT_BLOCKED, self.short.blocked_ns),
            (at::SHORT_RUNNABLE, self.short.runnable_ns),
            (at::SHORT_WAITS, self.short.waits),
            (at::SHORT_PREEMPTIONS, self.short.preemptions),
            (at::SHORT_LONGEST, self.short.longest_ns),
            (at::PLACE, self.place),
            (at::ARGUMENT_0, self.arguments[0]),
            (at::ARGUMENT_1, self.arguments[1]),
            (at::SYSCALL, self.syscall.cast_unsigned()),
        ];
        let of_places = self.short.places.iter().enumerate();
        let of_places = of_places.flat_map(|(number, place)| at_place(number).zip(place.to_words()));
        for (at, word) in words.into_iter().chain(of_places) {
            put(at, &word.to_ne_bytes());
        }
        raw
    }

    /// Off every CPU since the last record, ns; never overflows.
    pub fn off_cpu_ns(&self) -> u64 {
        let parts = [self.blocked_ns, self.runnable_ns, self.short.blocked_ns, self.short.runnable_ns];
        parts.iter().fold(0, |sum: u64, part| sum.saturating_add(*part))
    }
}
