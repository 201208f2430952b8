//! What the tracer knows of an agent's probes: where they count, and which were refused.
use super::ProtocolError;
use kymo_core::latency::{self, Latencies};
use kymo_core::probe::wire::{Bucket, ProbeSlots};
use std::collections::{BTreeMap, HashMap};

/// Where a probe counts, and what there was before.
#[derive(Debug)]
pub(super) struct PlacedProbe {
    pub(super) placed: ProbeSlots,
    pub(super) times_before: Vec<Bucket>,
}

/// What the agent said besides its answers.
#[derive(Debug, Default)]
pub(super) struct AgentState {
    pub(super) places: BTreeMap<u32, PlacedProbe>,
    /// Not told to anybody yet.
    pub(super) refused: Vec<(u32, String)>,
    /// All that were ever added, and whether they were refused.
    pub(super) added: HashMap<u32, bool>,
    /// It has answered something that nobody asked: nothing that it answers from then on can be
    /// told apart.
    pub(super) has_answered_unasked: bool,
}

impl AgentState {
    /// Each is refused once; only for a probe that there is.
    pub(super) fn refuse(&mut self, id: u32, reason: String) -> Result<(), ProtocolError> {
        let refused = self.added.get_mut(&id).ok_or(ProtocolError::Unexpected)?;
        if !std::mem::replace(refused, true) {
            self.refused.push((id, reason));
        }
        Ok(())
    }

    pub(super) fn place(&mut self, placed: ProbeSlots) -> Result<(), ProtocolError> {
        if !self.added.contains_key(&placed.id) {
            return Err(ProtocolError::Unexpected);
        }
        self.places.insert(placed.id, PlacedProbe { placed, times_before: Vec::new() });
        Ok(())
    }
}

impl PlacedProbe {
    /// Its calls since it was armed, by what their slots hold now.
    pub(super) fn latencies(&self, now: impl Fn(u32) -> u64) -> Latencies {
        let mut latencies = Latencies::default();
        for bucket in latency::USED {
            latencies.add_bucket(bucket, self.since(bucket, &now));
        }
        latencies
    }

    /// What came into a slot of its times since it was armed.
    pub(super) fn since(&self, slot: u32, now: impl Fn(u32) -> u64) -> u64 {
        let before = self.times_before.iter().find(|before| before.number == slot);
        now(slot).wrapping_sub(before.map_or(0, |before| before.calls))
    }
}
