//! Recordings that are named twice: a file under two names, and copies of it. Each is one run.
use super::run::RunSums;

/// The runs of a side, each once, and what is said of those that were named again.
///
/// A recording that is counted twice makes runs agree with each other, and so makes certain what is
/// chance.
pub fn distinct_runs(runs: Vec<RunSums>) -> (Vec<RunSums>, Vec<String>) {
    let mut distinct: Vec<RunSums> = Vec::with_capacity(runs.len());
    let mut again: Vec<(usize, String)> = Vec::new();
    for run in runs {
        match distinct.iter().position(|known| known.is_same_recording(&run)) {
            Some(known) => again.push((known, run.facts.name)),
            None => distinct.push(run),
        }
    }
    let sentence = |known: usize, run: &RunSums| {
        let names: Vec<&str> = again.iter().filter(|(of, _)| *of == known).map(|(_, name)| &**name).collect();
        let name = &run.facts.name;
        let is_one_name = names.iter().all(|other| other == name);
        match names.len() {
            0 => None,
            more if is_one_name => Some(format!("{name} is named {} times: it is one run", more + 1)),
            _ => Some(format!("{name} and {} are the same recording: it is one run", names.join(", "))),
        }
    };
    let notes = distinct.iter().enumerate().filter_map(|(known, run)| sentence(known, run)).collect();
    (distinct, notes)
}

/// What is said of a recording that is on both sides.
pub(crate) fn note_of_both_sides(old: &[RunSums], new: &[RunSums]) -> Option<String> {
    let shared = old.iter().find(|run| new.iter().any(|other| other.is_same_recording(run)))?;
    Some(format!("{} is on both sides, where it cannot differ from itself", shared.facts.name))
}
