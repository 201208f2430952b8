//! Screens of comparisons of made-up runs, as a terminal would show them.
use std::fs::File;
use std::sync::Arc;

use kymo_cli::keys::Key;
use kymo_data::Recording;
use kymo_profile::diff::{Comparison, DiffOptions, RunOptions, RunSums, SharedStacks, Subject, compare};
use kymo_profile::import::{
    self, ImportedCount, ImportedEvent, ImportedFunction, ImportedProfile, ImportedThread,
};
use kymo_symbols::{SymbolOptions, SymbolStore};
use ratatui_core::backend::TestBackend;
use ratatui_core::buffer::Buffer;
use ratatui_core::style::Color;
use ratatui_core::terminal::Terminal;

use super::super::tests::{golden, text_of};
use super::layout;
use super::rows::ComparedView;
use super::state::{Browser, Mode};

/// Functions of a path from the outermost on, each with its module, and the samples of 1 ms on the
/// old and on the new side.
type Path = (&'static [(&'static str, &'static str)], u64, u64);

const MAIN: (&str, &str) = ("main", "rows");
const HASH: (&str, &str) = ("hash_rows", "rows");

const PROGRAM: &[Path] = &[
    (&[MAIN, ("parse_rows", "rows")], 840, 838),
    (&[MAIN, ("parse_rows", "rows"), HASH], 60, 62),
    (&[MAIN, HASH], 100, 190),
    (&[MAIN, HASH, ("memcpy", "libc.so.6")], 40, 41),
    (&[MAIN, ("copy_rows", "rows"), ("memcpy", "libc.so.6")], 300, 299),
    // Their costs are too different for one to be the other with another name.
    (&[MAIN, ("old_copy", "rows")], 50, 0),
    (&[MAIN, ("check_rows", "rows")], 0, 20),
    (&[MAIN, ("sort_rows", "rows")], 200, 120),
    (&[MAIN, ("emit_rows", "rows")], 33, 33),
];

/// A run whose counts are those of the side by a factor.
fn recording(paths: &[Path], new: bool, factor: f64) -> Recording {
    let mut profile = ImportedProfile {
        events: vec![ImportedEvent {
            name: "cpu-clock".into(),
            unit: "nanoseconds".into(),
            samples_type: Some("samples".into()),
        }],
        threads: vec![ImportedThread { pid: 1, tid: 1, comm: "rows".into() }],
        ..ImportedProfile::default()
    };
    for (path, before, after) in paths {
        let count = if new { *after } else { *before };
        let samples = (count as f64 * factor).round() as u64;
        let mut number = |(name, module): &(&str, &str)| {
            let function = ImportedFunction { name: (*name).into(), module: (*module).into() };
            let known = profile.functions.iter().position(|one| *one == function);
            known.unwrap_or_else(|| {
                profile.functions.push(function);
                profile.functions.len() - 1
            }) as u32
        };
        let stack: Vec<u32> = path.iter().rev().map(&mut number).collect();
        if samples > 0 {
            let stack_number = profile.stacks.len() as u32;
            profile.stacks.push(stack);
            let period = samples * 1_000_000;
            profile.counts.push(ImportedCount {
                event: 0,
                thread: 0,
                stack: stack_number,
                labels: 0,
                samples,
                period,
            });
        }
    }
    let fd = rustix::fs::memfd_create("run", rustix::fs::MemfdFlags::CLOEXEC).expect("memory");
    let file = File::from(fd);
    import::write(&profile, "test", &file).expect("written");
    Recording::open(Arc::new(file), Vec::new()).expect("readable")
}

/// Four runs a side.
fn compared(paths: &[Path], subject: Subject) -> Comparison {
    let store = SymbolStore::new(SymbolOptions::default());
    let mut stacks = SharedStacks::new();
    let mut side = |new: bool| -> Vec<RunSums> {
        let name = if new { "new" } else { "old" };
        let run = |(at, factor): (usize, f64)| {
            let (recording, name) = (recording(paths, new, factor), format!("{name}-{at}.data"));
            let options = RunOptions { workers: 1, ..RunOptions::default() };
            RunSums::read(&recording, &name, &options, &mut stacks, &store, &|_, _, _| {}).expect("a run")
        };
        (1..).zip([1.0, 1.01, 0.99, 1.002]).map(run).collect()
    };
    let (old, new) = (side(false), side(true));
    let options = DiffOptions { subject, ..DiffOptions::default() };
    compare(stacks, &old, &new, &options).expect("comparable")
}

struct Opened<'a> {
    browser: Browser<'a>,
    terminal: Terminal<TestBackend>,
    has_ended: bool,
}

impl<'a> Opened<'a> {
    fn new(comparison: &'a Comparison, (width, height): (u16, u16)) -> Opened<'a> {
        let browser = Browser::new(comparison, comparison.notes.clone(), (width, height));
        let terminal = Terminal::new(TestBackend::new(width, height)).expect("a screen");
        Opened { browser, terminal, has_ended: false }
    }

    fn press(&mut self, key: Key) {
        self.has_ended |= self.browser.key(key);
    }

    fn typed(&mut self, text: &str) {
        text.chars().for_each(|char| self.press(if char == '\n' { Key::Enter } else { Key::Char(char) }));
    }

    fn resize(&mut self, width: u16, height: u16) {
        self.terminal.backend_mut().resize(width, height);
        self.browser.resize((width, height));
    }

    fn draw(&mut self, color: bool) -> &Buffer {
        let browser = &self.browser;
        self.terminal.draw(|frame| layout::draw(browser, frame.buffer_mut(), color)).expect("drawn");
        self.terminal.backend().buffer()
    }

    fn screen(&mut self) -> String {
        text_of(self.draw(true))
    }

    fn shows(&mut self, words: &str) {
        let screen = self.screen();
        assert!(screen.contains(words), "no {words:?} in:\n{screen}");
    }

    /// The shown rows: depth and name.
    fn rows(&self) -> Vec<(usize, &str)> {
        self.browser.place.list.all().map(|row| (row.depth, &*row.name)).collect()
    }

    fn selected(&self) -> &str {
        self.browser.place.list.selected().map_or("", |row| &row.name)
    }
}

/// Checks each view on a screen of 80 columns and 24 lines.
#[test]
fn golden_screens() {
    let comparison = compared(PROGRAM, Subject::Functions);
    let mut opened = Opened::new(&comparison, (80, 24));
    golden("compared", &opened.screen());
    opened.press(Key::Down);
    opened.press(Key::Enter);
    golden("compared-open", &opened.screen());
    opened.typed("i");
    golden("compared-details", &opened.screen());
    opened.typed("q2E");
    golden("compared-calls", &opened.screen());
    opened.typed("s3+");
    golden("compared-inverted", &opened.screen());
    opened.typed("?");
    golden("compared-help", &opened.screen());
}

/// Checks wide and narrow screens: columns are left out where names need the room; and that nothing
/// panics down to no line at all.
#[test]
fn screens_of_other_sizes() {
    let comparison = compared(PROGRAM, Subject::Functions);
    let mut opened = Opened::new(&comparison, (40, 10));
    golden("compared-40", &opened.screen());
    opened.typed("2E");
    golden("compared-40-calls", &opened.screen());
    opened.typed("1");
    opened.resize(130, 10);
    golden("compared-130", &opened.screen());
    for (width, height) in [(1, 1), (2, 3), (80, 1), (1, 24), (20, 2), (20, 5), (300, 100)] {
        opened.resize(width, height);
        for mode in ["1", "2E", "3", "?", "qi", "q/x", "\n"] {
            opened.typed(mode);
            opened.screen();
        }
        opened.press(Key::Esc);
    }
}

/// Checks that the rows are those of the comparison in its order with the whole first, that callers
/// add up to their function, and that the other order, hidden rows and names keep what is open.
#[test]
fn the_list_and_its_callers() {
    let comparison = compared(PROGRAM, Subject::Functions);
    let mut opened = Opened::new(&comparison, (80, 24));
    let names: Vec<&str> = comparison.effects.iter().map(|effect| &*effect.name).collect();
    let expected: Vec<(usize, &str)> = ["the whole"].iter().chain(&names).map(|name| (0, *name)).collect();
    assert_eq!(opened.rows(), expected);
    opened.press(Key::Down);
    assert_eq!(opened.selected(), "hash_rows");
    opened.press(Key::Right);
    let list = &opened.browser.place.list;
    let callers: Vec<_> =
        list.all().skip_while(|row| row.depth == 0).take_while(|row| row.depth > 0).collect();
    let of_level =
        |depth: usize| callers.iter().filter(move |row| row.depth == depth).map(|row| row.numbers.total);
    let [old, new] = of_level(1).fold([0.0, 0.0], |[old, new], cost| [old + cost.old, new + cost.new]);
    let hash = list.selected().expect("a row").numbers.total;
    assert!((old - hash.old).abs() < 1.0 && (new - hash.new).abs() < 1.0, "{callers:?}");
    assert_eq!(opened.rows()[2..4], [(1, "main"), (1, "parse_rows")]);
    opened.typed("s");
    opened.shows("Functions, by new cost");
    assert_eq!((opened.selected(), opened.rows()[1]), ("hash_rows", (0, "parse_rows")));
    assert!(opened.rows().contains(&(1, "parse_rows")));
    let all = opened.rows().len();
    opened.typed("n");
    opened.shows("by new cost | 3 hidden");
    assert!(opened.rows().len() < all && opened.selected() == "hash_rows");
    assert!(!opened.rows().contains(&(0, "emit_rows")) && opened.rows().contains(&(1, "parse_rows")));
    opened.typed("ns");
    assert_eq!(opened.rows().len(), all);
    opened.typed("/hash");
    assert_eq!(opened.rows()[0], (0, "hash_rows"));
    opened.shows("names with: hash_");
    opened.press(Key::Esc);
    assert_eq!(opened.rows().len(), all);
    opened.typed("C");
    assert_eq!(opened.rows(), expected);
}

/// Checks the keys: trees and back, rows that open and close, what has no callers, and ends.
#[test]
fn keys() {
    let comparison = compared(PROGRAM, Subject::Functions);
    let mut opened = Opened::new(&comparison, (80, 24));
    opened.press(Key::Enter);
    assert_eq!(opened.rows()[1], (0, "hash_rows"), "the whole does not open");
    opened.typed("2");
    opened.shows("Call tree, by change");
    assert_eq!(opened.rows()[0], (0, "main"));
    opened.typed("/hash");
    assert!(opened.rows().contains(&(1, "parse_rows")) && !opened.rows().contains(&(1, "copy_rows")));
    opened.typed("no");
    opened.shows("nothing is left by these conditions");
    opened.press(Key::Esc);
    opened.typed("3");
    opened.shows("Inverted call tree");
    opened.press(Key::End);
    let last = opened.selected().to_owned();
    opened.press(Key::Right);
    opened.press(Key::Right);
    assert_ne!(opened.selected(), last);
    opened.press(Key::Left);
    opened.press(Key::Left);
    assert_eq!(opened.selected(), last);
    opened.typed("n");
    opened.shows("nodes of trees are not tested");
    opened.press(Key::Left);
    assert_eq!(opened.browser.place.view, ComparedView::Calls);
    opened.press(Key::Esc);
    assert_eq!(opened.browser.place.view, ComparedView::Effects);
    opened.press(Key::Esc);
    opened.shows("this is where you began");
    opened.typed("?");
    opened.shows("draw the screen anew");
    opened.typed("q");
    assert!(!opened.has_ended && opened.browser.mode == Mode::List);
    opened.typed("q");
    assert!(opened.has_ended);
    for keys in ["", "?", "/x"] {
        let mut opened = Opened::new(&comparison, (80, 24));
        opened.typed(keys);
        opened.press(Key::Ctrl('c'));
        assert!(opened.has_ended, "{keys:?}");
    }
}

/// Checks lists of other things than functions: they are flat, and the trees are there.
#[test]
fn other_subjects() {
    for (subject, title) in [
        (Subject::Modules, "Modules, by change"),
        (Subject::Paths, "Call paths, by change"),
        (Subject::Inclusive, "Functions with what they called, by change"),
    ] {
        let comparison = compared(PROGRAM, subject);
        let mut opened = Opened::new(&comparison, (120, 24));
        opened.shows(title);
        assert_eq!(opened.rows().len(), comparison.effects.len() + 1);
        opened.press(Key::Down);
        opened.press(Key::Enter);
        opened.shows("2 and 3 are call trees");
        opened.typed("3");
        opened.shows("hash_rows  (rows)");
    }
}

/// Checks that any keys in any order lead to no panic, and that Escape leads back.
#[test]
fn any_keys() {
    const KEYS: &[u8] = b"+eEC123sni?/x\n h";
    let comparison = compared(PROGRAM, Subject::Functions);
    let mut opened = Opened::new(&comparison, (60, 12));
    let mut seed = 1_u64;
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
    for _ in 0..3000 {
        opened.press(Key::Esc);
        opened.press(Key::Left);
    }
    assert_eq!((opened.browser.place.view, &opened.browser.mode), (ComparedView::Effects, &Mode::List));
    assert!(!opened.has_ended);
}

/// Checks colours: a regression is red and an improvement green, in the list and in trees, nothing
/// else is; and without colours nothing has one.
#[test]
fn colors_are_verdicts() {
    let comparison = compared(PROGRAM, Subject::Functions);
    for keys in ["", "2E", "3E"] {
        let mut opened = Opened::new(&comparison, (100, 30));
        opened.typed(keys);
        opened.press(Key::End);
        let buffer = opened.draw(true).clone();
        let mut lines = 0;
        for line in buffer.content().chunks(100).skip(3).take(26) {
            let text: String = line.iter().map(|cell| cell.symbol()).collect();
            let has = |color: Color| line.iter().any(|cell| cell.fg == color);
            let is_selected = line[0].modifier.contains(ratatui_core::style::Modifier::REVERSED);
            if text.trim().is_empty() || is_selected {
                continue;
            }
            lines += 1;
            let worse = ["hash_rows", "check_rows"].iter().any(|name| text.contains(name));
            let better = ["sort_rows", "old_copy"].iter().any(|name| text.contains(name));
            assert_eq!((has(Color::Red), has(Color::Green)), (worse, better), "{keys:?}: {text}");
        }
        assert!(lines > 5);
        let plain = opened.draw(false);
        assert!(plain.content().iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
        assert_eq!(text_of(&buffer), text_of(plain), "the same text");
    }
}

/// Checks names that would act on a terminal, are wide, or are very long, in lists, trees and
/// pages.
#[test]
fn hostile_names() {
    const LONG: &str = "a_very_long_name_of_a_function_that_no_screen_of_this_width_has_room_for_in_one_line";
    let paths: &[Path] = &[
        (&[("\u{1b}[2J", "\u{1b}[31mlib"), ("\u{1b}]0;owned\u{7}", "rows")], 100, 200),
        (&[MAIN, ("漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字", "rows")], 100, 100),
        (&[MAIN, ("a\u{202e}b", "rows"), (LONG, "rows")], 100, 300),
    ];
    let comparison = compared(paths, Subject::Functions);
    for size in [(80, 24), (40, 10)] {
        for keys in ["", "e", "2E", "3E", "i", "2Ei", "/\u{202e}"] {
            let mut opened = Opened::new(&comparison, size);
            opened.press(Key::Down);
            opened.typed(keys);
            for _ in 0..8 {
                opened.press(Key::Down);
                let text: String = opened.draw(true).content().iter().map(|cell| cell.symbol()).collect();
                assert!(!text.contains(|c: char| c.is_control() || c == '\u{202e}'), "{text:?}");
            }
        }
    }
    let mut opened = Opened::new(&comparison, (80, 24));
    opened.typed("3E");
    opened.shows("\\x1b]0;owned\\x07");
    opened.shows("\\x1b[2J  (\\x1b[31mlib)");
    opened.shows("漢");
}
