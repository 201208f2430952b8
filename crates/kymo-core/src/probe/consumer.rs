//! What is done at a hit.

/// When a consumer is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wants {
    /// When the function is entered.
    Entry,
    /// When it returns; also for calls that were entered before the consumer was registered, if they are traced for another one.
    Return,
    /// Both, as a pair: its return handler runs only for calls whose entry it was called for and answered with [`Verdict::Keep`], and
    /// gets the cookie that the entry left.
    Both,
}

/// An entry handler's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Go on as before.
    Keep,
    /// Not the return of this call. Matters to [`Wants::Both`] only.
    Ignore,
    /// The site may be disarmed as far as this consumer is concerned. It happens if all consumers of a hit answered so and none
    /// [`accepts`](Consumer::accepts) any more, at the next [`settle`](super::Registry::settle). The consumer stays registered.
    Remove,
}

/// Something that is told of hits. Handlers run on the thread that hit, in a section, between two instructions of a foreign program:
/// they must not lock what the program may hold, and not allocate through it.
pub trait Consumer: Send + Sync {
    /// What a handler sees of the hit: registers, say.
    type Context: ?Sized;

    /// When to call it. Asked once, when it is registered.
    fn wants(&self) -> Wants;

    /// Whether the site should be armed for this consumer. Asked under the registry's lock when consumers come, go, answer
    /// [`Verdict::Remove`] or are [applied](super::Registry::apply); NOT at hits: who is hit calls all consumers.
    fn accepts(&self) -> bool {
        true
    }

    /// The function was entered. What is left in `cookie` comes back with the return.
    fn entry(&self, context: &mut Self::Context, cookie: &mut u64) -> Verdict {
        let _ = (context, cookie);
        Verdict::Keep
    }

    /// The function returns. `cookie` is `Some` for [`Wants::Both`].
    fn leave(&self, context: &mut Self::Context, cookie: Option<u64>) {
        let _ = (context, cookie);
    }
}
