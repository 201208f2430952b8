//! The calls of the operating system that patching needs.
//!
//! # Safety
//! What is unsafe here: system calls with numbers and pointers to locals, and one count in the
//! program's data.
#![allow(unsafe_code)]
use std::ffi::c_int;
use std::io;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

/// Of linux/membarrier.h.
const SYNC_CORE: c_int = 1 << 5;
const REGISTER_SYNC_CORE: c_int = 1 << 6;
static CORES_REGISTERED: OnceLock<bool> = OnceLock::new();

fn membarrier(command: c_int) -> bool {
    // SAFETY: three numbers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Registers the barriers that patching and probes ask for later (membarrier(2)). At once in a
/// process of one thread; in others the kernel waits for a grace period of RCU.
pub(crate) fn register_barriers() {
    CORES_REGISTERED.get_or_init(|| membarrier(REGISTER_SYNC_CORE));
    _ = crate::fence::Membarrier::register();
}

/// Makes every core that runs this process see instructions as they are now in memory, before this
/// returns.
pub(crate) fn sync_cores() -> io::Result<()> {
    CORES_REGISTERED.get_or_init(|| membarrier(REGISTER_SYNC_CORE));
    // Where a registration is needed and failed, this fails, too. A forked child keeps its
    // parent's.
    if membarrier(SYNC_CORE) { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sends a signal with a number to one thread of this process.
pub(crate) fn signal(tid: i32, signal: c_int, number: usize) -> io::Result<()> {
    // SAFETY: all zeros are a valid siginfo_t.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    info.si_signo = signal;
    info.si_code = libc::SI_QUEUE;
    let pid = std::process::id();
    let info_at = &raw mut info;
    // si_pid of a queued signal is its fifth word, si_value its fourth pair of words.
    let pid_at: *mut u32 = info_at.wrapping_byte_add(16).cast();
    let value_at: *mut usize = info_at.wrapping_byte_add(24).cast();
    // SAFETY: siginfo_t has 128 bytes.
    unsafe { pid_at.write(pid) };
    // SAFETY: likewise.
    unsafe { value_at.write(number) };
    // SAFETY: numbers, and a siginfo_t that is read.
    let sent = unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, tid, signal, info_at) };
    if sent == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A text of /proc whose numbers matter. Names in it are bytes; what of them is not UTF-8 is
/// replaced.
pub(crate) fn text(path: &str) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&std::fs::read(path)?).into_owned())
}

/// How many CPUs this machine can have, so that every number of a CPU is smaller. Sandboxes hide
/// the list or show another; then it is what the kernel's masks of CPUs hold.
pub(crate) fn possible_cpus() -> usize {
    const MASK_WORDS: usize = 1024;
    let mut mask = [0_u64; MASK_WORDS];
    // SAFETY: the kernel writes at most as many bytes as the mask has.
    let bytes = unsafe { libc::syscall(libc::SYS_sched_getaffinity, 0, MASK_WORDS * 8, mask.as_mut_ptr()) };
    let bits = usize::try_from(bytes).unwrap_or(0) * 8;
    let permitted = (0..bits).rev().find(|cpu| mask[cpu / 64] >> (cpu % 64) & 1 == 1);
    let listed = std::fs::read_to_string("/sys/devices/system/cpu/possible").ok();
    let last = |text: String| text.trim().rsplit(['-', ',']).next()?.parse::<usize>().ok();
    match (listed.and_then(last), permitted) {
        (Some(listed), permitted) => (listed.max(permitted.unwrap_or(0)) + 1).min(1 << 16),
        // Without an answer, as many as small kernels have.
        (None, _) => bits.max(64),
    }
}

/// Runs `what` with the two signals of patching open in this thread, and puts the thread's mask
/// back.
///
/// This thread may itself run into a probe while it is put in place, and a trap that is blocked
/// ends the process.
pub(crate) fn with_signals_open<T>(signals: &[c_int], what: impl FnOnce() -> T) -> T {
    // SAFETY: all zeros are a valid set.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: all zeros are a valid set.
    let mut before: libc::sigset_t = unsafe { std::mem::zeroed() };
    for &signal in signals {
        // SAFETY: our own set.
        unsafe { libc::sigaddset(&mut set, signal) };
    }
    // SAFETY: two sets of ours.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, &mut before) };
    let result = what();
    // SAFETY: the mask as it was.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, ptr::null_mut()) };
    result
}

/// Makes `mask` the signals that this thread blocks, without the C library; what they were. Safe in
/// a signal's handler.
pub(crate) fn set_mask(mask: u64) -> u64 {
    let mut before = 0_u64;
    let (given, old) = (&raw const mask, &raw mut before);
    // SAFETY: two words of ours, and their bytes.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, given, old, size_of::<u64>()) };
    // SAFETY: our own word, which the kernel has written.
    unsafe { old.read_volatile() }
}

/// The time stamp counter and the time, read together: the closest of three readings.
pub(crate) fn ticks_and_time() -> (u64, Duration) {
    let read = || {
        // SAFETY: an instruction that every x86-64 processor has.
        let before = unsafe { std::arch::x86_64::_rdtsc() };
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: writes a timespec, which is ours.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_RAW, &mut time) };
        // SAFETY: as above.
        let after = unsafe { std::arch::x86_64::_rdtsc() };
        let ticks = before + after.wrapping_sub(before) / 2;
        (after.wrapping_sub(before), ticks, Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
    };
    // SANITY: of three.
    let (_, ticks, time) =
        [read(), read(), read()].into_iter().min_by_key(|reading| reading.0).expect("three readings");
    (ticks, time)
}

/// Adds to a count of 16 bits in the program's data.
///
/// # Safety
/// It is mapped for writing, at an even address, and whatever else writes there means the same.
pub(crate) unsafe fn add_to_count(at: u64, by: i16) {
    // SAFETY: the caller's.
    let count = unsafe { &*(at as *const AtomicU16) };
    // Relaxed: the program only looks whether it is 0.
    count.fetch_add(by as u16, Ordering::Relaxed);
}

/// `struct sigaction` as the kernel has it.
#[repr(C)]
#[derive(Default)]
struct KernelAction {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

/// The signals that the program handles, and how.
fn handlers() -> impl Iterator<Item = (c_int, KernelAction)> {
    const ALL_SIGNALS: c_int = 64;
    (1..=ALL_SIGNALS).filter_map(|signal| {
        let mut action = KernelAction::default();
        let (none, now) = (ptr::null::<KernelAction>(), &raw mut action);
        // SAFETY: only asks; the kernel writes its structure into ours.
        let asked = unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, none, now, size_of::<u64>()) };
        (asked == 0 && action.handler > libc::SIG_IGN).then_some((signal, action))
    })
}

/// Takes this signal, by which traps come, out of the signals that the program's handlers block
/// while they run. It stays out: an illegal instruction ends a process that blocks it.
pub(crate) fn let_through(trap: c_int) {
    let bit = 1 << (trap - 1);
    for (signal, mut action) in
        handlers().filter(|(signal, action)| *signal != trap && action.mask & bit != 0)
    {
        action.mask &= !bit;
        let (changed, none) = (&raw const action, ptr::null_mut::<KernelAction>());
        // SAFETY: the action as it was, but for one signal in its mask.
        unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, changed, none, size_of::<u64>()) };
    }
}

/// Where this process's handlers of signals return to, each place once.
pub(crate) fn restorers() -> Vec<u64> {
    const HAS_RESTORER: u64 = 0x0400_0000;
    let mut found = Vec::new();
    for (_, action) in handlers() {
        let restorer = action.restorer as u64;
        if action.flags & HAS_RESTORER != 0 && !found.contains(&restorer) {
            found.push(restorer);
        }
    }
    found
}
