//! The terminal as a screen that one verb has for itself, until it gives it back.
//!
//! *You give it* pictures ([`FullScreen::draw`]); only cells that changed are written. *It gives
//! you* keys, sizes and signals ([`FullScreen::wait`]).
//!
//! # Guarantees
//! - The terminal is as before when the verb ends, panics, or is suspended: the settings of its
//!   line, the cursor, and the screen that a shell was on.
//! - A signal that ends the verb is seen also while the terminal takes no output.
//!
//! # Non-goals
//! What is drawn, and what keys mean.
use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, Once, PoisonError};

use anyhow::Context;
use ratatui_core::backend::{Backend, ClearType, WindowSize};
use ratatui_core::buffer::Cell;
use ratatui_core::layout::{Position, Size};
use ratatui_core::style::{Color, Modifier};
use ratatui_core::terminal::{Frame, Terminal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, kill_current_process_group};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use crate::keys::{Key, KeyDecoder};
use crate::signals::{SIGHUP, Signals, TerminalChanges};

/// Another screen, without a cursor.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[0m\x1b[2J";
/// Usual letters, the cursor, the screen from before.
const LEAVE: &[u8] = b"\x1b[0m\x1b[?25h\x1b[?1049l";
/// A key that has begun is complete, or was Escape, after so many milliseconds.
const KEY_TIMEOUT_MS: i64 = 100;
/// A terminal that takes nothing for so long is not told to leave the screen.
const LEAVE_TIMEOUT_MS: i64 = 500;
/// So many bytes at once: a terminal that says it takes some takes that many at least.
const CHUNK: usize = 256;
/// The size where a terminal does not know its own.
const USUAL_SIZE: Size = Size { width: 80, height: 24 };
/// No screen is drawn larger, whatever a terminal says.
const LARGEST: u16 = 1000;

/// The settings of the line from before, while there is a screen.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScreenEvent {
    /// A key was pressed.
    Key(Key),
    /// The screen is to be drawn, perhaps in another size.
    Redraw,
    /// A signal asks the verb to end, or the terminal is gone.
    End(i32),
    /// The caller's descriptor can be read.
    Ready,
}

/// Whether this process can have a screen: its input and output are a terminal that can be one.
pub fn is_possible() -> bool {
    let is_able = std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb");
    io::stdin().is_terminal() && io::stdout().is_terminal() && is_able
}

/// The screen.
pub struct FullScreen {
    terminal: Terminal<TerminalOutput>,
    decoder: KeyDecoder,
    signals: Signals,
    changes: TerminalChanges,
}

impl FullScreen {
    /// Takes the terminal.
    ///
    /// # Errors
    /// When it is none, or signals cannot be caught.
    pub fn open() -> anyhow::Result<FullScreen> {
        let signals = Signals::catch()?;
        let changes = TerminalChanges::follow()?;
        restore_before_panic_messages();
        enter().context("failed to set up the terminal")?;
        let output = TerminalOutput { bytes: String::new(), ends: signals.another_fd()? };
        let terminal = Terminal::new(output).context("failed to set up the terminal")?;
        Ok(FullScreen { terminal, decoder: KeyDecoder::default(), signals, changes })
    }

    /// Its size.
    pub fn size(&self) -> Size {
        size_now()
    }

    /// Draws a picture, and writes what differs from the one before.
    ///
    /// # Errors
    /// The terminal cannot be written to.
    pub fn draw(&mut self, picture: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.terminal.draw(picture).map(drop)
    }

    /// Waits until something happened, also until `other` can be read, or for so many milliseconds.
    /// All keys that are there come together, so that a slow terminal gets one picture for them.
    ///
    /// # Errors
    /// The terminal cannot be read or written.
    pub fn wait(
        &mut self,
        other: Option<BorrowedFd<'_>>,
        most_ms: Option<i64>,
    ) -> io::Result<Vec<ScreenEvent>> {
        let mut events = Vec::new();
        let of_key = self.decoder.has_part().then_some(KEY_TIMEOUT_MS);
        let timeout = of_key.into_iter().chain(most_ms).min();
        let input = io::stdin();
        let own = [input.as_fd(), self.signals.as_fd(), self.changes.as_fd()];
        let mut fds: Vec<PollFd<'_>> =
            own.into_iter().chain(other).map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let count = match poll(&mut fds, timeout.map(milliseconds).as_ref()) {
            Err(rustix::io::Errno::INTR) => return Ok(events),
            count => count?,
        };
        let has_come = |at: usize| fds.get(at).is_some_and(|fd| !fd.revents().is_empty());
        let [typed, ended, changed, ready] = [0, 1, 2, 3].map(has_come);
        if count == 0 {
            events.extend(self.decoder.end_part().map(ScreenEvent::Key));
        }
        if changed {
            if self.changes.clear() {
                self.enter_again()?;
            }
            events.push(ScreenEvent::Redraw);
        }
        if typed {
            self.read_keys(&mut events)?;
        }
        if ready {
            events.push(ScreenEvent::Ready);
        }
        if ended {
            events.extend(self.signals.last().map(ScreenEvent::End));
        }
        Ok(events)
    }

    fn read_keys(&mut self, events: &mut Vec<ScreenEvent>) -> io::Result<()> {
        let mut bytes = [0; 1024];
        let count = match rustix::io::read(io::stdin(), &mut bytes) {
            Err(rustix::io::Errno::INTR) => return Ok(()),
            // The terminal is gone.
            Ok(0) | Err(rustix::io::Errno::IO) => {
                events.push(ScreenEvent::End(SIGHUP));
                return Ok(());
            }
            count => count?,
        };
        for key in self.decoder.feed(&bytes[..count]) {
            match key {
                Key::Ctrl('z') => {
                    self.suspend()?;
                    events.push(ScreenEvent::Redraw);
                }
                Key::Ctrl('l') => {
                    self.terminal.clear()?;
                    events.push(ScreenEvent::Redraw);
                }
                key => events.push(ScreenEvent::Key(key)),
            }
        }
        Ok(())
    }

    /// Gives the terminal to the shell until this process goes on.
    fn suspend(&mut self) -> io::Result<()> {
        leave();
        // The whole group, as the terminal would do it. It returns at once where there is no shell
        // to go back to.
        kill_current_process_group(Signal::TSTP)?;
        self.enter_again()
    }

    fn enter_again(&mut self) -> io::Result<()> {
        enter()?;
        self.terminal.clear()
    }
}

impl Drop for FullScreen {
    fn drop(&mut self) {
        leave();
    }
}

fn milliseconds(count: i64) -> Timespec {
    Timespec { tv_sec: count / 1000, tv_nsec: (count % 1000) * 1_000_000 }
}

fn size_now() -> Size {
    match tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
            Size { width: size.ws_col.min(LARGEST), height: size.ws_row.min(LARGEST) }
        }
        _ => USUAL_SIZE,
    }
}

/// Keys come as they are pressed, and another screen is shown.
fn enter() -> io::Result<()> {
    let mut settings = tcgetattr(io::stdin())?;
    let mut before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner);
    before.get_or_insert_with(|| settings.clone());
    settings.make_raw();
    tcsetattr(io::stdin(), OptionalActions::Now, &settings)?;
    rustix::io::write(io::stdout(), ENTER)?;
    Ok(())
}

/// Everything as before; nothing where it is.
fn leave() {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(before) = before else { return };
    let output = io::stdout();
    let mut room = [PollFd::new(&output, PollFlags::OUT)];
    if poll(&mut room, Some(&milliseconds(LEAVE_TIMEOUT_MS))).is_ok_and(|count| count > 0) {
        let _ = rustix::io::write(&output, LEAVE);
    }
    let _ = tcsetattr(io::stdin(), OptionalActions::Now, &before);
}

/// A panic is told on the screen from before.
fn restore_before_panic_messages() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let tell = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            leave();
            tell(info);
        }));
    });
}

/// Writes cells to the terminal on stdout.
struct TerminalOutput {
    bytes: String,
    /// Can be read once a signal asks the verb to end.
    ends: OwnedFd,
}

impl TerminalOutput {
    fn put(&mut self, words: std::fmt::Arguments<'_>) {
        // SANITY: writing to a string cannot fail.
        self.bytes.write_fmt(words).expect("writing to a string");
    }

    fn style(&mut self, cell: &Cell) {
        self.bytes.push_str("\x1b[0");
        for (modifier, code) in [
            (Modifier::BOLD, 1),
            (Modifier::DIM, 2),
            (Modifier::ITALIC, 3),
            (Modifier::UNDERLINED, 4),
            (Modifier::REVERSED, 7),
        ] {
            if cell.modifier.contains(modifier) {
                self.put(format_args!(";{code}"));
            }
        }
        for (color, base) in [(cell.fg, 30), (cell.bg, 40)] {
            if let Some(code) = color_code(color) {
                self.put(format_args!(";{}", base + code));
            }
        }
        self.bytes.push('m');
    }
}

/// The colours that every terminal with colours has.
fn color_code(color: Color) -> Option<u8> {
    Some(match color {
        Color::Black => 0,
        Color::Red => 1,
        Color::Green => 2,
        Color::Yellow => 3,
        Color::Blue => 4,
        Color::Magenta => 5,
        Color::Cyan => 6,
        Color::Gray => 7,
        _ => return None,
    })
}

impl Backend for TerminalOutput {
    type Error = io::Error;

    fn draw<'a, I>(&mut self, content: I) -> io::Result<()>
    where
        I: Iterator<Item = (u16, u16, &'a Cell)>,
    {
        // Where the next cell goes without being told.
        let mut next = None;
        let mut style = None;
        for (x, y, cell) in content {
            if next != Some((x, y)) {
                self.put(format_args!("\x1b[{};{}H", y + 1, x + 1));
            }
            let own = (cell.fg, cell.bg, cell.modifier);
            if style != Some(own) {
                self.style(cell);
                style = Some(own);
            }
            self.bytes.push_str(cell.symbol());
            // How wide other characters are is the terminal's choice.
            next = cell.symbol().is_ascii().then_some((x + 1, y));
        }
        if style.is_some() {
            self.bytes.push_str("\x1b[0m");
        }
        Ok(())
    }

    fn hide_cursor(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn show_cursor(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn get_cursor_position(&mut self) -> io::Result<Position> {
        Ok(Position::ORIGIN)
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, position: P) -> io::Result<()> {
        let position = position.into();
        self.put(format_args!("\x1b[{};{}H", position.y + 1, position.x + 1));
        Ok(())
    }

    fn clear(&mut self) -> io::Result<()> {
        self.bytes.push_str("\x1b[2J");
        Ok(())
    }

    fn clear_region(&mut self, _: ClearType) -> io::Result<()> {
        self.clear()
    }

    fn size(&self) -> io::Result<Size> {
        Ok(size_now())
    }

    fn window_size(&mut self) -> io::Result<WindowSize> {
        Ok(WindowSize { columns_rows: size_now(), pixels: Size::default() })
    }

    /// Writes what was drawn, unless a signal asks the verb to end while the terminal takes none.
    fn flush(&mut self) -> io::Result<()> {
        let output = io::stdout();
        let mut rest = self.bytes.as_bytes();
        while !rest.is_empty() {
            let mut fds = [PollFd::new(&output, PollFlags::OUT), PollFd::new(&self.ends, PollFlags::IN)];
            match poll(&mut fds, None) {
                Err(rustix::io::Errno::INTR) => continue,
                polled => polled?,
            };
            if !fds[1].revents().is_empty() {
                break;
            }
            match rustix::io::write(&output, &rest[..rest.len().min(CHUNK)]) {
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
                // The terminal is gone: reading from it says so, too.
                Err(rustix::io::Errno::IO) => break,
                count => rest = &rest[count?..],
            }
        }
        self.bytes.clear();
        Ok(())
    }
}
