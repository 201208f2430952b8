//! What a user does in the page of `kymo view`, and of `--bundle`: by mouse and by keyboard, in
//! chromium.

use std::path::Path;
use std::time::{Duration, Instant};

use kymo_testing::{Browser, BrowserTab};
use serde_json::Value;
use tempfile::TempDir;

use crate::programs::build;
use crate::record::has_sample;
use crate::tools::{Need, kymo, ready, signal, text};
use crate::view::Viewed;

const WINDOW: (u32, u32) = (1280, 1000);

/// A recording of threads with a hot function each, and of a program whose work is inlined.
fn recording(test: &str) -> Option<(TempDir, String)> {
    if !ready(test, &[Need::Program("cc"), Need::Program("c++")]) {
        return None;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = text(&folder.path().join("perf.data")).to_owned();
    let (threads, inline) = (build("threads.c", &[]), build("inline.cc", &[]));
    let load = "\"$0\" 6 12 & \"$1\" 60; wait";
    kymo().succeed([
        "record",
        "-q",
        "-g",
        "-F",
        "2000",
        "-o",
        &file,
        "--",
        "sh",
        "-c",
        load,
        text(&threads),
        text(&inline),
    ]);
    Some((folder, file))
}

/// A query's answer.
fn query(file: &str, question: &str) -> Value {
    kymo().succeed(["query", file, question, "--json"]).json()
}

/// The range that the address has, ns from the recording's beginning on.
fn range(tab: &mut BrowserTab) -> (u64, u64) {
    let found = tab.evaluate("/range=(\\d+)-(\\d+)/.exec(location.hash).slice(1).map(Number)");
    let ns = |at: usize| found[at].as_f64().expect("a number") as u64;
    (ns(0), ns(1))
}

fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

/// Checks a visit by mouse: a dragged range has the samples that `kymo query` finds in it, the
/// timeline zooms to it, a search is marked there, the pictures follow, and the way back leads
/// through them. The browser complains of nothing.
#[test]
fn a_visit_by_mouse() {
    const TEST: &str = "page::a_visit_by_mouse";
    let Some(browser) = Browser::find(TEST) else { return };
    let Some((_folder, file)) = recording(TEST) else { return };
    let viewed = Viewed::of(&file, &[]);
    let mut tab = browser.open(&viewed.address, WINDOW);
    let whole = tab.check("check.frames > 10");
    let all = query(&file, "top 1");
    assert_eq!(whole["samples"], all["top"]["samples"], "{whole:#}");

    tab.drag("#timeline canvas", (0.4, 0.15), (0.7, 0.15));
    let dragged = tab.check("check.exact");
    let (from, until) = range(&mut tab);
    let report = kymo().succeed(["report", "--json", "-i", &file]).json();
    let start = report["recording"]["start_ns"].as_u64().expect("ns");
    let within =
        query(&file, &format!("top 1 where time={}..{}", seconds(start + from), seconds(start + until - 1)));
    assert_eq!(dragged["samples"], within["top"]["samples"], "{from} to {until}: {dragged:#}");

    tab.click("#window-in", (0.5, 0.5));
    tab.wait_for("location.hash.includes('window=')");
    tab.focus("#query");
    "hot_d".chars().for_each(|letter| tab.press(&letter.to_string(), false));
    let searched = tab.check("check.matched > 0");
    assert!(searched["matched"].as_f64() < searched["whole"].as_f64(), "{searched:#}");
    // It goes to what was found.
    tab.press("Enter", false);
    tab.wait_for(
        "location.hash.includes('focus=') && document.getElementById('detail').textContent.includes('hot_d')",
    );

    for (name, shows) in [
        ("chart", "check.tab === 'chart' && check.boxes > 3"),
        ("tree", "check.tab === 'tree' && check.treeRows[0] > 3"),
        ("heat", "check.tab === 'heat' && check.heat > 0"),
    ] {
        tab.click(&format!("#tab-{name}"), (0.5, 0.5));
        tab.check(shows);
    }
    let heat = tab.check("check.heat > 0");
    assert_eq!(heat["heat"], whole["whole"], "the heat map is of the whole recording");
    tab.drag("#heat canvas", (0.06, 0.2), (0.08, 0.6));
    tab.check("check.exact");
    assert_ne!(range(&mut tab), (from, until));

    tab.back();
    tab.wait_for("document.getElementById('tab-tree').ariaSelected === 'true'");
    tab.back();
    tab.back();
    tab.wait_for("document.getElementById('tab-flame').ariaSelected === 'true'");
    assert_eq!(tab.complaints(), &[] as &[String]);
}

/// Checks the code of functions: each instruction has the samples that `kymo query` has for it, the
/// lines are those of the source file, a chosen line lights its instructions, and an inlined
/// function leads to the one it was put into.
#[test]
fn code_beside_its_source() {
    const TEST: &str = "page::code_beside_its_source";
    let Some(browser) = Browser::find(TEST) else { return };
    let Some((_folder, file)) = recording(TEST) else { return };
    let viewed = Viewed::of(&file, &[]);
    let mut tab = browser.open(&viewed.address, WINDOW);
    let choose = |tab: &mut BrowserTab, name: &str| {
        let find = format!(
            "[...document.querySelectorAll('#table tr.row')].find(row => row.textContent.includes('{name}')).click()"
        );
        tab.evaluate(&find);
    };
    tab.check("check.rows > 5");
    choose(&mut tab, "hot_d");
    tab.press("6", false);
    let shown = tab.check("check.code");
    let function = &query(&file, "annotate hot_d")["annotate"]["functions"][0];
    assert_eq!(shown["code"]["samples"], function["samples"], "{shown:#}");
    let instructions = function["instructions"].as_array().expect("instructions");
    assert_eq!(shown["code"]["instructions"], instructions.len());
    let hottest = instructions.iter().map(|row| row["samples"].as_u64()).max().flatten().expect("a count");
    let chosen = tab.evaluate("document.querySelector('.asm .chosen .text').textContent");
    let texts = instructions.iter().filter(|row| row["samples"] == hottest).map(|row| &row["text"]);
    assert!(texts.clone().any(|text| *text == chosen), "{chosen} of {texts:?}");
    let source = tab.evaluate("document.querySelector('.source').textContent");
    assert!(source.as_str().expect("text").contains("HOT(hot_a, 1)"), "{source}");
    tab.click(".source .lit", (0.5, 0.5));
    tab.wait_for("document.querySelectorAll('.asm .lit').length > 3");
    choose(&mut tab, "innermost");
    tab.wait_for("document.querySelector('.code-head').textContent.includes('was inlined into')");
    assert_eq!(tab.complaints(), &[] as &[String]);
}

/// Checks that everything can be reached without a mouse: the pictures by their numbers, ranges and
/// zoom in the timeline, branches of the call tree, cells of the heat map, instructions; and dark
/// where the user's system is.
#[test]
fn a_visit_by_keyboard() {
    const TEST: &str = "page::a_visit_by_keyboard";
    let Some(browser) = Browser::find(TEST) else { return };
    let Some((_folder, file)) = recording(TEST) else { return };
    let viewed = Viewed::of(&file, &[]);
    let mut tab = browser.open(&viewed.address, WINDOW);
    tab.check("check.frames > 10");
    let focus = |tab: &mut BrowserTab, selector: &str| {
        for _ in 0..60 {
            tab.press("Tab", false);
            if tab.evaluate(&format!("document.activeElement === document.querySelector('{selector}')"))
                == true
            {
                return;
            }
        }
        panic!("Tab does not reach {selector}");
    };
    focus(&mut tab, "#timeline canvas");
    tab.press("ArrowUp", false);
    tab.check("check.exact");
    tab.press("z", false);
    tab.wait_for("location.hash.includes('window=')");
    tab.press("d", false);
    tab.press("-", false);
    tab.press("Z", true);
    tab.wait_for("!location.hash.includes('window=')");
    tab.press("3", false);
    focus(&mut tab, "#tree");
    let before = tab.check("check.treeRows[0] > 0")["treeRows"][0].clone();
    tab.press("ArrowLeft", false);
    tab.press("ArrowRight", false);
    tab.press("*", false);
    tab.press("ArrowDown", false);
    tab.check(&format!("check.treeRows[0] > {before}"));
    tab.press("ArrowDown", false);
    tab.press("ArrowDown", false);
    tab.wait_for("location.hash.includes('focus=')");
    tab.press("4", false);
    tab.check("check.treeRows[1] > 0 && check.treeRows[2] > 0");
    tab.press("5", false);
    focus(&mut tab, "#heat canvas");
    tab.press("ArrowRight", false);
    tab.press("ArrowDown", true);
    tab.press("Enter", false);
    tab.check("check.exact");
    tab.press("Escape", false);
    tab.press("2", false);
    tab.check("check.tab === 'chart'");
    focus(&mut tab, "#chart canvas");
    tab.press("ArrowDown", false);
    tab.press("Enter", false);
    tab.prefer("dark");
    tab.wait_for("document.documentElement.dataset.theme === 'dark'");
    tab.prefer("light");
    tab.wait_for("document.documentElement.dataset.theme === 'light'");
    assert_eq!(tab.complaints(), &[] as &[String]);
}

/// Checks that an address which names a picture shows that one first: no other has been drawn yet.
#[test]
fn an_address_begins_with_any_picture() {
    const TEST: &str = "page::an_address_begins_with_any_picture";
    let Some(browser) = Browser::find(TEST) else { return };
    let Some((_folder, file)) = recording(TEST) else { return };
    let viewed = Viewed::of(&file, &[]);
    for tab in ["flame", "chart", "tree", "butterfly", "heat", "code"] {
        let address = format!("{}#tab={tab}&q=hot&lanes=states", viewed.address);
        let mut page = browser.open(&address, WINDOW);
        let check = page.check(&format!("check.error || check.tab === '{tab}'"));
        assert!(check["error"].is_null() && check["matched"].as_f64() > Some(0.0), "{tab}: {check:#}");
        assert_eq!(page.complaints(), &[] as &[String], "{tab}");
    }
}

/// Checks the page that is a file: it asks for nothing, and has the same pictures and the code of
/// the hottest function.
#[test]
fn a_bundle_works_without_a_server() {
    const TEST: &str = "page::a_bundle_works_without_a_server";
    let Some(browser) = Browser::find(TEST) else { return };
    let Some((folder, file)) = recording(TEST) else { return };
    let page = folder.path().join("page.html");
    kymo().succeed(["view", "-q", "--bundle", text(&page), &file]);
    kymo().run(["view", "-q", "--bundle", &file, &file]).ends(1).says("it is a recording");
    let mut tab = browser.open(&format!("file://{}", page.display()), WINDOW);
    tab.check("check.frames > 10");
    // The first one may be of the kernel, whose code is nowhere.
    tab.evaluate("[...document.querySelectorAll('#table tr.row')].find(row => row.textContent.includes('hot_d')).click()");
    tab.press("6", false);
    let shown = tab.check("check.code && check.code.lines > 3");
    assert!(shown["code"]["instructions"].as_u64() > Some(3), "{shown:#}");
    for (key, shows) in [("2", "check.boxes > 0"), ("3", "check.treeRows[0] > 0"), ("5", "check.heat > 0")] {
        tab.press(key, false);
        tab.check(shows);
    }
    assert_eq!(tab.complaints(), &[] as &[String]);
}

/// Checks that names from the recording are text: a thread, a module and a function that are called
/// like elements.
#[test]
fn hostile_names_are_text() {
    const TEST: &str = "page::hostile_names_are_text";
    let Some(browser) = Browser::find(TEST) else { return };
    if !ready(TEST, &[Need::Program("cc")]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("perf.data");
    let program = folder.path().join("<b id=x>&amp;");
    std::fs::copy(build("spin.c", &[]), &program).expect("a copy");
    kymo().succeed(["record", "-q", "-g", "-o", text(&file), "--", text(&program), "1"]);
    let viewed = Viewed::of(text(&file), &[]);
    let mut tab = browser.open(&viewed.address, WINDOW);
    tab.check("check.frames > 3");
    let shown = |tab: &mut BrowserTab| tab.evaluate("document.body.innerText.includes('<b id=x>&amp;')");
    assert_eq!(shown(&mut tab), true);
    tab.evaluate("document.querySelector('#table tr.row').click()");
    for key in ["2", "3", "4", "5", "6", "1"] {
        tab.press(key, false);
        assert_eq!(tab.evaluate("document.querySelectorAll('b#x').length"), 0, "tab {key}");
    }
    assert_eq!(tab.complaints(), &[] as &[String]);
}

/// Checks 2,000 threads: each has its lane, all of them scroll by, and few of them are in the
/// document.
#[test]
fn thousands_of_lanes() {
    const TEST: &str = "page::thousands_of_lanes";
    let Some(browser) = Browser::find(TEST) else { return };
    if !ready(TEST, &[Need::Program("cc")]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("perf.data");
    let program = build("sleepers.c", &[]);
    kymo().succeed([
        "record",
        "-q",
        "-e",
        "cs",
        "-c",
        "1",
        "-o",
        text(&file),
        "--",
        text(&program),
        "2000",
        "1",
    ]);
    let viewed = Viewed::of(text(&file), &[]);
    let mut tab = browser.open(&viewed.address, WINDOW);
    let whole = tab.check("check.frames > 1");
    assert!(whole["lanes"].as_u64() >= Some(1500), "{whole:#}");
    tab.evaluate("document.getElementById('timeline').scrollTop = 1e9");
    tab.wait_for("document.getElementById('timeline').scrollTop > 20000");
    let heap = tab.used_heap();
    assert!(heap < 200 << 20, "the page's objects take {heap} bytes");
    assert_eq!(tab.complaints(), &[] as &[String]);
}

/// Checks a recording that is looked at while it is written: the page gets more of it again and
/// again, what was chosen stays, and the end of the recording is noticed.
#[test]
fn a_recording_that_is_still_written() {
    const TEST: &str = "page::a_recording_that_is_still_written";
    let Some(browser) = Browser::find(TEST) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let file = text(&folder.path().join("perf.data")).to_owned();
    let load = "while :; do :; done";
    let words = ["record", "-q", "-g", "-F", "2000", "-o", &file, "--", "sh", "-c", load];
    let mut recorder = kymo().command(words).spawn().expect("kymo starts");
    let until = Instant::now() + Duration::from_secs(60);
    while !has_sample(Path::new(&file)) {
        assert!(Instant::now() < until, "nothing is recorded");
        std::thread::sleep(Duration::from_millis(50));
    }
    let viewed = Viewed::of(&file, &["--live"]);
    let mut tab = browser.open(&viewed.address, WINDOW);
    let first = tab.check("check.version >= 1 && check.rows > 0");
    tab.evaluate("document.querySelector('#table tr.row').click()");
    let key = tab.evaluate("/focus=([^&]+)/.exec(location.hash)[1]");
    let samples = first["samples"].as_u64().expect("a count");
    let more = tab.check(&format!("check.version > 2 && check.samples > {samples}"));
    assert!(more["durationNs"].as_f64() > first["durationNs"].as_f64(), "{more:#}");
    assert_eq!(tab.evaluate("/focus=([^&]+)/.exec(location.hash)[1]"), key);
    let notes = "document.getElementById('notes').textContent";
    assert!(tab.evaluate(notes).as_str().is_some_and(|notes| notes.contains("this page follows it")));
    signal(&recorder, rustix::process::Signal::INT);
    recorder.wait().expect("its end");
    tab.wait_for(&format!("!{notes}.includes('this page follows it')"));
    let events = query(&file, "events");
    let all = events["events"][0]["samples"].as_u64().expect("a count");
    tab.check(&format!("check.samples === {all}"));
    assert_eq!(tab.complaints(), &[] as &[String]);
}

/// Makes the pictures of the book anew, with `KYMO_BLESS=1`: a screenshot of each view.
#[test]
fn pictures_of_the_book() {
    const TEST: &str = "page::pictures_of_the_book";
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/img");
    let views = ["flame", "chart", "tree", "butterfly", "heat", "code"];
    if std::env::var_os("KYMO_BLESS").is_none() {
        for view in views {
            let file = folder.join(format!("view-{view}.png"));
            assert!(file.is_file(), "{} is missing: KYMO_BLESS=1 makes it", file.display());
        }
        return;
    }
    let Some(browser) = Browser::find(TEST) else { return };
    let Some((_folder, file)) = recording(TEST) else { return };
    let viewed = Viewed::of(&file, &[]);
    let mut tab = browser.open(&viewed.address, (1100, 900));
    tab.check("check.rows > 5");
    for view in views {
        tab.evaluate("scrollTo(0, 0)");
        if view == "butterfly" || view == "code" {
            tab.evaluate("[...document.querySelectorAll('#table tr.row')].find(row => row.textContent.includes('hot_loop')).click()");
        }
        tab.click(&format!("#tab-{view}"), (0.5, 0.5));
        tab.check(&format!("check.tab === '{view}' && (check.tab !== 'code' || check.code)"));
        tab.evaluate("scrollTo(0, 170)");
        tab.screenshot(&folder.join(format!("view-{view}.png")));
    }
}
