//! [`Watcher`]: the rings, and the breakpoints of each turn that write into them.
use super::attrs;
use super::options::{Scope, WatchOptions};
use super::schedule::Schedule;
use crate::bpf::{BpfError, Follow, FollowedBitmap, Follower, WatchCounts, WatchProgram};
use crate::evlist::{
    self, Evlist, EvlistPlan, MappedRing, OpenEngine, OpenError, ReopenError, Request, RingError, Targets,
};
use crate::hotplug::{CpuFollower, CpuGap};
use crate::sys::{self, ANY, Kernel};
use kymo_core::ring::Reader;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// All rings together.
const RINGS_BYTES: usize = 64 << 20;
/// One ring, at least and at most.
const RING_BYTES: std::ops::RangeInclusive<usize> = 512 << 10..=8 << 20;
/// Why nothing is watched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WatchError {
    /// An event could not be opened; these were the requests.
    #[error("{0}")]
    Open(#[source] Box<OpenError>, Vec<Request>),
    /// A ring could not be had.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The kernel does not let hits be filtered.
    #[error(transparent)]
    Bpf(#[from] BpfError),
    /// Something that usually works did not.
    #[error("failed to {action}: {source}")]
    System {
        /// What.
        action: &'static str,
        /// Why.
        source: io::Error,
    },
}

impl WatchError {
    /// The number that the kernel gave for refusing an event.
    pub fn errno(&self) -> Option<i32> {
        match self {
            WatchError::Open(error, _) => error.source.raw_os_error(),
            WatchError::Ring(error) => error.source.raw_os_error(),
            WatchError::System { source, .. } => source.raw_os_error(),
            WatchError::Bpf(_) => None,
        }
    }

    /// Whether no breakpoint register was free.
    pub fn no_slot(&self) -> bool {
        matches!(self, WatchError::Open(..)) && self.errno() == Some(libc::ENOSPC)
    }
}

fn system(action: &'static str) -> impl Fn(io::Error) -> WatchError {
    move |source| WatchError::System { action, source }
}

/// The breakpoints of one turn.
#[derive(Debug)]
struct Turn {
    number: usize,
    // Rings before events: an event's ring is unmapped before it is closed.
    rings: Vec<MappedRing>,
    events: Evlist,
    since: Instant,
}

/// How long a register was armed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Armed {
    /// Armed for so long, in ns.
    pub armed_ns: u64,
    /// Since so long it was to be, in ns.
    pub all_ns: u64,
}

/// Everything that watching needs; nothing is armed before [`Watcher::arm`]. Dropping it disarms
/// and closes everything.
#[derive(Debug)]
pub struct Watcher {
    kernel: Arc<dyn Kernel>,
    options: WatchOptions,
    scope: Scope,
    /// Why it is not filtered, where that was not asked for.
    fallback: Option<String>,
    cpus: Vec<u32>,
    follower: Option<CpuFollower>,
    /// Whether registers take turns.
    has_turns: bool,
    /// Times in which accesses on a CPU were not seen, in ns since the first breakpoint was armed.
    gaps: Vec<CpuGap>,
    turn: Option<Turn>,
    armed_ns: Vec<u64>,
    begun: Option<Instant>,
    // Rings before events.
    rings: Vec<MappedRing>,
    frame: Evlist,
    filter: Option<(Follower, WatchProgram)>,
    /// Lost in rings of turns that are over.
    lost_before: u64,
    scratch: Vec<u8>,
}

impl Watcher {
    /// Opens what tells of the processes' names, mappings and ends, and the rings.
    ///
    /// # Errors
    /// [`WatchError`]; nothing is open then.
    pub fn open(kernel: Arc<dyn Kernel>, options: WatchOptions) -> Result<Watcher, WatchError> {
        match options.scope {
            Some(scope) => Watcher::open_in(kernel, options, scope, None),
            None => match Watcher::open_in(Arc::clone(&kernel), options.clone(), Scope::Filtered, None) {
                Err(error) => Watcher::open_in(kernel, options, Scope::Tasks, Some(error.to_string())),
                opened => opened,
            },
        }
    }

    fn open_in(
        kernel: Arc<dyn Kernel>,
        options: WatchOptions,
        scope: Scope,
        fallback: Option<String>,
    ) -> Result<Watcher, WatchError> {
        let cpus = sys::online_cpus();
        let filter = || -> Result<_, BpfError> {
            let follower = Follower::start(Follow::Processes(&options.pids))?;
            let witness = follower.witness(options.stop)?;
            Ok((follower, witness))
        };
        let filter = (scope == Scope::Filtered).then(filter).transpose()?;
        let wanted = RINGS_BYTES / cpus.len().max(1);
        let ring_bytes = options.ring_bytes.unwrap_or(wanted.clamp(*RING_BYTES.start(), *RING_BYTES.end()));
        let ring_pages = (ring_bytes / sys::page_size()).max(1).next_power_of_two();
        let immediate = |name: &str, attr| Request { immediate: true, ..Request::new(name, attr) };
        let mut requests = vec![immediate("dummy:u", attrs::tracking(&options, scope))];
        if scope == Scope::Filtered {
            requests.push(immediate("hits", attrs::output(&options, ring_bytes)));
        }
        let plan = EvlistPlan { events: requests, targets: targets(scope, &options.pids, &cpus) };
        let mut frame = open_list(&kernel, plan)?;
        let rings = frame.map_rings(ring_pages, true)?;
        let watcher = Watcher {
            kernel,
            options,
            scope,
            fallback,
            follower: Some(CpuFollower::begin(&cpus, false)),
            has_turns: false,
            gaps: Vec::new(),
            cpus,
            turn: None,
            armed_ns: Vec::new(),
            begun: None,
            rings,
            frame,
            filter,
            lost_before: 0,
            scratch: Vec::new(),
        };
        if let Some((_, witness)) = &watcher.filter {
            for &cpu in &watcher.cpus {
                // The events of a CPU in the order of the list: tracking, output.
                if let Some(&event) = watcher.frame.poll_fds(cpu as i32).get(1) {
                    witness.tell(cpu, event).map_err(system("give the kernel the event for hits"))?;
                }
            }
        }
        watcher.frame.enable(true).map_err(system("enable the tracking event"))?;
        Ok(watcher)
    }

    /// How threads are reached.
    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// Why hits are not filtered in the kernel, where nobody asked for that.
    pub fn fallback(&self) -> Option<&str> {
        self.fallback.as_deref()
    }

    /// Arms the registers of one turn, after those of the turn before were disarmed and their
    /// records given to `take`.
    ///
    /// # Errors
    /// [`WatchError`]; nothing is armed then.
    pub fn arm(
        &mut self,
        schedule: &Schedule,
        number: usize,
        take: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), WatchError> {
        self.disarm(schedule, take);
        self.armed_ns.resize(schedule.registers.len(), 0);
        self.has_turns = schedule.turns.len() > 1;
        let turn = schedule.turns.get(number).map_or(&[][..], Vec::as_slice);
        let request = |&at: &usize| attrs::request(&self.options, self.scope, &schedule.registers[at]);
        // On a CPU that is offline nothing can be opened; it gets its events with the next turn.
        let online = sys::online_cpus();
        let cpus: Vec<u32> = self.cpus.iter().copied().filter(|cpu| online.contains(cpu)).collect();
        let targets = targets(self.scope, &self.options.pids, &cpus);
        let plan = EvlistPlan { events: turn.iter().map(request).collect(), targets };
        let mut events = open_list(&self.kernel, plan)?;
        let rings = match &self.filter {
            Some((_, witness)) => {
                let set = events.set_bpf(witness.program(), |_| true);
                set.map_err(system("attach the filter of hits to the breakpoints"))?;
                Vec::new()
            }
            None => {
                let pages = self.rings.first().map_or(1, |ring| ring.ring.size_bytes() / sys::page_size());
                events.map_rings(pages, true)?
            }
        };
        let since = Instant::now();
        self.begun.get_or_insert(since);
        events.enable(false).map_err(system("enable the breakpoints"))?;
        self.turn = Some(Turn { number, rings, events, since });
        Ok(())
    }

    /// Disarms what is armed, and gives what is left in its rings to `take`.
    pub fn disarm(&mut self, schedule: &Schedule, take: &mut dyn FnMut(usize, &[u8])) {
        let Some(turn) = self.turn.take() else { return };
        if let Err(error) = turn.events.disable() {
            tracing::warn!(%error, "failed to disable breakpoints");
        }
        let armed = turn.since.elapsed().as_nanos() as u64;
        for &register in schedule.turns.get(turn.number).into_iter().flatten() {
            if let Some(sum) = self.armed_ns.get_mut(register) {
                *sum += armed;
            }
        }
        let base = self.rings.len();
        for (index, ring) in turn.rings.iter().enumerate() {
            drain(ring, &mut self.scratch, &mut |bytes| take(base + index, bytes));
        }
        self.lost_before += turn.events.lost().iter().map(|lost| lost.lost).sum::<u64>();
    }

    /// Takes up CPUs that have come back, and notes what may be missing of them. To be called
    /// often.
    pub fn follow_cpus(&mut self) {
        let Some(mut follower) = self.follower.take() else { return };
        let begun = self.begun;
        let mut now_ns = || begun.map_or(0, |begun| begun.elapsed().as_nanos() as u64);
        let gaps = follower.follow(&mut now_ns, &mut |cpu| self.reopen(cpu));
        self.gaps.extend(gaps);
        self.follower = Some(follower);
    }

    /// Opens everything on a CPU anew.
    fn reopen(&self, cpu: u32) -> Result<bool, String> {
        let number = i32::try_from(cpu).unwrap_or(ANY);
        if !self.frame.reopen(number, &mut |_| {}).map_err(|error| error.to_string())? {
            return Ok(false);
        }
        if let Some((_, witness)) = &self.filter
            && let Some(&event) = self.frame.poll_fds(number).get(1)
        {
            witness.tell(cpu, event).map_err(|error| error.to_string())?;
        }
        match self.turn.as_ref().map(|turn| turn.events.reopen(number, &mut |_| {})) {
            // It was offline when this turn was armed, and gets the next one.
            Some(Err(ReopenError::NotThere)) if self.has_turns => Ok(true),
            Some(Err(error)) => Err(error.to_string()),
            Some(Ok(_)) | None => Ok(true),
        }
    }

    /// Times in which accesses on a CPU were not seen, up to now.
    pub fn cpu_gaps(&mut self) -> Vec<CpuGap> {
        self.follow_cpus();
        let begun = self.begun;
        let mut now_ns = || begun.map_or(0, |begun| begun.elapsed().as_nanos() as u64);
        let lasting = self.follower.take().map(|follower| follower.finish(&mut now_ns)).unwrap_or_default();
        self.gaps.extend(lasting);
        self.gaps.clone()
    }

    /// How long each register of the schedule was armed, as of now.
    pub fn coverage(&self, schedule: &Schedule) -> Vec<Armed> {
        let all_ns = self.begun.map_or(0, |begun| begun.elapsed().as_nanos() as u64);
        let now = |register: usize| {
            let turn = self.turn.as_ref().filter(|turn| schedule.turns[turn.number].contains(&register));
            turn.map_or(0, |turn| turn.since.elapsed().as_nanos() as u64)
        };
        let sums = self.armed_ns.iter().enumerate();
        sums.map(|(register, &sum)| Armed { armed_ns: (sum + now(register)).min(all_ns), all_ns }).collect()
    }

    /// Sleeps until a ring asks for it, `also` is readable, or the time is over.
    pub fn wait(&self, also: &[BorrowedFd<'_>], most: Duration) {
        let mut fds: Vec<PollFd<'_>> =
            also.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        let turn = self.turn.iter().flat_map(|turn| turn.rings.iter().map(move |ring| (&turn.events, ring)));
        let rings = self.rings.iter().map(|ring| (&self.frame, ring)).chain(turn);
        for fd in rings.filter_map(|(events, ring)| events.poll_fd(ring)) {
            fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
        }
        let time = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
        // A ring whose tasks have all ended is always "ready": then sleep as if there were none.
        if poll(&mut fds, Some(&time)).unwrap_or(0) > 0
            && fds.iter().all(|fd| fd.revents().is_empty() || fd.revents().contains(PollFlags::HUP))
        {
            std::thread::sleep(most);
        }
    }

    /// Takes everything out of the rings: `take` gets the number of a ring, and whole records of
    /// it.
    pub fn drain(&mut self, take: &mut dyn FnMut(usize, &[u8])) {
        for (index, ring) in self.rings.iter().enumerate() {
            drain(ring, &mut self.scratch, &mut |bytes| take(index, bytes));
        }
        let base = self.rings.len();
        for (index, ring) in self.turn.iter().flat_map(|turn| &turn.rings).enumerate() {
            drain(ring, &mut self.scratch, &mut |bytes| take(base + index, bytes));
        }
    }

    /// What the kernel's program counted; `None` where there is none.
    pub fn counts(&self) -> Option<WatchCounts> {
        self.filter.as_ref().map(|(_, witness)| witness.counts())
    }

    /// Hits for which rings had no room, as the events count them.
    pub fn lost(&self) -> u64 {
        let lost_now =
            || self.turn.iter().flat_map(|turn| turn.events.lost()).map(|lost| lost.lost).sum::<u64>();
        self.counts().map_or_else(|| self.lost_before + lost_now(), |counts| counts.lost)
    }

    /// Threads or processes that could not be followed.
    pub fn unfollowed(&self) -> u64 {
        self.filter.as_ref().map_or(0, |(follower, _)| follower.missed())
    }

    /// Which processes were ever followed; `None` where records are about nobody else.
    pub fn ever(&self) -> Option<FollowedBitmap> {
        self.filter.as_ref().and_then(|(follower, _)| follower.ever())
    }

    /// How many descriptors are open for events.
    pub fn descriptors(&self) -> usize {
        self.frame.descriptors() + self.turn.as_ref().map_or(0, |turn| turn.events.descriptors())
    }
}

fn open_list(kernel: &Arc<dyn Kernel>, plan: EvlistPlan) -> Result<Evlist, WatchError> {
    let requests = plan.events.clone();
    evlist::open(Arc::clone(kernel), plan, OpenEngine::Auto)
        .map_err(|error| WatchError::Open(Box::new(error), requests))
}

fn targets(scope: Scope, pids: &[i32], cpus: &[u32]) -> Targets {
    match scope {
        Scope::Filtered => Targets::system(cpus),
        Scope::Tasks => {
            let tasks = pids.iter().flat_map(|&pid| crate::proc::tasks(pid).unwrap_or_else(|_| vec![pid]));
            Targets::tasks(tasks.collect(), cpus)
        }
    }
}

/// Takes all whole records out of a ring.
fn drain(ring: &MappedRing, scratch: &mut Vec<u8>, take: &mut dyn FnMut(&[u8])) {
    let mut reader = Reader::new(ring.ring.area());
    match reader.begin() {
        Ok(span) if span.is_empty() => {}
        Ok(span) => {
            let bytes = span.len_bytes();
            scratch.resize(bytes, 0);
            span.copy_to(scratch);
            reader.release(span, bytes);
            take(scratch);
        }
        Err(corrupt) => {
            tracing::warn!(%corrupt, "skipped");
            reader.skip();
        }
    }
}

#[cfg(test)]
mod tests;
