//! The configuration file, and what options of the command line change in it.
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The largest rate that is accepted, in samples per second and CPU.
const MOST_HZ: u64 = 10_000;
/// The shortest and the longest interval, in seconds.
const INTERVALS_S: std::ops::RangeInclusive<u64> = 1..=3600;

/// What the daemon does. Every key has a default but the place that profiles go to.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    /// Samples per second on each CPU: 1 to 10,000.
    pub(crate) frequency: u64,
    /// Whether the time that threads are off the CPU is recorded, too.
    pub(crate) off_cpu: bool,
    /// How the stacks of programs are recorded.
    pub(crate) stacks: Stacks,
    /// Whether Python's functions get their names, by programs in the kernel.
    pub(crate) python: bool,
    /// Samples are added up for so many seconds: 1 to 3600.
    pub(crate) interval_s: u64,
    /// The service of every sample; empty: the unit of systemd, the container, or the command.
    pub(crate) service: String,
    /// Whether functions of programs get their names here, not later by `kymo symbolize`.
    pub(crate) symbols: bool,
    /// The folder for what is not sent yet. It belongs to the daemon alone.
    pub(crate) state: PathBuf,
    /// Above so much resident memory the recorder starts anew, without what it knows of files.
    pub(crate) max_memory: Size,
    /// What may wait there, in bytes of the disk's blocks, or with K, M or G. Beyond that the oldest
    /// is dropped.
    pub(crate) max_spool: Size,
    /// Where `GET /` answers with the state of the daemon; empty: nowhere. An address of loopback.
    pub(crate) health: String,
    /// Parquet files.
    pub(crate) dataset: Option<DatasetConfig>,
    /// Profiles for an OpenTelemetry Collector.
    pub(crate) otlp: Option<OtlpConfig>,
}

/// How stacks of programs are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Stacks {
    /// By unwind data, as `kymo record` does.
    Unwound,
    /// Along frame pointers, by the kernel.
    FramePointers,
    /// Only the sampled function.
    None,
}

/// Where Parquet files go.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DatasetConfig {
    /// A folder, or `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `az://CONTAINER/PREFIX`.
    pub(crate) url: String,
    /// A batch of files is written within so many seconds, or tried again.
    #[serde(default = "store_timeout_s")]
    pub(crate) timeout_s: u64,
    /// Options of the store, such as `aws_region` and `aws_endpoint`.
    #[serde(default)]
    pub(crate) options: BTreeMap<String, String>,
}

/// The collector.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OtlpConfig {
    /// `http://HOST:PORT`, or `https://` where the daemon was built with TLS.
    pub(crate) endpoint: String,
    /// How profiles are pushed.
    #[serde(default)]
    pub(crate) protocol: Protocol,
    /// Headers of each request, such as `authorization`.
    #[serde(default)]
    pub(crate) headers: BTreeMap<String, String>,
    /// Certificates (PEM) of the authorities that are trusted in place of the machine's; empty: none.
    #[serde(default)]
    pub(crate) ca_file: PathBuf,
    /// A push is answered within so many seconds, or tried again.
    #[serde(default = "push_timeout_s")]
    pub(crate) timeout_s: u64,
}

/// The transport of OTLP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Protocol {
    /// HTTP/1.1 with bodies of protobuf, usually port 4318.
    #[default]
    Http,
    /// gRPC, usually port 4317.
    Grpc,
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size(pub u64);

fn store_timeout_s() -> u64 {
    60
}

fn push_timeout_s() -> u64 {
    10
}

impl Default for Config {
    fn default() -> Config {
        Config {
            frequency: 19,
            off_cpu: false,
            stacks: Stacks::Unwound,
            python: false,
            interval_s: 60,
            service: String::new(),
            symbols: false,
            state: PathBuf::from("/var/lib/kymo"),
            max_memory: Size(80 << 20),
            max_spool: Size(256 << 20),
            health: String::new(),
            dataset: None,
            otlp: None,
        }
    }
}

/// Why a configuration is not accepted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// The file cannot be read.
    #[error("failed to read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is no TOML, or has a key that means nothing.
    #[error("{}: {reason}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// What is wrong, on which line.
        reason: String,
    },
    /// A value that cannot be.
    #[error("{0}")]
    Value(String),
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// [`ConfigError`] says what is wrong in which line. Values are judged by [`Config::check`].
    pub(crate) fn read(path: &Path) -> Result<Config, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        toml::from_str(&text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or("");
            let line = before.matches('\n').count() + 1;
            let reason = format!("line {line}: {}", error.message().replace('\n', " "));
            ConfigError::Syntax { path: path.to_owned(), reason }
        })
    }

    /// Judges the values.
    ///
    /// # Errors
    /// [`ConfigError::Value`]: a sentence with the key.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let wrong = |text: String| Err(ConfigError::Value(text));
        if !(1..=MOST_HZ).contains(&self.frequency) {
            return wrong(format!("frequency = {}: it is 1 to {MOST_HZ} samples per second", self.frequency));
        }
        if !INTERVALS_S.contains(&self.interval_s) {
            return wrong(format!("interval_s = {}: an interval is 1 to 3600 seconds", self.interval_s));
        }
        if self.dataset.is_none() && self.otlp.is_none() {
            return wrong("nowhere to write: name a dataset (--dataset) or a collector (--otlp)".into());
        }
        let timeouts = [
            ("dataset", self.dataset.as_ref().map(|dataset| dataset.timeout_s)),
            ("otlp", self.otlp.as_ref().map(|otlp| otlp.timeout_s)),
        ];
        if let Some((name, _)) = timeouts.iter().find(|(_, timeout)| *timeout == Some(0)) {
            return wrong(format!("timeout_s of [{name}] is 0: nothing is that quick"));
        }
        self.health_address().map(drop)
    }

    /// The address of the health endpoint, if there is to be one.
    ///
    /// # Errors
    /// It is no address, or none of loopback: anyone in the network could read the answer.
    pub(crate) fn health_address(&self) -> Result<Option<SocketAddr>, ConfigError> {
        if self.health.is_empty() {
            return Ok(None);
        }
        let address: SocketAddr = self.health.parse().map_err(|_| {
            let text = &self.health;
            ConfigError::Value(format!(
                "health = \"{text}\": it is an address with a port, such as 127.0.0.1:9471"
            ))
        })?;
        if !address.ip().is_loopback() {
            let text =
                format!("health = \"{address}\": only addresses of loopback are served, such as 127.0.0.1");
            return Err(ConfigError::Value(text));
        }
        Ok(Some(address))
    }

    /// The length of an interval.
    pub(crate) fn interval(&self) -> Duration {
        Duration::from_secs(self.interval_s)
    }
}

impl std::str::FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
        let shift = match &text[digits.len()..] {
            "" | "B" => 0,
            "K" => 10,
            "M" => 20,
            "G" => 30,
            _ => return Err(format!("{text}: a size is a number of bytes, or one with K, M or G")),
        };
        let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
        number.map(Size).ok_or_else(|| format!("{text}: a size is a number of bytes, or one with K, M or G"))
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Bytes(u64),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Bytes(bytes) => Ok(Size(bytes)),
            Written::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Config, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let config = Config::read(file.path()).map_err(|error| error.to_string())?;
        config.check().map_err(|error| error.to_string())?;
        Ok(config)
    }

    /// Checks that a whole file is read, and that what it leaves out has its default.
    #[test]
    fn a_whole_file_is_read() {
        let text = "frequency = 99\nstacks = \"frame-pointers\"\nmax_spool = \"10M\"\n\
                    [dataset]\nurl = \"s3://b/p\"\noptions = { aws_region = \"eu-west-1\" }\n\
                    [otlp]\nendpoint = \"http://localhost:4317\"\nprotocol = \"grpc\"\n";
        let config = read(text).unwrap();
        assert_eq!((config.frequency, config.interval_s), (99, 60));
        assert_eq!((config.stacks, config.max_spool), (Stacks::FramePointers, Size(10 << 20)));
        assert_eq!(config.dataset.unwrap().options["aws_region"], "eu-west-1");
        assert_eq!(config.otlp.unwrap().protocol, Protocol::Grpc);
    }

    /// Checks that each wrong file is refused with one line that names the key.
    #[test]
    fn wrong_files_are_refused_with_a_sentence() {
        let place = "[dataset]\nurl = \"x\"\n";
        for (text, word) in [
            ("frequency = 0\n", "frequency"),
            ("interval_s = 0\n", "interval_s"),
            ("health = \"0.0.0.0:80\"\n", "loopback"),
            ("health = \"here\"\n", "address"),
            ("colour = 1\n", "line 1: unknown field `colour`"),
            ("max_spool = \"many\"\n", "size"),
            ("frequency = \n", "line 1"),
        ] {
            let error = read(&format!("{text}{place}")).unwrap_err();
            assert!(error.contains(word) && !error.contains('\n'), "{error}");
        }
        assert!(read("").unwrap_err().contains("nowhere to write"));
    }
}
