//! One comparison: what each row costs on both sides, judged as one family.
use super::costs::{Grouping, SideCosts, Subject, UnchangedPart};
use super::interrupts;
use super::moved::{self, ChangedFunction};
use super::random::SplitMix64;
use super::reference::{Remainder, ShareRatio, unchanged};
use super::run::RunSums;
use super::stacks::{Renumbering, SharedStacks};
use super::statistics::{Difference, Estimate, Interval, difference, false_discovery_rates};
use super::trend::OrderedDifference;
use super::turns::RunOrder;
use super::verdict::{EffectVerdict, Replication, judge, more_runs};
use super::{Comparison, CostWeight, DiffOptions, Effect, MeanPath, MeanPaths, MovedCost};
use rustc_hash::{FxHashMap, FxHashSet};

/// With fewer samples a side, equal costs are chance.
const LEAST_SAMPLES: u64 = 100;
/// So sure is it that a function changed which shares are not judged against.
const CERTAINLY_CHANGED: f64 = 0.9985;

pub(crate) struct Comparer<'a> {
    pub(crate) stacks: &'a SharedStacks,
    pub(crate) numbers: &'a Renumbering,
    pub(crate) sides: (&'a [RunSums], &'a [RunSums]),
    pub(crate) factors: (&'a [f64], &'a [f64]),
    /// Functions that are not judged.
    pub(crate) interrupts: FxHashSet<u32>,
    pub(crate) order: Option<RunOrder>,
    pub(crate) options: &'a DiffOptions,
    /// What shares are judged against; everything where there is none.
    pub(crate) unchanged: Option<UnchangedPart>,
    /// Shares do not tell which functions changed.
    pub(crate) is_unclear: bool,
    pub(crate) random: SplitMix64,
}

impl Comparer<'_> {
    fn side_costs(&self, subject: Subject) -> (SideCosts, SideCosts) {
        let (stacks, numbers, weight) = (self.stacks, self.numbers, self.options.weight);
        let grouping = Grouping { stacks, numbers, subject, weight, unchanged: self.unchanged.as_ref() };
        (
            SideCosts::new(self.sides.0, self.factors.0, grouping),
            SideCosts::new(self.sides.1, self.factors.1, grouping),
        )
    }

    fn means_of_row(&mut self, sides: &(SideCosts, SideCosts), number: u32) -> SideMeans {
        let (old, new) = (sides.0.of_row(number, &mut self.random), sides.1.of_row(number, &mut self.random));
        let order = self.ordered(&sides.0.row_values(number), &sides.1.row_values(number));
        SideMeans { old, new, order }
    }

    fn means_of_total(&mut self, sides: &(SideCosts, SideCosts)) -> SideMeans {
        let (old, new) = (sides.0.of_total(&mut self.random), sides.1.of_total(&mut self.random));
        let order = self.ordered(&sides.0.total_values(), &sides.1.total_values());
        SideMeans { old, new, order }
    }

    fn ordered(&self, old: &[f64], new: &[f64]) -> Option<OrderedDifference> {
        self.order.as_ref()?.difference(old, new)
    }

    /// Computes all effects, and judges them as one family.
    pub(crate) fn fill(&mut self, comparison: &mut Comparison) {
        let options = self.options;
        if options.weight == CostWeight::Share {
            comparison.notes.extend(self.find_unchanged());
        }
        let sides = self.side_costs(options.subject);
        let total = self.means_of_total(&sides);
        let whole = total.old.mean;
        let (numbers, untested) = self.tested_rows(&sides, comparison);
        comparison.untested = untested;
        comparison.trend = total.order.map(|order| order.relative.per_run);
        comparison.notes.extend(self.order_note(total));
        let mut differences: Vec<(Effect, Difference)> = Vec::with_capacity(numbers.len() + 1);
        differences.push(effect(total, whole, options));
        for number in &numbers {
            differences.push(effect(self.means_of_row(&sides, *number), whole, options));
        }
        self.keep_equal_costs(&sides, &numbers, &mut differences, comparison);
        self.judge_family(&mut differences);
        let mut effects = differences.into_iter().map(|(effect, _)| effect);
        comparison.total = effects.next().unwrap_or_default();
        (comparison.total.old_runs, comparison.total.new_runs) =
            (sides.0.total_values(), sides.1.total_values());
        comparison.effects = effects.collect();
        for (effect, number) in comparison.effects.iter_mut().zip(&numbers) {
            (effect.module, effect.name) = self.name(*number);
            let of_new = self.numbers.modules.iter().find(|(_, old)| *old == effect.module);
            let has_new_name =
                effect.old == 0.0 || self.numbers.renames.iter().any(|of| of.new == effect.name);
            if let (Some((new, _)), true) = (of_new, has_new_name) {
                effect.module = new.clone();
            }
            (effect.old_runs, effect.new_runs) = (sides.0.row_values(*number), sides.1.row_values(*number));
        }
        if options.subject == Subject::Functions {
            comparison.moved = self.moved(&mut comparison.effects, &numbers, whole);
        }
    }

    /// The rows that are tested, and how many have too little cost for that.
    fn tested_rows(&self, sides: &(SideCosts, SideCosts), comparison: &mut Comparison) -> (Vec<u32>, usize) {
        let mut numbers: Vec<u32> = sides.0.rows.keys().chain(sides.1.rows.keys()).copied().collect();
        numbers.sort_unstable();
        numbers.dedup();
        let all = numbers.len();
        numbers
            .retain(|number| sides.0.share(*number).max(sides.1.share(*number)) >= self.options.least_share);
        let untested = all - numbers.len();
        let is_of_interrupts =
            |number: &u32| self.function_of(*number).is_some_and(|of| self.interrupts.contains(&of));
        let of_interrupts: Vec<u32> = numbers.iter().copied().filter(is_of_interrupts).collect();
        numbers.retain(|number| !is_of_interrupts(number));
        let share = |side: &SideCosts| of_interrupts.iter().map(|number| side.share(*number)).sum::<f64>();
        let names = of_interrupts.iter().map(|number| self.name(*number).1).collect();
        comparison.notes.extend(interrupts::note(names, (share(&sides.0), share(&sides.1))));
        (numbers, untested)
    }

    /// The function whose own cost a row is part of.
    fn function_of(&self, number: u32) -> Option<u32> {
        match self.options.subject {
            Subject::Functions | Subject::Inclusive => Some(number),
            Subject::Paths => self.stacks.path(number).next(),
            Subject::Lines => self.stacks.lines.get(number as usize).map(|(function, _)| *function),
            Subject::Modules => None,
        }
    }

    /// Finds what shares are judged against, and says what that is.
    fn find_unchanged(&mut self) -> Option<String> {
        let sides = self.side_costs(Subject::Functions);
        let least = self.options.least_share;
        let mut functions: Vec<u32> = sides.0.rows.keys().chain(sides.1.rows.keys()).copied().collect();
        functions.sort_unstable();
        functions.dedup();
        let (mut rows, mut changed) = (Vec::new(), FxHashSet::default());
        for function in &functions {
            let share = sides.0.share(*function).max(sides.1.share(*function));
            if share < least || self.interrupts.contains(function) {
                continue;
            }
            let means = self.means_of_row(&sides, *function);
            let found = difference(means.old, means.new, None, 2.0 * CERTAINLY_CHANGED - 1.0);
            match found.relative {
                Some(relative) => rows.push(ShareRatio {
                    function: *function,
                    ratio: relative.estimate.ln_1p(),
                    reach: (relative.high.ln_1p() - relative.low.ln_1p()) / 2.0,
                    share: sides.0.share(*function),
                }),
                None => {
                    changed.insert(*function);
                }
            }
        }
        let absolute = (sides.1.mean_total() / sides.0.mean_total()).ln();
        match unchanged(&rows, absolute) {
            Remainder::Unclear => {
                self.is_unclear = true;
                return Some("shares do not tell whether some functions cost more or the others less: compare absolute costs of several runs, or costs --per unit of work".into());
            }
            Remainder::AllBut(others) => changed.extend(others),
        }
        let functions: FxHashSet<u32> =
            functions.into_iter().filter(|function| !changed.contains(function)).collect();
        let share = sides.0.share_of_all(&functions);
        if changed.is_empty() || share <= 0.0 {
            return None;
        }
        self.unchanged = Some(UnchangedPart { functions, share });
        Some(format!(
            "shares are of the old side's cost, by the functions that did not change ({:.1} % of it): a share that rises only because another one falls is no change",
            100.0 * share
        ))
    }

    /// What is said of the order of the runs, and the trend.
    fn order_note(&self, total: SideMeans) -> Option<String> {
        let order = self.order.as_ref()?;
        let runs = self.sides.0.len().min(self.sides.1.len());
        let is_apart = order.is_one_after_other() && runs > 1;
        let known = total.order.map(|of| of.relative);
        let percent = known.map_or(0.0, |of| 100.0 * of.per_run);
        let is_seen =
            known.is_some_and(|of| of.per_run.abs() > 3.0 * of.per_run_error && percent.abs() >= 0.05);
        let trend = format!("{percent:+.1} % of the cost from run to run");
        match (order.is_in_turns(), is_apart, known.is_some()) {
            (true, ..) if is_seen => Some(format!(
                "the runs were made in turns: each is compared with the one beside it, without the trend of the machine ({trend})"
            )),
            (true, ..) => {
                Some("the runs were made in turns: each is compared with the one beside it".into())
            }
            (_, true, true) => Some(format!(
                "all runs of one side were made after those of the other: the trend of the machine ({trend}) is taken out, which makes the intervals wider; in turns, as --run makes them, fewer runs tell more"
            )),
            (_, true, false) => Some("all runs of one side were made after those of the other: what the machine did meanwhile may be the difference; make them in turns, as --run does".into()),
            (_, _, true) if is_seen => Some(format!("the trend of the machine ({trend}) is taken out")),
            _ => None,
        }
    }

    /// Where all costs are the same in all runs, or exact costs of a row are, there is nothing that
    /// could differ.
    fn keep_equal_costs(
        &self,
        sides: &(SideCosts, SideCosts),
        numbers: &[u32],
        differences: &mut [(Effect, Difference)],
        comparison: &mut Comparison,
    ) {
        let runs = || self.sides.0.iter().chain(self.sides.1);
        let samples = |runs: &[RunSums]| runs.iter().map(|run| run.facts.samples).sum::<u64>();
        let is_exact = runs().all(RunSums::is_exact);
        let is_much = samples(self.sides.0).min(samples(self.sides.1)) >= LEAST_SAMPLES;
        let is_of_new = |run: &RunSums| self.sides.1.iter().any(|new| new.is_same_recording(run));
        let is_same = self.sides.0.iter().all(is_of_new);
        let is_equal = (is_exact || is_much || is_same) && sides.0.is_constant(&sides.1);
        if is_equal {
            comparison.notes.push("all runs of both sides have the same costs".into());
        }
        let of_rows = numbers.iter().map(|number| sides.0.is_constant_row(&sides.1, *number));
        let rows = std::iter::once(sides.0.is_constant_total(&sides.1)).chain(of_rows);
        for ((effect, found), is_constant) in differences.iter_mut().zip(rows) {
            if is_equal || is_exact && is_constant {
                let none = Interval::default();
                *found = Difference { absolute: none, relative: found.relative.map(|_| none), p: 1.0 };
                (effect.change, effect.of_total, effect.p_value) = (none, none, 1.0);
                effect.of_itself = found.relative;
                effect.new = effect.old;
            }
        }
    }

    /// Judges the whole, which is first, and all rows.
    fn judge_family(&self, differences: &mut [(Effect, Difference)]) {
        let options = self.options;
        // Of shares of everything the whole is always the same, and no test.
        let is_share = options.weight == CostWeight::Share;
        let tested = if is_share { 1.. } else { 0.. };
        let p_values: Vec<f64> = differences[tested.start..].iter().map(|(_, found)| found.p).collect();
        let rates = false_discovery_rates(&p_values);
        let runs = self.sides.0.len().min(self.sides.1.len());
        let in_turns = self.order.as_ref().is_some_and(RunOrder::is_in_turns);
        let replication = Replication { runs, in_turns };
        for ((effect, found), rate) in differences[tested.start..].iter_mut().zip(&rates) {
            effect.discovery_rate = Some(*rate);
            effect.verdict = judge(found, effect.of_total, *rate, options);
            let is_certain = matches!(effect.verdict, EffectVerdict::Regression | EffectVerdict::Improvement);
            if self.is_unclear && is_certain {
                effect.verdict = EffectVerdict::Undecided;
            } else if effect.verdict == EffectVerdict::Undecided && runs > 1 {
                effect.more_runs = more_runs(effect.of_total, replication, rates.len(), options);
            }
        }
        if let (true, Some((total, found))) = (is_share, differences.first_mut()) {
            total.verdict = match self.unchanged.is_some() {
                true => judge(found, total.of_total, found.p, options),
                false => EffectVerdict::NoDifference,
            };
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
                beside: one.beside,
                callers: one.callers.iter().map(|caller| label(*caller).name).collect(),
                ancestor,
            });
        }
        moved
    }

    pub(crate) fn mean_paths(&self) -> MeanPaths {
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

/// The mean costs of both sides, and what the order of runs says of their difference.
#[derive(Clone, Copy)]
struct SideMeans {
    old: Estimate,
    new: Estimate,
    order: Option<OrderedDifference>,
}

/// An effect without name and verdict, and the difference that it is of.
fn effect(means: SideMeans, whole: f64, options: &DiffOptions) -> (Effect, Difference) {
    let SideMeans { old, new, order } = means;
    let found = difference(old, new, order, options.confidence);
    let of_total = if whole > 0.0 { found.absolute.scaled(1.0 / whole) } else { Interval::default() };
    let effect = Effect {
        old: old.mean,
        // Without the trend of the machine.
        new: old.mean + found.absolute.estimate,
        change: found.absolute,
        of_total,
        of_itself: found.relative,
        p_value: found.p,
        ..Effect::default()
    };
    (effect, found)
}
