//! The rule itself, by looking at everything that is reserved: no counts that could be wrong.
use crate::breakpoint::{Config, CpuId, Error, Kind, SlotRequest, TaskId};

/// Whom something is for: a task by its number here, and CPUs.
#[derive(Clone, Debug)]
pub(super) enum Whom {
    Task(usize, Option<CpuId>),
    Cpus(Vec<CpuId>),
}

/// All that is reserved.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub(super) config: Config,
    /// By a number that the caller chose.
    pub(super) held: Vec<(usize, Whom, Kind)>,
}

impl Rule {
    pub(super) fn new(config: Config) -> Rule {
        Rule { config, held: Vec::new() }
    }

    fn of_pool(&self, pool: usize) -> impl Iterator<Item = &Whom> {
        let config = self.config;
        self.held
            .iter()
            .filter(move |(_, _, kind)| config.index(kind.pool()) == pool)
            .map(|(_, whom, _)| whom)
    }

    /// P.
    pub(super) fn own(&self, pool: usize, cpu: CpuId) -> usize {
        let own = |whom: &Whom| match whom {
            Whom::Cpus(cpus) => cpus.iter().filter(|&&one| one == cpu).count(),
            Whom::Task(..) => 0,
        };
        self.of_pool(pool).map(own).sum()
    }

    /// U, divided into what the task has anywhere and what it has on this CPU only.
    pub(super) fn of_task(&self, pool: usize, task: usize, cpu: CpuId) -> (usize, usize) {
        let count = |wanted: Option<CpuId>| {
            let is = |whom: &&Whom| matches!(whom, Whom::Task(t, on) if *t == task && *on == wanted);
            self.of_pool(pool).filter(is).count()
        };
        (count(None), count(Some(cpu)))
    }

    pub(super) fn tasks(&self) -> usize {
        let task = |(_, whom, _): &(usize, Whom, Kind)| match whom {
            Whom::Task(task, _) => task + 1,
            Whom::Cpus(_) => 0,
        };
        self.held.iter().map(task).max().unwrap_or(0)
    }

    /// P and the largest U.
    pub(super) fn taken(&self, pool: usize, cpu: CpuId) -> usize {
        let on = |task| {
            let (any, bound) = self.of_task(pool, task, cpu);
            any + bound
        };
        self.own(pool, cpu) + (0..self.tasks()).map(on).max().unwrap_or(0)
    }

    pub(super) fn reserve(&mut self, number: usize, whom: Whom, kind: Kind) -> Result<(), Error> {
        let (pool, slots) = (kind.pool(), self.config.slots_for(kind.pool()));
        let index = self.config.index(pool);
        let refuse = |taken, task: Option<usize>, cpu| {
            let request = SlotRequest { task: task.map(|task| TaskId(task as u64)), cpu };
            Err(Error::NoSlot { request, pool, slots, taken })
        };
        match &whom {
            &Whom::Task(task, bound) => {
                let cpus = bound.map_or(0..self.config.cpus as u32, |cpu| cpu.0..cpu.0 + 1).map(CpuId);
                let on = |cpu| {
                    let (any, bound) = self.of_task(index, task, cpu);
                    self.own(index, cpu) + any + bound
                };
                let taken = cpus.map(on).max().unwrap_or(0);
                if taken + 1 > slots {
                    return refuse(taken, Some(task), bound);
                }
            }
            Whom::Cpus(cpus) => {
                // One after the other, on a copy.
                let mut so_far = self.clone();
                for &cpu in cpus {
                    let taken = so_far.taken(index, cpu);
                    if taken + 1 > slots {
                        return refuse(taken, None, Some(cpu));
                    }
                    so_far.held.push((number, Whom::Cpus(vec![cpu]), kind));
                }
            }
        }
        self.held.push((number, whom, kind));
        Ok(())
    }

    pub(super) fn release(&mut self, number: usize) -> Option<(Whom, Kind)> {
        let at = self.held.iter().position(|(held, ..)| *held == number)?;
        let (_, whom, kind) = self.held.swap_remove(at);
        Some((whom, kind))
    }

    /// Releases and reserves; if that fails, nothing happened.
    pub(super) fn modify(&mut self, number: usize, kind: Kind) -> Result<(), Error> {
        let before = self.clone();
        let Some((whom, _)) = self.release(number) else {
            return Ok(());
        };
        let done = self.reserve(number, whom, kind);
        if done.is_err() {
            *self = before;
        }
        done
    }
}
