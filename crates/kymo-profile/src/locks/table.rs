//! From waits, wake-ups and sums to a row for each lock.
use super::held::{self, LockHolds};
use super::lock::{LockPlace, LockRow};
use super::rows::{FutexKey, HoldRow, LockRows, SumRow, WaitRow};
use crate::chains::ChainId;
use crate::functions::{FunctionId, Functions, Level};
use crate::futex_kind::{LockKind, WaitEnd, is_of_lock, kind_of_wait};
use crate::resolve::Stacks;
use crate::timeline::Timeline;
use crate::wall::own_site;
use kymo_core::latency::Latencies;
use kymo_symbols::place::DataAt;
use rustc_hash::{FxHashMap, FxHashSet};
use std::cmp::Reverse;

/// What rows are made of.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum RowKey {
    Futex(FutexKey),
    Place(i32, Vec<FunctionId>),
}

#[derive(Debug, Default)]
struct PlaceSums {
    time_ns: u64,
    waits: u64,
    /// By thread.
    threads: FxHashMap<(i32, i32), u64>,
}

#[derive(Debug)]
struct RowSums {
    kind: LockKind,
    waits: Latencies,
    exact: bool,
    timeouts: u64,
    most_waiting: u64,
    waiting: u64,
    maps: Option<u32>,
    threads: FxHashSet<(i32, i32)>,
    waiters: FxHashMap<Vec<FunctionId>, PlaceSums>,
    holders: FxHashMap<Vec<FunctionId>, PlaceSums>,
}

impl RowSums {
    fn new(kind: LockKind) -> RowSums {
        RowSums {
            kind,
            waits: Latencies::default(),
            exact: true,
            timeouts: 0,
            most_waiting: 0,
            waiting: 0,
            maps: None,
            threads: FxHashSet::default(),
            waiters: FxHashMap::default(),
            holders: FxHashMap::default(),
        }
    }
}

/// Names of addresses, in a version of an address space.
pub(super) type NameOf<'a> = &'a mut dyn FnMut(u32, u64) -> Option<(DataAt, String)>;

/// The rows, the most time first.
pub(super) fn rows(
    rows: &LockRows,
    stacks: &Stacks,
    functions: &Functions,
    timeline: &Timeline,
    name: NameOf<'_>,
) -> Vec<LockRow> {
    let table = LockTable { rows, stacks, functions, timeline };
    let own = table.futexes_of_kymo();
    let kinds = table.kinds();
    let of_futexes = futexes(&rows.waits, &kinds);
    let mut found: FxHashMap<RowKey, RowSums> = FxHashMap::default();
    let main_places = table.main_places(&kinds);
    for (row, of_row) in rows.waits.iter().zip(&kinds).filter(|(row, _)| !own.contains(&row.futex)) {
        let kind = of_futexes[&row.futex].kind_of(*of_row);
        let mut row = *row;
        if kind != *of_row {
            // Its own stack does not tell where.
            row.chain = main_places.get(&row.futex).copied().unwrap_or(row.chain);
        }
        let sums = found.entry(table.key(&row, kind)).or_insert_with(|| RowSums::new(kind));
        table.add_wait(sums, &row);
    }
    for sums in rows.sums.iter().filter(|sums| !own.contains(&sums.futex)) {
        let of_futex = of_futexes.get(&sums.futex).copied().unwrap_or_default();
        match of_futex.only() {
            Some(kind) if kind != LockKind::Place => {
                let key = RowKey::Futex(sums.futex);
                take_sums(found.entry(key).or_insert_with(|| RowSums::new(kind)), sums);
            }
            // They are divided among several places, by their samples.
            _ => {}
        }
    }
    let has_sums: FxHashSet<FutexKey> = rows.sums.iter().map(|sums| sums.futex).collect();
    let mut list: Vec<LockRow> = (found.into_iter())
        .map(|(key, mut sums)| {
            let is_summed = |futex: &FutexKey| {
                has_sums.contains(futex) && of_futexes.get(futex).is_none_or(|kinds| kinds.only().is_some())
            };
            sums.exact = matches!(&key, RowKey::Futex(futex) if is_summed(futex));
            table.row(key, sums, name)
        })
        .filter(|row| row.waits.count > 0)
        .collect();
    table.add_holds(&mut list, name);
    list.sort_by(|a, b| {
        let held = |row: &LockRow| row.holds.as_ref().map_or(0, |of| of.holds.total_ns);
        let order =
            |row: &LockRow| (Reverse(row.waits.total_ns), Reverse(held(row)), row.pid, row.address, row.kind);
        order(a).cmp(&order(b)).then_with(|| {
            let place = |row: &LockRow| row.waiters.first().map(|place| place.place.clone());
            place(a).cmp(&place(b))
        })
    });
    list
}

/// What waits for one futex were for, each kind with its time.
#[derive(Clone, Copy, Debug, Default)]
struct FutexKinds([Option<u64>; 4]);

const KINDS: [LockKind; 4] = [LockKind::Lock, LockKind::Place, LockKind::Condition, LockKind::Join];

impl FutexKinds {
    /// The only kind, unknown if there is none.
    fn only(&self) -> Option<LockKind> {
        let mut kinds = KINDS.iter().zip(&self.0).filter(|(_, time)| time.is_some()).map(|(kind, _)| *kind);
        match (kinds.next(), kinds.next()) {
            (None, _) => Some(LockKind::Unknown),
            (only, None) => only,
            _ => None,
        }
    }

    /// A wait of which no stack tells what for is of the kind that took most time.
    fn kind_of(&self, kind: LockKind) -> LockKind {
        if kind != LockKind::Unknown {
            return kind;
        }
        let most = KINDS.iter().zip(&self.0).filter_map(|(kind, time)| Some((time.as_ref()?, *kind)));
        most.max_by_key(|(time, kind)| (**time, Reverse(*kind))).map_or(LockKind::Unknown, |(_, kind)| kind)
    }
}

fn futexes(waits: &[WaitRow], kinds: &[LockKind]) -> FxHashMap<FutexKey, FutexKinds> {
    let mut futexes: FxHashMap<FutexKey, FutexKinds> = FxHashMap::default();
    for (row, kind) in waits.iter().zip(kinds) {
        let of = futexes.entry(row.futex).or_default();
        if let Some(at) = KINDS.iter().position(|one| one == kind) {
            let time = of.0[at].get_or_insert(0);
            *time = time.saturating_add(row.told_ns);
        }
    }
    futexes
}

/// The kernel's sums take the place of those of the samples.
fn take_sums(row: &mut RowSums, sums: &SumRow) {
    row.waits = sums.waits.clone();
    row.timeouts = sums.timeouts;
    (row.waiting, row.most_waiting) = (sums.waiting, sums.most_waiting);
}

struct LockTable<'a> {
    rows: &'a LockRows,
    stacks: &'a Stacks,
    functions: &'a Functions,
    timeline: &'a Timeline,
}

impl LockTable<'_> {
    fn user_frames(&self, chain: ChainId) -> impl Iterator<Item = FunctionId> + Clone + '_ {
        let is_user = |id: &FunctionId| self.functions.get(*id).level == Level::User;
        self.stacks.frames(chain).iter().copied().filter(is_user)
    }

    /// Futexes of kymo's own agent in the program: each that was waited for in its library.
    fn futexes_of_kymo(&self) -> FxHashSet<FutexKey> {
        const AGENTS: [&str; 2] = ["libkymo_agent.so", "memfd:kymo-agent"];
        let modules = &self.timeline.modules;
        let is_agent = |id: FunctionId| {
            let module = self.functions.get(id).module;
            module.is_some_and(|module| {
                AGENTS.iter().any(|name| modules.get(module).short_name.starts_with(name))
            })
        };
        // The C library's function that waits may be the innermost.
        let of_kymo = |row: &&WaitRow| self.user_frames(row.chain).take(2).any(is_agent);
        self.rows.waits.iter().filter(of_kymo).map(|row| row.futex).collect()
    }

    /// What each wait was for.
    fn kinds(&self) -> Vec<LockKind> {
        let mut known: FxHashMap<(ChainId, u32, WaitEnd), LockKind> = FxHashMap::default();
        let kind = |row: &WaitRow| {
            let end = match row.waker {
                _ if row.unfinished && self.user_frames(row.chain).nth(1).is_none() => WaitEnd::Unfinished,
                _ if row.unfinished => WaitEnd::Unobserved,
                0 => WaitEnd::Otherwise,
                _ => WaitEnd::Woken,
            };
            *known.entry((row.chain, row.operation, end)).or_insert_with(|| {
                let names =
                    self.user_frames(row.chain).filter_map(|id| self.functions.get(id).name.as_deref());
                kind_of_wait(row.operation, end, names)
            })
        };
        self.rows.waits.iter().map(kind).collect()
    }

    /// The functions of the program in a stack, from the one on that uses the lock; else the
    /// innermost of all.
    fn place(&self, chain: ChainId) -> Vec<FunctionId> {
        let (frames, modules) = (self.stacks.frames(chain), &self.timeline.modules);
        let is_of_program =
            |id: &FunctionId| own_site(self.functions, modules, std::slice::from_ref(id)).is_some();
        let is_of_lock = |id: &FunctionId| self.functions.get(*id).name.as_deref().is_some_and(is_of_lock);
        let behind = frames.iter().position(|id| is_of_program(id) && !is_of_lock(id)).unwrap_or(0);
        own_site(self.functions, modules, &frames[behind..])
            .or_else(|| own_site(self.functions, modules, frames))
            .unwrap_or_else(|| self.user_frames(chain).take(1).collect())
    }

    /// Where threads waited most at each futex of which a stack tells that.
    fn main_places(&self, kinds: &[LockKind]) -> FxHashMap<FutexKey, ChainId> {
        let mut times: FxHashMap<(FutexKey, ChainId), u64> = FxHashMap::default();
        for (row, _) in self.rows.waits.iter().zip(kinds).filter(|(_, kind)| **kind == LockKind::Place) {
            let time = times.entry((row.futex, row.chain)).or_default();
            *time = time.saturating_add(row.told_ns);
        }
        let mut ordered: Vec<((FutexKey, ChainId), u64)> = times.into_iter().collect();
        ordered.sort_unstable_by_key(|(key, time)| (*time, Reverse(*key)));
        ordered.into_iter().map(|((futex, chain), _)| (futex, chain)).collect()
    }

    fn key(&self, row: &WaitRow, kind: LockKind) -> RowKey {
        match kind {
            LockKind::Place => RowKey::Place(row.futex.0, self.place(row.chain)),
            _ => RowKey::Futex(row.futex),
        }
    }

    fn add_wait(&self, sums: &mut RowSums, row: &WaitRow) {
        sums.waits.add(row.wait_ns);
        // Those without a row are as long as they are together.
        sums.waits.count = sums.waits.count.saturating_add(row.count.saturating_sub(1));
        let untold = row.told_ns.saturating_sub(row.wait_ns);
        sums.waits.total_ns = sums.waits.total_ns.saturating_add(untold);
        sums.waiting += u64::from(row.unfinished);
        sums.maps = Some(row.maps);
        sums.threads.insert(row.thread);
        let add = |places: &mut FxHashMap<_, PlaceSums>, place, thread| {
            let of = places.entry(place).or_default();
            of.time_ns = of.time_ns.saturating_add(row.told_ns);
            of.waits = of.waits.saturating_add(row.count);
            let time = of.threads.entry(thread).or_default();
            *time = time.saturating_add(row.told_ns);
        };
        if !row.unfinished || !self.stacks.frames(row.chain).is_empty() {
            add(&mut sums.waiters, self.place(row.chain), row.thread);
        }
        if let Some(wake) = self.wake_of(row) {
            let wake = &self.rows.wakes[wake];
            add(&mut sums.holders, self.place(wake.chain), wake.thread);
        }
    }

    /// The last wake-up at the wait's futex before its end, during it, by the thread that the
    /// kernel saw; by its index.
    fn wake_of(&self, row: &WaitRow) -> Option<usize> {
        if row.unfinished {
            return None;
        }
        let wakes = &self.rows.wakes;
        let after = wakes.partition_point(|wake| (wake.futex, wake.time_ns) <= (row.futex, row.time_ns));
        let of_wait = wakes[..after].iter().enumerate().rev();
        let began = row.time_ns.saturating_sub(row.wait_ns);
        let mut of_wait =
            of_wait.take_while(|(_, wake)| wake.futex == row.futex && wake.time_ns >= began).take(64);
        of_wait.find(|(_, wake)| row.waker == 0 || wake.thread.1 == row.waker).map(|(at, _)| at)
    }

    /// Says of each lock how long it was held; those that no thread waited for get a row.
    fn add_holds(&self, list: &mut Vec<LockRow>, name: NameOf<'_>) {
        let place = |row: &HoldRow| self.place(row.chain);
        for LockHolds { lock, maps, is_rwlock, of } in held::by_lock(&self.rows.holds, place) {
            if let Some(row) = held::row_of(list, lock, is_rwlock) {
                row.holds = Some(of);
                continue;
            }
            let sums = RowSums { maps: Some(maps), ..RowSums::new(LockKind::Lock) };
            let row = self.row(RowKey::Futex(lock), sums, name);
            list.push(LockRow { holds: Some(of), ..row });
        }
    }

    fn row(&self, key: RowKey, sums: RowSums, name: NameOf<'_>) -> LockRow {
        let (pid, address) = match key {
            RowKey::Futex((pid, address)) => (pid, Some(address)),
            RowKey::Place(pid, _) => (pid, None),
        };
        let variable = address.zip(sums.maps).and_then(|(address, maps)| name(maps, address));
        LockRow {
            kind: sums.kind,
            pid,
            address,
            variable,
            waits: sums.waits,
            exact: sums.exact,
            timeouts: sums.timeouts,
            threads: sums.threads.len(),
            most_waiting: sums.most_waiting,
            waiting: sums.waiting,
            waiters: self.places(sums.waiters),
            holders: self.places(sums.holders),
            holds: None,
        }
    }

    fn places(&self, places: FxHashMap<Vec<FunctionId>, PlaceSums>) -> Vec<LockPlace> {
        let place = |(place, sums): (Vec<FunctionId>, PlaceSums)| {
            let longest = sums.threads.iter().max_by_key(|(thread, time)| (**time, Reverse(**thread)));
            let name = longest.map(|((_, tid), _)| self.timeline.comm(self.timeline.last_comm(*tid)));
            LockPlace {
                place,
                time_ns: sums.time_ns,
                waits: sums.waits,
                threads: sums.threads.len(),
                thread: name.unwrap_or_default().into_owned(),
            }
        };
        let mut list: Vec<LockPlace> = places.into_iter().map(place).collect();
        list.sort_by(|a, b| (Reverse(a.time_ns), &a.place).cmp(&(Reverse(b.time_ns), &b.place)));
        list
    }
}
