//! Where things are on the screen, and how they look.
use kymo_profile::query::{self, QueryAnswer, Weight, amount};
use kymo_profile::text::shown;
use ratatui_core::buffer::Buffer;
use ratatui_core::style::Color;

use super::help;
use super::screen::{BodyLines, Cell, Screen, Surroundings, row_text, wrapped};
use super::state::{Browser, Mode, NOTHING, Page, Prompt};
use super::subject::Row;

/// A screen with fewer columns has one column of numbers.
const NARROW: u16 = 40;

/// Shares from these percentages on have a colour, as in perf.
const MANY: f64 = 5.0;
const SOME: f64 = 0.5;

/// The lines that the list has.
pub(super) fn body(browser: &Browser) -> BodyLines {
    BodyLines::of(browser.size.1, browser.has_head)
}

/// Draws the browser. `color`: the terminal has colours.
pub(super) fn draw(browser: &Browser, buffer: &mut Buffer, color: bool) {
    let mut screen = Screen { buffer, color };
    let lines = body(browser);
    if let Mode::Page(of, from) = browser.mode {
        screen.page(&title(browser), &page(browser, of), from);
        return;
    }
    let nothing = (browser.place.list.counts().0 == 0).then(|| match &browser.place.problem {
        _ if browser.is_waiting() => "asking...".to_owned(),
        Some(problem) => problem.clone(),
        None => NOTHING.to_owned(),
    });
    let around = Surroundings {
        title: title(browser),
        situation: situation(browser),
        head: head(browser),
        nothing,
        status: status(browser),
    };
    screen.surroundings(lines, &around);
    for (y, (row, selected)) in (lines.first..).zip(browser.place.list.on_screen(lines.height)) {
        screen.row(y, &numbers(browser, row), row, selected);
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

fn numbers(browser: &Browser, row: &Row) -> Vec<Cell> {
    let hundred = browser.hundred();
    let share = |part: Option<u64>| {
        let Some(part) = part else { return Cell { text: " ".repeat(8), color: None } };
        let text = format!("{:>8}", format!("{:.2}%", 100.0 * part as f64 / hundred.max(1) as f64));
        let color = match text.trim().trim_end_matches('%').parse().unwrap_or(0.0) {
            share if share >= MANY => Some(Color::Red),
            share if share >= SOME => Some(Color::Green),
            _ => None,
        };
        Cell { text, color }
    };
    let (total, own) = columns(browser);
    let sums = &row.numbers;
    let own_share = if row.depth > 0 && !browser.place.subject.is_tree() { None } else { sums.own };
    let cells = [total.then(|| share(Some(sums.total))), own.then(|| share(own_share))];
    cells.into_iter().flatten().collect()
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
        lines.push(format!("with what it called: {}", part(row.numbers.total).trim_end()));
        lines.extend(row.numbers.own.map(|own| format!("itself: {}", part(own).trim_end())));
        lines.push(format!("samples: {}", row.numbers.samples));
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

/// The list as text, in its full width.
pub(super) fn printed(browser: &Browser) -> String {
    let mut text = format!("# {}\n# {}\n#{}\n", title(browser), situation(browser), head(browser));
    for row in browser.place.list.all() {
        text.push_str(&format!(" {}\n", row_text(&numbers(browser, row), row, usize::MAX)));
    }
    text
}
