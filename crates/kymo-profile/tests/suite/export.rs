//! JSON, folded stacks, flame graph, and the sums under them.
use crate::sample_profile::{HOSTILE, large, small};
use kymo_profile::export::{self, ExportProfile, NO_PARENT, Totals};
use kymo_profile::load::Count;
use std::collections::HashSet;
use std::path::Path;

fn written(write: impl FnOnce(&mut dyn std::io::Write) -> std::io::Result<()>) -> String {
    let mut bytes = Vec::new();
    write(&mut bytes).expect("a Vec takes everything");
    String::from_utf8(bytes).expect("exports are UTF-8")
}

/// Compares with `tests/golden/NAME`. `KYMO_BLESS=1` writes the file instead; a difference saves what came out.
fn golden(name: &str, actual: &str) {
    let expected = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("KYMO_BLESS").is_some() {
        std::fs::write(&expected, actual).expect("the golden file can be written");
        return;
    }
    let saved = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let wanted = std::fs::read_to_string(&expected).unwrap_or_default();
    if wanted != actual {
        std::fs::write(&saved, actual).expect("the output can be saved");
        panic!(
            "{name} changed.\n  expected: {}\n  now:      {}\nIf the change is meant, run again with KYMO_BLESS=1.",
            expected.display(),
            saved.display()
        );
    }
}

/// Checks that the JSON report keeps its form, key order included.
#[test]
fn json_is_as_documented() {
    golden("report.json", &written(|out| export::json(&small(), out)));
}

/// Checks that docs/reference/formats/report-json.md lists every key of the report and no other.
#[test]
fn json_document_lists_every_key() {
    let document = include_str!("../../../../docs/reference/formats/report-json.md");
    let report: serde_json::Value =
        serde_json::from_str(&written(|out| export::json(&small(), out))).unwrap();
    let Some((_, rest)) = document.split_once("<!-- every key, in order -->\n") else {
        panic!("the document has lost its list of keys");
    };
    let listed: Vec<&str> = rest
        .lines()
        .take_while(|line| !line.starts_with("## "))
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`').map(|(key, _)| key))
        .collect();
    let mut keys = Vec::new();
    collect_keys("", &report, &mut keys);
    // A parsed object forgets the order of its keys; the golden file keeps it.
    let in_order = listed.clone();
    let mut listed = listed;
    listed.sort_unstable();
    keys.sort_unstable();
    assert_eq!(listed, keys);
    let text = written(|out| export::json(&small(), out));
    let places: Vec<_> = in_order
        .iter()
        .filter(|key| !key.contains('.'))
        .map(|key| text.find(&format!("\"{key}\": ")))
        .collect();
    assert!(places.is_sorted(), "the document lists keys in another order than the report: {in_order:?}");
}

/// Paths of all keys, each once; a list's items count as one.
fn collect_keys(prefix: &str, value: &serde_json::Value, keys: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(map) => {
            for (key, below) in map {
                let path = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
                if !keys.contains(&path) {
                    keys.push(path.clone());
                }
                collect_keys(&path, below, keys);
            }
        }
        serde_json::Value::Array(items) => {
            for item in items {
                collect_keys(&format!("{prefix}[]"), item, keys);
            }
        }
        _ => {}
    }
}

/// Checks that folded stacks have the form that flame graph tools read, whatever the names hold.
#[test]
fn folded_lines() {
    let profile = small();
    let text = written(|out| export::folded(&profile, &profile.events[0], out));
    golden("stacks.folded", &text);
    let mut sum = 0;
    for line in text.lines() {
        let (stack, count) = line.rsplit_once(' ').expect("a line ends with its count");
        assert!(!stack.is_empty() && !stack.contains(|c: char| c.is_control()), "{line:?}");
        sum += count.parse::<u64>().expect("the count is a number");
    }
    assert_eq!(sum, profile.events[0].total_samples);
}

/// Checks that a `;` in a name, as in Rust's `[u64; 512]`, is readable: the wide one in folded
/// stacks, where `;` separates frames, and itself in pictures.
#[test]
fn semicolons_in_rust_names() {
    let mut profile = small();
    profile.functions[2].name = "<[u64; 512] as main::Sum>::total".into();
    let folded = written(|out| export::folded(&profile, &profile.events[0], out));
    assert!(folded.contains("main;<[u64\u{ff1b} 512] as main::Sum>::total"), "{folded}");
    let picture = written(|out| export::flamegraph(&profile, &profile.events[0], out));
    assert!(picture.contains("[u64; 512]") && !picture.contains('\u{ff1b}'), "another character");
}

/// Checks that the flame graph is the same picture each time, names every visible function and holds no foreign markup.
#[test]
fn flame_graph_is_deterministic_and_escaped() {
    let profile = small();
    let draw = || written(|out| export::flamegraph(&profile, &profile.events[0], out));
    let svg = draw();
    assert_eq!(svg, draw());
    assert!(svg.contains("cpu-clock: 28 samples, 6 LOST"), "the subtitle says what was lost");
    for name in ["main (", "walk (", "do_syscall_64 ("] {
        assert!(svg.contains(name), "{name} is missing");
    }
    assert!(!svg.contains("<img") && !svg.contains(HOSTILE), "a name became markup");
}

/// Checks that an event without samples is an error with a sentence, not an empty picture.
#[test]
fn flame_graph_of_nothing() {
    let mut profile = small();
    profile.events[1].stacks.nodes.clear();
    let error = export::flamegraph(&profile, &profile.events[1], &mut Vec::new()).unwrap_err();
    assert_eq!(error.to_string(), "no stacks to draw: the recording has no samples of page-faults:u");
}

/// The obvious way to add up: every node walks its own path.
fn totals_by_walking(profile: &ExportProfile) -> Vec<(Count, Count)> {
    let nodes = &profile.events[0].stacks.nodes;
    let mut sums = vec![(Count::default(), Count::default()); profile.functions.len()];
    for (index, node) in nodes.iter().enumerate() {
        let weight = Count { samples: node.self_samples, period: node.self_period, latency: 0 };
        sums[node.function as usize].0 += weight;
        let mut seen = HashSet::new();
        let mut at = index as u32;
        while at != NO_PARENT {
            let above = nodes[at as usize];
            if seen.insert(above.function) {
                sums[above.function as usize].1 += weight;
            }
            at = above.parent;
        }
    }
    sums
}

/// Checks the linear sums against the obvious ones on trees with recursion, long and wide.
#[test]
fn totals_agree_with_walking_every_path() {
    for seed in 0..40 {
        let profile = large(3 + 17 * seed as u32, 400, seed);
        let totals = Totals::new(&profile.events[0], profile.functions.len());
        for (function, (own, total)) in totals_by_walking(&profile).into_iter().enumerate() {
            let found = (totals.own[function], totals.total[function]);
            assert_eq!(found, (own, total), "seed {seed}, function {function}");
        }
    }
}

/// Checks that coarser buckets keep every sample, thread by thread, and respect the limits.
#[test]
fn coarser_timelines_keep_their_sums() {
    let sums = |timeline: &export::Timeline| {
        let mut by_place = std::collections::BTreeMap::new();
        for e in &timeline.entries {
            let sum = by_place.entry((e.thread, e.cpu, e.node)).or_insert((0, 0));
            *sum = (sum.0 + u64::from(e.samples), sum.1 + e.period);
        }
        by_place
    };
    let fine = large(50, 20_000, 7).events.remove(0).timeline;
    let mut coarse = fine.clone();
    coarse.coarsen(5_000, 4);
    assert_eq!(sums(&fine), sums(&coarse));
    assert!(coarse.entries.len() <= 20_000 && coarse.bucket_ns > fine.bucket_ns);
    assert!(coarse.entries.is_sorted_by_key(|e| (e.bucket, e.thread, e.cpu, e.node)));
    assert!(coarse.entries.last().unwrap().bucket + 1 >= 4);
    let mut enough = fine.clone();
    enough.coarsen(20_000, 64);
    assert_eq!(enough.bucket_ns, fine.bucket_ns, "nothing to gain, nothing lost");
}

/// Checks that no writer panics on a broken model.
#[test]
fn broken_models_are_survived() {
    let mut parent = small();
    parent.events[0].stacks.nodes[1].parent = 5;
    let mut function = small();
    function.events[1].stacks.nodes[2].function = 99;
    let mut root = small();
    root.events[0].stacks.nodes[0].function = 1;
    let mut entry = small();
    entry.events[0].timeline.entries[0].node = 1_000;
    for profile in [parent, function, root, entry, ExportProfile::default()] {
        written(|out| export::json(&profile, out));
        written(|out| export::html(&profile, out));
        for event in &profile.events {
            written(|out| export::folded(&profile, event, out));
            written(|out| export::flamegraph(&profile, event, out));
        }
    }
}
