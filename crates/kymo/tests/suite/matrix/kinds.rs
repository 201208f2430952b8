//! The kinds of recordings as a table: what is recorded, with which flags, by which tool.

use crate::scenario::{COMPUTE, DLOPEN, FORKS, JIT, SWITCHES};

/// Who can record it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// perf and kymo, with the same flags.
    Both,
    /// Only perf has the flags.
    Perf,
    /// Only kymo has the flags, or perf's mean something else.
    Kymo,
}

/// What becomes of what the recorder writes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// A file, or a folder.
    File,
    /// A stream (`-o -`) that lands in a file.
    Pipe,
    /// The recorder is attached to a process that runs already, for as long as a `sleep` takes.
    Attached,
    /// Several files: each of them is read.
    Series,
    /// A file into which `perf inject --jit` puts the code that a just-in-time compiler described.
    Jitdump,
    /// `-G`, and the target runs in that cgroup.
    Cgroup,
    /// `kymo watch -o`; the target is a source in `fixtures/programs`.
    Watch,
    /// `kymo probe -o` by the kernel; the target is a source in `fixtures/programs`.
    Probe,
    /// `kymo probe -o` by the program itself; the target is a source in `fixtures/programs`, and its number of calls.
    ProbeInside,
}

/// One kind of recording.
pub(super) struct Kind {
    /// Names it in failures.
    pub(super) name: &'static str,
    pub(super) by: By,
    pub(super) form: Form,
    /// Flags of `record`, divided by blanks.
    pub(super) flags: &'static str,
    pub(super) target: &'static [&'static str],
}

impl Kind {
    /// Whether its samples have fields that `script` prints as text.
    pub(super) fn has_traces(&self) -> bool {
        const SYSTEMS: [&str; 5] = ["sched:", "syscalls:", "kmem:", "timer:", "irq:"];
        matches!(self.form, Form::Probe | Form::ProbeInside)
            || SYSTEMS.iter().any(|system| self.flags.contains(system))
    }
}

/// Two threads that pass messages, and end soon.
const THREADS: &[&str] = &["perf", "bench", "sched", "messaging", "-t", "-g", "1", "-l", "150"];
/// The same on the CPU that is recorded.
const THREADS_ON_CPU_0: &[&str] =
    &["taskset", "-c", "0", "perf", "bench", "sched", "messaging", "-t", "-g", "1", "-l", "150"];
/// Two threads that compute and touch new memory for longer than the recorder looks.
const LONG: &[&str] = &[
    "python3",
    "-c",
    "
import mmap, threading, time
end = time.time() + 20
def run():
    while time.time() < end:
        sum(range(999))
        with mmap.mmap(-1, 4096) as memory:
            memory[0] = 1
threading.Thread(target=run, daemon=True).start()
run()
",
];
/// A process that runs code in anonymous memory and describes it in a jitdump.
const JITDUMP: &[&str] = &[
    "python3",
    "-c",
    "
import ctypes, mmap, os, struct, time
# mov ecx, 0x30000000; loop: dec ecx; jnz loop; ret -- twice, as two functions.
code = bytes.fromhex('b900000030ffc975fcc3')
memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
memory[0:len(code)] = code
memory[64:64 + len(code)] = code
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
now = lambda: time.clock_gettime_ns(time.CLOCK_MONOTONIC)
pid = os.getpid()
dump = open(f'jit-{pid}.dump', 'w+b')
dump.write(struct.pack('<IIIIIIQQ', 0x4A695444, 1, 40, 62, 0, pid, now(), 0))
dump.flush()
# Readers find the dump by this mapping.
marker = mmap.mmap(dump.fileno(), 40, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)
for index, name in enumerate([b'jit_first', b'jit_second']):
    at = address + 64 * index
    rest = struct.pack('<IIQQQQ', pid, pid, at, at, len(code), index) + name + bytes(1) + code
    dump.write(struct.pack('<IIQ', 0, 16 + len(rest), now()) + rest)
dump.flush()
call = ctypes.CFUNCTYPE(None)
call(address)()
call(address + 64)()
dump.write(struct.pack('<IIQ', 3, 16, now()))
dump.close()
",
];

const fn both(name: &'static str, flags: &'static str, target: &'static [&'static str]) -> Kind {
    Kind { name, by: By::Both, form: Form::File, flags, target }
}

const fn perf(name: &'static str, flags: &'static str, target: &'static [&'static str]) -> Kind {
    Kind { by: By::Perf, ..both(name, flags, target) }
}

const fn kymo(name: &'static str, flags: &'static str, target: &'static [&'static str]) -> Kind {
    Kind { by: By::Kymo, ..both(name, flags, target) }
}

const fn pipe(name: &'static str, flags: &'static str, target: &'static [&'static str]) -> Kind {
    Kind { form: Form::Pipe, ..both(name, flags, target) }
}

const fn attached(name: &'static str, flags: &'static str) -> Kind {
    Kind { form: Form::Attached, ..both(name, flags, LONG) }
}

/// What only kymo records, by another verb than `record`.
const fn verb(form: Form, name: &'static str, flags: &'static str, target: &'static [&'static str]) -> Kind {
    Kind { form, ..kymo(name, flags, target) }
}

const fn series(name: &'static str, flags: &'static str, target: &'static [&'static str]) -> Kind {
    Kind { form: Form::Series, ..both(name, flags, target) }
}

/// What `make test` records: each form of event, none that takes long.
pub(super) const QUICK: &[&str] = &[
    "threads",
    "context switches, chains",
    "group with reads, threads",
    "raw system calls",
    "tracepoint and clock",
    "pipe, tracepoint",
];

/// Every kind, both directions.
pub(super) const KINDS: &[Kind] = &[
    // Events and call graphs.
    both("threads", "-F 999 -g -e cpu-clock", THREADS),
    both("threads, no chains", "-F 999 -e cpu-clock", THREADS),
    both("fork and exec", "-F 999 -g -e cpu-clock", FORKS),
    both("fork and exec, task clock", "-F 999 -e task-clock", FORKS),
    both("dlopen", "-F 999 -g -e cpu-clock", DLOPEN),
    both("page faults", "-c 1 -e page-faults", DLOPEN),
    both("page faults with addresses", "-c 1 -d -g -e page-faults", DLOPEN),
    both("minor faults with addresses", "-c 1 -d -e minor-faults", DLOPEN),
    both("context switches", "-c 1 -e context-switches", SWITCHES),
    both("context switches, chains", "-c 1 -g -e context-switches", SWITCHES),
    both("several events", "-F 999 -e cpu-clock -e page-faults -e context-switches", DLOPEN),
    both("several events, chains", "-F 999 -g -e cpu-clock,page-faults", DLOPEN),
    both("clock by period", "-c 1000000 -e cpu-clock", COMPUTE),
    both("task clock by period", "-c 500000 -g -e task-clock", COMPUTE),
    both("high frequency", "-F 4999 -e cpu-clock", COMPUTE),
    both("low frequency", "-F 49 -e cpu-clock", COMPUTE),
    both("user only", "-F 999 -g -e cpu-clock:u", COMPUTE),
    both("kernel only", "-F 999 -g -e cpu-clock:k", FORKS),
    both("frame pointers by name", "--call-graph fp -F 999 -e cpu-clock", COMPUTE),
    both("jit with a perf map", "-F 999 -g -e cpu-clock", JIT),
    both("dwarf", "-F 199 --call-graph dwarf,4096 -e cpu-clock:u", COMPUTE),
    both("dwarf, compressed", "-F 199 -z --call-graph dwarf -e cpu-clock:u", COMPUTE),
    kymo("raw stacks", "-F 199 --call-graph dwarf,4096 --raw-stacks -e cpu-clock:u", COMPUTE),
    // Groups.
    both("group with reads", "-F 999 -e {cpu-clock,page-faults,context-switches}:S", DLOPEN),
    both("group with reads, threads", "-F 999 -e {cpu-clock,context-switches}:S", THREADS),
    both("group with reads, chains", "-F 999 -g -e {cpu-clock,page-faults}:S", FORKS),
    both("group without reads", "-F 999 -e {cpu-clock,task-clock}", COMPUTE),
    // Tracepoints.
    both("tracepoint", "-c 1 -e sched:sched_switch", SWITCHES),
    both("tracepoint with raw bytes", "-c 1 -R -g -e sched:sched_switch -e sched:sched_wakeup", SWITCHES),
    both("system call by name", "-c 1 -e syscalls:sys_enter_write,syscalls:sys_exit_write", SWITCHES),
    both("raw system calls", "-c 1 -e raw_syscalls:sys_enter", SWITCHES),
    both("forks as tracepoints", "-c 1 -e sched:sched_process_fork,sched:sched_process_exec", FORKS),
    both("allocations", "-c 100 -e kmem:kmalloc,kmem:kfree", FORKS),
    both("interrupts and timers", "-c 1 -e irq:softirq_entry,timer:hrtimer_start,timer:timer_start", FORKS),
    both("tracepoint and clock", "-c 1 -e sched:sched_switch -e context-switches", SWITCHES),
    // Forms of the file.
    both("compressed", "-z -F 999 -g -e cpu-clock", FORKS),
    both("compressed much", "-z=19 -F 999 -e cpu-clock", FORKS),
    both("compressed tracepoint", "-z -c 1 -e sched:sched_switch", SWITCHES),
    pipe("pipe", "-F 999 -e cpu-clock", FORKS),
    pipe("pipe, chains", "-F 999 -g -e cpu-clock", FORKS),
    pipe("pipe, tracepoint", "-c 1 -e sched:sched_switch", SWITCHES),
    pipe("pipe, two events", "-F 999 -e cpu-clock -e page-faults", DLOPEN),
    perf("a thread per CPU", "--threads -F 999 -g -e cpu-clock", FORKS),
    perf("a thread per CPU, compressed", "--threads -z -F 999 -e cpu-clock", FORKS),
    series("several files", "--switch-output=200K -F 999 -e cpu-clock", FORKS),
    both("at most so many bytes", "--max-size=150K -F 999 -e cpu-clock", FORKS),
    both("snapshot at the end", "--overwrite -F 999 -e cpu-clock", COMPUTE),
    perf("what was there told at the end", "--tail-synthesize -F 999 -e cpu-clock", COMPUTE),
    both("no build ids", "-B -F 999 -e cpu-clock", COMPUTE),
    both("no build-id cache", "-N -F 999 -e cpu-clock", COMPUTE),
    perf("build ids in mappings", "--buildid-mmap -F 999 -g -e cpu-clock", FORKS),
    // Scopes.
    both("machine", "-a -F 999 -g -e cpu-clock", THREADS),
    both("machine, compressed", "-a -z -F 999 -e cpu-clock", THREADS),
    both("machine, tracepoint", "-a -c 1 -e sched:sched_switch", SWITCHES),
    both("one CPU", "-C 0 -F 999 -e cpu-clock", THREADS_ON_CPU_0),
    both("by thread", "--per-thread -F 999 -g -e cpu-clock", COMPUTE),
    both("not inherited", "-i -F 999 -g -e cpu-clock", FORKS),
    both("after a delay", "-D 50 -F 999 -e cpu-clock", DLOPEN),
    attached("process", "-F 999 -g -e cpu-clock"),
    attached("process, data", "-c 1 -d -e page-faults"),
    // Fields of samples.
    both("switches as records", "--switch-events -F 999 -e cpu-clock", THREADS),
    both("switches as records, machine", "-a --switch-events -F 999 -e cpu-clock", THREADS),
    both("times", "-T -F 999 -e cpu-clock", COMPUTE),
    both("periods", "-P -F 999 -e cpu-clock", COMPUTE),
    both("CPUs", "--sample-cpu -F 999 -e cpu-clock", COMPUTE),
    both("counts of threads", "-s -F 999 -e cpu-clock", THREADS),
    both("data addresses", "-d -F 999 -e cpu-clock", COMPUTE),
    perf("weights", "-W -F 999 -e cpu-clock", COMPUTE),
    perf("physical addresses", "--phys-data -d -c 1 -e page-faults", DLOPEN),
    perf("page sizes", "--data-page-size --code-page-size -d -F 999 -e cpu-clock", COMPUTE),
    both("monotonic clock", "-k CLOCK_MONOTONIC -F 999 -e cpu-clock", FORKS),
    both("raw monotonic clock", "-k CLOCK_MONOTONIC_RAW -F 999 -g -e cpu-clock", COMPUTE),
    perf("namespaces", "--namespaces -F 999 -e cpu-clock", FORKS),
    perf("cgroups", "--all-cgroups -F 999 -e cpu-clock", FORKS),
    perf("identifiers", "--sample-identifier -F 999 -e cpu-clock", COMPUTE),
    Kind {
        form: Form::Jitdump,
        ..both("jit with a dump", "-k CLOCK_MONOTONIC -F 999 -g -e cpu-clock:u", JITDUMP)
    },
    Kind { form: Form::Cgroup, ..perf("cgroup by name", "-a -F 999 -e cpu-clock", THREADS) },
    // Other verbs of kymo.
    verb(Form::Watch, "watch", "-q -g counter flag", &["watched.c", "2", "5"]),
    verb(
        Form::Probe,
        "probes of the kernel",
        "-q --ret -g probed_deep probed_outer usdt:shop:sold",
        &["probed.c", "30", "2"],
    ),
    verb(
        Form::Probe,
        "probes of the kernel, arguments",
        "-q --args --ret called_plain called_text",
        &["called.c"],
    ),
    verb(
        Form::ProbeInside,
        "probes in the program",
        "--args --ret probed_deep probed_inner",
        &["probed.c", "2000"],
    ),
];
