//! Contended locks: which, how long threads wait for them, where, and where those are that have
//! them.
//!
//! *You give it* a recording of `kymo locks`; *it gives you* [`Locks`]: a [`LockRow`] for each
//! lock, those that cost most first.
//!
//! ```text
//!  lock-wait -> rows: waits --+-> what each is for, by its stack (futex_kind)
//!  lock-wake -> rows: wakes --|-> locks: waiters and holders by place (table)
//!  lock-sums -> rows: sums ---'-> times and quantiles;  names of addresses (names)
//!  lock-holds -> rows: holds ---> how long each lock was held, and where it was taken (held)
//! ```
//!
//! # Invariants
//! - **K1** Waits, total and longest of a lock that is known by its address are the kernel's sums:
//!   exact, whatever was lost. How they divide among places is as good as samples.
//! - **K2** A wait on a condition is never counted as contention, if its stack says what it is.
//! - **K3** The result does not depend on the number of workers.
//!
//! # What a lock is known by
//! By the address of its futex, where that is part of the lock (pthreads, Rust's standard library,
//! Go's runtime). Some runtimes and libraries have a futex for each thread (Java's monitors,
//! parking_lot, PostgreSQL): there the place where the lock is taken stands for it.
mod held;
mod json;
mod lock;
mod names;
mod rows;
mod table;
#[cfg(test)]
mod tests;
mod text;

pub use crate::futex_kind::LockKind;
pub use json::write_locks_json;
pub use lock::{HoldPlace, Holds, LockPlace, LockRow};
pub use text::write_locks;

use crate::functions::{FunctionId, Functions};
use crate::load::{LoadOptions, Progress, collect_sideband};
use crate::resolve::{ResolveOptions, Resolver};
use crate::timeline::Timeline;
use crate::wall::{plain_name, site_text};
use kymo_data::{ReadSummary, Recording};
use kymo_symbols::SymbolStore;
pub(crate) use names::Names;
pub(crate) use rows::{HOLDS, WAIT};

/// The locks of a recording.
#[derive(Debug)]
pub struct Locks {
    /// Who was what, when.
    pub timeline: Timeline,
    /// Names.
    pub functions: Functions,
    /// What threads waited for, the most time first; what is no contention, too.
    pub rows: Vec<LockRow>,
    /// Whether it was observed how long locks are held.
    pub has_holds: bool,
    /// What the reader saw (problems of the file).
    pub summary: ReadSummary,
}

impl Locks {
    /// Reads a recording; `None` if it does not tell of locks.
    ///
    /// # Errors
    /// When the file cannot be read at all.
    pub fn open(
        recording: &Recording,
        options: &LoadOptions,
        resolve: ResolveOptions,
        store: &SymbolStore,
        progress: Progress<'_>,
    ) -> Result<Option<Locks>, kymo_data::ReadError> {
        if !rows::has_locks(recording) {
            return Ok(None);
        }
        let (timeline, ..) = collect_sideband(recording, options.workers, store.options(), &|done, all| {
            progress(0, done, all)
        })?;
        let (rows, summary) = rows::read(recording, &timeline, options, &|done, all| progress(1, done, all))?;
        let mut functions = Functions::default();
        let stacks = Resolver::new(&timeline, store).resolve(&rows.chains, &mut functions, resolve);
        let mut names = Names::new(&timeline, store);
        let has_holds = rows.has_holds;
        let rows =
            table::rows(&rows, &stacks, &functions, &timeline, &mut |maps, address| names.of(maps, address));
        Ok(Some(Locks { timeline, functions, rows, has_holds, summary }))
    }

    /// The names of a place's functions, innermost first.
    pub(crate) fn names(&self, place: &[FunctionId]) -> Vec<String> {
        place.iter().map(|id| plain_name(&self.functions, *id)).collect()
    }

    /// The file that a place is in.
    pub(crate) fn module(&self, place: &[FunctionId]) -> Option<&str> {
        let module = self.functions.get(*place.first()?).module?;
        Some(&self.timeline.modules.get(module).short_name)
    }

    /// A place in a line.
    pub fn place_text(&self, place: &[FunctionId]) -> String {
        site_text(&self.functions, &self.timeline.modules, place)
    }
}
