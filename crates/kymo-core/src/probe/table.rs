//! From a key to its probe: chains that never change, by the key's hash.
//!
//! # Safety
//! The cells are read in sections of the registry's domain or by who holds its lock, and what they
//! held goes to the registry's retired things, which are released after a grace period.
#![allow(unsafe_code)]
use super::consumer::Consumer;
use super::key::Key;
use super::place::ProbeEntry;
use crate::epoch::{Published, Retired, Section};
use std::sync::Arc;

/// One probe of a chain. A chain is a persistent list: to insert is to put one in front, to erase
/// is to copy what is before it.
pub(super) struct Link<C> {
    pub(super) probe: Arc<ProbeEntry<C>>,
    key: Key,
    next: Option<Arc<Link<C>>>,
    #[cfg(test)]
    canary: super::canary::Canary,
}

impl<C> Link<C> {
    fn new(probe: Arc<ProbeEntry<C>>, next: Option<Arc<Link<C>>>) -> Arc<Link<C>> {
        Arc::new(Link {
            key: probe.key(),
            probe,
            next,
            #[cfg(test)]
            canary: Default::default(),
        })
    }
}

impl<C> Drop for Link<C> {
    fn drop(&mut self) {
        // Iteratively: a chain is short, but nobody promises it.
        let mut next = self.next.take();
        while let Some(link) = next {
            next = Arc::into_inner(link).and_then(|mut link| link.next.take());
        }
    }
}

#[cfg(test)]
impl<C> Link<C> {
    /// Poisons the links that would be freed with this one. (Those behind a shared one would stay.)
    pub(super) fn poison(link: &Arc<Link<C>>) {
        let mut link = Some(link);
        while let Some(here) = link.filter(|here| Arc::strong_count(here) == 1) {
            here.canary.poison();
            link = here.next.as_ref();
        }
    }
}

/// A power of two of chains. Bigger ones are new tables.
pub(super) struct Table<C> {
    shift: u32,
    chains: Box<[Published<Link<C>>]>,
    #[cfg(test)]
    canary: super::canary::Canary,
}

#[cfg(test)]
impl<C> Table<C> {
    pub(super) fn poison(&self) {
        self.canary.poison();
    }
}

/// The smallest table.
#[cfg(not(loom))]
const SMALLEST_BITS: u32 = 6;
#[cfg(loom)]
const SMALLEST_BITS: u32 = 1;

impl<C: Consumer> Table<C> {
    pub(super) fn new() -> Table<C> {
        Table::with_bits(SMALLEST_BITS)
    }

    fn with_bits(bits: u32) -> Table<C> {
        Table {
            shift: 64 - bits,
            chains: (0..1usize << bits).map(|_| Published::new(None)).collect(),
            #[cfg(test)]
            canary: Default::default(),
        }
    }

    #[inline]
    fn chain(&self, key: Key) -> &Published<Link<C>> {
        #[cfg(test)]
        self.canary.check();
        // The upper bits: those that depend on all of the key. Below `chains.len()` because the
        // shift leaves that many bits.
        &self.chains[(key.hash() >> self.shift) as usize]
    }

    /// The probe of a key, for a hit.
    ///
    /// # Safety
    /// The section is of the registry's domain.
    #[inline]
    pub(super) unsafe fn find<'s>(&self, key: Key, section: &'s Section<'_>) -> Option<&'s ProbeEntry<C>> {
        // SAFETY: the caller's promise.
        let mut link = unsafe { self.chain(key).load(section) };
        while let Some(here) = link {
            #[cfg(test)]
            here.canary.check();
            if here.key == key {
                return Some(&here.probe);
            }
            link = here.next.as_deref();
        }
        None
    }

    fn links<'w, W: ?Sized>(
        &self,
        chain: &Published<Link<C>>,
        writer: &'w W,
    ) -> impl Iterator<Item = &'w Link<C>>
    where
        C: 'w,
    {
        // SAFETY: the registry's lock is borrowed by who calls (`writer`), and only its holder
        // exchanges.
        let first = unsafe { chain.owned(writer) };
        std::iter::successors(first, |link| link.next.as_deref())
    }

    /// The probe of a key, for the holder of the registry's lock.
    pub(super) fn get<W: ?Sized>(&self, key: Key, writer: &W) -> Option<Arc<ProbeEntry<C>>> {
        self.links(self.chain(key), writer).find(|link| link.key == key).map(|link| Arc::clone(&link.probe))
    }

    /// All probes, in no order, for the holder of the registry's lock.
    pub(super) fn probes<W: ?Sized>(&self, writer: &W) -> Vec<Arc<ProbeEntry<C>>> {
        (self.chains.iter())
            .flat_map(|chain| self.links(chain, writer).map(|link| Arc::clone(&link.probe)))
            .collect()
    }

    /// Puts a probe in whose key is not there. By the holder of the registry's lock.
    pub(super) fn insert(&self, probe: Arc<ProbeEntry<C>>) -> Option<Retired<Link<C>>> {
        let chain = self.chain(probe.key());
        // SAFETY: the holder of the lock is the only one who exchanges.
        let next = unsafe { chain.share() };
        chain.exchange(Some(Link::new(probe, next)))
    }

    /// Takes the probe of a key out. By the holder of the registry's lock.
    pub(super) fn erase<W: ?Sized>(&self, key: Key, writer: &W) -> Option<Retired<Link<C>>> {
        let chain = self.chain(key);
        let before: Vec<_> = self.links(chain, writer).take_while(|link| link.key != key).collect();
        let found = self.links(chain, writer).nth(before.len())?;
        let mut rest = found.next.clone();
        for link in before.iter().rev() {
            rest = Some(Link::new(Arc::clone(&link.probe), rest));
        }
        chain.exchange(rest)
    }

    /// A table for this many probes with the same content, if this one is too small or much too
    /// big.
    pub(super) fn resized<W: ?Sized>(&self, probes: usize, writer: &W) -> Option<Table<C>> {
        let chains = self.chains.len();
        let fits = probes <= chains && (probes * 8 >= chains || chains == 1 << SMALLEST_BITS);
        if fits {
            return None;
        }
        // Half full at first, so that the next step is as many insertions or erasures away as there
        // are probes.
        let bits = (probes.max(1) * 2).next_power_of_two().trailing_zeros().clamp(SMALLEST_BITS, 40);
        let table = Table::with_bits(bits);
        for probe in self.probes(writer) {
            // Nobody has read the new table yet: nothing was there for anybody.
            if let Some(old) = table.insert(probe) {
                // SAFETY: the new table is this function's own, so the old head had no readers.
                drop(unsafe { old.release() });
            }
        }
        Some(table)
    }
}
