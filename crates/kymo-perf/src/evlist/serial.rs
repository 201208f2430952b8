//! The serial engine, the reference: event by event, CPU by CPU, task by task, with fallbacks.
//!
//! This is the reference: the parallel engine must give the same tables, attrs, surviving tasks and
//! errors for the same answers of the kernel.
use super::fallback::{Fallbacks, Next};
use super::note::OpenError;
use super::shape::EventSlot;
use super::table::DescriptorTable;
use crate::sys::Kernel;

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
