//! What to count, and the counters that are opened for it.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use kymo_perf::cgroup::{self, OwnCgroup};
use kymo_perf::count::aggregate::{self, By, CountRow, Topology};
use kymo_perf::count::cgroup_counters::{self, CgroupCounters};
use kymo_perf::count::kernel_stats::KernelStats;
use kymo_perf::count::{Binding, Cell, EventCounters};
use kymo_perf::evlist::{Note, Request, Targets};
use kymo_perf::explain;
use kymo_perf::proc;
use kymo_perf::sys::attr_zeroed;
use kymo_record::children_note;

use super::counting::Counting;
use super::events::Event;
use super::say;

/// `chosen`: the events that are opened together, by index; a leader is among them.
fn request(event: &Event, index: usize, chosen: &[usize], single: bool) -> Request {
    let selected = &event.selected;
    let mut attr = selected.attr.to_raw();
    if attr.config3 == 0 {
        attr.size = attr_zeroed().size;
    }
    Request {
        leader: (selected.leader != index)
            .then(|| chosen.iter().position(|&other| other == selected.leader))
            .flatten(),
        weak: selected.weak,
        cpus: selected.cpus.clone(),
        precise_max: selected.precise_max,
        filter: selected.tracepoint_filter(),
        alone: single,
        ..Request::new(selected.name.clone(), attr)
    }
}

/// Events that are bound alike, and their counters.
pub(super) struct Part {
    /// Their indices.
    pub(super) events: Vec<usize>,
    pub(super) counters: EventCounters,
}

/// Events that are counted without events at switches.
pub(super) struct Free {
    /// Their indices.
    pub(super) events: Vec<usize>,
    /// `None` if it failed: they are not counted then.
    pub(super) accounted: Option<CgroupCounters>,
}

/// The counters of a run.
pub(super) struct Open {
    pub(super) parts: Vec<Part>,
    /// Before the cgroup, which can go when it has.
    pub(super) free: Option<Free>,
    pub(super) cgroup: Option<OwnCgroup>,
    /// Whose accounts are read.
    pub(super) accounts: Whose,
}

/// Whose accounts are read.
pub(super) enum Whose {
    Cgroup(PathBuf),
    Processes(Vec<i32>),
    Machine,
    Nobody,
}

impl Whose {
    pub(super) fn read(&self) -> KernelStats {
        let proc = Path::new("/proc");
        match self {
            Whose::Cgroup(path) => KernelStats::of_cgroup(path),
            Whose::Processes(pids) => {
                let each = pids.iter().map(|&pid| KernelStats::of_process(proc, pid));
                each.fold(KernelStats::default(), |sum, one| sum.plus(&one))
            }
            Whose::Machine => KernelStats::of_machine(proc),
            Whose::Nobody => KernelStats::default(),
        }
    }
}

impl Open {
    pub(super) fn enable(&mut self) -> anyhow::Result<()> {
        let accounted = self.free.as_mut().and_then(|free| free.accounted.as_mut());
        let on = accounted.map_or(Ok(()), CgroupCounters::enable);
        on.and_then(|()| self.parts.iter().try_for_each(|part| part.counters.enable()))
            .context("failed to enable the events")
    }

    /// The command has executed.
    pub(super) fn begun(&mut self) {
        let Some(free) = &mut self.free else { return };
        if let Some(Err(error)) = free.accounted.as_ref().map(CgroupCounters::begun) {
            say(&format!(
                "the kernel's programs did not see the command begin ({error}), so nothing is counted by them; count with --source perf"
            ));
            free.accounted = None;
        }
    }

    /// Whether events are counted on CPUs, so that they end with a CPU that goes offline.
    pub(super) fn belongs_to_cpus(&self) -> bool {
        let counted_at_hits = self
            .free
            .as_ref()
            .and_then(|free| free.accounted.as_ref())
            .is_some_and(|free| free.descriptors() > 0);
        counted_at_hits || self.parts.iter().any(|part| part.counters.belongs_to_cpus())
    }

    /// Goes on counting on a CPU that went offline and came back. Whether that had ended anything.
    pub(super) fn reopen(&self, cpu: u32) -> Result<bool, String> {
        let number = i32::try_from(cpu).map_err(|error| error.to_string())?;
        let accounted = self.free.as_ref().and_then(|free| free.accounted.as_ref());
        let accounted = accounted.map(|accounted| accounted.reopen(number));
        let parts = self.parts.iter().map(|part| part.counters.reopen(number));
        let results: Vec<_> = accounted.into_iter().chain(parts).collect();
        results
            .into_iter()
            .try_fold(false, |any, one| one.map(|one| any || one))
            .map_err(|error| error.to_string())
    }

    pub(super) fn disable(&self) -> anyhow::Result<()> {
        self.parts.iter().try_for_each(|part| part.counters.disable()).context("failed to disable the events")
    }

    pub(super) fn rows(
        &self,
        count: usize,
        by: By,
        topology: &Topology,
    ) -> anyhow::Result<Vec<Option<Vec<CountRow>>>> {
        let mut rows = vec![None; count];
        for part in &self.parts {
            let reading = part.counters.read().context("failed to read the counters")?;
            for (&event, cells) in part.events.iter().zip(reading) {
                rows[event] = cells.map(|cells| aggregate::rows(&cells, by, topology));
            }
        }
        if let Some(free) = &self.free {
            let cells = free.accounted.as_ref().map(CgroupCounters::read).unwrap_or_default();
            let cells = cells.iter().map(Vec::as_slice).chain(std::iter::repeat(&[] as &[Cell]));
            for (&event, cells) in free.events.iter().zip(cells) {
                rows[event] = Some(aggregate::rows(cells, by, topology));
            }
        }
        Ok(rows)
    }
}

impl Counting<'_> {
    fn tasks(&self) -> anyhow::Result<Vec<i32>> {
        let mut tasks = Vec::new();
        for &pid in &self.args.pids {
            let found = proc::tasks(pid);
            tasks.extend(found.map_err(|_| {
                anyhow::anyhow!("there is no process {pid} (any more); `ps -p {pid}` would show it")
            })?);
        }
        for pid in self.children() {
            tasks.extend(proc::tasks(pid).unwrap_or_default());
        }
        for &tid in &self.args.tids {
            if proc::process_of(tid).is_none() {
                bail!("there is no thread {tid} (any more); `ps -Lp PID` lists the threads of a process");
            }
            tasks.push(tid);
        }
        tasks.sort_unstable();
        tasks.dedup();
        Ok(tasks)
    }

    /// What the processes have started before, if that is counted.
    fn children(&self) -> Vec<i32> {
        let args = self.args;
        if args.no_children || args.no_inherit || args.per_thread {
            return Vec::new();
        }
        proc::descendants(&args.pids)
    }

    /// Opens the counters of a run; `child` is the command that waits for its exec.
    pub(super) fn open(&self, child: Option<i32>) -> anyhow::Result<Open> {
        let args = self.args;
        let follow = !args.no_inherit;
        let own_tasks = !args.pids.is_empty() || !args.tids.is_empty();
        if own_tasks {
            let binding = Binding::Tasks { inherit: follow, on_exec: false };
            let mut processes: Vec<i32> = args.pids.clone();
            let children = self.children();
            children_note(args.pids.len(), children.len(), "counted").iter().for_each(|note| say(note));
            processes.extend(children);
            processes.extend(args.tids.iter().filter_map(|&tid| proc::process_of(tid)));
            let parts = self.parts(&self.every(), |_| Ok((Targets::per_thread(self.tasks()?), binding)))?;
            return Ok(Open { parts, free: None, cgroup: None, accounts: Whose::Processes(processes) });
        }
        if args.in_cgroups() {
            let mut named = None;
            let parts = self.parts(&self.every(), |name| match name {
                Some(name) => {
                    let found = cgroup::existing(name);
                    let (path, directory) = found.map_err(|error| {
                        anyhow::anyhow!("{error}; a cgroup is named by its path below the place where the hierarchy is mounted")
                    })?;
                    cgroup::takes_events(self.kernel.as_ref(), &path, directory.as_fd())?;
                    named.get_or_insert(path);
                    Ok((Targets::cgroup(directory, &self.cpus), Binding::Cgroup { child: None }))
                }
                None => Ok((Targets::system(&self.cpus), Binding::Cpus)),
            })?;
            let one = args.cgroups.len() + args.for_each_cgroup.len() == 1;
            let accounts = named.filter(|_| one).map_or(Whose::Nobody, Whose::Cgroup);
            return Ok(Open { parts, free: None, cgroup: None, accounts });
        }
        if args.wide() {
            let everyone = || -> anyhow::Result<Vec<i32>> {
                let processes = proc::processes().context("failed to list /proc")?;
                Ok(processes.iter().flat_map(|&pid| proc::tasks(pid).unwrap_or_default()).collect())
            };
            let parts = self.parts(&self.every(), |_| {
                if args.per_thread {
                    let binding = Binding::Tasks { inherit: follow, on_exec: false };
                    return Ok((Targets::per_thread(everyone()?), binding));
                }
                Ok((Targets::system(&self.cpus), Binding::Cpus))
            })?;
            return Ok(Open { parts, free: None, cgroup: None, accounts: Whose::Machine });
        }
        let child = child.context("nothing to count in")?;
        self.of_command(child, follow)
    }

    /// A command: in a cgroup of its own where that is permitted, because then its threads and children cost nothing; else by inheritance.
    fn of_command(&self, child: i32, follow: bool) -> anyhow::Result<Open> {
        let args = self.args;
        let by_cpu = !matches!(args.by(), By::All);
        let asked = args.scope.as_deref();
        let mut why_not = "children are not to be followed".to_owned();
        if asked != Some("inherit") && follow && !self.events.is_empty() {
            match self.in_own_cgroup(child) {
                Ok(open) => return Ok(open),
                Err(error) => why_not = kymo_cli::exit::with_causes(&error),
            }
            if asked == Some("cgroup") {
                bail!("--scope cgroup is not possible here: {why_not}");
            }
            if args.verbose > 0 {
                say(&format!("not in a cgroup of its own: {why_not}"));
            }
        }
        if by_cpu {
            bail!("sums by CPU of a command need a cgroup of its own, on each CPU: {why_not}");
        }
        let on_exec = args.delay.unwrap_or(0) == 0;
        let binding = Binding::Tasks { inherit: follow, on_exec };
        let parts = self.parts(&self.every(), |_| Ok((Targets::per_thread(vec![child]), binding)))?;
        Ok(Open { parts, free: None, cgroup: None, accounts: Whose::Nobody })
    }

    fn in_own_cgroup(&self, child: i32) -> anyhow::Result<Open> {
        let cgroup = OwnCgroup::create()?;
        cgroup.takes_events(self.kernel.as_ref())?;
        cgroup.account_pressure(self.args.pressure);
        let delayed = self.args.delay.unwrap_or(0) != 0;
        let free = self.free(&cgroup, child);
        let rest: Vec<usize> = match &free {
            Some(free) => self.every().into_iter().filter(|event| !free.events.contains(event)).collect(),
            None => self.every(),
        };
        let binding = Binding::Cgroup { child: (!delayed).then_some(child) };
        let parts = self.parts(&rest, |_| Ok((Targets::cgroup(cgroup.fd(), &self.cpus), binding)))?;
        cgroup.add(child)?;
        let accounts = Whose::Cgroup(cgroup.path().to_owned());
        Ok(Open { parts, free, cgroup: Some(cgroup), accounts })
    }

    /// Counting that costs nothing at a switch, for those events that permit it, where the kernel does.
    fn free(&self, cgroup: &OwnCgroup, child: i32) -> Option<Free> {
        let args = self.args;
        let delayed = args.delay.unwrap_or(0) != 0;
        if args.source == "perf" || delayed || args.control.is_some() || !matches!(args.by(), By::All) {
            return None;
        }
        let every = self.every();
        let requests: Vec<Request> =
            every.iter().map(|&index| request(&self.events[index], index, &every, false)).collect();
        let can = cgroup_counters::which(&requests);
        let events: Vec<usize> = every.into_iter().filter(|&index| can[index]).collect();
        if events.is_empty() {
            return None;
        }
        let requests: Vec<Request> = events.iter().map(|&index| requests[index].clone()).collect();
        match CgroupCounters::open(&self.kernel, &requests, cgroup, child, &self.cpus) {
            Ok(accounted) => Some(Free { events, accounted: Some(accounted) }),
            Err(error) => {
                if args.verbose > 0 {
                    say(&format!("counting all by events of the cgroup: {error}"));
                }
                None
            }
        }
    }

    /// The indices of all events.
    fn every(&self) -> Vec<usize> {
        (0..self.events.len()).collect()
    }

    /// Opens the chosen events, those of the same cgroup together; `bind` says where to those of a cgroup.
    fn parts(
        &self,
        chosen: &[usize],
        mut bind: impl FnMut(Option<&str>) -> anyhow::Result<(Targets, Binding)>,
    ) -> anyhow::Result<Vec<Part>> {
        let mut parts = Vec::new();
        for chosen in chosen.chunk_by(|&a, &b| self.events[a].cgroup == self.events[b].cgroup) {
            let name = self.events[chosen[0]].cgroup.as_deref();
            let single = self.args.control.is_some();
            let requests: Vec<Request> =
                chosen.iter().map(|&index| request(&self.events[index], index, chosen, single)).collect();
            let (targets, binding) = bind(name)?;
            let descriptors = requests.len() * targets.cpus.len() * targets.tasks.len();
            let opened = EventCounters::open(&self.kernel, requests.clone(), targets, binding);
            let explained = |error| explain::explain_list(&error, &requests, Some(descriptors as u64));
            let counters = opened.map_err(|error| anyhow::anyhow!("{}", explained(error)))?;
            for (at, &index) in chosen.iter().enumerate() {
                if let Some(request) = counters.request(at) {
                    self.names.borrow_mut()[index].clone_from(&request.name);
                }
            }
            // What the name says needs no words.
            let in_name = |note: &Note| matches!(note, Note::UserOnly(_));
            let notable = |note: &&Note| note.is_notable() && !in_name(note);
            for note in counters.notes().iter().filter(|note| notable(note) || self.args.verbose > 0) {
                say(&note.to_string());
            }
            parts.push(Part { events: chosen.to_vec(), counters });
        }
        Ok(parts)
    }

    /// What was decided.
    pub(super) fn tell(&self, open: &Open) {
        match &open.cgroup {
            Some(cgroup) => {
                say(&format!("counting in the command's own cgroup {}, on each CPU", cgroup.path().display()))
            }
            None => say("counting by events of tasks or CPUs"),
        }
        let free = open.free.as_ref().and_then(|free| free.accounted.as_ref());
        let descriptors: usize = open.parts.iter().map(|part| part.counters.descriptors()).sum();
        say(&format!("{} event descriptors", descriptors + free.map_or(0, CgroupCounters::descriptors)));
        if let Some(free) = &open.free {
            let names: Vec<&str> =
                free.events.iter().map(|&index| self.events[index].selected.name.as_str()).collect();
            say(&format!(
                "read from the kernel's accounts, at no cost per switch: {} (--source perf counts them by events)",
                names.join(", ")
            ));
        }
        let at_exec = open.cgroup.is_some() && self.args.delay.unwrap_or(0) == 0;
        for part in &open.parts {
            let some = (0..part.events.len()).any(|at| part.counters.has(at));
            if some && at_exec && !part.counters.knows_before_exec() {
                say(
                    "what the command's process did before its exec is counted, too: this kernel or these events do not tell it apart",
                );
            }
            let absent = part.events.iter().enumerate().filter(|(at, _)| !part.counters.has(*at));
            for (_, &index) in absent {
                say(&format!("{} is not supported here", self.events[index].selected.name));
            }
        }
    }
}
