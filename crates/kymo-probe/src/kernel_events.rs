//! Events by the names of functions, lines and markers: `-e probe:SELECTOR`, with the selectors of `kymo probe`.
//!
//! Each site becomes a tracepoint of the kernel for as long as the command runs, so that everything that counts and records tracepoints does: scopes, groups,
//! call chains, and readers of the recording, which show the first three arguments' registers, or what a function returned.
use crate::error::usage;
use crate::exits::ReturnAddresses;
use crate::memory_events::{RecordingTarget, events_with};
use crate::{arguments, modules};
use kymo_perf::bpf::uprobe::is_mistaken;
use kymo_perf::machine::Machine;
use kymo_perf::selector::Selected;
use kymo_perf::user_probes::{UserProbeSpec, UserProbes};
use kymo_symbols::sites::{ProbeSelector, Site, SiteKind};

/// More tracepoints at once are for `kymo probe`.
const MOST: usize = 256;

/// Events with tracepoints in the place of selectors, and their names. The tracepoints are removed when it is dropped.
#[derive(Debug)]
pub struct KernelProbes {
    /// What the selector of events understands.
    pub texts: Vec<String>,
    names: Vec<String>,
    probes: UserProbes,
}

impl KernelProbes {
    /// Gives events their names back.
    pub fn rename<'a>(&self, events: impl Iterator<Item = &'a mut Selected>) {
        for event in events {
            let Some(tracepoint) = &event.tracepoint else { continue };
            let is = |(system, name)| system == tracepoint.system && name == tracepoint.name;
            if let Some(at) = self.probes.events().position(is) {
                event.name.clone_from(&self.names[at]);
            }
        }
    }
}

/// Makes tracepoints of the sites that these events name; `None` if they name none. What the user should know goes to `say`.
///
/// # Errors
/// A sentence about the selector, or about why no tracepoint can be made. No tracepoint is left then.
pub fn find(
    texts: &[String],
    whom: &RecordingTarget<'_>,
    say: &dyn Fn(&str),
) -> anyhow::Result<Option<KernelProbes>> {
    let machine = Machine::here();
    let written: Vec<Vec<Written<'_>>> = texts.iter().map(|text| new_probes(text, &machine)).collect();
    if written.iter().all(Vec::is_empty) {
        return Ok(None);
    }
    // Beside processes a command is only what the recording lasts as long as.
    let modules = if whom.command.is_empty() || !whom.pids.is_empty() || !whom.tids.is_empty() {
        let mut all = Vec::new();
        for &pid in whom.pids.iter().chain(whom.tids) {
            all.extend(modules::of_process(pid)?);
        }
        all
    } else {
        modules::of_command(whom.command)?
    };
    let mut tracepoints = Tracepoints::default();
    let (return_addresses, mut counts) = (ReturnAddresses::of(&modules, false), Vec::new());
    for written in written.iter().flatten() {
        let selector = ProbeSelector::parse(written.selector).map_err(usage)?;
        let begin = tracepoints.specs.len();
        let sites = modules::touchable(modules::sites(&selector, &modules)?, &mut |word| say(&word))?;
        let asked = fields(&selector, &sites, say)?;
        for (site, events) in sites.into_iter().zip(asked) {
            if is_mistaken(site.module.file(), site.offset) {
                say(&format!(
                    "not probed: {}: it begins with a vector instruction, which the kernel would take for another one",
                    site.name
                ));
                continue;
            }
            for (returns, fields) in events {
                let exits = if returns { return_addresses.exits(&site) } else { Ok(Vec::new()) };
                match exits {
                    Ok(exits) => tracepoints.add(begin, &selector, &site, returns, exits, fields),
                    Err(reason) => say(&format!("not probed: the return of {}: {reason}", site.name)),
                }
            }
        }
        counts.push(tracepoints.specs.len() - begin);
    }
    let Tracepoints { specs, names } = tracepoints;
    anyhow::ensure!(
        specs.len() <= MOST,
        "these are {} places, and each would be an event of its own: name fewer, or use `kymo probe`, which counts thousands",
        specs.len()
    );
    anyhow::ensure!(!specs.is_empty(), "there is nothing left to probe");
    let probes = UserProbes::make(machine.tracefs(), &specs)?;
    let texts = with_tracepoints(texts, &written, &counts, &probes);
    Ok(Some(KernelProbes { texts, names, probes }))
}

/// Tracepoints to be made, with the events' names.
#[derive(Default)]
struct Tracepoints {
    specs: Vec<UserProbeSpec>,
    names: Vec<String>,
}

impl Tracepoints {
    /// One of a site, unless it is there since `begin`: of several processes the same file is one.
    fn add(
        &mut self,
        begin: usize,
        selector: &ProbeSelector,
        site: &Site,
        returns: bool,
        exits: Vec<u64>,
        fields: Option<String>,
    ) {
        let end = if returns { "%return" } else { "" };
        let kind = if matches!(site.kind, SiteKind::Marker { .. }) { "usdt:" } else { "" };
        let name = format!("probe:{kind}{}:{}{end}", site.module.name(), site.name);
        if self.names[begin..].contains(&name) {
            return;
        }
        let event = match returns && selector.arguments.is_some() {
            true => format!("{}__return", site.name),
            false => site.name.clone(),
        };
        self.specs.push(UserProbeSpec {
            name: event,
            path: site.module.file().to_owned(),
            offset: if returns { site.offset } else { site.counted_offset() },
            semaphore: site.semaphore,
            returns,
            exits,
            fields,
        });
        self.names.push(name);
    }
}

/// The texts of events with tracepoints in the place of selectors: of each, as many as `counts` says.
fn with_tracepoints(
    texts: &[String],
    written: &[Vec<Written<'_>>],
    counts: &[usize],
    probes: &UserProbes,
) -> Vec<String> {
    let (mut events, mut counts) = (probes.events(), counts.iter());
    let mut replaced = Vec::new();
    for (text, written) in texts.iter().zip(written) {
        let (mut out, mut done) = (String::new(), 0);
        for one in written {
            out.push_str(&text[done..one.begin]);
            let own = events.by_ref().take(counts.next().copied().unwrap_or(0));
            let own: Vec<String> =
                own.map(|(system, name)| format!("{system}:{name}{}", one.modifiers)).collect();
            out.push_str(&own.join(","));
            done = one.end;
        }
        out.push_str(&text[done..]);
        replaced.push(out);
    }
    replaced
}

/// The events of one site: whether it is the return, and its fields if expressions were typed.
type Events = Vec<(bool, Option<String>)>;

/// The events that each site is to be.
fn fields(selector: &ProbeSelector, sites: &[Site], say: &dyn Fn(&str)) -> anyhow::Result<Vec<Events>> {
    let Some(parts) = &selector.arguments else {
        let plain = |site: &Site| {
            let returns = selector.returns && site.kind == SiteKind::Function;
            // The usual ones are registers in which Go passes other things.
            let none = (!returns && site.is_go()).then(String::new);
            vec![(returns, none)]
        };
        return Ok(sites.iter().map(plain).collect());
    };
    let asked = arguments::each(sites, |_, site, routine| {
        let values =
            arguments::listed(site, &routine, parts).map_err(|why| format!("{}: {why}", site.name))?;
        values.words.iter().for_each(|word| say(word));
        let (entry, back) = (!selector.returns, selector.returns || !values.back.is_empty());
        if selector.returns && !values.entry.is_empty() {
            return Err(format!(
                "{}: at the return only `ret` is known: leave `%return` out for both",
                site.name
            ));
        }
        let back =
            back.then(|| (true, (!values.back.is_empty()).then(|| arguments::kernel_fields(&values.back))));
        let entry = entry.then(|| (false, Some(arguments::kernel_fields(&values.entry))));
        Ok(entry.into_iter().chain(back).collect())
    });
    asked.into_iter().collect::<Result<_, String>>().map_err(usage)
}

/// An event that names sites.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written<'a> {
    /// Where in the text of events it begins and ends.
    pub begin: usize,
    pub end: usize,
    /// Without `probe:` and modifiers.
    pub selector: &'a str,
    /// With their colon, or empty.
    pub modifiers: &'a str,
}

/// The events of a list that name sites; not those that name tracepoints which are there: perf's own probes are in a group `probe`, too.
pub(crate) fn new_probes<'a>(text: &'a str, machine: &Machine) -> Vec<Written<'a>> {
    let exists = |written: &Written<'_>| {
        let plain = written.selector.chars().all(|c| c.is_ascii_alphanumeric() || "_*?".contains(c));
        plain && machine.tracefs().matching("probe", written.selector).is_ok()
    };
    selectors(text).into_iter().filter(|written| !exists(written)).collect()
}

/// The events of a list that name sites.
fn selectors(text: &str) -> Vec<Written<'_>> {
    let written = |(begin, event, rest): (usize, &str, _)| {
        let (selector, modifiers) = split_modifiers(rest);
        Written { begin, end: begin + event.len(), selector: selector.trim_matches('\''), modifiers }
    };
    events_with(text, "probe:").map(written).collect()
}

/// Takes `:u` and the like off. A single part is a function: `probe:u`.
fn split_modifiers(rest: &str) -> (&str, &str) {
    let is_modifiers = |word: &str| !word.is_empty() && word.chars().all(|c| "ukDSWe".contains(c));
    match rest.rfind(':') {
        Some(at) if is_modifiers(&rest[at + 1..]) && !rest[..at].ends_with(':') => rest.split_at(at),
        _ => (rest, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::selectors;

    /// Checks selectors in lists and groups, with colons of their own, quotes and modifiers, beside other events.
    #[test]
    fn in_lists() {
        let found = |text: &str| -> Vec<(String, String)> {
            selectors(text).iter().map(|w| (w.selector.to_owned(), w.modifiers.to_owned())).collect()
        };
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(found("probe:main"), [pair("main", "")]);
        assert_eq!(found("cs,probe:libc.so.6:mal*:u"), [pair("libc.so.6:mal*", ":u")]);
        assert_eq!(found("{probe:a::b,probe:usdt:p:n}:S,mem:0x10"), [pair("a::b", ""), pair("usdt:p:n", "")]);
        assert_eq!(found("probe:'x:f<int, char>'"), [pair("x:f<int, char>", "")]);
        assert_eq!(found("probe:file.c:12,probe:f%return"), [pair("file.c:12", ""), pair("f%return", "")]);
        assert_eq!(found("sched:sched_switch,probe:,probex:y"), []);
        let text = "cs, {probe:one,cycles}";
        let one = selectors(text)[0];
        assert_eq!(&text[one.begin..one.end], "probe:one");
    }
}
