//! Answers against plain filters over all rows.
use super::dataset::{EventRow, Source};
use super::scan::merged;
use super::*;
use crate::columns::{Row, Thread, ThreadTable, columns_of_spans};
use crate::functions::{Functions, Level};
use crate::load::tests::{Shape, recording};
use crate::load::{LoadOptions, load};
use crate::profile::Profile;
use crate::resolve::{ResolveOptions, Stacks};
use crate::timeline::{CommId, ModuleKind};
use crate::wall::State;
use crate::wall::tests::{any_rows, wall};
use kymo_data::Recording;
use kymo_symbols::{SymbolOptions, SymbolStore};
use model::{Pair, Plain, filtered};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

const NAMES: [&str; 6] = ["main", "read", "parse", "std::sort<int, int>", "memcpy", "malloc"];

/// Samples of functions of two modules. Stack `n` has the functions that its digits say.
fn samples(rows: Vec<Row>, threads: ThreadTable) -> Dataset {
    let shape = Shape::of_events(2);
    let mut loaded = load(&recording(&shape, &[]), &LoadOptions::default(), &|_, _, _| {}).expect("readable");
    let mut functions = Functions::default();
    let modules = &mut Arc::get_mut(&mut loaded.timeline).expect("nobody shares it").modules;
    let modules = [&b"/bin/app"[..], b"/lib/libc.so.6"]
        .map(|path| modules.intern(path, ModuleKind::File, Default::default(), &[]));
    let ids: Vec<_> = NAMES
        .iter()
        .enumerate()
        .map(|(at, name)| {
            let start = 0x100 * at as u64;
            functions.symbol(modules[usize::from(at >= 4)], Level::User, start, start + 8, name)
        })
        .collect();
    let stacks = (0..STACKS).map(|number| {
        let depth = number % 4;
        let frames: Vec<_> =
            (0..depth).map(|at| ids[(number / 4 + at * number / 7) as usize % ids.len()]).collect();
        (*frames.first().unwrap_or(&ids[0]), frames)
    });
    let stacks = Stacks::of(stacks.collect());
    let profile =
        Profile { loaded, functions, stacks, notes: Vec::new(), absences: Vec::new(), traces: Vec::new() };
    let sum = |event: u32| {
        let of = rows.iter().filter(|row| row.event == event);
        of.fold((0, 0), |(samples, period), row| (samples + 1, period + row.period))
    };
    let events = ["cycles:u", "faults"].into_iter().zip(0..).map(|(name, event)| {
        let (samples, period) = sum(event);
        EventRow {
            name: name.into(),
            unit: "events".into(),
            samples: Some(samples),
            period: Some(period),
            is_of_sums: false,
        }
    });
    let events = events.collect();
    Dataset::new(Source::Samples(Box::new(profile)), columns_of_spans(rows, threads), events)
}

const STACKS: u32 = 40;

fn any_samples() -> impl Strategy<Value = Dataset> {
    let row = (0..1000u64, 0..6i32, 0..5u32, 0..2u32, 0..STACKS, 0..100u64);
    proptest::collection::vec(row, 1..80).prop_map(|list| {
        let mut threads = ThreadTable::default();
        let rows = list.into_iter().map(|(time_ns, tid, cpu, event, stack, period)| Row {
            time_ns,
            thread: threads.intern(Thread { pid: tid / 2, tid, comm: CommId::unnamed(tid % 4) }),
            cpu: if cpu == 4 { u32::MAX } else { cpu },
            event,
            stack,
            period,
            weight: None,
            state: 0,
            waker: None,
            span_ns: 0,
            parallelism: 1,
            extra: 0,
        });
        let rows = rows.collect();
        samples(rows, threads)
    })
}

fn any_spans() -> impl Strategy<Value = Dataset> {
    any_rows().prop_map(|(waits, wakeups)| Dataset::of_wall(wall(waits, wakeups)))
}

/// Conditions whose values the dataset has, as numbers choose them.
fn filter_of(data: &Dataset, choices: &[(u8, u64, u64, bool)]) -> Filter {
    let mut filter = Filter::default();
    for &(field, one, other, negated) in choices {
        let (_, field) = FilterField::ALL[field as usize % FilterField::ALL.len()];
        let rows = model::rows(data);
        let Some(plain) = rows.get(one as usize % rows.len().max(1)) else { continue };
        let thread = plain.thread;
        let text = match field {
            FilterField::Thread if other.is_multiple_of(2) => thread.tid.to_string(),
            FilterField::Thread => data.comm(thread.comm).into_owned(),
            FilterField::Process => thread.pid.to_string(),
            FilterField::Cpu => (one % 4).to_string(),
            FilterField::State if data.is_of_spans() => {
                State::ALL[one as usize % State::ALL.len()].name().into()
            }
            FilterField::State | FilterField::Event => continue,
            FilterField::Time => String::new(),
            FilterField::Module | FilterField::Function => {
                let name = &data.names[other as usize % data.names.len()];
                if field == FilterField::Module { name.module.clone() } else { name.name.clone() }
            }
        };
        let spans = vec![(one.min(other), one.max(other)), (other / 2, other / 2 + 50)];
        let spans = if field == FilterField::Time { spans } else { Vec::new() };
        filter.conditions.push(Condition {
            field,
            negated,
            values: vec![FilterValue { text, at: 1 }],
            spans,
        });
    }
    filter
}

fn choices() -> impl Strategy<Value = Vec<(u8, u64, u64, bool)>> {
    proptest::collection::vec((any::<u8>(), 0..1100u64, 0..1100u64, any::<bool>()), 0..4)
}

fn ask(data: &Dataset, verb: Verb, filter: &Filter) -> Body {
    let query = Query { verb, filter: filter.clone() };
    data.ask(&query, &SymbolStore::default(), &AtomicBool::new(false)).expect("an answer").body
}

/// The rows of the event that is asked about when none is named.
fn of_event(data: &Dataset, rows: Vec<(Plain, u64)>) -> Vec<(Plain, u64)> {
    let event = data.event(&Filter::default()).expect("no event is named").0;
    rows.into_iter().filter(|(plain, _)| event.is_none_or(|event| plain.row.event == event)).collect()
}

fn tops_are_plain_sums(data: &Dataset, filter: &Filter) -> Result<(), TestCaseError> {
    let rows = of_event(data, filtered(data, filter));
    let mut groups =
        vec![GroupBy::Functions, GroupBy::Modules, GroupBy::Threads, GroupBy::Processes, GroupBy::Cpus];
    groups.extend(data.is_of_spans().then_some(GroupBy::States));
    for group in groups {
        let Body::Top(top) = ask(data, Verb::Top { group, count: 1000, by: Weight::Total }, filter) else {
            panic!("another answer");
        };
        let mut found: BTreeMap<String, [Pair; 2]> = BTreeMap::new();
        for row in &top.rows {
            let name = match group {
                GroupBy::Functions => format!("{} {:?}", row.name, row.module.as_ref()),
                GroupBy::Threads => format!("{} {}", row.pid.unwrap_or(-9), row.tid.unwrap_or(-9)),
                GroupBy::Processes => row.pid.unwrap_or(-9).to_string(),
                _ => row.name.clone(),
            };
            let own = (row.self_samples, row.self_period);
            let pairs = [own, (row.total_samples, row.total_period)];
            prop_assert_eq!(found.insert(name, pairs), None, "a row twice");
        }
        prop_assert!(top.rows.windows(2).all(|pair| pair[0].total_period >= pair[1].total_period));
        let mut expected = model::top(data, &rows, group);
        if data.is_of_spans() {
            // A span in two ranges has two parts, and counts twice.
            let drop_samples = |sums: &mut BTreeMap<String, [Pair; 2]>| {
                sums.values_mut().flatten().for_each(|pair| pair.0 = 0);
            };
            drop_samples(&mut found);
            drop_samples(&mut expected);
        }
        prop_assert_eq!(found, expected, "{:?}", group);
        prop_assert_eq!(top.period, rows.iter().map(|(_, part)| part).sum::<u64>());
    }
    Ok(())
}

/// The way of a stack through a tree, from the root on.
type PathOf<'a> = dyn Fn(&[u32]) -> Vec<u32> + 'a;

fn trees_are_plain_sums(data: &Dataset, filter: &Filter, name: usize) -> Result<(), TestCaseError> {
    let rows = of_event(data, filtered(data, filter));
    let name = &data.names[name % data.names.len()].name;
    let outermost = |path: &[u32]| path.iter().rposition(|at| data.names[*at as usize].name == *name);
    let reversed = |path: &[u32]| path.iter().rev().copied().collect::<Vec<u32>>();
    let function = FilterValue { text: name.clone(), at: 1 };
    let least_percent = 0.0;
    let verbs: [(Verb, &PathOf<'_>); 4] = [
        (Verb::Tree { inverted: false, least_percent }, &reversed),
        (Verb::Tree { inverted: true, least_percent }, &|path| path.to_vec()),
        (Verb::Callers { function: function.clone(), least_percent }, &|path| {
            outermost(path).map_or(Vec::new(), |at| path[at..].to_vec())
        }),
        (Verb::Callees { function, least_percent }, &|path| {
            outermost(path).map_or(Vec::new(), |at| reversed(&path[..=at]))
        }),
    ];
    for (verb, path) in verbs {
        let shown = format!("{verb:?}");
        let Body::Tree(tree) = ask(data, verb, filter) else { panic!("another answer") };
        let mut found: BTreeMap<Vec<u32>, [Pair; 2]> = BTreeMap::new();
        let mut paths: Vec<Vec<u32>> = Vec::new();
        for node in &tree.nodes {
            let of = |function: &crate::export::Function| {
                function.name == node.name && function.module == node.module
            };
            let name = data.names.iter().position(|name| of(name)).expect("a name") as u32;
            let mut path = node.parent.map_or(Vec::new(), |parent| paths[parent].clone());
            prop_assert_eq!(path.len(), node.depth);
            path.push(name);
            paths.push(path.clone());
            let pairs = [(node.self_samples, node.self_period), (node.total_samples, node.total_period)];
            prop_assert_eq!(found.insert(path, pairs), None, "a node twice");
        }
        let mut expected = model::tree(rows.iter().map(|(plain, part)| (path(&plain.path), *part)));
        if data.is_of_spans() {
            found.values_mut().chain(expected.values_mut()).flatten().for_each(|pair| pair.0 = 0);
        }
        prop_assert_eq!(found, expected, "{}", shown);
    }
    Ok(())
}

/// The branches below the first nodes of a stack, in all kinds of trees.
fn branches_are_plain_sums(data: &Dataset, filter: &Filter, name: usize) -> Result<(), TestCaseError> {
    let rows = of_event(data, filtered(data, filter));
    let name = (name % data.names.len()) as u32;
    for kind in [TreeKind::Calls, TreeKind::Inverted, TreeKind::Callers, TreeKind::Callees] {
        let line = |path: &[u32]| -> Vec<u32> {
            let outermost = path.iter().rposition(|at| *at == name);
            match (kind, outermost) {
                (TreeKind::Calls, _) => path.iter().rev().copied().collect(),
                (TreeKind::Inverted, _) => path.to_vec(),
                (TreeKind::Callers, Some(at)) => path[at..].to_vec(),
                (TreeKind::Callees, Some(at)) => path[..=at].iter().rev().copied().collect(),
                (_, None) => Vec::new(),
            }
        };
        let all = model::tree(rows.iter().map(|(plain, part)| (line(&plain.path), *part)));
        let of_function = matches!(kind, TreeKind::Callers | TreeKind::Callees);
        let above = if of_function { vec![name] } else { Vec::new() };
        let deeper = all.keys().find(|path| path.len() == above.len() + 2);
        let longer = deeper.map_or_else(|| above.clone(), |path| path[..=above.len()].to_vec());
        for (above, levels) in [(&above, 1), (&above, 2), (&above, usize::MAX), (&longer, 1)] {
            let path = above.iter().map(|name| FunctionKey::of(&data.names[*name as usize])).collect();
            let verb = Verb::Branch { kind, path, levels, least_percent: 0.0 };
            let Body::Branch(branch) = ask(data, verb, filter) else { panic!("another answer") };
            let mut found: BTreeMap<Vec<u32>, ([Pair; 2], bool)> = BTreeMap::new();
            let mut path: Vec<u32> = above.clone();
            for node in &branch.nodes {
                path.truncate(above.len() + node.depth);
                path.push(data.number_of(&node.function).expect("a function of it"));
                let pairs = [(node.self_samples, node.self_period), (node.total_samples, node.total_period)];
                prop_assert_eq!(found.insert(path.clone(), (pairs, node.has_below)), None, "a node twice");
            }
            // The first nodes with others beside them are one level, those below them the next.
            let beside = |path: &[u32]| {
                let before = &path[..path.len() - 1];
                all.keys().filter(|other| other.len() == path.len() && other.starts_with(before)).count()
            };
            let level = |path: &[u32]| {
                let first = (above.len() + 1..=path.len()).find(|length| beside(&path[..*length]) > 1);
                first.map_or(0, |first| path.len() - first + 1)
            };
            let is_shown = |path: &&Vec<u32>| {
                path.starts_with(above) && path.len() > above.len() && level(path) <= levels
            };
            let has_below =
                |path: &[u32]| all.keys().any(|other| other.len() > path.len() && other.starts_with(path));
            let shown = all.keys().filter(is_shown);
            let mut expected: BTreeMap<Vec<u32>, ([Pair; 2], bool)> =
                shown.map(|path| (path.clone(), (all[path], has_below(path)))).collect();
            if data.is_of_spans() {
                let both = found.values_mut().chain(expected.values_mut());
                both.flat_map(|(pairs, _)| pairs).for_each(|pair| pair.0 = 0);
            }
            prop_assert_eq!(found, expected, "{:?} {:?} {}", kind, above, levels);
            prop_assert_eq!(branch.period, rows.iter().map(|(_, part)| part).sum::<u64>());
        }
    }
    Ok(())
}

fn tiles_are_plain_sums(data: &Dataset, filter: &Filter, count: u32) -> Result<(), TestCaseError> {
    let rows = of_event(data, filtered(data, filter));
    let whole: u64 = rows.iter().map(|(_, part)| part).sum();
    for lanes in [LaneKey::All, LaneKey::Thread, LaneKey::Cpu] {
        let Body::Timeline(tiles) = ask(data, Verb::Timeline { lanes, tiles: count }, filter) else {
            panic!("another answer");
        };
        prop_assert_eq!(tiles.period, whole);
        prop_assert!(tiles.tiles <= count as usize);
        for lane in &tiles.lanes {
            prop_assert_eq!(lane.values.iter().sum::<u64>(), lane.period, "{:?}", lane);
        }
        if lanes == LaneKey::All && !data.is_of_spans() {
            for (at, value) in tiles.lanes.iter().flat_map(|lane| lane.values.iter().enumerate()) {
                let start = tiles.start_ns + at as u64 * tiles.tile_ns;
                let tile = start..start + tiles.tile_ns;
                let within = rows.iter().filter(|(plain, _)| tile.contains(&plain.row.time_ns));
                prop_assert_eq!(*value, within.map(|(_, part)| part).sum::<u64>());
            }
        }
    }
    Ok(())
}

fn heat_maps_are_plain_sums(data: &Dataset, filter: &Filter, rows: u32) -> Result<(), TestCaseError> {
    let all = of_event(data, filtered(data, filter));
    let Body::HeatMap(map) = ask(data, Verb::HeatMap { rows }, filter) else { panic!("another answer") };
    prop_assert_eq!(map.period, all.iter().map(|(_, part)| part).sum::<u64>());
    prop_assert_eq!(map.cell_periods.len(), map.columns * map.rows);
    prop_assert_eq!(map.cell_periods.iter().sum::<u64>(), map.period);
    prop_assert_eq!(map.column_ns, map.row_ns * map.rows as u64);
    if !data.is_of_spans() {
        for (cell, value) in map.cell_periods.iter().enumerate() {
            let start = map.start_ns + map.row_ns * cell as u64;
            let within =
                all.iter().filter(|(plain, _)| (start..start + map.row_ns).contains(&plain.row.time_ns));
            prop_assert_eq!(*value, within.map(|(_, part)| part).sum::<u64>(), "{}", cell);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

    /// Checks every verb on samples against sums over all rows, for any filter.
    #[test]
    fn samples_are_plain_sums(data in any_samples(), choices in choices(), name in 0..99usize, count in 1..50u32) {
        let filter = filter_of(&data, &choices);
        tops_are_plain_sums(&data, &filter)?;
        trees_are_plain_sums(&data, &filter, name)?;
        branches_are_plain_sums(&data, &filter, name)?;
        tiles_are_plain_sums(&data, &filter, count)?;
        heat_maps_are_plain_sums(&data, &filter, count)?;
    }

    /// Checks the same on spans of wall time, which count with the part in the range.
    #[test]
    fn spans_are_plain_sums(data in any_spans(), choices in choices(), name in 0..99usize, count in 1..50u32) {
        let filter = filter_of(&data, &choices);
        tops_are_plain_sums(&data, &filter)?;
        trees_are_plain_sums(&data, &filter, name)?;
        branches_are_plain_sums(&data, &filter, name)?;
        tiles_are_plain_sums(&data, &filter, count)?;
        heat_maps_are_plain_sums(&data, &filter, count)?;
    }

    /// Checks that the waits of two ranges that follow each other are those of both, and that the
    /// states of a range sum to all of it.
    #[test]
    fn ranges_of_spans_add_up(data in any_spans(), [from, cut, to] in [0..1400u64, 0..1400u64, 0..1400u64]) {
        let mut ends = [from, cut, to];
        ends.sort_unstable();
        let [from, cut, to] = ends;
        let waits = |from: u64, to: u64| {
            let spans = vec![(from, to)];
            let condition = Condition { field: FilterField::Time, negated: false, values: Vec::new(), spans };
            match ask(&data, Verb::Waits { count: 1000 }, &Filter { conditions: vec![condition] }) {
                Body::Waits(waits) => waits,
                _ => panic!("another answer"),
            }
        };
        let [first, second, both] = [waits(from, cut), waits(cut + 1, to.max(cut + 1)), waits(from, to.max(cut + 1))];
        let time = |waits: &Waits, state: State| -> u64 {
            waits.states.iter().filter(|time| time.state == state.name()).map(|time| time.time_ns).sum()
        };
        for state in State::ALL {
            prop_assert_eq!(time(&first, state) + time(&second, state), time(&both, state));
        }
        for waits in [&first, &second, &both] {
            prop_assert_eq!(waits.states.iter().map(|state| state.time_ns).sum::<u64>(), waits.period);
            let waited: u64 = waits.rows.iter().map(|row| row.time_ns).sum();
            prop_assert_eq!(waited + time(waits, State::Running), waits.period);
        }
        prop_assert_eq!(first.idle_ns + second.idle_ns, both.idle_ns);
    }

    /// Checks that merged spans hold the moments that any of them holds, once.
    #[test]
    fn merged_spans_hold_the_same(spans in proptest::collection::vec((0..60u64, 0..10u64), 0..6), moment in 0..80u64) {
        let spans: Vec<(u64, u64)> = spans.into_iter().map(|(from, length)| (from, from + length)).collect();
        let holds = |spans: &[(u64, u64)]| spans.iter().filter(|(from, to)| (from..=to).contains(&&moment)).count();
        let any = holds(&spans) > 0;
        prop_assert_eq!(holds(&merged(spans.clone())), usize::from(any));
        for negated in [false, true] {
            let condition = Condition { field: FilterField::Time, negated, values: Vec::new(), spans: spans.clone() };
            let left = Filter { conditions: vec![condition] }.spans();
            prop_assert_eq!(holds(&left), usize::from(any != negated));
        }
    }
}

/// Checks that an event is found by its whole name before one is by the name without a modifier:
/// `cycles` asked for the samples of `cycles:u` where that was recorded first.
#[test]
fn an_event_by_its_whole_name() {
    let mut data = samples(Vec::new(), ThreadTable::default());
    let filter = |text: &str| {
        let values = vec![FilterValue { text: text.into(), at: 1 }];
        let condition = Condition { field: FilterField::Event, negated: false, values, spans: Vec::new() };
        Filter { conditions: vec![condition] }
    };
    assert_eq!(data.event(&filter("cycles")), Ok((Some(0), 0)));
    data.events[1].name = "cycles".into();
    assert_eq!(data.event(&filter("cycles")), Ok((Some(1), 1)));
    assert_eq!(data.event(&filter("cycles:u")), Ok((Some(0), 0)));
}

/// Checks names with and without `*`.
#[test]
fn patterns() {
    use super::filter::fits;
    for (pattern, name) in
        [("a", "a"), ("*", ""), ("a*", "a"), ("*b*", "abc"), ("a*b*c", "axbxbc"), ("*a", "aba")]
    {
        assert!(fits(pattern, name), "{pattern} {name}");
    }
    for (pattern, name) in [("a", "ab"), ("a*", "ba"), ("a*a", "a"), ("*b*c", "ab"), ("", "a")] {
        assert!(!fits(pattern, name), "{pattern} {name}");
    }
}

/// Checks that a query ends where its flag is set.
#[test]
fn cancelled() {
    let data = samples(Vec::new(), ThreadTable::default());
    let query = Query { verb: Verb::Tree { inverted: false, least_percent: 0.0 }, filter: Filter::default() };
    assert_eq!(data.ask(&query, &SymbolStore::default(), &AtomicBool::new(true)), Err(QueryError::Cancelled));
    assert!(data.ask(&query, &SymbolStore::default(), &AtomicBool::new(false)).is_ok());
}

fn fixture(name: &str) -> Recording {
    let path = format!("{}/../../fixtures/recordings/{name}", env!("CARGO_MANIFEST_DIR"));
    let file = std::fs::File::open(path).expect("a recording");
    Recording::open(Arc::new(file), Vec::new()).expect("readable")
}

fn opened(recording: &Recording, query: &Query) -> Dataset {
    let store = SymbolStore::new(SymbolOptions::default());
    let resolve = ResolveOptions::default();
    open(recording, query, (resolve, &store), 1, &|_, _, _| {}).expect("readable")
}

/// Checks that the functions of real recordings have the numbers of the JSON report, of all time
/// and of the ranges of `--time`.
#[test]
fn as_the_report() {
    for name in ["callgraph.data", "plain.data", "group.data", "dwarf.data"] {
        let recording = fixture(name);
        for (range, time) in [("", ""), (" and time=10%..60%", "10%-60%"), (" and time=..50%", "0%-50%")] {
            let time =
                (!time.is_empty()).then(|| crate::load::TimeSpans::parse(time, &recording).expect("spans"));
            let load = LoadOptions { callchains: true, columns: true, time, ..LoadOptions::default() };
            let store = SymbolStore::new(SymbolOptions::default());
            let profile = Profile::open(&recording, &load, ResolveOptions::default(), &store, &|_, _, _| {});
            let export = crate::export::collect(&recording, &profile.expect("readable"), name);
            for event in &export.events {
                let text = format!("top 1000 by total where event=\"{}\"{range}", event.name);
                let query = parse(&text, &recording).expect("a query");
                let data = opened(&recording, &query);
                let answer =
                    data.ask(&query, &SymbolStore::default(), &AtomicBool::new(false)).expect("an answer");
                let Body::Top(top) = answer.body else { panic!("another answer") };
                let totals = crate::export::Totals::new(event, export.functions.len());
                let mut expected: Vec<_> = (export.functions.iter().enumerate())
                    .filter(|(at, function)| {
                        totals.total[*at].samples > 0 && function.kind != crate::export::FunctionKind::Comm
                    })
                    .map(|(at, function)| {
                        let (own, total) = (totals.own[at], totals.total[at]);
                        let counts = [own.samples, own.period, total.samples, total.period];
                        (function.name.clone(), function.module.clone(), counts)
                    })
                    .collect();
                let mut found: Vec<_> = (top.rows.into_iter())
                    .map(|row| {
                        let counts = [row.self_samples, row.self_period, row.total_samples, row.total_period];
                        (row.name, row.module.unwrap_or_default(), counts)
                    })
                    .collect();
                expected.sort();
                found.sort();
                assert_eq!(found, expected, "{name}: {text}");
                assert_eq!((top.samples, top.period), (event.total_samples, event.total_period));
            }
        }
    }
}

/// Checks each form of the language.
#[test]
fn queries() {
    let recording = fixture("callgraph.data");
    let of = |text: &str| parse(text, &recording).unwrap_or_else(|error| panic!("{text}: {error}"));
    let query =
        of("top 5 threads by total where thread=7,worker and module!=libc.so.6 and time=1..2.5,+0..+1");
    assert_eq!(query.verb, Verb::Top { group: GroupBy::Threads, count: 5, by: Weight::Total });
    let [thread, module, time] = &query.filter.conditions[..] else { panic!("{query:?}") };
    assert_eq!((thread.field, thread.negated, thread.values.len()), (FilterField::Thread, false, 2));
    assert_eq!((module.field, module.negated), (FilterField::Module, true));
    assert_eq!(time.spans[0], (1_000_000_000, 2_500_000_000));
    assert_eq!(time.spans[1].1 - time.spans[1].0, 1_000_000_000);
    let callers = of("callers of \"std::sort<int, int>\" 2.5%");
    let function = FilterValue { text: "std::sort<int, int>".into(), at: 12 };
    assert_eq!(callers.verb, Verb::Callers { function, least_percent: 2.5 });
    assert_eq!(of("timeline 9 by cpu").verb, Verb::Timeline { lanes: LaneKey::Cpu, tiles: 9 });
    assert_eq!(of("tree inverted").verb, of("inverted").verb);
    assert_eq!(of("top where thread!=7").filter.conditions[0].values[0].at, 19);
    assert!(of("waits where function = \"a=b\"").needs_spans() && !of("top").needs_spans());
}

/// Checks that a text which is no query is refused with the place, what stands there, and what may
/// stand there.
#[test]
fn what_is_no_query() {
    let recording = fixture("callgraph.data");
    for (text, at, words) in [
        ("", 1, "the verbs are top, tree"),
        ("bottom", 1, "'bottom' is no verb: the verbs are top"),
        ("top x", 5, "'x' is not understood after the verb: expected 'where'"),
        ("top where", 10, "a condition is missing: the fields are time"),
        ("top where nothing=1", 11, "'nothing' is no field: the fields are time"),
        ("top where cpu 1", 15, "expected = or != after cpu"),
        ("top where cpu=", 15, "a value of cpu is missing"),
        ("top where cpu=1 or cpu=2", 17, "'or' follows a condition: expected 'and'"),
        ("top by size", 8, "'size' follows 'by': expected self or total"),
        ("top 0", 5, "'0' is out of range: expected 1 to"),
        ("tree 200%", 6, "'200%' is no share: expected 0% to 100%"),
        ("callers of", 11, "the name of a function is missing"),
        ("top where function=\"x", 20, "a quote begins here and does not end"),
        ("top where time=5", 16, "write FROM..TO in seconds"),
        ("top where event=a,b", 19, "'b' is a second event"),
    ] {
        let Err(QueryError::Syntax { at: found, what }) = parse(text, &recording) else {
            panic!("{text} is a query");
        };
        assert!(found == at && what.contains(words), "{text}: {what} at {found}");
    }
    let ask = |text: &str| {
        let query = parse(text, &recording).expect("a query");
        opened(&recording, &query)
            .ask(&query, &SymbolStore::default(), &AtomicBool::new(false))
            .expect_err("no such name")
            .to_string()
    };
    let error = ask("top where module=libm.so");
    assert!(error.contains("no module is called 'libm.so', which stands at character 18"), "{error}");
    assert!(error.contains("there are ") && error.contains("libc.so.6"), "{error}");
    assert!(ask("top where cpu=x").contains("'x' is no CPU"));
    assert!(ask("callers of nothing").contains("at character 12"));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Checks that any text is a query or an error that points into it or just after it.
    #[test]
    fn any_text(text in "(top|tree|callers|timeline|heatmap|where|and|by|time|cpu|=|!=|,|\"|%|[ -~]| |[0-9]|é){0,14}") {
        let recording = fixture("callgraph.data");
        if let Err(QueryError::Syntax { at, .. }) = parse(&text, &recording) {
            prop_assert!((1..=text.chars().count() + 1).contains(&at), "{} of {:?}", at, text);
        }
    }
}
