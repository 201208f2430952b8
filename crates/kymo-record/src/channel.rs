//! Bounded queues with one receiver: `kymo_core::handover` plus an eventfd to sleep on.
use kymo_core::handover::{self, Inbox, Outbox, Wake};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use kymo_core::handover::Next;

/// An eventfd that wakes one thread, or a thread that polls it. Notifying never waits, so a drain
/// may do it.
#[derive(Debug)]
pub(crate) struct Notifier(OwnedFd);

impl Notifier {
    /// # Errors
    /// No eventfd can be made or written: where a seccomp filter refuses `write`, a thread would
    /// sleep for ever.
    pub(crate) fn new() -> io::Result<Notifier> {
        let notifier = Notifier(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        rustix::io::write(&notifier.0, &1u64.to_ne_bytes())?;
        notifier.clear();
        Ok(notifier)
    }

    /// Makes it readable until [`Notifier::clear`].
    pub(crate) fn notify(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Makes it unreadable. State that is read afterwards was changed before, or notifies again.
    pub(crate) fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }

    /// Readable after [`Notifier::notify`].
    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.0
    }
}

/// The sending end of one queue. Dropping it closes the queue and wakes the receiver.
#[derive(Debug)]
pub(crate) struct Sender<T> {
    outbox: Option<Outbox<T>>,
    notifier: Arc<Notifier>,
}

/// The receiving end of all queues.
#[derive(Debug)]
pub(crate) struct Receiver<T> {
    inbox: Inbox<T>,
    notifier: Arc<Notifier>,
}

/// Makes one queue per capacity, and their one receiver.
pub(crate) fn channel<T: Send>(
    capacities: impl IntoIterator<Item = usize>,
) -> io::Result<(Vec<Sender<T>>, Receiver<T>)> {
    let notifier = Arc::new(Notifier::new()?);
    let (outboxes, inbox) = handover::inbox(capacities);
    let sender = |outbox| Sender { outbox: Some(outbox), notifier: Arc::clone(&notifier) };
    Ok((outboxes.into_iter().map(sender).collect(), Receiver { inbox, notifier: Arc::clone(&notifier) }))
}

impl<T> Sender<T> {
    /// Sends, without waiting.
    ///
    /// # Errors
    /// The message, if the queue is full.
    pub(crate) fn send(&mut self, message: T) -> Result<(), T> {
        let Some(outbox) = &mut self.outbox else { return Err(message) };
        if outbox.send(message)? == Wake::Now {
            self.notifier.notify();
        }
        Ok(())
    }

    /// Whether a message would be sent now. It stays so until this end sends.
    pub(crate) fn has_room(&mut self) -> bool {
        self.outbox.as_mut().is_some_and(|outbox| !outbox.is_full())
    }

    /// Whether the receiver is gone.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.outbox.as_ref().is_none_or(Outbox::is_abandoned)
    }

    /// Sends, and sleeps while the queue is full. Not for drains.
    pub(crate) fn send_blocking(&mut self, mut message: T) {
        while let Err(back) = self.send(message) {
            if self.is_abandoned() {
                // The receiver has panicked: whoever joins it hears of that.
                return;
            }
            message = back;
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if self.outbox.take().map(Outbox::close) == Some(Wake::Now) {
            self.notifier.notify();
        }
    }
}

impl<T> Receiver<T> {
    /// The next message, without waiting.
    pub(crate) fn take(&mut self) -> Next<T> {
        self.inbox.receive()
    }

    /// The next message, waiting for it; empty when the time is over, or somebody rang the bell for
    /// another reason.
    pub(crate) fn wait(&mut self, most: Option<Duration>) -> Next<T> {
        if let next @ (Next::Item(_) | Next::Closed) = self.inbox.receive() {
            return next;
        }
        if self.inbox.may_sleep() {
            let timeout = most.map(timespec);
            // Interrupted or not: whoever asked looks again.
            let _ = poll(&mut [PollFd::new(self.notifier.fd(), PollFlags::IN)], timeout.as_ref());
        }
        self.inbox.awake();
        self.notifier.clear();
        self.inbox.receive()
    }

    /// What wakes the receiver.
    pub(crate) fn notifier(&self) -> Arc<Notifier> {
        Arc::clone(&self.notifier)
    }
}

/// A duration as the kernel wants it.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    let seconds = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    Timespec { tv_sec: seconds, tv_nsec: duration.subsec_nanos().into() }
}

#[cfg(test)]
mod tests {
    use super::{Next, channel};
    use std::time::Duration;

    /// Checks that a receiver which sleeps without a limit wakes for a message, for a bell, and for
    /// the end of the last sender.
    #[test]
    fn wakes() {
        let (senders, mut messages) = channel([1, 1]).unwrap();
        let notifier = messages.notifier();
        let (tell, told) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            for (value, mut sender) in senders.into_iter().enumerate() {
                sender.send(value).unwrap();
                told.recv().unwrap();
            }
            notifier.notify();
        });
        for value in 0..2 {
            let next = std::iter::repeat_with(|| messages.wait(None)).find(|next| *next != Next::Empty);
            assert_eq!(next, Some(Next::Item(value)));
            tell.send(()).unwrap();
        }
        let next = std::iter::repeat_with(|| messages.wait(None)).find(|next| *next != Next::Empty);
        assert_eq!(next, Some(Next::Closed));
        thread.join().unwrap();
        assert_eq!(messages.wait(Some(Duration::ZERO)), Next::Closed);
    }

    /// Checks that a full queue says so before and when something is sent.
    #[test]
    fn full() {
        let (mut senders, mut messages) = channel([1]).unwrap();
        assert!(senders[0].has_room());
        senders[0].send(1).unwrap();
        assert!(!senders[0].has_room());
        assert_eq!(senders[0].send(2), Err(2));
        assert_eq!(messages.take(), Next::Item(1));
        assert!(senders[0].has_room());
    }
}
