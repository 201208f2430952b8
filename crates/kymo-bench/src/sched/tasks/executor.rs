//! Two tasks on one thread that hand over to one another, as any executor runs them: what is measured, and nothing else.
//!
//! ```text
//!   run queue: [second]              first:  send -> mailbox of second, wake it; receive: nothing there, so leave a waker, be pending
//!        |                                                                                |
//!        v                                                                                v
//!   executor: another task than before? -> hook.hand_over(before, next) -> poll(next)   second: receive, send, ...
//! ```
//!
//! A hand-over is one poll: the run queue is popped, the future's state machine resumed, a message taken out of one mailbox and put into
//! the other, whose owner is woken. Queue, mailboxes and wakers may be used from any thread, as those of executors are.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// What is done when another task is about to run.
pub(super) trait Hook {
    fn hand_over(&mut self, from: usize, to: usize);
}

/// What a task does with a message before it passes it on.
pub(super) trait Work: 'static {
    fn done(&self) {}
}

/// The two of them.
type Task = Pin<Box<dyn Future<Output = ()>>>;

/// Passes a message there and back so many times; how often the tasks handed over, which is twice that.
pub(super) fn exchange<W: Work + Clone>(times: u32, work: &W, hook: &mut impl Hook) -> u64 {
    let ends = [Arc::default(), Arc::default()];
    let [mine, theirs] = &ends;
    run([Box::pin(begin(times, mine, theirs, work)), Box::pin(answer(times, theirs, mine, work))], hook)
}

fn begin<W: Work + Clone>(
    times: u32,
    mine: &Arc<Mailbox>,
    theirs: &Arc<Mailbox>,
    work: &W,
) -> impl Future<Output = ()> + use<W> {
    let (mine, theirs, work) = (Arc::clone(mine), Arc::clone(theirs), work.clone());
    async move {
        for message in 0..times {
            work.done();
            theirs.send(message);
            mine.receive().await;
        }
    }
}

fn answer<W: Work + Clone>(
    times: u32,
    mine: &Arc<Mailbox>,
    theirs: &Arc<Mailbox>,
    work: &W,
) -> impl Future<Output = ()> + use<W> {
    let (mine, theirs, work) = (Arc::clone(mine), Arc::clone(theirs), work.clone());
    async move {
        for _ in 0..times {
            let message = mine.receive().await;
            work.done();
            theirs.send(message);
        }
    }
}

/// Polls whoever is in the queue until it is empty. The first task counts as the one that runs before anything was polled.
fn run(mut tasks: [Task; 2], hook: &mut impl Hook) -> u64 {
    let queue = Arc::new(Queue::default());
    let wake = [0, 1]
        .map(|task| Arc::new(Wakeup { queue: Arc::clone(&queue), task, queued: AtomicBool::new(false) }));
    wake.iter().for_each(Wakeup::enqueue);
    let wakers = wake.each_ref().map(|one| Waker::from(Arc::clone(one)));
    let (mut running, mut handed_over) = (0, 0);
    let mut done = [false; 2];
    while let Some(next) = queue.pop() {
        if next != running {
            hook.hand_over(running, next);
            handed_over += 1;
            running = next;
        }
        // Before the poll, so that a wakeup during it is not lost.
        wake[next].queued.store(false, Ordering::Release);
        if !done[next] {
            done[next] = tasks[next].as_mut().poll(&mut Context::from_waker(&wakers[next])).is_ready();
        }
    }
    handed_over
}

/// Tasks that want to be polled, in turn.
#[derive(Default)]
struct Queue(Mutex<VecDeque<usize>>);

impl Queue {
    fn pop(&self) -> Option<usize> {
        lock(&self.0).pop_front()
    }
}

struct Wakeup {
    queue: Arc<Queue>,
    task: usize,
    queued: AtomicBool,
}

impl Wakeup {
    fn enqueue(self: &Arc<Wakeup>) {
        // The executor's store gives it back: once queued, nobody queues it again before it is polled.
        if !self.queued.swap(true, Ordering::AcqRel) {
            lock(&self.queue.0).push_back(self.task);
        }
    }
}

impl Wake for Wakeup {
    fn wake(self: Arc<Wakeup>) {
        self.enqueue();
    }

    fn wake_by_ref(self: &Arc<Wakeup>) {
        self.enqueue();
    }
}

/// Room for one message, and for who waits for it.
#[derive(Default)]
struct Mailbox(Mutex<(Option<u32>, Option<Waker>)>);

impl Mailbox {
    fn send(&self, message: u32) {
        let mut inside = lock(&self.0);
        inside.0 = Some(message);
        let waiting = inside.1.take();
        drop(inside);
        if let Some(waker) = waiting {
            waker.wake();
        }
    }

    async fn receive(&self) -> u32 {
        poll_fn(|context| {
            let mut inside = lock(&self.0);
            if let Some(message) = inside.0.take() {
                return Poll::Ready(message);
            }
            inside.1 = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::{Hook, Work, exchange};
    use std::cell::Cell;
    use std::rc::Rc;

    #[derive(Clone, Default)]
    struct Said(Rc<Cell<u64>>);

    impl Work for Said {
        fn done(&self) {
            self.0.set(self.0.get() + 1);
        }
    }

    #[derive(Default)]
    struct Seen(Vec<(usize, usize)>);

    impl Hook for Seen {
        fn hand_over(&mut self, from: usize, to: usize) {
            self.0.push((from, to));
        }
    }

    /// Checks that the two take turns, that each passes each message on once, and that hand-overs are counted as they happen.
    #[test]
    fn turns() {
        let (work, mut seen) = (Said::default(), Seen::default());
        assert_eq!(exchange(5, &work, &mut seen), 10);
        assert_eq!(work.0.get(), 10);
        assert_eq!(seen.0, [(0, 1), (1, 0)].repeat(5));
    }

    /// Checks that nothing to pass on ends at once.
    #[test]
    fn nothing() {
        let (work, mut seen) = (Said::default(), Seen::default());
        exchange(0, &work, &mut seen);
        assert_eq!((work.0.get(), seen.0.len()), (0, 1), "the second is polled once");
    }
}
