//! Names of generated code: from marks in the recording, and from the jitdump files that it names.
//!
//! A compiler that writes a jitdump maps a page of it as code, so that the recording has its path:
//! no other tool has to put the two together (`perf inject --jit`). The times in it are of
//! `CLOCK_MONOTONIC`; a recording has that clock (`-k mono`), or marks that tie its own to it.
//! Where it has neither, the newest code of an address counts for all times.
//!
//! The timeline needs to know when an address changes its name, so all of this is read before it is
//! built.
use crate::timeline::{Moment, SideEvent};
use kymo_data::jitdump::{self, JitEvent};
use kymo_data::{CodeNames, EventSet, Mark, RawRecord, abi};
use kymo_symbols::{CodeMap, CodeMapBuilder, SymbolOptions, read_code_file};
use rustc_hash::{FxHashMap, FxHashSet};
use std::path::{Path, PathBuf};

/// `CLOCK_MONOTONIC` in an event's attributes.
const MONOTONIC: i32 = 1;
/// The flag of a jitdump file whose times are the processor's counter.
const COUNTER_TIMES: u64 = 1;
/// Jitdump files that are read for a recording.
const MOST_DUMPS: usize = 1024;

/// The module of generated code where processes are compared.
const SHARED: &str = "[JIT]";

/// The module of a function as all processes and runs of a program have it: that of generated code
/// has the number of a process in its name (`[JIT] tid 24011`), as in perf.
pub fn shared_module(short_name: &str) -> &str {
    let rest = short_name.strip_prefix(SHARED).and_then(|rest| rest.strip_prefix(" tid "));
    let is_number = |rest: &str| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit());
    if rest.is_some_and(is_number) { SHARED } else { short_name }
}

/// What is known of the generated code of a recording.
#[derive(Debug, Default)]
pub(crate) struct GeneratedCode {
    /// By process.
    maps: FxHashMap<i32, CodeMap>,
    /// By process: why its file was not read.
    notes: FxHashMap<i32, String>,
    /// By process: the jitdump files that were read.
    dumps: FxHashMap<i32, Vec<PathBuf>>,
}

impl GeneratedCode {
    /// The code of a process.
    pub(crate) fn of(&self, pid: i32) -> Option<&CodeMap> {
        self.maps.get(&pid)
    }

    /// What the user should know of a process's names.
    pub(crate) fn note(&self, pid: i32) -> Option<&str> {
        self.notes.get(&pid).map(String::as_str)
    }

    /// The bytes of the code that was at an address of a process at a time, and how wide its
    /// addresses are: 32 or 64.
    ///
    /// # Errors
    /// Why they are not known, a sentence.
    pub(crate) fn bytes_at(
        &self,
        pid: i32,
        address: u64,
        time_ns: u64,
        options: &SymbolOptions,
    ) -> Result<(Vec<u8>, u16), String> {
        let of = format!("the generated code of process {pid}");
        let code = self.of(pid).and_then(|map| map.find(address, time_ns));
        let code = code.ok_or_else(|| format!("{of} has none at {address:#x}"))?;
        let Some(code_at) = code.code_at else {
            return Err(format!("{of}: a perf map has names, not code; a jitdump file has both"));
        };
        let [path] = self.dumps.get(&pid).map_or(&[][..], Vec::as_slice) else {
            return Err(format!("{of} is in several jitdump files"));
        };
        let (bytes, _) = read_code_file(options, path)?;
        let shown = path.display();
        let (header, mut records) = jitdump::parse(&bytes).map_err(|error| format!("{shown}: {error}"))?;
        let machine = u16::try_from(header.elf_machine).unwrap_or(u16::MAX);
        // It is read anew: another program of this number may have written it since.
        let found = records.find_map(|record| match record.ok()?.what {
            JitEvent::Load { code_at: at, code: bytes, .. } if at == code_at => Some(bytes.to_vec()),
            _ => None,
        });
        let found = found.filter(|bytes| bytes.len() as u64 == code.end - code.start);
        Ok((found.ok_or_else(|| format!("{shown} has changed since: its code is not shown"))?, machine))
    }
}

/// What the first pass finds about generated code.
#[derive(Debug, Default)]
pub(crate) struct CodeRecords {
    /// Marks with names, as they are in the file, by position.
    names: Vec<(u64, i32, Vec<u8>)>,
    /// The recording's clock and `CLOCK_MONOTONIC`.
    clocks: Vec<(u64, u64)>,
}

impl CodeRecords {
    /// Keeps a record if it tells of generated code.
    pub(crate) fn take(&mut self, record: &RawRecord<'_>) {
        if let Some(pid) = CodeNames::pid_of(record) {
            self.names.push((record.position, pid, record.body.to_vec()));
        } else if let Some(Mark::Clock { recording_ns, monotonic_ns }) = Mark::parse(record) {
            self.clocks.push((recording_ns, monotonic_ns));
        }
    }

    /// Adds what another worker found.
    pub(crate) fn absorb(&mut self, other: CodeRecords) {
        self.names.extend(other.names);
        self.clocks.extend(other.clocks);
    }

    /// Reads it all; the moments at which names change join the events.
    pub(crate) fn finish(
        mut self,
        recorded: &EventSet,
        events: &mut Vec<(Moment, SideEvent)>,
        options: &SymbolOptions,
    ) -> GeneratedCode {
        self.names.sort_unstable_by_key(|(position, ..)| *position);
        let mut code = GeneratedCode::default();
        let mut builders: FxHashMap<i32, CodeMapBuilder> = FxHashMap::default();
        for (position, pid, body) in &self.names {
            let Some(names) = CodeNames::parse(&whole(*position, body)) else { continue };
            let builder = builders.entry(*pid).or_insert_with(|| CodeMapBuilder::new(&options.budget));
            builder.add_lines(&names.text, names.from_ns, names.until_ns);
        }
        let clock = DumpClock::of(recorded, self.clocks);
        for (pid, path) in dumps(events) {
            let builder = builders.entry(pid).or_insert_with(|| CodeMapBuilder::new(&options.budget));
            match add_dump(builder, &clock, pid, &path, options) {
                Ok(read) => code.dumps.entry(pid).or_default().push(read),
                Err(why) => _ = code.notes.insert(pid, why),
            }
        }
        for (pid, builder) in builders {
            if builder.is_empty() {
                continue;
            }
            let map = builder.finish();
            if map.is_cut() {
                let note =
                    format!("process {pid} has more generated code than may be read: some has no name");
                code.notes.insert(pid, note);
            }
            let change = |&time_ns: &u64| (Moment { time_ns, position: 0 }, SideEvent::CodeChange { pid });
            events.extend(map.changes().iter().map(change));
            code.maps.insert(pid, map);
        }
        code
    }
}

/// The record whose body was kept.
fn whole(position: u64, body: &[u8]) -> RawRecord<'_> {
    let header = kymo_data::RecordHeader {
        kind: abi::PERF_RECORD_HEADER_EVENT_TYPE,
        misc: 0,
        size: (body.len() + kymo_data::RECORD_HEADER_BYTES) as u16,
    };
    RawRecord { header, body, position }
}

/// The jitdump files that processes have mapped, each once.
fn dumps(events: &[(Moment, SideEvent)]) -> Vec<(i32, PathBuf)> {
    use std::os::unix::ffi::OsStrExt;
    let mut seen = FxHashSet::default();
    let mut found = Vec::new();
    for (_, event) in events {
        let SideEvent::Map { pid, path, prot, kernel: false, .. } = event else { continue };
        let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        let is_dump = prot & 4 != 0 && name.starts_with(b"jit-") && name.ends_with(b".dump");
        if is_dump && found.len() < MOST_DUMPS && seen.insert((*pid, path.clone())) {
            found.push((*pid, PathBuf::from(std::ffi::OsStr::from_bytes(path))));
        }
    }
    found
}

/// Adds the code that a jitdump file tells of; the path that it was read from.
fn add_dump(
    builder: &mut CodeMapBuilder,
    clock: &DumpClock,
    pid: i32,
    path: &Path,
    options: &SymbolOptions,
) -> Result<PathBuf, String> {
    // In a container that still runs.
    let inside = PathBuf::from(format!("/proc/{pid}/root{}", path.display()));
    let ((bytes, _), path) = match read_code_file(options, path) {
        Ok(read) => (read, path),
        Err(why) => (read_code_file(options, &inside).map_err(|_| why)?, &*inside),
    };
    let (header, records) = jitdump::parse(&bytes).map_err(|error| format!("{}: {error}", path.display()))?;
    let has_times = header.flags & COUNTER_TIMES == 0;
    let mut newest: FxHashMap<u64, u64> = FxHashMap::default();
    // A file that ends within a record is one that the compiler still writes.
    for record in records.map_while(Result::ok) {
        let since_ns = if has_times { clock.recording_ns(record.timestamp) } else { 0 };
        match record.what {
            JitEvent::Load { code_addr, code_at, index, name, code, .. } => {
                newest.insert(index, code_at);
                builder.add(code_addr, code.len() as u64, name, since_ns, Some(code_at));
            }
            JitEvent::Move { new_addr, index, .. } => {
                if let Some(&code_at) = newest.get(&index) {
                    builder.add_moved(code_at, new_addr, since_ns);
                }
            }
            _ => {}
        }
    }
    Ok(path.to_owned())
}

/// From `CLOCK_MONOTONIC` to the recording's clock.
#[derive(Debug, PartialEq, Eq)]
enum DumpClock {
    /// They are the same.
    Same,
    /// They lie on a line through these points: the recording's time, the other one.
    Tied((u64, u64), (u64, u64)),
    /// Nothing ties them.
    Unknown,
}

impl DumpClock {
    fn of(recorded: &EventSet, mut points: Vec<(u64, u64)>) -> DumpClock {
        let has_monotonic = |event: &kymo_data::Event| {
            event.attr.flags & abi::ATTR_FLAG_USE_CLOCKID != 0 && event.attr.clockid == MONOTONIC
        };
        if recorded.list.first().is_some_and(has_monotonic) {
            return DumpClock::Same;
        }
        points.sort_unstable_by_key(|point| point.1);
        match (points.first(), points.last()) {
            (Some(&first), Some(&last)) => DumpClock::Tied(first, last),
            _ => DumpClock::Unknown,
        }
    }

    fn recording_ns(&self, monotonic_ns: u64) -> u64 {
        match *self {
            DumpClock::Same => monotonic_ns,
            DumpClock::Unknown => 0,
            DumpClock::Tied(first, last) => {
                let (span, other) = (last.0.saturating_sub(first.0), last.1.saturating_sub(first.1));
                let since = i128::from(monotonic_ns) - i128::from(first.1);
                // Over less than a second the readings say less than the clocks, which run alike.
                let since =
                    if other < 1_000_000_000 { since } else { since * i128::from(span) / i128::from(other) };
                u64::try_from(i128::from(first.0) + since).unwrap_or(0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the number of a process is left out of the module of generated code, and nothing
    /// of others.
    #[test]
    fn generated_code_is_one_module() {
        for (name, shared) in [
            ("[JIT] tid 24011", "[JIT]"),
            ("[JIT]", "[JIT]"),
            ("[JIT] tid ", "[JIT] tid "),
            ("[JIT] tid x", "[JIT] tid x"),
            ("[vdso]", "[vdso]"),
            ("libjit.so", "libjit.so"),
        ] {
            assert_eq!(shared_module(name), shared);
        }
    }

    /// Checks that times are carried over along the line through both points, also before and after
    /// them.
    #[test]
    fn clocks() {
        let recorded = EventSet::default();
        assert_eq!(DumpClock::of(&recorded, Vec::new()), DumpClock::Unknown);
        let second = 1_000_000_000;
        let clock = DumpClock::of(&recorded, vec![(40 * second, 30 * second), (20 * second, 20 * second)]);
        for (monotonic, wanted) in [(20, 20), (25, 30), (30, 40), (35, 50), (15, 10), (5, 0)] {
            assert_eq!(clock.recording_ns(monotonic * second), wanted * second);
        }
        let near = DumpClock::of(&recorded, vec![(100, 50), (160, 100)]);
        assert_eq!([near.recording_ns(50), near.recording_ns(100)], [100, 150]);
        assert_eq!(DumpClock::Unknown.recording_ns(5), 0);
    }
}
