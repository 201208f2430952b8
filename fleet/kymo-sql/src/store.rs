//! Object stores by their URLs: S3 and what speaks like it, Google Cloud Storage, Azure.
//!
//! Credentials come from the environment, as the tools of each cloud have them, or from the machine
//! itself where it runs in that cloud. None is taken from the command line.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use object_store::ObjectStore;
use url::Url;

/// How long a store that does not answer is tried. Without credentials in the environment the
/// machine itself is asked for some, and most machines have nobody to ask.
const RETRY_TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// The store of a URL.
///
/// # Errors
/// The scheme is not one of a store, or the environment holds settings that contradict each other.
#[cfg(feature = "cloud")]
pub(crate) fn open(url: &Url) -> anyhow::Result<Arc<dyn ObjectStore>> {
    use object_store::aws::AmazonS3Builder;
    use object_store::azure::MicrosoftAzureBuilder;
    use object_store::gcp::GoogleCloudStorageBuilder;
    use object_store::{ClientOptions, RetryConfig};

    let retry = RetryConfig { max_retries: 3, retry_timeout: RETRY_TIMEOUT, ..RetryConfig::default() };
    let allows_http = |name: &str| std::env::var(name).is_ok_and(|value| value == "true");
    let client = |http: &str| {
        ClientOptions::new().with_connect_timeout(CONNECT_TIMEOUT).with_allow_http(allows_http(http))
    };
    let store: Arc<dyn ObjectStore> = match url.scheme() {
        "s3" | "s3a" => {
            let builder = AmazonS3Builder::from_env().with_url(url.as_str());
            Arc::new(
                builder
                    .with_retry(retry)
                    .with_client_options(client("AWS_ALLOW_HTTP"))
                    .build()
                    .context(context(url))?,
            )
        }
        "gs" => {
            let builder = GoogleCloudStorageBuilder::from_env().with_url(url.as_str());
            Arc::new(
                builder
                    .with_retry(retry)
                    .with_client_options(client("GOOGLE_ALLOW_HTTP"))
                    .build()
                    .context(context(url))?,
            )
        }
        "az" | "abfs" | "abfss" => {
            let builder = MicrosoftAzureBuilder::from_env().with_url(url.as_str());
            Arc::new(
                builder
                    .with_retry(retry)
                    .with_client_options(client("AZURE_ALLOW_HTTP"))
                    .build()
                    .context(context(url))?,
            )
        }
        scheme => {
            bail!("{url}: {scheme} is not a store that kymo knows; these are s3, gs, az, abfs and abfss")
        }
    };
    Ok(store)
}

/// Says that this program was built without the clients of object stores.
#[cfg(not(feature = "cloud"))]
pub(crate) fn open(url: &Url) -> anyhow::Result<Arc<dyn ObjectStore>> {
    bail!("{url}: this kymo-sql was built without object stores; `make sql` builds one that has them")
}

fn context(url: &Url) -> String {
    format!("failed to open {url}")
}

/// Whether the environment has credentials for a store; where not, what to set.
pub(crate) fn missing_credentials(url: &Url) -> Option<&'static str> {
    let has_any = |names: &[&str]| names.iter().any(|name| std::env::var_os(name).is_some());
    match url.scheme() {
        "s3" | "s3a" => {
            let names = [
                "AWS_ACCESS_KEY_ID",
                "AWS_WEB_IDENTITY_TOKEN_FILE",
                "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
                "AWS_CONTAINER_CREDENTIALS_FULL_URI",
                "AWS_SKIP_SIGNATURE",
            ];
            let advice = "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION, or AWS_SKIP_SIGNATURE=true for a public bucket";
            (!has_any(&names)).then_some(advice)
        }
        "gs" => {
            let names = [
                "GOOGLE_SERVICE_ACCOUNT",
                "GOOGLE_SERVICE_ACCOUNT_PATH",
                "GOOGLE_SERVICE_ACCOUNT_KEY",
                "GOOGLE_APPLICATION_CREDENTIALS",
                "GOOGLE_SKIP_SIGNATURE",
            ];
            let advice = "set GOOGLE_APPLICATION_CREDENTIALS to the file of a service account";
            (!has_any(&names)).then_some(advice)
        }
        _ => {
            let names = [
                "AZURE_STORAGE_ACCOUNT_KEY",
                "AZURE_STORAGE_ACCESS_KEY",
                "AZURE_STORAGE_SAS_TOKEN",
                "AZURE_STORAGE_SAS_KEY",
                "AZURE_CLIENT_ID",
                "AZURE_SKIP_SIGNATURE",
            ];
            let advice =
                "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or AZURE_STORAGE_SAS_TOKEN";
            (!has_any(&names)).then_some(advice)
        }
    }
}
