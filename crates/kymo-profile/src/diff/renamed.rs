//! Functions that one build calls otherwise than the other: those that one side lacks are compared
//! by their callers, their cost and their names.
use super::RenamedFunction;
use super::stacks::{FunctionLabel, NO_NODE, SharedStacks};
use crate::name_key;
use rustc_hash::FxHashMap;

/// What has a smaller part of the cost may be missing on a side by chance.
pub(crate) const LEAST_SHARE: f64 = 0.005;
/// So much of the cost must have the same callers.
const LEAST_COMMON: f64 = 0.5;
/// A function whose cost is this many times that of another one is not it. Without call chains the
/// cost alone must do, and be closer.
const MOST_RATIO: f64 = 1.5;
const MOST_RATIO_ALONE: f64 = 1.25;
/// A second candidate that is nearly as good leaves it open which of both it is.
const AMBIGUOUS: f64 = 0.8;

/// What is known of a function on one side: parts of the side's whole cost.
#[derive(Debug, Default)]
struct Standing {
    own: f64,
    with_callees: f64,
    /// By caller; roots have [`NO_NODE`].
    callers: FxHashMap<u32, f64>,
}

/// The labels of functions after what one side calls otherwise, and these functions. `old` and
/// `new`: the cost of each node.
pub(crate) fn by_callers(
    stacks: &SharedStacks,
    old: &[f64],
    new: &[f64],
) -> (Vec<FunctionLabel>, Vec<RenamedFunction>) {
    let mut labels = stacks.functions.clone();
    let sides = [standings(stacks, old), standings(stacks, new)];
    let lacking = |side: usize| -> Vec<u32> {
        let large = sides[side].iter().filter(|(_, standing)| standing.with_callees >= LEAST_SHARE);
        let mut lacking: Vec<u32> =
            large.map(|(function, _)| *function).filter(|at| !sides[1 - side].contains_key(at)).collect();
        lacking.sort_unstable();
        lacking
    };
    let (gone, added) = (lacking(0), lacking(1));
    let score = |gone: u32, added: u32| {
        likeness(&labels[gone as usize], &sides[0][&gone], &labels[added as usize], &sides[1][&added])
    };
    let mut scores: Vec<(f64, u32, u32)> = Vec::new();
    for gone in &gone {
        scores.extend(added.iter().map(|added| (score(*gone, *added), *gone, *added)));
    }
    scores.retain(|(score, ..)| *score > 0.0);
    scores.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    let mut renames = Vec::new();
    let mut taken: Vec<(u32, u32)> = Vec::new();
    for (score, gone, added) in &scores {
        let rivals = scores.iter().filter(|(_, a, b)| (a == gone) != (b == added));
        let is_free = |a: &u32, b: &u32| !taken.iter().any(|(taken, other)| taken == a || other == b);
        let mut open = rivals.filter(|(_, a, b)| is_free(a, b));
        if is_free(gone, added) && !open.any(|(rival, ..)| *rival > AMBIGUOUS * score) {
            taken.push((*gone, *added));
        }
    }
    for (gone, added) in taken {
        let label = labels[added as usize].clone();
        renames.push(RenamedFunction { old: labels[gone as usize].name.clone(), new: label.name.clone() });
        labels[gone as usize] = label;
    }
    (labels, renames)
}

/// What is known of the functions that have a cost.
fn standings(stacks: &SharedStacks, costs: &[f64]) -> FxHashMap<u32, Standing> {
    let whole = costs.iter().sum::<f64>().max(f64::MIN_POSITIVE);
    let inclusive = stacks.inclusive(costs);
    let mut standings: FxHashMap<u32, Standing> = FxHashMap::default();
    for (at, node) in stacks.nodes.iter().enumerate().filter(|(at, _)| inclusive[*at] > 0.0) {
        let standing = standings.entry(node.function).or_default();
        let caller = stacks.nodes.get(node.parent as usize).map_or(NO_NODE, |parent| parent.function);
        standing.own += costs[at] / whole;
        standing.with_callees += inclusive[at] / whole;
        *standing.callers.entry(caller).or_default() += inclusive[at] / whole;
    }
    standings
}

/// How much speaks for two functions being one; 0 if something speaks against it.
fn likeness(old: &FunctionLabel, of_old: &Standing, new: &FunctionLabel, of_new: &Standing) -> f64 {
    if old.module != new.module || is_unnamed(old) || is_unnamed(new) {
        return 0.0;
    }
    let part = |standing: &Standing, caller: &u32| {
        standing.callers.get(caller).map_or(0.0, |cost| cost / standing.with_callees)
    };
    let common: f64 =
        of_old.callers.keys().map(|caller| part(of_old, caller).min(part(of_new, caller))).sum();
    let is_alone = |standing: &Standing| standing.callers.keys().all(|caller| *caller == NO_NODE);
    let most = if is_alone(of_old) && is_alone(of_new) { MOST_RATIO_ALONE } else { MOST_RATIO };
    let size = closeness(of_old.with_callees, of_new.with_callees)
        .min(closeness(of_old.own.max(LEAST_SHARE), of_new.own.max(LEAST_SHARE)));
    if common < LEAST_COMMON || size < 1.0 / most {
        return 0.0;
    }
    common * size * (0.5 + 0.5 * alike_names(&old.name, &new.name))
}

/// Code without symbols has no name that could change.
fn is_unnamed(label: &FunctionLabel) -> bool {
    label.name.is_empty() || label.name.starts_with('[')
}

/// The smaller divided by the larger.
fn closeness(one: f64, other: f64) -> f64 {
    one.min(other) / one.max(other).max(f64::MIN_POSITIVE)
}

/// How much of the longer name is the beginning and the end of both; 1 for one name in two
/// namespaces.
fn alike_names(one: &str, other: &str) -> f64 {
    let (last, of_other) = (name_key::last_part(one), name_key::last_part(other));
    if !last.is_empty() && last == of_other {
        return 1.0;
    }
    let longest = one.chars().count().max(other.chars().count()).max(1);
    let start = one.chars().zip(other.chars()).take_while(|(a, b)| a == b).count();
    let end = one.chars().rev().zip(other.chars().rev()).take_while(|(a, b)| a == b).count();
    ((start + end) as f64 / longest as f64).min(1.0)
}
