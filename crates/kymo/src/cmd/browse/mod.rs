//! A recording in the terminal: lists that open, zoom and narrow as keys are pressed.
//!
//! ```text
//!  terminal --key, size--> update --question--> thread that asks the query layer
//!      ^                   |  ^ |                      |
//!      '--changed cells--layout '-------answer---------'
//! ```
//!
//! Of a recording that runs (`kymo top`) newer samples come now and then ([`LiveFeed`]): then the
//! rows are asked for anew, and the user stays at the same place (`live.rs`).
//!
//! - `state.rs` is what is shown: rows (`list.rs`), and what they are of (`subject.rs`).
//!   `update.rs` decides what a key does: a function from what happened to what is to be done.
//! - `layout.rs` says where things are on a screen of any size (`screen.rs`), `help.rs` which keys
//!   there are; those that mean the same everywhere are in `keys.rs`.
//! - `comparison/` is the browser that `kymo diff --tui` opens, with the same list and screen.
//! - This file joins them with the terminal ([`FullScreen`]) and with the thread that asks.
//!
//! # Invariants
//! - **B1** Every number on the screen is one that the query layer gave, or a share of two of them.
//! - **B2** Names of a recording reach the terminal by [`shown`](kymo_profile::text::shown) only.
//! - **B3** A key is taken while a question has no answer. A new question cancels the one before.
use std::io::Write as _;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use kymo_cli::screen::{FullScreen, ScreenEvent, is_possible};
use kymo_cli::{exit, open, terminal};
use kymo_data::Recording;
use kymo_profile::live::LiveData;
use kymo_profile::query::{self, Dataset, Filter, FilterField, Query, QueryAnswer, QueryError};
use kymo_symbols::SymbolStore;

pub(crate) mod comparison;
mod help;
mod keys;
mod layout;
mod list;
mod live;
mod screen;
mod state;
mod subject;
#[cfg(test)]
mod tests;
mod update;

use state::Browser;
pub(crate) use state::{Newer, Start};
pub(crate) use subject::Subject;
use update::{Effect, Input};

/// Why a browser that is asked for with `--tui` cannot be had. `text_option`: an option that is
/// about text; `text`: what is text without `--tui`.
pub(crate) fn refusal(text_option: Option<&str>, text: &str) -> Option<String> {
    if let Some(option) = text_option {
        return Some(format!("--tui opens the browser, and {option} is about text: leave one of them out"));
    }
    (!is_possible()).then(|| {
        format!(
            "--tui needs a terminal on stdin and stdout, and a TERM other than dumb: without --tui {text} is text"
        )
    })
}

/// What is asked: rows.
#[derive(Clone)]
enum ShownRows<'a> {
    /// Of a recording that is complete.
    Complete(&'a Recording, &'a Dataset, &'a SymbolStore),
    /// The newest of a recording that runs.
    Live(Arc<LiveData>),
}

impl ShownRows<'_> {
    fn recording(&self) -> &Recording {
        match self {
            ShownRows::Complete(recording, ..) => recording,
            ShownRows::Live(live) => &live.recording,
        }
    }

    fn ask(&self, query: &Query, cancel: &AtomicBool) -> Result<QueryAnswer, QueryError> {
        match self {
            ShownRows::Complete(_, data, store) => data.ask(query, store, cancel),
            ShownRows::Live(live) => live.data.ask(query, &live.store, cancel),
        }
    }
}

/// Questions of this number about rows, and what cancels them. `refreshes`: they are those for
/// newer numbers; else there is one.
struct Question<'a> {
    number: u64,
    queries: Vec<Query>,
    refreshes: bool,
    rows: ShownRows<'a>,
    cancel: Arc<AtomicBool>,
}

/// What a recording that runs brings.
pub(crate) enum LiveEvent {
    /// Newer samples.
    Data(Arc<LiveData>),
    /// It has ended, in words.
    Ended(String),
}

/// A recording that runs.
pub(crate) struct LiveFeed<'a> {
    /// What it brings; each has a byte in `wakes`.
    pub(crate) events: Receiver<LiveEvent>,
    /// Both ends of what can be read when something has come.
    pub(crate) wakes: (UnixStream, UnixStream),
    /// Asks for newer samples.
    pub(crate) ask: &'a dyn Fn(),
    pub(crate) every: Duration,
    /// What is shown of samples besides numbers.
    pub(crate) describe: &'a dyn Fn(&LiveData) -> Newer,
}

/// An answer that takes longer is waited for on a screen that says so.
const SHORT_MS: i64 = 150;

/// Shows a recording until the user ends it. The status is `done`, unless a signal ends it.
pub(crate) fn run(
    recording: &Recording,
    (data, store): (&Dataset, &SymbolStore),
    start: Start,
    done: ExitCode,
) -> anyhow::Result<ExitCode> {
    let wakes = UnixStream::pair().context("failed to make a socket pair")?;
    let ended = run_loop(ShownRows::Complete(recording, data, store), start, wakes, None)?;
    Ok(ended.map_or(done, exit::by_signal))
}

/// Shows a recording that runs, from these samples on, until the user ends it, or a signal does,
/// which is returned.
pub(crate) fn run_live(
    first: Arc<LiveData>,
    start: Start,
    feed: LiveFeed<'_>,
) -> anyhow::Result<Option<i32>> {
    let LiveFeed { events, wakes, ask, every, describe } = feed;
    let due = Some(Instant::now() + every);
    run_loop(
        ShownRows::Live(first),
        start,
        wakes,
        Some(Following { events, ask, every, describe, due, is_wanted: true }),
    )
}

fn run_loop<'a>(
    rows: ShownRows<'a>,
    start: Start,
    (answered, wakes): (UnixStream, UnixStream),
    following: Option<Following<'a>>,
) -> anyhow::Result<Option<i32>> {
    let (questions, asked) = channel::<Question<'a>>();
    let (answer, answers) = channel::<Input>();
    answered.set_nonblocking(true).context("failed to make a socket pair")?;
    std::thread::scope(|scope| {
        scope.spawn(move || answer_questions(&asked, &answer, &wakes));
        let mut session = TerminalLoop {
            rows,
            following,
            screen: FullScreen::open()?,
            questions,
            answers,
            answered,
            cancel: Arc::default(),
        };
        let ended = session.follow(start);
        session.cancel.store(true, Ordering::Relaxed);
        ended
    })
}

/// Answers questions until there are no more to come.
fn answer_questions(asked: &Receiver<Question<'_>>, answers: &Sender<Input>, mut wakes: &UnixStream) {
    while let Ok(Question { number, queries, refreshes, rows, cancel }) = asked.recv() {
        let all: Result<Vec<QueryAnswer>, QueryError> =
            queries.iter().map(|query| rows.ask(query, &cancel)).collect();
        if all == Err(QueryError::Cancelled) {
            continue;
        }
        let answer = match (refreshes, all) {
            (true, all) => Input::Refreshed(number, all),
            (false, Ok(mut all)) => match all.pop() {
                Some(answer) => Input::Answer(number, Ok(answer)),
                None => continue,
            },
            (false, Err(error)) => Input::Answer(number, Err(error)),
        };
        if answers.send(answer).is_err() || wakes.write_all(&[0]).is_err() {
            return;
        }
    }
}

/// How newer samples of a recording that runs come.
struct Following<'a> {
    events: Receiver<LiveEvent>,
    ask: &'a dyn Fn(),
    every: Duration,
    describe: &'a dyn Fn(&LiveData) -> Newer,
    /// When they are asked for; `None`: they have been, or are not wanted.
    due: Option<Instant>,
    is_wanted: bool,
}

impl Following<'_> {
    /// In how many milliseconds newer samples are to be asked for.
    fn left_ms(&self) -> Option<i64> {
        let left = self.due?.saturating_duration_since(Instant::now());
        // Rounded up: else it would be waited for in steps of nothing.
        i64::try_from(left.as_micros().div_ceil(1000)).ok()
    }

    fn ask_if_due(&mut self) {
        if self.due.take_if(|due| *due <= Instant::now()).is_some() {
            (self.ask)();
        }
    }
}

struct TerminalLoop<'a> {
    rows: ShownRows<'a>,
    following: Option<Following<'a>>,
    screen: FullScreen,
    questions: Sender<Question<'a>>,
    answers: Receiver<Input>,
    /// Can be read when there is an answer, or something has come of a recording that runs.
    answered: UnixStream,
    /// Cancels the last question.
    cancel: Arc<AtomicBool>,
}

impl TerminalLoop<'_> {
    /// Until the user ends it, or a signal does.
    fn follow(&mut self, start: Start) -> anyhow::Result<Option<i32>> {
        let color = terminal::look().color;
        let size = self.screen.size();
        let (mut browser, effects) = Browser::new(start, (size.width, size.height));
        if self.carry_out(&mut browser, effects)? {
            return Ok(None);
        }
        let mut redraw = true;
        loop {
            // A short question needs no picture without its answer.
            let timeout = (redraw && browser.is_waiting()).then_some(SHORT_MS);
            if redraw && timeout.is_none() {
                self.draw(&browser, color)?;
                redraw = false;
            }
            let left_ms = self.following.as_ref().and_then(Following::left_ms);
            let waits_ms = timeout.into_iter().chain(left_ms).min();
            let events = self.screen.wait(Some(self.answered.as_fd()), waits_ms)?;
            self.following.iter_mut().for_each(Following::ask_if_due);
            if events.is_empty() && redraw {
                self.draw(&browser, color)?;
                redraw = false;
            }
            redraw |= !events.is_empty();
            for event in events {
                let input = match event {
                    ScreenEvent::End(signal) => return Ok(Some(signal)),
                    ScreenEvent::Key(key) => Input::Key(key),
                    ScreenEvent::Redraw => {
                        let size = self.screen.size();
                        Input::Size(size.width, size.height)
                    }
                    ScreenEvent::Ready => match self.next_answer()? {
                        Some(input) => input,
                        None => continue,
                    },
                };
                let effects = browser.update(input);
                if self.carry_out(&mut browser, effects)? {
                    return Ok(None);
                }
            }
        }
    }

    fn draw(&mut self, browser: &Browser, color: bool) -> anyhow::Result<()> {
        let drawn = self.screen.draw(|frame| layout::draw(browser, frame.buffer_mut(), color));
        drawn.context("failed to write to the terminal")
    }

    /// An answer, or something of a recording that runs.
    fn next_answer(&mut self) -> anyhow::Result<Option<Input>> {
        let mut byte = [0];
        let _ = rustix::io::read(&self.answered, &mut byte);
        match self.answers.try_recv() {
            Ok(answer) => Ok(Some(answer)),
            Err(TryRecvError::Empty) => Ok(self.next_of_live()),
            Err(TryRecvError::Disconnected) => anyhow::bail!("the thread that answers questions has ended"),
        }
    }

    fn next_of_live(&mut self) -> Option<Input> {
        let following = self.following.as_mut()?;
        match following.events.try_recv().ok()? {
            // The list was frozen while they were on their way.
            LiveEvent::Data(_) if !following.is_wanted => None,
            LiveEvent::Data(live) => {
                following.due = Some(Instant::now() + following.every);
                let newer = (following.describe)(&live);
                self.rows = ShownRows::Live(live);
                Some(Input::Newer(newer))
            }
            LiveEvent::Ended(words) => {
                following.due = None;
                Some(Input::Ended(words))
            }
        }
    }

    /// Asks, in the place of what was asked before.
    fn send(&mut self, number: u64, queries: Vec<Query>, refreshes: bool) -> anyhow::Result<()> {
        let before = std::mem::take(&mut self.cancel);
        before.store(true, Ordering::Relaxed);
        let (rows, cancel) = (self.rows.clone(), Arc::clone(&self.cancel));
        let question = Question { number, queries, refreshes, rows, cancel };
        self.questions.send(question).ok().context("the thread that answers questions has ended")
    }

    /// Returns whether that was the end.
    fn carry_out(&mut self, browser: &mut Browser, effects: Vec<Effect>) -> anyhow::Result<bool> {
        for effect in effects {
            let more = match effect {
                Effect::Quit => return Ok(true),
                Effect::Ask(number, query) => {
                    self.send(number, vec![query], false)?;
                    continue;
                }
                Effect::Refresh(number, queries) => {
                    self.send(number, queries, true)?;
                    continue;
                }
                Effect::Follow(is_wanted) => {
                    if let Some(following) = &mut self.following {
                        following.is_wanted = is_wanted;
                        following.due = is_wanted.then(Instant::now);
                    }
                    continue;
                }
                Effect::Understand(text) => {
                    let understood = conditions(&text, self.rows.recording());
                    browser.update(Input::Conditions(text, understood))
                }
                Effect::Print(text) => browser.update(Input::Printed(print(&text))),
            };
            if self.carry_out(browser, more)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// What typed conditions mean.
fn conditions(text: &str, recording: &Recording) -> Result<Filter, String> {
    const VERB: &str = "events where ";
    let understood = query::parse(&format!("{VERB}{text}"), recording);
    let query = understood.map_err(|error| match error {
        QueryError::Syntax { at, what } => {
            let at = at.saturating_sub(VERB.len()).max(1);
            QueryError::Syntax { at, what }.to_string()
        }
        error => error.to_string(),
    })?;
    let mut filter = query.filter;
    if filter.conditions.iter().any(|condition| condition.field == FilterField::Event) {
        return Err("Tab chooses the event: conditions name the other fields".into());
    }
    let values = filter.conditions.iter_mut().flat_map(|condition| &mut condition.values);
    values.for_each(|value| value.at = value.at.saturating_sub(VERB.len()));
    Ok(filter)
}

/// Writes a list to the first file of perf's names that is not there.
fn print(text: &str) -> Result<String, String> {
    let names = (0..10_000).map(|number| format!("perf.hist.{number}"));
    let is_free = |name: &String| Path::new(name).symlink_metadata().is_err();
    let Some(name) = names.into_iter().find(is_free) else {
        return Err("perf.hist.0 to perf.hist.9999 are there: remove some".into());
    };
    let write = || -> anyhow::Result<()> {
        let mut file = open::export(Path::new(&name))?;
        file.write_all(text.as_bytes()).and_then(|()| file.finish())?;
        Ok(())
    };
    write()
        .map(|()| name.clone())
        .map_err(|error: anyhow::Error| format!("{name}: {}", exit::with_causes(&error)))
}
