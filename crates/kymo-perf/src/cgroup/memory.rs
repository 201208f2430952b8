//! The memory that the cgroups of this process allow it, by either generation.
use super::find::{below, text, unescaped};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

/// What an old hierarchy writes where there is no limit is about 2^63.
const NO_LIMIT: u64 = 1 << 60;

/// The least limit of this process's cgroup and of those above it, in bytes, as far as the mounts
/// of this process show them; `None`: none of them has a limit.
pub fn memory_limit() -> Option<u64> {
    let (cgroups, mounts) = (text("/proc/self/cgroup").ok()?, text("/proc/self/mountinfo").ok()?);
    least(&cgroups, &mounts, &|path| std::fs::read_to_string(path).ok())
}

fn least(cgroups: &[u8], mounts: &[u8], read: &dyn Fn(&Path) -> Option<String>) -> Option<u64> {
    let lines = cgroups.split(|&byte| byte == b'\n');
    let own = lines.filter_map(|line| {
        let mut fields = line.splitn(3, |&byte| byte == b':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let is_old = has(controllers, b"memory");
        (is_old || number == b"0" && controllers.is_empty()).then_some((is_old, path))
    });
    own.filter_map(|(is_old, path)| {
        let places = mounts.split(|&byte| byte == b'\n').filter_map(|line| mount(line, is_old));
        places.filter_map(|(root, point)| at(&point, below(&root, path)?, is_old, read)).min()
    })
    .min()
}

/// The least limit from a cgroup up to the mount's point.
fn at(
    point: &Path,
    names: Vec<&std::ffi::OsStr>,
    is_old: bool,
    read: &dyn Fn(&Path) -> Option<String>,
) -> Option<u64> {
    let file = if is_old { "memory.limit_in_bytes" } else { "memory.max" };
    let own = names.iter().fold(point.to_owned(), |path, name| path.join(name));
    let limits = own.ancestors().take(names.len() + 1).filter_map(|directory| {
        // "max" is no number.
        read(&directory.join(file))?.trim().parse::<u64>().ok().filter(|&bytes| bytes < NO_LIMIT)
    });
    limits.min()
}

/// The root and the point of a mount of such a hierarchy: a line of mountinfo.
fn mount(line: &[u8], is_old: bool) -> Option<(Vec<u8>, PathBuf)> {
    let mut fields = line.split(|&byte| byte == b' ').skip(3);
    let (root, point) = (unescaped(fields.next()?), unescaped(fields.next()?));
    let mut fields = fields.skip_while(|&field| field != b"-").skip(1);
    let (kind, _source, options) = (fields.next()?, fields.next()?, fields.next()?);
    let fits = if is_old { kind == b"cgroup" && has(options, b"memory") } else { kind == b"cgroup2" };
    fits.then(|| (root, PathBuf::from(OsString::from_vec(point))))
}

fn has(list: &[u8], name: &[u8]) -> bool {
    list.split(|&byte| byte == b',').any(|one| one == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &[u8] = b"30 20 0:27 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
        31 20 0:28 /pod /two rw - cgroup2 cgroup2 rw\n32 20 0:29 / /proc rw - proc proc rw\n";

    /// Checks that the least limit on the way up counts, of both generations, from the cgroup that
    /// the mount shows on, and that "max" and the largest number are no limits.
    #[test]
    fn limits() {
        let of = |cgroups: &str, files: &[(&str, &str)]| {
            let read = |path: &Path| {
                let found = files.iter().find(|(name, _)| Path::new(name) == path);
                found.map(|(_, text)| (*text).to_owned())
            };
            least(cgroups.as_bytes(), MOUNTS, &read)
        };
        let old = "4:memory:/a/b\n0::/\n";
        let (a, b) = (
            "/sys/fs/cgroup/memory/a/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes",
        );
        assert_eq!(of(old, &[(a, "67108864\n"), (b, "9223372036854771712\n")]), Some(64 << 20));
        assert_eq!(of(old, &[(a, "9223372036854771712\n")]), None);
        let new = "0::/pod/c\n";
        assert_eq!(of(new, &[("/two/memory.max", "1000\n"), ("/two/c/memory.max", "max\n")]), Some(1000));
        assert_eq!(of("0::/podium/c\n", &[("/two/memory.max", "1000\n")]), None);
    }
}
