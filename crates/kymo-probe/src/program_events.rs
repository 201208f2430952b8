//! Events by the names of functions (`-e probe:SELECTOR`) that the program writes itself: kymo's agent patches the functions, and the recorder drains what they
//! write into the same recording. What cannot be served so is left to the kernel's tracepoints (`probe_events`).
use crate::actions::{self, ActionTable};
use crate::arguments::{self, NumberStyle};
use crate::capability::{Unsupported, check_events};
use crate::engine::Choice;
use crate::error::usage;
use crate::inproc::{arm, candidates};
use crate::kernel_events::{Written, new_probes};
use crate::memory_events::RecordingTarget;
use crate::{condition, modules};
use anyhow::bail;
use kymo_core::probe::value::Operand;
use kymo_core::probe::wire::{
    EventId, Fetch, FetchKind, Layout, MOST_FETCHES, ProbeAction, ProbeKind, ProbeSpec, ProbeState,
    ProbeStatus,
};
use kymo_perf::inject::{self, Client, ProgramClock, ProtocolError};
use kymo_perf::machine::Machine;
use kymo_record::{Callers, RecordingClock, UserEvent, UserEventControl, UserRings};
use kymo_symbols::place;
use kymo_symbols::sites::{ProbeModule, ProbeSelector, Site, stack_walker};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

/// Numbers of events in descriptions, which no tracepoint of the kernel's has reached.
const FIRST_KIND: u16 = 60_000;
/// More events are for `kymo probe`.
const MOST: usize = 4_000;
/// Numbers of events in records, which no event of the kernel's has: `kymo` and this process's number.
const IDS: u64 = 0x6b79_6d6f << 32;
/// The rings of all CPUs together, about, and of each at least and at most.
const RINGS_BYTES: usize = 64 << 20;
const RING_BYTES: (usize, usize) = (256 << 10, 8 << 20);

/// The counter itself in the place of times (a tick is a nanosecond from 0 on).
const TICKS: (u64, u64) = (1 << 32, 0);

/// How probes are to be served.
#[derive(Clone, Copy, Debug)]
pub struct ProgramOptions<'a> {
    /// Which engines may serve.
    pub engine: Choice,
    /// Only hits of which this holds.
    pub condition: Option<&'a str>,
    /// Only one of so many.
    pub every: u32,
    /// Why other options of the recording forbid it.
    pub options: Result<(), Unsupported>,
    /// The data of each CPU's ring.
    pub ring_bytes: Option<usize>,
    /// The clock that was asked for.
    pub clock: Option<RecordingClock>,
}

/// What the program will write, and the other events.
#[derive(Debug)]
pub struct ProgramProbes {
    /// The events that are left; never empty.
    pub texts: Vec<String>,
    /// Whether no other event is left but one that stands for none.
    pub alone: bool,
    /// The rings that the program writes into.
    pub guests: UserRings,
    /// The clock that the recording must have; `None`: the kernel's own.
    pub clock: Option<RecordingClock>,
}

/// An entry or a return that is to be an event.
struct Place {
    /// Number among the sites.
    site: usize,
    returns: bool,
    name: String,
    /// What it carries, if not what the convention for calls says.
    fields: Option<Fields>,
}

/// The values of an event.
type Fields = Vec<EventField>;

/// One value of an event.
#[derive(Clone, Debug)]
struct EventField {
    name: String,
    fetch: Fetch,
    style: NumberStyle,
}

/// One selector and its places.
struct Selected {
    text: usize,
    begin: usize,
    end: usize,
    places: Vec<Place>,
}

/// Has the program write the events that these name, as far as it can; `None` if it writes none. What the user should know goes to `say`.
///
/// # Errors
/// A sentence about the selector, or about why the program cannot write the events where it must. It is as it was then.
pub fn find(
    texts: &[String],
    whom: &RecordingTarget<'_>,
    asked: &ProgramOptions<'_>,
    say: &dyn Fn(&str),
) -> anyhow::Result<Option<ProgramProbes>> {
    let machine = Machine::here();
    let named = texts.iter().any(|text| !new_probes(text, &machine).is_empty());
    let chooses = asked.condition.is_some() || asked.every > 1;
    if !named || (asked.engine == Choice::Kernel && !chooses) {
        return Ok(None);
    }
    // What the kernel does not do must be done here; the rest it does instead.
    let must = asked.engine.is_inside() || chooses;
    let refuse = |reason: &str| {
        let what = match chooses {
            true => "--if and --every of events need the engine inside the program",
            false => "the events cannot be written by the program",
        };
        anyhow::ensure!(!must, "{what}: {reason}");
        say(&format!("not inside the program, but by the kernel: {reason}"));
        Ok(None)
    };
    if asked.engine == Choice::Kernel {
        return refuse("leave --engine kernel out");
    }
    if let Err(reason) = check_events(texts, whom, asked.options) {
        return if must { refuse(reason) } else { Ok(None) };
    }
    let &[pid] = whom.pids else { return Ok(None) };
    let modules = modules::of_process(pid)?;
    let mut chosen = Chosen::default();
    for (number, text) in texts.iter().enumerate() {
        for written in new_probes(text, &machine) {
            if let Err(reason) = chosen.add(number, &written, &modules, say)? {
                refuse(&reason)?;
            }
        }
    }
    let Chosen { sites, all, .. } = chosen;
    if all.is_empty() {
        return Ok(None);
    }
    if all.iter().flat_map(|selected| &selected.places).any(|place| place.returns) {
        if asked.engine != Choice::Shadow {
            return refuse(
                "a program sees returns only by replaced return addresses; --engine shadow does that",
            );
        }
        if let Some(walker) = stack_walker(modules.iter().map(|module| &**module)) {
            return refuse(&format!("{walker}, and replaced return addresses would crash it"));
        }
    }
    let places = all.iter().map(|selected| selected.places.len()).sum::<usize>();
    if places > MOST {
        bail!(
            "these are {places} places, and each would be an event of its own: name fewer, or use `kymo probe`"
        );
    }
    let entered = match enter(pid, &sites, &all, asked) {
        Ok(entered) => entered,
        Err(reason) => return refuse(&reason),
    };
    let Entered { agent, events, rings, told, clock, served, reasons } = entered;
    for (name, reason) in &reasons {
        refuse(&format!("{name}: {reason}"))?;
    }
    if events.is_empty() {
        return Ok(None);
    }
    let mut left = texts_without(texts, &all, &served);
    let alone = left.is_empty();
    if alone {
        // Mappings and names of threads are the kernel's all the same.
        left.push("dummy:u".to_owned());
    }
    let functions = events_of(&served, &all);
    say(&format!("{} events of {functions} are written by the program itself", events.len()));
    let guests = UserRings { events, pid, rings, clock: told, control: Box::new(agent) };
    Ok(Some(ProgramProbes { texts: left, alone, guests, clock }))
}

/// Sites and the events that are to be at them.
#[derive(Default)]
struct Chosen {
    sites: Vec<Site>,
    /// Numbers of sites by file, offset and semaphore.
    numbers: HashMap<(PathBuf, u64, Option<u64>), usize>,
    all: Vec<Selected>,
}

impl Chosen {
    /// The events of one selector, from the text of this number. The inner error says why the program cannot write them.
    fn add(
        &mut self,
        text: usize,
        written: &Written<'_>,
        modules: &[Arc<ProbeModule>],
        say: &dyn Fn(&str),
    ) -> anyhow::Result<Result<(), String>> {
        let selector = ProbeSelector::parse(written.selector).map_err(usage)?;
        let found = modules::touchable(modules::sites(&selector, modules)?, &mut |word| say(&word))?;
        let asked = match asked_fields(&selector, &found, say)? {
            Ok(asked) => asked,
            Err(reason) => return Ok(Err(reason)),
        };
        let mut places = Vec::new();
        for (site, asked) in found.into_iter().zip(asked) {
            let key = (site.module.file().to_owned(), site.offset, site.semaphore);
            let plain = format!("probe:{}:{}", site.module.name(), site.name);
            let number = *self.numbers.entry(key).or_insert_with(|| {
                self.sites.push(site);
                self.sites.len() - 1
            });
            for (returns, fields) in asked {
                let name = format!("{plain}{}", if returns { "%return" } else { "" });
                places.push(Place { site: number, returns, name, fields });
            }
        }
        self.all.push(Selected { text, begin: written.begin, end: written.end, places });
        Ok(Ok(()))
    }
}

/// The texts of events without those that the program writes; texts that are empty then are left out.
fn texts_without(texts: &[String], all: &[Selected], served: &[bool]) -> Vec<String> {
    let mut left: Vec<String> = Vec::new();
    for (number, text) in texts.iter().enumerate() {
        let gone = all.iter().zip(served).filter(|(of, served)| **served && of.text == number);
        let mut rest = text.clone();
        // From the end, so that places stay.
        let mut gone: Vec<_> = gone.map(|(of, _)| of.begin..of.end).collect();
        gone.sort_by_key(|range| std::cmp::Reverse(range.start));
        gone.into_iter().for_each(|range| rest.replace_range(range, ""));
        let rest: Vec<&str> = rest.split(',').map(str::trim).filter(|event| !event.is_empty()).collect();
        if !rest.is_empty() {
            left.push(rest.join(","));
        }
    }
    left
}

fn events_of(served: &[bool], all: &[Selected]) -> String {
    let sites: HashSet<usize> = all
        .iter()
        .zip(served)
        .filter(|(_, served)| **served)
        .flat_map(|(of, _)| of.places.iter().map(|place| place.site))
        .collect();
    format!("{} function{}", sites.len(), if sites.len() == 1 { "" } else { "s" })
}

/// What came of entering the program.
struct Entered {
    agent: Agent,
    events: Vec<UserEvent>,
    rings: Vec<kymo_perf::ring::Ring>,
    /// What makes times of the counter's ticks.
    told: ProgramClock,
    clock: Option<RecordingClock>,
    /// For each selector, whether all of it is served.
    served: Vec<bool>,
    /// What is not, and why.
    reasons: Vec<(String, String)>,
}

/// The events of a site: whether it is the return, and its values if expressions were typed.
type Events = Vec<(bool, Option<Fields>)>;

/// The events that each site is to be; or why the program cannot write them.
fn asked_fields(
    selector: &ProbeSelector,
    sites: &[Site],
    say: &dyn Fn(&str),
) -> anyhow::Result<Result<Vec<Events>, String>> {
    let Some(parts) = &selector.arguments else {
        return Ok(Ok(sites.iter().map(|_| vec![(selector.returns, None)]).collect()));
    };
    let asked = arguments::each(sites, |_, site, routine| {
        let values =
            arguments::listed(site, &routine, parts).map_err(|why| format!("{}: {why}", site.name))?;
        values.words.iter().for_each(|word| say(word));
        if selector.returns && !values.entry.is_empty() {
            return Err(format!(
                "{}: at the return only `ret` is known: leave `%return` out for both",
                site.name
            ));
        }
        let list = |fetches: &[place::call::Fetch]| -> Result<Fields, String> {
            let no = |name: &str| format!("{}: `{name}` is not what a program can write itself", site.name);
            let named = arguments::kernel_fields(fetches);
            let mut names = named.split(' ').filter_map(|field| Some(field.split_once('=')?.0.to_owned()));
            let mut all = Vec::new();
            for fetch in fetches {
                let length = fetch.text.as_ref().and_then(|text| text.length.as_deref());
                for value in [Some(fetch), length].into_iter().flatten() {
                    let style = NumberStyle::of(value);
                    let value = actions::fetch(value).ok_or_else(|| no(&fetch.name))?;
                    let name = names.next().ok_or("these are too many values of one event")?;
                    all.push(EventField { name, fetch: value, style });
                }
            }
            Ok(all)
        };
        let mut events = Vec::new();
        if !selector.returns {
            events.push((false, list(&values.entry)));
        }
        if !values.back.is_empty() {
            events.push((true, list(&values.back)));
        } else if selector.returns {
            events.push((true, Ok(fields(true))));
        }
        Ok(events)
    });
    let asked: Vec<Vec<(bool, Result<Fields, String>)>> =
        asked.into_iter().collect::<Result<_, String>>().map_err(usage)?;
    let known = |(returns, fields): (bool, Result<Fields, String>)| {
        let fields = fields?;
        let fits = fields.len() <= MOST_FETCHES;
        fits.then_some((returns, Some(fields)))
            .ok_or_else(|| "these are too many values of one event".to_owned())
    };
    Ok(asked.into_iter().map(|events| events.into_iter().map(known).collect()).collect())
}

/// The values of an event: named, as the convention for calls has them.
fn fields(returns: bool) -> Fields {
    // What is returned, or the first three arguments, as the kernel's events of the same places have them.
    let named: &[(&str, u8)] = if returns { &[("ret", 0)] } else { &[("arg1", 7), ("arg2", 6), ("arg3", 2)] };
    let field = |&(name, register): &(&str, u8)| EventField {
        name: name.to_owned(),
        fetch: Fetch { operand: Operand::register(register), kind: FetchKind::Number },
        style: NumberStyle::Hexadecimal,
    };
    named.iter().map(field).collect()
}

/// The recording's times by the processor's counter; and the clock that the kernel has to use for that.
fn clock(asked: Option<RecordingClock>) -> Result<(ProgramClock, Option<RecordingClock>), String> {
    if asked.is_none()
        && let Some(clock) = ProgramClock::of_events()
    {
        return Ok((clock, None));
    }
    // In virtual machines the kernel's own clock is often another one.
    let other = || {
        "the kernel's clock is not the processor's counter, so the program cannot tell the time".to_owned()
    };
    Ok((ProgramClock::raw().ok_or_else(other)?, Some(RecordingClock::MonotonicRaw)))
}

fn enter(pid: i32, sites: &[Site], all: &[Selected], asked: &ProgramOptions<'_>) -> Result<Entered, String> {
    let (told, clock) = clock(asked.clock)?;
    let typed = asked.condition.map(|text| condition::parse(text)?.at(sites)).transpose()?;
    // What each site is to write.
    let mut at: BTreeMap<usize, [Option<&Place>; 2]> = BTreeMap::new();
    for place in all.iter().flat_map(|selected| &selected.places) {
        at.entry(place.site).or_default()[usize::from(place.returns)] = Some(place);
    }
    let returns = |site: usize| at.get(&site).is_some_and(|names| names[1].is_some());
    let (mut wanted, mut refused) = candidates(sites, &returns, false);
    let mut numbers = ActionTable::default();
    let mut events: Vec<(usize, UserEvent)> = Vec::new();
    for (site, wanted) in &mut wanted {
        let Some(names) = at.get(site) else { continue };
        let mut how =
            ProbeAction { every: if asked.every > 1 { asked.every } else { 0 }, ..ProbeAction::default() };
        if let Some(typed) = &typed {
            (how.entry_condition, how.return_condition) = typed[*site].clone();
        }
        if !how.is_supported() {
            return Err("the condition is too long".to_owned());
        }
        for (returns, name) in [false, true].into_iter().zip(names) {
            let Some(Place { name, fields: asked, .. }) = name else { continue };
            let fields = asked.clone().unwrap_or_else(|| fields(returns));
            let number = events.len();
            let kind = FIRST_KIND + number as u16;
            let id = IDS | u64::from(std::process::id()) << 12 | number as u64;
            let event = UserEvent {
                name: name.clone(),
                system: format!("kymo_{}", std::process::id()),
                format: format(&plain(name), kind, &fields, returns),
                kind: u64::from(kind),
                id,
            };
            events.push((*site, event));
            let event = Some(EventId { id, kind });
            let fetches = fetches(&fields);
            if returns {
                (how.return_event, how.return_fetches) = (event, fetches);
            } else {
                (how.event, how.fetches) = (event, fetches);
            }
        }
        wanted.kind = ProbeKind::Record;
        wanted.action_id = numbers.number(how).ok_or("there are too many events")?;
    }
    if wanted.is_empty() {
        let reason = refused.into_iter().next().map(|(_, reason)| reason);
        return Err(reason.unwrap_or_else(|| "there is no probe".to_owned()));
    }
    let said = |broken: ProtocolError| broken.to_string();
    let mut callers = Callers::default();
    let client = inject::enter_unwinding(pid, &crate::agent::LIBRARY, &mut callers)
        .map_err(|refusal| refusal.to_string())?;
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let (least, most) = RING_BYTES;
    let usual = (RINGS_BYTES / cpus).clamp(least, most);
    let bytes = asked.ring_bytes.unwrap_or(usual).clamp(4096, 1 << 30).next_power_of_two();
    let rings = client.rings(bytes as u32, TICKS.0, TICKS.1).map_err(said)?;
    numbers.tell(&client).map_err(said)?;
    // Whether they can be is known once they are; they begin with the recording, though, so this only counts.
    let trial = |(site, wanted): &(usize, ProbeSpec)| {
        let kind = if returns(*site) { ProbeKind::Latency } else { ProbeKind::Count };
        (*site, ProbeSpec { kind, action_id: 0, ..*wanted })
    };
    let outcome = arm(&client, sites, &wanted.iter().map(trial).collect::<Vec<_>>()).map_err(said)?;
    refused.extend(outcome.refused.into_iter().map(|(id, reason)| (id as usize, reason)));
    let listed = client.list().map_err(said)?;
    let waits = listed.iter().filter(|listed: &&ProbeStatus| listed.state == ProbeState::Waiting);
    let why = "its module is not mapped, or by another name";
    refused.extend(waits.map(|listed| (listed.id as usize, why.to_owned())));
    let ids: Vec<u32> = wanted.iter().map(|(_, wanted)| wanted.id).collect();
    client.remove(&ids).map_err(said)?;
    client.commit().map_err(said)?;
    let reason: HashMap<usize, String> = refused.into_iter().collect();
    let served = |selected: &Selected| selected.places.iter().all(|place| !reason.contains_key(&place.site));
    let served: Vec<bool> = all.iter().map(served).collect();
    let mut reasons = Vec::new();
    for selected in all.iter().zip(&served).filter(|(_, served)| !**served).map(|(selected, _)| selected) {
        let first = selected.places.iter().find_map(|place| Some((place, reason.get(&place.site)?)));
        reasons.extend(first.map(|(place, reason)| (place.name.clone(), reason.clone())));
    }
    let kept: HashSet<usize> = (all.iter().zip(&served).filter(|(_, served)| **served))
        .flat_map(|(selected, _)| selected.places.iter().map(|place| place.site))
        .collect();
    wanted.retain(|(site, _)| kept.contains(site));
    events.retain(|(site, _)| kept.contains(site));
    let event_of: HashMap<u32, usize> = (events.iter().enumerate().rev())
        .map(|(number, (site, _))| (*site as u32 + sites.len() as u32, number))
        .collect();
    // Numbers are given once.
    wanted.iter_mut().for_each(|(_, wanted)| wanted.id += sites.len() as u32);
    let events: Vec<UserEvent> = events.into_iter().map(|(_, event)| event).collect();
    let agent = Agent { client: Some(client), sites: sites.to_vec(), wanted, event_of, events: events.len() };
    Ok(Entered { agent, events, rings, told, clock, served, reasons })
}

/// A name that readers of tracefs's descriptions take.
fn plain(name: &str) -> String {
    let name = name.strip_prefix("probe:").unwrap_or(name);
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).take(50).collect()
}

/// What the agent is to fetch for these.
fn fetches(fields: &[EventField]) -> Vec<Fetch> {
    fields.iter().map(|field| field.fetch.clone()).collect()
}

/// Describes an event as tracefs describes the kernel's own of programs.
fn format(name: &str, kind: u16, fields: &[EventField], returns: bool) -> String {
    let mut text = format!("name: {name}\nID: {kind}\nformat:\n");
    // Readers know the end of what all events have by an empty line.
    const COMMON: &str = "\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n";
    text.push_str(COMMON);
    let mut field = |declaration: &str, at: u32, bytes: u32, signed: bool| {
        text.push_str(&format!(
            "\tfield:{declaration};\toffset:{at};\tsize:{bytes};\tsigned:{};\n",
            u8::from(signed)
        ));
    };
    let (mut shown, mut values) = if returns {
        field("unsigned long __probe_func", 8, 8, false);
        field("unsigned long __probe_ret_ip", 16, 8, false);
        ("(%lx <- %lx)".to_owned(), "REC->__probe_func, REC->__probe_ret_ip".to_owned())
    } else {
        field("unsigned long __probe_ip", 8, 8, false);
        ("(%lx)".to_owned(), "REC->__probe_ip".to_owned())
    };
    let layout = Layout::of(&fetches(fields), returns);
    for (EventField { name, fetch, style }, &at) in fields.iter().zip(&layout.at) {
        match fetch.kind {
            FetchKind::Number => {
                // Values are extended to 64 bits.
                let (kind, conversion) = match style {
                    NumberStyle::Signed => ("s64", "%Ld"),
                    NumberStyle::Unsigned => ("u64", "%Lu"),
                    NumberStyle::Hexadecimal => ("u64", "0x%Lx"),
                };
                field(&format!("{kind} {name}"), at, 8, *style == NumberStyle::Signed);
                shown.push_str(&format!(" {name}={conversion}"));
                values.push_str(&format!(", REC->{name}"));
            }
            FetchKind::String { .. } => {
                field(&format!("__data_loc char[] {name}"), at, 4, true);
                shown.push_str(&format!(" {name}=\\\"%s\\\""));
                values.push_str(&format!(", __get_str({name})"));
            }
        }
    }
    text.push_str(&format!("\nprint fmt: \"{shown}\", {values}\n"));
    text
}

/// The agent in the program that writes the events.
struct Agent {
    client: Option<Client>,
    sites: Vec<Site>,
    wanted: Vec<(usize, ProbeSpec)>,
    /// By the numbers that the agent knows, the first event.
    event_of: HashMap<u32, usize>,
    events: usize,
}

impl UserEventControl for Agent {
    fn begin(&mut self) -> Result<(), String> {
        let Some(client) = &self.client else { return Ok(()) };
        let outcome = match arm(client, &self.sites, &self.wanted) {
            Ok(outcome) => outcome,
            // It has ended meanwhile: there is nothing to record.
            Err(ProtocolError::Gone) => return Ok(()),
            Err(broken) => return Err(broken.to_string()),
        };
        outcome.refused.into_iter().next().map_or(Ok(()), |(_, reason)| Err(reason))
    }

    fn end(&mut self) -> (Vec<u64>, Option<String>) {
        let mut lost = vec![0; self.events];
        let Some(client) = self.client.take() else { return (lost, None) };
        client.ends();
        let ids: Vec<u32> = self.wanted.iter().map(|(_, wanted)| wanted.id).collect();
        let losses = client.remove(&ids).and_then(|()| client.commit()).and_then(|_| client.losses());
        match losses {
            Ok(losses) => {
                for loss in losses {
                    // Told by the program: only numbers that were given to it are believed.
                    if let Some(of) = self.event_of.get(&loss.id).and_then(|&event| lost.get_mut(event)) {
                        *of = loss.hits;
                    }
                }
                // A program that is gone has no probes either.
                _ = client.leave();
                (lost, None)
            }
            // Its rings know how many there were.
            Err(ProtocolError::Gone) => (lost, None),
            Err(broken) => {
                (lost, Some(format!("the agent in the program could not be asked at the end: {broken}")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that the description of an entry and of a return read back with every value where it is written, texts included.
    #[test]
    fn described() {
        let mut fields_at_entry = fields(false);
        let text = Fetch { operand: Operand::register(6), kind: FetchKind::String { offset: 0, most: 10 } };
        let style = NumberStyle::Hexadecimal;
        fields_at_entry.push(EventField { name: "name".into(), fetch: text, style });
        let text = format("f", 60_001, &fields_at_entry, false);
        let read =
            kymo_data::tracing_data::Format::parse("programs", text.as_bytes()).expect("a description");
        assert_eq!((read.id, read.name.as_str()), (60_001, "f"));
        let mut raw = vec![0; 44];
        raw[24..32].copy_from_slice(&7u64.to_le_bytes());
        raw[40..44].copy_from_slice(&(44u32 | 3 << 16).to_le_bytes());
        raw.extend(b"hi\0");
        assert_eq!(read.print_fields(&raw), " __probe_ip=0x0 arg1=0 arg2=7 arg3=0 name=hi");
        let text = format(&plain("probe:lib:a::b%return"), 60_002, &fields(true), true);
        let read =
            kymo_data::tracing_data::Format::parse("programs", text.as_bytes()).expect("a description");
        assert_eq!(read.name, "lib_a__b_return");
        assert_eq!(read.field("ret").map(|field| field.offset), Some(24));
    }

    /// Checks that a number is described as the kernel describes one of its type: `%Lu` where it has
    /// no sign, hexadecimal only for addresses and whole registers.
    #[test]
    fn numbers_are_described_as_the_kernel_does() {
        let styles = [NumberStyle::Signed, NumberStyle::Unsigned, NumberStyle::Hexadecimal];
        let field = |(name, style): (&str, NumberStyle)| EventField {
            name: name.into(),
            fetch: Fetch { operand: Operand::register(7), kind: FetchKind::Number },
            style,
        };
        let fields: Vec<EventField> = ["a", "b", "c"].into_iter().zip(styles).map(field).collect();
        let text = format("f", 60_001, &fields, false);
        let print_fmt = "\"(%lx) a=%Ld b=%Lu c=0x%Lx\", REC->__probe_ip, REC->a, REC->b, REC->c";
        assert!(text.ends_with(&format!("\nprint fmt: {print_fmt}\n")), "{text}");
    }
}
