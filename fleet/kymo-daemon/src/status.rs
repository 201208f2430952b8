//! What the daemon has done: counters for the health endpoint.
use crate::spool::{Dropped, Spool};
use serde::Serialize;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// What went wrong and then did not for so many seconds is said again: twice the longest time
/// between two attempts to send.
const FORGOTTEN_S: u64 = 600;

/// Counters since the start. Its JSON is documented in docs/tasks/daemon.md.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counters {
    /// When the daemon started, s since 1970.
    pub(crate) started_s: u64,
    /// The last interval that was added up.
    pub(crate) last_interval: Option<Interval>,
    /// Intervals so far.
    pub(crate) intervals: u64,
    /// Samples in them.
    pub(crate) samples: u64,
    /// Samples that the kernel or the daemon lost, or that could not be written to the spool.
    pub(crate) lost_samples: u64,
    /// How often the recorder started anew because of the memory that it took.
    pub(crate) recorder_starts: u64,
    /// Batches that were taken by the dataset or the collector.
    pub(crate) sent_batches: u64,
    /// Batches that the collector calls wrong: they are not sent again.
    pub(crate) rejected: Dropped,
    /// What went wrong last.
    pub(crate) last_error: Option<LastError>,
}

/// An interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Interval {
    /// When it began, s since 1970.
    pub(crate) start_s: u64,
    /// Its samples.
    pub(crate) samples: u64,
    /// Rows of the dataset that they became.
    pub(crate) rows: u64,
    /// Samples that are missing in it.
    pub(crate) lost: u64,
}

/// A sentence, and when it was said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct LastError {
    /// s since 1970.
    pub(crate) time_s: u64,
    /// What failed, on which object, and why.
    pub(crate) text: String,
}

/// The counters, for all threads.
#[derive(Debug)]
pub(crate) struct Status(Mutex<Counters>);

impl Status {
    /// Nothing has happened yet.
    pub(crate) fn new() -> Status {
        Status(Mutex::new(Counters { started_s: now_s(), ..Counters::default() }))
    }

    /// Changes counters.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Counters)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The counters as they are.
    pub(crate) fn counters(&self) -> Counters {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes what went wrong, and says it on stderr, unless it was said last and goes on.
    pub(crate) fn failed(&self, text: &str) {
        if self.note(text, now_s()) {
            say(text);
        }
    }

    /// Notes what went wrong at a time; whether that is news.
    fn note(&self, text: &str, time_s: u64) -> bool {
        let mut is_new = true;
        self.change(|counters| {
            let goes_on =
                |last: &LastError| last.text == text && time_s.saturating_sub(last.time_s) < FORGOTTEN_S;
            is_new = !counters.last_error.as_ref().is_some_and(goes_on);
            counters.last_error = Some(LastError { time_s, text: text.to_owned() });
        });
        is_new
    }

    /// The answer of the health endpoint.
    pub(crate) fn json(&self, spool: &Spool) -> String {
        #[derive(Serialize)]
        struct Answer {
            schema: &'static str,
            schema_version: u32,
            #[serde(flatten)]
            counters: Counters,
            spool_batches: usize,
            spool_bytes: u64,
            dropped: Dropped,
        }
        let (spool_batches, spool_bytes) = spool.waiting();
        let answer = Answer {
            schema: "kymo-daemon",
            schema_version: 1,
            counters: self.counters(),
            spool_batches,
            spool_bytes,
            dropped: spool.dropped(),
        };
        serde_json::to_string_pretty(&answer).unwrap_or_default() + "\n"
    }
}

impl Default for Status {
    fn default() -> Status {
        Status::new()
    }
}

/// Seconds since 1970.
pub(crate) fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Says a sentence on stderr; where that is closed, nobody hears it.
pub(crate) fn say(text: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "kymo-daemon: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that what goes on is said once, and again when it comes back after it was over.
    #[test]
    fn what_comes_back_is_said_again() {
        let status = Status::new();
        assert!(status.note("no space", 1000));
        assert!(!status.note("no space", 1500));
        assert!(!status.note("no space", 2000), "it goes on");
        assert!(status.note("no space", 2600), "it was over");
        assert!(status.note("no network", 2601));
        assert!(status.note("no space", 2602));
        assert_eq!(status.counters().last_error.unwrap().time_s, 2602);
    }
}
