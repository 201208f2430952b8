//! Reads the counts of a list: one read for each group, or for each event outside of a group.
use super::{EventSlot, Evlist, UnitContext};
use crate::sys::Perf;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// What one descriptor has counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Read {
    /// The event's index in the list.
    pub event: usize,
    /// The CPU of the descriptor, or [`ANY`](crate::sys::ANY).
    pub cpu: i32,
    /// Its task, or [`ANY`](crate::sys::ANY).
    pub task: i32,
    /// The counter.
    pub value: u64,
    /// How long the event was enabled, in ns; equal to the next where the event does not ask for
    /// times.
    pub enabled_ns: u64,
    /// How long it was on the hardware, in ns.
    pub running_ns: u64,
}

impl Evlist {
    /// Reads all counters, in the order event, CPU, task. A group whose leader was opened with
    /// `FORMAT_GROUP` is read at once, so its members' counts are of one moment.
    ///
    /// # Errors
    /// The first refusal of the kernel; EIO for an answer that does not fit what was asked.
    pub(crate) fn read(&self) -> io::Result<Vec<Read>> {
        let all = Arc::new(Mutex::new(Vec::with_capacity(self.descriptors())));
        let found = Arc::clone(&all);
        self.for_units(move |share| {
            let mut own = Vec::with_capacity(share.unit.len());
            let mut words = vec![0; 3 + 3 * share.shape.events.len()];
            // Leaders whose groups are no more.
            let mut ended: Vec<(usize, i32)> = Vec::new();
            for event in 0..share.shape.events.len() {
                for (slot, fd) in share.unit.event(share.shape, event) {
                    let cpu = share.shape.cpus[event][slot.row];
                    let leader = share.shape.events[event].leader.unwrap_or(event);
                    if share.in_group_read(slot) && !ended.contains(&(leader, cpu)) {
                        continue;
                    }
                    let length = share.kernel.read(fd, &mut words)?;
                    let words = &words[..length.min(words.len())];
                    let members = share.members(slot);
                    // The kernel dissolves the groups of a CPU that goes offline.
                    if !members.is_empty() && words.first() == Some(&1) {
                        ended.push((event, cpu));
                        share.take(slot, Vec::new(), words, &mut own)?;
                    } else {
                        share.take(slot, members, words, &mut own)?;
                    }
                }
            }
            found.lock().unwrap_or_else(PoisonError::into_inner).append(&mut own);
            Ok(())
        })?;
        let mut all = std::mem::take(&mut *all.lock().unwrap_or_else(PoisonError::into_inner));
        all.sort_unstable_by_key(|&(slot, _)| slot);
        self.after_opening().add_counts(&mut all);
        Ok(all.into_iter().map(|(_, read)| read).collect())
    }
}

impl UnitContext<'_> {
    /// Whether the slot's count comes with its leader's.
    fn in_group_read(&self, slot: EventSlot) -> bool {
        let leader = self.shape.events[slot.event].leader;
        leader.is_some_and(|leader| self.shape.events[leader].attr.read_format & Perf::FORMAT_GROUP != 0)
    }

    /// The slots that a read of this one brings with it, in the order in which they joined.
    fn members(&self, slot: EventSlot) -> Vec<EventSlot> {
        let group = self.shape.events[slot.event].attr.read_format & Perf::FORMAT_GROUP != 0;
        let cpu = self.shape.cpus[slot.event][slot.row];
        (slot.event + 1..self.shape.events.len())
            .filter(|&event| group && self.shape.events[event].leader == Some(slot.event))
            .filter_map(|event| {
                let row = self.shape.cpus[event].binary_search(&cpu).ok()?;
                Some(EventSlot { event, row, column: slot.column })
            })
            .collect()
    }

    /// Takes the answer to one read apart.
    fn take(
        &self,
        slot: EventSlot,
        members: Vec<EventSlot>,
        words: &[u64],
        out: &mut Vec<(EventSlot, Read)>,
    ) -> io::Result<()> {
        let format = self.shape.events[slot.event].attr.read_format;
        let has = |bit| usize::from(format & bit != 0);
        let (enabled, running) = (has(Perf::FORMAT_TOTAL_TIME_ENABLED), has(Perf::FORMAT_TOTAL_TIME_RUNNING));
        let group = has(Perf::FORMAT_GROUP) == 1;
        let each = 1 + has(Perf::FORMAT_ID) + has(Perf::FORMAT_LOST);
        let strange = || io::Error::from_raw_os_error(libc::EIO);
        let slots: Vec<EventSlot> = std::iter::once(slot).chain(members).collect();
        let cpu = self.shape.cpus[slot.event][slot.row];
        let task = self.shape.tasks[slot.column];
        let mut push = |slot: EventSlot, value, enabled_ns, running_ns| {
            out.push((slot, Read { event: slot.event, cpu, task, value, enabled_ns, running_ns }));
        };
        if words.is_empty() {
            // A pinned event that did not get its place on the hardware: it was not counted, and so
            // were its members.
            slots.into_iter().for_each(|slot| push(slot, 0, 0, 0));
            return Ok(());
        }
        // Alone: value, times. A group: how many, times, then the values of each.
        let times = words.get(1..).ok_or_else(strange)?;
        let enabled_ns = if enabled == 1 { *times.first().ok_or_else(strange)? } else { 0 };
        let running_ns = if running == 1 { *times.get(enabled).ok_or_else(strange)? } else { enabled_ns };
        if !group {
            push(slot, words[0], enabled_ns, running_ns);
            return Ok(());
        }
        let values = words.get(1 + enabled + running..).ok_or_else(strange)?.chunks_exact(each);
        if words[0] != slots.len() as u64 || values.len() < slots.len() {
            return Err(strange());
        }
        slots
            .into_iter()
            .zip(values)
            .for_each(|(slot, values)| push(slot, values[0], enabled_ns, running_ns));
        Ok(())
    }
}
