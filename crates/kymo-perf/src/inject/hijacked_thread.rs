//! A thread of the target that makes system calls and calls functions for us, on a stack that we
//! map, and then continues as if nothing had happened.
//!
//! ```text
//!  seize, interrupt --> stands still --> is it at a safe place? --> save --> write the way home --> system calls, calls --> restore --> let go
//!                            ^                 | no
//!                            '-- let it run a bit, or take another one
//! ```
//! A call returns to a `syscall` instruction of the C library with a stack pointer that nothing
//! else has there: the thread stops at the entry of that system call, with the function's result as
//! its number, and the call is suppressed. So no signal is used (a trap would take a blocked
//! handler away), and no byte of the target's text is changed.
//!
//! # When this process ends in the middle
//! Between any two requests it may be killed; the kernel then lets the thread go on with the
//! registers that it has. So the order is the guarantee, and `borrowed/tests.rs` ends a tracer
//! before each request:
//!
//! | the thread has | and goes |
//! |---|---|
//! | its own registers, its own mask | on |
//! | those of the gadget, its stack pointer below the way home on its own stack, its own mask | home (sigreturn.rs) |
//! | the same, or in a system call, with all signals held back | home, with its mask; a stack that was mapped stays |
//! | those of a function on the lent stack, whose return leads to the way home there | home, when the function has returned |
//! | its mask again, and the gadget's registers | home |
//! | its own registers, vectors and mask | on |
//!
//! A tracer that is stopped or starves keeps the thread waiting; its time limits count only time in
//! which it runs itself. When a function takes too long although it gets on, the thread is left to
//! it, and goes home afterwards. Only one that sleeps, as in a lock that its own thread holds, is
//! taken out of it.
use super::refusal::EnterError;
use super::restart::{REPEAT_UNLESS_HANDLED, restarts_by_another_call, was_interrupted_spuriously};
use super::room;
use super::safe_place::{self, UnsafePlaces};
use super::seccomp;
use super::sigreturn::{self, Gadgets, QUIET_BYTES};
use super::target::TargetProcess;
use super::unwind::Unwind;
use crate::proc;
use crate::sys::ptrace::{PtraceStop, Registers, Saved, Traced};
use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

/// For a system call.
const STEP: Duration = Duration::from_millis(500);
/// A thread in the middle of a disk access does not stop before it is over; there are others.
const STOPS: Duration = Duration::from_millis(50);
const TRIES: usize = 40;
/// Of all tries together.
const LOOKING: Duration = Duration::from_secs(10);
const STACK_BYTES: u64 = 256 << 10;
/// What one look may count of a time limit, however long this process did not run in between.
const SLICE: Duration = Duration::from_millis(10);
/// How long a thread may wait for a CPU.
const MOST_STARVED: Duration = Duration::from_secs(60);
/// For a called function that gets on, beyond its limit.
const OVERTIME: Duration = Duration::from_secs(30);

/// A held thread and the means to make it work.
#[derive(Debug)]
pub(super) struct HijackedThread<'t> {
    target: &'t TargetProcess,
    thread: Option<Traced>,
    saved: Saved,
    gadgets: Gadgets,
    /// The lent stack's first address.
    stack: u64,
    /// The way home on the thread's own stack: where a called function's return address is.
    own_way: u64,
    /// The one in use: that, or the one on the lent stack.
    way: u64,
    /// Where it is on the thread's own stack: unused memory, zero where another one may look for
    /// such.
    room: Range<u64>,
}

/// A thread that stands still where it may be borrowed.
struct SafeThread {
    thread: Traced,
    saved: Saved,
    has_signals: bool,
    room: Range<u64>,
}

/// What a called function returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReturnKind {
    /// An address or a negative number: never 0, nor the number of a system call.
    Value,
    /// Anything, which is lost.
    Nothing,
}

fn missing() -> EnterError {
    EnterError::Failed {
        step: "looking for its way back from signals",
        error: io::Error::new(io::ErrorKind::NotFound, "it is not where it should be"),
    }
}

/// How long the thread may take.
struct Allowance {
    left: Duration,
    overtime: Duration,
    /// How long it has waited for a CPU, which does not count.
    starved: Duration,
}

impl Allowance {
    fn of(limit: Duration) -> Allowance {
        Allowance { left: limit, overtime: Duration::ZERO, starved: Duration::ZERO }
    }

    /// Waits for a stop. While it runs or waits for a disk, overtime is granted.
    fn wait(&mut self, target: &TargetProcess, thread: &mut Traced) -> io::Result<PtraceStop> {
        let mut ran = None;
        loop {
            let begun = Instant::now();
            let stop = thread.wait(SLICE.min(self.left));
            let is_late = matches!(&stop, Err(error) if error.kind() == io::ErrorKind::TimedOut);
            if is_late && proc::state(target.pid, thread.tid()) == Some('R') {
                // Since the last look, of which the first one counts.
                let before = std::mem::replace(&mut ran, proc::ran(target.pid, thread.tid()));
                if ran.is_some() && ran == before && self.starved < MOST_STARVED {
                    self.starved += begun.elapsed();
                    continue;
                }
            }
            self.left = self.left.saturating_sub(begun.elapsed().min(SLICE));
            if !is_late {
                return stop;
            }
            if self.left.is_zero() {
                if self.overtime.is_zero() || proc::state(target.pid, thread.tid()) == Some('S') {
                    return stop;
                }
                self.left = self.overtime.min(Duration::from_secs(1));
                self.overtime -= self.left;
            }
        }
    }
}

impl<'t> HijackedThread<'t> {
    /// Borrows a thread that stands where it holds no lock of the allocator or the dynamic linker.
    pub(super) fn take(
        target: &'t TargetProcess,
        unwinder: Option<&mut (dyn Unwind + '_)>,
    ) -> Result<HijackedThread<'t>, EnterError> {
        let gadgets = Gadgets::of(target).ok_or_else(missing)?;
        let places = UnsafePlaces::of(target);
        Self::take_one_of(target, gadgets, &places, unwinder, None)
    }

    /// Borrows the first thread of a program that need not have a C library, for system calls only:
    /// wherever it stands, but not in a restartable sequence. Other threads' stacks are not known
    /// there.
    pub(super) fn take_first(target: &'t TargetProcess) -> Result<HijackedThread<'t>, EnterError> {
        let gadgets = Gadgets::anywhere(target).ok_or_else(missing)?;
        Self::take_one_of(target, gadgets, &UnsafePlaces::default(), None, Some(target.pid))
    }

    /// Borrows a thread that stands still already, at the first instruction of its program. It is
    /// not let go by [`HijackedThread::put_back`].
    pub(super) fn of_stopped(
        target: &'t TargetProcess,
        thread: Traced,
    ) -> Result<HijackedThread<'t>, EnterError> {
        let gadgets = Gadgets::anywhere(target).ok_or_else(missing)?;
        let failed = EnterError::failed("looking at its first thread");
        let saved = thread.save().map_err(&failed)?;
        let room = room::of(target, target.pid, saved.registers(), sigreturn::bytes(&saved), None)
            .map_err(failed)?;
        let room = room.ok_or_else(|| EnterError::Busy("on a stack with no room below it".to_owned()))?;
        let has_signals = target.has_signals(target.pid);
        Self::prepare(target, SafeThread { thread, saved, has_signals, room }, gadgets)
    }

    /// Borrows this thread, or one of all.
    fn take_one_of(
        target: &'t TargetProcess,
        gadgets: Gadgets,
        places: &UnsafePlaces,
        mut unwinder: Option<&mut (dyn Unwind + '_)>,
        only: Option<i32>,
    ) -> Result<HijackedThread<'t>, EnterError> {
        let mut last = "where it does not stop".to_owned();
        let until = Instant::now() + LOOKING;
        for attempt in 0..TRIES {
            if Instant::now() >= until {
                break;
            }
            let all = || proc::tasks(target.pid).map_err(|_| EnterError::Gone);
            let tasks = only.map_or_else(all, |only| Ok(vec![only]))?;
            // Not always the same ones in a process of thousands; the first thread first.
            let from = if attempt == 0 { 0 } else { attempt * 7 % tasks.len() };
            for tid in tasks.iter().cycle().skip(from).take(tasks.len().min(8)) {
                let unwinder = unwinder.as_mut().map(|unwinder| &mut **unwinder as &mut dyn Unwind);
                let left = only.map(|_| gadgets.begin());
                match Self::hold(target, *tid, places, unwinder, left) {
                    Ok(Ok(standing)) => return Self::prepare(target, standing, gadgets),
                    Ok(Err(place)) => last = place,
                    Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                        return Err(super::target::not_permitted(target.pid));
                    }
                    // It ended, or does not stop.
                    Err(_) => {}
                }
            }
            std::thread::sleep(Duration::from_micros(200 << attempt.min(6)));
        }
        Err(EnterError::Busy(last))
    }

    /// Stops a thread, and lets it go again if it stands where it must not be borrowed: then the
    /// place in words.
    fn hold(
        target: &TargetProcess,
        tid: i32,
        places: &UnsafePlaces,
        unwinder: Option<&mut (dyn Unwind + '_)>,
        left: Option<[u8; 16]>,
    ) -> io::Result<Result<SafeThread, String>> {
        let mut thread = Traced::seize(tid)?;
        let gone = || io::Error::from_raw_os_error(libc::ESRCH);
        // The number may be another process's by now.
        if !thread.is_of(target.pid) {
            return Err(gone());
        }
        thread.interrupt()?;
        match thread.wait(STOPS)? {
            PtraceStop::Interrupted => {}
            PtraceStop::Signal(signal) => {
                thread.release(signal)?;
                return Ok(Err("before a signal".to_owned()));
            }
            PtraceStop::Gone => return Err(gone()),
            _ => return Ok(Err("at an event".to_owned())),
        }
        let mut registers = thread.registers()?;
        let is_filtered = seccomp::is_filtered(tid);
        if was_interrupted_spuriously(&registers) || (is_filtered && restarts_by_another_call(&registers)) {
            // At once, for it may have to go on by what the registers say.
            registers.rax = REPEAT_UNLESS_HANDLED as u64;
            thread.set_registers(&registers)?;
        }
        // What is known of its memory is not known of that of another program that it has executed
        // since.
        if !target.is_memory_of(tid) {
            return Err(gone());
        }
        if is_filtered {
            // It may have put that on since the process was looked at.
            return Ok(Err("one that has restricted its own system calls".to_owned()));
        }
        if let Some(place) = safe_place::unsafe_reason(target, &thread, &registers, places, unwinder) {
            return Ok(Err(place));
        }
        let saved = thread.save()?;
        let Some(room) = room::of(target, tid, &registers, sigreturn::bytes(&saved), left)? else {
            return Ok(Err("on a stack with no room below it".to_owned()));
        };
        let has_signals = target.has_signals(tid);
        Ok(Ok(SafeThread { thread, saved, has_signals, room }))
    }

    fn prepare(
        target: &'t TargetProcess,
        standing: SafeThread,
        gadgets: Gadgets,
    ) -> Result<HijackedThread<'t>, EnterError> {
        let SafeThread { thread, saved, has_signals, room } = standing;
        gadgets.plant(target).map_err(EnterError::failed("writing what a thread needs"))?;
        let way = |saved: &Saved, memory: Range<u64>| {
            sigreturn::prepare(target, saved, has_signals, gadgets, memory)
                .map_err(EnterError::failed("writing a thread's way home"))
        };
        let own_way = way(&saved, room.clone()).inspect_err(|_| gadgets.remove(target))?;
        let mut borrowed = HijackedThread {
            target,
            thread: Some(thread),
            saved,
            gadgets,
            stack: 0,
            own_way,
            way: own_way,
            room,
        };
        let at_gadget = borrowed.at_gadget();
        let thread = borrowed.thread()?;
        // The way home first, then the mask: with all signals held back nobody must be left alone.
        thread.set_registers(&at_gadget).map_err(EnterError::failed("moving a thread"))?;
        // Handlers would run on our stack, and could jump away from it. All but KILL and STOP,
        // which cannot wait.
        thread.set_signal_mask(u64::MAX).map_err(EnterError::failed("holding signals back"))?;
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let (size, prot, flags) = (STACK_BYTES, prot as u64, flags as u64);
        borrowed.stack =
            borrowed.system_call("mapping a stack", libc::SYS_mmap, [0, size, prot, flags, u64::MAX, 0])?;
        borrowed.way = way(&borrowed.saved, borrowed.stack..borrowed.stack + STACK_BYTES)?;
        Ok(borrowed)
    }

    /// The stack that was lent: where it begins, and its bytes. The thread does not need it when it
    /// was given back.
    pub(super) fn stack(&self) -> (u64, u64) {
        (self.stack, STACK_BYTES)
    }

    fn thread(&mut self) -> Result<&mut Traced, EnterError> {
        self.thread.as_mut().ok_or(EnterError::Gone)
    }

    /// The saved registers, with no system call to be repeated when the thread goes on.
    fn clean(&self) -> Registers {
        Registers { orig_rax: u64::MAX, ..*self.saved.registers() }
    }

    /// At the gadget, and from there home.
    fn at_gadget(&self) -> Registers {
        // Whatever comes of it, this does nothing.
        let rax = libc::SYS_getpid as u64;
        Registers { rip: self.gadgets.syscall, rax, rsp: self.way + 8, ..self.clean() }
    }

    /// Makes the thread make a system call.
    pub(super) fn system_call(
        &mut self,
        step: &'static str,
        number: libc::c_long,
        args: [u64; 6],
    ) -> Result<u64, EnterError> {
        let [rdi, rsi, rdx, r10, r8, r9] = args;
        let rax = number as u64;
        let registers = Registers { rax, rdi, rsi, rdx, r10, r8, r9, ..self.at_gadget() };
        let failed = EnterError::failed(step);
        self.thread()?.set_registers(&registers).map_err(&failed)?;
        let mut allowance = Allowance::of(STEP);
        // In, and out.
        for _ in 0..2 {
            self.run_to_system_call(&mut allowance).map_err(&failed)?;
        }
        let result = self.thread()?.registers().map_err(&failed)?.rax as i64;
        if (-4095..0).contains(&result) {
            return Err(EnterError::Failed { step, error: io::Error::from_raw_os_error(-result as i32) });
        }
        Ok(result as u64)
    }

    fn run_to_system_call(&mut self, allowance: &mut Allowance) -> io::Result<()> {
        let gone = || io::Error::from_raw_os_error(libc::ESRCH);
        let thread = self.thread.as_mut().ok_or_else(gone)?;
        loop {
            thread.go_to_system_call()?;
            match allowance.wait(self.target, thread)? {
                PtraceStop::SystemCall => return Ok(()),
                PtraceStop::Gone => return Err(gone()),
                // A fault of the called code: a signal that cannot be held back. Nobody here can
                // handle it.
                PtraceStop::Signal(
                    signal @ (libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE | libc::SIGTRAP),
                ) => {
                    return Err(io::Error::other(format!("the called code faulted (signal {signal})")));
                }
                PtraceStop::Signal(_) | PtraceStop::Interrupted | PtraceStop::Event(_) => {}
            }
        }
    }

    /// Puts bytes on the lent stack, for a call's arguments to point at. They stay until the thread
    /// is given back.
    pub(super) fn lend(&mut self, bytes: &[u8]) -> Result<u64, EnterError> {
        let at = self.stack + 64;
        if bytes.len() as u64 > STACK_BYTES / 4 {
            return Err(EnterError::Failed {
                step: "lending memory",
                error: io::ErrorKind::FileTooLarge.into(),
            });
        }
        self.target.write(at, bytes).map_err(EnterError::failed("writing to the lent stack"))?;
        Ok(at)
    }

    /// Reads what a call left where it was told to.
    pub(super) fn read(&self, at: u64, bytes: &mut [u8]) -> Result<(), EnterError> {
        self.target.read(at, bytes).map_err(EnterError::failed("reading a result"))
    }

    /// Writes memory of the process, where it was mapped for us.
    pub(super) fn write(&self, at: u64, bytes: &[u8]) -> Result<(), EnterError> {
        self.target.write(at, bytes).map_err(EnterError::failed("writing memory that is ours in it"))
    }

    /// Makes the thread call a C function and gives its result, or 0 where that is lost.
    pub(super) fn call(
        &mut self,
        step: &'static str,
        function: u64,
        args: [u64; 3],
        limit: Duration,
        returns: ReturnKind,
    ) -> Result<u64, EnterError> {
        let failed = EnterError::failed(step);
        let (way, gadgets) = (self.way, self.gadgets);
        let (to, stops_at) = match gadgets.quiet.filter(|_| returns == ReturnKind::Nothing) {
            Some(quiet) => (quiet, quiet + QUIET_BYTES),
            None => (gadgets.syscall, gadgets.syscall + 2),
        };
        self.target.write(way, &to.to_le_bytes()).map_err(&failed)?;
        let [rdi, rsi, rdx] = args;
        // Without the direction flag.
        let eflags = self.saved.registers().eflags & !0x400;
        let registers =
            Registers { rip: function, rsp: way, rbp: 0, rax: 0, rdi, rsi, rdx, eflags, ..self.clean() };
        self.thread()?.set_registers(&registers).map_err(&failed)?;
        let mut allowance = Allowance { overtime: OVERTIME, ..Allowance::of(limit) };
        loop {
            if let Err(error) = self.run_to_system_call(&mut allowance) {
                self.stop_again();
                return Err(failed(error));
            }
            let registers = self.thread()?.registers().map_err(&failed)?;
            if registers.rip == stops_at && registers.rsp == way + 8 {
                let result = registers.orig_rax;
                // The entry of a system call that nobody meant: skip it.
                self.thread()?
                    .set_registers(&Registers { orig_rax: u64::MAX, ..registers })
                    .map_err(&failed)?;
                self.run_to_system_call(&mut Allowance::of(STEP)).map_err(&failed)?;
                return Ok(if returns == ReturnKind::Value { result } else { 0 });
            }
        }
    }

    /// After a time limit the thread runs. One that sleeps must stand still to be put back; one
    /// that gets on is left alone.
    fn stop_again(&mut self) {
        let Some(mut thread) = self.thread.take() else { return };
        let stands = thread.registers().is_ok();
        if !stands && proc::state(self.target.pid, thread.tid()) != Some('S') {
            // This thread of ours ends with the attempt.
            return thread.leave_to_the_kernel();
        }
        if !stands && thread.interrupt().is_ok() {
            _ = thread.wait(STEP);
        }
        self.thread = Some(thread);
    }

    /// Gives the thread back: restores everything, lets it go on. `unmaps`: takes the lent stack
    /// down before.
    pub(super) fn give_back(mut self, unmaps: bool) -> Result<(), EnterError> {
        self.way = self.own_way;
        if unmaps {
            let (stack, size) = self.stack();
            _ = self.system_call("unmapping a stack", libc::SYS_munmap, [stack, size, 0, 0, 0, 0]);
        }
        self.restore().map_err(EnterError::failed("putting a thread back"))
    }

    /// Restores everything, and leaves the thread stopped as it was.
    pub(super) fn put_back(mut self) -> Result<Traced, EnterError> {
        self.way = self.own_way;
        let (stack, size) = self.stack();
        _ = self.system_call("unmapping a stack", libc::SYS_munmap, [stack, size, 0, 0, 0, 0]);
        let restored = self.stop_restored().map_err(EnterError::failed("putting a thread back"))?;
        restored.map(|(thread, _)| thread).ok_or(EnterError::Gone)
    }

    fn restore(&mut self) -> io::Result<()> {
        match self.stop_restored()? {
            Some((thread, signal)) => thread.release(signal),
            None => Ok(()),
        }
    }

    /// Has the thread stand still with all that was saved, and the signal that it has stopped
    /// before, or 0.
    fn stop_restored(&mut self) -> io::Result<Option<(Traced, i32)>> {
        self.way = self.own_way;
        let Some(mut thread) = self.thread.take() else { return Ok(None) };
        // A system call that was interrupted is repeated by the kernel only on the way out of a
        // stop like the first one.
        thread.set_registers(&self.at_gadget())?;
        thread.interrupt()?;
        thread.go(0)?;
        let stop = Allowance::of(STEP).wait(self.target, &mut thread)?;
        if stop == PtraceStop::Gone {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        thread.restore(&self.saved)?;
        self.gadgets.remove(self.target);
        // The way home is not needed any more. Memory that was zero is so for the next one.
        _ = self.target.write(self.room.start, &vec![0; (self.room.end - self.room.start) as usize]);
        let signal = if let PtraceStop::Signal(signal) = stop { signal } else { 0 };
        Ok(Some((thread, signal)))
    }
}

impl Drop for HijackedThread<'_> {
    fn drop(&mut self) {
        // An error on the way: the stack stays mapped, but the thread goes on where it was.
        _ = self.restore();
    }
}

#[cfg(test)]
mod tests;
