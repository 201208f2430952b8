//! The account as it was kept before: one mutex, one list of all breakpoints of tasks, and for
//! every request a walk through that list for each CPU. The oracle of the tests, and the baseline
//! of the benches.
//!
//! It does the work of kernels up to 6.0, step by step: to ask for a slot, all CPUs that the
//! breakpoint can be on, each with a walk to count what the task has there; to write it down, the
//! same CPUs and walks again. In one point it is kinder than those were: its list is an array, not
//! scattered over the heap.
use super::{Config, CpuId, Error, Kind, Pool, SlotRequest, Target, TaskId};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One breakpoint of a task.
#[derive(Clone, Copy, Debug)]
struct Listed {
    number: u64,
    task: u64,
    cpu: Option<CpuId>,
    pool: usize,
}

/// Of one CPU and pool.
#[derive(Clone, Debug)]
struct ListRow {
    /// Slots that the CPU has for itself.
    own: u32,
    /// `[n - 1]`: how many tasks have n slots here.
    tasks: Vec<u32>,
}

#[derive(Clone, Debug)]
struct ListState {
    config: Config,
    list: Vec<Listed>,
    rows: Vec<Vec<ListRow>>,
    last_number: u64,
    last_task: u64,
}

/// The account with one list.
#[derive(Debug)]
pub struct OneList(Arc<Mutex<ListState>>);

/// A task of the model.
#[derive(Clone, Copy, Debug)]
pub struct Task {
    id: TaskId,
    key: u64,
}

impl Task {
    /// The number that the caller gave it.
    pub fn id(&self) -> TaskId {
        self.id
    }
}

/// A slot of the model, until it is dropped.
#[derive(Debug)]
pub struct Reservation {
    state: Arc<Mutex<ListState>>,
    place: ListPlace,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum ListPlace {
    Task { task: Task, cpu: Option<CpuId>, number: u64 },
    Cpus(Vec<CpuId>),
}

/// Each method does what that of [`Ledger`](super::Ledger) does, and has its errors, except that a
/// task of another account is not noticed.
#[allow(missing_docs, reason = "they are described there")]
impl OneList {
    pub fn new(config: Config) -> Result<OneList, Error> {
        config.check()?;
        let row = |pool: Pool| ListRow { own: 0, tasks: vec![0; config.slots_for(pool)] };
        let pools = [Pool::Data, Pool::Instructions].into_iter().take(config.pools());
        let rows = pools.map(|pool| vec![row(pool); config.cpus]).collect();
        let state = ListState { config, list: Vec::new(), rows, last_number: 0, last_task: 0 };
        Ok(OneList(Arc::new(Mutex::new(state))))
    }

    pub fn task(&self, id: TaskId) -> Task {
        let mut state = lock(&self.0);
        state.last_task += 1;
        Task { id, key: state.last_task }
    }

    pub fn reserve(&self, target: Target<'_, Task>, kind: Kind) -> Result<Reservation, Error> {
        let mut state = lock(&self.0);
        let cpus = state.config.cpus;
        let mut place = match target {
            Target::Task(task) => ListPlace::Task { task: *task, cpu: None, number: 0 },
            Target::TaskOn(task, cpu) => ListPlace::Task { task: *task, cpu: Some(cpu), number: 0 },
            Target::Cpu(cpu) => ListPlace::Cpus(vec![cpu]),
            Target::Cpus(cpus) => ListPlace::Cpus(cpus.to_vec()),
            Target::AllCpus => ListPlace::Cpus((0..cpus as u32).map(CpuId).collect()),
        };
        let named = match &place {
            ListPlace::Task { cpu, .. } => cpu.as_slice(),
            ListPlace::Cpus(named) if named.is_empty() => return Err(Error::NoCpus),
            ListPlace::Cpus(named) => named,
        };
        if let Some(&cpu) = named.iter().find(|cpu| cpu.0 as usize >= cpus) {
            return Err(Error::UnknownCpu { cpu, cpus });
        }
        state.take(&mut place, kind.pool())?;
        drop(state);
        Ok(Reservation { state: Arc::clone(&self.0), place, kind })
    }

    pub fn is_unused(&self) -> bool {
        let state = lock(&self.0);
        let empty = |row: &ListRow| row.own == 0 && row.tasks.iter().all(|&n| n == 0);
        state.list.is_empty() && state.rows.iter().flatten().all(empty)
    }
}

impl Reservation {
    /// As [`Reservation::modify`](super::Reservation::modify).
    ///
    /// # Errors
    /// The same.
    pub fn modify(&mut self, kind: Kind) -> Result<(), Error> {
        let mut state = lock(&self.state);
        if kind.bits() == self.kind.bits() {
            return Ok(());
        }
        state.give_back(&self.place, self.kind.pool());
        if let Err(error) = state.take(&mut self.place, kind.pool()) {
            let again = state.take(&mut self.place, self.kind.pool());
            assert_eq!(again, Ok(()), "what was just given back is gone");
            return Err(error);
        }
        self.kind = kind;
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        lock(&self.state).give_back(&self.place, self.kind.pool());
    }
}

impl ListState {
    /// What the task has on a CPU: a walk through the whole list.
    fn of_task(&self, task: u64, pool: usize, cpu: CpuId) -> u32 {
        let counts = |listed: &&Listed| {
            listed.task == task && listed.pool == pool && listed.cpu.is_none_or(|bound| bound == cpu)
        };
        self.list.iter().filter(counts).count() as u32
    }

    fn cpus(&self, bound: Option<CpuId>) -> impl Iterator<Item = CpuId> + use<> {
        let all = bound.map_or(0..self.config.cpus as u32, |cpu| cpu.0..cpu.0 + 1);
        all.map(CpuId)
    }

    fn take(&mut self, place: &mut ListPlace, pool: Pool) -> Result<(), Error> {
        let (slots, index) = (self.config.slots_for(pool), self.config.index(pool));
        let refuse = |taken: u32, task, cpu| {
            let taken = taken as usize;
            Err(Error::NoSlot { request: SlotRequest { task, cpu }, pool, slots, taken })
        };
        match place {
            ListPlace::Task { task, cpu, number } => {
                let on =
                    |cpu: CpuId| self.rows[index][cpu.0 as usize].own + self.of_task(task.key, index, cpu);
                let taken = self.cpus(*cpu).map(on).max().unwrap_or(0);
                if taken as usize >= slots {
                    return refuse(taken, Some(task.id), *cpu);
                }
                for cpu in self.cpus(*cpu) {
                    let has = self.of_task(task.key, index, cpu) as usize;
                    let row = &mut self.rows[index][cpu.0 as usize];
                    if has > 0 {
                        row.tasks[has - 1] -= 1;
                    }
                    row.tasks[has] += 1;
                }
                self.last_number += 1;
                *number = self.last_number;
                self.list.push(Listed { number: *number, task: task.key, cpu: *cpu, pool: index });
            }
            ListPlace::Cpus(cpus) => {
                for (done, &cpu) in cpus.iter().enumerate() {
                    let row = &self.rows[index][cpu.0 as usize];
                    let tasks = row.tasks.iter().rposition(|&n| n > 0).map_or(0, |at| at as u32 + 1);
                    let taken = row.own + tasks;
                    if taken as usize >= slots {
                        for cpu in &cpus[..done] {
                            self.rows[index][cpu.0 as usize].own -= 1;
                        }
                        return refuse(taken, None, Some(cpu));
                    }
                    self.rows[index][cpu.0 as usize].own += 1;
                }
            }
        }
        Ok(())
    }

    fn give_back(&mut self, place: &ListPlace, pool: Pool) {
        let index = self.config.index(pool);
        match place {
            ListPlace::Task { task, cpu, number } => {
                // One pass more than a linked list needs, beside two for each CPU. From the end:
                // mostly it is there.
                if let Some(at) = self.list.iter().rposition(|listed| listed.number == *number) {
                    self.list.swap_remove(at);
                }
                for cpu in self.cpus(*cpu) {
                    let left = self.of_task(task.key, index, cpu) as usize;
                    let row = &mut self.rows[index][cpu.0 as usize];
                    row.tasks[left] -= 1;
                    if left > 0 {
                        row.tasks[left - 1] += 1;
                    }
                }
            }
            ListPlace::Cpus(cpus) => {
                for cpu in cpus {
                    self.rows[index][cpu.0 as usize].own -= 1;
                }
            }
        }
    }
}

fn lock(state: &Mutex<ListState>) -> MutexGuard<'_, ListState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
