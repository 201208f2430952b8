//! The names of the files that a merged file stands for, in few bytes.
//!
//! Daemons write a file each minute, so names of a host are evenly spaced in time:
//! `HOSTID SEQUENCE START+STEPxCOUNT ...` on a line has all of them. Only the set is kept, so that
//! a file which comes again, years later, is recognised.
use crate::schema::FileStem;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

/// Moments at equal distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MomentRun {
    start: i64,
    step: i64,
    count: i64,
}

impl MomentRun {
    fn contains(&self, moment: i64) -> bool {
        let Some(distance) = moment.checked_sub(self.start) else { return false };
        distance >= 0 && distance % self.step == 0 && distance / self.step < self.count
    }

    /// The moment behind the last one; `None`: there is none.
    fn next(&self) -> Option<i64> {
        self.start.checked_add(self.step.checked_mul(self.count)?)
    }

    /// Whether all moments of a later run are among these.
    fn has(&self, later: &MomentRun) -> bool {
        let last = later.step.checked_mul(later.count - 1).and_then(|way| later.start.checked_add(way));
        let is_on_steps = later.count == 1 || later.step % self.step == 0;
        is_on_steps && self.contains(later.start) && last.is_some_and(|last| self.contains(last))
    }

    /// This run and a later one as one, if they are at equal distances.
    fn joined(&self, later: &MomentRun) -> Option<MomentRun> {
        let step = match (self.count, later.count) {
            (1, 1) => later.start - self.start,
            (1, _) => later.step,
            _ => self.step,
        };
        let both = MomentRun { step, count: self.count.checked_add(later.count)?, ..*self };
        let is_one = step > 0
            && (later.count == 1 || later.step == step)
            && MomentRun { count: self.count, ..both }.next() == Some(later.start);
        is_one.then_some(both)
    }
}

/// A set of names of files of one folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplacedFiles {
    /// By host and number.
    runs: BTreeMap<(i64, u32), Vec<MomentRun>>,
}

impl ReplacedFiles {
    /// The set of these stems, and of those of the sets.
    pub(crate) fn new(stems: &[FileStem], sets: &[&ReplacedFiles]) -> ReplacedFiles {
        let mut runs: BTreeMap<(i64, u32), Vec<MomentRun>> = BTreeMap::new();
        for (key, more) in sets.iter().flat_map(|set| &set.runs) {
            runs.entry(*key).or_default().extend(more);
        }
        for stem in stems {
            let run = MomentRun { start: stem.start_ns, step: 1, count: 1 };
            runs.entry((stem.host_id, stem.sequence)).or_default().push(run);
        }
        runs.values_mut().for_each(join);
        ReplacedFiles { runs }
    }

    /// Whether a file of this name, without its folder, is one of them.
    pub fn contains(&self, name: &str) -> bool {
        FileStem::parse(name).is_some_and(|stem| {
            let runs = self.runs.get(&(stem.host_id, stem.sequence));
            runs.is_some_and(|runs| runs.iter().any(|run| run.contains(stem.start_ns)))
        })
    }

    /// The name of one of the same recording, see [`FileStem::is_of`].
    pub(crate) fn find(&self, wanted: &FileStem) -> Option<FileStem> {
        let (host_id, sequence) = (wanted.host_id, wanted.sequence);
        let runs = self.runs.get(&(host_id, sequence))?;
        let of = |start_ns| FileStem { host_id, start_ns, sequence };
        if runs.iter().any(|run| run.contains(wanted.start_ns)) {
            return Some(*wanted);
        }
        let first = runs.first().map(|run| of(run.start))?;
        wanted.is_of(&format!("{first}.parquet")).then_some(first)
    }

    /// Reads what [`Display`](fmt::Display) has written.
    pub(crate) fn parse(text: &str) -> Option<ReplacedFiles> {
        let mut runs = BTreeMap::new();
        for line in text.lines() {
            let mut words = line.split(' ');
            let host_id = u64::from_str_radix(words.next()?, 16).ok()?.cast_signed();
            let sequence = words.next()?.parse().ok()?;
            runs.insert((host_id, sequence), words.map(run).collect::<Option<Vec<MomentRun>>>()?);
        }
        Some(ReplacedFiles { runs })
    }
}

/// `START` or `START+STEPxCOUNT`.
fn run(word: &str) -> Option<MomentRun> {
    let (start, rest) = word.split_once('+').unwrap_or((word, "1x1"));
    let (step, count) = rest.split_once('x')?;
    let run = MomentRun { start: start.parse().ok()?, step: step.parse().ok()?, count: count.parse().ok()? };
    (run.start >= 0 && run.step > 0 && run.count > 0).then_some(run)
}

/// Makes one of runs that follow each other, and drops those that another one has. The moments of a
/// run are never listed: a few words that another program wrote may claim any number of them.
fn join(runs: &mut Vec<MomentRun>) {
    runs.sort_unstable_by_key(|run| (run.start, Reverse(run.count)));
    let mut joined: Vec<MomentRun> = Vec::new();
    for run in runs.drain(..) {
        match joined.last_mut() {
            Some(last) if last.has(&run) => {}
            Some(last) => match last.joined(&run) {
                Some(both) => *last = both,
                None => joined.push(run),
            },
            None => joined.push(run),
        }
    }
    *runs = joined;
}

impl fmt::Display for ReplacedFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((host_id, sequence), runs) in &self.runs {
            write!(f, "{host_id:016x} {sequence}")?;
            for MomentRun { start, step, count } in runs {
                f.write_char(' ')?;
                match count {
                    1 => write!(f, "{start}")?,
                    _ => write!(f, "{start}+{step}x{count}")?,
                }
            }
            f.write_char('\n')?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stem((host_id, start_ns, sequence): (i64, i64, u32)) -> FileStem {
        FileStem { host_id, start_ns, sequence }
    }

    /// Checks that a day of a thousand hosts, each a file a minute with gaps, is some words.
    #[test]
    fn evenly_spaced_names_are_short() {
        let minutes = (0..1440).filter(|minute| ![77, 900].contains(minute));
        let of = |host| minutes.clone().map(move |minute| stem((host, minute * 60_000_000_000, 0)));
        let all: Vec<FileStem> = (0..1000).flat_map(of).collect();
        let set = ReplacedFiles::new(&all, &[]);
        let text = set.to_string();
        assert!(text.len() < 100_000, "{} bytes", text.len());
        assert_eq!(ReplacedFiles::parse(&text), Some(set.clone()));
        assert!(all.iter().all(|stem| set.contains(&format!("{stem}.parquet"))));
        let missing = stem((5, 77 * 60_000_000_000, 0));
        assert!(!set.contains(&format!("{missing}.parquet")));
    }

    /// Checks that texts of other programs are refused or small, and never taken for a panic.
    #[test]
    fn other_texts_are_refused() {
        for text in ["x", "0f", "0f 0 1+0x5", "0f 0 1+5x0", "0f 0 a", "0f 0 -1", "0f z 1"] {
            assert_eq!(ReplacedFiles::parse(text), None, "{text}");
        }
        let last = ReplacedFiles::parse("0f 0 9223372036854775807+5x9").expect("a set");
        assert!(last.contains(&format!("{}.parquet", stem((15, i64::MAX, 0)))));
        assert_eq!(ReplacedFiles::new(&[], &[&last]).runs[&(15, 0)].len(), 1);
    }

    /// Checks that names which a file claims take the room of its text: 67 million of them took
    /// gigabytes in the next compaction.
    #[test]
    fn claimed_names_are_not_listed() {
        let claimed = ReplacedFiles::parse("0f 0 1+1x9223372036854775807 5+7x88 9").expect("a set");
        let set = ReplacedFiles::new(&[stem((15, 12, 0)), stem((15, 0, 0))], &[&claimed, &claimed]);
        assert_eq!(set.runs[&(15, 0)].len(), 2);
        assert!(
            [0, 1, 12, i64::MAX].iter().all(|at| set.contains(&format!("{}.parquet", stem((15, *at, 0)))))
        );
    }

    proptest! {
        /// Checks against a set of names: what is in it, after a round trip and a union.
        #[test]
        fn it_is_the_set_of_its_names(
            some in prop::collection::vec((0_i64..3, 0_i64..40, 0_u32..2), 0..60),
            more in prop::collection::vec((0_i64..3, 0_i64..40, 0_u32..2), 0..60),
        ) {
            let of = |keys: &[(i64, i64, u32)]| keys.iter().copied().map(stem).collect::<Vec<_>>();
            let first = ReplacedFiles::new(&of(&some), &[]);
            let read = ReplacedFiles::parse(&first.to_string()).expect("a set");
            let both = ReplacedFiles::new(&of(&more), &[&read]);
            for host in 0..3 {
                for start in 0..40 {
                    for sequence in 0..2 {
                        let key = (host, start, sequence);
                        let name = format!("{}.parquet", stem(key));
                        prop_assert_eq!(both.contains(&name), some.contains(&key) || more.contains(&key));
                    }
                }
            }
        }
    }
}
