//! Verbs of perf that kymo does not have, and what to use instead.

/// perf's verb, and what does its work.
const INSTEAD: [(&str, &str); 12] = [
    (
        "c2c",
        "`kymo watch` shows who reads and writes a variable; use `perf c2c` where the hardware samples memory",
    ),
    ("config", "kymo has no configuration file: every option is on the command line"),
    (
        "ftrace",
        "`kymo probe` times functions of programs; use `perf ftrace` or `trace-cmd` for functions of the kernel",
    ),
    ("iostat", "`kymo stat -e` counts uncore events where the machine has them"),
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
    ("test", "`make test` in kymo's sources runs its tests; `make perf-tests` runs perf's with kymo"),
    ("timechart", "`kymo report --html FILE` has a timeline of the threads"),
    ("trace", "`kymo record -e 'syscalls:sys_enter_*'` and `kymo script` have the system calls"),
];

/// What to use instead of a verb that perf has and kymo has not.
pub(crate) fn of(verb: &str) -> Option<&'static str> {
    INSTEAD.iter().find(|(name, _)| *name == verb).map(|(_, instead)| *instead)
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
