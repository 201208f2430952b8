//! Arms the sites that a consumer accepts, as far as they are mapped, and disarms the others.
use super::consumer::Consumer;
use super::key::{Key, ModuleId};
use super::place::ProbeEntry;
use super::registry::{Registry, WriterState};
use super::sites::Sites;
use crate::epoch::Fence;
use crate::sync::{MutexGuard, Ordering};
use std::sync::Arc;

impl<C: Consumer, S: Sites, F: Fence> Registry<C, S, F> {
    /// Asks the consumers of a probe again whether they accept, and arms or disarms.
    ///
    /// # Errors
    /// Why the site could not be armed. Consumers stay registered.
    pub fn apply(&self, key: Key) -> Result<(), S::Refusal> {
        let mut state = self.lock();
        self.disarm_unwanted(&mut state, &[key]);
        match self.arm(&mut state, vec![key]).pop() {
            Some((_, reason)) => Err(reason),
            None => Ok(()),
        }
    }

    /// Does what hits asked for: disarms the sites whose consumers all answered
    /// [`Verdict::Remove`](super::Verdict::Remove), if none accepts any more. To be called now and
    /// then by a thread that can change sites. Costs one load when nothing was asked.
    pub fn settle(&self) {
        // Relaxed: a wish that is missed now is found at the next call; what it is about is read
        // under the lock.
        if !self.removals.load(Ordering::Relaxed) || !self.removals.swap(false, Ordering::Relaxed) {
            return;
        }
        let mut state = self.lock();
        let probes = self.table(&state).probes(&*state);
        let asked: Vec<Key> =
            probes.iter().filter(|probe| probe.take_removal()).map(|probe| probe.key()).collect();
        self.disarm_unwanted(&mut state, &asked);
    }

    /// A module is mapped: arms the probes in it. Gives those that could not be, with the reason;
    /// they stay registered.
    pub fn mapped(&self, module: ModuleId) -> Vec<(Key, S::Refusal)> {
        let mut state = self.lock();
        let keys = self.keys_of(&state, module);
        self.arm(&mut state, keys)
    }

    /// A module is mapped no longer: nothing in it is armed. Nothing is restored either.
    pub fn unmapped(&self, module: ModuleId) {
        let state = self.lock();
        for probe in self.table(&state).probes(&*state) {
            if probe.key().module == module {
                probe.set_armed(false);
            }
        }
    }

    /// The keys whose sites are armed, in order.
    pub fn armed(&self) -> Vec<Key> {
        let state = self.lock();
        let probes = self.table(&state).probes(&*state);
        let mut keys: Vec<_> =
            probes.iter().filter(|probe| probe.is_armed()).map(|probe| probe.key()).collect();
        keys.sort_unstable();
        keys
    }

    fn keys_of(&self, state: &MutexGuard<'_, WriterState<C, S>>, module: ModuleId) -> Vec<Key> {
        let probes = self.table(state).probes(&**state);
        probes.iter().map(|probe| probe.key()).filter(|key| key.module == module).collect()
    }

    fn select(
        &self,
        state: &MutexGuard<'_, WriterState<C, S>>,
        keys: &[Key],
        which: impl Fn(&ProbeEntry<C>) -> bool,
    ) -> Vec<Arc<ProbeEntry<C>>> {
        let table = self.table(state);
        keys.iter().filter_map(|key| table.get(*key, &**state)).filter(|probe| which(probe)).collect()
    }

    /// Arms those of the probes that are wanted and not armed. Gives those that cannot be.
    pub(super) fn arm(
        &self,
        state: &mut MutexGuard<'_, WriterState<C, S>>,
        mut keys: Vec<Key>,
    ) -> Vec<(Key, S::Refusal)> {
        keys.sort_unstable();
        keys.dedup();
        let mut refused = Vec::new();
        let mut probes = self.select(state, &keys, |probe| {
            !probe.is_armed() && !probe.is_broken() && probe.is_wanted(&**state)
        });
        // The semaphore first: the program may look at it and skip the site.
        probes.retain(|probe| match self.signal(state, probe, 1) {
            Ok(()) => true,
            Err(reason) => {
                refused.push((probe.key(), reason));
                false
            }
        });
        if probes.is_empty() {
            return refused;
        }
        let keys: Vec<Key> = probes.iter().map(|probe| probe.key()).collect();
        let answers = state.sites.arm(&keys);
        assert_eq!(answers.len(), keys.len(), "one answer per site");
        for (probe, answer) in probes.iter().zip(answers) {
            match answer {
                Ok(true) => probe.set_armed(true),
                answer => {
                    // What was counted for this site is taken back. That it fails now would be odd,
                    // and there is nobody to tell.
                    _ = self.signal(state, probe, -1);
                    refused.extend(answer.err().map(|reason| (probe.key(), reason)));
                }
            }
        }
        refused
    }

    /// Disarms those of the probes that are armed and not wanted.
    pub(super) fn disarm_unwanted(&self, state: &mut MutexGuard<'_, WriterState<C, S>>, keys: &[Key]) {
        let probes = self.select(state, keys, |probe| probe.is_armed() && !probe.is_wanted(&**state));
        if probes.is_empty() {
            return;
        }
        let keys: Vec<Key> = probes.iter().map(|probe| probe.key()).collect();
        let answers = state.sites.disarm(&keys);
        assert_eq!(answers.len(), keys.len(), "one answer per site");
        for (probe, answer) in probes.iter().zip(answers) {
            probe.set_armed(false);
            if answer.is_err() {
                probe.set_broken();
            } else {
                _ = self.signal(state, probe, -1);
            }
        }
    }

    fn signal(
        &self,
        state: &mut MutexGuard<'_, WriterState<C, S>>,
        probe: &ProbeEntry<C>,
        by: i16,
    ) -> Result<(), S::Refusal> {
        let target = probe.target();
        target.semaphore.map_or(Ok(()), |offset| state.sites.semaphore(target.key.module, offset, by))
    }
}
