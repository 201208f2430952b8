//! Rows and call trees against recomputation from the plain list of stacks.
use super::*;
use crate::functions::FunctionId;
use crate::load::Count;
use crate::profile::Profile;
use crate::sample_profile::{Kind, Spec, Stack, profile};
use proptest::prelude::*;
use std::collections::BTreeMap;

const COMMS: [&str; 3] = ["app", "app-worker", "zsh"];

/// Recursion needs few functions. Function 4 is another file's of the same name and place as 3.
const FUNCTIONS: [Spec; 8] = [
    (0, Kind::Symbol, "main", 0x100),
    (0, Kind::Symbol, "work", 0x200),
    (0, Kind::Inlined, "helper", 0x200),
    (1, Kind::Symbol, "memcpy", 0x300),
    (2, Kind::Symbol, "memcpy", 0x300),
    (1, Kind::Address, "", 0x777),
    (3, Kind::Symbol, "work", 0x400),
    (0, Kind::Inlined, "main", 0x200),
];

fn stacks() -> impl Strategy<Value = Vec<Stack>> {
    let stack = (0..2u32, 0..3usize, 0..8usize, proptest::collection::vec(0..8usize, 0..7), 1..4u64, 0..4u64);
    let stack = stack.prop_map(|(event, comm, leaf, frames, samples, each)| Stack {
        event,
        comm,
        leaf,
        frames,
        samples,
        period: samples * each,
    });
    proptest::collection::vec(stack, 0..25)
}

fn options(children: bool, keys: &[SortKey]) -> HistOptions {
    HistOptions { keys: keys.to_vec(), children, ..HistOptions::default() }
}

const KEYS: [SortKey; 3] = HistOptions::DEFAULT_KEYS;

/// What a row with the default keys is known by.
type Name = (String, String, Option<String>, u64, bool);

fn name(profile: &Profile, comm: &str, function: FunctionId) -> Name {
    let f = profile.functions.get(function);
    let text = f.name.as_deref().map(str::to_string);
    (comm.to_string(), profile.module_name(function).to_string(), text, f.start, f.inlined)
}

fn row_name(profile: &Profile, row: &Row) -> Name {
    name(profile, &profile.loaded.timeline.comm(row.group.comm), row.function)
}

/// The stacks that a row is on, each with the frames up to the row's outermost place.
fn paths(profile: &Profile, stacks: &[Stack], event: u32, row: &Name) -> Vec<(Vec<u32>, u64)> {
    let mut paths = Vec::new();
    for stack in stacks.iter().filter(|s| s.event == event) {
        let is_row = |f: usize| name(profile, COMMS[stack.comm], FunctionId(f as u32)) == *row;
        let frames: Vec<u32> = stack.frames.iter().map(|f| *f as u32).collect();
        if is_row(stack.leaf) {
            paths.push((frames, stack.period));
        } else if let Some(outermost) = stack.frames.iter().rposition(|f| is_row(*f)) {
            paths.push((frames[..=outermost].to_vec(), stack.period));
        }
    }
    paths
}

/// Adds up a tree's nodes, one function at a time: path from the root, period of the node with all
/// below.
fn flatten(nodes: &[CallNode], prefix: &[u32], out: &mut BTreeMap<Vec<u32>, u64>) -> u64 {
    let mut own = 0;
    for node in nodes {
        let mut path = prefix.to_vec();
        for function in &node.functions {
            path.push(function.0);
            assert_eq!(out.insert(path.clone(), node.total), None, "one node per path");
        }
        own += node.own + flatten(&node.children, &path, out);
    }
    own
}

fn assert_sorted(profile: &Profile, nodes: &[CallNode]) {
    let of = |n: &CallNode| profile.functions.get(n.functions[0]).name.clone();
    for pair in nodes.windows(2) {
        assert!(pair[0].total >= pair[1].total, "largest first");
        assert!(pair[0].total > pair[1].total || of(&pair[0]) <= of(&pair[1]), "equal ones by name");
    }
    nodes.iter().for_each(|n| assert_sorted(profile, &n.children));
}

proptest! {
    /// Checks that own counts are those of samples taken in a row, and totals those of samples that
    /// have the row on their stack at all, each counted once however often the row is on it.
    #[test]
    fn own_and_total(stacks in stacks(), event in 0..2u32, children in any::<bool>()) {
        let profile = profile(&COMMS, &FUNCTIONS, &stacks);
        let mut expected: BTreeMap<Name, (Count, Count)> = BTreeMap::new();
        let mut whole = Count::default();
        for stack in stacks.iter().filter(|s| s.event == event) {
            let count = Count { samples: stack.samples, period: stack.period, latency: 0 };
            let own = name(&profile, COMMS[stack.comm], FunctionId(stack.leaf as u32));
            let mut on = vec![own.clone()];
            if children {
                on.extend(stack.frames.iter().map(|f| name(&profile, COMMS[stack.comm], FunctionId(*f as u32))));
            }
            on.sort();
            on.dedup();
            on.into_iter().for_each(|n| expected.entry(n).or_default().1 += count);
            expected.entry(own).or_default().0 += count;
            whole += count;
        }
        let hist = Hist::new(&profile, event as usize, &options(children, &KEYS));
        let found: BTreeMap<Name, _> =
            hist.rows.iter().map(|r| (row_name(&profile, r), (r.own, r.total))).collect();
        prop_assert_eq!(found.len(), hist.rows.len(), "every row once");
        prop_assert_eq!(found, expected);
        prop_assert_eq!(hist.total, whole);
    }

    /// Checks that a row's tree has every path of its stacks with the right sums, and that what is
    /// left out is too small.
    #[test]
    fn call_trees(stacks in stacks(), children in any::<bool>(), caller in any::<bool>(), least in 0..6u64) {
        let profile = profile(&COMMS, &FUNCTIONS, &stacks);
        let hist = Hist::new(&profile, 0, &options(children, &KEYS));
        let order = if caller { Order::Caller } else { Order::Callee };
        for row in &hist.rows {
            let mut paths = paths(&profile, &stacks, 0, &row_name(&profile, row));
            if !children {
                let leaf = row_name(&profile, row);
                paths = stacks
                    .iter()
                    .filter(|s| s.event == 0 && name(&profile, COMMS[s.comm], FunctionId(s.leaf as u32)) == leaf)
                    .map(|s| (s.frames.iter().map(|f| *f as u32).collect(), s.period))
                    .collect();
            }
            let mut expected: BTreeMap<Vec<u32>, u64> = BTreeMap::new();
            for (path, period) in &mut paths {
                if caller {
                    path.reverse();
                }
                for end in 1..=path.len() {
                    *expected.entry(path[..end].to_vec()).or_default() += *period;
                }
            }
            let tree = CallTree::new(&profile, row, order, 0);
            let mut found = BTreeMap::new();
            let own = flatten(&tree.roots, &[], &mut found);
            prop_assert_eq!(&found, &expected);
            let with_chain: u64 = paths.iter().filter(|p| !p.0.is_empty()).map(|p| p.1).sum();
            prop_assert_eq!(own, with_chain, "what nodes have of their own adds up to the row");
            if paths.iter().all(|p| !p.0.is_empty()) {
                prop_assert_eq!(own, row.total.period);
            }
            assert_sorted(&profile, &tree.roots);

            let mut cut = BTreeMap::new();
            flatten(&CallTree::new(&profile, row, order, least).roots, &[], &mut cut);
            expected.retain(|_, total| *total >= least);
            prop_assert_eq!(cut, expected, "exactly the branches of at least {}", least);
        }
    }

    /// Checks that rows come in one order only, whatever order the counts are in, and that the
    /// largest are first.
    #[test]
    fn one_order(stacks in stacks(), seed in any::<u64>(), children in any::<bool>(), by in 0..4usize) {
        let keys: &[SortKey] = [&KEYS[..], &KEYS[..1], &KEYS[1..2], &KEYS[2..]][by];
        let options = options(children, keys);
        let shown = |stacks: &[Stack]| {
            let profile = profile(&COMMS, &FUNCTIONS, stacks);
            let hist = Hist::new(&profile, 0, &options);
            let text = |row: &Row| {
                let (comm, dso, symbol, start, inlined) = row_name(&profile, row);
                let has = |key| keys.contains(&key);
                let comm = if has(SortKey::Comm) { comm } else { String::new() };
                let dso = if has(SortKey::Dso) { dso } else { String::new() };
                let symbol = if has(SortKey::Symbol) { Some((symbol, start, inlined)) } else { None };
                (comm, dso, symbol, row.own, row.total)
            };
            hist.rows.iter().map(text).collect::<Vec<_>>()
        };
        let rows = shown(&stacks);
        let weight = |r: &(String, String, Option<_>, Count, Count)| if children { r.4.period } else { r.3.period };
        prop_assert!(rows.windows(2).all(|w| weight(&w[0]) >= weight(&w[1])));
        let mut shuffled = stacks.clone();
        let len = shuffled.len().max(1) as u64;
        for i in 0..shuffled.len() {
            shuffled.swap(i, (seed.rotate_left(3 * i as u32) % len) as usize);
        }
        prop_assert_eq!(shown(&shuffled), rows);
    }
}

fn stack(leaf: usize, frames: &[usize], samples: u64) -> Stack {
    Stack { event: 0, comm: 0, leaf, frames: frames.to_vec(), samples, period: samples }
}

/// Checks that a function that calls itself gains a sample once, at its outermost place.
#[test]
fn recursion_counts_once() {
    let profile = profile(&COMMS, &FUNCTIONS, &[stack(3, &[3, 1, 1, 0], 5)]);
    let hist = Hist::new(&profile, 0, &options(true, &KEYS));
    let work = hist.rows.iter().find(|r| r.function.0 == 1).expect("a row");
    assert_eq!((work.own.samples, work.total.samples), (0, 5));
    assert_eq!(work.places, [(0, 3)], "memcpy, work, work");
    let tree = CallTree::new(&profile, work, Order::Caller, 0);
    assert_eq!(tree.roots.len(), 1);
    assert_eq!(tree.roots[0].functions, [1, 1, 3].map(FunctionId));
}

/// Checks that two files of one base name share a row, as they look the same to the reader.
#[test]
fn files_of_one_name_share_a_row() {
    let profile = profile(&COMMS, &FUNCTIONS, &[stack(3, &[], 2), stack(4, &[], 3)]);
    let hist = Hist::new(&profile, 0, &options(false, &KEYS));
    assert_eq!(hist.rows.len(), 1);
    assert_eq!(hist.rows[0].own.samples, 5);
}

/// Checks that a filter by something that is no sort key counts only what it lets through.
#[test]
fn filter_by_what_rows_do_not_show() {
    let mut other = stack(1, &[], 7);
    other.comm = 1;
    let profile = profile(&COMMS, &FUNCTIONS, &[stack(1, &[], 2), other]);
    let mut by_dso = options(false, &[SortKey::Dso]);
    by_dso.comms = Some(vec!["app-worker".into()]);
    let hist = Hist::new(&profile, 0, &by_dso);
    let shown: Vec<u64> = hist.rows.iter().filter(|r| !r.filtered).map(|r| r.own.samples).collect();
    assert_eq!(shown, [7], "not the two of app, which came first");
    assert_eq!(hist.total.samples, 9, "shares are of the whole");
}

/// Checks that of rows with equal counts the one without a parent comes last, as in perf.
#[test]
fn rows_without_a_parent_come_last() {
    let profile = profile(&COMMS, &FUNCTIONS, &[stack(3, &[3, 0], 5), stack(3, &[3], 5)]);
    let parent = Some(regex_lite::Regex::new("main").expect("a pattern"));
    let hist = Hist::new(&profile, 0, &HistOptions { parent, ..options(false, &[SortKey::Parent]) });
    let parents: Vec<_> = hist.rows.iter().map(|row| row.parent).collect();
    assert_eq!(parents, [Some(FunctionId(0)), None]);
}
