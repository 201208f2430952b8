//! The costs of each side by what is compared: functions, paths, lines or modules.
use super::CostWeight;
use super::bootstrap;
use super::random::SplitMix64;
use super::run::{BlockSums, NodeCosts, RunSums};
use super::stacks::{Renumbering, SharedStacks};
use super::statistics::Estimate;
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

/// What is compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    /// Functions, by the cost in themselves.
    #[default]
    Functions,
    /// Functions, by the cost in them and in what they called.
    Inclusive,
    /// Call paths, by the cost at their end.
    Paths,
    /// Source lines.
    Lines,
    /// Modules.
    Modules,
}

/// The parts of a side that vary: its runs, or the blocks of its only run.
#[derive(Debug)]
pub(crate) struct SideCosts {
    /// The parts are blocks of one run.
    is_one_run: bool,
    /// By what each part's costs are divided.
    weights: Vec<f64>,
    /// The cost of each part.
    totals: Vec<f64>,
    /// By number of a subject the cost of each part.
    pub(crate) rows: FxHashMap<u32, Vec<f64>>,
    /// The mean period of a sample; 0 where costs are exact.
    period: f64,
}

/// Functions whose cost did not change, and the part of the old side's cost that they have.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct UnchangedPart {
    pub(crate) functions: FxHashSet<u32>,
    pub(crate) share: f64,
}

/// How costs are added up.
#[derive(Clone, Copy)]
pub(crate) struct Grouping<'a> {
    pub(crate) stacks: &'a SharedStacks,
    pub(crate) numbers: &'a Renumbering,
    pub(crate) subject: Subject,
    pub(crate) weight: CostWeight,
    /// Shares are of this part; of everything where there is none.
    pub(crate) unchanged: Option<&'a UnchangedPart>,
}

/// The parts of a run that are added up.
#[derive(Clone, Copy)]
struct PartOfRun<'a> {
    total: f64,
    nodes: &'a NodeCosts,
    lines: &'a NodeCosts,
    work: Option<f64>,
    factor: f64,
}

/// The sums of a part of a run.
struct PartCosts {
    total: f64,
    /// What shares are parts of.
    whole: f64,
    work: Option<f64>,
    rows: FxHashMap<u32, f64>,
}

impl SideCosts {
    /// The costs of a side. `factors`: what corrects the loss of each run.
    pub(crate) fn new(runs: &[RunSums], factors: &[f64], grouping: Grouping<'_>) -> SideCosts {
        let is_one_run = runs.len() == 1 && !runs[0].blocks.is_empty();
        let of_run = |(run, factor): (&'_ RunSums, &f64)| -> Vec<PartCosts> {
            let parts: Vec<PartOfRun<'_>> = match is_one_run {
                true => run.blocks.iter().map(|block| PartOfRun::of_block(block, *factor)).collect(),
                false => vec![PartOfRun {
                    total: run.total,
                    nodes: &run.nodes,
                    lines: &run.lines,
                    work: run.work,
                    factor: *factor,
                }],
            };
            parts
                .iter()
                .map(|part| PartCosts {
                    total: part.total * part.factor,
                    whole: part.whole(grouping),
                    work: part.work,
                    rows: part.by_subject(grouping),
                })
                .collect()
        };
        let parts: Vec<_> = runs.iter().zip(factors).flat_map(of_run).collect();
        let count = parts.len();
        let is_exact = runs.iter().all(RunSums::is_exact);
        let (samples, cost) = runs
            .iter()
            .fold((0, 0.0), |(samples, cost), run| (samples + run.facts.samples, cost + run.total));
        let mut side = SideCosts {
            is_one_run,
            weights: Vec::with_capacity(count),
            totals: Vec::with_capacity(count),
            rows: FxHashMap::default(),
            period: if is_exact { 0.0 } else { cost / samples.max(1) as f64 },
        };
        for (at, PartCosts { total, whole, work, rows }) in parts.into_iter().enumerate() {
            side.weights.push(match grouping.weight {
                CostWeight::Share => whole,
                CostWeight::PerWork => work.unwrap_or(0.0),
                CostWeight::Absolute if is_one_run => 1.0 / count as f64,
                CostWeight::Absolute => 1.0,
            });
            side.totals.push(total);
            for (number, cost) in rows {
                side.rows.entry(number).or_insert_with(|| vec![0.0; count])[at] += cost;
            }
        }
        side
    }

    /// The weighted costs of each run, for those who want to see them; none of a single run.
    pub(crate) fn values(&self, costs: &[f64]) -> Vec<f64> {
        match self.is_one_run {
            true => Vec::new(),
            false => costs.iter().zip(&self.weights).map(|(cost, weight)| quotient(*cost, *weight)).collect(),
        }
    }

    /// The costs of each run, not weighted.
    fn by_run(&self, costs: &[f64]) -> Vec<f64> {
        if self.is_one_run { vec![costs.iter().sum()] } else { costs.to_vec() }
    }

    /// The mean of a row, weighted, as that of its estimate.
    pub(crate) fn mean(&self, number: u32) -> f64 {
        let Some(costs) = self.rows.get(&number) else { return 0.0 };
        match self.is_one_run {
            true => quotient(costs.iter().sum(), self.weights.iter().sum()),
            false => self.values(costs).iter().sum::<f64>() / costs.len() as f64,
        }
    }

    /// The mean of a row, and how well it is known.
    fn estimate(&self, costs: &[f64], random: &mut SplitMix64) -> Estimate {
        let estimate = match self.is_one_run {
            true => bootstrap::of_blocks(costs, &self.weights, random),
            false => Estimate::of_values(&self.values(costs)),
        };
        // Parts that are alike to the last sample are so by chance: samples come as by Poisson.
        let weight: f64 = self.weights.iter().sum();
        let cost: f64 = costs.iter().sum();
        let share = quotient(cost, self.totals.iter().sum()).min(1.0);
        let floor = cost * self.period * (1.0 - share);
        estimate.with_floor(quotient(floor, weight * weight))
    }

    /// The mean of a subject.
    pub(crate) fn of_row(&self, number: u32, random: &mut SplitMix64) -> Estimate {
        match self.rows.get(&number) {
            Some(costs) => self.estimate(costs, random),
            None => Estimate { freedom: (self.totals.len() as f64 - 1.0).max(1.0), ..Estimate::default() },
        }
    }

    /// The mean of the whole cost.
    pub(crate) fn of_total(&self, random: &mut SplitMix64) -> Estimate {
        self.estimate(&self.totals, random)
    }

    /// The values of a row by run.
    pub(crate) fn row_values(&self, number: u32) -> Vec<f64> {
        let none = vec![0.0; self.totals.len()];
        self.values(self.rows.get(&number).unwrap_or(&none))
    }

    /// The values of the whole cost by run.
    pub(crate) fn total_values(&self) -> Vec<f64> {
        self.values(&self.totals)
    }

    /// Whether each row and the whole have the same cost in all runs of both sides.
    pub(crate) fn is_constant(&self, other: &SideCosts) -> bool {
        self.rows.len() == other.rows.len()
            && self.is_constant_total(other)
            && self.rows.keys().all(|number| self.is_constant_row(other, *number))
    }

    /// Whether the whole is.
    pub(crate) fn is_constant_total(&self, other: &SideCosts) -> bool {
        let all = [self.by_run(&self.totals), other.by_run(&other.totals)].concat();
        all.windows(2).all(|pair| pair[0] == pair[1])
    }

    /// Whether a row is.
    pub(crate) fn is_constant_row(&self, other: &SideCosts, number: u32) -> bool {
        let (Some(costs), Some(of_other)) = (self.rows.get(&number), other.rows.get(&number)) else {
            return false;
        };
        let all = [self.by_run(costs), other.by_run(of_other)].concat();
        all.windows(2).all(|pair| pair[0] == pair[1])
    }

    /// The mean cost of a run, not weighted.
    pub(crate) fn mean_total(&self) -> f64 {
        let runs = self.by_run(&self.totals);
        runs.iter().sum::<f64>() / runs.len().max(1) as f64
    }

    /// The part of the whole cost that functions have, so that the whole is 1 in the mean of runs
    /// that are divided by it.
    pub(crate) fn share_of_all(&self, functions: &FxHashSet<u32>) -> f64 {
        let mut costs = vec![0.0; self.totals.len()];
        for (_, row) in self.rows.iter().filter(|(number, _)| functions.contains(number)) {
            costs.iter_mut().zip(row).for_each(|(sum, cost)| *sum += cost);
        }
        if self.is_one_run {
            return quotient(costs.iter().sum(), self.totals.iter().sum());
        }
        let parts = self.totals.iter().zip(&costs).map(|(total, cost)| quotient(*total, *cost));
        quotient(costs.len() as f64, parts.sum())
    }

    /// The part of the whole cost that a subject has.
    pub(crate) fn share(&self, number: u32) -> f64 {
        let cost: f64 = self.rows.get(&number).map_or(0.0, |costs| costs.iter().sum());
        quotient(cost, self.totals.iter().sum())
    }
}

impl<'a> PartOfRun<'a> {
    fn of_block(block: &'a BlockSums, factor: f64) -> PartOfRun<'a> {
        PartOfRun { total: block.total, nodes: &block.nodes, lines: &block.lines, work: block.work, factor }
    }

    /// What shares are parts of: the whole as the old side has it, by what did not change.
    fn whole(&self, grouping: Grouping<'_>) -> f64 {
        let Some(unchanged) = grouping.unchanged else { return self.total * self.factor };
        let function =
            |node: &u32| grouping.stacks.nodes[grouping.numbers.nodes[*node as usize] as usize].function;
        let is_unchanged = |(node, _): &&(u32, f64)| unchanged.functions.contains(&function(node));
        let cost: f64 = self.nodes.iter().filter(is_unchanged).map(|(_, cost)| cost).sum();
        cost * self.factor / unchanged.share
    }

    fn by_subject(&self, grouping: Grouping<'_>) -> FxHashMap<u32, f64> {
        let Grouping { stacks, numbers, subject, .. } = grouping;
        let mut sums: FxHashMap<u32, f64> = FxHashMap::default();
        if subject == Subject::Lines {
            for (line, cost) in self.lines {
                *sums.entry(numbers.lines[*line as usize]).or_default() += cost * self.factor;
            }
            return sums;
        }
        let mut seen = Vec::new();
        for (node, cost) in self.nodes {
            let node = numbers.nodes[*node as usize];
            let cost = cost * self.factor;
            match subject {
                Subject::Inclusive => {
                    seen.clear();
                    for function in stacks.path(node) {
                        // Paths are short, so a list is faster than a set.
                        if !seen.contains(&function) {
                            seen.push(function);
                            *sums.entry(function).or_default() += cost;
                        }
                    }
                }
                Subject::Paths => *sums.entry(node).or_default() += cost,
                _ => *sums.entry(stacks.nodes[node as usize].function).or_default() += cost,
            }
        }
        match subject {
            Subject::Modules => by_module(stacks, sums),
            _ => sums,
        }
    }
}

/// Costs of functions under the number of the first function of each module.
fn by_module(stacks: &SharedStacks, functions: FxHashMap<u32, f64>) -> FxHashMap<u32, f64> {
    let mut first: FxHashMap<&str, u32> = FxHashMap::default();
    for (number, function) in stacks.functions.iter().enumerate() {
        first.entry(&function.module).or_insert(number as u32);
    }
    let mut sums: FxHashMap<u32, f64> = FxHashMap::default();
    for (function, cost) in functions {
        *sums.entry(first[&*stacks.functions[function as usize].module]).or_default() += cost;
    }
    sums
}

fn quotient(cost: f64, weight: f64) -> f64 {
    if weight > 0.0 { cost / weight } else { 0.0 }
}
