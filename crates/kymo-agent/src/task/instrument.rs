//! Futures as tasks.
use super::Task;
use pin_project_lite::pin_project;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Counts what a future does, under any executor.
pub trait Instrument: Future + Sized {
    /// This future, run as `task`: each poll is the task's turn. The task ends when the future is
    /// dropped.
    ///
    /// A poll that cannot be counted (in a forked child, on the 1025th thread) happens all the
    /// same, and [`Reading::uncounted`](super::Reading::uncounted) tells.
    fn instrument(self, task: Task) -> Instrumented<Self> {
        Instrumented { future: self, task }
    }
}

impl<F: Future> Instrument for F {}

pin_project! {
    /// A future that is a task. See [`Instrument`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless they are polled"]
    pub struct Instrumented<F> {
        #[pin]
        future: F,
        task: Task,
    }
}

impl<F: Future> Future for Instrumented<F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let parts = self.project();
        parts.task.poll(|| parts.future.poll(context))
    }
}
