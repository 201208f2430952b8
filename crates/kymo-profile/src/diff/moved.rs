//! Cost that moved between a function and its callers, because a build inlines what the other one
//! calls.
//!
//! With debug information inlined functions keep their names, and nothing moves. Without it the
//! function is missing on one side, and its callers have its cost. Neither became slower: what
//! counts is the lowest function that has both below it. So it is where a function was split into
//! several, or several became one: then it is their caller.
use super::stacks::{NO_NODE, SharedStacks};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;

/// A function counts as missing on a side with less than this part of its cost on the other.
const MISSING: f64 = 0.1;
/// So much of what one has less, the others must have more.
const LEAST_GAIN: f64 = 0.5;
/// So much of a function's cost must lie below an ancestor.
const LEAST_COVERED: f64 = 0.95;

/// What functions beside each other gained and lost may differ by this factor.
const MOST_RATIO: f64 = 1.5;
/// So much of a function's cost has its main caller.
const LEAST_OF_CALLER: f64 = 0.8;

/// A function whose cost changed for certain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChangedFunction {
    pub(crate) function: u32,
    pub(crate) old: f64,
    pub(crate) new: f64,
}

/// One move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundMove {
    /// The function that is missing on one side.
    pub(crate) callee: u32,
    /// It is missing on the new side: it was inlined.
    pub(crate) inlined: bool,
    /// The cost moved between functions of one caller, which is the ancestor.
    pub(crate) beside: bool,
    /// The callers, or functions beside it, whose cost changed the other way.
    pub(crate) callers: Vec<u32>,
    /// The lowest function that has all of them below it, or is one of them.
    pub(crate) ancestor: Option<u32>,
}

/// Finds moves among functions that changed. `old` and `new`: mean cost by node.
pub(crate) fn moves(
    stacks: &SharedStacks,
    changed: &[ChangedFunction],
    old: &FxHashMap<u32, f64>,
    new: &FxHashMap<u32, f64>,
) -> Vec<FoundMove> {
    let by_number: FxHashMap<u32, &ChangedFunction> =
        changed.iter().map(|function| (function.function, function)).collect();
    let mut found = Vec::new();
    for callee in changed {
        let inlined = callee.new < MISSING * callee.old;
        if !inlined && callee.old >= MISSING * callee.new {
            continue;
        }
        let before = if inlined { old } else { new };
        let loss = (callee.old - callee.new).abs();
        let gain_of = |function: &ChangedFunction| match inlined {
            true => function.new - function.old,
            false => function.old - function.new,
        };
        let mut callers: Vec<u32> = callers(stacks, callee.function, before).into_iter().collect();
        callers.retain(|caller| by_number.get(caller).is_some_and(|caller| gain_of(caller) > 0.0));
        callers.sort_unstable();
        let gain: f64 =
            callers.iter().filter_map(|caller| by_number.get(caller)).map(|caller| gain_of(caller)).sum();
        if gain < LEAST_GAIN * loss {
            continue;
        }
        let ancestor = match &callers[..] {
            [only] if covers(stacks, *only, callee.function, before) => Some(*only),
            _ => ancestor(stacks, callee.function, &callers, before),
        };
        found.push(FoundMove { callee: callee.function, inlined, beside: false, callers, ancestor });
    }
    let is_moved =
        |function: &u32| found.iter().any(|one| one.callee == *function || one.callers.contains(function));
    let rest: Vec<ChangedFunction> =
        changed.iter().filter(|function| !is_moved(&function.function)).copied().collect();
    let beside = moves_beside(stacks, &rest, old, new);
    found.extend(beside);
    found
}

/// Moves among functions of one caller, of which one side lacks at least one.
fn moves_beside(
    stacks: &SharedStacks,
    changed: &[ChangedFunction],
    old: &FxHashMap<u32, f64>,
    new: &FxHashMap<u32, f64>,
) -> Vec<FoundMove> {
    let mut families: BTreeMap<u32, Vec<ChangedFunction>> = BTreeMap::new();
    for function in changed {
        let side = if function.old > function.new { old } else { new };
        if let Some(caller) = main_caller(stacks, function.function, side) {
            families.entry(caller).or_default().push(*function);
        }
    }
    let mut found = Vec::new();
    for (caller, family) in families {
        let is_one_sided = |function: &&ChangedFunction| {
            function.old.min(function.new) < MISSING * function.old.max(function.new)
        };
        let one_sided: Vec<ChangedFunction> = family.iter().filter(is_one_sided).copied().collect();
        let Some(members) = [&one_sided, &family].into_iter().find(|members| is_even(members)) else {
            continue;
        };
        let size = |function: &ChangedFunction| (function.old - function.new).abs();
        let Some(first) = one_sided.iter().max_by(|a, b| size(a).total_cmp(&size(b))) else { continue };
        let others = members.iter().map(|function| function.function).filter(|of| *of != first.function);
        found.push(FoundMove {
            callee: first.function,
            inlined: first.new < first.old,
            beside: true,
            callers: others.collect(),
            ancestor: Some(caller),
        });
    }
    found
}

/// Whether some gained about as much as the others lost.
fn is_even(members: &[ChangedFunction]) -> bool {
    let sum = |sign: f64| members.iter().map(|of| (sign * (of.new - of.old)).max(0.0)).sum::<f64>();
    let (gain, loss) = (sum(1.0), sum(-1.0));
    gain.min(loss) > 0.0 && gain.max(loss) <= MOST_RATIO * gain.min(loss)
}

/// The function that calls another one nearly always.
fn main_caller(stacks: &SharedStacks, function: u32, costs: &FxHashMap<u32, f64>) -> Option<u32> {
    let mut callers: BTreeMap<u32, f64> = BTreeMap::new();
    let mut all = 0.0;
    for (node, cost) in costs.iter().filter(|(node, _)| stacks.nodes[**node as usize].function == function) {
        all += cost;
        if let Some(parent) = stacks.nodes.get(stacks.nodes[*node as usize].parent as usize) {
            *callers.entry(parent.function).or_default() += cost;
        }
    }
    callers.into_iter().find(|(_, cost)| *cost >= LEAST_OF_CALLER * all).map(|(caller, _)| caller)
}

/// The functions that call a function, on the side that has it.
fn callers(stacks: &SharedStacks, callee: u32, costs: &FxHashMap<u32, f64>) -> FxHashSet<u32> {
    let is_callee = |node: &u32| stacks.nodes[*node as usize].function == callee;
    let parents = costs.keys().filter(|node| is_callee(node)).map(|node| stacks.nodes[*node as usize].parent);
    parents.filter(|parent| *parent != NO_NODE).map(|parent| stacks.nodes[parent as usize].function).collect()
}

/// Whether nearly all of a function's cost lies below another.
fn covers(stacks: &SharedStacks, ancestor: u32, function: u32, costs: &FxHashMap<u32, f64>) -> bool {
    let (mut all, mut below) = (0.0, 0.0);
    for (node, cost) in costs.iter().filter(|(node, _)| stacks.nodes[**node as usize].function == function) {
        all += cost;
        if stacks.path(*node).any(|function| function == ancestor) {
            below += cost;
        }
    }
    all > 0.0 && below >= LEAST_COVERED * all
}

/// The function with the least cost in and below it that has the callee and its callers below it.
fn ancestor(stacks: &SharedStacks, callee: u32, callers: &[u32], costs: &FxHashMap<u32, f64>) -> Option<u32> {
    let mut inclusive: FxHashMap<u32, f64> = FxHashMap::default();
    let mut candidates: FxHashSet<u32> = FxHashSet::default();
    for (node, cost) in costs {
        let path: FxHashSet<u32> = stacks.path(*node).collect();
        path.iter().for_each(|function| *inclusive.entry(*function).or_default() += cost);
        if stacks.nodes[*node as usize].function == callee {
            candidates.extend(path);
        }
    }
    candidates.remove(&callee);
    let members = || callers.iter().copied().chain([callee]);
    candidates.retain(|candidate| members().all(|function| covers(stacks, *candidate, function, costs)));
    let cost = |function: &u32| inclusive.get(function).copied().unwrap_or(0.0);
    candidates.into_iter().min_by(|a, b| cost(a).total_cmp(&cost(b)).then(a.cmp(b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Trees from paths (outermost first) with their cost on both sides.
    fn trees(paths: &[(&str, f64, f64)]) -> (SharedStacks, FxHashMap<u32, f64>, FxHashMap<u32, f64>) {
        let mut stacks = SharedStacks::new();
        let (mut old, mut new) = (FxHashMap::default(), FxHashMap::default());
        for (path, before, after) in paths {
            let mut node = NO_NODE;
            for name in path.split(' ') {
                let function = stacks.function("app", name);
                node = stacks.step(node, function);
            }
            for (side, cost) in [(&mut old, before), (&mut new, after)] {
                if *cost > 0.0 {
                    *side.entry(node).or_default() += cost;
                }
            }
        }
        (stacks, old, new)
    }

    fn found(paths: &[(&str, f64, f64)]) -> Vec<(String, bool, Vec<String>, Option<String>)> {
        let (stacks, old, new) = trees(paths);
        let sum = |costs: &FxHashMap<u32, f64>, function: u32| -> f64 {
            costs
                .iter()
                .filter(|(node, _)| stacks.nodes[**node as usize].function == function)
                .map(|(_, cost)| cost)
                .sum()
        };
        let functions = 0..stacks.functions.len() as u32;
        let changed: Vec<ChangedFunction> = functions
            .map(|function| ChangedFunction { function, old: sum(&old, function), new: sum(&new, function) })
            .filter(|function| function.old != function.new)
            .collect();
        let name = |function: &u32| stacks.functions[*function as usize].name.clone();
        let moves = moves(&stacks, &changed, &old, &new).into_iter();
        moves
            .map(|found| {
                (
                    name(&found.callee),
                    found.inlined,
                    found.callers.iter().map(name).collect(),
                    found.ancestor.as_ref().map(name),
                )
            })
            .collect()
    }

    /// Checks that a callee that the new build inlines into its caller is found, and the other way
    /// round.
    #[test]
    fn a_callee_that_was_inlined_or_outlined() {
        let of = |callee: &str, inlined: bool| {
            vec![(callee.to_owned(), inlined, vec!["run".to_owned()], Some("run".to_owned()))]
        };
        assert_eq!(
            found(&[("main run", 10.0, 30.0), ("main run hash", 20.0, 0.0), ("main", 5.0, 5.0)]),
            of("hash", true)
        );
        assert_eq!(
            found(&[("main run", 30.0, 10.0), ("main run hash", 0.0, 20.0), ("main", 5.0, 5.0)]),
            of("hash", false)
        );
    }

    /// Checks that a callee of two callers is reported at the function that has both below it.
    #[test]
    fn the_ancestor_of_several_callers() {
        let paths = [
            ("main serve", 1.0, 1.0),
            ("main serve read", 5.0, 15.0),
            ("main serve read copy", 10.0, 0.0),
            ("main serve write", 5.0, 15.0),
            ("main serve write copy", 10.0, 0.0),
            ("main other", 50.0, 50.0),
        ];
        let expected =
            ("copy".to_owned(), true, vec!["read".to_owned(), "write".to_owned()], Some("serve".to_owned()));
        assert_eq!(found(&paths), [expected]);
    }

    /// Checks that a function that was split, one that lost a part to a new one, and functions that
    /// became one are found, and reported at their caller; and that what only one of several gained
    /// is not.
    #[test]
    fn functions_that_were_split_or_joined() {
        let of = |callee: &str, gone: bool, others: &[&str]| {
            let others = others.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
            vec![(callee.to_owned(), gone, others, Some("run".to_owned()))]
        };
        let split = [
            ("main run old", 20.0, 0.0),
            ("main run head", 0.0, 9.0),
            ("main run tail", 0.0, 11.0),
            ("main run", 5.0, 5.0),
        ];
        assert_eq!(found(&split), of("old", true, &["head", "tail"]));
        let part = [("main run old", 20.0, 12.0), ("main run tail", 0.0, 8.0)];
        assert_eq!(found(&part), of("tail", false, &["old"]));
        let joined =
            [("main run head", 9.0, 0.0), ("main run tail", 11.0, 0.0), ("main run both", 0.0, 21.0)];
        assert_eq!(found(&joined), of("both", false, &["head", "tail"]));
        assert_eq!(found(&[("main run old", 20.0, 0.0), ("main run head", 0.0, 40.0)]), []);
        assert_eq!(found(&[("main run old", 20.0, 0.0), ("main other head", 0.0, 20.0)]), []);
        assert_eq!(found(&[("main run old", 20.0, 10.0), ("main run head", 10.0, 20.0)]), []);
    }

    /// Checks that a function that is only gone, and one whose caller gained little, did not move.
    #[test]
    fn what_is_gone_did_not_move() {
        assert_eq!(found(&[("main run", 10.0, 10.0), ("main run hash", 20.0, 0.0)]), []);
        assert_eq!(found(&[("main run", 10.0, 15.0), ("main run hash", 20.0, 0.0)]), []);
        assert_eq!(found(&[("main run", 10.0, 20.0), ("main run hash", 20.0, 10.0)]), []);
    }
}
