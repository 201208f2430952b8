//! What was done, as lines in a file:
//!
//! ```text
//! module NUMBER FUNCTIONS SERVED PARTS PATH          then `refused NUMBER WORD COUNT` for each reason
//! done PLACED ATTACHES DETACHES FAILED CYCLES HITS RETURNS MISSED LOST
//! hit MODULE OFFSET HITS RETURNS                     for each function that was hit, and with `each` and STOP for all that had a probe; RETURNS is - where nobody looked
//! ```
use super::functions::Module;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;
use std::path::Path;

/// Hits and returns of one function, over all its probes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sum {
    pub(crate) hits: u64,
    pub(crate) returns: Option<u64>,
    pub(crate) lost: u64,
}

impl Sum {
    pub(crate) fn add(&mut self, other: Sum) {
        self.hits += other.hits;
        self.lost += other.lost;
        if let Some(returns) = other.returns {
            *self.returns.get_or_insert(0) += returns;
        }
    }
}

/// What is told at the end, and meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Done {
    /// Functions that had a probe at some time.
    pub(crate) placed: usize,
    /// Functions that were attached to and detached from, each time counted.
    pub(crate) attaches: u64,
    pub(crate) detaches: u64,
    /// Attaches and detaches that were given up.
    pub(crate) failed: u64,
    /// How often each function was probed, at least: rounds through all groups.
    pub(crate) cycles: u64,
    pub(crate) missed: u64,
}

/// By module and offset.
pub(crate) type Sums = BTreeMap<(usize, u64), Sum>;

/// By the module's path and offset.
pub(crate) type Turns = HashSet<(String, u64)>;

/// The functions that reports of other processes tell of, in a folder.
pub(crate) fn turns(folder: &Path) -> Turns {
    let mut turns = Turns::new();
    for file in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let text = std::fs::read_to_string(file.path()).unwrap_or_default();
        let mut paths = HashMap::new();
        for line in text.lines() {
            let words: Vec<&str> = line.splitn(6, ' ').collect();
            match words[..] {
                ["module", number, _, _, _, path] => _ = paths.insert(number, path),
                ["hit", module, offset, ..] => {
                    let offset = offset.strip_prefix("0x").map(|digits| u64::from_str_radix(digits, 16));
                    if let (Some(path), Some(Ok(offset))) = (paths.get(module), offset) {
                        turns.insert((path.to_string(), offset));
                    }
                }
                _ => {}
            }
        }
    }
    turns
}

pub(crate) fn text(modules: &[Module], done: &Done, sums: &Sums) -> String {
    let mut text = String::new();
    for (number, module) in modules.iter().enumerate() {
        let Module { path, functions, served, parts, refused } = module;
        let _ = writeln!(text, "module {number} {functions} {served} {parts} {path}");
        for (word, count) in refused {
            let _ = writeln!(text, "refused {number} {word} {count}");
        }
    }
    let total = |of: fn(&Sum) -> u64| sums.values().map(of).sum::<u64>();
    let (hits, returns) = (total(|sum| sum.hits), total(|sum| sum.returns.unwrap_or(0)));
    let Done { placed, attaches, detaches, failed, cycles, missed } = done;
    let lost = total(|sum| sum.lost);
    let _ = writeln!(
        text,
        "done {placed} {attaches} {detaches} {failed} {cycles} {hits} {returns} {missed} {lost}"
    );
    text
}

/// Writes it whole, into `folder`, under this process's number; with functions that were not hit
/// where `all` are wanted.
pub(crate) fn write(folder: &Path, text: &str, sums: &Sums, all: bool) {
    let mut text = text.to_string();
    for ((module, offset), sum) in sums.iter().filter(|(_, sum)| all || sum.hits > 0) {
        let returns = sum.returns.map_or("-".to_string(), |returns| returns.to_string());
        let _ = writeln!(text, "hit {module} {offset:#x} {} {returns}", sum.hits);
    }
    let name = std::process::id().to_string();
    let (new, file) = (folder.join(format!("{name}.new")), folder.join(name));
    if std::fs::write(&new, text).is_ok() {
        let _ = std::fs::rename(new, file);
    }
}
