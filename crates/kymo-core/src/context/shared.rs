//! The state that all handles and tasks of an engine share.
use super::cpu::Cpu;
use super::set::Set;
use super::set::family::Family;
use super::set::task_context::Inner;
use super::unique::unique;
use super::{CpuId, Error, EventId, Pmu, TaskId};
use crate::sync::{Mutex, MutexGuard, Ordering, lock};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// What all handles and tasks of an engine share.
pub(super) struct EngineState<P> {
    pub(super) pmu: P,
    pub(super) cpus: Box<[Mutex<Cpu>]>,
    pub(super) events: Mutex<HashMap<EventId, Arc<Family>>>,
    /// The class of all contexts without events: tasks that nobody counts are alike.
    pub(super) empty: u64,
    last_task: AtomicU64,
    last_event: AtomicU64,
    /// What the engine does wrong, so that tests see what comes of it.
    #[cfg(test)]
    pub(super) naive: super::naive::Naive,
}

impl<P: Pmu> EngineState<P> {
    pub(super) fn new(pmu: P, cpus: usize) -> EngineState<P> {
        let cpus = (0..cpus as u32).map(|cpu| Mutex::new(Cpu::new(CpuId(cpu), &pmu))).collect();
        EngineState {
            pmu,
            cpus,
            events: Mutex::new(HashMap::new()),
            empty: unique() << 1,
            last_task: AtomicU64::new(0),
            last_event: AtomicU64::new(0),
            #[cfg(test)]
            naive: super::naive::Naive::default(),
        }
    }

    pub(super) fn cpu(&self, cpu: CpuId) -> Result<MutexGuard<'_, Cpu>, Error> {
        match self.cpus.get(cpu.0 as usize) {
            Some(state) => Ok(lock(state)),
            None => Err(Error::UnknownCpu { cpu, cpus: self.cpus.len() }),
        }
    }

    /// Relaxed: a name, it publishes nothing.
    pub(super) fn new_task_id(&self) -> TaskId {
        TaskId(self.last_task.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// The ids of so many events, one after the other.
    pub(super) fn new_event_ids(&self, count: usize) -> impl Iterator<Item = EventId> + use<P> {
        let first = self.last_event.fetch_add(count as u64, Ordering::Relaxed) + 1;
        (first..).take(count).map(EventId)
    }

    /// Does `what` with a CPU and the events of the task that runs there, both locked.
    pub(super) fn on_cpu<R>(
        &self,
        cpu: CpuId,
        what: impl FnOnce(&P, &mut Cpu, Option<&mut Set>) -> R,
    ) -> Result<R, Error> {
        loop {
            let mut state = self.cpu(cpu)?;
            let Some(active) = state.active.clone() else {
                return Ok(what(&self.pmu, &mut state, None));
            };
            // Contexts are locked before CPUs, so whose turn it is has to be looked at again.
            drop(state);
            let mut inner = active.lock();
            let mut state = self.cpu(cpu)?;
            if state.active.as_ref().is_some_and(|now| Arc::ptr_eq(now, &active)) {
                return Ok(what(&self.pmu, &mut state, Some(&mut inner.set)));
            }
        }
    }

    pub(super) fn stop_all(&self, inner: &mut Inner) {
        let Some(mut state) = inner.set.on.and_then(|cpu| self.cpu(cpu).ok()) else {
            return;
        };
        let now_ns = if inner.set.is_empty() { 0 } else { inner.set.now_ns(&self.pmu) };
        state.active = None;
        state.stop_task(&self.pmu, &mut inner.set, now_ns);
        inner.set.depart(now_ns);
    }
}
