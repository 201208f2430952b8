//! The browser that `kymo diff --tui` opens, through a pseudo-terminal of `script`.

use std::fs;

use rustix::process::{Signal, kill_process};

use crate::at_terminal::AtTerminal;
use crate::scenario::fresh_folder;
use crate::tools::{Need, kymo, require, text};

/// Two recordings a side in a folder of this name, in which `hash` has so many samples of about
/// ten thousand on the new side, and a thousand on the old one; as words of `kymo diff`.
fn sides(name: &str, hash: u32) -> String {
    let folder = fresh_folder(name);
    let run = |side: &str, number: u32, hash: u32| {
        let file = |suffix: &str| folder.join(format!("{side}-{number}.{suffix}"));
        let (profile, recording) = (file("folded"), file("data"));
        let stacks = format!("app;main;parse {}\napp;main;read;hash {hash}\n", 9000 + number);
        fs::write(&profile, stacks).expect("a file");
        kymo().succeed(["import", "folded", text(&profile), "-o", text(&recording)]);
        text(&recording).to_owned()
    };
    let side = |side: &str, hash: u32| [1, 2].map(|number| run(side, number, hash)).join(" ");
    format!("{} -- {}", side("old", 1000), side("new", hash))
}

/// Checks that it opens, that rows open into callers and trees are there, that it ends with the
/// terminal as it was, and that its status is that of the comparison.
#[test]
fn opens_and_ends_with_the_status_of_the_comparison() {
    const TEST: &str = "browser_diff::opens_and_ends_with_the_status_of_the_comparison";
    if require(TEST, &[Need::Program("script"), Need::Program("stty")]).is_none() {
        return;
    }
    let worse = sides("browser-diff-worse", 2000);
    let mut terminal = AtTerminal::start(&format!("diff --tui --absolute {worse}"), ["", ""]);
    terminal.shows("Regression: 1 function costs more | Functions, by change");
    terminal.shows("the whole");
    terminal.press("/hash\r");
    terminal.shows("names with 'hash'");
    terminal.press("+");
    terminal.shows("read");
    terminal.press("i");
    terminal.shows("verdict: regression");
    terminal.press("q2E");
    terminal.shows("Call tree, by change");
    terminal.shows("- read");
    terminal.press("\x1b[B\x1b[B");
    terminal.shows("3/");
    // A whole screen has 1,920 cells.
    assert!(terminal.bytes < 1500, "{} bytes for two keys", terminal.bytes);
    terminal.resize(50, 10);
    terminal.until("a small screen", |emulator| {
        emulator.lines.len() == 10 && emulator.lines.iter().all(|line| line.len() <= 50)
    });
    terminal.press("q");
    terminal.says("status=1");
    terminal.says("restored");
    let better = sides("browser-diff-better", 100);
    let mut terminal = AtTerminal::start(&format!("diff --tui --absolute {better}"), ["NO_COLOR=1", ""]);
    terminal.shows("No regression: 1 function costs less");
    terminal.press("\x03");
    terminal.says("status=0");
    terminal.says("restored");
    let same = sides("browser-diff-same", 1000);
    let mut terminal = AtTerminal::start(&format!("diff --tui {same}"), ["", ""]);
    terminal.shows("Undecided");
    kill_process(terminal.pid(), Signal::TERM).expect("it is there");
    terminal.says("status=143");
    terminal.says("restored");
}

/// Checks that without `--tui` the table is printed at a terminal, and what is said where `--tui`
/// cannot open the browser: before anything is recorded.
#[test]
fn refusals_and_the_table() {
    let both = sides("browser-diff-text", 2000);
    let words: Vec<&str> = both.split(' ').collect();
    let with = |options: &[&'static str]| kymo().run([&["diff"][..], options, &words[..]].concat());
    with(&["--tui"]).ends(129).says("--tui needs a terminal on stdin and stdout");
    for option in ["--json", "--md"] {
        let said = with(&["--tui", option]).ends(129);
        said.says(&format!("--tui opens the browser, and {option} is about text"));
    }
    let marker = fresh_folder("browser-diff-refused").join("ran");
    let command = format!("touch {}", text(&marker));
    kymo().run(["diff", "--tui", "--run", &command, "--run", &command]).ends(129);
    assert!(!marker.exists(), "it recorded first");
    if require("browser_diff::refusals_and_the_table", &[Need::Program("script")]).is_none() {
        return;
    }
    let mut terminal = AtTerminal::start(&format!("--no-pager diff {both}"), ["", ""]);
    terminal.says("status=1");
    assert!(terminal.emulator.usual.contains("of itself"), "{}", terminal.emulator.usual);
    let mut terminal = AtTerminal::start(&format!("diff --tui {both}"), ["TERM=dumb", ""]);
    terminal.says("a TERM other than dumb");
    terminal.says("status=129");
}
