//! The events that have a name of their own in perf's grammar, with all spellings.

/// Which of the kernel's fixed tables an event is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KnownEventKind {
    /// Counted by the CPU's PMU (`PERF_TYPE_HARDWARE`).
    Hardware,
    /// Counted by the kernel (`PERF_TYPE_SOFTWARE`).
    Software,
    /// Measured by the tool itself, so there is nothing to record.
    Tool,
}

/// An event with a name of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownEvent {
    /// Which table.
    pub kind: KnownEventKind,
    /// The number in the table.
    pub config: u64,
    /// The name.
    pub name: &'static str,
    /// A second spelling, if there is one.
    pub alias: Option<&'static str>,
    /// What it counts, one line.
    pub description: &'static str,
}

const fn known(
    kind: KnownEventKind,
    config: u64,
    name: &'static str,
    alias: Option<&'static str>,
    description: &'static str,
) -> KnownEvent {
    KnownEvent { kind, config, name, alias, description }
}

use KnownEventKind::{Hardware, Software, Tool};

#[rustfmt::skip] // A table: one event, one line.
const KNOWN: &[KnownEvent] = &[
    known(Hardware, 0, "cycles", Some("cpu-cycles"), "core clock cycles while running"),
    known(Hardware, 1, "instructions", None, "instructions retired"),
    known(Hardware, 2, "cache-references", None, "accesses to the last-level cache"),
    known(Hardware, 3, "cache-misses", None, "misses of the last-level cache"),
    known(Hardware, 4, "branches", Some("branch-instructions"), "branch instructions retired"),
    known(Hardware, 5, "branch-misses", None, "branches predicted wrongly"),
    known(Hardware, 6, "bus-cycles", None, "bus clock cycles"),
    known(Hardware, 7, "stalled-cycles-frontend", Some("idle-cycles-frontend"), "cycles without an instruction to issue"),
    known(Hardware, 8, "stalled-cycles-backend", Some("idle-cycles-backend"), "cycles waiting for data or execution units"),
    known(Hardware, 9, "ref-cycles", None, "cycles at constant frequency while running"),
    known(Software, 0, "cpu-clock", None, "time on a CPU, by a timer per CPU, ns"),
    known(Software, 1, "task-clock", None, "time on a CPU, by the task's own clock, ns"),
    known(Software, 2, "page-faults", Some("faults"), "page faults of both kinds"),
    known(Software, 3, "context-switches", Some("cs"), "switches from one task to another"),
    known(Software, 4, "cpu-migrations", Some("migrations"), "moves of a task to another CPU"),
    known(Software, 5, "minor-faults", None, "page faults served without I/O"),
    known(Software, 6, "major-faults", None, "page faults that waited for I/O"),
    known(Software, 7, "alignment-faults", None, "unaligned accesses that the kernel fixed up"),
    known(Software, 8, "emulation-faults", None, "instructions that the kernel emulated"),
    known(Software, 9, "dummy", None, "counts nothing; carries mmap, comm and fork records"),
    known(Software, 10, "bpf-output", None, "data that a BPF program writes into the ring"),
    known(Software, 11, "cgroup-switches", None, "switches to a task of another cgroup"),
    known(Tool, 0, "duration_time", None, "wall-clock time of the run"),
    known(Tool, 1, "user_time", None, "CPU time in user mode"),
    known(Tool, 2, "system_time", None, "CPU time in the kernel"),
];

/// Every event with a name of its own, hardware first.
pub fn known_events() -> &'static [KnownEvent] {
    KNOWN
}

/// The event of that name or alias. Case matters, as in perf.
pub(crate) fn find(name: &str) -> Option<&'static KnownEvent> {
    KNOWN.iter().find(|known| known.name == name || known.alias == Some(name))
}

/// All names and aliases.
pub(crate) fn spellings() -> impl Iterator<Item = &'static str> {
    KNOWN.iter().flat_map(|known| std::iter::once(known.name).chain(known.alias))
}
