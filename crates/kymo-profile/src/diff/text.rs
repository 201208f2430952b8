//! A comparison as a table and as Markdown.
use super::{Comparison, CostWeight, Effect, EffectVerdict, Interval, OverallVerdict, Subject};
use crate::query::markdown_cell;
use crate::text::shown;
use crate::wall::time;
use std::io::{self, Write};

/// Writes the comparison as a table of at most so many rows. `all`: also rows without a difference.
///
/// # Errors
/// Those of `out`.
pub fn write_text(out: &mut dyn Write, comparison: &Comparison, rows: usize, all: bool) -> io::Result<()> {
    writeln!(out, "# {}", shown(&title(comparison)))?;
    writeln!(out, "# {}", shown(&verdict_sentence(comparison)))?;
    for moved in &moved_sentences(comparison) {
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
    writeln!(out, "**{}**\n", markdown_cell(&verdict_sentence(comparison)))?;
    writeln!(out, "{}\n", markdown_cell(&title(comparison)))?;
    for moved in &moved_sentences(comparison) {
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
    let cost = |cost: f64| cost_text(comparison, cost);
    let row = |effect: &Effect, name: String| {
        let rate = effect.discovery_rate.map_or(String::new(), rate_text);
        [
            cost(effect.old),
            cost(effect.new),
            effect.of_itself.map_or_else(|| one_sided(effect), percent_interval),
            percent_interval(effect.of_total),
            rate,
            effect.verdict.words().to_owned(),
            name,
        ]
    };
    let mut rows = vec![row(&comparison.total, "the whole".to_owned())];
    for moved in comparison.moved.iter().filter_map(|moved| moved.ancestor.as_ref()) {
        rows.push(row(moved, format!("{} and what it calls", name_text(comparison, moved))));
    }
    let matters = |effect: &&Effect| all || effect.verdict != EffectVerdict::NoDifference;
    let shown: Vec<&Effect> = comparison.effects.iter().filter(matters).collect();
    rows.extend(shown.iter().take(most).map(|effect| row(effect, name_text(comparison, effect))));
    let mut footer = Vec::new();
    if shown.len() > most {
        footer.push(format!("and {} more rows", shown.len() - most));
    }
    let hidden = comparison.effects.len() - shown.len();
    let what = plural(comparison.subject);
    if hidden > 0 {
        footer.push(format!("{what} without a difference, not shown: {hidden} (--all shows them)"));
    }
    if comparison.untested > 0 {
        footer.push(format!("not tested: {} {what} with too little cost", comparison.untested));
    }
    DiffTable { rows, footer }
}

fn name_text(comparison: &Comparison, effect: &Effect) -> String {
    match comparison.subject {
        Subject::Modules => effect.name.clone(),
        _ if effect.name == format!("[{}]", effect.module) || effect.name == effect.module => {
            effect.name.clone()
        }
        _ => format!("{} ({})", effect.name, effect.module),
    }
}

fn one_sided(effect: &Effect) -> String {
    match (effect.old > 0.0, effect.new > 0.0) {
        (false, true) => "appeared",
        (true, false) => "vanished",
        _ => "",
    }
    .to_owned()
}

/// `+4.8% (+4.1 to +5.5)`.
pub(super) fn percent_interval(interval: Interval) -> String {
    let [estimate, low, high] = [interval.estimate, interval.low, interval.high].map(|part| {
        let percent = 100.0 * part;
        // A wide interval does not have decimals.
        if percent.abs() < 99.95 { format!("{percent:+.1}") } else { format!("{percent:+.0}") }
    });
    format!("{estimate}% ({low} to {high})")
}

pub(super) fn rate_text(rate: f64) -> String {
    if rate < 0.001 { "<0.001".to_owned() } else { format!("{rate:.3}") }
}

pub(super) fn cost_text(comparison: &Comparison, cost: f64) -> String {
    match comparison.weight {
        CostWeight::Share => format!("{:.2}%", 100.0 * cost),
        _ if comparison.unit == "ns" && cost >= 1.0 => time(cost as u64),
        _ if comparison.unit == "ns" => format!("{cost:.2} ns"),
        _ if cost >= 1000.0 => format!("{cost:.0}"),
        _ => format!("{cost:.2}"),
    }
}

pub(super) fn title(comparison: &Comparison) -> String {
    let runs = |names: &[String]| match names {
        [only] => only.clone(),
        many => format!("{} runs", many.len()),
    };
    let weight = match comparison.weight {
        CostWeight::Absolute => "cost of a run",
        CostWeight::Share => "share of the run's cost",
        CostWeight::PerWork => "cost per unit of work",
    };
    format!(
        "{}, {weight}: {} (old) and {} (new)",
        comparison.event,
        runs(&comparison.old),
        runs(&comparison.new)
    )
}

fn singular(subject: Subject) -> &'static str {
    plural(subject).trim_end_matches('s')
}

fn plural(subject: Subject) -> &'static str {
    match subject {
        Subject::Functions | Subject::Inclusive => "functions",
        Subject::Paths => "paths",
        Subject::Lines => "lines",
        Subject::Modules => "modules",
    }
}

/// What the comparison says, in one sentence.
pub(super) fn verdict_sentence(comparison: &Comparison) -> String {
    let count = |verdict| comparison.count(verdict);
    let costs = |count| match count {
        1 => format!("1 {} costs", singular(comparison.subject)),
        many => format!("{many} {} cost", plural(comparison.subject)),
    };
    let differing = match (count(EffectVerdict::Regression), count(EffectVerdict::Improvement)) {
        (0, 0) => String::new(),
        (worse, 0) => format!(": {} more", costs(worse)),
        (0, better) => format!(": {} less", costs(better)),
        (worse, better) => format!(": {} more, {better} less", costs(worse)),
    };
    match comparison.verdict {
        OverallVerdict::Regression => format!("Regression{differing}"),
        OverallVerdict::NoRegression => format!("No regression{differing}"),
        OverallVerdict::Undecided => {
            let needed = match comparison.more_runs {
                Some(1) => "; 1 run more a side would decide it".to_owned(),
                Some(more) => format!("; {more} runs more a side would decide it"),
                None if comparison.old.len().min(comparison.new.len()) < 2 => {
                    "; several runs a side are needed".to_owned()
                }
                None => "; a thousand runs more would not decide it".to_owned(),
            };
            format!("Undecided{differing}{needed}")
        }
    }
}

fn moved_sentences(comparison: &Comparison) -> Vec<String> {
    let sentence = |moved: &super::MovedCost| {
        let callers = moved.callers.join(", ");
        let way = match moved.inlined {
            true => format!("{} is inlined into {callers} in the new build", moved.callee),
            false => format!("{} is no longer inlined into {callers} in the new build", moved.callee),
        };
        match &moved.ancestor {
            Some(ancestor) => format!("{way}: what counts is {} and what it calls", ancestor.name),
            None => format!("{way}; they have no function in common"),
        }
    };
    comparison.moved.iter().map(sentence).collect()
}
