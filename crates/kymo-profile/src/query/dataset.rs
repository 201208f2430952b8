//! A recording that can be asked: its rows as columns, and names for what is in them.
use super::function_key::{FunctionKey, KeyOf};
use super::{FilterField, Query, QueryError, Verb};
use crate::chains::ChainId;
use crate::columns::{Columns, RowField};
use crate::export::{Function, function_of, unit_of};
use crate::functions::FunctionId;
use crate::load::{LoadOptions, Progress};
use crate::profile::Profile;
use crate::query::{GroupBy, LaneKey};
use crate::resolve::ResolveOptions;
use crate::timeline::{CommId, Timeline};
use crate::wall::{SpanState, WaitDetail, Wall, wait_detail};
use kymo_data::{ImportedUnit, Problem, ReadError, Recording};
use kymo_symbols::SymbolStore;
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::borrow::Cow;
use std::sync::Arc;

pub use crate::wall::WALL_TIME;

/// Rows after a range are looked at in blocks of so many, by one number each.
pub(super) const BLOCK: usize = 1 << 10;

/// Why a recording cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It cannot be read at all.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// It does not tell what the query asks.
    #[error(transparent)]
    Query(#[from] QueryError),
}

/// An event that can be asked about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EventRow {
    /// Its name.
    pub name: String,
    /// What its periods count, as in the JSON report.
    pub unit: String,
    /// Samples, or spans; none where they were not read.
    pub samples: Option<u64>,
    /// The sum of their periods.
    pub period: Option<u64>,
    /// Its rows are sums of samples, and how many those were is not known: of imported profiles.
    #[serde(skip)]
    pub is_of_sums: bool,
}

/// What rows are made of.
#[derive(Debug)]
pub(super) enum Source {
    Samples(Box<Profile>),
    Spans(Box<Wall>),
}

/// A recording that can be asked.
#[derive(Debug)]
pub struct Dataset {
    pub(super) source: Source,
    pub(super) columns: Columns,
    /// Functions as tables show them, each once.
    pub(super) names: Vec<Arc<Function>>,
    /// Where each is in `names`.
    numbers: FxHashMap<Arc<Function>, u32>,
    /// The name of each function, an index into `names`.
    name_of: Vec<u32>,
    pub(super) events: Vec<EventRow>,
    /// The first moment that a span of each block of rows covers.
    pub(super) first_begins: Vec<u64>,
}

/// What of a recording a query needs. Queries that need the same can ask one [`Dataset`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DatasetKind {
    /// Samples with their call chains.
    Stacks,
    /// Spans of wall time.
    Spans,
}

/// Reads what a query needs of a recording.
///
/// # Errors
/// When the file cannot be read at all, or does not tell what is asked.
pub fn open(
    recording: &Recording,
    query: &Query,
    (resolve, store): (ResolveOptions, &SymbolStore),
    workers: usize,
    progress: Progress<'_>,
) -> Result<Dataset, OpenError> {
    let load = LoadOptions { callchains: true, columns: true, workers, ..LoadOptions::default() };
    if query.dataset_kind() == DatasetKind::Spans {
        let wall = Wall::open(recording, (&load, None), resolve, store, progress)?;
        let wall = wall.ok_or_else(|| {
            let what = "the recording does not tell where threads waited: record with `kymo record --wall`";
            QueryError::NotRecorded(what.into())
        })?;
        return Ok(Dataset::of_wall(wall));
    }
    let profile = Profile::open(recording, &load, resolve, store, progress)?;
    let mut data = Dataset::of_profile(recording, profile);
    if wait_detail(recording) != WaitDetail::Nothing {
        let (name, unit) = (WALL_TIME.into(), "ns".into());
        data.events.push(EventRow { name, unit, samples: None, period: None, is_of_sums: false });
    }
    Ok(data)
}

impl Query {
    /// What it needs of a recording.
    pub fn dataset_kind(&self) -> DatasetKind {
        match self.needs_spans() {
            true => DatasetKind::Spans,
            false => DatasetKind::Stacks,
        }
    }

    /// Whether it is about spans of wall time.
    pub(crate) fn needs_spans(&self) -> bool {
        let of_states = match &self.verb {
            Verb::Waits { .. } => true,
            Verb::Top { group, .. } => *group == GroupBy::States,
            Verb::Timeline { lanes, .. } => *lanes == LaneKey::State,
            _ => false,
        };
        of_states
            || self.filter.conditions.iter().any(|condition| match condition.field {
                FilterField::State => true,
                FilterField::Event => condition.values.iter().any(|value| value.text == WALL_TIME),
                _ => false,
            })
    }
}

impl Dataset {
    /// The samples of a profile that was loaded with its
    /// [`columns`](crate::load::LoadOptions::columns).
    pub fn of_profile(recording: &Recording, mut profile: Profile) -> Dataset {
        let columns = profile.loaded.columns.take().unwrap_or_default();
        let totals = &profile.loaded.totals;
        let imported = recording.features.imported.as_ref().map_or(&[][..], |facts| &facts.events);
        let is_of_sums =
            |at: usize| imported.get(at).is_some_and(|facts: &ImportedUnit| facts.samples_type.is_none());
        let events =
            recording.events.list.iter().zip(totals).enumerate().map(|(at, (event, total))| EventRow {
                name: event.name.clone(),
                unit: Some(unit_of(event)).filter(|unit| !unit.is_empty()).unwrap_or("events").to_owned(),
                samples: Some(total.samples),
                period: Some(total.period),
                is_of_sums: is_of_sums(at),
            });
        let events = events.collect();
        Dataset::new(Source::Samples(Box::new(profile)), columns, events)
    }

    /// The spans of wall time.
    pub fn of_wall(wall: Wall) -> Dataset {
        let columns = wall.columns();
        let periods = (0..columns.len()).map(|row| columns.get(RowField::Period, row));
        let event = EventRow {
            name: WALL_TIME.into(),
            unit: "ns".into(),
            samples: Some(columns.len() as u64),
            period: Some(periods.fold(0, u64::saturating_add)),
            is_of_sums: false,
        };
        Dataset::new(Source::Spans(Box::new(wall)), columns, vec![event])
    }

    pub(super) fn new(source: Source, columns: Columns, events: Vec<EventRow>) -> Dataset {
        let (functions, modules) = match &source {
            Source::Samples(profile) => (&profile.functions, &profile.loaded.timeline.modules),
            Source::Spans(wall) => (&wall.functions, &wall.timeline.modules),
        };
        let mut numbers = FxHashMap::default();
        let (mut names, mut name_of) = (Vec::new(), Vec::with_capacity(functions.len()));
        for (id, _) in functions.iter() {
            let next = names.len() as u32;
            let function = Arc::new(function_of(functions, modules, id));
            let name = *numbers.entry(function).or_insert_with_key(|function| {
                names.push(Arc::clone(function));
                next
            });
            name_of.push(name);
        }
        let mut first_begins = Vec::new();
        if let Source::Spans(_) = source {
            let begin = |row: usize| columns.time()[row] - columns.get(RowField::Span, row);
            let blocks = (0..columns.len()).step_by(BLOCK);
            let first = blocks.map(|at| (at..columns.len().min(at + BLOCK)).map(begin).min().unwrap_or(0));
            first_begins = first.collect();
        }
        Dataset { source, columns, names, numbers, name_of, events, first_begins }
    }

    /// Where a function is in `names`, if it is there.
    pub(super) fn number_of(&self, key: &FunctionKey) -> Option<u32> {
        match &key.0 {
            KeyOf::Function(function) => self.numbers.get(function).copied(),
            KeyOf::Number(number) => Some(*number),
        }
    }

    /// The rows.
    pub fn columns(&self) -> &Columns {
        &self.columns
    }

    /// The profile of samples; `None` of spans.
    pub(crate) fn profile(&self) -> Option<&Profile> {
        match &self.source {
            Source::Samples(profile) => Some(profile),
            Source::Spans(_) => None,
        }
    }

    /// What is wrong with the file.
    pub fn problems(&self) -> &[Problem] {
        match &self.source {
            Source::Samples(profile) => &profile.loaded.summary.problems,
            Source::Spans(wall) => &wall.summary.problems,
        }
    }

    /// What the user should know about symbols, and of what waits cannot tell: sentences.
    pub fn notes(&self) -> &[String] {
        match &self.source {
            Source::Samples(profile) => &profile.notes,
            Source::Spans(wall) => wall.notes(),
        }
    }

    /// The events that have samples, or may have spans.
    pub fn events(&self) -> Vec<EventRow> {
        let with_rows = |event: &&EventRow| event.samples != Some(0);
        self.all_events().iter().filter(with_rows).cloned().collect()
    }

    /// All events, also those without samples, in the recording's order.
    pub fn all_events(&self) -> &[EventRow] {
        &self.events
    }

    /// Whether it has the time of threads, not samples of those that ran.
    pub fn is_of_spans(&self) -> bool {
        matches!(self.source, Source::Spans(_))
    }

    pub(super) fn timeline(&self) -> &Timeline {
        match &self.source {
            Source::Samples(profile) => &profile.loaded.timeline,
            Source::Spans(wall) => &wall.timeline,
        }
    }

    pub(super) fn comm(&self, comm: CommId) -> Cow<'_, str> {
        self.timeline().comm(comm)
    }

    /// How many stacks there are.
    pub(super) fn stack_count(&self) -> usize {
        match &self.source {
            Source::Samples(profile) => profile.stacks.len(),
            Source::Spans(wall) => wall.stacks.len(),
        }
    }

    /// The names on a stack as tables show it, innermost first. `state`: of a span.
    pub(super) fn path(&self, stack: ChainId, state: u8, path: &mut Vec<u32>) {
        let name = |id: &FunctionId| self.name_of[id.0 as usize];
        path.clear();
        match (&self.source, SpanState::of_number(state)) {
            (Source::Spans(wall), Some(state)) => {
                path.extend(wall.shown_frames(stack, state).iter().map(name));
            }
            (Source::Spans(_), None) => {}
            (Source::Samples(profile), _) => match profile.stacks.frames(stack) {
                [] => path.push(name(&profile.stacks.leaf(stack))),
                frames => path.extend(frames.iter().map(name)),
            },
        }
    }
}
