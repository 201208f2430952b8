//! The table of tasks for other processes. See [`crate::table`] for its shape.
//!
//! A thread of its own waits in a pipe until somebody asks, and writes a frame. So it costs nothing
//! while nobody looks, and tasks need not run for it. The child of a fork has no such thread, and
//! writes nothing.
use super::group::{Group, gone};
use super::reading::Reading;
use super::{Error, first_problem};
use crate::sys::{clock, fork, lock, memory_file};
use crate::table::{self, Frame, GroupRow, Place, TaskRow};
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};

struct Table {
    file: File,
    /// Where to ask. Held open, so that the reading end never sees the end.
    _requests: PipeWriter,
    written: Mutex<Written>,
    /// Somebody asked once, so the last frame will be wanted too.
    watched: AtomicBool,
}

/// What the file holds.
#[derive(Default)]
struct Written {
    number: u64,
    /// Offset and size of the room for the frames of each place.
    rooms: [(u64, u64); 2],
    end: u64,
}

static TABLE: OnceLock<Table> = OnceLock::new();

/// Lets `kymo stat --tasks -p PID` see the tasks of this process: opens a file in memory and a
/// pipe, and starts a thread that waits until somebody asks. Calling it again changes nothing.
///
/// # Errors
/// If the system refuses one of these, or this process was forked from one that counts.
pub fn publish() -> io::Result<()> {
    if fork::is_child() {
        return Err(io::Error::other(Error::Forked));
    }
    static STARTING: Mutex<()> = Mutex::new(());
    let _starting = lock(&STARTING);
    if TABLE.get().is_some() {
        return Ok(());
    }
    let file = memory_file::create(c"kymo-tasks")?;
    let (asked, requests) = io::pipe()?;
    file.write_all_at(&table::header_bytes(std::process::id(), requests.as_raw_fd()), 0)?;
    let written = Mutex::new(Written { end: table::FRAMES_AT, ..Written::default() });
    std::thread::Builder::new().name("kymo-tasks".into()).spawn(|| answer(asked))?;
    let _ = TABLE.set(Table { file, _requests: requests, written, watched: AtomicBool::new(false) });
    memory_file::at_exit(write_last);
    Ok(())
}

fn answer(mut asked: PipeReader) {
    // Many questions that came together have one answer.
    let mut questions = [0; 256];
    loop {
        match asked.read(&mut questions) {
            Ok(1..) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Ok(0) | Err(_) => return,
        }
        // Waits for publish() to finish its last line, at most.
        let table = TABLE.wait();
        // Relaxed: a flag that is only ever raised; the end of the process orders it.
        table.watched.store(true, Ordering::Relaxed);
        // There is nobody to tell: who asked sees no new frame, and says so.
        let _ = table.write(false);
    }
}

extern "C" fn write_last() {
    let Some(table) = TABLE.get() else { return };
    if fork::is_child() || !table.watched.load(Ordering::Relaxed) {
        return;
    }
    // This runs at the end of a program, which must not fail for it.
    let _ = std::panic::catch_unwind(|| table.write(true));
}

impl Table {
    fn write(&self, last: bool) -> io::Result<()> {
        let mut rows = rows(last).map_err(io::Error::other)?;
        let mut bytes = table::encode(&rows);
        if bytes.len() as u64 > table::MAX_FRAME_BYTES {
            rows.problem = "too many tasks to tell of each; the sums of groups are whole".into();
            rows.groups.iter_mut().for_each(|group| group.tasks.clear());
            bytes = table::encode(&rows);
        }
        let mut written = lock(&self.written);
        let place = written.place(&bytes);
        let which = (place.number % 2) as usize;
        let at = table::PLACES_AT + table::PLACE_BYTES * which as u64;
        // F1: this place says that it has nothing until it has all.
        self.file.write_all_at(&table::place_bytes(&Place::default()), at)?;
        self.file.write_all_at(&bytes, place.offset)?;
        self.file.write_all_at(&table::place_bytes(&place), at)
    }
}

impl Written {
    /// Where the next frame goes: into the room of its place, or into a larger one at the end.
    fn place(&mut self, bytes: &[u8]) -> Place {
        self.number += 1;
        let needed = bytes.len() as u64;
        let (offset, room) = &mut self.rooms[(self.number % 2) as usize];
        if *room < needed {
            (*offset, *room) = (self.end, needed.next_power_of_two());
            self.end += *room;
        }
        Place { number: self.number, offset: *offset, bytes: needed, checksum: table::checksum(bytes) }
    }
}

/// All groups and their tasks now.
fn rows(last: bool) -> Result<Frame, Error> {
    let mut groups = Vec::new();
    let mut all = Group::all();
    all.sort_unstable_by_key(Group::number);
    // They are held to the end: what goes away meanwhile is not among those that are gone.
    for group in &all {
        // Tasks before sums, so that no task has more than its group.
        let tasks = group.tasks()?.into_iter().map(|task| TaskRow {
            number: task.number,
            name: task.name,
            running: task.running,
            own: task.reading.own_numbers(),
            counts: counts(&task.reading),
        });
        let tasks = tasks.collect();
        let (number, name, per_task) = (group.number(), group.name().into(), group.is_per_task());
        let row = row(&group.read()?, tasks);
        groups.push(GroupRow { number, name, per_task, spawned: group.population().0, ..row });
    }
    for (name, gone) in gone() {
        let row = row(&gone.reading, Vec::new());
        groups.push(GroupRow { name: name.into(), per_task: true, spawned: gone.spawned, ..row });
    }
    let problem = first_problem().map_or_else(String::new, |problem| problem.to_string());
    Ok(Frame { time_ns: clock::monotonic_ns(), last, problem, groups })
}

/// What a group has counted.
fn row(sums: &Reading, tasks: Vec<TaskRow>) -> GroupRow {
    let counters = sums.counts.iter().map(|(counter, _)| counter.to_string()).collect();
    GroupRow { counters, own: sums.own_numbers(), counts: counts(sums), tasks, ..GroupRow::default() }
}

fn counts(reading: &Reading) -> Vec<Option<u64>> {
    reading.counts.iter().map(|(_, count)| *count).collect()
}
