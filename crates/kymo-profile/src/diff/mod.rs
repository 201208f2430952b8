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
//!        a known order: turns, trend     shares: of what did not change (reference)
//!        one wild run: wild              the kernel's interrupts: interrupts
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
//! were made in turns, because what a machine does for longer than a turn is in both of its runs. A
//! trend from run to run is taken out wherever it could be taken for a difference.
//! `tests` measures it beside the percentile bootstrap and the studentized bootstrap over runs, for
//! noise that is normal, log-normal, and that of counts. A permutation test is the oracle of the
//! p-values (`model`).
mod bootstrap;
mod comparable;
mod comparer;
mod costs;
mod duplicates;
mod flame;
mod interrupts;
mod json;
mod junit;
mod matching;
#[cfg(test)]
mod model;
mod moved;

mod page;
mod random;
mod reference;
mod renamed;
mod run;
#[cfg(test)]
mod simulations;
mod stacks;
mod statistics;
#[cfg(test)]
mod tests;
mod text;
mod tree;
mod trend;
mod turns;
mod verdict;
mod wild;
mod words;

pub use comparable::NotComparable;
pub use costs::Subject;
pub use duplicates::distinct_runs;
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

use comparer::Comparer;
use serde::Serialize;
use stacks::FunctionLabel;
use turns::RunOrder;
use wild::CountedRuns;

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

/// Cost that moved between a function and its callers, or functions beside it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MovedCost {
    /// The function that is missing on one side.
    pub callee: String,
    /// The new build lacks it; else the old one did.
    pub inlined: bool,
    /// The cost did not move between it and its callers, but between functions of one caller: one
    /// was split, or several became one.
    pub beside: bool,
    /// The callers, or the functions beside it, whose cost changed the other way.
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
    /// By how much more of itself the whole cost was from one run to the next, which was taken out
    /// of all changes; none where the order of the runs does not matter.
    pub trend: Option<f64>,
    /// The whole cost; of shares, by what did not change.
    pub total: Effect,
    /// What was tested: those that differ first, by how much of the whole they changed.
    pub effects: Vec<Effect>,
    /// Cost that moved between callers and callees, or between functions of one caller.
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
    let counted = match options.weight {
        CostWeight::Absolute => wild::without_wild(old, new),
        // Runs may do other amounts of work.
        _ => CountedRuns { old: old.into(), new: new.into(), notes: Vec::new() },
    };
    let names = |runs: &[RunSums]| runs.iter().map(|run| run.facts.name.clone()).collect();
    let both_sides = duplicates::note_of_both_sides(old, new);
    let (all_old, all_new) = (names(old), names(new));
    let (old, new) = (&*counted.old, &*counted.new);
    let corrections = comparable::check(old, new, options.weight, options.most_loss)?;
    let by_node = |runs: &[RunSums]| {
        let mut costs = vec![0.0; stacks.nodes.len()];
        runs.iter().flat_map(|run| &run.nodes).for_each(|(node, cost)| costs[*node as usize] += cost);
        costs
    };
    let (old_costs, new_costs) = (by_node(old), by_node(new));
    let (stacks, numbers) = matching::matched(&stacks, &old_costs, &new_costs);
    let costs = [&old_costs, &new_costs].map(|costs| numbers.moved(costs, stacks.nodes.len()));
    let first = &old[0].facts;
    let order = RunOrder::of(old, new);
    let mut comparison = Comparison {
        event: first.event.clone(),
        unit: first.unit.clone(),
        subject: options.subject,
        weight: options.weight,
        old: all_old,
        new: all_new,
        in_turns: order.as_ref().is_some_and(RunOrder::is_in_turns),
        renamed: numbers.renames.clone(),
        notes: [counted.notes.clone(), corrections.notes.clone(), matching::notes(&numbers)].concat(),
        ..Comparison::default()
    };
    comparison.notes.extend(both_sides);
    comparison.notes.extend(replication_note(old.len(), new.len()));
    let mut comparer = Comparer {
        stacks: &stacks,
        numbers: &numbers,
        sides: (old, new),
        factors: (&corrections.old, &corrections.new),
        interrupts: interrupts::functions(&stacks, [&costs[0], &costs[1]]),
        order,
        options,
        unchanged: None,
        is_unclear: false,
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
