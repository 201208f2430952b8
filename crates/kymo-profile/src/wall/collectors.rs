//! Threads of a Java virtual machine that collect garbage, by their names.
use super::{State, ThreadTime, Wall};
use crate::timeline::Modules;

/// What the names begin with of HotSpot's threads that collect, and of the one that stops all
/// others for it. The kernel keeps 15 bytes of a name.
const COLLECTORS: [&str; 17] = [
    "GC Thread#",
    "ParGC Thread#",
    "Gang worker#",
    "VM Thread",
    "G1 ",
    "CMS ",
    "Concurrent Mark",
    "Shenandoah ",
    "ShenWorker",
    "ZDirector",
    "ZDriver",
    "ZWorker",
    "ZStat",
    "ZUncommitter",
    "ZUnmapper",
    "XDriver",
    "XWorker",
];

/// The library that a virtual machine of Java is.
const MACHINE: &str = "libjvm.so";

/// Whether a virtual machine of Java was recorded: else these names mean nothing.
pub(super) fn may_be_there(modules: &Modules) -> bool {
    modules.iter().any(|(_, module)| module.short_name == MACHINE)
}

pub(super) fn is_name(name: &str) -> bool {
    COLLECTORS.iter().any(|begin| name.starts_with(begin))
}

impl Wall {
    /// Whether a thread collects the garbage of a Java virtual machine, by its name.
    pub fn is_collector(&self, tid: i32) -> bool {
        self.has_collectors && is_name(&self.thread_name(tid))
    }

    /// What a collector's wait is for: its threads want no lock of the program.
    pub(super) fn collector_state(&self, tid: i32, state: State, is_futex: bool) -> State {
        match state {
            State::Lock if self.is_collector(tid) => State::Condition,
            State::Unknown if is_futex && self.is_collector(tid) => State::Condition,
            _ => state,
        }
    }

    /// The threads of collectors, and the others.
    pub(super) fn divide_collectors(&self, threads: Vec<ThreadTime>) -> (Vec<ThreadTime>, Vec<ThreadTime>) {
        threads.into_iter().partition(|thread| self.is_collector(thread.thread.1))
    }
}

/// The time of several threads as that of one; `None`: there are none.
pub(super) fn together(threads: &[ThreadTime]) -> Option<ThreadTime> {
    let (first, others) = threads.split_first()?;
    let mut all = first.clone();
    for thread in others {
        State::ALL.into_iter().for_each(|state| all.add(state, thread.in_state(state)));
        all.idle_ns = all.idle_ns.saturating_add(thread.idle_ns);
        all.waits = all.waits.saturating_add(thread.waits);
        all.preemptions = all.preemptions.saturating_add(thread.preemptions);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks names as they were seen under several collectors, and that others are none.
    #[test]
    fn names() {
        let collectors = ["GC Thread#0", "G1 Main Marker", "G1 Conc#0", "VM Thread", "ZWorkerYoung#1"];
        assert!(collectors.into_iter().all(is_name));
        let others = ["java", "VM Periodic Tas", "C2 CompilerThre", "pool-1-thread-1", "G1"];
        assert!(!others.into_iter().any(is_name));
    }

    /// Checks that the sum of threads is the sum of their states.
    #[test]
    fn sums() {
        let thread = |ran, idle_ns| {
            let mut thread = ThreadTime { idle_ns, waits: 2, ..ThreadTime::default() };
            thread.add(State::Running, ran);
            thread
        };
        let all = together(&[thread(3, 10), thread(4, 20)]).unwrap();
        assert_eq!((all.in_state(State::Running), all.idle_ns, all.waits), (7, 30, 4));
        assert_eq!(together(&[]), None);
    }
}
