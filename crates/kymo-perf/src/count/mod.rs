//! Counting events: totals instead of samples.
//!
//! *You give it* events ([`Request`]s without a sampling period), [`Targets`] and a [`Binding`];
//! *it gives you* counters that can be enabled, read as often as you like, and say of each event
//! how often it happened, where, and for which share of the time the hardware counted it.
//! `aggregate` sums them by CPU, core, socket, thread; `accounting` reads what the kernel counts
//! anyway.
//!
//! ```text
//!  events --probe--> those that this machine has --Evlist--> one read per group, CPU, task --> Reading
//!             |                                                                                   | minus what was before the exec
//!             '--> "not supported"                                            aggregate --> rows: value, enabled, running
//! ```
//!
//! # Invariants
//! - **C1** An event that the machine does not have is `None`, never 0; one that was enabled but
//!   never on the hardware has `running_ns` 0.
//! - **C2** A value is scaled by the sums of times over everything that is added up, as perf does
//!   it, and only where it was not always on the hardware.
//! - **C3** With [`Binding::Cgroup`], counting begins at the exec although the events are on
//!   before: what the waiting child did until then is counted by itself, by events that the kernel
//!   removes at the exec, and taken off.
//! - **C4** Counts never go down between two readings, whatever threads and processes end in
//!   between.
pub mod aggregate;
pub mod cgroup_counters;
pub mod kernel_stats;
pub mod named_metrics;
#[cfg(test)]
mod tests;

pub use kymo_core::context::Count;

use crate::evlist::{self, Evlist, Note, OpenEngine, OpenError, Read, ReopenError, Request, Targets};
use crate::sys::{ANY, EventTarget, Kernel, Perf};
use std::io;
use std::sync::Arc;

/// The count of one event at one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The CPU, or [`ANY`] if the event follows tasks.
    pub cpu: i32,
    /// The task, or [`ANY`] if the event belongs to CPUs.
    pub task: i32,
    /// What was counted there.
    pub count: Count,
}

/// All counts of one moment: for each event in the order of the requests its cells, or `None` if
/// the machine does not have it.
pub(crate) type CounterValues = Vec<Option<Vec<Cell>>>;

/// How events are bound to what is counted, and what makes them start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// Everything that runs on CPUs.
    Cpus,
    /// The cgroup of the targets; `child` is the command that waits in it for its exec, where
    /// counting begins.
    Cgroup {
        /// Its process id.
        child: Option<i32>,
    },
    /// Tasks on whatever CPU they run.
    Tasks {
        /// What they start is counted, too.
        inherit: bool,
        /// The events are enabled by the kernel when the task executes another program.
        on_exec: bool,
    },
}

/// Open counters. Dropping them closes them.
#[derive(Debug)]
pub struct EventCounters {
    list: Option<Evlist>,
    /// Where each request is in the list.
    places: Vec<Option<usize>>,
    before_exec: Option<Evlist>,
    starts_by_itself: bool,
}

/// What makes an event one that the machine does not have, as opposed to one that this user may not
/// count. ENOSYS is no such answer: it is of a filter of system calls, or of a kernel without any
/// event.
fn is_absence(errno: i32) -> bool {
    [libc::EINVAL, libc::ENOENT, libc::EOPNOTSUPP, libc::ENXIO, libc::ENODEV].contains(&errno)
}

impl EventCounters {
    /// Opens what the machine has of the events, disabled.
    ///
    /// # Errors
    /// [`OpenError`] for an event that exists and is refused: for lack of permission, of
    /// descriptors, of debug registers, or because its task is gone.
    pub fn open(
        kernel: &Arc<dyn Kernel>,
        mut events: Vec<Request>,
        targets: Targets,
        binding: Binding,
    ) -> Result<EventCounters, OpenError> {
        let leads = |events: &[Request], index: usize| events.iter().any(|event| event.leader == Some(index));
        for index in 0..events.len() {
            let leader = leads(&events, index);
            prepare(&mut events[index], leader, binding);
        }
        let absent = probe(kernel.as_ref(), &events, &targets)?;
        let mut places = Vec::with_capacity(events.len());
        let mut present: Vec<Request> = Vec::new();
        for (mut event, absent) in events.into_iter().zip(absent) {
            event.leader = event.leader.and_then(|leader| places.get(leader).copied().flatten());
            places.push((!absent).then_some(present.len()));
            if !absent {
                present.push(event);
            }
        }
        let starts_by_itself = matches!(binding, Binding::Tasks { on_exec: true, .. });
        if present.is_empty() {
            return Ok(EventCounters { list: None, places, before_exec: None, starts_by_itself });
        }
        let before = match binding {
            Binding::Cgroup { child: Some(child) } => before_exec(kernel, &present, child),
            _ => None,
        };
        let plan = evlist::EvlistPlan { events: present, targets };
        let list = evlist::open(Arc::clone(kernel), plan, OpenEngine::Auto)?;
        Ok(EventCounters { list: Some(list), places, before_exec: before, starts_by_itself })
    }

    /// Whether the machine has the event of this index.
    pub fn has(&self, event: usize) -> bool {
        self.places.get(event).is_some_and(Option::is_some)
    }

    /// Whether nothing but the exec of the command starts them: enabling is for restarts only.
    pub fn starts_by_itself(&self) -> bool {
        self.starts_by_itself
    }

    /// Whether what the child did before its exec is known (C3).
    pub fn knows_before_exec(&self) -> bool {
        self.before_exec.is_some()
    }

    /// The request as it was opened; `None` for an absent event.
    pub fn request(&self, event: usize) -> Option<&Request> {
        let place = (*self.places.get(event)?)?;
        Some(&self.list.as_ref()?.events.get(place)?.request)
    }

    /// What had to be changed to open them.
    pub fn notes(&self) -> &[Note] {
        self.list.as_ref().map_or(&[], |list| &list.notes)
    }

    /// How many descriptors are open.
    pub fn descriptors(&self) -> usize {
        let lists = self.list.iter().chain(&self.before_exec);
        lists.map(Evlist::descriptors).sum()
    }

    /// Starts counting.
    ///
    /// # Errors
    /// The first refusal, after all were tried.
    pub fn enable(&self) -> io::Result<()> {
        // The child waits meanwhile: what the two count in between is nothing.
        let lists = self.before_exec.iter().chain(&self.list);
        lists.map(|list| list.enable(false)).fold(Ok(()), io::Result::and)
    }

    /// Stops counting.
    ///
    /// # Errors
    /// The first refusal, after all were tried.
    pub fn disable(&self) -> io::Result<()> {
        self.list.as_ref().map_or(Ok(()), Evlist::disable)
    }

    /// Enables or disables the events of this name, one by one. How many there are.
    ///
    /// # Errors
    /// The first refusal, after all were tried.
    pub fn switch(&self, name: &str, on: bool) -> io::Result<usize> {
        self.list.as_ref().map_or(Ok(0), |list| list.switch(name, on))
    }

    /// Whether the events are those of CPUs, so that they end with a CPU that goes offline.
    pub fn belongs_to_cpus(&self) -> bool {
        self.list.as_ref().is_some_and(|list| list.tasks == [ANY])
    }

    /// Goes on counting on a CPU that went offline and came back. Whether that had ended the
    /// counting there.
    ///
    /// # Errors
    /// [`ReopenError`]: nothing more is counted on that CPU.
    pub fn reopen(&self, cpu: i32) -> Result<bool, ReopenError> {
        self.list.as_ref().map_or(Ok(false), |list| list.reopen(cpu, &mut |_| {}))
    }

    /// Reads everything.
    ///
    /// # Errors
    /// The first refusal of the kernel.
    pub fn read(&self) -> io::Result<CounterValues> {
        let Some(list) = &self.list else { return Ok(vec![None; self.places.len()]) };
        let mut cells: Vec<Vec<Cell>> = vec![Vec::new(); list.events.len()];
        for read in list.read()? {
            let Read { event, cpu, task, value, enabled_ns, running_ns } = read;
            cells[event].push(Cell { cpu, task, count: Count { value, enabled_ns, running_ns } });
        }
        if let Some(before) = &self.before_exec {
            for read in before.read()? {
                let Read { event, value, enabled_ns, running_ns, .. } = read;
                take_off(&mut cells[event], Count { value, enabled_ns, running_ns });
            }
        }
        Ok(self.places.iter().map(|place| place.map(|place| cells[place].clone())).collect())
    }
}

/// Takes off what the child counted before its exec, from the CPUs where there is as much: it may
/// have run on any.
///
/// Both sets of events share the hardware until then, and may be more than it has counters. So
/// `before` is scaled to the time that the child had, and what is taken off a cell is the share
/// that the cell's event saw of it.
fn take_off(cells: &mut [Cell], before: Count) {
    let part = |of: u64, share: u64, whole: u64| {
        // At most `of`, because no share is larger than its whole.
        (u128::from(of) * u128::from(share.min(whole)) / u128::from(whole.max(1))) as u64
    };
    let mut value = before.scaled().unwrap_or_else(|| {
        // It was never on the hardware: as much as at other times.
        let sum = |word: fn(&Count) -> u64| cells.iter().map(|cell| word(&cell.count)).sum::<u64>();
        part(sum(|count| count.value), before.enabled_ns, sum(|count| count.running_ns))
    });
    let mut time_ns = before.enabled_ns;
    for Cell { count, .. } in cells {
        let Count { enabled_ns, running_ns, .. } = *count;
        let off = value.min(count.scaled().unwrap_or(0));
        count.value -= part(off, running_ns, enabled_ns);
        value -= off;
        let off_ns = time_ns.min(enabled_ns);
        count.enabled_ns -= off_ns;
        count.running_ns -= part(off_ns, running_ns, enabled_ns);
        time_ns -= off_ns;
    }
}

/// Makes the attr one that counts.
fn prepare(event: &mut Request, leads: bool, binding: Binding) {
    let attr = &mut event.attr;
    attr.set_freq(0);
    attr.__bindgen_anon_1.sample_period = 0;
    attr.sample_type = 0;
    attr.read_format = Perf::FORMAT_TOTAL_TIME_ENABLED | Perf::FORMAT_TOTAL_TIME_RUNNING;
    if leads {
        attr.read_format |= Perf::FORMAT_GROUP | Perf::FORMAT_ID;
    }
    let (inherit, on_exec) = match binding {
        Binding::Tasks { inherit, on_exec } => (inherit, on_exec),
        _ => (false, false),
    };
    attr.set_inherit(u64::from(inherit));
    let member = event.leader.is_some();
    attr.set_disabled(u64::from(!member));
    attr.set_enable_on_exec(u64::from(on_exec && !member));
}

/// Which events the machine does not have, found by opening each once; members go with their
/// leader.
fn probe(kernel: &dyn Kernel, events: &[Request], targets: &Targets) -> Result<Vec<bool>, OpenError> {
    let mut absent: Vec<bool> = Vec::with_capacity(events.len());
    for event in events {
        let with_leader = event.leader.is_some_and(|leader| absent.get(leader).copied().unwrap_or(false));
        // Software events and tracepoints that the selector found are there.
        if with_leader || matches!(event.attr.type_, Perf::TRACEPOINT | Perf::BREAKPOINT) {
            absent.push(with_leader);
            continue;
        }
        let cpu = match (&event.cpus, targets.cpus.first()) {
            (Some(own), Some(&first)) if first != ANY => {
                let covered = |cpu: &&i32| own.contains(&(**cpu as u32));
                targets.cpus.iter().find(covered).copied().unwrap_or(first)
            }
            (_, first) => first.copied().unwrap_or(ANY),
        };
        // Of the tasks any may be gone: one's own stands for them.
        let task = if targets.tasks == [ANY] { ANY } else { 0 };
        let mut attr = event.attr;
        attr.set_disabled(1);
        attr.set_enable_on_exec(0);
        let place = EventTarget { cgroup: None, ..EventTarget::new(task, cpu) };
        let mut opened = kernel.open(&attr, &place);
        // An ordinary user has no more than user mode of an event, and there it may be missing.
        let denied = opened.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EACCES));
        if denied && attr.exclude_kernel() == 0 && attr.exclude_user() == 0 {
            attr.set_exclude_kernel(1);
            attr.set_exclude_hv(1);
            opened = kernel.open(&attr, &place);
        }
        absent.push(match opened {
            Ok(fd) => {
                kernel.close(vec![fd]);
                false
            }
            // A precision that does not exist is found by the list.
            Err(error) => !event.precise_max && error.raw_os_error().is_some_and(is_absence),
        });
    }
    Ok(absent)
}

/// Events of the waiting child alone that the kernel removes when it executes: what they counted is
/// not the command's. `None` where the kernel cannot (before Linux 5.13), or for want of anything.
fn before_exec(kernel: &Arc<dyn Kernel>, events: &[Request], child: i32) -> Option<Evlist> {
    // A watchpoint would take a second debug register, and the child touches nothing of the
    // command's.
    if events.iter().any(|event| event.attr.type_ == Perf::BREAKPOINT) {
        return None;
    }
    let mut events = events.to_vec();
    for event in &mut events {
        event.leader = None;
        event.attr.read_format &= !(Perf::FORMAT_GROUP | Perf::FORMAT_ID);
        event.attr.set_pinned(0);
        event.attr.set_exclusive(0);
        event.attr.set_inherit(0);
        event.attr.set_disabled(1);
        event.attr.set_remove_on_exec(1);
        event.cpus = None;
    }
    let plan = evlist::EvlistPlan { events, targets: Targets::per_thread(vec![child]) };
    let opened = evlist::open(Arc::clone(kernel), plan, OpenEngine::Serial);
    opened.inspect_err(|error| tracing::debug!("no counts of the time before exec: {error}")).ok()
}
