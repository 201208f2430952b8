//! The symbol cache: what modules answered, on disk, so that the next report resolves nothing
//! again.
//!
//! *You give it* the identity of a module (build id, options, the files that could have its names);
//! *it gives you* the answers of earlier runs: which symbol and which inlined functions an address
//! has. What is new is added when the [`SymbolStore`](crate::SymbolStore) goes.
//!
//! ```text
//!  $XDG_CACHE_HOME/kymo/symbols/BUILDID-HASH     or ~/.cache/kymo/symbols/...
//!      BUILDID: without one, the sum of the module's path
//!      HASH: options, paths of all files that could have names, this build of kymo
//!      inside: `format.rs`; states of those files: `identity.rs`
//! ```
//!
//! Answers are kept rather than whole tables: a recording asks for a small part of a program, and a
//! file of the cache is read as a whole.
//!
//! # Whose cache
//! That of the effective user. Each folder of the cache must belong to that user, and be writable
//! to nobody else; so must each file. Root who has the `HOME` of an ordinary user (`sudo -E`) has
//! no cache then: it reads nothing that the user could have written, and leaves nothing in the
//! user's home. Links inside of the cache are not followed.
//!
//! # What is not kept
//! The kernel, its modules, generated code, the vdso. Modules of which a part was refused or a file
//! did not fit: their notes are to be said each time. Modules without a build id that changed just
//! now.
//!
//! # Invariants
//! - **S1** An answer is that of the files as they are now, or it is not used.
//! - **S2** The cache never fails a run: what cannot be read is resolved, what cannot be written is
//!   not kept. The log (`KYMO_LOG=debug`) says why.
//! - **S3** A file appears whole ([`kymo_files::PrivateFolder`]). Of two writers at once the last
//!   one wins; each adds what the file had before.
//! - **S4** After a run has written, its files have at most [`SymbolCache::most_bytes`]; those that
//!   were not used longest go first. Files that are not the cache's are left alone.

mod format;
mod identity;

use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use kymo_files::{PrivateFile, PrivateFolder};

pub(crate) use format::{Answers, Builder};
pub(crate) use identity::{Identity, SharedFile};

use crate::budget::{Budget, Charge};

/// Below the folder for caches.
const BELOW: [&str; 2] = ["kymo", "symbols"];
/// What all files together may have unless something else is said.
const MOST_BYTES: u64 = 512 << 20;
/// What one file may have. A million addresses take some 40 MB.
const MOST_OF_FILE: u64 = 64 << 20;
/// Files that are looked at in the folder.
const MOST_FILES: usize = 1 << 16;
/// When room is made, it is made for some more files.
const ROOM_SHARE: u64 = 8;
/// A file without its name yet is left from a killed run when it is older.
const UNFINISHED_S: i64 = 3600;

/// A symbol cache. Clones share it.
#[derive(Debug, Clone)]
pub struct SymbolCache(Arc<OpenedOnce>);

#[derive(Debug)]
struct OpenedOnce {
    base: PathBuf,
    most_bytes: u64,
    /// Opened, or made, when the first module is asked for.
    folder: OnceLock<Option<PrivateFolder>>,
}

impl SymbolCache {
    /// The cache of this user, if the environment names a folder for it. `most_bytes`: what all its
    /// files may have together, 512 MiB unless given.
    pub fn of_user(most_bytes: Option<u64>) -> Option<SymbolCache> {
        let named = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let base = named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")))?;
        Some(SymbolCache::below(base, most_bytes.unwrap_or(MOST_BYTES)))
    }

    /// The cache in `kymo/symbols` below this folder.
    pub fn below(base: PathBuf, most_bytes: u64) -> SymbolCache {
        SymbolCache(Arc::new(OpenedOnce { base, most_bytes, folder: OnceLock::new() }))
    }

    /// What all its files may have together.
    pub fn most_bytes(&self) -> u64 {
        self.0.most_bytes
    }

    fn folder(&self) -> Option<&PrivateFolder> {
        let open = || {
            let opened = PrivateFolder::open(&self.0.base, &BELOW);
            let log = |error: &io::Error| tracing::debug!("no symbol cache: {error}");
            opened.inspect_err(log).ok()
        };
        self.0.folder.get_or_init(open).as_ref()
    }

    /// The answers of a module, if they hold.
    pub(crate) fn read(&self, identity: &Identity, budget: &Budget) -> Option<(Answers, Charge)> {
        let name = &identity.name;
        let bytes = match self.folder()?.read(OsStr::new(name), MOST_OF_FILE) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::debug!("symbol cache: {name} is not read: {error}");
                return None;
            }
        };
        let Some(answers) = Answers::read(bytes) else {
            tracing::debug!("symbol cache: {name} is damaged or of another version");
            return None;
        };
        if !identity.is(answers.identity()) {
            tracing::debug!("symbol cache: the files of {name} have changed");
            return None;
        }
        let Some(charge) = budget.reserve(answers.memory_bytes()) else {
            tracing::debug!("symbol cache: there is no memory left for {name}");
            return None;
        };
        Some((answers, charge))
    }

    /// Adds answers to those of a module.
    pub(crate) fn write(
        &self,
        identity: &Identity,
        shared: Option<&SharedFile>,
        fill: impl Fn(&mut Builder),
    ) {
        let (Some(folder), name) = (self.folder(), &identity.name) else { return };
        let bytes = identity.with(shared);
        let build = |before: Option<&Answers>| {
            let mut builder = Builder::default();
            before.into_iter().for_each(|before| builder.add(before));
            fill(&mut builder);
            builder.finish(bytes.bytes(), MOST_OF_FILE.min(self.0.most_bytes / 2))
        };
        let before = self.read(identity, &Budget::default());
        // What has become too long begins anew.
        let file = build(before.as_ref().map(|(answers, _)| answers)).or_else(|| build(None));
        let Some(file) = file else {
            tracing::debug!("symbol cache: the answers of {name} are too many to keep");
            return;
        };
        if let Err(error) = folder.replace(OsStr::new(name), &file) {
            tracing::debug!("symbol cache: {name} is not written: {error}");
        }
    }

    /// Removes the files that were not used longest, until the others have room.
    pub(crate) fn make_room(&self) {
        let Some(folder) = self.folder() else { return };
        let files = match folder.files(MOST_FILES) {
            Ok(files) => files,
            Err(error) => return tracing::debug!("symbol cache: the folder cannot be listed: {error}"),
        };
        let now = files.iter().map(|file| file.used_s).max().unwrap_or(0);
        let (mut own, unfinished): (Vec<PrivateFile>, Vec<PrivateFile>) =
            files.into_iter().filter(|file| is_own(&file.name)).partition(|file| is_name(&file.name));
        let mut remove = |file: &PrivateFile| {
            if let Err(error) = folder.remove(file) {
                tracing::debug!("symbol cache: {} is not removed: {error}", file.name.display());
            }
        };
        unfinished.iter().filter(|file| file.used_s < now - UNFINISHED_S).for_each(&mut remove);
        let mut total: u64 = own.iter().map(|file| file.bytes).sum();
        if total <= self.0.most_bytes {
            return;
        }
        own.sort_by(|a, b| (a.used_s, &a.name).cmp(&(b.used_s, &b.name)));
        for file in own {
            if total <= self.0.most_bytes - self.0.most_bytes / ROOM_SHARE {
                break;
            }
            total -= file.bytes;
            remove(&file);
        }
    }
}

/// Whether a file of this name is the cache's: `BUILDID-HASH`, or such a one that was not finished.
fn is_own(name: &OsStr) -> bool {
    let Some(text) = name.to_str() else { return false };
    let unfinished = || text.strip_prefix('.')?.split_once(".kymo-");
    is_name(name) || unfinished().is_some_and(|(name, _)| is_name(OsStr::new(name)))
}

fn is_name(name: &OsStr) -> bool {
    let is_hex = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    name.to_str()
        .and_then(|name| name.split_once('-'))
        .is_some_and(|(id, hash)| id.len() >= 16 && hash.len() == 16 && is_hex(id) && is_hex(hash))
}

#[cfg(test)]
mod tests;
