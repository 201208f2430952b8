//! A command that cannot load the agent: patched before its first instruction.
//!
//! ```text
//!   prepare()   what can be patched, by the program's file
//!   begin()     a thread of ours traces the command, which waits for its start
//!   started()   its program was executed, and is patched; it stands still
//!   go()        it runs
//! ```
use super::attached::{Attached, attach, callers, leave, read};
use super::build::{Measure, Stubs};
use super::plan::{Planner, is_program};
use super::{check, unusual};
use crate::engine::{Caller, Engine, ProbeRequest, Reading};
use crate::inproc::Refusals;
use kymo_perf::inject::{CodeWriter, CommandStop, CommandTracer, Execs, RemoteProcess, Restorer, SitePatch};
use kymo_symbols::sites::Site;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The command is executed at once when it is told to; a file system may be slow.
const EXEC_TIMEOUT: Duration = Duration::from_secs(10);

/// A command that is about to be started, and patched then.
pub(crate) struct StubLaunch {
    request: ProbeRequest,
    served: Vec<usize>,
    refused: Refusals,
    children: bool,
}

/// Looks which sites can be served so in a program that cannot load the agent.
///
/// # Errors
/// Why there is none, in words.
pub(crate) fn prepare(request: &ProbeRequest, children: bool, program: &Path) -> Result<StubLaunch, String> {
    check(request)?;
    let is_its = |number: &usize| is_program(&request.sites[*number], program);
    let (own, others): (Vec<usize>, Vec<usize>) = (0..request.sites.len()).partition(is_its);
    let planner = Planner { request, mapped: None, process: None, events: None };
    let planned = planner.plan(&own);
    let served = planned.served();
    let reason = "its module is not loaded when the command starts";
    let mut refused = planned.refused;
    refused.extend(others.into_iter().map(|number| (number, reason.to_owned())));
    refused.sort_unstable();
    if served.is_empty() {
        return Err(refused.first().map_or("there is no probe", |(_, reason)| reason).to_owned());
    }
    Ok(StubLaunch { request: request.clone(), served, refused, children })
}

impl StubLaunch {
    pub(crate) fn served(&self) -> &[usize] {
        &self.served
    }

    pub(crate) fn refused(&self) -> &[(usize, String)] {
        &self.refused
    }

    /// Traces the command from now on, until its program is patched.
    pub(crate) fn begin(self, pid: i32) -> io::Result<StubCommand> {
        let served = self.served.clone();
        let execs = Execs::of(pid, self.children);
        let shared = Arc::new(Shared::default());
        let inside = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("command".into()).spawn(move || {
            let ended = inside.run(&self, pid);
            inside.state().armed.get_or_insert(ended.map(|()| Vec::new()));
            inside.changed.notify_all();
        })?;
        let command = StubCommand { pid, served, shared, thread: Some(thread), execs };
        let mut state = command.shared.state();
        while !state.is_traced && state.armed.is_none() {
            state = command.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        Ok(command)
    }
}

/// The command, traced, patched, running.
pub(crate) struct StubCommand {
    pid: i32,
    served: Vec<usize>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// How many programs have been executed, if that can be known.
    execs: Option<Execs>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// It will stop when it executes its program.
    is_traced: bool,
    /// Which sites are not patched, or why none is.
    armed: Option<Result<Refusals, String>>,
    /// It may run.
    gone: bool,
    stubs: Vec<Stubs>,
    restore: Vec<SitePatch>,
    process: Option<RemoteProcess>,
    writer: Option<CodeWriter>,
    /// Ends when all is restored.
    restorer: Option<Restorer>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the thread that traces does.
    fn run(&self, launch: &StubLaunch, pid: i32) -> Result<(), String> {
        let words = |refusal: kymo_perf::inject::EnterError| refusal.to_string();
        let tracer = CommandTracer::seize(pid).map_err(words)?;
        self.state().is_traced = true;
        self.changed.notify_all();
        let waits = || !self.state().gone;
        let mut stop = tracer.until_executed(&waits).map_err(words)?;
        self.arm(launch, &mut stop);
        let mut state = self.state();
        while !state.gone {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.process = stop.release().ok();
        Ok(())
    }

    /// Patches the command, which stands still.
    fn arm(&self, launch: &StubLaunch, stop: &mut CommandStop) {
        let measure = Measure::of(&launch.request, launch.children);
        let attached = attach(stop, &launch.request, &launch.served, measure);
        let mut state = self.state();
        // It stands still whatever came of it, so that others can serve it from its begin on.
        state.armed = Some(Ok(match attached {
            Ok(Attached { stubs, restore, refused, writer, restorer, .. }) => {
                (state.stubs, state.restore, state.writer) = (stubs, restore, writer);
                state.restorer = restorer;
                refused
            }
            Err(reason) => launch.served.iter().map(|&number| (number, reason.clone())).collect(),
        }));
        self.changed.notify_all();
    }
}

impl Engine for StubCommand {
    fn name(&self) -> &'static str {
        "inproc"
    }

    fn read(&self) -> Vec<Reading> {
        read(&self.shared.state().stubs, &self.served)
    }

    fn callers(&self) -> io::Result<Vec<Caller>> {
        Ok(callers(&self.shared.state().stubs, &self.served, self.pid))
    }

    fn started(&self, _ended: BorrowedFd<'_>) -> Result<Refusals, String> {
        let until = Instant::now() + EXEC_TIMEOUT;
        let mut state = self.shared.state();
        loop {
            if let Some(armed) = &state.armed {
                return armed.clone();
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err("the command did not execute its program in time".to_owned());
            }
            let waited = self.shared.changed.wait_timeout(state, left);
            state = waited.map_or_else(|poisoned| poisoned.into_inner().0, |(state, _)| state);
        }
    }

    fn go(&self) {
        self.shared.state().gone = true;
        self.shared.changed.notify_all();
    }

    fn words(&self, _sites: &[Site]) -> Vec<String> {
        let writer = self.shared.state().writer.and_then(unusual);
        let writer = writer.map(|how| format!("the program's code was {how}"));
        let others = self.execs.as_ref().and_then(Execs::count).unwrap_or(0).saturating_sub(1);
        let others = (others > 0).then(|| {
            format!(
                "the command executed {others} more programs, hits in them are not counted: it cannot load the agent, and only it itself was patched; --engine kernel counts all"
            )
        });
        writer.into_iter().chain(others).collect()
    }
}

impl Drop for StubCommand {
    fn drop(&mut self) {
        self.go();
        if let Some(thread) = self.thread.take() {
            // It has only this to do.
            _ = thread.join();
        }
        let mut state = self.shared.state();
        let (stubs, restore) = (std::mem::take(&mut state.stubs), std::mem::take(&mut state.restore));
        if let Some(process) = &mut state.process {
            leave(process, &restore, &stubs);
        }
    }
}
