//! The lock as one word that everybody writes: the standard library's `RwLock`. The oracle of the
//! tests, the baseline of benches.
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// One lock for all.
#[derive(Debug)]
pub struct OneLock<T>(RwLock<T>);

impl<T> OneLock<T> {
    /// A lock around a value.
    pub fn new(value: T) -> OneLock<T> {
        OneLock(RwLock::new(value))
    }

    /// Lets a reader in, beside others.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets one writer in, alone.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}
