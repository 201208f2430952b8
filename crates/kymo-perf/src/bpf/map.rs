//! The maps that programs and recorder share, except the one of [`super::followed_bitmap`].
use super::program::{MISSED, SETTLED};
use super::sys::{self, MapFd, MapKind, SharedWords};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::Ordering;

/// How many entries are set in one call.
const BATCH: usize = 4096;

/// `FOLLOWED`: who is followed.
#[derive(Debug)]
pub(super) struct Followed {
    map: MapFd,
    entries: u32,
}

impl Followed {
    /// Memory grows with what is in it, except for the table (16 bytes an entry); or all is taken
    /// at once.
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
                // One by one from where it stopped: kernels before 5.6 know no batches, and one
                // that is full still takes keys that are in it.
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
        // When the key at hand is removed meanwhile, the kernel starts again, so the steps are
        // bounded.
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

const STATES: u32 = 2;

/// `STATE`: what the programs count, and what they wait for.
#[derive(Debug)]
pub(super) enum FollowState {
    /// In shared memory; the descriptor only until the programs are loaded.
    Shared(SharedWords, Option<MapFd>),
    /// Reached by system calls.
    Plain(MapFd),
}

impl FollowState {
    /// In shared memory if wanted and possible.
    pub(super) fn new(shared: bool) -> io::Result<FollowState> {
        let name = sys::name("kymo_state");
        match shared.then(|| sys::create_shared(STATES, name)) {
            Some(Ok((map, shared))) => Ok(FollowState::Shared(shared, Some(map))),
            _ => sys::create_map(MapKind::Array, STATES, name).map(FollowState::Plain),
        }
    }

    fn map(&self) -> Option<&MapFd> {
        match self {
            FollowState::Shared(_, map) => map.as_ref(),
            FollowState::Plain(map) => Some(map),
        }
    }

    /// For programs that are being loaded.
    pub(super) fn number(&self) -> i32 {
        self.map().map_or(-1, MapFd::number)
    }

    /// How many descriptors it keeps.
    pub(super) fn descriptors(&self) -> usize {
        self.map().is_some().into()
    }

    /// All programs are loaded.
    pub(super) fn loaded(&mut self) {
        if let FollowState::Shared(_, map) = self {
            *map = None;
        }
    }

    pub(super) fn missed(&self) -> io::Result<u64> {
        match self {
            // Relaxed: a statistic.
            FollowState::Shared(shared, _) => Ok(shared.words()[MISSED as usize].load(Ordering::Relaxed)),
            FollowState::Plain(map) => sys::lookup(map, MISSED),
        }
    }

    pub(super) fn settle(&self, settled: bool) -> io::Result<()> {
        match self {
            // SeqCst: stays on its side of the entries that are made before or behind it (I4).
            FollowState::Shared(shared, _) => {
                shared.words()[SETTLED as usize].store(settled.into(), Ordering::SeqCst);
                Ok(())
            }
            FollowState::Plain(map) => sys::update(map, SETTLED, settled.into()),
        }
    }
}
