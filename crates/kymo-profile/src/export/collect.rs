//! From a profile to the model that exports are written from.
use super::model::*;
use super::reused_ids::{LaterThreads, later_threads};
use crate::chains::ChainId;
use crate::columns::{Columns, RowField, ThinRows, per_cpu};
use crate::functions::{FunctionId, Functions, Level};
use crate::load::{GroupKey, Loaded, LostAt};
use crate::locks;
use crate::profile::Profile;
use crate::timeline::{CommId, ModuleId, Modules};
use crate::wall::OFF_CPU;
use kymo_data::{Recording, abi};
use kymo_symbols::pool;
use rustc_hash::FxHashMap;

/// A timeline has at most so many entries: those of single samples, of every second one, ...
pub(crate) const MOST_ENTRIES: usize = 300_000;
/// A timeline shows at least this many buckets, however much it is coarsened.
const LEAST_BUCKETS: u32 = 200;
/// And not many more marks than this.
const MOST_MARKS: u64 = 500;

/// Puts a profile into the exports' form. `source` is the recording's name as the user gave it.
///
/// Threads and the timeline are filled when the profile was loaded with its
/// [`columns`](crate::load::LoadOptions::columns), else they are empty.
pub fn collect(recording: &Recording, profile: &Profile, source: &str) -> ExportProfile {
    collect_with_nodes(recording, profile, source, MOST_ENTRIES).0
}

/// The same with at most so many samples on the timelines, and by event the nodes of its stacks.
pub(crate) fn collect_with_nodes(
    recording: &Recording,
    profile: &Profile,
    source: &str,
    most_entries: usize,
) -> (ExportProfile, Vec<Nodes>) {
    let columns = profile.loaded.columns.as_ref();
    let shown = columns.map(|columns| columns.thin(most_entries)).unwrap_or_default();
    collect_shown(recording, profile, source, &shown)
}

/// The same with these rows of the columns on the timelines.
pub(super) fn collect_shown(
    recording: &Recording,
    profile: &Profile,
    source: &str,
    shown: &ThinRows,
) -> (ExportProfile, Vec<Nodes>) {
    let loaded = &profile.loaded;
    let mut export = ExportProfile {
        loss: loss(loaded),
        intervals: intervals(loaded),
        notes: profile.notes.clone(),
        ..facts(recording, source, loaded.time_range)
    };
    let mut trees = Trees { profile, functions: FxHashMap::default(), export: &mut export };
    let mut threads = FxHashMap::default();
    for (pid, tid, count) in loaded.columns.iter().flat_map(Columns::count_threads) {
        threads.insert(tid, trees.export.threads.len() as u32);
        let comm = loaded.timeline.comm(loaded.timeline.last_comm(tid)).into_owned();
        trees.export.threads.push(Thread { pid, tid, comm, samples: count.samples, earlier_processes: 0 });
    }
    let later = loaded.columns.as_ref().map_or_else(LaterThreads::default, |columns| {
        let numbers = trees.export.threads.iter().zip(0_u32..);
        let numbers: FxHashMap<(i32, i32), u32> =
            numbers.map(|(thread, at)| ((thread.pid, thread.tid), at)).collect();
        let first: Vec<u32> =
            columns.threads.iter().map(|thread| numbers[&(thread.pid, thread.tid)]).collect();
        later_threads(trees.export, (&loaded.timeline, false), columns, &first)
    });
    let mut of_events: Vec<Nodes> = Vec::new();
    for (index, event) in recording.events.list.iter().enumerate() {
        let total = loaded.totals[index];
        if total.samples == 0 {
            of_events.push(Nodes::default());
            continue;
        }
        let (stacks, nodes) = trees.stacks(index as u32);
        let imported = recording.features.imported.as_ref().and_then(|facts| facts.events.get(index));
        let timeline = timeline(loaded, shown, index as u32, &nodes, (&threads, &later));
        trees.export.events.push(ExportEvent {
            name: event.name.clone(),
            unit: unit_of(event).to_owned(),
            is_of_sums: imported.is_some_and(|facts| facts.samples_type.is_none()),
            samples_type: imported.and_then(|facts| facts.samples_type.clone()).unwrap_or_default(),
            total_samples: stacks
                .nodes
                .iter()
                .fold(0, |sum: u64, node| sum.saturating_add(node.self_samples)),
            total_period: total.period,
            stacks,
            timeline,
            ..ExportEvent::default()
        });
        of_events.push(nodes);
    }
    (export, of_events)
}

/// By row the node that it counts for.
pub(crate) fn row_nodes(columns: &Columns, of_events: &[Nodes]) -> RowNodes {
    let node = |row| {
        let event = columns.get(RowField::Event, row) as usize;
        let key = (columns.thread(row).comm, columns.get(RowField::Stack, row) as ChainId);
        of_events.get(event).and_then(|nodes| nodes.get(&key)).copied().unwrap_or(NO_PARENT)
    };
    let pieces = per_cpu(0..columns.len());
    pool::map(&pieces, |piece| piece.clone().map(node).collect::<Vec<_>>()).concat()
}

/// By row the node of its event's call tree that it counts for; [`NO_PARENT`]: none.
pub(crate) type RowNodes = Vec<u32>;

/// Events of kymo and perf whose periods are ns though their attributes name no clock.
const TIMES: [&str; 3] = [OFF_CPU, locks::WAIT, locks::HOLDS];

/// What the periods of an event count; empty where nothing is known of it.
pub(crate) fn unit_of(event: &kymo_data::Event) -> &str {
    let is_clock = event.attr.kind == abi::PERF_TYPE_SOFTWARE && event.attr.config < 2;
    match event.unit.as_deref() {
        _ if is_clock || TIMES.contains(&&*event.name) => "ns",
        // With a factor it is the unit of the product, which samples do not have.
        Some(unit) if unit != "count" && event.scale.is_none_or(|factor| factor == 1.0) => unit,
        _ => "",
    }
}

/// What a recording says of itself and its machine. `range`: its first and last moment, ns; `None`
/// where no sample has a time.
pub(crate) fn facts(recording: &Recording, source: &str, range: Option<(u64, u64)>) -> ExportProfile {
    let (first, last) = range.unwrap_or((0, 0));
    let features = &recording.features;
    let imported = features.imported.as_ref();
    ExportProfile {
        title: title(&recording.features.cmdline),
        command_line: features.cmdline.clone(),
        host: features.hostname.clone().unwrap_or_default(),
        kernel: features.os_release.clone().unwrap_or_default(),
        arch: features.arch.clone().unwrap_or_default(),
        cpu: features.cpu_desc.clone().unwrap_or_default(),
        cpus_online: features.nr_cpus.map_or(0, |n| n.online),
        recorder: recorder(features.version.as_deref()),
        source: source.to_string(),
        start_unix_ns: start_unix_ns(recording, range.map(|(first, _)| first)),
        start_ns: first,
        sampling: imported.and_then(|facts| facts.sampling.clone()),
        duration_ns: imported.map_or(last - first, |facts| facts.duration_ns),
        ..ExportProfile::default()
    }
}

/// Node of the call tree by thread name and raw stack.
pub(crate) type Nodes = FxHashMap<(CommId, ChainId), u32>;

struct Trees<'a> {
    profile: &'a Profile,
    functions: FxHashMap<Function, u32>,
    export: &'a mut ExportProfile,
}

impl Trees<'_> {
    fn stacks(&mut self, event: u32) -> (StackTree, Nodes) {
        let mut tree = StackTree::default();
        let mut index: FxHashMap<(u32, u32), u32> = FxHashMap::default();
        let mut nodes = Nodes::default();
        // Functions of a profile become functions of the export once, whatever tree they are in.
        let mut known: FxHashMap<FunctionId, u32> = FxHashMap::default();
        // Without symbols each address is a function of the profile, and each module one here.
        let mut unnamed: FxHashMap<Option<ModuleId>, u32> = FxHashMap::default();
        let profile = self.profile;
        for (key, count) in profile.loaded.groups.iter().filter(|(k, _)| k.event == event) {
            let mut node = step(&mut tree, &mut index, NO_PARENT, self.comm(key));
            let frames = profile.stacks.frames(key.chain);
            let leaf = [profile.stacks.leaf(key.chain)];
            let frames = if frames.is_empty() { &leaf[..] } else { frames };
            for &frame in frames.iter().rev() {
                let function = match known.get(&frame) {
                    Some(&function) => function,
                    None => {
                        let (functions, modules) = (&profile.functions, &profile.loaded.timeline.modules);
                        let mut intern = || self.intern(function_of(functions, modules, frame));
                        let function = match module_of_unnamed(functions, frame) {
                            Some(module) => *unnamed.entry(module).or_insert_with(intern),
                            None => intern(),
                        };
                        known.insert(frame, function);
                        function
                    }
                };
                node = step(&mut tree, &mut index, node, function);
            }
            nodes.insert((key.comm, key.chain), node);
            let node = &mut tree.nodes[node as usize];
            node.self_samples += count.samples;
            node.self_period = node.self_period.saturating_add(count.period);
        }
        (tree, nodes)
    }

    fn comm(&mut self, key: &GroupKey) -> u32 {
        let name = self.profile.loaded.timeline.comm(key.comm).into_owned();
        self.intern(Function { name, kind: FunctionKind::Comm, ..Function::default() })
    }

    fn intern(&mut self, function: Function) -> u32 {
        if let Some(&id) = self.functions.get(&function) {
            return id;
        }
        let id = self.export.functions.len() as u32;
        self.export.functions.push(function.clone());
        self.functions.insert(function, id);
        id
    }
}

/// The node of a function below a parent; made where there is none.
pub(crate) fn step(
    tree: &mut StackTree,
    index: &mut FxHashMap<(u32, u32), u32>,
    parent: u32,
    function: u32,
) -> u32 {
    *index.entry((parent, function)).or_insert_with(|| {
        tree.nodes.push(Node { parent, function, self_samples: 0, self_period: 0 });
        (tree.nodes.len() - 1) as u32
    })
}

/// The module of code without a symbol: all that it has is one [`Function`].
pub(super) fn module_of_unnamed(functions: &Functions, id: FunctionId) -> Option<Option<ModuleId>> {
    let function = functions.get(id);
    function.name.is_none().then_some(function.module)
}

/// What pictures and tables show of a function.
pub(crate) fn function_of(functions: &Functions, modules: &Modules, id: FunctionId) -> Function {
    let function = functions.get(id);
    let module = function.module.map_or("[unknown]", |id| &modules.get(id).short_name).to_owned();
    let kernel = matches!(function.level, Level::Kernel | Level::GuestKernel);
    let (name, kind) = match &function.name {
        Some(name) if function.inlined => (name.to_string(), FunctionKind::Inline),
        Some(name) => (name.to_string(), if kernel { FunctionKind::Kernel } else { FunctionKind::User }),
        // All unnamed code of a module is one function: its addresses mean nothing in a picture.
        None if module.starts_with('[') => (module.clone(), FunctionKind::Unknown),
        None => (format!("[{module}]"), FunctionKind::Unknown),
    };
    Function { name, module, file: None, line: None, kind }
}

fn timeline(
    loaded: &Loaded,
    shown: &ThinRows,
    event: u32,
    nodes: &Nodes,
    (threads, later): (&FxHashMap<i32, u32>, &LaterThreads),
) -> Timeline {
    // One nanosecond would overflow the bucket number of a recording longer than four seconds.
    let (first, last) = loaded.time_range.unwrap_or((0, 0));
    let bucket_ns = ((last - first) / u64::from(u32::MAX) + 1).max(1000);
    let entry = |columns: &Columns, row| {
        let thread = columns.thread(row);
        let stack = columns.get(RowField::Stack, row) as ChainId;
        Some(TimelineEntry {
            bucket: ((columns.time()[row] - first) / bucket_ns) as u32,
            thread: match later.at(columns.get(RowField::Thread, row) as u32, columns.time()[row]) {
                Some(later) => later,
                None => *threads.get(&thread.tid)?,
            },
            cpu: columns.get(RowField::Cpu, row) as u32,
            node: *nodes.get(&(thread.comm, stack))?,
            // One row in `stride` is shown; each stands for as many.
            samples: shown.stride as u32,
            period: columns.get(RowField::Period, row).saturating_mul(shown.stride),
        })
    };
    let of_event = |columns: &Columns, row| columns.get(RowField::Event, row) == u64::from(event);
    let rows = loaded.columns.iter().flat_map(|columns| shown.rows.iter().map(move |row| (columns, *row)));
    let entries = rows.filter(|(columns, row)| of_event(columns, *row));
    let entries = entries.filter_map(|(columns, row)| entry(columns, row)).collect();
    let mut timeline = Timeline { bucket_ns, entries };
    timeline.coarsen(MOST_ENTRIES, LEAST_BUCKETS);
    timeline
}

fn title(line: &[String]) -> String {
    let at = line.iter().position(|w| w == "--");
    // With one of these options the command only says how long the recording lasts.
    if let Some(target) = recorded_target(&line[..at.unwrap_or(line.len())]) {
        return target;
    }
    // What was recorded is what follows the recorder's own words.
    match at {
        Some(at) if at + 1 < line.len() => {
            // The program by its own name, without its folder.
            let program = line[at + 1].rsplit('/').next().unwrap_or_default();
            [&[program.to_string()], &line[at + 2..]].concat().join(" ")
        }
        _ => line.join(" "),
    }
}

/// What the options of a recorder name, where they name more than its command: `process 1234`.
fn recorded_target(options: &[String]) -> Option<String> {
    const TARGETS: [(&str, &str, &str); 5] = [
        ("-p", "--pid", "process"),
        ("-t", "--tid", "thread"),
        ("-G", "--cgroup", "cgroup"),
        ("-u", "--uid", "user"),
        ("-C", "--cpu", "CPU"),
    ];
    let value = |at: usize, short: &str, long: &str| {
        let word = &options[at];
        if word == short || word == long {
            return options.get(at + 1).map(String::as_str);
        }
        let long_value = word.strip_prefix(long).and_then(|rest| rest.strip_prefix('='));
        long_value.or_else(|| word.strip_prefix(short).filter(|_| !word.starts_with("--")))
    };
    for (short, long, noun) in TARGETS {
        if let Some(value) = (1..options.len()).find_map(|at| value(at, short, long)) {
            let plural = if !value.contains(',') {
                ""
            } else if noun == "process" {
                "es"
            } else {
                "s"
            };
            return Some(format!("{noun}{plural} {value}"));
        }
    }
    let is_whole = |word: &String| word == "--all-cpus" || (word.starts_with("-a") && word.len() <= 3);
    options.iter().any(is_whole).then(|| "the whole machine".to_owned())
}

/// The program that wrote the recording, and its version; empty if the recording does not say.
pub(crate) fn recorder(version: Option<&str>) -> String {
    match version {
        None | Some("") => String::new(),
        Some(v) if v.starts_with("kymo") => v.to_string(),
        Some(v) => format!("perf {v}"),
    }
}

/// The wall-clock time of the first sample, where the recording ties its clock to it; where no sample
/// has a time, that of the moment at which the recorder read both clocks, as it began. Of an imported
/// profile, that of its beginning.
fn start_unix_ns(recording: &Recording, first: Option<u64>) -> Option<u64> {
    if let Some(facts) = &recording.features.imported {
        return Some(facts.start_unix_ns).filter(|start| *start > 0);
    }
    let clock = recording.features.clock_data?;
    let first = first.unwrap_or(clock.clockid_time_ns);
    clock.wall_clock_ns.checked_add(first)?.checked_sub(clock.clockid_time_ns)
}

/// What was lost. The kernel counts a lost record twice: in the ring, which a LOST record tells later, and in its
/// event, which LOST_SAMPLES records tell at the end. Only what the second count has more is a loss of its own.
fn loss(loaded: &Loaded) -> Vec<Loss> {
    let counts = &loaded.counts;
    let late = counts.lost_samples.saturating_sub(counts.lost_records);
    [("ring buffer full", counts.lost_records), ("ring buffer full, told only at the end", late)]
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(cause, count)| Loss { cause: cause.to_string(), count })
        .collect()
}

/// Where records were lost: from the CPU's last sample before the loss to the moment when the
/// kernel could tell. Of a profile without columns, from its first sample.
fn stretches(loaded: &Loaded) -> Vec<Interval> {
    let first = loaded.time_range.map_or(0, |(first, _)| first);
    let losses = &loaded.counts.lost_at;
    let stretch = |loss: &LostAt, start_ns| {
        let kind = IntervalKind::Loss;
        Interval { kind, start_ns, end_ns: loss.time_ns, count: loss.lost }
    };
    let mut stretches = Vec::with_capacity(losses.len());
    // Losses of each CPU that wait for its sample before them. Losses and rows are ordered by time:
    // one walk back over both is enough, and rows that nothing waits for are jumped over.
    let mut waiting: FxHashMap<u32, Vec<&LostAt>> = FxHashMap::default();
    let mut earlier = losses.iter().rev().peekable();
    if let Some(columns) = &loaded.columns {
        let time = columns.time();
        let mut row = time.len();
        loop {
            if waiting.is_empty() {
                let Some(loss) = earlier.peek() else { break };
                row = time[..row].partition_point(|time| *time < loss.time_ns);
            }
            let Some(before) = row.checked_sub(1) else { break };
            while let Some(loss) = earlier.next_if(|loss| time[before] < loss.time_ns) {
                waiting.entry(loss.cpu).or_default().push(loss);
            }
            row = before;
            let cpu = columns.get(RowField::Cpu, row) as u32;
            let found = waiting.remove(&cpu).into_iter().flatten();
            stretches.extend(found.map(|loss| stretch(loss, time[row])));
        }
    }
    let without = waiting.into_values().flatten().chain(earlier);
    stretches.extend(without.map(|loss| stretch(loss, first.min(loss.time_ns))));
    stretches.sort_unstable_by_key(|s| (s.start_ns, s.end_ns));
    stretches
}

/// The stretches of losses; those close to each other are one: more than these cannot be seen.
fn intervals(loaded: &Loaded) -> Vec<Interval> {
    let (first, last) = loaded.time_range.unwrap_or((0, 0));
    let close = (last - first) / MOST_MARKS;
    let mut marks: Vec<Interval> = Vec::new();
    for stretch in stretches(loaded) {
        match marks.last_mut() {
            Some(mark) if stretch.start_ns.saturating_sub(mark.end_ns) <= close => {
                mark.end_ns = mark.end_ns.max(stretch.end_ns);
                mark.count = mark.count.saturating_add(stretch.count);
            }
            _ => marks.push(stretch),
        }
    }
    marks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::tests::{Shape, recording};
    use crate::load::{LoadOptions, load};
    use proptest::prelude::*;

    /// Checks that a page is titled with what was recorded: with a target the command after `--`
    /// only says for how long.
    #[test]
    fn titles_name_what_was_recorded() {
        let title_of = |line: &str| title(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        for (line, expected) in [
            ("kymo record -- /usr/bin/spin 1", "spin 1"),
            ("kymo record -g -p 1234 -- sleep 3", "process 1234"),
            ("kymo record --pid=12,13 -- sleep 3", "processes 12,13"),
            ("kymo record -pnginx", "process nginx"),
            ("perf record --tid 7 -- sleep 3", "thread 7"),
            ("perf record -ag -- sleep 3", "the whole machine"),
            ("kymo record --all-cpus -- make", "the whole machine"),
            ("kymo record --cgroup web.slice -- sleep 1", "cgroup web.slice"),
            ("kymo record -- grep -p x -a", "grep -p x -a"),
            ("perf record ./spin", "perf record ./spin"),
        ] {
            assert_eq!(title_of(line), expected, "{line}");
        }
    }

    proptest! {
        /// Checks that a stretch of losses begins with the last sample of the CPU before the loss,
        /// which a search of all samples finds.
        #[test]
        fn losses_begin_at_the_last_sample(choices in proptest::collection::vec(any::<u64>(), 0..300)) {
            let shape = Shape::of_events(1);
            let options = LoadOptions { columns: true, ..LoadOptions::default() };
            let loaded = load(&recording(&shape, &choices), &options, &|_, _, _| {}).expect("readable");
            let columns = loaded.columns.as_ref().expect("columns were asked for");
            let rows: Vec<_> = (0..columns.len()).map(|row| columns.row(row)).collect();
            let first = loaded.time_range.map_or(0, |(first, _)| first);
            let mut expected: Vec<_> = (loaded.counts.lost_at.iter())
                .map(|loss| {
                    let before = rows.iter().filter(|row| row.cpu == loss.cpu && row.time_ns < loss.time_ns);
                    let start = before.map(|row| row.time_ns).max().unwrap_or(first.min(loss.time_ns));
                    (start, loss.time_ns, loss.lost)
                })
                .collect();
            let mut found: Vec<_> =
                stretches(&loaded).iter().map(|s| (s.start_ns, s.end_ns, s.count)).collect();
            expected.sort_unstable();
            found.sort_unstable();
            prop_assert_eq!(found, expected);
        }
    }
}
