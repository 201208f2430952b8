//! A probe's consumers as hits see them: a list that never changes, exchanged as a whole.
use super::consumer::{Consumer, Verdict, Wants};
use super::instance::{ConsumerId, Cookies};
use std::sync::Arc;

/// One registration.
pub(super) struct Member<C> {
    pub(super) id: ConsumerId,
    pub(super) wants: Wants,
    pub(super) consumer: Arc<C>,
}

impl<C> Clone for Member<C> {
    fn clone(&self) -> Self {
        Member { id: self.id, wants: self.wants, consumer: Arc::clone(&self.consumer) }
    }
}

/// What entry handlers said, all together.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entered {
    /// Somebody wants the return.
    pub(super) awaits: bool,
    /// All said that the site may go, and there was one.
    pub(super) removes: bool,
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

    /// Calls the entry handlers. `keep` gets the cookies of those that want pairs, and says whether there was room.
    #[inline]
    pub(super) fn enter(
        &self,
        context: &mut C::Context,
        mut keep: impl FnMut(ConsumerId, u64) -> bool,
    ) -> Entered {
        let mut entered = Entered { awaits: false, removes: !self.list.is_empty() };
        for member in self.list() {
            if member.wants == Wants::Return {
                entered = Entered { awaits: true, removes: false };
                continue;
            }
            let mut cookie = 0;
            let verdict = member.consumer.entry(context, &mut cookie);
            entered.removes &= verdict == Verdict::Remove;
            if member.wants == Wants::Both && verdict == Verdict::Keep {
                entered.awaits |= keep(member.id, cookie);
            }
        }
        entered
    }

    pub(super) fn leave(&self, context: &mut C::Context, cookies: &Cookies) {
        for member in self.list() {
            match member.wants {
                Wants::Entry => {}
                Wants::Return => member.consumer.leave(context, None),
                Wants::Both => {
                    let cookie = cookies.get(member.id);
                    if cookie.is_some() {
                        member.consumer.leave(context, cookie);
                    }
                }
            }
        }
    }
}
