//! `kymo bench probe`: what a hit of a probe costs, and how that grows with the CPUs that hit it.

#[cfg(target_arch = "x86_64")]
mod attach;
mod registry;
#[cfg(target_arch = "x86_64")]
mod trigger;

use std::process::ExitCode;

use clap::Subcommand;

/// Benchmarks of this collection.
#[derive(Debug, Subcommand)]
pub(crate) enum Probe {
    #[cfg(target_arch = "x86_64")]
    Attach(Box<attach::AttachArgs>),
    Registry(Box<registry::RegistryArgs>),
    #[cfg(target_arch = "x86_64")]
    Trigger(Box<trigger::TriggerArgs>),
}

/// Runs the benchmark.
pub(crate) fn run(benchmark: &Probe) -> anyhow::Result<ExitCode> {
    match benchmark {
        #[cfg(target_arch = "x86_64")]
        Probe::Attach(args) => attach::run(args),
        Probe::Registry(args) => registry::run(args),
        #[cfg(target_arch = "x86_64")]
        Probe::Trigger(args) => trigger::run(args),
    }
}
