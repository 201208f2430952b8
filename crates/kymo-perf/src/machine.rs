//! The roots of /proc, /sys and tracefs that describe a machine.
//!
//! Everything that reads those trees gets its paths from here, so that a test can put a made-up
//! machine in a temporary folder. A real one is [`Machine::here`].

use crate::pmu::{self, Pmu};
use crate::tracefs::Tracefs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The places that describe a machine, and what was read from them so far.
#[derive(Debug)]
pub struct Machine {
    proc: PathBuf,
    sys: PathBuf,
    tracefs: Tracefs,
    pmus: OnceLock<Vec<Pmu>>,
}

impl Machine {
    /// The machine this program runs on.
    pub fn here() -> Self {
        Self::with_roots("/proc".into(), "/sys".into(), Tracefs::here())
    }

    /// A machine described by the folders `proc`, `sys` and `sys/kernel/tracing` below `root`.
    pub fn at(root: &Path) -> Self {
        Self::with_roots(root.join("proc"), root.join("sys"), Tracefs::at(root.join("sys/kernel/tracing")))
    }

    /// A machine whose parts lie in different places.
    pub(crate) fn with_roots(proc: PathBuf, sys: PathBuf, tracefs: Tracefs) -> Self {
        Self { proc, sys, tracefs, pmus: OnceLock::new() }
    }

    /// The root of procfs.
    pub(crate) fn proc(&self) -> &Path {
        &self.proc
    }

    /// The root of sysfs.
    pub(crate) fn sys(&self) -> &Path {
        &self.sys
    }

    /// The tracepoints' file system.
    pub fn tracefs(&self) -> &Tracefs {
        &self.tracefs
    }

    /// The PMUs that the kernel lists, by name; read once. Empty if sysfs cannot be read.
    pub fn pmus(&self) -> &[Pmu] {
        self.pmus.get_or_init(|| pmu::read_all(&self.sys))
    }

    /// The PMU of that name.
    pub(crate) fn pmu(&self, name: &str) -> Option<&Pmu> {
        self.pmus().iter().find(|pmu| pmu.name == name)
    }

    /// The PMUs of the CPU cores: one named `cpu`, or several on a hybrid machine or on Arm; none
    /// in many VMs.
    pub fn core_pmus(&self) -> impl Iterator<Item = &Pmu> {
        self.pmus().iter().filter(|pmu| pmu.is_core())
    }

    /// Whether hardware events such as `cycles` can be counted here.
    pub(crate) fn has_hardware_pmu(&self) -> bool {
        self.core_pmus().next().is_some()
    }
}

/// A made-up machine for tests: files by path, each with its text.
#[cfg(test)]
pub(crate) fn made_up(files: &[(&str, &str)]) -> (tempfile::TempDir, Machine) {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let machine = Machine::at(dir.path());
    (dir, machine)
}
