//! CPU binding and priority of the calling thread.
//!
//! # Safety
//! Raw system calls of numbers, one of which reads a local struct.
#![allow(unsafe_code, reason = "raw system calls")]
use rustix::process::{getpriority_process, setpriority_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;

/// A mask of CPUs that is longer than any kernel's: 2^16 CPUs.
const MASK_WORDS: usize = 1024;

/// Nearly the most that an ordinary thread can be preferred.
const PREFERRED_NICE: i32 = -19;

/// The CPUs on which a thread may run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding(CpuSet);

impl Binding {
    /// Where the calling thread may run now.
    ///
    /// # Errors
    /// EINVAL on a machine that could have more than 1024 CPUs.
    pub(crate) fn current() -> io::Result<Binding> {
        Ok(Binding(sched_getaffinity(None)?))
    }

    /// These CPUs; those beyond the 1024th are left out.
    pub(crate) fn of(cpus: &[u32]) -> Binding {
        let mut set = CpuSet::new();
        cpus.iter().filter(|&&cpu| (cpu as usize) < CpuSet::MAX_CPU).for_each(|&cpu| set.set(cpu as usize));
        Binding(set)
    }

    /// Lets the calling thread run there.
    ///
    /// # Errors
    /// EINVAL if none of the CPUs is online and permitted.
    pub(crate) fn apply(&self) -> io::Result<()> {
        Ok(sched_setaffinity(None, &self.0)?)
    }
}

/// The CPUs on which a task may run (0: the calling thread), and a number that no CPU of this
/// kernel reaches: how many bits its masks have. Empty if the kernel does not answer.
pub(super) fn permitted_cpus(task: i32) -> (Vec<u32>, u32) {
    let mut mask = vec![0_u64; MASK_WORDS];
    // SAFETY: the kernel writes at most as many bytes as the mask has.
    let bytes =
        unsafe { libc::syscall(libc::SYS_sched_getaffinity, task, MASK_WORDS * 8, mask.as_mut_ptr()) };
    let bits = u32::try_from(bytes.max(0)).unwrap_or(0).saturating_mul(8);
    let is_set = |&cpu: &u32| mask[cpu as usize / 64] >> (cpu % 64) & 1 == 1;
    ((0..bits).filter(is_set).collect(), bits)
}

/// A number that no CPU of this kernel reaches; up to 63 above the least such number.
pub(crate) fn cpu_number_bound() -> u32 {
    permitted_cpus(0).1.clamp(1, 1 << 16)
}

/// Lets another thread of this process run on these CPUs alone.
///
/// # Errors
/// EINVAL if none of the CPUs is online and permitted, ESRCH if the thread is gone.
pub fn move_thread(tid: i32, cpus: &[u32]) -> io::Result<()> {
    let tid = rustix::thread::Pid::from_raw(tid);
    Ok(sched_setaffinity(tid, &Binding::of(cpus).0)?)
}

/// Binds the calling thread to one CPU.
///
/// # Errors
/// EINVAL if the CPU is offline, not permitted, or beyond the 1024th.
pub fn pin_to(cpu: u32) -> io::Result<()> {
    if cpu as usize >= CpuSet::MAX_CPU {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    Binding::of(&[cpu]).apply()
}

/// Makes the calling thread run before all others that this program has, and all ordinary ones
/// (SCHED_FIFO, a low priority of that class).
///
/// # Errors
/// EPERM without CAP_SYS_NICE or RLIMIT_RTPRIO.
pub fn run_first() -> io::Result<()> {
    run_fifo(2).or_else(|_| run_fifo(1))
}

/// Makes the calling thread run before all ordinary ones, but after those that [`run_first`].
///
/// # Errors
/// EPERM without CAP_SYS_NICE or RLIMIT_RTPRIO.
pub fn run_early() -> io::Result<()> {
    run_fifo(1)
}

/// Does something short before all ordinary threads have their turn, where that is permitted: among
/// thousands of busy threads it would otherwise be interrupted for seconds. Then the calling thread
/// runs as before.
pub(crate) fn with_priority<T>(short: impl FnOnce() -> T) -> T {
    // SAFETY: a number; 0 is the calling thread.
    let ordinary = unsafe { libc::sched_getscheduler(0) } == libc::SCHED_OTHER;
    let moved = ordinary && run_early().is_ok();
    let done = short();
    if moved {
        let param = libc::sched_param { sched_priority: 0 };
        // SAFETY: reads one initialised struct. Giving up a priority is always permitted.
        unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &param) };
    }
    done
}

/// The calling thread has the largest share of its CPU that an ordinary one can have, where that is
/// permitted, until this is dropped.
#[derive(Debug)]
pub struct PriorityBoost {
    before: Option<i32>,
}

impl PriorityBoost {
    /// From now on.
    pub fn begin() -> PriorityBoost {
        let before =
            getpriority_process(None).ok().filter(|_| setpriority_process(None, PREFERRED_NICE).is_ok());
        PriorityBoost { before }
    }
}

impl Drop for PriorityBoost {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            let _ = setpriority_process(None, before);
        }
    }
}

/// Whether a task that there is belongs to another process than this one. A task that is gone does
/// not.
pub fn belongs_to_other_process(pid: i32, tid: i32) -> bool {
    // To 0 and below are signals for groups.
    if tid <= 0 {
        return true;
    }
    let gone = || io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
    // SAFETY: numbers; signal 0 is none.
    let of_process = unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, 0) } == 0 || !gone();
    // SAFETY: as above.
    let of_any = || unsafe { libc::syscall(libc::SYS_tkill, tid, 0) } == 0 || !gone();
    !of_process && of_any()
}

/// Gives programs that the calling thread executes from now on the same addresses each time: their
/// code, data, stack and libraries.
///
/// # Errors
/// EPERM where a filter of system calls forbids it, as in some containers.
pub fn fix_addresses() -> io::Result<()> {
    const ASK: libc::c_ulong = 0xffff_ffff;
    // SAFETY: only asks.
    let now = unsafe { libc::personality(ASK) };
    if now < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a number.
    let done = unsafe { libc::personality(now as libc::c_ulong | libc::ADDR_NO_RANDOMIZE as libc::c_ulong) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn run_fifo(priority: i32) -> io::Result<()> {
    let param = libc::sched_param { sched_priority: priority };
    // SAFETY: reads one initialised struct; 0 is the calling thread.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &param) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
