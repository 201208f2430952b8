//! Who holds the process's threads, as this conversation has it: the tracer, if it said that it
//! would.
//!
//! ```text
//!   agent                                tracer
//!   Ready { places }          ------>    interrupts all threads but this one, waits, moves who stands inside a site
//!                             <------    Held, and a pipe          (or NotHeld: then all run)
//!   writes                               (its end is looked at before each few sites: the kernel lets the threads go if it dies)
//!   Written                   ------>    lets them go
//! ```
//! Where the kernel does not let the process write its own code, `Ready` names the bytes, and the
//! tracer has written them when it says `Held`. It could write at any time, but only while it
//! traces a thread, and this one goes on. So a program that has not begun is held by the tracer,
//! too.
//!
//! Of the pipe only the thread that traces has the other end, and the kernel takes that away before
//! it lets the first thread go. The socket says less: it lasts as long as any thread of a tracer
//! that is being killed, and they end one by one.
//!
//! Between `Held` and `Written` this thread allocates nothing and takes no lock: whoever has one
//! may stand still.
use super::startup_gate::StartupGate;
use std::os::unix::net::UnixDatagram;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeldBy {
    /// The tracer never said that it would.
    Nobody,
    /// The program has not begun: its first thread waits for us.
    FirstWaits,
    /// The tracer, when asked.
    Tracer,
    /// The tracer has held them, and is gone.
    NobodyAnyMore,
}

#[derive(Debug)]
pub(super) struct Threads<'a> {
    pub(super) socket: &'a UnixDatagram,
    pub(super) by: HeldBy,
    pub(super) first: StartupGate,
    /// The pipe's end, while they are held.
    pub(super) pipe: Option<i32>,
}

impl<'a> Threads<'a> {
    /// Nobody holds them yet.
    pub(super) fn new(socket: &'a UnixDatagram) -> Threads<'a> {
        Threads { socket, by: HeldBy::Nobody, first: StartupGate, pipe: None }
    }
}

pub(super) use tracer::may_write;

mod tracer {
    use super::{HeldBy, Threads};
    use crate::patch::{Hold, Holder, OwnMemory, Request};
    use crate::sys::raw;
    use kymo_core::probe::wire::{Command, PatchSites, Reply};
    use std::os::fd::AsRawFd;

    /// `Held` and `Written` as packets: nothing is made of them while threads stand still.
    const HELD: [u8; 4] = [31, 0, 0, 0];
    const WRITTEN: [u8; 4] = [32, 0, 0, 0];
    const MOST_WORDS_BYTES: usize = 1024;

    /// Whether this process can write its own code. If that is not known, the attempt will tell.
    pub(in super::super) fn may_write() -> bool {
        OwnMemory::open().map_or(true, |memory| memory.is_forced())
    }

    impl Threads<'_> {
        pub(in super::super) fn holder(&mut self) -> Holder<'_> {
            match self.by {
                HeldBy::Tracer => Holder::Tracer(self),
                HeldBy::FirstWaits if !may_write() => Holder::Tracer(self),
                HeldBy::FirstWaits => Holder::Tracer(&mut self.first),
                HeldBy::Nobody | HeldBy::NobodyAnyMore => Holder::Nobody,
            }
        }

        /// Whether the tracer has ended.
        pub(in super::super) fn is_orphaned(&self) -> bool {
            !raw::is_connected(self.number())
        }

        fn number(&self) -> i32 {
            self.socket.as_raw_fd()
        }

        fn drop_pipe(&mut self) {
            if let Some(pipe) = self.pipe.take() {
                raw::close(pipe);
            }
        }
    }

    impl Hold for Threads<'_> {
        fn hold(&mut self, request: &Request<'_>) -> Result<(), String> {
            let places = PatchSites {
                thread: raw::thread(),
                sites_at: request.sites.as_ptr() as u64,
                sites: request.sites.len() as u32,
                moves_at: request.moves.as_ptr() as u64,
                moves: request.moves.len() as u32,
                restorers: request.restorers.clone(),
                edits_at: request.edits.as_ptr() as u64,
                edits: request.edits.len() as u32,
            };
            let gone = |error: std::io::Error| format!("the tracer is gone: {error}");
            self.socket.send(&Reply::Ready(places).encode()).map_err(gone)?;
            let mut packet = [0; MOST_WORDS_BYTES];
            // From here on they may stand still.
            let (count, pipe) = raw::receive_with(self.number(), &mut packet).map_err(gone)?;
            self.drop_pipe();
            self.pipe = pipe;
            match count {
                count if packet[..count] == HELD => Ok(()),
                0 => Err("the tracer is gone".to_owned()),
                count => Err(match Command::decode(&packet[..count]) {
                    Ok(Command::NotHeld { reason }) => reason,
                    _ => "the tracer sent another message".to_owned(),
                }),
            }
        }

        fn holds(&self) -> bool {
            // Without a pipe the socket says it, later.
            raw::is_connected(self.pipe.unwrap_or_else(|| self.number()))
        }

        fn release(&mut self) {
            self.drop_pipe();
            // Who does not hear it has let them go already.
            _ = raw::send(self.number(), &WRITTEN);
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        /// Checks that the two packets which are written down here are what the language says.
        #[test]
        fn packets() {
            assert_eq!(Command::Held.encode(), HELD);
            assert_eq!(Reply::Written.encode(), WRITTEN);
        }

        /// Checks that a tracer counts as gone when the thread that traces is, although another one
        /// still has the socket.
        #[test]
        fn the_thread_that_traces_ends_first() {
            let (tracer, agent) = super::super::super::start::pair().unwrap();
            let (reading, writing) = std::io::pipe().unwrap();
            let reading = std::fs::File::from(std::os::fd::OwnedFd::from(reading));
            crate::sys::pass::send_with(&tracer, &HELD, &reading).unwrap();
            drop(reading);
            let mut threads = Threads::new(&agent);
            let request = Request { sites: &[], moves: &[], restorers: Vec::new(), edits: &[] };
            threads.hold(&request).unwrap();
            assert!(threads.holds());
            drop(writing);
            assert!(!threads.holds());
            threads.release();
            // Without a pipe the socket says it.
            tracer.send(&HELD).unwrap();
            threads.hold(&request).unwrap();
            assert!(threads.holds());
            drop(tracer);
            assert!(!threads.holds());
        }
    }
}
