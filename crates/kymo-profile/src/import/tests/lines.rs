//! Folded stacks as other tools write them.
use super::*;

/// The stacks of a text with their values, command first, as they are exported again.
fn again(text: &str) -> Vec<String> {
    let profile = folded(text.as_bytes()).expect("folded stacks");
    let (_, bytes) = read(recorded(&profile), ExportFormat::Folded);
    let mut lines: Vec<String> =
        String::from_utf8(bytes).expect("UTF-8").lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

fn refusal(text: &str) -> String {
    folded(text.as_bytes()).expect_err("it is refused").to_string()
}

/// Checks that a count is a weight: one record a line, whatever it is, in a small file. bcc's
/// offcputime writes microseconds, `kymo export --wall` nanoseconds, perf's scripts periods.
#[test]
fn a_count_is_a_weight() {
    for text in [
        "postgres;a;b 48123456\n",
        "a;b 99999999\n",
        "shop;main;timer 10000055264\n",
        "a;b 9000000000000000000",
    ] {
        let profile = folded(text.as_bytes()).expect("folded stacks");
        assert_eq!((profile.counts.len(), profile.counts[0].samples), (1, 1), "{text}");
        assert!(recorded(&profile).metadata().expect("a file").len() < 4096, "{text}");
        assert_eq!(again(text), [text.trim_end()]);
    }
}

/// Checks that a file of two counts a line is refused in a sentence that says what it is; a name
/// that ends with a number is one.
#[test]
fn a_comparison_is_refused() {
    for text in ["main;a;c 7 1\n", "main;a 0 5\nmain;a;c 7 1\n", "a;b\t1\t2\n", "a;b 1.5 2\n"] {
        assert!(refusal(text).contains("every line has two counts"), "{text}");
    }
    assert_eq!(again("main;level 2 7\nmain;other 1\n"), ["main;level\\x202 7", "main;other 1"]);
}

/// Checks counts with fractions, tabs, lines that are none and a byte-order mark: as flamegraph.pl
/// reads them.
#[test]
fn lines_are_read_as_flamegraph_reads_them() {
    assert_eq!(again("a;b 12.5\na;c 3\na;d 0.25\n"), ["a;b 12.5", "a;c 3", "a;d 0.25"]);
    assert_eq!(again("a;b 7.\n"), ["a;b 7"]);
    assert_eq!(again("a;b\t12\n"), ["a;b 12"]);
    assert_eq!(again("a;b \t 12\r\n"), ["a;b 12"]);
    assert_eq!(again("\u{feff}java;run 3\n"), ["java;run 3"]);
    assert_eq!(again("a;b 0\na;c 2\n"), ["a;c 2"]);
    let profile = folded(&b"a;b 3\nno count here\na;c 4\n"[..]).expect("two lines of three");
    assert_eq!(profile.notes, ["left out 1 lines without a count, the first is line 2"]);
    assert_eq!(profile.counts.iter().map(|count| count.period).sum::<u64>(), 7);
    let small = folded(&b"a;b 0.0000004\n"[..]).expect("it has a count");
    assert_eq!(small.counts, [], "less than the unit");
}

/// Checks that what is no folded text is named, and that numbers and stacks are bounded.
#[test]
fn folded_stacks_that_are_none() {
    assert!(refusal("a;b\nc;d\na;b 3\n").starts_with("2 of 3 lines have no count, the first is line 1"));
    assert!(refusal("a;b x\n").starts_with("1 of 1 lines have no count"));
    assert!(refusal("a;b -3\n").starts_with("1 of 1 lines have no count"));
    assert!(refusal("a;b 99999999999999999999\n").starts_with("line 1 has a count that is larger"));
    assert!(refusal("a 9000000000000000000\nb 9000000000000000000\n").starts_with("the counts add up"));
    assert!(refusal("a 9000000000000000000\nb 0.5\n").starts_with("the counts add up"));
    let deep = format!("a;{} 1\n", vec!["f"; 20_000].join(";"));
    assert_eq!(folded(deep.as_bytes()).expect("a deep stack").stacks[0].len(), MOST_FRAMES);
    let alone = folded(&b"# comment\nidle 7\n"[..]).expect("a command alone");
    assert_eq!(alone.functions[0].name, "idle");
    assert_eq!((alone.counts[0].period, alone.threads[0].tid), (7, 1));
    assert_eq!(folded(&b""[..]).expect("an empty file").counts, []);
}

/// Checks that names with `;` are those that were exported, those of commands, too.
#[test]
fn semicolons_in_names_survive() {
    let text = "odd worker\u{ff1b}1;<[u64\u{ff1b} 512] as main::Sum>::total 9\n";
    let profile = folded(text.as_bytes()).expect("folded stacks");
    assert_eq!(profile.threads[0].comm, "odd worker;1");
    assert_eq!(profile.functions[0].name, "<[u64; 512] as main::Sum>::total");
    assert_eq!(again(text), [text.trim_end()]);
    // In pprof as they are.
    let (_, bytes) = read(recorded(&profile), ExportFormat::Pprof);
    let profile = pprof(&bytes[..]).expect("a profile");
    assert_eq!(profile.functions[0].name, "<[u64; 512] as main::Sum>::total");
}
