//! How events are bound to the tasks or CPUs that they observe.
//!
//! What each scope observes exactly, and what escapes it, is in
//! `docs/internals/design/0003-scopes.md`.
use std::fmt;

/// How events are bound to whom they observe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Everything that runs on some CPUs: one event per CPU (`-a`, `-C`).
    Cpus,
    /// One event and one ring per thread, on whatever CPU it runs (`--per-thread`).
    PerThread,
    /// The command runs in a cgroup of its own: one event per CPU, which counts while the cgroup
    /// runs there.
    Cgroup,
    /// One event per CPU, and a BPF program that drops the samples of everyone else in the kernel.
    Filtered,
    /// One event per task and CPU, which the kernel copies for every thread and child to come.
    Inherit,
    /// One event per task and CPU, for the tasks that exist.
    ThreadCpu,
}

impl Scope {
    /// Those that a user may ask for; of the others the target leaves no choice.
    pub const CHOICES: [Scope; 4] = [Scope::Cgroup, Scope::Filtered, Scope::Inherit, Scope::ThreadCpu];

    /// As users write it.
    pub fn name(self) -> &'static str {
        match self {
            Scope::Cpus => "cpus",
            Scope::PerThread => "per-thread",
            Scope::Cgroup => "cgroup",
            Scope::Filtered => "filtered",
            Scope::Inherit => "inherit",
            Scope::ThreadCpu => "thread-cpu",
        }
    }

    /// The choice of this name.
    pub fn parse(name: &str) -> Option<Scope> {
        Scope::CHOICES.into_iter().find(|scope| scope.name() == name)
    }

    /// Whether events are opened per CPU, not per task.
    pub fn is_per_cpu(self) -> bool {
        matches!(self, Scope::Cpus | Scope::Cgroup | Scope::Filtered)
    }

    fn words(self) -> &'static str {
        match self {
            Scope::Cpus => "all that runs on the CPUs",
            Scope::PerThread => "threads, wherever they run",
            Scope::Cgroup => "the command's own cgroup, on each CPU",
            Scope::Filtered => "on each CPU, filtered by task in the kernel",
            Scope::Inherit => "tasks on each CPU, inherited by their children",
            Scope::ThreadCpu => "the threads that exist, on each CPU",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.words())
    }
}
