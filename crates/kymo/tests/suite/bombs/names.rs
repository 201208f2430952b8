//! Names of any length and any characters, in every form that a report takes.

use std::path::Path;

use super::{bomb, elf, limited, recording, report};

/// A file whose functions have these names, 0x100 bytes each.
fn with_names(folder: &Path, names: &[Vec<u8>]) -> std::path::PathBuf {
    let path = folder.join("names");
    let list: Vec<_> =
        names.iter().zip(0..).map(|(name, at)| (name.clone(), 0x1000 + 0x100 * at, 0x100)).collect();
    let [table, strings] = elf::symbols(&list);
    elf::write(&path, &[elf::text(), table, strings]);
    let offsets: Vec<u64> = list.iter().map(|one| one.1 + 0x10).collect();
    recording::write(&folder.join("data"), &recording::records(&[&path], &offsets));
    path
}

/// Checks that names of 65,536 bytes and more end neither a table nor a script, and that they stay apart.
#[test]
fn names_of_65536_bytes_are_shortened() {
    let test = "names_of_65536_bytes_are_shortened";
    let folder = tempfile::tempdir().expect("a folder");
    let long = |end: u8| {
        let mut name = vec![b'n'; 65_534];
        name.extend([b'_', end]);
        name
    };
    with_names(folder.path(), &[long(b'1'), long(b'2'), vec![b'm'; 300_000], vec![b'k'; 9000]]);
    let data = folder.path().join("data");
    let data = data.to_str().expect("a plain name");
    for arguments in [
        &["report", "-f", "--stdio", "-i", data][..],
        &["report", "-f", "--stdio", "--sort", "sym,dso", "-i", data],
        &["report", "-f", "--folded", "-i", data],
        &["report", "-f", "--json", "-i", data],
        &["script", "-f", "-i", data],
    ] {
        let Some(said) = limited(test, arguments) else { return };
        let said = said.ends(0);
        let cut = said.stdout.matches("nnnn...[65536 bytes or more, ").count();
        assert!(cut >= 2, "{}: {cut}", said.command);
        said.prints(&"k".repeat(9000));
    }
    let said = limited(test, &["report", "-f", "--folded", "-i", data]).expect("as before");
    let lines: std::collections::HashSet<&str> =
        said.stdout.lines().filter(|line| line.contains("[65536 bytes")).collect();
    assert_eq!(lines.len(), 3, "two functions are one");
}

/// Checks that no form of a report sends what a terminal obeys or what turns the direction of writing, that JSON still says
/// the names exactly, and that names that differ in such characters only stay apart.
#[test]
fn names_that_act_are_written_out_everywhere() {
    let test = "names_that_act_are_written_out_everywhere";
    let folder = tempfile::tempdir().expect("a folder");
    let names = [
        "esc\u{1b}[31m",
        "esc\\x1b[31m",
        "bidi\u{202e}gnp",
        "zero\u{200b}width",
        "zerowidth",
        "se;mi",
        "se:mi",
        "count 12",
    ];
    let mut bytes: Vec<Vec<u8>> = names.iter().map(|name| name.as_bytes().to_vec()).collect();
    bytes.push(b"bad\xff".to_vec());
    bytes.push(b"bad\xfe".to_vec());
    with_names(folder.path(), &bytes);
    let data = folder.path().join("data");
    let data = data.to_str().expect("a plain name");
    let picture = folder.path().join("out.svg");
    let page = folder.path().join("out.html");
    let (picture, page) = (picture.to_str().expect("a name"), page.to_str().expect("a name"));
    for arguments in [
        &["report", "-f", "--stdio", "-i", data][..],
        &["report", "-f", "--stdio", "-t", ",", "-i", data],
        &["report", "-f", "--folded", "-i", data],
        &["report", "-f", "--json", "-i", data],
        &["report", "-f", "--flamegraph", picture, "-i", data],
        &["report", "-f", "--html", page, "-i", data],
        &["script", "-f", "-i", data],
    ] {
        let Some(said) = limited(test, arguments) else { return };
        let said = said.ends(0);
        let mut text = said.stdout;
        if arguments.contains(&picture) {
            text = std::fs::read_to_string(picture).expect("a picture");
            assert!(text.contains("esc\\x1b[31m") && text.contains("count\\x2012"), "the names are gone");
        }
        if arguments.contains(&page) {
            text = std::fs::read_to_string(page).expect("a page");
        }
        let acts = |c: char| (c.is_control() && c != '\n' && c != '\t') || "\u{202e}\u{200b}".contains(c);
        assert!(!text.contains(acts), "{}", said.command);
        if arguments.contains(&"--json") {
            let document: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            let found = document["functions"].to_string();
            for name in names {
                let name = serde_json::to_string(name).expect("a string");
                assert!(found.contains(name.trim_matches('"')), "{name} is not in {found}");
            }
        }
        if arguments.contains(&"--folded") {
            let lines: std::collections::HashSet<&str> = text.lines().collect();
            assert_eq!(lines.len(), bytes.len(), "{text}");
        }
    }
}

/// Checks mangled names that expand without measure, and a hundred thousand aliases of one address.
#[test]
fn names_that_expand_keep_their_mangled_form() {
    let folder = tempfile::tempdir().expect("a folder");
    // Each substitution holds two of the one before: 2^40 letters.
    let mut cxx = String::from("_Z1fSt4pairI1aS_IS0_S0_E");
    let digit = |n: usize| char::from(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[n % 36]);
    for level in 0..34 {
        cxx.push_str(&format!("S_IS{0}_S{0}_E", digit(level + 1)));
    }
    cxx.push('E');
    // A Rust path whose back reference names all before it, again and again.
    let mut rust = String::from("_RINvC1a1f");
    for _ in 0..40 {
        rust.push_str("TB8_B8_");
    }
    rust.push_str(&"E".repeat(41));
    let mut list: Vec<(Vec<u8>, u64, u64)> =
        vec![(cxx.into_bytes(), 0x1000, 0x400), (rust.into_bytes(), 0x1400, 0x400)];
    let nested = format!("_Z1f{}i", "P".repeat(60_000));
    list.push((nested.into_bytes(), 0x1800, 0x400));
    for number in 0..100_000 {
        list.push((format!("_Z4fun{number:05}v").into_bytes(), 0x1f00, 0x100));
    }
    let [table, strings] = elf::symbols(&list);
    let path = folder.path().join("expanding");
    elf::write(&path, &[elf::text(), table, strings]);
    let plain = bomb(folder.path(), "plain", Vec::new());
    report("names_that_expand_keep_their_mangled_form", folder.path(), &[&path, &plain], &[]);
}
