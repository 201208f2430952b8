//! What a scope needs beside its events: a cgroup for the command, or BPF programs that follow
//! tasks. Set up before events are opened; removed on drop.
use crate::attr::takes_program;
use crate::locks::Locks;
use crate::options::Overload;
use crate::plan::RecordingPlan;
use crate::python::Interpreters;
use crate::scope::Scope;
use crate::targets::{self, TargetKind};
use crate::waits::Waits;
use kymo_perf::bpf::{BpfError, Follow, FollowOptions, FollowedBitmap, Follower, PythonWalker};
use kymo_perf::cgroup::{CgroupError, OwnCgroup};
use kymo_perf::evlist::Evlist;
use kymo_perf::proc;
use kymo_perf::sys::Kernel;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Keeps the scope's part of the kernel alive.
#[derive(Debug, Default)]
pub(crate) struct Observer {
    cgroup: Option<OwnCgroup>,
    /// Where the command can be frozen.
    pen: Option<OwnCgroup>,
    follower: Option<Follower>,
    pub(crate) python: Option<Python>,
    pub(crate) waits: Option<Waits>,
    pub(crate) locks: Option<Locks>,
}

/// What walks the frames of Python, and the interpreters whose frames are walked.
#[derive(Debug)]
pub(crate) struct Python {
    pub(crate) walker: Arc<PythonWalker>,
    pub(crate) interpreters: Arc<Interpreters>,
    /// The event that takes what is told.
    event: usize,
    /// For events that have no other program.
    program: Option<OwnedFd>,
}

impl Python {
    fn new(event: usize, filtered: bool) -> Result<Python, BpfError> {
        let walker = PythonWalker::new()?;
        let program = if filtered { None } else { Some(walker.program()?) };
        let walker = Arc::new(walker);
        Ok(Python { walker, interpreters: Arc::default(), event, program })
    }
}

impl Observer {
    /// Sets up what the plan's scope needs and completes the plan's targets. `Err` says why this
    /// scope cannot be had after all.
    pub(crate) fn prepare(kernel: &dyn Kernel, plan: &mut RecordingPlan) -> Result<Observer, String> {
        let mut observer = Observer::default();
        if let Some(event) = plan.python_event {
            match Python::new(event, plan.scope == Scope::Filtered) {
                Ok(python) => observer.python = Some(python),
                Err(error) => plan.give_up_python(error),
            }
        }
        match plan.scope {
            Scope::Cgroup => {
                let cgroup = OwnCgroup::create().map_err(|error| error.to_string())?;
                cgroup.takes_events(kernel).map_err(|error| error.to_string())?;
                for &task in &plan.observed.tasks {
                    cgroup.add(task).map_err(|error| error.to_string())?;
                }
                plan.open.targets.cgroup = Some(cgroup.fd());
                observer.cgroup = Some(cgroup);
            }
            // Also where nothing samples: it tells whose names and mappings are wanted.
            Scope::Filtered => {
                let (observed, options) = (&plan.observed, &plan.options);
                let who = match &observed.tasks[..] {
                    [command] if plan.observe_command => Follow::Command(*command),
                    _ if plan.follow && options.targets.tids.is_empty() => {
                        Follow::Processes(&observed.processes)
                    }
                    tasks => Follow::Threads { ids: tasks, children: plan.follow },
                };
                let python = observer.python.as_ref().map(|python| python.walker.maps());
                let options = FollowOptions { python, ..FollowOptions::default() };
                let by_process = matches!(who, Follow::Processes(_));
                let mut follower = Follower::start_with(who, &options).map_err(|error| error.to_string())?;
                if by_process {
                    follow_new(&mut follower, plan).map_err(|error| error.to_string())?;
                }
                observer.follower = Some(follower);
            }
            Scope::Cpus | Scope::PerThread | Scope::Inherit | Scope::ThreadCpu => {}
        }
        if let Some((event, options)) = plan.wait_event.zip(plan.options.waits.as_ref()) {
            let python = observer.python.as_ref().map(|python| &*python.walker);
            match Waits::start(event, observer.follower.as_ref(), python, options) {
                Ok(waits) => observer.waits = Some(waits),
                Err(error) => {
                    plan.give_up_waits(error);
                    if plan.scope != Scope::Filtered {
                        observer.follower = None;
                    }
                }
            }
        }
        if let Some((event, options)) = plan.lock_event.zip(plan.options.locks.as_ref()) {
            let locks = Locks::start(event, observer.follower.as_ref(), options).map_err(|error| {
                let reason = error.to_string();
                plan.lock_refusal = Some(reason.clone());
                reason
            });
            observer.locks = Some(locks?);
        }
        if plan.options.overload == Overload::Pause && plan.observe_command && observer.cgroup.is_none() {
            observer.pen = pen(&plan.observed.tasks)
                .inspect_err(|error| {
                    tracing::debug!(%error, "the command will be paused by signals");
                })
                .ok();
        }
        Ok(observer)
    }

    /// The cgroup that the command is in, if it is in one of its own.
    pub(crate) fn cgroup(&self) -> Option<&OwnCgroup> {
        self.cgroup.as_ref().or(self.pen.as_ref())
    }

    /// Binds the events that were opened, before any is turned on.
    pub(crate) fn bind(&mut self, events: &Evlist) -> io::Result<()> {
        if let Some(python) = &mut self.python {
            for (cpu, fd) in events.event_fds(python.event) {
                python.walker.tell(cpu.try_into().unwrap_or(0), fd)?;
            }
            if let Some(program) = python.program.take() {
                // Without it, frames of Python are native ones, and nothing else is different.
                let set = events.set_bpf(program.as_fd(), |event| takes_program(&event.request.attr));
                if let Err(error) = set {
                    tracing::debug!(%error, "Python's frames are not walked");
                }
            }
        }
        if let Some(waits) = &self.waits {
            for (cpu, fd) in events.event_fds(waits.event) {
                waits.tracer.write_to(cpu.try_into().unwrap_or(0), fd)?;
            }
        }
        if let Some(locks) = &self.locks {
            for (cpu, fd) in events.event_fds(locks.event) {
                locks.tracer.write_to(cpu.try_into().unwrap_or(0), fd)?;
            }
        }
        let Some(follower) = &mut self.follower else { return Ok(()) };
        if let Some(program) = follower.program() {
            events.set_bpf(program, |event| takes_program(&event.request.attr))?;
        }
        follower.bound();
        Ok(())
    }

    /// Binds the events of a CPU that were opened anew. What [`Evlist::set_bpf`] attached they
    /// have.
    pub(crate) fn bind_cpu(&self, events: &Evlist, cpu: i32) -> io::Result<()> {
        let of_cpu = |event: usize| {
            let mut fds = events.event_fds(event).into_iter();
            fds.find(|(number, _)| *number == cpu).map(|(_, fd)| fd)
        };
        let number = cpu.try_into().unwrap_or(0);
        if let Some(python) = &self.python
            && let Some(fd) = of_cpu(python.event)
        {
            python.walker.tell(number, fd)?;
        }
        if let Some(waits) = &self.waits
            && let Some(fd) = of_cpu(waits.event)
        {
            waits.tracer.write_to(number, fd)?;
        }
        if let Some(locks) = &self.locks
            && let Some(fd) = of_cpu(locks.event)
        {
            locks.tracer.write_to(number, fd)?;
        }
        Ok(())
    }

    /// The processes that are observed now and exist already, without the command's. What the
    /// targets have forked since they were listed is among them: of no such fork is there a record
    /// until tracking is enabled.
    pub(crate) fn processes(&self, plan: &RecordingPlan) -> Vec<i32> {
        let (observed, spec) = (&plan.observed, &plan.options.targets);
        let mut pids = match observed.kind {
            TargetKind::Cpus => return proc::processes().unwrap_or_default(),
            TargetKind::Command => return Vec::new(),
            TargetKind::Tasks => targets::tasks_again(observed, spec).1,
        };
        pids.extend(spec.tids.iter().filter_map(|&tid| proc::process_of(tid)));
        if let Some(follower) = self.follower.as_ref().filter(|_| spec.tids.is_empty()) {
            let followed = follower.followed().unwrap_or_default();
            pids.extend(followed.into_iter().filter_map(|(id, _)| i32::try_from(id).ok()));
        }
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// The processes whose records are wanted; `None` if all are, or the kernel cannot tell.
    pub(crate) fn ever_followed(&self) -> Option<FollowedBitmap> {
        self.follower.as_ref().and_then(Follower::ever)
    }

    /// Tasks that were not followed because the table of followed ones was full.
    pub(crate) fn missed(&self) -> u64 {
        self.follower.as_ref().map_or(0, Follower::missed)
    }

    /// Undoes it all; says what could not be undone.
    pub(crate) fn remove(self) -> Option<String> {
        self.cgroup.or(self.pen).and_then(|cgroup| cgroup.remove().err()).map(|error| error.to_string())
    }
}

/// Follows what the targets have forked since they were listed: what they fork from now on is
/// followed by whom they are.
fn follow_new(follower: &mut Follower, plan: &mut RecordingPlan) -> Result<(), BpfError> {
    // A new one may fork, too, until it is followed itself.
    for _ in 0..FORK_ROUNDS {
        let (tasks, processes) = targets::tasks_again(&plan.observed, &plan.options.targets);
        let known = |pid: &&i32| plan.observed.processes.contains(pid);
        let new: Vec<i32> = processes.iter().filter(|pid| !known(pid)).copied().collect();
        if new.is_empty() {
            break;
        }
        follower.add(Follow::Processes(&new))?;
        (plan.observed.tasks, plan.observed.processes) = (tasks, processes);
    }
    Ok(())
}

/// How often new processes are looked for before the recording begins without the newest.
const FORK_ROUNDS: usize = 8;

/// A cgroup for these tasks, only to hold them.
fn pen(tasks: &[i32]) -> Result<OwnCgroup, CgroupError> {
    let cgroup = OwnCgroup::create()?;
    tasks.iter().try_for_each(|&task| cgroup.add(task))?;
    Ok(cgroup)
}
