//! A share of a list that one worker opens, switches and closes: some CPUs x some tasks, of all
//! events.
//!
//! Inside a unit slots are opened in serial order (event, CPU, task), whatever its share is. So the
//! least of all units' first refusals is the refusal that the serial engine meets first, and a
//! member's leader, which has the same CPU and the same task, is in the same unit and open already.
use super::shape::{EventSlot, EvlistShape};
use crate::sys::{Descriptor, Kernel};
use std::io;
use std::ops::Range;

/// Which slots belong to a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// All of them.
    All,
    /// All tasks on one CPU.
    Cpu(i32),
    /// Some tasks on all CPUs: their columns, ascending.
    Columns(Vec<usize>),
}

impl Share {
    /// The rows of an event that belong to it.
    fn rows(&self, shape: &EvlistShape, event: usize) -> Range<usize> {
        match self {
            Share::Cpu(cpu) => shape.cpus[event].binary_search(cpu).map_or(0..0, |row| row..row + 1),
            _ => 0..shape.cpus[event].len(),
        }
    }

    fn columns(&self, shape: &EvlistShape) -> usize {
        match self {
            Share::Columns(columns) => columns.len(),
            _ => shape.tasks.len(),
        }
    }

    fn column(&self, at: usize) -> usize {
        match self {
            Share::Columns(columns) => columns[at],
            _ => at,
        }
    }

    /// A column is gone from the shape: where it was here.
    fn remove(&mut self, column: usize) -> Option<usize> {
        let Share::Columns(columns) = self else { return Some(column) };
        let found = columns.binary_search(&column);
        let at = found.unwrap_or_else(|at| at);
        if found.is_ok() {
            columns.remove(at);
        }
        // Those behind it have moved up.
        columns[at..].iter_mut().for_each(|column| *column -= 1);
        found.ok()
    }
}

/// What has changed since a unit stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Edit {
    /// Nothing that concerns what is open.
    Nothing,
    /// This column is gone.
    Column(usize),
    /// Everything from this event on is to be opened anew.
    Event(usize),
    /// Everything from this ordinal on is to be given back.
    Ordinal(usize),
}

/// A share and what is open of it.
#[derive(Debug)]
pub(crate) struct Unit {
    pub(crate) share: Share,
    /// The CPU where its calls are made best.
    pub(crate) home: Option<u32>,
    /// By event, row and column of the share. The last row of the last event may be short: there
    /// the opening goes on.
    fds: Vec<Vec<Vec<Descriptor>>>,
}

impl Unit {
    pub(crate) fn new(share: Share, home: Option<u32>) -> Unit {
        Unit { share, home, fds: Vec::new() }
    }

    /// How many descriptors it has.
    pub(crate) fn len(&self) -> usize {
        self.fds.iter().flatten().map(Vec::len).sum()
    }

    /// The descriptor at a row of an event and a place among the share's columns.
    fn get(&self, shape: &EvlistShape, event: usize, row: usize, at: usize) -> Option<&Descriptor> {
        let first = self.share.rows(shape, event).start;
        self.fds.get(event)?.get(row.checked_sub(first)?)?.get(at)
    }

    /// All that is open of an event, with its slots.
    pub(crate) fn event<'a>(
        &'a self,
        shape: &'a EvlistShape,
        event: usize,
    ) -> impl Iterator<Item = (EventSlot, &'a Descriptor)> + 'a {
        let first = self.share.rows(shape, event).start;
        self.fds.get(event).into_iter().flatten().enumerate().flat_map(move |(row, fds)| {
            let slot = move |at| EventSlot { event, row: first + row, column: self.share.column(at) };
            fds.iter().enumerate().map(move |(at, fd)| (slot(at), fd))
        })
    }

    /// Opens until everything is, an open fails, or the slot of ordinal `below` is reached.
    ///
    /// # Errors
    /// The slot that failed, and why.
    pub(crate) fn advance(
        &mut self,
        kernel: &dyn Kernel,
        shape: &EvlistShape,
        below: usize,
    ) -> Result<(), (EventSlot, io::Error)> {
        let columns = self.share.columns(shape);
        for event in self.fds.len().saturating_sub(1)..shape.events.len() {
            if self.fds.len() == event {
                self.fds.push(Vec::new());
            }
            let rows = self.share.rows(shape, event);
            for row in rows.clone().skip(self.fds[event].len().saturating_sub(1)) {
                if self.fds[event].len() == row - rows.start {
                    self.fds[event].push(Vec::with_capacity(columns));
                }
                for at in self.fds[event][row - rows.start].len()..columns {
                    let slot = EventSlot { event, row, column: self.share.column(at) };
                    if below != usize::MAX && shape.ordinal(slot) >= below {
                        return Ok(());
                    }
                    let leader = |event: usize, row: usize| self.get(shape, event, row, at);
                    match shape.open(kernel, slot, leader) {
                        Ok(fd) => self.fds[event][row - rows.start].push(fd),
                        Err(error) => return Err((slot, error)),
                    }
                }
            }
        }
        Ok(())
    }

    /// Makes what is open fit the changed shape.
    pub(crate) fn apply(&mut self, kernel: &dyn Kernel, shape: &EvlistShape, edit: Edit) {
        match edit {
            Edit::Nothing => {}
            Edit::Column(column) => {
                let Some(at) = self.share.remove(column) else { return };
                // Members first: a leader that is closed before them leaves them enabled on their
                // own.
                let rows = self.fds.iter_mut().rev().flatten();
                for fd in rows.filter(|row| at < row.len()).map(|row| row.remove(at)) {
                    kernel.close(vec![fd]);
                }
            }
            Edit::Event(event) => {
                let later = self.fds.split_off(event.min(self.fds.len()));
                for event in later.into_iter().rev() {
                    kernel.close(event.into_iter().flatten().collect());
                }
            }
            Edit::Ordinal(ordinal) => self.trim(kernel, shape, ordinal),
        }
    }

    /// Closes from the end until only slots before `ordinal` are open.
    fn trim(&mut self, kernel: &dyn Kernel, shape: &EvlistShape, ordinal: usize) {
        while let Some(event) = self.fds.len().checked_sub(1) {
            let first = self.share.rows(shape, event).start;
            let Some(row) = self.fds[event].len().checked_sub(1) else {
                self.fds.pop();
                continue;
            };
            let fds = &mut self.fds[event][row];
            let Some(at) = fds.len().checked_sub(1) else {
                self.fds[event].pop();
                continue;
            };
            if shape.ordinal(EventSlot { event, row: first + row, column: self.share.column(at) }) < ordinal {
                return;
            }
            kernel.close(fds.pop().into_iter().collect());
        }
    }

    /// Closes everything, members of groups before all leaders.
    pub(crate) fn close(&mut self, kernel: &dyn Kernel, shape: &EvlistShape) {
        let (mut members, mut leaders) = (Vec::new(), Vec::new());
        for (event, rows) in std::mem::take(&mut self.fds).into_iter().enumerate() {
            let side = if shape.leads(event) { &mut leaders } else { &mut members };
            side.extend(rows.into_iter().flatten());
        }
        kernel.close(members);
        kernel.close(leaders);
    }

    /// The share of everything, as the serial engine opens it.
    pub(crate) fn whole(fds: Vec<Vec<Vec<Descriptor>>>) -> Unit {
        Unit { share: Share::All, home: None, fds }
    }
}

/// All units of a list.
#[derive(Debug, Default)]
pub(crate) struct Units {
    units: Vec<Unit>,
    /// Where each column is, if units have columns: unit, place in it.
    columns: Vec<(usize, usize)>,
}

impl Units {
    pub(crate) fn new(units: Vec<Unit>, shape: &EvlistShape) -> Units {
        let mut columns = Vec::new();
        for (index, unit) in units.iter().enumerate() {
            if let Share::Columns(own) = &unit.share {
                columns.resize(shape.tasks.len(), (0, 0));
                own.iter().enumerate().for_each(|(at, &column)| columns[column] = (index, at));
            }
        }
        Units { units, columns }
    }

    /// The units.
    pub(crate) fn as_slice(&self) -> &[Unit] {
        &self.units
    }

    /// Takes them apart.
    pub(crate) fn into_vec(self) -> Vec<Unit> {
        self.units
    }

    /// How many descriptors there are.
    pub(crate) fn len(&self) -> usize {
        self.units.iter().map(Unit::len).sum()
    }

    /// The descriptor of a slot.
    pub(crate) fn get(&self, shape: &EvlistShape, slot: EventSlot) -> Option<&Descriptor> {
        let (unit, at) = match self.units.first()?.share {
            Share::All => (0, slot.column),
            Share::Columns(_) => *self.columns.get(slot.column)?,
            Share::Cpu(_) => {
                let cpu = *shape.cpus.get(slot.event)?.get(slot.row)?;
                (self.units.binary_search_by_key(&cpu, Unit::cpu).ok()?, slot.column)
            }
        };
        self.units.get(unit)?.get(shape, slot.event, slot.row, at)
    }

    /// All descriptors of an event in the order CPU, task, with their slots.
    pub(crate) fn event<'a>(
        &'a self,
        shape: &'a EvlistShape,
        event: usize,
    ) -> impl Iterator<Item = (EventSlot, &'a Descriptor)> + 'a {
        let rows = 0..shape.cpus.get(event).map_or(0, Vec::len);
        let slots = rows
            .flat_map(move |row| (0..shape.tasks.len()).map(move |column| EventSlot { event, row, column }));
        slots.filter_map(|slot| Some((slot, self.get(shape, slot)?)))
    }
}

impl Unit {
    fn cpu(&self) -> i32 {
        match self.share {
            Share::Cpu(cpu) => cpu,
            _ => crate::sys::ANY,
        }
    }
}
