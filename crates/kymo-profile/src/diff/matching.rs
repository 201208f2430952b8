//! Functions of two builds that have one name but for what builds, folders and runs change.
use super::RenamedFunction;
use super::renamed;
use super::stacks::{FunctionLabel, Renumbering, SharedStacks};
use crate::name_key::{MERGING_KEYS, RENAMING_KEYS, merged, renamed};
use rustc_hash::{FxHashMap, FxHashSet};

/// Trees with the functions that both sides share under one number. `old` and `new`: the cost of
/// each node on each side.
pub(crate) fn matched(stacks: &SharedStacks, old: &[f64], new: &[f64]) -> (SharedStacks, Renumbering) {
    let own = [old, new].map(|costs| stacks.by_function(costs));
    // Functions that only call others have names, too.
    let sides = [old, new].map(|costs| stacks.by_function(&stacks.inclusive(costs)));
    let aliases = matching_modules(&stacks.functions, &own[0], &own[1]);
    let least = [old, new].map(|costs| renamed::LEAST_SHARE * costs.iter().sum::<f64>());
    let MatchedNames { labels, modules, mut renames, joined } =
        by_name(&stacks.functions, aliases, &sides, least);
    let (stacks, first) = stacks.relabelled(&labels);
    let moved = |costs: &[f64]| first.moved(costs, stacks.nodes.len());
    let (labels, by_callers) = renamed::by_callers(&stacks, &moved(old), &moved(new));
    if by_callers.is_empty() {
        return (stacks, Renumbering { modules, renames, joined, ..first });
    }
    let (stacks, second) = stacks.relabelled(&labels);
    let then = |first: Vec<u32>, second: &[u32]| first.iter().map(|at| second[*at as usize]).collect();
    renames.extend(by_callers);
    let nodes = then(first.nodes, &second.nodes);
    let lines = then(first.lines, &second.lines);
    (stacks, Renumbering { nodes, lines, modules, renames, joined })
}

/// The label of each function on both sides, and what was done for it.
#[derive(Debug, Default)]
struct MatchedNames {
    /// By number of a function.
    labels: Vec<FunctionLabel>,
    /// Modules of one side that are another one of the other side: new name, old name.
    modules: Vec<(String, String)>,
    /// Functions whose only match has another signature or name.
    renames: Vec<RenamedFunction>,
    /// How many functions were joined without their numbers, lines or folders.
    joined: usize,
}

/// Matches by names alone. `aliases`: modules of the new side that are one of the old side.
/// `sides`: the cost of each function with what it calls, by the old and by the new side; what has
/// less than `least` is no rename.
fn by_name(
    functions: &[FunctionLabel],
    aliases: FxHashMap<String, String>,
    sides: &[Vec<f64>; 2],
    least: [f64; 2],
) -> MatchedNames {
    let of_module = |function: &FunctionLabel| {
        let module = aliases.get(&function.module).unwrap_or(&function.module).clone();
        FunctionLabel { module, name: function.name.clone() }
    };
    let labels = functions.iter().map(of_module).collect();
    let mut names = MatchedNames { labels, ..MatchedNames::default() };
    names.modules = aliases.into_iter().collect();
    names.modules.sort_unstable();
    (0..MERGING_KEYS).for_each(|key| names.merge(key, sides));
    (0..RENAMING_KEYS).for_each(|key| names.rename(key, sides, least));
    names
}

/// What was matched, in sentences.
pub(crate) fn notes(numbers: &Renumbering) -> Vec<String> {
    const SHOWN: usize = 3;
    let module =
        |(new, old): &(String, String)| format!("{new} has the functions of {old}, and is compared with it");
    let mut notes: Vec<String> = numbers.modules.iter().map(module).collect();
    let rename = |of: &RenamedFunction| {
        format!("{} seems to be {} in the new build, and is compared with it", of.old, of.new)
    };
    notes.extend(numbers.renames.iter().take(SHOWN).map(rename));
    let more = numbers.renames.len().saturating_sub(SHOWN);
    if more > 0 {
        notes.push(format!("so are {more} more functions with other names or signatures"));
    }
    if numbers.joined > 0 {
        notes.push(format!(
            "the two sides have other numbers, lines or folders in the names of {} functions: these are compared without them",
            numbers.joined
        ));
    }
    notes
}

impl MatchedNames {
    /// Functions by a key, each with its side; those that have no cost are of none.
    fn classes(
        &self,
        sides: &[Vec<f64>; 2],
        key: impl Fn(&str) -> Option<String>,
    ) -> FxHashMap<FunctionLabel, [FxHashSet<usize>; 2]> {
        let mut classes: FxHashMap<FunctionLabel, [FxHashSet<usize>; 2]> = FxHashMap::default();
        for (at, label) in self.labels.iter().enumerate() {
            let Some(name) = key(&label.name) else { continue };
            let class = classes.entry(FunctionLabel { module: label.module.clone(), name }).or_default();
            for (side, costs) in class.iter_mut().zip(sides) {
                if costs.get(at).is_some_and(|cost| *cost > 0.0) {
                    side.insert(at);
                }
            }
        }
        classes
    }

    /// Joins the functions of a key that the two sides name differently.
    fn merge(&mut self, key: usize, sides: &[Vec<f64>; 2]) {
        let classes = self.classes(sides, |name| Some(merged(name, key).into_owned()));
        for (label, members) in classes {
            let names = |side: &FxHashSet<usize>| -> FxHashSet<&str> {
                side.iter().map(|at| &*self.labels[*at].name).collect()
            };
            let [old, new] = [names(&members[0]), names(&members[1])];
            if old.is_empty() || new.is_empty() || old == new {
                continue;
            }
            self.joined += 1;
            members.iter().flatten().for_each(|at| self.labels[*at] = label.clone());
        }
    }

    /// Joins the only function of a key on the old side that the new one lacks with the only one of
    /// the new side that the old one lacks.
    fn rename(&mut self, key: usize, sides: &[Vec<f64>; 2], least: [f64; 2]) {
        let mut of_sides: FxHashMap<&FunctionLabel, [bool; 2]> = FxHashMap::default();
        for (at, label) in self.labels.iter().enumerate() {
            let has = of_sides.entry(label).or_default();
            has.iter_mut()
                .zip(sides)
                .for_each(|(has, costs)| *has |= costs.get(at).is_some_and(|cost| *cost > 0.0));
        }
        let is_shared: Vec<bool> = self.labels.iter().map(|label| of_sides[label] == [true; 2]).collect();
        let classes = self.classes(sides, |name| renamed(name, key).map(|name| name.into_owned()));
        let mut pairs = Vec::new();
        for members in classes.values() {
            let names = |side: &FxHashSet<usize>| -> FxHashSet<&FunctionLabel> {
                side.iter().filter(|at| !is_shared[**at]).map(|at| &self.labels[*at]).collect()
            };
            let cost = |side: usize| members[side].iter().map(|at| sides[side][*at]).sum::<f64>();
            if cost(0) < least[0] || cost(1) < least[1] {
                continue;
            }
            let [old, new] = [names(&members[0]), names(&members[1])];
            if let ([old], [new]) = (&Vec::from_iter(old)[..], &Vec::from_iter(new)[..]) {
                pairs.push(((*old).clone(), (*new).clone()));
            }
        }
        pairs.sort_unstable();
        for (old, new) in pairs {
            self.labels.iter_mut().filter(|label| **label == old).for_each(|label| *label = new.clone());
            self.renames.push(RenamedFunction { old: old.name, new: new.name });
        }
    }
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
    // Small modules are missing by chance, and share a function of any name, as Python's
    // `<module>`.
    let is_large = |module: &FxHashMap<&str, f64>, all: &[f64]| {
        module.values().sum::<f64>() >= renamed::LEAST_SHARE * all.iter().sum::<f64>()
    };
    before.retain(|module, costs| after.contains_key(module) || is_large(costs, old));
    after.retain(|module, costs| before.contains_key(module) || is_large(costs, new));
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
    use super::super::stacks::NO_NODE;
    use super::*;

    /// The labels of functions of the old and the new side, and how many were joined and renamed.
    fn matched(old: &[(&str, &str)], new: &[(&str, &str)]) -> (Vec<String>, MatchedNames) {
        let mut stacks = SharedStacks::new();
        let mut sides = [Vec::new(), Vec::new()];
        for (side, functions) in [old, new].into_iter().enumerate() {
            for (module, name) in functions {
                let at = stacks.function(module, name) as usize;
                sides.iter_mut().for_each(|costs| costs.resize(stacks.functions.len(), 0.0));
                sides[side][at] += 1.0;
            }
        }
        let names = by_name(
            &stacks.functions,
            matching_modules(&stacks.functions, &sides[0], &sides[1]),
            &sides,
            [0.0; 2],
        );
        let mut labels: Vec<String> = names.labels.iter().map(|label| label.name.clone()).collect();
        labels.sort_unstable();
        labels.dedup();
        (labels, names)
    }

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
        let (matched, numbers) = super::matched(&labels(&of), &[1.0, 1.0, 1.0, 0.0], &[1.0, 1.0, 0.0, 1.0]);
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
            super::matched(&labels(&of), &[5.0, 5.0, 0.0, 0.0, 0.0, 1.0], &[0.0, 0.0, 5.0, 6.0, 1.0, 1.0]);
        assert_eq!(numbers.modules, [("app-2".to_owned(), "app-1".to_owned())]);
        assert_eq!(matched.functions.len(), 4);
        assert_eq!(numbers.nodes, [0, 1, 0, 1, 2, 3]);
    }

    /// Checks each kind of name that a build, a folder or a run changes: there is one row, whatever
    /// the name is afterwards.
    #[test]
    fn one_function_has_one_row() {
        for (old, new) in [
            ("L$$Lambda$1/0x00007f768d000a08.run", "L$$Lambda$1/0x00007f3a25000c18.run"),
            ("L$$Lambda$1/0x00007f768d000a08.run", "L$$Lambda$7/0x00007f3a25000c18.run"),
            ("com.sun.proxy.$Proxy3.get", "com.sun.proxy.$Proxy5.get"),
            ("JS:*foo /srv/old/x.js:12:5", "JS:~foo /srv/new/x.js:14:5"),
            ("JS:^foo file:///srv/old/x.mjs:12:5", "JS:*foo file:///srv/new/x.mjs:14:5"),
            ("JS:*foo /srv/x.js:12:5", "JS:*bar /srv/x.js:12:5"),
            ("py::foo:/srv/old/x.py", "py::foo:/srv/new/x.py"),
            ("main.Map[go.shape.int_0]", "main.Map[...]"),
            ("foo[abi:cxx11]()", "foo()"),
            ("app::foo(int)", "app::(anonymous namespace)::foo(int)"),
            ("memcpy@GLIBC_2.2.5", "memcpy@@GLIBC_2.14"),
            ("__memmove_avx_unaligned_erms", "__memmove_evex_unaligned_erms"),
            ("app::foo()", "app::foo() const"),
            ("app::foo<int>(int)", "app::foo<long>(long)"),
            ("app::foo(int)", "app::foo(int, long)"),
            ("void [app] P::Main()[Tier0]", "void [app] P::Main()[OptimizedTier1]"),
            ("foo.avx2.0", "foo.default.2"),
        ] {
            let rest = [("app", "run"), ("app", "parse")];
            let side = |name| [&rest[..], &[("app", name)]].concat();
            let (labels, _) = matched(&side(old), &side(new));
            assert_eq!(labels.len(), 3, "{old} and {new}: {labels:?}");
        }
    }

    /// Checks that overloads and functions that both sides have are not joined with others.
    #[test]
    fn other_functions_stay_apart() {
        for (old, new, rows) in [
            (&["f(int)", "f(long)"][..], &["f(int)", "f(long)"][..], 2),
            (&["f(int)", "f(long)"], &["f(char)", "f(short)"], 4),
            (&["f(int)"], &["f(int)", "f(long)"], 2),
            (
                &["JS:foo /a/x/index.js:1:2", "JS:foo /a/y/index.js:1:2"],
                &["JS:foo /b/x/index.js:1:2", "JS:foo /b/y/index.js:1:2"],
                2,
            ),
            (&["JS:foo /a/x.js:1:2", "JS:foo /a/x.js:9:2"], &["JS:foo /a/x.js:1:2", "JS:foo /a/x.js:9:2"], 2),
            (&["read"], &["read@plt"], 2),
        ] {
            let side = |names: &[&'static str]| names.iter().map(|name| ("app", *name)).collect::<Vec<_>>();
            let (labels, _) = matched(&side(old), &side(new));
            assert_eq!(labels.len(), rows, "{old:?} and {new:?}: {labels:?}");
        }
    }

    /// Checks that the generated code of two processes is one module with one function.
    #[test]
    fn generated_code_has_one_module() {
        let (labels, names) = matched(
            &[("[JIT] tid 24011", "JS:*parse app.js:1:15")],
            &[("[JIT] tid 16648", "JS:parse app.js:1:15")],
        );
        assert_eq!(labels, ["JS:parse app.js:1:15"]);
        assert!(names.labels.iter().all(|label| label.module == "[JIT]"));
    }
}
