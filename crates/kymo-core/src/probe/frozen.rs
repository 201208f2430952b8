//! A registry across a fork.
use super::consumer::Consumer;
use super::reader_handle::ReaderHandle;
use super::registry::{Registry, WriterState};
use super::sites::Sites;
use crate::epoch::{Fence, Frozen};
use crate::sync::MutexGuard;
use std::fmt;

impl<C: Consumer, S: Sites, F: Fence> Registry<C, S, F> {
    /// Keeps writers and grace periods out across a fork. In the child call
    /// [`FrozenRegistry::into_child`], in the parent drop it.
    pub fn freeze(&self) -> FrozenRegistry<'_, C, S, F> {
        let state = self.lock();
        FrozenRegistry { frozen: self.domain.freeze(), _books: state }
    }
}

/// A registry that nobody changes. See [`Registry::freeze`].
#[must_use = "writers wait until this is dropped"]
pub struct FrozenRegistry<'r, C: Consumer, S: Sites, F: Fence> {
    frozen: Frozen<'r, F>,
    _books: MutexGuard<'r, WriterState<C, S>>,
}

impl<C: Consumer, S: Sites, F: Fence> FrozenRegistry<'_, C, S, F> {
    /// In a forked child: forgets the parent's other threads. `me` is the reader of the thread that
    /// forked, if it has one.
    pub fn into_child(self, me: Option<&ReaderHandle<'_, C, S, F>>) {
        self.frozen.into_child(me.map(ReaderHandle::reader));
    }
}

impl<C: Consumer, S: Sites, F: Fence> fmt::Debug for FrozenRegistry<'_, C, S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrozenRegistry").finish_non_exhaustive()
    }
}
