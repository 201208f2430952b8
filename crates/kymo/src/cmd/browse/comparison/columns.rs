//! The columns of numbers, and which of them a screen has room for.
use std::iter;

use kymo_profile::diff::{Comparison, EffectVerdict};
use ratatui_core::style::Color;

use super::super::screen::Cell;
use super::rows::{ComparedView, Item, Row};

/// A column of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    /// The mean cost of the old side.
    Old,
    /// That of the new side.
    New,
    /// The change of itself, with its interval.
    OfItself,
    /// The change of itself.
    OfItselfAlone,
    /// The change as a part of the old side's whole cost, with its interval.
    OfWhole,
    /// The same without the interval.
    OfWholeAlone,
    /// What is to be said, in words.
    Verdict,
}

/// RowColumns of what was compared, and of trees: the first that leave room for names.
const OF_EFFECTS: &[&[Column]] = &[
    &[Column::Old, Column::New, Column::OfItself, Column::OfWhole, Column::Verdict],
    &[Column::Old, Column::New, Column::OfItself, Column::Verdict],
    &[Column::Old, Column::New, Column::OfItselfAlone, Column::Verdict],
    &[Column::OfItselfAlone, Column::Verdict],
    &[Column::OfItselfAlone],
];
const OF_NODES: &[&[Column]] = &[
    &[Column::Old, Column::New, Column::OfItselfAlone, Column::OfWholeAlone],
    &[Column::Old, Column::New, Column::OfItselfAlone],
    &[Column::New, Column::OfItselfAlone],
    &[Column::OfItselfAlone],
];

/// Names have so many characters if they need them.
const NAME: usize = 32;
/// Around a name: two spaces, a mark, a space; two spaces and brackets around the module.
const AROUND_NAME: usize = 4 + 4;

/// How wide the columns of a comparison are.
#[derive(Clone, Debug)]
pub(super) struct RowColumns {
    cost: usize,
    /// Of an estimate and its interval.
    of_itself: [usize; 2],
    of_whole: [usize; 2],
    verdict: usize,
    name: usize,
}

impl RowColumns {
    pub(super) fn of(comparison: &Comparison) -> RowColumns {
        let ancestors = comparison.moved.iter().filter_map(|moved| moved.ancestor.as_ref());
        let effects = || iter::once(&comparison.total).chain(ancestors.clone()).chain(&comparison.effects);
        let widest = |lengths: &mut dyn Iterator<Item = usize>| lengths.max().unwrap_or(0);
        let costs = effects().flat_map(|effect| [effect.old, effect.new]);
        // Times of parts can be longer than those of the whole: 999.99 ms.
        let time = if comparison.unit == "ns" { 9 } else { 0 };
        let changes = |texts: Vec<String>| {
            let parts: Vec<(&str, &str)> = texts.iter().map(|text| split(text)).collect();
            [
                widest(&mut parts.iter().filter(|part| !part.1.is_empty()).map(|part| part.0.len())),
                widest(&mut parts.iter().map(|part| part.1.len())),
            ]
        };
        RowColumns {
            cost: widest(&mut costs.map(|cost| comparison.cost_text(cost).len()).chain([time])),
            of_itself: changes(effects().map(|effect| effect.of_itself_text()).collect()),
            of_whole: changes(effects().map(|effect| effect.of_total.percent_text()).collect()),
            verdict: widest(&mut effects().map(|effect| effect.verdict.words().len())),
            name: widest(
                &mut effects().map(|effect| effect.name.chars().count() + effect.module.chars().count()),
            ),
        }
    }

    fn width(&self, column: Column) -> usize {
        let change = |[estimate, interval]: [usize; 2]| estimate + 1 + interval;
        let cells = match column {
            Column::Old | Column::New => self.cost,
            Column::OfItself => change(self.of_itself),
            Column::OfWhole => change(self.of_whole),
            Column::OfItselfAlone => 9,
            Column::OfWholeAlone => 12,
            Column::Verdict => self.verdict,
        };
        // Nothing is narrower than its name, and a space stands before it.
        cells.max(column.word().len()) + 1
    }

    fn chosen(&self, view: ComparedView, screen: usize) -> &'static [Column] {
        let sets = if view == ComparedView::Effects { OF_EFFECTS } else { OF_NODES };
        let name = if view == ComparedView::Effects { self.name + AROUND_NAME } else { NAME };
        let room = name.min(NAME).min(screen * 2 / 5);
        let fits = |columns: &&&[Column]| {
            columns.iter().map(|column| self.width(*column)).sum::<usize>() + room <= screen
        };
        let last = sets.last().copied().unwrap_or_default();
        sets.iter().find(fits).copied().unwrap_or(last)
    }

    /// The line of column names.
    pub(super) fn head(&self, view: ComparedView, screen: usize, names: &str) -> String {
        let cell = |column: &Column| {
            let (word, width) = (column.word(), self.width(*column));
            match column {
                Column::Verdict | Column::OfItself | Column::OfWhole => {
                    format!(" {word:<width$}", width = width - 1)
                }
                _ => format!("{word:>width$}"),
            }
        };
        let cells: String = self.chosen(view, screen).iter().map(cell).collect();
        format!("{cells}    {names}")
    }

    /// The cells of a row.
    pub(super) fn cells(
        &self,
        comparison: &Comparison,
        view: ComparedView,
        screen: usize,
        row: &Row,
    ) -> Vec<Cell> {
        let color = color(comparison, row);
        let cell = |column: &Column| {
            let text = self.text(comparison, *column, row);
            let width = self.width(*column);
            let is_cost = matches!(column, Column::Old | Column::New);
            Cell { text: format!("{text:>width$}"), color: color.filter(|_| !is_cost) }
        };
        self.chosen(view, screen).iter().map(cell).collect()
    }

    fn text(&self, comparison: &Comparison, column: Column, row: &Row) -> String {
        let costs = row.numbers.total;
        let effect = row.item.effect(comparison);
        let width = self.width(column) - 1;
        let change = |text: String, [estimate, interval]: [usize; 2]| match split(&text) {
            (alone, "") if alone.len() > estimate => format!("{alone:<width$}"),
            (alone, of) => format!("{:<width$}", format!("{alone:>estimate$} {of:<interval$}")),
        };
        let of_whole = || costs.of_whole_text(comparison.total.old);
        match column {
            Column::Old => comparison.cost_text(costs.old),
            Column::New => comparison.cost_text(costs.new),
            Column::OfItself => {
                let text = effect.map_or_else(|| costs.of_itself_text(), |effect| effect.of_itself_text());
                change(text, self.of_itself)
            }
            Column::OfWhole => {
                let text = effect.map_or_else(of_whole, |effect| effect.of_total.percent_text());
                change(text, self.of_whole)
            }
            Column::OfItselfAlone => costs.of_itself_text(),
            Column::OfWholeAlone => of_whole(),
            Column::Verdict => {
                let words = effect.map_or("", |effect| effect.verdict.words());
                format!("{words:<width$}")
            }
        }
    }
}

impl Column {
    fn word(self) -> &'static str {
        match self {
            Column::Old => "old",
            Column::New => "new",
            Column::OfItself | Column::OfItselfAlone => "of itself",
            Column::OfWhole | Column::OfWholeAlone => "of the whole",
            Column::Verdict => "verdict",
        }
    }
}

/// An estimate and its interval, which may be empty.
fn split(text: &str) -> (&str, &str) {
    text.split_once(' ').unwrap_or((text, ""))
}

/// Red for a regression and green for an improvement. A node has the colour of its function where
/// it changed the same way.
fn color(comparison: &Comparison, row: &Row) -> Option<Color> {
    let is_node = matches!(row.item, Item::Node(_));
    let of_function = || comparison.effects.get(row.numbers.function?);
    let effect = if is_node { of_function()? } else { row.item.effect(comparison)? };
    let change = row.numbers.total.change();
    match effect.verdict {
        EffectVerdict::Regression if change > 0.0 => Some(Color::Red),
        EffectVerdict::Improvement if change < 0.0 => Some(Color::Green),
        _ => None,
    }
}
