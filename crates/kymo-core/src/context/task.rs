//! A task: where it is, what it holds, and how it ends.
use super::set::family::Family;
use super::set::task_context::TaskContext;
use super::shared::EngineState;
use super::{Count, CpuId, EventId, Pmu, TaskId};
use crate::sync::{Ordering, lock};
use std::fmt;
use std::sync::Arc;

/// Where a task is that is on no CPU.
const NOWHERE: u32 = u32::MAX;
/// Where a task is that has ended.
const OVER: u32 = u32::MAX - 1;

/// Something that runs, on one CPU at a time. Whoever has it may switch it, so `&mut` is what keeps
/// two threads from it.
///
/// Dropping a task that rests ends it. Dropping one that runs ends it too, but is a mistake, which
/// the next operation on its CPU tells
/// ([`Error::DroppedWhileRunning`](super::Error::DroppedWhileRunning)).
pub struct Task<P: Pmu> {
    pub(super) shared: Arc<EngineState<P>>,
    pub(super) context: Arc<TaskContext>,
    id: TaskId,
    on: u32,
}

impl<P: Pmu> fmt::Debug for Task<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("id", &self.id).field("cpu", &self.cpu()).finish_non_exhaustive()
    }
}

impl<P: Pmu> Task<P> {
    pub(super) fn new(shared: &Arc<EngineState<P>>, id: TaskId, context: Arc<TaskContext>) -> Task<P> {
        Task { shared: Arc::clone(shared), context, id, on: NOWHERE }
    }

    /// Its number.
    pub fn id(&self) -> TaskId {
        self.id
    }

    /// The CPU that it runs on, if it runs.
    pub fn cpu(&self) -> Option<CpuId> {
        (!self.rests() && !self.has_ended()).then_some(CpuId(self.on))
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.on == OVER
    }

    #[inline]
    pub(super) fn rests(&self) -> bool {
        self.on == NOWHERE
    }

    /// No CPU has the number of "nowhere" or "over": there would have to be so many.
    #[inline]
    pub(super) fn runs_on(&self, cpu: CpuId) -> bool {
        self.on == cpu.0 && cpu.0 < OVER
    }

    pub(super) fn set_on(&mut self, cpu: Option<CpuId>) {
        self.on = cpu.map_or(NOWHERE, |cpu| cpu.0);
    }

    /// The exchange: each task takes the other's context, `self` rests and `to` runs. Nothing in
    /// the contexts changes but whose they are.
    #[inline]
    pub(super) fn exchange(&mut self, to: &mut Task<P>, cpu: CpuId) {
        std::mem::swap(&mut self.context, &mut to.context);
        // Relaxed: only told (and under both locks where somebody computes with it, see
        // read_tasks).
        self.context.holder.store(self.id.0, Ordering::Relaxed);
        to.context.holder.store(to.id.0, Ordering::Relaxed);
        (self.on, to.on) = (NOWHERE, cpu.0);
    }

    /// Ends it, wherever it is.
    pub(super) fn end(&mut self) -> Vec<(EventId, Count)> {
        let shared = Arc::clone(&self.shared);
        if !self.rests() {
            shared.take_off(self);
        }
        self.on = OVER;
        let mut inner = self.context.lock();
        inner.over = true;
        inner.unclone();
        self.context.classify(&inner, shared.empty);
        drop(inner);
        let mut counts = Vec::new();
        // One family after the other: what a reader of one finds is whole. Who closes an event
        // meanwhile takes it away before us.
        while let Some(family) = self.next_family() {
            let mut kin = lock(&family.kin);
            let mut inner = self.context.lock();
            let time_ns = inner.set.time_ns(0);
            let set = &mut inner.set;
            let mut gone = Vec::new();
            for groups in [&mut set.pinned, &mut set.flexible] {
                gone.extend(groups.extract_if(.., |group| Arc::ptr_eq(&group.family, &family)));
            }
            for mut group in gone {
                group.settle(time_ns);
                for event in &group.events {
                    kin.fold(event.id, event.count);
                    if event.attr.inherit_stat {
                        counts.push((event.id, event.count));
                    }
                }
                kin.vacate(group.child_index);
            }
        }
        counts.sort_by_key(|&(event, _)| event);
        counts
    }

    fn next_family(&self) -> Option<Arc<Family>> {
        self.context.lock().set.groups().next().map(|group| Arc::clone(&group.family))
    }
}

impl<P: Pmu> Drop for Task<P> {
    fn drop(&mut self) {
        if self.has_ended() {
            return;
        }
        let cpu = self.cpu();
        self.end();
        if let Some(cpu) = cpu
            && let Ok(mut state) = self.shared.cpu(cpu)
        {
            state.dropped = Some(self.id);
        }
    }
}

impl<P: Pmu> EngineState<P> {
    /// Stops what counts in a task that runs.
    pub(super) fn take_off(&self, task: &mut Task<P>) {
        let mut inner = task.context.lock();
        self.stop_all(&mut inner);
        drop(inner);
        task.set_on(None);
    }
}
