//! Semaphores of markers: counts of listeners that a program looks at before it prepares a marker's
//! arguments.
//!
//! # Safety
//! A word of the program's data, whose place the list of mappings vouches for.
#![allow(unsafe_code)]
use super::maps::Maps;
use crate::patch;
use std::sync::Arc;

/// A count of listeners in the program's data, of 16 bits: the program looks whether it is 0.
#[derive(Debug, Clone)]
pub(super) struct Semaphore {
    module: Arc<[u8]>,
    offset: u64,
    at: u64,
}

impl Semaphore {
    pub(super) fn of(module: &Arc<[u8]>, offset: u64, maps: &Maps) -> Result<Semaphore, &'static str> {
        let at = maps.data(module, offset).ok_or("its semaphore is not mapped")?;
        if at % 2 == 0 {
            Ok(Semaphore { module: Arc::clone(module), offset, at })
        } else {
            Err("its semaphore is at an odd address")
        }
    }

    /// Adds to it, in one step for whoever else does.
    pub(super) fn add(&self, by: i16) {
        // Its module may be gone, or elsewhere by now.
        if Maps::read().is_ok_and(|maps| maps.data(&self.module, self.offset) == Some(self.at)) {
            // SAFETY: mapped for writing as of just now, and even, as of() has seen. Only a module
            // that is unloaded at this very moment is missed.
            unsafe { patch::add_to_count(self.at, by) };
        }
    }
}
