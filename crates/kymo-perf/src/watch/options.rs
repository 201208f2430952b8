//! Which processes to watch, and how.

/// How threads are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Breakpoints on every CPU; hits of other processes are dropped in the kernel.
    Filtered,
    /// Breakpoints of every thread, inherited by what it makes.
    Tasks,
}

/// Whom to watch, and how.
#[derive(Clone, Debug, Default)]
pub struct WatchOptions {
    /// The processes; their children, too.
    pub pids: Vec<i32>,
    /// The scope; `None`: filtered where permitted.
    pub scope: Option<Scope>,
    /// Call chains with each hit.
    pub callchains: bool,
    /// Whoever hits is stopped there (SIGSTOP). Only where filtered.
    pub stop: bool,
    /// Accesses by the kernel, too.
    pub with_kernel: bool,
    /// Bytes of each ring; `None`: by the number of CPUs.
    pub ring_bytes: Option<usize>,
}
