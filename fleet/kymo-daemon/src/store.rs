//! Writes the files of a dataset: into a folder, or an object store.
//!
//! # Guarantees
//! - A reader sees whole files only: a file is written under another name and renamed, or is one
//!   PUT.
//! - Samples come last: whoever sees them finds their stacks, frames, builds and hosts.
//! - To write a batch again writes the same files again.
use crate::config::DatasetConfig;
use crate::delivery::Failure;
use crate::spool::files_of;
use object_store::local::LocalFileSystem;
use object_store::path::Path as StorePath;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use std::path::{Path, PathBuf};
use std::time::Duration;
use url::Url;

/// The table whose files are written last.
const LAST_TABLE: &str = "samples";

/// A place for a dataset.
#[derive(Debug)]
pub(crate) struct Store {
    name: String,
    store: Box<dyn ObjectStore>,
    prefix: StorePath,
    timeout: Duration,
    /// The folder, if it is one.
    folder: Option<PathBuf>,
}

impl Store {
    /// The place as configured; nothing is connected or made.
    ///
    /// # Errors
    /// A sentence: it is no place, its options mean nothing, or there are no credentials.
    pub(crate) fn new(config: &DatasetConfig) -> Result<Store, String> {
        let timeout = Duration::from_secs(config.timeout_s);
        let name = config.url.clone();
        let path = Path::new(&config.url);
        let url = match Url::parse(&config.url) {
            Ok(url) if url.scheme() != "file" => url,
            Ok(url) => {
                let folder = url
                    .to_file_path()
                    .map_err(|()| format!("dataset {name}: it is no path of this machine"))?;
                return Store::of_folder(name, folder, timeout);
            }
            Err(_) => {
                let folder = std::path::absolute(path).map_err(|error| format!("dataset {name}: {error}"))?;
                return Store::of_folder(name, folder, timeout);
            }
        };
        let (store, prefix) = cloud::open(&url, config)?;
        Ok(Store { name, store, prefix, timeout, folder: None })
    }

    fn of_folder(name: String, folder: PathBuf, timeout: Duration) -> Result<Store, String> {
        let store = Box::new(LocalFileSystem::new());
        let prefix =
            StorePath::from_absolute_path(&folder).map_err(|error| format!("dataset {name}: {error}"))?;
        Ok(Store { name, store, prefix, timeout, folder: Some(folder) })
    }

    /// What it is called in sentences.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether files can be written there, as far as that can be told without writing one.
    ///
    /// # Errors
    /// Why not, in words.
    pub(crate) fn probe(&self) -> Result<(), String> {
        self.folder.as_deref().map_or(Ok(()), writable)
    }

    /// Writes the files of a batch.
    ///
    /// # Errors
    /// [`Failure::Later`], but for files that the spool does not have any more.
    pub(crate) async fn write(&self, batch: &Path) -> Result<(), Failure> {
        let write = async {
            let mut files = files_of(batch).map_err(|error| Failure::Later(error.to_string()))?;
            files.sort_by_key(|file| file.starts_with(LAST_TABLE));
            for file in files {
                self.write_file(batch, &file).await?;
            }
            Ok(())
        };
        match tokio::time::timeout(self.timeout, write).await {
            Ok(written) => written,
            Err(_) => Err(Failure::Later(format!("it took more than {} s", self.timeout.as_secs()))),
        }
    }

    async fn write_file(&self, batch: &Path, file: &Path) -> Result<(), Failure> {
        let bytes = std::fs::read(batch.join(file)).map_err(|error| Failure::Later(error.to_string()))?;
        let mut place = self.prefix.clone();
        for part in file {
            // As the layout has it: what is encoded in a name stays as it is.
            let part = part.to_string_lossy();
            place = StorePath::parse(format!("{place}/{part}"))
                .map_err(|error| Failure::Later(error.to_string()))?;
        }
        let put = self.store.put(&place, PutPayload::from(bytes)).await;
        put.map(drop).map_err(|error| Failure::Later(sentence(&error)))
    }
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

/// The innermost cause, in one line.
fn sentence(error: &object_store::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(feature = "cloud")]
mod cloud {
    use super::*;
    use object_store::aws::AmazonS3Builder;
    use object_store::azure::MicrosoftAzureBuilder;
    use object_store::gcp::GoogleCloudStorageBuilder;
    use object_store::{ObjectStoreScheme, RetryConfig};
    use std::collections::BTreeMap;

    /// What each store takes from the environment, and which of it are credentials.
    const S3: (&str, &[&str]) = (
        "aws_",
        &[
            "aws_access_key_id",
            "aws_web_identity_token_file",
            "aws_container_credentials_relative_uri",
            "aws_container_credentials_full_uri",
            "aws_skip_signature",
            "aws_instance_metadata",
        ],
    );
    const GCS: (&str, &[&str]) = (
        "google_",
        &[
            "google_service_account",
            "google_service_account_path",
            "google_service_account_key",
            "google_application_credentials",
            "google_skip_signature",
            "google_instance_metadata",
        ],
    );
    const AZURE: (&str, &[&str]) = (
        "azure_",
        &[
            "azure_storage_account_key",
            "azure_storage_access_key",
            "azure_storage_client_secret",
            "azure_storage_sas_token",
            "azure_storage_sas_key",
            "azure_federated_token_file",
            "azure_skip_signature",
            "azure_instance_metadata",
        ],
    );

    pub(super) fn open(
        url: &Url,
        config: &DatasetConfig,
    ) -> Result<(Box<dyn ObjectStore>, StorePath), String> {
        let failed = |error: object_store::Error| format!("dataset {}: {}", config.url, sentence(&error));
        let (scheme, prefix) = ObjectStoreScheme::parse(url)
            .map_err(|_| format!("dataset {}: a place begins with /, s3://, gs:// or az://", config.url))?;
        let store: Box<dyn ObjectStore> = match scheme {
            ObjectStoreScheme::AmazonS3 => {
                let builder = AmazonS3Builder::new().with_url(url.as_str()).with_retry(retry());
                let options = options(config, S3)?;
                let set = |builder: AmazonS3Builder, (key, value): (String, String)| match key.parse() {
                    Ok(key) => builder.with_config(key, value),
                    Err(_) => builder,
                };
                Box::new(options.into_iter().fold(builder, set).build().map_err(failed)?)
            }
            ObjectStoreScheme::GoogleCloudStorage => {
                let builder = GoogleCloudStorageBuilder::new().with_url(url.as_str()).with_retry(retry());
                let options = options(config, GCS)?;
                let set =
                    |builder: GoogleCloudStorageBuilder, (key, value): (String, String)| match key.parse() {
                        Ok(key) => builder.with_config(key, value),
                        Err(_) => builder,
                    };
                Box::new(options.into_iter().fold(builder, set).build().map_err(failed)?)
            }
            ObjectStoreScheme::MicrosoftAzure => {
                let builder = MicrosoftAzureBuilder::new().with_url(url.as_str()).with_retry(retry());
                let options = options(config, AZURE)?;
                let set = |builder: MicrosoftAzureBuilder, (key, value): (String, String)| match key.parse() {
                    Ok(key) => builder.with_config(key, value),
                    Err(_) => builder,
                };
                Box::new(options.into_iter().fold(builder, set).build().map_err(failed)?)
            }
            _ => return Err(format!("dataset {}: a place begins with /, s3://, gs:// or az://", config.url)),
        };
        Ok((store, StorePath::parse(prefix).map_err(|error| error.to_string())?))
    }

    /// The spool tries again; the store does that only for what passes at once.
    fn retry() -> RetryConfig {
        RetryConfig { max_retries: 1, retry_timeout: Duration::from_secs(5), ..RetryConfig::default() }
    }

    /// Those of the environment, under those of the configuration.
    fn options(
        config: &DatasetConfig,
        (prefix, credentials): (&str, &[&str]),
    ) -> Result<BTreeMap<String, String>, String> {
        let environment = std::env::vars_os().filter_map(|(key, value)| {
            let key = key.into_string().ok()?.to_ascii_lowercase();
            Some((key, value.into_string().ok()?)).filter(|(key, _)| key.starts_with(prefix))
        });
        let mut options: BTreeMap<String, String> = environment.collect();
        options.extend(config.options.iter().map(|(key, value)| (key.to_ascii_lowercase(), value.clone())));
        if !credentials.iter().any(|key| options.contains_key(*key)) {
            let wanted = credentials[0].to_ascii_uppercase();
            return Err(format!(
                "dataset {}: there are no credentials: set {wanted} and what belongs to it in the environment or in [dataset.options]; {prefix}instance_metadata = \"true\" takes those of the instance",
                config.url
            ));
        }
        options.remove(&format!("{prefix}instance_metadata"));
        Ok(options)
    }
}

#[cfg(not(feature = "cloud"))]
mod cloud {
    use super::*;

    pub(super) fn open(_: &Url, config: &DatasetConfig) -> Result<(Box<dyn ObjectStore>, StorePath), String> {
        Err(format!(
            "dataset {}: this kymo-daemon was built without object stores; `make daemon` builds it with them",
            config.url
        ))
    }
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
        let name = "samples/day=2026-11-27/service=a%20b/x.parquet";
        std::fs::create_dir_all(spool.path().join(name).parent().unwrap()).unwrap();
        std::fs::write(spool.path().join(name), "rows").unwrap();
        let store = Store::new(&config(target.path().join("d").to_str().unwrap())).unwrap();
        store.probe().unwrap();
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
