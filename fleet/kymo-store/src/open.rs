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

/// What a store is opened with, beside its URL and the environment.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// What a request may take; half a minute unless given.
    pub timeout: Option<Duration>,
    /// Settings in the place of those of the environment, by the names of variables.
    pub settings: Vec<(String, String)>,
}

/// The store of a URL.
///
/// # Errors
/// The scheme is not one of a store, or the environment holds settings that contradict each other.
#[cfg(feature = "cloud")]
pub fn open(url: &Url, options: &OpenOptions) -> anyhow::Result<Arc<dyn ObjectStore>> {
    use object_store::aws::AmazonS3Builder;
    use object_store::azure::MicrosoftAzureBuilder;
    use object_store::gcp::GoogleCloudStorageBuilder;
    use object_store::{ClientOptions, RetryConfig};

    let retry = || RetryConfig { max_retries: 3, retry_timeout: RETRY_TIMEOUT, ..RetryConfig::default() };
    let client = |http: &str| {
        let allows_http = std::env::var(http).is_ok_and(|value| value == "true");
        let client = ClientOptions::new().with_connect_timeout(CONNECT_TIMEOUT).with_allow_http(allows_http);
        options.timeout.into_iter().fold(client, ClientOptions::with_timeout)
    };
    macro_rules! built {
        ($builder:ty, $allow_http:literal) => {{
            let mut builder = <$builder>::from_env().with_url(url.as_str()).with_retry(retry());
            builder = builder.with_client_options(client($allow_http));
            for (name, value) in &options.settings {
                builder = builder.with_config(name.to_ascii_lowercase().parse()?, value);
            }
            Arc::new(builder.build().with_context(|| format!("failed to open {url}"))?)
        }};
    }
    let store: Arc<dyn ObjectStore> = match url.scheme() {
        "s3" | "s3a" => built!(AmazonS3Builder, "AWS_ALLOW_HTTP"),
        "gs" => built!(GoogleCloudStorageBuilder, "GOOGLE_ALLOW_HTTP"),
        "az" | "abfs" | "abfss" => built!(MicrosoftAzureBuilder, "AZURE_ALLOW_HTTP"),
        scheme => {
            bail!("{url}: {scheme} is not a store that kymo knows; these are s3, gs, az, abfs and abfss")
        }
    };
    Ok(store)
}

/// Says that this program was built without the clients of object stores.
#[cfg(not(feature = "cloud"))]
pub fn open(url: &Url, _: &OpenOptions) -> anyhow::Result<Arc<dyn ObjectStore>> {
    bail!("{url}: this program was built without object stores; `make sql store` builds those that have them")
}

/// Whether the environment has credentials for a store; where not, what to set.
pub fn missing_credentials(url: &Url) -> Option<&'static str> {
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
