//! That no thread stands inside the bytes of a patch, without stopping any.
//!
//! When this is asked, traps stand at the begins of all instructions of the site, so no thread
//! comes in any more. One that was inside already is in one of three states:
//! - it runs: then its next instruction is a trap, and it is sent to the stub (`trap.rs`);
//! - it waits in a system call: its address is known from `/proc`, and no site contains a system
//!   call;
//! - it is ready to run but does not, interrupted between two instructions: it gets a signal, whose
//!   handler moves it;
//! - it is in a handler of a signal that interrupted it there: what was saved of it is moved
//!   (`frames.rs`).
//!
//! Threads that wait are not signalled, so no call of the program fails with "interrupted" because
//! of a probe, but where a thread goes to sleep between the look and the signal: then calls that
//! the kernel never restarts (`epoll_wait`, `nanosleep`) end early once.
use super::error::PatchError;
use super::memory::{Memory, OwnMemory};
use crate::patch::os;
use crate::patch::runtime::frames;
use crate::patch::runtime::trap;
use crate::sys::clock;
use std::ffi::c_int;
use std::io;
use std::time::{Duration, Instant};

/// How long a thread may take until it has answered, or has opened its mask of signals. Time in
/// which it waits for a CPU does not count: see [`Turns`].
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a thread may wait for a CPU: a machine that gives it none for so long is no use.
const MOST_WAITING: Duration = Duration::from_secs(60);
/// A longer time between two looks is that of who looked, and had no CPU.
const MOST_BETWEEN_LOOKS: Duration = Duration::from_millis(20);
/// How long a thread is looked at before it is asked, with pauses that double: one that is about to
/// wait, perhaps for a CPU first, waits by then, and no call of it ends early.
const LOOKING: Duration = Duration::from_millis(3);
const FIRST_PAUSE: Duration = Duration::from_micros(100);

/// The numbers of this process's threads but the calling one.
pub(crate) fn others() -> io::Result<Vec<i32>> {
    let own = clock::own_tid();
    let tids = std::fs::read_dir("/proc/self/task")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|&tid| tid != own);
    Ok(tids.collect())
}

/// Where a thread is in the program, if it waits in the kernel.
fn waits_at(tid: i32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{tid}/syscall")).ok()?;
    let address = text.trim_end().rsplit(' ').next()?.strip_prefix("0x")?;
    u64::from_str_radix(address, 16).ok()
}

/// Whether a thread that waits does so in a handler of a signal that interrupted it inside of a
/// site: it is moved, and to be asked all the same, for it may be on its way out of the handler.
fn waits_in_handler(tid: i32) -> bool {
    /// Of each stack that are looked through.
    const BYTES: u64 = 64 << 10;
    let Ok(text) = std::fs::read_to_string(format!("/proc/self/task/{tid}/syscall")) else { return false };
    let mut words = text.trim_end().rsplit(' ').skip(1);
    let pointer = words.next().and_then(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok());
    let (Some(pointer), Ok(memory)) = (pointer, OwnMemory::open()) else { return false };
    let read = |at: u64, into: &mut [u8]| memory.read(at, into);
    let write = |at: u64, value: u64| _ = memory.write(at, &value.to_le_bytes());
    frames::redirect(pointer, BYTES, read, write, trap::interior)
}

fn is_gone(tid: i32) -> bool {
    let Ok(stat) = os::text(&format!("/proc/self/task/{tid}/stat")) else { return true };
    // A first thread that has ended stays a zombie until the process ends.
    stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['Z', 'X']))
}

/// How long a thread could have answered: the time in which it waited, and what it ran. On a busy
/// machine, or at a low priority, a thread may be ready and off its CPU for seconds, and it is not
/// silent for that. Nor is it because the thread that looks at it had no CPU, or because it waits
/// for the CPU that a process which it makes (vfork, posix_spawn) needs until it runs its program.
struct Turns {
    tid: i32,
    /// What it had run at the last look, in nanoseconds, as the kernel accounts it.
    ran: Option<u64>,
    begin: Instant,
    looked: Instant,
    had: Duration,
}

impl Turns {
    fn of(tid: i32) -> Turns {
        let now = Instant::now();
        Turns { tid, ran: Turns::ran(tid), begin: now, looked: now, had: Duration::ZERO }
    }

    /// `None`: this kernel does not say.
    fn ran(tid: i32) -> Option<u64> {
        let text = std::fs::read_to_string(format!("/proc/self/task/{tid}/schedstat")).ok()?;
        text.split(' ').next()?.parse().ok().filter(|&ran| ran > 0)
    }

    fn is_ready(tid: i32) -> bool {
        let stat = os::text(&format!("/proc/self/task/{tid}/stat"));
        stat.is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('R')))
    }

    /// Whether it waits for a process that it makes. The C library blocks all signals around that.
    fn is_making_process(tid: i32) -> bool {
        #[cfg(target_arch = "x86_64")]
        const CALLS: [i64; 3] = [libc::SYS_vfork, libc::SYS_clone, libc::SYS_clone3];
        #[cfg(not(target_arch = "x86_64"))]
        const CALLS: [i64; 2] = [libc::SYS_clone, libc::SYS_clone3];
        let text = os::text(&format!("/proc/self/task/{tid}/syscall"));
        let call = text.ok().and_then(|text| text.split(' ').next()?.parse().ok());
        call.is_some_and(|call: i64| CALLS.contains(&call))
    }

    /// To be called again and again. Whether it has had enough time.
    fn are_over(&mut self, patience: Duration) -> bool {
        let (now, ran) = (Instant::now(), Turns::ran(self.tid));
        let since = now - self.looked;
        self.had += match (ran, self.ran) {
            (Some(ran), Some(before)) if Turns::is_ready(self.tid) => {
                since.min(Duration::from_nanos(ran.saturating_sub(before)))
            }
            _ if Turns::is_making_process(self.tid) => Duration::ZERO,
            _ => since.min(MOST_BETWEEN_LOOKS),
        };
        (self.looked, self.ran) = (now, ran);
        self.had > patience || now - self.begin > MOST_WAITING
    }
}

/// Whether a thread has blocked traps, and whether that may be for a moment only: in a signal's
/// handler, ours among them, which an interrupted thread has not left yet, or because the C library
/// makes or ends a thread. It blocks its own two signals, too, which programs cannot.
fn blocks_traps(tid: i32) -> (bool, bool) {
    const OWN: u64 = 0b11 << 31;
    let mask = status_field(tid, "SigBlk:").and_then(|mask| u64::from_str_radix(&mask, 16).ok()).unwrap_or(0);
    (mask & trap::SIGNAL_BIT != 0 && !is_gone(tid), mask & OWN == OWN || waits_at(tid).is_none())
}

/// What the kernel says in this line of a thread's status.
fn status_field(tid: i32, name: &str) -> Option<String> {
    let status = os::text(&format!("/proc/self/task/{tid}/status")).ok()?;
    status.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()))
}

/// Whether another thread has a filter of system calls (seccomp) and the calling one has none.
pub(crate) fn is_another_filtered() -> bool {
    let is_filtered = |tid: i32| status_field(tid, "Seccomp:").is_some_and(|mode| mode != "0");
    !is_filtered(clock::own_tid()) && others().is_ok_and(|tids| tids.into_iter().any(is_filtered))
}

/// The thread, if there is one in `tids`, in which traps are blocked: a trap would end the process
/// there.
pub(crate) fn blocker(tids: &[i32]) -> Option<i32> {
    tids.iter().copied().find(|&tid| {
        let mut turns = None;
        loop {
            let (blocks, passing) = blocks_traps(tid);
            let patience = if passing { ANSWER_TIMEOUT } else { Duration::from_millis(5) };
            if !blocks || turns.get_or_insert_with(|| Turns::of(tid)).are_over(patience) {
                return blocks;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    })
}

/// Returns when no other thread stands at an address for which `inside` holds.
///
/// # Errors
/// [`PatchError::Silent`] when a thread has had two seconds in which it could have answered.
pub(crate) fn leave(question: c_int, inside: impl Fn(u64) -> bool) -> Result<(), PatchError> {
    let failed = PatchError::system("ask threads where they stand");
    let mut left = others().map_err(&failed)?;
    let mut moved = Vec::new();
    let (until, mut pause) = (Instant::now() + LOOKING, FIRST_PAUSE);
    loop {
        left.retain(|&tid| {
            if waits_in_handler(tid) {
                moved.push(tid);
                return false;
            }
            waits_at(tid).is_none_or(&inside)
        });
        if left.is_empty() && moved.is_empty() {
            return Ok(());
        }
        // Who stays asleep in a handler must be asked at once.
        if left.is_empty() || Instant::now() + pause > until {
            break;
        }
        std::thread::sleep(pause);
        pause *= 2;
    }
    let round = trap::new_round();
    let mut asked = Vec::new();
    for tid in left.into_iter().chain(moved) {
        match os::signal(tid, question, round) {
            Ok(()) => asked.push(tid),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            // Its queue of signals is full: it is looked at until it sleeps elsewhere or is gone.
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => asked.push(tid),
            Err(error) => return Err(failed(error)),
        }
    }
    let mut open: Vec<Turns> = asked.iter().map(|&tid| Turns::of(tid)).collect();
    let mut pause = Duration::from_micros(20);
    while trap::answers() < asked.len() {
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(5));
        if pause >= Duration::from_millis(1) {
            let count = trap::answers();
            // Answers have no names: as soon as no thread is left that could stand inside, the rest
            // is not waited for. One that was seen outside is not looked at again: it cannot come
            // in.
            open.retain(|turns| !is_gone(turns.tid) && waits_at(turns.tid).is_none_or(&inside));
            if open.is_empty() || count >= asked.len() {
                return Ok(());
            }
            // Each of them is looked at each time.
            let silent =
                open.iter_mut().filter_map(|turns| turns.are_over(ANSWER_TIMEOUT).then_some(turns.tid));
            if let Some(&tid) = silent.collect::<Vec<i32>>().first() {
                return Err(PatchError::Silent { tid });
            }
        }
    }
    Ok(())
}
