//! A recording from start to end: open, list what is there, run, finish.
use crate::account::{LossAccount, Unwound};
use crate::background::BackgroundTask;
use crate::budget::{Budget, Load};
use crate::channel::{Notifier, channel};
use crate::command;
use crate::control::ControlChannel;
use crate::disk::WriteError;
use crate::drain::{self, DrainShared, Message};
use crate::existing::{self, Existing, KernelThread};
use crate::finish::Finish;
use crate::flight::{Coverage, FlightContext, FlightThread, SnapshotReader};
use crate::observe::Observer;
use crate::opening::{features, open, sources, spec, tracing_data};
use crate::options::{CallGraph, LastSnapshot, Overload};
use crate::output::{self, OutputError, SharedNaming};
use crate::pid_filter::PidFilter;
use crate::plan::{Plan, PlanError};
use crate::pool::BufferPool;
use crate::record_stats::RecordStats;
use crate::reduce::{Reducer, reduced};
use crate::ring_scan::{DrainRequest, LogicalClock};
use crate::round::RoundNumber;
use crate::run_loop::RunLoop;
use crate::series::{FileListener, Last, Limits, RemovedFiles, Series, SwitchRequest, SwitchRule};
use crate::sink::Sink;
use crate::throttle::{Pauses, Throttle, ThrottleRequest};
use crate::user_rings::{self, UserEvent, UserRing, UserRings};
use crate::writer::{WriterState, WriterThread};
use crate::{machine, synth};
use kymo_data::{Compressor, EventSpec, Features};
use kymo_perf::evlist::{Evlist, MappedRing, Note, OpenError, RingError};
use kymo_perf::ring::Keeps;
use kymo_perf::sys::{self, Kernel};
use kymo_perf::workload::{Exit, Workload};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{Scope, ScopedJoinHandle};

/// Places for notes on their way to the writer.
const NOTES: usize = 16;

/// Why there is no recording.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// An event could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A ring could not be mapped.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The output could not be made ready.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The scope that was asked for is not possible.
    #[error(transparent)]
    Scope(#[from] PlanError),
    /// The command could not be executed.
    #[error("failed to execute {command}: {source}")]
    Command {
        /// The command.
        command: String,
        /// Why.
        source: io::Error,
    },
    /// The memory that is allowed is not enough.
    #[error(
        "{rings} rings of {ring_bytes} bytes and two buffers for each CPU need {needed} bytes, --max-memory allows {most}: allow more, or use smaller rings (-m)"
    )]
    Memory {
        /// How many rings.
        rings: usize,
        /// The size of each.
        ring_bytes: usize,
        /// What would do.
        needed: u64,
        /// What is allowed.
        most: u64,
    },
    /// Something that usually works did not.
    #[error("failed to {action}: {source}")]
    System {
        /// What.
        action: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// The memory for what is to be drained; judged before an earlier recording is touched.
fn budget(
    plan: &Plan,
    events: &Evlist,
    rings: &[MappedRing],
    kept: &[MappedRing],
    user_rings: Option<&UserRings>,
) -> Result<Budget, RecordError> {
    let options = &plan.options;
    let load = Load {
        rings: rings.len() + user_rings.map_or(0, |user_rings| user_rings.rings.len()),
        // What a flight recorder drains is not the rings of the plan.
        ring_bytes: plan.drained_pages() * sys::page_size(),
        drains: sources(events, rings).len(),
        kept_bytes: kept.iter().map(|kept| kept.ring.size_bytes() as u64).sum(),
        stacks: matches!(options.call_graph, CallGraph::Dwarf { .. }),
    };
    Budget::new(&load, options.max_memory_bytes)
}

pub(crate) fn system(action: &'static str) -> impl Fn(io::Error) -> RecordError {
    move |source| RecordError::System { action, source }
}

/// What a recording came to.
#[derive(Debug)]
pub struct Summary {
    /// Size of the recording in bytes.
    pub bytes: u64,
    /// How often drains woke up and found records.
    pub wakeups: u64,
    /// Samples and losses.
    pub account: LossAccount,
    /// How far back the last file reaches, if it holds what the rings of a flight recorder held at the end.
    pub coverage: Option<Coverage>,
    /// What unwinding while recording came to, if there was any.
    pub unwound: Option<Unwound>,
    /// How often and how long the target stood still for the recorder.
    pub pauses: Pauses,
    /// How the command ended, if there was one and it did.
    pub exit: Option<Exit>,
    /// Why writing ended early: the recording holds what came before.
    pub write_error: Option<WriteError>,
    /// Tasks that were not followed because the kernel's table of followed ones was full: their samples are missing.
    pub unfollowed: u64,
    /// Files of it that were removed again, because only so many are kept.
    pub removed: RemovedFiles,
    /// What else the user should know.
    pub remarks: Vec<String>,
}

/// Who takes what drains bring.
enum Taker<'a> {
    Writer(Box<WriterThread<'a>>),
    Flight(Box<FlightThread<'a>>),
}

/// A thread of the recorder. Where it cannot be made, what it would have worked with is dropped.
fn start<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    std::thread::Builder::new().spawn_scoped(scope, work)
}

/// Everything is open and the output holds what was there before; nothing samples yet.
pub struct Session {
    plan: Plan,
    // Rings before events: an event's ring is unmapped before it is closed.
    rings: Vec<MappedRing>,
    /// Rings that keep the newest records, and are not drained.
    kept: Vec<MappedRing>,
    events: Evlist,
    /// The events as the recording has them.
    specs: Vec<EventSpec>,
    /// The events as the kernel writes their samples, if those are reduced.
    unreduced: Option<Vec<EventSpec>>,
    budget: Budget,
    sink: Sink,
    /// Of the file, until it is clear that the recording begins.
    naming: Option<SharedNaming>,
    stats: RecordStats,
    compressor: Option<Compressor>,
    features: Features,
    kernel: KernelThread,
    workload: Option<Workload>,
    channel: Option<ControlChannel>,
    observer: Observer,
    limits: Limits,
    switches: Option<(OwnedFd, FileListener)>,
    user_rings: Option<UserRings>,
}

impl Session {
    /// Opens what the plan says, on the kernel that runs.
    ///
    /// # Errors
    /// [`RecordError`]; nothing was written then, unless it is the output that failed.
    pub fn start(plan: Plan) -> Result<Session, RecordError> {
        Session::open(Arc::new(sys::Real), plan, None, None)
    }

    /// As [`Session::start`], with events that programs write themselves. The options must say so ([`Options::user_rings`](crate::Options::guests)), and no ring
    /// may keep the newest records. A named pipe as output waits for its reader until `until` can be read, and so does each write to one.
    ///
    /// # Errors
    /// As [`Session::start`].
    pub fn start_with(
        plan: Plan,
        user_rings: Option<UserRings>,
        until: Option<BorrowedFd<'_>>,
    ) -> Result<Session, RecordError> {
        Session::open(Arc::new(sys::Real), plan, user_rings, until)
    }

    /// As [`Session::start`], on the given kernel.
    ///
    /// # Errors
    /// As [`Session::start`].
    pub fn start_on(kernel: Arc<dyn Kernel>, plan: Plan) -> Result<Session, RecordError> {
        Session::open(kernel, plan, None, None)
    }

    fn open(
        kernel: Arc<dyn Kernel>,
        mut plan: Plan,
        user_rings: Option<UserRings>,
        until: Option<BorrowedFd<'_>>,
    ) -> Result<Session, RecordError> {
        plan.options.output.check()?;
        let workload = command::prepare(&plan.command, output::is_on_stdout(&plan.options.output))?;
        if plan.observe_command
            && let Some(workload) = &workload
        {
            plan.set_command(workload.pid());
        }
        let (observer, events, rings) = open(&kernel, &mut plan)?;
        let (kept, rings): (Vec<_>, Vec<_>) =
            rings.into_iter().partition(|ring| ring.ring.keeps() == Keeps::Newest);
        // No thread before: it would take a CPU from those who open, and make the kernel wait for all CPUs when the table of descriptors grows.
        let text = existing::read_kernel();
        // A few files for each CPU: many, where there are hundreds.
        let (version, cmdline) = (plan.options.version.clone(), plan.options.cmdline.clone());
        let machine = BackgroundTask::begin(move || machine::features(&version, &cmdline));
        let ids = events.ids().map_err(system("read the ids of events"))?;
        let mut specs: Vec<EventSpec> =
            events.events.iter().zip(ids).map(|(event, ids)| spec(event, ids)).collect();
        let user_events = user_rings.as_ref().map_or(&[][..], |user_rings| &user_rings.events);
        specs.extend(user_events.iter().map(UserEvent::spec));
        let unreduced = plan.reduces().then(|| specs.clone());
        if unreduced.is_some() {
            for spec in &mut specs {
                spec.attr = reduced(&spec.attr).unwrap_or_else(|| std::mem::take(&mut spec.attr));
            }
        }
        let compressor = (plan.options.compress)
            .map(|level| Compressor::new(level.unsigned_abs()).map_err(system("set up zstd")))
            .transpose()?;
        let early = Features {
            tracing_data: tracing_data(&plan, user_events)?,
            compressed: compressor.as_ref().map(Compressor::info),
            ..Features::default()
        };
        let machine = machine.join();
        let features = features(machine, &plan, &events, &specs, &early);
        let stats =
            RecordStats::new(specs.first().map_or(0, |spec| spec.attr.sample_type), plan.options.build_ids);
        let budget = budget(&plan, &events, &rings, &kept, user_rings.as_ref())?;
        let (sink, naming) = Sink::create(&plan.options.output, until, &specs, &early, &features)?;
        let naming = naming.map(|naming| Arc::new(Mutex::new(naming)));
        Ok(Session {
            plan,
            rings,
            kept,
            events,
            specs,
            unreduced,
            budget,
            sink,
            naming,
            stats,
            compressor,
            features,
            kernel: text,
            workload,
            channel: None,
            observer,
            limits: Limits::default(),
            switches: None,
            user_rings,
        })
    }

    /// Lets the recording be controlled through this channel while it runs. Commands that wait there already are done, and acknowledged,
    /// once the recording really runs: rings are drained, events are on (unless `Delay::Disabled`), the command has begun, and a delay
    /// has passed.
    #[must_use]
    pub fn control(mut self, channel: ControlChannel) -> Session {
        self.channel = Some(channel);
        self
    }

    /// Ends the recording at a size, or divides it into several files. Pipes are not divided.
    #[must_use]
    pub fn limit(mut self, limits: Limits) -> Session {
        self.limits = limits;
        self
    }

    /// Where the recording is divided into several files: begins another file each time something can be read from `requests`, and tells
    /// `say` the name of each file that is done, and how far back it reaches, if it is a snapshot of a flight recorder. A flight recorder takes one for
    /// each request, also if nothing else divides the recording.
    #[must_use]
    pub fn on_switch(
        mut self,
        requests: OwnedFd,
        say: impl FnMut(&Path, Option<&Coverage>) + Send + 'static,
    ) -> Session {
        self.switches = Some((requests, Box::new(say)));
        self
    }

    /// What was changed so that this machine would accept the plan.
    pub fn notes(&self) -> &[Note] {
        &self.events.notes
    }

    /// The plan, as far as opening changed it.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Records until the command or all observed processes end, or `until` becomes readable; then completes the recording.
    ///
    /// # Errors
    /// [`RecordError::Command`] if the command cannot be executed. A write error is no error of this function: see
    /// [`Summary::write_error`].
    pub fn run(self, until: Option<BorrowedFd<'_>>) -> Result<Summary, RecordError> {
        let failed_fd =
            eventfd(0, EventfdFlags::CLOEXEC).map_err(|errno| system("make an eventfd")(errno.into()))?;
        let notifiers = system("wake a thread of the recorder by an eventfd");
        let mut groups = sources(&self.events, &self.rings);
        let (event_ids, program_rings, program_clock, mut control) = match self.user_rings {
            Some(user_rings) => {
                let clock = Some((user_rings.pid, user_rings.clock));
                (user_rings::event_ids(&user_rings.events), user_rings.rings, clock, Some(user_rings.control))
            }
            None => (Vec::new(), Vec::new(), None, None),
        };
        let lost_before = program_rings.iter().fold(0_u64, |all, ring| all.saturating_add(ring.lost()));
        if let Some((pid, clock)) = program_clock {
            user_rings::join(
                &mut groups,
                &program_rings,
                &UserRing::new(&event_ids, pid, clock),
                self.rings.len(),
            );
        }
        let rings = self.rings.len() + program_rings.len();
        let options = &self.plan.options;
        let overload = options.overload;
        let budget = &self.budget;
        let shared = DrainShared {
            pool: BufferPool::new(budget.buffers, budget.buffer_bytes, budget.ready, groups.len())
                .map_err(&notifiers)?,
            round: RoundNumber::default(),
            clock: LogicalClock::default(),
            stop: AtomicBool::new(false),
            stop_notifier: Notifier::new().map_err(&notifiers)?,
            throttle_request: (overload == Overload::Pause)
                .then(ThrottleRequest::new)
                .transpose()
                .map_err(&notifiers)?,
            first: overload != Overload::Drop,
            corrupt_bytes: AtomicU64::new(0),
            claimed_corrupt_bytes: AtomicU64::new(0),
            wakeups: AtomicU64::new(0),
        };
        let drain_requests =
            groups.iter().map(|_| DrainRequest::new()).collect::<io::Result<Vec<_>>>().map_err(&notifiers)?;
        // From each drain, and the list of what is there. For each ring there are a few places for messages that it is empty.
        let places = groups.iter().map(|group| budget.queued + 4 * group.1.len()).chain([1, NOTES]);
        let (mut senders, receive) = channel(places).map_err(&notifiers)?;
        let mut notes = senders.pop();
        let list_sender = senders.pop();
        let attrs = self.events.events.iter().map(|event| &event.request.attr);
        let mut pid_filter = PidFilter::new(self.observer.ever_followed(), attrs);
        let (reducer, receive) = match &self.unreduced {
            None => (None, receive),
            Some(specs) => {
                let mut of_rings: Vec<(usize, &DrainRequest)> = (groups.iter().zip(&drain_requests))
                    .flat_map(|(group, request)| group.1.iter().map(move |source| (source.index, request)))
                    .collect();
                of_rings.sort_unstable_by_key(|(ring, _)| *ring);
                let drain_requests: Vec<&DrainRequest> =
                    of_rings.into_iter().map(|(_, request)| request).collect();
                // Each buffer has a place.
                let places = [NOTES, shared.pool.most() + 4 * rings];
                let (mut senders, written) = channel(places).map_err(&notifiers)?;
                let sender = senders.remove(1);
                notes = senders.pop();
                // Then the writer has none to take out.
                let mut reducer = Reducer::new(specs, drain_requests, &shared.pool, sender)
                    .without(std::mem::take(&mut pid_filter));
                if self.plan.observe_command {
                    reducer = reducer.without_existing();
                }
                if overload == Overload::Drop {
                    reducer = reducer.normal_priority();
                }
                (Some((reducer, receive)), written)
            }
        };
        let ask = Arc::new(SwitchRequest::new(receive.notifier()).map_err(&notifiers)?);
        let (requests, say) = match self.switches {
            Some((requests, say)) => (Some(requests), say),
            None => (None, Box::new(|_: &Path, _: Option<&Coverage>| {}) as FileListener),
        };
        let flight = self.plan.keeps_newest();
        let rule = self.limits.switch.or(flight.then(SwitchRule::default));
        let mut series = match (&self.plan.options.output, rule, &self.naming) {
            (output::Output::File(path), Some(rule), Some(naming)) => Some(Series::new(
                rule,
                path.clone(),
                Arc::clone(naming),
                self.specs.clone(),
                self.features.clone(),
                self.plan.options.build_ids,
                Arc::clone(&ask),
                say,
            )),
            _ => None,
        };
        let ask = series.is_some().then_some(ask);
        let taker = if flight {
            let last = self.plan.options.last_snapshot;
            if let Some(series) = &mut series {
                series.last = match last {
                    LastSnapshot::Plain => Last::Stays,
                    LastSnapshot::Dated => Last::Joins,
                    LastSnapshot::Not => Last::Goes,
                };
            }
            let request_of = |(group, request): (&(_, Vec<_>), _)| vec![request; group.1.len()];
            let context = FlightContext {
                reader: SnapshotReader::new(&self.events, &self.kept),
                pid_filter,
                shared: &shared,
                requests: groups.iter().zip(&drain_requests).flat_map(request_of).collect(),
                failed_fd: &failed_fd,
            };
            let state = WriterState::new(self.sink, self.stats, self.compressor, series);
            let build_ids = self.plan.options.build_ids;
            let flight = FlightThread::new(context, &self.specs, state, last != LastSnapshot::Not, build_ids);
            Taker::Flight(Box::new(flight))
        } else {
            Taker::Writer(Box::new(WriterThread {
                sink: self.sink,
                stats: self.stats,
                compressor: self.compressor,
                pid_filter,
                rings,
                shared: &shared,
                requests: drain_requests.iter().collect(),
                preferred: overload != Overload::Drop,
                max_bytes: self.limits.max_bytes,
                series,
                failed_fd: &failed_fd,
            }))
        };
        let mut workload = self.workload;
        let (plan, events) = (&self.plan, &self.events);
        let attr = self.specs.first().map(|spec| spec.attr.clone()).unwrap_or_default();
        let command = match &workload {
            Some(workload) if plan.observe_command => synth::name_only(&attr, workload.pid()),
            _ => Vec::new(),
        };
        let command_pid = workload.as_ref().map(Workload::pid);
        let throttle = notes.map(|notes| Throttle::new(plan, self.observer.cgroup(), command_pid, notes));
        let (written, unwound, result, listed, pauses, told) = std::thread::scope(|scope| {
            let no_thread = system("start a thread of the recorder");
            let writer = start(scope, move || match taker {
                Taker::Writer(writer) => writer.run(receive),
                Taker::Flight(flight) => flight.run(receive),
            });
            // The first thread that cannot be made ends the recording: those that run already are stopped and joined below as
            // at any end, and what the others would have had is dropped, which closes their queues.
            let mut failed = None;
            let mut missing = |error: io::Error| failed = failed.take().or(Some(error));
            let writer = writer.map_err(&mut missing).ok();
            let reducer = reducer.map(|(reducer, messages)| start(scope, move || reducer.run(messages)));
            let reducer = reducer.and_then(|reducer| reducer.map_err(&mut missing).ok());
            let (ready, are_ready) = mpsc::channel();
            for (((cpu, sources), request), sender) in groups.into_iter().zip(&drain_requests).zip(senders) {
                let (shared, ready) = (&shared, ready.clone());
                let ready = move || _ = ready.send(());
                let drain = start(scope, move || drain::run(cpu, sources, shared, request, sender, ready));
                if let Err(error) = drain {
                    missing(error);
                    break;
                }
            }
            drop(ready);
            let throttle_request = shared.throttle_request.as_ref();
            let throttle = throttle.zip(throttle_request).and_then(|(throttle, throttle_request)| {
                let shared = &shared;
                start(scope, move || throttle.run(throttle_request, shared)).map_err(&mut missing).ok()
            });
            // Until each drain is ready, or has ended.
            are_ready.iter().for_each(|()| ());
            let started = failed.map_or(Ok(()), Err).map_err(&no_thread);
            // From here on nothing new is missed, so what is there already can be listed.
            let tracking = started.and_then(|()| match plan.starts_on_exec() {
                true => Ok(()),
                false => events.enable(true).map_err(system("enable the tracking event")),
            });
            let existing = Existing { plan, attr, kernel: self.kernel, command };
            let list = move || {
                let mut listed = existing.run();
                if let Some(mut sender) = list_sender {
                    sender.send_blocking(Message::Synthesized(std::mem::take(&mut listed.records)));
                }
                listed
            };
            let (listed, listing, tracking) = if plan.system() && !plan.command.is_empty() {
                // What the command does at its start should not be taken for what was there before.
                (Some(list()), None, tracking)
            } else {
                match start(scope, list) {
                    Ok(listing) => (None, Some(listing), tracking),
                    Err(error) => (None, None, tracking.and(Err(no_thread(error)))),
                }
            };
            let channel = self.channel;
            let user_rings = control.as_mut();
            // A flight recorder that leaves nothing at its end takes no name before its first snapshot.
            let naming = self.naming.filter(|_| plan.options.last_snapshot != LastSnapshot::Not || !flight);
            let workload = workload.as_mut();
            let mut run_loop = RunLoop { plan, events, user_rings, workload, naming, channel, requests, ask };
            let result = tracking.and_then(|()| run_loop.run(until, failed_fd.as_fd()));
            let told = control.as_mut().map(|control| control.end());
            if let Err(error) = events.disable() {
                tracing::warn!(%error, "failed to disable events");
            }
            // Release: pairs with the drains' Acquire.
            shared.stop.store(true, Ordering::Release);
            shared.stop_notifier.notify();
            let listed = listed.or_else(|| listing?.join().ok()).unwrap_or_default();
            let unwound = reducer.map(|reducer| reducer.join().unwrap_or_default());
            let pauses = throttle.and_then(|throttle| throttle.join().ok()).unwrap_or_default();
            (writer.map(|writer| writer.join()), unwound, result, listed, pauses, told)
        });
        let ended = result?;
        let mut written = (written.and_then(Result::ok))
            .ok_or_else(|| system("write")(io::Error::other("the writer's thread panicked")))?;
        written.stats.files.extend(listed.files);
        let finish = Finish {
            events,
            specs: &self.specs,
            features: self.features,
            modules: &listed.modules,
            build_ids: plan.options.build_ids,
            flight,
        };
        let mut remarks: Vec<String> = match self.limits.max_bytes {
            Some(limit) if written.full => {
                let kib = limit.div_ceil(1024);
                vec![format!("the size limit of {kib} KiB was reached: the recording ended there")]
            }
            _ => Vec::new(),
        };
        // By the programs, or by their rings, whichever knows more: a program that is gone cannot be asked.
        let (told, said) = told.unwrap_or_default();
        remarks.extend(said);
        let kernel_events = events.events.len();
        let mut user_lost: Vec<(usize, u64)> =
            told.into_iter().enumerate().map(|(at, lost)| (kernel_events + at, lost)).collect();
        // Words that the program may have written anything to.
        let counted = program_rings.iter().fold(0_u64, |all, ring| all.saturating_add(ring.lost()));
        let told_lost = user_lost.iter().fold(0_u64, |all, (_, lost)| all.saturating_add(*lost));
        let missing = counted.saturating_sub(lost_before).saturating_sub(told_lost);
        user_lost.extend((missing > 0).then_some((kernel_events, missing)));
        let summary = finish.run(written, &shared, &user_lost);
        if flight && summary.bytes == 0 && plan.options.last_snapshot == LastSnapshot::Not {
            remarks.push(
                "there is no file, because no snapshot was asked for: SIGUSR2 asks for one, --snapshot=e makes one at the end"
                    .into(),
            );
        }
        let exit = workload.as_mut().and_then(|workload| command::end(workload, ended));
        let unfollowed = self.observer.missed();
        remarks.extend(self.observer.remove());
        Ok(Summary { exit, unwound, pauses, unfollowed, remarks, ..summary })
    }
}
