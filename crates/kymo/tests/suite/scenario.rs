//! Recordings made at test time: what is recorded, by which tool, with which flags.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::RwLock;

use crate::tools::{Need, Tool, run};

/// One way to record one program. The flags are perf's, and kymo has the same ones.
pub(crate) struct Scenario {
    /// Names the test and the folder of its recording.
    pub(crate) name: &'static str,
    /// What the machine must have, beside perf.
    pub(crate) needs: &'static [Need],
    /// Flags of `record`, divided by spaces.
    pub(crate) flags: &'static str,
    /// The program and its arguments.
    pub(crate) target: &'static [&'static str],
}

const fn scenario(
    name: &'static str,
    needs: &'static [Need],
    flags: &'static str,
    target: &'static [&'static str],
) -> Scenario {
    Scenario { name, needs, flags, target }
}

/// A shell that starts many short programs: forks, execs and exits.
pub(crate) const FORKS: &[&str] = &[
    "sh",
    "-c",
    "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do ls -lR /etc /usr/lib/python3 | sort | wc -l; done",
];

/// Python whose extension modules arrive by dlopen while it runs.
pub(crate) const DLOPEN: &[&str] = &[
    "python3",
    "-c",
    "
import ctypes, json, random
data = json.dumps([random.random() for _ in range(60000)]).encode()
import zlib; a = len(zlib.compress(data, 9))
import hashlib; b = [hashlib.sha256(data).hexdigest() for _ in range(120)]
import bz2; c = len(bz2.compress(data))
import lzma; d = len(lzma.compress(data[:200000]))
",
];

/// A C library's threads that pass messages.
pub(crate) const THREADS: &[&str] = &["perf", "bench", "sched", "messaging", "-t", "-g", "1", "-l", "1500"];

/// Two processes that only switch.
pub(crate) const SWITCHES: &[&str] = &["perf", "bench", "sched", "pipe", "-l", "1500"];

/// Python that only computes.
pub(crate) const COMPUTE: &[&str] = &["python3", "-c", "print(sum(i * i % 7 for i in range(4000000)))"];

/// A process that writes code into anonymous memory, says so in a perf map, and runs it.
pub(crate) const JIT: &[&str] = &[
    "python3",
    "-c",
    "
import ctypes, mmap, os
# mov ecx, 0x30000000; loop: dec ecx; jnz loop; ret -- twice, as two functions.
code = bytes.fromhex('b900000030ffc975fcc3').ljust(64, b'\\xcc')
memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
memory.write(code + code)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
with open(f'/tmp/perf-{os.getpid()}.map', 'w') as names:
    names.write(f'{address:x} 40 jit::first(int)\\n{address + 64:x} 40 jit second\\n')
call = ctypes.CFUNCTYPE(None)
call(address)()
call(address + 64)()
",
];

const PYTHON: &[Need] = &[Need::Program("python3")];
const SCHEDULER: &[Need] = &[Need::Root, Need::Tracepoints];

/// Every recording that both tools must make alike and read alike.
pub(crate) const SCENARIOS: &[Scenario] = &[
    scenario("threads", &[], "-F 999 -g -e cpu-clock", THREADS),
    scenario("fork_exec", &[], "-F 999 -g -e cpu-clock", FORKS),
    scenario("dlopen", PYTHON, "-F 999 -g -e cpu-clock", DLOPEN),
    scenario("tracepoint_raw", SCHEDULER, "-c 1 -g -R -e sched:sched_switch -e sched:sched_wakeup", SWITCHES),
    scenario("dwarf", PYTHON, "-F 199 --call-graph dwarf,4096 -e cpu-clock:u", DLOPEN),
    scenario("group", PYTHON, "-F 999 -e {cpu-clock,page-faults,context-switches}:S", DLOPEN),
    scenario("several_events", PYTHON, "-F 999 -g -e cpu-clock -e page-faults -e context-switches", DLOPEN),
    scenario("compressed", &[], "-F 999 -g -z -e cpu-clock", FORKS),
    scenario("compressed_dwarf", PYTHON, "-F 199 --call-graph dwarf -z -e cpu-clock:u", DLOPEN),
    scenario("system_wide", &[Need::Root], "-a -F 999 -g -e cpu-clock", THREADS),
    scenario("system_wide_switches", SCHEDULER, "-a -c 1 -g -e sched:sched_switch", SWITCHES),
    scenario("user_only", PYTHON, "-F 999 -g -e cpu-clock:u", COMPUTE),
    scenario("no_call_chains", PYTHON, "-F 999 -e cpu-clock", DLOPEN),
    scenario("data_addresses", PYTHON, "-c 1 -d -g -e page-faults", DLOPEN),
    scenario("per_thread", PYTHON, "--per-thread -F 999 -g -e cpu-clock", COMPUTE),
    scenario("not_inherited", &[], "-i -F 999 -g -e cpu-clock", FORKS),
    scenario("switch_events", &[Need::Root], "--switch-events -F 999 -g -e cpu-clock", THREADS),
    scenario("monotonic_clock", &[], "-k CLOCK_MONOTONIC -F 999 -g -e cpu-clock", FORKS),
    scenario("perf_map", PYTHON, "-F 999 -g -e cpu-clock", JIT),
];

/// Held while recording, so that a recording of the whole machine does not see the compilers of
/// other tests: what they run is much for perf to read. Nor do newer perfs, which ask for build
/// ids, then mark the mappings in recordings by older ones (see `kymo_data::holds_build_id`).
static MACHINE: RwLock<()> = RwLock::new(());

/// A recording on disk and how it was made.
pub(crate) struct Recording {
    pub(crate) path: PathBuf,
    pub(crate) command: String,
}

impl Recording {
    /// True for what `-o -` wrote.
    pub(crate) fn is_stream(&self) -> bool {
        self.command.contains(" -o - ")
    }

    /// The option of `report` that shows each event of a group by itself; see
    /// `interop::complaints`. Not for streams: perf 6.1 obeys it before it has read their events,
    /// and then crashes on some, its own among them.
    pub(crate) fn ungrouped(&self) -> &'static [&'static str] {
        if self.is_stream() { &[] } else { &["--no-group"] }
    }

    /// True for what `-a` or `-C` recorded: other programs are in it.
    pub(crate) fn is_of_the_machine(&self) -> bool {
        self.command.contains(" -a ") || self.command.contains(" -C ")
    }
}

impl Scenario {
    /// The scenario of that name.
    pub(crate) fn named(name: &str) -> &'static Self {
        SCENARIOS.iter().find(|scenario| scenario.name == name).expect("a scenario has this name")
    }

    /// With frame pointers, as perf's: perf 6.1 divides trees of call chains with addresses that
    /// have no symbol, of which whole chains of stripped programs have many.
    fn flags(&self, tool: &Tool) -> Vec<&'static str> {
        let mut flags: Vec<_> = self.flags.split(' ').collect();
        if tool.name == "kymo" && !flags.contains(&"--call-graph") {
            flags.extend(["--call-graph", "fp"]);
        }
        flags
    }

    /// Records with `tool` into the tests' own folder, where a failed test leaves the file to be
    /// looked at.
    pub(crate) fn record(&self, tool: &Tool) -> Recording {
        record(tool, self.name, &self.flags(tool), self.target)
    }

    /// Records in pipe mode (`-o -`) into a file.
    pub(crate) fn record_pipe(&self, tool: &Tool) -> Recording {
        let path = folder(tool, &format!("{}-pipe", self.name)).join("perf.data");
        // The target's own output must not land in the stream.
        let quiet = ["sh", "-c", "exec \"$@\" >/dev/null", "sh"];
        let arguments =
            [&["record", "-o", "-"], &self.flags(tool)[..], &["--"], &quiet, self.target].concat();
        let mut command = tool.command(&arguments);
        command.stdout(Stdio::from(File::create(&path).expect("the recording can be created")));
        let said = run_beside_others(&mut command).ends(0);
        Recording { path, command: said.command }
    }
}

/// Runs a recorder of the machine while no other test of this process records.
pub(crate) fn run_alone(command: &mut std::process::Command) -> crate::tools::Said {
    let _alone = MACHINE.write().expect("no one panics while holding it");
    run(command)
}

/// Runs a recorder of less than the machine while no other test records the machine.
pub(crate) fn run_beside_others(command: &mut std::process::Command) -> crate::tools::Said {
    let _with_others = MACHINE.read().expect("no one panics while holding it");
    run(command)
}

/// Records `target` with `tool` and `flags`. Python's functions are left out: perf has no names of
/// them.
pub(crate) fn record(tool: &Tool, name: &str, flags: &[&str], target: &[&str]) -> Recording {
    let folder = folder(tool, name);
    let path = folder.join("perf.data");
    let output = path.to_str().expect("the tests' folder has a plain name");
    let native: &[&str] = if tool.name == "kymo" { &["--no-python"] } else { &[] };
    let arguments = [&["record", "-o", output], native, flags, &["--"], target].concat();
    let mut command = tool.command(&arguments);
    command.current_dir(&folder);
    let said = if flags.iter().any(|flag| ["-a", "-C"].contains(flag)) {
        run_alone(&mut command)
    } else {
        run_beside_others(&mut command)
    }
    .ends(0);
    Recording { path, command: said.command }
}

/// A fresh folder for one recording.
fn folder(tool: &Tool, name: &str) -> PathBuf {
    fresh_folder(&format!("{}-{name}", tool.name))
}

/// An empty folder among the tests' own, where a failed test leaves its files to be looked at.
pub(crate) fn fresh_folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("suite").join(name);
    match std::fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => panic!("{}: {error}", folder.display()),
        _ => {}
    }
    std::fs::create_dir_all(&folder).expect("the tests' folder is writable");
    folder
}
