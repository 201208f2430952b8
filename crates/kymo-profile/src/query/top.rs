//! What took most: sums by function, module, thread, process, CPU or state.
use super::QueryError;
use super::function_key::FunctionKey;
use super::scan::{Key, Scan, Sum};
use crate::columns::RowField;
use crate::wall::SpanState;
use rustc_hash::FxHashMap;
use serde::Serialize;

/// What is counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupBy {
    /// Functions; a function on a stack has its rows once, as in the JSON report.
    Functions,
    /// Modules; the same.
    Modules,
    /// Threads.
    Threads,
    /// Processes.
    Processes,
    /// CPUs.
    Cpus,
    /// What threads did or waited for.
    States,
}

/// What the order is by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// The thing itself.
    Own,
    /// It and what it called.
    Total,
}

/// What took most.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Top {
    /// All rows that count.
    pub samples: u64,
    /// The sum of their periods.
    pub period: u64,
    /// The first of the order.
    pub rows: Vec<TopRow>,
    /// How many rows there are besides.
    pub more: usize,
}

/// One of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct TopRow {
    /// Its name: of a function, a module, a thread, a state; or the number of a CPU.
    pub name: String,
    /// The module of a function.
    pub module: Option<String>,
    /// The process of a thread.
    pub pid: Option<i32>,
    /// The number of a thread.
    pub tid: Option<i32>,
    /// Rows in it itself.
    pub self_samples: u64,
    /// The sum of their periods.
    pub self_period: u64,
    /// Rows in it, or in what it called.
    pub total_samples: u64,
    /// The sum of their periods.
    pub total_period: u64,
    /// A function, to ask for what is around it.
    #[serde(skip)]
    pub function: Option<FunctionKey>,
}

impl TopRow {
    fn add(&mut self, sum: Sum, own: bool, total: bool) {
        let add = |to: &mut u64, more: u64| *to = to.saturating_add(more);
        if own {
            add(&mut self.self_samples, sum.samples);
            add(&mut self.self_period, sum.period);
        }
        if total {
            add(&mut self.total_samples, sum.samples);
            add(&mut self.total_period, sum.period);
        }
    }

    /// What it has, itself or in all.
    pub fn weight(&self, by: Weight) -> u64 {
        match by {
            Weight::Own => self.self_period,
            Weight::Total => self.total_period,
        }
    }
}

pub(super) fn top(scan: &Scan<'_>, group: GroupBy, count: usize, by: Weight) -> Result<Top, QueryError> {
    let mut sum = Sum::default();
    let mut rows = match group {
        GroupBy::Functions | GroupBy::Modules => of_stacks(scan, group, &mut sum)?,
        _ => of_columns(scan, group, &mut sum)?,
    };
    // What has nothing of what the order is by is no part of it.
    rows.retain(|row| match by {
        Weight::Own => row.self_samples > 0,
        Weight::Total => row.total_samples > 0,
    });
    rows.sort_unstable_by(|a, b| {
        let heat = |row: &TopRow| {
            let own = (row.self_period, row.self_samples);
            let total = (row.total_period, row.total_samples);
            std::cmp::Reverse(if by == Weight::Own { (own, total) } else { (total, own) })
        };
        heat(a).cmp(&heat(b)).then_with(|| a.cmp(b))
    });
    let more = rows.len().saturating_sub(count);
    rows.truncate(count);
    Ok(Top { samples: sum.samples, period: sum.period, rows, more })
}

/// Sums of functions or modules. The innermost on a stack has its rows itself; each other one of
/// the stack has them once, however often it is on it.
fn of_stacks(scan: &Scan<'_>, group: GroupBy, all: &mut Sum) -> Result<Vec<TopRow>, QueryError> {
    let names = &scan.data.names;
    let mut numbers: FxHashMap<&str, usize> = FxHashMap::default();
    let mut rows: Vec<TopRow> = Vec::new();
    let mut row_of = Vec::with_capacity(names.len());
    for function in names {
        let next = rows.len();
        let row = match group {
            GroupBy::Modules => *numbers.entry(&function.module).or_insert(next),
            _ => next,
        };
        if row == next {
            rows.push(match group {
                GroupBy::Modules => TopRow { name: function.module.clone(), ..TopRow::default() },
                _ => TopRow {
                    name: function.name.clone(),
                    module: Some(function.module.clone()),
                    function: Some(FunctionKey::of(function)),
                    ..TopRow::default()
                },
            });
        }
        row_of.push(row);
    }
    let mut path = Vec::new();
    // The last stack that each row was counted for.
    let mut counted = vec![usize::MAX; rows.len()];
    for (number, (key, sum)) in scan.by_stack()?.into_iter().enumerate() {
        scan.data.path(key.stack, key.state, &mut path);
        *all += sum;
        for (depth, name) in path.iter().enumerate() {
            let row = row_of[*name as usize];
            let is_first = std::mem::replace(&mut counted[row], number) != number;
            rows[row].add(sum, depth == 0, is_first);
        }
    }
    Ok(rows)
}

/// A state as tables show it.
pub(super) fn shown_state(state: u8) -> u8 {
    SpanState::of_number(state).map_or(0, |state| state.shown().number())
}

/// Sums by a column.
fn of_columns(scan: &Scan<'_>, group: GroupBy, all: &mut Sum) -> Result<Vec<TopRow>, QueryError> {
    let sums = scan.sums(|found| match group {
        GroupBy::Cpus => Key { cpu: scan.get(RowField::Cpu, found.row) as u32, ..Key::default() },
        GroupBy::States => Key { state: shown_state(found.state), ..Key::default() },
        _ => Key { thread: scan.get(RowField::Thread, found.row) as u32, ..Key::default() },
    })?;
    let mut rows: FxHashMap<(i32, i32, u32, String), TopRow> = FxHashMap::default();
    for (key, sum) in sums {
        let (pid, tid, name) = match group {
            GroupBy::Cpus if key.cpu == u32::MAX => (None, None, "none".to_owned()),
            GroupBy::Cpus => (None, None, key.cpu.to_string()),
            GroupBy::States => {
                let state = SpanState::of_number(key.state);
                (None, None, state.map_or_else(String::new, SpanState::name))
            }
            _ => {
                let (pid, tid) = {
                    let thread = scan.data.columns.threads.get(key.thread);
                    (thread.pid, if group == GroupBy::Threads { thread.tid } else { thread.pid })
                };
                let comm = scan.data.timeline().last_comm(tid);
                let shown_tid = (group == GroupBy::Threads).then_some(tid);
                (Some(pid), shown_tid, scan.data.comm(comm).into_owned())
            }
        };
        let number = if group == GroupBy::Cpus { key.cpu } else { 0 };
        let row = rows.entry((pid.unwrap_or(0), tid.unwrap_or(0), number, name)).or_insert_with_key(
            |(_, _, _, name)| TopRow { name: name.clone(), pid, tid, ..TopRow::default() },
        );
        row.add(sum, true, true);
        *all += sum;
    }
    Ok(rows.into_values().collect())
}
