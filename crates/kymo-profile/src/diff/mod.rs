//! What changed between two builds of a program: costs of two sets of runs, compared with
//! statistics.
//!
//! *You give it* the recordings of an old and a new side as [`RunSums`], and [`DiffOptions`]. *It
//! gives you* a [`Comparison`]: by function (or path, line, module) how much more the new side
//! costs, the interval of that, and a verdict; or [`NotComparable`].
//!
//! ```text
//!  recordings --run--> costs by node of shared trees (stacks), named by name_key;
//!                        |  functions of both sides: matching, renamed
//!                        |  comparable: refused, or corrected and said
//!                        v
//!      by function, path, ... and run (costs) --> means and variances
//!        several runs: statistics        the only run: blocks of time, bootstrap
//!        made in turns: turns
//!                        |
//!                        v
//!      differences, p-values, false-discovery rate --> verdict; moved --> Comparison
//!                                      text, markdown, json, junit, flame, page, tree <--'
//! ```
//!
//! # Guarantees
//! - **D1** The run is the unit of replication. Where a side has one run only, the variance is that
//!   within the run, and a note says so.
//! - **D2** Among comparisons of runs that do not differ, at most the false-discovery rate (5 %)
//!   report any difference: the rows that are tested and the whole are one family.
//! - **D3** The same runs and the same seed give the same answer.
//! - **D4** The sum over functions is the whole cost of a run, whatever names were matched.
//!
//! # Which interval
//! Welch's t on the logarithm of the ratio of means; the t of differences within turns where runs
//! were made in turns, because what a machine does for longer than a turn is in both of its runs.
//! `tests` measures it beside the percentile bootstrap and the studentized bootstrap over runs, for
//! noise that is normal, log-normal, and that of counts. A permutation test is the oracle of the
//! p-values (`model`).
mod bootstrap;
mod comparable;
mod costs;
mod flame;
mod json;
mod junit;
mod matching;
#[cfg(test)]
mod model;
mod moved;

mod page;
mod random;
mod renamed;
mod run;
mod stacks;
mod statistics;
#[cfg(test)]
mod tests;
mod text;
mod tree;
mod turns;
mod verdict;
mod words;

pub use comparable::NotComparable;
pub use costs::Subject;
pub use flame::{FlameSide, write_flamegraph};
pub use json::{SCHEMA_VERSION, write_json};
pub use junit::write_junit;
pub use page::write_page;
pub use random::SplitMix64;
pub use run::{RunError, RunFacts, RunOptions, RunSums, SamplingRate};
pub use stacks::SharedStacks;
pub use statistics::Interval;
pub use text::{write_markdown, write_text};
pub use tree::{ComparedNode, ComparedTree, CostPair, NodeRange, TreeOrder, TreeStart};
pub use verdict::EffectVerdict;
pub use words::{module_beside_name, rate_text};

use costs::{Grouping, SideCosts};
use moved::ChangedFunction;
use rustc_hash::FxHashMap;
use serde::Serialize;
use stacks::{FunctionLabel, Renumbering};
use statistics::{Difference, Estimate, TurnVariance, difference, false_discovery_rates};
use turns::Turns;
use verdict::{Replication, judge, more_runs};

/// By what costs are divided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CostWeight {
    /// Nothing: the cost of a run.
    #[default]
    Absolute,
    /// The whole cost of the run.
    Share,
    /// The work that the run did, as an event counts it.
    PerWork,
}

/// What is compared, and what counts as a difference.
#[derive(Clone, Debug, PartialEq)]
pub struct DiffOptions {
    /// What has rows.
    pub subject: Subject,
    /// By what costs are divided.
    pub weight: CostWeight,
    /// How often intervals hold the truth (0.95).
    pub confidence: f64,
    /// How many of the reported differences may be none (0.05).
    pub discovery_rate: f64,
    /// A change of this part of the whole cost matters (0.01).
    pub smallest_of_total: f64,
    /// So does a change of this part of what changed (0.03).
    pub smallest_of_itself: f64,
    /// What has less of the whole on both sides is not tested (0.005).
    pub least_share: f64,
    /// A run that lost more of its samples is refused (0.01).
    pub most_loss: f64,
    /// The seed of the bootstrap.
    pub seed: u64,
}

impl Default for DiffOptions {
    fn default() -> DiffOptions {
        DiffOptions {
            subject: Subject::default(),
            weight: CostWeight::default(),
            confidence: 0.95,
            discovery_rate: 0.05,
            smallest_of_total: 0.01,
            smallest_of_itself: 0.03,
            least_share: 0.005,
            most_loss: 0.01,
            seed: 1,
        }
    }
}

/// How much more one thing costs on the new side.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Effect {
    /// The function, the module, the path (outermost first) or the line; empty of the whole.
    pub name: String,
    /// The module.
    pub module: String,
    /// The mean cost of the old side, weighted.
    pub old: f64,
    /// That of the new side.
    pub new: f64,
    /// The weighted cost of each run; empty of a side with one run.
    pub old_runs: Vec<f64>,
    /// The same of the new side.
    pub new_runs: Vec<f64>,
    /// New minus old.
    pub change: Interval,
    /// The same as a part of the old side's whole cost.
    pub of_total: Interval,
    /// New divided by old, minus one; none where one side has nothing.
    pub of_itself: Option<Interval>,
    /// How probable such a difference is where there is none.
    pub p_value: f64,
    /// The false-discovery rate at which it counts as a difference; none where it was not tested.
    pub discovery_rate: Option<f64>,
    /// What is to be said.
    pub verdict: EffectVerdict,
    /// So many runs more a side would decide it; none where it is decided or a thousand would not.
    pub more_runs: Option<usize>,
}

/// Cost that moved between a function and its callers.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MovedCost {
    /// The function that is missing on one side.
    pub callee: String,
    /// The new build inlines it; else the old one did.
    pub inlined: bool,
    /// The callers whose cost changed the other way.
    pub callers: Vec<String>,
    /// The lowest function that has all of them below it, with what it and its callees cost; none
    /// where they have no function in common.
    pub ancestor: Option<Effect>,
}

/// A function that the new build calls otherwise, and which has one row.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RenamedFunction {
    /// Its name on the old side.
    pub old: String,
    /// That on the new side, which its row has.
    pub new: String,
}

/// What all effects together say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum OverallVerdict {
    /// Nothing costs more, and what would matter is excluded.
    #[default]
    NoRegression,
    /// Something costs more.
    Regression,
    /// The runs do not tell.
    Undecided,
}

/// The answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Comparison {
    /// The event whose periods are the cost.
    pub event: String,
    /// What they count: `ns`, or empty.
    pub unit: String,
    /// What has rows.
    pub subject: Subject,
    /// By what costs were divided.
    pub weight: CostWeight,
    /// What all effects together say.
    pub verdict: OverallVerdict,
    /// The recordings of the old side.
    pub old: Vec<String>,
    /// Those of the new side.
    pub new: Vec<String>,
    /// The recordings of both sides were made in turns, and are compared within each.
    pub in_turns: bool,
    /// The whole cost; not tested where costs are shares of it.
    pub total: Effect,
    /// What was tested: those that differ first, by how much of the whole they changed.
    pub effects: Vec<Effect>,
    /// Cost that moved between callers and callees.
    pub moved: Vec<MovedCost>,
    /// Functions that have another name on each side.
    pub renamed: Vec<RenamedFunction>,
    /// How many rows had too little cost to be tested.
    pub untested: usize,
    /// So many runs more a side would decide all that is undecided.
    pub more_runs: Option<usize>,
    /// What was corrected, matched or left open: sentences.
    pub notes: Vec<String>,
    /// Mean cost by path on each side, for pictures.
    #[serde(skip)]
    paths: MeanPaths,
}

/// Mean cost by path on each side, weighted.
#[derive(Clone, Debug, Default, PartialEq)]
struct MeanPaths {
    functions: Vec<FunctionLabel>,
    list: Vec<MeanPath>,
}

/// A path as places in [`MeanPaths::functions`], outermost first, and what it costs.
#[derive(Clone, Debug, Default, PartialEq)]
struct MeanPath {
    functions: Vec<u32>,
    old: f64,
    new: f64,
}

impl MeanPaths {
    /// What costs are multiplied by so that those of both sides are whole numbers, `parts` for the
    /// whole of the larger one.
    fn scale(&self, parts: f64) -> f64 {
        let sum = |cost: fn(&MeanPath) -> f64| self.list.iter().map(cost).sum::<f64>();
        let whole = sum(|path| path.old).max(sum(|path| path.new));
        if whole > 0.0 { parts / whole } else { 0.0 }
    }
}

/// Compares two sets of runs whose stacks are in `stacks`.
///
/// # Errors
/// When their costs mean different things, or too much of them was lost.
pub fn compare(
    stacks: SharedStacks,
    old: &[RunSums],
    new: &[RunSums],
    options: &DiffOptions,
) -> Result<Comparison, NotComparable> {
    let corrections = comparable::check(old, new, options.weight, options.most_loss)?;
    let by_node = |runs: &[RunSums]| {
        let mut costs = vec![0.0; stacks.nodes.len()];
        runs.iter().flat_map(|run| &run.nodes).for_each(|(node, cost)| costs[*node as usize] += cost);
        costs
    };
    let (old_costs, new_costs) = (by_node(old), by_node(new));
    let (stacks, numbers) = matching::matched(&stacks, &old_costs, &new_costs);
    let first = &old[0].facts;
    let mut comparison = Comparison {
        event: first.event.clone(),
        unit: first.unit.clone(),
        subject: options.subject,
        weight: options.weight,
        old: old.iter().map(|run| run.facts.name.clone()).collect(),
        new: new.iter().map(|run| run.facts.name.clone()).collect(),
        notes: corrections.notes.clone(),
        ..Comparison::default()
    };
    comparison.notes.extend(matching::notes(&numbers));
    comparison.renamed = numbers.renames.clone();
    comparison.notes.extend(replication_note(old.len(), new.len()));
    let turns = Turns::of(old, new);
    comparison.in_turns = turns.is_some();
    if comparison.in_turns {
        comparison.notes.push("the runs were made in turns: each is compared with the one beside it".into());
    }
    let mut comparer = Comparer {
        stacks: &stacks,
        numbers: &numbers,
        sides: (old, new),
        factors: (&corrections.old, &corrections.new),
        turns,
        options,
        random: SplitMix64::new(options.seed),
    };
    comparer.fill(&mut comparison);
    comparison.paths = comparer.mean_paths();
    comparison.decide();
    Ok(comparison)
}

fn replication_note(old: usize, new: usize) -> Option<String> {
    match (old, new) {
        (1, 1) => Some("one run a side: the intervals have the variation within each run only, not that from run to run; record several runs a side to be sure".into()),
        (1, _) | (_, 1) => Some("one side has one run: of it the intervals have the variation within the run only".into()),
        _ => None,
    }
}

struct Comparer<'a> {
    stacks: &'a SharedStacks,
    numbers: &'a Renumbering,
    sides: (&'a [RunSums], &'a [RunSums]),
    factors: (&'a [f64], &'a [f64]),
    turns: Option<Turns>,
    options: &'a DiffOptions,
    random: SplitMix64,
}

impl Comparer<'_> {
    fn side_costs(&self, subject: Subject) -> (SideCosts, SideCosts) {
        let grouping =
            Grouping { stacks: self.stacks, numbers: self.numbers, subject, weight: self.options.weight };
        (
            SideCosts::new(self.sides.0, self.factors.0, grouping),
            SideCosts::new(self.sides.1, self.factors.1, grouping),
        )
    }

    fn means_of_row(&mut self, sides: &(SideCosts, SideCosts), number: u32) -> SideMeans {
        let (old, new) = (sides.0.of_row(number, &mut self.random), sides.1.of_row(number, &mut self.random));
        let turns = self.turn_variance(&sides.0.row_values(number), &sides.1.row_values(number));
        SideMeans { old, new, turns }
    }

    fn means_of_total(&mut self, sides: &(SideCosts, SideCosts)) -> SideMeans {
        let (old, new) = (sides.0.of_total(&mut self.random), sides.1.of_total(&mut self.random));
        let turns = self.turn_variance(&sides.0.total_values(), &sides.1.total_values());
        SideMeans { old, new, turns }
    }

    fn turn_variance(&self, old: &[f64], new: &[f64]) -> Option<TurnVariance> {
        TurnVariance::of(self.turns.as_ref()?.values(old, new))
    }

    /// Computes all effects, and judges them as one family.
    fn fill(&mut self, comparison: &mut Comparison) {
        let options = self.options;
        let sides = self.side_costs(options.subject);
        let total = self.means_of_total(&sides);
        let whole = total.old.mean;
        let mut numbers: Vec<u32> = sides.0.rows.keys().chain(sides.1.rows.keys()).copied().collect();
        numbers.sort_unstable();
        numbers.dedup();
        let all = numbers.len();
        numbers.retain(|number| sides.0.share(*number).max(sides.1.share(*number)) >= options.least_share);
        comparison.untested = all - numbers.len();
        let mut differences: Vec<(Effect, Difference)> = Vec::with_capacity(numbers.len() + 1);
        differences.push(effect(total, whole, options));
        for number in &numbers {
            differences.push(effect(self.means_of_row(&sides, *number), whole, options));
        }
        // Of shares the whole is always the same, and no test.
        let tested = if options.weight == CostWeight::Share { 1.. } else { 0.. };
        let p_values: Vec<f64> = differences[tested.start..].iter().map(|(_, found)| found.p).collect();
        let rates = false_discovery_rates(&p_values);
        let runs = self.sides.0.len().min(self.sides.1.len());
        let replication = Replication { runs, in_turns: self.turns.is_some() };
        for ((effect, found), rate) in differences[tested.start..].iter_mut().zip(&rates) {
            effect.discovery_rate = Some(*rate);
            effect.verdict = judge(found, effect.of_total, *rate, options);
            if effect.verdict == EffectVerdict::Undecided && runs > 1 {
                effect.more_runs = more_runs(effect.of_total, replication, rates.len(), options);
            }
        }
        let mut effects = differences.into_iter().map(|(effect, _)| effect);
        comparison.total = effects.next().unwrap_or_default();
        if options.weight == CostWeight::Share {
            comparison.total.verdict = EffectVerdict::NoDifference;
        }
        (comparison.total.old_runs, comparison.total.new_runs) =
            (sides.0.total_values(), sides.1.total_values());
        comparison.effects = effects.collect();
        for (effect, number) in comparison.effects.iter_mut().zip(&numbers) {
            (effect.module, effect.name) = self.name(*number);
            let of_new = self.numbers.modules.iter().find(|(_, old)| *old == effect.module);
            if let (Some((new, _)), 0.0) = (of_new, effect.old) {
                effect.module = new.clone();
            }
            (effect.old_runs, effect.new_runs) = (sides.0.row_values(*number), sides.1.row_values(*number));
        }
        if options.subject == Subject::Functions {
            comparison.moved = self.moved(&mut comparison.effects, &numbers, whole);
        }
    }

    /// Module and name of a row.
    fn name(&self, number: u32) -> (String, String) {
        let label = |function: u32| {
            let label = &self.stacks.functions[function as usize];
            (label.module.clone(), label.name.clone())
        };
        match self.options.subject {
            Subject::Functions | Subject::Inclusive => label(number),
            Subject::Modules => (label(number).0.clone(), label(number).0),
            Subject::Lines => {
                let (function, line) = &self.stacks.lines[number as usize];
                let (module, name) = label(*function);
                let line = if line.is_empty() { "no line" } else { line };
                (module, format!("{name} {line}"))
            }
            Subject::Paths => {
                let mut names: Vec<String> =
                    self.stacks.path(number).map(|function| label(function).1).collect();
                names.reverse();
                let module = self.stacks.path(number).next().map(|function| label(function).0);
                (module.unwrap_or_default(), names.join(";"))
            }
        }
    }

    /// Finds cost that moved, marks the functions of each move, and judges its ancestor instead.
    fn moved(&mut self, effects: &mut [Effect], numbers: &[u32], whole: f64) -> Vec<MovedCost> {
        let differs = |effect: &Effect| {
            matches!(effect.verdict, EffectVerdict::Regression | EffectVerdict::Improvement)
        };
        let changed: Vec<ChangedFunction> = (effects.iter().zip(numbers))
            .filter(|(effect, _)| differs(effect))
            .map(|(effect, number)| ChangedFunction { function: *number, old: effect.old, new: effect.new })
            .collect();
        if changed.len() < 2 {
            return Vec::new();
        }
        let paths = self.side_costs(Subject::Paths);
        let means = |side: &SideCosts| -> FxHashMap<u32, f64> {
            let mean = |costs: &Vec<f64>| costs.iter().sum::<f64>() / costs.len().max(1) as f64;
            side.rows.iter().map(|(node, costs)| (*node, mean(costs))).collect()
        };
        let found = moved::moves(self.stacks, &changed, &means(&paths.0), &means(&paths.1));
        if found.is_empty() {
            return Vec::new();
        }
        let inclusive = self.side_costs(Subject::Inclusive);
        let label = |function: u32| self.stacks.functions[function as usize].clone();
        let mut moved = Vec::new();
        for one in &found {
            for (effect, number) in effects.iter_mut().zip(numbers) {
                if *number == one.callee || one.callers.contains(number) {
                    effect.verdict = EffectVerdict::Moved;
                }
            }
            let ancestor = one.ancestor.map(|function| {
                let means = self.means_of_row(&inclusive, function);
                let (mut effect, found) = effect(means, whole, self.options);
                effect.verdict = judge(&found, effect.of_total, found.p, self.options);
                (effect.module, effect.name) = (label(function).module, label(function).name);
                effect
            });
            moved.push(MovedCost {
                callee: label(one.callee).name,
                inlined: one.inlined,
                callers: one.callers.iter().map(|caller| label(*caller).name).collect(),
                ancestor,
            });
        }
        moved
    }

    fn mean_paths(&self) -> MeanPaths {
        let sides = self.side_costs(Subject::Paths);
        let mut nodes: Vec<u32> = sides.0.rows.keys().chain(sides.1.rows.keys()).copied().collect();
        nodes.sort_unstable();
        nodes.dedup();
        let path = |node: u32| {
            let mut functions: Vec<u32> = self.stacks.path(node).collect();
            functions.reverse();
            MeanPath { functions, old: sides.0.mean(node), new: sides.1.mean(node) }
        };
        MeanPaths { functions: self.stacks.functions.clone(), list: nodes.into_iter().map(path).collect() }
    }
}

/// The mean costs of both sides, and what turns say of their difference.
#[derive(Clone, Copy)]
struct SideMeans {
    old: Estimate,
    new: Estimate,
    turns: Option<TurnVariance>,
}

/// An effect without name and verdict, and the difference that it is of.
fn effect(means: SideMeans, whole: f64, options: &DiffOptions) -> (Effect, Difference) {
    let SideMeans { old, new, turns } = means;
    let found = difference(old, new, turns, options.confidence);
    let of_total = if whole > 0.0 { found.absolute.scaled(1.0 / whole) } else { Interval::default() };
    let effect = Effect {
        old: old.mean,
        new: new.mean,
        change: found.absolute,
        of_total,
        of_itself: found.relative,
        p_value: found.p,
        ..Effect::default()
    };
    (effect, found)
}

impl Comparison {
    /// Orders the effects, and says what they say together.
    fn decide(&mut self) {
        let differs = |effect: &Effect| {
            matches!(
                effect.verdict,
                EffectVerdict::Regression | EffectVerdict::Improvement | EffectVerdict::Moved
            )
        };
        self.effects.sort_by(|a, b| {
            let size = |effect: &Effect| effect.of_total.estimate.abs();
            (differs(b).cmp(&differs(a))).then(size(b).total_cmp(&size(a))).then_with(|| a.name.cmp(&b.name))
        });
        let ancestors = self.moved.iter().filter_map(|moved| moved.ancestor.as_ref());
        let all = || std::iter::once(&self.total).chain(&self.effects).chain(ancestors.clone());
        let has = |verdict| all().any(|effect| effect.verdict == verdict);
        self.verdict = match () {
            () if has(EffectVerdict::Regression) => OverallVerdict::Regression,
            () if has(EffectVerdict::Undecided) => OverallVerdict::Undecided,
            () => OverallVerdict::NoRegression,
        };
        let undecided = || all().filter(|effect| effect.verdict == EffectVerdict::Undecided);
        let needed = undecided().map(|effect| effect.more_runs).collect::<Option<Vec<usize>>>();
        self.more_runs = needed.and_then(|needed| needed.into_iter().max());
    }

    /// How many effects have this verdict, the whole not counted.
    pub fn count(&self, verdict: EffectVerdict) -> usize {
        self.effects.iter().filter(|effect| effect.verdict == verdict).count()
    }
}
