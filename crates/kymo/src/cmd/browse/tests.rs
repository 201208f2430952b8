//! Screens of the browser, as a terminal would show them.
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use kymo_cli::keys::Key;
use kymo_data::Recording;
use kymo_profile::load::{LoadOptions, TimeSpans};
use kymo_profile::profile::Profile;
use kymo_profile::query::{
    AnswerHead, Body, Dataset, EventRow, FilterField, QueryAnswer, Top, TopRow, Weight,
};
use kymo_profile::resolve::ResolveOptions;
use kymo_symbols::{SymbolOptions, SymbolStore};
use ratatui_core::backend::TestBackend;
use ratatui_core::buffer::Buffer;
use ratatui_core::style::Color;
use ratatui_core::terminal::Terminal;

use super::state::{Browser, Mode, Newer, Start};
use super::subject::Subject;
use super::update::{Effect, Input};
use super::{conditions, layout};

fn recording(name: &str) -> Recording {
    let path = format!("{}/../../fixtures/recordings/{name}", env!("CARGO_MANIFEST_DIR"));
    let file = std::fs::File::open(path).expect("a recording");
    Recording::open(Arc::new(file), Vec::new()).expect("readable")
}

fn start(events: Vec<EventRow>) -> Start {
    Start {
        recording: "perf.data".into(),
        events,
        chains: true,
        subject: Subject::Functions,
        by: Weight::Total,
        relative: false,
        least_percent: 0.0,
        part: String::new(),
        names: [(FilterField::Thread, Vec::new()), (FilterField::Module, Vec::new())],
        notes: vec!["a note".into()],
        live: false,
    }
}

/// The samples of a part of the time, or of all.
fn data_of(recording: &Recording, store: &SymbolStore, time: Option<TimeSpans>) -> Dataset {
    let load = LoadOptions { callchains: true, columns: true, workers: 1, time, ..LoadOptions::default() };
    let profile = Profile::open(recording, &load, ResolveOptions::default(), store, &|_, _, _| {});
    Dataset::of_profile(recording, profile.expect("readable"))
}

/// A browser whose questions are answered at once.
struct Opened {
    recording: Recording,
    data: Dataset,
    store: SymbolStore,
    browser: Browser,
    terminal: Terminal<TestBackend>,
    printed: Vec<String>,
    /// What was said of the wish for newer samples.
    follows: Vec<bool>,
    has_ended: bool,
}

impl Opened {
    /// A recording, in whose place no file is found: names are addresses on every machine.
    fn new(name: &str, size: (u16, u16)) -> Opened {
        let recording = recording(name);
        let nowhere = PathBuf::from("/no/such/folder");
        let store = SymbolStore::new(SymbolOptions {
            symfs: Some(nowhere.clone()),
            buildid_dir: Some(nowhere.clone()),
            kallsyms: Some(nowhere),
            ..SymbolOptions::default()
        });
        let data = data_of(&recording, &store, None);
        let events = data.events().into_iter().filter(|event| event.samples.is_some()).collect();
        let (browser, effects) = Browser::new(start(events), size);
        let terminal = Terminal::new(TestBackend::new(size.0, size.1)).expect("a screen");
        let (printed, follows) = Default::default();
        let mut opened =
            Opened { recording, data, store, browser, terminal, printed, follows, has_ended: false };
        opened.carry_out(effects);
        opened
    }

    fn carry_out(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            let more = match effect {
                Effect::Quit => {
                    self.has_ended = true;
                    Vec::new()
                }
                Effect::Ask(number, query) => {
                    let answer = self.data.ask(&query, &self.store, &AtomicBool::new(false));
                    self.browser.update(Input::Answer(number, answer))
                }
                Effect::Refresh(number, queries) => {
                    let ask = |query| self.data.ask(query, &self.store, &AtomicBool::new(false));
                    let answers = queries.iter().map(ask).collect();
                    self.browser.update(Input::Refreshed(number, answers))
                }
                Effect::Follow(is_wanted) => {
                    self.follows.push(is_wanted);
                    Vec::new()
                }
                Effect::Understand(text) => {
                    let understood = conditions(&text, &self.recording);
                    self.browser.update(Input::Conditions(text, understood))
                }
                Effect::Print(text) => {
                    self.printed.push(text);
                    self.browser.update(Input::Printed(Ok("perf.hist.0".into())))
                }
            };
            self.carry_out(more);
        }
    }

    fn press(&mut self, key: Key) {
        let effects = self.browser.update(Input::Key(key));
        self.carry_out(effects);
    }

    fn typed(&mut self, text: &str) {
        text.chars().for_each(|char| self.press(if char == '\n' { Key::Enter } else { Key::Char(char) }));
    }

    fn resize(&mut self, width: u16, height: u16) {
        self.terminal.backend_mut().resize(width, height);
        self.browser.update(Input::Size(width, height));
    }

    /// The screen as lines of text.
    fn screen(&mut self) -> String {
        let browser = &self.browser;
        self.terminal.draw(|frame| layout::draw(browser, frame.buffer_mut(), true)).expect("drawn");
        text_of(self.terminal.backend().buffer())
    }

    fn shows(&mut self, words: &str) {
        let screen = self.screen();
        assert!(screen.contains(words), "no {words:?} in:\n{screen}");
    }
}

/// A screen as lines of text.
pub(super) fn text_of(buffer: &Buffer) -> String {
    let mut text = String::new();
    for line in buffer.content().chunks(usize::from(buffer.area.width).max(1)) {
        let line: String = line.iter().map(|cell| cell.symbol()).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Compares with `golden/NAME.txt`. `KYMO_BLESS=1` writes the file instead.
pub(super) fn golden(name: &str, actual: &str) {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cmd/browse/golden").join(format!("{name}.txt"));
    if std::env::var_os("KYMO_BLESS").is_some() {
        std::fs::write(&path, actual).expect("the golden file can be written");
        return;
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(wanted == actual, "{name} changed; if it is meant, run with KYMO_BLESS=1. Now:\n{actual}");
}

/// Checks each view of a real recording on a screen of 80 columns and 24 lines.
#[test]
fn golden_screens() {
    let mut opened = Opened::new("callgraph.data", (80, 24));
    golden("functions", &opened.screen());
    opened.typed("s+");
    golden("functions-open", &opened.screen());
    opened.typed("C2E");
    golden("call-tree", &opened.screen());
    opened.typed("3");
    opened.press(Key::Down);
    opened.press(Key::Right);
    golden("inverted", &opened.screen());
    opened.typed("c");
    golden("callers", &opened.screen());
    opened.press(Key::Esc);
    opened.typed("o");
    golden("callees", &opened.screen());
    for (key, name) in [("4", "modules"), ("5", "threads"), ("6", "processes"), ("7", "cpus")] {
        opened.typed(key);
        golden(name, &opened.screen());
    }
    opened.typed("?");
    golden("help", &opened.screen());
    opened.typed("q1i");
    golden("details", &opened.screen());
}

/// Checks small screens: the list has what is left, and nothing panics down to no line at all.
#[test]
fn small_screens() {
    let mut opened = Opened::new("callgraph.data", (20, 5));
    opened.typed("2E");
    golden("small", &opened.screen());
    for (width, height) in [(1, 1), (2, 3), (80, 1), (1, 24), (20, 2), (300, 100)] {
        opened.resize(width, height);
        for mode in ["", "?", "qi", "q/x", "\nf"] {
            opened.typed(mode);
            opened.screen();
        }
        opened.press(Key::Esc);
        opened.press(Key::Esc);
    }
}

/// Checks that a resize keeps the selected row on the screen, and shows what a screen of that size
/// would show.
#[test]
fn resize() {
    let mut opened = Opened::new("callgraph.data", (80, 24));
    opened.typed("2E");
    opened.press(Key::End);
    let last = opened.browser.place.list.selected().map(|row| row.name.clone()).expect("a row");
    for (width, height) in [(100, 8), (60, 40), (80, 24)] {
        opened.resize(width, height);
        opened.shows(&last);
        let before = opened.screen();
        opened.terminal.clear().expect("cleared");
        assert_eq!(opened.screen(), before);
    }
}

/// Checks zooms: into the module of a row, into a thread, out again, and back where one was.
#[test]
fn zoom_and_back() {
    let mut opened = Opened::new("callgraph.data", (80, 24));
    let whole = opened.browser.place.whole;
    opened.press(Key::Down);
    let first = opened.screen();
    opened.typed("d");
    let of_module = opened.browser.place.whole;
    assert!(of_module.0 > 0 && of_module.0 < whole.0, "{of_module:?} {whole:?}");
    opened.shows("| module ");
    opened.typed("t");
    opened.shows("Threads | module ");
    opened.press(Key::Enter);
    opened.shows("| thread ");
    assert!(opened.browser.place.whole.0 <= of_module.0);
    opened.typed("d");
    assert!(!opened.screen().contains("| module "));
    opened.typed("t");
    assert!(!opened.screen().contains("| thread "));
    assert_eq!(opened.browser.place.whole, whole);
    for _ in 0..5 {
        opened.press(Key::Esc);
    }
    assert_eq!(opened.screen(), first);
    opened.press(Key::Esc);
    opened.shows("this is where you began");
}

/// Checks names as they are typed: rows of a table, stacks of a tree, and all names after Escape.
#[test]
fn names_as_you_type() {
    let mut opened = Opened::new("callgraph.data", (80, 24));
    let all = opened.browser.place.list.counts();
    let name = opened.browser.place.list.all().last().map(|row| row.name.clone()).expect("a row");
    opened.typed(&format!("/{name}"));
    assert!(opened.browser.place.list.all().all(|row| row.name.contains(&name)));
    opened.shows(&format!("names with: {name}_"));
    opened.typed("\n");
    opened.shows(&format!("names with '{name}'"));
    opened.press(Key::Esc);
    assert_eq!(opened.browser.place.list.counts(), all);
    opened.typed(&format!("2/{name}\n"));
    let (some, whole) = (opened.browser.place.whole, opened.browser.start.events[0].samples);
    assert!(some.0 > 0 && Some(some.0) < whole, "{some:?} {whole:?}");
    opened.typed("/ no such name");
    opened.shows("nothing is left by these conditions");
    opened.press(Key::Esc);
    assert_eq!(opened.browser.place.whole, some);
}

/// Checks conditions, the least percentage, percentages of what is left, the line of names and the
/// order.
#[test]
fn conditions_and_columns() {
    let mut opened = Opened::new("callgraph.data", (80, 24));
    let whole = opened.browser.place.whole;
    opened.typed("ftime=0%..50%\n");
    let half = opened.browser.place.whole;
    assert!(half.0 > 0 && half.0 < whole.0);
    opened.shows("| time=0%..50%");
    let absolute = opened.screen();
    opened.typed("F");
    assert_ne!(opened.screen(), absolute);
    opened.shows("% of what is left");
    opened.typed("f");
    opened.press(Key::Ctrl('u'));
    opened.typed("x=1\n");
    opened.shows("'x' is no field");
    opened.typed("f");
    opened.press(Key::Ctrl('u'));
    opened.typed("event=cpu-clock\n");
    opened.shows("Tab chooses the event");
    opened.press(Key::Esc);
    assert_eq!(opened.browser.place.whole, whole);
    let count = opened.browser.place.list.counts().0;
    opened.typed("L");
    opened.press(Key::Ctrl('u'));
    opened.typed("50\n");
    assert!(opened.browser.place.list.counts().0 < count);
    opened.shows("from 50% on");
    opened.typed("H");
    assert!(!opened.screen().contains("Function, below"));
    opened.typed("s");
    opened.shows("Functions, by self");
    opened.typed("P");
    opened.shows("written to perf.hist.0");
    assert!(opened.printed[0].contains("Functions, by self") && opened.printed[0].lines().count() > 3);
}

/// Checks that a name which nothing has is told with its place where it was typed, and that Escape
/// leads back.
#[test]
fn unknown_names() {
    let mut opened = Opened::new("callgraph.data", (80, 24));
    let before = opened.browser.place.whole;
    opened.typed("fmodule=libm.so\n");
    opened.shows("no module is called 'libm.so', which stands at character 8 of the query: there");
    opened.press(Key::Esc);
    assert_eq!(opened.browser.place.whole, before);
    opened.browser.start.names[0].1.push("nosuch".into());
    opened.typed("2");
    opened.shows("no thread is called 'nosuch': there are");
}

/// Checks the words where there is no code to show: of a row without a name, and of what is no
/// function.
#[test]
fn no_code() {
    let mut opened = Opened::new("callgraph.data", (80, 24));
    opened.typed("a");
    opened.shows("no sample was taken in it itself, or it was inlined: c shows what calls it");
    assert_eq!(opened.browser.mode, Mode::List);
    opened.typed("5a");
    opened.shows("no function is selected");
}

/// Checks events: Tab goes on and around, Shift-Tab back, and each has its own samples.
#[test]
fn events() {
    let mut opened = Opened::new("group.data", (80, 24));
    let count = opened.browser.start.events.len();
    assert!(count > 1);
    let mut screens = Vec::new();
    // The last line tells of a note at first.
    let top = |opened: &mut Opened| opened.screen().lines().take(20).collect::<Vec<_>>().join("\n");
    for _ in 0..count {
        screens.push(top(&mut opened));
        opened.press(Key::Tab);
    }
    assert_eq!(top(&mut opened), screens[0]);
    opened.press(Key::BackTab);
    assert_eq!(top(&mut opened), screens[count - 1]);
    screens.dedup();
    assert_eq!(screens.len(), count);
}

/// Checks that an answer which comes late has no effect, and that one for a row opens that row
/// wherever the cursor is by then.
#[test]
fn late_answers() {
    let mut opened = Opened::new("callgraph.data", (80, 24));
    opened.press(Key::Down);
    let [Effect::Ask(number, query)] = &opened.browser.update(Input::Key(Key::Enter))[..] else {
        panic!("a question");
    };
    let ask = || opened.data.ask(query, &opened.store, &AtomicBool::new(false));
    let (answer, again) = (ask(), ask());
    assert!(opened.browser.is_waiting());
    opened.press(Key::Down);
    opened.browser.update(Input::Answer(*number, answer));
    assert!(!opened.browser.is_waiting());
    assert!(opened.browser.place.list.all().nth(1).is_some_and(|row| row.is_open));
    let before = opened.screen();
    opened.browser.update(Input::Answer(*number, again));
    assert_eq!(opened.screen(), before);
    // The list that it was for is left.
    let effects = opened.browser.update(Input::Key(Key::Char('5')));
    opened.browser.update(Input::Key(Key::Esc));
    opened.carry_out(effects);
    assert_eq!(opened.screen(), before);
}

/// Checks that any keys in any order lead to no panic, and that Escape leads back.
#[test]
fn any_keys() {
    const KEYS: &[u8] = b"+eECcodt1234567sFHiP?/x\nfL \t";
    let mut seed = 1_u64;
    let mut opened = Opened::new("callgraph.data", (60, 12));
    for step in 0..3000 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let choice = (seed >> 33) as usize;
        let others = [
            Key::Up,
            Key::Down,
            Key::Left,
            Key::Right,
            Key::Esc,
            Key::End,
            Key::Home,
            Key::Backspace,
            Key::Tab,
        ];
        match choice % 3 {
            0 => opened.typed(&char::from(KEYS[choice / 3 % KEYS.len()]).to_string()),
            _ => opened.press(others[choice / 3 % others.len()]),
        }
        if step % 7 == 0 {
            opened.screen();
        }
        if step % 101 == 0 {
            opened.resize((choice % 90) as u16 + 1, (choice / 90 % 30) as u16 + 1);
        }
    }
    for _ in 0..4000 {
        opened.press(Key::Esc);
        opened.press(Key::Left);
    }
    assert_eq!((&opened.browser.place.subject, &opened.browser.mode), (&Subject::Functions, &Mode::List));
    assert!(!opened.has_ended);
    opened.press(Key::Ctrl('c'));
    assert!(opened.has_ended);
}

/// Checks that a key which moves the cursor changes two rows and the last line, not the screen: a
/// slow connection gets little.
#[test]
fn few_cells_change() {
    let mut opened = Opened::new("callgraph.data", (80, 24));
    opened.typed("2E");
    opened.screen();
    let before = opened.terminal.backend().buffer().clone();
    opened.press(Key::Down);
    opened.screen();
    let changed = before.diff(opened.terminal.backend().buffer());
    let mut lines: Vec<u16> = changed.iter().map(|(_, y, _)| *y).collect();
    lines.dedup();
    assert_eq!(lines, [3, 4, 23]);
}

/// Checks names that would act on a terminal, are wide, or are very long; and that a terminal
/// without colours gets none.
#[test]
fn hostile_names() {
    let unit = "events".to_owned();
    let event = EventRow {
        name: "cycles\x1b[2J".into(),
        unit,
        samples: Some(4),
        period: Some(100),
        is_of_sums: false,
    };
    let (mut browser, effects) = Browser::new(start(vec![event]), (40, 12));
    let names =
        ["\x1b]0;owned\x07", "漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字", "a\u{202e}b\nc", "e\u{301}\u{301}"];
    let rows = names.iter().map(|name| TopRow {
        name: (*name).to_owned(),
        module: Some("\x1b[31mlib".into()),
        self_period: 25,
        total_period: 50,
        total_samples: 1,
        self_samples: 1,
        ..TopRow::default()
    });
    let head = AnswerHead { event: "x".into(), unit: "events".into(), is_of_sums: false };
    let top = Top { samples: 4, period: 100, rows: rows.collect(), more: 0 };
    let [Effect::Ask(number, _)] = &effects[..] else { panic!("a question") };
    browser.update(Input::Answer(*number, Ok(QueryAnswer { head, body: Body::Top(top) })));
    for (mode, color) in [("", true), ("", false), ("i", false)] {
        mode.chars().for_each(|char| drop(browser.update(Input::Key(Key::Char(char)))));
        let mut terminal = Terminal::new(TestBackend::new(40, 12)).expect("a screen");
        terminal.draw(|frame| layout::draw(&browser, frame.buffer_mut(), color)).expect("drawn");
        let buffer = terminal.backend().buffer();
        let text: String = buffer.content().iter().map(|cell| cell.symbol()).collect();
        assert!(!text.contains(|c: char| c.is_control() || c == '\u{202e}'), "{text:?}");
        let colored =
            buffer.content().iter().filter(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset);
        assert_eq!(colored.count() > 0, color);
        // A wide character is two cells, of which the second is empty: no line is longer.
        if mode.is_empty() {
            assert!(
                text.contains("\\x1b]0;owned\\x07") && text.contains('漢') && text.contains('>'),
                "{text}"
            );
        }
    }
    assert!(layout::printed(&browser).contains("a\\u{202e}b\\nc"));
}

impl Opened {
    /// As if the recording ran: its rows are those of the first half of the time at first.
    fn live(name: &str, size: (u16, u16)) -> Opened {
        let mut opened = Opened::new(name, size);
        opened.browser.start.live = true;
        opened.browser.message = None;
        opened.newer(0.5);
        opened
    }

    /// Rows up to this part of the time come.
    fn newer(&mut self, part: f64) -> Vec<Effect> {
        let whole = data_of(&self.recording, &self.store, None);
        let times = whole.columns().time();
        let until = times[((times.len() - 1) as f64 * part) as usize];
        self.data = data_of(&self.recording, &self.store, Some(TimeSpans(vec![(0, until)])));
        let (events, notes) = (self.data.all_events().to_vec(), Vec::new());
        let newer = Newer { recording: format!("up to {part}"), events, notes };
        let effects = self.browser.update(Input::Newer(newer));
        self.carry_out(effects.clone());
        effects
    }

    fn selected(&self) -> String {
        self.browser.place.list.selected().map(|row| row.name.clone()).expect("a row")
    }

    fn open_names(&self) -> Vec<(usize, String)> {
        let open = self.browser.place.list.all().filter(|row| row.is_open);
        open.map(|row| (row.depth, row.name.clone())).collect()
    }
}

/// Checks that newer samples change the numbers and leave the user in place: in tables and in trees
/// the same rows are open, the same one is selected, and filters and the order stay. What is shown
/// then is what a browser that is opened then would show, but for what is open.
#[test]
fn newer_samples() {
    for keys in ["s", "s+", "2E", "3", "3E", "4", "5", "sc", "so"] {
        let mut opened = Opened::live("callgraph.data", (80, 40));
        opened.typed(keys);
        opened.press(Key::Down);
        let (selected, open, whole) = (opened.selected(), opened.open_names(), opened.browser.place.whole);
        opened.newer(1.0);
        assert!(opened.browser.place.whole.0 > whole.0, "{keys}");
        opened.shows("up to 1");
        assert_eq!(opened.selected(), selected, "{keys}");
        let now = opened.open_names();
        assert!(open.iter().all(|row| now.contains(row)), "{keys}: {open:?} {now:?}");
        assert_eq!(now.len(), open.len(), "{keys}: {open:?} {now:?}");
        let mut fresh = Opened::new("callgraph.data", (80, 40));
        fresh.typed(keys);
        let total = |opened: &Opened| -> u64 {
            opened.browser.place.list.all().filter(|row| row.depth == 0).map(|row| row.numbers.total).sum()
        };
        assert_eq!(total(&opened), total(&fresh), "{keys}");
    }
    let mut opened = Opened::live("callgraph.data", (80, 40));
    opened.typed("d/x\n");
    opened.newer(1.0);
    opened.shows("| module ");
    opened.shows("names with 'x'");
}

/// Checks that newer samples wait for the answer to a question of the user, and that such a
/// question takes the place of those for newer numbers, which are asked for again.
#[test]
fn questions_beside_newer_samples() {
    let mut opened = Opened::live("callgraph.data", (80, 24));
    let question = opened.browser.update(Input::Key(Key::Char('5')));
    assert!(opened.newer(0.7).is_empty(), "the user's question has no answer");
    let [Effect::Ask(number, query)] = &question[..] else { panic!("{question:?}") };
    let answer = opened.data.ask(query, &opened.store, &AtomicBool::new(false));
    let effects = opened.browser.update(Input::Answer(*number, answer));
    let [Effect::Refresh(refresh, _)] = &effects[..] else { panic!("{effects:?}") };
    let question = opened.browser.update(Input::Key(Key::Char('4')));
    let late = opened.browser.update(Input::Refreshed(*refresh, Ok(Vec::new())));
    assert_eq!(late, []);
    opened.shows("up to 0.7");
    opened.carry_out(question);
    opened.shows("Modules");
    // A row is closed while newer numbers are asked for: it stays closed.
    opened.typed("1s+");
    assert!(!opened.open_names().is_empty());
    let newer =
        Newer { recording: "x".into(), events: opened.browser.start.events.clone(), notes: Vec::new() };
    let effects = opened.browser.update(Input::Newer(newer));
    opened.press(Key::Left);
    opened.carry_out(effects);
    assert_eq!(opened.open_names(), []);
}

/// Checks the keys that freeze the list, what is said of it, and of an end; and that a zoom into
/// what has no samples now is said, and stays.
#[test]
fn freezes_and_ends() {
    let mut opened = Opened::live("callgraph.data", (80, 24));
    opened.shows("p: freeze");
    opened.typed("p");
    opened.shows("| frozen");
    opened.shows("p: go on");
    opened.typed(" ");
    assert_eq!(opened.follows, [false, true]);
    opened.typed("?");
    opened.shows("p or Space freezes the list, and goes on");
    opened.typed("q5");
    opened.press(Key::Enter);
    let zoomed = opened.browser.place.zooms.clone();
    opened.data = data_of(&opened.recording, &opened.store, Some(TimeSpans(vec![(0, 0)])));
    let events = opened.data.all_events().to_vec();
    let newer = Newer { recording: "nothing".into(), events, notes: Vec::new() };
    let effects = opened.browser.update(Input::Newer(newer));
    opened.carry_out(effects);
    opened.shows("no sample in this time");
    assert_eq!(opened.browser.place.zooms, zoomed);
    opened.newer(1.0);
    assert!(opened.browser.place.list.counts().0 > 0);
    opened.browser.update(Input::Ended("it is over".into()));
    opened.shows("| it has ended");
    opened.shows("it is over");
    opened.typed("p");
    assert_eq!(opened.follows.len(), 2);
}
