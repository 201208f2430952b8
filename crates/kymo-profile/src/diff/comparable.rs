//! Whether runs may be compared at all, and what is corrected before they are.
use super::CostWeight;
use super::run::{RunFacts, RunSums, SamplingRate};

/// A throttled event samples nothing until the next tick: at most so many ns (of 100 Hz).
const TICK_NS: u64 = 10_000_000;

/// Why runs must not be compared: sentences, each with what helps.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", reasons.join("; "))]
pub struct NotComparable {
    /// At least one.
    pub reasons: Vec<String>,
}

/// What is said of runs that may be compared, and by what each run's costs are multiplied.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Corrections {
    pub(crate) notes: Vec<String>,
    pub(crate) old: Vec<f64>,
    pub(crate) new: Vec<f64>,
}

/// Checks all runs. `most_loss`: the part of a run's samples that may be lost.
pub(crate) fn check(
    old: &[RunSums],
    new: &[RunSums],
    weight: CostWeight,
    most_loss: f64,
) -> Result<Corrections, NotComparable> {
    let facts = || old.iter().chain(new).map(|run| &run.facts);
    let mut reasons = Vec::new();
    let Some(first) = facts().next().filter(|_| !old.is_empty() && !new.is_empty()) else {
        return Err(NotComparable { reasons: vec!["a side has no recordings".into()] });
    };
    for other in facts().skip(1) {
        reasons.extend(conflict(first, other));
    }
    reasons.extend(
        facts()
            .filter(|facts| facts.is_damaged)
            .map(|facts| format!("{} is cut off or damaged, so its cost is not known", facts.name)),
    );
    let mut notes = Vec::new();
    reasons.extend(facts().filter_map(|facts| lost_too_much(facts, most_loss)));
    reasons.extend(facts().filter_map(|facts| throttled_too_long(facts, most_loss)));
    reasons.dedup();
    if !reasons.is_empty() {
        // Twenty runs of the wrong event are one reason.
        let more = reasons.len().saturating_sub(3);
        reasons.truncate(3);
        if more > 0 {
            reasons.push(format!("and {more} more"));
        }
        return Err(NotComparable { reasons });
    }
    notes.extend(rate_note(old, new));
    notes.extend(loss_note(old, new));
    notes.extend(machine_note(old, new));
    notes.extend(work_note(old, new, weight));
    let by_loss = |runs: &[RunSums]| runs.iter().map(|run| loss_factor(&run.facts)).collect();
    Ok(Corrections { notes, old: by_loss(old), new: by_loss(new) })
}

/// Why the costs of two runs are not of one kind.
fn conflict(one: &RunFacts, other: &RunFacts) -> Option<String> {
    let both = format!("{} and {}", one.name, other.name);
    if one.counts != other.counts || one.event != other.event {
        return Some(format!(
            "{both} sampled different events, {} and {}: name one that both have with -e",
            one.event, other.event
        ));
    }
    if one.excluded != other.excluded {
        return Some(format!(
            "{both} sampled {} with different modifiers (:u, :k): record both in the same way",
            one.event
        ));
    }
    if one.has_callers != other.has_callers {
        return Some(format!("only one of {both} has call chains: record both with -g, or both without"));
    }
    None
}

/// The part of all samples that the kernel dropped.
fn loss(facts: &RunFacts) -> f64 {
    facts.lost as f64 / (facts.lost + facts.all_samples).max(1) as f64
}

fn loss_factor(facts: &RunFacts) -> f64 {
    1.0 / (1.0 - loss(facts)).max(0.5)
}

fn lost_too_much(facts: &RunFacts, most: f64) -> Option<String> {
    let loss = loss(facts);
    (loss > most).then(|| {
        format!(
            "{} lost {:.1} % of its samples, and nobody knows of which functions: record it again with a lower rate (-F), or allow it with --max-loss",
            facts.name,
            100.0 * loss
        )
    })
}

fn throttled_too_long(facts: &RunFacts, most: f64) -> Option<String> {
    let duration_ns = facts.last_ns.saturating_sub(facts.first_ns);
    let time = duration_ns.saturating_mul(u64::from(facts.cpus.max(1))).max(1);
    let silent = facts.throttled.saturating_mul(TICK_NS) as f64 / time as f64;
    (silent > most).then(|| {
        format!(
            "the kernel throttled the event {} times in {}, up to {:.1} % of the time: record it again with a lower rate (-F), or allow it with --max-loss",
            facts.throttled,
            facts.name,
            100.0 * silent
        )
    })
}

/// Different rates do not matter: the cost is the sum of periods.
fn rate_note(old: &[RunSums], new: &[RunSums]) -> Option<String> {
    let first = old.first()?.facts.rate;
    let other = old.iter().chain(new).map(|run| run.facts.rate).find(|rate| *rate != first)?;
    let shown = |rate| match rate {
        SamplingRate::Frequency(hz) => format!("{hz} Hz"),
        SamplingRate::Period(period) => format!("one sample for {period}"),
    };
    Some(format!(
        "the rates differ ({} and {}): costs are sums of periods, which corrects for it",
        shown(first),
        shown(other)
    ))
}

fn loss_note(old: &[RunSums], new: &[RunSums]) -> Option<String> {
    let with_loss: Vec<f64> =
        old.iter().chain(new).map(|run| loss(&run.facts)).filter(|loss| *loss > 0.0).collect();
    let most = with_loss.iter().copied().fold(0.0, f64::max);
    (most > 0.0).then(|| {
        format!(
            "{} of the runs lost samples, up to {:.2} %: their costs are scaled up by it",
            with_loss.len(),
            100.0 * most
        )
    })
}

/// Processors, kernels and hosts that differ.
fn machine_note(old: &[RunSums], new: &[RunSums]) -> Option<String> {
    let first = &old.first()?.facts;
    let facts = || old.iter().chain(new).map(|run| &run.facts);
    let so = "so may the costs, without a change of the program";
    if let Some(other) = facts().find(|facts| facts.machine != first.machine) {
        return Some(format!("the machines differ ({}; {}): {so}", first.machine, other.machine));
    }
    let is_other = |facts: &&RunFacts| !facts.host.is_empty() && facts.host != first.host;
    let other = facts().find(is_other).filter(|_| !first.host.is_empty())?;
    Some(format!("the hosts differ ({} and {}): {so}", first.host, other.host))
}

/// Runs of one side that cost very differently are not one unit of work.
fn work_note(old: &[RunSums], new: &[RunSums], weight: CostWeight) -> Option<String> {
    if weight != CostWeight::Absolute {
        return None;
    }
    let is_uneven = |runs: &[RunSums]| {
        let costs = || runs.iter().map(|run| run.total);
        let (least, most) = (costs().fold(f64::INFINITY, f64::min), costs().fold(0.0, f64::max));
        most > 0.0 && most >= 2.0 * least
    };
    let side = [("old", old), ("new", new)].into_iter().find(|(_, runs)| is_uneven(runs))?.0;
    Some(format!(
        "a run of the {side} side cost more than twice as much as another: if they did not do the same work, use --share or --per"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(change: impl FnOnce(&mut RunFacts)) -> RunSums {
        let mut facts = RunFacts {
            name: "a".into(),
            event: "task-clock".into(),
            counts: (1, 1),
            rate: SamplingRate::Frequency(4000),
            samples: 1000,
            all_samples: 1000,
            last_ns: 1_000_000_000,
            cpus: 2,
            ..RunFacts::default()
        };
        change(&mut facts);
        RunSums { facts, ..RunSums::default() }
    }

    fn checked(new: RunSums) -> Result<Corrections, NotComparable> {
        check(&[run(|_| ())], &[new], CostWeight::Absolute, 0.01)
    }

    /// Checks that runs are refused whose costs mean different things.
    #[test]
    fn different_costs_are_refused() {
        let refusal = |new: RunSums| checked(new).expect_err("not comparable").to_string();
        assert!(refusal(run(|facts| facts.counts = (0, 1))).contains("different events"));
        assert!(refusal(run(|facts| facts.excluded = 1 << 5)).contains("modifiers"));
        assert!(refusal(run(|facts| facts.has_callers = true)).contains("call chains"));
        assert!(refusal(run(|facts| facts.is_damaged = true)).contains("damaged"));
        assert!(refusal(run(|facts| facts.lost = 30)).contains("lost 2.9 %"));
        assert!(refusal(run(|facts| facts.throttled = 3)).contains("throttled"));
        assert!(check(&[], &[run(|_| ())], CostWeight::Share, 0.01).is_err());
    }

    /// Checks that small losses and different rates are corrected, and said.
    #[test]
    fn small_differences_are_corrected_and_said() {
        let same = checked(run(|_| ())).expect("comparable");
        assert_eq!(same, Corrections { notes: vec![], old: vec![1.0], new: vec![1.0] });
        let lossy = checked(run(|facts| facts.lost = 5)).expect("comparable");
        assert!((lossy.new[0] - 1.005).abs() < 1e-12 && lossy.notes[0].contains("0.50 %"), "{lossy:?}");
        let slower = checked(run(|facts| facts.rate = SamplingRate::Frequency(99))).expect("comparable");
        assert!(slower.notes[0].contains("4000 Hz and 99 Hz"), "{slower:?}");
        let other = checked(run(|facts| facts.host = "xx".into())).expect("comparable");
        assert_eq!(other.notes, [""; 0], "a host without a name is no other one");
        let hosts = ["yy", "xx"].map(|host| run(|facts| facts.host = host.into()));
        let [one, other] = hosts.map(|run| [run]);
        let noted = check(&one, &other, CostWeight::Absolute, 0.01).expect("comparable");
        assert!(noted.notes[0].contains("the hosts differ (yy and xx)"), "{noted:?}");
        let of = |total| RunSums { total, ..run(|_| ()) };
        let sides = ([of(1.0), of(1.5)], [of(3.0), of(6.0)]);
        let uneven = check(&sides.0, &sides.1, CostWeight::Absolute, 0.01).expect("comparable");
        assert!(
            uneven.notes[0].contains("of the new side") && uneven.notes[0].contains("--per"),
            "{uneven:?}"
        );
        assert_eq!(check(&sides.0, &sides.1, CostWeight::Share, 0.01).expect("comparable").notes, [""; 0]);
    }
}
