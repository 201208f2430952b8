//! The terminal: is there one, how wide, with colour, and progress on it.

use std::io::IsTerminal;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use kymo_profile::text::{TableStyle, shown};

/// Log lines of the libraries, on stderr, by `KYMO_LOG` (for example `KYMO_LOG=debug`).
pub fn start_log() {
    if let Ok(filter) = tracing_subscriber::EnvFilter::try_from_env("KYMO_LOG") {
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .log_internal_errors(false)
            .init();
    }
}

/// The name before lines that scripts look for in what perf says: `perf` where kymo was called by
/// that name.
pub fn called_as() -> &'static str {
    let called = std::env::args_os().next();
    let is_perf = called.is_some_and(|name| Path::new(&name).file_name() == Some("perf".as_ref()));
    if is_perf { "perf" } else { "kymo" }
}

/// Says one sentence on stderr. What it quotes from a recording cannot act on the terminal; its lines stay lines.
pub fn say(sentence: &str) {
    let lines: Vec<_> = sentence.split('\n').map(shown).collect();
    eprintln!("kymo: {}", lines.join("\n"));
}

/// How tables on stdout look: coloured and cut only on a terminal, never with `NO_COLOR`. Asked once: a pager is no terminal.
pub fn look() -> TableStyle {
    static LOOK: OnceLock<TableStyle> = OnceLock::new();
    *LOOK.get_or_init(look_now)
}

/// Whether a person reads what is printed: on a terminal, or through a pager.
pub fn is_read_by_a_person() -> bool {
    look().width.is_some()
}

fn look_now() -> TableStyle {
    let stdout = std::io::stdout();
    if !stdout.is_terminal() {
        return TableStyle::default();
    }
    let width =
        rustix::termios::tcgetwinsize(&stdout).ok().map(|s| usize::from(s.ws_col)).filter(|w| *w > 20);
    let color = std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
        && std::env::var_os("TERM").is_none_or(|t| t != "dumb");
    TableStyle { color, width }
}

/// A progress bar over the passes of reading a recording, and over the search for names after them.
/// It appears on a terminal only, and only when the work is long enough to wonder about.
pub struct ReadProgress {
    bar: Option<ProgressBar>,
    /// What the bar is of, as a place in [`TEMPLATES`].
    template: AtomicUsize,
    /// The thread that shows the bar after [`SHOWN_AFTER`], and what ends it before.
    shows: Mutex<Option<(Sender<()>, JoinHandle<()>)>>,
}

/// Work that takes less has no bar.
const SHOWN_AFTER: Duration = Duration::from_millis(500);
const REDRAWN_AFTER: Duration = Duration::from_millis(100);
const TEMPLATES: [&str; 3] = [
    "{spinner} reading {bar:40} {bytes}/{total_bytes} {eta}",
    "{spinner} finding names {elapsed}",
    "{spinner} {bar:40} {pos}/{len} files {eta}",
];

impl ReadProgress {
    /// A bar that is not shown yet.
    pub fn new(quiet: bool) -> ReadProgress {
        let mut progress =
            ReadProgress { bar: None, template: AtomicUsize::new(usize::MAX), shows: Mutex::new(None) };
        if quiet || !std::io::stderr().is_terminal() {
            return progress;
        }
        let bar = ProgressBar::with_draw_target(Some(1), ProgressDrawTarget::hidden());
        let (end, ended) = channel();
        let shown = bar.clone();
        let show = move || {
            if ended.recv_timeout(SHOWN_AFTER) == Err(RecvTimeoutError::Timeout) {
                shown.set_draw_target(ProgressDrawTarget::stderr());
                shown.enable_steady_tick(REDRAWN_AFTER);
            }
        };
        // Without a thread there is no bar.
        if let Ok(thread) = std::thread::Builder::new().spawn(show) {
            progress.shows = Mutex::new(Some((end, thread)));
            progress.bar = Some(bar);
        }
        progress
    }

    /// Pass 0 or 1 has read `done` of `all` bytes.
    pub fn at(&self, pass: u32, done: u64, all: u64) {
        let is_read = pass > 0 && done >= all;
        self.show(usize::from(is_read), 2 * all, u64::from(pass) * all + done);
    }

    /// So many files are done, of all of them.
    pub fn files(&self, done: u64, all: u64) {
        self.show(2, all, done);
    }

    fn show(&self, template: usize, all: u64, done: u64) {
        let Some(bar) = &self.bar else { return };
        // Relaxed: only what is drawn depends on it.
        if self.template.swap(template, Ordering::Relaxed) != template {
            // SANITY: the templates are constants and parse.
            bar.set_style(ProgressStyle::with_template(TEMPLATES[template]).expect("a valid template"));
        }
        bar.set_length(all);
        bar.set_position(done);
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        let shows = self.shows.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((end, thread)) = shows {
            drop(end);
            // It shows nothing any more after that.
            _ = thread.join();
        }
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Drop for ReadProgress {
    fn drop(&mut self) {
        self.finish();
    }
}
