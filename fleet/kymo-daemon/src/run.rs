//! The life of the daemon: start, one interval after the other, end.
use crate::collector::Collector;
use crate::config::Config;
use crate::interval::IntervalReader;
use crate::recording;
use crate::sender::{Receivers, Sender};
use crate::spool::Spool;
use crate::status::{Status, now_s, say};
use crate::store::Store;
use anyhow::{Context, anyhow, bail};
use kymo_record::{LiveRecorder, LiveSnapshot};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A recorder that was started anew is kept for so many intervals, whatever it takes.
const LEAST_INTERVALS: u32 = 10;
/// How long a file of the recorder may take.
const FILE_TIMEOUT: Duration = Duration::from_secs(60);
/// What the end may take to send what is there.
const GRACE: Duration = Duration::from_secs(5);

/// The places of a configuration.
///
/// # Errors
/// A sentence about one of them.
pub(crate) fn receivers(config: &Config) -> anyhow::Result<Receivers> {
    let sentence = |text: String| anyhow!("{text}");
    Ok(Receivers {
        store: config.dataset.as_ref().map(Store::new).transpose().map_err(sentence)?,
        collector: config.otlp.as_ref().map(Collector::new).transpose().map_err(sentence)?,
    })
}

/// Profiles until a signal comes.
///
/// # Errors
/// What cannot be started, or that the recording ended by itself.
pub(crate) fn run(config: &Config) -> anyhow::Result<()> {
    let receivers = receivers(config)?;
    if let Some(store) = &receivers.store {
        store.probe().map_err(|reason| anyhow!("dataset {}: {reason}", store.name()))?;
    }
    let signals = signals().context("failed to catch signals")?;
    let listener = listener(config)?;
    let folder = config.state.join("spool");
    let spool = Spool::open(&folder, config.max_spool.0);
    let spool = Arc::new(spool.with_context(|| format!("failed to open the spool {}", folder.display()))?);
    let plan = recording::plan(config).map_err(|text| anyhow!("{text}"))?;
    plan.notes.iter().for_each(|note| say(note));
    let session = recording::open(plan).map_err(|text| anyhow!("{text}"))?;
    session.notes().iter().filter(|note| note.is_notable()).for_each(|note| say(&note.to_string()));
    let status = Arc::new(Status::new());
    let reader = IntervalReader::new(config, Arc::clone(&spool), Arc::clone(&status));
    let sender = Sender::start(receivers, spool, Arc::clone(&status), listener)
        .context("failed to start the thread that sends")?;
    let (recorder, files) = recording::start(session).map_err(|text| anyhow!("{text}"))?;
    let recorder = Some(recorder);
    let mut daemon = Daemon { config, recorder, files, reader, status, intervals: 0 };
    say(&format!("{} samples per second on each CPU", config.frequency));
    let ended = daemon.record(&signals);
    sender.finish(GRACE);
    ended
}

fn signals() -> std::io::Result<UnixStream> {
    let (readable, writable) = UnixStream::pair()?;
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::low_level::pipe::register(signal, writable.try_clone()?)?;
    }
    Ok(readable)
}

fn listener(config: &Config) -> anyhow::Result<Option<TcpListener>> {
    let Some(address) = config.health_address()? else { return Ok(None) };
    let listener = TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    listener.map(Some).with_context(|| format!("failed to serve the health endpoint on {address}"))
}

struct Daemon<'a> {
    config: &'a Config,
    recorder: Option<LiveRecorder>,
    files: Receiver<LiveSnapshot>,
    reader: IntervalReader,
    status: Arc<Status>,
    /// Intervals of this recorder.
    intervals: u32,
}

/// Why the recorder has nothing more to wait for.
#[derive(PartialEq, Eq)]
enum Woken {
    Due,
    Signal,
    Ended,
}

impl Daemon<'_> {
    /// Until a signal comes, or the recording ends; what there is then is written, too.
    fn record(&mut self, signals: &UnixStream) -> anyhow::Result<()> {
        let mut start = unix_time();
        loop {
            let woken = self.wait(signals, until_boundary(start, self.config.interval()))?;
            if woken != Woken::Due {
                let recorder = self.recorder.take().context("the recording was stopped twice")?;
                let summary = recorder.stop();
                self.files.try_iter().for_each(|file| self.reader.add(file, start));
                let summary = summary.map_err(|error| anyhow!("{error}"))?;
                if let Some(error) = summary.write_error {
                    bail!("the recording ended: it could not be kept in memory: {error}");
                }
                if woken == Woken::Ended {
                    bail!("the recording ended by itself");
                }
                return Ok(());
            }
            if let Some(recorder) = &self.recorder {
                recorder.ask();
            }
            let next = unix_time();
            match self.files.recv_timeout(FILE_TIMEOUT) {
                Ok(file) => self.reader.add(file, start),
                // It comes with the next one.
                Err(_) => self.status.failed("the recorder did not hand over an interval in time"),
            }
            start = next;
            self.intervals += 1;
            if self.intervals >= LEAST_INTERVALS && resident_bytes() > self.config.max_memory.0 {
                self.start_anew(start)?;
            }
        }
    }

    /// Replaces the recorder, which keeps what it knows of every file that was ever mapped. There
    /// are no samples for some milliseconds.
    fn start_anew(&mut self, start: Duration) -> anyhow::Result<()> {
        self.intervals = 0;
        let session = match recording::plan(self.config).and_then(recording::open) {
            Ok(session) => session,
            Err(reason) => {
                self.status
                    .failed(&format!("the recorder could not start anew, the old one goes on: {reason}"));
                return Ok(());
            }
        };
        let recorder = self.recorder.take().context("there is no recorder")?;
        recorder.stop().map_err(|error| anyhow!("{error}"))?;
        self.files.try_iter().for_each(|file| self.reader.add(file, start));
        let (recorder, files) = recording::start(session).map_err(|text| anyhow!("{text}"))?;
        (self.recorder, self.files) = (Some(recorder), files);
        self.status.change(|counters| counters.recorder_starts += 1);
        Ok(())
    }

    fn wait(&self, signals: &UnixStream, left: Duration) -> anyhow::Result<Woken> {
        let due = Instant::now() + left;
        loop {
            let left = due.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let mut fds = vec![PollFd::new(signals, PollFlags::IN)];
            let ended = self.recorder.as_ref().map(LiveRecorder::ended_fd);
            fds.extend(ended.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
            match poll(&mut fds, Some(&timeout)) {
                Ok(0) => return Ok(Woken::Due),
                Ok(_) if !fds[0].revents().is_empty() => return Ok(Woken::Signal),
                Ok(_) => return Ok(Woken::Ended),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error).context("failed to wait"),
            }
        }
    }
}

/// Memory of this process that is resident.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}

/// Time since 1970.
fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::from_secs(now_s()))
}

/// How long it is from `now` to the next whole number of intervals since 1970: intervals of all
/// hosts begin at the same moments, but for a first one that is shorter.
fn until_boundary(now: Duration, interval: Duration) -> Duration {
    let (now, interval) = (now.as_millis() as u64, interval.as_millis().max(1) as u64);
    Duration::from_millis(interval - now % interval)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that intervals end at whole multiples, and are never empty.
    #[test]
    fn intervals_end_at_whole_minutes() {
        let minute = Duration::from_secs(60);
        for (now, left) in [(0, 60_000), (59_999, 1), (60_000, 60_000), (61_000, 59_000)] {
            assert_eq!(until_boundary(Duration::from_millis(now), minute), Duration::from_millis(left));
        }
    }
}
