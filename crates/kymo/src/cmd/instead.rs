//! Verbs of perf and words for tasks that are no verbs of kymo, and what to use instead.
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

/// The word, and what does its work.
const INSTEAD: [(&str, &str); 26] = [
    ("attach", ATTACH),
    ("backtrace", STACKS),
    (
        "c2c",
        "`kymo watch` shows who reads and writes a variable; use `perf c2c` where the hardware samples memory",
    ),
    ("coredump", "`kymo stacks --core FILE` shows the threads of a core file"),
    ("config", "kymo has no configuration file: every option is on the command line"),
    ("flamegraph", "`kymo report --flamegraph FILE.svg` draws a recording of `kymo record`"),
    (
        "ftrace",
        "`kymo probe` times functions of programs; use `perf ftrace` or `trace-cmd` for functions of the kernel",
    ),
    ("gdb", STACKS),
    ("heap", HEAP),
    ("iostat", "`kymo stat -e` counts uncore events where the machine has them"),
    ("jstack", STACKS),
    ("kmem", "`kymo record -e 'kmem:*'` and `kymo script` have the events"),
    ("kvm", "`kymo record -e 'kvm:*'` has the exits; use `perf kvm` for guests"),
    (
        "kwork",
        "`kymo record -e 'irq:*' -e 'workqueue:*'` and `kymo script` have the events; `perf kwork` reads the recording",
    ),
    (
        "lock",
        "`kymo locks` shows the contended locks of programs; `kymo record -e lock:contention_begin -g` those of the kernel, and `perf lock` reads the recording",
    ),
    (
        "mem",
        "`kymo watch` shows who reads and writes a variable; use `perf mem` where the hardware samples memory",
    ),
    ("memory", HEAP),
    ("offcpu", WAITS),
    ("profile", "`kymo record` profiles a command (`-- COMMAND`) or a process (`-p PID`)"),
    ("pstack", STACKS),
    ("run", "`kymo record -- COMMAND` runs and records a command"),
    ("strace", TRACE),
    ("test", "`make test` in kymo's sources runs its tests; `make perf-tests` runs perf's with kymo"),
    ("timechart", "`kymo report --html FILE` has a timeline of the threads"),
    ("trace", TRACE),
    ("waits", WAITS),
];

const ATTACH: &str = "`kymo record -p PID` records what runs already, and `kymo top -p PID` shows it";
const HEAP: &str = "kymo has no profile of the heap; `kymo record -e page-faults` shows where memory is first \
                    touched, and `kymo probe libc:malloc` counts calls";
const STACKS: &str = "`kymo stacks -p PID` shows the stacks of all threads now";
const TRACE: &str = "`kymo record -e 'syscalls:sys_enter_*'` and `kymo script` have the system calls";
const WAITS: &str = "`kymo record --wall` records where threads wait, `kymo report --wall` shows it";

/// What to use instead of a word that is no verb.
pub(crate) fn of(verb: &str) -> Option<String> {
    let is_program = |file: Metadata| file.is_file() && file.mode() & 0o111 != 0;
    let is_path = verb.contains('/') && std::fs::metadata(verb).is_ok_and(is_program);
    let known = INSTEAD.iter().find(|(name, _)| *name == verb).map(|(_, instead)| (*instead).to_owned());
    known.or_else(|| is_path.then(|| format!("`kymo record -- {verb}` runs and records a program")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the table names no verb that kymo has.
    #[test]
    fn names_no_verb_of_kymo() {
        let command = crate::command();
        for (name, _) in INSTEAD {
            assert!(command.get_subcommands().all(|verb| verb.get_name() != name), "kymo has {name}");
        }
    }
}
