//! Writes the files of a dataset: into a folder, or an object store.
//!
//! # Guarantees
//! - A reader sees whole files only: a file is written without its name and then gets it, or is
//!   one PUT.
//! - Samples come last: whoever sees them finds their stacks, frames, builds and hosts.
//! - To write a batch again writes the same files again.
use crate::config::DatasetConfig;
use crate::delivery::Failure;
use crate::spool::files_of;
use kymo_dataset::{DatasetFile, DatasetFolder, Table};
use std::path::{Path, PathBuf};
use std::time::Duration;
use url::Url;

/// A place for a dataset.
#[derive(Debug)]
pub(crate) struct Store {
    name: String,
    place: Place,
    timeout: Duration,
}

#[derive(Debug)]
enum Place {
    Folder(PathBuf),
    #[cfg(feature = "cloud")]
    Cloud(crate::cloud::Bucket),
}

impl Store {
    /// The place as configured; nothing is connected or made.
    ///
    /// # Errors
    /// A sentence: it is no place, its options mean nothing, or there are no credentials.
    pub(crate) fn new(config: &DatasetConfig) -> Result<Store, String> {
        let timeout = Duration::from_secs(config.timeout_s);
        let name = config.url.clone();
        let failed = |reason: String| format!("dataset {name}: {reason}");
        let place = match Url::parse(&config.url) {
            Ok(url) if url.scheme() != "file" => cloud(&url, config)?,
            Ok(url) => Place::Folder(
                url.to_file_path().map_err(|()| failed("it is no path of this machine".into()))?,
            ),
            Err(_) => {
                Place::Folder(std::path::absolute(&config.url).map_err(|error| failed(error.to_string()))?)
            }
        };
        Ok(Store { name, place, timeout })
    }

    /// What it is called in sentences.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether files can be written there, as far as that can be told without writing one; false:
    /// it was not tried, as in an object store.
    ///
    /// # Errors
    /// Why not, in words.
    pub(crate) fn probe(&self) -> Result<bool, String> {
        match &self.place {
            Place::Folder(folder) => {
                writable(folder)?;
                match folder.exists() {
                    true => {
                        DatasetFolder::open_or_create(folder).map(|_| true).map_err(|error| error.to_string())
                    }
                    false => Ok(true),
                }
            }
            #[cfg(feature = "cloud")]
            Place::Cloud(_) => Ok(false),
        }
    }

    /// Writes the files of a batch.
    ///
    /// # Errors
    /// [`Failure::Later`], also for files that the spool does not have any more.
    pub(crate) async fn write(&self, batch: &Path) -> Result<(), Failure> {
        let batch = batch.to_owned();
        let write = async {
            match &self.place {
                Place::Folder(folder) => {
                    let folder = folder.clone();
                    // A file system may not answer.
                    let written = tokio::task::spawn_blocking(move || write_into(&folder, &batch)).await;
                    written.unwrap_or_else(|error| Err(error.to_string()))
                }
                #[cfg(feature = "cloud")]
                Place::Cloud(bucket) => bucket.put_all(files(&batch)).await,
            }
        };
        match tokio::time::timeout(self.timeout, write).await {
            Ok(written) => written.map_err(Failure::Later),
            Err(_) => Err(Failure::Later(format!("it took more than {} s", self.timeout.as_secs()))),
        }
    }
}

#[cfg(feature = "cloud")]
fn cloud(url: &Url, config: &DatasetConfig) -> Result<Place, String> {
    crate::cloud::Bucket::open(url, config).map(Place::Cloud)
}

#[cfg(not(feature = "cloud"))]
fn cloud(_: &Url, config: &DatasetConfig) -> Result<Place, String> {
    let url = &config.url;
    Err(format!(
        "dataset {url}: this kymo-daemon was built without object stores; `make daemon` builds it with them"
    ))
}

fn write_into(folder: &Path, batch: &Path) -> Result<(), String> {
    let dataset = DatasetFolder::open_or_create(folder).map_err(|error| error.to_string())?;
    for file in files(batch) {
        dataset.put(&file?).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// The files of a batch, read one after the other, in the order of the tables.
fn files(batch: &Path) -> impl Iterator<Item = Result<DatasetFile, String>> {
    let table = |path: &Path| Table::ALL.into_iter().find(|table| path.starts_with(table.name()));
    let (names, failed) = match files_of(batch) {
        Ok(names) => (names, None),
        Err(error) => (Vec::new(), Some(Err(error.to_string()))),
    };
    let mut names: Vec<(Table, PathBuf)> =
        names.into_iter().filter_map(|path| Some((table(&path)?, path))).collect();
    names.sort();
    let batch = batch.to_owned();
    let read = move |(table, path): (Table, PathBuf)| {
        let bytes = std::fs::read(batch.join(&path)).map_err(|error| error.to_string())?;
        Ok(DatasetFile { table, path: path.to_string_lossy().into_owned(), bytes })
    };
    failed.into_iter().chain(names.into_iter().map(read))
}

/// Whether a folder can be made or written.
///
/// # Errors
/// Why not, in words.
pub(crate) fn writable(folder: &Path) -> Result<(), String> {
    use rustix::fs::{Access, access};
    let existing = folder.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    if !existing.is_dir() {
        return Err(format!("{} is no folder", existing.display()));
    }
    access(existing, Access::WRITE_OK | Access::EXEC_OK)
        .map_err(|error| format!("{} is not writable: {}", existing.display(), std::io::Error::from(error)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn config(url: &str) -> DatasetConfig {
        DatasetConfig { url: url.into(), timeout_s: 5, options: BTreeMap::new() }
    }

    /// Checks that files keep their names and bytes, odd ones too, and that what stands in the way
    /// of a folder is said.
    #[test]
    fn files_are_written_where_the_layout_wants_them() {
        let (spool, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let name = "samples/day=2026-11-27/service=a_b/x.parquet";
        std::fs::create_dir_all(spool.path().join(name).parent().unwrap()).unwrap();
        std::fs::write(spool.path().join(name), "rows").unwrap();
        let store = Store::new(&config(target.path().join("d").to_str().unwrap())).unwrap();
        assert!(store.probe().unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(store.write(spool.path())).unwrap();
        assert_eq!(files_of(&target.path().join("d")).unwrap(), [Path::new(name)]);
        std::fs::write(target.path().join("file"), "").unwrap();
        let store = Store::new(&config(target.path().join("file/d").to_str().unwrap())).unwrap();
        assert!(store.probe().unwrap_err().contains("no folder"));
        assert!(matches!(runtime.block_on(store.write(spool.path())), Err(Failure::Later(_))));
    }

    /// Checks that a cloud without credentials, or that was not built in, is refused with a
    /// sentence.
    #[test]
    fn clouds_without_credentials_are_refused() {
        for url in ["s3://bucket/prefix", "gs://bucket/p", "az://container/p"] {
            let error = Store::new(&config(url)).unwrap_err();
            let word = if cfg!(feature = "cloud") { "no credentials" } else { "without object stores" };
            assert!(error.contains(url) && error.contains(word), "{error}");
        }
        assert!(Store::new(&config("ftp://x/y")).is_err());
    }
}
