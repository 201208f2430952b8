//! Keys that mean the same wherever they are pressed: in lists, on pages of text, and in a line
//! that is written.
use kymo_cli::keys::Key;

use super::list::List;

/// A line that is written has no more characters.
const MOST_TYPED: usize = 200;

/// Moves the cursor of a list with so many lines on the screen; false where the key is another one.
pub(super) fn move_in_list<I, N>(list: &mut List<I, N>, key: Key, height: usize) -> bool {
    let page = height.max(1).cast_signed();
    match key {
        Key::Up => list.go(-1),
        Key::Down => list.go(1),
        Key::PageUp => list.go(-page),
        Key::PageDown | Key::Char(' ') => list.go(page),
        Key::Home => list.go(isize::MIN),
        Key::End => list.go(isize::MAX),
        _ => return false,
    }
    true
}

/// The first line of a text with so many lines that is then on a screen of this height; `None`
/// where the key leads away from the text.
pub(super) fn turn_page(key: Key, from: usize, lines: usize, screen_height: u16) -> Option<usize> {
    let height = usize::from(screen_height).saturating_sub(2).max(1);
    let last = lines.saturating_sub(height);
    let from = match key {
        Key::Up => from.saturating_sub(1),
        Key::Down => from + 1,
        Key::PageUp => from.saturating_sub(height),
        Key::PageDown | Key::Char(' ') => from + height,
        Key::Home => 0,
        Key::End => last,
        _ => return None,
    };
    Some(from.min(last))
}

/// Changes a line that is written.
pub(super) fn edit_line(text: &mut String, key: Key) {
    match key {
        Key::Char(char) if text.chars().count() < MOST_TYPED => text.push(char),
        Key::Backspace => drop(text.pop()),
        Key::Ctrl('u') => text.clear(),
        _ => {}
    }
}
