//! Bytes to rows, whatever the bytes are.
use super::{FRAMES_AT, HEADER_BYTES, MAGIC, MAX_COUNTERS, MAX_FRAME_BYTES, VERSION, checksum};
use std::fmt;

/// What the header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The process that writes, as it sees itself.
    pub pid: u32,
    /// Its descriptor to ask through.
    pub request_fd: i32,
    /// The newer of the two places; `None`: no frame was written so far.
    pub newest: Option<Place>,
}

/// Where a frame is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Counted from 1; 0: none is there.
    pub number: u64,
    /// From the beginning of the file.
    pub offset: u64,
    /// How long it is.
    pub bytes: u64,
    /// [`checksum`] of the frame.
    pub checksum: u64,
}

/// All groups and tasks at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// When, by the machine's monotonic clock.
    pub time_ns: u64,
    /// Whether the program is about to end.
    pub last: bool,
    /// The first thing that went wrong with counting; empty: nothing.
    pub problem: String,
    /// Its groups.
    pub groups: Vec<GroupRow>,
}

/// A group and its living tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupRow {
    /// Unique in the process; 0: groups of this name that are gone.
    pub number: u64,
    /// As the program calls it.
    pub name: String,
    /// Whether its tasks have counts of their own.
    pub per_task: bool,
    /// How many tasks it ever had.
    pub spawned: u64,
    /// What it counts: the names of counters.
    pub counters: Vec<String>,
    /// Polls, switches, migrations, uncounted polls: sums over living and ended tasks.
    pub own: [u64; 4],
    /// One for each counter.
    pub counts: Vec<Option<u64>>,
    /// Those that live.
    pub tasks: Vec<TaskRow>,
}

/// A task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskRow {
    /// Unique in the process.
    pub number: u64,
    /// As the program calls it.
    pub name: String,
    /// Whether a thread ran it at that moment.
    pub running: bool,
    /// Polls, switches, migrations, uncounted polls.
    pub own: [u64; 4],
    /// One for each counter of its group.
    pub counts: Vec<Option<u64>>,
}

/// Why a table is not believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The byte where it goes wrong, in the header or frame.
    pub at: usize,
    /// What is wrong there.
    pub why: &'static str,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the table of tasks is not as it should be: {} (at byte {})", self.why, self.at)
    }
}

impl std::error::Error for Refused {}

/// Reads a header.
///
/// # Errors
/// If it is of something else, or of a version that this one does not know.
pub fn header(bytes: &[u8]) -> Result<Header, Refused> {
    let mut input = Input { bytes, at: 0 };
    if bytes.len() < HEADER_BYTES {
        return Err(Refused { at: bytes.len(), why: "it is too short for a header" });
    }
    if input.number()? != MAGIC {
        return Err(Refused { at: 0, why: "it does not begin as a table of tasks does" });
    }
    if input.half()? != VERSION {
        return Err(Refused {
            at: 8,
            why: "it is of a version that this kymo does not know; use the kymo of the program's agent",
        });
    }
    input.half()?;
    let (pid, request_fd) = (input.half()?, input.half()? as i32);
    input.at = super::PLACES_AT as usize;
    let mut newest = None;
    for _ in 0..2 {
        let at = input.at;
        let place = Place {
            number: input.number()?,
            offset: input.number()?,
            bytes: input.number()?,
            checksum: input.number()?,
        };
        if place.number == 0 || newest.is_some_and(|newest: Place| newest.number > place.number) {
            continue;
        }
        if place.offset < FRAMES_AT || place.offset > i64::MAX as u64 || place.bytes > MAX_FRAME_BYTES {
            return Err(Refused { at, why: "a frame is said to be where none can be" });
        }
        newest = Some(place);
    }
    Ok(Header { pid, request_fd, newest })
}

/// Whether these are the bytes of that frame; if not, it was overwritten while it was read.
pub fn checked(place: &Place, bytes: &[u8]) -> bool {
    bytes.len() as u64 == place.bytes && checksum(bytes) == place.checksum
}

/// Reads a frame.
///
/// # Errors
/// If it is cut short, or something in it cannot be.
pub fn frame(bytes: &[u8]) -> Result<Frame, Refused> {
    let mut input = Input { bytes, at: 0 };
    let (time_ns, last, problem) = (input.number()?, input.truth()?, input.text()?);
    let mut frame = Frame { time_ns, last, problem, groups: Vec::new() };
    // Claimed counts only end loops: each turn of a loop consumes bytes that are there.
    for _ in 0..input.number()? {
        let mut group = GroupRow {
            number: input.number()?,
            name: input.text()?,
            per_task: input.truth()?,
            spawned: input.number()?,
            ..GroupRow::default()
        };
        let at = input.at;
        let columns = input.number()?;
        if columns > MAX_COUNTERS as u64 {
            return Err(Refused { at, why: "more counters than a group can have" });
        }
        let columns = columns as usize;
        for _ in 0..columns {
            group.counters.push(input.text()?);
        }
        (group.own, group.counts) = input.numbers(columns)?;
        for _ in 0..input.number()? {
            let (number, name, running) = (input.number()?, input.text()?, input.truth()?);
            let (own, counts) = input.numbers(columns)?;
            group.tasks.push(TaskRow { number, name, running, own, counts });
        }
        frame.groups.push(group);
    }
    if input.at != bytes.len() {
        return Err(Refused { at: input.at, why: "something follows the last group" });
    }
    Ok(frame)
}

struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Input<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Refused> {
        let end = self.at.checked_add(bytes).filter(|&end| end <= self.bytes.len());
        let end = end.ok_or(Refused { at: self.at, why: "it ends too early" })?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u64, Refused> {
        let mut number = [0; 8];
        number.copy_from_slice(self.take(8)?);
        Ok(u64::from_le_bytes(number))
    }

    fn half(&mut self) -> Result<u32, Refused> {
        let mut number = [0; 4];
        number.copy_from_slice(self.take(4)?);
        Ok(u32::from_le_bytes(number))
    }

    fn truth(&mut self) -> Result<bool, Refused> {
        let at = self.at;
        match self.number()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Refused { at, why: "neither yes nor no" }),
        }
    }

    fn text(&mut self) -> Result<String, Refused> {
        let at = self.at;
        let bytes = usize::from(self.take(1)?[0]);
        let text = std::str::from_utf8(self.take(bytes)?);
        Ok(text.map_err(|_| Refused { at, why: "a name that is no text" })?.to_owned())
    }

    fn numbers(&mut self, columns: usize) -> Result<([u64; 4], Vec<Option<u64>>), Refused> {
        let mut own = [0; 4];
        for value in &mut own {
            *value = self.number()?;
        }
        let known = self.number()?;
        let mut counts = Vec::with_capacity(columns);
        for at in 0..columns {
            let count = self.number()?;
            counts.push((known >> at & 1 == 1).then_some(count));
        }
        Ok((own, counts))
    }
}
