//! A trace for Perfetto: samples with their call stacks, which its flame graph adds up; of wall
//! time the states of each thread as slices.
//!
//! ```text
//!  packets of an event (a sequence):  defaults, names, frames, stacks   then   samples, by time
//! ```
//! Numbers of interned data are places in the tables of the export plus one, because 0 stands for
//! none. Field numbers are those of the package perfetto 0.59.
use super::model::{FunctionKind, NO_CPU};
use super::protobuf::{Message, StringTable};
use super::samples::{ExportSamples, SampleRow};
use rustc_hash::FxHashMap;
use std::io::{self, Write};

/// A packet of the trace.
const PACKET: u64 = 1;

/// Fields of a packet.
mod field {
    pub(super) const TIMESTAMP: u64 = 8;
    pub(super) const SEQUENCE: u64 = 10;
    pub(super) const TRACK_EVENT: u64 = 11;
    pub(super) const INTERNED: u64 = 12;
    pub(super) const SEQUENCE_FLAGS: u64 = 13;
    pub(super) const DEFAULTS: u64 = 59;
    pub(super) const TRACK: u64 = 60;
    pub(super) const SAMPLE: u64 = 66;
}

/// Tables of interned data.
mod interned {
    pub(super) const EVENT_NAME: u64 = 2;
    pub(super) const FUNCTION_NAME: u64 = 5;
    pub(super) const FRAME: u64 = 6;
    pub(super) const STACK: u64 = 7;
    pub(super) const BUILD_ID: u64 = 16;
    pub(super) const PATH: u64 = 17;
    pub(super) const SOURCE_PATH: u64 = 18;
    pub(super) const MAPPING: u64 = 19;
}

/// The sequence begins; what it names is known to its own packets.
const CLEARED: u64 = 1;
const NEEDS_INTERNED: u64 = 2;
const SLICE_BEGIN: u64 = 1;
const SLICE_END: u64 = 2;
const MODE_KERNEL: u64 = 1;
const MODE_USER: u64 = 2;
/// Entries of interned data in a packet.
const ENTRIES_AT_ONCE: usize = 1000;

/// Writes samples of all events, or the states of threads.
///
/// # Errors
/// Those of `out`.
pub fn perfetto(samples: &ExportSamples<'_>, out: &mut dyn Write) -> io::Result<()> {
    write_tracks(samples, out)?;
    if samples.is_of_spans() {
        return write_states(samples, out);
    }
    for (event, number) in samples.profile.events.iter().zip(0_u32..) {
        let sequence = u64::from(number) + 1;
        let mut timebase = Message::default();
        match samples.fixed_period(number) {
            Some(period) => timebase.number(1, period),
            // A frequency must be there; nobody knows it any more.
            None => timebase.number(2, 1),
        };
        timebase.bytes(10, event.name.as_bytes());
        let (mut of_samples, mut defaults) = (Message::default(), Message::default());
        of_samples.message(1, &timebase);
        defaults.message(12, &of_samples);
        let mut packet = Message::default();
        packet.number(field::SEQUENCE, sequence).number(field::SEQUENCE_FLAGS, CLEARED);
        packet.message(field::DEFAULTS, &defaults).write(PACKET, out)?;
        Interned { sequence, message: Message::default(), count: 0, out }.write_all(samples)?;
    }
    write_samples(samples, out)
}

/// Names processes and threads.
fn write_tracks(samples: &ExportSamples<'_>, out: &mut dyn Write) -> io::Result<()> {
    let mut packet = Message::default();
    for (thread, number) in samples.profile.threads.iter().zip(1..) {
        let (mut track, mut of_thread) = (Message::default(), Message::default());
        let (pid, tid) = thread.distinct_ids();
        let (pid, tid) = (pid.max(0) as u64, tid.max(0) as u64);
        of_thread.number(1, pid).number(2, tid).bytes(5, thread.comm.as_bytes());
        track.number(1, number).message(4, &of_thread);
        if pid == tid {
            let mut process = Message::default();
            process.number(1, pid).bytes(6, thread.comm.as_bytes());
            let mut of_process = Message::default();
            of_process.number(1, samples.profile.threads.len() as u64 + number).message(3, &process);
            packet
                .clear()
                .number(field::SEQUENCE, 1)
                .message(field::TRACK, &of_process)
                .write(PACKET, out)?;
        }
        packet.clear().number(field::SEQUENCE, 1).message(field::TRACK, &track).write(PACKET, out)?;
    }
    Ok(())
}

/// Interned data of a sequence, some entries in each packet.
struct Interned<'w> {
    sequence: u64,
    message: Message,
    count: usize,
    out: &'w mut dyn Write,
}

impl Interned<'_> {
    fn add(&mut self, table: u64, entry: &Message) -> io::Result<()> {
        self.message.message(table, entry);
        self.count += 1;
        if self.count >= ENTRIES_AT_ONCE { self.flush() } else { Ok(()) }
    }

    fn add_text(&mut self, table: u64, number: u64, text: &[u8]) -> io::Result<()> {
        let mut entry = Message::default();
        entry.number(1, number).bytes(2, text);
        self.add(table, &entry)
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut packet = Message::default();
        packet.number(field::SEQUENCE, self.sequence).number(field::SEQUENCE_FLAGS, NEEDS_INTERNED);
        packet.message(field::INTERNED, &self.message).write(PACKET, self.out)?;
        self.message.clear();
        self.count = 0;
        Ok(())
    }

    fn write_all(&mut self, samples: &ExportSamples<'_>) -> io::Result<()> {
        let mut files = StringTable::new();
        for (function, number) in samples.profile.functions.iter().zip(1..) {
            self.add_text(interned::FUNCTION_NAME, number, function.name.as_bytes())?;
            files.number(samples.locations.file(number as u32 - 1).unwrap_or_default());
        }
        for (file, number) in files.iter().zip(0..).skip(1) {
            self.add_text(interned::SOURCE_PATH, number, file.as_bytes())?;
        }
        let mut entry = Message::default();
        for (mapping, number) in samples.locations.mappings.iter().zip(1..) {
            self.add_text(interned::PATH, number, mapping.path.as_bytes())?;
            self.add_text(interned::BUILD_ID, number, &mapping.build_id)?;
            entry.clear().number(1, number).number(2, number).number(8, mapping.offset);
            entry.number(4, mapping.start).number(5, mapping.end).number(7, number);
            self.add(interned::MAPPING, &entry)?;
        }
        // Perfetto takes no frame without a mapping.
        let unknown = samples.locations.mappings.len() as u64 + 1;
        self.add_text(interned::PATH, unknown, b"[unknown]")?;
        self.add_text(interned::BUILD_ID, unknown, b"")?;
        self.add(interned::MAPPING, entry.clear().number(1, unknown).number(2, unknown).number(7, unknown))?;
        let first_frames = self.write_frames(samples, &mut files)?;
        for stack in 0..samples.locations.stack_count() {
            // Outermost first.
            let locations = samples.locations.stack(stack).iter().rev();
            let frames = locations
                .flat_map(|location| first_frames[*location as usize]..first_frames[*location as usize + 1]);
            entry.clear().number(1, u64::from(stack) + 1);
            // Perfetto reads no packed list here.
            frames.for_each(|frame| _ = entry.number(2, frame));
            self.add(interned::STACK, &entry)?;
        }
        self.flush()
    }

    /// A frame for each function at each location, outermost first; by location the number of its
    /// first one.
    fn write_frames<'a>(
        &mut self,
        samples: &'a ExportSamples<'_>,
        files: &mut StringTable<'a>,
    ) -> io::Result<Vec<u64>> {
        let mut entry = Message::default();
        let mut next = 1;
        let mut first = vec![next];
        for location in &samples.locations.list {
            let unknown = samples.locations.mappings.len() as u64;
            let mapping = location.mapping.map_or(unknown, u64::from) + 1;
            let start = location.mapping.map(|at| &samples.locations.mappings[at as usize]);
            let offset = start.map_or(0, |mapping| mapping.offset.wrapping_sub(mapping.start));
            for line in samples.locations.lines(location).iter().rev() {
                let file = samples.locations.file(line.function).unwrap_or_default();
                entry.clear().number(1, next).number(2, u64::from(line.function) + 1).number(3, mapping);
                entry.number(4, location.address.wrapping_add(offset));
                entry.number(5, files.number(file)).number(6, u64::from(line.line));
                self.add(interned::FRAME, &entry)?;
                next += 1;
            }
            first.push(next);
        }
        Ok(first)
    }
}

fn write_samples(samples: &ExportSamples<'_>, out: &mut dyn Write) -> io::Result<()> {
    let (mut packet, mut sample) = (Message::default(), Message::default());
    // The counter of each event on each CPU, which never goes backwards.
    let mut counters: FxHashMap<(u32, u32), u64> = FxHashMap::default();
    for row in samples.by_time() {
        let thread = samples.thread(row.thread);
        let counter = counters.entry((row.event, row.cpu)).or_default();
        *counter = counter.saturating_add(row.period);
        let leaf = samples.event(row.event).stacks.nodes[row.node as usize].function;
        let is_kernel = samples.function(leaf).kind == FunctionKind::Kernel;
        sample.clear().number(1, u64::from(if row.cpu == NO_CPU { 0 } else { row.cpu }));
        let (pid, tid) = thread.distinct_ids();
        sample.number(2, pid.max(0) as u64).number(3, tid.max(0) as u64);
        sample.number(4, u64::from(row.stack) + 1);
        sample.number(5, if is_kernel { MODE_KERNEL } else { MODE_USER }).number(6, *counter);
        packet.clear().present(field::TIMESTAMP, moment(samples, row.begin_ns));
        packet.number(field::SEQUENCE, u64::from(row.event) + 1);
        packet.number(field::SEQUENCE_FLAGS, NEEDS_INTERNED);
        packet.message(field::SAMPLE, &sample).write(PACKET, out)?;
    }
    Ok(())
}

/// On the clock of the recording.
fn moment(samples: &ExportSamples<'_>, ns: u64) -> u64 {
    samples.profile.start_ns.saturating_add(ns)
}

/// The states of each thread, one after another.
fn write_states(samples: &ExportSamples<'_>, out: &mut dyn Write) -> io::Result<()> {
    let mut packet = Message::default();
    packet.number(field::SEQUENCE, 1).number(field::SEQUENCE_FLAGS, CLEARED).write(PACKET, out)?;
    let mut names = Interned { sequence: 1, message: Message::default(), count: 0, out };
    for (function, number) in samples.profile.functions.iter().zip(1..) {
        names.add_text(interned::EVENT_NAME, number, function.name.as_bytes())?;
    }
    names.flush()?;
    let mut path = Vec::new();
    for track in samples.tracks() {
        let mut rows = samples.rows_of(track).peekable();
        let mut reached = 0;
        while let Some(row) = rows.next() {
            let begin = row.begin_ns.max(reached);
            let next = rows.peek().map_or(u64::MAX, |next| next.begin_ns);
            reached = row.end_ns.min(next).max(begin);
            samples.path(row.event, row.node, &mut path);
            write_state(samples, (&row, &path), (begin, reached), out)?;
        }
    }
    Ok(())
}

/// A slice with the state as its name; the functions where the thread was, and for how long it was
/// in that state, as arguments.
fn write_state(
    samples: &ExportSamples<'_>,
    (row, path): (&SampleRow, &[u32]),
    (begin, end): (u64, u64),
    out: &mut dyn Write,
) -> io::Result<()> {
    let Some((state, functions)) = path.split_last() else { return Ok(()) };
    let (mut event, mut argument, mut packet) = (Message::default(), Message::default(), Message::default());
    event.number(9, SLICE_BEGIN).number(11, u64::from(row.thread) + 1).number(10, u64::from(*state) + 1);
    argument.bytes(10, b"time_ns").present(3, row.period);
    event.message(4, &argument);
    if let Some(function) = functions.last() {
        argument.clear().bytes(10, b"function").bytes(6, samples.function(*function).name.as_bytes());
        event.message(4, &argument);
    }
    let mut write = |event: &Message, at: u64| {
        packet.clear().present(field::TIMESTAMP, moment(samples, at)).number(field::SEQUENCE, 1);
        packet.number(field::SEQUENCE_FLAGS, NEEDS_INTERNED);
        packet.message(field::TRACK_EVENT, event).write(PACKET, out)
    };
    write(&event, begin)?;
    event.clear().number(9, SLICE_END).number(11, u64::from(row.thread) + 1);
    write(&event, end)
}
