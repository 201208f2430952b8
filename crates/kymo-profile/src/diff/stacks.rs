//! The call trees of all runs as one: each run is a list of costs by node.
use super::name_key;
use rustc_hash::{FxHashMap, FxHashSet};

/// The parent of a root.
pub(crate) const NO_NODE: u32 = u32::MAX;

/// A function as one build calls it, without what changes in every build.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FunctionLabel {
    /// The module, without the version of a library.
    pub(crate) module: String,
    /// The name, without hashes and suffixes of clones.
    pub(crate) name: String,
}

/// A function on a path, and the path that led to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PathNode {
    pub(crate) parent: u32,
    pub(crate) function: u32,
}

/// The call trees of all runs, put together by names.
#[derive(Debug, Default)]
pub struct SharedStacks {
    pub(crate) functions: Vec<FunctionLabel>,
    function_numbers: FxHashMap<FunctionLabel, u32>,
    pub(crate) nodes: Vec<PathNode>,
    node_numbers: FxHashMap<PathNode, u32>,
    /// Source lines: function and `file:line`.
    pub(crate) lines: Vec<(u32, String)>,
    line_numbers: FxHashMap<(u32, String), u32>,
}

impl SharedStacks {
    /// No runs yet.
    pub fn new() -> SharedStacks {
        SharedStacks::default()
    }

    /// The number of a function, by its name in a build.
    pub(crate) fn function(&mut self, module: &str, name: &str) -> u32 {
        let (module, name) = (name_key::module(module).into_owned(), name_key::function(name).into_owned());
        self.label(FunctionLabel { module, name })
    }

    fn label(&mut self, label: FunctionLabel) -> u32 {
        let next = self.functions.len() as u32;
        *self.function_numbers.entry(label).or_insert_with_key(|label| {
            self.functions.push(label.clone());
            next
        })
    }

    /// The node of a function below a parent. A function that calls a part of itself stays one node.
    pub(crate) fn step(&mut self, parent: u32, function: u32) -> u32 {
        if self.nodes.get(parent as usize).is_some_and(|node| node.function == function) {
            return parent;
        }
        let (node, next) = (PathNode { parent, function }, self.nodes.len() as u32);
        *self.node_numbers.entry(node).or_insert_with(|| {
            self.nodes.push(node);
            next
        })
    }

    /// The number of a source line of a function.
    pub(crate) fn line(&mut self, function: u32, line: &str) -> u32 {
        let next = self.lines.len() as u32;
        *self.line_numbers.entry((function, line.to_owned())).or_insert_with_key(|key| {
            self.lines.push(key.clone());
            next
        })
    }

    /// The functions from a node to its root.
    pub(crate) fn path(&self, node: u32) -> impl Iterator<Item = u32> + '_ {
        let mut at = node;
        std::iter::from_fn(move || {
            let node = self.nodes.get(at as usize)?;
            at = node.parent;
            Some(node.function)
        })
    }

    /// The same trees with the functions that both sides share under one number. `old` and `new`:
    /// the cost of each function on each side.
    pub(crate) fn matched(self, old: &[f64], new: &[f64]) -> (SharedStacks, Renumbering) {
        let aliases = matching_modules(&self.functions, old, new);
        let merged = merged_closures(&self.functions, &aliases, old, new);
        let mut to = SharedStacks::default();
        let label = |function: &FunctionLabel| {
            let module = aliases.get(&function.module).unwrap_or(&function.module).clone();
            let plain = FunctionLabel { module, name: function.name.clone() };
            let bare = FunctionLabel {
                name: name_key::without_numbers(&plain.name).into_owned(),
                module: plain.module.clone(),
            };
            if merged.contains(&bare) { bare } else { plain }
        };
        let functions: Vec<u32> = self.functions.iter().map(|function| to.label(label(function))).collect();
        let mut nodes = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            // Parents come first.
            let parent = nodes.get(node.parent as usize).copied().unwrap_or(NO_NODE);
            nodes.push(to.step(parent, functions[node.function as usize]));
        }
        let lines = self.lines.iter().map(|(of, line)| to.line(functions[*of as usize], line)).collect();
        (to, Renumbering { nodes, lines, renamed_modules: aliases.into_iter().collect() })
    }
}

/// Where the nodes and lines of runs are in the matched trees.
#[derive(Debug, Default)]
pub(crate) struct Renumbering {
    pub(crate) nodes: Vec<u32>,
    pub(crate) lines: Vec<u32>,
    /// Modules of one side that are another one of the other side: new name, old name.
    pub(crate) renamed_modules: Vec<(String, String)>,
}

/// The names of classes whose closures the two builds number differently: those are compared as
/// one.
fn merged_closures(
    functions: &[FunctionLabel],
    aliases: &FxHashMap<String, String>,
    old: &[f64],
    new: &[f64],
) -> FxHashSet<FunctionLabel> {
    let mut classes: FxHashMap<FunctionLabel, [FxHashSet<&str>; 2]> = FxHashMap::default();
    for (at, function) in functions.iter().enumerate() {
        let bare = name_key::without_numbers(&function.name);
        if bare == function.name {
            continue;
        }
        let module = aliases.get(&function.module).unwrap_or(&function.module).clone();
        let sides = classes.entry(FunctionLabel { module, name: bare.into_owned() }).or_default();
        for (side, costs) in sides.iter_mut().zip([old, new]) {
            if costs.get(at).is_some_and(|cost| *cost > 0.0) {
                side.insert(&function.name);
            }
        }
    }
    classes.retain(|_, sides| sides[0] != sides[1]);
    classes.into_keys().collect()
}

/// Programs that two builds call differently (`app-1.2` and `app-1.3`): a module that only the new
/// side has, and the one that only the old side has with most of the same functions.
fn matching_modules(functions: &[FunctionLabel], old: &[f64], new: &[f64]) -> FxHashMap<String, String> {
    type ByModule<'a> = FxHashMap<&'a str, FxHashMap<&'a str, f64>>;
    let (mut before, mut after): (ByModule<'_>, ByModule<'_>) = Default::default();
    for (at, function) in functions.iter().enumerate() {
        for (side, costs) in [(&mut before, old), (&mut after, new)] {
            let cost = costs.get(at).copied().unwrap_or(0.0);
            if cost > 0.0 {
                *side.entry(&function.module).or_default().entry(&function.name).or_default() += cost;
            }
        }
    }
    let is_one_sided =
        |module: &str, other: &ByModule<'_>| !other.contains_key(module) && !module.starts_with('[');
    let mut candidates = Vec::new();
    for (renamed, theirs) in after.iter().filter(|(module, _)| is_one_sided(module, &before)) {
        for (original, ours) in before.iter().filter(|(module, _)| is_one_sided(module, &after)) {
            let shared = |costs: &FxHashMap<&str, f64>, other: &FxHashMap<&str, f64>| {
                let all: f64 = costs.values().sum();
                costs.iter().filter(|(name, _)| other.contains_key(*name)).map(|(_, cost)| cost).sum::<f64>()
                    / all
            };
            let overlap = shared(ours, theirs).min(shared(theirs, ours));
            if overlap >= 0.5 {
                candidates.push((overlap, *renamed, *original));
            }
        }
    }
    candidates.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    let (mut aliases, mut taken) = (FxHashMap::default(), FxHashSet::default());
    for (_, renamed, original) in candidates {
        if !aliases.contains_key(renamed) && taken.insert(original) {
            aliases.insert(renamed.to_owned(), original.to_owned());
        }
    }
    aliases
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(functions: &[(&str, &str)]) -> SharedStacks {
        let mut stacks = SharedStacks::new();
        functions.iter().for_each(|(module, name)| {
            let function = stacks.function(module, name);
            stacks.step(NO_NODE, function);
        });
        stacks
    }

    /// Checks that closures keep their numbers where both builds have the same ones, and are put
    /// together where they have not.
    #[test]
    fn closures_are_merged_only_where_numbers_changed() {
        let of = [
            ("app", "f::{closure#0}"),
            ("app", "f::{closure#1}"),
            ("app", "g::{closure#0}"),
            ("app", "g::{closure#1}"),
        ];
        let (matched, numbers) = labels(&of).matched(&[1.0, 1.0, 1.0, 0.0], &[1.0, 1.0, 0.0, 1.0]);
        let names: Vec<&str> = matched.functions.iter().map(|function| &*function.name).collect();
        assert_eq!(names, ["f::{closure#0}", "f::{closure#1}", "g::{closure}"]);
        assert_eq!(numbers.nodes, [0, 1, 2, 2]);
    }

    /// Checks that a program with another file name is matched by its functions, and a stranger is
    /// not.
    #[test]
    fn a_renamed_program_is_matched_by_its_functions() {
        let of = [
            ("app-1", "f"),
            ("app-1", "g"),
            ("app-2", "f"),
            ("app-2", "g"),
            ("other", "h"),
            ("libc.so.6", "read"),
        ];
        let (matched, numbers) =
            labels(&of).matched(&[5.0, 5.0, 0.0, 0.0, 0.0, 1.0], &[0.0, 0.0, 5.0, 6.0, 1.0, 1.0]);
        assert_eq!(numbers.renamed_modules, [("app-2".to_owned(), "app-1".to_owned())]);
        assert_eq!(matched.functions.len(), 4);
        assert_eq!(numbers.nodes, [0, 1, 0, 1, 2, 3]);
    }

    /// Checks that parts of functions are the function, also on a path.
    #[test]
    fn parts_are_no_frames_of_their_own() {
        let mut stacks = SharedStacks::new();
        let (whole, part) = (stacks.function("app", "f"), stacks.function("app", "f.cold"));
        assert_eq!(whole, part);
        let root = stacks.step(NO_NODE, whole);
        assert_eq!(stacks.step(root, part), root);
        assert_eq!(stacks.path(root).collect::<Vec<_>>(), [whole]);
    }
}
