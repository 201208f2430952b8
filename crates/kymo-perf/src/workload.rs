//! The command that is started to be observed: forked early, held until everything is ready, then
//! executed.
//!
//! ```text
//!  parent                          child
//!  fork ------------------------>  reads one byte from the "go" pipe
//!  opens events for its pid        (waits)
//!  writes the byte ------------->  exec; on failure sends errno through the "error" pipe, which exec closes
//!  reads the error pipe: end = running
//! ```
//! If the parent dies or gives up before that, the child reads the end of the pipe and exits
//! without a trace.
//!
//! # Safety
//! fork in a process that may have threads: between fork and exec the child makes only
//! async-signal-safe calls, on memory that was prepared before.
#![allow(unsafe_code, reason = "fork, and what the child does until exec")]
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, PoisonError};

/// The command that was started last. It stays when that has ended: a signal is then sent to nobody.
static STARTED: Mutex<Option<OwnedFd>> = Mutex::new(None);

/// What the child reads from the "go" pipe: execute the command.
const GO: u8 = 1;
/// The same, with standard error as its standard output.
const GO_ASIDE: u8 = 2;
/// The same, with nothing to read and nowhere to write.
const GO_SILENT: u8 = 3;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// By exiting, with this status.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// A command that waits to be executed, or runs.
#[derive(Debug)]
pub struct Workload {
    pid: Pid,
    pidfd: OwnedFd,
    go: Option<OwnedFd>,
    /// What the child is told when it may go.
    order: u8,
    error: OwnedFd,
    exit: Option<Exit>,
    usage: Option<Usage>,
}

/// What the kernel has accounted to a command when it ended: itself and those of its descendants
/// that were waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time in user mode, in ns; the kernel tells microseconds.
    pub user_ns: u64,
    /// CPU time in the kernel, in ns.
    pub system_ns: u64,
    /// The most memory that one of the processes had resident.
    pub peak_bytes: u64,
    /// Page faults that needed no I/O; those before the exec count, too.
    pub minor_faults: u64,
    /// Page faults that waited for I/O.
    pub major_faults: u64,
    /// Switches away from a task that waited.
    pub voluntary_switches: u64,
    /// Switches away from a task that could have gone on.
    pub involuntary_switches: u64,
    /// What was read from block devices.
    pub read_bytes: u64,
    /// What was written to block devices.
    pub written_bytes: u64,
}

impl Usage {
    fn of(raw: &libc::rusage) -> Usage {
        let ns = |time: libc::timeval| {
            (time.tv_sec.max(0) as u64).saturating_mul(1_000_000_000) + time.tv_usec.max(0) as u64 * 1000
        };
        let number = |value: libc::c_long| value.max(0) as u64;
        Usage {
            user_ns: ns(raw.ru_utime),
            system_ns: ns(raw.ru_stime),
            peak_bytes: number(raw.ru_maxrss).saturating_mul(1024),
            minor_faults: number(raw.ru_minflt),
            major_faults: number(raw.ru_majflt),
            voluntary_switches: number(raw.ru_nvcsw),
            involuntary_switches: number(raw.ru_nivcsw),
            read_bytes: number(raw.ru_inblock).saturating_mul(512),
            written_bytes: number(raw.ru_oublock).saturating_mul(512),
        }
    }
}

impl Workload {
    /// Forks a child that will execute `command` (found in PATH) when [`Workload::start`] says so.
    ///
    /// # Errors
    /// EINVAL for an empty command or one with a zero byte in it; what fork and pipe say.
    pub fn prepare(command: &[OsString]) -> io::Result<Workload> {
        Workload::fork(command, false, &[])
    }

    /// The same; just before its exec the child asks the kernel for its CPU time and renames itself
    /// (to the name that it has), by which a program in the kernel can tell its CPU time at the
    /// exec ([`crate::bpf::CgroupCounts`]).
    ///
    /// # Errors
    /// As [`Workload::prepare`].
    pub fn prepare_marking(command: &[OsString]) -> io::Result<Workload> {
        Workload::fork(command, true, &[])
    }

    /// As [`Workload::prepare`]; the command has these variables in its environment, besides ours.
    ///
    /// # Errors
    /// As [`Workload::prepare`].
    pub fn prepare_in(command: &[OsString], variables: &[(&str, OsString)]) -> io::Result<Workload> {
        Workload::fork(command, false, variables)
    }

    fn fork(command: &[OsString], marks: bool, variables: &[(&str, OsString)]) -> io::Result<Workload> {
        let args: Vec<CString> =
            command.iter().map(|arg| CString::new(arg.as_bytes())).collect::<Result<_, _>>()?;
        if args.is_empty() {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let mut argv: Vec<*const libc::c_char> = args.iter().map(|arg| arg.as_ptr()).collect();
        argv.push(std::ptr::null());
        let environment = environment(variables)?;
        let mut envp: Vec<*const libc::c_char> =
            environment.iter().map(|variable| variable.as_ptr()).collect();
        envp.push(std::ptr::null());
        let (go_read, go) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let (error, error_write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        // SAFETY: the child calls only `child` below, which keeps to async-signal-safe calls.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            child(&argv, &envp, go_read.as_raw_fd(), go.as_raw_fd(), error_write.as_raw_fd(), marks);
        }
        let pid = Pid::from_raw(pid.max(0)).ok_or_else(io::Error::last_os_error)?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        Ok(Workload { pid, pidfd, go: Some(go), order: GO, error, exit: None, usage: None })
    }

    /// The child's process id.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Becomes readable when the command has ended.
    pub fn ended_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// The command's standard output is to be ours of errors: for a recording that goes to standard
    /// output.
    pub fn send_stdout_to_stderr(&mut self) {
        self.order = GO_ASIDE;
    }

    /// The command reads and writes nothing: its three standard streams are `/dev/null`. For a
    /// screen that its output would be drawn over.
    pub fn silence(&mut self) {
        self.order = GO_SILENT;
    }

    /// Lets the child execute the command; returns once it runs.
    ///
    /// # Errors
    /// Why it could not be executed (ENOENT: no such command).
    pub fn start(&mut self) -> io::Result<()> {
        if let Some(go) = self.go.take() {
            *STARTED.lock().unwrap_or_else(PoisonError::into_inner) = self.pidfd.try_clone().ok();
            rustix::io::write(&go, &[self.order])?;
        }
        let mut errno = [0u8; 4];
        match rustix::io::retry_on_intr(|| rustix::io::read(&self.error, &mut errno))? {
            4 => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(errno))),
            _ => Ok(()),
        }
    }

    /// Sends a signal to the command; one that has ended is left alone.
    pub fn signal(&self, signal: i32) {
        send(&self.pidfd, signal);
    }

    /// How the command ended, if it has; does not block.
    ///
    /// # Errors
    /// ECHILD if someone else has reaped it.
    pub fn try_wait(&mut self) -> io::Result<Option<Exit>> {
        self.reap(libc::WNOHANG)
    }

    /// Waits for the command's end.
    ///
    /// # Errors
    /// As [`Workload::try_wait`].
    pub fn wait(&mut self) -> io::Result<Exit> {
        loop {
            if let Some(exit) = self.reap(0)? {
                return Ok(exit);
            }
        }
    }

    /// What the kernel accounted to it; known once it has ended and was waited for.
    pub fn usage(&self) -> Option<Usage> {
        self.usage
    }

    fn reap(&mut self, options: libc::c_int) -> io::Result<Option<Exit>> {
        if self.exit.is_some() {
            return Ok(self.exit);
        }
        let mut status = 0;
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        let pid = loop {
            // SAFETY: two locals to write to; our own child, which nobody else waits for.
            let pid = unsafe { libc::wait4(self.pid(), &raw mut status, options, usage.as_mut_ptr()) };
            if pid >= 0 || io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
                break pid;
            }
        };
        if pid < 0 {
            return Err(io::Error::last_os_error());
        }
        if pid > 0 {
            // SAFETY: a struct of integers, zeroed at first and now written by the kernel.
            self.usage = Some(Usage::of(unsafe { usage.assume_init_ref() }));
            self.exit = if libc::WIFEXITED(status) {
                Some(Exit::Code(libc::WEXITSTATUS(status)))
            } else {
                Some(Exit::Signal(libc::WTERMSIG(status)))
            };
        }
        Ok(self.exit)
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        if self.go.take().is_some() {
            // Never started: the end of the pipe makes it exit at once.
            let _ = self.wait();
        }
    }
}

/// Sends a signal to the command that this process has started last, if it runs: for a thread that
/// ends this process while another one, which has the [`Workload`], does not come back.
pub fn signal_started(signal: i32) {
    if let Some(pidfd) = &*STARTED.lock().unwrap_or_else(PoisonError::into_inner) {
        send(pidfd, signal);
    }
}

fn send(pidfd: &OwnedFd, signal: i32) {
    // SAFETY: not a signal number that would break rustix's own use (checked by from_named_raw
    // being total for 1..=31).
    if let Some(signal) = Signal::from_named_raw(signal) {
        let _ = pidfd_send_signal(pidfd, signal);
    }
}

/// Dies by the signal that ended the command, so that a shell sees what it would have seen without
/// us. Returns only if the signal does not kill.
pub fn die_by(signal: i32) {
    // SAFETY: resetting a signal to its default action has no precondition.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
    if let Some(signal) = Signal::from_named_raw(signal) {
        // A core file of ours would help nobody.
        let none = rustix::process::Rlimit { current: Some(0), maximum: None };
        let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
        let _ = kill_process(rustix::process::getpid(), signal);
    }
}

/// Our variables and these, which take the place of those of the same name, or come behind.
fn environment(variables: &[(&str, OsString)]) -> io::Result<Vec<CString>> {
    let mut all: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    for (name, value) in variables {
        match all.iter_mut().find(|(other, _)| other == name) {
            Some((_, there)) => there.clone_from(value),
            None => all.push((OsString::from(name), value.clone())),
        }
    }
    let text = |(name, value): (OsString, OsString)| {
        let bytes = [name.as_bytes(), b"=", value.as_bytes()].concat();
        CString::new(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
    };
    all.into_iter().map(text).collect()
}

/// The child's life before exec. Only async-signal-safe calls, no allocation.
fn child(
    argv: &[*const libc::c_char],
    envp: &[*const libc::c_char],
    go_read: RawFd,
    go_write: RawFd,
    error: RawFd,
    marks: bool,
) -> ! {
    // Our own copy of the write end would hide the parent's death from us.
    // SAFETY: a descriptor of this process that nothing else uses any more.
    unsafe { libc::close(go_write) };
    let mut byte = 0u8;
    let got = loop {
        // SAFETY: one byte into a local.
        let got = unsafe { libc::read(go_read, (&raw mut byte).cast(), 1) };
        if got >= 0 || io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            break got;
        }
    };
    if got != 1 {
        // SAFETY: ends this process without running the parent's exit handlers.
        unsafe { libc::_exit(0) };
    }
    if byte == GO_ASIDE {
        // SAFETY: two numbers; a standard error that is closed leaves the standard output as it is.
        unsafe { libc::dup2(libc::STDERR_FILENO, libc::STDOUT_FILENO) };
    }
    if byte == GO_SILENT {
        silence();
    }
    // Rust ignores SIGPIPE; the command must not inherit that.
    // SAFETY: resetting to the default action has no precondition.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    if marks {
        mark();
    }
    // SAFETY: both lists are zero-terminated and their strings were made before fork.
    unsafe { libc::execvpe(argv[0], argv.as_ptr(), envp.as_ptr()) };
    let errno = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL).to_ne_bytes();
    // SAFETY: four bytes from a local.
    unsafe { libc::write(error, errno.as_ptr().cast(), 4) };
    // SAFETY: as above.
    unsafe { libc::_exit(127) }
}

/// Makes `/dev/null` the three standard streams; where it cannot be opened, they stay as they are.
fn silence() {
    // SAFETY: a constant string with its zero.
    let null = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) };
    for stream in [libc::STDIN_FILENO, libc::STDOUT_FILENO, libc::STDERR_FILENO] {
        // SAFETY: two numbers; if the first is none of a file, nothing happens.
        unsafe { libc::dup2(null, stream) };
    }
    if null > libc::STDERR_FILENO {
        // SAFETY: it was opened above, and nothing else uses it.
        unsafe { libc::close(null) };
    }
}

/// Makes the scheduler account this thread's time, and tells programs at `task_rename` that it has,
/// with nothing in between.
fn mark() {
    let mut name = [0u8; 16];
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes 16 bytes to the local array, a string with its zero.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    // SAFETY: a local to write to.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    // SAFETY: a string of at most 16 bytes with its zero.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

#[cfg(test)]
mod tests {
    use super::{Exit, Workload};
    use std::ffi::OsString;

    fn command(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    /// Checks that a command that was silenced has no standard streams but `/dev/null`.
    #[test]
    fn silenced() {
        let script = "for fd in 0 1 2; do [ /proc/self/fd/$fd -ef /dev/null ] || exit 1; done";
        let mut workload = Workload::prepare(&command(&["sh", "-c", script])).unwrap();
        workload.silence();
        workload.start().unwrap();
        assert_eq!(workload.wait().unwrap(), Exit::Code(0));
    }

    /// Checks that the exit status and a deadly signal are told apart.
    #[test]
    fn exits() {
        for (script, expected) in
            [("exit 7", Exit::Code(7)), ("kill -9 $$", Exit::Signal(9)), (":", Exit::Code(0))]
        {
            let mut workload = Workload::prepare(&command(&["sh", "-c", script])).unwrap();
            workload.start().unwrap();
            assert_eq!(workload.wait().unwrap(), expected);
        }
    }

    /// Checks that a command finds its own variables and ours, and its own instead of ours.
    #[test]
    fn variables() {
        let script = "test \"$ONE\" = 1 && test \"$PATH\" != '' && test \"$HOME\" = other";
        let variables = [("ONE", OsString::from("1")), ("HOME", OsString::from("other"))];
        let mut workload = Workload::prepare_in(&command(&["sh", "-c", script]), &variables).unwrap();
        workload.start().unwrap();
        assert_eq!(workload.wait().unwrap(), Exit::Code(0));
    }

    /// Checks that a command that does not exist is reported with its errno, and one that is not
    /// started leaves no trace.
    #[test]
    fn not_executed() {
        let mut missing = Workload::prepare(&command(&["/no/such/command"])).unwrap();
        assert_eq!(missing.start().unwrap_err().raw_os_error(), Some(libc::ENOENT));
        assert_eq!(missing.wait().unwrap(), Exit::Code(127));
        let directory = tempfile::tempdir().unwrap();
        let trace = directory.path().join("trace");
        let cancelled = Workload::prepare(&command(&["touch", trace.to_str().unwrap()])).unwrap();
        drop(cancelled);
        assert!(!trace.exists());
        assert!(Workload::prepare(&[]).is_err());
    }
}
