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

use std::collections::{BTreeMap, BTreeSet};

use crate::table::{is_unresolved, plain};

/// Names of rows of unresolved addresses that are there more than once, without their shares: each such row hangs a part of
/// the address's tree below it, without the branches that are too thin in that part. They cannot be put together again.
pub(crate) fn divided(text: &str) -> BTreeSet<String> {
    let mut once = BTreeSet::new();
    let names = rows(text).filter_map(|(_, row)| row).map(|row| without_shares(&row).to_owned());
    names.filter(|name| is_unresolved(name) && !once.insert(name.clone())).collect()
}

/// Shares by place: `row > main;work;hash` is `60.00%`. A root's share is `all`. Rows named in `without` are left out.
pub(crate) fn branches(text: &str, without: &BTreeSet<String>) -> BTreeMap<String, Vec<String>> {
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut row = String::new();
    let mut kept = true;
    let mut open: Vec<Frame> = Vec::new();
    for (line, begun) in rows(text) {
        if let Some(begun) = begun {
            kept = !without.contains(without_shares(&begun));
            row = begun;
            open.clear();
            continue;
        }
        let Some((column, share, name)) = frame(line).filter(|_| kept) else { continue };
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
        let found: Vec<String> = branches(REPORT, &BTreeSet::new())
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

    /// Checks that trees of an address whose row is divided are left out, and no others.
    #[test]
    fn trees_of_divided_rows_are_left_out() {
        const DIVIDED: &str = "\
# Samples: 239  of event 'cpu-clock'
    31.65%     0.00%  ls   [unknown]  [k] 0000000000000000
            |
            ---main

     5.86%     0.42%  ls   libc.so.6  [.] read
            |
            ---main

     0.72%     0.00%  ls   [unknown]  [.] 0000000000000000
            |
            ---sort

     0.72%     0.00%  cat  [unknown]  [.] 0000000000000000
            |
            ---sort

     0.10%     0.42%  ls   libc.so.6  [.] read
            |
            ---sort
";
        let divided = divided(DIVIDED);
        assert_eq!(divided, BTreeSet::from(["cpu-clock ls [unknown] [.] 0000000000000000".to_owned()]));
        let found: Vec<String> = branches(DIVIDED, &divided).into_keys().collect();
        assert_eq!(
            found,
            [
                "0.10% 0.42% cpu-clock ls libc.so.6 [.] read > sort",
                "0.72% 0.00% cpu-clock cat [unknown] [.] 0000000000000000 > sort",
                "5.86% 0.42% cpu-clock ls libc.so.6 [.] read > main",
            ]
        );
    }
}
