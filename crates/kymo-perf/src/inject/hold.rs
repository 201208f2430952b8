//! Stops all threads of a process but one while that one writes code. None is left inside of the
//! instructions that are written, and none notices.
//!
//! ```text
//!   list, seize            nobody stops yet
//!   interrupt all          from here on they stand still                       --.
//!   wait for each          until a list names nobody new                         |
//!   look at each           registers; what signals have interrupted, on stacks   |  stopped
//!   "held" ... "written"   the agent's thread writes                             |
//!   let those go whose calls `restart_syscall` goes on with, wait until they do   |
//!   let all others go                                                          --'
//! ```
//! The calling thread traces. When it ends, however it ends, the kernel lets go whoever is left.
//! All of this has a time limit: then all are let go, and the agent writes by traps, or leaves it
//! to the kernel's probes.
//!
//! # What a thread finds when it goes on
//! - It was computing: its registers, but for a place inside of a site, for which it goes on at the
//!   moved copy of the same instruction.
//! - It was in a system call that the kernel repeats after a stop: it is repeated.
//! - It was in one that the kernel ends with EINTR after a stop ([`was_interrupted_spuriously`]):
//!   the number that means "repeat, unless a signal's handler runs" is put in the place of that
//!   result, so the kernel decides when the thread goes on, as it does for other calls.
//! - It was in one that the kernel would go on with by `restart_syscall`, which a filter of system
//!   calls may forbid ([`restarts_by_another_call`]): the call itself is repeated where the thread
//!   has a filter. Where it has none, another thread may put one on that holds for all threads: so
//!   the others stand until it has made that call ([`restarting`]).
//! - It was stopped by SIGSTOP: it is, until SIGCONT.
//!
//! # Who cannot be held
//! A thread that waits for its child of `vfork`, or for a disk, does not stop before that is over:
//! all others are let go until it stops, and then interrupted again while it stands. A program that
//! executes another one ([`Reaper`]) is not held. A process that shares this one's memory without
//! being one of its threads is not seen, unless it is a child of `vfork`.
mod restarting;
mod stacks;

use super::code_writes::{self, CodeEdit, CodeWriter};
use super::reap::Reaper;
use super::restart::{REPEAT_UNLESS_HANDLED, restarts_by_another_call, was_interrupted_spuriously};
use super::seccomp;
use super::target::TargetProcess;
use crate::proc;
use crate::sys::ptrace::{PtraceStop, Traced};
use kymo_core::probe::wire::EDIT_BYTES;
use restarting::Restarting;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use stacks::Stacks;
use std::collections::HashSet;
use std::fs;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// How long nobody may stop until it is looked whether somebody cannot.
const LOOK: Duration = Duration::from_millis(5);
/// How long it may take on a machine that is busy.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a thread of this process that has held a thread may take until the kernel has let go of
/// that.
const OURS: Duration = Duration::from_millis(500);
/// How long who cannot stop is waited for while the others run.
const SLOW: Duration = Duration::from_secs(2);
/// All tries together take no longer.
const TOTAL: Duration = Duration::from_secs(8);
/// How long threads that were interrupted, and do not stop, are waited for before the kernel has to
/// let them go.
const LETTING_GO: Duration = Duration::from_millis(200);
/// How long all others stand until threads have gone on with their calls, and how long that is
/// waited for in all.
const RESTARTS_HELD: Duration = Duration::from_millis(50);
const RESTARTS: Duration = Duration::from_secs(1);
/// How often it is tried, and the longest pause in between.
const TRIES: u32 = 50;
const MOST_PAUSE: Duration = Duration::from_millis(200);
/// Lists until nobody new is found: each finds who was made while the one before was read.
const LISTS: usize = 1000;
/// More sites than any program has functions.
const MOST_SITES: u32 = 8 << 20;
/// Places where handlers return to: that of the C library, and those of who does without. Each word
/// of all stacks is compared with all of them.
const MOST_RESTORERS: usize = 8;
const JUMP_BYTES: u64 = 5;

/// What is about to be written, as the agent says it.
#[derive(Debug, Default)]
pub(super) struct PatchSites {
    sites: Vec<u64>,
    moves: Vec<[u64; 2]>,
    restorers: Vec<u64>,
    /// What is to be written for the agent, ascending.
    edits: Vec<CodeEdit>,
    /// Places that stay what they are in signals' frames: a handler may have read them already.
    kept: HashSet<u64>,
}

/// Where a thread may or may not stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PcRelation {
    Outside,
    Moves(u64),
    Inside,
}

impl PatchSites {
    /// Reads the lists in the process's memory.
    pub(super) fn read(
        target: &TargetProcess,
        said: &kymo_core::probe::wire::PatchSites,
    ) -> io::Result<PatchSites> {
        let read = |at: u64, all: usize| -> io::Result<Vec<u8>> {
            const PIECE: usize = 64 << 10;
            let mut bytes = Vec::new();
            // As it comes, not as it is claimed.
            while bytes.len() < all {
                let begin = bytes.len();
                bytes.resize((begin + PIECE).min(all), 0);
                target.read(at.wrapping_add(begin as u64), &mut bytes[begin..])?;
            }
            Ok(bytes)
        };
        let words = |at: u64, count: usize| -> io::Result<Vec<u64>> {
            let bytes = read(at, count * 8)?;
            Ok(bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect())
        };
        if said.sites.max(said.moves).max(said.edits) > MOST_SITES {
            return Err(io::Error::other("it names more sites than there can be"));
        }
        if said.restorers.len() > MOST_RESTORERS {
            return Err(io::Error::other("its handlers return to more places than those of any program"));
        }
        let sites = words(said.sites_at, said.sites as usize)?;
        let moves = words(said.moves_at, said.moves as usize * 2)?;
        let edits = CodeEdit::list(&read(said.edits_at, said.edits as usize * EDIT_BYTES as usize)?);
        let places = PatchSites::of(sites, moves.as_chunks().0.to_vec(), said.restorers.clone());
        Ok(PatchSites { edits, ..places })
    }

    /// What a tracer writes by itself. `moves`: pairs, where threads go on that stand inside;
    /// `kept`: those of their first addresses that are not changed in signals' frames.
    pub(super) fn to_write(
        mut edits: Vec<CodeEdit>,
        moves: Vec<[u64; 2]>,
        mut restorers: Vec<u64>,
        kept: HashSet<u64>,
    ) -> PatchSites {
        edits.sort_unstable_by_key(CodeEdit::at);
        restorers.truncate(MOST_RESTORERS);
        let sites = edits.iter().map(CodeEdit::at).collect();
        PatchSites { edits, kept, ..PatchSites::of(sites, moves, restorers) }
    }

    fn of(mut sites: Vec<u64>, mut moves: Vec<[u64; 2]>, restorers: Vec<u64>) -> PatchSites {
        sites.sort_unstable();
        moves.sort_unstable();
        PatchSites { sites, moves, restorers, ..PatchSites::default() }
    }

    fn stand(&self, at: u64) -> PcRelation {
        let before = self.sites.partition_point(|site| *site < at);
        let inside = before.checked_sub(1).is_some_and(|before| at - self.sites[before] < JUMP_BYTES);
        match self.moves.binary_search_by_key(&at, |pair| pair[0]) {
            _ if !inside => PcRelation::Outside,
            Ok(found) => PcRelation::Moves(self.moves[found][1]),
            Err(_) => PcRelation::Inside,
        }
    }
}

/// One held thread.
#[derive(Debug)]
struct HeldThread {
    traced: Traced,
    /// What it is given when it goes on: the signal that it has stopped before, or 0.
    signal: i32,
    /// It does, or is gone; otherwise it was interrupted and has not stopped yet.
    stands: bool,
    /// It goes on with `restart_syscall`.
    restarts: bool,
}

impl HeldThread {
    fn new(traced: Traced, stands: bool) -> HeldThread {
        HeldThread { traced, signal: 0, stands, restarts: false }
    }

    /// Waits until it stands still, but not for ever.
    fn wait(&mut self, limit: Duration) -> io::Result<()> {
        if let PtraceStop::Signal(signal) = self.traced.wait(limit)? {
            self.signal = signal;
        }
        self.stands = true;
        self.hide_the_stop();
        Ok(())
    }

    /// Takes an EINTR away that no signal has made, as soon as it stands: this process may end at
    /// any moment, and the program goes on with what the registers say then.
    fn hide_the_stop(&mut self) {
        // One that is gone needs nothing.
        let Ok(mut registers) = self.traced.registers() else { return };
        self.restarts = restarts_by_another_call(&registers);
        let is_forbidden = self.restarts && seccomp::is_filtered(self.traced.tid());
        if was_interrupted_spuriously(&registers) || is_forbidden {
            self.restarts = false;
            registers.rax = REPEAT_UNLESS_HANDLED as u64;
            _ = self.traced.set_registers(&registers);
        }
    }
}

/// Held threads. Dropping it lets them go.
#[derive(Debug)]
pub(super) struct HeldThreads {
    threads: Vec<HeldThread>,
    /// Since the first one was interrupted.
    since: Option<Instant>,
    /// When it is given up.
    until: Instant,
}

/// Why an attempt failed.
enum Failed {
    /// This thread does not stop now. Who has not stopped will be waited for.
    NotNow(i32),
    /// This one has stopped at a place where it cannot stay.
    Inside(i32),
    /// In words.
    Never(String),
}

impl Failed {
    fn thread(tid: i32, error: &io::Error) -> Failed {
        Failed::Never(format!("thread {tid}: {error}"))
    }
}

/// What became of a try, and how long threads stood still for it.
pub(super) struct Tried {
    pub(super) held: Result<HeldThreads, String>,
    /// In failed attempts.
    pub(super) stopped: Duration,
}

impl HeldThreads {
    /// Holds all threads of a process but one. `process` is its descriptor: nobody is changed who
    /// is another one by now, or another program.
    pub(super) fn all_but(target: &TargetProcess, process: &OwnedFd, one: i32, places: &PatchSites) -> Tried {
        HeldThreads::hold(target, process, Some(one), places)
    }

    /// Holds all threads of a process.
    pub(super) fn all(target: &TargetProcess, process: &OwnedFd, places: &PatchSites) -> Tried {
        HeldThreads::hold(target, process, None, places)
    }

    /// A thread that stands still already, which is the only one of its process.
    pub(super) fn of_stopped(thread: Traced) -> HeldThreads {
        HeldThreads {
            threads: vec![HeldThread::new(thread, true)],
            since: Some(Instant::now()),
            until: Instant::now() + TOTAL,
        }
    }

    /// The thread of [`HeldThreads::of_stopped`], which still stands.
    pub(super) fn into_stopped(mut self) -> Option<Traced> {
        self.threads.pop().map(|thread| thread.traced)
    }

    fn hold(target: &TargetProcess, process: &OwnedFd, one: Option<i32>, places: &PatchSites) -> Tried {
        // Others wait for this thread, which ends with the holding: it should not wait behind other
        // programs. Only root may.
        _ = rustix::process::setpriority_process(None, -20);
        let stacks = Stacks::of(target);
        let until = Instant::now() + TOTAL;
        let mut pause = Duration::from_millis(1);
        let mut stopped = Duration::ZERO;
        let mut last = 0;
        let mut kept = Vec::new();
        for _ in 0..TRIES {
            if Instant::now() >= until {
                break;
            }
            let mut held = HeldThreads { threads: std::mem::take(&mut kept), since: None, until };
            // Nobody but that one thread can execute another program from then on, and that lets
            // the others end.
            let is_same = |held: &HeldThreads| {
                let live = |thread: &&HeldThread| thread.stands && thread.traced.registers().is_ok();
                let one = one.or_else(|| Some(held.threads.iter().find(live)?.traced.tid()));
                match !has_ended(process) && one.is_some_and(|one| target.is_memory_of(one)) {
                    true => Ok(()),
                    false => Err(Failed::Never("it has ended, or executes another program".to_owned())),
                }
            };
            let stopped_all = held.stop_all(target, one).and_then(|()| is_same(&held));
            let attempt = stopped_all.and_then(|()| held.look(target, places, &stacks));
            match attempt {
                Ok(()) => return Tried { held: Ok(held), stopped },
                Err(Failed::Never(why)) => {
                    stopped += held.release();
                    return Tried { held: Err(why), stopped };
                }
                Err(Failed::Inside(tid)) => {
                    last = tid;
                    stopped += held.release();
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(MOST_PAUSE);
                }
                Err(Failed::NotNow(tid)) => {
                    last = tid;
                    let waiting = held.resume_stopped();
                    stopped += held.release();
                    // Who made the others wait stops first the next time.
                    kept = match wait_until_stopped(waiting, until) {
                        Ok(kept) => kept,
                        Err(why) => return Tried { held: Err(why), stopped },
                    };
                }
            }
        }
        let why = format!("thread {last} is never where it can be held");
        Tried { held: Err(why), stopped }
    }

    fn stop_all(&mut self, target: &TargetProcess, one: Option<i32>) -> Result<(), Failed> {
        let mut known: HashSet<i32> = self.threads.iter().map(|thread| thread.traced.tid()).collect();
        known.extend(one);
        let ends = Reaper::watch(target.pid);
        let mut started = false;
        for _ in 0..LISTS {
            if Instant::now() >= self.until {
                return Err(Failed::Never("its threads do not stop in time".to_owned()));
            }
            let tasks =
                proc::tasks(target.pid).map_err(|_| Failed::Never("the process is gone".to_owned()))?;
            if !started && one.is_some_and(|one| !tasks.contains(&one)) {
                return Err(Failed::Never("its writing thread is not among its threads".to_owned()));
            }
            let first = self.threads.len();
            ends.are_needed(true);
            let new: Vec<i32> = tasks.into_iter().filter(|tid| known.insert(*tid)).collect();
            for &tid in &new {
                if let Some(traced) = seize(target.pid, tid, self.until)? {
                    ends.also(tid);
                    self.threads.push(HeldThread::new(traced, false));
                }
            }
            if new.is_empty() {
                return Ok(());
            }
            ends.are_needed(false);
            if !started {
                (started, self.since) = (true, Some(Instant::now()));
            }
            // One that cannot be interrupted has ended.
            self.threads[first..].iter().for_each(|thread| _ = thread.traced.interrupt());
            let until = self.until.min(Instant::now() + STOP_TIMEOUT);
            for number in first..self.threads.len() {
                self.wait(target.pid, number, until)?;
            }
        }
        Err(Failed::Never("it makes new threads without end".to_owned()))
    }

    /// Waits for one that was interrupted.
    fn wait(&mut self, pid: i32, number: usize, until: Instant) -> Result<(), Failed> {
        let thread = &mut self.threads[number];
        let tid = thread.traced.tid();
        loop {
            match thread.wait(LOOK) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::TimedOut => match proc::state(pid, tid) {
                    // A first thread that has ended tells it when the last one has.
                    None | Some('Z' | 'X') => thread.stands = true,
                    Some('D') => return Err(Failed::NotNow(tid)),
                    Some(_) if Instant::now() >= until => return Err(Failed::NotNow(tid)),
                    Some(_) => continue,
                },
                Err(error) => return Err(Failed::thread(tid, &error)),
            }
            return Ok(());
        }
    }

    /// Leaves only those who do not stand still yet, and takes them out.
    fn resume_stopped(&mut self) -> Vec<HeldThread> {
        for thread in &mut self.threads {
            if !thread.stands {
                // Where this fails it runs.
                _ = thread.wait(Duration::ZERO);
            }
        }
        let (stand, waiting): (Vec<HeldThread>, Vec<HeldThread>) =
            self.threads.drain(..).partition(|thread| thread.stands);
        self.threads = stand;
        waiting
    }

    /// Puts each thread where it can go on after the writing.
    fn look(&self, target: &TargetProcess, places: &PatchSites, stacks: &Stacks) -> Result<(), Failed> {
        let mut pointers = Vec::new();
        for HeldThread { traced, .. } in &self.threads {
            let mut registers = match traced.registers() {
                Ok(registers) => registers,
                // Gone, or a first thread that has ended.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => continue,
                Err(error) => return Err(Failed::thread(traced.tid(), &error)),
            };
            match places.stand(registers.rip) {
                PcRelation::Outside => {}
                PcRelation::Moves(to) => {
                    registers.rip = to;
                    traced.set_registers(&registers).map_err(|error| Failed::thread(traced.tid(), &error))?;
                }
                PcRelation::Inside => return Err(Failed::Inside(traced.tid())),
            }
            pointers.push(registers.rsp);
        }
        if !places.moves.is_empty() && !places.restorers.is_empty() {
            stacks.look(target, pointers, places);
        }
        Ok(())
    }

    /// Writes for the agent what it cannot, and tells how; nothing without a thread that stands.
    pub(super) fn write(&self, target: &TargetProcess, places: &PatchSites) -> CodeWriter {
        if places.edits.is_empty() {
            return CodeWriter::Agent;
        }
        let stands = |thread: &&HeldThread| thread.stands && thread.traced.registers().is_ok();
        let Some(thread) = self.threads.iter().find(stands) else { return CodeWriter::Ptrace };
        // What could not be written, the agent sees.
        code_writes::write(target, &thread.traced, &places.edits)
    }

    /// Whether a thread stands in this range, or where it stands cannot be known.
    pub(super) fn any_in(&self, range: &Range<u64>) -> bool {
        self.threads.iter().any(|thread| match thread.traced.registers() {
            Ok(registers) => range.contains(&registers.rip),
            // One that is gone stands nowhere.
            Err(error) => error.raw_os_error() != Some(libc::ESRCH),
        })
    }

    /// The threads with their pointers (`fs`); without those that have none.
    pub(super) fn with_pointers(&self) -> impl Iterator<Item = (&Traced, u64)> {
        self.threads.iter().filter_map(|thread| {
            let registers = thread.traced.registers().ok()?;
            (registers.fs_base != 0).then_some((&thread.traced, registers.fs_base))
        })
    }

    /// Writes these, as [`HeldThreads::write`] does.
    pub(super) fn write_edits(&self, target: &TargetProcess, edits: Vec<CodeEdit>) -> CodeWriter {
        self.write(target, &PatchSites::to_write(edits, Vec::new(), Vec::new(), HashSet::new()))
    }

    /// Lets all go. How long they stood still.
    pub(super) fn release(&mut self) -> Duration {
        let (stand, others): (Vec<HeldThread>, Vec<HeldThread>) =
            self.threads.drain(..).partition(|thread| thread.stands);
        // A thread that goes on before a signal ends its call.
        let (restart, stand): (Vec<HeldThread>, Vec<HeldThread>) =
            stand.into_iter().partition(|thread| thread.restarts && thread.signal == 0);
        let mut restarting = Restarting::default();
        for HeldThread { traced, .. } in restart {
            restarting.let_go(traced);
        }
        if !stand.is_empty() {
            restarting.wait(RESTARTS_HELD);
        }
        for HeldThread { traced, signal, .. } in stand {
            // One that is gone need not go on.
            _ = traced.release(signal);
        }
        // A thread must stand still to be let go. All are interrupted before one is waited for.
        others.iter().for_each(|thread| _ = thread.traced.interrupt());
        let until = Instant::now() + LETTING_GO;
        for mut thread in others {
            match thread.wait(until.saturating_duration_since(Instant::now())) {
                Ok(()) => _ = thread.traced.release(thread.signal),
                // With the signal that it may stop before by then, and as soon as this thread ends.
                Err(_) => thread.traced.leave_to_the_kernel(),
            }
        }
        let stood = self.since.take().map_or(Duration::ZERO, |since| since.elapsed());
        restarting.wait(RESTARTS);
        stood
    }
}

/// Takes a thread; `None` if it runs no code any more.
fn seize(pid: i32, tid: i32, until: Instant) -> Result<Option<Traced>, Failed> {
    let until = until.min(Instant::now() + OURS);
    loop {
        let error = match Traced::seize(tid) {
            // Its number may be that of another process's thread by now.
            Ok(traced) => return Ok(traced.is_of(pid).then_some(traced)),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(None),
            Err(error) => error,
        };
        if let None | Some('Z' | 'X') = proc::state(pid, tid) {
            return Ok(None);
        }
        let status = proc::text(format!("/proc/{pid}/task/{tid}/status")).unwrap_or_default();
        let by = proc::field(&status, "TracerPid").filter(|by| *by != "0");
        // One that held it before is about to end.
        let ours = by.is_none_or(|by| {
            let status = proc::text(format!("/proc/{by}/status"));
            status.is_ok_and(|status| {
                proc::field(&status, "Tgid") == Some(std::process::id().to_string().as_str())
            })
        });
        if !ours || Instant::now() >= until {
            return Err(Failed::Never(match by {
                Some(by) => format!("process {by} traces its thread {tid} (a debugger?)"),
                None => format!("thread {tid} cannot be traced: {error}"),
            }));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits for threads that were interrupted while all others run.
fn wait_until_stopped(mut waiting: Vec<HeldThread>, until: Instant) -> Result<Vec<HeldThread>, String> {
    let until = until.min(Instant::now() + SLOW);
    for thread in &mut waiting {
        if thread.wait(until.saturating_duration_since(Instant::now())).is_err() {
            let tid = thread.traced.tid();
            return Err(format!("thread {tid} does not stop: it waits for a child of vfork, or for a disk"));
        }
    }
    Ok(waiting)
}

impl Drop for HeldThreads {
    fn drop(&mut self) {
        self.release();
    }
}

/// Whether the process of this descriptor has ended.
fn has_ended(process: &OwnedFd) -> bool {
    let mut ends = [PollFd::new(process, PollFlags::IN)];
    poll(&mut ends, Some(&Timespec::default())) != Ok(0)
}

/// Whether a thread is stopped as by SIGSTOP.
pub(super) fn is_stopped(tid: i32) -> bool {
    proc::state(tid, tid) == Some('T')
}

/// The number in our namespace of a thread that has this one in its own.
pub(super) fn thread_named(pid: i32, own: u32) -> Option<i32> {
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    if namespace("self").is_some_and(|ours| Some(ours) == namespace(&pid.to_string())) {
        return i32::try_from(own).ok();
    }
    let tasks = proc::tasks(pid).ok()?;
    // It is new: probably the last one.
    tasks.into_iter().rev().find(|tid| {
        let status = proc::text(format!("/proc/{pid}/task/{tid}/status")).unwrap_or_default();
        let names = proc::field(&status, "NSpid").unwrap_or_default();
        names.split_ascii_whitespace().last().and_then(|name| name.parse().ok()) == Some(own)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks where a thread may stand: at a site's first byte, behind its five, and inside only
    /// where there is a way out.
    #[test]
    fn stands() {
        let places =
            PatchSites::of(vec![0x200, 0x100, 0x107], vec![[0x101, 0x9001], [0x204, 0x9004]], vec![]);
        let expected = [
            (0x0, PcRelation::Outside),
            (0x100, PcRelation::Outside),
            (0x101, PcRelation::Moves(0x9001)),
            (0x102, PcRelation::Inside),
            (0x105, PcRelation::Outside),
            (0x107, PcRelation::Outside),
            (0x10b, PcRelation::Inside),
            (0x10c, PcRelation::Outside),
            (0x204, PcRelation::Moves(0x9004)),
            (u64::MAX, PcRelation::Outside),
        ];
        for (at, stand) in expected {
            assert_eq!(places.stand(at), stand, "{at:#x}");
        }
    }

    /// Checks that no more places are looked for on stacks than a program has.
    #[test]
    fn few_restorers() {
        let target = TargetProcess::look(std::process::id() as i32).unwrap();
        let list = [0_u64; 2];
        let said = |restorers| kymo_core::probe::wire::PatchSites {
            thread: 1,
            sites_at: (&raw const list) as u64,
            sites: 2,
            moves_at: 0,
            moves: 0,
            restorers: vec![0x1000; restorers],
            edits_at: 0,
            edits: 0,
        };
        assert!(PatchSites::read(&target, &said(8)).is_ok());
        assert!(PatchSites::read(&target, &said(9)).is_err());
    }

    const EXECS: &str = "KYMO_TEST_EXECUTES_ITSELF";

    /// No check of its own: the program of [`while_it_executes`]. Has threads, of which one
    /// executes the same again, until its standard input has ended.
    #[test]
    fn executes_itself() {
        if std::env::var_os(EXECS).is_none() {
            return;
        }
        for _ in 0..30 {
            std::thread::spawn(|| {
                loop {
                    std::thread::park();
                }
            });
        }
        let again = std::thread::spawn(move || {
            let input = std::io::stdin();
            let mut input = [rustix::event::PollFd::new(&input, rustix::event::PollFlags::IN)];
            if rustix::event::poll(&mut input, Some(&rustix::time::Timespec::default())) == Ok(1) {
                // Not as the test's own words, which are kept.
                std::io::Write::write_all(&mut std::io::stderr(), b"over\n").unwrap();
                std::process::exit(0);
            }
            let mut again = std::process::Command::new("/proc/self/exe");
            let again = again.args(std::env::args().skip(1));
            std::os::unix::process::CommandExt::exec(again)
        });
        panic!("{:?}", again.join());
    }

    /// Checks that a program which executes itself again and again, from any of its threads, can be
    /// held at any moment or not, but neither it nor who holds it waits for ever; and that it goes
    /// on.
    #[test]
    fn while_it_executes() {
        let name = "inject::hold::tests::executes_itself";
        let mut program = std::process::Command::new(std::env::current_exe().unwrap());
        let program = program.args([name, "--exact"]).env(EXECS, "").stdin(std::process::Stdio::piped());
        let mut program =
            program.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped()).spawn().unwrap();
        let pid = program.id() as i32;
        let id = rustix::process::Pid::from_raw(pid).unwrap();
        let process = rustix::process::pidfd_open(id, rustix::process::PidfdFlags::empty()).unwrap();
        let (mut held, mut not) = (0, 0);
        let begun = Instant::now();
        while (held == 0 || held + not < 20) && begun.elapsed() < Duration::from_secs(120) {
            assert!(!has_ended(&process), "held {held} times, and {not} times not");
            // It is to get somewhere in between.
            std::thread::sleep(Duration::from_millis(3));
            let Ok(target) = TargetProcess::look(pid) else { continue };
            let Ok(Some(one)) = proc::tasks(pid).map(|tasks| tasks.last().copied()) else { continue };
            let hold = || {
                let begun = Instant::now();
                let tried = HeldThreads::all_but(&target, &process, one, &PatchSites::default());
                assert!(begun.elapsed() < TOTAL * 3, "{:?}", tried.held.err());
                tried.held.is_ok()
            };
            match std::thread::scope(|scope| scope.spawn(hold).join().unwrap()) {
                true => held += 1,
                false => not += 1,
            }
        }
        drop(program.stdin.take());
        let mut said = String::new();
        std::io::Read::read_to_string(&mut program.stderr.take().unwrap(), &mut said).unwrap();
        assert_eq!(said, "over\n", "held {held} times, and {not} times not");
        // Who holds a child of ours has taken note of its end.
        _ = program.wait();
        assert!(held > 0, "held {held} times, and {not} times not");
    }
}
