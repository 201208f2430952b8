//! One run of a side: what a recording says of it, and its costs by node of the shared trees.
use super::bootstrap::BLOCKS;
use super::stacks::{NO_NODE, SharedStacks};
use crate::counts::{Count, Dims, GroupKey};
use crate::export::{function_of, unit_of};
use crate::load::{LoadOptions, Progress};
use crate::profile::Profile;
use crate::resolve::ResolveOptions;
use kymo_data::{Event, ReadError, Recording, abi};
use kymo_symbols::SymbolStore;
use rustc_hash::FxHashMap;

/// Costs by number, each number once.
pub(crate) type NodeCosts = Vec<(u32, f64)>;

/// What is taken from a recording.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// The event whose periods are the cost; the one with most samples where none is named.
    pub event: Option<String>,
    /// The event whose counts are the work that was done.
    pub work: Option<String>,
    /// The source lines of samples are looked up.
    pub lines: bool,
    /// The run is cut into blocks of time, because it is the only one of its side.
    pub blocks: bool,
    /// Worker threads; 0 means one per CPU.
    pub workers: usize,
}

/// Why a recording gives no run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It cannot be read at all.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// It does not have what is asked for.
    #[error("{0}")]
    NotRecorded(String),
}

/// What a recording says of a run, besides costs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunFacts {
    /// The name of the recording.
    pub name: String,
    /// The event whose periods are the cost, without its modifiers.
    pub event: String,
    /// What is counted, as the kernel knows it: type and number.
    pub counts: (u32, u64),
    /// What periods count: `ns`, or empty.
    pub unit: String,
    /// Which levels of privilege were sampled: the event's exclude bits.
    pub excluded: u64,
    /// Samples per second, or the period between two samples.
    pub rate: SamplingRate,
    /// Samples of the event.
    pub samples: u64,
    /// Samples that the kernel dropped, of all events.
    pub lost: u64,
    /// Samples of all events, with which lost ones are compared.
    pub all_samples: u64,
    /// How often the kernel throttled an event.
    pub throttled: u64,
    /// The moment of the first sample, ns by the recording's clock.
    pub first_ns: u64,
    /// That of the last one.
    pub last_ns: u64,
    /// CPUs that were online.
    pub cpus: u32,
    /// Samples have call chains.
    pub has_callers: bool,
    /// The name of the machine, where the recording tells it.
    pub host: String,
    /// The processor and the kernel, where the recording names them.
    pub machine: String,
    /// The file is cut off or damaged.
    pub is_damaged: bool,
    /// What the user should know about symbols.
    pub notes: Vec<String>,
}

/// How often samples were taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SamplingRate {
    /// So many each second.
    Frequency(u64),
    /// One for so many events.
    Period(u64),
}

impl Default for SamplingRate {
    fn default() -> SamplingRate {
        SamplingRate::Frequency(0)
    }
}

/// One run.
#[derive(Clone, Debug, Default)]
pub struct RunSums {
    /// What is known of it.
    pub facts: RunFacts,
    /// The sum of the periods.
    pub(crate) total: f64,
    /// Cost by node.
    pub(crate) nodes: NodeCosts,
    /// Cost by source line, if asked for.
    pub(crate) lines: NodeCosts,
    /// How much work was done, if asked for.
    pub(crate) work: Option<f64>,
    /// The same by block of time, if asked for.
    pub(crate) blocks: Vec<BlockSums>,
}

/// The costs of a part of a run's time.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockSums {
    pub(crate) total: f64,
    pub(crate) nodes: NodeCosts,
    pub(crate) lines: NodeCosts,
    pub(crate) work: Option<f64>,
}

impl RunSums {
    /// Reads a recording; its stacks are added to the shared trees.
    ///
    /// # Errors
    /// When the file cannot be read at all, or has not the event that is asked for.
    pub fn read(
        recording: &Recording,
        name: &str,
        options: &RunOptions,
        stacks: &mut SharedStacks,
        store: &SymbolStore,
        progress: Progress<'_>,
    ) -> Result<RunSums, RunError> {
        let workers = options.workers;
        let load =
            LoadOptions { callchains: true, columns: options.blocks, workers, ..LoadOptions::default() };
        let resolve = ResolveOptions { lines: options.lines, ..ResolveOptions::default() };
        let profile = Profile::open(recording, &load, resolve, store, progress)?;
        let event = event_number(recording, &profile, options.event.as_deref())?;
        let work = options.work.as_deref().map(|work| work_number(recording, work)).transpose()?;
        let facts = facts(recording, &profile, event, name);
        let mut summer = Summer {
            event,
            work,
            lines: options.lines,
            profile: &profile,
            stacks,
            known: FxHashMap::default(),
            nodes: FxHashMap::default(),
        };
        let all = summer.sums(profile.loaded.groups.iter().copied());
        if work.is_some() && all.work.is_none_or(|work| work <= 0.0) {
            let work = options.work.as_deref().unwrap_or_default();
            return Err(RunError::NotRecorded(format!(
                "{name} has no samples of {work}, so its cost cannot be divided by them"
            )));
        }
        let mut blocks = Vec::new();
        if let (true, Some(columns), Some((first, last))) =
            (options.blocks, profile.loaded.columns.as_ref(), profile.loaded.time_range)
        {
            let length = u128::from(last - first) + 1;
            let begin = |block: usize| u128::from(first) + length * block as u128 / BLOCKS as u128;
            for block in 0..BLOCKS {
                // The moment after the last one may be no u64 any more.
                let (from, end) = (begin(block), begin(block + 1));
                let rows = if end > from { columns.rows_in(from as u64..=(end - 1) as u64) } else { 0..0 };
                let mut groups: Vec<(GroupKey, Count)> =
                    columns.group_by(rows, Dims::default(), false).into_iter().collect();
                groups.sort_unstable_by_key(|(key, _)| *key);
                blocks.push(summer.sums(groups.into_iter()));
            }
        }
        let BlockSums { total, nodes, lines, work } = all;
        Ok(RunSums { facts, total, nodes, lines, work, blocks })
    }
}

impl RunSums {
    /// Whether every event is in the recording, so that its costs are exact: nothing is estimated
    /// from samples.
    pub(crate) fn is_exact(&self) -> bool {
        let facts = &self.facts;
        let is_complete = facts.lost == 0 && facts.throttled == 0 && facts.samples as f64 == self.total;
        // A clock with a period of 1 ns ticks as often as the kernel allows.
        is_complete && facts.rate == SamplingRate::Period(1) && facts.unit != "ns"
    }

    /// Whether another run is the same recording: made at the same time, with the same costs.
    pub(crate) fn is_same_recording(&self, other: &RunSums) -> bool {
        let facts = |run: &RunSums| RunFacts { name: String::new(), notes: Vec::new(), ..run.facts.clone() };
        facts(self) == facts(other) && self.total == other.total && self.nodes == other.nodes
    }
}

/// Adds up groups of samples by node.
struct Summer<'a> {
    event: usize,
    work: Option<usize>,
    lines: bool,
    profile: &'a Profile,
    stacks: &'a mut SharedStacks,
    /// By function of the profile its shared number.
    known: FxHashMap<u32, u32>,
    /// By raw stack its node and its line.
    nodes: FxHashMap<u32, (u32, u32)>,
}

impl Summer<'_> {
    fn sums(&mut self, groups: impl Iterator<Item = (GroupKey, Count)>) -> BlockSums {
        let (mut nodes, mut lines): (FxHashMap<u32, f64>, FxHashMap<u32, f64>) = Default::default();
        let mut sums = BlockSums { work: self.work.map(|_| 0.0), ..BlockSums::default() };
        for (key, count) in groups {
            let cost = count.period as f64;
            if Some(key.event as usize) == self.work
                && let Some(work) = &mut sums.work
            {
                *work += cost;
            }
            if key.event as usize != self.event {
                continue;
            }
            sums.total += cost;
            let (node, line) = self.place(key.chain);
            *nodes.entry(node).or_default() += cost;
            if self.lines {
                *lines.entry(line).or_default() += cost;
            }
        }
        (sums.nodes, sums.lines) = (sorted(nodes), sorted(lines));
        sums
    }

    /// The node of a raw stack, and the line of its innermost function.
    fn place(&mut self, chain: u32) -> (u32, u32) {
        if let Some(place) = self.nodes.get(&chain) {
            return *place;
        }
        let profile = self.profile;
        let leaf = [profile.stacks.leaf(chain)];
        let frames = profile.stacks.frames(chain);
        let frames = if frames.is_empty() { &leaf[..] } else { frames };
        let mut node = NO_NODE;
        for frame in frames.iter().rev() {
            let function = match self.known.get(&frame.0) {
                Some(function) => *function,
                None => {
                    let function = function_of(&profile.functions, &profile.loaded.timeline.modules, *frame);
                    let number = self.stacks.function(&function.module, &function.name);
                    self.known.insert(frame.0, number);
                    number
                }
            };
            node = self.stacks.step(node, function);
        }
        let mut line = 0;
        if self.lines {
            let function = self.stacks.nodes.get(node as usize).map_or(0, |node| node.function);
            line = self.stacks.line(function, profile.stacks.line(chain));
        }
        self.nodes.insert(chain, (node, line));
        (node, line)
    }
}

fn sorted(costs: FxHashMap<u32, f64>) -> NodeCosts {
    let mut costs: NodeCosts = costs.into_iter().collect();
    costs.sort_unstable_by_key(|(number, _)| *number);
    costs
}

/// An event's name without modifiers: what is excluded is compared by itself.
fn plain_name(event: &Event) -> &str {
    let name = event.name.trim_end_matches('/');
    match name.rsplit_once([':', '/']) {
        Some((plain, modifiers))
            if !modifiers.is_empty()
                && event.attr.kind != abi::PERF_TYPE_TRACEPOINT
                && modifiers.chars().all(|modifier| "ukhpPGHSDWIe".contains(modifier)) =>
        {
            plain
        }
        _ => name,
    }
}

fn event_number(recording: &Recording, profile: &Profile, asked: Option<&str>) -> Result<usize, RunError> {
    let (events, totals) = (&recording.events.list, &profile.loaded.totals);
    let found = match asked {
        Some(asked) => events.iter().position(|event| event.name == asked || plain_name(event) == asked),
        // Probes and tracepoints are counts of something, not costs.
        None => (0..events.len().min(totals.len()))
            .filter(|&at| totals[at].samples > 0)
            .max_by_key(|&at| (events[at].attr.kind != abi::PERF_TYPE_TRACEPOINT, totals[at].samples)),
    };
    found.ok_or_else(|| {
        let names: Vec<&str> = events.iter().map(|event| &*event.name).collect();
        RunError::NotRecorded(match asked {
            Some(asked) => format!("there is no event {asked}; the recording has {}", names.join(", ")),
            None => "the recording has no samples".to_owned(),
        })
    })
}

fn work_number(recording: &Recording, asked: &str) -> Result<usize, RunError> {
    let events = &recording.events.list;
    let is_meant = |event: &Event| {
        let bare = asked.strip_prefix("probe:").unwrap_or(asked).trim_matches('\'');
        event.name == asked || plain_name(event) == asked || event.name.rsplit(':').next() == Some(bare)
    };
    events.iter().position(is_meant).ok_or_else(|| {
        let names: Vec<&str> = events.iter().map(|event| &*event.name).collect();
        RunError::NotRecorded(format!(
            "there is no event {asked} that counts work; the recording has {}: record it with -e, too",
            names.join(", ")
        ))
    })
}

fn facts(recording: &Recording, profile: &Profile, number: usize, name: &str) -> RunFacts {
    let (loaded, features) = (&profile.loaded, &recording.features);
    let event = &recording.events.list[number];
    let attr = &event.attr;
    let levels = abi::ATTR_FLAG_EXCLUDE_USER | abi::ATTR_FLAG_EXCLUDE_KERNEL;
    let (first, last) = loaded.time_range.unwrap_or((0, 0));
    let rate = match attr.flags & abi::ATTR_FLAG_FREQ != 0 {
        true => SamplingRate::Frequency(attr.sample_period),
        false => SamplingRate::Period(attr.sample_period),
    };
    let machine = [features.cpu_desc.as_deref(), features.os_release.as_deref()];
    RunFacts {
        name: name.to_owned(),
        event: plain_name(event).to_owned(),
        counts: (attr.kind, attr.config),
        unit: unit_of(event).to_owned(),
        excluded: attr.flags & levels,
        rate,
        samples: loaded.totals.get(number).map_or(0, |total| total.samples),
        lost: loaded.counts.lost_samples.max(loaded.counts.lost_records),
        all_samples: loaded.totals.iter().map(|total| total.samples).sum(),
        throttled: loaded.counts.throttled,
        first_ns: first,
        last_ns: last,
        cpus: features.nr_cpus.map_or(0, |cpus| cpus.online),
        has_callers: attr.sample_type & abi::PERF_SAMPLE_CALLCHAIN != 0,
        host: features.hostname.clone().unwrap_or_default(),
        machine: machine.into_iter().flatten().collect::<Vec<_>>().join(", "),
        is_damaged: recording
            .problems
            .iter()
            .chain(&loaded.summary.problems)
            .any(|problem| problem.is_damage),
        notes: profile.notes.clone(),
    }
}
