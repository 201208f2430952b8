//! Where each thread's time went, without remainder: on a CPU, ready for one, or waiting, and for
//! what.
//!
//! *You give it* a recording of `kymo record --wall`; *it gives you* a [`Wall`]: the time of each
//! thread by [`State`], where threads wait and who ends it, and for a thread the path backwards
//! over wake-ups that decided how long all took.
//!
//! ```text
//!  offcpu-time ---> rows: waits ---+-> state of each, by its stack (state)
//!  offcpu-wakeup -> rows: wakeups -|-> threads (their sums: division)
//!  cpu-clock -----> rows: runs ----|-> places (stack and state), idle ones apart (needed)
//!                                  |-> critical path of a thread (path)
//!                                  |-> the time that passed, divided among threads (latency)
//!                                  '-> columns of spans (spans) --> flame graph, page (tree)
//! ```
//!
//! # Rows and columns
//! A row of waits is what the kernel's programs write: a stretch of a thread's time in up to five
//! parts, with its system call, waker and counts of short waits. [`Wall::columns`] divides it into
//! spans of one state each, the rows of [`Columns`](crate::columns::Columns); whatever shows spans
//! or sums them by state, thread, stack or time asks those. States, idle waits, paths and calls go
//! from wait to wait of a thread and its waker, and are found before columns can be made: they stay
//! on the rows of waits. So do the sums of the table ([`Wall::threads`], [`Wall::places`]), whose
//! counts of preemptions and ends of waits no column has.
//!
//! # Invariants
//! - **D1** The states of a thread sum to the time between its first row and its last, to the
//!   nanosecond: each row says how long the thread ran, was ready and was blocked since the row
//!   before.
//! - **D2** Waits that have no row of their own are attributed to the stack of the row that tells
//!   them. Sums by thread are exact even so; by stack they are as good as samples.
//! - **D3** The result does not depend on the number of workers.
//!
//! # What is idle
//! A thread of a pool that has nothing to do waits, too, and most of all waiting is that. A wait is
//! idle if it is on a condition, in an event loop or for a client, and nobody waited for the thread
//! meanwhile, neither directly nor over others ([`Wall::is_idle`]). A thread that sleeps, or waits
//! for an answer, is not idle: it may be what a client on another machine waits for. At the end of a
//! recording the files of each wait are looked at: whether their sockets listen, were accepted, or
//! were connected to a server, whether a request of an io_uring is in flight, and which signals a
//! thread waits for. What the first thread of a process waits for is idle only if it was seen to
//! wait for work; so is any wait for an io_uring or a signal.
mod calls;
mod collectors;
mod division;
mod json;
mod latency;
mod needed;
mod notes;
mod path;
mod rows;
mod short_waits;
mod sites;
mod spans;
mod state;
#[cfg(test)]
pub(crate) mod tests;
mod text;
mod tree;
mod unseen_waits;
mod wait_row;

pub use calls::{Call, Calls, recorded_calls};
pub use division::{Place, ThreadTime};
pub use json::write_wall_json;
pub use path::{PathPart, PathStep};
pub use rows::{OFF_CPU, STACK, WAKEUP, WaitDetail, is_of_waits, wait_detail};
pub use sites::SiteId;
pub(crate) use state::state_of_waiting_thread;
pub use state::{SpanState, State};
pub(crate) use text::time;
pub use text::{TextOptions, write_wall};
pub use tree::WALL_TIME;
pub use wait_row::{BlockedCall, PlaceWaits, WaitRow, WakeupRow};

use crate::chains::{ChainId, Chains};
use crate::functions::{Function, FunctionId, Functions, Level};
use crate::load::{LoadOptions, Progress, collect_sideband};
use crate::resolve::{ResolveOptions, Resolver, Stacks};
use crate::timeline::Timeline;
use division::{PARTS, SHORT_PARTS};
use kymo_data::{ReadSummary, Recording};
use kymo_symbols::SymbolStore;
use needed::IdleWaits;
use rows::{Rows, RunSample};
use short_waits::ShortPlace;
use sites::Sites;
pub(crate) use sites::{own_site, plain_name, site_text};
pub(crate) use state::INTERRUPT_CAUSES;
use state::WaitCall;

/// The time of all threads of a recording.
#[derive(Debug)]
pub struct Wall {
    /// Who was what, when.
    pub timeline: Timeline,
    /// Names.
    pub functions: Functions,
    /// The functions of every distinct stack.
    pub stacks: Stacks,
    /// The same stacks as addresses, without the last one, which has none.
    pub(crate) chains: Chains,
    /// In order of time.
    pub waits: Vec<WaitRow>,
    /// In order of time.
    pub wakeups: Vec<WakeupRow>,
    /// Of the function that was asked for.
    pub calls: Option<Calls>,
    /// What the reader saw (problems of the file).
    pub summary: ReadSummary,
    /// What each wait was for, in the order of the waits.
    states: Vec<State>,
    /// What the short waits of each row were for.
    short: Vec<[ShortPlace; 3]>,
    idle: Vec<IdleWaits>,
    /// For each wait what ended it.
    ends: Vec<End>,
    /// The parts of each row, if they are of the time that passed.
    latencies: Option<Vec<[u64; PARTS]>>,
    runs: Vec<RunSample>,
    sites: Sites,
    /// The events of waits and of samples of running threads.
    events: (u32, u32),
    /// The stack of running time that has no sample.
    no_stack: ChainId,
    /// Numbers of system calls are those of aarch64.
    is_arm: bool,
    /// There may be threads that collect garbage.
    has_collectors: bool,
    notes: Vec<String>,
}

/// Whether a function is one of the kernel's that only switch: the wait itself begins behind them.
pub(crate) fn only_switches(function: &Function) -> bool {
    function.level == Level::Kernel && function.name.as_deref().is_none_or(state::is_switch)
}

/// Whether a thread in this state only wants a CPU.
fn is_ready(state: State) -> bool {
    matches!(state, State::Runnable | State::Throttled)
}

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum End {
    /// A thread, at a site if that is known.
    Thread(i32, Option<SiteId>),
    /// An interrupt, whatever ran: `a timer`, `the network`, `a disk`.
    Interrupt(&'static str),
    /// Nobody knows.
    Unknown,
}

impl Wall {
    /// Reads a recording; `None` if it does not tell of waits. `filter`: the processes, threads and
    /// spans of time that are read; what else it says does not matter here. `calls_of`: the
    /// function whose calls are read.
    ///
    /// # Errors
    /// When the file cannot be read at all.
    pub fn open(
        recording: &Recording,
        (filter, calls_of): (&LoadOptions, Option<&str>),
        resolve: ResolveOptions,
        store: &SymbolStore,
        progress: Progress<'_>,
    ) -> Result<Option<Wall>, kymo_data::ReadError> {
        if wait_detail(recording) == WaitDetail::Nothing {
            return Ok(None);
        }
        let (timeline, ..) = collect_sideband(recording, filter.workers, store.options(), &|done, all| {
            progress(0, done, all)
        })?;
        let (mut rows, summary) =
            rows::read(recording, &timeline, (filter, calls_of), &|done, all| progress(1, done, all))?;
        let mut functions = Functions::default();
        let stacks = Resolver::new(&timeline, store).resolve(&rows.chains, &mut functions, resolve);
        let is_arm = recording.features.arch.as_deref() == Some("aarch64");
        let hits = std::mem::take(&mut rows.hits);
        let mut wall = Wall::of(rows, timeline, functions, stacks, summary, is_arm);
        wall.calls = calls_of.map(|function| Calls::of(function, hits));
        Ok(Some(wall))
    }

    fn of(
        rows: Rows,
        timeline: Timeline,
        mut functions: Functions,
        mut stacks: Stacks,
        summary: ReadSummary,
        is_arm: bool,
    ) -> Wall {
        let Rows { events, chains, waits, wakeups, runs, .. } = rows;
        let no_stack = stacks.push_empty(functions.address(None, Level::User, 0));
        let mut wall = Wall {
            timeline,
            functions,
            stacks,
            chains,
            waits,
            wakeups,
            calls: None,
            summary,
            states: Vec::new(),
            short: Vec::new(),
            idle: Vec::new(),
            ends: Vec::new(),
            latencies: None,
            runs,
            sites: Sites::default(),
            events,
            no_stack,
            is_arm,
            has_collectors: false,
            notes: Vec::new(),
        };
        wall.has_collectors = collectors::may_be_there(&wall.timeline.modules);
        wall.sites = Sites::of_stacks(&wall);
        wall.add_unseen_waits();
        wall.add_stacks_of_places();
        wall.place_ends();
        wall.states = wall.states_of_waits();
        wall.short = wall.short_places();
        wall.ends = wall.ends_of_waits();
        wall.idle = needed::idle(&wall);
        wall.notes = wall.find_notes();
        wall
    }

    /// What a wait was for, by its index.
    pub fn state(&self, wait: usize) -> State {
        self.states.get(wait).copied().unwrap_or(State::Unknown)
    }

    /// Whether a wait is that of a thread that has nothing to do.
    pub fn is_idle(&self, wait: usize) -> bool {
        self.idle.get(wait).is_some_and(|idle| idle.own)
    }

    /// What ended a wait, by its index.
    pub fn end(&self, wait: usize) -> End {
        self.ends.get(wait).copied().unwrap_or(End::Unknown)
    }

    fn ends_of_waits(&self) -> Vec<End> {
        let mut interrupts = rustc_hash::FxHashMap::default();
        let wakeups = self.wakeups_of_waits();
        let ends = self.waits.iter().zip(wakeups).enumerate().map(|(index, (row, wakeup))| {
            let Some(wakeup) = wakeup.and_then(|at| self.wakeups.get(at)) else {
                // Timers and devices end these by interrupts, in whatever runs.
                let by_device = [State::Timer, State::Disk, State::Network, State::PageFault, State::IoUring];
                let is_known = row.waker != 0 && !by_device.contains(&self.state(index));
                return if is_known { End::Thread(row.waker, None) } else { End::Unknown };
            };
            let cause = *interrupts
                .entry(wakeup.chain)
                .or_insert_with(|| state::interrupt(self.names(wakeup.chain, true)));
            cause.map_or(End::Thread(wakeup.waker.1, Some(self.sites.of(wakeup.chain))), End::Interrupt)
        });
        ends.collect()
    }

    /// The frames of a stack of the given side, innermost first; of the kernel's without those that
    /// only switch.
    fn frames(&self, chain: ChainId, kernel: bool) -> impl Iterator<Item = FunctionId> + Clone + '_ {
        let is_kernel = |id: &FunctionId| self.functions.get(*id).level == Level::Kernel;
        let frames = self.stacks.frames(chain).iter().copied().filter(move |id| is_kernel(id) == kernel);
        let switches = move |id: &FunctionId| only_switches(self.functions.get(*id));
        // The innermost of them, behind which the wait itself begins.
        frames.skip_while(switches)
    }

    fn names(&self, chain: ChainId, kernel: bool) -> impl Iterator<Item = &str> + Clone {
        self.frames(chain, kernel).filter_map(|id| self.functions.get(id).name.as_deref())
    }

    /// What a thread does at its end has no place of its own: its short waits count where it waited
    /// before, and so does the wait in which the recording ends, if it is in the same place.
    fn place_ends(&mut self) {
        let mut last: rustc_hash::FxHashMap<(i32, i32), (ChainId, i64)> = Default::default();
        for at in 0..self.waits.len() {
            let WaitRow { thread, chain, syscall, is_end, blocked_ns, .. } = self.waits[at];
            if !is_end {
                last.insert(thread, (chain, syscall));
                continue;
            }
            let before = last.get(&thread).copied();
            self.waits[at].chain = match before {
                Some((before, _)) if blocked_ns == 0 => before,
                Some((before, call)) if call == syscall && self.wait_in_one_place(before, chain) => before,
                None if blocked_ns == 0 => self.no_stack,
                _ => chain,
            };
        }
    }

    /// Whether a stack of one function has the innermost one of the other stack.
    fn wait_in_one_place(&self, whole: ChainId, innermost: ChainId) -> bool {
        let of_program = |chain| self.frames(chain, false).next();
        of_program(whole).is_some() && of_program(whole) == of_program(innermost)
    }

    /// What each wait was for.
    fn states_of_waits(&self) -> Vec<State> {
        let mut last = rustc_hash::FxHashMap::default();
        let mut known = rustc_hash::FxHashMap::default();
        let state = |row: &WaitRow| {
            if row.is_over() {
                return last.get(&row.thread).copied().unwrap_or(State::Unknown);
            }
            let call = self.call_of(row);
            let state = *known.entry((row.chain, row.task_state, call)).or_insert_with(|| {
                let [kernel, user] = [true, false].map(|kernel| self.names(row.chain, kernel));
                state::of_wait(row.task_state, call, kernel, user)
            });
            let state = self.collector_state(row.thread.1, state, call.is_futex());
            if !row.is_end && !is_ready(state) {
                last.insert(row.thread, state);
            }
            state
        };
        self.waits.iter().map(state).collect()
    }

    /// The call that a row's wait was in.
    fn call_of(&self, row: &WaitRow) -> WaitCall {
        WaitCall {
            number: row.syscall,
            operation: row.operation,
            is_arm: self.is_arm,
            is_unfinished: row.is_end && self.stacks.frames(row.chain).len() <= 1,
        }
    }

    /// The name of a thread, the last one that it had.
    pub fn thread_name(&self, tid: i32) -> String {
        self.timeline.comm(self.timeline.last_comm(tid)).into_owned()
    }
}
