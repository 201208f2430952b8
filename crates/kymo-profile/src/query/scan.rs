//! The rows that a filter leaves, and their sums.
use super::dataset::{BLOCK, Dataset};
use super::filter::{Filter, FilterField, Test, class};
use super::{AnswerHead, QueryError};
use crate::chains::ChainId;
use crate::columns::{RowField, ThreadId};
use rustc_hash::FxHashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// A filter that is ready for the rows of a dataset.
pub(super) struct Scan<'a> {
    pub(super) data: &'a Dataset,
    cancel: &'a AtomicBool,
    /// The event of the rows, if they are of several.
    event: Option<u32>,
    event_row: usize,
    /// Spans of time, ascending, without overlaps; both ends included.
    spans: Vec<(u64, u64)>,
    tests: Vec<Test>,
}

/// A row that the filter leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FilteredRow {
    pub(super) row: usize,
    pub(super) state: u8,
    pub(super) stack: ChainId,
    /// What of its period lies in the range.
    pub(super) period: u64,
    /// The part of the range in which it lies: begin, and one past the end.
    pub(super) range: (u64, u64),
}

/// What the rows of a sum share; 0 where that does not matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Key {
    pub(super) thread: ThreadId,
    pub(super) cpu: u32,
    pub(super) state: u8,
    pub(super) stack: ChainId,
}

/// Sums of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) samples: u64,
    pub(super) period: u64,
}

impl std::ops::AddAssign for Sum {
    fn add_assign(&mut self, other: Sum) {
        self.samples = self.samples.saturating_add(other.samples);
        self.period = self.period.saturating_add(other.period);
    }
}

/// Spans in order, those that touch or overlap put together.
pub(super) fn merged(mut spans: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    spans.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (from, to) in spans {
        match merged.last_mut() {
            Some(last) if from <= last.1.saturating_add(1) => last.1 = last.1.max(to),
            _ => merged.push((from, to)),
        }
    }
    merged
}

/// What both lists have.
fn intersection(one: &[(u64, u64)], other: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let both = one.iter().flat_map(|a| other.iter().map(move |b| (a.0.max(b.0), a.1.min(b.1))));
    merged(both.filter(|(from, to)| from <= to).collect())
}

/// What lies outside of them.
fn complement(spans: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut outside = Vec::new();
    let mut from = Some(0_u64);
    for &(start, end) in spans {
        if let Some(from) = from.filter(|from| *from < start) {
            outside.push((from, start - 1));
        }
        from = end.checked_add(1);
    }
    outside.extend(from.map(|from| (from, u64::MAX)));
    outside
}

impl Filter {
    /// The spans of time that all conditions leave.
    pub(super) fn spans(&self) -> Vec<(u64, u64)> {
        let mut spans = vec![(0, u64::MAX)];
        for condition in self.conditions.iter().filter(|condition| condition.field == FilterField::Time) {
            let own = merged(condition.spans.clone());
            let own = if condition.negated { complement(&own) } else { own };
            spans = intersection(&spans, &own);
        }
        spans
    }
}

impl<'a> Scan<'a> {
    pub(super) fn new(
        data: &'a Dataset,
        filter: &Filter,
        cancel: &'a AtomicBool,
    ) -> Result<Scan<'a>, QueryError> {
        let (event, event_row) = data.event(filter)?;
        let tests = filter.conditions.iter().filter_map(|condition| data.test(condition).transpose());
        let tests = tests.collect::<Result<_, _>>()?;
        Ok(Scan { data, cancel, event, event_row, spans: filter.spans(), tests })
    }

    /// Of rows that are chosen by their numbers: those of an event, by its place in the recording,
    /// in spans of time.
    pub(super) fn of_rows(
        data: &'a Dataset,
        event: u32,
        spans: Vec<(u64, u64)>,
        tests: Vec<Test>,
        cancel: &'a AtomicBool,
    ) -> Scan<'a> {
        let event = (!data.is_of_spans()).then_some(event);
        Scan { data, cancel, event, event_row: event.unwrap_or(0) as usize, spans, tests }
    }

    /// What all answers begin with.
    pub(super) fn head(&self) -> AnswerHead {
        match self.data.events.get(self.event_row) {
            Some(event) => AnswerHead {
                event: event.name.clone(),
                unit: event.unit.clone(),
                is_of_sums: event.is_of_sums,
            },
            None => AnswerHead { event: String::new(), unit: "events".into(), is_of_sums: false },
        }
    }

    /// Ends a query that was cancelled.
    pub(super) fn go_on(&self) -> Result<(), QueryError> {
        match self.cancel.load(Ordering::Relaxed) {
            true => Err(QueryError::Cancelled),
            false => Ok(()),
        }
    }

    /// The first and last moment of the rows that are asked about, or could be.
    pub(super) fn bounds(&self) -> Option<(u64, u64)> {
        let (data, time) = (self.data, self.data.columns.time());
        let first = *time.first()?;
        let first = data.first_begins.iter().copied().min().unwrap_or(first).min(first);
        let (from, to) = (self.spans.first()?.0.max(first), self.spans.last()?.1.min(*time.last()?));
        (from <= to).then_some((from, to))
    }

    /// Calls `each` with all rows that the filter leaves, range by range, by time. A span that lies
    /// in two ranges comes twice, each time with its part.
    pub(super) fn each(&self, mut each: impl FnMut(&FilteredRow)) -> Result<(), QueryError> {
        for &(from, to) in &self.spans {
            let inside = self.data.columns.rows_in(from..=to);
            let after = inside.end;
            self.rows(inside, (from, to), &mut each)?;
            // Spans that end after the range may begin in it.
            for block in after / BLOCK..self.data.first_begins.len() {
                if self.data.first_begins[block] <= to {
                    let rows = (block * BLOCK).max(after)..((block + 1) * BLOCK).min(self.data.columns.len());
                    self.rows(rows, (from, to), &mut each)?;
                }
            }
        }
        Ok(())
    }

    /// The spans of time that are asked about, both ends included.
    pub(super) fn spans(&self) -> &[(u64, u64)] {
        &self.spans
    }

    /// Calls `each` with those of these rows that the filter leaves.
    pub(super) fn rows(
        &self,
        rows: Range<usize>,
        (from, to): (u64, u64),
        each: &mut impl FnMut(&FilteredRow),
    ) -> Result<(), QueryError> {
        let columns = &self.data.columns;
        let of_spans = self.data.is_of_spans();
        for row in rows {
            if row % BLOCK == 0 {
                self.go_on()?;
            }
            let state = columns.get(RowField::State, row) as u8;
            let stack = columns.get(RowField::Stack, row) as ChainId;
            if self.event.is_some_and(|event| columns.get(RowField::Event, row) != u64::from(event))
                || !self.tests.iter().all(|test| self.passes(test, row, state, stack))
            {
                continue;
            }
            let range = (from, to.saturating_add(1));
            let whole = columns.get(RowField::Period, row);
            let period = if of_spans { self.part(row, range) } else { whole };
            // A span that only touches the range is not in it.
            if period > 0 || !of_spans {
                each(&FilteredRow { row, state, stack, period, range });
            }
        }
        self.go_on()
    }

    #[inline]
    fn passes(&self, test: &Test, row: usize, state: u8, stack: ChainId) -> bool {
        match test {
            Test::Table(field, table) => {
                table.get(self.data.columns.get(*field, row) as usize).copied().unwrap_or(false)
            }
            Test::List(field, list, negated) => {
                list.contains(&self.data.columns.get(*field, row)) != *negated
            }
            Test::Stack(tables) => tables[class(state)].get(stack as usize).copied().unwrap_or(false),
        }
    }

    /// What of the period of a span lies from a moment to before another (Q3).
    pub(super) fn part(&self, row: usize, (from, until): (u64, u64)) -> u64 {
        let columns = &self.data.columns;
        let (end, period) = (columns.time()[row], columns.get(RowField::Period, row));
        let length = columns.get(RowField::Span, row);
        if length == 0 {
            return if from <= end && (end < until || until == u64::MAX) { period } else { 0 };
        }
        let begin = end - length;
        let until_moment = |moment: u64| {
            let passed = moment.clamp(begin, end) - begin;
            (u128::from(period) * u128::from(passed) / u128::from(length)) as u64
        };
        until_moment(until).saturating_sub(until_moment(from))
    }

    /// Sums of all rows that the filter leaves, by what `key` makes of each.
    pub(super) fn sums(&self, key: impl Fn(&FilteredRow) -> Key) -> Result<Vec<(Key, Sum)>, QueryError> {
        let mut sums: FxHashMap<Key, Sum> = FxHashMap::default();
        self.each(|found| {
            *sums.entry(key(found)).or_default() += Sum { samples: 1, period: found.period };
        })?;
        let mut sums: Vec<(Key, Sum)> = sums.into_iter().collect();
        sums.sort_unstable_by_key(|(key, _)| *key);
        Ok(sums)
    }

    /// Sums by stack, and for spans by the way in which it is shown.
    pub(super) fn by_stack(&self) -> Result<Vec<(Key, Sum)>, QueryError> {
        self.sums(|found| Key { state: found.state, stack: found.stack, ..Key::default() })
    }

    /// What a column has for a row.
    pub(super) fn get(&self, field: RowField, row: usize) -> u64 {
        self.data.columns.get(field, row)
    }
}
