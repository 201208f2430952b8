//! The terminal: is there one, how wide, with colour, and progress on it.

use std::io::IsTerminal;
use std::path::Path;
use std::sync::OnceLock;

use indicatif::{ProgressBar, ProgressStyle};
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

/// A progress bar over the passes of reading a recording. It appears on a terminal only, and only when the work is
/// long enough to wonder about.
pub struct ReadProgress {
    bar: OnceLock<ProgressBar>,
    started: std::time::Instant,
    wanted: bool,
}

impl ReadProgress {
    /// A bar that is not shown yet.
    pub fn new(quiet: bool) -> ReadProgress {
        let wanted = !quiet && std::io::stderr().is_terminal();
        ReadProgress { bar: OnceLock::new(), started: std::time::Instant::now(), wanted }
    }

    /// Pass 0 or 1 has read `done` of `all` bytes.
    pub fn at(&self, pass: u32, done: u64, all: u64) {
        self.show(
            2 * all,
            u64::from(pass) * all + done,
            "{spinner} reading {bar:40} {bytes}/{total_bytes} {eta}",
        );
    }

    /// So many files are done, of all of them.
    pub fn files(&self, done: u64, all: u64) {
        self.show(all, done, "{spinner} {bar:40} {pos}/{len} files {eta}");
    }

    fn show(&self, all: u64, done: u64, template: &str) {
        if !self.wanted || self.started.elapsed().as_millis() < 500 {
            return;
        }
        let bar = self.bar.get_or_init(|| {
            let bar = ProgressBar::new(all);
            // SANITY: the templates are constants and parse.
            bar.set_style(ProgressStyle::with_template(template).expect("a valid template"));
            bar
        });
        bar.set_position(done);
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        if let Some(bar) = self.bar.get() {
            bar.finish_and_clear();
        }
    }
}
