//! Tasks, and their turns on threads.
use super::Error;
use super::counter::Counter;
use super::group::body::{Body, Life, Stats};
use super::reading::Reading;
use super::thread::{here, note};
use std::fmt;
use std::sync::Arc;

/// Something that runs on one thread at a time and is counted wherever it runs: an async task, a
/// fiber, a job of a pool.
///
/// Who has it may run it: as a future ([`instrument`](super::Instrument::instrument)), for the time
/// of a call ([`scope`](Task::scope)), or until the next switch ([`switch`]). Dropping it ends it.
pub struct Task {
    body: Option<Body>,
    stats: Arc<Stats>,
}

/// Reads the numbers of a task that somebody else has. Does not keep the task alive.
#[derive(Clone)]
pub struct Watch {
    stats: Arc<Stats>,
}

impl Task {
    pub(super) fn new(body: Body) -> Task {
        let stats = Arc::clone(&body.stats);
        Task { body: Some(body), stats }
    }

    /// Its number, unique in this process.
    pub fn number(&self) -> u64 {
        self.stats.number
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.stats.name
    }

    /// A look at its numbers for when the task itself has been given away.
    pub fn watch(&self) -> Watch {
        Watch { stats: Arc::clone(&self.stats) }
    }

    /// Its numbers so far. See [`Watch::read`].
    ///
    /// # Errors
    /// If the process was forked from the one that counts.
    pub fn read(&self) -> Result<Reading, Error> {
        self.watch().read()
    }

    /// Runs `what` as this task, on the calling thread. What ran before goes on afterwards; it may
    /// be another task.
    ///
    /// # Errors
    /// If the task has ended or runs already, there are too many threads, or the process was forked
    /// from one that counts. Then `what` was not called.
    pub fn scope<R>(&mut self, what: impl FnOnce() -> R) -> Result<R, Error> {
        let aside = self.begin()?;
        let _turn = Turn { task: self, aside };
        Ok(what())
    }

    /// The same for a poll, which happens counted or not.
    #[inline]
    pub(super) fn poll<R>(&mut self, what: impl FnOnce() -> R) -> R {
        let mut begun = self.begin();
        if let Err(Error::DroppedWhileRunning { task }) = begun {
            // That was said of another task, and holds no longer.
            note(Error::DroppedWhileRunning { task });
            begun = self.begin();
        }
        match begun {
            Ok(aside) => {
                self.stats.polled();
                let _turn = Turn { task: self, aside };
                what()
            }
            Err(error) => {
                note(error);
                self.stats.not_counted();
                what()
            }
        }
    }

    /// Puts it on the calling thread, and gives what ran there, to be put back by a [`Turn`].
    #[inline]
    fn begin(&mut self) -> Result<Option<Body>, Error> {
        if self.body.is_none() {
            return Err(self.stats.why_absent());
        }
        here(|thread| {
            thread.give_to(&self.stats.group)?;
            thread.exchange(&mut self.body)
        })?;
        Ok(self.body.take())
    }

    /// Ends it, and gives its own numbers. The calling thread may run it by [`switch`]; it runs no
    /// task then.
    ///
    /// # Errors
    /// If it has ended before, or another thread runs it.
    pub fn end(&mut self) -> Result<Reading, Error> {
        Error::if_forked()?;
        if self.body.is_none() {
            here(|thread| {
                if !thread.runs(&self.stats) {
                    return Err(self.stats.why_absent());
                }
                thread.switch(Some((&self.stats, &mut self.body)), None)
            })?;
        }
        self.body = None;
        self.read()
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        // Some thread runs it: that thread is told.
        if self.body.is_none() {
            self.stats.lose_owner();
        }
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task")
            .field("number", &self.number())
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}

impl Watch {
    /// The task's number.
    pub fn number(&self) -> u64 {
        self.stats.number
    }

    /// Whether the task has ended.
    pub fn has_ended(&self) -> bool {
        matches!(self.stats.life(), Life::Ended | Life::Stranded)
    }

    /// Its numbers so far, or its last ones. In a group that keeps sums only, the counts are
    /// unknown. Takes as long as the group has tasks; for many tasks take
    /// [`Group::tasks`](super::Group::tasks).
    ///
    /// # Errors
    /// If the process was forked from the one that counts.
    pub fn read(&self) -> Result<Reading, Error> {
        Error::if_forked()?;
        let group = &self.stats.group;
        let columns = if self.has_ended() { Vec::new() } else { group.columns()? };
        Ok(group.reading(&self.stats, &columns))
    }

    /// One count of it, which must be known.
    ///
    /// # Errors
    /// If the group keeps sums only, or does not count this.
    pub fn count(&self, counter: Counter) -> Result<u64, Error> {
        let group = &self.stats.group;
        if !group.is_per_task() {
            return Err(Error::NotPerTask { group: group.name().into() });
        }
        self.read()?
            .get(counter)
            .ok_or_else(|| Error::Unsupported { counter, why: "its group does not count it".into() })
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("number", &self.number()).finish_non_exhaustive()
    }
}

/// While a task runs: afterwards, what ran before goes on.
struct Turn<'a> {
    task: &'a mut Task,
    aside: Option<Body>,
}

impl Drop for Turn<'_> {
    #[inline]
    fn drop(&mut self) {
        let done = here(|thread| {
            if !thread.runs(&self.task.stats) {
                return Err(Error::NotRunningHere { task: self.task.number() });
            }
            thread.exchange(&mut self.aside)
        });
        match done {
            Ok(()) => self.task.body = self.aside.take(),
            Err(error) => note(error),
        }
    }
}

/// Hands the calling thread over from one task to another, as schedulers of fibers do. `None` is
/// the thread itself, outside of tasks.
///
/// # Errors
/// If `from` does not run on this thread (or, for `None`, some task does), or `to` runs or has
/// ended. Nothing was switched then.
pub fn switch(from: Option<&mut Task>, to: Option<&mut Task>) -> Result<(), Error> {
    here(|thread| {
        thread.switch(
            from.map(|task| (&task.stats, &mut task.body)),
            to.map(|task| (&task.stats, &mut task.body)),
        )
    })
}
