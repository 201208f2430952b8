//! What a comparison says as text: costs, changes, and sentences. Tables, pages and the browser in
//! the terminal say the same.
use super::{
    Comparison, CostPair, CostWeight, Effect, EffectVerdict, Interval, MovedCost, OverallVerdict, Subject,
};
use crate::wall::time;

impl Comparison {
    /// What is compared: the event, the kind of cost, and the recordings of both sides.
    pub fn title(&self) -> String {
        let runs = |names: &[String]| match names {
            [only] => only.clone(),
            many => format!("{} runs", many.len()),
        };
        let weight = match self.weight {
            CostWeight::Absolute => "cost of a run",
            CostWeight::Share => "share of the run's cost",
            CostWeight::PerWork => "cost per unit of work",
        };
        format!("{}, {weight}: {} (old) and {} (new)", self.event, runs(&self.old), runs(&self.new))
    }

    /// What the comparison says, in one sentence.
    pub fn verdict_sentence(&self) -> String {
        let count = |verdict| self.count(verdict);
        let costs = |count| match count {
            1 => format!("1 {} costs", self.subject.singular()),
            many => format!("{many} {} cost", self.subject.plural()),
        };
        let differing = match (count(EffectVerdict::Regression), count(EffectVerdict::Improvement)) {
            (0, 0) => String::new(),
            (worse, 0) => format!(": {} more", costs(worse)),
            (0, better) => format!(": {} less", costs(better)),
            (worse, better) => format!(": {} more, {better} less", costs(worse)),
        };
        match self.verdict {
            OverallVerdict::Regression => format!("Regression{differing}"),
            OverallVerdict::NoRegression => format!("No regression{differing}"),
            OverallVerdict::Undecided => {
                let needed = match self.more_runs {
                    Some(1) => "; 1 run more a side would decide it".to_owned(),
                    Some(more) => format!("; {more} runs more a side would decide it"),
                    None if self.old.len().min(self.new.len()) < 2 => {
                        "; several runs a side are needed".to_owned()
                    }
                    None => "; a thousand runs more would not decide it".to_owned(),
                };
                format!("Undecided{differing}{needed}")
            }
        }
    }

    /// A sentence for each of [`Comparison::moved`].
    pub fn moved_sentences(&self) -> Vec<String> {
        let sentence = |moved: &MovedCost| {
            let callers = moved.callers.join(", ");
            let way = match moved.inlined {
                _ if moved.beside => {
                    format!("cost moved between {}, {callers}: functions were split or joined", moved.callee)
                }
                true => format!("{} is inlined into {callers} in the new build", moved.callee),
                false => format!("{} is no longer inlined into {callers} in the new build", moved.callee),
            };
            match &moved.ancestor {
                Some(ancestor) => format!("{way}: what counts is {} and what it calls", ancestor.name),
                None => format!("{way}; they have no function in common"),
            }
        };
        self.moved.iter().map(sentence).collect()
    }

    /// How many rows were not tested; none where all were.
    pub fn untested_sentence(&self) -> Option<String> {
        let what = self.subject.plural();
        (self.untested > 0).then(|| format!("not tested: {} {what} with too little cost", self.untested))
    }

    /// A cost, weighted as those of the comparison: `219.00 ms`, `11.35%`.
    pub fn cost_text(&self, cost: f64) -> String {
        match self.weight {
            CostWeight::Share => format!("{:.2}%", 100.0 * cost),
            _ if self.unit == "ns" && cost >= 1.0 => time(cost as u64),
            _ if self.unit == "ns" => format!("{cost:.2} ns"),
            _ if cost >= 1000.0 => format!("{cost:.0}"),
            _ => format!("{cost:.2}"),
        }
    }

    /// A change of cost with its interval: `+51.18 ms (+42.30 ms to +60.06 ms)`.
    pub fn change_text(&self, change: Interval) -> String {
        let [estimate, low, high] = [change.estimate, change.low, change.high].map(|part| {
            let sign = if part < 0.0 { '-' } else { '+' };
            format!("{sign}{}", self.cost_text(part.abs()))
        });
        format!("{estimate} ({low} to {high})")
    }
}

impl Subject {
    fn singular(self) -> &'static str {
        self.plural().trim_end_matches('s')
    }

    /// Several of them, in words.
    pub fn plural(self) -> &'static str {
        match self {
            Subject::Functions | Subject::Inclusive => "functions",
            Subject::Paths => "paths",
            Subject::Lines => "lines",
            Subject::Modules => "modules",
        }
    }
}

impl Effect {
    /// The mean costs.
    pub fn costs(&self) -> CostPair {
        CostPair { old: self.old, new: self.new }
    }

    /// The change of itself with its interval, `appeared` or `vanished`.
    pub fn of_itself_text(&self) -> String {
        self.of_itself.map_or_else(|| self.costs().of_itself_text(), Interval::percent_text)
    }
}

impl CostPair {
    /// New divided by old, minus one, as `+4.8%`; `appeared` or `vanished` where one side has
    /// nothing, and empty where both have nothing.
    pub fn of_itself_text(self) -> String {
        match (self.old > 0.0, self.new > 0.0) {
            (true, true) => format!("{}%", percent_text(self.new / self.old - 1.0)),
            (false, true) => "appeared".to_owned(),
            (true, false) => "vanished".to_owned(),
            (false, false) => String::new(),
        }
    }

    /// The change as a part of the old side's whole cost, as `+3.5%`; empty where that has none.
    pub fn of_whole_text(self, whole: f64) -> String {
        match whole > 0.0 {
            true => format!("{}%", percent_text(self.change() / whole)),
            false => String::new(),
        }
    }
}

impl Interval {
    /// As percentages: `+4.8% (+4.1 to +5.5)`.
    pub fn percent_text(self) -> String {
        let [estimate, low, high] = [self.estimate, self.low, self.high].map(percent_text);
        format!("{estimate}% ({low} to {high})")
    }
}

/// A part as a percentage with its sign; a large one does not have decimals.
fn percent_text(part: f64) -> String {
    let percent = 100.0 * part;
    if percent.abs() < 99.95 { format!("{percent:+.1}") } else { format!("{percent:+.0}") }
}

/// A false-discovery rate or a p-value: `0.083`, `<0.001`.
pub fn rate_text(rate: f64) -> String {
    if rate < 0.001 { "<0.001".to_owned() } else { format!("{rate:.3}") }
}

/// The module that is to be said beside a name; none where the name is the module's.
pub fn module_beside_name<'a>(name: &str, module: &'a str) -> Option<&'a str> {
    let is_module =
        name == module || name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) == Some(module);
    (!is_module).then_some(module)
}
