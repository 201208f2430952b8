//! The text table that `perf report --stdio` prints, read back: the rows under the dotted line, cut where the dots say.

use std::collections::BTreeMap;
use std::ops::Range;

/// The rows of one event (or of one group of events that share a table).
#[derive(Debug, Default)]
pub(crate) struct Section {
    /// As in `# Samples: 40K of event 'cpu-clock'`: the part between the quotes.
    pub(crate) event: String,
    /// Cells of each row, trimmed, in printed order.
    pub(crate) rows: Vec<Vec<String>>,
}

/// Reads every section of a report.
///
/// Columns start where the line of dots starts them, so cells may hold spaces; the last cell goes to the end of its line.
pub(crate) fn sections(text: &str) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    let mut columns: Vec<Range<usize>> = Vec::new();
    for line in text.lines() {
        if let Some(said) = line.strip_prefix("# Samples:") {
            let event = said.split_once(" of event").map_or("", |(_, event)| event);
            let event = event.trim_start_matches('s').trim().trim_matches('\'').to_owned();
            sections.push(Section { event, rows: Vec::new() });
            columns.clear();
        } else if let Some(dots) = line.strip_prefix('#') {
            if dots.contains("..") && dots.chars().all(|c| c == '.' || c == ' ') {
                columns = columns_of(line);
            }
        } else if !line.trim().is_empty()
            && !columns.is_empty()
            && !is_tree(line, &columns)
            && let Some(section) = sections.last_mut()
        {
            section.rows.push(columns.iter().map(|column| cell(line, column)).collect());
        }
    }
    sections
}

/// All samples of a report whose first column is their number.
pub(crate) fn samples(text: &str) -> u64 {
    let counts = sections(text).into_iter().flat_map(|section| section.rows);
    counts.map(|row| row[0].parse::<u64>().expect("a count")).sum()
}

/// Where columns begin and end: the first begins at the margin, the last has no end.
fn columns_of(dots: &str) -> Vec<Range<usize>> {
    let bytes = dots.as_bytes();
    let starts: Vec<usize> = (1..bytes.len())
        .filter(|&i| bytes[i] == b'.' && (bytes[i - 1] == b' ' || bytes[i - 1] == b'#'))
        .collect();
    let begin = |i: usize| if i == 0 { 0 } else { starts[i] };
    (0..starts.len()).map(|i| begin(i)..starts.get(i + 1).copied().unwrap_or(usize::MAX)).collect()
}

/// Lines of a call graph hang below a row and leave its first column's right edge empty.
fn is_tree(line: &str, columns: &[Range<usize>]) -> bool {
    let first = cell(line, &columns[0]);
    first.is_empty() || first.contains('|') || first.contains("--")
}

fn cell(line: &str, column: &Range<usize>) -> String {
    let bytes = line.as_bytes();
    let end = column.end.min(bytes.len());
    let start = column.start.min(end);
    let text = String::from_utf8_lossy(&bytes[start..end]);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Values by name: the last `names` cells of a row are its name, the cells before are its values.
///
/// Rows with one name (two functions called `main` in one file) are added up when they are plain counts, and
/// otherwise kept side by side.
pub(crate) fn by_name(sections: &[Section], names: usize) -> BTreeMap<String, Vec<String>> {
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for section in sections {
        for row in &section.rows {
            let (values, name) = row.split_at(row.len().saturating_sub(names));
            // perf marks an unknown place as kernel or user by the frame that it met before; that is no property of the place.
            let name = plain(&name.join(" | ").replace("[unknown] | [k] ", "[unknown] | [.] "));
            let name = format!("{} | {name}", section.event);
            all.entry(name).or_default().push(values.join(" "));
        }
    }
    for values in all.values_mut() {
        if values.len() > 1 {
            let counts: Option<Vec<u64>> = values.iter().map(|value| value.parse().ok()).collect();
            match counts {
                Some(counts) => *values = vec![counts.iter().sum::<u64>().to_string()],
                None => values.sort(),
            }
        }
    }
    all
}

/// A name without what perf adds by accident: the offset in data symbols (that of whichever sample came first), and the
/// space between closing brackets of templates (demanglers differ).
pub(crate) fn plain(name: &str) -> String {
    let name = name.replace("> >", ">>");
    match name.rsplit_once("+0x") {
        Some((symbol, offset)) if offset.chars().all(|c| c.is_ascii_hexdigit()) => symbol.to_owned(),
        _ => name,
    }
}

/// True for the name of a row that is an address in no module: `... | [unknown] | [.] 0x00007f30e1a2b3c4`, its parts
/// divided by bars or by spaces.
///
/// perf may print several rows for one such address. It orders them by the difference of two addresses as a signed number,
/// which is no order where addresses lie more than 2^63 apart, as in call chains that follow something else than frame
/// pointers; so the tree that it looks rows up in does not always find the one that is there.
pub(crate) fn is_unresolved(name: &str) -> bool {
    let mut parts = name.split([' ', '|']).filter(|part| !part.is_empty()).rev();
    let address = parts.next().unwrap_or_default();
    let digits = address.strip_prefix("0x").unwrap_or(address);
    digits.len() >= 14
        && digits.chars().all(|c| c.is_ascii_hexdigit())
        && parts.next() == Some("[.]")
        && parts.next() == Some("[unknown]")
}

/// True when several rows come to the one row `whole`: counts exactly, percentages as far as two printed digits can.
fn add_up(parts: &[String], whole: &[String]) -> bool {
    let [whole] = whole else { return false };
    let numbers = |row: &str| -> Option<Vec<(u64, bool)>> {
        let number = |word: &str| match word.strip_suffix('%') {
            Some(share) => share.replace('.', "").parse().ok().map(|hundredths| (hundredths, true)),
            None => word.parse().ok().map(|count| (count, false)),
        };
        row.split_whitespace().map(number).collect()
    };
    let Some(whole) = numbers(whole) else { return false };
    let Some(rows) = parts.iter().map(|part| numbers(part)).collect::<Option<Vec<_>>>() else { return false };
    rows.len() > 1
        && rows.iter().all(|row| row.len() == whole.len())
        && whole.iter().enumerate().all(|(column, &(value, is_share))| {
            let sum: u64 = rows.iter().map(|row| row[column].0).sum();
            // Each printed share is off by half a hundredth at most.
            let off = if is_share { (rows.len() as u64).div_ceil(2) } else { 0 };
            sum.abs_diff(value) <= off
        })
}

/// Moves counts of perf's threads without a name (`:PID`) to the name that kymo has for them, if kymo counts so much more
/// there.
///
/// perf 6.12 and later forget a thread at its EXIT record, although the kernel still samples it until it has left its CPU;
/// all of them name no thread that was made between the list of what was there and the first event.
pub(crate) fn name_threads(perf: &mut BTreeMap<String, Vec<String>>, kymo: &BTreeMap<String, Vec<String>>) {
    let parts = |name: &str| -> Option<(String, String, String)> {
        let mut parts = name.splitn(3, " | ").map(str::to_owned);
        Some((parts.next()?, parts.next()?, parts.next()?))
    };
    let count = |values: Option<&Vec<String>>| -> u64 {
        let single = values.filter(|values| values.len() == 1);
        single.and_then(|values| values[0].parse().ok()).unwrap_or(0)
    };
    let nameless = |name: &str| {
        let digits = parts(name).and_then(|(_, thread, _)| Some(thread.strip_prefix(':')?.to_owned()));
        digits.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|c| c.is_ascii_digit()))
    };
    let all: Vec<String> = perf.keys().filter(|name| nameless(name)).cloned().collect();
    for name in all {
        let Some((event, _, place)) = parts(&name) else { continue };
        let mut left = count(perf.get(&name)).saturating_sub(count(kymo.get(&name)));
        for (other, values) in kymo {
            let alike = parts(other)
                .is_some_and(|(of, thread, at)| of == event && at == place && !thread.starts_with(':'));
            let theirs = count(perf.get(other));
            let moved = count(Some(values)).saturating_sub(theirs).min(left);
            if alike && moved > 0 {
                perf.insert(other.clone(), vec![(theirs + moved).to_string()]);
                left -= moved;
            }
        }
        match left + count(kymo.get(&name)) {
            0 => perf.remove(&name),
            left => perf.insert(name, vec![left.to_string()]),
        };
    }
}

/// Gives rows that perf names with a function's parameters the name without, where kymo has that.
///
/// Debian's perf 6.12 and later read C++ names with another library than perf 6.1, which leaves parameters out.
pub(crate) fn drop_parameters(
    perf: &mut BTreeMap<String, Vec<String>>,
    kymo: &BTreeMap<String, Vec<String>>,
) {
    let named: Vec<String> = perf.keys().filter(|name| !kymo.contains_key(*name)).cloned().collect();
    for name in named {
        let Some(plain) = without_parameters(&name) else { continue };
        let known = [plain.to_owned(), without_return_type(plain)];
        let Some(plain) = known.into_iter().find(|plain| kymo.contains_key(plain)) else { continue };
        let values = perf.remove(&name).unwrap_or_default();
        let all = perf.entry(plain).or_default();
        all.extend(values);
        let counts: Option<Vec<u64>> = all.iter().map(|value| value.parse().ok()).collect();
        if let Some(counts) = counts {
            *all = vec![counts.iter().sum::<u64>().to_string()];
        }
    }
}

/// A name without the parameters, and what follows them, at its end.
fn without_parameters(name: &str) -> Option<&str> {
    let name = name.split(" [clone").next()?.trim_end_matches(" const");
    let mut depth = 0;
    let open = name.char_indices().rev().find(|&(_, c)| {
        depth += i32::from(c == ')') - i32::from(c == '(');
        depth == 0
    });
    open.filter(|_| name.ends_with(')')).map(|(at, _)| &name[..at])
}

/// A row's name of a function template without the type that it returns, which stands before its name.
fn without_return_type(name: &str) -> String {
    let Some((place, function)) = name.split_once("] ") else { return name.to_owned() };
    let mut depth = 0;
    let space = function.char_indices().rev().find(|&(_, c)| {
        depth += i32::from(c == '>') - i32::from(c == '<');
        depth == 0 && c == ' '
    });
    let function = space.map_or(function, |(at, _)| &function[at + 1..]);
    format!("{place}] {function}")
}

/// Lines that say what two tables do not share, at most `limit` of them; empty when they are equal.
///
/// The left one may divide the rows of an unresolved address ([`is_unresolved`]); it is perf's.
pub(crate) fn differences(
    left: (&str, &BTreeMap<String, Vec<String>>),
    right: (&str, &BTreeMap<String, Vec<String>>),
    limit: usize,
) -> Vec<String> {
    let none = Vec::new();
    let names: std::collections::BTreeSet<&String> = left.1.keys().chain(right.1.keys()).collect();
    // perf 6.1 has the names of jump stubs wrong or not at all; objdump judges kymo's. Where kymo has one, what perf has
    // instead may be an address, or `_init`, which comes before the stubs and has no length.
    let has_part = |name: &str, wanted: &str| name.split([' ', ';']).any(|part| part == wanted);
    let is_stub = |name: &str| name.contains("@plt") || has_part(name, ".plt");
    let has_stubs = right.1.keys().any(|name| is_stub(name) && !left.1.contains_key(name));
    let is_perfs_stub = |name: &String| {
        is_stub(name)
            || has_stubs && has_part(name, "_init")
            || has_stubs && !right.1.contains_key(name) && name.contains(" 0x0000")
            || has_stubs && !right.1.contains_key(name) && (name.contains("> 0x") || name.contains(";0x"))
    };
    let names = names.into_iter().filter(|name| !is_perfs_stub(name));
    let mut lines = Vec::new();
    for name in names {
        let (a, b) = (left.1.get(name).unwrap_or(&none), right.1.get(name).unwrap_or(&none));
        if a != b && !(is_unresolved(name) && add_up(a, b)) {
            lines.push(format!("{name}: {} {}, {} {}", left.0, a.join(" and "), right.0, b.join(" and ")));
        }
    }
    let more = lines.len().saturating_sub(limit);
    lines.truncate(limit);
    if more > 0 {
        lines.push(format!("... and {more} more"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "\
# Samples: 40K of event 'cpu-clock'
# Event count (approx.): 40671
#
#      Samples  Command     Shared Object      Symbol        
# ............  ..........  .................  ..............
#
         40074  Web Conten  [kernel.kallsyms]  [k] __schedule
            |
            ---main
           156  b           a.out              [.] f(int, char)
             4  b           a.out              [.] f(int, char)
";

    fn table(rows: &[(&str, &str)]) -> BTreeMap<String, Vec<String>> {
        rows.iter().map(|&(name, value)| (name.to_owned(), vec![value.to_owned()])).collect()
    }

    /// Checks that cells are cut by the dotted line, that trees are left out, and that equal names add up.
    #[test]
    fn a_table_is_read_back() {
        let sections = sections(REPORT);
        assert_eq!(sections.len(), 1);
        assert_eq!(sections[0].event, "cpu-clock");
        assert_eq!(sections[0].rows[0], ["40074", "Web Conten", "[kernel.kallsyms]", "[k] __schedule"]);
        let counts = by_name(&sections, 3);
        assert_eq!(counts["cpu-clock | b | a.out | [.] f(int, char)"], ["160"]);
        assert_eq!(counts.len(), 2);
    }

    /// Checks that a difference names the row and both values.
    #[test]
    fn a_difference_names_both_sides() {
        let left = by_name(&sections(REPORT), 3);
        let right = by_name(&sections(&REPORT.replace("40074", "40073")), 3);
        assert!(differences(("a", &left), ("b", &left), 9).is_empty());
        let said = differences(("a", &left), ("b", &right), 9);
        assert_eq!(said, ["cpu-clock | Web Conten | [kernel.kallsyms] | [k] __schedule: a 40074, b 40073"]);
    }

    /// Checks that counts of threads that perf has no name for are moved to names under which kymo counts more, and no
    /// others.
    #[test]
    fn threads_without_a_name_are_named() {
        let kymo = table(&[("e | ls | libc | [.] f", "5"), ("e | ls | libc | [.] g", "2")]);
        let mut perf = table(&[
            ("e | ls | libc | [.] f", "3"),
            ("e | :12 | libc | [.] f", "1"),
            ("e | :13 | libc | [.] f", "1"),
            ("e | ls | libc | [.] g", "2"),
        ]);
        name_threads(&mut perf, &kymo);
        assert_eq!(perf, kymo);
        perf.insert("e | :14 | libc | [.] g".to_owned(), vec!["1".to_owned()]);
        name_threads(&mut perf, &kymo);
        let said = differences(("perf", &perf), ("kymo", &kymo), 9);
        assert_eq!(said, ["e | :14 | libc | [.] g: perf 1, kymo "]);
    }

    /// Checks that parameters are left out where kymo has the name without them, and nowhere else.
    #[test]
    fn names_without_parameters() {
        let kymo = table(&[("[.] A::f", "3"), ("[.] A::operator()", "2")]);
        let mut perf = table(&[
            ("[.] A::f(int (*)(char)) const", "1"),
            ("[.] A::f(long) [clone .cold]", "2"),
            ("[.] A::operator()(int)", "2"),
        ]);
        drop_parameters(&mut perf, &kymo);
        assert_eq!(perf, kymo);
        perf.insert("[.] g(int)".to_owned(), vec!["1".to_owned()]);
        drop_parameters(&mut perf, &kymo);
        assert_eq!(perf.len(), 3);
        // Templates have the type that they return before their name.
        let kymo = table(&[("a | [.] std::get<B<int, long> >", "1")]);
        let mut perf = table(&[("a | [.] C<int, long> const& std::get<B<int, long> >(D const&)", "1")]);
        drop_parameters(&mut perf, &kymo);
        assert_eq!(perf, kymo);
    }

    /// Checks that what perf 6.1 has instead of the name of a stub is no difference, at any place of a call graph, and that
    /// another address is one.
    #[test]
    fn stubs_are_left_to_objdump() {
        let table = |names: &[&str]| -> BTreeMap<String, Vec<String>> {
            names.iter().map(|&name| (name.to_owned(), vec!["1.00%".to_owned()])).collect()
        };
        let differ = |perf: &[&str], kymo: &[&str]| {
            !differences(("perf", &table(perf)), ("kymo", &table(kymo)), 9).is_empty()
        };
        assert!(!differ(&["e ls [.] f > main;0x7f0a"], &["e ls [.] f > main;free@plt"]));
        assert!(!differ(&["e ls [.] f > main;0x7f0a;g"], &["e ls [.] f > main;.plt;g"]));
        assert!(!differ(&["e | ls | libz | [.] 0x0000000000004026"], &["e | ls | libz | [.] .plt"]));
        assert!(!differ(&["e | ls | libz | [.] free@plt"], &["e | ls | libz | [.] .plt"]));
        assert!(!differ(&["e | py | libpython | [.] _init"], &["e | py | libpython | [.] .plt"]));
        assert!(differ(&["e | py | libpython | [.] _init"], &["e | py | libpython | [.] main"]));
        assert!(differ(&["e ls [.] f > main;0x7f0a"], &["e ls [.] f > main;g"]));
        assert!(differ(&["e ls [.] f > main;g"], &["e ls [.] f > main;free@plt"]));
    }

    /// Checks that rows of one unresolved address add up to the other tool's row, and that no other rows do.
    #[test]
    fn divided_rows_of_an_unresolved_address_add_up() {
        let table = |name: &str, rows: &[&str]| {
            BTreeMap::from([(name.to_owned(), rows.iter().map(|&row| row.to_owned()).collect::<Vec<_>>())])
        };
        let differ = |name: &str, perf: &[&str], kymo: &[&str]| {
            !differences(("perf", &table(name, perf)), ("kymo", &table(name, kymo)), 9).is_empty()
        };
        let nowhere = "cpu-clock | ls | [unknown] | [.] 0000000000000000";
        let divided = ["0.72% 0.00% 4", "31.65% 0.01% 176"];
        assert!(!differ(nowhere, &divided, &["32.37% 0.01% 180"]));
        assert!(!differ(nowhere, &divided, &["32.38% 0.01% 180"]), "rounded");
        assert!(differ(nowhere, &divided, &["32.39% 0.01% 180"]), "more than rounded");
        assert!(differ(nowhere, &divided, &["32.37% 0.01% 181"]), "another count");
        assert!(differ(nowhere, &divided, &["31.65% 0.01% 176"]), "a part");
        assert!(differ(nowhere, &["32.37% 0.01% 180"], &["32.38% 0.01% 180"]), "not divided");
        assert!(differ(nowhere, &["32.37% 0.01% 180"], &divided), "divided by kymo");
        assert!(differ("cpu-clock | ls | ls | [.] main", &divided, &["32.37% 0.01% 180"]), "a name");
        assert!(is_unresolved("cpu-clock | ls | [unknown] | [.] 0x00007f30e1a2b3c4"));
        assert!(is_unresolved("cpu-clock ls [unknown] [.] 0x00007f30e1a2b3c4"));
        assert!(!is_unresolved("cpu-clock | ls | libc.so.6 | [.] 0x00007f30e1a2b3c4"));
        assert!(!is_unresolved("cpu-clock | ls | [unknown] | [.] deadbeef"));
    }
}
