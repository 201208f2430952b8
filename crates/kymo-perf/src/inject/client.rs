//! The tracer's side of the protocol with the agent.
use super::code_writes::CodeWriter;
use super::connection::send_with;
use super::counters::SharedCounters;
use super::guard::SocketGuard;
use super::refusal::EnterError;
use super::seccomp;
use super::target::TargetProcess;
use super::{memory, rings};
use crate::proc;
use crate::ring::Ring;
use crate::sys::socket::refuse_descriptors;
use kymo_core::holds::{HoldReport, TABLE_BYTES};
use kymo_core::latency::{self, Latencies};
use kymo_core::probe::wire::{
    Command, HitCount, MOST_BYTES, MOST_ENTRIES, Malformed, ProbeAction, ProbeSpec, ProbeStatus, Reply,
    VERSION,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendFlags, recvmsg, send};
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

mod agent_state;
mod holding;
mod interrupt;
mod limits;
mod patience;
mod protocol_error;
use agent_state::{AgentState, PlacedProbe};
use holding::Holding;
use interrupt::INTERRUPT;
pub use interrupt::interrupt_by;
pub(crate) use interrupt::is_interrupted;
use limits::Limits;
use patience::Patience;
pub use protocol_error::ProtocolError;
use protocol_error::broken;

/// For one question with all that belongs to it, and for a program that is stopped in the middle of
/// it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// A program that is held before its first instruction waits no longer.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(10);
/// For each question when the probing is over.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(15);
/// And for each probe: patching a hundred thousand functions takes seconds.
const TIMEOUT_PER_PROBE: Duration = Duration::from_millis(1);
/// While threads stand still. Writing takes milliseconds.
const WRITING: Duration = Duration::from_secs(5);
/// How often threads are held for one question, besides once for each probe.
const MOST_HOLDS: usize = 64;
/// Entries of all answers to one question.
const MOST_ANSWERS: usize = 1 << 20;
/// Callers of all probes together: each of them is to be given a name.
const MOST_CALLERS: usize = 1 << 16;
/// Packets that are taken at once of what the agent says unasked.
const MOST_UNASKED: usize = 10_000;

/// What became of a batch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Probes that cannot be in the process, by number, with the reason.
    pub refused: Vec<(u32, String)>,
    /// Probes that are armed now, those of earlier batches with them.
    pub armed: u32,
    /// How long the process's threads stood still for it, from the first one's stop until all were
    /// let go; 0 if they ran all the while.
    pub stopped_ns: u64,
    /// Why they ran all the while, if they were to be held.
    pub not_held: Option<String>,
    /// Who wrote the process's code, if it is not the agent.
    pub writer: Option<CodeWriter>,
}

/// What was counted for a probe.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProbeCounts {
    /// Which.
    pub id: u32,
    /// Hits until now.
    pub hits: u64,
    /// How long its calls took that have returned, if they are timed.
    pub latencies: Latencies,
    /// Calls that were not timed, because too many were under way at once.
    pub untimed: u64,
}

/// What a packet was.
enum Packet {
    Answer(Reply),
    /// Something that comes unasked.
    Kept,
    /// There was none.
    Nothing,
}

/// A conversation with the agent in one process. When it is dropped, or this process ends however
/// it ends, the agent removes its probes.
#[derive(Debug)]
pub struct Client {
    socket: OwnedFd,
    process: Option<OwnedFd>,
    /// Decides what becomes of the socket when we are gone.
    guard: Option<SocketGuard>,
    /// Known since the greeting.
    cpus: u32,
    counters: Option<SharedCounters>,
    /// The process, by the number that it has for itself.
    own_pid: Option<i32>,
    /// Where it adds up holds of locks, once it was asked to.
    holds: OnceLock<File>,
    known: Mutex<AgentState>,
    /// Probes that an earlier tracer had left and the agent removed.
    cleaned_up: u32,
    /// Whose threads are held when the agent writes, with the memory that it had when the agent
    /// entered.
    target: OnceLock<TargetProcess>,
    /// The agent's thread in it.
    agent: OnceLock<i32>,
    /// The process's number, if it was started with the agent in it.
    pid: Option<i32>,
    /// For one question.
    patience: Duration,
    /// The probing is over.
    is_ending: AtomicBool,
    /// Probes are in place: from then on answers are waited for whatever the user has signalled.
    is_armed: AtomicBool,
    /// What became of that since it was asked last.
    holding: Mutex<Holding>,
}

/// So long the agent's thread may take to wait again, where it has no CPU.
const MOST_AWAKE: Duration = Duration::from_secs(1);
const AWAKE_PAUSE: Duration = Duration::from_micros(100);

impl Client {
    pub(super) fn new(socket: OwnedFd, process: Option<OwnedFd>) -> Client {
        // An agent has no reason to send one, and closing one can take for ever.
        refuse_descriptors(&socket);
        Client {
            socket,
            process,
            guard: None,
            cpus: 0,
            counters: None,
            own_pid: None,
            holds: OnceLock::new(),
            known: Mutex::default(),
            cleaned_up: 0,
            target: OnceLock::new(),
            agent: OnceLock::new(),
            pid: None,
            patience: STARTUP_TIMEOUT,
            is_ending: AtomicBool::new(false),
            is_armed: AtomicBool::new(false),
            holding: Mutex::default(),
        }
    }

    /// In this process, whose threads may be held.
    pub(super) fn of(self, target: TargetProcess) -> Client {
        Client { target: target.into(), patience: ANSWER_TIMEOUT, ..self }
    }

    /// In a process that was started with the agent in it.
    pub(super) fn started(self, pid: i32) -> Client {
        Client { pid: Some(pid), ..self }
    }

    /// The first exchange. `children`: forked children of the process count, too.
    pub(super) fn hello(mut self, children: bool) -> Result<Client, EnterError> {
        let not_loaded = |why: String| EnterError::NotLoaded(why);
        let refused = |reply: Reply| match reply {
            Reply::Failed { reason } => not_loaded(reason),
            _ => ProtocolError::Unexpected.into(),
        };
        match self.ask(&Command::Hello { version: VERSION, children })? {
            Reply::Hello { version: VERSION, cleaned_up, cpus, slots, pid } => {
                self.be_guarded().map_err(EnterError::failed("starting the guard of its connection"))?;
                self.own_pid = i32::try_from(pid).ok();
                self.cleaned_up = cleaned_up;
                let counters = SharedCounters::create(cpus, crate::sys::cpu_number_bound(), slots);
                let counters = counters.map_err(EnterError::failed("making counters for the agent"))?;
                let (file, cpus, slots) = counters.parts();
                match self.ask_with(&Command::Counters { cpus, slots }, Some(file))? {
                    Reply::Counting => {}
                    reply => return Err(refused(reply)),
                }
                self.cpus = cpus;
                self.counters = Some(counters);
                Ok(self)
            }
            Reply::Hello { version, .. } => Err(not_loaded(format!(
                "the agent in it is of another version (its language is {version}, this is {VERSION}); restart the process"
            ))),
            reply => Err(refused(reply)),
        }
    }

    /// From now on the agent does not hear of this process's end while a filter of system calls
    /// holds for its thread.
    fn be_guarded(&mut self) -> io::Result<()> {
        let agent = self.target.get().and_then(|target| seccomp::agent_thread(target.pid));
        if let (Some(tid), Some(process)) = (agent, &self.process) {
            _ = self.agent.set(tid);
            self.guard = Some(SocketGuard::start(tid, process, &self.socket)?);
        }
        Ok(())
    }

    /// From now on holds the process's threads whenever the agent writes code, for which it must be
    /// possible to trace them. Probes that an earlier tracer had to leave are removed at once.
    pub(super) fn holds(mut self) -> Result<Client, EnterError> {
        match self.ask(&Command::Holds)? {
            Reply::Cleaned { probes } => {
                self.cleaned_up += probes;
                Ok(self)
            }
            _ => Err(ProtocolError::Unexpected.into()),
        }
    }

    /// How many probes of an earlier tracer, which had ended without removing them, the agent
    /// removed.
    pub fn cleaned_up(&self) -> u32 {
        self.cleaned_up
    }

    /// The probing is over: what is still asked must be answered soon.
    pub fn ends(&self) {
        // Relaxed: a flag by itself.
        self.is_ending.store(true, Ordering::Relaxed);
    }

    fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }

    fn limits(&self) -> Limits {
        let probes = self.known().added.len();
        let patience = if self.is_ending() { self.patience.min(LEAVE_TIMEOUT) } else { self.patience };
        let patience = patience + TIMEOUT_PER_PROBE * u32::try_from(probes).unwrap_or(u32::MAX);
        let pid = self.pid.or_else(|| self.target.get().map(|target| target.pid));
        let (holds, answers) = (MOST_HOLDS + probes, MOST_ANSWERS);
        Limits { patience: Patience::with(pid, patience), holds, answers, most_answers: answers }
    }

    /// Whether a filter of system calls holds for the agent's thread: then nothing can be asked,
    /// and the probes stay.
    pub fn is_restricted(&self) -> bool {
        self.agent.get().copied().is_some_and(seccomp::is_filtered)
    }

    fn say(&self, command: &Command, patience: &mut Patience) -> Result<(), ProtocolError> {
        self.say_with(command, None, patience)
    }

    /// Says it, with a file of ours.
    fn say_with(
        &self,
        command: &Command,
        file: Option<BorrowedFd<'_>>,
        patience: &mut Patience,
    ) -> Result<(), ProtocolError> {
        if self.known().has_answered_unasked {
            return Err(ProtocolError::Unexpected);
        }
        if !self.is_ending() && self.is_restricted() {
            return Err(ProtocolError::Restricted);
        }
        let packet = command.encode();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        loop {
            let sent = match file {
                Some(file) => send_with(&self.socket, &packet, file),
                None => send(&self.socket, &packet, flags).map(|_| ()),
            };
            match sent {
                Ok(()) => return Ok(()),
                Err(rustix::io::Errno::AGAIN) => self.wait(PollFlags::OUT, patience)?,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(broken(error)),
            }
        }
    }

    fn known(&self) -> MutexGuard<'_, AgentState> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until the agent has said something or can hear something, or can do neither any more.
    fn wait(&self, for_what: PollFlags, patience: &mut Patience) -> Result<(), ProtocolError> {
        loop {
            if patience.is_over() {
                // Also if it is never short of words.
                return Err(ProtocolError::Silent);
            }
            let limit = rustix::event::Timespec::try_from(patience.slice()).unwrap_or_default();
            // A forked child may hold the socket of a process that has ended.
            let process = self.process.iter().map(|process| PollFd::new(process, PollFlags::IN));
            let asks_on = self.is_ending() || self.is_armed.load(Ordering::Relaxed);
            let signals = INTERRUPT.get().filter(|_| !asks_on);
            let signals = signals.map(|signals| PollFd::new(signals, PollFlags::IN));
            let has_signals = signals.is_some();
            let mut ends: Vec<PollFd<'_>> =
                std::iter::once(PollFd::new(&self.socket, for_what)).chain(process).chain(signals).collect();
            match poll(&mut ends, Some(&limit)) {
                Ok(0) => {}
                // What is there to be heard is heard first.
                Ok(_) if !ends[0].revents().is_empty() => return Ok(()),
                Ok(_) if has_signals && ends.last().is_some_and(|last| !last.revents().is_empty()) => {
                    return Err(ProtocolError::Interrupted);
                }
                Ok(_) => return Err(ProtocolError::Gone),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(broken(error)),
            }
        }
    }

    /// Hears an answer; threads are held for the agent meanwhile if it asks for that.
    fn hear(&self, limits: &mut Limits) -> Result<Reply, ProtocolError> {
        loop {
            match self.hear_within(&mut limits.patience)? {
                Reply::Ready(_) if limits.patience.is_over() => return Err(ProtocolError::Silent),
                Reply::Ready(places) => {
                    limits.holds = limits.holds.checked_sub(1).ok_or(ProtocolError::Unexpected)?;
                    // A thread of its own traces: when it ends, the kernel lets go whatever it may
                    // still trace.
                    std::thread::scope(|scope| {
                        let hold = || self.hold(&places, &mut limits.patience);
                        let holds = std::thread::Builder::new()
                            .spawn_scoped(scope, hold)
                            .map_err(ProtocolError::Io)?;
                        holds.join().unwrap_or(Err(ProtocolError::Unexpected))
                    })?;
                    // What took its time there is not the agent's fault.
                    limits.patience.renew(WRITING);
                }
                answer => return Ok(answer),
            }
        }
    }

    fn hear_within(&self, patience: &mut Patience) -> Result<Reply, ProtocolError> {
        loop {
            self.wait(PollFlags::IN, patience)?;
            if let Packet::Answer(reply) = self.receive()? {
                return Ok(reply);
            }
        }
    }

    /// The next packet, if it is there; what may come unasked is kept.
    fn receive(&self) -> Result<Packet, ProtocolError> {
        // One more than a packet may have, so that one that was cut is seen as too long.
        let mut packet = vec![0; MOST_BYTES + 1];
        // No room for descriptors: the kernel drops them, and says so.
        let mut control = RecvAncillaryBuffer::default();
        let mut hear = || {
            let mut parts = [IoSliceMut::new(&mut packet)];
            recvmsg(&self.socket, &mut parts, &mut control, RecvFlags::DONTWAIT)
        };
        // An agent that hung up with something unread: that is told once, before what it had said.
        let heard = match hear() {
            Err(rustix::io::Errno::CONNRESET) => hear(),
            heard => heard,
        };
        let heard = match heard {
            // Another holder of this socket may have taken it.
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(Packet::Nothing),
            heard => heard.map_err(broken)?,
        };
        let bytes = heard.bytes;
        if heard.flags.contains(ReturnFlags::CTRUNC) {
            return Err(ProtocolError::Malformed(Malformed { expected: "a message without a descriptor" }));
        }
        if bytes == 0 {
            return Err(ProtocolError::Gone);
        }
        let mut known = self.known();
        match Reply::decode(&packet[..bytes])? {
            Reply::Refused { id, reason } => known.refuse(id, reason)?,
            Reply::Placed { of } => of.into_iter().try_for_each(|placed| known.place(placed))?,
            Reply::Before { id, of } => {
                known.places.get_mut(&id).ok_or(ProtocolError::Unexpected)?.times_before = of;
            }
            answer => return Ok(Packet::Answer(answer)),
        }
        Ok(Packet::Kept)
    }

    /// Takes what the agent has said unasked until now.
    fn listen(&self) {
        // A broken conversation is told by the next question; an answer that nobody asked for
        // breaks it.
        for _ in 0..MOST_UNASKED {
            match self.receive() {
                Ok(Packet::Kept) => {}
                Ok(Packet::Answer(_)) => return self.known().has_answered_unasked = true,
                Ok(Packet::Nothing) | Err(_) => return,
            }
        }
    }

    fn ask(&self, command: &Command) -> Result<Reply, ProtocolError> {
        self.ask_with(command, None)
    }

    fn ask_with(&self, command: &Command, file: Option<&OwnedFd>) -> Result<Reply, ProtocolError> {
        let mut limits = self.limits();
        self.say_with(command, file.map(OwnedFd::as_fd), &mut limits.patience)?;
        let reply = self.hear(&mut limits)?;
        self.wait_until_asleep();
        Ok(reply)
    }

    /// The agent's thread has said its answer, and waits for the next command soon. A filter of all
    /// threads that comes before could end the program at the call that waits: nobody is told
    /// meanwhile that kymo is there.
    fn wait_until_asleep(&self) {
        let (Some(&tid), Some(target)) = (self.agent.get(), self.target.get()) else { return };
        let until = Instant::now() + MOST_AWAKE;
        while proc::state(target.pid, tid) == Some('R') && Instant::now() < until {
            std::thread::sleep(AWAKE_PAUSE);
        }
    }

    /// Says it, and hears answers until `part` says that it was the last one.
    fn ask_all(
        &self,
        command: &Command,
        mut part: impl FnMut(Reply, &mut Limits) -> Result<bool, ProtocolError>,
    ) -> Result<(), ProtocolError> {
        let mut limits = self.limits();
        self.say(command, &mut limits.patience)?;
        while !part(self.hear(&mut limits)?, &mut limits)? {}
        Ok(())
    }

    /// Adds probes of a module, named as the process's list of mappings names it. They are armed by
    /// [`Client::commit`].
    ///
    /// # Errors
    /// See [`ProtocolError`]: the conversation is over.
    pub fn add(&self, module: &[u8], probes: &[ProbeSpec]) -> Result<(), ProtocolError> {
        self.known().added.extend(probes.iter().map(|wanted| (wanted.id, false)));
        let mut patience = self.limits().patience;
        for probes in probes.chunks(MOST_ENTRIES) {
            self.say(&Command::Add { module: module.to_vec(), probes: probes.to_vec() }, &mut patience)?;
        }
        Ok(())
    }

    /// Removes probes at the next [`Client::commit`].
    ///
    /// # Errors
    /// See [`ProtocolError`]: the conversation is over.
    pub fn remove(&self, ids: &[u32]) -> Result<(), ProtocolError> {
        let mut patience = self.limits().patience;
        for ids in ids.chunks(MOST_ENTRIES) {
            self.say(&Command::Remove { ids: ids.to_vec() }, &mut patience)?;
        }
        Ok(())
    }

    /// Does what was asked since the last time, all together.
    ///
    /// # Errors
    /// See [`ProtocolError`]. A probe that cannot be armed is no error but in [`Outcome::refused`].
    pub fn commit(&self) -> Result<Outcome, ProtocolError> {
        _ = self.take_holding();
        let armed = match self.ask(&Command::Commit)? {
            Reply::Armed { armed, .. } => armed,
            reply => return Err(ProtocolError::instead_of_answer(reply)),
        };
        let Holding { stopped, failed: not_held, writer } = self.take_holding();
        let refused = std::mem::take(&mut self.known().refused);
        // Relaxed: a flag by itself.
        self.is_armed.store(true, Ordering::Relaxed);
        Ok(Outcome { refused, armed, stopped_ns: stopped.as_nanos() as u64, not_held, writer })
    }

    /// What was counted until now, for all probes that are or were armed; also when the process has
    /// ended. Asks nobody.
    pub fn counts(&self) -> Vec<ProbeCounts> {
        self.listen();
        let Some(counters) = &self.counters else { return Vec::new() };
        let known = self.known();
        let ends = known.places.values().map(|place| {
            let times = place.placed.times.map_or(0, |first| first.saturating_add(latency::SLOTS));
            times.max(place.placed.hits.saturating_add(1))
        });
        let written = counters.written(ends.max().unwrap_or(0));
        let count = |(&id, place): (&u32, &PlacedProbe)| {
            let placed = &place.placed;
            // Times first: a call is counted before it is timed.
            let first = placed.times.filter(|&first| counters.has(first, latency::SLOTS));
            let now = |first: u32, slot: u32| counters.sum(first + slot, &written);
            let latencies = first.map(|first| place.latencies(|slot| now(first, slot))).unwrap_or_default();
            let untimed = first.map_or(0, |first| place.since(latency::UNTIMED, |slot| now(first, slot)));
            let hits = counters.sum(placed.hits, &written).wrapping_sub(placed.before);
            ProbeCounts { id, hits, latencies, untimed }
        };
        known.places.iter().map(count).collect()
    }

    /// Probes that were refused later than at their [`Client::commit`], because their module was
    /// loaded later, with the reasons. Each is told once.
    pub fn refused_later(&self) -> Vec<(u32, String)> {
        self.listen();
        std::mem::take(&mut self.known().refused)
    }

    /// Lets a program run that was held before its first instruction ([`Preload`](super::Preload)).
    ///
    /// # Errors
    /// See [`ProtocolError`]: the conversation is over.
    pub fn go(&self) -> Result<(), ProtocolError> {
        self.say(&Command::Go, &mut self.limits().patience)
    }

    /// Says what probes do that name this number ([`ProbeSpec::action_id`]), from now on.
    ///
    /// # Errors
    /// See [`ProtocolError`]: the conversation is over.
    pub fn define_action(&self, id: u16, action: ProbeAction) -> Result<(), ProtocolError> {
        self.say(&Command::Action { id, action }, &mut self.limits().patience)
    }

    /// The rings that events are written to, one for each CPU. Times in them are
    /// `zero_ns + (ticks * tick >> 32)`. What is in them is what the target wrote there.
    ///
    /// # Errors
    /// See [`ProtocolError`].
    pub fn rings(&self, data_bytes: u32, tick: u64, zero_ns: u64) -> Result<Vec<Ring>, ProtocolError> {
        let (file, data_bytes, rings) =
            rings::create(self.cpus, data_bytes, None).map_err(ProtocolError::Io)?;
        let command = Command::Rings { cpus: self.cpus, data_bytes, tick, zero_ns };
        match self.ask_with(&command, Some(&file))? {
            Reply::Recording => Ok(rings),
            reply => Err(ProtocolError::instead_of_answer(reply)),
        }
    }

    /// Has probes of the kind [`ProbeKind::Hold`](kymo_core::probe::wire::ProbeKind) add up how
    /// long locks are held. Once, before the first of them.
    ///
    /// # Errors
    /// See [`ProtocolError`].
    pub fn time_holds(&self) -> Result<(), ProtocolError> {
        let file = memory::create("kymo-holds", TABLE_BYTES).map_err(ProtocolError::Io)?;
        match self.ask_with(&Command::HoldTable, Some(&file))? {
            Reply::TimingHolds => {
                _ = self.holds.set(file.into());
                Ok(())
            }
            reply => Err(ProtocolError::instead_of_answer(reply)),
        }
    }

    /// How long locks were held until now; also when the process has ended. Asks nobody.
    pub fn lock_holds(&self) -> HoldReport {
        let Some(file) = self.holds.get() else { return HoldReport::default() };
        let mut bytes = Vec::new();
        let mut report = HoldReport::read(|at, words| {
            bytes.resize(words.len() * 8, 0);
            let read = file.read_exact_at(&mut bytes, at * 8);
            for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
                *word = u64::from_ne_bytes(*bytes);
            }
            read.is_ok()
        });
        let pid = self.pid.or_else(|| self.target.get().map(|target| target.pid));
        if let (Some(pid), Some(own)) = (pid, self.own_pid) {
            // In a container it has another number for itself.
            report.locks.iter_mut().filter(|of| of.pid == own).for_each(|of| of.pid = pid);
        }
        report
    }

    /// How many events did not fit into their rings until now, by probe; only of those that have
    /// any.
    ///
    /// # Errors
    /// See [`ProtocolError`].
    pub fn losses(&self) -> Result<Vec<HitCount>, ProtocolError> {
        let mut losses = Vec::new();
        self.ask_all(&Command::Losses, |reply, limits| match reply {
            Reply::Losses { of, last } => limits.extend(&mut losses, of).map(|()| last),
            reply => Err(ProtocolError::instead_of_answer(reply)),
        })?;
        Ok(losses)
    }

    /// Who called until now: the probe, the return address, how many calls. An address of 0 stands
    /// for all callers that there was no place for.
    ///
    /// # Errors
    /// See [`ProtocolError`].
    pub fn callers(&self) -> Result<Vec<(u32, u64, u64)>, ProtocolError> {
        let mut callers = Vec::new();
        self.ask_all(&Command::Callers, |reply, limits| match reply {
            Reply::Callers { id, others, of, last } => {
                limits.answers = limits.answers.min(MOST_CALLERS.saturating_sub(callers.len()));
                limits.most_answers = MOST_CALLERS;
                let others = (others > 0).then_some((0, others));
                let of = of.into_iter().chain(others).map(|(address, hits)| (id, address, hits));
                limits.extend(&mut callers, of).map(|()| last)
            }
            reply => Err(ProtocolError::instead_of_answer(reply)),
        })?;
        Ok(callers)
    }

    /// Whether nobody is left who could count: the process has ended or executed another program,
    /// and so has all that it has forked.
    pub fn is_over(&self) -> bool {
        let mut ends = [PollFd::new(&self.socket, PollFlags::empty())];
        let now = rustix::event::Timespec::default();
        matches!(poll(&mut ends, Some(&now)), Ok(1..)) && ends[0].revents().contains(PollFlags::HUP)
    }

    /// All probes of this conversation, with the reasons of those that were refused.
    ///
    /// # Errors
    /// See [`ProtocolError`].
    pub fn list(&self) -> Result<Vec<ProbeStatus>, ProtocolError> {
        let mut listed = Vec::new();
        self.ask_all(&Command::List, |reply, limits| match reply {
            Reply::ProbeStatus { of, last } => limits.extend(&mut listed, of).map(|()| last),
            reply => Err(ProtocolError::instead_of_answer(reply)),
        })?;
        Ok(listed)
    }

    /// Has everything removed, and the agent's thread ended. The library stays loaded, without a
    /// use.
    ///
    /// # Errors
    /// See [`ProtocolError`]. That the process is gone is no error: then everything is removed.
    pub fn leave(self) -> Result<(), ProtocolError> {
        self.ends();
        if self.is_restricted() {
            // Not another word to it: the next call of its thread could end the program. The guard
            // keeps the conversation open.
            return Err(ProtocolError::Restricted);
        }
        match self.ask(&Command::Leave) {
            Ok(Reply::Left) | Err(ProtocolError::Gone) => Ok(()),
            answer => Err(answer.map_or_else(|error| error, ProtocolError::instead_of_answer)),
        }
    }
}

#[cfg(any(test, fuzzing))]
mod exercise;
#[cfg(test)]
mod liars;
#[cfg(test)]
mod tests;
#[cfg(fuzzing)]
pub use exercise::exercise;
