//! Preloads the agent into a command and all programs that it executes: the dynamic linker loads
//! the library, which connects to our socket before the program's first instruction.
//!
//! ```text
//!   kymo                               a program, before its main function
//!   environment: LD_PRELOAD, where to knock
//!   [`Preload::wait`]        <------   connects, says the password
//!   [`Arrival::enter`]       <----->   the conversation begins
//!   probes                   <----->
//!   [`Client::go`]           ------>   runs
//! ```
//! A program that cannot have the library in it comes up without it, and the one that executes it
//! says so here (the agent's control/execs.rs).
//!
//! A program that is let in by nobody (kymo is gone, or does not want it) runs at once; one that is
//! held for longer than ten seconds, then.
//!
//! The socket has no name in any file system, so programs in other mount namespaces find it, and a
//! name that is 128 random bits. As such names can be listed by anyone, whoever knocks must also
//! say a password, which only the environment has, and belong to the same user or root, unless we
//! are root. Who says nothing is sent away after a second; few such visitors are kept, and of other
//! users' fewer, so that they crowd out nobody else's.
use super::client::Client;
use super::library::{Library, Unpacked};
use super::random;
use super::refusal::EnterError;
use crate::sys::socket::refuse_descriptors;
use kymo_core::probe::wire::printable;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, recv,
    socket_with,
};
use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Programs that may wait to be let in.
const QUEUE: i32 = 128;
/// Who has knocked says the password at once.
const PASSWORD_WITHIN: Duration = Duration::from_secs(1);
/// A program that was let in listens to what it is told.
const LISTENS_WITHIN: Duration = Duration::from_secs(10);
/// How many may be silent at a time: of root and our own user, and of others.
const MOST_OURS: usize = 56;
const MOST_OTHERS: usize = 8;
/// How many are let to the door before who is there already is heard again.
const MOST_AT_ONCE: usize = 64;
/// How long the door stays shut when there are no descriptors left.
const WHEN_SHORT: Duration = Duration::from_millis(20);
const VARIABLE: &str = "KYMO_AGENT_AT";
/// Reasons for which programs come up without the agent, and the characters that are shown of what
/// is said.
const MOST_REASONS: usize = 16;
const MOST_SHOWN: usize = 200;

/// What a command needs to come up with the agent in it, and where it knocks.
#[derive(Debug)]
pub struct Preload {
    listener: OwnedFd,
    name: String,
    password: String,
    library: Unpacked,
    tick: Option<u64>,
    visitors: Mutex<Visitors>,
    without: Mutex<Vec<Without>>,
}

/// Programs that came up without the agent for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Without {
    /// In words.
    pub why: String,
    /// How many.
    pub programs: u64,
    /// One of them, as it was executed.
    pub example: String,
}

/// Who has knocked and said nothing yet.
#[derive(Debug, Default)]
struct Visitors {
    /// The one that came first is the first.
    waiting: VecDeque<Visitor>,
    /// Nobody could be let to the door, for want of descriptors or memory.
    short: bool,
}

#[derive(Debug)]
struct Visitor {
    socket: OwnedFd,
    pid: Pid,
    /// It is root's, or our own user's.
    ours: bool,
    until: Instant,
}

/// A program that waits before its first instruction.
#[derive(Debug)]
pub struct Arrival {
    socket: OwnedFd,
    process: OwnedFd,
    pid: i32,
}

impl Preload {
    /// Makes the socket, and unpacks the library for as long as this lives.
    ///
    /// # Errors
    /// If there are no descriptors left, or there is no place for the library.
    pub fn new(library: &Library) -> Result<Preload, EnterError> {
        const STEP: &str = "making a socket for programs that start";
        let failed = |error: Errno| EnterError::Failed { step: STEP, error: error.into() };
        let library = library.unpack()?;
        let text = || random().map_err(EnterError::failed(STEP));
        let (name, password) = (format!("kymo-{}", text()?), text()?);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(failed)?;
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(failed)?;
        refuse_descriptors(&listener);
        bind(&listener, &address).map_err(failed)?;
        listen(&listener, QUEUE).map_err(failed)?;
        Ok(Preload {
            listener,
            name,
            password,
            library,
            tick: None,
            visitors: Mutex::default(),
            without: Mutex::default(),
        })
    }

    /// With what one tick of the processor's counter is, in nanoseconds times 2^32: so that not
    /// each program has to measure it.
    pub fn with_tick(self, tick: u64) -> Preload {
        Preload { tick: Some(tick), ..self }
    }

    /// Variables to set. Libraries that the caller preloads already stay, before ours: some of them
    /// must be first.
    pub fn environment(&self) -> [(&'static str, OsString); 2] {
        let mut preload = std::env::var_os("LD_PRELOAD").unwrap_or_default();
        if !preload.is_empty() {
            preload.push(":");
        }
        preload.push(self.library.path());
        let tick = self.tick.map(|tick| format!(".{tick}")).unwrap_or_default();
        [("LD_PRELOAD", preload), (VARIABLE, format!("{}.{}{tick}", self.name, self.password).into())]
    }

    /// The next program that has knocked and said the password; waits for it. `None` when `stop`
    /// becomes readable or hangs up, or the kernel cannot wait.
    ///
    /// Nobody who is silent keeps others waiting: so many knock at once that are told apart by what
    /// they say.
    pub fn wait(&self, stop: BorrowedFd<'_>) -> Option<Arrival> {
        loop {
            let visitors = self.visitors();
            let mut ends = vec![PollFd::from_borrowed_fd(stop, PollFlags::IN)];
            ends.extend(visitors.waiting.iter().map(|visitor| PollFd::new(&visitor.socket, PollFlags::IN)));
            let first = visitors.waiting.iter().map(|visitor| visitor.until).min();
            let mut most = first.map(|until| until.saturating_duration_since(Instant::now()));
            if visitors.short {
                // The door would be found open for ever.
                most = Some(most.map_or(WHEN_SHORT, |most| most.min(WHEN_SHORT)));
            } else {
                ends.push(PollFd::new(&self.listener, PollFlags::IN));
            }
            let most = most.map(|most| Timespec {
                tv_sec: most.as_secs().cast_signed(),
                tv_nsec: i64::from(most.subsec_nanos()),
            });
            match poll(&mut ends, most.as_ref()) {
                Ok(_) if !ends[0].revents().is_empty() => return None,
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return None,
            }
            drop(ends);
            drop(visitors);
            if let Some(arrival) = self.accept() {
                return Some(arrival);
            }
        }
    }

    /// A program that has knocked and said the password; `None` if there is none now. Does not
    /// wait.
    pub fn accept(&self) -> Option<Arrival> {
        let mut visitors = self.visitors();
        let now = Instant::now();
        let mut at = 0;
        while let Some(visitor) = visitors.waiting.get(at) {
            match self.heard(visitor) {
                Heard::Nothing if now < visitor.until => at += 1,
                Heard::Password => return visitors.waiting.remove(at)?.enters(),
                _ => drop(visitors.waiting.remove(at)),
            }
        }
        let us = geteuid();
        visitors.short = false;
        for _ in 0..MOST_AT_ONCE {
            let socket = match accept_with(&self.listener, SocketFlags::CLOEXEC) {
                Ok(socket) => socket,
                Err(Errno::CONNABORTED | Errno::INTR) => continue,
                Err(error) => {
                    visitors.short = error != Errno::AGAIN;
                    break;
                }
            };
            let Ok(peer) = socket_peercred(&socket) else { continue };
            let ours = peer.uid == us || peer.uid.is_root();
            if !ours && !us.is_root() {
                continue;
            }
            let visitor = Visitor { socket, pid: peer.pid, ours, until: now + PASSWORD_WITHIN };
            // Most have said it by now.
            match self.heard(&visitor) {
                Heard::Nothing => visitors.keep(visitor),
                Heard::Password => return visitor.enters(),
                Heard::Else => {}
            }
        }
        None
    }

    /// Which programs came up without the agent until now, as far as who executed them could tell.
    pub fn without(&self) -> Vec<Without> {
        self.without.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// One more. What is said is not believed, but shown.
    fn came_up_without(&self, said: &[u8]) {
        let shown = |bytes: &[u8]| -> String { printable(bytes).chars().take(MOST_SHOWN).collect() };
        let mut parts = said.splitn(2, |byte| *byte == b'\n');
        let why = shown(parts.next().unwrap_or_default());
        let mut without = self.without.lock().unwrap_or_else(PoisonError::into_inner);
        match without.iter().position(|without| without.why == why) {
            Some(same) => without[same].programs += 1,
            None if without.len() < MOST_REASONS => {
                let example = shown(parts.next().unwrap_or_default());
                without.push(Without { why, programs: 1, example });
            }
            None => {}
        }
    }

    fn visitors(&self) -> MutexGuard<'_, Visitors> {
        self.visitors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn heard(&self, visitor: &Visitor) -> Heard {
        let mut said = [0; 512];
        match recv(&visitor.socket, &mut said[..], RecvFlags::DONTWAIT) {
            Ok((bytes, _)) if said[..bytes] == *self.password.as_bytes() => Heard::Password,
            Ok((bytes, _)) => {
                let word = said[..bytes].strip_prefix(self.password.as_bytes());
                if let Some(word) = word.and_then(|word| word.strip_prefix(b".")) {
                    self.came_up_without(word);
                }
                Heard::Else
            }
            Err(Errno::AGAIN | Errno::INTR) => Heard::Nothing,
            _ => Heard::Else,
        }
    }
}

enum Heard {
    Nothing,
    Password,
    /// Something else, or that it is gone.
    Else,
}

impl Visitors {
    /// Keeps it until it says something. Where too many of its kind are silent, the one that has
    /// been for longest goes.
    fn keep(&mut self, visitor: Visitor) {
        let most = if visitor.ours { MOST_OURS } else { MOST_OTHERS };
        let same = |other: &Visitor| other.ours == visitor.ours;
        if self.waiting.iter().filter(|other| same(other)).count() >= most
            && let Some(oldest) = self.waiting.iter().position(same)
        {
            drop(self.waiting.remove(oldest));
        }
        self.waiting.push_back(visitor);
    }
}

impl Visitor {
    fn enters(self) -> Option<Arrival> {
        let process = pidfd_open(self.pid, PidfdFlags::empty()).ok()?;
        refuse_descriptors(&self.socket);
        // One that does not listen must not be waited for either.
        set_socket_timeout(&self.socket, Timeout::Send, Some(LISTENS_WITHIN)).ok()?;
        Some(Arrival { socket: self.socket, process, pid: Pid::as_raw(Some(self.pid)) })
    }
}

impl Arrival {
    /// The process.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Opens the conversation; `children`: processes that it forks count in the same counters.
    /// Without this it runs on by itself.
    ///
    /// # Errors
    /// [`EnterError::NotLoaded`] if it is no agent that answers.
    pub fn enter(self, children: bool) -> Result<Client, EnterError> {
        Client::new(self.socket, Some(self.process)).started(self.pid).hello(children)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{SendFlags, connect, send, socketpair};
    use std::os::fd::AsFd;

    fn preload() -> Preload {
        Preload::new(&Library::embedded(b"\x7fELF")).unwrap()
    }

    fn visit(preload: &Preload) -> OwnedFd {
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        connect(&socket, &SocketAddrUnix::new_abstract_name(preload.name.as_bytes()).unwrap()).unwrap();
        socket
    }

    /// Checks that a program is let in at once though many have knocked and are silent, that only
    /// so many of those are kept, and that one that says something wrong goes.
    #[test]
    fn silent_visitors() {
        let preload = preload();
        let _silent: Vec<OwnedFd> = (0..100).map(|_| visit(&preload)).collect();
        let wrong = visit(&preload);
        send(&wrong, b"something else", SendFlags::NOSIGNAL).unwrap();
        let program = visit(&preload);
        send(&program, preload.password.as_bytes(), SendFlags::NOSIGNAL).unwrap();
        let (stop, stopper) = rustix::pipe::pipe().unwrap();
        let arrival = preload.wait(stop.as_fd()).expect("it says the password");
        assert_eq!(arrival.pid(), std::process::id() as i32);
        assert!(preload.visitors().waiting.len() <= MOST_OURS);
        let late = visit(&preload);
        assert!(preload.accept().is_none());
        send(&late, preload.password.as_bytes(), SendFlags::NOSIGNAL).unwrap();
        assert!(preload.wait(stop.as_fd()).is_some(), "it was silent at first");
        drop(stopper);
        assert!(preload.wait(stop.as_fd()).is_none(), "stopped");
    }

    /// Checks that programs which come up without the agent are counted by their reasons, as far as
    /// there are not too many, and only by who has the password.
    #[test]
    fn programs_without() {
        let preload = preload();
        let say = |words: &str| {
            let socket = visit(&preload);
            send(&socket, words.as_bytes(), SendFlags::NOSIGNAL).unwrap();
            drop(socket);
            assert!(preload.accept().is_none());
        };
        let password = preload.password.clone();
        say(&format!("{password}.linked statically\n/bin/one"));
        say(&format!("{password}.linked statically\n/bin/two"));
        say(&format!("{}.linked statically\n/bin/three", &password[1..]));
        say(&format!("{password}.of \x1b[2J musl\n/bin/\nfour"));
        let without = |why: &str, programs, example: &str| Without {
            why: why.to_owned(),
            programs,
            example: example.to_owned(),
        };
        let expected =
            [without("linked statically", 2, "/bin/one"), without("of ?[2J musl", 1, "/bin/?four")];
        assert_eq!(preload.without(), expected);
        (0..100).for_each(|number| say(&format!("{password}.{number}\n")));
        assert_eq!(preload.without().len(), MOST_REASONS);
    }

    /// Checks that who is silent goes when its time is over, and that other users crowd out only
    /// each other.
    #[test]
    fn crowds() {
        let preload = preload();
        let visitor = |ours, until| {
            let (socket, other) =
                socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
            (Visitor { socket, pid: rustix::process::getpid(), ours, until }, other)
        };
        let later = Instant::now() + Duration::from_secs(1000);
        let (mut ends, now) = (Vec::new(), Instant::now());
        for (ours, until) in [(true, later), (true, now)].into_iter().chain([(false, later); 100]) {
            let (visitor, end) = visitor(ours, until);
            preload.visitors().keep(visitor);
            ends.push(end);
        }
        let count = |ours| preload.visitors().waiting.iter().filter(|visitor| visitor.ours == ours).count();
        assert_eq!((count(true), count(false)), (2, MOST_OTHERS));
        assert!(preload.accept().is_none());
        assert_eq!((count(true), count(false)), (1, MOST_OTHERS));
        drop(ends);
        assert!(preload.accept().is_none());
        assert_eq!((count(true), count(false)), (0, 0));
    }
}
