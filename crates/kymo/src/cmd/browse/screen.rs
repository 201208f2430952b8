//! Lines on a screen of any size: a list between two lines above and one below, or a page of text.
use kymo_profile::text::{shortened, shown};
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier, Style};

use super::list::Row;

/// A screen with fewer lines has no second line above the list and no column names.
const SMALL: u16 = 6;

const REVERSED: Style = Style::new().add_modifier(Modifier::REVERSED);

/// The lines of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BodyLines {
    /// The first of them.
    pub(super) first: u16,
    /// How many.
    pub(super) height: usize,
}

impl BodyLines {
    /// Those of a screen with so many lines. `has_head`: there are column names.
    pub(super) fn of(height: u16, has_head: bool) -> BodyLines {
        let above = match height {
            0..SMALL => 1.min(height),
            _ => 2 + u16::from(has_head),
        };
        BodyLines { first: above, height: usize::from(height.saturating_sub(above + 1)) }
    }
}

/// The lines around a list.
pub(super) struct Surroundings {
    /// The first line.
    pub(super) title: String,
    /// The second line: what the list is of, and what is left out of it.
    pub(super) situation: String,
    /// The names of the columns.
    pub(super) head: String,
    /// What stands in the place of rows where there is none.
    pub(super) nothing: Option<String>,
    /// The last line.
    pub(super) status: String,
}

/// A number of a row, and its colour where the terminal has colours.
pub(super) struct Cell {
    pub(super) text: String,
    pub(super) color: Option<Color>,
}

pub(super) struct Screen<'a> {
    pub(super) buffer: &'a mut Buffer,
    /// The terminal has colours.
    pub(super) color: bool,
}

impl Screen<'_> {
    pub(super) fn width(&self) -> usize {
        usize::from(self.buffer.area.width)
    }

    fn height(&self) -> u16 {
        self.buffer.area.height
    }

    /// Draws what is around a list.
    pub(super) fn surroundings(&mut self, body: BodyLines, around: &Surroundings) {
        let height = self.height();
        self.line(0, &around.title, Style::new().add_modifier(Modifier::BOLD));
        if body.first > 1 {
            self.line(1, &around.situation, Style::new());
        }
        if body.first > 2 {
            self.line(2, &around.head, Style::new().add_modifier(Modifier::UNDERLINED));
        }
        if let Some(words) = &around.nothing {
            for (y, line) in (body.first..height.saturating_sub(1)).zip(wrapped(words, self.width())) {
                self.line(y, &line, Style::new());
            }
        }
        if height > 1 {
            self.line(height - 1, &around.status, REVERSED);
        }
    }

    /// Draws a page of text from one of its lines on.
    pub(super) fn page(&mut self, title: &str, text: &[String], from: usize) {
        let height = self.height();
        self.line(0, title, Style::new().add_modifier(Modifier::BOLD));
        for (y, line) in (1..height.saturating_sub(1)).zip(text.iter().skip(from)) {
            self.line(y, line, Style::new());
        }
        let is_whole = text.len() - from.min(text.len()) <= usize::from(height).saturating_sub(2);
        let hint = if is_whole { "any other key: back to the list" } else { "Down: more  other keys: back" };
        self.line(height.saturating_sub(1), hint, REVERSED);
    }

    /// Draws a row of a list.
    pub(super) fn row<I, N>(&mut self, y: u16, numbers: &[Cell], row: &Row<I, N>, selected: bool) {
        let style = if selected { REVERSED } else { Style::new() };
        self.line(y, &row_text(numbers, row, self.width()), style);
        if selected || !self.color {
            return;
        }
        let mut x = 0;
        for number in numbers {
            let width = (number.text.len() as u16).min(self.buffer.area.width.saturating_sub(x));
            if let Some(color) = number.color {
                self.buffer.set_style(Rect { x, y, width, height: 1 }, Style::new().fg(color));
            }
            x += width;
        }
    }

    /// Writes a line in its full width; a line that is too long ends in `>`.
    fn line(&mut self, y: u16, text: &str, style: Style) {
        let Rect { width, height, .. } = self.buffer.area;
        if y >= height || width == 0 {
            return;
        }
        self.buffer.set_style(Rect { x: 0, y, width, height: 1 }, style);
        let before = self.buffer.set_stringn(0, y, text, self.width(), style).0;
        // What did not fit would have gone on.
        let mut whole = Buffer::empty(Rect { x: 0, y: 0, width: width.saturating_add(1), height: 1 });
        if before >= width.saturating_sub(1)
            && whole.set_stringn(0, 0, text, self.width() + 1, style).0 > width
        {
            self.buffer.set_stringn(width - 1, y, ">", 1, style);
        }
    }
}

/// A row as text. Where there is no room for all of it, its name keeps its beginning and its end.
pub(super) fn row_text<I, N>(numbers: &[Cell], row: &Row<I, N>, width: usize) -> String {
    let numbers: String = numbers.iter().map(|number| &*number.text).collect();
    let mark = match (row.is_open, row.has_below) {
        (true, _) => '-',
        (false, true) => '+',
        (false, false) => ' ',
    };
    let before = format!("{numbers}  {}{mark} ", "  ".repeat(row.indent));
    let module = row.module.as_ref().map_or_else(String::new, |module| format!("  ({})", shown(module)));
    let used = before.chars().count() + module.chars().count();
    let name = shortened(&row.name, width.saturating_sub(used));
    format!("{before}{name}{module}")
}

/// Text in lines of so many characters at most, broken at spaces where there are any.
pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let width = width.max(8);
    let mut lines = vec![String::new()];
    for word in text.split_inclusive(' ') {
        let mut word = word;
        loop {
            // SANITY: there is always a last line.
            let line = lines.last_mut().expect("a line");
            let room = width.saturating_sub(line.chars().count());
            let length = word.chars().count();
            if length <= room {
                line.push_str(word);
                break;
            }
            if length <= width && !line.is_empty() {
                lines.push(String::new());
                continue;
            }
            let at = word.char_indices().nth(room).map_or(word.len(), |(at, _)| at);
            line.push_str(&word[..at]);
            word = &word[at..];
            lines.push(String::new());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a name for which a line has no room keeps its beginning and its end, and leaves the
    /// module its place.
    #[test]
    fn long_names_keep_both_ends() {
        let row = Row {
            depth: 0,
            indent: 0,
            item: (),
            name: "std::map<std::string, std::vector<int>>::refresh_all_entries".to_owned(),
            module: Some("server".to_owned()),
            numbers: (),
            has_below: true,
            is_open: false,
        };
        let numbers = [Cell { text: " 12.00%".to_owned(), color: None }];
        let text = row_text(&numbers, &row, 60);
        assert_eq!(text, " 12.00%  + std::map<std::strin..efresh_all_entries  (server)");
    }
}
