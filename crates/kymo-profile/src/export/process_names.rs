//! The names of processes: those of their main threads, sampled or not.
use super::model::Thread;
use crate::timeline::{Moment, Timeline};
use rustc_hash::FxHashMap;

/// By process number, and how many had it before, the name.
pub(super) type ProcessNames = FxHashMap<(i32, u32), String>;

/// The names of the processes of these threads. Where the recording has no name of the main thread,
/// as that of one thread may have none, the process has the name of its only thread, or none.
pub(super) fn process_names(threads: &[Thread], timeline: &Timeline) -> ProcessNames {
    let mut of_process: FxHashMap<(i32, u32), (&str, u32)> = FxHashMap::default();
    for thread in threads {
        let (comm, count) = of_process.entry((thread.pid, thread.earlier_processes)).or_default();
        (*comm, *count) = (&thread.comm, *count + 1);
    }
    let named = of_process.into_iter().filter_map(|((pid, earlier), (comm, threads))| {
        let main = main_thread(pid, earlier, timeline);
        let only = || (threads == 1 && !is_number(comm)).then(|| comm.to_owned());
        Some(((pid, earlier), main.or_else(only)?))
    });
    named.collect()
}

/// The name of a process's main thread, its last one.
fn main_thread(pid: i32, earlier: u32, timeline: &Timeline) -> Option<String> {
    let reuses = timeline.reuses(pid);
    let name = match reuses.is_empty() {
        true => timeline.comm(timeline.last_comm(pid)),
        false => timeline.comm_before(pid, pid, reuses.get(earlier as usize).copied().unwrap_or(Moment::END)),
    };
    (!is_number(&name)).then(|| name.into_owned())
}

/// Whether a name is one that stands for none: `:` and the thread's number.
fn is_number(name: &str) -> bool {
    name.is_empty() || name.strip_prefix(':').is_some_and(|number| number.parse::<i32>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::{SideEvent, TimelineBuilder};

    fn comm(at_ns: u64, pid: i32, tid: i32, name: &str) -> (Moment, SideEvent) {
        let moment = Moment { time_ns: at_ns, position: at_ns };
        (moment, SideEvent::Comm { pid, tid, exec: false, name: name.as_bytes().to_vec() })
    }

    fn names(events: Vec<(Moment, SideEvent)>, threads: &[(i32, i32, &str)]) -> Vec<(i32, String)> {
        let timeline = TimelineBuilder::build(events, true);
        let thread = |(pid, tid, comm): &(i32, i32, &str)| Thread {
            pid: *pid,
            tid: *tid,
            comm: (*comm).to_owned(),
            ..Thread::default()
        };
        let threads: Vec<Thread> = threads.iter().map(thread).collect();
        let mut names: Vec<(i32, String)> =
            process_names(&threads, &timeline).into_iter().map(|((pid, _), name)| (pid, name)).collect();
        names.sort();
        names
    }

    /// Checks that a process has the name of its main thread where that was never sampled, also one
    /// that it got later, and never that of one of several others.
    #[test]
    fn a_process_is_not_one_of_its_threads() {
        let events = vec![
            comm(1, 7, 7, "pool"),
            comm(2, 7, 8, "worker-0"),
            comm(3, 7, 9, "worker-1"),
            comm(4, 20, 21, "io"),
            comm(5, 20, 22, "gc"),
            comm(6, 30, 31, "lonely"),
            comm(7, 40, 40, "sh"),
            comm(8, 40, 40, "nginx: master"),
        ];
        let threads = [
            (7, 8, "worker-0"),
            (7, 9, "worker-1"),
            (20, 21, "io"),
            (20, 22, "gc"),
            (30, 31, "lonely"),
            (40, 41, ":41"),
            (50, 51, ":51"),
        ];
        let expected = [(7, "pool"), (30, "lonely"), (40, "nginx: master")];
        assert_eq!(names(events, &threads), expected.map(|(pid, name)| (pid, name.to_owned())));
    }
}
