//! Signals that end a verb: noted, and readable, instead of the end of this process.
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context;
use kymo_perf::sys::BlockedSignals;
use kymo_perf::workload::{die_by, signal_started};
use kymo_record::Silence;
use signal_hook::consts::{SIGCONT, SIGUSR2, SIGWINCH, SIGXFSZ};
pub use signal_hook::consts::{SIGHUP, SIGINT, SIGPIPE, SIGTERM};
use signal_hook::{flag, low_level};

/// What asks a verb to end.
const ENDING: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// INT, TERM and HUP of this process from now on. Its descriptor can be read once one of them came.
#[derive(Debug)]
pub struct Signals {
    readable: UnixStream,
    last: Arc<AtomicUsize>,
}

impl Signals {
    /// Catches them as often as they come.
    ///
    /// # Errors
    /// If there is no descriptor left.
    pub fn catch() -> anyhow::Result<Signals> {
        Signals::catch_as(false)
    }

    /// Catches each of them once: the second time it ends this process, whatever that waits for.
    /// Within half a second it is the same request: a terminal interrupts its whole foreground,
    /// and a program such as `sudo` or `timeout` passes on what it got itself.
    ///
    /// # Errors
    /// If there is no descriptor left.
    pub fn catch_once() -> anyhow::Result<Signals> {
        Signals::catch_as(true)
    }

    fn catch_as(once: bool) -> anyhow::Result<Signals> {
        let (readable, writable) = UnixStream::pair().context("failed to make a socket pair")?;
        readable.set_nonblocking(true).context("failed to make a socket pair")?;
        let last = Arc::new(AtomicUsize::new(0));
        // A signal that comes before its last registration would wake no reader, and would be forgotten.
        let _blocked = BlockedSignals::new();
        let repeats = once.then(Repeats::follow).transpose().context("failed to make a socket pair")?;
        let register = |signal| {
            if let Some(repeats) = &repeats {
                repeats.register(signal)?;
            }
            // The number before the wake-up: what wakes must see which signal it was.
            flag::register_usize(signal, Arc::clone(&last), signal as usize)?;
            low_level::pipe::register(signal, writable.try_clone()?)
        };
        ENDING
            .into_iter()
            .try_for_each(|signal| register(signal).map(drop))
            .context("failed to catch signals")?;
        Ok(Signals { readable, last })
    }

    /// The one that came last.
    pub fn last(&self) -> Option<i32> {
        // Relaxed: the handler ran before the descriptor could be read, or will be seen in the next round.
        Some(self.last.load(Ordering::Relaxed) as i32).filter(|&signal| signal != 0)
    }

    /// Another descriptor that can be read once one came.
    ///
    /// # Errors
    /// If there is no descriptor left.
    pub fn another_fd(&self) -> anyhow::Result<OwnedFd> {
        Ok(self.readable.try_clone().context("failed to make a socket pair")?.into())
    }

    /// Reads what woke the caller, so that only the next signal wakes it again. [`Signals::last`] stays.
    pub fn clear(&self) {
        let mut bytes = [0; 64];
        let _ = rustix::io::read(&self.readable, &mut bytes);
    }

    /// When a signal came and the output does not answer: says so, ends the command that this process
    /// has started, and at last this process by that signal.
    ///
    /// # Errors
    /// If there is no descriptor left.
    pub fn end_when_silent(&self, verb: &'static str, output: &str) -> anyhow::Result<()> {
        let (output, last) = (output.to_owned(), Arc::clone(&self.last));
        let mut command_ends = false;
        let tell = move |silence| {
            // As it is ended where the output answers: a second signal may end this process from here on.
            if !std::mem::replace(&mut command_ends, true) {
                signal_started(SIGTERM);
            }
            match silence {
                Silence::Waiting(left) => eprintln!(
                    "kymo {verb}: {output}: its file system does not answer; waiting {} s more",
                    left.as_secs().max(1)
                ),
                Silence::GivenUp { pending } => {
                    // Relaxed: a flag by itself.
                    IS_GIVEN_UP.store(true, Ordering::Relaxed);
                    eprintln!(
                        "kymo {verb}: {output}: its file system does not answer; ended, the file has what was published before \
                         (the kernel keeps this process until that file system answers or is gone: see `umount -f`)"
                    );
                    // Relaxed: the handler ran before the descriptor could be read.
                    let came = last.load(Ordering::Relaxed) as i32;
                    die_by(if came == 0 { pending } else { came });
                }
            }
        };
        // Without a thread for it the second signal is left.
        let _ = kymo_record::watch_for_silence(self.another_fd()?, tell);
        Ok(())
    }
}

/// It was said, or is about to be, that this process has ended by a signal.
static IS_GIVEN_UP: AtomicBool = AtomicBool::new(false);

/// Before this process ends: waits for the signal by which it was said to end, though the output
/// answers after all. Otherwise the status would depend on who is faster.
pub(crate) fn wait_if_given_up() {
    /// It is sent at once.
    const LONG: Duration = Duration::from_secs(10);
    // Relaxed: as above.
    if IS_GIVEN_UP.load(Ordering::Relaxed) {
        std::thread::sleep(LONG);
    }
}

/// Which signals end this process when they come again.
struct Repeats {
    /// Of each: whether it came, and whether that was long enough ago.
    flags: [(Arc<AtomicBool>, Arc<AtomicBool>); ENDING.len()],
    came: UnixStream,
}

impl Repeats {
    /// Signals of one kind that are closer to each other are one request.
    const ONE_REQUEST: Duration = Duration::from_millis(500);

    /// Starts the thread that lets time pass. Without it signals are caught as often as they come.
    fn follow() -> std::io::Result<Repeats> {
        let (mut woken, came) = UnixStream::pair()?;
        let flags: [(Arc<AtomicBool>, Arc<AtomicBool>); ENDING.len()] = Default::default();
        let followed = flags.clone();
        let follow = move || {
            let mut bytes = [0; 64];
            while woken.read(&mut bytes).is_ok_and(|read| read > 0) {
                std::thread::sleep(Repeats::ONE_REQUEST);
                for (came, again) in &followed {
                    // Relaxed: the handler set it before it wrote what was read.
                    again.store(came.load(Ordering::Relaxed), Ordering::Relaxed);
                }
            }
        };
        let _ = std::thread::Builder::new().name("kymo-signals".into()).spawn(follow);
        Ok(Repeats { flags, came })
    }

    fn register(&self, signal: i32) -> std::io::Result<()> {
        let at = ENDING.iter().position(|&ending| ending == signal).expect("one of them");
        let (came, again) = &self.flags[at];
        flag::register_conditional_default(signal, Arc::clone(again))?;
        flag::register(signal, Arc::clone(came))?;
        low_level::pipe::register(signal, self.came.try_clone()?).map(drop)
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}

/// Becomes true when INT, TERM or HUP comes, for work that looks now and then.
///
/// # Errors
/// If the system refuses to catch them.
pub fn interrupted() -> anyhow::Result<Arc<AtomicBool>> {
    let came = Arc::new(AtomicBool::new(false));
    let _blocked = BlockedSignals::new();
    ENDING
        .into_iter()
        .try_for_each(|signal| flag::register(signal, Arc::clone(&came)).map(drop))
        .context("failed to catch signals")?;
    Ok(came)
}

/// Tells of the terminal's size, and of times at which this process was stopped.
#[derive(Debug)]
pub struct TerminalChanges {
    readable: UnixStream,
    went_on: Arc<AtomicBool>,
}

impl TerminalChanges {
    /// Follows them from now on.
    ///
    /// # Errors
    /// If there is no descriptor left.
    pub fn follow() -> anyhow::Result<TerminalChanges> {
        let (readable, writable) = UnixStream::pair().context("failed to make a socket pair")?;
        readable.set_nonblocking(true).context("failed to make a socket pair")?;
        let went_on = Arc::new(AtomicBool::new(false));
        // The flag before the wake-up: what wakes must see it.
        flag::register(SIGCONT, Arc::clone(&went_on)).context("failed to catch signals")?;
        for signal in [SIGCONT, SIGWINCH] {
            let writable = writable.try_clone().context("failed to make a socket pair")?;
            low_level::pipe::register(signal, writable).context("failed to catch signals")?;
        }
        Ok(TerminalChanges { readable, went_on })
    }

    /// Reads what woke the caller; whether this process was stopped, and goes on.
    pub fn clear(&self) -> bool {
        let mut bytes = [0; 64];
        let _ = rustix::io::read(&self.readable, &mut bytes);
        self.went_on.swap(false, Ordering::Relaxed)
    }
}

impl AsFd for TerminalChanges {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.readable.as_fd()
    }
}

/// A descriptor that can be read each time SIGUSR2 comes.
///
/// # Errors
/// If there is no descriptor left.
pub fn user_requests() -> anyhow::Result<UnixStream> {
    let (readable, writable) = UnixStream::pair().context("failed to make a socket pair")?;
    low_level::pipe::register(SIGUSR2, writable).context("failed to catch signals")?;
    Ok(readable)
}

/// Makes a file that may not grow a write error with a reason, not the end of this process; commands get the signal's default back.
///
/// # Errors
/// If the system refuses to catch the signal.
pub fn survive_file_limits() -> anyhow::Result<()> {
    flag::register(SIGXFSZ, Arc::default()).map(drop).context("failed to catch signals")
}
