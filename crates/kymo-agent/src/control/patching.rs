//! Probes by patches (`crate::patch`).
use super::engine::RingsFile;
use super::engine::{Asked, Done, Probing};
use super::maps::Maps;
use crate::patch::{
    self, Clock, Consumers, Function, Look, Only, OwnMemory, PatchError, Probe, Rings, Site, Surroundings,
};
use kymo_core::probe::wire::{Count, How, Listed, Span, State, What};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Instant;

/// One probe of the conversation.
#[derive(Debug)]
enum Kept {
    Armed { probe: Probe, semaphore: Option<u64> },
    Waiting,
    Refused(String),
}

/// All probes of the conversation, by the tracer's numbers.
#[derive(Debug, Default)]
pub(super) struct Patching {
    kept: BTreeMap<u32, Kept>,
    /// Where the jumps of a module's code lead, by its first address. Good for one batch: modules come and go.
    targets: BTreeMap<u64, Vec<u64>>,
    /// Where events go, once somebody has asked for it.
    rings: Option<&'static Rings>,
}

/// A site that is to be armed.
struct Planned {
    id: u32,
    site: Site,
    semaphore: Option<u64>,
    consumers: Consumers,
}

/// Adds to a 16-bit count in the program's data. Not in one step: two tracers of one semaphore at the same moment could lose one.
fn signal(at: u64, by: i16) -> std::io::Result<()> {
    let memory = File::options().read(true).write(true).open("/proc/self/mem")?;
    let mut count = [0; 2];
    memory.read_exact_at(&mut count, at)?;
    memory.write_all_at(&u16::from_le_bytes(count).wrapping_add_signed(by).to_le_bytes(), at)
}

impl Patching {
    fn plan(&mut self, asked: &Asked, maps: &Maps, memory: &OwnMemory) -> Result<Option<Planned>, String> {
        let wanted = &asked.wanted;
        let consumers = match wanted.what {
            What::Count => self.some(Look::Count, Consumers::Count, asked),
            What::Latency => self.some(Look::Latency, Consumers::Latency, asked),
            What::Record | What::RecordReturn => {
                let (Some(rings), Some(how)) = (self.rings, &asked.how) else {
                    return Err("nobody has asked for rings, or said which event".to_owned());
                };
                let record = rings.record(0).how(How::clone(how));
                Consumers::Record(if wanted.what == What::RecordReturn { record.returning() } else { record })
            }
            _ => return Err("the agent cannot do that".to_owned()),
        };
        if consumers.is_beyond() {
            return Err("the agent does not look at memory for that".to_owned());
        }
        let Some(code) = maps.code(&asked.module, wanted.offset) else { return Ok(None) };
        let start = code.start + (wanted.offset - code.offset);
        let targets = self.targets.entry(code.start);
        let targets =
            targets.or_insert_with(|| patch::jump_targets(memory, code.start, code.end - code.start));
        let semaphore = match wanted.semaphore {
            0 => None,
            offset => Some(maps.address(&asked.module, offset, false).ok_or("its semaphore is not mapped")?),
        };
        let next = start + u64::from(wanted.room_bytes.max(wanted.size_bytes));
        let function = Function { start, bytes: u64::from(wanted.size_bytes), next };
        let site = patch::plan(memory, &function, &Surroundings { targets })
            .map_err(|refusal| refusal.to_string())?;
        Ok(Some(Planned { id: wanted.id, site, semaphore, consumers }))
    }

    fn some(&self, look: Look, all: Consumers, asked: &Asked) -> Consumers {
        match &asked.how {
            Some(how) if **how != How::default() => Consumers::Only(Only::new(look, How::clone(how))),
            _ => all,
        }
    }

    /// Arms what can be, all that do the same together.
    fn arm_all(&mut self, planned: Vec<Planned>, done: &mut Done) {
        let mut groups: Vec<(Consumers, Vec<Planned>)> = Vec::new();
        let mut places: HashMap<Consumers, usize> = HashMap::new();
        for planned in planned {
            let place = *places.entry(planned.consumers).or_insert(groups.len());
            if place == groups.len() {
                groups.push((planned.consumers, Vec::new()));
            }
            groups[place].1.push(planned);
        }
        for (consumers, planned) in groups {
            self.arm(planned, consumers, done);
        }
    }

    /// Arms what can be. A site that stands against a batch is taken out of it, and the rest is tried again.
    fn arm(&mut self, mut planned: Vec<Planned>, consumers: Consumers, done: &mut Done) {
        while !planned.is_empty() {
            let sites: Vec<Site> = planned.iter().map(|planned| planned.site.clone()).collect();
            let since = Instant::now();
            match patch::attach(&sites, consumers) {
                Ok(probes) => {
                    done.stopped_ns += since.elapsed().as_nanos() as u64;
                    for (planned, probe) in planned.into_iter().zip(probes) {
                        let semaphore = planned.semaphore.filter(|at| signal(*at, 1).is_ok());
                        self.kept.insert(planned.id, Kept::Armed { probe, semaphore });
                    }
                    return;
                }
                Err(error) => {
                    let reason = error.to_string();
                    let at = match error {
                        PatchError::Refused { at, .. }
                        | PatchError::Changed { at }
                        | PatchError::Taken { at } => Some(at),
                        _ => None,
                    };
                    // Of two at one place the later one goes; of what stands against all, all go.
                    let out =
                        at.and_then(|at| planned.iter().rposition(|planned| planned.site.address == at));
                    let refused = match out {
                        Some(out) => vec![planned.remove(out)],
                        None => std::mem::take(&mut planned),
                    };
                    for planned in refused {
                        self.refuse(planned.id, reason.clone(), done);
                    }
                }
            }
        }
    }

    fn refuse(&mut self, id: u32, reason: String, done: &mut Done) {
        done.refused.push((id, reason.clone()));
        self.kept.insert(id, Kept::Refused(reason));
    }

    fn disarm(&mut self, ids: &[u32]) {
        let mut probes = Vec::new();
        for id in ids {
            if let Some(Kept::Armed { probe, semaphore }) = self.kept.remove(id) {
                if let Some(at) = semaphore {
                    // Where it cannot be lowered its module is gone.
                    _ = signal(at, -1);
                }
                probes.push(probe);
            }
        }
        // Each attempt waits for threads that block traps; one that does so for half a minute keeps patches that count for nobody, which
        // harms nothing. Of sites that others changed since, nothing better is to be done than leave them.
        const ATTEMPTS: usize = 15;
        for _ in 0..ATTEMPTS {
            if probes.is_empty() || !matches!(patch::detach(&probes), Err(PatchError::BlocksTraps { .. })) {
                break;
            }
        }
        if self.armed() == 0 {
            patch::leave();
        }
    }

    fn armed(&self) -> u32 {
        self.kept.values().filter(|kept| matches!(kept, Kept::Armed { .. })).count() as u32
    }
}

impl Probing for Patching {
    fn change(&mut self, remove: &[u32], add: Vec<Asked>) -> Done {
        self.disarm(remove);
        let mut done = Done::default();
        match (Maps::read(), OwnMemory::open()) {
            (Ok(maps), Ok(memory)) => {
                let mut planned = Vec::new();
                for asked in &add {
                    match self.plan(asked, &maps, &memory) {
                        Ok(Some(plan)) => planned.push(plan),
                        Ok(None) => _ = self.kept.insert(asked.wanted.id, Kept::Waiting),
                        Err(reason) => self.refuse(asked.wanted.id, reason, &mut done),
                    }
                }
                self.targets.clear();
                self.arm_all(planned, &mut done);
            }
            (Err(error), _) | (_, Err(error)) => {
                for asked in &add {
                    self.refuse(asked.wanted.id, format!("/proc/self cannot be read: {error}"), &mut done);
                }
            }
        }
        done.armed = self.armed();
        done
    }

    fn counts(&self) -> Vec<Count> {
        let of = |(id, kept): (&u32, &Kept)| match kept {
            Kept::Armed { probe, .. } => Some(Count { id: *id, hits: probe.hits() }),
            Kept::Waiting | Kept::Refused(_) => None,
        };
        self.kept.iter().filter_map(of).collect()
    }

    fn times(&self) -> Vec<(u32, Vec<Span>)> {
        let span = |&(from_ns, to_ns, calls): &(u64, u64, u64)| Span { from_ns, to_ns, calls };
        let of = |(id, kept): (&u32, &Kept)| match kept {
            Kept::Armed { probe, .. } => {
                let times = probe.latency().filter(|times| !times.buckets.is_empty())?;
                Some((*id, times.buckets.iter().map(span).collect()))
            }
            Kept::Waiting | Kept::Refused(_) => None,
        };
        self.kept.iter().filter_map(of).collect()
    }

    fn losses(&self) -> Vec<Count> {
        let of = |(id, kept): (&u32, &Kept)| match kept {
            Kept::Armed { probe, .. } => {
                let hits = probe.lost().filter(|lost| *lost > 0)?;
                Some(Count { id: *id, hits })
            }
            Kept::Waiting | Kept::Refused(_) => None,
        };
        self.kept.iter().filter_map(of).collect()
    }

    fn rings(&mut self, data_bytes: u32, tick: u64, zero_ns: u64) -> Result<RingsFile<'_>, String> {
        let rings = patch::Rings::shared(data_bytes, Clock { tick, zero_ns });
        let rings = rings.map_err(|error| format!("there is no memory for events: {error}"))?;
        self.rings = Some(rings);
        let cpus = rings.cpus() as u32;
        Ok(RingsFile { file: rings.file(), cpus, data_bytes: rings.data_bytes() })
    }

    fn list(&self) -> Vec<Listed> {
        let of = |(id, kept): (&u32, &Kept)| Listed {
            id: *id,
            state: match kept {
                Kept::Armed { .. } => State::Armed,
                Kept::Waiting => State::Waiting,
                Kept::Refused(reason) => State::Refused(reason.clone()),
            },
        };
        self.kept.iter().map(of).collect()
    }

    fn clear(&mut self) -> u32 {
        let armed = self.armed();
        let ids: Vec<u32> = self.kept.keys().copied().collect();
        self.disarm(&ids);
        self.kept.clear();
        armed
    }
}

impl Drop for Patching {
    fn drop(&mut self) {
        self.clear();
    }
}
