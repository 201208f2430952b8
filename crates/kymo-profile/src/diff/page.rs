//! A comparison as a page: both sides as events over one call tree, coloured by what changed, and
//! what was found of each function.
use super::{ComparedTree, Comparison, CostWeight, Interval, TreeOrder, TreeStart, rate_text};
use crate::export::{
    ComparedFunction, ExportEvent, ExportProfile, Function, FunctionKind, NO_PARENT, Node, StackTree,
    compared_html,
};
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
    let trees = trees(comparison, scale);
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
    let mut notes = vec![comparison.verdict_sentence()];
    notes.extend(comparison.notes.iter().cloned());
    let profile = ExportProfile {
        title: format!("kymo diff: {}", comparison.title()),
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
fn trees(comparison: &Comparison, scale: f64) -> [StackTree; 2] {
    let tree = ComparedTree::new(comparison, TreeStart::Outermost, "");
    let mut trees = [StackTree::default(), StackTree::default()];
    // The nodes from the root to the one before.
    let mut above: Vec<u32> = Vec::new();
    for (number, node) in (0..).zip(tree.nodes(None, usize::MAX, TreeOrder::Change, usize::MAX)) {
        above.truncate(node.depth);
        let parent = above.last().copied().unwrap_or(NO_PARENT);
        above.push(number);
        for (tree, cost) in trees.iter_mut().zip([node.own.old, node.own.new]) {
            let cost = (cost * scale).round() as u64;
            let function = node.function;
            tree.nodes.push(Node { parent, function, self_samples: cost, self_period: cost });
        }
    }
    trees
}

/// What was found of functions; nothing where the rows are something else.
fn compared(comparison: &Comparison) -> Vec<ComparedFunction> {
    let found = comparison.function_effects().map(|(function, effect)| {
        let effect = &comparison.effects[effect];
        ComparedFunction {
            function,
            verdict: effect.verdict.words(),
            change: effect.of_itself.map(Interval::percent_text),
            discovery_rate: effect.discovery_rate.map(rate_text),
        }
    });
    found.collect()
}
