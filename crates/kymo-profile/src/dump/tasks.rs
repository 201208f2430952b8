//! The processes and threads of a recording as a tree, with what they have mapped at its end.
use super::DumpError;
use crate::load::collect_sideband;
use crate::text::shown;
use crate::timeline::{Moment, Timeline};
use kymo_data::{MappedFile, Record, Recording};
use kymo_symbols::SymbolOptions;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::io::{self, Write};

/// A thread, and the process that made it; -1 if the recording does not say.
struct Task {
    pid: i32,
    parent: i32,
}

/// Writes a line for each task, below the one that made it; with `maps` followed by a line for each
/// mapping.
///
/// # Errors
/// When the recording cannot be read at all, or `out` cannot be written.
pub fn write_tasks(out: &mut dyn Write, recording: &Recording, maps: bool) -> Result<(), DumpError> {
    let mut tasks: BTreeMap<i32, Task> = BTreeMap::from([(0, Task { pid: 0, parent: -1 })]);
    let mut earlier: BTreeMap<i32, Vec<Task>> = BTreeMap::new();
    // What a mapping is of, by its path: the timeline knows neither inodes nor protections.
    let mut files: FxHashMap<Vec<u8>, (u64, u32)> = FxHashMap::default();
    let mut records = recording.records();
    while let Some(record) = records.next_record()? {
        match record.parse() {
            Ok(Record::Comm(comm)) => {
                tasks.entry(comm.tid).or_insert(Task { pid: comm.pid, parent: -1 });
            }
            Ok(Record::Fork(fork)) => {
                let task = Task { pid: fork.pid, parent: fork.ppid };
                if let Some(before) = tasks.insert(fork.tid, task) {
                    earlier.entry(fork.tid).or_default().push(before);
                }
            }
            Ok(Record::Mmap(map)) if maps && map.pid >= 0 => {
                let inode = match map.file {
                    MappedFile::Inode { ino, .. } => ino,
                    _ => 0,
                };
                files.insert(map.filename.to_vec(), (inode, map.prot));
            }
            _ => {}
        }
    }
    let (timeline, _, _) = collect_sideband(recording, 0, &SymbolOptions::default(), &|_, _| {})?;
    let mut children: FxHashMap<i32, Vec<i32>> = FxHashMap::default();
    let mut roots = Vec::new();
    for (&tid, task) in &tasks {
        // A thread is below the process that it belongs to, which the kernel names as its maker.
        match tasks.contains_key(&task.parent) && task.parent != tid {
            true => children.entry(task.parent).or_default().push(tid),
            false => roots.push(tid),
        }
    }
    writeln!(out, "# {:>8} {:>8} {:>8}  comm", "pid", "tid", "ppid")?;
    let tree = Tree {
        timeline: &timeline,
        tasks: &tasks,
        earlier: &earlier,
        children: &children,
        files: &files,
        maps,
    };
    // Ids that were used again can make a circle: each task is printed once.
    let mut printed = FxHashSet::default();
    for root in roots.iter().chain(tasks.keys()) {
        tree.print(out, *root, &mut printed)?;
    }
    Ok(())
}

struct Tree<'a> {
    timeline: &'a Timeline,
    tasks: &'a BTreeMap<i32, Task>,
    /// Processes that had the number of a later one, and records of what existed before.
    earlier: &'a BTreeMap<i32, Vec<Task>>,
    children: &'a FxHashMap<i32, Vec<i32>>,
    files: &'a FxHashMap<Vec<u8>, (u64, u32)>,
    maps: bool,
}

impl Tree<'_> {
    /// A task and all below it. Without recursion: a chain of forks may be as long as the
    /// recording.
    fn print(&self, out: &mut dyn Write, root: i32, printed: &mut FxHashSet<i32>) -> io::Result<()> {
        let mut waiting = vec![(root, 0)];
        while let Some((tid, level)) = waiting.pop() {
            let Some(task) = self.tasks.get(&tid).filter(|_| printed.insert(tid)) else { continue };
            self.print_earlier(out, tid, level)?;
            let view = self.timeline.thread(task.pid, tid, Moment::END);
            let comm = self.timeline.comm(view.comm);
            let ids = format!("{:10} {tid:8} {:8}", task.pid, task.parent);
            writeln!(out, "{ids} |{:level$}{}", "", shown(&comm))?;
            if self.maps {
                self.mappings(out, view.maps, ids.len() + 4 + level)?;
            }
            let below = self.children.get(&tid).map_or(&[][..], |list| list);
            waiting.extend(below.iter().rev().map(|child| (*child, level + 1)));
        }
        Ok(())
    }

    /// The processes that had the number of a process before it.
    fn print_earlier(&self, out: &mut dyn Write, pid: i32, level: usize) -> io::Result<()> {
        let reuses = self.timeline.reuses(pid);
        let before = self.earlier.get(&pid).map_or(&[][..], |list| list);
        let before = before.get(before.len().saturating_sub(reuses.len())..).unwrap_or_default();
        for (task, until) in before.iter().zip(reuses) {
            let comm = self.timeline.comm_before(task.pid, pid, *until);
            writeln!(out, "{:10} {pid:8} {:8} |{:level$}{}", task.pid, task.parent, "", shown(&comm))?;
        }
        Ok(())
    }

    fn mappings(&self, out: &mut dyn Write, maps: u32, indent: usize) -> io::Result<()> {
        for map in self.timeline.maps(maps).iter(&self.timeline.mappings) {
            let path = &self.timeline.modules.get(map.module).path;
            let (inode, protection) = self.files.get(path).copied().unwrap_or((0, 4));
            let letter = |bit: u32, letter| if protection & bit != 0 { letter } else { '-' };
            let letters = [letter(1, 'r'), letter(2, 'w'), letter(4, 'x')];
            let (start, end, offset) = (map.start, map.end, map.pgoff);
            let path = String::from_utf8_lossy(path);
            let letters: String = letters.into_iter().collect();
            writeln!(
                out,
                "{:indent$}{start:x}-{end:x} {letters}p {offset:08x} {inode} {}",
                "",
                shown(&path)
            )?;
        }
        Ok(())
    }
}
