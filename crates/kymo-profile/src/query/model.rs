//! Queries as plain filters over all rows: what answers are held against.
use super::dataset::Dataset;
use super::filter::fits;
use super::{Condition, Filter, FilterField, GroupBy};
use crate::columns::{Row, Thread};
use crate::wall::SpanState;
use std::collections::BTreeMap;

/// A row with all that may be asked of it.
#[derive(Clone, Debug)]
pub(super) struct Plain {
    pub(super) row: Row,
    pub(super) thread: Thread,
    /// Innermost first.
    pub(super) path: Vec<u32>,
}

/// Samples and period.
pub(super) type Pair = (u64, u64);

fn add(to: &mut Pair, more: Pair) {
    *to = (to.0 + more.0, to.1 + more.1);
}

/// All rows.
pub(super) fn rows(data: &Dataset) -> Vec<Plain> {
    let of = |at: usize| {
        let row = data.columns.row(at);
        let mut path = Vec::new();
        data.path(row.stack, row.state, &mut path);
        Plain { row, thread: *data.columns.thread(at), path }
    };
    (0..data.columns.len()).map(of).collect()
}

fn holds(data: &Dataset, condition: &Condition, plain: &Plain) -> bool {
    let any = |fits: &dyn Fn(&str) -> bool| condition.values.iter().any(|value| fits(&value.text));
    let found = match condition.field {
        FilterField::Time if data.is_of_spans() => return true,
        FilterField::Time => {
            condition.spans.iter().any(|(from, to)| (*from..=*to).contains(&plain.row.time_ns))
        }
        FilterField::Event => return true,
        FilterField::Thread => {
            any(&|value| value == plain.thread.tid.to_string() || fits(value, &data.comm(plain.thread.comm)))
        }
        FilterField::Process => any(&|value| value == plain.thread.pid.to_string()),
        FilterField::Cpu => any(&|value| value == plain.row.cpu.to_string()),
        FilterField::State => any(&|value| {
            let state = SpanState::of_number(plain.row.state).expect("a span has a state");
            value == state.state.name() || value == "idle" && state.is_idle()
        }),
        FilterField::Module => {
            any(&|value| plain.path.first().is_some_and(|name| data.names[*name as usize].module == value))
        }
        FilterField::Function => {
            any(&|value| plain.path.iter().any(|name| data.names[*name as usize].name == value))
        }
    };
    found != condition.negated
}

/// What of a row counts.
fn part(data: &Dataset, filter: &Filter, plain: &Plain) -> u64 {
    let Row { time_ns, span_ns, period, .. } = plain.row;
    if !data.is_of_spans() {
        return period;
    }
    let before = |moment: u64| {
        let passed = moment.clamp(time_ns - span_ns, time_ns) - (time_ns - span_ns);
        (u128::from(period) * u128::from(passed) / u128::from(span_ns.max(1))) as u64
    };
    let within = |(from, to): (u64, u64)| match span_ns {
        0 if (from..=to).contains(&time_ns) => period,
        0 => 0,
        _ => before(to.saturating_add(1)) - before(from),
    };
    filter.spans().into_iter().map(within).sum()
}

/// The rows that a filter leaves, with what counts of each.
pub(super) fn filtered(data: &Dataset, filter: &Filter) -> Vec<(Plain, u64)> {
    let all = rows(data).into_iter();
    let left = all.filter(|plain| filter.conditions.iter().all(|condition| holds(data, condition, plain)));
    let parts = left.map(|plain| (part(data, filter, &plain), plain));
    parts.filter(|(part, _)| *part > 0 || !data.is_of_spans()).map(|(part, plain)| (plain, part)).collect()
}

/// Sums by what is counted apart: itself, and in all.
pub(super) fn top(data: &Dataset, rows: &[(Plain, u64)], group: GroupBy) -> BTreeMap<String, [Pair; 2]> {
    let mut sums: BTreeMap<String, [Pair; 2]> = BTreeMap::new();
    for (plain, part) in rows {
        let name = |name: &u32| match group {
            GroupBy::Modules => data.names[*name as usize].module.clone(),
            _ => {
                let function = &data.names[*name as usize];
                format!("{} {:?}", function.name, Some(&function.module))
            }
        };
        let own = match group {
            GroupBy::Functions | GroupBy::Modules => plain.path.first().map(name),
            GroupBy::Threads => Some(format!("{} {}", plain.thread.pid, plain.thread.tid)),
            GroupBy::Processes => Some(plain.thread.pid.to_string()),
            GroupBy::Cpus if plain.row.cpu == u32::MAX => Some("none".to_owned()),
            GroupBy::Cpus => Some(plain.row.cpu.to_string()),
            GroupBy::States => SpanState::of_number(plain.row.state).map(SpanState::name),
        };
        let mut all: Vec<String> = match group {
            GroupBy::Functions | GroupBy::Modules => plain.path.iter().map(name).collect(),
            _ => own.iter().cloned().collect(),
        };
        all.sort_unstable();
        all.dedup();
        for name in all {
            add(&mut sums.entry(name).or_default()[1], (1, *part));
        }
        if let Some(name) = own {
            add(&mut sums.entry(name).or_default()[0], (1, *part));
        }
    }
    sums
}

/// Sums of each path of a tree from its root on: what ends there, and in all.
pub(super) fn tree(paths: impl Iterator<Item = (Vec<u32>, u64)>) -> BTreeMap<Vec<u32>, [Pair; 2]> {
    let mut sums: BTreeMap<Vec<u32>, [Pair; 2]> = BTreeMap::new();
    for (path, part) in paths {
        for length in 1..=path.len() {
            add(&mut sums.entry(path[..length].to_vec()).or_default()[1], (1, part));
        }
        if !path.is_empty() {
            add(&mut sums.entry(path).or_default()[0], (1, part));
        }
    }
    sums
}
