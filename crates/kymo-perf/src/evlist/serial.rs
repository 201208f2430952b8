//! The straightforward opener: event by event, CPU by CPU, task by task, with the fallbacks on the way.
//!
//! This is the reference: any other opener must give the same tables, attrs, surviving tasks and errors for the same answers of the
//! kernel.
use super::note::{Feature, Note, OpenError, Stage};
use super::{Event, Evlist, Plan, Request};
use crate::sys::{ANY, Kernel, Perf, perf_event_attr};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Opens everything in the plan.
///
/// # Errors
/// [`OpenError`] names the event, task and CPU of the open that no fallback could save. Nothing stays open then.
pub fn open(kernel: &dyn Kernel, plan: Plan) -> Result<Evlist, OpenError> {
    let mut opener = Opener::new(kernel, plan);
    while opener.tables.len() < opener.events.len() {
        opener.open_event()?;
    }
    opener.finish()
}

/// What to do after a failed open.
enum Next {
    /// The same slot again, with another attr or limit.
    Slot,
    /// The column is gone: the same index is the next task.
    Column,
    /// This event from its first slot.
    Event,
    /// The group from its leader.
    Group(usize),
}

struct Opener<'a> {
    kernel: &'a dyn Kernel,
    events: Vec<Request>,
    cpus: Vec<i32>,
    tasks: Vec<i32>,
    ignore_missing: bool,
    /// Finished events.
    tables: Vec<Vec<Vec<OwnedFd>>>,
    /// The rows of the event that is being opened.
    rows: Vec<Vec<OwnedFd>>,
    missing: Vec<Feature>,
    raises: u32,
    /// The precision that the user asked for, while it is being lowered.
    asked_precision: Option<u64>,
    notes: Vec<Note>,
}

impl<'a> Opener<'a> {
    fn new(kernel: &'a dyn Kernel, plan: Plan) -> Opener<'a> {
        Opener {
            kernel,
            events: plan.events,
            cpus: plan.targets.cpus,
            tasks: plan.targets.tasks,
            ignore_missing: plan.targets.ignore_missing,
            tables: Vec::new(),
            rows: Vec::new(),
            missing: Vec::new(),
            raises: 0,
            asked_precision: None,
            notes: Vec::new(),
        }
    }

    /// The CPUs of an event: those of the target that its PMU covers.
    fn cpus_of(&self, event: usize) -> Vec<i32> {
        match &self.events[event].cpus {
            Some(own) if self.cpus != [ANY] => {
                self.cpus.iter().copied().filter(|&cpu| own.contains(&(cpu as u32))).collect()
            }
            _ => self.cpus.clone(),
        }
    }

    fn open_event(&mut self) -> Result<(), OpenError> {
        let event = self.tables.len();
        let cpus = self.cpus_of(event);
        self.rows.clear();
        for feature in self.missing.clone() {
            give_up(&mut self.events[event].attr, feature);
        }
        let mut row = 0;
        while row < cpus.len() {
            self.rows.push(Vec::new());
            let mut column = 0;
            while column < self.tasks.len() {
                match self.open_slot(event, cpus[row], column) {
                    Ok(fd) => {
                        self.rows[row].push(fd);
                        self.raises = 0;
                        column += 1;
                    }
                    Err(error) => match self.fall_back(event, cpus[row], column, error)? {
                        Next::Slot | Next::Column => {}
                        Next::Event => return Ok(()),
                        Next::Group(leader) => {
                            self.tables.truncate(leader);
                            return Ok(());
                        }
                    },
                }
            }
            row += 1;
        }
        self.asked_precision = None;
        self.tables.push(std::mem::take(&mut self.rows));
        Ok(())
    }

    fn open_slot(&self, event: usize, cpu: i32, column: usize) -> io::Result<OwnedFd> {
        let request = &self.events[event];
        let group = match request.leader {
            Some(leader) => {
                // E2; a leader that does not cover this CPU cannot lead here.
                let row = self.cpus_of(leader).binary_search(&cpu).ok();
                let fd = row.and_then(|row| self.tables.get(leader)?.get(row)?.get(column));
                Some(fd.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?.as_fd())
            }
            None => None,
        };
        let cloexec = !self.missing.contains(&Feature::Cloexec);
        self.kernel.open(&request.attr, self.tasks[column], cpu, group, cloexec)
    }

    fn fall_back(
        &mut self,
        event: usize,
        cpu: i32,
        column: usize,
        error: io::Error,
    ) -> Result<Next, OpenError> {
        let errno = error.raw_os_error().unwrap_or(0);
        if errno == libc::ESRCH && self.ignore_missing && self.tasks.len() > 1 {
            self.remove_task(column);
            return Ok(Next::Column);
        }
        if errno == libc::EMFILE && self.raises < 2 {
            self.raises += 1;
            if let Some(limit) = self.kernel.raise_descriptors() {
                self.notes.push(Note::Descriptors { limit });
                return Ok(Next::Slot);
            }
        }
        if self.lower_precision(event, errno) {
            return Ok(Next::Slot);
        }
        if errno == libc::EINVAL {
            if let Some(next) = self.dissolve(event) {
                return Ok(next);
            }
            if self.give_up_newest(event) {
                return Ok(Next::Event);
            }
        }
        if errno == libc::EBADF
            && let Some(next) = self.dissolve(event)
        {
            return Ok(next);
        }
        if self.use_software_clock(event, errno) || self.keep_user_only(event, errno) {
            return Ok(Next::Event);
        }
        let task = self.tasks[column];
        Err(OpenError {
            event: self.events[event].name.clone(),
            index: event,
            task: (task != ANY).then_some(task),
            cpu: (cpu != ANY).then_some(cpu),
            stage: Stage::Open,
            source: error,
        })
    }

    /// Takes a task out of every table: its descriptors are closed, its column goes.
    fn remove_task(&mut self, column: usize) {
        self.notes.push(Note::TaskGone { task: self.tasks[column] });
        self.tasks.remove(column);
        for row in self.tables.iter_mut().flatten().chain(&mut self.rows) {
            if column < row.len() {
                row.remove(column);
            }
        }
    }

    fn lower_precision(&mut self, event: usize, errno: i32) -> bool {
        let refusals = [libc::EINVAL, libc::EOPNOTSUPP, libc::ENOENT, libc::EIO];
        let request = &mut self.events[event];
        let now = request.attr.precise_ip();
        if !request.precise_max || !refusals.contains(&errno) {
            return false;
        }
        if now == 0 {
            // Precision is not what the kernel minds: other fallbacks get it as it was asked for.
            if let Some(asked) = self.asked_precision.take() {
                request.attr.set_precise_ip(asked);
            }
            request.precise_max = false;
            self.notes
                .retain(|note| !matches!(note, Note::Precision { event, .. } if *event == request.name));
            return false;
        }
        self.asked_precision.get_or_insert(now);
        request.attr.set_precise_ip(now - 1);
        self.notes.retain(|note| !matches!(note, Note::Precision { event, .. } if *event == request.name));
        self.notes.push(Note::Precision { event: request.name.clone(), to: now - 1 });
        true
    }

    /// Gives up the newest feature that this event uses.
    fn give_up_newest(&mut self, event: usize) -> bool {
        for feature in Feature::NEWEST_FIRST {
            let mut attr = self.events[event].attr;
            let uses = match feature {
                Feature::Cloexec => !self.missing.contains(&feature),
                _ => give_up(&mut attr, feature),
            };
            if uses {
                self.events[event].attr = attr;
                self.missing.push(feature);
                self.notes.push(Note::Missing { feature });
                return true;
            }
        }
        false
    }

    fn dissolve(&mut self, event: usize) -> Option<Next> {
        let leader = self.events[event].leader?;
        if !self.events[leader].weak {
            return None;
        }
        let own = &mut self.events[leader];
        own.weak = false;
        own.attr.read_format &= !Perf::FORMAT_GROUP;
        let (disabled, on_exec) = (own.attr.disabled(), own.attr.enable_on_exec());
        for member in self.events.iter_mut().filter(|member| member.leader == Some(leader)) {
            // A member follows its leader; on its own it must start as the leader does.
            member.leader = None;
            member.attr.read_format &= !Perf::FORMAT_GROUP;
            member.attr.set_disabled(disabled);
            member.attr.set_enable_on_exec(on_exec);
        }
        self.notes.push(Note::GroupDissolved { leader: self.events[leader].name.clone() });
        Some(Next::Group(leader))
    }

    fn use_software_clock(&mut self, event: usize, errno: i32) -> bool {
        let absent = [libc::ENOENT, libc::ENXIO, libc::ENODEV, libc::EOPNOTSUPP];
        let request = &mut self.events[event];
        let cycles =
            request.attr.type_ == Perf::HARDWARE && request.attr.config & 0xffff_ffff == Perf::HW_CPU_CYCLES;
        if !cycles || !absent.contains(&errno) {
            return false;
        }
        let asked = request.name.clone();
        let modifiers = asked.split_once(':').map_or(String::new(), |(_, m)| {
            let kept: String = m.chars().filter(|c| !"pP".contains(*c)).collect();
            if kept.is_empty() { kept } else { format!(":{kept}") }
        });
        request.name = format!("cpu-clock{modifiers}");
        request.attr.type_ = Perf::SOFTWARE;
        request.attr.config = Perf::SW_CPU_CLOCK;
        request.attr.set_precise_ip(0);
        request.precise_max = false;
        request.cpus = None;
        self.notes.push(Note::SoftwareClock { asked, used: request.name.clone() });
        true
    }

    fn keep_user_only(&mut self, event: usize, errno: i32) -> bool {
        let request = &mut self.events[event];
        let attr = &mut request.attr;
        if !matches!(errno, libc::EACCES | libc::EPERM)
            || attr.exclude_kernel() == 1
            || attr.exclude_user() == 1
            || attr.type_ == Perf::TRACEPOINT
            || self.tasks == [ANY]
        {
            return false;
        }
        attr.set_exclude_kernel(1);
        attr.set_exclude_hv(1);
        request.name = user_only_name(&request.name);
        self.notes.push(Note::UserOnly { event: request.name.clone() });
        true
    }

    fn finish(self) -> Result<Evlist, OpenError> {
        let cpus: Vec<Vec<i32>> = (0..self.events.len()).map(|event| self.cpus_of(event)).collect();
        for (index, (request, table)) in self.events.iter().zip(&self.tables).enumerate() {
            let Some(filter) = &request.filter else { continue };
            for fd in table.iter().flatten() {
                self.kernel.set_filter(fd.as_fd(), filter).map_err(|source| OpenError {
                    event: request.name.clone(),
                    index,
                    task: None,
                    cpu: None,
                    stage: Stage::Filter,
                    source,
                })?;
            }
        }
        let events = self.events.into_iter().zip(cpus).zip(self.tables);
        Ok(Evlist {
            events: events.map(|((request, cpus), fds)| Event { request, cpus, fds }).collect(),
            tasks: self.tasks,
            notes: self.notes,
        })
    }
}

/// `cycles` becomes `cycles:u`, `cycles:P` becomes `cycles:Pu`.
fn user_only_name(name: &str) -> String {
    if name.ends_with('/') {
        return format!("{name}u");
    }
    match name.rsplit_once(':') {
        Some((_, modifiers))
            if !modifiers.is_empty() && modifiers.chars().all(|c| "ukhGHpPDSeIb".contains(c)) =>
        {
            format!("{name}u")
        }
        _ => format!("{name}:u"),
    }
}

/// Takes a feature out of the attr; false if the attr does not use it.
fn give_up(attr: &mut perf_event_attr, feature: Feature) -> bool {
    let before = crate::sys::attr_bytes(attr);
    match feature {
        Feature::ReadLost => attr.read_format &= !Perf::FORMAT_LOST,
        Feature::WeightStruct if attr.sample_type & Perf::SAMPLE_WEIGHT_STRUCT != 0 => {
            attr.sample_type = attr.sample_type & !Perf::SAMPLE_WEIGHT_STRUCT | Perf::SAMPLE_WEIGHT;
        }
        Feature::WeightStruct | Feature::Cloexec => {}
        Feature::BranchHwIndex => attr.branch_sample_type &= !Perf::BRANCH_HW_INDEX,
        Feature::BpfEvent => attr.set_bpf_event(0),
        Feature::Ksymbol => attr.set_ksymbol(0),
        Feature::Clockid => {
            attr.set_use_clockid(0);
            attr.clockid = 0;
        }
        Feature::Mmap2 => attr.set_mmap2(0),
        Feature::ExcludeGuest => {
            attr.set_exclude_guest(0);
            attr.set_exclude_host(0);
        }
        Feature::SampleIdAll => attr.set_sample_id_all(0),
        Feature::GroupRead if attr.inherit() == 1 => attr.read_format &= !Perf::FORMAT_GROUP,
        Feature::GroupRead => {}
    }
    before != crate::sys::attr_bytes(attr)
}
