//! Events by the names of functions (`-e probe:SELECTOR`) that the program writes itself: kymo's agent patches the functions, and the recorder drains what they
//! write into the same recording. What cannot be served so is left to the kernel's tracepoints (`probe_events`).
use crate::actions;
use crate::agent_events::AgentEvents;
use crate::arguments::{self, NumberStyle};
use crate::capability::{Unsupported, check_events};
use crate::engine::Choice;
use crate::error::usage;
use crate::event_format::{EventField, Fields, fetches, fields, format, plain};
use crate::kernel_events::{Written, new_probes};
use crate::memory_events::RecordingTarget;
use crate::remote::{EventRequest, StubEvents};
use crate::{condition, modules};
use anyhow::bail;
use kymo_core::probe::value::Condition;
use kymo_core::probe::wire::{EventId, MOST_FETCHES, ProbeAction};
use kymo_perf::inject::ProgramClock;
use kymo_perf::machine::Machine;
use kymo_record::{RecordingClock, UserEvent, UserEventControl, UserRings};
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

const UNKNOWN_BEGIN: &str = "where calls end, it is not known which of them a condition of their begin, or one in N, has chosen; --engine shadow knows";

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
    let returns = all.iter().flat_map(|selected| &selected.places).any(|place| place.returns);
    if returns
        && asked.engine == Choice::Shadow
        && let Some(walker) = stack_walker(modules.iter().map(|module| &**module))
    {
        return refuse(&format!("{walker}, and replaced return addresses would crash it"));
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
    let Entered { control, events, rings, told, clock, served, reasons } = entered;
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
    let guests = UserRings { events, pid, rings, clock: told, control };
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
    control: Box<dyn UserEventControl + Send>,
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

/// An event with its site, and whether it is of the site's returns.
type SiteEvent = ((usize, bool), UserEvent);

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
            events.push((true, Ok(fields(true, site.is_go()))));
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
    let at_exits = asked.engine != Choice::Shadow;
    let (actions, mut events) = actions(sites, &at, at_exits, (typed.as_deref(), asked.every))?;
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let (least, most) = RING_BYTES;
    let usual = (RINGS_BYTES / cpus).clamp(least, most);
    let ring_bytes = asked.ring_bytes.unwrap_or(usual).clamp(4096, 1 << 30).next_power_of_two();
    let request = EventRequest { pid, sites, actions, ring_bytes, at_exits };
    let by_stubs = if at_exits { StubEvents::enter(&request)? } else { None };
    let (writer, rings, refused) = match by_stubs {
        Some((stubs, rings, refused)) => (EventWriter::Stubs(Box::new(stubs)), rings, refused),
        None => {
            let (agent, rings, refused) = AgentEvents::enter(&request)?;
            (EventWriter::Agent(Box::new(agent)), rings, refused)
        }
    };
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
    events.retain(|(place, _)| kept.contains(&place.0));
    let mut event_of: HashMap<usize, [Option<usize>; 2]> = HashMap::new();
    for (number, ((site, returns), _)) in events.iter().enumerate() {
        event_of.entry(*site).or_default()[usize::from(*returns)] = Some(number);
    }
    let events: Vec<UserEvent> = events.into_iter().map(|(_, event)| event).collect();
    let control = writer.keep(&kept, event_of);
    Ok(Entered { control, events, rings, told, clock, served, reasons })
}

/// Who writes the events.
enum EventWriter {
    Agent(Box<AgentEvents>),
    Stubs(Box<StubEvents>),
}

impl EventWriter {
    /// With the events of these sites, whose numbers are told: of hits, and of returns.
    fn keep(
        self,
        kept: &HashSet<usize>,
        event_of: HashMap<usize, [Option<usize>; 2]>,
    ) -> Box<dyn UserEventControl + Send> {
        match self {
            EventWriter::Agent(mut agent) => {
                agent.keep(kept, event_of);
                agent
            }
            EventWriter::Stubs(mut stubs) => {
                stubs.keep(kept, event_of);
                stubs
            }
        }
    }
}

/// What each site is to do; and the events, with their sites, and whether they are of returns.
/// `at_exits`: returns are seen where calls end.
fn actions(
    sites: &[Site],
    at: &BTreeMap<usize, [Option<&Place>; 2]>,
    at_exits: bool,
    (typed, every): (Option<&[(Condition, Condition)]>, u32),
) -> Result<(BTreeMap<usize, ProbeAction>, Vec<SiteEvent>), String> {
    let mut actions = BTreeMap::new();
    let mut events: Vec<SiteEvent> = Vec::new();
    for (site, names) in at {
        let mut how = ProbeAction { every: if every > 1 { every } else { 0 }, ..ProbeAction::default() };
        if let Some(typed) = typed {
            (how.entry_condition, how.return_condition) = typed[*site].clone();
        }
        if !how.is_supported() {
            return Err("the condition is too long".to_owned());
        }
        if at_exits && names[1].is_some() && (!how.entry_condition.is_empty() || how.every > 1) {
            return Err(UNKNOWN_BEGIN.to_owned());
        }
        for (returns, name) in [false, true].into_iter().zip(names) {
            let Some(Place { name, fields: asked, .. }) = name else { continue };
            let fields = asked.clone().unwrap_or_else(|| fields(returns, sites[*site].is_go()));
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
            events.push(((*site, returns), event));
            let event = Some(EventId { id, kind });
            let fetches = fetches(&fields);
            if returns {
                (how.return_event, how.return_fetches) = (event, fetches);
            } else {
                (how.event, how.fetches) = (event, fetches);
            }
        }
        actions.insert(*site, how);
    }
    Ok((actions, events))
}
