//! Sums over time: tiles of equal length, in lanes.
use super::QueryError;
use super::scan::{FilteredRow, Scan, Sum};
use super::top::shown_state;
use crate::columns::RowField;
use crate::wall::SpanState;
use rustc_hash::FxHashMap;
use serde::Serialize;

/// So many lanes at most; the rest is one lane.
const MOST_LANES: usize = 256;

/// What has a lane of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LaneKey {
    /// Everything is in one.
    All,
    /// Threads.
    Thread,
    /// CPUs.
    Cpu,
    /// What threads do or wait for.
    State,
}

/// Sums over time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tiles {
    /// All rows that count.
    pub samples: u64,
    /// The sum of their periods.
    pub period: u64,
    /// When the first tile begins, ns of the recording's clock.
    pub start_ns: u64,
    /// How long a tile is, ns.
    pub tile_ns: u64,
    /// How many tiles.
    pub tiles: usize,
    /// Those with most first.
    pub lanes: Vec<Lane>,
}

/// The tiles of a thread, CPU or state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Lane {
    /// Its name.
    pub name: String,
    /// The number of a thread.
    pub tid: Option<i32>,
    /// The sum of its periods.
    pub period: u64,
    /// What each tile has of it.
    pub values: Vec<u64>,
}

pub(super) fn tiles(scan: &Scan<'_>, key: LaneKey, count: u32) -> Result<Tiles, QueryError> {
    let Some((first, last)) = scan.bounds() else { return Ok(Tiles::default()) };
    let tile_ns = ((last - first) / u64::from(count.max(1))).saturating_add(1);
    let mut answer = Tiles {
        start_ns: first,
        tile_ns,
        tiles: ((last - first) / tile_ns + 1) as usize,
        ..Tiles::default()
    };
    // Which lane, by what the row has in a column.
    let lane_of = |found: &FilteredRow| match key {
        LaneKey::All => 0,
        LaneKey::Cpu => scan.get(RowField::Cpu, found.row),
        LaneKey::State => u64::from(shown_state(found.state)),
        LaneKey::Thread => u64::from(scan.data.columns.thread(found.row).tid.cast_unsigned()),
    };
    let mut sums: FxHashMap<u64, Sum> = FxHashMap::default();
    scan.each(|found| {
        *sums.entry(lane_of(found)).or_default() += Sum { samples: 1, period: found.period };
    })?;
    let mut sums: Vec<(u64, Sum)> = sums.into_iter().collect();
    sums.sort_unstable_by_key(|(lane, sum)| (std::cmp::Reverse(sum.period), *lane));
    let mut numbers: FxHashMap<u64, usize> = FxHashMap::default();
    for (lane, sum) in sums {
        answer.samples = answer.samples.saturating_add(sum.samples);
        answer.period = answer.period.saturating_add(sum.period);
        let number = answer.lanes.len().min(MOST_LANES);
        numbers.insert(lane, number);
        match answer.lanes.get_mut(number) {
            Some(others) => {
                others.period = others.period.saturating_add(sum.period);
                (others.name, others.tid) = ("others".to_owned(), None);
            }
            None => {
                let values = vec![0; answer.tiles];
                let (name, tid) = name_of(scan, key, lane);
                answer.lanes.push(Lane { name, tid, period: sum.period, values });
            }
        }
    }
    scan.each(|found| {
        let Some(lane) = numbers.get(&lane_of(found)).and_then(|at| answer.lanes.get_mut(*at)) else {
            return;
        };
        each_tile(scan, found, (first, tile_ns, lane.values.len()), |at, part| {
            lane.values[at] = lane.values[at].saturating_add(part);
        });
    })?;
    Ok(answer)
}

/// Calls `add` with each tile in which a row lies, and with what of its period lies there.
/// Tiles: when the first begins, how long they are, and how many there are.
pub(super) fn each_tile(
    scan: &Scan<'_>,
    found: &FilteredRow,
    (first, tile_ns, tiles): (u64, u64, usize),
    mut add: impl FnMut(usize, u64),
) {
    let end = scan.data.columns.time()[found.row];
    let length = scan.get(RowField::Span, found.row);
    let tile = |moment: u64| ((moment.saturating_sub(first) / tile_ns) as usize).min(tiles - 1);
    if length == 0 {
        return add(tile(end), found.period);
    }
    let (from, until) = ((end - length).max(found.range.0), end.min(found.range.1));
    for at in tile(from)..=tile(until.saturating_sub(1).max(from)) {
        let start = first.saturating_add(tile_ns.saturating_mul(at as u64));
        add(at, scan.part(found.row, (start.max(from), start.saturating_add(tile_ns).min(until))));
    }
}

fn name_of(scan: &Scan<'_>, key: LaneKey, lane: u64) -> (String, Option<i32>) {
    match key {
        LaneKey::All => ("all".to_owned(), None),
        LaneKey::Cpu if lane == u64::from(u32::MAX) => ("no CPU".to_owned(), None),
        LaneKey::Cpu => (format!("CPU {lane}"), None),
        LaneKey::State => {
            let state = SpanState::of_number(lane as u8);
            (state.map_or_else(String::new, SpanState::name), None)
        }
        LaneKey::Thread => {
            let tid = (lane as u32).cast_signed();
            let comm = scan.data.timeline().last_comm(tid);
            (scan.data.comm(comm).into_owned(), Some(tid))
        }
    }
}
