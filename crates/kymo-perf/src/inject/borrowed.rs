//! A thread of the target that works for us for a moment: it makes system calls and calls functions on a stack that we gave it, and goes
//! on as if nothing had been.
//!
//! ```text
//!  seize, interrupt --> stands still --> is it at a safe place? --> save --> system calls, calls --> restore --> let go
//!                            ^                 | no
//!                            '-- let it run a bit, or take another one
//! ```
//! A call returns to a `syscall` instruction of the vDSO with a stack pointer that nothing else has there: the thread stops at the entry of
//! that system call, with the function's result as its number, and the call is suppressed. So no signal is used (a trap would take a
//! blocked handler away), and no byte of the target's text is changed.
//!
//! A borrower that is killed meanwhile lets the thread go as it is. Then it goes home by itself when the call is over (escape.rs). What is not safe by
//! that is the first system call, which makes the stack: some ten microseconds.
use super::escape::{self, Ways};
use super::refusal::Refusal;
use super::symbols::{Function, Symbols};
use super::target::Target;
use crate::proc;
use crate::sys::ptrace::{Registers, Saved, Stop, Traced};
use std::io;
use std::time::{Duration, Instant};

const STEP: Duration = Duration::from_millis(500);
/// A thread in the middle of a disk access does not stop before it is over; there are others.
const STOPS: Duration = Duration::from_millis(50);
const TRIES: usize = 40;
/// Of all tries together.
const LOOKING: Duration = Duration::from_secs(10);
const STACK_BYTES: u64 = 256 << 10;
/// Above the stack pointer where return addresses of functions that must not be interrupted are looked for.
const LOOKED_AT_BYTES: usize = 4 << 10;

/// Functions that hold locks which the loader needs, too.
const UNSAFE: [&str; 14] = [
    "malloc",
    "free",
    "calloc",
    "realloc",
    "memalign",
    "aligned_alloc",
    "posix_memalign",
    "malloc_trim",
    "dlopen",
    "dlclose",
    "dlsym",
    "dl_iterate_phdr",
    "fork",
    "pthread_create",
];

/// A held thread and the means to make it work.
#[derive(Debug)]
pub(super) struct Borrowed<'t> {
    target: &'t Target,
    thread: Option<Traced>,
    saved: Saved,
    gate: u64,
    stack: u64,
    /// Where the gate's address is for calls to return to.
    pointer: u64,
    ways: Option<Ways>,
    /// The way home is written behind that.
    has_way: bool,
}

/// Where the loader's locks may be held.
fn unsafe_places(target: &Target) -> Vec<Function> {
    let modules = target.modules().unwrap_or_default();
    let offers =
        modules.iter().filter_map(|(base, _)| Symbols::of(target, *base).ok()?.functions(UNSAFE).ok());
    offers.flatten().flatten().collect()
}

/// Whether it was in a system call that ends with EINTR when the thread is stopped, although no signal came: programs seldom expect that.
fn never_repeated(registers: &Registers) -> bool {
    let calls = [
        libc::SYS_epoll_wait,
        libc::SYS_epoll_pwait,
        libc::SYS_epoll_pwait2,
        libc::SYS_semop,
        libc::SYS_semtimedop,
        libc::SYS_rt_sigtimedwait,
        libc::SYS_io_getevents,
    ];
    registers.rax as i64 == -i64::from(libc::EINTR) && calls.contains(&(registers.orig_rax as libc::c_long))
}

impl<'t> Borrowed<'t> {
    /// Borrows a thread that stands in a system call, or elsewhere in no function that holds the loader's locks.
    pub(super) fn take(target: &'t Target) -> Result<Borrowed<'t>, Refusal> {
        let ways = Ways::of(target);
        let gate = match ways {
            Some(ways) => ways.gate,
            None => target
                .system_call_instruction()
                .map_err(Refusal::failed("looking for a way to make system calls"))?,
        };
        let places = unsafe_places(target);
        let mut last = "where it does not stop".to_owned();
        let until = Instant::now() + LOOKING;
        for attempt in 0..TRIES {
            if Instant::now() >= until {
                break;
            }
            let tasks = proc::tasks(target.pid).map_err(|_| Refusal::Gone)?;
            // Not always the same ones in a process of thousands; the first thread first.
            let from = if attempt == 0 { 0 } else { attempt * 7 % tasks.len() };
            for tid in tasks.iter().cycle().skip(from).take(tasks.len().min(8)) {
                match Self::hold(target, *tid, &places) {
                    Ok(Ok(thread)) => return Self::prepare(target, thread, gate, ways),
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
        Err(Refusal::Busy { last })
    }

    /// Stops a thread, and lets it go again if it stands where it must not be borrowed: then the place in words.
    fn hold(target: &Target, tid: i32, places: &[Function]) -> io::Result<Result<Traced, String>> {
        let mut thread = Traced::seize(tid)?;
        let gone = || io::Error::from_raw_os_error(libc::ESRCH);
        // The number may be another process's by now.
        if !thread.is_of(target.pid) {
            return Err(gone());
        }
        thread.interrupt()?;
        match thread.wait(STOPS)? {
            Stop::Interrupted => {}
            Stop::Signal(signal) => {
                thread.release(signal)?;
                return Ok(Err("before a signal".to_owned()));
            }
            Stop::Gone => return Err(gone()),
            _ => return Ok(Err("at an event".to_owned())),
        }
        // What is known of its memory is not known of that of another program that it has executed since.
        if !target.is_memory_of(tid) {
            return Err(gone());
        }
        let registers = thread.registers()?;
        // A 32-bit moment of a 64-bit process.
        if registers.cs != 0x33 {
            return Ok(Err("in 32-bit code".to_owned()));
        }
        let mut stack = [0; LOOKED_AT_BYTES];
        // A stack's end is an error, and then only what can be read is looked at.
        let looked_at = [LOOKED_AT_BYTES, 512, 64];
        let read = looked_at.iter().find(|bytes| target.read(registers.rsp, &mut stack[..**bytes]).is_ok());
        let words = stack[..read.copied().unwrap_or(0)].chunks_exact(8);
        let addresses = words.map(|word| u64::from_le_bytes(word.try_into().unwrap_or([0; 8])));
        let mut held = std::iter::once(registers.rip).chain(addresses);
        let within = |at: u64| places.iter().any(|place| (place.start..place.end).contains(&at));
        if let Some(at) = held.find(|at| within(*at)) {
            return Ok(Err(format!(
                "in a function that may hold the allocator's or the loader's lock, {at:#x}"
            )));
        }
        Ok(Ok(thread))
    }

    fn prepare(
        target: &'t Target,
        thread: Traced,
        gate: u64,
        ways: Option<Ways>,
    ) -> Result<Borrowed<'t>, Refusal> {
        let mut saved = thread.save().map_err(Refusal::failed("saving a thread's registers"))?;
        if never_repeated(saved.registers()) && !target.has_signals(thread.tid()) {
            saved.repeat_system_call();
        }
        // Handlers would run on our stack, and could jump away from it. All but KILL and STOP, which cannot wait.
        thread.set_signal_mask(u64::MAX).map_err(Refusal::failed("holding signals back"))?;
        let (stack, pointer, has_way) = (0, 0, false);
        let mut borrowed =
            Borrowed { target, thread: Some(thread), saved, gate, stack, pointer, ways, has_way };
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let size = STACK_BYTES;
        borrowed.stack = borrowed.system_call(
            "mapping a stack",
            libc::SYS_mmap,
            [0, size, prot as u64, flags as u64, u64::MAX, 0],
        )?;
        let stack = borrowed.stack;
        // As after a call instruction: 8 below a multiple of 16.
        borrowed.pointer = stack + STACK_BYTES - 72;
        if let Some(ways) = borrowed.ways
            && let Ok(pointer) = escape::prepare(target, &borrowed.saved, ways, stack..stack + STACK_BYTES)
        {
            (borrowed.pointer, borrowed.has_way) = (pointer, true);
            let registers = borrowed.at_gate();
            borrowed
                .thread()?
                .set_registers(&registers)
                .map_err(Refusal::failed("showing a thread the way home"))?;
        }
        Ok(borrowed)
    }

    /// The stack that was lent: where it begins, and its bytes. With a way home in it the thread cannot take it down itself.
    pub(super) fn stack(&self) -> (u64, u64) {
        if self.has_way { (self.stack, STACK_BYTES) } else { (0, 0) }
    }

    fn thread(&mut self) -> Result<&mut Traced, Refusal> {
        self.thread.as_mut().ok_or(Refusal::Gone)
    }

    /// The saved registers, with no system call to be repeated when the thread goes on.
    fn clean(&self) -> Registers {
        Registers { orig_rax: u64::MAX, ..*self.saved.registers() }
    }

    /// At the gate, and from there home where that is possible.
    fn at_gate(&self) -> Registers {
        let rsp = if self.has_way { self.pointer + 8 } else { self.saved.registers().rsp };
        // Whatever comes of it, this does nothing.
        Registers { rip: self.gate, rax: libc::SYS_getpid as u64, rsp, ..self.clean() }
    }

    /// Makes the thread make a system call.
    pub(super) fn system_call(
        &mut self,
        step: &'static str,
        number: libc::c_long,
        args: [u64; 6],
    ) -> Result<u64, Refusal> {
        let [rdi, rsi, rdx, r10, r8, r9] = args;
        let rax = number as u64;
        let registers = Registers { rax, rdi, rsi, rdx, r10, r8, r9, ..self.at_gate() };
        let failed = Refusal::failed(step);
        self.thread()?.set_registers(&registers).map_err(&failed)?;
        // In, and out.
        for _ in 0..2 {
            self.run_to_system_call(Instant::now() + STEP).map_err(&failed)?;
        }
        let result = self.thread()?.registers().map_err(&failed)?.rax as i64;
        if (-4095..0).contains(&result) {
            return Err(Refusal::Failed { step, error: io::Error::from_raw_os_error(-result as i32) });
        }
        Ok(result as u64)
    }

    fn run_to_system_call(&mut self, until: Instant) -> io::Result<()> {
        let gone = || io::Error::from_raw_os_error(libc::ESRCH);
        let thread = self.thread.as_mut().ok_or_else(gone)?;
        loop {
            thread.go_to_system_call()?;
            match thread.wait(until.saturating_duration_since(Instant::now()))? {
                Stop::SystemCall => return Ok(()),
                Stop::Gone => return Err(gone()),
                // A fault of the called code: a signal that cannot be held back. Nobody here can handle it.
                Stop::Signal(
                    signal @ (libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE | libc::SIGTRAP),
                ) => {
                    return Err(io::Error::other(format!("the called code faulted (signal {signal})")));
                }
                Stop::Signal(_) | Stop::Interrupted | Stop::Event(_) => {}
            }
        }
    }

    /// Puts bytes on the lent stack, for a call's arguments to point at. They stay until the thread is given back.
    pub(super) fn lend(&mut self, bytes: &[u8]) -> Result<u64, Refusal> {
        let at = self.stack + 64;
        if bytes.len() as u64 > STACK_BYTES / 4 {
            return Err(Refusal::Failed {
                step: "lending memory",
                error: io::ErrorKind::FileTooLarge.into(),
            });
        }
        self.target.write(at, bytes).map_err(Refusal::failed("writing to the lent stack"))?;
        Ok(at)
    }

    /// Reads what a call left where it was told to.
    pub(super) fn read(&self, at: u64, bytes: &mut [u8]) -> Result<(), Refusal> {
        self.target.read(at, bytes).map_err(Refusal::failed("reading a result"))
    }

    /// Makes the thread call a C function and gives its result.
    pub(super) fn call(
        &mut self,
        step: &'static str,
        function: u64,
        args: [u64; 3],
        limit: Duration,
    ) -> Result<u64, Refusal> {
        let failed = Refusal::failed(step);
        let pointer = self.pointer;
        self.target.write(pointer, &self.gate.to_le_bytes()).map_err(&failed)?;
        let [rdi, rsi, rdx] = args;
        // No vector arguments (al), direction flag clear.
        let eflags = self.saved.registers().eflags & !0x400;
        let registers =
            Registers { rip: function, rsp: pointer, rbp: 0, rax: 0, rdi, rsi, rdx, eflags, ..self.clean() };
        self.thread()?.set_registers(&registers).map_err(&failed)?;
        let until = Instant::now() + limit;
        loop {
            if let Err(error) = self.run_to_system_call(until) {
                self.stop_again();
                return Err(failed(error));
            }
            let registers = self.thread()?.registers().map_err(&failed)?;
            if registers.rip == self.gate + 2 && registers.rsp == pointer + 8 {
                let result = registers.orig_rax;
                // The entry of a system call that nobody meant: skip it.
                self.thread()?
                    .set_registers(&Registers { orig_rax: u64::MAX, ..registers })
                    .map_err(&failed)?;
                self.run_to_system_call(Instant::now() + STEP).map_err(&failed)?;
                return Ok(result);
            }
        }
    }

    /// After a time limit the thread runs: it must stand still to be put back.
    fn stop_again(&mut self) {
        if let Some(thread) = self.thread.as_mut()
            && thread.interrupt().is_ok()
        {
            _ = thread.wait(STEP);
        }
    }

    /// Gives the thread back: restores everything, lets it go on. `unmaps`: takes the stack down before, and the way home with it.
    pub(super) fn give_back(mut self, unmaps: bool) -> Result<(), Refusal> {
        if unmaps || !self.has_way {
            let (stack, size) = (self.stack, STACK_BYTES);
            self.has_way = false;
            _ = self.system_call("unmapping a stack", libc::SYS_munmap, [stack, size, 0, 0, 0, 0]);
        }
        self.restore().map_err(Refusal::failed("putting a thread back"))
    }

    fn restore(&mut self) -> io::Result<()> {
        let Some(mut thread) = self.thread.take() else { return Ok(()) };
        // A system call that was interrupted is repeated by the kernel only on the way out of a stop like the first one.
        thread.set_registers(&self.at_gate())?;
        thread.interrupt()?;
        thread.go(0)?;
        let stop = thread.wait(STEP)?;
        if stop == Stop::Gone {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        thread.restore(&self.saved)?;
        thread.release(if let Stop::Signal(signal) = stop { signal } else { 0 })
    }
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        // An error on the way: the stack stays mapped, but the thread goes on where it was.
        _ = self.restore();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::process::{Child, Command, Stdio};

    fn started(program: &str) -> Child {
        let mut command = Command::new(program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    }

    fn function(target: &Target, name: &'static str) -> u64 {
        let modules = target.modules().unwrap();
        let found = modules.iter().find_map(|(base, _)| {
            let [found] = Symbols::of(target, *base).ok()?.functions([name]).ok()?;
            found
        });
        found.unwrap().start
    }

    /// Borrows a thread as somebody who is killed: by a thread that ends in the middle. `None` if it cannot be borrowed now.
    fn borrow_and_vanish(pid: i32, works: impl Fn(&Target, &mut Borrowed<'_>) + Sync) -> Option<()> {
        let borrow = || {
            let target = Target::look(pid).ok()?;
            let mut borrowed = Borrowed::take(&target).ok()?;
            if !borrowed.has_way {
                // Its C library is not loaded yet.
                borrowed.give_back(true).unwrap();
                return None;
            }
            works(&target, &mut borrowed);
            borrowed.thread.take()?.leave_to_the_kernel();
            Some(())
        };
        std::thread::scope(|scope| scope.spawn(borrow).join().unwrap())
    }

    /// Checks that a thread which waits in a system call goes on waiting when its borrower vanishes: before it has worked, after a system call, in the
    /// middle of a function and after it; and that none of its signals is blocked then.
    #[test]
    fn the_borrower_vanishes() {
        if !cfg!(target_arch = "x86_64") {
            return kymo_testing::skip(
                "inject::borrowed::the_borrower_vanishes",
                "x86-64 programs are entered only",
            );
        }
        let mut program = started("cat");
        let (mut input, mut output) = (program.stdin.take().unwrap(), program.stdout.take().unwrap());
        let pid = program.id() as i32;
        let mut echo = |text: &[u8; 8]| {
            input.write_all(text).unwrap();
            let mut back = [0; 8];
            output.read_exact(&mut back).unwrap();
            assert_eq!(&back, text);
        };
        echo(b"begins.\n");
        let before = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let before = super::super::target::field(&before, "SigBlk").unwrap().to_owned();
        let long = Duration::from_secs(20);
        type Work<'w> = &'w (dyn Fn(&Target, &mut Borrowed<'_>) + Sync);
        let works: [Work<'_>; 4] = [
            &|_, _| {},
            &|_, borrowed| _ = borrowed.system_call("asking", libc::SYS_getpid, [0; 6]).unwrap(),
            &|target, borrowed| {
                let sleep = function(target, "usleep");
                assert!(
                    borrowed.call("sleeping", sleep, [100_000, 0, 0], Duration::from_millis(10)).is_err()
                );
            },
            &|target, borrowed| {
                let ask = function(target, "getppid");
                assert_eq!(
                    borrowed.call("asking", ask, [0; 3], long).unwrap(),
                    u64::from(std::process::id())
                );
            },
        ];
        for round in 0..5 {
            for work in works {
                let until = Instant::now() + long;
                // On a busy machine it may not stop in time.
                while borrow_and_vanish(pid, work).is_none() {
                    assert!(Instant::now() < until, "round {round}: it cannot be borrowed");
                }
                // It is home when it waits as it did before.
                let until = Instant::now() + long;
                loop {
                    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
                    let blocked = super::super::target::field(&status, "SigBlk").unwrap_or_default();
                    if blocked == before {
                        break;
                    }
                    assert!(Instant::now() < until, "round {round}: {status}");
                    std::thread::sleep(Duration::from_millis(1));
                }
                echo(b"goes on\n");
            }
        }
        drop(input);
        assert!(program.wait().unwrap().success());
    }

    /// Checks that a program which computes, with vector registers among others, computes the same when borrowers vanish at any moment.
    #[test]
    fn while_it_computes() {
        const NAME: &str = "inject::borrowed::while_it_computes";
        if !cfg!(target_arch = "x86_64") || Command::new("sha256sum").arg("--version").output().is_err() {
            return kymo_testing::skip(NAME, "no sha256sum, or not x86-64");
        }
        let sum = |meanwhile: &dyn Fn(i32)| {
            let mut program = started("sha256sum");
            let mut input = program.stdin.take().unwrap();
            let feed = std::thread::spawn(move || {
                let block: Vec<u8> = (0..1 << 20).map(|at: u32| (at % 251) as u8).collect();
                for _ in 0..200 {
                    input.write_all(&block).unwrap();
                }
            });
            meanwhile(program.id() as i32);
            feed.join().unwrap();
            let output = program.wait_with_output().unwrap();
            assert!(output.status.success(), "{:?}", output.status);
            output.stdout
        };
        let plain = sum(&|_| {});
        let disturbed = sum(&|pid| {
            for _ in 0..20 {
                let work = |target: &Target, borrowed: &mut Borrowed<'_>| {
                    let ask = function(target, "getppid");
                    _ = borrowed.call("asking", ask, [0; 3], Duration::from_secs(20)).unwrap();
                };
                _ = borrow_and_vanish(pid, work);
            }
        });
        assert_eq!(disturbed, plain);
    }
}
