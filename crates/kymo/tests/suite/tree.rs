//! The call graphs under the rows of `perf report --stdio`, read back from their drawing.
//!
//! ```text
//!             |
//!             ---main                       a root: it has all of the row's samples
//!                work
//!                |
//!                |--60.00%--hash            a branch, with its share
//!                |          mix             a run: the frame after `hash`
//!                |
//!                 --40.00%--sort
//! ```
//!
//! A frame's place is the column that its name starts in: the same column without a share continues a run, the same column
//! with a share is a sibling, a column further left ends the branches in between.

use std::collections::BTreeMap;

use crate::table::plain;

/// Shares by place: `row > main;work;hash` is `60.00%`. A root's share is `all`.
pub(crate) fn branches(text: &str) -> BTreeMap<String, Vec<String>> {
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut row = String::new();
    let mut open: Vec<Frame> = Vec::new();
    for (line, begun) in rows(text) {
        if let Some(begun) = begun {
            row = begun;
            open.clear();
            continue;
        }
        let Some((column, share, name)) = frame(line) else { continue };
        open.retain(|frame| frame.column <= column);
        let share = match share {
            Some(share) => {
                open.retain(|frame| frame.column < column);
                share
            }
            None => open.last().map_or("all", |frame| &frame.share).to_owned(),
        };
        open.push(Frame { column, share: share.clone(), name: name.to_owned() });
        let path: Vec<String> = open.iter().map(|frame| plain(&frame.name)).collect();
        all.entry(format!("{row} > {}", path.join(";"))).or_default().push(share);
    }
    for shares in all.values_mut() {
        shares.sort();
    }
    all
}

/// Shares by place of two reports without a least share, in hundredths of a percent. Rows of one
/// name are put together, and so are branches. What a whole root has in one report is left out of
/// both, for its frames have no shares. What differs by no more than the printed digits do is made
/// equal.
pub(crate) fn sums(reports: [&str; 2]) -> [BTreeMap<String, Vec<String>>; 2] {
    let [theirs, ours] = reports.map(parts);
    let mut both = [BTreeMap::new(), BTreeMap::new()];
    for place in theirs.keys().chain(ours.keys()) {
        let sum = |shares: &Vec<Option<u64>>| shares.iter().copied().sum::<Option<u64>>();
        let said = match [&theirs, &ours].map(|all| all.get(place)) {
            [Some(a), Some(b)] => match (sum(a), sum(b)) {
                (Some(left), Some(right)) if left.abs_diff(right) * 2 > (a.len() + b.len()) as u64 => {
                    [Some(left.to_string()), Some(right.to_string())]
                }
                _ => [Some("equal".to_owned()), Some("equal".to_owned())],
            },
            one => one.map(|shares| Some(shares?.len().to_string())),
        };
        for (all, said) in both.iter_mut().zip(said) {
            all.extend(said.map(|said| (place.clone(), vec![said])));
        }
    }
    both
}

/// The shares of all rows and branches of a place, in hundredths of a percent; nothing for what a
/// root has.
fn parts(report: &str) -> BTreeMap<String, Vec<Option<u64>>> {
    let mut all: BTreeMap<String, Vec<Option<u64>>> = BTreeMap::new();
    for (place, shares) in branches(report) {
        let shares = shares.iter().map(|share| share.strip_suffix('%')?.replace('.', "").parse().ok());
        all.entry(without_shares(&place).to_owned()).or_default().extend(shares);
    }
    all
}

/// Lines of a report that are no comments; with the row, its event after its shares, where one begins.
fn rows(text: &str) -> impl Iterator<Item = (&str, Option<String>)> {
    let mut event = "";
    text.lines().map(str::trim_end).filter_map(move |line| {
        if let Some(said) = line.strip_prefix("# Samples:") {
            event = said.split_once('\'').map_or("", |(_, event)| event).trim_end_matches('\'');
        }
        if line.starts_with('#') || line.is_empty() {
            return None;
        }
        // A row begins with a percentage at the margin; everything in a drawing stands further right.
        if !line.chars().take(10).any(|c| c.is_ascii_digit()) {
            return Some((line, None));
        }
        let words = line.split_whitespace().collect::<Vec<_>>().join(" ");
        let row = plain(&words.replace("[unknown] [k] ", "[unknown] [.] "));
        let shares = row.len() - without_shares(&row).len();
        Some((line, Some(format!("{}{event} {}", &row[..shares], &row[shares..]))))
    })
}

/// A row's text after its percentages.
fn without_shares(row: &str) -> &str {
    let mut rest = row;
    while let Some((word, after)) = rest.split_once(' ')
        && word.ends_with('%')
    {
        rest = after;
    }
    rest
}

struct Frame {
    column: usize,
    share: String,
    name: String,
}

/// The column of the name, the share if this line begins a branch, and the name; nothing for a line of pipes.
fn frame(line: &str) -> Option<(usize, Option<String>, &str)> {
    let start = line.find(|c| c != ' ' && c != '|')?;
    let rest = &line[start..];
    if let Some(name) = rest.strip_prefix("---") {
        return Some((start + 3, Some("all".to_owned()), name));
    }
    if let Some(branch) = rest.strip_prefix("--")
        && let Some((share, name)) = branch.split_once("--")
        && share.ends_with('%')
    {
        return Some((start + 2 + share.len() + 2, Some(share.to_owned()), name));
    }
    Some((start, None, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "\
# Samples: 239  of event 'cpu-clock'
    28.03%     0.00%  python3   [unknown]             [.] work
            |
            ---main
               work
               |          
               |--25.94%--hash
               |          mix
               |          |          
               |          |--17.15%--operator--(int)
               |          |          
               |           --1.26%--rotate
               |          
                --0.84%--sort

     5.86%     0.42%  bash      [kernel.kallsyms]     [k] do_syscall_64
            |          
             --5.44%--do_syscall_64
                       read
";

    /// Checks that runs, branches and siblings are told apart.
    #[test]
    fn a_drawing_is_read_back() {
        let found: Vec<String> = branches(REPORT)
            .iter()
            .map(|(place, shares)| {
                format!("{} {}", place.split_once(" > ").expect("a place").1, shares.join(","))
            })
            .collect();
        assert_eq!(
            found,
            [
                "main all",
                "main;work all",
                "main;work;hash 25.94%",
                "main;work;hash;mix 25.94%",
                "main;work;hash;mix;operator--(int) 17.15%",
                "main;work;hash;mix;rotate 1.26%",
                "main;work;sort 0.84%",
                "do_syscall_64 5.44%",
                "do_syscall_64;read 5.44%",
            ]
        );
    }

    /// Checks that what perf divides adds up to what kymo has whole: branches beside an unresolved
    /// one, and rows of an address.
    #[test]
    fn divided_branches_add_up() {
        const DIVIDED: &str = "\
# Samples: 172  of event 'cpu-clock'
     2.91%     0.00%  bash  bash       [.] main
            |
            ---main
               |
               |--1.16%--reader_loop
               |          |
               |          |--0.58%--execute_command
               |          |
               |           --0.58%--read_command
               |
               |--1.16%--reader_loop
               |          execute_command
               |
                --0.58%--0x55f2fcabd15d

     1.74%     0.00%  ls    [unknown]  [k] 0000000000000000
            |
             --1.74%--main

     0.58%     0.00%  ls    [unknown]  [.] 0000000000000000
            |
             --0.58%--main
";
        const WHOLE: &str = "\
# Samples: 172  of event 'cpu-clock'
     2.91%     0.00%  bash  bash       [.] main
            |
            ---main
               |
               |--2.33%--reader_loop
               |          |
               |          |--1.74%--execute_command
               |          |
               |           --0.58%--read_command
               |
                --0.58%--0x55f2fcabd15d

     2.33%     0.00%  ls    [unknown]  [.] 0000000000000000
            |
            ---main
";
        let [divided, whole] = sums([DIVIDED, WHOLE]);
        assert_eq!(divided, whole);
        assert_eq!(divided.len(), 6);
        for (part, other) in [("2.33%--", "2.91%--"), ("--read_command", "--parse_command")] {
            let [divided, whole] = sums([DIVIDED, &WHOLE.replace(part, other)]);
            assert_ne!(divided, whole);
        }
    }
}
