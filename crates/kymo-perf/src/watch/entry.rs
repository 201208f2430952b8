//! A command held at its first instruction: its program and libraries are mapped and linked, and
//! none of its own code has run.
//!
//! Addresses are known only after exec, and those of libraries only after the dynamic linker has
//! done its work. So the command is traced for that long: it stops at its exec, a breakpoint
//! instruction is put at the program's entry, and there it is held until everything is armed. Then
//! it is let go, and nobody traces it any more.
//!
//! What runs before is missed: the dynamic linker, and the constructors of libraries.
//!
//! # Safety
//! ptrace(2): requests with addresses of the *tracee*, and none of ours but two locals. Nothing of
//! this process is written.
#![allow(unsafe_code, reason = "ptrace")]
use crate::workload::Workload;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

/// In the auxiliary vector: the program's entry.
const AT_ENTRY: u64 = 9;

#[cfg(target_arch = "x86_64")]
const BREAK: &[u8] = &[0xcc];
#[cfg(target_arch = "aarch64")]
const BREAK: &[u8] = &[0x00, 0x00, 0x20, 0xd4];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const BREAK: &[u8] = &[];

/// A command that stands still at its first instruction. Dropping it lets it go. Use it in the
/// thread that made it: the kernel takes requests of that one only.
#[derive(Debug)]
pub struct CommandAtEntry {
    pid: i32,
    /// Not to be sent to other threads.
    _thread: std::marker::PhantomData<*const ()>,
}

/// What a traced process stopped for.
enum PtraceStop {
    Signal(i32),
    Event(i32),
    Ended,
}

/// Executes the command and holds it at its entry.
///
/// # Errors
/// What the exec says (ENOENT: no such command); EPERM where tracing is not permitted; ECHILD if
/// the command ended before its entry.
pub fn hold_at_entry(workload: &mut Workload) -> io::Result<CommandAtEntry> {
    let pid = workload.pid();
    let options = libc::PTRACE_O_TRACEEXEC | libc::PTRACE_O_EXITKILL;
    request(libc::PTRACE_SEIZE, pid, 0, options as usize)?;
    let held = CommandAtEntry { pid, _thread: std::marker::PhantomData };
    workload.start()?;
    loop {
        match held.wait()? {
            PtraceStop::Event(libc::PTRACE_EVENT_EXEC) => break,
            PtraceStop::Event(_) => held.go_on(0)?,
            PtraceStop::Signal(signal) => held.go_on(signal)?,
            PtraceStop::Ended => return Err(ended()),
        }
    }
    if !BREAK.is_empty() {
        held.run_to(entry(pid)?)?;
    }
    Ok(held)
}

fn ended() -> io::Error {
    io::Error::from_raw_os_error(libc::ECHILD)
}

/// The program's entry.
fn entry(pid: i32) -> io::Result<u64> {
    let words = fs::read(format!("/proc/{pid}/auxv"))?;
    let pairs = words.chunks_exact(16).map(|pair| pair.split_at(8));
    let word = |bytes: &[u8]| bytes.try_into().map(u64::from_ne_bytes).unwrap_or(0);
    let found = pairs.map(|(key, value)| (word(key), word(value))).find(|&(key, _)| key == AT_ENTRY);
    found.map(|(_, value)| value).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOEXEC))
}

impl CommandAtEntry {
    /// The process.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Lets it go; nobody traces it any more.
    pub fn release(self) {}

    /// Waits until it stops.
    fn wait(&self) -> io::Result<PtraceStop> {
        let mut status = 0;
        loop {
            // SAFETY: one local to write to.
            let got = unsafe { libc::waitpid(self.pid, &raw mut status, libc::__WALL) };
            if got >= 0 {
                break;
            }
            let error = io::Error::last_os_error();
            if error.raw_os_error() != Some(libc::EINTR) {
                return Err(error);
            }
        }
        Ok(match status {
            status if !libc::WIFSTOPPED(status) => PtraceStop::Ended,
            status if status >> 16 != 0 => PtraceStop::Event(status >> 16),
            status => PtraceStop::Signal(libc::WSTOPSIG(status)),
        })
    }

    fn go_on(&self, signal: i32) -> io::Result<()> {
        request(libc::PTRACE_CONT, self.pid, 0, signal as usize)
    }

    /// Runs it to an address of its code, before the instruction there.
    fn run_to(&self, address: u64) -> io::Result<()> {
        let memory = OpenOptions::new().read(true).write(true).open(format!("/proc/{}/mem", self.pid))?;
        let mut before = vec![0; BREAK.len()];
        memory.read_exact_at(&mut before, address)?;
        memory.write_all_at(BREAK, address)?;
        self.go_on(0)?;
        loop {
            match self.wait()? {
                PtraceStop::Signal(libc::SIGTRAP) if self.step_back(address)? => break,
                PtraceStop::Signal(signal) => self.go_on(signal)?,
                PtraceStop::Event(_) => self.go_on(0)?,
                PtraceStop::Ended => return Err(ended()),
            }
        }
        memory.write_all_at(&before, address)
    }

    /// Whether it stopped for the breakpoint at `address`; then that is where it goes on.
    #[cfg(target_arch = "x86_64")]
    fn step_back(&self, address: u64) -> io::Result<bool> {
        const RIP_AT: usize = std::mem::offset_of!(libc::user_regs_struct, rip);
        // SAFETY: reads a word of the tracee's registers; the answer comes back by value in glibc's
        // wrapper.
        let rip = unsafe { libc::ptrace(libc::PTRACE_PEEKUSER, self.pid, RIP_AT, 0usize) } as u64;
        if rip != address + BREAK.len() as u64 {
            return Ok(false);
        }
        request(libc::PTRACE_POKEUSER, self.pid, RIP_AT, address as usize)?;
        Ok(true)
    }

    /// The instruction is not passed on this architecture: it goes on where it stopped.
    #[cfg(not(target_arch = "x86_64"))]
    fn step_back(&self, _address: u64) -> io::Result<bool> {
        Ok(true)
    }
}

impl Drop for CommandAtEntry {
    fn drop(&mut self) {
        // It may have ended.
        let _ = request(libc::PTRACE_DETACH, self.pid, 0, 0);
    }
}

fn request(what: libc::c_uint, pid: i32, address: usize, data: usize) -> io::Result<()> {
    // SAFETY: the requests of this file (SEIZE, CONT, DETACH, POKEUSER) take numbers, no addresses
    // of this process.
    let result = unsafe { libc::ptrace(what, pid, address, data) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc::{Mappings, maps};
    use crate::workload::Exit;
    use std::ffi::OsString;

    fn command(words: &[&str]) -> Workload {
        Workload::prepare(&words.iter().map(OsString::from).collect::<Vec<_>>()).unwrap()
    }

    /// Checks that the C library is mapped and nothing was done yet, and that the command then runs
    /// as ever.
    #[test]
    fn held_with_its_libraries() {
        let directory = tempfile::tempdir().unwrap();
        let trace = directory.path().join("trace");
        let mut workload = command(&["touch", trace.to_str().unwrap()]);
        let held = match hold_at_entry(&mut workload) {
            Ok(held) => held,
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                return kymo_testing::skip("held_with_its_libraries", error);
            }
            Err(error) => panic!("{error}"),
        };
        let text = maps(held.pid());
        assert!(Mappings::new(&text).any(|map| map.path.windows(4).any(|part| part == b"libc")));
        assert!(!trace.exists());
        held.release();
        assert_eq!(workload.wait().unwrap(), Exit::Code(0));
        assert!(trace.exists());
    }

    /// Checks that a command that does not exist is told as such.
    #[test]
    fn no_such_command() {
        let mut workload = command(&["/no/such/command"]);
        match hold_at_entry(&mut workload) {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                kymo_testing::skip("no_such_command", error);
            }
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOENT)),
            Ok(_) => panic!("executed"),
        }
        assert_eq!(workload.wait().unwrap(), Exit::Code(127));
    }
}
