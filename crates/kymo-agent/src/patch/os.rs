//! The calls of the operating system that patching needs.
//!
//! # Safety
//! What is unsafe here: system calls with numbers and pointers to locals, and mappings that are never taken down again.
#![allow(unsafe_code)]
use std::ffi::c_int;
use std::io;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::time::Duration;

/// Memory for code at exactly `address`, readable and executable, never writable. It stays for good.
pub(super) fn code_at(address: u64, bytes: usize) -> io::Result<u64> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: a mapping where none is: the kernel refuses to replace one.
    let at = unsafe {
        libc::mmap(
            ptr::without_provenance_mut(address as usize),
            bytes,
            libc::PROT_READ | libc::PROT_EXEC,
            flags,
            -1,
            0,
        )
    };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    if at as u64 != address {
        // Kernels before 4.17 take the address as a wish.
        // SAFETY: the mapping that was just made and that nobody knows.
        unsafe { libc::munmap(at, bytes) };
        return Err(io::Error::from_raw_os_error(libc::EEXIST));
    }
    Ok(address)
}

/// Zeroed memory of which only what is used takes room; a forked child finds it zeroed again. It stays for good.
pub(super) fn wide_zeros(bytes: usize, wiped_on_fork: bool) -> io::Result<u64> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping, wherever the kernel likes.
    let at = unsafe { libc::mmap(ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    if wiped_on_fork {
        // SAFETY: the mapping above.
        if unsafe { libc::madvise(at, bytes, libc::MADV_WIPEONFORK) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(at as u64)
}

/// Whether a forked child finds memory of [`wide_zeros`] as it is at the fork, or zeroed.
pub(super) fn on_fork(at: u64, bytes: usize, kept: bool) -> io::Result<()> {
    let at = ptr::without_provenance_mut(at as usize);
    let advice = if kept { libc::MADV_KEEPONFORK } else { libc::MADV_WIPEONFORK };
    // SAFETY: changes what a fork does with a mapping of ours; its content stays.
    let done = unsafe { libc::madvise(at, bytes, advice) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

const WRITABLE: c_int = libc::PROT_READ | libc::PROT_WRITE;
const ANONYMOUS: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// Maps `bytes` of a file, or zeroes without one, over memory of this module.
fn over(
    at: u64,
    bytes: u64,
    file: Option<(&std::fs::File, u64)>,
    access: c_int,
    flags: c_int,
) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    if bytes == 0 {
        return Ok(());
    }
    let place = ptr::without_provenance_mut(at as usize);
    let (number, offset) = file.map_or((-1, 0), |(file, offset)| (file.as_raw_fd(), offset));
    // SAFETY: a mapping of this module, which nobody takes for anything but numbers; or, with
    // MAP_FIXED_NOREPLACE, where none is.
    let mapped = unsafe { libc::mmap(place, bytes as usize, access, flags, number, offset as i64) };
    match mapped {
        libc::MAP_FAILED => Err(io::Error::last_os_error()),
        mapped if mapped == place => Ok(()),
        mapped => {
            // Kernels before 4.17 take the address as a wish.
            // SAFETY: the mapping that was just made and that nobody knows.
            unsafe { libc::munmap(mapped, bytes as usize) };
            Err(io::Error::from_raw_os_error(libc::EEXIST))
        }
    }
}

/// Maps a part of a file, shared with whoever else maps it, over memory of this module.
pub(super) fn shared_at(at: u64, file: &std::fs::File, offset: u64, bytes: u64) -> io::Result<()> {
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE | libc::MAP_FIXED;
    over(at, bytes, Some((file, offset)), WRITABLE, flags)?;
    // A dump of a crash need not have it; where this fails it has.
    // SAFETY: the mapping above.
    unsafe { libc::madvise(ptr::without_provenance_mut(at as usize), bytes as usize, libc::MADV_DONTDUMP) };
    Ok(())
}

/// Puts zeroes of this process alone over memory of this module, and gives back what was there.
pub(super) fn zeros_over(at: u64, bytes: u64) {
    // Where this fails the memory stays as it was, which harms nobody.
    _ = over(at, bytes, None, WRITABLE, ANONYMOUS | libc::MAP_FIXED);
}

/// Addresses without memory at an address where nothing is; `false` if something is.
pub(super) fn reserve_at(at: u64, bytes: u64) -> io::Result<bool> {
    match over(at, bytes, None, libc::PROT_NONE, ANONYMOUS | libc::MAP_FIXED_NOREPLACE) {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Takes down memory of this module that no stub knows.
pub(super) fn unmap(at: u64, bytes: u64) {
    if bytes > 0 {
        // SAFETY: as the name says; the callers know it.
        unsafe { libc::munmap(ptr::without_provenance_mut(at as usize), bytes as usize) };
    }
}

/// Makes every core that runs this process see instructions as they are now in memory, before this returns.
pub(super) fn sync_cores() -> io::Result<()> {
    /// Of linux/membarrier.h.
    const SYNC_CORE: c_int = 1 << 5;
    const REGISTER_SYNC_CORE: c_int = 1 << 6;
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    let call = |command: c_int| {
        // SAFETY: three numbers.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    };
    REGISTERED.get_or_init(|| call(REGISTER_SYNC_CORE));
    // Where a registration is needed and failed, this fails, too. A forked child keeps its parent's.
    if call(SYNC_CORE) { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sends a signal with a number to one thread of this process.
pub(super) fn signal(tid: i32, signal: c_int, number: usize) -> io::Result<()> {
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

/// The calling thread's number.
pub(super) fn own_tid() -> i32 {
    // SAFETY: no arguments, no failure.
    unsafe { libc::gettid() }
}

/// A text of /proc whose numbers matter. Names in it are bytes; what of them is not UTF-8 is replaced.
pub(super) fn text(path: &str) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&std::fs::read(path)?).into_owned())
}

/// How many CPUs this machine can have, so that every number of a CPU is smaller.
pub(super) fn possible_cpus() -> usize {
    let listed = std::fs::read_to_string("/sys/devices/system/cpu/possible").ok();
    let last = |text: String| text.trim().rsplit(['-', ',']).next()?.parse::<usize>().ok();
    if let Some(last) = listed.and_then(last) {
        return (last + 1).min(1 << 16);
    }
    // SAFETY: a number.
    let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    usize::try_from(count).unwrap_or(1).clamp(1, 1 << 16)
}

/// Runs `what` with the two signals of patching open in this thread, and puts the thread's mask back.
///
/// This thread may itself run into a probe while it is put in place, and a trap that is blocked ends the process.
pub(super) fn with_signals_open<T>(signals: &[c_int], what: impl FnOnce() -> T) -> T {
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

/// Makes `mask` the signals that this thread blocks, without the C library; what they were. Safe in a signal's handler.
pub(super) fn set_mask(mask: u64) -> u64 {
    let mut before = 0_u64;
    let (given, old) = (&raw const mask, &raw mut before);
    // SAFETY: two words of ours, and their bytes.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, given, old, size_of::<u64>()) };
    // SAFETY: our own word, which the kernel has written.
    unsafe { old.read_volatile() }
}

/// The time stamp counter and the time, read together: the closest of three readings.
pub(super) fn ticks_and_time() -> (u64, Duration) {
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

/// Addresses without memory.
pub(super) fn reserve(bytes: u64) -> io::Result<u64> {
    // SAFETY: a new mapping, wherever the kernel likes.
    let base = unsafe { libc::mmap(ptr::null_mut(), bytes as usize, libc::PROT_NONE, ANONYMOUS, -1, 0) };
    if base == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(base as u64) }
}

/// Maps a ring of a file: its page, then its data twice, one after the other.
pub(super) fn ring_at(base: u64, file: &std::fs::File, offset: u64, page: u64, data: u64) -> io::Result<()> {
    let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_POPULATE;
    over(base, page + data, Some((file, offset)), WRITABLE, flags)?;
    over(base + page + data, data, Some((file, offset + page)), WRITABLE, flags)
}

/// A word of a mapping of this module that stays.
pub(super) fn word(address: u64) -> &'static AtomicU64 {
    // SAFETY: the callers' addresses are of aligned words in rings and tables that are mapped for good.
    unsafe { &*(address as *const AtomicU64) }
}

/// Words of a mapping of this module that stays.
pub(super) fn words(address: u64, count: usize) -> &'static [AtomicU64] {
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts(address as *const AtomicU64, count) }
}

/// Adds to a count of 16 bits in the program's data, which the caller has seen to be mapped for writing, at an even address.
pub(crate) fn add_to_count(at: u64, by: i16) {
    // SAFETY: as above; the program that writes there at the same time means the same.
    let count = unsafe { &*(at as *const AtomicU16) };
    // Relaxed: the program only looks whether it is 0.
    count.fetch_add(by as u16, Ordering::Relaxed);
}

/// Writes such a word before anybody reads it.
pub(super) fn put_word(address: u64, value: u64) {
    // Relaxed: published by what makes stubs or tells other processes.
    word(address).store(value, Ordering::Relaxed);
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

/// Takes this signal, by which traps come, out of the signals that the program's handlers block while they run. It stays
/// out: an illegal instruction ends a process that blocks it.
pub(super) fn let_through(trap: c_int) {
    let bit = 1 << (trap - 1);
    const ALL_SIGNALS: c_int = 64;
    const MASK_BYTES: usize = 8;
    let none: *const KernelAction = ptr::null();
    for signal in (1..=ALL_SIGNALS).filter(|&signal| signal != trap) {
        let mut action = KernelAction::default();
        let now = &raw mut action;
        // SAFETY: only asks; the kernel writes its structure into ours.
        let asked = unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, none, now, MASK_BYTES) };
        if asked != 0 || action.handler <= libc::SIG_IGN || action.mask & bit == 0 {
            continue;
        }
        action.mask &= !bit;
        let changed = &raw const action;
        // SAFETY: the action as it was, but for one signal in its mask.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                changed,
                ptr::null_mut::<KernelAction>(),
                MASK_BYTES,
            )
        };
    }
}

/// Where this process's handlers of signals return to, each place once.
pub(super) fn restorers() -> Vec<u64> {
    const HAS_RESTORER: u64 = 0x0400_0000;
    const ALL_SIGNALS: c_int = 64;
    const MASK_BYTES: usize = 8;
    let none: *const KernelAction = ptr::null();
    let mut found = Vec::new();
    for signal in 1..=ALL_SIGNALS {
        let mut action = KernelAction::default();
        let now = &raw mut action;
        // SAFETY: only asks; the kernel writes its structure into ours.
        let asked = unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, none, now, MASK_BYTES) };
        let restorer = action.restorer as u64;
        if asked == 0
            && action.handler > libc::SIG_IGN
            && action.flags & HAS_RESTORER != 0
            && !found.contains(&restorer)
        {
            found.push(restorer);
        }
    }
    found
}
