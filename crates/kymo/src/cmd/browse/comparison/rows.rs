//! Rows of a comparison: of what was compared, and of nodes of its trees.
use std::collections::HashSet;

use kymo_profile::diff::{
    ComparedNode, ComparedTree, Comparison, CostPair, Effect, EffectVerdict, NodeRange, Subject, TreeOrder,
    module_beside_name,
};
use kymo_profile::text::shown;

use super::super::list;

/// What a row is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Item {
    /// The whole cost.
    Whole,
    /// The function whose callees some cost moved between, by its place in [`Comparison::moved`].
    Moved(usize),
    /// What was compared, by its place in [`Comparison::effects`].
    Effect(usize),
    /// A node of a tree.
    Node(NodeRange),
}

/// The costs of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RowCosts {
    /// What the row is about; of a node with all that is below it.
    pub(super) total: CostPair,
    /// Of a node: what it has itself.
    pub(super) own: Option<CostPair>,
    /// The effect of a node's function, by its place in [`Comparison::effects`].
    pub(super) function: Option<usize>,
}

pub(super) type Row = list::Row<Item, RowCosts>;
pub(super) type ComparedList = list::List<Item, RowCosts>;

/// What a list is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ComparedView {
    /// What was compared; below functions their callers.
    Effects,
    /// The call tree, from the outermost callers.
    Calls,
    /// The call tree, from the innermost functions.
    Inverted,
}

impl ComparedView {
    /// Its name as a title.
    pub(super) fn title(self, subject: Subject) -> &'static str {
        match (self, subject) {
            (ComparedView::Calls, _) => "Call tree",
            (ComparedView::Inverted, _) => "Inverted call tree",
            (ComparedView::Effects, Subject::Functions) => "Functions",
            (ComparedView::Effects, Subject::Inclusive) => "Functions with what they called",
            (ComparedView::Effects, Subject::Paths) => "Call paths",
            (ComparedView::Effects, Subject::Lines) => "Source lines",
            (ComparedView::Effects, Subject::Modules) => "Modules",
        }
    }

    /// What stands above the names.
    pub(super) fn head(self, subject: Subject) -> &'static str {
        match (self, subject) {
            (ComparedView::Calls, _) => "Function, below it what it called",
            (ComparedView::Inverted, _) | (ComparedView::Effects, Subject::Functions) => {
                "Function, below it its callers"
            }
            (ComparedView::Effects, Subject::Inclusive) => "Function",
            (ComparedView::Effects, Subject::Paths) => "Path",
            (ComparedView::Effects, Subject::Lines) => "Line",
            (ComparedView::Effects, Subject::Modules) => "Module",
        }
    }
}

impl Item {
    /// The effect that a row is of; none of nodes.
    pub(super) fn effect(self, comparison: &Comparison) -> Option<&Effect> {
        match self {
            Item::Whole => Some(&comparison.total),
            Item::Moved(at) => comparison.moved.get(at)?.ancestor.as_ref(),
            Item::Effect(at) => comparison.effects.get(at),
            Item::Node(_) => None,
        }
    }

    /// The node of the tree whose nodes below are below a row.
    pub(super) fn node(self, tree: &ComparedTree<'_>) -> Option<NodeRange> {
        match self {
            Item::Effect(at) => tree.root_of(at),
            Item::Node(node) => Some(node),
            Item::Whole | Item::Moved(_) => None,
        }
    }
}

/// Rows of all that was compared, those of the whole and of moved cost first, as in the table.
pub(super) fn of_effects(
    comparison: &Comparison,
    tree: &ComparedTree<'_>,
    order: TreeOrder,
    hides_same: bool,
    open: &HashSet<Item>,
) -> Vec<Row> {
    let moved = (0..comparison.moved.len()).map(Item::Moved);
    let mut places: Vec<usize> = (0..comparison.effects.len()).collect();
    if hides_same {
        places.retain(|at| comparison.effects[*at].verdict != EffectVerdict::NoDifference);
    }
    if order == TreeOrder::New {
        places.sort_by(|a, b| comparison.effects[*b].new.total_cmp(&comparison.effects[*a].new));
    }
    let items = std::iter::once(Item::Whole).chain(moved).chain(places.into_iter().map(Item::Effect));
    let mut rows = Vec::new();
    for item in items {
        let Some(effect) = item.effect(comparison) else { continue };
        let name = match item {
            Item::Whole => "the whole".to_owned(),
            Item::Moved(_) => format!("{} and what it calls", shown(&effect.name)),
            _ => shown(&effect.name).into_owned(),
        };
        let module = module_beside_name(&effect.name, &effect.module).filter(|_| item != Item::Whole);
        let node = item.node(tree).filter(|node| tree.has_below(*node));
        let opened = node.filter(|_| open.contains(&item));
        rows.push(Row {
            depth: 0,
            indent: 0,
            item,
            name,
            module: module.map(str::to_owned),
            numbers: RowCosts { total: effect.costs(), own: None, function: None },
            has_below: node.is_some(),
            is_open: opened.is_some(),
        });
        let below = opened.map_or_else(Vec::new, |node| of_open_nodes(tree, Some(node), order, open));
        rows.extend(below.into_iter().map(|row| Row { depth: row.depth + 1, ..row }));
    }
    rows
}

/// Rows of the nodes directly below a node, or of the roots, and of those below open ones.
pub(super) fn of_open_nodes(
    tree: &ComparedTree<'_>,
    node: Option<NodeRange>,
    order: TreeOrder,
    open: &HashSet<Item>,
) -> Vec<Row> {
    let mut nodes = Vec::new();
    let mut pending = vec![tree.directly_below(node, order).into_iter()];
    while let Some(list) = pending.last_mut() {
        match list.next() {
            Some(mut next) => {
                next.depth = pending.len() - 1;
                nodes.push(next);
                if open.contains(&Item::Node(next.node)) {
                    pending.push(tree.directly_below(Some(next.node), order).into_iter());
                }
            }
            None => drop(pending.pop()),
        }
    }
    of_nodes(nodes)
}

/// Rows of nodes; a node whose nodes below are there is open.
pub(super) fn of_nodes(nodes: Vec<ComparedNode<'_>>) -> Vec<Row> {
    let deeper: Vec<bool> = nodes.windows(2).map(|pair| pair[1].depth > pair[0].depth).collect();
    let rows = nodes.into_iter().enumerate().map(|(at, node)| Row {
        depth: node.depth,
        indent: 0,
        item: Item::Node(node.node),
        name: shown(node.name).into_owned(),
        module: module_beside_name(node.name, node.module).map(str::to_owned),
        numbers: RowCosts { total: node.total, own: Some(node.own), function: node.effect },
        has_below: node.has_below,
        is_open: deeper.get(at).copied().unwrap_or(false),
    });
    rows.collect()
}
