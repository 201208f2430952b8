//! What each verb that writes a recording does at its end for the names: copies of files that
//! nobody finds again.
use std::fs;
use std::path::PathBuf;

use kymo_cli::open;
use kymo_profile::build_ids::Which;
use kymo_profile::kept_files::{self, KeptFiles};
use kymo_symbols::SymbolOptions;
use kymo_symbols::build_id_cache::{BuildIdCache, CacheError};

/// So much of a recording is read to find out which files its samples are in.
const MOST_READ_BYTES: u64 = 1 << 30;

/// Copies files of a recording into the cache of build ids: all of them if its folder was named,
/// else those that nobody finds again by their paths. `files`: where the recording is; none of one
/// that cannot be read again. `advice`: how to have no copies.
pub(crate) fn keep(files: &[PathBuf], which: Which, advice: &str, say: &dyn Fn(&str)) {
    let options = SymbolOptions::default();
    let is_asked = options.buildid_dir.is_some();
    if !is_asked && !kept_files::has_gone_files() {
        return;
    }
    let kept = (|| {
        let cache = BuildIdCache::of(&options)?;
        let mut missing = Vec::new();
        for file in files.iter().filter(|_| is_asked) {
            let recording = open::own_recording(file)?;
            missing.extend(kept_files::keep_files(&recording, which, &cache, &options)?);
        }
        let unread = files.is_empty().then_some(None);
        let mut left = MOST_READ_BYTES;
        let recordings = files.iter().map(|file| {
            left = left.checked_sub(fs::metadata(file).ok()?.len())?;
            open::own_recording(file).ok()
        });
        let recordings = recordings.chain(unread);
        let held = kept_files::keep_held_files(recordings, &cache, &options);
        if held.copied > 0 {
            say(&format!(
                "copied {} {} that cannot be found by path any more to {}{advice}",
                held.copied,
                if held.copied == 1 { "file" } else { "files" },
                cache.root().display()
            ));
        }
        anyhow::Ok((missing, held))
    })();
    match kept {
        Ok((missing, KeptFiles { refused, dropped, .. })) => {
            // What is held was copied, or is said by itself.
            let is_gone = |error: &CacheError| matches!(error, CacheError::Io(path, _) if !path.exists());
            let missing = missing.iter().filter(|error| !is_gone(error));
            missing.chain(&refused).for_each(|error| say(&format!("not in the cache: {error}")));
            if dropped > 0 {
                say(&format!(
                    "{dropped} files that cannot be found by path any more were not copied: too many for the limit of open files (raise it with ulimit -n)"
                ));
            }
        }
        Err(error) => say(&format!(
            "no files were copied to the cache of build IDs: {}",
            kymo_cli::exit::with_causes(&error)
        )),
    }
}
