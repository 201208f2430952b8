//! The thread that empties the spool. Profiling never waits for it.
//!
//! ```text
//!   spool --oldest--> one task for each destination --> store or collector
//!     ^                        |
//!     '---- remove <---- taken or rejected;   else: again after 1 s, 2 s, 4 s, ... 5 min
//! ```
use crate::collector::Collector;
use crate::delivery::Failure;
use crate::health;
use crate::spool::{Batch, Destination, Spool};
use crate::status::{Status, say};
use crate::store::Store;
use crate::whole;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// The wait after the first failure, and the longest one.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(300);
/// What threads that are stuck in a file system get at the end.
const LAST_WAIT: Duration = Duration::from_millis(200);

/// Where batches go.
#[derive(Debug)]
pub(crate) struct Receivers {
    /// The dataset.
    pub(crate) store: Option<Store>,
    /// The collector.
    pub(crate) collector: Option<Collector>,
}

/// The thread.
#[derive(Debug)]
pub(crate) struct Sender {
    /// The time at which it is over, once that is known.
    end: watch::Sender<Option<Instant>>,
    thread: Option<JoinHandle<()>>,
}

impl Sender {
    /// Starts the thread; it serves the health endpoint, too.
    ///
    /// # Errors
    /// There is no thread, or no descriptor for it.
    pub(crate) fn start(
        receivers: Receivers,
        spool: Arc<Spool>,
        status: Arc<Status>,
        listener: Option<std::net::TcpListener>,
    ) -> io::Result<Sender> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(8).build()?;
        let (end, ends) = watch::channel(None);
        let run = move || {
            runtime.block_on(run(receivers, spool, status, listener, ends));
            runtime.shutdown_timeout(LAST_WAIT);
        };
        let thread = std::thread::Builder::new().name("kymo-send".into()).spawn(run)?;
        Ok(Sender { end, thread: Some(thread) })
    }

    /// Sends what is there for so long at most, and ends.
    pub(crate) fn finish(mut self, grace: Duration) {
        self.end.send_replace(Some(Instant::now() + grace));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn run(
    receivers: Receivers,
    spool: Arc<Spool>,
    status: Arc<Status>,
    listener: Option<std::net::TcpListener>,
    ends: watch::Receiver<Option<Instant>>,
) {
    if let Some(listener) = listener {
        match tokio::net::TcpListener::from_std(listener) {
            Ok(listener) => {
                tokio::spawn(health::serve(listener, Arc::clone(&status), Arc::clone(&spool)));
            }
            Err(error) => say(&format!("there is no health endpoint: {error}")),
        }
    }
    let Receivers { store, collector } = receivers;
    let (spool, status) = (&*spool, &*status);
    let to_store = async {
        let Some(store) = store else { return };
        let send = async |batch: &Batch| store.write(&spool.path(batch)).await.map(|()| None);
        empty(Destination::Dataset, store.name(), send, (spool, status), ends.clone()).await;
    };
    let to_collector = async {
        let Some(collector) = collector else { return };
        let send = async |batch: &Batch| {
            let body = std::fs::read(spool.path(batch).join(REQUEST));
            collector.push(body.map_err(|error| Failure::Later(error.to_string()))?).await
        };
        empty(Destination::Otlp, &collector.name(), send, (spool, status), ends.clone()).await;
    };
    tokio::join!(to_store, to_collector);
}

/// The file of a batch for the collector.
pub(crate) const REQUEST: &str = "request.gz";

/// Sends one batch after the other, until the end.
async fn empty(
    destination: Destination,
    name: &str,
    send: impl AsyncFn(&Batch) -> Result<Option<String>, Failure>,
    (spool, status): (&Spool, &Status),
    mut ends: watch::Receiver<Option<Instant>>,
) {
    let mut wait = FIRST_WAIT;
    loop {
        let arrived = spool.arrived.notified();
        tokio::pin!(arrived);
        arrived.as_mut().enable();
        let end = *ends.borrow_and_update();
        let Some(batch) = spool.oldest(destination) else {
            if end.is_some() {
                return;
            }
            tokio::select! {
                () = arrived => {}
                _ = ends.changed() => {}
            }
            continue;
        };
        if let Err(reason) = whole::check(&spool.path(&batch), destination) {
            drop_damaged(&batch, &reason, (spool, status));
            continue;
        }
        let mut late = ends.clone();
        let sent = tokio::select! {
            sent = send(&batch) => sent,
            () = past_end(&mut late) => return,
        };
        match sent {
            Ok(remark) => {
                wait = FIRST_WAIT;
                status.change(|counters| counters.sent_batches += 1);
                if let Some(remark) = remark {
                    status.failed(&format!("{name}: {remark}"));
                }
                forget(&batch, (spool, status));
            }
            Err(Failure::Rejected(reason)) => {
                status.change(|counters| {
                    counters.rejected.batches += 1;
                    counters.rejected.samples += batch.samples;
                });
                status.failed(&format!("{name}: {reason}; {} samples are lost", batch.samples));
                forget(&batch, (spool, status));
            }
            // It was dropped meanwhile, which is counted.
            Err(Failure::Later(_)) if !spool.has(&batch) => {}
            Err(Failure::Later(reason)) => {
                status.failed(&format!("{name}: {reason}; the batch is kept and sent again later"));
                if ends.borrow().is_some() {
                    return;
                }
                tokio::select! {
                    () = tokio::time::sleep(wait) => {}
                    _ = ends.changed() => {}
                }
                wait = (wait * 2).min(LONGEST_WAIT);
            }
        }
    }
}

/// What is not whole would break the queries of the whole dataset.
fn drop_damaged(batch: &Batch, reason: &str, (spool, status): (&Spool, &Status)) {
    // It was dropped meanwhile, which is counted.
    if !spool.has(batch) {
        return;
    }
    let path = spool.path(batch);
    status.failed(&format!("{}: {reason}; {} samples are lost", path.display(), batch.samples));
    if let Err(error) = spool.drop_damaged(batch) {
        status.failed(&format!("{}: failed to remove it: {error}", path.display()));
    }
}

fn forget(batch: &Batch, (spool, status): (&Spool, &Status)) {
    if let Err(error) = spool.remove(batch) {
        status.failed(&format!("{}: failed to remove what was sent: {error}", spool.path(batch).display()));
    }
}

/// Returns when the end has come.
async fn past_end(ends: &mut watch::Receiver<Option<Instant>>) {
    loop {
        let end = *ends.borrow_and_update();
        match end {
            Some(end) => return tokio::time::sleep_until(end.into()).await,
            None if ends.changed().await.is_err() => return std::future::pending().await,
            None => {}
        }
    }
}
