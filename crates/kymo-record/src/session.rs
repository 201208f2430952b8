//! A recording from start to end: open, run the pipeline, finish.
use crate::background::BackgroundTask;
use crate::budget::{Budget, Load};
use crate::build_ids;
use crate::command;
use crate::control::ControlChannel;
use crate::coverage::Coverage;
use crate::cpu_accounts::{Account, CpuAccounts};
use crate::cpu_time::{self, ClockSamples};
use crate::error::{RecordError, system};
use crate::existing::{self, KernelThread};
use crate::finish::{Finish, Summary};
use crate::lock_holds::HoldSource;
use crate::locks::{self, Locks};
use crate::machine;
use crate::opening::{Opened, event_set, features, has_build_ids, open, sources, spec, tracing_data};
use crate::options::LastSnapshot;
use crate::output;
use crate::pipeline::{Base, OpenedOutput, Outcome, Pipeline};
use crate::plan::RecordingPlan;
use crate::python;
use crate::record_stats::RecordStats;
use crate::run_loop::{Ended, RunLoop};
use crate::series::{Limits, LiveSnapshot, SeriesListener, SwitchRule};
use crate::sink::Sink;
use crate::targets::TargetKind;
use crate::user_rings::{DrainedUserRings, UserEvent, UserRings};
use crate::waits::{self, Waits};
use kymo_data::{Compressor, EventSpec, Features, abi};
use kymo_perf::evlist::{Evlist, MappedRing, Note};
use kymo_perf::hotplug::CpuGap;
use kymo_perf::proc::ProcessMemory;
use kymo_perf::ring::Keeps;
use kymo_perf::sys::{self, Kernel};
use kymo_perf::workload::{Usage, Workload};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// The memory for what is to be drained; judged before an earlier recording is touched.
fn budget(
    plan: &RecordingPlan,
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
        stacks: plan.copies_stacks_by_count(),
    };
    Budget::new(&load, options.max_memory_bytes)
}

/// Everything is open and the output holds what was there before; nothing samples yet.
pub struct Session {
    opened: Opened,
    output: OpenedOutput,
    kernel: KernelThread,
    workload: Option<Workload>,
    channel: Option<ControlChannel>,
    limits: Limits,
    switches: Option<(OwnedFd, SeriesListener)>,
    user_rings: Option<UserRings>,
}

impl Session {
    /// Opens what the plan says, on the kernel that runs.
    ///
    /// # Errors
    /// [`RecordError`]; nothing was written then, unless it is the output that failed.
    pub fn start(plan: RecordingPlan) -> Result<Session, RecordError> {
        Session::open(Arc::new(sys::Real), plan, None, None)
    }

    /// As [`Session::start`], with events that programs write themselves. The options must say so
    /// ([`Options::user_rings`](crate::Options::user_rings)), and no ring may keep the newest
    /// records. A named pipe as output waits for its reader until `until` can be read, and so does
    /// each write to one.
    ///
    /// # Errors
    /// As [`Session::start`].
    pub fn start_with(
        plan: RecordingPlan,
        user_rings: Option<UserRings>,
        until: Option<BorrowedFd<'_>>,
    ) -> Result<Session, RecordError> {
        Session::open(Arc::new(sys::Real), plan, user_rings, until)
    }

    /// As [`Session::start`], on the given kernel.
    ///
    /// # Errors
    /// As [`Session::start`].
    pub fn start_on(kernel: Arc<dyn Kernel>, plan: RecordingPlan) -> Result<Session, RecordError> {
        Session::open(kernel, plan, None, None)
    }

    fn open(
        kernel: Arc<dyn Kernel>,
        mut plan: RecordingPlan,
        user_rings: Option<UserRings>,
        until: Option<BorrowedFd<'_>>,
    ) -> Result<Session, RecordError> {
        plan.options.output.check()?;
        let aside = output::is_on_stdout(&plan.options.output);
        let streams = (aside, plan.options.silent_command);
        let workload = command::prepare(&plan.command, &plan.options.environment, streams)?;
        if plan.observe_command
            && let Some(workload) = &workload
        {
            plan.set_command(workload.pid());
        }
        if plan.reduces() {
            // Before there are buffers.
            ProcessMemory::prepare();
        }
        let (observer, events, rings) = open(&kernel, &mut plan)?;
        let (kept, rings): (Vec<_>, Vec<_>) =
            rings.into_iter().partition(|ring| ring.ring.keeps() == Keeps::Newest);
        // No thread before: it would take a CPU from those who open, and make the kernel wait for
        // all CPUs when the table of descriptors grows.
        let text = existing::read_kernel();
        // A few files for each CPU: many, where there are hundreds.
        let (version, cmdline) = (plan.options.version.clone(), plan.options.cmdline.clone());
        let clock = plan.options.clock;
        let machine = BackgroundTask::begin(move || Features {
            clock_data: machine::clock(clock),
            clockid_resolution_ns: clock.map(machine::clock_resolution_ns),
            ..machine::features(&version, &cmdline)
        });
        let ids = events.ids().map_err(system("read the ids of events"))?;
        let mut specs: Vec<EventSpec> =
            events.events.iter().zip(ids).map(|(event, ids)| spec(event, ids)).collect();
        let user_events = user_rings.as_ref().map_or(&[][..], |user_rings| &user_rings.events);
        specs.extend(user_events.iter().map(UserEvent::spec));
        let by_kernel = (plan.copies_stacks() || plan.reduces()).then(|| Arc::new(event_set(&specs)));
        if plan.reduces() {
            for spec in &mut specs {
                spec.attr = spec.attr.unwound().unwrap_or_else(|| std::mem::take(&mut spec.attr));
                spec.attr.set(abi::ATTR_FLAG_MMAP_DATA, plan.options.wants_data_mappings());
            }
        }
        // What it tells goes into chains: for readers it has no samples.
        if let Some(spec) = plan.python_event.and_then(|event| specs.get_mut(event)) {
            spec.attr.config = abi::PERF_COUNT_SW_DUMMY;
        }
        if let Some(spec) = plan.wait_event.and_then(|event| specs.get_mut(event)) {
            let mut of_waits = waits::specs(spec).into_iter();
            of_waits.next().into_iter().for_each(|off_cpu| *spec = off_cpu);
            specs.extend(of_waits);
        }
        if let Some(spec) = plan.lock_event.and_then(|event| specs.get_mut(event)) {
            let mut of_locks = locks::specs(spec, plan.options.holds).into_iter();
            of_locks.next().into_iter().for_each(|wait| *spec = wait);
            specs.extend(of_locks);
        }
        let compressor = (plan.options.compress)
            .map(|level| Compressor::new(level.unsigned_abs()).map_err(system("set up zstd")))
            .transpose()?;
        let tracing_data = tracing_data(&plan, user_events)?;
        let machine = Features {
            tracing_data,
            compressed: compressor.as_ref().map(Compressor::info),
            // Until the table of all files takes its place at the end.
            build_ids: build_ids::kernel_build_id().filter(|_| plan.options.build_ids).into_iter().collect(),
            ..machine.join()
        };
        let features = features(machine, &events, &specs);
        let sample_type = specs.first().map_or(0, |spec| spec.attr.sample_type);
        let mut stats = RecordStats::new(sample_type, plan.options.build_ids);
        stats.clock = cpu_time::is_comparable(&plan).then(|| ClockSamples::of(&specs)).flatten();
        stats.has_build_ids = has_build_ids(&specs);
        let budget = budget(&plan, &events, &rings, &kept, user_rings.as_ref())?;
        let (sink, naming) = Sink::create(&plan.options.output, until, &specs, &features)?;
        let naming = naming.map(|naming| Arc::new(Mutex::new(naming)));
        Ok(Session {
            opened: Opened {
                plan,
                rings,
                kept,
                events,
                specs,
                by_kernel,
                budget,
                observer,
                holds: Mutex::default(),
            },
            output: OpenedOutput { sink, naming, stats, compressor, features },
            kernel: text,
            workload,
            channel: None,
            limits: Limits::default(),
            switches: None,
            user_rings,
        })
    }

    /// Lets the recording be controlled through this channel while it runs. Commands that wait
    /// there already are done, and acknowledged, once the recording really runs: rings are drained,
    /// events are on (unless `Delay::Disabled`), the command has begun, and a delay has passed.
    #[must_use]
    pub fn control(mut self, channel: ControlChannel) -> Session {
        self.channel = Some(channel);
        // Events may be off at times.
        self.output.stats.clock = None;
        self
    }

    /// Ends the recording at a size, or divides it into several files. Pipes are not divided.
    #[must_use]
    pub fn limit(mut self, limits: Limits) -> Session {
        self.limits = limits;
        self
    }

    /// Where the recording is divided into several files: begins another file each time something
    /// can be read from `requests`, and tells `say` the name of each file that is done, and how far
    /// back it reaches, if it is a snapshot of a flight recorder. A flight recorder takes one for
    /// each request, also if nothing else divides the recording.
    #[must_use]
    pub fn on_switch(
        mut self,
        requests: OwnedFd,
        say: impl FnMut(&Path, Option<&Coverage>) + Send + 'static,
    ) -> Session {
        self.switches = Some((requests, SeriesListener::Files(Box::new(say))));
        self
    }

    /// Where a flight recorder's output is [`Output::Memory`](crate::Output::Memory): takes a
    /// snapshot each time something can be read from `requests`, and one at the end, and hands them
    /// to `take`.
    #[must_use]
    pub(crate) fn on_snapshot(
        mut self,
        requests: OwnedFd,
        take: impl FnMut(LiveSnapshot) + Send + 'static,
    ) -> Session {
        self.limits.switch = Some(SwitchRule::default());
        self.switches = Some((requests, SeriesListener::Snapshots(Box::new(take))));
        self
    }

    /// Has a recording of locks end with what this source tells, if
    /// [`Options::holds`](crate::Options::holds) says so.
    #[must_use]
    pub fn with_holds(self, source: Box<dyn HoldSource>) -> Session {
        self.opened.holds.lock().unwrap_or_else(PoisonError::into_inner).source = Some(source);
        self
    }

    /// The process of the command, which has not begun.
    pub fn command_pid(&self) -> Option<i32> {
        self.workload.as_ref().map(Workload::pid)
    }

    /// The names of the recording's events, and the descriptions of its tracepoints, for readers
    /// that read its records while it grows.
    pub fn described(&self) -> (Vec<String>, Option<Vec<u8>>) {
        let names = self.opened.specs.iter().map(|spec| spec.name.clone()).collect();
        (names, self.output.features.tracing_data.clone())
    }

    /// What was changed so that this machine would accept the plan.
    pub fn notes(&self) -> &[Note] {
        &self.opened.events.notes
    }

    /// The plan, as far as opening changed it.
    pub fn plan(&self) -> &RecordingPlan {
        &self.opened.plan
    }

    /// Records until the command or all observed processes end, or `until` becomes readable; then
    /// completes the recording.
    ///
    /// # Errors
    /// [`RecordError::Command`] if the command cannot be executed. A write error is no error of
    /// this function: see [`Summary::write_error`].
    pub fn run(self, until: Option<BorrowedFd<'_>>) -> Result<Summary, RecordError> {
        let Session { opened, output, kernel, mut workload, channel, limits, switches, user_rings } = self;
        let (user_rings, mut control) = match user_rings {
            Some(UserRings { events, pid, rings, clock, control }) => {
                (DrainedUserRings::new(rings, &events, pid, clock), Some(control))
            }
            None => Default::default(),
        };
        let plan = &opened.plan;
        let features = output.features.clone();
        // A flight recorder that leaves nothing at its end takes no name before its first snapshot.
        let nameless = plan.keeps_newest() && plan.options.last_snapshot == LastSnapshot::Not;
        let naming = output.naming.clone().filter(|_| !nameless);
        let (requests, listener) = switches.unzip();
        let base = Base::new(&opened, &user_rings)?;
        let command = workload.as_ref().map(Workload::pid);
        let pipeline = Pipeline::build(&base, output, limits, listener, kernel, command)?;
        let run_loop = RunLoop {
            plan,
            events: &opened.events,
            user_events: control.as_mut(),
            workload: workload.as_mut(),
            naming,
            channel,
            requests,
            switch_request: pipeline.switch_request.clone(),
            accounts: None,
        };
        let Outcome {
            ended,
            written,
            unwound,
            pauses,
            cpu_gaps,
            listed,
            code,
            user_lost,
            of_python,
            accounted,
            late_accounts,
            stalls,
            gone_without_names,
            panicked,
        } = pipeline.run(run_loop, until);
        let ended = ended?;
        let mut written =
            written.ok_or_else(|| system("write")(io::Error::other("the writer's thread panicked")))?;
        written.stats.files.extend(listed.files);
        let mut remarks: Vec<String> =
            limits.max_bytes.filter(|_| written.full).map(limit_reached).into_iter().collect();
        let refusal = plan.python_refusal.as_deref();
        if plan.python_event.is_none() && plan.reduces() && (plan.options.python || refusal.is_some()) {
            remarks.extend(python::without_names(&written.stats.files, refusal));
        }
        let (reported, remark) = user_lost;
        remarks.extend(remark);
        remarks.extend(code.remarks(written.stats.code.as_ref(), written.stats.samples));
        remarks.extend(of_python);
        remarks.extend(panicked);
        remarks.extend(opened.observer.waits.iter().flat_map(Waits::remarks));
        remarks.extend(opened.observer.locks.iter().flat_map(Locks::remarks));
        remarks.append(&mut opened.holds.lock().unwrap_or_else(PoisonError::into_inner).remarks);
        let user_lost = user_rings.lost(reported, opened.events.events.len());
        let is_whole = !written.full && written.error.is_none();
        let clock = written.stats.clock.take().filter(|_| is_whole);
        let finish = Finish {
            events: &opened.events,
            specs: &opened.specs,
            features,
            modules: &listed.modules,
            build_ids: plan.options.build_ids,
            flight: plan.keeps_newest(),
            output: &plan.options.output,
        };
        let mut summary = finish.run(written, &base.shared, &user_lost);
        summary.account.cpu_gaps = cpu_gaps.len() as u64;
        remarks.extend(gone_without_names.remark(plan.keeps_newest(), summary.files.len()));
        remarks.extend(cpu_gaps.iter().map(CpuGap::to_string));
        remarks.extend(stalls.remark(summary.account.ring_full + summary.account.at_the_end));
        if nameless && summary.bytes == 0 {
            remarks.push(
                "there is no file, because no snapshot was asked for: SIGUSR2 asks for one, --snapshot=e makes one at the end"
                    .into(),
            );
        }
        let exit = workload.as_mut().and_then(|workload| command::end(workload, ended));
        let usage = workload.as_ref().filter(|_| ended == Ended::ByItself).and_then(Workload::usage);
        let accounted = match plan.observed.kind {
            TargetKind::Command => usage.and_then(|usage| of_command(plan, &usage, late_accounts.as_ref())),
            _ => accounted,
        };
        let lost = summary.account.lost();
        let cpu_time = clock.zip(accounted).map(|(clock, accounted)| clock.against(accounted, lost));
        let unfollowed = opened.observer.missed();
        drop(base);
        remarks.extend(opened.observer.remove());
        Ok(Summary { exit, cpu_time, unwound, pauses, unfollowed, remarks, ..summary })
    }
}

fn limit_reached(bytes: u64) -> String {
    format!("the size limit of {} KiB was reached: the recording ended there", bytes.div_ceil(1024))
}

/// The CPU time of a command while its events were on. `late`: its accounts when they came on.
fn of_command(plan: &RecordingPlan, usage: &Usage, late: Option<&CpuAccounts>) -> Option<Account> {
    let all = Account::of_command(usage);
    if plan.options.delay.is_none() { Some(all) } else { late?.rest_of(all) }
}
