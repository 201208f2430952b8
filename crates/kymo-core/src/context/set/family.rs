//! A family: one opened group, and its children in other contexts.
use super::task_context::TaskContext;
use crate::context::{Attr, Count, CpuId, EventId};
use crate::sync::Mutex;
use std::sync::Arc;

/// The group that was opened, its children in other contexts, and what those had counted that are
/// gone. One lock, so that a reader finds each child's count exactly once: in the child, or in the
/// sum (I5).
#[derive(Debug)]
pub(crate) struct Family {
    pub(crate) kin: Mutex<FamilyState>,
}

/// Where the opened events themselves are.
#[derive(Debug)]
pub(crate) enum EventHome {
    /// In this context, whoever holds it.
    Task(Arc<TaskContext>),
    /// Among those of a CPU.
    Cpu(CpuId),
    /// Nowhere: the task that held them ended.
    Gone,
}

/// One event that is open.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) event: EventId,
    pub(crate) leader: EventId,
    pub(crate) attr: Attr,
    /// What those had counted that are in no context any more.
    pub(crate) folded: Count,
}

/// What the lock of a family protects.
#[derive(Debug)]
pub(crate) struct FamilyState {
    pub(crate) members: Vec<Member>,
    pub(crate) own: EventHome,
    children: Vec<Option<Arc<TaskContext>>>,
    free: Vec<usize>,
}

impl Family {
    pub(crate) fn new(members: Vec<Member>, own: EventHome) -> Family {
        Family { kin: Mutex::new(FamilyState { members, own, children: Vec::new(), free: Vec::new() }) }
    }
}

impl FamilyState {
    /// Notes a context with children of these events.
    pub(crate) fn add(&mut self, child: Arc<TaskContext>) -> usize {
        match self.free.pop() {
            Some(child_index) => {
                self.children[child_index] = Some(child);
                child_index
            }
            None => {
                self.children.push(Some(child));
                self.children.len() - 1
            }
        }
    }

    /// Forgets the context at this index, or the own one without an index.
    pub(crate) fn vacate(&mut self, child_index: Option<usize>) {
        let Some(child_index) = child_index else {
            self.own = EventHome::Gone;
            return;
        };
        if self.children[child_index].take().is_some() {
            self.free.push(child_index);
        }
    }

    pub(crate) fn member(&self, event: EventId) -> Option<&Member> {
        self.members.iter().find(|member| member.event == event)
    }

    /// Keeps what an event had counted that leaves its context.
    pub(crate) fn fold(&mut self, event: EventId, count: Count) {
        if let Some(member) = self.members.iter_mut().find(|member| member.event == event) {
            member.folded = member.folded.plus(count);
        }
    }

    /// The contexts of tasks that have these events or children of them, each with its index.
    pub(crate) fn contexts(&self) -> impl Iterator<Item = (Option<usize>, &Arc<TaskContext>)> {
        let own = match &self.own {
            EventHome::Task(context) => Some((None, context)),
            EventHome::Cpu(_) | EventHome::Gone => None,
        };
        own.into_iter().chain(
            self.children
                .iter()
                .enumerate()
                .filter_map(|(child_index, child)| Some((Some(child_index), child.as_ref()?))),
        )
    }
}
