//! Loading the agent, and finding it again.
use super::borrowed::{Borrowed, Returns};
use super::client::Client;
use super::refusal::Refusal;
use super::symbols::{Function, Symbols};
use super::target::Target;
use super::unwind::Unwind;
use crate::sys::is_privileged_by_file;
use crate::sys::ptrace::descriptor_of;
use rustix::fs::{FileType, fstat, fstatfs};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Relocating and constructors on a busy machine; a self-made deadlock lasts for ever.
const LOAD: Duration = Duration::from_secs(5);
const START: Duration = Duration::from_secs(2);
const NAME: &str = "libkymo_agent.so";
/// The name of the memory file, and so of its mapping.
const MEMORY_NAME: &[u8] = b"kymo-agent\0";
/// Of linux/magic.h.
const TMPFS: i64 = 0x0102_1994;
const LOADED: [&[u8]; 2] = [b"/memfd:kymo-agent", b"libkymo_agent.so"];
const START_FUNCTION: &str = "kymo_agent_start";
/// What it returns when all is well.
const STARTED: i32 = 0x6b79_6d6f;

/// Where the agent's library is: named by KYMO_AGENT, else beside the running program, or in `lib` or `lib/kymo` beside its folder, or where cargo
/// builds libraries. A kymo whose file gives it rights (setuid, capabilities) does not listen to KYMO_AGENT: its users would choose what runs in the
/// processes of others.
///
/// # Errors
/// [`Refusal::NoAgent`] with the places that were tried.
pub fn library() -> Result<PathBuf, Refusal> {
    let named = std::env::var_os("KYMO_AGENT");
    let program = std::env::current_exe().and_then(fs::canonicalize).unwrap_or_default();
    let places = places(named, is_privileged_by_file(), &program);
    let found = places.iter().find(|place| place.is_file()).cloned();
    found
        .ok_or_else(|| Refusal::NoAgent { tried: places.iter().map(|at| at.display().to_string()).collect() })
}

fn places(named: Option<OsString>, privileged: bool, program: &Path) -> Vec<PathBuf> {
    match (named.filter(|_| !privileged), program.parent()) {
        (Some(named), _) => vec![PathBuf::from(named)],
        // The tests' programs are one folder below.
        (None, Some(folder)) => {
            ["", "../lib", "../lib/kymo", "..", "deps"].map(|at| folder.join(at).join(NAME)).to_vec()
        }
        (None, None) => Vec::new(),
    }
}

/// Puts the agent into a process, or finds the one that is there, and opens a conversation. Stops one thread of the process for some
/// milliseconds; blocks for some seconds at most.
///
/// # Errors
/// Why not. The process runs on as before.
pub fn enter(pid: i32, library: &Path) -> Result<Client, Refusal> {
    enter_for(pid, library, false, None)
}

/// The same, with an unwinder that tells which functions a thread is in. Without one, more moments count as unsafe.
///
/// # Errors
/// As [`enter`].
pub fn enter_unwinding(pid: i32, library: &Path, unwinder: &mut dyn Unwind) -> Result<Client, Refusal> {
    enter_for(pid, library, false, Some(unwinder))
}

/// As [`enter`]; processes that it forks from then on count, too, into the same numbers. What they execute does not.
///
/// # Errors
/// As [`enter`].
pub fn enter_with_children(pid: i32, library: &Path) -> Result<Client, Refusal> {
    enter_for(pid, library, true, None)
}

fn enter_for(
    pid: i32,
    library: &Path,
    children: bool,
    unwinder: Option<&mut dyn Unwind>,
) -> Result<Client, Refusal> {
    // A thread of its own traces: when it ends, the kernel lets go whatever did not stop in time to be let go.
    let failed = |error| Refusal::Failed { step: "entering it", error };
    let begun = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, || begin(pid, library, unwinder));
        thread.map(std::thread::ScopedJoinHandle::join)
    });
    let begun = begun.map_err(failed)?;
    begun.unwrap_or_else(|_| Err(failed(io::Error::other("a thread of ours died"))))?.hello(children)?.holds()
}

/// Has a thread of the process load the agent and start it.
fn begin(pid: i32, library: &Path, mut unwinder: Option<&mut dyn Unwind>) -> Result<Client, Refusal> {
    let content =
        fs::read(library).map_err(|_| Refusal::NoAgent { tried: vec![library.display().to_string()] })?;
    let target = Target::look(pid)?;
    if is_musl(&target)? {
        return Err(Refusal::Musl);
    }
    let start = loaded(&target)?;
    let opener = opener(&target)?;
    if start.is_none() && opener.is_none() {
        return Err(Refusal::Static);
    }
    if let Some(unwinder) = &mut unwinder {
        let maps = target.maps().map_err(Refusal::failed("reading its list of mappings"))?;
        unwinder.prepare(pid, &maps);
    }
    let mut thread = Borrowed::take(&target, unwinder)?;
    let begun = load_and_start(&target, &mut thread, start, opener, &content);
    // The agent takes the stack down as soon as it is spoken to.
    thread.give_back(begun.is_err())?;
    Ok(begun?.of(target))
}

fn load_and_start(
    target: &Target,
    thread: &mut Borrowed<'_>,
    start: Option<Function>,
    opener: Option<Opener>,
    content: &[u8],
) -> Result<Client, Refusal> {
    let start = match (start, opener) {
        (Some(start), _) => start,
        (None, Some(opener)) => load(target, thread, opener, content)?,
        (None, None) => return Err(Refusal::Static),
    };
    converse(target, thread, start)
}

/// Whether the dynamic linker is musl's: it would load libraries of glibc beside itself, if it found them.
fn is_musl(target: &Target) -> Result<bool, Refusal> {
    let modules = target.modules().map_err(Refusal::failed("reading its list of mappings"))?;
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
fn loaded(target: &Target) -> Result<Option<Function>, Refusal> {
    let modules = target.modules().map_err(Refusal::failed("reading its list of mappings"))?;
    let is_agent = |path: &[u8]| LOADED.iter().any(|name| path.windows(name.len()).any(|part| part == *name));
    let agents = modules.iter().filter(|(_, path)| is_agent(path));
    let mut starts = agents.filter_map(|(base, _)| {
        let [start] = Symbols::of(target, *base).ok()?.functions([START_FUNCTION]).ok()?;
        start
    });
    Ok(starts.next())
}

/// How to ask the dynamic linker: its function, and the flags besides RTLD_NOW. Its words about a failure.
#[derive(Clone, Copy)]
struct Opener {
    open: Function,
    flags: u64,
    error: Option<Function>,
}

fn opener(target: &Target) -> Result<Option<Opener>, Refusal> {
    let modules = target.modules().map_err(Refusal::failed("reading its list of mappings"))?;
    let mut internal = None;
    for (base, _) in &modules {
        let Ok(symbols) = Symbols::of(target, *base) else { continue };
        let Ok([open, error, old]) = symbols.functions(["dlopen", "dlerror", "__libc_dlopen_mode"]) else {
            continue;
        };
        if let Some(open) = open {
            return Ok(Some(Opener { open, flags: 0, error }));
        }
        // Before glibc 2.34, in programs that do not load libraries themselves. The flag says: somebody outside of libc calls.
        internal = internal.or(old.map(|open| Opener { open, flags: 0x8000_0000, error: None }));
    }
    Ok(internal)
}

fn load(
    target: &Target,
    thread: &mut Borrowed<'_>,
    opener: Opener,
    content: &[u8],
) -> Result<Function, Refusal> {
    let name = thread.lend(MEMORY_NAME)?;
    let flags = u64::from(libc::MFD_CLOEXEC);
    let file =
        thread.system_call("making a file in memory", libc::SYS_memfd_create, [name, flags, 0, 0, 0, 0])?;
    let number = i32::try_from(file)
        .map_err(|_| Refusal::failed("copying the agent")(io::ErrorKind::InvalidData.into()))?;
    let written = memory_of(target, number).and_then(|file| file.write_all_at(content, 0));
    let opened = written.map_err(Refusal::failed("copying the agent")).and_then(|()| {
        let path = thread.lend(format!("/proc/self/fd/{file}\0").as_bytes())?;
        let args = [path, 2 | opener.flags, 0];
        // Whether it did is seen afterwards.
        thread.call("loading the agent", opener.open.start, args, LOAD, Returns::Nothing)
    });
    let start = opened.and_then(|_| match loaded(target)? {
        Some(start) => Ok(start),
        None => Err(Refusal::NotLoaded { why: words(thread, opener.error) }),
    });
    // Its mappings keep it; a descriptor would be a number that the program might close for its own.
    _ = thread.system_call("closing the file in memory", libc::SYS_close, [file, 0, 0, 0, 0, 0]);
    start
}

/// The file in memory that this descriptor of the process is. Another thread may have put another file at its number: that is taken as the process has
/// opened it, with no more rights than it has, and must be memory.
fn memory_of(target: &Target, descriptor: i32) -> io::Result<File> {
    let pid = Pid::from_raw(target.pid).ok_or(io::ErrorKind::NotFound)?;
    let file = descriptor_of(&pidfd_open(pid, PidfdFlags::empty())?, descriptor)?;
    let regular = FileType::from_raw_mode(fstat(&file)?.st_mode) == FileType::RegularFile;
    if !regular || fstatfs(&file)?.f_type as i64 != TMPFS {
        return Err(io::Error::other("another file is at its number"));
    }
    Ok(File::from(file))
}

/// What the dynamic linker says about its failure.
fn words(thread: &mut Borrowed<'_>, error: Option<Function>) -> String {
    let mut ask = |error: Function| thread.call("asking why", error.start, [0; 3], START, Returns::Value);
    let at = error.and_then(|error| ask(error).ok());
    let mut text = [0; 256];
    match at {
        Some(at) if at != 0 && thread.read(at, &mut text).is_ok() => {
            let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
            String::from_utf8_lossy(&text[..end]).into_owned()
        }
        _ => "it gave no reason".to_owned(),
    }
}

/// Makes a pair of sockets there, takes one end, and starts the agent with the other.
fn converse(target: &Target, thread: &mut Borrowed<'_>, start: Function) -> Result<Client, Refusal> {
    let pid = Pid::from_raw(target.pid).ok_or(Refusal::Gone)?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|_| Refusal::Gone)?;
    let at = thread.lend(&[0; 8])?;
    let (domain, kind) = (libc::AF_UNIX as u64, (libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC) as u64);
    thread.system_call("making a pair of sockets", libc::SYS_socketpair, [domain, kind, 0, at, 0, 0])?;
    let mut pair = [0; 8];
    thread.read(at, &mut pair)?;
    let number = |at: usize| i32::from_le_bytes([pair[at], pair[at + 1], pair[at + 2], pair[at + 3]]);
    let (ours, its) = (number(0), number(4));
    let taken = descriptor_of(&pidfd, ours).map_err(Refusal::failed("taking one end of the pair of sockets"));
    let mut close =
        |end: i32| thread.system_call("closing a socket", libc::SYS_close, [end as u64, 0, 0, 0, 0, 0]);
    _ = close(ours);
    let socket = match taken {
        Ok(socket) => socket,
        Err(refusal) => {
            _ = close(its);
            return Err(refusal);
        }
    };
    let (stack, stack_bytes) = thread.stack();
    let args = [its as u64, stack, stack_bytes];
    match thread.call("starting the agent", start.start, args, START, Returns::Value)? as i32 {
        // 0: it is of an older version, and the greeting will say so.
        0 | STARTED => Ok(Client::new(socket, Some(pidfd))),
        code => Err(Refusal::NotLoaded {
            why: match -code {
                libc::EBUSY => "another kymo is using the agent in it".to_owned(),
                errno => format!("the agent did not start: {}", io::Error::from_raw_os_error(errno)),
            },
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::{memory_of, names_musl, places};
    use crate::inject::target::Target;
    use rustix::fs::{MemfdFlags, memfd_create};
    use rustix::pipe::pipe;
    use std::fs::{self, File};
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::os::unix::fs::FileExt;
    use std::path::Path;

    /// Checks that the agent is only ever copied into memory, and only as the process itself might: not into a file that is opened for reading, nor into
    /// a pipe, nor into a file of a disk.
    #[test]
    fn copied_into_memory_only() {
        let target = Target::look(std::process::id() as i32).unwrap();
        let at = |file: &OwnedFd| memory_of(&target, file.as_raw_fd());
        let memory = memfd_create("kymo-agent", MemfdFlags::CLOEXEC).unwrap();
        at(&memory).unwrap().write_all_at(b"content", 0).unwrap();
        let mut read = [0; 7];
        File::from(memory.try_clone().unwrap()).read_exact_at(&mut read, 0).unwrap();
        assert_eq!(&read, b"content");
        let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
        let reading = OwnedFd::from(File::open(path).unwrap());
        assert!(at(&reading).unwrap().write_all_at(b"other", 0).is_err());
        let (out, into) = pipe().unwrap();
        assert!(at(&out).is_err() && at(&into).is_err());
        assert!(at(&File::open("/proc/self/status").unwrap().into()).is_err());
        assert!(at(&fs::OpenOptions::new().write(true).open("/dev/null").unwrap().into()).is_err());
    }

    /// Checks that the environment names the library, but not to a kymo that has rights by its file.
    #[test]
    fn named_by_the_environment() {
        let of = |privileged| places(Some("/tmp/evil.so".into()), privileged, Path::new("/usr/bin/kymo"));
        assert_eq!(of(false), [Path::new("/tmp/evil.so")]);
        assert_eq!(of(true), places(None, false, Path::new("/usr/bin/kymo")));
        assert_eq!(of(true)[0], Path::new("/usr/bin/libkymo_agent.so"));
        assert!(of(true).iter().all(|place| place.starts_with("/usr")));
    }

    /// Checks that musl is known by its files, as distributions name them, and glibc is not taken for it.
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
