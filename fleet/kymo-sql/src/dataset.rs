//! Datasets as tables: five tables and three views, for folders and object stores.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use datafusion::arrow::datatypes::DataType;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl};
use datafusion::prelude::SessionContext;
use futures::StreamExt as _;
use kymo_dataset::Table;
use kymo_store::OpenOptions;
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::path::Path as ObjectPath;
use url::Url;

use crate::format::DatasetFormat;
use crate::live::LiveStore;
use crate::{builtin, tables};

/// Where a dataset is: the URL of its folder, with a slash at its end.
#[derive(Clone, Debug)]
pub(crate) struct Dataset(Url);

impl Dataset {
    /// A dataset in a folder of this machine.
    ///
    /// # Errors
    /// The folder cannot be opened.
    pub(crate) fn folder(path: &Path) -> anyhow::Result<Dataset> {
        let absolute = path.canonicalize().with_context(|| format!("failed to open {}", path.display()))?;
        let url = Url::from_directory_path(&absolute);
        Ok(Dataset(url.map_err(|()| anyhow::anyhow!("{} has no URL", path.display()))?))
    }

    /// A dataset in an object store.
    ///
    /// # Errors
    /// The text is no URL.
    pub(crate) fn remote(text: &str) -> anyhow::Result<Dataset> {
        let with_slash = format!("{}/", text.trim_end_matches('/'));
        Ok(Dataset(Url::parse(&with_slash).with_context(|| format!("{text} is not a URL"))?))
    }

    /// What comes before the path of an object in messages: `/`, or `s3://BUCKET/`.
    fn store_root(&self) -> String {
        match self.is_remote() {
            true => format!("{}/", &self.0[..url::Position::BeforePath]),
            false => "/".to_owned(),
        }
    }

    fn is_remote(&self) -> bool {
        self.0.scheme() != "file"
    }

    /// Fails if there is no dataset, or the store does not let us see it.
    async fn check(&self, store: &dyn ObjectStore) -> anyhow::Result<()> {
        let prefix =
            ObjectPath::from_url_path(self.0.path()).with_context(|| format!("{} is not a path", self.0))?;
        let first = store.list(Some(&prefix.join("samples"))).next().await;
        match first {
            Some(Ok(_)) => Ok(()),
            None => bail!("there is no dataset at {}: it has no file in samples/", self.0),
            Some(Err(error)) => match kymo_store::missing_credentials(&self.0) {
                Some(advice) => bail!("there are no credentials for {}: {advice}", self.0),
                None => Err(error).with_context(|| format!("failed to list {}", self.0)),
            },
        }
    }
}

/// Registers the tables and the views of one or more datasets, whose rows are put together.
///
/// # Errors
/// There is no dataset at a place, its store cannot be reached, or they are in different stores.
pub(crate) async fn register(context: &SessionContext, datasets: &[Dataset]) -> anyhow::Result<()> {
    let place = |dataset: &Dataset| dataset.0[..url::Position::BeforePath].to_owned();
    if let [first, rest @ ..] = datasets
        && let Some(other) = rest.iter().find(|other| place(other) != place(first))
    {
        bail!("{} and {} are in different stores: ask one at a time", first.0, other.0);
    }
    for dataset in datasets {
        let (all, live) = if dataset.is_remote() {
            let store = kymo_store::open(&dataset.0, &OpenOptions::default())?;
            (Arc::clone(&store), LiveStore::of_bucket(store))
        } else {
            let store: Arc<dyn ObjectStore> = Arc::new(LocalFileSystem::new());
            (Arc::clone(&store), LiveStore::of_folders(store))
        };
        dataset.check(&*all).await?;
        context.register_object_store(&dataset.0, Arc::new(live));
    }
    for table in Table::ALL {
        register_table(context, table, datasets)?;
    }
    for view in builtin::VIEWS.split_inclusive(';') {
        if view.contains("CREATE VIEW") {
            context.sql(view).await?.collect().await?;
        }
    }
    Ok(())
}

fn register_table(context: &SessionContext, table: Table, datasets: &[Dataset]) -> anyhow::Result<()> {
    let parquet = ParquetFormat::default().with_options(context.state().default_table_options().parquet);
    let root = datasets.first().map_or_else(|| "/".to_owned(), Dataset::store_root);
    let format = DatasetFormat { parquet, table, root };
    let partitions = table.partitions().iter().map(|name| ((*name).to_owned(), DataType::Utf8)).collect();
    let options = ListingOptions::new(Arc::new(format))
        .with_file_extension(".parquet")
        .with_table_partition_cols(partitions);
    let urls = datasets.iter().map(|dataset| {
        let folder = dataset.0.join(&format!("{}/", table.name()))?;
        ListingTableUrl::parse(folder.as_str()).map_err(anyhow::Error::new)
    });
    let config = ListingTableConfig::new_with_multi_paths(urls.collect::<anyhow::Result<_>>()?)
        .with_listing_options(options)
        .with_schema(tables::file_schema(table)?);
    let cache = context.runtime_env().cache_manager.get_file_statistic_cache();
    let table_of_files = ListingTable::try_new(config)?.with_cache(cache);
    context.register_table(table.name(), Arc::new(table_of_files))?;
    Ok(())
}

/// What a word of the command line names.
#[derive(Debug)]
pub(crate) enum Source {
    /// A dataset, in a folder or a store.
    Dataset(Dataset),
    /// A recording, to be converted first.
    Recording(PathBuf),
}

impl Source {
    /// Finds out what a word names.
    ///
    /// # Errors
    /// There is nothing of that name, or a folder is neither a dataset nor a recording.
    pub(crate) fn of(word: &std::ffi::OsStr) -> anyhow::Result<Source> {
        if let Some(text) = word.to_str()
            && text.contains("://")
        {
            return Ok(Source::Dataset(Dataset::remote(text)?));
        }
        let path = Path::new(word);
        let metadata = path.metadata().with_context(|| format!("failed to open {}", path.display()))?;
        if metadata.is_dir() && path.join("samples").is_dir() {
            return Ok(Source::Dataset(Dataset::folder(path)?));
        }
        if metadata.is_dir() && !path.join("data").exists() {
            bail!(
                "{} is neither a dataset (it has no folder samples) nor a recording (it has no file data)",
                path.display()
            );
        }
        Ok(Source::Recording(path.to_owned()))
    }
}
