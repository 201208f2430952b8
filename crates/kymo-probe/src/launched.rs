//! The engine inside a command that is started, and inside everything that it executes.
//!
//! ```text
//!   prepare()   what can be inside, by the programs' files; the environment by which the agent comes into each program
//!   begin()     a thread lets programs in as they come up: tells them the probes, lets them run
//!   started()   the command has come up, or why not
//!   read()      the sum over all programs, of those that have ended, too
//! ```
//! A program waits before its first instruction until it is armed, with one thread, so code of the C library is as good as any. What a program
//! forks counts in its memory; what it executes comes up as a program of its own.
use crate::engine::{Choice, Engine, ProbeRequest, Reading};
use crate::inproc::{Plan, Refusals};
use crate::{capability, forecast, modules};
use kymo_core::holds::{HoldReport, HoldRole};
use kymo_perf::inject::{self, Arrival, Client, CodeWriter, Execs, Preload, Without};
use kymo_symbols::sites::{ProbeModule, Site};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The dynamic linker of a large program takes some hundred milliseconds.
const EXEC_TIMEOUT: Duration = Duration::from_secs(10);
/// Programs whose memory is kept apart, though they may have ended.
const KEPT: usize = 64;
/// Why a site was not probed in any program.
const NOT_LOADED: &str = "its module was not loaded when a program started";
/// How many reasons are told.
const TOLD: usize = 5;
/// So many programs are talked to at a time; each takes ten seconds at most for an answer.
const MOST_TALKS: usize = 64;

/// A command that is about to be started, and probed from inside then.
pub struct Launch(Way);

enum Way {
    /// With the agent in it.
    Agent(AgentLaunch),
    /// It cannot load the agent.
    #[cfg(target_arch = "x86_64")]
    Stubs(crate::remote::StubLaunch),
}

/// A command that is about to be started with the agent in it.
struct AgentLaunch {
    preload: Preload,
    plan: Plan,
    children: bool,
}

/// Looks whether the command can have the agent in it, and which sites can be served so. Where there is a net, sites that are seen to be impossible
/// are left to it. `loaded`: what the command loads when it starts.
///
/// # Errors
/// Why not, in words.
pub fn prepare(
    choice: Choice,
    request: &ProbeRequest,
    children: bool,
    command: &[OsString],
    loaded: &[Arc<ProbeModule>],
) -> Result<Launch, String> {
    capability::check(request, None)?;
    let program = modules::executed(command).map_err(|error| error.to_string())?;
    #[cfg(target_arch = "x86_64")]
    if let Err(inject::EnterError::Static | inject::EnterError::Musl) = inject::preloadable(&program) {
        let launch = crate::remote::prepare(request, children, &program)?;
        return Ok(Launch(Way::Stubs(launch)));
    }
    capability::check_returns(choice, request)?;
    inject::preloadable(&program).map_err(|refusal| refusal.to_string())?;
    let mut plan = Plan::of(choice, request)?;
    let sites = &request.sites;
    if !choice.is_inside() {
        let later = |number: &usize| loaded.iter().all(|module| !Arc::ptr_eq(module, &sites[*number].module));
        let later = plan.served.iter().copied().filter(later);
        let reason = "its module is not loaded when the command starts";
        plan.leave_out(sites, later.map(|number| (number, reason.to_owned())).collect());
        plan.leave_out(sites, forecast::refusals(sites, &plan.served, request.timed));
        if plan.served.is_empty() {
            return Err(plan.first_reason());
        }
    }
    let preload = Preload::new(&crate::agent::LIBRARY).map_err(|refusal| refusal.to_string())?;
    // Once for all programs: it takes 20 ms.
    #[cfg(target_arch = "x86_64")]
    let preload = match request.timed {
        true => preload.with_tick(kymo_agent::patch::Clock::measured().tick),
        false => preload,
    };
    Ok(Launch(Way::Agent(AgentLaunch { preload, plan, children })))
}

/// Looks whether the command can have the agent in it, to time holds of locks by these functions.
///
/// # Errors
/// Why not, in words.
pub(crate) fn prepare_for_holds(
    sites: &[Site],
    roles: &[HoldRole],
    children: bool,
    command: &[OsString],
) -> Result<Launch, String> {
    let program = modules::executed(command).map_err(|error| error.to_string())?;
    inject::preloadable(&program).map_err(|refusal| refusal.to_string())?;
    let plan = Plan::of_holds(sites, roles)?;
    let preload = Preload::new(&crate::agent::LIBRARY).map_err(|refusal| refusal.to_string())?;
    #[cfg(target_arch = "x86_64")]
    let preload = preload.with_tick(kymo_agent::patch::Clock::measured().tick);
    Ok(Launch(Way::Agent(AgentLaunch { preload, plan, children })))
}

impl Launch {
    /// What the command's environment must have.
    pub fn environment(&self) -> Vec<(&'static str, OsString)> {
        match &self.0 {
            Way::Agent(launch) => launch.preload.environment().into(),
            #[cfg(target_arch = "x86_64")]
            Way::Stubs(_) => Vec::new(),
        }
    }

    /// The numbers of the sites that it will serve, ascending.
    pub(crate) fn served(&self) -> &[usize] {
        match &self.0 {
            Way::Agent(launch) => &launch.plan.served,
            #[cfg(target_arch = "x86_64")]
            Way::Stubs(launch) => launch.served(),
        }
    }

    /// The sites that it cannot serve, with the reasons.
    pub fn refused(&self) -> &[(usize, String)] {
        match &self.0 {
            Way::Agent(launch) => &launch.plan.refused,
            #[cfg(target_arch = "x86_64")]
            Way::Stubs(launch) => launch.refused(),
        }
    }

    /// What is said about it.
    pub(crate) fn words(&self) -> Option<&'static str> {
        match &self.0 {
            Way::Agent(_) => None,
            #[cfg(target_arch = "x86_64")]
            Way::Stubs(_) => Some(crate::remote::WORDS),
        }
    }

    /// Lets programs in from now on. `pid` is the command's.
    pub(crate) fn begin(self, pid: i32) -> io::Result<Box<dyn Engine>> {
        match self.0 {
            Way::Agent(launch) => Ok(Box::new(launch.begin(pid)?)),
            #[cfg(target_arch = "x86_64")]
            Way::Stubs(launch) => Ok(Box::new(launch.begin(pid)?)),
        }
    }
}

impl AgentLaunch {
    fn begin(self, pid: i32) -> io::Result<Launched> {
        let AgentLaunch { preload, plan, children } = self;
        let (told, stop) = UnixStream::pair()?;
        let state = State { past: vec![Reading::default(); plan.served.len()], ..State::default() };
        let execs = Execs::of(pid, children);
        let tree = Arc::new(ProcessTree {
            preload,
            plan,
            children,
            command: pid,
            execs,
            most: most_programs(take_descriptors()),
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let inside = Arc::clone(&tree);
        let thread = std::thread::Builder::new().name("programs".into()).spawn(move || inside.keep(&told))?;
        Ok(Launched { tree, stop: Some(stop), thread: Some(thread) })
    }
}

/// All programs that have come up.
struct Launched {
    tree: Arc<ProcessTree>,
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

struct ProcessTree {
    preload: Preload,
    plan: Plan,
    children: bool,
    command: i32,
    /// How many programs have been executed, if that can be known.
    execs: Option<Execs>,
    /// So many programs are observed at a time.
    most: usize,
    state: Mutex<State>,
    /// The command has come up, or will not.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    clients: Vec<Arc<Client>>,
    /// What those have counted that are not among the clients any more.
    past: Vec<Reading>,
    past_holds: HoldReport,
    /// Whether the command is armed, and which sites are not.
    command: Option<Result<Refusals, String>>,
    /// It may run.
    gone: bool,
    /// Programs that are being talked to.
    talks: usize,
    /// Programs that have come up with the agent in them.
    arrived: u64,
    /// Sites that others serve.
    left: Vec<usize>,
    /// Sites that could not be armed in some program.
    refused: BTreeMap<usize, String>,
    /// Sites that were armed in some program.
    armed: BTreeSet<usize>,
    /// How code was written for an agent that could not do it.
    writer: Option<CodeWriter>,
    /// Programs that could not be let in, and one of the reasons.
    failed: Option<(usize, String)>,
}

impl State {
    /// One more program that could not be let in.
    fn fail(&mut self, reason: String) {
        self.failed.get_or_insert((0, reason)).0 += 1;
    }
}

/// Descriptors of each program that is observed: a socket, the process, its counters.
const OF_EACH: u64 = 3;
/// Descriptors for everything else.
const RESERVED: u64 = 100;
/// More programs than this would need more mappings than a process may have.
const MOST_PROGRAMS: u64 = 16_384;

/// How many programs can be observed at a time with so many descriptors.
fn most_programs(descriptors: Option<u64>) -> usize {
    let most = descriptors.map_or(MOST_PROGRAMS, |all| all.saturating_sub(RESERVED) / OF_EACH);
    most.clamp(1, MOST_PROGRAMS) as usize
}

/// Takes all descriptors that this process may have; returns how many these are, if they are limited. The command, which has begun by now, keeps its own limit.
fn take_descriptors() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    // With fewer it works as well.
    _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    getrlimit(Resource::Nofile).current
}

impl ProcessTree {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens until it is told to stop. Each program has a thread of ours: one that does not answer keeps no other from its beginning.
    fn keep(&self, told: &UnixStream) {
        std::thread::scope(|scope| {
            while let Some(arrival) = self.preload.wait(told.as_fd()) {
                let mut state = self.state();
                while state.talks >= MOST_TALKS {
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                state.talks += 1;
                drop(state);
                let talk = || {
                    self.let_in(arrival);
                    self.state().talks -= 1;
                    self.changed.notify_all();
                };
                let thread = std::thread::Builder::new().name("program".into());
                if thread.spawn_scoped(scope, talk).is_err() {
                    // It was not asked in and runs.
                    let mut state = self.state();
                    state.talks -= 1;
                    state.fail("there are no threads left to talk to more programs at a time".to_owned());
                }
            }
        });
    }

    fn let_in(&self, arrival: Arrival) {
        let is_command = arrival.pid() == self.command;
        if !is_command && !self.children {
            // Not asked in, it runs on.
            return;
        }
        let mut state = self.state();
        let first = is_command && state.command.is_none();
        state.arrived += 1;
        if state.clients.len() >= KEPT.min(self.most) {
            self.fold(&mut state);
        }
        if state.clients.len() >= self.most {
            let most = self.most;
            state.fail(format!("{most} programs run at a time, more than kymo may have descriptors for"));
            return;
        }
        drop(state);
        // While it talks to a program nobody waits for the state.
        let armed = self.arm(arrival);
        let mut state = self.state();
        let (client, refused) = match armed {
            Ok((client, refused)) => (Some(client), Ok(refused)),
            Err(reason) => {
                state.fail(reason.clone());
                (None, Err(reason))
            }
        };
        if first {
            if state.gone {
                // Nobody waits for the answer, and no other engine serves these sites.
                state.refused.extend(refused.iter().flatten().cloned());
            }
            state.command = Some(refused);
            self.changed.notify_all();
            // Others may have to probe it before it begins.
            while !state.gone {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        } else {
            state.refused.extend(refused.into_iter().flatten());
        }
        if let Some(client) = client.map(Arc::new) {
            // Before it runs: what it counts is seen from its first hit on.
            state.clients.push(Arc::clone(&client));
            drop(state);
            // It may be gone; what it has counted until then counts.
            _ = client.go();
        }
    }

    fn arm(&self, arrival: Arrival) -> Result<(Client, Refusals), String> {
        let client = arrival.enter(self.children).map_err(|refusal| refusal.to_string())?;
        let without = self.state().left.clone();
        let outcome = self.plan.tell(&client, &without).map_err(|broken| broken.to_string())?;
        let mut state = self.state();
        state.armed.extend(client.counts().iter().map(|count| count.id as usize));
        state.writer = state.writer.or(outcome.writer);
        drop(state);
        let refused = outcome.refused.into_iter().map(|(id, reason)| (id as usize, reason));
        // ProbeHit by the agent: only numbers that were given to it are believed.
        let refused = refused.filter(|(number, _)| self.plan.served.binary_search(number).is_ok());
        Ok((client, refused.collect()))
    }

    /// Adds up those that have ended, with all that they have forked.
    fn fold(&self, state: &mut State) {
        let State { clients, past, past_holds, .. } = state;
        for client in clients.extract_if(.., |client| client.is_over()) {
            self.plan.add(past, &client);
            past_holds.add(client.lock_holds());
        }
    }
}

impl Engine for Launched {
    fn name(&self) -> &'static str {
        "inproc"
    }

    fn read(&self) -> Vec<Reading> {
        let state = self.tree.state();
        let mut readings = state.past.clone();
        state.clients.iter().for_each(|client| self.tree.plan.add(&mut readings, client));
        readings
    }

    fn holds(&self) -> HoldReport {
        let state = self.tree.state();
        let mut report = state.past_holds.clone();
        state.clients.iter().for_each(|client| report.add(client.lock_holds()));
        report
    }

    fn started(&self, ended: BorrowedFd<'_>) -> Result<Refusals, String> {
        let until = Instant::now() + EXEC_TIMEOUT;
        let mut state = self.tree.state();
        loop {
            if let Some(command) = &state.command {
                return command.clone();
            }
            let mut ends = [PollFd::new(&ended, PollFlags::IN)];
            let over = matches!(poll(&mut ends, Some(&Timespec::default())), Ok(1..));
            if over || Instant::now() >= until {
                let how = if over { "ended" } else { "runs" };
                return Err(format!(
                    "the command {how} without having loaded the agent; are its dynamic linker or its security settings special?"
                ));
            }
            state = self
                .tree
                .changed
                .wait_timeout(state, Duration::from_millis(20))
                .map_or_else(|poisoned| poisoned.into_inner().0, |(state, _)| state);
        }
    }

    fn leave(&self, sites: &[usize]) {
        self.tree.state().left = sites.to_vec();
    }

    fn go(&self) {
        self.tree.state().gone = true;
        self.tree.changed.notify_all();
    }

    fn unserved(&self) -> Option<String> {
        let state = self.tree.state();
        if !state.armed.is_empty() || self.tree.plan.served.iter().all(|number| state.left.contains(number)) {
            return None;
        }
        let failed = state.failed.iter().map(|(_, reason)| reason.clone());
        let mut reasons = failed.chain(state.refused.values().cloned());
        Some(reasons.next().unwrap_or_else(|| NOT_LOADED.to_owned()))
    }

    fn words(&self, sites: &[Site]) -> Vec<String> {
        let state = self.tree.state();
        let mut refused = state.refused.clone();
        for client in &state.clients {
            refused.extend(client.refused_later().into_iter().map(|(id, reason)| (id as usize, reason)));
        }
        let named = |(number, reason): (&usize, &String)| {
            let site = sites.get(*number)?;
            Some(format!("not counted in all programs that were started: {}: {reason}", site.name))
        };
        let failed = state.failed.iter().map(|(count, reason)| {
            format!("{count} of the programs that were started could not be probed, hits in them are not counted: {reason}")
        });
        let told = self.tree.preload.without();
        let known: u64 = told.iter().map(|without| without.programs).sum();
        // One that is just coming up has been executed and has not arrived.
        let executed = self.tree.execs.as_ref().and_then(Execs::count);
        let without = executed.map_or(known, |executed| executed.saturating_sub(state.arrived).max(known));
        let without = (without > 0).then(|| words_without(without, executed, &told));
        let by_command = state.command.iter().flatten().flatten().map(|(number, _)| *number);
        let by_command: BTreeSet<usize> = by_command.collect();
        let never = |number: &&usize| {
            let others = state.left.contains(number)
                || state.refused.contains_key(number)
                || by_command.contains(number);
            !others && !state.armed.contains(number)
        };
        let never: Vec<usize> = self.tree.plan.served.iter().filter(never).copied().collect();
        let never = modules::reasons_of(
            "not counted",
            never
                .iter()
                .filter_map(|&number| Some((NOT_LOADED.to_owned(), sites.get(number)?.name.as_str()))),
        );
        let writer =
            state.writer.and_then(CodeWriter::words).map(|how| format!("the programs' code was {how}"));
        let refused = refused.iter().filter_map(named).take(TOLD);
        refused.chain(never).chain(failed).chain(without).chain(writer).collect()
    }
}

/// That so many of all programs came up without the agent: `told` says of which it is known why.
fn words_without(without: u64, executed: Option<u64>, told: &[Without]) -> String {
    let of = executed.map_or(String::new(), |executed| format!(" of {executed}"));
    let known: u64 = told.iter().map(|without| without.programs).sum();
    let mut reasons: Vec<String> = told
        .iter()
        .map(|Without { why, programs, example }| {
            let others = if *programs > 1 { format!(" and {} more", programs - 1) } else { String::new() };
            format!("{why}: {example}{others}")
        })
        .collect();
    if without > known {
        reasons.push(format!(
            "{} without LD_PRELOAD in their environment, or executed otherwise than by the C library",
            without - known
        ));
    }
    format!(
        "{without}{of} programs came up without the agent ({}), hits in them are not counted; --engine kernel counts all",
        reasons.join("; ")
    )
}

impl Drop for Launched {
    fn drop(&mut self) {
        self.go();
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It has only this to do.
            _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that programs are observed only as far as descriptors reach, and one always.
    #[test]
    fn as_many_as_descriptors() {
        assert_eq!([Some(1024), Some(10), None].map(most_programs), [308, 1, 16_384]);
        assert_eq!(most_programs(Some(u64::MAX)), 16_384);
    }

    /// Checks that a command which cannot have the agent in it is refused before it is started, with the reason.
    #[test]
    fn refused_before_it_starts() {
        let prepared = |command: &[&str]| {
            let command: Vec<OsString> = command.iter().map(OsString::from).collect();
            prepare(Choice::Auto, &ProbeRequest::default(), true, &command, &[]).map(|_| ())
        };
        assert!(prepared(&["/no/such/program"]).is_err());
        assert!(prepared(&["/etc/passwd"]).is_err());
    }
}
