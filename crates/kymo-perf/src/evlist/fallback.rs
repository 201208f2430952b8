//! Decides, for both engines, what to do after the kernel refused an open.
//!
//! Whatever changes the attr of an event sends the opening back to the first slot of that event (or
//! of its group's leader), on all CPUs: so one event never has descriptors with different attrs.
//! perf lowers precision in place and leaves what is open as it is.
use super::EvlistPlan;
use super::note::{Feature, Note, OpenError, Shortage, Stage};
use super::shape::{EventSlot, EvlistShape};
use crate::selector::is_modifier;
use crate::sys::{ANY, Kernel, Perf, exclude_hidden_frames, perf_event_attr};
use std::io;
use std::sync::Arc;

/// What to do after a failed open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The same slot again: the limit of descriptors is higher now.
    Slot,
    /// This column is gone from the shape: the same index is the next task.
    Column(usize),
    /// Everything from the first slot of this event again: its attr has changed.
    Event(usize),
}

/// A list on its way to being open: its shape, and what was done to it.
#[derive(Debug)]
pub(crate) struct Fallbacks {
    /// Shared with workers while they run; there is one owner when [`Fallbacks::decide`] is called.
    pub(crate) shape: Arc<EvlistShape>,
    /// What was changed, in order.
    pub(crate) notes: Vec<Note>,
    ignore_missing: bool,
    raises: u32,
    /// The precision that the user asked for, of events where it was lowered.
    asked_precision: Vec<Option<u64>>,
}

/// Descriptors that a process has open beside those of a list, as a guess.
pub(crate) const OTHERS: u64 = 64;

impl Fallbacks {
    pub(crate) fn new(kernel: &dyn Kernel, plan: EvlistPlan) -> Fallbacks {
        let ignore_missing = plan.targets.ignore_missing;
        let shape = EvlistShape::new(plan);
        let mut fallbacks = Fallbacks {
            asked_precision: vec![None; shape.events.len()],
            shape: Arc::new(shape),
            notes: Vec::new(),
            ignore_missing,
            raises: 0,
        };
        let needed = fallbacks.shape.descriptors();
        if kernel.descriptor_limit().is_some_and(|limit| limit < needed as u64 + OTHERS) {
            fallbacks.raise(kernel);
        }
        if needed >= RESERVE_FROM {
            kernel.reserve_descriptors(needed);
        }
        fallbacks
    }

    fn raise(&mut self, kernel: &dyn Kernel) -> bool {
        let wanted = self.shape.descriptors() as u64 + OTHERS;
        let raised = kernel.raise_descriptors(wanted);
        self.notes.extend(raised.map(Note::Descriptors));
        raised.is_some()
    }

    /// An open succeeded: the limit may be raised anew.
    pub(crate) fn progressed(&mut self) {
        self.raises = 0;
    }

    /// Decides what to do about the first refusal in serial order.
    ///
    /// # Errors
    /// [`OpenError`] if nothing can be done.
    pub(crate) fn decide(
        &mut self,
        kernel: &dyn Kernel,
        slot: EventSlot,
        error: io::Error,
    ) -> Result<Next, OpenError> {
        let errno = error.raw_os_error().unwrap_or(0);
        let event = slot.event;
        if errno == libc::ESRCH && self.ignore_missing && self.shape.tasks.len() > 1 {
            let shape = Arc::make_mut(&mut self.shape);
            let task = shape.tasks.remove(slot.column);
            self.notes.push(Note::TaskGone(task));
            return Ok(Next::Column(slot.column));
        }
        if errno == libc::EMFILE {
            self.raises += 1;
            if self.raises <= 2 && self.raise(kernel) {
                return Ok(Next::Slot);
            }
            return Err(self.failed(kernel, slot, error));
        }
        if let Some(next) = self.disband(event, errno) {
            return Ok(next);
        }
        if self.lower_precision(event, errno) {
            return Ok(Next::Event(event));
        }
        if matches!(errno, libc::EINVAL | libc::EBADF)
            && let Some(next) = self.dissolve(event)
        {
            return Ok(next);
        }
        let changed = errno == libc::EINVAL && self.give_up_newest(event)
            || self.use_software_clock(event, errno)
            || self.keep_user_only(event, errno);
        if changed { Ok(Next::Event(event)) } else { Err(self.failed(kernel, slot, error)) }
    }

    fn failed(&self, kernel: &dyn Kernel, slot: EventSlot, source: io::Error) -> OpenError {
        let (task, cpu) = (self.shape.tasks[slot.column], self.shape.cpus[slot.event][slot.row]);
        // Where descriptors run out says nothing about the slot.
        let shortage = (source.raw_os_error() == Some(libc::EMFILE))
            .then(|| Shortage { needed: self.shape.descriptors() as u64, limit: kernel.descriptor_limit() });
        OpenError {
            attr: Box::new(self.shape.events[slot.event].attr),
            event: self.shape.events[slot.event].name.clone(),
            index: slot.event,
            task: (task != ANY && shortage.is_none()).then_some(task),
            cpu: (cpu != ANY && shortage.is_none()).then_some(cpu),
            stage: Stage::Open,
            shortage,
            source,
        }
    }

    /// Lets the members of a batch be single events, in case the batch is what the kernel minds.
    fn disband(&mut self, event: usize, errno: i32) -> Option<Next> {
        let leader = self.shape.batches[event]?;
        if !matches!(errno, libc::EINVAL | libc::EBADF | libc::E2BIG) {
            return None;
        }
        let shape = Arc::make_mut(&mut self.shape);
        shape.batches.iter_mut().filter(|batch| **batch == Some(leader)).for_each(|batch| *batch = None);
        Some(Next::Event(leader))
    }

    fn lower_precision(&mut self, event: usize, errno: i32) -> bool {
        let refusals = [libc::EINVAL, libc::EOPNOTSUPP, libc::ENOENT, libc::EIO];
        if !self.shape.events[event].precise_max || !refusals.contains(&errno) {
            return false;
        }
        let request = &mut Arc::make_mut(&mut self.shape).events[event];
        self.notes.retain(|note| !matches!(note, Note::Precision { event, .. } if *event == request.name));
        let now = request.attr.precise_ip();
        if now == 0 {
            // Precision is not what the kernel minds: other fallbacks get it as it was asked for.
            if let Some(asked) = self.asked_precision[event].take() {
                request.attr.set_precise_ip(asked);
            }
            request.precise_max = false;
            return false;
        }
        self.asked_precision[event].get_or_insert(now);
        request.attr.set_precise_ip(now - 1);
        self.notes.push(Note::Precision { event: request.name.clone(), to: now - 1 });
        true
    }

    /// Gives up the newest feature that this event uses, for it and all that come after it.
    fn give_up_newest(&mut self, event: usize) -> bool {
        let shape = Arc::make_mut(&mut self.shape);
        for feature in Feature::NEWEST_FIRST {
            let uses = match feature {
                Feature::Cloexec => std::mem::take(&mut shape.cloexec),
                _ => give_up(&mut shape.events[event].attr, feature),
            };
            if uses {
                for later in &mut shape.events[event + 1..] {
                    give_up(&mut later.attr, feature);
                }
                self.notes.push(Note::Missing(feature));
                return true;
            }
        }
        false
    }

    fn dissolve(&mut self, event: usize) -> Option<Next> {
        let leader = self.shape.events[event].leader?;
        if !self.shape.events[leader].weak {
            return None;
        }
        let events = &mut Arc::make_mut(&mut self.shape).events;
        let own = &mut events[leader];
        own.weak = false;
        own.attr.read_format &= !Perf::FORMAT_GROUP;
        let (disabled, on_exec) = (own.attr.disabled(), own.attr.enable_on_exec());
        let name = own.name.clone();
        for member in events.iter_mut().filter(|member| member.leader == Some(leader)) {
            // A member follows its leader; on its own it must start as the leader does.
            member.leader = None;
            member.attr.read_format &= !Perf::FORMAT_GROUP;
            member.attr.set_disabled(disabled);
            member.attr.set_enable_on_exec(on_exec);
        }
        self.notes.push(Note::GroupDissolved(name));
        Some(Next::Event(leader))
    }

    fn use_software_clock(&mut self, event: usize, errno: i32) -> bool {
        let absent = [libc::ENOENT, libc::ENXIO, libc::ENODEV, libc::EOPNOTSUPP];
        let attr = &self.shape.events[event].attr;
        let cycles = attr.type_ == Perf::HARDWARE && attr.config & 0xffff_ffff == Perf::HW_CPU_CYCLES;
        if !cycles || !absent.contains(&errno) {
            return false;
        }
        let shape = Arc::make_mut(&mut self.shape);
        let request = &mut shape.events[event];
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
        shape.cover_again(event);
        true
    }

    fn keep_user_only(&mut self, event: usize, errno: i32) -> bool {
        let attr = &self.shape.events[event].attr;
        if !matches!(errno, libc::EACCES | libc::EPERM)
            || attr.exclude_kernel() == 1
            || attr.exclude_user() == 1
            || attr.type_ == Perf::TRACEPOINT
            || self.shape.tasks == [ANY]
        {
            return false;
        }
        let request = &mut Arc::make_mut(&mut self.shape).events[event];
        request.attr.set_exclude_kernel(1);
        request.attr.set_exclude_hv(1);
        exclude_hidden_frames(&mut request.attr);
        request.name = user_only_name(&request.name);
        self.notes.push(Note::UserOnly(request.name.clone()));
        true
    }
}

/// From how many descriptors on their table is made large enough beforehand: below, it grows twice
/// at most.
const RESERVE_FROM: usize = 128;

/// `cycles` becomes `cycles:u`, `cycles:P` becomes `cycles:Pu`; `cycles:u` stays.
pub(crate) fn user_only_name(name: &str) -> String {
    let modifiers = name.rsplit_once([':', '/']).map_or("", |(_, modifiers)| modifiers);
    let has_modifiers = !modifiers.is_empty() && modifiers.chars().all(is_modifier);
    if has_modifiers && modifiers.contains('u') {
        return name.to_owned();
    }
    if has_modifiers || name.ends_with('/') { format!("{name}u") } else { format!("{name}:u") }
}

/// Takes a feature out of the attr; false if the attr does not use it.
fn give_up(attr: &mut perf_event_attr, feature: Feature) -> bool {
    let before = crate::sys::attr_bytes(attr);
    match feature {
        Feature::ReadLost => attr.read_format &= !Perf::FORMAT_LOST,
        Feature::MappingBuildId => attr.set_build_id(0),
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
