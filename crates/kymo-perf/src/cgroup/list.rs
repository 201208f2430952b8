//! All cgroups of the hierarchy for events, with the ids that samples carry.
use super::find::{self, directory_flags};
use super::hierarchy;
use rustix::fs::{Dir, FileType, Mode, fstat, openat};
use std::os::fd::OwnedFd;

/// More than any machine has; what is beyond is not listed, and shown by its number.
const MOST_CGROUPS: usize = 1 << 16;
/// The kernel's own limit is the length of a path.
const MOST_LEVELS: usize = 128;

/// A cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedCgroup {
    /// What samples have of it (`PERF_SAMPLE_CGROUP`).
    pub id: u64,
    /// Its path from the top of the hierarchy, `/` first.
    pub path: Vec<u8>,
}

/// All cgroups that can be seen here, parents before children; none where no hierarchy is mounted.
pub fn all() -> Vec<ListedCgroup> {
    let Ok((_, mounts)) = hierarchy() else { return Vec::new() };
    let opened = mounts.iter().find_map(|mount| Some((mount, find::open(mount, &[]).ok()?)));
    let Some((mount, top)) = opened else { return Vec::new() };
    let mut found = Vec::new();
    let root = mount.root.strip_suffix(b"/").unwrap_or(&mount.root);
    below(top, root.to_vec(), 0, &mut found);
    found
}

/// Adds a cgroup and all that are in it. The kernel numbers its directories by the cgroup's id.
fn below(directory: OwnedFd, path: Vec<u8>, level: usize, found: &mut Vec<ListedCgroup>) {
    let Ok(stat) = fstat(&directory) else { return };
    let shown = if path.is_empty() { b"/".to_vec() } else { path.clone() };
    found.push(ListedCgroup { id: stat.st_ino, path: shown });
    if level == MOST_LEVELS {
        return;
    }
    let Ok(entries) = Dir::read_from(&directory) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_bytes();
        if found.len() >= MOST_CGROUPS {
            return;
        }
        if entry.file_type() != FileType::Directory || matches!(name, b"." | b"..") {
            continue;
        }
        let Ok(child) = openat(&directory, entry.file_name(), directory_flags(), Mode::empty()) else {
            continue;
        };
        below(child, [&path[..], b"/", name].concat(), level + 1, found);
    }
}

#[cfg(test)]
mod tests {
    use super::all;

    /// Checks that the top comes first and that each parent comes before its children.
    #[test]
    fn parents_come_first() {
        let found = all();
        if found.is_empty() {
            return kymo_testing::skip("cgroup::list::parents_come_first", "no hierarchy is mounted here");
        }
        let mut seen = std::collections::HashSet::new();
        for cgroup in &found {
            let parent = cgroup.path.iter().rposition(|&byte| byte == b'/').unwrap();
            assert!(parent == 0 || seen.contains(&cgroup.path[..parent]), "{found:?}");
            seen.insert(&cgroup.path[..]);
        }
    }
}
