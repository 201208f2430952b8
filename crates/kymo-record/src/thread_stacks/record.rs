//! What is told of a thread beside its stack, as the raw bytes of its sample.
use super::goroutines::Goroutine;
use super::java::JavaThread;
use super::stack::ThreadStack;
use kymo_perf::proc;

/// The event of stacks.
pub(super) const THREAD_STACK: &str = "thread-stack";

/// Where the texts begin.
const TEXTS_AT: usize = 104;
/// In the place of a state: it is a goroutine that is on no thread.
const GOROUTINE: char = 'g';
/// In the place of a state: the program was dumped.
const DUMPED: char = 'c';
/// The longest text; a sample has 64 KiB at most.
const MOST_TEXT: usize = 12 << 10;

/// How much of a thread's stack there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum StackKind {
    /// It reaches the function that the thread has begun in.
    Whole = 0,
    /// Callers are missing.
    Cut = 1,
    /// There is none: `reason` tells why.
    #[default]
    Missing = 2,
}

/// What a thread does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ThreadRecord {
    /// Its process, and the thread.
    pub(super) pid: i32,
    /// See `pid`.
    pub(super) tid: i32,
    /// The thread's number for itself, which differs in a container.
    pub(super) own_tid: i32,
    /// As `man 5 proc_pid_stat` has it.
    pub(super) state: char,
    /// How much of its stack there is.
    pub(super) stack: StackKind,
    /// The system call that it waits in, -1 outside of any, and its first two arguments.
    pub(super) call: i64,
    /// See `call`.
    pub(super) arguments: [u64; 2],
    /// How long it has had no CPU, in ns; -1 if that is not known.
    pub(super) off_cpu_ns: i64,
    /// The word at the address that is the first argument, and the two behind it; 0 where nothing
    /// is.
    pub(super) words: [u32; 3],
    /// It had no CPU from before the first stack was read until after the last.
    pub(super) is_steady: bool,
    /// How often it had left its CPU when it was first looked at.
    pub(super) switches: Option<u64>,
    /// The goroutine that is on it, or that it is; 0: none.
    pub(super) goroutine: u64,
    /// The file, peer or process that the call is about.
    pub(super) object: String,
    /// The kernel's functions, innermost first, between semicolons.
    pub(super) kernel: String,
    /// Frames of a runtime that names its own, innermost first: function, file and line between
    /// tabs, frames between newlines.
    pub(super) managed: String,
    /// The lock of the runtime that it waits for, and the thread that has it (0: not known).
    pub(super) monitor: String,
    /// See `monitor`.
    pub(super) holder: i32,
    /// Why there is no stack, or no whole one.
    pub(super) reason: String,
}

impl ThreadRecord {
    /// The fields of the record, behind the lines that name an event.
    pub(super) const FORMAT: &'static str = concat!(
        "format:\n",
        "\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n",
        "\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n",
        "\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n",
        "\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n",
        "\tfield:unsigned int state;\toffset:8;\tsize:4;\tsigned:0;\n",
        "\tfield:unsigned int stack;\toffset:12;\tsize:4;\tsigned:0;\n",
        "\tfield:s64 call;\toffset:16;\tsize:8;\tsigned:1;\n",
        "\tfield:u64 first;\toffset:24;\tsize:8;\tsigned:0;\n",
        "\tfield:u64 second;\toffset:32;\tsize:8;\tsigned:0;\n",
        "\tfield:s64 off_cpu_ns;\toffset:40;\tsize:8;\tsigned:1;\n",
        "\tfield:unsigned int word0;\toffset:48;\tsize:4;\tsigned:0;\n",
        "\tfield:unsigned int word1;\toffset:52;\tsize:4;\tsigned:0;\n",
        "\tfield:unsigned int word2;\toffset:56;\tsize:4;\tsigned:0;\n",
        "\tfield:int own_tid;\toffset:60;\tsize:4;\tsigned:1;\n",
        "\tfield:__data_loc char[] object;\toffset:64;\tsize:4;\tsigned:0;\n",
        "\tfield:__data_loc char[] kernel;\toffset:68;\tsize:4;\tsigned:0;\n",
        "\tfield:__data_loc char[] reason;\toffset:72;\tsize:4;\tsigned:0;\n",
        "\tfield:unsigned int steady;\toffset:76;\tsize:4;\tsigned:0;\n",
        "\tfield:int holder;\toffset:80;\tsize:4;\tsigned:1;\n",
        "\tfield:__data_loc char[] managed;\toffset:84;\tsize:4;\tsigned:0;\n",
        "\tfield:__data_loc char[] monitor;\toffset:88;\tsize:4;\tsigned:0;\n",
        "\tfield:u64 goroutine;\toffset:96;\tsize:8;\tsigned:0;\n\n",
        "print fmt: \"state=%c call=%lld off_cpu_ns=%lld object=%s kernel=%s\", ",
        "REC->state, REC->call, REC->off_cpu_ns, __get_str(object), __get_str(kernel)\n",
    );

    /// What /proc tells of a thread.
    pub(super) fn look(pid: i32, tid: i32) -> ThreadRecord {
        ThreadRecord {
            pid,
            tid,
            own_tid: proc::own_number(pid, tid).unwrap_or(tid),
            switches: proc::switches(pid, tid),
            state: proc::state(pid, tid).unwrap_or('X'),
            call: -1,
            off_cpu_ns: -1,
            kernel: proc::kernel_stack(pid, tid).join(";"),
            ..ThreadRecord::default()
        }
    }

    /// A goroutine that is on no thread.
    pub(super) fn from_goroutine(pid: i32, goroutine: &Goroutine) -> ThreadRecord {
        let stack = match (goroutine.frames.is_empty(), goroutine.is_whole) {
            (true, _) => StackKind::Missing,
            (_, true) => StackKind::Whole,
            (_, false) => StackKind::Cut,
        };
        let reason = if stack == StackKind::Missing {
            "it ran while it was read, or its stack is not in memory"
        } else {
            ""
        };
        ThreadRecord {
            pid,
            tid: pid,
            state: GOROUTINE,
            stack,
            call: -1,
            off_cpu_ns: -1,
            goroutine: goroutine.id,
            object: goroutine.reason.clone(),
            reason: reason.to_owned(),
            ..ThreadRecord::default()
        }
    }

    /// A thread of a core file, which was about to get this signal (0: none).
    pub(super) fn from_dump(
        pid: i32,
        tid: i32,
        signal: i32,
        stack: StackKind,
        (call, arguments): (i64, [u64; 2]),
        words: [u32; 3],
    ) -> ThreadRecord {
        let object = if signal == 0 { String::new() } else { format!("signal {signal}") };
        let reason = if stack == StackKind::Missing { "its stack is not in the file" } else { "" };
        ThreadRecord {
            pid,
            tid,
            own_tid: tid,
            state: DUMPED,
            stack,
            call,
            arguments,
            words,
            off_cpu_ns: -1,
            // All of it is of one moment.
            is_steady: true,
            object,
            reason: reason.to_owned(),
            ..ThreadRecord::default()
        }
    }

    /// Takes in what was read of its stack.
    pub(super) fn take_in(&mut self, found: Option<&ThreadStack>) {
        let Some(ThreadStack { stack, state, words, reason, .. }) = found else {
            self.reason = "it was not read in time".to_owned();
            return;
        };
        self.state = state.unwrap_or(self.state);
        if let Some(call) = stack.call {
            let [first, second, ..] = call.arguments;
            (self.call, self.arguments) = (call.number, [first, second]);
        }
        self.off_cpu_ns = stack.off_cpu_ns.and_then(|ns| i64::try_from(ns).ok()).unwrap_or(-1);
        self.words = words.map(|word| word.unwrap_or(0));
        self.stack = match (stack.frames.is_empty(), stack.is_whole) {
            (true, _) => StackKind::Missing,
            (_, true) => StackKind::Whole,
            (_, false) => StackKind::Cut,
        };
        self.reason = match self.stack {
            StackKind::Missing if reason.is_empty() => self.reason_without_stack().to_owned(),
            StackKind::Missing => (*reason).to_owned(),
            _ => String::new(),
        };
    }

    /// Takes in what its runtime tells of it.
    pub(super) fn take_in_java(&mut self, java: &JavaThread) {
        self.managed = java.frames.clone();
        self.monitor = java.monitor.clone();
        self.holder = java.holder.unwrap_or(0);
    }

    /// Looks whether it had no CPU since [`ThreadRecord::look`].
    pub(super) fn look_again(&mut self) {
        self.is_steady = self.switches.is_some() && proc::switches(self.pid, self.tid) == self.switches;
    }

    fn reason_without_stack(&self) -> &'static str {
        match self.state {
            'Z' => "it has ended, and its parent has not asked for its result",
            'X' => "it has ended",
            _ if proc::maps(self.pid).is_empty() => "it is a thread of the kernel, or may not be asked",
            _ => "its registers may not be read: root may, or who may trace it (kernel.yama.ptrace_scope)",
        }
    }

    /// The bytes of its sample.
    pub(super) fn to_raw(&self) -> Vec<u8> {
        let mut raw = vec![0; TEXTS_AT];
        let mut put = |at: usize, bytes: &[u8]| raw[at..at + bytes.len()].copy_from_slice(bytes);
        put(8, &u32::from(self.state).to_ne_bytes());
        put(12, &(self.stack as u32).to_ne_bytes());
        put(16, &self.call.to_ne_bytes());
        put(24, &self.arguments[0].to_ne_bytes());
        put(32, &self.arguments[1].to_ne_bytes());
        put(40, &self.off_cpu_ns.to_ne_bytes());
        for (word, at) in self.words.iter().zip((48..).step_by(4)) {
            put(at, &word.to_ne_bytes());
        }
        put(60, &self.own_tid.to_ne_bytes());
        put(76, &u32::from(self.is_steady).to_ne_bytes());
        put(80, &self.holder.to_ne_bytes());
        put(96, &self.goroutine.to_ne_bytes());
        let texts = [
            (&self.object, 64),
            (&self.kernel, 68),
            (&self.reason, 72),
            (&self.managed, 84),
            (&self.monitor, 88),
        ];
        for (text, at) in texts {
            let text = &text.as_bytes()[..text.len().min(MOST_TEXT)];
            let place = raw.len() as u32 | (text.len() as u32 + 1) << 16;
            raw[at..at + 4].copy_from_slice(&place.to_ne_bytes());
            raw.extend_from_slice(text);
            raw.push(0);
        }
        // Samples are whole words, with the length of these bytes before them.
        raw.resize((raw.len() + 4).next_multiple_of(8) - 4, 0);
        raw
    }
}
