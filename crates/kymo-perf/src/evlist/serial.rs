//! The serial engine, the reference: event by event, CPU by CPU, task by task, with fallbacks.
//!
//! This is the reference: the parallel engine must give the same tables, attrs, surviving tasks and
//! errors for the same answers of the kernel.
use super::fallback::{Fallbacks, Next};
use super::note::OpenError;
use super::shape::EventSlot;
use crate::sys::{Descriptor, Kernel};

/// Descriptors by event, row (CPU of the event) and column (task).
#[derive(Debug, Default)]
pub(crate) struct DescriptorTable {
    pub(crate) events: Vec<Vec<Vec<Descriptor>>>,
}

impl DescriptorTable {
    fn get(&self, slot: EventSlot) -> Option<&Descriptor> {
        self.events.get(slot.event)?.get(slot.row)?.get(slot.column)
    }

    /// Takes a task out of every row that has come so far; what it had is returned to be closed,
    /// members before their leaders.
    fn remove_column(&mut self, column: usize) -> Vec<Descriptor> {
        let rows = self.events.iter_mut().rev().flatten();
        rows.filter(|row| column < row.len()).map(|row| row.remove(column)).collect()
    }

    /// Takes off everything from this event on.
    fn split_off(&mut self, event: usize) -> DescriptorTable {
        DescriptorTable { events: self.events.split_off(event.min(self.events.len())) }
    }

    /// Closes everything, members before their leaders: a leader that goes first leaves its members
    /// enabled on their own.
    fn close(self, kernel: &dyn Kernel) {
        // Leaders come before their members in the list.
        for event in self.events.into_iter().rev() {
            kernel.close(event.into_iter().flatten().collect());
        }
    }
}

/// Opens everything in the calling thread.
///
/// # Errors
/// [`OpenError`] names the event, task and CPU of the open that no fallback could save. Nothing
/// stays open then.
pub(crate) fn open(kernel: &dyn Kernel, fallbacks: &mut Fallbacks) -> Result<DescriptorTable, OpenError> {
    let mut table = DescriptorTable::default();
    while table.events.len() < fallbacks.shape.events.len() {
        if let Err(error) = open_event(kernel, fallbacks, &mut table) {
            table.close(kernel);
            return Err(error);
        }
    }
    Ok(table)
}

/// Opens the event after the last one of the table, or takes back what a fallback says must be
/// opened again.
fn open_event(
    kernel: &dyn Kernel,
    fallbacks: &mut Fallbacks,
    table: &mut DescriptorTable,
) -> Result<(), OpenError> {
    let event = table.events.len();
    table.events.push(Vec::new());
    let mut row = 0;
    while row < fallbacks.shape.cpus[event].len() {
        table.events[event].push(Vec::new());
        let mut column = 0;
        while column < fallbacks.shape.tasks.len() {
            let slot = EventSlot { event, row, column };
            let leader = |event: usize, row: usize| table.get(EventSlot { event, row, column });
            match fallbacks.shape.open(kernel, slot, leader) {
                Ok(fd) => {
                    table.events[event][row].push(fd);
                    fallbacks.progressed();
                    column += 1;
                }
                Err(error) => match fallbacks.decide(kernel, slot, error)? {
                    Next::Slot => {}
                    Next::Column(column) => kernel.close(table.remove_column(column)),
                    Next::Event(first) => {
                        table.split_off(first).close(kernel);
                        return Ok(());
                    }
                },
            }
        }
        row += 1;
    }
    Ok(())
}
