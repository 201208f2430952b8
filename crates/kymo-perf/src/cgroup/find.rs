//! Finds this process's cgroup in the file system, from `/proc/self/mountinfo` and
//! `/proc/self/cgroup`.
//!
//! The mount shows the hierarchy from some cgroup on (its root; in a container often the
//! container's own), and our path counts from the top: what is left of our path behind that root is
//! the way from the mount point. Names in both files are chosen by strangers.
use rustix::fs::{CWD, Mode, OFlags, fstat, major, minor, openat};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

/// More of a text than any machine has; what is beyond is not read.
const TEXT_BYTES: u64 = 16 << 20;
/// More mounts of one hierarchy than these are not tried.
const MOUNTS: usize = 64;

/// Which of the two generations a hierarchy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HierarchyVersion {
    /// The unified hierarchy; events belong to it unless an old one has taken `perf_event`.
    V2,
    /// An old hierarchy with the controller `perf_event`.
    V1,
}

/// Our cgroup in the hierarchy that events are bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Membership {
    pub(super) kind: HierarchyVersion,
    /// From the hierarchy's top, `/` first.
    pub(super) path: Vec<u8>,
}

/// A place where a cgroup hierarchy is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    pub(super) kind: HierarchyVersion,
    pub(super) device: (u32, u32),
    /// The cgroup that the mount point shows.
    pub(super) root: Vec<u8>,
    pub(super) point: PathBuf,
    pub(super) read_only: bool,
}

/// Reads one of the two texts of /proc, as far as it is read at all.
pub(super) fn text(path: &str) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path)?.take(TEXT_BYTES).read_to_end(&mut text)?;
    Ok(text)
}

/// The hierarchy for events and our path in it, from the text of `/proc/self/cgroup`; an old
/// hierarchy with `perf_event` comes first, because the kernel then refuses directories of any
/// other.
pub(super) fn membership(text: &[u8]) -> Option<Membership> {
    let mut unified = None;
    for line in text.split(|&byte| byte == b'\n') {
        let mut fields = line.splitn(3, |&byte| byte == b':');
        let (Some(number), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let path = path.to_vec();
        if controllers.split(|&byte| byte == b',').any(|name| name == b"perf_event") {
            return Some(Membership { kind: HierarchyVersion::V1, path });
        }
        if number == b"0" && controllers.is_empty() {
            unified = Some(Membership { kind: HierarchyVersion::V2, path });
        }
    }
    unified
}

/// The mounts of that hierarchy, from the text of `/proc/self/mountinfo`: writable ones first, and
/// of them the one that was mounted last.
pub(super) fn mounts(text: &[u8], kind: HierarchyVersion) -> Vec<Mount> {
    let lines = text.split(|&byte| byte == b'\n');
    let mut found: Vec<Mount> = lines.filter_map(mount).filter(|mount| mount.kind == kind).collect();
    found.reverse();
    found.truncate(MOUNTS);
    found.sort_by_key(|mount| mount.read_only);
    found
}

/// One line of mountinfo, if it is a cgroup hierarchy that events can be bound to:
/// `id parent major:minor root point options [optional fields] - type source options`.
fn mount(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|&byte| byte == b' ').skip(2);
    let device = std::str::from_utf8(fields.next()?).ok()?.split_once(':')?;
    let device = (device.0.parse().ok()?, device.1.parse().ok()?);
    let root = unescaped(fields.next()?);
    let point = PathBuf::from(std::ffi::OsString::from_vec(unescaped(fields.next()?)));
    let options = fields.next()?;
    let mut fields = fields.skip_while(|&field| field != b"-").skip(1);
    let (file_system, _source, of_super) = (fields.next()?, fields.next()?, fields.next()?);
    let has = |options: &[u8], name: &[u8]| options.split(|&byte| byte == b',').any(|option| option == name);
    let kind = match file_system {
        b"cgroup2" => HierarchyVersion::V2,
        b"cgroup" if has(of_super, b"perf_event") => HierarchyVersion::V1,
        _ => return None,
    };
    if !point.is_absolute() {
        return None;
    }
    Some(Mount { kind, device, root, point, read_only: has(options, b"ro") || has(of_super, b"ro") })
}

/// Resolves `\040` and its like, by which the kernel writes spaces, tabs, newlines and backslashes.
pub(crate) fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, behind @ ..] = rest {
        let digits = behind
            .get(..3)
            .filter(|digits| *first == b'\\' && digits.iter().all(|digit| (b'0'..=b'7').contains(digit)));
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = &behind[3..];
            }
            None => {
                out.push(*first);
                rest = behind;
            }
        }
    }
    out
}

/// The names from a mount's root down to a cgroup; `None` if the mount does not show it.
pub(super) fn below<'a>(root: &[u8], path: &'a [u8]) -> Option<Vec<&'a OsStr>> {
    let root = root.strip_suffix(b"/").unwrap_or(root);
    let rest = path.strip_prefix(root)?;
    // `/a` is no part of `/ab`.
    if !rest.is_empty() && !rest.starts_with(b"/") {
        return None;
    }
    let names = rest.split(|&byte| byte == b'/').filter(|name| !name.is_empty());
    names.map(|name| (name != b".." && name != b".").then(|| OsStr::from_bytes(name))).collect()
}

/// What a directory of cgroups is opened with: never through a link, never kept by the command.
pub(super) fn directory_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

/// Opens the cgroup that `names` lead to from the mount point, if what is there is that mount and
/// not another on top of it.
pub(super) fn open(mount: &Mount, names: &[&OsStr]) -> io::Result<OwnedFd> {
    let mut directory = openat(CWD, &mount.point, directory_flags(), Mode::empty())?;
    let device = fstat(&directory)?.st_dev;
    if (major(device), minor(device)) != mount.device {
        return Err(io::Error::from_raw_os_error(libc::ESTALE));
    }
    for name in names {
        directory = openat(&directory, *name, directory_flags(), Mode::empty())?;
    }
    Ok(directory)
}

/// The path for sentences.
pub(super) fn shown(point: &Path, names: &[&OsStr]) -> PathBuf {
    names.iter().fold(point.to_owned(), |path, name| path.join(name))
}
