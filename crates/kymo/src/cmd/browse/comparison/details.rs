//! One row in full, and what is known of the comparison.
use kymo_profile::diff::{Comparison, Effect, EffectVerdict, rate_text};
use kymo_profile::text::shown;

use super::super::screen::wrapped;
use super::rows::{Item, Row};
use super::state::Browser;

/// The lines, of so many characters at most.
pub(super) fn lines(browser: &Browser<'_>, width: usize) -> Vec<String> {
    let comparison = browser.comparison;
    let mut said = browser.place.list.selected().map_or_else(Vec::new, |row| of_row(comparison, row));
    said.push(shown(&comparison.verdict_sentence()).into_owned());
    for (side, runs) in [("old", &comparison.old), ("new", &comparison.new)] {
        said.push(format!("{side} side: {}", shown(&runs.join(", "))));
    }
    said.extend(comparison.untested_sentence());
    let notes = comparison.moved_sentences().into_iter().chain(browser.notes.iter().cloned());
    said.extend(notes.map(|note| format!("note: {}", shown(&note))));
    said.iter().flat_map(|line| wrapped(line, width)).collect()
}

fn of_row(comparison: &Comparison, row: &Row) -> Vec<String> {
    let mut said = vec![row.name.clone()];
    said.extend(row.module.as_ref().map(|module| format!("in {}", shown(module))));
    match row.item.effect(comparison) {
        Some(effect) => said.extend(of_effect(comparison, effect)),
        None => said.extend(of_node(comparison, row)),
    }
    said.push(String::new());
    let function = row.numbers.function.and_then(|at| comparison.effects.get(at));
    if let Some(effect) = function.filter(|_| matches!(row.item, Item::Node(_))) {
        said.push("the function itself, wherever it was called:".to_owned());
        said.extend(of_effect(comparison, effect));
        said.push(String::new());
    }
    said
}

/// A node of a tree: what is below it counts, too.
fn of_node(comparison: &Comparison, row: &Row) -> Vec<String> {
    let cost = |cost| comparison.cost_text(cost);
    let costs = row.numbers.total;
    let mut said = vec![
        format!("on this path: old {}, new {}", cost(costs.old), cost(costs.new)),
        format!("change of itself: {}", costs.of_itself_text()),
        format!("change of the whole: {}", costs.of_whole_text(comparison.total.old)),
    ];
    let own = row.numbers.own.filter(|own| row.has_below && *own != costs);
    said.extend(own.map(|own| format!("where it ends: old {}, new {}", cost(own.old), cost(own.new))));
    said
}

fn of_effect(comparison: &Comparison, effect: &Effect) -> Vec<String> {
    let cost = |cost| comparison.cost_text(cost);
    let mut said = vec![
        format!("verdict: {}", effect.verdict.words()),
        format!("mean cost: old {}, new {}", cost(effect.old), cost(effect.new)),
        format!("change: {}", comparison.change_text(effect.change)),
        format!("change of itself: {}", effect.of_itself_text()),
        format!("change of the whole: {}", effect.of_total.percent_text()),
    ];
    match effect.discovery_rate {
        Some(rate) => {
            said.push(format!("q-value: {}, p-value: {}", rate_text(rate), rate_text(effect.p_value)))
        }
        None => said.push("not tested as one of the rows".to_owned()),
    }
    if effect.verdict == EffectVerdict::Undecided {
        said.push(match effect.more_runs {
            Some(more) => format!("so many runs more a side would decide it: {more}"),
            None => "more runs of this kind would not decide it, or a side has one run only".to_owned(),
        });
    }
    for (side, runs) in [("old", &effect.old_runs), ("new", &effect.new_runs)] {
        if !runs.is_empty() {
            let runs: Vec<String> = runs.iter().map(|run| cost(*run)).collect();
            said.push(format!("{side} runs: {}", runs.join(", ")));
        }
    }
    said
}
