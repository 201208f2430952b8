//! Asynchronous writes of several pieces to one file.
use super::silence;
use kymo_perf::uring::{Answer, Uring, UringWrite};
use std::fs::File;
use std::io;

/// So many pieces are on their way at most.
const DEPTH: u32 = 8;

/// A file to which several pieces may be on their way at once. Each is answered once, in any order;
/// an answer may be short.
pub(crate) trait Port: Send {
    /// Sends a piece on its way, or gives it back if as many are on their way as may be.
    fn submit(&mut self, piece: UringWrite) -> Result<(), UringWrite>;

    /// An answer that is there already.
    fn try_next(&mut self) -> Option<Answer>;

    /// The next answer; `None` if nothing is on its way.
    fn next(&mut self) -> io::Result<Option<Answer>>;
}

impl Port for Uring {
    fn submit(&mut self, piece: UringWrite) -> Result<(), UringWrite> {
        silence::begins();
        Uring::submit(self, piece).inspect_err(|_| silence::answered())
    }

    fn try_next(&mut self) -> Option<Answer> {
        Uring::ready(self).inspect(|_| silence::answered())
    }

    fn next(&mut self) -> io::Result<Option<Answer>> {
        let answer = Uring::wait(self)?;
        Ok(answer.inspect(|_| silence::answered()))
    }
}

/// How to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Through io_uring where the kernel permits it.
    Uring,
    /// One `pwrite(2)` after the other.
    Pwrite,
}

/// What is used where nothing is said: see `bench/runs` for why.
const DEFAULT: Choice = Choice::Pwrite;

impl Choice {
    /// What the environment variable KYMO_IO says, `uring` or `pwrite`.
    pub(crate) fn from_env() -> Choice {
        match std::env::var("KYMO_IO").as_deref() {
            Ok("uring") => Choice::Uring,
            Ok("pwrite") => Choice::Pwrite,
            _ => DEFAULT,
        }
    }
}

/// A port to the file; `None` where pwrite is to be used.
pub(crate) fn open_port(file: &File, choice: Choice) -> Option<Box<dyn Port>> {
    if choice == Choice::Pwrite {
        return None;
    }
    let ring = file.try_clone().and_then(|copy| Uring::open(copy.into(), DEPTH));
    match ring {
        Ok(ring) => Some(Box::new(ring)),
        Err(error) => {
            tracing::info!(%error, "io_uring is not available, falling back to pwrite");
            None
        }
    }
}
