//! The cgroups of a recording by the ids that samples carry.
use kymo_data::{ControlGroup, is_in_cgroup};
use rustc_hash::{FxHashMap, FxHashSet};

/// What is shown where a sample has no cgroup, and where a cgroup has no unit, container or pod.
const NONE: &str = "N/A";
/// What is shown of a cgroup whose path the recording does not have.
const UNKNOWN: &str = "unknown";

/// A cgroup's names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupNames {
    /// The path from the top of the hierarchy.
    pub path: Box<str>,
    /// The unit of systemd.
    pub unit: Box<str>,
    /// The container, with the first digits of its id.
    pub container: Box<str>,
    /// The pod.
    pub pod: Box<str>,
}

impl CgroupNames {
    fn of(path: &str) -> CgroupNames {
        let group = ControlGroup::of(path);
        CgroupNames {
            path: path.into(),
            unit: group.unit.unwrap_or(NONE).into(),
            container: group.short_container().unwrap_or(NONE).into(),
            pod: group.pod_id().as_deref().unwrap_or(NONE).into(),
        }
    }
}

impl CgroupNames {
    /// Unit, container and pod, as far as the cgroup is of one.
    pub fn parts(&self) -> [Option<&str>; 3] {
        [&self.unit, &self.container, &self.pod].map(|name| Some(&**name).filter(|name| *name != NONE))
    }
}

/// The cgroups of a recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cgroups {
    known: FxHashMap<u64, CgroupNames>,
    none: CgroupNames,
    unknown: CgroupNames,
}

impl Default for Cgroups {
    fn default() -> Cgroups {
        let named = |name: &str| CgroupNames { path: name.into(), ..CgroupNames::of(name) };
        Cgroups { known: FxHashMap::default(), none: named(NONE), unknown: named(UNKNOWN) }
    }
}

impl Cgroups {
    /// Remembers a cgroup's path; the first one of an id counts, as in perf.
    pub fn add(&mut self, id: u64, path: &[u8]) {
        self.known.entry(id).or_insert_with(|| CgroupNames::of(&String::from_utf8_lossy(path)));
    }

    pub(super) fn absorb(&mut self, other: Cgroups) {
        for (id, names) in other.known {
            self.known.entry(id).or_insert(names);
        }
    }

    /// The names of an id; 0 is that of samples without a cgroup.
    pub fn get(&self, id: u64) -> &CgroupNames {
        match id {
            0 => &self.none,
            _ => self.known.get(&id).unwrap_or(&self.unknown),
        }
    }

    /// The names of an id, if the recording has them.
    pub fn known(&self, id: u64) -> Option<&CgroupNames> {
        self.known.get(&id)
    }

    /// The cgroups that have one of these names, or are in one that does.
    pub fn named(&self, names: &[String]) -> FxHashSet<u64> {
        let is_named = |path: &str| names.iter().any(|name| is_in_cgroup(path, name));
        self.known.iter().filter(|(_, own)| is_named(&own.path)).map(|(id, _)| *id).collect()
    }

    /// The paths, sorted.
    pub fn paths(&self) -> Vec<&str> {
        let mut paths: Vec<&str> = self.known.values().map(|names| &*names.path).collect();
        paths.sort_unstable();
        paths
    }
}
