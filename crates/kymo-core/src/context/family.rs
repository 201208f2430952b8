//! A family: one opened group, and everyone who counts for it.
use super::sync::Mutex;
use super::task_context::Context;
use super::{Attr, Count, CpuId, EventId};
use std::sync::Arc;

/// The group that was opened, its children in other contexts, and what those had counted that are gone. One lock, so that a
/// reader finds each child's count exactly once: in the child, or in the sum (I5).
#[derive(Debug)]
pub(super) struct Family {
    pub(super) kin: Mutex<Kin>,
}

/// Where the opened events themselves are.
#[derive(Debug)]
pub(super) enum Place {
    /// In this context, whoever holds it.
    Task(Arc<Context>),
    /// Among those of a CPU.
    Cpu(CpuId),
    /// Nowhere: the task that held them ended.
    Gone,
}

/// One event that is open.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) event: EventId,
    pub(super) leader: EventId,
    pub(super) attr: Attr,
    /// What those had counted that are in no context any more.
    pub(super) folded: Count,
}

/// What the lock of a family protects.
#[derive(Debug)]
pub(super) struct Kin {
    pub(super) members: Vec<Member>,
    pub(super) own: Place,
    children: Vec<Option<Arc<Context>>>,
    free: Vec<usize>,
}

impl Family {
    pub(super) fn new(members: Vec<Member>, own: Place) -> Family {
        Family { kin: Mutex::new(Kin { members, own, children: Vec::new(), free: Vec::new() }) }
    }
}

impl Kin {
    /// Notes a context with children of these events.
    pub(super) fn add(&mut self, child: Arc<Context>) -> usize {
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
    pub(super) fn vacate(&mut self, child_index: Option<usize>) {
        let Some(child_index) = child_index else {
            self.own = Place::Gone;
            return;
        };
        if self.children[child_index].take().is_some() {
            self.free.push(child_index);
        }
    }

    pub(super) fn member(&self, event: EventId) -> Option<&Member> {
        self.members.iter().find(|member| member.event == event)
    }

    /// Keeps what an event had counted that leaves its context.
    pub(super) fn fold(&mut self, event: EventId, count: Count) {
        if let Some(member) = self.members.iter_mut().find(|member| member.event == event) {
            member.folded = member.folded.plus(count);
        }
    }

    /// The contexts of tasks that have these events or children of them, each with its index.
    pub(super) fn contexts(&self) -> impl Iterator<Item = (Option<usize>, &Arc<Context>)> {
        let own = match &self.own {
            Place::Task(context) => Some((None, context)),
            Place::Cpu(_) | Place::Gone => None,
        };
        own.into_iter().chain(
            self.children
                .iter()
                .enumerate()
                .filter_map(|(child_index, child)| Some((Some(child_index), child.as_ref()?))),
        )
    }
}
