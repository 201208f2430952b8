//! Loads the agent into a process, or finds the one that is there.
use super::client::Client;
use super::connection::{Door, close, give};
use super::hijacked_thread::{HijackedThread, ReturnKind};
use super::library::Library;
use super::refusal::EnterError;
use super::symbols::{ExportedFunction, Symbols};
use super::target::TargetProcess;
use super::unwind::Unwind;
use crate::proc;
use kymo_core::probe::wire::printable;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Relocating and constructors on a busy machine; a self-made deadlock lasts for ever.
const LOAD: Duration = Duration::from_secs(5);
const START: Duration = Duration::from_secs(2);
const LOADED: [&[u8]; 2] = [b"/memfd:kymo-agent", b"libkymo_agent.so"];
const START_FUNCTION: &str = "kymo_agent_start";
/// What it returns when all is well.
const STARTED: i32 = 0x6b79_6d6f;

/// Puts the agent into a process, or finds the one that is there, and opens a conversation. Stops
/// one thread of the process for some milliseconds; blocks for some seconds at most.
///
/// # Errors
/// Why not. The process runs on as before.
pub fn enter(pid: i32, library: &Library) -> Result<Client, EnterError> {
    enter_for(pid, library, false, None)
}

/// The same, with an unwinder that tells which functions a thread is in. Without one, more moments
/// count as unsafe.
///
/// # Errors
/// As [`enter`].
pub fn enter_unwinding(pid: i32, library: &Library, unwinder: &mut dyn Unwind) -> Result<Client, EnterError> {
    enter_for(pid, library, false, Some(unwinder))
}

/// As [`enter`]; processes that it forks from then on count, too, into the same numbers. What they
/// execute does not.
///
/// # Errors
/// As [`enter`].
pub fn enter_with_children(pid: i32, library: &Library) -> Result<Client, EnterError> {
    enter_for(pid, library, true, None)
}

/// As [`enter_with_children`], with an unwinder.
///
/// # Errors
/// As [`enter`].
pub fn enter_unwinding_with_children(
    pid: i32,
    library: &Library,
    unwinder: &mut dyn Unwind,
) -> Result<Client, EnterError> {
    enter_for(pid, library, true, Some(unwinder))
}

fn enter_for(
    pid: i32,
    library: &Library,
    children: bool,
    mut unwinder: Option<&mut dyn Unwind>,
) -> Result<Client, EnterError> {
    if !cfg!(target_arch = "x86_64") {
        return Err(EnterError::Machine);
    }
    crate::user_probes::wait_for_left(&crate::tracefs::Tracefs::here());
    let begun = Instant::now();
    loop {
        let unwinder = unwinder.as_mut().map(|unwinder| &mut **unwinder as &mut dyn Unwind);
        match begin_on_a_thread(pid, library, unwinder) {
            Err(EnterError::InUse) if begun.elapsed() < MOST_UNNOTICED => std::thread::sleep(LEAVING_PAUSE),
            Err(EnterError::Leaving) if begun.elapsed() < MOST_LEAVING => std::thread::sleep(LEAVING_PAUSE),
            begun => return begun?.hello(children)?.holds(),
        }
    }
}

/// A thread of its own traces: when it ends, the kernel lets go whatever did not stop in time to be
/// let go.
fn begin_on_a_thread(
    pid: i32,
    library: &Library,
    unwinder: Option<&mut dyn Unwind>,
) -> Result<Client, EnterError> {
    let failed = |error| EnterError::Failed { step: "entering it", error };
    let begun = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, || begin(pid, library, unwinder));
        thread.map(std::thread::ScopedJoinHandle::join)
    });
    let begun = begun.map_err(failed)?;
    begun.unwrap_or_else(|_| Err(failed(io::Error::other("a thread of kymo died"))))
}

/// So long the agent may take to notice that its kymo has ended or been killed, and to undo what that
/// one did: thousands of sites on a busy machine take seconds.
const MOST_UNNOTICED: Duration = Duration::from_secs(2);
const MOST_LEAVING: Duration = Duration::from_secs(30);
const LEAVING_PAUSE: Duration = Duration::from_millis(20);

/// Has a thread of the process load the agent and start it.
fn begin(pid: i32, library: &Library, mut unwinder: Option<&mut dyn Unwind>) -> Result<Client, EnterError> {
    let library = library.memory()?;
    let target = TargetProcess::look(pid)?;
    if is_musl(&target)? {
        return Err(EnterError::Musl);
    }
    if proc::text(format!("/proc/{pid}/mountinfo")).is_ok_and(|mounts| !has_proc(&mounts)) {
        return Err(EnterError::NoProc);
    }
    let start = loaded(&target)?;
    let opener = opener(&target)?;
    if start.is_none() && opener.is_none() {
        return Err(EnterError::Static);
    }
    if let Some(unwinder) = &mut unwinder {
        let maps = target.maps().map_err(EnterError::failed("reading its list of mappings"))?;
        unwinder.prepare(pid, &maps);
    }
    let process = Pid::from_raw(target.pid).ok_or(EnterError::Gone)?;
    let process = pidfd_open(process, PidfdFlags::empty()).map_err(|_| EnterError::Gone)?;
    let door = Door::open(target.pid)?;
    let mut thread = HijackedThread::take(&target, unwinder)?;
    let begun = door.connect(&mut thread, target.pid).and_then(|(ours, its)| {
        let started = load_and_start(&target, &mut thread, start, opener, &library, (&ours, its));
        match started {
            Ok(()) => Ok(ours),
            Err((refusal, is_its)) => {
                // The agent closes what it was given.
                if !is_its {
                    close(&mut thread, its);
                }
                Err(refusal)
            }
        }
    });
    // The agent takes the stack down as soon as it is spoken to.
    thread.give_back(begun.is_err())?;
    Ok(Client::new(begun?, Some(process)).of(target))
}

/// Fails with whether the agent has taken the socket.
fn load_and_start(
    target: &TargetProcess,
    thread: &mut HijackedThread<'_>,
    start: Option<ExportedFunction>,
    opener: Option<Opener>,
    library: &OwnedFd,
    socket: (&OwnedFd, u64),
) -> Result<(), (EnterError, bool)> {
    let not_taken = |refusal: EnterError| (refusal, false);
    let start = match (start, opener) {
        (Some(start), _) => start,
        (None, Some(opener)) => load(target, thread, opener, library, socket).map_err(not_taken)?,
        (None, None) => return Err(not_taken(EnterError::Static)),
    };
    begin_conversation(target.pid, thread, start, socket.1).map_err(|refusal| (refusal, true))
}

/// Whether the agent is in the process, or can be loaded: there is glibc's dynamic linker.
pub(super) fn can_load(target: &TargetProcess) -> Result<bool, EnterError> {
    Ok(!is_musl(target)? && (loaded(target)?.is_some() || opener(target)?.is_some()))
}

/// Whether the dynamic linker is musl's: it would load libraries of glibc beside itself, if it
/// found them.
fn is_musl(target: &TargetProcess) -> Result<bool, EnterError> {
    let modules = target.modules().map_err(EnterError::failed("reading its list of mappings"))?;
    Ok(modules.iter().any(|(_, path)| names_musl(path)))
}

fn names_musl(path: &[u8]) -> bool {
    let (folder, name) = path.split_at(path.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1));
    let of_musl = folder.split(|byte| *byte == b'/').any(|part| part == b"musl" || part.ends_with(b"-musl"));
    name.starts_with(b"ld-musl-")
        || name.starts_with(b"libc.musl-")
        || (of_musl && name.starts_with(b"libc.so"))
}

/// The agent's way in, if it is loaded.
fn loaded(target: &TargetProcess) -> Result<Option<ExportedFunction>, EnterError> {
    let modules = target.modules().map_err(EnterError::failed("reading its list of mappings"))?;
    let is_agent = |path: &[u8]| LOADED.iter().any(|name| path.windows(name.len()).any(|part| part == *name));
    let agents = modules.iter().filter(|(_, path)| is_agent(path));
    let mut starts = agents.filter_map(|(base, _)| {
        let [start] = Symbols::of(target, *base).ok()?.functions([START_FUNCTION]).ok()?;
        start
    });
    Ok(starts.next())
}

/// How to ask the dynamic linker: its function, and the flags besides RTLD_NOW. Its words about a
/// failure.
#[derive(Clone, Copy)]
struct Opener {
    open: ExportedFunction,
    flags: u64,
    error: Option<ExportedFunction>,
}

fn opener(target: &TargetProcess) -> Result<Option<Opener>, EnterError> {
    let modules = target.modules().map_err(EnterError::failed("reading its list of mappings"))?;
    let mut internal = None;
    for (base, _) in &modules {
        let Ok(symbols) = Symbols::of(target, *base) else { continue };
        let Ok([open, error, old]) = symbols.functions(["dlopen", "dlerror", "__libc_dlopen_mode"]) else {
            continue;
        };
        if let Some(open) = open {
            return Ok(Some(Opener { open, flags: 0, error }));
        }
        // Before glibc 2.34, in programs that do not load libraries themselves. The flag says:
        // somebody outside of libc calls.
        internal = internal.or(old.map(|open| Opener { open, flags: 0x8000_0000, error: None }));
    }
    Ok(internal)
}

fn load(
    target: &TargetProcess,
    thread: &mut HijackedThread<'_>,
    opener: Opener,
    library: &OwnedFd,
    socket: (&OwnedFd, u64),
) -> Result<ExportedFunction, EnterError> {
    let file = give(thread, socket, library)?;
    let opened = thread.lend(format!("/proc/self/fd/{file}\0").as_bytes()).and_then(|path| {
        let args = [path, 2 | opener.flags, 0];
        // Whether it did is seen afterwards.
        thread.call("loading the agent", opener.open.start, args, LOAD, ReturnKind::Nothing)
    });
    let start = opened.and_then(|_| match loaded(target)? {
        Some(start) => Ok(start),
        None => Err(EnterError::NotLoaded(words(thread, opener.error))),
    });
    // Its mappings keep it; a descriptor would be a number that the program might close for its
    // own.
    close(thread, file);
    start
}

/// What the dynamic linker says about its failure.
fn words(thread: &mut HijackedThread<'_>, error: Option<ExportedFunction>) -> String {
    let mut ask =
        |error: ExportedFunction| thread.call("asking why", error.start, [0; 3], START, ReturnKind::Value);
    let at = error.and_then(|error| ask(error).ok());
    let mut text = [0; 256];
    match at {
        Some(at) if at != 0 && thread.read(at, &mut text).is_ok() => {
            let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
            printable(&text[..end])
        }
        _ => "it gave no reason".to_owned(),
    }
}

/// Whether a process finds its files in /proc, by the list of the mounts below its root directory.
/// Nothing there is opened: it may belong to a file system that does not answer.
fn has_proc(mounts: &str) -> bool {
    let is_proc = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        Some(before.split(' ').nth(4)? == "/proc" && after.starts_with("proc "))
    };
    mounts.lines().filter_map(is_proc).any(|is_proc| is_proc)
}

/// Starts the agent with its end of the connection, which is its own from here on.
fn begin_conversation(
    pid: i32,
    thread: &mut HijackedThread<'_>,
    start: ExportedFunction,
    socket: u64,
) -> Result<(), EnterError> {
    let (stack, stack_bytes) = thread.stack();
    let args = [socket, stack, stack_bytes];
    match thread.call("starting the agent", start.start, args, START, ReturnKind::Value)? as i32 {
        // 0: it is of an older version, and the greeting will say so.
        0 | STARTED => Ok(()),
        code if code == -libc::EBUSY => Err(EnterError::InUse),
        code if code == -libc::EINPROGRESS => Err(EnterError::Leaving),
        code if code == -libc::EAGAIN => Err(EnterError::NoThread(thread_limit(pid))),
        code => {
            let error = io::Error::from_raw_os_error(-code);
            Err(EnterError::NotLoaded(format!("the agent did not start: {error}")))
        }
    }
}

/// Which limit keeps a process from making a thread, as far as that can be seen.
fn thread_limit(pid: i32) -> String {
    let limits = proc::text(format!("/proc/{pid}/limits")).unwrap_or_default();
    match process_limit(&limits) {
        Some(most) => format!(
            "RLIMIT_NPROC is {most} for all processes of its user; raise it (prlimit --pid {pid} --nproc=N) and try again"
        ),
        None => "its cgroup (pids.max) or the machine (kernel.threads-max) has no room, or memory is short"
            .to_owned(),
    }
}

/// The soft limit of processes in the text of `/proc/PID/limits`; none if there is no limit.
fn process_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max processes"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{has_proc, names_musl, process_limit};

    /// Checks that a root directory without /proc is known by the kernel's list of mounts.
    #[test]
    fn root_directories_without_proc() {
        let root = "21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n";
        let proc = "22 21 0:20 / /proc rw,nosuid shared:2 - proc proc rw\n";
        assert!(has_proc(&format!("{root}{proc}")));
        // A folder below which nothing is mounted.
        assert!(!has_proc("") && !has_proc(root));
        assert!(!has_proc(&format!("{root}23 21 0:4 / /proc rw - tmpfs none rw\n")));
    }

    /// Checks that the limit of processes is found in the kernel's text, and that none is none.
    #[test]
    fn limits_of_processes() {
        let head = "Limit                     Soft Limit           Hard Limit           Units     \n";
        let line = |soft: &str| format!("{head}Max processes             {soft}   17    processes \n");
        assert_eq!(process_limit(&line("0")), Some(0));
        assert_eq!(process_limit(&line("unlimited")), None);
        assert_eq!(process_limit(head), None);
    }

    /// Checks that musl is known by its files, as distributions name them, and glibc is not taken
    /// for it.
    #[test]
    fn musl() {
        for path in [
            "/lib/ld-musl-x86_64.so.1",
            "/lib/libc.musl-x86_64.so.1",
            "/usr/lib/x86_64-linux-musl/libc.so",
            "/usr/lib/musl/lib/libc.so",
        ] {
            assert!(names_musl(path.as_bytes()), "{path}");
        }
        for path in [
            "/lib/x86_64-linux-gnu/libc.so.6",
            "/home/musl/libcurl.so",
            "libc.so.6",
            "/opt/musl/x/libz.so",
            "",
        ] {
            assert!(!names_musl(path.as_bytes()), "{path}");
        }
    }
}
