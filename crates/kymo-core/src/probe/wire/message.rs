//! The messages.
use super::action::ProbeAction;
use super::pack::{Malformed, Packer, Unpacker};
use super::{MOST_PATH_BYTES, MOST_TEXT_BYTES};
use crate::holds::HoldRole;

/// What is to be done at a hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProbeKind {
    /// Count it.
    Count,
    /// Count it, and count the time until the return by powers of two. The return address is
    /// replaced.
    Latency,
    /// The same, at the places where calls end: further probes of the same number and of the kind
    /// [`Exit`](ProbeKind::Exit). No return address changes.
    LatencyAtExits,
    /// Not a probe, but a place where calls of one end. The function is the part of the probed one
    /// that has it.
    Exit,
    /// Count it, and write it, its return, or both as the events that its [`ProbeAction`] names.
    Record,
    /// Count it, and time how long the lock is held that the function takes or gives back.
    Hold(HoldRole),
}

/// Numbers of [`ProbeKind::Hold`] are those of its roles behind this one.
const HOLDS: u8 = 16;

impl ProbeKind {
    fn number(self) -> u8 {
        match self {
            ProbeKind::Count => 1,
            ProbeKind::Latency => 2,
            ProbeKind::Record => 3,
            ProbeKind::LatencyAtExits => 4,
            ProbeKind::Exit => 5,
            ProbeKind::Hold(role) => HOLDS + role.number(),
        }
    }

    fn of(number: u8) -> Result<ProbeKind, Malformed> {
        match number {
            1 => Ok(ProbeKind::Count),
            2 => Ok(ProbeKind::Latency),
            3 => Ok(ProbeKind::Record),
            4 => Ok(ProbeKind::LatencyAtExits),
            5 => Ok(ProbeKind::Exit),
            number => number
                .checked_sub(HOLDS)
                .and_then(HoldRole::of)
                .map(ProbeKind::Hold)
                .ok_or(Malformed { expected: "something that can be done at a hit" }),
        }
    }
}

/// One probe of a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbeSpec {
    /// The tracer's number for it, never used twice in one conversation, but by its exits.
    pub id: u32,
    /// Where the function is in the file.
    pub offset: u64,
    /// Its length in bytes; 0 if unknown.
    pub size_bytes: u32,
    /// From its first byte to that of the next function, in bytes; 0 if unknown. What lies between
    /// may be used if it is padding.
    pub room_bytes: u32,
    /// The site is so many bytes behind the function's first one; 0: it is the entry.
    pub inside_bytes: u32,
    /// The offset in the file of the semaphore to be raised; 0: none.
    pub semaphore: u64,
    /// What for.
    pub kind: ProbeKind,
    /// Which hits, and what of them: the number of a [`Command::Action`], from 1 on; 0: all hits,
    /// nothing else.
    pub action_id: u16,
}

/// What the tracer says.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "fields that need words have them at their variant")]
pub enum Command {
    /// First of all: the version of the language that the tracer speaks. With `children`, processes
    /// that this one forks count in the same counters; otherwise they do not count.
    Hello { version: u32, children: bool },
    /// Probes to be armed at the next `Commit`, in the module that the process's list of mappings
    /// calls so.
    Add { module: Vec<u8>, probes: Vec<ProbeSpec> },
    /// Probes to be disarmed at the next `Commit`.
    Remove { ids: Vec<u32> },
    /// Do what was asked since the last one, with as few stops as possible.
    Commit,
    /// The program is held before its first instruction: let it run.
    Go,
    /// Tell which probes there are.
    List,
    /// Remove everything and end.
    Leave,
    /// What probes do that name this number, from 1 on. A later one of the same number is for probes
    /// that come later.
    Action { id: u16, action: ProbeAction },
    /// Count in the memory file that comes with this packet: words of 64 bits, first all slots of
    /// CPU 0, then those of CPU 1 and so on. Once, before the first probe. As many CPUs as the agent
    /// said, and no more slots of each.
    Counters { cpus: u32, slots: u32 },
    /// Write events to the rings in the memory file that comes with this packet: for each of as many
    /// CPUs as the agent has a page, of the shape of a perf event's, and its data after it, a power
    /// of two. Times are `zero_ns + (ticks * tick >> 32)`, of the processor's time stamp counter;
    /// `zero_ns` wraps.
    Rings { cpus: u32, data_bytes: u32, tick: u64, zero_ns: u64 },
    /// Add up how long locks are held in the memory file that comes with this packet, a
    /// [`HoldTable`](crate::holds::HoldTable). Forked children do if they count.
    HoldTable,
    /// Tell how many events did not fit into their rings.
    Losses,
    /// Tell who called.
    Callers,
    /// From now on the tracer holds the process's threads whenever the agent is [`Reply::Ready`] to
    /// write.
    Holds,
    /// All other threads stand still, none of them inside the bytes that are to be written.
    Held,
    /// They could not be held, and none is.
    NotHeld { reason: String },
}

/// What a tracer that holds a process's threads must know of what is about to be written. Lists are
/// in the process's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PatchSites {
    /// The thread that writes, by the number that it has in its own namespace: the one that must go
    /// on.
    pub thread: u32,
    /// The first bytes of the sites, of 8 bytes each, ascending: no thread may stand in one's bytes
    /// behind the first.
    pub sites_at: u64,
    /// How many sites.
    pub sites: u32,
    /// Pairs of addresses, ascending: a thread that stands at the first one of a pair goes on at
    /// the second.
    pub moves_at: u64,
    /// How many pairs.
    pub moves: u32,
    /// Where handlers of signals return to: who finds one of these on a stack has found what a
    /// thread was interrupted in.
    pub restorers: Vec<u64>,
    /// Sites that the tracer is to write itself when all stand still, because the kernel does not
    /// let the process. Of [`EDIT_BYTES`](super::EDIT_BYTES) each: the address of 8 bytes, the five
    /// bytes that are there, the five that are to be there.
    pub edits_at: u64,
    /// How many.
    pub edits: u32,
}

/// A number for a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the probe, and how often until now")]
pub struct HitCount {
    pub id: u32,
    pub hits: u64,
}

/// Where in the shared memory an armed probe counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbeSlots {
    /// The probe.
    pub id: u32,
    /// The slot of its hits.
    pub hits: u32,
    /// What that slot held before: a site that is armed again counts on in the same slots.
    pub before: u64,
    /// The first slot of its times ([`latency`](crate::latency)), if it has any.
    pub times: Option<u32>,
}

/// What a bucket of a probe's times held before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bucket {
    /// The bucket, from the first slot of the probe's times.
    pub number: u32,
    /// How many calls it held.
    pub calls: u64,
}

/// Whether a probe works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeState {
    /// Its site is armed.
    Armed,
    /// Its module is not mapped (any more).
    Waiting,
    /// It cannot be, for this reason.
    Refused(String),
}

/// One probe of the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the probe, and whether it works")]
pub struct ProbeStatus {
    pub id: u32,
    pub state: ProbeState,
}

/// What the agent says. A list that does not fit into one packet ends with the `last` one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "fields that need words have them at their variant")]
pub enum Reply {
    /// The answer to `Hello`: the version of the agent's language, the process as it knows itself,
    /// how many probes somebody else had left in it that are gone now, the CPUs that need slots and
    /// rings, and the most slots of each CPU that the agent can use.
    Hello { version: u32, pid: u32, cleaned_up: u32, cpus: u32, slots: u32 },
    /// The answer to `Counters`: probes count there from now on.
    Counting,
    /// A probe that cannot be here, and why, in words.
    Refused { id: u32, reason: String },
    /// The answer to `Commit`, after all refusals: how many probes are armed now, and how long the
    /// process's threads stood still for it.
    Armed { armed: u32, stopped_ns: u64 },
    /// Some of the probes that the last `Commit` armed, before `Armed`.
    Placed { of: Vec<ProbeSlots> },
    /// What some slots of a probe's times held before, where that is not 0; before `Armed`.
    Before { id: u32, of: Vec<Bucket> },
    /// Some of the probes.
    ProbeStatus { of: Vec<ProbeStatus>, last: bool },
    /// The answer to `Rings`: events go there from now on.
    Recording,
    /// The answer to `HoldTable`: holds are added up there from now on.
    TimingHolds,
    /// How many events of some probes did not fit into their rings, per probe that has any.
    Losses { of: Vec<HitCount>, last: bool },
    /// Some of one probe's callers: return addresses, and how many calls. `others` are calls of
    /// callers that there was no place for. Any probe, without callers, if there is none.
    Callers { id: u32, others: u64, of: Vec<(u64, u64)>, last: bool },
    /// The last word: everything is removed.
    Left,
    /// The answer to `Holds`: so many probes that an earlier tracer had left are gone now.
    Cleaned { probes: u32 },
    /// All is prepared for writing sites: hold the other threads, and say so.
    Ready(PatchSites),
    /// The sites are written, and every core executes them so: let the threads go.
    Written,
    /// A command could not be done at all, and why, in words.
    Failed { reason: String },
}

impl Command {
    /// The packet. Lists must not be longer than [`MOST_ENTRIES`](super::MOST_ENTRIES).
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Command::Hello { version, children } => Packer::new(1).u32(*version).u8(u8::from(*children)),
            Command::Add { module, probes } => {
                Packer::new(2).bytes(module, MOST_PATH_BYTES).list(probes, |packer, probe| {
                    let packer = packer.u32(probe.id).u64(probe.offset).u32(probe.size_bytes);
                    let packer = packer.u32(probe.room_bytes).u32(probe.inside_bytes);
                    packer.u64(probe.semaphore).u8(probe.kind.number()).u16(probe.action_id)
                })
            }
            Command::Remove { ids } => Packer::new(3).list(ids, |packer, id| packer.u32(*id)),
            Command::Commit => Packer::new(4),
            Command::Go => Packer::new(5),
            Command::List => Packer::new(6),
            Command::Leave => Packer::new(7),
            Command::Action { id, action } => action.pack(Packer::new(20).u16(*id)),
            Command::Rings { cpus, data_bytes, tick, zero_ns } => {
                Packer::new(21).u32(*cpus).u32(*data_bytes).u64(*tick).u64(*zero_ns)
            }
            Command::Counters { cpus, slots } => Packer::new(24).u32(*cpus).u32(*slots),
            Command::HoldTable => Packer::new(25),
            Command::Losses => Packer::new(22),
            Command::Callers => Packer::new(23),
            Command::Holds => Packer::new(30),
            Command::Held => Packer::new(31),
            Command::NotHeld { reason } => Packer::new(32).bytes(reason.as_bytes(), MOST_TEXT_BYTES),
        }
        .done()
    }

    /// What a packet says.
    ///
    /// # Errors
    /// [`Malformed`] for anything but exactly one message.
    pub fn decode(bytes: &[u8]) -> Result<Command, Malformed> {
        let (kind, mut rest) = Unpacker::new(bytes)?;
        let command = match kind {
            1 => Command::Hello { version: rest.u32()?, children: rest.flag()? },
            2 => Command::Add {
                module: rest.bytes(MOST_PATH_BYTES)?,
                probes: rest.list(|probe| {
                    Ok(ProbeSpec {
                        id: probe.u32()?,
                        offset: probe.u64()?,
                        size_bytes: probe.u32()?,
                        room_bytes: probe.u32()?,
                        inside_bytes: probe.u32()?,
                        semaphore: probe.u64()?,
                        kind: ProbeKind::of(probe.u8()?)?,
                        action_id: probe.u16()?,
                    })
                })?,
            },
            3 => Command::Remove { ids: rest.list(Unpacker::u32)? },
            4 => Command::Commit,
            5 => Command::Go,
            6 => Command::List,
            7 => Command::Leave,
            20 => Command::Action { id: rest.u16()?, action: ProbeAction::of(&mut rest)? },
            21 => Command::Rings {
                cpus: rest.u32()?,
                data_bytes: rest.u32()?,
                tick: rest.u64()?,
                zero_ns: rest.u64()?,
            },
            24 => Command::Counters { cpus: rest.u32()?, slots: rest.u32()? },
            25 => Command::HoldTable,
            22 => Command::Losses,
            23 => Command::Callers,
            30 => Command::Holds,
            31 => Command::Held,
            32 => Command::NotHeld { reason: rest.text(MOST_TEXT_BYTES)? },
            _ => return Err(Malformed { expected: "a command" }),
        };
        rest.end()?;
        Ok(command)
    }
}

impl Reply {
    /// The packet. Lists must not be longer than [`MOST_ENTRIES`](super::MOST_ENTRIES), and one
    /// with reasons in it not as long as to exceed [`MOST_BYTES`](super::MOST_BYTES).
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Reply::Hello { version, pid, cleaned_up, cpus, slots } => {
                Packer::new(1).u32(*version).u32(*pid).u32(*cleaned_up).u32(*cpus).u32(*slots)
            }
            Reply::Refused { id, reason } => {
                Packer::new(2).u32(*id).bytes(reason.as_bytes(), MOST_TEXT_BYTES)
            }
            Reply::Armed { armed, stopped_ns } => Packer::new(3).u32(*armed).u64(*stopped_ns),
            Reply::Placed { of } => Packer::new(4).list(of, |packer, placed| {
                let packer = packer.u32(placed.id).u32(placed.hits).u64(placed.before);
                packer.u8(u8::from(placed.times.is_some())).u32(placed.times.unwrap_or(0))
            }),
            Reply::ProbeStatus { of, last } => Packer::new(5)
                .list(of, |packer, listed| {
                    let packer = packer.u32(listed.id);
                    match &listed.state {
                        ProbeState::Armed => packer.u8(1),
                        ProbeState::Waiting => packer.u8(2),
                        ProbeState::Refused(reason) => packer.u8(3).bytes(reason.as_bytes(), MOST_TEXT_BYTES),
                    }
                })
                .u8(u8::from(*last)),
            Reply::Left => Packer::new(6),
            Reply::Failed { reason } => Packer::new(7).bytes(reason.as_bytes(), MOST_TEXT_BYTES),
            Reply::Before { id, of } => {
                Packer::new(8).u32(*id).list(of, |packer, bucket| packer.u32(bucket.number).u64(bucket.calls))
            }
            Reply::Counting => Packer::new(24),
            Reply::Recording => Packer::new(21),
            Reply::TimingHolds => Packer::new(25),
            Reply::Losses { of, last } => Packer::new(22)
                .list(of, |packer, count| packer.u32(count.id).u64(count.hits))
                .u8(u8::from(*last)),
            Reply::Callers { id, others, of, last } => Packer::new(23)
                .u32(*id)
                .u64(*others)
                .list(of, |packer, (address, hits)| packer.u64(*address).u64(*hits))
                .u8(u8::from(*last)),
            Reply::Cleaned { probes } => Packer::new(30).u32(*probes),
            Reply::Ready(places) => Packer::new(31)
                .u32(places.thread)
                .u64(places.sites_at)
                .u32(places.sites)
                .u64(places.moves_at)
                .u32(places.moves)
                .list(&places.restorers, |packer, at| packer.u64(*at))
                .u64(places.edits_at)
                .u32(places.edits),
            Reply::Written => Packer::new(32),
        }
        .done()
    }

    /// What a packet says.
    ///
    /// # Errors
    /// [`Malformed`] for anything but exactly one message.
    pub fn decode(bytes: &[u8]) -> Result<Reply, Malformed> {
        let (kind, mut rest) = Unpacker::new(bytes)?;
        let reply = match kind {
            1 => Reply::Hello {
                version: rest.u32()?,
                pid: rest.u32()?,
                cleaned_up: rest.u32()?,
                cpus: rest.u32()?,
                slots: rest.u32()?,
            },
            2 => Reply::Refused { id: rest.u32()?, reason: rest.text(MOST_TEXT_BYTES)? },
            3 => Reply::Armed { armed: rest.u32()?, stopped_ns: rest.u64()? },
            4 => Reply::Placed {
                of: rest.list(|placed| {
                    let (id, hits, before) = (placed.u32()?, placed.u32()?, placed.u64()?);
                    let (timed, times) = (placed.flag()?, placed.u32()?);
                    Ok(ProbeSlots { id, hits, before, times: timed.then_some(times) })
                })?,
            },
            5 => Reply::ProbeStatus {
                of: rest.list(|listed| {
                    let id = listed.u32()?;
                    let state = match listed.u8()? {
                        1 => ProbeState::Armed,
                        2 => ProbeState::Waiting,
                        3 => ProbeState::Refused(listed.text(MOST_TEXT_BYTES)?),
                        _ => return Err(Malformed { expected: "a state of a probe" }),
                    };
                    Ok(ProbeStatus { id, state })
                })?,
                last: rest.flag()?,
            },
            6 => Reply::Left,
            7 => Reply::Failed { reason: rest.text(MOST_TEXT_BYTES)? },
            8 => Reply::Before {
                id: rest.u32()?,
                of: rest.list(|bucket| Ok(Bucket { number: bucket.u32()?, calls: bucket.u64()? }))?,
            },
            21 => Reply::Recording,
            25 => Reply::TimingHolds,
            24 => Reply::Counting,
            22 => Reply::Losses {
                of: rest.list(|count| Ok(HitCount { id: count.u32()?, hits: count.u64()? }))?,
                last: rest.flag()?,
            },
            23 => Reply::Callers {
                id: rest.u32()?,
                others: rest.u64()?,
                of: rest.list(|caller| Ok((caller.u64()?, caller.u64()?)))?,
                last: rest.flag()?,
            },
            30 => Reply::Cleaned { probes: rest.u32()? },
            31 => Reply::Ready(PatchSites {
                thread: rest.u32()?,
                sites_at: rest.u64()?,
                sites: rest.u32()?,
                moves_at: rest.u64()?,
                moves: rest.u32()?,
                restorers: rest.list(Unpacker::u64)?,
                edits_at: rest.u64()?,
                edits: rest.u32()?,
            }),
            32 => Reply::Written,
            _ => return Err(Malformed { expected: "an answer" }),
        };
        rest.end()?;
        Ok(reply)
    }
}
