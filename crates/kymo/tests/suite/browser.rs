//! The browser that `kymo report` opens at a terminal, through a pseudo-terminal of `script`.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::at_terminal::AtTerminal;
use crate::programs::build;
use crate::scenario::fresh_folder;
use crate::tools::{Need, kymo, require, text};

fn recording() -> String {
    format!("{}/../../fixtures/recordings/callgraph.data", env!("CARGO_MANIFEST_DIR"))
}

/// The tests have what they need.
fn ready(test: &str) -> Option<()> {
    require(test, &[Need::Program("script"), Need::Program("stty")])
}

fn report() -> String {
    format!("report -q -i {}", recording())
}

/// Checks that the browser opens, moves, opens rows, narrows, follows the terminal's size, and ends
/// with the terminal as it was; and that a key which moves one row writes little.
#[test]
fn opens_and_ends() {
    let Some(()) = ready("browser::opens_and_ends") else { return };
    let mut terminal = AtTerminal::start(&report(), ["", ""]);
    terminal.shows("?: help");
    terminal.shows("Functions, by total");
    terminal.press("\x1b[B");
    terminal.shows("2/");
    assert!(terminal.bytes < 700, "{} bytes for a key", terminal.bytes);
    terminal.press("2E");
    terminal.shows("Call tree");
    terminal.shows("    - ");
    terminal.press("\x1b[F");
    terminal.until("the last row", |emulator| {
        let screen = emulator.screen();
        let numbers = screen.lines().last().and_then(|line| line.split_once("  ?: help"));
        numbers.and_then(|(numbers, _)| numbers.split_once('/')).is_some_and(|(at, count)| at == count)
    });
    let before = terminal.emulator.screen();
    terminal.press("\x0c");
    terminal.until("the same screen", |emulator| emulator.screen() == before);
    terminal.press("?");
    terminal.shows("callers of the selected function");
    // Escape, byte by byte: the first is no key of its own while more follows.
    terminal.press("\x1b");
    terminal.shows("Call tree");
    terminal.press("1/no such name");
    terminal.shows("names with: no such name_");
    terminal.shows("nothing is left by these conditions");
    terminal.press("\x7f\x1b");
    terminal.shows("?: help");
    terminal.resize(60, 12);
    terminal.until("a small screen", |emulator| {
        emulator.lines.len() == 12 && emulator.lines.iter().all(|line| line.len() <= 60)
    });
    terminal.resize(100, 30);
    terminal.until("a large screen", |emulator| emulator.lines.len() == 30);
    terminal.press("q");
    terminal.says("status=0");
    terminal.says("restored");
}

/// Checks the code of a function: at its hottest instruction, and back to the list.
#[test]
fn code_of_a_function() {
    let Some(()) = ready("browser::code_of_a_function") else { return };
    if require("browser::code_of_a_function", &[Need::Program("cc")]).is_none() {
        return;
    }
    let program = build("spin.c", &[]);
    let file = fresh_folder("browser-code").join("perf.data");
    kymo().succeed(["record", "-q", "-e", "cpu-clock:u", "-o", text(&file), "--", text(&program)]);
    let mut terminal = AtTerminal::start(&format!("report -i {}", text(&file)), ["", ""]);
    terminal.shows("Functions, by total");
    terminal.press("s");
    terminal.shows("Functions, by self");
    terminal.press("a");
    terminal.until("the code", |emulator| emulator.screen().contains("shl "));
    terminal.press("\x1b[H");
    terminal.shows("Disassembly of spin for cpu-clock:u");
    terminal.press("q");
    terminal.shows("Functions, by self");
    terminal.press("q");
    terminal.says("status=0");
    terminal.says("restored");
}

/// Checks that signals end it with the terminal as it was and the status of that signal, and that
/// Ctrl-C as a key is an end like any other.
#[test]
fn ends_by_signals() {
    let Some(()) = ready("browser::ends_by_signals") else { return };
    for (signal, status) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        let mut terminal = AtTerminal::start(&report(), ["", ""]);
        terminal.shows("?: help");
        kill_process(terminal.pid(), signal).expect("it is there");
        terminal.says(&format!("status={status}"));
        terminal.says("restored");
    }
    let mut terminal = AtTerminal::start(&report(), ["", ""]);
    terminal.shows("?: help");
    terminal.press("\x03");
    terminal.says("status=0");
    terminal.says("restored");
}

/// Checks that a signal ends it also while the terminal takes no output: nobody reads what `script`
/// gets, and pictures of many sizes fill what lies between.
#[test]
fn ends_while_the_terminal_is_stuck() {
    let Some(()) = ready("browser::ends_while_the_terminal_is_stuck") else { return };
    let mut terminal = AtTerminal::start(&report(), ["", ""]);
    terminal.shows("?: help");
    terminal.press("2E");
    terminal.shows("    - ");
    let script = Pid::from_child(&terminal.child);
    kill_process(script, Signal::STOP).expect("it is there");
    for columns in 40..140 {
        terminal.resize(columns, 60);
        // Each picture by itself, where the machine is fast enough.
        std::thread::sleep(Duration::from_millis(5));
    }
    let ended = terminal.pid();
    kill_process(ended, Signal::TERM).expect("it is there");
    // The shell waits for it, so its number is taken until then.
    while std::fs::read_link(format!("/proc/{}/exe", ended.as_raw_nonzero())).is_ok() {
        std::thread::sleep(Duration::from_millis(5));
    }
    kill_process(script, Signal::CONT).expect("it is there");
    terminal.until("the status", |emulator| {
        emulator.screen().contains("status=143") || emulator.usual.contains("status=143")
    });
    terminal.until("the restored line", |emulator| {
        emulator.screen().contains("restored") || emulator.usual.contains("restored")
    });
}

/// Checks that Ctrl-Z gives the terminal back to the shell, and that the screen is there again when
/// the shell goes on with it; and that it does nothing where there is no shell to go back to.
#[test]
fn suspends() {
    let Some(()) = ready("browser::suspends") else { return };
    let mut terminal = AtTerminal::start(&report(), ["set -m;", "echo between; fg >/dev/null; ended $?"]);
    terminal.shows("?: help");
    let before = terminal.emulator.screen();
    terminal.press("\x1a");
    terminal.until("the shell", |emulator| emulator.usual.contains("between"));
    assert!(terminal.emulator.usual.contains("restored"), "{}", terminal.emulator.usual);
    terminal.until("the same screen", |emulator| emulator.is_other && emulator.screen() == before);
    terminal.press("q");
    terminal.says("status=0");
    let mut terminal = AtTerminal::start(&report(), ["", ""]);
    terminal.shows("?: help");
    terminal.press("\x1a\x1b[B");
    terminal.shows("2/");
    terminal.press("q");
    terminal.says("status=0");
    terminal.says("restored");
}

/// Checks that text is printed as before wherever text is wanted: into a pipe from a terminal, with
/// `--stdio` and other options about text, without a capable terminal, with `--no-pager`.
#[test]
fn text_where_text_is_wanted() {
    let Some(()) = ready("browser::text_where_text_is_wanted") else { return };
    let file = recording();
    let piped = kymo().succeed(["report", "-i", &file]).stdout;
    assert_eq!(kymo().succeed(["report", "--stdio", "-i", &file]).stdout, piped);
    let mut terminal = AtTerminal::start(&format!("report -i {file} | cat"), ["", ""]);
    terminal.says("status=0");
    let said = terminal.emulator.usual.replace("\r\n", "\n");
    assert!(said.contains(&piped), "{said}\n{piped}");
    for (words, before) in [
        ("--no-pager report --stdio -i", ""),
        ("--no-pager report -i", ""),
        ("--no-pager report --sort comm -i", ""),
        ("report -g none -i", "PAGER=cat"),
        ("report -i", "TERM=dumb"),
    ] {
        let mut terminal = AtTerminal::start(&format!("{words} {file}"), [before, ""]);
        terminal.says("status=0");
        assert!(terminal.emulator.usual.contains("# To display the recording's facts"), "{words}");
    }
}

/// Checks what is said where `--tui` cannot open the browser.
#[test]
fn refusals_of_tui() {
    let file = recording();
    kymo().run(["report", "--tui", "-i", &file]).ends(129).says("--tui needs a terminal on stdin and stdout");
    let both = kymo().run(["report", "--tui", "--json", "-i", &file]).ends(129);
    both.says("--tui opens the browser, and --json is about text");
}

/// Checks that a thread whose name would act on a terminal is shown as text.
#[test]
fn hostile_names() {
    const TEST: &str = "browser::hostile_names";
    let Some(()) = ready(TEST) else { return };
    let folder = fresh_folder("hostile-names");
    let (program, file) = (folder.join("\x1b[2Jred"), folder.join("perf.data"));
    std::fs::copy("/bin/sh", &program).expect("a copy of the shell");
    let work = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
    let record = ["record", "-q", "-e", "cpu-clock", "-o", text(&file), "--", text(&program), "-c", work];
    kymo().succeed(record);
    let mut terminal = AtTerminal::start(&format!("report -q -i {}", text(&file)), ["", ""]);
    terminal.shows("?: help");
    terminal.press("5");
    terminal.shows("\\x1b[2Jred");
    terminal.press("4");
    terminal.shows("Modules");
    terminal.shows("\\x1b[2Jred");
    terminal.press("q");
    terminal.says("restored");
}

/// Checks that a recording without samples is told of in a sentence, not on an empty screen.
#[test]
fn nothing_to_show() {
    let Some(()) = ready("browser::nothing_to_show") else { return };
    let file = recording();
    let mut terminal = AtTerminal::start(&format!("report --tid 1 -i {file}"), ["", ""]);
    terminal.says("status=0");
    let said = &terminal.emulator.usual;
    assert!(said.contains("--tid") || said.contains("no sample"), "{said}");
}
