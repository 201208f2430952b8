//! A probe's consumers as hits see them: a list that never changes, exchanged as a whole.
use super::consumer::{Consumer, Verdict};
use std::sync::Arc;

/// The number of a registration: never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ConsumerId(pub(super) u64);

/// One registration.
pub(super) struct Member<C> {
    pub(super) id: ConsumerId,
    pub(super) consumer: Arc<C>,
}

impl<C> Clone for Member<C> {
    fn clone(&self) -> Self {
        Member { id: self.id, consumer: Arc::clone(&self.consumer) }
    }
}

/// The consumers of a probe, oldest first.
pub(super) struct Members<C> {
    list: Box<[Member<C>]>,
    #[cfg(test)]
    canary: super::canary::Canary,
}

#[cfg(test)]
impl<C> Members<C> {
    pub(super) fn poison(&self) {
        self.canary.poison();
    }
}

impl<C: Consumer> Members<C> {
    pub(super) fn new(list: Vec<Member<C>>) -> Members<C> {
        Members {
            list: list.into_boxed_slice(),
            #[cfg(test)]
            canary: Default::default(),
        }
    }

    #[inline]
    pub(super) fn list(&self) -> &[Member<C>] {
        #[cfg(test)]
        self.canary.check();
        &self.list
    }

    /// Calls the handlers. Whether all said that the site may go, and there was one.
    #[inline]
    pub(super) fn hit(&self, context: &mut C::Context) -> bool {
        let mut removes = !self.list.is_empty();
        for member in self.list() {
            removes &= member.consumer.hit(context) == Verdict::Remove;
        }
        removes
    }
}
