//! `kymo top` where there is no screen: a table or a line of JSON at each refresh.

use std::io::{self, BufWriter, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use kymo_cli::exit;
use kymo_cli::signals::Signals;
use kymo_profile::live::{self, LiveData};
use kymo_profile::query::{GroupBy, Verb};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Live, TopArgs, finish};

/// Prints until a signal comes, so many refreshes are over, or what is observed has ended.
pub(super) fn run(args: &TopArgs, live: Live) -> anyhow::Result<ExitCode> {
    let Live { recorder, snapshots, mut reader } = live;
    let signals = Signals::catch_once()?;
    let mut due = Instant::now() + args.delay;
    let mut left = args.iterations.unwrap_or(u64::MAX);
    let mut said: Vec<String> = Vec::new();
    while left > 0 && signals.last().is_none() {
        wait(due, [signals.as_fd(), recorder.ended_fd()])?;
        if signals.last().is_some() {
            break;
        }
        recorder.ask();
        due = Instant::now() + args.delay;
        // One comes at the end, too; then there are no more.
        let Ok(snapshot) = snapshots.recv() else { break };
        let data = reader.read(snapshot)?;
        for note in data.notes().into_iter().filter(|note| !said.contains(note)).collect::<Vec<_>>() {
            args.say(&note);
            said.push(note);
        }
        print(args, &data)?;
        left -= 1;
    }
    let signal = signals.last();
    let status = if signal.is_none() && left == 0 { Some(ExitCode::SUCCESS) } else { None };
    let status = finish(args, recorder.stop(), reader.unseen(), status)?;
    Ok(signal.map_or(status, exit::by_signal))
}

/// Waits until then, or until one of these can be read.
fn wait(due: Instant, ends: [std::os::fd::BorrowedFd<'_>; 2]) -> anyhow::Result<()> {
    loop {
        let left = due.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).context("failed to wait: the refresh is too far away")?;
        let mut fds = ends.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        match poll(&mut fds, Some(&left)) {
            Err(rustix::io::Errno::INTR) => {}
            polled => return polled.map(drop).context("failed to wait"),
        }
    }
}

fn print(args: &TopArgs, data: &LiveData) -> anyhow::Result<()> {
    let verb = Verb::Top { group: GroupBy::Functions, count: args.entries, by: args.weight() };
    let answers = data.ask_of_each(&verb, &AtomicBool::new(false))?;
    let mut out = BufWriter::new(io::stdout().lock());
    if args.json {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let unix_ns = u64::try_from(now.as_nanos()).unwrap_or(0);
        live::write_json_line(&mut out, data, unix_ns, &answers)
    } else {
        live::write_text(&mut out, data, &args.target_words(), &answers)
    }
    .and_then(|()| out.flush())
    .context("failed to write the table")
}
