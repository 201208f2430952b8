//! Consumers: what a probe calls at a hit.

/// A handler's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Go on as before.
    Keep,
    /// The site may be disarmed as far as this consumer is concerned. It happens if all consumers
    /// of a hit answered so and none [`accepts`](Consumer::accepts) any more, at the next
    /// [`settle`](super::Registry::settle). The consumer stays registered.
    Remove,
}

/// Something that is called at hits. Handlers run on the thread that hit, in a section, between two
/// instructions of a foreign program: they must not lock what the program may hold, and not
/// allocate through it.
#[doc(alias = "uprobe_consumer")]
pub trait Consumer: Send + Sync {
    /// What a handler sees of the hit: registers, say.
    type Context: ?Sized;

    /// Whether the site should be armed for this consumer. Asked under the registry's lock when
    /// consumers come, go, answer [`Verdict::Remove`] or are [applied](super::Registry::apply); NOT
    /// at hits: a hit calls all consumers.
    fn accepts(&self) -> bool {
        true
    }

    /// The probe was hit.
    fn hit(&self, context: &mut Self::Context) -> Verdict;
}
