//! The threads of a running recording and the queues between them, as one value.
//!
//! ```text
//!  drain (one per CPU) --+--> [reducer] --> writer or flight recorder
//!  list of what existed -+                   ^
//!  throttle (pauses) ------------------------+
//! ```
//! [`Pipeline::build`] makes every queue before a thread runs; [`Pipeline::run`] starts the
//! threads, waits for the end of the recording, and joins them.
use crate::channel::{Receiver, Sender, channel};
use crate::code_names::{self, CodeReport, CodeTap, CodeWatch};
use crate::coverage::Coverage;
use crate::cpu_accounts::{Account, CpuAccounts};
use crate::cpus::CpuRecorder;
use crate::drain::{self, RingSource};
use crate::error::{RecordError, system};
use crate::existing::{Existing, KernelThread, Listed};
use crate::flight::{FlightContext, FlightThread, SnapshotReader};
use crate::id_aliases::IdAliases;
use crate::locks;
use crate::mapped_files::{FileTap, FileWatch, GoneFiles};
use crate::opening::{Opened, add_user_rings, sources};
use crate::options::{LastSnapshot, Overload, RecordingClock};
use crate::output::{Output, SharedNaming};
use crate::pid_filter::PidFilter;
use crate::pool::BufferPool;
use crate::python::{PythonFinder, PythonStacks};
use crate::record_stats::RecordStats;
use crate::reduce::Reducer;
use crate::ring_scan::DrainRequest;
use crate::run_loop::{Ended, RunLoop};
use crate::series::{Last, Limits, Series, SeriesListener, SeriesPlace, SwitchRequest, SwitchRule};
use crate::shared::{DrainShared, Message};
use crate::sink::Sink;
use crate::stall_monitor::{BoundDrain, StallMonitor, Stalls};
use crate::targets::TargetKind;
use crate::throttle::{Pauses, Throttle};
use crate::user_rings::DrainedUserRings;
use crate::waits::{self, WaitSamples};
use crate::writer::{WriterState, WriterThread};
use crate::{account::Unwound, synth};
use kymo_data::{Compressor, Features};
use kymo_perf::hotplug::CpuGap;
use kymo_perf::sys::Perf;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread::{Scope, ScopedJoinHandle};

/// Places for notes on their way to the writer.
const NOTES: usize = 16;

/// The output before its first record.
pub(crate) struct OpenedOutput {
    pub(crate) sink: Sink,
    /// Of the file, until it is clear that the recording begins.
    pub(crate) naming: Option<SharedNaming>,
    pub(crate) stats: RecordStats,
    pub(crate) compressor: Option<Compressor>,
    pub(crate) features: Features,
}

/// What the stages share; it outlives them.
pub(crate) struct Base<'a> {
    opened: &'a Opened,
    user_rings: &'a DrainedUserRings,
    pub(crate) shared: DrainShared,
    /// One for each drain.
    drain_requests: Vec<DrainRequest>,
    /// Becomes readable when writing has failed.
    failed_fd: OwnedFd,
}

/// The stages, connected; no thread runs.
pub(crate) struct Pipeline<'a> {
    base: &'a Base<'a>,
    drains: Vec<DrainStage<'a>>,
    reducer: Option<(Reducer<'a>, Receiver<Message>)>,
    recorder: Recorder<'a>,
    /// What the recorder receives.
    messages: Receiver<Message>,
    throttle: Option<Throttle<'a>>,
    cpus: Option<CpuRecorder<'a>>,
    /// For what is left of waits at the end.
    waits: Option<Sender<Message>>,
    /// Collects names of generated code, and sends them.
    code_names: Option<(Arc<CodeWatch>, Sender<Message>)>,
    /// Holds the files that are mapped.
    file_watch: Arc<FileWatch>,
    existing: Existing<'a>,
    existing_sender: Option<Sender<Message>>,
    /// Asks the recorder for another file, where there may be several.
    pub(crate) switch_request: Option<Arc<SwitchRequest>>,
}

/// What a finished pipeline leaves.
pub(crate) struct Outcome {
    pub(crate) ended: Result<Ended, RecordError>,
    /// `None`: the recorder's thread was not started, or panicked.
    pub(crate) written: Option<WriterState>,
    pub(crate) unwound: Option<Unwound>,
    pub(crate) pauses: Pauses,
    pub(crate) cpu_gaps: Vec<CpuGap>,
    pub(crate) listed: Listed,
    pub(crate) code: CodeReport,
    /// How many of each program's events were lost as the program reports it, and its remark.
    pub(crate) user_lost: (Vec<u64>, Option<String>),
    /// What the user should know of interpreters.
    pub(crate) of_python: Vec<String>,
    /// What the kernel accounts to what was observed, unless it was a command.
    pub(crate) accounted: Option<Account>,
    /// The accounts of a command from when its events came on, if that was later than its start.
    pub(crate) late_accounts: Option<CpuAccounts>,
    /// Drains that something kept from running.
    pub(crate) stalls: Stalls,
    /// Files without a build id that nobody finds again.
    pub(crate) gone_without_names: GoneFiles,
    /// Threads that have panicked, in words.
    pub(crate) panicked: Vec<String>,
}

struct DrainStage<'a> {
    cpu: Option<u32>,
    sources: Vec<RingSource<'a>>,
    request: &'a DrainRequest,
    sender: Sender<Message>,
}

impl<'a> DrainStage<'a> {
    /// What is known of it before it runs, if it is bound to a CPU.
    fn bound(&self) -> Option<BoundDrain<'a>> {
        let rings = self.sources.iter().map(|source| source.ring).collect();
        Some(BoundDrain { cpu: self.cpu?, rings, tid: 0 })
    }
}

/// The thread that receives what the drains bring.
enum Recorder<'a> {
    Writer(Box<WriterThread<'a>>),
    Flight(Box<FlightThread<'a>>),
}

fn notifier_error(source: io::Error) -> RecordError {
    system("wake a thread of the recorder by an eventfd")(source)
}

impl<'a> Base<'a> {
    pub(crate) fn new(opened: &'a Opened, user_rings: &'a DrainedUserRings) -> Result<Base<'a>, RecordError> {
        let failed_fd =
            eventfd(0, EventfdFlags::CLOEXEC).map_err(|errno| system("make an eventfd")(errno.into()))?;
        let drains = sources(&opened.events, &opened.rings).len();
        let budget = &opened.budget;
        let pool = BufferPool::new(budget.buffers, budget.buffer_bytes, budget.ready, drains)
            .map_err(notifier_error)?;
        let mut shared = DrainShared::new(pool, opened.plan.options.overload, opened.by_kernel.clone())
            .map_err(notifier_error)?;
        shared.aliases = IdAliases::new(opened.specs.first().map_or(0, |spec| spec.attr.sample_type));
        let drain_requests = (0..drains).map(|_| DrainRequest::new()).collect::<io::Result<Vec<_>>>();
        let drain_requests = drain_requests.map_err(notifier_error)?;
        Ok(Base { opened, user_rings, shared, drain_requests, failed_fd })
    }

    /// How many rings are drained.
    fn rings(&self) -> usize {
        self.opened.rings.len() + self.user_rings.rings.len()
    }
}

impl<'a> Pipeline<'a> {
    /// Connects the stages. `command`: the process of the command.
    pub(crate) fn build(
        base: &'a Base<'a>,
        mut output: OpenedOutput,
        limits: Limits,
        listener: Option<SeriesListener>,
        kernel: KernelThread,
        command: Option<i32>,
    ) -> Result<Pipeline<'a>, RecordError> {
        let opened = base.opened;
        let plan = &opened.plan;
        let mut groups = sources(&opened.events, &opened.rings);
        add_user_rings(&mut groups, base.user_rings, opened.rings.len());
        // One queue for each drain, one for the list of what existed, four for notes. Each ring
        // has a few places for messages that it is empty.
        let places = groups.iter().map(|group| opened.budget.queued + 4 * group.1.len());
        let (mut senders, messages) =
            channel(places.chain([1, NOTES, NOTES, NOTES, 1])).map_err(notifier_error)?;
        let waits =
            senders.pop().filter(|_| opened.observer.waits.is_some() || opened.observer.locks.is_some());
        let cpus = senders.pop().and_then(|sender| CpuRecorder::new(opened, sender));
        // Snapshots have no place for names.
        let code_names = senders.pop().filter(|_| !plan.keeps_newest());
        let code_names = code_names.map(|sender| (Arc::new(CodeWatch::default()), sender));
        output.stats.code = code_names.as_ref().map(|(watch, _)| CodeTap::new(watch));
        // A snapshot has its table when it has its name.
        let tells_build_ids = plan.options.build_ids && !plan.keeps_newest();
        let file_watch = FileWatch::start(plan.options.output == Output::Memory, tells_build_ids)
            .map_err(system("start a thread of the recorder"))?;
        output.stats.mapped_files = Some(FileTap::new(&file_watch));
        let mut notes = senders.pop();
        let existing_sender = senders.pop();
        let drains: Vec<DrainStage<'a>> = (groups.into_iter().zip(&base.drain_requests).zip(senders))
            .map(|(((cpu, sources), request), sender)| DrainStage { cpu, sources, request, sender })
            .collect();
        let attrs = opened.events.events.iter().map(|event| &event.request.attr);
        let mut pid_filter =
            PidFilter::new(opened.observer.ever_followed(), attrs).with_samples(unfiltered(opened));
        let (reducer, messages) = match reducer(base, &drains)? {
            None => (None, messages),
            Some((reducer, note_sender, reduced)) => {
                notes = Some(note_sender);
                // The reducer filters, so nothing is left for the writer to take out.
                let reducer = reducer
                    .without(std::mem::take(&mut pid_filter))
                    .with_mapped_files(output.stats.mapped_files.take());
                (Some((reducer, messages)), reduced)
            }
        };
        let request = Arc::new(SwitchRequest::new(messages.notifier()).map_err(notifier_error)?);
        let series = series(opened, &output, limits, &request, listener);
        let switch_request = series.is_some().then_some(request);
        let recorder = recorder(base, &drains, output, series, limits, pid_filter, &file_watch);
        let throttle = notes.map(|notes| Throttle::new(plan, opened.observer.cgroup(), command, notes));
        let attr = opened.specs.first().map(|spec| spec.attr.clone()).unwrap_or_default();
        let command = command.filter(|_| plan.observe_command);
        let command = command.map(|pid| synth::name_only(&attr, pid)).unwrap_or_default();
        let existing = Existing { plan, observer: &opened.observer, attr, kernel, command };
        Ok(Pipeline {
            base,
            drains,
            reducer,
            recorder,
            messages,
            throttle,
            cpus,
            waits,
            code_names,
            file_watch,
            existing,
            existing_sender,
            switch_request,
        })
    }

    /// Starts the threads, runs the loop until the recording ends, and joins the threads.
    pub(crate) fn run(self, mut run_loop: RunLoop<'_>, until: Option<BorrowedFd<'_>>) -> Outcome {
        let Pipeline { base, drains, reducer, recorder, messages, throttle, cpus, existing, .. } = self;
        let Opened { plan, events, .. } = base.opened;
        let (existing_sender, code_names, waits) = (self.existing_sender, self.code_names, self.waits);
        let file_watch = self.file_watch;
        let watch = code_names.as_ref().map(|(watch, _)| Arc::clone(watch));
        std::thread::scope(|scope| {
            let mut threads = ThreadStarter { scope, failed: None };
            let recorder = threads.start(move || match recorder {
                Recorder::Writer(writer) => writer.run(messages),
                Recorder::Flight(flight) => flight.run(messages),
            });
            let reducer =
                reducer.and_then(|(reducer, messages)| threads.start(move || reducer.run(messages)));
            let mut bound: Vec<BoundDrain<'_>> = drains.iter().filter_map(DrainStage::bound).collect();
            let are_ready = threads.start_drains(drains, &base.shared);
            let request = base.shared.throttle_request.as_ref();
            let finder = python_finder(base);
            let finder =
                finder.and_then(|finder| threads.start(move || finder.run(&base.shared.stop_notifier)));
            let throttle = (throttle.zip(request))
                .and_then(|(throttle, request)| threads.start(move || throttle.run(request, &base.shared)));
            let cpus = cpus.and_then(|cpus| threads.start(move || cpus.run(&base.shared)));
            let clock = plan.options.clock.map(RecordingClock::id);
            let theirs = Arc::clone(&file_watch);
            let code_names = code_names.and_then(|(watch, mut sender)| {
                threads.start(move || {
                    let report = code_names::forward(&watch, clock, plan.options.asks_jvms, &mut sender);
                    let of_files = theirs.names_of_gone();
                    if !of_files.is_empty() {
                        sender.send_blocking(Message::Note(of_files));
                    }
                    report
                })
            });
            // Until each drain is ready, or has ended.
            for (cpu, tid) in &are_ready {
                bound.iter_mut().filter(|drain| Some(drain.cpu) == cpu).for_each(|drain| drain.tid = tid);
            }
            let monitor = StallMonitor::new(plan, bound)
                .and_then(|monitor| threads.start(move || monitor.run(&base.shared)));
            // From here on nothing new is missed, so what exists already can be listed.
            let tracking = threads.started().and_then(|()| match plan.starts_on_exec() {
                true => Ok(()),
                false => events.enable(true).map_err(system("enable the tracking event")),
            });
            // Without a tracking event the others tell of forks, so they must be on before that.
            let tells_of_forks = plan.observed.kind == TargetKind::Tasks && !plan.starts_on_exec();
            let tracking = tracking.and_then(|()| match plan.options.delay {
                None if tells_of_forks => events.enable(false).map_err(system("enable events")),
                _ => Ok(()),
            });
            let existing_watch = watch.clone();
            let list = move || {
                let mut listed = existing.run();
                // At once: they reach the writer's tap behind samples, perhaps after the end.
                existing_watch.iter().for_each(|watch| CodeTap::new(watch).records(&listed.records));
                let records = std::mem::take(&mut listed.records);
                let send = |mut sender: Sender<_>| sender.send_blocking(Message::Synthesized(records));
                existing_sender.map(send);
                listed
            };
            let (listed, listing) = if plan.system() && !plan.command.is_empty() {
                // Before the command begins: what it does at its start did not exist before.
                (Some(list()), None)
            } else {
                (None, threads.start(list))
            };
            base.opened.begin_waits_and_locks();
            let started = tracking.and_then(|()| threads.started());
            let ended = started.and_then(|()| run_loop.run(until, base.failed_fd.as_fd()));
            let accounted = run_loop.accounted();
            let user_lost = run_loop.end_user_events();
            _ = events.disable().inspect_err(|error| tracing::warn!(%error, "failed to disable events"));
            let untold = || Message::Note(base.opened.untold_waits());
            waits.into_iter().for_each(|mut sender| sender.send_blocking(untold()));
            let mut panicked = Panicked::default();
            let listed = listed.unwrap_or_else(|| panicked.join("lists what exists", listing));
            // The events are off: what is asked of programs now is not sampled.
            watch.iter().for_each(|watch| watch.end());
            let code = code_names.and_then(|names| names.join().ok()).unwrap_or_default();
            base.shared.stop();
            Outcome {
                written: recorder.and_then(|recorder| recorder.join().ok()),
                gone_without_names: file_watch.gone(),
                ended,
                accounted,
                late_accounts: run_loop.accounts,
                code,
                listed,
                unwound: reducer.map(|reducer| panicked.join("unwinds stacks", Some(reducer))),
                cpu_gaps: panicked.join("watches CPUs", cpus),
                stalls: panicked.join("watches for stalls", monitor),
                pauses: panicked.join("watches the rate of samples", throttle),
                user_lost,
                of_python: panicked.join("finds Python", finder),
                panicked: panicked.0,
            }
        })
    }
}

/// Threads that have panicked, in words.
#[derive(Default)]
struct Panicked(Vec<String>);

impl Panicked {
    /// What the thread has returned; nothing, if there is none, or it has panicked.
    fn join<T: Default>(&mut self, what: &str, thread: Option<ScopedJoinHandle<'_, T>>) -> T {
        let Some(result) = thread.map(ScopedJoinHandle::join) else { return T::default() };
        if result.is_err() {
            let words = "panicked, which is a fault of kymo: what it had in hand is missing";
            self.0.push(format!("the thread that {what} {words}"));
        }
        result.unwrap_or_default()
    }
}

/// Starts the threads of the recorder.
///
/// The first one that cannot be made ends the recording: those that run are stopped and joined as
/// at any end, and what the others would have worked with is dropped, which closes their queues.
struct ThreadStarter<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    failed: Option<io::Error>,
}

impl<'scope> ThreadStarter<'scope, '_> {
    fn start<T: Send + 'scope>(
        &mut self,
        work: impl FnOnce() -> T + Send + 'scope,
    ) -> Option<ScopedJoinHandle<'scope, T>> {
        let started = std::thread::Builder::new().spawn_scoped(self.scope, work);
        started.map_err(|error| self.failed = self.failed.take().or(Some(error))).ok()
    }

    /// Starts the drains. The receiver gets each one's CPU and thread when it is ready, and ends
    /// when all are, or have ended.
    fn start_drains(
        &mut self,
        drains: Vec<DrainStage<'scope>>,
        shared: &'scope DrainShared,
    ) -> mpsc::Receiver<(Option<u32>, i32)> {
        // With its places made here: a drain allocates nothing that depends on the others.
        let (ready, are_ready) = mpsc::sync_channel(drains.len());
        for DrainStage { cpu, sources, request, sender } in drains {
            let ready = ready.clone();
            let ready = move || _ = ready.send((cpu, rustix::thread::gettid().as_raw_nonzero().get()));
            if self.start(move || drain::run(cpu, sources, shared, request, sender, ready)).is_none() {
                break;
            }
        }
        are_ready
    }

    /// Whether all could be made since the last call.
    fn started(&mut self) -> Result<(), RecordError> {
        self.failed.take().map_or(Ok(()), Err).map_err(system("start a thread of the recorder"))
    }
}

/// What looks for interpreters of Python, if their frames are walked; those that run already are
/// found.
fn python_finder<'a>(base: &Base<'a>) -> Option<PythonFinder<'a>> {
    let python = base.opened.observer.python.as_ref()?;
    let finder = PythonFinder::new(&python.walker, &python.interpreters);
    Some(finder.look_at(&base.opened.plan.observed.processes))
}

/// The reducer with the sender of notes that go round it, and the receiver of what it has reduced.
type ReducerStage<'a> = (Reducer<'a>, Sender<Message>, Receiver<Message>);

/// The reducer, if stacks are unwound.
fn reducer<'a>(
    base: &'a Base<'a>,
    drains: &[DrainStage<'a>],
) -> Result<Option<ReducerStage<'a>>, RecordError> {
    let plan = &base.opened.plan;
    let Some(events) = base.opened.by_kernel.as_ref().filter(|_| plan.reduces()) else { return Ok(None) };
    let mut of_rings: Vec<(usize, &'a DrainRequest)> = (drains.iter())
        .flat_map(|drain| drain.sources.iter().map(|source| (source.index, drain.request)))
        .collect();
    of_rings.sort_unstable_by_key(|(ring, _)| *ring);
    let requests = of_rings.into_iter().map(|(_, request)| request).collect();
    // Each buffer has a place.
    let places = base.shared.pool.most() + 4 * base.rings();
    let (senders, reduced) = channel([NOTES, places]).map_err(notifier_error)?;
    let Ok([notes, sender]) = <[Sender<Message>; 2]>::try_from(senders) else { return Ok(None) };
    let unwind_bytes = base.opened.plan.options.unwind_memory_bytes;
    let mut reducer = Reducer::new(Arc::clone(events), requests, &base.shared.pool, unwind_bytes, sender);
    if let (Some(python), Some(event)) = (&base.opened.observer.python, plan.python_event) {
        let interpreters = Arc::clone(&python.interpreters);
        reducer =
            reducer.with_python(event, PythonStacks::new(interpreters, events), Arc::clone(&python.walker));
    }
    if let Some(event) = plan.wait_event {
        reducer = reducer.with_waits(WaitSamples::new(Arc::clone(events), event, waits::complete));
    }
    if let Some(event) = plan.lock_event {
        reducer = reducer.with_waits(WaitSamples::new(Arc::clone(events), event, locks::complete));
    }
    if plan.observe_command {
        reducer = reducer.without_existing();
    }
    if !plan.options.wants_data_mappings() {
        reducer = reducer.without_data_mappings();
    }
    if plan.options.overload == Overload::Drop {
        reducer = reducer.normal_priority();
    }
    Ok(Some((reducer, notes, reduced)))
}

/// The events whose samples come of everyone, where programs filter those of the others: their
/// fields and ids.
fn unfiltered(opened: &Opened) -> impl Iterator<Item = (u64, &[u64])> {
    let filters = opened.plan.scope == crate::scope::Scope::Filtered;
    let requests = opened.events.events.iter().map(|event| &event.request.attr);
    let events = opened.specs.iter().zip(requests);
    let events = events.filter(move |(_, attr)| filters && attr.type_ == Perf::TRACEPOINT);
    events.map(|(spec, _)| (spec.attr.sample_type, &spec.ids[..]))
}

/// The files of the recording, where there may be several.
fn series(
    opened: &Opened,
    output: &OpenedOutput,
    limits: Limits,
    request: &Arc<SwitchRequest>,
    listener: Option<SeriesListener>,
) -> Option<Series> {
    let options = &opened.plan.options;
    let flight = opened.plan.keeps_newest();
    let rule = limits.switch.or(flight.then(SwitchRule::default))?;
    let place = match (&options.output, listener) {
        (Output::File(path), listener) => {
            let say = match listener {
                Some(SeriesListener::Files(say)) => say,
                _ => Box::new(|_: &Path, _: Option<&Coverage>| {}),
            };
            SeriesPlace::Folder { path: path.clone(), naming: Arc::clone(output.naming.as_ref()?), say }
        }
        (Output::Memory, Some(SeriesListener::Snapshots(take))) => {
            SeriesPlace::Memory { file: output.sink.another_handle().ok()?, take }
        }
        _ => return None,
    };
    let mut series = Series::new(
        rule,
        place,
        opened.specs.clone(),
        output.features.clone(),
        options.build_ids,
        Arc::clone(request),
    );
    if flight {
        series.last = match options.last_snapshot {
            LastSnapshot::Plain => Last::Stays,
            LastSnapshot::Dated => Last::Joins,
            LastSnapshot::Not => Last::Goes,
        };
    }
    Some(series)
}

fn recorder<'a>(
    base: &'a Base<'a>,
    drains: &[DrainStage<'a>],
    output: OpenedOutput,
    series: Option<Series>,
    limits: Limits,
    pid_filter: PidFilter,
    file_watch: &Arc<FileWatch>,
) -> Recorder<'a> {
    let (opened, shared, failed_fd) = (base.opened, &base.shared, &base.failed_fd);
    let options = &opened.plan.options;
    let OpenedOutput { sink, stats, compressor, .. } = output;
    let mut state = WriterState::new(sink, stats, compressor, series);
    if !opened.plan.keeps_newest() {
        state.max_bytes = limits.max_bytes;
        return Recorder::Writer(Box::new(WriterThread {
            state,
            pid_filter,
            rings: base.rings(),
            shared,
            requests: base.drain_requests.iter().collect(),
            preferred: options.overload != Overload::Drop,
            file_watch: Arc::clone(file_watch),
            failed_fd,
        }));
    }
    let of_rings = drains.iter().flat_map(|drain| vec![drain.request; drain.sources.len()]);
    let context = FlightContext {
        reader: SnapshotReader::new(&opened.events, &opened.kept),
        pid_filter,
        shared,
        requests: of_rings.collect(),
        failed_fd,
    };
    let at_end = options.last_snapshot != LastSnapshot::Not;
    let flight = FlightThread::new(context, &opened.specs, state, at_end, options.build_ids);
    Recorder::Flight(Box::new(flight))
}
