//! A recording from start to end: open, list what is there, run, finish.
use crate::account::{LossAccount, Unwound};
use crate::control::{self, Channel};
use crate::disk::WriteError;
use crate::drain::{self, Message, Shared, Source};
use crate::existing::{self, Existing, KernelThread};
use crate::look::{Poke, Ticks};
use crate::observe::Observer;
use crate::options::Delay;
use crate::output::{self, OutputError};
use crate::plan::{Plan, PlanError};
use crate::pool::Pool;
use crate::reduce::{Reducer, reduced};
use crate::round::RoundNumber;
use crate::series::{Limits, Say, Series};
use crate::sink::Sink;
use crate::strangers::Strangers;
use crate::walk::Walk;
use crate::writer::{WriterThread, Written};
use crate::{build_ids, machine, synth};
use crossbeam_channel::Sender;
use kymo_data::{Attr, Compressor, EventSpec, Features, SampleId, build};
use kymo_perf::evlist::{self, Engine, Evlist, MappedRing, Note, OpenError, RingError};
use kymo_perf::proc::{self, Module};
use kymo_perf::sys::{self, Kernel};
use kymo_perf::workload::{Exit, Workload};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{Access, FileType};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Instant;

/// Bytes of records that may be on their way to the disk, at least.
const QUEUE_BYTES: usize = 128 << 20;

/// Why there is no recording.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
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
    /// Something that usually works did not.
    #[error("failed to {action}: {source}")]
    System {
        /// What.
        action: &'static str,
        /// Why.
        source: io::Error,
    },
}

fn system(action: &'static str) -> impl Fn(io::Error) -> Error {
    move |source| Error::System { action, source }
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
    /// What unwinding while recording came to, if there was any.
    pub unwound: Option<Unwound>,
    /// How the command ended, if there was one and it did.
    pub exit: Option<Exit>,
    /// Why writing ended early: the recording holds what came before.
    pub write_error: Option<WriteError>,
    /// Tasks that were not followed because the kernel's table of followed ones was full: their samples are missing.
    pub unfollowed: u64,
    /// What else the user should know.
    pub remarks: Vec<String>,
}

/// Everything is open and the output holds what was there before; nothing samples yet.
pub struct Session {
    plan: Plan,
    // Rings before events: an event's ring is unmapped before it is closed.
    rings: Vec<MappedRing>,
    events: Evlist,
    /// The events as the recording has them.
    specs: Vec<EventSpec>,
    /// The events as the kernel writes their samples, if those are reduced.
    unreduced: Option<Vec<EventSpec>>,
    sink: Sink,
    walk: Walk,
    compressor: Option<Compressor>,
    features: Features,
    kernel: KernelThread,
    workload: Option<Workload>,
    channel: Option<Channel>,
    observer: Observer,
    limits: Limits,
    switches: Option<(OwnedFd, Say)>,
}

impl Session {
    /// Opens what the plan says, on the kernel that runs.
    ///
    /// # Errors
    /// [`Error`]; nothing was written then, unless it is the output that failed.
    pub fn start(plan: Plan) -> Result<Session, Error> {
        Session::start_on(Arc::new(sys::Real), plan)
    }

    /// As [`Session::start`], on the given kernel.
    ///
    /// # Errors
    /// As [`Session::start`].
    pub fn start_on(kernel: Arc<dyn Kernel>, mut plan: Plan) -> Result<Session, Error> {
        let workload = prepare(&plan.command)?;
        if plan.observe_command
            && let Some(workload) = &workload
        {
            plan.set_command(workload.pid());
        }
        let (observer, events, rings) = open(&kernel, &mut plan)?;
        // No thread before: it would take a CPU from those who open, and make the kernel wait for all CPUs when the table of descriptors grows.
        let text = existing::read_kernel();
        // A few files for each CPU: many, where there are hundreds.
        let (version, cmdline) = (plan.options.version.clone(), plan.options.cmdline.clone());
        let machine = std::thread::spawn(move || machine::features(&version, &cmdline));
        let ids = events.ids().map_err(system("read the ids of events"))?;
        let mut specs: Vec<EventSpec> =
            events.events.iter().zip(ids).map(|(event, ids)| spec(event, ids)).collect();
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
            tracing_data: tracing_data(&plan)?,
            compressed: compressor.as_ref().map(Compressor::info),
            ..Features::default()
        };
        let machine = machine.join().unwrap_or_default();
        let features = features(machine, &plan, &events, &specs, &early);
        let walk = Walk::new(specs.first().map_or(0, |spec| spec.attr.sample_type), plan.options.build_ids);
        let opened = output::open(&plan.options.output)?;
        let sink = Sink::create(opened, &specs, &early, &features)
            .map_err(system("write the recording's header"))?;
        Ok(Session {
            plan,
            rings,
            events,
            specs,
            unreduced,
            sink,
            walk,
            compressor,
            features,
            kernel: text,
            workload,
            channel: None,
            observer,
            limits: Limits::default(),
            switches: None,
        })
    }

    /// Lets the recording be controlled through this channel while it runs. Commands that wait there already are done, and acknowledged,
    /// once the recording really runs: rings are drained, events are on (unless [`Delay::Disabled`]), the command has begun, and a delay
    /// has passed.
    #[must_use]
    pub fn control(mut self, channel: Channel) -> Session {
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
    /// `say` the name of each file that is done.
    #[must_use]
    pub fn on_switch(mut self, requests: OwnedFd, say: impl FnMut(&Path) + Send + 'static) -> Session {
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
    /// [`Error::Command`] if the command cannot be executed. A write error is no error of this function: see
    /// [`Summary::write_error`].
    pub fn run(self, until: Option<BorrowedFd<'_>>) -> Result<Summary, Error> {
        let event =
            || eventfd(0, EventfdFlags::CLOEXEC).map_err(|errno| system("make an eventfd")(errno.into()));
        let failed_fd = event()?;
        let ring_bytes = self.plan.ring_pages * sys::page_size();
        let buffers = (QUEUE_BYTES / ring_bytes.max(1)).max(4 * self.rings.len());
        let shared = Shared {
            pool: Pool::new(buffers, ring_bytes),
            round: RoundNumber::default(),
            ticks: Ticks::default(),
            stop: AtomicBool::new(false),
            stop_fd: event()?,
            corrupt_bytes: AtomicU64::new(0),
            wakeups: AtomicU64::new(0),
        };
        let groups = sources(&self.events, &self.rings);
        let pokes = groups.iter().map(|_| Poke::new()).collect::<io::Result<Vec<_>>>();
        let pokes = pokes.map_err(system("make an eventfd"))?;
        // Each buffer has a place, and for each ring a few messages that it is empty.
        let channel = || crossbeam_channel::bounded(Pool::most(buffers) + 4 * self.rings.len());
        let (send, receive) = channel();
        let attrs = self.events.events.iter().map(|event| &event.request.attr);
        let mut strangers = Strangers::new(self.observer.ever_followed(), attrs);
        let (reducer, receive, to_reduce) = match &self.unreduced {
            None => (None, receive, None),
            Some(specs) => {
                let poke_of = |(group, poke): (&(_, Vec<Source<'_>>), _)| vec![poke; group.1.len()];
                let pokes = groups.iter().zip(&pokes).flat_map(poke_of).collect();
                let (reduced, written) = channel();
                // Then the writer has none to take out.
                let mut reducer =
                    Reducer::new(specs, pokes, &shared.pool, reduced).without(std::mem::take(&mut strangers));
                if self.plan.observe_command {
                    reducer = reducer.nothing_before();
                }
                (Some(reducer), written, Some(receive))
            }
        };
        let (ask, asked) = crossbeam_channel::bounded(1);
        let (requests, say) = match self.switches {
            Some((requests, say)) => (Some((requests, ask)), say),
            None => (None, Box::new(|_: &Path| {}) as Say),
        };
        let series = match (&self.plan.options.output, self.limits.switch) {
            (output::Output::File(path), Some(rule)) => Some(Series::new(
                rule,
                path.clone(),
                self.specs.clone(),
                self.features.clone(),
                self.plan.options.build_ids,
                asked,
                say,
            )),
            _ => None,
        };
        let ready = Barrier::new(groups.len() + 1);
        let writer = WriterThread {
            sink: self.sink,
            walk: self.walk,
            compressor: self.compressor,
            strangers,
            rings: self.rings.len(),
            shared: &shared,
            max_bytes: self.limits.max_bytes,
            series,
            failed_fd: &failed_fd,
        };
        let mut workload = self.workload;
        let (plan, events) = (&self.plan, &self.events);
        let attr = self.specs.first().map(|spec| spec.attr.clone()).unwrap_or_default();
        let command = match &workload {
            Some(workload) if plan.observe_command => synth::name_only(&attr, workload.pid()),
            _ => Vec::new(),
        };
        let (written, unwound, result, listed) = std::thread::scope(|scope| {
            let writer = scope.spawn(move || writer.run(&receive));
            let reducer = reducer.zip(to_reduce);
            let reducer = reducer.map(|(reducer, messages)| scope.spawn(move || reducer.run(&messages)));
            for ((cpu, sources), poke) in groups.into_iter().zip(&pokes) {
                let (send, shared, ready) = (send.clone(), &shared, &ready);
                let ready = || {
                    ready.wait();
                };
                scope.spawn(move || drain::run(cpu, sources, shared, poke, &send, ready));
            }
            ready.wait();
            // From here on nothing new is missed, so what is there already can be listed.
            let tracking = if plan.starts_on_exec() { Ok(()) } else { events.enable(true) };
            let existing = Existing { plan, attr, kernel: self.kernel, command };
            let list = move || {
                let mut listed = existing.run();
                let _ = send.send(Message::Synthesized(std::mem::take(&mut listed.records)));
                listed
            };
            let (listed, listing) = if plan.system() && !plan.command.is_empty() {
                // What the command does at its start should not be taken for what was there before.
                (Some(list()), None)
            } else {
                (None, Some(scope.spawn(list)))
            };
            let channel = self.channel;
            let mut control = Control { plan, events, workload: workload.as_mut(), channel, requests };
            let result = tracking
                .map_err(system("enable the tracking event"))
                .and_then(|()| control.run(until, failed_fd.as_fd()));
            if let Err(error) = events.disable() {
                tracing::warn!(%error, "failed to disable events");
            }
            // Release: pairs with the drains' Acquire.
            shared.stop.store(true, Ordering::Release);
            let _ = rustix::io::write(&shared.stop_fd, &1u64.to_ne_bytes());
            let listed = listed.or_else(|| listing?.join().ok()).unwrap_or_default();
            let unwound = reducer.map(|reducer| reducer.join().unwrap_or_default());
            (writer.join(), unwound, result, listed)
        });
        let mut written =
            written.map_err(|_| system("write")(io::Error::other("the writer's thread panicked")))?;
        let ended = result?;
        written.walk.files.extend(listed.files);
        let finish = Finish {
            events,
            specs: &self.specs,
            features: self.features,
            modules: &listed.modules,
            build_ids: plan.options.build_ids,
        };
        let mut remarks: Vec<String> = match self.limits.max_bytes {
            Some(limit) if written.full => {
                let kib = limit.div_ceil(1024);
                vec![format!("the size limit of {kib} KiB was reached: the recording ended there")]
            }
            _ => Vec::new(),
        };
        let summary = finish.run(written, &shared);
        let exit = workload.as_mut().and_then(|workload| end(workload, ended));
        let unfollowed = self.observer.missed();
        remarks.extend(self.observer.remove());
        Ok(Summary { exit, unwound, unfollowed, remarks, ..summary })
    }
}

/// The rings by the thread that drains them: one per CPU, or one for all per-thread rings.
fn sources<'a>(events: &'a Evlist, rings: &'a [MappedRing]) -> Vec<(Option<u32>, Vec<Source<'a>>)> {
    let mut groups: Vec<(Option<u32>, Vec<Source<'_>>)> = Vec::new();
    for (index, mapped) in rings.iter().enumerate() {
        let cpu = u32::try_from(mapped.cpu).ok();
        let fds = if cpu.is_none() {
            events.poll_fd(mapped).into_iter().collect()
        } else {
            events.poll_fds(mapped.cpu)
        };
        let source = Source { index, ring: &mapped.ring, fds };
        match groups.last_mut() {
            Some(group) if group.0 == cpu => group.1.push(source),
            _ => groups.push((cpu, vec![source])),
        }
    }
    groups
}

/// Forks the command, after a look whether it can be found at all: a typing error should not touch any file.
fn prepare(command: &[OsString]) -> Result<Option<Workload>, Error> {
    let Some(name) = command.first() else { return Ok(None) };
    let fail = |source| Error::Command { command: name.to_string_lossy().into_owned(), source };
    find(name).map_err(|errno| fail(errno.into()))?;
    Workload::prepare(command).map(Some).map_err(fail)
}

/// What execvp would say about the name, as far as a look at the file tells.
fn find(name: &OsStr) -> Result<(), Errno> {
    let look = |path: &Path| {
        // execve calls a directory EACCES.
        let file = rustix::fs::stat(path).map(|stat| FileType::from_raw_mode(stat.st_mode).is_file())?;
        if file { rustix::fs::access(path, Access::EXEC_OK) } else { Err(Errno::ACCESS) }
    };
    if name.as_bytes().contains(&b'/') {
        return look(Path::new(name));
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let mut found = Err(Errno::NOENT);
    for directory in std::env::split_paths(&path) {
        match look(&directory.join(name)) {
            Ok(()) => return Ok(()),
            Err(Errno::ACCESS) => found = Err(Errno::ACCESS),
            Err(_) => {}
        }
    }
    found
}

/// Sets up the scope and opens events and rings. A scope that turns out to be impossible makes way for the next best, unless it was asked for.
fn open(kernel: &Arc<dyn Kernel>, plan: &mut Plan) -> Result<(Observer, Evlist, Vec<MappedRing>), Error> {
    loop {
        let reason = match Observer::prepare(plan) {
            Ok(mut observer) => match open_events(kernel, plan) {
                Ok(_) if plan.tasks_have_come() => continue,
                Ok((events, rings)) => {
                    observer.bind(&events).map_err(system("attach the filter of tasks to the events"))?;
                    return Ok((observer, events, rings));
                }
                Err(Error::Open(error)) if refused(&error) && plan.has_other_scope() => error.to_string(),
                Err(error) => return Err(error),
            },
            Err(reason) => reason,
        };
        plan.give_up_scope(reason)?;
    }
}

/// Whether the kernel forbids it, or does not have it.
fn refused(error: &OpenError) -> bool {
    let errno = error.source.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::ACCESS | Errno::PERM | Errno::OPNOTSUPP))
}

/// Opens events and rings; where rings must be smaller than planned, once more with earlier wakeups.
fn open_events(kernel: &Arc<dyn Kernel>, plan: &mut Plan) -> Result<(Evlist, Vec<MappedRing>), Error> {
    let engine = match plan.options.jobs {
        None => Engine::Auto,
        Some(1) => Engine::Serial,
        Some(workers) => Engine::Parallel { workers: Some(workers) },
    };
    let mut shrunk = None;
    loop {
        let mut events = evlist::open(Arc::clone(kernel), plan.open.clone(), engine)?;
        let rings = events.map_rings(plan.ring_pages, plan.ring_may_shrink)?;
        let pages = rings.first().map_or(plan.ring_pages, |ring| ring.ring.size_bytes() / sys::page_size());
        if pages >= plan.ring_pages {
            events.notes.extend(shrunk);
            return Ok((events, rings));
        }
        shrunk = events.notes.pop();
        plan.set_ring_pages(pages);
    }
}

fn spec(event: &kymo_perf::evlist::Event, ids: Vec<u64>) -> EventSpec {
    // Always long enough: the kernel's struct is.
    let attr = Attr::parse(&sys::attr_bytes(&event.request.attr)).unwrap_or_default();
    EventSpec { attr, ids, name: event.request.name.clone() }
}

/// Completes what is known of the machine by what is recorded.
fn features(
    machine: Features,
    plan: &Plan,
    events: &Evlist,
    specs: &[EventSpec],
    early: &Features,
) -> Features {
    let mut features = machine;
    features.event_desc = specs.iter().map(EventSpec::desc).collect();
    let leaders =
        events.events.iter().enumerate().map(|(index, event)| event.request.leader.unwrap_or(index));
    features.groups = kymo_data::groups(&leaders.collect::<Vec<_>>());
    features.tracing_data.clone_from(&early.tracing_data);
    features.compressed = early.compressed;
    if let Some(clock) = plan.options.clock {
        let (resolution_ns, data) = machine::clock(clock);
        features.clockid_resolution_ns = Some(resolution_ns);
        features.clock_data = Some(data);
    }
    features
}

/// The formats of the tracepoints, without which no reader can print their fields.
fn tracing_data(plan: &Plan) -> Result<Option<Vec<u8>>, Error> {
    if plan.tracepoints.is_empty() {
        return Ok(None);
    }
    crate::formats::data(&plan.tracepoints).map(Some).map_err(system("read the formats of tracepoints"))
}

/// What ended the recording.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// The command, or what was observed.
    ByItself,
    /// We were told to stop, or writing failed.
    ByUs,
}

/// Turns the events on and waits for the end.
struct Control<'a> {
    plan: &'a Plan,
    events: &'a Evlist,
    workload: Option<&'a mut Workload>,
    channel: Option<Channel>,
    /// Becomes readable when another file is wanted, and whom to tell.
    requests: Option<(OwnedFd, Sender<()>)>,
}

impl Control<'_> {
    fn run(&mut self, until: Option<BorrowedFd<'_>>, failed: BorrowedFd<'_>) -> Result<Ended, Error> {
        let delay = self.plan.options.delay;
        let on_exec = self.plan.starts_on_exec() && delay.is_none();
        if !on_exec && delay.is_none() {
            self.events.enable(false).map_err(system("enable events"))?;
        }
        if let Some(workload) = &mut self.workload {
            workload.start().map_err(|source| Error::Command {
                command: self
                    .plan
                    .command
                    .first()
                    .map(|name| name.to_string_lossy().into_owned())
                    .unwrap_or_default(),
                source,
            })?;
        }
        let mut enable_at = match delay {
            Some(Delay::After(delay)) => Some(Instant::now() + delay),
            Some(Delay::Disabled) | None => None,
        };
        let mut observed: Vec<OwnedFd> = self.plan.until.iter().filter_map(|&task| ended_fd(task)).collect();
        let waits_for_observed = !self.plan.until.is_empty();
        loop {
            if waits_for_observed && observed.is_empty() {
                return Ok(Ended::ByItself);
            }
            let mut fds = vec![PollFd::from_borrowed_fd(failed, PollFlags::IN)];
            fds.extend(until.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
            let told = fds.len();
            let command = self.workload.as_ref().map(|workload| workload.ended_fd());
            fds.extend(command.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
            let others = fds.len();
            fds.extend(observed.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
            let commands = self.channel.as_ref().filter(|_| enable_at.is_none()).and_then(Channel::poll_fd);
            fds.extend(commands.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
            let asking = fds.len();
            fds.extend(self.requests.as_ref().map(|(fd, _)| PollFd::new(fd, PollFlags::IN)));
            let left = enable_at.map(|at| at.saturating_duration_since(Instant::now()));
            let timeout = left
                .map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
            match poll(&mut fds, timeout.as_ref()) {
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => return Err(system("wait")(errno.into())),
                Ok(_) => {}
            }
            let fired: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(fds);
            if fired[..told].contains(&true) {
                return Ok(Ended::ByUs);
            }
            if fired[told..others].contains(&true) {
                return Ok(Ended::ByItself);
            }
            let mut index = others;
            observed.retain(|_| {
                index += 1;
                !fired[index - 1]
            });
            if fired.get(asking) == Some(&true)
                && let Some((fd, ask)) = &self.requests
            {
                let mut many = [0; 64];
                if matches!(rustix::io::read(fd, &mut many), Ok(0) | Err(_)) {
                    self.requests = None;
                } else {
                    // One that waits to be heard stands for all.
                    let _ = ask.try_send(());
                }
            }
            if enable_at.is_some_and(|at| at <= Instant::now()) {
                enable_at = None;
                self.events.enable(false).map_err(system("enable events"))?;
            }
            if enable_at.is_none()
                && let Some(channel) = &mut self.channel
                && control::obey(channel, self.events)
            {
                return Ok(Ended::ByUs);
            }
        }
    }
}

/// A descriptor that becomes readable when the task ends; `None` if it is gone already.
fn ended_fd(task: i32) -> Option<OwnedFd> {
    // PIDFD_THREAD (Linux 6.9), which lets any thread be waited for.
    const THREAD: PidfdFlags = PidfdFlags::from_bits_retain(0x80);
    let pid = Pid::from_raw(task)?;
    let leader = proc::process_of(task)? == task;
    let own = pidfd_open(pid, if leader { PidfdFlags::empty() } else { THREAD });
    own.ok().or_else(|| pidfd_open(Pid::from_raw(proc::process_of(task)?)?, PidfdFlags::empty()).ok())
}

/// How the command ended. One that we outlive is told to end, and given some time for it.
fn end(workload: &mut Workload, ended: Ended) -> Option<Exit> {
    if ended == Ended::ByItself {
        // With -p beside a command the command may still run; its status is ours, so it is waited for.
        return workload.wait().ok();
    }
    const SIGTERM: i32 = 15;
    workload.signal(SIGTERM);
    let fd = workload.ended_fd().try_clone_to_owned().ok()?;
    let patience = Timespec { tv_sec: 5, tv_nsec: 0 };
    match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&patience)) {
        Ok(1..) => workload.wait().ok(),
        _ => None,
    }
}

/// What remains to be done when no more records come.
struct Finish<'a> {
    events: &'a Evlist,
    specs: &'a [EventSpec],
    features: Features,
    modules: &'a [Module],
    build_ids: bool,
}

impl Finish<'_> {
    fn run(mut self, mut written: Written, shared: &Shared) -> Summary {
        let (lost, records) = self.lost();
        let mut error = written.error.take();
        if error.is_none() {
            error = written.sink.append(&records, 0).err();
        }
        if self.build_ids {
            self.features.build_ids = build_ids::of_recording(self.modules, &written.walk.files);
        }
        self.features.sample_time = written.walk.times;
        if let Some(compressor) = &written.compressor {
            self.features.compressed = Some(compressor.info());
        }
        let mut finished = written.sink.finish(&self.features);
        if let Some(series) = &mut written.series
            && let Err(late) = series.keep()
        {
            finished.error.get_or_insert(late);
        }
        // What the disk said first knows the place; what reached the writer of it is only that it failed.
        let write_error = finished.error.or(error).map(WriteError::from);
        let told = written.ring_full + written.queue_full;
        let account = LossAccount {
            samples: written.walk.samples.saturating_sub(finished.lost_samples),
            ring_full: written.ring_full,
            queue_full: written.queue_full,
            at_the_end: lost.saturating_sub(told),
            corrupt_bytes: written.corrupt_bytes + shared.corrupt_bytes.load(Ordering::Relaxed),
            unwritten: written.unwritten_samples + finished.lost_samples,
            unwritten_bytes: written.unwritten_bytes + finished.lost_bytes,
            throttled: written.walk.throttled,
        };
        let wakeups = shared.wakeups.load(Ordering::Relaxed);
        Summary {
            bytes: written.earlier_bytes + finished.bytes,
            wakeups,
            account,
            unwound: None,
            exit: None,
            write_error,
            unfollowed: 0,
            remarks: Vec::new(),
        }
    }

    /// How many samples the kernel says were lost in all, and the records that tell so.
    fn lost(&self) -> (u64, Vec<u8>) {
        let (mut total, mut records) = (0, Vec::new());
        for lost in self.events.lost() {
            total += lost.lost;
            let Some(spec) = self.specs.get(lost.event) else { continue };
            let id = SampleId {
                id: Some(lost.id),
                cpu: u32::try_from(lost.cpu).ok(),
                pid: Some(lost.task),
                tid: Some(lost.task),
                ..SampleId::default()
            };
            records.extend(build::lost_samples(&spec.attr, &id, lost.lost));
        }
        (total, records)
    }
}
