//! `kymo top` at a terminal: the browser, with newer samples now and then.

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use kymo_cli::exit;
use kymo_profile::live::LiveData;
use kymo_profile::query::FilterField;
use kymo_record::LiveSnapshot;

use super::{Live, Reader, TopArgs, finish};
use crate::cmd::browse::{self, LiveEvent, LiveFeed, Newer, Start, Subject};

/// The first samples are shown after so long at most.
const FIRST: Duration = Duration::from_millis(300);

/// Shows what is sampled until the user ends it.
pub(super) fn run(args: &TopArgs, live: Live) -> anyhow::Result<ExitCode> {
    let Live { recorder, snapshots, mut reader } = live;
    std::thread::sleep(args.delay.min(FIRST));
    recorder.ask();
    let Ok(snapshot) = snapshots.recv() else { return finish(args, recorder.stop(), None, None) };
    let first = Arc::new(reader.read(snapshot)?);
    let wakes = UnixStream::pair().context("failed to make a socket pair")?;
    let wake = wakes.1.try_clone().context("failed to make a socket pair")?;
    let (brings, events) = channel();
    let is_over = AtomicBool::new(false);
    let describe = |live: &LiveData| newer(args, live);
    let Newer { recording, events: rows, notes } = describe(&first);
    let start = Start {
        recording,
        events: rows,
        chains: args.chains,
        subject: Subject::Functions,
        by: args.weight(),
        relative: false,
        least_percent: 0.0,
        part: String::new(),
        names: [(FilterField::Thread, Vec::new()), (FilterField::Module, Vec::new())],
        notes,
        live: true,
    };
    let (shown, summary, unseen) = std::thread::scope(|scope| {
        let is_over = &is_over;
        let reads = scope.spawn(move || bring(reader, snapshots, brings, wake, is_over));
        let ask = || recorder.ask();
        let feed = LiveFeed { events, wakes, ask: &ask, every: args.delay, describe: &describe };
        let shown = browse::run_live(first, start, feed);
        is_over.store(true, Ordering::Relaxed);
        let summary = recorder.stop();
        (shown, summary, reads.join().ok().flatten())
    });
    let signal = shown?;
    let status = finish(args, summary, unseen, Some(ExitCode::SUCCESS))?;
    Ok(signal.map_or(status, exit::by_signal))
}

/// Reads snapshots as they come, until the recording has ended: what is to be said of CPU time
/// then.
fn bring(
    mut reader: Reader,
    snapshots: Receiver<LiveSnapshot>,
    brings: Sender<LiveEvent>,
    mut wake: UnixStream,
    is_over: &AtomicBool,
) -> Option<String> {
    let mut send = |event| {
        // The browser may have ended.
        brings.send(event).is_ok() && wake.write_all(&[0]).is_ok()
    };
    for snapshot in snapshots {
        if is_over.load(Ordering::Relaxed) {
            return reader.unseen();
        }
        match reader.read(snapshot) {
            Ok(data) => _ = send(LiveEvent::Data(Arc::new(data))),
            Err(error) => _ = send(LiveEvent::Ended(anyhow!(error).to_string())),
        }
    }
    send(LiveEvent::Ended("what was observed has ended: these are its last samples".into()));
    reader.unseen()
}

fn newer(args: &TopArgs, live: &LiveData) -> Newer {
    let recording = format!("{} of {}", live.window_words(), args.target_words());
    Newer { recording, events: live.events(), notes: if args.quiet { Vec::new() } else { live.notes() } }
}
