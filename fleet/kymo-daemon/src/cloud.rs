//! Object stores: Amazon S3 and what is compatible with it, Google Cloud Storage, Azure.
use crate::config::DatasetConfig;
use kymo_dataset::DatasetFile;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path as StorePath;
use object_store::{ObjectStore, ObjectStoreExt, ObjectStoreScheme, PutPayload, RetryConfig};
use std::collections::BTreeMap;
use std::time::Duration;
use url::Url;

/// What a kind of store takes from the environment.
struct Variables {
    /// How their names begin, in small letters.
    prefix: &'static str,
    /// Those that are credentials, or say that there are none. The first one is named to users.
    credentials: &'static [&'static str],
}

const S3: Variables = Variables {
    prefix: "aws_",
    credentials: &[
        "aws_access_key_id",
        "aws_web_identity_token_file",
        "aws_container_credentials_relative_uri",
        "aws_container_credentials_full_uri",
        "aws_skip_signature",
        "aws_instance_metadata",
    ],
};
const GCS: Variables = Variables {
    prefix: "google_",
    credentials: &[
        "google_service_account",
        "google_service_account_path",
        "google_service_account_key",
        "google_application_credentials",
        "google_skip_signature",
        "google_instance_metadata",
    ],
};
const AZURE: Variables = Variables {
    prefix: "azure_",
    credentials: &[
        "azure_storage_account_key",
        "azure_storage_access_key",
        "azure_storage_client_secret",
        "azure_storage_sas_token",
        "azure_storage_sas_key",
        "azure_federated_token_file",
        "azure_skip_signature",
        "azure_instance_metadata",
    ],
};

/// A store of one of the kinds, with its options.
macro_rules! store {
    ($builder:ty, $variables:expr, $url:expr, $config:expr) => {{
        let mut builder = <$builder>::new().with_url($url.as_str()).with_retry(retry());
        for (key, value) in options($config, &$variables)? {
            match key.parse() {
                Ok(key) => builder = builder.with_config(key, value),
                // The environment has variables for other programs, too.
                Err(_) if !$config.options.contains_key(&key) => {}
                Err(_) => return Err(format!("dataset {}: there is no option {key}", $config.url)),
            }
        }
        Box::new(builder.build().map_err(|error| format!("dataset {}: {}", $config.url, sentence(&error)))?)
    }};
}

/// A bucket or container, and a prefix in it.
#[derive(Debug)]
pub(crate) struct Bucket {
    store: Box<dyn ObjectStore>,
    prefix: StorePath,
}

impl Bucket {
    /// The place of a URL; nothing is connected.
    ///
    /// # Errors
    /// A sentence: its scheme is another one, an option means nothing, or there are no credentials.
    pub(crate) fn open(url: &Url, config: &DatasetConfig) -> Result<Bucket, String> {
        let unknown = || format!("dataset {}: a place begins with /, s3://, gs:// or az://", config.url);
        let (scheme, prefix) = ObjectStoreScheme::parse(url).map_err(|_| unknown())?;
        let store: Box<dyn ObjectStore> = match scheme {
            ObjectStoreScheme::AmazonS3 => store!(AmazonS3Builder, S3, url, config),
            ObjectStoreScheme::GoogleCloudStorage => store!(GoogleCloudStorageBuilder, GCS, url, config),
            ObjectStoreScheme::MicrosoftAzure => store!(MicrosoftAzureBuilder, AZURE, url, config),
            _ => return Err(unknown()),
        };
        let prefix = StorePath::parse(prefix).map_err(|error| format!("dataset {}: {error}", config.url))?;
        Ok(Bucket { store, prefix })
    }

    /// Puts files, one after the other.
    ///
    /// # Errors
    /// Why the first one that failed did, in one line.
    pub(crate) async fn put_all(
        &self,
        files: impl Iterator<Item = Result<DatasetFile, String>>,
    ) -> Result<(), String> {
        for file in files {
            let file = file?;
            let key = StorePath::parse(format!("{}/{}", self.prefix, file.path));
            let key = key.map_err(|error| error.to_string())?;
            let put = self.store.put(&key, PutPayload::from(file.bytes)).await;
            put.map_err(|error| sentence(&error))?;
        }
        Ok(())
    }
}

/// The spool tries again; the store does that only for what passes at once.
fn retry() -> RetryConfig {
    RetryConfig { max_retries: 1, retry_timeout: Duration::from_secs(5), ..RetryConfig::default() }
}

/// Options of the environment, under those of the configuration.
fn options(config: &DatasetConfig, variables: &Variables) -> Result<BTreeMap<String, String>, String> {
    let prefix = variables.prefix;
    let environment = std::env::vars_os().filter_map(|(key, value)| {
        let key = key.into_string().ok()?.to_ascii_lowercase();
        Some((key, value.into_string().ok()?)).filter(|(key, _)| key.starts_with(prefix))
    });
    let mut options: BTreeMap<String, String> = environment.collect();
    options.extend(config.options.iter().map(|(key, value)| (key.clone(), value.clone())));
    if !variables.credentials.iter().any(|key| options.contains_key(*key)) {
        let wanted = variables.credentials[0].to_ascii_uppercase();
        return Err(format!(
            "dataset {}: there are no credentials: set {wanted} and what belongs to it in the environment or in [dataset.options]; {prefix}instance_metadata = \"true\" takes those of the instance",
            config.url
        ));
    }
    options.remove(&format!("{prefix}instance_metadata"));
    Ok(options)
}

/// The innermost cause, in one line.
fn sentence(error: &object_store::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}
