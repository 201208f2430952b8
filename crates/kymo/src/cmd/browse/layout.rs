//! Where things are on the screen, and how they look.
use kymo_profile::query::{self, QueryAnswer, Weight, amount};
use kymo_profile::text::shown;
use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier, Style};

use super::help;
use super::list::Row;
use super::state::{Browser, Mode, NOTHING, Page, Prompt};

/// A screen with fewer lines has no line of zooms and no column names.
const SMALL: u16 = 6;
/// A screen with fewer columns has one column of numbers.
const NARROW: u16 = 40;

/// Shares from these percentages on have a colour, as in perf.
const MANY: f64 = 5.0;
const SOME: f64 = 0.5;

/// The lines of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BodyLines {
    /// The first of them.
    pub(super) first: u16,
    /// How many.
    pub(super) height: usize,
}

/// The lines that the list has.
pub(super) fn body(browser: &Browser) -> BodyLines {
    let height = browser.size.1;
    let above = match height {
        0..SMALL => 1.min(height),
        _ => 2 + u16::from(browser.has_head),
    };
    BodyLines { first: above, height: usize::from(height.saturating_sub(above + 1)) }
}

/// Draws the browser. `color`: the terminal has colours.
pub(super) fn draw(browser: &Browser, buffer: &mut Buffer, color: bool) {
    let mut screen = Screen { buffer, color };
    let lines = body(browser);
    let height = screen.buffer.area.height;
    screen.line(0, &title(browser), Style::new().add_modifier(Modifier::BOLD));
    if let Mode::Page(of, from) = browser.mode {
        let text = page(browser, of);
        for (y, line) in (1..height.saturating_sub(1)).zip(text.iter().skip(from)) {
            screen.line(y, line, Style::new());
        }
        let is_whole = text.len() - from.min(text.len()) <= usize::from(height).saturating_sub(2);
        let hint = if is_whole { "any other key: back to the list" } else { "Down: more  other keys: back" };
        screen.line(height.saturating_sub(1), hint, REVERSED);
        return;
    }
    if lines.first > 1 {
        screen.line(1, &situation(browser), Style::new());
    }
    if lines.first > 2 {
        screen.line(2, &head(browser), Style::new().add_modifier(Modifier::UNDERLINED));
    }
    if browser.place.list.counts().0 == 0 && lines.height > 0 {
        let words = match &browser.place.problem {
            _ if browser.is_waiting() => "asking...",
            Some(problem) => problem,
            None => NOTHING,
        };
        for (y, line) in (lines.first..height.saturating_sub(1)).zip(wrapped(words, screen.width())) {
            screen.line(y, &line, Style::new());
        }
    }
    for (y, (row, selected)) in (lines.first..).zip(browser.place.list.on_screen(lines.height)) {
        screen.row(y, browser, row, selected);
    }
    if height > 1 {
        screen.line(height - 1, &status(browser), REVERSED);
    }
}

const REVERSED: Style = Style::new().add_modifier(Modifier::REVERSED);

struct Screen<'a> {
    buffer: &'a mut Buffer,
    color: bool,
}

impl Screen<'_> {
    fn width(&self) -> usize {
        usize::from(self.buffer.area.width)
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

    fn row(&mut self, y: u16, browser: &Browser, row: &Row, selected: bool) {
        let (numbers, text) = (numbers(browser, row), name(row));
        let style = if selected { REVERSED } else { Style::new() };
        self.line(y, &format!("{}{text}", numbers.concat()), style);
        if selected || !self.color {
            return;
        }
        let mut x = 0;
        for number in numbers {
            let width = (number.len() as u16).min(self.buffer.area.width.saturating_sub(x));
            let share: f64 = number.trim().trim_end_matches('%').parse().unwrap_or(0.0);
            let color = match share {
                share if share >= MANY => Some(Color::Red),
                share if share >= SOME => Some(Color::Green),
                _ => None,
            };
            if let Some(color) = color {
                self.buffer.set_style(Rect { x, y, width, height: 1 }, Style::new().fg(color));
            }
            x += width;
        }
    }
}

/// The columns of numbers: whether total and own are shown. A narrow screen has one.
fn columns(browser: &Browser) -> (bool, bool) {
    let subject = &browser.place.subject;
    let is_narrow = browser.size.0 < NARROW;
    match subject.has_total() && (browser.start.chains || subject.is_tree()) {
        true if is_narrow && !subject.is_tree() && browser.place.by == Weight::Own => (false, true),
        true => (true, subject.has_own() && !is_narrow),
        false => (false, true),
    }
}

fn numbers(browser: &Browser, row: &Row) -> Vec<String> {
    let hundred = browser.hundred();
    let share = |part: Option<u64>| match part {
        Some(part) => format!("{:>8}", format!("{:.2}%", 100.0 * part as f64 / hundred.max(1) as f64)),
        None => " ".repeat(8),
    };
    let (total, own) = columns(browser);
    let own_share = if row.depth > 0 && !browser.place.subject.is_tree() { None } else { row.own };
    let cells = [total.then(|| share(Some(row.total))), own.then(|| share(own_share))];
    cells.into_iter().flatten().collect()
}

fn name(row: &Row) -> String {
    let mark = match (row.is_open, row.has_below) {
        (true, _) => '-',
        (false, true) => '+',
        (false, false) => ' ',
    };
    let module = row.module.as_ref().map_or_else(String::new, |module| format!("  ({})", shown(module)));
    format!("  {}{mark} {}{module}", "  ".repeat(row.indent), row.name)
}

fn title(browser: &Browser) -> String {
    let start = &browser.start;
    let (samples, period) = browser.place.whole;
    let event = browser.event();
    let (name, unit) = event.map_or(("", ""), |event| (&event.name, &event.unit));
    let of = match start.events.len() {
        0 | 1 => String::new(),
        count => format!(" ({} of {count})", browser.place.event + 1),
    };
    let sum = match unit {
        "ns" => amount(unit, period),
        unit => format!("{} {unit}", amount(unit, period)),
    };
    if samples == 0 {
        return format!("{}{of}: no samples  {}", shown(name), shown(&start.recording));
    }
    let samples = if samples == 1 { "1 sample".into() } else { format!("{samples} samples") };
    format!("{}{of}: {sum} in {samples}  {}", shown(name), shown(&start.recording))
}

/// What the list is of, and what is left out of it.
fn situation(browser: &Browser) -> String {
    let (place, start) = (&browser.place, &browser.start);
    let mut parts = vec![place.subject.title()];
    let live = &browser.live;
    if !place.subject.is_tree() && place.subject.has_total() && start.chains {
        let by = if place.by == Weight::Own { "self" } else { "total" };
        parts[0].push_str(&format!(", by {by}"));
    }
    match (live.has_ended, live.is_frozen) {
        (true, _) => parts.push("it has ended".into()),
        (false, true) => parts.push("frozen".into()),
        (false, false) => {}
    }
    for (field, names) in &start.names {
        if !names.is_empty() {
            let field =
                if *field == kymo_profile::query::FilterField::Thread { "threads" } else { "modules" };
            parts.push(format!("{field} {}", shown(&names.join(","))));
        }
    }
    parts.extend(place.zooms.iter().map(|zoom| zoom.words()));
    if !place.conditions.0.is_empty() {
        parts.push(shown(&place.conditions.0).into_owned());
    }
    if !place.part.is_empty() {
        parts.push(format!("names with '{}'", shown(&place.part)));
    }
    if start.least_percent > 0.0 {
        parts.push(format!("from {}% on", start.least_percent));
    }
    if start.relative {
        parts.push("% of what is left".into());
    }
    parts.join(" | ")
}

fn head(browser: &Browser) -> String {
    let (total, own) = columns(browser);
    let cell = |word: &str| format!("{word:>8}");
    let words = [total.then(|| cell("Total")), own.then(|| cell("Self"))];
    format!("{}    {}", words.into_iter().flatten().collect::<String>(), browser.place.subject.head())
}

fn status(browser: &Browser) -> String {
    if let Mode::Prompt(prompt, text, _) = &browser.mode {
        let (word, hint) = match prompt {
            Prompt::Part => ("names with: ", "  (Enter: keep, Esc: all names)"),
            Prompt::Conditions => ("only where: ", "  (such as cpu=0 and time=10%..20%)"),
            Prompt::Limit => ("least percentage: ", ""),
        };
        return format!("{word}{}_{hint}", shown(text));
    }
    if let Some(message) = &browser.message {
        return shown(message).into_owned();
    }
    if browser.is_waiting() {
        return "asking...".into();
    }
    let (count, cursor) = (browser.place.list.counts().0, browser.place.list.cursor());
    let number = if count == 0 { 0 } else { cursor + 1 };
    let freeze = match (browser.start.live && !browser.live.has_ended, browser.live.is_frozen) {
        (false, _) => "",
        (true, false) => "p: freeze  ",
        (true, true) => "p: go on  ",
    };
    let back = if freeze.is_empty() { "Esc: back  " } else { "" };
    format!("{number}/{count}  ?: help  {freeze}Enter: open  c: callers  a: code  /: names  {back}q: end")
}

/// The lines of an answer about code, and which of them has the hottest instruction.
pub(super) fn code(answer: &QueryAnswer) -> (Vec<String>, usize) {
    let mut text = Vec::new();
    // SANITY: a Vec takes everything.
    _ = query::write_text(&mut text, answer);
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<String> =
        text.lines().map(|line| shown(&line.replace('\t', "    ")).into_owned()).collect();
    let percent = |line: &String| line.split_whitespace().next().and_then(|word| word.parse::<f64>().ok());
    let shares = lines.iter().enumerate().filter_map(|(at, line)| Some((at, percent(line)?)));
    let hottest = shares.fold((0, 0.0), |most, share| if share.1 > most.1 { share } else { most });
    (lines, hottest.0)
}

/// The lines of a page.
pub(super) fn page(browser: &Browser, page: Page) -> Vec<String> {
    if page == Page::Help {
        return help::lines(browser.start.live).map(str::to_owned).collect();
    }
    if page == Page::Code {
        return browser.code.clone();
    }
    let width = usize::from(browser.size.0);
    let mut lines = Vec::new();
    if let Some(row) = browser.place.list.selected() {
        lines.extend(wrapped(&row.name, width));
        lines.extend(row.module.as_ref().map(|module| format!("in {}", shown(module))));
        let unit = browser.event().map_or("", |event| &event.unit);
        let part = |period: u64| {
            let share = 100.0 * period as f64 / browser.hundred().max(1) as f64;
            format!("{share:.2}%, {} {}", amount(unit, period), if unit == "ns" { "" } else { unit })
        };
        lines.push(format!("with what it called: {}", part(row.total).trim_end()));
        lines.extend(row.own.map(|own| format!("itself: {}", part(own).trim_end())));
        lines.push(format!("samples: {}", row.samples));
        lines.push(String::new());
    }
    lines.extend(wrapped(&format!("recording: {}", shown(&browser.start.recording)), width));
    for event in &browser.start.events {
        let period = event.period.unwrap_or(0);
        let samples = event.samples.unwrap_or(0);
        let line =
            format!("event: {}, {samples} samples, {}", shown(&event.name), amount(&event.unit, period));
        lines.extend(wrapped(&line, width));
    }
    for note in &browser.start.notes {
        lines.extend(note.lines().flat_map(|line| wrapped(&format!("note: {}", shown(line)), width)));
    }
    lines
}

/// Text in lines of so many characters at most, broken at spaces where there are any.
fn wrapped(text: &str, width: usize) -> Vec<String> {
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

/// The list as text, in its full width.
pub(super) fn printed(browser: &Browser) -> String {
    let mut text = format!("# {}\n# {}\n#{}\n", title(browser), situation(browser), head(browser));
    for row in browser.place.list.all() {
        text.push_str(&format!(" {}{}\n", numbers(browser, row).concat(), name(row)));
    }
    text
}
