//! The command line.
use crate::config::{Config, ConfigError, DatasetConfig, OtlpConfig, Protocol, Stacks};
use clap::Parser;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Profile this machine all the time: sample all CPUs, add up each minute, and write Parquet files
/// or push OTLP profiles
#[derive(Debug, Parser)]
#[command(name = "kymo-daemon", version, max_term_width = 100)]
pub(crate) struct Args {
    /// Read settings from this TOML file; options of the command line go before it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Sample so many times per second on each CPU [default: 19]
    #[arg(short = 'F', long, value_name = "HZ")]
    frequency: Option<u64>,
    /// Record stacks by unwind data, along frame pointers, or not at all [default: unwound]
    #[arg(long, value_enum, value_name = "HOW")]
    stacks: Option<Stacks>,
    /// Record the time that threads are off the CPU, too
    #[arg(long)]
    off_cpu: bool,
    /// Add up samples for so many seconds [default: 60]
    #[arg(long, value_name = "SECONDS")]
    interval: Option<u64>,
    /// Write Parquet files here: a folder, s3://BUCKET/PREFIX, gs://..., or az://...
    #[arg(long, value_name = "URL")]
    dataset: Option<String>,
    /// Push profiles to this OpenTelemetry Collector: http://HOST:4318
    #[arg(long, value_name = "URL")]
    otlp: Option<String>,
    /// Push by gRPC (usually port 4317) in place of HTTP
    #[arg(long)]
    grpc: bool,
    /// Keep what is not sent yet in this folder [default: /var/lib/kymo]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Answer GET / on this address of loopback with the state as JSON
    #[arg(long, value_name = "ADDRESS")]
    health: Option<String>,
    /// Say what would be recorded and where it would go, check the rights, and end
    #[arg(long)]
    pub(crate) dry_run: bool,
}

impl Args {
    /// The configuration, judged.
    ///
    /// # Errors
    /// [`ConfigError`]
    pub(crate) fn config(&self) -> Result<Config, ConfigError> {
        let mut config = self.config.as_deref().map(Config::read).transpose()?.unwrap_or_default();
        config.frequency = self.frequency.unwrap_or(config.frequency);
        config.stacks = self.stacks.unwrap_or(config.stacks);
        config.off_cpu |= self.off_cpu;
        config.interval_s = self.interval.unwrap_or(config.interval_s);
        if let Some(url) = &self.dataset {
            let known = config.dataset.take();
            let known = known.unwrap_or(DatasetConfig {
                url: String::new(),
                timeout_s: 60,
                options: BTreeMap::new(),
            });
            config.dataset = Some(DatasetConfig { url: url.clone(), ..known });
        }
        if let Some(endpoint) = &self.otlp {
            let known = config.otlp.take().unwrap_or(OtlpConfig {
                endpoint: String::new(),
                protocol: Protocol::Http,
                headers: BTreeMap::new(),
                ca_file: PathBuf::new(),
                timeout_s: 10,
            });
            config.otlp = Some(OtlpConfig { endpoint: endpoint.clone(), ..known });
        }
        if self.grpc {
            let otlp = config.otlp.as_mut();
            otlp.ok_or_else(|| {
                ConfigError::Value("--grpc: there is no collector, name one with --otlp".into())
            })?
            .protocol = Protocol::Grpc;
        }
        if let Some(state) = &self.state {
            config.state.clone_from(state);
        }
        if let Some(health) = &self.health {
            config.health.clone_from(health);
        }
        config.check()?;
        Ok(config)
    }
}
