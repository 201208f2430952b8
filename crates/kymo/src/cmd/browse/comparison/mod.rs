//! A comparison in the terminal: what was compared, and the call trees of both sides.
//!
//! - `state.rs` is what is shown, as rows of a [`Comparison`] (`rows.rs`). `update.rs` decides
//!   what a key does.
//! - `columns.rs` says which numbers a screen of any width has, `layout.rs` what else is on it, and
//!   `details.rs` what is known of one row.
//! - The list, the lines of the screen and most keys are those of the browser of recordings
//!   (`list.rs`, `screen.rs`, `keys.rs` beside this folder).
//!
//! # Invariants
//! - **C1** Every number is one of the comparison, or a sum of mean costs of its paths.
//! - **C2** Names reach the terminal by [`shown`](kymo_profile::text::shown) only.
//! - **C3** Only what the comparison calls a regression or an improvement has a colour.
use std::process::ExitCode;

use anyhow::Context as _;
use kymo_cli::screen::{FullScreen, ScreenEvent};
use kymo_cli::{exit, terminal};
use kymo_profile::diff::Comparison;

mod columns;
mod details;
mod layout;
mod rows;
mod state;
#[cfg(test)]
mod tests;
mod update;

use state::Browser;

/// Shows a comparison until the user ends it. The status is `done`, unless a signal ends it.
/// `notes`: what should be known of it, sentences.
pub(crate) fn run(comparison: &Comparison, notes: Vec<String>, done: ExitCode) -> anyhow::Result<ExitCode> {
    let color = terminal::look().color;
    let mut screen = FullScreen::open()?;
    let size = screen.size();
    let mut browser = Browser::new(comparison, notes, (size.width, size.height));
    loop {
        let drawn = screen.draw(|frame| layout::draw(&browser, frame.buffer_mut(), color));
        drawn.context("failed to write to the terminal")?;
        for event in screen.wait(None, None)? {
            match event {
                ScreenEvent::Key(key) if browser.key(key) => return Ok(done),
                ScreenEvent::Key(_) | ScreenEvent::Ready => {}
                ScreenEvent::Redraw => {
                    let size = screen.size();
                    browser.resize((size.width, size.height));
                }
                ScreenEvent::End(signal) => {
                    drop(screen);
                    return Ok(exit::by_signal(signal));
                }
            }
        }
    }
}
