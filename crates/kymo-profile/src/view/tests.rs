//! Views of the recordings in `fixtures/`.
use super::*;
use crate::query::parse;
use kymo_symbols::SymbolOptions;
use std::fs::File;
use std::sync::Arc;

fn recording(name: &str) -> Recording {
    let path = format!("{}/../../fixtures/recordings/{name}", env!("CARGO_MANIFEST_DIR"));
    Recording::open(Arc::new(File::open(path).expect("a fixture")), Vec::new()).expect("readable")
}

fn view(recording: &Recording) -> RecordingView {
    let store = SymbolStore::new(SymbolOptions::default());
    let options = ViewOptions { source: "test", workers: 1, ..ViewOptions::default() };
    RecordingView::open(recording, options, &store, &|_, _, _| {}).expect("readable")
}

static GO_ON: AtomicBool = AtomicBool::new(false);

/// Checks V1: a selection of everything, with and without a range, is what the page's nodes have.
#[test]
fn a_selection_of_everything_is_the_page() {
    for name in ["callgraph.data", "plain.data", "group.data", "switch.data", "dwarf.data"] {
        let recording = recording(name);
        let view = view(&recording);
        assert!(!view.export().events.is_empty(), "{name}");
        for (event, of_page) in view.export().events.iter().enumerate() {
            let of_page: Vec<(u32, u64, u64)> = (0..)
                .zip(&of_page.stacks.nodes)
                .filter(|(_, node)| node.self_samples > 0)
                .map(|(at, node)| (at, node.self_samples, node.self_period))
                .collect();
            for range in [None, Some((0, view.export().duration_ns + 1))] {
                let selection = PageSelection { event, range, ..PageSelection::default() };
                let sums = view.select(selection, &GO_ON).expect("sums");
                assert_eq!(sums.nodes, of_page, "{name}, event {event}, {range:?}");
            }
        }
    }
}

/// Checks V2: each tenth of a recording has as many samples as `kymo query` finds in it, and of a
/// thread as many, and all tenths together have all.
#[test]
fn ranges_and_threads_are_those_of_queries() {
    let recording = recording("callgraph.data");
    let view = view(&recording);
    let store = SymbolStore::new(SymbolOptions::default());
    let (start, length) = (view.export().start_ns, view.export().duration_ns + 1);
    let seconds = |ns: u64| format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
    let mut all = 0;
    for tenth in 0..10 {
        let (from, until) = (length * tenth / 10, length * (tenth + 1) / 10);
        for (thread, of) in
            (0..).zip(&view.export().threads).map(|(at, of)| (Some(at), Some(of))).chain([(None, None)])
        {
            let selection = PageSelection { range: Some((from, until)), thread, ..PageSelection::default() };
            let sums = view.select(selection, &GO_ON).expect("sums");
            let mut text =
                format!("top where time={}..{}", seconds(start + from), seconds(start + until - 1));
            if let Some(of) = of {
                text += &format!(" and thread={}", of.tid);
            }
            let answer =
                view.ask(&parse(&text, &recording).expect("a query"), &store, &GO_ON).expect("an answer");
            let crate::query::Body::Top(top) = answer.body else { panic!("{text}") };
            assert_eq!((sums.samples, sums.period), (top.samples, top.period), "{text}");
            assert_eq!(sums.nodes.iter().map(|(_, samples, _)| samples).sum::<u64>(), sums.samples);
            all += if thread.is_none() { sums.samples } else { 0 };
        }
    }
    assert_eq!(all, view.export().events[0].total_samples);
}

/// Checks V2 for what is looked at closely: the rows over time and the heat map of each tenth, of
/// all threads and of each, add up to the sums of that selection, by node too.
#[test]
fn rows_over_time_and_heat_maps_add_up() {
    for name in ["callgraph.data", "group.data", "dwarf.data"] {
        let recording = recording(name);
        let view = view(&recording);
        let length = view.export().duration_ns + 1;
        let threads = (0..view.export().threads.len()).map(Some).chain([None]);
        for (tenth, thread) in threads.flat_map(|thread| (0..10).map(move |tenth| (tenth, thread))) {
            let range = Some((length * tenth / 10, length * (tenth + 1) / 10));
            let selection = PageSelection { range, thread, ..PageSelection::default() };
            let sums = view.select(selection, &GO_ON).expect("sums");
            let entries = view.rows_over_time(selection, &GO_ON).expect("entries").entries;
            let samples = entries.iter().map(|entry| u64::from(entry.samples));
            assert_eq!(samples.sum::<u64>(), sums.samples, "{name} {selection:?}");
            let periods = entries.iter().map(|entry| entry.period);
            assert_eq!(periods.sum::<u64>(), sums.period, "{name} {selection:?}");
            for (node, own, _) in &sums.nodes {
                let of_node = entries.iter().filter(|entry| entry.node == *node);
                let of_node = of_node.map(|entry| u64::from(entry.samples));
                assert_eq!(of_node.sum::<u64>(), *own, "{name} {selection:?}");
            }
            let heat = view.heat_map(selection, &GO_ON).expect("a heat map");
            assert_eq!((heat.samples, heat.period), (sums.samples, sums.period), "{name} {selection:?}");
            assert_eq!(heat.cell_samples.iter().sum::<u64>(), sums.samples, "{name} {selection:?}");
        }
    }
}

/// Checks that a bundle has a place for the code of each event, and ends when it is cancelled.
#[test]
fn a_bundle_has_codes_by_event() {
    let recording = recording("group.data");
    let view = view(&recording);
    let store = SymbolStore::new(SymbolOptions::default());
    let mut page = Vec::new();
    view.write_bundle(&store, &GO_ON, &mut page).expect("a page");
    let page = String::from_utf8(page).expect("text");
    let (_, codes) = page.split_once("id=\"codes\">").expect("the codes");
    let codes: serde_json::Value =
        serde_json::from_str(codes.split_once("</script>").expect("its end").0).expect("JSON");
    assert_eq!(codes.as_array().map(Vec::len), Some(view.export().events.len()), "{codes:#}");
    let cancelled = view.write_bundle(&store, &AtomicBool::new(true), &mut Vec::new());
    assert_eq!(cancelled.expect_err("it was cancelled").kind(), io::ErrorKind::Interrupted);
}

/// Checks that a page which asks for what there is not gets an error, and that a cancelled question
/// ends.
#[test]
fn what_the_page_does_not_have() {
    let recording = recording("plain.data");
    let view = view(&recording);
    let select = |selection| view.select(selection, &GO_ON);
    let own = PageSelection::default();
    for selection in [PageSelection { event: 99, ..own }, PageSelection { thread: Some(99_999), ..own }] {
        assert!(matches!(select(selection), Err(QueryError::Unknown(_))), "{selection:?}");
    }
    for selection in [
        PageSelection { range: Some((7, 7)), ..own },
        PageSelection { range: Some((9, 7)), ..own },
        PageSelection { range: Some((u64::MAX - 1, u64::MAX)), ..own },
        PageSelection { process: Some(-7), ..own },
    ] {
        assert_eq!(select(selection).expect("sums").samples, 0, "{selection:?}");
    }
    assert_eq!(view.select(own, &AtomicBool::new(true)), Err(QueryError::Cancelled));
    let store = SymbolStore::new(SymbolOptions::default());
    let code = view.code(own, usize::MAX, &store, &GO_ON);
    assert!(matches!(code, Err(QueryError::Unknown(_))), "{code:?}");
    let empty = PageSelection { range: Some((7, 7)), ..own };
    assert!(view.write_entries(empty, &GO_ON, &mut Vec::new()).is_ok());
    assert_eq!(view.heat_map(empty, &GO_ON).expect("an empty one").columns, 0);
    assert!(view.code(empty, 0, &store, &GO_ON).is_err());
}
