//! Parquet files that are checked before they are read: whole, and of the version and the table that
//! they should be.
//!
//! The planner asks for the statistics of every file that a query needs, and of no other. The check
//! is done there, with the same footer, which the cache keeps for the scan.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::Session;
use datafusion::common::{DataFusionError, Result, Statistics};
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::file_format::{FileFormat, FileMeta};
use datafusion::datasource::physical_plan::parquet::metadata::DFParquetMetadata;
use datafusion::datasource::physical_plan::{FileScanConfig, FileSource};
use datafusion::datasource::table_schema::TableSchema;
use datafusion::parquet::file::metadata::ParquetMetaData;
use datafusion::physical_plan::ExecutionPlan;
use kymo_dataset::schema::check_metadata;
use kymo_dataset::{DatasetError, Table};
use object_store::{ObjectMeta, ObjectStore};

/// Parquet files of one table of a dataset.
#[derive(Debug)]
pub(crate) struct DatasetFormat {
    pub(crate) parquet: ParquetFormat,
    pub(crate) table: Table,
    /// What the paths of files are below, for messages: `/` or the URL of a bucket.
    pub(crate) root: String,
}

impl DatasetFormat {
    /// Fails if a file is damaged, of another version, or of another table.
    async fn check(&self, state: &dyn Session, store: &dyn ObjectStore, object: &ObjectMeta) -> Result<()> {
        let cache = state.runtime_env().cache_manager.get_file_metadata_cache();
        let file = format!("{}{}", self.root, object.location);
        let read = DFParquetMetadata::new(store, object)
            .with_metadata_size_hint(self.parquet.metadata_size_hint())
            .with_file_metadata_cache(Some(cache))
            .fetch_metadata()
            .await;
        let checked = match read {
            Ok(metadata) => check_metadata(&file, self.table, |key| value(&metadata, key)),
            Err(DataFusionError::ParquetError(error)) => {
                Err(DatasetError::Damaged { file, reason: plain(&error.to_string()) })
            }
            Err(other) => return Err(other),
        };
        checked.map_err(|error| DataFusionError::External(Box::new(error)))
    }
}

/// The reason without the name of the library before it.
fn plain(reason: &str) -> String {
    let reason = reason.strip_prefix("Parquet error: ").unwrap_or(reason);
    reason.strip_prefix("EOF: ").unwrap_or(reason).trim_end_matches('.').to_owned()
}

/// A value of the metadata of a file.
fn value<'a>(metadata: &'a ParquetMetaData, key: &str) -> Option<&'a str> {
    let pairs = metadata.file_metadata().key_value_metadata()?;
    pairs.iter().find(|pair| pair.key == key)?.value.as_deref()
}

#[async_trait]
impl FileFormat for DatasetFormat {
    fn get_ext(&self) -> String {
        self.parquet.get_ext()
    }

    fn get_ext_with_compression(&self, compression: &FileCompressionType) -> Result<String> {
        self.parquet.get_ext_with_compression(compression)
    }

    fn compression_type(&self) -> Option<FileCompressionType> {
        self.parquet.compression_type()
    }

    async fn infer_schema(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        objects: &[ObjectMeta],
    ) -> Result<SchemaRef> {
        self.parquet.infer_schema(state, store, objects).await
    }

    async fn infer_stats(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        table_schema: SchemaRef,
        object: &ObjectMeta,
    ) -> Result<Statistics> {
        self.check(state, &**store, object).await?;
        self.parquet.infer_stats(state, store, table_schema, object).await
    }

    async fn infer_stats_and_ordering(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        table_schema: SchemaRef,
        object: &ObjectMeta,
    ) -> Result<FileMeta> {
        self.check(state, &**store, object).await?;
        self.parquet.infer_stats_and_ordering(state, store, table_schema, object).await
    }

    async fn create_physical_plan(
        &self,
        state: &dyn Session,
        conf: FileScanConfig,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.parquet.create_physical_plan(state, conf).await
    }

    fn file_source(&self, table_schema: TableSchema) -> Arc<dyn FileSource> {
        self.parquet.file_source(table_schema)
    }
}
