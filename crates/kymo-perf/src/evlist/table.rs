//! The descriptors of a list.
use super::shape::EventSlot;
use crate::sys::{Descriptor, Kernel};

/// Descriptors by event, row (CPU of the event) and column (task).
#[derive(Debug, Default)]
pub(crate) struct DescriptorTable {
    pub(crate) events: Vec<Vec<Vec<Descriptor>>>,
}

impl DescriptorTable {
    pub(crate) fn get(&self, slot: EventSlot) -> Option<&Descriptor> {
        self.events.get(slot.event)?.get(slot.row)?.get(slot.column)
    }

    /// Takes a task out of every row that has come so far; what it had is returned to be closed,
    /// members before their leaders.
    pub(crate) fn remove_column(&mut self, column: usize) -> Vec<Descriptor> {
        let rows = self.events.iter_mut().rev().flatten();
        rows.filter(|row| column < row.len()).map(|row| row.remove(column)).collect()
    }

    /// Takes off everything from this event on.
    pub(crate) fn split_off(&mut self, event: usize) -> DescriptorTable {
        DescriptorTable { events: self.events.split_off(event.min(self.events.len())) }
    }

    /// Closes everything, members before their leaders: a leader that goes first leaves its members
    /// enabled on their own.
    pub(crate) fn close(self, kernel: &dyn Kernel) {
        // Leaders come before their members in the list.
        for event in self.events.into_iter().rev() {
            kernel.close(event.into_iter().flatten().collect());
        }
    }
}
