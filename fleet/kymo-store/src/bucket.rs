//! A dataset below a prefix of a bucket.
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kymo_dataset::{DatasetError, DatasetFile, DatasetStore, StoredFile};
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt as _, PutMode, PutPayload};
use tokio::runtime::Runtime;
use url::Url;

use crate::OpenOptions;

/// What a request may take: one puts a file of up to 256 MiB.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(600);

/// A dataset in an object store. Its methods wait for the answers; they are not for async code.
#[derive(Debug)]
pub struct Bucket {
    name: String,
    store: Arc<dyn ObjectStore>,
    prefix: ObjectPath,
    /// What to set where the environment has no credentials: the machine may have some.
    advice: Option<&'static str>,
    runtime: Runtime,
}

impl Bucket {
    /// The dataset of a URL, `s3://BUCKET/PATH`; nothing is connected.
    ///
    /// # Errors
    /// The text is no URL of a store, or the environment holds settings that contradict each other.
    pub fn open(text: &str) -> anyhow::Result<Bucket> {
        Bucket::open_with(text, Vec::new())
    }

    /// The same, with settings in the place of those of the environment.
    ///
    /// # Errors
    /// As [`Bucket::open`], and for settings of other names.
    pub fn open_with(text: &str, settings: Vec<(String, String)>) -> anyhow::Result<Bucket> {
        let name = text.trim_end_matches('/').to_owned();
        let url = Url::parse(&name).with_context(|| format!("{text} is not a URL"))?;
        let has_settings = !settings.is_empty();
        let store = crate::open(&url, &OpenOptions { timeout: Some(REQUEST_TIMEOUT), settings })?;
        let prefix =
            ObjectPath::from_url_path(url.path()).with_context(|| format!("{text} is not a path"))?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.context("failed to start threads")?;
        let advice = crate::missing_credentials(&url).filter(|_| !has_settings);
        Ok(Bucket { name, store, prefix, advice, runtime })
    }

    /// The key of a file.
    fn key(&self, path: &str) -> Result<ObjectPath, DatasetError> {
        let parsed = ObjectPath::parse(format!("{}/{path}", self.prefix));
        parsed.map_err(|error| DatasetError::io(path, io::Error::other(error)))
    }

    fn failed(&self, path: &str, error: &object_store::Error) -> DatasetError {
        let error = match (error, self.advice) {
            (object_store::Error::NotFound { .. }, _) => {
                io::Error::new(io::ErrorKind::NotFound, sentence(error))
            }
            (_, Some(advice)) => io::Error::other(format!("there are no credentials: {advice}")),
            _ => io::Error::other(sentence(error)),
        };
        DatasetError::io(format!("{}/{path}", self.name), error)
    }

    fn put_as(&self, file: &DatasetFile, mode: PutMode) -> Result<bool, DatasetError> {
        let payload = PutPayload::from(file.bytes.clone());
        let key = self.key(&file.path)?;
        match self.runtime.block_on(self.store.put_opts(&key, payload, mode.into())) {
            Ok(_) => Ok(true),
            Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {
                Ok(false)
            }
            Err(error) => Err(self.failed(&file.path, &error)),
        }
    }
}

impl DatasetStore for Bucket {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn files(&self, folder: &str) -> Result<Vec<StoredFile>, DatasetError> {
        let below = self.key(folder)?;
        let list = self.store.list(Some(&below)).try_filter_map(async |object| {
            let rest = object.location.prefix_match(&self.prefix);
            let names: Option<Vec<String>> =
                rest.map(|parts| parts.map(|part| part.as_ref().to_owned()).collect());
            let path = names.map(|names| names.join("/")).filter(|path| path.ends_with(".parquet"));
            Ok(path.map(|path| StoredFile { path, bytes: object.size }))
        });
        let files = self.runtime.block_on(list.try_collect::<Vec<_>>());
        let mut files = files.map_err(|error| self.failed(folder, &error))?;
        files.sort();
        Ok(files)
    }

    fn read(&self, path: &str, range: Range<u64>) -> Result<Bytes, DatasetError> {
        let key = self.key(path)?;
        let read = self.runtime.block_on(self.store.get_range(&key, range));
        read.map_err(|error| self.failed(path, &error))
    }

    fn put(&self, file: &DatasetFile) -> Result<(), DatasetError> {
        self.put_as(file, PutMode::Overwrite).map(|_| ())
    }

    fn create(&self, file: &DatasetFile) -> Result<bool, DatasetError> {
        self.put_as(file, PutMode::Create)
    }

    fn remove(&self, paths: &[String]) -> Result<(), DatasetError> {
        let keys: Vec<ObjectPath> = paths.iter().map(|path| self.key(path)).collect::<Result<_, _>>()?;
        let mut removed = self.store.delete_stream(stream::iter(keys.into_iter().map(Ok)).boxed());
        self.runtime.block_on(async {
            while let Some(result) = removed.next().await {
                match result {
                    Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
                    Err(error) => return Err(self.failed("", &error)),
                }
            }
            Ok(())
        })
    }
}

/// The innermost cause, in one line.
fn sentence(error: &object_store::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}
