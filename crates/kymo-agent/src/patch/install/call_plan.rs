//! Where one function is patched: at its begin, and where its calls end.
use super::leading::EntryState;
use super::memory::Memory;
use super::plan::{Function, Surroundings, plan_exits};
use super::refusal::Refusal;
use crate::patch::site::Site;
use std::fmt;
use std::rc::Rc;

/// The sites of a function.
#[derive(Clone, Debug)]
pub struct CallPlan {
    /// Its begin, or a place in it.
    pub entry: Site,
    /// Where its calls end, ascending; empty unless they are looked at there.
    pub ends: Vec<u64>,
    /// What is patched for those that are not in `entry`.
    pub exits: Vec<Site>,
}

/// A part of a function, and where in it calls end.
#[derive(Clone, Debug)]
pub struct CallEnds {
    /// The part.
    pub part: Function,
    /// Where calls end, ascending.
    pub ends: Vec<u64>,
    /// Where branches lead, as of [`Surroundings`].
    pub targets: Rc<[u64]>,
}

impl CallPlan {
    /// Plans all of it: `entry` plans the begin. Where the site behind the first instruction would
    /// be among those of an exit, it is in the place of the first one.
    ///
    /// # Errors
    /// What stands against it.
    pub fn of(
        memory: &dyn Memory,
        entry: &dyn Fn(&Surroundings<'_>) -> Result<Site, Refusal>,
        (targets, looks_at): (&[u64], EntryState),
        ends: &[CallEnds],
    ) -> Result<CallPlan, CallRefusal> {
        let with = |looks_at| {
            let entry = entry(&Surroundings { targets, looks_at }).map_err(CallRefusal::Entry)?;
            let mut call = CallPlan { entry, ends: Vec::new(), exits: Vec::new() };
            for ends in ends {
                call.add(memory, ends).map_err(CallRefusal::Exit)?;
            }
            call.ends.sort_unstable();
            Ok(call)
        };
        match with(Some(looks_at)) {
            Ok(call) if !call.overlaps() => Ok(call),
            _ => with(None),
        }
    }

    fn add(
        &mut self,
        memory: &dyn Memory,
        CallEnds { part, ends, targets }: &CallEnds,
    ) -> Result<(), Refusal> {
        // Those in the entry's bytes are its stub's.
        let of_entry = self.entry.address..self.entry.end();
        let others: Vec<u64> = ends.iter().copied().filter(|at| !of_entry.contains(at)).collect();
        let surroundings = Surroundings { targets, looks_at: None };
        self.exits.extend(plan_exits(memory, part, &others, &surroundings)?);
        self.ends.extend(ends);
        Ok(())
    }

    /// Whether an exit's bytes are the entry's, too.
    fn overlaps(&self) -> bool {
        let entry = &self.entry;
        self.exits.iter().any(|exit| exit.address < entry.end() && entry.address < exit.end())
    }

    /// All that is patched, the entry first.
    pub fn sites(&self) -> impl Iterator<Item = &Site> {
        std::iter::once(&self.entry).chain(&self.exits)
    }
}

/// What stands against patching a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallRefusal {
    /// At its begin.
    Entry(Refusal),
    /// Where its calls end.
    Exit(Refusal),
}

impl fmt::Display for CallRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallRefusal::Entry(refusal) => refusal.fmt(f),
            CallRefusal::Exit(refusal) => write!(f, "one of its exits cannot be patched: {refusal}"),
        }
    }
}

impl std::error::Error for CallRefusal {}
