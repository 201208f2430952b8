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
    /// Flags of `record`.
    pub(crate) flags: &'static [&'static str],
    /// The program and its arguments.
    pub(crate) target: &'static [&'static str],
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

/// Every recording that both tools must make alike and read alike.
pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario { name: "threads", needs: &[], flags: &["-F", "999", "-g", "-e", "cpu-clock"], target: THREADS },
    Scenario { name: "fork_exec", needs: &[], flags: &["-F", "999", "-g", "-e", "cpu-clock"], target: FORKS },
    Scenario {
        name: "dlopen",
        needs: &[Need::Program("python3")],
        flags: &["-F", "999", "-g", "-e", "cpu-clock"],
        target: DLOPEN,
    },
    Scenario {
        name: "tracepoint_raw",
        needs: &[Need::Root, Need::Tracepoints],
        flags: &["-c", "1", "-g", "-R", "-e", "sched:sched_switch", "-e", "sched:sched_wakeup"],
        target: SWITCHES,
    },
    Scenario {
        name: "dwarf",
        needs: &[Need::Program("python3")],
        flags: &["-F", "199", "--call-graph", "dwarf,4096", "-e", "cpu-clock:u"],
        target: DLOPEN,
    },
    Scenario {
        name: "group",
        needs: &[Need::Program("python3")],
        flags: &["-F", "999", "-e", "{cpu-clock,page-faults,context-switches}:S"],
        target: DLOPEN,
    },
    Scenario {
        name: "several_events",
        needs: &[Need::Program("python3")],
        flags: &["-F", "999", "-g", "-e", "cpu-clock", "-e", "page-faults", "-e", "context-switches"],
        target: DLOPEN,
    },
    Scenario {
        name: "compressed",
        needs: &[],
        flags: &["-F", "999", "-g", "-z", "-e", "cpu-clock"],
        target: FORKS,
    },
    Scenario {
        name: "compressed_dwarf",
        needs: &[Need::Program("python3")],
        flags: &["-F", "199", "--call-graph", "dwarf", "-z", "-e", "cpu-clock:u"],
        target: DLOPEN,
    },
    Scenario {
        name: "system_wide",
        needs: &[Need::Root],
        flags: &["-a", "-F", "999", "-g", "-e", "cpu-clock"],
        target: THREADS,
    },
    Scenario {
        name: "system_wide_switches",
        needs: &[Need::Root, Need::Tracepoints],
        flags: &["-a", "-c", "1", "-g", "-e", "sched:sched_switch"],
        target: SWITCHES,
    },
    Scenario {
        name: "user_only",
        needs: &[Need::Program("python3")],
        flags: &["-F", "999", "-g", "-e", "cpu-clock:u"],
        target: COMPUTE,
    },
    Scenario {
        name: "no_call_chains",
        needs: &[Need::Program("python3")],
        flags: &["-F", "999", "-e", "cpu-clock"],
        target: DLOPEN,
    },
    Scenario {
        name: "data_addresses",
        needs: &[Need::Program("python3")],
        flags: &["-c", "1", "-d", "-g", "-e", "page-faults"],
        target: DLOPEN,
    },
    Scenario {
        name: "per_thread",
        needs: &[Need::Program("python3")],
        flags: &["--per-thread", "-F", "999", "-g", "-e", "cpu-clock"],
        target: COMPUTE,
    },
    Scenario {
        name: "not_inherited",
        needs: &[],
        flags: &["-i", "-F", "999", "-g", "-e", "cpu-clock"],
        target: FORKS,
    },
    Scenario {
        name: "switch_events",
        needs: &[Need::Root],
        flags: &["--switch-events", "-F", "999", "-g", "-e", "cpu-clock"],
        target: THREADS,
    },
    Scenario {
        name: "monotonic_clock",
        needs: &[],
        flags: &["-k", "CLOCK_MONOTONIC", "-F", "999", "-g", "-e", "cpu-clock"],
        target: FORKS,
    },
    Scenario {
        name: "perf_map",
        needs: &[Need::Program("python3")],
        flags: &["-F", "999", "-g", "-e", "cpu-clock"],
        target: JIT,
    },
];

/// Held while recording, so that a recording of the whole machine does not see the compilers of other tests: what they run
/// is much for perf to read. Nor do newer perfs, which ask for build ids, then mark the mappings in recordings by older ones
/// (see `kymo_data::holds_build_id`).
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

    /// The option of `report` that shows each event of a group by itself; see `interop::complaints`. Not for streams: perf 6.1 obeys
    /// it before it has read their events, and then crashes on some, its own among them.
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

    /// Records with `tool` into the tests' own folder, where a failed test leaves the file to be looked at.
    pub(crate) fn record(&self, tool: &Tool) -> Recording {
        record(tool, self.name, self.flags, self.target)
    }

    /// Records in pipe mode (`-o -`) into a file.
    pub(crate) fn record_pipe(&self, tool: &Tool) -> Recording {
        let path = folder(tool, &format!("{}-pipe", self.name)).join("perf.data");
        // The target's own output must not land in the stream.
        let quiet = ["sh", "-c", "exec \"$@\" >/dev/null", "sh"];
        let arguments = [&["record", "-o", "-"], self.flags, &["--"], &quiet, self.target].concat();
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

/// Records `target` with `tool` and `flags`.
pub(crate) fn record(tool: &Tool, name: &str, flags: &[&str], target: &[&str]) -> Recording {
    let folder = folder(tool, name);
    let path = folder.join("perf.data");
    let output = path.to_str().expect("the tests' folder has a plain name");
    let arguments = [&["record", "-o", output], flags, &["--"], target].concat();
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
