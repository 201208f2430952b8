//! A store that lists the files of datasets whose rows count: no file that a merged one stands for.
//!
//! `kymo compact --in-place` puts a merged file and then removes those that it has the rows of. The
//! query engine lists and reads through this, so it counts each row once at any moment. A file that
//! goes away between the list and its reading is an error ([`FileGone`](crate::sentence::FileGone)), and the query is asked
//! again.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use futures::stream::{BoxStream, StreamExt as _};
use futures::{TryStreamExt as _, stream};
use kymo_dataset::{MergedFile, MergedFooter, is_merged, is_replaced};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt as _, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result,
};

/// How often files are listed that change meanwhile.
const MOST_LISTS: usize = 100;

/// How many merged files are asked at once for what they say of others.
const MOST_REQUESTS: usize = 32;

/// The store.
#[derive(Clone, Debug)]
pub(crate) struct LiveStore {
    inner: Arc<dyn ObjectStore>,
    /// Whether lists come in the order of the names, so that one is enough.
    is_ordered: bool,
}

impl LiveStore {
    /// Of an object store, which lists in the order of the names.
    pub(crate) fn of_bucket(inner: Arc<dyn ObjectStore>) -> LiveStore {
        LiveStore { inner, is_ordered: true }
    }

    /// Of the file system.
    pub(crate) fn of_folders(inner: Arc<dyn ObjectStore>) -> LiveStore {
        LiveStore { inner, is_ordered: false }
    }

    /// All files below a prefix. Where the order is none, there are two lists, of which the second
    /// one has all of the first one and no other merged file.
    async fn list_all(&self, prefix: Option<&Path>) -> Result<Vec<ObjectMeta>> {
        let list = || async {
            let mut files: Vec<ObjectMeta> = self.inner.list(prefix).try_collect().await?;
            files.sort_by(|a, b| a.location.cmp(&b.location));
            Ok::<_, object_store::Error>(files)
        };
        let mut before = list().await?;
        if self.is_ordered {
            return Ok(before);
        }
        for _ in 0..MOST_LISTS {
            let now = list().await?;
            let is_in = |files: &[ObjectMeta], file: &ObjectMeta| {
                files.binary_search_by(|other| other.location.cmp(&file.location)).is_ok()
            };
            let has_all = before.iter().all(|file| is_in(&now, file));
            if has_all && now.iter().all(|file| !is_merged(name(file)) || is_in(&before, file)) {
                return Ok(now);
            }
            before = now;
        }
        let source = "the files of the dataset change all the time: try it again".into();
        Err(object_store::Error::Generic { store: "dataset", source })
    }

    /// The files below a prefix whose rows count.
    async fn list_live(&self, prefix: Option<&Path>) -> Result<Vec<ObjectMeta>> {
        let mut folders: BTreeMap<String, Vec<ObjectMeta>> = BTreeMap::new();
        for file in self.list_all(prefix).await? {
            folders.entry(folder(&file).to_owned()).or_default().push(file);
        }
        let several = folders.values().filter(|files| files.len() > 1).flatten();
        let merged: Vec<ObjectMeta> = several.filter(|file| is_merged(name(file))).cloned().collect();
        let mut says: BTreeMap<String, Vec<MergedFile>> = BTreeMap::new();
        let footers = merged.clone().into_iter().map(|file| footer(Arc::clone(&self.inner), file));
        let mut read = stream::iter(footers).buffered(MOST_REQUESTS);
        for file in &merged {
            says.entry(folder(file).to_owned()).or_default().extend(read.try_next().await?);
        }
        drop(read);
        for (folder, merged) in &says {
            let files = folders.get_mut(folder).into_iter();
            files.for_each(|files| files.retain(|file| !is_replaced(name(file), merged)));
        }
        Ok(folders.into_values().flatten().collect())
    }
}

/// What a merged file says of others.
async fn footer(store: Arc<dyn ObjectStore>, file: ObjectMeta) -> Result<MergedFile> {
    let wrong = |source| object_store::Error::Generic { store: "dataset", source };
    let mut footer = MergedFooter::new(file.location.as_ref(), file.size);
    while let Some(range) = footer.needed_range() {
        let bytes = store.get_range(&file.location, range).await?;
        footer.add(bytes).map_err(|error| wrong(Box::new(error)))?;
    }
    footer.finish().ok_or_else(|| wrong("a merged file without metadata".into()))
}

/// The folder of a file.
fn folder(file: &ObjectMeta) -> &str {
    file.location.as_ref().rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// The name of a file without its folder.
fn name(file: &ObjectMeta) -> &str {
    file.location.filename().unwrap_or_default()
}

impl fmt::Display for LiveStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for LiveStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.inner.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.inner.get_opts(location, options).await
    }

    async fn get_ranges(
        &self,
        location: &Path,
        ranges: &[std::ops::Range<u64>],
    ) -> Result<Vec<bytes::Bytes>> {
        self.inner.get_ranges(location, ranges).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (store, prefix) = (self.clone(), prefix.cloned());
        let listed = async move { store.list_live(prefix.as_ref()).await };
        let files = stream::once(listed).map_ok(|files| stream::iter(files.into_iter().map(Ok)));
        files.try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.inner.rename_opts(from, to, options).await
    }
}
