//! A ptraced thread of another process: registers, single steps, system calls.
//!
//! # Safety
//! ptrace(2) and waitpid(2) with pointers to values of this file. What a thread's registers mean is
//! the caller's business: a wrong value harms the other process, not this one.
#![allow(unsafe_code, reason = "ptrace, and waiting for threads that are not children")]
use std::cell::RefCell;
use std::ffi::{c_long, c_void};
use std::io;
use std::marker::PhantomData;
use std::ptr;
use std::time::{Duration, Instant};

#[cfg(not(target_arch = "x86_64"))]
pub use super::other_registers::Registers;
#[cfg(target_arch = "x86_64")]
pub use libc::user_regs_struct as Registers;

/// `PTRACE_GETREGS` and `PTRACE_SETREGS` of x86-64.
const GETREGS: u32 = 12;
const SETREGS: u32 = 13;
const NT_X86_XSTATE: usize = 0x202;
/// More than any processor has (AMX included).
const MOST_XSTATE_BYTES: usize = 16 << 10;
/// `PTRACE_EVENT_STOP`.
const EVENT_STOP: i32 = 128;

/// The event of a thread that has executed a program, in [`PtraceStop::Event`].
pub(crate) const EXECUTED: i32 = libc::PTRACE_EVENT_EXEC;

/// Why a held thread stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PtraceStop {
    /// Because it was interrupted.
    Interrupted,
    /// At the entry or the exit of a system call.
    SystemCall,
    /// A signal is about to be delivered.
    Signal(i32),
    /// Another event of ptrace.
    Event(i32),
    /// It is gone.
    Gone,
}

/// Everything of a thread that a call changes.
#[derive(Clone)]
pub(crate) struct Saved {
    registers: Registers,
    vectors: Vec<u8>,
    signals: u64,
}

impl Saved {
    /// The general registers.
    pub(crate) fn registers(&self) -> &Registers {
        &self.registers
    }

    /// The vector registers, as XSAVE lays them out.
    pub(crate) fn vectors(&self) -> &[u8] {
        &self.vectors
    }

    /// Which signals wait: a bit for each, from signal 1.
    pub(crate) fn signals(&self) -> u64 {
        self.signals
    }
}

impl std::fmt::Debug for Saved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Saved").field("rip", &self.registers.rip).finish_non_exhaustive()
    }
}

/// All zero.
pub(crate) fn no_registers() -> Registers {
    // SAFETY: plain numbers, for which 0 is a value.
    unsafe { std::mem::zeroed() }
}

/// A thread that this thread traces. All calls must come from the thread that seized it, which is
/// why it cannot be sent. Dropping it lets it run again.
#[derive(Debug)]
pub struct Traced {
    tid: i32,
    gone: bool,
    /// It is to stop since an earlier time, and nobody has seen yet that it did.
    asked: bool,
    _here: PhantomData<*const ()>,
}

thread_local! {
    /// Who did not stop in time to be let go: this thread traces them still, and they will stop.
    static STILL_OURS: RefCell<Vec<i32>> = const { RefCell::new(Vec::new()) };
}

impl Traced {
    /// Takes a thread, which goes on running. One that was dropped before it could be let go is
    /// taken up again.
    ///
    /// # Errors
    /// EPERM if that is not permitted or somebody traces it already, ESRCH if there is no such
    /// thread.
    pub fn seize(tid: i32) -> io::Result<Traced> {
        let taken_up = |ours: &mut Vec<i32>| {
            ours.iter().position(|ours| *ours == tid).map(|at| ours.swap_remove(at)).is_some()
        };
        let mut traced = Traced { tid, gone: true, asked: false, _here: PhantomData };
        if STILL_OURS.with_borrow_mut(taken_up) {
            (traced.gone, traced.asked) = (false, true);
            return Ok(traced);
        }
        traced.ask(libc::PTRACE_SEIZE, 0, libc::PTRACE_O_TRACESYSGOOD as usize)?;
        Ok(Traced { gone: false, ..traced })
    }

    /// Has it stop when it executes a program, as [`EXECUTED`] tells.
    ///
    /// # Errors
    /// ESRCH if it is gone or does not stand still.
    pub(crate) fn stop_at_exec(&self) -> io::Result<()> {
        let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACEEXEC;
        self.ask(libc::PTRACE_SETOPTIONS, 0, options as usize)
    }

    /// Its number.
    pub(crate) fn tid(&self) -> i32 {
        self.tid
    }

    /// Whether it is a thread of this process. A thread that is traced keeps its number, so the
    /// answer stays true.
    pub(crate) fn is_of(&self, pid: i32) -> bool {
        // SAFETY: three numbers; signal 0 is none.
        unsafe { libc::syscall(libc::SYS_tgkill, pid, self.tid, 0) == 0 }
    }

    /// Leaves it to the kernel, which lets it go when the thread that seized it ends.
    pub(crate) fn leave_to_the_kernel(mut self) {
        self.gone = true;
    }

    fn ask(&self, request: libc::c_uint, address: usize, data: usize) -> io::Result<()> {
        #[cfg(test)]
        faults::step();
        // SAFETY: requests of this file that write to no memory of ours, or to what their caller
        // points at.
        let answer: c_long =
            unsafe { libc::ptrace(request, self.tid, address as *mut c_void, data as *mut c_void) };
        if answer == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Makes it stop; [`Traced::wait`] tells when.
    ///
    /// # Errors
    /// ESRCH if it is gone.
    pub fn interrupt(&self) -> io::Result<()> {
        if self.asked {
            // A second time would be a second stop, after it goes on.
            return Ok(());
        }
        self.ask(libc::PTRACE_INTERRUPT, 0, 0)
    }

    /// Waits until it stops, but not for ever.
    ///
    /// # Errors
    /// TimedOut; what waitpid says.
    pub fn wait(&mut self, limit: Duration) -> io::Result<PtraceStop> {
        let until = Instant::now() + limit;
        let mut pause = Duration::from_micros(20);
        loop {
            let mut status = 0;
            // SAFETY: writes one int.
            let found = unsafe { libc::waitpid(self.tid, &mut status, libc::__WALL | libc::WNOHANG) };
            if found == self.tid {
                return Ok(self.stop(status));
            }
            if found == -1 {
                let error = io::Error::last_os_error();
                if error.raw_os_error() == Some(libc::ECHILD) {
                    self.gone = true;
                    return Ok(PtraceStop::Gone);
                }
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
            if Instant::now() >= until {
                return Err(io::ErrorKind::TimedOut.into());
            }
            // There is no descriptor to wait on for a thread that is not ours.
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(2));
        }
    }

    fn stop(&mut self, status: i32) -> PtraceStop {
        self.asked = false;
        if !libc::WIFSTOPPED(status) {
            self.gone = true;
            return PtraceStop::Gone;
        }
        match (libc::WSTOPSIG(status), status >> 16) {
            (signal, 0) if signal == libc::SIGTRAP | 0x80 => PtraceStop::SystemCall,
            (signal, 0) => PtraceStop::Signal(signal),
            (libc::SIGTRAP, EVENT_STOP) => PtraceStop::Interrupted,
            (_, event) => PtraceStop::Event(event),
        }
    }

    /// Lets it run, with a signal if `signal` is not 0.
    ///
    /// # Errors
    /// ESRCH if it is gone or does not stand still.
    pub(crate) fn go(&self, signal: i32) -> io::Result<()> {
        self.ask(libc::PTRACE_CONT, 0, signal as usize)
    }

    /// Lets it run to the next entry or exit of a system call.
    ///
    /// # Errors
    /// As [`Traced::go`].
    pub(crate) fn go_to_system_call(&self) -> io::Result<()> {
        self.ask(libc::PTRACE_SYSCALL, 0, 0)
    }

    /// Writes eight bytes of its memory, into private pages that are not writable, too. Any
    /// address.
    ///
    /// # Errors
    /// EIO where nothing private is; ESRCH if it is gone or does not stand still.
    pub(crate) fn poke(&self, address: u64, word: [u8; 8]) -> io::Result<()> {
        self.ask(libc::PTRACE_POKETEXT, address as usize, usize::from_le_bytes(word))
    }

    /// Its general registers.
    ///
    /// # Errors
    /// ESRCH if it is gone or does not stand still.
    pub fn registers(&self) -> io::Result<Registers> {
        let mut registers = no_registers();
        self.ask_general(GETREGS, ptr::from_mut(&mut registers).addr())?;
        Ok(registers)
    }

    /// Changes its general registers.
    ///
    /// # Errors
    /// As [`Traced::go`]; EIO for values that no program can have.
    pub(crate) fn set_registers(&self, registers: &Registers) -> io::Result<()> {
        self.ask_general(SETREGS, ptr::from_ref(registers).addr())
    }

    /// Reads or writes all general registers, which are known of x86-64 only.
    fn ask_general(&self, what: u32, registers: usize) -> io::Result<()> {
        if !cfg!(target_arch = "x86_64") {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.ask(what, 0, registers)
    }

    /// Everything that a function call may change, and the mask of signals.
    ///
    /// # Errors
    /// As [`Traced::go`].
    pub(crate) fn save(&self) -> io::Result<Saved> {
        let registers = self.registers()?;
        let mut vectors = vec![0u8; MOST_XSTATE_BYTES];
        let mut part = libc::iovec { iov_base: vectors.as_mut_ptr().cast(), iov_len: vectors.len() };
        self.ask(libc::PTRACE_GETREGSET, NT_X86_XSTATE, ptr::from_mut(&mut part).addr())?;
        vectors.truncate(part.iov_len);
        let mut signals = 0u64;
        self.ask(libc::PTRACE_GETSIGMASK, size_of::<u64>(), ptr::from_mut(&mut signals).addr())?;
        Ok(Saved { registers, vectors, signals })
    }

    /// Puts back what [`Traced::save`] found.
    ///
    /// # Errors
    /// As [`Traced::go`].
    pub(crate) fn restore(&self, saved: &Saved) -> io::Result<()> {
        let mut vectors = saved.vectors.clone();
        let mut part = libc::iovec { iov_base: vectors.as_mut_ptr().cast(), iov_len: vectors.len() };
        self.ask(libc::PTRACE_SETREGSET, NT_X86_XSTATE, ptr::from_mut(&mut part).addr())?;
        self.set_signal_mask(saved.signals)?;
        self.set_registers(&saved.registers)
    }

    /// The address of the thread's `struct rseq`, and the signature before the places where its
    /// sequences begin anew; `None` if it has none.
    ///
    /// # Errors
    /// As [`Traced::go`]; EIO before Linux 5.13.
    pub(crate) fn restartable_sequences(&self) -> io::Result<Option<(u64, u32)>> {
        /// `PTRACE_GET_RSEQ_CONFIGURATION`.
        const GET: libc::c_uint = 0x420f;
        // `struct ptrace_rseq_configuration`: the address; size and signature; flags.
        let mut configuration = [0_u64; 3];
        self.ask(GET, size_of_val(&configuration), ptr::from_mut(&mut configuration).addr())?;
        let [area, size_and_signature, _] = configuration;
        Ok((area != 0).then_some((area, (size_and_signature >> 32) as u32)))
    }

    /// Which signals wait: a bit for each, from signal 1.
    ///
    /// # Errors
    /// As [`Traced::go`].
    pub(crate) fn set_signal_mask(&self, mut signals: u64) -> io::Result<()> {
        self.ask(libc::PTRACE_SETSIGMASK, size_of::<u64>(), ptr::from_mut(&mut signals).addr())
    }

    /// Lets it run and no longer traces it. It must stand still.
    ///
    /// # Errors
    /// ESRCH if it is gone.
    pub(crate) fn release(mut self, signal: i32) -> io::Result<()> {
        let released = self.ask(libc::PTRACE_DETACH, 0, signal as usize);
        self.gone = released.is_ok();
        released
    }
}

impl Traced {
    /// Lets it go, if it stands still within this time.
    fn let_go(&mut self, patience: Duration) {
        if self.gone {
            return;
        }
        // A signal that it has stopped before must reach it: after a trap or a fault it would go on
        // in the middle of something.
        let signal = |stop| if let Ok(PtraceStop::Signal(signal)) = stop { signal } else { 0 };
        let limit = match self.registers() {
            // It stands still, perhaps since nobody has looked.
            Ok(_) => Duration::ZERO,
            // It runs: it must stand still to be let go.
            Err(_) if self.interrupt().is_ok() => patience,
            Err(_) => return,
        };
        let stop = self.wait(limit);
        let still = stop.is_err();
        let last = signal(stop);
        if !self.gone && self.ask(libc::PTRACE_DETACH, 0, last as usize).is_err() && still {
            _ = STILL_OURS.try_with(|ours| ours.borrow_mut().push(self.tid));
        }
        self.gone = true;
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        self.let_go(Duration::from_millis(100));
    }
}

/// Takes note of the end of a thread that this process traces, for whichever of our threads has
/// seized it. Does not wait, and takes no note of stops.
///
/// A program that executes another one waits until its other threads are gone, and those that are
/// traced are so only when that was noted; meanwhile it lets nobody seize a thread of it, so the
/// one who wants to cannot take notes. Whether it has ended.
pub(crate) fn note_end(tid: i32) -> bool {
    // SAFETY: plain numbers and pointers, for which 0 is a value.
    let mut told: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let Ok(id) = libc::id_t::try_from(tid) else { return true };
    let how = libc::WEXITED | libc::WNOHANG | libc::__WALL;
    // SAFETY: writes what is ours.
    let asked = unsafe { libc::waitid(libc::P_PID, id, &mut told, how) };
    // SAFETY: zero, or what the kernel has written about a child.
    asked != 0 || unsafe { told.si_pid() } != 0
}

/// Gives the calling thread a table of descriptors of its own, a copy of the process's.
///
/// # Errors
/// ENOMEM, EMFILE; EPERM where a filter forbids it.
pub(crate) fn own_descriptors() -> Result<(), rustix::io::Errno> {
    // SAFETY: a number. A descriptor that is used as an object of its own here stays valid: both
    // tables have it, and each closes its copy.
    if unsafe { libc::unshare(libc::CLONE_FILES) } == 0 {
        return Ok(());
    }
    let errno = rustix::io::Errno::from_io_error(&io::Error::last_os_error());
    Err(errno.unwrap_or(rustix::io::Errno::IO))
}

/// A tracer that is killed at a step that a test chooses.
#[cfg(test)]
pub(crate) mod faults {
    use rustix::process::{Signal, getpid, kill_process};
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Names the step for a process that the test starts; the first one is 1.
    pub(crate) const DIES_AT: &str = "KYMO_TEST_TRACER_DIES_AT";
    static STEPS: AtomicU64 = AtomicU64::new(0);

    /// How many steps there were.
    pub(crate) fn steps() -> u64 {
        // Relaxed: only one thread makes steps.
        STEPS.load(Ordering::Relaxed)
    }

    /// One more is about to be made: a request of ptrace, or writing memory of a held process.
    pub(crate) fn step() {
        static LAST: OnceLock<Option<u64>> = OnceLock::new();
        let last = LAST.get_or_init(|| std::env::var(DIES_AT).ok()?.parse().ok());
        // Relaxed: as above.
        if Some(STEPS.fetch_add(1, Ordering::Relaxed) + 1) == *last {
            kill_process(getpid(), Signal::KILL).expect("this process");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};

    /// Checks that who does not stop in time to be let go, as on a busy machine, can be taken
    /// again, stops once for both times, and runs on.
    #[test]
    fn taken_up_again() {
        let mut program = Command::new("sh");
        let mut program = program.args(["-c", "while :; do :; done"]).spawn().unwrap();
        let pid = program.id() as i32;
        let mut taken_up = 0;
        for _ in 0..200 {
            Traced::seize(pid).unwrap().let_go(Duration::ZERO);
            let mut again = Traced::seize(pid).unwrap();
            taken_up += u32::from(again.asked);
            again.interrupt().unwrap();
            assert!(matches!(again.wait(Duration::from_secs(20)), Ok(PtraceStop::Interrupted)));
            again.go(0).unwrap();
            // A second stop would come at once.
            assert!(again.wait(Duration::from_millis(1)).is_err());
        }
        assert!(taken_up > 0, "each stopped at once");
        program.kill().unwrap();
        program.wait().unwrap();
    }

    /// Checks that a signal which a thread has stopped before, while nobody looked, still reaches
    /// it when it is let go.
    #[test]
    fn signals_reach_who_is_let_go() {
        let mut program = Command::new("cat");
        let mut program = program.stdin(Stdio::piped()).spawn().unwrap();
        let pid = program.id();
        let traced = Traced::seize(pid as i32).unwrap();
        let id = rustix::process::Pid::from_raw(pid as i32).unwrap();
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
        while !std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") t ") {
            std::thread::yield_now();
        }
        drop(traced);
        // Otherwise it ends by the end of its input.
        assert_eq!(program.wait().unwrap().signal(), Some(libc::SIGTERM));
    }
}
