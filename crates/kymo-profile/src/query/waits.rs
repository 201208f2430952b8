//! What threads did, and where they waited, for what, until whom.
use super::QueryError;
use super::dataset::Source;
use super::scan::{FilteredRow, Scan};
use crate::chains::ChainId;
use crate::columns::RowField;
use crate::timeline::CommId;
use crate::wall::{SiteId, SpanState, State, Wall};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

/// What threads did, and where they waited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Waits {
    /// All time of all threads, ns.
    pub period: u64,
    /// The time of each state, ns, without those that have none; they sum to all.
    pub states: Vec<StateTime>,
    /// What of it is idle: nobody waited for these threads, ns.
    pub idle_ns: u64,
    /// Where threads waited, the longest first, idle places last.
    pub rows: Vec<WaitRow>,
    /// How many places there are besides.
    pub more: usize,
}

/// The time of a state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StateTime {
    /// Its name.
    pub state: &'static str,
    /// ns of all threads.
    pub time_ns: u64,
}

/// A place where threads waited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WaitRow {
    /// What for.
    pub state: &'static str,
    /// Nobody waited for those that waited here.
    pub idle: bool,
    /// The program's functions, innermost first.
    pub functions: Vec<String>,
    /// The module of the innermost one.
    pub module: Option<String>,
    /// All time, ns.
    pub time_ns: u64,
    /// How many waits lie in the range, or partly.
    pub waits: u64,
    /// The longest wait, or its part in the range, ns; 0: not known.
    pub longest_ns: u64,
    /// How many threads.
    pub threads: usize,
    /// The name of the threads that ended most of the time, if threads did.
    pub ended_by: Option<String>,
}

#[derive(Default)]
struct Place {
    time_ns: u64,
    waits: u64,
    longest_ns: u64,
    threads: FxHashSet<i32>,
    /// By name the time that threads of this name ended.
    wakers: FxHashMap<CommId, u64>,
}

pub(super) fn waits(scan: &Scan<'_>, count: usize) -> Result<Waits, QueryError> {
    let Source::Spans(wall) = &scan.data.source else {
        // A query of waits opens the spans.
        return Err(QueryError::NotRecorded("samples do not tell where threads waited".into()));
    };
    let mut answer = Waits::default();
    let mut states = [0_u64; State::ALL.len()];
    let mut places: FxHashMap<(bool, State, SiteId), Place> = FxHashMap::default();
    let short = wall.longest_short_waits();
    scan.each(|found| {
        let Some(state) = SpanState::of_number(found.state) else { return };
        let add = |to: &mut u64| *to = to.saturating_add(found.period);
        add(&mut answer.period);
        add(&mut states[state.state as usize]);
        if state.is_idle() {
            add(&mut answer.idle_ns);
        }
        if state.state != State::Running {
            let key = (state.is_idle(), state.state, wall.site_of(found.stack));
            places.entry(key).or_default().add(scan, &short, found);
        }
    })?;
    let time = State::ALL
        .into_iter()
        .map(|state| StateTime { state: state.name(), time_ns: states[state as usize] });
    answer.states = time.filter(|time| time.time_ns > 0).collect();
    let mut places: Vec<_> = places.into_iter().collect();
    places.sort_unstable_by_key(|((idle, state, site), place)| {
        (*idle, std::cmp::Reverse(place.time_ns), *state, *site)
    });
    answer.more = places.len().saturating_sub(count);
    answer.rows = places.into_iter().take(count).map(|(key, place)| place.row(scan, wall, key)).collect();
    Ok(answer)
}

impl Place {
    /// `short`: as [`Wall::longest_short_waits`].
    fn add(&mut self, scan: &Scan<'_>, short: &FxHashMap<(i32, u64, ChainId), u64>, found: &FilteredRow) {
        self.time_ns = self.time_ns.saturating_add(found.period);
        let waits = scan.get(RowField::Weight, found.row).saturating_sub(1);
        self.waits = self.waits.saturating_add(waits);
        let tid = scan.data.columns.thread(found.row).tid;
        let longest = match waits {
            1 => found.period,
            // Ready for this CPU; or several times, which one after the other.
            0 if scan.get(RowField::Cpu, found.row) != u64::from(u32::MAX) => found.period,
            0 => 0,
            _ => {
                let end = scan.data.columns.time()[found.row];
                short.get(&(tid, end, found.stack)).map_or(0, |longest| (*longest).min(found.period))
            }
        };
        self.longest_ns = self.longest_ns.max(longest);
        self.threads.insert(tid);
        if let Some(waker) = scan.get(RowField::Waker, found.row).checked_sub(1) {
            let comm = scan.data.columns.threads.get(waker as u32).comm;
            let time = self.wakers.entry(comm).or_default();
            *time = time.saturating_add(found.period);
        }
    }

    fn row(self, scan: &Scan<'_>, wall: &Wall, (idle, state, site): (bool, State, SiteId)) -> WaitRow {
        let functions = wall.site(site);
        let module = functions.first().and_then(|id| wall.functions.get(*id).module);
        let ended_by = self.wakers.iter().max_by_key(|(comm, time)| (**time, comm.number()));
        WaitRow {
            state: state.name(),
            idle,
            functions: functions.iter().map(|id| crate::wall::plain_name(&wall.functions, *id)).collect(),
            module: module.map(|id| wall.timeline.modules.get(id).short_name.to_string()),
            time_ns: self.time_ns,
            waits: self.waits,
            longest_ns: self.longest_ns,
            threads: self.threads.len(),
            ended_by: ended_by.map(|(comm, _)| scan.data.comm(*comm).into_owned()),
        }
    }
}
