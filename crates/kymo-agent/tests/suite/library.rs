//! A shared library that a test compiles, loads, and probes.
#![allow(unsafe_code)]
use super::compiled::compile;
use super::loaded::Loaded;
use kymo_agent::patch::{
    Consumers, OwnMemory, Probe, Refusal, Site, Surroundings, attach, detach, plan, plan_inside,
};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One test at a time has probes in this process.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A library in this process, whose test is [`alone`]. It stays loaded unless it is unloaded.
pub(crate) struct Library {
    loaded: Loaded,
    /// Has the file, which is removed with it.
    _folder: tempfile::TempDir,
    alone: MutexGuard<'static, ()>,
}

impl Library {
    /// Compiles a file of `tests/c` and loads it; `None`, loudly, without a compiler.
    pub(crate) fn of(test: &str, source: &str, options: &[&str]) -> Option<Library> {
        let alone = alone();
        let (folder, file) = Library::compile(test, source, options)?;
        Some(Library { loaded: Loaded::load(&file), _folder: folder, alone })
    }

    fn compile(test: &str, source: &str, options: &[&str]) -> Option<(tempfile::TempDir, PathBuf)> {
        let shared = ["-g0", "-fPIC", "-shared", "-fno-stack-protector", "-fno-inline"];
        compile(test, source, &[&shared, options].concat())
    }

    /// Compiles a file of `tests/c`, and loads and unloads it so often.
    pub(crate) fn comes_and_goes(test: &str, source: &str, options: &[&str], times: usize) {
        let Some((_folder, file)) = Library::compile(test, source, options) else { return };
        for _ in 0..times {
            Loaded::load(&file).unload();
        }
    }

    pub(crate) fn plan(&self, name: &str) -> Result<Site, Refusal> {
        let own = OwnMemory::open().expect("/proc");
        plan(&own, &self.loaded.functions[name], &Surroundings::default())
    }

    /// A plan for an instruction inside a function.
    pub(crate) fn plan_inside(&self, name: &str, offset: u64) -> Result<Site, Refusal> {
        let own = OwnMemory::open().expect("/proc");
        let function = &self.loaded.functions[name];
        plan_inside(&own, function, function.start.wrapping_add(offset), &Surroundings::default())
    }

    /// The function as one that C could call, with one number or two.
    pub(crate) fn function(&self, name: &str) -> extern "C" fn(u64, u64) -> u32 {
        let address = self.loaded.functions[name].start as usize;
        // SAFETY: all functions of these libraries that tests call take numbers and return one.
        unsafe { std::mem::transmute(address) }
    }

    /// Probes at the begins of functions.
    pub(crate) fn put(&self, names: &[&str], consumers: Consumers) -> Vec<Probe> {
        let plan = |name: &&str| self.plan(name).unwrap_or_else(|why| panic!("{name}: {why}"));
        let sites: Vec<_> = names.iter().map(plan).collect();
        attach(&sites, consumers).unwrap_or_else(|why| panic!("{why}"))
    }

    /// Calls a function that returns its first argument plus one.
    pub(crate) fn adds_one(&self, name: &str, all: std::ops::Range<u64>, second: impl Fn(u64) -> u64) {
        all.for_each(|n| assert_eq!(self.function(name)(n, second(n)), n as u32 + 1, "{name} {n}"));
    }

    /// Takes all of its probes away.
    pub(crate) fn take(&self, probes: &[Probe]) {
        detach(probes).expect("detached");
        self.assert_untouched();
    }

    /// Takes it out of the process. Nobody may be in it.
    pub(crate) fn unload(self) -> MutexGuard<'static, ()> {
        self.loaded.unload();
        self.alone
    }

    pub(crate) fn assert_untouched(&self) {
        self.loaded.assert_untouched();
    }
}

/// `calls_back` of `returns.cc`, through which panics pass.
pub(crate) fn calls_back(
    address: usize,
) -> extern "C-unwind" fn(extern "C-unwind" fn(i32) -> i32, i32) -> i32 {
    // SAFETY: its declaration there.
    unsafe { std::mem::transmute(address) }
}
