//! Where things are on the screen.
use kymo_profile::diff::{EffectVerdict, TreeOrder};
use kymo_profile::text::shown;
use ratatui_core::buffer::Buffer;

use super::super::screen::{BodyLines, Screen, Surroundings};
use super::super::state::NOTHING;
use super::details;
use super::rows::ComparedView;
use super::state::{Browser, ComparisonPage, Mode};

/// The lines that the list has.
pub(super) fn body(browser: &Browser<'_>) -> BodyLines {
    BodyLines::of(browser.size.1, true)
}

/// Draws the browser. `color`: the terminal has colours.
pub(super) fn draw(browser: &Browser<'_>, buffer: &mut Buffer, color: bool) {
    let mut screen = Screen { buffer, color };
    let title = shown(&browser.comparison.title()).into_owned();
    if let Mode::Page(of, from) = browser.mode {
        screen.page(&title, &page(browser, of), from);
        return;
    }
    let (lines, width) = (body(browser), screen.width());
    let (comparison, place, columns) = (browser.comparison, &browser.place, &browser.columns);
    let around = Surroundings {
        title,
        situation: situation(browser),
        head: columns.head(place.view, width, place.view.head(comparison.subject)),
        nothing: (place.list.counts().0 == 0).then(|| NOTHING.to_owned()),
        status: status(browser),
    };
    screen.surroundings(lines, &around);
    for (y, (row, selected)) in (lines.first..).zip(place.list.on_screen(lines.height)) {
        screen.row(y, &columns.cells(comparison, place.view, width, row), row, selected);
    }
}

/// The verdict, what the list is of, and what is left out of it.
fn situation(browser: &Browser<'_>) -> String {
    let (comparison, place) = (browser.comparison, &browser.place);
    let order = match place.order {
        TreeOrder::Change => "by change",
        TreeOrder::New => "by new cost",
    };
    let list = format!("{}, {order}", place.view.title(comparison.subject));
    let mut parts = vec![shown(&comparison.verdict_sentence()).into_owned(), list];
    if place.hides_same && place.view == ComparedView::Effects {
        let hidden = comparison.count(EffectVerdict::NoDifference);
        parts.push(format!("{hidden} hidden"));
    }
    if !place.part.is_empty() {
        parts.push(format!("names with '{}'", shown(&place.part)));
    }
    parts.join(" | ")
}

fn status(browser: &Browser<'_>) -> String {
    if let Mode::Names(text, _) = &browser.mode {
        return format!("names with: {}_  (Enter: keep, Esc: as before)", shown(text));
    }
    if let Some(message) = &browser.message {
        return shown(message).into_owned();
    }
    let (count, cursor) = (browser.place.list.counts().0, browser.place.list.cursor());
    let number = if count == 0 { 0 } else { cursor + 1 };
    format!("{number}/{count}  ?: help  Enter: open  i: in full  s: order  2, 3: trees  /: names  q: end")
}

/// The lines of a page.
pub(super) fn page(browser: &Browser<'_>, page: ComparisonPage) -> Vec<String> {
    match page {
        ComparisonPage::Help => HELP.lines().map(str::to_owned).collect(),
        ComparisonPage::Details => details::lines(browser, usize::from(browser.size.0)),
    }
}

/// The page of keys; a screen of 24 lines has all of them. Keys that the browser of recordings has
/// mean what they mean there.
const HELP: &str = "\
Up Down PgUp PgDn Home End  move; Space is a page down
Enter, +     open a row, or close it
Right, Left  open a row; close it, go to the row above it, or go back
e, E, C      open all below a row; open a whole tree; close all
Esc          go back: to all names, or to the list before
/            only names with what you type; of trees, paths with such functions
1            what was compared; below functions by their own cost their callers
2, 3         the call tree of both sides, from outermost callers; from
             innermost functions
s            sort by the change of the whole, as the table is, or by the cost of
             the new side
n            hide rows without a difference, or show them
i            the row in full: intervals and each run; notes on the comparison
Ctrl-L       draw the screen anew
?, h, F1     this page; q, Ctrl-C: end

old and new are mean costs of a run. Of what was compared, changes have the
interval that holds the truth, and a verdict: red is a regression, green an
improvement. Callers and nodes of trees are not tested by themselves: they have
the colour of their function.";
