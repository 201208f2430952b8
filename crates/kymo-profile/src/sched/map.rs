//! Which thread ran on which CPU: a line for each switch, a cell for each CPU.
use super::event::SchedEvent;
use super::replay::{Replay, Step, ThreadIndex};
use super::stream::{CPUS_MAX, SchedSummary, read_events};
use kymo_data::{ReadError, Recording};
use rustc_hash::FxHashSet;

/// What is shown.
#[derive(Clone, Debug, Default)]
pub struct MapOptions {
    /// A column for each CPU that a switch was seen on, not for all.
    pub compact: bool,
    /// Only switches of these CPUs.
    pub cpus: Option<FxHashSet<u32>>,
    /// Only threads of these names.
    pub names: Option<Vec<String>>,
    /// The names may be parts of names.
    pub parts_of_names: bool,
}

/// Two letters for a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortName([u8; 2]);

impl ShortName {
    /// A CPU that is idle.
    const IDLE: ShortName = ShortName(*b". ");
    /// A thread that was not asked for.
    const OTHER: ShortName = ShortName(*b"- ");

    /// The letters.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or("??")
    }
}

/// What a line shows of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapCell {
    /// The CPU.
    pub cpu: u32,
    /// The thread that runs there; none where nothing is known yet.
    pub thread: Option<(ThreadIndex, ShortName)>,
}

/// A switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapLine {
    /// When.
    pub time_ns: u64,
    /// On which CPU.
    pub cpu: u32,
    /// All CPUs that are shown.
    pub cells: Vec<MapCell>,
    /// A thread that appears for the first time, or has got another name.
    pub announced: Option<(ShortName, ThreadIndex)>,
    /// The CPU's first switch in a compact map.
    pub is_new_cpu: bool,
    /// The thread that was asked for has left the CPU, and another one runs.
    pub is_departure: bool,
}

/// Calls `each` with every line, in order of time.
///
/// # Errors
/// When the recording cannot be read at all, and those of `each`.
pub fn map<E: From<ReadError>>(
    recording: &Recording,
    options: &MapOptions,
    mut each: impl FnMut(&MapLine, &Replay) -> Result<(), E>,
) -> Result<SchedSummary, E> {
    let columns = recording.features.nr_cpus.map_or(0, |cpus| cpus.online.min(CPUS_MAX));
    let mut walk = MapWalk::new(options, columns);
    read_events(recording, false, |event, _| {
        for line in walk.lines(event) {
            each(&line, &walk.replay)?;
        }
        Ok(())
    })
}

#[derive(Debug)]
struct MapWalk<'a> {
    options: &'a MapOptions,
    replay: Replay,
    /// Columns of a map of all CPUs.
    columns: u32,
    /// Columns of a compact map, in the order in which they appeared.
    seen: Vec<u32>,
    /// Of each CPU: whether it is among them.
    is_seen: Vec<bool>,
    /// Of each CPU: what runs there.
    current: Vec<Option<ThreadIndex>>,
    short_names: Vec<Option<ShortName>>,
    /// Short names that were given.
    given: usize,
    /// The idle tasks of all CPUs have one name, which is announced once.
    has_idle: bool,
}

/// The second letters of short names: perf's first, then more, so that names are unique for longer.
const SECOND: &[u8; 62] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

impl MapWalk<'_> {
    fn new(options: &MapOptions, columns: u32) -> MapWalk<'_> {
        MapWalk {
            options,
            replay: Replay::default(),
            columns,
            seen: Vec::new(),
            is_seen: Vec::new(),
            current: Vec::new(),
            short_names: Vec::new(),
            given: 0,
            has_idle: false,
        }
    }

    /// The lines of an event: where threads are picked, one for the thread that left, and one for
    /// that which came.
    fn lines(&mut self, event: &SchedEvent) -> Vec<MapLine> {
        let step = self.replay.apply(event);
        let (Step::Switched { out, into }, Some(cpu)) = (step, event.cpu) else { return Vec::new() };
        let is_new_cpu = self.see_cpu(cpu);
        let into = into.map(|into| into.thread);
        self.current[cpu as usize] = into;
        let is_new = into.is_some_and(|into| self.give_short_name(into));
        if self.options.cpus.as_ref().is_some_and(|cpus| !cpus.contains(&cpu)) {
            return Vec::new();
        }
        let mut lines = Vec::new();
        if into.is_some_and(|into| self.is_asked_for(into)) {
            let announced = into.filter(|into| self.replay.take_renamed(*into) || is_new);
            let announced = announced.and_then(|thread| Some((self.short_name(thread)?, thread)));
            let cells = self.cells();
            let time_ns = event.time_ns;
            lines.push(MapLine { time_ns, cpu, cells, announced, is_new_cpu, is_departure: false });
        }
        let departs = out.map(|out| out.thread).is_some_and(|out| {
            self.options.names.is_some() && self.is_asked_for(out) && self.short_name(out).is_some()
        });
        if departs || into.is_none() {
            let (announced, time_ns) = (None, event.time_ns);
            let cells = self.cells();
            lines.push(MapLine { time_ns, cpu, cells, announced, is_new_cpu, is_departure: true });
        }
        lines
    }

    /// Notes a CPU: whether it is the first time in a compact map.
    fn see_cpu(&mut self, cpu: u32) -> bool {
        self.columns = self.columns.max(cpu + 1);
        let at = cpu as usize;
        if self.current.len() <= at {
            self.current.resize(at + 1, None);
            self.is_seen.resize(at + 1, false);
        }
        let is_new = !std::mem::replace(&mut self.is_seen[at], true);
        if is_new {
            self.seen.push(cpu);
        }
        is_new && self.options.compact
    }

    fn cells(&self) -> Vec<MapCell> {
        let cell = |cpu: u32| {
            let thread = self.current.get(cpu as usize).copied().flatten();
            MapCell { cpu, thread: thread.and_then(|thread| Some((thread, self.short_name(thread)?))) }
        };
        match self.options.compact {
            true => self.seen.iter().copied().map(cell).collect(),
            false => (0..self.columns).map(cell).collect(),
        }
    }

    fn short_name(&self, thread: ThreadIndex) -> Option<ShortName> {
        self.short_names.get(thread.at()).copied().flatten()
    }

    fn is_asked_for(&self, thread: ThreadIndex) -> bool {
        let Some(names) = &self.options.names else { return true };
        let thread = self.replay.thread(thread);
        // As perf calls the idle task here.
        let own = if thread.is_idle() { "swapper".to_owned() } else { thread.shown_name() };
        names.iter().any(|name| own == *name || self.options.parts_of_names && own.contains(name.as_str()))
    }

    /// Gives a thread its letters, if it has none: whether they are announced.
    fn give_short_name(&mut self, thread: ThreadIndex) -> bool {
        if self.short_name(thread).is_some() {
            return false;
        }
        let is_idle = self.replay.thread(thread).is_idle();
        let name = if is_idle {
            ShortName::IDLE
        } else if self.is_asked_for(thread) {
            let (first, second) = (self.given % 26, self.given / 26 % SECOND.len());
            self.given += 1;
            ShortName([b'A' + first as u8, SECOND[second]])
        } else {
            ShortName::OTHER
        };
        if self.short_names.len() <= thread.at() {
            self.short_names.resize(thread.at() + 1, None);
        }
        self.short_names[thread.at()] = Some(name);
        !is_idle || !std::mem::replace(&mut self.has_idle, true)
    }
}
