//! A comparison as a table and as Markdown.
use super::{Comparison, Effect, EffectVerdict, module_beside_name, rate_text};
use crate::query::markdown_cell;
use crate::text::shown;
use std::io::{self, Write};

/// Writes the comparison as a table of at most so many rows. `all`: also rows without a difference.
///
/// # Errors
/// Those of `out`.
pub fn write_text(out: &mut dyn Write, comparison: &Comparison, rows: usize, all: bool) -> io::Result<()> {
    writeln!(out, "# {}", shown(&comparison.title()))?;
    writeln!(out, "# {}", shown(&comparison.verdict_sentence()))?;
    for moved in &comparison.moved_sentences() {
        writeln!(out, "# {}", shown(moved))?;
    }
    writeln!(out, "#")?;
    let table = table(comparison, rows, all);
    let widths: Vec<usize> = (0..HEAD.len())
        .map(|at| {
            table
                .rows
                .iter()
                .map(|row| row[at].chars().count())
                .chain([HEAD[at].chars().count()])
                .max()
                .unwrap_or(0)
        })
        .collect();
    let head = HEAD.map(str::to_owned);
    for (at, row) in std::iter::once(&head).chain(&table.rows).enumerate() {
        let mut line = String::from(if at == 0 { "#" } else { " " });
        for (at, (cell, width)) in row.iter().zip(&widths).enumerate() {
            match at < NUMBERS {
                true => line.push_str(&format!(" {:>width$} ", shown(cell))),
                false => line.push_str(&format!(" {:<width$} ", shown(cell))),
            }
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    for line in table.footer {
        writeln!(out, "# {}", shown(&line))?;
    }
    Ok(())
}

/// Writes the comparison as Markdown, for a comment on a change.
///
/// # Errors
/// Those of `out`.
pub fn write_markdown(
    out: &mut dyn Write,
    comparison: &Comparison,
    rows: usize,
    all: bool,
) -> io::Result<()> {
    writeln!(out, "**{}**\n", markdown_cell(&comparison.verdict_sentence()))?;
    writeln!(out, "{}\n", markdown_cell(&comparison.title()))?;
    for moved in &comparison.moved_sentences() {
        writeln!(out, "{}\n", markdown_cell(moved))?;
    }
    let table = table(comparison, rows, all);
    let join = |cells: &[String]| {
        cells.iter().map(|text| markdown_cell(&shown(text))).collect::<Vec<_>>().join(" | ")
    };
    writeln!(out, "| {} |", join(&HEAD.map(str::to_owned)))?;
    let rule = (0..HEAD.len()).map(|at| if at < NUMBERS { "---:" } else { "---" });
    writeln!(out, "| {} |", rule.collect::<Vec<_>>().join(" | "))?;
    table.rows.iter().try_for_each(|row| writeln!(out, "| {} |", join(row)))?;
    let notes = comparison.notes.iter().cloned();
    table
        .footer
        .into_iter()
        .chain(notes)
        .try_for_each(|line| writeln!(out, "\n{}", markdown_cell(&shown(&line))))
}

/// The columns, of which so many are numbers.
const HEAD: [&str; 7] = ["old", "new", "of itself", "of the whole", "q", "verdict", "what"];
const NUMBERS: usize = 5;

/// Rows as text, and what is said below them.
struct DiffTable {
    rows: Vec<[String; 7]>,
    footer: Vec<String>,
}

fn table(comparison: &Comparison, most: usize, all: bool) -> DiffTable {
    let cost = |cost: f64| comparison.cost_text(cost);
    let row = |effect: &Effect, name: String| {
        let rate = effect.discovery_rate.map_or(String::new(), rate_text);
        [
            cost(effect.old),
            cost(effect.new),
            effect.of_itself_text(),
            effect.of_total.percent_text(),
            rate,
            effect.verdict.words().to_owned(),
            name,
        ]
    };
    let mut rows = vec![row(&comparison.total, "the whole".to_owned())];
    for moved in comparison.moved.iter().filter_map(|moved| moved.ancestor.as_ref()) {
        rows.push(row(moved, format!("{} and what it calls", name_text(moved))));
    }
    let matters = |effect: &&Effect| all || effect.verdict != EffectVerdict::NoDifference;
    let shown: Vec<&Effect> = comparison.effects.iter().filter(matters).collect();
    rows.extend(shown.iter().take(most).map(|effect| row(effect, name_text(effect))));
    let mut footer = Vec::new();
    if shown.len() > most {
        footer.push(format!("and {} more rows", shown.len() - most));
    }
    let hidden = comparison.effects.len() - shown.len();
    let what = comparison.subject.plural();
    if hidden > 0 {
        footer.push(format!("{what} without a difference, not shown: {hidden} (--all shows them)"));
    }
    footer.extend(comparison.untested_sentence());
    DiffTable { rows, footer }
}

fn name_text(effect: &Effect) -> String {
    match module_beside_name(&effect.name, &effect.module) {
        Some(module) => format!("{} ({module})", effect.name),
        None => effect.name.clone(),
    }
}
