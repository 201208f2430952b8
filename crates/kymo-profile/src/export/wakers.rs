//! Who ended waits: names of threads, and what interrupts did.
use crate::columns::{Columns, RowField};
use crate::timeline::CommId;
use crate::wall::{INTERRUPT_CAUSES, Wall};
use rustc_hash::FxHashMap;

/// The names of those that ended waits.
#[derive(Debug, Default)]
pub(super) struct Wakers {
    /// The names, by number less one: the causes of interrupts come first.
    names: Vec<String>,
    /// By thread of the columns the number of its name.
    of_threads: Vec<u32>,
}

impl Wakers {
    pub(super) fn of(wall: &Wall, columns: &Columns) -> Wakers {
        let mut wakers = Wakers { names: INTERRUPT_CAUSES.map(str::to_owned).into(), of_threads: Vec::new() };
        let mut numbers: FxHashMap<CommId, u32> = FxHashMap::default();
        for thread in columns.threads.iter() {
            let number = *numbers.entry(thread.comm).or_insert_with(|| {
                wakers.names.push(wall.timeline.comm(thread.comm).into_owned());
                wakers.names.len() as u32
            });
            wakers.of_threads.push(number);
        }
        wakers
    }

    /// The number of who ended the wait of a row, 0 if nobody is known to have.
    pub(super) fn number(&self, row: usize, columns: &Columns) -> u32 {
        match columns.get(RowField::Waker, row).checked_sub(1) {
            Some(thread) => self.of_threads.get(thread as usize).copied().unwrap_or(0),
            None if self.names.is_empty() => 0,
            None => columns.get(RowField::Extra, row) as u32,
        }
    }

    /// The name of a number.
    pub(super) fn name(&self, number: u32) -> Option<&str> {
        self.names.get((number as usize).checked_sub(1)?).map(String::as_str)
    }
}
