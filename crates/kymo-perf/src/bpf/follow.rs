//! [`Follower`]: maps, programs and their attachment, in the order that misses no task.
use super::attach::{self, Attached, Attachment, FollowRules, load};
use super::available::{Unavailable, available, ids_are_the_kernels};
use super::error::BpfError;
use super::followed_bitmap::{FollowedBitmap, SharedBitmap};
use super::insn::Assembler;
use super::map::{FollowState, Followed};
use super::program::{self, FROM_EXEC, FollowKey, Maps, NOW};
use super::python::PythonMaps;
use super::sys::ProgramKind;
use super::watch_program::WatchProgram;
use crate::proc;
use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// How many processes can be followed at the same time if never said. The table takes 16 bytes for
/// each, and making it is the largest part of the set-up.
const PROCESSES: u32 = 1 << 14;

/// The same for threads.
const THREADS: u32 = 1 << 16;

/// The same where ended processes stay in the map: as many as can pass in a long recording.
const PROCESSES_KEPT: u32 = 1 << 18;

/// Who is to be followed. Ids are those of the first pid namespace.
#[derive(Clone, Copy, Debug)]
pub enum Follow<'a> {
    /// All threads of these processes, and all processes that they make, for ever.
    Processes(&'a [i32]),
    /// A process that is held before its exec: from its exec on, with all that it makes.
    Command(i32),
    /// These threads.
    Threads {
        /// Their ids.
        ids: &'a [i32],
        /// Whether the threads and processes that they make are followed, too.
        children: bool,
    },
}

/// Choices that [`Follower::start`] makes by itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct FollowOptions {
    /// How to attach; `None`: by raw tracepoints, else by tracepoint events.
    pub attachment: Option<Attachment>,
    /// Leave ended processes in the map, as kernels need it that do not tell which exit is a
    /// process's last.
    pub keep_ended: bool,
    /// Take the map's memory at once, as kernels before 6.1 need it.
    pub preallocate: bool,
    /// Do without memory that is shared with the programs, as before Linux 5.12: nobody remembers
    /// who was ever followed.
    pub no_sharing: bool,
    /// How many can be followed at the same time.
    pub entries: Option<u32>,
    /// Walks the frames of Python at each sample that is kept ([`super::PythonWalker::maps`]).
    pub python: Option<PythonMaps>,
}

/// Follows tasks in the kernel: forks, new threads, exec and exit. Dropping it ends that; programs
/// that were given to events stay with them and go on keeping the samples of who was followed.
#[derive(Debug)]
pub struct Follower {
    // First, so that they are detached before the maps go.
    attached: Attached,
    /// Until it is with the events.
    sample: Option<OwnedFd>,
    followed: Followed,
    state: FollowState,
    ever: Option<SharedBitmap>,
    key: FollowKey,
    missed_at_entry: u64,
}

impl Follower {
    /// Whether tasks can be followed here.
    ///
    /// # Errors
    /// Why not, in words.
    pub fn available() -> Result<(), Unavailable> {
        available()
    }

    /// Begins to follow. When it returns, every thread of the targets is followed, and whatever
    /// they make from now on will be.
    ///
    /// # Errors
    /// [`BpfError`]: what the kernel refused. Targets that are gone are no error.
    pub fn start(who: Follow<'_>) -> Result<Follower, BpfError> {
        Follower::start_with(who, &FollowOptions::default())
    }

    /// The same with choices made by the caller.
    ///
    /// # Errors
    /// As [`Follower::start`].
    pub fn start_with(who: Follow<'_>, options: &FollowOptions) -> Result<Follower, BpfError> {
        ids_are_the_kernels().map_err(BpfError::Unavailable)?;
        let key = match who {
            Follow::Threads { .. } => FollowKey::Thread,
            Follow::Processes(_) | Follow::Command(_) => FollowKey::Process,
        };
        if let Some(how) = options.attachment {
            return Follower::begin(who, how, key, options);
        }
        Follower::begin(who, Attachment::Raw, key, options).or_else(|raw| {
            let events = |options| Follower::begin(who, Attachment::Tracepoint, key, &options);
            events(*options)
                .or_else(|error| match error {
                    // Before Linux 6.16 the records do not tell a process's last exit.
                    BpfError::Field { .. } => events(FollowOptions { keep_ended: true, ..*options }),
                    error => Err(error),
                })
                .map_err(|tracepoint| match available() {
                    // A reason that a person can do something about, if there is one.
                    Err(reason) => BpfError::Unavailable(reason),
                    Ok(()) => BpfError::Both { raw: Box::new(raw), tracepoint: Box::new(tracepoint) },
                })
        })
    }

    fn begin(
        who: Follow<'_>,
        how: Attachment,
        key: FollowKey,
        options: &FollowOptions,
    ) -> Result<Follower, BpfError> {
        let entries = options.entries.unwrap_or(match key {
            FollowKey::Process | FollowKey::Thread if options.keep_ended => PROCESSES_KEPT,
            FollowKey::Process => PROCESSES,
            FollowKey::Thread => THREADS,
        });
        let map = |what, entries| move |cause| BpfError::Map { what, entries, cause };
        let mut state = FollowState::new(!options.no_sharing).map_err(map("state", 2))?;
        // Without it nothing is lost: then records about processes cannot be told apart, and all
        // are kept.
        let mut ever = if options.no_sharing { None } else { SharedBitmap::new().ok() };
        let maps_and_sample = |preallocate| {
            let followed = Followed::new(entries, preallocate).map_err(map("followed tasks", entries))?;
            let ever = ever.as_ref().and_then(SharedBitmap::number);
            let maps = Maps { followed: followed.number(), state: state.number(), ever, key };
            let walk = |a: &mut Assembler| {
                if let Some(python) = options.python {
                    a.walk_python(python);
                }
            };
            let sample = load(ProgramKind::PerfEvent, "kymo_sample", &program::sample(maps, walk), None)?;
            Ok((followed, maps, sample))
        };
        let (followed, maps, sample) = maps_and_sample(options.preallocate).or_else(|error| match error {
            // Before Linux 6.1 a program that runs in interrupts may not use a map that grows.
            BpfError::Load { ref cause, .. } if cause.raw_os_error() == Some(libc::EINVAL) => {
                maps_and_sample(true).map_err(|_: BpfError| error)
            }
            error => Err(error),
        })?;
        let wanted = FollowRules {
            children: !matches!(who, Follow::Threads { children: false, .. }),
            from_exec: matches!(who, Follow::Command(_)),
            keep_ended: options.keep_ended,
        };
        // I2: whoever is made from here on is seen; only then is anyone entered.
        let attached = attach::attach(how, maps, wanted).or_else(|error| match error {
            // Before Linux 5.12 programs cannot set a bit among others in one step.
            BpfError::Load { .. } if ever.take().is_some() => {
                attach::attach(how, Maps { ever: None, ..maps }, wanted).map_err(|second| match second {
                    // Something can be done about this one ([`Follower::start_with`]).
                    BpfError::Field { .. } => second,
                    _ => error,
                })
            }
            error => Err(error),
        })?;
        // The programs keep the maps, and we the memory.
        state.loaded();
        if let Some(ever) = &mut ever {
            ever.loaded();
        }
        let mut follower =
            Follower { attached, sample: Some(sample), followed, state, ever, key, missed_at_entry: 0 };
        follower.add(who)?;
        Ok(follower)
    }

    /// Follows more targets. They must be of the kind that the follower was started with (processes
    /// or threads); a command cannot be added.
    ///
    /// # Errors
    /// [`BpfError::Enter`].
    pub fn add(&mut self, who: Follow<'_>) -> Result<(), BpfError> {
        let entered = match who {
            Follow::Command(pid) => self.enter(&[pid], FROM_EXEC),
            Follow::Threads { ids, .. } | Follow::Processes(ids) => self.enter(ids, NOW),
        };
        let settled = entered.and_then(|()| self.state.settle(true));
        settled.map_err(|cause| BpfError::Enter { targets: who.count(), cause })
    }

    fn enter(&mut self, ids: &[i32], value: u64) -> io::Result<()> {
        self.state.settle(false)?;
        // Ids of the first namespace are positive.
        let keys: Vec<u32> = ids.iter().filter_map(|&id| u32::try_from(id).ok()).collect();
        // I7: the bits first, so that whatever a followed one makes finds its maker's process
        // there.
        match (&self.ever, self.key) {
            (Some(ever), FollowKey::Process) => ever.enter(keys.iter().copied()),
            (Some(ever), FollowKey::Thread) => ever.enter(processes_of(ids)),
            (None, _) => {}
        }
        self.missed_at_entry += self.followed.enter(&keys, value)?;
        Ok(())
    }

    /// The program that decides for each sample; `None` once all is [`bound`](Self::bound). Give it
    /// to the events that sample ([`crate::sys::Kernel::set_bpf`]), but never to tracepoints: there
    /// it would hide the hits from everyone else, too.
    pub fn program(&self) -> Option<BorrowedFd<'_>> {
        self.sample.as_ref().map(AsFd::as_fd)
    }

    /// Makes what hits of watchpoints need; see [`WatchProgram`]. `stop`: whoever hits one gets
    /// SIGSTOP there.
    ///
    /// # Errors
    /// [`BpfError`]: what the kernel refused.
    pub(crate) fn witness(&self, stop: bool) -> Result<WatchProgram, BpfError> {
        WatchProgram::new(self.followed.number(), self.key, stop)
    }

    /// All events have the program: they keep it, and its descriptor is closed.
    pub fn bound(&mut self) {
        self.sample = None;
    }

    /// The processes that were followed at any time, with thread keys those of the followed
    /// threads. `None` where the kernel cannot keep them for us (before Linux 5.12). It may outlive
    /// the follower; then nobody is added to it any more.
    pub fn ever(&self) -> Option<FollowedBitmap> {
        self.ever.as_ref().map(SharedBitmap::bits)
    }

    /// Who is followed now: ids (of processes or of threads), and
    /// whether samples are kept already (`true`) or from the next exec on.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn followed(&self) -> io::Result<Vec<(u32, bool)>> {
        Ok(self.followed.contents()?.into_iter().map(|(id, value)| (id, value == NOW)).collect())
    }

    /// How many new tasks could not be followed, because too many were at the same time, memory was
    /// short, or the kernel could not run the program (then strangers' tasks are counted, too). 0
    /// in any sane recording; else samples may be missing.
    pub fn missed(&self) -> u64 {
        let skipped = skipped(self.attached.newtask.as_fd()).unwrap_or(0);
        self.missed_at_entry + self.state.missed().unwrap_or(0) + skipped
    }

    /// What its keys are.
    pub(super) fn key(&self) -> FollowKey {
        self.key
    }

    /// The map of who is followed, for other programs that ask it.
    pub(super) fn followed_map(&self) -> i32 {
        self.followed.number()
    }

    /// How many descriptors it keeps open.
    pub fn descriptors(&self) -> usize {
        // The program that sees new tasks, and who is followed.
        let always = 2;
        self.attached.links.len() + always + self.state.descriptors() + usize::from(self.sample.is_some())
    }
}

impl Follow<'_> {
    fn count(&self) -> usize {
        match self {
            Follow::Processes(ids) | Follow::Threads { ids, .. } => ids.len(),
            Follow::Command(_) => 1,
        }
    }
}

/// The processes of these threads, as far as they live. One file for each process, not for each
/// thread.
fn processes_of(tids: &[i32]) -> Vec<u32> {
    let (mut known, mut found) = (HashSet::new(), HashSet::new());
    for &tid in tids {
        if known.contains(&tid) {
            continue;
        }
        let Some(pid) = proc::process_of(tid) else { continue };
        if found.insert(pid as u32) {
            known.extend(proc::tasks(pid).unwrap_or_default());
        }
    }
    found.into_iter().collect()
}

/// How often the kernel could not run a program because it was running already on that CPU; `None`
/// before Linux 5.12.
pub(super) fn skipped(program: BorrowedFd<'_>) -> Option<u64> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", program.as_raw_fd())).ok()?;
    info.lines().find_map(|line| line.strip_prefix("recursion_misses:"))?.trim().parse().ok()
}
