//! [`CgroupCounter`]: counts what happens in a cgroup without an event of that cgroup, so that context
//! switches cost nothing.
//!
//! Events of tasks and of cgroups are looked after at every switch, whatever they count; that alone
//! costs a switch 5 to 14 % (`docs/internals/design/0004-contexts-and-stat.md`). Here events are
//! open on CPUs, where they stay, and only for what happens seldom (page faults, migrations): each
//! hit runs a program that adds one if the cgroup is ours. Switches the kernel counts in each task
//! anyway; a program at the exit of a thread adds up what it has.
//!
//! ```text
//!  task_rename --------> rename: is it the child, the first time (it renames itself)? then MARK = its times
//!                                is it the child, and its exec? then BEGUN, BASE = its switches, AT_EXEC = its times
//!  sched_process_exit -> exit:   in our cgroup?                 then SWITCHES += its switches, EXITS += 1
//!  page-faults on CPU -> hit:    in our cgroup, and BEGUN?      then HITS[event] += 1     (no sample is written)
//!  a tracepoint ------> hit:    the same
//! ```
//! Words are per CPU and in lines of their own, except for those of the child; we read them without
//! a system call.
//!
//! The kernel accounts CPU time when it looks at a task (at a tick, at a switch, or when asked),
//! and a program cannot ask. So the child, before its exec, asks for its CPU time, which is a look,
//! and renames itself at once ([`crate::workload::Workload::prepare_marking`]). From there to the
//! exec its CPU time is what has passed, less what it was ready and waited for a CPU (an exec often
//! moves to another).
use super::attach::{attach_raw_program, load};
use super::available::{cgroups_are_the_kernels, ids_are_the_kernels};
use super::error::BpfError;
use super::insn::{Assembler, BpfHelper, FP, Label, R0, R1, R3, R6, R7, R8};
use super::program::Program;
use super::sys::{self, MapFd, ProgramKind, SharedWords};
use super::types::{Member, TaskTypes};
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::atomic::Ordering;

/// Words of a line: one for switches, one for exits, the rest for hits.
const LINE: u32 = 8;
/// A line has `1 << LINE_BITS` words.
const LINE_BITS: i32 = 3;
/// Among the first words: the command has executed.
const BEGUN: u32 = 0;
/// Among the first words: how often it had been switched away from before.
const BASE: u32 = 1;
/// Among the first words: the child's [`Times`] when it renamed itself, and at its exec.
const MARK: u32 = 2;
const AT_EXEC: u32 = 8;
/// The line of CPU 0; the child's words are before it.
const CPU_0: u32 = 2;
/// In the line of a CPU.
const SWITCHES: u32 = 0;
const EXITS: u32 = 1;
const HITS: u32 = 2;

/// On the stack of the programs.
const KEY: i16 = -4;
const FIRST: i16 = -16;
const SECOND: i16 = -24;

/// What was counted until now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupCounts {
    /// The command has executed, so that counts have begun.
    pub begun: bool,
    /// Switches away from threads that have exited, without the last one of each, by which it left
    /// for good.
    pub switches: u64,
    /// Switches of the command's process before its exec; they are in its own count, too.
    pub base: u64,
    /// CPU time of the command's process before its exec, ns: what an event with `enable_on_exec`
    /// would leave out.
    pub before_exec_ns: u64,
    /// Threads that have exited.
    pub exits: u64,
    /// Hits of the events, in the order of their numbers.
    pub hits: Vec<u64>,
}

/// Counts in a cgroup. Dropping it ends that.
#[derive(Debug)]
pub struct CgroupCounter {
    // First, so that they are detached before the memory goes.
    _links: Vec<OwnedFd>,
    /// One for each number of hits that are an event's.
    programs: Vec<Option<OwnedFd>>,
    words: SharedWords,
    cpus: u32,
}

/// Which cgroup, as programs know it.
#[derive(Clone, Copy, Debug)]
struct CgroupId {
    id: u64,
    level: i32,
}

impl CgroupCounter {
    /// At most so many events.
    pub(crate) const EVENTS: usize = (LINE - HITS) as usize;

    /// Begins to count in the cgroup at `path` (its directory) and below, from the exec of `child`
    /// on, which was made by [`crate::workload::Workload::prepare_marking`]. Each of `hits` is a
    /// tracepoint, whose hits are counted from now on, or `None` for an event that will get the
    /// program of this number.
    ///
    /// # Errors
    /// [`BpfError`]: why it is not possible here. Cgroups must be those of the unified hierarchy, seen from its top.
    pub fn start(path: &Path, child: i32, hits: &[Option<CString>]) -> Result<CgroupCounter, BpfError> {
        ids_are_the_kernels().map_err(BpfError::Unavailable)?;
        let unseen = |cause| BpfError::Map { what: "counts", entries: 0, cause };
        let whose = find(path).map_err(unseen)?;
        let cpus = crate::sys::possible_cpus();
        let entries = (CPU_0 + cpus) * LINE;
        let (map, words) = sys::create_shared(entries, sys::name("kymo_tally"))
            .map_err(|cause| BpfError::Map { what: "counts", entries, cause })?;
        let types = TaskTypes::load().map_err(BpfError::Types)?;
        let mut links = Vec::new();
        let points: [(&'static str, &CStr, Program); 2] = [
            ("kymo_tally_exec", c"task_rename", rename(&map, whose, child)),
            ("kymo_tally_exit", c"sched_process_exit", exit(&map, whose)),
        ];
        for (name, point, program) in points {
            links.push(attach_raw_program(name, point, &program, Some(&types))?.0);
        }
        let mut programs = Vec::new();
        for (number, point) in (0..).zip(hits.iter().take(CgroupCounter::EVENTS)) {
            const NAME: &str = "kymo_tally_hit";
            let program = hit(&map, whose, number);
            programs.push(match point {
                Some(point) => {
                    links.push(attach_raw_program(NAME, point, &program, None)?.0);
                    None
                }
                None => Some(load(ProgramKind::PerfEvent, NAME, &program, None)?),
            });
        }
        Ok(CgroupCounter { _links: links, programs, words, cpus })
    }

    /// The program of an event: give it to events on every CPU that sample each hit
    /// ([`crate::sys::Kernel::set_bpf`]); they write no sample.
    pub(crate) fn program(&self, event: usize) -> Option<BorrowedFd<'_>> {
        self.programs.get(event)?.as_ref().map(AsFd::as_fd)
    }

    /// All events have their programs and keep them.
    pub(crate) fn bound(&mut self) {
        self.programs.clear();
    }

    /// What was counted until now.
    pub fn read(&self) -> CgroupCounts {
        // Relaxed: counters; a reader that wants switches and exits to fit reads twice and compares
        // the exits.
        let word = |at: u32| self.words.words()[at as usize].load(Ordering::Relaxed);
        let sum = |slot: u32| {
            (0..self.cpus).map(|cpu| word((CPU_0 + cpu) * LINE + slot)).fold(0, u64::wrapping_add)
        };
        CgroupCounts {
            begun: word(BEGUN) != 0,
            switches: sum(SWITCHES),
            base: word(BASE),
            before_exec_ns: Times::from(word, AT_EXEC).cpu_since(&Times::from(word, MARK)),
            exits: sum(EXITS),
            hits: (HITS..LINE).map(sum).collect(),
        }
    }
}

/// The times of a task, as a program finds them, in the order of their words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Times {
    now_ns: u64,
    /// Up to the scheduler's last look.
    cpu_ns: u64,
    waited_ns: u64,
    /// How often it has slept.
    slept: u64,
}

impl Times {
    const MEMBERS: [Member; 3] = [Member::CpuTime, Member::Waited, Member::Voluntary];

    fn from(word: impl Fn(u32) -> u64, at: u32) -> Times {
        Times { now_ns: word(at), cpu_ns: word(at + 1), waited_ns: word(at + 2), slept: word(at + 3) }
    }

    /// The CPU time now, if it was right at the mark. If the task has slept since, up to the
    /// scheduler's last look only.
    fn cpu_since(&self, mark: &Times) -> u64 {
        if self.slept != mark.slept {
            return self.cpu_ns;
        }
        let passed_ns = self.now_ns.saturating_sub(mark.now_ns);
        let waited_ns = self.waited_ns.saturating_sub(mark.waited_ns);
        self.cpu_ns.max(mark.cpu_ns.saturating_add(passed_ns.saturating_sub(waited_ns)))
    }
}

/// The id and the level of a cgroup of the unified hierarchy.
fn find(path: &Path) -> io::Result<CgroupId> {
    let stranger = |words: &'static str| io::Error::new(io::ErrorKind::Unsupported, words);
    if !cgroups_are_the_kernels() {
        return Err(stranger("this process is in a cgroup namespace, so its cgroups are not the kernel's"));
    }
    if !path.join("cgroup.events").exists() {
        return Err(stranger("the cgroup is of an old hierarchy"));
    }
    // The hierarchy's top is the directory above which there is none of it.
    let is_cgroup = |path: &Path| path.join("cgroup.procs").exists();
    let level = path.ancestors().skip(1).take_while(|above| is_cgroup(above)).count();
    Ok(CgroupId { id: std::fs::metadata(path)?.ino(), level: level as i32 })
}

impl Assembler {
    /// on to `end` unless the running task is in the cgroup; R6 stays
    fn only_in(&mut self, whose: CgroupId, end: Label) {
        let ours = self.label();
        self.mov_imm(R1, whose.level);
        self.call(BpfHelper::AncestorCgroupId);
        self.mov_imm64(R1, whose.id);
        self.jump_if_same(R0, R1, ours);
        self.jump(end);
        self.place(ours);
    }

    /// the word of this slot in the line of this CPU += R7
    fn add_to(&mut self, map: &MapFd, slot: u32) {
        let beyond = self.label();
        self.call(BpfHelper::CpuNumber);
        self.add_imm(R0, CPU_0 as i32);
        self.shift_left_imm(R0, LINE_BITS);
        self.add_imm(R0, slot as i32);
        self.store32(FP, KEY, R0);
        self.look_up(map.number(), KEY, beyond); // no such CPU
        self.atomic_add64(R0, 0, R7);
        self.place(beyond);
    }

    /// R0 = the address of one of the first words
    fn word(&mut self, map: &MapFd, word: u32, end: Label) {
        self.store32_imm(FP, KEY, word as i32);
        self.look_up(map.number(), KEY, end); // never: the verifier wants it asked
    }

    /// the words from this one on = the times of the task at R8
    fn times(&mut self, map: &MapFd, at: u32, end: Label, wanted: &mut Vec<(usize, Member)>) {
        self.call(BpfHelper::Now);
        self.mov(R7, R0);
        self.word(map, at, end);
        self.store64(R0, 0, R7);
        for (word, member) in (at + 1..).zip(Times::MEMBERS) {
            self.mov(R3, R8);
            self.read_member(FIRST, 8, member, end, wanted); // never: the task is there
            self.word(map, word, end);
            self.load64(R1, FP, FIRST);
            self.store64(R0, 0, R1);
        }
    }

    /// R7 = switches of the task at R8
    fn switches(&mut self, unread: Label, wanted: &mut Vec<(usize, Member)>) {
        self.mov(R3, R8);
        self.read_member(FIRST, 8, Member::Voluntary, unread, wanted); // never: the task is there
        self.mov(R3, R8);
        self.read_member(SECOND, 8, Member::Involuntary, unread, wanted);
        self.load64(R7, FP, FIRST);
        self.load64(R1, FP, SECOND);
        self.add(R7, R1);
    }
}

/// Runs at each hit of an event, in the task that made it.
fn hit(map: &MapFd, whose: CgroupId, event: u32) -> Program {
    let mut a = Assembler::new();
    let end = a.label();
    a.only_in(whose, end);
    a.word(map, BEGUN, end);
    a.load64(R0, R0, 0);
    a.jump_if(R0, 0, end); // before the exec
    a.mov_imm(R7, 1);
    a.add_to(map, HITS + event);
    a.place(end);
    a.mov_imm(R0, 0); // no sample
    a.exit();
    a.finish().into()
}

/// Runs in a task that is renamed, which an exec does just behind the point where events with
/// `enable_on_exec` begin to count.
fn rename(map: &MapFd, whose: CgroupId, child: i32) -> Program {
    let (mut a, mut wanted) = (Assembler::new(), Vec::new());
    let end = a.label();
    a.mov(R6, R1); // R6 = the context
    a.call(BpfHelper::CurrentPidTgid);
    a.shift_right_imm(R0, 32);
    a.jump_unless(R0, child, end); // not the child
    a.only_in(whose, end);
    a.load64(R8, R6, 0); // R8 = the task
    let exec = a.label();
    a.word(map, MARK, end);
    a.load64(R1, R0, 0);
    a.jump_unless(R1, 0, exec);
    a.times(map, MARK, end, &mut wanted);
    a.jump(end);
    a.place(exec);
    a.word(map, BEGUN, end);
    a.load64(R1, R0, 0);
    a.jump_unless(R1, 0, end); // a later one
    a.times(map, AT_EXEC, end, &mut wanted);
    a.switches(end, &mut wanted);
    a.word(map, BASE, end);
    a.store64(R0, 0, R7);
    a.word(map, BEGUN, end); // last, for who sees it looks at the others
    a.store64_imm(R0, 0, 1);
    a.show(end);
    Program { wanted, ..a.finish().into() }
}

/// Runs in a thread that exits.
fn exit(map: &MapFd, whose: CgroupId) -> Program {
    let (mut a, mut wanted) = (Assembler::new(), Vec::new());
    let end = a.label();
    a.mov(R6, R1); // R6 = the context
    a.only_in(whose, end);
    a.load64(R8, R6, 0); // R8 = the task
    a.switches(end, &mut wanted);
    a.add_to(map, SWITCHES);
    a.mov_imm(R7, 1);
    a.add_to(map, EXITS);
    a.show(end);
    Program { wanted, ..a.finish().into() }
}

#[cfg(test)]
mod tests {
    use super::Times;

    /// Checks the CPU time at the exec: what has passed since the mark, less waiting for a CPU;
    /// never less than the scheduler knows; and only what it knows where the task has slept.
    #[test]
    fn times() {
        let mark = Times { now_ns: 1000, cpu_ns: 50, waited_ns: 7, slept: 1 };
        let later = Times { now_ns: 1300, cpu_ns: 60, ..mark };
        assert_eq!(later.cpu_since(&mark), 350);
        assert_eq!(Times { waited_ns: 107, ..later }.cpu_since(&mark), 250);
        assert_eq!(Times { cpu_ns: 400, ..later }.cpu_since(&mark), 400);
        assert_eq!(Times { slept: 2, ..later }.cpu_since(&mark), 60);
        assert_eq!(
            Times { now_ns: 1, waited_ns: u64::MAX, ..later }.cpu_since(&mark),
            60,
            "clocks that go back"
        );
    }
}
