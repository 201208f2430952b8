//! Tables as they are printed, byte by byte, and by the rules that any table keeps.
use super::*;
use crate::hist::{Hist, HistOptions, Order, SortKey};
use crate::profile::Profile;
use crate::sample_profile::{Kind, Spec, Stack, profile};
use std::path::Path;

const COMMS: [&str; 2] = ["app", "app-worker"];

const FUNCTIONS: [Spec; 8] = [
    (0, Kind::Symbol, "main", 0x100),
    (0, Kind::Symbol, "work<alloc::vec::Vec<u8>>", 0x200),
    (0, Kind::Inlined, "helper", 0x200),
    (1, Kind::Symbol, "memcpy", 0x300),
    (1, Kind::Address, "", 0x777),
    (3, Kind::Symbol, "do_syscall_64", 0x400),
    (3, Kind::Symbol, "page_fault", 0x500),
    (0, Kind::Symbol, "start_thread", 0x600),
];

/// Two threads, an inlined function, recursion, the kernel, an address without a name; event 1 has
/// no sample.
fn small() -> Profile {
    let stack = |comm, leaf, frames: &[usize], samples| Stack {
        event: 0,
        comm,
        leaf,
        frames: frames.to_vec(),
        samples,
        period: samples * 1_000_000,
    };
    let stacks = [
        stack(0, 1, &[2, 1, 0], 40),
        stack(0, 3, &[3, 2, 1, 0], 25),
        stack(0, 3, &[3, 1, 1, 0], 10),
        stack(0, 5, &[5, 0], 12),
        stack(0, 6, &[6, 5, 3, 1, 0], 6),
        stack(1, 4, &[4, 7], 5),
        stack(1, 3, &[3, 7], 2),
        stack(1, 0, &[], 1),
    ];
    profile(&COMMS, &FUNCTIONS, &stacks)
}

fn options(children: bool) -> TableOptions {
    let mut columns = vec![Column::Overhead];
    if children {
        columns.insert(0, Column::Children);
    }
    columns.extend(HistOptions::DEFAULT_KEYS.map(Column::Key));
    TableOptions {
        columns,
        children,
        percent_limit: 0.0,
        graph: None,
        separator: None,
        ..TableOptions::default()
    }
}

fn table(event: usize, options: &TableOptions) -> String {
    let profile = small();
    let keys = HistOptions::DEFAULT_KEYS.to_vec();
    let hist = HistOptions { keys, children: options.children, ..HistOptions::default() };
    let mut out = Vec::new();
    write_table(&mut out, &profile, &Hist::new(&profile, event, &hist), "cpu-clock", options)
        .expect("memory");
    String::from_utf8(out).expect("text")
}

/// Compares with `golden/NAME.txt`; `KYMO_BLESS=1` writes it instead.
fn golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("src/text/golden/{name}.txt"));
    if std::env::var_os("KYMO_BLESS").is_some() {
        std::fs::write(&path, text).expect("the golden file");
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, expected, "{name} changed; if that is meant, run again with KYMO_BLESS=1");
}

/// Checks the flat table.
#[test]
fn flat() {
    golden("flat", &table(0, &options(false)));
}

/// Checks the table with what functions called, and call graphs from the row down to what it
/// called.
#[test]
fn children_with_graphs() {
    let graph = Some(GraphOptions { form: GraphForm::Graph, order: Order::Caller, least_percent: 0.5 });
    golden("children", &table(0, &TableOptions { graph, ..options(true) }));
}

/// Checks call graphs from the row up to who called it, with small branches left out.
#[test]
fn graphs_of_callers() {
    let graph = Some(GraphOptions { form: GraphForm::Graph, order: Order::Callee, least_percent: 10.0 });
    golden("callee", &table(0, &TableOptions { graph, ..options(false) }));
}

/// Checks fields with a separator: a row has as many as the title, also where a value contains the
/// separator.
#[test]
fn separator() {
    let mut with = TableOptions { separator: Some(":".into()), ..options(true) };
    with.columns.extend([Column::Samples, Column::Period]);
    let text = table(0, &with);
    golden("separator", &text);
    let fields = |line: &str| line.matches(':').count();
    let rows: Vec<&str> = text.lines().filter(|l| !l.starts_with('#')).collect();
    assert!(rows.len() > 5 && rows.iter().all(|row| fields(row) == with.columns.len() - 1));
}

/// Checks that an event without a sample has a header and no row.
#[test]
fn event_without_samples() {
    golden("no_samples", &table(1, &options(false)));
}

/// Checks that on a terminal colours are perf's by weight, and lines end at its width, colours not
/// counted.
#[test]
fn colour_and_width() {
    let look = TableStyle { color: true, width: Some(40) };
    let text = table(0, &TableOptions { look, ..options(false) });
    golden("terminal", &text);
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        let plain = line.replace("\x1b[31m", "").replace("\x1b[32m", "").replace("\x1b[m", "");
        assert!(plain.chars().count() <= 40, "{plain:?}");
        let percent: f64 = plain.trim_start().split('%').next().expect("a share").parse().expect("a number");
        let color = if percent >= 5.0 { "\x1b[31m" } else { "\x1b[32m" };
        assert!(line.starts_with(color) == (percent >= 0.5), "{line:?}");
    }
}

/// Checks that rows below a limit are left out, and only those.
#[test]
fn percent_limit() {
    let all = table(0, &options(false));
    let some = table(0, &TableOptions { percent_limit: 6.0, ..options(false) });
    let shares = |text: &str| -> Vec<f64> {
        let rows = text.lines().filter(|l| !l.starts_with('#'));
        rows.map(|l| l.trim_start().split('%').next().expect("a share").parse().expect("a number")).collect()
    };
    let expected: Vec<f64> = shares(&all).into_iter().filter(|share| *share >= 6.0).collect();
    assert_eq!(shares(&some), expected);
    assert!(expected.len() < shares(&all).len());
}

/// Checks that a table by CPU shows numbers at the right, three digits at least.
#[test]
fn by_cpu() {
    let profile = small();
    let keys = vec![SortKey::Cpu];
    let hist = HistOptions { keys, children: false, ..HistOptions::default() };
    let columns = vec![Column::Overhead, Column::Key(SortKey::Cpu)];
    let mut out = Vec::new();
    let with = TableOptions { columns, ..options(false) };
    write_table(&mut out, &profile, &Hist::new(&profile, 0, &hist), "cpu-clock", &with).expect("memory");
    let text = String::from_utf8(out).expect("text");
    assert!(text.ends_with("  100.00%  000\n"), "{text}");
}

/// Checks that on a terminal no line is wider than it: titles, rows and graphs are cut, and without
/// a width nothing is.
#[test]
fn no_line_is_wider_than_the_terminal() {
    let mut wide = options(true);
    wide.graph = Some(GraphOptions { form: GraphForm::Graph, order: Order::Caller, least_percent: 0.0 });
    let whole = table(0, &wide);
    let mut narrow = wide.clone();
    narrow.look = TableStyle { color: false, width: Some(30) };
    let narrow = table(0, &narrow);
    assert!(whole.lines().any(|line| line.chars().count() > 50), "{whole}");
    assert_eq!(narrow.lines().count(), whole.lines().count(), "no line is added or lost");
    for (cut, line) in narrow.lines().zip(whole.lines()).skip(3) {
        assert_eq!(cut, line.chars().take(30).collect::<String>());
    }
}
