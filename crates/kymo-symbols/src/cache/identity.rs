//! Which files, in which state, an answer comes from.
//!
//! A module's names come from the first of some ten files that is there and fits: debug files,
//! copies by build id, the module itself. All of them are part of the identity, those that are not
//! there as well: a debug file that is installed later makes another identity, so no old answer
//! hides it.

use std::fs::Metadata;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use crate::build_id_cache::hex;
use crate::locate::Candidate;
use crate::options::SymbolOptions;

/// Build ids are 20 bytes long, or 8 to 32; a longer one is somebody's idea.
const LENGTHS: std::ops::RangeInclusive<usize> = 8..=64;

/// Longer than a tick of any file system's clock.
const SETTLED: Duration = Duration::from_millis(100);

/// What must be equal for an answer to hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    /// What the cache's file is called: by build id, options and paths, not by the files' states.
    pub(crate) name: String,
    bytes: Vec<u8>,
    files: Vec<PathBuf>,
}

impl Identity {
    /// The identity of a module whose names are in one of these files. Without a build id the
    /// states of the files say which they are; nothing if the module's `own` file changed just now,
    /// when another change may leave the same state.
    pub(crate) fn of(
        options: &SymbolOptions,
        build_id: Option<&[u8]>,
        candidates: &[Candidate],
        own: &Path,
    ) -> Option<Identity> {
        match build_id {
            Some(id) if !LENGTHS.contains(&id.len()) || id.iter().all(|&byte| byte == 0) => return None,
            None if !is_settled(own) => return None,
            _ => {}
        }
        let build_id = build_id.unwrap_or(&[]);
        let mut bytes = own_version().to_vec();
        let flags = [options.demangle, options.entry_names, options.debuginfod.is_some()];
        bytes.extend(flags.map(u8::from));
        push(&mut bytes, options.arch.map_or("", |arch| arch.name()).as_bytes());
        push(&mut bytes, build_id);
        for candidate in candidates {
            push(&mut bytes, candidate.path.as_os_str().as_bytes());
            bytes.extend(candidate.checksum.unwrap_or(0).to_le_bytes());
        }
        let id = match build_id {
            [] => format!("{:016x}", super::format::checksum(own.as_os_str().as_bytes())),
            id => hex(id),
        };
        let name = format!("{id}-{:016x}", super::format::checksum(&bytes));
        let mut identity = Identity { name, bytes, files: Vec::new() };
        identity.add_states(candidates.iter().map(|candidate| candidate.path.clone()));
        Some(identity)
    }

    /// As bytes, for the file.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn add_states(&mut self, files: impl Iterator<Item = PathBuf>) {
        for path in files {
            self.bytes.extend(state(&path));
            self.files.push(path);
        }
    }

    /// Whether all files still are as they were.
    pub(crate) fn holds(&self) -> bool {
        let states: Vec<u8> = self.files.iter().flat_map(|path| state(path)).collect();
        self.bytes.ends_with(&states)
    }

    /// The same with another file, which a debug file refers to.
    pub(crate) fn with(&self, shared: Option<&SharedFile>) -> Identity {
        let mut identity = self.clone();
        if let Some(SharedFile { path, state }) = shared {
            push(&mut identity.bytes, path.as_os_str().as_bytes());
            identity.bytes.extend(state);
        }
        identity
    }

    /// Whether the bytes of a file are these, with any other file that still is as it was.
    pub(crate) fn is(&self, stored: &[u8]) -> bool {
        match stored.strip_prefix(&*self.bytes) {
            Some([]) => true,
            Some(more) => SharedFile::read(more).is_some_and(|shared| state(&shared.path) == shared.state),
            None => false,
        }
    }
}

/// A file with debug information that several debug files share, and its state when it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SharedFile {
    path: PathBuf,
    state: [u8; STATE],
}

impl SharedFile {
    /// The file as it is now.
    pub(crate) fn now(path: PathBuf) -> SharedFile {
        SharedFile { state: state(&path), path }
    }

    fn read(bytes: &[u8]) -> Option<SharedFile> {
        let (length, rest) = bytes.split_first_chunk::<4>()?;
        let (path, state) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        let path = PathBuf::from(std::ffi::OsString::from_vec(path.to_vec()));
        Some(SharedFile { path, state: state.try_into().ok()? })
    }
}

/// Bytes with their length before them.
fn push(bytes: &mut Vec<u8>, part: &[u8]) {
    bytes.extend((part.len() as u32).to_le_bytes());
    bytes.extend_from_slice(part);
}

const STATE: usize = 48;

/// Which file a path leads to, and when that was changed; zeros where there is none.
fn state(path: &Path) -> [u8; STATE] {
    std::fs::metadata(path).map_or([0; STATE], |metadata| state_of(&metadata))
}

fn state_of(metadata: &Metadata) -> [u8; STATE] {
    let in_ns = |s: i64, ns: i64| s.wrapping_mul(1_000_000_000).wrapping_add(ns) as u64;
    let words = [
        metadata.dev(),
        metadata.ino(),
        metadata.len(),
        in_ns(metadata.mtime(), metadata.mtime_nsec()),
        in_ns(metadata.ctime(), metadata.ctime_nsec()),
        1,
    ];
    let mut state = [0; STATE];
    for (place, word) in state.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *place = word.to_le_bytes();
    }
    state
}

/// Whether a file was changed so long ago that the next change will have another time: file systems
/// count time in ticks of up to 10 ms.
fn is_settled(path: &Path) -> bool {
    let Ok(metadata) = std::fs::metadata(path) else { return false };
    let seconds = u64::try_from(metadata.ctime()).ok().map(Duration::from_secs);
    let changed =
        seconds.map(|s| SystemTime::UNIX_EPOCH + s + Duration::from_nanos(metadata.ctime_nsec() as u64));
    changed.and_then(|changed| changed.elapsed().ok()).is_some_and(|ago| ago > SETTLED)
}

/// This build of kymo: another one may name differently.
fn own_version() -> &'static [u8] {
    static OWN: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mut bytes = Vec::new();
        push(&mut bytes, env!("CARGO_PKG_VERSION").as_bytes());
        let own = std::fs::metadata("/proc/self/exe");
        let stamp = own.map_or([0; 2], |own| [own.len(), own.mtime() as u64 ^ own.mtime_nsec() as u64]);
        bytes.extend(stamp.into_iter().flat_map(u64::to_le_bytes));
        bytes
    });
    &OWN
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(path: PathBuf) -> Candidate {
        Candidate { path, checksum: None }
    }

    /// Checks that a file that appears, changes or goes makes another identity under the same name,
    /// and that another option or path makes another name.
    #[test]
    fn each_file_and_option_counts() {
        let folder = tempfile::tempdir().expect("a folder");
        let (debug, own) = (folder.path().join("debug"), folder.path().join("own"));
        std::fs::write(&own, "program").expect("written");
        let files = [plain(debug.clone()), plain(own.clone())];
        let options = SymbolOptions::default();
        let of = |options: &SymbolOptions| {
            Identity::of(options, Some(&[7; 20]), &files, &own).expect("a build id")
        };
        let before = of(&options);
        assert!(before.holds() && before.is(before.bytes()));
        std::fs::write(&debug, "installed later").expect("written");
        let after = of(&options);
        assert_eq!(after.name, before.name);
        assert!(!before.holds() && !after.is(before.bytes()) && after.holds());
        std::fs::write(&debug, "changed").expect("written");
        assert!(!after.holds());
        let mangled = of(&SymbolOptions { demangle: false, ..options.clone() });
        assert_ne!(mangled.name, after.name);
        let other = Identity::of(&options, Some(&[7; 20]), &files[1..], &own).expect("a build id");
        assert_ne!(other.name, after.name);
        for none in [&[][..], &[0; 20], &[1; 4], &[1; 65]] {
            assert_eq!(Identity::of(&options, Some(none), &files, &own), None);
        }
    }

    /// Checks that a shared debug file is part of the identity, there or not, and that cut bytes
    /// are no identity.
    #[test]
    fn shared_files_count() {
        let folder = tempfile::tempdir().expect("a folder");
        let shared = folder.path().join("shared");
        let own = Identity::of(&SymbolOptions::default(), Some(&[7; 20]), &[], &shared).expect("a build id");
        let missing = own.with(Some(&SharedFile::now(shared.clone())));
        assert!(own.is(missing.bytes()) && own.is(own.with(None).bytes()));
        std::fs::write(&shared, "installed later").expect("written");
        assert!(!own.is(missing.bytes()));
        let there = own.with(Some(&SharedFile::now(shared)));
        assert!(own.is(there.bytes()));
        for length in own.bytes().len() + 1..there.bytes().len() {
            assert!(!own.is(&there.bytes()[..length]), "{length}");
        }
    }
}
