//! Retired memory that readers may still see, kept until a grace period has passed.
//!
//! # Safety
//! Releasing is unsafe; who calls has waited.
#![allow(unsafe_code)]
use super::members::Members;
use super::table::{Link, Table};
use crate::epoch::Retired;
use free::{free_link, free_members, free_table};

/// One thing that was taken out of the registry.
pub(super) enum Garbage<C> {
    Table(Retired<Table<C>>),
    Link(Retired<Link<C>>),
    Members(Retired<Members<C>>),
}

/// What stays of it: nothing, but in tests, where it is poisoned and kept.
#[cfg(not(test))]
pub(super) type Freed<C> = std::marker::PhantomData<C>;
#[cfg(test)]
#[expect(dead_code, reason = "kept, not used: that is the point")]
pub(super) enum Freed<C> {
    Table(std::sync::Arc<Table<C>>),
    Link(std::sync::Arc<Link<C>>),
    Members(std::sync::Arc<Members<C>>),
    Shared,
}

impl<C> Garbage<C> {
    /// Frees it.
    ///
    /// # Safety
    /// A grace period has passed since it was taken out, or there are no readers any more.
    pub(super) unsafe fn release(self) -> Freed<C> {
        match self {
            // SAFETY: the caller's promise, here and below.
            Garbage::Table(table) => free_table(unsafe { table.release() }),
            // SAFETY: as above.
            Garbage::Link(link) => free_link(unsafe { link.release() }),
            // SAFETY: as above.
            Garbage::Members(members) => free_members(unsafe { members.release() }),
        }
    }
}

#[cfg(not(test))]
mod free {
    pub(super) fn free_table<C, T>(_: std::sync::Arc<T>) -> super::Freed<C> {
        Default::default()
    }
    pub(super) use {free_table as free_link, free_table as free_members};
}

#[cfg(test)]
mod free {
    use super::{Freed, Link, Members, Table};
    use std::sync::Arc;

    pub(super) fn free_table<C>(table: Arc<Table<C>>) -> Freed<C> {
        table.poison();
        Freed::Table(table)
    }

    pub(super) fn free_link<C>(link: Arc<Link<C>>) -> Freed<C> {
        if Arc::strong_count(&link) > 1 {
            // A newer chain goes on with it; a count kept here would hide when that one ends.
            return Freed::Shared;
        }
        Link::poison(&link);
        Freed::Link(link)
    }

    pub(super) fn free_members<C>(members: Arc<Members<C>>) -> Freed<C> {
        members.poison();
        Freed::Members(members)
    }
}
