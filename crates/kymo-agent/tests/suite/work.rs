//! Work of known size, and clocks to compare with.
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(crate) fn burn(time: Duration) {
    let end = own_cpu() + time;
    while own_cpu() < end {
        std::hint::black_box((0..500u64).map(std::hint::black_box).sum::<u64>());
    }
}

/// Tells a thread to end when it goes, also when an assertion fails: the thread would go on for ever.
pub(crate) struct Stop<'a>(pub(crate) &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The CPU time of the calling thread (/proc is behind by a tick for threads that run).
pub(crate) fn own_cpu() -> Duration {
    crate::process::cpu(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// The CPU time of a thread of this process, by its number.
pub(crate) fn thread_cpu(thread: i32) -> Duration {
    crate::process::cpu(!thread << 3 | 6)
}

pub(crate) fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> std::task::Poll<F::Output> {
    future.poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
}

pub(crate) fn finish<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    loop {
        if let std::task::Poll::Ready(output) = poll(future.as_mut()) {
            return output;
        }
    }
}

/// Is pending so many times.
pub(crate) async fn yields(times: usize) {
    let mut left = times;
    std::future::poll_fn(|context| {
        if left == 0 {
            return std::task::Poll::Ready(());
        }
        left -= 1;
        context.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}

/// Whether `a` is within so many percent of `b`, or a hair.
pub(crate) fn within(percent: f64, a: Duration, b: Duration) -> bool {
    let apart = a.abs_diff(b);
    apart <= b.mul_f64(percent / 100.0) || apart < Duration::from_micros(200)
}
