//! The table on a terminal while the recording is made: read from the growing file, and drawn anew
//! over the one before.
//!
//! The kernel's sums come at the end only, so what is drawn is as good as samples.

use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use kymo_data::Recording;
use kymo_profile::load::LoadOptions;
use kymo_profile::locks::{Locks, write_locks};
use kymo_profile::resolve::ResolveOptions;
use kymo_symbols::SymbolStore;

use super::LocksArgs;

/// A table that is drawn again and again.
pub(super) struct LiveTable<'a> {
    pub(super) args: &'a LocksArgs,
    pub(super) file: File,
    /// Names of the events and their descriptions, which the file gets at its end.
    pub(super) described: (Vec<String>, Option<Vec<u8>>),
}

impl LiveTable<'_> {
    /// Draws each `interval` until the other end of `stop` is gone, and takes the last one away.
    pub(super) fn run(&self, interval: Duration, stop: &Receiver<()>) {
        let (mut drawn, mut store) = (0, None);
        while stop.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
            // What cannot be read now may be readable the next time; the last table says why not.
            let Some(text) = self.table(&mut store) else { continue };
            match draw(&text, drawn) {
                Ok(lines) => drawn = lines,
                // The last table fails, too, and says so.
                Err(_) => return,
            }
        }
        _ = draw("", drawn);
    }

    /// The table of now. Files are read once: `store` keeps their names.
    fn table(&self, store: &mut Option<SymbolStore>) -> Option<String> {
        let mut recording = Recording::open(Arc::new(self.file.try_clone().ok()?), Vec::new()).ok()?;
        let (names, tracing_data) = &self.described;
        recording.features.tracing_data.clone_from(tracing_data);
        for (event, name) in recording.events.list.iter_mut().zip(names) {
            event.name.clone_from(name);
        }
        let store = store.get_or_insert_with(|| self.args.symbols.store(&recording));
        let (load, resolve) = (LoadOptions::default(), ResolveOptions::default());
        let mut locks = Locks::open(&recording, &load, resolve, store, &|_, _, _| {}).ok()??;
        // Programs tell at the end how long they have held locks.
        locks.has_holds = false;
        let mut text = Vec::new();
        write_locks(&mut text, &locks, self.args.top).ok()?;
        String::from_utf8(text).ok()
    }
}

/// Draws lines over those that were drawn before, as many as fit, and cut at the right; how many.
fn draw(text: &str, drawn: usize) -> io::Result<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok();
    // A terminal that does not know its size says 0.
    let of = |size: Option<u16>, else_: usize| size.map(usize::from).filter(|it| *it > 0).unwrap_or(else_);
    let (rows, columns) = (of(size.map(|it| it.ws_row), 24), of(size.map(|it| it.ws_col), 80));
    let mut out = io::stdout().lock();
    if drawn > 0 {
        write!(out, "\x1b[{drawn}A\x1b[J")?;
    }
    let mut lines = 0;
    for line in text.lines().take(rows.saturating_sub(2)) {
        let cut: String = line.chars().take(columns.saturating_sub(1)).collect();
        writeln!(out, "{cut}")?;
        lines += 1;
    }
    out.flush()?;
    Ok(lines)
}
