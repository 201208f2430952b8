//! The selector against perf itself: the same text must come to the same names and attrs.

use kymo_perf::machine::Machine;
use kymo_perf::selector::{
    EventAttr, KnownEventKind, Sampling, Selected, cache_events, known_events, parse, resolve,
};
use kymo_testing::skip;
use std::collections::BTreeMap;
use std::process::Output;

/// Runs perf; `None`, and the test says so, if there is none.
fn perf(test: &str, args: &[&str]) -> Option<Output> {
    kymo_testing::perf(test)?.args(args).output().ok()
}

fn select(text: &str) -> Vec<Selected> {
    let groups = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    resolve(&groups, &Machine::here()).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// The numbers of an attr that perf prints as `field: value` when they are not zero.
fn facts(attr: &EventAttr) -> BTreeMap<String, u64> {
    let mut facts = BTreeMap::from([
        ("type".to_owned(), u64::from(attr.kind)),
        ("config".to_owned(), attr.config),
        ("precise_ip".to_owned(), u64::from(attr.precise_ip)),
        ("bp_type".to_owned(), u64::from(attr.bp_type)),
        ("{ bp_addr, config1 }".to_owned(), attr.config1),
        ("{ bp_len, config2 }".to_owned(), attr.config2),
    ]);
    let flags = [
        ("exclude_user", attr.exclude_user),
        ("exclude_kernel", attr.exclude_kernel),
        ("exclude_hv", attr.exclude_hv),
        ("exclude_idle", attr.exclude_idle),
        ("exclude_host", attr.exclude_host),
        ("exclude_guest", attr.exclude_guest),
        ("pinned", attr.pinned),
        ("exclusive", attr.exclusive),
    ];
    facts.extend(flags.map(|(name, on)| (name.to_owned(), u64::from(on))));
    if let Sampling::Natural(period) | Sampling::Period(period) = attr.sampling {
        facts.insert("{ sample_period, sample_freq }".to_owned(), period);
    }
    facts.retain(|name, value| name == "type" || *value != 0);
    facts
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Takes a line of `perf evlist -v` apart: the name, and the fields that `wanted` has plus all it
/// could have.
fn evlist_line(line: &str, wanted: &BTreeMap<String, u64>) -> Option<(String, BTreeMap<String, u64>)> {
    let (name, fields) = line.split_once(": type: ")?;
    let fields = format!("type: {fields}");
    let mut found = BTreeMap::new();
    // `{ sample_period, sample_freq }` holds a comma, so the braces are glued first.
    let fields = fields.replace("{ sample_period, sample_freq }", "{ sample_period; sample_freq }");
    let fields = fields.replace("{ bp_addr, config1 }", "{ bp_addr; config1 }");
    let fields = fields.replace("{ bp_len, config2 }", "{ bp_len; config2 }");
    for field in fields.split(", ") {
        let (key, value) = field.split_once(": ")?;
        let key = key.replace(';', ",");
        let of_interest = ["type", "config", "precise_ip", "bp_type", "pinned", "exclusive"]
            .contains(&key.as_str())
            || key.starts_with("exclude_")
            || key.starts_with("{ bp_")
            || wanted.contains_key(&key);
        if let (true, Some(value)) = (of_interest, number(value)) {
            found.insert(key, value);
        }
    }
    Some((name.to_owned(), found))
}

/// Checks names, order and attrs of everything that can be opened without a PMU against
/// `perf record` + `perf evlist -v`.
#[test]
fn recorded_attrs_equal_perfs() {
    const TEST: &str = "recorded_attrs_equal_perfs";
    let lists = [
        "cpu-clock",
        "cpu-clock:u,cpu-clock:k,cs:uk,cs:H,cs:G,cs:GH,cs:Gu,cs:I,cs:kp,cs:D,cs:e,cs:S,cs:P",
        "{cpu-clock,cs}:u",
        "{cs:k,faults}:u,{cs:p}:p,{cs:G}:u,{cs}:H,{cs,faults}:D",
        "mygroup{cs,faults}:D,faults",
        "cpu-clock/period=1000,name=foo/u,cs//u",
        "software/config=0,period=77,name='a:b'/u,software/config=1/",
        "1:2,1:0x2:u",
        "mem:0x1000,mem:4096:x,mem:0x1000:w:u",
        "page-faults,faults,context-switches,cs,cpu-migrations,migrations,minor-faults,major-faults",
        "alignment-faults,emulation-faults,dummy,bpf-output,cgroup-switches,task-clock",
    ];
    let points =
        ["sched:sched_switch:k,cs", "sched:sched_process_*", "sched:*fork,sched:sched_process_*exec:u"];
    let machine = Machine::here();
    let tracefs = machine.tracefs().find("sched", "sched_switch");
    if let Err(error) = &tracefs {
        skip(TEST, format!("its tracepoint part: {error}"));
    }
    // One recording for all lists of a kind: perf takes a second for each.
    for lists in [&lists[..], if tracefs.is_ok() { &points[..] } else { &[] }] {
        if !lists.is_empty() {
            compare_recorded(TEST, lists);
        }
    }
}

fn compare_recorded(test: &str, lists: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("perf.data");
    let data = data.to_str().unwrap();
    // `-D -1`: opened, but never enabled. The attrs are the same, and some of these periods would
    // interrupt a program at each of its steps.
    let mut args = vec!["record", "-D", "-1", "-o", data];
    args.extend(lists.iter().flat_map(|list| ["-e", list]));
    args.push("true");
    let Some(recorded) = perf(test, &args) else { return };
    if !recorded.status.success() {
        return skip(
            test,
            format!("perf cannot record {lists:?}: {}", String::from_utf8_lossy(&recorded.stderr)),
        );
    }
    let listed = perf(test, &["evlist", "-v", "-i", data]).unwrap();
    let text = String::from_utf8(listed.stdout).unwrap();
    // perf may add a dummy event of its own, to track mappings.
    let mut lines: Vec<&str> =
        text.lines().filter(|line| line.contains(": type: ") && !line.starts_with("dummy:")).collect();
    let all: Vec<Selected> = lists.iter().flat_map(|list| select(list)).collect();
    let mut ours: Vec<&Selected> = all.iter().filter(|event| event.name != "dummy").collect();
    // perf expands a glob in the folder's order, kymo by name. Both keep the order of the lists for
    // what is in several.
    if lists.iter().any(|list| list.contains('*')) {
        lines.sort_by_key(|line| line.split_once(": type: ").map(|(name, _)| name));
        ours.sort_by(|a, b| a.name.cmp(&b.name));
    }
    assert_eq!(lines.len(), ours.len(), "{text}");
    for (line, event) in lines.iter().zip(&ours) {
        let expected = facts(&event.attr);
        let (name, found) = evlist_line(line, &expected).unwrap();
        // perf cuts a breakpoint's name at modifiers behind an access; ours keeps them.
        if event.attr.bp_addr().is_none() {
            assert_eq!(event.name, name);
        } else {
            assert!(event.name.starts_with(&name), "{name}");
        }
        assert_eq!(expected, found, "{line}");
    }
}

/// The first attr that `perf stat -vv` prints for an event, whether or not it can be opened.
fn stat_attr(test: &str, event: &str) -> Option<BTreeMap<String, u64>> {
    let output = perf(test, &["stat", "-vv", "-e", event, "true"])?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let block = text.split("perf_event_attr:\n").nth(1)?;
    let mut found = BTreeMap::new();
    for line in block.lines().take_while(|line| line.starts_with("  ")) {
        let (key, value) = line.trim().rsplit_once("  ")?;
        if let Some(value) = number(value.trim()) {
            found.insert(key.trim().to_owned(), value);
        }
    }
    found.entry("config".to_owned()).or_insert(0);
    Some(found)
}

/// Checks type and config of hardware, cache and raw events, which perf prints even where there is
/// no PMU.
#[test]
fn hardware_numbers_equal_perfs() {
    const TEST: &str = "hardware_numbers_equal_perfs";
    if Machine::here().core_pmus().count() > 1 {
        return skip(TEST, "several kinds of cores: perf prints one attr for each");
    }
    if !kymo_testing::perf_works() {
        return skip(TEST, "no working perf here");
    }
    let known = known_events().iter().filter(|known| known.kind == KnownEventKind::Hardware);
    let mut names: Vec<String> =
        known.flat_map(|known| [Some(known.name), known.alias]).flatten().map(str::to_owned).collect();
    names.extend(cache_events().map(|(name, ..)| name));
    let spellings = "l1d l1-d-write-miss L1-data-misses-load d-tlb-speculative-read btb-access LLC \
                     branches-load r1a8 r0x1A8 cycles:u 4:0x3c";
    names.extend(spellings.split(' ').map(str::to_owned));
    let mut compared = 0;
    for name in names {
        let Some(theirs) = stat_attr(TEST, &name) else { continue };
        let ours = &select(&name)[0].attr;
        let numbers = |key: &str| theirs.get(key).copied().unwrap_or(0);
        assert_eq!((u64::from(ours.kind), ours.config), (numbers("type"), numbers("config")), "{name}");
        assert_eq!(u64::from(ours.exclude_kernel), numbers("exclude_kernel"), "{name}");
        compared += 1;
    }
    if compared == 0 {
        skip(TEST, "no perf, or one that prints no attrs");
    }
}

/// Checks that every hardware, software and cache event and tracepoint that `perf list` shows
/// resolves here.
#[test]
fn everything_in_perf_list_resolves() {
    const TEST: &str = "everything_in_perf_list_resolves";
    let list = || {
        let output = perf(TEST, &["list", "--raw-dump", "hw", "sw", "cache", "tracepoint"])?;
        Some(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let Some(text) = list() else { return };
    let machine = Machine::here();
    let is_tool =
        |name| known_events().iter().any(|known| known.name == name && known.kind == KnownEventKind::Tool);
    // `sdt_` are markers of perf's build-id cache: they are no events until `perf probe` makes
    // them.
    let names = text.split_whitespace().filter(|name| !is_tool(*name) && !name.starts_with("sdt_"));
    let (mut resolved, mut failed) = (0, Vec::new());
    for name in names {
        let groups = parse(name).unwrap_or_else(|error| panic!("{error}"));
        match resolve(&groups, &machine) {
            Ok(found) => assert_eq!(found.len(), 1, "{name}"),
            Err(error) => failed.push((name, error)),
        }
        resolved += 1;
    }
    if resolved == 0 {
        skip(TEST, "perf list shows nothing");
    }
    // Probes of others come and go.
    let after = if failed.is_empty() { None } else { list() }.unwrap_or_default();
    failed.retain(|(name, _)| after.split_whitespace().any(|listed| listed == *name));
    assert!(failed.is_empty(), "{failed:?}");
}
