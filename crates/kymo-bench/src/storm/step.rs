//! One try: the load bare, then the same load recorded, and what the recording's own file says was kept and lost.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, bail};
use kymo_profile::loss;

use super::child;
use super::load::{self, Done};
use super::search::Pace;

/// What a try may take longer than its load: to start, to write what is left, to end.
const STARTUP_ALLOWANCE: Duration = Duration::from_secs(20);

/// What is recorded of each context switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    /// Bytes of user stack; 0: none, and no call chain either.
    pub(super) stack_bytes: u32,
    /// The bytes are kept, instead of unwound while recording.
    pub(super) raw: bool,
}

impl Kind {
    /// The word for it in tables.
    pub(super) fn kept(self) -> &'static str {
        match self {
            Kind { stack_bytes: 0, .. } => "no stack",
            Kind { raw: true, .. } => "raw",
            Kind { raw: false, .. } => "reduced",
        }
    }

    /// The options of `record` that make such records.
    fn arguments(self) -> Vec<String> {
        let mut arguments = vec!["--no-call-graph".to_owned()];
        if self.stack_bytes > 0 {
            arguments = vec!["--call-graph".into(), format!("dwarf,{}", self.stack_bytes)];
        }
        if self.raw {
            arguments.push("--raw-stacks".into());
        }
        arguments
    }
}

/// What a try came to.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) kind: Kind,
    pub(super) pace: Pace,
    pub(super) cpus: usize,
    pub(super) bare: Done,
    pub(super) recorded: Done,
    pub(super) samples: u64,
    pub(super) lost: u64,
    /// Bytes of the samples as they are in the file, on average.
    pub(super) record_bytes: f64,
    pub(super) file_bytes: u64,
}

impl Step {
    fn per_cpu_and_second(&self, count: u64) -> f64 {
        count as f64 * 1e9 / self.recorded.elapsed_ns.max(1) as f64 / self.cpus.max(1) as f64
    }

    /// Samples that are in the file, per second and CPU.
    pub(super) fn kept_rate(&self) -> f64 {
        self.per_cpu_and_second(self.samples)
    }

    /// Samples that the kernel made, per second and CPU.
    pub(super) fn produced_rate(&self) -> f64 {
        self.per_cpu_and_second(self.samples + self.lost)
    }

    /// How much longer an operation of the load took while it was recorded.
    pub(super) fn slowdown(&self) -> f64 {
        self.recorded.operation_us() / self.bare.operation_us().max(f64::MIN_POSITIVE)
    }

    /// Context switches of the load that are neither samples nor counted as lost. There should be none.
    pub(super) fn unaccounted(&self) -> u64 {
        self.recorded.switches.saturating_sub(self.samples + self.lost)
    }
}

/// Runs loads and recorders.
pub(super) struct Runner<'a> {
    pub(super) kymo: PathBuf,
    pub(super) cpus: Vec<u32>,
    /// Where recordings go, each removed before the next one begins.
    pub(super) folder: &'a Path,
    pub(super) length: Duration,
    pub(super) interrupted: &'a AtomicBool,
}

impl Runner<'_> {
    /// The load bare, then recorded.
    pub(super) fn step(&self, kind: Kind, pace: Pace) -> anyhow::Result<Step> {
        let bare = self.bare(kind, pace)?;
        self.recorded(kind, pace, self.length, bare)
    }

    /// Bytes that the kernel writes into a ring for each sample of this kind.
    pub(super) fn ring_bytes(&self, kind: Kind) -> anyhow::Result<f64> {
        const RATE: u64 = 1000;
        let kind = Kind { raw: kind.stack_bytes > 0, ..kind };
        let length = Duration::from_millis(100).min(self.length);
        Ok(self.recorded(kind, Pace::PerCpu(RATE), length, Done::default())?.record_bytes)
    }

    fn load(&self, kind: Kind, pace: Pace, length: Duration) -> Vec<String> {
        load::arguments(&self.cpus, pace, length, kind.stack_bytes)
    }

    fn bare(&self, kind: Kind, pace: Pace) -> anyhow::Result<Done> {
        let mut command = Command::new(&self.kymo);
        command.args(self.load(kind, pace, self.length));
        let ended = child::run(&mut command, "the load", self.length + STARTUP_ALLOWANCE, self.interrupted)?;
        if !ended.status.success() {
            bail!("the load ended with {}: {}", ended.status, ended.stderr.trim());
        }
        Done::parse(&ended.stdout)
    }

    fn recorded(&self, kind: Kind, pace: Pace, length: Duration, bare: Done) -> anyhow::Result<Step> {
        let file = self.folder.join("storm.data");
        let mut command = Command::new(&self.kymo);
        command.args(["record", "-B", "-e", "context-switches", "-c", "1", "-o"]).arg(&file);
        command.args(kind.arguments()).arg("--").arg(&self.kymo).args(self.load(kind, pace, length));
        let ended = child::run(&mut command, "the recording", length + STARTUP_ALLOWANCE, self.interrupted)?;
        if !ended.status.success() {
            bail!("the recording ended with {}:\n{}", ended.status, ended.stderr.trim());
        }
        let recorded = Done::parse(&ended.stdout)?;
        let judged = loss::scan(&kymo_cli::open::recording(&file)?, 0, &|_, _| {})
            .with_context(|| format!("failed to read {}", file.display()))?;
        let (samples, lost) = (judged.samples(), judged.lost());
        if samples + lost == 0 {
            bail!(
                "no context switch was recorded; recording them needs root or kernel.perf_event_paranoid of at most 1, see `kymo doctor`"
            );
        }
        let bytes: u64 = judged.rings.iter().map(|ring| ring.bytes).sum();
        let file_bytes = std::fs::metadata(&file).map_or(0, |data| data.len());
        std::fs::remove_file(&file).with_context(|| format!("failed to remove {}", file.display()))?;
        let record_bytes = bytes as f64 / samples.max(1) as f64;
        let cpus = self.cpus.len();
        Ok(Step { kind, pace, cpus, bare, recorded, samples, lost, record_bytes, file_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::{Done, Kind, Pace, Step};

    /// Checks the figures of a try against ones worked out by hand: 2 CPUs, half a second, 900 kept and 100 lost.
    #[test]
    fn by_hand() {
        let step = Step {
            kind: Kind { stack_bytes: 8192, raw: false },
            pace: Pace::Free,
            cpus: 2,
            bare: Done { operations: 100, switches: 200, elapsed_ns: 1, busy_ns: 200_000 },
            recorded: Done { operations: 500, switches: 1003, elapsed_ns: 500_000_000, busy_ns: 3_000_000 },
            samples: 900,
            lost: 100,
            record_bytes: 1.0,
            file_bytes: 1,
        };
        assert!((step.kept_rate() - 900.0).abs() < 1e-9);
        assert!((step.produced_rate() - 1000.0).abs() < 1e-9);
        assert!((step.slowdown() - 3.0).abs() < 1e-9);
        assert_eq!(step.unaccounted(), 3);
    }
}
