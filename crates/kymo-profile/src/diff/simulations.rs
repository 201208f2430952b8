//! Comparisons by the hundred of programs whose change is known: how often each kind of change, and
//! of what is none, leads to a false verdict, and how often a change is found.
//!
//! `KYMO_SIMULATIONS=1000` makes as many of each kind, and prints the figures.
use super::run::{RunFacts, SamplingRate};
use super::tests::{PROGRAM, changed, labelled_runs, run_of, runs};
use super::*;

/// How many comparisons of each kind.
fn simulations() -> u64 {
    std::env::var("KYMO_SIMULATIONS").ok().and_then(|count| count.parse().ok()).unwrap_or(60)
}

/// One comparison, and what is true of it.
struct Simulated {
    found: Comparison,
    /// The only functions that may be a regression, and an improvement.
    worse: &'static [&'static str],
    better: &'static [&'static str],
}

impl Simulated {
    /// Whether it says that something costs more which does not: of the whole, or of a function.
    fn is_false(&self) -> bool {
        let is_regression = |effect: &Effect| effect.verdict == EffectVerdict::Regression;
        let is_other = |effect: &Effect| is_regression(effect) && !self.worse.contains(&&*effect.name);
        let of_whole = self.found.verdict == OverallVerdict::Regression && self.worse.is_empty();
        of_whole || self.found.effects.iter().any(is_other)
    }

    /// Whether it says that a function costs less which does not.
    fn is_falsely_better(&self) -> bool {
        let is_improvement = |effect: &Effect| effect.verdict == EffectVerdict::Improvement;
        let is_other = |effect: &Effect| is_improvement(effect) && !self.better.contains(&&*effect.name);
        self.found.effects.iter().any(is_other)
    }

    /// Whether everything that is true is said.
    fn is_found(&self) -> bool {
        let has = |verdict, name: &&str| {
            self.found.effects.iter().any(|effect| effect.verdict == verdict && effect.name == **name)
        };
        self.worse.iter().all(|name| has(EffectVerdict::Regression, name))
            && self.better.iter().all(|name| has(EffectVerdict::Improvement, name))
    }
}

/// Checks a kind: at most one verdict in twenty is false, give or take chance, and of a hundred
/// changes at least so many are found.
fn check(kind: &str, least_found: u64, simulate: impl Fn(u64) -> Simulated) {
    let count = simulations();
    let (mut wrong, mut better, mut found, mut notes) = (0, 0, 0, Vec::new());
    for seed in 0..count {
        let simulated = simulate(seed);
        found += u64::from(simulated.is_found());
        better += u64::from(simulated.is_falsely_better());
        if simulated.is_false() {
            wrong += 1;
            notes.push(format!("{seed}: {} {:?}", simulated.found.verdict_sentence(), simulated.found.notes));
        }
    }
    eprintln!("{kind}: {wrong} of {count} false ({better} falsely better), {found} of {count} found");
    // Three standard deviations beside one in twenty.
    let most = 0.05 * count as f64 + 3.0 * (0.0475 * count as f64).sqrt();
    assert!(better as f64 <= most, "{kind}: {better} of {count} are falsely better");
    assert!(wrong as f64 <= most, "{kind}: {wrong} of {count} are false: {notes:#?}");
    assert!(100 * found >= least_found * count, "{kind}: {found} of {count} found");
}

/// Ten runs a side of two programs.
fn ten_runs(
    new: &[(&str, f64)],
    noise: f64,
    weight: CostWeight,
    seed: u64,
    change: impl Fn(&mut SplitMix64, &mut Vec<RunSums>, &mut Vec<RunSums>),
) -> Comparison {
    let (mut stacks, mut random) = (SharedStacks::new(), SplitMix64::new(seed));
    let mut old_runs = runs(&mut stacks, &PROGRAM, 10, noise, &mut random);
    let mut new_runs = runs(&mut stacks, new, 10, noise, &mut random);
    change(&mut random, &mut old_runs, &mut new_runs);
    let options = DiffOptions { weight, ..DiffOptions::default() };
    compare(stacks, &old_runs, &new_runs, &options).expect("comparable")
}

fn nothing(_: &mut SplitMix64, _: &mut Vec<RunSums>, _: &mut Vec<RunSums>) {}

/// Multiplies the cost of a run.
fn scale(run: &mut RunSums, factor: f64) {
    run.total *= factor;
    run.nodes.iter_mut().for_each(|(_, cost)| *cost *= factor);
}

/// Checks that a faster function is an improvement of it alone, also of shares, which rise of all
/// others, and of one run a side.
#[test]
fn a_faster_function_is_no_regression_of_others() {
    for (weight, name) in [(CostWeight::Absolute, "absolute"), (CostWeight::Share, "shares")] {
        for noise in [0.01, 0.05] {
            check(&format!("faster, {name}, noise {noise}"), if noise < 0.02 { 95 } else { 90 }, |seed| {
                let found = ten_runs(&changed("parse", 0.5), noise, weight, seed, nothing);
                Simulated { found, worse: &[], better: &["parse"] }
            });
        }
    }
    check("faster, one run a side", 95, |seed| one_run_a_side(&changed("parse", 0.5), seed, &[], &["parse"]));
    check("most of it faster, shares", 95, |seed| {
        let found = ten_runs(&changed("parse", 0.1), 0.01, CostWeight::Share, seed, nothing);
        Simulated { found, worse: &[], better: &["parse"] }
    });
}

/// One run a side, each of 32 blocks.
fn one_run_a_side(
    new: &[(&str, f64)],
    seed: u64,
    worse: &'static [&'static str],
    better: &'static [&'static str],
) -> Simulated {
    let (mut stacks, mut random) = (SharedStacks::new(), SplitMix64::new(seed));
    let old = [run_of(&runs(&mut stacks, &PROGRAM, 32, 0.02, &mut random))];
    let new = [run_of(&runs(&mut stacks, new, 32, 0.02, &mut random))];
    let options = DiffOptions { weight: CostWeight::Share, ..DiffOptions::default() };
    Simulated { found: compare(stacks, &old, &new, &options).expect("comparable"), worse, better }
}

/// Checks that ten percent more in a function with a fifth of the cost is found, in it alone,
/// absolute and in shares.
#[test]
fn a_slower_function_is_found() {
    for (weight, name) in [(CostWeight::Absolute, "absolute"), (CostWeight::Share, "shares")] {
        for (noise, least) in [(0.0, 95), (0.01, 95)] {
            check(&format!("slower, {name}, noise {noise}"), least, |seed| {
                let found = ten_runs(&changed("copy", 1.1), noise, weight, seed, nothing);
                Simulated { found, worse: &["copy"], better: &[] }
            });
        }
    }
    check("slower, one run a side", 90, |seed| one_run_a_side(&changed("copy", 1.1), seed, &["copy"], &[]));
    check("equal, shares", 0, |seed| {
        let found = ten_runs(&PROGRAM, 0.02, CostWeight::Share, seed, nothing);
        Simulated { found, worse: &[], better: &[] }
    });
}

/// Checks that a function with another name or signature is no regression, and one that is also
/// slower is a regression of it.
#[test]
fn a_renamed_function_is_no_regression() {
    let renamed = |name: &'static str, factor: f64| -> Vec<(&'static str, f64)> {
        let row = |(of, cost): &(&'static str, f64)| match *of {
            "copy" => (name, cost * factor),
            _ => (*of, *cost),
        };
        PROGRAM.iter().map(row).collect()
    };
    for weight in [CostWeight::Absolute, CostWeight::Share] {
        for name in ["copy_v2", "app::detail::copy(unsigned long, int)", "transfer"] {
            check(&format!("rename to {name}"), 100, |seed| {
                let found = ten_runs(&renamed(name, 1.0), 0.01, weight, seed, nothing);
                assert_eq!(found.renamed.len(), 1, "{:?}", found.renamed);
                Simulated { found, worse: &[], better: &[] }
            });
        }
        check("rename and slower", 95, |seed| {
            let found = ten_runs(&renamed("copy_v2", 1.2), 0.01, weight, seed, nothing);
            Simulated { found, worse: &["copy_v2"], better: &[] }
        });
    }
}

/// Checks that a function that was split into two, one that lost a part to a new one, and two that
/// became one are no regression.
#[test]
fn a_split_function_is_no_regression() {
    let with = |parts: &[(&'static str, f64)]| -> Vec<(&'static str, f64)> {
        let rest = PROGRAM.iter().filter(|(name, _)| *name != "copy").copied();
        rest.chain(parts.iter().copied()).collect()
    };
    for weight in [CostWeight::Absolute, CostWeight::Share] {
        for parts in [
            &[("copy_head", 3500.0), ("copy_tail", 4500.0)][..],
            &[("copy", 4800.0), ("copy_tail", 3200.0)],
            &[("a", 2600.0), ("b", 2700.0), ("c", 2700.0)],
        ] {
            check(&format!("split into {parts:?}"), 100, |seed| {
                let found = ten_runs(&with(parts), 0.01, weight, seed, nothing);
                Simulated { found, worse: &[], better: &[] }
            });
        }
    }
    check("two become one", 100, |seed| {
        let (mut stacks, mut random) = (SharedStacks::new(), SplitMix64::new(seed));
        let old = runs(&mut stacks, &with(&[("head", 3500.0), ("tail", 4500.0)]), 10, 0.01, &mut random);
        let new = runs(&mut stacks, &with(&[("both", 8000.0)]), 10, 0.01, &mut random);
        let found = compare(stacks, &old, &new, &DiffOptions::default()).expect("comparable");
        Simulated { found, worse: &[], better: &[] }
    });
}

/// Where the runs of a side stand.
type Places = fn(u64) -> u64;

/// Makes a machine that becomes slower from run to run. `places`: where the runs of both sides
/// stand.
fn with_trend((old, new): (&mut [RunSums], &mut [RunSums]), per_run: f64, places: (Places, Places)) {
    for (runs, place) in [(old, places.0), (new, places.1)] {
        for (at, run) in (0..).zip(runs) {
            let place = place(at);
            scale(run, 1.0 + per_run * place as f64);
            run.facts.host = "host".into();
            (run.facts.first_ns, run.facts.last_ns) = (10 * place, 10 * place + 9);
        }
    }
}

/// Checks that a machine that becomes slower or faster from run to run is no regression: of runs
/// that were made one side after the other and of runs that alternate, and that a change beside
/// such a trend is found where runs alternate.
#[test]
fn a_trend_is_no_regression() {
    let orders: [(&str, Places, Places); 2] =
        [("one after the other", |at| at, |at| at + 10), ("alternating", |at| 2 * at, |at| 2 * at + 1)];
    for (name, of_old, of_new) in orders {
        for per_run in [0.0, 0.001, 0.005, 0.02, -0.005] {
            check(&format!("trend of {per_run} a run, {name}"), 0, |seed| {
                let found = ten_runs(&PROGRAM, 0.005, CostWeight::Absolute, seed, |_, old, new| {
                    with_trend((old, new), per_run, (of_old, of_new));
                });
                let is_said = found.notes.iter().any(|note| note.contains("one side were made after"));
                assert_eq!(is_said, name.starts_with("one"), "{:?}", found.notes);
                assert!(found.trend.is_some());
                Simulated { found, worse: &[], better: &[] }
            });
            check(&format!("change beside a trend of {per_run} a run, {name}"), 95, |seed| {
                let slower = changed("copy", 1.1);
                let found = ten_runs(&slower, 0.005, CostWeight::Absolute, seed, |_, old, new| {
                    with_trend((old, new), per_run, (of_old, of_new));
                });
                Simulated { found, worse: &["copy"], better: &[] }
            });
        }
    }
}

/// Checks that one run that cost four times as much, or a fifth, hides nothing and is no verdict,
/// and that it is named.
#[test]
fn one_wild_run_hides_nothing() {
    for factor in [4.0, 0.2] {
        for (new, worse) in [(PROGRAM.to_vec(), &[][..]), (changed("copy", 1.1), &["copy"][..])] {
            check(&format!("a run of {factor} times the cost, {worse:?}"), 95, |seed| {
                let found = ten_runs(&new, 0.01, CostWeight::Absolute, seed, |random, old, new| {
                    let side = if random.below(2) == 0 { old } else { new };
                    scale(&mut side[random.below(10)], factor);
                });
                assert!(found.notes.iter().any(|note| note.contains("left out")), "{:?}", found.notes);
                Simulated { found, worse, better: &[] }
            });
        }
    }
}

/// Checks that exact counts that are equal are no difference, that one event more in a thousand is
/// none, and that a tenth more is found.
#[test]
fn exact_counts_are_certain() {
    let exact = |more: f64, runs_a_side: usize, seed: u64| {
        let mut random = SplitMix64::new(seed);
        let mut stacks = SharedStacks::new();
        let mut side = |factor: f64| -> Vec<RunSums> {
            (0..runs_a_side)
                .map(|number| {
                    let mut nodes = Vec::new();
                    for (name, cost) in PROGRAM {
                        let function = stacks.function("app", name);
                        let factor = if name == "copy" { factor } else { 1.0 };
                        nodes.push((stacks.step(super::stacks::NO_NODE, function), (cost * factor).round()));
                    }
                    let total: f64 = nodes.iter().map(|(_, cost)| cost).sum();
                    let first_ns = random.next_bits() >> 8;
                    let facts = RunFacts {
                        name: format!("run {number}"),
                        event: "page-faults".into(),
                        rate: SamplingRate::Period(1),
                        samples: total as u64,
                        all_samples: total as u64,
                        first_ns,
                        last_ns: first_ns + 1000,
                        ..RunFacts::default()
                    };
                    RunSums { facts, total, nodes, ..RunSums::default() }
                })
                .collect()
        };
        let (old, new) = (side(1.0), side(more));
        compare(stacks, &old, &new, &DiffOptions::default()).expect("comparable")
    };
    for runs_a_side in [1, 2, 12] {
        check(&format!("exact counts, {runs_a_side} runs"), 100, |seed| {
            let found = exact(1.0, runs_a_side, seed);
            assert_eq!(found.verdict, OverallVerdict::NoRegression, "{:?}", found.effects);
            let is_none = |effect: &Effect| {
                effect.verdict == EffectVerdict::NoDifference && effect.of_total == Interval::default()
            };
            assert!(is_none(&found.total) && found.effects.iter().all(is_none), "{:?}", found.effects);
            Simulated { found, worse: &[], better: &[] }
        });
    }
    check("exact counts, one more in a thousand", 100, |seed| {
        let found = exact(1.001, 6, seed);
        assert_eq!(found.verdict, OverallVerdict::NoRegression, "{:?}", found.effects);
        Simulated { found, worse: &[], better: &[] }
    });
    check("exact counts, a tenth more", 100, |seed| Simulated {
        found: exact(1.1, 6, seed),
        worse: &["copy"],
        better: &[],
    });
}

/// Checks that a recording that is named several times is one run, which is said once, and that two
/// such sides are compared as one run each.
#[test]
fn a_recording_named_twice_is_one_run() {
    check("duplicated files", 100, |seed| {
        let (mut stacks, mut random) = (SharedStacks::new(), SplitMix64::new(seed));
        let mut side = |name: &str, times: usize| {
            let mut run = run_of(&runs(&mut stacks, &PROGRAM, 32, 0.02, &mut random));
            run.facts.name = name.to_owned();
            run.facts.first_ns = random.next_bits() >> 8;
            run.facts.last_ns = run.facts.first_ns + 10_000_000_000;
            distinct_runs(vec![run; times])
        };
        let ((old, said), (new, _)) = (side("a.data", 4), side("b.data", 3));
        assert_eq!((old.len(), new.len()), (1, 1));
        assert_eq!(said, ["a.data is named 4 times: it is one run"]);
        let options = DiffOptions { weight: CostWeight::Share, ..DiffOptions::default() };
        let found = compare(stacks, &old, &new, &options).expect("comparable");
        Simulated { found, worse: &[], better: &[] }
    });
}

/// Checks that a program with generated code does not differ from itself, though each process has
/// its own module, addresses, tiers, lines and folders; and that a slower function of it is found.
#[test]
fn two_builds_of_a_program_with_generated_code() {
    let label = |is_new: bool| {
        move |run: usize, name: &str| {
            let process = 24_000 + 2 * run + usize::from(is_new);
            let (folder, line) = if is_new { ("new", 14) } else { ("old", 12) };
            let tier = ["", "*", "~", "^"][run % 4];
            let name = match name {
                "parse" | "sort" => format!("JS:{tier}{name} /srv/{folder}/x.js:{line}:5"),
                "hash" | "emit" => format!("py::{name}:/srv/{folder}/x.py"),
                "copy" => format!("L$$Lambda$1/0x00007f{process:010x}.copy"),
                name => name.to_owned(),
            };
            (format!("[JIT] tid {process}"), name)
        }
    };
    for (weight, factor, worse) in [
        (CostWeight::Absolute, 1.0, &[][..]),
        (CostWeight::Share, 1.0, &[][..]),
        (CostWeight::Absolute, 1.1, &["L$$Lambda$1.copy"][..]),
        (CostWeight::Share, 1.1, &["L$$Lambda$1.copy"][..]),
    ] {
        check(&format!("generated code, {weight:?}, {factor}"), 95, |seed| {
            let (mut stacks, mut random) = (SharedStacks::new(), SplitMix64::new(seed));
            let old = labelled_runs(&mut stacks, &PROGRAM, 10, 0.01, &mut random, label(false));
            let new =
                labelled_runs(&mut stacks, &changed("copy", factor), 10, 0.01, &mut random, label(true));
            let options = DiffOptions { weight, ..DiffOptions::default() };
            let found = compare(stacks, &old, &new, &options).expect("comparable");
            assert!(found.effects.len() <= PROGRAM.len(), "{:?}", found.effects);
            Simulated { found, worse, better: &[] }
        });
    }
}

/// Checks that the kernel's interrupts are neither a regression nor undecided.
#[test]
fn interrupts_are_not_judged() {
    check("interrupts", 100, |seed| {
        let (mut stacks, mut random) = (SharedStacks::new(), SplitMix64::new(seed));
        let with = |cost: f64| [&PROGRAM[..], &[("irqentry_exit_to_user_mode", cost)]].concat();
        let label = |_: usize, name: &str| {
            let module = if name.starts_with("irq") { "[kernel.kallsyms]" } else { "app" };
            (module.to_owned(), name.to_owned())
        };
        let old = labelled_runs(&mut stacks, &with(1000.0), 10, 0.002, &mut random, label);
        let new = labelled_runs(&mut stacks, &with(1500.0), 10, 0.002, &mut random, label);
        let found = compare(stacks, &old, &new, &DiffOptions::default()).expect("comparable");
        assert!(found.effects.len() <= PROGRAM.len(), "{:?}", found.effects);
        assert!(found.notes.iter().any(|note| note.contains("irqentry_exit_to_user_mode")));
        // The whole has their cost, and is judged.
        let found = Comparison { verdict: OverallVerdict::NoRegression, ..found };
        Simulated { found, worse: &[], better: &[] }
    });
}
