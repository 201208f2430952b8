//! Why filters left nothing: which of them, and what the recording has instead.
//!
//! Asked only when a report came out empty, so it may read the recording once more.
use crate::hist::HistOptions;
use crate::load::{Cgroups, LoadOptions};
use crate::profile::Profile;
use kymo_data::{ReadError, Recording, Sample, abi};
use std::collections::{BTreeSet, HashMap};
use std::fmt::Display;

/// So many values are listed in a sentence.
const MOST_LISTED: usize = 10;
/// So many distinct values are remembered of each kind.
const MOST_KNOWN: usize = 4096;

/// What the samples of a recording are of.
#[derive(Debug, Default)]
struct Inventory {
    samples: u64,
    cpus: BTreeSet<u32>,
    pids: BTreeSet<i32>,
    tids: BTreeSet<i32>,
    span_ns: Option<(u64, u64)>,
    /// How many samples pass the filters of CPUs, processes, threads and times, each by itself.
    passed: [u64; 4],
}

fn note<T: Ord>(set: &mut BTreeSet<T>, value: Option<T>) {
    if let Some(value) = value.filter(|value| set.len() < MOST_KNOWN || set.contains(value)) {
        set.insert(value);
    }
}

impl Inventory {
    fn sample(&mut self, sample: &Sample<'_>, options: &LoadOptions) {
        self.samples += 1;
        note(&mut self.cpus, sample.cpu);
        note(&mut self.pids, sample.pid);
        note(&mut self.tids, sample.tid);
        if let Some(time) = sample.time {
            let (first, last) = self.span_ns.unwrap_or((time, time));
            self.span_ns = Some((first.min(time), last.max(time)));
        }
        let inside = [
            options.cpus.as_ref().is_none_or(|set| sample.cpu.is_some_and(|cpu| set.contains(&cpu))),
            options.pids.as_ref().is_none_or(|set| sample.pid.is_some_and(|pid| set.contains(&pid))),
            options.tids.as_ref().is_none_or(|set| sample.tid.is_some_and(|tid| set.contains(&tid))),
            options.time.as_ref().is_none_or(|spans| sample.time.is_some_and(|time| spans.contains(time))),
        ];
        for (passed, inside) in self.passed.iter_mut().zip(inside) {
            *passed += u64::from(inside);
        }
    }

    fn absorb(mut self, other: Inventory) -> Inventory {
        self.samples += other.samples;
        other.cpus.into_iter().for_each(|cpu| note(&mut self.cpus, Some(cpu)));
        other.pids.into_iter().for_each(|pid| note(&mut self.pids, Some(pid)));
        other.tids.into_iter().for_each(|tid| note(&mut self.tids, Some(tid)));
        let spans = [self.span_ns, other.span_ns].into_iter().flatten();
        self.span_ns = spans.reduce(|(a, b), (c, d)| (a.min(c), b.max(d)));
        self.passed.iter_mut().zip(other.passed).for_each(|(passed, more)| *passed += more);
        self
    }

    fn sentence(&self, options: &LoadOptions) -> String {
        if self.samples == 0 {
            return "the recording has no samples".to_owned();
        }
        let seconds = |ns: u64| format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
        let span = self.span_ns.map_or("samples without times".to_owned(), |(first, last)| {
            format!("samples from {} to {} s", seconds(first), seconds(last))
        });
        let filters = [
            ("-C", options.cpus.is_some(), has("CPUs", &self.cpus)),
            ("--pid", options.pids.is_some(), has("processes", &self.pids)),
            ("--tid", options.tids.is_some(), has("threads", &self.tids)),
            ("--time", options.time.is_some(), span),
        ];
        let given = filters.iter().zip(self.passed).filter(|((_, given, _), _)| *given);
        if let Some(((flag, _, has), _)) = given.clone().find(|(_, passed)| *passed == 0) {
            return format!("no sample passes {flag}: the recording has {has}");
        }
        let flags: Vec<&str> = given.map(|((flag, ..), _)| *flag).collect();
        format!("no sample passes {} together, though each by itself leaves some", flags.join(" and "))
    }
}

/// "samples of the CPUs 0, 1", cut where there are many.
fn has<T: Display>(what: &str, values: &BTreeSet<T>) -> String {
    if values.is_empty() {
        return format!("samples without {what}");
    }
    format!("samples of the {what} {}", listed(values.iter().map(ToString::to_string), values.len()))
}

fn listed(values: impl Iterator<Item = String>, count: usize) -> String {
    let mut text = values.take(MOST_LISTED).collect::<Vec<_>>().join(", ");
    if count > MOST_LISTED {
        text += &format!(" and {} more", count - MOST_LISTED);
    }
    text
}

/// Why no sample is of the cgroups that were asked for, if none has such a name.
pub fn of_cgroups(cgroups: &Cgroups, options: &LoadOptions) -> Option<String> {
    let names = options.cgroups.as_ref().filter(|names| cgroups.named(names).is_empty())?;
    let paths = cgroups.paths();
    let has = listed(paths.iter().map(ToString::to_string), paths.len());
    Some(format!("no cgroup is called {}: the recording has {has}", names.join(" or ")))
}

/// Why no sample passed the filters of CPUs, processes, threads and times, in one sentence.
///
/// # Errors
/// When the recording cannot be read.
pub fn of_samples(recording: &Recording, options: &LoadOptions) -> Result<String, ReadError> {
    let each = |inventory: &mut Inventory, chunk: &kymo_data::Chunk| {
        for record in chunk.records().flatten().filter(|r| r.header.kind == abi::PERF_RECORD_SAMPLE) {
            let Some(event) = recording.events.event_of(&record) else { continue };
            let layout = &recording.events.list[event].layout;
            if let Ok(sample) = layout.parse(record.header.misc, record.body) {
                inventory.sample(&sample, options);
            }
        }
    };
    let (parts, _) = recording.read_parallel(options.workers, Inventory::default, each, &|_, _| {})?;
    Ok(parts.into_iter().fold(Inventory::default(), Inventory::absorb).sentence(options))
}

/// Why no row passed the filters of names, modules and functions, though there were samples; in one
/// sentence.
pub fn of_rows(profile: &Profile, options: &HistOptions) -> String {
    let mut names: [HashMap<String, u64>; 3] = Default::default();
    for (key, count) in &profile.loaded.groups {
        let mut add = |kind: usize, name: String| *names[kind].entry(name).or_default() += count.samples;
        add(0, profile.loaded.timeline.comm(key.comm).into_owned());
        let leaf = profile.stacks.leaf(key.chain);
        let callers = profile.stacks.frames(key.chain).iter().copied().filter(|_| options.children);
        for function in std::iter::once(leaf).chain(callers) {
            add(1, profile.module_name(function).to_owned());
            add(2, profile.functions.get(function).name.as_deref().unwrap_or("").to_owned());
        }
    }
    let filters = [
        ("-c", &options.comms, "threads named"),
        ("-d", &options.dsos, "the modules"),
        ("-S", &options.symbols, "the functions"),
    ];
    let mut flags = Vec::new();
    for ((flag, wanted, what), known) in filters.into_iter().zip(&names) {
        let Some(wanted) = wanted else { continue };
        flags.push(flag);
        if !wanted.iter().any(|name| known.contains_key(name)) {
            let mut common: Vec<(&String, &u64)> =
                known.iter().filter(|(name, _)| !name.is_empty()).collect();
            common.sort_by_key(|(name, count)| (std::cmp::Reverse(**count), (*name).clone()));
            let all = listed(common.iter().map(|(name, _)| (*name).clone()), common.len());
            return format!("no row passes {flag}, which takes whole names: the recording has {what} {all}");
        }
    }
    format!("no row passes {} together, though each by itself leaves some", flags.join(" and "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::TimeSpans;
    use rustc_hash::FxHashSet;

    fn inventory() -> Inventory {
        let part = |cpu: u32, tid: i32, time: u64| Inventory {
            samples: 1,
            cpus: [cpu].into(),
            pids: [7].into(),
            tids: [tid].into(),
            span_ns: Some((time, time)),
            passed: [1, 1, 1, 1],
        };
        part(0, 7, 1_500_000_000).absorb(part(3, 8, 2_000_000_000))
    }

    /// Checks that the filter which left nothing is named, with what the recording has of that
    /// kind.
    #[test]
    fn the_filter_is_named() {
        let cpus = LoadOptions { cpus: Some(FxHashSet::from_iter([77])), ..LoadOptions::default() };
        let mut found = inventory();
        found.passed = [0, 2, 2, 2];
        assert_eq!(found.sentence(&cpus), "no sample passes -C: the recording has samples of the CPUs 0, 3");
        let time = LoadOptions { time: Some(TimeSpans(vec![(0, 1)])), ..LoadOptions::default() };
        found.passed = [2, 2, 2, 0];
        assert_eq!(
            found.sentence(&time),
            "no sample passes --time: the recording has samples from 1.500000000 to 2.000000000 s"
        );
        found.passed = [1, 1, 1, 1];
        let both = LoadOptions { tids: Some(FxHashSet::from_iter([8])), ..cpus };
        let said = found.sentence(&both);
        assert_eq!(said, "no sample passes -C and --tid together, though each by itself leaves some");
        assert_eq!(Inventory::default().sentence(&both), "the recording has no samples");
    }

    /// Checks that long lists are cut.
    #[test]
    fn long_lists() {
        assert_eq!(listed((0..12).map(|n| n.to_string()), 12), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more");
    }
}
