//! What should be counted, found without any scheduling: at each piece of work, one looks who runs
//! and what counts him.
use crate::context::{Attr, Child, Count, CpuId, EventId, Inherit};
use std::collections::BTreeMap;

/// One event for one task. Task 0 stands for a CPU's events.
#[derive(Clone, Debug)]
struct One {
    enabled: bool,
    on_exec: bool,
    lives: bool,
    count: Count,
}

#[derive(Debug)]
struct Top {
    attr: Attr,
    leader: EventId,
    cpu: Option<CpuId>,
    tasks: BTreeMap<u64, One>,
}

/// Every event that is open, for every task there ever was.
#[derive(Debug, Default)]
pub(super) struct Truth {
    tops: BTreeMap<EventId, Top>,
}

impl Truth {
    pub(super) fn open(&mut self, task: u64, cpu: Option<CpuId>, group: &[Attr], events: &[EventId]) {
        for (&attr, &event) in group.iter().zip(events) {
            let one = One {
                enabled: !attr.disabled,
                on_exec: attr.enable_on_exec,
                lives: true,
                count: Count::default(),
            };
            self.tops
                .insert(event, Top { attr, leader: events[0], cpu, tasks: BTreeMap::from([(task, one)]) });
        }
    }

    pub(super) fn close(&mut self, event: EventId) {
        self.tops.remove(&event);
        for (id, top) in &mut self.tops {
            if top.leader == event {
                top.leader = *id;
            }
        }
    }

    pub(super) fn fork(&mut self, parent: u64, child: u64, kind: Child) {
        for top in self.tops.values_mut() {
            let inherited = match top.attr.inherit {
                Inherit::No => false,
                Inherit::Threads => kind == Child::Thread,
                Inherit::All => true,
            };
            if let Some(one) = top.tasks.get(&parent).filter(|one| one.lives && inherited) {
                top.tasks.insert(child, One { count: Count::default(), ..one.clone() });
            }
        }
    }

    pub(super) fn exec(&mut self, task: u64) {
        for top in self.tops.values_mut() {
            if let Some(one) = top.tasks.get_mut(&task) {
                one.enabled |= std::mem::take(&mut one.on_exec);
                one.lives &= !top.attr.remove_on_exec;
            }
        }
    }

    pub(super) fn exit(&mut self, task: u64) -> Vec<(EventId, Count)> {
        let mut counts = Vec::new();
        for (&event, top) in &mut self.tops {
            if let Some(one) = top.tasks.get_mut(&task).filter(|one| one.lives) {
                one.lives = false;
                if top.attr.inherit_stat {
                    counts.push((event, one.count));
                }
            }
        }
        counts
    }

    pub(super) fn enable(&mut self, event: EventId, enabled: bool) {
        let ones = self.tops.get_mut(&event).into_iter().flat_map(|top| top.tasks.values_mut());
        ones.filter(|one| one.lives).for_each(|one| one.enabled = enabled);
    }

    /// Time passes on a CPU where this task runs.
    pub(super) fn work(&mut self, cpu: CpuId, task: Option<u64>, ns: u64) {
        let mut counts = Vec::new();
        for (&event, top) in &self.tops {
            let task = match top.cpu {
                Some(at) => (at == cpu).then_some(0),
                None => task,
            };
            let Some(task) = task else { continue };
            let enabled = |event: EventId| {
                let one = self.tops.get(&event).and_then(|top| top.tasks.get(&task));
                one.filter(|one| one.lives).map(|one| one.enabled)
            };
            // Without its leader, an event is one by itself.
            if enabled(event) == Some(true) && enabled(top.leader) != Some(false) {
                counts.push((event, task));
            }
        }
        for (event, task) in counts {
            let Some(top) = self.tops.get_mut(&event) else { continue };
            let here = top.attr.cpu.is_none_or(|only| only == cpu);
            let Some(one) = top.tasks.get_mut(&task) else { continue };
            one.count.enabled_ns += ns;
            if here {
                one.count.running_ns += ns;
                one.count.value += super::units(top.attr.source, ns);
            }
        }
    }

    pub(super) fn total(&self, event: EventId) -> Count {
        self.tops[&event].tasks.values().fold(Count::default(), |sum, one| sum.plus(one.count))
    }

    pub(super) fn per_task(&self, event: EventId) -> Vec<(u64, Count)> {
        let tasks = self.tops[&event].tasks.iter();
        tasks.filter(|(_, one)| one.lives).map(|(&task, one)| (task, one.count)).collect()
    }
}
