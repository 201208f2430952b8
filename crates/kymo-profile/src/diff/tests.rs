//! Whole comparisons of synthetic runs whose truth is known, and of a recording with itself.
use super::model::{percentile_interval, permutation_p, studentized_interval};
use super::run::BlockSums;
use super::stacks::NO_NODE;
use super::statistics::{Estimate, difference};
use super::*;
use kymo_data::Recording;
use kymo_symbols::{SymbolOptions, SymbolStore};
use std::sync::Arc;

/// A standard normal number (Box and Muller).
pub(super) fn normal(random: &mut SplitMix64) -> f64 {
    let uniform = |random: &mut SplitMix64| ((random.next_bits() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    let (radius, angle) = (uniform(random), uniform(random));
    (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
}

/// How a run differs from the next.
#[derive(Clone, Copy, Debug)]
enum Noise {
    /// Normal, 3 % of the mean.
    Normal,
    /// Log-normal, 20 % of the mean: some runs are much slower.
    LogNormal,
    /// Counts of 40 samples, as of a small function.
    Counts,
}

const NOISES: [Noise; 3] = [Noise::Normal, Noise::LogNormal, Noise::Counts];

/// A cost with the mean 1.
fn cost(noise: Noise, random: &mut SplitMix64) -> f64 {
    match noise {
        Noise::Normal => 1.0 + 0.03 * normal(random),
        Noise::LogNormal => (0.2 * normal(random) - 0.02).exp(),
        // 400 chances of one in ten.
        Noise::Counts => (0..400).filter(|_| random.below(10) == 0).count() as f64 / 40.0,
    }
}

/// Of so many trials, the part in which an interval held the ratio 1.1.
fn coverage(
    noise: Noise,
    runs: usize,
    trials: usize,
    interval: impl Fn(&[f64], &[f64], &mut SplitMix64) -> (f64, f64),
) -> f64 {
    let mut random = SplitMix64::new(runs as u64);
    let truth = 1.1_f64.ln();
    let mut held = 0;
    for _ in 0..trials {
        let old: Vec<f64> = (0..runs).map(|_| cost(noise, &mut random)).collect();
        let new: Vec<f64> = (0..runs).map(|_| 1.1 * cost(noise, &mut random)).collect();
        let (low, high) = interval(&old, &new, &mut random);
        held += usize::from(low <= truth && truth <= high);
    }
    held as f64 / trials as f64
}

fn welch_interval(old: &[f64], new: &[f64], _: &mut SplitMix64) -> (f64, f64) {
    let found = difference(Estimate::of_values(old), Estimate::of_values(new), None, 0.95);
    let relative = found.relative.expect("both have something");
    (relative.low.ln_1p(), relative.high.ln_1p())
}

/// Checks that with ten runs a side the chosen interval holds the truth in 93 to 97 % of trials for
/// each kind of noise, and that the percentile bootstrap does not.
#[test]
fn intervals_hold_the_truth() {
    for noise in NOISES {
        for runs in [3, 5, 10] {
            let welch = coverage(noise, runs, 4000, welch_interval);
            let percentile = coverage(noise, runs, 500, percentile_interval);
            let studentized = coverage(noise, runs, 500, studentized_interval);
            eprintln!(
                "{noise:?} {runs} runs: Welch {welch:.3}, percentile {percentile:.3}, studentized {studentized:.3}"
            );
            let range = if runs == 10 { 0.93..=0.97 } else { 0.92..=0.985 };
            assert!(range.contains(&welch), "{noise:?}, {runs} runs: {welch}");
            assert!(runs > 3 || percentile < 0.92, "the percentile bootstrap holds {percentile}");
        }
    }
}

/// Checks p-values against the test of all deals, on sides of six runs.
#[test]
fn p_values_are_those_of_all_deals() {
    let mut random = SplitMix64::new(3);
    for noise in NOISES {
        let mut off = Vec::new();
        for trial in 0..40 {
            let factor = 1.0 + 0.01 * f64::from(trial % 4);
            let old: Vec<f64> = (0..6).map(|_| cost(noise, &mut random)).collect();
            let new: Vec<f64> = (0..6).map(|_| factor * cost(noise, &mut random)).collect();
            let welch = difference(Estimate::of_values(&old), Estimate::of_values(&new), None, 0.95).p;
            off.push((welch - permutation_p(&old, &new)).abs());
        }
        let mean = off.iter().sum::<f64>() / off.len() as f64;
        assert!(mean < 0.02 && off.iter().all(|off| *off < 0.1), "{noise:?}: {mean} {off:?}");
    }
}

/// Runs of a program of these functions, each with its mean cost in samples of 1000 ns. `noise` is
/// that of a run as a whole.
pub(super) fn runs(
    stacks: &mut SharedStacks,
    functions: &[(&str, f64)],
    count: usize,
    noise: f64,
    random: &mut SplitMix64,
) -> Vec<RunSums> {
    labelled_runs(stacks, functions, count, noise, random, |_, name| ("app".to_owned(), name.to_owned()))
}

/// The same with other modules and names: `label` has them of a run's number and a name.
pub(super) fn labelled_runs(
    stacks: &mut SharedStacks,
    functions: &[(&str, f64)],
    count: usize,
    noise: f64,
    random: &mut SplitMix64,
    label: impl Fn(usize, &str) -> (String, String),
) -> Vec<RunSums> {
    let main = stacks.function("app", "main");
    let root = stacks.step(NO_NODE, main);
    (0..count)
        .map(|number| {
            let whole = 1.0 + noise * normal(random);
            let mut nodes = Vec::new();
            let mut samples = 0.0;
            for (name, mean) in functions {
                let mean = mean * whole;
                // Counts of samples: close to normal for means of dozens.
                let drawn = (mean + mean.sqrt() * normal(random)).round().max(0.0);
                let (module, name) = label(number, name);
                let function = stacks.function(&module, &name);
                nodes.push((stacks.step(root, function), 1000.0 * drawn));
                samples += drawn;
            }
            nodes.sort_unstable_by_key(|(node, _)| *node);
            let facts = RunFacts {
                name: format!("run {number}"),
                event: "task-clock".into(),
                unit: "ns".into(),
                samples: samples as u64,
                all_samples: samples as u64,
                last_ns: 10_000_000_000,
                cpus: 2,
                ..RunFacts::default()
            };
            RunSums { facts, total: 1000.0 * samples, nodes, ..RunSums::default() }
        })
        .collect()
}

pub(super) const PROGRAM: [(&str, f64); 8] = [
    ("parse", 15_000.0),
    ("hash", 4000.0),
    ("copy", 8000.0),
    ("sort", 6000.0),
    ("emit", 4000.0),
    ("alloc", 2000.0),
    ("free", 800.0),
    ("log", 200.0),
];

/// The program with one function changed.
pub(super) fn changed(name: &str, factor: f64) -> Vec<(&'static str, f64)> {
    PROGRAM.iter().map(|(of, cost)| (*of, if *of == name { cost * factor } else { *cost })).collect()
}

fn compared(new: &[(&str, f64)], count: usize, noise: f64, seed: u64) -> Comparison {
    let (mut stacks, mut random) = (SharedStacks::new(), SplitMix64::new(seed));
    let old = runs(&mut stacks, &PROGRAM, count, noise, &mut random);
    let new = runs(&mut stacks, new, count, noise, &mut random);
    compare(stacks, &old, &new, &DiffOptions::default()).expect("comparable")
}

/// The same of runs in turns, in which the machine's speed changes by 3 % from turn to turn.
fn compared_in_turns(new: &[(&str, f64)], count: usize, seed: u64) -> Comparison {
    let (mut stacks, mut random) = (SharedStacks::new(), SplitMix64::new(seed));
    let mut old = runs(&mut stacks, &PROGRAM, count, 0.01, &mut random);
    let mut new = runs(&mut stacks, new, count, 0.01, &mut random);
    for (turn, (old, new)) in (0..).zip(old.iter_mut().zip(&mut new)) {
        let speed = 1.0 + 0.03 * normal(&mut random);
        let is_new_first = random.below(2) == 1;
        for (run, is_second) in [(old, is_new_first), (new, !is_new_first)] {
            run.total *= speed;
            run.nodes.iter_mut().for_each(|(_, cost)| *cost *= speed);
            run.facts.host = "host".into();
            run.facts.first_ns = 20 * turn + 10 * u64::from(is_second);
            run.facts.last_ns = run.facts.first_ns + 9;
        }
    }
    compare(stacks, &old, &new, &DiffOptions::default()).expect("comparable")
}

pub(super) fn verdict_of(comparison: &Comparison, name: &str) -> EffectVerdict {
    comparison.effects.iter().find(|effect| effect.name == name).expect("tested").verdict
}

/// Checks D2: of 400 comparisons of equal sides at most one in twenty reports any difference,
/// whether the runs were made in turns or not.
#[test]
fn equal_sides_rarely_differ() {
    let says = |found: Comparison| {
        let verdicts = [EffectVerdict::Regression, EffectVerdict::Improvement, EffectVerdict::Moved];
        verdicts.iter().any(|verdict| found.count(*verdict) > 0 || found.total.verdict == *verdict)
    };
    let alarms = (0..400).filter(|seed| says(compared(&PROGRAM, 10, 0.02, *seed))).count();
    assert!(alarms <= 20, "{alarms} of 400");
    let alarms = (0..400).filter(|seed| says(compared_in_turns(&PROGRAM, 10, *seed))).count();
    assert!(alarms <= 20, "{alarms} of 400 in turns");
}

/// Checks that a change which hides behind the machine's speed is found where runs were made in
/// turns, with intervals that hold it in 93 to 97 % of comparisons; that this is said; and that the
/// same runs without their turns rarely find it.
#[test]
fn turns_tell_changes_from_the_speed_of_the_machine() {
    let changed = changed("hash", 1.05);
    let hash = |found: &Comparison| found.effects.iter().find(|effect| effect.name == "hash").cloned();
    let (mut found, mut held) = (0, 0);
    for seed in 0..1000 {
        let compared = compared_in_turns(&changed, 10, seed);
        let hash = hash(&compared).expect("tested");
        let relative = hash.of_itself.expect("both have it");
        found += usize::from(hash.verdict == EffectVerdict::Regression);
        held += usize::from(relative.low <= 0.05 && 0.05 <= relative.high);
        assert!(compared.in_turns && compared.notes.iter().any(|note| note.contains("in turns")));
    }
    assert!(found >= 900 && (930..=970).contains(&held), "{found} found and {held} held of 1000");
    let apart = (0..100).filter(|seed| {
        let apart = compared(&changed, 10, 0.03, *seed);
        !apart.in_turns && hash(&apart).expect("tested").verdict == EffectVerdict::Regression
    });
    assert!(apart.count() < 80);
}

/// Checks that five percent more of a function with a tenth of the cost, and twenty percent more of
/// one with a fiftieth, are found in nine of ten trials of ten runs.
#[test]
fn seeded_regressions_are_found() {
    for (name, factor) in [("hash", 1.05), ("free", 1.2)] {
        let is_found = |seed: &u64| {
            let found = compared(&changed(name, factor), 10, 0.01, *seed);
            verdict_of(&found, name) == EffectVerdict::Regression
                && found.verdict == OverallVerdict::Regression
        };
        let found = (0..100).filter(is_found).count();
        assert!(found >= 90, "{name}: {found} of 100");
    }
}

/// Checks that the intervals of a changed function hold the change in 93 to 97 % of comparisons.
#[test]
fn intervals_of_comparisons_hold_the_truth() {
    let holds = |seed: &u64| {
        let found = compared(&changed("hash", 1.2), 10, 0.02, 1000 + *seed);
        let hash = found.effects.iter().find(|effect| effect.name == "hash").expect("tested");
        let relative = hash.of_itself.expect("both have it");
        relative.low <= 0.2 && 0.2 <= relative.high
    };
    let held = (0..1000).filter(holds).count();
    assert!((930..=970).contains(&held), "{held} of 1000");
}

/// Checks what is said of a change in each direction, of none, and of noise that hides one.
#[test]
fn verdicts_of_whole_comparisons() {
    let worse = compared(&changed("hash", 1.5), 10, 0.005, 1);
    assert_eq!(worse.verdict, OverallVerdict::Regression);
    assert_eq!(
        (verdict_of(&worse, "hash"), worse.effects[0].name.as_str()),
        (EffectVerdict::Regression, "hash")
    );
    assert_eq!(worse.total.verdict, EffectVerdict::Regression);
    let better = compared(&changed("hash", 0.5), 10, 0.005, 2);
    assert_eq!(
        (better.verdict, verdict_of(&better, "hash")),
        (OverallVerdict::NoRegression, EffectVerdict::Improvement)
    );
    let same = compared(&PROGRAM, 10, 0.003, 3);
    assert_eq!((same.verdict, same.more_runs), (OverallVerdict::NoRegression, None));
    assert_eq!(same.untested, 0);
    let noisy = compared(&PROGRAM, 3, 0.1, 4);
    assert_eq!(noisy.verdict, OverallVerdict::Undecided);
}

/// Checks that a function which only the new build has, of a program with another file name, has
/// the new file's name.
#[test]
fn a_new_function_is_in_the_new_file() {
    let (mut stacks, mut random) = (SharedStacks::new(), SplitMix64::new(10));
    let in_file = |file: &'static str| move |_: usize, name: &str| (file.to_owned(), name.to_owned());
    let with_more = [&PROGRAM[..], &[("extra", 20_000.0)]].concat();
    let old = labelled_runs(&mut stacks, &PROGRAM, 5, 0.01, &mut random, in_file("wren-1"));
    let new = labelled_runs(&mut stacks, &with_more, 5, 0.01, &mut random, in_file("wren-2"));
    let found = compare(stacks, &old, &new, &DiffOptions::default()).expect("comparable");
    let module = |name: &str| {
        found.effects.iter().find(|effect| effect.name == name).map(|effect| effect.module.clone())
    };
    assert_eq!((module("extra").as_deref(), module("parse").as_deref()), (Some("wren-2"), Some("wren-1")));
    assert_eq!(found.verdict, OverallVerdict::Regression);
}

/// Checks that shares of one function say nothing of others, and of the whole.
#[test]
fn shares_have_no_whole_to_test() {
    let (mut stacks, mut random) = (SharedStacks::new(), SplitMix64::new(5));
    let old = runs(&mut stacks, &PROGRAM, 10, 0.1, &mut random);
    let new = runs(&mut stacks, &PROGRAM, 10, 0.1, &mut random);
    let options = DiffOptions { weight: CostWeight::Share, ..DiffOptions::default() };
    let found = compare(stacks, &old, &new, &options).expect("comparable");
    assert_eq!(found.total.discovery_rate, None);
    assert!((found.total.old - 1.0).abs() < 1e-12);
    assert_eq!(found.verdict, OverallVerdict::NoRegression, "noise of the whole does not matter");
}

/// Checks that a cost per unit of work does not see twice the work, and that a call that is now
/// inlined is reported at its caller.
#[test]
fn work_and_moved_costs() {
    let (mut stacks, mut random) = (SharedStacks::new(), SplitMix64::new(6));
    let mut old = runs(&mut stacks, &PROGRAM, 8, 0.003, &mut random);
    let doubled: Vec<(&str, f64)> = PROGRAM.iter().map(|(name, cost)| (*name, 2.0 * cost)).collect();
    let mut new = runs(&mut stacks, &doubled, 8, 0.003, &mut random);
    old.iter_mut().for_each(|run| run.work = Some(100.0));
    new.iter_mut().for_each(|run| run.work = Some(200.0));
    let options = DiffOptions { weight: CostWeight::PerWork, ..DiffOptions::default() };
    let found = compare(stacks, &old, &new, &options).expect("comparable");
    assert_eq!(found.verdict, OverallVerdict::NoRegression);

    let (mut stacks, mut random) = (SharedStacks::new(), SplitMix64::new(7));
    let with_main = |parts: &[(&'static str, f64)]| [&PROGRAM[..], parts].concat();
    let before = with_main(&[("main", 2000.0), ("mix", 6000.0)]);
    let after = with_main(&[("main", 8000.0)]);
    let old = runs(&mut stacks, &before, 8, 0.003, &mut random);
    let new = runs(&mut stacks, &after, 8, 0.003, &mut random);
    let found = compare(stacks, &old, &new, &DiffOptions::default()).expect("comparable");
    assert_eq!(found.moved.len(), 1, "{:?}", found.effects);
    let moved = &found.moved[0];
    assert_eq!((&*moved.callee, moved.inlined, &moved.callers[..]), ("mix", true, &["main".to_owned()][..]));
    assert_eq!(verdict_of(&found, "mix"), EffectVerdict::Moved);
    assert_eq!(found.verdict, OverallVerdict::NoRegression);
}

/// One run of so many blocks of time.
pub(super) fn run_of(blocks: &[RunSums]) -> RunSums {
    let mut run = blocks[0].clone();
    run.total = blocks.iter().map(|block| block.total).sum();
    run.facts.samples = blocks.iter().map(|block| block.facts.samples).sum();
    run.nodes = Vec::new();
    for (node, cost) in blocks.iter().flat_map(|block| &block.nodes) {
        match run.nodes.iter_mut().find(|(known, _)| known == node) {
            Some((_, sum)) => *sum += cost,
            None => run.nodes.push((*node, *cost)),
        }
    }
    let block = |of: &RunSums| BlockSums { total: of.total, nodes: of.nodes.clone(), ..BlockSums::default() };
    run.blocks = blocks.iter().map(block).collect();
    run
}

/// Checks that one run a side is compared by its blocks of time, and that this is said.
#[test]
fn one_run_a_side_is_compared_by_blocks() {
    let (mut stacks, mut random) = (SharedStacks::new(), SplitMix64::new(8));
    let mut one =
        |functions: &[(&str, f64)]| vec![run_of(&runs(&mut stacks, functions, 32, 0.02, &mut random))];
    let (old, new) = (one(&PROGRAM), one(&changed("hash", 1.5)));
    let options = DiffOptions { weight: CostWeight::Share, ..DiffOptions::default() };
    let found = compare(stacks, &old, &new, &options).expect("comparable");
    assert_eq!(verdict_of(&found, "hash"), EffectVerdict::Regression);
    assert!(found.notes.iter().any(|note| note.starts_with("one run a side")), "{:?}", found.notes);
    assert!(found.effects[0].old_runs.is_empty());
}

/// Reads the recording of the fixtures.
fn fixture(stacks: &mut SharedStacks, blocks: bool) -> RunSums {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/recordings/callgraph.data");
    let file = std::fs::File::open(path).expect("a fixture");
    let recording = Recording::open(Arc::new(file), Vec::new()).expect("a recording");
    let store = SymbolStore::new(SymbolOptions::default());
    let options = RunOptions { blocks, ..RunOptions::default() };
    RunSums::read(&recording, "callgraph.data", &options, stacks, &store, &|_, _, _| {}).expect("a run")
}

/// Checks D3 and D4 on a real recording: it does not differ from itself, its functions add up to
/// the whole, as its paths do, blocks add up to the run, and a second comparison says the same.
#[test]
fn a_recording_does_not_differ_from_itself() {
    let mut stacks = SharedStacks::new();
    let (old, new) = (vec![fixture(&mut stacks, true)], vec![fixture(&mut stacks, true)]);
    let sum = |costs: &[(u32, f64)]| costs.iter().map(|(_, cost)| cost).sum::<f64>();
    assert!(old[0].total > 0.0 && (sum(&old[0].nodes) - old[0].total).abs() < 1.0);
    assert_eq!(old[0].blocks.len(), bootstrap::BLOCKS);
    let of_blocks: f64 = old[0].blocks.iter().map(|block| block.total).sum();
    assert!((of_blocks - old[0].total).abs() < 1.0);
    let options = DiffOptions { weight: CostWeight::Share, least_share: 0.0, ..DiffOptions::default() };
    let found = compare(stacks, &old, &new, &options).expect("comparable");
    let shares: f64 = found.effects.iter().map(|effect| effect.old).sum();
    assert!((shares - 1.0).abs() < 1e-9, "{shares}");
    assert!(found.effects.iter().all(|effect| effect.change.estimate == 0.0));
    assert_ne!(found.verdict, OverallVerdict::Regression);
    let of_paths = ComparedTree::new(&found, TreeStart::Outermost, "").whole();
    assert!((of_paths.old - 1.0).abs() < 1e-9 && (of_paths.new - 1.0).abs() < 1e-9, "{of_paths:?}");
    let mut stacks = SharedStacks::new();
    let (old, new) = (vec![fixture(&mut stacks, true)], vec![fixture(&mut stacks, true)]);
    assert_eq!(compare(stacks, &old, &new, &options).expect("comparable"), found);
}

/// Checks that names of functions cannot break a form: each is escaped in its own way.
#[test]
fn hostile_names_stay_names() {
    let hostile = "a|b<script>\"&\u{1b}[31m;c `x`";
    let program: Vec<(&str, f64)> = [&PROGRAM[..], &[(hostile, 5000.0)]].concat();
    let (mut stacks, mut random) = (SharedStacks::new(), SplitMix64::new(9));
    let old = runs(&mut stacks, &PROGRAM, 5, 0.003, &mut random);
    let new = runs(&mut stacks, &program, 5, 0.003, &mut random);
    let found = compare(stacks, &old, &new, &DiffOptions::default()).expect("comparable");
    let written = |write: &dyn Fn(&mut Vec<u8>)| {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).expect("text")
    };
    let text = written(&|out| write_text(out, &found, 20, true).expect("written"));
    assert!(text.contains("appeared") && !text.contains('\u{1b}'), "{text}");
    let markdown = written(&|out| write_markdown(out, &found, 20, false).expect("written"));
    assert!(markdown.contains("a\\|b&lt;script&gt;") && !markdown.contains("<script>"), "{markdown}");
    let junit = written(&|out| write_junit(out, &found).expect("written"));
    assert!(junit.contains("a|b&lt;script&gt;&quot;&amp;") && junit.contains("<failure message="), "{junit}");
    let json = written(&|out| write_json(out, &found).expect("written"));
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&json["schema"], &json["effects"][0]["name"]), (&"kymo-diff".into(), &hostile.into()));
    for side in [FlameSide::Old, FlameSide::New] {
        let svg = written(&|out| write_flamegraph(out, &found, side).expect("drawn"));
        assert_eq!(svg.contains("a|b"), side == FlameSide::New);
        assert!(svg.contains("parse") && !svg.contains("<script>a"));
    }
    let page = written(&|out| write_page(out, &found).expect("written"));
    assert!(page.contains("a|b\\u003cscript\\u003e") && !page.contains("a|b<script"));
}

/// Checks the data of the page: both sides have the same nodes, their sums are the mean costs, and
/// the change of a function is that of the table.
#[test]
fn the_page_has_both_sides() {
    for weight in [CostWeight::Absolute, CostWeight::Share] {
        let (mut stacks, mut random) = (SharedStacks::new(), SplitMix64::new(1));
        let old = runs(&mut stacks, &PROGRAM, 5, 0.003, &mut random);
        let new = runs(&mut stacks, &changed("hash", 1.5), 5, 0.003, &mut random);
        let options = DiffOptions { weight, ..DiffOptions::default() };
        let found = compare(stacks, &old, &new, &options).expect("comparable");
        let mut page = Vec::new();
        write_page(&mut page, &found).expect("written");
        let page = String::from_utf8(page).expect("text");
        let data = page.split("id=\"profile\">").nth(1).and_then(|rest| rest.split("</script>").next());
        let data: serde_json::Value = serde_json::from_str(data.expect("data")).expect("JSON");
        let [now, before] = [&data["events"][0], &data["events"][1]];
        assert_eq!(now["name"].as_str().map(|name| name.ends_with("new side")), Some(true));
        for column in ["count", "parent", "function"] {
            assert_eq!(now["nodes"][column], before["nodes"][column], "{column}");
        }
        if weight == CostWeight::Absolute {
            for (event, mean) in [(now, found.total.new), (before, found.total.old)] {
                let sum = event["period"].as_f64().expect("a sum");
                assert!((sum - mean).abs() <= found.paths.list.len() as f64, "{sum} {mean}");
            }
        }
        let hash = found.paths.functions.iter().position(|label| label.name == "hash").expect("a function");
        let functions = data["compared"].as_array().expect("a list");
        let hash = functions.iter().find(|one| one["function"] == hash).expect("tested");
        assert_eq!(hash["verdict"], "regression", "{hash}");
        assert!(hash["change"].as_str().is_some_and(|change| change.starts_with('+')), "{hash}");
    }
}
