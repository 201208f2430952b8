//! How the thread comes to be: called by a tracer from outside, or by the dynamic linker in a
//! preloaded library.
//!
//! # Safety
//! A descriptor that was handed over becomes ours. The others are made here.
#![allow(unsafe_code)]
#![expect(unreachable_pub, reason = "the tracer finds it by its name")]
use super::filters;
use super::hold::HeldBy;
use super::peer::{NO_USER, address, may_command, users_are_known};
use super::session::{self, SessionEnd};
use super::{stage, startup_gate};
use crate::sys::memory_file;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixDatagram;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

/// The socket to the tracer that this program was started by; negative without one. It was let go,
/// so no thread listens there.
static COUNTED_FOR: AtomicI32 = AtomicI32::new(-1);

const VARIABLE: &str = "KYMO_AGENT_AT";
/// How long a program waits before a door that nobody opens.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// All is well, as a number that is no system call's: a borrowed thread whose tracer is killed
/// makes the call that has the number of its result.
const STARTED: c_int = 0x6b79_6d6f;

/// Starts a conversation on a socket, which belongs to the agent from here on. [`STARTED`], or
/// -EBUSY with another tracer's conversation under way, -EINPROGRESS while what one that has ended did
/// is undone, -EBADF if it is no descriptor, -EAGAIN
/// without another thread.
///
/// `stack`, if it is not null, is what the tracer has mapped for the calling thread to run on, so
/// many bytes. The agent unmaps it when the tracer first speaks: by then that thread is back on its
/// own.
#[unsafe(no_mangle)]
pub extern "C" fn kymo_agent_start(descriptor: c_int, stack: *mut c_void, stack_bytes: usize) -> c_int {
    let lent = BorrowedStack { at: stack.addr(), bytes: stack_bytes };
    catch_unwind(|| start(descriptor, lent)).unwrap_or(-libc::EAGAIN)
}

fn start(descriptor: c_int, lent: BorrowedStack) -> c_int {
    // SAFETY: asks for a flag, whatever the number.
    if unsafe { libc::fcntl(descriptor, libc::F_GETFD) } < 0 {
        return -libc::EBADF;
    }
    // SAFETY: open, as was just seen, and given to us by who calls.
    let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
    converse_on(socket, HeldBy::Nobody, lent).map_or_else(|errno| -errno, |()| STARTED)
}

/// A stack that somebody runs on until the tracer speaks.
#[derive(Clone, Copy)]
struct BorrowedStack {
    at: usize,
    bytes: usize,
}

impl BorrowedStack {
    const NONE: BorrowedStack = BorrowedStack { at: 0, bytes: 0 };

    /// Waits until the tracer has spoken, and unmaps it. A tracer that is gone without a word may
    /// have left somebody there: then it stays.
    fn unmap(self, socket: &UnixDatagram) {
        if self.at == 0 {
            return;
        }
        let mut byte = 0_u8;
        // SAFETY: writes a byte that is ours, and leaves the packet where it is.
        let heard = || unsafe { libc::recv(socket.as_raw_fd(), (&raw mut byte).cast(), 1, libc::MSG_PEEK) };
        let heard = std::iter::repeat_with(heard).find(|heard| {
            *heard >= 0 || std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted
        });
        if heard.is_some_and(|heard| heard > 0) {
            // SAFETY: a mapping of the tracer's, which it gave to us.
            unsafe { libc::munmap(std::ptr::without_provenance_mut(self.at), self.bytes) };
        }
    }
}

/// Starts the conversation's thread; EBUSY, EINPROGRESS, EAGAIN.
fn converse_on(socket: OwnedFd, by: HeldBy, lent: BorrowedStack) -> Result<(), c_int> {
    // Where this is the only thread, what follows takes no time. With others the kernel waits for a
    // grace period of RCU when the table of descriptors grows (expand_files) and when barriers are
    // registered: seconds on a busy machine, in which the agent does not answer. A borrowed thread
    // does not wait for that.
    let is_alone = by == HeldBy::FirstWaits || is_only_thread();
    let socket = if is_alone { memory_file::out_of_the_way(socket) } else { socket };
    if is_alone {
        crate::patch::register_barriers();
    }
    if is_counted_for() {
        return Err(libc::EBUSY);
    }
    stage::begin()?;
    let body = move || {
        hold_signals_back();
        // Away from the numbers that a program closes or gives anew.
        let socket = UnixDatagram::from(if is_alone { socket } else { memory_file::out_of_the_way(socket) });
        filters::begin(socket.as_raw_fd());
        // It calls functions of the C library as the program does.
        crate::patch::exclude_current_thread();
        lent.unmap(&socket);
        // A panic is a fault of ours: the sites must go all the same, and they do when the engine
        // is dropped.
        let end = catch_unwind(AssertUnwindSafe(|| converse(&socket, by)));
        filters::end();
        if end.is_ok_and(|end| end == SessionEnd::LetGo) {
            // Its end is how the tracer knows that the program has ended, with all that it forks.
            COUNTED_FOR.store(socket.into_raw_fd(), Ordering::Relaxed);
        }
        startup_gate::let_run();
        stage::end();
    };
    let started = std::thread::Builder::new().name("kymo-agent".to_owned()).spawn(body);
    started.map(drop).map_err(|_| {
        stage::end();
        libc::EAGAIN
    })
}

fn is_only_thread() -> bool {
    // The kernel adds the number of threads to the two links of a folder (proc_task_getattr).
    std::fs::metadata("/proc/self/task").is_ok_and(|task| task.nlink() == 3)
}

fn converse(socket: &UnixDatagram, by: HeldBy) -> SessionEnd {
    session::run(socket, &mut super::patching::Patching::default(), by)
}

/// Whether the tracer is still there that this program was started by, and counts. If not, what it
/// counted in is given back.
fn is_counted_for() -> bool {
    let number = COUNTED_FOR.load(Ordering::Relaxed);
    if number < 0 {
        return false;
    }
    let mut kind: c_int = 0;
    let mut length = size_of::<c_int>() as libc::socklen_t;
    let (into, bytes) = ((&raw mut kind).cast(), &raw mut length);
    // SAFETY: a number, and what is ours to fill. The program may have closed it for another file.
    let asked = unsafe { libc::getsockopt(number, libc::SOL_SOCKET, libc::SO_TYPE, into, bytes) };
    let is_ours = asked == 0 && kind == libc::SOCK_SEQPACKET;
    let mut end = libc::pollfd { fd: number, events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: one entry that is ours; it does not wait.
    if is_ours && unsafe { libc::poll(&mut end, 1, 0) } == 0 {
        return true;
    }
    // The number is not closed: it may be the program's by now.
    COUNTED_FOR.store(-1, Ordering::Relaxed);
    crate::patch::release_counters();
    crate::patch::release_holds();
    false
}

/// Blocks all signals but those that a fault of this thread raises, of which a trap is one (C4).
fn hold_signals_back() {
    // SAFETY: plain numbers, for which 0 is a value.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: fills a set that is ours.
    unsafe { libc::sigfillset(&mut set) };
    for signal in [libc::SIGTRAP, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE] {
        // SAFETY: changes a set that is ours.
        unsafe { libc::sigdelset(&mut set, signal) };
    }
    // SAFETY: changes this thread's mask.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &set, std::ptr::null_mut()) };
}

/// Goes where the tracer listens, and says the password.
fn connect(at: &str) -> Option<OwnedFd> {
    let (name, rest) = at.split_once('.')?;
    let (password, tick) = rest.split_once('.').unwrap_or((rest, ""));
    if let Ok(tick) = tick.parse() {
        crate::patch::know_tick(tick);
    }
    let (address, length) = address(name.as_bytes())?;
    // SAFETY: three numbers.
    let socket = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return None;
    }
    // SAFETY: new and nobody else's.
    let socket = UnixDatagram::from(unsafe { OwnedFd::from_raw_fd(socket) });
    // Holds for the queue before the door, too.
    socket.set_write_timeout(Some(CONNECT_TIMEOUT)).ok()?;
    // SAFETY: an address that is ours and as long as said.
    if unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), length) } != 0 {
        return None;
    }
    // The name is anyone's to take when the tracer has ended, and who listens commands this
    // program.
    if !may_command(listener_of(&socket)?, own_user(), users_are_known()) {
        return None;
    }
    socket.send(password.as_bytes()).ok()?;
    Some(socket.into())
}

fn own_user() -> libc::uid_t {
    // SAFETY: asks for a number.
    unsafe { libc::geteuid() }
}

/// The user that listens where this socket is connected to, as it was when it began to listen.
fn listener_of(socket: &UnixDatagram) -> Option<libc::uid_t> {
    let mut peer = libc::ucred { pid: 0, uid: NO_USER, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: fills what is ours and as long as said.
    let asked = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &mut length,
        )
    };
    (asked == 0 && length as usize == size_of::<libc::ucred>()).then_some(peer.uid)
}

/// Called by the dynamic linker. Returns when the tracer lets the program run, if there is one.
extern "C" fn loaded(_: c_int, _: *const *const c_void, _: *const *const c_void) {
    _ = catch_unwind(|| {
        // The variable stays: what this program executes is to come up so, too, if it can.
        let Ok(at) = std::env::var(VARIABLE) else { return };
        super::exec_interpose::install();
        let socket = connect(&at);
        drop(at);
        let Some(socket) = socket else { return super::exec_interpose::settle() };
        startup_gate::will_wait();
        let converses = converse_on(socket, HeldBy::FirstWaits, BorrowedStack::NONE);
        // Not before that thread is made: it would not be in restartable sequences either.
        crate::patch::uncounted(|| {
            match converses {
                Ok(()) => {
                    startup_gate::wait();
                    startup_gate::wait_for_end();
                }
                Err(_) => startup_gate::let_run(),
            }
            super::exec_interpose::settle();
        });
    });
}

#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn(c_int, *const *const c_void, *const *const c_void) = loaded;

/// Two ends as a tracer makes them.
#[cfg(test)]
pub(super) fn pair() -> std::io::Result<(UnixDatagram, UnixDatagram)> {
    let mut ends = [0; 2];
    // SAFETY: writes two numbers.
    let made = unsafe {
        libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0, ends.as_mut_ptr())
    };
    if made != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: new and nobody else's.
    let own = |end: c_int| UnixDatagram::from(unsafe { OwnedFd::from_raw_fd(end) });
    Ok((own(ends[0]), own(ends[1])))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that who listens is asked for, and that a name which another user has taken is not
    /// talked to.
    #[test]
    fn names_that_others_took() {
        let name = format!("kymo-test-knock-{}", std::process::id());
        let listen = |user: Option<libc::uid_t>| {
            let name = name.clone();
            let body = move || {
                if let Some(user) = user {
                    // SAFETY: changes this thread's user only, and it ends with this function.
                    let changed = unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) };
                    assert_eq!(changed, 0);
                }
                listener(&name)
            };
            std::thread::spawn(body).join().unwrap()
        };
        let at = format!("{name}.password");
        let ours = listen(None);
        assert!(connect(&at).is_some(), "the same user's");
        drop(ours);
        if own_user() != 0 {
            eprintln!("SKIPPED names_that_others_took: needs root to be another user");
            return;
        }
        let _other = listen(Some(12345));
        assert!(connect(&at).is_none(), "another user's");
    }

    /// Checks that a process knows whether this thread is its only one: then nothing waits for a
    /// grace period of RCU.
    #[test]
    fn only_threads() {
        std::thread::scope(|scope| {
            let (tell, told) = std::sync::mpsc::channel::<()>();
            scope.spawn(move || told.recv());
            assert!(!is_only_thread());
            // SAFETY: the child calls nothing that another thread may have locked: a short path
            // needs no memory.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: ends the child.
                unsafe { libc::_exit(c_int::from(is_only_thread())) };
            }
            let mut status = 0;
            // SAFETY: our child, and a number of ours.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 1));
            drop(tell);
        });
    }

    fn listener(name: &str) -> OwnedFd {
        let (raw, length) = address(name.as_bytes()).unwrap();
        // SAFETY: three numbers.
        let socket = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) };
        assert!(socket >= 0);
        // SAFETY: new and nobody else's.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        // SAFETY: an address that is ours and as long as said.
        assert_eq!(unsafe { libc::bind(socket.as_raw_fd(), (&raw const raw).cast(), length) }, 0);
        // SAFETY: two numbers.
        assert_eq!(unsafe { libc::listen(socket.as_raw_fd(), 4) }, 0);
        socket
    }
}
