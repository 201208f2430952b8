//! A recording in the terminal: lists that open, zoom and narrow as keys are pressed.
//!
//! ```text
//!  terminal --key, size--> update --question--> thread that asks the query layer
//!      ^                   |  ^ |                      |
//!      '--changed cells--layout '-------answer---------'
//! ```
//!
//! - `state.rs` is what is shown: rows (`list.rs`), and what they are of (`subject.rs`).
//!   `update.rs` decides what a key does: a function from what happened to what is to be done.
//! - `layout.rs` says where things are on a screen of any size, `help.rs` which keys there are.
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

use anyhow::Context as _;
use kymo_cli::screen::{FullScreen, ScreenEvent};
use kymo_cli::{exit, open, terminal};
use kymo_data::Recording;
use kymo_profile::query::{self, Dataset, Filter, FilterField, Query, QueryAnswer, QueryError};
use kymo_symbols::SymbolStore;

mod help;
mod layout;
mod list;
mod state;
mod subject;
#[cfg(test)]
mod tests;
mod update;

use state::Browser;
pub(crate) use state::Start;
pub(crate) use subject::Subject;
use update::{Effect, Input};

/// A question of this number, and what cancels it.
type Question = (u64, Query, Arc<AtomicBool>);
type NumberedAnswer = (u64, Result<QueryAnswer, QueryError>);

/// An answer that takes longer is waited for on a screen that says so.
const SHORT_MS: i64 = 150;

/// Shows a recording until the user ends it. The status is `done`, unless a signal ends it.
pub(crate) fn run(
    recording: &Recording,
    (data, store): (&Dataset, &SymbolStore),
    start: Start,
    done: ExitCode,
) -> anyhow::Result<ExitCode> {
    let (questions, asked) = channel::<Question>();
    let (answer, answers) = channel::<NumberedAnswer>();
    let (answered, wakes) = UnixStream::pair().context("failed to make a socket pair")?;
    answered.set_nonblocking(true).context("failed to make a socket pair")?;
    let ended = std::thread::scope(|scope| {
        scope.spawn(move || answer_questions((data, store), &asked, &answer, &wakes));
        let mut session = TerminalLoop {
            recording,
            screen: FullScreen::open()?,
            questions,
            answers,
            answered,
            cancel: Arc::default(),
        };
        let ended = session.follow(start);
        session.cancel.store(true, Ordering::Relaxed);
        ended
    })?;
    Ok(ended.map_or(done, exit::by_signal))
}

/// Answers questions until there are no more to come.
fn answer_questions(
    (data, store): (&Dataset, &SymbolStore),
    asked: &Receiver<Question>,
    answers: &Sender<NumberedAnswer>,
    mut wakes: &UnixStream,
) {
    while let Ok((number, query, cancel)) = asked.recv() {
        let answer = data.ask(&query, store, &cancel);
        if answer == Err(QueryError::Cancelled) {
            continue;
        }
        if answers.send((number, answer)).is_err() || wakes.write_all(&[0]).is_err() {
            return;
        }
    }
}

struct TerminalLoop<'a> {
    recording: &'a Recording,
    screen: FullScreen,
    questions: Sender<Question>,
    answers: Receiver<NumberedAnswer>,
    /// Can be read when there is an answer.
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
            let events = self.screen.wait(self.answered.as_fd(), timeout)?;
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
                        Some((number, answer)) => Input::Answer(number, answer),
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

    fn next_answer(&mut self) -> anyhow::Result<Option<NumberedAnswer>> {
        let mut byte = [0];
        let _ = rustix::io::read(&self.answered, &mut byte);
        match self.answers.try_recv() {
            Ok(answer) => Ok(Some(answer)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => anyhow::bail!("the thread that answers questions has ended"),
        }
    }

    /// Returns whether that was the end.
    fn carry_out(&mut self, browser: &mut Browser, effects: Vec<Effect>) -> anyhow::Result<bool> {
        for effect in effects {
            let more = match effect {
                Effect::Quit => return Ok(true),
                Effect::Ask(number, query) => {
                    let before = std::mem::take(&mut self.cancel);
                    before.store(true, Ordering::Relaxed);
                    let question = (number, query, Arc::clone(&self.cancel));
                    self.questions.send(question).context("the thread that answers questions has ended")?;
                    continue;
                }
                Effect::Understand(text) => {
                    let understood = conditions(&text, self.recording);
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
    write().map(|()| name.clone()).map_err(|error: anyhow::Error| format!("{name}: {error:#}"))
}
