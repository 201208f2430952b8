//! Parquet files that are checked before they are read: whole, and of the version that this program
//! knows.
//!
//! The planner asks for the statistics of every file that a query needs, and of no other. The check
//! is done there, with the same footer, which the cache keeps for the scan.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::Session;
use datafusion::common::{DataFusionError, Result, Statistics};
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::file_format::{FileFormat, FileMeta};
use datafusion::datasource::physical_plan::parquet::metadata::DFParquetMetadata;
use datafusion::datasource::physical_plan::{FileScanConfig, FileSource};
use datafusion::datasource::table_schema::TableSchema;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::parquet::file::metadata::ParquetMetaData;
use datafusion::physical_plan::ExecutionPlan;
use object_store::{ObjectMeta, ObjectStore};

use crate::schema;

/// Parquet, of this layout's version only.
#[derive(Debug)]
pub(crate) struct DatasetFormat(pub(crate) ParquetFormat);

/// A file that cannot be part of an answer.
#[derive(Debug)]
pub(crate) enum FileError {
    /// It is cut off, or no Parquet file.
    Damaged { file: String, reason: String },
    /// It was written by another version, or not by kymo.
    OtherVersion { file: String, version: Option<String> },
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileError::Damaged { file, reason } => write!(
                f,
                "{file} is not a whole Parquet file ({reason}): copy it again, or remove it to ask without it"
            ),
            FileError::OtherVersion { file, version: Some(version) } => write!(
                f,
                "{file} has version {version} of the layout, and this kymo reads version {}: ask with the kymo that wrote it, or a newer one",
                schema::VERSION
            ),
            FileError::OtherVersion { file, version: None } => write!(
                f,
                "{file} was not written by kymo (it does not say {}): remove it from the dataset",
                schema::VERSION_KEY
            ),
        }
    }
}

impl std::error::Error for FileError {}

impl DatasetFormat {
    /// Fails if a file is damaged or of another version.
    async fn check(&self, state: &dyn Session, store: &dyn ObjectStore, object: &ObjectMeta) -> Result<()> {
        let cache = state.runtime_env().cache_manager.get_file_metadata_cache();
        let file = || format!("/{}", object.location);
        let metadata = DFParquetMetadata::new(store, object)
            .with_metadata_size_hint(self.0.metadata_size_hint())
            .with_file_metadata_cache(Some(cache))
            .fetch_metadata()
            .await;
        let metadata = metadata.map_err(|error| match error {
            DataFusionError::ParquetError(error) => {
                external(FileError::Damaged { file: file(), reason: plain(&error.to_string()) })
            }
            other => other,
        })?;
        match version(&metadata) {
            Some(schema::VERSION) => Ok(()),
            version => Err(external(FileError::OtherVersion {
                file: file(),
                version: version.map(str::to_owned),
            })),
        }
    }
}

fn external(error: FileError) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

/// The reason without the name of the library before it.
fn plain(reason: &str) -> String {
    let reason = reason.strip_prefix("Parquet error: ").unwrap_or(reason);
    reason.strip_prefix("EOF: ").unwrap_or(reason).trim_end_matches('.').to_owned()
}

/// The version that a file says it has.
fn version(metadata: &ParquetMetaData) -> Option<&str> {
    let pairs = metadata.file_metadata().key_value_metadata()?;
    pairs.iter().find(|pair| pair.key == schema::VERSION_KEY)?.value.as_deref()
}

#[async_trait]
impl FileFormat for DatasetFormat {
    fn get_ext(&self) -> String {
        self.0.get_ext()
    }

    fn get_ext_with_compression(&self, compression: &FileCompressionType) -> Result<String> {
        self.0.get_ext_with_compression(compression)
    }

    fn compression_type(&self) -> Option<FileCompressionType> {
        self.0.compression_type()
    }

    async fn infer_schema(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        objects: &[ObjectMeta],
    ) -> Result<SchemaRef> {
        self.0.infer_schema(state, store, objects).await
    }

    async fn infer_stats(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        table_schema: SchemaRef,
        object: &ObjectMeta,
    ) -> Result<Statistics> {
        self.check(state, &**store, object).await?;
        self.0.infer_stats(state, store, table_schema, object).await
    }

    async fn infer_stats_and_ordering(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        table_schema: SchemaRef,
        object: &ObjectMeta,
    ) -> Result<FileMeta> {
        self.check(state, &**store, object).await?;
        self.0.infer_stats_and_ordering(state, store, table_schema, object).await
    }

    async fn create_physical_plan(
        &self,
        state: &dyn Session,
        conf: FileScanConfig,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.0.create_physical_plan(state, conf).await
    }

    fn file_source(&self, table_schema: TableSchema) -> Arc<dyn FileSource> {
        self.0.file_source(table_schema)
    }
}
