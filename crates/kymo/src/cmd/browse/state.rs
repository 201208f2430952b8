//! What the browser shows: where one is, where one was before, and what the keys mean.
use kymo_profile::query::{EventRow, Filter, FilterField, FunctionKey, Weight};

use super::subject::{RowList, Subject, Zoom};

/// What the keys mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// They move in the list.
    List,
    /// They turn over a page of text, from this line on.
    Page(Page, usize),
    /// They write a line; with what it was before.
    Prompt(Prompt, String, String),
}

/// A page of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Page {
    /// The keys.
    Help,
    /// The selected row in full, and what is known of the recording.
    Details,
    /// Instructions and source lines.
    Code,
}

/// What is written in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prompt {
    /// A part of names.
    Part,
    /// Conditions of a query.
    Conditions,
    /// The least percentage of a row.
    Limit,
}

/// Where one is, to come back to it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Place {
    pub(super) subject: Subject,
    /// Which of the events.
    pub(super) event: usize,
    /// What tables are sorted by.
    pub(super) by: Weight,
    pub(super) zooms: Vec<Zoom>,
    /// Conditions as they were typed, and what they mean.
    pub(super) conditions: (String, Filter),
    /// Only rows with this in their names; of trees, only stacks with such a function.
    pub(super) part: String,
    pub(super) list: RowList,
    /// The samples that count, and the sum of their periods.
    pub(super) whole: (u64, u64),
    /// Why there is no row.
    pub(super) problem: Option<String>,
}

/// What a question was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// All rows.
    Rows,
    /// Those below this row of the list.
    Below(usize),
    /// The code of a function.
    Code,
}

/// How the browser begins.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    /// The recording's name.
    pub(crate) recording: String,
    /// Its events with samples.
    pub(crate) events: Vec<EventRow>,
    /// Whether it has call chains.
    pub(crate) chains: bool,
    pub(crate) subject: Subject,
    pub(crate) by: Weight,
    /// Whether percentages are of what filters leave.
    pub(crate) relative: bool,
    pub(crate) least_percent: f64,
    /// Only rows with this in their names.
    pub(crate) part: String,
    /// Only threads and modules of these names.
    pub(crate) names: [(FilterField, Vec<String>); 2],
    /// What should be known of the recording: sentences.
    pub(crate) notes: Vec<String>,
    /// Whether the recording runs, and newer samples come.
    pub(crate) live: bool,
}

/// The browser.
#[derive(Clone, Debug)]
pub(super) struct Browser {
    pub(super) start: Start,
    pub(super) place: Place,
    /// Where one was before, the last one at the end.
    pub(super) before: Vec<Place>,
    pub(super) mode: Mode,
    /// The lines of the code that was asked for last.
    pub(super) code: Vec<String>,
    pub(super) has_head: bool,
    /// A sentence until the next key.
    pub(super) message: Option<String>,
    pub(super) size: (u16, u16),
    /// The question without an answer, by its number.
    pub(super) pending: Option<(u64, Purpose)>,
    pub(super) asked: u64,
    /// So many levels of a tree are asked for.
    pub(super) levels: usize,
    pub(super) live: LiveState,
}

/// What a recording that runs adds.
#[derive(Clone, Debug, Default)]
pub(super) struct LiveState {
    /// The user wants no newer samples.
    pub(super) is_frozen: bool,
    /// None come any more.
    pub(super) has_ended: bool,
    /// What is known of newer samples than those that are shown.
    pub(super) newer: Option<Newer>,
    /// The list has older numbers than could be had.
    pub(super) is_stale: bool,
    /// The questions for newer numbers, while they have no answer: their number, and the rows that
    /// all but the first are about.
    pub(super) refresh: Option<(u64, Vec<FunctionKey>)>,
}

/// What is known of newer samples.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Newer {
    /// What they are of, and of which time.
    pub(crate) recording: String,
    pub(crate) events: Vec<EventRow>,
    pub(crate) notes: Vec<String>,
}

impl Browser {
    /// Whether a question has no answer.
    pub(super) fn is_waiting(&self) -> bool {
        self.pending.is_some()
    }

    /// The event that the list is of.
    pub(super) fn event(&self) -> Option<&EventRow> {
        self.start.events.get(self.place.event)
    }

    /// What percentages are of.
    pub(super) fn hundred(&self) -> u64 {
        let whole = self.event().and_then(|event| event.period);
        whole.filter(|_| !self.start.relative).unwrap_or(self.place.whole.1)
    }
}

/// What stands in the place of rows where nothing has a name with the typed part.
pub(super) const NOTHING: &str = "nothing is left by these conditions";
