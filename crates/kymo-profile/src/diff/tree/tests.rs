//! Trees of random paths beside the obvious ones, and of whole comparisons.
use super::super::stacks::FunctionLabel;
use super::super::tests::{PROGRAM, changed, runs};
use super::super::{CostWeight, DiffOptions, Effect, SharedStacks, SplitMix64, compare};
use super::model::{self, ModelNode};
use super::*;
use std::collections::BTreeMap;

const STARTS: [TreeStart; 2] = [TreeStart::Outermost, TreeStart::Innermost];

/// A comparison of random paths of few functions, which call themselves, too.
fn random_comparison(seed: u64, count: usize) -> Comparison {
    let mut random = SplitMix64::new(seed);
    let label = |at: usize| FunctionLabel { module: format!("m{}", at % 2), name: format!("f{at}") };
    let mut lists: BTreeMap<Vec<u32>, (f64, f64)> = BTreeMap::new();
    for _ in 0..count {
        let functions = (0..=random.below(6)).map(|_| random.below(4) as u32).collect();
        // Whole numbers, so that sums in any order are the same.
        let mut cost = || if random.below(3) == 0 { 0.0 } else { random.below(100) as f64 };
        lists.insert(functions, (cost(), cost()));
    }
    let list = lists.into_iter().map(|(functions, (old, new))| MeanPath { functions, old, new });
    let paths = MeanPaths { functions: (0..4).map(label).collect(), list: list.collect() };
    let effect =
        |at: usize| Effect { name: format!("f{at}"), module: format!("m{}", at % 2), ..Effect::default() };
    Comparison { paths, effects: [2, 0].map(effect).to_vec(), ..Comparison::default() }
}

/// All nodes of a tree by the functions from its start, as they come.
fn by_path(nodes: &[ComparedNode<'_>]) -> Vec<(Vec<u32>, ModelNode)> {
    let mut path = Vec::new();
    let node = |node: &ComparedNode<'_>| {
        path.truncate(node.depth);
        path.push(node.function);
        (path.clone(), ModelNode { own: node.own, total: node.total })
    };
    nodes.iter().map(node).collect()
}

fn sum<'a>(costs: impl Iterator<Item = &'a CostPair>) -> CostPair {
    costs.fold(CostPair::default(), |sum, cost| CostPair { old: sum.old + cost.old, new: sum.new + cost.new })
}

/// Checks every node of random trees against all beginnings of paths, that each comes once, that
/// the nodes of every level add up to the one above (T1), and that trees of a part of the names
/// have the paths with such a function only.
#[test]
fn nodes_are_those_of_the_model() {
    for seed in 1..200 {
        let comparison = random_comparison(seed, 30);
        for (start, part) in STARTS.into_iter().flat_map(|start| [(start, ""), (start, "f3"), (start, "no")])
        {
            let tree = ComparedTree::new(&comparison, start, part);
            let wanted = |path: &MeanPath| part.is_empty() || part == "f3" && path.functions.contains(&3);
            let model = model::nodes(&comparison, start, wanted);
            let nodes = tree.below(None, usize::MAX, TreeOrder::Change);
            assert_eq!(nodes.len(), model.len(), "seed {seed}");
            assert_eq!(by_path(&nodes).into_iter().collect::<BTreeMap<_, _>>(), model, "seed {seed}");
            let roots: Vec<CostPair> =
                nodes.iter().filter(|node| node.depth == 0).map(|node| node.total).collect();
            assert_eq!(sum(roots.iter()), tree.whole(), "seed {seed}");
            for node in &nodes {
                let below = tree.children(node.node, TreeOrder::New);
                assert_eq!(
                    (node.has_below, tree.has_below(node.node)),
                    (!below.is_empty(), !below.is_empty())
                );
                let parts: Vec<CostPair> = below.iter().map(|node| node.total).chain([node.own]).collect();
                assert_eq!(sum(parts.iter()), node.total, "seed {seed}");
            }
        }
    }
}

/// Checks both orders, levels with chains that cost none, the bound, and that a node opens into
/// what is below it in the whole tree.
#[test]
fn orders_and_levels() {
    let comparison = random_comparison(7, 60);
    for start in STARTS {
        let tree = ComparedTree::new(&comparison, start, "");
        let all = tree.below(None, usize::MAX, TreeOrder::New);
        for order in [TreeOrder::New, TreeOrder::Change] {
            let size = |node: &ComparedNode<'_>| match order {
                TreeOrder::New => node.total.new,
                TreeOrder::Change => node.total.change().abs(),
            };
            let roots = tree.below(None, 1, order);
            assert!(roots.len() > 1 && roots.is_sorted_by(|a, b| size(a) >= size(b)), "{roots:?}");
            assert!(roots.iter().all(|node| node.depth == 0));
        }
        assert_eq!(tree.nodes(None, usize::MAX, TreeOrder::New, 5), all[..5]);
        for (at, node) in all.iter().enumerate() {
            let below = tree.below(Some(node.node), usize::MAX, TreeOrder::New);
            let same: Vec<ComparedNode<'_>> = all[at + 1..]
                .iter()
                .take_while(|next| next.depth > node.depth)
                .map(|next| ComparedNode { depth: next.depth - node.depth - 1, ..*next })
                .collect();
            assert_eq!(below, same);
        }
    }
    let path = MeanPath { functions: vec![0, 1, 2], old: 1.0, new: 2.0 };
    let branch = MeanPath { functions: vec![0, 1, 3], ..path.clone() };
    let mut chain = comparison;
    chain.paths.list = vec![path, branch];
    let tree = ComparedTree::new(&chain, TreeStart::Outermost, "");
    let depths: Vec<usize> = tree.below(None, 1, TreeOrder::New).iter().map(|node| node.depth).collect();
    assert_eq!(depths, [0, 1, 2, 2], "the chain, and where it branches");
}

/// Checks T2, and that the whole is the sum of paths: of functions of random paths, and of whole
/// comparisons of each kind of cost.
#[test]
fn roots_are_the_effects() {
    let comparison = random_comparison(3, 40);
    let tree = ComparedTree::new(&comparison, TreeStart::Innermost, "");
    for (effect, function) in [(0, 2), (1, 0)] {
        let root = tree.root_of(effect).expect("a root");
        let nodes = tree.below(None, 1, TreeOrder::Change);
        let node = nodes.iter().find(|node| node.function == function).expect("a root");
        assert_eq!((node.node, node.effect), (root, Some(effect)));
    }
    assert_eq!(tree.root_of(2), None);
    assert_eq!(ComparedTree::new(&comparison, TreeStart::Outermost, "").root_of(0), None);
    for weight in [CostWeight::Absolute, CostWeight::Share, CostWeight::PerWork] {
        let (mut stacks, mut random) = (SharedStacks::new(), SplitMix64::new(1));
        let mut old = runs(&mut stacks, &PROGRAM, 5, 0.05, &mut random);
        let mut new = runs(&mut stacks, &changed("hash", 1.5), 5, 0.05, &mut random);
        let works = [10.0, 20.0, 15.0, 12.0, 18.0];
        for (run, work) in old.iter_mut().chain(&mut new).zip(works.iter().cycle()) {
            run.work = Some(*work);
        }
        let options = DiffOptions { weight, least_share: 0.0, ..DiffOptions::default() };
        let found = compare(stacks, &old, &new, &options).expect("comparable");
        let tree = ComparedTree::new(&found, TreeStart::Innermost, "");
        let is_close = |a: CostPair, b: CostPair| {
            let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * b.abs();
            near(a.old, b.old) && near(a.new, b.new)
        };
        assert!(is_close(tree.whole(), found.total.costs()), "{weight:?}: {:?}", tree.whole());
        let nodes = tree.below(None, 1, TreeOrder::Change);
        assert_eq!(nodes.len(), PROGRAM.len());
        for (at, effect) in found.effects.iter().enumerate() {
            let node = nodes.iter().find(|node| node.effect == Some(at)).expect("a root");
            assert!(is_close(node.total, effect.costs()), "{weight:?}: {node:?}");
            assert_eq!((node.name, tree.root_of(at)), (&*effect.name, Some(node.node)));
        }
    }
}
