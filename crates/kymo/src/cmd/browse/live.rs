//! Newer numbers in the list of a recording that runs. The user stays at the same place: the same
//! rows are open, and the same one is selected on the same line.
use kymo_profile::query::{FunctionKey, Query, QueryAnswer, QueryError};

use super::state::{Browser, Newer};
use super::subject::{Row, RowList};
use super::update::Effect;

/// So many rows of a table stay open.
const MOST_OPEN: usize = 32;

/// What stands in the place of rows where nothing was sampled.
const IDLE: &str = "no sample in this time: what is observed waits, or none of it is left by the conditions";

impl Browser {
    /// Takes the user's wish to see newer samples, or not.
    pub(super) fn freeze(&mut self) -> Vec<Effect> {
        if self.live.has_ended {
            self.message = Some("it has ended: what you see are its last samples".to_owned());
            return Vec::new();
        }
        self.live.is_frozen = !self.live.is_frozen;
        vec![Effect::Follow(!self.live.is_frozen)]
    }

    /// Takes note of newer samples. While a question has no answer, the list waits for that.
    pub(super) fn take_newer(&mut self, newer: Newer) -> Vec<Effect> {
        self.live.newer = Some(newer);
        self.live.is_stale = true;
        self.refresh_if_stale()
    }

    /// Asks for newer numbers, if there are any and nothing else is asked.
    pub(super) fn refresh_if_stale(&mut self) -> Vec<Effect> {
        if !self.live.is_stale || self.pending.is_some() {
            return Vec::new();
        }
        self.live.is_stale = false;
        self.asked += 1;
        let is_tree = self.place.subject.is_tree();
        let open = self.place.list.open_rows().filter(|row| row.depth == 0 && !is_tree);
        let roots = open.filter_map(|row| row.item.function().cloned());
        let roots: Vec<FunctionKey> = roots.take(MOST_OPEN).collect();
        let questions = self.questions(&roots);
        self.live.refresh = Some((self.asked, roots));
        vec![Effect::Refresh(self.asked, questions)]
    }

    /// The rows, and below tables what is below those that are open. Of a tree all levels are asked
    /// for if any row is open: what was closed is taken away from the answer.
    fn questions(&self, roots: &[FunctionKey]) -> Vec<Query> {
        let place = &self.place;
        let is_open = place.list.has_open();
        let levels = if is_open { usize::MAX } else { 1 };
        let filter = self.filter();
        let rows = place.subject.verb(place.by, levels, self.start.least_percent);
        let below = |key: &FunctionKey| {
            place.subject.verb_below(std::slice::from_ref(key), usize::MAX, self.start.least_percent)
        };
        let verbs = std::iter::once(rows).chain(roots.iter().filter_map(below));
        verbs.map(|verb| Query { verb, filter: filter.clone() }).collect()
    }

    /// Another question takes the place of those for newer numbers, and is of these samples.
    pub(super) fn overtake_refresh(&mut self) {
        self.live.is_stale |= self.live.refresh.take().is_some();
        self.show_newer();
    }

    fn show_newer(&mut self) {
        if let Some(newer) = self.live.newer.take() {
            self.start.recording = newer.recording;
            self.start.events = newer.events;
            self.start.notes = newer.notes;
        }
    }

    /// Takes the rows, with those below the ones that are open.
    pub(super) fn take_refresh(
        &mut self,
        number: u64,
        answers: Result<Vec<QueryAnswer>, QueryError>,
    ) -> Vec<Effect> {
        let Some((_, roots)) = self.live.refresh.take_if(|(asked, _)| *asked == number) else {
            return Vec::new();
        };
        self.show_newer();
        let (least_percent, chains) = (self.start.least_percent, self.start.chains);
        let place = &mut self.place;
        let mut parts = match answers {
            Ok(answers) => {
                let part =
                    |answer: QueryAnswer| place.subject.rows(answer.body, place.by, least_percent, chains);
                answers.into_iter().map(part).collect::<Vec<_>>().into_iter()
            }
            // A thread or a module that is zoomed into has no samples now; it may have some later.
            Err(error) => {
                let is_unknown = matches!(error, QueryError::Unknown(_));
                place.problem = Some(if is_unknown { IDLE.to_owned() } else { error.to_string() });
                place.list = RowList::default();
                place.whole = (0, 0);
                return self.refresh_if_stale();
            }
        };
        let Some((rows, whole)) = parts.next() else { return Vec::new() };
        let part = if place.subject.is_tree() { "" } else { &place.part };
        let rows = with_below(rows, roots.iter().zip(parts.map(|(rows, _)| rows)));
        place.list = match place.list.counts().1 {
            0 => RowList::new(rows, part),
            _ => RowList::at_place(rows, part, &place.list.place()),
        };
        place.whole = whole;
        place.problem = (whole.0 == 0).then(|| IDLE.to_owned());
        self.refresh_if_stale()
    }
}

/// Puts rows below those of the first level that they belong to.
fn with_below<'a>(rows: Vec<Row>, below: impl Iterator<Item = (&'a FunctionKey, Vec<Row>)>) -> Vec<Row> {
    let mut below: Vec<_> = below.collect();
    let mut all = Vec::with_capacity(rows.len());
    for mut row in rows {
        let key = row.item.function();
        let own = key.and_then(|key| below.iter().position(|(root, _)| *root == key));
        let own = own.map(|at| below.swap_remove(at).1).unwrap_or_default();
        row.is_open |= !own.is_empty();
        all.push(row);
        all.extend(own.into_iter().map(|row| Row { depth: row.depth + 1, ..row }));
    }
    all
}
