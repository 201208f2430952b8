//! From options to the events and rings that will be opened. Everything is decided here, and can be
//! printed before anything happens.
mod printed;

use crate::attr::{self, Common};
use crate::error::PlanError;
use crate::machine::read_number;
use crate::memory_limit;
use crate::options::{CallGraph, Options, Overload, Rate, RecordingClock};
use crate::python;
use crate::ring_size;
use crate::scope::Scope;
use crate::scope_choice::{self, Choice, Facts, Whom};
use crate::stack_choice;
use crate::targets::{self, Observed, TargetKind};
use kymo_perf::bpf::{Follower, PythonWalker};
use kymo_perf::cgroup;
use kymo_perf::evlist::{self, Targets};
use kymo_perf::sys::{self, Perf};
use kymo_symbols::Arch;
use std::collections::HashSet;
use std::ffi::OsString;
use std::fmt;

/// Everything resolved: what will be opened, for whom, into what.
#[derive(Clone, Debug)]
pub struct RecordingPlan {
    /// The events and targets to open, for the scope. The task of a command is not known yet: it
    /// stands as 0.
    pub open: evlist::EvlistPlan,
    /// How events are bound to whom they observe.
    pub scope: Scope,
    /// The scopes that were weighed, the cheapest first and the impossible last; empty if the
    /// target leaves no choice.
    pub scopes: Vec<Choice>,
    /// Children and new threads are followed.
    pub follow: bool,
    /// The tracepoints among the events.
    pub tracepoints: Vec<kymo_perf::tracefs::Tracepoint>,
    /// The command to start.
    pub command: Vec<OsString>,
    /// The command is what is observed.
    pub observe_command: bool,
    /// Processes whose end ends the recording.
    pub until: Vec<i32>,
    /// Pages of each ring.
    pub ring_pages: usize,
    /// Pages of the rings beside those that keep the newest records.
    pub(crate) side_pages: usize,
    /// The size may shrink.
    pub ring_may_shrink: bool,
    /// As asked for.
    pub options: Options,
    /// Remarks on how it was resolved, for the user.
    pub notes: Vec<String>,
    /// Remarks on what opening changed.
    pub late_notes: Vec<String>,
    /// The event that takes what is told of Python's frames, if they are walked.
    pub(crate) python_event: Option<usize>,
    /// The event that takes records of waits, if they are traced.
    pub(crate) wait_event: Option<usize>,
    /// The event that takes records of futexes, if they are traced.
    pub(crate) lock_event: Option<usize>,
    /// Why they cannot be traced after all.
    pub(crate) lock_refusal: Option<String>,
    /// Why the kernel does not let them be walked after all.
    pub(crate) python_refusal: Option<String>,
    /// Whom to observe, whatever the scope.
    pub(crate) observed: Observed,
    /// How often all threads were opened again because new ones had come.
    attempts: u32,
}

/// How often it is tried to open all threads of processes before new ones come.
const ATTEMPTS: u32 = 3;

/// Whether tracking needs an event of its own: when everything is observed (so that nothing is
/// missed while what runs already is listed), when sampling is delayed, when the first event is not
/// opened everywhere, when its ring forgets, and when programs write events (so that threads and
/// mappings are recorded from before the first of these to behind the last).
pub fn tracking_event(options: &Options, system: bool) -> bool {
    let keeps_newest = options.events.iter().any(|event| options.keeps_newest(event));
    let partly = options.events.first().is_some_and(|event| event.cpus.is_some());
    let samples = !options.events.is_empty();
    system || options.delay.is_some() || partly || keeps_newest || options.user_rings || !samples
}

impl RecordingPlan {
    /// Resolves the options on this machine as it is now.
    ///
    /// # Errors
    /// [`PlanError`] names what is not there.
    pub fn resolve(mut options: Options) -> Result<RecordingPlan, PlanError> {
        let mut notes = Vec::new();
        let spec = options.targets.clone();
        let observed = targets::resolve(&spec, &mut notes)?;
        if observed.kind != TargetKind::Cpus
            && let Some(event) = options.events.iter().find(|event| event.system_wide_only)
        {
            return Err(PlanError::SystemWideOnly(event.name.clone()));
        }
        notes.extend(memory_limit::bound(&mut options, cgroup::memory_limit()));
        let newest = options.events.iter().find(|event| options.keeps_newest(event));
        let oldest = options.events.iter().find(|event| !options.keeps_newest(event));
        if let (Some(newest), Some(oldest)) = (newest, oldest) {
            return Err(PlanError::TwoKinds { newest: newest.name.clone(), oldest: oldest.name.clone() });
        }
        options.rate = clamp(&options, &mut notes)?;
        if options.waits.is_some()
            && let Err(reason) = Follower::available()
        {
            options.waits = None;
            options.switch_events = true;
            let hint = reason.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
            notes.push(only_switches(&format!("{reason}{hint}")));
        }
        if options.locks.is_some()
            && let Err(reason) = Follower::available()
        {
            let hint = reason.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
            return Err(PlanError::Locks(format!("{reason}{hint}")));
        }
        if options.scope == Some(Scope::ThreadCpu) {
            // That is what it means.
            options.inherit.get_or_insert(false);
        }
        let per_thread = spec.per_thread && observed.kind != TargetKind::Cpus;
        let follow = options.inherit.unwrap_or(spec.tids.is_empty()) && !per_thread;
        let whom = Whom {
            command: observed.kind == TargetKind::Command,
            tasks: observed.tasks.len(),
            follow,
            python: options.python && python::runs_in(&observed.processes),
        };
        let (scope, scopes) = match observed.kind {
            _ if per_thread => (Scope::PerThread, Vec::new()),
            TargetKind::Cpus => (Scope::Cpus, Vec::new()),
            TargetKind::Tasks | TargetKind::Command => {
                let scopes = scope_choice::rank(&options, whom, &Facts::here());
                (scope_choice::choose(&scopes, options.scope)?, scopes)
            }
        };
        let refused = scopes.iter().find(|choice| choice.scope == Scope::Filtered);
        if let Some(Err(reason)) = refused.map(|choice| &choice.verdict) {
            if options.waits.is_some() {
                return Err(PlanError::Waits(reason.clone()));
            } else if options.locks.is_some() {
                return Err(PlanError::Locks(reason.clone()));
            }
        }
        if scopes.is_empty() && options.scope.is_some() {
            notes.push(format!("--scope is ignored: {}", scope_choice::only(scope)));
        }
        let ring_may_shrink = options.ring_pages.is_none();
        let ring_pages = options.ring_pages.unwrap_or_else(|| ring_size::default_pages(&options));
        if options.overload == Overload::Pause {
            if observed.kind == TargetKind::Cpus {
                return Err(PlanError::PauseOfAll);
            }
            // Pauses are marked by a clock that the recorder can read, too.
            options.clock.get_or_insert(RecordingClock::Monotonic);
        }
        if newest.is_none() {
            notes.extend(ring_size::few_samples(ring_pages, options.call_graph));
        }
        stack_choice::resolve(&mut options, ring_pages);
        let mut plan = RecordingPlan {
            open: evlist::EvlistPlan { events: Vec::new(), targets: Targets::system(&[]) },
            scope,
            scopes,
            follow,
            tracepoints: options.events.iter().filter_map(|event| event.tracepoint.clone()).collect(),
            command: spec.command,
            observe_command: observed.kind == TargetKind::Command,
            until: observed.until.clone(),
            ring_pages,
            side_pages: evlist::SIDE_RING_PAGES,
            ring_may_shrink,
            options,
            notes,
            late_notes: Vec::new(),
            python_event: None,
            wait_event: None,
            lock_event: None,
            lock_refusal: None,
            python_refusal: None,
            observed,
            attempts: 0,
        };
        plan.set_scope(scope);
        Ok(plan)
    }

    /// Builds what to open for a scope.
    pub(crate) fn set_scope(&mut self, scope: Scope) {
        self.scope = scope;
        let (options, observed) = (&self.options, &self.observed);
        let with_tracker = tracking_event(options, self.system());
        let starts_on_exec = self.starts_on_exec();
        let python = self.walks_python();
        let (waits, locks) = (options.waits.is_some(), options.locks.is_some());
        let common = Common {
            several: options.events.len() > 1 || with_tracker || python || waits || locks,
            on_exec: starts_on_exec && options.delay.is_none(),
            system: self.system(),
            inherit: self.follow && scope == Scope::Inherit,
            per_cpu: scope.is_per_cpu(),
            rate: options.rate,
            watermark_bytes: ring_size::watermark_bytes(self.drained_pages()),
        };
        let mut events: Vec<_> = (options.events.iter().enumerate())
            .map(|(index, event)| attr::request(event, index, options, &common, index == 0 && !with_tracker))
            .collect();
        if with_tracker {
            events.push(attr::tracker(options, &Common { on_exec: starts_on_exec, ..common }));
        }
        self.python_event = python.then_some(events.len());
        if python {
            events.push(attr::python(options, &common));
        }
        self.wait_event = waits.then_some(events.len());
        if waits {
            events.push(attr::waits(options, &common));
        }
        self.lock_event = locks.then_some(events.len());
        if locks {
            events.push(attr::locks(options, &common));
        }
        let tasks = || observed.tasks.clone();
        let mut targets = match scope {
            Scope::Cpus | Scope::Cgroup | Scope::Filtered => Targets::system(&observed.cpus),
            Scope::PerThread => Targets::per_thread(tasks()),
            Scope::Inherit | Scope::ThreadCpu => Targets::tasks(tasks(), &observed.cpus),
        };
        targets.cgroup.clone_from(&observed.cgroup);
        if with_tracker && scope == Scope::Cpus && !observed.cpus.is_empty() {
            targets.tracked_cpus = sys::online_cpus().iter().map(|&cpu| cpu as i32).collect();
            targets.tracked_cpus.retain(|cpu| !targets.cpus.contains(cpu));
        }
        targets.ignore_missing =
            !scope.is_per_cpu() && !self.observe_command && options.targets.tids.is_empty();
        self.open = evlist::EvlistPlan { events, targets };
    }

    /// Whether Python's frames are walked: samples are taken of CPUs, stacks are unwound while
    /// recording, and programs may be loaded.
    fn walks_python(&self) -> bool {
        self.options.python
            && self.scope.is_per_cpu()
            && matches!(self.options.call_graph, CallGraph::Dwarf { .. })
            && !self.options.raw_stacks
            && !self.options.no_samples
            && !self.keeps_newest()
            && self.options.events.iter().any(|event| attr::takes_program(&event.attr.to_raw()))
            && PythonWalker::knows_machine()
            && Follower::available().is_ok()
    }

    /// Python's frames cannot be walked after all, which matters only if there are any.
    pub(crate) fn give_up_python(&mut self, reason: impl fmt::Display) {
        self.python_refusal = Some(reason.to_string());
        self.options.python = false;
        self.set_scope(self.scope);
    }

    /// Waits cannot be traced after all: context switches are recorded.
    pub(crate) fn give_up_waits(&mut self, reason: impl fmt::Display) {
        self.options.waits = None;
        self.options.switch_events = true;
        self.late_notes.push(only_switches(&reason.to_string()));
        let filtered = self.scope == Scope::Filtered;
        self.set_scope(if filtered { Scope::Inherit } else { self.scope });
    }

    /// Whether there is a scope to fall back to.
    pub(crate) fn has_other_scope(&self) -> bool {
        let others = self.scopes.iter().filter(|choice| choice.scope != self.scope);
        self.options.scope.is_none() && others.clone().any(|choice| choice.verdict.is_ok())
    }

    /// The scope is not possible after all: the next best takes its place.
    ///
    /// # Errors
    /// [`PlanError::Scope`] if it was asked for or there is no other.
    pub(crate) fn give_up_scope(&mut self, reason: String) -> Result<(), PlanError> {
        let gone = self.scope;
        if !self.has_other_scope() {
            return Err(PlanError::Scope { scope: gone, reason });
        }
        if let Some(choice) = self.scopes.iter_mut().find(|choice| choice.scope == gone) {
            choice.verdict = Err(reason.clone());
        }
        let next = self.scopes.iter().find(|choice| choice.verdict.is_ok());
        let next = next.map_or(Scope::Inherit, |choice| choice.scope);
        self.late_notes.push(format!("no {} scope, using {}: {reason}", gone.name(), next.name()));
        self.set_scope(next);
        Ok(())
    }

    /// Whether the processes have made threads while their threads were opened one by one. A thread
    /// is inherited if its maker was open by then, and missed otherwise, and nobody can tell which.
    /// So the list is made anew and all is opened again, a few times; then the user is told.
    pub(crate) fn tasks_have_come(&mut self) -> bool {
        if self.scope != Scope::Inherit || self.observed.processes.is_empty() {
            return false;
        }
        let (fresh, processes) = targets::tasks_again(&self.observed, &self.options.targets);
        let known: HashSet<i32> = self.observed.tasks.iter().copied().collect();
        let new = fresh.iter().filter(|task| !known.contains(task)).count();
        if new == 0 {
            return false;
        }
        if self.attempts >= ATTEMPTS {
            self.late_notes.push(format!(
                "{new} threads began while the others were opened: some may be missed; --scope filtered (as root) misses none"
            ));
            return false;
        }
        self.attempts += 1;
        (self.observed.tasks, self.observed.processes) = (fresh, processes);
        self.set_scope(self.scope);
        true
    }

    /// The command has this process id now.
    pub(crate) fn set_command(&mut self, pid: i32) {
        self.observed.tasks = vec![pid];
        if !self.scope.is_per_cpu() {
            self.open.targets.tasks = vec![pid];
        }
    }

    /// Whether CPUs are observed, not tasks.
    pub fn system(&self) -> bool {
        self.scope == Scope::Cpus
    }

    /// Whether the kernel turns the events on when the command is executed: only events of tasks
    /// know of that.
    pub fn starts_on_exec(&self) -> bool {
        self.observe_command && !self.scope.is_per_cpu()
    }

    /// How many descriptors opening will take.
    pub fn descriptors(&self) -> u64 {
        let targets = &self.open.targets;
        let tracked = targets.tracked_cpus.len();
        (self.open.events.len() * targets.tasks.len() * targets.cpus.len() + tracked) as u64
    }

    /// Whether samples come with copies of stacks.
    pub(crate) fn copies_stacks(&self) -> bool {
        self.open.events.iter().any(|event| event.attr.sample_type & Perf::SAMPLE_STACK_USER != 0)
    }

    /// Whether stacks are unwound while recording; on machines whose stacks are not unwound they
    /// are kept.
    pub fn reduces(&self) -> bool {
        let unwinds = !self.options.raw_stacks
            && self.options.fields.user_registers == 0
            && !self.keeps_newest()
            && Arch::NATIVE.is_some();
        // Records of waits and futexes are completed there.
        unwinds && self.copies_stacks() || self.wait_event.is_some() || self.lock_event.is_some()
    }

    /// Whether stacks are copied as often as an event happens, which can be a gigabyte per second
    /// at once.
    pub(crate) fn copies_stacks_by_count(&self) -> bool {
        let by_count = |event: &evlist::Request| {
            event.attr.sample_type & Perf::SAMPLE_STACK_USER != 0 && event.attr.freq() == 0
        };
        self.open.events.iter().any(by_count)
    }

    /// Whether the rings of samples keep the newest records: the recording is a flight recorder's.
    pub fn keeps_newest(&self) -> bool {
        self.options.events.iter().any(|event| self.options.keeps_newest(event))
    }

    /// Pages of the rings that are drained.
    pub(crate) fn drained_pages(&self) -> usize {
        if self.keeps_newest() { self.side_pages } else { self.ring_pages }
    }

    /// Uses smaller rings, and wakes the drains accordingly earlier.
    pub(crate) fn set_ring_pages(&mut self, pages: usize) {
        self.ring_pages = pages;
        self.side_pages = pages.min(evlist::SIDE_RING_PAGES);
        let watermark = ring_size::watermark_bytes(self.drained_pages());
        let side_watermark = ring_size::watermark_bytes(self.side_pages);
        let by_bytes =
            |event: &&mut evlist::Request| event.attr.write_backward() == 0 && event.attr.watermark() == 1;
        for event in self.open.events.iter_mut().filter(by_bytes) {
            event.attr.wakeup_watermark = if event.immediate { side_watermark } else { watermark };
        }
    }
}

/// What a recording without traced waits tells of them.
fn only_switches(reason: &str) -> String {
    format!(
        "--wall records context switches only, so that it is known how long threads wait, but not for what, nor who wakes them: {reason}"
    )
}

fn clamp(options: &Options, notes: &mut Vec<String>) -> Result<Rate, PlanError> {
    let rate = options.rate;
    let Some(max) = read_number("/proc/sys/kernel/perf_event_max_sample_rate") else { return Ok(rate) };
    Ok(match rate {
        // "max" is not worth a remark.
        Rate::Frequency(u64::MAX) => Rate::Frequency(max),
        Rate::Frequency(asked) | Rate::Default(asked) if asked > max && options.strict_frequency => {
            return Err(PlanError::Frequency { asked, max });
        }
        Rate::Frequency(freq) | Rate::Default(freq) if freq > max => {
            notes.push(format!(
                "{freq} samples per second are more than kernel.perf_event_max_sample_rate permits: recording {max}"
            ));
            if matches!(rate, Rate::Default(_)) { Rate::Default(max) } else { Rate::Frequency(max) }
        }
        rate => rate,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{CallGraph, RecordingClock, TargetSpec};
    use crate::output::Output;
    use kymo_perf::machine::Machine;
    use kymo_perf::selector;

    fn options(selector: &str, targets: TargetSpec) -> Options {
        let groups = selector::parse(selector).unwrap();
        let events = selector::resolve(&groups, &Machine::here()).unwrap();
        // Whatever this machine permits.
        Options {
            scope: Some(Scope::Inherit),
            python: false,
            ..Options::new(events, targets, Output::Stdout)
        }
    }

    fn command() -> TargetSpec {
        TargetSpec { command: vec!["true".into()], ..TargetSpec::default() }
    }

    fn own_pid() -> i32 {
        std::process::id() as i32
    }

    /// Checks a plain command: what perf 6.1 puts into the attr, and that the first event tracks.
    #[test]
    fn a_command() {
        let asked = Options { call_graph: CallGraph::FramePointers, ..options("cpu-clock", command()) };
        let plan = RecordingPlan::resolve(asked).unwrap();
        let [event] = &plan.open.events[..] else { panic!("{plan}") };
        let attr = &event.attr;
        let bits = Perf::SAMPLE_IP
            | Perf::SAMPLE_TID
            | Perf::SAMPLE_TIME
            | Perf::SAMPLE_CALLCHAIN
            | Perf::SAMPLE_PERIOD;
        assert_eq!(attr.sample_type, bits);
        assert_eq!(attr.read_format, Perf::FORMAT_ID | Perf::FORMAT_LOST);
        let set = [
            attr.disabled(),
            attr.inherit(),
            attr.mmap(),
            attr.mmap2(),
            attr.comm(),
            attr.comm_exec(),
            attr.task(),
            attr.freq(),
            attr.enable_on_exec(),
            attr.sample_id_all(),
        ];
        assert_eq!(set, [1; 10]);
        assert_eq!((attr.sample_period, attr.ksymbol(), attr.mmap_data()), (999, 0, 0));
        assert!(plan.observe_command && !plan.system());
    }

    /// Checks that the whole machine has the CPU in samples and a tracking event of its own, which
    /// samples nothing.
    #[test]
    fn the_machine() {
        let targets = TargetSpec { all: true, command: vec!["true".into()], ..TargetSpec::default() };
        let plan = RecordingPlan::resolve(options("cpu-clock", targets)).unwrap();
        let [event, tracker] = &plan.open.events[..] else { panic!("{plan}") };
        assert!(event.attr.sample_type & Perf::SAMPLE_CPU != 0);
        assert!(event.attr.sample_type & tracker.attr.sample_type & Perf::SAMPLE_IDENTIFIER != 0);
        assert_eq!((event.attr.mmap2(), tracker.attr.mmap2(), tracker.attr.ksymbol()), (0, 1, 1));
        assert!(tracker.immediate && plan.system() && !plan.observe_command);
        assert_eq!(event.attr.enable_on_exec(), 0);
    }

    /// Checks which target wins when several are named, and that each one that is ignored gets a
    /// remark.
    #[test]
    fn precedence() {
        let all = TargetSpec {
            pids: vec![own_pid()],
            uid: Some(0),
            all: true,
            cpus: vec![0],
            ..TargetSpec::default()
        };
        let plan = RecordingPlan::resolve(options("cpu-clock", all)).unwrap();
        assert!(plan.open.targets.tasks.contains(&own_pid()));
        assert_eq!(plan.notes.len(), 3, "{:?}", plan.notes);
        assert_eq!(plan.until, [own_pid()]);
        let cpus = TargetSpec { cpus: vec![0], per_thread: true, ..TargetSpec::default() };
        let plan = RecordingPlan::resolve(options("cpu-clock", cpus)).unwrap();
        // --per-thread and the scope that all these tests ask for.
        assert_eq!((plan.open.targets.cpus.as_slice(), plan.notes.len()), (&[0][..], 2));
    }

    /// Checks that children are followed except from single threads, per-thread rings, and when
    /// told not to.
    #[test]
    fn inheritance() {
        let inherit = |targets: TargetSpec, change: Option<bool>, scope| {
            let options = Options { inherit: change, scope, ..options("cpu-clock", targets) };
            RecordingPlan::resolve(options).unwrap().open.events[0].attr.inherit()
        };
        let (copies, one_by_one) = (Some(Scope::Inherit), Some(Scope::ThreadCpu));
        assert_eq!(inherit(command(), None, copies), 1);
        assert_eq!(inherit(command(), None, one_by_one), 0);
        assert_eq!(inherit(command(), Some(false), None), 0);
        assert_eq!(inherit(TargetSpec { per_thread: true, ..command() }, None, None), 0);
        let thread = || TargetSpec { tids: vec![own_pid()], ..TargetSpec::default() };
        assert_eq!(inherit(thread(), None, None), 0);
        assert_eq!(inherit(thread(), Some(true), copies), 1);
        let process = || TargetSpec { pids: vec![own_pid()], ..TargetSpec::default() };
        assert_eq!(inherit(process(), None, copies), 1);
        assert_eq!(inherit(process(), None, one_by_one), 0);
    }

    /// Checks that events of a scope per CPU belong to no task: they are not inherited, start when
    /// told to, and are opened once per CPU.
    #[test]
    fn per_cpu() {
        let mut plan = RecordingPlan::resolve(options("{cpu-clock,page-faults}", command())).unwrap();
        for scope in [Scope::Cgroup, Scope::Filtered] {
            plan.set_scope(scope);
            let attr = &plan.open.events[0].attr;
            assert_eq!((attr.inherit(), attr.enable_on_exec(), attr.disabled(), attr.mmap2()), (0, 0, 1, 1));
            assert_eq!(plan.open.targets.tasks, [sys::ANY]);
            assert_eq!(plan.open.targets.cpus, Targets::system(&sys::online_cpus()).cpus);
            assert!(!plan.starts_on_exec() && !plan.system());
            assert_eq!(plan.descriptors(), 2 * sys::online_cpus().len() as u64);
        }
        plan.set_scope(Scope::Inherit);
        plan.set_command(77);
        assert_eq!(plan.open.targets.tasks, [77]);
        assert!(plan.starts_on_exec());
    }

    /// Checks that scopes of CPUs get an event that takes what is told of Python's frames, where
    /// programs may be loaded and stacks are unwound, and samples that say to which event they
    /// belong.
    #[test]
    fn python() {
        let asked = Options { python: true, ..options("cpu-clock", command()) };
        let mut plan = RecordingPlan::resolve(asked).unwrap();
        assert_eq!(plan.python_event, None, "events of tasks");
        plan.set_scope(Scope::Cgroup);
        let expected = (Follower::available().is_ok() && cfg!(target_arch = "x86_64")).then_some(1);
        assert_eq!(plan.python_event, expected);
        if expected.is_some() {
            let types: Vec<u64> = plan.open.events.iter().map(|event| event.attr.sample_type).collect();
            assert!(types.iter().all(|bits| bits & Perf::SAMPLE_IDENTIFIER != 0) && types.len() == 2);
            plan.give_up_python("a test says so");
            assert_eq!((plan.python_event, plan.open.events.len()), (None, 1));
            assert!(plan.late_notes.is_empty(), "{:?}: there may be no Python", plan.late_notes);
        }
    }

    /// Checks that threads which come while all are opened make it start over, a few times, and
    /// that it then goes on and says so.
    #[test]
    fn threads_come_while_attaching() {
        let targets = TargetSpec { pids: vec![own_pid()], ..TargetSpec::default() };
        let mut plan = RecordingPlan::resolve(options("cpu-clock", targets)).unwrap();
        for _ in 0..ATTEMPTS {
            plan.observed.tasks.retain(|&task| task != own_pid());
            assert!(plan.tasks_have_come());
            assert!(plan.open.targets.tasks.contains(&own_pid()));
        }
        plan.observed.tasks.retain(|&task| task != own_pid());
        assert!(!plan.tasks_have_come());
        assert!(plan.late_notes[0].contains("some may be missed"), "{:?}", plan.late_notes);
    }

    /// Checks that a scope that proves impossible makes way for the next best one, but not if it
    /// was asked for.
    #[test]
    fn giving_up_a_scope() {
        let mut plan =
            RecordingPlan::resolve(Options { scope: None, ..options("cpu-clock", command()) }).unwrap();
        let mut tried = vec![plan.scope];
        while plan.has_other_scope() {
            plan.give_up_scope("a test says so".into()).unwrap();
            tried.push(plan.scope);
        }
        assert_eq!(plan.scope, Scope::Inherit, "what needs no privilege is last: {tried:?}");
        assert_eq!(plan.late_notes.len(), tried.len() - 1);
        assert!(plan.give_up_scope("no".into()).is_err());
        let mut asked = RecordingPlan::resolve(options("cpu-clock", command())).unwrap();
        let error = asked.give_up_scope("a test says so".into()).unwrap_err();
        assert!(error.to_string().contains("--scope inherit is not possible here: a test says so"));
    }

    /// Checks that a group with :S is read as one by its leader, and that its members neither
    /// sample nor start by themselves.
    #[test]
    fn group_read() {
        let plan = RecordingPlan::resolve(options("{cpu-clock,page-faults}:S", command())).unwrap();
        let [leader, member] = &plan.open.events[..] else { panic!("{plan}") };
        assert!(leader.attr.read_format & leader.attr.read_format & Perf::FORMAT_GROUP != 0);
        assert_eq!((leader.attr.sample_period, member.attr.sample_period), (999, 0));
        assert_eq!((leader.attr.disabled(), member.attr.disabled(), member.leader), (1, 0, Some(0)));
        assert_eq!(leader.attr.inherit(), 0);
    }

    /// Checks stack copies, data addresses, a fixed period and a clock.
    #[test]
    fn what_samples_carry() {
        let mut asked = options("cpu-clock", command());
        asked.call_graph = CallGraph::Dwarf { stack_bytes: 4096 };
        asked.data = true;
        asked.rate = Rate::Period(1000);
        asked.clock = RecordingClock::parse("mono");
        let plan = RecordingPlan::resolve(asked).unwrap();
        let attr = &plan.open.events[0].attr;
        let bits = Perf::SAMPLE_REGS_USER | Perf::SAMPLE_STACK_USER | Perf::SAMPLE_ADDR;
        assert_eq!(attr.sample_type & (bits | Perf::SAMPLE_PERIOD), bits);
        assert_eq!((attr.sample_stack_user, attr.exclude_callchain_user(), attr.mmap_data()), (4096, 1, 1));
        assert_eq!((attr.freq(), attr.sample_period, attr.use_clockid(), attr.clockid), (0, 1000, 1, 1));
    }

    /// Checks that what is not there is named.
    #[test]
    fn errors() {
        let error = |targets| RecordingPlan::resolve(options("cpu-clock", targets)).unwrap_err().to_string();
        let (missing, next) = (i32::MAX, "it may have ended; `ps -eL` lists processes and threads");
        assert_eq!(
            error(TargetSpec { pids: vec![missing], ..TargetSpec::default() }),
            format!("there is no process {missing}: {next}")
        );
        assert_eq!(
            error(TargetSpec { tids: vec![missing], ..TargetSpec::default() }),
            format!("there is no thread {missing}: {next}")
        );
        assert!(
            error(TargetSpec { cpus: vec![60_000], ..TargetSpec::default() })
                .starts_with("CPU 60000 is not online")
        );
        assert!(
            error(TargetSpec { uid: Some(u32::MAX - 7), ..TargetSpec::default() })
                .contains("owns no process")
        );
    }

    /// Checks that a rate beyond the kernel's limit is brought down and said, except for "max".
    #[test]
    fn rates() {
        let Some(limit) = read_number("/proc/sys/kernel/perf_event_max_sample_rate") else { return };
        let mut notes = Vec::new();
        let of = |rate, strict_frequency| Options { rate, strict_frequency, ..options("cs", command()) };
        assert_eq!(
            clamp(&of(Rate::Frequency(u64::MAX), false), &mut notes).ok(),
            Some(Rate::Frequency(limit))
        );
        assert!(notes.is_empty());
        assert_eq!(
            clamp(&of(Rate::Frequency(limit + 1), false), &mut notes).ok(),
            Some(Rate::Frequency(limit))
        );
        assert_eq!(notes.len(), 1);
        assert_eq!(clamp(&of(Rate::Period(7), false), &mut notes).ok(), Some(Rate::Period(7)));
        assert!(clamp(&of(Rate::Frequency(limit + 1), true), &mut notes).is_err());
    }
}
