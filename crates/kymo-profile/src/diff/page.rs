//! A comparison as a page: both sides as events over one call tree, coloured by what changed, and
//! what was found of each function.
use super::text::{percent_interval, rate_text, title, verdict_sentence};
use super::{Comparison, CostWeight, MeanPaths, Subject};
use crate::export::{
    ComparedFunction, ExportEvent, ExportProfile, Function, FunctionKind, NO_PARENT, Node, StackTree,
    compared_html,
};
use rustc_hash::FxHashMap;
use std::io::{self, Write};

/// Costs that are no time are whole numbers in the page: the whole of the larger side is so many.
const WHOLE: f64 = 1e9;

/// Writes one page that needs nothing but itself: the flame graphs of both sides, their call trees,
/// and the functions with their changes.
///
/// # Errors
/// Those of `out`.
pub fn write_page(out: &mut dyn Write, comparison: &Comparison) -> io::Result<()> {
    let is_time = comparison.unit == "ns" && comparison.weight == CostWeight::Absolute;
    let paths = &comparison.paths;
    let scale = if is_time { 1.0 } else { paths.scale(WHOLE) };
    let unit = if is_time { "ns" } else { "parts" };
    let trees = trees(paths, scale);
    let event = |side: &str, stacks: StackTree| {
        let sum = stacks.nodes.iter().fold(0_u64, |sum, node| sum.saturating_add(node.self_samples));
        ExportEvent {
            name: format!("{}, {side} side", comparison.event),
            unit: unit.to_owned(),
            total_samples: sum,
            total_period: sum,
            stacks,
            ..ExportEvent::default()
        }
    };
    let [old, new] = trees;
    let mut notes = vec![verdict_sentence(comparison)];
    notes.extend(comparison.notes.iter().cloned());
    let profile = ExportProfile {
        title: format!("kymo diff: {}", title(comparison)),
        recorder: format!("kymo {}", env!("CARGO_PKG_VERSION")),
        functions: paths.functions.iter().map(function).collect(),
        events: vec![event("new", new), event("old", old)],
        notes,
        ..ExportProfile::default()
    };
    compared_html(&profile, &compared(comparison), out)
}

fn function(label: &super::FunctionLabel) -> Function {
    let kind = match () {
        () if label.module.starts_with("[kernel") => FunctionKind::Kernel,
        () if label.name.is_empty() => FunctionKind::Unknown,
        () => FunctionKind::User,
    };
    Function { name: label.name.clone(), module: label.module.clone(), kind, ..Function::default() }
}

/// The call trees of the old and of the new side, which have the same nodes.
fn trees(paths: &MeanPaths, scale: f64) -> [StackTree; 2] {
    let mut numbers: FxHashMap<(u32, u32), u32> = FxHashMap::default();
    let mut trees = [StackTree::default(), StackTree::default()];
    for path in &paths.list {
        let mut at = NO_PARENT;
        for function in &path.functions {
            let next = trees[0].nodes.len() as u32;
            let parent = at;
            at = *numbers.entry((parent, *function)).or_insert_with(|| {
                let node = Node { parent, function: *function, self_samples: 0, self_period: 0 };
                trees.iter_mut().for_each(|tree| tree.nodes.push(node));
                next
            });
        }
        for (tree, cost) in trees.iter_mut().zip([path.old, path.new]) {
            if let Some(node) = tree.nodes.get_mut(at as usize) {
                let cost = (cost * scale).round() as u64;
                node.self_samples = node.self_samples.saturating_add(cost);
                node.self_period = node.self_samples;
            }
        }
    }
    trees
}

/// What was found of functions; nothing where the rows are something else.
fn compared(comparison: &Comparison) -> Vec<ComparedFunction> {
    if comparison.subject != Subject::Functions {
        return Vec::new();
    }
    let labels = comparison.paths.functions.iter().zip(0..);
    let numbers: FxHashMap<(&str, &str), u32> =
        labels.map(|(label, number)| ((label.module.as_str(), label.name.as_str()), number)).collect();
    let found = comparison.effects.iter().filter_map(|effect| {
        let function = *numbers.get(&(effect.module.as_str(), effect.name.as_str()))?;
        Some(ComparedFunction {
            function,
            verdict: effect.verdict.words(),
            change: effect.of_itself.map(percent_interval),
            discovery_rate: effect.discovery_rate.map(rate_text),
        })
    });
    found.collect()
}
