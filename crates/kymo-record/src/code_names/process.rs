//! A process that generates code, from one visit to the next.

use super::lines::KnownLines;
use super::{CodeSource, Nameless};
use kymo_perf::hotspot::{Hotspot, HotspotError};
use kymo_perf::proc::{self, InnerIdentity, TmpFolder, read_from};
use kymo_profile::runtimes::{self, Runtime};
use std::fs::File;
use std::time::{Duration, Instant, SystemTime};

/// The first visit comes so long after the mapping: a compiler has written something then.
const FIRST_VISIT: Duration = Duration::from_millis(300);
/// Visits are so far apart, and grow farther apart to this part of the time that has passed: what a
/// process compiled after the last visit has no names if it ends by itself.
const INTERVALS: (Duration, Duration) = (Duration::from_millis(150), Duration::from_secs(10));
const PART_OF_AGE: u32 = 8;
/// A visit may take one in so many parts of the time.
const COST: u32 = 50;
/// A virtual machine has so long to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// With less time a machine is not asked: its map would come when nobody takes it away.
const LEAST_TIMEOUT: Duration = Duration::from_millis(500);
/// A machine that did not run since it was asked compiled nothing: so many clock ticks are its
/// answer.
const IDLE_TICKS: u64 = 2;
/// The kernel rounds the start of a process.
const CLOCK_TICK: Duration = Duration::from_millis(20);
/// Bytes of a process's maps that are read in all.
const MOST_BYTES: u64 = 256 << 20;

/// What a visit brought.
#[derive(Debug, Default)]
pub(super) struct Visit {
    /// New lines of the process's perf map.
    pub(super) lines: Vec<u8>,
    /// There will be no more.
    pub(super) ended: bool,
}

/// The file that a compiler writes its names to.
#[derive(Debug)]
struct MapFile {
    file: File,
    read_bytes: u64,
}

#[derive(Debug)]
pub(super) struct Process {
    pid: i32,
    /// The file of its program, and what that runs.
    program: (String, &'static Runtime),
    has_dump: bool,
    /// The machine, if it is one and may be asked.
    machine: Option<Hotspot>,
    is_machine: bool,
    identity: Option<InnerIdentity>,
    /// Since when its number means this process.
    started: Option<SystemTime>,
    map: Option<MapFile>,
    known: KnownLines,
    since: Instant,
    pub(super) due: Instant,
    /// When the lines before were read, in ns of the recording's clock.
    pub(super) read_ns: u64,
    /// CPU time after the last answer, in clock ticks.
    ran: Option<u64>,
    /// Why a machine gave no names.
    refusal: Option<HotspotError>,
}

impl Process {
    pub(super) fn new(pid: i32) -> Process {
        Process {
            pid,
            program: program_of(pid),
            has_dump: false,
            machine: None,
            is_machine: false,
            identity: InnerIdentity::of(pid),
            started: start_of(pid),
            map: None,
            known: KnownLines::default(),
            since: Instant::now(),
            due: Instant::now() + FIRST_VISIT,
            read_ns: 0,
            ran: None,
            refusal: None,
        }
    }

    /// Something says that it generates code.
    pub(super) fn has(&mut self, source: CodeSource, asks_machines: bool) {
        match source {
            CodeSource::Memory => {}
            CodeSource::Dump => self.has_dump = true,
            // Those that existed are told twice.
            CodeSource::Hotspot if self.is_machine => {}
            CodeSource::Hotspot => {
                self.is_machine = true;
                self.machine = asks_machines.then(|| Hotspot::find(self.pid).ok()).flatten();
            }
        }
    }

    /// Looks at the process. `deadline`: of the last visit, at the end of the recording.
    pub(super) fn visit(&mut self, deadline: Option<Instant>) -> Visit {
        let begun = Instant::now();
        let was_known = !self.known.is_empty();
        let mut visit = Visit { ended: proc::parent(self.pid).is_none(), ..Visit::default() };
        let mut text = Vec::new();
        // What a machine is writing because it was asked is no map of its own.
        let is_asked = self.machine.as_ref().is_some_and(Hotspot::awaits_map);
        let map = if is_asked { None } else { self.read_map() };
        if let Some(bytes) = map {
            text = bytes;
        } else if is_asked || !visit.ended && self.may_ask(deadline.is_some()) {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(begun));
            let timeout = left.unwrap_or(ANSWER_TIMEOUT).min(ANSWER_TIMEOUT);
            if is_asked || timeout > LEAST_TIMEOUT {
                text = self.ask(timeout);
            }
        }
        visit.lines = self.known.new_in(&text);
        let (least, most) = INTERVALS;
        let interval = (self.since.elapsed() / PART_OF_AGE).clamp(least, most);
        // A machine's first answer is mostly waiting for it.
        let cost = if was_known { begun.elapsed() * COST } else { least };
        self.due = Instant::now() + interval.max(cost);
        tracing::debug!(pid = self.pid, took = ?begun.elapsed(), bytes = visit.lines.len(), "visited");
        visit
    }

    /// What the process has added to its perf map; `None` if it has none.
    fn read_map(&mut self) -> Option<Vec<u8>> {
        if self.map.is_none() {
            let identity = self.identity?;
            // When it has ended its folder cannot be reached any more, but most use the one here.
            let here = || TmpFolder::of(std::process::id().cast_signed()).ok();
            let tmp = TmpFolder::of(self.pid).ok();
            let tmp = tmp.or_else(|| here().filter(|_| identity.pid == self.pid))?;
            let file = tmp.open(&format!("perf-{}.map", identity.pid), identity.uid).ok()?;
            // An older one is of an earlier process with its number.
            let written = file.metadata().and_then(|metadata| metadata.modified()).ok()?;
            let is_own = self.started.is_some_and(|started| written + CLOCK_TICK >= started);
            self.map = Some(MapFile { file, read_bytes: 0 }).filter(|_| is_own);
        }
        let map = self.map.as_mut()?;
        let room = MOST_BYTES.saturating_sub(map.read_bytes);
        let mut text = read_from(&mut map.file, map.read_bytes, room).ok()?;
        // The end of a line that is being written comes with the next visit.
        let whole = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
        text.truncate(whole);
        map.read_bytes += whole as u64;
        Some(text)
    }

    /// Whether it is a machine that ran since it was asked.
    fn may_ask(&self, last: bool) -> bool {
        let is_final = self.refusal.as_ref().is_some_and(|refusal| !refusal.is_passing());
        let ran = cpu_ticks(self.pid);
        let is_idle = match (self.ran, ran) {
            (Some(before), Some(now)) => now.saturating_sub(before) < IDLE_TICKS,
            _ => false,
        };
        // What was not asked yet is asked in the end, unless it never ran.
        self.machine.is_some() && !is_final && !(is_idle && (self.refusal.is_none() || !last))
    }

    fn ask(&mut self, timeout: Duration) -> Vec<u8> {
        let Some(machine) = &mut self.machine else { return Vec::new() };
        let answer = machine.perf_map(timeout);
        match answer {
            Ok(text) => {
                self.ran = cpu_ticks(self.pid);
                self.refusal = None;
                text
            }
            Err(error) => {
                self.refusal = Some(error);
                Vec::new()
            }
        }
    }

    /// Itself, if it told no names for its code.
    pub(super) fn nameless(&self) -> Option<Nameless> {
        let (program, runtime) = &self.program;
        let is_nameless = !self.is_machine && !self.has_dump && self.known.is_empty();
        is_nameless.then(|| Nameless { pid: self.pid, program: program.clone(), runtime })
    }

    /// What the user should know in the end.
    pub(super) fn remarks(&mut self, asks_machines: bool) -> Vec<String> {
        let (pid, mut remarks) = (self.pid, Vec::new());
        if let Some(left) = self.machine.as_mut().and_then(Hotspot::left_behind) {
            remarks.push(format!(
                "{left} of process {pid} is left there, or comes when the Java virtual machine goes on: it \
                 was asked and did not answer in time; remove the file then"
            ));
        }
        if !self.is_machine || !self.known.is_empty() {
            return remarks;
        }
        let why = match &self.refusal {
            _ if !asks_machines => "--no-jvm was given".to_owned(),
            Some(HotspotError::Starting | HotspotError::Gone) | None => return remarks,
            Some(refusal) => refusal.to_string(),
        };
        remarks.push(format!(
            "the Java code of process {pid} has no names: {why}; names come with \
             -XX:+UnlockDiagnosticVMOptions -XX:+DumpPerfMapAtExit (JDK 17) or an agent that writes \
             /tmp/perf-{pid}.map"
        ));
        remarks
    }
}

/// When a process started.
fn start_of(pid: i32) -> Option<SystemTime> {
    let ticks: u64 = stat_fields(pid)?.get(19)?.parse().ok()?;
    let since_boot =
        Duration::from_nanos(ticks.checked_mul(1_000_000_000)? / rustix::param::clock_ticks_per_second());
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let now = Duration::new(now.tv_sec.cast_unsigned(), now.tv_nsec as u32);
    SystemTime::now().checked_sub(now.checked_sub(since_boot)?)
}

/// The fields of a process's stat file from its state on.
fn stat_fields(pid: i32) -> Option<Vec<String>> {
    let stat = proc::text(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit(") ").next()?.split(' ').map(str::to_owned).collect())
}

/// The CPU time that a process has used, in clock ticks.
fn cpu_ticks(pid: i32) -> Option<u64> {
    let fields = stat_fields(pid)?;
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    number(11)?.checked_add(number(12)?)
}
/// The program of a process and its runtime.
fn program_of(pid: i32) -> (String, &'static Runtime) {
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).ok();
    let name = program.as_deref().and_then(|program| program.file_name());
    let name = name.map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let runtime = runtimes::by_name(&name);
    (name, runtime)
}
