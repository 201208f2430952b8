//! What benches race: the engine and its model.
#[cfg(any(test, feature = "model"))]
use super::model;
use super::{Attr, Child, Count, CpuId, Engine, Error, EventId, Pmu, Switch, Task, TaskId};

/// A scheduler of events: [`Engine`] (lazy) or `model::Eager`. The methods are some of those of
/// [`Engine`], which documents them.
#[expect(missing_docs, reason = "the same methods as Engine's, documented there")]
pub trait Scheduler {
    type Task;
    fn task(&self) -> Self::Task;
    fn id(task: &Self::Task) -> TaskId;
    fn fork(&self, parent: &mut Self::Task, child: Child) -> Result<Self::Task, Error>;
    fn exit(&self, task: &mut Self::Task) -> Result<Vec<(EventId, Count)>, Error>;
    fn enter(&self, cpu: CpuId, task: &mut Self::Task) -> Result<(), Error>;
    fn leave(&self, cpu: CpuId, task: &mut Self::Task) -> Result<(), Error>;
    fn switch(&self, cpu: CpuId, from: &mut Self::Task, to: &mut Self::Task) -> Result<Switch, Error>;
    fn open(&self, task: &mut Self::Task, group: &[Attr]) -> Result<Vec<EventId>, Error>;
    fn read(&self, event: EventId) -> Result<Count, Error>;
    fn read_tasks(&self, event: EventId) -> Result<Vec<(TaskId, Count)>, Error>;
}

macro_rules! scheduler {
    ($engine:ident, $task:ident, $($path:tt)*) => {
        impl<P: Pmu> Scheduler for $($path)* $engine<P> {
            type Task = $($path)* $task<P>;
            fn task(&self) -> Self::Task {
                self.task()
            }
            fn id(task: &Self::Task) -> TaskId {
                task.id()
            }
            fn fork(&self, parent: &mut Self::Task, child: Child) -> Result<Self::Task, Error> {
                self.fork(parent, child)
            }
            fn exit(&self, task: &mut Self::Task) -> Result<Vec<(EventId, Count)>, Error> {
                self.exit(task)
            }
            fn enter(&self, cpu: CpuId, task: &mut Self::Task) -> Result<(), Error> {
                self.enter(cpu, task)
            }
            fn leave(&self, cpu: CpuId, task: &mut Self::Task) -> Result<(), Error> {
                self.leave(cpu, task)
            }
            #[inline]
            fn switch(&self, cpu: CpuId, from: &mut Self::Task, to: &mut Self::Task) -> Result<Switch, Error> {
                self.switch(cpu, from, to)
            }
            fn open(&self, task: &mut Self::Task, group: &[Attr]) -> Result<Vec<EventId>, Error> {
                self.open(task, group)
            }
            fn read(&self, event: EventId) -> Result<Count, Error> {
                self.read(event)
            }
            fn read_tasks(&self, event: EventId) -> Result<Vec<(TaskId, Count)>, Error> {
                self.read_tasks(event)
            }
        }
    };
}

scheduler!(Engine, Task,);
#[cfg(any(test, feature = "model"))]
scheduler!(Eager, Task, model::);
