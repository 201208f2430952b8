//! A thread that reads what the reducer must not wait for long.
//!
//! The reducer waits a [`SHARE`]th of its time at most, and [`MOST_SAVED`] at once. So long it
//! waits for one answer, if need be: a thread of the process that is read may hold the lock of its
//! mappings and have no CPU. Samples come in batches, of which the whole rest would go without
//! that answer.
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

/// For less the reducer does not begin to wait.
pub(super) const LEAST_WAITING: Duration = Duration::from_millis(1);
/// One part in so many of the reducer's time is spent on waiting.
const SHARE: u32 = 20;
/// So much of it can be saved up: samples come in batches.
pub(super) const MOST_SAVED: Duration = Duration::from_millis(20);
/// A thread that has not answered for so long is not waited for again.
const STUCK: Duration = Duration::from_millis(100);

/// Asks a thread of its own, which starts at the first question.
#[derive(Debug)]
pub(super) struct SideReader<Q, A> {
    name: &'static str,
    thread: Option<Channels<Q, A>>,
    /// How long the reducer may wait now, as of this moment.
    pub(super) saved: Duration,
    as_of: Option<Instant>,
}

#[derive(Debug)]
struct Channels<Q, A> {
    questions: Sender<Q>,
    answers: Receiver<A>,
    /// When a question was asked that was not answered in time: until it is, nothing more is asked.
    late_since: Option<Instant>,
}

impl<Q: Send + 'static, A: Send + 'static> SideReader<Q, A> {
    pub(super) fn new(name: &'static str) -> SideReader<Q, A> {
        SideReader { name, thread: None, saved: Duration::ZERO, as_of: None }
    }

    /// The answer to an earlier question, if it has come or comes now.
    pub(super) fn late_answer(&mut self) -> Option<A> {
        let thread = self.thread.as_mut()?;
        let since = thread.late_since?;
        let answer = match thread.answers.try_recv() {
            Err(TryRecvError::Empty) if since.elapsed() < STUCK => {
                self.within_share(|thread, most| thread.answers.recv_timeout(most).ok())?
            }
            answer => answer.ok()?,
        };
        self.thread.as_mut()?.late_since = None;
        Some(answer)
    }

    /// The answer, if it comes in time. `read`: what the thread does with its first question and all
    /// others.
    pub(super) fn ask<R>(&mut self, question: Q, read: impl FnOnce() -> R) -> Option<A>
    where
        R: FnMut(Q) -> A + Send + 'static,
    {
        self.channels(read)?;
        self.within_share(|thread, most| thread.ask(question, most))
    }

    /// Waits as long as the reducer still may, unless its share of waiting is used up.
    fn within_share(&mut self, wait: impl FnOnce(&mut Channels<Q, A>, Duration) -> Option<A>) -> Option<A> {
        let now = Instant::now();
        let passed = self.as_of.replace(now).map_or(MOST_SAVED, |as_of| (now - as_of) / SHARE);
        self.saved = MOST_SAVED.min(self.saved + passed);
        if self.saved < LEAST_WAITING {
            return None;
        }
        let saved = self.saved;
        let answer = self.thread.as_mut().and_then(|thread| wait(thread, saved));
        self.saved = self.saved.saturating_sub(now.elapsed());
        answer
    }

    /// The same without waiting, for what can be read before it is needed.
    pub(super) fn ask_ahead<R>(&mut self, question: Q, read: impl FnOnce() -> R)
    where
        R: FnMut(Q) -> A + Send + 'static,
    {
        if let Some(thread) = self.channels(read).filter(|thread| thread.late_since.is_none()) {
            thread.late_since = thread.questions.send(question).is_ok().then(Instant::now);
        }
    }

    fn channels<R>(&mut self, read: impl FnOnce() -> R) -> Option<&mut Channels<Q, A>>
    where
        R: FnMut(Q) -> A + Send + 'static,
    {
        if self.thread.is_none() {
            self.thread = Channels::start(self.name, read());
        }
        self.thread.as_mut()
    }
}

impl<Q: Send + 'static, A: Send + 'static> Channels<Q, A> {
    /// The thread ends when this is dropped; nobody waits for it.
    fn start(name: &str, mut read: impl FnMut(Q) -> A + Send + 'static) -> Option<Channels<Q, A>> {
        let (questions, asked) = channel::<Q>();
        let (answer, answers) = channel();
        let answer_all = move || {
            for question in asked {
                if answer.send(read(question)).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name(name.into()).spawn(answer_all).ok()?;
        Some(Channels { questions, answers, late_since: None })
    }

    fn ask(&mut self, question: Q, most: Duration) -> Option<A> {
        if self.late_since.is_some() {
            return None;
        }
        let asked = Instant::now();
        self.questions.send(question).ok()?;
        let answer = self.answers.recv_timeout(most).ok();
        self.late_since = answer.is_none().then_some(asked);
        answer
    }
}
