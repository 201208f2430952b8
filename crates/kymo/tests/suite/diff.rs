//! `kymo diff`: what it says of two builds, in all its forms, and of recordings that it refuses.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use kymo_testing::Browser;
use serde_json::Value;

use crate::programs::build;
use crate::reference::keys;
use crate::scenario::fresh_folder;
use crate::tools::{Need, kymo, require, text};

fn fixture(name: &str) -> String {
    format!("{}/../../fixtures/recordings/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn row<'a>(answer: &'a Value, name: &str) -> &'a Value {
    let effects = answer["effects"].as_array().expect("a list");
    effects.iter().find(|effect| effect["name"] == name).expect("the function is tested")
}

/// Checks two builds of which one does more work in one function: `--run` records them, the
/// function is the regression in every form of the answer, the status is 1, and
/// docs/reference/formats/diff-json.md lists every key.
#[test]
fn a_slower_function_is_found_in_every_form() {
    if require("diff::slower", &[Need::Program("cc"), Need::Program("sh")]).is_none() {
        return;
    }
    let folder = fresh_folder("diff-slower");
    let flags = ["-O1", "-fno-omit-frame-pointer"];
    let old = build("rows.c", &[&flags[..], &["-DHASH=100"]].concat());
    let new = build("rows.c", &[&flags[..], &["-DHASH=400"]].concat());
    let commands = [&old, &new].map(|program| format!("{} 150", text(program)));
    let at = folder.join("recordings");
    let record = ["diff", "-q", "--json", "-n", "4", "--seed", "1", "-o", text(&at), "--run"];
    let said = kymo().run(record.into_iter().chain([&*commands[0], "--run", &*commands[1]]));
    assert_eq!(said.code, Some(1), "{}{}", said.stdout, said.stderr);
    let answer = said.json();
    assert_eq!((&answer["schema"], &answer["schema_version"]), (&"kymo-diff".into(), &1.into()));
    assert_eq!(answer["verdict"], "regression");
    let hash = row(&answer, "hash_rows");
    assert_eq!(hash["verdict"], "regression");
    assert_eq!(hash["old_runs"].as_array().map(Vec::len), Some(4));
    // Three times more, give or take what a busy machine adds.
    let change = hash["of_itself"]["estimate"].as_f64().expect("both have it");
    assert!((1.5..6.0).contains(&change), "{hash}");

    let document = include_str!("../../../../docs/reference/formats/diff-json.md");
    let lines = document.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let listed: BTreeSet<String> = lines.map(str::to_owned).collect();
    let mut every = BTreeSet::new();
    keys(&answer, "", &mut every);
    let of_moves = |key: &&String| {
        ["moved[]", "renamed[]", "total.of_itself"].iter().any(|start| key.starts_with(start))
    };
    assert_eq!(
        every.iter().filter(|key| !of_moves(key)).collect::<Vec<_>>(),
        listed.iter().filter(|key| !of_moves(key)).collect::<Vec<_>>()
    );

    let file = |side: &str, number: u32| text(&at.join(format!("{side}-0{number}.data"))).to_owned();
    let side = |side: &str| (1..=4).map(|number| file(side, number)).collect::<Vec<_>>();
    let (junit, picture) = (folder.join("diff.xml"), folder.join("diff.svg"));
    let words = ["diff", "-q", "--share", "--md", "--junit", text(&junit), "--flamegraph", text(&picture)];
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    let files = [side("old"), vec!["--".to_owned()], side("new")].concat();
    let said = kymo().run([words, files].concat()).ends(1);
    said.prints("**Regression: ").prints("| regression | hash\\_rows (rows");
    let junit = fs::read_to_string(junit).expect("a file");
    assert!(
        junit.contains("<testcase name=\"hash_rows\"") && junit.contains("<failure message=\"regression: ")
    );
    for name in ["diff.svg", "diff.old.svg"] {
        let picture = fs::read_to_string(folder.join(name)).expect("a picture");
        assert!(picture.starts_with("<?xml") && picture.contains("hash_rows"), "{name}");
    }
    let text_answer = kymo().run(["diff", "-q", &file("old", 1), &file("new", 1)]);
    assert!(text_answer.stdout.contains("share of the run's cost"), "{}", text_answer.stdout);
}

/// Checks the page of a comparison in chromium: the slower function is first by change and has its
/// verdict, its bars tell both sides, the old side has less of it, and the browser complains of
/// nothing. With `KYMO_BLESS=1` it makes the picture of the book anew.
#[test]
fn a_page_shows_what_changed() {
    const TEST: &str = "diff::a_page_shows_what_changed";
    let Some(browser) = Browser::find(TEST) else { return };
    if require(TEST, &[Need::Program("cc"), Need::Program("sh")]).is_none() {
        return;
    }
    let folder = fresh_folder("diff-page");
    let flags = ["-O1", "-fno-omit-frame-pointer"];
    let builds = ["-DHASH=100", "-DHASH=400"].map(|work| build("rows.c", &[&flags[..], &[work]].concat()));
    let [old, new] = builds.map(|program| format!("{} 150", text(&program)));
    let page = folder.join("diff.html");
    let words = ["diff", "-q", "-n", "4", "--seed", "1", "--html", text(&page), "--run", &old, "--run", &new];
    kymo().run(words).ends(1);

    let mut tab = browser.open(&format!("file://{}", page.display()), (1100, 900));
    tab.check("check.rows > 2");
    tab.evaluate("[...document.querySelectorAll('#table th button')].find(head => head.textContent === 'Change of self').click()");
    let shown = tab.check("check.changed[0][0] === 'hash_rows'");
    assert_eq!(shown["changed"][0][2], "regression", "{shown:#}");
    let change = shown["changed"][0][1].as_f64().expect("both sides have it");
    assert!((1.5..6.0).contains(&change), "{shown:#}");
    tab.evaluate("[...document.querySelectorAll('#table tr.row')].find(row => row.textContent.includes('hash_rows')).click()");
    tab.wait_for("document.getElementById('detail').textContent.includes('regression: +')");
    if std::env::var_os("KYMO_BLESS").is_some() {
        let picture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/img/diff.png");
        tab.screenshot(&picture);
    }
    let of_new = shown["top"][0][1].as_f64().expect("a sum");
    tab.evaluate("{ const event = document.getElementById('event'); event.value = 1; event.dispatchEvent(new Event('change')); }");
    let of_old = tab.check("check.event.endsWith('old side')")["top"][0][1].as_f64().expect("a sum");
    assert!(((of_new / of_old - 1.0) - change).abs() < 0.01, "{of_new} of {of_old}");
    for key in ["3", "4", "1"] {
        tab.press(key, false);
        tab.check("check.frames > 0");
    }
    assert_eq!(tab.complaints(), &[] as &[String]);
}

/// Checks that a recording is no regression of itself, for whatever has rows.
#[test]
fn a_recording_is_no_regression_of_itself() {
    let file = fixture("callgraph.data");
    for by in ["functions", "inclusive", "paths", "lines", "modules"] {
        let said = kymo().run(["diff", "--by", by, "--json", &file, &file]);
        assert!(matches!(said.code, Some(0 | 3)), "{by}: {}", said.stderr);
        said.says("one run a side");
        let answer = said.json();
        assert_eq!(answer["subject"], by);
        let effects = answer["effects"].as_array().expect("a list");
        assert!(
            !effects.is_empty() && effects.iter().all(|effect| effect["change"]["estimate"] == 0.0),
            "{by}"
        );
    }
}

/// Checks that a recording under several names, and its copy, is one run, which is said once, and
/// that a recording on both sides does not differ.
#[test]
fn a_recording_named_twice_is_one_run() {
    let file = fixture("callgraph.data");
    let copy = fresh_folder("diff-copy").join("copy.data");
    fs::copy(&file, &copy).expect("a copy");
    let said = kymo().run(["diff", "--json", &file, &file, text(&copy), "--", &file]);
    said.says("are the same recording: it is one run").says("one run a side").says("is on both sides");
    let answer = said.json();
    assert_eq!((&answer["weight"], &answer["verdict"]), (&"share".into(), &"no-regression".into()));
    assert_eq!(answer["old"].as_array().map(Vec::len), Some(1));
}

/// Folded stacks of a program as recordings: three runs of exact counts.
fn folded_runs(folder: &Path, side: &str, function: &str) -> Vec<String> {
    let file = folder.join(format!("{side}.folded"));
    let lines = format!("app;main;run;{function} 2000\napp;main;run;parse 5000\napp;main;run 3000\n");
    fs::write(&file, lines).expect("written");
    let import = |number: u32| {
        let to = folder.join(format!("{side}-{number}.data"));
        kymo().run(["import", "-o", text(&to), "folded", text(&file)]).ends(0);
        text(&to).to_owned()
    };
    (1..=3).map(import).collect()
}

/// Checks names that builds, folders and runs change, in recordings: the function has one row, and
/// the status is 0.
#[test]
fn a_function_with_another_name_is_no_regression() {
    for (number, (old, new)) in [
        ("L$$Lambda$1/0x00007f768d000a08.run", "L$$Lambda$1/0x00007f3a25000c18.run"),
        ("JS:*foo /srv/old/x.js:12:5", "JS:~foo /srv/new/x.js:14:5"),
        ("py::foo:/srv/old/x.py", "py::foo:/srv/new/x.py"),
        ("main.Map[go.shape.int_0]", "main.Map[...]"),
        ("foo[abi:cxx11]()", "foo()"),
        ("app::foo(int)", "app::(anonymous namespace)::foo(int)"),
        ("memcpy@GLIBC_2.2.5", "memcpy@@GLIBC_2.14"),
        ("__memmove_avx_unaligned_erms", "__memmove_evex_unaligned_erms"),
        ("app::foo<int>(int)", "app::foo<long>(long) const"),
        ("app::hash(unsigned long, long)", "app::detail::hash(unsigned long, long, int)"),
        ("hash", "hash_v2"),
    ]
    .into_iter()
    .enumerate()
    {
        let folder = fresh_folder(&format!("diff-names-{number}"));
        let (before, after) = (folded_runs(&folder, "old", old), folded_runs(&folder, "new", new));
        let words =
            [vec!["diff".to_owned(), "--json".to_owned()], before, vec!["--".to_owned()], after].concat();
        let said = kymo().run(words).ends(0);
        let answer = said.json();
        let rows = answer["effects"].as_array().expect("a list");
        assert_eq!(rows.len(), 3, "{old} and {new}: {answer:#}");
        assert!(rows.iter().all(|row| row["verdict"] == "no-difference"), "{old} and {new}: {answer:#}");
    }
}

/// Checks that what cannot be compared has the status 2 and a reason, and that a wrong command line
/// has its own.
#[test]
fn refusals_have_a_status_and_a_reason() {
    let file = fixture("callgraph.data");
    let other = fixture("tracepoint.data");
    kymo()
        .run(["diff", &file, &other])
        .ends(2)
        .says("these recordings cannot be compared: ")
        .says("different events");
    kymo().run(["diff", &file, "/nonexistent"]).ends(2).says("failed to open /nonexistent");
    kymo().run(["diff", "-e", "nothing", &file, &file]).ends(2).says("there is no event nothing");
    kymo()
        .run(["diff", "--per", "nothing", &file, &file])
        .ends(2)
        .says("there is no event nothing that counts work");
    kymo().run(["diff", &file]).ends(129).says("the new side has no recordings");
    kymo().run(["diff", &file, &file, &file]).ends(129).says("is not said");
    kymo().run(["diff", &file, "--", &file, "--json"]).ends(129).says("write options before --");
    kymo().run(["diff", "--run", "true"]).ends(129).says("--run is needed twice");
    kymo()
        .run(["diff", "--run", "true", "--run", "exit 3", "-n", "2"])
        .ends(2)
        .says("ended with exit status: 3");
}
