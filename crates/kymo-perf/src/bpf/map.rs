//! The two maps that the programs and we share.
use super::program::{MISSED, SETTLED};
use super::sys::{self, MapFd, MapKind};
use std::collections::BTreeMap;
use std::io;

/// How many entries are set in one call.
const BATCH: usize = 4096;

/// `FOLLOWED`: who is followed.
#[derive(Debug)]
pub(super) struct Followed {
    map: MapFd,
    entries: u32,
}

impl Followed {
    /// Memory grows with what is in it, except for the table (16 bytes an entry); or all is taken at once.
    pub(super) fn new(entries: u32, preallocate: bool) -> io::Result<Followed> {
        let kind = if preallocate { MapKind::FullHash } else { MapKind::Hash };
        Ok(Followed { map: sys::create_map(kind, entries, sys::name("kymo_followed"))?, entries })
    }

    pub(super) fn number(&self) -> i32 {
        self.map.number()
    }

    /// Enters all keys with one value; how many did not fit.
    ///
    /// # Errors
    /// Any other refusal than that of a full map.
    pub(super) fn enter(&self, keys: &[u32], value: u64) -> io::Result<u64> {
        let mut missed = 0;
        for keys in keys.chunks(BATCH) {
            match sys::update_batch(&self.map, keys, &vec![value; keys.len()]) {
                Ok(()) => {}
                // One by one from where it stopped: kernels before 5.6 know no batches, and one that is full still takes keys that are in it.
                Err((done, _)) => missed += self.enter_each(&keys[done as usize..], value)?,
            }
        }
        Ok(missed)
    }

    fn enter_each(&self, keys: &[u32], value: u64) -> io::Result<u64> {
        let mut missed = 0;
        for &key in keys {
            match sys::update(&self.map, key, value) {
                Ok(()) => {}
                Err(error) if matches!(error.raw_os_error(), Some(libc::E2BIG | libc::ENOMEM)) => missed += 1,
                Err(error) => return Err(error),
            }
        }
        Ok(missed)
    }

    /// What is in it, by key. Entries that come and go meanwhile may or may not be among them.
    pub(super) fn contents(&self) -> io::Result<BTreeMap<u32, u64>> {
        let mut found = BTreeMap::new();
        let mut key = None;
        // When the key at hand is removed meanwhile, the kernel starts again, so the steps are bounded.
        for _ in 0..2 * u64::from(self.entries) {
            let next = match sys::next_key(&self.map, key) {
                Ok(next) => next,
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => break,
                Err(error) => return Err(error),
            };
            if let Ok(value) = sys::lookup(&self.map, next) {
                found.insert(next, value);
            }
            key = Some(next);
        }
        Ok(found)
    }
}

/// `STATE`: what the programs count, and what they wait for.
#[derive(Debug)]
pub(super) struct State(MapFd);

impl State {
    pub(super) fn new() -> io::Result<State> {
        Ok(State(sys::create_map(MapKind::Array, 2, sys::name("kymo_state"))?))
    }

    pub(super) fn number(&self) -> i32 {
        self.0.number()
    }

    pub(super) fn missed(&self) -> io::Result<u64> {
        sys::lookup(&self.0, MISSED)
    }

    pub(super) fn settle(&self, settled: bool) -> io::Result<()> {
        sys::update(&self.0, SETTLED, settled.into())
    }
}
