//! Sums of counts by where they were counted: all, or by CPU, core, die, socket, node or thread.
use super::{Cell, Count};
use crate::machine::Machine;
use crate::{cpu_list, proc};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// By what counts are summed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum By {
    /// Everything together.
    #[default]
    All,
    /// Each CPU.
    Cpu,
    /// CPUs that share a core.
    Core,
    /// Cores that share a die.
    Die,
    /// What is in a socket.
    Socket,
    /// What is next to the same memory.
    Node,
    /// CPUs that share a cluster of cores.
    Cluster,
    /// CPUs that share a cache of this level; 0: the last level.
    Cache(u8),
    /// Each thread.
    Thread,
}

/// Where a CPU is in the machine; -1 for what the kernel does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Location {
    /// The socket.
    pub socket: i32,
    /// The die in the socket.
    pub die: i32,
    /// The core in the die.
    pub core: i32,
    /// The memory node.
    pub node: i32,
    /// The cluster in the die.
    pub cluster: i32,
    /// The cache: level and the first CPU that shares it.
    pub cache: (i32, i32),
}

/// Where the CPUs of a machine are.
#[derive(Clone, Debug, Default)]
pub struct Topology {
    cpus: BTreeMap<i32, Location>,
}

/// A text of sysfs is at most this long.
const TEXT_BYTES: usize = 4096;

fn number(path: &Path) -> Option<i32> {
    let text = fs::read(path).ok().filter(|text| text.len() <= TEXT_BYTES)?;
    std::str::from_utf8(&text).ok()?.trim().parse().ok()
}

/// More kinds of caches than a CPU has.
const MOST_CACHES: usize = 16;

/// The cluster of cores; perf reads a number that the kernel writes as -1 as 16 bits.
fn of_cluster(folder: &Path) -> i32 {
    number(&folder.join("cluster_id")).map_or(0, |cluster| cluster & 0xffff)
}

impl Topology {
    /// Where these CPUs are. What sysfs does not tell is 0, so that a machine without it is one
    /// socket.
    pub fn read(machine: &Machine, cpus: &[i32]) -> Topology {
        let system = machine.sys().join("devices/system");
        let mut found = BTreeMap::new();
        for &cpu in cpus {
            let folder = system.join(format!("cpu/cpu{cpu}/topology"));
            let of = |name: &str| number(&folder.join(name)).unwrap_or(0).max(0);
            let (socket, die, core) = (of("physical_package_id"), of("die_id"), of("core_id"));
            found.insert(
                cpu,
                Location { socket, die, core, cluster: of_cluster(&folder), ..Location::default() },
            );
        }
        let nodes = fs::read_dir(system.join("node")).into_iter().flatten().flatten();
        for node in nodes {
            let name = node.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("node")?.parse().ok());
            let (Some(number), Ok(list)) = (number, fs::read_to_string(node.path().join("cpulist"))) else {
                continue;
            };
            for cpu in cpu_list::parse(&list) {
                if let Some(location) = found.get_mut(&(cpu as i32)) {
                    location.node = number;
                }
            }
        }
        Topology { cpus: found }
    }

    /// With the cache of this level that each CPU has; 0: the last level.
    #[must_use]
    pub fn with_caches(mut self, machine: &Machine, level: u8) -> Topology {
        for (cpu, location) in &mut self.cpus {
            let folder = machine.sys().join(format!("devices/system/cpu/cpu{cpu}/cache"));
            let indices = (0..MOST_CACHES).map(|index| folder.join(format!("index{index}")));
            let caches = indices.filter_map(|index| {
                let own = number(&index.join("level"))?;
                let list = fs::read_to_string(index.join("shared_cpu_list")).ok()?;
                Some((own, cpu_list::parse(&list).first().map_or(0, |&first| first as i32)))
            });
            // As perf: what has no such cache is in cache 0 of its own.
            let wanted = caches.filter(|(own, _)| level == 0 || *own == i32::from(level)).max();
            location.cache = wanted.unwrap_or((i32::from(level), 0));
        }
        self
    }

    /// Where a CPU is.
    pub(crate) fn of(&self, cpu: i32) -> Location {
        self.cpus.get(&cpu).copied().unwrap_or_default()
    }
}

/// What a row of counts is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CountPlace {
    /// Everything.
    All,
    /// A CPU.
    Cpu(i32),
    /// A core: socket, die, core.
    Core(i32, i32, i32),
    /// A die: socket, die.
    Die(i32, i32),
    /// A socket.
    Socket(i32),
    /// A memory node.
    Node(i32),
    /// A cluster: socket, die, cluster.
    Cluster(i32, i32, i32),
    /// A cache: socket, die, level, the first CPU that shares it.
    Cache(i32, i32, i32, i32),
    /// A thread.
    Thread(i32),
}

/// The counts of one event at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountRow {
    /// Where.
    pub place: CountPlace,
    /// Over how many CPUs it is a sum.
    pub cpus: usize,
    /// The sum.
    pub count: Count,
}

/// Rows by event; `None` if the machine does not have it.
pub type Rows = Vec<Option<Vec<CountRow>>>;

/// What was counted between two looks at the same events.
pub fn since(now: &Rows, before: &Rows) -> Rows {
    let earlier = |event: usize, place: &CountPlace| {
        let rows = before.get(event)?.as_ref()?;
        rows.iter().find(|row| row.place == *place).map(|row| row.count)
    };
    let fresh = |event: usize, row: &CountRow| CountRow {
        count: row.count.since(&earlier(event, &row.place).unwrap_or_default()),
        ..row.clone()
    };
    let rows = now.iter().enumerate();
    rows.map(|(event, rows)| Some(rows.as_ref()?.iter().map(|row| fresh(event, row)).collect())).collect()
}

/// Where a cell belongs.
fn place(cell: &Cell, by: By, topology: &Topology) -> CountPlace {
    let Location { socket, die, core, node, cluster, cache } = topology.of(cell.cpu);
    match by {
        By::All => CountPlace::All,
        By::Cpu => CountPlace::Cpu(cell.cpu),
        By::Core => CountPlace::Core(socket, die, core),
        By::Die => CountPlace::Die(socket, die),
        By::Socket => CountPlace::Socket(socket),
        By::Node => CountPlace::Node(node),
        By::Cluster => CountPlace::Cluster(socket, die, cluster),
        By::Cache(_) => CountPlace::Cache(socket, die, cache.0, cache.1),
        By::Thread => CountPlace::Thread(cell.task),
    }
}

/// The rows of one event, in order of their places.
pub fn rows(cells: &[Cell], by: By, topology: &Topology) -> Vec<CountRow> {
    let mut rows: BTreeMap<CountPlace, CountRow> = BTreeMap::new();
    for cell in cells {
        let place = place(cell, by, topology);
        let row = rows.entry(place.clone()).or_insert(CountRow { place, cpus: 0, count: Count::default() });
        row.cpus += 1;
        row.count = row.count.plus(cell.count);
    }
    rows.into_values().collect()
}

/// The name of a thread for a row: what it is called now, or nothing if it is gone.
pub fn name_of(task: i32) -> String {
    proc::comm(task, task).map(|name| String::from_utf8_lossy(&name).into_owned()).unwrap_or_default()
}
